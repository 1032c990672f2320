// SPDX-License-Identifier: Apache-2.0
// shape_text.hpp - the shape of a tensor in words
#pragma once

#include <stddef.h>

#include "core/problem/view.hpp"

namespace rope {

struct ShapeText {
  explicit ShapeText(const View &view) {
    size_t used = 0;
    for (int axis = 0; axis < view.ndim; ++axis) used = append(used, axis == 0 ? "[" : ", ", view.shape[axis]);
    text[used] = ']';
    text[used + 1] = '\0';
  }
  size_t append(size_t used, const char *separator, int64_t value) {
    for (; *separator != '\0'; ++separator) text[used++] = *separator;
    char digits[20];
    int count = 0;
    do digits[count++] = static_cast<char>('0' + value % 10);
    while ((value /= 10) != 0);
    while (count > 0) text[used++] = digits[--count];
    return used;
  }
  char text[4 * 22];
};

}  // namespace rope
