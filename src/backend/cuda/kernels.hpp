// kernels.hpp - the kernels as plain pointers: host code launches them without seeing a template
#pragma once

namespace rope {

// Each changes the inner loop: the recomputed output alone costs the plain gradients 2 %.
struct SwigluVariant {
  bool is_backward;
  bool is_plain;  // GatingForm::is_plain
  bool has_out;   // backward writes the output too
};

// The kernel for vectors of so many elements, NULL where the type has none of that width. RoPE kernels take a
// RopeKernelParams, SwiGLU kernels a SwigluKernelParams.
const void *rope_kernel_f32(int vector_elements, bool is_interleaved, bool has_table);
const void *rope_kernel_f16(int vector_elements, bool is_interleaved, bool has_table);
const void *rope_kernel_bf16(int vector_elements, bool is_interleaved, bool has_table);
const void *swiglu_kernel_f32(int vector_elements, SwigluVariant variant);
const void *swiglu_kernel_f16(int vector_elements, SwigluVariant variant);
const void *swiglu_kernel_bf16(int vector_elements, SwigluVariant variant);

}  // namespace rope
