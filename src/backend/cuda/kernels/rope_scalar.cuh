// SPDX-License-Identifier: Apache-2.0
// rope_scalar.cuh - the RoPE kernel for channels that no vector holds, in either style
//
// Example, in place: 20 heads of 6 channels. A head has 3 pairs, hence each group of 8 heads (kScalarHeads) 3 units,
// and a token 9.
//
//   unit                      0      1      2    │    3      4      5    │    6      7      8
//   heads                     0 … 7              │    8 … 15             │   16 … 19
//   channels, HALF           0, 3   1, 4   2, 5  │   0, 3   1, 4   2, 5  │   0, 3   1, 4   2, 5
//             INTERLEAVED    0, 1   2, 3   4, 5  │   0, 1   2, 3   4, 5  │   0, 1   2, 3   4, 5
//
// A thread has one unit: the two channels of one pair in each head of a group, which all have one angle. Out of place,
// one channel outside the window, in each head of a group, is a unit too; these units follow the pairs of their group.
// Neighbouring threads have neighbouring pairs. Grid, rows of threads and shared angles are those of rope_token.cuh.
//
// The kernel reads and writes the rotated window of every token and head once, one element at a time; out of place,
// also the channels around it. Each row of threads reads positions, increments, rows of a table and cu_seqlens as in
// rope_token.cuh.
#pragma once

#include "backend/cuda/kernels/kernel.hpp"
#include "backend/cuda/kernels/programmatic_launch.cuh"
#include "backend/cuda/kernels/row_work.cuh"
#include "backend/cuda/kernels/token_angles.cuh"
#include "backend/cuda/kernels/vector.cuh"
#include "plan/tuning.hpp"

namespace rope {

template <typename T, typename Angles>
__global__ void __launch_bounds__(kMaxRopeThreads)
    rope_scalar_kernel(const __grid_constant__ RopeScalarParams<AnglesParams<Angles, kAllLookups>> params) {
  begin_dependent_launch();
  extern __shared__ float4 shared[];
  const TokenPlace place = find_token_place(params);
  const BatchToken at = find_batch_token(params, place.token);
  const bool is_present = place.token < params.num_tokens;
  const uint32_t unit = place.part * blockDim.x + threadIdx.x;
  TokenAngles<Angles, kAllLookups> angles(params, at, is_present, unit == 0, reinterpret_cast<float *>(shared));
  const auto [group, number, which] = find_head_unit(params, unit);
  const RopeRowTensor &tensor = params.tensor[which];
  const ScalarChannels &channels = params.channels[which];
  const uint32_t head = (group - (which == 0 ? 0 : params.tensor_begins[which - 1])) * kScalarHeads;
  const bool is_active = is_present && unit < params.units_per_token;
  const bool is_rotary = number < params.rotary_units_per_head;
  // Rotary units come first, then one unit for each channel outside the window.
  uint32_t channel =
      params.rotary_offset + number * params.pair_step + __umulhi(number, params.run_reciprocal) * params.distance;
  if (!is_rotary) {
    channel = number - params.rotary_units_per_head;
    if (channel >= params.rotary_offset) channel += params.rotary_dim;
  }
  wait_for_previous_launch();

  // Load the channels of up to kScalarHeads heads, then obtain the angles.
  angles.begin();
  Words<sizeof(T)> x[kScalarHeads], y[kScalarHeads];
  const char *in =
      address_of_head<true>(params, tensor.in, at, head) + static_cast<int64_t>(channel) * channels.in_stride;
  const int64_t in_to_high = params.distance * channels.in_stride, out_to_high = params.distance * channels.out_stride;
  const uint32_t heads = !is_active ? 0 : channels.heads - head < kScalarHeads ? channels.heads - head : kScalarHeads;
#pragma unroll
  for (uint32_t i = 0; i < kScalarHeads; ++i) {
    if (i >= heads) continue;
    const char *low = in + static_cast<int64_t>(i) * tensor.in.head;
    x[i] = load_vector<Words<sizeof(T)>>(low);
    if (is_rotary) y[i] = load_vector<Words<sizeof(T)>>(low + in_to_high);
  }
  const TokenState state = angles.make(place.part == 0);

  // Rotate and store.
  if (state == kAbsent || (state == kUnrotated && params.is_in_place)) return;
  char *out = address_of_head<true>(params, tensor.out, at, head) + static_cast<int64_t>(channel) * channels.out_stride;
  CosSin<float> angle = {};
  if (is_rotary) angle = {angles.cos()[number], angles.sin()[number]};
#pragma unroll
  for (uint32_t i = 0; i < kScalarHeads; ++i) {
    if (i >= heads) continue;
    char *low = out + static_cast<int64_t>(i) * tensor.out.head;
    if (is_rotary && state == kRotated) {
      float of_x, of_y;
      to_floats<T, 1>(x[i], &of_x);
      to_floats<T, 1>(y[i], &of_y);
      const Pair<float> pair = rotate<float>({of_x, of_y}, angle, angle);
      x[i] = from_floats<T, 1>(&pair.x);
      y[i] = from_floats<T, 1>(&pair.y);
    }
    store_vector(low, x[i]);
    if (is_rotary) store_vector(low + out_to_high, y[i]);
  }
}

// The kernel, or NULL for vectors.
template <typename T>
Kernel find_rope_scalar_kernel(int vector_elements, const RopeVariant &variant) {
  if (vector_elements != 1) return {};
  return variant.angles == kComputedAngles ? kernel_of(rope_scalar_kernel<T, ComputedAngles>)
                                           : kernel_of(rope_scalar_kernel<T, TableAngles>);
}

}  // namespace rope
