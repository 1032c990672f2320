// rope_problem.hpp - a call of RoPE as validated, canonical, plain data
//
// Behind this point there is no layout, no optional operand, no error in the request: tensors have canonical axes
// (batch, token, head, channel) and an output, which channels form a pair is a distance, positions are a sum of up to
// three sources, and angles come from increments or from a table.
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
  bool is_in_place;  // then only the rotated window is touched
};

// Integers in memory, read as 64 bits: one for each token and position axis, or fewer, with strides of 0.
struct TokenIntegers {
  const char *data;
  bool is_present;
  bool is_64_bit;
  int64_t axis_stride;   // in elements
  int64_t batch_stride;  // of sequences, where a problem has those
  int64_t token_stride;
};

// Where a column of cosines or sines lies.
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
  kAngles  // a table of angles in radians: `cos` alone
};

// Rows of cosines and sines, or of angles. By position, a token with a position outside 0 to rows - 1 is not rotated.
struct AngleTable {
  TableColumns cos, sin;
  rope_dtype_t dtype;
  int64_t rows;
  int width;           // columns; pair p has column p mod width
  bool is_by_channel;  // a column for each channel, in the order of forward's output, instead
  bool is_by_token;    // row = token
};

// Where the sequences of a THD problem begin: `count` + 1 entries.
struct Sequences {
  const char *data;
  bool is_present;
  bool is_64_bit;
  int64_t stride;  // in elements
  int64_t count;
};

// Two 64-bit words: how many faults, and the lowest faulty token + 1.
struct FaultWords {
  char *data;  // NULL: not counted
  int64_t stride;
};

struct StepProblem;

struct RopeProblem {
  const RopeGeometry *geometry;
  const StepProblem *step;  // what else the call does (core/problem/step_problem.hpp); NULL: it rotates alone
  bool is_transposed;
  bool is_programmatic;  // ROPE_FLAG_PROGRAMMATIC_LAUNCH
  int in_distance;       // of this direction
  int out_distance;
  int64_t batches;
  int64_t tokens;  // of each batch
  int num_tensors;
  RotatedTensor tensor[3];
  // position of token s of batch b on an axis = (positions present ? its entry : s) + its entry of start_positions +
  // offset; where there are sequences, b is the sequence and s counts from its beginning.
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

// `args` is an imported struct. *step is written where problem->step then points to it.
rope_status_t make_rope_problem(const char *function, const RopeGeometry &geometry, const rope_args_t &args,
                                bool is_transposed, RopeProblem *problem, StepProblem *step);

// Tables to be written with the angles of positions 0 to rows - 1, the same for every axis.
struct TableProblem {
  const RopeGeometry *geometry;
  TableColumns cos, sin;
  rope_dtype_t dtype;
  int64_t axes;
  int64_t rows;
  int width;
  bool is_by_channel;

  bool is_empty() const { return axes == 0 || rows == 0; }
};

rope_status_t make_table_problem(const char *function, const RopeGeometry &geometry, const rope_tensor_t *cos,
                                 const rope_tensor_t *sin, TableProblem *problem);

}  // namespace rope
