// cpu_rope.hpp - RoPE and its tables on the CPU
#pragma once

#include "core/problem/rope_problem.hpp"

namespace rope {

// Each does its work with up to `num_tasks` threads before it returns.
void run_cpu_rope(const RopeProblem &problem, int num_tasks);
void fill_cpu_tables(const TableProblem &problem);

}  // namespace rope
