// SPDX-License-Identifier: Apache-2.0
// general_angles.cuh - the angles of any token: sequences, several position axes, tables of any type and width
#pragma once

#include "backend/cuda/kernels/angles.cuh"
#include "backend/cuda/kernels/positions.cuh"
#include "backend/cuda/kernels/rope_params.hpp"
#include "backend/cuda/kernels/sequences.cuh"

namespace rope {

// Finds the sequence of a token and whether the table has rows for its positions.
__device__ __forceinline__ TokenInfo look_up_token(const RopeLookupParams &params, BatchToken at, bool counts_faults) {
  const int64_t flat_token = at.batch * params.tokens_per_batch + at.token;
  TokenInfo info = {static_cast<uint64_t>(at.token), at.batch, kRotated};
  if (params.sequences.is_present) {
    if (!is_in_sequences(params.sequences, at.token)) {
      if (counts_faults && at.token < sequence_entry(params.sequences, 0)) count_fault(params.fault, flat_token);
      info.state = kAbsent;
      return info;
    }
    const SequencePlace place = find_sequence(params.sequences, at.token);
    info.batch = place.sequence;
    info.index = place.index;
  }
  // Computed angles and rows by token exist for every position.
  if (params.angles == AngleSource::kIncrements || params.table.is_by_token) return info;
  for (int axis = 0; axis < params.num_axes; ++axis) {
    if ((params.used_axes >> axis & 1u) == 0) continue;
    const uint64_t position = position_on(params, axis, info.batch, at.token, info.index);
    if (position < static_cast<uint64_t>(params.table.rows)) continue;
    info.state = kUnrotated;
    if (counts_faults) count_fault(params.fault, flat_token);
    break;
  }
  return info;
}

// The angles of a block in shared memory: the cosines of all its tokens, then the sines. If a table has a column for
// each channel, cosines and sines of the pairs' second channels follow in this order.
template <typename Real>
struct GeneralAngles {
  Real *first;
  uint32_t count;  // number of pairs in all tokens of a full block

  __device__ __forceinline__ Real *cos(int channel) const { return first + channel * 2 * count; }
  __device__ __forceinline__ Real *sin(int channel) const { return cos(channel) + count; }
};

// Loads an entry of a table of any type.
template <typename Real>
__device__ __forceinline__ Real load_real(const char *data, rope_dtype_t dtype, int64_t at) {
  switch (dtype) {
    case ROPE_DTYPE_F16:
      return to_real<Real>(Float16{reinterpret_cast<const uint16_t *>(data)[at]});
    case ROPE_DTYPE_BF16:
      return to_real<Real>(BFloat16{reinterpret_cast<const uint16_t *>(data)[at]});
    case ROPE_DTYPE_F64:
      return to_real<Real>(reinterpret_cast<const double *>(data)[at]);
    default:
      return to_real<Real>(reinterpret_cast<const float *>(data)[at]);
  }
}

// Reads cos and sin from a row of a table; `column` counts columns.
template <typename Real>
__device__ __forceinline__ CosSin<Real> load_general_angle(const RopeLookupParams &params, int64_t axis, int64_t batch,
                                                           int64_t row, int64_t column) {
  const AngleTable &table = params.table;
  const auto load = [&](const TableColumns &columns) {
    const int64_t at = axis * columns.axis_stride + batch * columns.batch_stride + row * columns.row_stride;
    return load_real<Real>(columns.data, table.dtype, at + column * columns.column_stride);
  };
  if (params.angles == AngleSource::kTable) return {load(table.cos), load(table.sin)};
  const CosSin<Real> angle = cos_sin_of_angle<Real>(static_cast<float>(load(table.cos)));
  const Real scale = static_cast<Real>(params.scale);
  return {multiply_rounded(angle.cos, scale), multiply_rounded(angle.sin, scale)};
}

// Stores the angle of one pair of one token in shared memory. `number` is its index in the block, `at` and `info`
// belong to the token. With a table by channel, the angle of the pair's second channel is stored as well.
template <typename Real>
__device__ __forceinline__ void share_general_angle(const RopeLookupParams &params, uint32_t number, uint32_t pair,
                                                    BatchToken at, const TokenInfo &info,
                                                    const GeneralAngles<Real> &angles) {
  const int axis = through_memory(params.pair_axis)[pair];
  const AngleTable &table = params.table;
  const uint64_t position = table.is_by_token ? 0 : position_on(params, axis, info.batch, at.token, info.index);
  CosSin<Real> of_x, of_y;
  if (params.angles == AngleSource::kIncrements) {
    of_x = cos_sin_of_phase<Real>(phase_of(position, through_memory(params.increments)[pair]));
    const Real scale = static_cast<Real>(params.scale);
    of_x = {multiply_rounded(of_x.cos, scale), multiply_rounded(of_x.sin, scale)};
  } else {
    const int64_t row = table.is_by_token ? at.token : static_cast<int64_t>(position);
    uint32_t column;
    if (table.is_by_channel) {
      column = pair + params.table_distance.divmod(pair).quotient * params.table_distance.divisor;
      of_y = load_general_angle<Real>(params, axis, at.batch, row, column + params.table_distance.divisor);
    } else {
      column = params.table_width.divmod(pair).remainder;
    }
    of_x = load_general_angle<Real>(params, axis, at.batch, row, column);
  }
  if (!table.is_by_channel) of_y = of_x;
  // ROPE_ROTATION_ROUND_EACH rounds cos and sin too.
  if constexpr (sizeof(Real) == 4) {
    const auto round = [&](auto element) {
      of_x = rounded_to<decltype(element)>(of_x);
      of_y = rounded_to<decltype(element)>(of_y);
    };
    if (params.rounded_dtype == ROPE_DTYPE_F16) round(Float16{});
    if (params.rounded_dtype == ROPE_DTYPE_BF16) round(BFloat16{});
  }
  // The transpose negates the sines and, if the two channels have different angles, exchanges them.
  angles.cos(0)[number] = of_x.cos;
  angles.sin(0)[number] = params.is_transposed ? -of_y.sin : of_x.sin;
  if (!table.is_by_channel) return;
  angles.cos(1)[number] = of_y.cos;
  angles.sin(1)[number] = params.is_transposed ? -of_x.sin : of_y.sin;
}

}  // namespace rope
