// rope_problem.hpp - the waist of RoPE: a validated, canonical problem as plain data
//
// Behind this point there is no layout, no optional operand, no error in the request: tensors have canonical axes
// (batch, token, head, channel) and an output, positions are a sum of up to three sources, and angles come from
// increments or from a table.
#pragma once

#include <stdint.h>

#include "core/frequencies.hpp"
#include "core/status.hpp"

namespace rope {

enum Axis {
  kBatch,
  kToken,
  kHead,
  kChannel,
  kNumAxes
};

constexpr int64_t kMaxHeads = int64_t{1} << 20;

// The part of a descriptor that says what is rotated and how; fixed at creation.
struct RopeGeometry {
  rope_dtype_t dtype;
  rope_layout_t layout;
  rope_style_t style;
  int head_dim;
  int rotary_dim;
  int rotary_offset;
  float attention_scale;
  bool has_frequencies;
  uint64_t increments[kMaxPairs];  // per pair, turns per position * 2^64
};

struct RotatedTensor {
  const char *in;
  char *out;
  int64_t heads;
  int64_t in_stride[kNumAxes];  // in elements
  int64_t out_stride[kNumAxes];
  bool is_in_place;  // then only the rotated window is touched
};

// An integer per token, read as 64 bits.
struct TokenIntegers {
  const char *data;
  bool is_present;
  bool is_64_bit;
  int64_t batch_stride;  // in elements
  int64_t token_stride;
};

// Where a column of cosines or sines lies: rows by position, or by token and then perhaps of each batch its own.
struct TableColumns {
  const char *data;
  int64_t batch_stride;  // in elements
  int64_t row_stride;
  int64_t pair_stride;
};

// Rows of cosines and sines. A position outside 0 to rows - 1 leaves its token as it is. By token there are no other
// positions than the index in the sequence, so that the row is the position there too.
struct AngleTable {
  TableColumns cos, sin;
  rope_dtype_t dtype;
  int64_t rows;
};

struct RopeProblem {
  const RopeGeometry *geometry;
  bool is_transposed;
  int64_t batches;
  int64_t tokens;  // of each batch
  int num_tensors;
  RotatedTensor tensor[3];
  // position of token s of batch b = (positions present ? its entry : s) + its entry of start_positions + offset
  TokenIntegers positions;
  TokenIntegers start_positions;
  int64_t position_offset;
  bool has_table;
  AngleTable table;

  int64_t heads_per_token() const;
  bool is_empty() const { return batches == 0 || tokens == 0 || heads_per_token() == 0; }
};

// `config` and `args` are imported structs. Every sentence about a wrong RoPE request is in rope_problem.cpp.
rope_status_t make_rope_geometry(const char *function, const rope_config_t &config, RopeGeometry *geometry);
rope_status_t make_rope_problem(const char *function, const RopeGeometry &geometry, const rope_args_t &args,
                                bool is_transposed, RopeProblem *problem);

// What both descriptors check alike.
rope_status_t check_device(const char *function, rope_device_t device, int32_t device_index, int32_t num_threads);
rope_status_t check_data_type(const char *function, rope_dtype_t dtype);
rope_status_t check_cpu_stream(const char *function, rope_stream_t stream);

}  // namespace rope
