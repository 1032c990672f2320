// SPDX-License-Identifier: Apache-2.0
// deepseek_cache_tests.cpp - DeepSeek V4's step: q is normalised without weights, the tails of q and kv are rotated,
// and kv, which is both k and v, is written to latent pages with scales that are powers of two
//
// kv is rounded to the data's type before it is scaled. This changes no channel that is not rotated, so it affects
// V4.1's codes but none of V4's. The floor of a magnitude is 1e-4.
#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <cmath>
#include <utility>
#include <vector>

#include "step_system.hpp"

using namespace systems;

namespace {

constexpr int64_t head_dim = 512, rotary_dim = 64, nope_dim = head_dim - rotary_dim;
constexpr int64_t tokens = 40, mapped = 37, pages = 7, entries = 8, max_position = 53;
constexpr rope_style_t style = ROPE_STYLE_INTERLEAVED;

// Zeros, and magnitudes near steps of a scale: 448 * 2^-22 = 0.0001068 is the largest one with the scale of the floor.
const std::vector<Real> magnitudes = {0,    0x1.8p-14L, 0x1.bep-14L, 0x1.cp-14L, 0x1.c2p-14L, 0.01L, 0.3L, 1,
                                      3.3L, 13.9L,      14,          0x1.c2p+3L, 447,         448,   450,  20000};

Real ue8m0(Real largest) {
  return std::exp2(std::ceil(std::log2(std::max(largest, 1e-4L) / 448)));
}

// A step's inputs except q: kv, the table of cos | sin, positions, and slots of the first tokens, one of them without a
// slot.
struct KvStep {
  KvStep(RopeCall &call, const Array &kv)
      : arithmetic(call.config.dtype),
        kv(kv),
        cos_sin_cache(call.table(ROPE_DTYPE_F32, {max_position, rotary_dim})),
        position_ids(
            call.positions(ROPE_DTYPE_I64, {tokens}, [](const Shape &at) { return at[0] * 17 % max_position; })),
        slot_mapping(call.positions(ROPE_DTYPE_I64, {mapped}, [](const Shape &at) {
          return at[0] == 2 ? -1 : (at[0] * 11 + 3) % (pages * entries);
        })) {
    call.config.layout = ROPE_LAYOUT_THD;
    call.config.style = style;
    call.config.rotary_dim = rotary_dim;
    call.config.rotary_offset = nope_dim;
    cache.slots = slot_mapping.tensor();
    call.args.k = kv.as({tokens, 1, head_dim});
    call.args.positions = position_ids.tensor();
    call.args.cache = &cache;
    call.args.quant = &quant;
    call.expect_no_fault();
    take_cos_sin(call, cos_sin_cache);
  }
  KvStep(const KvStep &) = delete;

  Row turned(Row row, int64_t token) const {
    return arithmetic.rotated(style, nope_dim, rotary_dim, std::move(row),
                              turns_of(arithmetic, cos_sin_cache, position_ids.integer({token})));
  }

  // Visits each cached token with its page, its entry and its rotated row of kv.
  void for_each_row(const std::function<void(int64_t page, int64_t entry, const Row &row)> &visit) const {
    for (int64_t t = 0; t < mapped; ++t) {
      const int64_t slot = slot_mapping.integer({t});
      if (slot >= 0) visit(slot / entries, slot % entries, turned(read(kv, kv.at({t, 0}), head_dim), t));
    }
  }

  Arithmetic arithmetic;
  Array kv, cos_sin_cache, position_ids, slot_mapping;
  rope_cache_args_t cache = ROPE_CACHE_ARGS_INIT;
  rope_quant_args_t quant = ROPE_QUANT_ARGS_INIT;
};

// q with some heads goes to an output with more heads. The last of these are padding: they belong to the caller and
// must not change.
struct QStep {
  QStep(RopeCall &call, int64_t heads, int64_t padded_heads, rope_dtype_t out_dtype)
      : heads(heads),
        q(call.data({tokens, heads, head_dim})),
        q_out(call.data({tokens, padded_heads, head_dim}, out_dtype)) {
    norm.fill(call.config);
    call.config.norm_tensors = ROPE_NORM_TENSOR_Q;
    call.args.q = q.tensor();
    call.args.q_out = narrow(q_out.tensor(), 1, 0, heads);
    call.args.norm = &norms;
  }
  QStep(const QStep &) = delete;

  void expect_result(RopeCall &call, const KvStep &step, Real scale) const {
    Outcome &outcome = call.outcome(q_out);
    for_each({tokens, heads}, [&](const Shape &at) {
      const Row row = step.arithmetic.normed(norm, read(q, q.at({at[0], at[1], 0}), head_dim), {});
      expect(outcome, q_out.at({at[0], at[1], 0}), step.arithmetic.scaled(step.turned(row, at[0]), scale));
    });
  }

  Norm norm;
  int64_t heads;
  Array q, q_out;
  rope_norm_args_t norms = ROPE_NORM_ARGS_INIT;
};

Row part(const Row &row, int64_t first, int64_t count) {
  return Row(row.begin() + first, row.begin() + first + count);
}

// A page has 448 codes and 64 channels in 16 bits for each token, then 7 scales and a byte of padding for each token,
// and ends with `padding` bytes.
void check_v4(rope_dtype_t dtype, int64_t padding) {
  const int64_t data_bytes = nope_dim + 2 * rotary_dim, scale_bytes = 8, groups = nope_dim / 64;
  RopeCall call(dtype, head_dim);
  KvStep step(call, grouped_data(call, {tokens, head_dim}, 64, magnitudes));
  const QStep q(call, 3, 4, 0);
  const int64_t page_bytes = entries * (data_bytes + scale_bytes) + padding;
  const Array bytes = call.data({pages, page_bytes}, ROPE_DTYPE_F8_E4M3);
  const Array scales = as_type(bytes, ROPE_DTYPE_F8_E8M0), words = as_type(bytes, dtype);
  step.cache.k_pass_cache = strided(bytes, 0, {pages, entries, 1, nope_dim}, {page_bytes, data_bytes, data_bytes, 1});
  step.cache.k_cache = strided(words, nope_dim / 2, {pages, entries, 1, rotary_dim},
                               {page_bytes / 2, data_bytes / 2, data_bytes / 2, 1});
  step.cache.k_pass_scales =
      strided(scales, entries * data_bytes, {pages, entries, 1, groups}, {page_bytes, scale_bytes, scale_bytes, 1});
  step.quant.scale_floor = 1e-4;
  q.expect_result(call, step, 1);
  Outcome &codes = call.outcome(bytes), &written = call.outcome(scales), &tail = call.outcome(words);
  step.for_each_row([&](int64_t page, int64_t entry, const Row &row) {
    const Row rounded = step.arithmetic.rounded_to_dtype(row);
    const ScaledRow nope = step.arithmetic.scaled_in_groups(part(rounded, 0, nope_dim), groups, ue8m0);
    const int64_t data_at = bytes.at({page, entry * data_bytes});
    expect(codes, data_at, nope.codes);
    expect(tail, (data_at + nope_dim) / 2, part(rounded, nope_dim, rotary_dim));
    expect(written, bytes.at({page, entries * data_bytes + entry * scale_bytes}), nope.scales);
  });
  call.check(Direction::Forward);
}

// V4.1: 512 codes, also for the rotated channels, and 16 scales, at the end of the page or behind each token's codes.
void check_v41(rope_dtype_t dtype, bool is_scale_behind_token) {
  const int64_t groups = head_dim / 32, token_bytes = head_dim + groups, page_bytes = entries * token_bytes;
  RopeCall call(dtype, head_dim);
  call.config.quant_rounding = ROPE_QUANT_ROUND_FIRST;
  KvStep step(call, grouped_data(call, {tokens, head_dim}, 32, magnitudes));
  const Array bytes = call.data({pages, page_bytes}, ROPE_DTYPE_F8_E4M3), scales = as_type(bytes, ROPE_DTYPE_F8_E8M0);
  const int64_t code_stride = is_scale_behind_token ? token_bytes : head_dim;
  const int64_t scale_stride = is_scale_behind_token ? token_bytes : groups;
  const int64_t first_scale = is_scale_behind_token ? head_dim : entries * head_dim;
  step.cache.k_cache = strided(bytes, 0, {pages, entries, 1, head_dim}, {page_bytes, code_stride, code_stride, 1});
  step.cache.k_scales =
      strided(scales, first_scale, {pages, entries, 1, groups}, {page_bytes, scale_stride, scale_stride, 1});
  step.quant.scale_floor = 1e-4;
  Outcome &codes = call.outcome(bytes), &written = call.outcome(scales);
  step.for_each_row([&](int64_t page, int64_t entry, const Row &row) {
    const ScaledRow scaled = step.arithmetic.scaled_in_groups(step.arithmetic.rounded_to_dtype(row), groups, ue8m0);
    expect(codes, bytes.at({page, entry * code_stride}), scaled.codes);
    expect(written, bytes.at({page, first_scale + entry * scale_stride}), scaled.scales);
  });
  call.check(Direction::Forward);
}

// The kernel's other cache: whole rows of 512 channels in 16 bits, or coded with one scale; q becomes FP8 by the
// reciprocal of its scale. Nothing is rounded before it is scaled.
void check_full_cache(rope_dtype_t dtype, bool is_q_fp8, bool is_kv_fp8) {
  const Real q_scale_inv = single(19.7L), kv_scale = single(0.0173L);
  RopeCall call(dtype, head_dim);
  KvStep step(call, call.data({tokens, head_dim}));
  const QStep q(call, 3, 3, is_q_fp8 ? ROPE_DTYPE_F8_E4M3 : 0);
  const Array k_cache = call.data({pages, entries, head_dim}, is_kv_fp8 ? ROPE_DTYPE_F8_E4M3 : 0);
  step.cache.k_cache = k_cache.as({pages, entries, 1, head_dim});
  const Array q_by = scales(call, {q_scale_inv}), kv_by = scales(call, {single(1 / kv_scale)});
  step.quant.flags = ROPE_QUANT_FLAG_SCALE_MULTIPLIES;
  if (is_q_fp8) step.quant.q_scale = q_by.tensor();
  if (is_kv_fp8) step.quant.k_scale = kv_by.tensor();
  q.expect_result(call, step, is_q_fp8 ? q_scale_inv : 1);
  Outcome &outcome = call.outcome(k_cache);
  step.for_each_row([&](int64_t page, int64_t entry, const Row &row) {
    expect(outcome, k_cache.at({page, entry, 0}), is_kv_fp8 ? step.arithmetic.scaled(row, single(1 / kv_scale)) : row);
  });
  call.check(Direction::Forward);
}

}  // namespace

// 584 bytes per token; if a page must be a multiple of the 576 bytes of its data, it ends with padding.
TEST_CASE("vLLM fused_deepseek_v4_qnorm_rope_kv_rope_quant_insert: pages of 584 bytes a token", "[systems][step]") {
  for (rope_dtype_t dtype : of_16_bits) {
    for (int64_t padding : {0, 512}) check_v4(dtype, padding);
  }
}

TEST_CASE("vLLM fused_deepseek_v4_qnorm_rope_kv_rope_quant_insert: whole rows, q and kv to FP8", "[systems][step]") {
  for (rope_dtype_t dtype : of_16_bits) {
    for (bool is_q_fp8 : {false, true}) {
      for (bool is_kv_fp8 : {false, true}) check_full_cache(dtype, is_q_fp8, is_kv_fp8);
    }
  }
}

TEST_CASE("sglang kv_layout V41: pages of 528 bytes a token", "[systems][step]") {
  for (bool is_scale_behind_token : {false, true}) check_v41(ROPE_DTYPE_BF16, is_scale_behind_token);
}
