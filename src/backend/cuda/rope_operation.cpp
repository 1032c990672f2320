// SPDX-License-Identifier: Apache-2.0
// rope_operation.cpp - RoPE and its tables on CUDA: sets a kernel's params from problem and plan
#include <string.h>

#include "backend/cuda/kernels.hpp"
#include "backend/cuda/kernels/rope_params.hpp"
#include "backend/cuda/operations.hpp"
#include "backend/cuda/param_parts.hpp"
#include "plan/rope_catalogue.hpp"
#include "plan/tuning.hpp"

namespace rope {

namespace {

constexpr rope_dtype_t kTableTypes[] = {ROPE_DTYPE_F32, ROPE_DTYPE_F16, ROPE_DTYPE_BF16, ROPE_DTYPE_F64};

// ceil(2^32 / n), for n >= 2
uint32_t reciprocal_of(uint32_t n) {
  return 0xffffffffu / n + 1;
}

// The number of tokens of a batch for which the token tokens_ahead further on exists; 0 if positions are implicit.
uint32_t tokens_that_prefetch(const RopeProblem &problem, const RopePlan &plan) {
  const int64_t ahead = plan.rows.tokens_ahead;
  return problem.positions.is_present && problem.tokens > ahead ? static_cast<uint32_t>(problem.tokens - ahead) : 0;
}

// Divisors for finding a row's token from the block's number.
void set_row_grid(const RopeProblem &problem, const RopePlan &plan, RopeRowGrid *params) {
  const bool is_part_slowest = plan.rows.is_part_slowest;
  params->grid = FastDivmod::by(is_part_slowest ? plan.grid_x / plan.blocks_per_token : plan.blocks_per_token);
  params->inner = FastDivmod::by(static_cast<uint32_t>(plan.is_batch_fastest ? problem.batches : problem.tokens));
  params->is_part_slowest = is_part_slowest;
  params->has_one_batch = problem.batches == 1;
  params->is_batch_fastest = plan.is_batch_fastest;
}

// Sets the params of kThread, kToken and kScalar. The heads of q, k and v are numbered consecutively; tensor_begins has
// the first numbers of k and v. With kScalar they count groups of heads.
void set_token_params(const RopeProblem &problem, const RopePlan &plan, RopeTokenParams *params) {
  const RopeGeometry &geometry = *problem.geometry;
  const int64_t size = dtype_size(geometry.dtype);
  const bool is_scalar = plan.vector_elements == 1;
  set_position_params(problem, params);
  set_row_grid(problem, plan, params);
  params->is_in_place = true;
  params->units_per_head = plan.units.rotary_per_head;
  uint32_t next = 0;
  for (int i = 0; i < 3; ++i) {
    const bool is_present = i < problem.num_tensors;
    if (i > 0) params->tensor_begins[i - 1] = is_present ? next : ~uint32_t{0};
    // Threads without a unit may compute an address from this tensor.
    params->tensor[i] = {};
    if (!is_present || problem.tensor[i].heads == 0) continue;
    const RotatedTensor &tensor = problem.tensor[i];
    const int64_t heads_before = is_scalar ? 0 : next;
    params->tensor[i] = {make_row_side(tensor.in, tensor.in_stride, size, heads_before),
                         make_row_side(tensor.out, tensor.out_stride, size, heads_before)};
    params->is_in_place = params->is_in_place && tensor.is_in_place;
    params->units_per_head = plan.units.per_head[i];
    next += static_cast<uint32_t>(is_scalar ? count_scalar_groups(tensor.heads) : tensor.heads);
  }
  params->units_per_token = plan.units.per_token;
  params->head_reciprocal = reciprocal_of(params->units_per_head);
  params->rotary_units_per_head = plan.units.rotary_per_head;
  params->copy_units_per_head = params->units_per_head - plan.units.rotary_per_head;
  params->copied_vectors = 0;
  if (params->copy_units_per_head != 0) {
    params->copied_vectors = static_cast<uint32_t>((geometry.head_dim - geometry.rotary_dim) / plan.vector_elements);
  }
  params->window_begin = static_cast<int32_t>(geometry.rotary_offset * size);
  params->window_size = static_cast<int32_t>(geometry.rotary_dim * size);
  const bool is_half = plan.variant.pairing == Pairing::kHalf;
  params->bytes_to_high = is_half ? static_cast<int32_t>(problem.in_distance * size) : params->window_size / 2;
  const uint32_t units_per_run = static_cast<uint32_t>(problem.in_distance / plan.vector_elements);
  params->run_reciprocal = is_half && problem.in_distance != geometry.pairs() ? reciprocal_of(units_per_run) : 0;
  params->tokens_ahead = plan.rows.tokens_ahead;
  params->tokens_that_prefetch = tokens_that_prefetch(problem, plan);
  params->num_position_axes = geometry.num_axes;
  params->has_blocks_or_copies = params->run_reciprocal != 0 || params->copied_vectors != 0;
  params->pairs = static_cast<uint32_t>(geometry.pairs());
  params->num_tokens = static_cast<uint32_t>(problem.batches * problem.tokens);
}

// Sets the params of the kernels for short and long launches. A tensor's address is the one that head 0 of all tensors
// would have in it, so that a thread adds head * head_bytes for a head's number in all tensors.
void set_short_params(const RopeProblem &problem, const RopePlan &plan, RopeShortParams *params) {
  const RopeGeometry &geometry = *problem.geometry;
  const int64_t size = dtype_size(geometry.dtype);
  const TokenIntegers &positions = problem.positions;
  params->num_tokens = static_cast<uint32_t>(problem.batches * problem.tokens);
  params->units_per_token = plan.units.per_token;
  params->positions = positions.data;
  params->position_bytes = static_cast<int32_t>(positions.token_stride * (positions.is_64_bit ? 8 : 4));
  params->has_positions = positions.is_present;
  params->has_wide_positions = positions.is_present && positions.is_64_bit;
  params->is_in_place = true;
  params->units_per_head = plan.units.rotary_per_head;
  params->head_reciprocal = reciprocal_of(plan.units.rotary_per_head);
  int64_t next_head = 0;
  for (int i = 0; i < 3; ++i) {
    const bool is_present = i < problem.num_tensors;
    if (i > 0) params->tensor_begins[i - 1] = is_present ? static_cast<uint32_t>(next_head) : ~uint32_t{0};
    // Threads without a unit may compute an address from this tensor.
    params->tensor[i] = {};
    if (!is_present || problem.tensor[i].heads == 0) continue;
    const RotatedTensor &tensor = problem.tensor[i];
    const int64_t head_bytes = tensor.in_stride[kHead] * size;
    params->tensor[i] = {tensor.in - next_head * head_bytes + geometry.rotary_offset * size, tensor.out - tensor.in,
                         static_cast<int32_t>(tensor.in_stride[kToken] * size), static_cast<int32_t>(head_bytes)};
    params->is_in_place = params->is_in_place && tensor.is_in_place;
    next_head += tensor.heads;
  }
  const bool is_half = plan.variant.pairing == Pairing::kHalf;
  params->bytes_to_high = static_cast<int32_t>((is_half ? problem.in_distance : geometry.rotary_dim / 2) * size);
  params->pairs = static_cast<uint32_t>(geometry.pairs());
  params->position_offset = static_cast<uint64_t>(problem.position_offset);
  set_scales(problem, params);
}

// Adds the grid of a long launch.
template <typename Params>
void set_long_params(const RopeProblem &problem, const RopePlan &plan, RopeLong<Params> *params) {
  set_row_grid(problem, plan, params);
  params->parts = plan.blocks_per_token;
  params->parts_reciprocal = params->parts > 1 ? reciprocal_of(params->parts) : 0;
}

// Adds the params for several position axes, tables with other widths, faults and sequences.
template <typename Angles>
void set_lookup_params(const RopeProblem &problem, RopeTokenLookup<Angles> *params) {
  const RopeGeometry &geometry = *problem.geometry;
  params->sequences = problem.sequences;
  params->fault = problem.fault;
  params->table_width = table_width_of(problem.table);
  params->tokens_per_batch = problem.tokens;
  params->num_axes = geometry.num_axes;
  params->used_axes = problem.table.is_by_token ? 0 : geometry.used_axes;
  memcpy(params->pair_axis, geometry.pair_axis, sizeof params->pair_axis);
}

// ---- The params of each kernel. Members that no unit of a launch reads stay unset. ----

void set_params(const RopeProblem &problem, const RopePlan &plan, RopeShortAngleParams *params) {
  set_short_params(problem, plan, params);
  copy_increments(*problem.geometry, params->increments);
}

void set_params(const RopeProblem &problem, const RopePlan &plan, RopeShortTableParams *params) {
  set_short_params(problem, plan, params);
  set_table_params(problem, params);
}

void set_params(const RopeProblem &problem, const RopePlan &plan, RopeFlatTableParams *params) {
  set_params(problem, plan, static_cast<RopeShortTableParams *>(params));
  params->units = FastDivmod::by(plan.units.per_token);
  params->num_units = params->num_tokens * plan.units.per_token;
}

void set_params(const RopeProblem &problem, const RopePlan &plan, RopeLongAngleParams *params) {
  set_params(problem, plan, static_cast<RopeShortAngleParams *>(params));
  set_long_params(problem, plan, params);
}

void set_params(const RopeProblem &problem, const RopePlan &plan, RopeLongConvertedParams *params) {
  set_params(problem, plan, static_cast<RopeLongAngleParams *>(params));
  params->is_to_half = problem.in_distance == 1;
}

void set_params(const RopeProblem &problem, const RopePlan &plan, RopeLongTableParams *params) {
  set_params(problem, plan, static_cast<RopeShortTableParams *>(params));
  set_long_params(problem, plan, params);
  // Rows and positions are prefetched for the token tokens_ahead further on, as far as it exists.
  const int64_t rows = problem.table.rows - plan.rows.tokens_ahead;
  params->rows_that_prefetch = rows > 0 ? static_cast<uint64_t>(rows) : 0;
  params->row_bytes_ahead = int64_t{plan.rows.tokens_ahead} * params->row_bytes;
  params->position_bytes_ahead = int64_t{plan.rows.tokens_ahead} * params->position_bytes;
  params->tokens_that_prefetch = tokens_that_prefetch(problem, plan);
  params->rounds_each = problem.geometry->rounds_each;
}

void set_params(const RopeProblem &problem, const RopePlan &plan, RopeTokenAngleParams *params) {
  set_token_params(problem, plan, params);
  copy_increments(*problem.geometry, params->increments);
}

void set_params(const RopeProblem &problem, const RopePlan &plan, RopeTokenTableParams *params) {
  set_token_params(problem, plan, params);
  const int64_t size = dtype_size(problem.table.dtype);
  params->cos_row_bytes = static_cast<int32_t>(problem.table.cos.row_stride * size);
  params->sin_row_bytes = static_cast<int32_t>(problem.table.sin.row_stride * size);
  params->table = problem.table;
}

template <typename Angles>
void set_params(const RopeProblem &problem, const RopePlan &plan, RopeTokenLookup<Angles> *params) {
  set_params(problem, plan, static_cast<Angles *>(params));
  set_lookup_params(problem, params);
}

template <typename Lookup>
void set_params(const RopeProblem &problem, const RopePlan &plan, RopeScalarParams<Lookup> *params) {
  const RopeGeometry &geometry = *problem.geometry;
  const int64_t size = dtype_size(geometry.dtype);
  set_params(problem, plan, static_cast<Lookup *>(params));
  params->rotary_offset = static_cast<uint32_t>(geometry.rotary_offset);
  params->rotary_dim = static_cast<uint32_t>(geometry.rotary_dim);
  params->pair_step = problem.in_distance == 1 ? 2 : 1;
  params->distance = static_cast<uint32_t>(problem.in_distance);
  for (int i = 0; i < problem.num_tensors; ++i) {
    const RotatedTensor &tensor = problem.tensor[i];
    params->channels[i] = {tensor.in_stride[kChannel] * size, tensor.out_stride[kChannel] * size,
                           static_cast<uint32_t>(tensor.heads)};
  }
}

void set_params(const RopeProblem &problem, const RopePlan &plan, RopeGeneralParams *params) {
  const RopeGeometry &geometry = *problem.geometry;
  const int64_t size = dtype_size(geometry.dtype);
  set_lookup_params(problem, params);
  uint32_t next_unit = 0;
  for (int i = 0; i < 3; ++i) {
    params->tensor_begins[i] = i < problem.num_tensors ? next_unit : ~uint32_t{0};
    if (i >= problem.num_tensors || problem.tensor[i].heads == 0) continue;
    const RotatedTensor &tensor = problem.tensor[i];
    params->tensor[i] = {make_side(tensor.in, tensor.in_stride, size), make_side(tensor.out, tensor.out_stride, size),
                         FastDivmod::by(plan.units.per_head[i]), tensor.is_in_place};
    next_unit += plan.units.per_head[i] * static_cast<uint32_t>(tensor.heads);
  }
  params->units_per_token = FastDivmod::by(plan.units.per_token);
  params->blocks_per_token = FastDivmod::by(plan.blocks_per_token);
  params->has_one_batch = problem.batches == 1;
  params->is_batch_fastest = plan.is_batch_fastest;
  const int64_t inner = plan.is_batch_fastest ? problem.batches : problem.tokens;
  params->inner = FastDivmod::by(params->has_one_batch ? 1 : static_cast<uint32_t>(inner));
  params->tokens_per_block = plan.tokens_per_block;
  params->tokens_per_grid_row = plan.blocks.tokens_per_grid_row;
  params->outer_per_grid_row = plan.blocks.tokens_per_grid_row / inner;
  params->units_per_block = plan.blocks.units_per_block;
  params->rotary_units_per_head = plan.units.rotary_per_head;
  params->rotary_offset = geometry.rotary_offset;
  params->rotary_dim = geometry.rotary_dim;
  const int distance = problem.in_distance > problem.out_distance ? problem.in_distance : problem.out_distance;
  const int units_per_run = distance / plan.vector_elements;
  params->units_per_run = FastDivmod::by(units_per_run > 0 ? static_cast<uint32_t>(units_per_run) : 1);
}

// Finds the plan's kernel, sets its params and launches it.
template <typename Params>
rope_status_t launch_with(const char *function, const RopeProblem &problem, const RopePlan &plan, int32_t device_index,
                          rope_stream_t stream) {
  const Kernel kernel = find_rope_kernel(problem.geometry->dtype, plan.vector_elements, plan.variant);
  Params params;
  set_params(problem, plan, &params);
  return launch(function, launch_of(plan, kernel), &params, device_index, stream);
}

using LaunchRope = rope_status_t (*)(const char *function, const RopeProblem &problem, const RopePlan &plan,
                                     int32_t device_index, rope_stream_t stream);

// Finds the launch function by the type of the plan's kernel's params.
LaunchRope find_launch(const RopeVariant &variant) {
  const bool is_computed = variant.angles == kComputedAngles;
  switch (variant.kernel) {
    case RopeKernel::kMidProgrammaticTable:
    case RopeKernel::kProgrammaticTable:
    case RopeKernel::kShortTable:
      return launch_with<RopeShortTableParams>;
    case RopeKernel::kFlatTable:
      return launch_with<RopeFlatTableParams>;
    case RopeKernel::kShortWarp:
    case RopeKernel::kShort:
      return launch_with<RopeShortAngleParams>;
    case RopeKernel::kLongConverted:
      return launch_with<RopeLongConvertedParams>;
    case RopeKernel::kThread:
      return is_computed ? launch_with<RopeTokenAngleParams> : launch_with<RopeTokenTableParams>;
    case RopeKernel::kLong:
      return is_computed ? launch_with<RopeLongAngleParams> : launch_with<RopeLongTableParams>;
    case RopeKernel::kToken:
      if (is_computed) return launch_with<RopeTokenLookup<RopeTokenAngleParams>>;
      return variant.lookup == kNoLookup ? launch_with<RopeTokenTableParams>
                                         : launch_with<RopeTokenLookup<RopeTokenTableParams>>;
    case RopeKernel::kScalar:
      return is_computed ? launch_with<RopeScalarParams<RopeTokenLookup<RopeTokenAngleParams>>>
                         : launch_with<RopeScalarParams<RopeTokenLookup<RopeTokenTableParams>>>;
    default:
      return launch_with<RopeGeneralParams>;
  }
}

}  // namespace

void visit_rope_kernels(const RopeGeometry &geometry, KernelVisitor visit) {
  for (const rope_dtype_t dtype : kTableTypes) visit(find_table_kernel(dtype));
  // With a norm every call is a step, and steps have their own kernels.
  if (geometry.norm.type != 0) return;
  const Pairing pairing = pairing_of(geometry.in_distance, geometry.out_distance);
  // All variants for this pairing, at every vector width. Consecutive variants are often one function.
  for (const int elements : kVectorElements) {
    const void *last = nullptr;
    for_each_variant(pairing, [&](const RopeVariant &variant) {
      const Kernel kernel = find_rope_kernel(geometry.dtype, elements, variant);
      if (kernel.address != last) visit(kernel);
      last = kernel.address;
    });
  }
}

rope_status_t run_cuda_rope(const char *function, const RopeProblem &problem, const RopePlan &plan,
                            int32_t device_index, rope_stream_t stream) {
  if (problem.step != nullptr) return run_cuda_step(function, problem, plan, device_index, stream);
  return find_launch(plan.variant)(function, problem, plan, device_index, stream);
}

rope_status_t fill_cuda_tables(const char *function, const TableProblem &problem, const DeviceInfo &device,
                               int32_t device_index, rope_stream_t stream) {
  const RopeGeometry &geometry = *problem.geometry;
  TableKernelParams params;
  params.cos = problem.cos;
  params.sin = problem.sin;
  params.axes = problem.axes;
  params.rows = problem.rows;
  params.columns = problem.is_by_channel ? geometry.pairs() : problem.width;
  params.is_by_channel = problem.is_by_channel;
  params.distance = geometry.out_distance;
  params.scale = geometry.attention_scale;
  copy_increments(geometry, params.increments);
  // The grid has a thread for each entry, up to a limit, and its threads loop.
  const int64_t max_blocks = int64_t{kTableBlocksPerMultiprocessor} * device.multiprocessors;
  const int64_t wanted = (params.rows * params.columns - 1) / kTableThreads + 1;
  const auto blocks = static_cast<uint32_t>(wanted < max_blocks ? wanted : max_blocks);
  const Launch what = {find_table_kernel(problem.dtype), blocks, 1, kTableThreads, 1, 0, false};
  return launch(function, what, &params, device_index, stream);
}

}  // namespace rope
