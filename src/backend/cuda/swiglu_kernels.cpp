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
  switch (variant.work) {
    case kSwigluRowSums:
      return find_swiglu_rows_kernel<T>(vector_elements, variant);
    case kSwigluMatrix:
    case kSwigluProgrammaticMatrix:
    case kSwigluMatrixRows:
    case kSwigluMatrixGradients:
    case kSwigluProgrammaticMatrixGradients:
    case kSwigluLateMatrixGradients:
    case kSwigluFlatMatrixGradients:
      if constexpr (!kHas64Bits<T>) return find_swiglu_matrix_kernel<T>(vector_elements, variant);
      return {};
    case kSwigluCodeMatrix:
    case kSwigluScaledCodeMatrix:
    case kSwigluScaledCodeSpans:
    case kSwigluCodeRows:
      if constexpr (kHas16Bits<T>) return find_swiglu_code_matrix_kernel<T>(vector_elements, variant);
      return {};
    case kSwigluCodeGroups:
    case kSwigluScaledCodeGroups:
    case kSwigluWideCodeGroups:
      if constexpr (kHas16Bits<T>) return find_swiglu_code_groups_kernel<T>(vector_elements, variant);
      return {};
    case kSwigluExpertCodes:
    case kSwigluRowCodes:
      if constexpr (kHas16Bits<T>) return find_swiglu_expert_codes_kernel<T>(vector_elements, variant);
      return {};
    case kSwigluCodeBlocks:
    case kSwigluGradientCodeBlocks:
      if constexpr (kHas16Bits<T>) return find_swiglu_code_blocks_kernel<T>(vector_elements, variant);
      return {};
    case kSwigluCodes:
    case kSwigluGradientCodes:
      if constexpr (!kHas64Bits<T>) return find_swiglu_codes_kernel<T>(vector_elements, variant);
      return {};
    case kSwigluExperts:
    case kSwigluExpertGradients:
    case kSwigluLookup:
    case kSwigluLookupGradients:
      return find_swiglu_options_kernel<T>(vector_elements, variant);
    default:
      return variant.formula > SwigluFormula::kForm ? find_swiglu_options_kernel<T>(vector_elements, variant)
                                                    : find_swiglu_kernel<T>(vector_elements, variant);
  }
}

}  // namespace

Kernel find_swiglu_kernel(rope_dtype_t dtype, int vector_elements, SwigluVariant variant) {
  return find_of_type(dtype, [&](auto element) { return find_kernel<decltype(element)>(vector_elements, variant); });
}

}  // namespace rope
