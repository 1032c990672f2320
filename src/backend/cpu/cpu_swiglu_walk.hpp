// SPDX-License-Identifier: Apache-2.0
// cpu_swiglu_walk.hpp - where the elements of a SwiGLU problem lie, numbered with the last axis fastest
#pragma once

#include "backend/cpu/cpu_kernels.hpp"
#include "core/problem/integers.hpp"
#include "core/problem/swiglu_problem.hpp"

namespace rope {

inline int64_t offset_of_row(const SwigluProblem &problem, const int64_t *stride, int64_t row) {
  int64_t offset = 0;
  for (int axis = problem.ndim - 2; axis >= 0; --axis) {
    offset += row % problem.shape[axis] * stride[axis];
    row /= problem.shape[axis];
  }
  return offset;
}

inline int64_t elements_of_expert(const SwigluProblem &problem, int64_t expert) {
  const int64_t rows = read_integer(problem.expert_rows, problem.expert_rows_dtype == ROPE_DTYPE_I64,
                                    expert * problem.expert_rows_stride);
  const int64_t held = rows < 0 ? 0 : rows > problem.rows_per_expert ? problem.rows_per_expert : rows;
  return held * problem.num_expert_row_elements();
}

// Returns the number of elements of rows that exist.
inline int64_t count_elements(const SwigluProblem &problem) {
  if (problem.expert_rows == nullptr) return problem.num_elements();
  int64_t count = 0;
  for (int64_t expert = 0; expert < problem.experts; ++expert) count += elements_of_expert(problem, expert);
  return count;
}

// Finds the place, among all elements, of an element that is numbered among those of rows that exist.
class ExpertWalk {
 public:
  explicit ExpertWalk(const SwigluProblem &problem) : problem_(problem) {}

  // Calls have rising `element`. *left becomes the number of elements from this one to the end of its expert.
  int64_t place_of(int64_t element, int64_t *left) {
    while (element >= end_) {
      ++expert_;
      begin_ = end_;
      end_ += elements_of_expert(problem_, expert_);
    }
    *left = end_ - element;
    return expert_ * problem_.rows_per_expert * problem_.num_expert_row_elements() + (element - begin_);
  }

 private:
  const SwigluProblem &problem_;
  int64_t expert_ = -1;
  int64_t begin_ = 0;
  int64_t end_ = 0;  // end of the expert's elements
};

// Whether the last axis is gate's first one, so that each element of a run along it belongs to another row of gate.
inline bool has_row_per_element(const SwigluProblem &problem) {
  return problem.rows.is_present() && problem.row_index_stride[problem.ndim - 1] != 0;
}

// Looks up gate's rows in expert_offsets and row_index. Consecutive calls for elements of one row look it up once.
class RowFinder {
 public:
  explicit RowFinder(const SwigluProblem &problem) : problem_(problem) {
    if (problem.rows.is_present()) row_elements_ = problem.num_row_elements();
  }

  const SwigluRow &row_of(int64_t place) {
    if (row_elements_ == 0) return row_;
    const int64_t number = place / row_elements_;
    if (number == number_) return row_;
    number_ = number;
    row_ = find_swiglu_row(problem_.rows, number);
    return row_;
  }

 private:
  const SwigluProblem &problem_;
  int64_t row_elements_ = 0;  // elements of a row of gate; 0: no row is looked up
  int64_t number_ = -1;
  SwigluRow row_ = {true, 0, 0};
};

// Sets the inputs of a run of elements that begins at a column of a row. The run lies within `gate_row`.
inline void set_inputs(const SwigluProblem &problem, int64_t row, int64_t column, const SwigluRow &gate_row,
                       GatingRun *run) {
  const int64_t size = dtype_size(problem.dtype);
  const int last = problem.ndim - 1;
  for (int i = 0; i < problem.num_inputs(); ++i) {
    run->in_stride[i] = problem.in_stride[i][last];
    run->in[i] =
        problem.in[i] + (offset_of_row(problem, problem.in_stride[i], row) + column * run->in_stride[i]) * size;
  }
  if (problem.row_scale != nullptr) {
    run->row_scale_stride = problem.row_scale_stride[last];
    run->row_scale = problem.row_scale + (offset_of_row(problem, problem.row_scale_stride, row) +
                                          column * run->row_scale_stride + gate_row.factor * problem.factor_stride) *
                                             dtype_size(problem.row_scale_dtype);
    run->is_row_scale_f32 = problem.row_scale_dtype == ROPE_DTYPE_F32;
  }
  for (int i = kGate; i <= kUp; ++i) {
    if (problem.bias[i] == nullptr) continue;
    run->bias_stride[i] = problem.bias_stride[i][last];
    run->bias[i] = problem.bias[i] + (offset_of_row(problem, problem.bias_stride[i], row) +
                                      column * run->bias_stride[i] + gate_row.expert * problem.bias_expert_stride[i]) *
                                         dtype_size(problem.bias_dtype[i]);
    run->is_bias_f32[i] = problem.bias_dtype[i] == ROPE_DTYPE_F32;
  }
}

}  // namespace rope
