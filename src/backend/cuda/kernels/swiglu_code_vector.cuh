// SPDX-License-Identifier: Apache-2.0
// swiglu_code_vector.cuh - the values of a thread that become codes, and eight of them as codes of 8 or 4 bits
#pragma once

#include "backend/cuda/kernels/codes.cuh"
#include "backend/cuda/kernels/swiglu_activation.cuh"
#include "backend/cuda/kernels/swiglu_vector.cuh"
#include "backend/cuda/kernels/vector.cuh"
#include "core/problem/swiglu_problem.hpp"

namespace rope {

// Computes values by kPlain, kForm or else kOptionsFormula. Kernels with every option have the bits of those with
// only the first two formulas.
template <SwigluFormula kOptionsFormula, typename T, int V, int NumInputs, int NumOutputs>
__device__ __forceinline__ void compute_by_formula(SwigluFormula formula, const float (&value)[NumInputs][V],
                                                   const FormWithOptions<float> &form, float row_scale,
                                                   bool has_row_scale, float (&result)[NumOutputs][V]) {
  if (formula == SwigluFormula::kPlain) {
    compute_vector<true>(value, form, 1.0f, false, result);
  } else if (formula == SwigluFormula::kForm) {
    compute_vector<false>(value, form, row_scale, has_row_scale, result);
  } else {
    compute_with_options<kOptionsFormula, T, V>(value, form, row_scale, has_row_scale, result);
  }
}

// Stores the codes of eight values in order. factor_of(i) is the factor of value i.
template <typename Float8, typename Factor>
__device__ __forceinline__ void store_codes(char *to, const Factor &factor_of, const float (&value)[8]) {
  Words<8> codes = {};
#pragma unroll
  for (uint32_t i = 0; i < 8; i += 2) {
    const uint32_t pair =
        join_codes<Float8>(multiply_rounded(value[i], factor_of(i)), multiply_rounded(value[i + 1], factor_of(i + 1)));
    codes.word[i / 4] |= pair << (i % 4 * 8);
  }
  store_vector(to, codes);
}

// Stores eight codes of 4 bits in order; the first of a pair is the lower half of its byte.
__device__ __forceinline__ void store_code_pairs(char *to, float factor, const float (&value)[8]) {
  uint32_t product[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) product[i] = bits_of_result(multiply_rounded(value[i], factor));
  // Each word has the highest bytes of four products.
  const auto join_signs = [&](int first) {
    return __byte_perm(__byte_perm(product[first], product[first + 2], 0x0073),
                       __byte_perm(product[first + 4], product[first + 6], 0x0073), 0x5410);
  };
  Words<4> codes = {{(join_signs(0) >> 4 & 0x08080808u) | (join_signs(1) & 0x80808080u)}};
#pragma unroll
  for (int i = 0; i < 8; ++i) codes.word[0] += (count_e2m1(float_of(product[i])) - kE2M1Counter) << (4 * i);
  store_vector(to, codes);
}

__device__ __forceinline__ float larger_magnitude_of(float largest, const float (&value)[8]) {
#pragma unroll
  for (int i = 0; i < 8; ++i) largest = max_magnitude(largest, value[i]);
  return largest;
}

// Stores the codes of vector number `vector` of a row that begins at `row`.
__device__ __forceinline__ void store_vector_of_codes(const SwigluCodes &codes, char *row, uint32_t vector,
                                                      float factor, const float (&value)[8]) {
  const auto factor_of = [=](uint32_t) { return factor; };
  if (codes.dtype == ROPE_DTYPE_F8_E4M3) {
    store_codes<Float8E4M3>(row + uint64_t{vector} * 8, factor_of, value);
  } else if (codes.dtype == ROPE_DTYPE_F8_E5M2) {
    store_codes<Float8E5M2>(row + uint64_t{vector} * 8, factor_of, value);
  } else {
    store_code_pairs(row + uint64_t{vector} * 4, factor, value);
  }
}

}  // namespace rope
