// SPDX-License-Identifier: Apache-2.0
// cuda_article_tests.cpp - the RoPE of the CUDA article: [batch*heads, seq, head_dim] F32, halves, angles on the fly,
// out of place. (Its __powf and __sincosf lose the angle at long positions; the formula here does not.)
#include <catch2/catch_test_macros.hpp>

#include "support/cases.hpp"
#include "system.hpp"

using namespace systems;

TEST_CASE("CUDA article: rows of head_dim, angles on the fly", "[systems][cuda_article]") {
  const int64_t rows = 6, seq = 9;
  for (int64_t head_dim : {128, 256}) {
    RopeCall call(ROPE_DTYPE_F32, static_cast<int32_t>(head_dim));
    call.config.layout = ROPE_LAYOUT_BHSD;
    const Array a = call.data({rows, seq, head_dim}), b = call.data({rows, seq, head_dim});
    call.args.q = a.as({1, rows, seq, head_dim});
    call.args.q_out = b.as({1, rows, seq, head_dim});
    Formula &formula = call.formula(a, b);
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t s = 0; s < seq; ++s) {
        for (int64_t i = 0; i < head_dim / 2; ++i) {
          const Real angle = s * frequency(10000, i, head_dim);
          const int64_t x = a.at({row, s, i}), y = a.at({row, s, i + head_dim / 2});
          formula.rotate(x, y, x, y, by_angle(angle));
        }
      }
    }
    call.check();
  }
}

TEST_CASE("CUDA article: batches of one head", "[systems][cuda_article]") {
  for (int32_t head_dim : {128, 256}) {
    RopeCase().batch(3).tokens(33).heads(1).head_dim(head_dim).out_of_place().check();
    RopeCase().batch(3).tokens(33).heads(1).head_dim(head_dim).check();
  }
}
