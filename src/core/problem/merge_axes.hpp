// SPDX-License-Identifier: Apache-2.0
// merge_axes.hpp - reduces the axes of a RoPE problem
#pragma once

#include "core/problem/rope_problem.hpp"

namespace rope {

// Merges the batch axis into the token axis or the head axis where strides allow it; the elements read, written and
// counted do not change. Batches become tokens where they follow each other as tokens do, as when each batch has one
// token. Batches become heads where all batches have equal angles and their heads have one common stride, as in SBHD;
// with computed angles and 16-bit data, in BHSD too.
void merge_axes(RopeProblem *problem);

}  // namespace rope
