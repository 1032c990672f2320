// SPDX-License-Identifier: Apache-2.0
// swiglu_case.cpp - builds the tensors of a SwigluCase, runs the calls on every device and verifies the outputs
#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <cmath>
#include <map>
#include <sstream>

#include "cases.hpp"
#include "swiglu_element.hpp"
#include "swiglu_rows.hpp"

using oracle::Real;
using swiglu_element::Element;
using swiglu_element::Exact;
using swiglu_element::form_of;
using swiglu_element::Inputs;
using swiglu_element::RowTotal;

namespace {

const char *const names[] = {"gate",           "up",        "out",    "grad_out", "grad_gate", "grad_up", "row_scale",
                             "grad_row_scale", "gate_bias", "up_bias"};

int number(SwigluTensor tensor) {
  return static_cast<int>(tensor);
}

}  // namespace

struct SwigluCase::Scene {
  explicit Scene(uint64_t seed) : workspace(seed) {}
  Workspace workspace;
  rope_tensor_t tensors[tensor_count] = {};
  rope_tensor_t num_rows = {}, expert_rows = {}, expert_offsets = {}, row_index = {};

  rope_tensor_t &operator[](SwigluTensor tensor) { return tensors[number(tensor)]; }
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
  for (int i = 0; i < number(SwigluTensor::RowScale); ++i) placements_[i] = everywhere;
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
  form_.alpha = alpha;
  form_.limit = limit;
  form_.up_offset = up_offset;
  form_.out_scale = out_scale;
  return *this;
}

SwigluCase &SwigluCase::activation(int32_t activation, int32_t limit_rule) {
  form_.activation = activation;
  form_.limit_rule = limit_rule;
  return *this;
}

SwigluCase &SwigluCase::soft_caps(double gate_softcap, double up_softcap) {
  form_.gate_softcap = gate_softcap;
  form_.up_softcap = up_softcap;
  return *this;
}

SwigluCase &SwigluCase::row_scale(int axes, rope_dtype_t dtype, const Placement &placement) {
  row_axes_ = axes;
  row_scale_dtype_ = dtype;
  wanted_[number(SwigluTensor::RowScale)] = true;
  return placed(SwigluTensor::RowScale, placement);
}

SwigluCase &SwigluCase::grad_row_scale(const Placement &placement) {
  wanted_[number(SwigluTensor::GradRowScale)] = true;
  return placed(SwigluTensor::GradRowScale, placement);
}

SwigluCase &SwigluCase::grad_row_scale_in_place() {
  return grad_row_scale().in_place(SwigluTensor::GradRowScale, SwigluTensor::RowScale);
}

SwigluCase &SwigluCase::num_rows(int64_t rows, rope_dtype_t dtype) {
  num_rows_ = rows;
  num_rows_dtype_ = dtype;
  return *this;
}

SwigluCase &SwigluCase::rounds_activation() {
  form_.product_rounding = SWIGLU_PRODUCT_ROUND_ACTIVATION;
  return *this;
}

SwigluCase &SwigluCase::biases(rope_dtype_t dtype, bool by_expert, const Placement &placement) {
  bias_dtype_ = dtype;
  is_bias_by_expert_ = by_expert;
  wanted_[number(SwigluTensor::GateBias)] = wanted_[number(SwigluTensor::UpBias)] = true;
  return placed(SwigluTensor::GateBias, placement).placed(SwigluTensor::UpBias, placement);
}

SwigluCase &SwigluCase::experts(std::vector<int64_t> rows, rope_dtype_t dtype, const Placement &placement) {
  expert_rows_ = std::move(rows);
  expert_rows_dtype_ = dtype;
  expert_rows_placement_ = placement;
  return *this;
}

SwigluCase &SwigluCase::expert_offsets(std::vector<int64_t> offsets, rope_dtype_t dtype, const Placement &placement) {
  offsets_ = std::move(offsets);
  offsets_dtype_ = dtype;
  offsets_placement_ = placement;
  return *this;
}

SwigluCase &SwigluCase::row_index(std::vector<int64_t> index, int64_t factors, rope_dtype_t dtype,
                                  const Placement &placement) {
  index_ = std::move(index);
  factors_ = factors;
  index_dtype_ = dtype;
  index_placement_ = placement;
  return *this;
}

bool SwigluCase::is_gate_row(int64_t row) const {
  if (num_rows_dtype_ && row >= num_rows_) return false;
  if (index_dtype_) {
    const int64_t factor = index_[static_cast<size_t>(row)];
    if (factor < 0 || factor >= factors_) return false;
  }
  return !offsets_dtype_ || swiglu_rows::expert_of(offsets_, shape_[0], row) >= 0;
}

// Returns the factors that row_index chooses, or the experts that have rows.
std::set<int64_t> SwigluCase::used_entries(SwigluTensor tensor) const {
  std::set<int64_t> used;
  for (int64_t row = 0; row < shape_[0]; ++row) {
    if (!is_gate_row(row)) continue;
    used.insert(tensor == SwigluTensor::RowScale ? index_[static_cast<size_t>(row)]
                                                 : swiglu_rows::expert_of(offsets_, shape_[0], row));
  }
  return used;
}

bool SwigluCase::is_row(SwigluTensor tensor, const Index &index) const {
  if (tensor == SwigluTensor::GateBias || tensor == SwigluTensor::UpBias) return true;
  if (offsets_dtype_ || index_dtype_) return is_gate_row(index[0]);
  if (expert_rows_dtype_) {
    const bool is_by_expert = tensor == SwigluTensor::RowScale || tensor == SwigluTensor::GradRowScale;
    if (is_by_expert && row_axes_ < 2) return expert_rows_[static_cast<size_t>(index[0])] > 0;
    return index[1] < expert_rows_[static_cast<size_t>(index[0])];
  }
  return !num_rows_dtype_ || index[0] < num_rows_;
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
  for (int i = 0; i < tensor_count; ++i) {
    if (i >= number(SwigluTensor::RowScale) && !wanted_[i]) continue;
    text << "; " << names[i] << placements_[i].describe();
    if (over_[i] >= 0) text << " over " << names[over_[i]];
    if (!wanted_[i]) text << " absent";
  }
  if (row_axes_) text << ", row_scale " << oracle::dtype_name(row_scale_dtype_) << " of " << row_axes_ << " axes";
  if (num_rows_dtype_) text << "; num_rows " << oracle::dtype_name(num_rows_dtype_) << ' ' << num_rows_;
  if (expert_rows_dtype_) {
    text << "; expert_rows " << oracle::dtype_name(expert_rows_dtype_) << expert_rows_placement_.describe();
    for (int64_t rows : expert_rows_) text << ' ' << rows;
  }
  if (offsets_dtype_) {
    text << "; expert_offsets " << oracle::dtype_name(offsets_dtype_) << offsets_placement_.describe();
    for (int64_t offset : offsets_) text << ' ' << offset;
  }
  if (index_dtype_) {
    text << "; row_index of " << factors_ << ' ' << oracle::dtype_name(index_dtype_) << index_placement_.describe();
    for (int64_t factor : index_) text << ' ' << factor;
  }
  if (bias_dtype_) text << "; biases " << oracle::dtype_name(bias_dtype_);
  if (is_bias_by_expert_) text << " by expert";
  if (form_.product_rounding) text << "; rounds the activation";
  text << "; form " << form_.alpha << ' ' << form_.limit << ' ' << form_.up_offset << ' ' << form_.out_scale;
  if (form_.activation) text << ", activation " << form_.activation;
  if (form_.limit_rule) text << ", limit_rule " << form_.limit_rule;
  if (form_.gate_softcap != 0) text << ", gate_softcap " << form_.gate_softcap;
  if (form_.up_softcap != 0) text << ", up_softcap " << form_.up_softcap;
  if (recomputed_) text << "; out in backward";
  return text.str();
}

void SwigluCase::build(Scene *scene) const {
  Workspace &workspace = scene->workspace;
  const int last = static_cast<int>(shape_.size()) - 1;
  const auto pack = [&](GatePacking packing, SwigluTensor first, SwigluTensor second) {
    rope_tensor_t &gate = (*scene)[first];
    rope_tensor_t &up = (*scene)[second];
    if (packing == GatePacking::Separate) {
      gate = workspace.tensor(dtype_, shape_, placements_[number(first)]);
      up = workspace.tensor(dtype_, shape_, placements_[number(second)]);
      return;
    }
    Shape both = shape_;
    if (packing == GatePacking::Blocks) {
      both.insert(both.begin() + last, 2);
      const rope_tensor_t packed = workspace.tensor(dtype_, both);
      gate = select(packed, last, 0);
      up = select(packed, last, 1);
      return;
    }
    both[last] *= 2;
    const bool is_up_first = packing == GatePacking::UpFirst || packing == GatePacking::AlternatingUpFirst;
    if (packing == GatePacking::Alternating || packing == GatePacking::AlternatingUpFirst) {
      const rope_tensor_t packed = workspace.tensor(dtype_, both, placements_[number(first)]);
      rope_tensor_t &even = is_up_first ? up : gate, &odd = is_up_first ? gate : up;
      even = odd = packed;
      even.shape[last] = odd.shape[last] = shape_[last];
      even.stride[last] = odd.stride[last] = 2 * packed.stride[last];
      odd.data = static_cast<std::byte *>(packed.data) + packed.stride[last] * oracle::element_size(dtype_);
      return;
    }
    const rope_tensor_t packed = workspace.tensor(dtype_, both);
    const int64_t width = shape_[last];
    gate = narrow(packed, last, is_up_first ? width : 0, width);
    up = narrow(packed, last, is_up_first ? 0 : width, width);
  };
  pack(inputs_, SwigluTensor::Gate, SwigluTensor::Up);
  pack(gradients_, SwigluTensor::GradGate, SwigluTensor::GradUp);
  for (SwigluTensor tensor : {SwigluTensor::Out, SwigluTensor::GradOut}) {
    (*scene)[tensor] = workspace.tensor(dtype_, shape_, placements_[number(tensor)]);
  }
  std::vector<SwigluTensor> filled = {SwigluTensor::Gate, SwigluTensor::Up, SwigluTensor::GradOut};
  if (row_axes_) {
    const Shape rows(shape_.begin(), shape_.begin() + row_axes_);
    const rope_dtype_t dtype = row_scale_dtype_ ? row_scale_dtype_ : dtype_;
    for (SwigluTensor tensor : {SwigluTensor::RowScale, SwigluTensor::GradRowScale}) {
      if (!wanted_[number(tensor)]) continue;
      const bool is_indexed = tensor == SwigluTensor::RowScale && index_dtype_;
      (*scene)[tensor] = workspace.tensor(dtype, is_indexed ? Shape{factors_} : rows, placements_[number(tensor)]);
    }
    filled.push_back(SwigluTensor::RowScale);
  }
  for (SwigluTensor tensor : {SwigluTensor::GateBias, SwigluTensor::UpBias}) {
    if (!wanted_[number(tensor)]) continue;
    const int64_t experts = offsets_dtype_ ? static_cast<int64_t>(offsets_.size()) - 1 : shape_.front();
    const Shape shape = is_bias_by_expert_ ? Shape{experts, shape_.back()} : Shape{shape_.back()};
    (*scene)[tensor] = workspace.tensor(bias_dtype_ ? bias_dtype_ : dtype_, shape, placements_[number(tensor)]);
    filled.push_back(tensor);
  }
  for (SwigluTensor tensor : filled) {
    const rope_tensor_t &view = (*scene)[tensor];
    const bool is_factor = tensor == SwigluTensor::RowScale && index_dtype_;
    const bool is_bias = tensor == SwigluTensor::GateBias || tensor == SwigluTensor::UpBias;
    const bool is_chosen = is_factor || (is_bias && is_bias_by_expert_ && offsets_dtype_);
    const std::set<int64_t> used = is_chosen ? used_entries(tensor) : std::set<int64_t>();
    for_each_index(view, [&](const Index &index) {
      const Real value = values_ ? values_(tensor, index) : workspace.random().mixed() / 16;
      const bool is_filled = is_chosen ? used.count(index[0]) > 0 : is_row(tensor, index);
      if (is_filled) oracle::encode(view.dtype, value, element_at(view, index));
    });
  }
  if (num_rows_dtype_) {
    scene->num_rows = workspace.tensor(num_rows_dtype_, {1});
    workspace.fill_integers(scene->num_rows, [&](const Index &) { return num_rows_; });
  }
  if (expert_rows_dtype_) {
    scene->expert_rows = workspace.list(expert_rows_dtype_, expert_rows_, expert_rows_placement_);
  }
  if (offsets_dtype_) scene->expert_offsets = workspace.list(offsets_dtype_, offsets_, offsets_placement_);
  if (index_dtype_) scene->row_index = workspace.list(index_dtype_, index_, index_placement_);
  for (int i = 0; i < tensor_count; ++i) {
    if (over_[i] >= 0) scene->tensors[i] = scene->tensors[over_[i]];
  }
  workspace.freeze();
}

void SwigluCase::verify(Scene *scene, Direction direction) const {
  Workspace &workspace = scene->workspace;
  const rope_tensor_t gate = workspace.before((*scene)[SwigluTensor::Gate]);
  const rope_tensor_t up = workspace.before((*scene)[SwigluTensor::Up]);
  const rope_tensor_t grad_out = workspace.before((*scene)[SwigluTensor::GradOut]);
  const rope_tensor_t row_scale = workspace.before((*scene)[SwigluTensor::RowScale]);
  std::vector<SwigluTensor> outputs;
  if (direction == Direction::Forward) {
    outputs = {SwigluTensor::Out};
  } else {
    for (SwigluTensor gradient : {SwigluTensor::GradGate, SwigluTensor::GradUp}) {
      if (wanted_[number(gradient)]) outputs.push_back(gradient);
    }
    if (recomputed_) outputs.push_back(SwigluTensor::Out);
  }
  const rope_dtype_t arithmetic = dtype_ == ROPE_DTYPE_F64 ? ROPE_DTYPE_F64 : ROPE_DTYPE_F32;
  swiglu_config_t config = form_;
  config.dtype = dtype_;
  const oracle::SwigluForm form = form_of(arithmetic, config);
  const auto with_bias = [&](Real value, SwigluTensor tensor, const Index &at) {
    if (!wanted_[number(tensor)]) return value;
    Index place = {};
    if (is_bias_by_expert_) place[0] = offsets_dtype_ ? swiglu_rows::expert_of(offsets_, shape_[0], at[0]) : at[0];
    place[is_bias_by_expert_ ? 1 : 0] = at[shape_.size() - 1];
    return oracle::sum(arithmetic, value, value_at(workspace.before((*scene)[tensor]), place));
  };
  const auto factor_place = [&](Index at) {
    if (index_dtype_) at = {index_[static_cast<size_t>(at[0])]};
    return at;
  };
  const auto element = [&](const Index &at) {
    const Real go = direction == Direction::Backward ? value_at(grad_out, at) : 0;
    const Inputs in = {with_bias(value_at(gate, at), SwigluTensor::GateBias, at),
                       with_bias(value_at(up, at), SwigluTensor::UpBias, at), go,
                       row_axes_ ? value_at(row_scale, factor_place(at)) : 1};
    return Element(in, form, arithmetic);
  };
  int64_t wrong = 0;
  const auto judge = [&](SwigluTensor output, const Index &at, const Exact &exact, const Inputs &in) {
    const rope_tensor_t &out = (*scene)[output];
    const Real actual = value_at(out, at);
    if (!tolerance::accepts(out.dtype, actual, exact.value, exact.slack) && ++wrong <= 3) {
      UNSCOPED_INFO(names[number(output)]
                    << '[' << at[0] << ',' << at[1] << ',' << at[2] << ',' << at[3] << "] of gate "
                    << static_cast<double>(in.gate) << ", up " << static_cast<double>(in.up) << ", grad_out "
                    << static_cast<double>(in.grad_out) << ", row_scale " << static_cast<double>(in.row_scale)
                    << ": expected " << static_cast<double>(exact.value) << " +- " << static_cast<double>(exact.slack)
                    << ", got " << static_cast<double>(actual) << ", off by "
                    << static_cast<double>((actual - exact.value) / oracle::ulp(arithmetic, exact.value))
                    << " ulp of the arithmetic");
    }
    workspace.accept(out, at);
  };
  for (SwigluTensor output : outputs) {
    for_each_index((*scene)[output], [&](const Index &at) {
      if (!is_row(output, at)) return;
      const Element one = element(at);
      const Exact exact = output == SwigluTensor::Out      ? one.out()
                          : output == SwigluTensor::GradUp ? one.grad_up()
                                                           : one.grad_gate();
      judge(output, at, exact, one.in);
    });
  }
  if (direction == Direction::Backward && wanted_[number(SwigluTensor::GradRowScale)]) {
    std::map<Index, RowTotal> totals;
    for_each_index(gate, [&](const Index &at) {
      if (!is_row(SwigluTensor::Gate, at)) return;
      Index row = {};
      std::copy(at.begin(), at.begin() + row_axes_, row.begin());
      totals[row].add(element(at));
    });
    const rope_tensor_t &gradient = (*scene)[SwigluTensor::GradRowScale];
    for (const auto &[row, total] : totals) {
      judge(SwigluTensor::GradRowScale, row, total.grad_row_scale(arithmetic, gradient.dtype), total.first);
    }
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
    args.row_scale = tensor(SwigluTensor::RowScale);
    args.num_rows = scene.num_rows;
    swiglu_input_args_t input = SWIGLU_INPUT_ARGS_INIT;
    input.gate_bias = tensor(SwigluTensor::GateBias);
    input.up_bias = tensor(SwigluTensor::UpBias);
    input.expert_rows = scene.expert_rows;
    input.expert_offsets = scene.expert_offsets;
    input.row_index = scene.row_index;
    const bool has_experts = expert_rows_dtype_ || offsets_dtype_;
    const bool has_input = wanted_[number(SwigluTensor::GateBias)] || has_experts || index_dtype_;
    if (has_input) args.input = &input;
    if (direction == Direction::Forward) {
      args.out = tensor(SwigluTensor::Out);
    } else {
      args.grad_out = tensor(SwigluTensor::GradOut);
      args.grad_gate = tensor(SwigluTensor::GradGate);
      args.grad_up = tensor(SwigluTensor::GradUp);
      args.grad_row_scale = tensor(SwigluTensor::GradRowScale);
      if (recomputed_) args.out = tensor(SwigluTensor::Out);
    }
    for (const Device &device : devices()) {
      std::vector<std::byte> first;
      for (const int32_t threads : {1, 5, 0}) {
        INFO(description << "; " << name_of(direction) << " on " << device << ", num_threads " << threads);
        swiglu_config_t config = form_;
        const swiglu_config_t blank = swiglu_config_for(device);
        config.struct_size = blank.struct_size;
        config.device = blank.device;
        config.device_index = blank.device_index;
        config.dtype = dtype_;
        config.num_threads = threads;
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
