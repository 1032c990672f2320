// tuning.hpp - every number that was found by measuring, with where it was measured
#pragma once

#include <stdint.h>

namespace rope {

// CUDA, RoPE. Threads of a block, best first. One thread moves two vectors, so these cover 4, 5, 3 and 2 KiB: copies are
// fastest at 2 to 5 KiB a block, 2 % slower at 8 and 5 to 7 % at 16.
constexpr uint32_t kRopeBlockSizes[] = {128, 160, 96, 64};
constexpr uint32_t kMaxRopeThreads = 160;

// Caps the kernel at 40 registers; 32 and 48 are slower.
constexpr int kRopeBlocksPerMultiprocessor = 9;

// CUDA, SwiGLU. One vector of each tensor a thread, 2 KiB of each a block.
constexpr int kSwigluThreads = 128;

// CPU. Handing work to the pool takes about 30 us, in which one core rotates about 1 MiB.
constexpr int64_t kBytesPerCpuTask = int64_t{512} << 10;

}  // namespace rope
