// SPDX-License-Identifier: Apache-2.0
// step_problem.hpp - the parts of a call around the rotation, as validated plain data: norms, row factors, caches,
// codes, and tensors that are not turned
#pragma once

#include <stdint.h>

#include "core/math/norm.hpp"
#include "core/problem/rope_problem.hpp"
#include "core/problem/view.hpp"
#include "core/problem/written_scales.hpp"

namespace rope {

// A weight or a bias for each channel.
struct ChannelNumbers {
  const char *data;     // NULL: absent
  bool is_f32;          // false: it has the data's type
  int64_t head_stride;  // in elements; 0 if all heads have the same numbers
  int64_t channel_stride;
};

// A separate tensor with the channels outside the window: those before the window, then those behind it.
struct PassSide {
  const char *data;
  bool is_present;           // false: the tensor itself has these channels
  int64_t stride[kNumAxes];  // in elements
};

// The channels of a head that a destination has: all, the window, or the others.
struct ChannelPart {
  bool has_window;
  bool has_others;
  int window_at;  // the destination's channel for the first one of the window
  int behind_at;  // its channel for the first one behind the window; those before the window come first

  // The channels outside a window that begins at window_begin.
  static ROPE_HOST_DEVICE ChannelPart others(int window_begin) { return {false, true, 0, window_begin}; }

  ROPE_HOST_DEVICE int count(int channels, int window) const {
    return has_window && has_others ? channels : has_window ? window : channels - window;
  }
  // The head's channel at the destination's channel `index`.
  ROPE_HOST_DEVICE int channel_of(int index, int window_begin, int window_end) const {
    if (!has_others) return index - window_at + window_begin;
    return has_window || index < window_begin ? index : index + window_end - window_begin;
  }
  ROPE_HOST_DEVICE int index_of(int channel, int window_begin, int window_end) const {
    if (channel < window_begin) return channel;
    return channel < window_end ? window_at + channel - window_begin : behind_at + channel - window_end;
  }
};

// [pages, entries, heads, channels]. Strides are in elements.
struct CacheView {
  char *data;  // NULL: no cache
  rope_dtype_t dtype;
  int64_t page_stride;
  int64_t entry_stride;
  int64_t head_stride;
  int64_t channel_stride;
};

// The value of a tensor's code 1: F32, one for each head or one for all. Strides are in elements.
struct StaticScale {
  const char *data;  // NULL: 1
  int64_t head_stride;
};

// A factor for each token, or for each token and head. It multiplies all channels after all other operations. Strides
// are in elements.
struct RowFactor {
  const char *data;  // NULL: 1
  bool is_f32;       // false: it has the data's type
  int64_t batch_stride;
  int64_t token_stride;
  int64_t head_stride;  // 0 if all heads have the same factor

  ROPE_HOST_DEVICE bool is_present() const { return data != nullptr; }
  ROPE_HOST_DEVICE int64_t offset_of(int64_t batch, int64_t token, int64_t head) const {
    return batch * batch_stride + token * token_stride + head * head_stride;
  }
};

// The input of forward's norm, which backward reads beside the gradient. Strides are in elements.
struct NormInput {
  const char *data;  // NULL: forward, or a tensor without a norm
  int64_t stride[kNumAxes];
};

// The largest number of heads with a common weight for which a call can add up gradients.
constexpr int64_t kMaxSummedHeads = 512;

// Tokens are divided into `runs` runs of equal length. The last run may be shorter, or empty.
inline int64_t tokens_of_run(int64_t tokens, int64_t runs) {
  return (tokens - 1) / runs + 1;
}

// Memory to which backward adds the gradient of weights or biases: F32, for F64 data F64. Strides are in elements.
struct RunSums {
  char *data;  // NULL: not requested
  int64_t run_stride;
  int64_t head_stride;
  int64_t channel_stride;
  bool is_by_head;  // false: the sums of all heads are added up

  ROPE_HOST_DEVICE bool is_present() const { return data != nullptr; }
  ROPE_HOST_DEVICE bool is_added_up() const { return is_present() && !is_by_head; }
};

// The step of the RotatedTensor with this index.
struct StepTensor {
  int channels;      // channels of a head
  int window_begin;  // the first channel of the window
  bool is_turned;    // by the angles of its tokens
  bool has_styles;   // pairs move from the style of the input to that of the output
  bool is_normed;
  bool is_written;  // `out` is written
  bool is_whole;    // all channels of `out` are written, not only the window
  bool has_parts;   // channels come from two tensors, or go to two caches if the token has a place in them
  rope_dtype_t out_dtype;
  ChannelNumbers weight;
  ChannelNumbers bias;
  NormInput norm_in;
  RunSums weight_sums;
  RunSums bias_sums;
  int64_t runs;  // runs of tokens, each with its own sums; 0: no sums
  PassSide pass;
  RowFactor factor;
  CacheView cache;
  ChannelPart cache_part;
  CacheView pass_cache;  // has the channels that cache_part leaves out
  StaticScale scale;
  StaticScale pass_scale;  // of pass_cache
  WrittenScales out_scales;
  WrittenScales cache_scales;
  WrittenScales pass_scales;
  char *amax;  // a F32, raised to the largest magnitude that becomes codes; NULL: not requested

  bool is_cached() const { return cache.data != nullptr; }
  bool has_code_out() const { return is_written && is_code(out_dtype); }
  bool has_code_cache() const { return is_cached() && (is_code(cache.dtype) || is_code(pass_cache.dtype)); }
  bool has_codes() const { return has_code_out() || has_code_cache(); }
  // This also holds for caches without memory.
  bool may_take_scale() const { return is_code(out_dtype) || is_code(cache.dtype); }
  bool may_have_codes() const { return may_take_scale() || is_code(pass_cache.dtype); }
};

// Pages of the sequences: rows of a table, or parts of one list.
struct PageTable {
  const char *data;  // NULL: tokens have slots
  bool is_64_bit;
  int64_t row_stride;  // in elements; 0 for a list
  int64_t column_stride;
  int64_t columns;  // columns of a row, or of the list
  int64_t rows;
  const char *indptr;  // begins of the parts of a list; NULL: the pages form a table
  bool is_indptr_64_bit;
  int64_t indptr_stride;
};

// The places of tokens in the caches.
struct CachePlaces {
  int64_t pages;
  int64_t entries;        // entries of a page
  int64_t cached_tokens;  // cached tokens of a batch; later tokens have no place
  bool skips_slot_0;
  TokenIntegers slots;
  PageTable table;
  TokenIntegers sequence;   // the row in `table`; absent: the token's batch or sequence
  TokenIntegers positions;  // positions in the cache; absent: those of the rotation
};

struct StepProblem {
  StepTensor tensor[3];
  bool is_turned;         // some tensor is
  bool has_norm;          // some tensor is normed
  bool is_norm_gradient;  // is a backward call with a norm
  bool has_caches;        // some tensor is cached
  bool has_factor;        // some tensor has a row factor
  bool has_parts;         // some tensor has_parts
  bool has_codes;         // some tensor becomes codes
  bool scale_multiplies;  // values are multiplied by scales; false: divided
  bool accumulates;       // values are added to the outputs, which are not the inputs and have no codes
  CachePlaces places;
};

// The norm of a tensor in the arithmetic's type. 1 / n is rounded once in effect: up to 2^28 channels no quotient in
// double is so close to a rounding boundary that the second rounding changes the result.
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
