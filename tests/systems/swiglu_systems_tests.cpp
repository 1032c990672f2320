// SPDX-License-Identifier: Apache-2.0
// swiglu_systems_tests.cpp - the gated activations of other systems: packed in four ways, clamped, shifted, scaled by
// row, recomputed in backward, over rows that the device counts; GELU and ReLU, soft caps, biases, experts
//
// vLLM and Liger round silu(gate) to the data's type before they multiply; librope rounds once, at the end, unless
// product_rounding is set (tests/api/swiglu_gates_tests.cpp).
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

// A call over arrays of a workspace, and the values that it must leave in them.
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
  Array counts(rope_dtype_t dtype, const std::vector<int64_t> &values) {
    const auto size = static_cast<int64_t>(values.size());
    Array array = {{size}, workspace_.tensor(dtype, {size})};
    workspace_.fill_integers(array.memory, [&](const Index &at) { return values[static_cast<size_t>(at[0])]; });
    return array;
  }
  Array count(rope_dtype_t dtype, int64_t value) { return counts(dtype, {value}); }

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
        // The tolerance is 12 ulp, and alpha * gate more if alpha is not 1. The row weights of F64 data may be F32.
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

// One form of the activation, and its derivatives, which are 0 beyond a clamp.
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
  // Returns a bound of the larger term of by_gate.
  Real gate_size(Real gate, Real up) const {
    return std::fabs(out_scale * cut_up(up)) * sigmoid(alpha * gate) * std::max(Real{1}, std::fabs(alpha * gate));
  }
};

// alpha and limit are rounded to fp32, so that the exact value is that of the library's numbers.
const Form plain, gpt_oss = {static_cast<float>(1.702), 7, 1, 1};

enum class Packing {
  GateFirst,
  GateLast,
  Interleaved,
  Blocks  // 32 of gate, then 32 of up, and so on
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

namespace {

// The gate of another system by its own formula, and the config of librope for it.
struct Gate {
  std::function<Real(Real gate, Real up)> value;
  std::function<void(swiglu_config_t &)> fill;
};

// Central differences of long double. Their error is 1e-11 of the value and its third derivative.
Real slope(const std::function<Real(Real)> &function, Real at) {
  const Real step = 1e-6L * std::max(Real{1}, std::fabs(at));
  return (function(at + step) - function(at - step)) / (2 * step);
}

// Returns the size that a result's tolerance is relative to. It is larger for 16 bits, which have brief activations,
// and for F64, as differences are less exact than F64.
Real size_of(rope_dtype_t dtype, Real size) {
  const bool is_narrow = dtype == ROPE_DTYPE_F16 || dtype == ROPE_DTYPE_BF16;
  return std::fabs(size) * (is_narrow ? 8 : dtype == ROPE_DTYPE_F64 ? 1000 : 2);
}

void check_gate(rope_dtype_t dtype, Packing packing, const Gate &peer) {
  const int64_t n = 5, d = 96;
  SwigluCall forward(dtype);
  peer.fill(forward.config);
  const Array x = forward.data({n, 2 * d}), out = forward.data({n, d});
  forward.args.gate = part(x, packing, false);
  forward.args.up = part(x, packing, true);
  forward.args.out = out.as(shape_of(packing, n, d));
  for_each({n, d}, [&](const Shape &at) {
    const Real gate = x.value({at[0], column(packing, d, at[1], false)});
    const Real up = x.value({at[0], column(packing, d, at[1], true)});
    forward.expect(out, out.at(at), peer.value(gate, up), size_of(dtype, peer.value(gate, up)));
  });
  forward.check(Direction::Forward);

  SwigluCall backward(dtype);
  peer.fill(backward.config);
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
    const Real by_gate = slope([&](Real g) { return peer.value(g, up); }, gate);
    const Real by_up = slope([&](Real u) { return peer.value(gate, u); }, up);
    // The terms of by_gate cancel near its zero. Each is at most |up| there.
    backward.expect(grad, gate_at, dy * by_gate, size_of(dtype, dy * std::max(std::fabs(by_gate), std::fabs(up))));
    backward.expect(grad, up_at, dy * by_up, size_of(dtype, dy * std::max(std::fabs(by_up), std::fabs(gate))));
  });
  backward.check(Direction::Backward);
}

// (1 + erf) / 2 and (1 + tanh) / 2 of the peers, in a form that does not cancel for negative gates.
const Gate gelu = {[](Real g, Real u) { return g * std::erfc(-g / std::sqrt(Real{2})) / 2 * u; },
                   [](swiglu_config_t &config) { config.activation = SWIGLU_ACTIVATION_GEGLU_ERF; }};

const Gate gelu_tanh = {[](Real g, Real u) {
                          const Real inner = std::sqrt(2 / std::acos(Real{-1})) * (g + 0.044715L * g * g * g);
                          return g * sigmoid(2 * inner) * u;
                        },
                        [](swiglu_config_t &config) { config.activation = SWIGLU_ACTIVATION_GEGLU_TANH; }};

const Gate relu = {[](Real g, Real u) { return std::max(g, Real{0}) * u; },
                   [](swiglu_config_t &config) { config.activation = SWIGLU_ACTIVATION_REGLU; }};

Gate soft_capped(double gate_cap, double up_cap) {
  const auto cap = [](Real x, double at) { return at == 0 ? x : at * std::tanh(x / static_cast<Real>(at)); };
  return {[=](Real g, Real u) { return cap(g, gate_cap) * sigmoid(g) * cap(u, up_cap); },
          [=](swiglu_config_t &config) {
            config.gate_softcap = gate_cap;
            config.up_softcap = up_cap;
          }};
}

}  // namespace

TEST_CASE("vLLM gelu_and_mul, sglang gelu_and_mul: by erf, gate first", "[systems][swiglu]") {
  for (rope_dtype_t dtype : floating) check_gate(dtype, Packing::GateFirst, gelu);
}

TEST_CASE("vLLM gelu_tanh_and_mul, Gemma's MLP, Liger GEGLU: by tanh", "[systems][swiglu]") {
  for (rope_dtype_t dtype : floating) check_gate(dtype, Packing::GateFirst, gelu_tanh);
}

TEST_CASE("TransformerEngine geglu and reglu, blocks of 32 too", "[systems][swiglu]") {
  for (rope_dtype_t dtype : floating) {
    check_gate(dtype, Packing::Blocks, gelu_tanh);
    check_gate(dtype, Packing::GateFirst, relu);
    check_gate(dtype, Packing::Blocks, relu);
  }
}

TEST_CASE("Kimi K3 SiTU, TransformerEngine scaled_situglu: both sides capped", "[systems][swiglu]") {
  for (rope_dtype_t dtype : floating) {
    check_gate(dtype, Packing::GateFirst, soft_capped(4, 25));
    check_gate(dtype, Packing::Interleaved, soft_capped(4, 25));
  }
}

TEST_CASE("Inkling 2: a soft cap of the gate alone", "[systems][swiglu]") {
  for (rope_dtype_t dtype : floating) check_gate(dtype, Packing::GateLast, soft_capped(2.5, 0));
}

// The limit is not 7: numbers of 16 bits would be equal to it, and the peers' gradients differ there.
TEST_CASE("Step 3 SwigluStepAndMul: the activation limited, up clamped", "[systems][swiglu]") {
  const double limit = 7.0009765625 + 1.0 / 4096;
  const Gate step = {[=](Real g, Real u) {
                       const auto at = static_cast<Real>(limit);
                       return std::min(g * sigmoid(g), at) * std::max(-at, std::min(u, at));
                     },
                     [=](swiglu_config_t &config) {
                       config.limit = limit;
                       config.limit_rule = SWIGLU_LIMIT_ACTIVATION;
                     }};
  for (rope_dtype_t dtype : floating) check_gate(dtype, Packing::GateFirst, step);
}

TEST_CASE("vLLM and sglang masked experts: rows of each expert up to its count", "[systems][swiglu]") {
  const int64_t experts = 5, room = 7, d = 64;
  const std::vector<int64_t> counts = {3, 0, 7, 1, 4};
  for (rope_dtype_t dtype : floating) {
    SwigluCall call(dtype);
    const Array x = call.data({experts, room, 2 * d}), out = call.data({experts, room, d});
    const Array rows = call.counts(ROPE_DTYPE_I32, counts);
    call.args.gate = narrow(x.tensor(), 2, 0, d);
    call.args.up = narrow(x.tensor(), 2, d, d);
    call.args.out = out.tensor();
    swiglu_input_args_t input = SWIGLU_INPUT_ARGS_INIT;
    input.expert_rows = rows.tensor();
    call.args.input = &input;
    for_each({experts, room, d}, [&](const Shape &at) {
      if (at[1] >= counts[static_cast<size_t>(at[0])]) return;
      const Real value = plain.value(x.value({at[0], at[1], at[2]}), x.value({at[0], at[1], d + at[2]}));
      call.expect(out, out.at(at), value, std::fabs(value));
    });
    call.check(Direction::Forward);
  }
}

TEST_CASE("gpt-oss experts with biases: gate and up, and their biases, alternate", "[systems][swiglu]") {
  const int64_t experts = 3, room = 4, d = 48;
  const std::vector<int64_t> counts = {4, 1, 2};
  for (rope_dtype_t dtype : floating) {
    SwigluCall call(dtype);
    gpt_oss.fill(call.config);
    const Array x = call.data({experts, room, 2 * d}), bias = call.data({experts, 2 * d});
    const Array out = call.data({experts, room, d});
    const Array rows = call.counts(ROPE_DTYPE_I64, counts);
    call.args.gate = every(x.tensor(), 2, 0, 2);
    call.args.up = every(x.tensor(), 2, 1, 2);
    call.args.out = out.tensor();
    swiglu_input_args_t input = SWIGLU_INPUT_ARGS_INIT;
    input.gate_bias = every(bias.tensor(), 1, 0, 2);
    input.up_bias = every(bias.tensor(), 1, 1, 2);
    input.expert_rows = rows.tensor();
    call.args.input = &input;
    for_each({experts, room, d}, [&](const Shape &at) {
      if (at[1] >= counts[static_cast<size_t>(at[0])]) return;
      const Real gate = x.value({at[0], at[1], 2 * at[2]}) + bias.value({at[0], 2 * at[2]});
      const Real up = x.value({at[0], at[1], 2 * at[2] + 1}) + bias.value({at[0], 2 * at[2] + 1});
      // The rounding of a sum of fp32 goes through the sigmoid, and up_offset may cancel most of the up that it
      // multiplies.
      const Real size = std::fabs(gpt_oss.silu(gate)) * (std::fabs(up) + 1) * 4;
      call.expect(out, out.at(at), gpt_oss.value(gate, up), size);
    });
    call.check(Direction::Forward);
  }
}

// Rows are sorted by expert, each from a token and one of its top experts. A row without an expert, or padding between
// experts, has -1 and is not written. TileKernels writes the weight 0 for padding, which nothing reads.
TEST_CASE("TileKernels permuted rows: weights by pos_to_token_topk, their gradients back by token",
          "[systems][swiglu]") {
  const int64_t tokens = 4, top = 3, d = 40, n = 16;
  const std::vector<int64_t> pos_to_token_topk = {0, 4, 9, -1, 1, 7, 10, 3, 6, -1, -1, -1, 2, 5, -1, -1};
  const std::vector<int64_t> expert_offsets = {0, 4, 12, 14};  // from pos_to_expert, which is -1 from row 14 on
  for (rope_dtype_t dtype : floating) {
    for (rope_dtype_t integer : integers) {
      for (Direction direction : {Direction::Forward, Direction::Backward}) {
        SwigluCall call(dtype);
        const Array x = call.data({n, 2 * d}), topk_weights = call.data(ROPE_DTYPE_F32, {tokens, top});
        const Array out = call.data({n, d}), grad_out = call.data({n, d}), grad = call.data({n, 2 * d});
        const Array weight_grads = call.data(ROPE_DTYPE_F32, {n});
        const Array offsets = call.counts(ROPE_DTYPE_I32, expert_offsets),
                    index = call.counts(integer, pos_to_token_topk);
        swiglu_input_args_t input = SWIGLU_INPUT_ARGS_INIT;
        input.expert_offsets = offsets.tensor();
        input.row_index = index.tensor();
        call.args.input = &input;
        call.args.gate = part(x, Packing::GateFirst, false);
        call.args.up = part(x, Packing::GateFirst, true);
        call.args.row_scale = topk_weights.as({tokens * top});
        if (direction == Direction::Forward) {
          call.args.out = out.tensor();
        } else {
          call.args.grad_out = grad_out.tensor();
          call.args.grad_gate = part(grad, Packing::GateFirst, false);
          call.args.grad_up = part(grad, Packing::GateFirst, true);
          call.args.grad_row_scale = weight_grads.tensor();
        }
        // token_topk_to_pos has the row with the gradient of a token's weight; without a row the gradient is 0.
        for (int64_t token = 0; token < tokens; ++token) {
          for (int64_t k = 0; k < top; ++k) {
            int64_t pos = 0;
            while (pos < n && pos_to_token_topk[static_cast<size_t>(pos)] != token * top + k) ++pos;
            if (pos == n) continue;
            const Real w = topk_weights.value({token, k});
            Real sum = 0, sizes = 0;
            for (int64_t i = 0; i < d; ++i) {
              const Real g = x.value({pos, i}), u = x.value({pos, d + i}), value = plain.value(g, u);
              const Real dy = grad_out.value({pos, i});
              sum += dy * value;
              sizes += std::fabs(dy * value);
              if (direction == Direction::Forward) {
                call.expect(out, out.at({pos, i}), value * w, std::fabs(value * w));
                continue;
              }
              const Real of_gate = dy * w * plain.by_gate(g, u), of_up = dy * w * plain.by_up(g, u);
              call.expect(grad, grad.at({pos, i}), of_gate, std::fabs(dy * w) * plain.gate_size(g, u));
              call.expect(grad, grad.at({pos, d + i}), of_up, std::fabs(of_up));
            }
            if (direction == Direction::Backward) call.expect(weight_grads, pos, sum, sizes);
          }
        }
        call.check(direction);
      }
    }
  }
}

TEST_CASE("gpt-oss experts back to back: biases by offsets", "[systems][swiglu]") {
  const int64_t experts = 4, d = 48, n = 9;
  const std::vector<int64_t> expert_offsets = {0, 2, 2, 7, 8};
  for (rope_dtype_t dtype : floating) {
    SwigluCall call(dtype);
    gpt_oss.fill(call.config);
    const Array x = call.data({n, 2 * d}), bias = call.data({experts, 2 * d}), out = call.data({n, d});
    const Array offsets = call.counts(ROPE_DTYPE_I64, expert_offsets);
    call.args.gate = every(x.tensor(), 1, 0, 2);
    call.args.up = every(x.tensor(), 1, 1, 2);
    call.args.out = out.tensor();
    swiglu_input_args_t input = SWIGLU_INPUT_ARGS_INIT;
    input.gate_bias = every(bias.tensor(), 1, 0, 2);
    input.up_bias = every(bias.tensor(), 1, 1, 2);
    input.expert_offsets = offsets.tensor();
    call.args.input = &input;
    for (int64_t expert = 0; expert < experts; ++expert) {
      const auto e = static_cast<size_t>(expert);
      for (int64_t row = expert_offsets[e]; row < expert_offsets[e + 1]; ++row) {
        for (int64_t i = 0; i < d; ++i) {
          const Real gate = x.value({row, 2 * i}) + bias.value({expert, 2 * i});
          const Real up = x.value({row, 2 * i + 1}) + bias.value({expert, 2 * i + 1});
          const Real size = std::fabs(gpt_oss.silu(gate)) * (std::fabs(up) + 1) * 4;
          call.expect(out, out.at({row, i}), gpt_oss.value(gate, up), size);
        }
      }
    }
    call.check(Direction::Forward);
  }
}
