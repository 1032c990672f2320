// codes.cuh - values as codes of 8 bits, two at a time, and the scales that are written beside them
#pragma once

#include "backend/cuda/kernels/vector.cuh"
#include "core/math/float8.hpp"
#include "core/problem/step_problem.hpp"

namespace rope {

// Two codes, the first in the lowest byte.
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

// The largest number in 2^lanes_log2 neighbouring lanes, in each of them. All lanes of the warp take part.
__device__ __forceinline__ uint32_t max_over_lanes(uint32_t number, uint32_t lanes_log2) {
  for (uint32_t distance = 1; distance >> lanes_log2 == 0; distance *= 2) {
    const uint32_t other = __shfl_xor_sync(0xffffffffu, number, distance);
    number = other > number ? other : number;
  }
  return number;
}

// The scale of a group by the bits of its largest magnitude.
__device__ __forceinline__ GroupScale written_scale(const WrittenScales &scales, bool is_e5m2, uint32_t magnitude) {
  return scale_of_group(magnitude < scales.floor ? scales.floor : magnitude, scales.form,
                        is_e5m2 ? Float8E5M2::kMaxExponent : Float8E4M3::kMaxExponent);
}

}  // namespace rope
