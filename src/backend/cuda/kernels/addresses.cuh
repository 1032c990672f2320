// SPDX-License-Identifier: Apache-2.0
// addresses.cuh - address arithmetic, tests of address bits, numbers that stay in registers, and prefetching
#pragma once

#include <stdint.h>

namespace rope {

// address + number * stride in one instruction. For a plain product the compiler emits more.
__device__ __forceinline__ const char *step(const char *address, uint32_t number, int32_t stride) {
#if defined(__CUDA_ARCH__)
  int64_t product;
  asm("mul.wide.s32 %0, %1, %2;" : "=l"(product) : "r"(number), "r"(stride));
#else
  const int64_t product = static_cast<int64_t>(static_cast<int32_t>(number)) * stride;
#endif
  return address + product;
}

// Returns the number unchanged. After that the compiler neither computes it again nor reuses results that it made of it
// before.
__device__ __forceinline__ uint32_t keep(uint32_t number) {
#if defined(__CUDA_ARCH__)
  asm volatile("" : "+r"(number));
#endif
  return number;
}

// Prefetches into the L2 cache.
__device__ __forceinline__ void prefetch(const char *address) {
#if defined(__CUDA_ARCH__)
  asm volatile("prefetch.global.L2 [%0];" ::"l"(address));
#else
  static_cast<void>(address);
#endif
}

// The bits that are 0 in every address of device memory in use: bit 0 (addresses are even) and the highest bit.
__device__ __forceinline__ uint32_t unused_bits(const void *address) {
  const uint64_t bits = reinterpret_cast<uint64_t>(address);
  return (static_cast<uint32_t>(bits) & 1u) | (static_cast<uint32_t>(bits >> 32) & 0x80000000u);
}

}  // namespace rope
