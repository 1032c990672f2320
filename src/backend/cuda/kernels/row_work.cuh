// row_work.cuh - which token a row of threads has, and which unit of it a thread
#pragma once

#include "backend/cuda/kernels/positions.cuh"
#include "backend/cuda/kernels/rope_params.hpp"

namespace rope {

// Which token a row of threads has, and which part of it the block.
struct TokenPlace {
  BatchToken at;
  bool is_present;
  uint32_t part;
};

template <bool MayHaveBatches>
__device__ __forceinline__ TokenPlace find_token_place(const RopeTokenParams &params) {
  const DivmodResult block = params.grid.divmod(blockIdx.x);
  const uint32_t rows = params.is_part_slowest ? block.remainder : block.quotient;
  const uint32_t token = rows * blockDim.y + threadIdx.y;
  TokenPlace place = {{0, token}, token < params.num_tokens, block.remainder};
  if (params.is_part_slowest) place.part = block.quotient;
  if (MayHaveBatches && !params.has_one_batch) {
    const DivmodResult inner = params.inner.divmod(token);
    place.at = {inner.quotient, inner.remainder};
    if (params.is_batch_fastest) place.at = {inner.remainder, inner.quotient};
  }
  return place;
}

// A token, and the number of a unit among those of the token.
struct TokenUnit {
  uint32_t token;
  uint32_t unit;
};

// For a grid whose second axis has the parts of a token.
__device__ __forceinline__ TokenUnit find_token_unit() {
  return {blockIdx.x * blockDim.y + threadIdx.y, blockIdx.y * blockDim.x + threadIdx.x};
}

// The head, or group of heads, of a unit, counted through q, k and v, which of these it is in, and the unit's number
// in it.
struct HeadUnit {
  uint32_t head;
  uint32_t number;
  int tensor;
};

template <typename Params>
__device__ __forceinline__ HeadUnit find_head_unit(const Params &params, uint32_t unit) {
  const uint32_t head = __umulhi(unit, params.head_reciprocal);
  return {head, unit - head * params.units_per_head,
          (head >= params.tensor_begins[0]) + (head >= params.tensor_begins[1])};
}

template <bool MayHaveBatches>
__device__ __forceinline__ int64_t offset_of_head(const RopeTokenParams &params, BatchToken at, uint32_t head,
                                                  int32_t token_stride, int32_t head_stride, int64_t batch_stride) {
  int64_t offset = static_cast<int64_t>(static_cast<int32_t>(at.token)) * token_stride +
                   static_cast<int64_t>(static_cast<int32_t>(head)) * head_stride;
  if (MayHaveBatches && !params.has_one_batch) offset += at.batch * batch_stride;
  return offset;
}

}  // namespace rope
