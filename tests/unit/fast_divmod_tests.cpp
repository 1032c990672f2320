// SPDX-License-Identifier: Apache-2.0
// fast_divmod_tests.cpp - compares division by multiplication with division
#include <catch2/catch_test_macros.hpp>
#include <vector>

#include "backend/cuda/kernels/fast_divmod.hpp"
#include "support/random.hpp"

namespace {

// Small numbers, powers of two and their neighbours, the ends of the range, and numbers of every length.
std::vector<uint32_t> interesting_numbers() {
  std::vector<uint32_t> numbers;
  for (uint32_t i = 0; i < 70; ++i) numbers.push_back(i);
  for (int bit = 6; bit < 32; ++bit) {
    const uint32_t power = uint32_t{1} << bit;
    for (const uint32_t near : {power - 1, power, power + 1}) numbers.push_back(near);
  }
  for (uint32_t below = 0; below < 5; ++below) numbers.push_back(~below);
  Random random(1);
  for (int i = 0; i < 2000; ++i) numbers.push_back(static_cast<uint32_t>(random.bits() >> (32 + random.below(32))));
  return numbers;
}

int64_t wrong_divisions(uint32_t divisor, uint32_t n) {
  const rope::DivmodResult result = rope::FastDivmod::by(divisor).divmod(n);
  return result.quotient != n / divisor || result.remainder != n % divisor;
}

}  // namespace

TEST_CASE("FastDivmod divides", "[fast divmod]") {
  const std::vector<uint32_t> numbers = interesting_numbers();
  int64_t wrong = 0;
  for (const uint32_t divisor : numbers) {
    if (divisor == 0) continue;
    for (const uint32_t n : numbers) wrong += wrong_divisions(divisor, n);
  }
  CHECK(wrong == 0);
}

TEST_CASE("FastDivmod divides around the multiples of its divisor", "[fast divmod]") {
  Random random(2);
  int64_t wrong = 0;
  for (const uint32_t divisor : interesting_numbers()) {
    if (divisor == 0) continue;
    const uint32_t max_factor = 0xffffffffu / divisor;
    for (int i = 0; i < 200; ++i) {
      const auto factor = i == 0 ? max_factor : static_cast<uint32_t>(random.below(int64_t{max_factor} + 1));
      const uint32_t multiple = factor * divisor;
      for (const uint32_t n : {multiple - 1, multiple, multiple + 1, multiple + (divisor - 1)})
        wrong += wrong_divisions(divisor, n);
    }
  }
  CHECK(wrong == 0);
}
