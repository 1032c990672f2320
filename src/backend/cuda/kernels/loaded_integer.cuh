// loaded_integer.cuh - an integer of 32 or 64 bits as it comes from memory
#pragma once

#include <stdint.h>

namespace rope {

// An integer as it comes from memory. Extending it to 64 bits would wait for it, so that is done later.
struct LoadedInteger {
  uint32_t low;
  uint32_t high;  // of a 64-bit integer
};

__device__ __forceinline__ uint64_t extend(LoadedInteger integer, bool is_64_bit) {
  const uint32_t sign = static_cast<uint32_t>(static_cast<int32_t>(integer.low) >> 31);
  return static_cast<uint64_t>(is_64_bit ? integer.high : sign) << 32 | integer.low;
}

__device__ __forceinline__ LoadedInteger as_loaded(uint64_t value) {
  return {static_cast<uint32_t>(value), static_cast<uint32_t>(value >> 32)};
}

}  // namespace rope
