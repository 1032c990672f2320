// SPDX-License-Identifier: Apache-2.0
// launch_shape.hpp - the parts of planning that RoPE and SwiGLU have in common
#pragma once

#include <stdint.h>

#include "plan/tuning.hpp"

namespace rope {

constexpr int64_t kMaxGridX = 0x7fffffff;
constexpr int64_t kMaxGridY = 0xffff;
constexpr int64_t kMaxVectorBytes = 16;
constexpr uint32_t kWarpThreads = 32;
constexpr int kWarpLanesLog2 = 5;

// If a row of threads is not a multiple of a warp, it is a multiple of this number.
constexpr uint32_t kRowDivisor = 8;

// The number of threads in as many warps as `threads` need.
inline uint32_t round_up_to_warps(uint32_t threads) {
  return (threads + kWarpThreads - 1) / kWarpThreads * kWarpThreads;
}

// The largest power of two, at most kMaxVectorBytes, that divides all numbers of bytes added to it.
class VectorBytes {
 public:
  void add(int64_t bytes) { bits_ |= static_cast<uint64_t>(bytes); }
  void add(const void *pointer) { bits_ |= reinterpret_cast<uintptr_t>(pointer); }
  int64_t value() const { return static_cast<int64_t>(bits_ & (~bits_ + 1)); }

 private:
  uint64_t bits_ = kMaxVectorBytes;
};

// The product, or INT64_MAX if it overflows.
inline int64_t saturated_product(int64_t a, int64_t b) {
  int64_t product;
  return __builtin_mul_overflow(a, b, &product) ? INT64_MAX : product;
}

// One CPU task per thread, but fewer if a task would be so small that waking a thread costs more than the work.
inline int count_cpu_tasks(int64_t bytes, int num_threads) {
  int64_t tasks = bytes / kBytesPerCpuTask;
  if (tasks > num_threads) tasks = num_threads;
  return tasks > 1 ? static_cast<int>(tasks) : 1;
}

}  // namespace rope
