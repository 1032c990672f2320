// SPDX-License-Identifier: Apache-2.0
// rope_short.cuh - the RoPE kernels of short launches, as in decoding
//
// Example: 32 + 8 heads of 128 channels, 16-bit data, vectors of 8 bytes. A head has 16 units, a token 640, which take
// five parts of 128 threads.
//
//   blockIdx.y                             0                                  │      1      │ …  4
//   threadIdx.x    0        1      …      15     │   16     …    │ …  127     │   0   … 127 │
//   unit           0        1      …      15     │   16     …    │    127     │  128  … 255 │    … 639
//   head           0                             │    1          │      7     │   8   …  15 │    …  39
//   low         0 …  3   4 …  7    …   60 …  63  │  0 …  3  …    │  60 …  63  │             │
//   high       64 … 67  68 … 71    …  124 … 127  │ 64 … 67  …    │ 124 … 127  │             │
//
//   grid x   groups of blockDim.y tokens: token blockIdx.x * blockDim.y + threadIdx.y
//   grid y   parts of a token: unit blockIdx.y * blockDim.x + threadIdx.x
//
//   rope_short_warp_kernel    a warp computes all angles of its token: lane l those of pairs l and l + 32
//   rope_short_kernel         a row of threads computes them: thread x the angle of pair x
//   rope_short_table_kernel   a thread reads the angles of its own pairs, as in rope_thread.cuh; nothing is shared
//   rope_flat_table_kernel    likewise; unit blockIdx.x * blockDim.x + threadIdx.x of all tokens, then a grid further
//   shared                    for each warp or row cos[kMaxShortPairs], then sin[kMaxShortPairs]
//
// The kernels read and write the rotated window of every token and head once, and no other channels. In addition, each
// thread that needs it reads the position of its token (4 or 8 bytes), each warp or row the increments (8 bytes per
// pair), and each head a row of the table.
//
// The time of such a launch is the sum of latencies (the launch, the position, a row of a table, the store) and of
// fetching instructions, because each runs only once. Therefore these kernels accept only tensors of one batch whose
// outputs have the strides of their inputs. They compute with 32-bit numbers, have few parameters and vectors of 8
// bytes, and avoid branches: a jump costs as much as fifty instructions. With programmatic launch all addresses are
// computed before the wait for the previous launch; in mid-size launches, all but those of the table.
#pragma once

#include "backend/cuda/kernels/kernel.hpp"
#include "backend/cuda/kernels/occupancy.cuh"
#include "backend/cuda/kernels/programmatic_launch.cuh"
#include "backend/cuda/kernels/short_work.cuh"
#include "backend/cuda/kernels/table_rows.cuh"
#include "plan/tuning.hpp"

namespace rope {

// For few tokens, where a barrier costs more than having every warp compute all angles. All units of a warp belong to
// one token.
template <typename T, int V, bool IsInterleaved>
__global__ void __launch_bounds__(kMaxShortThreads)
    rope_short_warp_kernel(const __grid_constant__ RopeShortAngleParams params) {
  constexpr uint32_t kLanes = 32, kOfLane = kMaxShortPairs / kLanes;
  begin_dependent_launch();
  const auto [token, unit] = find_token_unit();
  if (token >= params.num_tokens) return;
  ShortPosition position(params, token);
  extern __shared__ float4 shared[];
  const uint32_t thread = threadIdx.y * blockDim.x + threadIdx.x, lane = thread % kLanes;
  float *const cos = reinterpret_cast<float *>(shared) + thread / kLanes * (2 * kMaxShortPairs);
  // Entries behind the last pair's are never read.
  const uint64_t *const increments = through_memory(params.increments) + lane;
  uint64_t increment[kOfLane];
#pragma unroll
  for (uint32_t i = 0; i < kOfLane; ++i) increment[i] = increments[i * kLanes];
  // Threads without a unit also compute angles.
  const bool is_active = unit < params.units_per_token;
  const ShortUnit<V * sizeof(T)> mine(params, token, unit);
  wait_for_previous_launch_with(unused_bits(mine.in) | unused_bits(mine.out) | unused_bits(position.address()));
  position.load_if(true, params);
  Vector<T, V> low, high;
  if (is_active) {
    low = load_vector<Vector<T, V>>(mine.in);
    high = load_vector<Vector<T, V>>(mine.in + params.bytes_to_high);
  }
  const uint64_t at = position.finish(params);
  CosSin<float> angle[kOfLane];
#pragma unroll
  for (uint32_t i = 0; i < kOfLane; ++i) angle[i] = compute_angle(params, at, increment[i]);
#pragma unroll
  for (uint32_t i = 0; i < kOfLane; ++i) {
    cos[lane + i * kLanes] = angle[i].cos;
    cos[lane + i * kLanes + kMaxShortPairs] = angle[i].sin;
  }
  __syncwarp();
  if (!is_active) return;
  rotate_short_unit<T, V, IsInterleaved>(params, mine, low, high, cos);
}

// For more tokens, where instructions limit the speed and not latencies. A row of threads has at least as many threads
// as a head has pairs.
template <typename T, int V, bool IsInterleaved>
__global__ void __launch_bounds__(kMaxShortThreads)
    rope_short_kernel(const __grid_constant__ RopeShortAngleParams params) {
  begin_dependent_launch();
  extern __shared__ float4 shared[];
  const auto [token, unit] = find_token_unit();
  const bool has_token = token < params.num_tokens, has_pair = has_token && threadIdx.x < params.pairs;
  ShortPosition position(params, token);
  const ShortUnit<V * sizeof(T)> mine(params, token, unit);
  uint64_t increment = 0;
  if (has_pair) increment = through_memory(params.increments)[threadIdx.x];
  wait_for_previous_launch_with(unused_bits(mine.in) | unused_bits(mine.out) | unused_bits(position.address()));
  position.load_if(has_pair, params);
  rotate_by_row<T, V, IsInterleaved>(params, mine, has_token && unit < params.units_per_token, position, increment,
                                     has_pair, reinterpret_cast<float *>(shared));
}

// Loads the angles of a unit's pairs from a row of the table, as vectors, and rotates the unit.
template <typename T, int V, bool IsInterleaved, typename Word>
__device__ __forceinline__ void rotate_by_table_row(const RopeShortTableParams &params, const char *cos_column,
                                                    const char *sin_column, uint32_t row, Vector<T, V> *low,
                                                    Vector<T, V> *high) {
  using R = Runs<V, IsInterleaved>;
  const char *cos_run = step(cos_column, row, params.row_bytes), *sin_run = step(sin_column, row, params.row_bytes);
  TableRun<Word, R::kLength> cos[R::kCount], sin[R::kCount];
#pragma unroll
  for (int run = 0; run < R::kCount; ++run) {
    const uint32_t further = static_cast<uint32_t>(run) * (params.pairs / 2 * static_cast<uint32_t>(sizeof(Word)));
    cos[run] = load_run<Word, R::kLength>(cos_run + further);
    sin[run] = load_run<Word, R::kLength>(sin_run + further);
  }
  rotate_unit_by<T, V, IsInterleaved>(low, high, [&](int run, int i) -> CosSin<float> {
    const float s = entry_of(sin[run], i, params.table_dtype);
    return {entry_of(cos[run], i, params.table_dtype), params.sin_scale < 0.0f ? -s : s};
  });
}

// Which addresses are computed before the wait for the previous launch.
enum class TableWait {
  kNone,       // there is no wait: for launches that are not programmatic
  kAddresses,  // those of the unit and of its position
  kColumns     // also those of the table's columns
};

template <typename T, int V, bool IsInterleaved, typename Word, TableWait kWait>
__global__ void __launch_bounds__(kMaxShortThreads)
    rope_short_table_kernel(const __grid_constant__ RopeShortTableParams params) {
  begin_dependent_launch();
  const auto [token, unit] = find_token_unit();
  if (token >= params.num_tokens || unit >= params.units_per_token) return;
  ShortPosition position(params, token);
  // The row's address depends on the position, so it is loaded first if there is no wait for the previous launch.
  if (kWait == TableWait::kNone) position.load_if(true, params);
  const ShortUnit<V * sizeof(T)> mine(params, token, unit);
  constexpr int32_t kRunBytes = Runs<V, IsInterleaved>::kLength * static_cast<int32_t>(sizeof(Word));
  const char *cos_column = step(params.cos, mine.number, kRunBytes),
             *sin_column = step(params.sin, mine.number, kRunBytes);
  if (kWait != TableWait::kNone) {
    const uint32_t columns = unused_bits(cos_column) | unused_bits(sin_column);
    wait_for_previous_launch_with(unused_bits(mine.in) | unused_bits(mine.out) | unused_bits(position.address()) |
                                  (kWait == TableWait::kColumns ? columns : 0));
    position.load_if(true, params);
  }
  Vector<T, V> low = load_vector<Vector<T, V>>(mine.in);
  Vector<T, V> high = load_vector<Vector<T, V>>(mine.in + params.bytes_to_high);
  const uint64_t row = position.finish(params);
  // The code for stores is duplicated, so that threads with a row need not jump.
  if (row >= params.rows) {
    if (params.is_in_place) return;
    store_vector(mine.out, low);
    store_vector(mine.out + params.bytes_to_high, high);
    return;
  }
  rotate_by_table_row<T, V, IsInterleaved, Word>(params, cos_column, sin_column, static_cast<uint32_t>(row), &low,
                                                 &high);
  store_vector(mine.out, low);
  store_vector(mine.out + params.bytes_to_high, high);
}

// For launches that are not programmatic, on tensors that fit or almost fit the L2 cache. Units are numbered through
// all tokens, and a thread continues with the unit that is a grid's size further on. Vectors of 16 bytes need fewer
// instructions per byte.
template <typename T, int V, bool IsInterleaved, typename Word>
__global__ void __launch_bounds__(kFlatThreads, min_blocks_per_multiprocessor(kFlatResidentThreads, kFlatThreads))
    rope_flat_table_kernel(const __grid_constant__ RopeFlatTableParams params) {
  begin_dependent_launch();
  uint32_t index = blockIdx.x * kFlatThreads + threadIdx.x;
  if (index >= params.num_units) return;
  constexpr int32_t kRunBytes = Runs<V, IsInterleaved>::kLength * static_cast<int32_t>(sizeof(Word));
#pragma unroll 1
  for (;;) {
    const DivmodResult at = params.units.divmod(index);
    ShortPosition position(params, at.quotient);
    position.load_if(true, params);
    const ShortUnit<V * sizeof(T)> mine(params, at.quotient, at.remainder);
    Vector<T, V> low = load_vector<Vector<T, V>>(mine.in);
    Vector<T, V> high = load_vector<Vector<T, V>>(mine.in + params.bytes_to_high);
    const uint64_t row = position.finish(params);
    const char *cos_column = step(params.cos, mine.number, kRunBytes),
               *sin_column = step(params.sin, mine.number, kRunBytes);
    const bool is_lost = row >= params.rows;
    if (!is_lost) {
      rotate_by_table_row<T, V, IsInterleaved, Word>(params, cos_column, sin_column, static_cast<uint32_t>(row), &low,
                                                     &high);
    }
    if (!is_lost || !params.is_in_place) {
      store_vector(mine.out, low);
      store_vector(mine.out + params.bytes_to_high, high);
    }
    index += gridDim.x * kFlatThreads;
    if (index >= params.num_units) return;
  }
}

template <typename T, bool IsInterleaved, typename Word>
Kernel find_short_table_kernel(RopeKernel kernel) {
  constexpr int V = kShortVectorBytes / static_cast<int>(sizeof(T));
  switch (kernel) {
    case RopeKernel::kShortTable:
      return kernel_of(rope_short_table_kernel<T, V, IsInterleaved, Word, TableWait::kNone>);
    case RopeKernel::kMidProgrammaticTable:
      if constexpr (sizeof(T) == 2) {
        return kernel_of(rope_short_table_kernel<T, V, IsInterleaved, Word, TableWait::kAddresses>);
      }
      return {};
    default:
      return kernel_of(rope_short_table_kernel<T, V, IsInterleaved, Word, TableWait::kColumns>);
  }
}

template <typename T, bool IsInterleaved>
Kernel find_short_kernel(const RopeVariant &variant) {
  constexpr int V = kShortVectorBytes / static_cast<int>(sizeof(T));
  switch (variant.kernel) {
    case RopeKernel::kShortWarp:
      return kernel_of(rope_short_warp_kernel<T, V, IsInterleaved>);
    case RopeKernel::kShort:
      return kernel_of(rope_short_kernel<T, V, IsInterleaved>);
    default:
      return variant.angles == kTable32 ? find_short_table_kernel<T, IsInterleaved, float>(variant.kernel)
                                        : find_short_table_kernel<T, IsInterleaved, uint16_t>(variant.kernel);
  }
}

template <typename T, bool IsInterleaved>
Kernel find_flat_kernel(AngleKinds angles) {
  constexpr int V = kFlatVectorBytes / static_cast<int>(sizeof(T));
  return angles == kTable32 ? kernel_of(rope_flat_table_kernel<T, V, IsInterleaved, float>)
                            : kernel_of(rope_flat_table_kernel<T, V, IsInterleaved, uint16_t>);
}

// The kernel, or NULL for vectors of another width and for kFlatTable of 32-bit data.
template <typename T>
Kernel find_rope_short_kernel(int vector_elements, const RopeVariant &variant) {
  const bool is_interleaved = variant.pairing == Pairing::kInterleaved;
  if (variant.kernel == RopeKernel::kFlatTable) {
    if constexpr (sizeof(T) == 2) {
      if (vector_elements * sizeof(T) != kFlatVectorBytes) return {};
      return is_interleaved ? find_flat_kernel<T, true>(variant.angles) : find_flat_kernel<T, false>(variant.angles);
    }
    return {};
  }
  if (vector_elements * sizeof(T) != kShortVectorBytes) return {};
  return is_interleaved ? find_short_kernel<T, true>(variant) : find_short_kernel<T, false>(variant);
}

}  // namespace rope
