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

// Token `number` of this block. A row of the grid begins at a batch, or, where there is one batch, at a token.
__device__ __forceinline__ BatchToken find_token(const RopeKernelParams &params, uint32_t number) {
  const uint32_t group = params.blocks_per_token.divide(blockIdx.x).quotient;
  const uint32_t in_row = group * params.tokens_per_block + number;
  if (params.has_one_batch) return {0, blockIdx.y * params.tokens_per_grid_row + in_row};
  const Divided divided = params.tokens.divide(in_row);
  return {blockIdx.y * params.batches_per_grid_row + divided.quotient, divided.remainder};
}

// An integer as it comes from memory. Extending it to 64 bits would wait for it, so that is done later.
struct LoadedInteger {
  uint32_t low;
  uint32_t high;  // of a 64-bit integer
};

__device__ __forceinline__ LoadedInteger load_integer(const TokenIntegers &source, BatchToken at) {
  const int64_t offset = at.batch * source.batch_stride + at.token * source.token_stride;
  if (source.is_64_bit) {
    const uint2 words = reinterpret_cast<const uint2 *>(source.data)[offset];
    return {words.x, words.y};
  }
  return {reinterpret_cast<const uint32_t *>(source.data)[offset], 0};
}

__device__ __forceinline__ uint64_t extend(LoadedInteger integer, bool is_64_bit) {
  const uint32_t sign = static_cast<uint32_t>(static_cast<int32_t>(integer.low) >> 31);
  return static_cast<uint64_t>(is_64_bit ? integer.high : sign) << 32 | integer.low;
}

__device__ __forceinline__ LoadedInteger as_loaded(uint64_t value) {
  return {static_cast<uint32_t>(value), static_cast<uint32_t>(value >> 32)};
}

// The position of a token but for position_offset; finish_position makes a number of it.
__device__ __forceinline__ LoadedInteger load_position(const RopeKernelParams &params, BatchToken at) {
  LoadedInteger position = as_loaded(static_cast<uint64_t>(at.token));
  if (params.positions.is_present) position = load_integer(params.positions, at);
  if (params.start_positions.is_present) {
    const uint64_t index = extend(position, params.positions.is_64_bit || !params.positions.is_present);
    position = as_loaded(index + extend(load_integer(params.start_positions, at), params.start_positions.is_64_bit));
  }
  return position;
}

__device__ __forceinline__ uint64_t finish_position(const RopeKernelParams &params, LoadedInteger position) {
  return extend(position, !params.has_narrow_positions) + params.position_offset;
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

// Puts an angle into shared memory: computed, or from the table.
__device__ __forceinline__ void share_angle(const RopeKernelParams &params, Divided at, uint32_t number,
                                            uint64_t position, const SharedAngles &angles) {
  if (!params.has_table) {
    // Lanes read different increments: through the constant cache, as a parameter is, 32 of them would take turns.
    const uint64_t *increments = params.increments;
    asm("" : "+l"(increments));
    const CosSin angle = cos_sin_of_phase(phase_of(position, increments[at.remainder]));
    angles.cos[number] = multiply_rounded(angle.cos, params.cos_scale);
    angles.sin[number] = multiply_rounded(angle.sin, params.sin_scale);
    return;
  }
  const AngleTable &table = params.table;
  const bool is_inside = position < static_cast<uint64_t>(table.rows);
  if (at.remainder == 0) angles.is_rotated[at.quotient] = is_inside;
  if (!is_inside) return;
  const int64_t row = static_cast<int64_t>(position);
  angles.cos[number] = table.cos[row * table.cos_row_stride + at.remainder * table.cos_pair_stride];
  const float sin = table.sin[row * table.sin_row_stride + at.remainder * table.sin_pair_stride];
  angles.sin[number] = params.sin_scale < 0.0f ? -sin : sin;
}

// Rotates N pairs of neighbouring floats of x and y by N neighbouring angles.
template <int N>
__device__ __forceinline__ void rotate_pairs(float *x, float *y, int step, const float *cos, const float *sin) {
  const Vector<float, N> c = *reinterpret_cast<const Vector<float, N> *>(cos);
  const Vector<float, N> s = *reinterpret_cast<const Vector<float, N> *>(sin);
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const Pair out = rotate({x[i * step], y[i * step]}, float_of(c.word[i]), float_of(s.word[i]));
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

// Bytes from the first vector of a rotary unit to its second.
template <typename T, int V, bool IsInterleaved>
__device__ __forceinline__ int64_t bytes_to_high(const RopeKernelParams &params, int64_t channel_stride) {
  const int channels = V == 1 && IsInterleaved ? 1 : params.rotary_dim / 2;
  return V == 1 ? channels * channel_stride : channels * static_cast<int64_t>(sizeof(T));
}

template <typename T, int V, bool IsInterleaved>
__global__ void __launch_bounds__(kMaxRopeThreads, ROPE_BLOCKS_PER_MULTIPROCESSOR)
    rope_kernel(const __grid_constant__ RopeKernelParams params) {
  extern __shared__ float4 shared[];
  const uint32_t pairs = params.pairs.divisor;
  SharedAngles angles;
  angles.cos = reinterpret_cast<float *>(shared);
  angles.sin = angles.cos + params.tokens_per_block * pairs;
  angles.is_rotated = reinterpret_cast<uint32_t *>(angles.sin + params.tokens_per_block * pairs);

  // Which tokens the block has, and which unit of which of them is this thread's.
  const Divided block = params.blocks_per_token.divide(blockIdx.x);
  int64_t tokens_left = params.num_tokens - blockIdx.y * params.tokens_per_grid_row;
  if (tokens_left > params.tokens_per_grid_row) tokens_left = params.tokens_per_grid_row;
  tokens_left -= int64_t{block.quotient} * params.tokens_per_block;
  const uint32_t num_tokens =
      tokens_left < params.tokens_per_block ? static_cast<uint32_t>(tokens_left) : params.tokens_per_block;
  Divided place = {0, block.remainder * blockDim.x + threadIdx.x};
  if (params.tokens_per_block > 1) place = params.units_per_token.divide(threadIdx.x);
  const bool is_active = place.quotient < num_tokens && place.remainder < params.units_per_token.divisor;

  const uint32_t num_angles = num_tokens * pairs;
  // Thread i shares the angles with numbers i, i + blockDim.x, ... The position of the first comes early, because
  // everything there waits for it.
  LoadedInteger position = {};
  if (threadIdx.x < num_angles) {
    position = load_position(params, find_token(params, find_angle(params, threadIdx.x).quotient));
  }

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
    const BatchToken at = find_token(params, place.quotient);
    const auto offset_of = [&](const int64_t *stride) {
      int64_t offset = at.token * stride[kToken] + head.quotient * stride[kHead];
      if (!params.has_one_batch) offset += at.batch * stride[kBatch];
      return offset + channel * (V == 1 ? stride[kChannel] : static_cast<int64_t>(sizeof(T)));
    };
    const char *low_in = tensor.in + offset_of(tensor.in_stride);
    low = load_vector<Vector<T, V>>(low_in);
    if (is_rotary) {
      high = load_vector<Vector<T, V>>(low_in + bytes_to_high<T, V, IsInterleaved>(params, tensor.in_stride[kChannel]));
    }
    low_out = tensor.is_in_place ? const_cast<char *>(low_in) : tensor.out + offset_of(tensor.out_stride);
  }

#pragma unroll 1
  for (uint32_t number = threadIdx.x; number < num_angles; number += blockDim.x) {
    const Divided at = find_angle(params, number);
    if (number != threadIdx.x) position = load_position(params, find_token(params, at.quotient));
    share_angle(params, at, number, finish_position(params, position), angles);
  }
  __syncthreads();

  if (!is_active) return;
  if (is_rotary && (!params.has_table || angles.is_rotated[place.quotient] != 0)) {
    const uint32_t first_angle = place.quotient * pairs;
    float x[V], y[V];
    to_floats<T, V>(low, x);
    to_floats<T, V>(high, y);
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
