// SPDX-License-Identifier: Apache-2.0
// cpu_swiglu.cpp - processes the rows of a SwiGLU problem, each by an inner loop
#include "backend/cpu/cpu_swiglu.hpp"

#include "backend/cpu/cpu_swiglu_walk.hpp"
#include "backend/cpu/task_range.hpp"
#include "backend/cpu/thread_pool.hpp"
#include "core/math/float16.hpp"
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
  int64_t num_elements;  // with experts, the elements of rows that exist
};

// Whether to write a large out past the caches, so that its lines are not read first. An out in place of an input is in
// the caches already.
bool is_worth_streaming(const SwigluProblem &problem) {
  return !problem.is_backward && problem.num_elements() * dtype_size(problem.dtype) >= kMinStreamedCpuBytes &&
         problem.out[kOut] != problem.in[kGate] && problem.out[kOut] != problem.in[kUp];
}

// Shortens gate's first axis to the number of entries in num_rows or in the last of expert_offsets. The problem keeps
// this axis separate, or leaves it out because its length is 1.
void limit_rows(SwigluProblem *problem) {
  int64_t rows = problem->num_rows != nullptr
                     ? read_integer(problem->num_rows, problem->num_rows_dtype == ROPE_DTYPE_I64, 0)
                     : ExpertOffsets{problem->rows}[problem->rows.experts];
  if (rows < 0) rows = 0;
  int axis = 0;
  while (axis < problem->ndim - 1 && problem->row_index_stride[axis] == 0) ++axis;
  const bool is_gone = problem->row_index_stride[axis] == 0;
  if (is_gone && rows > 0) return;
  if (rows < problem->shape[axis]) problem->shape[axis] = rows;
}

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

// Processes one part of the elements, numbered with the last axis fastest, in runs that end with the last axis at the
// latest. A row that is summed belongs to one task, so that the order of a sum does not depend on the number of tasks.
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
  const bool takes_single_elements = has_row_per_element(problem);
  ExpertWalk walk(problem);
  RowFinder rows(problem);
  for (int64_t element = elements.begin; element < elements.end;) {
    int64_t left = elements.end - element;
    int64_t left_in_expert = left;
    const int64_t place = problem.expert_rows == nullptr ? element : walk.place_of(element, &left_in_expert);
    if (left > left_in_expert) left = left_in_expert;
    const int64_t row = place / columns, column = place % columns;
    GatingRun run = {};
    run.is_streamed = job.is_streamed;
    run.count = takes_single_elements ? 1 : columns - column;
    if (run.count > left) run.count = left;
    if (has_sums && run.count > summed - element % summed) run.count = summed - element % summed;
    const SwigluRow &gate_row = rows.row_of(place);
    if (!gate_row.is_there) {
      element += run.count;
      continue;
    }
    set_inputs(problem, row, column, gate_row, &run);
    for (int i = 0; i < problem.num_outputs(); ++i) {
      if (problem.out[i] == nullptr) continue;
      run.out_stride[i] = problem.out_stride[i][last];
      run.out[i] =
          problem.out[i] + (offset_of_row(problem, problem.out_stride[i], row) + column * run.out_stride[i]) * size;
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
  // Without the fence another thread could see that the call has finished and still read old values: streaming stores
  // are not ordered with the others.
  if (job.is_streamed) _mm_sfence();
#endif
}

}  // namespace

void run_cpu_swiglu(const SwigluProblem &problem, int num_tasks) {
  if (problem.codes.has_tiles) clear_scale_padding(problem);
  SwigluProblem limited = problem;
  // A group of rows keeps all its rows, as it has a scale even if some of them do not exist.
  const bool has_limit = problem.num_rows != nullptr || problem.rows.expert_offsets != nullptr;
  if (has_limit && !problem.codes.has_row_groups) limit_rows(&limited);
  if (limited.is_empty()) return;
  if (limited.has_codes()) return run_cpu_swiglu_codes(limited, num_tasks);
  SwigluJob job = {&limited, num_tasks, is_worth_streaming(limited), count_elements(limited)};
  run_tasks(num_tasks, run_swiglu_task, &job);
}

}  // namespace rope
