// SPDX-License-Identifier: Apache-2.0
// step_f32.cu - the kernels of the step for F32
#include "backend/cuda/kernels.hpp"
#include "backend/cuda/kernels/step_variants.cuh"

namespace rope {

Kernel step_kernel_of(float, const StepVariant &variant) {
  return find_step_kernel<float>(variant);
}

}  // namespace rope
