// SPDX-License-Identifier: Apache-2.0
// swiglu_expert_codes.cuh - the SwiGLU kernel of rows of experts, or rows with biases or factors, whose out has codes
//
//   warp     parts of rows (swiglu_expert_parts.cuh), 32 vectors of 8 elements at a time
//   lane     one vector; a group with a written scale has 2^lanes_log2 neighbouring lanes, which find its largest
//            magnitude by shuffles
//
// Moves what swiglu_expert_kernel moves, but codes instead of words, and a scale for each group of at most 256
// channels. Rows that do not exist are neither read nor written, except that the kernel clears the padding of scales in
// tiles.
#pragma once

#include "backend/cuda/kernels/codes.cuh"
#include "backend/cuda/kernels/kernel.hpp"
#include "backend/cuda/kernels/occupancy.cuh"
#include "backend/cuda/kernels/programmatic_launch.cuh"
#include "backend/cuda/kernels/swiglu_code_vector.cuh"
#include "backend/cuda/kernels/swiglu_expert_parts.cuh"
#include "backend/cuda/kernels/vector.cuh"
#include "plan/tuning.hpp"

namespace rope {

// Clears the padding of scales in tiles: beside the last group of each row, and below each group of a last row.
__device__ __forceinline__ void clear_expert_padding(const SwigluExpertCodeParams &params) {
  const SwigluCodes &codes = params.codes;
  const int64_t rows = codes.rows, last_group = codes.scales.groups - 1, per_matrix = rows + last_group;
  const int64_t threads = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < params.matrices * per_matrix;
       i += threads) {
    const int64_t matrix = i / per_matrix, at = i % per_matrix;
    const bool is_row = at < rows;
    codes.clear_padding(matrix * params.scales_stride.expert, is_row ? at : rows - 1, is_row ? last_group : at - rows,
                        1, 1);
  }
}

constexpr int kResidentExpertCodeBlocks =
    min_blocks_per_multiprocessor(kSwigluExpertCodeBlocks * int{kSwigluThreads}, int{kSwigluThreads});

// IsPlain: code_formula_of the problem is kPlain, and rows have neither biases nor factors.
template <typename T, typename Walk, bool IsPlain>
__global__ void __launch_bounds__(kSwigluThreads, kResidentExpertCodeBlocks)
    swiglu_expert_code_kernel(const __grid_constant__ SwigluExpertCodeParams params) {
  static_assert(sizeof(T) == 2, "");
  if constexpr (IsPlain && !kHasFurtherCodeKernels) __trap();
  const SwigluCodes &codes = params.codes;
  begin_dependent_launch();
  wait_for_previous_launch();
  if (params.has_padding) clear_expert_padding(params);
  uint32_t largest_of_all = 0;
  Walk walk(params);
  for (ExpertPart part; walk.next(&part);) {
    const char *const gate = params.in[kGate] + part.offset<Walk>(params.in_stride[kGate]);
    const char *const up = params.in[kUp] + part.offset<Walk>(params.in_stride[kUp]);
    char *const out = params.out[kOut] + part.offset<Walk>(params.out_stride[kOut]);
    const int64_t scales = part.offset<Walk>(params.scales_stride) + codes.place_of_row(part.row);
    const float row_scale = IsPlain ? 1.0f : load_part_scale<T, Walk>(params, part);
    const float given = codes.given_scale(part.expert);
#pragma unroll 1
    for (uint32_t first = part.first; first < part.end; first += 32) {
      const uint32_t vector = first + walk.lane();
      const bool is_inside = vector < part.end;
      float value[2][8] = {}, result[1][8];
      if (is_inside) {
        const Vector<T, 8> gates = load_vector<Vector<T, 8>>(gate + uint64_t{vector} * 16);
        const Vector<T, 8> ups = load_vector<Vector<T, 8>>(up + uint64_t{vector} * 16);
        to_floats<T, 8>(gates, value[kGate]);
        to_floats<T, 8>(ups, value[kUp]);
        if (!IsPlain) add_part_biases<T>(params, part, vector, value);
      }
      if constexpr (IsPlain) {
        compute_vector<true>(value, params.options, 1.0f, false, result);
      } else {
        compute_by_formula<SwigluFormula::kBiases, T, 8>(params.formula, value, params.options, row_scale,
                                                         params.row_scale != nullptr, result);
      }
      if (codes.rounds_first) to_floats<T, 8>(from_floats<T, 8>(result[kOut]), result[kOut]);
      // Lanes behind the end take part in the shuffles, with 0.
      uint32_t magnitude = is_inside ? bits_of(larger_magnitude_of(0, result[kOut])) : 0;
      largest_of_all = magnitude > largest_of_all ? magnitude : largest_of_all;
      float factor;
      if (codes.scales.is_present()) {
        magnitude = max_over_lanes(magnitude, params.lanes_log2);
        const GroupScale scale = codes.scale_of(magnitude, given);
        factor = scale.factor;
        if (is_inside && vector % (1u << params.lanes_log2) == 0) {
          codes.scales.store_at(scales + codes.place_of_group(vector >> params.lanes_log2), scale.bits);
        }
      } else {
        factor = code_factor(given, codes.scale_multiplies);
      }
      if (is_inside) store_vector_of_codes(codes, out, vector, factor, result[kOut]);
    }
    __syncwarp();
  }
  if (codes.amax == nullptr) return;
  largest_of_all = max_over_lanes(largest_of_all, 5);
  if (walk.lane() == 0) raise_magnitude(reinterpret_cast<uint32_t *>(codes.amax), largest_of_all);
}

template <typename T>
Kernel find_swiglu_expert_codes_kernel(int vector_elements, SwigluVariant variant) {
  const bool is_formula = variant.formula == SwigluFormula::kPlain || variant.formula == SwigluFormula::kBiases;
  if (vector_elements != 8 || variant.is_alternating || !is_formula) return {};
  return variant.work == kSwigluExpertCodes ? pick_by_form(variant, swiglu_expert_code_kernel<T, ExpertWalk, true>,
                                                           swiglu_expert_code_kernel<T, ExpertWalk, false>)
                                            : pick_by_form(variant, swiglu_expert_code_kernel<T, RowWalk, true>,
                                                           swiglu_expert_code_kernel<T, RowWalk, false>);
}

}  // namespace rope
