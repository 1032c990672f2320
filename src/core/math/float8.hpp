// SPDX-License-Identifier: Apache-2.0
// float8.hpp - the 8-bit storage types, conversion to them, and the scales written beside them; identical on host and
// device
#pragma once

#include "core/math/float16.hpp"

namespace rope {

// 4 bits of exponent and 3 of mantissa; no infinity, the largest number is 448.
struct Float8E4M3 {
  uint8_t bits;

  static constexpr int kBits = 8;
  static constexpr int kMantissaBits = 3;
  static constexpr int kExponentBias = 7;
  static constexpr float kMax = 448.0f;
  static constexpr uint8_t kOfNaN = 0x7f;
};

// 5 bits of exponent and 2 of mantissa; the largest number is 57344.
struct Float8E5M2 {
  uint8_t bits;

  static constexpr int kBits = 8;
  static constexpr int kMantissaBits = 2;
  static constexpr int kExponentBias = 15;
  static constexpr float kMax = 57344.0f;
  static constexpr uint8_t kOfNaN = 0x7f;
};

// 2 bits of exponent and 1 of mantissa; neither infinity nor NaN, which becomes the largest number, 6.
struct Float4E2M1 {
  uint8_t bits;  // the upper four are 0

  static constexpr int kBits = 4;
  static constexpr int kMantissaBits = 1;
  static constexpr int kExponentBias = 1;
  static constexpr float kMax = 6.0f;
  static constexpr uint8_t kOfNaN = 0x7;
};

constexpr uint8_t kFloat8NaN = 0x7f;  // of both types of 8 bits, whatever NaN it comes from

// To nearest even; what is larger than the largest number, infinities too, becomes that one.
template <typename Code>
ROPE_HOST_DEVICE Code round_to_code_by_bits(float value) {
  constexpr int kDropped = 23 - Code::kMantissaBits, kMinExponent = 1 - Code::kExponentBias;
  constexpr uint32_t kMinNormal = static_cast<uint32_t>(127 + kMinExponent) << 23;
  // 2^23 times the step of subnormal numbers: a float of this size is a multiple of the step, and its mantissa counts.
  constexpr uint32_t kCounter = static_cast<uint32_t>(127 + kMinExponent - Code::kMantissaBits + 23) << 23;
  const uint32_t sign = (bits_of(value) >> (32 - Code::kBits)) & (1u << (Code::kBits - 1)), max = bits_of(Code::kMax);
  uint32_t magnitude = bits_of(value) & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return {Code::kOfNaN};
  if (magnitude > max) magnitude = max;
  const uint32_t half = (1u << (kDropped - 1)) - 1 + ((magnitude >> kDropped) & 1u);
  const uint32_t normal = (magnitude - kMinNormal + (1u << 23) + half) >> kDropped;
  const uint32_t subnormal = bits_of(float_of(magnitude) + float_of(kCounter)) - kCounter;
  return {static_cast<uint8_t>(sign | (magnitude < kMinNormal ? subnormal : normal))};
}

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
#define ROPE_HAS_FLOAT8_CONVERSION 1
#endif

template <>
ROPE_HOST_DEVICE Float8E4M3 round_to<Float8E4M3>(float value) {
#if defined(ROPE_HAS_FLOAT8_CONVERSION)
  uint16_t pair;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(0.0f), "f"(value));
  return {static_cast<uint8_t>(pair)};
#else
  return round_to_code_by_bits<Float8E4M3>(value);
#endif
}

template <>
ROPE_HOST_DEVICE Float8E5M2 round_to<Float8E5M2>(float value) {
#if defined(ROPE_HAS_FLOAT8_CONVERSION)
  uint16_t pair;
  asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(0.0f), "f"(value));
  return {static_cast<uint8_t>(pair)};
#else
  return round_to_code_by_bits<Float8E5M2>(value);
#endif
}

// Codes 0 to 7 of 4 bits are 0, 0.5, 1, 1.5, 2, 3, 4 and 6. So the code of a magnitude m is the smallest of 2 m, m + 2,
// m / 2 + 4 and 7, rounded to an integer, to the even one halfway. Adding 2^23 rounds once and leaves the integer in
// the lowest bits.
constexpr uint32_t kE2M1Counter = 0x4b000000u;  // the bits of 2^23

// Returns kE2M1Counter + the code of |value|. The bits of floats that are not negative are compared as integers, where
// a NaN is above all numbers and becomes 7.
ROPE_HOST_DEVICE uint32_t count_e2m1(float value) {
  const float counter = float_of(kE2M1Counter), magnitude = float_of(bits_of(value) & 0x7fffffffu);
  const auto smaller = [](int32_t a, int32_t b) { return a < b ? a : b; };
  const auto as_integer = [](float number) { return static_cast<int32_t>(bits_of(number)); };
  const int32_t doubled = as_integer(magnitude * 2.0f + counter), moved = as_integer(magnitude + (counter + 2.0f));
  const int32_t halved = as_integer(magnitude * 0.5f + (counter + 4.0f));
  return static_cast<uint32_t>(
      smaller(smaller(smaller(doubled, moved), halved), static_cast<int32_t>(kE2M1Counter + 7)));
}

// Returns the bits of a product or sum; those of a NaN have the sign bit 0, as GPUs make them.
ROPE_HOST_DEVICE uint32_t bits_of_result(float value) {
#if !defined(__CUDA_ARCH__)
  if ((bits_of(value) & 0x7fffffffu) > 0x7f800000u) return 0x7fffffffu;
#endif
  return bits_of(value);
}

// On a GPU `value` is a product or sum.
template <>
ROPE_HOST_DEVICE Float4E2M1 round_to<Float4E2M1>(float value) {
  return {static_cast<uint8_t>((count_e2m1(value) & 7u) | (bits_of_result(value) >> 28 & 8u))};
}

ROPE_HOST_DEVICE float to_float(Float8E4M3 code) {
  const uint32_t magnitude = code.bits & 0x7fu, sign = static_cast<uint32_t>(code.bits & 0x80u) << 24;
  if (magnitude == kFloat8NaN) return float_of(0x7fc00000u);
  const float subnormal = static_cast<float>(magnitude) * 0x1p-9f;
  const uint32_t normal = (magnitude << 20) + (static_cast<uint32_t>(127 - Float8E4M3::kExponentBias) << 23);
  return float_of(sign | (magnitude < 8 ? bits_of(subnormal) : normal));
}

constexpr float kMaxCodeFactor = 3.40282347e38f;

// global / scale, a factor of values: 0 for a scale of 0, the largest F32 where it is above that. Scale and global have
// the same sign.
ROPE_HOST_DEVICE float written_code_factor(float scale, float global = 1.0f) {
  if (scale == 0) return 0;
  const float factor = global / scale;
  return factor > kMaxCodeFactor ? kMaxCodeFactor : factor;
}

// The factor of values before they are rounded to 8 or 4 bits, from a static scale, which may be any number.
ROPE_HOST_DEVICE float code_factor(float scale, bool multiplies) {
  if (multiplies) return scale;
  const float factor = written_code_factor(scale);
  return factor < -kMaxCodeFactor ? -kMaxCodeFactor : factor;
}

// The format of a written scale.
enum class ScaleForm : uint8_t {
  kF32,
  kPowerOfTwo,  // as F32
  kE8M0,
  kE4M3  // beside codes of 4 bits
};

struct GroupScale {
  uint32_t bits;  // bits of the scale as F32 or E8M0
  float factor;   // the group's values are multiplied by it
};

// The scale of a group by the bits of its largest magnitude. The largest code is max_code; the form is not kE4M3. A
// NaN makes it and all codes NaN, an infinity it infinite.
ROPE_HOST_DEVICE GroupScale scale_of_group(uint32_t magnitude, ScaleForm form, float max_code) {
  constexpr uint32_t kInfinity = 0x7f800000u, kNaN = 0x7fc00000u;
  if (magnitude > kInfinity) return {form == ScaleForm::kE8M0 ? 255 : kNaN, float_of(kNaN)};
  if (magnitude == kInfinity) return {form == ScaleForm::kE8M0 ? 254 : kInfinity, 0};
  if (form == ScaleForm::kF32) {
    const float scale = float_of(magnitude) / max_code;
    return {bits_of(scale), written_code_factor(scale)};
  }
  // The least power of two p with max_code * p >= magnitude.
  constexpr uint32_t kMinNormal = 0x00800000u, kFraction = 0x007fffffu;
  const int max_exponent = static_cast<int>(bits_of(max_code) >> 23) - 127;
  const bool is_subnormal = magnitude < kMinNormal;
  const uint32_t normal = is_subnormal ? bits_of(float_of(magnitude) * 0x1p64f) : magnitude;
  const int lowest = form == ScaleForm::kE8M0 ? -127 : -149;
  int exponent = static_cast<int>(normal >> 23) - 127 - (is_subnormal ? 64 : 0) - max_exponent +
                 ((normal & kFraction) > (bits_of(max_code) & kFraction) ? 1 : 0);
  if (exponent < lowest) exponent = lowest;
  const uint32_t power =
      exponent >= -126 ? static_cast<uint32_t>(exponent + 127) << 23 : 1u << static_cast<uint32_t>(exponent + 149);
  // The reciprocal of a power of two is exact; exponent is at most 126.
  const float factor = exponent >= -127 ? float_of(static_cast<uint32_t>(127 - exponent) << 23) : kMaxCodeFactor;
  return {form == ScaleForm::kE8M0 ? static_cast<uint32_t>(exponent + 127) : power, factor};
}

template <typename Float8>
ROPE_HOST_DEVICE GroupScale scale_of_group(uint32_t magnitude, ScaleForm form) {
  return scale_of_group(magnitude, form, Float8::kMax);
}

// The scale of a group in the form kE4M3, beside codes of 4 bits. An infinite magnitude gets the largest scale.
ROPE_HOST_DEVICE GroupScale e4m3_scale_of_group(uint32_t magnitude, float global) {
  const Float8E4M3 scale = round_to<Float8E4M3>(global * (float_of(magnitude) / Float4E2M1::kMax));
  return {scale.bits, written_code_factor(to_float(scale), global)};
}

}  // namespace rope
