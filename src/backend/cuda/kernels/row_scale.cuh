// SPDX-License-Identifier: Apache-2.0
// row_scale.cuh - the factor of a row of SwiGLU
#pragma once

#include "backend/cuda/kernels/vector.cuh"

namespace rope {

// Loads one element in the arithmetic's type.
template <typename T>
__device__ __forceinline__ RealOf<T> load_element(const char *address) {
  RealOf<T> value;
  to_floats<T, 1>(load_vector<Vector<T, 1>>(address), &value);
  return value;
}

// Rounds a value to T and stores it.
template <typename T>
__device__ __forceinline__ void store_element(char *address, RealOf<T> value) {
  store_vector(address, from_floats<T, 1>(&value));
}

// Loads the factor of a row, which is F32 or has the data's type.
template <typename T>
__device__ __forceinline__ RealOf<T> load_row_scale(const char *address, bool is_f32) {
  return is_f32 ? static_cast<RealOf<T>>(load_element<float>(address)) : load_element<T>(address);
}

}  // namespace rope
