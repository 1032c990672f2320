// SPDX-License-Identifier: Apache-2.0
// code_oracle.hpp - codes of 8 and 4 bits and written scales, by search among numbers and powers of two
#ifndef ROPE_TESTS_SUPPORT_CODE_ORACLE_HPP
#define ROPE_TESTS_SUPPORT_CODE_ORACLE_HPP

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "oracle.hpp"
#include "tensors.hpp"

namespace code_oracle {

using oracle::Real;

// How a written scale is made.
struct ScaleRule {
  rope_dtype_t code;
  rope_dtype_t scale_dtype;
  uint32_t flags;
  double floor;
};

inline float magnitude_of(Real value) {
  return std::fabs(static_cast<float>(value));
}

inline float top_of(rope_dtype_t code) {
  return code == ROPE_DTYPE_F8_E4M3 ? 448.0f : code == ROPE_DTYPE_F8_E5M2 ? 57344.0f : 6.0f;
}

// OCP MX, table of E2M1, by search: the nearest, of two the even one, and the largest beyond it. NaN becomes that too.
inline uint8_t pair_code(float value) {
  constexpr float numbers[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
  if (std::isnan(value)) return 7;
  const Real magnitude = std::fabs(static_cast<Real>(value));
  int best = 7;
  for (int code = 6; code >= 0 && magnitude < 6; --code) {
    const Real distance = std::fabs(magnitude - numbers[code]), other = std::fabs(magnitude - numbers[best]);
    if (distance < other || (distance == other && code % 2 == 0)) best = code;
  }
  return static_cast<uint8_t>(best | (std::signbit(value) ? 8 : 0));
}

inline uint8_t code_of(rope_dtype_t dtype, float value) {
  if (dtype == ROPE_DTYPE_F4_E2M1X2) return pair_code(value);
  uint8_t code;
  oracle::encode(dtype, value, &code);
  return code;
}

// TransformerEngine's scale of MXFP8 to E4M3, "round up": the exponent of amax times 1/448 and, where there is a
// fraction, one more.
inline int rounded_up_exponent(float amax) {
  const float ratio = amax * (1.0f / 448.0f);
  if (std::isnan(ratio)) return 255;
  if (std::isinf(ratio)) return 254;
  int exponent = 0;
  const float fraction = std::frexp(ratio, &exponent);  // from 0.5 on
  return ratio == 0 ? 0 : exponent - 1 + 127 + (fraction > 0.5f ? 1 : 0);
}

// A written scale as a number.
inline float scale_of(const ScaleRule &rule, float amax, float global) {
  const bool is_e8m0 = rule.scale_dtype == ROPE_DTYPE_F8_E8M0, is_e4m3 = rule.scale_dtype == ROPE_DTYPE_F8_E4M3;
  const float floor = rule.floor != 0 ? static_cast<float>(rule.floor) : is_e8m0 || is_e4m3 ? 0.0f : 1e-10f;
  const float held = std::isnan(amax) ? amax : std::max(amax, floor), top = top_of(rule.code);
  if (is_e4m3) {
    const float sixth = static_cast<float>(static_cast<Real>(held) / 6);
    const float product = static_cast<float>(static_cast<Real>(global) * sixth);
    uint8_t code;
    oracle::encode(ROPE_DTYPE_F8_E4M3, product, &code);
    return static_cast<float>(oracle::decode(ROPE_DTYPE_F8_E4M3, &code));
  }
  if (std::isnan(amax) || std::isinf(amax)) return amax;
  if (!is_e8m0 && (rule.flags & ROPE_QUANT_FLAG_POWER_OF_TWO) == 0) return held / top;
  int exponent = is_e8m0 ? -127 : -149;
  while (std::ldexp(static_cast<Real>(top), exponent) < static_cast<Real>(held)) ++exponent;
  return static_cast<float>(std::ldexp(Real{1}, exponent));
}

inline float inverse_of(float scale, float global) {
  if (scale == 0) return 0;
  const auto inverse = static_cast<float>(static_cast<Real>(global) / scale);
  return std::isinf(inverse) ? std::copysign(std::numeric_limits<float>::max(), inverse) : inverse;
}

// As the scale is stored.
inline uint32_t bits_of_scale(const ScaleRule &rule, float scale) {
  if (rule.scale_dtype == ROPE_DTYPE_F8_E4M3) return code_of(ROPE_DTYPE_F8_E4M3, scale);
  if (rule.scale_dtype != ROPE_DTYPE_F8_E8M0) {
    if (std::isnan(scale)) return 0x7fc00000u;
    uint32_t bits;
    std::memcpy(&bits, &scale, sizeof bits);
    return bits;
  }
  if (std::isnan(scale)) return 255;
  return std::isinf(scale) ? 254 : static_cast<uint32_t>(std::ilogb(scale) + 127);
}

inline uint32_t bits_at(const rope_tensor_t &tensor, const Index &at) {
  uint32_t bits = 0;
  std::memcpy(&bits, element_at(tensor, at), static_cast<size_t>(oracle::element_size(tensor.dtype)));
  return bits;
}

// How many codes lie between two.
inline int steps_between(rope_dtype_t dtype, uint8_t a, uint8_t b) {
  const int sign = dtype == ROPE_DTYPE_F4_E2M1X2 ? 8 : 128;
  const auto place = [&](uint8_t code) { return (code & sign) != 0 ? sign - code : int{code}; };
  // The sign counts even where the magnitude may have vanished.
  return place(a) == place(b) && a != b ? 1 : std::abs(place(a) - place(b));
}

inline uint8_t code_at(const rope_tensor_t &out, Index at) {
  if (out.dtype != ROPE_DTYPE_F4_E2M1X2) return static_cast<uint8_t>(bits_at(out, at));
  int64_t &channel = at[static_cast<size_t>(out.ndim) - 1];
  const bool is_odd = channel % 2 != 0;
  channel /= 2;
  const uint32_t pair = bits_at(out, at);
  return static_cast<uint8_t>(is_odd ? pair >> 4 : pair & 15);
}

// A written scale as a number, from its bits.
inline float scale_from(rope_dtype_t dtype, uint32_t bits) {
  float scale = std::numeric_limits<float>::quiet_NaN();
  if (dtype == ROPE_DTYPE_F32) {
    std::memcpy(&scale, &bits, sizeof scale);
  } else if (dtype == ROPE_DTYPE_F8_E4M3) {
    const auto byte = static_cast<uint8_t>(bits);
    scale = static_cast<float>(oracle::decode(ROPE_DTYPE_F8_E4M3, &byte));
  } else if (bits != 255) {
    scale = bits == 254 ? std::numeric_limits<float>::infinity() : std::ldexp(1.0f, static_cast<int>(bits) - 127);
  }
  return scale;
}

}  // namespace code_oracle

#endif
