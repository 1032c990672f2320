// SPDX-License-Identifier: Apache-2.0
// sglang_step_tests.cpp - sglang's token pool, with one row for each token and slot 0 reserved for padding, and its
// kernels of norm and rope
//
// table_qk_norm_rope and Muse round to the data's type between norm and rotation, as norm_rounding can do. librope's
// rotation does not round products, like that of the diffusion kernel qknorm_rope.
#include <catch2/catch_test_macros.hpp>
#include <vector>

#include "step_system.hpp"

using namespace systems;

namespace {

constexpr int64_t T = 9, max_position = 23, pool_size = 17;

// Rows of the pool; padding tokens 3 and 7 name row 0.
Array out_loc_of(RopeCall &call, rope_dtype_t dtype) {
  return call.positions(dtype, {T},
                        [](const Shape &at) { return at[0] % 4 == 3 ? 0 : 1 + at[0] * 5 % (pool_size - 1); });
}

Array positions_of(RopeCall &call, rope_dtype_t dtype) {
  return call.positions(dtype, {T}, [](const Shape &at) { return (at[0] * 9 + 4) % max_position; });
}

// A pool [size, heads, channels] as pages of one entry.
rope_tensor_t pages_of(const Array &pool, int64_t heads, int64_t channels) {
  return pool.as({pool.shape[0], 1, heads, channels});
}

void check_fused_store(rope_dtype_t dtype, rope_dtype_t index_dtype, rope_style_t style, bool is_reserved,
                       bool is_k_in_place) {
  const int64_t heads = 4, k_heads = 2, head_dim = 128, rotary_dim = 64;
  RopeCall call(dtype, head_dim);
  call.config.layout = ROPE_LAYOUT_THD;
  call.config.style = style;
  call.config.rotary_dim = rotary_dim;
  const Array q = call.data({T, heads, head_dim}), k = call.data({T, k_heads, head_dim});
  const Array v = call.data({T, k_heads, head_dim});
  const Array k_pool = call.data({pool_size, k_heads * head_dim});
  const Array v_pool = call.data({pool_size, k_heads * head_dim});
  const Array table = call.table(ROPE_DTYPE_F32, {max_position, rotary_dim});
  const Array positions = positions_of(call, index_dtype);
  // Without a reserved slot every token has another slot.
  const Array out_loc = is_reserved ? out_loc_of(call, index_dtype)
                                    : call.positions(index_dtype, {T}, [](const Shape &at) { return at[0] * 2; });
  rope_cache_args_t cache = ROPE_CACHE_ARGS_INIT;
  cache.flags = is_reserved ? ROPE_CACHE_FLAG_SKIP_SLOT_0 : 0;
  cache.k_cache = pages_of(k_pool, k_heads, head_dim);
  cache.v_cache = pages_of(v_pool, k_heads, head_dim);
  cache.slots = out_loc.tensor();
  call.args.flags = ROPE_FLAG_V_UNROTATED;
  call.args.q = q.tensor();
  call.args.k = k.tensor();
  if (is_k_in_place) call.args.k_out = k.tensor();
  call.args.v = v.tensor();
  call.args.positions = positions.tensor();
  call.args.cache = &cache;
  call.expect_no_fault();
  take_cos_sin(call, table);
  const auto turn = [&](Formula &formula, int64_t t, int64_t to, int64_t from) {
    rotate(formula, style, to, from, rotary_dim, turns_of(table, positions.integer({t})));
  };
  Formula &q_formula = call.formula(q), &k_in_place = call.formula(k);
  Formula &k_formula = call.formula(k, k_pool), &v_formula = call.formula(v, v_pool);
  for (int64_t t = 0; t < T; ++t) {
    for (int64_t h = 0; h < heads; ++h) turn(q_formula, t, q.at({t, h, 0}), q.at({t, h, 0}));
    for (int64_t h = 0; is_k_in_place && h < k_heads; ++h) turn(k_in_place, t, k.at({t, h, 0}), k.at({t, h, 0}));
    const int64_t row = out_loc.integer({t});
    if (is_reserved && row == 0) continue;
    for (int64_t h = 0; h < k_heads; ++h) {
      const int64_t to = k_pool.at({row, h * head_dim}), from = k.at({t, h, 0});
      turn(k_formula, t, to, from);
      copy(k_formula, to + rotary_dim, from + rotary_dim, head_dim - rotary_dim);
      copy(v_formula, v_pool.at({row, h * head_dim}), v.at({t, h, 0}), head_dim);
    }
  }
  call.check(Direction::Forward);
}

// Without weights, rounded before the rotation, into q_out, k_out and the pool, with v. A pool of 8 bits has no scale:
// the kernel clamps and casts the values of k_out.
void check_muse(rope_dtype_t dtype, rope_dtype_t loc_dtype, rope_dtype_t code) {
  const int64_t heads = 4, k_heads = 2, head_dim = 128;
  RopeCall call(dtype, head_dim);
  const Arithmetic arithmetic(dtype);
  Norm norm;
  norm.rounding = ROPE_NORM_ROUND_BEFORE_WEIGHT;
  norm.fill(call.config);
  call.config.layout = ROPE_LAYOUT_THD;
  call.config.style = ROPE_STYLE_INTERLEAVED;
  if (code) call.config.quant_rounding = ROPE_QUANT_ROUND_FIRST;
  const Array q = call.data({T, heads, head_dim}), q_out = call.data({T, heads, head_dim});
  const Array k = call.data({T, k_heads, head_dim}), k_out = call.data({T, k_heads, head_dim});
  const Array v = call.data({T, k_heads, head_dim});
  const Array k_pool = call.data({pool_size, k_heads, head_dim}, code);
  const Array v_pool = call.data({pool_size, k_heads, head_dim}, code);
  const Array table = call.table(ROPE_DTYPE_F32, {max_position, head_dim});
  const Array positions = positions_of(call, ROPE_DTYPE_I64), out_loc = out_loc_of(call, loc_dtype);
  const rope_norm_args_t norms = ROPE_NORM_ARGS_INIT;
  rope_cache_args_t cache = ROPE_CACHE_ARGS_INIT;
  cache.flags = ROPE_CACHE_FLAG_SKIP_SLOT_0;
  cache.k_cache = pages_of(k_pool, k_heads, head_dim);
  cache.v_cache = pages_of(v_pool, k_heads, head_dim);
  cache.slots = out_loc.tensor();
  call.args.flags = ROPE_FLAG_V_UNROTATED;
  call.args.q = q.tensor();
  call.args.q_out = q_out.tensor();
  call.args.k = k.tensor();
  call.args.k_out = k_out.tensor();
  call.args.v = v.tensor();
  call.args.positions = positions.tensor();
  call.args.norm = &norms;
  call.args.cache = &cache;
  call.expect_no_fault();
  take_cos_sin(call, table);
  const auto result = [&](const Array &array, int64_t t, int64_t h) {
    return arithmetic.rotated(ROPE_STYLE_INTERLEAVED, 0, head_dim,
                              arithmetic.normed(norm, read(array, array.at({t, h, 0}), head_dim), {}),
                              turns_of(arithmetic, table, positions.integer({t})));
  };
  Outcome &q_outcome = call.outcome(q_out), &k_outcome = call.outcome(k_out), &cached = call.outcome(k_pool);
  Formula &v_formula = call.formula(v, v_pool);
  Outcome &v_outcome = call.outcome(v_pool);
  for (int64_t t = 0; t < T; ++t) {
    const int64_t row = out_loc.integer({t});
    for (int64_t h = 0; h < heads; ++h) expect(q_outcome, q_out.at({t, h, 0}), result(q, t, h));
    for (int64_t h = 0; h < k_heads; ++h) {
      expect(k_outcome, k_out.at({t, h, 0}), result(k, t, h));
      if (row == 0) continue;
      const Row row_of_k = result(k, t, h);
      expect(cached, k_pool.at({row, h, 0}), code ? arithmetic.rounded_to_dtype(row_of_k) : row_of_k);
      const int64_t to = v_pool.at({row, h, 0}), from = v.at({t, h, 0});
      if (code) {
        expect(v_outcome, to, read(v, from, head_dim));
      } else {
        copy(v_formula, to, from, head_dim);
      }
    }
  }
  call.check(Direction::Forward);
}

}  // namespace

TEST_CASE("sglang set_kv_buffer: a pool of tokens, slot 0 reserved", "[systems][step]") {
  const int64_t heads = 2, head_dim = 128;
  for (rope_dtype_t dtype : serving) {
    for (rope_dtype_t loc_dtype : integers) {
      RopeCall call(dtype, head_dim);
      call.config.layout = ROPE_LAYOUT_THD;
      const Array k = call.data({T, heads * head_dim}), v = call.data({T, heads * head_dim});
      const Array k_buffer = call.data({pool_size, heads, head_dim}),
                  v_buffer = call.data({pool_size, heads, head_dim});
      const Array loc = out_loc_of(call, loc_dtype);
      rope_cache_args_t cache = ROPE_CACHE_ARGS_INIT;
      cache.flags = ROPE_CACHE_FLAG_SKIP_SLOT_0;
      cache.k_cache = pages_of(k_buffer, heads, head_dim);
      cache.v_cache = pages_of(v_buffer, heads, head_dim);
      cache.slots = loc.tensor();
      call.args.flags = ROPE_FLAG_UNROTATED;
      call.args.k = k.as({T, heads, head_dim});
      call.args.v = v.as({T, heads, head_dim});
      call.args.cache = &cache;
      call.expect_no_fault();
      for (bool is_v : {false, true}) {
        const Array &from = is_v ? v : k, &to = is_v ? v_buffer : k_buffer;
        Formula &formula = call.formula(from, to);
        for (int64_t t = 0; t < T; ++t) {
          const int64_t row = loc.integer({t});
          if (row != 0) copy(formula, to.at({row, 0, 0}), from.at({t, 0}), heads * head_dim);
        }
      }
      call.check(Direction::Forward);
    }
  }
}

TEST_CASE("sglang set_mla_kv_buffer: nope and rope in one row", "[systems][step]") {
  const int64_t rank = 512, rotary_dim = 64;
  for (rope_dtype_t dtype : serving) {
    for (rope_dtype_t loc_dtype : integers) {
      RopeCall call(dtype, rotary_dim);
      call.config.layout = ROPE_LAYOUT_THD;
      const Array k_nope = call.data({T, 1, rank}), k_rope = call.data({T, 1, rotary_dim});
      const Array kv_buffer = call.data({pool_size, 1, rank + rotary_dim});
      const Array loc = out_loc_of(call, loc_dtype);
      const rope_tensor_t rows = pages_of(kv_buffer, 1, rank + rotary_dim);
      rope_cache_args_t cache = ROPE_CACHE_ARGS_INIT;
      cache.flags = ROPE_CACHE_FLAG_SKIP_SLOT_0;
      cache.v_cache = narrow(rows, 3, 0, rank);
      cache.k_cache = narrow(rows, 3, rank, rotary_dim);
      cache.slots = loc.tensor();
      call.args.flags = ROPE_FLAG_UNROTATED;
      call.args.k = k_rope.tensor();
      call.args.v = k_nope.tensor();
      call.args.cache = &cache;
      call.expect_no_fault();
      Formula &nope = call.formula(k_nope, kv_buffer), &rope = call.formula(k_rope, kv_buffer);
      for (int64_t t = 0; t < T; ++t) {
        const int64_t row = loc.integer({t});
        if (row == 0) continue;
        copy(nope, kv_buffer.at({row, 0, 0}), k_nope.at({t, 0, 0}), rank);
        copy(rope, kv_buffer.at({row, 0, rank}), k_rope.at({t, 0, 0}), rotary_dim);
      }
      call.check(Direction::Forward);
    }
  }
}

// q is turned in place, k in place or not, and k and v go to the pool. Its kernel has no reserved slot, so the padding
// of a captured graph needs a row of its own; here the flag replaces this row.
TEST_CASE("sglang fused rope and store: q, or q and k, in place, k and v to the pool", "[systems][step]") {
  for (rope_dtype_t dtype : serving) {
    for (rope_dtype_t index_dtype : integers) {
      for (rope_style_t style : styles) {
        for (bool is_reserved : {false, true}) {
          for (bool is_k_in_place : {false, true}) {
            check_fused_store(dtype, index_dtype, style, is_reserved, is_k_in_place);
          }
        }
      }
    }
  }
}

// Values are rounded to the data's type between norm and rotation. q and k are in place, each with its own row stride.
TEST_CASE("sglang table_qk_norm_rope: rounded before the rotation", "[systems][step]") {
  const int64_t heads = 3, k_heads = 1, head_dim = 128;
  for (rope_dtype_t dtype : serving) {
    RopeCall call(dtype, head_dim);
    const Arithmetic arithmetic(dtype);
    Norm norm;
    norm.rounding = ROPE_NORM_ROUND_AFTER_WEIGHT;
    norm.fill(call.config);
    call.config.layout = ROPE_LAYOUT_THD;
    const int64_t columns = heads + 2 * k_heads;
    const Array qkv = call.data({T, columns, head_dim});
    const Array q_weight = call.data({head_dim}), k_weight = call.data({head_dim});
    const Array table = call.table(ROPE_DTYPE_F32, {max_position, head_dim});
    const Array positions = positions_of(call, ROPE_DTYPE_I64);
    const rope_norm_args_t norms = norm_args(q_weight, k_weight);
    call.args.q = narrow(qkv.tensor(), 1, 0, heads);
    call.args.k = narrow(qkv.tensor(), 1, heads, k_heads);
    call.args.positions = positions.tensor();
    call.args.norm = &norms;
    take_cos_sin(call, table);
    Outcome &outcome = call.outcome(qkv);
    for_each({T, heads + k_heads}, [&](const Shape &at) {
      const int64_t head = qkv.at({at[0], at[1], 0});
      const Row weight = read(at[1] < heads ? q_weight : k_weight, 0, head_dim);
      const Row row = arithmetic.normed(norm, read(qkv, head, head_dim), weight);
      const TurnRanges turns = turns_of(arithmetic, table, positions.integer({at[0]}));
      expect(outcome, head, arithmetic.rotated(ROPE_STYLE_HALF, 0, head_dim, row, turns));
    });
    call.check(Direction::Forward);
  }
}

// One row holds q, k, v, and q and k of the indexer. There are two calls, one for each pair of weights.
TEST_CASE("sglang fused_gemma_qknorm_rope: MiniMax-M3, 1 + w, in two calls", "[systems][step]") {
  const int64_t head_dim = 128, rotary_dim = 64;
  const int64_t first[] = {0, 4, 8, 10}, heads[] = {4, 2, 2, 1}, columns = 11;  // v: 6 and 7
  for (rope_dtype_t dtype : serving) {
    for (int pair : {0, 1}) {
      RopeCall call(dtype, head_dim);
      const Arithmetic arithmetic(dtype);
      Norm norm;
      norm.weight_offset = 1;
      norm.fill(call.config);
      call.config.layout = ROPE_LAYOUT_THD;
      call.config.rotary_dim = rotary_dim;
      const Array qkv = call.data({T, columns, head_dim});
      const Array q_weight = call.data({head_dim}), k_weight = call.data({head_dim});
      const Array table = call.table(ROPE_DTYPE_F32, {max_position, rotary_dim});
      const Array positions = positions_of(call, ROPE_DTYPE_I64);
      const rope_norm_args_t norms = norm_args(q_weight, k_weight);
      call.args.q = narrow(qkv.tensor(), 1, first[2 * pair], heads[2 * pair]);
      call.args.k = narrow(qkv.tensor(), 1, first[2 * pair + 1], heads[2 * pair + 1]);
      call.args.positions = positions.tensor();
      call.args.norm = &norms;
      take_cos_sin(call, table);
      Outcome &outcome = call.outcome(qkv);
      for (bool is_k : {false, true}) {
        const Row weight = read(is_k ? k_weight : q_weight, 0, head_dim);
        for_each({T, heads[2 * pair + is_k]}, [&](const Shape &at) {
          const int64_t head = qkv.at({at[0], first[2 * pair + is_k] + at[1], 0});
          const Row row = arithmetic.normed(norm, read(qkv, head, head_dim), weight);
          const TurnRanges turns = turns_of(arithmetic, table, positions.integer({at[0]}));
          expect(outcome, head, arithmetic.rotated(ROPE_STYLE_HALF, 0, rotary_dim, row, turns));
        });
      }
      call.check(Direction::Forward);
    }
  }
}

TEST_CASE("sglang muse_spark_qk_norm_rope_store: no weights, rounded before the rotation", "[systems][step]") {
  for (rope_dtype_t dtype : serving) {
    for (rope_dtype_t loc_dtype : integers) check_muse(dtype, loc_dtype, 0);
  }
}

TEST_CASE("sglang muse_spark_qk_norm_rope_store: an FP8 pool without scales, rounded to BF16 first",
          "[systems][step]") {
  for (rope_dtype_t loc_dtype : integers) check_muse(ROPE_DTYPE_BF16, loc_dtype, ROPE_DTYPE_F8_E4M3);
}

// q, k and v become FP8, and k and v go to the pool: x * inv, where inv is the reciprocal of each scale, and the cast
// saturates.
TEST_CASE("sglang fused_fp8_qkv_kv_cache: q, k and v to FP8 in one call", "[systems][step]") {
  const int64_t heads = 5, k_heads = 2, head_dim = 128;
  const Real q_scale = single(0.0137L), k_scale = single(0.0041L), v_scale = single(0.0193L);  // k saturates
  for (rope_dtype_t dtype : serving) {
    for (rope_dtype_t loc_dtype : integers) {
      for (bool is_inverse : {false, true}) {
        RopeCall call(dtype, head_dim);
        const Arithmetic arithmetic(dtype);
        call.config.layout = ROPE_LAYOUT_THD;
        call.config.theta = 0;
        const Array qkv = call.data({T, heads + 2 * k_heads, head_dim});
        const Array q_fp8 = call.data({T, heads, head_dim}, ROPE_DTYPE_F8_E4M3);
        const Array k_pool = call.data({pool_size, k_heads, head_dim}, ROPE_DTYPE_F8_E4M3);
        const Array v_pool = call.data({pool_size, k_heads, head_dim}, ROPE_DTYPE_F8_E4M3);
        const Array out_loc = out_loc_of(call, loc_dtype);
        const auto scale_of = [&](Real scale) { return scales(call, {is_inverse ? single(1 / scale) : scale}); };
        const Array q_by = scale_of(q_scale), k_by = scale_of(k_scale), v_by = scale_of(v_scale);
        rope_quant_args_t quant = ROPE_QUANT_ARGS_INIT;
        quant.flags = is_inverse ? ROPE_QUANT_FLAG_SCALE_MULTIPLIES : 0;
        quant.q_scale = q_by.tensor();
        quant.k_scale = k_by.tensor();
        quant.v_scale = v_by.tensor();
        rope_cache_args_t cache = ROPE_CACHE_ARGS_INIT;
        cache.flags = ROPE_CACHE_FLAG_SKIP_SLOT_0;
        cache.k_cache = pages_of(k_pool, k_heads, head_dim);
        cache.v_cache = pages_of(v_pool, k_heads, head_dim);
        cache.slots = out_loc.tensor();
        call.args.flags = ROPE_FLAG_UNROTATED;
        call.args.q = narrow(qkv.tensor(), 1, 0, heads);
        call.args.q_out = q_fp8.tensor();
        call.args.k = narrow(qkv.tensor(), 1, heads, k_heads);
        call.args.v = narrow(qkv.tensor(), 1, heads + k_heads, k_heads);
        call.args.cache = &cache;
        call.args.quant = &quant;
        call.expect_no_fault();
        const auto code = [&](int64_t t, int64_t head, Real scale) {
          return arithmetic.scaled(read(qkv, qkv.at({t, head, 0}), head_dim), single(1 / scale));
        };
        Outcome &q_outcome = call.outcome(q_fp8), &k_outcome = call.outcome(k_pool), &v_outcome = call.outcome(v_pool);
        for (int64_t t = 0; t < T; ++t) {
          for (int64_t h = 0; h < heads; ++h) expect(q_outcome, q_fp8.at({t, h, 0}), code(t, h, q_scale));
          const int64_t row = out_loc.integer({t});
          for (int64_t h = 0; row != 0 && h < k_heads; ++h) {
            expect(k_outcome, k_pool.at({row, h, 0}), code(t, heads + h, k_scale));
            expect(v_outcome, v_pool.at({row, h, 0}), code(t, heads + k_heads + h, v_scale));
          }
        }
        call.check(Direction::Forward);
      }
    }
  }
}

// set_mla_kv_buffer, with k_nope as the pass of k_rope: a pool of the data's type, or one of 8 bits, to which its
// _fp8_quant casts without a scale.
TEST_CASE("sglang set_mla_kv_buffer: k_rope with k_nope as its pass, FP8 too", "[systems][step]") {
  for (rope_dtype_t dtype : serving) {
    for (rope_dtype_t code : cache_types) {
      for (rope_dtype_t loc_dtype : integers) {
        RopeCall call(dtype, latent_dim);
        fill_latent(call.config);
        const Array k_nope = call.data({T, 1, kv_lora_rank}), k_rope = call.data({T, 1, qk_rope_head_dim});
        const Array kv_buffer = call.data({pool_size, 1, latent_dim}, code);
        const Array loc = out_loc_of(call, loc_dtype);
        rope_input_args_t input = ROPE_INPUT_ARGS_INIT;
        input.k_pass = k_nope.tensor();
        rope_cache_args_t cache = ROPE_CACHE_ARGS_INIT;
        cache.flags = ROPE_CACHE_FLAG_SKIP_SLOT_0;
        cache.k_cache = pages_of(kv_buffer, 1, latent_dim);
        cache.slots = loc.tensor();
        call.args.flags = ROPE_FLAG_UNROTATED;
        call.args.k = k_rope.tensor();
        call.args.cache = &cache;
        call.args.input = &input;
        call.expect_no_fault();
        Outcome &codes = call.outcome(kv_buffer);
        Formula &nope = call.formula(k_nope, kv_buffer), &rope = call.formula(k_rope, kv_buffer);
        for (int64_t t = 0; t < T; ++t) {
          const int64_t row = loc.integer({t});
          if (row == 0) continue;
          const int64_t to = kv_buffer.at({row, 0, 0}), from = k_nope.at({t, 0, 0}), tail = k_rope.at({t, 0, 0});
          if (code) {
            expect(codes, to, read(k_nope, from, kv_lora_rank));
            expect(codes, to + kv_lora_rank, read(k_rope, tail, qk_rope_head_dim));
          } else {
            copy(nope, to, from, kv_lora_rank);
            copy(rope, to + kv_lora_rank, tail, qk_rope_head_dim);
          }
        }
        call.check(Direction::Forward);
      }
    }
  }
}

// The scale is amax / 448 of each tile without a floor, and codes are made with its reciprocal. 2^-149, the smallest
// number of fp32, is a floor that changes no tile. A tile of zeros has codes NaN there (0 times infinity), and 0 here.
TEST_CASE("sglang quantize_k_cache: codes of nope with scales, rope as it is", "[systems][step]") {
  const int64_t tokens = 40, size = 64;
  const std::vector<Real> largest = {1e-20L, 1e-12L, 1e-6L, 0.01L, 0.3L, 1, 3.3L, 4.3125L, 14, 448, 450, 60000};
  const auto rule = [](Real amax) { return single(amax / 448); };
  for (rope_dtype_t loc_dtype : integers) {
    RopeCall call(ROPE_DTYPE_BF16, latent_dim);
    const Arithmetic arithmetic(call.config.dtype);
    fill_latent(call.config);
    const Array k_nope = grouped_data(call, {tokens, 1, kv_lora_rank}, 128, largest);
    const Array k_rope = call.data({tokens, 1, qk_rope_head_dim});
    const LatentRows rows(call, size, 1);
    const Array loc = call.positions(loc_dtype, {tokens}, [](const Shape &at) { return at[0] * 13 % size; });
    rope_quant_args_t quant = ROPE_QUANT_ARGS_INIT;
    quant.scale_floor = 0x1p-149;
    rope_input_args_t input = ROPE_INPUT_ARGS_INIT;
    input.k_pass = k_nope.tensor();
    rope_cache_args_t cache = ROPE_CACHE_ARGS_INIT;
    cache.flags = ROPE_CACHE_FLAG_SKIP_SLOT_0;
    rows.take(cache);
    cache.slots = loc.tensor();
    call.args.flags = ROPE_FLAG_UNROTATED;
    call.args.k = k_rope.tensor();
    call.args.cache = &cache;
    call.args.quant = &quant;
    call.args.input = &input;
    call.expect_no_fault();
    Outcome &codes = call.outcome(rows.bytes), &scales = call.outcome(rows.scales);
    Formula &rope = call.formula(k_rope, rows.words);
    for (int64_t t = 0; t < tokens; ++t) {
      const int64_t page = loc.integer({t});
      if (page == 0) continue;
      const Row nope = read(k_nope, k_nope.at({t, 0, 0}), kv_lora_rank);
      const ScaledRow row = arithmetic.scaled_in_groups(nope, 4, rule, CodeBy::Reciprocal);
      expect(codes, rows.code_at(page, 0), row.codes);
      expect(scales, rows.scale_at(page, 0), row.scales);
      copy(rope, rows.turned_at(page, 0), k_rope.at({t, 0, 0}), qk_rope_head_dim);
    }
    call.check(Direction::Forward);
  }
}
