// rope_f16.cu - the RoPE kernels for F16
#include "backend/cuda/kernels.hpp"
#include "backend/cuda/kernels/rope_general.cuh"

namespace rope {

const void *rope_kernel_f16(int vector_elements, RopeVariant variant) {
  if (variant.kernel != RopeKernel::kGeneral) {
    return find_rope_kernel<Float16>(vector_elements, variant.pairing == Pairing::kInterleaved,
                                     variant.kernel == RopeKernel::kTable);
  }
  return find_general_kernel<Float16>(vector_elements, variant.pairing);
}

}  // namespace rope
