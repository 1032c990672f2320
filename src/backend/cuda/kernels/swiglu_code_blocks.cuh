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
  static constexpr uint32_t kOwned = 8 / kRowLanes;                // columns that a thread makes the scales of

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

__device__ __forceinline__ void store_block_scale(const SwigluCodes &codes, int64_t offset, uint32_t row,
                                                  uint32_t group, uint32_t bits) {
  codes.store_scale(offset, row, group, bits);
  if (codes.has_padding()) codes.clear_padding(offset, row, group, 1, 1);
}

__device__ __forceinline__ void store_block_codes(const SwigluCodeBlockOutput &to, uint32_t row, uint32_t column,
                                                  const float (&value)[8]) {
  char *const address = to.out + row * to.row_stride + column;
  if (to.codes.dtype == ROPE_DTYPE_F8_E5M2) {
    store_codes<Float8E5M2>(address, 1, value);
  } else {
    store_codes<Float8E4M3>(address, 1, value);
  }
}

// Writes the codes of a vector of a row, and the scale of its group. All lanes of the warp take part.
__device__ __forceinline__ void write_by_row(const SwigluCodeBlockOutput &to, uint32_t row, uint32_t column,
                                             bool exists, const float (&value)[8]) {
  float factor = 1;
  if (!to.codes.scales.is_present()) {
    if (to.codes.scale != nullptr) {
      factor = code_factor(*reinterpret_cast<const float *>(to.codes.scale), to.codes.scale_multiplies);
    }
  } else {
    float largest = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) largest = max_magnitude(largest, value[i]);
    const uint32_t magnitude = max_with_lane(max_with_lane(exists ? bits_of(largest) : 0, 1), 2);
    const GroupScale scale = to.codes.scale_of(magnitude, 1);
    factor = scale.factor;
    if (exists && column % 32 == 0) {
      store_block_scale(to.codes, row * to.codes.scales_stride[0], row, column / 32, scale.bits);
    }
  }
  if (!exists) return;
  float scaled[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) scaled[i] = multiply_rounded(value[i], factor);
  store_block_codes(to, row, column, scaled);
}

// Writes the scales of columns, from the largest magnitudes in each thread's rows, and returns the factors of the
// thread's columns. All lanes of the warp take part.
template <typename Lanes>
__device__ __forceinline__ void scale_columns(const SwigluCodeBlockOutput &to, const Lanes &lanes,
                                              uint32_t (&magnitude)[8], float (&factor)[8]) {
  // After each step a lane has half as many columns: the upper ones if its row lane has the step's bit.
#pragma unroll
  for (uint32_t step = Lanes::kRowLanes / 2, held = 4; step > 0; step /= 2, held /= 2) {
    const bool has_upper = (lanes.row_lane & step) != 0;
#pragma unroll
    for (uint32_t i = 0; i < held; ++i) {
      const uint32_t kept = has_upper ? magnitude[i + held] : magnitude[i];
      const uint32_t given = has_upper ? magnitude[i] : magnitude[i + held];
      const uint32_t other = __shfl_xor_sync(0xffffffffu, given, step * Lanes::kColumnLanes);
      magnitude[i] = other > kept ? other : kept;
    }
  }
  float owned[Lanes::kOwned];
#pragma unroll
  for (uint32_t i = 0; i < Lanes::kOwned; ++i) {
    const GroupScale scale = to.codes.scale_of(magnitude[i], 1);
    owned[i] = scale.factor;
    const uint32_t column = lanes.column + lanes.row_lane * Lanes::kOwned + i;
    if (lanes.is_inside) {
      store_block_scale(to.codes, column * to.codes.scales_stride[1], column, lanes.group, scale.bits);
    }
  }
#pragma unroll
  for (uint32_t i = 0; i < 8; ++i) {
    const uint32_t owner = i / Lanes::kOwned * Lanes::kColumnLanes + lanes.column_lane;
    factor[i] = __shfl_sync(0xffffffffu, owned[i % Lanes::kOwned], owner);
  }
}

// Writes one output by row, by column or both, from the values of a thread. All lanes of the warp take part.
template <typename Lanes>
__device__ __forceinline__ void write_output(const SwigluCodeBlockParams &params, const SwigluCodeBlockOutput (&to)[2],
                                             const Lanes &lanes, const float (&value)[Lanes::kRows][8]) {
  const SwigluCodeBlockOutput &by_row = to[0], &by_column = to[1];
  if (by_row.out != nullptr) {
#pragma unroll
    for (uint32_t i = 0; i < Lanes::kRows; ++i) {
      write_by_row(by_row, lanes.row_of(i), lanes.column, lanes.has_row(params, i), value[i]);
    }
  }
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
  float factor[8];
  scale_columns(by_column, lanes, magnitude, factor);
#pragma unroll
  for (uint32_t i = 0; i < Lanes::kRows; ++i) {
    if (!lanes.has_row(params, i)) continue;
    float scaled[8];
#pragma unroll
    for (int j = 0; j < 8; ++j) scaled[j] = multiply_rounded(value[i][j], factor[j]);
    store_block_codes(by_column, lanes.row_of(i), lanes.column, scaled);
  }
}

template <typename T, bool IsBackward, bool IsPlain>
__global__ void __launch_bounds__(kSwigluBlockThreads, kSwigluBlockResidentThreads / kSwigluBlockThreads)
    swiglu_code_block_kernel(const __grid_constant__ SwigluCodeBlockParams params) {
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
}

template <typename T>
const void *find_swiglu_code_block_kernel(SwigluVariant variant) {
  const bool is_plain = variant.formula == SwigluFormula::kPlain;
  if (variant.work == kSwigluCodeBlocks) {
    return is_plain ? reinterpret_cast<const void *>(swiglu_code_block_kernel<T, false, true>)
                    : reinterpret_cast<const void *>(swiglu_code_block_kernel<T, false, false>);
  }
  return is_plain ? reinterpret_cast<const void *>(swiglu_code_block_kernel<T, true, true>)
                  : reinterpret_cast<const void *>(swiglu_code_block_kernel<T, true, false>);
}

}  // namespace rope
