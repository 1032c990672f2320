// SPDX-License-Identifier: Apache-2.0
// step_sums.cuh - the tree of norm.hpp over numbers in shared memory
#pragma once

#include <stdint.h>

#include "core/math/norm.hpp"

namespace rope {

// Numbers in shared memory to be added by a tree: x, or the squares of x - mean; +0 behind the last one.
template <typename Real>
struct SummedNumbers {
  const Real *x;
  int count;
  bool of_squares;
  Real mean;

  __device__ __forceinline__ Real term(int at) const {
    if (at >= count) return 0;
    if (!of_squares) return x[at];
    const Real centred = add_rounded(x[at], -mean);
    return multiply_rounded(centred, centred);
  }
};

template <int N, typename Real>
__device__ __forceinline__ Real sum_run(const SummedNumbers<Real> &numbers, int at) {
  if constexpr (N == 1) {
    return numbers.term(at);
  } else {
    return add_rounded(sum_run<N / 2>(numbers, at), sum_run<N / 2>(numbers, at + N / 2));
  }
}

// The tree's sum of n terms, 1024 or less, in every lane of the warp.
template <typename Real>
__device__ __forceinline__ Real sum_by_warp(const SummedNumbers<Real> &numbers, int n) {
  constexpr uint32_t kAllLanes = 0xffffffffu;
  int count = 1;
  while (count < n) count *= 2;
  const int run = count > 32 ? count / 32 : 1, at = static_cast<int>(threadIdx.x % 32) * run;
  Real sum = 0;
  switch (run) {
    case 1:
      sum = sum_run<1>(numbers, at);
      break;
    case 2:
      sum = sum_run<2>(numbers, at);
      break;
    case 4:
      sum = sum_run<4>(numbers, at);
      break;
    case 8:
      sum = sum_run<8>(numbers, at);
      break;
    case 16:
      sum = sum_run<16>(numbers, at);
      break;
    default:
      sum = sum_run<32>(numbers, at);
  }
  for (int step = 1; step < count / run; step *= 2) {
    sum = add_rounded(sum, __shfl_xor_sync(kAllLanes, sum, step));
  }
  return __shfl_sync(kAllLanes, sum, 0);
}

}  // namespace rope
