// rope_f32.cu - the RoPE kernels for F32
#include "backend/cuda/kernels.hpp"
#include "backend/cuda/kernels/rope_general.cuh"

namespace rope {

const void *rope_kernel_f32(int vector_elements, RopeVariant variant) {
  if (variant.kernel != RopeKernel::kGeneral) {
    return find_rope_kernel<float>(vector_elements, variant.pairing == Pairing::kInterleaved,
                                   variant.kernel == RopeKernel::kTable);
  }
  return find_general_kernel<float>(vector_elements, variant.pairing);
}

}  // namespace rope
