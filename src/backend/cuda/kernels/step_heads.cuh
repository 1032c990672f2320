// SPDX-License-Identifier: Apache-2.0
// step_heads.cuh - norm and rotation of whole heads, one unit per thread: shared by short and long launches
//
// A head here is all channels that are normed and turned, or a piece of a head (step_pieces.hpp): the window, or the
// channels outside it, cut into blocks of the window's size. A block has an even number of units (rope_facts.hpp), four
// or more. They lie in 2^lanes_log2 neighbouring lanes of a warp, one in each; the last lanes may have none. 128
// channels of 16 bits in vectors of 16 bytes (V = 8) have 8 units of 2 x 8 channels:
//
//   lane     0        1      …      7
//   low      0 …  7   8 … 15    …   56 …  63
//   high    64 … 71  72 … 79    …  120 … 127
//
// The sum of a norm follows the tree of norm.hpp. A thread's vectors are subtrees of V channels. In the first half of
// the tree, `low` of neighbouring lanes are neighbours, in the second `high`. Two lanes therefore exchange one vector's
// sum for the other's. If idle lanes follow, the sums move to their places in the tree.
//
// A launch that memory does not bound is bound by instructions, and the number of registers bounds how many threads
// wait for memory at a time (tests/bench/TUNING.md). Channels therefore keep their stored type until a few of them at a
// time become floats.
#pragma once

#include "backend/cuda/kernels/codes.cuh"
#include "backend/cuda/kernels/step_angles.cuh"
#include "backend/cuda/kernels/step_token.cuh"
#include "core/math/norm.hpp"

namespace rope {

constexpr uint32_t kAllLanes = 0xffffffffu;

// N neighbouring elements of a vector as floats, and the conversion back.
template <typename T, int V, int N>
__device__ __forceinline__ void to_some_floats(const Vector<T, V> &vector, int first, float *floats) {
  Vector<T, N> part;
  constexpr int kPart = sizeof part.word / sizeof *part.word;
#pragma unroll
  for (int i = 0; i < kPart; ++i) part.word[i] = vector.word[first / N * kPart + i];
  to_floats<T, N>(part, floats);
}

template <typename T, int V, int N>
__device__ __forceinline__ void from_some_floats(const float *floats, int first, Vector<T, V> *vector) {
  const Vector<T, N> part = from_floats<T, N>(floats);
  constexpr int kPart = sizeof part.word / sizeof *part.word;
#pragma unroll
  for (int i = 0; i < kPart; ++i) vector->word[first / N * kPart + i] = part.word[i];
}

// Channels are converted to floats for the sum and again for the product, so that the floats take no registers in
// between.
template <int Bytes>
__device__ __forceinline__ void forget_floats(Words<Bytes> *vector) {
#pragma unroll
  for (int i = 0; i < Bytes / 4; ++i) vector->word[i] = keep(vector->word[i]);
}

// N neighbouring numbers of weights or of a bias. They are wide if they are F32.
template <typename T, int N>
__device__ __forceinline__ void load_numbers(const char *address, bool is_wide, float *numbers) {
  if (sizeof(T) == 4 || is_wide) {
    to_floats<float, N>(load_vector<Vector<float, N>>(address), numbers);
  } else {
    to_floats<T, N>(load_vector<Vector<T, N>>(address), numbers);
  }
}

// The factor of a token and head. Only active threads read it.
template <typename T>
__device__ __forceinline__ float load_factor(const StepHeadFactor &factor, uint32_t flags, uint32_t batch,
                                             uint32_t token, uint32_t head, bool is_active) {
  const char *const at = step(step(factor.data, token, factor.token), head, factor.head) + batch * factor.batch;
  float number[1] = {};
  if (is_active) load_numbers<T, 1>(at, (flags & kHasWideFactor) != 0, number);
  return number[0];
}

// The place of a unit's first vector in its head, in vectors. The second vector is half a block behind it.
__device__ __forceinline__ uint32_t place_in_head(const StepHeadParams &params, uint32_t unit) {
  return unit + (unit & params.block_mask);
}

// The place of a unit, from its number among those of a tensor that has unit 0 in head 0. Heads that are normed are one
// block (kShortMore: unless they have a window), and their outputs have the strides of the inputs.
template <bool IsNormed>
struct StepUnitOf {
  uint32_t units;  // units of a head
  uint32_t head;
  uint32_t number;  // number of the unit in its head
  uint32_t place;   // its place_in_head

  __device__ __forceinline__ StepUnitOf(const StepHeadParams &params, const StepHeadTensor &tensor, uint32_t unit) {
    const uint32_t lanes_log2 = IsNormed ? params.lanes_log2 : tensor.lanes_log2;
    units = IsNormed ? params.units_per_block : tensor.units;
    head = unit >> lanes_log2;
    number = unit & ((1u << lanes_log2) - 1);
    place = IsNormed ? number : place_in_head(params, number);
  }

  // The output address of a unit that is read at `in`.
  __device__ __forceinline__ char *find_out(const StepHeadTensor &tensor, const char *in, uint32_t token) const {
    const char *const of_head = IsNormed ? in : step(in, head, tensor.head_shift);
    return const_cast<char *>(step(of_head + tensor.in_to_out, token, tensor.token_shift));
  }
};

// The piece of a unit that is counted through all pieces.
template <bool IsNormed>
__device__ __forceinline__ uint32_t find_piece(const StepShortHeadParams<IsNormed> &params, uint32_t unit) {
  uint32_t piece = 0;
#pragma unroll
  for (const uint32_t begin : params.begins) piece += unit >= begin;
  return piece;
}

template <int V>
__device__ __forceinline__ float sum_of_squares(const float *x) {
  float squares[V];
#pragma unroll
  for (int i = 0; i < V; ++i) squares[i] = multiply_rounded(x[i], x[i]);
  return tree_sum<V>(squares);
}

template <typename T, int V>
__device__ __forceinline__ float sum_of_squares_in(const Vector<T, V> &vector) {
  float x[V];
  to_floats<T, V>(vector, x);
  return sum_of_squares<V>(x);
}

__device__ __forceinline__ float add_lane(float sum, uint32_t distance) {
  return add_rounded(sum, __shfl_xor_sync(kAllLanes, sum, distance));
}

// Returns the sum of `high` of this lane and of the one `distance` away where takes_high, and of `low` elsewhere.
// takes_high differs between the two, so that they keep one sum each.
__device__ __forceinline__ float add_exchanged(float low, float high, bool takes_high, uint32_t distance) {
  return add_rounded(takes_high ? high : low, __shfl_xor_sync(kAllLanes, takes_high ? low : high, distance));
}

// The sum over a head, in all its lanes. All lanes of the warp take part. kUsual units, the number of most models, need
// only one branch.
template <uint32_t kUsual>
__device__ __forceinline__ float sum_over_lanes(const StepHeadParams &params, uint32_t number, float low, float high) {
  const bool is_odd = (number & 1u) != 0;
  const float other = __shfl_xor_sync(kAllLanes, is_odd ? low : high, 1);
  float sum = add_rounded(is_odd ? high : low, other);
  if (params.units_per_block == kUsual) {
#pragma unroll
    for (uint32_t distance = 2; distance < kUsual; distance *= 2) sum = add_lane(sum, distance);
    return add_lane(sum, 1);
  }
  const uint32_t units = params.units_per_block;
  if ((units & (units - 1)) == 0) {
    sum = add_lane(sum, 2);
    if (units > 4) sum = add_lane(sum, 4);
    if (units > 8) sum = add_lane(sum, 8);
    if (units > 16) sum = add_lane(sum, 16);
    return add_lane(sum, 1);
  }
  // The sums of even lanes are the first half of the tree, those of odd lanes the second. No sums follow them.
  const uint32_t half = units / 2, source = number < half ? 2 * number : 2 * (number - half) + 1;
  const float moved = __shfl_sync(kAllLanes, sum, static_cast<int>((threadIdx.x - number + source) % 32));
  sum = number < 2 * half ? moved : 0.0f;
  for (uint32_t distance = 1; distance >> params.lanes_log2 == 0; distance *= 2) sum = add_lane(sum, distance);
  return sum;
}

// sum_over_lanes for heads that are cut into blocks of `of_window` units, the size of their window. Both numbers are
// powers of two, from 2 on.
__device__ __forceinline__ float sum_over_blocks(uint32_t of_window, uint32_t units, uint32_t number, float low,
                                                 float high) {
  float sum = add_exchanged(low, high, (number & 1u) != 0, 1);
  for (uint32_t distance = 2; distance < of_window; distance *= 2) sum = add_lane(sum, distance);
  sum = add_lane(sum, 1);
  for (uint32_t distance = of_window; distance < units; distance *= 2) sum = add_lane(sum, distance);
  return sum;
}

// The weights of a head in shared memory, with the offset added, those of a lane's kVectors vectors together.
template <int V, int kVectors>
struct LaneWeights {
  static constexpr uint32_t kStride = padded_lane(kVectors * V);

  const float *of_unit;
  uint32_t to_high;  // distance from the unit's first vector to its second

  static __device__ __forceinline__ uint32_t place_of(uint32_t channel, uint32_t channels) {
    return place_in_lane<kVectors, V, kStride>(channel, channels);
  }

  template <int N>
  __device__ __forceinline__ void load(bool is_high, int first, float *weights) const {
    constexpr int kStep = N < 4 ? N : 4;
    const float *const from = of_unit + (is_high ? to_high : 0) + first;
#pragma unroll
    for (int i = 0; i < N; i += kStep) {
      const Vector<float, kStep> vector = *reinterpret_cast<const Vector<float, kStep> *>(from + i);
      to_floats<float, kStep>(vector, weights + i);
    }
  }
};

// A thread's own weights, in the data's type.
template <typename T, int V>
struct OwnWeights {
  Vector<T, V> low;
  Vector<T, V> high;
  float offset;

  template <int N>
  __device__ __forceinline__ void load(bool is_high, int first, float *weights) const {
    to_some_floats<T, V, N>(is_high ? high : low, first, weights);
#pragma unroll
    for (int i = 0; i < N; ++i) weights[i] = add_rounded(weights[i], offset);
  }
};

// scale_channel and weigh_channel for N channels.
template <typename T, int N, bool MayRound>
__device__ __forceinline__ void scale_and_weigh(const NormForm<float> &form, float inverse, const float *weights,
                                                float *x) {
#pragma unroll
  for (int i = 0; i < N; ++i) x[i] = multiply_rounded(x[i], inverse);
  if (MayRound && form.rounds_before_weight) to_floats<T, N>(from_floats<T, N>(x), x);
#pragma unroll
  for (int i = 0; i < N; ++i) x[i] = multiply_rounded(x[i], weights[i]);
  if (MayRound && form.rounds_after_weight) to_floats<T, N>(from_floats<T, N>(x), x);
}

// kGeneral makes the codes of data of other types.
template <typename T>
constexpr bool kMayHaveCodes = sizeof(T) == 2;

// The form of a unit's results: words of the data's type, or codes of E4M3.
enum class UnitAs {
  kWords,
  kCodes
};

// Converts N values from number `first` on to codes. A vector's codes take its first half, word after word, after the
// channels there have been read.
template <typename Float8, typename T, int V, int N>
__device__ __forceinline__ void put_codes(float factor, const float *values, int first, Vector<T, V> *vector) {
#pragma unroll
  for (int i = 0; i < N; i += 2) {
    const uint32_t codes =
        join_codes<Float8>(multiply_rounded(values[i], factor), multiply_rounded(values[i + 1], factor));
    uint32_t &word = vector->word[(first + i) / 4];
    word = (first + i) % 4 == 0 ? codes : word | codes << 16;
  }
}

template <typename T, int V, int N, UnitAs kAs>
__device__ __forceinline__ void put_values(float factor, const float *values, int first, Vector<T, V> *vector) {
  if constexpr (kAs == UnitAs::kCodes) {
    put_codes<Float8E4M3, T, V, N>(factor, values, first, vector);
  } else {
    from_some_floats<T, V, N>(values, first, vector);
  }
}

// Norms a unit (`inverse` is inverse_norm) and rotates it, as far as its tensor is normed and rotated. A unit without
// either keeps its bits, unless it becomes codes, from products with `factor`. Most calls have no roundings inside the
// norm.
template <typename T, int V, bool IsInterleaved, bool IsNormed, bool MayRound, UnitAs kAs, typename Weights,
          typename Angles>
__device__ __forceinline__ void change_unit(const NormForm<float> &form, float inverse, const Weights &weights,
                                            bool is_normed, bool is_turned, const Angles &angles, float factor,
                                            Vector<T, V> *low, Vector<T, V> *high) {
  const bool norms = IsNormed && (kAs == UnitAs::kWords || is_normed);
  if (kAs == UnitAs::kWords && !norms && !is_turned) return;
  if constexpr (IsInterleaved) {
    const auto change = [&](bool is_high, Vector<T, V> *vector) {
      float x[V], w[V];
      to_floats<T, V>(*vector, x);
      if (norms) {
        weights.template load<V>(is_high, 0, w);
        scale_and_weigh<T, V, MayRound>(form, inverse, w, x);
      }
      if (is_turned) angles.template turn<V / 2>(is_high, 0, x, x + 1, 2);
      put_values<T, V, V, kAs>(factor, x, 0, vector);
    };
    change(false, low);
    change(true, high);
  } else {
    constexpr int kPiece = V <= 4 ? V : IsNormed && kAs == UnitAs::kWords ? 2 : 4;
#pragma unroll
    for (int i = 0; i < V; i += kPiece) {
      float x[kPiece], y[kPiece], w[kPiece];
      to_some_floats<T, V, kPiece>(*low, i, x);
      to_some_floats<T, V, kPiece>(*high, i, y);
      if (norms) {
        weights.template load<kPiece>(false, i, w);
        scale_and_weigh<T, kPiece, MayRound>(form, inverse, w, x);
        weights.template load<kPiece>(true, i, w);
        scale_and_weigh<T, kPiece, MayRound>(form, inverse, w, y);
      }
      if (is_turned) angles.template turn<kPiece>(false, i, x, y, 1);
      put_values<T, V, kPiece, kAs>(factor, x, i, low);
      put_values<T, V, kPiece, kAs>(factor, y, i, high);
    }
  }
}

// All values of a unit at once. They are needed to find the largest magnitude first, or to write values in two forms.
template <typename T, int V>
struct UnitValues {
  float low[V];
  float high[V];

  __device__ __forceinline__ UnitValues(const Vector<T, V> &of_low, const Vector<T, V> &of_high) {
    to_floats<T, V>(of_low, low);
    to_floats<T, V>(of_high, high);
  }

  // Does the work of change_unit.
  template <bool MayRound, typename Weights>
  __device__ __forceinline__ void norm(const NormForm<float> &form, float inverse, const Weights &weights) {
    constexpr int kPiece = V < 4 ? V : 4;
#pragma unroll
    for (int i = 0; i < V; i += kPiece) {
      float w[kPiece];
      weights.template load<kPiece>(false, i, w);
      scale_and_weigh<T, kPiece, MayRound>(form, inverse, w, low + i);
      weights.template load<kPiece>(true, i, w);
      scale_and_weigh<T, kPiece, MayRound>(form, inverse, w, high + i);
    }
  }

  template <bool IsInterleaved, typename Angles>
  __device__ __forceinline__ void turn(const Angles &angles) {
    if constexpr (IsInterleaved) {
      angles.template turn<V / 2>(false, 0, low, low + 1, 2);
      angles.template turn<V / 2>(true, 0, high, high + 1, 2);
    } else {
      constexpr int kPiece = V < 4 ? V : 4;
#pragma unroll
      for (int i = 0; i < V; i += kPiece) angles.template turn<kPiece>(false, i, low + i, high + i, 1);
    }
  }

  __device__ __forceinline__ void multiply(float factor) {
#pragma unroll
    for (int i = 0; i < V; ++i) low[i] = multiply_rounded(low[i], factor), high[i] = multiply_rounded(high[i], factor);
  }

  __device__ __forceinline__ void add(const UnitValues &others) {
#pragma unroll
    for (int i = 0; i < V; ++i) {
      low[i] = add_rounded(low[i], others.low[i]);
      high[i] = add_rounded(high[i], others.high[i]);
    }
  }

  // Rounds to the data's type.
  __device__ __forceinline__ void round() {
    to_floats<T, V>(from_floats<T, V>(low), low);
    to_floats<T, V>(from_floats<T, V>(high), high);
  }

  // The largest magnitude. If there are NaNs, it is one of them.
  __device__ __forceinline__ float largest() const {
    float of_low = 0.0f, of_high = 0.0f;
#pragma unroll
    for (int i = 0; i < V; ++i) of_low = max_magnitude(of_low, low[i]), of_high = max_magnitude(of_high, high[i]);
    return max_magnitude(of_low, of_high);
  }

  __device__ __forceinline__ void put_codes(float factor, bool is_e5m2, Vector<T, V> *to_low,
                                            Vector<T, V> *to_high) const {
    if (is_e5m2) {
      rope::put_codes<Float8E5M2, T, V, V>(factor, low, 0, to_low);
      rope::put_codes<Float8E5M2, T, V, V>(factor, high, 0, to_high);
    } else {
      rope::put_codes<Float8E4M3, T, V, V>(factor, low, 0, to_low);
      rope::put_codes<Float8E4M3, T, V, V>(factor, high, 0, to_high);
    }
  }
};

// Stores codes, which fill the first half of a vector.
template <typename Vector>
__device__ __forceinline__ void store_code_half(char *to, const Vector &vector) {
  constexpr int kBytes = sizeof(Vector) / 2;
  Words<kBytes> half;
#pragma unroll
  for (int i = 0; i < kBytes / 4; ++i) half.word[i] = vector.word[i];
  store_vector(to, half);
}

template <typename Vector>
__device__ __forceinline__ void store_code_halves(char *to, uint32_t to_high, const Vector &low, const Vector &high) {
  store_code_half(to, low);
  store_code_half(to + to_high, high);
}

template <bool HasCodes, typename Vector>
__device__ __forceinline__ void store_unit(const StepHeadParams &params, bool as_codes, char *to, const Vector &low,
                                           const Vector &high) {
  if constexpr (HasCodes) {
    if (as_codes) return store_code_halves(to, params.pairs, low, high);
  }
  store_vector(to, low);
  store_vector(to + params.to_high, high);
}

// Stores a unit to the cache at `slot`, which may have any value. `cache` is the unit's address in page 0's first
// entry. Returns whether the slot is out of range.
template <bool HasCodes, typename Vector>
__device__ __forceinline__ bool store_cached(const StepHeadParams &params, const StepHeadTensor &tensor, char *cache,
                                             LoadedInteger loaded, bool as_codes, const Vector &low,
                                             const Vector &high) {
  const StepSlots &slots = params.slots;
  const uint64_t slot = extend(loaded, slots.is_64_bit);
  const bool is_skipped = slots.skips_slot_0 && slot == 0;
  if (slot >= slots.end || is_skipped) return static_cast<int64_t>(slot) >= 0 && !is_skipped;
  const DivmodResult place = slots.entries.divmod(static_cast<uint32_t>(slot));
  char *const to = cache + place.quotient * tensor.page_bytes + place.remainder * tensor.entry_bytes;
  store_unit<HasCodes>(params, as_codes, to, low, high);
  return false;
}

template <bool HasCodes, typename Vector>
__device__ __forceinline__ bool store_cached(const StepHeadParams &params, const StepHeadTensor &tensor, char *cache,
                                             const StepPlace &place, bool as_codes, const Vector &low,
                                             const Vector &high) {
  if (!place.is_cached) return place.is_faulty;
  char *const to = cache + place.page * tensor.page_bytes + place.entry * tensor.entry_bytes;
  store_unit<HasCodes>(params, as_codes, to, low, high);
  return false;
}

}  // namespace rope
