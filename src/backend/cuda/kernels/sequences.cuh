// SPDX-License-Identifier: Apache-2.0
// sequences.cuh - finds the sequence of a token, and checks cu_seqlens
#pragma once

#include "backend/cuda/kernels/faults.cuh"
#include "core/problem/token_lookup.hpp"

namespace rope {

// Whether a token belongs to a sequence. Tokens before the first sequence are faulty, those behind the last are
// padding.
__device__ __forceinline__ bool is_in_sequences(const Sequences &sequences, int64_t token) {
  return token >= sequence_entry(sequences, 0) && token < sequence_entry(sequences, sequences.count);
}

// find_sequence by a whole warp, whose lanes examine different sequences. If cu_seqlens is increasing, both find the
// same sequence. There are fewer than 2^31 sequences.
__device__ __forceinline__ SequencePlace find_sequence_by_warp(const Sequences &sequences, int64_t token) {
  constexpr int kLanes = 32;
  constexpr uint32_t kAllLanes = 0xffffffffu;
  const int lane = static_cast<int>(threadIdx.x % kLanes);
  int first = 0, count = static_cast<int>(sequences.count);
  int64_t entry;
  // Each round examines up to 32 entries that are `step` sequences apart, and continues behind the last one that is not
  // above the token.
  do {
    const int step = (count - 1) / kLanes + 1;
    const int64_t mine = static_cast<int64_t>(lane) * step;
    entry = mine < count ? sequence_entry(sequences, first + mine) : INT64_MAX;
    const uint32_t below = __ballot_sync(kAllLanes, entry <= token);
    const int found = below != 0 ? 31 - __clz(static_cast<int>(below)) : 0;
    entry = __shfl_sync(kAllLanes, entry, found);
    first += found * step;
    count = count - found * step < step ? count - found * step : step;
  } while (count > 1);
  return {first, static_cast<uint64_t>(token) - static_cast<uint64_t>(entry)};
}

// Counts the entries of cu_seqlens that break a rule; the work is divided among all threads of the grid.
template <typename Params>
__device__ __forceinline__ void check_sequences(const Params &params) {
  if (params.fault.data == nullptr || !params.sequences.is_present) return;
  const uint32_t block_threads = blockDim.x * blockDim.y;
  const int64_t grid_threads = static_cast<int64_t>(gridDim.x) * gridDim.y * gridDim.z * block_threads;
  const int64_t block = (static_cast<int64_t>(blockIdx.z) * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
  const int64_t first = block * block_threads + threadIdx.y * blockDim.x + threadIdx.x;
  for (int64_t i = first; i <= params.sequences.count; i += grid_threads) {
    const int64_t entry = sequence_entry(params.sequences, i);
    const int64_t before = i == 0 ? 0 : sequence_entry(params.sequences, i - 1);
    if (is_faulty_entry(i, entry, before, params.num_tokens)) {
      count_fault(params.fault, token_of_entry(entry, params.num_tokens));
    }
  }
}

}  // namespace rope
