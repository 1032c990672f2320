// SPDX-License-Identifier: Apache-2.0
// rope_params.hpp - the argument that a RoPE launch passes to its kernel by value
//
// A launch copies the whole struct, and at decode size the kernel stalls on each cache line of it. Therefore the
// kernels of short launches have structs with only the members that they read. The other kernels share structs.
#pragma once

#include "backend/cuda/kernels/fast_divmod.hpp"
#include "core/problem/rope_problem.hpp"
#include "plan/rope_kernels.hpp"

namespace rope {

// The input or the output of a tensor, with strides in bytes. Kernels only read an input.
struct RopeSide {
  char *data;
  int64_t stride[kNumAxes];
};

// A RopeSide with strides of 32 bits, except between batches. Heads are numbered through q, k and v, and `data` is the
// address that head 0 would have.
struct RopeRowSide {
  char *data;
  int32_t token;
  int32_t head;
  int64_t batch;
};

// The source of a token's position, and the scale of its angles.
struct RopePositionParams {
  bool has_narrow_positions;  // 32-bit positions and no start_positions
  float cos_scale;            // for computed angles; 1 for a table
  float sin_scale;            // negative for the transpose
  uint64_t position_offset;
  TokenIntegers positions;
  TokenIntegers start_positions;
};

// How blocks find their tokens if each row of threads has one token.
struct RopeRowGrid {
  FastDivmod grid;       // blocks of a token, or of one part of all tokens, whichever are consecutive
  FastDivmod inner;      // tokens per batch, or batches per token, whichever lie closer together
  bool is_part_slowest;  // consecutive blocks have one part of consecutive tokens
  bool has_one_batch;
  bool is_batch_fastest;  // `inner` counts batches
};

struct RopeRowTensor {
  RopeRowSide in;
  RopeRowSide out;
};

// For kernels in which each row of threads has a token.
struct RopeTokenParams : RopePositionParams, RopeRowGrid {
  uint32_t units_per_token;
  uint32_t units_per_head;
  uint32_t head_reciprocal;   // ceil(2^32 / units_per_head)
  uint32_t tensor_begins[2];  // first heads of k and v; all ones if absent
  uint32_t rotary_units_per_head;
  uint32_t copy_units_per_head;  // each has two vectors; the last may have one
  uint32_t copied_vectors;       // per head; 0 in place
  int32_t window_begin;          // in bytes, like the next two members
  int32_t window_size;
  int32_t bytes_to_high;    // from a rotary unit's first vector to its second
  uint32_t run_reciprocal;  // ceil(2^32 / units per block of pairs); 0 if the window is one block
  uint32_t pairs;
  uint32_t num_tokens;            // in all batches
  uint32_t tokens_ahead;          // see RopeRows
  uint32_t tokens_that_prefetch;  // per batch; 0 if positions are implicit
  int num_position_axes;
  bool is_in_place;           // all tensors
  bool has_blocks_or_copies;  // some units' vectors are not simply consecutive
  RopeRowTensor tensor[3];
};

struct RopeTokenAngleParams : RopeTokenParams {
  uint64_t increments[kMaxPairs];
};

struct RopeTokenTableParams : RopeTokenParams {
  int32_t cos_row_bytes;  // strides; kernels that read them are not used if they do not fit
  int32_t sin_row_bytes;
  AngleTable table;
};

// Adds the members for kAxesLookup and kSequencesLookup. kToken with computed angles and kScalar use this struct for
// every lookup.
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

// Channels of a tensor with any stride; strides in bytes.
struct ScalarChannels {
  int64_t in_stride;
  int64_t out_stride;
  uint32_t heads;
};

// For channels that fit no vector. units_per_head and tensor_begins count groups of kScalarHeads heads, and the sides
// of a tensor have only its own heads. The window is in channels here; the inherited members with the window in bytes
// are not read.
template <typename Lookup>
struct RopeScalarParams : Lookup {
  uint32_t rotary_offset;
  uint32_t rotary_dim;
  uint32_t pair_step;  // from a pair's first channel to the next pair's
  uint32_t distance;   // between the channels of a pair
  ScalarChannels channels[3];
};

// A tensor whose output has the strides of its input, in bytes; `in` is the window of head 0. Separate strides for the
// output would cost short launches 0.1 us (tests/bench/TUNING.md).
struct RopeShortTensor {
  const char *in;
  int64_t in_to_out;
  int32_t token_bytes;
  int32_t head_bytes;
};

// For the kernels of short and long launches, in the order in which the short ones read the members.
struct RopeShortParams {
  uint32_t num_tokens;
  uint32_t units_per_token;
  const char *positions;
  int32_t position_bytes;  // stride
  bool has_positions;
  bool has_wide_positions;  // 64-bit positions
  bool is_in_place;         // all tensors
  uint32_t units_per_head;
  uint32_t head_reciprocal;   // ceil(2^32 / units_per_head)
  uint32_t tensor_begins[2];  // first heads of k and v; all ones if absent
  RopeShortTensor tensor[3];
  int32_t bytes_to_high;  // from a unit's first vector to its second
  uint32_t pairs;
  uint64_t position_offset;
  float cos_scale;  // for computed angles; 1 for a table
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
  int32_t row_bytes;  // row stride of both
  rope_dtype_t table_dtype;
};

using RopeShortAngleParams = WithAngles<RopeShortParams, kMaxShortPairs>;
using RopeShortTableParams = WithTable<RopeShortParams>;

struct RopeFlatTableParams : RopeShortTableParams {
  FastDivmod units;    // units_per_token
  uint32_t num_units;  // in all tokens
};

// For long launches.
template <typename Params>
struct RopeLong : Params, RopeRowGrid {
  uint32_t parts;             // per token; divisor of a simple grid's block numbers
  uint32_t parts_reciprocal;  // ceil(2^32 / parts); not needed for 1
};

using RopeLongAngleParams = RopeLong<RopeShortAngleParams>;

struct RopeLongConvertedParams : RopeLong<RopeShortAngleParams> {
  bool is_to_half;  // true: interleaved to half; false: the reverse
};

struct RopeLongTableParams : RopeLong<RopeShortTableParams> {
  bool rounds_each;  // cos, sin, products and sums are rounded to the data's type
  uint64_t rows_that_prefetch;
  int64_t row_bytes_ahead;        // distance in bytes to the row that is prefetched
  int64_t position_bytes_ahead;   // distance in bytes to the position that is prefetched
  uint32_t tokens_that_prefetch;  // per batch; 0 if positions are implicit
};

struct RopeGeneralTensor {
  RopeSide in;
  RopeSide out;
  FastDivmod units_per_head;
  bool is_in_place;
};

// Everything needed to look up and compute the angles of a token.
struct RopeLookupParams : RopePositionParams {
  int64_t num_tokens;  // in all batches
  int64_t tokens_per_batch;
  FastDivmod pairs;
  uint64_t increments[kMaxPairs];
  Sequences sequences;
  FaultWords fault;
  uint8_t pair_axis[kMaxPairs];
  double scale;  // scale of computed angles and of `angles`; replaces cos_scale and sin_scale
  FastDivmod table_width;
  FastDivmod table_distance;  // between the columns of a pair, if a table has one for each channel
  int in_distance;
  int out_distance;
  int num_axes;
  uint32_t used_axes;
  AngleSource angles;
  bool is_transposed;
  bool has_token_info;
  rope_dtype_t rounded_dtype;  // cos, sin, products and sums of the rotation are rounded to it; 0: not rounded
  AngleTable table;
};

// For any strides and any number of tokens.
struct RopeGeneralParams : RopeLookupParams {
  FastDivmod units_per_token;
  FastDivmod blocks_per_token;
  FastDivmod inner;           // as in RopeRowGrid
  uint32_t tensor_begins[3];  // first unit of each tensor within a token; all ones if absent
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
  FastDivmod units_per_run;  // units per block of kHalf's channels, or of the blocked side of kConverted
};

struct TableKernelParams {
  TableColumns cos, sin;
  int64_t axes;
  int64_t rows;
  int columns;  // number of pairs, each counted once
  bool is_by_channel;
  int distance;
  double scale;
  uint64_t increments[kMaxPairs];
};

}  // namespace rope
