// swiglu_case.cpp - builds the tensors of a SwigluCase, runs them everywhere and verifies what came out
#include <catch2/catch_test_macros.hpp>
#include <cmath>
#include <sstream>

#include "cases.hpp"
#include "tolerance.hpp"

using oracle::Real;

namespace {

const char *const names[] = {"gate", "up", "out", "grad_out", "grad_gate", "grad_up"};

int number(SwigluTensor tensor) {
  return static_cast<int>(tensor);
}

struct Exact {
  Real value, slack;
};

// The form as the library reads it: its numbers in fp32.
oracle::SwigluForm form_of(double alpha, double limit, double up_offset, double out_scale) {
  oracle::SwigluForm form;
  if (alpha != 0) form.alpha = static_cast<float>(alpha);
  if (limit != 0) form.limit = static_cast<float>(limit);
  form.up_offset = static_cast<float>(up_offset);
  if (out_scale != 0) form.out_scale = static_cast<float>(out_scale);
  return form;
}

Exact exact_output(SwigluTensor output, Real gate, Real up, Real grad_out, const oracle::SwigluForm &form) {
  const Real g = std::fmin(gate, form.limit);
  const Real u = std::fmax(-form.limit, std::fmin(up, form.limit)) + form.up_offset;
  const Real argument = form.alpha * g;
  const bool is_scaled = form.alpha != 1;
  if (output == SwigluTensor::Out) {
    const Real value = oracle::swiglu(gate, up, form);
    return {value, tolerance::swiglu_slack(value, g, u, 1, form.out_scale, is_scaled ? argument : 0)};
  }
  const oracle::SwigluGradients gradients = oracle::swiglu_gradients(gate, up, grad_out, form);
  if (output == SwigluTensor::GradUp) {
    if (std::fabs(up) > form.limit) return {0, 0};
    return {gradients.up,
            tolerance::swiglu_slack(gradients.up, g, 1, grad_out, form.out_scale, is_scaled ? argument : 0)};
  }
  if (gate > form.limit) return {0, 0};
  const Real larger_term = form.out_scale * grad_out * u * oracle::sigmoid(argument) *
                           std::fmax(1.0L, std::fabs(argument * oracle::sigmoid(-argument)));
  const Real size = std::fmax(std::fabs(gradients.gate), std::fabs(larger_term));
  return {gradients.gate,
          tolerance::swiglu_slack(size, argument, u, grad_out, form.out_scale, is_scaled ? argument : 0)};
}

}  // namespace

struct SwigluCase::Scene {
  explicit Scene(uint64_t seed) : workspace(seed) {}
  Workspace workspace;
  rope_tensor_t tensors[6] = {};
};

SwigluCase &SwigluCase::dtype(rope_dtype_t dtype) {
  return dtype_ = dtype, *this;
}
SwigluCase &SwigluCase::shape(Shape shape) {
  return shape_ = std::move(shape), *this;
}

SwigluCase &SwigluCase::packing(GatePacking inputs, GatePacking gradients) {
  inputs_ = inputs;
  gradients_ = gradients;
  return *this;
}

SwigluCase &SwigluCase::placed(SwigluTensor tensor, const Placement &placement) {
  placements_[number(tensor)] = placement;
  return *this;
}

SwigluCase &SwigluCase::placed(const Placement &everywhere) {
  for (Placement &placement : placements_) placement = everywhere;
  return *this;
}

SwigluCase &SwigluCase::in_place(SwigluTensor output, SwigluTensor input) {
  over_[number(output)] = number(input);
  return *this;
}

SwigluCase &SwigluCase::without(SwigluTensor gradient) {
  return wanted_[number(gradient)] = false, *this;
}

SwigluCase &SwigluCase::form(double alpha, double limit, double up_offset, double out_scale) {
  alpha_ = alpha;
  limit_ = limit;
  up_offset_ = up_offset;
  out_scale_ = out_scale;
  return *this;
}

SwigluCase &SwigluCase::recomputed() {
  return recomputed_ = true, *this;
}

SwigluCase &SwigluCase::values(std::function<Real(SwigluTensor, const Index &)> value) {
  values_ = std::move(value);
  return *this;
}

std::string SwigluCase::describe() const {
  std::ostringstream text;
  text << oracle::dtype_name(dtype_) << " [";
  for (int64_t size : shape_) text << ' ' << size;
  text << " ] packing " << static_cast<int>(inputs_) << ' ' << static_cast<int>(gradients_);
  for (int i = 0; i < 6; ++i) {
    text << "; " << names[i] << placements_[i].describe();
    if (over_[i] >= 0) text << " over " << names[over_[i]];
    if (!wanted_[i]) text << " absent";
  }
  text << "; form " << alpha_ << ' ' << limit_ << ' ' << up_offset_ << ' ' << out_scale_;
  if (recomputed_) text << "; out in backward";
  return text.str();
}

void SwigluCase::build(Scene *scene) const {
  Workspace &workspace = scene->workspace;
  const int last = static_cast<int>(shape_.size()) - 1;
  const auto pack = [&](GatePacking packing, SwigluTensor first, SwigluTensor second) {
    rope_tensor_t &gate = scene->tensors[number(first)];
    rope_tensor_t &up = scene->tensors[number(second)];
    if (packing == GatePacking::Separate) {
      gate = workspace.tensor(dtype_, shape_, placements_[number(first)]);
      up = workspace.tensor(dtype_, shape_, placements_[number(second)]);
      return;
    }
    Shape both = shape_;
    both[last] *= 2;
    const rope_tensor_t packed = workspace.tensor(dtype_, both);
    const int64_t width = shape_[last];
    gate = narrow(packed, last, packing == GatePacking::UpFirst ? width : 0, width);
    up = narrow(packed, last, packing == GatePacking::UpFirst ? 0 : width, width);
    if (packing == GatePacking::Alternating) {
      gate = up = packed;
      gate.flags = up.flags = ROPE_TENSOR_STRIDED;
      gate.shape[last] = up.shape[last] = width;
      gate.stride[last] = up.stride[last] = 2;
      up.data = static_cast<std::byte *>(packed.data) + oracle::element_size(dtype_);
    }
  };
  pack(inputs_, SwigluTensor::Gate, SwigluTensor::Up);
  pack(gradients_, SwigluTensor::GradGate, SwigluTensor::GradUp);
  for (SwigluTensor tensor : {SwigluTensor::Out, SwigluTensor::GradOut}) {
    scene->tensors[number(tensor)] = workspace.tensor(dtype_, shape_, placements_[number(tensor)]);
  }
  for (SwigluTensor tensor : {SwigluTensor::Gate, SwigluTensor::Up, SwigluTensor::GradOut}) {
    workspace.fill(scene->tensors[number(tensor)], [&](const Index &index) -> Real {
      return values_ ? values_(tensor, index) : workspace.random().mixed() / 16;
    });
  }
  for (int i = 0; i < 6; ++i) {
    if (over_[i] >= 0) scene->tensors[i] = scene->tensors[over_[i]];
  }
  workspace.freeze();
}

void SwigluCase::verify(Scene *scene, Direction direction) const {
  Workspace &workspace = scene->workspace;
  const rope_tensor_t gate = workspace.before(scene->tensors[number(SwigluTensor::Gate)]);
  const rope_tensor_t up = workspace.before(scene->tensors[number(SwigluTensor::Up)]);
  const rope_tensor_t grad_out = workspace.before(scene->tensors[number(SwigluTensor::GradOut)]);
  std::vector<SwigluTensor> outputs;
  if (direction == Direction::Forward) {
    outputs = {SwigluTensor::Out};
  } else {
    for (SwigluTensor gradient : {SwigluTensor::GradGate, SwigluTensor::GradUp}) {
      if (wanted_[number(gradient)]) outputs.push_back(gradient);
    }
    if (recomputed_) outputs.push_back(SwigluTensor::Out);
  }
  const oracle::SwigluForm form = form_of(alpha_, limit_, up_offset_, out_scale_);
  int64_t wrong = 0;
  for (SwigluTensor output : outputs) {
    const rope_tensor_t &out = scene->tensors[number(output)];
    for_each_index(out, [&](const Index &at) {
      const Real g = value_at(gate, at), u = value_at(up, at);
      const Real go = direction == Direction::Backward ? value_at(grad_out, at) : 0;
      const Exact exact = exact_output(output, g, u, go, form);
      const Real actual = value_at(out, at);
      if (!tolerance::accepts(dtype_, actual, exact.value, exact.slack) && ++wrong <= 3) {
        UNSCOPED_INFO(names[number(output)]
                      << '[' << at[0] << ',' << at[1] << ',' << at[2] << ',' << at[3] << "] of gate "
                      << static_cast<double>(g) << ", up " << static_cast<double>(u) << ", grad_out "
                      << static_cast<double>(go) << ": expected " << static_cast<double>(exact.value) << " +- "
                      << static_cast<double>(exact.slack) << ", got " << static_cast<double>(actual) << ", off by "
                      << static_cast<double>((actual - exact.value) / oracle::ulp(ROPE_DTYPE_F32, exact.value))
                      << " ulp of fp32");
      }
      workspace.accept(out, at);
    });
  }
  INFO(wrong << " elements are wrong");
  CHECK(wrong == 0);
}

void SwigluCase::check() const {
  const std::string description = describe();
  uint64_t seed = 1;
  for (char letter : description) seed = seed * 31 + static_cast<unsigned char>(letter);
  Scene scene(seed);
  build(&scene);
  const auto tensor = [&](SwigluTensor name) {
    return wanted_[number(name)] ? scene.tensors[number(name)] : rope_tensor_t{};
  };
  for (const Direction direction : {Direction::Forward, Direction::Backward}) {
    swiglu_args_t args = swiglu_args();
    args.gate = tensor(SwigluTensor::Gate);
    args.up = tensor(SwigluTensor::Up);
    if (direction == Direction::Forward) {
      args.out = tensor(SwigluTensor::Out);
    } else {
      args.grad_out = tensor(SwigluTensor::GradOut);
      args.grad_gate = tensor(SwigluTensor::GradGate);
      args.grad_up = tensor(SwigluTensor::GradUp);
      if (recomputed_) args.out = tensor(SwigluTensor::Out);
    }
    for (const Device &device : devices()) {
      std::vector<std::byte> first;
      for (const int32_t threads : {1, 5, 0}) {
        INFO(description << "; " << name_of(direction) << " on " << device << ", num_threads " << threads);
        swiglu_config_t config = swiglu_config_for(device);
        config.dtype = dtype_;
        config.num_threads = threads;
        config.alpha = alpha_;
        config.limit = limit_;
        config.up_offset = up_offset_;
        config.out_scale = out_scale_;
        const SwigluDesc desc = create(config);
        scene.workspace.restore();
        const rope_status_t status = run(device, desc.get(), direction, args, scene.workspace);
        if (status != ROPE_STATUS_SUCCESS) {
          FAIL_CHECK(rope_status_name(status) << ": " << rope_last_error());
          return;
        }
        if (first.empty()) {
          verify(&scene, direction);
          std::string where;
          const bool untouched = scene.workspace.untouched_elsewhere(&where);
          INFO(where);
          CHECK(untouched);
          first = scene.workspace.image();
        } else {
          CHECK(scene.workspace.guards_hold());
          const bool reproduced = scene.workspace.image() == first;
          CHECK(reproduced);
        }
      }
    }
  }
}
