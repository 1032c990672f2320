// SPDX-License-Identifier: Apache-2.0
// process_tests.cpp - the program's use of threads and signals: cancellation, and faults that the program handles
#include <pthread.h>
#include <rope/rope.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <catch2/catch_test_macros.hpp>
#include <vector>

#include "support/child_process.hpp"
#include "support/device.hpp"

namespace {

constexpr int num_threads = 4;

RopeDesc create_rope() {
  rope_config_t config = rope_config_for(devices()[0], 128);
  config.layout = ROPE_LAYOUT_THD;
  config.num_threads = num_threads;
  return create(config);
}

rope_args_t args_over(float *data, int64_t tokens) {
  rope_args_t args = rope_args();
  args.q.data = data;
  args.q.dtype = ROPE_DTYPE_F32;
  args.q.ndim = 3;
  args.q.shape[0] = tokens;
  args.q.shape[1] = 8;
  args.q.shape[2] = 128;
  return args;
}

constexpr int64_t elements_of(int64_t tokens) {
  return tokens * 8 * 128;
}

bool is_right(const rope_desc_t *desc) {
  constexpr int64_t tokens = 4096;
  std::vector<float> data(elements_of(tokens), 1.0f);
  const rope_args_t args = args_over(data.data(), tokens);
  if (rope_forward(desc, &args, nullptr) != ROPE_STATUS_SUCCESS) return false;
  if (rope_backward(desc, &args, nullptr) != ROPE_STATUS_SUCCESS) return false;
  for (const float value : data) {
    if (!(value > 0.999f && value < 1.001f)) return false;
  }
  return true;
}

// ---- A page of a tensor that a signal handler provides at the first access ----

char *fault_begin;
size_t fault_bytes;
std::atomic<int> faults_by_caller{0}, faults_by_others{0};
pthread_t fault_caller;

// Delays the caller until another thread has arrived too, ten seconds at most.
void bring_page(int, siginfo_t *info, void *) {
  char *const at = static_cast<char *>(info->si_addr);
  if (at < fault_begin || at >= fault_begin + fault_bytes) _exit(2);
  const bool is_caller = pthread_equal(pthread_self(), fault_caller) != 0;
  ++(is_caller ? faults_by_caller : faults_by_others);
  for (int i = 0; is_caller && faults_by_others == 0 && i < 10000; ++i) usleep(1000);
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  char *const begin = fault_begin + static_cast<size_t>(at - fault_begin) / page * page;
  if (mprotect(begin, page, PROT_READ | PROT_WRITE) != 0) _exit(3);
}

}  // namespace

TEST_CASE("the program's handler brings the pages of a tensor, on whichever thread", "[process][threads]") {
  skip_forks_under_sanitizers();
  CHECK(holds_in_child([] {
    constexpr int64_t tokens = 4096;
    fault_bytes = static_cast<size_t>(elements_of(tokens)) * sizeof(float);
    void *memory = mmap(nullptr, fault_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return false;
    fault_begin = static_cast<char *>(memory);
    fault_caller = pthread_self();
    struct sigaction action = {};
    action.sa_sigaction = bring_page;
    action.sa_flags = SA_SIGINFO;
    sigaction(SIGSEGV, &action, nullptr);
    const RopeDesc desc = create_rope();
    const rope_args_t args = args_over(reinterpret_cast<float *>(fault_begin), tokens);
    const bool is_served = rope_forward(desc.get(), &args, nullptr) == ROPE_STATUS_SUCCESS;
    return is_served && faults_by_caller > 0 && faults_by_others > 0;
  }));
}

TEST_CASE("a thread that is to be cancelled finishes its calls first", "[process][threads]") {
  skip_forks_under_sanitizers();
  CHECK(holds_in_child([] {
    struct Caller {
      const rope_desc_t *desc;
      int calls = 0;
    };
    const RopeDesc desc = create_rope();
    for (int round = 0; round < 10; ++round) {
      Caller caller = {desc.get()};
      pthread_t thread;
      const auto call_when_cancelled = [](void *context) -> void * {
        Caller *const self = static_cast<Caller *>(context);
        constexpr int64_t tokens = 2048;
        static float data[elements_of(tokens)];
        const rope_args_t args = args_over(data, tokens);
        pthread_cancel(pthread_self());
        for (int i = 0; i < 20; ++i) self->calls += rope_forward(self->desc, &args, nullptr) == ROPE_STATUS_SUCCESS;
        pthread_testcancel();
        return nullptr;
      };
      if (pthread_create(&thread, nullptr, call_when_cancelled, &caller) != 0) return false;
      void *result = nullptr;
      pthread_join(thread, &result);
      if (result != PTHREAD_CANCELED || caller.calls != 20 || !is_right(desc.get())) return false;
    }
    return true;
  }));
}

TEST_CASE("a call leaves the cancellation state as it was", "[process]") {
  for (const Device &device : devices()) {
    INFO(device);
    for (const int state : {PTHREAD_CANCEL_ENABLE, PTHREAD_CANCEL_DISABLE}) {
      int before, after;
      pthread_setcancelstate(state, &before);
      int32_t count;
      (void)rope_device_count(device.kind, &count);
      const RopeDesc desc = create(rope_config_for(device, 64));
      const rope_args_t args = rope_args();
      CHECK(rope_forward(desc.get(), &args, nullptr) == ROPE_STATUS_INVALID_ARGUMENT);
      pthread_setcancelstate(before, &after);
      CHECK(after == state);
    }
  }
}

// If this test runs alone, it creates the process's first descriptor, which reads files: a cancellation point.
TEST_CASE("a thread that is to be cancelled makes a descriptor", "[process]") {
  for (const Device &device : devices()) {
    INFO(device);
    struct Creator {
      Device device;
      RopeDesc desc;
    };
    Creator creator = {device, nullptr};
    pthread_t thread;
    const auto create_when_cancelled = [](void *context) -> void * {
      Creator *const self = static_cast<Creator *>(context);
      pthread_cancel(pthread_self());
      int32_t count;
      (void)rope_device_count(self->device.kind, &count);
      rope_config_t config = rope_config_for(self->device, 96);
      rope_desc_t *desc = nullptr;
      (void)rope_desc_create(&config, &desc);
      self->desc = RopeDesc(desc);
      pthread_testcancel();
      return nullptr;
    };
    REQUIRE(pthread_create(&thread, nullptr, create_when_cancelled, &creator) == 0);
    void *result = nullptr;
    REQUIRE(pthread_join(thread, &result) == 0);
    CHECK(result == PTHREAD_CANCELED);
    CHECK(creator.desc != nullptr);
  }
}
