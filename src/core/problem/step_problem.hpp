// step_problem.hpp - what a call does around the rotation, as validated plain data: norms, row factors, caches, codes, what
// is not turned
#pragma once

#include <stdint.h>

#include "core/math/norm.hpp"
#include "core/problem/rope_problem.hpp"
#include "core/problem/view.hpp"
#include "core/problem/written_scales.hpp"

namespace rope {

// A weight or a bias of each channel.
struct ChannelNumbers {
  const char *data;     // NULL: absent
  bool is_f32;          // else it has the data's type
  int64_t head_stride;  // in elements; 0 where all heads have the same
  int64_t channel_stride;
};

// Channels outside the window in a tensor of their own: those before the window, then those behind it.
struct PassSide {
  const char *data;
  bool is_present;           // else the tensor itself has them
  int64_t stride[kNumAxes];  // in elements
};

// Which channels of a head a destination has: all, the window, or the others.
struct ChannelPart {
  bool has_window;
  bool has_others;
  int window_at;  // the destination's channel that is the first of the window
  int behind_at;  // the one that is the first behind the window; those before the window come first

  // Those outside a window that begins there.
  static ROPE_HOST_DEVICE ChannelPart others(int window_begin) { return {false, true, 0, window_begin}; }

  ROPE_HOST_DEVICE int count(int channels, int window) const {
    return has_window && has_others ? channels : has_window ? window : channels - window;
  }
  // The head's channel that is the destination's `index`.
  ROPE_HOST_DEVICE int channel_of(int index, int window_begin, int window_end) const {
    if (!has_others) return index - window_at + window_begin;
    return has_window || index < window_begin ? index : index + window_end - window_begin;
  }
  ROPE_HOST_DEVICE int index_of(int channel, int window_begin, int window_end) const {
    if (channel < window_begin) return channel;
    return channel < window_end ? window_at + channel - window_begin : behind_at + channel - window_end;
  }
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

// What codes of a tensor stand for: F32, for each head or one for all; strides in elements.
struct StaticScale {
  const char *data;  // NULL: 1
  int64_t head_stride;
};

// A number for each token, or for each token and head, that all channels are multiplied by behind everything else.
// Strides in elements.
struct RowFactor {
  const char *data;  // NULL: 1
  bool is_f32;       // else it has the data's type
  int64_t batch_stride;
  int64_t token_stride;
  int64_t head_stride;  // 0 where all heads have the same

  ROPE_HOST_DEVICE bool is_present() const { return data != nullptr; }
  ROPE_HOST_DEVICE int64_t offset_of(int64_t batch, int64_t token, int64_t head) const {
    return batch * batch_stride + token * token_stride + head * head_stride;
  }
};

// What forward's norm was of, which backward reads beside the gradient. Strides in elements.
struct NormInput {
  const char *data;  // NULL: forward, or a tensor without a norm
  int64_t stride[kNumAxes];
};

// Heads whose gradients a call can add up to those of a weight that all of them have.
constexpr int64_t kMaxSummedHeads = 512;

// Of so many runs the last may have fewer, or none.
inline int64_t tokens_of_run(int64_t tokens, int64_t runs) {
  return (tokens - 1) / runs + 1;
}

// Where backward adds the gradient of weights or of biases: F32, for F64 data F64. Strides in elements.
struct RunSums {
  char *data;  // NULL: not wanted
  int64_t run_stride;
  int64_t head_stride;
  int64_t channel_stride;
  bool is_by_head;  // else the sums of all heads are added up

  ROPE_HOST_DEVICE bool is_present() const { return data != nullptr; }
  ROPE_HOST_DEVICE bool is_added_up() const { return is_present() && !is_by_head; }
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
  bool has_parts;   // channels come from two tensors, or go to two caches where the token has a place in them
  rope_dtype_t out_dtype;
  ChannelNumbers weight;
  ChannelNumbers bias;
  NormInput norm_in;
  RunSums weight_sums;
  RunSums bias_sums;
  int64_t runs;  // of tokens, each with sums of its own; 0: there are none
  PassSide pass;
  RowFactor factor;
  CacheView cache;
  ChannelPart cache_part;
  CacheView pass_cache;  // of the channels that cache_part leaves out
  StaticScale scale;
  StaticScale pass_scale;  // of pass_cache
  WrittenScales out_scales;
  WrittenScales cache_scales;
  WrittenScales pass_scales;
  char *amax;  // a F32 that the largest magnitude of what becomes codes raises; NULL: not wanted

  bool is_cached() const { return cache.data != nullptr; }
  bool has_code_out() const { return is_written && is_code(out_dtype); }
  bool has_code_cache() const { return is_cached() && (is_code(cache.dtype) || is_code(pass_cache.dtype)); }
  bool has_codes() const { return has_code_out() || has_code_cache(); }
  // Even where a cache has no memory.
  bool may_take_scale() const { return is_code(out_dtype) || is_code(cache.dtype); }
  bool may_have_codes() const { return may_take_scale() || is_code(pass_cache.dtype); }
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
  bool is_turned;         // some tensor is
  bool has_norm;          // some tensor is normed
  bool is_norm_gradient;  // and the call is of backward
  bool has_caches;        // some tensor is cached
  bool has_factor;        // some tensor has one
  bool has_parts;         // some tensor has
  bool has_codes;         // some tensor becomes codes
  bool scale_multiplies;  // values are multiplied by scales; else divided
  bool accumulates;       // outputs are added to, which are not their inputs and have no codes
  CachePlaces places;
};

// The norm of a tensor in the arithmetic's type. 1 / n is rounded once: up to 2^28 channels none of its quotients in
// double lies where a second rounding would show.
template <typename Real>
NormForm<Real> norm_form(const RopeProblem &problem, int index) {
  const NormGeometry &norm = problem.geometry->norm;
  const int64_t heads = norm.is_of_token ? problem.tensor[index].heads : 1;
  NormForm<Real> form;
  form.eps = static_cast<Real>(norm.eps);
  form.inverse_count = static_cast<Real>(1.0 / static_cast<double>(heads * problem.step->tensor[index].channels));
  form.weight_offset = static_cast<Real>(norm.weight_offset);
  form.is_layer = norm.type == ROPE_NORM_LAYER;
  form.rounds_before_weight = norm.rounds_before_weight;
  form.rounds_after_weight = norm.rounds_after_weight;
  return form;
}

}  // namespace rope
