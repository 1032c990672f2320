// SPDX-License-Identifier: Apache-2.0
// step_f64.cu - the kernels of the step for F64
#include "backend/cuda/kernels.hpp"
#include "backend/cuda/kernels/norm_gradient.cuh"
#include "backend/cuda/kernels/step_general.cuh"

namespace rope {

Kernel step_kernel_of(double, const StepVariant &variant) {
  if (variant.kernel == StepKernel::kNormGradient) return kernel_of(norm_gradient_kernel<double>);
  if (variant.kernel != StepKernel::kGeneral) return {};
  return kernel_of(step_general_kernel<double>);
}

}  // namespace rope
