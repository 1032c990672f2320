// codes.cuh - values as codes of 8 bits, two at a time
#pragma once

#include "backend/cuda/kernels/vector.cuh"
#include "core/math/float8.hpp"

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

}  // namespace rope
