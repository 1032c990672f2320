// occupancy.cuh - the blocks of a multiprocessor that the compiler leaves registers for
#pragma once

namespace rope {

// The minimum of threads that a multiprocessor holds: 1024 on Turing, else 1536. Data-centre GPUs hold 2048, but code for
// them serves others or is assembled for them too, and no kernel wants more.
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
