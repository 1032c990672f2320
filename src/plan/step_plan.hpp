// SPDX-License-Identifier: Apache-2.0
// step_plan.hpp - chooses the kernel and launch of calls with norms, caches or heads that are not turned on CUDA
#pragma once

#include "core/problem/step_problem.hpp"
#include "plan/rope_plan.hpp"

namespace rope {

// Whether calls of a descriptor with this geometry may get other kernels than kGeneral.
bool may_have_rows(const RopeGeometry &geometry);

// The norm of the descriptor's calls that have a norm.
StepNorm step_norm_of(const RopeGeometry &geometry);

// The number of threads of a head, as a power of two, with two vectors for each thread.
int step_lanes_log2(int channels, int vector_elements);

// The first thread of a tensor among those of a token, if `threads` threads come before it. No head lies in two warps;
// with a norm over all heads, no tensor lies in two blocks.
int64_t step_tensor_begin(const RopeProblem &problem, const RopePlan &plan, int index, int64_t threads);

// The stride of tokens. With is_flat, tokens are counted through all batches.
inline int64_t token_stride_of(const RopeProblem &problem, bool is_flat, const int64_t *stride) {
  return stride[is_flat && problem.tokens == 1 ? kBatch : kToken];
}

inline int64_t token_stride_of(const RopeProblem &problem, bool is_flat, const TokenIntegers &integers) {
  return is_flat && problem.tokens == 1 ? integers.batch_stride : integers.token_stride;
}

// A token's slots, or its positions in the caches if there is a page table.
inline const TokenIntegers &places_source(const RopeProblem &problem) {
  const CachePlaces &places = problem.step->places;
  return places.slots.is_present ? places.slots : places.positions.is_present ? places.positions : problem.positions;
}

void plan_step(const RopeProblem &problem, const DeviceInfo &device, RopePlan *plan);

}  // namespace rope
