// SPDX-License-Identifier: Apache-2.0
// step_f16.cu - the kernels of the step for F16
#include "backend/cuda/kernels.hpp"
#include "backend/cuda/kernels/step_variants.cuh"

namespace rope {

Kernel step_kernel_of(Float16, const StepVariant &variant) {
  return find_step_kernel<Float16>(variant);
}

}  // namespace rope
