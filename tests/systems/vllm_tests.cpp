// SPDX-License-Identifier: Apache-2.0
// vllm_tests.cpp - the serving contract of vLLM, flashinfer and sglang: flat q and k, positions of each token, one
// cache cos | sin [max_position, rotary_dim]
//
// For a position outside the cache they read outside its memory; librope copies the token and counts it in fault.
// sglang and flashinfer require one head stride for q and k, and one type of positions; librope accepts different ones.
#include <catch2/catch_test_macros.hpp>
#include <vector>

#include "support/cases.hpp"
#include "system.hpp"

using namespace systems;

namespace {

constexpr int64_t T = 7, max_position = 23;

int64_t any_position(int64_t token) {
  return (token * 9 + 4) % max_position;
}

// cos of pair i is column i of the cache, its sin column rotary_dim/2 + i.
void take_cache(RopeCall &call, const Array &cache) {
  const int64_t pairs = cache.shape[1] / 2;
  call.args.cos = narrow(cache.tensor(), 1, 0, pairs);
  call.args.sin = narrow(cache.tensor(), 1, pairs, pairs);
}

Rotation cached(const Array &cache, int64_t row, int64_t pair) {
  return {cache.value({row, pair}), cache.value({row, cache.shape[1] / 2 + pair})};
}

void check_flat(rope_dtype_t dtype, rope_dtype_t cache_dtype, rope_style_t style, int64_t rope_dim_offset, bool has_key,
                bool rounds_each) {
  const int64_t heads = 4, k_heads = 2, head_size = 24, rotary_dim = 16;
  RopeCall call(dtype, head_size);
  if (rounds_each) call.round_each();
  call.config.layout = ROPE_LAYOUT_THD;
  call.config.style = style;
  call.config.rotary_dim = rotary_dim;
  call.config.rotary_offset = static_cast<int32_t>(rope_dim_offset);
  call.config.theta = 0;
  const Array query = call.data({T, heads * head_size}), key = call.data({T, k_heads * head_size});
  const Array cache = call.table(cache_dtype, {max_position, rotary_dim});
  const Array positions = call.positions(ROPE_DTYPE_I64, {T}, [](const Shape &at) { return any_position(at[0]); });
  call.args.q = query.as({T, heads, head_size});
  if (has_key) call.args.k = key.as({T, k_heads, head_size});
  call.args.positions = positions.tensor();
  take_cache(call, cache);
  for (const Array &array : has_key ? std::vector<Array>{query, key} : std::vector<Array>{query}) {
    Formula &formula = call.formula(array);
    for_each({T, array.shape[1] / head_size}, [&](const Shape &at) {
      const int64_t row = positions.integer({at[0]});
      const auto element = [&](int64_t c) { return array.at({at[0], at[1] * head_size + rope_dim_offset + c}); };
      const auto turn = [&](int64_t i) { return cached(cache, row, i); };
      formula.rotate_pairs(style, rotary_dim, element, element, turn);
    });
  }
  call.check();
}

}  // namespace

TEST_CASE("vLLM: flat query and key, cache in its own type", "[systems][vllm]") {
  for (rope_dtype_t dtype : floating) {
    for (rope_dtype_t cache_dtype : std::vector<rope_dtype_t>{ROPE_DTYPE_F32, dtype}) {
      for (rope_style_t style : styles) {
        for (int64_t rope_dim_offset : {0, 8}) {
          for (bool has_key : {true, false}) check_flat(dtype, cache_dtype, style, rope_dim_offset, has_key, false);
        }
      }
    }
  }
}

// vLLM's kernel, and its test in torch, round cos and sin to the data's type, then each product, then the sums.
TEST_CASE("vLLM: flat query and key in 16 bits, each operation rounded, bit for bit", "[systems][vllm]") {
  for (rope_dtype_t dtype : {ROPE_DTYPE_F16, ROPE_DTYPE_BF16}) {
    for (rope_dtype_t cache_dtype : std::vector<rope_dtype_t>{ROPE_DTYPE_F32, dtype}) {
      for (rope_style_t style : styles) {
        for (int64_t rope_dim_offset : {0, 8}) check_flat(dtype, cache_dtype, style, rope_dim_offset, true, true);
      }
    }
  }
}

TEST_CASE("vLLM: slices of one qkv, positions of each batch", "[systems][vllm]") {
  const int64_t batch = 2, seq = 4, heads = 4, k_heads = 2, head_size = 16;
  const int64_t columns = (heads + 2 * k_heads) * head_size;
  for (rope_dtype_t dtype : floating) {
    RopeCall call(dtype, head_size);
    call.config.theta = 0;
    const Array qkv = call.data({batch, seq, columns});
    const Array cache = call.table(ROPE_DTYPE_F32, {max_position, head_size});
    const Array positions =
        call.positions(ROPE_DTYPE_I64, {batch, seq}, [](const Shape &at) { return any_position(at[0] * 3 + at[1]); });
    const rope_tensor_t all = qkv.as({batch, seq, columns / head_size, head_size});
    call.args.q = narrow(all, 2, 0, heads);
    call.args.k = narrow(all, 2, heads, k_heads);
    call.args.positions = positions.tensor();
    take_cache(call, cache);
    Formula &formula = call.formula(qkv);
    for_each({batch, seq, heads + k_heads}, [&](const Shape &at) {
      const int64_t row = positions.integer({at[0], at[1]});
      const auto element = [&](int64_t c) { return qkv.at({at[0], at[1], at[2] * head_size + c}); };
      const auto turn = [&](int64_t i) { return cached(cache, row, i); };
      formula.rotate_pairs(ROPE_STYLE_HALF, head_size, element, element, turn);
    });
    call.check();
  }
}

TEST_CASE("vLLM: inverse", "[systems][vllm]") {
  const int64_t heads = 2, head_size = 16;
  RopeCall call(ROPE_DTYPE_BF16, head_size);
  call.config.layout = ROPE_LAYOUT_THD;
  call.config.theta = 0;
  const Array query = call.data({T, heads * head_size});
  const Array cache = call.table(ROPE_DTYPE_F32, {max_position, head_size});
  const Array positions = call.positions(ROPE_DTYPE_I64, {T}, [](const Shape &at) { return any_position(at[0]); });
  call.args.q = query.as({T, heads, head_size});
  call.args.positions = positions.tensor();
  take_cache(call, cache);
  Formula &formula = call.formula(query);
  Formula inverse;
  for_each({T, heads}, [&](const Shape &at) {
    const int64_t row = positions.integer({at[0]});
    const auto element = [&](int64_t c) { return query.at({at[0], at[1] * head_size + c}); };
    const auto turn = [&](int64_t i) { return cached(cache, row, i); };
    const auto turn_back = [&](int64_t i) { return Rotation{turn(i).cos, -turn(i).sin}; };
    formula.rotate_pairs(ROPE_STYLE_HALF, head_size, element, element, turn);
    inverse.rotate_pairs(ROPE_STYLE_HALF, head_size, element, element, turn_back);
  });
  CHECK(formula.transposed() == inverse);
  call.check(Direction::Backward);
}

TEST_CASE("vLLM: positions outside the cache", "[systems][vllm]") {
  for (rope_style_t style : styles) {
    RopeCase rope = RopeCase().dtype(ROPE_DTYPE_BF16).layout(ROPE_LAYOUT_THD).style(style).tokens(9).heads(4, 1);
    rope.head_dim(64).theta(0).tables(5, TableStorage::SideBySide).fault();
    rope.positions(PositionShape::PerToken, ROPE_DTYPE_I64, [](int64_t, int64_t token) { return token - 2; });
    RopeCase(rope).check();
    RopeCase(rope).out_of_place().check();
  }
}

TEST_CASE("flashinfer: indptr and offsets", "[systems][vllm]") {
  const int64_t nnz = 11, heads = 4, k_heads = 1, head_dim = 16, rotary_dim = 12, batch = 3;
  const int64_t indptr_values[] = {0, 5, 6, 11}, offset_values[] = {0, 100000, 17};
  const double rope_theta = 1e4, rope_scale = 4;
  for (rope_dtype_t index_dtype : integers) {
    for (rope_dtype_t offset_dtype : integers) {
      for (rope_style_t style : styles) {
        RopeCall call(ROPE_DTYPE_F16, head_dim);
        call.config.layout = ROPE_LAYOUT_THD;
        call.config.style = style;
        call.config.rotary_dim = rotary_dim;
        rope_scaling_t linear = {};
        linear.struct_size = sizeof linear;
        linear.type = ROPE_SCALING_LINEAR;
        linear.factor = rope_scale;
        std::vector<double> inv_freq(rotary_dim / 2);
        REQUIRE(rope_scaled_frequencies(rotary_dim, rope_theta, &linear, inv_freq.data(),
                                        &call.config.attention_scale) == ROPE_STATUS_SUCCESS);
        call.config.inv_freq = inv_freq.data();
        const Array q = call.data({nnz, heads, head_dim}), k = call.data({nnz, k_heads, head_dim});
        const Array q_rope = call.data({nnz, heads, head_dim}), k_rope = call.data({nnz, k_heads, head_dim});
        const Array indptr =
            call.positions(index_dtype, {batch + 1}, [&](const Shape &at) { return indptr_values[at[0]]; });
        const Array offsets =
            call.positions(offset_dtype, {batch}, [&](const Shape &at) { return offset_values[at[0]]; });
        call.args.q = q.tensor();
        call.args.q_out = q_rope.tensor();
        call.args.k = k.tensor();
        call.args.k_out = k_rope.tensor();
        call.args.cu_seqlens = indptr.tensor();
        call.args.start_positions = offsets.tensor();
        for (bool is_q : {true, false}) {
          const Array &in = is_q ? q : k, &out = is_q ? q_rope : k_rope;
          Formula &formula = call.formula(in, out);
          for (int64_t b = 0; b < batch; ++b) {
            for_each({indptr_values[b + 1] - indptr_values[b], in.shape[1]}, [&](const Shape &at) {
              const int64_t token = indptr_values[b] + at[0];
              const auto to = [&](int64_t c) { return out.at({token, at[1], c}); };
              const auto from = [&](int64_t c) { return in.at({token, at[1], c}); };
              const auto turn = [&](int64_t i) {
                return by_angle((at[0] + offset_values[b]) * frequency(rope_theta, i, rotary_dim) / rope_scale);
              };
              formula.rotate_pairs(style, rotary_dim, to, from, turn);
              formula.copy_channels(rotary_dim, head_dim, to, from);
            });
          }
        }
        call.check();
      }
    }
  }
}

// q_pe is the tail of [T, H, nope + R], k_pe that of a latent [T, rank + R], without a head axis.
TEST_CASE("sglang: MLA slices", "[systems][vllm]") {
  const int64_t heads = 3, nope = 20, lora = 12, rotary_dim = 8;
  for (rope_dtype_t dtype : floating) {
    for (rope_dtype_t position_dtype : integers) {
      RopeCall call(dtype, rotary_dim);
      call.config.layout = ROPE_LAYOUT_THD;
      call.config.style = ROPE_STYLE_INTERLEAVED;
      call.config.theta = 0;
      const Array q = call.data({T, heads, nope + rotary_dim}), latent = call.data({T, lora + rotary_dim});
      const Array cache = call.table(ROPE_DTYPE_F32, {max_position, rotary_dim});
      const Array positions = call.positions(position_dtype, {T}, [](const Shape &at) { return any_position(at[0]); });
      call.args.q = narrow(q.tensor(), 2, nope, rotary_dim);
      call.args.k = narrow(latent.as({T, 1, lora + rotary_dim}), 2, lora, rotary_dim);
      call.args.positions = positions.tensor();
      take_cache(call, cache);
      Formula &q_formula = call.formula(q);
      Formula &k_formula = call.formula(latent);
      for (int64_t t = 0; t < T; ++t) {
        const int64_t row = positions.integer({t});
        const auto turn = [&](int64_t i) { return cached(cache, row, i); };
        const auto k_element = [&](int64_t c) { return latent.at({t, lora + c}); };
        k_formula.rotate_pairs(ROPE_STYLE_INTERLEAVED, rotary_dim, k_element, k_element, turn);
        for (int64_t h = 0; h < heads; ++h) {
          const auto element = [&](int64_t c) { return q.at({t, h, nope + c}); };
          q_formula.rotate_pairs(ROPE_STYLE_INTERLEAVED, rotary_dim, element, element, turn);
        }
      }
      call.check();
    }
  }
}

TEST_CASE("vLLM: positions and offsets added", "[systems][vllm]") {
  // The concatenated caches of several scaling factors: an offset selects one of them for each token.
  for (rope_dtype_t dtype : floating) {
    RopeCase()
        .dtype(dtype)
        .layout(ROPE_LAYOUT_THD)
        .tokens(8)
        .heads(4, 2)
        .head_dim(64)
        .theta(0)
        .tables(30, TableStorage::SideBySide)
        .positions(PositionShape::PerToken, ROPE_DTYPE_I64, [](int64_t, int64_t token) { return token; })
        .start_positions(PositionShape::PerToken, ROPE_DTYPE_I64, [](int64_t, int64_t token) { return token % 3 * 10; })
        .check();
  }
}
