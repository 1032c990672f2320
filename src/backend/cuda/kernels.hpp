// SPDX-License-Identifier: Apache-2.0
// kernels.hpp - the kernels as plain pointers, so that host code launches them without including templates
#pragma once

#include "backend/cuda/kernels/swiglu_params.hpp"
#include "core/math/float16.hpp"
#include "plan/rope_kernels.hpp"
#include "plan/step_kernels.hpp"

namespace rope {

// Each function returns the kernel for data of its first argument's type and vectors of so many elements, or NULL if
// there is none. RoPE kernels take the params of their kind (such as RopeShortAngleParams), kernels of the step
// likewise (such as StepRowParams), kernels that fill tables a TableKernelParams, SwiGLU kernels a SwigluKernelParams
// or, if they sum rows, a SwigluRowKernelParams.
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
