// SPDX-License-Identifier: Apache-2.0
// step_general_params.cpp - the params of the step's general kernel, and of its gradients of norms
#include "backend/cuda/step_param_parts.hpp"

namespace rope {

namespace {

// Strides in bytes, if `size` is that of an element.
CacheView scaled(const CacheView &cache, int64_t size) {
  return {cache.data,
          cache.dtype,
          cache.page_stride * size,
          cache.entry_stride * size,
          cache.head_stride * size,
          cache.channel_stride * size};
}

}  // namespace

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
    mine->pass = {};
    if (of_step.pass.is_present) {
      // Addresses are computed, not strides: a stride that fits for the window alone may be too long for all channels.
      const auto before =
          static_cast<uintptr_t>(of_step.window_begin) * static_cast<uintptr_t>(mine->in.stride[kChannel]);
      mine->in.data = reinterpret_cast<char *>(reinterpret_cast<uintptr_t>(mine->in.data) - before);
      mine->pass = make_side(of_step.pass.data, of_step.pass.stride, size);
    }
    mine->cache = mine->pass_cache = {};
    if (of_step.is_cached()) mine->cache = scaled(of_step.cache, dtype_size(of_step.cache.dtype));
    if (of_step.pass_cache.data != nullptr) {
      mine->pass_cache = scaled(of_step.pass_cache, dtype_size(of_step.pass_cache.dtype));
    }
    mine->cache_part = of_step.cache_part;
    mine->weight = of_step.weight;
    mine->bias = of_step.bias;
    mine->factor = of_step.factor;
    mine->scale = of_step.scale;
    mine->out_scales = of_step.out_scales;
    mine->cache_scales = of_step.cache_scales;
    mine->pass_scale = of_step.pass_scale;
    mine->pass_scales = of_step.pass_scales;
    mine->amax = of_step.amax;
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
  params->scale_multiplies = step.scale_multiplies;
  params->rounds_before_codes = geometry.rounds_before_codes;
  params->accumulates = step.accumulates;
  if (step.has_caches) params->places = step.places;
}

void set_params(const RopeProblem &problem, const RopePlan &plan, NormGradientParams *params) {
  set_params(problem, plan, static_cast<StepGeneralParams *>(params));
  params->dtype = problem.geometry->dtype;
  params->counting_tensor = 0;
  while (problem.tensor[params->counting_tensor].heads == 0) ++params->counting_tensor;
  params->num_items = 0;
  for (int i = 0; i < problem.num_tensors; ++i) {
    const StepTensor &tensor = problem.step->tensor[i];
    NormGradientTensor *const mine = &params->gradient[i];
    mine->in = make_side(tensor.norm_in.data, tensor.norm_in.stride, dtype_size(problem.geometry->dtype));
    mine->weight_sums = tensor.weight_sums;
    mine->bias_sums = tensor.bias_sums;
    mine->tokens_of_run = tensor.runs > 0 ? tokens_of_run(params->num_tokens, tensor.runs) : 1;
    mine->kept_channels = plan.general.kept_channels[i];
    if (problem.tensor[i].heads > 0) params->num_items += (params->num_tokens - 1) / mine->tokens_of_run + 1;
    mine->end_item = params->num_items;
  }
}

}  // namespace rope
