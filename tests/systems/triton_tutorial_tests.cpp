// SPDX-License-Identifier: Apache-2.0
// triton_tutorial_tests.cpp - the fused RoPE of the Triton tutorial: complex multiplication over interleaved pairs, in
// place, x (seq, heads, head_dim), cos and sin (seq, head_dim/2) with one row per token
#include <catch2/catch_test_macros.hpp>

#include "support/cases.hpp"
#include "system.hpp"

using namespace systems;

namespace {

// z = x[2i] + j x[2i+1]; z *= cos + j sin
void multiply(Formula &formula, const Array &x, const Array &cos, const Array &sin, int64_t token, int64_t row) {
  for (int64_t h = 0; h < x.shape[1]; ++h) {
    for (int64_t i = 0; i < x.shape[2] / 2; ++i) {
      const int64_t re = x.at({token, h, 2 * i}), im = x.at({token, h, 2 * i + 1});
      formula.rotate(re, im, re, im, {cos.value({row, i}), sin.value({row, i})});
    }
  }
}

}  // namespace

TEST_CASE("Triton tutorial: in place, a table row for each token", "[systems][triton]") {
  const int64_t seq = 7, heads = 3, head_dim = 12;
  for (rope_dtype_t dtype : floating) {
    for (rope_dtype_t table_dtype : floating) {
      RopeCall call(dtype, head_dim);
      call.config.layout = ROPE_LAYOUT_THD;
      call.config.style = ROPE_STYLE_INTERLEAVED;
      call.config.theta = 0;
      const Array x = call.data({seq, heads, head_dim});
      const Array cos = call.table(table_dtype, {seq, head_dim / 2}),
                  sin = call.table(table_dtype, {seq, head_dim / 2});
      call.args.q = x.tensor();
      call.args.cos = cos.tensor();
      call.args.sin = sin.tensor();
      call.args.table_rows = ROPE_TABLE_BY_TOKEN;
      Formula &formula = call.formula(x);
      for (int64_t s = 0; s < seq; ++s) multiply(formula, x, cos, sin, s, s);
      call.check();
    }
  }
}

TEST_CASE("Triton tutorial: flattened batches", "[systems][triton]") {
  const int64_t batch = 2, seq = 5, heads = 3, head_dim = 8;
  // The tutorial needs the table repeated batch times.
  for (bool repeated : {true, false}) {
    RopeCall call(ROPE_DTYPE_F16, head_dim);
    call.config.layout = repeated ? ROPE_LAYOUT_THD : ROPE_LAYOUT_BSHD;
    call.config.style = ROPE_STYLE_INTERLEAVED;
    call.config.theta = 0;
    const int64_t rows = repeated ? batch * seq : seq;
    const Array x = call.data({batch * seq, heads, head_dim});
    const Array cos = call.table(ROPE_DTYPE_F16, {rows, head_dim / 2});
    const Array sin = call.table(ROPE_DTYPE_F16, {rows, head_dim / 2});
    call.args.q = repeated ? x.tensor() : x.as({batch, seq, heads, head_dim});
    call.args.cos = cos.tensor();
    call.args.sin = sin.tensor();
    call.args.table_rows = ROPE_TABLE_BY_TOKEN;
    Formula &formula = call.formula(x);
    for (int64_t t = 0; t < batch * seq; ++t) multiply(formula, x, cos, sin, t, t % rows);
    call.check();
  }
}

TEST_CASE("Triton tutorial: any head_dim", "[systems][triton]") {
  for (int32_t head_dim : {2, 56, 80, 128}) {
    for (rope_dtype_t dtype : floating) {
      RopeCase()
          .dtype(dtype)
          .layout(ROPE_LAYOUT_THD)
          .style(ROPE_STYLE_INTERLEAVED)
          .tokens(6)
          .heads(4)
          .head_dim(head_dim)
          .theta(0)
          .table_dtype(dtype)
          .tables_by_token()
          .check();
    }
  }
}
