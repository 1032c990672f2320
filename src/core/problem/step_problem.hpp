// step_problem.hpp - what a call does around the rotation, as validated plain data: norms, caches, what is not turned
#pragma once

#include <stdint.h>

#include "core/problem/rope_problem.hpp"

namespace rope {

// A weight or a bias of each channel.
struct ChannelNumbers {
  const char *data;     // NULL: absent
  bool is_f32;          // else it has the data's type
  int64_t head_stride;  // in elements; 0 where all heads have the same
  int64_t channel_stride;
};

// [pages, entries, heads, channels]; strides in elements.
struct CacheView {
  char *data;  // NULL: none
  rope_dtype_t dtype;
  int64_t page_stride;
  int64_t entry_stride;
  int64_t head_stride;
  int64_t channel_stride;
};

// What the step adds to the RotatedTensor of the same index.
struct StepTensor {
  int channels;      // of a head
  int window_begin;  // the first channel of the window
  bool is_turned;    // by the angles of its tokens
  bool has_styles;   // pairs move from the style that is read to the one that is written
  bool is_normed;
  bool is_written;  // to `out`
  bool is_whole;    // all channels of `out` are written, not the window alone
  rope_dtype_t out_dtype;
  ChannelNumbers weight;
  ChannelNumbers bias;
  CacheView cache;

  bool is_cached() const { return cache.data != nullptr; }
};

// Pages of the sequences: rows of a table, or runs of one list.
struct PageTable {
  const char *data;  // NULL: tokens have slots
  bool is_64_bit;
  int64_t row_stride;  // in elements; of a list 0
  int64_t column_stride;
  int64_t columns;  // of a row, or of the list
  int64_t rows;
  const char *indptr;  // where the runs of a list begin; NULL: it is no list
  bool is_indptr_64_bit;
  int64_t indptr_stride;
};

// Where in the caches a token goes.
struct CachePlaces {
  int64_t pages;
  int64_t entries;        // of a page
  int64_t cached_tokens;  // of a batch: those behind them have no place
  bool skips_slot_0;
  TokenIntegers slots;
  PageTable table;
  TokenIntegers sequence;   // the row of `table`; absent: the token's batch or sequence
  TokenIntegers positions;  // in the cache; absent: those of the rotation
};

struct StepProblem {
  StepTensor tensor[3];
  bool is_turned;   // some tensor is
  bool has_norm;    // some tensor is normed
  bool has_caches;  // some tensor is cached
  CachePlaces places;
};

}  // namespace rope
