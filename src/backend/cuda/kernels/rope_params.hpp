// rope_params.hpp - what a RoPE launch passes to its kernel, by value
#pragma once

#include "backend/cuda/kernels/divider.hpp"
#include "core/rope_problem.hpp"

namespace rope {

struct RopeKernelTensor {
  const char *in;
  int64_t in_stride[kNumAxes];  // in bytes
  Divider units_per_head;
  char *out;
  int64_t out_stride[kNumAxes];
};

// What every thread reads first comes first and close together: at decode size a launch waits for each line of it.
struct RopeKernelParams {
  Divider blocks_per_token;
  Divider units_per_token;
  Divider pairs;
  Divider tokens;             // of each batch, where there are several
  uint32_t tensor_begins[3];  // first unit of each tensor, among those of a token; all ones where there is none
  uint32_t tokens_per_block;
  uint32_t rotary_units_per_head;
  int rotary_offset;
  int rotary_dim;
  bool is_in_place[3];
  bool has_one_batch;
  bool has_positions;
  bool has_start_positions;
  bool has_narrow_positions;  // 32-bit positions and no start_positions
  float cos_scale;
  float sin_scale;  // negative for the transpose
  uint64_t position_offset;
  RopeKernelTensor tensor[3];
  TokenIntegers positions;
  TokenIntegers start_positions;
  int64_t num_tokens;  // of all batches
  int64_t tokens_per_grid_row;
  int64_t batches_per_grid_row;
  AngleTable table;
  uint64_t increments[kMaxPairs];
};

}  // namespace rope
