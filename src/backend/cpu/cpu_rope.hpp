// SPDX-License-Identifier: Apache-2.0
// cpu_rope.hpp - RoPE and its tables on the CPU
#pragma once

#include "backend/cpu/cpu_tokens.hpp"
#include "core/problem/rope_problem.hpp"
#include "core/problem/table_problem.hpp"

namespace rope {

// Both finish the work, with up to `num_tasks` threads, before they return.
void run_cpu_rope(const RopeProblem &problem, int num_tasks);
void fill_cpu_tables(const TableProblem &problem);

// Rotates the window of a tensor's heads for one token with these angles. If the token is not rotated, copies the
// window.
template <typename Real>
void rotate_head_run(const RopeProblem &problem, const HeadRun &run, TokenState state, const TokenAngles<Real> &angles);

}  // namespace rope
