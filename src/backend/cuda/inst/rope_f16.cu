// rope_f16.cu - the RoPE kernels for F16
#include "backend/cuda/kernels.hpp"
#include "backend/cuda/kernels/rope.cuh"

namespace rope {

const void *rope_kernel_f16(int vector_elements, bool is_interleaved, bool has_table) {
  return find_rope_kernel<Float16>(vector_elements, is_interleaved, has_table);
}

}  // namespace rope
