// SPDX-License-Identifier: Apache-2.0
// tuning.hpp - every number that was found by measurement
//
// tests/bench/TUNING.md has the measurements, under the names of the constants here. A comment such as "279: 2.13 us
// against 2.18" gives the size of a measured launch, its time with the constant's choice, and its time with the other
// choice. "Resident threads" are those for which a multiprocessor's registers must suffice: the kernel's launch bounds
// are derived from them.
#pragma once

#include <stdint.h>

#include "plan/device_info.hpp"

namespace rope {

// ---- RoPE on CUDA: constants compiled into kernels ----

constexpr int kMaxRopeThreads = 160;            // per block of kLong, kLongConverted, kToken, kScalar and kGeneral
constexpr uint32_t kThreadKernelThreads = 128;  // per block of kThread
constexpr uint32_t kMaxShortThreads = 320;      // per block of a short launch
constexpr uint32_t kMinShortThreads = 64;
constexpr uint32_t kFlatThreads = 128;  // per block of kFlatTable
// Resident threads of kLong, kLongConverted and kToken; then those of kGeneral.
constexpr int kRopeResidentThreads = 1440;
constexpr int kRopeGeneralResidentThreads = 1440;
constexpr int kFlatResidentThreads = 1536;  // for kFlatTable; also the size of a looping grid
constexpr int kMaxStepThreads = 256;        // per block of the step's kernels, except kGeneral
constexpr int kStepRowsResidentThreads = 1536;
constexpr int kStepShortResidentThreads = 1536;  // of instances with a norm and codes
// For kLong without a norm, and with one: rotation, cache 100.9 us, with 1536 103.1; norm, rotation 84.5, with 1280
// 85.5.
constexpr int kStepLongResidentThreads[2] = {1280, 1536};
// For kLongRows with codes, whose threads hold all values of a unit. RMS of a token 217.7 us; with 1024 and 512 threads
// in a block 273.8, with 1280 and 640 241.9 (NVIDIA H100).
constexpr int kStepRowCodesResidentThreads = 1152;
// For long launches of heads that make codes: threads per block, and the threads that registers must suffice for.
constexpr int kMaxLongCodesThreads = 128;
// Without a norm or with a window, and with a norm of heads without one: rotation, cache 90.8 us, with 1024 91.8; norm,
// rotation, cache 82.4, with 896 83.6.
constexpr int kStepCodesResidentThreads[2] = {896, 1024};
constexpr int kStepScalesResidentThreads = 896;  // 126.0 us; with 640 149.5, with 768 128.6, with 1024 137.0
constexpr int kStepAllCodesResidentThreads = 768;
constexpr int kNormGradientResidentThreads[2] = {640, 640};  // for kNormGradientRows without sums, and with them
constexpr int kTableThreads = 128;                           // per block of the kernel that fills tables
constexpr int kTableBlocksPerMultiprocessor = 16;

// ---- RoPE on CUDA: constants for plans ----

struct ShortThreads {
  int max_vectors;
  uint32_t threads;
};

// A range of launch sizes.
struct VectorRange {
  int above;
  int at_most;
};

// Launch sizes count vectors of 16 bytes per multiprocessor, one for each unit, although a unit has two.
struct RopeTuning {
  int compute_capability;  // the row applies from this compute capability on
  int memory_bus_bits;     // the row applies to GPUs of this compute capability with at least so many bits
  bool is_measured;        // false: the numbers are copied from another row

  int max_narrow_vectors;                // largest launch with vectors of 8 bytes
  int max_short_vectors;                 // largest short launch with computed angles
  int max_short_table_vectors;           // largest short launch with a table
  int max_warp_vectors;                  // largest short launch in which each warp computes its own angles
  int max_warp_vectors_programmatic;     // the limit above for programmatic launches
  VectorRange mid_programmatic_vectors;  // launches for kMidProgrammaticTable
  VectorRange flat_vectors;              // launches for kFlatTable, which needs sm_90
  int max_looping_vectors;               // largest launch of kFlatTable with only as many blocks as run at a time
  ShortThreads short_threads[2];         // per block of a short launch with computed angles, by launch size
  ShortThreads short_threads_programmatic[3];
  ShortThreads table_threads[3];  // per block of a short launch with a table
  ShortThreads table_threads_programmatic[4];
  int64_t max_thread_heads;      // heads per token, at most, for kThread with computed angles
  uint32_t min_row_units;        // units per token, at least, for rows in long launches with computed angles
  uint32_t min_table_row_units;  // the limit above with a table
  // per block without rows in long launches; of sizes with equally few idle threads the first is taken
  uint32_t block_threads[3];
  uint32_t gapped_row_threads;       // per row in long launches if windows have gaps between them
  uint32_t inner_token_row_threads;  // per row if a head's tokens lie closer together than a token's heads
  // threads per 100 units, at most; beyond it, a row has one thread per pair of a head
  uint32_t max_percent_of_threads;
};

// NVIDIA H200, 2026-11-20 to 22.
constexpr RopeTuning tuning_of_h200() {
  RopeTuning tuning = {};
  tuning.compute_capability = 90;
  tuning.memory_bus_bits = 5632;  // the H200 has 6016 bits
  tuning.is_measured = true;
  tuning.max_narrow_vectors = 300;                // 279: 2.13 us against 2.18, 1117: 4.07 against 3.32
  tuning.max_short_vectors = 1000;                // 931 (384 tokens of Llama-3-8B) wins, 1241 loses
  tuning.max_short_table_vectors = 1900;          // 1241 (512 tokens) wins, 2482 loses
  tuning.max_warp_vectors = 300;                  // 155: 1.72 us against 1.77, 620: 2.65 against 2.44
  tuning.max_warp_vectors_programmatic = 60;      // 19: 0.82 us against 0.91, 78: 1.01 against 0.97
  tuning.mid_programmatic_vectors = {500, 2600};  // 465: 1.51 us against 1.43, 558: 1.77 against 2.24; 2482 wins
  tuning.flat_vectors = {1000, 10000};            // 930: 2.64 us against 2.53, 1117: 2.85 against 2.98; 17873 loses
  tuning.max_looping_vectors = 2600;              // 2234: 4.36 us against 4.92, 4468: 11.12 against 11.06
  tuning.short_threads[0] = {200, 128};           // 2: 1.36 us against 1.39 with 256
  tuning.short_threads[1] = {INT32_MAX, 256};
  // blocks start at a limited rate: the smallest block that does not reach it
  tuning.short_threads_programmatic[0] = {60, 64};
  tuning.short_threads_programmatic[1] = {350, 160};
  tuning.short_threads_programmatic[2] = {INT32_MAX, kMaxShortThreads};
  tuning.table_threads[0] = {40, 128};
  tuning.table_threads[1] = {250, 256};                     // 77: 1.37 us against 1.42 with 128
  tuning.table_threads[2] = {INT32_MAX, kMaxShortThreads};  // 558: 1.98 us against 2.05 with 256
  tuning.table_threads_programmatic[0] = {60, 64};
  tuning.table_threads_programmatic[1] = {350, 160};
  tuning.table_threads_programmatic[2] = {500, 256};  // 418: 1.57 us against 1.69 with 320
  tuning.table_threads_programmatic[3] = {INT32_MAX, kMaxShortThreads};
  tuning.max_thread_heads = 2;      // 2 heads 40.3 us against 50.5, 4 heads 77.6 against 74.8
  tuning.min_row_units = 32;        // 40 units 23.4 us against 24.8
  tuning.min_table_row_units = 64;  // 40 units 26.0 us against 26.4
  tuning.block_threads[0] = 128;    // prefill 150.6 us; blocks of 128 threads only 152.5
  tuning.block_threads[1] = 160;
  tuning.block_threads[2] = 96;
  tuning.gapped_row_threads = 40;       // 64 of 128 channels: 23.68 us against 23.95 in one row
  tuning.inner_token_row_threads = 64;  // 67.9 us, 32 threads 69.1, 160 74.1
  tuning.max_percent_of_threads = 120;  // 200 units in 5 x 3 rows of 40 53.4 us, in 2 blocks of 128 54.7
  return tuning;
}

// NVIDIA H100 (SXM), 2026-11-23. All other numbers are those of the H200: launch sizes gave the same result here, the
// rest was not measured.
constexpr RopeTuning tuning_of_h100() {
  RopeTuning tuning = tuning_of_h200();
  tuning.memory_bus_bits = 0;
  tuning.max_warp_vectors = 350;                // 310: 1.87 us against 1.91, 465: 2.18 against 2.10
  tuning.mid_programmatic_vectors.above = 250;  // 155: 1.24 us against 1.12, 279: 1.63 against 1.87
  return tuning;
}

// A row for GPUs on which nothing was measured.
constexpr RopeTuning inherit(RopeTuning tuning, int compute_capability) {
  tuning.compute_capability = compute_capability;
  tuning.memory_bus_bits = 0;
  tuning.is_measured = false;
  if (compute_capability < 90) tuning.flat_vectors = {};
  return tuning;
}

inline constexpr RopeTuning kRopeTunings[] = {
    inherit(tuning_of_h200(), 70),
    inherit(tuning_of_h200(), 75),
    inherit(tuning_of_h200(), 80),
    inherit(tuning_of_h200(), 86),
    inherit(tuning_of_h200(), 89),
    tuning_of_h100(),
    tuning_of_h200(),
    inherit(tuning_of_h200(), 100),
    inherit(tuning_of_h200(), 120),
};

// Whether a device belongs to the row or to a later one.
constexpr bool is_from(const RopeTuning &row, int compute_capability, int memory_bus_bits) {
  if (compute_capability != row.compute_capability) return compute_capability > row.compute_capability;
  return memory_bus_bits >= row.memory_bus_bits;
}

inline const RopeTuning &rope_tuning_of(const DeviceInfo &device) {
  const RopeTuning *found = kRopeTunings;
  for (const RopeTuning &tuning : kRopeTunings) {
    if (is_from(tuning, device.compute_capability, device.memory_bus_bits)) found = &tuning;
  }
  return *found;
}

// ---- The step on CUDA ----

// Launch sizes count vectors of 16 bytes per multiprocessor that are read or written once. Measured on an NVIDIA H200,
// 2026-11-23; the sizes with programmatic launch.
struct StepTuning {
  int64_t max_warp_vectors;          // largest launch of kWarp with computed angles
  int64_t max_short_vectors;         // largest launch of kShort, and of kWarp if nothing is rotated
  int64_t max_short_part_vectors;    // the limit above for heads in parts
  int64_t max_short_window_vectors;  // and for normed heads with a window that is turned
  // largest launch with few_threads if something is rotated, and of kWarp with a table and codes; if nothing is rotated,
  // the limit of few_threads is max_warp_vectors
  int64_t max_few_vectors;
  uint32_t few_threads;    // per block of kWarp and kShort, in launches of few vectors
  uint32_t short_threads;  // per block in larger launches
  uint32_t long_threads;
  uint32_t long_angle_bytes;          // for a block's tokens, if it holds several tokens at a time
  uint32_t turns[2];                  // rounds per block of kLong, without and with a norm
  uint32_t code_turns[2];             // with codes
  int64_t max_short_rows_vectors[2];  // without and with programmatic launch
  uint32_t rows_threads;
  int64_t general_heads;          // per block of kGeneral, if a block need not have all heads
  uint32_t general_threads;       // minimum per block
  uint32_t gradient_threads;      // per block of kNormGradientRows, unless a token needs more
  uint32_t gradient_angle_bytes;  // for a block's tokens, if it holds several tokens at a time
  int64_t gradient_waves;         // minimum number of waves of its blocks, if there are no sums
  int64_t max_gradient_tokens;    // per run, if there are no sums
};

constexpr StepTuning tuning_of_step() {
  StepTuning tuning = {};
  tuning.max_warp_vectors = 60;           // 5: 1.07 us against 1.12, 310: 2.48 against 1.41
  tuning.max_short_vectors = 2000;        // 1241: 2.35 us against 2.92
  tuning.max_short_part_vectors = 4000;   // 2126: 3.14 us against 5.21, 3378: 6.78 and 7.05; 13 500: 22.2 and 17.1
  tuning.max_short_window_vectors = 600;  // 372: 3.10 us, long rows 3.14; 1489: 4.71 and 4.32 (NVIDIA H100)
  tuning.max_few_vectors = 400;
  tuning.few_threads = 128;        // 310: 1.41 us against 1.48 with 256
  tuning.short_threads = 256;      // 1241: 2.35 us against 2.73 with 128
  tuning.long_threads = 128;       // 88.7 us, with 256 90.2; at most kMaxLongCodesThreads
  tuning.long_angle_bytes = 4096;  // latent heads 83.4 us, 16384 96.1; with codes 421.4, 16384 452.0
  tuning.turns[0] = 2;             // 164.7 us, three times 165.6
  tuning.turns[1] = 3;             // 86.9 us, twice 87.9, four times 87.4
  tuning.code_turns[0] = 2;        // 73.3 us, three times 73.5; written scales 88.3, three times 93.8
  tuning.code_turns[1] = 4;        // 81.0 us, three times 81.9, five times 95.1
  tuning.max_short_rows_vectors[0] = 300;
  tuning.max_short_rows_vectors[1] = 100;
  tuning.rows_threads = 128;
  tuning.general_heads = 8;
  tuning.general_threads = 128;  // a norm over tokens 1097 us, with 256 1348
  tuning.gradient_threads = 256;
  tuning.gradient_angle_bytes = 20480;
  tuning.gradient_waves = 2;
  tuning.max_gradient_tokens = 16;
  return tuning;
}

inline constexpr StepTuning kStepTuning = tuning_of_step();

// ---- SwiGLU on CUDA ----

// The shape of forward launches on matrices, by launch size: vectors of 16 bytes of gate per multiprocessor.
struct SwigluMatrixShape {
  int64_t max_vectors;
  int64_t vector_bytes;
  uint32_t threads;  // per block
  // programmatic, vectors of 16 bytes: blocks release the next launch at their end, not after their loads
  bool begins_last;
};

// NVIDIA H200, 2026-11-24.
constexpr SwigluMatrixShape kSwigluMatrixShapes[] = {
    {60, 8, 128, false},          // 46: 1.19 us against 1.20 with 256 threads
    {530, 8, 256, false},         // 496: 1.59 us against 1.65 with vectors of 16 bytes
    {1300, 16, 128, false},       // 1117: 2.17 us against 2.25 with 256 threads
    {2000, 16, 256, false},       // 1489: 2.57 us against 2.62 with 128 threads
    {INT64_MAX, 16, 128, false},  // 6950: 12.1 us against 12.3 with 256 threads
};
constexpr SwigluMatrixShape kSwigluMatrixShapesProgrammatic[] = {
    {300, 8, 128, false},         // 279: 1.00 us against 1.06 with vectors of 16 bytes
    {1600, 16, 256, false},       // 434: 1.18 us against 1.20 with 128 threads
    {1900, 16, 256, true},        // 1737: 2.79 us against 2.91 with a release after the loads
    {2300, 16, 256, false},       // 1985: 3.98 us against 4.06 with 128 threads
    {INT64_MAX, 16, 128, false},  // 3475: 6.42 us against 6.45 with 256 threads
};
// Backward on matrices, plain form, 16-bit data. begins_last here means that blocks release the next launch after their
// loads, instead of at once. 868: 2.74 us against 2.98 with vectors of 16 bytes; 27 800: 69.0 against 69.9.
constexpr SwigluMatrixShape kSwigluGradientShapes[] = {
    {70, 8, 128, false},         // 46: 1.29 us against 1.30 with 256 threads
    {INT64_MAX, 8, 256, false},  // 13 900: 35.7 us against 36.0 with 128 threads
};
constexpr SwigluMatrixShape kSwigluGradientShapesProgrammatic[] = {
    {230, 8, 128, false},       // 186: 1.07 us against 1.09
    {450, 8, 256, true},        // 372: 1.29 us against 1.59 with a release at once
    {1300, 8, 256, false},      // 868: 1.95 us against 2.37 with a release after the loads
    {INT64_MAX, 8, 256, true},  // 13 900: 35.2 us against 36.4 with 128 threads
};
constexpr int64_t kSwigluGradientVectorBytes = 8;
// The largest launch, in vectors of 16 bytes, of the kernel for tensors without gaps; not for programmatic launches.
// 434: 1.87 us against 1.94 with rows; 108: 1.33 against 1.38.
constexpr int64_t kMaxSwigluFlatVectors = 560;
constexpr int64_t kSwigluFlatVectorBytes = 4;
constexpr uint32_t kSwigluFlatThreads = 256;
constexpr int kMaxSwigluMatrixThreads = 256;
// With activations and soft caps, whose arithmetic takes long: launches of more vectors release the next launch at
// their end.
constexpr int64_t kMinSwigluLastVectors = 300;

// With activations and soft caps: the largest launch, in vectors of 16 bytes, that uses vectors of 8 bytes; not for
// programmatic launches. At 108, GeGLU by erf takes 1.29 us against 1.41, by tanh 1.26 against 1.37, soft caps 1.55
// against 1.68.
constexpr int64_t kMaxSwigluHalfOptions = 200;

// Rows per thread with biases or soft caps, in launches of more vectors than the two limits below. Biases, with 8, 4
// and 1 rows: 165.8, 166.8 and 204.8 us at 111 000 vectors; 23.5, 23.9 and 28.2 us at 13 900. A soft cap of the gate,
// with 8 rows and 1: 43.8 and 44.8 us at 27 800, but 26.6 and 22.8 us at 13 900.
constexpr uint32_t kSwigluRowsPerThread = 8;
constexpr int64_t kMinSwigluBiasVectors = 6000;
constexpr int64_t kMinSwigluCapVectors = 20000;

constexpr uint32_t kSwigluThreads = 128;          // of a block of the others, one vector of each tensor a thread
constexpr int kSwigluMaxHalfVectorThreads = 300;  // for each multiprocessor: up to there vectors have half the width
constexpr uint32_t kSwigluPartVectors = 128;      // that a warp takes at a time of a row of an expert
// For kernels of matrices that become codes. The next launch begins behind the loads: 1.11 us, at once 1.32.
constexpr uint32_t kSwigluCodeThreads = 128;
// Kernels whose threads have two vectors of a group, spans of several rows, and kernels of plain experts need an
// instruction for codes of 8 bits.
constexpr int kMinSwigluSpanCapability = 89;
// Up to so many vectors for each multiprocessor, a thread has one vector of a group instead of two.
constexpr int64_t kMaxSwigluSmallCodeVectors = 1800;
// Above so many, a thread takes several rows: on an H200, where instructions limit the speed.
constexpr int64_t kMinSwigluCodeSpanVectors = 14000;
constexpr uint32_t kSwigluCodeSpan = 2;
constexpr uint32_t kSwigluCodePairSpan = 4;  // codes of 4 bits, whose arithmetic limits the speed
// Matrices to codes of E4M3 that need nothing but scales, in groups of kSwigluCodeGroup channels: the elements of a
// vector, the vectors of a thread and the threads of a block, by vectors of eight elements for each multiprocessor.
// TUNING.md has the times.
constexpr int kSwigluCodeGroup = 128;
constexpr uint32_t kMaxSwigluGroupThreads = 256;
struct SwigluGroupShape {
  int vector_elements;
  uint32_t vectors, threads;
};
constexpr SwigluGroupShape swiglu_static_group_shape(int64_t vectors_per_multiprocessor) {
  constexpr int64_t kFew = 50;
  return {8, 1, vectors_per_multiprocessor <= kFew ? 128 : kMaxSwigluGroupThreads};
}
constexpr SwigluGroupShape swiglu_scaled_group_shape(int64_t vectors_per_multiprocessor, bool may_be_wide) {
  constexpr int64_t kFew = 300, kMany = 7000;
  if (vectors_per_multiprocessor <= kFew) return {4, 1, 128};
  if (vectors_per_multiprocessor <= kMany || !may_be_wide) return {8, 1, 128};
  return {8, 2, kMaxSwigluGroupThreads};
}
constexpr uint32_t kMaxSwigluCodeRowThreads = 512;  // of a block of a row that has one scale
constexpr int kVectorsOfCodeRow = 4;                // that a thread holds there
constexpr int64_t kSwigluCodeElements = 1024;       // of a block of codes without written scales
// For kernels of matrices that become codes by row and by column. A warp takes so many rows, and so many columns.
constexpr int kMinSwigluBlockCapability = 90;
constexpr uint32_t kSwigluBlockThreads = 128;
// Backward 464.8 us, with 768 482.4; forward 242.7, with 640 248.2. Prefetching the inputs of the next wave into L2:
// 563.9 and 300.7.
constexpr uint32_t swiglu_block_resident_threads(bool is_backward) {
  return is_backward ? 640 : 512;
}
constexpr uint32_t kSwigluBlockRows = 32;
constexpr uint32_t swiglu_block_columns(bool is_backward) {
  return is_backward ? 32 : 64;
}
constexpr int kSwigluExpertBlocks = 9;         // for each multiprocessor, of kSwigluThreads
constexpr int kSwigluExpertCodeBlocks = 8;     // likewise, if out has codes
constexpr int kMaxSwigluLookupExperts = 1024;  // whose offsets a block keeps; with more there are single elements
constexpr int64_t kSwigluAlternatingVectorBytes = 16;  // of a vector of gate and up that alternate
constexpr int kMaxSwigluRowThreads = 256;              // of a block that sums a row
constexpr int kSwigluRowResidentThreads = 768;         // that registers must suffice for on a multiprocessor
// The bytes of a row that a thread adds up at a time; the order of the sum does not depend on the vectors.
constexpr int64_t kSwigluRowGroupBytes = 16;

// ---- CPU ----

// Bytes read and written that justify one more thread, which takes about 60 us to wake.
constexpr int64_t kBytesPerCpuTask = int64_t{1} << 20;

// Size of a SwiGLU output from which on AVX-512 writes past the caches, in which it would not remain.
constexpr int64_t kMinStreamedCpuBytes = int64_t{32} << 20;

// Bytes read and written by a step from which on vectors write past the caches.
constexpr int64_t kMinStreamedStepBytes = int64_t{64} << 20;

}  // namespace rope
