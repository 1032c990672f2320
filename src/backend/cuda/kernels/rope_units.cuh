// rope_units.cuh - which part of a RoPE launch is a thread's, and at which position it stands
//
// At 16 bits an element RoPE is nearly as short of instructions and registers as of memory: nothing is divided but by a
// reciprocal, and what a thread can compute again it does not keep.
#pragma once

#include "backend/cuda/kernels/rope_params.hpp"
#include "backend/cuda/kernels/vector.cuh"
#include "core/math/rotation.hpp"
#include "plan/tuning.hpp"

namespace rope {

// Threads that a multiprocessor holds at least: 1024 on Turing, 1536 on all others. Data-centre GPUs from Ampere on hold
// 2048, but what is compiled for them is assembled for sm_86 and sm_120 too.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ == 750
constexpr int kHeldThreads = 1024;
#else
constexpr int kHeldThreads = 1536;
#endif

constexpr int min_blocks_per_multiprocessor(int resident_threads, int block_threads) {
  const int blocks = (resident_threads < kHeldThreads ? resident_threads : kHeldThreads) / block_threads;
  return blocks > 0 ? blocks : 1;
}

enum TokenState : uint32_t {
  kUnrotated,  // it only moves from input to output
  kRotated,
  kAbsent  // it belongs to no sequence and stays as it is
};

struct BatchToken {
  int64_t batch;
  int64_t token;
};

// A token of this row of the grid. The row begins at a batch, or, where tokens are the outer axis, at a token.
__device__ __forceinline__ BatchToken find_token(const RopeKernelParams &params, uint32_t in_row) {
  if (params.has_one_batch) return {0, blockIdx.y * params.tokens_per_grid_row + in_row};
  const DivmodResult result = params.inner.divmod(in_row);
  const int64_t outer = blockIdx.y * params.outer_per_grid_row + result.quotient;
  if (params.is_batch_fastest) return {result.remainder, outer};
  return {outer, result.remainder};
}

struct Unit {
  int tensor;
  uint32_t head;
  uint32_t number;  // in its head
  bool is_rotary;
};

__device__ __forceinline__ Unit find_unit(const RopeKernelParams &params, uint32_t unit_of_token) {
  const int which = (unit_of_token >= params.tensor_begins[1]) + (unit_of_token >= params.tensor_begins[2]);
  const DivmodResult head = params.tensor[which].units_per_head.divmod(unit_of_token - params.tensor_begins[which]);
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

// An integer as it comes from memory. Extending it to 64 bits would wait for it, so that is done later.
struct LoadedInteger {
  uint32_t low;
  uint32_t high;  // of a 64-bit integer
};

__device__ __forceinline__ LoadedInteger load_integer(const TokenIntegers &source, BatchToken at, int axis) {
  int64_t offset = at.batch * source.batch_stride + at.token * source.token_stride;
  if (axis != 0) offset += axis * source.axis_stride;
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
__device__ __forceinline__ LoadedInteger load_position(const RopePositionParams &params, BatchToken at, int axis = 0) {
  LoadedInteger position = as_loaded(static_cast<uint64_t>(at.token));
  if (params.has_positions) position = load_integer(params.positions, at, axis);
  if (params.has_start_positions) {
    const uint64_t index = extend(position, params.positions.is_64_bit || !params.has_positions);
    position =
        as_loaded(index + extend(load_integer(params.start_positions, at, axis), params.start_positions.is_64_bit));
  }
  return position;
}

__device__ __forceinline__ uint64_t finish_position(const RopePositionParams &params, LoadedInteger position) {
  return extend(position, !params.has_narrow_positions) + params.position_offset;
}

// Lanes read different increments: through the constant cache, where parameters come from, 32 of them would take turns.
template <typename Word>
__device__ __forceinline__ const Word *through_memory(const Word *parameter) {
  asm("" : "+l"(parameter));
  return parameter;
}

template <typename Params>
__device__ __forceinline__ CosSin<float> compute_angle(const Params &params, uint64_t position, uint64_t increment) {
  const CosSin<float> angle = cos_sin_of_phase<float>(phase_of(position, increment));
  return {multiply_rounded(angle.cos, params.cos_scale), multiply_rounded(angle.sin, params.sin_scale)};
}

// ---- Sequences ----

__device__ __forceinline__ int64_t load_wide(const char *data, bool is_64_bit, int64_t at) {
  if (is_64_bit) return reinterpret_cast<const int64_t *>(data)[at];
  return reinterpret_cast<const int32_t *>(data)[at];
}

__device__ __forceinline__ int64_t sequence_entry(const Sequences &sequences, int64_t index) {
  return load_wide(sequences.data, sequences.is_64_bit, index * sequences.stride);
}

// Whether a token belongs to a sequence; those before the first are faulty, those behind the last are padding.
__device__ __forceinline__ bool is_in_sequences(const Sequences &sequences, int64_t token) {
  return token >= sequence_entry(sequences, 0) && token < sequence_entry(sequences, sequences.count);
}

struct SequencePlace {
  int64_t sequence;
  uint64_t index;  // of the token, in its sequence
};

// The sequence of a token that is in one. Whatever the entries are, it is one of them.
__device__ __forceinline__ SequencePlace find_sequence(const Sequences &sequences, int64_t token) {
  int64_t low = 0, high = sequences.count;
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    const bool is_below = sequence_entry(sequences, middle) <= token;
    low = is_below ? middle : low;
    high = is_below ? high : middle;
  }
  return {low, static_cast<uint64_t>(token) - static_cast<uint64_t>(sequence_entry(sequences, low))};
}

// The same by the lanes of a whole warp, each of which looks at another sequence. In cu_seqlens that rise it is the same
// sequence. There are fewer than 2^31.
__device__ __forceinline__ SequencePlace find_sequence_by_warp(const Sequences &sequences, int64_t token) {
  constexpr int kLanes = 32;
  constexpr uint32_t kAllLanes = 0xffffffffu;
  const int lane = static_cast<int>(threadIdx.x % kLanes);
  int first = 0, count = static_cast<int>(sequences.count);
  int64_t entry;
  do {
    const int step = (count - 1) / kLanes + 1;
    const int64_t mine = static_cast<int64_t>(lane) * step;
    entry = mine < count ? sequence_entry(sequences, first + mine) : INT64_MAX;
    const uint32_t below = __ballot_sync(kAllLanes, entry <= token);
    const int found = below != 0 ? 31 - __clz(static_cast<int>(below)) : 0;
    entry = __shfl_sync(kAllLanes, entry, found);
    first += found * step;
    count = count - found * step < step ? count - found * step : step;
  } while (count > 1);
  return {first, static_cast<uint64_t>(token) - static_cast<uint64_t>(entry)};
}

__device__ __forceinline__ void count_fault(const FaultWords &fault, int64_t token) {
  if (fault.data == nullptr) return;
  using Word = unsigned long long;
  Word *count = reinterpret_cast<Word *>(fault.data), *lowest = count + fault.stride;
  atomicAdd(count, Word{1});
  const Word wanted = static_cast<Word>(token + 1);
  Word known = *reinterpret_cast<volatile Word *>(lowest);
  while (known == 0 || known > wanted) {
    const Word found = atomicCAS(lowest, known, wanted);
    if (found == known) return;
    known = found;
  }
}

// Counts the entries of cu_seqlens that break its rule, shared by all threads of the grid.
template <typename Params>
__device__ __forceinline__ void check_sequences(const Params &params) {
  if (params.fault.data == nullptr || !params.sequences.is_present) return;
  const uint32_t block_threads = blockDim.x * blockDim.y;
  const int64_t grid_threads = static_cast<int64_t>(gridDim.x) * gridDim.y * gridDim.z * block_threads;
  const int64_t block = (static_cast<int64_t>(blockIdx.z) * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
  const int64_t first = block * block_threads + threadIdx.y * blockDim.x + threadIdx.x;
  for (int64_t i = first; i <= params.sequences.count; i += grid_threads) {
    const int64_t entry = sequence_entry(params.sequences, i);
    const int64_t before = i == 0 ? 0 : sequence_entry(params.sequences, i - 1);
    if (entry >= before && entry <= params.num_tokens && (i != 0 || entry == 0)) continue;
    count_fault(params.fault, entry < 0 ? 0 : entry > params.num_tokens ? params.num_tokens : entry);
  }
}

// The position of a token on an axis; `index` counts in its batch or sequence.
__device__ __forceinline__ uint64_t position_on(const RopePositionParams &params, int axis, int64_t batch,
                                                int64_t token, uint64_t index) {
  const auto load = [&](const TokenIntegers &source) {
    const int64_t at = axis * source.axis_stride + batch * source.batch_stride + token * source.token_stride;
    return static_cast<uint64_t>(load_wide(source.data, source.is_64_bit, at));
  };
  uint64_t position = params.has_positions ? load(params.positions) : index;
  if (params.has_start_positions) position += load(params.start_positions);
  return position + params.position_offset;
}

}  // namespace rope
