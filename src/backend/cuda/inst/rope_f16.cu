// SPDX-License-Identifier: Apache-2.0
// rope_f16.cu - the RoPE kernels for F16
#include "backend/cuda/kernels.hpp"
#include "backend/cuda/kernels/rope_variants.cuh"

namespace rope {

Kernel rope_kernel_of(Float16, int vector_elements, const RopeVariant &variant) {
  return find_rope_variant<Float16>(vector_elements, variant);
}

}  // namespace rope
