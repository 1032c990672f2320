// SPDX-License-Identifier: Apache-2.0
// scaling.hpp - recipes of context scaling: from parameters to frequencies and an attention factor
#pragma once

#include "core/math/frequencies.hpp"
#include "core/problem/status.hpp"

namespace rope {

struct ScaledFrequencies {
  double inv_freq[kMaxPairs];  // rotary_dim/2 entries
  double attention_scale;
};

// `scaling` is an imported struct. scaling.cpp has all error messages. *result is meaningful only after success.
rope_status_t scale_frequencies(const char *function, int32_t rotary_dim, double theta, const rope_scaling_t &scaling,
                                ScaledFrequencies *result);

}  // namespace rope
