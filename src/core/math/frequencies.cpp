// SPDX-License-Identifier: Apache-2.0
// frequencies.cpp - frequencies and phase increments in double-double arithmetic
//
// A double-double is an unevaluated sum high + low with |low| <= ulp(high)/2, about 106 bits. Only correctly rounded
// operations (+, -, *, / and fma) are applied to it, so every machine computes identical increments. pow only provides
// the first guess of a Newton iteration, and its result does not depend on the guess's last bits. Algorithms: T. J.
// Dekker, "A floating-point technique for extending the available precision", 1971.
#include "core/math/frequencies.hpp"

#include <math.h>

namespace rope {

namespace {

struct DoubleDouble {
  double high;
  double low;
};

constexpr DoubleDouble kTurnsPerRadian = {0x1.45f306dc9c883p-3, -0x1.6b01ec5417056p-57};  // 1 / (2 pi)

DoubleDouble add_ordered(double big, double small) {  // |big| >= |small|
  const double sum = big + small;
  return {sum, small - (sum - big)};
}

DoubleDouble multiply(DoubleDouble a, DoubleDouble b) {
  const double product = a.high * b.high;
  const double error = fma(a.high, b.high, -product);
  return add_ordered(product, error + (a.high * b.low + a.low * b.high));
}

DoubleDouble divide(DoubleDouble a, DoubleDouble b) {
  const double quotient = a.high / b.high;
  const DoubleDouble back = multiply({quotient, 0.0}, b);
  const double rest = (a.high - back.high) - back.low + a.low;
  return add_ordered(quotient, rest / b.high);
}

DoubleDouble power(DoubleDouble base, int exponent) {
  DoubleDouble result = {1.0, 0.0};
  for (; exponent > 0; exponent >>= 1) {
    if (exponent & 1) result = multiply(result, base);
    base = exponent > 1 ? multiply(base, base) : base;
  }
  return result;
}

// powers[i] = power(base, i), bit for bit: the last factor of that product belongs to the highest set bit of i.
void all_powers(DoubleDouble base, int count, DoubleDouble *powers) {
  powers[0] = {1.0, 0.0};
  for (int bit = 1; bit < count; bit *= 2) {
    for (int i = bit; i < count && i < 2 * bit; ++i) powers[i] = multiply(powers[i - bit], base);
    base = multiply(base, base);
  }
}

// x^(1/n) for x >= 1. Each Newton step on r^n = x doubles the number of correct bits: 50, then 100, then all.
DoubleDouble nth_root(DoubleDouble x, int n) {
  DoubleDouble root = {pow(x.high, 1.0 / n), 0.0};
  for (int step = 0; step < 3; ++step) {
    const DoubleDouble ratio = divide(x, power(root, n));
    const double correction = ((ratio.high - 1.0) + ratio.low) / n;
    const double shift = root.high * correction;
    root = add_ordered(root.high, shift + root.low);
  }
  return root;
}

// theta^(-1/pairs). The root's argument is at least 1, so that its powers stay above the subnormal range.
DoubleDouble step_between_pairs(double theta, int pairs) {
  const DoubleDouble one = {1.0, 0.0};
  const DoubleDouble exact_theta = {theta, 0.0};
  const bool is_growing = theta < 1.0;
  const DoubleDouble root = nth_root(is_growing ? divide(one, exact_theta) : exact_theta, pairs);
  return is_growing ? root : divide(one, root);
}

// A fraction of [0, 1) in units of 2^-64: upper * 2^32 + lower, both exact.
struct FractionBits {
  uint64_t upper;
  double lower;
};

FractionBits split_fraction(double fraction) {
  const double upper = floor(fraction * 0x1p32);
  return {static_cast<uint64_t>(upper), (fraction * 0x1p32 - upper) * 0x1p32};
}

// round(frac(turns) * 2^64). The low part may be negative: 1 - 2^-80 is not a double.
uint64_t fraction_bits(DoubleDouble turns) {
  const double low = turns.low - nearbyint(turns.low);
  const FractionBits big = split_fraction(turns.high - floor(turns.high));
  const FractionBits small = split_fraction(fabs(low));
  const bool is_negative = low < 0.0;
  const uint64_t upper = is_negative ? big.upper - small.upper : big.upper + small.upper;
  const double lower = nearbyint(is_negative ? big.lower - small.lower : big.lower + small.lower);
  return (upper << 32) + static_cast<uint64_t>(static_cast<int64_t>(lower));
}

uint64_t increment(DoubleDouble frequency) {
  const bool is_negative = frequency.high < 0.0;
  if (is_negative) frequency = {-frequency.high, -frequency.low};
  const uint64_t bits = fraction_bits(multiply(frequency, kTurnsPerRadian));
  return is_negative ? 0 - bits : bits;
}

}  // namespace

void frequencies_from_theta(double theta, int rotary_dim, double *inv_freq) {
  frequencies_in_steps(theta, rotary_dim / 2, 1, rotary_dim / 2, inv_freq);
}

void frequencies_in_steps(double theta, int steps, int stride, int count, double *inv_freq) {
  const DoubleDouble step = step_between_pairs(theta, steps);
  DoubleDouble powers[kMaxPairs];
  all_powers(power(step, stride), count, powers);
  for (int i = 0; i < count; ++i) inv_freq[i] = powers[i].high;
}

void increments_from_theta(double theta, int rotary_dim, uint64_t *increments) {
  const int pairs = rotary_dim / 2;
  DoubleDouble powers[kMaxPairs];
  all_powers(step_between_pairs(theta, pairs), pairs, powers);
  for (int pair = 0; pair < pairs; ++pair) increments[pair] = increment(powers[pair]);
}

void increments_from_frequencies(const double *inv_freq, int pairs, uint64_t *increments) {
  for (int pair = 0; pair < pairs; ++pair) increments[pair] = increment({inv_freq[pair], 0.0});
}

}  // namespace rope
