// SPDX-License-Identifier: Apache-2.0
// merge_axes.cpp - reduces the axes of a RoPE problem
#include "core/problem/merge_axes.hpp"

#include "core/problem/view.hpp"

namespace rope {

namespace {

// Whether, with these strides, the first token of a batch follows the last token of the previous batch.
bool follow_tokens(const RopeProblem &problem, int64_t batch_stride, int64_t token_stride) {
  int64_t length;
  if (problem.tokens == 1) return true;
  return !__builtin_mul_overflow(token_stride, problem.tokens, &length) && batch_stride == length;
}

bool are_batches_tokens(const RopeProblem &problem) {
  const TokenIntegers &positions = problem.positions, &starts = problem.start_positions;
  const AngleTable &table = problem.table;
  if (table.is_by_token) {
    if (!follow_tokens(problem, table.cos.batch_stride, table.cos.row_stride)) return false;
    if (!follow_tokens(problem, table.sin.batch_stride, table.sin.row_stride)) return false;
  } else if (!positions.is_present && !(problem.tokens == 1 && starts.is_present)) {
    // Without a tensor of positions, counting starts again in each batch.
    return false;
  }
  if (!follow_tokens(problem, positions.batch_stride, positions.token_stride)) return false;
  if (!follow_tokens(problem, starts.batch_stride, starts.token_stride)) return false;
  for (int i = 0; i < problem.num_tensors; ++i) {
    const RotatedTensor &tensor = problem.tensor[i];
    if (!follow_tokens(problem, tensor.in_stride[kBatch], tensor.in_stride[kToken])) return false;
    if (!follow_tokens(problem, tensor.out_stride[kBatch], tensor.out_stride[kToken])) return false;
  }
  return true;
}

// The merged batch has one token for each token of the batches that it replaces.
void make_batches_tokens(RopeProblem *problem) {
  const auto take_stride = [&](int64_t *batch_stride, int64_t *token_stride) {
    if (problem->tokens == 1) *token_stride = *batch_stride;
    *batch_stride = 0;
  };
  for (int i = 0; i < problem->num_tensors; ++i) {
    RotatedTensor &tensor = problem->tensor[i];
    take_stride(&tensor.in_stride[kBatch], &tensor.in_stride[kToken]);
    take_stride(&tensor.out_stride[kBatch], &tensor.out_stride[kToken]);
  }
  take_stride(&problem->positions.batch_stride, &problem->positions.token_stride);
  take_stride(&problem->start_positions.batch_stride, &problem->start_positions.token_stride);
  AngleTable *table = &problem->table;
  if (table->is_by_token) {
    take_stride(&table->cos.batch_stride, &table->cos.row_stride);
    take_stride(&table->sin.batch_stride, &table->sin.row_stride);
    table->rows *= problem->batches;
  } else if (!problem->positions.is_present) {
    problem->positions = problem->start_positions;
    problem->start_positions = {};
  }
  problem->tokens *= problem->batches;
  problem->batches = 1;
}

// Whether the heads of all batches, for one token, have one common stride.
bool follow_heads(const RotatedTensor &tensor, const int64_t *stride) {
  int64_t length;
  if (tensor.heads <= 1) return true;
  return !__builtin_mul_overflow(stride[kHead], tensor.heads, &length) && stride[kBatch] == length;
}

// Whether the batches of a token lie closer together than tokens, as in SBHD.
bool lie_closer_than_tokens(const RopeProblem &problem, const int64_t *stride) {
  return problem.tokens == 1 || magnitude(stride[kBatch]) < magnitude(stride[kToken]);
}

bool are_batches_heads(const RopeProblem &problem) {
  const AngleTable &table = problem.table;
  if (problem.positions.batch_stride != 0 || problem.start_positions.batch_stride != 0) return false;
  if (table.cos.batch_stride != 0 || table.sin.batch_stride != 0) return false;
  // Faults are counted per token of each batch.
  if (problem.fault.data != nullptr && problem.angles != AngleSource::kIncrements) return false;
  bool are_close = true;
  for (int i = 0; i < problem.num_tensors; ++i) {
    const RotatedTensor &tensor = problem.tensor[i];
    if (tensor.heads > kMaxHeads / problem.batches) return false;
    if (!follow_heads(tensor, tensor.in_stride) || !follow_heads(tensor, tensor.out_stride)) return false;
    if (tensor.heads == 0) continue;
    are_close = are_close && lie_closer_than_tokens(problem, tensor.in_stride) &&
                lie_closer_than_tokens(problem, tensor.out_stride);
  }
  // If heads lie further apart than tokens, merging pays only where computing the angles for each head costs more than
  // memory accesses do, as with 16-bit data (measured on an H200, not on the CPU).
  const bool are_costly = problem.angles == AngleSource::kIncrements && dtype_size(problem.geometry->dtype) <= 2;
  return are_close || are_costly;
}

void make_batches_heads(RopeProblem *problem) {
  for (int i = 0; i < problem->num_tensors; ++i) {
    RotatedTensor &tensor = problem->tensor[i];
    if (tensor.heads == 1) {
      tensor.in_stride[kHead] = tensor.in_stride[kBatch];
      tensor.out_stride[kHead] = tensor.out_stride[kBatch];
    }
    tensor.in_stride[kBatch] = tensor.out_stride[kBatch] = 0;
    tensor.heads *= problem->batches;
  }
  problem->batches = 1;
}

}  // namespace

void merge_axes(RopeProblem *problem) {
  // The product of an empty problem's lengths may overflow.
  if (problem->batches <= 1 || problem->is_empty() || problem->sequences.is_present) return;
  if (are_batches_tokens(*problem)) {
    make_batches_tokens(problem);
  } else if (are_batches_heads(*problem)) {
    make_batches_heads(problem);
  }
}

}  // namespace rope
