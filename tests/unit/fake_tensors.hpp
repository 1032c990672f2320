// SPDX-License-Identifier: Apache-2.0
// fake_tensors.hpp - tensors at invented addresses, for code that computes with views and never accesses memory
#ifndef ROPE_TESTS_UNIT_FAKE_TENSORS_HPP
#define ROPE_TESTS_UNIT_FAKE_TENSORS_HPP

#include <rope/rope.h>

#include <cstdint>
#include <functional>
#include <vector>

inline char *at_address(uintptr_t address) {
  return reinterpret_cast<char *>(address);
}

inline rope_tensor_t fake_tensor(uintptr_t address, rope_dtype_t dtype, const std::vector<int64_t> &shape,
                                 const std::vector<int64_t> &stride) {
  rope_tensor_t tensor = {};
  tensor.data = at_address(address);
  tensor.dtype = dtype;
  tensor.ndim = static_cast<uint16_t>(shape.size());
  tensor.flags = ROPE_TENSOR_STRIDED;
  for (size_t axis = 0; axis < shape.size(); ++axis) {
    tensor.shape[axis] = shape[axis];
    tensor.stride[axis] = stride[axis];
  }
  return tensor;
}

// Last axis fastest.
inline std::vector<int64_t> compact_strides(const std::vector<int64_t> &shape) {
  std::vector<int64_t> stride(shape.size());
  int64_t next = 1;
  for (size_t axis = shape.size(); axis-- > 0;) {
    stride[axis] = next;
    next *= shape[axis] > 0 ? shape[axis] : 1;
  }
  return stride;
}

inline rope_tensor_t compact_tensor(uintptr_t address, rope_dtype_t dtype, const std::vector<int64_t> &shape) {
  return fake_tensor(address, dtype, shape, compact_strides(shape));
}

// Calls visit(index) for every index vector of the shape, last axis fastest.
inline void for_each_index(const std::vector<int64_t> &shape, const std::function<void(const int64_t *)> &visit) {
  for (const int64_t length : shape) {
    if (length == 0) return;
  }
  std::vector<int64_t> index(shape.size());
  for (;;) {
    visit(index.data());
    size_t axis = shape.size();
    while (axis > 0 && ++index[axis - 1] == shape[axis - 1]) index[--axis] = 0;
    if (axis == 0) return;
  }
}

#endif
