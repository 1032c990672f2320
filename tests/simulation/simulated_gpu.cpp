// SPDX-License-Identifier: Apache-2.0
// simulated_gpu.cpp - fibers, and the events for which they wait
//
// setcontext enters a fiber's stack for the first time. After that, _longjmp switches between stacks: unlike setcontext
// it makes no system call, which saves half of the tests' time.
#undef _FORTIFY_SOURCE  // its longjmp would refuse to switch stacks
#include "simulated_gpu.hpp"

#include <setjmp.h>
#include <ucontext.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

// The arrays of shared memory that the kernels declare, with room for a guard.
namespace rope {
alignas(16) float4 shared[simulation::max_shared_bytes / sizeof(float4) + 64];
}

namespace simulation {

namespace {

constexpr size_t stack_bytes = 128 * 1024;
constexpr unsigned char garbage = 0xcd;

enum class State {
  Ready,
  AtBlock,
  AtWarp,
  Ended
};

struct Fiber {
  jmp_buf position;               // the point at which it waits
  std::unique_ptr<char[]> stack;  // NULL: it has not run yet
  uint3 place;
  State state;
  Meeting meeting;        // the operation in which it waits for other lanes
  uint32_t mask;          // the lanes of that operation
  uint64_t given;         // its value for the other lanes
  uint64_t received[32];  // values of all lanes, once all have arrived
};

std::vector<Fiber> fibers;
jmp_buf scheduler;
Fiber *current = nullptr;
const std::function<void()> *kernel_of_fibers = nullptr;
std::mt19937 order(1);

[[noreturn]] void fail(const char *what) {
  std::fprintf(stderr, "simulated GPU: %s (block %u, thread %u, %u)\n", what, blockIdx.x, threadIdx.x, threadIdx.y);
  std::abort();
}

void wait_as(State state) {
  current->state = state;
  if (_setjmp(current->position) == 0) _longjmp(scheduler, 1);
}

// Runs as a thread of one block after another.
void run_fiber() {
  for (;;) {
    (*kernel_of_fibers)();
    wait_as(State::Ended);
  }
}

// Runs a fiber until it waits. Nothing in the caller's frame may change between the two returns of _setjmp.
[[gnu::noinline]] void resume(Fiber *fiber) {
  current = fiber;
  threadIdx = fiber->place;
  if (_setjmp(scheduler) != 0) return;
  if (fiber->stack != nullptr) _longjmp(fiber->position, 1);
  fiber->stack = std::make_unique<char[]>(stack_bytes);
  static ucontext_t context;
  getcontext(&context);
  context.uc_stack.ss_sp = fiber->stack.get();
  context.uc_stack.ss_size = stack_bytes;
  context.uc_link = nullptr;
  makecontext(&context, run_fiber, 0);
  setcontext(&context);
}

// Releases the lanes of a warp that have all arrived at one operation.
bool release_lanes(size_t first, size_t count) {
  bool has_released = false;
  for (size_t lane = 0; lane < count; ++lane) {
    const Fiber &asking = fibers[first + lane];
    if (asking.state != State::AtWarp) continue;
    const uint32_t mask = asking.mask & (count < 32 ? (1u << count) - 1 : ~0u);
    bool have_met = true;
    for (size_t other = 0; other < count; ++other) {
      if ((mask >> other & 1u) == 0) continue;
      const Fiber &wanted = fibers[first + other];
      if (wanted.state == State::Ended) fail("a lane that others wait for has ended");
      have_met = have_met && wanted.state == State::AtWarp;
      if (wanted.state != State::AtWarp) continue;
      if (wanted.mask != asking.mask || wanted.meeting != asking.meeting) fail("lanes meet that wait for other things");
    }
    if (!have_met) continue;
    uint64_t given[32] = {};
    for (size_t other = 0; other < count; ++other) given[other] = fibers[first + other].given;
    for (size_t other = 0; other < count; ++other) {
      if ((mask >> other & 1u) == 0) continue;
      std::memcpy(fibers[first + other].received, given, sizeof given);
      fibers[first + other].state = State::Ready;
    }
    has_released = true;
  }
  return has_released;
}

bool release_block(size_t threads) {
  for (size_t i = 0; i < threads; ++i) {
    if (fibers[i].state != State::AtBlock && fibers[i].state != State::Ended) return false;
  }
  bool has_released = false;
  for (size_t i = 0; i < threads; ++i) {
    if (fibers[i].state != State::AtBlock) continue;
    fibers[i].state = State::Ready;
    has_released = true;
  }
  return has_released;
}

void run_block(size_t threads) {
  std::vector<size_t> turns(threads);
  std::iota(turns.begin(), turns.end(), size_t{0});
  for (;;) {
    std::shuffle(turns.begin(), turns.end(), order);
    bool has_run = false;
    for (const size_t i : turns) {
      if (fibers[i].state != State::Ready) continue;
      resume(&fibers[i]);
      has_run = true;
    }
    for (size_t first = 0; first < threads; first += 32) {
      has_run = release_lanes(first, threads - first < 32 ? threads - first : 32) || has_run;
    }
    has_run = release_block(threads) || has_run;
    if (!has_run) break;
  }
  for (size_t i = 0; i < threads; ++i) {
    if (fibers[i].state != State::Ended) fail("threads wait for one another for ever");
  }
}

}  // namespace

void wait_for_block() {
  wait_as(State::AtBlock);
}

uint64_t exchange(Meeting meeting, uint32_t mask, uint64_t value, uint32_t source) {
  current->meeting = meeting;
  current->mask = mask;
  current->given = value;
  wait_as(State::AtWarp);
  return current->received[source % 32];
}

uint32_t vote(Meeting meeting, uint32_t mask, bool value) {
  exchange(meeting, mask, value ? 1 : 0, 0);
  uint32_t bits = 0;
  for (uint32_t lane = 0; lane < 32; ++lane) {
    if ((mask >> lane & 1u) != 0 && current->received[lane] != 0) bits |= 1u << lane;
  }
  return bits;
}

void run(const std::function<void()> &kernel, dim3 grid, dim3 block, uint32_t shared_bytes) {
  const size_t threads = size_t{block.x} * block.y * block.z;
  if (threads == 0 || threads > 1024 || shared_bytes > max_shared_bytes) fail("a launch that no GPU takes");
  if (fibers.size() < threads) fibers.resize(threads);
  kernel_of_fibers = &kernel;
  gridDim = grid;
  blockDim = block;
  char *const shared = reinterpret_cast<char *>(rope::shared);
  for (uint32_t y = 0; y < grid.y; ++y) {
    for (uint32_t x = 0; x < grid.x; ++x) {
      blockIdx = {x, y, 0};
      std::memset(shared, garbage, sizeof rope::shared);
      for (size_t i = 0; i < threads; ++i) {
        fibers[i].place = {static_cast<uint32_t>(i % block.x), static_cast<uint32_t>(i / block.x), 0};
        fibers[i].state = State::Ready;
      }
      run_block(threads);
      for (size_t i = shared_bytes; i < sizeof rope::shared; ++i) {
        if (static_cast<unsigned char>(shared[i]) != garbage) fail("a write past the shared memory of the launch");
      }
    }
  }
}

}  // namespace simulation
