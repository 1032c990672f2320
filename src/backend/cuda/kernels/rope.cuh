// rope.cuh - the RoPE kernel
//
// Moves, for every token and head, the rotated window once in and once out; out of place also the channels around it.
// Everything else (positions, table rows) is read once a block and is small beside that.
//
// A block takes some units of one token, or all units of a few small ones (see rope_plan.hpp). Its threads first load
// their channels, so that memory works while they compute, then share the work of the block's angles: one angle serves
// all heads of a token. One barrier, then each thread reads its pairs' cosines and sines from shared memory, rotates and
// stores. Instructions are what this kernel runs out of: at 16 bits an element, more than about 150 a thread show.
#pragma once

#include "backend/cuda/kernels/rope_params.hpp"
#include "backend/cuda/kernels/vector.cuh"
#include "core/rotation.hpp"
#include "plan/tuning.hpp"

namespace rope {

// Turing holds 1024 threads a multiprocessor, later GPUs at least 1536.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
#define ROPE_BLOCKS_PER_MULTIPROCESSOR 6
#else
#define ROPE_BLOCKS_PER_MULTIPROCESSOR kRopeBlocksPerMultiprocessor
#endif

struct BatchToken {
  int64_t batch;
  int64_t token;
};

__device__ __forceinline__ BatchToken split_token(const RopeKernelParams &params, int64_t token) {
  if (params.has_one_batch) return {0, token};
  if (params.has_narrow_tokens) {
    const Divided divided = params.tokens_per_batch.divide(static_cast<uint32_t>(token));
    return {divided.quotient, divided.remainder};
  }
  return {token / params.tokens, token % params.tokens};
}

__device__ __forceinline__ int64_t read_integer(const TokenIntegers &source, BatchToken at) {
  const int64_t offset = at.batch * source.batch_stride + at.token * source.token_stride;
  if (source.is_64_bit) return reinterpret_cast<const int64_t *>(source.data)[offset];
  return reinterpret_cast<const int32_t *>(source.data)[offset];
}

__device__ __forceinline__ uint64_t position_of(const RopeKernelParams &params, int64_t token) {
  const BatchToken at = split_token(params, token);
  uint64_t position = params.position_offset;
  position += static_cast<uint64_t>(params.positions.is_present ? read_integer(params.positions, at) : at.token);
  if (params.start_positions.is_present) position += static_cast<uint64_t>(read_integer(params.start_positions, at));
  return position;
}

// The block's angles in shared memory: cosines of its tokens one after the other, then sines, then a word a token that
// says whether it is rotated at all.
struct SharedAngles {
  float *cos;
  float *sin;
  uint32_t *is_rotated;
};

// The angles of a block are numbered token after token; the quotient is the token, counted in the block, the remainder
// the pair.
__device__ __forceinline__ Divided find_angle(const RopeKernelParams &params, uint32_t number) {
  if (params.tokens_per_block == 1 && number < params.pairs.divisor) return {0, number};
  return params.pairs.divide(number);
}

// Thread i takes the angles with numbers i, i + blockDim.x, ... `position` is that of the first one: it comes early,
// because everything here waits for it.
__device__ __forceinline__ void compute_angles(const RopeKernelParams &params, const uint64_t *increments,
                                               int64_t first_token, uint32_t num_angles, uint64_t position,
                                               const SharedAngles &angles) {
#pragma unroll 1
  for (uint32_t i = threadIdx.x; i < num_angles; i += blockDim.x) {
    const Divided at = find_angle(params, i);
    if (i != threadIdx.x) position = position_of(params, first_token + at.quotient);
    const CosSin angle = cos_sin_of_phase(phase_of(position, increments[at.remainder]));
    angles.cos[i] = multiply_rounded(angle.cos, params.cos_scale);
    angles.sin[i] = multiply_rounded(angle.sin, params.sin_scale);
  }
}

__device__ __forceinline__ void load_angles(const RopeKernelParams &params, int64_t first_token, uint32_t num_angles,
                                            uint64_t position, const SharedAngles &angles) {
  const AngleTable &table = params.table;
#pragma unroll 1
  for (uint32_t i = threadIdx.x; i < num_angles; i += blockDim.x) {
    const Divided at = find_angle(params, i);
    if (i != threadIdx.x) position = position_of(params, first_token + at.quotient);
    const bool is_inside = position < static_cast<uint64_t>(table.rows);
    if (at.remainder == 0) angles.is_rotated[at.quotient] = is_inside;
    if (!is_inside) continue;
    const int64_t row = static_cast<int64_t>(position);
    angles.cos[i] = table.cos[row * table.cos_row_stride + at.remainder * table.cos_pair_stride];
    const float sin = table.sin[row * table.sin_row_stride + at.remainder * table.sin_pair_stride];
    angles.sin[i] = params.sin_scale < 0.0f ? -sin : sin;
  }
}

// Rotates N pairs of neighbouring floats of x and y by N neighbouring angles.
template <int N>
__device__ __forceinline__ void rotate_pairs(float *x, float *y, int step, const float *cos, const float *sin) {
  const Vector<float, N> c = *reinterpret_cast<const Vector<float, N> *>(cos);
  const Vector<float, N> s = *reinterpret_cast<const Vector<float, N> *>(sin);
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const Pair out = rotate({x[i * step], y[i * step]}, c.element[i], s.element[i]);
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

template <typename T, int V>
__device__ __forceinline__ void to_floats(const Vector<T, V> &vector, float *values) {
#pragma unroll
  for (int i = 0; i < V; ++i) values[i] = to_float(vector.element[i]);
}

template <typename T, int V>
__device__ __forceinline__ Vector<T, V> from_floats(const float *values) {
  Vector<T, V> vector;
  if constexpr (V == 1) {
    vector.element[0] = round_to<T>(values[0]);
  } else {
#pragma unroll
    for (int i = 0; i < V; i += 2) round_pair(values[i], values[i + 1], &vector.element[i]);
  }
  return vector;
}

// Bytes from the first vector of a rotary unit to its second.
template <typename T, int V, bool IsInterleaved>
__device__ __forceinline__ int64_t bytes_to_high(const RopeKernelParams &params, int64_t channel_stride) {
  const int channels = V == 1 && IsInterleaved ? 1 : params.rotary_dim / 2;
  return V == 1 ? channels * channel_stride : channels * static_cast<int64_t>(sizeof(T));
}

template <typename T, int V, bool IsInterleaved>
__global__ void __launch_bounds__(kMaxRopeThreads, ROPE_BLOCKS_PER_MULTIPROCESSOR)
    rope_kernel(const __grid_constant__ RopeKernelParams params) {
  // Lanes read different increments: through the constant cache, as a parameter is, 32 of them would take turns.
  const uint64_t *increments = params.increments;
  asm("" : "+l"(increments));

  extern __shared__ float4 shared[];
  const uint32_t pairs = params.pairs.divisor;
  SharedAngles angles;
  angles.cos = reinterpret_cast<float *>(shared);
  angles.sin = angles.cos + params.tokens_per_block * pairs;
  angles.is_rotated = reinterpret_cast<uint32_t *>(angles.sin + params.tokens_per_block * pairs);

  // Which tokens the block has, and which unit of which of them is this thread's.
  const Divided block = params.blocks_per_token.divide(blockIdx.x);
  const int64_t first_token =
      blockIdx.y * params.tokens_per_grid_row + int64_t{block.quotient} * params.tokens_per_block;
  const int64_t tokens_left = params.num_tokens - first_token;
  const uint32_t num_tokens =
      tokens_left < params.tokens_per_block ? static_cast<uint32_t>(tokens_left) : params.tokens_per_block;
  Divided place = {0, block.remainder * blockDim.x + threadIdx.x};
  if (params.tokens_per_block > 1) place = params.units_per_token.divide(threadIdx.x);
  const bool is_active = place.quotient < num_tokens && place.remainder < params.units_per_token.divisor;

  const uint32_t num_angles = num_tokens * pairs;
  uint64_t position = 0;
  if (threadIdx.x < num_angles) position = position_of(params, first_token + find_angle(params, threadIdx.x).quotient);

  const int which = (place.remainder >= params.tensor[1].first_unit) + (place.remainder >= params.tensor[2].first_unit);
  const RopeKernelTensor &tensor = params.tensor[which];
  const Divided head = tensor.units_per_head.divide(place.remainder - tensor.first_unit);
  const uint32_t unit = head.remainder;
  const bool is_rotary = unit < params.rotary_units_per_head;

  Vector<T, V> low, high;
  char *low_out;
  if (is_active) {
    // First channel of the unit. Copy units count vectors below the window, then those above it.
    int channel;
    if (is_rotary) {
      channel = params.rotary_offset + static_cast<int>(unit) * (V == 1 && IsInterleaved ? 2 : V);
    } else {
      channel = static_cast<int>(unit - params.rotary_units_per_head) * V;
      if (channel >= params.rotary_offset) channel += params.rotary_dim;
    }
    const BatchToken at = split_token(params, first_token + place.quotient);
    const auto offset_of = [&](const int64_t *stride) {
      int64_t offset = at.token * stride[kToken] + head.quotient * stride[kHead];
      if (!params.has_one_batch) offset += at.batch * stride[kBatch];
      return offset + channel * (V == 1 ? stride[kChannel] : static_cast<int64_t>(sizeof(T)));
    };
    const char *low_in = tensor.in + offset_of(tensor.in_stride);
    low = load_vector<T, V>(low_in);
    if (is_rotary) {
      high = load_vector<T, V>(low_in + bytes_to_high<T, V, IsInterleaved>(params, tensor.in_stride[kChannel]));
    }
    low_out = tensor.is_in_place ? const_cast<char *>(low_in) : tensor.out + offset_of(tensor.out_stride);
  }

  if (params.has_table) {
    load_angles(params, first_token, num_angles, position, angles);
  } else {
    compute_angles(params, increments, first_token, num_angles, position, angles);
  }
  __syncthreads();

  if (!is_active) return;
  if (is_rotary && (!params.has_table || angles.is_rotated[place.quotient] != 0)) {
    const uint32_t first_angle = place.quotient * pairs;
    float x[V], y[V];
    to_floats(low, x);
    to_floats(high, y);
    rotate_unit<V, IsInterleaved>(x, y, unit, pairs, angles.cos + first_angle, angles.sin + first_angle);
    low = from_floats<T, V>(x);
    high = from_floats<T, V>(y);
  } else if (tensor.is_in_place) {
    return;
  }
  store_vector(low_out, low);
  if (is_rotary) {
    store_vector(low_out + bytes_to_high<T, V, IsInterleaved>(params, tensor.out_stride[kChannel]), high);
  }
}

// The kernel for a vector width, or NULL for a width that T has none of.
template <typename T>
const void *find_rope_kernel(int vector_elements, bool is_interleaved) {
  const auto pick = [is_interleaved](auto half, auto interleaved) {
    return is_interleaved ? reinterpret_cast<const void *>(interleaved) : reinterpret_cast<const void *>(half);
  };
  switch (vector_elements * static_cast<int>(sizeof(T))) {
    case 16:
      return pick(rope_kernel<T, 16 / sizeof(T), false>, rope_kernel<T, 16 / sizeof(T), true>);
    case 8:
      return pick(rope_kernel<T, 8 / sizeof(T), false>, rope_kernel<T, 8 / sizeof(T), true>);
    case 4:
      return pick(rope_kernel<T, 4 / sizeof(T), false>, rope_kernel<T, 4 / sizeof(T), true>);
    case 2:
      return pick(rope_kernel<T, 1, false>, rope_kernel<T, 1, true>);
    default:
      return nullptr;
  }
}

}  // namespace rope
