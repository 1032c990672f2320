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
  rope_stream_t stream() const;  // of calls on it: NULL on the CPU

  // Lives until release(). Throws std::bad_alloc where there is not so much.
  char *allocate(size_t bytes);
  void release();

  // Numbers of 0.125 to 2 of either sign, others in each call, the same on every device.
  void fill(void *data, size_t bytes, rope_dtype_t dtype);
  // NaN, whatever the type.
  void poison(void *data, size_t bytes);
  void upload(void *to, const void *from, size_t bytes);
  // Elements of `base` by their index.
  std::vector<double> read(const void *base, rope_dtype_t dtype, const std::vector<int64_t> &indices);

 private:
  rope_device_t device_;
  uint64_t num_fills_ = 0;
  std::vector<char *> blocks_;
};

}  // namespace bench
