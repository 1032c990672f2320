// cpu_backend.cpp - the CPU as a backend; walks the rows of a SwiGLU problem and hands each to an inner loop
#include "backend/backend.hpp"
#include "backend/cpu/cpu_kernels.hpp"
#include "backend/cpu/cpu_rope.hpp"
#include "backend/cpu/task_range.hpp"
#include "backend/cpu/thread_pool.hpp"
#include "core/float16.hpp"

namespace rope {

namespace {

struct SwigluJob {
  const SwigluProblem *problem;
  int num_tasks;
};

int64_t offset_of_row(const SwigluProblem &problem, const int64_t *stride, int64_t row) {
  int64_t offset = 0;
  for (int axis = problem.ndim - 2; axis >= 0; --axis) {
    offset += row % problem.shape[axis] * stride[axis];
    row /= problem.shape[axis];
  }
  return offset;
}

// One part of the elements, numbered with the last axis fastest, cut where a row ends.
void gate_elements(void *context, int index) {
  const SwigluJob &job = *static_cast<const SwigluJob *>(context);
  const SwigluProblem &problem = *job.problem;
  const int64_t size = dtype_size(problem.dtype);
  const CpuType type = cpu_type(problem.dtype);
  const int last = problem.ndim - 1;
  const int64_t columns = problem.shape[last];
  const Range elements = part_of(problem.num_elements(), job.num_tasks, index);
  for (int64_t element = elements.begin; element < elements.end;) {
    const int64_t row = element / columns, column = element % columns;
    int64_t count = columns - column;
    if (count > elements.end - element) count = elements.end - element;
    const void *in[kMaxSwigluInputs];
    void *out[kMaxSwigluOutputs] = {};
    int64_t in_step[kMaxSwigluInputs], out_step[kMaxSwigluOutputs] = {};
    for (int i = 0; i < problem.num_inputs(); ++i) {
      in_step[i] = problem.in_stride[i][last];
      in[i] = problem.in[i] + (offset_of_row(problem, problem.in_stride[i], row) + column * in_step[i]) * size;
    }
    for (int i = 0; i < problem.num_outputs(); ++i) {
      if (problem.out[i] == nullptr) continue;
      out_step[i] = problem.out_stride[i][last];
      out[i] = problem.out[i] + (offset_of_row(problem, problem.out_stride[i], row) + column * out_step[i]) * size;
    }
    if (problem.is_backward) {
      cpu_kernels().swiglu_backward[type](in, in_step, out, out_step, count, problem.form);
    } else {
      cpu_kernels().swiglu_forward[type](in[kGate], in_step[kGate], in[kUp], in_step[kUp], out[kOut], out_step[kOut],
                                         count, problem.form);
    }
    element += count;
  }
}

int32_t count_devices(const char *) {
  return 1;
}

rope_status_t open_cpu(int32_t num_threads, DeviceInfo *device) {
  *device = DeviceInfo{};
  device->num_threads = num_threads != 0 ? num_threads : count_usable_processors();
  return ROPE_STATUS_SUCCESS;
}

rope_status_t open_rope(const char *, const RopeGeometry &, int32_t, int32_t num_threads, DeviceInfo *device) {
  return open_cpu(num_threads, device);
}

rope_status_t open_swiglu(const char *, rope_dtype_t, int32_t, int32_t num_threads, DeviceInfo *device) {
  return open_cpu(num_threads, device);
}

rope_status_t run_rope(const char *, const RopeProblem &problem, const RopePlan &plan, int32_t, rope_stream_t) {
  run_cpu_rope(problem, plan.num_tasks);
  return ROPE_STATUS_SUCCESS;
}

rope_status_t fill_tables(const char *, const TableProblem &problem, const DeviceInfo &, int32_t, rope_stream_t) {
  fill_cpu_tables(problem);
  return ROPE_STATUS_SUCCESS;
}

rope_status_t run_swiglu(const char *, const SwigluProblem &problem, const SwigluPlan &plan, int32_t, rope_stream_t) {
  SwigluJob job = {&problem, plan.num_tasks};
  run_tasks(plan.num_tasks, gate_elements, &job);
  return ROPE_STATUS_SUCCESS;
}

}  // namespace

const Backend kCpuBackend = {count_devices, open_rope,  open_swiglu,         run_rope,
                             fill_tables,   run_swiglu, kBaseCpuKernels.name};

}  // namespace rope
