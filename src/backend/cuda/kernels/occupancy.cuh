// SPDX-License-Identifier: Apache-2.0
// occupancy.cuh - the blocks per multiprocessor for which the compiler limits registers
#pragma once

namespace rope {

// The number of threads that every multiprocessor of the target can hold: 1024 on Turing, otherwise 1536. Data-centre
// GPUs hold 2048, but their code also runs on other GPUs, or is assembled for them, and no kernel needs more than 1536.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ == 750
constexpr int kHeldThreads = 1024;
#else
constexpr int kHeldThreads = 1536;
#endif

constexpr int min_blocks_per_multiprocessor(int resident_threads, int block_threads) {
  const int blocks = (resident_threads < kHeldThreads ? resident_threads : kHeldThreads) / block_threads;
  return blocks > 0 ? blocks : 1;
}

}  // namespace rope
