// SPDX-License-Identifier: Apache-2.0
// rope_f32.cu - the RoPE kernels for F32
#include "backend/cuda/kernels.hpp"
#include "backend/cuda/kernels/rope_variants.cuh"

namespace rope {

Kernel rope_kernel_of(float, int vector_elements, const RopeVariant &variant) {
  return find_rope_variant<float>(vector_elements, variant);
}

}  // namespace rope
