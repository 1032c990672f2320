// occupancy.cuh - the blocks of a multiprocessor that the compiler leaves registers for
#pragma once

namespace rope {

// The minimum of threads that a multiprocessor holds: 1024 on Turing, 2048 on Hopper, 1536 on others. Data-centre GPUs of
// Ampere and Blackwell hold 2048, but what is compiled for them is assembled for sm_86 and sm_120 too.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ == 750
constexpr int kHeldThreads = 1024;
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ == 900
constexpr int kHeldThreads = 2048;
#else
constexpr int kHeldThreads = 1536;
#endif

constexpr int min_blocks_per_multiprocessor(int resident_threads, int block_threads) {
  const int blocks = (resident_threads < kHeldThreads ? resident_threads : kHeldThreads) / block_threads;
  return blocks > 0 ? blocks : 1;
}

}  // namespace rope
