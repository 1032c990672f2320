// SPDX-License-Identifier: Apache-2.0
// child_process.hpp - runs a check in a forked child, which has its own memory, threads and signal handlers
#ifndef ROPE_TESTS_SUPPORT_CHILD_PROCESS_HPP
#define ROPE_TESTS_SUPPORT_CHILD_PROCESS_HPP

#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch_test_macros.hpp>
#include <functional>

// Whether `check` returns true in a forked child. An alarm ends a child that hangs.
inline bool holds_in_child(const std::function<bool()> &check) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(60);
    // An exception must not leave the child, which would otherwise continue with the parent's tests.
    _exit([&]() noexcept { return check(); }() ? 0 : 1);
  }
  int status = 0;
  return child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

// AddressSanitizer's locks are not fork-safe: if another thread of the process is being created during fork, the child
// may hang in its first pthread_create. This happened in a third of the runs on a loaded machine, and in none of 400
// runs without the sanitizer.
inline void skip_forks_under_sanitizers() {
#if defined(__SANITIZE_THREAD__)
  SKIP("ThreadSanitizer ends a process that starts threads after a fork");
#elif defined(ROPE_TEST_ADDRESS_SANITIZER)
  SKIP("a forked child may hang in AddressSanitizer's own locks");
#endif
}

#endif
