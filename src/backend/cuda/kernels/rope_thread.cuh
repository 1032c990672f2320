// SPDX-License-Identifier: Apache-2.0
// rope_thread.cuh - the RoPE kernels without a barrier, in which each thread obtains the angles of its own pairs
//
// Example: one head of 128 channels, 16-bit data, vectors of 16 bytes. A token has 8 units, and a block of 128 threads
// 16 tokens.
//
//   threadIdx.x             0         1       …       7
//   low                  0 …  7    8 … 15     …    56 …  63
//   high                64 … 71   72 … 79     …   120 … 127
//   pairs, HALF          0 …  7    8 … 15     …    56 …  63
//     INTERLEAVED        0 …  3    4 …  7     …    28 …  31    those of low
//                       32 … 35   36 … 39     …    60 …  63    those of high
//
//   grid x   groups of blockDim.y tokens: token blockIdx.x * blockDim.y + threadIdx.y, numbered through all batches
//   grid y   parts of a token: unit blockIdx.y * blockDim.x + threadIdx.x
//
// The kernels read and write the rotated window of every token and head once, and no other channels. In addition, each
// thread reads the position of its token (4 or 8 bytes) and, for each of its pairs, 8 bytes of increments or a cosine
// and a sine of the table. Table columns are adjacent and are read as vectors of up to 16 bytes. The heads of a token
// read one row, which the caches then hold.
//
// They are used for tokens of one head, which share no angles; with computed angles for tokens of two heads; and with a
// table for tokens of so few units that most of a row of threads would be idle.
#pragma once

#include "backend/cuda/kernels/addresses.cuh"
#include "backend/cuda/kernels/angles.cuh"
#include "backend/cuda/kernels/kernel.hpp"
#include "backend/cuda/kernels/programmatic_launch.cuh"
#include "backend/cuda/kernels/row_work.cuh"
#include "backend/cuda/kernels/table_rows.cuh"
#include "backend/cuda/kernels/unit_rotation.cuh"
#include "plan/tuning.hpp"

namespace rope {

// The first pair of a unit's run: interleaved vectors hold pairs of two runs, half a window apart.
template <int V, bool IsInterleaved>
__device__ __forceinline__ uint32_t first_pair(const RopeTokenParams &params, uint32_t unit, int run) {
  using R = Runs<V, IsInterleaved>;
  return unit * R::kLength + static_cast<uint32_t>(run) * (params.pairs / 2);
}

// A thread's unit: its address, and the address of its token's position.
template <typename T, int V>
struct ThreadUnit {
  BatchToken at;
  uint32_t number;  // within its head
  bool is_active;
  const char *in;
  char *out;
  const char *position;

  __device__ __forceinline__ explicit ThreadUnit(const RopeTokenParams &params) {
    const auto [token, unit] = find_token_unit();
    const HeadUnit place = find_head_unit(params, unit);
    number = place.number;
    is_active = token < params.num_tokens && unit < params.units_per_token;
    const RopeRowTensor &tensor = params.tensor[place.tensor];
    const int32_t channel = params.window_begin + static_cast<int32_t>(number) * (V * static_cast<int32_t>(sizeof(T)));
    at = find_batch_token(params, token);
    int64_t entry = at.token * params.positions.token_stride;
    if (!params.has_one_batch) entry += at.batch * params.positions.batch_stride;
    position = params.positions.data + (entry << (params.positions.is_64_bit ? 3 : 2));
    in = address_of_head<true>(params, tensor.in, at, place.head) + channel;
    out = const_cast<char *>(in);
    if (!params.is_in_place) out = address_of_head<true>(params, tensor.out, at, place.head) + channel;
  }

  __device__ __forceinline__ LoadedInteger load_own_position(const RopePositionParams &params) const {
    LoadedInteger result = {static_cast<uint32_t>(at.token), 0};
    const uint32_t *words = reinterpret_cast<const uint32_t *>(position);
    if (params.positions.is_present) result.low = words[0];
    if (params.positions.is_present && params.positions.is_64_bit) result.high = words[1];
    return result;
  }
};

// Computes the angles of the thread's own pairs. The increments are loaded before the wait for the previous launch.
template <typename T, int V, bool IsInterleaved>
__global__ void __launch_bounds__(kThreadKernelThreads)
    rope_thread_kernel(const __grid_constant__ RopeTokenAngleParams params) {
  using R = Runs<V, IsInterleaved>;
  begin_dependent_launch();
  const ThreadUnit<T, V> mine(params);
  if (!mine.is_active) return;
  uint64_t increment[R::kCount][R::kLength];
  const uint64_t *increments = through_memory(params.increments);
#pragma unroll
  for (int run = 0; run < R::kCount; ++run) {
    const uint32_t first = first_pair<V, IsInterleaved>(params, mine.number, run);
#pragma unroll
    for (int i = 0; i < R::kLength; ++i) increment[run][i] = increments[first + i];
  }
  wait_for_previous_launch();
  const LoadedInteger position = mine.load_own_position(params);
  Vector<T, V> low = load_vector<Vector<T, V>>(mine.in);
  Vector<T, V> high = load_vector<Vector<T, V>>(mine.in + params.bytes_to_high);
  const uint64_t at = finish_position(params, position);
  rotate_unit_by<T, V, IsInterleaved>(&low, &high,
                                      [&](int run, int i) { return compute_angle(params, at, increment[run][i]); });
  store_vector(mine.out, low);
  store_vector(mine.out + params.bytes_to_high, high);
}

// Reads the angles of the thread's own pairs from a table.
template <typename T, int V, bool IsInterleaved, typename Word>
__global__ void __launch_bounds__(kThreadKernelThreads)
    rope_thread_table_kernel(const __grid_constant__ RopeTokenTableParams params) {
  using R = Runs<V, IsInterleaved>;
  constexpr int64_t kSize = sizeof(Word);
  begin_dependent_launch();
  const ThreadUnit<T, V> mine(params);
  if (!mine.is_active) return;
  const AngleTable &table = params.table;
  const uint32_t first = first_pair<V, IsInterleaved>(params, mine.number, 0);
  const char *cos_row = table.cos.data + first * kSize, *sin_row = table.sin.data + first * kSize;
  if (!params.has_one_batch) {
    cos_row += mine.at.batch * table.cos.batch_stride * kSize;
    sin_row += mine.at.batch * table.sin.batch_stride * kSize;
  }
  // This condition is never true. It makes the compiler compute all addresses before the wait; without it, the compiler
  // loads a row in two rounds: 139.7 us against 133.5 for one head.
  if ((unused_bits(mine.in) | unused_bits(mine.position) | unused_bits(cos_row) | unused_bits(sin_row)) != 0) __trap();
  wait_for_previous_launch();
  const LoadedInteger position = mine.load_own_position(params);
  Vector<T, V> low = load_vector<Vector<T, V>>(mine.in);
  Vector<T, V> high = load_vector<Vector<T, V>>(mine.in + params.bytes_to_high);
  const uint64_t row = finish_position(params, position);
  if (row < static_cast<uint64_t>(table.rows)) {
    cos_row += static_cast<int64_t>(static_cast<int32_t>(row)) * params.cos_row_bytes;
    sin_row += static_cast<int64_t>(static_cast<int32_t>(row)) * params.sin_row_bytes;
    TableRun<Word, R::kLength> cos[R::kCount], sin[R::kCount];
#pragma unroll
    for (int run = 0; run < R::kCount; ++run) {
      const uint32_t further = static_cast<uint32_t>(run) * (params.pairs / 2 * static_cast<uint32_t>(kSize));
      cos[run] = load_run<Word, R::kLength>(cos_row + further);
      sin[run] = load_run<Word, R::kLength>(sin_row + further);
    }
    rotate_unit_by<T, V, IsInterleaved>(&low, &high, [&](int run, int i) -> CosSin<float> {
      const float s = entry_of(sin[run], i, table.dtype);
      return {entry_of(cos[run], i, table.dtype), params.sin_scale < 0.0f ? -s : s};
    });
    // A token without a row is copied. In place nothing has to be copied.
  } else if (params.is_in_place) {
    return;
  }
  store_vector(mine.out, low);
  store_vector(mine.out + params.bytes_to_high, high);
}

// The kernel for a kind of angles.
template <typename T, int V, bool IsInterleaved>
Kernel find_thread_kernel(AngleKinds angles) {
  switch (angles) {
    case kComputedAngles:
      return kernel_of(rope_thread_kernel<T, V, IsInterleaved>);
    case kTable32:
      return kernel_of(rope_thread_table_kernel<T, V, IsInterleaved, float>);
    default:
      return kernel_of(rope_thread_table_kernel<T, V, IsInterleaved, uint16_t>);
  }
}

// The kernel, or NULL for vectors of another width.
template <typename T>
Kernel find_rope_thread_kernel(int vector_elements, const RopeVariant &variant) {
  constexpr int V = kThreadVectorBytes / static_cast<int>(sizeof(T));
  if (vector_elements != V) return {};
  return variant.pairing == Pairing::kInterleaved ? find_thread_kernel<T, V, true>(variant.angles)
                                                  : find_thread_kernel<T, V, false>(variant.angles);
}

}  // namespace rope
