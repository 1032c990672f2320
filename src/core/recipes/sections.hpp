// SPDX-License-Identifier: Apache-2.0
// sections.hpp - multi-axis position maps: from a model's section list to the axis and frequency of each pair
#pragma once

#include "core/math/frequencies.hpp"
#include "core/problem/status.hpp"

namespace rope {

struct SectionAxes {
  int32_t pair_axis[kMaxPairs];  // rotary_dim/2 entries
  double inv_freq[kMaxPairs];
};

// `sections` is an imported struct. sections.cpp has all error messages. *result is meaningful only after success.
rope_status_t map_sections(const char *function, int32_t rotary_dim, double theta, const rope_sections_t &sections,
                           SectionAxes *result);

}  // namespace rope
