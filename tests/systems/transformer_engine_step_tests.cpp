// SPDX-License-Identifier: Apache-2.0
// transformer_engine_step_tests.cpp - TransformerEngine's delayed scaling, in which q, k and v of a step become FP8
// with scales from the previous step, and the largest magnitudes give the next step's scales; and MXFP8, a scale of
// E8M0 for each 32 channels
//
// A scale multiplies. Every micro-batch raises amax, which holds magnitudes before scaling. After the step the scale
// becomes largest / amax / 2^margin, and amax 0.
#include <algorithm>
#include <array>
#include <catch2/catch_test_macros.hpp>
#include <cmath>
#include <vector>

#include "step_system.hpp"

using namespace systems;

namespace {

using OfTensors = std::array<Real, 3>;  // for q, k and v

struct MicroBatch {
  rope_dtype_t dtype;
  rope_layout_t layout;
  Real size;  // factor of the data's standard deviation
  uint64_t seed;

  // amax after the call.
  OfTensors check(const OfTensors &scale, const OfTensors &amax) const {
    const int64_t seq = 5, batch = 3, head_dim = 64, heads[] = {5, 2, 2};
    const bool is_batch_first = layout == ROPE_LAYOUT_BSHD;
    RopeCall call(dtype, head_dim);
    const Arithmetic arithmetic(dtype);
    call.config.layout = layout;
    Random random(seed);
    const Array freqs = call.table(ROPE_DTYPE_F32, {seq, head_dim});
    const Array q_scale = scales(call, {scale[0]}), k_scale = scales(call, {scale[1]}),
                v_scale = scales(call, {scale[2]});
    const Array amax_out = scales(call, {amax[0], amax[1], amax[2]});
    rope_quant_args_t quant = ROPE_QUANT_ARGS_INIT;
    quant.flags = ROPE_QUANT_FLAG_SCALE_MULTIPLIES;
    quant.q_scale = q_scale.tensor();
    quant.k_scale = k_scale.tensor();
    quant.v_scale = v_scale.tensor();
    quant.amax_out = amax_out.tensor();
    call.args.flags = ROPE_FLAG_V_UNROTATED;
    call.args.quant = &quant;
    take_cos_sin(call, freqs);
    rope_tensor_t *const views[] = {&call.args.q, &call.args.k, &call.args.v};
    rope_tensor_t *const outs[] = {&call.args.q_out, &call.args.k_out, &call.args.v_out};
    Outcome &largest = call.outcome(amax_out);
    for (int i = 0; i < 3; ++i) {
      const Shape shape = {is_batch_first ? batch : seq, is_batch_first ? seq : batch, heads[i], head_dim};
      const Array in = call.values(dtype, shape, [&](const Shape &) { return size * random.normal(); });
      const Array out = call.data(shape, ROPE_DTYPE_F8_E4M3);
      *views[i] = in.tensor();
      *outs[i] = out.tensor();
      Outcome &outcome = call.outcome(out);
      Range magnitude = {amax[i], amax[i]};
      for_each({shape[0], shape[1], shape[2]}, [&](const Shape &at) {
        const int64_t first = in.at({at[0], at[1], at[2], 0});
        Row row = read(in, first, head_dim);
        const TurnRanges turns = turns_of(arithmetic, freqs, at[is_batch_first ? 1 : 0]);
        if (i < 2) row = arithmetic.rotated(ROPE_STYLE_HALF, 0, head_dim, row, turns);
        const Range of_row = largest_of(row);
        magnitude = {std::max(magnitude.low, of_row.low), std::max(magnitude.high, of_row.high)};
        expect(outcome, first, arithmetic.scaled(row, scale[i]));
      });
      largest.push_back({i, magnitude});
    }
    call.check(Direction::Forward);
    return {amax_out.value({0}), amax_out.value({1}), amax_out.value({2})};
  }
};

// amax * (1/448) in fp32, with the exponent raised if the mantissa is not 0. 0 has the smallest exponent.
Real mxfp8_scale(Real largest) {
  if (largest == 0) return std::ldexp(1.0L, -127);
  const Real quotient = single(largest * single(1 / 448.0L));
  const Real power = std::ldexp(1.0L, std::ilogb(quotient));
  return quotient == power ? power : 2 * power;
}

// q and k are turned, v is not, and each is rounded to the data's type before it is scaled. Rows of scales are padded
// to 128 and their columns to 4, which cuBLAS requires before swizzling.
void check_mxfp8(rope_dtype_t dtype, rope_layout_t layout) {
  const int64_t seq = 7, batch = 2, head_dim = 64, block = 32, blocks = head_dim / block, heads[] = {5, 2, 2};
  const bool is_batch_first = layout == ROPE_LAYOUT_BSHD;
  RopeCall call(dtype, head_dim);
  const Arithmetic arithmetic(dtype);
  call.config.layout = layout;
  call.config.quant_rounding = ROPE_QUANT_ROUND_FIRST;
  Random random(5);
  const Array freqs = call.table(ROPE_DTYPE_F32, {seq, head_dim});
  rope_quant_args_t quant = ROPE_QUANT_ARGS_INIT;
  call.args.flags = ROPE_FLAG_V_UNROTATED;
  call.args.quant = &quant;
  take_cos_sin(call, freqs);
  rope_tensor_t *const views[] = {&call.args.q, &call.args.k, &call.args.v};
  rope_tensor_t *const outs[] = {&call.args.q_out, &call.args.k_out, &call.args.v_out};
  rope_tensor_t *const scales_out[] = {&quant.q_scales_out, &quant.k_scales_out, &quant.v_scales_out};
  for (int i = 0; i < 3; ++i) {
    const Shape shape = {is_batch_first ? batch : seq, is_batch_first ? seq : batch, heads[i], head_dim};
    // The first blocks of v: zeros, and a largest magnitude that is 448 times a power of two.
    const Array in = call.values(dtype, shape, [&](const Shape &at) -> Real {
      const Real x = random.normal();
      if (i < 2 || at[1] > 0) return x;
      return at[2] == 0 ? 0 : at[3] % block == 9 ? -448 : 200 * std::tanh(x);
    });
    const Array out = call.data(shape, ROPE_DTYPE_F8_E4M3);
    const int64_t columns = (heads[i] * blocks + 3) / 4 * 4;
    const Array scales_of = call.data({128, columns}, ROPE_DTYPE_F8_E8M0);
    *views[i] = in.tensor();
    *outs[i] = out.tensor();
    rope_tensor_t *const view = scales_out[i];
    *view = out.tensor();
    view->data = scales_of.memory.data;
    view->dtype = ROPE_DTYPE_F8_E8M0;
    view->shape[3] = blocks;
    const int64_t strides[] = {shape[1] * columns, columns, blocks, 1};
    std::copy_n(strides, 4, view->stride);
    Outcome &codes = call.outcome(out), &exponents = call.outcome(scales_of);
    for_each({shape[0], shape[1], shape[2]}, [&](const Shape &at) {
      const int64_t first = in.at({at[0], at[1], at[2], 0});
      Row row = read(in, first, head_dim);
      const TurnRanges turns = turns_of(arithmetic, freqs, at[is_batch_first ? 1 : 0]);
      if (i < 2) row = arithmetic.rotated(ROPE_STYLE_HALF, 0, head_dim, row, turns);
      row = arithmetic.rounded_to_dtype(row);
      for (int64_t b = 0; b < blocks; ++b) {
        const Row of_block(row.begin() + b * block, row.begin() + (b + 1) * block);
        const Group group = arithmetic.grouped(of_block, mxfp8_scale);
        expect(codes, first + b * block, group.row);
        expect(exponents, scales_of.at({at[0] * shape[1] + at[1], at[2] * blocks + b}), {group.scale});
      }
    });
  }
  call.check(Direction::Forward);
}

}  // namespace

TEST_CASE("TransformerEngine delayed scaling: amax of one step, the scales of the next", "[systems][step]") {
  for (rope_dtype_t dtype : serving) {
    for (rope_layout_t layout : {ROPE_LAYOUT_SBHD, ROPE_LAYOUT_BSHD}) {
      for (int margin : {0, 1}) {
        OfTensors scale = {1, 1, 1};
        for (uint64_t step = 0; step < 3; ++step) {
          // Data grow, so codes of a step without a margin saturate.
          OfTensors amax = {0, 0, 0};
          for (uint64_t micro_batch : {0, 1}) {
            const Real size = 1 + static_cast<Real>(step);
            amax = MicroBatch{dtype, layout, size, 2 * step + micro_batch}.check(scale, amax);
          }
          for (int i = 0; i < 3; ++i) scale[i] = single(single(448 / amax[i]) / std::exp2(static_cast<Real>(margin)));
        }
      }
    }
  }
}

TEST_CASE("TransformerEngine MXFP8: q, k and v in blocks of 32 channels", "[systems][step]") {
  for (rope_dtype_t dtype : serving) {
    for (rope_layout_t layout : {ROPE_LAYOUT_SBHD, ROPE_LAYOUT_BSHD}) check_mxfp8(dtype, layout);
  }
}
