// SPDX-License-Identifier: Apache-2.0
// cpu_norm_gradient.cpp - backward of calls with a norm: processes each tensor's runs of tokens, and adds up the
// gradients of its weights and biases
#include "backend/cpu/cpu_step.hpp"
#include "backend/cpu/cpu_step_runs.hpp"
#include "backend/cpu/task_memory.hpp"
#include "backend/cpu/task_range.hpp"
#include "backend/cpu/thread_pool.hpp"

namespace rope {

namespace {

CpuKernels::NormGradient<float> *norm_gradient_of(const CpuKernels &kernels, rope_dtype_t dtype, float) {
  return kernels.norm_gradient[cpu_type(dtype)];
}

CpuKernels::NormGradient<double> *norm_gradient_of(const CpuKernels &kernels, rope_dtype_t, double) {
  return kernels.norm_gradient_f64;
}

// Room for sums of all heads, which are kept until a run's end, for some channels at a time.
constexpr int kSumValues = 4096;
static_assert(kMaxSummedHeads <= kSumValues, "");

// Runs for each task of a tensor without sums. There are several because tensors have different numbers of heads, and
// tasks run at different speeds.
constexpr int kRunsOfTask = 4;

// Consecutive tokens of one task: a run with its own sums or, for a tensor without sums, a part of the tokens.
struct TokenRun {
  int tensor;
  int64_t run;
  Range tokens;
};

// The runs of all tensors, tensor after tensor.
class TokenRuns {
 public:
  TokenRuns(const RopeProblem &problem, int num_tasks) : problem_(problem), tokens_(problem.batches * problem.tokens) {
    for (int i = 0; i < problem.num_tensors; ++i) {
      const int64_t runs = problem.step->tensor[i].runs, parts = num_tasks > 1 ? int64_t{kRunsOfTask} * num_tasks : 1;
      per_run_[i] = tokens_of_run(tokens_, runs > 0 ? runs : parts < tokens_ ? parts : tokens_);
      count_[i] = problem.tensor[i].heads > 0 ? (tokens_ - 1) / per_run_[i] + 1 : 0;
    }
  }

  int64_t count() const {
    int64_t all = 0;
    for (int i = 0; i < problem_.num_tensors; ++i) all += count_[i];
    return all;
  }

  TokenRun run(int64_t number) const {
    int tensor = 0;
    for (; number >= count_[tensor]; ++tensor) number -= count_[tensor];
    const int64_t begin = number * per_run_[tensor], end = begin + per_run_[tensor];
    return {tensor, number, {begin, end < tokens_ ? end : tokens_}};
  }

 private:
  const RopeProblem &problem_;
  int64_t tokens_;
  int64_t per_run_[3];
  int64_t count_[3] = {};
};

template <typename Real>
struct NormGradientBuffers {
  StepToken<Real> token;
  PageGap<17> behind_token;
  OrderedWeights weights;
  PageGap<13> behind_weights;
  Real sines[2][kMaxPairs];
  PageGap<7> behind_sines;
  Real sums[kSumValues];
  PageGap<5> behind_sums;
  alignas(64) char room[kStepRoomBytes];
};

// A tensor's token in backward.
template <typename Real>
class NormGradientWalk {
 public:
  NormGradientWalk(const StepJob &job, const TokenRun &run, NormGradientBuffers<Real> *buffers)
      : job_(job),
        problem_(*job.problem),
        tensor_(job.problem->step->tensor[run.tensor]),
        run_(run),
        heads_(job.problem->tensor[run.tensor].heads),
        buffers_(*buffers) {
    if (tensor_.is_normed) form_ = norm_form<Real>(problem_, run.tensor);
    buffers_.weights.is_filled = false;
  }

  // Processes all tokens, once for every part of the channels that the sums have room for. The last pass also writes
  // gradients.
  void process(bool counts_faults) {
    const RunSums *const kinds[] = {&tensor_.weight_sums, &tensor_.bias_sums};
    int64_t passes = 0;
    for (const RunSums *kind : kinds) {
      if (kind->is_added_up()) passes += (tensor_.channels - 1) / width() + 1;
    }
    int64_t left = passes;
    for (const RunSums *kind : kinds) {
      for (int begin = 0; kind->is_added_up() && begin < tensor_.channels; begin += width()) {
        const int end = tensor_.channels - begin < width() ? tensor_.channels : begin + width();
        for (Real &sum : buffers_.sums) sum = 0;
        const HeadSums<Real> added_up = {buffers_.sums, width(), 1, begin, end};
        const bool has_terms = process_tokens(added_up, kind == kinds[0], --left == 0, counts_faults);
        counts_faults = false;
        if (has_terms) add_to_row(*kind, begin, end);
      }
    }
    if (passes == 0) process_tokens({}, false, true, counts_faults);
  }

 private:
  // The number of channels that sums have room for, if possible a multiple of a vector.
  int width() const {
    constexpr int kBlock = 32;
    const int fitting = static_cast<int>(kSumValues / heads_);
    if (fitting >= tensor_.channels) return tensor_.channels;
    return fitting < kBlock ? fitting : fitting / kBlock * kBlock;
  }

  Real *row_of(const RunSums &kind) const { return reinterpret_cast<Real *>(kind.data) + run_.run * kind.run_stride; }

  // Adds the sums of all heads to the row.
  void add_to_row(const RunSums &kind, int begin, int end) {
    Real *const row = row_of(kind);
    for (int channel = begin; channel < end; ++channel) {
      TreeSum<Real> sum;
      sum.add(buffers_.sums[channel - begin]);
      for (int64_t head = 1; head < heads_; ++head) sum.add(buffers_.sums[head * width() + channel - begin]);
      Real *const target = row + channel * kind.channel_stride;
      *target = add_rounded(*target, sum.total());
    }
  }

  HeadSums<Real> sums_by_head(const RunSums &kind) const {
    if (!kind.is_present() || !kind.is_by_head) return {};
    return {row_of(kind), kind.head_stride, kind.channel_stride, 0, tensor_.channels};
  }

  // Returns whether there are any tokens.
  bool process_tokens(const HeadSums<Real> &added_up, bool is_of_weight, bool is_last, bool counts_faults) {
    bool has_tokens = false;
    NormGradientRun<Real> run = {};
    if (is_last) {
      run.weight_sums = sums_by_head(tensor_.weight_sums);
      run.bias_sums = sums_by_head(tensor_.bias_sums);
    }
    if (added_up.data != nullptr) (is_of_weight ? run.weight_sums : run.bias_sums) = added_up;
    for (int64_t flat = run_.tokens.begin; flat < run_.tokens.end; ++flat) {
      const int64_t batch = flat / problem_.tokens, token = flat % problem_.tokens;
      if (buffers_.token.find(problem_, batch, token, counts_faults) == kAbsent) continue;
      has_tokens = true;
      const HeadRun heads = {run_.tensor, batch, token, 0, heads_, flat + 1 < run_.tokens.end};
      run.gradient = describe_run(job_, heads, buffers_.token);
      run.gradient.weights = &buffers_.weights;
      run.gradient.room = buffers_.room;
      if (!tensor_.is_normed) {
        if (run.gradient.num_targets > 0) step_of(cpu_kernels(), problem_.geometry->dtype, Real{})(run.gradient);
        continue;
      }
      describe_input(heads, &run);
      if (!is_last) run.gradient.num_targets = 0;
      norm_gradient_of(cpu_kernels(), problem_.geometry->dtype, Real{})(run);
    }
    return has_tokens;
  }

  // Describes the input of forward as a run like that of its output.
  void describe_input(const HeadRun &heads, NormGradientRun<Real> *run) {
    const NormInput &given = tensor_.norm_in;
    StepRun<Real> *const input = &run->input;
    *input = run->gradient;
    const int64_t offset = heads.batch * given.stride[kBatch] + heads.token * given.stride[kToken];
    input->in = given.data + offset * dtype_size(problem_.geometry->dtype);
    input->head_stride = given.stride[kHead];
    input->channel_stride = given.stride[kChannel];
    input->in_distance = run->gradient.out_distance;
    input->out_distance = run->gradient.in_distance;
    input->norm = &form_;
    input->num_targets = 0;
    run->gradient.is_norm_after = false;
    input->is_turned = input->is_turned && input->is_norm_after;
    if (input->is_turned) turn_forward(input);
  }

  // The angles of forward are those of its transpose with exchanged and negated sines.
  void turn_forward(StepRun<Real> *input) {
    const PairAngles<Real> transposed = input->angles;
    const bool is_by_channel = problem_.table.is_by_channel;
    for (int pair = 0; pair < input->pairs; ++pair) {
      buffers_.sines[0][pair] = -transposed.sin_y[pair];
      if (is_by_channel) buffers_.sines[1][pair] = -transposed.sin_x[pair];
    }
    input->angles.sin_x = buffers_.sines[0];
    input->angles.sin_y = buffers_.sines[is_by_channel ? 1 : 0];
  }

  const StepJob &job_;
  const RopeProblem &problem_;
  const StepTensor &tensor_;
  const TokenRun run_;
  const int64_t heads_;
  NormGradientBuffers<Real> &buffers_;
  NormForm<Real> form_;
};

struct GradientJob {
  StepJob step;
  int64_t next_run;  // the first run that no task has taken
};

template <typename Real>
void process_runs(void *context, int index) {
  GradientJob &job = *static_cast<GradientJob *>(context);
  const RopeProblem &problem = *job.step.problem;
  if (index == 0) check_sequences(problem);
  int counted = 0;  // faults are counted with the tokens of this tensor
  while (problem.tensor[counted].heads == 0) ++counted;
  const TokenRuns runs(problem, job.step.num_tasks);
  const int64_t count = runs.count();
  const TaskMemory memory;
  for (;;) {
    const int64_t number = __atomic_fetch_add(&job.next_run, 1, __ATOMIC_RELAXED);
    if (number >= count) return;
    const TokenRun run = runs.run(number);
    NormGradientWalk<Real>(job.step, run, memory.as<NormGradientBuffers<Real>>()).process(run.tensor == counted);
  }
}

}  // namespace

void run_cpu_norm_gradient(const RopeProblem &problem, int num_tasks) {
  GradientJob job = {{&problem, num_tasks, false}, 0};
  run_tasks(num_tasks, problem.geometry->dtype == ROPE_DTYPE_F64 ? process_runs<double> : process_runs<float>, &job);
}

}  // namespace rope
