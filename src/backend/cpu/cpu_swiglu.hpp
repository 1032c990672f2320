// cpu_swiglu.hpp - SwiGLU on the CPU
#pragma once

#include "core/problem/swiglu_problem.hpp"

namespace rope {

// Does the work of a problem with up to `num_tasks` threads before it returns.
void run_cpu_swiglu(const SwigluProblem &problem, int num_tasks);

// Forward to codes, of a problem whose num_rows has been read.
void run_cpu_swiglu_codes(const SwigluProblem &problem, int num_tasks);

// Sets what pads tiles of scales to zero, whatever rows there are.
void clear_scale_padding(const SwigluProblem &problem);

}  // namespace rope
