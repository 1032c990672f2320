// SPDX-License-Identifier: Apache-2.0
// angles.cuh - the increments of computed angles
#pragma once

#include "core/math/rotation.hpp"

namespace rope {

// Lanes read different increments. Params lie in the constant cache, which would serve 32 different addresses one after
// another, so they are read through memory instead.
template <typename Word>
__device__ __forceinline__ const Word *through_memory(const Word *parameter) {
  asm("" : "+l"(parameter));
  return parameter;
}

template <typename Params>
__device__ __forceinline__ CosSin<float> compute_angle(const Params &params, uint64_t position, uint64_t increment) {
  const CosSin<float> angle = cos_sin_of_phase<float>(phase_of(position, increment));
  return {multiply_rounded(angle.cos, params.cos_scale), multiply_rounded(angle.sin, params.sin_scale)};
}

}  // namespace rope
