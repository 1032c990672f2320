// SPDX-License-Identifier: Apache-2.0
// tensor_api.cpp - makes tensor views of parts of tensor views
#include <string.h>

#include "core/problem/view.hpp"

namespace {

rope_status_t read_source(const char *function, const rope_tensor_t *src, int32_t dim, const rope_tensor_t *view_out,
                          rope::View *view) {
  if (src == nullptr) return rope::fail(ROPE_STATUS_INVALID_ARGUMENT, "%s: src is NULL: it is required", function);
  if (view_out == nullptr)
    return rope::fail(ROPE_STATUS_INVALID_ARGUMENT, "%s: view_out is NULL: it is required", function);
  if (rope::is_zeroed(*src))
    return rope::fail(ROPE_STATUS_INVALID_ARGUMENT, "%s: src is absent: it is required", function);
  ROPE_TRY(rope::read_view(function, "src", *src, view, true));
  if (dim < 0 || dim >= view->ndim) {
    return rope::fail(ROPE_STATUS_INVALID_ARGUMENT, "%s: dim is %d: it must be 0 to %d", function, dim, view->ndim - 1);
  }
  return ROPE_STATUS_SUCCESS;
}

void write_view(const rope::View &view, rope_tensor_t *out) {
  memset(out, 0, sizeof *out);
  out->data = view.data;
  out->dtype = view.dtype;
  out->ndim = static_cast<uint16_t>(view.ndim);
  out->flags = ROPE_TENSOR_STRIDED;
  memcpy(out->shape, view.shape, sizeof out->shape);
  memcpy(out->stride, view.stride, sizeof out->stride);
}

}  // namespace

extern "C" {

rope_status_t rope_tensor_narrow(const rope_tensor_t *src, int32_t dim, int64_t start, int64_t length,
                                 rope_tensor_t *view_out) {
  rope::View view;
  ROPE_TRY(read_source("rope_tensor_narrow", src, dim, view_out, &view));
  const int64_t available = view.shape[dim];
  if (start < 0 || start > available) {
    return rope::fail(ROPE_STATUS_INVALID_ARGUMENT, "rope_tensor_narrow: start is %lld: it must be 0 to %lld",
                      static_cast<long long>(start), static_cast<long long>(available));
  }
  if (length < 0 || length > available - start) {
    return rope::fail(
        ROPE_STATUS_INVALID_ARGUMENT, "rope_tensor_narrow: length is %lld: from start %lld it must be 0 to %lld",
        static_cast<long long>(length), static_cast<long long>(start), static_cast<long long>(available - start));
  }
  view.narrow(dim, start, length);
  write_view(view, view_out);
  return ROPE_STATUS_SUCCESS;
}

rope_status_t rope_tensor_select(const rope_tensor_t *src, int32_t dim, int64_t index, rope_tensor_t *view_out) {
  rope::View view;
  ROPE_TRY(read_source("rope_tensor_select", src, dim, view_out, &view));
  if (view.ndim == 1) {
    return rope::fail(ROPE_STATUS_INVALID_ARGUMENT, "rope_tensor_select: src.ndim is 1: no axis would be left");
  }
  if (index < 0 || index >= view.shape[dim]) {
    return rope::fail(ROPE_STATUS_INVALID_ARGUMENT,
                      "rope_tensor_select: index is %lld: it must be at least 0 and below src.shape[%d], %lld",
                      static_cast<long long>(index), dim, static_cast<long long>(view.shape[dim]));
  }
  view.narrow(dim, index, 1);
  for (int axis = dim; axis < view.ndim; ++axis) {
    view.shape[axis] = axis + 1 < view.ndim ? view.shape[axis + 1] : 0;
    view.stride[axis] = axis + 1 < view.ndim ? view.stride[axis + 1] : 0;
  }
  --view.ndim;
  write_view(view, view_out);
  return ROPE_STATUS_SUCCESS;
}

}  // extern "C"
