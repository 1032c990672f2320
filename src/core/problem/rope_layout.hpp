// SPDX-License-Identifier: Apache-2.0
// rope_layout.hpp - the canonical axes of each layout, and shapes in words
#pragma once

#include "core/problem/rope_problem.hpp"
#include "core/problem/view.hpp"

namespace rope {

// The index of each canonical axis in a layout; -1 if it lacks the axis (one batch).
struct LayoutAxes {
  const char *name;
  const char *axes;  // in the notation of rope.h
  int ndim;
  int axis[kNumAxes];
};

inline const LayoutAxes &axes_of(rope_layout_t layout) {
  static constexpr LayoutAxes kLayouts[] = {{"BSHD", "[B, S, H, D]", 4, {0, 1, 2, 3}},
                                            {"SBHD", "[S, B, H, D]", 4, {1, 0, 2, 3}},
                                            {"BHSD", "[B, H, S, D]", 4, {0, 2, 1, 3}},
                                            {"THD", "[T, H, D]", 3, {-1, 0, 1, 2}}};
  return kLayouts[layout - ROPE_LAYOUT_BSHD];
}

inline int64_t length_of(const View &view, const LayoutAxes &layout, Axis axis) {
  return layout.axis[axis] < 0 ? 1 : view.shape[layout.axis[axis]];
}

inline void canonical_strides(const View &view, const LayoutAxes &layout, int64_t *stride) {
  for (int axis = 0; axis < kNumAxes; ++axis) stride[axis] = layout.axis[axis] < 0 ? 0 : view.stride[layout.axis[axis]];
}

}  // namespace rope
