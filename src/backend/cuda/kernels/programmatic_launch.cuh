// SPDX-License-Identifier: Apache-2.0
// programmatic_launch.cuh - starts the next launch early, and waits for the previous one
#pragma once

#include <stdint.h>

namespace rope {

// Programmatic dependent launch: begin_dependent_launch lets the next kernel start, and the wait below lasts until the
// previous kernel has ended. Without the launch attribute neither has an effect.
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

// Waits for the previous launch after the computation of some addresses, and the first read of some parameters. `bits`
// are bits of theirs that are always 0, as the unused_bits of addresses. The compiler would otherwise move the
// computation and the reads behind the wait. The unused bits of an address in use are 0, so no thread that has a token
// ends here.
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
