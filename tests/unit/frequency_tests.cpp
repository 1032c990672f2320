// SPDX-License-Identifier: Apache-2.0
// frequency_tests.cpp - compares phase increments with 113-bit arithmetic
#include <catch2/catch_test_macros.hpp>
#include <cmath>
#include <limits>
#include <vector>

#include "core/math/frequencies.hpp"
#include "support/random.hpp"
#include "unit/quad.hpp"

namespace {

std::vector<uint64_t> from_theta(double theta, int rotary_dim) {
  std::vector<uint64_t> increments(static_cast<size_t>(rotary_dim / 2));
  rope::increments_from_theta(theta, rotary_dim, increments.data());
  return increments;
}

std::vector<uint64_t> from_frequencies(const std::vector<double> &inv_freq) {
  std::vector<uint64_t> increments(inv_freq.size());
  rope::increments_from_frequencies(inv_freq.data(), static_cast<int>(inv_freq.size()), increments.data());
  return increments;
}

#if defined(ROPE_TEST_HAS_QUAD)

// For larger frequencies, the last bit of the frequency itself is worth a tenth of the circle.
constexpr double kFastest = 0x1p66;

// The error relative to the permitted one: the rounding to a unit, and 2^-64 of a hundredth of the frequency.
double share(uint64_t increment, Quad frequency) {
  const Quad magnitude = frequency < 0 ? -frequency : frequency;
  const Quad allowed = 0.5 + 0.01 * (magnitude > 1 ? magnitude : 1);
  const Quad exact = quad::fraction_units(frequency / quad::two_pi());
  return static_cast<double>(quad::circle_distance(increment, exact) / allowed);
}

#endif

}  // namespace

#if defined(ROPE_TEST_HAS_QUAD)

TEST_CASE("quad arithmetic meets known values", "[frequencies]") {
  // 1 / (2 pi) in hexadecimal digits, e in decimal digits.
  CHECK(quad::circle_distance(UINT64_C(0x28BE60DB9391054A), quad::fraction_units(1 / quad::two_pi())) < 0.5);
  CHECK(quad::circle_distance(0, quad::fraction_units(-3)) == 0);
  CHECK(quad::circle_distance(UINT64_C(0x4000000000000000), quad::fraction_units(-2.75)) == 0);
  const Quad e = static_cast<Quad>(INT64_C(271828182845904523)) / 1e17L +
                 static_cast<Quad>(INT64_C(53602874713526624)) / 1e17L / 1e17L;
  const Quad error = quad::exp(1) - e;
  CHECK(static_cast<double>(error < 0 ? -error : error) < 1e-31);
  const Quad back = quad::exp(quad::log(1e300)) / 1e300 - 1;
  CHECK(static_cast<double>(back < 0 ? -back : back) < 1e-29);
}

TEST_CASE("increments from theta are the nearest units", "[frequencies]") {
  std::vector<double> thetas = {1e4,       1e5, 5e5,  1e6, 1e7,    12345.678, 2,    1.0000001, 1,
                                0.9999999, 0.5, 1e-3, 1e8, 1e-300, 1e-150,    1e30, 1e300};
  Random random(1);
  for (int i = 0; i < 20; ++i) thetas.push_back(std::exp(random.uniform(-700, 690)));
  thetas.push_back(rope::kMinTheta);
  thetas.push_back(rope::kMaxTheta);
  const int rotary_dims[] = {2, 4, 6, 10, 16, 30, 62, 64, 80, 96, 126, 128, 192, 254, 256, 510, 512, 1000, 1022, 1024};
  int64_t compared = 0;
  for (const double theta : thetas) {
    const Quad logarithm = quad::log(theta);
    for (const int rotary_dim : rotary_dims) {
      const std::vector<uint64_t> increments = from_theta(theta, rotary_dim);
      double worst = 0;
      for (int pair = 0; pair < rotary_dim / 2; ++pair) {
        const Quad frequency = quad::exp(-logarithm * (2 * pair) / rotary_dim);
        if (frequency > kFastest) break;
        worst = std::fmax(worst, share(increments[pair], frequency));
        ++compared;
      }
      INFO("theta " << theta << ", rotary_dim " << rotary_dim);
      CHECK(worst <= 1);
    }
  }
  CHECK(compared > 50000);
}

TEST_CASE("increments of exact frequencies are the nearest units", "[frequencies]") {
  std::vector<double> inv_freq = {0.0,
                                  1.0,
                                  0.5,
                                  0.1,
                                  1e-4,
                                  1e-19,
                                  1e-20,
                                  1e-300,
                                  5e-324,
                                  6.25,
                                  1e3,
                                  123.456,
                                  1e9,
                                  0x1p53,
                                  1e18,
                                  kFastest,
                                  0x1p-62,
                                  0x1p-63,
                                  0x1p-61,
                                  3.25e-19,
                                  0x1.fffffffffffffp-1,
                                  6.283185307179586,
                                  3.141592653589793,
                                  1.5707963267948966};
  // Doubles near whole turns, for which the fraction is almost 0 or almost 1.
  for (int turns = 1; turns < 50; ++turns) {
    const double whole = 6.283185307179586 * turns;
    for (const double near : {std::nextafter(whole, 0.0), whole, std::nextafter(whole, 1e300)})
      inv_freq.push_back(near);
  }
  Random random(2);
  for (int i = 0; i < 20000; ++i)
    inv_freq.push_back(std::ldexp(random.uniform(1, 2), static_cast<int>(random.below(140)) - 75));
  const size_t positive = inv_freq.size();
  for (size_t i = 0; i < positive; ++i) inv_freq.push_back(-inv_freq[i]);
  const std::vector<uint64_t> increments = from_frequencies(inv_freq);
  double worst = 0, at = 0;
  for (size_t i = 0; i < inv_freq.size(); ++i) {
    const double error = share(increments[i], inv_freq[i]);
    if (error > worst) worst = error, at = inv_freq[i];
  }
  INFO("worst at " << at);
  CHECK(worst <= 1);
}

#else

TEST_CASE("increments against 113-bit arithmetic", "[frequencies]") {
  SKIP("this compiler has no 113-bit type");
}

#endif

TEST_CASE("a negative frequency turns the other way", "[frequencies]") {
  Random random(3);
  std::vector<double> inv_freq, negated;
  for (int i = 0; i < 1000; ++i) {
    inv_freq.push_back(std::ldexp(random.uniform(1, 2), static_cast<int>(random.below(2000)) - 1000));
    negated.push_back(-inv_freq.back());
  }
  const std::vector<uint64_t> forward = from_frequencies(inv_freq), backward = from_frequencies(negated);
  for (size_t i = 0; i < inv_freq.size(); ++i) REQUIRE(forward[i] + backward[i] == 0);
}

TEST_CASE("frequencies that turn nothing", "[frequencies]") {
  CHECK(from_frequencies({0.0, -0.0, 1e-30, -1e-30, 5e-324}) == std::vector<uint64_t>(5, 0));
}

TEST_CASE("the largest frequencies have increments", "[frequencies]") {
  const double max = std::numeric_limits<double>::max();
  const std::vector<uint64_t> increments = from_frequencies({max, -max, 1e300, max});
  CHECK(increments[0] + increments[1] == 0);
  CHECK(increments[0] == increments[3]);
}

TEST_CASE("the first pair turns one radian a position, whatever theta", "[frequencies]") {
  for (const double theta : {1e-300, 1e-3, 0.5, 1.0, 2.0, 1e4, 5e5, 1e300}) {
    for (const int rotary_dim : {2, 64, 1024}) {
      INFO("theta " << theta << ", rotary_dim " << rotary_dim);
      CHECK(from_theta(theta, rotary_dim)[0] == UINT64_C(0x28BE60DB9391054A));
    }
  }
  for (const uint64_t increment : from_theta(1, 128)) CHECK(increment == UINT64_C(0x28BE60DB9391054A));
}
