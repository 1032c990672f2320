// SPDX-License-Identifier: Apache-2.0
// table_problem.hpp - checks of tables of cosines and sines, and the problem of a call that fills them
#pragma once

#include "core/problem/rope_problem.hpp"
#include "core/problem/status.hpp"
#include "core/problem/view.hpp"

namespace rope {

// Checks the leading position axis of a table.
rope_status_t check_table_axis(const char *function, const char *field, const RopeGeometry &geometry, const View &view);

// Reads the columns of a table's last axis.
rope_status_t read_table_columns(const char *function, const char *field, const RopeGeometry &geometry,
                                 const View &view, int *width, bool *is_by_channel);

// Checks that two tables have one dtype and one shape.
rope_status_t check_tables_alike(const char *function, const char *field, const View &view, const char *other_field,
                                 const View &other);

// Tables to be filled with the angles of positions 0 to rows - 1, which are equal on every axis.
struct TableProblem {
  const RopeGeometry *geometry;
  TableColumns cos, sin;
  rope_dtype_t dtype;
  int64_t axes;
  int64_t rows;
  int width;
  bool is_by_channel;

  bool is_empty() const { return axes == 0 || rows == 0; }
};

rope_status_t make_table_problem(const char *function, const RopeGeometry &geometry, const rope_tensor_t *cos,
                                 const rope_tensor_t *sin, TableProblem *problem);

}  // namespace rope
