// SPDX-License-Identifier: Apache-2.0
// visit_dtype.hpp - calls a template with the C++ type of a dtype
#pragma once

#include <rope/rope.h>

#include "core/math/float16.hpp"

namespace rope {

// Calls `visit` with a value of the storage type of a dtype (not an integer) and returns its result.
template <typename Visit>
auto visit_dtype(rope_dtype_t dtype, const Visit &visit) {
  switch (dtype) {
    case ROPE_DTYPE_F16:
      return visit(Float16{});
    case ROPE_DTYPE_BF16:
      return visit(BFloat16{});
    case ROPE_DTYPE_F64:
      return visit(double{});
    default:
      return visit(float{});
  }
}

}  // namespace rope
