// SPDX-License-Identifier: Apache-2.0
// swiglu_elements.cuh - for the kernels of single elements: finds where an element lies, and whether its row exists
#pragma once

#include "backend/cuda/kernels/swiglu_params.hpp"
#include "backend/cuda/kernels/wide_division.cuh"
#include "core/problem/integers.hpp"

namespace rope {

// An element as an index over all axes.
struct ElementIndex {
  int64_t at[kMaxAxes];

  __device__ __forceinline__ int64_t offset(const int64_t *stride) const {
    int64_t sum = 0;
#pragma unroll
    for (int axis = 0; axis < kMaxAxes; ++axis) sum += at[axis] * stride[axis];
    return sum;
  }
};

__device__ __forceinline__ ElementIndex split_element(const SwigluOptionsParams &params, int64_t number) {
  ElementIndex index;
  if (params.is_narrow) {
    uint32_t rest = static_cast<uint32_t>(number);
#pragma unroll
    for (int axis = kMaxAxes - 1; axis > 0; --axis) {
      const DivmodResult at = params.narrow_shape[axis].divmod(rest);
      index.at[axis] = at.remainder;
      rest = at.quotient;
    }
    index.at[0] = rest;
    return index;
  }
#pragma unroll
  for (int axis = kMaxAxes - 1; axis > 0; --axis) {
    const RowVector at = split_wide(number, params.shape[axis]);
    index.at[axis] = at.vector;
    number = at.row;
  }
  index.at[0] = number;
  return index;
}

// Looks up an element's row in expert_offsets and row_index.
__device__ __forceinline__ SwigluRow find_row(const SwigluOptionsParams &params, const ElementIndex &index) {
  if (!params.lookup.rows.is_present()) return {true, 0, 0};
  return find_swiglu_row(params.lookup.rows, index.offset(params.row_index_stride));
}

// Returns whether num_rows or expert_rows includes an element's row.
__device__ __forceinline__ bool is_row_there(const SwigluOptionsParams &params, const ElementIndex &index) {
  if (params.num_rows != nullptr) {
    return index.offset(params.row_index_stride) < read_integer(params.num_rows, params.is_num_rows_64_bit, 0);
  }
  if (params.expert_rows == nullptr) return true;
  const int64_t expert = index.offset(params.expert_index_stride);
  return index.offset(params.expert_row_index_stride) <
         read_integer(params.expert_rows, params.is_expert_rows_64_bit, expert * params.expert_rows_stride);
}

}  // namespace rope
