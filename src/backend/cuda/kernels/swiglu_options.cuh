// SPDX-License-Identifier: Apache-2.0
// swiglu_options.cuh - the SwiGLU kernels, forward and backward, with every option of gating_options.hpp or experts
//
//   swiglu_options_kernel   thread               one element, numbered with the last axis fastest
//
//   swiglu_expert_kernel    warp                 parts of rows (swiglu_expert_parts.cuh)
//
// The first kernel has every option; threads of rows that do not exist return at once. The second kernel processes
// vectors.
//
// They move the tensors that swiglu.cuh moves, and read the biases; with experts only those of rows that exist.
#pragma once

#include "backend/cuda/kernels/kernel.hpp"
#include "backend/cuda/kernels/occupancy.cuh"
#include "backend/cuda/kernels/programmatic_launch.cuh"
#include "backend/cuda/kernels/row_scale.cuh"
#include "backend/cuda/kernels/swiglu_activation.cuh"
#include "backend/cuda/kernels/swiglu_elements.cuh"
#include "backend/cuda/kernels/swiglu_expert_parts.cuh"
#include "core/problem/integers.hpp"
#include "plan/tuning.hpp"

namespace rope {

template <typename T, bool IsBackward>
__global__ void __launch_bounds__(kSwigluThreads)
    swiglu_options_kernel(const __grid_constant__ SwigluOptionsParams params) {
  using Real = RealOf<T>;
  constexpr int kInputs = IsBackward ? 3 : 2, kOutputs = IsBackward ? 3 : 1;
  const int64_t block = static_cast<int64_t>(blockIdx.y) * gridDim.x + blockIdx.x;
  const int64_t number = block * blockDim.x + threadIdx.x;
  begin_dependent_launch();
  if (number >= params.num_vectors) return;
  const ElementIndex index = split_element(params, number);
  wait_for_previous_launch();
  if (!is_row_there(params, index)) return;
  const SwigluRow row = find_row(params, index);
  if (!row.is_there) return;
  Real row_scale = 1;
  if (params.row_scale != nullptr) {
    const int64_t offset = index.offset(params.row_scale_stride) + row.factor * params.lookup.factor_stride;
    row_scale = load_row_scale<T>(params.row_scale + offset, params.is_row_scale_f32);
  }
  Real value[kInputs][1], result[kOutputs][1];
#pragma unroll
  for (int i = 0; i < kInputs; ++i) value[i][0] = load_element<T>(params.in[i] + index.offset(params.in_stride[i]));
#pragma unroll
  for (int i = kGate; i <= kUp; ++i) {
    if (params.bias[i] == nullptr) continue;
    const int64_t offset = index.offset(params.bias_stride[i]) + row.expert * params.lookup.bias_expert_stride[i];
    add_bias_vector<T, 1>(params.bias[i] + offset, params.is_bias_f32[i], value[i]);
  }
  compute_with_options<SwigluFormula::kOptions, T, 1>(value, options_of<Real>(params), row_scale, true, result);
#pragma unroll
  for (int i = 0; i < kOutputs; ++i) {
    if (params.out[i] == nullptr) continue;
    store_element<T>(params.out[i] + index.offset(params.out_stride[i]), result[i][0]);
  }
}

// The number of blocks on a multiprocessor that the compiler leaves registers for; 0: any number.
constexpr int min_part_blocks(bool looks_up_rows, bool is_backward) {
  constexpr int kThreads = kSwigluThreads;
  const int blocks = is_backward ? 7 : kSwigluExpertBlocks;
  return looks_up_rows ? min_blocks_per_multiprocessor(blocks * kThreads, kThreads) : 0;
}

template <typename T, int V, bool IsBackward, typename Walk>
__global__ void __launch_bounds__(kSwigluThreads, min_part_blocks(Walk::kLooksUpRows, IsBackward))
    swiglu_expert_kernel(const __grid_constant__ SwigluExpertParams params) {
  constexpr int kInputs = IsBackward ? 3 : 2, kOutputs = IsBackward ? 3 : 1;
  begin_dependent_launch();
  wait_for_previous_launch();
  Walk walk(params);
  for (ExpertPart part; walk.next(&part);) {
    const char *in[kInputs];
    char *out[kOutputs];
#pragma unroll
    for (int i = 0; i < kInputs; ++i) in[i] = params.in[i] + part.offset<Walk>(params.in_stride[i]);
#pragma unroll
    for (int i = 0; i < kOutputs; ++i) out[i] = params.out[i] + part.offset<Walk>(params.out_stride[i]);
    const float row_scale = load_part_scale<T, Walk>(params, part);
#pragma unroll 1
    for (uint32_t vector = part.first + walk.lane(); vector < part.end; vector += 32) {
      const uint64_t offset = uint64_t{vector} * (V * sizeof(T));
      Vector<T, V> loaded[kInputs];
#pragma unroll
      for (int i = 0; i < kInputs; ++i) loaded[i] = load_vector<Vector<T, V>>(in[i] + offset);
      float value[kInputs][V], result[kOutputs][V];
#pragma unroll
      for (int i = 0; i < kInputs; ++i) to_floats<T, V>(loaded[i], value[i]);
      add_part_biases<T>(params, part, vector, value);
      compute_with_options<SwigluFormula::kBiases, T, V>(value, params.options, row_scale, params.row_scale != nullptr,
                                                         result);
#pragma unroll
      for (int i = 0; i < kOutputs; ++i) {
        if (params.out[i] != nullptr) store_vector(out[i] + offset, from_floats<T, V>(result[i]));
      }
    }
    __syncwarp();
  }
}

// Returns the kernel of a variant with options or experts; NULL if there is none.
template <typename T>
Kernel find_swiglu_options_kernel(int vector_elements, SwigluVariant variant) {
  if (variant.is_alternating) return {};
  if (is_of_parts(variant.work)) {
    if constexpr (sizeof(T) < sizeof(double)) {
      constexpr int kWide = 16 / static_cast<int>(sizeof(T));
      if (vector_elements != kWide || variant.formula != SwigluFormula::kBiases) return {};
      switch (variant.work) {
        case kSwigluExperts:
          return kernel_of(swiglu_expert_kernel<T, kWide, false, ExpertWalk>);
        case kSwigluExpertGradients:
          return kernel_of(swiglu_expert_kernel<T, kWide, true, ExpertWalk>);
        case kSwigluLookup:
          return kernel_of(swiglu_expert_kernel<T, kWide, false, RowWalk>);
        default:
          return kernel_of(swiglu_expert_kernel<T, kWide, true, RowWalk>);
      }
    }
    return {};
  }
  if (vector_elements != 1 || variant.formula != SwigluFormula::kOptions) return {};
  return variant.work != kSwigluForward ? kernel_of(swiglu_options_kernel<T, true>)
                                        : kernel_of(swiglu_options_kernel<T, false>);
}

}  // namespace rope
