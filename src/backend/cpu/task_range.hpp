// SPDX-License-Identifier: Apache-2.0
// task_range.hpp - divides work into tasks
#pragma once

#include <stdint.h>

namespace rope {

struct Range {
  int64_t begin;
  int64_t end;
};

// Part `index` of `count` nearly equal parts of 0 to total.
inline Range part_of(int64_t total, int count, int index) {
  const int64_t size = total / count, rest = total % count;
  const int64_t begin = index * size + (index < rest ? index : rest);
  return {begin, begin + size + (index < rest ? 1 : 0)};
}

}  // namespace rope
