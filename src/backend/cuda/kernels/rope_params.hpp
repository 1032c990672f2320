// rope_params.hpp - what a RoPE launch passes to its kernel, by value
#pragma once

#include "backend/cuda/kernels/divider.hpp"
#include "core/rope_problem.hpp"

namespace rope {

struct RopeKernelTensor {
  const char *in;
  char *out;
  int64_t in_stride[kNumAxes];  // in bytes
  int64_t out_stride[kNumAxes];
  Divider units_per_head;
  uint32_t first_unit;  // among the units of a token; all ones: no such tensor
  bool is_in_place;
};

struct RopeKernelParams {
  RopeKernelTensor tensor[3];
  Divider units_per_token;
  Divider blocks_per_token;
  Divider pairs;
  Divider tokens_per_batch;  // where has_narrow_tokens
  int64_t tokens;            // of each batch
  int64_t num_tokens;        // of all
  int64_t tokens_per_grid_row;
  uint32_t tokens_per_block;
  uint32_t rotary_units_per_head;
  TokenIntegers positions;
  TokenIntegers start_positions;
  uint64_t position_offset;
  AngleTable table;
  int rotary_offset;
  int rotary_dim;
  float cos_scale;
  float sin_scale;  // negative for the transpose
  bool has_one_batch;
  bool has_narrow_tokens;  // num_tokens fits 32 bits
  bool has_table;
  uint64_t increments[kMaxPairs];
};

}  // namespace rope
