// SPDX-License-Identifier: Apache-2.0
// aiter_tests.cpp - aiter's combined norm, rope and cache: Gemma's weights, a norm of v without weights, three position
// axes, and the window of DeepSeek V4
//
// The fifth axis of its shuffled caches, [P, H, D/x, E, x], and its _2way variant, which is two calls, are not covered.
#include <catch2/catch_test_macros.hpp>
#include <vector>

#include "step_system.hpp"

using namespace systems;

namespace {

constexpr int64_t T = 7, max_position = 23, pages = 3, page_size = 4;

Array slot_mapping_of(RopeCall &call) {
  return call.positions(ROPE_DTYPE_I64, {T}, [](const Shape &at) { return at[0] == 5 ? -1 : (at[0] * 7 + 1) % 12; });
}

// Packed qkv to q_out and the caches, with the given rotations turns(token) and norms.
struct PackedStep {
  int64_t heads, k_heads, head_dim, rotary_dim;
  rope_style_t style;
  Norm norm;
  bool has_v_norm;
  rope_dtype_t code = 0;    // of the caches; 0: the data's type
  bool is_by_head = false;  // the scales of codes

  void check(RopeCall &call, const std::function<TurnRanges(const Arithmetic &, int64_t token)> &turns) const {
    const Arithmetic arithmetic(call.config.dtype);
    norm.fill(call.config);
    if (has_v_norm) call.config.norm_tensors = ROPE_NORM_TENSOR_Q | ROPE_NORM_TENSOR_K | ROPE_NORM_TENSOR_V;
    call.config.layout = ROPE_LAYOUT_THD;
    call.config.style = style;
    call.config.rotary_dim = static_cast<int32_t>(rotary_dim);
    const PagedCaches caches(call, CacheLayout::Nhd, {pages, page_size, k_heads, head_dim}, code);
    const int64_t columns = heads + 2 * k_heads;
    const Array qkv = call.data({T, columns * head_dim}), q_out = call.data({T, heads, head_dim});
    const Array q_weight = call.data({head_dim}), k_weight = call.data({head_dim});
    const Array slots = slot_mapping_of(call);
    std::vector<Real> k_by, v_by;
    for (int64_t h = 0; h < (is_by_head ? k_heads : 1); ++h) {
      k_by.push_back(single(0.0111L + 0.0037L * h));
      v_by.push_back(single(0.0043L + 0.0029L * h));
    }
    const Array k_scale = scales(call, k_by), v_scale = scales(call, v_by);
    rope_quant_args_t quant = ROPE_QUANT_ARGS_INIT;
    quant.k_scale = k_scale.tensor();
    quant.v_scale = v_scale.tensor();
    if (code) call.args.quant = &quant;
    const rope_norm_args_t norms = norm_args(q_weight, k_weight);
    rope_cache_args_t cache = cache_args(caches);
    cache.slots = slots.tensor();
    const rope_tensor_t all = qkv.as({T, columns, head_dim});
    call.args.flags = ROPE_FLAG_V_UNROTATED;
    call.args.q = narrow(all, 1, 0, heads);
    call.args.k = narrow(all, 1, heads, k_heads);
    call.args.v = narrow(all, 1, heads + k_heads, k_heads);
    call.args.q_out = q_out.tensor();
    call.args.norm = &norms;
    call.args.cache = &cache;
    call.expect_no_fault();
    Outcome &q_outcome = call.outcome(q_out);
    Outcome &k_outcome = call.outcome(caches.of(false)), &v_outcome = call.outcome(caches.of(true));
    for (int64_t t = 0; t < T; ++t) {
      const auto head_at = [&](int64_t head) { return read(qkv, qkv.at({t, head * head_dim}), head_dim); };
      const auto result = [&](int64_t head, const Array &weight) {
        const Row row = arithmetic.normed(norm, head_at(head), read(weight, 0, head_dim));
        return arithmetic.rotated(style, 0, rotary_dim, row, turns(arithmetic, t));
      };
      for (int64_t h = 0; h < heads; ++h) expect(q_outcome, q_out.at({t, h, 0}), result(h, q_weight));
      const int64_t slot = slots.integer({t});
      for (int64_t h = 0; slot >= 0 && h < k_heads; ++h) {
        const int64_t page = slot / page_size, entry = slot % page_size;
        const Row v = head_at(heads + k_heads + h);
        const auto stored = [&](const Row &row, const std::vector<Real> &by) {
          return code ? arithmetic.scaled(row, single(1 / by[is_by_head ? h : 0])) : row;
        };
        expect(k_outcome, caches.at(false, page, entry, h), stored(result(heads + h, k_weight), k_by));
        expect(v_outcome, caches.at(true, page, entry, h),
               stored(has_v_norm ? arithmetic.normed(norm, v, {}) : v, v_by));
      }
    }
    call.check(Direction::Forward);
  }
};

}  // namespace

TEST_CASE("aiter fused_qk_norm_rope_cache: gemma_norm, v_norm, partial rotary", "[systems][step]") {
  for (rope_dtype_t dtype : serving) {
    for (rope_style_t style : styles) {
      for (bool gemma_norm : {false, true}) {
        for (bool v_norm : {false, true}) {
          for (const auto &[head_dim, rotary_dim] : {std::pair{128, 128}, std::pair{128, 64}, std::pair{512, 128}}) {
            RopeCall call(dtype, head_dim);
            Norm norm;
            norm.weight_offset = gemma_norm ? 1 : 0;
            const Array table = call.table(dtype, {max_position, rotary_dim});
            const Array positions =
                call.positions(ROPE_DTYPE_I64, {T}, [](const Shape &at) { return (at[0] * 9 + 4) % max_position; });
            call.args.positions = positions.tensor();
            take_cos_sin(call, table);
            PackedStep{3, 2, head_dim, rotary_dim, style, norm, v_norm}.check(
                call, [&](const Arithmetic &arithmetic, int64_t t) {
                  return turns_of(arithmetic, table, positions.integer({t}));
                });
          }
        }
      }
    }
  }
}

// One scale for k and one for v, or one for each head; their rounded reciprocals multiply. q is not coded.
TEST_CASE("aiter fused_qk_norm_rope_cache: FP8 caches, scales of tensors and of heads", "[systems][step]") {
  for (rope_dtype_t dtype : serving) {
    for (rope_style_t style : styles) {
      for (bool gemma_norm : {false, true}) {
        for (bool is_by_head : {false, true}) {
          for (const auto &[head_dim, rotary_dim] : {std::pair{128, 128}, std::pair{256, 64}}) {
            RopeCall call(dtype, head_dim);
            Norm norm;
            norm.weight_offset = gemma_norm ? 1 : 0;
            const Array table = call.table(dtype, {max_position, rotary_dim});
            const Array positions =
                call.positions(ROPE_DTYPE_I64, {T}, [](const Shape &at) { return (at[0] * 9 + 4) % max_position; });
            call.args.positions = positions.tensor();
            take_cos_sin(call, table);
            PackedStep{5, 3, head_dim, rotary_dim, style, norm, gemma_norm, ROPE_DTYPE_F8_E4M3, is_by_head}.check(
                call, [&](const Arithmetic &arithmetic, int64_t t) {
                  return turns_of(arithmetic, table, positions.integer({t}));
                });
          }
        }
      }
    }
  }
}

// Pairs use time, height and width in turn, up to the lengths of the sections of height and width (Qwen3-VL).
TEST_CASE("aiter fused_qk_norm_mrope_cache: three position axes", "[systems][step]") {
  const int64_t head_dim = 128, pairs = head_dim / 2, section[] = {24, 20, 20};
  for (rope_dtype_t dtype : serving) {
    RopeCall call(dtype, head_dim);
    const Array table = call.table(dtype, {max_position, head_dim});
    const Array positions = call.positions(
        ROPE_DTYPE_I64, {3, T}, [](const Shape &at) { return (at[0] * 5 + at[1] * (3 + at[0])) % max_position; });
    rope_sections_t sections = ROPE_SECTIONS_INIT;
    sections.type = ROPE_SECTIONS_INTERLEAVED;
    sections.num_sections = 3;
    for (int axis = 0; axis < 3; ++axis) sections.section[axis] = static_cast<int32_t>(section[axis]);
    std::vector<int32_t> pair_axis(pairs);
    REQUIRE(rope_section_axes(head_dim, 10000, &sections, pair_axis.data(), nullptr) == ROPE_STATUS_SUCCESS);
    call.config.num_axes = 3;
    call.config.pair_axis = pair_axis.data();
    call.args.positions = positions.tensor();
    take_cos_sin(call, table);
    const auto axis_of = [&](int64_t pair) {
      const int64_t axis = pair % 3;
      return axis != 0 && pair < 3 * section[axis] ? axis : 0;
    };
    PackedStep{3, 2, head_dim, head_dim, ROPE_STYLE_HALF, Norm(), false}.check(
        call, [&](const Arithmetic &arithmetic, int64_t t) -> TurnRanges {
          return [&, t](int64_t pair) {
            const int64_t row = positions.integer({axis_of(pair), t});
            return TurnRange{arithmetic.number(table.value({row, pair})),
                             arithmetic.number(table.value({row, pairs + pair}))};
          };
        });
  }
}

// DeepSeek V4 in 16 bits: q is normalised without weights, the tails of q and of the only kv head are rotated, and kv
// is written to the page that the window's table has for its sequence and position. Tokens with a sequence of -1 or a
// position below 0 are padding.
TEST_CASE("aiter DeepSeek V4: window table by sequence and position", "[systems][step]") {
  const int64_t heads = 4, head_dim = 512, rotary_dim = 64, nope = head_dim - rotary_dim, sequences = 2, blocks = 5;
  const int64_t batch_id_values[] = {0, 0, 1, -1, 1, 0, 1}, position_values[] = {6, 7, 17, 3, 18, -1, 0};
  for (rope_dtype_t dtype : serving) {
    RopeCall call(dtype, head_dim);
    const Arithmetic arithmetic(dtype);
    const Norm norm;
    norm.fill(call.config);
    call.config.norm_tensors = ROPE_NORM_TENSOR_Q;
    call.config.layout = ROPE_LAYOUT_THD;
    call.config.style = ROPE_STYLE_INTERLEAVED;
    call.config.rotary_dim = rotary_dim;
    call.config.rotary_offset = nope;
    const Array q = call.data({T, heads, head_dim}), kv = call.data({T, head_dim});
    const Array swa_cache = call.data({2 * blocks, page_size, head_dim});
    const Array batch_id = call.positions(ROPE_DTYPE_I32, {T}, [&](const Shape &at) { return batch_id_values[at[0]]; });
    const Array positions =
        call.positions(ROPE_DTYPE_I64, {T}, [&](const Shape &at) { return position_values[at[0]]; });
    const Array swa_block_tables = call.positions(ROPE_DTYPE_I32, {sequences, blocks},
                                                  [](const Shape &at) { return (at[0] * blocks + at[1]) * 3 % 10; });
    const rope_norm_args_t norms = ROPE_NORM_ARGS_INIT;
    rope_cache_args_t cache = ROPE_CACHE_ARGS_INIT;
    cache.k_cache = swa_cache.as({2 * blocks, page_size, 1, head_dim});
    cache.page_table = swa_block_tables.tensor();
    cache.sequence = batch_id.tensor();
    call.args.q = q.tensor();
    call.args.k = kv.as({T, 1, head_dim});
    call.args.positions = positions.tensor();
    call.args.norm = &norms;
    call.args.cache = &cache;
    call.expect_no_fault();
    Outcome &q_outcome = call.outcome(q), &kv_outcome = call.outcome(swa_cache);
    for (int64_t t = 0; t < T; ++t) {
      const int64_t position = position_values[t], b = batch_id_values[t];
      const auto turn = [&](int64_t i) { return arithmetic.computed(position, frequency(10000, i, rotary_dim)); };
      const auto rotated = [&](const Row &row) {
        return arithmetic.rotated(ROPE_STYLE_INTERLEAVED, nope, rotary_dim, row, turn);
      };
      for (int64_t h = 0; h < heads; ++h) {
        const int64_t head = q.at({t, h, 0});
        expect(q_outcome, head, rotated(arithmetic.normed(norm, read(q, head, head_dim), {})));
      }
      if (b < 0 || position < 0) continue;
      const int64_t page = swa_block_tables.integer({b, position / page_size});
      expect(kv_outcome, swa_cache.at({page, position % page_size, 0}), rotated(read(kv, kv.at({t, 0}), head_dim)));
    }
    call.check(Direction::Forward);
  }
}
