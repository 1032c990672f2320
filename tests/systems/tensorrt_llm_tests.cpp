// tensorrt_llm_tests.cpp - TensorRT-LLM's fusedQKNormRope: packed qkv, angles computed on the fly, YaRN
//
// Its angles are powf and __sincosf of fp32; librope's are exact.
#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <cmath>
#include <vector>

#include "step_system.hpp"

using namespace systems;

namespace {

constexpr Real pi = 3.14159265358979323846264338327950288L;

// factor, low and high as the caller computes them, and the frequency as the kernel does.
struct Yarn {
  Real base, factor, low, high;

  Real frequency(int64_t i, int64_t rotary_dim) const {
    const Real extrapolated = systems::frequency(base, i, rotary_dim);
    const Real ramp = std::clamp((static_cast<Real>(i) - low) / (high - low), 0.0L, 1.0L);
    return extrapolated / factor * ramp + extrapolated * (1 - ramp);
  }
};

// The pair that turns `turns` times within the positions that the model was trained on.
Real pair_of(Real turns, Real base, int64_t rotary_dim, Real trained_positions) {
  return rotary_dim * std::log(trained_positions / (turns * 2 * pi)) / (2 * std::log(base));
}

void check_packed(rope_dtype_t dtype, rope_style_t style, bool is_yarn, int32_t head_dim, int32_t rotary_dim) {
  const int64_t T = 7, heads_q = 4, heads_k = 2, heads_v = 2, trained_positions = 4096;
  const double base = 1e6, yarn_factor = 4, attention_factor = 1.1;
  RopeCall call(dtype, head_dim);
  const Arithmetic arithmetic(dtype);
  const Norm norm;
  norm.fill(call.config);
  call.config.layout = ROPE_LAYOUT_THD;
  call.config.style = style;
  call.config.rotary_dim = rotary_dim;
  call.config.theta = base;
  Yarn yarn = {base, 1, 0, 1};
  std::vector<double> inv_freq(rotary_dim / 2);
  if (is_yarn) {
    yarn = {base, yarn_factor, std::floor(pair_of(32, base, rotary_dim, trained_positions)),
            std::ceil(pair_of(1, base, rotary_dim, trained_positions))};
    rope_scaling_t scaling = ROPE_SCALING_INIT;
    scaling.type = ROPE_SCALING_YARN;
    scaling.factor = yarn_factor;
    scaling.original_max_position = trained_positions;
    scaling.attention_factor = attention_factor;
    REQUIRE(rope_scaled_frequencies(rotary_dim, base, &scaling, inv_freq.data(), &call.config.attention_scale) ==
            ROPE_STATUS_SUCCESS);
    call.config.inv_freq = inv_freq.data();
  }
  const int64_t columns = (heads_q + heads_k + heads_v) * head_dim;
  const Array qkv = call.data({T, columns});
  const Array q_weight = call.data({head_dim}), k_weight = call.data({head_dim});
  const Array position_ids =
      call.positions(ROPE_DTYPE_I32, {T}, [](const Shape &at) { return 1000 * at[0] * at[0] + at[0]; });
  const rope_norm_args_t norms = norm_args(q_weight, k_weight);
  const rope_tensor_t all = qkv.as({T, columns / head_dim, head_dim});
  call.args.q = narrow(all, 1, 0, heads_q);
  call.args.k = narrow(all, 1, heads_q, heads_k);
  call.args.positions = position_ids.tensor();
  call.args.norm = &norms;
  Outcome &outcome = call.outcome(qkv);
  for_each({T, heads_q + heads_k}, [&](const Shape &at) {
    const int64_t head = qkv.at({at[0], at[1] * head_dim}), position = position_ids.integer({at[0]});
    const Row weight = read(at[1] < heads_q ? q_weight : k_weight, 0, head_dim);
    const Row row = arithmetic.normed(norm, read(qkv, head, head_dim), weight);
    const auto turn = [&](int64_t i) {
      return arithmetic.computed(position, yarn.frequency(i, rotary_dim), is_yarn ? attention_factor : 1);
    };
    expect(outcome, head, arithmetic.rotated(style, 0, rotary_dim, row, turn));
  });
  call.check(Direction::Forward);
}

}  // namespace

TEST_CASE("TensorRT-LLM fusedQKNormRope: packed qkv in place, YaRN", "[systems][step]") {
  for (rope_dtype_t dtype : serving) {
    for (rope_style_t style : styles) {
      for (bool is_yarn : {false, true}) {
        check_packed(dtype, style, is_yarn, 64, 64);
        check_packed(dtype, style, is_yarn, 128, 128);
        check_packed(dtype, style, is_yarn, 128, 64);
      }
    }
  }
}
