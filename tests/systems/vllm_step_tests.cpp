// SPDX-License-Identifier: Apache-2.0
// vllm_step_tests.cpp - vLLM's cache writes and its norm with rope: each token has a slot, -1 for padding, and a slot
// mapping may be shorter than the padded batch
//
// concat_and_cache_mla_rope_fused rotates in the data's type, like rotation_rounding.
#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <cmath>
#include <utility>
#include <vector>

#include "step_system.hpp"

using namespace systems;

namespace {

constexpr int64_t T = 9, mapped = 7, max_position = 23;  // slot_mapping lacks the last tokens, which are padding

// Different slots for `count` tokens; token 2 has none.
Array slot_mapping(RopeCall &call, rope_dtype_t dtype, int64_t count, int64_t num_slots) {
  return call.positions(dtype, {count},
                        [&](const Shape &at) { return at[0] == 2 ? -1 : (at[0] * 11 + 3) % num_slots; });
}

// The cached tokens, each with its page and entry.
void for_each_slot(const Array &slots, int64_t entries,
                   const std::function<void(int64_t token, int64_t page, int64_t entry)> &visit) {
  for (int64_t t = 0; t < slots.shape[0]; ++t) {
    const int64_t slot = slots.integer({t});
    if (slot >= 0) visit(t, slot / entries, slot % entries);
  }
}

Array positions_of(RopeCall &call, int64_t tokens = T) {
  return call.positions(ROPE_DTYPE_I64, {tokens}, [](const Shape &at) { return (at[0] * 9 + 4) % max_position; });
}

void check_packed(rope_dtype_t dtype, rope_dtype_t table_dtype, rope_style_t style, int32_t head_dim,
                  int32_t rotary_dim) {
  const int64_t heads = 3, k_heads = 2;
  RopeCall call(dtype, head_dim);
  const Arithmetic arithmetic(dtype);
  const Norm norm;
  norm.fill(call.config);
  call.config.layout = ROPE_LAYOUT_THD;
  call.config.style = style;
  call.config.rotary_dim = rotary_dim;
  const Array qkv = call.data({T, (heads + 2 * k_heads) * head_dim});
  const Array q_weight = call.data({head_dim}), k_weight = call.data({head_dim});
  const Array table = call.table(table_dtype, {max_position, rotary_dim});
  const Array positions = positions_of(call);
  const rope_norm_args_t norms = norm_args(q_weight, k_weight);
  const rope_tensor_t all = qkv.as({T, heads + 2 * k_heads, head_dim});
  call.args.q = narrow(all, 1, 0, heads);
  call.args.k = narrow(all, 1, heads, k_heads);
  call.args.positions = positions.tensor();
  call.args.norm = &norms;
  take_cos_sin(call, table);
  Outcome &outcome = call.outcome(qkv);
  for_each({T, heads + k_heads}, [&](const Shape &at) {
    const int64_t head = qkv.at({at[0], at[1] * head_dim});
    const Row weight = read(at[1] < heads ? q_weight : k_weight, 0, head_dim);
    const Row row = arithmetic.normed(norm, read(qkv, head, head_dim), weight);
    const TurnRanges turns = turns_of(arithmetic, table, positions.integer({at[0]}));
    expect(outcome, head, arithmetic.rotated(style, 0, rotary_dim, row, turns));
  });
  call.check(Direction::Forward);
}

// vllm#57682: qkv is only read, q and k go to separate tensors, and k and v to the cache. A token without a slot is
// normed and rotated, not cached.
void check_write_cache(rope_dtype_t dtype, CacheLayout layout, rope_style_t style, int64_t tokens) {
  const int64_t heads = 4, k_heads = 2, head_dim = 128;
  RopeCall call(dtype, head_dim);
  const Arithmetic arithmetic(dtype);
  const Norm norm;
  norm.fill(call.config);
  call.config.layout = ROPE_LAYOUT_THD;
  call.config.style = style;
  const PagedCaches caches(call, layout, {tokens / 4 + 3, 4, k_heads, head_dim});
  const Array qkv = call.data({tokens, heads + 2 * k_heads, head_dim});
  const Array q_out = call.data({tokens, heads, head_dim}), k_out = call.data({tokens, k_heads, head_dim});
  const Array q_weight = call.data({head_dim}), k_weight = call.data({head_dim});
  const Array table = call.table(dtype, {max_position, head_dim});
  const Array positions = positions_of(call, tokens), slots = slot_mapping(call, ROPE_DTYPE_I64, tokens - 2, tokens);
  const rope_norm_args_t norms = norm_args(q_weight, k_weight);
  rope_cache_args_t cache = cache_args(caches);
  cache.slots = slots.tensor();
  call.args.flags = ROPE_FLAG_V_UNROTATED;
  call.args.q = narrow(qkv.tensor(), 1, 0, heads);
  call.args.k = narrow(qkv.tensor(), 1, heads, k_heads);
  call.args.v = narrow(qkv.tensor(), 1, heads + k_heads, k_heads);
  call.args.q_out = q_out.tensor();
  call.args.k_out = k_out.tensor();
  call.args.positions = positions.tensor();
  call.args.norm = &norms;
  call.args.cache = &cache;
  call.expect_no_fault();
  take_cos_sin(call, table);
  const auto result = [&](int64_t t, int64_t head, const Array &weight) {
    const Row row = read(qkv, qkv.at({t, head, 0}), head_dim);
    return arithmetic.rotated(style, 0, head_dim, arithmetic.normed(norm, row, read(weight, 0, head_dim)),
                              turns_of(arithmetic, table, positions.integer({t})));
  };
  Outcome &q_outcome = call.outcome(q_out), &k_outcome = call.outcome(k_out);
  for_each({tokens, heads}, [&](const Shape &at) {
    expect(q_outcome, q_out.at({at[0], at[1], 0}), result(at[0], at[1], q_weight));
  });
  for_each({tokens, k_heads}, [&](const Shape &at) {
    expect(k_outcome, k_out.at({at[0], at[1], 0}), result(at[0], heads + at[1], k_weight));
  });
  Outcome &cached = call.outcome(caches.of(false));
  Formula &copied = call.formula(qkv, caches.of(true));
  for_each_slot(slots, caches.shape.entries, [&](int64_t t, int64_t page, int64_t entry) {
    for (int64_t h = 0; h < k_heads; ++h) {
      expect(cached, caches.at(false, page, entry, h), result(t, heads + h, k_weight));
      copy(copied, caches.at(true, page, entry, h), qkv.at({t, heads + k_heads + h, 0}), head_dim);
    }
  });
  call.check(Direction::Forward);
}

// The scale for data with this largest magnitude, and codes with this largest magnitude.
using ScaleOf = std::function<Real(Real largest, Real largest_code)>;

Real power_of_two(Real largest, Real largest_code) {
  return std::exp2(std::floor(std::log2(largest / largest_code)));
}

Real calibrated(Real largest, Real largest_code) {
  return single(largest / largest_code);
}

// key and value go to caches of 8 bits, each with the scale of its tensor or head. librope multiplies by the
// reciprocal; for scales that are no powers of two, some codes are neighbours of the quotient's codes.
void check_codes(rope_dtype_t dtype, rope_dtype_t code, CacheLayout layout, bool is_by_head, const ScaleOf &scale_of,
                 int64_t tokens, Real tolerated) {
  const int64_t heads = 3, head_size = 64, entries = 5, pages = tokens / entries + 3;
  RopeCall call(dtype, head_size);
  const Arithmetic arithmetic(dtype);
  call.config.layout = ROPE_LAYOUT_THD;
  call.config.theta = 0;
  const PagedCaches caches(call, layout, {pages, entries, heads, head_size}, code);
  // slices of one qkv with 2 heads of q
  const int64_t q_heads = 2, columns = q_heads + 2 * heads;
  const Array qkv = call.data({tokens, columns, head_size});
  const Array slots = slot_mapping(call, ROPE_DTYPE_I64, tokens - 2, pages * entries);
  std::vector<Real> by[2];  // scales of k and v
  for (bool is_v : {false, true}) {
    for (int64_t h = 0; h < (is_by_head ? heads : 1); ++h) {
      Real largest = 0;
      for_each({tokens, head_size}, [&](const Shape &at) {
        const Real x = qkv.value({at[0], q_heads + is_v * heads + h, at[1]});
        largest = std::max(largest, std::fabs(x));
      });
      by[is_v].push_back(scale_of(largest, oracle::max_finite(code)));
    }
  }
  const Array k_scale = scales(call, by[0]), v_scale = scales(call, by[1]);
  rope_quant_args_t quant = ROPE_QUANT_ARGS_INIT;
  quant.k_scale = k_scale.tensor();
  quant.v_scale = v_scale.tensor();
  rope_cache_args_t cache = cache_args(caches);
  cache.slots = slots.tensor();
  call.args.flags = ROPE_FLAG_UNROTATED;
  call.args.k = narrow(qkv.tensor(), 1, q_heads, heads);
  call.args.v = narrow(qkv.tensor(), 1, q_heads + heads, heads);
  call.args.cache = &cache;
  call.args.quant = &quant;
  call.expect_no_fault();
  call.tolerate_codes(tolerated);
  for (bool is_v : {false, true}) {
    Outcome &outcome = call.outcome(caches.of(is_v));
    for_each_slot(slots, entries, [&](int64_t t, int64_t page, int64_t entry) {
      for (int64_t h = 0; h < heads; ++h) {
        const Row row = read(qkv, qkv.at({t, q_heads + is_v * heads + h, 0}), head_size);
        expect(outcome, caches.at(is_v, page, entry, h), arithmetic.divided(row, by[is_v][is_by_head ? h : 0]));
      }
    });
  }
  call.check(Direction::Forward);
}

// fp8_per_token_head (vllm#38378): each head of a token has a scale, which lies behind its codes and is at least 1e-6.
void check_token_heads(rope_dtype_t dtype, CacheLayout layout, int64_t tokens) {
  const int64_t heads = 3, head_size = 64, entries = 5, pages = tokens / entries + 3;
  RopeCall call(dtype, head_size);
  const Arithmetic arithmetic(dtype);
  call.config.layout = ROPE_LAYOUT_THD;
  call.config.theta = 0;
  const PagedCaches caches(call, layout, {pages, entries, heads, head_size + 4}, ROPE_DTYPE_F8_E4M3);
  PagedCaches floats = caches;
  floats.shape.channels /= 4;
  for (Array &array : floats.arrays) array = as_floats(array);
  Random random(17);
  // Token 1 has zeros; the scales of tokens 3 and 4 are raised, or almost.
  const auto value = [&](const Shape &at) -> Real {
    const Real size = at[0] == 1 ? 0 : at[0] == 3 ? 1e-5L : at[0] == 4 ? 3e-4L : 1;
    return size * random.normal();
  };
  const Array key = call.values(dtype, {tokens, heads, head_size}, value);
  const Array values = call.values(dtype, {tokens, heads, head_size}, value);
  const Array slots = slot_mapping(call, ROPE_DTYPE_I64, tokens - 2, pages * entries);
  const auto codes_of = [&](bool is_v) { return narrow(caches.view(is_v), 3, 0, head_size); };
  const auto scales_of = [&](bool is_v) { return narrow(floats.view(is_v), 3, head_size / 4, 1); };
  rope_cache_args_t cache = ROPE_CACHE_ARGS_INIT;
  cache.k_cache = codes_of(false);
  cache.v_cache = codes_of(true);
  cache.k_scales = scales_of(false);
  cache.v_scales = scales_of(true);
  cache.slots = slots.tensor();
  rope_quant_args_t quant = ROPE_QUANT_ARGS_INIT;
  quant.scale_floor = 448 * 1e-6;
  call.args.flags = ROPE_FLAG_UNROTATED;
  call.args.k = key.tensor();
  call.args.v = values.tensor();
  call.args.cache = &cache;
  call.args.quant = &quant;
  call.expect_no_fault();
  const auto scale_of = [](Real largest) { return std::max(single(largest / 448), single(1e-6L)); };
  for (bool is_v : {false, true}) {
    Outcome &codes = call.outcome(caches.of(is_v)), &scales = call.outcome(floats.of(is_v));
    for_each_slot(slots, entries, [&](int64_t t, int64_t page, int64_t entry) {
      for (int64_t h = 0; h < heads; ++h) {
        const Array &from = is_v ? values : key;
        const Group group = arithmetic.grouped(read(from, from.at({t, h, 0}), head_size), scale_of);
        expect(codes, caches.at(is_v, page, entry, h), group.row);
        expect(scales, floats.at(is_v, page, entry, h) + head_size / 4, {group.scale});
      }
    });
  }
  call.check(Direction::Forward);
}

// A page has the codes of its tokens, then a scale for each. The kernel divides, and takes the power of two from a
// rounded quotient.
void check_indexer_cache(rope_dtype_t dtype, bool is_ue8m0, Real tolerated) {
  const int64_t tokens = 211, head_dim = 128, entries = 16, pages = tokens / entries + 2;
  RopeCall call(dtype, head_dim);
  const Arithmetic arithmetic(dtype);
  call.config.layout = ROPE_LAYOUT_THD;
  call.config.theta = 0;
  const Array kv_cache = call.data({pages, entries * (head_dim + 4)}, ROPE_DTYPE_F8_E4M3);
  const Array floats = as_floats(kv_cache);
  Random random(18);
  // Token 1 has zeros; tokens of the second half have all magnitudes.
  const Array k = call.values(dtype, {tokens, head_dim}, [&](const Shape &at) -> Real {
    const int exponent = at[0] == 1 ? -100 : at[0] < tokens / 2 ? 0 : static_cast<int>(at[0] % 28) - 14;
    return std::ldexp(at[0] == 1 ? 0 : random.normal(), exponent);
  });
  const Array slots = slot_mapping(call, ROPE_DTYPE_I64, tokens - 2, pages * entries);
  rope_cache_args_t cache = ROPE_CACHE_ARGS_INIT;
  cache.k_cache = kv_cache.as({pages, entries, 1, head_dim + 4});
  cache.k_cache.shape[3] = head_dim;
  cache.k_cache.stride[1] = head_dim;
  cache.k_scales = narrow(floats.as({pages, entries * (head_dim / 4 + 1), 1, 1}), 1, entries * head_dim / 4, entries);
  cache.slots = slots.tensor();
  rope_quant_args_t quant = ROPE_QUANT_ARGS_INIT;
  quant.scale_floor = 1e-4;
  quant.flags = is_ue8m0 ? ROPE_QUANT_FLAG_POWER_OF_TWO : 0;
  call.args.flags = ROPE_FLAG_UNROTATED;
  call.args.k = k.as({tokens, 1, head_dim});
  call.args.cache = &cache;
  call.args.quant = &quant;
  call.expect_no_fault();
  call.tolerate_codes(tolerated);
  const auto scale_of = [&](Real largest) {
    const Real scale = single(std::max(largest, single(1e-4L)) / 448);
    return is_ue8m0 ? std::exp2(std::ceil(std::log2(scale))) : scale;
  };
  Outcome &codes = call.outcome(kv_cache), &scales = call.outcome(floats);
  for_each_slot(slots, entries, [&](int64_t t, int64_t page, int64_t entry) {
    const Group group = arithmetic.grouped(read(k, k.at({t, 0}), head_dim), scale_of, CodeBy::Quotient);
    expect(codes, kv_cache.at({page, entry * head_dim}), group.row);
    expect(scales, floats.at({page, entries * head_dim / 4 + entry}), {group.scale});
  });
  call.check(Direction::Forward);
}

// fp8_ds_mla: kv_c becomes codes with a scale for each tile of 128, beside k_pe unchanged. The tiles' largest
// magnitudes are 0 and numbers around every step of the scale's rule.
void check_ds_mla(rope_dtype_t dtype, double scale_floor, uint32_t flags, const ScaleRule &rule,
                  const std::vector<Real> &largest, Real tolerated) {
  const int64_t tokens = 40, pages = 6, entries = 8;
  RopeCall call(dtype, latent_dim);
  const Arithmetic arithmetic(dtype);
  fill_latent(call.config);
  call.config.theta = 0;
  const Array kv_c = grouped_data(call, {tokens, kv_lora_rank}, 128, largest);
  const Array k_pe = call.data({tokens, qk_rope_head_dim});
  const LatentRows rows(call, pages, entries);
  const Array slots = slot_mapping(call, ROPE_DTYPE_I64, tokens - 2, pages * entries);
  rope_quant_args_t quant = ROPE_QUANT_ARGS_INIT;
  quant.flags = flags;
  quant.scale_floor = scale_floor;
  rope_input_args_t input = ROPE_INPUT_ARGS_INIT;
  input.k_pass = kv_c.as({tokens, 1, kv_lora_rank});
  rope_cache_args_t cache = ROPE_CACHE_ARGS_INIT;
  rows.take(cache);
  cache.slots = slots.tensor();
  call.args.flags = ROPE_FLAG_UNROTATED;
  call.args.k = k_pe.as({tokens, 1, qk_rope_head_dim});
  call.args.cache = &cache;
  call.args.quant = &quant;
  call.args.input = &input;
  call.expect_no_fault();
  call.tolerate_codes(tolerated);
  Outcome &codes = call.outcome(rows.bytes), &scales = call.outcome(rows.scales);
  Formula &tail = call.formula(k_pe, rows.words);
  for_each_slot(slots, entries, [&](int64_t t, int64_t page, int64_t entry) {
    const ScaledRow row = arithmetic.scaled_in_groups(read(kv_c, kv_c.at({t, 0}), kv_lora_rank), 4, rule);
    expect(codes, rows.code_at(page, entry), row.codes);
    expect(scales, rows.scale_at(page, entry), row.scales);
    copy(tail, rows.turned_at(page, entry), k_pe.at({t, 0}), qk_rope_head_dim);
  });
  call.check(Direction::Forward);
}

// Kimi K3's prefill: k_out of each head is k_nope, then the common k_pe; q and k are turned or not. For FP8 the kernel
// multiplies by the reciprocals of three scales, also v. In the data's type q stays in place, and v is not written.
void check_kimi_k3(rope_dtype_t dtype, rope_dtype_t code, bool is_turned) {
  const int64_t heads = 3, nope = 128, rotary_dim = 64, head_dim = nope + rotary_dim;
  const Real q_by = single(31.7L), k_by = single(17.3L), v_by = single(53.9L);
  RopeCall call(dtype, head_dim);
  const Arithmetic arithmetic(dtype);
  call.config.layout = ROPE_LAYOUT_THD;
  call.config.style = ROPE_STYLE_INTERLEAVED;
  call.config.rotary_dim = rotary_dim;
  call.config.rotary_offset = nope;
  call.config.theta = 0;
  const Array q = call.data({T, heads, head_dim}), q_fp8 = call.data({T, heads, head_dim}, ROPE_DTYPE_F8_E4M3);
  const Array k_nope = call.data({T, heads, nope}), k_pe = call.data({T, rotary_dim});
  const Array k_out = call.data({T, heads, head_dim}, code);
  const Array v = call.data({T, heads, nope}), v_fp8 = call.data({T, heads, nope}, ROPE_DTYPE_F8_E4M3);
  const Array table = call.table(ROPE_DTYPE_F32, {max_position, rotary_dim});
  const Array positions = positions_of(call);
  const Array q_scale = scales(call, {q_by}), k_scale = scales(call, {k_by}), v_scale = scales(call, {v_by});
  rope_quant_args_t quant = ROPE_QUANT_ARGS_INIT;
  quant.flags = ROPE_QUANT_FLAG_SCALE_MULTIPLIES;
  quant.q_scale = q_scale.tensor();
  quant.k_scale = k_scale.tensor();
  quant.v_scale = v_scale.tensor();
  rope_input_args_t input = ROPE_INPUT_ARGS_INIT;
  input.k_pass = k_nope.tensor();
  call.args.flags = is_turned ? ROPE_FLAG_V_UNROTATED : ROPE_FLAG_UNROTATED;
  call.args.q = q.tensor();
  call.args.k = expanded(k_pe.as({T, 1, rotary_dim}), 1, heads);
  call.args.k_out = k_out.tensor();
  call.args.input = &input;
  if (code) {
    call.args.q_out = q_fp8.tensor();
    call.args.v = v.tensor();
    call.args.v_out = v_fp8.tensor();
    call.args.quant = &quant;
  }
  if (is_turned) {
    call.args.positions = positions.tensor();
    take_cos_sin(call, table);
  }
  const auto result = [&](int64_t t, Row row, Real by) {
    if (is_turned) {
      row = arithmetic.rotated(ROPE_STYLE_INTERLEAVED, nope, rotary_dim, std::move(row),
                               turns_of(arithmetic, table, positions.integer({t})));
    }
    return code ? arithmetic.scaled(row, by) : row;
  };
  Outcome &q_outcome = call.outcome(code ? q_fp8 : q), &k_outcome = call.outcome(k_out);
  Outcome &v_outcome = call.outcome(v_fp8);
  for_each({T, heads}, [&](const Shape &at) {
    const int64_t t = at[0], h = at[1];
    expect(q_outcome, q.at({t, h, 0}), result(t, read(q, q.at({t, h, 0}), head_dim), q_by));
    Row row = read(k_nope, k_nope.at({t, h, 0}), nope);
    const Row tail = read(k_pe, k_pe.at({t, 0}), rotary_dim);
    row.insert(row.end(), tail.begin(), tail.end());
    expect(k_outcome, k_out.at({t, h, 0}), result(t, row, k_by));
    if (code) expect(v_outcome, v_fp8.at({t, h, 0}), arithmetic.scaled(read(v, v.at({t, h, 0}), nope), v_by));
  });
  call.check(Direction::Forward);
}

}  // namespace

TEST_CASE("vLLM reshape_and_cache_flash: every cache layout", "[systems][step]") {
  const int64_t heads = 2, head_size = 64;
  for (rope_dtype_t dtype : serving) {
    for (CacheLayout layout : cache_layouts) {
      for (rope_dtype_t slot_dtype : integers) {
        RopeCall call(dtype, head_size);
        call.config.layout = ROPE_LAYOUT_THD;
        call.config.theta = 0;
        const PagedCaches caches(call, layout, {4, 5, heads, head_size});
        // key and value are slices of one qkv with 3 heads of q
        const int64_t q_heads = 3;
        const Array qkv = call.data({T, q_heads + 2 * heads, head_size});
        const Array slots = slot_mapping(call, slot_dtype, mapped, 20);
        rope_cache_args_t cache = cache_args(caches);
        cache.slots = slots.tensor();
        call.args.flags = ROPE_FLAG_UNROTATED;
        call.args.k = narrow(qkv.tensor(), 1, q_heads, heads);
        call.args.v = narrow(qkv.tensor(), 1, q_heads + heads, heads);
        call.args.cache = &cache;
        call.expect_no_fault();
        for (bool is_v : {false, true}) {
          Formula &formula = call.formula(qkv, caches.of(is_v));
          for_each_slot(slots, caches.shape.entries, [&](int64_t t, int64_t page, int64_t entry) {
            for (int64_t h = 0; h < heads; ++h) {
              copy(formula, caches.at(is_v, page, entry, h), qkv.at({t, q_heads + is_v * heads + h, 0}), head_size);
            }
          });
        }
        call.check(Direction::Forward);
      }
    }
  }
}

// Enough bytes for several threads.
TEST_CASE("vLLM reshape_and_cache_flash: a prompt of many pages", "[systems][step]") {
  const int64_t heads = 4, head_size = 128, tokens = 400, pages = 28, entries = 16;
  RopeCall call(ROPE_DTYPE_F32, head_size);
  call.config.layout = ROPE_LAYOUT_THD;
  call.config.theta = 0;
  const PagedCaches caches(call, CacheLayout::StackedPages, {pages, entries, heads, head_size});
  const Array key = call.data({tokens, heads, head_size}), value = call.data({tokens, heads, head_size});
  const Array slots = slot_mapping(call, ROPE_DTYPE_I64, tokens, pages * entries);
  rope_cache_args_t cache = cache_args(caches);
  cache.slots = slots.tensor();
  call.args.flags = ROPE_FLAG_UNROTATED;
  call.args.k = key.tensor();
  call.args.v = value.tensor();
  call.args.cache = &cache;
  call.expect_no_fault();
  for (bool is_v : {false, true}) {
    const Array &from = is_v ? value : key;
    Formula &formula = call.formula(from, caches.of(is_v));
    for_each_slot(slots, caches.shape.entries, [&](int64_t t, int64_t page, int64_t entry) {
      for (int64_t h = 0; h < heads; ++h) {
        copy(formula, caches.at(is_v, page, entry, h), from.at({t, h, 0}), head_size);
      }
    });
  }
  call.check(Direction::Forward);
}

// fp8 and fp8_e5m2 with scales that are powers of two: byte for byte.
TEST_CASE("vLLM reshape_and_cache_flash: FP8, scales of powers of two", "[systems][step]") {
  for (rope_dtype_t dtype : serving) {
    for (rope_dtype_t code : code_types) {
      for (CacheLayout layout : cache_layouts) {
        for (bool is_by_head : {false, true}) check_codes(dtype, code, layout, is_by_head, power_of_two, 13, 0);
      }
    }
  }
}

TEST_CASE("vLLM reshape_and_cache_flash: FP8, any scales", "[systems][step]") {
  for (rope_dtype_t dtype : serving) {
    for (rope_dtype_t code : code_types) {
      for (bool is_by_head : {false, true}) {
        for (CacheLayout layout : {CacheLayout::Nhd, CacheLayout::Hnd, CacheLayout::Packed}) {
          check_codes(dtype, code, layout, is_by_head, calibrated, 211, 5e-4L);
        }
      }
    }
  }
}

// 4.3125 / 448 is 69 / 7168. BF16 numbers that are divisible by 69 have quotients halfway between two codes, and the
// rounding of the reciprocal moves them to one side. Among scales from calibration this is one of the worst.
TEST_CASE("vLLM reshape_and_cache_flash: FP8, a scale with quotients halfway between codes", "[systems][step]") {
  const auto unlucky = [](Real, Real) { return single(4.3125L / 448); };
  check_codes(ROPE_DTYPE_BF16, ROPE_DTYPE_F8_E4M3, CacheLayout::Nhd, false, unlucky, 211, 1e-2L);
}

TEST_CASE("vLLM fp8_per_token_head: a scale behind the codes of each head", "[systems][step]") {
  for (rope_dtype_t dtype : serving) {
    for (CacheLayout layout : cache_layouts) check_token_heads(dtype, layout, 31);
  }
}

TEST_CASE("vLLM indexer_k_quant_and_cache: scales behind the codes of a page", "[systems][step]") {
  for (rope_dtype_t dtype : serving) {
    check_indexer_cache(dtype, true, 0);
    check_indexer_cache(dtype, false, 5e-4L);
  }
}

TEST_CASE("vLLM fused_qk_norm_rope: packed qkv in place, tables of any type", "[systems][step]") {
  for (rope_dtype_t dtype : serving) {
    for (rope_dtype_t table_dtype : floating) {
      for (rope_style_t style : styles) {
        check_packed(dtype, table_dtype, style, 64, 64);
        check_packed(dtype, table_dtype, style, 128, 32);
        check_packed(dtype, table_dtype, style, 256, 128);
      }
    }
  }
}

TEST_CASE("vLLM fused_qk_norm_rope: into q, k and the cache", "[systems][step]") {
  for (rope_dtype_t dtype : serving) {
    for (CacheLayout layout : cache_layouts) {
      for (rope_style_t style : styles) check_write_cache(dtype, layout, style, T);
    }
  }
  // enough bytes for several threads
  check_write_cache(ROPE_DTYPE_F32, CacheLayout::Nhd, ROPE_STYLE_HALF, 400);
}

// A row of the latent cache is kv_c, then k_pe: two caches over one buffer, each with one head.
TEST_CASE("vLLM concat_and_cache_mla: kv_c and k_pe in one row", "[systems][step]") {
  const int64_t rank = 512, rotary_dim = 64, row_width = rank + rotary_dim, pages = 3, entries = 8;
  for (rope_dtype_t dtype : serving) {
    for (rope_dtype_t slot_dtype : integers) {
      RopeCall call(dtype, rotary_dim);
      call.config.layout = ROPE_LAYOUT_THD;
      call.config.theta = 0;
      const Array kv_c = call.data({T, rank}), k_pe = call.data({T, rotary_dim});
      const Array kv_cache = call.data({pages, entries, row_width});
      const Array slots = slot_mapping(call, slot_dtype, mapped, pages * entries);
      const rope_tensor_t rows = kv_cache.as({pages, entries, 1, row_width});
      rope_cache_args_t cache = ROPE_CACHE_ARGS_INIT;
      cache.v_cache = narrow(rows, 3, 0, rank);
      cache.k_cache = narrow(rows, 3, rank, rotary_dim);
      cache.slots = slots.tensor();
      call.args.flags = ROPE_FLAG_UNROTATED;
      call.args.k = k_pe.as({T, 1, rotary_dim});
      call.args.v = kv_c.as({T, 1, rank});
      call.args.cache = &cache;
      call.expect_no_fault();
      Formula &latent = call.formula(kv_c, kv_cache), &tail = call.formula(k_pe, kv_cache);
      for_each_slot(slots, entries, [&](int64_t t, int64_t page, int64_t entry) {
        copy(latent, kv_cache.at({page, entry, 0}), kv_c.at({t, 0}), rank);
        copy(tail, kv_cache.at({page, entry, rank}), k_pe.at({t, 0}), rotary_dim);
      });
      call.check(Direction::Forward);
    }
  }
}

// Both parts of a row have one scale: x / scale[0].
TEST_CASE("vLLM concat_and_cache_mla: FP8, kv_c and k_pe by one scale", "[systems][step]") {
  const int64_t rank = 512, rotary_dim = 64, row_width = rank + rotary_dim, pages = 3, entries = 8;
  for (rope_dtype_t dtype : serving) {
    for (rope_dtype_t code : code_types) {
      for (bool is_power_of_two : {true, false}) {
        const Real by = single(is_power_of_two ? 0x1p-7L : 0.0137L);
        RopeCall call(dtype, rotary_dim);
        const Arithmetic arithmetic(dtype);
        call.config.layout = ROPE_LAYOUT_THD;
        call.config.theta = 0;
        const Array kv_c = call.data({T, rank}), k_pe = call.data({T, rotary_dim});
        const Array kv_cache = call.data({pages, entries, row_width}, code);
        const Array slots = slot_mapping(call, ROPE_DTYPE_I64, mapped, pages * entries);
        const Array scale = scales(call, {by});
        const rope_tensor_t rows = kv_cache.as({pages, entries, 1, row_width});
        rope_quant_args_t quant = ROPE_QUANT_ARGS_INIT;
        quant.k_scale = quant.v_scale = scale.tensor();
        rope_cache_args_t cache = ROPE_CACHE_ARGS_INIT;
        cache.v_cache = narrow(rows, 3, 0, rank);
        cache.k_cache = narrow(rows, 3, rank, rotary_dim);
        cache.slots = slots.tensor();
        call.args.flags = ROPE_FLAG_UNROTATED;
        call.args.k = k_pe.as({T, 1, rotary_dim});
        call.args.v = kv_c.as({T, 1, rank});
        call.args.cache = &cache;
        call.args.quant = &quant;
        call.expect_no_fault();
        if (!is_power_of_two) call.tolerate_codes(5e-4L);
        Outcome &outcome = call.outcome(kv_cache);
        for_each_slot(slots, entries, [&](int64_t t, int64_t page, int64_t entry) {
          const int64_t row = kv_cache.at({page, entry, 0});
          expect(outcome, row, arithmetic.divided(read(kv_c, kv_c.at({t, 0}), rank), by));
          expect(outcome, row + rank, arithmetic.divided(read(k_pe, k_pe.at({t, 0}), rotary_dim), by));
        });
        call.check(Direction::Forward);
      }
    }
  }
}

TEST_CASE("vLLM concat_and_cache_mla_rope_fused: q_pe and k_pe turned on the way", "[systems][step]") {
  const int64_t heads = 4, rank = 512, rotary_dim = 64, row_width = rank + rotary_dim, pages = 3, entries = 8;
  for (rope_dtype_t dtype : serving) {
    for (rope_style_t style : styles) {
      RopeCall call(dtype, rotary_dim);
      call.round_each();
      call.config.layout = ROPE_LAYOUT_THD;
      call.config.style = style;
      const Array q_pe = call.data({T, heads, rotary_dim}), k_pe = call.data({T, rotary_dim});
      const Array kv_c = call.data({T, rank}), kv_cache = call.data({pages, entries, row_width});
      const Array table = call.table(dtype, {max_position, rotary_dim});
      const Array positions = positions_of(call);
      const Array slots = slot_mapping(call, ROPE_DTYPE_I64, mapped, pages * entries);
      const rope_tensor_t rows = kv_cache.as({pages, entries, 1, row_width});
      rope_cache_args_t cache = ROPE_CACHE_ARGS_INIT;
      cache.v_cache = narrow(rows, 3, 0, rank);
      cache.k_cache = narrow(rows, 3, rank, rotary_dim);
      cache.slots = slots.tensor();
      call.args.flags = ROPE_FLAG_V_UNROTATED;
      call.args.q = q_pe.tensor();
      call.args.k = call.args.k_out = k_pe.as({T, 1, rotary_dim});
      call.args.v = kv_c.as({T, 1, rank});
      call.args.positions = positions.tensor();
      call.args.cache = &cache;
      call.expect_no_fault();
      take_cos_sin(call, table);
      const auto turn = [&](Formula &formula, int64_t t, int64_t to, int64_t from) {
        rotate(formula, style, to, from, rotary_dim, turns_of(table, positions.integer({t})));
      };
      Formula &q_formula = call.formula(q_pe), &k_formula = call.formula(k_pe);
      Formula &tail = call.formula(k_pe, kv_cache), &latent = call.formula(kv_c, kv_cache);
      for (int64_t t = 0; t < T; ++t) {
        turn(k_formula, t, k_pe.at({t, 0}), k_pe.at({t, 0}));
        for (int64_t h = 0; h < heads; ++h) turn(q_formula, t, q_pe.at({t, h, 0}), q_pe.at({t, h, 0}));
      }
      for_each_slot(slots, entries, [&](int64_t t, int64_t page, int64_t entry) {
        copy(latent, kv_cache.at({page, entry, 0}), kv_c.at({t, 0}), rank);
        turn(tail, t, kv_cache.at({page, entry, rank}), k_pe.at({t, 0}));
      });
      call.check(Direction::Forward);
    }
  }
}

// kv_c is the pass of k_pe: one cache of 576 channels, in the data's type or with one scale, with k_pe turned or not.
// k_pe itself is only read.
TEST_CASE("vLLM concat_and_cache_mla: k_pe with kv_c as its pass", "[systems][step]") {
  const int64_t pages = 3, entries = 8;
  const Real by = 0x1p-7L;
  for (rope_dtype_t dtype : serving) {
    for (rope_dtype_t code : cache_types) {
      for (bool is_turned : {false, true}) {
        RopeCall call(dtype, latent_dim);
        const Arithmetic arithmetic(dtype);
        fill_latent(call.config);
        call.config.style = ROPE_STYLE_INTERLEAVED;
        call.config.theta = 0;
        const Array kv_c = call.data({T, kv_lora_rank}), k_pe = call.data({T, qk_rope_head_dim});
        const Array kv_cache = call.data({pages, entries, latent_dim}, code);
        const Array table = call.table(ROPE_DTYPE_F32, {max_position, qk_rope_head_dim});
        const Array positions = positions_of(call), scale = scales(call, {by});
        const Array slots = slot_mapping(call, ROPE_DTYPE_I64, mapped, pages * entries);
        rope_quant_args_t quant = ROPE_QUANT_ARGS_INIT;
        quant.k_scale = scale.tensor();
        rope_input_args_t input = ROPE_INPUT_ARGS_INIT;
        input.k_pass = kv_c.as({T, 1, kv_lora_rank});
        rope_cache_args_t cache = ROPE_CACHE_ARGS_INIT;
        cache.k_cache = kv_cache.as({pages, entries, 1, latent_dim});
        cache.slots = slots.tensor();
        call.args.flags = is_turned ? 0 : ROPE_FLAG_UNROTATED;
        call.args.k = k_pe.as({T, 1, qk_rope_head_dim});
        call.args.cache = &cache;
        call.args.input = &input;
        if (code) call.args.quant = &quant;
        if (is_turned) {
          call.args.positions = positions.tensor();
          take_cos_sin(call, table);
        }
        call.expect_no_fault();
        Outcome &outcome = call.outcome(kv_cache);
        Formula &latent = call.formula(kv_c, kv_cache);
        for_each_slot(slots, entries, [&](int64_t t, int64_t page, int64_t entry) {
          const int64_t row = kv_cache.at({page, entry, 0});
          Row tail = read(k_pe, k_pe.at({t, 0}), qk_rope_head_dim);
          if (is_turned) {
            const TurnRanges turns = turns_of(arithmetic, table, positions.integer({t}));
            tail = arithmetic.rotated(ROPE_STYLE_INTERLEAVED, 0, qk_rope_head_dim, tail, turns);
          }
          expect(outcome, row + kv_lora_rank, code ? arithmetic.divided(tail, by) : tail);
          if (code) {
            expect(outcome, row, arithmetic.divided(read(kv_c, kv_c.at({t, 0}), kv_lora_rank), by));
          } else {
            copy(latent, row, kv_c.at({t, 0}), kv_lora_rank);
          }
        });
        call.check(Direction::Forward);
      }
    }
  }
}

// A floor of 448 * 1e-4 for magnitudes equals a floor of 1e-4 for scales before these become powers of two: both give
// 2^-13 up to 448 * 2^-13, which is 0.0546875.
TEST_CASE("vLLM concat_and_cache_mla: fp8_ds_mla, scales of powers of two", "[systems][step]") {
  const std::vector<Real> largest = {0, 1e-6L,      0x1.6p-5L, 0x1.7p-5L,  0x1.bep-5L, 0x1.cp-5L, 0x1.c2p-5L, 0.3L,
                                     3, 0x1.bep+3L, 14,        0x1.c2p+3L, 447,        448,       450,        60000};
  const auto rule = [](Real amax) { return std::exp2(std::ceil(std::log2(std::max(amax / 448, 1e-4L)))); };
  for (rope_dtype_t dtype : of_16_bits) {
    check_ds_mla(dtype, 448 * 1e-4, ROPE_QUANT_FLAG_POWER_OF_TWO, rule, largest, 0);
  }
}

// The older rule: FLT_MIN is the scale of magnitudes up to 448 * FLT_MIN, which fp32 can represent. Codes are
// quotients. Among the scales here only that of 4.3125 puts some quotients halfway between two codes.
TEST_CASE("vLLM concat_and_cache_mla: fp8_ds_mla, any scales", "[systems][step]") {
  const std::vector<Real> largest = {0,    0x1p-126L, 0x1.bep-118L, 0x1.cp-118L, 0x1.c2p-118L, 1e-20L, 0.01L, 0x1.7p-5L,
                                     0.3L, 1,         4.3125L,      14,          450,          60000};
  const auto rule = [](Real amax) { return std::max(single(amax / 448), 0x1p-126L); };
  for (rope_dtype_t dtype : of_16_bits) check_ds_mla(dtype, 448 * 0x1p-126, 0, rule, largest, 6e-4L);
}

TEST_CASE("vLLM fused_kimi_k3_mla_key_concat_kv_cache: k_nope beside one k_pe in every head", "[systems][step]") {
  for (rope_dtype_t dtype : of_16_bits) {
    for (rope_dtype_t code : {rope_dtype_t{0}, rope_dtype_t{ROPE_DTYPE_F8_E4M3}}) {
      for (bool is_turned : {false, true}) check_kimi_k3(dtype, code, is_turned);
    }
  }
}
