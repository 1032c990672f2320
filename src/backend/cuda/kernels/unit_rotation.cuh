// SPDX-License-Identifier: Apache-2.0
// unit_rotation.cuh - the rotation of the two vectors of a unit
#pragma once

#include "backend/cuda/kernels/vector.cuh"
#include "core/math/rotation.hpp"

namespace rope {

// Rotates N consecutive pairs of x and y, as floats, by N consecutive angles. Rounded is that of rotate_as.
// `step` is the distance between the elements of x, and of y: 1, or 2 if x and y alternate.
template <int N, typename Rounded = void>
__device__ __forceinline__ void rotate_by_run(float *x, float *y, int step, const float *cos, const float *sin) {
  const Vector<float, N> c = *reinterpret_cast<const Vector<float, N> *>(cos);
  const Vector<float, N> s = *reinterpret_cast<const Vector<float, N> *>(sin);
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const CosSin<float> angle = {float_of(c.word[i]), float_of(s.word[i])};
    const Pair<float> out = rotate_as<Rounded, float>({x[i * step], y[i * step]}, angle, angle);
    x[i * step] = out.x;
    y[i * step] = out.y;
  }
}

// Rotates the two vectors of a rotary unit. With V elements in a vector, unit u of a head holds:
//   HALF         pairs V u to V u + V - 1, their first channels in `low`, their second ones in `high`
//   INTERLEAVED  pairs V/2 u to V/2 u + V/2 - 1 in `low`, those half a window further on in `high`
//   V = 1        pair u in either style
template <int V, bool IsInterleaved, typename Rounded = void>
__device__ __forceinline__ void rotate_unit(float *low, float *high, uint32_t unit, uint32_t pairs, const float *cos,
                                            const float *sin) {
  if constexpr (V == 1) {
    rotate_by_run<1, Rounded>(low, high, 1, cos + unit, sin + unit);
  } else if constexpr (IsInterleaved) {
    const uint32_t first = unit * (V / 2), second = pairs / 2 + first;
    rotate_by_run<V / 2, Rounded>(low, low + 1, 2, cos + first, sin + first);
    rotate_by_run<V / 2, Rounded>(high, high + 1, 2, cos + second, sin + second);
  } else {
    constexpr int kStep = V < 4 ? V : 4;
#pragma unroll
    for (int i = 0; i < V; i += kStep) {
      rotate_by_run<kStep, Rounded>(low + i, high + i, 1, cos + unit * V + i, sin + unit * V + i);
    }
  }
}

// The angles of a unit's pairs. Interleaved vectors hold V/2 pairs of each of two runs, which `run` selects.
template <int V, bool IsInterleaved>
struct Runs {
  static constexpr int kCount = IsInterleaved && V > 1 ? 2 : 1;
  static constexpr int kLength = V / kCount;
};

// Rotates a unit: angle_of(run, i) is the i-th angle of a run.
template <typename T, int V, bool IsInterleaved, typename AngleOf>
__device__ __forceinline__ void rotate_unit_by(Vector<T, V> *low, Vector<T, V> *high, AngleOf angle_of) {
  using R = Runs<V, IsInterleaved>;
  float x[V], y[V];
  to_floats<T, V>(*low, x);
  to_floats<T, V>(*high, y);
#pragma unroll
  for (int i = 0; i < R::kLength; ++i) {
    if constexpr (R::kCount == 2) {
      const CosSin<float> first = angle_of(0, i), second = angle_of(1, i);
      const Pair<float> low_pair = rotate<float>({x[2 * i], x[2 * i + 1]}, first, first);
      const Pair<float> high_pair = rotate<float>({y[2 * i], y[2 * i + 1]}, second, second);
      x[2 * i] = low_pair.x, x[2 * i + 1] = low_pair.y;
      y[2 * i] = high_pair.x, y[2 * i + 1] = high_pair.y;
    } else {
      const CosSin<float> angle = angle_of(0, i);
      const Pair<float> pair = rotate<float>({x[i], y[i]}, angle, angle);
      x[i] = pair.x, y[i] = pair.y;
    }
  }
  *low = from_floats<T, V>(x);
  *high = from_floats<T, V>(y);
}

}  // namespace rope
