// SPDX-License-Identifier: Apache-2.0
// rope_plan.hpp - chooses how a RoPE problem runs on a device
#pragma once

#include <stdint.h>

#include "core/problem/fixed_list.hpp"
#include "core/problem/rope_problem.hpp"
#include "plan/device_info.hpp"
#include "plan/rope_facts.hpp"
#include "plan/rope_kernels.hpp"
#include "plan/step_kernels.hpp"
#include "plan/step_pieces.hpp"

namespace rope {

// For RopeShape::kBlocks.
struct RopeBlocks {
  uint32_t units_per_block;     // at most the number of threads
  int64_t tokens_per_grid_row;  // row y of the grid starts with token y * tokens_per_grid_row
};

// For the shapes with rows of threads.
struct RopeRows {
  uint32_t tokens_ahead;  // distance, in tokens, at which positions and table rows are prefetched
  bool is_part_slowest;   // consecutive blocks have one part of consecutive tokens, instead of all parts of one token
};

// For StepKernel::kGeneral and kNormGradient.
struct StepBlocks {
  int row_channels;      // shared memory for a head, in channels
  uint32_t warps;        // per block; each has such memory
  int kept_channels[3];  // kNormGradient: channels of a tensor's heads summed at a time
  int64_t heads_per_block;
  int64_t blocks_per_token;
};

// Tensors whose heads share blocks of StepKernel::kNormGradientRows; kernels/norm_gradient_rows.cuh has a diagram.
struct GradientGroup {
  int first_tensor, end_tensor;
  uint32_t first_block;
  uint32_t row_threads;
  uint32_t rows;
  uint32_t parts;
  uint32_t tokens_of_run;
  uint32_t runs;  // number of runs that have tokens
};

// For StepKernel::kNormGradientRows.
struct StepGradients {
  FixedList<GradientGroup, 3> group;
  uint32_t first_thread[3];     // first thread of each tensor in a row; all ones if it has no part in the row
  bool is_flat;                 // tokens are numbered through all batches, except for positions and factors
  uint32_t weight_units;        // units for whose weights a block has memory
  uint32_t shared_tokens_log2;  // log2 of the tokens of a run whose angles a block holds at a time
  uint32_t shared_angles;       // units for whose angles a block has memory
  uint32_t shared_lost;         // tokens for which a block stores whether they are lost
};

// How a piece is distributed over threads, and how kLong and kLongWindow divide it; kernels/step_long.cuh and
// step_codes.cuh have diagrams.
struct StepPieceBlocks {
  uint32_t lanes_log2;  // log2 of the threads per head
  uint32_t rows;
  uint32_t parts;
  uint32_t runs;
  uint32_t first_block;  // first block of each group
};

// For the kernels of whole heads: StepKernel::kWarp to kLongWindow.
struct StepHeads {
  bool is_flat;           // tokens are numbered through all batches
  uint32_t units;         // units of a block of channels: a whole head, a window, or as many channels outside it
  uint32_t window_units;  // units of a block that are turned: the first ones, unless pieces.is_window_last
  int units_of_thread;
  uint32_t turns;
  bool prefetches;        // each turn of a block prefetches the heads of the next one; false in kLong without codes
  uint32_t angle_floats;  // of a token in shared memory, with the gaps between lanes
  uint32_t blocks_per_group;
  uint32_t tokens_ahead;  // distance, in tokens, at which positions and table rows are prefetched
  StepPieces pieces;
  StepPieceBlocks blocks[kMaxStepPieces];
};

// How a problem is divided on a GPU: into blocks (rope_catalogue.hpp has their shapes) and within blocks into threads,
// each with one unit of a token (rope_facts.hpp). A block has one of these:
// - a part of a token, which is divided into `blocks_per_token` blocks;
// - all units of `tokens_per_block` tokens, or one part of several tokens;
// - for kFlatTable, units of any tokens.
// With kConverted in place, units write channels that other units of their head read, so a block has whole heads.
struct RopePlan {
  int num_tasks;  // CPU: parts that may run concurrently

  RopeVariant variant;  // CUDA
  int vector_elements;
  RopeUnits units;
  uint32_t threads;      // per block, or per row of threads in it
  uint32_t thread_rows;  // per block, each with a token; 1 if blocks have no rows
  uint32_t blocks_per_token;
  uint32_t tokens_per_block;
  uint32_t shared_bytes;
  bool is_batch_fastest;  // with several batches, tokens with the same index are consecutive
  RopeBlocks blocks;
  RopeRows rows;
  uint32_t grid_x, grid_y;
  bool is_programmatic;  // programmatic dependent launch
  StepBlocks general;
  StepHeads heads;
  StepGradients gradients;
  StepVariant step;  // replaces `variant` if the problem has a step
};

// Bytes of q, k and v that are read and written, at most INT64_MAX.
int64_t moved_bytes(const RopeProblem &problem);

// Plans a non-empty problem. Returns NOT_SUPPORTED if no launch can hold it.
rope_status_t plan_rope(const char *function, const RopeProblem &problem, const DeviceInfo &device, RopePlan *plan);

}  // namespace rope
