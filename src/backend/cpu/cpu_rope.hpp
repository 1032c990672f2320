// cpu_rope.hpp - RoPE and its tables on the CPU
#pragma once

#include "backend/cpu/cpu_tokens.hpp"
#include "core/problem/rope_problem.hpp"

namespace rope {

// Each does its work with up to `num_tasks` threads before it returns.
void run_cpu_rope(const RopeProblem &problem, int num_tasks);
void fill_cpu_tables(const TableProblem &problem);

// Turns all channels of a tensor's window in heads of one token, which has these angles; those of a token that is not
// rotated are copied.
template <typename Real>
void rotate_head_run(const RopeProblem &problem, const HeadRun &run, TokenState state, const TokenAngles<Real> &angles);

}  // namespace rope
