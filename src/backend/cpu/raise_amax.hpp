// SPDX-License-Identifier: Apache-2.0
// raise_amax.hpp - the largest magnitude of what becomes codes, which threads raise together
#pragma once

#include <stdint.h>

namespace rope {

// Raises a magnitude that other threads raise too. As integers, so that NaN is above infinity.
inline void raise_amax(char *amax, uint32_t magnitude) {
  uint32_t *const word = reinterpret_cast<uint32_t *>(amax);
  uint32_t found = __atomic_load_n(word, __ATOMIC_RELAXED);
  while (found < magnitude &&
         !__atomic_compare_exchange_n(word, &found, magnitude, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
}

}  // namespace rope
