// SPDX-License-Identifier: Apache-2.0
// step_params.hpp - the arguments of the step's kernels, passed by value
#pragma once

#include <type_traits>

#include "backend/cuda/kernels/rope_params.hpp"
#include "core/math/norm.hpp"
#include "core/problem/step_problem.hpp"
#include "plan/step_kernels.hpp"

namespace rope {

// How a launch treats a tensor, as bits.
enum StepFlags : uint32_t {
  kIsTurned = 1,
  kIsNormed = 2,
  kHasWideWeight = 4,   // weights are F32, the data have 16 bits
  kReadsOutside = 8,    // reads the channels around the window
  kWritesOutside = 16,  // writes these channels to `out`
  kIsChanged = 32,      // whole heads: normed and turned, as far as the launch does either; otherwise copied
  kHasOut = 64,
  kCountsPositions = 128,  // the tensor's first thread counts tokens without a row of the table
  kCountsPlaces = 256,     // the thread also counts tokens with a slot or page out of range
  kHasWideBias = 512,      // a bias of F32, the data have 16 bits
  kHasCodeOut = 1024,      // its output has codes of 8 bits
  kHasCodeCache = 2048,
  kHasE5M2 = 4096,  // its codes have this type
  kHasCodes = kHasCodeOut | kHasCodeCache,
  kHasWords = 8192,        // its output or its cache has the data's type
  kHasWideFactor = 16384,  // row factors of F32, the data have 16 bits
};

// A page table. Strides are in bytes.
struct StepPages {
  const char *table;      // NULL: tokens have slots
  const char *indptr;     // begins of the parts of one list; NULL: the table has rows
  const char *sequences;  // each token's row; NULL: its batch
  int32_t row_bytes;
  int32_t column_bytes;
  int32_t indptr_bytes;
  int32_t sequence_token_bytes;
  int32_t sequence_batch_bytes;
  uint32_t columns;
  uint32_t rows;
  bool is_64_bit;
  bool is_indptr_64_bit;
  bool is_sequence_64_bit;
};

// Slots, or positions in the caches if there is a page table.
struct StepSlots {
  bool has_caches;   // if false, nothing below is read
  const char *data;  // NULL: a token's position is its number in the batch
  int32_t token_bytes;
  int32_t batch_bytes;
  bool is_64_bit;
  bool skips_slot_0;
  FastDivmod entries;      // entries of a page
  uint32_t end;            // slots, or pages, from this number on are outside
  uint32_t cached_tokens;  // cached tokens of a batch
};

// Several position axes, and a page table.
struct StepLookups {
  uint32_t used_axes;           // bits; 0 for a single axis
  int32_t position_axis_bytes;  // stride
  StepPages pages;
  uint64_t slot_offset;                        // added to positions in the caches
  uint32_t pair_axis[kMaxLongStepPairs / 16];  // two bits for each pair
};

// ---- kWarp, kShort, kShortMore, kLong and kLongWindow ----

// A piece of a tensor's heads (step_pieces.hpp). Strides are in bytes.
struct StepHeadTensor {
  const char *in;
  int32_t in_token;
  int32_t head;         // stride of heads in the input
  int64_t in_to_out;    // in token 0, head 0
  int32_t token_shift;  // added to in_to_out for each token
  int32_t head_shift;   // added for each head; 0 in calls with a norm
  uint32_t lanes_log2;  // threads of a head
  uint32_t units;       // units of a head
  uint32_t flags;
  char *cache;  // NULL: no cache
  int64_t page_bytes;
  int64_t entry_bytes;
  int32_t cache_head;
  float weight_offset;  // offset of `weight`, or 1 without a weight
  const char *weight;   // NULL: stands for zeros
};

// Codes of a piece. Strides are in bytes.
struct StepHeadCodes {
  const char *scale;  // NULL: 1
  int32_t scale_head;
  uint8_t cache_unit;  // stride of units
  // Long launches without a norm cut a piece into blocks of channels with one written scale, or not at all.
  uint8_t block_lanes_log2;  // of a block if there are several, else 31
  uint16_t half_block;       // in channels
  char *out;                 // replaces the address that in_to_out gives
  int64_t out_batch;
  int32_t out_token;
  int32_t out_head;
};

// The parameters that all kernels of whole heads read. In heads with a window, blocks of channels have its size for
// block_mask, to_high and pairs, and the size of the head for lanes_log2 and units_per_block.
struct StepHeadParams {
  // The first two stand in this order because kShortMore takes four registers more in the other.
  uint32_t lanes_log2;       // threads of a block of channels: a head, or as many channels as the window has
  uint32_t units_per_block;  // units of a block of channels
  uint32_t block_mask;       // bits of a unit's number that select the block in its head
  int32_t to_high;           // distance from a unit's first vector to its second
  const char *positions;
  int32_t position_bytes;  // stride of positions
  bool has_positions;
  bool has_wide_positions;  // positions have 64 bits
  bool rounds;              // rounds values inside the norm
  bool has_aligned_rows;    // runs of a table's row are read as vectors (step_operation.cpp)
  uint32_t implicit_mask;   // bits of a token's number that are its position if none is given; the others are its batch
  uint32_t pairs;
  StepSlots slots;
  NormForm<float> norm;
  uint64_t position_offset;
  float cos_scale;  // factor of computed angles
  float sin_scale;  // negative for the transpose
  FaultWords fault;
};

// Parameters that instances with codes read as well.
template <typename Params>
struct WithCodes : Params {
  uint32_t scale_multiplies;  // 1: values are multiplied by scales; 0: divided. A wait depends on its unused bits
  bool rounds_before_codes;
  StepHeadCodes codes[Params::kPieces];
};

// Parameters of kLongWindow: the lanes of a head that have its window, and the distance in channels from a thread's
// first unit, which may be one of the window, to its second unit in the other half of the head. Addresses are those of
// the half that has the window.
template <typename Params>
struct WithWindow : WithCodes<Params> {
  uint32_t first_window_lane;
  uint32_t window_lanes;
  int32_t to_other;
};

// Written scales of groups of blocks. If both a piece's output and its cache have scales, these have equal groups.
struct StepHeadScales {
  WrittenScales out;
  WrittenScales cache;
  uint32_t lanes_log2;  // threads of a group
};

// A piece's factor, with strides in bytes, and the address of its largest magnitude.
struct StepHeadFactor {
  const char *data;  // NULL: 1
  int64_t batch;
  int32_t token;
  int32_t head;
  uint32_t *amax;  // NULL: no magnitude is recorded
};

// Parameters that instances with codes and more read as well.
template <typename Params>
struct WithScales : WithCodes<Params> {
  StepHeadScales scales[Params::kPieces];
  StepHeadFactor factors[Params::kPieces];
};

// Parameters of kWarp and kShort. Units are numbered through all pieces. Pieces with the most threads per head come
// first, so that each piece begins at a multiple of its own number. `in`, `cache` and other addresses are those that
// the head of unit 0 would have. Larger params make a launch slower, so calls with a norm have fewer pieces.
template <bool IsNormed>
struct StepShortHeadParams : StepHeadParams {
  static constexpr uint32_t kPieces = IsNormed ? uint32_t{kMaxNormedStepPieces} : uint32_t{kMaxShortStepPieces};
  uint32_t units_per_token;
  uint32_t counting_unit;        // the unit that counts tokens with slots out of range
  uint32_t begins[kPieces - 1];  // first units of the second and later pieces; all ones if there is none
  StepHeadTensor tensor[kPieces];
};

// A piece's part of StepShortMoreParams.
struct StepMoreTensor {
  int32_t weight_head;
  int32_t bias_head;
  const char *bias;  // NULL: no bias
};

// Parameters of kShortMore.
template <bool IsNormed>
struct StepShortMoreParams : StepShortHeadParams<IsNormed> {
  bool is_after;
  uint32_t window_units;       // units of a normed head that are turned; units_per_block if these are all
  uint32_t first_window_unit;  // number of the first of them
  StepMoreTensor more[StepShortHeadParams<IsNormed>::kPieces];
  StepLookups lookups;
};

// Parameters of kWarp, kShort and kShortMore with angles or a table, without codes and with them. Plain is one of the two
// structs.
template <typename Plain, StepAngles kAngles>
using StepShortWordParams = std::conditional_t<
    kAngles == StepAngles::kNone, Plain,
    std::conditional_t<kAngles == StepAngles::kComputed, WithAngles<Plain, kMaxShortStepPairs>, WithTable<Plain>>>;

template <typename Plain, bool HasCodes, StepAngles kAngles>
using StepShortParams =
    std::conditional_t<HasCodes, WithCodes<StepShortWordParams<Plain, kAngles>>, StepShortWordParams<Plain, kAngles>>;

// step_long.cuh shows how blocks find their part of a tensor.
struct StepLongTensor : StepHeadTensor {
  int64_t batch;         // stride of the input
  int64_t batch_shift;   // added to in_to_out for each batch; 0 in calls with a norm
  uint32_t first_block;  // first block in a group; all ones if there is no piece
  uint32_t heads;
  uint32_t rows;
  uint32_t threads;             // threads of a token, and their reciprocal, ceil(2^32 / threads)
  uint32_t threads_reciprocal;  // read if a block has several rows
  uint32_t runs;
  FastDivmod parts;
};

// Parameters of kLong.
struct StepLongHeadParams : StepHeadParams {
  static constexpr uint32_t kPieces = kMaxStepPieces;
  uint32_t num_tokens;  // tokens of a batch
  int32_t position_batch_bytes;
  uint32_t turns;
  uint32_t angle_floats;  // of a token in shared memory
  bool prefetches;        // StepHeads'
  FastDivmod blocks_of_group;
  FastDivmod by_pairs;
  StepLongTensor tensor[kPieces];
  StepLookups lookups;
};

// A thread that reads a row of the table prefetches a later row, and the first thread of a token a later position. The
// members say how far ahead.
struct StepLongTableParams : WithTable<StepLongHeadParams> {
  uint64_t rows_that_prefetch;
  int64_t row_bytes_ahead;
  int64_t position_bytes_ahead;
  uint32_t tokens_that_prefetch;  // 0 if positions are implicit
};

// ---- kShortRows and kLongRows ----

// Strides are in bytes. A head has 2^lanes_log2 threads; the last of them may have no unit.
struct StepRowTensor {
  uint32_t flags;
  uint32_t begin;  // first thread of the tensor among those of a token; all ones if there is no tensor
  uint32_t heads;
  uint32_t lanes_log2;
  uint32_t units_per_head;
  RopeRowSide in;
  RopeRowSide out;       // data NULL: no output
  char *cache;           // NULL: no cache
  uint32_t cache_index;  // 0 or 1: index in StepSlots
  int32_t cache_head;
  int32_t weight_head;
  const char *weight;  // NULL: 1
  const char *bias;    // NULL: no bias
  int32_t bias_head;
  uint32_t rotary_units;
  int32_t window_begin;  // in bytes, as the next two
  int32_t window_size;
  int32_t to_high;  // distance from a rotary unit's first vector to its second
  float inverse_count;
};

struct StepRowParams {
  const char *positions;
  int32_t position_bytes;  // strides
  int32_t position_batch_bytes;
  bool has_positions;
  bool has_wide_positions;  // positions have 64 bits
  uint32_t pairs;
  StepSlots slots;
  NormForm<float> norm;  // each tensor has its own inverse_count
  uint64_t position_offset;
  float cos_scale;  // factor of computed angles; 1 for a table
  float sin_scale;  // negative for the transpose
  FaultWords fault;
  uint32_t num_tokens;
  FastDivmod parts;  // blocks of a token
  FastDivmod tokens_per_batch;
  bool has_one_batch;
  bool is_after;          // only read with a norm over a token
  bool is_full_window;    // the window of all normed tensors is the whole head, and its units are a power of two
  int64_t page_bytes[2];  // stride of pages in k's and v's cache
  int64_t entry_bytes[2];
  StepRowTensor tensor[3];
  AngleTable table;
  StepLookups lookups;
};

// Codes of a tensor. The strides of `scale` and `factor` are in bytes. Scales are written for whole heads.
struct StepRowCodes {
  const char *scale;  // NULL: 1
  int32_t scale_head;
  StepHeadFactor factor;
  WrittenScales out_scales;
  WrittenScales cache_scales;
};

// Parameters of kLongRows with codes. The strides of outputs and caches are those of their elements.
struct StepRowCodeParams : StepRowParams {
  bool has_norm;
  bool is_of_token;       // the norm is over a token
  bool needs_magnitudes;  // scales are written, or amax is recorded
  bool scale_multiplies;
  bool rounds_before_codes;
  bool accumulates;  // values are added to the outputs
  StepRowCodes codes[3];
};

// ---- kGeneral ----

// Strides of sides and caches are in bytes, those of scales and factors in elements.
struct StepGeneralTensor {
  RopeSide in;    // its channel 0, or the address that this channel would have
  RopeSide pass;  // channels outside the window; NULL: `in` has them
  RopeSide out;
  CacheView cache;
  ChannelPart cache_part;
  CacheView pass_cache;
  ChannelNumbers weight;
  ChannelNumbers bias;
  RowFactor factor;
  StaticScale scale;
  StaticScale pass_scale;
  WrittenScales out_scales;
  WrittenScales cache_scales;
  WrittenScales pass_scales;
  char *amax;
  rope_dtype_t out_dtype;
  int64_t heads;
  NormForm<double> norm;  // numbers that the type of the arithmetic holds exactly, or that are rounded to it
  int channels;
  int window_begin;
  bool is_turned;
  bool has_styles;
  bool is_normed;
  bool is_written;
  bool is_whole;
};

struct StepGeneralParams : RopeLookupParams {
  StepGeneralTensor tensor[3];
  int num_tensors;
  int rotary_dim;
  int row_channels;  // room for a head of any tensor
  uint32_t warps;    // warps of a block that have a row in shared memory
  int64_t blocks_per_token;
  int64_t heads_per_block;
  bool is_turned;
  bool has_caches;
  bool is_after;
  bool is_of_token;
  bool scale_multiplies;
  bool rounds_before_codes;
  bool accumulates;  // values are added to the outputs
  CachePlaces places;
};

// ---- kNormGradient ----

// A tensor's arguments in addition to those in StepGeneralParams. Strides of sums are in elements.
struct NormGradientTensor {
  RopeSide in;  // the input of forward's norm
  RunSums weight_sums;
  RunSums bias_sums;
  int64_t tokens_of_run;
  int64_t end_item;   // number of the tensor's runs plus those of the tensors before it
  int kept_channels;  // channels of the sums of all heads that are kept at a time
};

struct NormGradientParams : StepGeneralParams {
  rope_dtype_t dtype;  // type of the data
  NormGradientTensor gradient[3];
  int64_t num_items;
  int counting_tensor;  // faults are counted with the tokens of this tensor
};

// ---- kNormGradientRows ----

// A tensor's arguments in addition to those in StepRowParams; there `begin` counts the threads of a row.
struct NormGradientRowTensor {
  RopeRowSide in;         // the input of forward's norm
  StepHeadFactor factor;  // amax is not used
  RunSums weight_sums;
};

// Tensors with heads in shared blocks: norm_gradient_rows.cuh has a picture.
struct NormGradientGroup {
  uint32_t first_block;  // all ones if there is no group
  uint32_t first_tensor;
  uint32_t end_tensor;
  uint32_t row_threads;  // threads of a row
  uint32_t rows;
  uint32_t parts;
  uint32_t tokens_of_run;
  uint32_t runs;  // runs that have tokens
  bool is_normed;
  bool is_turned;  // at least one tensor is turned
  bool counts_faults;
};

struct NormGradientRowParams : WithAngles<StepRowParams, kMaxLongStepPairs> {
  NormGradientRowTensor gradient[3];
  NormGradientGroup group[3];
  uint32_t usual_units;   // units of each normed head if it is its window and they are 2^n, n >= 2; otherwise 0
  uint32_t weight_units;  // units with room for their weights: a block's threads, or 32, which are fewer, for each
                          // tensor of a group
  uint32_t shared_tokens_log2;  // tokens of a row that share room for angles at a time
  uint32_t shared_angles;       // units with room for their angles
  uint32_t shared_lost;         // room for whether tokens are lost
  bool has_table;
  bool is_flat;  // tokens of all batches are counted as one batch, except for positions and factors
  bool has_factors;
  bool is_of_token;
  bool accumulates;  // values are added to the outputs
};

}  // namespace rope
