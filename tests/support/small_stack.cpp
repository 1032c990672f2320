// SPDX-License-Identifier: Apache-2.0
// small_stack.cpp - threads with stacks of known memory
#include "small_stack.hpp"

#include <pthread.h>
#include <sys/mman.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <mutex>

#ifndef ROPE_TEST_STACKS
#define ROPE_TEST_STACKS 0
#endif

namespace {

constexpr unsigned char colour = 0xa5;

// Memory below which every access is a fault.
class Stack {
 public:
  explicit Stack(size_t bytes) : bytes_(bytes) {
    void *const memory = mmap(nullptr, guard + bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED || mprotect(memory, guard, PROT_NONE) != 0) std::abort();
    begin_ = static_cast<unsigned char *>(memory) + guard;
  }
  ~Stack() { munmap(begin_ - guard, guard + bytes_); }
  Stack(const Stack &) = delete;
  Stack &operator=(const Stack &) = delete;

  unsigned char *begin() const { return begin_; }
  size_t bytes() const { return bytes_; }

  void run(void *(*function)(void *), void *context) const {
    pthread_attr_t attributes;
    pthread_t thread;
    if (pthread_attr_init(&attributes) != 0 || pthread_attr_setstack(&attributes, begin_, bytes_) != 0 ||
        pthread_create(&thread, &attributes, function, context) != 0 || pthread_join(thread, nullptr) != 0) {
      std::abort();
    }
    pthread_attr_destroy(&attributes);
  }

 private:
  static constexpr size_t guard = size_t{64} << 10;
  size_t bytes_;
  unsigned char *begin_;
};

struct Task {
  const std::function<void()> *code;
  uintptr_t frame;  // the address from which stacks are measured
};

__attribute__((noinline)) void *run_task(void *context) {
  Task *const task = static_cast<Task *>(context);
  task->frame = reinterpret_cast<uintptr_t>(__builtin_frame_address(0));
  (*task->code)();
  return nullptr;
}

}  // namespace

bool has_frames_of_release() {
  return ROPE_TEST_STACKS;
}

size_t stack_of(const std::function<void()> &code) {
  static std::mutex mutex;
  const std::lock_guard<std::mutex> lock(mutex);
  static const Stack stack(size_t{512} << 10);
  static size_t unpainted = stack.bytes();  // of the end
  std::memset(stack.begin() + stack.bytes() - unpainted, colour, unpainted);
  Task task = {&code, 0};
  stack.run(run_task, &task);
  const unsigned char *at = stack.begin();
  while (*at == colour) ++at;
  unpainted = static_cast<size_t>(stack.begin() + stack.bytes() - at);
  return task.frame - reinterpret_cast<uintptr_t>(at);
}

void run_on_stack(size_t bytes, const std::function<void()> &code) {
  const std::function<void()> nothing = [] {};
  const Stack large(size_t{512} << 10);
  Task task = {&nothing, 0};
  large.run(run_task, &task);
  const size_t of_thread = reinterpret_cast<uintptr_t>(large.begin()) + large.bytes() - task.frame;
  constexpr size_t page = 4096;
  const Stack stack((bytes + of_thread + page - 1) / page * page);
  task = {&code, 0};
  stack.run(run_task, &task);
}
