// tuning.hpp - every number that was found by measuring, with where it was measured
#pragma once

#include <stdint.h>

namespace rope {

// All CUDA numbers: NVIDIA H200, 2026-11-20 and 21, `rope-bench --device cuda`; "prefill" is Llama-3-70B's 16 384 tokens
// in bf16, whose copy takes 141.9 us, "decode" its 8 tokens.

// RoPE with angles shared by a block: threads of it, best first where they leave equally few idle. One thread moves two
// vectors, so a block covers 4, 5 and 3 KiB. Blocks of 128 alone leave a tenth of prefill's threads idle: 152.5 against
// 150.6 us; numbered through, so that blocks straddle tokens, prefill takes 147.0 against 145.5. Blocks of 64 threads,
// which heads of 96 channels would fill best, make 115 to 139 us of 112.
constexpr uint32_t kRopeBlockSizes[] = {128, 160, 96};
constexpr int kMaxRopeThreads = 160;

// RoPE: vectors of 16 bytes for each multiprocessor, counting one of the two of a unit, up to which a launch is short:
// it has vectors of half the width and twice the threads, and, from a table or with programmatic launch, the kernels
// without a barrier. Those against rows of threads, Llama-3-8B's tokens in decode (2.4 a token). Table: 1 token 1.63
// and 1.84 us, 64 tokens 2.01 and 2.20, 256 (620) 2.85 and 2.91, 384 (931) 3.41 and 3.45, 512 (1241) 4.02 and 3.87.
// With programmatic launch: 1 token 0.83 and 1.33, 64 1.21 and 2.15, 256 2.11 and 2.70, 512 2.88 and 3.08, 1024 5.81
// and 5.96. Computed with programmatic launch: 0.97 and 1.04, 64 1.16 and 1.71, 256 2.23 and 2.23, 384 2.41 and 2.55,
// 512 3.54 and 2.71. Computed without, where warps that share angles lose: 1 token 1.60 and 1.54, 64 1.97 and 1.88, 256
// 2.88 and 2.68; there only vectors differ: Llama-3-70B's 64 tokens (279) 2.13 against 2.18 with vectors of 16 bytes,
// 256 (1117) 4.07 against 3.32.
constexpr int kMostShortVectors = 300;
constexpr int kMostShortVectorsProgrammatic = 1000;
constexpr int kMostShortTableVectors = 900;
constexpr int kMostShortTableVectorsProgrammatic = 1300;

// RoPE without a barrier: threads of a block. Without programmatic launch, from a table, with 64, 128 and 320: 8 tokens
// 1.77, 1.75 and 1.80 us, 256 tokens 3.93, 2.85 and 2.82. With it blocks start at a limited rate, and the fewest
// threads that keep below it win: computed, 64 tokens (155) 1.16, 1.91 and 1.80 us, 128 tokens (310) 1.90, 1.76 and
// 1.67, 256 tokens 3.47, 2.41 and 2.23; table, 32 tokens (78) 1.02, 1.11 and 1.10, 64 tokens 1.39, 1.22 and 1.21, 256
// tokens 3.47, 2.25 and 2.11.
constexpr uint32_t kFlatThreads = 128;
constexpr uint32_t kFewFlatThreads = 64;
constexpr uint32_t kMaxFlatThreads = 320;
constexpr int kMostVectorsOfFewThreads = 300;
constexpr int kMostTableVectorsOfFewThreads = 100;

// RoPE without a barrier, what did not pay: addresses of channels computed while the position is on its way instead of
// before the wait (8 tokens from a table with programmatic launch 1.25 us against 0.84), start_positions and a division
// for blocks of a token in the kernels (1.11 us), and a loop over the angles of a warp (1.08 us against 1.05).

// RoPE: least units of a token for a row of threads of its own. Not measured: a row is whole warps, so fewer leave
// many threads idle.
constexpr uint32_t kLeastUnitsOfTokenRows = 64;

// RoPE, rows of threads, what did not pay: blocks of 192 threads (prefill 146.0 us against 145.4); a grid of three axes
// instead of a division (R1 2500 us against 2460); angles of a table behind the channels (160 us against 148.6), with
// 32 registers (157); prefetching rows of a table, as positions are (148.3 against 149.0, and other shapes slower).

// RoPE: threads that the compiler must leave registers for on a multiprocessor. Shared angles: 1440 (40 registers)
// 146.4 us, 1280 (48) 152.4, 1760 (32) 154.5. The general kernel: 1536 (40) 175 us, 1280 (48) 184.
constexpr int kRopeResidentThreads = 1440;
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

// CPU: least bytes, read and written, that are worth a thread of their own, which takes about 60 us to wake. Two cores
// of an AMD EPYC 9004, 2026-11-20, on one thread and on two. AVX-512: RoPE bf16 1 MiB 44 and 59 us, 2 MiB 89 and 88, 4
// MiB 177 and 134, fp32 2 MiB 31 and 38, 8 MiB 122 and 106; SwiGLU bf16 2 MiB 127 and 108, fp32 2 MiB 51 and 64, 4 MiB
// 101 and 95. SSE2: RoPE bf16 1 MiB 142 and 113, fp32 4 MiB 81 and 87.
constexpr int64_t kBytesPerCpuTask = int64_t{1} << 20;

}  // namespace rope
