// rope_flat.cuh - the RoPE kernels without a barrier: angles of each thread's own pairs, or shared by its warp
//
// For launches of decode size, which are a chain of latencies: the launch, the position, perhaps a row of a table, the
// store. What needs no memory is done before the previous launch is waited for. From a table whose columns lie next to
// each other a thread reads its cosines and sines as vectors; computed angles are shared by the heads of a warp. A
// token of one head has nobody to share with.
#pragma once

#include "backend/cuda/kernels/rope_token.cuh"

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
__device__ __forceinline__ uint32_t first_pair(const RopeTokenParams &params, uint32_t unit, int run) {
  using R = Runs<V, IsInterleaved>;
  return unit * R::kLength + static_cast<uint32_t>(run) * (params.pairs / 2);
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

// A thread's unit, found before anything is read. At decode size the kernels cost what their instructions cost, each of
// which runs once: grids have an axis for the parts of a token, and numbers have 32 bits where they can.
template <typename T, int V>
struct FlatUnit {
  BatchToken at;
  uint32_t number;  // in its head
  bool is_active;
  bool has_token;
  const char *in;
  char *out;
  const char *position;

  __device__ __forceinline__ explicit FlatUnit(const RopeTokenParams &params) {
    const uint32_t token = blockIdx.x * blockDim.y + threadIdx.y, unit = blockIdx.y * blockDim.x + threadIdx.x;
    const uint32_t head = __umulhi(unit, params.head_reciprocal);
    number = unit - head * params.units_per_head;
    has_token = token < params.num_tokens;
    is_active = has_token && unit < params.units_per_token;
    const int which = (head >= params.tensor_begins[0]) + (head >= params.tensor_begins[1]);
    const RopeTokenTensor &tensor = params.tensor[which];
    const int32_t channel = params.window_begin + static_cast<int32_t>(number) * (V * static_cast<int32_t>(sizeof(T)));
    at = {0, token};
    in = tensor.in + channel;
    int64_t entry = 0;
    if (!params.has_one_batch) {
      const Divided inner = params.inner.divide(token);
      at = {inner.quotient, inner.remainder};
      if (params.is_batch_fastest) at = {inner.remainder, inner.quotient};
      in += at.batch * params.in_batch[which];
      entry = at.batch * params.positions.batch_stride;
    }
    in += offset_of_head<false>(params, at, head, tensor.in_token, tensor.in_head, 0);
    entry += at.token * params.positions.token_stride;
    position = params.positions.data + (entry << (params.positions.is_64_bit ? 3 : 2));
    out = const_cast<char *>(in);
    if (!params.is_in_place) {
      out = tensor.out + channel + at.batch * params.out_batch[which] +
            offset_of_head<false>(params, at, head, tensor.out_token, tensor.out_head, 0);
    }
  }

  __device__ __forceinline__ LoadedInteger load_position(const RopePositionParams &params) const {
    LoadedInteger result = {static_cast<uint32_t>(at.token), 0};
    const uint32_t *words = reinterpret_cast<const uint32_t *>(position);
    if (params.has_positions) result.low = words[0];
    if (params.has_positions && params.positions.is_64_bit) result.high = words[1];
    return result;
  }
};

__device__ __forceinline__ uint32_t low_bits(const void *address) {
  return static_cast<uint32_t>(reinterpret_cast<uintptr_t>(address));
}

// Waits with the addresses computed whose bits are given. Without an instruction that needs them before the wait, the
// compiler computes them behind it. All are even, so this never traps.
__device__ __forceinline__ void wait_for_previous_launch_with(uint32_t bits) {
  asm volatile(
      "{\n"
      " .reg .pred is_odd;\n"
      " .reg .b32 bit;\n"
      " and.b32 bit, %0, 1;\n"
      " setp.ne.u32 is_odd, bit, 0;\n"
      " @is_odd trap;\n"
      "}" ::"r"(bits)
      : "memory");
  wait_for_previous_launch();
}

template <typename T, int V, bool IsInterleaved>
__global__ void __launch_bounds__(kMaxFlatThreads)
    rope_flat_kernel(const __grid_constant__ RopeTokenAngleParams params) {
  using R = Runs<V, IsInterleaved>;
  begin_dependent_launch();
  const FlatUnit<T, V> mine(params);
  if (!mine.is_active) return;
  uint64_t increment[R::kCount][R::kLength];
  const uint64_t *increments = through_memory(params.increments);
#pragma unroll
  for (int run = 0; run < R::kCount; ++run) {
    const uint32_t first = first_pair<V, IsInterleaved>(params, mine.number, run);
#pragma unroll
    for (int i = 0; i < R::kLength; ++i) increment[run][i] = increments[first + i];
  }
  wait_for_previous_launch_with(low_bits(mine.in) | low_bits(mine.position));
  const LoadedInteger position = mine.load_position(params);
  Vector<T, V> low = load_vector<Vector<T, V>>(mine.in);
  Vector<T, V> high = load_vector<Vector<T, V>>(mine.in + params.bytes_to_high);
  const uint64_t at = finish_position(params, position);
  rotate_vectors<T, V, IsInterleaved>(&low, &high,
                                      [&](int run, int i) { return compute_angle(params, at, increment[run][i]); });
  store_vector(mine.out, low);
  store_vector(mine.out + params.bytes_to_high, high);
}

// A warp has units of one token, and shared memory for its angles: kMaxWarpPairs cosines, then the sines.
template <typename T, int V, bool IsInterleaved>
__global__ void __launch_bounds__(kMaxFlatThreads) rope_warp_kernel(const __grid_constant__ RopeWarpParams params) {
  constexpr uint32_t kLanes = 32, kOfLane = kMaxWarpPairs / kLanes;
  begin_dependent_launch();
  extern __shared__ float4 shared[];
  const FlatUnit<T, V> mine(params);
  if (!mine.has_token) return;
  const uint32_t thread = threadIdx.y * blockDim.x + threadIdx.x, lane = thread % kLanes;
  float *const cos = reinterpret_cast<float *>(shared) + thread / kLanes * (2 * kMaxWarpPairs);
  float *const cos_of_lane = cos + lane;
  // Those behind the last pair's are never read.
  const uint64_t *const increments = through_memory(params.increments) + lane;
  uint64_t increment[kOfLane];
#pragma unroll
  for (uint32_t i = 0; i < kOfLane; ++i) increment[i] = increments[i * kLanes];
  wait_for_previous_launch_with(low_bits(mine.in) | low_bits(mine.position) |
                                static_cast<uint32_t>(__cvta_generic_to_shared(cos_of_lane)));
  const LoadedInteger position = mine.load_position(params);
  Vector<T, V> low, high;
  if (mine.is_active) {
    low = load_vector<Vector<T, V>>(mine.in);
    high = load_vector<Vector<T, V>>(mine.in + params.bytes_to_high);
  }
  const uint64_t at = finish_position(params, position);
  CosSin<float> angle[kOfLane];
#pragma unroll
  for (uint32_t i = 0; i < kOfLane; ++i) angle[i] = compute_angle(params, at, increment[i]);
#pragma unroll
  for (uint32_t i = 0; i < kOfLane; ++i) {
    cos_of_lane[i * kLanes] = angle[i].cos;
    cos_of_lane[i * kLanes + kMaxWarpPairs] = angle[i].sin;
  }
  __syncwarp();
  if (!mine.is_active) return;
  float x[V], y[V];
  to_floats<T, V>(low, x);
  to_floats<T, V>(high, y);
  rotate_unit<V, IsInterleaved>(x, y, mine.number, params.pairs, cos, cos + kMaxWarpPairs);
  store_vector(mine.out, from_floats<T, V>(x));
  store_vector(mine.out + params.bytes_to_high, from_floats<T, V>(y));
}

template <typename T, int V, bool IsInterleaved, typename Word>
__global__ void __launch_bounds__(kMaxFlatThreads)
    rope_table_kernel(const __grid_constant__ RopeTokenTableParams params) {
  using R = Runs<V, IsInterleaved>;
  constexpr int64_t kSize = sizeof(Word);
  begin_dependent_launch();
  const FlatUnit<T, V> mine(params);
  if (!mine.is_active) return;
  const AngleTable &table = params.table;
  const uint32_t first = first_pair<V, IsInterleaved>(params, mine.number, 0);
  const char *cos_row = table.cos.data + first * kSize, *sin_row = table.sin.data + first * kSize;
  if (!params.has_one_batch) {
    cos_row += mine.at.batch * table.cos.batch_stride * kSize;
    sin_row += mine.at.batch * table.sin.batch_stride * kSize;
  }
  wait_for_previous_launch_with(low_bits(mine.in) | low_bits(mine.position) | low_bits(cos_row) | low_bits(sin_row));
  const LoadedInteger position = mine.load_position(params);
  Vector<T, V> low = load_vector<Vector<T, V>>(mine.in);
  Vector<T, V> high = load_vector<Vector<T, V>>(mine.in + params.bytes_to_high);
  const uint64_t row = finish_position(params, position);
  if (row < static_cast<uint64_t>(table.rows)) {
    cos_row += static_cast<int64_t>(static_cast<int32_t>(row)) * params.cos_row_bytes;
    sin_row += static_cast<int64_t>(static_cast<int32_t>(row)) * params.sin_row_bytes;
    TableRun<Word, R::kLength> cos[R::kCount], sin[R::kCount];
#pragma unroll
    for (int run = 0; run < R::kCount; ++run) {
      const uint32_t further = static_cast<uint32_t>(run) * (params.pairs / 2 * static_cast<uint32_t>(kSize));
      cos[run] = load_run<Word, R::kLength>(cos_row + further);
      sin[run] = load_run<Word, R::kLength>(sin_row + further);
    }
    rotate_vectors<T, V, IsInterleaved>(&low, &high, [&](int run, int i) -> CosSin<float> {
      const float s = entry_of(sin[run], i, table.dtype);
      return {entry_of(cos[run], i, table.dtype), params.sin_scale < 0.0f ? -s : s};
    });
  } else if (params.is_in_place) {
    return;
  }
  store_vector(mine.out, low);
  store_vector(mine.out + params.bytes_to_high, high);
}

template <typename T, int V, bool IsInterleaved>
const void *find_flat_kernel(RopeKernel kernel) {
  switch (kernel) {
    case RopeKernel::kFlat:
      return reinterpret_cast<const void *>(rope_flat_kernel<T, V, IsInterleaved>);
    case RopeKernel::kWarp:
      // Short launches, which alone have it, have no vectors of full width.
      if constexpr (V * sizeof(T) < 16) return reinterpret_cast<const void *>(rope_warp_kernel<T, V, IsInterleaved>);
      return nullptr;
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
