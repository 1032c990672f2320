// rope_units.cuh - which part of a RoPE launch is a thread's, and at which position it stands
//
// Threads are numbered through all units of a row of the grid (see rope_plan.hpp), so a block may end one token and begin
// the next. Nothing is divided but by a reciprocal, and what a thread can compute again it does not keep: at 16 bits an
// element RoPE is nearly as short of instructions and registers as of memory.
#pragma once

#include "backend/cuda/kernels/rope_params.hpp"
#include "backend/cuda/kernels/vector.cuh"
#include "core/rotation.hpp"
#include "plan/tuning.hpp"

namespace rope {

// Threads that a multiprocessor holds: 2048 on the data-centre GPUs from Ampere on, fewer on the others.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ == 750
constexpr int kHeldThreads = 1024;
#elif defined(__CUDA_ARCH__) && ((__CUDA_ARCH__ > 800 && __CUDA_ARCH__ < 900) || __CUDA_ARCH__ >= 1200)
constexpr int kHeldThreads = 1536;
#else
constexpr int kHeldThreads = 2048;
#endif

constexpr int min_blocks_per_multiprocessor(int resident_threads, int block_threads) {
  const int blocks = (resident_threads < kHeldThreads ? resident_threads : kHeldThreads) / block_threads;
  return blocks > 0 ? blocks : 1;
}

__device__ __forceinline__ uint32_t units_in_grid_row(const RopeKernelParams &params) {
  if (gridDim.y == 1) return params.units_per_grid_row;
  const int64_t tokens_left = params.num_tokens - blockIdx.y * params.tokens_per_grid_row;
  if (tokens_left >= params.tokens_per_grid_row) return params.units_per_grid_row;
  return static_cast<uint32_t>(tokens_left) * params.units_per_token.divisor;
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

struct Unit {
  int tensor;
  uint32_t head;
  uint32_t number;  // in its head
  bool is_rotary;
};

__device__ __forceinline__ Unit find_unit(const RopeKernelParams &params, uint32_t unit_of_token) {
  const int which = (unit_of_token >= params.tensor_begins[1]) + (unit_of_token >= params.tensor_begins[2]);
  const Divided head = params.tensor[which].units_per_head.divide(unit_of_token - params.tensor_begins[which]);
  return {which, head.quotient, head.remainder, head.remainder < params.rotary_units_per_head};
}

// First channel of a copy unit. They count vectors below the window, then those above it.
template <int V>
__device__ __forceinline__ int copied_channel(const RopeKernelParams &params, const Unit &unit) {
  const int channel = static_cast<int>(unit.number - params.rotary_units_per_head) * V;
  return channel >= params.rotary_offset ? channel + params.rotary_dim : channel;
}

// Bytes from the beginning of a tensor to a head's channel.
template <typename T, int V>
__device__ __forceinline__ int64_t offset_of_channel(const RopeKernelParams &params, uint32_t head, BatchToken at,
                                                     int channel, const int64_t *stride) {
  int64_t offset = at.token * stride[kToken] + head * stride[kHead];
  if (!params.has_one_batch) offset += at.batch * stride[kBatch];
  return offset + channel * (V == 1 ? stride[kChannel] : static_cast<int64_t>(sizeof(T)));
}

// Bytes from the beginning of a tensor to a unit's first vector.
template <typename T, int V, bool IsInterleaved>
__device__ __forceinline__ int64_t offset_of_unit(const RopeKernelParams &params, const Unit &unit, BatchToken at,
                                                  const int64_t *stride) {
  const int rotated = params.rotary_offset + static_cast<int>(unit.number) * (V == 1 && IsInterleaved ? 2 : V);
  const int channel = unit.is_rotary ? rotated : copied_channel<V>(params, unit);
  return offset_of_channel<T, V>(params, unit.head, at, channel, stride);
}

// Bytes from the first vector of a rotary unit to its second.
template <typename T, int V, bool IsInterleaved>
__device__ __forceinline__ int64_t bytes_to_high(const RopeKernelParams &params, int64_t channel_stride) {
  const int channels = V == 1 && IsInterleaved ? 1 : params.rotary_dim / 2;
  return V == 1 ? channels * channel_stride : channels * static_cast<int64_t>(sizeof(T));
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

// Lanes read different increments: through the constant cache, where parameters come from, 32 of them would take turns.
template <typename Word>
__device__ __forceinline__ const Word *through_memory(const Word *parameter) {
  asm("" : "+l"(parameter));
  return parameter;
}

__device__ __forceinline__ CosSin<float> compute_angle(const RopeKernelParams &params, uint64_t position,
                                                       uint64_t increment) {
  const CosSin<float> angle = cos_sin_of_phase<float>(phase_of(position, increment));
  return {multiply_rounded(angle.cos, params.cos_scale), multiply_rounded(angle.sin, params.sin_scale)};
}

}  // namespace rope
