// SPDX-License-Identifier: Apache-2.0
// cpu_step.hpp - RoPE with the step around the rotation, on the CPU
#pragma once

#include "core/problem/step_problem.hpp"

namespace rope {

// Solves a problem with a step on up to `num_tasks` threads, and then returns.
void run_cpu_step(const RopeProblem &problem, int num_tasks);

// Solves a backward problem with a norm in this way.
void run_cpu_norm_gradient(const RopeProblem &problem, int num_tasks);

}  // namespace rope
