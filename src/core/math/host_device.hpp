// SPDX-License-Identifier: Apache-2.0
// host_device.hpp - marks the functions that are compiled for both the CPU and the GPU
#pragma once

#include "core/math/exact_arithmetic.hpp"

// The CPU's inner loops are compiled once for each instruction set. Each compilation defines ROPE_INSTRUCTION_SET as
// the set's name, which becomes a part of every function's name. Without it, the linker could merge functions that were
// not inlined, and run AVX-512 code on processors that lack it.
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
