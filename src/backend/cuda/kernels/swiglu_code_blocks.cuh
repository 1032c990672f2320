// SPDX-License-Identifier: Apache-2.0
// swiglu_code_blocks.cuh - the SwiGLU kernel of matrices of 16 bits with outputs of codes by row, by column or both
//
//   warp     32 rows, and columns in vectors of 8; kColumnLanes threads are side by side, kRowLanes below each other:
//
//            vector 0     vector 1     …   vector kColumnLanes-1
//   row 0    lane 0       lane 1       …   lane kColumnLanes-1
//   row 1    lane kColumnLanes         …   lane 2*kColumnLanes-1
//   …
//   row kRowLanes: lane 0 again, and so on for each kRowLanes rows
//
// By row, a group of 32 channels has 4 neighbouring lanes, which find its largest magnitude by shuffles. By column, a
// lane finds the largest magnitudes of its 8 columns in its rows. The lanes of a vector then halve their columns at
// each exchange, so that each makes the scales of 8 / kRowLanes columns once; further shuffles give all lanes all
// factors.
//
// Reads each input once, and writes a code for each element of each output and a scale for each group. In backward a
// thread has half as many values of each output, so that the values of two outputs stay in registers.
#pragma once

#include "backend/cuda/kernels/codes.cuh"
#include "backend/cuda/kernels/kernel.hpp"
#include "backend/cuda/kernels/programmatic_launch.cuh"
#include "backend/cuda/kernels/swiglu_code_vector.cuh"
#include "backend/cuda/kernels/swiglu_vector.cuh"
#include "backend/cuda/kernels/vector.cuh"
#include "plan/tuning.hpp"

namespace rope {

// The vectors of a thread and where they lie.
template <bool IsBackward>
struct BlockLanes {
  static constexpr uint32_t kColumnLanes = swiglu_block_columns(IsBackward) / 8;
  static constexpr uint32_t kRowLanes = 32 / kColumnLanes;
  static constexpr uint32_t kRows = kSwigluBlockRows / kRowLanes;  // rows of a thread
  static constexpr uint32_t kGroupLanes = 4;                       // of 32 channels

  uint32_t row_lane, column_lane;
  uint32_t group;   // group of rows
  uint32_t row;     // the first of the thread's rows, which are kRowLanes apart
  uint32_t column;  // the first of the thread's columns
  bool is_inside;

  __device__ __forceinline__ explicit BlockLanes(const SwigluCodeBlockParams &params) {
    const uint32_t lane = threadIdx.x % 32;
    const uint64_t warp =
        (uint64_t{blockIdx.y} * gridDim.x + blockIdx.x) * (kSwigluBlockThreads / 32) + threadIdx.x / 32;
    const bool is_warp_inside = warp < params.num_warps;
    const DivmodResult at = params.warps_per_row.divmod(is_warp_inside ? static_cast<uint32_t>(warp) : 0);
    row_lane = lane / kColumnLanes;
    column_lane = lane % kColumnLanes;
    group = at.quotient;
    row = group * kSwigluBlockRows + row_lane;
    column = at.remainder * (kColumnLanes * 8) + column_lane * 8;
    is_inside = is_warp_inside && column < params.columns;
  }

  __device__ __forceinline__ uint32_t row_of(uint32_t i) const { return row + i * kRowLanes; }
  __device__ __forceinline__ bool has_row(const SwigluCodeBlockParams &params, uint32_t i) const {
    return is_inside && row_of(i) < params.rows;
  }
};

// Kernels of GPUs without an instruction that makes codes of 8 bits would be three times as long. They have none: plans
// choose the kernel from compute capability 9.0 on (kMinSwigluBlockCapability), and other GPUs take a launch for each
// output.
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
#define ROPE_HAS_CODE_BLOCKS
#endif

// The magnitudes of kCount groups in each of kLanes lanes, which are `stride` lanes apart, become the largest ones.
// After each exchange a lane has half as many groups: the upper ones if its number has the step's bit. In the end lane
// number n has the groups n * kCount / kLanes and, from there on, kCount / kLanes - 1 more. All lanes of the warp take
// part.
template <uint32_t kLanes, uint32_t kCount>
__device__ __forceinline__ void share_magnitudes(uint32_t lane, uint32_t stride, uint32_t (&magnitude)[kCount]) {
#pragma unroll
  for (uint32_t step = kLanes / 2, held = kCount / 2; step > 0; step /= 2, held /= 2) {
    const bool has_upper = (lane & step) != 0;
#pragma unroll
    for (uint32_t i = 0; i < held; ++i) {
      const uint32_t kept = has_upper ? magnitude[i + held] : magnitude[i];
      const uint32_t given = has_upper ? magnitude[i] : magnitude[i + held];
      const uint32_t other = __shfl_xor_sync(0xffffffffu, given, step * stride);
      magnitude[i] = other > kept ? other : kept;
    }
  }
}

// The scales of those groups. store(i, bits) receives that of group number i from the lane that makes it; all lanes
// receive all factors.
template <uint32_t kLanes, uint32_t kCount, typename Store>
__device__ __forceinline__ void scale_groups(const SwigluCodes &codes, uint32_t lane, uint32_t stride,
                                             uint32_t (&magnitude)[kCount], const Store &store,
                                             float (&factor)[kCount]) {
  constexpr uint32_t kOwned = kCount / kLanes;
  share_magnitudes<kLanes>(lane, stride, magnitude);
  float owned[kOwned];
#pragma unroll
  for (uint32_t i = 0; i < kOwned; ++i) {
    const GroupScale scale = written_scale(codes.scales, codes.dtype == ROPE_DTYPE_F8_E5M2, magnitude[i]);
    owned[i] = scale.factor;
    store(lane * kOwned + i, scale.bits);
  }
  const uint32_t first_lane = threadIdx.x % 32 - lane * stride;
#pragma unroll
  for (uint32_t i = 0; i < kCount; ++i) {
    factor[i] = __shfl_sync(0xffffffffu, owned[i % kOwned], first_lane + i / kOwned * stride);
  }
}

// The codes of the thread's values, each times scale(row, column of the vector).
template <typename Float8, typename Lanes, typename Scale>
__device__ __forceinline__ void store_block_as(const SwigluCodeBlockParams &params, const SwigluCodeBlockOutput &to,
                                               const Lanes &lanes, const float (&value)[Lanes::kRows][8],
                                               const Scale &scale) {
#pragma unroll
  for (uint32_t i = 0; i < Lanes::kRows; ++i) {
    if (!lanes.has_row(params, i)) continue;
    char *const address = to.out + lanes.row_of(i) * to.row_stride + lanes.column;
    store_codes<Float8>(
        address, [&](uint32_t column) { return scale(i, column); }, value[i]);
  }
}

template <typename Lanes, typename Scale>
__device__ __forceinline__ void store_block(const SwigluCodeBlockParams &params, const SwigluCodeBlockOutput &to,
                                            const Lanes &lanes, const float (&value)[Lanes::kRows][8],
                                            const Scale &scale) {
  if (to.codes.dtype == ROPE_DTYPE_F8_E5M2) {
    store_block_as<Float8E5M2, Lanes>(params, to, lanes, value, scale);
  } else {
    store_block_as<Float8E4M3, Lanes>(params, to, lanes, value, scale);
  }
}

// All lanes of the warp take part.
template <typename Lanes>
__device__ __forceinline__ void write_by_row(const SwigluCodeBlockParams &params, const SwigluCodeBlockOutput &to,
                                             const Lanes &lanes, const float (&value)[Lanes::kRows][8]) {
  const SwigluCodes &codes = to.codes;
  float factor[Lanes::kRows];
  if (codes.scales.is_present()) {
    uint32_t magnitude[Lanes::kRows];
#pragma unroll
    for (uint32_t i = 0; i < Lanes::kRows; ++i) {
      magnitude[i] = bits_of(larger_magnitude_of(0, value[i]));
    }
    const auto store = [&](uint32_t i, uint32_t bits) {
      const uint32_t row = lanes.row_of(i);
      if (lanes.has_row(params, i)) codes.store_scale(row * codes.scales_stride[0], row, lanes.column / 32, bits);
    };
    scale_groups<Lanes::kGroupLanes>(codes, lanes.column_lane % Lanes::kGroupLanes, 1, magnitude, store, factor);
  } else {
    const float given = codes.scale == nullptr ? 1 : *reinterpret_cast<const float *>(codes.scale);
#pragma unroll
    for (uint32_t i = 0; i < Lanes::kRows; ++i) factor[i] = code_factor(given, codes.scale_multiplies);
  }
  store_block<Lanes>(params, to, lanes, value, [&](uint32_t row, uint32_t) { return factor[row]; });
}

// One output, with the thread's values. All lanes of the warp take part.
template <typename Lanes>
__device__ __forceinline__ void write_output(const SwigluCodeBlockParams &params, const SwigluCodeBlockOutput (&to)[2],
                                             const Lanes &lanes, const float (&value)[Lanes::kRows][8]) {
  const SwigluCodeBlockOutput &by_row = to[0], &by_column = to[1];
  if (by_row.out != nullptr) write_by_row(params, by_row, lanes, value);
  if (by_column.out == nullptr && by_row.codes.amax == nullptr) return;
  uint32_t magnitude[8], amax = 0;
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    float largest = 0;
#pragma unroll
    for (uint32_t i = 0; i < Lanes::kRows; ++i) {
      if (lanes.has_row(params, i)) largest = max_magnitude(largest, value[i][j]);
    }
    magnitude[j] = bits_of(largest);
    amax = magnitude[j] > amax ? magnitude[j] : amax;
  }
  if (by_row.codes.amax != nullptr || by_column.codes.amax != nullptr) {
    amax = max_over_lanes(amax, 5);
    if (threadIdx.x % 32 == 0) {
#pragma unroll
      for (int way = 0; way < 2; ++way) {
        if (to[way].codes.amax != nullptr) raise_magnitude(reinterpret_cast<uint32_t *>(to[way].codes.amax), amax);
      }
    }
  }
  if (by_column.out == nullptr) return;
  const SwigluCodes &codes = by_column.codes;
  float factor[8];
  const auto store = [&](uint32_t i, uint32_t bits) {
    const uint32_t column = lanes.column + i;
    if (lanes.is_inside) codes.store_scale(column * codes.scales_stride[1], column, lanes.group, bits);
  };
  scale_groups<Lanes::kRowLanes>(codes, lanes.row_lane, Lanes::kColumnLanes, magnitude, store, factor);
  store_block<Lanes>(params, by_column, lanes, value, [&](uint32_t, uint32_t column) { return factor[column]; });
}

// The padding of scales in tiles beside the groups of the thread.
template <typename Lanes>
__device__ __forceinline__ void clear_block_padding(const SwigluCodeBlockParams &params, const Lanes &lanes) {
#pragma unroll 1
  for (int number = 0; number < 4; ++number) {
    const SwigluCodeBlockOutput &to = params.to[number / 2][number % 2];
    const SwigluCodes &codes = to.codes;
    if (to.out == nullptr || !codes.has_padding()) continue;
    const bool is_by_column = number % 2 != 0;
    if (is_by_column ? lanes.row_lane != 0 : lanes.column % 32 != 0) continue;
    const uint32_t count = is_by_column ? 8 : Lanes::kRows;
#pragma unroll 1
    for (uint32_t i = 0; i < count; ++i) {
      if (!(is_by_column ? lanes.is_inside : lanes.has_row(params, i))) continue;
      const uint32_t row = is_by_column ? lanes.column + i : lanes.row_of(i);
      const uint32_t group = is_by_column ? lanes.group : lanes.column / 32;
      codes.clear_padding(row * codes.scales_stride[is_by_column], row, group, 1, 1);
    }
  }
}

template <typename T, bool IsBackward, bool IsPlain>
__global__ void __launch_bounds__(kSwigluBlockThreads, swiglu_block_resident_threads(IsBackward) / kSwigluBlockThreads)
    swiglu_code_block_kernel(const __grid_constant__ SwigluCodeBlockParams params) {
#if defined(ROPE_HAS_CODE_BLOCKS)
  static_assert(sizeof(T) == 2, "");
  using Lanes = BlockLanes<IsBackward>;
  constexpr int kInputs = IsBackward ? 3 : 2, kOutputs = IsBackward ? 2 : 1;
  const Lanes lanes(params);
  wait_for_previous_launch();
  Vector<T, 8> in[Lanes::kRows][kInputs] = {};
#pragma unroll
  for (uint32_t i = 0; i < Lanes::kRows; ++i) {
    if (!lanes.has_row(params, i)) continue;
#pragma unroll
    for (int input = 0; input < kInputs; ++input) {
      const char *const row = params.in[input] + lanes.row_of(i) * params.in_row_stride[input];
      in[i][input] = load_vector<Vector<T, 8>>(row + uint64_t{lanes.column} * 2);
    }
  }
  begin_dependent_launch();
  float value[kOutputs][Lanes::kRows][8];
#pragma unroll
  for (uint32_t i = 0; i < Lanes::kRows; ++i) {
    float number[kInputs][8], result[kOutputs][8];
#pragma unroll
    for (int input = 0; input < kInputs; ++input) to_floats<T, 8>(in[i][input], number[input]);
    compute_vector<IsPlain>(number, params.form, 1.0f, false, result);
#pragma unroll
    for (int output = 0; output < kOutputs; ++output) {
      if (params.rounds_first) to_floats<T, 8>(from_floats<T, 8>(result[output]), result[output]);
#pragma unroll
      for (int j = 0; j < 8; ++j) value[output][i][j] = result[output][j];
    }
  }
#pragma unroll
  for (int output = 0; output < kOutputs; ++output) write_output(params, params.to[output], lanes, value[output]);
  clear_block_padding(params, lanes);
#else
  __trap();
#endif
}

template <typename T>
Kernel find_swiglu_code_blocks_kernel(int vector_elements, SwigluVariant variant) {
  if (vector_elements != 8 || variant.is_alternating || variant.formula > SwigluFormula::kForm) return {};
  return variant.work == kSwigluCodeBlocks
             ? pick_by_form(variant, swiglu_code_block_kernel<T, false, true>,
                            swiglu_code_block_kernel<T, false, false>)
             : pick_by_form(variant, swiglu_code_block_kernel<T, true, true>, swiglu_code_block_kernel<T, true, false>);
}

}  // namespace rope
