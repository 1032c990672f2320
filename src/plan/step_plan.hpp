// step_plan.hpp - chooses how a call with norms, caches or heads that are not turned runs on CUDA
#pragma once

#include "plan/rope_plan.hpp"

namespace rope {

// The threads of a head, as a power of two, where each takes two vectors.
int step_lanes_log2(int channels, int vector_elements);

void plan_step(const RopeProblem &problem, const DeviceInfo &device, RopePlan *plan);

}  // namespace rope
