// SPDX-License-Identifier: Apache-2.0
// wide_division.cuh - 64-bit division, for launches whose numbers need it
#pragma once

#include <stdint.h>

namespace rope {

// The place of a thread's work: a row, and a vector in it.
struct RowVector {
  int64_t row;
  int64_t vector;
};

// Not inlined, because 64-bit division is long and few launches need it. Not static: nvcc names internal functions with
// a hash of the file's path, and then builds in different folders would differ.
inline __device__ __noinline__ RowVector split_wide(int64_t index, int64_t vectors_per_row) {
  return {index / vectors_per_row, index % vectors_per_row};
}

}  // namespace rope
