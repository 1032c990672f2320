// merge_axes.hpp - the same RoPE problem with fewer axes
#pragma once

#include "core/rope_problem.hpp"

namespace rope {

// Batches become further tokens where strides allow it, as with one token of each batch, or further heads where each
// has the other's angles and no head has another to share with. What is read, written and counted stays the same.
void merge_axes(RopeProblem *problem);

}  // namespace rope
