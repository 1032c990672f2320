// host_device.hpp - marks the mathematics that both the CPU and the GPU compile
#pragma once

#include "core/exact_arithmetic.hpp"

#if defined(__CUDACC__)
#define ROPE_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define ROPE_HOST_DEVICE inline __attribute__((always_inline))
#endif
