// SPDX-License-Identifier: Apache-2.0
// swiglu_gates_tests.cpp - SwiGLU's other activations, soft caps, limits, rounding, biases and experts
#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <cmath>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "support/cases.hpp"

using oracle::Real;

namespace {

const std::vector<rope_dtype_t> dtypes = {ROPE_DTYPE_F32, ROPE_DTYPE_F16, ROPE_DTYPE_BF16, ROPE_DTYPE_F64};

constexpr int32_t activations[] = {SWIGLU_ACTIVATION_SWIGLU, SWIGLU_ACTIVATION_GEGLU_ERF, SWIGLU_ACTIVATION_GEGLU_TANH,
                                   SWIGLU_ACTIVATION_REGLU};

constexpr rope_dtype_t kF32 = ROPE_DTYPE_F32, kBF16 = ROPE_DTYPE_BF16, kF16 = ROPE_DTYPE_F16;
constexpr rope_dtype_t kI32 = ROPE_DTYPE_I32, kI64 = ROPE_DTYPE_I64;

// Gates from -low to low in steps that are not a power of two; the other tensors have random numbers.
std::function<Real(SwigluTensor, const Index &)> gates_within(Real low, int64_t columns) {
  return [=](SwigluTensor tensor, const Index &at) -> Real {
    const int64_t i = at[0] * columns + at[1];
    if (tensor == SwigluTensor::Gate) return low * std::sin(static_cast<Real>(i * 7 + 1));
    const Real other = std::cos(static_cast<Real>(i * 5 + static_cast<int>(tensor)));
    return tensor == SwigluTensor::Up ? 3 * other : other;
  };
}

}  // namespace

TEST_CASE("every activation over dtypes, shapes and packings", "[swiglu][gates]") {
  for (const rope_dtype_t dtype : dtypes) {
    for (const int32_t activation : activations) {
      for (const Shape &shape : {Shape{1}, Shape{7}, Shape{5, 8}, Shape{3, 33}, Shape{2, 3, 17}, Shape{2, 1024}}) {
        SwigluCase().dtype(dtype).shape(shape).activation(activation).check();
      }
      for (const GatePacking packing : {GatePacking::GateFirst, GatePacking::UpFirst, GatePacking::Alternating,
                                        GatePacking::AlternatingUpFirst, GatePacking::Blocks}) {
        SwigluCase().dtype(dtype).shape({5, 48}).packing(packing).activation(activation).check();
      }
    }
  }
}

TEST_CASE("every activation from gates near 0 to where it vanishes", "[swiglu][gates]") {
  for (const rope_dtype_t dtype : dtypes) {
    for (const int32_t activation : activations) {
      for (const Real low : {1e-30L, 1e-3L, 1.0L, 6.0L, 15.0L, 120.0L}) {
        SwigluCase().dtype(dtype).shape({9, 64}).activation(activation).values(gates_within(low, 64)).check();
      }
    }
  }
}

TEST_CASE("soft caps of gate and up, alone, together and as Kimi K3 has them", "[swiglu][gates]") {
  for (const rope_dtype_t dtype : dtypes) {
    for (const auto &[gate, up] : {std::pair{2.5, 0.0}, std::pair{0.0, 0.75}, std::pair{4.0, 25.0}}) {
      for (const int32_t activation : activations) {
        for (const Real low : {1e-3L, 2.0L, 90.0L}) {
          SwigluCase()
              .dtype(dtype)
              .shape({5, 40})
              .activation(activation)
              .soft_caps(gate, up)
              .values(gates_within(low, 40))
              .check();
        }
      }
    }
  }
}

TEST_CASE("a limit of the activation, alone and with every number of the form", "[swiglu][gates]") {
  for (const rope_dtype_t dtype : dtypes) {
    for (const int32_t activation : activations) {
      for (const int32_t rule : {SWIGLU_LIMIT_GATE, SWIGLU_LIMIT_ACTIVATION}) {
        const double alpha = activation == SWIGLU_ACTIVATION_SWIGLU ? 1.702 : 0;
        SwigluCase one;
        one.dtype(dtype).shape({6, 40}).activation(activation, rule).values(gates_within(9, 40));
        SwigluCase(one).form(0, 2.25, 0, 0).check();
        SwigluCase(one).form(alpha, 1.5, 0.5, -3).check();
        SwigluCase(one).form(alpha, 1.5, 0.5, -3).soft_caps(3, 2).row_scale(1, kF32).recomputed().check();
      }
    }
  }
}

TEST_CASE("options with row_scale, its gradient, num_rows and every layout", "[swiglu][gates]") {
  for (const rope_dtype_t dtype : dtypes) {
    for (const int32_t activation : activations) {
      SwigluCase one;
      one.dtype(dtype).activation(activation, SWIGLU_LIMIT_ACTIVATION).form(0, 3, 0.25, 2).soft_caps(5, 0).recomputed();
      SwigluCase(one).shape({7, 33}).row_scale(1, kF32).grad_row_scale().num_rows(4, kI32).check();
      SwigluCase(one).shape({3, 4, 24}).row_scale(2).grad_row_scale().packing(GatePacking::Alternating).check();
      SwigluCase(one).shape({2, 3, 4, 5}).placed(Placement().gap(3, 3).at(1)).row_scale(1).check();
      SwigluCase(one).shape({4, 64}).num_rows(9, kI64).packing(GatePacking::UpFirst).check();
    }
  }
}

TEST_CASE("activations rounded before they meet up", "[swiglu][gates]") {
  for (const rope_dtype_t dtype : dtypes) {
    for (const int32_t activation : activations) {
      SwigluCase one;
      one.dtype(dtype).activation(activation).rounds_activation().recomputed();
      for (const Shape &shape : {Shape{7}, Shape{5, 8}, Shape{3, 33}, Shape{2, 1024}})
        SwigluCase(one).shape(shape).check();
      SwigluCase(one).shape({9, 64}).values(gates_within(95, 64)).check();
      SwigluCase(one).shape({9, 64}).form(0, 2, 0, 0).soft_caps(3, 3).row_scale(1).grad_row_scale().check();
      SwigluCase(one)
          .shape({9, 64})
          .activation(activation, SWIGLU_LIMIT_ACTIVATION)
          .form(0, 2, 0, 0.5)
          .values(gates_within(9, 64))
          .check();
    }
  }
}

TEST_CASE("in 16 bits a rounded activation is that of x / (1 + exp(-x)), operation by operation", "[swiglu][gates]") {
  // The tensor has every number of the type.
  for (const rope_dtype_t dtype : {kF16, kBF16}) {
    Workspace workspace(3);
    constexpr int64_t kGates = 1 << 16;
    const rope_tensor_t gate = workspace.tensor(dtype, {kGates}), up = workspace.tensor(dtype, {kGates});
    const rope_tensor_t out = workspace.tensor(dtype, {kGates});
    for (int64_t i = 0; i < kGates; ++i) {
      const auto bits = static_cast<uint16_t>(i);
      std::memcpy(element_at(gate, {i}), &bits, sizeof bits);
      oracle::encode(dtype, 1, element_at(up, {i}));
    }
    workspace.freeze();
    swiglu_args_t args = swiglu_args();
    args.gate = gate;
    args.up = up;
    args.out = out;
    for (const Device &device : devices()) {
      swiglu_config_t config = swiglu_config_for(device);
      config.dtype = dtype;
      config.product_rounding = SWIGLU_PRODUCT_ROUND_ACTIVATION;
      const SwigluDesc desc = create(config);
      workspace.restore();
      REQUIRE(run(device, desc.get(), Direction::Forward, args, workspace) == ROPE_STATUS_SUCCESS);
      int64_t others = 0, far = 0;
      for (int64_t i = 0; i < kGates; ++i) {
        const Real x = value_at(workspace.before(gate), {i}), actual = value_at(out, {i});
        if (std::isnan(x) || x < -3e38L) continue;
        const float narrow = static_cast<float>(x);
        const float sum = 1.0f + static_cast<float>(std::exp(-x));
        const Real exact = oracle::nearest(dtype, static_cast<Real>(narrow / sum));
        if (actual == exact) continue;
        ++others;
        if (std::fabs(actual - exact) > oracle::ulp(dtype, exact)) ++far;
      }
      INFO(oracle::dtype_name(dtype) << " on " << device << ": " << others << " differ");
      CHECK(others <= kGates / 10000);
      CHECK(far == 0);
    }
  }
}

TEST_CASE("biases of gate and up", "[swiglu][gates]") {
  for (const rope_dtype_t dtype : dtypes) {
    for (const rope_dtype_t bias : {rope_dtype_t{0}, kF32}) {
      for (const Shape &shape : {Shape{7}, Shape{1, 24}, Shape{5, 33}, Shape{3, 64}, Shape{2, 3, 40}}) {
        SwigluCase one;
        one.dtype(dtype).shape(shape).biases(bias).recomputed();
        SwigluCase(one).check();
        SwigluCase(one).form(1.702, 7, 1, 0).packing(GatePacking::GateFirst, GatePacking::GateFirst).check();
        SwigluCase(one).activation(SWIGLU_ACTIVATION_GEGLU_ERF).packing(GatePacking::Alternating).check();
        SwigluCase(one).biases(bias, false, Placement().gap(0, 2).at(1)).check();
      }
      SwigluCase().dtype(dtype).shape({4, 33}).biases(bias).row_scale(1).grad_row_scale().num_rows(3, kI32).check();
    }
  }
}

TEST_CASE("experts, whose rows past theirs are neither read nor written", "[swiglu][gates]") {
  const std::vector<int64_t> counts = {0, 3, 5, -2, 1, 0, 9, 4};
  for (const rope_dtype_t dtype : dtypes) {
    for (const rope_dtype_t integers : {kI32, kI64}) {
      for (const Shape &shape :
           {Shape{8, 5, 1}, Shape{8, 5, 24}, Shape{8, 5, 33}, Shape{8, 5, 3, 16}, Shape{8, 1, 40}}) {
        SwigluCase one;
        one.dtype(dtype).shape(shape).experts(counts, integers).recomputed();
        SwigluCase(one).check();
        SwigluCase(one)
            .experts(counts, integers, Placement().gap(0, 3))
            .activation(SWIGLU_ACTIVATION_GEGLU_TANH)
            .check();
        SwigluCase(one).biases(kF32, true).form(1.702, 7, 1, 0).packing(GatePacking::UpFirst).check();
        SwigluCase(one).biases(0, false).row_scale(2).packing(GatePacking::Alternating).check();
        SwigluCase(one).biases(0, true).row_scale(2, kF32).grad_row_scale().check();
        SwigluCase(one).row_scale(1).placed(Placement().gap(1, 3).reversed(1)).check();
      }
    }
  }
}

TEST_CASE("more experts than a warp looks at, and rows of many parts", "[swiglu][gates]") {
  std::vector<int64_t> counts(700);
  for (size_t i = 0; i < counts.size(); ++i) counts[i] = i % 5 == 0 ? static_cast<int64_t>(i % 7) : 0;
  SwigluCase().dtype(kBF16).shape({700, 6, 24}).experts(counts, kI32).recomputed().check();
  SwigluCase().dtype(kF32).shape({3, 2, 5000}).experts({1, 0, 2}, kI64).recomputed().check();
  SwigluCase().dtype(kBF16).shape({2, 3, 2056}).experts({3, 1}, kI64).biases(kF32, true).check();
  SwigluCase().dtype(kBF16).shape({1, 300, 264}).experts({290}, kI64).recomputed().check();
  SwigluCase().dtype(kBF16).shape({40, 100, 520}).experts(std::vector<int64_t>(40, 100), kI32).check();
}

TEST_CASE("options and experts in calls large enough for several threads", "[swiglu][gates]") {
  for (const rope_dtype_t dtype : {kF32, kBF16}) {
    SwigluCase().dtype(dtype).shape({600, 1031}).activation(SWIGLU_ACTIVATION_GEGLU_TANH).soft_caps(9, 9).check();
    SwigluCase().dtype(dtype).shape({1030, 1024}).biases(kF32).activation(SWIGLU_ACTIVATION_GEGLU_ERF).check();
    SwigluCase().dtype(dtype).shape({5, 200, 1024}).experts({0, 200, 3, 0, 150}, kI32).recomputed().check();
  }
}

// Placements lead to vectors, single elements, and on CPUs to runs and chunks.
TEST_CASE("options give the same bits however their elements lie", "[swiglu][gates]") {
  void (*const forms[])(swiglu_config_t *) = {
      [](swiglu_config_t *c) { c->activation = SWIGLU_ACTIVATION_GEGLU_ERF; },
      [](swiglu_config_t *c) { c->activation = SWIGLU_ACTIVATION_GEGLU_TANH, c->up_offset = 1; },
      [](swiglu_config_t *c) { c->activation = SWIGLU_ACTIVATION_REGLU, c->out_scale = 0.7; },
      [](swiglu_config_t *c) { c->gate_softcap = 4, c->up_softcap = 25, c->up_offset = 0.3; },
      [](swiglu_config_t *c) { c->up_softcap = 2, c->alpha = 1.702; },
      [](swiglu_config_t *c) { c->limit = 1.5, c->limit_rule = SWIGLU_LIMIT_ACTIVATION; },
      [](swiglu_config_t *c) { c->activation = SWIGLU_ACTIVATION_GEGLU_ERF, c->gate_softcap = 3, c->limit = 9; },
      [](swiglu_config_t *c) { c->product_rounding = SWIGLU_PRODUCT_ROUND_ACTIVATION, c->gate_softcap = 3; },
  };
  const Placement placements[] = {Placement().at(1), Placement().gap(0, 3), Placement().gap(1, 1),
                                  Placement().reversed(1), Placement().order({1, 0})};
  const Shape shape = {9, 328};
  for (const Device &device : devices()) {
    for (const rope_dtype_t dtype : dtypes) {
      for (const auto &set_form : forms) {
        for (const Direction direction : {Direction::Forward, Direction::Backward}) {
          swiglu_config_t config = swiglu_config_for(device);
          config.dtype = dtype;
          set_form(&config);
          const SwigluDesc desc = create(config);
          const auto results_of = [&](const Placement &placement) {
            Workspace workspace(11);
            swiglu_args_t args = swiglu_args();
            std::vector<rope_tensor_t *> inputs = {&args.gate, &args.up}, outputs = {&args.out};
            if (direction == Direction::Backward) {
              inputs.push_back(&args.grad_out);
              outputs = {&args.grad_gate, &args.grad_up};
            }
            for (rope_tensor_t *each : inputs) *each = workspace.tensor(dtype, shape, placement);
            for (rope_tensor_t *each : outputs) *each = workspace.tensor(dtype, shape, placement);
            for (size_t i = 0; i < inputs.size(); ++i) {
              workspace.fill(*inputs[i], [&](const Index &at) {
                const int64_t number = at[0] * shape[1] + at[1];
                return number % 97 == 0 ? -0.0L : 8 * std::sin(static_cast<Real>(number * 7 + static_cast<int64_t>(i)));
              });
            }
            workspace.freeze();
            workspace.restore();
            REQUIRE(run(device, desc.get(), direction, args, workspace) == ROPE_STATUS_SUCCESS);
            std::vector<char> bits;
            for (const rope_tensor_t *each : outputs) {
              for_each_index(*each, [&](const Index &at) {
                const char *element = static_cast<const char *>(element_at(*each, at));
                bits.insert(bits.end(), element, element + oracle::element_size(dtype));
              });
            }
            return bits;
          };
          const std::vector<char> expected = results_of(Placement());
          for (const Placement &placement : placements) {
            INFO(oracle::dtype_name(dtype) << ' ' << name_of(direction) << " on " << device << ", form "
                                           << &set_form - forms << ": " << placement.describe());
            const bool is_same = results_of(placement) == expected;
            CHECK(is_same);
          }
        }
      }
    }
  }
}

TEST_CASE("the gradient of GeGLU beside soft caps that flatten the gate", "[swiglu][gates]") {
  for (const rope_dtype_t dtype : dtypes) {
    for (const int32_t activation : {SWIGLU_ACTIVATION_GEGLU_ERF, SWIGLU_ACTIVATION_GEGLU_TANH}) {
      for (const double cap : {0.125, 0.5}) {
        SwigluCase()
            .dtype(dtype)
            .shape({3, 240})
            .activation(activation)
            .soft_caps(cap, 0)
            .values([](SwigluTensor tensor, const Index &at) {
              return tensor == SwigluTensor::Gate ? 7.0L + static_cast<Real>(at[1]) / 32 : 1.0L + at[0];
            })
            .check();
      }
    }
  }
}

TEST_CASE("a gate and its bias whose sum lies just beyond the middle of two numbers", "[swiglu][gates]") {
  // At such gates the gradient of GeGLU has more than a hundred times the relative error of the sum.
  SwigluCase()
      .dtype(ROPE_DTYPE_F64)
      .shape({1, 64})
      .activation(SWIGLU_ACTIVATION_GEGLU_TANH)
      .biases(ROPE_DTYPE_F64)
      .values([](SwigluTensor tensor, const Index &at) -> Real {
        if (tensor == SwigluTensor::Gate) return -8.0L - static_cast<Real>(at[1]) / 64;
        return tensor == SwigluTensor::GateBias ? -0x1p-50L - 0x1p-80L : 1.0L;
      })
      .check();
}

TEST_CASE("gates of options over the whole range of a type give no NaN and the right limits", "[swiglu][gates]") {
  const std::vector<Real> values = {0.0L,   -0.0L,   1e-45L, -1e-45L, 1e-38L, -1e-38L, 1e-7L,  -1e-7L, 0.5L,
                                    -0.5L,  1.0L,    -1.0L,  5.0L,    -5.0L,  11.0L,   -11.0L, 14.5L,  -14.5L,
                                    104.0L, -104.0L, 1e10L,  -1e10L,  1e19L,  -1e19L,  3e38L,  -3e38L};
  // Rows have whole vectors. A gate of 1e-22 lies within a soft cap of 1e-20, where the cap begins to turn it.
  constexpr int64_t rows = 27, columns = 32;
  for (const rope_dtype_t dtype : {kF32, kBF16, kF16}) {
    const Real largest = dtype == kF16 ? 65504.0L : 3e38L;
    const auto value = [&](int64_t i) {
      const Real number = i == 26 ? 1e-22L : values[static_cast<size_t>(i) % values.size()];
      return std::fmax(-largest, std::fmin(number, largest));
    };
    for (const int32_t activation : activations) {
      for (const double cap : {0.0, 1e-37, 1e-20, 30.0, 1e30, 8e37}) {
        SwigluCase()
            .dtype(dtype)
            .shape({rows, columns})
            .activation(activation)
            .soft_caps(cap, 0)
            .values([&](SwigluTensor tensor, const Index &at) {
              return tensor == SwigluTensor::Gate ? value(at[0]) : tensor == SwigluTensor::Up ? value(at[1]) : 0.75L;
            })
            .check();
      }
    }
  }
}

TEST_CASE("every gate of 16 bits, through activations, soft caps and limits", "[swiglu][gates]") {
  for (const rope_dtype_t dtype : {kF16, kBF16}) {
    // Every second up is so large that an error in a subnormal weight is visible.
    const Real large = dtype == kF16 ? 40000.0L : 0x1p100L;
    SwigluCase one;
    one.dtype(dtype).shape({64, 1024}).values([=](SwigluTensor tensor, const Index &at) -> Real {
      if (tensor == SwigluTensor::Up) return at[1] % 2 ? large : 1.0L;
      if (tensor == SwigluTensor::GradOut) return 1;
      const auto bits = static_cast<uint16_t>(at[0] * 1024 + at[1]);
      const Real gate = oracle::decode(dtype, &bits);
      return std::isfinite(gate) ? gate : 0;
    });
    for (const int32_t activation : {SWIGLU_ACTIVATION_GEGLU_ERF, SWIGLU_ACTIVATION_GEGLU_TANH})
      SwigluCase(one).activation(activation).check();
    SwigluCase(one).soft_caps(4, 25).check();
    SwigluCase(one).soft_caps(0.02, 0).form(-1.5, 0, 0, 0).check();
    SwigluCase(one).soft_caps(0, 3).check();
    SwigluCase(one).activation(SWIGLU_ACTIVATION_SWIGLU, SWIGLU_LIMIT_ACTIVATION).form(1.702, 7, 0, 0).check();
  }
}

TEST_CASE("activations of gates that vanish meet no infinity of a moved up", "[swiglu][gates]") {
  for (const Device &device : devices()) {
    for (const rope_dtype_t dtype : {kF32, kBF16}) {
      for (const int32_t activation : {SWIGLU_ACTIVATION_SWIGLU, SWIGLU_ACTIVATION_GEGLU_ERF,
                                       SWIGLU_ACTIVATION_GEGLU_TANH, SWIGLU_ACTIVATION_REGLU}) {
        INFO(oracle::dtype_name(dtype) << ", activation " << activation << " on " << device);
        Workspace workspace(3);
        swiglu_args_t args = swiglu_args();
        for (rope_tensor_t *tensor : {&args.gate, &args.up, &args.out}) *tensor = workspace.tensor(dtype, {3, 64});
        workspace.fill(args.gate, [](const Index &at) -> Real { return at[0] == 0 ? 0 : at[0] == 1 ? -200 : -3e38L; });
        workspace.fill(args.up, [](const Index &at) -> Real { return at[1] % 2 ? 3e38L : 1; });
        workspace.freeze();
        swiglu_config_t config = swiglu_config_for(device);
        config.dtype = dtype;
        config.activation = activation;
        config.up_offset = 3e38;
        const SwigluDesc desc = create(config);
        workspace.restore();
        REQUIRE(run(device, desc.get(), Direction::Forward, args, workspace) == ROPE_STATUS_SUCCESS);
        for_each_index(args.out, [&](const Index &at) { CHECK(value_at(args.out, at) == 0); });
      }
    }
  }
}

namespace {

// Options of a call, each with the smallest and the largest numbers that it takes. An option is the index of a choice.
struct ExtremeOptions {
  enum Option {
    activation,
    product_rounding,
    limit_rule,
    alpha,
    limit,
    up_offset,
    out_scale,
    gate_softcap,
    up_softcap,
    gate_bias,
    up_bias,
    row_scale,
    has_codes,
    num_options
  };
  static constexpr int choices[num_options] = {4, 2, 2, 6, 4, 5, 4, 4, 4, 3, 3, 4, 2};
  int choice[num_options];

  explicit ExtremeOptions(Random *random) {
    for (int i = 0; i < num_options; ++i) choice[i] = static_cast<int>(random->below(choices[i]));
    if (random->below(2) == 0) choice[activation] = SWIGLU_ACTIVATION_SWIGLU;
    if (choice[activation] != SWIGLU_ACTIVATION_SWIGLU) choice[alpha] = 0;
  }

  static bool may_meet(int a, int of_a, int b, int of_b) {
    return a != activation || b != alpha || of_a == SWIGLU_ACTIVATION_SWIGLU || of_b == 0;
  }

  void set(swiglu_config_t *config) const {
    constexpr double least = 0x1p-149, most = 0x1.fffffep127;
    const double alphas[] = {0, 1.702, -3, least, most, -most}, limits[] = {0, least, 7, most};
    const double offsets[] = {0, 1, least, most, -most}, scales[] = {0, -2.5, least, most};
    const double caps[] = {0, 0x1p-126, 30, 0x1p126};
    config->activation = choice[activation];
    config->product_rounding = choice[product_rounding] != 0 ? SWIGLU_PRODUCT_ROUND_ACTIVATION : 0;
    config->limit_rule = choice[limit_rule] != 0 ? SWIGLU_LIMIT_ACTIVATION : SWIGLU_LIMIT_GATE;
    config->alpha = alphas[choice[alpha]];
    config->limit = limits[choice[limit]];
    config->up_offset = offsets[choice[up_offset]];
    config->out_scale = scales[choice[out_scale]];
    config->gate_softcap = caps[choice[gate_softcap]];
    config->up_softcap = caps[choice[up_softcap]];
  }
};

// A number, often 0, the smallest, the largest or one between at which a function changes.
Real extreme_value(rope_dtype_t dtype, Random *random) {
  const Real most = oracle::max_finite(dtype);
  const Real values[] = {0, oracle::min_positive(dtype), oracle::min_normal(dtype), 1, 20, 6000, most / 2, most, most};
  if (random->below(4) != 0) {
    const Real value = std::fmin(values[random->below(9)], most);
    return random->below(2) == 0 ? value : -value;
  }
  for (;;) {
    const uint64_t bits = random->bits();
    const Real value = oracle::decode(dtype, &bits);
    if (std::isfinite(value)) return value;
  }
}

// Calls of one dtype with random numbers in every tensor.
class ExtremeCalls {
 public:
  explicit ExtremeCalls(rope_dtype_t dtype) : dtype_(dtype) {
    for (rope_tensor_t *const tensor : {&gate_, &up_, &grad_out_}) *tensor = filled(dtype, shape);
    for (int i = 0; i < 2; ++i) {
      const rope_dtype_t of_row = i == 0 ? dtype : kF32;
      gate_bias_[i] = filled(of_row, {shape[1]});
      up_bias_[i] = filled(of_row, {shape[1]});
      row_scale_[i] = filled(of_row, {shape[0]});
      grad_row_scale_[i] = workspace_.tensor(of_row, {shape[0]});
    }
    for (rope_tensor_t &output : words_) output = workspace_.tensor(dtype, shape);
    for (rope_tensor_t &output : codes_) output = workspace_.tensor(ROPE_DTYPE_F8_E4M3, shape);
    workspace_.freeze();
  }

  // Returns the number of results that are NaN.
  int64_t count_nans(const Device &device, const ExtremeOptions &options, Direction direction) {
    const bool is_backward = direction == Direction::Backward;
    const int *const choice = options.choice;
    const bool has_codes = choice[ExtremeOptions::has_codes] != 0 && dtype_ != ROPE_DTYPE_F64;
    swiglu_config_t config = swiglu_config_for(device);
    config.dtype = dtype_;
    options.set(&config);
    const SwigluDesc desc = create(config);
    swiglu_args_t args = swiglu_args();
    args.gate = gate_;
    args.up = up_;
    const rope_tensor_t *const outputs = has_codes ? codes_ : words_;
    if (is_backward) {
      args.grad_out = grad_out_;
      args.grad_gate = outputs[0];
      args.grad_up = outputs[1];
      args.out = words_[2];
    } else {
      args.out = outputs[2];
    }
    swiglu_input_args_t input = SWIGLU_INPUT_ARGS_INIT;
    const auto chosen = [&](ExtremeOptions::Option option, const rope_tensor_t(&tensors)[2]) {
      return choice[option] == 0 ? rope_tensor_t{} : tensors[(choice[option] - 1) % 2];
    };
    input.gate_bias = chosen(ExtremeOptions::gate_bias, gate_bias_);
    input.up_bias = chosen(ExtremeOptions::up_bias, up_bias_);
    args.input = &input;
    args.row_scale = chosen(ExtremeOptions::row_scale, row_scale_);
    if (is_backward && choice[ExtremeOptions::row_scale] > 1) {
      args.grad_row_scale = chosen(ExtremeOptions::row_scale, grad_row_scale_);
    }
    workspace_.restore();
    const rope_status_t status = run(device, desc.get(), direction, args, workspace_);
    INFO(rope_last_error());
    REQUIRE(status == ROPE_STATUS_SUCCESS);
    int64_t count = 0;
    for (const rope_tensor_t &output : {args.out, args.grad_gate, args.grad_up, args.grad_row_scale}) {
      if (output.ndim == 0) continue;
      for_each_index(output, [&](const Index &at) {
        if (!std::isnan(value_at(output, at)) || ++count > 3) return;
        UNSCOPED_INFO("[" << at[0] << ',' << at[1] << "] gate " << value_at(gate_, at) << ", up " << value_at(up_, at)
                          << ", grad_out " << value_at(grad_out_, at));
      });
    }
    return count;
  }

 private:
  const Shape shape = {64, 48};

  rope_tensor_t filled(rope_dtype_t dtype, const Shape &of) {
    const rope_tensor_t tensor = workspace_.tensor(dtype, of);
    workspace_.fill(tensor, [&](const Index &) { return extreme_value(dtype, &workspace_.random()); });
    return tensor;
  }

  rope_dtype_t dtype_;
  Workspace workspace_{41};
  rope_tensor_t gate_ = {}, up_ = {}, grad_out_ = {}, words_[3] = {}, codes_[3] = {};
  rope_tensor_t gate_bias_[2] = {}, up_bias_[2] = {}, row_scale_[2] = {}, grad_row_scale_[2] = {};
};

}  // namespace

TEST_CASE("finite inputs give no NaN, with every pair of options", "[swiglu][gates]") {
  constexpr int kDraws = 160;  // for each dtype
  bool has_met[ExtremeOptions::num_options][6][ExtremeOptions::num_options][6] = {};
  Random random(43);
  for (const rope_dtype_t dtype : dtypes) {
    ExtremeCalls calls(dtype);
    for (int i = 0; i < kDraws; ++i) {
      const ExtremeOptions options(&random);
      std::string text;
      for (int a = 0; a < ExtremeOptions::num_options; ++a) {
        text += ' ' + std::to_string(options.choice[a]);
        for (int b = 0; b < a; ++b) has_met[b][options.choice[b]][a][options.choice[a]] = true;
      }
      for (const Device &device : devices()) {
        for (const Direction direction : {Direction::Forward, Direction::Backward}) {
          INFO(oracle::dtype_name(dtype) << " on " << device << ", backward " << (direction == Direction::Backward)
                                         << ", options" << text);
          CHECK(calls.count_nans(device, options, direction) == 0);
        }
      }
    }
  }
  for (int a = 0; a < ExtremeOptions::num_options; ++a) {
    for (int b = a + 1; b < ExtremeOptions::num_options; ++b) {
      for (int of_a = 0; of_a < ExtremeOptions::choices[a]; ++of_a) {
        for (int of_b = 0; of_b < ExtremeOptions::choices[b]; ++of_b) {
          if (!ExtremeOptions::may_meet(a, of_a, b, of_b)) continue;
          INFO("options " << a << " and " << b << ", choices " << of_a << " and " << of_b);
          CHECK(has_met[a][of_a][b][of_b]);
        }
      }
    }
  }
}

namespace {

// Returns the largest error in ulp of the activation for 2^23 neighbouring F32 gates of one sign. up is 1.
Real worst_of_gates(const Device &device, const swiglu_desc_t *desc, int32_t activation, uint32_t first_bits) {
  constexpr int64_t kGates = int64_t{1} << 23;
  Workspace workspace(1);
  const rope_tensor_t gate = workspace.tensor(kF32, {kGates}), up = workspace.tensor(kF32, {kGates});
  const rope_tensor_t out = workspace.tensor(kF32, {kGates});
  for (int64_t i = 0; i < kGates; ++i) {
    const uint32_t bits = first_bits + static_cast<uint32_t>(i);
    const float one = 1.0f;
    std::memcpy(element_at(gate, {i}), &bits, sizeof bits);
    std::memcpy(element_at(up, {i}), &one, sizeof one);
  }
  workspace.freeze();
  workspace.restore();
  swiglu_args_t args = swiglu_args();
  args.gate = gate;
  args.up = up;
  args.out = out;
  REQUIRE(run(device, desc, Direction::Forward, args, workspace) == ROPE_STATUS_SUCCESS);
  const auto worst_between = [&](int64_t begin, int64_t end) {
    double worst = 0;
    for (int64_t i = begin; i < end; ++i) {
      float x, actual;
      std::memcpy(&x, element_at(gate, {i}), sizeof x);
      std::memcpy(&actual, element_at(out, {i}), sizeof actual);
      const double wide = x, root = std::sqrt(2 / 3.14159265358979323846);
      const double weight = activation == SWIGLU_ACTIVATION_GEGLU_ERF
                                ? std::erfc(-wide * 0.70710678118654752440) / 2
                                : 1 / (1 + std::exp(-2 * root * (wide + 0.044715 * wide * wide * wide)));
      const double exact = wide * weight;
      // The ulp of a float. Subnormal numbers have that of the smallest normal number.
      const double ulp = std::ldexp(1.0, std::max(std::ilogb(exact), -126) - 23);
      const double slack = 4 * std::ldexp(1.0, -149) * std::max(1.0, std::fabs(wide));
      worst = std::max(worst, (std::fabs(actual - exact) - slack) / ulp);
    }
    return worst;
  };
  const int64_t workers = std::max<int64_t>(1, std::thread::hardware_concurrency());
  std::vector<double> worst(static_cast<size_t>(workers));
  std::vector<std::thread> threads;
  for (int64_t i = 0; i < workers; ++i) {
    threads.emplace_back(
        [&, i] { worst[static_cast<size_t>(i)] = worst_between(kGates * i / workers, kGates * (i + 1) / workers); });
  }
  for (std::thread &thread : threads) thread.join();
  return *std::max_element(worst.begin(), worst.end());
}

}  // namespace

// The test takes a minute for each device. Run it by hand after a change of the mathematics.
TEST_CASE("every F32 gate of GeGLU is within 8 ulp", "[.][exhaustive]") {
  for (const Device &device : devices()) {
    for (const int32_t activation : {SWIGLU_ACTIVATION_GEGLU_ERF, SWIGLU_ACTIVATION_GEGLU_TANH}) {
      swiglu_config_t config = swiglu_config_for(device);
      config.dtype = kF32;
      config.activation = activation;
      const SwigluDesc desc = create(config);
      Real worst = 0;
      // The gates go from 2^-30, below which the weight is 1/2, to 16, beyond which it is 0 or 1.
      for (uint32_t exponent = 97; exponent <= 130; ++exponent) {
        for (const uint32_t sign : {0u, 1u}) {
          worst = std::max(worst, worst_of_gates(device, desc.get(), activation, sign << 31 | exponent << 23));
        }
      }
      UNSCOPED_INFO("activation " << activation << " on " << device << ": " << static_cast<double>(worst) << " ulp");
      CHECK(worst <= 8);
    }
  }
}
