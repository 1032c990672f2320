// rope_general.cuh - the RoPE kernel for everything: several position axes, sequences, any pairs, tables and types
//
// The same division of work as in rope.cuh, which see, and the same bytes. What differs: where tokens have to be looked up
// (their sequence, their row in a table) a block does so once, behind a barrier of its own; each pair has a position of
// its own; the cosines and sines of a pair's two channels may differ; input and output may pair channels in different
// ways. In place the last one is safe because a block has whole heads and stores behind the barrier that follows its
// loads.
#pragma once

#include "backend/cuda/kernels/rope.cuh"
#include "backend/cuda/kernels/rope_general_params.hpp"
#include "plan/rope_plan.hpp"

namespace rope {

enum TokenState : uint32_t {
  kUnrotated,  // it only moves from input to output
  kRotated,
  kAbsent  // it belongs to no sequence and stays as it is
};

// Most threads of a block: a converted head may need all of its units in one.
constexpr int max_general_threads(Pairing pairing, int vector_elements) {
  const int head_units = kMaxHeadDim / vector_elements;
  return pairing == Pairing::kConverted && head_units > kMaxRopeThreads ? head_units : kMaxRopeThreads;
}

// Said as well, because the compiler would take 32 registers and spill some.
constexpr int min_general_blocks(Pairing pairing, int vector_elements) {
  const int wanted = kRopeGeneralResidentThreads / max_general_threads(pairing, vector_elements);
  return wanted > 0 ? wanted : 1;
}

__device__ __forceinline__ int64_t load_wide(const char *data, bool is_64_bit, int64_t at) {
  if (is_64_bit) return reinterpret_cast<const int64_t *>(data)[at];
  return reinterpret_cast<const int32_t *>(data)[at];
}

__device__ __forceinline__ void count_fault(const FaultWords &fault, int64_t token) {
  if (fault.data == nullptr) return;
  using Word = unsigned long long;
  Word *count = reinterpret_cast<Word *>(fault.data), *lowest = count + fault.stride;
  atomicAdd(count, Word{1});
  const Word wanted = static_cast<Word>(token + 1);
  Word known = *reinterpret_cast<volatile Word *>(lowest);
  while (known == 0 || known > wanted) {
    const Word found = atomicCAS(lowest, known, wanted);
    if (found == known) return;
    known = found;
  }
}

__device__ __forceinline__ int64_t sequence_entry(const Sequences &sequences, int64_t index) {
  return load_wide(sequences.data, sequences.is_64_bit, index * sequences.stride);
}

// The entries of cu_seqlens that break its rule, shared by all threads of the grid.
__device__ __forceinline__ void check_sequences(const RopeGeneralParams &params) {
  const int64_t grid_threads = static_cast<int64_t>(gridDim.x) * gridDim.y * blockDim.x;
  const int64_t block = static_cast<int64_t>(blockIdx.y) * gridDim.x + blockIdx.x;
  for (int64_t i = block * blockDim.x + threadIdx.x; i <= params.sequences.count; i += grid_threads) {
    const int64_t entry = sequence_entry(params.sequences, i);
    const int64_t before = i == 0 ? 0 : sequence_entry(params.sequences, i - 1);
    if (entry >= before && entry <= params.num_tokens && (i != 0 || entry == 0)) continue;
    count_fault(params.fault, entry < 0 ? 0 : entry > params.num_tokens ? params.num_tokens : entry);
  }
}

__device__ __forceinline__ uint64_t position_on(const RopeGeneralParams &params, int axis, const TokenInfo &info,
                                                int64_t token) {
  const auto load = [&](const TokenIntegers &source) {
    const int64_t at = axis * source.axis_stride + info.batch * source.batch_stride + token * source.token_stride;
    return static_cast<uint64_t>(load_wide(source.data, source.is_64_bit, at));
  };
  uint64_t position = params.has_positions ? load(params.positions) : info.index;
  if (params.has_start_positions) position += load(params.start_positions);
  return position + params.position_offset;
}

// Finds the sequence of a token and whether its positions have rows. Whatever the entries of cu_seqlens are, the sequence
// is one of them. `is_first` is true for one block of those that share the token.
__device__ __forceinline__ TokenInfo look_up_token(const RopeGeneralParams &params, BatchToken at, int64_t flat_token,
                                                   bool is_first) {
  TokenInfo info = {static_cast<uint64_t>(at.token), at.batch, kRotated};
  const Sequences &sequences = params.sequences;
  if (sequences.is_present) {
    info.state = kAbsent;
    if (at.token < sequence_entry(sequences, 0)) {
      if (is_first) count_fault(params.fault, flat_token);
      return info;
    }
    if (at.token >= sequence_entry(sequences, sequences.count)) return info;
    int64_t low = 0, high = sequences.count;
    while (high - low > 1) {
      const int64_t middle = low + (high - low) / 2;
      const bool is_below = sequence_entry(sequences, middle) <= at.token;
      low = is_below ? middle : low;
      high = is_below ? high : middle;
    }
    info.batch = low;
    info.index = static_cast<uint64_t>(at.token) - static_cast<uint64_t>(sequence_entry(sequences, low));
    info.state = kRotated;
  }
  if (params.angles == AngleSource::kIncrements || params.table.is_by_token) return info;
  for (int axis = 0; axis < params.num_axes; ++axis) {
    if ((params.used_axes >> axis & 1u) == 0) continue;
    if (position_on(params, axis, info, at.token) < static_cast<uint64_t>(params.table.rows)) continue;
    info.state = kUnrotated;
    if (is_first) count_fault(params.fault, flat_token);
    break;
  }
  return info;
}

// The block's angles: the cosines of its tokens one after the other, then the sines; with columns for each channel those
// of the pairs' second channels follow in the same order.
template <typename Real>
struct GeneralAngles {
  Real *first;
  uint32_t count;  // of pairs, in all tokens of a full block

  __device__ __forceinline__ Real *cos(int channel) const { return first + channel * 2 * count; }
  __device__ __forceinline__ Real *sin(int channel) const { return cos(channel) + count; }
};

template <typename Real>
__device__ __forceinline__ Real load_real(const char *data, rope_dtype_t dtype, int64_t at) {
  switch (dtype) {
    case ROPE_DTYPE_F16:
      return to_real<Real>(Float16{reinterpret_cast<const uint16_t *>(data)[at]});
    case ROPE_DTYPE_BF16:
      return to_real<Real>(BFloat16{reinterpret_cast<const uint16_t *>(data)[at]});
    case ROPE_DTYPE_F64:
      return to_real<Real>(reinterpret_cast<const double *>(data)[at]);
    default:
      return to_real<Real>(reinterpret_cast<const float *>(data)[at]);
  }
}

__device__ __forceinline__ int axis_of(const RopeGeneralParams &params, uint32_t pair) {
  const uint8_t *axes = params.pair_axis;
  asm("" : "+l"(axes));
  return axes[pair];
}

// cos and sin from a row of a table; `column` counts columns.
template <typename Real>
__device__ __forceinline__ CosSin<Real> load_general_angle(const RopeGeneralParams &params, int64_t axis, int64_t batch,
                                                           int64_t row, int64_t column) {
  const AngleTable &table = params.table;
  const auto load = [&](const TableColumns &columns) {
    const int64_t at = axis * columns.axis_stride + batch * columns.batch_stride + row * columns.row_stride;
    return load_real<Real>(columns.data, table.dtype, at + column * columns.column_stride);
  };
  if (params.angles == AngleSource::kTable) return {load(table.cos), load(table.sin)};
  const CosSin<Real> angle = cos_sin_of_angle<Real>(static_cast<float>(load(table.cos)));
  const Real scale = static_cast<Real>(params.scale);
  return {multiply_rounded(angle.cos, scale), multiply_rounded(angle.sin, scale)};
}

template <typename Real>
__device__ __forceinline__ void share_general_angle(const RopeGeneralParams &params, uint32_t number, uint32_t pair,
                                                    BatchToken at, const TokenInfo &info,
                                                    const GeneralAngles<Real> &angles) {
  const int axis = axis_of(params, pair);
  const AngleTable &table = params.table;
  const uint64_t position = table.is_by_token ? 0 : position_on(params, axis, info, at.token);
  CosSin<Real> of_x, of_y;
  if (params.angles == AngleSource::kIncrements) {
    of_x = cos_sin_of_phase<Real>(phase_of(position, load_increment(params, pair)));
    const Real scale = static_cast<Real>(params.scale);
    of_x = {multiply_rounded(of_x.cos, scale), multiply_rounded(of_x.sin, scale)};
  } else {
    const int64_t row = table.is_by_token ? at.token : static_cast<int64_t>(position);
    uint32_t column;
    if (table.is_by_channel) {
      column = pair + params.table_distance.divide(pair).quotient * params.table_distance.divisor;
      of_y = load_general_angle<Real>(params, axis, at.batch, row, column + params.table_distance.divisor);
    } else {
      column = params.table_width.divide(pair).remainder;
    }
    of_x = load_general_angle<Real>(params, axis, at.batch, row, column);
  }
  if (!table.is_by_channel) of_y = of_x;
  angles.cos(0)[number] = of_x.cos;
  angles.sin(0)[number] = params.is_transposed ? -of_y.sin : of_x.sin;
  if (!table.is_by_channel) return;
  angles.cos(1)[number] = of_y.cos;
  angles.sin(1)[number] = params.is_transposed ? -of_x.sin : of_y.sin;
}

template <int N, typename Real>
__device__ __forceinline__ void read_run(const Real *source, Real *values) {
  unpack<Real, N>(*reinterpret_cast<const Vector<Real, N> *>(source), values);
}

// Rotates N pairs of neighbouring angles, of which `at` is the first, as many at a time as one read from shared memory
// gives.
template <int N, typename T, typename Real>
__device__ __forceinline__ void rotate_general(T *x, T *y, const GeneralAngles<Real> &angles, uint32_t at,
                                               bool is_by_channel) {
  constexpr int kStep = N * sizeof(Real) < 16 ? N : 16 / static_cast<int>(sizeof(Real));
#pragma unroll
  for (int begin = 0; begin < N; begin += kStep) {
    Real cos[kStep], sin[kStep], cos_y[kStep], sin_y[kStep];
    read_run<kStep>(angles.cos(0) + at + begin, cos);
    read_run<kStep>(angles.sin(0) + at + begin, sin);
#pragma unroll
    for (int i = 0; i < kStep; ++i) cos_y[i] = cos[i], sin_y[i] = sin[i];
    if (is_by_channel) {
      read_run<kStep>(angles.cos(1) + at + begin, cos_y);
      read_run<kStep>(angles.sin(1) + at + begin, sin_y);
    }
#pragma unroll
    for (int i = begin; i < begin + kStep; ++i) {
      const int j = i - begin;
      const Pair<Real> out =
          rotate<Real>({to_real<Real>(x[i]), to_real<Real>(y[i])}, {cos[j], sin[j]}, {cos_y[j], sin_y[j]});
      x[i] = round_to<T>(out.x);
      y[i] = round_to<T>(out.y);
    }
  }
}

// How the two vectors of a rotary unit lie, in channels from the first of the window: a side of the call.
struct UnitSide {
  int low;
  int high;
};

template <int V, Pairing kPairing>
__device__ __forceinline__ UnitSide side_of(const RopeGeneralParams &params, uint32_t unit, int distance) {
  const int number = static_cast<int>(unit);
  if (kPairing == Pairing::kInterleaved) {
    return V == 1 ? UnitSide{2 * number, 2 * number + 1} : UnitSide{number * V, number * V + params.rotary_dim / 2};
  }
  if (kPairing == Pairing::kConverted && distance == 1) return {2 * number * V, (2 * number + 1) * V};
  const int low = number * V + static_cast<int>(params.units_per_run.divide(unit).quotient) * distance;
  return {low, low + distance};
}

// The pairs of a unit, apart: with interleaved channels x and y lie in turns over both vectors.
template <typename T, int V>
__device__ __forceinline__ void split_pairs(const Vector<T, V> &low, const Vector<T, V> &high, bool is_interleaved,
                                            T *x, T *y) {
  T channel[2 * V];
  unpack<T, V>(low, channel);
  unpack<T, V>(high, channel + V);
#pragma unroll
  for (int i = 0; i < V; ++i) {
    x[i] = is_interleaved ? channel[2 * i] : channel[i];
    y[i] = is_interleaved ? channel[2 * i + 1] : channel[V + i];
  }
}

template <typename T, int V>
__device__ __forceinline__ void join_pairs(const T *x, const T *y, bool is_interleaved, Vector<T, V> *low,
                                           Vector<T, V> *high) {
  T channel[2 * V];
#pragma unroll
  for (int i = 0; i < V; ++i) {
    channel[i] = is_interleaved ? (i % 2 == 0 ? x[i / 2] : y[i / 2]) : x[i];
    channel[V + i] = is_interleaved ? ((V + i) % 2 == 0 ? x[(V + i) / 2] : y[(V + i) / 2]) : y[i];
  }
  *low = pack<T, V>(channel);
  *high = pack<T, V>(channel + V);
}

template <typename T, int V, Pairing kPairing>
__global__ void __launch_bounds__(max_general_threads(kPairing, V), min_general_blocks(kPairing, V))
    rope_general_kernel(const __grid_constant__ RopeGeneralParams params) {
  using Real = RealOf<T>;
  extern __shared__ float4 shared[];
  const uint32_t pairs = params.pairs.divisor;
  const bool is_by_channel = params.table.is_by_channel;
  const GeneralAngles<Real> angles = {reinterpret_cast<Real *>(shared), params.tokens_per_block * pairs};
  TokenInfo *infos = reinterpret_cast<TokenInfo *>(angles.cos(is_by_channel ? 2 : 1));

  const Divided block = params.blocks_per_token.divide(blockIdx.x);
  const uint32_t first_in_row = block.quotient * params.tokens_per_block;
  Divided place = {0, block.remainder * params.units_per_block + threadIdx.x};
  if (params.tokens_per_block > 1) place = params.units_per_token.divide(threadIdx.x);
  const BatchToken unit_token = find_token(params, first_in_row + place.quotient);

  // The last block of a row of the grid may have fewer tokens, or none.
  int64_t tokens_left = params.num_tokens - blockIdx.y * params.tokens_per_grid_row;
  if (tokens_left > params.tokens_per_grid_row) tokens_left = params.tokens_per_grid_row;
  tokens_left -= first_in_row;
  const uint32_t num_tokens = tokens_left >= params.tokens_per_block ? params.tokens_per_block
                              : tokens_left > 0                      ? tokens_left
                                                                     : 0;

  const int which = (place.remainder >= params.tensor_begins[1]) + (place.remainder >= params.tensor_begins[2]);
  const RopeKernelTensor &tensor = params.tensor[which];
  const Divided head = tensor.units_per_head.divide(place.remainder - params.tensor_begins[which]);
  const uint32_t unit = head.remainder;
  const bool is_rotary = unit < params.rotary_units_per_head;
  const bool is_in_place = params.is_in_place[which];
  const bool is_active = place.quotient < num_tokens && place.remainder < params.units_per_token.divisor &&
                         threadIdx.x < params.units_per_block && (is_rotary || !is_in_place);

  Vector<T, V> low, high;
  char *low_out = nullptr, *high_out = nullptr;
  if (is_active) {
    UnitSide in, out;
    if (is_rotary) {
      in = side_of<V, kPairing>(params, unit, params.in_distance);
      out = side_of<V, kPairing>(params, unit, params.out_distance);
    } else {
      // Copy units count vectors below the window, then those above it.
      in.low = static_cast<int>(unit - params.rotary_units_per_head) * V - params.rotary_offset;
      if (in.low >= 0) in.low += params.rotary_dim;
      out = in;
    }
    const auto offset_of = [&](const int64_t *stride, int channel) {
      const int64_t offset =
          unit_token.batch * stride[kBatch] + unit_token.token * stride[kToken] + head.quotient * stride[kHead];
      return offset + (params.rotary_offset + channel) * (V == 1 ? stride[kChannel] : static_cast<int64_t>(sizeof(T)));
    };
    low = load_vector<Vector<T, V>>(tensor.in + offset_of(tensor.in_stride, in.low));
    low_out = tensor.out + offset_of(tensor.out_stride, out.low);
    if (is_rotary) {
      high = load_vector<Vector<T, V>>(tensor.in + offset_of(tensor.in_stride, in.high));
      high_out = tensor.out + offset_of(tensor.out_stride, out.high);
    }
  }

  if (params.has_token_info) {
    if (threadIdx.x < num_tokens) {
      const uint32_t in_row = first_in_row + threadIdx.x;
      infos[threadIdx.x] = look_up_token(params, find_token(params, in_row),
                                         blockIdx.y * params.tokens_per_grid_row + in_row, block.remainder == 0);
    }
    if (params.sequences.is_present && params.fault.data != nullptr) check_sequences(params);
    __syncthreads();
  }
#pragma unroll 1
  for (uint32_t number = threadIdx.x; number < num_tokens * pairs; number += blockDim.x) {
    const Divided angle = params.pairs.divide(number);
    const BatchToken at = find_token(params, first_in_row + angle.quotient);
    TokenInfo info = {static_cast<uint64_t>(at.token), at.batch, kRotated};
    if (params.has_token_info) info = infos[angle.quotient];
    if (info.state == kRotated) share_general_angle(params, number, angle.remainder, at, info, angles);
  }
  __syncthreads();

  if (!is_active) return;
  const uint32_t state = params.has_token_info ? infos[place.quotient].state : static_cast<uint32_t>(kRotated);
  if (state == kAbsent) return;
  if (is_rotary && (state == kRotated || kPairing == Pairing::kConverted)) {
    // Vectors of kInterleaved hold the pairs of one place each; of V = 1 there is a pair whatever the style.
    constexpr bool kIsInTurns = kPairing == Pairing::kInterleaved && V > 1;
    T x[V], y[V];
    split_pairs<T, V>(low, high, kIsInTurns || (kPairing == Pairing::kConverted && params.in_distance == 1 && V > 1), x,
                      y);
    const uint32_t first_angle = place.quotient * pairs;
    if (state == kRotated && kIsInTurns) {
      constexpr int kPart = V > 1 ? V / 2 : 1;
      rotate_general<kPart>(x, y, angles, first_angle + unit * kPart, is_by_channel);
      rotate_general<kPart>(x + kPart, y + kPart, angles, first_angle + pairs / 2 + unit * kPart, is_by_channel);
    } else if (state == kRotated) {
      rotate_general<V>(x, y, angles, first_angle + unit * V, is_by_channel);
    }
    join_pairs<T, V>(x, y, kIsInTurns || (kPairing == Pairing::kConverted && params.out_distance == 1 && V > 1), &low,
                     &high);
  } else if (is_in_place) {
    return;
  }
  store_vector(low_out, low);
  if (is_rotary) store_vector(high_out, high);
}

template <typename T, int V>
const void *find_general_kernel(Pairing pairing) {
  switch (pairing) {
    case Pairing::kHalf:
      return reinterpret_cast<const void *>(rope_general_kernel<T, V, Pairing::kHalf>);
    case Pairing::kInterleaved:
      return reinterpret_cast<const void *>(rope_general_kernel<T, V, Pairing::kInterleaved>);
    default:
      return reinterpret_cast<const void *>(rope_general_kernel<T, V, Pairing::kConverted>);
  }
}

// The kernel for a vector width, or NULL for a width that T has none of.
template <typename T>
const void *find_general_kernel(int vector_elements, Pairing pairing) {
  constexpr int kSize = static_cast<int>(sizeof(T));
  if (vector_elements == 1) return find_general_kernel<T, 1>(pairing);
  if (vector_elements == 16 / kSize) return find_general_kernel<T, 16 / kSize>(pairing);
  if constexpr (kSize < 8) {
    if (vector_elements == 8 / kSize) return find_general_kernel<T, 8 / kSize>(pairing);
  }
  return nullptr;
}

}  // namespace rope
