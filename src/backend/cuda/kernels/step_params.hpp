// step_params.hpp - what a launch of a kernel of the step passes to it, by value
#pragma once

#include "backend/cuda/kernels/rope_params.hpp"
#include "core/math/norm.hpp"
#include "core/problem/step_problem.hpp"
#include "plan/step_kernels.hpp"

namespace rope {

// What is done with a tensor, as bits.
enum StepFlags : uint32_t {
  kIsTurned = 1,
  kIsNormed = 2,
  kHasWideWeight = 4,   // of F32, where the data have 16 bits
  kReadsOutside = 8,    // the channels around the window
  kWritesOutside = 16,  // to `out`
  kIsChanged = 32,      // whole heads: normed and turned, as far as the launch does either; else copied
  kHasOut = 64,
  kCountsPositions = 128,  // its first thread counts tokens that are lost
  kCountsPlaces = 256,     // and those whose slot or page is outside
  kHasWideBias = 512,      // as kHasWideWeight
  kHasCodeOut = 1024,      // its output has codes of 8 bits
  kHasCodeCache = 2048,
  kHasE5M2 = 4096,  // codes are of that type
  kHasCodes = kHasCodeOut | kHasCodeCache,
  kHasWords = 8192,        // its output or its cache has the data's type
  kHasWideFactor = 16384,  // as kHasWideWeight
};

// A page table, strides in bytes.
struct StepPages {
  const char *table;      // NULL: tokens have slots
  const char *indptr;     // where the runs of a list begin; NULL: the table has rows
  const char *sequences;  // rows of tokens; NULL: their batches
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

// Slots, or with a page table positions in the caches.
struct StepSlots {
  bool has_caches;   // else nothing below is read
  const char *data;  // NULL: a token's position is its number in the batch
  int32_t token_bytes;
  int32_t batch_bytes;
  bool is_64_bit;
  bool skips_slot_0;
  FastDivmod entries;      // of a page
  uint32_t end;            // slots, or pages, from there on are outside
  uint32_t cached_tokens;  // of a batch
};

// Several position axes, and a page table.
struct StepLookups {
  uint32_t used_axes;           // bits; 0 where there is but one axis
  int32_t position_axis_bytes;  // stride
  StepPages pages;
  uint64_t slot_offset;                        // what is added to positions in the caches
  uint32_t pair_axis[kMaxLongStepPairs / 16];  // two bits for a pair
};

// ---- kWarp, kShort and kLong ----

// A piece of a tensor's heads (step_pieces.hpp). Strides in bytes.
struct StepHeadTensor {
  const char *in;
  int32_t in_token;
  int32_t head;         // of the input
  int64_t in_to_out;    // in token 0, head 0
  int32_t token_shift;  // what a token adds to it
  int32_t head_shift;   // what a head adds; 0 in calls with a norm
  uint32_t lanes_log2;  // threads of a head
  uint32_t units;       // of a head
  uint32_t flags;
  char *cache;  // NULL: it has none
  int64_t page_bytes;
  int64_t entry_bytes;
  int32_t cache_head;
  float weight_offset;  // of `weight`, or 1 without one
  const char *weight;   // NULL: zeros
};

// Of a piece, strides in bytes.
struct StepHeadCodes {
  const char *scale;  // NULL: 1
  int32_t scale_head;
  int32_t cache_unit;  // from a unit to the next
  char *out;           // instead of what in_to_out leads to
  int64_t out_batch;
  int32_t out_token;
  int32_t out_head;
};

// What the kernels of whole heads read.
struct StepHeadParams {
  // With the first two in another order kShortMore takes four registers more.
  uint32_t lanes_log2;       // threads of a block of channels: a head, or as many channels as the window has
  uint32_t units_per_block;  // of channels
  uint32_t block_mask;       // bits of a unit's number that say in which block of its head it lies
  int32_t to_high;           // from a unit's first vector to its second
  const char *positions;
  int32_t position_bytes;  // stride
  bool has_positions;
  bool has_wide_positions;  // of 64 bits
  bool rounds;              // within the norm
  uint32_t implicit_mask;   // bits of a token's number that are its position where none is given; the others its batch
  uint32_t pairs;
  StepSlots slots;
  NormForm<float> norm;
  uint64_t position_offset;
  float cos_scale;  // of computed angles
  float sin_scale;  // negative for the transpose
  FaultWords fault;
};

// What instances with codes read too.
template <typename Params>
struct WithCodes : Params {
  bool scale_multiplies;
  bool rounds_before_codes;
  StepHeadCodes codes[Params::kPieces];
};

// Scales that are written for groups of blocks, of a piece's output and of its cache; of both the same where both have
// some.
struct StepHeadScales {
  WrittenScales out;
  WrittenScales cache;
  uint32_t lanes_log2;  // threads of a group
};

// Of a piece: what it is multiplied by, strides in bytes, and what its largest magnitude raises.
struct StepHeadFactor {
  const char *data;  // NULL: 1
  int64_t batch;
  int32_t token;
  int32_t head;
  uint32_t *amax;  // NULL: not wanted
};

// What instances with codes and more read too.
template <typename Params>
struct WithScales : WithCodes<Params> {
  StepHeadScales scales[Params::kPieces];
  StepHeadFactor factors[Params::kPieces];
};

// Of kWarp and kShort. Units are numbered through all pieces, those with the most threads a head first, so that each
// begins with a multiple of its own; `in`, `cache` and the like are where the head of unit 0 would lie. Params that are
// larger take a launch longer: calls with a norm have fewer pieces.
template <bool IsNormed>
struct StepShortHeadParams : StepHeadParams {
  static constexpr uint32_t kPieces = IsNormed ? uint32_t{kMaxNormedStepPieces} : uint32_t{kMaxShortStepPieces};
  uint32_t units_per_token;
  uint32_t counting_unit;        // counts tokens whose slot is outside
  uint32_t begins[kPieces - 1];  // first units of the second piece and on; all ones where there is none
  StepHeadTensor tensor[kPieces];
};

// A piece's part of StepShortMoreParams.
struct StepMoreTensor {
  int32_t weight_head;
  int32_t bias_head;
  const char *bias;  // NULL: none
};

// Of kShortMore.
template <bool IsNormed>
struct StepShortMoreParams : StepShortHeadParams<IsNormed> {
  bool is_after;
  StepMoreTensor more[StepShortHeadParams<IsNormed>::kPieces];
  StepLookups lookups;
};

// How blocks find their part of a tensor: step_long.cuh.
struct StepLongTensor : StepHeadTensor {
  int64_t batch;         // stride of the input
  int64_t batch_shift;   // what a batch adds to in_to_out; 0 in calls with a norm
  uint32_t first_block;  // of a group; all ones where there is no piece
  uint32_t heads;
  uint32_t rows;
  uint32_t threads;             // of a token, and their reciprocal, ceil(2^32 / threads)
  uint32_t threads_reciprocal;  // read where a block has several rows
  uint32_t runs;
  FastDivmod parts;
};

// Of kLong.
struct StepLongHeadParams : StepHeadParams {
  static constexpr uint32_t kPieces = kMaxStepPieces;
  uint32_t num_tokens;  // of a batch
  int32_t position_batch_bytes;
  uint32_t turns;
  FastDivmod blocks_of_group;
  FastDivmod by_pairs;
  StepLongTensor tensor[kPieces];
  StepLookups lookups;
};

// A thread that reads a row of the table prefetches another, and the first thread of a token a position, that far ahead.
struct StepLongTableParams : WithTable<StepLongHeadParams> {
  uint64_t rows_that_prefetch;
  int64_t row_bytes_ahead;
  int64_t position_bytes_ahead;
  uint32_t tokens_that_prefetch;  // 0 where positions are implicit
};

// ---- kShortRows and kLongRows ----

// Strides in bytes. A head has 2^lanes_log2 threads, the last of which may have no unit.
struct StepRowTensor {
  uint32_t flags;
  uint32_t begin;  // its first thread among those of a token; all ones where there is no tensor
  uint32_t heads;
  uint32_t lanes_log2;
  uint32_t units_per_head;
  RopeRowSide in;
  RopeRowSide out;       // data NULL: nothing is written to it
  char *cache;           // NULL: it has none
  uint32_t cache_index;  // 0 or 1, of StepSlots
  int32_t cache_head;
  int32_t weight_head;
  const char *weight;  // NULL: 1
  const char *bias;    // NULL: none
  int32_t bias_head;
  uint32_t rotary_units;
  int32_t window_begin;  // in bytes, as the next two
  int32_t window_size;
  int32_t to_high;  // from a rotary unit's first vector to its second
  float inverse_count;
};

struct StepRowParams {
  const char *positions;
  int32_t position_bytes;  // strides
  int32_t position_batch_bytes;
  bool has_positions;
  bool has_wide_positions;  // of 64 bits
  uint32_t pairs;
  StepSlots slots;
  NormForm<float> norm;  // inverse_count is that of the tensor
  uint64_t position_offset;
  float cos_scale;  // of computed angles; 1 for a table
  float sin_scale;  // negative for the transpose
  FaultWords fault;
  uint32_t num_tokens;
  FastDivmod parts;  // blocks of a token
  FastDivmod tokens_per_batch;
  bool has_one_batch;
  bool is_after;          // read with a norm over a token
  bool is_full_window;    // of all normed tensors: it is the head, whose units are a power of two
  int64_t page_bytes[2];  // of k's and v's cache
  int64_t entry_bytes[2];
  StepRowTensor tensor[3];
  AngleTable table;
  StepLookups lookups;
};

// Of a tensor, the strides of `scale` and `factor` in bytes. Scales are written for heads.
struct StepRowCodes {
  const char *scale;  // NULL: 1
  int32_t scale_head;
  StepHeadFactor factor;
  WrittenScales out_scales;
  WrittenScales cache_scales;
};

// Of kLongRows with codes, whose outputs and caches have the strides of what they hold.
struct StepRowCodeParams : StepRowParams {
  bool has_norm;
  bool is_of_token;       // the norm
  bool needs_magnitudes;  // scales are written, or amax is wanted
  bool scale_multiplies;
  bool rounds_before_codes;
  bool accumulates;  // outputs are added to
  StepRowCodes codes[3];
};

// ---- kGeneral ----

// Strides of sides and of the caches in bytes, those of scales and factors in elements.
struct StepGeneralTensor {
  RopeSide in;    // its channel 0, or where that would lie
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
  NormForm<double> norm;  // numbers that the arithmetic's type holds, or that are rounded to it
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
  uint32_t warps;    // of a block, that have a row in shared memory
  int64_t blocks_per_token;
  int64_t heads_per_block;
  bool is_turned;
  bool has_caches;
  bool is_after;
  bool is_of_token;
  bool scale_multiplies;
  bool rounds_before_codes;
  bool accumulates;  // outputs are added to
  CachePlaces places;
};

// ---- kNormGradient ----

// Beside a tensor's part of StepGeneralParams; strides of sums in elements.
struct NormGradientTensor {
  RopeSide in;  // what forward's norm was of
  RunSums weight_sums;
  RunSums bias_sums;
  int64_t tokens_of_run;
  int64_t end_item;   // its runs and those of the tensors before it
  int kept_channels;  // of sums of all heads, at a time
};

struct NormGradientParams : StepGeneralParams {
  rope_dtype_t dtype;  // of the data
  NormGradientTensor gradient[3];
  int64_t num_items;
  int counting_tensor;  // with whose tokens faults are counted
};

// ---- kNormGradientRows ----

// Beside a tensor's part of StepRowParams, whose `begin` is among the threads of a row.
struct NormGradientRowTensor {
  RopeRowSide in;         // what forward's norm was of
  StepHeadFactor factor;  // amax is not in use
  RunSums weight_sums;
};

// Tensors whose heads share blocks: norm_gradient_rows.cuh has a picture.
struct NormGradientGroup {
  uint32_t first_block;  // all ones where there is no group
  uint32_t first_tensor;
  uint32_t end_tensor;
  uint32_t row_threads;  // of a row
  uint32_t rows;
  uint32_t parts;
  uint32_t tokens_of_run;
  uint32_t runs;  // with tokens
  bool is_normed;
  bool is_turned;  // some tensor is
  bool counts_faults;
};

struct NormGradientRowParams : WithAngles<StepRowParams, kMaxLongStepPairs> {
  NormGradientRowTensor gradient[3];
  NormGradientGroup group[3];
  uint32_t usual_units;   // of each normed head, which is the window: a power of two, 4 at least; 0: elsewhere
  uint32_t weight_units;  // that there is room for the weights of: a block's threads, or 32, which are fewer, for each
                          // tensor of a group
  uint32_t shared_tokens_log2;  // tokens of a row whose angles are shared at a time
  uint32_t shared_angles;       // units that there is room for the angles of
  uint32_t shared_lost;         // room for whether tokens are lost
  bool has_table;
  bool is_flat;  // tokens of all batches are counted as those of one, but for positions and factors
  bool has_factors;
  bool is_of_token;
  bool accumulates;  // outputs are added to
};

}  // namespace rope
