// SPDX-License-Identifier: Apache-2.0
// swiglu_rows.hpp - the expert of a row by expert_offsets, by the definition of rope.h
#ifndef ROPE_TESTS_SUPPORT_SWIGLU_ROWS_HPP
#define ROPE_TESTS_SUPPORT_SWIGLU_ROWS_HPP

#include <cstdint>
#include <vector>

namespace swiglu_rows {

inline bool is_rising(const std::vector<int64_t> &offsets, int64_t rows) {
  int64_t before = 0;
  for (const int64_t offset : offsets) {
    if (offset < before) return false;
    before = offset;
  }
  return before <= rows;
}

inline size_t bisect(const std::vector<int64_t> &offsets, int64_t row, size_t lo, size_t hi) {
  if (hi == lo + 1) return lo;
  const size_t middle = (lo + hi) / 2;
  return offsets[middle] <= row ? bisect(offsets, row, middle, hi) : bisect(offsets, row, lo, middle);
}

// Returns the expert of a row, or -1 if it has none.
inline int64_t expert_of(const std::vector<int64_t> &offsets, int64_t rows, int64_t row) {
  if (is_rising(offsets, rows)) {
    for (size_t expert = 0; expert + 1 < offsets.size(); ++expert) {
      if (offsets[expert] <= row && row < offsets[expert + 1]) return static_cast<int64_t>(expert);
    }
    return -1;
  }
  if (row < offsets.front() || row >= offsets.back()) return -1;
  const size_t expert = bisect(offsets, row, 0, offsets.size() - 1);
  return offsets[expert] < 0 || offsets[expert + 1] > rows ? -1 : static_cast<int64_t>(expert);
}

}  // namespace swiglu_rows

#endif
