// SPDX-License-Identifier: Apache-2.0
// table_rows.cuh - cosines and sines from a row of a table, as loaded and as floats
#pragma once

#include "backend/cuda/kernels/rope_params.hpp"
#include "backend/cuda/kernels/vector.cuh"

namespace rope {

// A cosine and a sine as loaded from memory. Converting them at once would stall until the loads complete.
struct LoadedAngle {
  uint32_t cos;
  uint32_t sin;
};

// Loads the entries of one column of a row.
__device__ __forceinline__ LoadedAngle load_angle(const AngleTable &table, int axis, int64_t batch, int64_t row,
                                                  uint32_t column) {
  const auto entry = [&](const TableColumns &columns) {
    return axis * columns.axis_stride + batch * columns.batch_stride + row * columns.row_stride +
           column * columns.column_stride;
  };
  const int64_t cos = entry(table.cos), sin = entry(table.sin);
  if (table.dtype == ROPE_DTYPE_F32) {
    return {reinterpret_cast<const uint32_t *>(table.cos.data)[cos],
            reinterpret_cast<const uint32_t *>(table.sin.data)[sin]};
  }
  return {reinterpret_cast<const uint16_t *>(table.cos.data)[cos],
          reinterpret_cast<const uint16_t *>(table.sin.data)[sin]};
}

// Converts a loaded entry to float.
__device__ __forceinline__ float entry_of(uint32_t bits, rope_dtype_t dtype) {
  if (dtype == ROPE_DTYPE_F32) return float_of(bits);
  const uint16_t half = static_cast<uint16_t>(bits);
  return dtype == ROPE_DTYPE_F16 ? to_float(Float16{half}) : to_float(BFloat16{half});
}

// N consecutive entries of a table, as loaded from memory. Word is float for F32 and uint16_t for 16-bit types.
template <typename Word, int N>
struct TableRun {
  static constexpr int kStep = N * sizeof(Word) < 16 ? N : 16 / static_cast<int>(sizeof(Word));
  Words<kStep *static_cast<int>(sizeof(Word))> part[N / kStep];
};

// Loads N entries in vectors of up to 16 bytes. The address must be aligned to such a vector.
template <typename Word, int N>
__device__ __forceinline__ TableRun<Word, N> load_run(const char *address) {
  using Run = TableRun<Word, N>;
  Run run;
#pragma unroll
  for (int i = 0; i < N / Run::kStep; ++i) {
    run.part[i] = load_vector<Words<Run::kStep *static_cast<int>(sizeof(Word))>>(
        address + i * Run::kStep * static_cast<int>(sizeof(Word)));
  }
  return run;
}

// Entry i of the run as a float.
template <typename Word, int N>
__device__ __forceinline__ float entry_of(const TableRun<Word, N> &run, int i, rope_dtype_t dtype) {
  constexpr int kStep = TableRun<Word, N>::kStep;
  const auto &part = run.part[i / kStep];
  if constexpr (sizeof(Word) == 4) {
    return float_of(part.word[i % kStep]);
  } else {
    uint16_t bits;
    if constexpr (kStep == 1) {
      bits = part.word[0];
    } else {
      bits = static_cast<uint16_t>(part.word[i % kStep / 2] >> (i % 2 * 16));
    }
    return dtype == ROPE_DTYPE_F16 ? to_float(Float16{bits}) : to_float(BFloat16{bits});
  }
}

}  // namespace rope
