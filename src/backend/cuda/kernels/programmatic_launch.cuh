// programmatic_launch.cuh - letting the next launch start, and waiting for the one before
#pragma once

#include <stdint.h>

namespace rope {

// Programmatic dependent launch: lets the next kernel start, and waits for the end of the one before. Without the
// launch attribute neither does anything.
__device__ __forceinline__ void begin_dependent_launch() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}

__device__ __forceinline__ void wait_for_previous_launch() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Waits with the addresses computed whose unused bits are given. Without an instruction that needs them before the
// wait, the compiler computes them behind it. The bits of an address in use are 0, so no thread that has a
// token ends here.
__device__ __forceinline__ void wait_for_previous_launch_with(uint32_t bits) {
#if defined(__CUDA_ARCH__)
  asm volatile(
      "{\n"
      " .reg .pred is_set;\n"
      " setp.ne.u32 is_set, %0, 0;\n"
      " @is_set exit;\n"
      "}" ::"r"(bits)
      : "memory");
#endif
  wait_for_previous_launch();
}

}  // namespace rope
