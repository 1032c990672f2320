// SPDX-License-Identifier: Apache-2.0
// async_copy.cuh - asynchronous copies from global to shared memory, which occupy no registers
#pragma once

#include <stdint.h>

#include "backend/cuda/kernels/vector.cuh"

namespace rope {

// Copies 16 bytes between addresses that are multiples of 16. The bytes are valid after wait_for_copies has waited for
// their group.
__device__ __forceinline__ void copy_async(Words<16> *to_shared, const char *from) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  const auto to = static_cast<uint32_t>(__cvta_generic_to_shared(to_shared));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" : : "r"(to), "l"(from) : "memory");
#else
  *to_shared = load_vector<Words<16>>(from);
#endif
}

// Ends a group of a thread's copies. A group may be empty.
__device__ __forceinline__ void end_copy_group() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;" : : : "memory");
#endif
}

// Waits until all groups of the thread are complete, except for the last `Pending`.
template <int Pending>
__device__ __forceinline__ void wait_for_copies() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;" : : "n"(Pending) : "memory");
#endif
}

}  // namespace rope
