// SPDX-License-Identifier: Apache-2.0
// swiglu_rows.hpp - the expert and the factor of a row of SwiGLU by expert_offsets and row_index, for host and device
#pragma once

#include "core/math/host_device.hpp"
#include "core/problem/integers.hpp"

namespace rope {

// Rows are entries of gate's first axis. Strides are in elements.
struct SwigluRows {
  const char *expert_offsets;  // NULL: rows have no expert
  int64_t offsets_stride;
  int64_t experts;
  int64_t rows;           // offsets lie within 0 to `rows`
  const char *row_index;  // NULL: row_scale_stride gives the place of a row's factor
  int64_t index_stride;
  int64_t factors;  // row_index chooses from this number of factors
  bool is_offsets_64_bit;
  bool is_index_64_bit;

  ROPE_HOST_DEVICE bool is_present() const { return expert_offsets != nullptr || row_index != nullptr; }
};

struct SwigluRow {
  bool is_there;   // false: the other members are undefined
  int64_t expert;  // 0 without experts
  int64_t factor;  // of row_scale; 0 without row_index
};

// Reads offsets from memory.
struct ExpertOffsets {
  const SwigluRows &rows;

  ROPE_HOST_DEVICE int64_t operator[](int64_t number) const {
    return read_integer(rows.expert_offsets, rows.is_offsets_64_bit, number * rows.offsets_stride);
  }
};

// Returns the expert of a row by the bisection of rope.h, or -1. Each offset is read once, so that the result is a
// valid expert even if other threads write offsets in the meantime.
template <typename Number, typename Offsets>
ROPE_HOST_DEVICE Number find_expert(const Offsets &offsets, Number experts, Number rows, Number row) {
  Number low = 0, high = experts;
  Number begin = offsets[low], end = offsets[high];
  if (row < begin || row >= end) return -1;
  while (high - low > 1) {
    const Number middle = low + (high - low) / 2, offset = offsets[middle];
    if (offset <= row) {
      low = middle;
      begin = offset;
    } else {
      high = middle;
      end = offset;
    }
  }
  return begin < 0 || end > rows ? -1 : low;
}

// Returns the number of a row's factor by row_index, or -1.
ROPE_HOST_DEVICE int64_t find_factor(const SwigluRows &rows, int64_t row) {
  const int64_t factor = read_integer(rows.row_index, rows.is_index_64_bit, row * rows.index_stride);
  return factor < rows.factors ? factor : -1;
}

ROPE_HOST_DEVICE SwigluRow find_swiglu_row(const SwigluRows &rows, int64_t row) {
  int64_t expert = 0, factor = 0;
  if (rows.expert_offsets != nullptr) expert = find_expert<int64_t>(ExpertOffsets{rows}, rows.experts, rows.rows, row);
  if (rows.row_index != nullptr && expert >= 0) factor = find_factor(rows, row);
  return {expert >= 0 && factor >= 0, expert, factor};
}

}  // namespace rope
