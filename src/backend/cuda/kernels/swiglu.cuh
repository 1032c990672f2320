// swiglu.cuh - the SwiGLU kernels, forward and backward
//
// Forward reads two elements and writes one, backward reads three and writes two; nothing else moves. One thread takes
// one vector of each tensor: with more, the time depends on where the buffers happen to lie.
#pragma once

#include "backend/cuda/kernels/swiglu_params.hpp"
#include "backend/cuda/kernels/vector.cuh"
#include "core/gating.hpp"
#include "plan/tuning.hpp"

namespace rope {

// Where a thread works: a row, and the vector in it.
struct RowVector {
  int64_t row;
  int64_t vector;
};

__device__ __forceinline__ RowVector split_vector(const SwigluKernelParams &params, int64_t index) {
  if (params.is_single_row) return {0, index};
  if (params.is_narrow) {
    const Divided divided = params.narrow_vectors_per_row.divide(static_cast<uint32_t>(index));
    return {divided.quotient, divided.remainder};
  }
  return {index / params.vectors_per_row, index % params.vectors_per_row};
}

__device__ __forceinline__ int64_t offset_of(const SwigluKernelParams &params, const int64_t *stride, int64_t row,
                                             int64_t column) {
  constexpr int kRowAxis = kMaxAxes - 2, kColumnAxis = kMaxAxes - 1;
  int64_t offset = column * stride[kColumnAxis];
  if (!params.has_outer_axes) return offset + row * stride[kRowAxis];
  for (int axis = kRowAxis; axis > 0; --axis) {
    offset += row % params.shape[axis] * stride[axis];
    row /= params.shape[axis];
  }
  return offset + row * stride[0];
}

// The thread's addresses, and how many of its V elements exist.
template <int NumInputs, int NumOutputs>
struct SwigluPlace {
  const char *in[NumInputs];
  char *out[NumOutputs];
  int64_t count;
};

template <int V, int NumInputs, int NumOutputs>
__device__ __forceinline__ SwigluPlace<NumInputs, NumOutputs> find_place(const SwigluKernelParams &params,
                                                                         int64_t index) {
  const RowVector at = split_vector(params, index);
  const int64_t column = at.vector * V;
  SwigluPlace<NumInputs, NumOutputs> place;
  place.count = params.shape[kMaxAxes - 1] - column;
#pragma unroll
  for (int i = 0; i < NumInputs; ++i) {
    place.in[i] = params.in[i] + offset_of(params, params.in_stride[i], at.row, column);
  }
#pragma unroll
  for (int i = 0; i < NumOutputs; ++i) {
    place.out[i] = nullptr;
    if (NumOutputs == 1 || params.out[i] != nullptr) {
      place.out[i] = params.out[i] + offset_of(params, params.out_stride[i], at.row, column);
    }
  }
  return place;
}

// Forward: one result of two values. Backward: the gradients of three, of which a NULL one is not wanted, and with
// HasOut the forward result again.
template <typename T, int V, bool IsPlain, int NumInputs, int NumOutputs>
__device__ __forceinline__ void process_vector(const SwigluPlace<NumInputs, NumOutputs> &place, int64_t byte_offset,
                                               const GatingForm &form) {
  Vector<T, V> in[NumInputs];
#pragma unroll
  for (int i = 0; i < NumInputs; ++i) in[i] = load_vector<Vector<T, V>>(place.in[i] + byte_offset);
  float value[NumInputs][V], result[NumOutputs][V];
#pragma unroll
  for (int i = 0; i < NumInputs; ++i) to_floats<T, V>(in[i], value[i]);
#pragma unroll
  for (int i = 0; i < V; ++i) {
    if constexpr (NumInputs == 2) {
      result[kOut][i] = swiglu<IsPlain>(value[kGate][i], value[kUp][i], form);
    } else {
      const SwigluGradient gradient =
          swiglu_gradient<IsPlain>(value[kGate][i], value[kUp][i], value[kGradOut][i], form);
      result[kGradGate][i] = gradient.gate;
      result[kGradUp][i] = gradient.up;
      if constexpr (NumOutputs == 3) {
        result[kRecomputedOut][i] = swiglu<IsPlain>(value[kGate][i], value[kUp][i], form);
      }
    }
  }
#pragma unroll
  for (int i = 0; i < NumOutputs; ++i) {
    if (NumOutputs == 1 || i == kRecomputedOut || place.out[i] != nullptr) {
      store_vector(place.out[i] + byte_offset, from_floats<T, V>(result[i]));
    }
  }
}

template <typename T, int V, bool IsBackward, bool IsPlain, bool HasOut>
__global__ void __launch_bounds__(kSwigluThreads) swiglu_kernel(const __grid_constant__ SwigluKernelParams params) {
  constexpr int kInputs = IsBackward ? 3 : 2, kOutputs = !IsBackward ? 1 : HasOut ? 3 : 2;
  const int64_t block = static_cast<int64_t>(blockIdx.y) * gridDim.x + blockIdx.x;
  const int64_t index = block * kSwigluThreads + threadIdx.x;
  begin_dependent_launch();
  if (index >= params.num_vectors) return;
  const SwigluPlace<kInputs, kOutputs> place = find_place<V, kInputs, kOutputs>(params, index);
  wait_for_previous_launch();
  if (V == 1 || place.count >= V) {
    process_vector<T, V, IsPlain>(place, 0, params.form);
  } else {
    for (int64_t i = 0; i < place.count; ++i) {
      process_vector<T, 1, IsPlain>(place, i * static_cast<int64_t>(sizeof(T)), params.form);
    }
  }
}

template <typename T, int V>
const void *find_swiglu_kernel(SwigluVariant variant) {
  const auto pick = [&](auto plain, auto general) {
    return variant.is_plain ? reinterpret_cast<const void *>(plain) : reinterpret_cast<const void *>(general);
  };
  if (!variant.is_backward)
    return pick(swiglu_kernel<T, V, false, true, true>, swiglu_kernel<T, V, false, false, true>);
  if (variant.has_out) return pick(swiglu_kernel<T, V, true, true, true>, swiglu_kernel<T, V, true, false, true>);
  return pick(swiglu_kernel<T, V, true, true, false>, swiglu_kernel<T, V, true, false, false>);
}

// The kernel for a vector width, or NULL for a width that T has none of.
template <typename T>
const void *find_swiglu_kernel(int vector_elements, SwigluVariant variant) {
  constexpr int kSize = static_cast<int>(sizeof(T));
  switch (vector_elements) {
    case 1:
      return find_swiglu_kernel<T, 1>(variant);
    case 8 / kSize:
      return find_swiglu_kernel<T, 8 / kSize>(variant);
    case 16 / kSize:
      return find_swiglu_kernel<T, 16 / kSize>(variant);
    default:
      if constexpr (kSize == 2) {
        if (vector_elements == 2) return find_swiglu_kernel<T, 2>(variant);
      }
      return nullptr;
  }
}

}  // namespace rope
