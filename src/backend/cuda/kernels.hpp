// SPDX-License-Identifier: Apache-2.0
// kernels.hpp - finds the kernels, so that host code launches them without including templates
#pragma once

#include "backend/cuda/kernels/kernel.hpp"
#include "backend/cuda/kernels/swiglu_params.hpp"
#include "core/math/float16.hpp"
#include "plan/rope_kernels.hpp"
#include "plan/step_kernels.hpp"

namespace rope {

// Each function returns the kernel for data of its first argument's type and vectors of so many elements, without an
// address if there is none.
Kernel rope_kernel_of(float, int vector_elements, const RopeVariant &variant);
Kernel rope_kernel_of(Float16, int vector_elements, const RopeVariant &variant);
Kernel rope_kernel_of(BFloat16, int vector_elements, const RopeVariant &variant);
Kernel rope_kernel_of(double, int vector_elements, const RopeVariant &variant);
Kernel step_kernel_of(float, const StepVariant &variant);
Kernel step_kernel_of(Float16, const StepVariant &variant);
Kernel step_kernel_of(BFloat16, const StepVariant &variant);
Kernel step_kernel_of(double, const StepVariant &variant);
Kernel swiglu_kernel_of(float, int vector_elements, SwigluVariant variant);
Kernel swiglu_kernel_of(Float16, int vector_elements, SwigluVariant variant);
Kernel swiglu_kernel_of(BFloat16, int vector_elements, SwigluVariant variant);
Kernel swiglu_kernel_of(double, int vector_elements, SwigluVariant variant);

Kernel table_kernel_of(rope_dtype_t dtype);

}  // namespace rope
