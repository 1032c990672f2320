// merge_axes.cpp - the same RoPE problem with fewer axes
#include "core/merge_axes.hpp"

#include "core/view.hpp"

namespace rope {

namespace {

// Whether the batches of something with these strides follow each other as its tokens do.
bool follow_tokens(const RopeProblem &problem, int64_t batch_stride, int64_t token_stride) {
  int64_t length;
  if (problem.tokens == 1) return true;
  return !__builtin_mul_overflow(token_stride, problem.tokens, &length) && batch_stride == length;
}

bool are_batches_tokens(const RopeProblem &problem) {
  const TokenIntegers &positions = problem.positions, &starts = problem.start_positions;
  // Positions that count tokens begin anew in each batch.
  if (!positions.is_present && !(problem.tokens == 1 && starts.is_present)) return false;
  if (!follow_tokens(problem, positions.batch_stride, positions.token_stride)) return false;
  if (!follow_tokens(problem, starts.batch_stride, starts.token_stride)) return false;
  for (int i = 0; i < problem.num_tensors; ++i) {
    const RotatedTensor &tensor = problem.tensor[i];
    if (!follow_tokens(problem, tensor.in_stride[kBatch], tensor.in_stride[kToken])) return false;
    if (!follow_tokens(problem, tensor.out_stride[kBatch], tensor.out_stride[kToken])) return false;
  }
  return true;
}

// The only batch has one token for each of those that it replaces.
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
  if (!problem->positions.is_present) {
    problem->positions = problem->start_positions;
    problem->start_positions = {};
  }
  problem->tokens *= problem->batches;
  problem->batches = 1;
}

bool are_batches_heads(const RopeProblem &problem) {
  if (problem.angles != AngleSource::kIncrements || problem.batches > kMaxHeads) return false;
  // Wider elements are bound by memory: computing each head's angles costs nothing beside them, and what is merged lies
  // a batch apart (H200; not measured on the CPU).
  if (dtype_size(problem.geometry->dtype) > 2) return false;
  if (problem.positions.batch_stride != 0 || problem.start_positions.batch_stride != 0) return false;
  for (int i = 0; i < problem.num_tensors; ++i) {
    if (problem.tensor[i].heads > 1) return false;
  }
  return true;
}

void make_batches_heads(RopeProblem *problem) {
  for (int i = 0; i < problem->num_tensors; ++i) {
    RotatedTensor &tensor = problem->tensor[i];
    tensor.heads *= problem->batches;
    tensor.in_stride[kHead] = tensor.in_stride[kBatch];
    tensor.out_stride[kHead] = tensor.out_stride[kBatch];
    tensor.in_stride[kBatch] = tensor.out_stride[kBatch] = 0;
  }
  problem->batches = 1;
}

}  // namespace

void merge_axes(RopeProblem *problem) {
  // The lengths of an empty problem may have no product. A table by token may have other rows for each batch.
  if (problem->batches <= 1 || problem->is_empty()) return;
  if (problem->sequences.is_present || problem->table.is_by_token) return;
  if (are_batches_tokens(*problem)) {
    make_batches_tokens(problem);
  } else if (are_batches_heads(*problem)) {
    make_batches_heads(problem);
  }
}

}  // namespace rope
