// rope_f32.cu - the RoPE kernels for F32
#include "backend/cuda/kernels.hpp"
#include "backend/cuda/kernels/rope.cuh"

namespace rope {

const void *rope_kernel_f32(int vector_elements, bool is_interleaved, bool has_table) {
  return find_rope_kernel<float>(vector_elements, is_interleaved, has_table);
}

}  // namespace rope
