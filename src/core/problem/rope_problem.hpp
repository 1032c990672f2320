// SPDX-License-Identifier: Apache-2.0
// rope_problem.hpp - a RoPE call as validated, canonical, plain data
//
// From here on there are no layouts, no optional operands and no request errors: tensors have canonical axes (batch,
// token, head, channel) and an output, the pairing style is a distance between channels, a position is a sum of up to
// three terms, and angles come from increments or from a table.
#pragma once

#include <stdint.h>

#include "core/problem/rope_geometry.hpp"

namespace rope {

enum Axis {
  kBatch,
  kToken,
  kHead,
  kChannel,
  kNumAxes
};

constexpr int64_t kMaxHeads = int64_t{1} << 20;

struct RotatedTensor {
  const char *in;
  char *out;
  int64_t heads;
  int64_t in_stride[kNumAxes];  // in elements
  int64_t out_stride[kNumAxes];
  bool is_in_place;  // then only the rotated window is read and written
};

// 64-bit values of integers in memory: one per token and position axis; a stride of 0 repeats an entry.
struct TokenIntegers {
  const char *data;
  bool is_present;
  bool is_64_bit;
  int64_t axis_stride;   // in elements
  int64_t batch_stride;  // between sequences, if the problem has any
  int64_t token_stride;
};

// The place of a column of cosines or sines.
struct TableColumns {
  const char *data;
  int64_t axis_stride;  // in elements
  int64_t batch_stride;
  int64_t row_stride;
  int64_t column_stride;
};

enum class AngleSource {
  kIncrements,
  kTable,
  kAngles  // a table of angles in radians, in `cos` alone
};

// Rows of cosines and sines, or of angles. With rows by position, a token at a position outside 0 to rows - 1 is not
// rotated.
struct AngleTable {
  TableColumns cos, sin;
  rope_dtype_t dtype;
  int64_t rows;
  int width;           // number of columns; pair p uses column p mod width
  bool is_by_channel;  // instead: one column per channel, in the order of forward's output
  bool is_by_token;    // row = token
};

// The beginnings of a THD problem's sequences, and the end: `count` + 1 entries.
struct Sequences {
  const char *data;
  bool is_present;
  bool is_64_bit;
  int64_t stride;  // in elements
  int64_t count;
};

// Two 64-bit words: the number of faults, and 1 + the lowest faulty token.
struct FaultWords {
  char *data;  // NULL: faults are not counted
  int64_t stride;
};

struct StepProblem;

struct RopeProblem {
  const RopeGeometry *geometry;
  const StepProblem *step;  // the call's other operations (core/problem/step_problem.hpp); NULL: it only rotates
  bool is_transposed;
  bool is_programmatic;  // ROPE_FLAG_PROGRAMMATIC_LAUNCH
  int in_distance;       // in this direction: forward's input, or backward's
  int out_distance;
  int64_t batches;
  int64_t tokens;  // per batch
  int num_tensors;
  RotatedTensor tensor[3];
  // position of token s of batch b on an axis = (positions present ? its entry : s) + its entry of start_positions +
  // offset. With sequences, b is the sequence and s counts from the sequence's beginning.
  TokenIntegers positions;
  TokenIntegers start_positions;
  int64_t position_offset;
  Sequences sequences;
  FaultWords fault;
  AngleSource angles;
  AngleTable table;

  int64_t heads_per_token() const;
  bool is_empty() const { return batches == 0 || tokens == 0 || heads_per_token() == 0; }
};

// `args` is an imported struct. If the call has a step, *step receives it and problem->step points to it.
rope_status_t make_rope_problem(const char *function, const RopeGeometry &geometry, const rope_args_t &args,
                                bool is_transposed, RopeProblem *problem, StepProblem *step);

}  // namespace rope
