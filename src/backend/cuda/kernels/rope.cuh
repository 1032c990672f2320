// rope.cuh - the RoPE kernel
//
// Moves, for every token and head, the rotated window once in and once out; out of place also the channels around it.
// Everything else (positions, table rows) is read once a block and is small beside that.
//
// A block takes some units of one token, or all units of a few small ones (see rope_plan.hpp). Its threads first load
// their channels, so that memory works while they compute, then share the work of the block's angles: one angle serves
// all heads of a token. One barrier, then each thread reads its pairs' cosines and sines from shared memory, rotates and
// stores. At 16 bits an element the kernel is nearly as short of instructions as of memory, hence the care with both:
// nothing is divided but by a reciprocal, and what a thread can read again it does not keep.
#pragma once

#include "backend/cuda/kernels/rope_params.hpp"
#include "backend/cuda/kernels/vector.cuh"
#include "core/rotation.hpp"
#include "plan/tuning.hpp"

namespace rope {

// Where cosines and sines come from. A table costs one more trip to memory in a row, which takes more threads to hide.
enum class Angles {
  kComputed,
  kTable
};

// Threads that a multiprocessor holds: 2048 on the data-centre GPUs from Ampere on, fewer on the others.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ == 750
constexpr int kHeldThreads = 1024;
#elif defined(__CUDA_ARCH__) && ((__CUDA_ARCH__ > 800 && __CUDA_ARCH__ < 900) || __CUDA_ARCH__ >= 1200)
constexpr int kHeldThreads = 1536;
#else
constexpr int kHeldThreads = 2048;
#endif

constexpr int min_blocks_per_multiprocessor(Angles angles) {
  const int wanted = angles == Angles::kTable ? kRopeTableResidentThreads : kRopeResidentThreads;
  return (wanted < kHeldThreads ? wanted : kHeldThreads) / kMaxRopeThreads;
}

struct BatchToken {
  int64_t batch;
  int64_t token;
};

// A token of this row of the grid. The row begins at a batch, or, where there is one batch, at a token.
__device__ __forceinline__ BatchToken find_token(const RopeKernelParams &params, uint32_t in_row) {
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
  if (params.has_positions) position = load_integer(params.positions, at);
  if (params.has_start_positions) {
    const uint64_t index = extend(position, params.positions.is_64_bit || !params.has_positions);
    position = as_loaded(index + extend(load_integer(params.start_positions, at), params.start_positions.is_64_bit));
  }
  return position;
}

__device__ __forceinline__ uint64_t finish_position(const RopeKernelParams &params, LoadedInteger position) {
  return extend(position, !params.has_narrow_positions) + params.position_offset;
}

// The block's angles in shared memory: the cosines of its tokens one after the other, then the sines, then a word a token
// that says whether it is rotated at all. Angles are numbered as they lie: the number divided by the pairs is the token,
// counted in the block, and the remainder is the pair.
struct SharedAngles {
  float *cos;
  float *sin;
  uint32_t *is_rotated;
};

// Lanes read different increments: through the constant cache, where parameters come from, 32 of them would take turns.
__device__ __forceinline__ uint64_t load_increment(const RopeKernelParams &params, uint32_t pair) {
  const uint64_t *increments = params.increments;
  asm("" : "+l"(increments));
  return increments[pair];
}

__device__ __forceinline__ void share_computed_angle(const RopeKernelParams &params, uint32_t number, uint64_t position,
                                                     uint64_t increment, const SharedAngles &angles) {
  const CosSin<float> angle = cos_sin_of_phase<float>(phase_of(position, increment));
  angles.cos[number] = multiply_rounded(angle.cos, params.cos_scale);
  angles.sin[number] = multiply_rounded(angle.sin, params.sin_scale);
}

// Both loads before anything is made of either.
__device__ __forceinline__ CosSin<float> load_table_angle(const AngleTable &table, int64_t batch, int64_t row,
                                                          uint32_t pair) {
  const auto offset_in = [&](const TableColumns &columns) {
    return batch * columns.batch_stride + row * columns.row_stride + pair * columns.column_stride;
  };
  const int64_t cos_at = offset_in(table.cos), sin_at = offset_in(table.sin);
  if (table.dtype == ROPE_DTYPE_F32) {
    return {reinterpret_cast<const float *>(table.cos.data)[cos_at],
            reinterpret_cast<const float *>(table.sin.data)[sin_at]};
  }
  const uint16_t cos = reinterpret_cast<const uint16_t *>(table.cos.data)[cos_at];
  const uint16_t sin = reinterpret_cast<const uint16_t *>(table.sin.data)[sin_at];
  if (table.dtype == ROPE_DTYPE_F16) return {to_float(Float16{cos}), to_float(Float16{sin})};
  return {to_float(BFloat16{cos}), to_float(BFloat16{sin})};
}

__device__ __forceinline__ void share_table_angle(const RopeKernelParams &params, Divided at, uint32_t number,
                                                  uint32_t first_in_row, uint64_t position,
                                                  const SharedAngles &angles) {
  const AngleTable &table = params.table;
  const bool is_inside = position < static_cast<uint64_t>(table.rows);
  if (at.remainder == 0) angles.is_rotated[at.quotient] = is_inside;
  if (!is_inside) return;
  const int64_t batch = params.has_batch_tables ? find_token(params, first_in_row + at.quotient).batch : 0;
  const CosSin<float> angle = load_table_angle(table, batch, static_cast<int64_t>(position), at.remainder);
  angles.cos[number] = angle.cos;
  angles.sin[number] = params.sin_scale < 0.0f ? -angle.sin : angle.sin;
}

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

// Bytes from the first vector of a rotary unit to its second.
template <typename T, int V, bool IsInterleaved>
__device__ __forceinline__ int64_t bytes_to_high(const RopeKernelParams &params, int64_t channel_stride) {
  const int channels = V == 1 && IsInterleaved ? 1 : params.rotary_dim / 2;
  return V == 1 ? channels * channel_stride : channels * static_cast<int64_t>(sizeof(T));
}

template <typename T, int V, bool IsInterleaved, Angles kAngles>
__global__ void __launch_bounds__(kMaxRopeThreads, min_blocks_per_multiprocessor(kAngles))
    rope_kernel(const __grid_constant__ RopeKernelParams params) {
  extern __shared__ float4 shared[];
  const uint32_t pairs = params.pairs.divisor;
  SharedAngles angles;
  angles.cos = reinterpret_cast<float *>(shared);
  angles.sin = angles.cos + params.tokens_per_block * pairs;
  angles.is_rotated = reinterpret_cast<uint32_t *>(angles.sin + params.tokens_per_block * pairs);

  // Which tokens the block has, and which unit of which of them is this thread's.
  const Divided block = params.blocks_per_token.divide(blockIdx.x);
  const uint32_t first_in_row = block.quotient * params.tokens_per_block;
  const bool has_one_token = params.tokens_per_block == 1;
  Divided place = {0, block.remainder * blockDim.x + threadIdx.x};
  if (!has_one_token) place = params.units_per_token.divide(threadIdx.x);
  const BatchToken unit_token = find_token(params, first_in_row + place.quotient);

  // The last block of a row of the grid may have fewer tokens, or none.
  uint32_t num_tokens = params.tokens_per_block;
  if (!has_one_token || gridDim.y > 1) {
    int64_t tokens_left = params.num_tokens - blockIdx.y * params.tokens_per_grid_row;
    if (tokens_left > params.tokens_per_grid_row) tokens_left = params.tokens_per_grid_row;
    tokens_left -= first_in_row;
    if (tokens_left < num_tokens) num_tokens = tokens_left > 0 ? static_cast<uint32_t>(tokens_left) : 0;
  }
  const bool is_active = place.quotient < num_tokens && place.remainder < params.units_per_token.divisor;

  // Thread i shares the angles with numbers i, i + blockDim.x, ... What the first of them needs from memory comes
  // before all else, because the whole block waits for it.
  const uint32_t num_angles = num_tokens * pairs;
  Divided angle = {0, threadIdx.x};
  if (!has_one_token || threadIdx.x >= pairs) angle = params.pairs.divide(threadIdx.x);
  LoadedInteger position = {};
  uint64_t increment = 0;
  if (threadIdx.x < num_angles) {
    position = load_position(params, has_one_token ? unit_token : find_token(params, first_in_row + angle.quotient));
    if (kAngles == Angles::kComputed) increment = load_increment(params, angle.remainder);
  }

  const int which = (place.remainder >= params.tensor_begins[1]) + (place.remainder >= params.tensor_begins[2]);
  const RopeKernelTensor &tensor = params.tensor[which];
  const Divided head = tensor.units_per_head.divide(place.remainder - params.tensor_begins[which]);
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
    const auto offset_of = [&](const int64_t *stride) {
      int64_t offset = unit_token.token * stride[kToken] + head.quotient * stride[kHead];
      if (!params.has_one_batch) offset += unit_token.batch * stride[kBatch];
      return offset + channel * (V == 1 ? stride[kChannel] : static_cast<int64_t>(sizeof(T)));
    };
    const char *low_in = tensor.in + offset_of(tensor.in_stride);
    low = load_vector<Vector<T, V>>(low_in);
    if (is_rotary) {
      high = load_vector<Vector<T, V>>(low_in + bytes_to_high<T, V, IsInterleaved>(params, tensor.in_stride[kChannel]));
    }
    low_out = params.is_in_place[which] ? const_cast<char *>(low_in) : tensor.out + offset_of(tensor.out_stride);
  }

#pragma unroll 1
  for (uint32_t number = threadIdx.x; number < num_angles;) {
    if (kAngles == Angles::kTable) {
      share_table_angle(params, angle, number, first_in_row, finish_position(params, position), angles);
    } else {
      share_computed_angle(params, number, finish_position(params, position), increment, angles);
    }
    number += blockDim.x;
    if (number >= num_angles) break;
    angle = params.pairs.divide(number);
    position = load_position(params, find_token(params, first_in_row + angle.quotient));
    if (kAngles == Angles::kComputed) increment = load_increment(params, angle.remainder);
  }
  __syncthreads();

  if (!is_active) return;
  if (is_rotary && (kAngles == Angles::kComputed || angles.is_rotated[place.quotient] != 0)) {
    const uint32_t first_angle = place.quotient * pairs;
    float x[V], y[V];
    to_floats<T, V>(low, x);
    to_floats<T, V>(high, y);
    rotate_unit<V, IsInterleaved>(x, y, unit, pairs, angles.cos + first_angle, angles.sin + first_angle);
    low = from_floats<T, V>(x);
    high = from_floats<T, V>(y);
  } else if (params.is_in_place[which]) {
    return;
  }
  store_vector(low_out, low);
  if (is_rotary) {
    store_vector(low_out + bytes_to_high<T, V, IsInterleaved>(params, tensor.out_stride[kChannel]), high);
  }
}

template <typename T, int V>
const void *find_rope_kernel(bool is_interleaved, bool has_table) {
  constexpr Angles computed = Angles::kComputed, table = Angles::kTable;
  if (is_interleaved) {
    return has_table ? reinterpret_cast<const void *>(rope_kernel<T, V, true, table>)
                     : reinterpret_cast<const void *>(rope_kernel<T, V, true, computed>);
  }
  return has_table ? reinterpret_cast<const void *>(rope_kernel<T, V, false, table>)
                   : reinterpret_cast<const void *>(rope_kernel<T, V, false, computed>);
}

// The kernel for a vector width, or NULL for a width that T has none of.
template <typename T>
const void *find_rope_kernel(int vector_elements, bool is_interleaved, bool has_table) {
  constexpr int kSize = static_cast<int>(sizeof(T));
  switch (vector_elements) {
    case 1:
      return find_rope_kernel<T, 1>(is_interleaved, has_table);
    case 8 / kSize:
      return find_rope_kernel<T, 8 / kSize>(is_interleaved, has_table);
    case 16 / kSize:
      return find_rope_kernel<T, 16 / kSize>(is_interleaved, has_table);
    default:
      if constexpr (kSize == 2) {
        if (vector_elements == 2) return find_rope_kernel<T, 2>(is_interleaved, has_table);
      }
      return nullptr;
  }
}

}  // namespace rope
