// SPDX-License-Identifier: Apache-2.0
// stress_tests.cpp - many threads at once: with one descriptor, while others are created and destroyed, and during fork
#include <rope/rope.h>

#include <atomic>
#include <catch2/catch_test_macros.hpp>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "support/child_process.hpp"
#include "support/device.hpp"

namespace {

constexpr int num_threads = 32;

// In-place calls of RoPE and SwiGLU on tensors of their own. Large calls use the threads of the pool.
class Work {
 public:
  explicit Work(bool is_large) : workspace_(81) {
    const int64_t rows = is_large ? 560 : 5;
    rope_.q = workspace_.tensor(ROPE_DTYPE_BF16, {1, rows, 13, 64});
    rope_.k = workspace_.tensor(ROPE_DTYPE_BF16, {1, rows, 3, 64});
    swiglu_.gate = swiglu_.out = workspace_.tensor(ROPE_DTYPE_BF16, {rows, 13 * 64});
    swiglu_.up = workspace_.tensor(ROPE_DTYPE_BF16, {rows, 13 * 64});
    for (const rope_tensor_t *tensor : {&rope_.q, &rope_.k, &swiglu_.gate, &swiglu_.up})
      workspace_.fill_normal(*tensor);
    workspace_.freeze();
  }

  // Whether both calls succeed; image() is then their result.
  bool run(const rope_desc_t *rope, const swiglu_desc_t *swiglu) {
    workspace_.restore();
    return rope_forward(rope, &rope_, nullptr) == ROPE_STATUS_SUCCESS &&
           swiglu_forward(swiglu, &swiglu_, nullptr) == ROPE_STATUS_SUCCESS;
  }
  std::vector<std::byte> image() const { return workspace_.image(); }

 private:
  Workspace workspace_;
  rope_args_t rope_ = rope_args();
  swiglu_args_t swiglu_ = swiglu_args();
};

rope_config_t rope_of_four_threads() {
  rope_config_t config = rope_config_for(devices()[0], 64);
  config.dtype = ROPE_DTYPE_BF16;
  config.num_threads = 4;
  return config;
}

swiglu_config_t swiglu_of_four_threads() {
  swiglu_config_t config = swiglu_config_for(devices()[0]);
  config.dtype = ROPE_DTYPE_BF16;
  config.num_threads = 4;
  return config;
}

// The expected results of all threads.
struct Expected {
  explicit Expected(const rope_desc_t *rope, const swiglu_desc_t *swiglu) {
    for (const bool is_large : {false, true}) {
      Work work(is_large);
      REQUIRE(work.run(rope, swiglu));
      image[is_large] = work.image();
    }
  }
  std::vector<std::byte> image[2];
};

// Threads that make calls until they are stopped, half of them with the shared descriptors and half with descriptors
// created and destroyed for each call. Large calls only compete for the pool.
class Threads {
 public:
  Threads(const rope_desc_t *rope, const swiglu_desc_t *swiglu, const Expected &expected) : wrong_(num_threads) {
    for (int i = 0; i < num_threads; ++i) {
      threads_.emplace_back([this, rope, swiglu, &expected, i] {
        Work work(i % 8 < 2);
        for (; !is_over_; ++calls_) {
          const RopeDesc own_rope = i % 2 == 0 ? nullptr : make<RopeDesc>(rope_of_four_threads(), rope_desc_create);
          const SwigluDesc own_swiglu =
              i % 2 == 0 ? nullptr : make<SwigluDesc>(swiglu_of_four_threads(), swiglu_desc_create);
          const bool is_served = i % 2 == 0 ? work.run(rope, swiglu) : work.run(own_rope.get(), own_swiglu.get());
          wrong_[i] += !is_served || work.image() != expected.image[i % 8 < 2];
        }
      });
    }
  }
  ~Threads() { stop(); }
  Threads(const Threads &) = delete;
  Threads &operator=(const Threads &) = delete;

  int64_t calls() const { return calls_; }

  void stop() {
    is_over_ = true;
    for (std::thread &thread : threads_) thread.join();
    threads_.clear();
  }
  int wrong() const {
    int sum = 0;
    for (const int each : wrong_) sum += each;
    return sum;
  }

 private:
  // Returns NULL if creation is refused; the call then reports it.
  template <class Desc, class Config, class Create>
  static Desc make(const Config &config, Create create) {
    typename Desc::pointer desc = nullptr;
    (void)create(&config, &desc);
    return Desc(desc);
  }

  std::atomic<bool> is_over_{false};
  std::atomic<int64_t> calls_{0};
  std::vector<int> wrong_;
  std::vector<std::thread> threads_;
};

}  // namespace

TEST_CASE("32 threads share descriptors while others are made and destroyed", "[stress][threads]") {
  const RopeDesc rope = create(rope_of_four_threads());
  const SwigluDesc swiglu = create(swiglu_of_four_threads());
  const Expected expected(rope.get(), swiglu.get());
  Threads threads(rope.get(), swiglu.get(), expected);
  while (threads.calls() < 1000) std::this_thread::yield();
  threads.stop();
  CHECK(threads.wrong() == 0);
}

TEST_CASE("a process forks while 32 threads call, and its children call too", "[stress][threads]") {
  skip_forks_under_sanitizers();
  const RopeDesc rope = create(rope_of_four_threads());
  const SwigluDesc swiglu = create(swiglu_of_four_threads());
  const Expected expected(rope.get(), swiglu.get());
  // glibc keeps malloc usable in a child of a process with many threads.
  Work work(true);
  Threads threads(rope.get(), swiglu.get(), expected);
  for (int round = 0; round < 5; ++round) {
    CHECK(holds_in_child([&] {
      const bool served = work.run(rope.get(), swiglu.get()) && work.image() == expected.image[true];
      const RopeDesc own_rope = create(rope_of_four_threads());
      const SwigluDesc own_swiglu = create(swiglu_of_four_threads());
      const bool again = work.run(own_rope.get(), own_swiglu.get()) && work.image() == expected.image[true];
      return served && again;
    }));
  }
  threads.stop();
  CHECK(threads.wrong() == 0);
  CHECK(threads.calls() > 0);
}
