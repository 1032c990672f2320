// backend.hpp - what a device can do for the library: a table of functions, one table a backend
#pragma once

#include "core/problem/rope_problem.hpp"
#include "core/problem/swiglu_problem.hpp"
#include "plan/device_info.hpp"
#include "plan/rope_plan.hpp"
#include "plan/swiglu_plan.hpp"

namespace rope {

struct Backend {
  // Usable devices. 0 leaves the reason in last_error().
  int32_t (*count_devices)(const char *function);

  // Makes a device ready for all calls of such a descriptor (loads kernels) and describes it for planning.
  rope_status_t (*open_rope)(const char *function, const RopeGeometry &geometry, int32_t device_index,
                             int32_t num_threads, DeviceInfo *device);
  rope_status_t (*open_swiglu)(const char *function, rope_dtype_t dtype, int32_t device_index, int32_t num_threads,
                               DeviceInfo *device);

  // Enqueue (CUDA) or do (CPU) what was planned. The device was opened; the problem is not empty.
  rope_status_t (*run_rope)(const char *function, const RopeProblem &problem, const RopePlan &plan,
                            int32_t device_index, rope_stream_t stream);
  rope_status_t (*fill_tables)(const char *function, const TableProblem &problem, const DeviceInfo &device,
                               int32_t device_index, rope_stream_t stream);
  rope_status_t (*run_swiglu)(const char *function, const SwigluProblem &problem, const SwigluPlan &plan,
                              int32_t device_index, rope_stream_t stream);

  // Backend and instruction sets or architectures, for rope_build_info.
  const char *(*describe)();
};

extern const Backend kCpuBackend;
extern const Backend kCudaBackend;  // in a build without CUDA, one that refuses with the reason

}  // namespace rope
