// SPDX-License-Identifier: Apache-2.0
// cpu_step.cpp - processes the tokens and heads of a problem with a step: finds angles and a place in the caches once
// for each token, then runs an inner loop over the heads of each tensor
#include "backend/cpu/cpu_step.hpp"

#include "backend/cpu/cpu_rope.hpp"
#include "backend/cpu/cpu_step_runs.hpp"
#include "backend/cpu/raise_amax.hpp"
#include "backend/cpu/task_memory.hpp"
#include "backend/cpu/thread_pool.hpp"
#include "core/problem/view.hpp"
#include "plan/rope_plan.hpp"
#include "plan/tuning.hpp"

#if defined(ROPE_X86_KERNELS)
#include <xmmintrin.h>
#endif

namespace rope {

namespace {

// Whether a tensor is only turned in place, as in calls without a step.
bool is_rotation_alone(const RopeProblem &problem, int index) {
  const RopeGeometry &geometry = *problem.geometry;
  const StepTensor &tensor = problem.step->tensor[index];
  const bool is_whole_head = tensor.channels == geometry.head_dim && tensor.window_begin == geometry.rotary_offset;
  return tensor.is_turned && tensor.is_written && problem.tensor[index].is_in_place && is_whole_head &&
         !tensor.is_normed && !tensor.is_cached() && !tensor.pass.is_present && !tensor.factor.is_present();
}

template <typename Real>
struct StepBuffers {
  StepToken<Real> token;
  PageGap<17> behind_token;
  OrderedWeights weights[3];
  PageGap<13> behind_weights;
  alignas(64) char room[kStepRoomBytes];
};

// Processes one part of the rows (token, head). A token that is normed as a whole is not divided.
template <typename Real>
void process_rows(void *context, int index) {
  const StepJob &job = *static_cast<const StepJob *>(context);
  const RopeProblem &problem = *job.problem;
  const StepProblem &step = *problem.step;
  CpuKernels::Step<Real> *const run_step = step_of(cpu_kernels(), problem.geometry->dtype, Real{});
  if (index == 0) check_sequences(problem);

  NormForm<Real> forms[3];
  bool are_rotations[3] = {};
  for (int i = 0; i < problem.num_tensors; ++i) {
    if (step.tensor[i].is_normed) forms[i] = norm_form<Real>(problem, i);
    are_rotations[i] = is_rotation_alone(problem, i);
  }
  const bool has_whole_tokens = step.has_norm && problem.geometry->norm.is_of_token;
  const int64_t tokens = problem.batches * problem.tokens, heads = problem.heads_per_token();
  const int64_t unit = has_whole_tokens ? heads : 1;
  Range rows = part_of(tokens * heads / unit, job.num_tasks, index);
  rows = {rows.begin * unit, rows.end * unit};
  uint32_t amax[3] = {};
  const TaskMemory memory;
  StepBuffers<Real> &buffers = *memory.as<StepBuffers<Real>>();
  for (OrderedWeights &weights : buffers.weights) weights.is_filled = false;
  StepToken<Real> &token = buffers.token;
  const auto begin = [&](int64_t batch, int64_t number, bool is_first) {
    return token.find(problem, batch, number, is_first);
  };
  walk_rows(problem, rows, begin, [&](const HeadRun &heads_of_tensor) {
    if (are_rotations[heads_of_tensor.tensor]) {
      return rotate_head_run(problem, heads_of_tensor, token.state, token.angles);
    }
    StepRun<Real> run = describe_run(job, heads_of_tensor, token);
    if (step.tensor[heads_of_tensor.tensor].is_normed) run.norm = &forms[heads_of_tensor.tensor];
    run.weights = &buffers.weights[heads_of_tensor.tensor];
    run.room = buffers.room;
    if (step.tensor[heads_of_tensor.tensor].amax != nullptr) run.code.amax = &amax[heads_of_tensor.tensor];
    if (run.num_targets > 0) run_step(run);
  });
  for (int i = 0; i < problem.num_tensors; ++i) {
    if (step.tensor[i].amax != nullptr) raise_amax(step.tensor[i].amax, amax[i]);
  }
#if defined(ROPE_X86_KERNELS)
  // Without the fence a thread that learns of the call's end could still read the old contents.
  if (job.is_streamed) _mm_sfence();
#endif
}

}  // namespace

void run_cpu_step(const RopeProblem &problem, int num_tasks) {
  if (problem.step->is_norm_gradient) return run_cpu_norm_gradient(problem, num_tasks);
  StepJob job = {&problem, num_tasks, moved_bytes(problem) >= kMinStreamedStepBytes};
  run_tasks(num_tasks, problem.geometry->dtype == ROPE_DTYPE_F64 ? process_rows<double> : process_rows<float>, &job);
}

}  // namespace rope
