// SPDX-License-Identifier: Apache-2.0
// step_long_parts.cuh - shared by the step's kernels for long launches of whole heads: params, the place of a thread,
// and the angles and weights in shared memory
//
// step_long.cuh shows how blocks are distributed.
#pragma once

#include <type_traits>

#include "backend/cuda/kernels/addresses.cuh"
#include "backend/cuda/kernels/angles.cuh"
#include "backend/cuda/kernels/async_copy.cuh"
#include "backend/cuda/kernels/faults.cuh"
#include "backend/cuda/kernels/step_heads.cuh"

namespace rope {

template <StepAngles kAngles>
using StepLongParams =
    std::conditional_t<kAngles == StepAngles::kNone, StepLongHeadParams,
                       std::conditional_t<kAngles == StepAngles::kComputed,
                                          WithAngles<StepLongHeadParams, kMaxLongStepPairs>, StepLongTableParams>>;

// The largest params that CUDA accepts before 12.1.
static_assert(sizeof(WithScales<StepLongParams<StepAngles::kComputed>>) <= 4096, "");

// The params of step_codes.cuh.
template <StepCodes kCodes, StepAngles kAngles, bool HasWindow>
using StepCodesParams =
    std::conditional_t<HasWindow, WithWindow<StepLongParams<kAngles>>,
                       std::conditional_t<kCodes == StepCodes::kStatic, WithCodes<StepLongParams<kAngles>>,
                                          WithScales<StepLongParams<kAngles>>>>;

// The block of a thread, and the thread's number in its row.
template <bool IsNormed>
struct LongPlace {
  uint32_t index;        // number of the piece
  uint32_t part;         // number among the blocks of its tokens
  uint32_t first_token;  // first token of the block
  uint32_t row;
  uint32_t thread;
  bool has_row;

  __device__ __forceinline__ explicit LongPlace(const StepLongHeadParams &params) : index(0) {
    const DivmodResult in_group = params.blocks_of_group.divmod(blockIdx.x);
    constexpr int kPieces = IsNormed ? kMaxNormedStepPieces : kMaxStepPieces;
#pragma unroll
    for (int i = 1; i < kPieces; ++i) index += in_group.remainder >= params.tensor[i].first_block;
    const StepLongTensor &tensor = params.tensor[index];
    const DivmodResult block = tensor.parts.divmod(in_group.remainder - tensor.first_block);
    part = block.remainder;
    first_token = (in_group.quotient * tensor.runs + block.quotient) * (tensor.rows * params.turns);
    row = 0, thread = part * blockDim.x + threadIdx.x;
    if (tensor.rows > 1) {
      row = __umulhi(thread, tensor.threads_reciprocal);
      thread -= row * tensor.threads;
    }
    has_row = row < tensor.rows;
    if (!has_row) row = 0;
  }
};

// Writes the angles of a block's tokens, from `first` on, and for tables whether the tokens are lost. With a table it
// prefetches data of later tokens: their positions, and the rows that follow, which are mostly theirs. Aligned rows are
// copied asynchronously, four numbers at a time, if the pairs of a lane are fours: the caller calls wait_for_copies
// before its barrier.
template <typename Angles, StepAngles kAngles, bool HasLookups>
__device__ __forceinline__ void share_angles(const StepLongParams<kAngles> &params, const StepLongTensor &tensor,
                                             uint32_t first, uint32_t part, float *cos, uint32_t *lost) {
  constexpr bool kHasTable = kAngles == StepAngles::kTable, kHasFours = Angles::R::kLength % 4 == 0;
  const bool copies_fours = kHasTable && kHasFours && params.has_aligned_rows;
  const uint32_t numbers = tensor.rows * params.turns * params.pairs, run = copies_fours ? 4 : 1;
  const bool is_first = part == 0 && (tensor.flags & kCountsPositions) != 0;  // first block of these tokens
#pragma unroll 1
  for (uint32_t i = threadIdx.x * run; i < numbers; i += blockDim.x * run) {
    const DivmodResult place = params.by_pairs.divmod(i);
    const uint32_t row = place.quotient, pair = place.remainder, token = first + row;
    if (token >= params.num_tokens) break;
    const LoadedInteger implicit = {token & params.implicit_mask, 0};
    LoadedInteger position = implicit;
    const char *const position_address =
        step(step(params.positions, token, params.position_bytes), blockIdx.y, params.position_batch_bytes);
    const char *of_axis = position_address;
    if (HasLookups && params.lookups.used_axes != 0) {
      of_axis = step(of_axis, axis_of(params.lookups, pair), params.lookups.position_axis_bytes);
    }
    if (params.has_positions) position = load_step_integer(of_axis, params.has_wide_positions);
    const uint64_t index = finish_step_position(params, position);
    float *const to = cos + row * params.angle_floats + Angles::place_of(pair, params.pairs);
    CosSin<float> angle = {};
    if constexpr (!kHasTable) {
      angle = compute_angle(params, index, through_memory(params.increments)[pair]);
    } else {
      const bool is_lost = index >= params.rows;
      if (pair == 0) {
        bool is_token_lost = is_lost;
        if (HasLookups) {
          is_token_lost = is_lost || has_lost_axis(params, position_address, implicit, params.rows);
        }
        lost[row] = is_token_lost;
        if (is_first && token < params.tokens_that_prefetch) prefetch(position_address + params.position_bytes_ahead);
        if (is_first && is_token_lost) count_fault(params.fault, blockIdx.y * params.num_tokens + token);
      }
      if (is_lost) continue;
      const TablePlace entry(params, static_cast<uint32_t>(index), pair);
      if (is_first && index < params.rows_that_prefetch) {
        prefetch(entry.cos + params.row_bytes_ahead);
        prefetch(entry.sin + params.row_bytes_ahead);
      }
      if (copies_fours) {
        copy_async(reinterpret_cast<Words<16> *>(to), entry.cos);
        copy_async(reinterpret_cast<Words<16> *>(to + Angles::kPairs), entry.sin);
        continue;
      }
      angle = entry.load(params);
    }
    to[0] = angle.cos;
    to[Angles::kPairs] = angle.sin;
  }
  if constexpr (kHasTable) end_copy_group();
}

// Writes a tensor's weights with the offset added.
template <typename Weights, typename T, int V>
__device__ __forceinline__ void share_weights(const StepLongHeadParams &params, const StepLongTensor &tensor,
                                              float *weights) {
  constexpr int kFour = V < 4 ? V : 4;
  const bool is_wide = sizeof(T) == 4 || (tensor.flags & kHasWideWeight) != 0;
  const uint32_t channels = params.units_per_block * (2 * V);
  // The last threads begin, because the first ones compute angles.
  for (uint32_t i = (blockDim.x - 1 - threadIdx.x) * kFour; i < channels; i += blockDim.x * kFour) {
    float w[kFour] = {};
    if (tensor.weight != nullptr && is_wide) {
      to_floats<float, kFour>(load_vector<Vector<float, kFour>>(tensor.weight + i * 4), w);
    } else if (tensor.weight != nullptr) {
      to_floats<T, kFour>(load_vector<Vector<T, kFour>>(tensor.weight + i * sizeof(T)), w);
    }
#pragma unroll
    for (int j = 0; j < kFour; ++j) w[j] = add_rounded(w[j], tensor.weight_offset);
    store_vector(reinterpret_cast<char *>(weights + Weights::place_of(i, channels)), from_floats<float, kFour>(w));
  }
}

}  // namespace rope
