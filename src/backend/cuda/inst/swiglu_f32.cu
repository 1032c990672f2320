// swiglu_f32.cu - the SwiGLU kernels for F32
#include "backend/cuda/kernels.hpp"
#include "backend/cuda/kernels/swiglu.cuh"

namespace rope {

const void *swiglu_kernel_f32(int vector_elements, bool is_backward, bool is_plain) {
  return find_swiglu_kernel<float>(vector_elements, is_backward, is_plain);
}

}  // namespace rope
