// float8_tests.cpp - fp32 values of every exponent to 8 bits and around every rounding boundary, against a search among
// all values of a type
#include <algorithm>
#include <catch2/catch_template_test_macros.hpp>
#include <catch2/catch_test_macros.hpp>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

#include "core/math/float8.hpp"

namespace {

using rope::Float8E4M3;
using rope::Float8E5M2;

float float_with(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

// The finite values that are not negative, by code: OCP OFP8, tables 1 and 2.
template <typename T>
std::vector<long double> values_of() {
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
    if (std::isnan(value)) return 0x7f;
    const int sign = std::signbit(value) ? 0x80 : 0, last = static_cast<int>(values.size()) - 1;
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

TEMPLATE_TEST_CASE("fp32 rounds to the nearest code at every upper half", "[float8]", Float8E4M3, Float8E5M2) {
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

TEMPLATE_TEST_CASE("halfway between codes the even one is taken", "[float8]", Float8E4M3, Float8E5M2) {
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

TEMPLATE_TEST_CASE("every NaN is one code", "[float8]", Float8E4M3, Float8E5M2) {
  for (const uint32_t bits :
       {0x7f800001u, 0x7f8fffffu, 0x7fbfffffu, 0x7fc00000u, 0x7fffffffu, 0xff800001u, 0xffc00000u, 0xffffffffu}) {
    INFO("0x" << std::hex << bits);
    CHECK(rope::round_to<TestType>(float_with(bits)).bits == 0x7f);
  }
}
