// SPDX-License-Identifier: Apache-2.0
// swiglu_codes_systems_tests.cpp - SwiGLU to FP8 for the next matrix product as other systems have it: static scales,
// scales of rows and of 128 channels in their layouts, experts' rows by count, delayed scaling
//
// Each oracle is the system's formula: the exact product of SwiGLU, within the 12 ulp of rope.h, then every rounding of
// the system on both ends of that range. If both ends become one code, the call must write it. If they become two,
// which may happen to at most one code in 500, each of them is right. If a system's arithmetic differs from librope's,
// the test describes the difference and bounds the share of codes that are neighbours of the system's.
#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <cmath>
#include <vector>

#include "step_system.hpp"
#include "support/code_oracle.hpp"

using namespace systems;

namespace {

constexpr Real top = 448;
constexpr int64_t block = 128;

// A call over arrays of a workspace, from packed rows [.., 2d] with the gate first.
class CodesCall {
 public:
  explicit CodesCall(rope_dtype_t dtype)
      : config(swiglu_config_for(devices()[0])), args(swiglu_args()), workspace_(31) {
    config.dtype = dtype;
  }

  swiglu_config_t config;
  swiglu_args_t args;
  swiglu_quant_args_t quant = SWIGLU_QUANT_ARGS_INIT;
  swiglu_input_args_t input = SWIGLU_INPUT_ARGS_INIT;
  swiglu_column_args_t column = SWIGLU_COLUMN_ARGS_INIT;
  Direction direction = Direction::Forward;

  Array data(rope_dtype_t dtype, const Shape &shape) {
    return array_of(workspace_, dtype, shape, [this](const Shape &) { return workspace_.random().normal(); });
  }
  // Returns gate | up with rows of sizes from 2^-6 to 2^5. The first row is 0.
  Array packed(const Shape &shape) {
    int64_t row = -1;
    return array_of(workspace_, config.dtype, shape, [&](const Shape &at) -> Real {
      if (at.back() == 0) ++row;
      return row == 0 ? 0 : std::ldexp(workspace_.random().normal(), static_cast<int>(row % 12) - 6);
    });
  }
  Array values(rope_dtype_t dtype, const Shape &shape, const std::function<Real(const Shape &)> &value) {
    return array_of(workspace_, dtype, shape, value);
  }
  Array counts(rope_dtype_t dtype, const std::vector<int64_t> &values) {
    return integers_of(workspace_, dtype, {static_cast<int64_t>(values.size())},
                       [&](const Shape &at) { return values[static_cast<size_t>(at[0])]; });
  }
  void take(const Array &x, const Array &out) {
    const int last = static_cast<int>(x.shape.size()) - 1;
    const int64_t d = x.shape.back() / 2;
    args.gate = narrow(x.tensor(), last, 0, d);
    args.up = narrow(x.tensor(), last, d, d);
    args.out = out.tensor();
    args.quant = &quant;
  }
  Outcome &outcome(const Array &array) {
    outcomes_.push_back({array, {}});
    return outcomes_.back().second;
  }

  // Returns a tensor for an output of codes or scales.
  rope_tensor_t bytes(rope_dtype_t dtype, const Shape &shape) { return workspace_.tensor(dtype, shape); }

  // `tolerated` is the share of codes that may be neighbours of the system's. `further_wrong` returns the number of
  // other errors, and accepts the bytes that it checked.
  void check(Real tolerated = 0, const std::function<int64_t(Workspace &)> &further_wrong = {}) {
    workspace_.freeze();
    for (const Device &device : devices()) {
      for (int32_t num_threads : {0, 5}) {
        if (device.kind == ROPE_DEVICE_CUDA && num_threads != 0) continue;
        INFO(oracle::dtype_name(config.dtype) << " on " << device << ", num_threads " << num_threads);
        config.device = device.kind;
        config.device_index = device.index;
        config.num_threads = num_threads;
        const SwigluDesc desc = create(config);
        workspace_.restore();
        const rope_status_t status = run(device, desc.get(), direction, args, workspace_);
        if (status != ROPE_STATUS_SUCCESS) {
          FAIL_CHECK(rope_status_name(status) << ": " << rope_last_error());
          continue;
        }
        const int64_t wrong =
            wrong_outcomes(workspace_, outcomes_, tolerated) + (further_wrong ? further_wrong(workspace_) : 0);
        INFO(wrong << " elements are wrong");
        CHECK(wrong == 0);
        std::string where;
        const bool untouched = workspace_.untouched_elsewhere(&where);
        INFO(where);
        CHECK(untouched);
      }
    }
  }

 private:
  Workspace workspace_;
  Outcomes outcomes_;
};

// `further` is the error of subnormal products of some factors.
Range within_ulps(Real exact, Real further = 0) {
  if (exact == 0) return {exact, exact};  // a zero keeps its sign
  const Real slack = 12 * oracle::ulp(ROPE_DTYPE_F32, exact) + further;
  return {exact - slack, exact + slack};
}

// Returns silu(g) * u * weight for the last axis of packed rows. `limit` bounds the gate from above and up on both
// sides.
Row products(const Array &x, Shape at, Real limit = HUGE_VALL, Real weight = 1) {
  const int64_t d = x.shape.back() / 2;
  at.push_back(0);
  Row row;
  for (int64_t c = 0; c < d; ++c) {
    at.back() = c;
    const Real gate = std::min(x.value(at), limit);
    at.back() = d + c;
    const Real up = std::max(-limit, std::min(x.value(at), limit));
    Real further = 4 * 0x1p-149L;
    for (Real factor : {gate, up, weight}) further *= std::max(Real{1}, std::fabs(factor));
    row.push_back(within_ulps(gate / (1 + std::exp(-gate)) * up * weight, further));
  }
  return row;
}

// The gradients of the gates and of the ups of a row, within 12 ulp of their larger term.
struct GradientRows {
  Row gate, up;
};

GradientRows gradients(const Array &x, const Array &grad, int64_t t, Real limit = HUGE_VALL, Real weight = 1) {
  const int64_t d = x.shape.back() / 2;
  GradientRows rows;
  for (int64_t c = 0; c < d; ++c) {
    const Real given_gate = x.value({t, c}), given_up = x.value({t, d + c}), of_out = grad.value({t, c}) * weight;
    const Real gate = std::min(given_gate, limit), up = std::max(-limit, std::min(given_up, limit));
    const Real sigmoid = 1 / (1 + std::exp(-gate)), term = of_out * up * sigmoid;
    const Real bend = term * gate * (1 - sigmoid);
    const Real slack = 12 * oracle::ulp(ROPE_DTYPE_F32, std::max(std::fabs(term), std::fabs(bend)));
    const Real of_gate = given_gate > limit ? 0 : term + bend;
    rows.gate.push_back(of_gate == 0 ? Range{of_gate, of_gate} : Range{of_gate - slack, of_gate + slack});
    rows.up.push_back(within_ulps(std::fabs(given_up) > limit ? 0 : of_out * gate * sigmoid));
  }
  return rows;
}

// The activation and the product, each rounded to the data's type.
Row products_in_dtype(const Array &x, Shape at) {
  const int64_t d = x.shape.back() / 2;
  at.push_back(0);
  Row row;
  for (int64_t c = 0; c < d; ++c) {
    at.back() = c;
    const Real gate = x.value(at);
    Range silu = within_ulps(gate / (1 + std::exp(-gate)));
    at.back() = d + c;
    const Real up = x.value(at);
    const rope_dtype_t dtype = x.memory.dtype;
    silu = {oracle::nearest(dtype, silu.low), oracle::nearest(dtype, silu.high)};
    const auto [low, high] = std::minmax({silu.low * up, silu.high * up});
    row.push_back({oracle::nearest(dtype, low), oracle::nearest(dtype, high)});
  }
  return row;
}

Real held(Real largest, Real floor) {
  return std::max(largest, single(floor));
}

// Returns the least power of two that is at least `scale`.
Real power_above(Real scale) {
  const Real power = std::ldexp(1.0L, std::ilogb(scale));
  return power == scale ? power : 2 * power;
}

// Expects the codes of a row in groups, and the scale of each group at the place that scale_at returns.
void expect_groups(Outcome &codes, int64_t first, Outcome &scales, const std::function<int64_t(int64_t)> &scale_at,
                   const ScaledRow &row) {
  expect(codes, first, row.codes);
  for (size_t g = 0; g < row.scales.size(); ++g) {
    scales.push_back({scale_at(static_cast<int64_t>(g)), row.scales[g]});
  }
}

// vLLM's activation kernel multiplies by the reciprocal of the scale, as librope does; its quant kernel for tensors of
// 16 bits, and others', divide: of fp32 products few codes in a million differ.
void check_static(rope_dtype_t dtype, CodeBy by, Real tolerated) {
  const int64_t tokens = 61, d = 192;
  const Real scale = single(0.0371L);
  CodesCall call(dtype);
  const Arithmetic arithmetic(dtype);
  const Array x = call.packed({tokens, 2 * d}), out = call.data(ROPE_DTYPE_F8_E4M3, {tokens, d});
  const Array scale_of = call.values(ROPE_DTYPE_F32, {1}, [&](const Shape &) { return scale; });
  call.take(x, out);
  call.quant.scale = scale_of.tensor();
  Outcome &codes = call.outcome(out);
  for (int64_t t = 0; t < tokens; ++t) {
    const Row row = products(x, {t});
    expect(codes, out.at({t, 0}),
           by == CodeBy::Quotient ? arithmetic.divided(row, scale) : arithmetic.scaled(row, single(1 / scale)));
  }
  call.check(tolerated);
}

// A scale of each row: max(amax / 448, 1 / (448 * 512)), which is a floor of 1/512 under amax; codes are quotients.
void check_per_token(rope_dtype_t dtype, Real tolerated) {
  const int64_t tokens = 37, d = 320;
  CodesCall call(dtype);
  const Arithmetic arithmetic(dtype);
  const Array x = call.packed({tokens, 2 * d}), out = call.data(ROPE_DTYPE_F8_E4M3, {tokens, d});
  const Array scales_out = call.data(ROPE_DTYPE_F32, {tokens, 1});
  call.take(x, out);
  call.quant.scales_out = scales_out.tensor();
  call.quant.scale_floor = 0x1p-9;
  Outcome &codes = call.outcome(out), &scales = call.outcome(scales_out);
  const auto rule = [](Real largest) { return std::max(single(largest / top), single(1 / (top * 512))); };
  for (int64_t t = 0; t < tokens; ++t) {
    expect_groups(
        codes, out.at({t, 0}), scales, [&](int64_t) { return t; },
        arithmetic.scaled_in_groups(products(x, {t}), 1, rule, CodeBy::Quotient));
  }
  call.check(tolerated);
}

// Scales of 128 or 64 channels, with the floor of check_per_token; they lie by rows, or by groups [d/128, T].
void check_per_block(rope_dtype_t dtype, int64_t group_size, bool is_transposed, Real tolerated) {
  const int64_t tokens = 29, d = 384, groups = d / group_size;
  CodesCall call(dtype);
  const Arithmetic arithmetic(dtype);
  const Array x = call.packed({tokens, 2 * d}), out = call.data(ROPE_DTYPE_F8_E4M3, {tokens, d});
  const Array scales_out = call.data(ROPE_DTYPE_F32, is_transposed ? Shape{groups, tokens} : Shape{tokens, groups});
  call.take(x, out);
  call.quant.scales_out = is_transposed ? permuted(scales_out.tensor(), {1, 0}) : scales_out.tensor();
  call.quant.scale_floor = 0x1p-9;
  Outcome &codes = call.outcome(out), &scales = call.outcome(scales_out);
  const auto rule = [](Real largest) { return std::max(single(largest / top), single(1 / (top * 512))); };
  for (int64_t t = 0; t < tokens; ++t) {
    expect_groups(
        codes, out.at({t, 0}), scales,
        [&](int64_t g) {
          return is_transposed ? scales_out.at({g, t}) : scales_out.at({t, g});
        },
        arithmetic.scaled_in_groups(products(x, {t}), groups, rule, CodeBy::Quotient));
  }
  call.check(tolerated);
}

// The layout of experts' scales, with E experts of T rows and G groups.
enum class ScalesLie {
  ByRow,     // [E, T, G]
  ByColumn,  // [E, G, T padded], as DeepGEMM's TMA reads them on SM90
  Packed     // bytes of E8M0, four groups of a row in a word: [E, G/4, T, 4]
};

struct ExpertScales {
  ExpertScales(CodesCall &call, ScalesLie lie, int64_t experts, int64_t rows, int64_t groups)
      : lie(lie),
        rows((rows + 3) / 4 * 4),
        array(lie == ScalesLie::ByRow      ? call.data(ROPE_DTYPE_F32, {experts, rows, groups})
              : lie == ScalesLie::ByColumn ? call.data(ROPE_DTYPE_F32, {experts, groups, this->rows})
                                           : call.data(ROPE_DTYPE_F8_E8M0, {experts, groups / 4, this->rows, 4})) {}

  int64_t at(int64_t e, int64_t t, int64_t g) const {
    if (lie == ScalesLie::ByRow) return array.at({e, t, g});
    return lie == ScalesLie::ByColumn ? array.at({e, g, t}) : array.at({e, g / 4, t, g % 4});
  }
  rope_tensor_t view(int64_t given_rows) const {
    if (lie == ScalesLie::ByRow) return array.tensor();
    if (lie == ScalesLie::ByColumn) return narrow(permuted(array.tensor(), {0, 2, 1}), 1, 0, given_rows);
    return narrow(permuted(array.tensor(), {0, 2, 1, 3}), 1, 0, given_rows);
  }

  ScalesLie lie;
  int64_t rows;
  Array array;
};

// vLLM's kernel for DeepGEMM's masked products works in the data's type from end to end: silu, product, amax, amax
// times the rounded 1/448, its reciprocal, and the codes' products. With product_rounding and quant_rounding librope
// has vLLM's silu and product, bit for bit. The rest is deliberately better: librope makes scales and codes in fp32. So
// an F32 scale differs by at most the error of two roundings to bf16, 2^-7 of it, and codes may be neighbours. Powers
// of two are vLLM's, except for amax just above 448 times one, which vLLM rounds down to it, so that codes saturate.
struct MaskedVllm {
  ScalesLie lie;
  bool is_power;
  bool is_just_above;  // the largest magnitudes are 450 times powers of two
  Real tolerated;

  Real system_scale(Real largest) const {
    const auto in_bf16 = [](Real x) { return oracle::nearest(ROPE_DTYPE_BF16, x); };
    const Real scale = in_bf16(in_bf16(std::max(largest, Real{1e-10L})) * in_bf16(1 / top));
    return is_power ? power_above(scale) : scale;
  }

  void check() const {
    const rope_dtype_t dtype = ROPE_DTYPE_BF16;
    const int64_t experts = 3, rows = 9, d = 8 * block, groups = d / block;
    const std::vector<int64_t> masked_m = {9, 0, 5};
    CodesCall call(dtype);
    const Arithmetic arithmetic(dtype);
    call.config.product_rounding = SWIGLU_PRODUCT_ROUND_ACTIVATION;
    call.config.quant_rounding = ROPE_QUANT_ROUND_FIRST;
    Random random(17);
    // Gates are 64 and equal to their silu, so that the largest products of the groups are those of the largest ups.
    const Array x = call.values(dtype, {experts, rows, 2 * d}, [&](const Shape &at) -> Real {
      const int64_t c = at[2] % d, g = c / block;
      if (!is_just_above) return random.normal();
      if (at[2] < d) return 64;
      const Real largest = std::ldexp(450.0L, static_cast<int>(g) - 12);
      return c % block == 5 * g ? largest : largest * random.uniform(-0.99L, 0.99L);
    });
    const Array out = call.data(ROPE_DTYPE_F8_E4M3, {experts, rows, d});
    const ExpertScales scales_of(call, lie, experts, rows, groups);
    const Array counts = call.counts(ROPE_DTYPE_I32, masked_m);
    call.take(x, out);
    call.input.expert_rows = counts.tensor();
    call.args.input = &call.input;
    call.quant.scales_out = scales_of.view(rows);
    call.quant.flags = is_power && lie != ScalesLie::Packed ? ROPE_QUANT_FLAG_POWER_OF_TWO : 0;
    Outcome &codes = call.outcome(out), &scales = call.outcome(scales_of.array);
    for_each({experts, rows, groups}, [&](const Shape &at) {
      if (at[1] >= masked_m[static_cast<size_t>(at[0])]) return;
      const Row all = products_in_dtype(x, {at[0], at[1]});
      const Row row(all.begin() + at[2] * block, all.begin() + (at[2] + 1) * block);
      const Range largest = largest_of(row);
      Range scale = {system_scale(largest.low), system_scale(largest.high)};
      const int64_t first = out.at({at[0], at[1], at[2] * block});
      if (is_power) {
        if (is_just_above) scale = {2 * scale.low, 2 * scale.high};  // nothing saturates
        for (int64_t c = 0; c < block; ++c) {
          const Range &y = row[static_cast<size_t>(c)];
          codes.push_back({first + c, {y.low / scale.high, y.high / scale.low}});
        }
        if (scale.low != scale.high) FAIL("the largest magnitude leaves its power of two open");
      } else {
        const auto in_bf16 = [&](Real y, Real by) {
          return oracle::nearest(dtype, y * oracle::nearest(dtype, 1 / by));
        };
        for (int64_t c = 0; c < block; ++c) {
          const Range &y = row[static_cast<size_t>(c)];
          const auto [low, high] = std::minmax({in_bf16(y.low, scale.low), in_bf16(y.low, scale.high),
                                                in_bf16(y.high, scale.low), in_bf16(y.high, scale.high)});
          codes.push_back({first + c, {low, high}});
        }
        scale = {scale.low * (1 - 0x1p-7L), scale.high * (1 + 0x1p-7L)};
      }
      scales.push_back({scales_of.at(at[0], at[1], at[2]), scale});
    });
    call.check(tolerated);
  }
};

// sglang's kernels: products of fp32, amax no less than 1e-10, code = x * (1 / s). The masked kernel counts rows of
// experts; the contiguous one is a single expert that is full. They round the bounds of gate and up to the data's type.
// With rounded bounds librope has their bytes. With the bounds of the model's config librope is deliberately better: it
// clamps by the fp32 limit, so that clamped values differ by up to a rounding of 16 bits.
struct Sglang {
  bool is_masked;
  ScalesLie lie;
  bool is_power;
  Real limit = HUGE_VALL;
  bool is_limit_rounded = true;
  Real tolerated = 0;

  void check(rope_dtype_t dtype) const {
    const int64_t experts = is_masked ? 3 : 1, rows = 10, d = 8 * block, groups = d / block;
    const std::vector<int64_t> masked_m = {7, 10, 0};
    CodesCall call(dtype);
    const Arithmetic arithmetic(dtype);
    const Real system_limit = std::isinf(limit) ? limit : oracle::nearest(dtype, limit);
    if (!std::isinf(limit)) call.config.limit = static_cast<double>(is_limit_rounded ? system_limit : limit);
    const Array x = call.packed({experts, rows, 2 * d}), out = call.data(ROPE_DTYPE_F8_E4M3, {experts, rows, d});
    const ExpertScales scales_of(call, lie, experts, rows, groups);
    const Array counts = call.counts(ROPE_DTYPE_I32, masked_m);
    call.take(x, out);
    call.quant.scales_out = scales_of.view(rows);
    if (is_masked) {
      call.input.expert_rows = counts.tensor();
      call.args.input = &call.input;
    } else {
      call.args.gate = select(call.args.gate, 0, 0);
      call.args.up = select(call.args.up, 0, 0);
      call.args.out = select(call.args.out, 0, 0);
      call.quant.scales_out = select(call.quant.scales_out, 0, 0);
    }
    if (lie == ScalesLie::Packed) {
      call.quant.scale_floor = 1e-10;  // what F32 scales have by default
    } else if (is_power) {
      call.quant.flags = ROPE_QUANT_FLAG_POWER_OF_TWO;
    }
    const auto rule = [&](Real largest) {
      const Real scale = single(held(largest, 1e-10L) / top);
      return is_power ? power_above(scale) : scale;
    };
    Outcome &codes = call.outcome(out), &scales = call.outcome(scales_of.array);
    for_each({experts, rows}, [&](const Shape &at) {
      if (is_masked && at[1] >= masked_m[static_cast<size_t>(at[0])]) return;
      ScaledRow row = arithmetic.scaled_in_groups(products(x, at, system_limit), groups, rule, CodeBy::Reciprocal);
      if (!is_limit_rounded && !is_power) {  // the scale comes from a clamped largest magnitude
        const Real by = oracle::ulp(dtype, 1) * 1.01L;
        for (Range &scale : row.scales) scale = {scale.low * (1 - by), scale.high * (1 + by)};
      }
      expect_groups(
          codes, out.at({at[0], at[1], 0}), scales, [&](int64_t g) { return scales_of.at(at[0], at[1], g); }, row);
    });
    call.check(tolerated);
  }
};

// Checks one micro-batch of TransformerEngine's delayed scaling. Returns amax after it.
Real check_delayed(rope_dtype_t dtype, rope_dtype_t code, Real scale, Real amax, Real size, uint64_t seed) {
  const int64_t tokens = 23, d = 176;
  CodesCall call(dtype);
  const Arithmetic arithmetic(dtype);
  Random random(seed);
  const Array x = call.values(dtype, {tokens, 2 * d}, [&](const Shape &) { return size * random.normal(); });
  const Array out = call.data(code, {tokens, d});
  const Array scale_of = call.values(ROPE_DTYPE_F32, {1}, [&](const Shape &) { return scale; });
  const Array amax_out = call.values(ROPE_DTYPE_F32, {1}, [&](const Shape &) { return amax; });
  call.take(x, out);
  call.quant.flags = ROPE_QUANT_FLAG_SCALE_MULTIPLIES;
  call.quant.scale = scale_of.tensor();
  call.quant.amax_out = amax_out.tensor();
  Outcome &codes = call.outcome(out);
  Range largest = {amax, amax};
  for (int64_t t = 0; t < tokens; ++t) {
    const Row row = products(x, {t});
    const Range of_row = largest_of(row);
    largest = {std::max(largest.low, of_row.low), std::max(largest.high, of_row.high)};
    expect(codes, out.at({t, 0}), arithmetic.scaled(row, scale));
  }
  call.outcome(amax_out).push_back({0, largest});
  call.check();
  return amax_out.value({0});
}

// Returns the scale of TransformerEngine's blocks of 32: amax * (1 / largest) in fp32, with the exponent raised if the
// mantissa is not 0.
Real block_scale(rope_dtype_t code, Real largest) {
  if (largest == 0) return std::ldexp(1.0L, -127);
  return power_above(single(largest * single(1 / oracle::max_finite(code))));
}

// TransformerEngine's MXFP8 by rows and flashinfer's: the value is rounded to the data's type, then cast in blocks of
// 32 channels. The scale is amax * (1 / 448) in fp32, with the exponent raised if the mantissa is not 0. Scales lie by
// rows, or in tiles of 128 rows and 4 blocks with a padding of 0.
void check_mxfp8(rope_dtype_t dtype, bool is_tiled) {
  const int64_t tokens = 131, d = 6 * 32, blocks = d / 32, rows = 256, columns = 8;
  CodesCall call(dtype);
  const Arithmetic arithmetic(dtype);
  call.config.quant_rounding = ROPE_QUANT_ROUND_FIRST;
  const Array x = call.packed({tokens, 2 * d}), out = call.data(ROPE_DTYPE_F8_E4M3, {tokens, d});
  const Array scales_out = call.data(ROPE_DTYPE_F8_E8M0, is_tiled ? Shape{rows, columns} : Shape{tokens, blocks});
  call.take(x, out);
  call.quant.scales_out = scales_out.tensor();
  call.quant.scale_layout = is_tiled ? SWIGLU_SCALE_LAYOUT_128X4 : SWIGLU_SCALE_LAYOUT_STRIDED;
  const auto rule = [](Real largest) { return block_scale(ROPE_DTYPE_F8_E4M3, largest); };
  const auto place = [&](int64_t m, int64_t k) {
    if (!is_tiled) return scales_out.at({m, k});
    return (m / 128 * (columns / 4) + k / 4) * 512 + m % 32 * 16 + m % 128 / 32 * 4 + k % 4;
  };
  Outcome &codes = call.outcome(out), &scales = call.outcome(scales_out);
  for (int64_t t = 0; t < tokens; ++t) {
    const Row row = arithmetic.rounded_to_dtype(products(x, {t}));
    expect_groups(
        codes, out.at({t, 0}), scales, [&](int64_t k) { return place(t, k); },
        arithmetic.scaled_in_groups(row, blocks, rule, CodeBy::Reciprocal));
  }
  if (is_tiled) {  // a byte of 0 is the least number of E8M0
    const Real least = std::ldexp(1.0L, -127);
    for_each({rows, columns}, [&](const Shape &at) {
      if (at[0] >= tokens || at[1] >= blocks) scales.push_back({place(at[0], at[1]), {least, least}});
    });
  }
  call.check();
}

// An output of MXFP8 by row and by column: both have the same values in the same order, and scales [T, d/32] and
// [T/32, d].
struct BothWays {
  BothWays(CodesCall &call, rope_dtype_t code, int64_t tokens, int64_t d)
      : code(code),
        by_row(call.data(code, {tokens, d})),
        by_column(call.data(code, {tokens, d})),
        row_scales(call.data(ROPE_DTYPE_F8_E8M0, {tokens, d / 32})),
        column_scales(call.data(ROPE_DTYPE_F8_E8M0, {tokens / 32, d})) {}

  void expect_values(CodesCall &call, const Arithmetic &arithmetic, const std::vector<Row> &rows) const {
    const auto rule = [&](Real largest) { return block_scale(code, largest); };
    const auto d = static_cast<int64_t>(rows[0].size());
    Outcome &codes = call.outcome(by_row), &scales = call.outcome(row_scales);
    for (size_t t = 0; t < rows.size(); ++t) {
      const auto token = static_cast<int64_t>(t);
      expect_groups(
          codes, by_row.at({token, 0}), scales,
          [&](int64_t k) {
            return row_scales.at({token, k});
          },
          arithmetic.scaled_in_groups(rows[t], d / 32, rule, CodeBy::Reciprocal));
    }
    Outcome &column_codes = call.outcome(by_column), &of_columns = call.outcome(column_scales);
    for (int64_t c = 0; c < d; ++c) {
      Row column;
      for (const Row &row : rows) column.push_back(row[static_cast<size_t>(c)]);
      const auto groups = static_cast<int64_t>(rows.size()) / 32;
      const ScaledRow scaled = arithmetic.scaled_in_groups(column, groups, rule, CodeBy::Reciprocal);
      for (size_t t = 0; t < rows.size(); ++t) {
        column_codes.push_back({by_column.at({static_cast<int64_t>(t), c}), scaled.codes[t]});
      }
      for (int64_t k = 0; k < groups; ++k) {
        of_columns.push_back({column_scales.at({k, c}), scaled.scales[static_cast<size_t>(k)]});
      }
    }
  }

  rope_dtype_t code;
  Array by_row, by_column, row_scales, column_scales;
};

// TransformerEngine's gated cast to MXFP8 both ways, forward to E4M3 and backward to E5M2: values in fp32, rounded to
// the data's type, then cast in blocks of 32 channels and in blocks of 32 rows.
void check_mxfp8_both_ways(rope_dtype_t dtype, bool is_backward) {
  const int64_t tokens = 96, d = 3 * 32;
  CodesCall call(dtype);
  const Arithmetic arithmetic(dtype);
  call.config.quant_rounding = ROPE_QUANT_ROUND_FIRST;
  const Array x = call.packed({tokens, 2 * d}), grad = call.data(dtype, {tokens, d});
  const rope_dtype_t code = is_backward ? ROPE_DTYPE_F8_E5M2 : ROPE_DTYPE_F8_E4M3;
  const BothWays first(call, code, tokens, d), second(call, code, tokens, d);
  call.take(x, first.by_row);
  call.args.column = &call.column;
  std::vector<Row> values[2];
  for (int64_t t = 0; t < tokens; ++t) {
    if (is_backward) {
      const GradientRows rows = gradients(x, grad, t);
      values[0].push_back(arithmetic.rounded_to_dtype(rows.gate));
      values[1].push_back(arithmetic.rounded_to_dtype(rows.up));
    } else {
      values[0].push_back(arithmetic.rounded_to_dtype(products(x, {t})));
    }
  }
  first.expect_values(call, arithmetic, values[0]);
  if (is_backward) {
    call.direction = Direction::Backward;
    call.args.out = {};
    call.args.grad_out = grad.tensor();
    call.args.grad_gate = first.by_row.tensor();
    call.args.grad_up = second.by_row.tensor();
    call.quant.grad_gate_scales_out = first.row_scales.tensor();
    call.quant.grad_up_scales_out = second.row_scales.tensor();
    call.column.grad_gate = first.by_column.tensor();
    call.column.grad_up = second.by_column.tensor();
    call.column.grad_gate_scales_out = first.column_scales.tensor();
    call.column.grad_up_scales_out = second.column_scales.tensor();
    second.expect_values(call, arithmetic, values[1]);
  } else {
    call.quant.scales_out = first.row_scales.tensor();
    call.column.out = first.by_column.tensor();
    call.column.scales_out = first.column_scales.tensor();
  }
  call.check();
}

// vLLM's and flashinfer's silu_and_mul to NVFP4: the value is rounded to the data's type, a group of 16 has the scale
// e4m3(g * (amax * rcp(6))) and the codes x * rcp(scale * rcp(g)). Their reciprocals are approximate and librope's
// quotients exact, so at most 1 scale in 100 and 1 code in 100 may be a neighbour of the system's.
void check_nvfp4(rope_dtype_t dtype, bool is_tiled) {
  const int64_t tokens = 131, d = 6 * 16, groups = d / 16, rows = 256, columns = 8;
  CodesCall call(dtype);
  const Arithmetic arithmetic(dtype);
  call.config.quant_rounding = ROPE_QUANT_ROUND_FIRST;
  const Array x = call.packed({tokens, 2 * d});
  const Real global = single(448 * 6 / 700.0L);
  const Array scale_of = call.values(ROPE_DTYPE_F32, {1}, [&](const Shape &) { return global; });
  const rope_tensor_t out = call.bytes(ROPE_DTYPE_F4_E2M1X2, {tokens, d / 2});
  const rope_tensor_t scales = call.bytes(ROPE_DTYPE_F8_E4M3, is_tiled ? Shape{rows, columns} : Shape{tokens, groups});
  call.take(x, x);
  call.args.out = out;
  call.quant.scale = scale_of.tensor();
  call.quant.scales_out = scales;
  call.quant.scale_layout = is_tiled ? SWIGLU_SCALE_LAYOUT_128X4 : SWIGLU_SCALE_LAYOUT_STRIDED;
  const auto place = [&](int64_t m, int64_t k) -> Index {
    if (!is_tiled) return {m, k};
    const int64_t byte = (m / 128 * (columns / 4) + k / 4) * 512 + m % 32 * 16 + m % 128 / 32 * 4 + k % 4;
    return {byte / columns, byte % columns};
  };
  const auto nearest = [&](Range value) { return single((value.low + value.high) / 2); };
  call.check(0, [&](Workspace &workspace) {
    int64_t wrong = 0, beside = 0, scales_beside = 0;
    for (int64_t t = 0; t < tokens; ++t) {
      const Row row = arithmetic.rounded_to_dtype(products(x, {t}));
      for (int64_t k = 0; k < groups; ++k) {
        Real largest = 0;
        for (int64_t c = 16 * k; c < 16 * k + 16; ++c) {
          largest = std::max(largest, std::fabs(nearest(row[static_cast<size_t>(c)])));
        }
        const Real product = single(global * single(largest * single(1.0L / 6)));
        const uint8_t expected = code_oracle::code_of(ROPE_DTYPE_F8_E4M3, static_cast<float>(product));
        const auto found = static_cast<uint8_t>(code_oracle::bits_at(scales, place(t, k)));
        const int step = code_oracle::steps_between(ROPE_DTYPE_F8_E4M3, expected, found);
        wrong += step > 1;
        scales_beside += step == 1;
        workspace.accept(scales, place(t, k));
        const Real scale = oracle::decode(ROPE_DTYPE_F8_E4M3, &found);
        const Real factor = scale == 0 ? 0 : single(1 / single(scale * single(1 / global)));
        for (int64_t c = 16 * k; c < 16 * k + 16; ++c) {
          const Real value = nearest(row[static_cast<size_t>(c)]);
          const uint8_t code = code_oracle::pair_code(static_cast<float>(single(value * factor)));
          const int steps = code_oracle::steps_between(ROPE_DTYPE_F4_E2M1X2, code, code_oracle::code_at(out, {t, c}));
          wrong += steps > 1;
          beside += steps == 1;
          workspace.accept(out, {t, c / 2});
        }
      }
    }
    if (is_tiled) {
      for_each_index(scales, [&](const Index &at) {
        const int64_t byte = at[0] * columns + at[1], tile = byte / 512, within = byte % 512;
        const int64_t m = tile / (columns / 4) * 128 + within / 16 + within % 16 / 4 * 32;
        if (m < tokens && tile % (columns / 4) * 4 + within % 4 < groups) return;
        wrong += code_oracle::bits_at(scales, at) != 0;
        workspace.accept(scales, at);
      });
    }
    INFO(scales_beside << " scales and " << beside << " codes are neighbours of the system's");
    CHECK(100 * scales_beside <= tokens * groups);
    CHECK(100 * beside <= tokens * d);
    return wrong;
  });
}

// TileKernels' cast: a code is x * (448 / amax), one rounding less than x * (1 / s). A power of two comes from the bits
// of s.
struct TileKernelsCast {
  int64_t group_size;
  bool is_power;
  Real floor = 1e-4L;

  Real scale(Real largest) const {
    const Real scale = single(held(largest, floor) / top);
    return is_power ? power_above(scale) : scale;
  }
  Real factor(Real largest) const { return is_power ? 1 / scale(largest) : single(top / held(largest, floor)); }

  // Expects the codes and scales of a row, which begin at these elements.
  void expect(Outcome &codes, int64_t first_code, Outcome &scales, int64_t first_scale, const Row &all) const {
    const Arithmetic arithmetic(ROPE_DTYPE_F32);
    for (int64_t begin = 0; begin < static_cast<int64_t>(all.size()); begin += group_size) {
      const Row row(all.begin() + begin, all.begin() + begin + group_size);
      const Range largest = largest_of(row);
      scales.push_back({first_scale + begin / group_size, {scale(largest.low), scale(largest.high)}});
      const Row least = arithmetic.scaled(row, factor(largest.high));
      const Row most = arithmetic.scaled(row, factor(largest.low));
      for (size_t c = 0; c < row.size(); ++c) {
        codes.push_back({first_code + begin + static_cast<int64_t>(c),
                         {std::min(least[c].low, most[c].low), std::max(least[c].high, most[c].high)}});
      }
    }
  }
};

// TileKernels' backward of rows that are sorted by expert, each from a token and one of its top experts: the gradients
// of gate and up as codes, the weighted output again, and the gradient of each row's weight. A row of padding has the
// index -1; TileKernels writes zeros there, librope does not write it.
void check_tile_kernels_backward(rope_dtype_t dtype, const TileKernelsCast &cast, Real limit, Real tolerated) {
  const int64_t tokens = 13, top_experts = 3, n = 31, d = 3 * block, groups = d / cast.group_size;
  CodesCall call(dtype);
  call.config.limit = std::isinf(limit) ? 0 : static_cast<double>(limit);
  const Array x = call.packed({n, 2 * d}), grad = call.data(dtype, {n, d}), out = call.data(dtype, {n, d});
  const Array weights = call.data(ROPE_DTYPE_F32, {tokens, top_experts});
  const Array weight_grads = call.data(ROPE_DTYPE_F32, {n});
  std::vector<int64_t> pos_to_token_topk;
  for (int64_t t = 0; t < n; ++t) pos_to_token_topk.push_back(t % 8 == 7 ? -1 : t * 7 % (tokens * top_experts));
  const Array index = call.counts(ROPE_DTYPE_I32, pos_to_token_topk);
  // Gate and up lie side by side, as in x.
  const Array codes = call.data(ROPE_DTYPE_F8_E4M3, {n, 2 * d}), scales = call.data(ROPE_DTYPE_F32, {n, 2 * groups});
  call.take(x, out);
  call.direction = Direction::Backward;
  call.input.row_index = index.tensor();
  call.args.input = &call.input;
  call.args.row_scale = weights.as({tokens * top_experts});
  call.args.grad_out = grad.tensor();
  call.args.grad_gate = narrow(codes.tensor(), 1, 0, d);
  call.args.grad_up = narrow(codes.tensor(), 1, d, d);
  call.args.grad_row_scale = weight_grads.tensor();
  call.quant.scale_floor = static_cast<double>(cast.floor);
  call.quant.flags = cast.is_power ? ROPE_QUANT_FLAG_POWER_OF_TWO : 0;
  call.quant.grad_gate_scales_out = narrow(scales.tensor(), 1, 0, groups);
  call.quant.grad_up_scales_out = narrow(scales.tensor(), 1, groups, groups);
  Outcome &of_codes = call.outcome(codes), &of_scales = call.outcome(scales), &of_out = call.outcome(out);
  Outcome &of_weights = call.outcome(weight_grads);
  for (int64_t t = 0; t < n; ++t) {
    const int64_t at = pos_to_token_topk[static_cast<size_t>(t)];
    if (at < 0) continue;
    const Real weight = weights.value({at / top_experts, at % top_experts});
    const GradientRows rows = gradients(x, grad, t, limit, weight);
    cast.expect(of_codes, codes.at({t, 0}), of_scales, scales.at({t, 0}), rows.gate);
    cast.expect(of_codes, codes.at({t, d}), of_scales, scales.at({t, groups}), rows.up);
    expect(of_out, out.at({t, 0}), products(x, {t}, limit, weight));
    const Row unweighted = products(x, {t}, limit);
    Real sum = 0, size = 0;
    for (int64_t c = 0; c < d; ++c) {
      const Range product = unweighted[static_cast<size_t>(c)];
      const Real term = grad.value({t, c}) * (product.low + product.high) / 2;
      sum += term;
      size += std::fabs(term);
    }
    const Real slack = size == 0 ? 0 : 12 * oracle::ulp(ROPE_DTYPE_F32, size);
    of_weights.push_back({weight_grads.at({t}), {sum - slack, sum + slack}});
  }
  call.check(tolerated);
}

// TileKernels' cast of each row or of groups of 128. Tokens of experts are multiplied by their router's weights,
// gathered before the call.
void check_tile_kernels(rope_dtype_t dtype, const TileKernelsCast &cast, bool is_weighted, Real tolerated) {
  const int64_t tokens = 31, d = 512, groups = d / cast.group_size;
  CodesCall call(dtype);
  call.config.limit = 10;
  const Array x = call.packed({tokens, 2 * d}), out = call.data(ROPE_DTYPE_F8_E4M3, {tokens, d});
  const Array scales_out = call.data(ROPE_DTYPE_F32, {tokens, groups});
  const Array weights = call.data(ROPE_DTYPE_F32, {tokens});
  call.take(x, out);
  if (is_weighted) call.args.row_scale = weights.tensor();
  call.quant.scales_out = scales_out.tensor();
  call.quant.scale_floor = static_cast<double>(cast.floor);
  call.quant.flags = cast.is_power ? ROPE_QUANT_FLAG_POWER_OF_TWO : 0;
  Outcome &codes = call.outcome(out), &scales = call.outcome(scales_out);
  for (int64_t t = 0; t < tokens; ++t) {
    cast.expect(codes, out.at({t, 0}), scales, scales_out.at({t, 0}),
                products(x, {t}, 10, is_weighted ? weights.value({t}) : 1));
  }
  call.check(tolerated);
}

}  // namespace

TEST_CASE("vLLM silu_and_mul_quant: a static scale, by its reciprocal and by quotients", "[systems][swiglu][codes]") {
  for (rope_dtype_t dtype : serving) {
    check_static(dtype, CodeBy::Reciprocal, 0);
    check_static(dtype, CodeBy::Quotient, 0.0002L);
  }
}

TEST_CASE("vLLM silu_and_mul_per_token_quant: a scale of each row", "[systems][swiglu][codes]") {
  for (rope_dtype_t dtype : serving) check_per_token(dtype, 0.0002L);
}

TEST_CASE("vLLM silu_and_mul_per_block_quant: scales of 128 and 64 channels, by rows and transposed",
          "[systems][swiglu][codes]") {
  for (rope_dtype_t dtype : serving) {
    for (int64_t group_size : {block, block / 2}) {
      for (bool is_transposed : {false, true}) check_per_block(dtype, group_size, is_transposed, 0.0002L);
    }
  }
}

TEST_CASE("vLLM silu_mul_fp8_quant_deep_gemm: masked experts, scales of fp32 instead of bf16",
          "[systems][swiglu][codes]") {
  for (ScalesLie lie : {ScalesLie::ByRow, ScalesLie::ByColumn}) {
    MaskedVllm{lie, false, false, 0.05L}.check();
    MaskedVllm{lie, true, false, 0}.check();
  }
  MaskedVllm{ScalesLie::Packed, true, false, 0}.check();
  MaskedVllm{ScalesLie::ByRow, true, true, 0}.check();
  MaskedVllm{ScalesLie::Packed, true, true, 0}.check();
}

TEST_CASE("sglang silu_and_mul_masked_post_quant: groups of 128, packed powers of two", "[systems][swiglu][codes]") {
  for (rope_dtype_t dtype : of_16_bits) {
    for (Real limit : {HUGE_VALL, 10.0L, 7.3L}) {
      Sglang{true, ScalesLie::ByRow, false, limit}.check(dtype);
      Sglang{true, ScalesLie::ByColumn, true, limit}.check(dtype);
      Sglang{true, ScalesLie::Packed, true, limit}.check(dtype);
    }
    Sglang{true, ScalesLie::ByRow, false, 7.3L, false, 0.005L}.check(dtype);
  }
}

TEST_CASE("sglang silu_and_mul_contig_post_quant: the same rows without experts", "[systems][swiglu][codes]") {
  for (rope_dtype_t dtype : of_16_bits) {
    Sglang{false, ScalesLie::ByRow, false}.check(dtype);
    Sglang{false, ScalesLie::ByColumn, false}.check(dtype);
    Sglang{false, ScalesLie::Packed, true}.check(dtype);
    Sglang{false, ScalesLie::Packed, true, 10}.check(dtype);
  }
}

TEST_CASE("TransformerEngine swiglu with delayed scaling: amax of one step, the scale of the next",
          "[systems][swiglu][codes]") {
  for (rope_dtype_t dtype : serving) {
    for (rope_dtype_t code : code_types) {
      for (int margin : {0, 1}) {
        Real scale = 1;
        for (uint64_t step = 0; step < 3; ++step) {
          Real amax = 0;
          for (uint64_t micro_batch : {0, 1}) {  // data grow, so that codes saturate in a step without a margin
            amax = check_delayed(dtype, code, scale, amax, 1 + static_cast<Real>(step), 2 * step + micro_batch);
          }
          scale = single(single(oracle::max_finite(code) / amax) / std::exp2(static_cast<Real>(margin)));
        }
      }
    }
  }
}

TEST_CASE("TransformerEngine swiglu to MXFP8, flashinfer silu_and_mul: blocks of 32, by rows and in tiles",
          "[systems][swiglu][codes]") {
  for (rope_dtype_t dtype : of_16_bits) {
    for (bool is_tiled : {false, true}) check_mxfp8(dtype, is_tiled);
  }
}

TEST_CASE("TransformerEngine swiglu and dswiglu to MXFP8 by row and by column", "[systems][swiglu][codes][columns]") {
  for (rope_dtype_t dtype : of_16_bits) {
    for (bool is_backward : {false, true}) check_mxfp8_both_ways(dtype, is_backward);
  }
}

TEST_CASE("vLLM silu_and_mul_nvfp4_quant, flashinfer silu_and_mul_nvfp4_quantize: groups of 16, a global factor",
          "[systems][swiglu][codes][fp4]") {
  for (rope_dtype_t dtype : of_16_bits) {
    for (bool is_tiled : {false, true}) check_nvfp4(dtype, is_tiled);
  }
}

TEST_CASE("TileKernels swiglu_backward_and_per_token_cast: coded gradients, the output, gradients of the weights",
          "[systems][swiglu][codes]") {
  for (rope_dtype_t dtype : serving) {
    for (int64_t group_size : {block, block / 4}) {
      for (Real limit : {HUGE_VALL, 10.0L}) {
        check_tile_kernels_backward(dtype, {group_size, false}, limit, 0.0002L);
        check_tile_kernels_backward(dtype, {group_size, true}, limit, 0);
      }
    }
  }
}

TEST_CASE("TileKernels swiglu_forward_and_per_token_cast: rows and groups of 128, weights of the router",
          "[systems][swiglu][codes]") {
  for (rope_dtype_t dtype : serving) {
    for (int64_t group_size : {block, int64_t{512}}) {
      for (bool is_weighted : {false, true}) {
        check_tile_kernels(dtype, {group_size, false}, is_weighted, 0.0002L);
        check_tile_kernels(dtype, {group_size, true}, is_weighted, 0);
      }
    }
    check_tile_kernels(dtype, {block, false, 0.5L}, true, 0.0002L);
  }
}
