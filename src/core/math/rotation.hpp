// SPDX-License-Identifier: Apache-2.0
// rotation.hpp - from a position to cos and sin, and the rotation of a pair: one implementation for host and device
//
// No operation in this file may be fused: every product and sum is rounded by itself, so that SSE2, AVX2, NEON and
// every GPU give identical bits. Device code uses _rn intrinsics, host code is compiled with -ffp-contract=off. The
// vectoriser of GCC 12 ignores that option where sums and differences of products alternate, hence the barriers.
#pragma once

#include <math.h>
#include <stdint.h>

#include <type_traits>

#include "core/math/float16.hpp"
#include "core/math/host_device.hpp"

namespace rope {

#if defined(__has_builtin) && !defined(__CUDACC__)
#if __has_builtin(__builtin_assoc_barrier)
#define ROPE_ROUNDED(product) __builtin_assoc_barrier(product)
#endif
#endif
#if !defined(ROPE_ROUNDED)
#define ROPE_ROUNDED(product) (product)
#endif

ROPE_HOST_DEVICE float multiply_rounded(float a, float b) {
#if defined(__CUDA_ARCH__)
  return __fmul_rn(a, b);
#else
  return ROPE_ROUNDED(a * b);
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
  return ROPE_ROUNDED(a * b);
#endif
}

ROPE_HOST_DEVICE double add_rounded(double a, double b) {
#if defined(__CUDA_ARCH__)
  return __dadd_rn(a, b);
#else
  return a + b;
#endif
}

// Real is float, or double for F64 data.
template <typename Real>
struct CosSin {
  Real cos;
  Real sin;
};

// The phase position * increment, in units of 2^-64 turn. Wrapping multiplication performs the range reduction: whole
// turns overflow at the top, and a negative position wraps to the correct phase.
ROPE_HOST_DEVICE uint64_t phase_of(uint64_t position, uint64_t increment) {
  return position * increment;
}

// The phase of a finite angle in radians, exact to 2^-63 turn. It multiplies the angle's 24-bit significand by 128 bits
// of 1 / (2 pi), selected by the exponent: those whose products weigh less than 2^63 turns and at least 2^-64 turn.
// (Payne and Hanek, "Radian reduction for trigonometric functions", 1983.)
ROPE_HOST_DEVICE uint64_t phase_of_angle(float angle) {
  // 1 / (2 pi), preceded by 192 zero bits for small exponents.
  static constexpr uint64_t kTurnsPerRadian[] = {
      0, 0, 0, 0x28be60db9391054a, 0x7f09d5f47d4d3770, 0x36d8a5664f10e410, 0x7f9458eaf7aef158};
  const uint32_t bits = bits_of(angle);
  const uint32_t exponent = (bits >> 23) & 0xffu;
  const uint64_t significand = (bits & 0x7fffffu) | (exponent != 0 ? 0x800000u : 0u);
  const uint32_t scale = (exponent != 0 ? exponent : 1u) - 1u;  // the angle is significand * 2^(scale - 149)
  const uint32_t first_bit = scale + 43;                        // the bit of the table that stands for 2^63 turns
  const uint32_t word = first_bit / 64, shift = first_bit % 64;
  const auto window = [&](uint32_t at) {
    return kTurnsPerRadian[at] << shift | (kTurnsPerRadian[at + 1] >> 1) >> (63 - shift);
  };
  const uint64_t whole = window(word), fraction = window(word + 1);
  const uint64_t carry = (significand * (fraction >> 32) + ((significand * (fraction & 0xffffffffu)) >> 32)) >> 32;
  const uint64_t phase = significand * whole + carry;
  return (bits >> 31) != 0 ? 0 - phase : phase;
}

// cos and sin of a phase, in float, from the phase's upper 32 bits. Integer arithmetic splits off the nearest quarter
// turn; the rest, x eighth turns with |x| <= 1, goes through minimax polynomials of sin(pi/4 x) and cos(pi/4 x) (Remez,
// absolute error below 1.3e-9). The first coefficient of the sine is the sum of two floats; a single one would cost
// 2.2e-8. Largest error against the exact phase, over every 37th of the 2^30 arguments: sin 8.6e-8, cos 9.1e-8.
ROPE_HOST_DEVICE void eighth_turns(float x, float *sin, float *cos) {
  const float z = multiply_rounded(x, x);
  float s = add_rounded(2.4898723e-3f, multiply_rounded(z, -3.5877425e-5f));
  s = add_rounded(-8.0745367e-2f, multiply_rounded(z, s));
  s = add_rounded(-3.2681740e-8f, multiply_rounded(z, s));
  *sin = add_rounded(multiply_rounded(x, 7.8539819e-1f), multiply_rounded(x, s));

  float c = add_rounded(-3.2594208e-4f, multiply_rounded(z, 3.5313726e-6f));
  c = add_rounded(1.5854328e-2f, multiply_rounded(z, c));
  c = add_rounded(-3.0842514e-1f, multiply_rounded(z, c));
  *cos = add_rounded(1.0f, multiply_rounded(z, c));
}

// The version in double uses all 64 bits. The polynomials are within 1.3e-18; with roundings the error is 4e-16.
ROPE_HOST_DEVICE void eighth_turns(double x, double *sin, double *cos) {
  const double z = multiply_rounded(x, x);
  double s = add_rounded(-0x1.e2ff49f86b1fap-30, multiply_rounded(z, 0x1.e398874bf8f9bp-38));
  s = add_rounded(0x1.50782e68689e6p-22, multiply_rounded(z, s));
  s = add_rounded(-0x1.32d2cce12a112p-15, multiply_rounded(z, s));
  s = add_rounded(0x1.466bc6775679ep-9, multiply_rounded(z, s));
  s = add_rounded(-0x1.4abbce625be21p-4, multiply_rounded(z, s));
  s = multiply_rounded(z, s);
  *sin = add_rounded(multiply_rounded(x, 0x1.921fb54442d18p-1), multiply_rounded(x, s));

  double c = add_rounded(0x1.f9cc4154c2957p-34, multiply_rounded(z, -0x1.b264cc925301bp-42));
  c = add_rounded(-0x1.a6d1ec795fbe6p-26, multiply_rounded(z, c));
  c = add_rounded(0x1.e1f50683565aap-19, multiply_rounded(z, c));
  c = add_rounded(-0x1.55d3c7e3c90fdp-12, multiply_rounded(z, c));
  c = add_rounded(0x1.03c1f081b5aacp-6, multiply_rounded(z, c));
  c = add_rounded(-0x1.3bd3cc9be45dep-2, multiply_rounded(z, c));
  *cos = add_rounded(1.0, multiply_rounded(z, c));
}

// Splits off the nearest quarter turn of a phase; the rest is x eighth turns.
ROPE_HOST_DEVICE void split_phase(uint64_t phase, uint32_t *quarter, float *x) {
  const uint32_t upper = static_cast<uint32_t>(phase >> 32);
  *quarter = (upper + 0x20000000u) >> 30;
  *x = multiply_rounded(static_cast<float>(static_cast<int32_t>(upper - (*quarter << 30))), 0x1p-29f);
}

ROPE_HOST_DEVICE void split_phase(uint64_t phase, uint32_t *quarter, double *x) {
  const uint64_t nearest = (phase + 0x2000000000000000u) >> 62;
  *quarter = static_cast<uint32_t>(nearest);
  *x = multiply_rounded(static_cast<double>(static_cast<int64_t>(phase - (nearest << 62))), 0x1p-61);
}

template <typename Real>
ROPE_HOST_DEVICE CosSin<Real> cos_sin_of_phase(uint64_t phase) {
  uint32_t quarter;
  Real x, s, c;
  split_phase(phase, &quarter, &x);
  eighth_turns(x, &s, &c);
  const bool is_swapped = (quarter & 1) != 0;
  const Real sin_magnitude = is_swapped ? c : s;
  const Real cos_magnitude = is_swapped ? s : c;
  return {((quarter + 1) & 2) != 0 ? -cos_magnitude : cos_magnitude,
          (quarter & 2) != 0 ? -sin_magnitude : sin_magnitude};
}

// An angle that is not finite gives NaN for both.
template <typename Real>
ROPE_HOST_DEVICE CosSin<Real> cos_sin_of_angle(float angle) {
  if ((bits_of(angle) & 0x7f800000u) == 0x7f800000u) return {static_cast<Real>(NAN), static_cast<Real>(NAN)};
  return cos_sin_of_phase<Real>(phase_of_angle(angle));
}

// Rotates a pair. With tables by channel the two channels have different angles. The transpose exchanges and negates
// the sines.
template <typename Real>
struct Pair {
  Real x;
  Real y;
};

template <typename Real>
ROPE_HOST_DEVICE Pair<Real> rotate(Pair<Real> in, CosSin<Real> of_x, CosSin<Real> of_y) {
  return {add_rounded(multiply_rounded(in.x, of_x.cos), -multiply_rounded(in.y, of_x.sin)),
          add_rounded(multiply_rounded(in.y, of_y.cos), multiply_rounded(in.x, of_y.sin))};
}

// ROPE_ROTATION_ROUND_EACH: cos, sin and each product are rounded to T; sums are rounded when they are stored, or
// before further arithmetic. Rounding in two steps is exact here: a float holds a product or sum of two T values (at
// most 11 bits each) precisely enough that rounding it to T gives the correctly rounded result.
template <typename T>
ROPE_HOST_DEVICE CosSin<float> rounded_to(CosSin<float> angle) {
  return {to_real<float>(round_to<T>(angle.cos)), to_real<float>(round_to<T>(angle.sin))};
}

template <typename T>
ROPE_HOST_DEVICE Pair<float> rounded_to(Pair<float> sums) {
  return {to_real<float>(round_to<T>(sums.x)), to_real<float>(round_to<T>(sums.y))};
}

template <typename T>
ROPE_HOST_DEVICE float product_in(float a, float b) {
  return to_real<float>(round_to<T>(multiply_rounded(a, b)));
}

// Real is float, or a vector of floats that has a product_in.
template <typename T, typename Real>
ROPE_HOST_DEVICE Pair<Real> rotate_in(Pair<Real> in, CosSin<Real> of_x, CosSin<Real> of_y) {
  return {add_rounded(product_in<T>(in.x, of_x.cos), -product_in<T>(in.y, of_x.sin)),
          add_rounded(product_in<T>(in.y, of_y.cos), product_in<T>(in.x, of_y.sin))};
}

// Rounded is the type to which products are rounded, or void.
template <typename Rounded, typename Real>
ROPE_HOST_DEVICE Pair<Real> rotate_as(Pair<Real> in, CosSin<Real> of_x, CosSin<Real> of_y) {
  if constexpr (std::is_void_v<Rounded>) {
    return rotate(in, of_x, of_y);
  } else {
    return rotate_in<Rounded>(in, of_x, of_y);
  }
}

}  // namespace rope
