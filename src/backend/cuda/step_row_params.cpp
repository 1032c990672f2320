// SPDX-License-Identifier: Apache-2.0
// step_row_params.cpp - the params of the step's kernels that take heads by rows of threads, forward and backward
#include "backend/cuda/step_param_parts.hpp"

namespace rope {

namespace {

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
                  flag(step.bias.is_f32 && size == 2, kHasWideBias) |
                  flag(step.is_normed || step.is_whole || step.is_cached(), kReadsOutside) |
                  flag(step.is_whole, kWritesOutside) | code_flags(whole_piece(problem, index));
  params->begin = begin;
  params->heads = static_cast<uint32_t>(tensor.heads);
  params->lanes_log2 = static_cast<uint32_t>(step_lanes_log2(step.channels, V));
  params->units_per_head = static_cast<uint32_t>(step.channels / (2 * V));
  params->in = make_row_side(tensor.in, tensor.in_stride, size, 0);
  if (step.is_written) params->out = make_row_side(tensor.out, tensor.out_stride, dtype_size(step.out_dtype), 0);
  params->cache = step.cache.data;
  params->cache_index = cache_index;
  params->cache_head = static_cast<int32_t>(step.cache.head_stride * cache_size(problem, step.cache));
  params->weight = step.weight.data;
  params->weight_head = head_bytes(problem, step.weight);
  params->bias = step.bias.data;
  params->bias_head = head_bytes(problem, step.bias);
  // A tensor without styles has no window: its units are copied, two vectors side by side.
  params->rotary_units = step.has_styles ? static_cast<uint32_t>(geometry.pairs() / V) : 0;
  params->window_begin = step.has_styles ? static_cast<int32_t>(step.window_begin * size) : 0;
  params->window_size = step.has_styles ? static_cast<int32_t>(geometry.rotary_dim * size) : 0;
  params->to_high = static_cast<int32_t>(geometry.pairs() * size);
  params->inverse_count = norm_form<float>(problem, index).inverse_count;
}

}  // namespace

void set_params(const RopeProblem &problem, const RopePlan &plan, StepRowParams *params) {
  const StepProblem &step = *problem.step;
  set_token_params(problem, false, params);
  set_lookups(problem, &params->lookups);
  params->num_tokens = static_cast<uint32_t>(problem.batches * problem.tokens);
  params->parts = FastDivmod::by(plan.blocks_per_token);
  params->tokens_per_batch = FastDivmod::by(static_cast<uint32_t>(problem.tokens));
  params->has_one_batch = problem.batches == 1;
  params->position_batch_bytes =
      static_cast<int32_t>(problem.positions.batch_stride * integer_bytes(problem.positions.is_64_bit));
  params->is_after = problem.geometry->norm.is_after;
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
    begin = static_cast<uint32_t>(step_tensor_begin(problem, plan, i, begin));
    set_row_tensor(problem, plan, i, begin, caches, mine);
    begin += static_cast<uint32_t>(problem.tensor[i].heads) << mine->lanes_log2;
    if (tensor.is_cached()) {
      const int64_t size = cache_size(problem, tensor.cache);
      params->page_bytes[caches] = tensor.cache.page_stride * size;
      params->entry_bytes[caches] = tensor.cache.entry_stride * size;
      ++caches;
    }
    if (tensor.is_normed && mine->rotary_units != 1u << mine->lanes_log2) params->is_full_window = false;
  }
  for (; caches < 2; ++caches) params->page_bytes[caches] = params->entry_bytes[caches] = 0;
  params->table = problem.table;
}

void set_params(const RopeProblem &problem, const RopePlan &plan, StepRowCodeParams *params) {
  const StepProblem &step = *problem.step;
  set_params(problem, plan, static_cast<StepRowParams *>(params));
  params->has_norm = step.has_norm;
  params->is_of_token = step.has_norm && problem.geometry->norm.is_of_token;
  params->needs_magnitudes = false;
  params->scale_multiplies = step.scale_multiplies;
  params->rounds_before_codes = problem.geometry->rounds_before_codes;
  params->accumulates = step.accumulates;
  for (int i = 0; i < problem.num_tensors; ++i) {
    const StepTensor &tensor = step.tensor[i];
    if (tensor.amax != nullptr || tensor.out_scales.is_present() || tensor.cache_scales.is_present()) {
      params->needs_magnitudes = true;
    }
    params->codes[i] = {tensor.scale.data, scale_head_bytes(tensor.scale),
                        make_factor(problem, false, tensor.factor, tensor.amax), tensor.out_scales,
                        tensor.cache_scales};
    if (tensor.factor.is_f32) params->tensor[i].flags |= kHasWideFactor;
  }
}

void set_params(const RopeProblem &problem, const RopePlan &plan, NormGradientRowParams *params) {
  const StepProblem &step = *problem.step;
  const StepGradients &gradients = plan.gradients;
  const int64_t size = dtype_size(problem.geometry->dtype);
  set_params(problem, plan, static_cast<WithAngles<StepRowParams, kMaxLongStepPairs> *>(params));
  params->weight_units = gradients.weight_units;
  params->shared_tokens_log2 = gradients.shared_tokens_log2;
  params->shared_angles = gradients.shared_angles;
  params->shared_lost = gradients.shared_lost;
  params->has_table = plan.step.angles == StepAngles::kTable;
  params->is_flat = gradients.is_flat;
  params->is_of_token = step.has_norm && problem.geometry->norm.is_of_token;
  params->usual_units = 0;
  params->has_factors = step.has_factor;
  params->accumulates = step.accumulates;
  for (int i = 0; i < 3; ++i) {
    NormGradientRowTensor *const mine = &params->gradient[i];
    *mine = {};
    if (i >= problem.num_tensors || problem.tensor[i].heads == 0) continue;
    const StepTensor &tensor = step.tensor[i];
    const auto make_side = [&](const char *data, const int64_t *stride) {
      RopeRowSide side = make_row_side(data, stride, size, 0);
      side.token = static_cast<int32_t>(token_stride_of(problem, params->is_flat, stride) * size);
      return side;
    };
    StepRowTensor *const of_rows = &params->tensor[i];
    of_rows->begin = gradients.first_thread[i];
    of_rows->in = make_side(problem.tensor[i].in, problem.tensor[i].in_stride);
    if (tensor.is_written) of_rows->out = make_side(problem.tensor[i].out, problem.tensor[i].out_stride);
    if (tensor.factor.is_f32) of_rows->flags |= kHasWideFactor;
    mine->factor = make_factor(problem, false, tensor.factor, nullptr);
    mine->weight_sums = tensor.weight_sums;
    if (!tensor.is_normed) continue;
    mine->in = make_side(tensor.norm_in.data, tensor.norm_in.stride);
    if (params->is_full_window && of_rows->lanes_log2 > 1) params->usual_units = of_rows->units_per_head;
  }
  bool is_counted = false;
  for (int i = 0; i < 3; ++i) {
    NormGradientGroup *const mine = &params->group[i];
    *mine = {};
    mine->first_block = ~uint32_t{0};
    if (i >= gradients.group.count()) continue;
    const GradientGroup &group = gradients.group[i];
    mine->first_block = group.first_block;
    mine->first_tensor = static_cast<uint32_t>(group.first_tensor);
    mine->end_tensor = static_cast<uint32_t>(group.end_tensor);
    mine->row_threads = group.row_threads;
    mine->rows = group.rows;
    mine->parts = group.parts;
    mine->tokens_of_run = group.tokens_of_run;
    mine->runs = group.runs;
    mine->is_normed = step.tensor[group.first_tensor].is_normed;
    for (int index = group.first_tensor; index < group.end_tensor; ++index) {
      if (gradients.first_thread[index] != ~uint32_t{0} && step.tensor[index].is_turned) mine->is_turned = true;
    }
    mine->counts_faults = mine->is_turned && !is_counted;
    if (mine->is_turned) is_counted = true;
  }
}

}  // namespace rope
