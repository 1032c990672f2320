// SPDX-License-Identifier: Apache-2.0
// cpu_swiglu.hpp - SwiGLU on the CPU
#pragma once

#include "core/problem/swiglu_problem.hpp"

namespace rope {

// Does the work of a problem with up to `num_tasks` threads before it returns.
void run_cpu_swiglu(const SwigluProblem &problem, int num_tasks);

// Writes the output of codes of a problem. num_rows has been applied to its shape, unless groups of rows have scales.
void run_cpu_swiglu_codes(const SwigluProblem &problem, int num_tasks);

// Sets the padding of tiles of scales to zero, whatever rows exist.
void clear_scale_padding(const SwigluProblem &problem);

}  // namespace rope
