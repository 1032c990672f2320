// tuning.hpp - every number that was found by measuring, with where it was measured
#pragma once

#include <stdint.h>

namespace rope {

// All CUDA numbers: NVIDIA H200, 2026-11-20, `rope-bench --device cuda`; "prefill" is Llama-3-70B's 16 384 tokens in
// bf16, whose copy takes 141.9 us, "decode" its 8 tokens.

// RoPE with angles shared by a block: threads of it, best first where they leave equally few idle. One thread moves two
// vectors, so a block covers 4, 5 and 3 KiB. Blocks of 128 alone leave a tenth of prefill's threads idle: 152.5 against
// 150.6 us; numbered through, so that blocks straddle tokens, prefill takes 147.0 against 145.5. Blocks of 64 threads,
// which heads of 96 channels would fill best, make 115 to 139 us of 112.
constexpr uint32_t kRopeBlockSizes[] = {128, 160, 96};
constexpr int kMaxRopeThreads = 160;

// RoPE with angles of each thread's own, or from a table: threads of a block.
constexpr uint32_t kFlatThreads = 128;

// RoPE: threads for each multiprocessor up to which they compute angles of their own. Decode of 8 tokens, 64 + 8 heads
// (70): 1.64 against 1.71 us; of 64 tokens, 32 + 8 heads (310) 2.01 against 1.95, 64 + 8 heads (558) 2.39 against 2.17.
// With programmatic launch 310: 1.64 against 2.06 us, 558: 1.90 against 2.22, 256 tokens, 64 + 8 heads: 3.06 against
// 2.91.
constexpr int kMostFlatThreads = 150;
constexpr int kMostFlatThreadsProgrammatic = 600;

// RoPE: least units of a token for a row of threads of its own.
constexpr uint32_t kLeastUnitsOfTokenRows = 64;

// RoPE: threads that the compiler must leave registers for on a multiprocessor. Shared angles: 1440 (40 registers)
// 146.4 us, 1280 (48) 152.4, 1760 (32) 154.5. Angles from a table: 1920 (32) 154.4 us, 1440 (40) 162.5. The general
// kernel: 1536 (40) 175 us, 1280 (48) 184.
constexpr int kRopeResidentThreads = 1440;
constexpr int kTableResidentThreads = 1920;
constexpr int kRopeGeneralResidentThreads = 1440;

// Tables: threads of a block, and blocks for each multiprocessor. Not measured: tables are filled once.
constexpr int kTableThreads = 128;
constexpr int kTableBlocksPerMultiprocessor = 16;

// SwiGLU: threads of a block, one vector of each tensor a thread. 8192 x 14336 bf16 backward, copy 277.1 us: 128
// threads 278.4 us, 256 282.6, 512 292.1 (before elements stayed packed: 271.5 with 128 now).
constexpr int kSwigluThreads = 128;

// The same with programmatic launch, which starts blocks more slowly, in launches of up to so many vectors for each
// multiprocessor (256 x 14336 has 3476 of 16 bytes). 256 threads were not measured.
constexpr int kSwigluThreadsProgrammatic = 128;
constexpr int kSwigluMostVectorsProgrammatic = 4000;

// SwiGLU: threads with vectors of full width, for each multiprocessor, up to which vectors of half the width and twice
// the threads are quicker. 8 x 14336 (109): 1.54 against 1.60 us, 64 x 14336 (869) 2.70 against 2.57. With programmatic
// launch other limits were not measured.
constexpr int kSwigluMostHalfVectorThreads = 300;
constexpr int kSwigluMostHalfVectorThreadsProgrammatic = 300;

// SwiGLU: finding a row once in each block instead of once in each thread did not pay: 8192 x 14336 packed 162.2
// against 162.5 us, 64 x 14336 with programmatic launch 2.32 against 2.20.

// SwiGLU of gate and up that alternate: bytes of a vector, 8 or 16, of each; the two are one or two accesses of 16.
// 8192 x 14336 bf16, copy 165.5 us: 16 bytes 161.7 us, gpt-oss' form 0.73 of its copy. 8 bytes were not measured.
constexpr int64_t kSwigluAlternatingVectorBytes = 16;

// SwiGLU with summed rows: most threads of a block, which takes a row; threads that the compiler must leave registers
// for on a multiprocessor (80, on sm_90 the fewest without spills); and what a thread takes of a row at a time,
// whatever the vectors, so that the order of the sum does not depend on them. Not measured yet.
constexpr int kMaxSwigluRowThreads = 256;
constexpr int kSwigluRowResidentThreads = 768;
constexpr int64_t kSwigluRowGroupBytes = 16;

// RoPE: threads with vectors of full width, for each multiprocessor, up to which vectors of half the width and twice
// the threads are quicker. Decode: 8 tokens (35) 1.67 against 1.71 us, 64 tokens (279) 2.13 against 2.18, 256 tokens
// (1117) 4.07 against 3.32.
constexpr int kSmallLaunchThreadsPerMultiprocessor = 300;

// CPU: least bytes, read and written, that are worth a thread of their own, which takes about 60 us to wake. Two cores
// of an AMD EPYC 9004, 2026-11-20, on one thread and on two. AVX-512: RoPE bf16 1 MiB 44 and 59 us, 2 MiB 89 and 88, 4
// MiB 177 and 134, fp32 2 MiB 31 and 38, 8 MiB 122 and 106; SwiGLU bf16 2 MiB 127 and 108, fp32 2 MiB 51 and 64, 4 MiB
// 101 and 95. SSE2: RoPE bf16 1 MiB 142 and 113, fp32 4 MiB 81 and 87.
constexpr int64_t kBytesPerCpuTask = int64_t{1} << 20;

}  // namespace rope
