// SPDX-License-Identifier: Apache-2.0
// hpc_ops_tests.cpp - hpc-ops' rope_norm_store_kv: packed qkv of several requests, a block table, norms of fp32 weights
// before or after the rotation
#include <catch2/catch_test_macros.hpp>
#include <vector>

#include "step_system.hpp"

using namespace systems;

namespace {

// Requests have 12, 1 and 7 tokens so far; 5, 1 and 3 of these are new. The last two rows are padding.
constexpr int64_t num_req = 3, total = 11, block_size = 4, max_blocks = 4, num_blocks = 10, max_position = 16;
constexpr int64_t q_index_values[] = {0, 5, 6, 9}, seqlen_values[] = {12, 1, 7};
constexpr int64_t block_values[num_req][max_blocks] = {{3, 9, 0, -1}, {7, -1, -1, -1}, {1, 4, -1, -1}};

constexpr int no_norm = 0, rope_then_norm = 1, norm_then_rope = 2;

// Codes of q: with a scale that is written for each token and head, or with a static one.
constexpr int dqskv = 1, sqskv = 2;

// Outputs and caches of the data's type (quant_policy 0), or 8-bit codes with static scales of k and v.
void check_prefill(rope_dtype_t dtype, int policy, bool is_cached, int quant_policy) {
  const rope_dtype_t code = quant_policy ? ROPE_DTYPE_F8_E4M3 : 0;
  const int64_t q_heads = 4, kv_heads = 2, head_dim = 128, columns = q_heads + 2 * kv_heads;
  RopeCall call(dtype, head_dim);
  const Arithmetic arithmetic(dtype);
  const Norm norm;
  if (policy != no_norm) norm.fill(call.config);
  if (policy == rope_then_norm) call.config.norm_order = ROPE_NORM_ORDER_AFTER;
  call.config.layout = ROPE_LAYOUT_THD;
  const PagedCaches caches(call, CacheLayout::Nhd, {num_blocks, block_size, kv_heads, head_dim}, code);
  const Array qkv = call.data({total, columns * head_dim});
  const Array out_q = call.data({total, q_heads, head_dim}, code);
  const Array out_k = call.data({total, kv_heads, head_dim}, code),
              out_v = call.data({total, kv_heads, head_dim}, code);
  const Array cos_sin = call.table(ROPE_DTYPE_F32, {max_position, head_dim});
  const Array q_norm_weight = call.table(ROPE_DTYPE_F32, {head_dim});
  const Array k_norm_weight = call.table(ROPE_DTYPE_F32, {head_dim});
  const Array q_index =
      call.positions(ROPE_DTYPE_I32, {num_req + 1}, [](const Shape &at) { return q_index_values[at[0]]; });
  // num_seqlen_per_req minus the new tokens: a subtraction of [num_req] before the call
  const Array cached_tokens = call.positions(ROPE_DTYPE_I32, {num_req}, [](const Shape &at) {
    return seqlen_values[at[0]] - (q_index_values[at[0] + 1] - q_index_values[at[0]]);
  });
  const Array kvcache_indices =
      call.positions(ROPE_DTYPE_I32, {num_req, max_blocks}, [](const Shape &at) { return block_values[at[0]][at[1]]; });
  // q_scale_inv multiplies directly; k_scale and v_scale by their reciprocals, which the caller computes once.
  const Real q_by = single(61.7L), k_by = single(1 / single(0.0137L)), v_by = single(1 / single(0.0041L));
  const Array q_scale_inv = scales(call, {q_by}), k_inverse = scales(call, {k_by}), v_inverse = scales(call, {v_by});
  rope_quant_args_t quant = ROPE_QUANT_ARGS_INIT;
  quant.flags = ROPE_QUANT_FLAG_SCALE_MULTIPLIES;
  if (quant_policy == sqskv) quant.q_scale = q_scale_inv.tensor();
  const Array q_scale = call.values(ROPE_DTYPE_F32, {total, q_heads}, [](const Shape &) { return -1; });
  if (quant_policy == dqskv) quant.q_scales_out = q_scale.as({total, q_heads, 1});
  quant.k_scale = k_inverse.tensor();
  quant.v_scale = v_inverse.tensor();
  if (code) call.args.quant = &quant;
  const rope_norm_args_t norms = norm_args(q_norm_weight, k_norm_weight);
  rope_cache_args_t cache = cache_args(caches);
  cache.page_table = kvcache_indices.tensor();
  const rope_tensor_t all = qkv.as({total, columns, head_dim});
  call.args.flags = ROPE_FLAG_V_UNROTATED;
  call.args.q = narrow(all, 1, 0, q_heads);
  call.args.k = narrow(all, 1, q_heads, kv_heads);
  call.args.v = narrow(all, 1, q_heads + kv_heads, kv_heads);
  call.args.q_out = out_q.tensor();
  if (!is_cached) call.args.k_out = out_k.tensor();
  if (!is_cached) call.args.v_out = out_v.tensor();
  call.args.cu_seqlens = q_index.tensor();
  call.args.start_positions = cached_tokens.tensor();
  if (policy != no_norm) call.args.norm = &norms;
  if (is_cached) call.args.cache = &cache;
  call.expect_no_fault();
  take_cos_sin(call, cos_sin);
  Outcome &q_outcome = call.outcome(out_q), &k_outcome = call.outcome(is_cached ? caches.of(false) : out_k);
  Outcome &q_scale_outcome = call.outcome(q_scale);
  const Array &v_to = is_cached ? caches.of(true) : out_v;
  Formula &v_formula = call.formula(qkv, v_to);
  Outcome &v_outcome = call.outcome(v_to);
  const auto stored = [&](const Row &row, Real by) { return code ? arithmetic.scaled(row, by) : row; };
  const auto first_channel = [&](bool is_v, int64_t req, int64_t token, int64_t position, int64_t h) {
    if (!is_cached) return (is_v ? out_v : out_k).at({token, h, 0});
    return caches.at(is_v, block_values[req][position / block_size], position % block_size, h);
  };
  for (int64_t req = 0; req < num_req; ++req) {
    for (int64_t token = q_index_values[req]; token < q_index_values[req + 1]; ++token) {
      const int64_t position = seqlen_values[req] - q_index_values[req + 1] + token;
      const TurnRanges turns = turns_of(arithmetic, cos_sin, position);
      const auto result = [&](int64_t head, const Array &weight) {
        Row row = read(qkv, qkv.at({token, head * head_dim}), head_dim);
        if (policy == norm_then_rope) row = arithmetic.normed(norm, row, read(weight, 0, head_dim));
        row = arithmetic.rotated(ROPE_STYLE_HALF, 0, head_dim, row, turns);
        return policy == rope_then_norm ? arithmetic.normed(norm, row, read(weight, 0, head_dim)) : row;
      };
      for (int64_t h = 0; h < q_heads; ++h) {
        const Row row = result(h, q_norm_weight);
        const Group group = arithmetic.grouped(row, [](Real largest) { return single(largest / 448); });
        expect(q_outcome, out_q.at({token, h, 0}), quant_policy == dqskv ? group.row : stored(row, q_by));
        if (quant_policy == dqskv) expect(q_scale_outcome, q_scale.at({token, h}), {group.scale});
      }
      for (int64_t h = 0; h < kv_heads; ++h) {
        expect(k_outcome, first_channel(false, req, token, position, h),
               stored(result(q_heads + h, k_norm_weight), k_by));
        const int64_t to = first_channel(true, req, token, position, h);
        const int64_t from = qkv.at({token, (q_heads + kv_heads + h) * head_dim});
        if (code) {
          expect(v_outcome, to, stored(read(qkv, from, head_dim), v_by));
        } else {
          copy(v_formula, to, from, head_dim);
        }
      }
    }
  }
  call.check(Direction::Forward);
}

}  // namespace

TEST_CASE("hpc-ops rope_norm_store_kv: policies of the norm, into the cache or into k and v", "[systems][step]") {
  for (rope_dtype_t dtype : serving) {
    for (int policy : {no_norm, rope_then_norm, norm_then_rope}) {
      for (bool is_cached : {true, false}) check_prefill(dtype, policy, is_cached, 0);
    }
  }
}

TEST_CASE("hpc-ops rope_norm_store_kv_fp8: static scales of q, k and v", "[systems][step]") {
  for (rope_dtype_t dtype : serving) {
    for (int policy : {no_norm, rope_then_norm, norm_then_rope}) {
      for (bool is_cached : {true, false}) check_prefill(dtype, policy, is_cached, sqskv);
    }
  }
}

TEST_CASE("hpc-ops rope_norm_store_kv_fp8: a scale of q for each token and head", "[systems][step]") {
  for (rope_dtype_t dtype : serving) {
    for (int policy : {no_norm, rope_then_norm, norm_then_rope}) {
      for (bool is_cached : {true, false}) check_prefill(dtype, policy, is_cached, dqskv);
    }
  }
}

// One new token for each request: all rows are one batch entry, and the block table has one row for each of them.
TEST_CASE("hpc-ops rope_norm_store_kv: decode", "[systems][step]") {
  const int64_t q_heads = 8, kv_heads = 1, head_dim = 128, columns = q_heads + 2 * kv_heads;
  for (rope_dtype_t dtype : serving) {
    RopeCall call(dtype, head_dim);
    const Arithmetic arithmetic(dtype);
    const Norm norm;
    norm.fill(call.config);
    const PagedCaches caches(call, CacheLayout::Nhd, {num_blocks, block_size, kv_heads, head_dim});
    const Array qkv = call.data({num_req, columns, head_dim}), out_q = call.data({num_req, q_heads, head_dim});
    const Array cos_sin = call.table(ROPE_DTYPE_F32, {max_position, head_dim});
    const Array q_norm_weight = call.table(ROPE_DTYPE_F32, {head_dim});
    const Array k_norm_weight = call.table(ROPE_DTYPE_F32, {head_dim});
    const Array num_seqlen_per_req =
        call.positions(ROPE_DTYPE_I32, {num_req}, [](const Shape &at) { return seqlen_values[at[0]]; });
    const Array kvcache_indices = call.positions(ROPE_DTYPE_I32, {num_req, max_blocks},
                                                 [](const Shape &at) { return block_values[at[0]][at[1]]; });
    const rope_norm_args_t norms = norm_args(q_norm_weight, k_norm_weight);
    rope_cache_args_t cache = cache_args(caches);
    cache.page_table = kvcache_indices.tensor();
    const rope_tensor_t all = qkv.as({num_req, 1, columns, head_dim});
    call.args.flags = ROPE_FLAG_V_UNROTATED;
    call.args.q = narrow(all, 2, 0, q_heads);
    call.args.k = narrow(all, 2, q_heads, kv_heads);
    call.args.v = narrow(all, 2, q_heads + kv_heads, kv_heads);
    call.args.q_out = out_q.as({num_req, 1, q_heads, head_dim});
    call.args.start_positions = num_seqlen_per_req.tensor();
    call.args.position_offset = -1;
    call.args.norm = &norms;
    call.args.cache = &cache;
    call.expect_no_fault();
    take_cos_sin(call, cos_sin);
    Outcome &q_outcome = call.outcome(out_q), &k_outcome = call.outcome(caches.of(false));
    Formula &v_formula = call.formula(qkv, caches.of(true));
    for (int64_t req = 0; req < num_req; ++req) {
      const int64_t position = seqlen_values[req] - 1;
      const int64_t block = block_values[req][position / block_size], entry = position % block_size;
      const TurnRanges turns = turns_of(arithmetic, cos_sin, position);
      const auto result = [&](int64_t head, const Array &weight) {
        const Row row = read(qkv, qkv.at({req, head, 0}), head_dim);
        return arithmetic.rotated(ROPE_STYLE_HALF, 0, head_dim, arithmetic.normed(norm, row, read(weight, 0, head_dim)),
                                  turns);
      };
      for (int64_t h = 0; h < q_heads; ++h) expect(q_outcome, out_q.at({req, h, 0}), result(h, q_norm_weight));
      for (int64_t h = 0; h < kv_heads; ++h) {
        expect(k_outcome, caches.at(false, block, entry, h), result(q_heads + h, k_norm_weight));
        copy(v_formula, caches.at(true, block, entry, h), qkv.at({req, q_heads + kv_heads + h, 0}), head_dim);
      }
    }
    call.check(Direction::Forward);
  }
}
