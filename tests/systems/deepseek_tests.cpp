// SPDX-License-Identifier: Apache-2.0
// deepseek_tests.cpp - the rope of multi-head latent attention (DeepSeek, Megatron's fused MLA kernels): channels are
// read in neighbouring pairs and written in halves; only the tail of a head is rotated; k_pe is one head
//
// The name of Megatron's remove_interleaving is the opposite of its kernel's effect; style and out_style name the two
// orders.
#include <catch2/catch_test_macros.hpp>

#include "support/cases.hpp"
#include "system.hpp"

using namespace systems;

namespace {

// DeepSeek's modelling code: view(..., R/2, 2).transpose, then x * cos + rotate_half(x) * sin; each channel has its own
// column of cosine and sine.
void deinterleave_and_rotate(Formula &formula, int64_t rotary_dim, const Element &to, const Element &from,
                             const Turn &turn) {
  const int64_t half = rotary_dim / 2;
  const auto gathered = [&](int64_t c) { return c < half ? from(2 * c) : from(2 * (c - half) + 1); };
  for (int64_t c = 0; c < rotary_dim; ++c) {
    formula.add(to(c), gathered(c), turn(c).cos);
    formula.add(to(c), gathered(c < half ? c + half : c - half), c < half ? -turn(c).sin : turn(c).sin);
  }
}

Rotation by_position(int64_t position, int64_t channel, int64_t rotary_dim) {
  return by_angle(position * frequency(10000, channel % (rotary_dim / 2), rotary_dim));
}

}  // namespace

TEST_CASE("DeepSeek: tail of q, k_pe without a head axis", "[systems][deepseek]") {
  const int64_t b = 2, s = 5, heads = 3, nope = 10, rotary_dim = 16;
  for (rope_dtype_t dtype : floating) {
    for (bool in_place : {true, false}) {
      RopeCall call(dtype, rotary_dim);
      call.config.style = ROPE_STYLE_INTERLEAVED;
      call.config.out_style = ROPE_STYLE_HALF;
      const Array q = call.data({b, s, heads, nope + rotary_dim}), k_pe = call.data({b, s, rotary_dim});
      const Array q_out = in_place ? q : call.data({b, s, heads, nope + rotary_dim});
      const Array k_out = in_place ? k_pe : call.data({b, s, rotary_dim});
      const Array ids = call.positions(ROPE_DTYPE_I64, {b, s}, [](const Shape &at) { return 1000 * at[0] + at[1]; });
      const auto tail = [&](const Array &array) { return narrow(array.tensor(), 3, nope, rotary_dim); };
      call.args.q = tail(q);
      call.args.k = k_pe.as({b, s, 1, rotary_dim});
      if (!in_place) call.args.q_out = tail(q_out);
      if (!in_place) call.args.k_out = k_out.as({b, s, 1, rotary_dim});
      call.args.positions = ids.tensor();
      Formula &q_formula = call.formula(q, q_out);
      Formula &k_formula = call.formula(k_pe, k_out);
      for_each({b, s}, [&](const Shape &at) {
        const auto turn = [&](int64_t c) { return by_position(ids.integer(at), c, rotary_dim); };
        for (int64_t h = 0; h < heads; ++h) {
          const auto to = [&](int64_t c) { return q_out.at({at[0], at[1], h, nope + c}); };
          const auto from = [&](int64_t c) { return q.at({at[0], at[1], h, nope + c}); };
          deinterleave_and_rotate(q_formula, rotary_dim, to, from, turn);
        }
        const auto to = [&](int64_t c) { return k_out.at({at[0], at[1], c}); };
        const auto from = [&](int64_t c) { return k_pe.at({at[0], at[1], c}); };
        deinterleave_and_rotate(k_formula, rotary_dim, to, from, turn);
      });
      call.check();
    }
  }
}

TEST_CASE("Megatron MLA: thd, full-width tables, nope part untouched or copied", "[systems][deepseek]") {
  const int64_t t = 9, heads = 2, nope = 6, rotary_dim = 8, d = nope + rotary_dim, max_s = 7, sequences = 2;
  const int64_t cu_seqlens[] = {0, 6, 9};
  for (rope_dtype_t dtype : floating) {
    for (bool in_place : {true, false}) {
      // rotary_offset has the effect of a narrow and, out of place, copies the other channels.
      RopeCall call(dtype, d);
      call.config.layout = ROPE_LAYOUT_THD;
      call.config.style = ROPE_STYLE_INTERLEAVED;
      call.config.out_style = ROPE_STYLE_HALF;
      call.config.rotary_offset = nope;
      call.config.rotary_dim = rotary_dim;
      call.config.theta = 0;
      const Array q = call.data({t, heads, d}), out = in_place ? q : call.data({t, heads, d});
      const Array cos = call.table(ROPE_DTYPE_F32, {max_s, 1, 1, rotary_dim});
      const Array sin = call.table(ROPE_DTYPE_F32, {max_s, 1, 1, rotary_dim});
      const Array bounds =
          call.positions(ROPE_DTYPE_I32, {sequences + 1}, [&](const Shape &at) { return cu_seqlens[at[0]]; });
      call.args.q = q.tensor();
      if (!in_place) call.args.q_out = out.tensor();
      call.args.cos = cos.as({max_s, rotary_dim});
      call.args.sin = sin.as({max_s, rotary_dim});
      call.args.cu_seqlens = bounds.tensor();
      Formula &formula = call.formula(q, out);
      for (int64_t b = 0; b < sequences; ++b) {
        for (int64_t token = cu_seqlens[b]; token < cu_seqlens[b + 1]; ++token) {
          for (int64_t h = 0; h < heads; ++h) {
            const int64_t row = token - cu_seqlens[b];
            const auto to = [&](int64_t c) { return out.at({token, h, c}); };
            const auto from = [&](int64_t c) { return q.at({token, h, c}); };
            const auto turn = [&](int64_t c) { return Rotation{cos.value({row, 0, 0, c}), sin.value({row, 0, 0, c})}; };
            deinterleave_and_rotate(
                formula, rotary_dim, [&](int64_t c) { return to(nope + c); }, [&](int64_t c) { return from(nope + c); },
                turn);
            if (!in_place) formula.copy_channels(0, nope, to, from);
          }
        }
      }
      call.check();
    }
  }
}

TEST_CASE("Megatron MLA: one k head into every head of key", "[systems][deepseek]") {
  // The gradient of the only head is a sum over heads, which is not a rotation: add up the heads' gradients, then
  // rotate the sum back as one head.
  const int64_t s = 4, b = 2, heads = 3, nope = 6, rotary_dim = 8;
  for (rope_dtype_t dtype : floating) {
    RopeCall call(dtype, rotary_dim);
    call.config.layout = ROPE_LAYOUT_SBHD;
    call.config.style = ROPE_STYLE_INTERLEAVED;
    call.config.out_style = ROPE_STYLE_HALF;
    const Array k_pos_emb = call.data({s, b, 1, rotary_dim}), key = call.data({s, b, heads, nope + rotary_dim});
    call.args.q = expanded(k_pos_emb.tensor(), 2, heads);
    call.args.q_out = narrow(key.tensor(), 3, nope, rotary_dim);
    Formula &formula = call.formula(k_pos_emb, key);
    for_each({s, b, heads}, [&](const Shape &at) {
      const auto to = [&](int64_t c) { return key.at({at[0], at[1], at[2], nope + c}); };
      const auto from = [&](int64_t c) { return k_pos_emb.at({at[0], at[1], 0, c}); };
      const auto turn = [&](int64_t c) { return by_position(at[0], c, rotary_dim); };
      deinterleave_and_rotate(formula, rotary_dim, to, from, turn);
    });
    call.check(Direction::Forward);
  }
}

TEST_CASE("DeepSeek: style in, out_style out", "[systems][deepseek]") {
  for (rope_dtype_t dtype : floating) {
    for (rope_style_t style : styles) {
      for (rope_style_t out_style : styles) {
        for (int32_t rotary_dim : {2, 6, 64}) {
          RopeCase rope = RopeCase().dtype(dtype).style(style).out_style(out_style).heads(16, 1).head_dim(192);
          rope.rotary_offset(128).rotary_dim(rotary_dim);
          RopeCase(rope).check();
          RopeCase(rope).out_of_place().check();
        }
      }
    }
  }
}
