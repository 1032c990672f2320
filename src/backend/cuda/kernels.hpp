// kernels.hpp - the kernels as plain pointers: host code launches them without seeing a template
#pragma once

#include "backend/cuda/kernels/swiglu_params.hpp"
#include "core/math/float16.hpp"
#include "plan/rope_kernels.hpp"
#include "plan/step_kernels.hpp"

namespace rope {

// The kernel for data of the first argument's type and vectors of so many elements, NULL where the type has none. RoPE
// kernels take the params of their kind (RopeShortAngleParams and so on), as do those of the step (StepRowParams and so
// on), those that fill tables a TableKernelParams, SwiGLU kernels a SwigluKernelParams or, for row sums, a
// SwigluRowKernelParams.
const void *rope_kernel_of(float, int vector_elements, const RopeVariant &variant);
const void *rope_kernel_of(Float16, int vector_elements, const RopeVariant &variant);
const void *rope_kernel_of(BFloat16, int vector_elements, const RopeVariant &variant);
const void *rope_kernel_of(double, int vector_elements, const RopeVariant &variant);
const void *step_kernel_of(float, const StepVariant &variant);
const void *step_kernel_of(Float16, const StepVariant &variant);
const void *step_kernel_of(BFloat16, const StepVariant &variant);
const void *step_kernel_of(double, const StepVariant &variant);
const void *swiglu_kernel_of(float, int vector_elements, SwigluVariant variant);
const void *swiglu_kernel_of(Float16, int vector_elements, SwigluVariant variant);
const void *swiglu_kernel_of(BFloat16, int vector_elements, SwigluVariant variant);
const void *swiglu_kernel_of(double, int vector_elements, SwigluVariant variant);

const void *table_kernel_of(rope_dtype_t dtype);

}  // namespace rope
