// swiglu_options_rows.cuh - the SwiGLU gradients with that of row_scale, of all that gating_options.hpp has
//
//   row of a block        blockIdx.y * gridDim.x + blockIdx.x
//   element of the row    threadIdx.x, threadIdx.x + blockDim.x, …
//   sum                   as in swiglu_rows.cuh
//
// Moves what swiglu_rows.cuh moves, one element at a time, besides the biases; with experts only of rows that exist.
#pragma once

#include "backend/cuda/kernels/swiglu_options.cuh"
#include "backend/cuda/kernels/swiglu_rows.cuh"

namespace rope {

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
  const FormWithOptions<Real> &form = options_of<Real>(params);
  const Real row_scale =
      load_row_scale<T>(params.row_scale + offset_at(row_at, params.row_scale_stride), params.is_row_scale_f32);
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
      add_bias_vector<T, 1>(params.bias[i] + offset(params.bias_stride[i]), params.is_bias_f32[i], value[i]);
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

}  // namespace rope
