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

// RoPE: threads for each multiprocessor up to which they have angles of their own. Computed, without and with
// programmatic launch, own angles against rows of threads: Llama-3-8B's decode of 1 token (5) 1.71 and 1.56 us, 0.95 and
// 1.04; 8 tokens (39) 1.79 and 1.62, 1.13 and 1.30; 64 (310) 2.23 and 1.87, 1.82 and 1.87; 256 (620) 2.63 and 2.21. From
// a table: 1 token 1.80 and 1.87, 1.19 and 1.33; 64 (310) 2.09 and 2.20, 2.02 and 2.30; 256 (1241) 3.04 and 2.96, 2.33
// and 2.59; Llama-3-70B's 256 tokens (2234) 4.55 and 3.81, 3.97 and 3.12.
constexpr int kMostFlatThreads = 0;
constexpr int kMostFlatThreadsProgrammatic = 600;
constexpr int kMostFlatTableThreads = 600;
constexpr int kMostFlatTableThreadsProgrammatic = 1300;

// RoPE: least units of a token for a row of threads of its own. Not measured: a row is whole warps, so fewer leave
// many threads idle.
constexpr uint32_t kLeastUnitsOfTokenRows = 64;

// RoPE, rows of threads, what did not pay: blocks of 192 threads (prefill 146.0 us against 145.4); a grid of three axes
// instead of a division (R1 2500 us against 2460); angles of a table behind the channels (160 us against 148.6), with 32
// registers (157); prefetching rows of a table, as positions are (148.3 against 149.0, and other shapes slower).

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
// 8192 x 14336 bf16, copy 165.5 us: 16 bytes 161.7 us, gpt-oss' form 0.87 of its copy. 8 bytes were not measured.
constexpr int64_t kSwigluAlternatingVectorBytes = 16;

// SwiGLU with summed rows: most threads of a block, which takes a row; threads that the compiler must leave registers
// for on a multiprocessor (80, on sm_90 the fewest without spills); and what a thread takes of a row at a time,
// whatever the vectors, so that the order of the sum does not depend on them. Not measured yet.
constexpr int kMaxSwigluRowThreads = 256;
constexpr int kSwigluRowResidentThreads = 768;
constexpr int64_t kSwigluRowGroupBytes = 16;

// RoPE: threads with vectors of full width, for each multiprocessor, up to which vectors of half the width and twice
// the threads are quicker. Decode: 8 tokens (35) 1.67 against 1.71 us, 64 tokens (279) 2.13 against 2.18, 256 tokens
// (1117) 4.07 against 3.32. From a table, with programmatic launch: Llama-3-8B's 256 tokens (620) 2.33 against 2.59.
constexpr int kSmallLaunchThreadsPerMultiprocessor = 300;
constexpr int kSmallTableThreadsProgrammatic = 650;

// CPU: least bytes, read and written, that are worth a thread of their own, which takes about 60 us to wake. Two cores
// of an AMD EPYC 9004, 2026-11-20, on one thread and on two. AVX-512: RoPE bf16 1 MiB 44 and 59 us, 2 MiB 89 and 88, 4
// MiB 177 and 134, fp32 2 MiB 31 and 38, 8 MiB 122 and 106; SwiGLU bf16 2 MiB 127 and 108, fp32 2 MiB 51 and 64, 4 MiB
// 101 and 95. SSE2: RoPE bf16 1 MiB 142 and 113, fp32 4 MiB 81 and 87.
constexpr int64_t kBytesPerCpuTask = int64_t{1} << 20;

}  // namespace rope
