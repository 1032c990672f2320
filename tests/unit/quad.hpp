// SPDX-License-Identifier: Apache-2.0
// quad.hpp - logarithm, exponential and fractions of a turn with 113 bits, computed only by + - * /
#ifndef ROPE_TESTS_UNIT_QUAD_HPP
#define ROPE_TESTS_UNIT_QUAD_HPP

#include <cfloat>
#include <cstdint>

#if LDBL_MANT_DIG >= 113
#define ROPE_TEST_HAS_QUAD 1
using Quad = long double;
#elif defined(__SIZEOF_FLOAT128__)
#define ROPE_TEST_HAS_QUAD 1
using Quad = __float128;
#endif

#if defined(ROPE_TEST_HAS_QUAD)

namespace quad {

inline Quad scaled(Quad value, int exponent) {
  for (; exponent >= 64; exponent -= 64) value *= 0x1p64;
  for (; exponent <= -64; exponent += 64) value *= 0x1p-64;
  for (; exponent > 0; --exponent) value *= 2;
  for (; exponent < 0; ++exponent) value /= 2;
  return value;
}

// 2 atanh(t) = ln((1 + t) / (1 - t)) for |t| <= 1/3.
inline Quad twice_atanh(Quad t) {
  Quad sum = 0, power = t;
  for (int odd = 1; odd < 80; odd += 2) {
    sum += power / odd;
    power *= t * t;
  }
  return 2 * sum;
}

inline Quad ln2() {
  static const Quad value = twice_atanh(static_cast<Quad>(1) / 3);
  return value;
}

inline Quad log(Quad x) {
  int exponent = 0;
  for (; x > 1.5; x /= 2) ++exponent;
  for (; x < 0.75; x *= 2) --exponent;
  return exponent * ln2() + twice_atanh((x - 1) / (x + 1));
}

inline Quad exp(Quad x) {
  const auto exponent = static_cast<int>(x / ln2() + (x < 0 ? -0.5 : 0.5));
  const Quad rest = (x - exponent * ln2()) / 16;
  Quad sum = 1, term = 1;
  for (int n = 1; n < 30; ++n) {
    term *= rest / n;
    sum += term;
  }
  for (int squaring = 0; squaring < 4; ++squaring) sum *= sum;
  return scaled(sum, exponent);
}

// The digits of pi in base 16: 3.243F6A8885A308D3 13198A2E03707344 A4093822299F31D0.
inline Quad two_pi() {
  static const Quad pi = 3 + scaled(static_cast<Quad>(UINT64_C(0x243F6A8885A308D3)), -64) +
                         scaled(static_cast<Quad>(UINT64_C(0x13198A2E03707344)), -128);
  return 2 * pi;
}

// 2^64 times the fractional part of `turns`, whose magnitude is below 2^100.
inline Quad fraction_units(Quad turns) {
  const Quad rest = turns - static_cast<Quad>(static_cast<__int128>(turns));
  return scaled(rest < 0 ? rest + 1 : rest, 64);
}

// The distance of `units` from `exact` on the circle of 2^64 units.
inline Quad circle_distance(uint64_t units, Quad exact) {
  const Quad circle = scaled(1, 64);
  Quad distance = static_cast<Quad>(units) - exact;
  if (distance < 0) distance = -distance;
  return distance > circle / 2 ? circle - distance : distance;
}

}  // namespace quad

#endif

#endif
