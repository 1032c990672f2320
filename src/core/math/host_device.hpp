// host_device.hpp - marks the mathematics that both the CPU and the GPU compile
#pragma once

#include "core/math/exact_arithmetic.hpp"

// The CPU's inner loops, compiled once for every instruction set, define ROPE_INSTRUCTION_SET as its name, which becomes
// a part of each function's name: where a function is not inlined, a linker cannot take that of AVX-512 for the others.
#if defined(ROPE_INSTRUCTION_SET)
#define ROPE_HOST inline __attribute__((always_inline, abi_tag(ROPE_INSTRUCTION_SET)))
#else
#define ROPE_HOST inline __attribute__((always_inline))
#endif

#if defined(__CUDACC__)
#define ROPE_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define ROPE_HOST_DEVICE ROPE_HOST
#endif
