// rope.cuh - the RoPE kernel
//
// Moves, for every token and head, the rotated window once in and once out; out of place also the channels around it.
// Everything else (positions, table rows) is read once a block and is small beside that.
//
// A block takes kRopeThreads units (see rope_plan.hpp). Its threads first load their channels, so that memory works
// while they compute, then share the work of the angles of the few tokens that the block covers: one angle serves all
// heads of a token, and neither the exact reduction nor the table costs anything next to the memory. One barrier, then
// each thread reads its pairs' cosines and sines from shared memory, rotates and stores.
#pragma once

#include "backend/cuda/kernels/rope_params.hpp"
#include "backend/cuda/kernels/vector.cuh"
#include "core/rotation.hpp"
#include "plan/tuning.hpp"

namespace rope {

// Turing holds 1024 threads a multiprocessor, later GPUs at least 1536.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
#define ROPE_BLOCKS_PER_MULTIPROCESSOR 8
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

__device__ __forceinline__ void fill_angles(const RopeKernelParams &params, int64_t first_token, uint32_t num_tokens,
                                            const SharedAngles &angles) {
  for (uint32_t i = threadIdx.x; i < num_tokens * params.pairs.divisor; i += kRopeThreads) {
    const Divided at = params.pairs.divide(i);
    const uint32_t pair = at.remainder;
    const uint64_t position = position_of(params, first_token + at.quotient);
    CosSin angle;
    if (params.has_table) {
      const AngleTable &table = params.table;
      const bool is_inside = position < static_cast<uint64_t>(table.rows);
      if (pair == 0) angles.is_rotated[at.quotient] = is_inside;
      if (!is_inside) continue;
      const int64_t row = static_cast<int64_t>(position);
      angle.cos = table.cos[row * table.cos_row_stride + pair * table.cos_pair_stride];
      angle.sin = table.sin[row * table.sin_row_stride + pair * table.sin_pair_stride];
    } else {
      angle = cos_sin_of_phase(phase_of(position, params.increments[pair]));
    }
    angles.cos[i] = multiply_rounded(angle.cos, params.cos_scale);
    angles.sin[i] = multiply_rounded(angle.sin, params.sin_scale);
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

template <typename T, int V, bool IsInterleaved>
__global__ void __launch_bounds__(kRopeThreads, ROPE_BLOCKS_PER_MULTIPROCESSOR)
    rope_kernel(const __grid_constant__ RopeKernelParams params) {
  extern __shared__ float4 shared[];
  const uint32_t pairs = params.pairs.divisor;
  SharedAngles angles;
  angles.cos = reinterpret_cast<float *>(shared);
  angles.sin = angles.cos + params.tokens_per_block * pairs;
  angles.is_rotated = reinterpret_cast<uint32_t *>(angles.sin + params.tokens_per_block * pairs);

  // This block's place: units from first.remainder of token first_token on.
  const Divided first = params.units_per_token.divide(blockIdx.x * kRopeThreads);
  const int64_t row_begin = blockIdx.y * params.tokens_per_grid_row;
  const int64_t first_token = row_begin + first.quotient;
  int64_t tokens_left = params.num_tokens - first_token;
  const int64_t tokens_left_in_row = params.tokens_per_grid_row - first.quotient;
  if (tokens_left > tokens_left_in_row) tokens_left = tokens_left_in_row;

  // This thread's unit: of which token, tensor and head.
  const Divided place = params.units_per_token.divide(first.remainder + threadIdx.x);
  const bool is_active = place.quotient < tokens_left;
  const int which = (place.remainder >= params.tensor[1].first_unit) + (place.remainder >= params.tensor[2].first_unit);
  const RopeKernelTensor &tensor = params.tensor[which];
  const Divided head = tensor.units_per_head.divide(place.remainder - tensor.first_unit);
  const uint32_t unit = head.remainder;
  const bool is_rotary = unit < params.rotary_units_per_head;

  // First channel of the unit's vectors. Copy units count vectors below the window, then those above it.
  int low_channel, high_channel;
  if (is_rotary) {
    const int step = V == 1 && IsInterleaved ? 2 : V;
    low_channel = params.rotary_offset + static_cast<int>(unit) * step;
    high_channel = low_channel + (V == 1 && IsInterleaved ? 1 : params.rotary_dim / 2);
  } else {
    low_channel = static_cast<int>(unit - params.rotary_units_per_head) * V;
    if (low_channel >= params.rotary_offset) low_channel += params.rotary_dim;
    high_channel = low_channel;
  }

  Vector<T, V> low, high;
  char *low_out, *high_out;
  if (is_active) {
    const BatchToken at = split_token(params, first_token + place.quotient);
    const int64_t in_offset = at.batch * tensor.in_stride[kBatch] + at.token * tensor.in_stride[kToken] +
                              head.quotient * tensor.in_stride[kHead];
    const int64_t in_step = V == 1 ? tensor.in_stride[kChannel] : static_cast<int64_t>(sizeof(T));
    const char *in = tensor.in + in_offset;
    const char *low_in = in + low_channel * in_step;
    const char *high_in = in + high_channel * in_step;
    low = load_vector<T, V>(low_in);
    high = load_vector<T, V>(high_in);
    if (tensor.is_in_place) {
      low_out = const_cast<char *>(low_in);
      high_out = const_cast<char *>(high_in);
    } else {
      const int64_t out_offset = at.batch * tensor.out_stride[kBatch] + at.token * tensor.out_stride[kToken] +
                                 head.quotient * tensor.out_stride[kHead];
      const int64_t out_step = V == 1 ? tensor.out_stride[kChannel] : static_cast<int64_t>(sizeof(T));
      char *out = tensor.out + out_offset;
      low_out = out + low_channel * out_step;
      high_out = out + high_channel * out_step;
    }
  }

  const Divided last = params.units_per_token.divide(first.remainder + kRopeThreads - 1);
  const int64_t num_tokens = last.quotient + 1 < tokens_left ? last.quotient + 1 : tokens_left;
  fill_angles(params, first_token, static_cast<uint32_t>(num_tokens > 0 ? num_tokens : 0), angles);
  __syncthreads();

  if (!is_active) return;
  const bool is_rotated = is_rotary && (!params.has_table || angles.is_rotated[place.quotient] != 0);
  if (is_rotated) {
    float x[V], y[V];
    to_floats(low, x);
    to_floats(high, y);
    rotate_unit<V, IsInterleaved>(x, y, unit, pairs, angles.cos + place.quotient * pairs,
                                  angles.sin + place.quotient * pairs);
    low = from_floats<T, V>(x);
    high = from_floats<T, V>(y);
  } else if (tensor.is_in_place) {
    return;
  }
  store_vector(low_out, low);
  if (is_rotary) store_vector(high_out, high);
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
