// SPDX-License-Identifier: Apache-2.0
// integers.hpp - reads one entry of an integer operand; for host and device
#pragma once

#include <stdint.h>

#include "core/math/host_device.hpp"

namespace rope {

// Entry `at` of an array of 32-bit or 64-bit integers.
ROPE_HOST_DEVICE int64_t read_integer(const char *data, bool is_64_bit, int64_t at) {
  if (is_64_bit) return reinterpret_cast<const int64_t *>(data)[at];
  return reinterpret_cast<const int32_t *>(data)[at];
}

}  // namespace rope
