// visit_dtype.hpp - from the dtype of a call to the C++ type that has a template's code
#pragma once

#include <rope/rope.h>

#include "core/math/float16.hpp"

namespace rope {

// Calls `visit` with a value of the type that holds elements of a dtype that is no integer, and returns what it does.
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
