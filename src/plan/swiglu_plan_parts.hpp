// SPDX-License-Identifier: Apache-2.0
// swiglu_plan_parts.hpp - what the plans of SwiGLU's words and codes share
#pragma once

#include "plan/swiglu_plan.hpp"

namespace rope {

// Returns the elements of the widest vectors that fit all tensors, with gate and up as separate ones.
int choose_swiglu_vector(const SwigluProblem &problem);

// Sets the grid. NOT_SUPPORTED: one launch cannot hold so many blocks.
rope_status_t set_swiglu_grid(const char *function, int64_t num_blocks, SwigluPlan *plan);

// Plans kernels whose warps process parts of rows; `blocks` run on a multiprocessor. Returns whether the problem has
// tensors of the axes experts, rows and columns, or of rows and columns, and fits numbers of 32 bits.
bool choose_swiglu_parts(const SwigluProblem &problem, const DeviceInfo &device, int blocks, SwigluPlan *plan);

// Plans an output of codes.
rope_status_t plan_swiglu_codes(const char *function, const SwigluProblem &problem, const DeviceInfo &device,
                                SwigluPlan *plan);

// Whether one kernel writes all codes of the call: by row and by column, or gradients.
bool are_swiglu_code_blocks(const SwigluCall &call);
rope_status_t plan_swiglu_code_blocks(const char *function, const SwigluCall &call, const DeviceInfo &device,
                                      SwigluPlan *plan);

}  // namespace rope
