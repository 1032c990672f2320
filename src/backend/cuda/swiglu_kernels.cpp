// SPDX-License-Identifier: Apache-2.0
// swiglu_kernels.cpp - which file of kernels has a variant of SwiGLU (kernel_files.cmake lists them)
#include "backend/cuda/built_types.hpp"
#include "backend/cuda/kernels.hpp"

namespace rope {

template <typename T>
Kernel find_swiglu_kernel(int vector_elements, SwigluVariant variant);
template <typename T>
Kernel find_swiglu_options_kernel(int vector_elements, SwigluVariant variant);
template <typename T>
Kernel find_swiglu_rows_kernel(int vector_elements, SwigluVariant variant);
template <typename T>
Kernel find_swiglu_matrix_kernel(int vector_elements, SwigluVariant variant);
template <typename T>
Kernel find_swiglu_codes_kernel(int vector_elements, SwigluVariant variant);
template <typename T>
Kernel find_swiglu_code_matrix_kernel(int vector_elements, SwigluVariant variant);
template <typename T>
Kernel find_swiglu_code_groups_kernel(int vector_elements, SwigluVariant variant);
template <typename T>
Kernel find_swiglu_code_blocks_kernel(int vector_elements, SwigluVariant variant);
template <typename T>
Kernel find_swiglu_expert_codes_kernel(int vector_elements, SwigluVariant variant);

namespace {

template <typename T>
Kernel find_kernel(int vector_elements, SwigluVariant variant) {
  if constexpr (kHas16Bits<T>) {
    switch (variant.work) {
      case kSwigluCodeMatrix:
      case kSwigluScaledCodeMatrix:
      case kSwigluScaledCodeSpans:
      case kSwigluCodeRows:
        return find_swiglu_code_matrix_kernel<T>(vector_elements, variant);
      case kSwigluCodeGroups:
      case kSwigluScaledCodeGroups:
      case kSwigluWideCodeGroups:
        return find_swiglu_code_groups_kernel<T>(vector_elements, variant);
      case kSwigluExpertCodes:
      case kSwigluRowCodes:
        return find_swiglu_expert_codes_kernel<T>(vector_elements, variant);
      case kSwigluCodeBlocks:
      case kSwigluGradientCodeBlocks:
        return find_swiglu_code_blocks_kernel<T>(vector_elements, variant);
      default:
        break;
    }
  }
  if constexpr (!kHas64Bits<T>) {
    switch (variant.work) {
      case kSwigluMatrix:
      case kSwigluProgrammaticMatrix:
      case kSwigluMatrixRows:
      case kSwigluMatrixGradients:
      case kSwigluProgrammaticMatrixGradients:
      case kSwigluLateMatrixGradients:
      case kSwigluFlatMatrixGradients:
        return find_swiglu_matrix_kernel<T>(vector_elements, variant);
      case kSwigluCodes:
      case kSwigluGradientCodes:
        return find_swiglu_codes_kernel<T>(vector_elements, variant);
      default:
        break;
    }
  }
  switch (variant.work) {
    case kSwigluForward:
    case kSwigluGradients:
    case kSwigluGradientsAndOut:
      return variant.formula > SwigluFormula::kForm ? find_swiglu_options_kernel<T>(vector_elements, variant)
                                                    : find_swiglu_kernel<T>(vector_elements, variant);
    case kSwigluRowSums:
      return find_swiglu_rows_kernel<T>(vector_elements, variant);
    case kSwigluExperts:
    case kSwigluExpertGradients:
    case kSwigluLookup:
    case kSwigluLookupGradients:
      return find_swiglu_options_kernel<T>(vector_elements, variant);
    default:
      return {};
  }
}

}  // namespace

Kernel find_swiglu_kernel(rope_dtype_t dtype, int vector_elements, SwigluVariant variant) {
  return find_of_type(dtype, [&](auto element) { return find_kernel<decltype(element)>(vector_elements, variant); });
}

}  // namespace rope
