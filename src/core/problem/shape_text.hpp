// SPDX-License-Identifier: Apache-2.0
// shape_text.hpp - the shape of a tensor in words
#pragma once

#include "core/problem/fixed_list.hpp"
#include "core/problem/view.hpp"

namespace rope {

// Four numbers of up to 20 digits, each with two characters beside it.
struct ShapeText : FixedText<88> {
  explicit ShapeText(const View &view) {
    for (int axis = 0; axis < view.ndim; ++axis) {
      append(axis == 0 ? "[" : ", ");
      append(view.shape[axis]);
    }
    append("]");
  }
};

}  // namespace rope
