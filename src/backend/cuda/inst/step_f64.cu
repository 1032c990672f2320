// SPDX-License-Identifier: Apache-2.0
// step_f64.cu - the kernels of the step for F64
#include "backend/cuda/kernels.hpp"
#include "backend/cuda/kernels/norm_gradient.cuh"
#include "backend/cuda/kernels/step_general.cuh"

namespace rope {

const void *step_kernel_of(double, const StepVariant &variant) {
  if (variant.kernel == StepKernel::kNormGradient) return reinterpret_cast<const void *>(norm_gradient_kernel<double>);
  if (variant.kernel != StepKernel::kGeneral) return nullptr;
  return reinterpret_cast<const void *>(step_general_kernel<double>);
}

}  // namespace rope
