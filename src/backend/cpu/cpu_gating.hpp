// SPDX-License-Identifier: Apache-2.0
// cpu_gating.hpp - SwiGLU, and GeGLU of 16-bit data, on vectors of x86-64-v4, whose registers can hold a table of exp
//
// Only for plain forms (alpha 1, no limit and so on). GeGLU is that of gating_options.hpp for 16-bit data.
//
// The code is in an unnamed namespace, for the reason given in cpu_loops.hpp.
#pragma once

#include <string.h>

#include "backend/cpu/cpu_vectors.hpp"
#include "core/math/float16.hpp"
#include "core/math/gating_options.hpp"

#if defined(__AVX512BW__)
#define ROPE_HAS_GATED_BLOCKS 1

namespace rope {

namespace {

// Vectors that pass through each step together. A step depends on the previous one, whose latency is four cycles, and
// the core's two threads do not look far enough ahead to fill the gap with other instructions.
constexpr int kVectorsOfBlock = 4;
constexpr int64_t kBlock = int64_t{16} * kVectorsOfBlock;

// The bits of 2^(j/32), rounded up, minus j at the position from which j is later shifted into the exponent.
alignas(64) constexpr uint32_t kPowers[32] = {
    0x3f800000, 0x3f7ecd87, 0x3f7daac4, 0x3f7c980f, 0x3f7b95c2, 0x3f7aa43a, 0x3f79c3d4, 0x3f78f4f0,
    0x3f7837f1, 0x3f778d3a, 0x3f76f533, 0x3f767044, 0x3f75fed7, 0x3f75a15b, 0x3f75583f, 0x3f7523f6,
    0x3f7504f4, 0x3f74fbb0, 0x3f7508a4, 0x3f752c4d, 0x3f75672b, 0x3f75b9be, 0x3f76248d, 0x3f76a81e,
    0x3f7744fd, 0x3f77fbb8, 0x3f78ccdf, 0x3f79b907, 0x3f7ac0c7, 0x3f7be4ba, 0x3f7d257e, 0x3f7e83b3};

using Floats16 = Vector<16>::Floats;

ROPE_VECTOR Floats16 broadcast(float value) {
  return Floats16{} + value;
}

// 1 / x within 0.50004 ulp, or within 1.8e-6 if IsBrief, where x and 1 / x are normal; identical on every processor.
// Subtracting the bits of x from a constant gives a first value that is off by at most 5.1 %. The first Newton step
// uses 2.00131 instead of 2, which halves the remaining error to 1.3e-3; the second step leaves 1.8e-6. An Intel Xeon
// with 16 threads takes 1.10 ms for 43 MiB of BF16 output. With the processor's own estimate and one Newton step it
// takes 1.02 ms, but vendors' estimates have different bits; with a division 1.14 ms, whatever is prefetched.
template <bool IsBrief>
ROPE_VECTOR void invert_vectors(const Floats16 *x, Floats16 *inverse) {
  const __m512i magic = _mm512_set1_epi32(0x7ef31000);
  const Floats16 one = broadcast(1.0f), raised_two = broadcast(2.00131f);
  Floats16 rest[kVectorsOfBlock];
  for (int i = 0; i < kVectorsOfBlock; ++i) {
    inverse[i] = _mm512_castsi512_ps(_mm512_sub_epi32(magic, _mm512_castps_si512(x[i])));
  }
  for (int i = 0; i < kVectorsOfBlock; ++i) rest[i] = _mm512_fnmadd_ps(x[i], inverse[i], raised_two);
  for (int i = 0; i < kVectorsOfBlock; ++i) inverse[i] *= rest[i];
  for (int step = 0; step < (IsBrief ? 1 : 2); ++step) {
    for (int i = 0; i < kVectorsOfBlock; ++i) rest[i] = _mm512_fnmadd_ps(x[i], inverse[i], one);
    for (int i = 0; i < kVectorsOfBlock; ++i) inverse[i] = _mm512_fmadd_ps(rest[i], inverse[i], inverse[i]);
  }
}

// exp(-x) * 2^kPower = factor * scale, for -x / ln(2) + kPower from -126 to 127. The argument is reduced to |r| <=
// ln(2)/64, where a minimax polynomial of degree 2 has a relative error of 5.3e-8. ln(2) as a float is exact to 2.7e-9,
// so one product reduces the argument.
struct ExpVectors {
  Floats16 factor[kVectorsOfBlock];
  Floats16 scale[kVectorsOfBlock];
};

template <int kPower>
ROPE_VECTOR ExpVectors exp_of_negative_vectors(const Floats16 *x) {
  const __m512i powers[] = {load_lanes<__m512i>(kPowers), load_lanes<__m512i>(kPowers + 16)};
  // Adding 1.5 * 2^23 leaves 32 n + j in the low bits; kPower is added to n.
  const Floats16 shift = broadcast(12582912.0f + 32 * kPower);
  Floats16 shifted[kVectorsOfBlock], rest[kVectorsOfBlock];
  ExpVectors e;
  for (int i = 0; i < kVectorsOfBlock; ++i) shifted[i] = _mm512_fmadd_ps(x[i], broadcast(-46.1662413f), shift);
  for (int i = 0; i < kVectorsOfBlock; ++i) rest[i] = shifted[i] - shift;
  for (int i = 0; i < kVectorsOfBlock; ++i) rest[i] = _mm512_fmadd_ps(rest[i], broadcast(0.693147182f / 32), x[i]);
  for (int i = 0; i < kVectorsOfBlock; ++i) {
    const __m512i bits = _mm512_castps_si512(shifted[i]);
    e.scale[i] = _mm512_castsi512_ps(
        _mm512_add_epi32(_mm512_permutex2var_epi32(powers[0], bits, powers[1]), _mm512_slli_epi32(bits, 18)));
  }
  for (int i = 0; i < kVectorsOfBlock; ++i) {
    e.factor[i] = _mm512_fmadd_ps(rest[i], broadcast(0.500011059f), broadcast(-1.00001475f));
  }
  for (int i = 0; i < kVectorsOfBlock; ++i) e.factor[i] = _mm512_fmadd_ps(rest[i], e.factor[i], broadcast(1.0f));
  return e;
}

ROPE_VECTOR Vector<16> multiply_add(Vector<16> a, float b, float c) {
  return {_mm512_fmadd_ps(a.values, broadcast(b), broadcast(c))};
}

ROPE_VECTOR Vector<16> multiply_add(Vector<16> a, Vector<16> b, float c) {
  return {_mm512_fmadd_ps(a.values, b.values, broadcast(c))};
}

// NaN becomes the upper bound.
ROPE_VECTOR Floats16 bounded(Floats16 x, float low, float high) {
  return _mm512_max_ps(_mm512_min_ps(x, broadcast(high)), broadcast(low));
}

// sigmoid_value_of for arguments clamped to -104 to 64.
template <bool IsBrief>
ROPE_VECTOR void sigmoid_of_vectors(const Floats16 *argument, Floats16 *sigmoid) {
  const Floats16 tiny = broadcast(0x1p-25f);
  const ExpVectors e = exp_of_negative_vectors<-25>(argument);
  Floats16 sum[kVectorsOfBlock];
  for (int i = 0; i < kVectorsOfBlock; ++i) sum[i] = _mm512_fmadd_ps(e.factor[i], e.scale[i], tiny);
  invert_vectors<IsBrief>(sum, sigmoid);
  for (int i = 0; i < kVectorsOfBlock; ++i) sigmoid[i] *= tiny;
}

// The factor by which an activation multiplies the gate. The error for SwiGLU is below 5.6 ulp above -20, and below 7.5
// ulp above -87; with powers rounded to nearest instead of up it would be 7.7 ulp.
template <Activation kActivation>
ROPE_VECTOR void weigh_vectors(const Vector<16> *gate, Floats16 *weight) {
  Floats16 argument[kVectorsOfBlock];
  for (int i = 0; i < kVectorsOfBlock; ++i) argument[i] = bounded(gate[i].values, -104.0f, 64.0f);
  sigmoid_of_vectors<false>(argument, weight);
}

template <>
ROPE_VECTOR void weigh_vectors<Activation::kGegluTanh>(const Vector<16> *gate, Floats16 *weight) {
  Floats16 x[kVectorsOfBlock], argument[kVectorsOfBlock];
  for (int i = 0; i < kVectorsOfBlock; ++i) x[i] = bounded(gate[i].values, kLowestTanhGate, kHighestTanhGate);
  for (int i = 0; i < kVectorsOfBlock; ++i) {
    argument[i] = x[i] * _mm512_fmadd_ps(x[i] * x[i], broadcast(kBriefTanhB), broadcast(kBriefTanhA));
  }
  sigmoid_of_vectors<true>(argument, weight);
}

// weight_of_erf on vectors.
template <>
ROPE_VECTOR void weigh_vectors<Activation::kGegluErf>(const Vector<16> *gate, Floats16 *weight) {
  Floats16 t[kVectorsOfBlock], half_square[kVectorsOfBlock];
  for (int i = 0; i < kVectorsOfBlock; ++i) {
    t[i] = _mm512_min_ps(_mm512_abs_ps(gate[i].values), broadcast(kLargestErfGate));
  }
  for (int i = 0; i < kVectorsOfBlock; ++i) half_square[i] = t[i] * t[i] * broadcast(0.5f);
  const ExpVectors e = exp_of_negative_vectors<63>(half_square);
  Floats16 dividend[kVectorsOfBlock], divisor[kVectorsOfBlock], inverse[kVectorsOfBlock];
  for (int i = 0; i < kVectorsOfBlock; ++i) {
    const Quotient<Vector<16>> erfc = scaled_erfc<true>(Vector<16>{t[i]}, 0x1p-63f);
    dividend[i] = erfc.dividend.values;
    divisor[i] = erfc.divisor.values;
  }
  invert_vectors<true>(divisor, inverse);
  for (int i = 0; i < kVectorsOfBlock; ++i) {
    const Floats16 below = (e.factor[i] * e.scale[i]) * (dividend[i] * inverse[i]);
    const __mmask16 is_negative = _mm512_cmp_ps_mask(gate[i].values, Floats16{}, _CMP_LT_OQ);
    weight[i] = _mm512_mask_mov_ps(broadcast(1.0f) - below, is_negative, below);
  }
}

template <Activation kActivation>
ROPE_VECTOR void gate_vectors(const Vector<16> *gate, const Vector<16> *up, Vector<16> *out) {
  Floats16 weight[kVectorsOfBlock];
  weigh_vectors<kActivation>(gate, weight);
  for (int i = 0; i < kVectorsOfBlock; ++i) out[i].values = (weight[i] * up[i].values) * gate[i].values;
}

template <typename T>
ROPE_VECTOR void read_block(const T *from, Vector<16> *vectors) {
  for (int i = 0; i < kVectorsOfBlock; ++i) read_vector(from + 16 * i, &vectors[i]);
}

ROPE_VECTOR void read_block(const BFloat16 *from, Vector<16> *vectors) {
  for (int64_t i = 0; i < kVectorsOfBlock; i += 2) read_interleaved(from + 16 * i, &vectors[i], &vectors[i + 1]);
}

// Reads the next 64 bytes of a block.
template <typename T>
ROPE_VECTOR __m512i line_of(const Vector<16> *vectors);

template <>
ROPE_VECTOR __m512i line_of<float>(const Vector<16> *vectors) {
  return _mm512_castps_si512(vectors[0].values);
}

template <>
ROPE_VECTOR __m512i line_of<Float16>(const Vector<16> *vectors) {
  const __m256i first = reinterpret_cast<__m256i>(to_float16(vectors[0]));
  return _mm512_inserti64x4(_mm512_castsi256_si512(first), reinterpret_cast<__m256i>(to_float16(vectors[1])), 1);
}

template <>
ROPE_VECTOR __m512i line_of<BFloat16>(const Vector<16> *vectors) {
  return reinterpret_cast<__m512i>(words_of(vectors[0], vectors[1]));
}

// With streaming, whole cache lines are written past the caches and are not read first.
template <typename T>
ROPE_VECTOR void write_block(const Vector<16> *vectors, T *to, bool is_streamed) {
  constexpr int64_t kElements = sizeof(__m512i) / sizeof(T);
  constexpr int64_t kLines = kBlock / kElements;
  __m512i lines[static_cast<size_t>(kLines)];
  for (int64_t i = 0; i < kLines; ++i) lines[i] = line_of<T>(vectors + i * kVectorsOfBlock / kLines);
  if (is_streamed) {
    for (int64_t i = 0; i < kLines; ++i) _mm512_stream_si512(reinterpret_cast<__m512i *>(to + i * kElements), lines[i]);
  } else {
    for (int64_t i = 0; i < kLines; ++i) memcpy(to + i * kElements, &lines[i], sizeof lines[i]);
  }
}

// How far ahead inputs are prefetched. The address may lie behind the tensor: a prefetch never faults. The hardware
// prefetcher stops at the end of a page. On the Xeon named above, in another run and with its own estimate: 1 KiB ahead
// 0.94 ms, 2 KiB 0.95, 4 KiB 0.90, 8 KiB 0.96, no prefetch 1.05. Not measured: rows shorter than this distance. Inputs
// of outputs that are not streamed are not prefetched.
constexpr uintptr_t kBytesAhead = 4096;

template <typename T>
ROPE_VECTOR void prefetch_block(const T *from) {
  for (uintptr_t offset = kBytesAhead; offset < kBytesAhead + kBlock * sizeof(T); offset += sizeof(__m512i)) {
    _mm_prefetch(reinterpret_cast<const char *>(reinterpret_cast<uintptr_t>(from) + offset), _MM_HINT_T0);
  }
}

template <Activation kActivation, typename T>
ROPE_VECTOR void gate_block(const T *gate, const T *up, T *out, bool is_streamed) {
  Vector<16> gates[kVectorsOfBlock], ups[kVectorsOfBlock], outs[kVectorsOfBlock];
  read_block(gate, gates);
  read_block(up, ups);
  gate_vectors<kActivation>(gates, ups, outs);
  write_block(outs, out, is_streamed);
}

// A run's last elements also pass through a whole block, so that results do not depend on where a run ends.
template <Activation kActivation, typename T>
__attribute__((noinline)) void gate_part_of_block(const T *gate, const T *up, T *out, int64_t count) {
  if (count == 0) return;
  T gates[kBlock] = {}, ups[kBlock] = {}, outs[kBlock];
  const size_t size = static_cast<size_t>(count) * sizeof(T);
  memcpy(gates, gate, size);
  memcpy(ups, up, size);
  gate_block<kActivation>(gates, ups, outs, false);
  memcpy(out, outs, size);
}

// The shortest run that is streamed: the part before the first whole cache line is then small. Chosen, not measured.
constexpr int64_t kMinStreamed = 16 * kBlock;

// Runs a row of contiguous elements.
template <Activation kActivation, typename T>
void gate_blocks(const T *gate, const T *up, T *out, int64_t count, bool is_streamed) {
  int64_t i = 0;
  if (count < kMinStreamed) is_streamed = false;
  if (is_streamed) {
    i = static_cast<int64_t>(-reinterpret_cast<uintptr_t>(out) % sizeof(__m512i) / sizeof(T));
    gate_part_of_block<kActivation>(gate, up, out, i);
  }
  for (; i + kBlock <= count; i += kBlock) {
    if (is_streamed) {
      prefetch_block(gate + i);
      prefetch_block(up + i);
    }
    gate_block<kActivation>(gate + i, up + i, out + i, is_streamed);
  }
  gate_part_of_block<kActivation>(gate + i, up + i, out + i, count - i);
}

}  // namespace

}  // namespace rope

#endif
