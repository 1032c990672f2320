// SPDX-License-Identifier: Apache-2.0
// swiglu_bf16.cu - the SwiGLU kernels for BF16
#include "backend/cuda/kernels.hpp"
#include "backend/cuda/kernels/swiglu_variants.cuh"

namespace rope {

Kernel swiglu_kernel_of(BFloat16, int vector_elements, SwigluVariant variant) {
  return find_swiglu_variant<BFloat16>(vector_elements, variant);
}

}  // namespace rope
