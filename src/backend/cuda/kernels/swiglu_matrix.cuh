// swiglu_matrix.cuh - the forward SwiGLU kernel of what servers ask for: matrices whose rows have whole vectors
//
//   row of each matrix      0 … V-1     V … 2V-1    …    … columns-1
//   vector of the row          0            1       …    vectors_per_row - 1
//
//   vector of all rows      blockIdx.x * blockDim.x + threadIdx.x
//
// A thread takes one vector of each matrix, of 8 or 16 bytes. Below 45 MB what a thread does before its loads bounds a
// launch, so all is 32 bits but the addresses, params are few, and launches that are not programmatic have kernels of
// their own, which wait for nothing. Programmatic ones let the next launch begin at once where they are small, else behind
// their loads or at their end: its blocks would take the place of blocks of this launch that have not begun.
//
// Moves, for every element, two elements in and one out.
#pragma once

#include "backend/cuda/kernels/addresses.cuh"
#include "backend/cuda/kernels/programmatic_launch.cuh"
#include "backend/cuda/kernels/swiglu_params.hpp"
#include "backend/cuda/kernels/vector.cuh"
#include "core/math/gating.hpp"
#include "plan/tuning.hpp"

namespace rope {

constexpr size_t kMaxSwigluVectorBytes = 16;

template <typename T, int V, bool IsPlain, bool IsProgrammatic>
__global__ void __launch_bounds__(kMaxSwigluMatrixThreads)
    swiglu_matrix_kernel(const __grid_constant__ SwigluMatrixParams params) {
  constexpr bool kBeginsAtOnce = !IsProgrammatic || V * sizeof(T) < kMaxSwigluVectorBytes;
  if (kBeginsAtOnce) begin_dependent_launch();
  const uint32_t index = blockIdx.x * blockDim.x + threadIdx.x;
  if (index >= params.num_vectors) return;
  const DivmodResult at = params.vectors_per_row.divmod(index);
  const uint64_t column = uint64_t{at.remainder} * (V * sizeof(T));
  const char *const gate = params.gate + uint64_t{at.quotient} * params.gate_row + column;
  const char *const up = params.up + uint64_t{at.quotient} * params.up_row + column;
  char *const out = params.out + uint64_t{at.quotient} * params.out_row + column;
  if (IsProgrammatic) wait_for_previous_launch_with(unused_bits(gate) | unused_bits(up) | unused_bits(out));
  const Vector<T, V> gates = load_vector<Vector<T, V>>(gate), ups = load_vector<Vector<T, V>>(up);
  if (!kBeginsAtOnce && !params.begins_last) begin_dependent_launch();
  float x[V], y[V];
  to_floats<T, V>(gates, x);
  to_floats<T, V>(ups, y);
  // Asked once for all elements.
  if (IsPlain || moves_within_range(params.form)) {
#pragma unroll
    for (int i = 0; i < V; ++i) x[i] = swiglu<IsPlain, true>(x[i], y[i], params.form);
  } else {
#pragma unroll
    for (int i = 0; i < V; ++i) x[i] = swiglu<IsPlain>(x[i], y[i], params.form);
  }
  store_vector(out, from_floats<T, V>(x));
  if (!kBeginsAtOnce && params.begins_last) begin_dependent_launch();
}

template <typename T, int V>
const void *find_swiglu_matrix_kernel(SwigluVariant variant) {
  const auto pick = [&](auto plain, auto general) {
    return variant.is_plain ? reinterpret_cast<const void *>(plain) : reinterpret_cast<const void *>(general);
  };
  return variant.work == kSwigluMatrix
             ? pick(swiglu_matrix_kernel<T, V, true, false>, swiglu_matrix_kernel<T, V, false, false>)
             : pick(swiglu_matrix_kernel<T, V, true, true>, swiglu_matrix_kernel<T, V, false, true>);
}

// NULL for a width that T has none of.
template <typename T>
const void *find_swiglu_matrix_kernel(int vector_elements, SwigluVariant variant) {
  constexpr int kSize = static_cast<int>(sizeof(T));
  if constexpr (kSize < 8) {
    if (vector_elements == 8 / kSize) return find_swiglu_matrix_kernel<T, 8 / kSize>(variant);
    if (vector_elements == 16 / kSize) return find_swiglu_matrix_kernel<T, 16 / kSize>(variant);
  }
  return nullptr;
}

}  // namespace rope
