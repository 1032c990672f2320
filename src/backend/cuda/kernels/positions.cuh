// SPDX-License-Identifier: Apache-2.0
// positions.cuh - the position of a token
#pragma once

#include "backend/cuda/kernels/addresses.cuh"
#include "backend/cuda/kernels/loaded_integer.cuh"
#include "backend/cuda/kernels/rope_params.hpp"

namespace rope {

// A batch and a token of it, or 0 and a token of a THD tensor.
struct BatchToken {
  int64_t batch;
  int64_t token;
};

// Loads a token's integer for a position axis.
__device__ __forceinline__ LoadedInteger load_integer(const TokenIntegers &source, BatchToken at, int axis) {
  int64_t offset = at.batch * source.batch_stride + at.token * source.token_stride;
  if (axis != 0) offset += axis * source.axis_stride;
  if (source.is_64_bit) {
    const uint2 words = reinterpret_cast<const uint2 *>(source.data)[offset];
    return {words.x, words.y};
  }
  return {reinterpret_cast<const uint32_t *>(source.data)[offset], 0};
}

// Loads the position of a token without position_offset; finish_position computes the number.
__device__ __forceinline__ LoadedInteger load_position(const RopePositionParams &params, BatchToken at, int axis = 0) {
  LoadedInteger position = as_loaded(static_cast<uint64_t>(at.token));
  if (params.positions.is_present) position = load_integer(params.positions, at, axis);
  if (params.start_positions.is_present) {
    const uint64_t index = extend(position, params.positions.is_64_bit || !params.positions.is_present);
    position =
        as_loaded(index + extend(load_integer(params.start_positions, at, axis), params.start_positions.is_64_bit));
  }
  return position;
}

// Extends the loaded position to 64 bits and adds position_offset.
__device__ __forceinline__ uint64_t finish_position(const RopePositionParams &params, LoadedInteger position) {
  return extend(position, !params.has_narrow_positions) + params.position_offset;
}

// The position of a token in short launches: first its address, then the number.
class ShortPosition {
 public:
  __device__ __forceinline__ ShortPosition(const RopeShortParams &params, uint32_t token)
      : address_(step(params.positions, token, params.position_bytes)), loaded_({token, 0}) {}

  __device__ __forceinline__ const char *address() const { return address_; }

  // Loads the position if is_turn is set. Without explicit positions, the token's index remains.
  __device__ __forceinline__ void load_if(bool is_turn, const RopeShortParams &params) {
    const uint32_t *words = reinterpret_cast<const uint32_t *>(address_);
    if (is_turn && params.has_positions) loaded_.low = words[0];
    if (is_turn && params.has_wide_positions) loaded_.high = words[1];
  }

  __device__ __forceinline__ uint64_t finish(const RopeShortParams &params) const {
    return extend(loaded_, params.has_wide_positions || !params.has_positions) + params.position_offset;
  }

 private:
  const char *address_;
  LoadedInteger loaded_;
};

}  // namespace rope
