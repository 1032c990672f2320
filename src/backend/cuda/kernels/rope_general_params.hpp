// rope_general_params.hpp - what the general RoPE kernel and the table kernel take, by value
#pragma once

#include "backend/cuda/kernels/rope_params.hpp"

namespace rope {

struct RopeGeneralParams : RopeKernelParams {
  double scale;           // of computed angles and of `angles`; cos_scale and sin_scale are not in use
  Divider units_per_run;  // units until the channels of kHalf, or of the side of kConverted that has them, jump a block
  Divider table_width;
  Divider table_distance;  // between the columns of a pair, where a table has one for each channel
  uint32_t units_per_block;
  int in_distance;
  int out_distance;
  int num_axes;
  uint32_t used_axes;
  AngleSource angles;
  bool is_transposed;
  bool has_token_info;
  Sequences sequences;
  FaultWords fault;
  uint8_t pair_axis[kMaxPairs];
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
