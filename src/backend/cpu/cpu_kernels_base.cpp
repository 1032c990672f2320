// SPDX-License-Identifier: Apache-2.0
// cpu_kernels_base.cpp - the inner loops for the instructions that every processor of the target has
#define ROPE_INSTRUCTION_SET "base"
#include "backend/cpu/cpu_kernel_table.hpp"

namespace rope {

#if defined(__x86_64__)
const CpuKernels kBaseCpuKernels = kernels_of_these_loops("SSE2");
#elif defined(__aarch64__)
const CpuKernels kBaseCpuKernels = kernels_of_these_loops("Advanced SIMD");
#else
const CpuKernels kBaseCpuKernels = kernels_of_these_loops("base");
#endif

}  // namespace rope
