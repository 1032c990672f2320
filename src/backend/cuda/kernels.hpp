// SPDX-License-Identifier: Apache-2.0
// kernels.hpp - finds the kernels, so that host code launches them without including templates
#pragma once

#include "backend/cuda/kernels/kernel.hpp"
#include "backend/cuda/kernels/swiglu_params.hpp"
#include "core/problem/visit_dtype.hpp"
#include "plan/rope_kernels.hpp"
#include "plan/step_kernels.hpp"

namespace rope {

// Each function returns the kernel for data of a type and vectors of so many elements, without an address if there is
// none.
Kernel find_rope_kernel(rope_dtype_t dtype, int vector_elements, const RopeVariant &variant);
Kernel find_step_kernel(rope_dtype_t dtype, const StepVariant &variant);
Kernel find_swiglu_kernel(rope_dtype_t dtype, int vector_elements, SwigluVariant variant);
Kernel find_table_kernel(rope_dtype_t dtype);

bool has_kernels_of(rope_dtype_t dtype);  // false for a type that a build for development leaves out

}  // namespace rope
