// tuning.hpp - every number that was found by measuring, with where it was measured
#pragma once

#include <stdint.h>

namespace rope {

// CUDA, RoPE. One thread moves two vectors, so a block of 128 covers 4 KiB of input: 2 to 5 KiB is best, 8 KiB loses
// 2 %, 16 KiB 5 to 7 %.
constexpr int kRopeThreads = 128;

// Caps the kernel at 40 registers; the compiler's own choice is 2 % slower.
constexpr int kRopeBlocksPerMultiprocessor = 12;

// CUDA, SwiGLU. One vector of each tensor a thread, 4 KiB of each a block.
constexpr int kSwigluThreads = 256;

// CPU. Handing work to the pool takes about 30 us, in which one core rotates about 1 MiB.
constexpr int64_t kBytesPerCpuTask = int64_t{512} << 10;

}  // namespace rope
