// SPDX-License-Identifier: Apache-2.0
// token_angles.cuh - the angles of the token of a row of threads, computed or from a table
#pragma once

#include <type_traits>

#include "backend/cuda/kernels/addresses.cuh"
#include "backend/cuda/kernels/angles.cuh"
#include "backend/cuda/kernels/positions.cuh"
#include "backend/cuda/kernels/sequences.cuh"
#include "backend/cuda/kernels/table_rows.cuh"

namespace rope {

// The source of a kernel's angles.
struct ComputedAngles {
  using Params = RopeTokenAngleParams;
  static constexpr bool kHasRows = false;
};

struct TableAngles {
  using Params = RopeTokenTableParams;
  static constexpr bool kHasRows = true;
};

template <typename Angles, Lookups kLookup>
using AnglesParams =
    std::conditional_t<kLookup == kNoLookup, typename Angles::Params, RopeTokenLookup<typename Angles::Params>>;

// The angles of a row of threads in shared memory: a cosine for each pair, then the sines. Data for which the whole
// block waits is loaded early: the constructor loads parameters, possibly before the wait for the previous launch, and
// begin() loads positions and rows, before the channels.
template <typename Angles, Lookups kLookup>
class TokenAngles {
 public:
  using Params = AnglesParams<Angles, kLookup>;

  // `is_first`: this thread counts the token's faults for all threads that share the token.
  __device__ __forceinline__ TokenAngles(const Params &params, BatchToken at, bool is_present, bool is_first,
                                         float *shared)
      : params_(params),
        at_(at),
        is_present_(is_present),
        is_first_(is_present && is_first),
        cos_(shared + threadIdx.y * (2 * params.pairs)),
        pair_(is_present ? threadIdx.x : params.pairs),
        place_({at.batch, static_cast<uint64_t>(at.token)}) {
    // With sequences there are not enough registers to do this here.
    if (!kMayHaveSequences && pair_ < params_.pairs) read_parameters();
  }

  __device__ __forceinline__ const float *cos() const { return cos_; }
  __device__ __forceinline__ const float *sin() const { return cos_ + params_.pairs; }

  // Loads the positions and, from a table, the row of the thread's first pair.
  __device__ __forceinline__ void begin() {
    if (!kMayHaveSequences && pair_ < params_.pairs) position_ = load_position(params_, at_, axis_);
    // Computed angles need no second load from memory, so the channels may be loaded first.
    if constexpr (Angles::kHasRows) {
      if constexpr (kMayHaveSequences) look_up_sequence();
      if (pair_ < params_.pairs) load_row();
    }
  }

  // Ends with a barrier. `is_first_part`: this block is the first of those that share the token.
  __device__ __forceinline__ TokenState make(bool is_first_part) {
    if constexpr (kMayHaveSequences && !Angles::kHasRows) look_up_sequence();
    if constexpr (!kMayHaveSequences) {
      const bool prefetches = static_cast<uint32_t>(at_.token) < params_.tokens_that_prefetch;
      if (prefetches && is_first_part && is_present_) prefetch_position();
    }
    bool is_lost = false;
// A row with fewer threads than pairs takes several rounds. Each round stores one angle and loads the data of the next.
#pragma unroll 1
    while (pair_ < params_.pairs) {
      CosSin<float> angle;
      if constexpr (Angles::kHasRows) {
        is_lost = !has_row_;
        if (is_lost) break;
        angle = {entry_of(row_.cos, params_.table.dtype), entry_of(row_.sin, params_.table.dtype)};
        if (params_.sin_scale < 0.0f) angle.sin = -angle.sin;
      } else {
        if constexpr (kMayHaveSequences) read_parameters();
        angle = compute_angle(params_, position(), increment_);
      }
      cos_[pair_] = angle.cos;
      cos_[params_.pairs + pair_] = angle.sin;
      pair_ += blockDim.x;
      if (pair_ >= params_.pairs) break;
      if constexpr (!kMayHaveSequences) read_parameters();
      if constexpr (kLookup == kAxesLookup) position_ = load_position(params_, at_, axis_);
      if constexpr (Angles::kHasRows) load_row();
    }
    if constexpr (Angles::kHasRows) {
      // This branch is rare, so it may be slow. It runs for every token of the block, although only one may need it.
      if (__syncthreads_or(is_lost)) {
        is_lost = is_present_ && !is_absent_ && !has_rows();
        if constexpr (kLookup != kNoLookup) {
          if (is_lost && is_first_) count_fault(params_.fault, at_.batch * params_.tokens_per_batch + at_.token);
        }
      }
    } else {
      __syncthreads();
    }
    return is_absent_ ? kAbsent : is_lost ? kUnrotated : kRotated;
  }

 private:
  static constexpr bool kMayHaveSequences = kLookup == kSequencesLookup || kLookup == kAllLookups;

  // Reads the increment and the position axis of the current pair.
  __device__ __forceinline__ void read_parameters() {
    if constexpr (!Angles::kHasRows) increment_ = through_memory(params_.increments)[pair_];
    if constexpr (kLookup != kNoLookup) {
      if (!kMayHaveSequences || params_.num_axes > 1) axis_ = through_memory(params_.pair_axis)[pair_];
    }
  }

  // Prefetches the positions of the token that is tokens_ahead further on, so that its threads find them in the L2
  // cache.
  __device__ __forceinline__ void prefetch_position() const {
    const int axis = static_cast<int>(threadIdx.x);
    if (axis >= params_.num_position_axes) return;
    const TokenIntegers &source = params_.positions;
    const int64_t at = at_.batch * source.batch_stride + (at_.token + params_.tokens_ahead) * source.token_stride +
                       axis * source.axis_stride;
    prefetch(source.data + (source.is_64_bit ? at * 8 : at * 4));
  }

  // A token in no sequence also gets a place, which is never read, so that the lookup need not wait. Warps without a
  // pair look up the sequence too; otherwise they would load their channels long before the other warps
  // (tests/bench/TUNING.md).
  __device__ __forceinline__ void look_up_sequence() {
    if (kLookup == kSequencesLookup || params_.sequences.is_present) {
      const int64_t begin = sequence_entry(params_.sequences, 0);
      const int64_t end = sequence_entry(params_.sequences, params_.sequences.count);
      place_ = find_sequence_by_warp(params_.sequences, at_.token);
      is_absent_ = at_.token < begin || at_.token >= end;
      if (is_absent_) {
        pair_ = params_.pairs;
        if (is_first_ && at_.token < begin) count_fault(params_.fault, at_.token);
      }
    }
    check_sequences(params_);
  }

  // For the current pair.
  __device__ __forceinline__ uint64_t position() const {
    if constexpr (kMayHaveSequences) return position_on(params_, axis_, place_.sequence, at_.token, place_.index);
    return finish_position(params_, position_);
  }

  // Loads the current pair's entry of its row, if the row exists.
  __device__ __forceinline__ void load_row() {
    const AngleTable &table = params_.table;
    if constexpr (kMayHaveSequences) read_parameters();
    uint64_t row = position();
    uint32_t column = pair_;
    if constexpr (kLookup != kNoLookup) {
      if (table.is_by_token) row = static_cast<uint64_t>(at_.token);
      column = params_.table_width.divmod(pair_).remainder;
    }
    has_row_ = row < static_cast<uint64_t>(table.rows);
    if (has_row_) row_ = load_angle(table, axis_, at_.batch, static_cast<int64_t>(row), column);
  }

  // Whether the table has a row for every position of the token.
  __device__ __forceinline__ bool has_rows() const {
    const uint64_t rows = static_cast<uint64_t>(params_.table.rows);
    if constexpr (kLookup == kNoLookup) {
      return finish_position(params_, load_position(params_, at_)) < rows;
    } else {
      SequencePlace place = {at_.batch, static_cast<uint64_t>(at_.token)};
      if (params_.sequences.is_present) place = find_sequence(params_.sequences, at_.token);
      for (int axis = 0; axis < params_.num_axes; ++axis) {
        const bool is_used = (params_.used_axes >> axis & 1u) != 0;
        if (is_used && position_on(params_, axis, place.sequence, at_.token, place.index) >= rows) return false;
      }
      return true;
    }
  }

  const Params &params_;
  const BatchToken at_;
  const bool is_present_;
  const bool is_first_;
  float *const cos_;
  uint32_t pair_;
  SequencePlace place_;
  bool is_absent_ = false;
  uint64_t increment_ = 0;
  int axis_ = 0;
  LoadedInteger position_ = {};
  LoadedAngle row_;
  bool has_row_ = false;
};

}  // namespace rope
