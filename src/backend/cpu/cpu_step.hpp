// cpu_step.hpp - RoPE with what a call does around the rotation, on the CPU
#pragma once

#include "core/problem/step_problem.hpp"

namespace rope {

// Does the work of a problem with a step with up to `num_tasks` threads before it returns.
void run_cpu_step(const RopeProblem &problem, int num_tasks);

// Likewise of backward with a norm.
void run_cpu_norm_gradient(const RopeProblem &problem, int num_tasks);

}  // namespace rope
