// kernels.hpp - the kernels as plain pointers: host code launches them without seeing a template
#pragma once

namespace rope {

// The kernel for vectors of so many elements, NULL where the type has none of that width. RoPE kernels take a
// RopeKernelParams, SwiGLU kernels a SwigluKernelParams.
const void *rope_kernel_f32(int vector_elements, bool is_interleaved, bool has_table);
const void *rope_kernel_f16(int vector_elements, bool is_interleaved, bool has_table);
const void *rope_kernel_bf16(int vector_elements, bool is_interleaved, bool has_table);
const void *swiglu_kernel_f32(int vector_elements, bool is_backward, bool is_plain);
const void *swiglu_kernel_f16(int vector_elements, bool is_backward, bool is_plain);
const void *swiglu_kernel_bf16(int vector_elements, bool is_backward, bool is_plain);

}  // namespace rope
