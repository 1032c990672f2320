// SPDX-License-Identifier: Apache-2.0
// cpu_backend.cpp - the CPU backend; divides a SwiGLU problem into rows for the inner loops
#include "backend/backend.hpp"
#include "backend/cpu/cpu_kernels.hpp"
#include "backend/cpu/cpu_rope.hpp"
#include "backend/cpu/cpu_step.hpp"
#include "backend/cpu/cpu_swiglu.hpp"
#include "backend/cpu/processors.hpp"
#include "backend/cpu/task_memory.hpp"

namespace rope {

namespace {

int32_t count_devices(const char *) {
  return 1;
}

rope_status_t open_cpu(int32_t num_threads, DeviceInfo *device) {
  *device = DeviceInfo{};
  device->num_threads = num_threads != 0 ? num_threads : count_usable_processors();
  reserve_task_memory(device->num_threads);
  return ROPE_STATUS_SUCCESS;
}

rope_status_t open_rope(const char *, const RopeGeometry &, int32_t, int32_t num_threads, DeviceInfo *device) {
  return open_cpu(num_threads, device);
}

rope_status_t open_swiglu(const char *, rope_dtype_t, int32_t, int32_t num_threads, DeviceInfo *device) {
  return open_cpu(num_threads, device);
}

rope_status_t run_rope(const char *, const RopeProblem &problem, const RopePlan &plan, int32_t, rope_stream_t) {
  if (problem.step != nullptr) {
    run_cpu_step(problem, plan.num_tasks);
  } else {
    run_cpu_rope(problem, plan.num_tasks);
  }
  return ROPE_STATUS_SUCCESS;
}

rope_status_t fill_tables(const char *, const TableProblem &problem, const DeviceInfo &, int32_t, rope_stream_t) {
  fill_cpu_tables(problem);
  return ROPE_STATUS_SUCCESS;
}

rope_status_t run_swiglu(const char *, const SwigluCall &call, const SwigluCallPlan &plan, int32_t, rope_stream_t) {
  for (int i = 0; i < call.count; ++i) run_cpu_swiglu(call.problems[i], plan.plans[i].num_tasks);
  return ROPE_STATUS_SUCCESS;
}

const char *describe() {
  return cpu_kernels().name;
}

}  // namespace

const Backend kCpuBackend = {count_devices, open_rope, open_swiglu, run_rope, fill_tables, run_swiglu, describe};

}  // namespace rope
