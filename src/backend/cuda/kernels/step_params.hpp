// step_params.hpp - what a launch of a kernel of the step passes to it, by value
#pragma once

#include "backend/cuda/kernels/rope_params.hpp"
#include "core/math/norm.hpp"
#include "core/problem/step_problem.hpp"
#include "plan/step_kernels.hpp"

namespace rope {

// ---- kShort and kLong ----

// What is done with a tensor, as bits.
enum StepFlags : uint32_t {
  kIsTurned = 1,
  kIsNormed = 2,
  kHasWideWeight = 4,   // of F32, where the data have 16 bits
  kReadsOutside = 8,    // the channels around the window
  kWritesOutside = 16,  // to `out`
};

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
  uint32_t rotary_units;
  int32_t window_begin;  // in bytes, as the next two
  int32_t window_size;
  int32_t to_high;  // from a rotary unit's first vector to its second
  float inverse_count;
};

// Slots, of which `end` and later ones are outside.
struct StepSlots {
  bool has_caches;  // else nothing below is read
  const char *data;
  int32_t token_bytes;
  int32_t batch_bytes;
  bool is_64_bit;
  bool skips_slot_0;
  FastDivmod entries;  // of a page
  uint32_t end;
  uint32_t cached_tokens;  // of a batch
  int64_t page_bytes[2];   // of k's and v's cache
  int64_t entry_bytes[2];
};

struct StepRowParams {
  uint32_t num_tokens;
  FastDivmod parts;  // blocks of a token
  FastDivmod tokens_per_batch;
  bool has_one_batch;
  bool has_positions;
  bool has_wide_positions;  // of 64 bits
  bool is_full_window;      // of all normed tensors: it is the head, whose units are a power of two
  const char *positions;
  int32_t position_bytes;  // strides
  int32_t position_batch_bytes;
  StepRowTensor tensor[3];
  StepSlots slots;
  FaultWords fault;
  NormForm<float> norm;  // inverse_count is that of the tensor
  uint64_t position_offset;
  uint32_t pairs;
  float cos_scale;  // of computed angles; 1 for a table
  float sin_scale;  // negative for the transpose
  AngleTable table;
};

// For computed angles.
template <uint32_t kPairs>
struct StepAngleParams : StepRowParams {
  uint64_t increments[kPairs];
};

using StepShortAngleParams = StepAngleParams<kMaxShortStepPairs>;
using StepLongAngleParams = StepAngleParams<kMaxLongStepPairs>;

// ---- kGeneral ----

// Strides of sides and of the cache in bytes.
struct StepGeneralTensor {
  RopeSide in;
  RopeSide out;
  CacheView cache;
  ChannelNumbers weight;
  ChannelNumbers bias;
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
  CachePlaces places;
};

}  // namespace rope
