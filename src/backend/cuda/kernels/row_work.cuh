// SPDX-License-Identifier: Apache-2.0
// row_work.cuh - the token of a row of threads, and the unit of a thread
#pragma once

#include "backend/cuda/kernels/positions.cuh"
#include "backend/cuda/kernels/rope_params.hpp"

namespace rope {

// The token of a row of threads, numbered through all batches, and the part of it that this block has.
struct TokenPlace {
  uint32_t token;
  uint32_t part;
};

// Divides the block's number into a group of tokens and a part. The order of the two depends on is_part_slowest.
__device__ __forceinline__ TokenPlace find_token_place(const RopeRowGrid &params) {
  const DivmodResult block = params.grid.divmod(blockIdx.x);
  const uint32_t group = params.is_part_slowest ? block.remainder : block.quotient;
  return {group * blockDim.y + threadIdx.y, params.is_part_slowest ? block.quotient : block.remainder};
}

__device__ __forceinline__ BatchToken find_batch_token(const RopeRowGrid &params, uint32_t token) {
  BatchToken at = {0, token};
  if (!params.has_one_batch) {
    const DivmodResult inner = params.inner.divmod(token);
    at = {inner.quotient, inner.remainder};
    if (params.is_batch_fastest) at = {inner.remainder, inner.quotient};
  }
  return at;
}

// A token, and the index of a unit within it.
struct TokenUnit {
  uint32_t token;
  uint32_t unit;
};

// For a grid whose second axis counts the parts of a token.
__device__ __forceinline__ TokenUnit find_token_unit() {
  return {blockIdx.x * blockDim.y + threadIdx.y, blockIdx.y * blockDim.x + threadIdx.x};
}

// The head, or group of heads, of a unit, numbered through q, k and v; the tensor that it belongs to; and the unit's
// index within it.
struct HeadUnit {
  uint32_t head;
  uint32_t number;
  int tensor;
};

// The head is unit / units_per_head, by one multiplication.
template <typename Params>
__device__ __forceinline__ HeadUnit find_head_unit(const Params &params, uint32_t unit) {
  const uint32_t head = __umulhi(unit, params.head_reciprocal);
  return {head, unit - head * params.units_per_head,
          (head >= params.tensor_begins[0]) + (head >= params.tensor_begins[1])};
}

// The address of a head of a token, in the input or the output.
template <bool MayHaveBatches>
__device__ __forceinline__ char *address_of_head(const RopeRowGrid &params, const RopeRowSide &side, BatchToken at,
                                                 uint32_t head) {
  int64_t offset = static_cast<int64_t>(static_cast<int32_t>(at.token)) * side.token +
                   static_cast<int64_t>(static_cast<int32_t>(head)) * side.head;
  if (MayHaveBatches && !params.has_one_batch) offset += at.batch * side.batch;
  return side.data + offset;
}

}  // namespace rope
