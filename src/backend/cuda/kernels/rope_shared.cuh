// rope_shared.cuh - the RoPE kernel that computes angles once for all heads of a token
//
// In place, four heads of 128 channels, 16 bits, vectors of V = 8: 8 units a head, 32 a token, 4 tokens a block of 128.
//
//   threadIdx.x    0        1      …      7     │    8      …     15     │ … │   32     …     39     │ … │    127
//   token          0                            │    0                   │   │    1                   │   │     3
//   head           0                            │    1                   │   │    0                   │   │     3
//   low         0 …  7   8 … 15    …   56 …  63 │  0 …  7   …   56 …  63 │   │  0 …  7   …   56 …  63 │   │  56 …  63
//   high       64 … 71  72 … 79    …  120 … 127 │ 64 … 71   …  120 … 127 │   │ 64 … 71   …  120 … 127 │   │ 120 … 127
//
// A thread takes a unit: two vectors of neighbouring channels, of which `high` lies half a window after `low`. HALF
// pairs channel i of `low` with channel i of `high`, INTERLEAVED pairs neighbours in each. Out of place one vector of
// channels outside the window is a unit too; such units follow the rotary ones of each head.
//
//   grid x   groups of tokens_per_block tokens. Where one token has more units than a block has threads, the blocks
//            of a token follow each other: block b has part b % blocks_per_token of token b / blocks_per_token
//   grid y   tokens from y * tokens_per_grid_row on; tokens are counted through all batches
//   shared   cos[token][pair], then sin[token][pair]: thread i computes the angles i, i + blockDim.x, …
//
// Moves, for every token and head, the rotated window once in and once out; out of place also the channels around it.
// A block reads the positions of its tokens besides, 4 or 8 bytes each, and 8 bytes of increments for each pair.
//
// A block's threads first load their channels, so that memory works while they compute, then share the work of the
// angles of the block's tokens. One barrier, then each thread reads its pairs' cosines and sines from shared memory,
// rotates and stores.
#pragma once

#include "backend/cuda/kernels/angles.cuh"
#include "backend/cuda/kernels/block_work.cuh"
#include "backend/cuda/kernels/occupancy.cuh"
#include "backend/cuda/kernels/programmatic_launch.cuh"
#include "backend/cuda/kernels/unit_rotation.cuh"
#include "plan/tuning.hpp"

namespace rope {

// Angles in shared memory: the cosines of the block's tokens one after the other, then the sines. They are numbered as
// they lie: the number divided by the pairs is the token, counted in the block, and the remainder is the pair.
struct BlockAngles {
  float *cos;
  float *sin;
};

// Bytes from the beginning of a tensor to a unit's first vector.
template <typename T, int V>
__device__ __forceinline__ int64_t offset_of_unit(const RopeKernelParams &params, const Unit &unit, BatchToken at,
                                                  const int64_t *stride) {
  const int rotated = params.rotary_offset + static_cast<int>(unit.number) * V;
  const int channel = unit.is_rotary ? rotated : copied_channel<V>(params, unit);
  return offset_of_channel<T, V>(params, unit.head, at, channel, stride);
}

// Bytes from the first vector of a rotary unit to its second.
template <typename T>
__device__ __forceinline__ int64_t bytes_to_high(const RopeKernelParams &params) {
  return params.rotary_dim / 2 * static_cast<int64_t>(sizeof(T));
}

template <typename T, int V, bool IsInterleaved>
__global__ void __launch_bounds__(kMaxRopeThreads, min_blocks_per_multiprocessor(kRopeResidentThreads, kMaxRopeThreads))
    rope_shared_kernel(const __grid_constant__ RopeSharedParams params) {
  begin_dependent_launch();
  extern __shared__ float4 shared[];
  const uint32_t pairs = params.pairs.divisor;
  BlockAngles angles;
  angles.cos = reinterpret_cast<float *>(shared);
  angles.sin = angles.cos + params.tokens_per_block * pairs;
  const BlockShare share = find_share(params, blockDim.x);
  const BatchToken at = find_token(params, share.first_token + share.place.quotient);

  // Thread i shares the angles with numbers i, i + blockDim.x, ... What the first of them needs from memory comes
  // before all else, because the whole block waits for it.
  const uint32_t num_angles = share.num_tokens * pairs;
  DivmodResult angle = {0, threadIdx.x};
  if (!share.has_one_token || threadIdx.x >= pairs) angle = params.pairs.divmod(threadIdx.x);
  const auto load = [&] {
    return load_position(params, share.has_one_token ? at : find_token(params, share.first_token + angle.quotient));
  };
  LoadedInteger position = {};
  uint64_t increment = 0;
  if (threadIdx.x < num_angles) increment = through_memory(params.increments)[angle.remainder];
  wait_for_previous_launch();
  if (threadIdx.x < num_angles) position = load();

  const Unit unit = find_unit(params, share.place.remainder);
  const RopeKernelTensor &tensor = params.tensor[unit.tensor];
  Vector<T, V> low, high;
  char *low_out;
  if (share.is_active) {
    const char *low_in = tensor.in + offset_of_unit<T, V>(params, unit, at, tensor.in_stride);
    low = load_vector<Vector<T, V>>(low_in);
    if (unit.is_rotary) {
      high = load_vector<Vector<T, V>>(low_in + bytes_to_high<T>(params));
    }
    low_out = const_cast<char *>(low_in);
    if (!params.is_in_place[unit.tensor]) {
      low_out = tensor.out + offset_of_unit<T, V>(params, unit, at, tensor.out_stride);
    }
  }

#pragma unroll 1
  for (uint32_t number = threadIdx.x; number < num_angles;) {
    const CosSin<float> result = compute_angle(params, finish_position(params, position), increment);
    angles.cos[number] = result.cos;
    angles.sin[number] = result.sin;
    number += blockDim.x;
    if (number >= num_angles) break;
    angle = params.pairs.divmod(number);
    position = load();
    increment = through_memory(params.increments)[angle.remainder];
  }
  __syncthreads();

  if (!share.is_active) return;
  if (unit.is_rotary) {
    const uint32_t first_angle = share.place.quotient * pairs;
    float x[V], y[V];
    to_floats<T, V>(low, x);
    to_floats<T, V>(high, y);
    rotate_unit<V, IsInterleaved>(x, y, unit.number, pairs, angles.cos + first_angle, angles.sin + first_angle);
    low = from_floats<T, V>(x);
    high = from_floats<T, V>(y);
  }
  store_vector(low_out, low);
  if (unit.is_rotary) {
    store_vector(low_out + bytes_to_high<T>(params), high);
  }
}

template <typename T, int V>
const void *find_shared_kernel(bool is_interleaved) {
  return is_interleaved ? reinterpret_cast<const void *>(rope_shared_kernel<T, V, true>)
                        : reinterpret_cast<const void *>(rope_shared_kernel<T, V, false>);
}

// The kernel for a vector width, or NULL for a width that T has none of.
template <typename T>
const void *find_shared_kernel(int vector_elements, bool is_interleaved) {
  constexpr int kSize = static_cast<int>(sizeof(T));
  if (vector_elements == 16 / kSize) return find_shared_kernel<T, 16 / kSize>(is_interleaved);
  if (vector_elements == 8 / kSize) return find_shared_kernel<T, 8 / kSize>(is_interleaved);
  return nullptr;
}

}  // namespace rope
