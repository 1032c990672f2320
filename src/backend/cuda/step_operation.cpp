// step_operation.cpp - calls with norms, caches or heads that are not turned on CUDA: params from problem and plan
#include "backend/cuda/kernels.hpp"
#include "backend/cuda/kernels/step_params.hpp"
#include "backend/cuda/operations.hpp"
#include "backend/cuda/param_parts.hpp"
#include "core/problem/visit_dtype.hpp"
#include "plan/step_plan.hpp"

namespace rope {

namespace {

const void *find_step_kernel(rope_dtype_t dtype, const StepVariant &variant) {
  return visit_dtype(dtype, [&](auto element) { return step_kernel_of(element, variant); });
}

void set_row_tensor(const RopeProblem &problem, const RopePlan &plan, int index, uint32_t begin, uint32_t cache_index,
                    StepRowTensor *params) {
  const RopeGeometry &geometry = *problem.geometry;
  const RotatedTensor &tensor = problem.tensor[index];
  const StepTensor &step = problem.step->tensor[index];
  const int64_t size = dtype_size(geometry.dtype);
  const int V = plan.vector_elements;
  const auto flag = [](bool is_set, StepFlags bit) { return is_set ? uint32_t{bit} : 0u; };
  params->flags = flag(step.is_turned, kIsTurned) | flag(step.is_normed, kIsNormed) |
                  flag(step.weight.is_f32 && size == 2, kHasWideWeight) |
                  flag(step.is_normed || step.is_whole || step.is_cached(), kReadsOutside) |
                  flag(step.is_whole, kWritesOutside);
  params->begin = begin;
  params->heads = static_cast<uint32_t>(tensor.heads);
  params->lanes_log2 = static_cast<uint32_t>(step_lanes_log2(step.channels, V));
  params->units_per_head = static_cast<uint32_t>(step.channels / (2 * V));
  params->in = make_row_side(tensor.in, tensor.in_stride, size, 0);
  if (step.is_written) params->out = make_row_side(tensor.out, tensor.out_stride, size, 0);
  params->cache = step.cache.data;
  params->cache_index = cache_index;
  params->cache_head = static_cast<int32_t>(step.cache.head_stride * size);
  params->weight = step.weight.data;
  params->weight_head = static_cast<int32_t>(step.weight.head_stride * (step.weight.is_f32 ? 4 : size));
  // The window of a tensor that has no styles is of no account: its units are copied, two vectors side by side.
  params->rotary_units = step.has_styles ? static_cast<uint32_t>(geometry.pairs() / V) : 0;
  params->window_begin = step.has_styles ? static_cast<int32_t>(step.window_begin * size) : 0;
  params->window_size = step.has_styles ? static_cast<int32_t>(geometry.rotary_dim * size) : 0;
  params->to_high = static_cast<int32_t>(geometry.pairs() * size);
  params->inverse_count = norm_form<float>(problem, index).inverse_count;
}

void set_slots(const RopeProblem &problem, StepSlots *params) {
  const StepProblem &step = *problem.step;
  const CachePlaces &places = step.places;
  const int64_t integer = places.slots.is_64_bit ? 8 : 4;
  params->has_caches = step.has_caches;
  params->entries = FastDivmod::by(1);
  if (!step.has_caches) return;
  params->data = places.slots.data;
  params->token_bytes = static_cast<int32_t>(places.slots.token_stride * integer);
  params->batch_bytes = static_cast<int32_t>(places.slots.batch_stride * integer);
  params->is_64_bit = places.slots.is_64_bit;
  params->skips_slot_0 = places.skips_slot_0;
  params->entries = FastDivmod::by(static_cast<uint32_t>(places.entries));
  params->end = static_cast<uint32_t>(places.pages * places.entries);
  params->cached_tokens = static_cast<uint32_t>(places.cached_tokens);
}

void set_params(const RopeProblem &problem, const RopePlan &plan, StepRowParams *params) {
  const RopeGeometry &geometry = *problem.geometry;
  const StepProblem &step = *problem.step;
  const int64_t size = dtype_size(geometry.dtype);
  params->num_tokens = static_cast<uint32_t>(problem.batches * problem.tokens);
  params->parts = FastDivmod::by(plan.blocks_per_token);
  params->tokens_per_batch = FastDivmod::by(static_cast<uint32_t>(problem.tokens));
  params->has_one_batch = problem.batches == 1;
  const TokenIntegers &positions = problem.positions;
  const int64_t integer = positions.is_64_bit ? 8 : 4;
  params->has_positions = positions.is_present;
  params->has_wide_positions = positions.is_present && positions.is_64_bit;
  params->positions = positions.data;
  params->position_bytes = static_cast<int32_t>(positions.token_stride * integer);
  params->position_batch_bytes = static_cast<int32_t>(positions.batch_stride * integer);
  set_slots(problem, &params->slots);
  params->is_full_window = true;
  uint32_t begin = 0, caches = 0;
  for (int i = 0; i < 3; ++i) {
    params->tensor[i] = {};
    params->tensor[i].begin = ~uint32_t{0};
    if (i >= problem.num_tensors) continue;
    params->tensor[i].begin = begin;
    if (problem.tensor[i].heads == 0) continue;
    const StepTensor &tensor = step.tensor[i];
    StepRowTensor *const mine = &params->tensor[i];
    begin = static_cast<uint32_t>(step_tensor_begin(problem, i, plan.vector_elements, begin));
    set_row_tensor(problem, plan, i, begin, caches, mine);
    begin += static_cast<uint32_t>(problem.tensor[i].heads) << mine->lanes_log2;
    if (tensor.is_cached()) {
      params->slots.page_bytes[caches] = tensor.cache.page_stride * size;
      params->slots.entry_bytes[caches] = tensor.cache.entry_stride * size;
      ++caches;
    }
    if (tensor.is_normed && mine->rotary_units != 1u << mine->lanes_log2) params->is_full_window = false;
  }
  for (; caches < 2; ++caches) params->slots.page_bytes[caches] = params->slots.entry_bytes[caches] = 0;
  params->fault = problem.fault;
  params->norm = norm_form<float>(problem, 0);
  params->position_offset = static_cast<uint64_t>(problem.position_offset);
  params->pairs = static_cast<uint32_t>(geometry.pairs());
  set_scales(problem, params);
  params->table = problem.table;
}

template <uint32_t kPairs>
void set_params(const RopeProblem &problem, const RopePlan &plan, StepAngleParams<kPairs> *params) {
  set_params(problem, plan, static_cast<StepRowParams *>(params));
  copy_increments(*problem.geometry, params->increments);
}

// In bytes where `size` is an element's.
CacheView scaled(const CacheView &cache, int64_t size) {
  return {cache.data,
          cache.dtype,
          cache.page_stride * size,
          cache.entry_stride * size,
          cache.head_stride * size,
          cache.channel_stride * size};
}

void set_params(const RopeProblem &problem, const RopePlan &plan, StepGeneralParams *params) {
  const RopeGeometry &geometry = *problem.geometry;
  const StepProblem &step = *problem.step;
  const int64_t size = dtype_size(geometry.dtype);
  set_lookup_params(problem, params);
  params->num_tensors = problem.num_tensors;
  for (int i = 0; i < problem.num_tensors; ++i) {
    const RotatedTensor &tensor = problem.tensor[i];
    const StepTensor &of_step = step.tensor[i];
    StepGeneralTensor *const mine = &params->tensor[i];
    mine->in = make_side(tensor.in, tensor.in_stride, size);
    mine->out = make_side(tensor.out, tensor.out_stride, dtype_size(of_step.out_dtype));
    mine->cache = {};
    if (of_step.is_cached()) mine->cache = scaled(of_step.cache, dtype_size(of_step.cache.dtype));
    mine->weight = of_step.weight;
    mine->bias = of_step.bias;
    mine->out_dtype = of_step.out_dtype;
    mine->heads = tensor.heads;
    mine->norm = norm_form<double>(problem, i);
    if (geometry.dtype != ROPE_DTYPE_F64) mine->norm.inverse_count = norm_form<float>(problem, i).inverse_count;
    mine->channels = of_step.channels;
    mine->window_begin = of_step.window_begin;
    mine->is_turned = of_step.is_turned;
    mine->has_styles = of_step.has_styles;
    mine->is_normed = of_step.is_normed;
    mine->is_written = of_step.is_written;
    mine->is_whole = of_step.is_whole;
  }
  params->rotary_dim = geometry.rotary_dim;
  params->row_channels = plan.general.row_channels;
  params->warps = plan.general.warps;
  params->blocks_per_token = plan.general.blocks_per_token;
  params->heads_per_block = plan.general.heads_per_block;
  params->is_turned = step.is_turned;
  params->has_caches = step.has_caches;
  params->is_after = geometry.norm.is_after;
  params->is_of_token = step.has_norm && geometry.norm.is_of_token;
  if (step.has_caches) params->places = step.places;
}

template <typename Params>
rope_status_t launch_step(const char *function, const RopeProblem &problem, const RopePlan &plan, int32_t device_index,
                          rope_stream_t stream) {
  const void *kernel = find_step_kernel(problem.geometry->dtype, plan.step);
  const dim3 grid(plan.grid_x, plan.grid_y), block(plan.threads, plan.thread_rows);
  Params params;
  set_params(problem, plan, &params);
  return launch(function, {kernel, grid, block, plan.shared_bytes, plan.is_programmatic}, &params, device_index,
                stream);
}

}  // namespace

void load_step_kernels(const RopeGeometry &geometry, Preloader *preloader) {
  const auto load = [&](const StepVariant &variant) { preloader->load(find_step_kernel(geometry.dtype, variant)); };
  load({StepKernel::kGeneral, StepNorm::kNone, StepAngles::kNone, false});
  if (!may_have_rows(geometry)) return;
  constexpr StepKernel kKernels[] = {StepKernel::kShort, StepKernel::kLong};
  constexpr StepAngles kAngles[] = {StepAngles::kNone, StepAngles::kComputed, StepAngles::kTable};
  for (const StepKernel kernel : kKernels) {
    for (const StepAngles angles : kAngles) {
      // A call without the tensors that are normed has no norm to do.
      load({kernel, StepNorm::kNone, angles, geometry.in_distance == 1});
      const StepNorm norm = geometry.norm.is_after ? StepNorm::kAfter : StepNorm::kBefore;
      if (may_norm_rows(geometry)) load({kernel, norm, angles, geometry.in_distance == 1});
    }
  }
}

rope_status_t run_cuda_step(const char *function, const RopeProblem &problem, const RopePlan &plan,
                            int32_t device_index, rope_stream_t stream) {
  const bool is_computed = plan.step.angles == StepAngles::kComputed;
  const auto launch_it = plan.step.kernel == StepKernel::kGeneral ? launch_step<StepGeneralParams>
                         : !is_computed                           ? launch_step<StepRowParams>
                         : plan.step.kernel == StepKernel::kShort ? launch_step<StepShortAngleParams>
                                                                  : launch_step<StepLongAngleParams>;
  return launch_it(function, problem, plan, device_index, stream);
}

}  // namespace rope
