// SPDX-License-Identifier: Apache-2.0
// step_row_norms.cuh - parts of a norm over a head with units in neighbouring lanes: the sum over the units, and the
// weights or biases of a vector's channels
#pragma once

#include "backend/cuda/kernels/step_row_units.cuh"

namespace rope {

template <int V>
__device__ __forceinline__ float sum_of(const float *x, bool of_squares) {
  float terms[V];
#pragma unroll
  for (int i = 0; i < V; ++i) terms[i] = of_squares ? multiply_rounded(x[i], x[i]) : x[i];
  return tree_sum<V>(terms);
}

// The sum over a head of its threads' `low` and `high`. All lanes of the warp take part.
template <int VectorBytes>
__device__ __forceinline__ float sum_of_head(const StepRowParams &params, const StepRowTensor &tensor,
                                             const UnitPlace &place, uint32_t unit, float low, float high,
                                             float *exchange) {
  const uint32_t lanes = 1u << tensor.lanes_log2, lane = threadIdx.x % 32;
  float sum;
  if (params.is_full_window) {
    const bool is_odd = (unit & 1u) != 0;
    const float other = __shfl_xor_sync(kAllLanes, is_odd ? low : high, 1);
    sum = add_rounded(is_odd ? high : low, other);
  } else {
    const bool has_unit = unit < tensor.units_per_head;
    const uint32_t first_idle = 2 * tensor.units_per_head, idle = unit - tensor.units_per_head;
    float *const runs = exchange + 2 * (lane - unit);
    const uint32_t at_low = has_unit ? static_cast<uint32_t>(place.low) / VectorBytes : first_idle + 2 * idle;
    const uint32_t at_high =
        has_unit ? static_cast<uint32_t>(place.low + place.to_high) / VectorBytes : first_idle + 2 * idle + 1;
    runs[at_low] = has_unit ? low : 0.0f;
    runs[at_high] = has_unit ? high : 0.0f;
    __syncwarp();
    sum = add_rounded(runs[2 * unit], runs[2 * unit + 1]);
    __syncwarp();
  }
  for (uint32_t step = params.is_full_window ? 2 : 1; step < 32; step *= 2) {
    const float other = __shfl_xor_sync(kAllLanes, sum, step);
    if (step < lanes) sum = add_rounded(sum, other);
  }
  if (params.is_full_window) {
    const float other = __shfl_xor_sync(kAllLanes, sum, 1);
    sum = lanes == 1 ? add_rounded(low, high) : add_rounded(sum, other);
  }
  return sum;
}

// The numbers of a vector's channels, in F32 or the data's type.
struct VectorNumbers {
  const char *data;  // NULL: there are none
  bool is_wide;

  template <typename T, int N>
  __device__ __forceinline__ void load(int first, float *numbers) const {
    load_numbers<T, N>(data + first * (is_wide ? 4 : static_cast<int>(sizeof(T))), is_wide, numbers);
  }
};

// Calls change(channel, its number) for each channel of a vector, if there are numbers.
template <typename T, int V, typename Change>
__device__ __forceinline__ void for_each_number(const VectorNumbers &numbers, const Change &change) {
  constexpr int kStep = V < 4 ? V : 4;
#pragma unroll
  for (int i = 0; i < V && numbers.data != nullptr; i += kStep) {
    float number[kStep];
    numbers.template load<T, kStep>(i, number);
#pragma unroll
    for (int j = 0; j < kStep; ++j) change(i + j, number[j]);
  }
}

}  // namespace rope
