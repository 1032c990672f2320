// SPDX-License-Identifier: Apache-2.0
// step_long.cuh - the step's kernels for long launches of whole heads
//
// The picture has 32 + 8 + 8 heads of 128 channels, 16 bits, vectors of 16 bytes, blocks of 128 threads, two turns. All
// threads of a block have one tensor, or one piece of its heads (step_pieces.hpp). The blocks of a group of tokens are
// consecutive.
//
//   block of the group    0           1             2           3             4              5
//   tensor                q                                                   k              v
//   tokens, first turn    0           0             1           1             0, 1           0, 1
//           second turn   …                                                   2, 3           2, 3
//   heads                 0 … 15     16 … 31        0 … 15     16 … 31        0 … 7          0 … 7
//
//   grid x           the blocks of all groups
//   grid y           batches, if their tokens cannot be counted as those of one
//   tensor.rows      tokens of a block at a time, one for each row of threads
//   turns            how many times the block takes new tokens
//   tensor.parts     blocks of a token, if its heads have more units than a block has threads
//   tensor.runs      blocks that share the tokens of a group, rows * turns of them each
//   shared           for each token of the block: cosines of its pairs, then sines; then whether it is lost, for each
//                    token; then the tensor's weights
//
// Each head is read once and written once to each of its destinations. Each block also reads the positions of its
// tokens and their rows of a table, and the weights of its tensor; each thread of a cached head reads a slot.
#pragma once

#include "backend/cuda/kernels/kernel.hpp"
#include "backend/cuda/kernels/occupancy.cuh"
#include "backend/cuda/kernels/programmatic_launch.cuh"
#include "backend/cuda/kernels/step_long_parts.cuh"
#include "plan/tuning.hpp"

namespace rope {

// HasMore: roundings within the norm, several position axes, a page table.
template <typename T, int V, bool IsInterleaved, bool IsNormed, bool HasMore, StepAngles kAngles>
__global__ void __launch_bounds__(kMaxStepThreads,
                                  min_blocks_per_multiprocessor(kStepLongResidentThreads[IsNormed], kMaxStepThreads))
    step_long_kernel(const __grid_constant__ StepLongParams<kAngles> params) {
  constexpr int32_t kVectorBytes = V * static_cast<int32_t>(sizeof(T));
  constexpr bool kIsTurned = kAngles != StepAngles::kNone;
  constexpr uint32_t kUsualUnits = 128 / (2 * V);
  using Angles = LaneAngles<V, IsInterleaved, 1>;
  using Weights = LaneWeights<V, 2>;
  begin_dependent_launch();
  extern __shared__ float4 shared[];
  float *const cos = reinterpret_cast<float *>(shared);

  const LongPlace<IsNormed> place(params);
  const StepLongTensor &tensor = params.tensor[place.index];
  const uint32_t rows = tensor.rows;
  const StepUnitOf<IsNormed> unit(params, tensor, place.thread);
  const uint32_t head = unit.head, number = unit.number;
  const bool is_present = place.has_row && head < tensor.heads && number < unit.units;
  uint32_t token = place.first_token + place.row;
  const char *in = step(step(step(tensor.in, head, tensor.head), token, tensor.in_token), unit.place, kVectorBytes) +
                   blockIdx.y * tensor.batch;
  const bool has_out = (tensor.flags & kHasOut) != 0, has_cache = tensor.cache != nullptr;
  char *const cache = const_cast<char *>(step(step(tensor.cache, head, tensor.cache_head), unit.place, kVectorBytes));
  const bool is_changed = (IsNormed || kIsTurned) && (tensor.flags & kIsChanged) != 0;
  wait_for_previous_launch();

  bool is_active = is_present && token < params.num_tokens;
  LoadedInteger slot = {};
  Vector<T, V> low = {}, high = {};
  const auto load = [&] {
    if (has_cache && token < params.slots.cached_tokens) {
      const char *const slot_address =
          step(step(params.slots.data, token, params.slots.token_bytes), blockIdx.y, params.slots.batch_bytes);
      slot = HasMore ? load_slot(params.slots, slot_address, token & params.implicit_mask)
                     : load_step_integer(slot_address, params.slots.is_64_bit);
    }
    low = load_vector<Vector<T, V>>(in);
    high = load_vector<Vector<T, V>>(in + params.to_high);
  };
  // The first vectors arrive while the block computes its angles.
  if (is_active) load();

  const uint32_t tokens = rows * params.turns, end = place.first_token + tokens;
  float *const behind_angles = cos + (kIsTurned ? tokens * params.angle_floats : 0);
  uint32_t *const lost = reinterpret_cast<uint32_t *>(behind_angles);
  float *const shared_weights = behind_angles + (kAngles == StepAngles::kTable ? (tokens + 3) / 4 * 4 : 0);
  if (is_changed) {
    if constexpr (kIsTurned) {
      share_angles<Angles, kAngles, HasMore>(params, tensor, place.first_token, place.part, cos, lost);
    }
    if constexpr (IsNormed) share_weights<Weights, T, V>(params, tensor, shared_weights);
    if constexpr (kAngles == StepAngles::kTable) wait_for_copies<0>();
    __syncthreads();
  }
  const uint32_t read_unit = number < params.units_per_block ? number : 0;  // idle lanes compute, too
  Angles angles = {cos + place.row * params.angle_floats + read_unit * Angles::kStride};
  const Weights weights = {cos + keep(static_cast<uint32_t>(shared_weights - cos) + read_unit * Weights::kStride), V};
  const auto store = [&] {
    if (!is_active) return;
    if (has_out) {
      char *out = unit.find_out(tensor, in, token);
      if constexpr (!IsNormed) out += blockIdx.y * tensor.batch_shift;
      store_unit<false>(params, false, out, low, high);
    }
    if (has_cache && token < params.slots.cached_tokens) {
      const uint32_t batch = (token & ~params.implicit_mask) + blockIdx.y, of_batch = token & params.implicit_mask;
      const StepPlace in_cache =
          HasMore ? find_place(params.slots, params.lookups, slot, batch, of_batch) : find_slot(params.slots, slot);
      const bool is_outside = store_cached<false>(params, tensor, cache, in_cache, false, low, high);
      if (is_outside && place.thread == 0 && (tensor.flags & kCountsPlaces) != 0) {
        count_fault(params.fault, blockIdx.y * params.num_tokens + token);
      }
    }
  };
#pragma unroll 1
  for (;;) {
    if (is_changed) {
      float inverse = 0.0f;
      if constexpr (IsNormed) {
        const float sum =
            sum_over_lanes<kUsualUnits>(params, number, sum_of_squares_in<T, V>(low), sum_of_squares_in<T, V>(high));
        inverse = inverse_norm(params.norm, sum);
        forget_floats(&low);
        forget_floats(&high);
      }
      const bool is_turned = kIsTurned && (kAngles != StepAngles::kTable || lost[token - place.first_token] == 0);
      change_unit<T, V, IsInterleaved, IsNormed, HasMore, UnitAs::kWords>(params.norm, inverse, weights, true,
                                                                          is_turned, angles, 1.0f, &low, &high);
    }
    store();
    token += rows;
    if (token >= end) break;
    is_active = is_active && token < params.num_tokens;
    in = step(in, rows, tensor.in_token);
    angles.cos_of_unit += rows * params.angle_floats;
    if (is_active) load();
  }
}

template <typename T, bool IsInterleaved, bool IsNormed, bool HasMore>
Kernel find_step_long_kernel(StepAngles angles) {
  constexpr int V = kLongStepVectorBytes / static_cast<int>(sizeof(T));
#define ROPE_STEP_KERNEL(is_interleaved, angles) \
  kernel_of(step_long_kernel<T, V, is_interleaved, IsNormed, HasMore, StepAngles::angles>)
  return angles == StepAngles::kComputed ? ROPE_STEP_KERNEL(IsInterleaved, kComputed)
         : angles == StepAngles::kTable  ? ROPE_STEP_KERNEL(IsInterleaved, kTable)
                                         : ROPE_STEP_KERNEL(false, kNone);
#undef ROPE_STEP_KERNEL
}

template <typename T, bool IsInterleaved, bool IsNormed>
Kernel find_step_long_kernel(const StepVariant &variant) {
  return variant.has_more ? find_step_long_kernel<T, IsInterleaved, IsNormed, true>(variant.angles)
                          : find_step_long_kernel<T, IsInterleaved, IsNormed, false>(variant.angles);
}

template <typename T, bool IsInterleaved>
Kernel find_step_long_kernel(const StepVariant &variant) {
  return variant.norm != StepNorm::kNone ? find_step_long_kernel<T, IsInterleaved, true>(variant)
                                         : find_step_long_kernel<T, IsInterleaved, false>(variant);
}

template <typename T>
Kernel find_step_long_kernel(const StepVariant &variant) {
  return variant.is_interleaved ? find_step_long_kernel<T, true>(variant) : find_step_long_kernel<T, false>(variant);
}

}  // namespace rope
