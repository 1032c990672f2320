// rotation_tests.cpp - phases, their cosines and sines, and the rotation of a pair
#include <catch2/catch_test_macros.hpp>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "backend/cpu/cpu_kernels.hpp"
#include "core/rotation.hpp"
#include "support/random.hpp"

namespace {

constexpr uint32_t kQuarter = 0x40000000u;

bool same_bits(float a, float b) {
  return std::memcmp(&a, &b, sizeof a) == 0;
}

// Products and sums stored one by one: `volatile` keeps the compiler from contracting them.
float rounded_step_by_step(float a, float b, float c, float d) {
  volatile float first = a * b, second = c * d;
  return first + second;
}

}  // namespace

TEST_CASE("cosine and sine over all phases", "[rotation]") {
  constexpr double kTurn = 6.283185307179586, kUnit = kTurn / 0x1p32;
  constexpr uint32_t kStride = 61;  // prime: 70 million of the 2^32 phases, and all residues
  double worst_cos = 0, worst_sin = 0;
  for (uint64_t number = 0; number < (uint64_t{1} << 32); number += kStride) {
    const auto phase = static_cast<uint32_t>(number);
    const rope::CosSin result = rope::cos_sin_of_phase(phase);
    const double angle = static_cast<int32_t>(phase) * kUnit;
    const double cos_error = std::fabs(result.cos - std::cos(angle));
    const double sin_error = std::fabs(result.sin - std::sin(angle));
    if (!(cos_error <= worst_cos)) worst_cos = cos_error;
    if (!(sin_error <= worst_sin)) worst_sin = sin_error;
  }
  CHECK(worst_cos <= 9.3e-8);
  CHECK(worst_sin <= 9.3e-8);
}

TEST_CASE("quarter turns are exact", "[rotation]") {
  const float cos[] = {1, 0, -1, 0}, sin[] = {0, 1, 0, -1};
  for (uint32_t quarter = 0; quarter < 4; ++quarter) {
    const rope::CosSin result = rope::cos_sin_of_phase(quarter * kQuarter);
    INFO("quarter " << quarter);
    CHECK(result.cos == cos[quarter]);
    CHECK(result.sin == sin[quarter]);
  }
}

TEST_CASE("cosine and sine never exceed 1", "[rotation]") {
  int64_t beyond = 0;
  for (int64_t distance = -2000000; distance <= 2000000; ++distance) {
    for (uint32_t quarter = 0; quarter < 4; ++quarter) {
      const rope::CosSin result = rope::cos_sin_of_phase(quarter * kQuarter + static_cast<uint32_t>(distance));
      beyond += std::fabs(result.cos) > 1 || std::fabs(result.sin) > 1;
    }
  }
  CHECK(beyond == 0);
}

TEST_CASE("a quarter turn further swaps cosine and sine", "[rotation]") {
  int64_t wrong = 0;
  for (uint64_t number = 0; number < (uint64_t{1} << 32); number += 10007) {
    const auto phase = static_cast<uint32_t>(number);
    const rope::CosSin here = rope::cos_sin_of_phase(phase), further = rope::cos_sin_of_phase(phase + kQuarter);
    wrong += further.cos != -here.sin || further.sin != here.cos;
  }
  CHECK(wrong == 0);
}

TEST_CASE("the opposite phase mirrors the sine", "[rotation]") {
  int64_t wrong = 0;
  const auto compare = [&](uint32_t phase) {
    const rope::CosSin here = rope::cos_sin_of_phase(phase), opposite = rope::cos_sin_of_phase(0 - phase);
    wrong += opposite.cos != here.cos || opposite.sin != -here.sin;
  };
  for (uint64_t number = 0; number < (uint64_t{1} << 32); number += 10007) compare(static_cast<uint32_t>(number));
  // Half way between two quarter turns the two sides are split at different ones.
  for (uint32_t middle = kQuarter / 2; middle < 2 * kQuarter; middle += kQuarter) {
    for (uint32_t distance = 1; distance < 1000; ++distance) {
      compare(middle - distance);
      compare(middle + distance);
    }
  }
  CHECK(wrong == 0);
}

TEST_CASE("the phase is the top of the wrapped product", "[rotation]") {
  Random random(1);
  for (int i = 0; i < 20000; ++i) {
    const auto position = static_cast<int64_t>(random.bits()) >> random.below(64);
    const uint64_t increment = random.bits() >> random.below(64);
    // Schoolbook multiplication in 32-bit digits, of the two's complement.
    const auto bits = static_cast<uint64_t>(position);
    const uint64_t low = (bits & 0xffffffff) * (increment & 0xffffffff);
    const uint64_t middle =
        (low >> 32) + (bits >> 32) * (increment & 0xffffffff) + (bits & 0xffffffff) * (increment >> 32);
    REQUIRE(rope::phase_of(static_cast<uint64_t>(position), increment) == static_cast<uint32_t>(middle));
  }
}

TEST_CASE("phases of negative positions and of sums wrap", "[rotation]") {
  Random random(2);
  const auto near = [](uint32_t a, uint32_t b) { return a == b || a == b + 1; };
  for (int i = 0; i < 20000; ++i) {
    const uint64_t increment = random.bits();
    const uint64_t a = random.bits(), b = random.bits();
    const uint32_t phase_a = rope::phase_of(a, increment), phase_b = rope::phase_of(b, increment);
    // What is cut off below the phase may carry once.
    REQUIRE(near(rope::phase_of(a + b, increment), phase_a + phase_b));
    REQUIRE(near(0, phase_a + rope::phase_of(0 - a, increment) + 1));
  }
  constexpr uint64_t quarter_turn = uint64_t{1} << 62;
  CHECK(rope::phase_of(static_cast<uint64_t>(INT64_C(-1)), quarter_turn) == 3 * kQuarter);
  CHECK(rope::phase_of(static_cast<uint64_t>(INT64_C(-4)), quarter_turn) == 0);
  CHECK(rope::phase_of(static_cast<uint64_t>(INT64_MIN), quarter_turn + 2) == 0);
  CHECK(rope::phase_of(static_cast<uint64_t>(INT64_MAX), 1) == 0x7fffffff);
  CHECK(rope::phase_of(static_cast<uint64_t>(INT64_MIN), 1) == 0x80000000);
  CHECK(rope::phase_of(static_cast<uint64_t>(INT64_C(-1)), 1) == 0xffffffff);
}

TEST_CASE("a rotation rounds every product and sum", "[rotation]") {
  Random random(3);
  constexpr int kPairs = 4096;
  std::vector<float> half(2 * kPairs), interleaved(2 * kPairs), cos(kPairs), sin(kPairs), x(kPairs), y(kPairs);
  int fused_would_differ[4] = {};
  for (int i = 0; i < kPairs; ++i) {
    const rope::Pair in = {static_cast<float>(random.normal()), static_cast<float>(random.normal())};
    const rope::CosSin angle = rope::cos_sin_of_phase(static_cast<uint32_t>(random.bits()));
    x[i] = rounded_step_by_step(in.x, angle.cos, -in.y, angle.sin);
    y[i] = rounded_step_by_step(in.y, angle.cos, in.x, angle.sin);
    const bool differs[] = {
        std::fma(in.x, angle.cos, -(in.y * angle.sin)) != x[i], std::fma(-in.y, angle.sin, in.x * angle.cos) != x[i],
        std::fma(in.y, angle.cos, in.x * angle.sin) != y[i], std::fma(in.x, angle.sin, in.y * angle.cos) != y[i]};
    for (int way = 0; way < 4; ++way) fused_would_differ[way] += differs[way];
    const rope::Pair out = rope::rotate(in, angle.cos, angle.sin);
    REQUIRE(same_bits(out.x, x[i]));
    REQUIRE(same_bits(out.y, y[i]));
    cos[i] = angle.cos;
    sin[i] = angle.sin;
    half[i] = interleaved[2 * i] = in.x;
    half[kPairs + i] = interleaved[2 * i + 1] = in.y;
  }
  for (const int count : fused_would_differ) CHECK(count > kPairs / 20);

  const rope::CpuKernels &kernels = rope::kBaseCpuKernels;
  kernels.rotate[rope::kCpuF32][rope::kCpuHalf](half.data(), 1, half.data(), 1, kPairs, cos.data(), sin.data());
  kernels.rotate[rope::kCpuF32][rope::kCpuInterleaved](interleaved.data(), 1, interleaved.data(), 1, kPairs, cos.data(),
                                                       sin.data());
  int wrong = 0;
  for (int i = 0; i < kPairs; ++i) {
    wrong += !same_bits(half[i], x[i]) || !same_bits(half[kPairs + i], y[i]);
    wrong += !same_bits(interleaved[2 * i], x[i]) || !same_bits(interleaved[2 * i + 1], y[i]);
  }
  CHECK(wrong == 0);
}

TEST_CASE("the CPU kernel fills the angles of the phase, scaled", "[rotation]") {
  Random random(4);
  for (const int pairs : {1, 2, 3, 5, 8, 31, 64, 511, 512}) {
    std::vector<uint64_t> increments(pairs);
    for (uint64_t &increment : increments) increment = random.bits();
    const uint64_t position = random.bits();
    const float scale = static_cast<float>(random.uniform(-2, 2));
    std::vector<float> cos(pairs), sin(pairs);
    rope::kBaseCpuKernels.fill_angles(increments.data(), pairs, position, scale, cos.data(), sin.data());
    int wrong = 0;
    for (int pair = 0; pair < pairs; ++pair) {
      const rope::CosSin angle = rope::cos_sin_of_phase(rope::phase_of(position, increments[pair]));
      volatile float scaled_cos = angle.cos * scale, scaled_sin = angle.sin * scale;
      wrong += !same_bits(cos[pair], scaled_cos) || !same_bits(sin[pair], scaled_sin);
    }
    INFO(pairs << " pairs");
    CHECK(wrong == 0);
  }
}
