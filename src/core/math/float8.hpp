// float8.hpp - the 8-bit storage types, conversion to them, and the scales written beside them; identical on host and
// device
#pragma once

#include "core/math/float16.hpp"

namespace rope {

// 4 bits of exponent and 3 of mantissa; no infinity, the largest number is 448.
struct Float8E4M3 {
  uint8_t bits;

  static constexpr int kMantissaBits = 3;
  static constexpr int kExponentBias = 7;
  static constexpr float kMax = 448.0f;  // 1.75 * 2^8
  static constexpr int kMaxExponent = 8;
};

// 5 bits of exponent and 2 of mantissa; the largest number is 57344.
struct Float8E5M2 {
  uint8_t bits;

  static constexpr int kMantissaBits = 2;
  static constexpr int kExponentBias = 15;
  static constexpr float kMax = 57344.0f;  // 1.75 * 2^15
  static constexpr int kMaxExponent = 15;
};

constexpr uint8_t kFloat8NaN = 0x7f;  // for both types; the sign and payload of the NaN are dropped

// Rounds to nearest even and saturates: values beyond the largest number, infinities too, become that number.
template <typename Float8>
ROPE_HOST_DEVICE Float8 round_to_float8_by_bits(float value) {
  constexpr int kDropped = 23 - Float8::kMantissaBits, kMinExponent = 1 - Float8::kExponentBias;
  constexpr uint32_t kMinNormal = static_cast<uint32_t>(127 + kMinExponent) << 23;
  // 2^23 times the spacing of subnormal numbers: a float of this size is a multiple of the spacing, which its mantissa
  // counts.
  constexpr uint32_t kCounter = static_cast<uint32_t>(127 + kMinExponent - Float8::kMantissaBits + 23) << 23;
  const uint32_t sign = (bits_of(value) >> 24) & 0x80u, max = bits_of(Float8::kMax);
  uint32_t magnitude = bits_of(value) & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return {kFloat8NaN};
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
  return round_to_float8_by_bits<Float8E4M3>(value);
#endif
}

template <>
ROPE_HOST_DEVICE Float8E5M2 round_to<Float8E5M2>(float value) {
#if defined(ROPE_HAS_FLOAT8_CONVERSION)
  uint16_t pair;
  asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(0.0f), "f"(value));
  return {static_cast<uint8_t>(pair)};
#else
  return round_to_float8_by_bits<Float8E5M2>(value);
#endif
}

// The number by which values are multiplied before they are rounded to 8 bits.
ROPE_HOST_DEVICE float code_factor(float scale, bool multiplies) {
  return multiplies ? scale : 1.0f / scale;
}

// The format of a written scale.
enum class ScaleForm : uint8_t {
  kF32,
  kPowerOfTwo,  // a power of two, stored as F32
  kE8M0
};

struct GroupScale {
  uint32_t bits;  // bits of the scale as F32 or E8M0
  float factor;   // the group's values are multiplied by it
};

// 1 / scale: 0 for a scale of 0, and at most the largest F32.
ROPE_HOST_DEVICE float written_code_factor(float scale) {
  constexpr float kMaxFactor = 3.40282347e38f;
  if (scale == 0) return 0;
  const float factor = 1.0f / scale;
  return factor > kMaxFactor ? kMaxFactor : factor;
}

// Returns a group's scale from the bits of its largest magnitude, for a code type whose largest number is 1.75 *
// 2^max_exponent. A NaN makes the scale and all codes NaN; an infinity makes the scale infinite.
ROPE_HOST_DEVICE GroupScale scale_of_group(uint32_t magnitude, ScaleForm form, int max_exponent) {
  constexpr uint32_t kInfinity = 0x7f800000u, kNaN = 0x7fc00000u;
  if (magnitude > kInfinity) return {form == ScaleForm::kE8M0 ? 255 : kNaN, float_of(kNaN)};
  if (magnitude == kInfinity) return {form == ScaleForm::kE8M0 ? 254 : kInfinity, 0};
  if (form == ScaleForm::kF32) {
    const float max_code = 1.75f * float_of(static_cast<uint32_t>(127 + max_exponent) << 23);
    const float scale = float_of(magnitude) / max_code;
    return {bits_of(scale), written_code_factor(scale)};
  }
  // The smallest power of two p with 1.75 * 2^max_exponent * p >= magnitude.
  constexpr uint32_t kMinNormal = 0x00800000u, kFraction = 0x007fffffu, kFractionOfMax = 0x00600000u;
  const bool is_subnormal = magnitude < kMinNormal;
  const uint32_t normal = is_subnormal ? bits_of(float_of(magnitude) * 0x1p64f) : magnitude;
  const int lowest = form == ScaleForm::kE8M0 ? -127 : -149;
  int exponent = static_cast<int>(normal >> 23) - 127 - (is_subnormal ? 64 : 0) - max_exponent +
                 ((normal & kFraction) > kFractionOfMax ? 1 : 0);
  if (exponent < lowest) exponent = lowest;
  const uint32_t power =
      exponent >= -126 ? static_cast<uint32_t>(exponent + 127) << 23 : 1u << static_cast<uint32_t>(exponent + 149);
  return {form == ScaleForm::kE8M0 ? static_cast<uint32_t>(exponent + 127) : power,
          written_code_factor(float_of(power))};
}

template <typename Float8>
ROPE_HOST_DEVICE GroupScale scale_of_group(uint32_t magnitude, ScaleForm form) {
  return scale_of_group(magnitude, form, Float8::kMaxExponent);
}

}  // namespace rope
