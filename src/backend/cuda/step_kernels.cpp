// SPDX-License-Identifier: Apache-2.0
// step_kernels.cpp - which file of kernels has a variant of the step (kernel_files.cmake lists them)
#include "backend/cuda/built_types.hpp"
#include "backend/cuda/kernels.hpp"

namespace rope {

template <typename T>
Kernel find_step_short_kernel(const StepVariant &variant);
template <typename T>
Kernel find_step_short_more_kernel(const StepVariant &variant);
template <typename T>
Kernel find_step_long_kernel(const StepVariant &variant);
template <typename T>
Kernel find_step_codes_kernel(const StepVariant &variant);
template <typename T>
Kernel find_step_rows_kernel(const StepVariant &variant);
template <typename T>
Kernel find_step_general_kernel(const StepVariant &variant);
template <typename T>
Kernel find_norm_gradient_kernel(const StepVariant &variant);
template <typename T>
Kernel find_norm_gradient_rows_kernel(const StepVariant &variant);

namespace {

template <typename T>
Kernel find_kernel(const StepVariant &variant) {
  if constexpr (!kHas64Bits<T>) {
    switch (variant.kernel) {
      case StepKernel::kWarp:
      case StepKernel::kShort:
        return find_step_short_kernel<T>(variant);
      case StepKernel::kShortMore:
        return find_step_short_more_kernel<T>(variant);
      case StepKernel::kLong:
        if constexpr (kHas16Bits<T>) {
          if (variant.has_codes()) return find_step_codes_kernel<T>(variant);
        }
        return find_step_long_kernel<T>(variant);
      case StepKernel::kLongWindow:
        if constexpr (kHas16Bits<T>) return find_step_codes_kernel<T>(variant);
        return {};
      case StepKernel::kShortRows:
      case StepKernel::kLongRows:
        return find_step_rows_kernel<T>(variant);
      case StepKernel::kNormGradientRows:
        if constexpr (kHas16Bits<T>) return find_norm_gradient_rows_kernel<T>(variant);
        return {};
      default:
        break;
    }
  }
  if constexpr (!kHas16Bits<T>) {
    if (variant.kernel == StepKernel::kNormGradient) return find_norm_gradient_kernel<T>(variant);
  }
  if (variant.kernel != StepKernel::kGeneral) return {};
  return find_step_general_kernel<T>(variant);
}

}  // namespace

Kernel find_step_kernel(rope_dtype_t dtype, const StepVariant &variant) {
  // One for all types that are computed in fp32.
  if (variant.kernel == StepKernel::kNormGradient && dtype != ROPE_DTYPE_F64) dtype = ROPE_DTYPE_F32;
  return find_of_type(dtype, [&](auto element) { return find_kernel<decltype(element)>(variant); });
}

}  // namespace rope
