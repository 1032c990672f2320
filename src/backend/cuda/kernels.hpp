// kernels.hpp - the kernels as plain pointers: host code launches them without seeing a template
#pragma once

#include "plan/rope_plan.hpp"

namespace rope {

// Each changes the inner loop: the recomputed output alone costs the plain gradients 2 %.
struct SwigluVariant {
  bool is_backward;
  bool is_plain;  // GatingForm::is_plain
  bool has_out;   // backward writes the output too
};

struct RopeVariant {
  RopeKernel kernel;
  Pairing pairing;
};

// The kernel for vectors of so many elements, NULL where the type has none. RoPE kernels take a RopeKernelParams, the
// general ones a RopeGeneralParams, table kernels a TableKernelParams, SwiGLU kernels a SwigluKernelParams.
const void *rope_kernel_f32(int vector_elements, RopeVariant variant);
const void *rope_kernel_f16(int vector_elements, RopeVariant variant);
const void *rope_kernel_bf16(int vector_elements, RopeVariant variant);
const void *rope_kernel_f64(int vector_elements, RopeVariant variant);
const void *swiglu_kernel_f32(int vector_elements, SwigluVariant variant);
const void *swiglu_kernel_f16(int vector_elements, SwigluVariant variant);
const void *swiglu_kernel_bf16(int vector_elements, SwigluVariant variant);

const void *table_kernel_of(rope_dtype_t dtype);

}  // namespace rope
