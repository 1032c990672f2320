// swiglu_code_matrix.cuh - the SwiGLU kernel of matrices of 16 bits, or of an expert's matrices, whose out has codes
//
//   row of each matrix      0 … 7     8 … 15    …    … columns-1
//   vector of the row         0         1       …    vectors_per_row - 1
//
//   vector of all rows      blockIdx.x * blockDim.x + threadIdx.x
//
// A thread takes one vector of each matrix. A group of a written scale is 2^lanes_log2 vectors, which neighbouring lanes of
// a warp have; they find its largest magnitude by shuffles, and the first of them stores the scale.
//
// Moves, for every element, two elements in and one code out, and a scale for each group. Rows that are not there are
// neither read nor written.
#pragma once

#include "backend/cuda/kernels/codes.cuh"
#include "backend/cuda/kernels/programmatic_launch.cuh"
#include "backend/cuda/kernels/swiglu.cuh"

namespace rope {

// The codes of eight values, in order.
template <typename Float8>
__device__ __forceinline__ void store_codes(char *to, float factor, const float (&value)[8]) {
  Words<8> codes = {};
#pragma unroll
  for (int i = 0; i < 8; i += 2) {
    const uint32_t pair =
        join_codes<Float8>(multiply_rounded(value[i], factor), multiply_rounded(value[i + 1], factor));
    codes.word[i / 4] |= pair << (i % 4 * 8);
  }
  store_vector(to, codes);
}

__device__ __forceinline__ void store_code_pairs(char *to, float factor, const float (&value)[8]) {
  Words<4> codes = {};
#pragma unroll
  for (uint32_t i = 0; i < 8; ++i) {
    codes.word[0] |= uint32_t{round_to<Float4E2M1>(multiply_rounded(value[i], factor)).bits} << (4 * i);
  }
  store_vector(to, codes);
}

// Clears the padding behind the last row and the last group of a matrix of scales in tiles, for the lane that stores the
// scale of a group beside it.
__device__ __forceinline__ void clear_padding(const SwigluCodes &codes, int64_t offset, int64_t row, int64_t group) {
  const int64_t rows = row == codes.rows - 1 ? codes.padded_rows() - row : 1;
  const int64_t groups = group == codes.scales.groups - 1 ? codes.padded_groups() - group : 1;
  // The first is the group's own.
  for (int64_t i = 1; i < rows * groups; ++i) codes.store_scale(offset, row + i / groups, group + i % groups, 0);
}

template <typename T, bool IsPlain>
__global__ void __launch_bounds__(kSwigluCodeThreads)
    swiglu_code_matrix_kernel(const __grid_constant__ SwigluCodeMatrixParams params) {
  constexpr int V = 8;
  static_assert(sizeof(T) == 2, "");
  const SwigluCodes &codes = params.codes;
  const uint32_t index = blockIdx.x * blockDim.x + threadIdx.x;
  const DivmodResult at = params.vectors_per_row.divmod(index);
  uint32_t expert = 0, row = at.quotient;
  if (params.has_experts) {
    const DivmodResult place = params.rows_per_expert.divmod(row);
    expert = place.quotient;
    row = place.remainder;
  }
  const auto address = [&](const char *data, const SwigluExpertStrides &stride, uint32_t vector_bytes) {
    return data + expert * stride.expert + row * stride.row + uint64_t{at.remainder} * vector_bytes;
  };
  const char *const gate = address(params.in[kGate], params.in_stride[kGate], V * sizeof(T));
  const char *const up = address(params.in[kUp], params.in_stride[kUp], V * sizeof(T));
  wait_for_previous_launch();
  bool is_there = index < params.num_vectors;
  if (is_there && params.rows_there != nullptr) {
    const int64_t entry = params.has_experts ? expert * params.rows_there_stride : 0;
    is_there = row < read_integer(params.rows_there, params.is_rows_there_64_bit, entry);
  }
  Vector<T, V> gates = {}, ups = {};
  float given = 1;
  if (is_there) {
    gates = load_vector<Vector<T, V>>(gate);
    ups = load_vector<Vector<T, V>>(up);
    if (codes.scale != nullptr) given = reinterpret_cast<const float *>(codes.scale)[expert * codes.expert_stride];
  }
  begin_dependent_launch();
  float value[2][V], result[1][V];
  to_floats<T, V>(gates, value[kGate]);
  to_floats<T, V>(ups, value[kUp]);
  compute_vector<IsPlain>(value, params.form, 1.0f, false, result);
  if (codes.rounds_first) to_floats<T, V>(from_floats<T, V>(result[kOut]), result[kOut]);
  const bool has_scales = codes.scales.is_present();
  float factor = 1;
  if (has_scales || codes.amax != nullptr) {
    float largest = 0;
#pragma unroll
    for (int i = 0; i < V; ++i) largest = max_magnitude(largest, result[kOut][i]);
    uint32_t magnitude = is_there ? bits_of(largest) : 0;
    if (has_scales) magnitude = max_over_lanes(magnitude, params.lanes_log2);
    if (codes.amax != nullptr) {
      const uint32_t of_warp = max_over_lanes(magnitude, 5);
      if (threadIdx.x % 32 == 0) raise_magnitude(reinterpret_cast<uint32_t *>(codes.amax), of_warp);
    }
    if (has_scales) {
      const GroupScale scale = codes.scale_of(magnitude, given);
      factor = scale.factor;
      const uint32_t group = at.remainder >> params.lanes_log2;
      if (index < params.num_vectors && group << params.lanes_log2 == at.remainder) {
        const int64_t offset = expert * params.scales_stride.expert + row * params.scales_stride.row;
        if (is_there) codes.store_scale(offset, row, group, scale.bits);
        if (params.has_padding) clear_padding(codes, offset, row, group);
      }
    }
  }
  if (!is_there) return;
  if (!has_scales) factor = code_factor(given, codes.scale_multiplies);
  const uint32_t code_bytes = codes.has_pairs() ? V / 2 : V;
  char *const out = const_cast<char *>(address(params.out, params.out_stride, code_bytes));
  if (codes.dtype == ROPE_DTYPE_F8_E4M3) {
    store_codes<Float8E4M3>(out, factor, result[kOut]);
  } else if (codes.dtype == ROPE_DTYPE_F8_E5M2) {
    store_codes<Float8E5M2>(out, factor, result[kOut]);
  } else {
    store_code_pairs(out, factor, result[kOut]);
  }
}

}  // namespace rope
