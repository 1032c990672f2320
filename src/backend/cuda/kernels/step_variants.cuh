// SPDX-License-Identifier: Apache-2.0
// step_variants.cuh - the kernel of the step for each StepVariant
#pragma once

#include "backend/cuda/kernels/kernel.hpp"
#include "backend/cuda/kernels/norm_gradient.cuh"
#include "backend/cuda/kernels/norm_gradient_rows.cuh"
#include "backend/cuda/kernels/step_codes.cuh"
#include "backend/cuda/kernels/step_general.cuh"
#include "backend/cuda/kernels/step_long.cuh"
#include "backend/cuda/kernels/step_rows.cuh"
#include "backend/cuda/kernels/step_short.cuh"
#include "backend/cuda/kernels/step_short_more.cuh"

namespace rope {

template <typename T>
Kernel find_step_kernel(const StepVariant &variant) {
  switch (variant.kernel) {
    case StepKernel::kWarp:
    case StepKernel::kShort:
      return find_step_short_kernel<T>(variant);
    case StepKernel::kShortMore:
      return find_step_short_more_kernel<T>(variant);
    case StepKernel::kLong:
      if constexpr (kMayHaveCodes<T>) {
        if (variant.has_codes()) return find_step_codes_kernel<T>(variant);
      }
      return find_step_long_kernel<T>(variant);
    case StepKernel::kLongWindow:
      if constexpr (kMayHaveCodes<T>) return find_step_window_kernel<T>(variant);
      return {};
    case StepKernel::kShortRows:
    case StepKernel::kLongRows:
      return find_step_rows_kernel<T>(variant);
    case StepKernel::kNormGradientRows:
      if constexpr (sizeof(T) == 2) return find_norm_gradient_rows_kernel<T>(variant);
      return {};
    case StepKernel::kNormGradient:
      if constexpr (sizeof(T) == 4) return kernel_of(norm_gradient_kernel<float>);
      return {};
    default:
      return kernel_of(step_general_kernel<T>);
  }
}

}  // namespace rope
