// SPDX-License-Identifier: Apache-2.0
// short_work.cuh - the unit of a thread in short and long launches, and the rotation of a row's units
#pragma once

#include "backend/cuda/kernels/addresses.cuh"
#include "backend/cuda/kernels/angles.cuh"
#include "backend/cuda/kernels/positions.cuh"
#include "backend/cuda/kernels/rope_params.hpp"
#include "backend/cuda/kernels/row_work.cuh"
#include "backend/cuda/kernels/unit_rotation.cuh"
#include "backend/cuda/kernels/vector.cuh"

namespace rope {

// A thread's unit. A thread without a unit gets the address behind the last head, because the strides between heads are
// positive.
template <int VectorBytes>
struct ShortUnit {
  uint32_t number;  // within its head
  const char *in;
  char *out;

  __device__ __forceinline__ ShortUnit(const RopeShortParams &params, uint32_t token, uint32_t unit) {
    const HeadUnit place = find_head_unit(params, unit);
    number = place.number;
    const RopeShortTensor &tensor = params.tensor[place.tensor];
    in = step(step(step(tensor.in, token, tensor.token_bytes), place.head, tensor.head_bytes), number, VectorBytes);
    out = const_cast<char *>(in) + tensor.in_to_out;
  }
};

// Rotates and stores a unit with the angles of its token in shared memory: kMaxShortPairs cosines, then the sines.
template <typename T, int V, bool IsInterleaved, typename Rounded = void>
__device__ __forceinline__ void rotate_short_unit(const RopeShortParams &params, const ShortUnit<V * sizeof(T)> &unit,
                                                  const Vector<T, V> &low, const Vector<T, V> &high, const float *cos) {
  float x[V], y[V];
  to_floats<T, V>(low, x);
  to_floats<T, V>(high, y);
  rotate_unit<V, IsInterleaved, Rounded>(x, y, unit.number, params.pairs, cos, cos + kMaxShortPairs);
  store_vector(unit.out, from_floats<T, V>(x));
  store_vector(unit.out + params.bytes_to_high, from_floats<T, V>(y));
}

// Stores the angle of a thread's pair, if it has one, for its row of threads: kMaxShortPairs cosines from `cos` on,
// then the sines. Ends with a barrier.
__device__ __forceinline__ void share_angle(const RopeShortAngleParams &params, const ShortPosition &position,
                                            uint64_t increment, bool has_pair, float *cos) {
  if (has_pair) {
    const CosSin<float> angle = compute_angle(params, position.finish(params), increment);
    cos[threadIdx.x] = angle.cos;
    cos[threadIdx.x + kMaxShortPairs] = angle.sin;
  }
  __syncthreads();
}

// The common end of the kernels with computed angles, after positions and increments have been loaded: loads the unit,
// shares the row's angles (a thread computes at most one), and rotates.
template <typename T, int V, bool IsInterleaved>
__device__ __forceinline__ void rotate_by_row(const RopeShortAngleParams &params, const ShortUnit<V * sizeof(T)> &mine,
                                              bool is_active, const ShortPosition &position, uint64_t increment,
                                              bool has_pair, float *shared) {
  float *const cos = shared + threadIdx.y * (2 * kMaxShortPairs);
  Vector<T, V> low, high;
  if (is_active) {
    low = load_vector<Vector<T, V>>(mine.in);
    high = load_vector<Vector<T, V>>(mine.in + params.bytes_to_high);
  }
  share_angle(params, position, increment, has_pair, cos);
  if (!is_active) return;
  rotate_short_unit<T, V, IsInterleaved>(params, mine, low, high, cos);
}

}  // namespace rope
