// SPDX-License-Identifier: Apache-2.0
// swiglu_variants.cuh - the SwiGLU kernels of a type, by variant
#pragma once

#include "backend/cuda/kernels/kernel.hpp"
#include "backend/cuda/kernels/swiglu.cuh"
#include "backend/cuda/kernels/swiglu_code_blocks.cuh"
#include "backend/cuda/kernels/swiglu_code_groups.cuh"
#include "backend/cuda/kernels/swiglu_code_matrix.cuh"
#include "backend/cuda/kernels/swiglu_codes.cuh"
#include "backend/cuda/kernels/swiglu_expert_codes.cuh"
#include "backend/cuda/kernels/swiglu_matrix.cuh"
#include "backend/cuda/kernels/swiglu_options.cuh"
#include "backend/cuda/kernels/swiglu_rows.cuh"

namespace rope {

// Returns the kernel of a variant for a vector width; NULL if T has none of this width.
template <typename T>
Kernel find_swiglu_variant(int vector_elements, SwigluVariant variant) {
  constexpr int kSize = static_cast<int>(sizeof(T));
  const bool has_options = variant.formula > SwigluFormula::kForm;
  if (has_options && variant.is_alternating) return {};
  switch (variant.work) {
    case kSwigluRowSums:
      if (variant.is_alternating || vector_elements != 1) return {};
      return has_options ? kernel_of(swiglu_options_row_kernel<T>) : kernel_of(swiglu_row_kernel<T>);
    case kSwigluMatrix:
    case kSwigluProgrammaticMatrix:
    case kSwigluMatrixRows:
    case kSwigluMatrixGradients:
    case kSwigluProgrammaticMatrixGradients:
    case kSwigluLateMatrixGradients:
    case kSwigluFlatMatrixGradients:
      return variant.is_alternating ? Kernel{} : find_swiglu_matrix_kernel<T>(vector_elements, variant);
    case kSwigluCodeMatrix:
    case kSwigluScaledCodeMatrix:
    case kSwigluScaledCodeSpans:
    case kSwigluCodeRows:
      if constexpr (kSize == 2) {
        if (vector_elements == 8 && !variant.is_alternating && !has_options) return find_swiglu_code_kernel<T>(variant);
      }
      return {};
    case kSwigluCodeGroups:
    case kSwigluScaledCodeGroups:
    case kSwigluWideCodeGroups:
      if constexpr (kSize == 2) {
        if (variant.is_alternating || variant.formula != SwigluFormula::kPlain) return {};
        return find_swiglu_code_group_kernel<T>(vector_elements, variant.work);
      }
      return {};
    case kSwigluExpertCodes:
    case kSwigluRowCodes:
      if constexpr (kSize == 2) {
        const bool is_formula = variant.formula == SwigluFormula::kPlain || variant.formula == SwigluFormula::kBiases;
        if (vector_elements == 8 && !variant.is_alternating && is_formula) {
          return find_swiglu_expert_code_kernel<T>(variant);
        }
      }
      return {};
    case kSwigluCodeBlocks:
    case kSwigluGradientCodeBlocks:
      if constexpr (kSize == 2) {
        if (vector_elements == 8 && !variant.is_alternating && !has_options) {
          return find_swiglu_code_block_kernel<T>(variant);
        }
      }
      return {};
    case kSwigluCodes:
    case kSwigluGradientCodes:
      if constexpr (kSize < 8) {
        const bool is_it = vector_elements == 1 && variant.formula == SwigluFormula::kOptions;
        if (!is_it || variant.is_alternating) return {};
        return variant.work == kSwigluCodes ? kernel_of(swiglu_codes_kernel<T, false>)
                                            : kernel_of(swiglu_codes_kernel<T, true>);
      }
      return {};
    case kSwigluExperts:
    case kSwigluExpertGradients:
    case kSwigluLookup:
    case kSwigluLookupGradients:
      return find_swiglu_options_kernel<T>(vector_elements, variant);
    default:
      if (has_options) return find_swiglu_options_kernel<T>(vector_elements, variant);
  }
  if (variant.is_alternating) {
    if constexpr (kSize < 8) {
      if (vector_elements == 8 / kSize) return find_swiglu_vector_kernel<T, 8 / kSize, true>(variant);
      if (vector_elements == 16 / kSize) return find_swiglu_vector_kernel<T, 16 / kSize, true>(variant);
    }
    return {};
  }
  if (vector_elements == 1) return find_swiglu_vector_kernel<T, 1, false>(variant);
  if (vector_elements == 8 / kSize) return find_swiglu_vector_kernel<T, 8 / kSize, false>(variant);
  if (vector_elements == 16 / kSize) return find_swiglu_vector_kernel<T, 16 / kSize, false>(variant);
  return {};
}

}  // namespace rope
