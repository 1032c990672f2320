// SPDX-License-Identifier: Apache-2.0
// param_parts.hpp - the parts of params that RoPE's kernels and the step's kernels have in common
#pragma once

#include <string.h>

#include "backend/cuda/kernels/rope_params.hpp"
#include "backend/cuda/launch.hpp"
#include "plan/rope_plan.hpp"

namespace rope {

inline Launch launch_of(const RopePlan &plan, const Kernel &kernel) {
  return {kernel, plan.grid_x, plan.grid_y, plan.threads, plan.thread_rows, plan.shared_bytes, plan.is_programmatic};
}

// Strides are in bytes. Kernels only read an input.
inline RopeSide make_side(const char *data, const int64_t *stride, int64_t size) {
  RopeSide side;
  side.data = const_cast<char *>(data);
  for (int axis = 0; axis < kNumAxes; ++axis) side.stride[axis] = stride[axis] * size;
  return side;
}

// `heads_before`: number of heads in the preceding tensors.
inline RopeRowSide make_row_side(const char *data, const int64_t *stride, int64_t size, int64_t heads_before) {
  const int64_t head = stride[kHead] * size;
  return {const_cast<char *>(data) - heads_before * head, static_cast<int32_t>(stride[kToken] * size),
          static_cast<int32_t>(head), stride[kBatch] * size};
}

template <typename Params>
void set_scales(const RopeProblem &problem, Params *params) {
  const bool has_table = problem.angles == AngleSource::kTable;
  params->cos_scale = has_table ? 1.0f : static_cast<float>(problem.geometry->attention_scale);
  params->sin_scale = problem.is_transposed ? -params->cos_scale : params->cos_scale;
}

inline void set_position_params(const RopeProblem &problem, RopePositionParams *params) {
  params->positions = problem.positions;
  params->start_positions = problem.start_positions;
  params->has_narrow_positions =
      problem.positions.is_present && !problem.positions.is_64_bit && !problem.start_positions.is_present;
  params->position_offset = static_cast<uint64_t>(problem.position_offset);
  set_scales(problem, params);
}

inline void copy_increments(const RopeGeometry &geometry, uint64_t *increments) {
  memcpy(increments, geometry.increments, sizeof(uint64_t) * static_cast<size_t>(geometry.pairs()));
}

template <typename Params>
void set_table_params(const RopeProblem &problem, WithTable<Params> *params) {
  const AngleTable &table = problem.table;
  params->cos = table.cos.data;
  params->sin = table.sin.data;
  params->rows = static_cast<uint64_t>(table.rows);
  params->row_bytes = static_cast<int32_t>(table.cos.row_stride * dtype_size(table.dtype));
  params->table_dtype = table.dtype;
}

inline FastDivmod table_width_of(const AngleTable &table) {
  return FastDivmod::by(table.width > 0 ? static_cast<uint32_t>(table.width) : 1);
}

// For kernels that support every way of finding a token's angles.
inline void set_lookup_params(const RopeProblem &problem, RopeLookupParams *params) {
  const RopeGeometry &geometry = *problem.geometry;
  set_position_params(problem, params);
  params->num_tokens = problem.batches * problem.tokens;
  params->tokens_per_batch = problem.tokens;
  params->pairs = FastDivmod::by(static_cast<uint32_t>(geometry.pairs()));
  copy_increments(geometry, params->increments);
  params->sequences = problem.sequences;
  params->fault = problem.fault;
  memcpy(params->pair_axis, geometry.pair_axis, sizeof params->pair_axis);
  params->scale = geometry.attention_scale;
  params->table_width = table_width_of(problem.table);
  params->table_distance = FastDivmod::by(static_cast<uint32_t>(geometry.out_distance));
  params->in_distance = problem.in_distance;
  params->out_distance = problem.out_distance;
  params->num_axes = geometry.num_axes;
  params->used_axes = geometry.used_axes;
  params->angles = problem.angles;
  params->is_transposed = problem.is_transposed;
  params->rounded_dtype = problem.geometry->rounds_each ? problem.geometry->dtype : 0;
  params->has_token_info =
      problem.sequences.is_present || (problem.angles != AngleSource::kIncrements && !problem.table.is_by_token);
  params->table = problem.table;
}

}  // namespace rope
