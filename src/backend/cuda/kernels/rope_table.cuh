// rope_table.cuh - the RoPE kernel for the usual table: a column for each pair, columns next to each other
//
// Each thread reads the cosines and sines of its own pairs, as vectors: the heads of a token find the row in L1, and
// without a barrier nobody waits for the slowest. A table costs one more trip to memory in a row than computed angles,
// which takes more threads to hide, hence fewer registers. The channels are loaded before the table.
#pragma once

#include "backend/cuda/kernels/rope.cuh"

namespace rope {

// N neighbouring entries of a table, as they lie in memory. Word is float for F32 and uint16_t for the types of 16 bits.
template <typename Word, int N>
struct TableRun {
  static constexpr int kStep = N * sizeof(Word) < 16 ? N : 16 / static_cast<int>(sizeof(Word));
  Words<kStep *static_cast<int>(sizeof(Word))> part[N / kStep];
};

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

template <typename Word, int N>
__device__ __forceinline__ void rotate_by_run(float *x, float *y, int step, const TableRun<Word, N> &cos,
                                              const TableRun<Word, N> &sin, rope_dtype_t dtype, bool is_transposed) {
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const float s = entry_of(sin, i, dtype);
    const CosSin<float> angle = {entry_of(cos, i, dtype), is_transposed ? -s : s};
    const Pair<float> out = rotate<float>({x[i * step], y[i * step]}, angle, angle);
    x[i * step] = out.x;
    y[i * step] = out.y;
  }
}

template <typename T, int V, bool IsInterleaved, typename Word>
__global__ void __launch_bounds__(kMaxRopeThreads, min_blocks_per_multiprocessor(kRopeTableResidentThreads))
    rope_table_kernel(const __grid_constant__ RopeKernelParams params) {
  begin_dependent_launch();
  const BlockShare share = find_share(params);
  const BatchToken at = find_token(params, share.first_in_row + share.place.quotient);
  if (!share.is_active) return;
  const Unit unit = find_unit(params, share.place.remainder);
  const RopeKernelTensor &tensor = params.tensor[unit.tensor];
  const char *low_in = tensor.in + offset_of_unit<T, V, IsInterleaved>(params, unit, at, tensor.in_stride);

  wait_for_previous_launch();
  const LoadedInteger position = load_position(params, at);
  Vector<T, V> low = load_vector<Vector<T, V>>(low_in), high;
  char *low_out = const_cast<char *>(low_in);
  if (!params.is_in_place[unit.tensor]) {
    low_out = tensor.out + offset_of_unit<T, V, IsInterleaved>(params, unit, at, tensor.out_stride);
  }
  if (!unit.is_rotary) {
    store_vector(low_out, low);
    return;
  }
  high = load_vector<Vector<T, V>>(low_in + bytes_to_high<T, V, IsInterleaved>(params, tensor.in_stride[kChannel]));

  const uint64_t row = finish_position(params, position);
  const AngleTable &table = params.table;
  if (row < static_cast<uint64_t>(table.rows)) {
    // Interleaved vectors hold pairs of two places, see rotate_unit.
    constexpr int kRuns = IsInterleaved && V > 1 ? 2 : 1, kLength = V / kRuns;
    constexpr int64_t kSize = sizeof(Word);
    const auto first_entry = [&](const TableColumns &columns) {
      const int64_t entry = static_cast<int64_t>(row) * columns.row_stride + at.batch * columns.batch_stride;
      return columns.data + (entry + unit.number * kLength) * kSize;
    };
    const char *cos_at = first_entry(table.cos), *sin_at = first_entry(table.sin);
    const int64_t to_second = params.rotary_dim / 4 * kSize;
    TableRun<Word, kLength> cos[kRuns], sin[kRuns];
#pragma unroll
    for (int i = 0; i < kRuns; ++i) {
      cos[i] = load_run<Word, kLength>(cos_at + i * to_second);
      sin[i] = load_run<Word, kLength>(sin_at + i * to_second);
    }
    const bool is_transposed = params.sin_scale < 0.0f;
    float x[V], y[V];
    to_floats<T, V>(low, x);
    to_floats<T, V>(high, y);
    if constexpr (kRuns == 2) {
      rotate_by_run(x, x + 1, 2, cos[0], sin[0], table.dtype, is_transposed);
      rotate_by_run(y, y + 1, 2, cos[1], sin[1], table.dtype, is_transposed);
    } else {
      rotate_by_run(x, y, 1, cos[0], sin[0], table.dtype, is_transposed);
    }
    low = from_floats<T, V>(x);
    high = from_floats<T, V>(y);
  } else if (params.is_in_place[unit.tensor]) {
    return;
  }
  store_vector(low_out, low);
  store_vector(low_out + bytes_to_high<T, V, IsInterleaved>(params, tensor.out_stride[kChannel]), high);
}

template <typename T, int V, typename Word>
const void *find_table_kernel(bool is_interleaved) {
  return is_interleaved ? reinterpret_cast<const void *>(rope_table_kernel<T, V, true, Word>)
                        : reinterpret_cast<const void *>(rope_table_kernel<T, V, false, Word>);
}

// The kernel for a vector width, or NULL for a width that T has none of.
template <typename T, typename Word>
const void *find_table_kernel(int vector_elements, bool is_interleaved) {
  constexpr int kSize = static_cast<int>(sizeof(T));
  switch (vector_elements) {
    case 1:
      return find_table_kernel<T, 1, Word>(is_interleaved);
    case 8 / kSize:
      return find_table_kernel<T, 8 / kSize, Word>(is_interleaved);
    case 16 / kSize:
      return find_table_kernel<T, 16 / kSize, Word>(is_interleaved);
    default:
      return nullptr;
  }
}

template <typename T>
const void *find_table_kernel(int vector_elements, bool is_interleaved, bool has_wide_table) {
  return has_wide_table ? find_table_kernel<T, float>(vector_elements, is_interleaved)
                        : find_table_kernel<T, uint16_t>(vector_elements, is_interleaved);
}

}  // namespace rope
