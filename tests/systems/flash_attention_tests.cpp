// SPDX-License-Identifier: Apache-2.0
// flash_attention_tests.cpp - rotary embedding as in flash-attention: x (batch, seqlen, nheads, headdim) with any
// strides, cos and sin (seqlen, R/2) or (batch, seqlen, R/2), seqlen_offsets, cu_seqlens, conjugate
#include <catch2/catch_test_macros.hpp>

#include "support/cases.hpp"
#include "system.hpp"

using namespace systems;

TEST_CASE("flash-attention: all strides, tables of each batch, partial rotary", "[systems][flash_attention]") {
  const int64_t batch = 2, seqlen = 5, nheads = 3, headdim = 20, rotary_dim = 12;
  for (rope_dtype_t dtype : floating) {
    for (rope_style_t style : styles) {
      for (bool by_batch : {false, true}) {
        RopeCall call(dtype, headdim);
        call.config.style = style;
        call.config.rotary_dim = rotary_dim;
        call.config.theta = 0;
        // No axis of either is contiguous where the kernel expects it.
        const Array x = call.data({nheads, seqlen, headdim, batch}), out = call.data({headdim, batch, nheads, seqlen});
        call.args.q = permuted(x.tensor(), {3, 1, 0, 2});
        call.args.q_out = permuted(out.tensor(), {1, 3, 2, 0});
        const int64_t tables = by_batch ? batch : 1;
        const Array cos = call.table(ROPE_DTYPE_F32, {rotary_dim / 2, seqlen, tables});
        const Array sin = call.table(ROPE_DTYPE_F32, {rotary_dim / 2, seqlen, tables});
        call.args.cos = permuted(cos.tensor(), {2, 1, 0});
        call.args.sin = permuted(sin.tensor(), {2, 1, 0});
        call.args.table_rows = ROPE_TABLE_BY_TOKEN;
        Formula &formula = call.formula(x, out);
        for_each({batch, seqlen, nheads}, [&](const Shape &at) {
          const int64_t b = at[0], s = at[1], h = at[2], table = by_batch ? b : 0;
          const auto to = [&](int64_t c) { return out.at({c, b, h, s}); };
          const auto from = [&](int64_t c) { return x.at({h, s, c, b}); };
          const auto turn = [&](int64_t i) { return Rotation{cos.value({i, s, table}), sin.value({i, s, table})}; };
          formula.rotate_pairs(style, rotary_dim, to, from, turn);
          formula.copy_channels(rotary_dim, headdim, to, from);
        });
        call.check();
      }
    }
  }
}

TEST_CASE("flash-attention: seqlen_offsets, int or tensor", "[systems][flash_attention]") {
  const int64_t batch = 3, seqlen = 4, nheads = 2, headdim = 16, seqlen_ro = 20;
  const int64_t offsets[] = {0, 15, 18};  // the last runs past the table: those tokens are copied
  for (rope_style_t style : styles) {
    for (rope_dtype_t offset_dtype : std::vector<rope_dtype_t>{0, ROPE_DTYPE_I32, ROPE_DTYPE_I64}) {
      for (bool in_place : {false, true}) {
        RopeCall call(ROPE_DTYPE_BF16, headdim);
        call.config.style = style;
        call.config.theta = 0;
        const Array x = call.data({batch, seqlen, nheads, headdim});
        const Array out = in_place ? x : call.data({batch, seqlen, nheads, headdim});
        const Array cos = call.table(ROPE_DTYPE_BF16, {seqlen_ro, headdim / 2});
        const Array sin = call.table(ROPE_DTYPE_BF16, {seqlen_ro, headdim / 2});
        call.args.q = x.tensor();
        if (!in_place) call.args.q_out = out.tensor();
        call.args.cos = cos.tensor();
        call.args.sin = sin.tensor();
        if (offset_dtype) {
          const Array starts = call.positions(offset_dtype, {batch}, [&](const Shape &at) { return offsets[at[0]]; });
          call.args.start_positions = starts.tensor();
        } else {
          call.args.position_offset = 7;
        }
        Formula &formula = call.formula(x, out);
        for_each({batch, seqlen, nheads}, [&](const Shape &at) {
          const auto to = [&](int64_t c) { return out.at({at[0], at[1], at[2], c}); };
          const auto from = [&](int64_t c) { return x.at({at[0], at[1], at[2], c}); };
          const int64_t row = at[1] + (offset_dtype ? offsets[at[0]] : 7);
          const auto turn = [&](int64_t i) { return Rotation{cos.value({row, i}), sin.value({row, i})}; };
          if (row < seqlen_ro) {
            formula.rotate_pairs(style, headdim, to, from, turn);
          } else if (!in_place) {
            formula.copy_channels(0, headdim, to, from);
          }
        });
        call.check();
      }
    }
  }
}

TEST_CASE("flash-attention: varlen with cu_seqlens", "[systems][flash_attention]") {
  const int64_t sequences = 4, padded = 12, nheads = 2, headdim = 24, rotary_dim = 16, seqlen_ro = 30;
  const int64_t cu_seqlens[] = {0, 3, 3, 10, 11};  // one is empty; the twelfth token is the padding of a captured graph
  const int64_t offsets[] = {2, 9, 0, 22};
  for (rope_dtype_t dtype : integers) {
    for (rope_style_t style : styles) {
      for (bool has_offsets : {false, true}) {
        RopeCall call(ROPE_DTYPE_F16, headdim);
        call.config.layout = ROPE_LAYOUT_THD;
        call.config.style = style;
        call.config.rotary_dim = rotary_dim;
        call.config.theta = 0;
        const Array x = call.data({padded, nheads, headdim}), out = call.data({padded, nheads, headdim});
        const Array cos = call.table(ROPE_DTYPE_F32, {seqlen_ro, rotary_dim / 2});
        const Array sin = call.table(ROPE_DTYPE_F32, {seqlen_ro, rotary_dim / 2});
        const Array bounds = call.positions(dtype, {sequences + 1}, [&](const Shape &at) { return cu_seqlens[at[0]]; });
        const Array starts = call.positions(dtype, {sequences}, [&](const Shape &at) { return offsets[at[0]]; });
        call.args.q = x.tensor();
        call.args.q_out = out.tensor();
        call.args.cos = cos.tensor();
        call.args.sin = sin.tensor();
        call.args.cu_seqlens = bounds.tensor();
        if (has_offsets) call.args.start_positions = starts.tensor();
        Formula &formula = call.formula(x, out);
        for (int64_t b = 0; b < sequences; ++b) {
          for (int64_t t = cu_seqlens[b]; t < cu_seqlens[b + 1]; ++t) {
            const int64_t row = t - cu_seqlens[b] + (has_offsets ? offsets[b] : 0);
            for (int64_t h = 0; h < nheads; ++h) {
              const auto to = [&](int64_t c) { return out.at({t, h, c}); };
              const auto from = [&](int64_t c) { return x.at({t, h, c}); };
              const auto turn = [&](int64_t i) { return Rotation{cos.value({row, i}), sin.value({row, i})}; };
              formula.rotate_pairs(style, rotary_dim, to, from, turn);
              formula.copy_channels(rotary_dim, headdim, to, from);
            }
          }
        }
        call.check();
      }
    }
  }
}

TEST_CASE("flash-attention: packed qkv", "[systems][flash_attention]") {
  const int64_t batch = 2, seqlen = 3, headdim = 16;
  for (bool is_gqa : {false, true}) {
    const int64_t q_heads = 4, k_heads = is_gqa ? 2 : 4, heads = q_heads + 2 * k_heads;
    RopeCall call(ROPE_DTYPE_F32, headdim);
    call.config.theta = 0;
    const Array qkv = is_gqa ? call.data({batch, seqlen, heads, headdim}) : call.data({batch, seqlen, 3, 4, headdim});
    const Array cos = call.table(ROPE_DTYPE_F32, {seqlen, headdim / 2});
    const Array sin = call.table(ROPE_DTYPE_F32, {seqlen, headdim / 2});
    const rope_tensor_t all = qkv.as({batch, seqlen, heads, headdim});
    call.args.q = narrow(all, 2, 0, q_heads);
    call.args.k = narrow(all, 2, q_heads, k_heads);
    call.args.cos = cos.tensor();
    call.args.sin = sin.tensor();
    Formula &formula = call.formula(qkv);
    for_each({batch, seqlen, q_heads + k_heads}, [&](const Shape &at) {
      const auto element = [&](int64_t c) {
        return is_gqa ? qkv.at({at[0], at[1], at[2], c}) : qkv.at({at[0], at[1], at[2] / 4, at[2] % 4, c});
      };
      const auto turn = [&](int64_t i) { return Rotation{cos.value({at[1], i}), sin.value({at[1], i})}; };
      formula.rotate_pairs(ROPE_STYLE_HALF, headdim, element, element, turn);
    });
    call.check();
  }
}

TEST_CASE("flash-attention: conjugate", "[systems][flash_attention]") {
  const int64_t batch = 2, seqlen = 5, nheads = 2, headdim = 16;
  RopeCall call(ROPE_DTYPE_F32, headdim);
  call.config.theta = 0;
  const Array x = call.data({batch, seqlen, nheads, headdim});
  const Array cos = call.table(ROPE_DTYPE_F32, {seqlen, headdim / 2});
  const Array sin = call.table(ROPE_DTYPE_F32, {seqlen, headdim / 2});
  call.args.q = x.tensor();
  call.args.cos = cos.tensor();
  call.args.sin = sin.tensor();
  Formula &formula = call.formula(x);
  Formula conjugate;
  for_each({batch, seqlen, nheads}, [&](const Shape &at) {
    const auto element = [&](int64_t c) { return x.at({at[0], at[1], at[2], c}); };
    const auto turn = [&](int64_t i) { return Rotation{cos.value({at[1], i}), sin.value({at[1], i})}; };
    const auto turn_back = [&](int64_t i) { return Rotation{turn(i).cos, -turn(i).sin}; };
    formula.rotate_pairs(ROPE_STYLE_HALF, headdim, element, element, turn);
    conjugate.rotate_pairs(ROPE_STYLE_HALF, headdim, element, element, turn_back);
  });
  CHECK(formula.transposed() == conjugate);
  call.check(Direction::Backward);
}

TEST_CASE("flash-attention: offsets and sequences in every dtype", "[systems][flash_attention]") {
  for (rope_dtype_t dtype : floating) {
    for (rope_style_t style : styles) {
      RopeCase rope = RopeCase().dtype(dtype).style(style).heads(4, 2).head_dim(64).rotary_dim(32).theta(0).tables(40);
      const PositionValue starts = [](int64_t batch, int64_t) { return 7 * batch; };
      RopeCase(rope).batch(3).start_positions(PositionShape::PerBatch, ROPE_DTYPE_I32, starts).out_of_place().check();
      RopeCase(rope)
          .layout(ROPE_LAYOUT_THD)
          .tokens(19)
          .sequences({0, 5, 5, 17})
          .start_positions(PositionShape::PerBatch, ROPE_DTYPE_I64, starts)
          .check();
    }
  }
}
