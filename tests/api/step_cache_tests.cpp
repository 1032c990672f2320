// SPDX-License-Identifier: Apache-2.0
// step_cache_tests.cpp - k and v written to paged caches
#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <limits>
#include <numeric>
#include <vector>

#include "support/step_case.hpp"

namespace {

constexpr int64_t last32 = std::numeric_limits<int32_t>::max(), last64 = std::numeric_limits<int64_t>::max();
const std::vector<rope_dtype_t> dtypes = {ROPE_DTYPE_F32, ROPE_DTYPE_F16, ROPE_DTYPE_BF16, ROPE_DTYPE_F64};
const std::vector<rope_layout_t> layouts = {ROPE_LAYOUT_BSHD, ROPE_LAYOUT_SBHD, ROPE_LAYOUT_BHSD, ROPE_LAYOUT_THD};
const std::vector<CacheStorage> storages = {CacheStorage::Separate, CacheStorage::HeadsFirst, CacheStorage::Stacked,
                                            CacheStorage::SideBySide};

// q in place, k and v into caches of five pages of four entries, by slots in a mixed order.
StepCase cached(rope_layout_t layout = ROPE_LAYOUT_BSHD) {
  StepCase step;
  step.layout = layout;
  step.batch = 2;
  step.tokens = layout == ROPE_LAYOUT_THD ? 10 : 5;
  step.head_dim = 32;
  step.q.heads = 3;
  step.k.heads = step.v.heads = 2;
  step.flags = ROPE_FLAG_V_UNROTATED;
  step.table_rows = 8;
  step.has_fault = true;
  StepCache &cache = step.cache.emplace();
  cache.has_v = true;
  cache.pages = 5;
  cache.entries = 4;
  cache.slots = {7, 3, 0, 19, 4, 11, 12, 2, 18, 5};
  return step;
}

// q in place, k and v into these caches, by pages of each batch or sequence.
StepCase paged(rope_layout_t layout = ROPE_LAYOUT_BSHD) {
  StepCase step = cached(layout);
  step.cache->slots.reset();
  step.cache->page_table = {{3, 1}, {4, 0}};
  if (layout == ROPE_LAYOUT_THD) step.cu_seqlens = {0, 4, 10};
  return step;
}

}  // namespace

TEST_CASE("slots say where k and v are cached", "[rope][step][cache]") {
  for (const rope_layout_t layout : layouts) {
    for (const rope_dtype_t dtype : dtypes) {
      for (const CacheStorage storage : storages) {
        for (const StepOut out : {StepOut::Absent, StepOut::Same, StepOut::Own}) {
          StepCase step = cached(layout);
          step.dtype = dtype;
          step.cache->storage = storage;
          step.k.out = step.v.out = out;
          step.cache->integer_dtype = out == StepOut::Same ? ROPE_DTYPE_I64 : ROPE_DTYPE_I32;
          step.check();
        }
      }
    }
  }
}

TEST_CASE("caches of one tensor, with any strides", "[rope][step][cache]") {
  for (const bool has_k : {true, false}) {
    for (const rope_dtype_t dtype : dtypes) {
      for (const bool has_norm : {false, true}) {
        StepCase step = cached();
        step.dtype = dtype;
        step.cache->has_k = has_k;
        step.cache->has_v = !has_k;
        if (has_norm) {
          step.norm = ROPE_NORM_LAYER;
          step.norm_tensors = 7;
          step.k.has_weight = step.k.has_bias = true;
        }
        const Placement placements[] = {Placement().gap(3, 1), Placement().order({3, 1, 0, 2}).at(3),
                                        Placement().reversed(0).reversed(1).reversed(3),
                                        Placement().order({2, 1, 0, 3}).gap(1, 5).at(1), Placement().implicit()};
        for (const Placement &placement : placements) {
          step.cache->k_placement = step.cache->v_placement = placement;
          step.cache->integer_placement = placement.start ? Placement().at(1).gap(0, 1) : Placement();
          step.check();
        }
        step.k.heads = step.v.heads = 1;
        step.v.width = 21;
        step.check();
      }
    }
  }
}

TEST_CASE("a cache write alone", "[rope][step][cache]") {
  for (const rope_layout_t layout : layouts) {
    for (const rope_dtype_t dtype : dtypes) {
      StepCase step = cached(layout);
      step.dtype = dtype;
      step.flags = ROPE_FLAG_UNROTATED;
      step.table_rows = -1;
      step.theta = 0;
      step.q = {};
      step.check();
      step.out_style = ROPE_STYLE_INTERLEAVED;
      step.check();
      step.k = {};
      step.cache->has_k = false;
      step.v.width = 1;
      step.check();
    }
  }
}

TEST_CASE("caches of 16 bits for F32 data", "[rope][step][cache]") {
  for (const rope_dtype_t k_dtype : {ROPE_DTYPE_F32, ROPE_DTYPE_F16, ROPE_DTYPE_BF16}) {
    for (const rope_dtype_t v_dtype : {ROPE_DTYPE_F32, ROPE_DTYPE_F16, ROPE_DTYPE_BF16}) {
      for (const rope_norm_type_t norm : std::vector<rope_norm_type_t>{0, ROPE_NORM_RMS}) {
        StepCase step = cached();
        step.cache->k_dtype = k_dtype;
        step.cache->v_dtype = v_dtype;
        step.norm = norm;
        step.check();
        step.k.out = step.v.out = StepOut::Own;
        step.k.out_dtype = v_dtype;
        step.check();
      }
    }
  }
}

TEST_CASE("slots below 0, outside, repeated, and fewer than tokens", "[rope][step][cache][sanitize]") {
  for (const rope_layout_t layout : layouts) {
    for (const bool is_wide : {false, true}) {
      StepCase step = cached(layout);
      StepCache &cache = *step.cache;
      cache.integer_dtype = is_wide ? ROPE_DTYPE_I64 : ROPE_DTYPE_I32;
      cache.slots = {-1, 20, 3, is_wide ? last64 : last32, is_wide ? -last64 - 1 : -last32 - 1, 19, 0, 21, -7, 1};
      step.check();
      if (is_wide) {
        // Cut to 32 bits, these would be valid slots.
        cache.slots = {int64_t{1} << 32, (int64_t{1} << 32) + 3, -(int64_t{1} << 32) + 3, 5, 6, 7, 8, 9, 10, 11};
        step.check();
      }
      cache.slots = {4, 4, 4, 4, 4, 4, 4, 4, 4, 4};
      step.check();
      cache.slots = {0, 1, 0, 2, 3, 4, 5, 0, 0, 6};
      cache.flags = ROPE_CACHE_FLAG_SKIP_SLOT_0;
      step.check();
      cache.slots = {20, 30, 40, 50, 60, 70, 80, 90, 100, 110};
      step.check();
      step.table_rows = 2;  // a token may have two faults
      step.check();
      step.has_fault = false;
      step.check();
    }
  }
  for (const size_t count : {0, 1, 9}) {
    StepCase step = cached(ROPE_LAYOUT_THD);
    step.cache->slots->resize(count);
    step.check();
    step.k.out = StepOut::Own;
    step.check();
    step.cu_seqlens = {0, 3, 8};
    step.check();
  }
}

TEST_CASE("caches without an entry", "[rope][step][cache]") {
  StepCase step = cached();
  step.cache->slots = {0, -1, 2, 3, -4, 5, 6, 7, 8, last32};
  step.cache->pages = 0;
  step.check();
  step.cache->pages = 3;
  step.cache->entries = 0;
  step.check();
  step.k.out = step.v.out = StepOut::Own;
  step.check();
  step = paged();
  step.cache->page_table = {{}, {}};
  step.cache->table_columns = 0;
  step.check();
}

TEST_CASE("no tokens and no heads to cache", "[rope][step][cache]") {
  for (const rope_layout_t layout : layouts) {
    StepCase step = cached(layout);
    step.tokens = 0;
    step.cache->slots->clear();
    step.check();
    step = cached(layout);
    step.k.heads = step.v.heads = 0;
    step.has_fault = false;
    step.check();
  }
}

TEST_CASE("heads of none beside others", "[rope][step][cache]") {
  for (const int none : {0, 1, 2}) {
    for (const rope_dtype_t dtype : {ROPE_DTYPE_BF16, ROPE_DTYPE_F64}) {
      for (const bool has_norm : {false, true}) {
        StepCase step = cached();
        step.dtype = dtype;
        step.norm = has_norm ? ROPE_NORM_RMS : 0;
        StepTensor *const tensors[] = {&step.q, &step.k, &step.v};
        tensors[none]->heads = 0;
        for (StepTensor *tensor : tensors) tensor->out = StepOut::Own;
        step.has_fault = none == 0;
        step.check();
        step.cache.reset();
        step.check();
      }
    }
  }
}

TEST_CASE("slots of no token", "[rope][step][cache]") {
  for (const rope_dtype_t dtype : {ROPE_DTYPE_BF16, ROPE_DTYPE_F64}) {
    StepCase step = cached(ROPE_LAYOUT_THD);
    step.dtype = dtype;
    step.cache->slots->clear();
    step.check();
    step.k.out = StepOut::Own;
    step.check();
  }
}

TEST_CASE("slot 0 that is skipped is no fault, whatever there is of the cache", "[rope][step][cache]") {
  for (const auto &size : {std::vector<int64_t>{0, 4}, {4, 0}, {0, 0}, {5, 4}}) {
    StepCase step = cached();
    step.cache->flags = ROPE_CACHE_FLAG_SKIP_SLOT_0;
    step.cache->pages = size[0];
    step.cache->entries = size[1];
    step.check();
  }
}

TEST_CASE("tensors of other widths share warps", "[rope][step][cache][norm]") {
  for (const rope_dtype_t dtype : {ROPE_DTYPE_F32, ROPE_DTYPE_BF16}) {
    for (const int32_t width : {4, 8, 16, 24, 40, 48, 128}) {
      for (const int32_t tensors : {1, 2, 4, 7}) {
        StepCase step = cached();
        step.dtype = dtype;
        step.head_dim = 48;
        step.rotary_dim = 16;
        step.k.is_window = true;
        step.v.width = width;
        step.norm = ROPE_NORM_RMS;
        step.norm_tensors = tensors;
        step.check();
      }
    }
  }
}

TEST_CASE("padding is neither written nor cached", "[rope][step][cache]") {
  for (const bool by_slots : {false, true}) {
    for (const rope_norm_type_t norm : std::vector<rope_norm_type_t>{0, ROPE_NORM_RMS}) {
      StepCase step = by_slots ? cached(ROPE_LAYOUT_THD) : paged(ROPE_LAYOUT_THD);
      step.norm = norm;
      for (const std::vector<int64_t> &cu_seqlens :
           {std::vector<int64_t>{0, 3, 7}, {0, 0, 10}, {0, 0, 0}, {2, 5, 8}, {10, 10, 10}}) {
        step.cu_seqlens = cu_seqlens;
        step.table_rows = cu_seqlens.back() == 10 ? 10 : 8;
        step.check();
      }
    }
  }
}

TEST_CASE("pages of each sequence say where k and v are cached", "[rope][step][cache]") {
  for (const rope_layout_t layout : layouts) {
    for (const rope_dtype_t dtype : {ROPE_DTYPE_BF16, ROPE_DTYPE_F32, ROPE_DTYPE_F64}) {
      for (const bool is_list : {false, true}) {
        for (const rope_dtype_t integers : {ROPE_DTYPE_I32, ROPE_DTYPE_I64}) {
          StepCase step = paged(layout);
          StepCache &cache = *step.cache;
          step.dtype = dtype;
          cache.integer_dtype = integers;
          if (is_list) {
            cache.page_table.reset();
            cache.page_list = {9, 3, 1, 4, 0};
            cache.page_indptr = {1, 3, 5};
          }
          step.check();
          // Positions of the call; some are in no page.
          step.positions = [](int64_t, int64_t batch, int64_t token) { return 2 * token - 3 + batch; };
          step.check();
          step.start_positions = {1, -2};
          step.position_offset = 1;
          step.check();
          step.flags = ROPE_FLAG_UNROTATED;
          step.table_rows = -1;
          step.check();
          // Separate positions and rows for the cache.
          cache.positions = {0, 1, 7, 8, -1, 5, 6, 4, 3, 2};
          step.check();
          cache.sequence = {0, 1, 0, 1, 1, 0, -1, 1, 2, 1};
          step.check();
          cache.positions.reset();
          step.check();
        }
      }
    }
  }
}

TEST_CASE("page tables with entries that are none", "[rope][step][cache][sanitize]") {
  for (const rope_layout_t layout : {ROPE_LAYOUT_BHSD, ROPE_LAYOUT_THD}) {
    StepCase step = paged(layout);
    StepCache &cache = *step.cache;
    for (const std::vector<std::vector<int64_t>> &table :
         {std::vector<std::vector<int64_t>>{{-1, 5}, {0, last32}}, {{5, 4}, {-last32, 3}}, {{2}, {2}}}) {
      cache.page_table = table;
      step.check();
    }
    cache.page_table = {{0, 1}, {2, 3}};
    cache.flags = ROPE_CACHE_FLAG_SKIP_SLOT_0;
    step.check();
    cache.page_table.reset();
    cache.page_list = {4, 2, -1, 0, 5};
    for (const std::vector<int64_t> &indptr : {std::vector<int64_t>{0, 2, 5},
                                               {0, 0, 0},
                                               {3, 1, 4},
                                               {-1, 2, 5},
                                               {0, 2, 6},
                                               {0, last32, 5},
                                               {-last32 - 1, last32, 2}}) {
      cache.page_indptr = indptr;
      step.check();
    }
    cache.page_list->clear();
    cache.page_indptr = {0, 0, 0};
    step.check();
  }
}

TEST_CASE("rows of the page table by token", "[rope][step][cache]") {
  StepCase step = paged(ROPE_LAYOUT_THD);
  StepCache &cache = *step.cache;
  step.cu_seqlens.clear();
  cache.page_table = {{1}, {0}, {4}};
  cache.positions = {0, 0, 0, 1, 2, 3, 3, 3, 2, 2};
  cache.sequence = {0, 1, 2, 2, 2, 2, 1, 0, 0, 1};
  step.check();
  // Tokens beyond the shorter list are not cached.
  cache.sequence->resize(7);
  cache.positions->resize(7);
  step.check();
  // The table may have any number of rows, even none.
  cache.page_table.emplace();
  cache.table_columns = 3;
  step.check();
}

TEST_CASE("caches with tables by token and with several axes have positions of their own", "[rope][step][cache]") {
  StepCase step = paged();
  step.table_by_token = true;
  step.table_rows = step.tokens;
  step.cache->positions = {0, 7, 2, 3, 5, 1, 6, 2, 3, 4};
  step.check();
  step = paged();
  step.table_rows = -1;
  step.num_axes = 3;
  for (int pair = 0; pair < 16; ++pair) step.pair_axis.push_back(pair % 3);
  step.positions = [](int64_t axis, int64_t batch, int64_t token) { return 10 * axis + batch + token; };
  step.cache->positions = {0, 7, 2, 3, 5, 1, 6, 2, 3, 4};
  step.check();
  // Slots need no positions.
  step.cache = cached().cache;
  step.check();
}

TEST_CASE("what is cached is normed, turned and in the output's style", "[rope][step][cache]") {
  for (const rope_dtype_t dtype : dtypes) {
    for (const rope_norm_type_t norm : {ROPE_NORM_RMS, ROPE_NORM_LAYER}) {
      for (const rope_norm_order_t order : {ROPE_NORM_ORDER_BEFORE, ROPE_NORM_ORDER_AFTER}) {
        for (const StepOut out : {StepOut::Absent, StepOut::Same, StepOut::Own}) {
          StepCase step = cached();
          step.dtype = dtype;
          step.norm = norm;
          step.norm_order = order;
          step.norm_tensors = out == StepOut::Own ? 7 : 0;
          step.q.has_weight = step.k.has_weight = true;
          step.style = ROPE_STYLE_INTERLEAVED;
          step.out_style = ROPE_STYLE_HALF;
          step.rotary_dim = 20;
          step.rotary_offset = 12;
          step.k.out = step.v.out = out;
          step.table_rows = 4;  // the last token has no row
          step.check();
          step.table_rows = -1;
          step.k.is_window = true;
          step.check();
        }
      }
    }
  }
}

TEST_CASE("inputs that broadcast are cached for each token", "[rope][step][cache]") {
  StepCase step = cached();
  step.k.in_placement.expanded(2);
  step.v.in_placement.expanded(1);
  step.check();
  step.k.in_placement = Placement().expanded(0).expanded(1);
  step.norm = ROPE_NORM_RMS;
  step.check();
}

TEST_CASE("steps are served of every type, in every layout, with any number of channels",
          "[rope][step][cache][norm][sanitize]") {
  struct Kind {
    const char *name;
    bool has_norm, has_cache, is_turned;
  };
  for (const Kind &kind : {Kind{"norm", true, false, true},
                           {"cache", false, true, true},
                           {"both", true, true, true},
                           {"copy", false, true, false}}) {
    for (const rope_dtype_t dtype : dtypes) {
      for (const rope_layout_t layout : layouts) {
        for (const int32_t head_dim : {2, 6, 10, 40, 64, 96, 128, 192, 256, 576, 1024}) {
          INFO(kind.name);
          StepCase step = cached(layout);
          step.dtype = dtype;
          step.head_dim = head_dim;
          step.tokens = layout == ROPE_LAYOUT_THD ? 4 : 2;
          step.q.heads = 2;
          step.k.heads = step.v.heads = 1;
          step.norm = kind.has_norm ? ROPE_NORM_RMS : 0;
          step.q.has_weight = step.k.has_weight = kind.has_norm;
          if (!kind.is_turned) {
            step.flags = ROPE_FLAG_UNROTATED;
            step.table_rows = -1;
          }
          if (kind.has_cache) {
            step.cache->slots = {6, 1, 19, 8};
          } else {
            step.cache.reset();
          }
          step.check();
        }
      }
    }
  }
}

TEST_CASE("many tokens are cached by threads that share them", "[rope][step][cache][sanitize]") {
  for (const rope_layout_t layout : layouts) {
    StepCase step = cached(layout);
    step.dtype = ROPE_DTYPE_BF16;
    step.batch = 2;
    step.tokens = layout == ROPE_LAYOUT_THD ? 900 : 450;
    step.head_dim = 64;
    step.table_rows = -1;
    step.norm = ROPE_NORM_RMS;
    step.cache->pages = 60;
    step.cache->entries = 16;
    step.cache->slots->resize(900);
    for (int64_t i = 0; i < 900; ++i) (*step.cache->slots)[i] = i * 7 % 960;
    step.check();
  }
}

// Whole heads and windows of heads, in launches of few and of more tokens.
TEST_CASE("every norm with page tables, several axes and lost tokens", "[rope][step][cache][norm][sanitize]") {
  struct Norm {
    rope_norm_type_t type;
    rope_norm_order_t order;
  };
  for (const Norm &norm : {Norm{0, 0}, Norm{ROPE_NORM_RMS, 0}, Norm{ROPE_NORM_RMS, ROPE_NORM_ORDER_AFTER},
                           Norm{ROPE_NORM_LAYER, 0}, Norm{ROPE_NORM_LAYER, ROPE_NORM_ORDER_AFTER}}) {
    for (const rope_dtype_t dtype : {ROPE_DTYPE_F32, ROPE_DTYPE_F16, ROPE_DTYPE_BF16}) {
      for (const int32_t head_dim : {64, 96, 128, 192}) {
        for (const int64_t tokens : {3, 60}) {
          StepCase step = cached(ROPE_LAYOUT_THD);
          step.dtype = dtype;
          step.head_dim = head_dim;
          step.rotary_dim = head_dim == 128 ? 64 : 0;
          step.tokens = tokens;
          step.style = head_dim == 64 ? ROPE_STYLE_INTERLEAVED : ROPE_STYLE_HALF;
          step.norm = norm.type;
          step.norm_order = norm.order;
          step.norm_rounding = norm.type != 0 ? 1 : 0;
          step.q.heads = 5;
          step.q.has_weight = step.k.has_weight = norm.type != 0;
          step.q.weight_by_head = true;
          step.k.has_bias = norm.type == ROPE_NORM_LAYER;
          step.k.weight_dtype = ROPE_DTYPE_F32;
          step.num_axes = 3;
          for (int pair = 0; pair < head_dim / 2; ++pair) step.pair_axis.push_back(pair * 7 % 3);
          if (step.rotary_dim != 0) step.pair_axis.resize(32);
          step.positions = [](int64_t axis, int64_t, int64_t token) { return (token * (3 + axis) + axis) % 60 - axis; };
          step.table_rows = head_dim == 96 || head_dim == 128 ? 58 : -1;
          StepCache &cache = *step.cache;
          cache.slots.reset();
          cache.pages = tokens;
          cache.page_list = std::vector<int64_t>();
          for (int64_t page = 0; page < tokens; ++page) cache.page_list->push_back(page == 1 ? -1 : tokens - page);
          cache.page_indptr = std::vector<int64_t>{0, 2, tokens};
          cache.sequence = std::vector<int64_t>();
          cache.positions = std::vector<int64_t>();
          for (int64_t token = 0; token < tokens; ++token) {
            cache.sequence->push_back(token % 5 == 4 ? 0 : 1);
            cache.positions->push_back(token % 5 == 4 ? token % 19 : token);
          }
          step.check();
        }
      }
    }
  }
}

// Few tokens of many heads, so that threads meet inside tokens.
TEST_CASE("a token's heads are shared by threads", "[rope][step][cache][norm]") {
  for (const rope_norm_extent_t extent : {ROPE_NORM_EXTENT_HEAD, ROPE_NORM_EXTENT_TOKEN}) {
    for (const rope_norm_type_t norm : std::vector<rope_norm_type_t>{0, ROPE_NORM_RMS, ROPE_NORM_LAYER}) {
      if (norm == 0 && extent != 0) continue;
      StepCase step = cached(ROPE_LAYOUT_THD);
      step.norm = norm;
      step.norm_extent = extent;
      step.tokens = 7;
      step.head_dim = 128;
      step.q.heads = 97;
      step.k.heads = 451;
      step.v.heads = 97;
      step.q.has_weight = step.k.has_weight = norm != 0;
      step.q.weight_by_head = step.k.weight_by_head = true;
      step.table_rows = 5;
      step.cache->slots = {20, 27, 25, 0, 33, 22, 40};
      step.check();
    }
  }
}

TEST_CASE("slots may change between two calls", "[rope][step][cache]") {
  for (const Device &device : devices()) {
    INFO(device);
    Workspace workspace(3);
    rope_args_t args = rope_args();
    args.flags = ROPE_FLAG_UNROTATED;
    args.k = workspace.tensor(ROPE_DTYPE_F32, {1, 2, 1, 4});
    rope_cache_args_t cache = ROPE_CACHE_ARGS_INIT;
    cache.k_cache = workspace.tensor(ROPE_DTYPE_F32, {1, 4, 1, 4});
    cache.slots = workspace.tensor(ROPE_DTYPE_I64, {1, 2});
    args.cache = &cache;
    const RopeDesc desc = create(rope_config_for(device, 4));
    workspace.fill_bits(args.k);
    for (const int64_t first : {0, 2}) {
      workspace.fill_integers(cache.slots, [&](const Index &at) { return first + at[1]; });
      workspace.freeze();
      workspace.restore();
      REQUIRE(run(device, desc.get(), Direction::Forward, args, workspace) == ROPE_STATUS_SUCCESS);
    }
    for_each_index(cache.k_cache, [&](const Index &at) {
      CHECK(same_bits_at(cache.k_cache, at, args.k, {0, at[1] % 2, 0, at[3]}));
    });
  }
}
