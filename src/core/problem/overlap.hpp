// SPDX-License-Identifier: Apache-2.0
// overlap.hpp - whether a view visits an element twice, and whether two views share one
#pragma once

#include "core/problem/view.hpp"

namespace rope {

// Refuses an output that visits an element twice.
rope_status_t check_output_strides(const char *function, const char *field, const View &view);

inline bool addresses_meet(const View &a, const View &b) {
  return a.begin < b.end && b.begin < a.end;
}

// views_overlap for views with intersecting address ranges.
bool elements_overlap(const View &a, const View &b);

// True only if an element of `a` and one of `b` share bytes. The answer is exact if the two views together have at most
// two different strides, not counting strides that leave no gap between elements. With more strides the search is
// bounded and may miss an overlap.
inline bool views_overlap(const View &a, const View &b) {
  return addresses_meet(a, b) && elements_overlap(a, b);
}

}  // namespace rope
