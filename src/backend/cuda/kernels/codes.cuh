// SPDX-License-Identifier: Apache-2.0
// codes.cuh - values as codes of 8 bits, two at a time, and the scales that are written beside them
#pragma once

#include "backend/cuda/kernels/vector.cuh"
#include "core/math/float8.hpp"
#include "core/problem/step_problem.hpp"

namespace rope {

// Whether the kernels whose threads have two vectors of a group, and those of plain experts, are compiled for this
// architecture. Without an instruction that makes codes of 8 bits they would be three times as long: below
// kMinSwigluSpanCapability plans choose others.
#if !defined(__CUDA_ARCH__) || defined(ROPE_HAS_FLOAT8_CONVERSION)
constexpr bool kHasFurtherCodeKernels = true;
#else
constexpr bool kHasFurtherCodeKernels = false;
#endif

// Returns two codes, the first in the lowest byte.
template <typename Float8>
__device__ __forceinline__ uint32_t join_codes(float first, float second) {
#if defined(ROPE_HAS_FLOAT8_CONVERSION)
  uint16_t codes;
  if constexpr (Float8::kMantissaBits == 3) {
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(second), "f"(first));
  } else {
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(second), "f"(first));
  }
  return codes;
#else
  return round_to<Float8>(first).bits | static_cast<uint32_t>(round_to<Float8>(second).bits) << 8;
#endif
}

// Returns the larger of x, which is not negative, and the magnitude of y; NaN if one of them is NaN. Without the
// instruction it compares bits as integers, where a NaN is above all numbers.
__device__ __forceinline__ float max_magnitude(float x, float y) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  float max;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(max) : "f"(x), "f"(fabsf(y)));
  return max;
#else
  const uint32_t of_y = bits_of(y) & 0x7fffffffu;
  return bits_of(x) > of_y ? x : float_of(of_y);
#endif
}

__device__ __forceinline__ uint32_t max_with_lane(uint32_t number, uint32_t distance) {
  const uint32_t other = __shfl_xor_sync(0xffffffffu, number, distance);
  return other > number ? other : number;
}

// Returns in each of 2^lanes_log2 neighbouring lanes their largest number. All lanes of the warp take part. Most groups
// have 8 or 16 lanes, for which three steps need no loop.
__device__ __forceinline__ uint32_t max_over_lanes(uint32_t number, uint32_t lanes_log2) {
  uint32_t distance = 1;
  if (lanes_log2 >= 3) {
    number = max_with_lane(max_with_lane(max_with_lane(number, 1), 2), 4);
    distance = 8;
  }
  for (; distance >> lanes_log2 == 0; distance *= 2) number = max_with_lane(number, distance);
  return number;
}

// Returns in each lane the largest number of the warp.
__device__ __forceinline__ uint32_t max_over_warp(uint32_t number) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  return __reduce_max_sync(0xffffffffu, number);
#else
  return max_over_lanes(number, 5);
#endif
}

// Returns in each thread the largest number of the block. The block has whole warps, and all threads take part.
template <uint32_t kMaxThreads>
__device__ __forceinline__ uint32_t max_over_block(uint32_t number) {
  __shared__ uint32_t of_warps[kMaxThreads / 32];
  number = max_over_lanes(number, 5);
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = number;
  __syncthreads();
  for (uint32_t i = 0; i < blockDim.x / 32; ++i) number = of_warps[i] > number ? of_warps[i] : number;
  return number;
}

// Raises *amax to `magnitude`. Most threads read a value that is large enough and skip the atomic operation.
__device__ __forceinline__ void raise_magnitude(uint32_t *amax, uint32_t magnitude) {
  if (magnitude > *static_cast<volatile uint32_t *>(amax)) atomicMax(amax, magnitude);
}

// Returns the scale of a group from the bits of its largest magnitude.
__device__ __forceinline__ GroupScale written_scale(const WrittenScales &scales, bool is_e5m2, uint32_t magnitude) {
  return scale_of_group(magnitude < scales.floor ? scales.floor : magnitude, scales.form,
                        is_e5m2 ? Float8E5M2::kMax : Float8E4M3::kMax);
}

}  // namespace rope
