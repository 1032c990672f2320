// SPDX-License-Identifier: Apache-2.0
// fast_divmod.hpp - 32-bit division by a number known at launch, without a GPU's slow division
#pragma once

#include <stdint.h>

#include "core/math/host_device.hpp"

namespace rope {

struct DivmodResult {
  uint32_t quotient;
  uint32_t remainder;
};

struct FastDivmod {
  uint32_t divisor;
  uint32_t reciprocal;  // floor((2^32 - 1) / divisor)

  static FastDivmod by(uint32_t divisor) { return {divisor, 0xffffffffu / divisor}; }

  // The product's upper half is the quotient or 1 less, because reciprocal * divisor differs from 2^32 by at most
  // `divisor`.
  ROPE_HOST_DEVICE DivmodResult divmod(uint32_t n) const {
    uint32_t quotient = static_cast<uint32_t>((static_cast<uint64_t>(n) * reciprocal) >> 32);
    uint32_t remainder = n - quotient * divisor;
    if (remainder >= divisor) {
      ++quotient;
      remainder -= divisor;
    }
    return {quotient, remainder};
  }
};

}  // namespace rope
