// SPDX-License-Identifier: Apache-2.0
// torchtune_tests.cpp - RotaryPositionalEmbeddings of torchtune: x [b, s, n_h, h_d] interleaved, a cache
// [max_seq, h_d/2, 2] of (cos, sin), rows by input_pos
#include <catch2/catch_test_macros.hpp>

#include "support/cases.hpp"
#include "system.hpp"

using namespace systems;

TEST_CASE("torchtune: cache of pairs, input_pos", "[systems][torchtune]") {
  const int64_t b = 2, s = 5, heads = 3, head_dim = 16, max_seq = 11;
  for (rope_dtype_t dtype : floating) {
    for (bool has_input_pos : {false, true}) {
      RopeCall call(dtype, head_dim);
      call.config.style = ROPE_STYLE_INTERLEAVED;
      call.config.theta = 0;
      const Array x = call.data({b, s, heads, head_dim}), out = call.data({b, s, heads, head_dim});
      const Array cache = call.table(ROPE_DTYPE_F32, {max_seq, head_dim / 2, 2});
      const Array input_pos =
          call.positions(ROPE_DTYPE_I64, {b, s}, [&](const Shape &at) { return (3 * at[0] + 4 * at[1]) % max_seq; });
      call.args.q = x.tensor();
      call.args.q_out = out.tensor();
      call.args.cos = select(cache.tensor(), 2, 0);
      call.args.sin = select(cache.tensor(), 2, 1);
      if (has_input_pos) call.args.positions = input_pos.tensor();
      Formula &formula = call.formula(x, out);
      for_each({b, s, heads, head_dim / 2}, [&](const Shape &at) {
        const int64_t row = has_input_pos ? input_pos.integer({at[0], at[1]}) : at[1];
        // x_out = [x0 * cos - x1 * sin, x1 * cos + x0 * sin]
        const int64_t x0 = 2 * at[3], x1 = 2 * at[3] + 1;
        formula.rotate(out.at({at[0], at[1], at[2], x0}), out.at({at[0], at[1], at[2], x1}),
                       x.at({at[0], at[1], at[2], x0}), x.at({at[0], at[1], at[2], x1}),
                       {cache.value({row, at[3], 0}), cache.value({row, at[3], 1})});
      });
      call.check();
    }
  }
}

TEST_CASE("torchtune: cache in every dtype", "[systems][torchtune]") {
  for (rope_dtype_t dtype : floating) {
    for (rope_dtype_t cache : floating) {
      RopeCase rope = RopeCase()
                          .dtype(dtype)
                          .style(ROPE_STYLE_INTERLEAVED)
                          .heads(4, 2)
                          .head_dim(64)
                          .theta(0)
                          .table_dtype(cache)
                          .tables(13, TableStorage::Alternating)
                          .positions(PositionShape::PerBatchAndToken, ROPE_DTYPE_I64,
                                     [](int64_t batch, int64_t token) { return (5 * batch + 3 * token) % 13; });
      RopeCase(rope).check();
      RopeCase(rope).out_of_place().check();
    }
  }
}
