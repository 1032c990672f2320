// SPDX-License-Identifier: Apache-2.0
// norm_gradient_row_parts.cuh - what the kernel of norm_gradient_rows.cuh is made of: the places of blocks and threads,
// their shared memory, the angles in it, and the sums over lanes and heads
#pragma once

#include "backend/cuda/kernels/angles.cuh"
#include "backend/cuda/kernels/async_copy.cuh"
#include "backend/cuda/kernels/step_row_norms.cuh"

namespace rope {

// The group of a block, and its runs.
struct GradientBlock {
  const NormGradientGroup &group;
  uint32_t first_run;

  static __device__ __forceinline__ uint32_t find_group(const NormGradientRowParams &params) {
    return (blockIdx.x >= params.group[1].first_block) + (blockIdx.x >= params.group[2].first_block);
  }

  explicit __device__ __forceinline__ GradientBlock(const NormGradientRowParams &params)
      : group(params.group[find_group(params)]), first_run((blockIdx.x - group.first_block) * group.rows) {}

  // The first token of a row's run, counted through all batches. A row without a run has 0 tokens.
  __device__ __forceinline__ uint32_t first_token(uint32_t row) const {
    return (first_run + row) * group.tokens_of_run;
  }
  __device__ __forceinline__ uint32_t num_tokens(const NormGradientRowParams &params, uint32_t row) const {
    if (row >= group.rows || first_run + row >= group.runs) return 0;
    const uint32_t left = params.num_tokens - first_token(row);
    return left < group.tokens_of_run ? left : group.tokens_of_run;
  }
};

// The place of a thread's unit. Heads are numbered from the first head of their tensor in the row, or in the part.
struct GradientThread {
  uint32_t row;
  uint32_t tensor;
  uint32_t head;
  uint32_t number;  // number of the unit in its head

  __device__ __forceinline__ GradientThread(const NormGradientRowParams &params, const NormGradientGroup &group) {
    row = threadIdx.x / group.row_threads;
    const uint32_t of_row = threadIdx.x - row * group.row_threads;
    tensor = group.first_tensor;
    for (uint32_t i = tensor + 1; i < group.end_tensor; ++i) {
      if (of_row >= params.tensor[i].begin) tensor = i;
    }
    const StepRowTensor &mine = params.tensor[tensor];
    head = (of_row - mine.begin) >> mine.lanes_log2;
    number = (of_row - mine.begin) & ((1u << mine.lanes_log2) - 1);
  }
};

__device__ __forceinline__ StepAt find_token(const StepRowParams &params, uint32_t flat) {
  if (params.has_one_batch) return {flat, 0, flat};
  const DivmodResult in_batch = params.tokens_per_batch.divmod(flat);
  return {flat, in_batch.quotient, in_batch.remainder};
}

// Room for a float for each channel of a unit, or for the cosines of its pairs and then their sines. Consecutive units
// begin in different banks of shared memory.
struct alignas(16) UnitFloats {
  Words<16> four[5];  // the last one is not used

  __device__ __forceinline__ float *floats() { return reinterpret_cast<float *>(four); }
};
static_assert(sizeof(UnitFloats) == kGradientUnitBytes, "");

// A block's shared memory.
struct GradientShared {
  static constexpr int kGiven = 0, kRead = 2, kOwnVectors = 4;  // vectors of 16 bytes, for each thread
  static_assert(kOwnVectors * 16 == kGradientThreadBytes, "");

  Words<16> *own;
  UnitFloats *weights;  // with the offset added
  UnitFloats *angles;   // angles of a token's units
  uint32_t *lost;       // whether a token is lost
  float *exchange;      // room of the warp
  float *token_sums;    // sums of the heads of a token, from the first thread of each tensor, twice
  float *part_sums;

  __device__ __forceinline__ GradientShared(const NormGradientRowParams &params, float4 *shared)
      : own(reinterpret_cast<Words<16> *>(shared)) {
    weights = reinterpret_cast<UnitFloats *>(own + kOwnVectors * kMaxNormGradientThreads);
    angles = weights + params.weight_units;
    lost = reinterpret_cast<uint32_t *>(angles + params.shared_angles);
    float *const rooms = reinterpret_cast<float *>(lost + params.shared_lost);
    exchange = rooms + threadIdx.x / 32 * 64;
    token_sums = rooms + blockDim.x / 32 * 64;
    part_sums = token_sums + (params.is_of_token ? 2 * blockDim.x : 0);
  }

  __device__ __forceinline__ Words<16> *vector(int number) const {
    return own + number * kMaxNormGradientThreads + threadIdx.x;
  }
};

// The place of a pair of the head in its unit.
struct UnitPair {
  uint32_t unit;
  uint32_t number;
};

template <int V, bool IsInterleaved>
__device__ __forceinline__ UnitPair find_unit_pair(uint32_t pair, uint32_t pairs) {
  if constexpr (!IsInterleaved) return {pair / V, pair % V};
  const uint32_t is_high = pair >= pairs / 2 ? 1 : 0, of_vector = pair - is_high * (pairs / 2);
  return {of_vector / (V / 2), of_vector % (V / 2) + is_high * (V / 2)};
}

// Writes the angles of some tokens of each row, from the run's token `begin` on, and whether the tokens are lost. A
// warp processes one token after another. Its lanes loaded the positions before.
template <int V, bool IsInterleaved>
__device__ __forceinline__ void share_run_angles(const NormGradientRowParams &params, const GradientBlock &block,
                                                 uint32_t begin, bool counts_faults, const GradientShared &shared) {
  constexpr uint32_t kAtATime = 2;  // angles of a lane
  const uint32_t log2 = params.shared_tokens_log2, slots = block.group.rows << log2;
  const uint32_t lane = threadIdx.x % 32, warps = blockDim.x / 32;
  const StepLookups &lookups = params.lookups;
  const auto rows_of_table = static_cast<uint64_t>(params.table.rows);
#pragma unroll 1
  for (uint32_t first = threadIdx.x / 32; first < slots; first += warps * 32) {
    const uint32_t own_slot = first + lane * warps, row = own_slot >> log2;
    const uint32_t token = begin + (own_slot & ((1u << log2) - 1));
    const uint32_t is_there = own_slot < slots && token < block.num_tokens(params, row) ? 1 : 0;
    const StepAt own = find_token(params, is_there != 0 ? block.first_token(row) + token : 0);
    const auto position_of = [&](const StepAt &at) {
      return step(step(params.positions, at.token, params.position_bytes), at.batch, params.position_batch_bytes);
    };
    LoadedInteger own_position = {own.token, 0};
    if (is_there != 0 && params.has_positions) {
      own_position = load_step_integer(position_of(own), params.has_wide_positions);
    }
    if (is_there != 0 && params.has_table) {
      const bool is_lost = lookups.used_axes != 0
                               ? has_lost_axis(params, position_of(own), {own.token, 0}, rows_of_table)
                               : finish_step_position(params, own_position) >= rows_of_table;
      shared.lost[own_slot] = is_lost;
      if (is_lost && counts_faults) count_fault(params.fault, own.flat);
    }
#pragma unroll 1
    for (uint32_t source = 0; source < 32 && first + source * warps < slots; ++source) {
      const auto from_lane = [&](uint32_t word) { return __shfl_sync(kAllLanes, word, static_cast<int>(source)); };
      const LoadedInteger position = {from_lane(own_position.low), from_lane(own_position.high)};
      const uint32_t flat = from_lane(own.flat);
      if (from_lane(is_there) == 0) continue;
      UnitFloats *const to = shared.angles + (first + source * warps) * (params.pairs / V);
#pragma unroll 1
      for (uint32_t pair = lane; pair < params.pairs; pair += 32 * kAtATime) {
        CosSin<float> angle[kAtATime] = {};
        const auto find_angle = [&](uint32_t of_pair) -> CosSin<float> {
          LoadedInteger of_axis = position;
          if (lookups.used_axes != 0 && params.has_positions) {
            const char *const address = position_of(find_token(params, flat));
            of_axis = load_step_integer(step(address, axis_of(lookups, of_pair), lookups.position_axis_bytes),
                                        params.has_wide_positions);
          }
          const uint64_t index = finish_step_position(params, of_axis);
          if (!params.has_table) return compute_angle(params, index, through_memory(params.increments)[of_pair]);
          if (index >= rows_of_table) return {};
          return load_row_angle(params, index, of_pair);
        };
#pragma unroll
        for (uint32_t i = 0; i < kAtATime; ++i) {
          if (pair + 32 * i < params.pairs) angle[i] = find_angle(pair + 32 * i);
        }
#pragma unroll
        for (uint32_t i = 0; i < kAtATime; ++i) {
          if (pair + 32 * i >= params.pairs) continue;
          const UnitPair in_unit = find_unit_pair<V, IsInterleaved>(pair + 32 * i, params.pairs);
          float *const floats = to[in_unit.unit].floats() + in_unit.number;
          floats[0] = angle[i].cos;
          floats[V] = angle[i].sin;
        }
      }
    }
  }
}

// Turns a unit by the angles of backward, or for forward with the other sign of the sines. The latter equals turning
// pairs with exchanged channels.
template <bool IsForward, int V, bool IsInterleaved>
__device__ __forceinline__ void turn_unit(UnitFloats *angles, float *low, float *high) {
  const float *const cos = angles->floats();
  if constexpr (IsInterleaved) {
    rotate_by_run<V / 2>(low + IsForward, low + !IsForward, 2, cos, cos + V);
    rotate_by_run<V / 2>(high + IsForward, high + !IsForward, 2, cos + V / 2, cos + V + V / 2);
  } else {
#pragma unroll
    for (int i = 0; i < V; i += 4) {
      rotate_by_run<4>((IsForward ? high : low) + i, (IsForward ? low : high) + i, 1, cos + i, cos + V + i);
    }
  }
}

// Adds up the sums of `count` heads, or parts, by the tree, `channels` each. The first one's room receives the result.
// All threads of the block take part.
__device__ __forceinline__ void fold_sums(uint32_t count, uint32_t channels, float *sums) {
  const uint32_t fours = channels / 4;
  auto *const of_first = reinterpret_cast<Words<16> *>(sums);
#pragma unroll 1
  for (uint32_t distance = 1; distance < count; distance *= 2) {
    __syncthreads();
#pragma unroll 1
    for (uint32_t i = threadIdx.x; i < ((count - 1) / (2 * distance) + 1) * fours; i += blockDim.x) {
      const uint32_t number = i / fours * (2 * distance);
      Words<16> *const to = of_first + number * fours + i % fours;
      float sum[4], other[4] = {};
      to_floats<float, 4>(*to, sum);
      if (number + distance < count) to_floats<float, 4>(to[distance * fours], other);
#pragma unroll
      for (int j = 0; j < 4; ++j) sum[j] = add_rounded(sum[j], other[j]);
      *to = from_floats<float, 4>(sum);
    }
  }
  __syncthreads();
}

// The tree over the heads of a token, which fill whole warps. All threads of the block take part. The next call uses
// other room.
inline __device__ __noinline__ float sum_over_heads_of_token(float of_head, bool has_head, uint32_t head,
                                                             uint32_t heads, float *room) {
  if (has_head) room[head] = of_head;
  __syncthreads();
  const uint32_t lane = threadIdx.x % 32;
  uint32_t run = 1;
  while (run * 32 < heads) run *= 2;
  TreeSum<float> of_run;
  for (uint32_t i = lane * run; i < (lane + 1) * run; ++i) of_run.add(i < heads ? room[i] : 0.0f);
  float sum = of_run.total();
  for (uint32_t distance = 1; distance * run < heads; distance *= 2) sum = add_lane(sum, distance);
  return __shfl_sync(kAllLanes, sum, 0);
}

// Keeps values in registers from here on: the compiler must not repeat the conversion or computation that made them.
template <typename T, int V>
__device__ __forceinline__ void keep_values(UnitValues<T, V> *values) {
#if defined(__CUDA_ARCH__)
#pragma unroll
  for (int i = 0; i < V; ++i) asm volatile("" : "+f"(values->low[i]), "+f"(values->high[i]));
#endif
}

template <int V>
__device__ __forceinline__ float sum_of_products(const float *a, const float *b) {
  float products[V];
#pragma unroll
  for (int i = 0; i < V; ++i) products[i] = multiply_rounded(a[i], b[i]);
  return tree_sum<V>(products);
}

}  // namespace rope
