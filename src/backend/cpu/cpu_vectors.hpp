// SPDX-License-Identifier: Apache-2.0
// cpu_vectors.hpp - vectors of floats that are read from and written to 16-bit elements, where compilers' code for
// plain loops does not use the instructions of x86-64-v3 and v4 well
//
// Conversions give the bits of float16.hpp, except for the payloads of NaNs. The code is in an unnamed namespace, for
// the reason given in cpu_loops.hpp.
#pragma once

#include <string.h>

#include <type_traits>

#include "core/math/float16.hpp"
#include "core/math/float8.hpp"

#if defined(__AVX2__) && defined(__F16C__)
#define ROPE_HAS_VECTORS 1
#include <immintrin.h>

namespace rope {

namespace {

#define ROPE_VECTOR inline __attribute__((always_inline))

// The functions of rotation.hpp work on this type lane by lane.
template <int kLanes>
struct Vector {
  typedef float Floats __attribute__((vector_size(4 * kLanes)));
  typedef uint32_t Words __attribute__((vector_size(4 * kLanes)));
  typedef int32_t Integers __attribute__((vector_size(4 * kLanes)));
  typedef uint16_t Halves __attribute__((vector_size(2 * kLanes)));

  Floats values;

  static ROPE_VECTOR Vector load(const float *from) {
    Vector loaded;
    memcpy(&loaded.values, from, sizeof loaded.values);
    return loaded;
  }
  ROPE_VECTOR void store(float *to) const { memcpy(to, &values, sizeof values); }

  friend ROPE_VECTOR Vector operator-(Vector a) { return {-a.values}; }
  friend ROPE_VECTOR Vector add_rounded(Vector a, Vector b) { return {a.values + b.values}; }
  friend ROPE_VECTOR Vector multiply_rounded(Vector a, Vector b) { return {a.values * b.values}; }
};

template <int kLanes>
using Words = typename Vector<kLanes>::Words;
template <int kLanes>
using Halves = typename Vector<kLanes>::Halves;

template <typename Lanes>
ROPE_VECTOR Lanes load_lanes(const void *from) {
  Lanes loaded;
  memcpy(&loaded, from, sizeof loaded);
  return loaded;
}

ROPE_VECTOR Words<8> widen(Halves<8> halves) {
  return reinterpret_cast<Words<8>>(_mm256_cvtepu16_epi32(reinterpret_cast<__m128i>(halves)));
}

// The lower halves of words whose upper halves are 0.
ROPE_VECTOR Halves<8> narrow(Words<8> words) {
  const __m256i bits = reinterpret_cast<__m256i>(words);
  return reinterpret_cast<Halves<8>>(_mm_packus_epi32(_mm256_castsi256_si128(bits), _mm256_extracti128_si256(bits, 1)));
}

ROPE_VECTOR Vector<8> from_float16(Halves<8> halves) {
  return {_mm256_cvtph_ps(reinterpret_cast<__m128i>(halves))};
}

ROPE_VECTOR Halves<8> to_float16(Vector<8> vector) {
  return reinterpret_cast<Halves<8>>(_mm256_cvtps_ph(vector.values, _MM_FROUND_TO_NEAREST_INT));
}

#if defined(__AVX512BW__)
ROPE_VECTOR Words<16> widen(Halves<16> halves) {
  return reinterpret_cast<Words<16>>(_mm512_cvtepu16_epi32(reinterpret_cast<__m256i>(halves)));
}

ROPE_VECTOR Halves<16> narrow(Words<16> words) {
  return reinterpret_cast<Halves<16>>(_mm512_cvtepi32_epi16(reinterpret_cast<__m512i>(words)));
}

ROPE_VECTOR Vector<16> from_float16(Halves<16> halves) {
  return {_mm512_cvtph_ps(reinterpret_cast<__m256i>(halves))};
}

ROPE_VECTOR Halves<16> to_float16(Vector<16> vector) {
  return reinterpret_cast<Halves<16>>(_mm512_cvtps_ph(vector.values, _MM_FROUND_TO_NEAREST_INT));
}
#endif

// A BFloat16 in the upper half of each word, with zeros below, is a float already.
template <int kLanes>
ROPE_VECTOR Vector<kLanes> from_upper_halves(Words<kLanes> words) {
  return {reinterpret_cast<typename Vector<kLanes>::Floats>(words)};
}

// Rounds to BFloat16 in the upper halves, like round_to_upper_half and with its condition on NaNs. The lower halves are
// arbitrary.
template <int kLanes>
ROPE_VECTOR Words<kLanes> round_to_upper_halves(Vector<kLanes> vector) {
  const Words<kLanes> bits = reinterpret_cast<Words<kLanes>>(vector.values);
  return bits + 0x7fffu + ((bits >> 16) & 1u);
}

#if defined(__AVX512BW__)
// This takes one instruction fewer than compilers' code for a plain expression.
template <>
ROPE_VECTOR Words<16> round_to_upper_halves(Vector<16> vector) {
  const __m512i bits = _mm512_castps_si512(vector.values), rounded = _mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff));
  const __mmask16 is_odd = _mm512_test_epi32_mask(bits, _mm512_set1_epi32(0x10000));
  return reinterpret_cast<Words<16>>(_mm512_mask_add_epi32(rounded, is_odd, bits, _mm512_set1_epi32(0x8000)));
}
#endif

// round_words for any NaN, like round_to.
template <int kLanes>
ROPE_VECTOR Words<kLanes> to_upper_halves(Vector<kLanes> vector) {
  const Words<kLanes> bits = reinterpret_cast<Words<kLanes>>(vector.values);
  return vector.values == vector.values ? round_to_upper_halves(vector) : bits | 0x400000u;
}

// ---- Elements next to each other ----

template <int kLanes>
ROPE_VECTOR void read_vector(const float *from, Vector<kLanes> *vector) {
  *vector = Vector<kLanes>::load(from);
}

template <int kLanes>
ROPE_VECTOR void read_vector(const BFloat16 *from, Vector<kLanes> *vector) {
  *vector = from_upper_halves<kLanes>(widen(load_lanes<Halves<kLanes>>(from)) << 16);
}

template <int kLanes>
ROPE_VECTOR void read_vector(const Float16 *from, Vector<kLanes> *vector) {
  *vector = from_float16(load_lanes<Halves<kLanes>>(from));
}

// The bits of an element type.
template <typename T, int kLanes>
ROPE_VECTOR auto elements_of(Vector<kLanes> vector) {
  if constexpr (std::is_same_v<T, BFloat16>) {
    return narrow(to_upper_halves(vector) >> 16);
  } else if constexpr (std::is_same_v<T, Float16>) {
    return to_float16(vector);
  } else {
    return vector.values;
  }
}

template <typename T, int kLanes>
ROPE_VECTOR void write_vector(Vector<kLanes> vector, T *to) {
  const auto elements = elements_of<T>(vector);
  memcpy(to, &elements, sizeof elements);
}

// ---- Interleaved elements: the lower and the upper halves of words ----

template <int kLanes>
ROPE_VECTOR void read_interleaved(const BFloat16 *from, Vector<kLanes> *first, Vector<kLanes> *second) {
  const Words<kLanes> words = load_lanes<Words<kLanes>>(from);
  *first = from_upper_halves<kLanes>(words << 16);
  *second = from_upper_halves<kLanes>(words & 0xffff0000u);
}

template <int kLanes>
ROPE_VECTOR void read_interleaved(const Float16 *from, Vector<kLanes> *first, Vector<kLanes> *second) {
  const Words<kLanes> words = load_lanes<Words<kLanes>>(from);
  *first = from_float16(narrow(words & 0xffffu));
  *second = from_float16(narrow(words >> 16));
}

ROPE_VECTOR void read_interleaved(const float *from, Vector<8> *first, Vector<8> *second) {
  const __m256 lower = _mm256_loadu_ps(from), upper = _mm256_loadu_ps(from + 8);
  const auto in_order = [](__m256 values) __attribute__((always_inline)) {
    return _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(values), 0xd8));
  };
  first->values = in_order(_mm256_shuffle_ps(lower, upper, 0x88));
  second->values = in_order(_mm256_shuffle_ps(lower, upper, 0xdd));
}

#if defined(__AVX512BW__)
ROPE_VECTOR void read_interleaved(const float *from, Vector<16> *first, Vector<16> *second) {
  const __m512 lower = _mm512_loadu_ps(from), upper = _mm512_loadu_ps(from + 16);
  const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  first->values = _mm512_permutex2var_ps(lower, even, upper);
  second->values = _mm512_permutex2var_ps(lower, _mm512_add_epi32(even, _mm512_set1_epi32(1)), upper);
}
#endif

// NaNs must meet the condition of round_to_upper_half.
template <int kLanes>
ROPE_VECTOR Words<kLanes> words_of(Vector<kLanes> first, Vector<kLanes> second) {
  return round_to_upper_halves(first) >> 16 | (round_to_upper_halves(second) & 0xffff0000u);
}

#if defined(__AVX512BW__)
// Takes 5 instructions instead of 8: the halves of words are exchanged first, and then 32 elements are rounded at once.
// An element is rounded up if its lower half is above 0x8000, or equal to it and the result would be odd.
template <>
ROPE_VECTOR Words<16> words_of(Vector<16> first, Vector<16> second) {
  const __m512i swap_halves = _mm512_set4_epi32(0x0d0c0f0e, 0x09080b0a, 0x05040706, 0x01000302);
  const __m512i low = _mm512_castps_si512(first.values), high = _mm512_castps_si512(second.values);
  const __m512i upper = _mm512_mask_shuffle_epi8(high, 0x3333333333333333u, low, swap_halves);
  const __m512i lower = _mm512_mask_shuffle_epi8(low, 0xccccccccccccccccu, high, swap_halves);
  // 0x8000 | (~upper & 1)
  const __m512i bound = _mm512_ternarylogic_epi32(upper, _mm512_set1_epi16(1), _mm512_set1_epi16(-0x8000), 0xae);
  const __mmask32 is_up = _mm512_cmpge_epu16_mask(lower, bound);
  return reinterpret_cast<Words<16>>(_mm512_mask_sub_epi16(upper, is_up, upper, _mm512_set1_epi16(-1)));
}
#endif

template <int kLanes>
ROPE_VECTOR void write_interleaved(Vector<kLanes> first, Vector<kLanes> second, BFloat16 *to) {
  const Words<kLanes> words = words_of(first, second);
  memcpy(to, &words, sizeof words);
}

template <int kLanes>
ROPE_VECTOR void write_interleaved(Vector<kLanes> first, Vector<kLanes> second, Float16 *to) {
  const Words<kLanes> words = widen(to_float16(first)) | widen(to_float16(second)) << 16;
  memcpy(to, &words, sizeof words);
}

ROPE_VECTOR void write_interleaved(Vector<8> first, Vector<8> second, float *to) {
  const __m256 lower = _mm256_unpacklo_ps(first.values, second.values),
               upper = _mm256_unpackhi_ps(first.values, second.values);
  _mm256_storeu_ps(to, _mm256_permute2f128_ps(lower, upper, 0x20));
  _mm256_storeu_ps(to + 8, _mm256_permute2f128_ps(lower, upper, 0x31));
}

#if defined(__AVX512BW__)
ROPE_VECTOR void write_interleaved(Vector<16> first, Vector<16> second, float *to) {
  const __m512i lower = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  const __m512i upper = _mm512_add_epi32(lower, _mm512_set1_epi32(8));
  _mm512_storeu_ps(to, _mm512_permutex2var_ps(first.values, lower, second.values));
  _mm512_storeu_ps(to + 16, _mm512_permutex2var_ps(first.values, upper, second.values));
}
#endif

// ---- 8-bit elements ----

// Writes the lowest byte of each word.
ROPE_VECTOR void write_bytes(Words<8> words, void *to) {
  const __m256i lowest = _mm256_set1_epi32(0x0c080400);
  const __m256i bytes = _mm256_shuffle_epi8(reinterpret_cast<__m256i>(words), lowest);
  _mm_storel_epi64(static_cast<__m128i *>(to),
                   _mm_unpacklo_epi32(_mm256_castsi256_si128(bytes), _mm256_extracti128_si256(bytes, 1)));
}

#if defined(__AVX512BW__)
ROPE_VECTOR void write_bytes(Words<16> words, void *to) {
  _mm_storeu_si128(static_cast<__m128i *>(to), _mm512_cvtepi32_epi8(reinterpret_cast<__m512i>(words)));
}
#endif

// Whether one of four vectors has a NaN.
ROPE_VECTOR bool has_nan(const Vector<8> (&four)[4]) {
  const auto have = [](Vector<8> a, Vector<8> b) __attribute__((always_inline)) {
    return _mm256_cmp_ps(a.values, b.values, _CMP_UNORD_Q);
  };
  return _mm256_movemask_ps(_mm256_or_ps(have(four[0], four[1]), have(four[2], four[3]))) != 0;
}

// Writes the lowest bytes of four vectors of words, with the sign bits of four other vectors as their highest bits,
// which are 0 before.
ROPE_VECTOR void write_signed_bytes(const Words<8> (&words)[4], const Vector<8> (&signs)[4], void *to) {
  const auto lowest = [&](int i) __attribute__((always_inline)) {
    return reinterpret_cast<__m256i>(words[i] & 0xffu);
  };
  const auto sign = [&](int i) __attribute__((always_inline)) {
    return _mm256_castps_si256(signs[i].values);
  };
  const __m256i bytes =
      _mm256_packus_epi16(_mm256_packus_epi32(lowest(0), lowest(1)), _mm256_packus_epi32(lowest(2), lowest(3)));
  // Saturation keeps the sign.
  const __m256i packed = _mm256_packs_epi16(_mm256_packs_epi32(sign(0), sign(1)), _mm256_packs_epi32(sign(2), sign(3)));
  const __m256i result = _mm256_or_si256(bytes, _mm256_and_si256(packed, _mm256_set1_epi8(-0x80)));
  // The pack instructions have mixed the 128-bit lanes of the vectors.
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  _mm256_storeu_si256(static_cast<__m256i *>(to), _mm256_permutevar8x32_epi32(result, order));
}

#if defined(__AVX512BW__)
ROPE_VECTOR bool has_nan(const Vector<16> (&four)[4]) {
  const auto have = [](Vector<16> a, Vector<16> b) __attribute__((always_inline)) {
    return _mm512_cmp_ps_mask(a.values, b.values, _CMP_UNORD_Q);
  };
  return (have(four[0], four[1]) | have(four[2], four[3])) != 0;
}

ROPE_VECTOR void write_signed_bytes(const Words<16> (&words)[4], const Vector<16> (&signs)[4], void *to) {
  const auto lowest = [&](int i) __attribute__((always_inline)) {
    return reinterpret_cast<__m512i>(words[i] & 0xffu);
  };
  const auto sign = [&](int i) __attribute__((always_inline)) {
    return _mm512_castps_si512(signs[i].values);
  };
  const __m512i bytes =
      _mm512_packus_epi16(_mm512_packus_epi32(lowest(0), lowest(1)), _mm512_packus_epi32(lowest(2), lowest(3)));
  const __m512i packed = _mm512_packs_epi16(_mm512_packs_epi32(sign(0), sign(1)), _mm512_packs_epi32(sign(2), sign(3)));
  const __m512i result = _mm512_or_si512(bytes, _mm512_and_si512(packed, _mm512_set1_epi8(-0x80)));
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  _mm512_storeu_si512(to, _mm512_permutexvar_epi32(order, result));
}
#endif

// The codes of magnitudes, in the lowest byte of each word; the other bytes are arbitrary. Not for NaNs. This is
// round_to_float8_by_bits with one method for normal and subnormal numbers: it adds a counter whose last place is worth
// the spacing of codes at the number's exponent, so that the lowest byte of the sum counts in units of that spacing.
// The counter starts at a value that cancels the exponent of subnormal numbers, which is added afterwards.
template <typename Float8, int kLanes>
ROPE_VECTOR Words<kLanes> magnitude_codes(Vector<kLanes> vector) {
  using Floats = typename Vector<kLanes>::Floats;
  using Integers = typename Vector<kLanes>::Integers;
  constexpr int kDropped = 23 - Float8::kMantissaBits, kMinExponent = (128 - Float8::kExponentBias) << 23;
  constexpr int kCounter = (kDropped << 23) + (-(kMinExponent >> kDropped) & 0xff);
  const Integers max = Integers{} + static_cast<int32_t>(bits_of(Float8::kMax)),
                 min_exponent = Integers{} + kMinExponent;
  Integers magnitude = reinterpret_cast<Integers>(vector.values) & 0x7fffffff;
  magnitude = magnitude < max ? magnitude : max;
  Integers exponent = magnitude & 0x7f800000;
  exponent = exponent > min_exponent ? exponent : min_exponent;
  const Floats sum = reinterpret_cast<Floats>(magnitude) + reinterpret_cast<Floats>(exponent + kCounter);
  return reinterpret_cast<Words<kLanes>>(reinterpret_cast<Integers>(sum) + (exponent >> kDropped));
}

template <typename Float8, int kLanes>
ROPE_VECTOR void encode_vector(Vector<kLanes> vector, Float8 *to) {
  const Words<kLanes> sign = reinterpret_cast<Words<kLanes>>(vector.values) >> 24 & 0x80u,
                      nan = Words<kLanes>{} + kFloat8NaN;
  write_bytes(vector.values == vector.values ? magnitude_codes<Float8>(vector) | sign : nan, to);
}

// encode_vector for four vectors, with a third fewer instructions per vector.
template <typename Float8, int kLanes>
ROPE_VECTOR void encode_four(const Vector<kLanes> (&four)[4], Float8 *to) {
  if (__builtin_expect(has_nan(four), 0)) {
    for (int i = 0; i < 4; ++i) encode_vector(four[i], to + i * kLanes);
    return;
  }
  const Words<kLanes> codes[4] = {magnitude_codes<Float8>(four[0]), magnitude_codes<Float8>(four[1]),
                                  magnitude_codes<Float8>(four[2]), magnitude_codes<Float8>(four[3])};
  write_signed_bytes(codes, four, to);
}

}  // namespace

}  // namespace rope

#endif
