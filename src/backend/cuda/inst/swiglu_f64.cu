// SPDX-License-Identifier: Apache-2.0
// swiglu_f64.cu - the SwiGLU kernels for F64
#include "backend/cuda/kernels.hpp"
#include "backend/cuda/kernels/swiglu_variants.cuh"

namespace rope {

Kernel swiglu_kernel_of(double, int vector_elements, SwigluVariant variant) {
  return find_swiglu_variant<double>(vector_elements, variant);
}

}  // namespace rope
