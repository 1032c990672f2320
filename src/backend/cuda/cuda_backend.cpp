// cuda_backend.cpp - turns plans into launches; it chooses nothing
#include <cuda_runtime_api.h>
#include <string.h>

#include "backend/backend.hpp"
#include "backend/cuda/device_cache.hpp"
#include "backend/cuda/kernel_cache.hpp"
#include "backend/cuda/kernels.hpp"
#include "backend/cuda/kernels/rope_params.hpp"
#include "backend/cuda/kernels/swiglu_params.hpp"
#include "plan/tuning.hpp"

namespace rope {

namespace {

const void *find_rope_kernel(rope_dtype_t dtype, int vector_elements, RopeVariant variant) {
  switch (dtype) {
    case ROPE_DTYPE_F16:
      return rope_kernel_f16(vector_elements, variant);
    case ROPE_DTYPE_BF16:
      return rope_kernel_bf16(vector_elements, variant);
    case ROPE_DTYPE_F64:
      return rope_kernel_f64(vector_elements, variant);
    default:
      return rope_kernel_f32(vector_elements, variant);
  }
}

const void *find_swiglu_kernel(rope_dtype_t dtype, int vector_elements, SwigluVariant variant) {
  switch (dtype) {
    case ROPE_DTYPE_F16:
      return swiglu_kernel_f16(vector_elements, variant);
    case ROPE_DTYPE_BF16:
      return swiglu_kernel_bf16(vector_elements, variant);
    case ROPE_DTYPE_F64:
      return swiglu_kernel_f64(vector_elements, variant);
    default:
      return swiglu_kernel_f32(vector_elements, variant);
  }
}

rope_status_t fail_switch(const char *function, int32_t device_index) {
  return fail(ROPE_STATUS_CUDA_ERROR, "%s: the context of CUDA device %d cannot be made current", function,
              device_index);
}

class Preloader {
 public:
  Preloader(const char *function, const DeviceInfo &device, int32_t device_index)
      : function_(function), device_(device), device_index_(device_index), scope_(device_index) {
    if (!scope_.is_current()) status_ = fail_switch(function, device_index);
  }

  // NULL is none.
  void load(const void *kernel) {
    if (kernel == nullptr || status_ != ROPE_STATUS_SUCCESS) return;
    const cudaError_t error = load_kernel(kernel, device_index_, scope_);
    if (error != cudaSuccess) status_ = fail_cuda(function_, "loading a kernel", error, device_);
  }

  rope_status_t status() const { return status_; }

 private:
  const char *function_;
  const DeviceInfo &device_;
  int32_t device_index_;
  DeviceScope scope_;
  rope_status_t status_ = ROPE_STATUS_SUCCESS;
};

constexpr int kVectorElements[] = {8, 4, 2, 1};
constexpr RopeKernel kRopeKernels[] = {RopeKernel::kShared,
                                       RopeKernel::kToken,
                                       RopeKernel::kTokenAxes,
                                       RopeKernel::kTokenSequences,
                                       RopeKernel::kTokenTable,
                                       RopeKernel::kTokenTableAxes,
                                       RopeKernel::kTokenTableSequences,
                                       RopeKernel::kScattered,
                                       RopeKernel::kScatteredTable,
                                       RopeKernel::kFlat,
                                       RopeKernel::kTable32,
                                       RopeKernel::kTable16,
                                       RopeKernel::kShortWarp,
                                       RopeKernel::kShort,
                                       RopeKernel::kShortTable32,
                                       RopeKernel::kShortTable16,
                                       RopeKernel::kLateTable32,
                                       RopeKernel::kLateTable16,
                                       RopeKernel::kLong,
                                       RopeKernel::kLongBatches,
                                       RopeKernel::kLongConverted,
                                       RopeKernel::kLongTable32,
                                       RopeKernel::kLongTable16,
                                       RopeKernel::kGeneral};
constexpr rope_dtype_t kTableTypes[] = {ROPE_DTYPE_F32, ROPE_DTYPE_F16, ROPE_DTYPE_BF16, ROPE_DTYPE_F64};

// load_kernels(&preloader) loads what the descriptor's calls may need.
template <typename LoadKernels>
rope_status_t open_device(const char *function, int32_t device_index, DeviceInfo *device, LoadKernels load_kernels) {
  ROPE_TRY(find_cuda_device(function, device_index, device));
  Preloader preloader(function, *device, device_index);
  load_kernels(&preloader);
  return preloader.status();
}

int32_t count_devices(const char *function) {
  int count;
  count_cuda_devices(function, &count);
  return count;
}

rope_status_t open_rope(const char *function, const RopeGeometry &geometry, int32_t device_index, int32_t,
                        DeviceInfo *device) {
  const Pairing pairing = pairing_of(geometry.in_distance, geometry.out_distance);
  return open_device(function, device_index, device, [&](Preloader *preloader) {
    for (const int elements : kVectorElements) {
      for (const RopeKernel kernel : kRopeKernels) {
        if (!may_have(pairing, kernel)) continue;
        preloader->load(find_rope_kernel(geometry.dtype, elements, {kernel, pairing}));
      }
    }
    for (const rope_dtype_t dtype : kTableTypes) preloader->load(table_kernel_of(dtype));
  });
}

rope_status_t open_swiglu(const char *function, rope_dtype_t dtype, int32_t device_index, int32_t, DeviceInfo *device) {
  return open_device(function, device_index, device, [&](Preloader *preloader) {
    for (const int elements : kVectorElements) {
      for (int variant = 0; variant < 16; ++variant) {
        preloader->load(find_swiglu_kernel(
            dtype, elements, {static_cast<SwigluWork>(variant / 4), variant / 2 % 2 != 0, variant % 2 != 0}));
      }
    }
  });
}

struct Launch {
  const void *kernel;
  dim3 grid;
  dim3 block;
  uint32_t shared_bytes;
  bool is_programmatic;
};

rope_status_t launch(const char *function, const Launch &what, void *params, int32_t device_index,
                     rope_stream_t stream) {
  DeviceScope scope(device_index);
  if (!scope.is_current()) return fail_switch(function, device_index);
  CUfunction kernel;
  cudaError_t error = find_kernel(what.kernel, &kernel);
  if (error != cudaSuccess) return fail_cuda(function, "finding a kernel", error, found_cuda_device(device_index));
  CUlaunchAttribute attribute = {};
  attribute.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
  attribute.value.programmaticStreamSerializationAllowed = 1;
  CUlaunchConfig config = {};
  config.gridDimX = what.grid.x;
  config.gridDimY = what.grid.y;
  config.gridDimZ = what.grid.z;
  config.blockDimX = what.block.x;
  config.blockDimY = what.block.y;
  config.blockDimZ = what.block.z;
  config.sharedMemBytes = what.shared_bytes;
  config.hStream = stream;
  config.attrs = &attribute;
  config.numAttrs = what.is_programmatic ? 1 : 0;
  error = launch_kernel(config, kernel, params);
  if (error == cudaSuccess) return ROPE_STATUS_SUCCESS;
  return fail_cuda(function, "cuLaunchKernelEx", error, found_cuda_device(device_index));
}

RopeKernelTensor kernel_tensor(const RotatedTensor &tensor, int64_t size, uint32_t units_per_head) {
  RopeKernelTensor result;
  result.in = tensor.in;
  result.out = tensor.out;
  for (int axis = 0; axis < kNumAxes; ++axis) {
    result.in_stride[axis] = tensor.in_stride[axis] * size;
    result.out_stride[axis] = tensor.out_stride[axis] * size;
  }
  result.units_per_head = Divider::by(units_per_head);
  return result;
}

template <typename Params>
void set_scales(const RopeProblem &problem, Params *params) {
  const bool has_table = problem.angles == AngleSource::kTable;
  params->cos_scale = has_table ? 1.0f : static_cast<float>(problem.geometry->attention_scale);
  params->sin_scale = problem.is_transposed ? -params->cos_scale : params->cos_scale;
}

void set_position_params(const RopeProblem &problem, RopePositionParams *params) {
  params->positions = problem.positions;
  params->start_positions = problem.start_positions;
  params->has_positions = problem.positions.is_present;
  params->has_start_positions = problem.start_positions.is_present;
  params->has_narrow_positions =
      problem.positions.is_present && !problem.positions.is_64_bit && !problem.start_positions.is_present;
  params->position_offset = static_cast<uint64_t>(problem.position_offset);
  set_scales(problem, params);
}

void set_rope_params(const RopeProblem &problem, const RopePlan &plan, RopeKernelParams *params) {
  set_position_params(problem, params);
  const RopeGeometry &geometry = *problem.geometry;
  uint32_t next_unit = 0;
  for (int i = 0; i < 3; ++i) {
    params->tensor_begins[i] = i < problem.num_tensors ? next_unit : ~uint32_t{0};
    if (i >= problem.num_tensors || problem.tensor[i].heads == 0) continue;
    const RotatedTensor &tensor = problem.tensor[i];
    params->tensor[i] = kernel_tensor(tensor, dtype_size(geometry.dtype), plan.units_per_head[i]);
    params->is_in_place[i] = tensor.is_in_place;
    next_unit += plan.units_per_head[i] * static_cast<uint32_t>(tensor.heads);
  }
  params->has_one_batch = problem.batches == 1;
  params->units_per_token = Divider::by(plan.units_per_token);
  params->is_batch_fastest = plan.is_batch_fastest;
  const int64_t inner = plan.is_batch_fastest ? problem.batches : problem.tokens;
  params->inner = Divider::by(params->has_one_batch ? 1 : static_cast<uint32_t>(inner));
  params->num_tokens = problem.batches * problem.tokens;
  params->tokens_per_grid_row = plan.tokens_per_grid_row;
  params->outer_per_grid_row = plan.tokens_per_grid_row / inner;
  params->rotary_units_per_head = plan.rotary_units_per_head;
  params->rotary_offset = geometry.rotary_offset;
  params->rotary_dim = geometry.rotary_dim;
}

void copy_increments(const RopeGeometry &geometry, uint64_t *increments) {
  memcpy(increments, geometry.increments, sizeof(uint64_t) * static_cast<size_t>(geometry.pairs()));
}

// ceil(2^32 / n), for 2 <= n
uint32_t reciprocal_of(uint32_t n) {
  return 0xffffffffu / n + 1;
}

// Of each batch, those whose position another token has so far on; 0 where positions are implicit.
uint32_t tokens_that_prefetch(const RopeProblem &problem, const RopePlan &plan) {
  const int64_t ahead = plan.tokens_ahead;
  return problem.positions.is_present && problem.tokens > ahead ? static_cast<uint32_t>(problem.tokens - ahead) : 0;
}

void set_token_params(const RopeProblem &problem, const RopePlan &plan, RopeTokenParams *params) {
  const RopeGeometry &geometry = *problem.geometry;
  const int64_t size = dtype_size(geometry.dtype);
  const bool is_scattered = plan.vector_elements == 1;
  set_position_params(problem, params);
  params->is_in_place = true;
  params->units_per_head = plan.rotary_units_per_head;
  uint32_t begins[3] = {}, next = 0;
  for (int i = 0; i < 3; ++i) {
    const bool is_present = i < problem.num_tensors;
    begins[i] = is_present ? next : ~uint32_t{0};
    // Threads without a unit may compute an address there.
    RopeTokenTensor &target = params->tensor[i] = {};
    params->in_batch[i] = params->out_batch[i] = 0;
    if (!is_present || problem.tensor[i].heads == 0) continue;
    const RotatedTensor &tensor = problem.tensor[i];
    target.in_token = static_cast<int32_t>(tensor.in_stride[kToken] * size);
    target.in_head = static_cast<int32_t>(tensor.in_stride[kHead] * size);
    target.out_token = static_cast<int32_t>(tensor.out_stride[kToken] * size);
    target.out_head = static_cast<int32_t>(tensor.out_stride[kHead] * size);
    const int64_t heads_before = is_scattered ? 0 : next;
    target.in = tensor.in - heads_before * target.in_head;
    target.out = tensor.out - heads_before * target.out_head;
    params->in_batch[i] = tensor.in_stride[kBatch] * size;
    params->out_batch[i] = tensor.out_stride[kBatch] * size;
    params->is_in_place = params->is_in_place && tensor.is_in_place;
    params->units_per_head = plan.units_per_head[i];
    const uint32_t heads = static_cast<uint32_t>(tensor.heads);
    next += is_scattered ? (heads + kScatteredHeads - 1) / kScatteredHeads : heads;
  }
  params->tensor_begins[0] = begins[1];
  params->tensor_begins[1] = begins[2];
  params->units_per_token = plan.units_per_token;
  params->head_reciprocal = reciprocal_of(params->units_per_head);
  params->rotary_units_per_head = plan.rotary_units_per_head;
  params->copy_units_per_head = params->units_per_head - plan.rotary_units_per_head;
  params->copied_vectors = 0;
  if (params->copy_units_per_head != 0) {
    params->copied_vectors = static_cast<uint32_t>((geometry.head_dim - geometry.rotary_dim) / plan.vector_elements);
  }
  params->window_begin = static_cast<int32_t>(geometry.rotary_offset * size);
  params->window_size = static_cast<int32_t>(geometry.rotary_dim * size);
  const bool is_half = plan.pairing == Pairing::kHalf;
  params->bytes_to_high = is_half ? static_cast<int32_t>(problem.in_distance * size) : params->window_size / 2;
  const uint32_t units_per_run = static_cast<uint32_t>(problem.in_distance / plan.vector_elements);
  params->run_reciprocal = is_half && problem.in_distance != geometry.pairs() ? reciprocal_of(units_per_run) : 0;
  params->tokens_ahead = plan.tokens_ahead;
  params->tokens_that_prefetch = tokens_that_prefetch(problem, plan);
  params->num_position_axes = geometry.num_axes;
  params->has_blocks_or_copies = params->run_reciprocal != 0 || params->copied_vectors != 0;
  params->pairs = static_cast<uint32_t>(geometry.pairs());
  params->is_part_slowest = plan.is_part_slowest;
  params->grid = Divider::by(plan.is_part_slowest ? plan.grid_x / plan.blocks_per_token : plan.blocks_per_token);
  params->inner = Divider::by(static_cast<uint32_t>(plan.is_batch_fastest ? problem.batches : problem.tokens));
  params->num_tokens = static_cast<uint32_t>(problem.batches * problem.tokens);
  params->has_one_batch = problem.batches == 1;
  params->is_batch_fastest = plan.is_batch_fastest;
}

void set_short_params(const RopeProblem &problem, const RopePlan &plan, RopeShortParams *params) {
  const RopeGeometry &geometry = *problem.geometry;
  const int64_t size = dtype_size(geometry.dtype);
  const TokenIntegers &positions = problem.positions;
  params->num_tokens = static_cast<uint32_t>(problem.tokens);
  params->units_per_token = plan.units_per_token;
  params->positions = positions.data;
  params->position_bytes = static_cast<int32_t>(positions.token_stride * (positions.is_64_bit ? 8 : 4));
  params->has_positions = positions.is_present;
  params->has_wide_positions = positions.is_present && positions.is_64_bit;
  params->is_programmatic = plan.is_programmatic;
  params->is_in_place = true;
  params->units_per_head = plan.rotary_units_per_head;
  params->head_reciprocal = reciprocal_of(plan.rotary_units_per_head);
  int64_t next_head = 0;
  for (int i = 0; i < 3; ++i) {
    const bool is_present = i < problem.num_tensors;
    if (i > 0) params->tensor_begins[i - 1] = is_present ? static_cast<uint32_t>(next_head) : ~uint32_t{0};
    // Threads without a unit may compute an address there.
    params->tensor[i] = {};
    if (!is_present || problem.tensor[i].heads == 0) continue;
    const RotatedTensor &tensor = problem.tensor[i];
    const int64_t head_bytes = tensor.in_stride[kHead] * size;
    params->tensor[i] = {tensor.in - next_head * head_bytes + geometry.rotary_offset * size, tensor.out - tensor.in,
                         static_cast<int32_t>(tensor.in_stride[kToken] * size), static_cast<int32_t>(head_bytes)};
    params->is_in_place = params->is_in_place && tensor.is_in_place;
    next_head += tensor.heads;
  }
  const bool is_half = plan.pairing == Pairing::kHalf;
  params->bytes_to_high = static_cast<int32_t>((is_half ? problem.in_distance : geometry.rotary_dim / 2) * size);
  params->pairs = static_cast<uint32_t>(geometry.pairs());
  params->position_offset = static_cast<uint64_t>(problem.position_offset);
  set_scales(problem, params);
}

void set_short_angle_params(const RopeProblem &problem, const RopePlan &plan, RopeShortAngleParams *params) {
  set_short_params(problem, plan, params);
  copy_increments(*problem.geometry, params->increments);
}

void set_short_table_params(const RopeProblem &problem, const RopePlan &plan, RopeShortTableParams *params) {
  set_short_params(problem, plan, params);
  const AngleTable &table = problem.table;
  params->cos = table.cos.data;
  params->sin = table.sin.data;
  params->rows = static_cast<uint64_t>(table.rows);
  params->row_bytes = static_cast<int32_t>(table.cos.row_stride * dtype_size(table.dtype));
  params->table_dtype = table.dtype;
}

template <typename Params>
void set_long_params(const RopeProblem &problem, const RopePlan &plan, RopeLong<Params> *params) {
  params->parts = plan.is_part_slowest ? 1 : plan.blocks_per_token;
  params->parts_reciprocal = params->parts > 1 ? reciprocal_of(params->parts) : 0;
  params->tokens_of_row = problem.batches > 1 ? params->num_tokens : 0;
  params->units_of_row = plan.is_part_slowest ? plan.threads : 0;
}

void set_long_table_params(const RopeProblem &problem, const RopePlan &plan, RopeLongTableParams *params) {
  set_short_table_params(problem, plan, params);
  set_long_params(problem, plan, params);
  const int64_t rows = problem.table.rows - plan.tokens_ahead;
  params->rows_that_prefetch = rows > 0 ? static_cast<uint64_t>(rows) : 0;
  params->row_bytes_ahead = int64_t{plan.tokens_ahead} * params->row_bytes;
  params->position_bytes_ahead = int64_t{plan.tokens_ahead} * params->position_bytes;
  params->tokens_that_prefetch = tokens_that_prefetch(problem, plan);
}

template <typename Lookup>
void set_scattered_params(const RopeProblem &problem, RopeScattered<Lookup> *params) {
  const RopeGeometry &geometry = *problem.geometry;
  const int64_t size = dtype_size(geometry.dtype);
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

template <typename Angles>
void set_token_lookup_params(const RopeProblem &problem, RopeTokenLookup<Angles> *params) {
  const RopeGeometry &geometry = *problem.geometry;
  params->sequences = problem.sequences;
  params->fault = problem.fault;
  params->table_width = Divider::by(problem.table.width > 0 ? static_cast<uint32_t>(problem.table.width) : 1);
  params->tokens_per_batch = problem.tokens;
  params->num_axes = geometry.num_axes;
  params->used_axes = problem.table.is_by_token ? 0 : geometry.used_axes;
  memcpy(params->pair_axis, geometry.pair_axis, sizeof params->pair_axis);
}

void set_shared_params(const RopeProblem &problem, const RopePlan &plan, RopeSharedParams *params) {
  set_rope_params(problem, plan, params);
  params->pairs = Divider::by(static_cast<uint32_t>(problem.geometry->pairs()));
  params->blocks_per_token = Divider::by(plan.blocks_per_token);
  params->tokens_per_block = plan.tokens_per_block;
  copy_increments(*problem.geometry, params->increments);
}

void set_general_params(const RopeProblem &problem, const RopePlan &plan, RopeGeneralParams *params) {
  const RopeGeometry &geometry = *problem.geometry;
  const int distance = problem.in_distance > problem.out_distance ? problem.in_distance : problem.out_distance;
  const int units_per_run = distance / plan.vector_elements;
  set_shared_params(problem, plan, params);
  params->sequences = problem.sequences;
  params->fault = problem.fault;
  memcpy(params->pair_axis, geometry.pair_axis, sizeof params->pair_axis);
  params->units_per_block = plan.units_per_block;
  params->tokens_per_batch = problem.tokens;
  params->scale = geometry.attention_scale;
  params->units_per_run = Divider::by(units_per_run > 0 ? static_cast<uint32_t>(units_per_run) : 1);
  params->table_width = Divider::by(problem.table.width > 0 ? static_cast<uint32_t>(problem.table.width) : 1);
  params->table_distance = Divider::by(static_cast<uint32_t>(geometry.out_distance));
  params->in_distance = problem.in_distance;
  params->out_distance = problem.out_distance;
  params->num_axes = geometry.num_axes;
  params->used_axes = geometry.used_axes;
  params->angles = problem.angles;
  params->is_transposed = problem.is_transposed;
  params->has_token_info =
      problem.sequences.is_present || (problem.angles != AngleSource::kIncrements && !problem.table.is_by_token);
  params->table = problem.table;
}

rope_status_t run_rope(const char *function, const RopeProblem &problem, const RopePlan &plan, int32_t device_index,
                       rope_stream_t stream) {
  const void *kernel = find_rope_kernel(problem.geometry->dtype, plan.vector_elements, {plan.kernel, plan.pairing});
  const dim3 grid(plan.grid_x, plan.grid_y), block(plan.threads, plan.thread_rows);
  const Launch what = {kernel, grid, block, plan.shared_bytes, plan.is_programmatic};
  // What no unit of a launch reads stays unset.
  switch (plan.kernel) {
    case RopeKernel::kShared: {
      RopeSharedParams params;
      set_shared_params(problem, plan, &params);
      return launch(function, what, &params, device_index, stream);
    }
    case RopeKernel::kShortWarp:
    case RopeKernel::kShort: {
      RopeShortAngleParams params;
      set_short_angle_params(problem, plan, &params);
      return launch(function, what, &params, device_index, stream);
    }
    case RopeKernel::kLong:
    case RopeKernel::kLongBatches: {
      RopeLong<RopeShortAngleParams> params;
      set_short_angle_params(problem, plan, &params);
      set_long_params(problem, plan, &params);
      return launch(function, what, &params, device_index, stream);
    }
    case RopeKernel::kLongConverted: {
      RopeLongConvertedParams params;
      set_short_angle_params(problem, plan, &params);
      set_long_params(problem, plan, &params);
      params.is_to_half = problem.in_distance == 1;
      return launch(function, what, &params, device_index, stream);
    }
    case RopeKernel::kShortTable32:
    case RopeKernel::kShortTable16:
    case RopeKernel::kLateTable32:
    case RopeKernel::kLateTable16: {
      RopeShortTableParams params;
      set_short_table_params(problem, plan, &params);
      return launch(function, what, &params, device_index, stream);
    }
    case RopeKernel::kLongTable32:
    case RopeKernel::kLongTable16: {
      RopeLongTableParams params;
      set_long_table_params(problem, plan, &params);
      return launch(function, what, &params, device_index, stream);
    }
    case RopeKernel::kToken:
    case RopeKernel::kFlat: {
      RopeTokenAngleParams params;
      set_token_params(problem, plan, &params);
      copy_increments(*problem.geometry, params.increments);
      return launch(function, what, &params, device_index, stream);
    }
    case RopeKernel::kTokenAxes:
    case RopeKernel::kTokenSequences: {
      RopeTokenLookup<RopeTokenAngleParams> params;
      set_token_params(problem, plan, &params);
      set_token_lookup_params(problem, &params);
      copy_increments(*problem.geometry, params.increments);
      return launch(function, what, &params, device_index, stream);
    }
    case RopeKernel::kTokenTable:
    case RopeKernel::kTable32:
    case RopeKernel::kTable16: {
      RopeTokenTableParams params;
      set_token_params(problem, plan, &params);
      const int64_t size = dtype_size(problem.table.dtype);
      params.cos_row_bytes = static_cast<int32_t>(problem.table.cos.row_stride * size);
      params.sin_row_bytes = static_cast<int32_t>(problem.table.sin.row_stride * size);
      params.table = problem.table;
      return launch(function, what, &params, device_index, stream);
    }
    case RopeKernel::kTokenTableAxes:
    case RopeKernel::kTokenTableSequences: {
      RopeTokenLookup<RopeTokenTableParams> params;
      set_token_params(problem, plan, &params);
      set_token_lookup_params(problem, &params);
      params.table = problem.table;
      return launch(function, what, &params, device_index, stream);
    }
    case RopeKernel::kScattered: {
      RopeScattered<RopeTokenLookup<RopeTokenAngleParams>> params;
      set_token_params(problem, plan, &params);
      set_token_lookup_params(problem, &params);
      set_scattered_params(problem, &params);
      copy_increments(*problem.geometry, params.increments);
      return launch(function, what, &params, device_index, stream);
    }
    case RopeKernel::kScatteredTable: {
      RopeScattered<RopeTokenLookup<RopeTokenTableParams>> params;
      set_token_params(problem, plan, &params);
      set_token_lookup_params(problem, &params);
      set_scattered_params(problem, &params);
      params.table = problem.table;
      return launch(function, what, &params, device_index, stream);
    }
    default: {
      RopeGeneralParams params;
      set_general_params(problem, plan, &params);
      return launch(function, what, &params, device_index, stream);
    }
  }
}

rope_status_t fill_tables(const char *function, const TableProblem &problem, const DeviceInfo &device,
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
  const int64_t most = int64_t{kTableBlocksPerMultiprocessor} * device.multiprocessors;
  const int64_t wanted = (params.rows * params.columns - 1) / kTableThreads + 1;
  const dim3 grid(static_cast<unsigned>(wanted < most ? wanted : most));
  const Launch what = {table_kernel_of(problem.dtype), grid, kTableThreads, 0, false};
  return launch(function, what, &params, device_index, stream);
}

// Right-aligned, in bytes: the kernel's last axis is the problem's.
void kernel_strides(const int64_t *stride, int ndim, int64_t size, int64_t *target) {
  for (int axis = 0; axis < kMaxAxes; ++axis) {
    const int source = axis - (kMaxAxes - ndim);
    target[axis] = source >= 0 ? stride[source] * size : 0;
  }
}

// The row axes and the column axes apart, each right-aligned.
SwigluRowStrides row_kernel_strides(const SwigluProblem &problem, const int64_t *stride, int64_t size) {
  SwigluRowStrides result = {};
  const int rows = problem.num_row_axes, columns = problem.ndim - rows;
  for (int axis = 0; axis < rows; ++axis) result.row[kMaxRowAxes - rows + axis] = stride[axis] * size;
  for (int axis = 0; axis < columns; ++axis) {
    result.column[kMaxRowAxes - columns + axis] = stride[rows + axis] * size;
  }
  return result;
}

rope_status_t run_swiglu_row_sums(const char *function, const SwigluProblem &problem, const SwigluPlan &plan,
                                  int32_t device_index, rope_stream_t stream) {
  const int64_t size = dtype_size(problem.dtype), scale_size = dtype_size(problem.row_scale_dtype);
  SwigluRowKernelParams params = {};
  for (int i = 0; i < problem.num_inputs(); ++i) {
    params.in[i] = problem.in[i];
    params.in_stride[i] = row_kernel_strides(problem, problem.in_stride[i], size);
  }
  for (int i = 0; i < problem.num_outputs(); ++i) {
    params.out[i] = problem.out[i];
    params.out_stride[i] = row_kernel_strides(problem, problem.out_stride[i], size);
  }
  const auto copy_row_strides = [&](const int64_t *stride, int64_t element, int64_t *target) {
    memcpy(target, row_kernel_strides(problem, stride, element).row, kMaxRowAxes * sizeof *target);
  };
  params.row_scale = problem.row_scale;
  params.grad_row_scale = problem.grad_row_scale;
  params.num_rows = problem.num_rows;
  copy_row_strides(problem.row_scale_stride, scale_size, params.row_scale_stride);
  copy_row_strides(problem.grad_row_scale_stride, scale_size, params.grad_row_scale_stride);
  copy_row_strides(problem.row_index_stride, 1, params.row_index_stride);
  const SwigluRowStrides shape = row_kernel_strides(problem, problem.shape, 1);
  params.columns = problem.num_summed_elements();
  params.rows = problem.num_elements() / params.columns;
  params.has_narrow_columns = params.columns <= UINT32_MAX;
  for (int axis = 0; axis < kMaxRowAxes; ++axis) {
    params.row_shape[axis] = shape.row[axis] != 0 ? shape.row[axis] : 1;
    params.column_shape[axis] = shape.column[axis] != 0 ? shape.column[axis] : 1;
    const int64_t divisor = params.has_narrow_columns ? params.column_shape[axis] : 1;
    params.narrow_column_shape[axis] = Divider::by(static_cast<uint32_t>(divisor));
  }
  params.has_outer_rows = problem.num_row_axes > 1;
  params.has_outer_columns = problem.ndim - problem.num_row_axes > 1;
  params.is_row_scale_f32 = problem.row_scale_dtype == ROPE_DTYPE_F32;
  params.is_num_rows_64_bit = problem.num_rows_dtype == ROPE_DTYPE_I64;
  params.form = problem.form;
  const void *kernel = find_swiglu_kernel(problem.dtype, plan.vector_elements, {kSwigluRowSums, false, false});
  const Launch what = {kernel, dim3(plan.grid_x, plan.grid_y), plan.threads, 0, plan.is_programmatic};
  return launch(function, what, &params, device_index, stream);
}

rope_status_t run_swiglu(const char *function, const SwigluProblem &problem, const SwigluPlan &plan,
                         int32_t device_index, rope_stream_t stream) {
  if (problem.grad_row_scale != nullptr) return run_swiglu_row_sums(function, problem, plan, device_index, stream);
  const int64_t size = dtype_size(problem.dtype);
  SwigluKernelParams params = {};
  for (int i = 0; i < problem.num_inputs(); ++i) {
    params.in[i] = problem.in[i];
    kernel_strides(problem.in_stride[i], problem.ndim, size, params.in_stride[i]);
  }
  for (int i = 0; i < problem.num_outputs(); ++i) {
    params.out[i] = problem.out[i];
    kernel_strides(problem.out_stride[i], problem.ndim, size, params.out_stride[i]);
  }
  for (int i = 0; i < kMaxSwigluInputs; ++i) params.in_row_stride[i] = params.in_stride[i][kMaxAxes - 2];
  for (int i = 0; i < kMaxSwigluOutputs; ++i) params.out_row_stride[i] = params.out_stride[i][kMaxAxes - 2];
  params.inputs = plan.inputs;
  params.gradients = plan.gradients;
  if (plan.inputs == GateUpLayout::kAlternatingUpFirst) params.in[kGate] = problem.in[kUp];
  if (plan.gradients == GateUpLayout::kAlternatingUpFirst) params.out[kGradGate] = problem.out[kGradUp];
  for (int axis = 0; axis < kMaxAxes; ++axis) {
    const int source = axis - (kMaxAxes - problem.ndim);
    params.shape[axis] = source >= 0 ? problem.shape[source] : 1;
  }
  params.columns = problem.shape[problem.ndim - 1];
  params.form = form_in<float>(problem.form);
  params.wide_form = problem.form;
  params.row_scale = problem.row_scale;
  params.is_row_scale_f32 = problem.row_scale_dtype == ROPE_DTYPE_F32;
  kernel_strides(problem.row_scale_stride, problem.ndim, dtype_size(problem.row_scale_dtype), params.row_scale_stride);
  params.num_rows = problem.num_rows;
  params.is_num_rows_64_bit = problem.num_rows_dtype == ROPE_DTYPE_I64;
  kernel_strides(problem.row_index_stride, problem.ndim, 1, params.row_index_stride);
  params.vectors_per_row = plan.vectors_per_row;
  params.num_vectors = plan.num_vectors;
  params.is_single_row = problem.ndim == 1;
  params.is_narrow = plan.num_vectors <= UINT32_MAX;
  params.narrow_vectors_per_row = Divider::by(params.is_narrow ? static_cast<uint32_t>(plan.vectors_per_row) : 1);
  params.has_outer_axes = problem.ndim > 2;
  const SwigluWork work = !problem.is_backward                     ? kSwigluForward
                          : problem.out[kRecomputedOut] != nullptr ? kSwigluGradientsAndOut
                                                                   : kSwigluGradients;
  const bool is_plain = problem.form.is_plain && problem.row_scale == nullptr && problem.num_rows == nullptr;
  const void *kernel = find_swiglu_kernel(problem.dtype, plan.vector_elements, {work, is_plain, plan.is_alternating()});
  const Launch what = {kernel, dim3(plan.grid_x, plan.grid_y), plan.threads, 0, plan.is_programmatic};
  return launch(function, what, &params, device_index, stream);
}

const char *describe() {
  return ROPE_CUDA_VERSION " for " ROPE_CUDA_ARCHITECTURES;
}

}  // namespace

const Backend kCudaBackend = {count_devices, open_rope, open_swiglu, run_rope, fill_tables, run_swiglu, describe};

}  // namespace rope
