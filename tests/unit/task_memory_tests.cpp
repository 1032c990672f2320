// SPDX-License-Identifier: Apache-2.0
// task_memory_tests.cpp - memory for tasks: each has its own, threads tend to keep theirs, forked children have it too,
// and tasks run if the system has no more
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <catch2/catch_test_macros.hpp>
#include <cstring>
#include <memory>
#include <optional>
#include <set>
#include <thread>
#include <vector>

#include "backend/cpu/task_memory.hpp"
#include "support/child_process.hpp"

using rope::TaskMemory;

namespace {

struct Bytes {
  unsigned char all[TaskMemory::kBytes];
};

// Holds memory with a colour of its own, and returns whether no other task paints over it.
bool keeps_colour(unsigned char colour) {
  const TaskMemory memory;
  Bytes &bytes = *memory.as<Bytes>();
  std::memset(bytes.all, colour, sizeof bytes.all);
  std::this_thread::yield();
  for (const unsigned char byte : bytes.all) {
    if (byte != colour) return false;
  }
  return true;
}

int count_wrong_colours(int num_threads, int rounds) {
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < num_threads; ++i) {
    threads.emplace_back([&, i] {
      for (int round = 0; round < rounds; ++round) wrong += keeps_colour(static_cast<unsigned char>(i + 1)) ? 0 : 1;
    });
  }
  for (std::thread &thread : threads) thread.join();
  return wrong;
}

}  // namespace

TEST_CASE("tasks at the same time have different memory, also of one thread", "[task memory][thread pool]") {
  std::vector<std::unique_ptr<TaskMemory>> held;
  std::set<const Bytes *> different;
  for (int i = 0; i < 300; ++i) {
    held.push_back(std::make_unique<TaskMemory>());
    const Bytes *const bytes = held.back()->as<Bytes>();
    CHECK(reinterpret_cast<uintptr_t>(bytes) % 64 == 0);
    different.insert(bytes);
  }
  CHECK(different.size() == held.size());
  held.clear();
  CHECK(count_wrong_colours(8, 50) == 0);
}

TEST_CASE("a thread has the same memory again", "[task memory]") {
  const Bytes *const first = TaskMemory().as<Bytes>();
  for (int i = 0; i < 10; ++i) CHECK(TaskMemory().as<Bytes>() == first);
}

TEST_CASE("a forked child has the memory of its parent's other threads", "[task memory]") {
  skip_forks_under_sanitizers();
  rope::reserve_task_memory(1);
  constexpr int num_threads = 6;
  std::atomic<int> holding{0};
  std::atomic<bool> may_end{false};
  std::vector<std::thread> threads;
  for (int i = 0; i < num_threads; ++i) {
    threads.emplace_back([&] {
      const TaskMemory memory;
      ++holding;
      while (!may_end) std::this_thread::yield();
    });
  }
  while (holding < num_threads) std::this_thread::yield();
  {
    const TaskMemory own;
    // The child may map nothing, so that it would wait forever if its parent's threads had kept theirs.
    CHECK(holds_in_child([&] {
      const rlimit none = {0, 0};
      setrlimit(RLIMIT_AS, &none);
      const TaskMemory memory[num_threads];
      for (const TaskMemory &one : memory) {
        if (one.as<Bytes>() == own.as<Bytes>()) return false;
      }
      return true;
    }));
  }
  may_end = true;
  for (std::thread &thread : threads) thread.join();
}

TEST_CASE("a task waits for another one's memory only if the system has none left", "[task memory]") {
  skip_forks_under_sanitizers();
  CHECK(holds_in_child([] {
    static std::optional<TaskMemory> held[1100];
    std::atomic<int> count{0};
    const auto count_at_rest = [&] {
      for (int known = -1; known != count; usleep(50000)) known = count;
      return count.load();
    };
    std::thread taker([&] {
      const rlimit none = {0, 0};
      setrlimit(RLIMIT_AS, &none);
      for (std::optional<TaskMemory> &one : held) {
        one.emplace();
        ++count;
      }
    });
    const int all = count_at_rest();
    held[0].reset();
    const bool went_on = all > 0 && count_at_rest() == all + 1;
    _exit(went_on ? 0 : 1);  // the taker never ends
    return went_on;
  }));
}
