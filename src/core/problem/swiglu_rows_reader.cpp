// SPDX-License-Identifier: Apache-2.0
// swiglu_rows_reader.cpp - checks expert_offsets, row_index and the operands that go with them
#include "core/problem/swiglu_rows_reader.hpp"

namespace rope {

namespace {

constexpr rope_status_t kInvalid = ROPE_STATUS_INVALID_ARGUMENT;

// Reads an operand of integers with one axis. gate has at least two axes, the first one of rows. *operand is NULL if
// the tensor is absent.
rope_status_t read_list(const char *function, const char *field, const rope_tensor_t &tensor, const Operand &gate,
                        Operands *operands, Operand **operand) {
  ROPE_TRY(operands->read_integers(field, tensor, operand));
  if (*operand == nullptr) return ROPE_STATUS_SUCCESS;
  if (gate.view.ndim < 2) {
    return fail(kInvalid, "%s: %s.ndim is %d: with %s it must be at least 2, [N, d]", function, gate.field,
                gate.view.ndim, field);
  }
  const int ndim = (*operand)->view.ndim;
  return ndim == 1 ? ROPE_STATUS_SUCCESS : fail(kInvalid, "%s: %s.ndim is %d: it must be 1", function, field, ndim);
}

}  // namespace

rope_status_t read_expert_offsets(const char *function, const rope_tensor_t &tensor, const Operand &gate,
                                  Operands *operands, SwigluRows *rows) {
  const char *field = "expert_offsets";
  Operand *operand;
  ROPE_TRY(read_list(function, field, tensor, gate, operands, &operand));
  if (operand == nullptr) return ROPE_STATUS_SUCCESS;
  const View &view = operand->view;
  if (view.shape[0] < 2) {
    return fail(kInvalid, "%s: %s.shape[0] is %lld: it must be E + 1, at least 2", function, field,
                static_cast<long long>(view.shape[0]));
  }
  rows->expert_offsets = view.data;
  rows->offsets_stride = view.stride[0];
  rows->is_offsets_64_bit = view.dtype == ROPE_DTYPE_I64;
  rows->experts = view.shape[0] - 1;
  rows->rows = gate.view.shape[0];
  return ROPE_STATUS_SUCCESS;
}

rope_status_t read_row_index(const char *function, const rope_tensor_t &tensor, const Operand &gate,
                             const Operand *row_scale, Operands *operands, SwigluRows *rows) {
  const char *field = "row_index";
  Operand *operand;
  ROPE_TRY(read_list(function, field, tensor, gate, operands, &operand));
  if (operand == nullptr) return ROPE_STATUS_SUCCESS;
  View wanted = gate.view;
  wanted.ndim = 1;
  ROPE_TRY(check_same_shape(function, field, operand->view, gate.field, wanted));
  if (row_scale == nullptr) {
    return fail(kInvalid, "%s: %s is set and row_scale is absent: an index needs what it chooses from", function,
                field);
  }
  rows->row_index = operand->view.data;
  rows->index_stride = operand->view.stride[0];
  rows->is_index_64_bit = operand->view.dtype == ROPE_DTYPE_I64;
  rows->factors = row_scale->view.shape[0];
  return ROPE_STATUS_SUCCESS;
}

}  // namespace rope
