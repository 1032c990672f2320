// SPDX-License-Identifier: Apache-2.0
// thread_pool_tests.cpp - every task runs once: calls from tasks, from many threads and after fork
#include <pthread.h>
#include <sched.h>
#include <signal.h>

#include <atomic>
#include <catch2/catch_test_macros.hpp>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "backend/cpu/thread_pool.hpp"
#include "support/child_process.hpp"

namespace {

// As large as a program's thread-local variables may be.
thread_local volatile char thread_local_data[1 << 20];

void run(int num_tasks, const std::function<void(int)> &task) {
  rope::run_tasks(
      num_tasks, [](void *context, int index) { (*static_cast<const std::function<void(int)> *>(context))(index); },
      const_cast<std::function<void(int)> *>(&task));
}

// How often each task of one call ran, with one more slot at either end for invalid indices.
class Counts {
 public:
  explicit Counts(int num_tasks) : num_tasks_(num_tasks), counts_(new std::atomic<int>[num_tasks + 2]()) {}
  void add(int index) { ++counts_[index >= 0 && index < num_tasks_ ? index + 1 : index < 0 ? 0 : num_tasks_ + 1]; }
  bool each_once() const {
    for (int i = 0; i < num_tasks_; ++i) {
      if (counts_[i + 1] != 1) return false;
    }
    return counts_[0] == 0 && counts_[num_tasks_ + 1] == 0;
  }

 private:
  int num_tasks_;
  std::unique_ptr<std::atomic<int>[]> counts_;
};

bool runs_each_once(int num_tasks) {
  Counts counts(num_tasks);
  run(num_tasks, [&](int index) { counts.add(index); });
  return counts.each_once();
}

// Returns true once `count` tasks have arrived, or false after ten seconds.
bool wait_for(const std::atomic<int> &arrived, int count) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (arrived < count) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::yield();
  }
  return true;
}

}  // namespace

TEST_CASE("each task runs once", "[thread pool]") {
  for (const int num_tasks : {0, 1, 2, 3, 4, 5, 7, 8, 16, 33}) {
    INFO(num_tasks << " tasks");
    for (int round = 0; round < 50; ++round) REQUIRE(runs_each_once(num_tasks));
  }
}

TEST_CASE("calls of few tasks follow calls of many", "[thread pool]") {
  for (int round = 0; round < 300; ++round) {
    REQUIRE(runs_each_once(2 + round % 7));
    REQUIRE(runs_each_once(40));
  }
}

TEST_CASE("more tasks than threads can be had", "[thread pool]") {
  for (const int num_tasks : {255, 256, 257, 1000, 20000}) {
    INFO(num_tasks << " tasks");
    CHECK(runs_each_once(num_tasks));
  }
}

TEST_CASE("tasks run at the same time, the caller's among them", "[thread pool]") {
  std::atomic<int> arrived{0}, alone{0}, by_caller{0};
  const std::thread::id caller = std::this_thread::get_id();
  run(3, [&](int) {
    ++arrived;
    if (std::this_thread::get_id() == caller) ++by_caller;
    if (!wait_for(arrived, 3)) ++alone;
  });
  CHECK(alone == 0);
  CHECK(by_caller == 1);
}

TEST_CASE("a call returns when its last task has", "[thread pool]") {
  for (int round = 0; round < 20; ++round) {
    std::atomic<int> finished{0};
    run(4, [&](int index) {
      std::this_thread::sleep_for(std::chrono::milliseconds(index));
      ++finished;
    });
    REQUIRE(finished == 4);
  }
}

TEST_CASE("a task may call", "[thread pool]") {
  std::atomic<int> wrong{0};
  Counts outer(5);
  run(5, [&](int index) {
    outer.add(index);
    if (!runs_each_once(6)) ++wrong;
    run(2, [&](int) {
      if (!runs_each_once(3)) ++wrong;
    });
  });
  CHECK(outer.each_once());
  CHECK(wrong == 0);
}

TEST_CASE("many threads call at once", "[thread pool]") {
  std::atomic<int> wrong{0};
  std::vector<std::thread> callers;
  for (int i = 0; i < 6; ++i) {
    callers.emplace_back([&wrong, i] {
      for (int round = 0; round < 200; ++round) {
        if (!runs_each_once(1 + (round + i) % 9)) ++wrong;
      }
    });
  }
  for (std::thread &caller : callers) caller.join();
  CHECK(wrong == 0);
}

TEST_CASE("threads of the pool take no signals", "[thread pool]") {
  std::atomic<int> arrived{0}, open{0};
  const std::thread::id caller = std::this_thread::get_id();
  sigset_t before, after;
  pthread_sigmask(SIG_BLOCK, nullptr, &before);
  run(3, [&](int) {
    ++arrived;
    wait_for(arrived, 3);
    if (std::this_thread::get_id() == caller) return;
    sigset_t mask;
    pthread_sigmask(SIG_BLOCK, nullptr, &mask);
    for (const int signal : {SIGINT, SIGTERM, SIGALRM, SIGUSR1, SIGCHLD, SIGPROF})
      open += sigismember(&mask, signal) != 1;
  });
  pthread_sigmask(SIG_BLOCK, nullptr, &after);
  CHECK(arrived == 3);
  CHECK(open == 0);
  for (const int signal : {SIGINT, SIGTERM, SIGALRM, SIGUSR1, SIGCHLD, SIGPROF}) {
    CHECK(sigismember(&before, signal) == sigismember(&after, signal));
  }
}

TEST_CASE("threads of the pool take the signals of faults, whatever the thread that started them blocks",
          "[thread pool]") {
  skip_forks_under_sanitizers();
  const auto takes_faults = [] {
    std::atomic<int> arrived{0}, blocked{0};
    const std::thread::id caller = std::this_thread::get_id();
    run(3, [&](int) {
      ++arrived;
      wait_for(arrived, 3);
      sigset_t mask;
      pthread_sigmask(SIG_BLOCK, nullptr, &mask);
      for (const int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS}) {
        blocked += std::this_thread::get_id() != caller && sigismember(&mask, signal) != 0;
      }
    });
    return arrived == 3 && blocked == 0;
  };
  for (const bool is_started_by_a_blocking_thread : {false, true}) {
    CHECK(holds_in_child([&] {
      if (is_started_by_a_blocking_thread) {
        std::thread([] {
          sigset_t all;
          sigfillset(&all);
          pthread_sigmask(SIG_SETMASK, &all, nullptr);
          runs_each_once(3);
        }).join();
      }
      return takes_faults();
    }));
  }
}

TEST_CASE("a handler and thread-local variables fit the stacks of the pool", "[thread pool]") {
  skip_forks_under_sanitizers();
  struct Handler {
    static void handle(int) {
      volatile char bytes[128 << 10];  // the size that the header guarantees
      for (size_t i = 0; i < sizeof bytes; i += 512) bytes[i] = 1;
      for (size_t i = 0; i < sizeof thread_local_data; i += 512) thread_local_data[i] = bytes[i % sizeof bytes];
    }
  };
  CHECK(holds_in_child([] {
    struct sigaction action = {};
    action.sa_handler = Handler::handle;
    sigaction(SIGTRAP, &action, nullptr);
    std::atomic<int> arrived{0};
    run(8, [&](int) {
      volatile char deep[48 << 10];  // the most that a call needs
      for (size_t i = 0; i < sizeof deep; i += 512) deep[i] = 1;
      ++arrived;
      wait_for(arrived, 8);
      raise(SIGTRAP);
    });
    return arrived == 8;
  }));
}

TEST_CASE("threads of the pool take little address space", "[thread pool]") {
#if defined(__SANITIZE_THREAD__) || defined(ROPE_TEST_ADDRESS_SANITIZER)
  SKIP("sanitizers have thread-local variables of their own");
#endif
  constexpr size_t max_bytes = (size_t{512} << 10) + sizeof thread_local_data;
  std::atomic<int> arrived{0}, large{0};
  const std::thread::id caller = std::this_thread::get_id();
  run(17, [&](int) {
    ++arrived;
    wait_for(arrived, 17);
    if (std::this_thread::get_id() == caller) return;
    pthread_attr_t attributes;
    size_t bytes = 0;
    if (pthread_getattr_np(pthread_self(), &attributes) != 0) return;
    pthread_attr_getstacksize(&attributes, &bytes);
    pthread_attr_destroy(&attributes);
    large += bytes == 0 || bytes > max_bytes;
  });
  CHECK(arrived == 17);
  CHECK(large == 0);
}

TEST_CASE("a call wakes no more threads than it has tasks", "[thread pool]") {
  skip_forks_under_sanitizers();
  CHECK(holds_in_child([] {
    constexpr int num_workers = 24, num_calls = 300;
    // How often threads of this process have blocked.
    const auto waits = [] {
      long sum = 0;
      for (const auto &entry : std::filesystem::directory_iterator("/proc/self/task")) {
        std::ifstream file(entry.path() / "status");
        for (std::string word; file >> word;) {
          long count;
          if (word == "voluntary_ctxt_switches:" && file >> count) sum += count;
        }
      }
      return sum;
    };
    std::atomic<int> arrived{0};
    run(num_workers + 1, [&](int) {
      ++arrived;
      wait_for(arrived, num_workers + 1);
    });
    const long before = waits();
    for (int call = 0; call < num_calls; ++call) {
      run(2, [](int) {});
      sched_yield();
    }
    const long woken = waits() - before;
    // The woken thread blocks on the lock, and then on work; so does the caller.
    return arrived == num_workers + 1 && woken < num_calls * num_workers / 2;
  }));
}

TEST_CASE("a forked child has a pool of its own", "[thread pool]") {
  skip_forks_under_sanitizers();
  REQUIRE(runs_each_once(4));
  CHECK(holds_in_child([] {
    // The child must start new threads, because it has none of the parent's.
    std::atomic<int> arrived{0}, alone{0};
    run(3, [&](int) {
      ++arrived;
      if (!wait_for(arrived, 3)) ++alone;
    });
    return alone == 0 && runs_each_once(5) && holds_in_child([] { return runs_each_once(3); });
  }));
  CHECK(runs_each_once(4));
}

TEST_CASE("a child forked in the middle of a call is not held up by it", "[thread pool]") {
  skip_forks_under_sanitizers();
  std::atomic<int> arrived{0};
  std::atomic<bool> may_finish{false};
  std::thread busy([&] {
    run(3, [&](int) {
      ++arrived;
      while (!may_finish) std::this_thread::yield();
    });
  });
  CHECK(wait_for(arrived, 3));
  const bool child_works = holds_in_child([] {
    std::atomic<int> together{0}, alone{0};
    run(2, [&](int) {
      ++together;
      if (!wait_for(together, 2)) ++alone;
    });
    return alone == 0 && runs_each_once(6);
  });
  CHECK(child_works);
  // Meanwhile this call uses the pool.
  CHECK(runs_each_once(6));
  may_finish = true;
  busy.join();
  CHECK(runs_each_once(6));
}
