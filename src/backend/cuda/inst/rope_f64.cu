// SPDX-License-Identifier: Apache-2.0
// rope_f64.cu - the RoPE kernels for F64
#include "backend/cuda/kernels.hpp"
#include "backend/cuda/kernels/rope_general.cuh"

namespace rope {

Kernel rope_kernel_of(double, int vector_elements, const RopeVariant &variant) {
  if (variant.kernel != RopeKernel::kGeneral) return {};
  return find_general_kernel<double>(vector_elements, variant);
}

}  // namespace rope
