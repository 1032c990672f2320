// overlap.hpp - whether a view visits an element twice, and whether two views share one
#pragma once

#include "core/problem/view.hpp"

namespace rope {

// An output may not visit one element twice.
rope_status_t check_output_strides(const char *function, const char *field, const View &view);

inline bool addresses_meet(const View &a, const View &b) {
  return a.begin < b.end && b.begin < a.end;
}

// views_overlap of views whose addresses meet.
bool elements_overlap(const View &a, const View &b);

// True only if an element of `a` and one of `b` share bytes. Exact where at most two different strides remain of the
// two views together, leaving out those that leave no gap between elements; with more, a bounded search may miss an
// overlap.
inline bool views_overlap(const View &a, const View &b) {
  return addresses_meet(a, b) && elements_overlap(a, b);
}

}  // namespace rope
