// SPDX-License-Identifier: Apache-2.0
// ggml_tests.cpp - ggml's chain RMS_NORM, MUL, ROPE, VIEW, SET_ROWS: F32 data, rows of an F16 cache selected by an
// index
#include <catch2/catch_test_macros.hpp>

#include "step_system.hpp"

using namespace systems;

TEST_CASE("ggml rope and set_rows: F32 into rows of F16", "[systems][step]") {
  const int64_t T = 8, heads = 2, head_dim = 128, n_dims = 64, rows = 19;
  for (rope_style_t style : styles) {
    for (bool is_normed : {false, true}) {
      for (rope_dtype_t cache_dtype : serving) {
        RopeCall call(ROPE_DTYPE_F32, head_dim);
        const Arithmetic arithmetic(ROPE_DTYPE_F32);
        Norm norm;
        norm.eps = 1e-5;
        if (is_normed) norm.fill(call.config);
        call.config.layout = ROPE_LAYOUT_THD;
        call.config.style = style;
        call.config.rotary_dim = n_dims;
        const Array k = call.data({T, heads, head_dim}), v = call.data({T, heads, head_dim});
        const Array weight = call.data({head_dim});
        const auto old = [](const Shape &at) { return static_cast<Real>(at[0]); };
        const Array k_cache = call.values(cache_dtype, {rows, heads * head_dim}, old);
        const Array v_cache = call.values(cache_dtype, {rows, heads * head_dim}, old);
        const Array pos = call.positions(ROPE_DTYPE_I32, {T}, [](const Shape &at) { return 4096 + at[0]; });
        const Array row_indices = call.positions(ROPE_DTYPE_I64, {T}, [](const Shape &at) { return at[0] * 5 % rows; });
        rope_norm_args_t norms = ROPE_NORM_ARGS_INIT;
        norms.k_weight = weight.tensor();
        rope_cache_args_t cache = ROPE_CACHE_ARGS_INIT;
        cache.k_cache = k_cache.as({rows, 1, heads, head_dim});
        cache.v_cache = v_cache.as({rows, 1, heads, head_dim});
        cache.slots = row_indices.tensor();
        call.args.flags = ROPE_FLAG_V_UNROTATED;
        call.args.k = k.tensor();
        call.args.v = v.tensor();
        call.args.positions = pos.tensor();
        if (is_normed) call.args.norm = &norms;
        call.args.cache = &cache;
        Outcome &k_outcome = call.outcome(k_cache), &v_outcome = call.outcome(v_cache);
        for_each({T, heads}, [&](const Shape &at) {
          const int64_t row = row_indices.integer({at[0]}), position = pos.integer({at[0]});
          const auto turn = [&](int64_t i) { return arithmetic.computed(position, frequency(10000, i, n_dims)); };
          Row head = read(k, k.at({at[0], at[1], 0}), head_dim);
          if (is_normed) head = arithmetic.normed(norm, head, read(weight, 0, head_dim));
          expect(k_outcome, k_cache.at({row, at[1] * head_dim}), arithmetic.rotated(style, 0, n_dims, head, turn));
          expect(v_outcome, v_cache.at({row, at[1] * head_dim}), read(v, v.at({at[0], at[1], 0}), head_dim));
        });
        call.check(Direction::Forward);
      }
    }
  }
}
