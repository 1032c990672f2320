// child_process.hpp - checks in a forked child, whose memory, threads and signal handlers are its own
#ifndef ROPE_TESTS_SUPPORT_CHILD_PROCESS_HPP
#define ROPE_TESTS_SUPPORT_CHILD_PROCESS_HPP

#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch_test_macros.hpp>
#include <functional>

// Whether `check` holds in a forked child. One that hangs is ended by its alarm.
inline bool holds_in_child(const std::function<bool()> &check) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(60);
    // What is thrown must not leave the child, which would go on with the parent's tests.
    _exit([&]() noexcept { return check(); }() ? 0 : 1);
  }
  int status = 0;
  return child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

// AddressSanitizer's own locks are not fork-safe: a child of a process one of whose threads is just starting may hang
// in its first pthread_create. Seen in a third of the runs of a loaded machine, and in none of 400 without the
// sanitizer.
inline void skip_forks_under_sanitizers() {
#if defined(__SANITIZE_THREAD__)
  SKIP("ThreadSanitizer ends a process that starts threads after a fork");
#elif defined(ROPE_TEST_ADDRESS_SANITIZER)
  SKIP("a forked child may hang in AddressSanitizer's own locks");
#endif
}

#endif
