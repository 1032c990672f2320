// tuning.hpp - every number that was found by measuring, with where it was measured
#pragma once

#include <stdint.h>

namespace rope {

// All CUDA numbers: NVIDIA H200, 2026-11-20 to 22, `rope-bench --device cuda`; "prefill" is Llama-3-70B's 16 384
// tokens in bf16, whose copy takes 141.9 us, "decode" its 8 tokens. Launches of a few us were timed in a process in
// which each launch in a graph took 0.18 us longer than in rope-bench now (tests/bench/README.md says why).

// RoPE with angles shared by a block: threads of it, best first where they leave equally few idle. One thread moves two
// vectors, so a block covers 4, 5 and 3 KiB. Blocks of 128 alone leave a tenth of prefill's threads idle: 152.5 against
// 150.6 us; numbered through, so that blocks straddle tokens, prefill takes 147.0 against 145.5. Blocks of 64 threads,
// which heads of 96 channels would fill best, make 115 to 139 us of 112.
constexpr uint32_t kRopeBlockSizes[] = {128, 160, 96};
constexpr int kMaxRopeThreads = 160;

// RoPE: sizes of launches, in vectors of 16 bytes for each multiprocessor, counting one of the two of a unit. Up to the
// first a launch has vectors of half the width and twice the threads, up to the others the kernels of short launches.
// These against rows of threads, us, at 1, 64, 256, 384, 512 and 1024 of Llama-3-8B's tokens in decode (2.4 a token):
//   table                     1.36 1.64 2.47 2.99 3.63 7.2   and  1.92 2.16 2.91 3.41 3.86 6.65
//   with programmatic launch  0.85 1.14 1.70 2.03 2.72 6.3   and  1.35 2.22 2.60 2.87 3.08 5.93
//   computed                  1.38 1.72 2.44 3.13 3.67       and  1.66 1.93 2.77 3.20 3.55
//   with programmatic launch  0.80 1.05 1.68 2.15 2.92       and  1.15 1.93 2.21 2.56 2.71
// The first limit: Llama-3-70B's 64 tokens (279) 2.13 against 2.18 with vectors of 16 bytes, 256 (1117) 4.07 against
// 3.32.
constexpr int kMostNarrowVectors = 300;
constexpr int kMostShortVectors = 1000;
constexpr int kMostShortTableVectors = 1900;

// RoPE, short launches with computed angles: size, as above, up to which warps have their own angles; above it rows of
// threads have. 1 token 1.38 and 1.43 us, 64 tokens (155) 1.72 and 1.77, 128 (310) 1.96 and 2.00, 256 2.65 and 2.44.
// With programmatic launch 1 token 0.80 and 0.87, 8 (19) 0.82 and 0.91, 32 (78) 1.01 and 0.97, 64 1.11 and 1.05.
constexpr int kMostVectorsOfWarps = 300;
constexpr int kMostVectorsOfWarpsProgrammatic = 60;

// RoPE, short programmatic launches from a table: size, as above, up to which kernels read positions behind the wait
// for the previous launch and nowhere else. Us, with kernels that can read them before it: 1 token 0.78 and 0.85, 8
// 0.83 and 0.90, 64 (155) 1.06 and 1.16, 256 (620) 2.08 and 1.75. Launched without the flag they would take 0.07 us
// longer.
constexpr int kMostVectorsOfLateTables = 350;

// RoPE without a barrier: threads of a block. One head of 16 bits from an F32 table 133.7 us, 96 threads 133.8, 64
// 159.0. Many heads from tables lose: Llama-3-70B's prefill 162.0 us against 148.5.
constexpr uint32_t kFlatThreads = 128;

// RoPE without a barrier: most heads of a token with computed angles. 131 072 tokens of 2 heads, bf16, 40.3 us against
// 50.5, of 4 heads 77.6 against 74.8.
constexpr int64_t kMostHeadsOfFlat = 2;

// RoPE, short launches: threads of a block, by the size of the launch as above. Table, with 64, 128 and 256: 1 token
// 1.38, 1.36 and 1.39 us, 64 tokens 1.74, 1.64 and 1.62, 384 tokens 5.65, 3.26 and 2.99. With programmatic launch
// blocks start at a limited rate, and the fewest threads that keep below it win, with 64, 160, 256 and 320: table, 8
// tokens 0.86, 0.90, 0.92 and 0.94, 64 tokens 1.34, 1.14, 1.22 and 1.37, 384 tokens 5.06, 2.60, 2.19 and 2.03;
// computed, 256 tokens 3.47, 1.74, 1.79 and 1.77. In a process with one stream, from a table: 64 tokens 1.11, 1.15,
// 1.24 and 1.39 (with 128 threads 1.36, with two streams 0.99), 256 tokens 3.47, 1.69, 1.81 and 1.74 (with 192 1.69,
// with two streams 1.90).
constexpr uint32_t kFewestShortThreads = 64;
constexpr uint32_t kMaxShortThreads = 320;
struct ShortThreads {
  int most_vectors;
  uint32_t threads;
};
constexpr ShortThreads kShortThreads[] = {{200, 128}, {INT32_MAX, 256}};
constexpr ShortThreads kShortThreadsProgrammatic[] = {
    {60, kFewestShortThreads}, {350, 160}, {INT32_MAX, kMaxShortThreads}};

// RoPE, long launches of 16 bits: straight code against rows of threads that take whatever there is, us, plain and with
// programmatic launch. Llama-3-8B's prefill 41.96 and 41.34 against 42.52 and 41.94, Llama-3-70B's 145.4
// and 144.8 against 145.6 and 145.1, 2048 tokens of 32 heads 9.62 and 9.08 against 9.86 and 9.34. F32 data lose:
// Llama-3-70B's prefill 287.7 against 286.9, 320 000 tokens of 32 heads 2479 against 2458. What did not pay: addresses
// found before the wait for the previous launch, as short launches have them (Llama-3-8B's prefill 42.13 and 41.98),
// and rows of a table after the channels where they are looked up (sequences 166.9 against 153.6, three axes 77.8
// against 71.8).
// A second axis of the grid, for batches or for parts of a token: 2 x 4096 tokens of 32 + 32 heads, BSHD 65.6 against
// 66.0, BHSD 66.1 against 67.1. One batch pays for it with 0.05 to 0.1 us (2048 tokens of 32 heads 9.74 against 9.64,
// half of 128 channels with programmatic launch 24.2 against 23.5), so with computed angles it has kernels of its own.
// From a table they gain nothing: Llama-3-8B's prefill 43.05 and 43.07 us, half of 128 channels 24.57 and 24.58.
// Not measured: batches of a few tokens, whose last block has idle rows.

// RoPE, long launches from a table: rows and positions are prefetched as many tokens ahead as a device holds. At
// explicit positions Llama-3-70B's prefill takes 153.5 us with rows alone, 149.4 with positions alone, 148.4 with both;
// where each thread reads the position 154.2. Rows at implicit ones, not at all, as far and half as far again:
// Llama-3-8B's prefill 43.27, 42.98 and 42.98 us, Llama-3-70B's 147.6, 147.0 and 147.3, on another day 147.4, 146.9 and
// 146.7. Heads of 64, 80 and 96 channels 42.6, 54.6 and 64.0, by rows of threads that take whatever there is 43.3, 55.7
// and 65.1. Those lose by it: odd strides 115.0 against 111.7, sequences 166.4 against 152.8.

// RoPE, rows of threads from a table: warps without a pair do not ask for channels earlier than those that look for a
// row first. In sequences all look for theirs: 150.3 us. Where the third of three warps, without a pair, did not look it
// was 152.8, and 176.1 where it did not wait for the ends of all sequences either. On axes a barrier comes before the
// channels: 70.3 against 70.7. In sequences it took 154.8.

// RoPE, long launches whose windows have gaps between them (partial rotary): threads of a row, of which a block has as
// many as fit 128, so that a block covers fewer channels that it skips. 64 of 128 channels, 40 heads, us: one row of
// 160 threads 23.95, 3 of 40 23.68, 4 of 32 23.87, 2 of 64 23.88, 1 of 80 23.69, 3 of 44 25.0; with programmatic launch
// 23.52, 23.24, 23.46, 23.45, 23.45, 24.6. 64 of 192 channels, 128 heads: 75.5, 74.0, 74.0, 74.7, 74.8, 75.9. Tokens
// that fit a block have one: 64 of 256 channels, 32 heads, 20.45 against 20.51.
constexpr uint32_t kThreadsOfGappedRows = 40;

// RoPE, short launches, what did not pay: a division for several batches, start_positions and other strides of outputs
// (0.1 to 0.3 us, computed or not); a jump on the way that all threads go (0.1 us; where a trap would end a thread,
// exit needs none); throwing away what a token without a row reads, to save the last jump (0.91 us against 0.85);
// loading computed angles' position before the rest, as tables do with theirs (1.43 us against 1.38); vectors of 16
// bytes.

// RoPE where tokens of a head lie closer than heads of a token (BHSD): threads of a row, of which a block has as many
// as fit 128. 2 x 4096 tokens, 32 + 32 heads of 128, bf16, forward in place: 32 threads 69.1 us, 64 67.9, 128 67.8, 160
// 74.1; one row of 64 79.8. 128 batches of one head (as heads): 32 threads 132.6 us, 64 133.2, 128 135.1.
constexpr uint32_t kThreadsOfCloserTokens = 64;

// RoPE: threads for each 100 units above which rows are as long as a head has pairs and a block has as many as fit 128
// threads. 40 heads of 80 channels (200 units), bf16: 2 blocks of 128 threads 54.7 us, 5 of 3 rows of 40 threads 53.4,
// of 4 rows 54.1; 4 of 3 rows of 50 55.0.
constexpr uint32_t kMostPercentOfThreads = 120;

// RoPE: least units of a token for a row of threads of its own. Not measured: a row is whole warps, so fewer leave
// many threads idle.
constexpr uint32_t kLeastUnitsOfTokenRows = 64;

// RoPE, rows of threads, what did not pay: a vector of each of two heads for a thread, the other halves of the pairs
// read once more through the L1 cache, as the prototype had them (prefill 145.8 us against 146.2, but Llama-3-8B's out
// of place 42.5 against 42.0, and from a table registers spill); blocks of 192 threads (prefill 146.0 us against
// 145.4); a grid of three axes instead of a division (R1 2500 us against 2460); angles of a table behind the channels
// (160 us against 148.6), with 32 registers (157).

// RoPE: threads that the compiler must leave registers for on a multiprocessor. Shared angles: 1440 (40 registers)
// 146.4 us, 1280 (48) 152.4, 1760 (32) 154.5. The general kernel: 1536 (40) 175 us, 1280 (48) 184.
constexpr int kRopeResidentThreads = 1440;
constexpr int kRopeGeneralResidentThreads = 1440;

// Tables: threads of a block, and blocks for each multiprocessor. Not measured: tables are filled once.
constexpr int kTableThreads = 128;
constexpr int kTableBlocksPerMultiprocessor = 16;

// SwiGLU: threads of a block, one vector of each tensor a thread. 8192 x 14336 bf16 backward, copy 277.1 us: 128
// threads 278.4 us, 256 282.6, 512 292.1 (before elements stayed packed: 271.5 with 128 now).
constexpr uint32_t kSwigluThreads = 128;

// The same with programmatic launch, which starts blocks more slowly, in launches of up to so many vectors for each
// multiprocessor (256 x 14336 has 3476 of 16 bytes). 256 threads were not measured.
constexpr uint32_t kSwigluThreadsProgrammatic = 128;
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

// CPU: least bytes of a SwiGLU output that AVX-512 writes past the caches, where it would not stay in them. One thread
// of an AMD EPYC 9004 with 32 MiB of third-level cache, 2026-11-22, ms a call, not streamed and streamed, and the same
// with the output read afterwards:
//            4 MiB        16 MiB     32 MiB     64 MiB
//   fp32     0.19, 0.19   1.5, 1.0   3.7, 2.9   7.6, 5.8
//     read   0.24, 0.30   1.9, 1.6   5.0, 4.3   10.6, 8.6
//   bf16     0.48, 0.48   2.0, 2.0   4.3, 4.2   8.6, 8.8
//     read   0.53, 0.58   2.4, 2.6   5.4, 5.6   11.7, 11.9
// An Intel Xeon with AVX-512, 43 MiB of output: one thread fp32 10.9 and 10.1, bf16 13.4 and 11.0, 16 threads on 8
// cores fp32 1.01 and 0.83, bf16 1.19 and 1.15.
constexpr int64_t kLeastStreamedCpuBytes = int64_t{32} << 20;

}  // namespace rope
