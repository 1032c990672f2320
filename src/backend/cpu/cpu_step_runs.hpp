// SPDX-License-Identifier: Apache-2.0
// cpu_step_runs.hpp - arguments of the step's inner loops: the angles and the place of a token, and heads of one of its
// tensors with their destinations
#pragma once

#include "backend/cpu/cpu_kernels.hpp"
#include "backend/cpu/cpu_tokens.hpp"
#include "core/problem/view.hpp"

namespace rope {

inline CpuKernels::Step<float> *step_of(const CpuKernels &kernels, rope_dtype_t dtype, float) {
  return kernels.step[cpu_type(dtype)];
}

inline CpuKernels::Step<double> *step_of(const CpuKernels &kernels, rope_dtype_t, double) {
  return kernels.step_f64;
}

struct StepJob {
  const RopeProblem *problem;
  int num_tasks;
  bool is_streamed;  // destinations other than the input bypass the caches
};

inline CachePlace place_of_token(const RopeProblem &problem, int64_t batch, int64_t token, const TokenPlace &place) {
  const CachePlaces &places = problem.step->places;
  const bool is_by_position = !places.slots.is_present && !places.positions.is_present;
  const uint64_t position = is_by_position ? position_on(problem, 0, place.batch, token, place.index) : 0;
  return find_cache_place(places, batch, token, place.batch, static_cast<int64_t>(position));
}

// A token's position, its counted faults, its angles and its place.
template <typename Real>
struct StepToken {
  TokenState state;
  CachePlace cache;
  TokenAngles<Real> angles;

  TokenState find(const RopeProblem &problem, int64_t batch, int64_t token, bool is_counted) {
    const StepProblem &step = *problem.step;
    // A position outside a table is a fault even if no tensor of the call is turned.
    const bool has_angles = step.is_turned || problem.angles != AngleSource::kIncrements;
    const TokenPlace place =
        has_angles ? fill_token_angles(problem, batch, token, &angles) : find_place(problem.sequences, batch, token);
    const int64_t flat_token = batch * problem.tokens + token;
    if (place.is_faulty && is_counted) count_fault(problem.fault, flat_token);
    state = place.state;
    cache.is_cached = false;
    if (state == kAbsent || !step.has_caches) return state;
    cache = place_of_token(problem, batch, token, place);
    if (cache.is_faulty && is_counted) count_fault(problem.fault, flat_token);
    return state;
  }
};

inline ChannelNumbers numbers_from(const ChannelNumbers &given, int64_t head, rope_dtype_t dtype) {
  ChannelNumbers numbers = given;
  const int64_t size = dtype_size(given.is_f32 ? ROPE_DTYPE_F32 : dtype);
  if (given.data != nullptr) numbers.data += head * given.head_stride * size;
  return numbers;
}

inline const char *scale_from(const StaticScale &scale, int64_t head) {
  if (scale.data == nullptr) return nullptr;
  return scale.data + head * scale.head_stride * dtype_size(ROPE_DTYPE_F32);
}

inline StepTarget cache_target(const CacheView &cache, const CachePlace &place, int64_t head, const ChannelPart &part,
                               bool is_streamed, const StaticScale &scale, const WrittenScales &scales) {
  const int64_t first = place.page * cache.page_stride + place.entry * cache.entry_stride + head * cache.head_stride;
  return {cache.data + first * dtype_size(cache.dtype),
          cpu_type(cache.dtype),
          cache.head_stride,
          cache.channel_stride,
          part,
          is_streamed,
          scale_from(scale, head),
          scale.head_stride,
          &scales,
          scales.row(place.page, place.entry) + head * scales.head_stride};
}

template <typename Real>
StepRun<Real> describe_run(const StepJob &job, const HeadRun &heads, const StepToken<Real> &token) {
  const RopeProblem &problem = *job.problem;
  const RopeGeometry &geometry = *problem.geometry;
  const RotatedTensor &rotated = problem.tensor[heads.tensor];
  const StepTensor &tensor = problem.step->tensor[heads.tensor];
  const auto offset = [&](const int64_t *stride) {
    return heads.batch * stride[kBatch] + heads.token * stride[kToken] + heads.head * stride[kHead];
  };
  StepRun<Real> run = {};
  run.in = rotated.in + offset(rotated.in_stride) * dtype_size(geometry.dtype);
  run.head_stride = rotated.in_stride[kHead];
  run.channel_stride = rotated.in_stride[kChannel];
  run.heads = heads.count;
  run.is_followed = heads.is_followed;
  run.channels = tensor.channels;
  run.window_begin = tensor.window_begin;
  run.pairs = tensor.has_styles ? geometry.pairs() : 0;
  run.in_distance = tensor.has_styles ? problem.in_distance : 1;
  run.out_distance = tensor.has_styles ? problem.out_distance : 1;
  run.is_turned = tensor.is_turned && token.state == kRotated;
  run.rounds_each = geometry.rounds_each;
  run.angles = token.angles.from(0, problem.table.is_by_channel);
  run.is_norm_after = geometry.norm.is_after;
  run.is_norm_of_token = geometry.norm.is_of_token;
  run.weight = numbers_from(tensor.weight, heads.head, geometry.dtype);
  run.bias = numbers_from(tensor.bias, heads.head, geometry.dtype);
  run.factor = tensor.factor;
  if (run.factor.is_present()) {
    run.factor.data += tensor.factor.offset_of(heads.batch, heads.token, heads.head) *
                       dtype_size(tensor.factor.is_f32 ? ROPE_DTYPE_F32 : geometry.dtype);
  }
  run.accumulates = problem.step->accumulates;
  run.code = {problem.step->scale_multiplies, geometry.rounds_before_codes, nullptr};
  if (tensor.pass.is_present) {
    run.in -= tensor.window_begin * run.channel_stride * dtype_size(geometry.dtype);
    run.pass = tensor.pass.data + offset(tensor.pass.stride) * dtype_size(geometry.dtype);
    run.pass_head_stride = tensor.pass.stride[kHead];
    run.pass_channel_stride = tensor.pass.stride[kChannel];
  }
  const bool changes =
      tensor.is_normed || tensor.factor.is_present() || run.is_turned || run.in_distance != run.out_distance;
  if (tensor.is_written && (changes || !rotated.is_in_place)) {
    run.targets[run.num_targets++] = {
        rotated.out + offset(rotated.out_stride) * dtype_size(tensor.out_dtype),
        cpu_type(tensor.out_dtype),
        rotated.out_stride[kHead],
        rotated.out_stride[kChannel],
        {true, tensor.is_whole, tensor.window_begin, tensor.window_begin + 2 * run.pairs},
        job.is_streamed && !rotated.is_in_place,
        scale_from(tensor.scale, heads.head),
        tensor.scale.head_stride,
        &tensor.out_scales,
        tensor.out_scales.row(heads.batch, heads.token) + heads.head * tensor.out_scales.head_stride};
  }
  if (tensor.is_cached() && token.cache.is_cached) {
    // A tensor without styles has no pairs: its window is empty, and all channels count as those behind it.
    ChannelPart part = tensor.cache_part;
    if (!tensor.has_styles) part.behind_at = tensor.window_begin;
    run.targets[run.num_targets++] =
        cache_target(tensor.cache, token.cache, heads.head, part, job.is_streamed, tensor.scale, tensor.cache_scales);
    if (tensor.pass_cache.data != nullptr) {
      run.targets[run.num_targets++] =
          cache_target(tensor.pass_cache, token.cache, heads.head, ChannelPart::others(tensor.window_begin),
                       job.is_streamed, tensor.pass_scale, tensor.pass_scales);
    }
  } else if (run.num_targets > 0 && !tensor.is_whole) {
    // Other channels are not even read: they may belong to another tensor.
    StepTarget &out = run.targets[0];
    run.in += tensor.window_begin * run.channel_stride * dtype_size(geometry.dtype);
    out.data += tensor.window_begin * out.channel_stride * dtype_size(tensor.out_dtype);
    run.channels = 2 * run.pairs;
    run.window_begin = out.part.window_at = 0;
  }
  return run;
}

}  // namespace rope
