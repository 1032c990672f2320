// SPDX-License-Identifier: Apache-2.0
// simulated_gpu.hpp - runs the code of CUDA kernels on the CPU: every thread of a block is a fiber
//
// A fiber runs until it waits for its block or for lanes of its warp, or until it ends. The fibers that can run do so
// in a different order in each pass, so that a missing barrier changes results. Shared memory is initialised with
// garbage. Arithmetic is the host's; intrinsics are replaced by the IEEE 754 operations that they stand for.
#ifndef ROPE_TESTS_SIMULATION_SIMULATED_GPU_HPP
#define ROPE_TESTS_SIMULATION_SIMULATED_GPU_HPP

#include <vector_types.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>

// The built-in variables of device code.
extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;

namespace simulation {

constexpr int max_shared_bytes = 48 * 1024;

// Runs every block of the grid, one after another. Ends the program with a message if threads wait for each other
// forever or if a block wrote past its shared memory.
void run(const std::function<void()> &kernel, dim3 grid, dim3 block, uint32_t shared_bytes);

void wait_for_block();

enum class Meeting {
  Sync,
  Shuffle,
  Vote
};

// Waits until all lanes of the mask arrive at this kind of operation; returns the value of lane `source`.
uint64_t exchange(Meeting meeting, uint32_t mask, uint64_t value, uint32_t source);

// Returns a mask of the lanes whose value is not 0.
uint32_t vote(Meeting meeting, uint32_t mask, bool value);

template <typename T>
T exchange_as(uint32_t mask, T value, uint32_t source) {
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof value);
  bits = exchange(Meeting::Shuffle, mask, bits, source);
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

inline uint32_t lane() {
  return (threadIdx.y * blockDim.x + threadIdx.x) % 32;
}

}  // namespace simulation

// ---- The parts of CUDA's language and intrinsics that kernels use ----

#define ROPE_SIMULATED_GPU 1  // the mathematics of kernels, not that of the CPU's loops

#undef __launch_bounds__
#define __launch_bounds__(...)
#undef __grid_constant__
#define __grid_constant__
#undef __noinline__
#define __noinline__  // empty: headers of the C++ library use the name in their attributes

inline void __syncthreads() {
  simulation::wait_for_block();
}
inline int __syncthreads_or(int is_true) {
  static bool is_any;
  if (is_true != 0) is_any = true;
  simulation::wait_for_block();
  const int result = is_any;
  simulation::wait_for_block();
  is_any = false;
  simulation::wait_for_block();
  return result;
}
inline void __syncwarp(uint32_t mask = 0xffffffffu) {
  simulation::vote(simulation::Meeting::Sync, mask, false);
}
template <typename T>
T __shfl_sync(uint32_t mask, T value, int source) {
  return simulation::exchange_as(mask, value, static_cast<uint32_t>(source));
}
template <typename T>
T __shfl_xor_sync(uint32_t mask, T value, uint32_t bits) {
  return simulation::exchange_as(mask, value, simulation::lane() ^ bits);
}
template <typename T>
T __shfl_up_sync(uint32_t mask, T value, uint32_t distance) {
  const uint32_t lane = simulation::lane();
  return simulation::exchange_as(mask, value, lane < distance ? lane : lane - distance);
}
template <typename T>
T __shfl_down_sync(uint32_t mask, T value, uint32_t distance) {
  const uint32_t lane = simulation::lane();
  return simulation::exchange_as(mask, value, lane + distance < 32 ? lane + distance : lane);
}
inline uint32_t __ballot_sync(uint32_t mask, bool value) {
  return simulation::vote(simulation::Meeting::Vote, mask, value);
}
inline int __any_sync(uint32_t mask, bool value) {
  return simulation::vote(simulation::Meeting::Vote, mask, value) != 0;
}
inline int __clz(int value) {
  return value == 0 ? 32 : __builtin_clz(static_cast<unsigned>(value));
}
inline uint32_t __umulhi(uint32_t a, uint32_t b) {
  return static_cast<uint32_t>(static_cast<uint64_t>(a) * b >> 32);
}
inline double __hiloint2double(int high, int low) {
  const uint64_t bits = static_cast<uint64_t>(static_cast<uint32_t>(high)) << 32 | static_cast<uint32_t>(low);
  double value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}
inline int __double2hiint(double value) {
  uint64_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return static_cast<int>(bits >> 32);
}
inline int __double2loint(double value) {
  uint64_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return static_cast<int>(static_cast<uint32_t>(bits));
}
[[noreturn]] inline void __trap() {
  std::abort();
}

inline uint32_t __byte_perm(uint32_t a, uint32_t b, uint32_t selector) {
  const uint64_t bytes = static_cast<uint64_t>(b) << 32 | a;
  uint32_t result = 0;
  for (int i = 0; i < 4; ++i) result |= (static_cast<uint32_t>(bytes >> (selector >> 4 * i & 7) * 8) & 255) << 8 * i;
  return result;
}
template <typename Word>
Word atomicAdd(Word *address, Word value) {
  const Word before = *address;
  *address += value;
  return before;
}
template <typename Word>
Word atomicMax(Word *address, Word value) {
  const Word before = *address;
  if (value > before) *address = value;
  return before;
}
template <typename Word>
Word atomicCAS(Word *address, Word expected, Word wanted) {
  const Word before = *address;
  if (before == expected) *address = wanted;
  return before;
}

#endif
