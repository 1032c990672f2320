// SPDX-License-Identifier: Apache-2.0
// loaded_integer.cuh - a 32-bit or 64-bit integer as loaded from memory
#pragma once

#include <stdint.h>

namespace rope {

// An integer as loaded from memory. Extending it to 64 bits would stall until the load completes, so that is done where
// the value is needed.
struct LoadedInteger {
  uint32_t low;
  uint32_t high;  // upper half of a 64-bit integer
};

__device__ __forceinline__ uint64_t extend(LoadedInteger integer, bool is_64_bit) {
  const uint32_t sign = static_cast<uint32_t>(static_cast<int32_t>(integer.low) >> 31);
  return static_cast<uint64_t>(is_64_bit ? integer.high : sign) << 32 | integer.low;
}

__device__ __forceinline__ LoadedInteger as_loaded(uint64_t value) {
  return {static_cast<uint32_t>(value), static_cast<uint32_t>(value >> 32)};
}

}  // namespace rope
