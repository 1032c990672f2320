// SPDX-License-Identifier: Apache-2.0
// built_types.hpp - the types of data that this build has kernels for
#pragma once

#include <type_traits>

#include "backend/cuda/kernels/kernel.hpp"
#include "core/problem/visit_dtype.hpp"

namespace rope {

template <typename T>
constexpr bool kHas16Bits = sizeof(T) == 2;
template <typename T>
constexpr bool kHas64Bits = sizeof(T) == 8;

// All types, but for builds for development, which may lack one of 16 bits (ROPE_16_BIT_TYPES).
template <typename T>
constexpr bool kIsBuilt =
#ifdef ROPE_WITHOUT_TYPE
    !std::is_same<T, ROPE_WITHOUT_TYPE>::value;
#else
    true;
#endif

// find(element): the kernel for elements of this type
template <typename Find>
Kernel find_of_type(rope_dtype_t dtype, const Find &find) {
  return visit_dtype(dtype, [&](auto element) -> Kernel {
    if constexpr (kIsBuilt<decltype(element)>) return find(element);
    return {};
  });
}

}  // namespace rope
