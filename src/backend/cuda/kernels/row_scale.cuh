// row_scale.cuh - the factor of a row of SwiGLU, and the number of rows
#pragma once

#include "backend/cuda/kernels/vector.cuh"

namespace rope {

__device__ __forceinline__ int64_t load_num_rows(const char *address, bool is_64_bit) {
  return is_64_bit ? *reinterpret_cast<const int64_t *>(address) : *reinterpret_cast<const int32_t *>(address);
}

template <typename T>
__device__ __forceinline__ RealOf<T> load_element(const char *address) {
  RealOf<T> value;
  to_floats<T, 1>(load_vector<Vector<T, 1>>(address), &value);
  return value;
}

template <typename T>
__device__ __forceinline__ void store_element(char *address, RealOf<T> value) {
  store_vector(address, from_floats<T, 1>(&value));
}

template <typename T>
__device__ __forceinline__ RealOf<T> load_row_scale(const char *address, bool is_f32) {
  return is_f32 ? static_cast<RealOf<T>>(load_element<float>(address)) : load_element<T>(address);
}

}  // namespace rope
