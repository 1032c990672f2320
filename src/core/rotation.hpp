// rotation.hpp - from a position to cos and sin, and the rotation of a pair: the mathematics once, for host and device
//
// Nothing here may be fused: every product and sum is rounded by itself, so that SSE2, AVX2, NEON and every GPU give
// the same bits. Device code says so with _rn intrinsics, host code is compiled with -ffp-contract=off.
#pragma once

#include <stdint.h>

#include "core/host_device.hpp"

namespace rope {

ROPE_HOST_DEVICE float multiply_rounded(float a, float b) {
#if defined(__CUDA_ARCH__)
  return __fmul_rn(a, b);
#else
  return a * b;
#endif
}

ROPE_HOST_DEVICE float add_rounded(float a, float b) {
#if defined(__CUDA_ARCH__)
  return __fadd_rn(a, b);
#else
  return a + b;
#endif
}

ROPE_HOST_DEVICE double multiply_rounded(double a, double b) {
#if defined(__CUDA_ARCH__)
  return __dmul_rn(a, b);
#else
  return a * b;
#endif
}

ROPE_HOST_DEVICE double add_rounded(double a, double b) {
#if defined(__CUDA_ARCH__)
  return __dadd_rn(a, b);
#else
  return a + b;
#endif
}

struct CosSin {
  float cos;
  float sin;
};

// The phase position * increment, in units of 2^-32 turn. Wrapping multiplication is the range reduction: whole turns
// leave at the top, and a negative position wraps to the right phase.
ROPE_HOST_DEVICE uint32_t phase_of(uint64_t position, uint64_t increment) {
  return static_cast<uint32_t>((position * increment) >> 32);
}

// cos and sin of a phase: the nearest quarter turn is split off in integers, and the rest, x eighth turns with
// |x| <= 1, goes through minimax polynomials of sin(pi/4 x) and cos(pi/4 x) (Remez, absolute error below 1.3e-9).
// The first coefficient of the sine is split in two floats; as one it would cost 2.2e-8. Largest error against the
// exact phase, over every 37th of the 2^30 arguments: sin 8.6e-8, cos 9.1e-8.
ROPE_HOST_DEVICE CosSin cos_sin_of_phase(uint32_t phase) {
  const uint32_t quarter = (phase + 0x20000000u) >> 30;
  const float x = multiply_rounded(static_cast<float>(static_cast<int32_t>(phase - (quarter << 30))), 0x1p-29f);
  const float z = multiply_rounded(x, x);

  float s = add_rounded(2.4898723e-3f, multiply_rounded(z, -3.5877425e-5f));
  s = add_rounded(-8.0745367e-2f, multiply_rounded(z, s));
  s = add_rounded(-3.2681740e-8f, multiply_rounded(z, s));
  s = add_rounded(multiply_rounded(x, 7.8539819e-1f), multiply_rounded(x, s));

  float c = add_rounded(-3.2594208e-4f, multiply_rounded(z, 3.5313726e-6f));
  c = add_rounded(1.5854328e-2f, multiply_rounded(z, c));
  c = add_rounded(-3.0842514e-1f, multiply_rounded(z, c));
  c = add_rounded(1.0f, multiply_rounded(z, c));

  const bool is_swapped = (quarter & 1) != 0;
  const float sin_magnitude = is_swapped ? c : s;
  const float cos_magnitude = is_swapped ? s : c;
  return {((quarter + 1) & 2) != 0 ? -cos_magnitude : cos_magnitude,
          (quarter & 2) != 0 ? -sin_magnitude : sin_magnitude};
}

// The rotated pair. The transpose is the same with the sine negated.
struct Pair {
  float x;
  float y;
};

ROPE_HOST_DEVICE Pair rotate(Pair in, float cos, float sin) {
  return {add_rounded(multiply_rounded(in.x, cos), -multiply_rounded(in.y, sin)),
          add_rounded(multiply_rounded(in.y, cos), multiply_rounded(in.x, sin))};
}

}  // namespace rope
