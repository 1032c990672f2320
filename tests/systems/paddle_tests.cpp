// SPDX-License-Identifier: Apache-2.0
// paddle_tests.cpp - Paddle's fused_rotary_position_embedding: q with optional k and v, [B, S, H, D] or time-major
// [S, B, H, D], sin and cos [S, D] or [1, S, 1, D] of full width, position_ids [B, S]
//
// use_neox_rotary_style is true for rotate_every_two, the opposite of the usual meaning. Without tables, Paddle's
// rotate_half gives the two members of a pair different angles; librope rotates the pair by the first one's.
#include <catch2/catch_test_macros.hpp>
#include <cmath>

#include "support/cases.hpp"
#include "system.hpp"

using namespace systems;

namespace {

// The other channel of a channel's pair, and the sign of sin for it.
struct Partner {
  int64_t channel;
  int sign;
};

Partner partner_of(int64_t channel, int64_t width, bool every_two) {
  if (every_two) return channel % 2 ? Partner{channel - 1, 1} : Partner{channel + 1, -1};
  return channel < width / 2 ? Partner{channel + width / 2, -1} : Partner{channel - width / 2, 1};
}

struct Problem {
  bool every_two, time_major, has_position_ids, is_rank_4, in_place;
};

void check(rope_dtype_t dtype, const Problem &problem) {
  const int64_t batch = 2, seq = 4, head_dim = 12, rows = problem.has_position_ids ? 9 : seq;
  const int64_t heads[] = {3, 1, 2};
  RopeCall call(dtype, head_dim);
  call.config.layout = problem.time_major ? ROPE_LAYOUT_SBHD : ROPE_LAYOUT_BSHD;
  call.config.style = problem.every_two ? ROPE_STYLE_INTERLEAVED : ROPE_STYLE_HALF;
  call.config.theta = 0;
  const Shape table = problem.is_rank_4 ? Shape{1, rows, 1, head_dim} : Shape{rows, head_dim};
  const Array sin = call.table(dtype, table), cos = call.table(dtype, table);
  const Array ids =
      call.positions(ROPE_DTYPE_I64, {batch, seq}, [&](const Shape &at) { return (5 * at[0] + 2 * at[1] + 3) % rows; });
  call.args.sin = sin.as({rows, head_dim});
  call.args.cos = cos.as({rows, head_dim});
  if (problem.has_position_ids) call.args.positions = ids.tensor();
  rope_tensor_t *const in_views[] = {&call.args.q, &call.args.k, &call.args.v};
  rope_tensor_t *const out_views[] = {&call.args.q_out, &call.args.k_out, &call.args.v_out};
  for (int i = 0; i < 3; ++i) {
    const Shape shape =
        problem.time_major ? Shape{seq, batch, heads[i], head_dim} : Shape{batch, seq, heads[i], head_dim};
    const Array in = call.data(shape), out = problem.in_place ? in : call.data(shape);
    *in_views[i] = in.tensor();
    if (!problem.in_place) *out_views[i] = out.tensor();
    Formula &formula = call.formula(in, out);
    Formula gradient;
    for_each(shape, [&](const Shape &at) {
      const int64_t b = at[problem.time_major ? 1 : 0], s = at[problem.time_major ? 0 : 1], c = at[3];
      const int64_t row = problem.has_position_ids ? ids.integer({b, s}) : s;
      const auto cell = [&](const Array &array, int64_t channel) {
        return problem.is_rank_4 ? array.value({0, row, 0, channel}) : array.value({row, channel});
      };
      const Partner partner = partner_of(c, head_dim, problem.every_two);
      const Shape other = {at[0], at[1], at[2], partner.channel};
      // out = x * cos + rotate(x) * sin, each channel with its own column
      formula.add(out.at(at), in.at(at), cell(cos, c));
      formula.add(out.at(at), in.at(other), partner.sign * cell(sin, c));
      // dx = dout * cos - rotate(dout * sin): the partner's column of sin
      gradient.add(in.at(at), out.at(at), cell(cos, c));
      gradient.add(in.at(at), out.at(other), -partner.sign * cell(sin, partner.channel));
    });
    CHECK(formula.transposed() == gradient);
  }
  call.check();
}

}  // namespace

TEST_CASE("Paddle: rotate_half and rotate_every_two, columns that differ", "[systems][paddle]") {
  for (rope_dtype_t dtype : floating) {
    for (bool every_two : {false, true}) {
      for (bool in_place : {false, true}) check(dtype, {every_two, false, false, false, in_place});
    }
  }
}

TEST_CASE("Paddle: time_major", "[systems][paddle]") {
  for (rope_dtype_t dtype : floating) {
    for (bool every_two : {false, true}) check(dtype, {every_two, true, false, false, false});
  }
}

TEST_CASE("Paddle: tables of rank 4", "[systems][paddle]") {
  for (bool every_two : {false, true}) check(ROPE_DTYPE_F16, {every_two, false, false, true, false});
}

TEST_CASE("Paddle: position_ids into longer tables", "[systems][paddle]") {
  for (rope_dtype_t dtype : floating) {
    for (bool every_two : {false, true}) {
      for (bool time_major : {false, true}) check(dtype, {every_two, time_major, true, true, false});
    }
  }
}

TEST_CASE("Paddle: rotary_emb_base", "[systems][paddle]") {
  const int64_t batch = 2, seq = 5, heads = 2, head_dim = 10;
  for (rope_dtype_t dtype : floating) {
    for (bool every_two : {false, true}) {
      for (double base : {10000.0, 5e5}) {
        RopeCall call(dtype, head_dim);
        call.config.style = every_two ? ROPE_STYLE_INTERLEAVED : ROPE_STYLE_HALF;
        call.config.theta = base;
        const Array q = call.data({batch, seq, heads, head_dim}), out_q = call.data({batch, seq, heads, head_dim});
        call.args.q = q.tensor();
        call.args.q_out = out_q.tensor();
        Formula &formula = call.formula(q, out_q);
        for_each(q.shape, [&](const Shape &at) {
          const Partner partner = partner_of(at[3], head_dim, every_two);
          const int64_t pair = every_two ? at[3] / 2 : at[3] % (head_dim / 2);
          const Real angle = at[1] * frequency(base, pair, head_dim);
          formula.add(out_q.at(at), q.at(at), std::cos(angle));
          formula.add(out_q.at(at), q.at({at[0], at[1], at[2], partner.channel}), partner.sign * std::sin(angle));
        });
        call.check();
      }
    }
  }
}

TEST_CASE("Paddle: q, q and k, or all three", "[systems][paddle]") {
  for (rope_dtype_t dtype : floating) {
    for (rope_style_t style : styles) {
      for (rope_layout_t layout : {ROPE_LAYOUT_BSHD, ROPE_LAYOUT_SBHD}) {
        RopeCase rope = RopeCase().dtype(dtype).style(style).layout(layout).head_dim(32).theta(0).table_dtype(dtype);
        rope.tables(9).table_width(TableWidth::Channels);
        RopeCase(rope).heads(4).out_of_place().check();
        RopeCase(rope).heads(4, 2).out_of_place().check();
        RopeCase(rope)
            .heads(4, 2, 2)
            .positions(PositionShape::PerBatchAndToken, ROPE_DTYPE_I64,
                       [](int64_t batch, int64_t token) { return (4 * batch + token) % 9; })
            .check();
      }
    }
  }
}
