// SPDX-License-Identifier: Apache-2.0
// step_row_units.cuh - the part of a thread in the step's kernels of rows, and the data that threads of a token share
//
// step_rows.cuh has pictures of both.
#pragma once

#include "backend/cuda/kernels/addresses.cuh"
#include "backend/cuda/kernels/faults.cuh"
#include "backend/cuda/kernels/step_heads.cuh"

namespace rope {

// Data that the threads of a token share, in addition to its angles, which follow it.
struct alignas(16) StepShared {
  int64_t cache_row[2];  // in bytes from the beginnings of k's and v's cache
  uint32_t page;         // page in both caches, in instances with codes that write scales
  uint32_t entry;
  bool is_cached;
  bool is_lost;  // the token has no row of the table
};
static_assert(sizeof(StepShared) == kStepSharedBytes, "");

// The number of threads that share the angles of a token: a warp of kShortRows, a row of kLongRows.
template <bool IsShort>
struct Sharers {
  static __device__ __forceinline__ uint32_t number() { return IsShort ? threadIdx.x % 32 : threadIdx.x; }
  static __device__ __forceinline__ uint32_t count() { return IsShort ? 32 : blockDim.x; }
  static __device__ __forceinline__ uint32_t group() {
    return IsShort ? (threadIdx.y * blockDim.x + threadIdx.x) / 32 : threadIdx.y;
  }
  static __device__ __forceinline__ void meet() {
    if (IsShort) {
      __syncwarp();
    } else {
      __syncthreads();
    }
  }
};

struct StepAt {
  uint32_t flat;  // number of the token among those of all batches
  uint32_t batch;
  uint32_t token;  // number of the token in its batch
};

// Writes the token's place in the caches.
__device__ __forceinline__ void share_place(const StepRowParams &params, const StepAt &at, const StepPlace &place,
                                            bool counts_faults, StepShared *shared) {
  shared->is_cached = place.is_cached;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    shared->cache_row[i] = place.page * params.page_bytes[i] + place.entry * params.entry_bytes[i];
  }
  if (place.is_faulty && counts_faults) count_fault(params.fault, at.flat);
}

// The angle of a pair, from a row of the table.
__device__ __forceinline__ CosSin<float> load_row_angle(const StepRowParams &params, uint64_t row, uint32_t pair) {
  const int axis = params.lookups.used_axes != 0 ? static_cast<int>(axis_of(params.lookups, pair)) : 0;
  const LoadedAngle loaded = load_angle(params.table, axis, 0, static_cast<int64_t>(row), pair);
  const float sin = entry_of(loaded.sin, params.table.dtype);
  return {entry_of(loaded.cos, params.table.dtype), params.sin_scale < 0.0f ? -sin : sin};
}

// The place of a unit in its head, in bytes.
struct UnitPlace {
  bool is_rotary;
  int32_t low;
  int32_t to_high;
};

template <int VectorBytes>
__device__ __forceinline__ UnitPlace find_unit_place(const StepRowTensor &tensor, uint32_t unit) {
  if (unit < tensor.rotary_units) {
    return {true, tensor.window_begin + static_cast<int32_t>(unit) * VectorBytes, tensor.to_high};
  }
  const int32_t outside = static_cast<int32_t>(unit - tensor.rotary_units) * (2 * VectorBytes);
  return {false, outside < tensor.window_begin ? outside : outside + tensor.window_size, VectorBytes};
}

// A thread's unit: its token, head and place. Nothing of it stays in registers while a head is computed: the kernel
// finds it twice.
template <int VectorBytes>
struct StepUnit {
  StepAt at;
  bool has_token;
  bool is_first_part;  // the first of the blocks that share the token
  int tensor;
  uint32_t head;
  uint32_t number;  // number of the unit in its head
  UnitPlace place;
  bool is_active;

  __device__ __forceinline__ StepUnit(const StepRowParams &params, uint32_t thread_of_row) {
    const DivmodResult block = params.parts.divmod(blockIdx.x);
    at.flat = block.quotient * blockDim.y + threadIdx.y;
    at.batch = 0, at.token = at.flat;
    if (!params.has_one_batch) {
      const DivmodResult in_batch = params.tokens_per_batch.divmod(at.flat);
      at.batch = in_batch.quotient, at.token = in_batch.remainder;
    }
    has_token = at.flat < params.num_tokens;
    is_first_part = block.remainder == 0;
    const uint32_t thread = block.remainder * blockDim.x + thread_of_row;
    tensor = (thread >= params.tensor[1].begin) + (thread >= params.tensor[2].begin);
    const StepRowTensor &mine = params.tensor[tensor];
    const uint32_t in_tensor = thread - mine.begin;
    head = in_tensor >> mine.lanes_log2;
    number = in_tensor & ((1u << mine.lanes_log2) - 1);
    place = find_unit_place<VectorBytes>(mine, number);
    is_active = has_token && head < mine.heads && number < mine.units_per_head &&
                (place.is_rotary || (mine.flags & kReadsOutside) != 0);
  }

  // The address of its head on one side of its tensor, and of the unit in it.
  __device__ __forceinline__ char *head_in(const RopeRowSide &side) const {
    return const_cast<char *>(step(step(side.data, at.token, side.token), head, side.head)) +
           static_cast<int64_t>(at.batch) * side.batch;
  }
  __device__ __forceinline__ char *address_in(const RopeRowSide &side) const { return head_in(side) + place.low; }
};

}  // namespace rope
