// merge_axes.hpp - the same RoPE problem with fewer axes
#pragma once

#include "core/problem/rope_problem.hpp"

namespace rope {

// Batches become further tokens where strides allow it, as where each batch has one token, or further heads where all
// batches have the same angles and heads follow each other through them, as in SBHD, or, of computed angles and 16
// bits, in BHSD. What is read, written and counted stays the same.
void merge_axes(RopeProblem *problem);

}  // namespace rope
