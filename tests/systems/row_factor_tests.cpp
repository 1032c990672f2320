// SPDX-License-Identifier: Apache-2.0
// row_factor_tests.cpp - factors of a token, or of a token and head, that models apply to q, k and v
//
// Mistral rounds the products of its rotation to the data's type, librope does not. In both, a factor in the data's
// type has that precision.
#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <cmath>
#include <vector>

#include "step_system.hpp"
#include "support/random.hpp"

using namespace systems;

namespace {

constexpr int64_t batch = 2, seq = 7;

// `heads` heads of one width, beginning at a column of [T, columns].
rope_tensor_t heads_of(const Array &array, int64_t first, int64_t heads, int64_t width) {
  rope_tensor_t view = narrow(array.tensor(), 1, first, heads * width);
  view.ndim = 3;
  view.shape[1] = heads;
  view.stride[1] = width;
  view.shape[2] = width;
  view.stride[2] = 1;
  return view;
}

}  // namespace

// q * (log1p(floor((position + 1) / floor_scale)) * attn_scale + 1) on layers without a rotation, in fp32.
TEST_CASE("Llama-4: temperature of q on layers without positions", "[systems][step]") {
  const int64_t heads = 5, head_dim = 128, first_position = 8188;
  const Real floor_scale = 8192, attn_scale = 0.1L;
  for (rope_dtype_t dtype : serving) {
    RopeCall call(dtype, head_dim);
    const Arithmetic arithmetic(dtype);
    call.config.theta = 0;
    const Array query = call.data({batch, seq, heads * head_dim});
    const Array attn_scales = call.values(ROPE_DTYPE_F32, {1, seq}, [&](const Shape &at) {
      const Real position = static_cast<Real>(first_position + at[1]);
      return std::log1p(std::floor((position + 1) / floor_scale)) * attn_scale + 1;
    });
    rope_input_args_t input = ROPE_INPUT_ARGS_INIT;
    input.q_row_factor = attn_scales.tensor();
    call.args.flags = ROPE_FLAG_UNROTATED;
    call.args.q = query.as({batch, seq, heads, head_dim});
    call.args.input = &input;
    Outcome &outcome = call.outcome(query);
    for_each({batch, seq}, [&](const Shape &at) {
      const int64_t first = query.at({at[0], at[1], 0});
      expect(outcome, first, arithmetic.scaled(read(query, first, heads * head_dim), attn_scales.value({0, at[1]})));
    });
    call.check(Direction::Forward);
  }
}

// The factor is applied after the rotation and a following norm without weights, in one rounding.
TEST_CASE("Llama-4: temperature of q behind the rotation and the norm", "[systems][step]") {
  const int64_t heads = 5, k_heads = 2, head_dim = 128, max_position = 23;
  for (rope_dtype_t dtype : serving) {
    for (bool is_by_head : {false, true}) {
      RopeCall call(dtype, head_dim);
      const Arithmetic arithmetic(dtype);
      Norm norm;
      norm.eps = 1e-5;
      norm.fill(call.config);
      call.config.norm_order = ROPE_NORM_ORDER_AFTER;
      call.config.style = ROPE_STYLE_INTERLEAVED;
      const Array q = call.data({batch, seq, heads, head_dim}), k = call.data({batch, seq, k_heads, head_dim});
      const Array factors = call.table(ROPE_DTYPE_F32, {batch, seq, heads});
      const Array table = call.table(ROPE_DTYPE_F32, {max_position, head_dim});
      const Array positions = call.positions(
          ROPE_DTYPE_I64, {batch, seq}, [](const Shape &at) { return (at[0] * 5 + at[1] * 9 + 4) % max_position; });
      const rope_norm_args_t norms = ROPE_NORM_ARGS_INIT;
      rope_input_args_t input = ROPE_INPUT_ARGS_INIT;
      input.q_row_factor = is_by_head ? factors.tensor() : select(factors.tensor(), 2, 0);
      call.args.q = q.tensor();
      call.args.k = k.tensor();
      call.args.positions = positions.tensor();
      call.args.norm = &norms;
      call.args.input = &input;
      take_cos_sin(call, table);
      const auto normed = [&](const Array &array, const Shape &at) {
        const Row row = read(array, array.at({at[0], at[1], at[2], 0}), head_dim);
        const TurnRanges turns = turns_of(arithmetic, table, positions.integer({at[0], at[1]}));
        return arithmetic.normed(norm, arithmetic.rotated(ROPE_STYLE_INTERLEAVED, 0, head_dim, row, turns), {});
      };
      Outcome &q_outcome = call.outcome(q), &k_outcome = call.outcome(k);
      for_each({batch, seq, heads}, [&](const Shape &at) {
        const Real factor = factors.value({at[0], at[1], is_by_head ? at[2] : 0});
        expect(q_outcome, q.at({at[0], at[1], at[2], 0}), arithmetic.scaled(normed(q, at), factor));
      });
      for_each({batch, seq, k_heads}, [&](const Shape &at) {
        expect(k_outcome, k.at({at[0], at[1], at[2], 0}), normed(k, at));
      });
      call.check(Direction::Forward);
    }
  }
}

// q * (1 + beta * log(1 + floor(position / M0))) after the rotation, with the factor in the data's type; cos and sin of
// each token include YaRN.
TEST_CASE("Ministral 3: a factor of q by position", "[systems][step]") {
  const int64_t heads = 4, k_heads = 2, head_dim = 128, pairs = head_dim / 2, original_max_position = 5;
  const Real beta = 0.1L;
  for (rope_dtype_t dtype : serving) {
    for (bool is_transposed : {false, true}) {
      RopeCall call(dtype, head_dim);
      const Arithmetic arithmetic(dtype);
      call.config.layout = is_transposed ? ROPE_LAYOUT_BHSD : ROPE_LAYOUT_BSHD;
      call.config.theta = 0;
      const Array q = call.data({batch, seq, heads, head_dim}), k = call.data({batch, seq, k_heads, head_dim});
      const Array cos = call.table(dtype, {batch, seq, pairs}), sin = call.table(dtype, {batch, seq, pairs});
      const Array factors = call.values(dtype, {batch, seq}, [&](const Shape &at) {
        const int64_t position = 3 * at[0] + at[1];
        return 1 + beta * std::log1p(std::floor(static_cast<Real>(position) / original_max_position));
      });
      rope_input_args_t input = ROPE_INPUT_ARGS_INIT;
      input.q_row_factor = factors.tensor();
      const auto view = [&](const Array &array) {
        return is_transposed ? permuted(array.tensor(), {0, 2, 1, 3}) : array.tensor();
      };
      call.args.q = view(q);
      call.args.k = view(k);
      call.args.cos = cos.tensor();
      call.args.sin = sin.tensor();
      call.args.table_rows = ROPE_TABLE_BY_TOKEN;
      call.args.input = &input;
      const auto rotated = [&](const Array &array, const Shape &at) {
        const Row row = read(array, array.at({at[0], at[1], at[2], 0}), head_dim);
        return arithmetic.rotated(ROPE_STYLE_HALF, 0, head_dim, row, [&](int64_t i) {
          return TurnRange{arithmetic.number(cos.value({at[0], at[1], i})),
                           arithmetic.number(sin.value({at[0], at[1], i}))};
        });
      };
      Outcome &q_outcome = call.outcome(q), &k_outcome = call.outcome(k);
      for_each({batch, seq, heads}, [&](const Shape &at) {
        expect(q_outcome, q.at({at[0], at[1], at[2], 0}),
               arithmetic.scaled(rotated(q, at), factors.value({at[0], at[1]})));
      });
      for_each({batch, seq, k_heads}, [&](const Shape &at) {
        expect(k_outcome, k.at({at[0], at[1], at[2], 0}), rotated(k, at));
      });
      call.check(Direction::Forward);
    }
  }
}

// v * v_scale, one number for all tokens; v has 128 channels, q and k have 192, and 64 of these are rotated.
TEST_CASE("MiMo V2: v times its scale, narrower than q and k", "[systems][step]") {
  const int64_t T = 11, heads = 4, k_heads = 2, head_dim = 192, rotary_dim = 64, v_head_dim = 128, max_position = 23;
  const int64_t first_k = heads * head_dim, first_v = first_k + k_heads * head_dim;
  for (rope_dtype_t dtype : serving) {
    RopeCall call(dtype, head_dim);
    const Arithmetic arithmetic(dtype);
    call.config.layout = ROPE_LAYOUT_THD;
    call.config.rotary_dim = rotary_dim;
    const Array qkv = call.data({T, first_v + k_heads * v_head_dim});
    const Array table = call.table(ROPE_DTYPE_F32, {max_position, rotary_dim});
    const Array positions =
        call.positions(ROPE_DTYPE_I64, {T}, [](const Shape &at) { return (at[0] * 9 + 4) % max_position; });
    const Array v_scale = scales(call, {0.707L});
    rope_input_args_t input = ROPE_INPUT_ARGS_INIT;
    input.v_row_factor = expanded(v_scale.tensor(), 0, T);
    call.args.flags = ROPE_FLAG_V_UNROTATED;
    call.args.q = heads_of(qkv, 0, heads, head_dim);
    call.args.k = heads_of(qkv, first_k, k_heads, head_dim);
    call.args.v = heads_of(qkv, first_v, k_heads, v_head_dim);
    call.args.positions = positions.tensor();
    call.args.input = &input;
    take_cos_sin(call, table);
    Outcome &outcome = call.outcome(qkv);
    for (int64_t t = 0; t < T; ++t) {
      const TurnRanges turns = turns_of(arithmetic, table, positions.integer({t}));
      for (int64_t h = 0; h < heads + k_heads; ++h) {
        const int64_t first = qkv.at({t, h * head_dim});
        expect(outcome, first, arithmetic.rotated(ROPE_STYLE_HALF, 0, rotary_dim, read(qkv, first, rotary_dim), turns));
      }
      const int64_t v = qkv.at({t, first_v});
      expect(outcome, v, arithmetic.scaled(read(qkv, v, k_heads * v_head_dim), v_scale.value({0})));
    }
    call.check(Direction::Forward);
  }
}

// q * sqrt(D) / max(|q|, eps), with the eps of the type, and k likewise, times a learned temperature of its head; then
// the first half of the channels is rotated. A norm with a tiny norm_eps has the same results for heads that are at
// least as long as eps, and for zeros. Zaya rounds each of these results to the data's type, librope only the last one.
TEST_CASE("Zaya: a temperature of each head of k, the same for all tokens", "[systems][step]") {
  const int64_t heads = 4, k_heads = 3, head_dim = 128, rotary_dim = 64, max_position = 23;
  for (rope_dtype_t dtype : serving) {
    for (rope_dtype_t temp_dtype : {rope_dtype_t{ROPE_DTYPE_F32}, dtype}) {
      for (bool is_flat : {false, true}) {
        RopeCall call(dtype, head_dim);
        Norm norm;
        norm.eps = 1e-30L;
        norm.fill(call.config);
        call.config.layout = is_flat ? ROPE_LAYOUT_THD : ROPE_LAYOUT_BSHD;
        call.config.rotary_dim = rotary_dim;
        Random random(23);
        // The heads of the second token are 0. The shortest of the others has about 1.4 times the length eps of BF16.
        const auto value = [&](const Shape &at) -> Real {
          return at[0] * seq + at[1] == 1 ? 0
                                          : std::ldexp(random.normal(), -static_cast<int>((at[1] + 2 * at[2]) % 11));
        };
        const Array q = call.values(dtype, {batch, seq, heads, head_dim}, value);
        const Array k = call.values(dtype, {batch, seq, k_heads, head_dim}, value);
        const Array temp = call.table(temp_dtype, {k_heads});
        const Array table = call.table(ROPE_DTYPE_F32, {max_position, rotary_dim});
        const Array positions = call.positions(
            ROPE_DTYPE_I64, {batch, seq}, [](const Shape &at) { return (at[0] * 5 + at[1] * 9 + 4) % max_position; });
        const Shape tokens = is_flat ? Shape{batch * seq} : Shape{batch, seq};
        const auto view = [&](const Array &array, const Shape &others) {
          Shape shape = tokens;
          shape.insert(shape.end(), others.begin(), others.end());
          return array.as(shape);
        };
        const rope_norm_args_t norms = ROPE_NORM_ARGS_INIT;
        rope_input_args_t input = ROPE_INPUT_ARGS_INIT;
        input.k_row_factor = strided(temp, 0, is_flat ? Shape{batch * seq, k_heads} : Shape{batch, seq, k_heads},
                                     is_flat ? Shape{0, 1} : Shape{0, 0, 1});
        call.args.q = view(q, {heads, head_dim});
        call.args.k = view(k, {k_heads, head_dim});
        call.args.positions = view(positions, {});
        call.args.norm = &norms;
        call.args.input = &input;
        take_cos_sin(call, table);
        const auto expect_head = [&](Outcome &outcome, const Array &array, const Shape &at, Real factor) {
          const int64_t first = array.at({at[0], at[1], at[2], 0});
          const Row row = read(array, first, head_dim);
          Real squares = 0;
          for (const Range &x : row) squares += x.low * x.low;
          const Real eps = oracle::ulp(dtype, 1);
          factor *= std::sqrt(static_cast<Real>(head_dim)) / std::max(std::sqrt(squares), eps);
          const Turn turn = turns_of(table, positions.integer({at[0], at[1]}));
          const auto y = [&](int64_t c) { return row[static_cast<size_t>(c)].low * factor; };
          // At most 16 roundings of fp32 lie between a term and the result.
          const auto take = [&](int64_t c, Real a, Real b) {
            const Real slack = 16 * 0x1p-24L * (std::fabs(a) + std::fabs(b));
            outcome.push_back({first + c, {a + b - slack, a + b + slack}});
          };
          for (int64_t c = 0; c < rotary_dim / 2; ++c) {
            const int64_t partner = c + rotary_dim / 2;
            const Rotation by = turn(c);
            take(c, y(c) * by.cos, -y(partner) * by.sin);
            take(partner, y(c) * by.sin, y(partner) * by.cos);
          }
          for (int64_t c = rotary_dim; c < head_dim; ++c) take(c, y(c), 0);
        };
        Outcome &q_outcome = call.outcome(q), &k_outcome = call.outcome(k);
        for_each({batch, seq, heads}, [&](const Shape &at) { expect_head(q_outcome, q, at, 1); });
        for_each({batch, seq, k_heads}, [&](const Shape &at) { expect_head(k_outcome, k, at, temp.value({at[2]})); });
        call.check(Direction::Forward);
      }
    }
  }
}
