// SPDX-License-Identifier: Apache-2.0
// swiglu_code_matrix.cuh - the SwiGLU kernels of matrices of 16 bits, or of an expert's matrices, whose out has codes
//
//   row of each matrix      0 … 7     8 … 15    …    … columns-1
//   vector of the row         0         1       …    vectors_per_row - 1
//
// swiglu_code_matrix_kernel: a thread has kVectors vectors of a row. Without written scales, or with two vectors, it
// has those of rows_per_thread rows, one after the other. The group of a scale has 2^lanes_log2 neighbouring lanes of a
// warp, which find its largest magnitude by shuffles. With two vectors:
//
//   vector of the group     0   1   …   lanes-1   lanes   lanes+1   …   2*lanes-1
//   lane                    0   1   …   lanes-1     0        1      …    lanes-1
//
// swiglu_code_row_kernel: a block has a row with one scale. Each of its threads holds up to kVectorsOfCodeRow vectors,
// blockDim.x apart. If a row is longer, it reads and computes the other vectors twice, once for the largest magnitude
// and once for the codes; the second time the inputs are in the caches.
//
// Both read two elements for every code that they write, and write a scale for each group. Rows that do not exist are
// neither read nor written, except that the kernels clear the padding of scales in tiles.
#pragma once

#include "backend/cuda/kernels/codes.cuh"
#include "backend/cuda/kernels/kernel.hpp"
#include "backend/cuda/kernels/programmatic_launch.cuh"
#include "backend/cuda/kernels/swiglu_code_vector.cuh"
#include "backend/cuda/kernels/swiglu_vector.cuh"
#include "backend/cuda/kernels/vector.cuh"
#include "core/problem/integers.hpp"
#include "plan/tuning.hpp"

namespace rope {

// A row of gate, up and out, from the number of a span among those of all matrices. `row` is then the span's number in
// its matrix: the row itself, unless spans have several.
struct CodeRow {
  uint32_t expert;
  uint32_t row;

  __device__ __forceinline__ CodeRow(const SwigluCodeMatrixParams &params, uint32_t span) : expert(0), row(span) {
    if (!params.has_experts) return;
    const DivmodResult place = params.spans_per_matrix.divmod(span);
    expert = place.quotient;
    row = place.remainder;
  }

  __device__ __forceinline__ const char *find(const char *data, const SwigluExpertStrides &stride) const {
    return data + expert * stride.expert + row * stride.row;
  }

  // Returns how many rows of the matrix exist from this one on, at most `most`.
  __device__ __forceinline__ uint32_t count_rows(const SwigluCodeMatrixParams &params, uint32_t most) const {
    uint32_t end = params.rows;
    if (params.rows_there != nullptr) {
      const int64_t entry = params.has_experts ? expert * params.rows_there_stride : 0;
      const int64_t given = read_integer(params.rows_there, params.is_rows_there_64_bit, entry);
      if (given < end) end = given < 0 ? 0 : static_cast<uint32_t>(given);
    }
    if (row >= end) return 0;
    return end - row < most ? end - row : most;
  }

  __device__ __forceinline__ int64_t scales_offset(const SwigluCodeMatrixParams &params) const {
    return expert * params.scales_stride.expert + row * params.scales_stride.row;
  }

  __device__ __forceinline__ void clear_padding(const SwigluCodeMatrixParams &params, uint32_t group) const {
    if (params.has_padding) params.codes.clear_padding(scales_offset(params), row, group, 1, 1);
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

template <typename T, bool IsPlain, bool HasScales, int kVectors>
__global__ void __launch_bounds__(kSwigluCodeThreads)
    swiglu_code_matrix_kernel(const __grid_constant__ SwigluCodeMatrixParams params) {
  static_assert(sizeof(T) == 2, "");
  constexpr bool kHasSpan = kVectors > 1 || !HasScales;
  if constexpr (kVectors > 1 && !kHasFurtherCodeKernels) __trap();
  const SwigluCodes &codes = params.codes;
  const uint32_t index = blockIdx.x * blockDim.x + threadIdx.x, lanes = HasScales ? 1u << params.lanes_log2 : 1;
  const DivmodResult at = params.units_per_row.divmod(HasScales ? index >> params.lanes_log2 : index);
  const uint32_t unit = at.remainder, lane = HasScales ? index & (lanes - 1) : 0;
  const uint32_t first = unit * (kVectors * lanes) + lane;
  CodeRow row(params, at.quotient);
  if (kHasSpan) row.row *= params.rows_per_thread;
  const char *gate = row.find(params.in[kGate], params.in_stride[kGate]) + uint64_t{first} * 16;
  const char *up = row.find(params.in[kUp], params.in_stride[kUp]) + uint64_t{first} * 16;
  wait_for_previous_launch();
  const bool is_inside = index < params.num_threads;
  const uint32_t rows_there = is_inside ? row.count_rows(params, kHasSpan ? params.rows_per_thread : 1) : 0;
  char *out = params.out;
  int64_t scales = 0;
  float given = 1, factor = 1, largest_of_all = 0;
  // All lanes of a warp take part in the shuffles, those of rows that do not exist with 0.
  const uint32_t rounds = !HasScales ? rows_there : kHasSpan ? params.rows_per_thread : 1;
#pragma unroll 1
  for (uint32_t round = 0; round < rounds; ++round) {
    const bool is_there = !HasScales || round < rows_there;
    float value[kVectors][8], largest = 0;
    if (is_there) {
      if (round == 0) given = codes.given_scale(row.expert);
      Vector<T, 8> gates[kVectors], ups[kVectors];
#pragma unroll
      for (uint32_t i = 0; i < kVectors; ++i) {
        gates[i] = load_vector<Vector<T, 8>>(gate + i * lanes * 16);
        ups[i] = load_vector<Vector<T, 8>>(up + i * lanes * 16);
      }
      begin_dependent_launch();
      // The loads do not wait for these.
      if (round == 0) {
        out = const_cast<char *>(row.find(params.out, params.out_stride));
        if (HasScales) scales = row.scales_offset(params) + codes.place_of_group(unit);
      }
#pragma unroll
      for (int i = 0; i < kVectors; ++i) {
        compute_values<T, IsPlain>(params, gates[i], ups[i], value[i]);
        if (HasScales || codes.amax != nullptr) largest = larger_magnitude_of(largest, value[i]);
      }
      if (!HasScales && round == 0) factor = code_factor(given, codes.scale_multiplies);
    }
    if (codes.amax != nullptr) largest_of_all = max_magnitude(largest_of_all, largest);
    if (HasScales) {
      const GroupScale scale = codes.scale_of(max_over_lanes(bits_of(largest), params.lanes_log2), given);
      factor = scale.factor;
      if (lane == 0) {
        if (is_there) codes.scales.store_at(scales + codes.place_of_row(row.row), scale.bits);
        if (is_inside && row.row < params.rows) row.clear_padding(params, unit);
      }
    }
    if (is_there) {
#pragma unroll
      for (uint32_t i = 0; i < kVectors; ++i) store_vector_of_codes(codes, out, first + i * lanes, factor, value[i]);
    }
    ++row.row;
    gate += params.in_stride[kGate].row;
    up += params.in_stride[kUp].row;
    out += params.out_stride.row;
    scales += params.scales_stride.row;
  }
  if (codes.amax == nullptr) return;
  // A request of each warp to this one address would take longer than the rest.
  const uint32_t of_block = max_over_block<kSwigluCodeThreads>(bits_of(largest_of_all));
  if (threadIdx.x == 0) raise_magnitude(reinterpret_cast<uint32_t *>(codes.amax), of_block);
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
  if (threadIdx.x == 0) row.clear_padding(params, 0);
  if (row.count_rows(params, 1) == 0) return;
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
    codes.store_scale(row.scales_offset(params), row.row, 0, scale.bits);
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
Kernel find_swiglu_code_matrix_kernel(int vector_elements, SwigluVariant variant) {
  if (vector_elements != 8 || variant.is_alternating || variant.formula > SwigluFormula::kForm) return {};
  switch (variant.work) {
    case kSwigluCodeMatrix:
      return pick_by_form(variant, swiglu_code_matrix_kernel<T, true, false, 1>,
                          swiglu_code_matrix_kernel<T, false, false, 1>);
    case kSwigluScaledCodeMatrix:
      return pick_by_form(variant, swiglu_code_matrix_kernel<T, true, true, 1>,
                          swiglu_code_matrix_kernel<T, false, true, 1>);
    case kSwigluScaledCodeSpans:
      return pick_by_form(variant, swiglu_code_matrix_kernel<T, true, true, 2>,
                          swiglu_code_matrix_kernel<T, false, true, 2>);
    default:
      return pick_by_form(variant, swiglu_code_row_kernel<T, true>, swiglu_code_row_kernel<T, false>);
  }
}

}  // namespace rope
