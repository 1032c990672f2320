// SPDX-License-Identifier: Apache-2.0
// backend.hpp - the operations of a device, as a table of functions; one table per backend
#pragma once

#include "core/problem/rope_problem.hpp"
#include "core/problem/swiglu_problem.hpp"
#include "core/problem/table_problem.hpp"
#include "plan/device_info.hpp"
#include "plan/rope_plan.hpp"
#include "plan/swiglu_plan.hpp"

namespace rope {

struct Backend {
  // Returns the number of usable devices. If it is 0, last_error() gives the reason.
  int32_t (*count_devices)(const char *function);

  // Prepares a device for all calls of a descriptor (loads kernels) and describes the device for planning.
  rope_status_t (*open_rope)(const char *function, const RopeGeometry &geometry, int32_t device_index,
                             int32_t num_threads, DeviceInfo *device);
  rope_status_t (*open_swiglu)(const char *function, rope_dtype_t dtype, int32_t device_index, int32_t num_threads,
                               DeviceInfo *device);

  // Run a planned, non-empty problem or call on an opened device. CUDA enqueues the work; the CPU finishes it before
  // returning.
  rope_status_t (*run_rope)(const char *function, const RopeProblem &problem, const RopePlan &plan,
                            int32_t device_index, rope_stream_t stream);
  rope_status_t (*fill_tables)(const char *function, const TableProblem &problem, const DeviceInfo &device,
                               int32_t device_index, rope_stream_t stream);
  rope_status_t (*run_swiglu)(const char *function, const SwigluCall &call, const SwigluCallPlan &plan,
                              int32_t device_index, rope_stream_t stream);

  // The backend and its instruction sets or architectures, for rope_build_info.
  const char *(*describe)();
};

extern const Backend kCpuBackend;
extern const Backend kCudaBackend;  // in a build without CUDA, a table that refuses every call with the reason

}  // namespace rope
