// SPDX-License-Identifier: Apache-2.0
// step_param_parts.hpp - the parts of params that several kernels of the step have, and the functions that set params
#pragma once

#include "backend/cuda/kernels/step_params.hpp"
#include "backend/cuda/param_parts.hpp"
#include "plan/step_plan.hpp"

namespace rope {

// The stride of heads in weights or in a bias.
inline int32_t head_bytes(const RopeProblem &problem, const ChannelNumbers &numbers) {
  return static_cast<int32_t>(numbers.head_stride * (numbers.is_f32 ? 4 : dtype_size(problem.geometry->dtype)));
}

// The size of a cache's element, or the data's if there is no cache.
inline int64_t cache_size(const RopeProblem &problem, const CacheView &cache) {
  return dtype_size(cache.data != nullptr ? cache.dtype : problem.geometry->dtype);
}

// The destinations that have codes, the codes' type, and whether a destination has the data's type.
inline uint32_t code_flags(const StepPiece &piece) {
  const auto flag = [](bool is_set, StepFlags bit) { return is_set ? uint32_t{bit} : 0u; };
  return flag(piece.has_code_out(), kHasCodeOut) | flag(piece.has_code_cache(), kHasCodeCache) |
         flag(piece.code_dtype() == ROPE_DTYPE_F8_E5M2, kHasE5M2) | flag(piece.has_words(), kHasWords);
}

inline int64_t integer_bytes(bool is_64_bit) {
  return is_64_bit ? 8 : 4;
}

inline void set_pages(const CachePlaces &places, StepPages *params) {
  const PageTable &table = places.table;
  const int64_t integer = integer_bytes(table.is_64_bit), of_sequence = integer_bytes(places.sequence.is_64_bit);
  params->table = table.data;
  params->indptr = table.indptr;
  if (places.sequence.is_present) params->sequences = places.sequence.data;
  params->row_bytes = static_cast<int32_t>(table.row_stride * integer);
  params->column_bytes = static_cast<int32_t>(table.column_stride * integer);
  params->indptr_bytes = static_cast<int32_t>(table.indptr_stride * integer_bytes(table.is_indptr_64_bit));
  params->sequence_token_bytes = static_cast<int32_t>(places.sequence.token_stride * of_sequence);
  params->sequence_batch_bytes = static_cast<int32_t>(places.sequence.batch_stride * of_sequence);
  params->columns = static_cast<uint32_t>(table.columns);
  params->rows = static_cast<uint32_t>(table.rows);
  params->is_64_bit = table.is_64_bit;
  params->is_indptr_64_bit = table.is_indptr_64_bit;
  params->is_sequence_64_bit = places.sequence.is_64_bit;
}

// `is_flat`: tokens of all batches are counted as one batch to find a token's slot, or its position in the caches.
inline void set_slots(const RopeProblem &problem, bool is_flat, StepSlots *params) {
  const StepProblem &step = *problem.step;
  const CachePlaces &places = step.places;
  *params = {};
  params->has_caches = step.has_caches;
  params->entries = FastDivmod::by(1);
  if (!step.has_caches) return;
  const TokenIntegers &integers = places_source(problem);
  const int64_t integer = integer_bytes(integers.is_64_bit);
  if (integers.is_present) params->data = integers.data;
  params->token_bytes = static_cast<int32_t>(token_stride_of(problem, is_flat, integers) * integer);
  params->batch_bytes = static_cast<int32_t>(integers.batch_stride * integer);
  params->is_64_bit = integers.is_present && integers.is_64_bit;
  params->skips_slot_0 = places.skips_slot_0;
  params->entries = FastDivmod::by(static_cast<uint32_t>(places.entries));
  params->cached_tokens = static_cast<uint32_t>(places.cached_tokens);
  if (is_flat && problem.batches > 1) {
    params->cached_tokens = static_cast<uint32_t>(problem.batches * problem.tokens);
  }
  params->end = static_cast<uint32_t>(places.slots.is_present ? places.pages * places.entries : places.pages);
}

inline void set_lookups(const RopeProblem &problem, StepLookups *params) {
  const RopeGeometry &geometry = *problem.geometry;
  const CachePlaces &places = problem.step->places;
  *params = {};
  if (geometry.num_axes > 1) params->used_axes = geometry.used_axes;
  params->position_axis_bytes =
      static_cast<int32_t>(problem.positions.axis_stride * integer_bytes(problem.positions.is_64_bit));
  for (int pair = 0; pair < geometry.pairs(); ++pair) {
    params->pair_axis[pair / 16] |= static_cast<uint32_t>(geometry.pair_axis[pair]) << (pair % 16 * 2);
  }
  if (!problem.step->has_caches || places.slots.is_present) return;
  set_pages(places, &params->pages);
  if (!places.positions.is_present) params->slot_offset = static_cast<uint64_t>(problem.position_offset);
}

// The parameters of tokens that all kernels but the general one read.
template <typename Params>
void set_token_params(const RopeProblem &problem, bool is_flat, Params *params) {
  const RopeGeometry &geometry = *problem.geometry;
  const TokenIntegers &positions = problem.positions;
  const int64_t integer = integer_bytes(positions.is_64_bit);
  params->positions = positions.data;
  params->position_bytes = static_cast<int32_t>(token_stride_of(problem, is_flat, positions) * integer);
  params->has_positions = positions.is_present;
  params->has_wide_positions = positions.is_present && positions.is_64_bit;
  params->pairs = static_cast<uint32_t>(geometry.pairs());
  set_slots(problem, is_flat, &params->slots);
  int normed = 0;
  const auto is_normed = [&](int i) { return problem.tensor[i].heads != 0 && problem.step->tensor[i].is_normed; };
  while (normed < problem.num_tensors - 1 && !is_normed(normed)) ++normed;
  params->norm = norm_form<float>(problem, normed);
  params->position_offset = static_cast<uint64_t>(problem.position_offset);
  set_scales(problem, params);
  params->fault = problem.fault;
}

// A piece's factor, and the address of its largest magnitude. `is_flat` is that of set_slots.
inline StepHeadFactor make_factor(const RopeProblem &problem, bool is_flat, const RowFactor &factor, char *amax) {
  const int64_t size = factor.is_f32 ? 4 : dtype_size(problem.geometry->dtype);
  const int64_t token = is_flat && problem.tokens == 1 ? factor.batch_stride : factor.token_stride;
  return {factor.data, factor.batch_stride * size, static_cast<int32_t>(token * size),
          static_cast<int32_t>(factor.head_stride * size), reinterpret_cast<uint32_t *>(amax)};
}

inline int32_t scale_head_bytes(const StaticScale &scale) {
  return static_cast<int32_t>(scale.head_stride * dtype_size(ROPE_DTYPE_F32));
}

// The next three set params of kShortRows and kLongRows, and of gradients of norms by rows.
void set_params(const RopeProblem &problem, const RopePlan &plan, StepRowParams *params);
void set_params(const RopeProblem &problem, const RopePlan &plan, StepRowCodeParams *params);
void set_params(const RopeProblem &problem, const RopePlan &plan, NormGradientRowParams *params);
// These two set params of kLong. The functions for short launches are templates.
void set_params(const RopeProblem &problem, const RopePlan &plan, StepLongHeadParams *params);
void set_params(const RopeProblem &problem, const RopePlan &plan, StepLongTableParams *params);
// These two set params of the general kernel, and of its gradients of norms.
void set_params(const RopeProblem &problem, const RopePlan &plan, StepGeneralParams *params);
void set_params(const RopeProblem &problem, const RopePlan &plan, NormGradientParams *params);

template <typename Params, uint32_t kPairs>
void set_params(const RopeProblem &problem, const RopePlan &plan, WithAngles<Params, kPairs> *params) {
  set_params(problem, plan, static_cast<Params *>(params));
  copy_increments(*problem.geometry, params->increments);
}

}  // namespace rope
