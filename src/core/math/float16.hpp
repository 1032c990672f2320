// SPDX-License-Identifier: Apache-2.0
// float16.hpp - the 16-bit storage types and their conversions, round to nearest even, the same on host and device
#pragma once

#include <stdint.h>
#include <string.h>

#include "core/math/host_device.hpp"

namespace rope {

struct Float16 {
  uint16_t bits;
};

struct BFloat16 {
  uint16_t bits;
};

ROPE_HOST_DEVICE uint32_t bits_of(float value) {
#if defined(__CUDA_ARCH__)
  return __float_as_uint(value);
#else
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
#endif
}

ROPE_HOST_DEVICE float float_of(uint32_t bits) {
#if defined(__CUDA_ARCH__)
  return __uint_as_float(bits);
#else
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
#endif
}

ROPE_HOST_DEVICE float to_float(float value) {
  return value;
}

ROPE_HOST_DEVICE float to_float(BFloat16 value) {
  return float_of(static_cast<uint32_t>(value.bits) << 16);
}

ROPE_HOST_DEVICE float to_float(Float16 value) {
#if defined(__CUDA_ARCH__)
  float result;
  asm("cvt.f32.f16 %0, %1;" : "=f"(result) : "h"(value.bits));
  return result;
#else
  // With the exponent and mantissa moved into a float's places, the value is too small by a factor of 2^112, subnormals
  // included: one exact product corrects it. Infinity and NaN have the largest exponent and get a float's largest.
  const uint32_t magnitude = value.bits & 0x7fffu;
  const uint32_t sign = static_cast<uint32_t>(value.bits & 0x8000u) << 16;
  const uint32_t finite = bits_of(float_of(magnitude << 13) * 0x1p112f);
  const uint32_t special = (magnitude << 13) | 0x7f800000u;
  return float_of(sign | (magnitude >= 0x7c00u ? special : finite));
#endif
}

// Converts a value to Real, the type of the arithmetic: float, or double for F64 data. Exact, except from double to
// float.
template <typename Real, typename T>
ROPE_HOST_DEVICE Real to_real(T value) {
  return to_float(value);
}

template <>
ROPE_HOST_DEVICE float to_real(double value) {
  return static_cast<float>(value);
}

template <>
ROPE_HOST_DEVICE double to_real(double value) {
  return value;
}

template <typename T>
ROPE_HOST_DEVICE T round_to(float value);

template <>
ROPE_HOST_DEVICE float round_to<float>(float value) {
  return value;
}

template <>
ROPE_HOST_DEVICE BFloat16 round_to<BFloat16>(float value) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  BFloat16 result;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(result.bits) : "f"(value));
  return result;
#else
  const uint32_t bits = bits_of(value);
  const uint32_t rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
  const uint32_t quiet_nan = bits | 0x400000u;
  return {static_cast<uint16_t>(((bits & 0x7fffffffu) > 0x7f800000u ? quiet_nan : rounded) >> 16)};
#endif
}

// Rounds to BFloat16 and leaves the result in the upper half; the lower half is arbitrary. If `value` is NaN its lower
// 16 bits must be 0. They are after arithmetic on BFloat16s: such a NaN is an operand made quiet, or the processor's
// default NaN.
ROPE_HOST_DEVICE uint32_t round_to_upper_half(float value) {
  return bits_of(value) + 0x7fffu + ((bits_of(value) >> 16) & 1u);
}

template <>
ROPE_HOST_DEVICE Float16 round_to<Float16>(float value) {
#if defined(__CUDA_ARCH__)
  Float16 result;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(result.bits) : "f"(value));
  return result;
#else
  const uint32_t sign = (bits_of(value) >> 16) & 0x8000u;
  const uint32_t magnitude = bits_of(value) & 0x7fffffffu;
  // Normal result: rebias the exponent and round off 13 bits, half to even. A carry into the exponent is correct.
  const uint32_t normal = (magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  // Below 2^-14: adding 0.5 rounds the value and leaves the subnormal's bits at the bottom of the mantissa.
  const uint32_t subnormal = bits_of(float_of(magnitude) + 0.5f) - 0x3f000000u;
  const uint32_t special = magnitude > 0x7f800000u ? 0x7e00u : 0x7c00u;
  // 65520 and above round to infinity.
  const uint32_t finite = magnitude < 0x38800000u ? subnormal : normal;
  return {static_cast<uint16_t>(sign | (magnitude >= 0x477ff000u ? special : finite))};
#endif
}

template <typename T>
ROPE_HOST_DEVICE T round_to(double value);

template <>
ROPE_HOST_DEVICE double round_to<double>(double value) {
  return value;
}

// The arithmetic type for data of a type.
template <typename T>
struct ArithmeticOf {
  using Real = float;
};

template <>
struct ArithmeticOf<double> {
  using Real = double;
};

template <typename T>
using RealOf = typename ArithmeticOf<T>::Real;

}  // namespace rope
