// SPDX-License-Identifier: Apache-2.0
// step_short_more.cuh - the step's kernels for short launches of whole heads with features that step_short.cuh lacks
//
// The features are layer norms, norms behind the rotation, weights of each head or of F32, windows of normed heads,
// several position axes, and page tables. Units, blocks and shared memory are those of step_short.cuh if a block finds
// the angles of its token. Heads with a window are cut into blocks of its size, so that each thread has a unit of a
// block.
#pragma once

#include <type_traits>

#include "backend/cuda/kernels/addresses.cuh"
#include "backend/cuda/kernels/angles.cuh"
#include "backend/cuda/kernels/faults.cuh"
#include "backend/cuda/kernels/kernel.hpp"
#include "backend/cuda/kernels/programmatic_launch.cuh"
#include "backend/cuda/kernels/step_heads.cuh"
#include "plan/tuning.hpp"

namespace rope {

// A unit's part of a head's weights or bias, in F32 or the data's type.
template <typename T, int V>
struct UnitNumbers {
  float low[V] = {};
  float high[V] = {};

  __device__ __forceinline__ void load(const char *of_head, bool is_wide, uint32_t unit, uint32_t pairs) {
    const uint32_t size = is_wide ? 4 : static_cast<uint32_t>(sizeof(T));
    const char *const of_unit = of_head + unit * V * size;
    load_numbers<T, V>(of_unit, is_wide, low);
    load_numbers<T, V>(of_unit + pairs * size, is_wide, high);
  }
};

template <typename T, int V, bool IsInterleaved, bool IsNormed, bool HasCodes, StepAngles kAngles>
__global__ void __launch_bounds__(kMaxStepThreads) step_short_more_kernel(
    const __grid_constant__ StepShortParams<StepShortMoreParams<IsNormed>, HasCodes, kAngles> params) {
  constexpr int32_t kVectorBytes = V * static_cast<int32_t>(sizeof(T));
  constexpr bool kIsTurned = kAngles != StepAngles::kNone;
  constexpr uint32_t kUsualUnits = 128 / (2 * V);
  begin_dependent_launch();
  extern __shared__ float4 shared[];
  float *const cos = reinterpret_cast<float *>(shared);

  const StepLookups &lookups = params.lookups;
  const uint32_t token = blockIdx.x, unit = blockIdx.y * blockDim.x + threadIdx.x, pair = threadIdx.x;
  const uint32_t implicit = token & params.implicit_mask, batch = token & ~params.implicit_mask;
  const uint32_t index = find_piece<IsNormed>(params, unit);
  const StepHeadTensor &tensor = params.tensor[index];
  const StepMoreTensor &more = params.more[index];
  const StepUnitOf<IsNormed> of_unit(params, tensor, unit);
  const uint32_t head = of_unit.head, number = of_unit.number, in_head = place_in_head(params, number);
  const uint32_t in_window = number - params.first_window_unit;
  const bool has_window_unit = !IsNormed || in_window < params.window_units;
  const bool is_active = unit < params.units_per_token && number < of_unit.units, has_cache = tensor.cache != nullptr,
             has_pair = kIsTurned && pair < params.pairs;
  const char *const in = step(step(step(tensor.in, token, tensor.in_token), head, tensor.head), in_head, kVectorBytes);
  char *out = of_unit.find_out(tensor, in, token);
  int32_t cache_unit = kVectorBytes;
  if constexpr (HasCodes) {
    const StepHeadCodes &codes = params.codes[index];
    cache_unit = codes.cache_unit;
    if ((tensor.flags & kHasCodeOut) != 0) {
      out = const_cast<char *>(step(step(step(codes.out, token, codes.out_token), head, codes.out_head), in_head, V));
    }
  }
  char *const cache = const_cast<char *>(step(step(tensor.cache, head, tensor.cache_head), in_head, cache_unit));
  const char *const positions = step(params.positions, token, params.position_bytes);
  const char *position_address = positions;
  if (has_pair && lookups.used_axes != 0) {
    position_address = step(position_address, axis_of(lookups, pair), lookups.position_axis_bytes);
  }
  uint64_t increment = 0;
  if constexpr (kAngles == StepAngles::kComputed) {
    if (has_pair) increment = through_memory(params.increments)[pair];
  }
  wait_for_previous_launch();

  LoadedInteger position = {implicit, 0}, slot = {};
  if (has_pair && params.has_positions) position = load_step_integer(position_address, params.has_wide_positions);
  const bool is_placed = has_cache && token < params.slots.cached_tokens;
  if (is_placed) slot = load_slot(params.slots, step(params.slots.data, token, params.slots.token_bytes), implicit);
  float factor = 1.0f;
  if constexpr (HasCodes) {
    const StepHeadCodes &codes = params.codes[index];
    if (is_active && codes.scale != nullptr) {
      factor = *reinterpret_cast<const float *>(step(codes.scale, head, codes.scale_head));
    }
  }
  Vector<T, V> low = {}, high = {};
  UnitNumbers<T, V> weights, bias;
  if (is_active) {
    low = load_vector<Vector<T, V>>(in);
    high = load_vector<Vector<T, V>>(in + params.to_high);
    if (IsNormed && tensor.weight != nullptr) {
      const bool is_wide = (tensor.flags & kHasWideWeight) != 0;
      weights.load(step(tensor.weight, head, more.weight_head), is_wide, in_head, params.pairs);
    }
    if (IsNormed && more.bias != nullptr) {
      const bool is_wide = (tensor.flags & kHasWideBias) != 0;
      bias.load(step(more.bias, head, more.bias_head), is_wide, in_head, params.pairs);
    }
  }
  StepPlace place = kNowhere;
  if (is_placed) place = find_place(params.slots, lookups, slot, batch, implicit);

  bool is_lost = false;
  if constexpr (kIsTurned) {
    const uint64_t row = finish_step_position(params, position);
    CosSin<float> angle = {};
    if constexpr (kAngles == StepAngles::kComputed) {
      if (has_pair) angle = compute_angle(params, row, increment);
    } else {
      is_lost = has_pair && row >= params.rows;
      if (has_pair && !is_lost) angle = TablePlace(params, static_cast<uint32_t>(row), pair).load(params);
    }
    if (has_pair) {
      cos[pair] = angle.cos;
      cos[pair + kMaxShortStepPairs] = angle.sin;
    }
    is_lost = __syncthreads_or(is_lost) != 0;
    if (is_lost && unit == 0) count_fault(params.fault, token);
  }

  float x[V], y[V];
  to_floats<T, V>(low, x);
  to_floats<T, V>(high, y);
  const bool is_changed = (tensor.flags & kIsChanged) != 0;
  const auto sum_over_head = [&](float of_low, float of_high) {
    if (params.window_units == params.units_per_block) {
      return sum_over_lanes<kUsualUnits>(params, number, of_low, of_high);
    }
    return sum_over_blocks(params.window_units, params.units_per_block, number, of_low, of_high);
  };
  const auto norm = [&] {
    const NormForm<float> &form = params.norm;
    if (form.is_layer) {
      const float mean = mean_of(form, sum_over_head(tree_sum<V>(x), tree_sum<V>(y)));
#pragma unroll
      for (int i = 0; i < V; ++i) x[i] = add_rounded(x[i], -mean), y[i] = add_rounded(y[i], -mean);
    }
    const float sum = sum_over_head(sum_of_squares<V>(x), sum_of_squares<V>(y));
    const float inverse = inverse_norm(form, sum);
    const auto finish = [&](const float *weight, const float *added, float *channels) {
      float offset_weight[V];
#pragma unroll
      for (int i = 0; i < V; ++i) offset_weight[i] = add_rounded(weight[i], tensor.weight_offset);
      scale_and_weigh<T, V, true>(form, inverse, offset_weight, channels);
      if (more.bias == nullptr) return;
#pragma unroll
      for (int i = 0; i < V; ++i) channels[i] = add_rounded(channels[i], added[i]);
      if (form.rounds_after_weight) to_floats<T, V>(from_floats<T, V>(channels), channels);
    };
    finish(weights.low, bias.low, x);
    finish(weights.high, bias.high, y);
  };
  if (IsNormed && !params.is_after) norm();
  if (kIsTurned && is_changed && !is_lost && has_window_unit) {
    using Angles = SharedAngles<V, IsInterleaved>;
    const Angles angles = {cos + Angles::first_of(IsNormed ? in_window : number), params.pairs, kMaxShortStepPairs};
    if constexpr (IsInterleaved) {
      angles.template turn<V / 2>(false, 0, x, x + 1, 2);
      angles.template turn<V / 2>(true, 0, y, y + 1, 2);
    } else {
      angles.template turn<V>(false, 0, x, y, 1);
    }
  }
  if (IsNormed && params.is_after) norm();
  if (!is_active) return;
  const bool as_codes = HasCodes && (tensor.flags & kHasCodes) != 0;
  if constexpr (HasCodes) factor = code_factor(factor, params.scale_multiplies != 0);
  if (as_codes) {
    if (!is_changed) {
      to_floats<T, V>(low, x);
      to_floats<T, V>(high, y);
    }
    put_codes<Float8E4M3, T, V, V>(factor, x, 0, &low);
    put_codes<Float8E4M3, T, V, V>(factor, y, 0, &high);
  } else if (is_changed && (IsNormed || !is_lost)) {
    low = from_floats<T, V>(x);
    high = from_floats<T, V>(y);
  }
  if ((tensor.flags & kHasOut) != 0) store_unit<HasCodes>(params, as_codes, out, low, high);
  if (has_cache && store_cached<HasCodes>(params, tensor, cache, place, as_codes, low, high) &&
      unit == params.counting_unit) {
    count_fault(params.fault, token);
  }
}

template <typename T, bool IsInterleaved, bool IsNormed>
Kernel find_step_short_more_kernel(StepAngles angles) {
  constexpr int V = kShortStepVectorBytes / static_cast<int>(sizeof(T));
#define ROPE_STEP_KERNEL(is_interleaved, angles) \
  kernel_of(step_short_more_kernel<T, V, is_interleaved, IsNormed, false, StepAngles::angles>)
  return angles == StepAngles::kComputed ? ROPE_STEP_KERNEL(IsInterleaved, kComputed)
         : angles == StepAngles::kTable  ? ROPE_STEP_KERNEL(IsInterleaved, kTable)
                                         : ROPE_STEP_KERNEL(false, kNone);
#undef ROPE_STEP_KERNEL
}

// plan_short_heads selects codes only for heads that are normed and turned.
template <typename T, bool IsInterleaved>
Kernel find_step_short_more_codes_kernel(StepAngles angles) {
  constexpr int V = kShortStepVectorBytes / static_cast<int>(sizeof(T));
#define ROPE_STEP_KERNEL(angles) kernel_of(step_short_more_kernel<T, V, IsInterleaved, true, true, StepAngles::angles>)
  return angles == StepAngles::kComputed ? ROPE_STEP_KERNEL(kComputed) : ROPE_STEP_KERNEL(kTable);
#undef ROPE_STEP_KERNEL
}

template <typename T>
Kernel find_step_short_more_kernel(const StepVariant &variant) {
  if constexpr (kMayHaveCodes<T>) {
    if (variant.has_codes()) {
      if (variant.norm == StepNorm::kNone || variant.angles == StepAngles::kNone) return {};
      return variant.is_interleaved ? find_step_short_more_codes_kernel<T, true>(variant.angles)
                                    : find_step_short_more_codes_kernel<T, false>(variant.angles);
    }
  }
  if (variant.norm == StepNorm::kNone) {
    return variant.is_interleaved ? find_step_short_more_kernel<T, true, false>(variant.angles)
                                  : find_step_short_more_kernel<T, false, false>(variant.angles);
  }
  return variant.is_interleaved ? find_step_short_more_kernel<T, true, true>(variant.angles)
                                : find_step_short_more_kernel<T, false, true>(variant.angles);
}

}  // namespace rope
