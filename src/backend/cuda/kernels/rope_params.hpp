// rope_params.hpp - what a RoPE launch passes to its kernel, by value
//
// A launch passes all of it, and at decode size waits for each line of it: the kernels of short launches take only what
// they read, the others share structs of which some read a part.
#pragma once

#include "backend/cuda/kernels/fast_divmod.hpp"
#include "core/problem/rope_problem.hpp"
#include "plan/rope_kernels.hpp"

namespace rope {

// The input or the output of a tensor, strides in bytes. An input's data is only read.
struct RopeSide {
  char *data;
  int64_t stride[kNumAxes];
};

// The same with strides of 32 bits, but for batches. Heads are numbered through q, k and v, and `data` is where head 0
// would lie.
struct RopeRowSide {
  char *data;
  int32_t token;
  int32_t head;
  int64_t batch;
};

// Where a token's position comes from, and what its angles are scaled by.
struct RopePositionParams {
  bool has_narrow_positions;  // 32-bit positions and no start_positions
  float cos_scale;            // of computed angles; 1 for a table
  float sin_scale;            // negative for the transpose
  uint64_t position_offset;
  TokenIntegers positions;
  TokenIntegers start_positions;
};

// How blocks find their tokens where a row of threads has one.
struct RopeRowGrid {
  FastDivmod grid;       // blocks of a token, or of a part of all tokens, whichever follow each other
  FastDivmod inner;      // tokens of each batch, or batches of each token, whichever lie closer together
  bool is_part_slowest;  // blocks of a part of all tokens follow each other
  bool has_one_batch;
  bool is_batch_fastest;  // `inner` counts batches
};

struct RopeRowTensor {
  RopeRowSide in;
  RopeRowSide out;
};

// Rows of threads that have a token each.
struct RopeTokenParams : RopePositionParams, RopeRowGrid {
  uint32_t units_per_token;
  uint32_t units_per_head;
  uint32_t head_reciprocal;   // ceil(2^32 / units_per_head)
  uint32_t tensor_begins[2];  // first heads of k and v; all ones where there is none
  uint32_t rotary_units_per_head;
  uint32_t copy_units_per_head;  // of two vectors, the last perhaps of one
  uint32_t copied_vectors;       // of a head; 0 in place
  int32_t window_begin;          // in bytes, as the next two
  int32_t window_size;
  int32_t bytes_to_high;    // from a rotary unit's first vector to its second
  uint32_t run_reciprocal;  // ceil(2^32 / units until the channels of a style of blocks jump one); 0: they never do
  uint32_t pairs;
  uint32_t num_tokens;            // of all batches
  uint32_t tokens_ahead;          // see RopeRows
  uint32_t tokens_that_prefetch;  // of each batch; 0 where positions are implicit
  int num_position_axes;
  bool is_in_place;           // all tensors
  bool has_blocks_or_copies;  // units whose vectors do not simply follow each other
  RopeRowTensor tensor[3];
};

struct RopeTokenAngleParams : RopeTokenParams {
  uint64_t increments[kMaxPairs];
};

struct RopeTokenTableParams : RopeTokenParams {
  int32_t cos_row_bytes;  // strides; where they do not fit, the kernels that read these are not in use
  int32_t sin_row_bytes;
  AngleTable table;
};

// With what kAxesLookup and kSequencesLookup need. kToken with computed angles and kScalar take it for any lookup.
template <typename Angles>
struct RopeTokenLookup : Angles {
  Sequences sequences;
  FaultWords fault;
  FastDivmod table_width;
  int64_t tokens_per_batch;
  int num_axes;
  uint32_t used_axes;
  uint8_t pair_axis[kMaxPairs];
};

// Channels of a tensor that lie apart, their strides in bytes.
struct ScalarChannels {
  int64_t in_stride;
  int64_t out_stride;
  uint32_t heads;
};

// Where no vector fits: units_per_head and tensor_begins count groups of kScalarHeads heads, and the sides of a tensor
// have its own heads alone. The window is in channels here; the members above that have it in bytes are not read.
template <typename Lookup>
struct RopeScalarParams : Lookup {
  uint32_t rotary_offset;
  uint32_t rotary_dim;
  uint32_t pair_step;  // from the first channel of a pair to that of the next
  uint32_t distance;   // between the channels of a pair
  ScalarChannels channels[3];
};

// A tensor whose output has the strides of its input, in bytes; `in` is the window of head 0. Strides of its own for
// the output cost short launches 0.1 us (tests/bench/TUNING.md).
struct RopeShortTensor {
  const char *in;
  int64_t in_to_out;
  int32_t token_bytes;
  int32_t head_bytes;
};

// What the kernels of short and of long launches read, in the order in which the short ones need it.
struct RopeShortParams {
  uint32_t num_tokens;
  uint32_t units_per_token;
  const char *positions;
  int32_t position_bytes;  // stride
  bool has_positions;
  bool has_wide_positions;  // of 64 bits
  bool is_in_place;         // all tensors
  uint32_t units_per_head;
  uint32_t head_reciprocal;   // ceil(2^32 / units_per_head)
  uint32_t tensor_begins[2];  // first heads of k and v; all ones where there is none
  RopeShortTensor tensor[3];
  int32_t bytes_to_high;  // from a unit's first vector to its second
  uint32_t pairs;
  uint64_t position_offset;
  float cos_scale;  // of computed angles; 1 for a table
  float sin_scale;  // negative for the transpose
};

// For computed angles.
template <typename Params, uint32_t kPairs>
struct WithAngles : Params {
  uint64_t increments[kPairs];
};

// For a table.
template <typename Params>
struct WithTable : Params {
  const char *cos;
  const char *sin;
  uint64_t rows;
  int32_t row_bytes;  // stride of both
  rope_dtype_t table_dtype;
};

using RopeShortAngleParams = WithAngles<RopeShortParams, kMaxShortPairs>;
using RopeShortTableParams = WithTable<RopeShortParams>;

struct RopeFlatTableParams : RopeShortTableParams {
  FastDivmod units;    // units_per_token
  uint32_t num_units;  // of all tokens
};

// For long launches.
template <typename Params>
struct RopeLong : Params, RopeRowGrid {
  uint32_t parts;             // of a token; a simple grid is divided by it
  uint32_t parts_reciprocal;  // ceil(2^32 / parts); of 1 it is not needed
};

using RopeLongAngleParams = RopeLong<RopeShortAngleParams>;

struct RopeLongConvertedParams : RopeLong<RopeShortAngleParams> {
  bool is_to_half;  // from interleaved channels; else to them
};

struct RopeLongTableParams : RopeLong<RopeShortTableParams> {
  bool rounds_each;  // cos, sin, products and sums
  uint64_t rows_that_prefetch;
  int64_t row_bytes_ahead;        // from a row to the one that is prefetched
  int64_t position_bytes_ahead;   // from a position to the one that is prefetched
  uint32_t tokens_that_prefetch;  // of each batch; 0 where positions are implicit
};

struct RopeGeneralTensor {
  RopeSide in;
  RopeSide out;
  FastDivmod units_per_head;
  bool is_in_place;
};

// Everything that a token's angles are looked up and computed by.
struct RopeLookupParams : RopePositionParams {
  int64_t num_tokens;  // of all batches
  int64_t tokens_per_batch;
  FastDivmod pairs;
  uint64_t increments[kMaxPairs];
  Sequences sequences;
  FaultWords fault;
  uint8_t pair_axis[kMaxPairs];
  double scale;  // of computed angles and of `angles`; cos_scale and sin_scale are not in use
  FastDivmod table_width;
  FastDivmod table_distance;  // between the columns of a pair, where a table has one for each channel
  int in_distance;
  int out_distance;
  int num_axes;
  uint32_t used_axes;
  AngleSource angles;
  bool is_transposed;
  bool has_token_info;
  rope_dtype_t rounded_dtype;  // that cos, sin, products and sums of the rotation become one by one; 0: none
  AngleTable table;
};

// Any strides, any number of tokens.
struct RopeGeneralParams : RopeLookupParams {
  FastDivmod units_per_token;
  FastDivmod blocks_per_token;
  FastDivmod inner;           // as in RopeRowGrid
  uint32_t tensor_begins[3];  // first unit of each tensor, among those of a token; all ones where there is none
  uint32_t rotary_units_per_head;
  uint32_t units_per_block;
  uint32_t tokens_per_block;
  int rotary_offset;
  int rotary_dim;
  bool has_one_batch;
  bool is_batch_fastest;
  RopeGeneralTensor tensor[3];
  int64_t tokens_per_grid_row;
  int64_t outer_per_grid_row;
  FastDivmod
      units_per_run;  // units until the channels of kHalf, or of the side of kConverted that has them, jump a block
};

struct TableKernelParams {
  TableColumns cos, sin;
  int64_t axes;
  int64_t rows;
  int columns;  // pairs, each once
  bool is_by_channel;
  int distance;
  double scale;
  uint64_t increments[kMaxPairs];
};

}  // namespace rope
