// SPDX-License-Identifier: Apache-2.0
// swiglu_codes.cuh - the SwiGLU kernels, forward and backward, with every option, of an output of codes of 8 or 4 bits
//
//   block     unit blockIdx.y * gridDim.x + blockIdx.x: a group of elements with one written scale, or without such
//             scales unit_elements consecutive elements
//   thread    element threadIdx.x, threadIdx.x + blockDim.x, … of the unit; with codes of 4 bits pairs of elements
//
// With a written scale a unit's values are computed twice, once for the largest magnitude and once for the codes. The
// second time the inputs are in the caches.
//
// Reads all inputs of an element and writes a code; also moves the further tensors of swiglu_options_kernel, and writes
// a scale for each group. With tiles the block of the last group of a row, or of the last row, sets the padding beside
// it to zero.
#pragma once

#include "backend/cuda/kernels/codes.cuh"
#include "backend/cuda/kernels/programmatic_launch.cuh"
#include "backend/cuda/kernels/row_scale.cuh"
#include "backend/cuda/kernels/swiglu_activation.cuh"
#include "backend/cuda/kernels/swiglu_code_vector.cuh"
#include "backend/cuda/kernels/swiglu_elements.cuh"
#include "plan/tuning.hpp"

namespace rope {

// Looks up the rows of a thread's elements. Consecutive calls for elements of one row look it up once.
class RowFinder {
 public:
  __device__ __forceinline__ explicit RowFinder(const SwigluCodesParams &params) : params_(params) {}

  // Returns the row of an element. is_there is false if any of num_rows, expert_rows, expert_offsets and row_index
  // excludes it.
  __device__ __forceinline__ const SwigluRow &row_of(const ElementIndex &index) {
    if (!params_.lookup.rows.is_present()) {
      row_.is_there = is_row_there(params_, index);
      return row_;
    }
    const int64_t number = index.offset(params_.row_index_stride);
    if (number == number_) return row_;
    number_ = number;
    row_ = find_row(params_, index);
    row_.is_there = row_.is_there && is_row_there(params_, index);
    return row_;
  }

 private:
  const SwigluCodesParams &params_;
  int64_t number_ = -1;
  SwigluRow row_ = {true, 0, 0};
};

// Computes the value of an element. Its row exists.
template <typename T, bool IsBackward>
__device__ __forceinline__ float code_value(const SwigluCodesParams &params, const ElementIndex &index,
                                            const SwigluRow &row) {
  float row_scale = 1;
  if (params.row_scale != nullptr) {
    const int64_t offset = index.offset(params.row_scale_stride) + row.factor * params.lookup.factor_stride;
    row_scale = load_row_scale<T>(params.row_scale + offset, params.is_row_scale_f32);
  }
  float value[IsBackward ? 3 : 2][1], result[IsBackward ? 3 : 1][1];
#pragma unroll
  for (int i = kGate; i <= kUp; ++i) {
    value[i][0] = load_element<T>(params.in[i] + index.offset(params.in_stride[i]));
    if (params.bias[i] == nullptr) continue;
    const int64_t offset = index.offset(params.bias_stride[i]) + row.expert * params.lookup.bias_expert_stride[i];
    add_bias_vector<T, 1>(params.bias[i] + offset, params.is_bias_f32[i], value[i]);
  }
  if constexpr (IsBackward) {
    value[kGradOut][0] = load_element<T>(params.in[kGradOut] + index.offset(params.in_stride[kGradOut]));
  }
  compute_by_formula<SwigluFormula::kOptions, T, 1>(params.formula, value, params.options.form, row_scale,
                                                    params.row_scale != nullptr, result);
  const float number = IsBackward && params.output == kGradUp ? result[IsBackward ? 1 : 0][0] : result[0][0];
  return params.codes.rounds_first ? to_float(round_to<T>(number)) : number;
}

// Returns the static or global scale of a row; 1 if there is none.
__device__ __forceinline__ float given_scale(const SwigluCodesParams &params, const ElementIndex &index,
                                             const SwigluRow &row) {
  if (params.codes.scale == nullptr) return 1;
  return params.codes.given_scale(params.expert_rows == nullptr ? row.expert
                                                                : index.offset(params.expert_index_stride));
}

template <typename T, bool IsBackward>
__global__ void __launch_bounds__(kSwigluThreads)
    swiglu_codes_kernel(const __grid_constant__ SwigluCodesParams params) {
  const SwigluCodes &codes = params.codes;
  const int64_t unit = static_cast<int64_t>(blockIdx.y) * gridDim.x + blockIdx.x;
  const int64_t begin = unit * params.unit_elements;
  begin_dependent_launch();
  if (begin >= params.num_elements) return;
  const int64_t left = params.num_elements - begin;
  const int64_t end = begin + (params.unit_elements < left ? params.unit_elements : left);
  const ElementIndex first = split_element(params, begin);
  wait_for_previous_launch();
  const bool has_scales = codes.scales.is_present(), has_pairs = codes.has_pairs();
  RowFinder rows(params);
  const int64_t group = has_scales ? unit % codes.scales.groups : 0;
  const int64_t scale_offset = first.offset(params.scales_stride);
  const int64_t scale_row = codes.has_tiles ? first.offset(params.scale_row_stride) : 0;
  if (codes.has_padding()) codes.clear_padding(scale_offset, scale_row, group, 1 + threadIdx.x, kSwigluThreads);
  // A group of channels lies within one row, so the whole block returns together.
  if (has_scales && !codes.has_row_groups && !rows.row_of(first).is_there) return;
  float factor = 1;
  if (has_scales || codes.amax != nullptr) {
    uint32_t magnitude = 0;
    bool has_rows = false;
    for (int64_t number = begin + threadIdx.x; number < end; number += kSwigluThreads) {
      const ElementIndex index = split_element(params, number);
      const SwigluRow &row = rows.row_of(index);
      if (!row.is_there) continue;
      has_rows = true;
      const uint32_t of_value = bits_of(code_value<T, IsBackward>(params, index, row)) & 0x7fffffffu;
      magnitude = of_value > magnitude ? of_value : magnitude;
    }
    magnitude = max_over_block<kSwigluThreads>(magnitude);
    if (codes.has_row_groups && !__syncthreads_or(has_rows)) return;
    if (threadIdx.x == 0 && codes.amax != nullptr) {
      raise_magnitude(reinterpret_cast<uint32_t *>(codes.amax), magnitude);
    }
    if (has_scales) {
      const GroupScale scale = codes.scale_of(magnitude, given_scale(params, first, rows.row_of(first)));
      factor = scale.factor;
      if (threadIdx.x == 0) codes.store_scale(scale_offset, scale_row, group, scale.bits);
    }
  }
  // A pair has one row, and so one scale.
  const int64_t step = has_pairs ? 2 : 1;
  for (int64_t number = begin + threadIdx.x * step; number < end; number += kSwigluThreads * step) {
    const ElementIndex index = split_element(params, number);
    const SwigluRow &row = rows.row_of(index);
    if (!row.is_there) continue;
    if (!has_scales) factor = code_factor(given_scale(params, index, row), codes.scale_multiplies);
    const float value = multiply_rounded(code_value<T, IsBackward>(params, index, row), factor);
    const int64_t offset = index.offset(params.out_stride[params.output]);
    uint8_t *const out = reinterpret_cast<uint8_t *>(params.out[params.output]);
    if (has_pairs) {
      const float second =
          multiply_rounded(code_value<T, IsBackward>(params, split_element(params, number + 1), row), factor);
      const uint32_t low = round_to<Float4E2M1>(value).bits, high = round_to<Float4E2M1>(second).bits;
      out[offset / 2] = static_cast<uint8_t>(low | high << 4);
    } else {
      out[offset] =
          codes.dtype == ROPE_DTYPE_F8_E5M2 ? round_to<Float8E5M2>(value).bits : round_to<Float8E4M3>(value).bits;
    }
  }
}

template <typename T>
Kernel find_swiglu_codes_kernel(int vector_elements, SwigluVariant variant) {
  if (variant.is_alternating || vector_elements != 1 || variant.formula != SwigluFormula::kOptions) return {};
  return variant.work == kSwigluCodes ? kernel_of(swiglu_codes_kernel<T, false>)
                                      : kernel_of(swiglu_codes_kernel<T, true>);
}

}  // namespace rope
