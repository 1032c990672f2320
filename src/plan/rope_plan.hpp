// rope_plan.hpp - chooses how a RoPE problem runs on a device
#pragma once

#include <stdint.h>

#include "core/problem/rope_problem.hpp"
#include "plan/device_info.hpp"
#include "plan/rope_facts.hpp"
#include "plan/rope_kernels.hpp"
#include "plan/step_kernels.hpp"
#include "plan/step_pieces.hpp"

namespace rope {

// RopeShape::kBlocks
struct RopeBlocks {
  uint32_t units_per_block;     // at most its threads
  int64_t tokens_per_grid_row;  // row y of the grid takes tokens from y * tokens_per_grid_row on
};

// Rows of threads
struct RopeRows {
  uint32_t tokens_ahead;  // so much further on positions and rows of a table are prefetched
  bool is_part_slowest;   // blocks of a part of all tokens follow each other, not those of a token
};

// StepKernel::kGeneral and kNormGradient
struct StepBlocks {
  int row_channels;      // room for a head in shared memory
  uint32_t warps;        // of a block, that have such a room
  int kept_channels[3];  // kNormGradient: of the sums of a tensor's heads, at a time
  int64_t heads_per_block;
  int64_t blocks_per_token;
};

// Tensors whose heads share blocks of StepKernel::kNormGradientRows: kernels/norm_gradient_rows.cuh has a picture.
struct GradientGroup {
  int first_tensor, end_tensor;
  uint32_t first_block;
  uint32_t row_threads;
  uint32_t rows;
  uint32_t parts;
  uint32_t tokens_of_run;
  uint32_t runs;  // with tokens
};

// StepKernel::kNormGradientRows
struct StepGradients {
  int num_groups;
  GradientGroup group[3];
  uint32_t first_thread[3];     // of a tensor in a row; all ones where it has no part
  bool is_flat;                 // tokens of all batches are counted as those of one, but for positions and factors
  uint32_t weight_units;        // that a block has room for the weights of
  uint32_t shared_tokens_log2;  // tokens of a run whose angles a block has at a time
  uint32_t shared_angles;       // units that a block has room for the angles of
  uint32_t shared_lost;         // tokens of which a block knows whether they are lost
};

// A piece's threads, and how StepKernel::kLong cuts it: kernels/step_long.cuh and step_codes.cuh have pictures.
struct StepPieceBlocks {
  uint32_t lanes_log2;  // threads of a head
  uint32_t rows;
  uint32_t parts;
  uint32_t runs;
  uint32_t first_block;  // of a group
};

// StepKernel::kWarp, kShort and kLong
struct StepHeads {
  bool is_flat;    // tokens of all batches are counted as those of one
  uint32_t units;  // of a block of channels: a whole head, a window, or as many channels beside it
  int units_of_thread;
  uint32_t turns;
  uint32_t blocks_per_group;
  uint32_t tokens_ahead;  // so much further on positions and rows of a table are prefetched
  StepPieces pieces;
  StepPieceBlocks blocks[kMaxStepPieces];
};

// How a problem is cut on a GPU: into blocks (rope_catalogue.hpp has their shapes), and these into threads, each of
// which takes one unit of a token (rope_facts.hpp). A block has a part of a token, `blocks_per_token` of which make the
// token, or all units of `tokens_per_block` tokens, or a part of several; of kFlatTable it has units of any tokens. With
// kConverted in place a head's units write where others of them read, so a block has whole heads.
struct RopePlan {
  int num_tasks;  // CPU: parts that may run at the same time

  RopeVariant variant;  // CUDA
  int vector_elements;
  RopeUnits units;
  uint32_t threads;      // of a block, or of a row of them
  uint32_t thread_rows;  // of a block, each with a token; 1 where blocks have no rows
  uint32_t blocks_per_token;
  uint32_t tokens_per_block;
  uint32_t shared_bytes;
  bool is_batch_fastest;  // of several batches, tokens of one number follow each other
  RopeBlocks blocks;
  RopeRows rows;
  uint32_t grid_x, grid_y;
  bool is_programmatic;  // launched with programmatic dependent launch
  StepBlocks general;
  StepHeads heads;
  StepGradients gradients;
  StepVariant step;  // in the place of `variant` where the problem has a step
};

// Bytes of q, k and v that are read and written, at most INT64_MAX.
int64_t moved_bytes(const RopeProblem &problem);

// NOT_SUPPORTED where a launch cannot hold the problem. The problem is not empty.
rope_status_t plan_rope(const char *function, const RopeProblem &problem, const DeviceInfo &device, RopePlan *plan);

}  // namespace rope
