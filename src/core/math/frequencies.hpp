// SPDX-License-Identifier: Apache-2.0
// frequencies.hpp - the angle by which one position turns each pair, in radians and as a 64-bit fraction of a turn
#pragma once

#include <stdint.h>

#include "core/math/exact_arithmetic.hpp"

namespace rope {

constexpr int kMaxHeadDim = 1024;
constexpr int kMaxPairs = kMaxHeadDim / 2;

constexpr double kMinTheta = 1e-300;
constexpr double kMaxTheta = 1e300;

// inv_freq[i] = theta^(-2i/rotary_dim) for i < rotary_dim/2, rounded once from double-double. In this file rotary_dim
// is even and lies between 2 and kMaxHeadDim.
void frequencies_from_theta(double theta, int rotary_dim, double *inv_freq);

// inv_freq[i] = theta^(-stride * i / steps) for i < count, rounded once from double-double. Entries with stride * i >
// steps may be 0 or not finite.
void frequencies_in_steps(double theta, int steps, int stride, int count, double *inv_freq);

// increments[i] = round(frac(theta^(-2i/rotary_dim) / 2 pi) * 2^64) for i < rotary_dim/2. The frequency is a
// double-double throughout: at position 2^31 the rounding of a double would cost 4e-8 rad. theta lies between kMinTheta
// and kMaxTheta.
void increments_from_theta(double theta, int rotary_dim, uint64_t *increments);

// increments[i] = round(frac(inv_freq[i] / 2 pi) * 2^64) for i < pairs. The frequencies, in radians per position, are
// finite and taken as exact.
void increments_from_frequencies(const double *inv_freq, int pairs, uint64_t *increments);

}  // namespace rope
