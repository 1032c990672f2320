// SPDX-License-Identifier: Apache-2.0
// task_memory.hpp - memory for those buffers of a task that are too large for the stack of a caller's thread
#pragma once

#include <stddef.h>

namespace rope {

// No CPU call needs more stack than this, on any thread (rope.h).
constexpr size_t kMaxCallStackBytes = size_t{48} << 10;

// Memory for one task, while the object exists. It is kept for later tasks, with the contents that this one leaves. No
// task waits for another one's memory, unless the system has none left.
class TaskMemory {
 public:
  static constexpr size_t kBytes = size_t{192} << 10;  // a multiple of every page size

  TaskMemory();
  ~TaskMemory();
  TaskMemory(const TaskMemory &) = delete;
  TaskMemory &operator=(const TaskMemory &) = delete;

  template <typename Buffers>
  Buffers *as() const {
    static_assert(sizeof(Buffers) <= kBytes && alignof(Buffers) <= 64, "the buffers of a task exceed its memory");
    return reinterpret_cast<Buffers *>(data_);
  }

 private:
  unsigned number_;
  char *data_;
};

// Lies between two buffers that do not fill their pages. If both began at the same place of a page, they would take the
// same lines of the first cache: a norm would take 4 % longer.
template <size_t kLines>
struct PageGap {
  char bytes[64 * kLines];
};

// Maps memory for `num_tasks` at a time, so that their calls do not have to. Called when a descriptor is created.
void reserve_task_memory(int num_tasks);

}  // namespace rope
