// SPDX-License-Identifier: Apache-2.0
// swiglu_matrix.cuh - the SwiGLU kernels for the calls of servers: matrices with whole vectors in each row
//
//   row of each matrix      0 … V-1     V … 2V-1    …    … columns-1
//   vector of the row          0            1       …    vectors_per_row - 1
//
//   vector of all rows      blockIdx.x * blockDim.x + threadIdx.x
//
// A thread processes one vector of each matrix, of 4 to 16 bytes, or the vectors of a few rows below each other. Below
// 45 MB the instructions before a thread's loads limit the speed of a launch. So all numbers but the addresses have 32
// bits, params are few, and launches that are not programmatic have their own kernels, which do not wait. Small
// programmatic launches let the next launch begin at once, others behind their loads or at their end: blocks of the
// next launch would occupy multiprocessors that blocks of this one still need.
//
// For every element, forward reads two elements and writes one. Backward, of plain matrices of 16 bits and of matrices
// with options, reads three and writes two, with options perhaps three.
#pragma once

#include <type_traits>

#include "backend/cuda/kernels/addresses.cuh"
#include "backend/cuda/kernels/kernel.hpp"
#include "backend/cuda/kernels/occupancy.cuh"
#include "backend/cuda/kernels/programmatic_launch.cuh"
#include "backend/cuda/kernels/swiglu_activation.cuh"
#include "backend/cuda/kernels/swiglu_params.hpp"
#include "backend/cuda/kernels/vector.cuh"
#include "core/math/gating.hpp"
#include "plan/tuning.hpp"

namespace rope {

constexpr size_t kMaxSwigluVectorBytes = 16;

template <SwigluFormula kFormula>
constexpr bool kHasOptions = kFormula != SwigluFormula::kPlain &&kFormula != SwigluFormula::kForm;

// The number of blocks on a multiprocessor that the compiler leaves registers for; 0: any number.
template <SwigluFormula kFormula>
constexpr int kResidentMatrixBlocks = kFormula == SwigluFormula::kGegluErf
                                          ? min_blocks_per_multiprocessor(2048, kMaxSwigluMatrixThreads)
                                      : kFormula == SwigluFormula::kSoftcaps
                                          ? min_blocks_per_multiprocessor(1536, kMaxSwigluMatrixThreads)
                                          : 0;

// This number of blocks for kernels with several rows in each thread.
template <SwigluFormula kFormula>
constexpr int kResidentRowsBlocks = min_blocks_per_multiprocessor(kFormula == SwigluFormula::kBiases ? 1024 : 1280,
                                                                  kMaxSwigluMatrixThreads);

template <SwigluFormula kFormula>
using SwigluMatrixParamsOf = std::conditional_t<kHasOptions<kFormula>, SwigluOptionsMatrixParams, SwigluMatrixParams>;

template <SwigluFormula kFormula, typename T, int V, typename Params, int NumInputs>
__device__ __forceinline__ void add_matrix_biases(const Params &params, uint32_t column, float (&value)[NumInputs][V]) {
#pragma unroll
  for (int i = kGate; i <= kUp; ++i) {
    if (!kMayHaveBiases<kFormula> || params.bias[i] == nullptr) continue;
    const uint64_t bytes = params.is_bias_f32[i] ? uint64_t{column} * sizeof(float) : uint64_t{column} * sizeof(T);
    add_bias_vector<T, V>(params.bias[i] + bytes, params.is_bias_f32[i], value[i]);
  }
}

// Computes out for the vector from `column` on. The form is tested once for all elements.
template <SwigluFormula kFormula, typename T, int V>
__device__ __forceinline__ void gate_vector(const SwigluMatrixParamsOf<kFormula> &params, uint32_t column,
                                            float (&value)[2][V], float (&out)[1][V]) {
  constexpr bool kIsPlain = kFormula == SwigluFormula::kPlain;
  if constexpr (kHasOptions<kFormula>) {
    add_matrix_biases<kFormula, T>(params, column, value);
    compute_within_range<kFormula, T, V>(value, params.options, out);
  } else if (kIsPlain || moves_within_range(params.form)) {
#pragma unroll
    for (int i = 0; i < V; ++i) out[kOut][i] = swiglu<kIsPlain, true>(value[kGate][i], value[kUp][i], params.form);
  } else {
#pragma unroll
    for (int i = 0; i < V; ++i) out[kOut][i] = swiglu<kIsPlain>(value[kGate][i], value[kUp][i], params.form);
  }
}

template <typename T, int V, SwigluFormula kFormula, bool IsProgrammatic>
__global__ void __launch_bounds__(kMaxSwigluMatrixThreads, kResidentMatrixBlocks<kFormula>)
    swiglu_matrix_kernel(const __grid_constant__ SwigluMatrixParamsOf<kFormula> params) {
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
  float value[2][V], result[1][V];
  to_floats<T, V>(gates, value[kGate]);
  to_floats<T, V>(ups, value[kUp]);
  gate_vector<kFormula, T, V>(params, at.remainder * V, value, result);
  store_vector(out, from_floats<T, V>(result[kOut]));
  if (!kBeginsAtOnce && params.begins_last) begin_dependent_launch();
}

// Each thread processes one column of vectors in several rows. It reads biases once; with soft caps, which instructions
// limit, it executes fewer. It loads the next row before it computes the present one.
template <typename T, SwigluFormula kFormula>
__global__ void __launch_bounds__(kMaxSwigluMatrixThreads, kResidentRowsBlocks<kFormula>)
    swiglu_matrix_rows_kernel(const __grid_constant__ SwigluOptionsMatrixParams params) {
  constexpr int V = kMaxSwigluVectorBytes / sizeof(T);
  const uint32_t index = blockIdx.x * blockDim.x + threadIdx.x;
  if (index >= params.num_vectors) return;
  const DivmodResult at = params.vectors_per_row.divmod(index);
  const uint32_t first = at.quotient * params.rows_per_thread, left = params.rows - first;
  uint32_t rows = left < params.rows_per_thread ? left : params.rows_per_thread;
  const uint64_t column = uint64_t{at.remainder} * kMaxSwigluVectorBytes;
  const char *gate = params.gate + uint64_t{first} * params.gate_row + column;
  const char *up = params.up + uint64_t{first} * params.up_row + column;
  char *out = params.out + uint64_t{first} * params.out_row + column;
  wait_for_previous_launch_with(unused_bits(gate) | unused_bits(up) | unused_bits(out));
  Vector<T, V> gates = load_vector<Vector<T, V>>(gate), ups = load_vector<Vector<T, V>>(up);
  float bias[2][V] = {};
#pragma unroll
  for (int i = kGate; i <= kUp; ++i) {
    if (!kMayHaveBiases<kFormula> || params.bias[i] == nullptr) continue;
    const uint64_t size = params.is_bias_f32[i] ? sizeof(float) : sizeof(T);
    load_bias_vector<T, V>(params.bias[i] + uint64_t{at.remainder} * (V * size), params.is_bias_f32[i], bias[i]);
  }
  if (!params.begins_last) begin_dependent_launch();
#pragma unroll 1
  for (;;) {
    float value[2][V], result[1][V];
    to_floats<T, V>(gates, value[kGate]);
    to_floats<T, V>(ups, value[kUp]);
    const bool is_last = --rows == 0;
    if (!is_last) {
      gates = load_vector<Vector<T, V>>(gate += params.gate_row);
      ups = load_vector<Vector<T, V>>(up += params.up_row);
    }
    if constexpr (kMayHaveBiases<kFormula>) {
      add_bias_vector(bias[kGate], value[kGate]);
      add_bias_vector(bias[kUp], value[kUp]);
    }
    compute_within_range<kFormula, T, V>(value, params.options, result);
    store_vector(out, from_floats<T, V>(result[kOut]));
    if (is_last) break;
    out += params.out_row;
  }
  if (params.begins_last) begin_dependent_launch();
}

template <typename T, int V>
__device__ __forceinline__ void compute_plain_gradients(const Vector<T, V> (&in)[kMaxSwigluInputs],
                                                        float (&result)[2][V]) {
  float value[kMaxSwigluInputs][V];
#pragma unroll
  for (int i = 0; i < kMaxSwigluInputs; ++i) to_floats<T, V>(in[i], value[i]);
#pragma unroll
  for (int i = 0; i < V; ++i) {
    const SwigluGradient<float> gradient =
        swiglu_gradient<true>(value[kGate][i], value[kUp][i], value[kGradOut][i], Form<float>());
    result[kGradGate][i] = gradient.gate;
    result[kGradUp][i] = gradient.up;
  }
}

// Plain SwiGLU backward without the recomputed output, which would cost small launches 0.05 us. The next launch begins
// at once, or behind the loads.
template <typename T, int V, bool IsProgrammatic, bool BeginsLate>
__global__ void __launch_bounds__(kMaxSwigluMatrixThreads)
    swiglu_plain_gradient_kernel(const __grid_constant__ SwigluMatrixGradientParams params) {
  if (!BeginsLate) begin_dependent_launch();
  const uint32_t index = blockIdx.x * blockDim.x + threadIdx.x;
  if (index >= params.num_vectors) return;
  const DivmodResult at = params.vectors_per_row.divmod(index);
  const uint64_t column = uint64_t{at.remainder} * (V * sizeof(T));
  const char *source[kMaxSwigluInputs];
  char *target[2];
  uint32_t bits = 0;
#pragma unroll
  for (int i = 0; i < kMaxSwigluInputs; ++i) {
    source[i] = params.in[i] + uint64_t{at.quotient} * params.in_row[i] + column;
    bits |= unused_bits(source[i]);
  }
#pragma unroll
  for (int i = kGradGate; i <= kGradUp; ++i) {
    target[i] = params.out[i] + uint64_t{at.quotient} * params.out_row[i] + column;
    bits |= unused_bits(target[i]);
  }
  if (IsProgrammatic) wait_for_previous_launch_with(bits);
  Vector<T, V> in[kMaxSwigluInputs];
#pragma unroll
  for (int i = 0; i < kMaxSwigluInputs; ++i) in[i] = load_vector<Vector<T, V>>(source[i]);
  if (BeginsLate) begin_dependent_launch();
  float result[2][V];
  compute_plain_gradients<T, V>(in, result);
#pragma unroll
  for (int i = kGradGate; i <= kGradUp; ++i) {
    if (params.out[i] != nullptr) store_vector(target[i], from_floats<T, V>(result[i]));
  }
}

// Plain SwiGLU backward for tensors of one row. They are so small that the instructions before a thread's loads limit
// the speed of a launch, so there is no division into rows and columns.
template <typename T, int V>
__global__ void __launch_bounds__(kMaxSwigluMatrixThreads)
    swiglu_flat_gradient_kernel(const __grid_constant__ SwigluFlatGradientParams params) {
  begin_dependent_launch();
  const uint32_t index = blockIdx.x * blockDim.x + threadIdx.x;
  if (index >= params.num_vectors) return;
  const uint64_t offset = uint64_t{index} * (V * sizeof(T));
  Vector<T, V> in[kMaxSwigluInputs];
#pragma unroll
  for (int i = 0; i < kMaxSwigluInputs; ++i) in[i] = load_vector<Vector<T, V>>(params.in[i] + offset);
  float result[2][V];
  compute_plain_gradients<T, V>(in, result);
#pragma unroll
  for (int i = kGradGate; i <= kGradUp; ++i) store_vector(params.out[i] + offset, from_floats<T, V>(result[i]));
}

template <typename T, SwigluFormula kFormula>
__global__ void __launch_bounds__(kSwigluThreads)
    swiglu_matrix_gradient_kernel(const __grid_constant__ SwigluOptionsMatrixGradientParams params) {
  constexpr int V = kMaxSwigluVectorBytes / sizeof(T);
  begin_dependent_launch();
  const uint32_t index = blockIdx.x * blockDim.x + threadIdx.x;
  if (index >= params.num_vectors) return;
  const DivmodResult at = params.vectors_per_row.divmod(index);
  const uint64_t column = uint64_t{at.remainder} * kMaxSwigluVectorBytes;
  wait_for_previous_launch();
  Vector<T, V> in[kMaxSwigluInputs];
#pragma unroll
  for (int i = 0; i < kMaxSwigluInputs; ++i) {
    in[i] = load_vector<Vector<T, V>>(params.in[i] + uint64_t{at.quotient} * params.in_row[i] + column);
  }
  float value[kMaxSwigluInputs][V], result[kMaxSwigluOutputs][V];
#pragma unroll
  for (int i = 0; i < kMaxSwigluInputs; ++i) to_floats<T, V>(in[i], value[i]);
  add_matrix_biases<kFormula, T>(params, at.remainder * V, value);
  compute_within_range<kFormula, T, V>(value, params.options, result);
#pragma unroll
  for (int i = 0; i < kMaxSwigluOutputs; ++i) {
    if (params.out[i] == nullptr) continue;
    store_vector(params.out[i] + uint64_t{at.quotient} * params.out_row[i] + column, from_floats<T, V>(result[i]));
  }
}

// Returns the kernel of a formula after kForm; NULL if there is none. Launches that are not programmatic may use the
// kernel of those that are: its wait then returns at once.
template <typename T, SwigluFormula kFormula>
Kernel find_swiglu_options_matrix_kernel(int vector_elements, SwigluWork work) {
  constexpr int kWide = static_cast<int>(kMaxSwigluVectorBytes / sizeof(T));
  if (vector_elements != kWide) {
    if constexpr (has_half_vectors(kFormula, sizeof(T))) {
      if (vector_elements == kWide / 2 && work == kSwigluMatrix) {
        return kernel_of(swiglu_matrix_kernel<T, kWide / 2, kFormula, false>);
      }
    }
    return {};
  }
  if (work == kSwigluMatrixGradients) {
    if constexpr (kFormula != SwigluFormula::kOptions) {
      return kernel_of(swiglu_matrix_gradient_kernel<T, kFormula>);
    }
    return {};
  }
  if constexpr (kFormula == SwigluFormula::kBiases) {
    return kernel_of(swiglu_matrix_rows_kernel<T, kFormula>);
  } else {
    if constexpr (takes_rows(kFormula, sizeof(T))) {
      if (work == kSwigluMatrixRows) return kernel_of(swiglu_matrix_rows_kernel<T, kFormula>);
    }
    if constexpr (has_plain_launches(kFormula, sizeof(T))) {
      if (work == kSwigluMatrix) {
        return kernel_of(swiglu_matrix_kernel<T, kWide, kFormula, false>);
      }
    }
    return kernel_of(swiglu_matrix_kernel<T, kWide, kFormula, true>);
  }
}

template <typename T>
Kernel find_swiglu_options_matrix_kernel(int vector_elements, SwigluVariant variant) {
  switch (variant.formula) {
    case SwigluFormula::kGegluErf:
      return find_swiglu_options_matrix_kernel<T, SwigluFormula::kGegluErf>(vector_elements, variant.work);
    case SwigluFormula::kGegluTanh:
      return find_swiglu_options_matrix_kernel<T, SwigluFormula::kGegluTanh>(vector_elements, variant.work);
    case SwigluFormula::kReglu:
      return find_swiglu_options_matrix_kernel<T, SwigluFormula::kReglu>(vector_elements, variant.work);
    case SwigluFormula::kSoftcaps:
      return find_swiglu_options_matrix_kernel<T, SwigluFormula::kSoftcaps>(vector_elements, variant.work);
    case SwigluFormula::kBiases:
      return find_swiglu_options_matrix_kernel<T, SwigluFormula::kBiases>(vector_elements, variant.work);
    default:
      return find_swiglu_options_matrix_kernel<T, SwigluFormula::kOptions>(vector_elements, variant.work);
  }
}

template <typename T, int V>
Kernel find_swiglu_matrix_kernel(SwigluVariant variant) {
  constexpr SwigluFormula kPlain = SwigluFormula::kPlain, kForm = SwigluFormula::kForm;
  return variant.work == kSwigluMatrix
             ? pick_by_form(variant, swiglu_matrix_kernel<T, V, kPlain, false>,
                            swiglu_matrix_kernel<T, V, kForm, false>)
             : pick_by_form(variant, swiglu_matrix_kernel<T, V, kPlain, true>, swiglu_matrix_kernel<T, V, kForm, true>);
}

// Returns the kernel of plain SwiGLU backward, for types of 16 bits; NULL if there is none.
template <typename T>
Kernel find_swiglu_plain_gradient_kernel(int vector_elements, SwigluVariant variant) {
  if constexpr (sizeof(T) == 2) {
    constexpr int V = kSwigluGradientVectorBytes / static_cast<int>(sizeof(T));
    constexpr int kFlatV = kSwigluFlatVectorBytes / static_cast<int>(sizeof(T));
    const bool is_flat = variant.work == kSwigluFlatMatrixGradients;
    if (vector_elements != (is_flat ? kFlatV : V) || variant.formula != SwigluFormula::kPlain) return {};
    switch (variant.work) {
      case kSwigluFlatMatrixGradients:
        return kernel_of(swiglu_flat_gradient_kernel<T, kFlatV>);
      case kSwigluMatrixGradients:
        return kernel_of(swiglu_plain_gradient_kernel<T, V, false, false>);
      case kSwigluProgrammaticMatrixGradients:
        return kernel_of(swiglu_plain_gradient_kernel<T, V, true, false>);
      default:
        return kernel_of(swiglu_plain_gradient_kernel<T, V, true, true>);
    }
  }
  return {};
}

// Returns the kernel of matrices for a vector width; NULL if T has none of this width.
template <typename T>
Kernel find_swiglu_matrix_kernel(int vector_elements, SwigluVariant variant) {
  constexpr int kSize = static_cast<int>(sizeof(T));
  if (variant.is_alternating) return {};
  if (variant.formula > SwigluFormula::kForm) return find_swiglu_options_matrix_kernel<T>(vector_elements, variant);
  if (is_of_matrix_gradients(variant.work)) return find_swiglu_plain_gradient_kernel<T>(vector_elements, variant);
  if (variant.work == kSwigluMatrixRows) return {};
  if (vector_elements == 8 / kSize) return find_swiglu_matrix_kernel<T, 8 / kSize>(variant);
  if (vector_elements == 16 / kSize) return find_swiglu_matrix_kernel<T, 16 / kSize>(variant);
  return {};
}

}  // namespace rope
