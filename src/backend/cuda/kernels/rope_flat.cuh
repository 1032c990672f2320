// rope_flat.cuh - the RoPE kernels in which each thread has the angles of its own pairs
//
// From a table whose columns lie next to each other a thread reads its cosines and sines as vectors: the heads of a
// token find the row in L1. At decode size a thread computes them: there is nobody to share the work with, and no
// barrier to wait at. The table costs one more trip to memory in a row than computed angles, which takes more threads
// to hide, hence fewer registers. The channels are loaded before the table.
#pragma once

#include "backend/cuda/kernels/rope_units.cuh"

namespace rope {

// N neighbouring entries of a table, as they lie in memory. Word is float for F32 and uint16_t for the types of 16
// bits.
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

// The angles of a unit's pairs. Interleaved vectors hold pairs of two places, V/2 of each; `run` is the place.
template <int V, bool IsInterleaved>
struct Runs {
  static constexpr int kCount = IsInterleaved && V > 1 ? 2 : 1;
  static constexpr int kLength = V / kCount;
};

template <int V, bool IsInterleaved>
__device__ __forceinline__ uint32_t first_pair(const RopeKernelParams &params, uint32_t unit, int run) {
  using R = Runs<V, IsInterleaved>;
  return unit * R::kLength + static_cast<uint32_t>(run * (params.rotary_dim / 4));
}

// Rotates a unit: angle_of(run, i) is the i-th angle of a run.
template <typename T, int V, bool IsInterleaved, typename AngleOf>
__device__ __forceinline__ void rotate_vectors(Vector<T, V> *low, Vector<T, V> *high, AngleOf angle_of) {
  using R = Runs<V, IsInterleaved>;
  float x[V], y[V];
  to_floats<T, V>(*low, x);
  to_floats<T, V>(*high, y);
#pragma unroll
  for (int i = 0; i < R::kLength; ++i) {
    if constexpr (R::kCount == 2) {
      const CosSin<float> first = angle_of(0, i), second = angle_of(1, i);
      const Pair<float> low_pair = rotate<float>({x[2 * i], x[2 * i + 1]}, first, first);
      const Pair<float> high_pair = rotate<float>({y[2 * i], y[2 * i + 1]}, second, second);
      x[2 * i] = low_pair.x, x[2 * i + 1] = low_pair.y;
      y[2 * i] = high_pair.x, y[2 * i + 1] = high_pair.y;
    } else {
      const CosSin<float> angle = angle_of(0, i);
      const Pair<float> pair = rotate<float>({x[i], y[i]}, angle, angle);
      x[i] = pair.x, y[i] = pair.y;
    }
  }
  *low = from_floats<T, V>(x);
  *high = from_floats<T, V>(y);
}

// A thread's unit, found before anything is read.
template <typename T, int V, bool IsInterleaved>
struct FlatUnit {
  BatchToken at;
  Unit unit;
  const char *in;
  bool is_active;

  // Threads are numbered through all units of a row of the grid, so a block may end one token and begin the next.
  __device__ __forceinline__ FlatUnit(const RopeKernelParams &params, uint32_t units_per_grid_row) {
    const uint32_t number = blockIdx.x * blockDim.x + threadIdx.x;
    const Divided place = params.units_per_token.divide(number);
    is_active = number < units_per_grid_row;
    if (gridDim.y > 1) {
      const int64_t token = blockIdx.y * params.tokens_per_grid_row + place.quotient;
      is_active = is_active && token < params.num_tokens;
    }
    at = find_token(params, place.quotient);
    unit = find_unit(params, place.remainder);
    in = tensor(params).in + offset_of_unit<T, V>(params, unit, at, tensor(params).in_stride);
  }

  __device__ __forceinline__ const RopeKernelTensor &tensor(const RopeKernelParams &params) const {
    return params.tensor[unit.tensor];
  }

  __device__ __forceinline__ bool is_in_place(const RopeKernelParams &params) const {
    return params.is_in_place[unit.tensor];
  }

  __device__ __forceinline__ char *out(const RopeKernelParams &params) const {
    if (is_in_place(params)) return const_cast<char *>(in);
    return tensor(params).out + offset_of_unit<T, V>(params, unit, at, tensor(params).out_stride);
  }

  __device__ __forceinline__ const char *in_high(const RopeKernelParams &params) const {
    return in + bytes_to_high<T>(params);
  }

  __device__ __forceinline__ void store(const RopeKernelParams &params, char *target, const Vector<T, V> &low,
                                        const Vector<T, V> &high) const {
    store_vector(target, low);
    if (!unit.is_rotary) return;
    store_vector(target + bytes_to_high<T>(params), high);
  }
};

template <typename T, int V, bool IsInterleaved>
__global__ void __launch_bounds__(kFlatThreads) rope_flat_kernel(const __grid_constant__ RopeFlatParams params) {
  using R = Runs<V, IsInterleaved>;
  begin_dependent_launch();
  const FlatUnit<T, V, IsInterleaved> mine(params, params.units_per_grid_row);
  if (!mine.is_active) return;
  // Parameters come from memory too, so this is done while the previous launch still runs.
  uint64_t increment[R::kCount][R::kLength] = {};
  if (mine.unit.is_rotary) {
    const uint64_t *increments = through_memory(params.increments);
#pragma unroll
    for (int run = 0; run < R::kCount; ++run) {
      const uint32_t first = first_pair<V, IsInterleaved>(params, mine.unit.number, run);
#pragma unroll
      for (int i = 0; i < R::kLength; ++i) increment[run][i] = increments[first + i];
    }
  }
  char *out = mine.out(params);
  wait_for_previous_launch();
  const LoadedInteger position = load_position(params, mine.at);
  Vector<T, V> low = load_vector<Vector<T, V>>(mine.in), high = {};
  if (mine.unit.is_rotary) {
    high = load_vector<Vector<T, V>>(mine.in_high(params));
    const uint64_t at = finish_position(params, position);
    CosSin<float> angle[R::kCount][R::kLength];
#pragma unroll
    for (int run = 0; run < R::kCount; ++run) {
#pragma unroll
      for (int i = 0; i < R::kLength; ++i) angle[run][i] = compute_angle(params, at, increment[run][i]);
    }
    rotate_vectors<T, V, IsInterleaved>(&low, &high, [&](int run, int i) { return angle[run][i]; });
  }
  mine.store(params, out, low, high);
}

template <typename T, int V, bool IsInterleaved, typename Word>
__global__ void __launch_bounds__(kFlatThreads, min_blocks_per_multiprocessor(kTableResidentThreads, kFlatThreads))
    rope_table_kernel(const __grid_constant__ RopeTableParams params) {
  using R = Runs<V, IsInterleaved>;
  begin_dependent_launch();
  const FlatUnit<T, V, IsInterleaved> mine(params, params.units_per_grid_row);
  if (!mine.is_active) return;
  char *out = mine.out(params);
  wait_for_previous_launch();
  const LoadedInteger position = load_position(params, mine.at);
  Vector<T, V> low = load_vector<Vector<T, V>>(mine.in), high = {};
  if (mine.unit.is_rotary) {
    high = load_vector<Vector<T, V>>(mine.in_high(params));
    const AngleTable &table = params.table;
    const uint64_t row = finish_position(params, position);
    if (row < static_cast<uint64_t>(table.rows)) {
      TableRun<Word, R::kLength> cos[R::kCount], sin[R::kCount];
#pragma unroll
      for (int run = 0; run < R::kCount; ++run) {
        const auto address_in = [&](const TableColumns &columns) {
          const int64_t entry = static_cast<int64_t>(row) * columns.row_stride + mine.at.batch * columns.batch_stride +
                                first_pair<V, IsInterleaved>(params, mine.unit.number, run);
          return columns.data + entry * static_cast<int64_t>(sizeof(Word));
        };
        cos[run] = load_run<Word, R::kLength>(address_in(table.cos));
        sin[run] = load_run<Word, R::kLength>(address_in(table.sin));
      }
      rotate_vectors<T, V, IsInterleaved>(&low, &high, [&](int run, int i) -> CosSin<float> {
        const float s = entry_of(sin[run], i, table.dtype);
        return {entry_of(cos[run], i, table.dtype), params.sin_scale < 0.0f ? -s : s};
      });
    } else if (mine.is_in_place(params)) {
      return;
    }
  }
  mine.store(params, out, low, high);
}

template <typename T, int V, bool IsInterleaved>
const void *find_flat_kernel(RopeKernel kernel) {
  switch (kernel) {
    case RopeKernel::kFlat:
      return reinterpret_cast<const void *>(rope_flat_kernel<T, V, IsInterleaved>);
    case RopeKernel::kTable32:
      return reinterpret_cast<const void *>(rope_table_kernel<T, V, IsInterleaved, float>);
    case RopeKernel::kTable16:
      return reinterpret_cast<const void *>(rope_table_kernel<T, V, IsInterleaved, uint16_t>);
    default:
      return nullptr;
  }
}

// The kernel for a vector width, or NULL for a width that T has none of.
template <typename T>
const void *find_flat_kernel(RopeKernel kernel, int vector_elements, bool is_interleaved) {
  constexpr int kSize = static_cast<int>(sizeof(T)), kWide = 16 / kSize, kNarrow = 8 / kSize;
  if (vector_elements == kNarrow) {
    return is_interleaved ? find_flat_kernel<T, kNarrow, true>(kernel) : find_flat_kernel<T, kNarrow, false>(kernel);
  }
  if (vector_elements == kWide) {
    return is_interleaved ? find_flat_kernel<T, kWide, true>(kernel) : find_flat_kernel<T, kWide, false>(kernel);
  }
  return nullptr;
}

}  // namespace rope
