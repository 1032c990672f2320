// SPDX-License-Identifier: Apache-2.0
// float16_tests.cpp - converts every 16-bit value to fp32 and back, and fp32 values around every rounding boundary
#include <catch2/catch_template_test_macros.hpp>
#include <catch2/catch_test_macros.hpp>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "core/math/float16.hpp"
#include "support/oracle.hpp"
#include "support/random.hpp"

namespace {

template <typename T>
constexpr rope_dtype_t kDtype = ROPE_DTYPE_F16;
template <>
constexpr rope_dtype_t kDtype<rope::BFloat16> = ROPE_DTYPE_BF16;

template <typename T>
constexpr uint16_t kQuietBit = 0x0200;
template <>
constexpr uint16_t kQuietBit<rope::BFloat16> = 0x0040;

float float_with(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

template <typename T>
uint16_t expected_bits(float value) {
  uint16_t bits;
  oracle::encode(kDtype<T>, value, &bits);
  return bits;
}

// Counts values that are not rounded as by the oracle, and keeps the first of them.
template <typename T>
struct Rounding {
  int64_t compared = 0, wrong = 0;
  uint32_t first_wrong = 0;

  void compare(uint32_t bits) {
    const float value = float_with(bits);
    const uint16_t rounded = rope::round_to<T>(value).bits;
    const bool is_right = std::isnan(value)
                              ? std::isnan(oracle::decode(kDtype<T>, &rounded)) && (rounded & kQuietBit<T>) != 0
                              : rounded == expected_bits<T>(value);
    ++compared;
    if (is_right) return;
    if (wrong++ == 0) first_wrong = bits;
  }
};

}  // namespace

TEMPLATE_TEST_CASE("every 16-bit value has its fp32 value and comes back", "[float16]", rope::Float16, rope::BFloat16) {
  int wrong_value = 0, wrong_return = 0, nans = 0;
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const TestType stored = {static_cast<uint16_t>(bits)};
    const float value = rope::to_float(stored);
    const oracle::Real exact = oracle::decode(kDtype<TestType>, &stored);
    const TestType back = rope::round_to<TestType>(value);
    if (std::isnan(exact)) {
      ++nans;
      wrong_value += !std::isnan(value);
      wrong_return += !std::isnan(oracle::decode(kDtype<TestType>, &back)) || (back.bits & kQuietBit<TestType>) == 0;
    } else {
      wrong_value += value != exact || std::signbit(value) != ((bits & 0x8000) != 0);
      wrong_return += back.bits != bits;
    }
  }
  CHECK(wrong_value == 0);
  CHECK(wrong_return == 0);
  CHECK(nans == 2 * (kDtype<TestType> == ROPE_DTYPE_F16 ? 1023 : 127));
}

TEMPLATE_TEST_CASE("fp32 rounds to nearest even at every exponent", "[float16]", rope::Float16, rope::BFloat16) {
  Random random(1);
  Rounding<TestType> rounding;
  for (uint32_t exponent = 0; exponent < 256; ++exponent) {
    for (int bit = 0; bit < 23; ++bit) {
      // Below `bit`, the mantissa is at the tie, just below it and just above it; above `bit`, it has a few patterns
      // and all ones.
      const uint32_t tie = uint32_t{1} << bit >> 1, above = 0x7fffffu & ~((uint32_t{1} << bit) - 1);
      for (int pattern = 0; pattern < 10; ++pattern) {
        const uint32_t upper = above & (pattern == 0   ? 0
                                        : pattern == 1 ? 0x7fffffu
                                                       : static_cast<uint32_t>(random.bits()));
        for (const uint32_t lower : {uint32_t{0}, tie, tie - (tie > 0), tie + (tie > 1), (uint32_t{1} << bit) - 1}) {
          const uint32_t magnitude = exponent << 23 | upper | lower;
          rounding.compare(magnitude);
          rounding.compare(magnitude | 0x80000000u);
        }
      }
    }
  }
  INFO("first wrong: 0x" << std::hex << rounding.first_wrong);
  CHECK(rounding.wrong == 0);
  CHECK(rounding.compared > 500000);
}

TEMPLATE_TEST_CASE("halfway between neighbours the even one is taken", "[float16]", rope::Float16, rope::BFloat16) {
  const uint16_t infinity = expected_bits<TestType>(INFINITY);
  Rounding<TestType> rounding;
  int not_even = 0;
  for (uint16_t bits = 0; bits + 1 < infinity; ++bits) {
    const TestType below = {bits}, above = {static_cast<uint16_t>(bits + 1)};
    const double middle = (double{rope::to_float(below)} + double{rope::to_float(above)}) / 2;
    const auto tie = static_cast<float>(middle);
    if (tie != middle) continue;  // between subnormals of BF16 that are also subnormal in fp32
    const uint16_t rounded = rope::round_to<TestType>(tie).bits;
    not_even += rounded % 2 != 0 || (rounded != bits && rounded != bits + 1);
    for (const float near : {tie, std::nextafter(tie, 0.0f), std::nextafter(tie, INFINITY)}) {
      uint32_t near_bits;
      std::memcpy(&near_bits, &near, sizeof near);
      rounding.compare(near_bits);
      rounding.compare(near_bits | 0x80000000u);
    }
  }
  CHECK(not_even == 0);
  CHECK(rounding.wrong == 0);
  CHECK(rounding.compared > 6 * 31000);
}

TEST_CASE("the largest Float16 and the smallest", "[float16]") {
  const auto bits = [](float value) { return rope::round_to<rope::Float16>(value).bits; };
  CHECK(bits(65504.0f) == 0x7bff);
  CHECK(bits(65519.99f) == 0x7bff);
  CHECK(bits(std::nextafter(65520.0f, 0.0f)) == 0x7bff);
  CHECK(bits(65520.0f) == 0x7c00);
  CHECK(bits(-65520.0f) == 0xfc00);
  CHECK(bits(3.4e38f) == 0x7c00);
  CHECK(bits(INFINITY) == 0x7c00);
  CHECK(bits(-INFINITY) == 0xfc00);
  CHECK(bits(0x1p-14f) == 0x0400);
  CHECK(bits(std::nextafter(0x1p-14f, 0.0f)) == 0x0400);
  CHECK(bits(0x1p-24f) == 0x0001);
  CHECK(bits(0x1p-25f) == 0x0000);
  CHECK(bits(std::nextafter(0x1p-25f, 1.0f)) == 0x0001);
  CHECK(bits(-0x1p-25f) == 0x8000);
  CHECK(bits(0x1.8p-24f) == 0x0002);
  CHECK(bits(0x1.4p-23f) == 0x0002);
  CHECK(bits(-0.0f) == 0x8000);
}

TEST_CASE("the largest BFloat16 and the smallest", "[float16]") {
  const auto bits = [](float value) { return rope::round_to<rope::BFloat16>(value).bits; };
  CHECK(bits(0x1.fep127f) == 0x7f7f);
  CHECK(bits(std::nextafter(0x1.ffp127f, 0.0f)) == 0x7f7f);
  CHECK(bits(0x1.ffp127f) == 0x7f80);
  CHECK(bits(-0x1.fffffep127f) == 0xff80);
  CHECK(bits(INFINITY) == 0x7f80);
  CHECK(bits(0x1p-133f) == 0x0001);
  CHECK(bits(0x1p-134f) == 0x0000);
  CHECK(bits(0x1.8p-133f) == 0x0002);
  CHECK(bits(-0x1p-149f) == 0x8000);
}

TEMPLATE_TEST_CASE("a NaN stays a quiet NaN of its sign", "[float16]", rope::Float16, rope::BFloat16) {
  for (const uint32_t bits :
       {0x7f800001u, 0x7f8fffffu, 0x7fbfffffu, 0x7fc00000u, 0x7fffffffu, 0xff800001u, 0xffffffffu}) {
    const uint16_t rounded = rope::round_to<TestType>(float_with(bits)).bits;
    INFO("0x" << std::hex << bits);
    CHECK(std::isnan(oracle::decode(kDtype<TestType>, &rounded)));
    CHECK((rounded & kQuietBit<TestType>) != 0);
    CHECK((rounded >> 15) == (bits >> 31));
  }
}
