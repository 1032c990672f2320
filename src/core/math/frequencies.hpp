// frequencies.hpp - how far one position turns each pair, in radians and as a 64-bit fraction of a turn
#pragma once

#include <stdint.h>

#include "core/math/exact_arithmetic.hpp"

namespace rope {

constexpr int kMaxHeadDim = 1024;
constexpr int kMaxPairs = kMaxHeadDim / 2;

constexpr double kMinTheta = 1e-300;
constexpr double kMaxTheta = 1e300;

// inv_freq[i] = theta^(-2i/rotary_dim), i < rotary_dim/2, rounded once from double-double. Here and below rotary_dim is
// even, 2 to kMaxHeadDim.
void frequencies_from_theta(double theta, int rotary_dim, double *inv_freq);

// inv_freq[i] = theta^(-stride * i / steps), i < count, rounded once from double-double. Where stride * i goes beyond
// steps it may be 0 or not finite.
void frequencies_in_steps(double theta, int steps, int stride, int count, double *inv_freq);

// increments[i] = round(frac(theta^(-2i/rotary_dim) / 2 pi) * 2^64), i < rotary_dim/2.
// The frequency is carried in double-double from theta on: at position 2^31 a double frequency would already cost
// 4e-8 rad. theta lies between kMinTheta and kMaxTheta.
void increments_from_theta(double theta, int rotary_dim, uint64_t *increments);

// The same from frequencies in radians per position, each taken as exact. They are finite.
void increments_from_frequencies(const double *inv_freq, int pairs, uint64_t *increments);

}  // namespace rope
