// SPDX-License-Identifier: Apache-2.0
// table_problem.cpp - validates tables of cosines and sines, and the calls that fill them
#include "core/problem/table_problem.hpp"

#include "core/problem/operands.hpp"
#include "core/problem/overlap.hpp"
#include "core/problem/shape_text.hpp"

namespace rope {

namespace {

constexpr rope_status_t kInvalid = ROPE_STATUS_INVALID_ARGUMENT;

}  // namespace

rope_status_t check_table_axis(const char *function, const char *field, const RopeGeometry &geometry,
                               const View &view) {
  if (view.shape[0] == 1 || view.shape[0] == geometry.num_axes) return ROPE_STATUS_SUCCESS;
  return fail(kInvalid, "%s: %s.shape[0] is %lld: it must be num_axes, %d, or 1", function, field,
              printable(view.shape[0]), geometry.num_axes);
}

rope_status_t read_table_columns(const char *function, const char *field, const RopeGeometry &geometry,
                                 const View &view, int *width, bool *is_by_channel) {
  if (view.dtype < ROPE_DTYPE_F32 || view.dtype > ROPE_DTYPE_F64) {
    return fail(kInvalid, "%s: %s.dtype is %s: it must be F32, F16, BF16 or F64", function, field,
                dtype_name(view.dtype));
  }
  const int64_t columns = view.shape[view.ndim - 1];
  const int pairs = geometry.pairs(), repeated = pairs / geometry.num_axes;
  *is_by_channel = columns == int64_t{2} * pairs;
  *width = static_cast<int>(columns);
  if (columns == pairs || *is_by_channel) return ROPE_STATUS_SUCCESS;
  if (geometry.num_axes == 1) {
    return fail(kInvalid, "%s: %s.shape[%d] is %lld: it must be R/2, %d, or R, %d", function, field, view.ndim - 1,
                printable(columns), pairs, 2 * pairs);
  }
  if (columns == repeated && repeated * geometry.num_axes == pairs) return ROPE_STATUS_SUCCESS;
  return fail(kInvalid, "%s: %s.shape[%d] is %lld: it must be R/2, %d, or R, %d, or R/2 by num_axes, %d", function,
              field, view.ndim - 1, printable(columns), pairs, 2 * pairs, geometry.num_axes);
}

rope_status_t check_tables_alike(const char *function, const char *field, const View &view, const char *other_field,
                                 const View &other) {
  if (view.dtype != other.dtype) {
    return fail(kInvalid, "%s: %s.dtype is %s: it must be that of %s, %s", function, field, dtype_name(view.dtype),
                other_field, dtype_name(other.dtype));
  }
  return check_same_shape(function, field, view, other_field, other);
}

rope_status_t make_table_problem(const char *function, const RopeGeometry &geometry, const rope_tensor_t *cos,
                                 const rope_tensor_t *sin, TableProblem *problem) {
  *problem = TableProblem{};
  problem->geometry = &geometry;
  if (!geometry.has_frequencies) {
    return fail(kInvalid, "%s: desc has no frequencies: it was made with theta 0 and without inv_freq", function);
  }
  const struct {
    const char *field;
    const rope_tensor_t *tensor;
    TableColumns *columns;
  } outputs[] = {{"cos_out", cos, &problem->cos}, {"sin_out", sin, &problem->sin}};
  Operands operands(function);
  Operand *operand[2];
  for (int i = 0; i < 2; ++i) {
    const char *field = outputs[i].field;
    if (outputs[i].tensor == nullptr) return fail(kInvalid, "%s: %s is NULL: it is required", function, field);
    ROPE_TRY(operands.read(Role::kOut, field, *outputs[i].tensor, &operand[i]));
    if (operand[i] == nullptr) return fail(kInvalid, "%s: %s is absent: it is required", function, field);
    const View &view = operand[i]->view;
    const bool has_axes = geometry.num_axes > 1 && view.ndim == 3;
    if (view.ndim != (has_axes ? 3 : 2)) {
      return fail(kInvalid, "%s: %s.ndim is %d: it must be %s", function, field, view.ndim,
                  geometry.num_axes > 1 ? "2, [M, W], or 3, [A, M, W]" : "2, [M, W]");
    }
    if (has_axes) ROPE_TRY(check_table_axis(function, field, geometry, view));
    ROPE_TRY(read_table_columns(function, field, geometry, view, &problem->width, &problem->is_by_channel));
    ROPE_TRY(check_output_strides(function, field, view));
    const int row_axis = view.ndim - 2;
    problem->axes = has_axes ? view.shape[0] : 1;
    problem->rows = view.shape[row_axis];
    problem->dtype = view.dtype;
    *outputs[i].columns = {view.data, has_axes ? view.stride[0] : 0, 0, view.stride[row_axis],
                           view.stride[row_axis + 1]};
  }
  ROPE_TRY(check_tables_alike(function, "sin_out", operand[1]->view, "cos_out", operand[0]->view));
  ROPE_TRY(operands.check_overlaps());
  // If several pairs use one column, their frequencies must be equal.
  for (int pair = problem->width; pair < geometry.pairs(); ++pair) {
    if (geometry.increments[pair] == geometry.increments[pair % problem->width]) continue;
    return fail(kInvalid, "%s: cos_out has %d columns: pair %d turns otherwise than pair %d", function, problem->width,
                pair, pair % problem->width);
  }
  return ROPE_STATUS_SUCCESS;
}

}  // namespace rope
