// transformer_engine_step_tests.cpp - TransformerEngine's delayed scaling: q, k and v of one step go to FP8 by scales
// that the step before decided, and the largest magnitudes of this one decide those of the next
//
// A scale multiplies. Every micro-batch raises amax, which holds magnitudes before they are scaled; after the step the
// scale becomes largest / amax / 2^margin, and amax 0.
#include <algorithm>
#include <array>
#include <catch2/catch_test_macros.hpp>
#include <cmath>
#include <vector>

#include "step_system.hpp"

using namespace systems;

namespace {

using OfTensors = std::array<Real, 3>;  // of q, k and v

struct MicroBatch {
  rope_dtype_t dtype;
  rope_layout_t layout;
  Real size;  // of the data's standard deviation
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
        for (const Range &x : row) {
          const Real near = x.low < 0 && x.high > 0 ? 0 : std::min(std::fabs(x.low), std::fabs(x.high));
          magnitude.low = std::max(magnitude.low, near);
          magnitude.high = std::max({magnitude.high, std::fabs(x.low), std::fabs(x.high)});
        }
        expect(outcome, first, arithmetic.scaled(row, scale[i]));
      });
      largest.push_back({i, magnitude});
    }
    call.check(Direction::Forward);
    return {amax_out.value({0}), amax_out.value({1}), amax_out.value({2})};
  }
};

}  // namespace

TEST_CASE("TransformerEngine delayed scaling: amax of one step, the scales of the next", "[systems][step]") {
  for (rope_dtype_t dtype : serving) {
    for (rope_layout_t layout : {ROPE_LAYOUT_SBHD, ROPE_LAYOUT_BSHD}) {
      for (int margin : {0, 1}) {
        OfTensors scale = {1, 1, 1};
        for (uint64_t step = 0; step < 3; ++step) {
          // Data grow, so that codes of a step without a margin saturate.
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
