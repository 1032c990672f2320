// swiglu_code_vector.cuh - eight values of a thread as codes of 8 or 4 bits
#pragma once

#include "backend/cuda/kernels/codes.cuh"
#include "backend/cuda/kernels/vector.cuh"

namespace rope {

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
  Words<4> codes = {};
#pragma unroll
  for (uint32_t i = 0; i < 8; ++i) {
    codes.word[0] |= uint32_t{round_to<Float4E2M1>(multiply_rounded(value[i], factor)).bits} << (4 * i);
  }
  store_vector(to, codes);
}

}  // namespace rope
