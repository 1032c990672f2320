// rope_f32.cu - the RoPE kernels for F32
#include "backend/cuda/kernels.hpp"
#include "backend/cuda/kernels/rope_general.cuh"
#include "backend/cuda/kernels/rope_table.cuh"

namespace rope {

const void *rope_kernel_f32(int vector_elements, RopeVariant variant) {
  const bool is_interleaved = variant.pairing == Pairing::kInterleaved;
  switch (variant.kernel) {
    case RopeKernel::kComputed:
      return find_rope_kernel<float>(vector_elements, is_interleaved);
    case RopeKernel::kTable32:
      return find_table_kernel<float>(vector_elements, is_interleaved, true);
    case RopeKernel::kTable16:
      return find_table_kernel<float>(vector_elements, is_interleaved, false);
    default:
      return find_general_kernel<float>(vector_elements, variant.pairing);
  }
}

}  // namespace rope
