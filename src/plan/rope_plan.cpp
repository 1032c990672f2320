// SPDX-License-Identifier: Apache-2.0
// rope_plan.cpp - chooses the kernel of a RoPE call, and the grid and shared memory of its launch
#include "plan/rope_plan.hpp"

#include "core/problem/step_problem.hpp"
#include "core/problem/view.hpp"
#include "plan/launch_shape.hpp"
#include "plan/rope_catalogue.hpp"
#include "plan/step_plan.hpp"

namespace rope {

namespace {

// ---- RopeShape::kBlocks ----

// Sets a block's threads and units. A block has as many whole tokens as fit, or else a part of one token.
void take_threads(uint32_t threads, uint32_t units_per_block, RopePlan *plan) {
  const uint32_t units = plan->units.per_token;
  plan->threads = threads;
  plan->blocks.units_per_block = units_per_block;
  plan->tokens_per_block = units < units_per_block ? units_per_block / units : 1;
  plan->blocks_per_token = (units - 1) / units_per_block + 1;
}

// Chooses the block size that leaves the fewest threads idle; of equal ones, the first in the list. A block's number of
// units is a multiple of `uncut`.
void shape_block(const RopeTuning &tuning, uint32_t uncut, RopePlan *plan) {
  RopePlan best = *plan;
  uint64_t min_threads = ~uint64_t{0};
  for (const uint32_t threads : tuning.block_threads) {
    if (threads < uncut) continue;
    take_threads(threads, threads - threads % uncut, plan);
    // Threads used per 1024 tokens, which is precise enough to compare the candidates.
    const uint64_t spent = uint64_t{threads} * plan->blocks_per_token * 1024 / plan->tokens_per_block;
    if (spent >= min_threads) continue;
    min_threads = spent;
    best = *plan;
  }
  if (min_threads == ~uint64_t{0}) {
    take_threads(round_up_to_warps(uncut), uncut, plan);
  } else {
    *plan = best;
  }
}

// Whether the batches of a token lie closer together than its tokens, as in SBHD. Blocks then follow the order in
// memory.
bool has_closer_batches(const RopeProblem &problem) {
  const RotatedTensor &q = problem.tensor[0];
  return problem.batches > 1 && magnitude(q.in_stride[kBatch]) < magnitude(q.in_stride[kToken]);
}

// Divides the launch into rows of the grid, each with fewer than 2^32 tokens, units and blocks. With several batches, a
// row has whole batches, or for all batches the same tokens.
rope_status_t shape_grid(const char *function, const RopeProblem &problem, RopePlan *plan) {
  const int64_t tokens = problem.batches * problem.tokens;
  int64_t max = kMaxGridX / plan->blocks_per_token * plan->tokens_per_block;
  if (max > kMaxGridX) max = kMaxGridX;
  // There are too many batches for a row to hold one token of each, so a row gets whole batches.
  if (problem.batches > max) plan->is_batch_fastest = false;
  int64_t whole = plan->tokens_per_block;
  if (problem.batches > 1) whole = plan->is_batch_fastest ? problem.batches : problem.tokens;
  max -= max % whole;
  if (max == 0) {
    return fail(ROPE_STATUS_NOT_SUPPORTED,
                "%s: q has %lld batches of %lld tokens: one launch holds several batches only of fewer tokens",
                function, static_cast<long long>(problem.batches), static_cast<long long>(problem.tokens));
  }
  const int64_t grid_rows = (tokens - 1) / max + 1;
  if (grid_rows > kMaxGridY) {
    return fail(ROPE_STATUS_NOT_SUPPORTED, "%s: q has %lld tokens: with these heads one launch holds %lld tokens",
                function, static_cast<long long>(tokens), static_cast<long long>(max * kMaxGridY));
  }
  plan->blocks.tokens_per_grid_row = tokens < max ? tokens : max;
  plan->grid_y = static_cast<uint32_t>(grid_rows);
  const int64_t groups = (plan->blocks.tokens_per_grid_row - 1) / plan->tokens_per_block + 1;
  plan->grid_x = static_cast<uint32_t>(groups) * plan->blocks_per_token;
  return ROPE_STATUS_SUCCESS;
}

// The shape of the general kernel. If styles are converted in place, a block must have whole heads.
rope_status_t shape_blocks(const char *function, const RopeFacts &facts, RopePlan *plan) {
  const RopeProblem &problem = *facts.problem;
  plan->units = count_units(problem, facts.pairing, facts.vector_elements, UnitRule::kVectors);
  shape_block(*facts.tuning, converts_in_place(problem, facts.pairing) ? plan->units.per_head[0] : 1, plan);
  return shape_grid(function, problem, plan);
}

// ---- Other shapes: a row of threads has a token or a part of one ----

// The number of groups of tokens, each handled by one block or by one set of blocks.
uint32_t count_groups(const RopeProblem &problem, const RopePlan &plan) {
  return static_cast<uint32_t>((problem.batches * problem.tokens - 1) / plan.tokens_per_block + 1);
}

void shape_grid_of_rows(const RopeProblem &problem, RopePlan *plan) {
  plan->thread_rows = plan->tokens_per_block;
  plan->grid_x = count_groups(problem, *plan) * plan->blocks_per_token;
  plan->grid_y = 1;
}

uint32_t choose_short_threads(const RopeFacts &facts) {
  const auto choose = [&](const auto &rows) {
    uint32_t threads = 0;
    for (const ShortThreads &row : rows) {
      threads = row.threads;
      if (facts.has_at_most(row.max_vectors)) break;
    }
    return threads;
  };
  const RopeTuning &tuning = *facts.tuning;
  if (facts.angles == kComputedAngles) {
    return facts.is_programmatic ? choose(tuning.short_threads_programmatic) : choose(tuning.short_threads);
  }
  return facts.is_programmatic ? choose(tuning.table_threads_programmatic) : choose(tuning.table_threads);
}

// Rows are whole warps if threads share angles or if a token has several parts.
void shape_parts(const RopeFacts &facts, const RopeAlgorithm &algorithm, RopePlan *plan) {
  const uint32_t wanted =
      algorithm.shape == RopeShape::kShortParts ? choose_short_threads(facts) : kThreadKernelThreads;
  const uint32_t parts = (plan->units.per_token - 1) / wanted + 1;
  uint32_t threads = (plan->units.per_token - 1) / parts + 1;
  const uint32_t pairs = static_cast<uint32_t>(facts.problem->geometry->pairs());
  if (algorithm.shared == SharedAngles::kOfRows && threads < pairs) threads = pairs;
  const bool has_whole_warps = algorithm.shared != SharedAngles::kNone || parts > 1;
  plan->threads = has_whole_warps ? round_up_to_warps(threads) : threads;
  plan->tokens_per_block = plan->threads < wanted ? wanted / plan->threads : 1;
  plan->blocks_per_token = parts;
  plan->thread_rows = plan->tokens_per_block;
  plan->grid_x = count_groups(*facts.problem, *plan);
  plan->grid_y = parts;
}

// One unit per thread; or only as many blocks as run at a time, whose threads then loop.
void shape_flat(const RopeFacts &facts, RopePlan *plan) {
  const uint32_t units = static_cast<uint32_t>(facts.problem->tokens) * plan->units.per_token;
  const uint32_t blocks = (units - 1) / kFlatThreads + 1;
  const uint32_t held = static_cast<uint32_t>(facts.device->multiprocessors) * (kFlatResidentThreads / kFlatThreads);
  plan->threads = kFlatThreads;
  plan->tokens_per_block = 1;
  plan->blocks_per_token = 1;
  plan->grid_x = blocks > held && facts.has_at_most(facts.tuning->max_looping_vectors) ? held : blocks;
  plan->grid_y = 1;
}

// Whether rows with one thread per pair are at least a warp, with two or more of them in a block.
bool fits_rows_of_pairs(const RopeTuning &tuning, uint32_t pairs) {
  return pairs >= kWarpThreads && 2 * pairs <= tuning.block_threads[0];
}

// Whether other channels lie between the windows of neighbouring heads.
bool has_gaps(const RopeProblem &problem) {
  const RotatedTensor &q = problem.tensor[0];
  return q.heads > 1 && magnitude(q.in_stride[kHead]) > problem.geometry->rotary_dim;
}

// Sets rows of `threads` threads, as many as fit a block.
void cut_rows(const RopeTuning &tuning, uint32_t threads, RopePlan *plan) {
  plan->threads = threads;
  plan->tokens_per_block = tuning.block_threads[0] / threads;
  plan->blocks_per_token = (plan->units.per_token - 1) / threads + 1;
}

// Gives each token a row of threads. A block has several rows if tokens are small, or if rows of whole warps would
// leave many threads idle.
void shape_rows(const RopeFacts &facts, RopeShape shape, RopePlan *plan) {
  const RopeTuning &tuning = *facts.tuning;
  const uint32_t units = plan->units.per_token, padded = round_up_to_warps(units);
  const bool has_whole_warps = shape == RopeShape::kWarpRows || facts.lookup == kSequencesLookup;
  plan->rows.is_part_slowest = facts.has_inner_tokens;
  if (plan->rows.is_part_slowest) {
    cut_rows(tuning, padded < tuning.inner_token_row_threads ? padded : tuning.inner_token_row_threads, plan);
  } else if (padded < tuning.block_threads[0]) {
    const bool may_be_narrow = shape == RopeShape::kTokenRows && !has_whole_warps;
    cut_rows(tuning, may_be_narrow ? (units + kRowDivisor - 1) / kRowDivisor * kRowDivisor : padded, plan);
  } else {
    shape_block(tuning, 1, plan);
    plan->blocks_per_token = (units - 1) / plan->threads + 1;
    plan->tokens_per_block = 1;
    const uint32_t pairs = static_cast<uint32_t>(facts.problem->geometry->pairs());
    const bool has_idle_threads =
        uint64_t{plan->threads} * plan->blocks_per_token > uint64_t{units} * tuning.max_percent_of_threads / 100;
    const bool is_gapped =
        has_gaps(*facts.problem) && pairs <= tuning.gapped_row_threads && units > tuning.block_threads[0];
    if (shape == RopeShape::kPairRows && is_gapped) {
      cut_rows(tuning, tuning.gapped_row_threads, plan);
    } else if (!has_whole_warps && has_idle_threads && fits_rows_of_pairs(tuning, pairs) && units % pairs == 0) {
      cut_rows(tuning, pairs, plan);
    }
  }
  shape_grid_of_rows(*facts.problem, plan);
  const uint32_t threads_of_token = plan->rows.is_part_slowest ? plan->threads : plan->units.per_token;
  plan->rows.tokens_ahead =
      static_cast<uint32_t>(facts.device->multiprocessors) * kRopeResidentThreads / threads_of_token + 1;
}

// The shared memory for a cosine and a sine of each pair, in bytes. kOfGeneral has two further arrays for tables with a
// column for each channel, and a TokenInfo for each token.
uint32_t count_shared_bytes(const RopeProblem &problem, SharedAngles shared, const RopePlan &plan) {
  const uint32_t pairs = static_cast<uint32_t>(problem.geometry->pairs());
  constexpr uint32_t kFloat = sizeof(float), kMaxBytes = 2 * kMaxShortPairs * kFloat;
  switch (shared) {
    case SharedAngles::kNone:
      return 0;
    case SharedAngles::kOfWarps:
      return plan.threads * plan.thread_rows / kWarpThreads * kMaxBytes;
    case SharedAngles::kOfRows:
      return plan.thread_rows * kMaxBytes;
    case SharedAngles::kOfTokens:
      return plan.tokens_per_block * 2 * pairs * kFloat;
    case SharedAngles::kOfGeneral:
      break;
  }
  const uint32_t size = problem.geometry->dtype == ROPE_DTYPE_F64 ? sizeof(double) : kFloat;
  const uint32_t arrays = problem.table.is_by_channel ? 4 : 2;
  return plan.tokens_per_block * (arrays * pairs * size + static_cast<uint32_t>(sizeof(TokenInfo)));
}

// Fills the plan of a launch of this kernel.
rope_status_t shape_launch(const char *function, const RopeFacts &facts, const RopeAlgorithm &algorithm,
                           RopePlan *plan) {
  plan->is_programmatic = facts.is_programmatic;
  plan->variant = {algorithm.kernel, facts.pairing, facts.angles, facts.lookup,
                   facts.problem->batches == 1 && !facts.has_inner_tokens};
  plan->vector_elements = facts.vector_elements;
  plan->units = facts.units;
  plan->is_batch_fastest = has_closer_batches(*facts.problem);
  plan->thread_rows = 1;
  switch (algorithm.shape) {
    case RopeShape::kBlocks:
      ROPE_TRY(shape_blocks(function, facts, plan));
      break;
    case RopeShape::kParts:
    case RopeShape::kShortParts:
      shape_parts(facts, algorithm, plan);
      break;
    case RopeShape::kFlat:
      shape_flat(facts, plan);
      break;
    default:
      shape_rows(facts, algorithm.shape, plan);
  }
  plan->shared_bytes = count_shared_bytes(*facts.problem, algorithm.shared, *plan);
  return ROPE_STATUS_SUCCESS;
}

// Takes the first kernel of the catalogue that accepts and prefers the problem. The last kernel accepts every problem,
// so the loop ends.
rope_status_t plan_cuda(const char *function, const RopeProblem &problem, const DeviceInfo &device, RopePlan *plan) {
  RopeLaunchFacts launch;
  find_facts(problem, device, &launch);
  const RopeAlgorithm *algorithm = kRopeAlgorithms;
  for (;; ++algorithm) {
    const RopeFacts *facts = algorithm->shape == RopeShape::kShortParts ? launch.in_short : &launch.usual;
    if (facts == nullptr || !accepts(*algorithm, *facts)) continue;
    if (algorithm->prefers == nullptr || algorithm->prefers(*facts)) {
      return shape_launch(function, *facts, *algorithm, plan);
    }
  }
}

// The bytes of the scales written for one head.
int64_t bytes_of_scales(const WrittenScales &scales) {
  if (!scales.is_present()) return 0;
  return scales.groups * dtype_size(scales.form == ScaleForm::kE8M0 ? ROPE_DTYPE_F8_E8M0 : ROPE_DTYPE_F32);
}

// The bytes that a step moves for one token's heads of a tensor. Channels are read once, however often they are
// written.
int64_t bytes_of_step(const RopeProblem &problem, int index) {
  const RopeGeometry &geometry = *problem.geometry;
  const StepTensor &tensor = problem.step->tensor[index];
  if (!tensor.is_written && !tensor.is_cached()) return 0;
  const int written = tensor.is_whole ? tensor.channels : geometry.rotary_dim;
  int64_t bytes = (tensor.is_cached() ? tensor.channels : written) * dtype_size(geometry.dtype);
  if (tensor.norm_in.data != nullptr) bytes += tensor.channels * dtype_size(geometry.dtype);
  // An accumulating output is read too.
  if (tensor.is_written) bytes += (problem.step->accumulates ? int64_t{2} : 1) * written * dtype_size(tensor.out_dtype);
  if (tensor.is_cached()) {
    const int in_cache = tensor.cache_part.count(tensor.channels, geometry.rotary_dim);
    bytes += in_cache * dtype_size(tensor.cache.dtype);
    bytes += (tensor.channels - in_cache) * dtype_size(tensor.pass_cache.dtype);
  }
  bytes +=
      bytes_of_scales(tensor.out_scales) + bytes_of_scales(tensor.cache_scales) + bytes_of_scales(tensor.pass_scales);
  return problem.tensor[index].heads * bytes;
}

}  // namespace

int64_t moved_bytes(const RopeProblem &problem) {
  const RopeGeometry &geometry = *problem.geometry;
  int64_t token_bytes = 0;
  for (int i = 0; i < problem.num_tensors; ++i) {
    const RotatedTensor &tensor = problem.tensor[i];
    if (problem.step != nullptr) {
      token_bytes += bytes_of_step(problem, i);
      continue;
    }
    const int channels = tensor.is_in_place ? geometry.rotary_dim : geometry.head_dim;
    token_bytes += 2 * tensor.heads * channels * dtype_size(geometry.dtype);
  }
  return saturated_product(problem.batches * problem.tokens, token_bytes);
}

rope_status_t plan_rope(const char *function, const RopeProblem &problem, const DeviceInfo &device, RopePlan *plan) {
  *plan = RopePlan{};
  if (device.is_cuda && problem.step != nullptr) {
    plan_step(problem, device, plan);
    return ROPE_STATUS_SUCCESS;
  }
  if (device.is_cuda) return plan_cuda(function, problem, device, plan);
  plan->num_tasks = count_cpu_tasks(moved_bytes(problem), device.num_threads);
  return ROPE_STATUS_SUCCESS;
}

}  // namespace rope
