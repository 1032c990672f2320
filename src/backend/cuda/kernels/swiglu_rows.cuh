// SPDX-License-Identifier: Apache-2.0
// swiglu_rows.cuh - the SwiGLU gradients with that of row_scale, which is a sum over a row
//
//   row of a block        blockIdx.y * gridDim.x + blockIdx.x
//   group of the row      0     1     …   blockDim.x - 1 │  blockDim.x     …         16 bytes of each tensor
//   threadIdx.x           0     1     …   blockDim.x - 1 │       0         …
//
//   sum   of a thread, group by group → of a warp, by shuffles over 16, 8, 4, 2 and 1 lanes → of the block, by thread
//         0, warp by warp
//
// Reads gate, up and grad_out and writes grad_gate, grad_up and out, unless absent, for every element; reads row_scale
// and writes its gradient for every row; reads num_rows, if present.
//
// Each thread adds up its own terms and the rounding errors of these additions. The order of the sum never changes, and
// a thread without a group adds 0, so that the number of threads changes no bit either.
#pragma once

#include "backend/cuda/kernels/programmatic_launch.cuh"
#include "backend/cuda/kernels/row_scale.cuh"
#include "backend/cuda/kernels/swiglu_activation.cuh"
#include "backend/cuda/kernels/swiglu_params.hpp"
#include "backend/cuda/kernels/vector.cuh"
#include "core/math/gating.hpp"
#include "core/problem/integers.hpp"
#include "plan/tuning.hpp"

namespace rope {

struct RowAxesIndex {
  int64_t at[kMaxRowAxes];
};

__device__ __forceinline__ RowAxesIndex split_row(const SwigluRowKernelParams &params, int64_t row) {
  RowAxesIndex index = {};
  constexpr int kLast = kMaxRowAxes - 1;
  index.at[kLast] = row;
  if (!params.has_outer_rows) return index;
#pragma unroll
  for (int axis = kLast; axis > 0; --axis) {
    index.at[axis] = row % params.row_shape[axis];
    row /= params.row_shape[axis];
  }
  index.at[0] = row;
  return index;
}

__device__ __forceinline__ RowAxesIndex split_column(const SwigluRowKernelParams &params, int64_t column) {
  RowAxesIndex index = {};
  constexpr int kLast = kMaxRowAxes - 1;
  index.at[kLast] = column;
  if (!params.has_outer_columns) return index;
#pragma unroll
  for (int axis = kLast; axis > 0; --axis) {
    if (params.has_narrow_columns) {
      const DivmodResult result = params.narrow_column_shape[axis].divmod(static_cast<uint32_t>(column));
      index.at[axis] = result.remainder;
      column = result.quotient;
    } else {
      index.at[axis] = column % params.column_shape[axis];
      column /= params.column_shape[axis];
    }
  }
  index.at[0] = column;
  return index;
}

__device__ __forceinline__ int64_t offset_at(const RowAxesIndex &index, const int64_t *stride) {
  int64_t offset = 0;
#pragma unroll
  for (int axis = 0; axis < kMaxRowAxes; ++axis) offset += index.at[axis] * stride[axis];
  return offset;
}

// split_column as a function call, for the rare case of single elements: it keeps the code in one copy.
inline __device__ __noinline__ RowAxesIndex split_single_column(const SwigluRowKernelParams &params, int64_t column) {
  return split_column(params, column);
}

// Returns in thread 0 the sum over the block.
template <typename Real>
__device__ __forceinline__ Real sum_over_block(RowSum<Real> sum) {
  constexpr unsigned kWarp = 32;
  __shared__ RowSum<Real> sum_of_warp[kMaxSwigluRowThreads / kWarp];
  for (unsigned distance = kWarp / 2; distance > 0; distance /= 2) {
    RowSum<Real> other;
    other.half = __shfl_down_sync(0xffffffffu, sum.half, distance);
    other.rest = __shfl_down_sync(0xffffffffu, sum.rest, distance);
    sum.add(other);
  }
  if (threadIdx.x % kWarp == 0) sum_of_warp[threadIdx.x / kWarp] = sum;
  __syncthreads();
  if (threadIdx.x == 0) {
    for (unsigned warp = 1; warp < blockDim.x / kWarp; ++warp) sum.add(sum_of_warp[warp]);
  }
  return sum.total();
}

template <typename T>
__device__ __forceinline__ void store_row_gradient(const SwigluRowKernelParams &params, const RowAxesIndex &row_at,
                                                   RealOf<T> total) {
  char *target = params.grad_row_scale + offset_at(row_at, params.grad_row_scale_stride);
  if (params.is_row_scale_f32) {
    store_element<float>(target, static_cast<float>(total));
  } else {
    store_element<T>(target, total);
  }
}

// Sets one element of a vector. `at` is a constant for the compiler, so that the vector stays in registers.
template <typename T, int N>
__device__ __forceinline__ void set_element(Vector<T, N> *vector, int at, const Vector<T, 1> &element) {
  if constexpr (sizeof(T) == 2) {
    const uint32_t bits = element.word[0];
    vector->word[at / 2] = at % 2 == 0 ? bits : vector->word[at / 2] | bits << 16;
  } else {
    constexpr int kWords = sizeof(T) / 4;
#pragma unroll
    for (int i = 0; i < kWords; ++i) vector->word[at * kWords + i] = element.word[i];
  }
}

template <typename T, int N>
__device__ __forceinline__ Vector<T, 1> element_of(const Vector<T, N> &vector, int at) {
  Vector<T, 1> element;
  if constexpr (sizeof(T) == 2) {
    element.word[0] = static_cast<uint16_t>(vector.word[at / 2] >> (at % 2 * 16));
  } else {
    constexpr int kWords = sizeof(T) / 4;
#pragma unroll
    for (int i = 0; i < kWords; ++i) element.word[i] = vector.word[at * kWords + i];
  }
  return element;
}

// A whole group is one memory access if there are vectors; otherwise its elements are loaded and stored one by one.
template <typename T>
__global__ void __launch_bounds__(kMaxSwigluRowThreads, kSwigluRowResidentThreads / kMaxSwigluRowThreads)
    swiglu_row_kernel(const __grid_constant__ SwigluRowKernelParams params) {
  using Real = RealOf<T>;
  constexpr int kGroup = static_cast<int>(kSwigluRowGroupBytes / sizeof(T));
  using Group = Vector<T, kGroup>;
  const int64_t row = static_cast<int64_t>(blockIdx.y) * gridDim.x + blockIdx.x;
  begin_dependent_launch();
  if (row >= params.rows) return;
  const RowAxesIndex row_at = split_row(params, row);
  wait_for_previous_launch();
  if (params.num_rows != nullptr &&
      offset_at(row_at, params.row_index_stride) >= read_integer(params.num_rows, params.is_num_rows_64_bit, 0)) {
    return;
  }
  const Real row_scale =
      load_row_scale<T>(params.row_scale + offset_at(row_at, params.row_scale_stride), params.is_row_scale_f32);
  const Form<Real> form = form_in<Real>(params.form);
  const char *in[kMaxSwigluInputs];
  char *out[kMaxSwigluOutputs];
#pragma unroll
  for (int i = 0; i < kMaxSwigluInputs; ++i) in[i] = params.in[i] + offset_at(row_at, params.in_stride[i].row);
#pragma unroll
  for (int i = 0; i < kMaxSwigluOutputs; ++i) {
    out[i] = params.out[i] == nullptr ? nullptr : params.out[i] + offset_at(row_at, params.out_stride[i].row);
  }

  RowSum<Real> sum = {0, 0};
#pragma unroll 1
  for (int64_t first = static_cast<int64_t>(threadIdx.x) * kGroup; first < params.columns;
       first += static_cast<int64_t>(blockDim.x) * kGroup) {
    const int64_t count = params.columns - first;
    const bool is_vector = sizeof(T) < sizeof(double) && params.has_vectors && count >= kGroup;
    Group value[kMaxSwigluInputs] = {};
    if (is_vector) {
      const RowAxesIndex at = split_column(params, first);
#pragma unroll
      for (int i = 0; i < kMaxSwigluInputs; ++i) {
        value[i] = load_vector<Group>(in[i] + offset_at(at, params.in_stride[i].column));
      }
    } else {
      // Elements past the end stay 0 and add 0.
#pragma unroll
      for (int e = 0; e < kGroup; ++e) {
        if (e >= count) break;
        const RowAxesIndex at = split_single_column(params, first + e);
#pragma unroll
        for (int i = 0; i < kMaxSwigluInputs; ++i) {
          set_element<T, kGroup>(&value[i], e,
                                 load_vector<Vector<T, 1>>(in[i] + offset_at(at, params.in_stride[i].column)));
        }
      }
    }
    Group result[kMaxSwigluOutputs];
#pragma unroll
    for (int e = 0; e < kGroup; ++e) {
      Real gate, up, grad_out;
      to_floats<T, 1>(element_of<T, kGroup>(value[kGate], e), &gate);
      to_floats<T, 1>(element_of<T, kGroup>(value[kUp], e), &up);
      to_floats<T, 1>(element_of<T, kGroup>(value[kGradOut], e), &grad_out);
      sum.add(half_row_term(gate, up, grad_out, form));
      const SwigluGradient<Real> gradient = swiglu_gradient<false>(gate, up, grad_out, form, row_scale);
      const Real out_value = swiglu<false>(gate, up, form, row_scale);
      set_element<T, kGroup>(&result[kGradGate], e, from_floats<T, 1>(&gradient.gate));
      set_element<T, kGroup>(&result[kGradUp], e, from_floats<T, 1>(&gradient.up));
      set_element<T, kGroup>(&result[kRecomputedOut], e, from_floats<T, 1>(&out_value));
    }
#pragma unroll
    for (int i = 0; i < kMaxSwigluOutputs; ++i) {
      if (out[i] == nullptr) continue;
      if (is_vector) {
        const RowAxesIndex at = split_column(params, first);
        store_vector(out[i] + offset_at(at, params.out_stride[i].column), result[i]);
      } else {
#pragma unroll
        for (int e = 0; e < kGroup; ++e) {
          if (e >= count) break;
          const RowAxesIndex at = split_single_column(params, first + e);
          store_vector(out[i] + offset_at(at, params.out_stride[i].column), element_of<T, kGroup>(result[i], e));
        }
      }
    }
  }

  const Real total = sum_over_block(sum);
  if (threadIdx.x == 0) store_row_gradient<T>(params, row_at, total);
}

// ---- All options of gating_options.hpp, one element at a time ----

__device__ __forceinline__ bool is_row_there(const SwigluOptionsRowParams &params, const RowAxesIndex &row_at) {
  if (params.num_rows != nullptr &&
      offset_at(row_at, params.row_index_stride) >= read_integer(params.num_rows, params.is_num_rows_64_bit, 0)) {
    return false;
  }
  if (params.expert_rows == nullptr) return true;
  const int64_t expert = offset_at(row_at, params.expert_index_stride);
  return offset_at(row_at, params.expert_row_index_stride) <
         read_integer(params.expert_rows, params.is_expert_rows_64_bit, expert * params.expert_rows_stride);
}

template <typename T>
__global__ void __launch_bounds__(kMaxSwigluRowThreads)
    swiglu_options_row_kernel(const __grid_constant__ SwigluOptionsRowParams params) {
  using Real = RealOf<T>;
  const int64_t row = static_cast<int64_t>(blockIdx.y) * gridDim.x + blockIdx.x;
  begin_dependent_launch();
  if (row >= params.rows) return;
  const RowAxesIndex row_at = split_row(params, row);
  wait_for_previous_launch();
  if (!is_row_there(params, row_at)) return;
  SwigluRow gate_row = {true, 0, 0};
  if (params.lookup.rows.is_present()) {
    gate_row = find_swiglu_row(params.lookup.rows, offset_at(row_at, params.row_index_stride));
    if (!gate_row.is_there) return;
  }
  const FormWithOptions<Real> &form = options_of<Real>(params);
  const int64_t factor_offset =
      offset_at(row_at, params.row_scale_stride) + gate_row.factor * params.lookup.factor_stride;
  const Real row_scale = load_row_scale<T>(params.row_scale + factor_offset, params.is_row_scale_f32);
  RowSum<Real> sum = {0, 0};
#pragma unroll 1
  for (int64_t column = threadIdx.x; column < params.columns; column += blockDim.x) {
    const RowAxesIndex at = split_column(params, column);
    const auto offset = [&](const SwigluRowStrides &stride) {
      return offset_at(row_at, stride.row) + offset_at(at, stride.column);
    };
    Real value[kMaxSwigluInputs][1];
#pragma unroll
    for (int i = 0; i < kMaxSwigluInputs; ++i)
      value[i][0] = load_element<T>(params.in[i] + offset(params.in_stride[i]));
#pragma unroll
    for (int i = kGate; i <= kUp; ++i) {
      if (params.bias[i] == nullptr) continue;
      const int64_t bias_offset = offset(params.bias_stride[i]) + gate_row.expert * params.lookup.bias_expert_stride[i];
      add_bias_vector<T, 1>(params.bias[i] + bias_offset, params.is_bias_f32[i], value[i]);
    }
    const StagedVector<Real, 1> staged =
        activate_vector<SwigluFormula::kOptions, T, true, 1>(value[kGate], value[kUp], form);
    const Real grad_out = value[kGradOut][0];
    sum.add(gated_half_row_term(grad_out, staged.activated[0], staged.up[0].value, form));
    const SwigluGradient<Real> gradient =
        gated_gradient<false>(value[kUp][0], grad_out, staged.activated[0], staged.up[0], form, row_scale);
    const Real out = gated<false>(staged.activated[0], staged.up[0].value, form, row_scale);
    const Real result[kMaxSwigluOutputs] = {gradient.gate, gradient.up, out};
#pragma unroll
    for (int i = 0; i < kMaxSwigluOutputs; ++i) {
      if (params.out[i] != nullptr) store_element<T>(params.out[i] + offset(params.out_stride[i]), result[i]);
    }
  }
  const Real total = sum_over_block(sum);
  if (threadIdx.x == 0) store_row_gradient<T>(params, row_at, total);
}

template <typename T>
Kernel find_swiglu_rows_kernel(int vector_elements, SwigluVariant variant) {
  if (variant.is_alternating || vector_elements != 1) return {};
  return variant.formula > SwigluFormula::kForm ? kernel_of(swiglu_options_row_kernel<T>)
                                                : kernel_of(swiglu_row_kernel<T>);
}

}  // namespace rope
