// SPDX-License-Identifier: Apache-2.0
// task_memory.cpp - memory for tasks is mapped when it is first needed, and kept
#include "backend/cpu/task_memory.hpp"

#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <sys/mman.h>

#include "backend/cpu/thread_pool.hpp"

namespace rope {

namespace {

struct Slot {
  uintptr_t owner;  // the thread whose task has the memory; 0: none
  char *data;
};

constexpr unsigned kMaxSlots = 1024;  // more than tasks that run at a time

// The first slot's memory always exists, so that even without further memory tasks run, one after another.
alignas(64) char first_memory[TaskMemory::kBytes];
Slot slots[kMaxSlots] = {{0, first_memory}};
unsigned num_slots = 1;  // those with memory
pthread_once_t fork_handler_once = PTHREAD_ONCE_INIT;

uintptr_t this_thread() {
  return (uintptr_t)pthread_self();  // an integer or, in musl, a pointer
}

// A forked child lacks its parent's other threads.
void free_slots_of_others() {
  for (Slot &slot : slots) {
    if (slot.owner != this_thread()) slot.owner = 0;
  }
}

void install_fork_handler() {
  pthread_atfork(nullptr, nullptr, free_slots_of_others);
}

// Returns false if there is no memory for another slot.
bool add_slot() {
  unsigned number = __atomic_load_n(&num_slots, __ATOMIC_ACQUIRE);
  if (number == kMaxSlots) return false;
  void *const memory = mmap(nullptr, TaskMemory::kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return false;
  char *none = nullptr;
  if (!__atomic_compare_exchange_n(&slots[number].data, &none, static_cast<char *>(memory), false, __ATOMIC_ACQ_REL,
                                   __ATOMIC_ACQUIRE)) {
    munmap(memory, TaskMemory::kBytes);  // another thread was faster
  }
  __atomic_compare_exchange_n(&num_slots, &number, number + 1, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
  return true;
}

// Takes a free slot and returns its number, or kMaxSlots if there is none. A thread tends to get the same slot again,
// whose memory is in its caches.
unsigned take_slot() {
  const uintptr_t self = this_thread();
  const unsigned count = __atomic_load_n(&num_slots, __ATOMIC_ACQUIRE);
  const uint64_t hash = uint64_t{self} * 0x9e3779b97f4a7c15 >> 32;
  unsigned number = static_cast<unsigned>(hash * count >> 32);
  for (unsigned i = 0; i < count; ++i) {
    uintptr_t none = 0;
    uintptr_t *const owner = &slots[number].owner;
    if (__atomic_load_n(owner, __ATOMIC_RELAXED) == none &&
        __atomic_compare_exchange_n(owner, &none, self, false, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED)) {
      return number;
    }
    number = number + 1 < count ? number + 1 : 0;
  }
  return kMaxSlots;
}

}  // namespace

TaskMemory::TaskMemory() {
  while ((number_ = take_slot()) == kMaxSlots) {
    if (!add_slot()) sched_yield();
  }
  data_ = slots[number_].data;
}

TaskMemory::~TaskMemory() {
  __atomic_store_n(&slots[number_].owner, uintptr_t{0}, __ATOMIC_RELEASE);
}

void reserve_task_memory(int num_tasks) {
  pthread_once(&fork_handler_once, install_fork_handler);
  const int at_a_time = num_tasks < kMaxWorkers + 1 ? num_tasks : kMaxWorkers + 1;
  while (__atomic_load_n(&num_slots, __ATOMIC_RELAXED) < static_cast<unsigned>(at_a_time) && add_slot()) {
  }
}

}  // namespace rope
