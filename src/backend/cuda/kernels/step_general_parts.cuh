// SPDX-License-Identifier: Apache-2.0
// step_general_parts.cuh - shared by the general kernels of the step: numbers of any type, and sums over all heads
#pragma once

#include "backend/cuda/kernels/general_angles.cuh"
#include "backend/cuda/kernels/step_params.hpp"
#include "backend/cuda/kernels/step_sums.cuh"
#include "core/math/float8.hpp"

namespace rope {

template <typename Real>
__device__ __forceinline__ Real load_number(const ChannelNumbers &numbers, rope_dtype_t dtype, int64_t head,
                                            int channel) {
  return load_real<Real>(numbers.data, numbers.is_f32 ? ROPE_DTYPE_F32 : dtype,
                         head * numbers.head_stride + channel * numbers.channel_stride);
}

template <typename T>
__device__ __forceinline__ void store_rounded(char *address, rope_dtype_t dtype, RealOf<T> value) {
  if constexpr (sizeof(T) <= 4) {
    if (is_code(dtype)) {
      *reinterpret_cast<uint8_t *>(address) =
          dtype == ROPE_DTYPE_F8_E4M3 ? round_to<Float8E4M3>(value).bits : round_to<Float8E5M2>(value).bits;
      return;
    }
  }
  if constexpr (sizeof(T) == 4) {
    if (dtype == ROPE_DTYPE_F16) {
      *reinterpret_cast<uint16_t *>(address) = round_to<Float16>(value).bits;
      return;
    }
    if (dtype == ROPE_DTYPE_BF16) {
      *reinterpret_cast<uint16_t *>(address) = round_to<BFloat16>(value).bits;
      return;
    }
  }
  *reinterpret_cast<T *>(address) = round_to<T>(value);
}

template <typename T>
constexpr rope_dtype_t kDtypeOf = ROPE_DTYPE_F32;
template <>
constexpr rope_dtype_t kDtypeOf<Float16> = ROPE_DTYPE_F16;
template <>
constexpr rope_dtype_t kDtypeOf<BFloat16> = ROPE_DTYPE_BF16;
template <>
constexpr rope_dtype_t kDtypeOf<double> = ROPE_DTYPE_F64;

// The tree over sum_of(head) of all heads of a tensor. One warp computes each sum; every thread gets the result.
// tree(numbers, n) is sum_by_warp.
template <typename Real, typename SumOf, typename Tree>
__device__ __forceinline__ Real sum_over_heads(uint32_t warps, int64_t heads, Real *head_sums, const SumOf &sum_of,
                                               const Tree &tree) {
  const int64_t warp = threadIdx.x / 32;
  const auto sum_of_heads = [&](int64_t first, int64_t end, int terms) {
    if (warp < warps) {
      for (int64_t number = first + warp; number < end; number += warps) {
        const Real sum = sum_of(number);
        if (threadIdx.x % 32 == 0) head_sums[number - first] = sum;
      }
    }
    __syncthreads();
    const Real sum = tree(SummedNumbers<Real>{head_sums, static_cast<int>(end - first), false, 0}, terms);
    __syncthreads();
    return sum;
  };
  if (heads <= kStepHeadSums) return sum_of_heads(0, heads, static_cast<int>(heads));
  TreeSum<Real> total;
  for (int64_t first = 0; first < heads; first += kStepHeadSums) {
    const int64_t end = heads - first < kStepHeadSums ? heads : first + kStepHeadSums;
    total.add(sum_of_heads(first, end, kStepHeadSums));
  }
  return total.total();
}

// Loads a number as the type of the arithmetic.
template <typename Real>
__device__ __forceinline__ NormForm<Real> norm_form_in(const NormForm<double> &norm) {
  return {static_cast<Real>(norm.eps),
          static_cast<Real>(norm.inverse_count),
          static_cast<Real>(norm.weight_offset),
          norm.is_layer,
          norm.rounds_before_weight,
          norm.rounds_after_weight};
}

}  // namespace rope
