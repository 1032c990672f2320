// SPDX-License-Identifier: Apache-2.0
// step_short.cuh - the step's kernels for short launches of whole heads, as in decoding
//
// The picture has 32 + 8 + 8 heads of 128 channels, 16 bits, vectors of 8 bytes: 16 units a head, 768 a token, six
// parts of 128 threads.
//
//   blockIdx.y                             0                                  │      1      │ …  5
//   threadIdx.x    0        1      …      15     │   16     …    │ …  127     │   0   … 127 │
//   head           0                             │    1          │      7     │   8   …  15 │    …  47
//
//   grid x   tokens
//   grid y   parts of a token: unit blockIdx.y * blockDim.x + threadIdx.x
//
// Angles, by the first line that fits:
//   own      each thread reads those of its pairs from the table, in calls without a norm; with codes only if IsWarp
//   IsWarp   a warp computes all angles of its token: lane l those of pairs l and l + 32
//   else     a block finds them: thread x that of pair x. It has at least as many threads as a head has pairs
//   shared   cos[kMaxShortStepPairs], then sin[kMaxShortStepPairs], of each warp or of the block; none for own angles
//
// Each head is read once and written once to each of its destinations. Each thread of a head reads its own weights,
// each thread of a cached head a slot. With own angles each thread reads its token's position and the entries of its
// pairs; otherwise each warp or block reads the position and, from a table, the row.
//
// Like the launches of rope_short.cuh, such a launch is a chain of latencies. Therefore it has few parameters and
// straight code, and with programmatic launch it computes all addresses before it waits for the previous launch.
#pragma once

#include <type_traits>

#include "backend/cuda/kernels/addresses.cuh"
#include "backend/cuda/kernels/angles.cuh"
#include "backend/cuda/kernels/faults.cuh"
#include "backend/cuda/kernels/kernel.hpp"
#include "backend/cuda/kernels/occupancy.cuh"
#include "backend/cuda/kernels/programmatic_launch.cuh"
#include "backend/cuda/kernels/step_heads.cuh"
#include "plan/tuning.hpp"

namespace rope {

// All kernels except norms with codes take fewer registers without a bound; 0 means no bound.
constexpr int min_short_blocks(bool is_bounded) {
  return is_bounded ? min_blocks_per_multiprocessor(kStepShortResidentThreads, kMaxStepThreads) : 0;
}

// When a launch releases the next one.
enum class StepRelease {
  kAtOnce,
  kBeforeWait,  // just before the wait for the previous launch
  kAfterLoads,
  kAfterAngles
};

// tests/bench/TUNING.md has the measurements.
ROPE_HOST_DEVICE constexpr StepRelease release_of(bool is_warp, bool is_normed, bool has_codes, StepAngles angles) {
  if (angles == StepAngles::kNone) return is_normed ? StepRelease::kAtOnce : StepRelease::kAfterLoads;
  if (is_normed) return is_warp ? StepRelease::kAfterAngles : StepRelease::kAfterLoads;
  if (angles == StepAngles::kTable) return is_warp || !has_codes ? StepRelease::kBeforeWait : StepRelease::kAtOnce;
  if (is_warp) return has_codes ? StepRelease::kAfterAngles : StepRelease::kAfterLoads;
  return has_codes ? StepRelease::kAtOnce : StepRelease::kBeforeWait;
}

template <typename T, int V, bool IsWarp, bool IsInterleaved, bool IsNormed, bool HasCodes, StepAngles kAngles>
__global__ void __launch_bounds__(kMaxStepThreads, min_short_blocks(IsNormed &&HasCodes)) step_short_kernel(
    const __grid_constant__ StepShortParams<StepShortHeadParams<IsNormed>, HasCodes, kAngles> params) {
  constexpr int32_t kVectorBytes = V * static_cast<int32_t>(sizeof(T));
  constexpr bool kIsTurned = kAngles != StepAngles::kNone, kComputes = kAngles == StepAngles::kComputed,
                 kHasTable = kAngles == StepAngles::kTable,
                 kHasOwnAngles = kHasTable && !IsNormed && (IsWarp || !HasCodes);
  static_assert(!kHasTable || kHasOwnAngles || !IsWarp, "a warp has two pairs for each lane");
  constexpr uint32_t kLanes = 32, kOfSharer = IsWarp ? kMaxShortStepPairs / kLanes : 1;
  constexpr uint32_t kUsualUnits = 128 / (2 * V);
  constexpr UnitAs kAsCodes = HasCodes ? UnitAs::kCodes : UnitAs::kWords;
  constexpr StepRelease kRelease = release_of(IsWarp, IsNormed, HasCodes, kAngles);
  if (kRelease == StepRelease::kAtOnce) begin_dependent_launch();
  extern __shared__ float4 shared[];
  float *const cos = reinterpret_cast<float *>(shared) + (IsWarp ? threadIdx.x / kLanes * (2 * kMaxShortStepPairs) : 0);
  const uint32_t sharer = IsWarp ? threadIdx.x % kLanes : threadIdx.x;

  const uint32_t token = blockIdx.x, unit = blockIdx.y * blockDim.x + threadIdx.x;
  const uint32_t which = find_piece<IsNormed>(params, unit);
  const StepHeadTensor &tensor = params.tensor[which];
  const StepUnitOf<IsNormed> of_unit(params, tensor, unit);
  const uint32_t head = of_unit.head, number = of_unit.number, place = of_unit.place;
  const bool is_active = unit < params.units_per_token && number < of_unit.units, has_cache = tensor.cache != nullptr;
  const char *const in = step(step(step(tensor.in, token, tensor.in_token), head, tensor.head), place, kVectorBytes);
  char *out = of_unit.find_out(tensor, in, token);
  int32_t cache_unit = kVectorBytes;
  const char *scale_address = nullptr;
  if constexpr (HasCodes) {
    const StepHeadCodes &of_tensor = params.codes[which];
    cache_unit = of_tensor.cache_unit;
    scale_address = step(of_tensor.scale, head, of_tensor.scale_head);
    if ((tensor.flags & kHasCodeOut) != 0) {
      out = const_cast<char *>(
          step(step(step(of_tensor.out, token, of_tensor.out_token), head, of_tensor.out_head), place, V));
    }
  }
  char *const cache = const_cast<char *>(step(step(tensor.cache, head, tensor.cache_head), place, cache_unit));
  const char *const position_address = step(params.positions, token, params.position_bytes);
  const char *const slot_address = step(params.slots.data, token, params.slots.token_bytes);
  const char *const weight = step(tensor.weight, number, kVectorBytes);
  // Increments behind the last pair's are never read.
  uint64_t increment[kOfSharer];
  const bool has_pair = IsWarp || sharer < params.pairs;
  if constexpr (kComputes) {
#pragma unroll
    for (uint32_t i = 0; has_pair && i < kOfSharer; ++i) {
      increment[i] = (through_memory(params.increments) + sharer)[i * kLanes];
    }
  }
  // The wait depends on all addresses and on parameters of tables and scales. Otherwise the compiler would compute and
  // read them behind it, and the first read of a parameter takes as long as a read of memory. table_dtype is in the
  // addresses of columns.
  TablePlace columns;
  uint32_t bits = 0;
  if constexpr (kHasOwnAngles) {
    columns = TablePlace(params, 0, number * Runs<V, IsInterleaved>::kLength);
    bits = unused_bits(columns.cos) | unused_bits(columns.sin) | (static_cast<uint32_t>(params.row_bytes) & 1u) |
           (static_cast<uint32_t>(params.rows >> 32) & 0x80000000u);
  }
  if constexpr (HasCodes) bits |= unused_bits(scale_address) | (params.scale_multiplies & 0x80000000u);
  if (kRelease == StepRelease::kBeforeWait) begin_dependent_launch();
  wait_for_previous_launch_with(bits | unused_bits(in) | unused_bits(out) | unused_bits(position_address) |
                                unused_bits(slot_address) | unused_bits(weight) | unused_bits(cache));

  // All loads begin before the first result is needed, so that their latencies overlap.
  LoadedInteger position = {token & params.implicit_mask, 0}, slot = kNoSlot;
  if (kIsTurned && (kHasOwnAngles || has_pair) && params.has_positions) {
    position = load_step_integer(position_address, params.has_wide_positions);
  }
  if (has_cache && token < params.slots.cached_tokens) slot = load_step_integer(slot_address, params.slots.is_64_bit);
  const bool as_codes = HasCodes && (tensor.flags & kHasCodes) != 0;
  float factor = 1.0f;
  if constexpr (HasCodes) {
    if (is_active && params.codes[which].scale != nullptr) factor = *reinterpret_cast<const float *>(scale_address);
  }
  Vector<T, V> low = {}, high = {};
  OwnWeights<T, V> weights = {{}, {}, tensor.weight_offset};
  if (is_active) {
    low = load_vector<Vector<T, V>>(in);
    high = load_vector<Vector<T, V>>(in + params.to_high);
    if (IsNormed && tensor.weight != nullptr) {
      weights.low = load_vector<Vector<T, V>>(weight);
      weights.high = load_vector<Vector<T, V>>(weight + params.to_high);
    }
  }
  if (kRelease == StepRelease::kAfterLoads) begin_dependent_launch();

  const bool is_changed = (tensor.flags & kIsChanged) != 0;
  bool is_lost = false;
  std::conditional_t<kHasOwnAngles, OwnAngles<V, IsInterleaved>, SharedAngles<V, IsInterleaved>> angles;
  if constexpr (kIsTurned) {
    const uint64_t index = finish_step_position(params, position);
    if constexpr (kHasTable) {
      is_lost = (kHasOwnAngles || has_pair) && index >= params.rows;
      if (is_lost && unit == 0) count_fault(params.fault, token);
    }
    const auto row = static_cast<uint32_t>(index);
    if constexpr (kHasOwnAngles) {
      if (is_active && is_changed && !is_lost) angles.load(params, columns, row);
    } else {
      CosSin<float> angle[kOfSharer];
#pragma unroll
      for (uint32_t i = 0; i < kOfSharer; ++i) {
        if constexpr (kComputes) {
          if (has_pair) angle[i] = compute_angle(params, index, increment[i]);
        } else if (has_pair && !is_lost) {
          angle[i] = TablePlace(params, row, sharer + i * kLanes).load(params);
        }
      }
#pragma unroll
      for (uint32_t i = 0; has_pair && i < kOfSharer; ++i) {
        cos[sharer + i * kLanes] = angle[i].cos;
        cos[sharer + i * kLanes + kMaxShortStepPairs] = angle[i].sin;
      }
      angles = {cos + decltype(angles)::first_of(number), params.pairs, kMaxShortStepPairs};
    }
  }
  if constexpr (HasCodes) factor = code_factor(factor, params.scale_multiplies != 0);
  float inverse = 0.0f;
  if constexpr (IsNormed) {
    const float sum =
        sum_over_lanes<kUsualUnits>(params, number, sum_of_squares_in<T, V>(low), sum_of_squares_in<T, V>(high));
    inverse = inverse_norm(params.norm, sum);
  }
  if constexpr (kIsTurned && !kHasOwnAngles && IsWarp) __syncwarp();
  // The barrier also tells every thread whether the token is lost.
  if constexpr (kIsTurned && !kHasOwnAngles && !IsWarp) is_lost = __syncthreads_or(is_lost) != 0;
  if (kRelease == StepRelease::kAfterAngles) begin_dependent_launch();
  if (!is_active) return;
  const bool is_turned = kIsTurned && !is_lost && is_changed;
  const auto change_as = [&](auto may_round, auto as) {
    change_unit<T, V, IsInterleaved, IsNormed, decltype(may_round)::value, decltype(as)::value>(
        params.norm, inverse, weights, is_changed, is_turned, angles, factor, &low, &high);
  };
  const auto change = [&](auto as) {
    if (IsNormed && params.rounds) {
      change_as(std::true_type(), as);
    } else {
      change_as(std::false_type(), as);
    }
  };
  if (as_codes) {
    change(std::integral_constant<UnitAs, kAsCodes>());
  } else if ((IsNormed || kIsTurned) && is_changed) {
    change(std::integral_constant<UnitAs, UnitAs::kWords>());
  }
  if ((tensor.flags & kHasOut) != 0) store_unit<HasCodes>(params, as_codes, out, low, high);
  if (has_cache && store_cached<HasCodes>(params, tensor, cache, slot, as_codes, low, high) &&
      unit == params.counting_unit) {
    count_fault(params.fault, token);
  }
}

template <typename T, bool IsWarp, bool IsInterleaved, bool IsNormed, bool HasCodes>
Kernel find_step_short_kernel(StepAngles angles) {
  constexpr int V = kShortStepVectorBytes / static_cast<int>(sizeof(T));
  constexpr bool kMayBeWarpOfTable = IsWarp && HasCodes && !IsNormed;  // plan_short_heads selects no others
#define ROPE_STEP_KERNEL(is_warp, is_interleaved, angles) \
  kernel_of(step_short_kernel<T, V, is_warp, is_interleaved, IsNormed, HasCodes, StepAngles::angles>)
  return angles == StepAngles::kComputed ? ROPE_STEP_KERNEL(IsWarp, IsInterleaved, kComputed)
         : angles == StepAngles::kTable  ? ROPE_STEP_KERNEL(kMayBeWarpOfTable, IsInterleaved, kTable)
                                         : ROPE_STEP_KERNEL(true, false, kNone);
#undef ROPE_STEP_KERNEL
}

template <typename T, bool IsInterleaved, bool IsNormed>
Kernel find_step_short_kernel(const StepVariant &variant) {
  const bool is_warp = variant.kernel == StepKernel::kWarp;
  if constexpr (kMayHaveCodes<T>) {
    constexpr bool kMayBeWarp = !IsNormed;  // plan_short_heads selects no others
    if (variant.has_codes()) {
      return is_warp ? find_step_short_kernel<T, kMayBeWarp, IsInterleaved, IsNormed, true>(variant.angles)
                     : find_step_short_kernel<T, false, IsInterleaved, IsNormed, true>(variant.angles);
    }
  }
  return is_warp ? find_step_short_kernel<T, true, IsInterleaved, IsNormed, false>(variant.angles)
                 : find_step_short_kernel<T, false, IsInterleaved, IsNormed, false>(variant.angles);
}

template <typename T, bool IsInterleaved>
Kernel find_step_short_kernel(const StepVariant &variant) {
  return variant.norm != StepNorm::kNone ? find_step_short_kernel<T, IsInterleaved, true>(variant)
                                         : find_step_short_kernel<T, IsInterleaved, false>(variant);
}

template <typename T>
Kernel find_step_short_kernel(const StepVariant &variant) {
  return variant.is_interleaved ? find_step_short_kernel<T, true>(variant) : find_step_short_kernel<T, false>(variant);
}

}  // namespace rope
