// SPDX-License-Identifier: Apache-2.0
// step_pieces.hpp - pieces that the kernels of whole heads treat as heads: all channels of a tensor's heads, or a part
#pragma once

#include <stdint.h>

#include "core/problem/fixed_list.hpp"
#include "core/problem/step_problem.hpp"
#include "plan/step_kernels.hpp"

namespace rope {

// All channels of each head of a tensor, its window, or the channels outside it. Pointers point into the problem.
struct StepPiece {
  int64_t heads;
  int channels;  // channels of a head
  bool is_turned;
  bool is_normed;
  bool is_written;           // to `out`
  const char *in;            // the piece's first channel of head 0, also in `out` and `cache`
  const int64_t *in_stride;  // in elements
  char *out;
  const int64_t *out_stride;
  rope_dtype_t out_dtype;
  CacheView cache;  // data NULL: no cache
  const StaticScale *scale;
  const WrittenScales *out_scales;
  const WrittenScales *cache_scales;
  const ChannelNumbers *weight;
  const ChannelNumbers *bias;
  const RowFactor *factor;
  char *amax;  // NULL: no magnitude is recorded

  bool is_cached() const { return cache.data != nullptr; }
  bool has_code_out() const { return is_written && is_code(out_dtype); }
  bool has_code_cache() const { return is_cached() && is_code(cache.dtype); }
  bool has_codes() const { return has_code_out() || has_code_cache(); }
  bool has_words() const { return is_written != has_code_out() || is_cached() != has_code_cache(); }
  bool has_written_scales() const { return out_scales->is_present() || cache_scales->is_present(); }
  const WrittenScales &written_scales() const { return out_scales->is_present() ? *out_scales : *cache_scales; }
  rope_dtype_t code_dtype() const { return has_code_out() ? out_dtype : cache.dtype; }
};

// Pieces with more channels come first.
struct StepPieces : FixedList<StepPiece, kMaxStepPieces> {
  int window_channels;  // channels of normed heads that are turned, if these are not all; otherwise 0
  bool is_window_last;  // they are a head's last channels, not its first ones

  bool has_windows() const { return window_channels != 0; }
};

// The piece with all channels of a tensor.
StepPiece whole_piece(const RopeProblem &problem, int index);

// Returns false if a tensor cannot be cut into pieces: the channels outside the window lie on both sides of it, or
// scales are for groups of all its channels. Also returns false if there are more pieces than a launch has room for.
// Normed heads are one piece, whose window may be turned.
bool make_step_pieces(const RopeProblem &problem, StepPieces *pieces);

}  // namespace rope
