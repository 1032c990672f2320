// rope_shared.cuh - the RoPE kernel that computes angles once for all heads of a token
//
// Moves, for every token and head, the rotated window once in and once out; out of place also the channels around it.
// Everything else (positions) is read once a block and is small beside that.
//
// A block's threads first load their channels, so that memory works while they compute, then share the work of the
// angles of the block's tokens: one angle serves all heads of a token. One barrier, then each thread reads its pairs'
// cosines and sines from shared memory, rotates and stores.
#pragma once

#include "backend/cuda/kernels/rope_units.cuh"

namespace rope {

// Rotates N pairs of neighbouring floats of x and y by N neighbouring angles.
template <int N>
__device__ __forceinline__ void rotate_pairs(float *x, float *y, int step, const float *cos, const float *sin) {
  const Vector<float, N> c = *reinterpret_cast<const Vector<float, N> *>(cos);
  const Vector<float, N> s = *reinterpret_cast<const Vector<float, N> *>(sin);
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const CosSin<float> angle = {float_of(c.word[i]), float_of(s.word[i])};
    const Pair<float> out = rotate<float>({x[i * step], y[i * step]}, angle, angle);
    x[i * step] = out.x;
    y[i * step] = out.y;
  }
}

// Rotates the two vectors of a rotary unit. With V elements in a vector, unit u of a head holds
//   HALF         pairs V u to V u + V - 1, their first channels in `low`, their second ones in `high`
//   INTERLEAVED  pairs V/2 u to V/2 u + V/2 - 1 in `low`, those half a window further in `high`
//   V = 1        pair u in either style
template <int V, bool IsInterleaved>
__device__ __forceinline__ void rotate_unit(float *low, float *high, uint32_t unit, uint32_t pairs, const float *cos,
                                            const float *sin) {
  if constexpr (V == 1) {
    rotate_pairs<1>(low, high, 1, cos + unit, sin + unit);
  } else if constexpr (IsInterleaved) {
    const uint32_t first = unit * (V / 2), second = pairs / 2 + first;
    rotate_pairs<V / 2>(low, low + 1, 2, cos + first, sin + first);
    rotate_pairs<V / 2>(high, high + 1, 2, cos + second, sin + second);
  } else {
    constexpr int kStep = V < 4 ? V : 4;
#pragma unroll
    for (int i = 0; i < V; i += kStep) {
      rotate_pairs<kStep>(low + i, high + i, 1, cos + unit * V + i, sin + unit * V + i);
    }
  }
}

// Angles in shared memory: the cosines of the block's tokens one after the other, then the sines. They are numbered as
// they lie: the number divided by the pairs is the token, counted in the block, and the remainder is the pair.
struct SharedAngles {
  float *cos;
  float *sin;
};

// The tokens of a block, and which unit of which of them is this thread's.
struct BlockShare {
  uint32_t first_token;  // in the row of the grid
  uint32_t num_tokens;
  bool has_one_token;
  bool is_first_block;  // of those that share the token
  DivmodResult place;   // token, counted in the block, and unit of it
  bool is_active;
};

__device__ __forceinline__ BlockShare find_share(const RopeSharedParams &params, uint32_t units_per_block) {
  const DivmodResult block = params.blocks_per_token.divmod(blockIdx.x);
  BlockShare share;
  share.first_token = block.quotient * params.tokens_per_block;
  share.has_one_token = params.tokens_per_block == 1;
  share.is_first_block = block.remainder == 0;
  share.place = {0, block.remainder * units_per_block + threadIdx.x};
  if (!share.has_one_token) share.place = params.units_per_token.divmod(threadIdx.x);

  // The last block of a row of the grid may have fewer tokens, or none.
  share.num_tokens = params.tokens_per_block;
  if (!share.has_one_token || gridDim.y > 1) {
    int64_t tokens_left = params.num_tokens - blockIdx.y * params.tokens_per_grid_row;
    if (tokens_left > params.tokens_per_grid_row) tokens_left = params.tokens_per_grid_row;
    tokens_left -= share.first_token;
    if (tokens_left < share.num_tokens) share.num_tokens = tokens_left > 0 ? static_cast<uint32_t>(tokens_left) : 0;
  }
  share.is_active = share.place.quotient < share.num_tokens && share.place.remainder < params.units_per_token.divisor;
  return share;
}

template <typename T, int V, bool IsInterleaved>
__global__ void __launch_bounds__(kMaxRopeThreads, min_blocks_per_multiprocessor(kRopeResidentThreads, kMaxRopeThreads))
    rope_shared_kernel(const __grid_constant__ RopeSharedParams params) {
  begin_dependent_launch();
  extern __shared__ float4 shared[];
  const uint32_t pairs = params.pairs.divisor;
  SharedAngles angles;
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
