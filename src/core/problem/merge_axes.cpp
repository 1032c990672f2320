// merge_axes.cpp - the same RoPE problem with fewer axes
#include "core/problem/merge_axes.hpp"

#include "core/problem/view.hpp"

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
  const AngleTable &table = problem.table;
  if (table.is_by_token) {
    if (!follow_tokens(problem, table.cos.batch_stride, table.cos.row_stride)) return false;
    if (!follow_tokens(problem, table.sin.batch_stride, table.sin.row_stride)) return false;
  } else if (!positions.is_present && !(problem.tokens == 1 && starts.is_present)) {
    // Positions that count tokens begin anew in each batch.
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

// Whether the heads of a token's batches follow each other as those of one batch do.
bool follow_heads(const RotatedTensor &tensor, const int64_t *stride) {
  int64_t length;
  if (tensor.heads <= 1) return true;
  return !__builtin_mul_overflow(stride[kHead], tensor.heads, &length) && stride[kBatch] == length;
}

// Whether batches of a token lie closer together than tokens, as in SBHD.
bool lie_closer_than_tokens(const RopeProblem &problem, const int64_t *stride) {
  return problem.tokens == 1 || magnitude(stride[kBatch]) < magnitude(stride[kToken]);
}

bool are_batches_heads(const RopeProblem &problem) {
  const AngleTable &table = problem.table;
  if (problem.positions.batch_stride != 0 || problem.start_positions.batch_stride != 0) return false;
  if (table.cos.batch_stride != 0 || table.sin.batch_stride != 0) return false;
  // Faults are counted by tokens of batches.
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
  // What lies further apart than tokens is worth it only where computing each head's angles costs more than memory
  // does, as with 16 bits (H200; not measured on the CPU).
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
  // The lengths of an empty problem may have no product.
  if (problem->batches <= 1 || problem->is_empty() || problem->sequences.is_present) return;
  if (are_batches_tokens(*problem)) {
    make_batches_tokens(problem);
  } else if (are_batches_heads(*problem)) {
    make_batches_heads(problem);
  }
}

}  // namespace rope
