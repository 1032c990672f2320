// SPDX-License-Identifier: Apache-2.0
// cpu_tokens.hpp - walks the tokens and heads of a RoPE problem, and finds a token's position, faults and angles
#pragma once

#include "backend/cpu/cpu_kernels.hpp"
#include "backend/cpu/task_range.hpp"
#include "core/problem/rope_problem.hpp"
#include "core/problem/token_lookup.hpp"

namespace rope {

struct TokenPlace {
  int64_t batch;   // or sequence
  uint64_t index;  // within its batch or sequence
  TokenState state;
  bool is_faulty;
};

TokenPlace find_place(const Sequences &sequences, int64_t batch, int64_t token);

// Called once per faulty token.
void count_fault(const FaultWords &fault, int64_t token);

// Counts the entries of cu_seqlens that break a rule.
void check_sequences(const RopeProblem &problem);

// The angles of one token: [0] for x', [1] for y'. The second ones are used only if a table has a column for each
// channel.
template <typename Real>
struct TokenAngles {
  Real cos[2][kMaxPairs];
  Real sin[2][kMaxPairs];

  PairAngles<Real> from(int pair, bool is_by_channel) const {
    const int y = is_by_channel ? 1 : 0;
    return {cos[0] + pair, sin[0] + pair, cos[y] + pair, sin[y] + pair};
  }
};

// The angles of one token, if it has a position.
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
  bool is_followed;  // by other tokens of the task
};

// Visits a part of the rows (token, head), tokens slowest, so that the heads of a token share its angles. Calls
// begin(batch, token, is_first) when a token's rows begin or continue and, unless the result is kAbsent,
// process(HeadRun) for each tensor.
template <typename Begin, typename Process>
void walk_rows(const RopeProblem &problem, const Range &rows, const Begin &begin, const Process &process) {
  const int64_t heads_per_token = problem.heads_per_token();
  for (int64_t row = rows.begin; row < rows.end;) {
    const int64_t flat_token = row / heads_per_token;
    const int64_t batch = flat_token / problem.tokens, token = flat_token % problem.tokens;
    int64_t head = row % heads_per_token;  // counted from the current tensor's first head
    if (begin(batch, token, head == 0) == kAbsent) {
      row += heads_per_token - head;
      continue;
    }
    const bool is_followed = rows.end > (flat_token + 1) * heads_per_token;
    for (int i = 0; i < problem.num_tensors; ++i) {
      const int64_t heads = problem.tensor[i].heads;
      if (head < heads && row < rows.end) {
        const int64_t count = heads - head < rows.end - row ? heads - head : rows.end - row;
        process(HeadRun{i, batch, token, head, count, is_followed});
        head += count;
        row += count;
      }
      head -= heads;
    }
  }
}

}  // namespace rope
