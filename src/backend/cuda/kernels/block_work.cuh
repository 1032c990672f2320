// SPDX-License-Identifier: Apache-2.0
// block_work.cuh - the tokens of a block of the general kernel, and the unit of a thread
#pragma once

#include "backend/cuda/kernels/positions.cuh"
#include "backend/cuda/kernels/rope_params.hpp"

namespace rope {

// The tokens of a block, and this thread's token and unit.
struct BlockShare {
  uint32_t first_token;  // within the row of the grid
  uint32_t num_tokens;
  bool has_one_token;
  bool is_first_block;  // among the blocks that share the token
  DivmodResult place;   // quotient: token within the block; remainder: unit of the token
  bool is_active;
};

// A block has several whole tokens, or one part of a token; the thread's unit follows from threadIdx.x.
__device__ __forceinline__ BlockShare find_share(const RopeGeneralParams &params) {
  const DivmodResult block = params.blocks_per_token.divmod(blockIdx.x);
  BlockShare share;
  share.first_token = block.quotient * params.tokens_per_block;
  share.has_one_token = params.tokens_per_block == 1;
  share.is_first_block = block.remainder == 0;
  share.place = {0, block.remainder * params.units_per_block + threadIdx.x};
  if (!share.has_one_token) share.place = params.units_per_token.divmod(threadIdx.x);

  // The last block of a row of the grid may have fewer tokens, or none.
  share.num_tokens = params.tokens_per_block;
  if (!share.has_one_token || gridDim.y > 1) {
    int64_t tokens_left = params.num_tokens - blockIdx.y * params.tokens_per_grid_row;
    if (tokens_left > params.tokens_per_grid_row) tokens_left = params.tokens_per_grid_row;
    tokens_left -= share.first_token;
    if (tokens_left < share.num_tokens) share.num_tokens = tokens_left > 0 ? static_cast<uint32_t>(tokens_left) : 0;
  }
  share.is_active = share.place.quotient < share.num_tokens && share.place.remainder < params.units_per_token.divisor;
  return share;
}

// Locates a token of this row of the grid. The row begins at a batch or, if tokens are the outer axis, at a token.
__device__ __forceinline__ BatchToken find_token(const RopeGeneralParams &params, uint32_t in_row) {
  if (params.has_one_batch) return {0, blockIdx.y * params.tokens_per_grid_row + in_row};
  const DivmodResult result = params.inner.divmod(in_row);
  const int64_t outer = blockIdx.y * params.outer_per_grid_row + result.quotient;
  if (params.is_batch_fastest) return {result.remainder, outer};
  return {outer, result.remainder};
}

// A unit by its tensor and head.
struct Unit {
  int tensor;
  uint32_t head;
  uint32_t number;  // within its head
  bool is_rotary;
};

// Finds a unit from its index within the token.
__device__ __forceinline__ Unit find_unit(const RopeGeneralParams &params, uint32_t unit_of_token) {
  const int which = (unit_of_token >= params.tensor_begins[1]) + (unit_of_token >= params.tensor_begins[2]);
  const DivmodResult head = params.tensor[which].units_per_head.divmod(unit_of_token - params.tensor_begins[which]);
  return {which, head.quotient, head.remainder, head.remainder < params.rotary_units_per_head};
}

// The first channel of a copy unit. These units are numbered below the window first, then above it.
template <int V>
__device__ __forceinline__ int copied_channel(const RopeGeneralParams &params, const Unit &unit) {
  const int channel = static_cast<int>(unit.number - params.rotary_units_per_head) * V;
  return channel >= params.rotary_offset ? channel + params.rotary_dim : channel;
}

// The address of a head's channel in the input or the output of a tensor.
template <typename T, int V>
__device__ __forceinline__ char *address_of_channel(const RopeGeneralParams &params, const RopeSide &side,
                                                    uint32_t head, BatchToken at, int channel) {
  int64_t offset = at.token * side.stride[kToken] + head * side.stride[kHead];
  if (!params.has_one_batch) offset += at.batch * side.stride[kBatch];
  return side.data + offset + channel * (V == 1 ? side.stride[kChannel] : static_cast<int64_t>(sizeof(T)));
}

}  // namespace rope
