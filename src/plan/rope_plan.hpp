// rope_plan.hpp - chooses how a RoPE problem runs on a device
#pragma once

#include <stdint.h>

#include "core/problem/rope_problem.hpp"
#include "plan/device_info.hpp"
#include "plan/rope_kernels.hpp"

namespace rope {

// Work on a GPU is cut into units. A rotary unit is two vectors of `vector_elements` channels and as many pairs: with
// kHalf the vectors are those of the pairs' first and of their second channels, with kInterleaved they lie half a
// window apart, with kConverted side by side where channels are interleaved. A copy unit is one vector of channels
// outside the window, or two where rows of threads have a token each, and only tensors that are rotated out of place
// have any. A unit of the scattered kernels is a pair or a single channel, of kScatteredHeads heads. The units of a
// token are those of q's heads, k's heads, v's heads, each head's rotary units first. One thread takes one unit:
//
//   unit of the token   0   1   2   3   4   5   6   7 ...
//   head                0   0   0   0   1   1   1   1 ...     four units a head
//
// A block covers a part of one token's units (`blocks_per_token` of them make the token), or, where tokens are small,
// all units of `tokens_per_block` tokens, or, with `is_part_slowest` or where whole warps would leave many threads
// idle, the same part of several. Blocks of a token follow each other, or with `is_part_slowest` those of a part. On
// the grid's second axis the flat and the short kernels have parts, and those of long launches batches or, with
// `is_part_slowest`, parts. With kConverted in place a head's units write where others of them read, so a block has
// whole heads.
struct RopePlan {
  int num_tasks;  // CPU: parts that may run at the same time

  RopeKernel kernel;  // CUDA
  Pairing pairing;
  int vector_elements;
  uint32_t rotary_units_per_head;
  uint32_t units_per_head[3];
  uint32_t units_per_token;
  uint32_t threads;          // of a block, or of a row of them
  uint32_t thread_rows;      // of a block, each with a token; 1 where blocks have no rows
  uint32_t units_per_block;  // at most its threads
  uint32_t blocks_per_token;
  uint32_t tokens_per_block;
  uint32_t shared_bytes;        // cosines and sines of a block's tokens, and what each token is
  bool is_batch_fastest;        // of several batches, tokens of the same number follow each other
  int64_t tokens_per_grid_row;  // row y of the grid takes tokens from y * tokens_per_grid_row on
  uint32_t tokens_ahead;        // with rows of threads: so much further on positions and rows are prefetched
  bool is_part_slowest;  // where rows of threads have a token each: blocks of a part of all tokens follow each other
  uint32_t grid_x, grid_y;
  bool is_programmatic;  // launched with programmatic dependent launch
};

// Which kernels the calls of a descriptor may need.
Pairing pairing_of(int in_distance, int out_distance);
bool may_have(Pairing pairing, RopeKernel kernel);

// Bytes of q, k and v that are read and written, at most INT64_MAX.
int64_t moved_bytes(const RopeProblem &problem);

// NOT_SUPPORTED where a launch cannot hold the problem. The problem is not empty.
rope_status_t plan_rope(const char *function, const RopeProblem &problem, const DeviceInfo &device, RopePlan *plan);

}  // namespace rope
