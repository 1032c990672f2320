// SPDX-License-Identifier: Apache-2.0
// swiglu_code_matrix.cuh - the SwiGLU kernels of matrices of 16 bits, or of an expert's matrices, whose out has codes
//
//   row of each matrix      0 … 7     8 … 15    …    … columns-1
//   vector of the row         0         1       …    vectors_per_row - 1
//
// swiglu_code_matrix_kernel: without written scales a thread has one vector of each matrix, with written scales two.
// The group of a scale has 2^lanes_log2 neighbouring lanes of a warp, which find its largest magnitude by shuffles:
//
//   vector of the group     0   1   …   lanes-1   lanes   lanes+1   …   2*lanes-1
//   lane                    0   1   …   lanes-1     0        1      …    lanes-1
//
// swiglu_code_row_kernel: a block has a row with one scale. Each of its threads holds up to kVectorsOfCodeRow vectors,
// blockDim.x apart. If a row is longer, it reads and computes the other vectors twice, once for the largest magnitude
// and once for the codes; the second time the inputs are in the caches.
//
// Both read two elements for every code that they write, and write a scale for each group. Rows that do not exist are
// neither read nor written.
#pragma once

#include "backend/cuda/kernels/codes.cuh"
#include "backend/cuda/kernels/programmatic_launch.cuh"
#include "backend/cuda/kernels/swiglu_code_vector.cuh"
#include "backend/cuda/kernels/swiglu_vector.cuh"
#include "backend/cuda/kernels/vector.cuh"
#include "core/problem/integers.hpp"
#include "plan/tuning.hpp"

namespace rope {

// Finds where a row of gate, up and out begins, and whether it exists.
struct CodeRow {
  uint32_t expert;
  uint32_t row;

  __device__ __forceinline__ CodeRow(const SwigluCodeMatrixParams &params, uint32_t of_all) : expert(0), row(of_all) {
    if (!params.has_experts) return;
    const DivmodResult place = params.rows_per_expert.divmod(of_all);
    expert = place.quotient;
    row = place.remainder;
  }

  __device__ __forceinline__ const char *find(const char *data, const SwigluExpertStrides &stride) const {
    return data + expert * stride.expert + row * stride.row;
  }

  __device__ __forceinline__ bool exists(const SwigluCodeMatrixParams &params) const {
    if (params.rows_there == nullptr) return true;
    const int64_t entry = params.has_experts ? expert * params.rows_there_stride : 0;
    return row < read_integer(params.rows_there, params.is_rows_there_64_bit, entry);
  }

  __device__ __forceinline__ void store_scale(const SwigluCodeMatrixParams &params, uint32_t group, bool is_there,
                                              uint32_t bits) const {
    const int64_t offset = expert * params.scales_stride.expert + row * params.scales_stride.row;
    if (is_there) params.codes.store_scale(offset, row, group, bits);
    if (params.has_padding) params.codes.clear_padding(offset, row, group, 1, 1);
  }
};

// Computes the values of a vector.
template <typename T, bool IsPlain>
__device__ __forceinline__ void compute_values(const SwigluCodeMatrixParams &params, const Vector<T, 8> &gate,
                                               const Vector<T, 8> &up, float (&result)[8]) {
  float value[2][8], of_vector[1][8];
  to_floats<T, 8>(gate, value[kGate]);
  to_floats<T, 8>(up, value[kUp]);
  compute_vector<IsPlain>(value, params.form, 1.0f, false, of_vector);
  if (params.codes.rounds_first) to_floats<T, 8>(from_floats<T, 8>(of_vector[kOut]), of_vector[kOut]);
#pragma unroll
  for (int i = 0; i < 8; ++i) result[i] = of_vector[kOut][i];
}

template <typename T, bool IsPlain, bool HasScales>
__global__ void __launch_bounds__(kSwigluCodeThreads)
    swiglu_code_matrix_kernel(const __grid_constant__ SwigluCodeMatrixParams params) {
  constexpr int kVectors = HasScales ? 2 : 1;
  static_assert(sizeof(T) == 2, "");
  const SwigluCodes &codes = params.codes;
  const uint32_t index = blockIdx.x * blockDim.x + threadIdx.x, lanes = 1u << params.lanes_log2;
  const DivmodResult at = params.units_per_row.divmod(HasScales ? index >> params.lanes_log2 : index);
  const uint32_t group = at.remainder, lane = index & (lanes - 1);
  const uint32_t first = HasScales ? group * (2 * lanes) + lane : at.remainder;
  const CodeRow row(params, at.quotient);
  const uint64_t bytes = uint64_t{first} * 16;
  const char *const gate = row.find(params.in[kGate], params.in_stride[kGate]) + bytes;
  const char *const up = row.find(params.in[kUp], params.in_stride[kUp]) + bytes;
  wait_for_previous_launch();
  const bool is_inside = index < params.num_threads, is_there = is_inside && row.exists(params);
  Vector<T, 8> gates[kVectors] = {}, ups[kVectors] = {};
  float given = 1;
  if (is_there) {
#pragma unroll
    for (uint32_t i = 0; i < kVectors; ++i) {
      gates[i] = load_vector<Vector<T, 8>>(gate + i * lanes * 16);
      ups[i] = load_vector<Vector<T, 8>>(up + i * lanes * 16);
    }
    given = codes.given_scale(row.expert);
  }
  begin_dependent_launch();
  float value[kVectors][8];
#pragma unroll
  for (int i = 0; i < kVectors; ++i) compute_values<T, IsPlain>(params, gates[i], ups[i], value[i]);
  float factor = 1;
  if (HasScales || codes.amax != nullptr) {
    float largest = 0;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) largest = larger_magnitude_of(largest, value[i]);
    uint32_t magnitude = is_there ? bits_of(largest) : 0;
    // Lanes of rows that do not exist take part in the shuffles, with 0.
    if (HasScales) magnitude = max_over_lanes(magnitude, params.lanes_log2);
    if (codes.amax != nullptr) {
      // A request of each warp to this one address would take longer than the rest.
      const uint32_t of_block = max_over_block<kSwigluCodeThreads>(magnitude);
      if (threadIdx.x == 0) raise_magnitude(reinterpret_cast<uint32_t *>(codes.amax), of_block);
    }
    if (HasScales) {
      const GroupScale scale = codes.scale_of(magnitude, given);
      factor = scale.factor;
      if (is_inside && lane == 0) row.store_scale(params, group, is_there, scale.bits);
    }
  }
  if (!is_there) return;
  if (!HasScales) factor = code_factor(given, codes.scale_multiplies);
  char *const out = const_cast<char *>(row.find(params.out, params.out_stride));
#pragma unroll
  for (uint32_t i = 0; i < kVectors; ++i) store_vector_of_codes(codes, out, first + i * lanes, factor, value[i]);
}

template <typename T, bool IsPlain>
__global__ void __launch_bounds__(kMaxSwigluCodeRowThreads, 2)
    swiglu_code_row_kernel(const __grid_constant__ SwigluCodeMatrixParams params) {
  static_assert(sizeof(T) == 2, "");
  const SwigluCodes &codes = params.codes;
  const CodeRow row(params, blockIdx.x);
  const char *const gate = row.find(params.in[kGate], params.in_stride[kGate]);
  const char *const up = row.find(params.in[kUp], params.in_stride[kUp]);
  wait_for_previous_launch();
  if (!row.exists(params)) {
    if (threadIdx.x == 0) row.store_scale(params, 0, false, 0);
    return;
  }
  const auto vector_of = [](int i) { return threadIdx.x + static_cast<uint32_t>(i) * blockDim.x; };
  Vector<T, 8> gates[kVectorsOfCodeRow] = {}, ups[kVectorsOfCodeRow] = {};
#pragma unroll
  for (int i = 0; i < kVectorsOfCodeRow; ++i) {
    if (vector_of(i) >= params.vectors_per_row) continue;
    gates[i] = load_vector<Vector<T, 8>>(gate + uint64_t{vector_of(i)} * 16);
    ups[i] = load_vector<Vector<T, 8>>(up + uint64_t{vector_of(i)} * 16);
  }
  const auto compute = [&](uint32_t vector, float(&result)[8]) {
    compute_values<T, IsPlain>(params, load_vector<Vector<T, 8>>(gate + uint64_t{vector} * 16),
                               load_vector<Vector<T, 8>>(up + uint64_t{vector} * 16), result);
  };
  const float given = codes.given_scale(row.expert);
  begin_dependent_launch();
  float value[kVectorsOfCodeRow][8], largest = 0;
#pragma unroll
  for (int i = 0; i < kVectorsOfCodeRow; ++i) {
    compute_values<T, IsPlain>(params, gates[i], ups[i], value[i]);
    if (vector_of(i) < params.vectors_per_row) largest = larger_magnitude_of(largest, value[i]);
  }
#pragma unroll 1
  for (uint32_t vector = vector_of(kVectorsOfCodeRow); vector < params.vectors_per_row; vector += blockDim.x) {
    float further[8];
    compute(vector, further);
    largest = larger_magnitude_of(largest, further);
  }
  const uint32_t magnitude = max_over_block<kMaxSwigluCodeRowThreads>(bits_of(largest));
  const GroupScale scale = codes.scale_of(magnitude, given);
  if (threadIdx.x == 0) {
    row.store_scale(params, 0, true, scale.bits);
    if (codes.amax != nullptr) raise_magnitude(reinterpret_cast<uint32_t *>(codes.amax), magnitude);
  }
  char *const out = const_cast<char *>(row.find(params.out, params.out_stride));
#pragma unroll
  for (int i = 0; i < kVectorsOfCodeRow; ++i) {
    if (vector_of(i) >= params.vectors_per_row) continue;
    store_vector_of_codes(codes, out, vector_of(i), scale.factor, value[i]);
  }
#pragma unroll 1
  for (uint32_t vector = vector_of(kVectorsOfCodeRow); vector < params.vectors_per_row; vector += blockDim.x) {
    float further[8];
    compute(vector, further);
    store_vector_of_codes(codes, out, vector, scale.factor, further);
  }
}

template <typename T>
const void *find_swiglu_code_kernel(SwigluVariant variant) {
  const auto pick = [&](auto plain, auto form) {
    return variant.formula == SwigluFormula::kPlain ? reinterpret_cast<const void *>(plain)
                                                    : reinterpret_cast<const void *>(form);
  };
  switch (variant.work) {
    case kSwigluCodeMatrix:
      return pick(swiglu_code_matrix_kernel<T, true, false>, swiglu_code_matrix_kernel<T, false, false>);
    case kSwigluScaledCodeMatrix:
      return pick(swiglu_code_matrix_kernel<T, true, true>, swiglu_code_matrix_kernel<T, false, true>);
    default:
      return pick(swiglu_code_row_kernel<T, true>, swiglu_code_row_kernel<T, false>);
  }
}

}  // namespace rope
