// cpu_gating.hpp - SwiGLU without a form on vectors of x86-64-v4, whose registers have room for a table of exp
//
// In an unnamed namespace, as cpu_loops.hpp says.
#pragma once

#include <string.h>

#include "backend/cpu/cpu_vectors.hpp"
#include "core/float16.hpp"

#if defined(__AVX512BW__)
#define ROPE_HAS_GATED_BLOCKS 1

namespace rope {

namespace {

// Vectors that go through each step together: a step waits four cycles for the one before, and two threads of a core
// look too few instructions ahead to fill them.
constexpr int kVectorsOfBlock = 4;
constexpr int64_t kBlock = 16 * kVectorsOfBlock;

// The bits of 2^(j/32), less j at the place from where it is to be shifted into the exponent.
alignas(64) constexpr uint32_t kPowers[32] = {
    0x3f800000, 0x3f7ecd87, 0x3f7daac3, 0x3f7c980f, 0x3f7b95c2, 0x3f7aa43a, 0x3f79c3d3, 0x3f78f4f0,
    0x3f7837f0, 0x3f778d3a, 0x3f76f532, 0x3f767043, 0x3f75fed7, 0x3f75a15b, 0x3f75583f, 0x3f7523f6,
    0x3f7504f3, 0x3f74fbaf, 0x3f7508a4, 0x3f752c4d, 0x3f75672a, 0x3f75b9be, 0x3f76248c, 0x3f76a81e,
    0x3f7744fd, 0x3f77fbb8, 0x3f78ccdf, 0x3f79b907, 0x3f7ac0c7, 0x3f7be4ba, 0x3f7d257d, 0x3f7e83b3};

// swiglu of gating.hpp, with exp reduced to |r| <= ln(2)/64, where degree 2 has the relative error 5.3e-8 (minimax);
// less than 5 ulp off.
ROPE_VECTOR void gate_vectors(const Vector<16> *gate, const Vector<16> *up, Vector<16> *out) {
  using Floats = Vector<16>::Floats;
  const auto broadcast = [](float value) __attribute__((always_inline)) {
    return Floats{} + value;
  };
  const __m512i powers[] = {load_lanes<__m512i>(kPowers), load_lanes<__m512i>(kPowers + 16)};
  // 1.5 * 2^23 leaves 32 n + j in the low bits, and 2^-25 goes into n.
  const Floats shift = broadcast(12582912.0f - 25 * 32), tiny = broadcast(0x1p-25f);
  Floats x[kVectorsOfBlock], shifted[kVectorsOfBlock], steps[kVectorsOfBlock], exp_of_r[kVectorsOfBlock];
  __m512i scale[kVectorsOfBlock];
  // Of NaN, the bound.
  for (int i = 0; i < kVectorsOfBlock; ++i) x[i] = _mm512_min_ps(gate[i].values, broadcast(64.0f));
  for (int i = 0; i < kVectorsOfBlock; ++i) x[i] = _mm512_max_ps(x[i], broadcast(-104.0f));
  for (int i = 0; i < kVectorsOfBlock; ++i) shifted[i] = _mm512_fmadd_ps(x[i], broadcast(-46.1662413f), shift);
  for (int i = 0; i < kVectorsOfBlock; ++i) steps[i] = shifted[i] - shift;
  for (int i = 0; i < kVectorsOfBlock; ++i) x[i] = _mm512_fmadd_ps(steps[i], broadcast(0.693359375f / 32), x[i]);
  for (int i = 0; i < kVectorsOfBlock; ++i) x[i] = _mm512_fmadd_ps(steps[i], broadcast(-2.12194440e-4f / 32), x[i]);
  for (int i = 0; i < kVectorsOfBlock; ++i) {
    const __m512i bits = _mm512_castps_si512(shifted[i]);
    scale[i] = _mm512_add_epi32(_mm512_permutex2var_epi32(powers[0], bits, powers[1]), _mm512_slli_epi32(bits, 18));
  }
  for (int i = 0; i < kVectorsOfBlock; ++i) {
    exp_of_r[i] = _mm512_fmadd_ps(x[i], broadcast(0.500011059f), broadcast(-1.00001475f));
  }
  for (int i = 0; i < kVectorsOfBlock; ++i) exp_of_r[i] = _mm512_fmadd_ps(x[i], exp_of_r[i], broadcast(1.0f));
  for (int i = 0; i < kVectorsOfBlock; ++i) {
    const Floats sigmoid = tiny / _mm512_fmadd_ps(exp_of_r[i], _mm512_castsi512_ps(scale[i]), tiny);
    out[i].values = (sigmoid * up[i].values) * gate[i].values;
  }
}

template <typename T>
ROPE_VECTOR void read_block(const T *from, Vector<16> *vectors) {
  for (int i = 0; i < kVectorsOfBlock; ++i) read_vector(from + 16 * i, &vectors[i]);
}

ROPE_VECTOR void read_block(const BFloat16 *from, Vector<16> *vectors) {
  for (int i = 0; i < kVectorsOfBlock; i += 2) read_interleaved(from + 16 * i, &vectors[i], &vectors[i + 1]);
}

template <typename T>
ROPE_VECTOR void write_block(const Vector<16> *vectors, T *to) {
  for (int i = 0; i < kVectorsOfBlock; ++i) write_vector(vectors[i], to + 16 * i);
}

ROPE_VECTOR void write_block(const Vector<16> *vectors, BFloat16 *to) {
  for (int i = 0; i < kVectorsOfBlock; i += 2) write_interleaved(vectors[i], vectors[i + 1], to + 16 * i);
}

template <typename T>
ROPE_VECTOR void gate_block(const T *gate, const T *up, T *out) {
  Vector<16> gates[kVectorsOfBlock], ups[kVectorsOfBlock], outs[kVectorsOfBlock];
  read_block(gate, gates);
  read_block(up, ups);
  gate_vectors(gates, ups, outs);
  write_block(outs, out);
}

// Contiguous elements; the last go through a whole block too, so that it does not show where a run ends.
template <typename T>
void gate_blocks(const T *gate, const T *up, T *out, int64_t count) {
  int64_t i = 0;
  for (; i + kBlock <= count; i += kBlock) gate_block(gate + i, up + i, out + i);
  if (i == count) return;
  T gates[kBlock] = {}, ups[kBlock] = {}, outs[kBlock];
  const size_t size = static_cast<size_t>(count - i) * sizeof(T);
  memcpy(gates, gate + i, size);
  memcpy(ups, up + i, size);
  gate_block(gates, ups, outs);
  memcpy(out + i, outs, size);
}

}  // namespace

}  // namespace rope

#endif
