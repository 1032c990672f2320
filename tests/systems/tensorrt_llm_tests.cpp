// SPDX-License-Identifier: Apache-2.0
// tensorrt_llm_tests.cpp - TensorRT-LLM's fusedQKNormRope: packed qkv, angles computed on the fly, YaRN; its
// preprocessing of qkv and its MLA kernels
//
// The angles of fusedQKNormRope are powf and __sincosf of fp32; librope's are exact.
#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <cmath>
#include <vector>

#include "step_system.hpp"

using namespace systems;

namespace {

constexpr Real pi = 3.14159265358979323846264338327950288L;

// factor, low and high as in the caller, and the frequency as in the kernel.
struct Yarn {
  Real base, factor, low, high;

  Real frequency(int64_t i, int64_t rotary_dim) const {
    const Real extrapolated = systems::frequency(base, i, rotary_dim);
    const Real ramp = std::clamp((static_cast<Real>(i) - low) / (high - low), 0.0L, 1.0L);
    return extrapolated / factor * ramp + extrapolated * (1 - ramp);
  }
};

// The pair that makes `turns` turns within the positions of the training.
Real pair_of(Real turns, Real base, int64_t rotary_dim, Real trained_positions) {
  return rotary_dim * std::log(trained_positions / (turns * 2 * pi)) / (2 * std::log(base));
}

void check_packed(rope_dtype_t dtype, rope_style_t style, bool is_yarn, int32_t head_dim, int32_t rotary_dim) {
  const int64_t T = 7, heads_q = 4, heads_k = 2, heads_v = 2, trained_positions = 4096;
  const double base = 1e6, yarn_factor = 4, attention_factor = 1.1;
  RopeCall call(dtype, head_dim);
  const Arithmetic arithmetic(dtype);
  const Norm norm;
  norm.fill(call.config);
  call.config.layout = ROPE_LAYOUT_THD;
  call.config.style = style;
  call.config.rotary_dim = rotary_dim;
  call.config.theta = base;
  Yarn yarn = {base, 1, 0, 1};
  std::vector<double> inv_freq(rotary_dim / 2);
  if (is_yarn) {
    yarn = {base, yarn_factor, std::floor(pair_of(32, base, rotary_dim, trained_positions)),
            std::ceil(pair_of(1, base, rotary_dim, trained_positions))};
    rope_scaling_t scaling = ROPE_SCALING_INIT;
    scaling.type = ROPE_SCALING_YARN;
    scaling.factor = yarn_factor;
    scaling.original_max_position = trained_positions;
    scaling.attention_factor = attention_factor;
    REQUIRE(rope_scaled_frequencies(rotary_dim, base, &scaling, inv_freq.data(), &call.config.attention_scale) ==
            ROPE_STATUS_SUCCESS);
    call.config.inv_freq = inv_freq.data();
  }
  const int64_t columns = (heads_q + heads_k + heads_v) * head_dim;
  const Array qkv = call.data({T, columns});
  const Array q_weight = call.data({head_dim}), k_weight = call.data({head_dim});
  const Array position_ids =
      call.positions(ROPE_DTYPE_I32, {T}, [](const Shape &at) { return 1000 * at[0] * at[0] + at[0]; });
  const rope_norm_args_t norms = norm_args(q_weight, k_weight);
  const rope_tensor_t all = qkv.as({T, columns / head_dim, head_dim});
  call.args.q = narrow(all, 1, 0, heads_q);
  call.args.k = narrow(all, 1, heads_q, heads_k);
  call.args.positions = position_ids.tensor();
  call.args.norm = &norms;
  Outcome &outcome = call.outcome(qkv);
  for_each({T, heads_q + heads_k}, [&](const Shape &at) {
    const int64_t head = qkv.at({at[0], at[1] * head_dim}), position = position_ids.integer({at[0]});
    const Row weight = read(at[1] < heads_q ? q_weight : k_weight, 0, head_dim);
    const Row row = arithmetic.normed(norm, read(qkv, head, head_dim), weight);
    const auto turn = [&](int64_t i) {
      return arithmetic.computed(position, yarn.frequency(i, rotary_dim), is_yarn ? attention_factor : 1);
    };
    expect(outcome, head, arithmetic.rotated(style, 0, rotary_dim, row, turn));
  });
  call.check(Direction::Forward);
}

// applyMLARope, generation: a step with S new tokens for each cached sequence. q_pe, a slice of q, is rotated into the
// tail of heads; a matrix product has written the first 512 channels of these heads (the absorption). With an FP8
// cache, the complete heads are converted to FP8 in another tensor, after rounding to the data's type. fuse_buf holds
// the latent and k_pe.
void check_generation(rope_dtype_t dtype, bool is_fp8) {
  const int64_t batch = 3, seq_len = 2, heads = 5, nope = 128, tokens_per_block = 4, num_blocks = 11, max_blocks = 3;
  const int64_t max_position = 13, lengths[] = {12, 2, 7};  // including this step
  const Real quant_scale_q = single(41.3L), quant_scale_kv = single(73.1L);
  const rope_dtype_t code = is_fp8 ? ROPE_DTYPE_F8_E4M3 : 0;
  RopeCall call(dtype, latent_dim);
  const Arithmetic arithmetic(dtype);
  fill_latent(call.config);
  call.config.layout = ROPE_LAYOUT_BSHD;
  call.config.style = ROPE_STYLE_INTERLEAVED;
  call.config.theta = 0;
  if (is_fp8) call.config.quant_rounding = ROPE_QUANT_ROUND_FIRST;
  const Array q = call.data({batch, seq_len, heads, nope + qk_rope_head_dim});
  const Array qkv_output = call.data({batch, seq_len, heads, latent_dim});
  const Array quant_q = call.data({batch, seq_len, heads, latent_dim}, ROPE_DTYPE_F8_E4M3);
  const Array fuse_buf = call.data({batch, seq_len, 1, latent_dim});
  const Array kv_cache = call.data({num_blocks, tokens_per_block, 1, latent_dim}, code);
  const Array cos_sin = call.table(ROPE_DTYPE_F32, {max_position, qk_rope_head_dim / 2, 2});
  const Array kv_cache_lengths =
      call.positions(ROPE_DTYPE_I32, {batch}, [&](const Shape &at) { return lengths[at[0]]; });
  const Array block_offsets = call.positions(ROPE_DTYPE_I32, {batch, max_blocks}, [&](const Shape &at) {
    return at[1] * tokens_per_block < lengths[at[0]] ? (at[0] * max_blocks + at[1]) * 5 % num_blocks : -1;
  });
  const Array q_scale = scales(call, {quant_scale_q}), kv_scale = scales(call, {quant_scale_kv});
  rope_quant_args_t quant = ROPE_QUANT_ARGS_INIT;
  quant.flags = ROPE_QUANT_FLAG_SCALE_MULTIPLIES;
  quant.q_scale = q_scale.tensor();
  quant.k_scale = kv_scale.tensor();
  rope_input_args_t input = ROPE_INPUT_ARGS_INIT;
  input.q_pass = narrow(qkv_output.tensor(), 3, 0, kv_lora_rank);
  rope_cache_args_t cache = ROPE_CACHE_ARGS_INIT;
  cache.k_cache = kv_cache.tensor();
  cache.page_table = block_offsets.tensor();
  call.args.q = narrow(q.tensor(), 3, nope, qk_rope_head_dim);
  call.args.q_out = is_fp8 ? quant_q.tensor() : narrow(qkv_output.tensor(), 3, kv_lora_rank, qk_rope_head_dim);
  call.args.k = fuse_buf.tensor();
  call.args.start_positions = kv_cache_lengths.tensor();
  call.args.position_offset = -seq_len;
  call.args.cos = select(cos_sin.tensor(), 2, 0);
  call.args.sin = select(cos_sin.tensor(), 2, 1);
  call.args.cache = &cache;
  if (is_fp8) {
    call.args.quant = &quant;
    call.args.input = &input;
  }
  call.expect_no_fault();
  Outcome &q_outcome = call.outcome(is_fp8 ? quant_q : qkv_output), &cached = call.outcome(kv_cache);
  for_each({batch, seq_len}, [&](const Shape &at) {
    const int64_t b = at[0], s = at[1], position = lengths[b] - seq_len + s;
    const auto turn = [&](int64_t pair) {
      return TurnRange{arithmetic.number(cos_sin.value({position, pair, 0})),
                       arithmetic.number(cos_sin.value({position, pair, 1}))};
    };
    const auto turned = [&](const Array &array, int64_t first) {
      return arithmetic.rounded_to_dtype(
          arithmetic.rotated(ROPE_STYLE_INTERLEAVED, 0, qk_rope_head_dim, read(array, first, qk_rope_head_dim), turn));
    };
    for (int64_t h = 0; h < heads; ++h) {
      const int64_t to = qkv_output.at({b, s, h, 0});
      const Row tail = turned(q, q.at({b, s, h, nope}));
      expect(q_outcome, to + kv_lora_rank, is_fp8 ? arithmetic.scaled(tail, quant_scale_q) : tail);
      if (is_fp8) expect(q_outcome, to, arithmetic.scaled(read(qkv_output, to, kv_lora_rank), quant_scale_q));
    }
    const int64_t block = block_offsets.integer({b, position / tokens_per_block});
    const int64_t from = fuse_buf.at({b, s, 0, 0}), to = kv_cache.at({block, position % tokens_per_block, 0, 0});
    Row row = read(fuse_buf, from, kv_lora_rank);
    const Row tail = turned(fuse_buf, from + kv_lora_rank);
    row.insert(row.end(), tail.begin(), tail.end());
    expect(cached, to, is_fp8 ? arithmetic.scaled(row, quant_scale_kv) : row);
  });
  call.check(Direction::Forward);
}

}  // namespace

TEST_CASE("TensorRT-LLM fusedQKNormRope: packed qkv in place, YaRN", "[systems][step]") {
  for (rope_dtype_t dtype : serving) {
    for (rope_style_t style : styles) {
      for (bool is_yarn : {false, true}) {
        check_packed(dtype, style, is_yarn, 64, 64);
        check_packed(dtype, style, is_yarn, 128, 128);
        check_packed(dtype, style, is_yarn, 128, 64);
      }
    }
  }
}

// QKVPreprocessing of a chunk of a prompt: q is rotated and multiplied by logn_scaling[position], in place; k and v go
// to the blocks [blocks, 2, H, tokens, D] of the request, in FP8 with a scale that multiplies. The factors of the chunk
// are a part of the table.
TEST_CASE("TensorRT-LLM QKV preprocessing: logn_scaling of q, k and v to FP8 blocks", "[systems][step]") {
  const int64_t T = 13, past = 9, q_heads = 5, kv_heads = 2, head_dim = 128, tokens_per_block = 4, num_blocks = 11;
  const int64_t max_position = 37, trained_positions = 12, columns = q_heads + 2 * kv_heads;
  const Real kv_scale_orig_quant = single(73.1L);
  for (rope_dtype_t dtype : serving) {
    for (bool is_fp8 : {false, true}) {
      const rope_dtype_t code = is_fp8 ? ROPE_DTYPE_F8_E4M3 : 0;
      RopeCall call(dtype, head_dim);
      const Arithmetic arithmetic(dtype);
      call.config.layout = ROPE_LAYOUT_THD;
      const PagedCaches caches(call, CacheLayout::StackedPagesHnd, {num_blocks, tokens_per_block, kv_heads, head_dim},
                               code);
      const Array qkv = call.data({T, columns, head_dim});
      const Array cos_sin = call.table(ROPE_DTYPE_F32, {max_position, head_dim});
      const Array logn_scaling = call.values(ROPE_DTYPE_F32, {max_position}, [](const Shape &at) {
        return std::max(1.0L, std::log(static_cast<Real>(at[0] + 1)) / std::log(static_cast<Real>(trained_positions)));
      });
      const Array block_offsets = call.positions(
          ROPE_DTYPE_I32, {1, 7}, [](const Shape &at) { return at[1] == 6 ? -1 : (at[1] * 5 + 2) % num_blocks; });
      const Array kv_scale = scales(call, {kv_scale_orig_quant});
      rope_quant_args_t quant = ROPE_QUANT_ARGS_INIT;
      quant.flags = ROPE_QUANT_FLAG_SCALE_MULTIPLIES;
      quant.k_scale = quant.v_scale = kv_scale.tensor();
      if (is_fp8) call.args.quant = &quant;
      rope_input_args_t input = ROPE_INPUT_ARGS_INIT;
      input.q_row_factor = narrow(logn_scaling.tensor(), 0, past, T);
      rope_cache_args_t cache = cache_args(caches);
      cache.page_table = block_offsets.tensor();
      call.args.flags = ROPE_FLAG_V_UNROTATED;
      call.args.q = narrow(qkv.tensor(), 1, 0, q_heads);
      call.args.k = narrow(qkv.tensor(), 1, q_heads, kv_heads);
      call.args.v = narrow(qkv.tensor(), 1, q_heads + kv_heads, kv_heads);
      call.args.position_offset = past;
      call.args.cache = &cache;
      call.args.input = &input;
      call.expect_no_fault();
      take_cos_sin(call, cos_sin);
      Outcome &q_outcome = call.outcome(qkv), &cached = call.outcome(caches.of(false));
      for (int64_t t = 0; t < T; ++t) {
        const int64_t position = past + t;
        const int64_t block = block_offsets.integer({0, position / tokens_per_block});
        const auto head_at = [&](int64_t head) { return read(qkv, qkv.at({t, head, 0}), head_dim); };
        const auto rotated = [&](int64_t head) {
          return arithmetic.rotated(ROPE_STYLE_HALF, 0, head_dim, head_at(head),
                                    turns_of(arithmetic, cos_sin, position));
        };
        for (int64_t h = 0; h < q_heads; ++h) {
          expect(q_outcome, qkv.at({t, h, 0}), arithmetic.scaled(rotated(h), logn_scaling.value({position})));
        }
        for (int64_t h = 0; h < kv_heads; ++h) {
          const Row rows[] = {rotated(q_heads + h), head_at(q_heads + kv_heads + h)};
          for (bool is_v : {false, true}) {
            expect(cached, caches.at(is_v, block, position % tokens_per_block, h),
                   is_fp8 ? arithmetic.scaled(rows[is_v], kv_scale_orig_quant) : rows[is_v]);
          }
        }
      }
      call.check(Direction::Forward);
    }
  }
}

TEST_CASE("TensorRT-LLM applyMLARope: generation, q joined with the latent, heads of 576 cached", "[systems][step]") {
  for (rope_dtype_t dtype : of_16_bits) check_generation(dtype, false);
}

TEST_CASE("TensorRT-LLM applyMLARope: generation, q and the cache in FP8", "[systems][step]") {
  for (rope_dtype_t dtype : of_16_bits) check_generation(dtype, true);
}
