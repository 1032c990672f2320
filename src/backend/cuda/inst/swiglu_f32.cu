// SPDX-License-Identifier: Apache-2.0
// swiglu_f32.cu - the SwiGLU kernels for F32
#include "backend/cuda/kernels.hpp"
#include "backend/cuda/kernels/swiglu_variants.cuh"

namespace rope {

Kernel swiglu_kernel_of(float, int vector_elements, SwigluVariant variant) {
  return find_swiglu_variant<float>(vector_elements, variant);
}

}  // namespace rope
