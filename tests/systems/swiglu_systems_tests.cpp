// swiglu_systems_tests.cpp - the gated activations of other systems that are gate * sigmoid(alpha * gate) * up: packed
// in four ways, clamped, shifted, scaled by row, recomputed in backward, over rows that the device counts
//
// vLLM and Liger round silu(gate) to the data's type before they multiply; librope rounds once, at the end. Not such a
// form, and not served: SiTU-GLU (tanh caps), a bias, the "step" clamp of SwigluStepAndMul (min(silu(gate), L)).
#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <cmath>
#include <functional>
#include <limits>
#include <vector>

#include "support/cases.hpp"
#include "support/tolerance.hpp"
#include "system.hpp"

using namespace systems;

namespace {

constexpr Real no_limit = std::numeric_limits<Real>::infinity();

Real sigmoid(Real x) {
  return 1 / (1 + std::exp(-x));
}

// A call over arrays of a workspace, and what it must leave in them.
class SwigluCall {
 public:
  explicit SwigluCall(rope_dtype_t dtype)
      : config(swiglu_config_for(devices()[0])), args(swiglu_args()), workspace_(7) {
    config.dtype = dtype;
  }

  swiglu_config_t config;
  swiglu_args_t args;

  Array data(const Shape &shape) { return data(config.dtype, shape); }
  Array data(rope_dtype_t dtype, const Shape &shape) {
    int64_t count = 1;
    for (int64_t size : shape) count *= size;
    Array array = {shape, workspace_.tensor(dtype, {count})};
    workspace_.fill(array.memory, [this](const Index &) { return 3 * workspace_.random().normal(); });
    return array;
  }
  Array count(rope_dtype_t dtype, int64_t value) {
    Array array = {{1}, workspace_.tensor(dtype, {1})};
    workspace_.fill_integers(array.memory, [&](const Index &) { return value; });
    return array;
  }

  // `size` is that of the largest term of the value.
  void expect(const Array &array, int64_t element, Real value, Real size) {
    expected_.push_back({array, element, value, size});
  }

  void check(Direction direction) {
    workspace_.freeze();
    for (const Device &device : devices()) {
      INFO(oracle::dtype_name(config.dtype) << " " << name_of(direction) << " on " << device);
      config.device = device.kind;
      config.device_index = device.index;
      const SwigluDesc desc = create(config);
      workspace_.restore();
      const rope_status_t status = run(device, desc.get(), direction, args, workspace_);
      if (status != ROPE_STATUS_SUCCESS) {
        FAIL_CHECK(rope_status_name(status) << ": " << rope_last_error());
        continue;
      }
      int64_t wrong = 0;
      for (const Expected &expected : expected_) {
        // 12 ulp, and alpha * gate more where alpha is not 1; the row weights of F64 data may be F32
        const bool is_f64 = config.dtype == ROPE_DTYPE_F64;
        const bool is_rounded = is_f64 && expected.array.memory.dtype == ROPE_DTYPE_F32;
        const Real slack = expected.size * (is_f64 ? 1e-14L : 5e-6L) + 0x1p-140L +
                           (is_rounded ? 0x1p-24L * std::fabs(expected.value) : 0);
        const Real actual = value_at(expected.array.memory, {expected.element});
        if (!tolerance::accepts(expected.array.memory.dtype, actual, expected.value, slack) && ++wrong <= 3) {
          UNSCOPED_INFO("element " << expected.element << ": expected " << static_cast<double>(expected.value) << " +- "
                                   << static_cast<double>(slack) << ", got " << static_cast<double>(actual));
        }
        workspace_.accept(expected.array.memory, {expected.element});
      }
      INFO(wrong << " elements are wrong");
      CHECK(wrong == 0);
      std::string where;
      const bool untouched = workspace_.untouched_elsewhere(&where);
      INFO(where);
      CHECK(untouched);
    }
  }

 private:
  struct Expected {
    Array array;
    int64_t element;
    Real value, size;
  };
  Workspace workspace_;
  std::vector<Expected> expected_;
};

// One form of the activation, and its derivatives with 0 where a clamp cut.
struct Form {
  Real alpha = 1, limit = no_limit, up_offset = 0, out_scale = 1;

  void fill(swiglu_config_t &config) const {
    config.alpha = static_cast<double>(alpha);
    config.limit = limit == no_limit ? 0 : static_cast<double>(limit);
    config.up_offset = static_cast<double>(up_offset);
    config.out_scale = static_cast<double>(out_scale);
  }
  Real cut_gate(Real gate) const { return std::min(gate, limit); }
  Real cut_up(Real up) const { return std::max(-limit, std::min(up, limit)) + up_offset; }
  Real silu(Real gate) const { return out_scale * cut_gate(gate) * sigmoid(alpha * cut_gate(gate)); }
  Real value(Real gate, Real up) const { return silu(gate) * cut_up(up); }
  Real by_gate(Real gate, Real up) const {
    if (gate > limit) return 0;
    const Real s = sigmoid(alpha * gate);
    return out_scale * cut_up(up) * (s + alpha * gate * s * (1 - s));
  }
  Real by_up(Real gate, Real up) const { return std::fabs(up) > limit ? 0 : silu(gate); }
  // A bound of the larger term of by_gate.
  Real gate_size(Real gate, Real up) const {
    return std::fabs(out_scale * cut_up(up)) * sigmoid(alpha * gate) * std::max(Real{1}, std::fabs(alpha * gate));
  }
};

// alpha and limit as fp32 has them, so that the exact value is of the number that the library uses.
const Form plain, gpt_oss = {static_cast<float>(1.702), 7, 1, 1};

enum class Packing {
  GateFirst,
  GateLast,
  Interleaved,
  Blocks  // 32 of gate, 32 of up, and so on
};

constexpr Packing packings[] = {Packing::GateFirst, Packing::GateLast, Packing::Interleaved, Packing::Blocks};

int64_t column(Packing packing, int64_t d, int64_t i, bool is_up) {
  switch (packing) {
    case Packing::GateFirst:
      return is_up ? d + i : i;
    case Packing::GateLast:
      return is_up ? i : d + i;
    case Packing::Interleaved:
      return 2 * i + is_up;
    default:
      return i / 32 * 64 + is_up * 32 + i % 32;
  }
}

// The views that a user builds of one packed [n, 2d], and the shape that out then has.
Shape shape_of(Packing packing, int64_t n, int64_t d) {
  return packing == Packing::Blocks ? Shape{n, d / 32, 32} : Shape{n, d};
}

rope_tensor_t part(const Array &packed, Packing packing, bool is_up) {
  const int64_t n = packed.shape[0], d = packed.shape[1] / 2;
  switch (packing) {
    case Packing::GateFirst:
      return narrow(packed.tensor(), 1, is_up ? d : 0, d);
    case Packing::GateLast:
      return narrow(packed.tensor(), 1, is_up ? 0 : d, d);
    case Packing::Interleaved:
      return every(packed.tensor(), 1, is_up, 2);
    default:
      return select(packed.as({n, d / 32, 2, 32}), 2, is_up);
  }
}

void check_packed(rope_dtype_t dtype, Packing packing, const Form &form) {
  const int64_t n = 5, d = 96;
  SwigluCall forward(dtype);
  form.fill(forward.config);
  const Array x = forward.data({n, 2 * d}), out = forward.data({n, d});
  forward.args.gate = part(x, packing, false);
  forward.args.up = part(x, packing, true);
  forward.args.out = out.as(shape_of(packing, n, d));
  for_each({n, d}, [&](const Shape &at) {
    const Real gate = x.value({at[0], column(packing, d, at[1], false)});
    const Real up = x.value({at[0], column(packing, d, at[1], true)});
    forward.expect(out, out.at(at), form.value(gate, up), std::fabs(form.value(gate, up)));
  });
  forward.check(Direction::Forward);

  SwigluCall backward(dtype);
  form.fill(backward.config);
  const Array y = backward.data({n, 2 * d}), grad_out = backward.data({n, d}), grad = backward.data({n, 2 * d});
  backward.args.gate = part(y, packing, false);
  backward.args.up = part(y, packing, true);
  backward.args.grad_out = grad_out.as(shape_of(packing, n, d));
  backward.args.grad_gate = part(grad, packing, false);
  backward.args.grad_up = part(grad, packing, true);
  for_each({n, d}, [&](const Shape &at) {
    const int64_t gate_at = y.at({at[0], column(packing, d, at[1], false)});
    const int64_t up_at = y.at({at[0], column(packing, d, at[1], true)});
    const Real gate = value_at(y.memory, {gate_at}), up = value_at(y.memory, {up_at}), dy = grad_out.value(at);
    backward.expect(grad, gate_at, dy * form.by_gate(gate, up), std::fabs(dy) * form.gate_size(gate, up));
    backward.expect(grad, up_at, dy * form.by_up(gate, up), std::fabs(dy * form.by_up(gate, up)));
  });
  backward.check(Direction::Backward);
}

}  // namespace

TEST_CASE("SwiGLU tutorial: two tensors of any shape", "[systems][swiglu]") {
  for (rope_dtype_t dtype : floating) {
    for (const Shape &shape : {Shape{1}, Shape{100}, Shape{1024}, Shape{3 * 1024 + 123}, Shape{2, 3, 4, 5}}) {
      SwigluCase().dtype(dtype).shape(shape).check();
    }
  }
}

TEST_CASE("vLLM silu_and_mul: gate first", "[systems][swiglu]") {
  for (rope_dtype_t dtype : floating) check_packed(dtype, Packing::GateFirst, plain);
}

TEST_CASE("vLLM mul_and_silu: gate last", "[systems][swiglu]") {
  for (rope_dtype_t dtype : floating) check_packed(dtype, Packing::GateLast, plain);
}

TEST_CASE("vLLM swigluoai_and_mul: interleaved, gpt-oss", "[systems][swiglu]") {
  for (rope_dtype_t dtype : floating) check_packed(dtype, Packing::Interleaved, gpt_oss);
}

TEST_CASE("TransformerEngine glu_interleave_size: blocks of 32", "[systems][swiglu]") {
  for (rope_dtype_t dtype : floating) {
    check_packed(dtype, Packing::Blocks, plain);
    check_packed(dtype, Packing::Blocks, gpt_oss);
  }
}

TEST_CASE("vLLM silu_and_mul_clamp: no gradient where clamped", "[systems][swiglu]") {
  for (rope_dtype_t dtype : floating) {
    for (Packing packing : packings) {
      check_packed(dtype, packing, {1, 2.5L, 0, 1});
      check_packed(dtype, packing, {1.5L, 2.5L, 0.5L, 1});
    }
  }
}

TEST_CASE("Liger gate_multiplier: alpha and out_scale", "[systems][swiglu]") {
  // silu(m * gate) * up = m * gate * sigmoid(m * gate) * up
  for (rope_dtype_t dtype : floating) {
    for (Real m : {Real{0.5}, Real{3}}) check_packed(dtype, Packing::GateFirst, {m, no_limit, 0, m});
  }
}

TEST_CASE("aiter scaled: one factor of the output", "[systems][swiglu]") {
  for (rope_dtype_t dtype : floating) check_packed(dtype, Packing::GateFirst, {1, no_limit, 0, 0.125L});
}

TEST_CASE("Liger and unsloth: gradients over inputs, the output again", "[systems][swiglu]") {
  for (rope_dtype_t dtype : floating) {
    for (const bool recomputes : {false, true}) {
      const int64_t n = 3, d = 37;
      SwigluCall call(dtype);
      const Array gate = call.data({n, d}), up = call.data({n, d}), dy = call.data({n, d});
      call.args.gate = gate.tensor();
      call.args.up = up.tensor();
      call.args.grad_out = dy.tensor();
      call.args.grad_gate = gate.tensor();
      call.args.grad_up = up.tensor();
      if (recomputes) call.args.out = dy.tensor();
      for_each({n, d}, [&](const Shape &at) {
        const Real g = gate.value(at), u = up.value(at), weight = dy.value(at);
        call.expect(gate, gate.at(at), weight * plain.by_gate(g, u), std::fabs(weight) * plain.gate_size(g, u));
        call.expect(up, up.at(at), weight * plain.by_up(g, u), std::fabs(weight * plain.by_up(g, u)));
        if (recomputes) call.expect(dy, dy.at(at), plain.value(g, u), std::fabs(plain.value(g, u)));
      });
      call.check(Direction::Backward);
    }
  }
}

TEST_CASE("Megatron weighted SwiGLU: row weights and their gradient", "[systems][swiglu]") {
  const int64_t tokens = 6, d = 45;
  for (rope_dtype_t dtype : floating) {
    for (rope_dtype_t weight_dtype : std::vector<rope_dtype_t>{ROPE_DTYPE_F32, dtype}) {
      for (const Form &form : {plain, gpt_oss}) {
        for (Direction direction : {Direction::Forward, Direction::Backward}) {
          SwigluCall call(dtype);
          form.fill(call.config);
          const Array x = call.data({tokens, 2 * d}), weights = call.data(weight_dtype, {tokens});
          const Array out = call.data({tokens, d}), grad_out = call.data({tokens, d});
          const Array grad = call.data({tokens, 2 * d}), grad_weights = call.data(weight_dtype, {tokens});
          call.args.gate = part(x, Packing::GateFirst, false);
          call.args.up = part(x, Packing::GateFirst, true);
          call.args.row_scale = weights.tensor();
          if (direction == Direction::Forward) {
            call.args.out = out.tensor();
          } else {
            call.args.grad_out = grad_out.tensor();
            call.args.grad_gate = part(grad, Packing::GateFirst, false);
            call.args.grad_up = part(grad, Packing::GateFirst, true);
            call.args.grad_row_scale = grad_weights.tensor();
          }
          for (int64_t t = 0; t < tokens; ++t) {
            const Real w = weights.value({t});
            Real sum = 0, sizes = 0;
            for (int64_t i = 0; i < d; ++i) {
              const Real g = x.value({t, i}), u = x.value({t, d + i}), value = form.value(g, u);
              const Real dy = grad_out.value({t, i});
              sum += dy * value;
              sizes += std::fabs(dy * value);
              if (direction == Direction::Forward) {
                call.expect(out, out.at({t, i}), value * w, std::fabs(value * w));
                continue;
              }
              call.expect(grad, grad.at({t, i}), dy * w * form.by_gate(g, u), std::fabs(dy * w) * form.gate_size(g, u));
              call.expect(grad, grad.at({t, d + i}), dy * w * form.by_up(g, u), std::fabs(dy * w * form.by_up(g, u)));
            }
            if (direction == Direction::Backward) call.expect(grad_weights, t, sum, sizes);
          }
          call.check(direction);
        }
      }
    }
  }
}

TEST_CASE("Grouped experts: rows past a count on the device", "[systems][swiglu]") {
  const int64_t rows = 7, d = 24;
  for (rope_dtype_t dtype : floating) {
    for (rope_dtype_t count_dtype : integers) {
      for (int64_t count : {int64_t{0}, int64_t{4}, rows, rows + 5, int64_t{-3}}) {
        for (Direction direction : {Direction::Forward, Direction::Backward}) {
          SwigluCall call(dtype);
          const Array x = call.data({rows, 2 * d}), out = call.data({rows, d}), grad = call.data({rows, 2 * d});
          const Array num_rows = call.count(count_dtype, count);
          call.args.gate = part(x, Packing::GateFirst, false);
          call.args.up = part(x, Packing::GateFirst, true);
          call.args.num_rows = num_rows.tensor();
          const bool is_forward = direction == Direction::Forward;
          if (is_forward) {
            call.args.out = out.tensor();
          } else {
            call.args.grad_out = out.tensor();
            call.args.grad_gate = part(grad, Packing::GateFirst, false);
            call.args.grad_up = part(grad, Packing::GateFirst, true);
          }
          for_each({std::max(int64_t{0}, std::min(count, rows)), d}, [&](const Shape &at) {
            const Real g = x.value(at), u = x.value({at[0], d + at[1]}), dy = out.value(at);
            if (is_forward) {
              call.expect(out, out.at(at), plain.value(g, u), std::fabs(plain.value(g, u)));
            } else {
              call.expect(grad, grad.at(at), dy * plain.by_gate(g, u), std::fabs(dy) * plain.gate_size(g, u));
              call.expect(grad, grad.at({at[0], d + at[1]}), dy * plain.by_up(g, u), std::fabs(dy * plain.by_up(g, u)));
            }
          });
          call.check(direction);
        }
      }
    }
  }
}

TEST_CASE("SwiGLU: every form recomputed in backward", "[systems][swiglu]") {
  for (rope_dtype_t dtype : floating) {
    for (GatePacking packing :
         {GatePacking::GateFirst, GatePacking::UpFirst, GatePacking::Alternating, GatePacking::Blocks}) {
      SwigluCase swiglu = SwigluCase().dtype(dtype).shape({5, 33}).packing(packing, packing).recomputed();
      for (bool has_row_scale : {false, true}) {
        if (has_row_scale) swiglu.row_scale(1).grad_row_scale();
        SwigluCase(swiglu).check();
        SwigluCase(swiglu).form(1.702, 7, 1, 0).check();
        SwigluCase(swiglu).form(0.5, 0, 0, 2).num_rows(3, ROPE_DTYPE_I32).check();
      }
    }
  }
}
