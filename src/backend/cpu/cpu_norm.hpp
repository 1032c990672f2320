// SPDX-License-Identifier: Apache-2.0
// cpu_norm.hpp - the tree sums of norm.hpp over arrays, in vectors if the CPU has them, and a norm's numbers for each
// channel
//
// The file is in an unnamed namespace; cpu_loops.hpp explains this.
#pragma once

#include "backend/cpu/cpu_kernels.hpp"
#include "backend/cpu/cpu_loops.hpp"
#include "backend/cpu/cpu_vectors.hpp"
#include "core/math/norm.hpp"

namespace rope {

namespace {

// Arrays with terms of sums are extended to a multiple of this length with the terms of pad_terms.
constexpr int kSumRun = 64;

// Appends +0 up to a power of two. Behind that it appends -0, which changes no sum.
template <typename Real>
ROPE_LOOP void pad_terms(Real *terms, int count) {
  if (count % kSumRun == 0) return;
  int power = 1;
  while (power < count) power *= 2;
  for (int i = count; i % kSumRun != 0; ++i) terms[i] = i < power ? Real{0} : -Real{0};
}

struct Value {
  template <typename Real>
  ROPE_LOOP Real operator()(Real x) const {
    return x;
  }
};

struct Square {
  template <typename Real>
  ROPE_LOOP Real operator()(Real x) const {
    return multiply_rounded(x, x);
  }
};

template <typename Term, typename Real>
ROPE_LOOP Real sum_in_turns(const Real *values, const Term &term) {
  Real terms[kSumRun];
  for (int i = 0; i < kSumRun; ++i) terms[i] = term(values[i]);
  for (int count = kSumRun / 2; count > 0; count /= 2) {
    for (int i = 0; i < count; ++i) terms[i] = add_rounded(terms[2 * i], terms[2 * i + 1]);
  }
  return terms[0];
}

#if defined(ROPE_HAS_VECTORS)

// Each level of the tree adds neighbouring lanes. Lanes of a, then lanes of b, stay in their 128 bits.
ROPE_VECTOR __m256 add_neighbours(__m256 a, __m256 b) {
  return _mm256_add_ps(_mm256_shuffle_ps(a, b, 0x88), _mm256_shuffle_ps(a, b, 0xdd));
}

ROPE_VECTOR __m128 add_neighbours(__m128 a, __m128 b) {
  return _mm_add_ps(_mm_shuffle_ps(a, b, 0x88), _mm_shuffle_ps(a, b, 0xdd));
}

ROPE_VECTOR __m128 lower_half(__m256 a) {
  return _mm256_castps256_ps128(a);
}

ROPE_VECTOR __m128 upper_half(__m256 a) {
  return _mm256_extractf128_ps(a, 1);
}

#if defined(__AVX512BW__)

ROPE_VECTOR __m512 add_neighbours(__m512 a, __m512 b) {
  return _mm512_add_ps(_mm512_shuffle_ps(a, b, 0x88), _mm512_shuffle_ps(a, b, 0xdd));
}

// Returns the sum of the first two of four lots of 128 bits, and that of the last two in *upper.
ROPE_VECTOR __m128 add_lots(__m512 a, __m128 *upper) {
  const __m512 sums = _mm512_add_ps(a, _mm512_shuffle_f32x4(a, a, 0xb1));
  *upper = _mm512_extractf32x4_ps(sums, 2);
  return _mm512_castps512_ps128(sums);
}

#endif

// Adds the terms of kSumRun elements to four sums of 16 neighbours each.
template <typename T, typename Term>
ROPE_VECTOR __m128 sums_of_sixteen(const T *elements, const Term &term) {
#if defined(__AVX512BW__)
  const auto read = [&](int64_t i) __attribute__((always_inline)) {
    Vector<16> vector;
    read_vector(elements + 16 * i, &vector);
    return term(vector).values;
  };
  __m128 upper;
  const __m128 lower =
      add_lots(add_neighbours(add_neighbours(read(0), read(1)), add_neighbours(read(2), read(3))), &upper);
  return _mm_add_ps(lower, upper);
#else
  const auto read = [&](int64_t i) __attribute__((always_inline)) {
    Vector<8> vector;
    read_vector(elements + 8 * i, &vector);
    return term(vector).values;
  };
  const __m256 a = add_neighbours(add_neighbours(read(0), read(1)), add_neighbours(read(2), read(3)));
  const __m256 b = add_neighbours(add_neighbours(read(4), read(5)), add_neighbours(read(6), read(7)));
  return add_neighbours(_mm_add_ps(lower_half(a), upper_half(a)), _mm_add_ps(lower_half(b), upper_half(b)));
#endif
}

// The two halves of words are neighbours, so the first level of the tree adds vectors.
template <typename Term>
ROPE_VECTOR __m128 sums_of_sixteen(const BFloat16 *elements, const Term &term) {
#if defined(__AVX512BW__)
  constexpr int kLanes = 16;
#else
  constexpr int kLanes = 8;
#endif
  const auto read = [&](int64_t i) __attribute__((always_inline)) {
    Vector<kLanes> even, odd;
    read_interleaved(elements + int64_t{2} * kLanes * i, &even, &odd);
    return add_rounded(term(even), term(odd)).values;
  };
#if defined(__AVX512BW__)
  const __m512 fours = add_neighbours(read(0), read(1));
  __m128 upper;
  const __m128 lower = add_lots(add_neighbours(fours, fours), &upper);
  return _mm_unpacklo_ps(lower, upper);
#else
  const __m256 eights = add_neighbours(add_neighbours(read(0), read(1)), add_neighbours(read(2), read(3)));
  return _mm_add_ps(lower_half(eights), upper_half(eights));
#endif
}

#if defined(__AVX512BW__)

// The number of elements with terms that fill one vector once neighbours are added. Lot j of its 128 bits has four
// sums; all lots together make four neighbouring sums of the whole.
template <typename T>
constexpr int kElementsOfLots = 64;
template <>
constexpr int kElementsOfLots<BFloat16> = 128;

template <typename T, typename Term>
ROPE_VECTOR __m512 lots_of(const T *elements, const Term &term) {
  const auto read = [&](int64_t i) __attribute__((always_inline)) {
    Vector<16> vector;
    read_vector(elements + 16 * i, &vector);
    return term(vector).values;
  };
  return add_neighbours(add_neighbours(read(0), read(1)), add_neighbours(read(2), read(3)));
}

template <typename Term>
ROPE_VECTOR __m512 lots_of(const BFloat16 *elements, const Term &term) {
  const auto read = [&](int64_t i) __attribute__((always_inline)) {
    Vector<16> even, odd;
    read_interleaved(elements + 32 * i, &even, &odd);
    return add_rounded(term(even), term(odd)).values;
  };
  return add_neighbours(add_neighbours(read(0), read(1)), add_neighbours(read(2), read(3)));
}

// The sums of four such vectors.
ROPE_VECTOR __m128 add_all_lots(const __m512 *lots) {
  const auto add_pairs = [](__m512 a, __m512 b) __attribute__((always_inline)) {
    return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
  };
  const __m512 fours = add_pairs(add_pairs(lots[0], lots[1]), add_pairs(lots[2], lots[3]));
  const __m512 pairs = add_neighbours(fours, fours);
  return _mm512_castps512_ps128(_mm512_maskz_compress_ps(0x1111, add_neighbours(pairs, pairs)));
}

#endif

template <typename T, typename Term>
ROPE_VECTOR float sum_of_run(const T *elements, const Term &term) {
  const __m128 sums = sums_of_sixteen(elements, term), pairs = add_neighbours(sums, sums);
  return _mm_cvtss_f32(add_neighbours(pairs, pairs));
}

template <typename T, typename Term>
ROPE_VECTOR float sum_of_two_runs(const T *elements, const Term &term) {
  const __m128 pairs = add_neighbours(sums_of_sixteen(elements, term), sums_of_sixteen(elements + kSumRun, term));
  const __m128 sums = add_neighbours(pairs, pairs);
  return _mm_cvtss_f32(add_neighbours(sums, sums));
}

#endif

#if !defined(ROPE_HAS_VECTORS)
template <typename Term>
ROPE_LOOP float sum_of_run(const float *values, const Term &term) {
  return sum_in_turns(values, term);
}

template <typename Term>
ROPE_LOOP float sum_of_two_runs(const float *values, const Term &term) {
  return add_rounded(sum_of_run(values, term), sum_of_run(values + kSumRun, term));
}
#endif

template <typename Term>
ROPE_LOOP double sum_of_run(const double *values, const Term &term) {
  return sum_in_turns(values, term);
}

template <typename Term>
ROPE_LOOP double sum_of_two_runs(const double *values, const Term &term) {
  return add_rounded(sum_of_run(values, term), sum_of_run(values + kSumRun, term));
}

// The sum over the terms of `count` elements. The terms are padded.
template <typename T, typename Term>
ROPE_LOOP RealOf<T> sum_of_terms(const T *values, int count, const Term &term) {
  if (count <= kSumRun) return sum_of_run(values, term);
  if (count <= 2 * kSumRun) return sum_of_two_runs(values, term);
  TreeSum<RealOf<T>> sum;
  for (int i = 0; i < count; i += kSumRun) sum.add(sum_of_run(values + i, term));
  return sum.total();
}

// Reads the numbers of a head plus the offset, unless the previous head has the same numbers; an offset of -0 changes
// none. Returns NULL if there are no numbers.
template <typename T, typename Real>
const Real *read_numbers(const ChannelNumbers &given, int64_t head, int count, Real offset, Real *numbers) {
  if (given.data == nullptr) return nullptr;
  if (head > 0 && given.head_stride == 0) return numbers;
  const int64_t first = head * given.head_stride;
  if (given.is_f32 && given.channel_stride == 1) {
    const float *from = reinterpret_cast<const float *>(given.data) + first;
    ROPE_INDEPENDENT
    for (int i = 0; i < count; ++i) numbers[i] = add_rounded(Real{from[i]}, offset);
    return numbers;
  }
  if (given.is_f32) {
    read_elements<float>(reinterpret_cast<const float *>(given.data) + first, given.channel_stride, 0, count, numbers);
  } else {
    read_elements<T>(reinterpret_cast<const T *>(given.data) + first, given.channel_stride, 0, count, numbers);
  }
  for (int i = 0; i < count; ++i) numbers[i] = add_rounded(numbers[i], offset);
  return numbers;
}

}  // namespace

}  // namespace rope
