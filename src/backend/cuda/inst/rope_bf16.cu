// rope_bf16.cu - the RoPE kernels for BF16
#include "backend/cuda/kernels.hpp"
#include "backend/cuda/kernels/rope.cuh"

namespace rope {

const void *rope_kernel_bf16(int vector_elements, bool is_interleaved, bool has_table) {
  return find_rope_kernel<BFloat16>(vector_elements, is_interleaved, has_table);
}

}  // namespace rope
