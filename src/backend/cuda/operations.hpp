// SPDX-License-Identifier: Apache-2.0
// operations.hpp - RoPE, its tables and SwiGLU on CUDA: the kernels of a descriptor, and the launches of a plan. The
// headers of CUDA are not needed, so that tests plan and set params without them.
#pragma once

#include "backend/cuda/launch.hpp"
#include "core/problem/rope_problem.hpp"
#include "core/problem/swiglu_problem.hpp"
#include "core/problem/table_problem.hpp"
#include "plan/rope_plan.hpp"
#include "plan/swiglu_plan.hpp"

namespace rope {

constexpr int kVectorElements[] = {8, 4, 2, 1};

// Visit all kernels that calls of the descriptor may use, some of them several times.
void visit_rope_kernels(const RopeGeometry &geometry, KernelVisitor visit);
void visit_step_kernels(const RopeGeometry &geometry, KernelVisitor visit);
void visit_swiglu_kernels(rope_dtype_t dtype, KernelVisitor visit);

// Members of Backend.
rope_status_t run_cuda_rope(const char *function, const RopeProblem &problem, const RopePlan &plan,
                            int32_t device_index, rope_stream_t stream);
rope_status_t run_cuda_step(const char *function, const RopeProblem &problem, const RopePlan &plan,
                            int32_t device_index, rope_stream_t stream);
rope_status_t fill_cuda_tables(const char *function, const TableProblem &problem, const DeviceInfo &device,
                               int32_t device_index, rope_stream_t stream);
rope_status_t run_cuda_swiglu(const char *function, const SwigluCall &call, const SwigluCallPlan &plan,
                              int32_t device_index, rope_stream_t stream);

}  // namespace rope
