// SPDX-License-Identifier: Apache-2.0
// rope_token.cuh - the RoPE kernel in which each row of a block's threads has a token
//
// Example, in place: 32 + 8 heads of 128 channels, 16-bit data, vectors of V = 8 elements. A head has 8 units, a token
// 320, which take two blocks of one row of 160 threads.
//
//   blockIdx.x                           0                               │              1              │     2
//   token                                0                               │              0              │     1
//   part                                 0                               │              1              │     0
//   threadIdx.x    0        1      …      7     │    8     …  │ … 159     │    0     …     │ … 159      │     0     …
//   unit           0        1      …      7     │    8     …  │   159     │   160    …     │   319      │     0     …
//   head           0                            │    1     …  │    19     │    20    …     │    39      │     0     …
//   low         0 …  7   8 … 15    …   56 …  63 │  0 …  7  …  │  56 …  63 │  0 …  7  …     │  56 …  63  │  0 …  7   …
//   high       64 … 71  72 … 79    …  120 … 127 │ 64 … 71  …  │ 120 … 127 │ 64 … 71  …     │ 120 … 127  │ 64 … 71   …
//
//   threadIdx.y   a row of threads, with token group * blockDim.y + threadIdx.y, numbered through all batches
//   grid x        groups of blockDim.y tokens and the parts of each: block b has part b % parts of group b / parts, or,
//                 if tokens of a head lie closer together than heads (BHSD), part b / groups of group b % groups
//   shared        for each row cos[pair], then sin[pair]: thread x computes or reads pairs x, x + blockDim.x, …
//
// A rotary unit is two vectors of 8 or 16 bytes, which lie half a window apart or, with HALF in blocks of channels,
// half a block apart. Out of place, two vectors of channels outside the window are a unit too (the last may have one
// vector); these units follow the rotary ones of their head.
//
// The kernel reads and writes the rotated window of every token and head once; out of place, also the channels around
// it. In addition, each row of threads reads the positions of its token (4 or 8 bytes per axis) and, for each pair, 8
// bytes of increments or a cosine and a sine of a table; with sequences also entries of cu_seqlens, 32 at a time.
//
// It accepts tensors with strides of 32 bits and the same number of units in each head. The numbers of blocks, tokens
// and units have 32 bits, so that each division is a multiplication by a reciprocal (row_work.cuh).
#pragma once

#include "backend/cuda/kernels/kernel.hpp"
#include "backend/cuda/kernels/occupancy.cuh"
#include "backend/cuda/kernels/programmatic_launch.cuh"
#include "backend/cuda/kernels/row_work.cuh"
#include "backend/cuda/kernels/token_angles.cuh"
#include "backend/cuda/kernels/unit_rotation.cuh"
#include "plan/tuning.hpp"

namespace rope {

// Bytes from a head's beginning to a vector outside the window. Vectors below the window are numbered first, then those
// above it.
__device__ __forceinline__ int32_t copied_bytes(const RopeTokenParams &params, uint32_t vector, int32_t vector_bytes) {
  const int32_t bytes = static_cast<int32_t>(vector) * vector_bytes;
  return bytes >= params.window_begin ? bytes + params.window_size : bytes;
}

// Each row of threads shares the angles of its token; each thread rotates or copies one unit.
template <typename T, int V, bool IsInterleaved, typename Angles, Lookups kLookup>
__global__ void __launch_bounds__(kMaxRopeThreads, min_blocks_per_multiprocessor(kRopeResidentThreads, kMaxRopeThreads))
    rope_token_kernel(const __grid_constant__ AnglesParams<Angles, kLookup> params) {
  constexpr bool kMayHaveBatches = kLookup != kSequencesLookup;
  constexpr int32_t kVectorBytes = V * static_cast<int32_t>(sizeof(T));
  begin_dependent_launch();
  extern __shared__ float4 shared[];
  const TokenPlace place = find_token_place(params);
  const BatchToken at = kMayHaveBatches ? find_batch_token(params, place.token) : BatchToken{0, place.token};
  const bool is_present = place.token < params.num_tokens;
  const uint32_t unit = place.part * blockDim.x + threadIdx.x;
  TokenAngles<Angles, kLookup> angles(params, at, is_present, unit == 0, reinterpret_cast<float *>(shared));

  // The place of the unit: the general case has blocks of pairs or copy units.
  const auto [head, number, which] = find_head_unit(params, unit);
  const RopeRowTensor &tensor = params.tensor[which];
  const bool is_active = is_present && unit < params.units_per_token;
  int32_t channel = params.window_begin + static_cast<int32_t>(number) * kVectorBytes, to_high = params.bytes_to_high;
  bool is_rotary = true;
  if (params.has_blocks_or_copies) {
    is_rotary = number < params.rotary_units_per_head;
    if (!IsInterleaved) channel += static_cast<int32_t>(__umulhi(number, params.run_reciprocal)) * to_high;
    if (!is_rotary) {
      const uint32_t first = number - params.rotary_units_per_head, second = first + params.copy_units_per_head;
      channel = copied_bytes(params, first, kVectorBytes);
      // The last unit may have only one vector; it then moves this vector twice.
      to_high = second < params.copied_vectors ? copied_bytes(params, second, kVectorBytes) - channel : 0;
    }
  }
  wait_for_previous_launch();

  angles.begin();
  // Warps without a pair wait here for those that look up rows, so that all warps load channels at the same time
  // (tests/bench/TUNING.md).
  if constexpr (Angles::kHasRows && kLookup == kAxesLookup) __syncthreads();
  Vector<T, V> low, high;
  char *low_out;
  if (is_active) {
    const char *low_in = address_of_head<kMayHaveBatches>(params, tensor.in, at, head) + channel;
    low = load_vector<Vector<T, V>>(low_in);
    high = load_vector<Vector<T, V>>(low_in + to_high);
    low_out = const_cast<char *>(low_in);
    if (!params.is_in_place) low_out = address_of_head<kMayHaveBatches>(params, tensor.out, at, head) + channel;
  }
  const TokenState state = angles.make(place.part == 0);

  if (!is_active || state == kAbsent || (state == kUnrotated && params.is_in_place)) return;
  if (is_rotary && state == kRotated) {
    float x[V], y[V];
    to_floats<T, V>(low, x);
    to_floats<T, V>(high, y);
    rotate_unit<V, IsInterleaved>(x, y, number, params.pairs, angles.cos(), angles.sin());
    low = from_floats<T, V>(x);
    high = from_floats<T, V>(y);
  }
  store_vector(low_out, low);
  store_vector(low_out + to_high, high);
}

// Computed angles have no separate kernel for the position on one axis (tests/bench/TUNING.md).
template <typename T, int V, bool IsInterleaved>
Kernel find_token_kernel(const RopeVariant &variant) {
  const bool has_sequences = variant.lookup == kSequencesLookup;
  if (variant.angles == kComputedAngles) {
    return has_sequences ? kernel_of(rope_token_kernel<T, V, IsInterleaved, ComputedAngles, kSequencesLookup>)
                         : kernel_of(rope_token_kernel<T, V, IsInterleaved, ComputedAngles, kAxesLookup>);
  }
  if (has_sequences) {
    return kernel_of(rope_token_kernel<T, V, IsInterleaved, TableAngles, kSequencesLookup>);
  }
  return variant.lookup == kAxesLookup ? kernel_of(rope_token_kernel<T, V, IsInterleaved, TableAngles, kAxesLookup>)
                                       : kernel_of(rope_token_kernel<T, V, IsInterleaved, TableAngles, kNoLookup>);
}

// The kernel for a vector width, or NULL if T has no such width.
template <typename T>
Kernel find_rope_token_kernel(int vector_elements, const RopeVariant &variant) {
  constexpr int kSize = static_cast<int>(sizeof(T)), kWide = 16 / kSize, kNarrow = 8 / kSize;
  const bool is_interleaved = variant.pairing == Pairing::kInterleaved;
  if (vector_elements == kWide) {
    return is_interleaved ? find_token_kernel<T, kWide, true>(variant) : find_token_kernel<T, kWide, false>(variant);
  }
  if (vector_elements == kNarrow) {
    return is_interleaved ? find_token_kernel<T, kNarrow, true>(variant)
                          : find_token_kernel<T, kNarrow, false>(variant);
  }
  return {};
}

}  // namespace rope
