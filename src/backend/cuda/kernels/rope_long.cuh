// SPDX-License-Identifier: Apache-2.0
// rope_long.cuh - the RoPE kernels of long launches, for 16-bit types
//
// Example: 32 + 8 heads of 128 channels, vectors of 16 bytes (V = 8). A head has 8 units, a token 320, which take two
// blocks of 160 threads.
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
//   converted   on the HALF side a unit's vectors lie as drawn; on the INTERLEAVED side they are adjacent: for
//               unit n of a head they begin at channels 2 n V and (2 n + 1) V of the window
//
//   threadIdx.y   a row of threads, with token group * blockDim.y + threadIdx.y, numbered through all batches
//   grid x        groups of blockDim.y tokens and the parts of each: block b has part b % parts of group b / parts, or,
//                 if tokens of a head lie closer together than heads (BHSD), part b / groups of group b % groups
//   shared        for each row cos[kMaxShortPairs], then sin[kMaxShortPairs]: thread x computes or reads pair x
//
// The kernels read and write the rotated window of every token and head once, and no other channels. In addition, each
// row of threads reads the position of its token (4 or 8 bytes) and, for each pair, 8 bytes of increments or a cosine
// and a sine of the table.
//
// They accept the problems of rope_short.cuh, and beyond these several batches, tokens that lie closer together than
// heads and, with computed angles, conversion between the styles. The code has few branches: instructions before the
// first load and after the last one are noticeable even in launches of 40 us.
#pragma once

#include "backend/cuda/kernels/kernel.hpp"
#include "backend/cuda/kernels/occupancy.cuh"
#include "backend/cuda/kernels/programmatic_launch.cuh"
#include "backend/cuda/kernels/short_work.cuh"
#include "backend/cuda/kernels/table_rows.cuh"
#include "plan/tuning.hpp"

namespace rope {

// The token of a thread, numbered through all batches and within its own batch, and its unit.
struct LongPlace {
  uint32_t token;
  uint32_t in_batch;
  uint32_t unit;
};

// A simple grid has one batch, and the parts of a token are consecutive. The general case takes about 15 more
// instructions. They cost time only with programmatic launch, in launches about as large as the GPU can hold at once
// (tests/bench/TUNING.md). Batches are consecutive in memory, so is_batch_fastest is never set.
template <bool HasSimpleGrid, typename Params>
__device__ __forceinline__ LongPlace find_long_place(const Params &params) {
  if (HasSimpleGrid) {
    uint32_t group = blockIdx.x, part = 0;
    if (params.parts > 1) {
      group = __umulhi(blockIdx.x, params.parts_reciprocal);
      part = blockIdx.x - group * params.parts;
    }
    const uint32_t token = group * blockDim.y + threadIdx.y;
    return {token, token, part * blockDim.x + threadIdx.x};
  }
  const TokenPlace place = find_token_place(params);
  uint32_t in_batch = place.token;
  if (!params.has_one_batch) in_batch = params.inner.divmod(place.token).remainder;
  return {place.token, in_batch, place.part * blockDim.x + threadIdx.x};
}

// Computes angles. The threads of a row compute one pair each and share the results; then each rotates its unit.
template <typename T, int V, bool IsInterleaved, bool HasSimpleGrid>
__global__ void __launch_bounds__(kMaxRopeThreads, min_blocks_per_multiprocessor(kRopeResidentThreads, kMaxRopeThreads))
    rope_long_kernel(const __grid_constant__ RopeLongAngleParams params) {
  begin_dependent_launch();
  extern __shared__ float4 shared[];
  const LongPlace place = find_long_place<HasSimpleGrid>(params);
  const bool has_token = place.token < params.num_tokens, has_pair = has_token && threadIdx.x < params.pairs;
  ShortPosition position(params, place.in_batch);
  uint64_t increment = 0;
  if (has_pair) increment = through_memory(params.increments)[threadIdx.x];
  wait_for_previous_launch();
  position.load_if(has_pair, params);
  const ShortUnit<V * sizeof(T)> mine(params, place.token, place.unit);
  rotate_by_row<T, V, IsInterleaved>(params, mine, has_token && place.unit < params.units_per_token, position,
                                     increment, has_pair, reinterpret_cast<float *>(shared));
}

// Converts one style to the other. In place, units write channels that other units of their head read before the
// barrier.
template <typename T, int V>
__global__ void __launch_bounds__(kMaxRopeThreads, min_blocks_per_multiprocessor(kRopeResidentThreads, kMaxRopeThreads))
    rope_long_converted_kernel(const __grid_constant__ RopeLongConvertedParams params) {
  constexpr int32_t kVectorBytes = V * static_cast<int32_t>(sizeof(T));
  begin_dependent_launch();
  extern __shared__ float4 shared[];
  float *const cos = reinterpret_cast<float *>(shared) + threadIdx.y * (2 * kMaxShortPairs);
  const LongPlace place = find_long_place<false>(params);
  const bool has_token = place.token < params.num_tokens, has_pair = has_token && threadIdx.x < params.pairs;
  const bool is_active = has_token && place.unit < params.units_per_token;
  ShortPosition position(params, place.in_batch);
  uint64_t increment = 0;
  if (has_pair) increment = through_memory(params.increments)[threadIdx.x];
  wait_for_previous_launch();
  position.load_if(has_pair, params);
  const ShortUnit<kVectorBytes> mine(params, place.token, place.unit);
  const char *const in = step(mine.in, mine.number, params.is_to_half ? kVectorBytes : 0);
  // The vectors on the input's side: adjacent if they are interleaved, otherwise a window's half apart.
  Alternating<T, V> both;
  Vector<T, V> low, high;
  if (is_active) {
    low = load_vector<Vector<T, V>>(in);
    high = load_vector<Vector<T, V>>(in + (params.is_to_half ? kVectorBytes : params.bytes_to_high));
  }
  share_angle(params, position, increment, has_pair, cos);
  if (!is_active) return;
  // Interleaved input: x are the even channels of the two vectors, y the odd ones.
  if (params.is_to_half) {
    both.part[0] = low;
    both.part[1] = high;
    low = every_other<T, V>(both, false);
    high = every_other<T, V>(both, true);
  }
  float x[V], y[V];
  to_floats<T, V>(low, x);
  to_floats<T, V>(high, y);
  rotate_unit<V, false>(x, y, mine.number, params.pairs, cos, cos + kMaxShortPairs);
  low = from_floats<T, V>(x);
  high = from_floats<T, V>(y);
  // Interleaved output: merge x and y again.
  if (!params.is_to_half) {
    both = alternate<T, V>(low, high, false);
    low = both.part[0];
    high = both.part[1];
  }
  char *const out = const_cast<char *>(step(mine.out, mine.number, params.is_to_half ? 0 : kVectorBytes));
  store_vector(out, low);
  store_vector(out + (params.is_to_half ? params.bytes_to_high : kVectorBytes), high);
}

// Reads angles from a table. A thread loads its entry of the row before its channels, because the whole block needs the
// row. It also prefetches positions for later tokens, and the rows that follow, which later tokens will most likely
// use.
template <typename T, int V, bool IsInterleaved, typename Word>
__global__ void __launch_bounds__(kMaxRopeThreads, min_blocks_per_multiprocessor(kRopeResidentThreads, kMaxRopeThreads))
    rope_long_table_kernel(const __grid_constant__ RopeLongTableParams params) {
  begin_dependent_launch();
  extern __shared__ float4 shared[];
  float *const cos = reinterpret_cast<float *>(shared) + threadIdx.y * (2 * kMaxShortPairs);
  const LongPlace place = find_long_place<false>(params);
  const bool has_token = place.token < params.num_tokens, has_pair = has_token && threadIdx.x < params.pairs;
  const bool is_active = has_token && place.unit < params.units_per_token;
  ShortPosition position(params, place.in_batch);
  wait_for_previous_launch();
  position.load_if(has_pair, params);
  // One thread per token prefetches the position of a later token.
  if (place.unit == 0 && place.in_batch < params.tokens_that_prefetch) {
    prefetch(position.address() + params.position_bytes_ahead);
  }
  const uint64_t row = position.finish(params);
  const bool has_row = has_pair && row < params.rows;
  Word of_cos = {}, of_sin = {};
  if (has_row) {
    constexpr int32_t kBytes = sizeof(Word);
    const uint32_t number = static_cast<uint32_t>(row);
    const char *const cos_entry = step(step(params.cos, threadIdx.x, kBytes), number, params.row_bytes);
    const char *const sin_entry = step(step(params.sin, threadIdx.x, kBytes), number, params.row_bytes);
    of_cos = *reinterpret_cast<const Word *>(cos_entry);
    of_sin = *reinterpret_cast<const Word *>(sin_entry);
    // One of the threads that read an entry of this token's row prefetches the entry of a later row.
    if (place.unit == threadIdx.x && row < params.rows_that_prefetch) {
      prefetch(cos_entry + params.row_bytes_ahead);
      prefetch(sin_entry + params.row_bytes_ahead);
    }
  }
  const ShortUnit<V * sizeof(T)> mine(params, place.token, place.unit);
  Vector<T, V> low, high;
  if (is_active) {
    low = load_vector<Vector<T, V>>(mine.in);
    high = load_vector<Vector<T, V>>(mine.in + params.bytes_to_high);
  }
  // Share the row's entries.
  if (has_pair) {
    CosSin<float> angle = {entry_of(of_cos, params.table_dtype), entry_of(of_sin, params.table_dtype)};
    if (params.rounds_each) angle = rounded_to<T>(angle);
    cos[threadIdx.x] = angle.cos;
    cos[threadIdx.x + kMaxShortPairs] = params.sin_scale < 0.0f ? -angle.sin : angle.sin;
  }
  bool is_lost = false;
  if (__syncthreads_or(has_pair && !has_row)) {
    // This branch is rare, so it may be slow. It runs for every token of the block, although only one may need it.
    position.load_if(is_active, params);
    is_lost = position.finish(params) >= params.rows;
  }
  // A token without a row is copied. In place nothing has to be copied.
  if (!is_active || (is_lost && params.is_in_place)) return;
  if (!is_lost && params.rounds_each) return rotate_short_unit<T, V, IsInterleaved, T>(params, mine, low, high, cos);
  if (!is_lost) return rotate_short_unit<T, V, IsInterleaved>(params, mine, low, high, cos);
  store_vector(mine.out, low);
  store_vector(mine.out + params.bytes_to_high, high);
}

// The kernel of a variant.
template <typename T, bool IsInterleaved>
Kernel find_long_kernel(const RopeVariant &variant) {
  constexpr int V = kLongVectorBytes / static_cast<int>(sizeof(T));
  if (variant.kernel == RopeKernel::kLongConverted) {
    return kernel_of(rope_long_converted_kernel<T, V>);
  }
  switch (variant.angles) {
    case kComputedAngles:
      return variant.has_simple_grid ? kernel_of(rope_long_kernel<T, V, IsInterleaved, true>)
                                     : kernel_of(rope_long_kernel<T, V, IsInterleaved, false>);
    case kTable32:
      return kernel_of(rope_long_table_kernel<T, V, IsInterleaved, uint32_t>);
    default:
      return kernel_of(rope_long_table_kernel<T, V, IsInterleaved, uint16_t>);
  }
}

// The kernel, or NULL for other vectors.
template <typename T>
Kernel find_rope_long_kernel(int vector_elements, const RopeVariant &variant) {
  if (vector_elements * sizeof(T) != kLongVectorBytes) return {};
  return variant.pairing == Pairing::kInterleaved ? find_long_kernel<T, true>(variant)
                                                  : find_long_kernel<T, false>(variant);
}

}  // namespace rope
