// SPDX-License-Identifier: Apache-2.0
// cpu_kernels.cpp - chooses the instruction set of the inner loops
#include "backend/cpu/cpu_kernels.hpp"

#include <stdlib.h>
#include <string.h>

#if defined(ROPE_X86_KERNELS)
#include <cpuid.h>
#endif

namespace rope {

namespace {

const CpuKernels *chosen_kernels = nullptr;

#if defined(ROPE_X86_KERNELS)

// The number of x86-64 psABI levels available. cpuid reports the instructions of the processor, xgetbv the registers
// that the system saves.
int count_x86_levels() {
  constexpr uint32_t kBasic = bit_SSE3 | bit_SSSE3 | bit_FMA | bit_CMPXCHG16B | bit_SSE4_1 | bit_SSE4_2 | bit_MOVBE |
                              bit_POPCNT | bit_OSXSAVE | bit_AVX | bit_F16C;
  constexpr uint32_t kExtended = bit_LAHF_LM | bit_ABM;
  constexpr uint32_t kV3 = bit_BMI | bit_AVX2 | bit_BMI2;
  constexpr uint32_t kV4 = kV3 | bit_AVX512F | bit_AVX512DQ | bit_AVX512CD | bit_AVX512BW | bit_AVX512VL;
  constexpr uint32_t kYmm = 0x06, kZmm = 0xe6;  // bits of XCR0
  uint32_t a, b, basic, extended, structured, d;
  if (__get_cpuid(1, &a, &b, &basic, &d) == 0 || (basic & kBasic) != kBasic) return 0;
  if (__get_cpuid(0x80000001, &a, &b, &extended, &d) == 0 || (extended & kExtended) != kExtended) return 0;
  if (__get_cpuid_count(7, 0, &a, &structured, &b, &d) == 0 || (structured & kV3) != kV3) return 0;
  uint32_t saved, upper;
  __asm__("xgetbv" : "=a"(saved), "=d"(upper) : "c"(0));
  if ((saved & kYmm) != kYmm) return 0;
  return (structured & kV4) == kV4 && (saved & kZmm) == kZmm ? 2 : 1;
}

#endif

// Maps a value of the environment variable to kernels. If the processor lacks that set, the best one that it has is
// used.
const CpuKernels *choose_kernels() {
  const CpuKernels *kernels[kMaxCpuKernels];
  int count = list_cpu_kernels(kernels);
  const char *limit = getenv("ROPE_CPU_ISA");
  if (limit != nullptr) {
    constexpr const char *kNames[kMaxCpuKernels] = {"base", "x86-64-v3", "x86-64-v4"};
    for (int i = 0; i < count; ++i) {
      if (strcmp(limit, kNames[i]) == 0) count = i + 1;
    }
  }
  return kernels[count - 1];
}

}  // namespace

int list_cpu_kernels(const CpuKernels *kernels[kMaxCpuKernels]) {
  kernels[0] = &kBaseCpuKernels;
#if defined(ROPE_X86_KERNELS)
  kernels[1] = &kX86V3CpuKernels;
  kernels[2] = &kX86V4CpuKernels;
  return 1 + count_x86_levels();
#else
  return 1;
#endif
}

// Threads that get here concurrently make the same choice.
const CpuKernels &cpu_kernels() {
  const CpuKernels *kernels = __atomic_load_n(&chosen_kernels, __ATOMIC_RELAXED);
  if (kernels == nullptr) {
    kernels = choose_kernels();
    __atomic_store_n(&chosen_kernels, kernels, __ATOMIC_RELAXED);
  }
  return *kernels;
}

}  // namespace rope
