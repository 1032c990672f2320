// SPDX-License-Identifier: Apache-2.0
// swiglu.cuh - the SwiGLU kernels, forward and backward
//
//   a row of each tensor      0 … V-1     V … 2V-1    …    … columns-1
//   vector of the row            0            1       …    vectors_per_row - 1, which may have fewer than V elements
//
//   vector of all rows        (blockIdx.y * gridDim.x + blockIdx.x) * blockDim.x + threadIdx.x
//                             of row number / vectors_per_row, and there vector number % vectors_per_row
//
//   forward     gate, up            → out
//   backward    gate, up, grad_out  → grad_gate, grad_up (each unless absent), and out if it is recomputed
//
// A thread processes one vector of each tensor: 8 or 16 bytes, or one element. With more vectors a thread, the time
// depends on where the buffers happen to lie. If gate and up alternate (g0 u0 g1 u1 …), or their gradients, a thread
// processes their 2 V elements from 2 V times the vector's number on.
//
// For every element, forward reads two elements and writes one; backward reads three and writes two, or three with the
// recomputed output. If present, a row_scale for each row and num_rows are read too.
#pragma once

#include "backend/cuda/kernels/kernel.hpp"
#include "backend/cuda/kernels/programmatic_launch.cuh"
#include "backend/cuda/kernels/row_scale.cuh"
#include "backend/cuda/kernels/swiglu_params.hpp"
#include "backend/cuda/kernels/swiglu_vector.cuh"
#include "backend/cuda/kernels/vector.cuh"
#include "backend/cuda/kernels/wide_division.cuh"
#include "core/math/gating.hpp"
#include "core/problem/integers.hpp"
#include "plan/tuning.hpp"

namespace rope {

__device__ __forceinline__ RowVector split_vector(const SwigluKernelParams &params, int64_t index) {
  if (params.is_single_row) return {0, index};
  if (params.is_narrow) {
    const DivmodResult result = params.narrow_vectors_per_row.divmod(static_cast<uint32_t>(index));
    return {result.quotient, result.remainder};
  }
  return split_wide(index, params.vectors_per_row);
}

// A row as an index over its axes, slowest first.
struct OuterAxesIndex {
  int64_t at[kMaxAxes - 1];
};

__device__ __forceinline__ OuterAxesIndex split_outer_axes(const SwigluKernelParams &params, int64_t row) {
  OuterAxesIndex index;
#pragma unroll
  for (int axis = kMaxAxes - 2; axis > 0; --axis) {
    const RowVector at = split_wide(row, params.shape[axis]);
    index.at[axis] = at.vector;
    row = at.row;
  }
  index.at[0] = row;
  return index;
}

__device__ __forceinline__ int64_t offset_of(const OuterAxesIndex &index, const int64_t *stride) {
  int64_t offset = 0;
#pragma unroll
  for (int axis = 0; axis < kMaxAxes - 1; ++axis) offset += index.at[axis] * stride[axis];
  return offset;
}

__device__ __forceinline__ int64_t offset_of(const SwigluKernelParams &params, const int64_t *stride, int64_t row,
                                             int64_t column) {
  constexpr int kRowAxis = kMaxAxes - 2, kColumnAxis = kMaxAxes - 1;
  const int64_t offset = column * stride[kColumnAxis];
  if (!params.has_outer_axes) return offset + row * stride[kRowAxis];
  return offset + offset_of(split_outer_axes(params, row), stride);
}

// The thread's addresses, and how many of its V elements exist.
template <int NumInputs, int NumOutputs>
struct SwigluPlace {
  const char *in[NumInputs];
  char *out[NumOutputs];  // undefined if the output is NULL
  int64_t count;
};

template <typename T, int V, bool IsAlternating, int NumInputs, int NumOutputs>
__device__ __forceinline__ SwigluPlace<NumInputs, NumOutputs> find_swiglu_place(const SwigluKernelParams &params,
                                                                                const RowVector &at) {
  const int64_t column = at.vector * V;
  SwigluPlace<NumInputs, NumOutputs> place;
  place.count = params.columns - column;
  // The elements of vectors are neighbours; single elements have strides.
  const auto column_offset = [&](const int64_t *stride, GateUpLayout layout) {
    const int64_t offset = column * (V == 1 ? stride[kMaxAxes - 1] : static_cast<int64_t>(sizeof(T)));
    return V > 1 && IsAlternating && layout != GateUpLayout::kSeparate ? 2 * offset : offset;
  };
#pragma unroll
  for (int i = 0; i < NumInputs; ++i) {
    const GateUpLayout layout = i == kGradOut ? GateUpLayout::kSeparate : params.inputs;
    place.in[i] = params.in[i] + column_offset(params.in_stride[i], layout);
  }
#pragma unroll
  for (int i = 0; i < NumOutputs; ++i) {
    const bool is_gradient = NumOutputs > 1 && i != kRecomputedOut;
    const GateUpLayout layout = is_gradient ? params.gradients : GateUpLayout::kSeparate;
    place.out[i] = params.out[i] + column_offset(params.out_stride[i], layout);
  }
  if (params.has_outer_axes) {
    const OuterAxesIndex row = split_outer_axes(params, at.row);
#pragma unroll
    for (int i = 0; i < NumInputs; ++i) place.in[i] += offset_of(row, params.in_stride[i]);
#pragma unroll
    for (int i = 0; i < NumOutputs; ++i) place.out[i] += offset_of(row, params.out_stride[i]);
  } else {
#pragma unroll
    for (int i = 0; i < NumInputs; ++i) place.in[i] += at.row * params.in_row_stride[i];
#pragma unroll
    for (int i = 0; i < NumOutputs; ++i) place.out[i] += at.row * params.out_row_stride[i];
  }
  return place;
}

// Finds the factor of the row of a thread's vector. Returns false if the row is behind num_rows. A vector of several
// elements has one row and one factor.
template <typename T, int V>
__device__ __forceinline__ bool find_row_scale(const SwigluKernelParams &params, const RowVector &at,
                                               RealOf<T> *row_scale) {
  const int64_t column = V == 1 ? at.vector : 0;
  if (params.num_rows != nullptr && offset_of(params, params.row_index_stride, at.row, column) >=
                                        read_integer(params.num_rows, params.is_num_rows_64_bit, 0)) {
    return false;
  }
  *row_scale = 1;
  if (params.row_scale != nullptr) {
    *row_scale = load_row_scale<T>(params.row_scale + offset_of(params, params.row_scale_stride, at.row, column),
                                   params.is_row_scale_f32);
  }
  return true;
}

template <typename Real>
__device__ __forceinline__ const Form<Real> &form_of(const SwigluKernelParams &params) {
  if constexpr (sizeof(Real) == sizeof(double)) {
    return params.wide_form;
  } else {
    return params.form;
  }
}

// Processes the elements from `first` on. A gradient that is NULL is not written.
template <typename T, int V, bool IsPlain, int NumInputs, int NumOutputs>
__device__ __forceinline__ void process_vector(const SwigluKernelParams &params,
                                               const SwigluPlace<NumInputs, NumOutputs> &place, int64_t first,
                                               const Form<RealOf<T>> &form, RealOf<T> row_scale) {
  const int64_t byte_offset = first * static_cast<int64_t>(sizeof(T));
  Vector<T, V> in[NumInputs];
#pragma unroll
  for (int i = 0; i < NumInputs; ++i) in[i] = load_vector<Vector<T, V>>(place.in[i] + byte_offset);
  RealOf<T> value[NumInputs][V], result[NumOutputs][V];
#pragma unroll
  for (int i = 0; i < NumInputs; ++i) to_floats<T, V>(in[i], value[i]);
  compute_vector<IsPlain>(value, form, row_scale, params.row_scale != nullptr, result);
#pragma unroll
  for (int i = 0; i < NumOutputs; ++i) {
    if (NumOutputs == 1 || i == kRecomputedOut || params.out[i] != nullptr) {
      store_vector(place.out[i] + byte_offset, from_floats<T, V>(result[i]));
    }
  }
}

// Processes elements if gate and up alternate, or their gradients do. A thread reads all elements that it overwrites
// before it writes any.
template <typename T, int V, bool IsPlain, int NumInputs, int NumOutputs>
__device__ __forceinline__ void process_alternating(const SwigluKernelParams &params,
                                                    const SwigluPlace<NumInputs, NumOutputs> &place, int64_t first,
                                                    const Form<RealOf<T>> &form, RealOf<T> row_scale) {
  const int64_t byte_offset = first * static_cast<int64_t>(sizeof(T));
  Vector<T, V> in[NumInputs];
  // This load comes first, because separating gate and up waits for them.
  if constexpr (NumInputs == 3) in[kGradOut] = load_vector<Vector<T, V>>(place.in[kGradOut] + byte_offset);
  if (NumInputs == 2 || params.inputs != GateUpLayout::kSeparate) {
    const auto both = load_alternating<T, V>(place.in[kGate] + 2 * byte_offset);
    const bool is_up_first = params.inputs == GateUpLayout::kAlternatingUpFirst;
    in[kGate] = every_other<T, V>(both, is_up_first);
    in[kUp] = every_other<T, V>(both, !is_up_first);
  } else {
    in[kGate] = load_vector<Vector<T, V>>(place.in[kGate] + byte_offset);
    in[kUp] = load_vector<Vector<T, V>>(place.in[kUp] + byte_offset);
  }
  RealOf<T> value[NumInputs][V], result[NumOutputs][V];
#pragma unroll
  for (int i = 0; i < NumInputs; ++i) to_floats<T, V>(in[i], value[i]);
  compute_vector<IsPlain>(value, form, row_scale, params.row_scale != nullptr, result);
  if constexpr (NumInputs == 2) {
    store_vector(place.out[kOut] + byte_offset, from_floats<T, V>(result[kOut]));
  } else {
    if (params.gradients != GateUpLayout::kSeparate) {
      const auto both = alternate<T, V>(from_floats<T, V>(result[kGradGate]), from_floats<T, V>(result[kGradUp]),
                                        params.gradients == GateUpLayout::kAlternatingUpFirst);
      store_alternating<T, V>(place.out[kGradGate] + 2 * byte_offset, both);
    } else {
#pragma unroll
      for (int i = kGradGate; i <= kGradUp; ++i) {
        if (params.out[i] != nullptr) store_vector(place.out[i] + byte_offset, from_floats<T, V>(result[i]));
      }
    }
    if constexpr (NumOutputs == 3) {
      store_vector(place.out[kRecomputedOut] + byte_offset, from_floats<T, V>(result[kRecomputedOut]));
    }
  }
}

template <typename T, int V, bool IsBackward, bool IsPlain, bool HasOut, bool IsAlternating>
__global__ void __launch_bounds__(kSwigluThreads) swiglu_kernel(const __grid_constant__ SwigluKernelParams params) {
  static_assert(!IsAlternating || sizeof(T) < sizeof(double), "plan_swiglu gives F64 no alternating kernel");
  constexpr int kInputs = IsBackward ? 3 : 2, kOutputs = !IsBackward ? 1 : HasOut ? 3 : 2;
  const int64_t block = static_cast<int64_t>(blockIdx.y) * gridDim.x + blockIdx.x;
  const int64_t index = block * blockDim.x + threadIdx.x;
  begin_dependent_launch();
  if (index >= params.num_vectors) return;
  const Form<RealOf<T>> &form = form_of<RealOf<T>>(params);
  const RowVector at = split_vector(params, index);
  const SwigluPlace<kInputs, kOutputs> place = find_swiglu_place<T, V, IsAlternating, kInputs, kOutputs>(params, at);
  wait_for_previous_launch();
  RealOf<T> row_scale = 1;
  if constexpr (!IsPlain) {
    if (!find_row_scale<T, V>(params, at, &row_scale)) return;
  }
  if (V == 1 || place.count >= V) {
    if constexpr (IsAlternating) {
      process_alternating<T, V, IsPlain>(params, place, 0, form, row_scale);
    } else {
      process_vector<T, V, IsPlain>(params, place, 0, form, row_scale);
    }
  } else {
#pragma unroll 1
    for (int64_t i = 0; i < place.count; ++i) {
      if constexpr (IsAlternating) {
        process_alternating<T, 1, IsPlain>(params, place, i, form, row_scale);
      } else {
        process_vector<T, 1, IsPlain>(params, place, i, form, row_scale);
      }
    }
  }
}

// F64 has no plain kernels: its arithmetic costs more than they would save.
template <typename T, int V, bool IsAlternating>
Kernel find_swiglu_vector_kernel(SwigluVariant variant) {
  constexpr bool kPlain = sizeof(T) < sizeof(double);
  switch (variant.work) {
    case kSwigluForward:
      return pick_by_form(variant, swiglu_kernel<T, V, false, kPlain, true, IsAlternating>,
                          swiglu_kernel<T, V, false, false, true, IsAlternating>);
    case kSwigluGradients:
      return pick_by_form(variant, swiglu_kernel<T, V, true, kPlain, false, IsAlternating>,
                          swiglu_kernel<T, V, true, false, false, IsAlternating>);
    default:
      return pick_by_form(variant, swiglu_kernel<T, V, true, kPlain, true, IsAlternating>,
                          swiglu_kernel<T, V, true, false, true, IsAlternating>);
  }
}

// Returns the kernel for a vector width; NULL if T has none of this width.
template <typename T>
Kernel find_swiglu_kernel(int vector_elements, SwigluVariant variant) {
  constexpr int kSize = static_cast<int>(sizeof(T));
  if (variant.is_alternating) {
    if constexpr (kSize < 8) {
      if (vector_elements == 8 / kSize) return find_swiglu_vector_kernel<T, 8 / kSize, true>(variant);
      if (vector_elements == 16 / kSize) return find_swiglu_vector_kernel<T, 16 / kSize, true>(variant);
    }
    return {};
  }
  if (vector_elements == 1) return find_swiglu_vector_kernel<T, 1, false>(variant);
  if (vector_elements == 8 / kSize) return find_swiglu_vector_kernel<T, 8 / kSize, false>(variant);
  if (vector_elements == 16 / kSize) return find_swiglu_vector_kernel<T, 16 / kSize, false>(variant);
  return {};
}

}  // namespace rope
