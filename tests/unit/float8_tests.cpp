// SPDX-License-Identifier: Apache-2.0
// float8_tests.cpp - fp32 values of every exponent to 8 and 4 bits and around every rounding boundary, against a search
// among all values of a type; and the scales of groups, against a search among numbers of fp32 and among powers of two
#include <algorithm>
#include <catch2/catch_template_test_macros.hpp>
#include <catch2/catch_test_macros.hpp>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

#include "core/math/float8.hpp"
#include "support/random.hpp"

namespace {

using rope::Float4E2M1;
using rope::Float8E4M3;
using rope::Float8E5M2;
using rope::ScaleForm;

float float_with(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

// The finite values that are not negative, by code: OCP OFP8, tables 1 and 2, and OCP MX, table 5.
template <typename T>
std::vector<long double> values_of() {
  if (std::is_same_v<T, Float4E2M1>) return {0, 0.5L, 1, 1.5L, 2, 3, 4, 6};
  const bool is_e4m3 = std::is_same_v<T, Float8E4M3>;
  const int steps = is_e4m3 ? 8 : 4, min_exponent = is_e4m3 ? -6 : -14, codes = is_e4m3 ? 0x7f : 0x7c;
  std::vector<long double> values;
  for (int code = 0; code < codes; ++code) {
    const int exponent = code / steps, mantissa = code % steps;
    values.push_back(exponent == 0
                         ? std::ldexp(static_cast<long double>(mantissa) / steps, min_exponent)
                         : std::ldexp(1 + static_cast<long double>(mantissa) / steps, min_exponent + exponent - 1));
  }
  return values;
}

template <typename T>
struct Rounding {
  const std::vector<long double> values = values_of<T>();
  int64_t compared = 0, wrong = 0;
  uint32_t first_wrong = 0;

  int expected_code(float value) const {
    const bool has_4_bits = std::is_same_v<T, Float4E2M1>;
    if (std::isnan(value)) return has_4_bits ? 7 : 0x7f;
    const int sign = !std::signbit(value) ? 0 : has_4_bits ? 8 : 0x80, last = static_cast<int>(values.size()) - 1;
    const long double magnitude = std::fabs(static_cast<long double>(value));
    if (magnitude >= values.back()) return sign | last;
    const int above = static_cast<int>(std::upper_bound(values.begin(), values.end(), magnitude) - values.begin());
    const long double to_above = values[static_cast<size_t>(above)] - magnitude,
                      to_below = magnitude - values[static_cast<size_t>(above - 1)];
    const bool is_up = to_above < to_below || (to_above == to_below && above % 2 == 0);
    return sign | (is_up ? above : above - 1);
  }

  void compare(uint32_t bits) {
    const float value = float_with(bits);
    ++compared;
    if (rope::round_to<T>(value).bits == expected_code(value)) return;
    if (wrong++ == 0) first_wrong = bits;
  }

  void compare_both_signs(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    compare(bits);
    compare(bits ^ 0x80000000u);
  }
};

}  // namespace

TEMPLATE_TEST_CASE("fp32 rounds to the nearest code at every upper half", "[float8]", Float8E4M3, Float8E5M2,
                   Float4E2M1) {
  Rounding<TestType> rounding;
  for (uint32_t upper = 0; upper < 0x10000u; ++upper) {
    for (const uint32_t lower : {0x0000u, 0x0001u, 0x1234u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) {
      rounding.compare(upper << 16 | lower);
    }
  }
  INFO("first wrong: 0x" << std::hex << rounding.first_wrong);
  CHECK(rounding.wrong == 0);
  CHECK(rounding.compared == 7 * 65536);
}

TEMPLATE_TEST_CASE("halfway between codes the even one is taken", "[float8]", Float8E4M3, Float8E5M2, Float4E2M1) {
  Rounding<TestType> rounding;
  int not_even = 0;
  for (size_t code = 0; code + 1 < rounding.values.size(); ++code) {
    const auto tie = static_cast<float>((rounding.values[code] + rounding.values[code + 1]) / 2);
    not_even += rope::round_to<TestType>(tie).bits % 2;
    const auto value = static_cast<float>(rounding.values[code]);
    CHECK(rope::round_to<TestType>(value).bits == code);
    for (const float middle : {tie, value}) {
      rounding.compare_both_signs(middle);
      rounding.compare_both_signs(std::nextafter(middle, -INFINITY));
      rounding.compare_both_signs(std::nextafter(middle, INFINITY));
    }
  }
  CHECK(not_even == 0);
  INFO("first wrong: 0x" << std::hex << rounding.first_wrong);
  CHECK(rounding.wrong == 0);
}

TEST_CASE("the largest 8-bit numbers and the smallest", "[float8]") {
  const auto e4m3 = [](float value) { return int{rope::round_to<Float8E4M3>(value).bits}; };
  const auto e5m2 = [](float value) { return int{rope::round_to<Float8E5M2>(value).bits}; };
  CHECK(e4m3(448.0f) == 0x7e);
  CHECK(e4m3(std::nextafter(432.0f, 0.0f)) == 0x7d);
  CHECK(e4m3(432.0f) == 0x7e);
  CHECK(e4m3(464.0f) == 0x7e);
  CHECK(e4m3(3.4e38f) == 0x7e);
  CHECK(e4m3(INFINITY) == 0x7e);
  CHECK(e4m3(-INFINITY) == 0xfe);
  CHECK(e4m3(0x1p-6f) == 0x08);
  CHECK(e4m3(0x1p-9f) == 0x01);
  CHECK(e4m3(0x1p-10f) == 0x00);
  CHECK(e4m3(std::nextafter(0x1p-10f, 1.0f)) == 0x01);
  CHECK(e4m3(0x1.8p-9f) == 0x02);
  CHECK(e4m3(-0.0f) == 0x80);
  CHECK(e5m2(57344.0f) == 0x7b);
  CHECK(e5m2(61440.0f) == 0x7b);
  CHECK(e5m2(INFINITY) == 0x7b);
  CHECK(e5m2(-INFINITY) == 0xfb);
  CHECK(e5m2(0x1p-14f) == 0x04);
  CHECK(e5m2(0x1p-16f) == 0x01);
  CHECK(e5m2(0x1p-17f) == 0x00);
  CHECK(e5m2(std::nextafter(0x1p-17f, 1.0f)) == 0x01);
  CHECK(e5m2(-0x1p-149f) == 0x80);
}

TEST_CASE("numbers of E4M3 are those of their table, and NaN", "[float8]") {
  const std::vector<long double> values = values_of<Float8E4M3>();
  for (int code = 0; code < 256; ++code) {
    const float value = rope::to_float(Float8E4M3{static_cast<uint8_t>(code)});
    INFO("code " << code);
    if ((code & 0x7f) == 0x7f) {
      CHECK(std::isnan(value));
      continue;
    }
    CHECK(std::fabs(value) == values[static_cast<size_t>(code & 0x7f)]);
    CHECK(std::signbit(value) == (code >= 0x80));
  }
}

TEMPLATE_TEST_CASE("every NaN is one code", "[float8]", Float8E4M3, Float8E5M2) {
  for (const uint32_t bits :
       {0x7f800001u, 0x7f8fffffu, 0x7fbfffffu, 0x7fc00000u, 0x7fffffffu, 0xff800001u, 0xffc00000u, 0xffffffffu}) {
    INFO("0x" << std::hex << bits);
    CHECK(rope::round_to<TestType>(float_with(bits)).bits == 0x7f);
  }
}

// ---- Scales of groups ----

namespace {

uint32_t bits_with(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

// rope.h: a scale is amax / top, or the smallest power of two p with top * p >= amax, and the factor is 1/scale.
template <typename T>
struct GroupScales {
  const long double top = values_of<T>().back();
  const ScaleForm form;
  std::vector<long double> products;  // top * p for each power of two
  int64_t compared = 0, wrong = 0;
  uint32_t first_wrong = 0;

  explicit GroupScales(ScaleForm of) : form(of) {
    for (int exponent = lowest(); exponent <= 127; ++exponent) products.push_back(std::ldexp(top, exponent));
  }

  int lowest() const { return form == ScaleForm::kE8M0 ? -127 : -149; }

  // All products and differences here are exact in long double, so the comparison involves no rounding.
  static bool is_nearest(float value, long double by, long double wanted) {
    const auto distance = [&](float of) { return std::fabs(of * by - wanted); };
    for (const float other : {std::nextafter(value, -INFINITY), std::nextafter(value, INFINITY)}) {
      if (std::isinf(other)) continue;
      if (distance(other) < distance(value)) return false;
      if (distance(other) == distance(value) && bits_with(value) % 2 != 0) return false;
    }
    return true;
  }

  static bool is_factor_of(long double scale, float factor) {
    constexpr float max = 0x1.fffffep127f;
    if (scale == 0) return bits_with(factor) == 0;
    if (scale * max < 1) return factor == max;  // the reciprocal exceeds the largest fp32 number
    return factor > 0 && is_nearest(factor, scale, 1);
  }

  bool is_right(uint32_t magnitude, const rope::GroupScale &found) const {
    const bool is_e8m0 = form == ScaleForm::kE8M0;
    const float largest = float_with(magnitude);
    if (std::isnan(largest)) {
      return std::isnan(found.factor) && (is_e8m0 ? found.bits == 255 : std::isnan(float_with(found.bits)));
    }
    if (std::isinf(largest)) {
      return bits_with(found.factor) == 0 && found.bits == (is_e8m0 ? 254 : bits_with(INFINITY));
    }
    if (form == ScaleForm::kF32) {
      const float scale = float_with(found.bits);
      return !std::signbit(scale) && is_nearest(scale, top, largest) && is_factor_of(scale, found.factor);
    }
    const auto least = std::lower_bound(products.begin(), products.end(), static_cast<long double>(largest));
    const int exponent = static_cast<int>(least - products.begin()) + lowest();
    const long double power = std::ldexp(1.0L, exponent);
    const uint32_t bits = is_e8m0 ? static_cast<uint32_t>(exponent + 127) : bits_with(static_cast<float>(power));
    return found.bits == bits && is_factor_of(power, found.factor);
  }

  void compare(uint32_t magnitude) {
    ++compared;
    if (is_right(magnitude, rope::scale_of_group<T>(magnitude, form))) return;
    if (wrong++ == 0) first_wrong = magnitude;
  }

  void compare_around(float value) {
    compare(bits_with(value));
    compare(bits_with(std::nextafter(value, 0.0f)));
    compare(bits_with(std::nextafter(value, INFINITY)));
  }
};

constexpr ScaleForm forms[] = {ScaleForm::kF32, ScaleForm::kPowerOfTwo, ScaleForm::kE8M0};

}  // namespace

TEMPLATE_TEST_CASE("scales of groups are the nearest, or the least power of two that is enough", "[float8][scales]",
                   Float8E4M3, Float8E5M2, Float4E2M1) {
  for (const ScaleForm form : forms) {
    GroupScales<TestType> scales(form);
    for (uint32_t upper = 0; upper < 0x8000u; ++upper) {
      for (const uint32_t lower : {0x0000u, 0x0001u, 0x7fffu, 0x8000u, 0xffffu}) scales.compare(upper << 16 | lower);
    }
    for (int exponent = -149; exponent <= 127; ++exponent) {
      for (const float multiple : {1.0f, 1.75f, 1.25f, 1.5f, 1.625f})
        scales.compare_around(std::ldexp(multiple, exponent));
    }
    for (uint32_t subnormal = 0; subnormal < 0x1000u; ++subnormal) scales.compare(subnormal);
    for (uint32_t shift = 0; shift < 23; ++shift) scales.compare(0x007fffffu >> shift);
    Random random(9);
    for (int i = 0; i < 200000; ++i) scales.compare(static_cast<uint32_t>(random.bits() >> 33));
    INFO("form " << static_cast<int>(form) << ", first wrong: 0x" << std::hex << scales.first_wrong);
    CHECK(scales.wrong == 0);
    CHECK(scales.compared > 300000);
  }
}

TEST_CASE("the scales of chosen groups", "[float8][scales]") {
  const auto e8m0 = [](float largest) {
    return rope::scale_of_group<Float8E4M3>(bits_with(largest), ScaleForm::kE8M0).bits;
  };
  CHECK(e8m0(448.0f) == 127);
  CHECK(e8m0(std::nextafter(448.0f, 500.0f)) == 128);
  CHECK(e8m0(256.0f) == 127);
  CHECK(e8m0(224.0f) == 126);
  CHECK(e8m0(0.0f) == 0);
  CHECK(e8m0(0x1p-149f) == 0);
  CHECK(e8m0(0x1.cp-119f) == 0);
  CHECK(e8m0(0x1.c00002p-119f) == 1);
  CHECK(e8m0(0x1.fffffep127f) == 247);
  const auto power = [](float largest) {
    return float_with(rope::scale_of_group<Float8E5M2>(bits_with(largest), ScaleForm::kPowerOfTwo).bits);
  };
  CHECK(power(57344.0f) == 1);
  CHECK(power(std::nextafter(57344.0f, 60000.0f)) == 2);
  CHECK(power(0x1.cp-134f) == 0x1p-149f);
  CHECK(power(0x1.c1p-134f) == 0x1p-148f);
  CHECK(power(0x1p-149f) == 0x1p-149f);
  const auto scale = [](float largest) {
    return rope::scale_of_group<Float8E4M3>(bits_with(largest), ScaleForm::kF32);
  };
  CHECK(float_with(scale(1.0f).bits) == 1.0f / 448);
  CHECK(scale(1.0f).factor == 1 / (1.0f / 448));
  CHECK(scale(0.0f).bits == 0);
  CHECK(bits_with(scale(0.0f).factor) == 0);
  CHECK(scale(0x1p-149f).factor == 0);  // the exact scale is less than half the smallest number
  CHECK(scale(448 * 0x1p-149f).factor == 0x1.fffffep127f);
}

TEST_CASE("scales of E4M3 are the global one times a sixth of the largest, codes are scaled by their quotient",
          "[float8][scales]") {
  Rounding<Float8E4M3> e4m3;
  Random random(11);
  int64_t wrong = 0;
  for (int i = 0; i < 200000; ++i) {
    const float largest = std::ldexp(static_cast<float>(random.uniform(1, 2)), static_cast<int>(random.below(40)) - 20);
    const float global = std::ldexp(static_cast<float>(random.uniform(1, 2)), static_cast<int>(random.below(30)) - 15);
    const rope::GroupScale found = rope::e4m3_scale_of_group(bits_with(largest), global);
    // Long double has 64 bits, so that rounding its quotients and products once more to fp32 is harmless.
    const auto sixth = static_cast<float>(static_cast<long double>(largest) / 6);
    const auto product = static_cast<float>(static_cast<long double>(global) * sixth);
    const int code = e4m3.expected_code(product);
    const long double scale = e4m3.values[static_cast<size_t>(code)];
    const float factor = scale == 0 ? 0.0f : static_cast<float>(static_cast<long double>(global) / scale);
    wrong += static_cast<int>(found.bits) != code || bits_with(found.factor) != bits_with(factor);
  }
  CHECK(wrong == 0);
  const auto scale = [](float largest, float global) { return rope::e4m3_scale_of_group(bits_with(largest), global); };
  CHECK(scale(6, 448).bits == 0x7e);
  CHECK(scale(6, 448).factor == 1);
  CHECK(scale(0, 448).bits == 0);
  CHECK(bits_with(scale(0, 448).factor) == 0);
  CHECK(scale(INFINITY, 1).bits == 0x7e);
  CHECK(scale(INFINITY, 1).factor == 1.0f / 448);
  CHECK(scale(3e38f, 3e38f).bits == 0x7e);
  CHECK(scale(NAN, 1).bits == 0x7f);
  CHECK(std::isnan(scale(NAN, 1).factor));
  CHECK(scale(1e-38f, 3e38f).factor == 0x1.fffffep127f);
}
