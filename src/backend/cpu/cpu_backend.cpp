// cpu_backend.cpp - the CPU backend; divides a SwiGLU problem into rows for the inner loops
#include "backend/backend.hpp"
#include "backend/cpu/cpu_kernels.hpp"
#include "backend/cpu/cpu_rope.hpp"
#include "backend/cpu/cpu_step.hpp"
#include "backend/cpu/processors.hpp"
#include "backend/cpu/task_range.hpp"
#include "backend/cpu/thread_pool.hpp"
#include "core/math/float16.hpp"
#include "core/problem/integers.hpp"
#include "core/problem/visit_dtype.hpp"
#include "plan/tuning.hpp"

#if defined(ROPE_X86_KERNELS)
#include <xmmintrin.h>
#endif

namespace rope {

namespace {

struct SwigluJob {
  const SwigluProblem *problem;
  int num_tasks;
  bool is_streamed;
  int64_t num_elements;  // with experts, only the elements of rows that exist
};

// Whether non-temporal stores to `out` pay. If `out` replaces an input, its lines are in the caches anyway.
bool is_worth_streaming(const SwigluProblem &problem) {
  return !problem.is_backward && problem.num_elements() * dtype_size(problem.dtype) >= kMinStreamedCpuBytes &&
         problem.out[kOut] != problem.in[kGate] && problem.out[kOut] != problem.in[kUp];
}

int64_t offset_of_row(const SwigluProblem &problem, const int64_t *stride, int64_t row) {
  int64_t offset = 0;
  for (int axis = problem.ndim - 2; axis >= 0; --axis) {
    offset += row % problem.shape[axis] * stride[axis];
    row /= problem.shape[axis];
  }
  return offset;
}

// Reduces gate's first axis to the number of rows in num_rows. That axis still has its own index, or it has length 1
// and was removed.
void limit_rows(SwigluProblem *problem) {
  int64_t rows = read_integer(problem->num_rows, problem->num_rows_dtype == ROPE_DTYPE_I64, 0);
  if (rows < 0) rows = 0;
  int axis = 0;
  while (axis < problem->ndim - 1 && problem->row_index_stride[axis] == 0) ++axis;
  const bool is_gone = problem->row_index_stride[axis] == 0;
  if (is_gone && rows > 0) return;
  if (rows < problem->shape[axis]) problem->shape[axis] = rows;
}

int64_t elements_of_expert(const SwigluProblem &problem, int64_t expert) {
  const int64_t rows = read_integer(problem.expert_rows, problem.expert_rows_dtype == ROPE_DTYPE_I64,
                                    expert * problem.expert_rows_stride);
  const int64_t held = rows < 0 ? 0 : rows > problem.rows_per_expert ? problem.rows_per_expert : rows;
  return held * problem.num_expert_row_elements();
}

int64_t count_elements(const SwigluProblem &problem) {
  if (problem.expert_rows == nullptr) return problem.num_elements();
  int64_t count = 0;
  for (int64_t expert = 0; expert < problem.experts; ++expert) count += elements_of_expert(problem, expert);
  return count;
}

// Maps an index among the elements of existing rows to the index among all elements.
class ExpertWalk {
 public:
  explicit ExpertWalk(const SwigluProblem &problem) : problem_(problem) {}

  // `element` must not decrease between calls. *left: the number of elements from here to the end of its expert.
  int64_t place_of(int64_t element, int64_t *left) {
    while (element >= end_) {
      ++expert_;
      begin_ = end_;
      end_ += elements_of_expert(problem_, expert_);
    }
    *left = end_ - element;
    return expert_ * problem_.rows_per_expert * problem_.num_expert_row_elements() + (element - begin_);
  }

 private:
  const SwigluProblem &problem_;
  int64_t expert_ = -1;
  int64_t begin_ = 0;
  int64_t end_ = 0;  // end of the expert's elements
};

void store_row_gradient(const SwigluProblem &problem, int64_t row, int64_t column, const RowSum<double> &sum) {
  const int64_t *stride = problem.grad_row_scale_stride;
  const int64_t offset = offset_of_row(problem, stride, row) + column * stride[problem.ndim - 1];
  char *target = problem.grad_row_scale + offset * dtype_size(problem.row_scale_dtype);
  visit_dtype(problem.row_scale_dtype, [&](auto element) {
    using T = decltype(element);
    element = round_to<T>(static_cast<RealOf<T>>(sum.total()));
    memcpy(target, &element, sizeof element);
  });
}

// Runs one part of the elements, numbered with the last axis fastest, in runs that end where the last axis ends. Rows
// that are summed are not divided, so that the order of a sum does not depend on the number of tasks.
void run_swiglu_task(void *context, int index) {
  const SwigluJob &job = *static_cast<const SwigluJob *>(context);
  const SwigluProblem &problem = *job.problem;
  const int64_t size = dtype_size(problem.dtype);
  const CpuType type = cpu_type(problem.dtype);
  const int last = problem.ndim - 1;
  const int64_t columns = problem.shape[last];
  const bool has_sums = problem.grad_row_scale != nullptr;
  const int64_t summed = has_sums ? problem.num_summed_elements() : 1;
  const Range parts = part_of(job.num_elements / summed, job.num_tasks, index);
  const Range elements = {parts.begin * summed, parts.end * summed};
  const CpuKernels &kernels = cpu_kernels();
  RowSum<double> sum = {};
  ExpertWalk walk(problem);
  for (int64_t element = elements.begin; element < elements.end;) {
    int64_t left = elements.end - element;
    int64_t left_in_expert = left;
    const int64_t place = problem.expert_rows == nullptr ? element : walk.place_of(element, &left_in_expert);
    if (left > left_in_expert) left = left_in_expert;
    const int64_t row = place / columns, column = place % columns;
    GatingRun run = {};
    run.is_streamed = job.is_streamed;
    run.count = columns - column;
    if (run.count > left) run.count = left;
    if (has_sums && run.count > summed - element % summed) run.count = summed - element % summed;
    for (int i = 0; i < problem.num_inputs(); ++i) {
      run.in_stride[i] = problem.in_stride[i][last];
      run.in[i] =
          problem.in[i] + (offset_of_row(problem, problem.in_stride[i], row) + column * run.in_stride[i]) * size;
    }
    for (int i = 0; i < problem.num_outputs(); ++i) {
      if (problem.out[i] == nullptr) continue;
      run.out_stride[i] = problem.out_stride[i][last];
      run.out[i] =
          problem.out[i] + (offset_of_row(problem, problem.out_stride[i], row) + column * run.out_stride[i]) * size;
    }
    if (problem.row_scale != nullptr) {
      run.row_scale_stride = problem.row_scale_stride[last];
      run.row_scale =
          problem.row_scale + (offset_of_row(problem, problem.row_scale_stride, row) + column * run.row_scale_stride) *
                                  dtype_size(problem.row_scale_dtype);
      run.is_row_scale_f32 = problem.row_scale_dtype == ROPE_DTYPE_F32;
    }
    for (int i = kGate; i <= kUp; ++i) {
      if (problem.bias[i] == nullptr) continue;
      run.bias_stride[i] = problem.bias_stride[i][last];
      run.bias[i] =
          problem.bias[i] + (offset_of_row(problem, problem.bias_stride[i], row) + column * run.bias_stride[i]) *
                                dtype_size(problem.bias_dtype[i]);
      run.is_bias_f32[i] = problem.bias_dtype[i] == ROPE_DTYPE_F32;
    }
    if (problem.is_backward) {
      kernels.swiglu_backward[type](run, problem.form, has_sums ? &sum : nullptr);
    } else {
      kernels.swiglu_forward[type](run, problem.form);
    }
    element += run.count;
    if (has_sums && element % summed == 0) {
      store_row_gradient(problem, row, column, sum);
      sum = {};
    }
  }
#if defined(ROPE_X86_KERNELS)
  // Without the fence, a thread that learns of the call's end could still read the old contents.
  if (job.is_streamed) _mm_sfence();
#endif
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

rope_status_t run_swiglu(const char *, const SwigluProblem &problem, const SwigluPlan &plan, int32_t, rope_stream_t) {
  SwigluProblem limited = problem;
  if (problem.num_rows != nullptr) limit_rows(&limited);
  if (limited.is_empty()) return ROPE_STATUS_SUCCESS;
  SwigluJob job = {&limited, plan.num_tasks, is_worth_streaming(limited), count_elements(limited)};
  run_tasks(plan.num_tasks, run_swiglu_task, &job);
  return ROPE_STATUS_SUCCESS;
}

const char *describe() {
  return cpu_kernels().name;
}

}  // namespace

const Backend kCpuBackend = {count_devices, open_rope, open_swiglu, run_rope, fill_tables, run_swiglu, describe};

}  // namespace rope
