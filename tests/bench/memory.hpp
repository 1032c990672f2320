// SPDX-License-Identifier: Apache-2.0
// memory.hpp - the tensors of a case, in host memory or on the GPU
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "rope/rope.h"

namespace bench {

class Memory {
 public:
  explicit Memory(rope_device_t device) : device_(device) {}
  ~Memory();
  Memory(const Memory &) = delete;
  Memory &operator=(const Memory &) = delete;

  rope_device_t device() const { return device_; }
  rope_stream_t stream() const;  // for calls on this memory: NULL on the CPU

  // Valid until release(). Throws std::bad_alloc if there is not enough memory.
  char *allocate(size_t bytes);
  void release();

  // Fills with numbers of either sign from 0.125 to 2. Each call gives other numbers; they do not depend on the device.
  void fill(void *data, size_t bytes, rope_dtype_t dtype);
  // Fills with NaN of any type.
  void poison(void *data, size_t bytes);
  void upload(void *to, const void *from, size_t bytes);
  // Reads elements of `base` by index. Indices of F4_E2M1X2 count the two numbers of an element.
  std::vector<double> read(const void *base, rope_dtype_t dtype, const std::vector<int64_t> &indices);

 private:
  rope_device_t device_;
  uint64_t num_fills_ = 0;
  std::vector<char *> blocks_;
};

}  // namespace bench
