// SPDX-License-Identifier: Apache-2.0
// step_gradient_plan.cpp - plans gradients of norms in the kernel of rows: tensors in groups that share blocks, and the
// shared memory of a block
#include "core/problem/step_problem.hpp"
#include "plan/launch_shape.hpp"
#include "plan/step_plan_checks.hpp"

namespace rope {

namespace {

constexpr uint32_t kFloatBytes = sizeof(float);

// The largest number of rows of a block that has little room for their angles.
constexpr uint32_t kFewGradientRows = 4;

void raise(uint32_t *most, uint32_t number) {
  if (number > *most) *most = number;
}

int vector_elements(const RopeProblem &problem) {
  return static_cast<int>(kLongStepVectorBytes / dtype_size(problem.geometry->dtype));
}

// The threads for all heads of a tensor's token.
int64_t count_threads(const RopeProblem &problem, int index) {
  return problem.tensor[index].heads << step_lanes_log2(problem.step->tensor[index].channels, vector_elements(problem));
}

// Whether a tensor has something to compute, even if it is only sums.
bool has_gradient(const RopeProblem &problem, int index) {
  const StepTensor &tensor = problem.step->tensor[index];
  return problem.tensor[index].heads != 0 && (tensor.is_normed || tensor.is_written);
}

template <typename Visit>
void for_each_gradient(const RopeProblem &problem, const Visit &visit) {
  for (int i = 0; i < problem.num_tensors; ++i) {
    if (has_gradient(problem, i)) visit(i);
  }
}

// Threads of a block: as many as a token's heads need. If a tensor has too many heads, a block has a part of them, and
// the threads of that part are a power of two.
int64_t max_threads(const RopeProblem &problem) {
  int64_t max = kMaxNormGradientThreads;
  for_each_gradient(problem, [&](int i) {
    if (count_threads(problem, i) > kMaxNormGradientThreads) max = kStepTuning.gradient_threads;
  });
  return max;
}

// Whether the input of forward's norm can be read along with vectors of the data.
bool fits_norm_input(const RopeProblem &problem, int index) {
  const NormInput &in = problem.step->tensor[index].norm_in;
  StepPiece piece = whole_piece(problem, index);
  piece.in = in.data;
  piece.in_stride = in.stride;
  piece.is_written = false;
  return fits_vectors(problem, piece, kLongStepVectorBytes);
}

bool takes(const RopeProblem &problem) {
  if (dtype_size(problem.geometry->dtype) != 2 || !takes_tokens(problem)) return false;
  if (problem.batches * problem.tokens > kMaxInt32 || !fit_rows(problem, kLongStepVectorBytes)) return false;
  bool takes_all = true, has_any = false;
  for_each_gradient(problem, [&](int i) {
    const StepTensor &tensor = problem.step->tensor[i];
    has_any = true;
    // All heads of a norm over a token must be in one block.
    const bool has_parts = count_threads(problem, i) > max_threads(problem);
    if (tensor.bias_sums.is_present() || !takes_factor(problem, tensor.factor) ||
        (tensor.is_normed && (!fits_norm_input(problem, i) || (has_token_norm(problem) && has_parts)))) {
      takes_all = false;
    }
  });
  return takes_all && has_any;
}

bool has_flat_tokens(const RopeProblem &problem) {
  const auto is_flat = [&](const int64_t *stride) {
    return is_one_batch(problem, stride, dtype_size(problem.geometry->dtype));
  };
  bool are_flat = true;
  for_each_gradient(problem, [&](int i) {
    const StepTensor &tensor = problem.step->tensor[i];
    if (!is_flat(problem.tensor[i].in_stride) || (tensor.is_written && !is_flat(problem.tensor[i].out_stride)) ||
        (tensor.is_normed && !is_flat(tensor.norm_in.stride))) {
      are_flat = false;
    }
  });
  return are_flat;
}

// Tokens of a run without sums: short enough that runs keep all multiprocessors busy.
int64_t count_free_tokens(const RopeProblem &problem, const DeviceInfo &device) {
  int64_t threads = 0;
  for_each_gradient(problem, [&](int i) { threads += count_threads(problem, i); });
  const int64_t held = int64_t{device.multiprocessors} * kNormGradientResidentThreads[false];
  const int64_t wanted =
      saturated_product(problem.batches * problem.tokens, threads) / (held * kStepTuning.gradient_waves);
  const int64_t most = kStepTuning.max_gradient_tokens;
  return wanted < 1 ? 1 : wanted > most ? most : wanted;
}

// Whether all tensors that are normed share blocks with threads for all of a token's heads. *runs is the number of runs
// of those that have sums, or 0 if none has any. A norm over a token takes whole warps for the heads of a tensor.
bool share_blocks(const RopeProblem &problem, int64_t *runs) {
  int64_t threads = 0;
  bool can_share = true;
  *runs = 0;
  for_each_gradient(problem, [&](int i) {
    const StepTensor &tensor = problem.step->tensor[i];
    if (!tensor.is_normed) return;
    const int64_t of_tensor = count_threads(problem, i);
    threads += of_tensor;
    const bool has_other_runs = tensor.runs != 0 && *runs != 0 && tensor.runs != *runs;
    if (has_other_runs || (has_token_norm(problem) && of_tensor % kWarpThreads != 0)) can_share = false;
    if (tensor.runs != 0) *runs = tensor.runs;
  });
  return can_share && threads <= max_threads(problem);
}

// Forms groups of consecutive tensors. Returns false if there are more groups than a launch has room for.
bool make_groups(const RopeProblem &problem, int64_t free_tokens, bool may_share, StepGradients *gradients) {
  const int64_t tokens = problem.batches * problem.tokens;
  int64_t shared_runs = 0;
  const bool can_share = may_share && share_blocks(problem, &shared_runs);
  bool has_shared = false, has_room = true;
  gradients->group.clear();
  for (uint32_t &first : gradients->first_thread) first = ~uint32_t{0};
  for_each_gradient(problem, [&](int i) {
    const StepTensor &tensor = problem.step->tensor[i];
    const bool shares = can_share && tensor.is_normed;
    if (!shares || !has_shared) {
      GradientGroup *const group = gradients->group.add();
      if (group == nullptr) {
        has_room = false;
        return;
      }
      const int64_t runs = shares ? shared_runs : tensor.runs;
      *group = {};
      group->first_tensor = i;
      group->tokens_of_run = static_cast<uint32_t>(runs > 0 ? tokens_of_run(tokens, runs) : free_tokens);
      group->runs = static_cast<uint32_t>((tokens - 1) / group->tokens_of_run + 1);
    }
    if (shares) has_shared = true;
    GradientGroup *const group = &gradients->group[gradients->group.count() - 1];
    gradients->first_thread[i] = group->row_threads;
    group->row_threads += static_cast<uint32_t>(count_threads(problem, i));
    group->end_tensor = i + 1;
  });
  return has_room;
}

// Sets the threads of a block, and the rows or parts of each group. Returns the number of blocks.
int64_t shape_blocks(const RopeProblem &problem, uint32_t max_rows, RopePlan *plan) {
  StepGradients *const gradients = &plan->gradients;
  uint32_t most = 0;  // threads of the widest row
  for (int i = 0; i < gradients->group.count(); ++i) raise(&most, gradients->group[i].row_threads);
  const uint32_t wanted = kStepTuning.gradient_threads, max = static_cast<uint32_t>(max_threads(problem));
  plan->threads = round_up_to_warps(most > max ? max : most > wanted ? most : wanted / most * most);
  int64_t blocks = 0;
  for (int i = 0; i < gradients->group.count(); ++i) {
    GradientGroup *const group = &gradients->group[i];
    const bool has_whole_warps = !has_token_norm(problem) || group->row_threads % kWarpThreads == 0;
    group->parts = (group->row_threads - 1) / plan->threads + 1;
    if (group->parts > 1) group->row_threads = plan->threads;
    group->rows = has_whole_warps ? plan->threads / group->row_threads : 1;
    if (group->rows > max_rows) group->rows = max_rows;
    group->first_block = static_cast<uint32_t>(blocks);
    blocks += (group->runs - 1) / group->rows + 1;
  }
  return blocks;
}

// Finds the number of tokens of a run for which a block has the angles at a time, and its shared memory.
void shape_memory(const RopeProblem &problem, RopePlan *plan) {
  const StepProblem &step = *problem.step;
  StepGradients *const gradients = &plan->gradients;
  uint32_t rows = 1, tokens = 1, tensors = 1, part_sums = 0;  // the largest numbers of a group
  bool has_head_weights = false;
  for (int i = 0; i < gradients->group.count(); ++i) {
    const GradientGroup &group = gradients->group[i];
    raise(&rows, group.rows);
    raise(&tokens, group.tokens_of_run);
    raise(&tensors, static_cast<uint32_t>(group.end_tensor - group.first_tensor));
    const StepTensor &first = step.tensor[group.first_tensor];
    const bool adds_parts = group.parts > 1 && first.weight_sums.is_added_up();
    if (adds_parts) raise(&part_sums, group.parts * static_cast<uint32_t>(first.channels));
  }
  for_each_gradient(problem, [&](int i) {
    if (step.tensor[i].is_normed && step.tensor[i].weight.head_stride != 0) has_head_weights = true;
  });
  gradients->weight_units = has_head_weights ? plan->threads : tensors * kWarpThreads;
  const uint32_t floats = part_sums + (has_token_norm(problem) ? 2 * plan->threads : 0);
  const uint32_t fixed = kMaxNormGradientThreads * kGradientThreadBytes + gradients->weight_units * kGradientUnitBytes +
                         floats * kFloatBytes + plan->threads / kWarpThreads * kStepExchangeBytes;
  const auto pairs = static_cast<uint32_t>(problem.geometry->pairs());
  const uint32_t units = step.is_turned ? pairs / static_cast<uint32_t>(plan->vector_elements) : 0;
  const uint32_t lost = plan->step.angles == StepAngles::kTable ? 1 : 0;
  const auto take_tokens = [&](uint32_t log2) {
    gradients->shared_tokens_log2 = log2;
    gradients->shared_angles = rows * units << log2;
    gradients->shared_lost = ((rows * lost << log2) + 3) & ~3u;
    return gradients->shared_angles * kGradientUnitBytes + gradients->shared_lost * kFloatBytes;
  };
  uint32_t log2 = 0;
  while (1u << log2 < tokens && log2 < 31) ++log2;
  uint32_t bytes = 0;
  do {
    const uint64_t wanted = static_cast<uint64_t>(rows * units * kGradientUnitBytes) << log2;
    bytes = wanted > kStepTuning.gradient_angle_bytes ? kMaxSharedBytes : take_tokens(log2);
  } while (fixed + bytes > kMaxSharedBytes && log2-- > 0);
  plan->shared_bytes = fixed + bytes;
}

}  // namespace

bool plan_gradient_rows(const RopeProblem &problem, const DeviceInfo &device, RopePlan *plan) {
  if (!takes(problem)) return false;
  StepGradients *const gradients = &plan->gradients;
  gradients->is_flat = has_flat_tokens(problem);
  plan->vector_elements = vector_elements(problem);
  plan->step = variant_of(problem, StepKernel::kNormGradientRows);
  plan->step.has_more = false;
  for_each_gradient(problem, [&](int i) {
    if (problem.step->tensor[i].weight_sums.is_present()) plan->step.has_more = true;
  });
  // Weights of each head leave little room for angles. Then blocks with heads of one tensor, and after that fewer rows,
  // need less room.
  constexpr struct {
    bool may_share;
    uint32_t max_rows;
  } kShapes[] = {{true, kMaxNormGradientThreads}, {false, kMaxNormGradientThreads}, {false, kFewGradientRows}};
  const int64_t free_tokens = count_free_tokens(problem, device);
  int64_t blocks = 0;
  for (const auto &shape : kShapes) {
    if (!make_groups(problem, free_tokens, shape.may_share, gradients)) return false;
    blocks = shape_blocks(problem, shape.max_rows, plan);
    shape_memory(problem, plan);
    if (plan->shared_bytes <= kMaxSharedBytes) break;
  }
  if (blocks > kMaxGridX || plan->shared_bytes > kMaxSharedBytes) return false;
  plan->thread_rows = plan->tokens_per_block = plan->blocks_per_token = 1;
  plan->grid_x = static_cast<uint32_t>(blocks);
  plan->grid_y = 1;
  return true;
}

}  // namespace rope
