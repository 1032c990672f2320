// SPDX-License-Identifier: Apache-2.0
// fill_bits.hpp - the bits of the tensors' random initial numbers, identical on host and device
#pragma once

#include <cstdint>

#if defined(__CUDACC__)
#define BENCH_HOST_DEVICE __host__ __device__
#else
#define BENCH_HOST_DEVICE
#endif

namespace bench {

// A float with `exponent_bits` and `mantissa_bits` below its sign: either sign, and a magnitude from 0.125 to 2,
// uniform in its logarithm.
BENCH_HOST_DEVICE inline uint32_t random_float_bits(uint64_t index, int exponent_bits, int mantissa_bits) {
  uint64_t hash = (index + 1) * 0x9e3779b97f4a7c15u;
  hash = (hash ^ (hash >> 29)) * 0xbf58476d1ce4e5b9u;
  hash ^= hash >> 32;
  const uint32_t bias = (uint32_t{1} << (exponent_bits - 1)) - 1;
  const uint32_t magnitude = static_cast<uint32_t>(hash) & ((uint32_t{4} << mantissa_bits) - 1);
  const uint32_t sign = static_cast<uint32_t>(hash >> 63) << (exponent_bits + mantissa_bits);
  return sign | (((bias - 3) << mantissa_bits) + magnitude);
}

}  // namespace bench
