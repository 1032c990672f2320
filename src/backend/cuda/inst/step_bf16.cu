// SPDX-License-Identifier: Apache-2.0
// step_bf16.cu - the kernels of the step for BF16
#include "backend/cuda/kernels.hpp"
#include "backend/cuda/kernels/step_variants.cuh"

namespace rope {

Kernel step_kernel_of(BFloat16, const StepVariant &variant) {
  return find_step_kernel<BFloat16>(variant);
}

}  // namespace rope
