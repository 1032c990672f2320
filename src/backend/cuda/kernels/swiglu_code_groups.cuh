// SPDX-License-Identifier: Apache-2.0
// swiglu_code_groups.cuh - the SwiGLU kernels for short launches of a matrix of 16 bits whose out has codes of E4M3,
// with a static scale or a written one for each group of 128 channels, and nothing else
//
// A warp has 128 channels, and each lane four. Such a launch, as in decoding, is a chain of latencies: against eight
// channels in a lane it has half of the arithmetic, and the largest magnitude of a warp is one instruction.
//
// Reads two elements for every code that it writes, and with HasScales writes a scale for each group.
#pragma once

#include "backend/cuda/kernels/addresses.cuh"
#include "backend/cuda/kernels/codes.cuh"
#include "backend/cuda/kernels/programmatic_launch.cuh"
#include "backend/cuda/kernels/swiglu_params.hpp"
#include "backend/cuda/kernels/swiglu_vector.cuh"
#include "backend/cuda/kernels/vector.cuh"
#include "plan/tuning.hpp"

namespace rope {

template <typename T, bool HasScales>
__global__ void __launch_bounds__(kMaxSwigluGroupThreads)
    swiglu_code_group_kernel(const __grid_constant__ SwigluCodeGroupParams params) {
  static_assert(sizeof(T) == 2, "");
  constexpr int V = 4;
  constexpr int32_t kLanes = kSwigluCodeGroup / V;
  const uint32_t index = blockIdx.x * blockDim.x + threadIdx.x, lane = threadIdx.x % kLanes;
  const DivmodResult at = params.groups_per_row.divmod(index / kLanes);
  const uint32_t row = at.quotient, group = at.remainder;
  const uint64_t channel = uint64_t{group} * kSwigluCodeGroup + lane * V;
  const char *const gate_address = params.in[kGate] + row * params.in_row[kGate] + channel * sizeof(T);
  const char *const up_address = params.in[kUp] + row * params.in_row[kUp] + channel * sizeof(T);
  char *const out = params.out + row * params.out_row + channel;
  char *scale_address = params.scales;
  if (HasScales) {
    scale_address += row * params.scales_row + group / 4 * params.scales_four + group % 4 * params.scales_group;
  }
  // The wait depends on addresses, so that the compiler computes them before it. That of a scale may be odd.
  wait_for_previous_launch_with(unused_bits(gate_address) | unused_bits(up_address) | unused_bits(out));
  if (index >= params.num_threads) return;  // whole warps
  float factor = 1;
  if (!HasScales && scale_address != nullptr) factor = *reinterpret_cast<const float *>(scale_address);
  const auto gate = load_vector<Vector<T, V>>(gate_address), up = load_vector<Vector<T, V>>(up_address);
  begin_dependent_launch();
  float value[2][V], result[1][V];
  to_floats<T, V>(gate, value[kGate]);
  to_floats<T, V>(up, value[kUp]);
  compute_vector<true>(value, Form<float>{}, 1.0f, false, result);
  float(&x)[V] = result[kOut];
  if (params.rounds_first) to_floats<T, V>(from_floats<T, V>(x), x);
  uint32_t scale = 0;
  if constexpr (HasScales) {
    float largest = 0;
#pragma unroll
    for (int i = 0; i < V; ++i) largest = max_magnitude(largest, x[i]);
    const uint32_t magnitude = max_over_warp(bits_of(largest));
    const GroupScale of_group =
        scale_of_group<Float8E4M3>(magnitude < params.floor ? params.floor : magnitude, params.form);
    scale = of_group.bits;
    factor = of_group.factor;
  } else {
    factor = code_factor(factor, params.scale_multiplies);
  }
#pragma unroll
  for (int i = 0; i < V; ++i) x[i] = multiply_rounded(x[i], factor);
  const Words<4> codes = {{join_codes<Float8E4M3>(x[0], x[1]) | join_codes<Float8E4M3>(x[2], x[3]) << 16}};
  store_vector(out, codes);
  if (!HasScales || lane != 0) return;
  if (params.form == ScaleForm::kE8M0) {
    *reinterpret_cast<uint8_t *>(scale_address) = static_cast<uint8_t>(scale);
  } else {
    *reinterpret_cast<uint32_t *>(scale_address) = scale;
  }
}

}  // namespace rope
