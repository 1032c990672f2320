// SPDX-License-Identifier: Apache-2.0
// rope_general.cuh - the RoPE kernel for everything: several position axes, sequences, any pairs, tables and types
//
// Example: four heads of 128 channels, 16-bit data, vectors of V = 8 elements. A head has 8 units, a token 32, and a
// block of 128 threads 4 tokens.
//
//   threadIdx.x    0   1   …   7  │   8   …  15  │ … │  32   …  39  │ … │ 127
//   token          0              │   0          │   │   1          │   │   3
//   head           0              │   1          │   │   0          │   │   3
//   unit           0   1   …   7  │   0   …   7  │   │   0   …   7  │   │   7
//
//   grid x   groups of tokens_per_block tokens. If a token has more units than a block has threads, the blocks
//            of a token are consecutive: block b has part b % blocks_per_token of token b / blocks_per_token
//   grid y   tokens from y * tokens_per_grid_row on, numbered through all batches
//
// A block that converts styles in place has whole heads only, and its last threads may have no unit. The channels of a
// unit, for a window of 16 channels and V = 2:
//
//   unit of the head                            0             1             2             3
//   HALF and INTERLEAVED                     0 1   8 9     2 3  10 11    4 5  12 13    6 7  14 15
//   HALF in blocks of 8 channels             0 1   4 5     2 3   6  7    8 9  12 13  10 11  14 15
//   converted, the side of HALF              0 1   8 9     2 3  10 11    4 5  12 13    6 7  14 15
//   converted, the side of INTERLEAVED       0 1   2 3     4 5   6  7    8 9  10 11  12 13  14 15
//
// With V = 1, unit n is pair n. Outside the window a unit is one vector.
//
//   shared   cos[token][pair], sin[token][pair]; if a table has a column for each channel, those of the second channels
//            follow in this order; then a TokenInfo for each token if tokens are looked up
//
//   load channels ─ look up tokens ─ barrier ─ angles ─ barrier ─ rotate ─ store
//                   thread t: token t          thread i: i, i + blockDim.x, …
//
// The kernel reads and writes the rotated window of every token and head once; out of place, also the channels around
// it. In addition, a block reads for each of its tokens the positions (4 or 8 bytes per axis), log2(B) entries of
// cu_seqlens to find its sequence among B, and from a table a cosine and a sine, or an angle, for each pair or channel.
// With computed angles it reads 8 bytes of increments per pair instead.
//
// Each pair may use another position axis, and the two channels of a pair may have different angles. Conversion in
// place is safe because a block has whole heads and stores only after the barrier that follows its loads.
#pragma once

#include "backend/cuda/kernels/block_work.cuh"
#include "backend/cuda/kernels/general_angles.cuh"
#include "backend/cuda/kernels/kernel.hpp"
#include "backend/cuda/kernels/occupancy.cuh"
#include "backend/cuda/kernels/programmatic_launch.cuh"
#include "backend/cuda/kernels/unit_rotation.cuh"
#include "plan/tuning.hpp"

namespace rope {

// The largest number of threads per block: a head that is converted may need all of its units in one block.
constexpr int max_general_threads(Pairing pairing, int vector_elements) {
  const int head_units = kMaxHeadDim / vector_elements;
  return pairing == Pairing::kConverted && head_units > kMaxRopeThreads ? head_units : kMaxRopeThreads;
}

// Reads N values from shared memory at once.
template <int N, typename Real>
__device__ __forceinline__ void read_run(const Real *source, Real *values) {
  unpack<Real, N>(*reinterpret_cast<const Vector<Real, N> *>(source), values);
}

// Rotates N pairs with consecutive angles from `at` on. Each step rotates as many pairs as one read from shared memory
// provides.
template <int N, typename T, typename Real>
__device__ __forceinline__ void rotate_general(T *x, T *y, const GeneralAngles<Real> &angles, uint32_t at,
                                               bool is_by_channel, bool rounds_each) {
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
      const Pair<Real> in = {to_real<Real>(x[i]), to_real<Real>(y[i])};
      const CosSin<Real> of_x = {cos[j], sin[j]}, of_y = {cos_y[j], sin_y[j]};
      Pair<Real> out;
      if constexpr (sizeof(T) == 2) {
        out = rounds_each ? rotate_in<T>(in, of_x, of_y) : rotate<Real>(in, of_x, of_y);
      } else {
        out = rotate<Real>(in, of_x, of_y);
      }
      x[i] = round_to<T>(out.x);
      y[i] = round_to<T>(out.y);
    }
  }
}

// The places of a rotary unit's two vectors within the head, in channels, on one side of the call.
struct UnitSide {
  int low;
  int high;
};

// The channels depend on the pairing:
// - kInterleaved: two vectors, half a window apart;
// - kConverted on the interleaved side: two adjacent vectors;
// - otherwise: two vectors that are a pair's distance apart, in the block of pairs that contains the unit.
template <int V, Pairing kPairing>
__device__ __forceinline__ UnitSide side_of(const RopeGeneralParams &params, uint32_t unit, int distance) {
  const int number = static_cast<int>(unit), begin = params.rotary_offset;
  if (kPairing == Pairing::kInterleaved) {
    const int low = begin + number * (V == 1 ? 2 : V);
    return {low, V == 1 ? low + 1 : low + params.rotary_dim / 2};
  }
  if (kPairing == Pairing::kConverted && distance == 1) return {begin + 2 * number * V, begin + (2 * number + 1) * V};
  const int low = begin + number * V + static_cast<int>(params.units_per_run.divmod(unit).quotient) * distance;
  return {low, low + distance};
}

// The pairs of a unit as separate x and y: with interleaved channels, x and y alternate in both vectors.
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

// The reverse of split_pairs.
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

// The steps are those of the diagram above: load the unit, look up tokens, compute or read angles, rotate, store.
template <typename T, int V, Pairing kPairing>
__global__ void __launch_bounds__(max_general_threads(kPairing, V),
                                  min_blocks_per_multiprocessor(kRopeGeneralResidentThreads,
                                                                max_general_threads(kPairing, V)))
    rope_general_kernel(const __grid_constant__ RopeGeneralParams params) {
  using Real = RealOf<T>;
  begin_dependent_launch();
  extern __shared__ float4 shared[];
  const uint32_t pairs = params.pairs.divisor;
  const bool is_by_channel = params.table.is_by_channel, rounds_each = sizeof(T) == 2 && params.rounded_dtype != 0;
  const GeneralAngles<Real> angles = {reinterpret_cast<Real *>(shared), params.tokens_per_block * pairs};
  TokenInfo *infos = reinterpret_cast<TokenInfo *>(angles.cos(is_by_channel ? 2 : 1));

  const BlockShare share = find_share(params);
  const BatchToken unit_token = find_token(params, share.first_token + share.place.quotient);
  const Unit unit = find_unit(params, share.place.remainder);
  const RopeGeneralTensor &tensor = params.tensor[unit.tensor];
  const bool is_in_place = tensor.is_in_place;
  const bool is_active = share.is_active && threadIdx.x < params.units_per_block && (unit.is_rotary || !is_in_place);

  wait_for_previous_launch();
  Vector<T, V> low, high;
  char *low_out = nullptr, *high_out = nullptr;
  if (is_active) {
    UnitSide in, out;
    if (unit.is_rotary) {
      in = side_of<V, kPairing>(params, unit.number, params.in_distance);
      out = side_of<V, kPairing>(params, unit.number, params.out_distance);
    } else {
      in.low = in.high = copied_channel<V>(params, unit);
      out = in;
    }
    const auto address_of = [&](const RopeSide &side, int channel) {
      return address_of_channel<T, V>(params, side, unit.head, unit_token, channel);
    };
    const auto bytes_between = [&](const RopeSide &side, UnitSide channels) {
      return (channels.high - channels.low) * (V == 1 ? side.stride[kChannel] : static_cast<int64_t>(sizeof(T)));
    };
    const char *low_in = address_of(tensor.in, in.low);
    low = load_vector<Vector<T, V>>(low_in);
    if (unit.is_rotary) high = load_vector<Vector<T, V>>(low_in + bytes_between(tensor.in, in));
    low_out = const_cast<char *>(low_in);
    if (!is_in_place || kPairing == Pairing::kConverted) low_out = address_of(tensor.out, out.low);
    if (unit.is_rotary) high_out = low_out + bytes_between(tensor.out, out);
  }

  // Look up tokens: thread t looks up token t of the block.
  if (params.has_token_info) {
    if (threadIdx.x < share.num_tokens) {
      infos[threadIdx.x] =
          look_up_token(params, find_token(params, share.first_token + threadIdx.x), share.is_first_block);
    }
    check_sequences(params);
    __syncthreads();
  }
// Angles: the block's threads share the pairs of all its tokens.
#pragma unroll 1
  for (uint32_t number = threadIdx.x; number < share.num_tokens * pairs; number += blockDim.x) {
    const DivmodResult angle = params.pairs.divmod(number);
    const BatchToken at = find_token(params, share.first_token + angle.quotient);
    TokenInfo info = {static_cast<uint64_t>(at.token), at.batch, kRotated};
    if (params.has_token_info) info = infos[angle.quotient];
    if (info.state == kRotated) share_general_angle(params, number, angle.remainder, at, info, angles);
  }
  __syncthreads();

  if (!is_active) return;
  const uint32_t state = params.has_token_info ? infos[share.place.quotient].state : static_cast<uint32_t>(kRotated);
  if (state == kAbsent) return;
  // Rotate. Copy units and unrotated tokens keep their values; a token that converts styles is moved in any case.
  const uint32_t first_angle = share.place.quotient * pairs;
  if (!unit.is_rotary || (state == kUnrotated && kPairing != Pairing::kConverted)) {
    if (is_in_place) return;
  } else if (sizeof(T) < sizeof(double) && kPairing != Pairing::kConverted && !is_by_channel && !rounds_each) {
    if constexpr (sizeof(T) < sizeof(double)) {
      float x[V], y[V];
      to_floats<T, V>(low, x);
      to_floats<T, V>(high, y);
      rotate_unit<V, kPairing == Pairing::kInterleaved>(x, y, unit.number, pairs, angles.cos(0) + first_angle,
                                                        angles.sin(0) + first_angle);
      low = from_floats<T, V>(x);
      high = from_floats<T, V>(y);
    }
  } else {
    // With kInterleaved, a vector holds V/2 pairs of each of two places; with V = 1 there is one pair in either style.
    constexpr bool kIsInTurns = kPairing == Pairing::kInterleaved && V > 1;
    constexpr bool kIsConverted = kPairing == Pairing::kConverted && V > 1;
    T x[V], y[V];
    split_pairs<T, V>(low, high, kIsInTurns || (kIsConverted && params.in_distance == 1), x, y);
    if (state == kRotated && kIsInTurns) {
      constexpr int kPart = V > 1 ? V / 2 : 1;
      rotate_general<kPart>(x, y, angles, first_angle + unit.number * kPart, is_by_channel, rounds_each);
      rotate_general<kPart>(x + kPart, y + kPart, angles, first_angle + pairs / 2 + unit.number * kPart, is_by_channel,
                            rounds_each);
    } else if (state == kRotated) {
      rotate_general<V>(x, y, angles, first_angle + unit.number * V, is_by_channel, rounds_each);
    }
    join_pairs<T, V>(x, y, kIsInTurns || (kIsConverted && params.out_distance == 1), &low, &high);
  }
  store_vector(low_out, low);
  if (unit.is_rotary) store_vector(high_out, high);
}

// The kernel for a pairing.
template <typename T, int V>
Kernel find_general_kernel(Pairing pairing) {
  switch (pairing) {
    case Pairing::kHalf:
      return kernel_of(rope_general_kernel<T, V, Pairing::kHalf>);
    case Pairing::kInterleaved:
      return kernel_of(rope_general_kernel<T, V, Pairing::kInterleaved>);
    default:
      return kernel_of(rope_general_kernel<T, V, Pairing::kConverted>);
  }
}

// The kernel for a vector width, or NULL if T has no such width.
template <typename T>
Kernel find_rope_general_kernel(int vector_elements, const RopeVariant &variant) {
  const Pairing pairing = variant.pairing;
  constexpr int kSize = static_cast<int>(sizeof(T));
  if (vector_elements == 1) return find_general_kernel<T, 1>(pairing);
  if (vector_elements == 16 / kSize) return find_general_kernel<T, 16 / kSize>(pairing);
  if constexpr (kSize < 8) {
    if (vector_elements == 8 / kSize) return find_general_kernel<T, 8 / kSize>(pairing);
  }
  return {};
}

}  // namespace rope
