// SPDX-License-Identifier: Apache-2.0
// apex_tests.cpp - apex's fused_rope, which GPT-NeoX copies: t sbhd with all strides, halves, freqs (s, 1, 1, d2) of
// F32 angles or cached cos and sin of that shape, channels past d2 copied; thd with cu_seqlens; 2-D image grids
//
// freqs, cos and sin have a column for each channel, and the two columns of a pair may differ. apex rounds cos, sin,
// products and sums to the data's type, like rotation_rounding; without that option librope rounds once.
#include <catch2/catch_test_macros.hpp>

#include "support/cases.hpp"
#include "system.hpp"

using namespace systems;

namespace {

// dst = src * cos + rotate_half(src) * sin over d2 channels, each with the cosine and sine of its own column.
void rotate_half(Formula &formula, int64_t d2, const Element &to, const Element &from, const Turn &turn) {
  for (int64_t c = 0; c < d2; ++c) {
    const bool is_first = c < d2 / 2;
    formula.add(to(c), from(c), turn(c).cos);
    formula.add(to(c), from(is_first ? c + d2 / 2 : c - d2 / 2), is_first ? -turn(c).sin : turn(c).sin);
  }
}

// `cached` is the type of cos and sin; 0: angles.
void check_sbhd(rope_dtype_t dtype, rope_dtype_t cached, int64_t d2, bool rounds_each) {
  const int64_t s = 5, b = 2, h = 3, d = 20;
  RopeCall call(dtype, static_cast<int32_t>(d));
  if (rounds_each) call.round_each();
  call.config.layout = ROPE_LAYOUT_SBHD;
  call.config.rotary_dim = static_cast<int32_t>(d2);
  call.config.theta = 0;
  const Array t = call.data({h, d, b, s});  // stride_d is not 1
  // transpose_output_memory: the output is (s, b, h, d) over memory (b, s, h, d)
  const Array out = call.data({b, s, h, d});
  call.args.q = permuted(t.tensor(), {3, 2, 0, 1});
  call.args.q_out = permuted(out.tensor(), {1, 0, 2, 3});
  const Array freqs = call.angles(ROPE_DTYPE_F32, {s, 1, 1, d2});
  const Array cos = call.table(cached ? cached : ROPE_DTYPE_F32, {s, 1, 1, d2});
  const Array sin = call.table(cached ? cached : ROPE_DTYPE_F32, {s, 1, 1, d2});
  if (cached) {
    call.args.cos = cos.as({s, d2});
    call.args.sin = sin.as({s, d2});
  } else {
    call.args.angles = freqs.as({s, d2});
  }
  Formula &formula = call.formula(t, out);
  for_each({s, b, h}, [&](const Shape &at) {
    const auto to = [&](int64_t c) { return out.at({at[1], at[0], at[2], c}); };
    const auto from = [&](int64_t c) { return t.at({at[2], c, at[1], at[0]}); };
    const auto turn = [&](int64_t c) {
      const Shape cell = {at[0], 0, 0, c};
      return cached ? Rotation{cos.value(cell), sin.value(cell)} : by_angle(freqs.value(cell));
    };
    rotate_half(formula, d2, to, from, turn);
    formula.copy_channels(d2, d, to, from);
  });
  call.check();
}

}  // namespace

TEST_CASE("apex: sbhd with all strides, angles or cached cos and sin, partial d2", "[systems][apex]") {
  for (rope_dtype_t dtype : floating) {
    for (rope_dtype_t cached : std::vector<rope_dtype_t>{0, ROPE_DTYPE_F32, dtype}) {
      for (int64_t d2 : {20, 12}) check_sbhd(dtype, cached, d2, false);
    }
  }
}

TEST_CASE("apex: cached cos and sin of 16 bits, each operation rounded, bit for bit", "[systems][apex]") {
  for (rope_dtype_t dtype : {ROPE_DTYPE_F16, ROPE_DTYPE_BF16}) {
    for (rope_dtype_t cached : std::vector<rope_dtype_t>{ROPE_DTYPE_F32, dtype}) {
      for (int64_t d2 : {20, 12}) check_sbhd(dtype, cached, d2, true);
    }
  }
}

TEST_CASE("apex: thd with cu_seqlens", "[systems][apex]") {
  const int64_t t = 13, h = 2, d = 16, d2 = 12, max_s = 8, sequences = 3;
  const int64_t cu_seqlens[] = {0, 4, 5, 13};
  for (rope_dtype_t dtype : floating) {
    for (bool in_place : {false, true}) {
      RopeCall call(dtype, d);
      call.config.layout = ROPE_LAYOUT_THD;
      call.config.rotary_dim = d2;
      call.config.theta = 0;
      const Array src = call.data({t, h, d}), dst = in_place ? src : call.data({t, h, d});
      const Array freqs = call.angles(ROPE_DTYPE_F32, {max_s, 1, 1, d2});
      const Array bounds =
          call.positions(ROPE_DTYPE_I32, {sequences + 1}, [&](const Shape &at) { return cu_seqlens[at[0]]; });
      call.args.q = src.tensor();
      if (!in_place) call.args.q_out = dst.tensor();
      call.args.angles = freqs.as({max_s, d2});
      call.args.cu_seqlens = bounds.tensor();
      Formula &formula = call.formula(src, dst);
      for (int64_t b = 0; b < sequences; ++b) {
        for (int64_t token = cu_seqlens[b]; token < cu_seqlens[b + 1]; ++token) {
          for (int64_t head = 0; head < h; ++head) {
            const auto to = [&](int64_t c) { return dst.at({token, head, c}); };
            const auto from = [&](int64_t c) { return src.at({token, head, c}); };
            const int64_t row = token - cu_seqlens[b];
            const auto turn = [&](int64_t c) { return by_angle(freqs.value({row, 0, 0, c})); };
            rotate_half(formula, d2, to, from, turn);
            if (!in_place) formula.copy_channels(d2, d, to, from);
          }
        }
      }
      call.check();
    }
  }
}

// t (b, ih, iw, h, d), out (b, ih*iw, h, d). The first d/2 channels are rotated by cos_h and sin_h (1, H, 1, d/2) of
// the row, the others by cos_w and sin_w (1, W, 1, d/2) of the column; each half has its own halves.

TEST_CASE("apex: image grid in one call", "[systems][apex]") {
  const int64_t b = 2, ih = 3, iw = 4, h = 2, d = 16, rows = 6;
  const std::vector<int32_t> pair_axis = {0, 0, 0, 0, 1, 1, 1, 1};
  for (rope_dtype_t dtype : floating) {
    RopeCall call(dtype, d);
    call.config.theta = 0;
    call.config.num_axes = 2;
    call.config.pair_axis = pair_axis.data();
    call.config.pair_block = d / 2;
    const Array t = call.data({b, ih, iw, h, d}), out = call.data({b, ih * iw, h, d});
    const auto table = [&] { return call.table(ROPE_DTYPE_F32, {1, rows, 1, d / 2}); };
    const Array cos_h = table(), sin_h = table(), cos_w = table(), sin_w = table();
    // The only copy, made once per model: the four tables become two.
    const auto beside = [&](const Array &by_height, const Array &by_width) {
      return call.values(ROPE_DTYPE_F32, {rows, d}, [&](const Shape &at) {
        return (at[1] < d / 2 ? by_height : by_width).value({0, at[0], 0, at[1] % (d / 2)});
      });
    };
    const Array cos = beside(cos_h, cos_w), sin = beside(sin_h, sin_w);
    // Row and column of each token, once for an image size.
    const Array grid = call.positions(ROPE_DTYPE_I32, {2, ih * iw},
                                      [&](const Shape &at) { return at[0] == 0 ? at[1] / iw : at[1] % iw; });
    call.args.q = t.as({b, ih * iw, h, d});
    call.args.q_out = out.tensor();
    call.args.cos = cos.tensor();
    call.args.sin = sin.tensor();
    call.args.positions = grid.tensor();
    Formula &formula = call.formula(t, out);
    for_each({b, ih, iw, h}, [&](const Shape &at) {
      for (int64_t axis : {0, 1}) {
        const int64_t row = at[1 + axis], first = axis * d / 2;
        const auto to = [&](int64_t c) { return out.at({at[0], at[1] * iw + at[2], at[3], first + c}); };
        const auto from = [&](int64_t c) { return t.at({at[0], at[1], at[2], at[3], first + c}); };
        const auto turn = [&](int64_t c) {
          const Shape cell = {0, row, 0, c};
          return axis == 0 ? Rotation{cos_h.value(cell), sin_h.value(cell)}
                           : Rotation{cos_w.value(cell), sin_w.value(cell)};
        };
        rotate_half(formula, d / 2, to, from, turn);
      }
    });
    call.check();
  }
}

TEST_CASE("apex: image grid in two calls, without a copy", "[systems][apex]") {
  const int64_t b = 2, ih = 3, iw = 4, h = 2, d = 16, rows = 6;
  for (rope_dtype_t dtype : floating) {
    for (int64_t axis : {0, 1}) {
      RopeCall call(dtype, d / 2);
      call.config.theta = 0;
      const Array t = call.data({b, ih, iw, h, d}), out = call.data({b, ih * iw, h, d});
      const Array cos = call.table(ROPE_DTYPE_F32, {1, rows, 1, d / 2});
      const Array sin = call.table(ROPE_DTYPE_F32, {1, rows, 1, d / 2});
      // Each row of an image is a batch. Its tokens have one row number, by stride 0, and their index as column number.
      const Array row_of = call.positions(ROPE_DTYPE_I32, {b * ih, 1}, [&](const Shape &at) { return at[0] % ih; });
      call.args.q = narrow(t.as({b * ih, iw, h, d}), 3, axis * d / 2, d / 2);
      call.args.q_out = narrow(out.as({b * ih, iw, h, d}), 3, axis * d / 2, d / 2);
      call.args.cos = cos.as({rows, d / 2});
      call.args.sin = sin.as({rows, d / 2});
      if (axis == 0) call.args.positions = expanded(row_of.tensor(), 1, iw);
      Formula &formula = call.formula(t, out);
      for_each({b, ih, iw, h}, [&](const Shape &at) {
        const int64_t row = at[1 + axis], first = axis * d / 2;
        const auto to = [&](int64_t c) { return out.at({at[0], at[1] * iw + at[2], at[3], first + c}); };
        const auto from = [&](int64_t c) { return t.at({at[0], at[1], at[2], at[3], first + c}); };
        const auto turn = [&](int64_t c) { return Rotation{cos.value({0, row, 0, c}), sin.value({0, row, 0, c})}; };
        rotate_half(formula, d / 2, to, from, turn);
      });
      call.check();
    }
  }
}

TEST_CASE("apex: angles of every dtype and both widths", "[systems][apex]") {
  for (rope_dtype_t dtype : floating) {
    for (rope_dtype_t angles : {ROPE_DTYPE_F32, ROPE_DTYPE_F16, ROPE_DTYPE_BF16}) {
      for (TableWidth width : {TableWidth::Pairs, TableWidth::Channels}) {
        RopeCase rope = RopeCase()
                            .dtype(dtype)
                            .layout(ROPE_LAYOUT_SBHD)
                            .heads(3, 2)
                            .head_dim(48)
                            .rotary_dim(32)
                            .theta(0)
                            .table_dtype(angles);
        RopeCase(rope).tables_by_token().table_width(width).angles(300).out_of_place().check();
        RopeCase(rope).tables(9).table_width(width).angles(300).check();
      }
    }
  }
}
