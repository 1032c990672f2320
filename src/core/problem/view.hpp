// SPDX-License-Identifier: Apache-2.0
// view.hpp - a validated tensor view
#pragma once

#include <stdint.h>

#include "core/math/host_device.hpp"
#include "core/problem/status.hpp"

namespace rope {

constexpr int kMaxAxes = 4;

struct View {
  char *data;
  rope_dtype_t dtype;
  int ndim;
  int64_t shape[kMaxAxes];
  int64_t stride[kMaxAxes];  // in elements
  int64_t elements;          // number of index vectors
  uintptr_t begin;           // its bytes have addresses from begin to before end; both are 0 if it has no elements
  uintptr_t end;

  bool is_empty() const { return begin == end; }

  // Sets strides that no element uses to 0: those of axes of length 1, and all strides of an empty view.
  void forget_unused_strides() {
    for (int axis = 0; axis < ndim; ++axis) {
      if (shape[axis] == 1 || is_empty()) stride[axis] = 0;
    }
  }

  // Reduces an axis to `length` indices from `start` on.
  void narrow(int axis, int64_t start, int64_t length);
};

inline int64_t magnitude(int64_t stride) {
  return stride < 0 ? -stride : stride;
}

// For non-negative numbers; if one is 0, the result is the other.
inline int64_t greatest_common_divisor(int64_t a, int64_t b) {
  while (b != 0) {
    const int64_t rest = a % b;
    a = b;
    b = rest;
  }
  return a;
}

// The size in bytes, a power of two, or 0 for a type that no tensor may have.
inline int64_t dtype_size(rope_dtype_t dtype) {
  // F32, F16, BF16, F64, I32, I64, F8_E4M3, F8_E5M2, F8_E8M0, F4_E2M1X2
  static constexpr int8_t kSizes[] = {0, 4, 2, 2, 8, 4, 8, 1, 1, 1, 1};
  return dtype >= ROPE_DTYPE_F32 && dtype <= ROPE_DTYPE_F4_E2M1X2 ? kSizes[dtype] : 0;
}

// Whether elements of this type are codes: 8-bit numbers that are multiplied by a scale.
ROPE_HOST_DEVICE bool is_code(rope_dtype_t dtype) {
  return dtype == ROPE_DTYPE_F8_E4M3 || dtype == ROPE_DTYPE_F8_E5M2;
}

// Whether an element is two codes of 4 bits.
ROPE_HOST_DEVICE bool is_code_pair(rope_dtype_t dtype) {
  return dtype == ROPE_DTYPE_F4_E2M1X2;
}

const char *dtype_name(rope_dtype_t dtype);

// Whether data of one type may be written as another: any type as itself, F32 as F16 or BF16, all but F64 as codes.
inline bool may_be_written_as(rope_dtype_t data, rope_dtype_t written) {
  return written == data || (data == ROPE_DTYPE_F32 && (written == ROPE_DTYPE_F16 || written == ROPE_DTYPE_BF16)) ||
         (data != ROPE_DTYPE_F64 && is_code(written));
}

rope_status_t check_written_type(const char *function, const char *field, rope_dtype_t written, rope_dtype_t data);

// Whether a tensor is absent.
inline bool is_zeroed(const rope_tensor_t &tensor) {
  int64_t bits = tensor.dtype | tensor.ndim | tensor.flags;
  for (int axis = 0; axis < kMaxAxes; ++axis) bits |= tensor.shape[axis] | tensor.stride[axis];
  return tensor.data == nullptr && bits == 0;
}

// Checks everything that a tensor, which is not zeroed, can get wrong by itself. Afterwards strides are explicit, 0 on
// axes that the tensor lacks, and every element's byte offset from data fits in 62 bits. Pairs of codes are refused as
// not supported yet, unless they may be.
rope_status_t read_view(const char *function, const char *field, const rope_tensor_t &tensor, View *view,
                        bool may_be_pairs = false);

// Checks that `view` has the rank and the lengths of `other`.
rope_status_t check_same_shape(const char *function, const char *field, const View &view, const char *other_field,
                               const View &other);

// Whether two views have the same elements in the same order: data, dtype, shape, and the stride of every axis longer
// than 1.
bool is_same_view(const View &a, const View &b);

}  // namespace rope
