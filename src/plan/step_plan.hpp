// step_plan.hpp - chooses how a call with norms, caches or heads that are not turned runs on CUDA
#pragma once

#include "core/problem/step_problem.hpp"
#include "plan/rope_plan.hpp"

namespace rope {

// Whether calls of such a descriptor may get other kernels than kGeneral.
bool may_have_rows(const RopeGeometry &geometry);

// The norm of its calls that have one.
StepNorm step_norm_of(const RopeGeometry &geometry);

// The threads of a head, as a power of two, where each takes two vectors.
int step_lanes_log2(int channels, int vector_elements);

// The first thread of a tensor, among those of a token, behind so many: no head lies in two warps, and no tensor in two
// blocks where the norm is over all of its heads.
int64_t step_tensor_begin(const RopeProblem &problem, const RopePlan &plan, int index, int64_t threads);

// The stride of tokens, where is_flat of those that are counted through all batches.
inline int64_t token_stride_of(const RopeProblem &problem, bool is_flat, const int64_t *stride) {
  return stride[is_flat && problem.tokens == 1 ? kBatch : kToken];
}

inline int64_t token_stride_of(const RopeProblem &problem, bool is_flat, const TokenIntegers &integers) {
  return is_flat && problem.tokens == 1 ? integers.batch_stride : integers.token_stride;
}

// A token's slots, or with a page table its positions in the caches.
inline const TokenIntegers &places_source(const RopeProblem &problem) {
  const CachePlaces &places = problem.step->places;
  return places.slots.is_present ? places.slots : places.positions.is_present ? places.positions : problem.positions;
}

void plan_step(const RopeProblem &problem, const DeviceInfo &device, RopePlan *plan);

}  // namespace rope
