// view.hpp - a validated tensor view
#pragma once

#include <stdint.h>

#include "core/problem/status.hpp"

namespace rope {

constexpr int kMaxAxes = 4;

struct View {
  char *data;
  rope_dtype_t dtype;
  int ndim;
  int64_t shape[kMaxAxes];
  int64_t stride[kMaxAxes];  // in elements
  int64_t elements;          // how many index vectors it has
  uintptr_t begin;           // addresses of its bytes lie from begin to before end; both are 0 where it has none
  uintptr_t end;

  bool is_absent() const { return ndim == 0; }
  bool is_empty() const { return begin == end; }

  // Leaves lengths and strides unset: nobody reads those of an absent tensor.
  void set_absent() {
    data = nullptr;
    dtype = rope_dtype_t{};
    ndim = 0;
    elements = 0;
    begin = end = 0;
  }

  // Strides that no element uses may be any number: sets those of axes of length 1, or all of an empty view, to 0.
  void forget_unused_strides() {
    for (int axis = 0; axis < ndim; ++axis) {
      if (shape[axis] == 1 || is_empty()) stride[axis] = 0;
    }
  }
};

inline int64_t magnitude(int64_t stride) {
  return stride < 0 ? -stride : stride;
}

// In bytes, a power of two; 0 for an unknown type.
inline int64_t dtype_size(rope_dtype_t dtype) {
  static constexpr int8_t kSizes[] = {0, 4, 2, 2, 8, 4, 8};  // F32, F16, BF16, F64, I32, I64
  return dtype >= ROPE_DTYPE_F32 && dtype <= ROPE_DTYPE_I64 ? kSizes[dtype] : 0;
}

const char *dtype_name(rope_dtype_t dtype);

inline bool is_zeroed(const rope_tensor_t &tensor) {
  int64_t bits = tensor.dtype | tensor.ndim | tensor.flags;
  for (int axis = 0; axis < kMaxAxes; ++axis) bits |= tensor.shape[axis] | tensor.stride[axis];
  return tensor.data == nullptr && bits == 0;
}

// The same as read_view below, of a tensor that is not zeroed.
rope_status_t read_present_view(const char *function, const char *field, const rope_tensor_t &tensor, View *view);

// Checks everything that a tensor can get wrong by itself; a zeroed one is absent. Afterwards strides are explicit, 0
// on axes that a present tensor lacks, and every element's byte offset from data fits in 62 bits.
inline rope_status_t read_view(const char *function, const char *field, const rope_tensor_t &tensor, View *view) {
  if (!is_zeroed(tensor)) return read_present_view(function, field, tensor, view);
  view->set_absent();
  return ROPE_STATUS_SUCCESS;
}

// Rank and lengths of `view` are those of `other`.
rope_status_t check_same_shape(const char *function, const char *field, const View &view, const char *other_field,
                               const View &other);

View narrow_view(const View &view, int axis, int64_t start, int64_t length);

// Same elements in the same order: data, dtype, shape, and the stride of every axis longer than 1.
bool is_same_view(const View &a, const View &b);

// Holds the tensors of a call against the memory that they span. No loop of a call is longer than its largest tensor
// has elements, and so a tensor that visits the same memory again and again, with strides of 0 or too short for its
// shape, is what could keep a call busy for years. An output never is: it spans as many elements as it has.
class LoopLimit {
 public:
  void add(const char *field, const View &view) {
    bytes_ += view.end - view.begin;  // a view spans 2^60 at most, and a call has fewer than 16
    if (view.elements <= elements_) return;
    elements_ = view.elements;
    field_ = field;
  }

  rope_status_t check(const char *function) const {
    return elements_ <= kAlwaysServed ? ROPE_STATUS_SUCCESS : check_bytes(function);
  }

 private:
  static constexpr int64_t kAlwaysServed = int64_t{1} << 28;
  static constexpr int64_t kServedPerByte = 64;

  rope_status_t check_bytes(const char *function) const;

  const char *field_ = nullptr;
  int64_t elements_ = 0;
  uintptr_t bytes_ = 0;
};

}  // namespace rope
