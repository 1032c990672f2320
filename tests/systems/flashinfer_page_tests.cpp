// SPDX-License-Identifier: Apache-2.0
// flashinfer_page_tests.cpp - flashinfer's paged cache: the pages of all sequences in one list with bounds, and
// for each token its sequence and its position there
//
// A token with a negative batch index is not cached. If rope is in the same pass, flashinfer does not write its q
// either; librope writes q.
#include <catch2/catch_test_macros.hpp>
#include <vector>

#include "step_system.hpp"

using namespace systems;

namespace {

constexpr int64_t batch = 3, nnz = 13, page_size = 4, max_num_pages = 9;

// Sequences have 7, 0 and 11 tokens in the cache; 5, none and 6 of these are appended now. 2 further tokens are
// padding.
constexpr int64_t indptr_values[] = {0, 2, 2, 5}, page_values[] = {7, 2, 5, 0, 8};

int64_t sequence_of(int64_t token) {
  return token == 4 || token == 12 ? -1 : token < 6 ? 0 : 2;
}

int64_t position_of(int64_t token) {
  return token < 6 ? 1 + token : 5 + (token - 6);
}

struct PageTable {
  PageTable(RopeCall &call, rope_dtype_t dtype)
      : batch_indices(call.positions(dtype, {nnz}, [](const Shape &at) { return sequence_of(at[0]); })),
        positions(call.positions(dtype, {nnz}, [](const Shape &at) { return position_of(at[0]); })),
        kv_indices(call.positions(dtype, {5}, [](const Shape &at) { return page_values[at[0]]; })),
        kv_indptr(call.positions(dtype, {batch + 1}, [](const Shape &at) { return indptr_values[at[0]]; })) {}

  void take(rope_cache_args_t &cache) const {
    cache.page_table = kv_indices.tensor();
    cache.page_indptr = kv_indptr.tensor();
    cache.sequence = batch_indices.tensor();
    cache.positions = positions.tensor();
  }

  // Visits cached tokens with their page and entry: page = indices[(indptr[b] * page_size + pos) / page_size].
  void for_each_token(const std::function<void(int64_t token, int64_t page, int64_t entry)> &visit) const {
    for (int64_t t = 0; t < nnz; ++t) {
      const int64_t b = batch_indices.integer({t});
      if (b < 0) continue;
      const int64_t at = kv_indptr.integer({b}) * page_size + positions.integer({t});
      visit(t, kv_indices.integer({at / page_size}), at % page_size);
    }
  }

  Array batch_indices, positions, kv_indices, kv_indptr;
};

constexpr CacheLayout layouts[] = {CacheLayout::Nhd, CacheLayout::Hnd, CacheLayout::StackedPages,
                                   CacheLayout::StackedPagesHnd};

constexpr int64_t table_rows = 20;

// The rotated part of a head and the other part, in separate tensors, and the complete head.
struct PartedHeads {
  PartedHeads(RopeCall &call, int64_t heads)
      : rope(call.data({nnz, heads, call.config.rotary_dim})),
        nope(call.data({nnz, heads, call.config.head_dim - call.config.rotary_dim})),
        window(call.config.rotary_dim),
        offset(call.config.rotary_offset),
        style(call.config.style) {}

  Row code_of(const Arithmetic &arithmetic, int64_t token, int64_t head, const TurnRanges &turns, Real scale) const {
    Row row = read(nope, nope.at({token, head, 0}), nope.shape[2]);
    const Row tail = arithmetic.rotated(style, 0, window, read(rope, rope.at({token, head, 0}), window), turns);
    row.insert(row.begin() + offset, tail.begin(), tail.end());
    return arithmetic.scaled(row, scale);
  }

  Array rope, nope;
  int64_t window, offset;
  rope_style_t style;
};

// q and k from two tensors each, to FP8 heads that hold both parts.
void check_parted(rope_dtype_t dtype, rope_dtype_t code, rope_style_t style, int32_t head_dim, int32_t offset,
                  int64_t k_heads) {
  const int64_t heads = 5;
  const Real quant_scale_q = single(37.3L), quant_scale_kv = single(211.7L);
  RopeCall call(dtype, head_dim);
  const Arithmetic arithmetic(dtype);
  call.config.layout = ROPE_LAYOUT_THD;
  call.config.style = style;
  call.config.rotary_dim = 64;
  call.config.rotary_offset = offset;
  const PartedHeads q(call, heads), k(call, k_heads);
  const Array q_out = call.data({nnz, heads, head_dim}, code), k_out = call.data({nnz, k_heads, head_dim}, code);
  const Array cos_sin = call.table(ROPE_DTYPE_F32, {table_rows, 64});
  const Array pos_ids = call.positions(ROPE_DTYPE_I32, {nnz}, [](const Shape &at) { return at[0] * 7 % table_rows; });
  const Array q_scale = scales(call, {quant_scale_q}), kv_scale = scales(call, {quant_scale_kv});
  rope_quant_args_t quant = ROPE_QUANT_ARGS_INIT;
  quant.flags = ROPE_QUANT_FLAG_SCALE_MULTIPLIES;
  quant.q_scale = q_scale.tensor();
  quant.k_scale = kv_scale.tensor();
  rope_input_args_t input = ROPE_INPUT_ARGS_INIT;
  input.q_pass = q.nope.tensor();
  input.k_pass = k.nope.tensor();
  call.args.q = q.rope.tensor();
  call.args.q_out = q_out.tensor();
  call.args.k = k.rope.tensor();
  call.args.k_out = k_out.tensor();
  call.args.positions = pos_ids.tensor();
  call.args.quant = &quant;
  call.args.input = &input;
  take_cos_sin(call, cos_sin);
  Outcome &q_outcome = call.outcome(q_out), &k_outcome = call.outcome(k_out);
  for (int64_t t = 0; t < nnz; ++t) {
    const TurnRanges turns = turns_of(arithmetic, cos_sin, pos_ids.integer({t}));
    for (int64_t h = 0; h < heads; ++h) {
      expect(q_outcome, q_out.at({t, h, 0}), q.code_of(arithmetic, t, h, turns, quant_scale_q));
    }
    for (int64_t h = 0; h < k_heads; ++h) {
      expect(k_outcome, k_out.at({t, h, 0}), k.code_of(arithmetic, t, h, turns, quant_scale_kv));
    }
  }
  call.check(Direction::Forward);
}

// q becomes one tensor [512 | 64]; ckv and kpe go to separate buffers: pages with a table, or k_nope_out and
// k_rope_out, which are caches with one token per page.
void check_mla(rope_dtype_t dtype, rope_dtype_t code, rope_dtype_t index_dtype, rope_style_t style, bool is_paged) {
  const int64_t heads = 5, pages = is_paged ? max_num_pages : nnz, entries = is_paged ? page_size : 1;
  const Real quant_scale_q = single(37.3L), quant_scale_kv = single(211.7L);
  RopeCall call(dtype, latent_dim);
  const Arithmetic arithmetic(dtype);
  fill_latent(call.config);
  call.config.style = style;
  const PartedHeads q(call, heads), k(call, 1);
  const Array q_out = call.data({nnz, heads, latent_dim}, code);
  const Array ckv_cache = call.data({pages, entries, kv_lora_rank}, code);
  const Array kpe_cache = call.data({pages, entries, qk_rope_head_dim}, code);
  const Array cos_sin = call.table(ROPE_DTYPE_F32, {table_rows, qk_rope_head_dim});
  const PageTable table(call, index_dtype);
  const Array rows = call.positions(index_dtype, {nnz}, [](const Shape &at) { return at[0]; });
  const Array q_scale = scales(call, {quant_scale_q}), kv_scale = scales(call, {quant_scale_kv});
  rope_quant_args_t quant = ROPE_QUANT_ARGS_INIT;
  quant.flags = ROPE_QUANT_FLAG_SCALE_MULTIPLIES;
  quant.q_scale = q_scale.tensor();
  quant.k_scale = quant.k_pass_scale = kv_scale.tensor();
  rope_input_args_t input = ROPE_INPUT_ARGS_INIT;
  input.q_pass = q.nope.tensor();
  input.k_pass = k.nope.tensor();
  rope_cache_args_t cache = ROPE_CACHE_ARGS_INIT;
  cache.k_cache = kpe_cache.as({pages, entries, 1, qk_rope_head_dim});
  cache.k_pass_cache = ckv_cache.as({pages, entries, 1, kv_lora_rank});
  if (is_paged) {
    table.take(cache);
    cache.positions = {};
  } else {
    cache.slots = rows.tensor();
  }
  call.args.q = q.rope.tensor();
  call.args.q_out = q_out.tensor();
  call.args.k = k.rope.tensor();
  call.args.positions = table.positions.tensor();
  call.args.cache = &cache;
  call.args.quant = &quant;
  call.args.input = &input;
  call.expect_no_fault();
  take_cos_sin(call, cos_sin);
  const auto turns = [&](int64_t t) { return turns_of(arithmetic, cos_sin, position_of(t)); };
  Outcome &q_outcome = call.outcome(q_out), &ckv = call.outcome(ckv_cache), &kpe = call.outcome(kpe_cache);
  for_each({nnz, heads}, [&](const Shape &at) {
    expect(q_outcome, q_out.at({at[0], at[1], 0}), q.code_of(arithmetic, at[0], at[1], turns(at[0]), quant_scale_q));
  });
  const auto expect_k = [&](int64_t t, int64_t page, int64_t entry) {
    const Row row = k.code_of(arithmetic, t, 0, turns(t), quant_scale_kv);
    expect(ckv, ckv_cache.at({page, entry, 0}), Row(row.begin(), row.begin() + kv_lora_rank));
    expect(kpe, kpe_cache.at({page, entry, 0}), Row(row.begin() + kv_lora_rank, row.end()));
  };
  if (is_paged) table.for_each_token(expect_k);
  for (int64_t t = 0; !is_paged && t < nnz; ++t) expect_k(t, t, 0);
  call.check(Direction::Forward);
}

}  // namespace

TEST_CASE("flashinfer append_paged_kv_cache: NHD and HND, apart and stacked", "[systems][step]") {
  const int64_t heads = 2, head_dim = 128;
  for (rope_dtype_t dtype : serving) {
    for (CacheLayout layout : layouts) {
      for (rope_dtype_t index_dtype : integers) {
        RopeCall call(dtype, head_dim);
        call.config.layout = ROPE_LAYOUT_THD;
        const PagedCaches caches(call, layout, {max_num_pages, page_size, heads, head_dim});
        const Array append_key = call.data({nnz, heads, head_dim}), append_value = call.data({nnz, heads, head_dim});
        const PageTable table(call, index_dtype);
        rope_cache_args_t cache = cache_args(caches);
        table.take(cache);
        call.args.flags = ROPE_FLAG_UNROTATED;
        call.args.k = append_key.tensor();
        call.args.v = append_value.tensor();
        call.args.cache = &cache;
        call.expect_no_fault();
        for (bool is_v : {false, true}) {
          const Array &from = is_v ? append_value : append_key;
          Formula &formula = call.formula(from, caches.of(is_v));
          table.for_each_token([&](int64_t t, int64_t page, int64_t entry) {
            for (int64_t h = 0; h < heads; ++h) {
              copy(formula, caches.at(is_v, page, entry, h), from.at({t, h, 0}), head_dim);
            }
          });
        }
        call.check(Direction::Forward);
      }
    }
  }
}

// ckv and kpe have separate caches, [pages, page_size, 512] and [.., 64].
TEST_CASE("flashinfer append_paged_mla_kv_cache: ckv and kpe apart", "[systems][step]") {
  const int64_t rank = 512, rotary_dim = 64;
  for (rope_dtype_t dtype : serving) {
    RopeCall call(dtype, rotary_dim);
    call.config.layout = ROPE_LAYOUT_THD;
    const Array append_ckv = call.data({nnz, rank}), append_kpe = call.data({nnz, rotary_dim});
    const Array ckv_cache = call.data({max_num_pages, page_size, rank});
    const Array kpe_cache = call.data({max_num_pages, page_size, rotary_dim});
    const PageTable table(call, ROPE_DTYPE_I32);
    rope_cache_args_t cache = ROPE_CACHE_ARGS_INIT;
    cache.k_cache = kpe_cache.as({max_num_pages, page_size, 1, rotary_dim});
    cache.v_cache = ckv_cache.as({max_num_pages, page_size, 1, rank});
    table.take(cache);
    call.args.flags = ROPE_FLAG_UNROTATED;
    call.args.k = append_kpe.as({nnz, 1, rotary_dim});
    call.args.v = append_ckv.as({nnz, 1, rank});
    call.args.cache = &cache;
    call.expect_no_fault();
    Formula &kpe = call.formula(append_kpe, kpe_cache), &ckv = call.formula(append_ckv, ckv_cache);
    table.for_each_token([&](int64_t t, int64_t page, int64_t entry) {
      copy(kpe, kpe_cache.at({page, entry, 0}), append_kpe.at({t, 0}), rotary_dim);
      copy(ckv, ckv_cache.at({page, entry, 0}), append_ckv.at({t, 0}), rank);
    });
    call.check(Direction::Forward);
  }
}

// rope_quantize_fp8_append_paged_kv_cache with caches of the data's type; the positions are used by both the rotation
// and the cache.
TEST_CASE("flashinfer rope and append: q out, k and v to the pages", "[systems][step]") {
  const int64_t heads = 4, k_heads = 2, head_dim = 128, rotary_dim = 64, max_position = 20;
  for (rope_dtype_t dtype : serving) {
    for (CacheLayout layout : layouts) {
      for (rope_style_t style : styles) {
        RopeCall call(dtype, head_dim);
        call.config.layout = ROPE_LAYOUT_THD;
        call.config.style = style;
        call.config.rotary_dim = rotary_dim;
        const PagedCaches caches(call, layout, {max_num_pages, page_size, k_heads, head_dim});
        const Array q = call.data({nnz, heads, head_dim}), q_out = call.data({nnz, heads, head_dim});
        const Array k = call.data({nnz, k_heads, head_dim}), v = call.data({nnz, k_heads, head_dim});
        const Array cos_sin = call.table(ROPE_DTYPE_F32, {max_position, rotary_dim});
        const PageTable table(call, ROPE_DTYPE_I32);
        rope_cache_args_t cache = cache_args(caches);
        table.take(cache);
        cache.positions = {};
        call.args.flags = ROPE_FLAG_V_UNROTATED;
        call.args.q = q.tensor();
        call.args.q_out = q_out.tensor();
        call.args.k = k.tensor();
        call.args.v = v.tensor();
        call.args.positions = table.positions.tensor();
        call.args.cache = &cache;
        call.expect_no_fault();
        take_cos_sin(call, cos_sin);
        const auto turn = [&](Formula &formula, int64_t t, int64_t to, int64_t from) {
          rotate(formula, style, to, from, rotary_dim, turns_of(cos_sin, position_of(t)));
          copy(formula, to + rotary_dim, from + rotary_dim, head_dim - rotary_dim);
        };
        Formula &q_formula = call.formula(q, q_out), &k_formula = call.formula(k, caches.of(false));
        Formula &v_formula = call.formula(v, caches.of(true));
        for_each({nnz, heads}, [&](const Shape &at) {
          turn(q_formula, at[0], q_out.at({at[0], at[1], 0}), q.at({at[0], at[1], 0}));
        });
        table.for_each_token([&](int64_t t, int64_t page, int64_t entry) {
          for (int64_t h = 0; h < k_heads; ++h) {
            turn(k_formula, t, caches.at(false, page, entry, h), k.at({t, h, 0}));
            copy(v_formula, caches.at(true, page, entry, h), v.at({t, h, 0}), head_dim);
          }
        });
        call.check(Direction::Forward);
      }
    }
  }
}

// q and k have heads that are rotated completely; q_nope and k_nope are empty: out = fp8(x * quant_scale).
TEST_CASE("flashinfer rope_quantize_fp8: q and k to FP8, scales that multiply", "[systems][step]") {
  const int64_t heads = 5, k_heads = 2, head_dim = 128, max_position = 20;
  const Real quant_scale_q = single(37.3L), quant_scale_kv = single(211.7L);
  for (rope_dtype_t dtype : serving) {
    for (rope_dtype_t code : code_types) {
      for (rope_style_t style : styles) {
        RopeCall call(dtype, head_dim);
        const Arithmetic arithmetic(dtype);
        call.config.layout = ROPE_LAYOUT_THD;
        call.config.style = style;
        const Array q_rope = call.data({nnz, heads, head_dim}), k_rope = call.data({nnz, k_heads, head_dim});
        const Array q_out = call.data({nnz, heads, head_dim}, code), k_out = call.data({nnz, k_heads, head_dim}, code);
        const Array cos_sin = call.table(ROPE_DTYPE_F32, {max_position, head_dim});
        const Array pos_ids = call.positions(ROPE_DTYPE_I32, {nnz}, [](const Shape &at) { return at[0] * 7 % 20; });
        const Array q_scale = scales(call, {quant_scale_q}), kv_scale = scales(call, {quant_scale_kv});
        rope_quant_args_t quant = ROPE_QUANT_ARGS_INIT;
        quant.flags = ROPE_QUANT_FLAG_SCALE_MULTIPLIES;
        quant.q_scale = q_scale.tensor();
        quant.k_scale = kv_scale.tensor();
        call.args.q = q_rope.tensor();
        call.args.q_out = q_out.tensor();
        call.args.k = k_rope.tensor();
        call.args.k_out = k_out.tensor();
        call.args.positions = pos_ids.tensor();
        call.args.quant = &quant;
        take_cos_sin(call, cos_sin);
        const auto code_of = [&](const Array &from, const Shape &at, Real scale) {
          const TurnRanges turns = turns_of(arithmetic, cos_sin, pos_ids.integer({at[0]}));
          const Row row = read(from, from.at({at[0], at[1], 0}), head_dim);
          return arithmetic.scaled(arithmetic.rotated(style, 0, head_dim, row, turns), scale);
        };
        Outcome &q_outcome = call.outcome(q_out), &k_outcome = call.outcome(k_out);
        for_each({nnz, heads}, [&](const Shape &at) {
          expect(q_outcome, q_out.at({at[0], at[1], 0}), code_of(q_rope, at, quant_scale_q));
        });
        for_each({nnz, k_heads}, [&](const Shape &at) {
          expect(k_outcome, k_out.at({at[0], at[1], 0}), code_of(k_rope, at, quant_scale_kv));
        });
        call.check(Direction::Forward);
      }
    }
  }
}

// k and v go to the pages with one scale, q becomes FP8 with another.
TEST_CASE("flashinfer rope_quantize_fp8_append_paged_kv_cache: heads that are turned whole", "[systems][step]") {
  const int64_t heads = 3, k_heads = 2, head_dim = 128, max_position = 20;
  const Real quant_scale_q = single(37.3L), quant_scale_kv = single(211.7L);
  for (rope_dtype_t dtype : serving) {
    for (rope_dtype_t code : code_types) {
      for (CacheLayout layout : layouts) {
        for (rope_dtype_t index_dtype : integers) {
          RopeCall call(dtype, head_dim);
          const Arithmetic arithmetic(dtype);
          call.config.layout = ROPE_LAYOUT_THD;
          const PagedCaches caches(call, layout, {max_num_pages, page_size, k_heads, head_dim}, code);
          const Array q = call.data({nnz, heads, head_dim}), q_out = call.data({nnz, heads, head_dim}, code);
          const Array k = call.data({nnz, k_heads, head_dim}), v = call.data({nnz, k_heads, head_dim});
          const Array cos_sin = call.table(ROPE_DTYPE_F32, {max_position, head_dim});
          const PageTable table(call, index_dtype);
          const Array q_scale = scales(call, {quant_scale_q}), kv_scale = scales(call, {quant_scale_kv});
          rope_quant_args_t quant = ROPE_QUANT_ARGS_INIT;
          quant.flags = ROPE_QUANT_FLAG_SCALE_MULTIPLIES;
          quant.q_scale = q_scale.tensor();
          quant.k_scale = quant.v_scale = kv_scale.tensor();
          rope_cache_args_t cache = cache_args(caches);
          table.take(cache);
          cache.positions = {};
          call.args.flags = ROPE_FLAG_V_UNROTATED;
          call.args.q = q.tensor();
          call.args.q_out = q_out.tensor();
          call.args.k = k.tensor();
          call.args.v = v.tensor();
          call.args.positions = table.positions.tensor();
          call.args.cache = &cache;
          call.args.quant = &quant;
          call.expect_no_fault();
          take_cos_sin(call, cos_sin);
          const auto turned = [&](const Array &from, int64_t t, int64_t h) {
            return arithmetic.rotated(ROPE_STYLE_HALF, 0, head_dim, read(from, from.at({t, h, 0}), head_dim),
                                      turns_of(arithmetic, cos_sin, position_of(t)));
          };
          Outcome &q_outcome = call.outcome(q_out);
          Outcome &k_outcome = call.outcome(caches.of(false)), &v_outcome = call.outcome(caches.of(true));
          for_each({nnz, heads}, [&](const Shape &at) {
            expect(q_outcome, q_out.at({at[0], at[1], 0}), arithmetic.scaled(turned(q, at[0], at[1]), quant_scale_q));
          });
          table.for_each_token([&](int64_t t, int64_t page, int64_t entry) {
            for (int64_t h = 0; h < k_heads; ++h) {
              const Row row_of_v = read(v, v.at({t, h, 0}), head_dim);
              expect(k_outcome, caches.at(false, page, entry, h), arithmetic.scaled(turned(k, t, h), quant_scale_kv));
              expect(v_outcome, caches.at(true, page, entry, h), arithmetic.scaled(row_of_v, quant_scale_kv));
            }
          });
          call.check(Direction::Forward);
        }
      }
    }
  }
}

// Heads are [rope, nope].
TEST_CASE("flashinfer rope_quantize_fp8: q_nope and k_nope from tensors of their own", "[systems][step]") {
  for (rope_dtype_t dtype : serving) {
    for (rope_dtype_t code : code_types) {
      for (rope_style_t style : styles) check_parted(dtype, code, style, 128, 0, 2);
    }
  }
}

// Heads are [nope, rope], and k has one head: both outputs are joined, or those of k are separate.
TEST_CASE("flashinfer mla_rope_quantize_fp8: q joined, k joined or apart", "[systems][step]") {
  for (rope_dtype_t dtype : serving) {
    for (rope_dtype_t code : code_types) {
      for (rope_style_t style : styles) {
        check_parted(dtype, code, style, latent_dim, kv_lora_rank, 1);
        check_mla(dtype, code, ROPE_DTYPE_I32, style, false);
      }
    }
  }
}

TEST_CASE("flashinfer rope_quantize_fp8_append_paged_kv_cache: MLA, ckv and kpe to the pages", "[systems][step]") {
  for (rope_dtype_t dtype : serving) {
    for (rope_dtype_t code : code_types) {
      for (rope_dtype_t index_dtype : integers) {
        for (rope_style_t style : styles) check_mla(dtype, code, index_dtype, style, true);
      }
    }
  }
}
