// SPDX-License-Identifier: Apache-2.0
// swiglu_code_groups.cuh - the SwiGLU kernels of a matrix of 16 bits whose out has codes of E4M3, with a static scale
// or a written one for each group of 128 channels, and nothing else
//
// A lane has kVectors neighbouring vectors of V elements, so that a group has 32, 16 or 8 neighbouring lanes. A short
// launch, as in decoding, is a chain of latencies: with four elements a lane has half of the arithmetic of eight, and
// the largest magnitude of a warp is one instruction. Instructions limit a long one: with sixteen elements a lane has
// half as many for the scale, and stores 16 bytes.
//
// Reads two elements for every code that it writes, and with HasScales writes a scale for each group.
#pragma once

#include "backend/cuda/kernels/addresses.cuh"
#include "backend/cuda/kernels/codes.cuh"
#include "backend/cuda/kernels/kernel.hpp"
#include "backend/cuda/kernels/programmatic_launch.cuh"
#include "backend/cuda/kernels/swiglu_params.hpp"
#include "backend/cuda/kernels/swiglu_vector.cuh"
#include "backend/cuda/kernels/vector.cuh"
#include "plan/tuning.hpp"

namespace rope {

template <typename T, bool HasScales, int V, int kVectors>
__global__ void __launch_bounds__(kMaxSwigluGroupThreads)
    swiglu_code_group_kernel(const __grid_constant__ SwigluCodeGroupParams params) {
  static_assert(sizeof(T) == 2, "");
  if constexpr (kVectors > 1 && !kHasFurtherCodeKernels) __trap();
  constexpr int kElements = kVectors * V;
  constexpr int32_t kLanes = kSwigluCodeGroup / kElements, kLanesLog2 = kLanes == 32 ? 5 : kLanes == 16 ? 4 : 3;
  static_assert(kLanes == 1 << kLanesLog2, "");
  const uint32_t index = blockIdx.x * blockDim.x + threadIdx.x, lane = threadIdx.x % kLanes;
  const DivmodResult at = params.groups_per_row.divmod(index / kLanes);
  const uint32_t row = at.quotient, group = at.remainder;
  const uint64_t channel = uint64_t{group} * kSwigluCodeGroup + lane * kElements;
  const char *const gate_address = params.in[kGate] + row * params.in_row[kGate] + channel * sizeof(T);
  const char *const up_address = params.in[kUp] + row * params.in_row[kUp] + channel * sizeof(T);
  char *const out = params.out + row * params.out_row + channel;
  char *scale_address = params.scales;
  if (HasScales) {
    scale_address += row * params.scales_row + group / 4 * params.scales_four + group % 4 * params.scales_group;
  }
  // The wait depends on addresses, so that the compiler computes them before it. That of a scale may be odd.
  wait_for_previous_launch_with(unused_bits(gate_address) | unused_bits(up_address) | unused_bits(out));
  const bool is_there = index < params.num_threads;  // the same for all lanes of a group
  if ((!HasScales || kLanes == 32) && !is_there) return;
  float factor = 1;
  if (!HasScales && scale_address != nullptr) factor = *reinterpret_cast<const float *>(scale_address);
  Vector<T, V> gates[kVectors] = {}, ups[kVectors] = {};
  if (is_there) {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      gates[i] = load_vector<Vector<T, V>>(gate_address + i * sizeof gates[i]);
      ups[i] = load_vector<Vector<T, V>>(up_address + i * sizeof ups[i]);
    }
  }
  begin_dependent_launch();
  float x[kVectors][1][V], largest = 0;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    float value[2][V];
    to_floats<T, V>(gates[i], value[kGate]);
    to_floats<T, V>(ups[i], value[kUp]);
    compute_vector<true>(value, Form<float>{}, 1.0f, false, x[i]);
    if (params.rounds_first) to_floats<T, V>(from_floats<T, V>(x[i][kOut]), x[i][kOut]);
#pragma unroll
    for (int j = 0; j < V; ++j) largest = max_magnitude(largest, x[i][kOut][j]);
  }
  uint32_t scale = 0;
  if constexpr (HasScales) {
    const uint32_t magnitude =
        kLanes == 32 ? max_over_warp(bits_of(largest)) : max_over_lanes(bits_of(largest), kLanesLog2);
    const GroupScale of_group =
        scale_of_group<Float8E4M3>(magnitude < params.floor ? params.floor : magnitude, params.form);
    scale = of_group.bits;
    factor = of_group.factor;
  } else {
    factor = code_factor(factor, params.scale_multiplies);
  }
  if (!is_there) return;
  Words<kElements> codes = {};
#pragma unroll
  for (int i = 0; i < kElements; i += 2) {
    const float *const pair = &x[i / V][kOut][i % V];
    codes.word[i / 4] |= join_codes<Float8E4M3>(multiply_rounded(pair[0], factor), multiply_rounded(pair[1], factor))
                         << (i % 4 * 8);
  }
  store_vector(out, codes);
  if (!HasScales || lane != 0) return;
  if (params.form == ScaleForm::kE8M0) {
    *reinterpret_cast<uint8_t *>(scale_address) = static_cast<uint8_t>(scale);
  } else {
    *reinterpret_cast<uint32_t *>(scale_address) = scale;
  }
}

template <typename T>
Kernel find_swiglu_code_groups_kernel(int vector_elements, SwigluVariant variant) {
  if (variant.is_alternating || variant.formula != SwigluFormula::kPlain) return {};
  const SwigluWork work = variant.work;
  const bool has_scales = work == kSwigluScaledCodeGroups;
  if (vector_elements == 4 && has_scales) {
    return kernel_of(swiglu_code_group_kernel<T, true, 4, 1>);
  }
  if (vector_elements != 8) return {};
  return has_scales                      ? kernel_of(swiglu_code_group_kernel<T, true, 8, 1>)
         : work == kSwigluWideCodeGroups ? kernel_of(swiglu_code_group_kernel<T, true, 8, 2>)
                                         : kernel_of(swiglu_code_group_kernel<T, false, 8, 1>);
}

}  // namespace rope
