// SPDX-License-Identifier: Apache-2.0
// random.hpp - seeded random numbers, identical on every machine and with every standard library
#ifndef ROPE_TESTS_SUPPORT_RANDOM_HPP
#define ROPE_TESTS_SUPPORT_RANDOM_HPP

#include <cmath>
#include <cstdint>

// SplitMix64 (Steele, Lea, Flood 2014).
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  uint64_t bits() {
    uint64_t z = state_ += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  }

  // From 0 to count - 1.
  int64_t below(int64_t count) { return static_cast<int64_t>(bits() % static_cast<uint64_t>(count)); }

  // In [low, high).
  double uniform(double low, double high) { return low + (high - low) * static_cast<double>(bits() >> 11) * 0x1p-53; }

  double normal() {
    const double radius = std::sqrt(-2 * std::log(1 - uniform(0, 1)));
    return radius * std::cos(uniform(0, 6.283185307179586));
  }

  // Normal numbers scaled by 2^-8 to 2^8; one in 64 is a zero of either sign. The range is a little wider than that of
  // activations.
  double mixed() {
    const uint64_t choice = bits();
    if (choice % 64 == 0) return choice & 64 ? 0.0 : -0.0;
    return std::ldexp(normal(), static_cast<int>((choice >> 8) % 17) - 8);
  }

 private:
  uint64_t state_;
};

#endif
