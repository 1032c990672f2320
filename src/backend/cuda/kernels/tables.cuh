// SPDX-License-Identifier: Apache-2.0
// tables.cuh - the kernel that writes cosines and sines of positions 0 to M - 1
//
// Each thread computes one position and pair at a time; the grid has one axis. `columns` counts pairs:
//
//   number i         0     1     …   columns - 1 │  columns     …      i = blockIdx.x * blockDim.x + threadIdx.x, and
//   row (position)   0     0     …        0      │     1        …      from there in steps of the grid's threads
//   pair             0     1     …   columns - 1 │     0        …
//
// The kernel writes every entry of both tables once: a cosine and a sine for each position and pair, twice if there is
// a column for each channel, and all this for each axis. It reads only the increments, 8 bytes per pair.
#pragma once

#include "backend/cuda/kernels/kernel.hpp"
#include "backend/cuda/kernels/rope_params.hpp"
#include "backend/cuda/kernels/vector.cuh"
#include "core/math/rotation.hpp"
#include "plan/tuning.hpp"

namespace rope {

template <typename T>
__device__ __forceinline__ void store_angle(const TableKernelParams &params, const TableColumns &target, int64_t row,
                                            int64_t column, RealOf<T> value) {
  const T element = round_to<T>(value);
  T *data = reinterpret_cast<T *>(const_cast<char *>(target.data)) + row * target.row_stride;
  for (int64_t axis = 0; axis < params.axes; ++axis) {
    data[axis * target.axis_stride + column * target.column_stride] = element;
    if (params.is_by_channel) {
      data[axis * target.axis_stride + (column + params.distance) * target.column_stride] = element;
    }
  }
}

template <typename T>
__global__ void __launch_bounds__(kTableThreads) table_kernel(const __grid_constant__ TableKernelParams params) {
  using Real = RealOf<T>;
  const int64_t count = params.rows * params.columns;
  const int64_t grid_threads = static_cast<int64_t>(gridDim.x) * kTableThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kTableThreads + threadIdx.x; i < count; i += grid_threads) {
    const int64_t row = i / params.columns;
    const int pair = static_cast<int>(i % params.columns);
    const CosSin<Real> angle = cos_sin_of_phase<Real>(phase_of(static_cast<uint64_t>(row), params.increments[pair]));
    const Real scale = static_cast<Real>(params.scale);
    const int column = params.is_by_channel ? pair + pair / params.distance * params.distance : pair;
    store_angle<T>(params, params.cos, row, column, multiply_rounded(angle.cos, scale));
    store_angle<T>(params, params.sin, row, column, multiply_rounded(angle.sin, scale));
  }
}

template <typename T>
Kernel find_tables_kernel() {
  return kernel_of(table_kernel<T>);
}

}  // namespace rope
