// SPDX-License-Identifier: Apache-2.0
// spread.hpp - the median and the spread of repeated measurements
#pragma once

#include <algorithm>
#include <vector>

namespace bench {

struct Spread {
  double median_us = 0;
  double min_us = 0;
  double max_us = 0;
};

inline Spread spread_of(std::vector<double> times) {
  if (times.empty()) return {};
  std::sort(times.begin(), times.end());
  return {times[times.size() / 2], times.front(), times.back()};
}

}  // namespace bench
