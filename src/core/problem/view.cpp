// SPDX-License-Identifier: Apache-2.0
// view.cpp - reads and checks tensor views
#include "core/problem/view.hpp"

namespace rope {

// The limit for a view's elements and for the bytes that it spans. The sum of two such numbers and a pointer difference
// fits in int64.
constexpr int64_t kMaxExtent = int64_t{1} << 60;

const char *dtype_name(rope_dtype_t dtype) {
  switch (dtype) {
    case ROPE_DTYPE_F32:
      return "F32";
    case ROPE_DTYPE_F16:
      return "F16";
    case ROPE_DTYPE_BF16:
      return "BF16";
    case ROPE_DTYPE_F64:
      return "F64";
    case ROPE_DTYPE_I32:
      return "I32";
    case ROPE_DTYPE_I64:
      return "I64";
    case ROPE_DTYPE_F8_E4M3:
      return "F8_E4M3";
    case ROPE_DTYPE_F8_E5M2:
      return "F8_E5M2";
    case ROPE_DTYPE_F8_E8M0:
      return "F8_E8M0";
    case ROPE_DTYPE_F4_E2M1X2:
      return "F4_E2M1X2";
    default:
      return "unknown";
  }
}

rope_status_t check_written_type(const char *function, const char *field, rope_dtype_t written, rope_dtype_t data) {
  if (may_be_written_as(data, written)) return ROPE_STATUS_SUCCESS;
  if (is_code(written)) {
    return fail(ROPE_STATUS_NOT_SUPPORTED, "%s: %s.dtype is %s: data of F64 are not quantised", function, field,
                dtype_name(written));
  }
  const char *const others = data == ROPE_DTYPE_F32   ? ", or F16, BF16, F8_E4M3 or F8_E5M2"
                             : data == ROPE_DTYPE_F64 ? ""
                                                      : ", or F8_E4M3 or F8_E5M2";
  return fail(ROPE_STATUS_INVALID_ARGUMENT, "%s: %s.dtype is %s: it must be the descriptor's, %s%s", function, field,
              dtype_name(written), dtype_name(data), others);
}

// Sets view->stride to the strides of a compact tensor. Returns false on overflow.
static bool set_compact_strides(View *view) {
  int64_t stride = 1;
  for (int axis = view->ndim - 1; axis >= 0; --axis) {
    view->stride[axis] = stride;
    const int64_t length = view->shape[axis] > 0 ? view->shape[axis] : 1;
    if (__builtin_mul_overflow(stride, length, &stride)) return false;
  }
  return true;
}

// Counts a view's elements; `low` and `high` become the byte offsets of its lowest and highest element from data.
// Returns false if the elements are too many or too far apart.
static bool measure_extent(const View &view, int64_t *elements, int64_t *low, int64_t *high) {
  const int64_t size = dtype_size(view.dtype);
  int64_t count = 1;
  *low = *high = 0;
  for (int axis = 0; axis < view.ndim; ++axis) {
    int64_t reach;
    if (__builtin_mul_overflow(count, view.shape[axis], &count)) return false;
    if (__builtin_mul_overflow(view.shape[axis] - 1, view.stride[axis], &reach)) return false;
    if (__builtin_mul_overflow(reach, size, &reach)) return false;
    int64_t *side = reach < 0 ? low : high;
    if (__builtin_add_overflow(*side, reach, side)) return false;
  }
  *elements = count;
  int64_t extent;
  return !__builtin_sub_overflow(*high, *low, &extent) && extent <= kMaxExtent && count <= kMaxExtent;
}

rope_status_t read_view(const char *function, const char *field, const rope_tensor_t &tensor, View *view,
                        bool may_be_pairs) {
  if (tensor.ndim == 0) {
    return fail(ROPE_STATUS_INVALID_ARGUMENT,
                "%s: %s.ndim is 0, which means absent, but another member is set: set ndim or zero the tensor",
                function, field);
  }
  if (tensor.ndim > kMaxAxes) {
    return fail(ROPE_STATUS_INVALID_ARGUMENT, "%s: %s.ndim is %u: it must be 0 to 4", function, field, tensor.ndim);
  }
  if ((tensor.flags & ~ROPE_TENSOR_STRIDED) != 0) {
    return fail(ROPE_STATUS_NOT_SUPPORTED, "%s: %s.flags is 0x%x: this version knows ROPE_TENSOR_STRIDED (0x1) only",
                function, field, tensor.flags);
  }
  const int64_t size = dtype_size(tensor.dtype);
  if (is_code_pair(tensor.dtype) && !may_be_pairs) {
    return fail(ROPE_STATUS_NOT_SUPPORTED, "%s: %s.dtype is %s: this version does not serve it yet", function, field,
                dtype_name(tensor.dtype));
  }
  if (size == 0) {
    return fail(ROPE_STATUS_INVALID_ARGUMENT,
                "%s: %s.dtype is %d: it must be F32, F16, BF16, F64, I32, I64, F8_E4M3, F8_E5M2%s", function, field,
                tensor.dtype, may_be_pairs ? ", F8_E8M0 or F4_E2M1X2" : " or F8_E8M0");
  }
  *view = View{};
  view->data = static_cast<char *>(tensor.data);
  view->dtype = tensor.dtype;
  view->ndim = tensor.ndim;
  bool has_strides = (tensor.flags & ROPE_TENSOR_STRIDED) != 0, has_elements = true;
  for (int axis = 0; axis < view->ndim; ++axis) {
    if (tensor.shape[axis] < 0) {
      return fail(ROPE_STATUS_INVALID_ARGUMENT, "%s: %s.shape[%d] is %lld: it must be at least 0", function, field,
                  axis, static_cast<long long>(tensor.shape[axis]));
    }
    view->shape[axis] = tensor.shape[axis];
    view->stride[axis] = tensor.stride[axis];
    has_strides = has_strides || tensor.stride[axis] != 0;
    has_elements = has_elements && tensor.shape[axis] != 0;
  }
  if (!has_strides && !set_compact_strides(view) && has_elements) {
    return fail(ROPE_STATUS_INVALID_ARGUMENT, "%s: %s.shape is too large: 63 bits must count its elements", function,
                field);
  }
  if (!has_elements) return ROPE_STATUS_SUCCESS;

  int64_t low, high;
  if (!measure_extent(*view, &view->elements, &low, &high)) {
    return fail(ROPE_STATUS_INVALID_ARGUMENT, "%s: %s spans more than 2^60 bytes: its shape or strides are too large",
                function, field);
  }
  if (view->data == nullptr) {
    return fail(ROPE_STATUS_INVALID_ARGUMENT, "%s: %s.data is NULL: a tensor with elements needs memory", function,
                field);
  }
  const uintptr_t address = reinterpret_cast<uintptr_t>(view->data);
  if ((address & static_cast<uintptr_t>(size - 1)) != 0) {
    return fail(ROPE_STATUS_INVALID_ARGUMENT, "%s: %s.data is %p: it must be a multiple of the %lld-byte element",
                function, field, tensor.data, static_cast<long long>(size));
  }
  if (address < static_cast<uintptr_t>(-low) || address > UINTPTR_MAX - static_cast<uintptr_t>(high + size)) {
    return fail(ROPE_STATUS_INVALID_ARGUMENT, "%s: %s.data is %p: its strides leave the address space", function, field,
                tensor.data);
  }
  view->begin = address + static_cast<uintptr_t>(low);
  view->end = address + static_cast<uintptr_t>(high + size);
  return ROPE_STATUS_SUCCESS;
}

rope_status_t check_same_shape(const char *function, const char *field, const View &view, const char *other_field,
                               const View &other) {
  if (view.ndim != other.ndim) {
    return fail(ROPE_STATUS_INVALID_ARGUMENT, "%s: %s.ndim is %d: it must be that of %s, %d", function, field,
                view.ndim, other_field, other.ndim);
  }
  for (int axis = 0; axis < view.ndim; ++axis) {
    if (view.shape[axis] != other.shape[axis]) {
      return fail(ROPE_STATUS_INVALID_ARGUMENT, "%s: %s.shape[%d] is %lld: it must be that of %s, %lld", function,
                  field, axis, static_cast<long long>(view.shape[axis]), other_field,
                  static_cast<long long>(other.shape[axis]));
    }
  }
  return ROPE_STATUS_SUCCESS;
}

void View::narrow(int axis, int64_t start, int64_t length) {
  if (length == shape[axis]) return;
  const int64_t left = shape[axis] - start - length;
  shape[axis] = length;
  if (is_empty() || length == 0) {
    elements = 0;
    begin = end = 0;
    return;
  }
  elements = 1;
  for (int i = 0; i < ndim; ++i) elements *= shape[i];
  const int64_t step = stride[axis] * dtype_size(dtype), before = start * step, after = left * step;
  data += before;
  begin += static_cast<uintptr_t>(step < 0 ? -after : before);
  end -= static_cast<uintptr_t>(step < 0 ? -before : after);
}

bool is_same_view(const View &a, const View &b) {
  if (a.data != b.data || a.dtype != b.dtype || a.ndim != b.ndim) return false;
  for (int axis = 0; axis < a.ndim; ++axis) {
    if (a.shape[axis] != b.shape[axis]) return false;
    if (a.shape[axis] > 1 && a.stride[axis] != b.stride[axis]) return false;
  }
  return true;
}

}  // namespace rope
