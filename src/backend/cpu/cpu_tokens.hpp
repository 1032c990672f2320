// cpu_tokens.hpp - the tokens and heads of a RoPE problem, one after another: where a token stands, what is faulty about
// it, and its angles
#pragma once

#include "backend/cpu/cpu_kernels.hpp"
#include "backend/cpu/task_range.hpp"
#include "core/problem/rope_problem.hpp"
#include "core/problem/token_lookup.hpp"

namespace rope {

struct TokenPlace {
  int64_t batch;   // or sequence
  uint64_t index;  // in its batch or sequence
  TokenState state;
  bool is_faulty;
};

TokenPlace find_place(const Sequences &sequences, int64_t batch, int64_t token);

// Once a faulty token.
void count_fault(const FaultWords &fault, int64_t token);

// Counts entries of cu_seqlens that break their rule.
void check_sequences(const RopeProblem &problem);

// Of one token: [0] makes x', [1] makes y'; the second are in use where a table has columns for each channel.
template <typename Real>
struct TokenAngles {
  Real cos[2][kMaxPairs];
  Real sin[2][kMaxPairs];

  PairAngles<Real> from(int pair, bool is_by_channel) const {
    const int y = is_by_channel ? 1 : 0;
    return {cos[0] + pair, sin[0] + pair, cos[y] + pair, sin[y] + pair};
  }
};

// The angles of one token, unless it has none.
template <typename Real>
TokenPlace fill_token_angles(const RopeProblem &problem, int64_t batch, int64_t token, TokenAngles<Real> *angles);

inline CpuKernels::FillAngles<float> *fill_angles_of(float) {
  return cpu_kernels().fill_angles;
}

inline CpuKernels::FillAngles<double> *fill_angles_of(double) {
  return cpu_kernels().fill_angles_f64;
}

// Heads of one tensor and token.
struct HeadRun {
  int tensor;
  int64_t batch;
  int64_t token;
  int64_t head;
  int64_t count;
};

// Visits a part of the rows (token, head), tokens slowest, so that the heads of a token share its angles:
// begin(batch, token, is_first) where a token's rows begin, or go on, and unless it says that the token is absent
// process(HeadRun) for each tensor.
template <typename Begin, typename Process>
void walk_rows(const RopeProblem &problem, const Range &rows, const Begin &begin, const Process &process) {
  const int64_t heads_per_token = problem.heads_per_token();
  for (int64_t row = rows.begin; row < rows.end;) {
    const int64_t flat_token = row / heads_per_token;
    const int64_t batch = flat_token / problem.tokens, token = flat_token % problem.tokens;
    int64_t head = row % heads_per_token;  // counted from the first head of the tensor at hand
    if (begin(batch, token, head == 0) == kAbsent) {
      row += heads_per_token - head;
      continue;
    }
    for (int i = 0; i < problem.num_tensors; ++i) {
      const int64_t heads = problem.tensor[i].heads;
      if (head < heads && row < rows.end) {
        const int64_t count = heads - head < rows.end - row ? heads - head : rows.end - row;
        process(HeadRun{i, batch, token, head, count});
        head += count;
        row += count;
      }
      head -= heads;
    }
  }
}

}  // namespace rope
