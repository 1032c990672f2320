// SPDX-License-Identifier: Apache-2.0
// cpu_loops.hpp - the inner loops of the CPU backend, compiled once for every instruction set: those of RoPE, and the
// parts common to all
//
// The loops are plain C++ that the compiler vectorises, except in cpu_vectors.hpp and cpu_gating.hpp. Loops over
// contiguous elements use literal steps. ROPE_INDEPENDENT tells the compiler a guarantee of the ABI that alias analysis
// cannot derive: an output is identical to its input or disjoint from it.
//
// Code compiled for a newer instruction set must never replace code for an older one at link time. Therefore everything
// in this file is in an unnamed namespace, and functions of src/core that it calls are always inlined and carry the
// set's name (host_device.hpp). A test inspects the object files.
#pragma once

#include <string.h>

#include <type_traits>

#include "backend/cpu/cpu_kernels.hpp"
#include "backend/cpu/cpu_vectors.hpp"
#include "core/math/float16.hpp"
#include "core/math/frequencies.hpp"
#include "core/math/rotation.hpp"

namespace rope {

namespace {

#if defined(__clang__)
#define ROPE_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define ROPE_INDEPENDENT _Pragma("GCC ivdep")
#endif

#define ROPE_LOOP inline __attribute__((always_inline))

template <typename T, typename Real>
void read_elements(const void *source, int64_t stride, int64_t begin, int64_t count, Real *values) {
  const T *element = static_cast<const T *>(source) + begin * stride;
  int64_t i = 0;
  if (stride != 1) {
    for (; i < count; ++i) values[i] = to_real<Real>(element[i * stride]);
    return;
  }
#if defined(ROPE_HAS_VECTORS)
  if constexpr (sizeof(T) == 2) {
    for (Vector<8> vector; i + 8 <= count; i += 8) {
      read_vector(element + i, &vector);
      vector.store(values + i);
    }
  }
#endif
  for (; i < count; ++i) values[i] = to_real<Real>(element[i]);
}

template <typename T, typename Real>
void write_elements(const Real *values, int64_t count, void *target, int64_t stride, int64_t begin) {
  T *element = static_cast<T *>(target) + begin * stride;
  int64_t i = 0;
  if (stride != 1) {
    for (; i < count; ++i) element[i * stride] = round_to<T>(values[i]);
    return;
  }
#if defined(ROPE_HAS_VECTORS)
  if constexpr (sizeof(T) == 2) {
    for (; i + 8 <= count; i += 8) write_vector(Vector<8>::load(values + i), element + i);
  }
#endif
  for (; i < count; ++i) element[i] = round_to<T>(values[i]);
}

// Rounds to the data's type and converts back.
template <typename T, typename Real>
void round_values(Real *values, int count) {
  if constexpr (sizeof(T) == sizeof(Real)) return;
  int i = 0;
#if defined(ROPE_HAS_VECTORS)
  if constexpr (sizeof(T) == 2) {
    T rounded[8];
    for (Vector<8> vector; i + 8 <= count; i += 8) {
      write_vector(Vector<8>::load(values + i), rounded);
      read_vector(rounded, &vector);
      vector.store(values + i);
    }
  }
#endif
  for (; i < count; ++i) values[i] = to_real<Real>(round_to<T>(values[i]));
}

// Raises *magnitude to the bits of the largest magnitude among the elements. NaN ranks above infinity.
template <typename T>
void raise_magnitude(const T *elements, int count, uint32_t *magnitude) {
  using Bits = std::conditional_t<sizeof(T) == 2, uint16_t, uint32_t>;
  constexpr Bits kAllButSign = static_cast<Bits>(~Bits{0}) >> 1;
  Bits max = 0;
  int i = 0;
#if defined(ROPE_HAS_VECTORS)
  // Four vectors at once; compilers make one at a time of the plain loop.
  typedef Bits Lanes __attribute__((vector_size(32)));
  constexpr int kLanes = 32 / sizeof(Bits);
  if (count >= 4 * kLanes) {
    Lanes lanes[4] = {};
    for (; i + 4 * kLanes <= count; i += 4 * kLanes) {
      for (int j = 0; j < 4; ++j) {
        const Lanes bits = load_lanes<Lanes>(elements + i + j * kLanes) & kAllButSign;
        lanes[j] = bits > lanes[j] ? bits : lanes[j];
      }
    }
    for (int j = 1; j < 4; ++j) lanes[0] = lanes[j] > lanes[0] ? lanes[j] : lanes[0];
    for (int lane = 0; lane < kLanes; ++lane) max = lanes[0][lane] > max ? lanes[0][lane] : max;
  }
#endif
  for (; i < count; ++i) {
    Bits bits;
    memcpy(&bits, elements + i, sizeof bits);
    bits &= kAllButSign;
    max = bits > max ? bits : max;
  }
  T largest;
  memcpy(&largest, &max, sizeof largest);
  const uint32_t bits = bits_of(to_float(largest));
  if (bits > *magnitude) *magnitude = bits;
}

// The factor that turns a group of a head's values into codes. With written scales it follows from the bits of the
// group's largest magnitude, and the scale is stored.
template <typename Float8>
ROPE_LOOP float code_factor_of(const CodeRule &code, const StepTarget &target, int64_t head, int group,
                               uint32_t magnitude) {
  if (code.amax != nullptr && magnitude > *code.amax) *code.amax = magnitude;
  const WrittenScales &scales = *target.scales;
  if (!scales.is_present()) return code.factor_of(target, head);
  const GroupScale scale = scale_of_group<Float8>(magnitude > scales.floor ? magnitude : scales.floor, scales.form);
  scales.store(target.scales_row, head, group, scale.bits);
  return scale.factor;
}

template <typename T, typename Real>
Real factor_of(const RowFactor &factor, int64_t head) {
  const int64_t offset = head * factor.head_stride;
  if (factor.is_f32) return reinterpret_cast<const float *>(factor.data)[offset];
  return to_real<Real>(reinterpret_cast<const T *>(factor.data)[offset]);
}

template <typename Real>
void fill_angles(const uint64_t *phases, int count, Real scale, Real *__restrict cos, Real *__restrict sin) {
  for (int i = 0; i < count; ++i) {
    const CosSin<Real> angle = cos_sin_of_phase<Real>(phases[i]);
    cos[i] = multiply_rounded(angle.cos, scale);
    sin[i] = multiply_rounded(angle.sin, scale);
  }
}

// Where a run has its pairs: x[i] and y[i], or x[2 i] and x[2 i + 1], or x[i * step] and y[i * step].
enum class Placement {
  kHalf,
  kInterleaved,
  kStrided
};

template <typename T, Placement kPlacement>
struct Pairs {
  T *x;
  T *y;
  int64_t step;

  ROPE_LOOP T &first(int64_t i) const {
    return x[kPlacement == Placement::kHalf ? i : kPlacement == Placement::kInterleaved ? 2 * i : step * i];
  }
  ROPE_LOOP T &second(int64_t i) const {
    return kPlacement == Placement::kHalf ? y[i] : kPlacement == Placement::kInterleaved ? x[2 * i + 1] : y[step * i];
  }
};

template <typename T, Placement kPlacement>
ROPE_LOOP Pairs<T, kPlacement> pairs_of_head(const PairRun &run, int64_t head) {
  const int64_t offset = head * run.head_stride;
  return {static_cast<T *>(run.x) + offset, static_cast<T *>(run.y) + offset, run.step};
}

// Rotates the pairs from `begin` on, one at a time. Here and below, Rounded is that of rotate_as.
template <typename Rounded, typename Real, typename T, Placement kIn, Placement kOut>
ROPE_LOOP void rotate_pairs(Pairs<T, kIn> in, Pairs<T, kOut> out, int64_t begin, int64_t end,
                            const PairAngles<Real> &angles) {
  const Real *cos_x = angles.cos_x, *sin_x = angles.sin_x, *cos_y = angles.cos_y, *sin_y = angles.sin_y;
  ROPE_INDEPENDENT
  for (int64_t i = begin; i < end; ++i) {
    const Pair<Real> pair = rotate_as<Rounded, Real>({to_real<Real>(in.first(i)), to_real<Real>(in.second(i))},
                                                     {cos_x[i], sin_x[i]}, {cos_y[i], sin_y[i]});
    out.first(i) = round_to<T>(pair.x);
    out.second(i) = round_to<T>(pair.y);
  }
}

#if defined(ROPE_HAS_VECTORS)

// Rotates the few pairs that do not fill a vector, in any placement.
template <typename Rounded, typename T>
__attribute__((noinline)) void rotate_last_pairs(Pairs<T, Placement::kStrided> in, Pairs<T, Placement::kStrided> out,
                                                 int64_t begin, int64_t end, const PairAngles<float> &angles) {
  rotate_pairs<Rounded>(in, out, begin, end, angles);
}

template <typename T, int kLanes>
ROPE_VECTOR Vector<kLanes> rounded_to(Vector<kLanes> vector) {
  if constexpr (std::is_same_v<T, BFloat16>) {
    return from_upper_halves<kLanes>(to_upper_halves(vector) & 0xffff0000u);
  } else {
    return from_float16(to_float16(vector));
  }
}

template <typename T, int kLanes>
ROPE_VECTOR Vector<kLanes> product_in(Vector<kLanes> a, Vector<kLanes> b) {
  return rounded_to<T>(multiply_rounded(a, b));
}

template <typename Rounded, int kLanes>
ROPE_LOOP Pair<Vector<kLanes>> rotate_vector(Pair<Vector<kLanes>> pair, const PairAngles<float> &angles, int64_t at) {
  using Floats = Vector<kLanes>;
  return rotate_as<Rounded>(pair, CosSin<Floats>{Floats::load(angles.cos_x + at), Floats::load(angles.sin_x + at)},
                            CosSin<Floats>{Floats::load(angles.cos_y + at), Floats::load(angles.sin_y + at)});
}

// Rotates, from `begin` on, all pairs that fill vectors; returns the index of the first pair left.
template <typename Rounded, int kLanes, typename T, Placement kIn, Placement kOut>
ROPE_LOOP int64_t rotate_vectors(Pairs<T, kIn> in, Pairs<T, kOut> out, int64_t begin, int64_t end,
                                 const PairAngles<float> angles) {
  int64_t i = begin;
  for (; i + kLanes <= end; i += kLanes) {
    Pair<Vector<kLanes>> pair;
    if constexpr (kIn == Placement::kInterleaved) {
      read_interleaved(&in.first(i), &pair.x, &pair.y);
    } else {
      read_vector(&in.first(i), &pair.x);
      read_vector(&in.second(i), &pair.y);
    }
    pair = rotate_vector<Rounded>(pair, angles, i);
    if constexpr (kOut == Placement::kInterleaved) {
      write_interleaved(pair.x, pair.y, &out.first(i));
    } else {
      write_vector(pair.x, &out.first(i));
      write_vector(pair.y, &out.second(i));
    }
  }
  return i;
}

// rotate_vectors for BFloat16 in halves, two vectors of pairs at a time. Two neighbouring elements are the halves of a
// word; they are converted to floats and back without moving between lanes. arrange_angles has put the angles in order.
template <typename Rounded, int kLanes>
ROPE_LOOP int64_t rotate_words(Pairs<BFloat16, Placement::kHalf> in, Pairs<BFloat16, Placement::kHalf> out,
                               int64_t begin, int64_t end, const PairAngles<float> angles) {
  int64_t i = begin;
  for (; i + int64_t{2} * kLanes <= end; i += int64_t{2} * kLanes) {
    Pair<Vector<kLanes>> even, odd;
    read_interleaved(&in.first(i), &even.x, &odd.x);
    read_interleaved(&in.second(i), &even.y, &odd.y);
    even = rotate_vector<Rounded>(even, angles, i);
    odd = rotate_vector<Rounded>(odd, angles, i + kLanes);
    write_interleaved(even.x, odd.x, &out.first(i));
    write_interleaved(even.y, odd.y, &out.second(i));
  }
  return i;
}

template <typename T, Placement kIn, Placement kOut>
constexpr bool kHasWords = false;
template <>
constexpr bool kHasWords<BFloat16, Placement::kHalf, Placement::kHalf> = true;

// Replaces a NaN angle by one that write_interleaved accepts.
ROPE_LOOP float arranged(float angle) {
  return angle == angle ? angle : float_of(0x7fc00000u);
}

template <int kLanes>
ROPE_VECTOR Vector<kLanes> arranged(Vector<kLanes> angles) {
  const typename Vector<kLanes>::Floats nan = float_of(0x7fc00000u) - typename Vector<kLanes>::Floats{};
  return {angles.values == angles.values ? angles.values : nan};
}

template <int kLanes>
ROPE_LOOP int64_t arrange_words(const float *from, int64_t begin, int64_t end, float *__restrict to) {
  int64_t i = begin;
  for (; i + int64_t{2} * kLanes <= end; i += int64_t{2} * kLanes) {
    Vector<kLanes> even, odd;
    read_interleaved(from + i, &even, &odd);
    arranged(even).store(to + i);
    arranged(odd).store(to + i + kLanes);
  }
  return i;
}

// For each step of rotate_words, puts the angles of even pairs before those of odd pairs.
template <bool HasWords>
const float *arrange_angles(const float *from, int64_t pairs, float *__restrict to) {
  int64_t i = 0;
  if (HasWords) {
#if defined(__AVX512BW__)
    i = arrange_words<16>(from, i, pairs, to);
#endif
    i = arrange_words<8>(from, i, pairs, to);
  }
  for (; i < pairs; ++i) to[i] = arranged(from[i]);
  return to;
}

// Prefetches the cache lines of `count` elements of a head. Nothing happens if there is no such memory, and a product of
// any stride may wrap around. GCC removes calls of functions that only prefetch, so all of them are always inlined.
template <typename T>
ROPE_LOOP void prefetch_channels(const void *heads, int64_t head, int64_t stride, int64_t begin, int64_t count) {
  const uintptr_t element = static_cast<uintptr_t>(head) * static_cast<uintptr_t>(stride);
  const uintptr_t first =
      reinterpret_cast<uintptr_t>(heads) + (element + static_cast<uintptr_t>(begin)) * uintptr_t{sizeof(T)};
  const uintptr_t bytes = static_cast<uintptr_t>(count) * uintptr_t{sizeof(T)};
  for (uintptr_t i = 0; i < bytes; i += 64) __builtin_prefetch(reinterpret_cast<const void *>(first + i));
}

// The distance from a head that is read to the one that is prefetched: 8 heads, but 4 to 8 KiB of heads that lie close
// together and belong to a token that others follow. A token's last heads thus prefetch the first ones of the next
// token, which arrive while other tensors are processed.
template <typename T, typename Run>
ROPE_LOOP int64_t heads_ahead(const Run &run) {
  constexpr int64_t kMaxElements = 8192 / sizeof(T);
  int64_t ahead = 8;
  if (!run.is_followed || run.head_stride <= 0) return ahead;
  while (run.head_stride <= kMaxElements / (2 * ahead)) ahead *= 2;
  return ahead;
}

// Prefetches the window of a head, of this token or in memory behind it.
template <typename T, Placement kIn>
ROPE_LOOP void prefetch_pairs(const PairRun &run, int64_t pairs, int64_t head) {
  if constexpr (kIn == Placement::kInterleaved) {
    prefetch_channels<T>(run.x, head, run.head_stride, 0, 2 * pairs);
  } else {
    prefetch_channels<T>(run.x, head, run.head_stride, 0, pairs);
    prefetch_channels<T>(run.y, head, run.head_stride, 0, pairs);
  }
}

template <typename Rounded, typename T, Placement kIn, Placement kOut>
ROPE_LOOP void rotate_head(Pairs<T, kIn> in, Pairs<T, kOut> out, int64_t pairs, const PairAngles<float> angles) {
  int64_t begin = 0;
  if constexpr (kHasWords<T, kIn, kOut>) {
#if defined(__AVX512BW__)
    begin = rotate_words<Rounded, 16>(in, out, begin, pairs, angles);
#endif
    begin = rotate_words<Rounded, 8>(in, out, begin, pairs, angles);
  } else {
#if defined(__AVX512BW__)
    begin = rotate_vectors<Rounded, 16>(in, out, begin, pairs, angles);
#endif
  }
  begin = rotate_vectors<Rounded, 8>(in, out, begin, pairs, angles);
  if (begin == pairs) return;
  rotate_last_pairs<Rounded, T>({in.x, in.y, in.step}, {out.x, out.y, out.step}, begin, pairs, angles);
}

#endif

template <typename Rounded, typename T, Placement kIn, Placement kOut, typename Real>
ROPE_LOOP void rotate_heads(const PairRun &in, const PairRun &out, int pairs, int64_t heads,
                            const PairAngles<Real> angles) {
#if defined(ROPE_HAS_VECTORS)
  const int64_t ahead = heads_ahead<T>(in);
  if constexpr (sizeof(T) == 2 && kIn != Placement::kStrided && kOut != Placement::kStrided) {
    PairAngles<float> ordered = angles;
    float buffer[4][kMaxPairs];
    if constexpr (std::is_same_v<T, BFloat16>) {
      constexpr bool kInWords = kHasWords<T, kIn, kOut>;
      const bool is_shared = angles.cos_x == angles.cos_y && angles.sin_x == angles.sin_y;
      ordered.cos_x = arrange_angles<kInWords>(angles.cos_x, pairs, buffer[0]);
      ordered.sin_x = arrange_angles<kInWords>(angles.sin_x, pairs, buffer[1]);
      ordered.cos_y = is_shared ? ordered.cos_x : arrange_angles<kInWords>(angles.cos_y, pairs, buffer[2]);
      ordered.sin_y = is_shared ? ordered.sin_x : arrange_angles<kInWords>(angles.sin_y, pairs, buffer[3]);
    }
    for (int64_t head = 0; head < heads; ++head) {
      prefetch_pairs<T, kIn>(in, pairs, head + ahead);
      rotate_head<Rounded>(pairs_of_head<T, kIn>(in, head), pairs_of_head<T, kOut>(out, head), pairs, ordered);
    }
    return;
  }
#endif
  for (int64_t head = 0; head < heads; ++head) {
#if defined(ROPE_HAS_VECTORS)
    if constexpr (kIn != Placement::kStrided) prefetch_pairs<T, kIn>(in, pairs, head + ahead);
#endif
    rotate_pairs<Rounded>(pairs_of_head<T, kIn>(in, head), pairs_of_head<T, kOut>(out, head), 0, pairs, angles);
  }
}

template <typename T>
Placement placement_of(const PairRun &run) {
  if (run.step == 1) return Placement::kHalf;
  return run.step == 2 && static_cast<T *>(run.y) == static_cast<T *>(run.x) + 1 ? Placement::kInterleaved
                                                                                 : Placement::kStrided;
}

template <typename Rounded, typename T, typename Real>
ROPE_LOOP void rotate_as_placed(const PairRun &in, const PairRun &out, int pairs, int64_t heads,
                                const PairAngles<Real> &angles) {
  const Placement from = placement_of<T>(in), to = placement_of<T>(out);
  const auto rotate_all = [&](auto from_constant, auto to_constant) __attribute__((always_inline)) {
    rotate_heads<Rounded, T, decltype(from_constant)::value, decltype(to_constant)::value>(in, out, pairs, heads,
                                                                                           angles);
  };
  constexpr std::integral_constant<Placement, Placement::kHalf> kHalf;
  constexpr std::integral_constant<Placement, Placement::kInterleaved> kInterleaved;
  constexpr std::integral_constant<Placement, Placement::kStrided> kStrided;
  if (from == Placement::kHalf && to == Placement::kHalf) return rotate_all(kHalf, kHalf);
  if (from == Placement::kInterleaved && to == Placement::kInterleaved) return rotate_all(kInterleaved, kInterleaved);
  // Conversion with rounding of each operation is rare, so it has no loop of its own.
  if constexpr (std::is_void_v<Rounded>) {
    if (from == Placement::kInterleaved && to == Placement::kHalf) return rotate_all(kInterleaved, kHalf);
    if (from == Placement::kHalf && to == Placement::kInterleaved) return rotate_all(kHalf, kInterleaved);
  }
  rotate_all(kStrided, kStrided);
}

template <typename T, typename Real, typename Rounded = void>
void rotate_run(const PairRun &in, const PairRun &out, int pairs, int64_t heads, const PairAngles<Real> &angles) {
  if (angles.cos_x == angles.cos_y && angles.sin_x == angles.sin_y) {
    const Real *cos = angles.cos_x, *sin = angles.sin_x;
    rotate_as_placed<Rounded, T, Real>(in, out, pairs, heads, {cos, sin, cos, sin});
  } else {
    rotate_as_placed<Rounded, T>(in, out, pairs, heads, angles);
  }
}

}  // namespace

}  // namespace rope
