// vector.cuh - several neighbouring elements as one memory access, and as floats
#pragma once

#include "core/float16.hpp"

namespace rope {

template <typename T, int N>
struct alignas(N * sizeof(T)) Vector {
  T element[N];
};

template <typename T, int N>
__device__ __forceinline__ Vector<T, N> load_vector(const char *address) {
  return *reinterpret_cast<const Vector<T, N> *>(address);
}

template <typename T, int N>
__device__ __forceinline__ void store_vector(char *address, const Vector<T, N> &vector) {
  *reinterpret_cast<Vector<T, N> *>(address) = vector;
}

// Two at a time where there are two: one conversion instruction instead of two and a merge.
__device__ __forceinline__ void round_pair(float first, float second, float *target) {
  target[0] = first;
  target[1] = second;
}

__device__ __forceinline__ void round_pair(float first, float second, Float16 *target) {
  const __half2 pair = __floats2half2_rn(first, second);
  target[0].bits = __half_as_ushort(__low2half(pair));
  target[1].bits = __half_as_ushort(__high2half(pair));
}

__device__ __forceinline__ void round_pair(float first, float second, BFloat16 *target) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(first, second);
  target[0].bits = __bfloat16_as_ushort(__low2bfloat16(pair));
  target[1].bits = __bfloat16_as_ushort(__high2bfloat16(pair));
}

}  // namespace rope
