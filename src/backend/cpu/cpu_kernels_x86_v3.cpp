// SPDX-License-Identifier: Apache-2.0
// cpu_kernels_x86_v3.cpp - the inner loops for x86-64-v3: AVX2 and the other instructions of that level
#define ROPE_INSTRUCTION_SET "x86_v3"
#include "backend/cpu/cpu_kernel_table.hpp"

namespace rope {

const CpuKernels kX86V3CpuKernels = kernels_of_these_loops("x86-64-v3 (AVX2)");

}  // namespace rope
