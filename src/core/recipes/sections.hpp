// sections.hpp - multi-axis position maps: from a model's section list to the axis and the frequency of each pair
#pragma once

#include "core/math/frequencies.hpp"
#include "core/problem/status.hpp"

namespace rope {

struct SectionAxes {
  int32_t pair_axis[kMaxPairs];  // rotary_dim/2 of them
  double inv_freq[kMaxPairs];
};

// `sections` is an imported struct. Every sentence about a wrong one is in sections.cpp. What is written to *result
// counts only where the status is a success.
rope_status_t map_sections(const char *function, int32_t rotary_dim, double theta, const rope_sections_t &sections,
                           SectionAxes *result);

}  // namespace rope
