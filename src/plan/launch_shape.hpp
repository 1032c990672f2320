// launch_shape.hpp - pieces of planning that RoPE and SwiGLU share
#pragma once

#include <stdint.h>

#include "core/status.hpp"
#include "plan/tuning.hpp"

namespace rope {

constexpr uint64_t kMaxGridX = 0x7fffffff;
constexpr uint64_t kMaxGridY = 0xffff;

// The largest power of two, in bytes and up to 16, that divides everything added.
class VectorBytes {
 public:
  void add(int64_t bytes) { bits_ |= static_cast<uint64_t>(bytes); }
  void add(const void *pointer) { bits_ |= reinterpret_cast<uintptr_t>(pointer); }
  int64_t value() const { return static_cast<int64_t>(bits_ & (~bits_ + 1)); }

 private:
  uint64_t bits_ = 16;
};

// A grid of at least num_blocks blocks, numbered y * grid_x + x.
inline rope_status_t shape_grid(const char *function, uint64_t num_blocks, uint32_t *grid_x, uint32_t *grid_y) {
  const uint64_t y = (num_blocks + kMaxGridX - 1) / kMaxGridX;
  if (y > kMaxGridY) {
    return fail(ROPE_STATUS_NOT_SUPPORTED, "%s: the tensors need %llu blocks: one launch holds at most %llu", function,
                static_cast<unsigned long long>(num_blocks), static_cast<unsigned long long>(kMaxGridX * kMaxGridY));
  }
  *grid_y = static_cast<uint32_t>(y);
  *grid_x = static_cast<uint32_t>((num_blocks + y - 1) / y);
  return ROPE_STATUS_SUCCESS;
}

// As many CPU tasks as threads, but none so small that handing it over costs more than doing it.
inline int count_cpu_tasks(int64_t bytes, int64_t rows, int num_threads) {
  int64_t tasks = bytes / kBytesPerCpuTask;
  if (tasks > rows) tasks = rows;
  if (tasks > num_threads) tasks = num_threads;
  return tasks > 1 ? static_cast<int>(tasks) : 1;
}

}  // namespace rope
