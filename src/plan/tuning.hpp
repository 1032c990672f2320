// tuning.hpp - every number that was found by measuring
//
// tests/bench/TUNING.md has the measurements, under the names that the numbers have here.
#pragma once

#include <stdint.h>

#include "plan/device_info.hpp"

namespace rope {

// ---- RoPE on CUDA: what kernels are compiled for ----

constexpr int kMaxRopeThreads = 160;            // of a block of kLong, kLongConverted, kToken, kScalar and kGeneral
constexpr uint32_t kThreadKernelThreads = 128;  // of a block of kThread
constexpr uint32_t kMaxShortThreads = 320;      // of a block of a short launch
constexpr uint32_t kMinShortThreads = 64;
constexpr uint32_t kFlatThreads = 128;  // of a block of kFlatTable
// That registers must suffice for on a multiprocessor: kLong, kLongConverted and kToken, and kGeneral.
constexpr int kRopeResidentThreads = 1440;
constexpr int kRopeGeneralResidentThreads = 1440;
constexpr int kFlatResidentThreads = 1536;                   // the same of kFlatTable, and what a looping grid has
constexpr int kMaxStepThreads = 256;                         // of a block of the step's kernels but kGeneral
constexpr int kStepRowsResidentThreads = 1536;               // that registers must suffice for on a multiprocessor
constexpr int kStepShortResidentThreads = 1536;              // with a norm and codes
constexpr int kStepLongResidentThreads = 1536;               // norm, rotation 85.0 us, with 1280 86.5
constexpr int kStepScalesResidentThreads = 1024;             // where threads hold all values of a unit
constexpr int kNormGradientResidentThreads[2] = {640, 640};  // of kNormGradientRows, without sums and with them
constexpr int kTableThreads = 128;                           // of a block that fills tables
constexpr int kTableBlocksPerMultiprocessor = 16;

// ---- RoPE on CUDA: what plans choose by ----

struct ShortThreads {
  int max_vectors;
  uint32_t threads;
};

// Sizes of launches.
struct VectorRange {
  int above;
  int at_most;
};

// Sizes of launches are in vectors of 16 bytes for each multiprocessor, counting one of the two of a unit.
struct RopeTuning {
  int compute_capability;  // from this one on
  int memory_bus_bits;     // of it, GPUs from this one on
  bool is_measured;        // else its numbers are those of another row

  int max_narrow_vectors;                // of launches with vectors of 8 bytes
  int max_short_vectors;                 // of short launches with computed angles, which have kernels of their own
  int max_short_table_vectors;           // from a table
  int max_warp_vectors;                  // of short launches whose warps have angles of their own
  int max_warp_vectors_programmatic;     // with programmatic launch
  VectorRange mid_programmatic_vectors;  // of kMidProgrammaticTable
  VectorRange flat_vectors;              // of kFlatTable, which needs sm_90
  int max_looping_vectors;               // of it, whose blocks are those that run at a time
  ShortThreads short_threads[2];         // of a block of a short launch with computed angles, by its size
  ShortThreads short_threads_programmatic[3];
  ShortThreads table_threads[3];  // from a table
  ShortThreads table_threads_programmatic[4];
  int64_t max_thread_heads;          // of a token for kThread with computed angles
  uint32_t min_row_units;            // of a token in long launches, with computed angles
  uint32_t min_table_row_units;      // from a table
  uint32_t block_threads[3];         // of other blocks of long launches, best first where they leave equally few idle
  uint32_t gapped_row_threads;       // of a row in long launches whose windows have gaps between them
  uint32_t inner_token_row_threads;  // of a row where tokens of a head lie closer than heads of a token
  uint32_t max_percent_of_threads;   // for each 100 units; above it rows are as long as a head has pairs
};

// NVIDIA H200, 2026-11-20 to 22.
constexpr RopeTuning tuning_of_h200() {
  RopeTuning tuning = {};
  tuning.compute_capability = 90;
  tuning.memory_bus_bits = 5632;  // it has 6016
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
  tuning.short_threads_programmatic[0] = {60, 64};  // blocks start at a limited rate: the fewest that keep below it
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

// NVIDIA H100 (SXM), 2026-11-23. The numbers that are not here were measured with the same result (sizes of short
// launches) or not at all.
constexpr RopeTuning tuning_of_h100() {
  RopeTuning tuning = tuning_of_h200();
  tuning.memory_bus_bits = 0;
  tuning.max_warp_vectors = 350;                // 310: 1.87 us against 1.91, 465: 2.18 against 2.10
  tuning.mid_programmatic_vectors.above = 250;  // 155: 1.24 us against 1.12, 279: 1.63 against 1.87
  return tuning;
}

// Not measured there.
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

// Whether such a device is one of the row's, or comes after them.
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

// Sizes of launches are in vectors of 16 bytes for each multiprocessor, counting what is read or written once. NVIDIA
// H200, 2026-11-23, the sizes with programmatic launch.
struct StepTuning {
  int64_t max_warp_vectors;
  int64_t max_short_vectors;       // of kShort, and of kWarp where nothing is turned
  int64_t max_short_part_vectors;  // the same of heads in parts
  int64_t max_few_vectors;         // where something is turned, else max_warp_vectors
  uint32_t few_threads;            // of a block of kWarp and kShort, up to so many vectors
  uint32_t short_threads;          // beyond them
  uint32_t long_threads;
  uint32_t long_angle_bytes;          // of a block's tokens, at most where it has several at a time
  uint32_t turns[2];                  // of a block of kLong, without a norm and with one; with codes one more
  int64_t max_short_rows_vectors[2];  // the second with programmatic launch
  uint32_t rows_threads;
  int64_t general_heads;          // of a block of kGeneral, where they need not all be in one
  uint32_t general_threads;       // at least
  uint32_t gradient_threads;      // of a block of kNormGradientRows, where a token does not need more
  uint32_t gradient_angle_bytes;  // of its tokens, at most where it has several at a time
  int64_t gradient_waves;         // of its blocks at least, where no sums are wanted
  int64_t max_gradient_tokens;    // of a run without sums
};

constexpr StepTuning tuning_of_step() {
  StepTuning tuning = {};
  tuning.max_warp_vectors = 60;          // 5: 1.07 us against 1.12, 310: 2.48 against 1.41
  tuning.max_short_vectors = 2000;       // 1241: 2.35 us against 2.92
  tuning.max_short_part_vectors = 4000;  // 2126: 3.14 us against 5.21, 3378: 6.78 and 7.05; 13 500: 22.2 and 17.1
  tuning.max_few_vectors = 400;
  tuning.few_threads = 128;        // 310: 1.41 us against 1.48 with 256
  tuning.short_threads = 256;      // 1241: 2.35 us against 2.73 with 128
  tuning.long_threads = 128;       // 88.7 us, with 256 90.2
  tuning.long_angle_bytes = 4096;  // latent heads 83.4 us, 16384 96.1; with codes 421.4, 16384 452.0
  tuning.turns[0] = 2;             // 164.7 us, three times 165.6; codes 77.1, three times 75.5
  tuning.turns[1] = 3;             // 86.9 us, twice 87.9, four times 87.4; codes 100.3, four times 98.6
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

// Launches of matrices forward, by their size: vectors of 16 bytes of gate for each multiprocessor.
struct SwigluMatrixShape {
  int64_t max_vectors;
  int64_t vector_bytes;
  uint32_t threads;  // of a block
  bool begins_last;  // programmatic, vectors of 16 bytes: blocks let the next launch begin at their end
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
    {1900, 16, 256, true},        // 1737: 2.79 us against 2.91 behind the loads
    {2300, 16, 256, false},       // 1985: 3.98 us against 4.06 with 128 threads
    {INT64_MAX, 16, 128, false},  // 3475: 6.42 us against 6.45 with 256 threads
};
// Of matrices backward, plain and of 16 bits; begins_last says that blocks let the next launch begin behind their loads.
// 868: 2.74 us against 2.98 with vectors of 16 bytes, 27 800 69.0 against 69.9.
constexpr SwigluMatrixShape kSwigluGradientShapes[] = {
    {70, 8, 128, false},         // 46: 1.29 us against 1.30 with 256 threads
    {INT64_MAX, 8, 256, false},  // 13 900: 35.7 us against 36.0 with 128 threads
};
constexpr SwigluMatrixShape kSwigluGradientShapesProgrammatic[] = {
    {230, 8, 128, false},       // 186: 1.07 us against 1.09
    {450, 8, 256, true},        // 372: 1.29 us against 1.59 at once
    {1300, 8, 256, false},      // 868: 1.95 us against 2.37 behind the loads
    {INT64_MAX, 8, 256, true},  // 13 900: 35.2 us against 36.4 with 128 threads
};
constexpr int64_t kSwigluGradientVectorBytes = 8;
// Tensors without gaps, in launches that are not programmatic, of at most so many vectors of 16 bytes: 434 1.87 us
// against 1.94 with rows, 108 1.33 and 1.38.
constexpr int64_t kMaxSwigluFlatVectors = 560;
constexpr int64_t kSwigluFlatVectorBytes = 4;
constexpr uint32_t kSwigluFlatThreads = 256;
constexpr int kMaxSwigluMatrixThreads = 256;
// Of activations and soft caps, which compute for long: more vectors than these begin the next launch at their end.
constexpr int64_t kMinSwigluLastVectors = 300;

// Of activations and soft caps, vectors of 8 bytes in launches that are not programmatic, of at most so many vectors of
// 16 bytes. At 108 GeGLU by erf takes 1.29 us against 1.41, by tanh 1.26 against 1.37, soft caps 1.55 against 1.68.
constexpr int64_t kMaxSwigluHalfOptions = 200;

// Rows of a thread where there are biases or soft caps, of more vectors than these. Biases: 111 000 165.8 us, with 4
// rows 166.8, with 1 204.8; 13 900 23.5, 23.9 and 28.2. A soft cap of the gate: 27 800 43.8 us, with 1 row 44.8, but
// 13 900 26.6 and 22.8.
constexpr uint32_t kSwigluRowsPerThread = 8;
constexpr int64_t kMinSwigluBiasVectors = 6000;
constexpr int64_t kMinSwigluCapVectors = 20000;

constexpr uint32_t kSwigluThreads = 128;          // of a block of the others, one vector of each tensor a thread
constexpr int kSwigluMaxHalfVectorThreads = 300;  // for each multiprocessor: up to there vectors have half the width
constexpr uint32_t kSwigluPartVectors = 128;      // that a warp takes at a time of a row of an expert
constexpr int64_t kSwigluCodeElements = 1024;     // of a block of codes without written scales
constexpr int kSwigluExpertBlocks = 9;            // for each multiprocessor, of kSwigluThreads
constexpr int kMaxSwigluLookupExperts = 1024;     // whose offsets a block keeps; with more there are single elements
constexpr int64_t kSwigluAlternatingVectorBytes = 16;  // of a vector of gate and up that alternate
constexpr int kMaxSwigluRowThreads = 256;              // of a block that sums a row
constexpr int kSwigluRowResidentThreads = 768;         // that registers must suffice for on a multiprocessor
// What a thread takes of a row at a time, whatever the vectors, so that the order of the sum does not depend on them.
constexpr int64_t kSwigluRowGroupBytes = 16;

// ---- CPU ----

// Read and written, that are worth a thread of their own, which takes about 60 us to wake.
constexpr int64_t kBytesPerCpuTask = int64_t{1} << 20;

// Of a SwiGLU output that AVX-512 writes past the caches, where it would not stay in them.
constexpr int64_t kMinStreamedCpuBytes = int64_t{32} << 20;

// Read and written by a step whose destinations vectors write past the caches.
constexpr int64_t kMinStreamedStepBytes = int64_t{64} << 20;

}  // namespace rope
