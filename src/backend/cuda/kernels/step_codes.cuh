// SPDX-License-Identifier: Apache-2.0
// step_codes.cuh - the step's kernel for long launches of whole heads, some of them with codes as outputs
//
// Blocks of threads lie as step_long.cuh shows. A thread has two units. These are four vectors, a quarter of a block of
// channels apart: 128 channels of 16 bits in vectors of 16 bytes (V = 8) have four lanes.
//
//   lane           0          1          2          3
//   vector 0    0 …   7    8 …  15   16 …  23   24 …  31
//          1   32 …  39   40 …  47   48 …  55   56 …  63
//          2   64 …  71   72 …  79   80 …  87   88 …  95
//          3   96 … 103  104 … 111  112 … 119  120 … 127
//
// Vectors 0 and 2 are one unit, 1 and 3 the other. Instructions limit the speed of these launches, and a thread finds
// its place, the sum of a norm and the scale of a group once for both units. Channels beside a window are one block, or
// one for each written scale: vectors of neighbouring lanes are neighbours in memory, the more the longer a block is.
//
// HasWindow is for normed heads with a window that is turned, in 16 bits or as codes. They are cut into blocks of its
// size. Vectors 0 and 2 are a unit of a block in the half of the head that has the window. Vectors 1 and 3 are the unit
// half a head behind them, or before them if the window is the head's last channels. With a window of the first 64 of
// 256 channels, by units:
//
//   lane           0          1     …     3          4          5     …
//   vector 0    0 …   7    8 …  15  …  24 …  31   64 …  71   72 …  79 …
//          2   32 …  39   40 …  47  …  56 …  63   96 … 103  104 … 111 …
//          1  128 … 135  136 … 143  … 152 … 159  192 … 199  200 … 207 …
//          3  160 … 167  168 … 175  … 184 … 191  224 … 231  232 … 239 …
//
// Reads each head once, writes it once to each of its destinations, and writes a scale for each group. Each block also
// reads the positions of its tokens, their rows of a table and the weights of its tensor. Each thread of a cached head
// reads a slot.
#pragma once

#include <type_traits>

#include "backend/cuda/kernels/kernel.hpp"
#include "backend/cuda/kernels/occupancy.cuh"
#include "backend/cuda/kernels/programmatic_launch.cuh"
#include "backend/cuda/kernels/step_long_parts.cuh"
#include "plan/tuning.hpp"

namespace rope {

constexpr int kVectorsOfCodes = 4;  // vectors of a thread

// Returns in each lane of a head the sum over the head, from the sums of its vectors, by the tree of norms in the order
// of channels. All lanes of the warp take part. With a power of two of lanes, each exchange halves the vectors of a
// lane.
__device__ __forceinline__ float sum_over_quarters(uint32_t quarter, uint32_t lanes_log2, uint32_t thread,
                                                   const float (&of_vector)[kVectorsOfCodes]) {
  if ((quarter & (quarter - 1)) == 0) {
    const bool is_odd = (thread & 1u) != 0, is_upper = (thread & 2u) != 0;
    const float first = add_exchanged(of_vector[0], of_vector[2], is_odd, 1),
                second = add_exchanged(of_vector[1], of_vector[3], is_odd, 1);
    if (quarter == 2) return add_lane(add_rounded(first, second), 1);
    float sum = add_exchanged(first, second, is_upper, 2);
#pragma unroll 1
    for (uint32_t distance = 4; distance < quarter; distance *= 2) sum = add_lane(sum, distance);
    return add_lane(add_lane(sum, 2), 1);
  }
  // Each lane receives four sums that are neighbours in the tree. Lanes behind the last vector have 0.
  const uint32_t number = thread & ((1u << lanes_log2) - 1);
  float moved[kVectorsOfCodes] = {};
#pragma unroll
  for (uint32_t i = 0; i < kVectorsOfCodes; ++i) {
    const uint32_t place = number * kVectorsOfCodes + i, vector = place / quarter;
    const int lane = static_cast<int>(threadIdx.x - number + place - vector * quarter);
#pragma unroll
    for (uint32_t j = 0; j < kVectorsOfCodes; ++j) {
      const float from = __shfl_sync(kAllLanes, of_vector[j], lane % 32);
      if (j == vector) moved[i] = from;
    }
  }
  float sum = tree_sum<kVectorsOfCodes>(moved);
  for (uint32_t distance = 1; distance >> lanes_log2 == 0; distance *= 2) sum = add_lane(sum, distance);
  return sum;
}

// sum_over_quarters for the vectors of HasWindow.
__device__ __forceinline__ float sum_over_blocks(uint32_t window_lanes, uint32_t head_lanes, uint32_t number,
                                                 const float (&of_vector)[kVectorsOfCodes]) {
  const bool is_odd = (number & 1u) != 0, is_upper = (number & 2u) != 0;
  const float low = add_exchanged(of_vector[0], of_vector[1], is_odd, 1),
              high = add_exchanged(of_vector[2], of_vector[3], is_odd, 1);
  float sum;
  if (window_lanes == 2) {
    sum = add_rounded(low, high);
  } else {
    sum = add_exchanged(low, high, is_upper, 2);
    for (uint32_t distance = 4; distance < window_lanes; distance *= 2) sum = add_lane(sum, distance);
    sum = add_lane(sum, 2);
  }
  for (uint32_t distance = window_lanes; distance < head_lanes; distance *= 2) sum = add_lane(sum, distance);
  return add_lane(sum, 1);
}

constexpr int codes_resident_threads(StepCodes codes, bool is_whole_norm) {
  return codes == StepCodes::kStatic   ? kStepCodesResidentThreads[is_whole_norm]
         : codes == StepCodes::kScales ? kStepScalesResidentThreads
                                       : kStepAllCodesResidentThreads;
}

// kStatic makes codes of a few values at a time; with the others a thread holds all its values as floats. kAll also has
// roundings within the norm, several position axes, a page table, codes of E5M2, values that are rounded first, codes
// and words of one tensor, the largest magnitude, and row factors.
template <typename T, int V, bool IsInterleaved, bool IsNormed, StepCodes kCodes, StepAngles kAngles,
          bool HasWindow = false>
__global__ void __launch_bounds__(kMaxLongCodesThreads,
                                  min_blocks_per_multiprocessor(codes_resident_threads(kCodes, IsNormed && !HasWindow),
                                                                kMaxLongCodesThreads))
    step_codes_kernel(const __grid_constant__ StepCodesParams<kCodes, kAngles, HasWindow> params) {
  constexpr bool kHasScales = kCodes != StepCodes::kStatic, kHasAll = kCodes == StepCodes::kAll;
  constexpr bool kIsTurned = kAngles != StepAngles::kNone;
  // The others would take up to 14 % longer for a few tokens.
  constexpr bool kPrefetches = IsNormed || !kHasScales;
  constexpr int kUnits = HasWindow ? 1 : 2;  // units of a thread that are turned
  using Angles = LaneAngles<V, IsInterleaved, kUnits>;
  using Weights = LaneWeights<V, HasWindow ? 1 : kVectorsOfCodes>;
  begin_dependent_launch();
  extern __shared__ float4 shared[];
  float *const cos = reinterpret_cast<float *>(shared);

  const LongPlace<IsNormed> place(params);
  const uint32_t index = place.index;
  const StepLongTensor &tensor = params.tensor[index];
  const StepHeadCodes &codes = params.codes[index];
  const uint32_t rows = tensor.rows;
  const uint32_t quarter = params.units_per_block / 2;  // lanes of a head that is one block or has a window
  const uint32_t lanes_log2 = IsNormed ? params.lanes_log2 : tensor.lanes_log2;
  const uint32_t head = place.thread >> lanes_log2, number = place.thread & ((1u << lanes_log2) - 1);
  const bool has_units = number < (IsNormed ? params.units_per_block : tensor.units) / 2;
  const bool is_present = place.has_row && head < tensor.heads && has_units;
  // The lane's number among those of the window, and whether it is one of them.
  uint32_t in_window = number;
  bool has_window_unit = true;
  if constexpr (HasWindow) {
    in_window -= params.first_window_lane;
    has_window_unit = in_window < params.window_lanes;
  }
  const uint32_t vector = HasWindow  ? number + (number & params.block_mask)
                          : IsNormed ? number
                                     : number + 3 * (number >> codes.block_lanes_log2 << codes.block_lanes_log2);
  // Calls visit(i, address) for each of a thread's vectors, from the address of the first and the size of an element.
  const auto half = IsNormed ? static_cast<int32_t>(params.pairs) : int32_t{codes.half_block};
  const auto for_vectors = [&](auto *address, int32_t size, const auto &visit) {
#pragma unroll
    for (int i = 0; i < kVectorsOfCodes; ++i) {
      if constexpr (HasWindow) {
        visit(i, address + (i / 2 * half + i % 2 * params.to_other) * size);
      } else {
        visit(i, address);
        address += static_cast<uint32_t>(half * size >> 1);
      }
    }
  };
  uint32_t token = place.first_token + place.row;

  constexpr int32_t kElementBytes = sizeof(T), kVectorBytes = V * kElementBytes;
  const char *in = step(step(step(tensor.in, head, tensor.head), token, tensor.in_token), vector, kVectorBytes) +
                   blockIdx.y * tensor.batch;
  const bool has_out = (tensor.flags & kHasOut) != 0, has_cache = tensor.cache != nullptr;
  const bool is_code_out = (tensor.flags & kHasCodeOut) != 0, is_code_cache = (tensor.flags & kHasCodeCache) != 0;
  char *const cache = const_cast<char *>(step(step(tensor.cache, head, tensor.cache_head), vector, codes.cache_unit));
  const char *code_out = step(step(step(codes.out, head, codes.out_head), token, codes.out_token), vector, V) +
                         blockIdx.y * codes.out_batch;
  const bool is_changed = (IsNormed || kIsTurned) && (tensor.flags & kIsChanged) != 0;
  wait_for_previous_launch();

  bool is_active = is_present && token < params.num_tokens;
  LoadedInteger slot = {};
  Vector<T, V> vectors[kVectorsOfCodes] = {};
  const auto load_vectors = [&] {
    for_vectors(in, kElementBytes, [&](int i, const char *from) { vectors[i] = load_vector<Vector<T, V>>(from); });
  };
  const auto load = [&] {
    if (has_cache && token < params.slots.cached_tokens) {
      const char *const address =
          step(step(params.slots.data, token, params.slots.token_bytes), blockIdx.y, params.slots.batch_bytes);
      slot = kHasAll ? load_slot(params.slots, address, token & params.implicit_mask)
                     : load_step_integer(address, params.slots.is_64_bit);
    }
    load_vectors();
  };
  if (is_active) load();
  float factor = 1.0f;
  if (codes.scale != nullptr && is_present) {
    factor = *reinterpret_cast<const float *>(step(codes.scale, head, codes.scale_head));
  }

  const uint32_t tokens = rows * params.turns, end = place.first_token + tokens;
  float *const behind_angles = cos + (kIsTurned ? tokens * params.angle_floats : 0);
  uint32_t *const lost = reinterpret_cast<uint32_t *>(behind_angles);
  float *const shared_weights = behind_angles + (kAngles == StepAngles::kTable ? (tokens + 3) / 4 * 4 : 0);
  if (is_changed) {
    if constexpr (kIsTurned) {
      share_angles<Angles, kAngles, kHasAll>(params, tensor, place.first_token, place.part, cos, lost);
    }
    if constexpr (IsNormed) share_weights<Weights, T, V>(params, tensor, shared_weights);
    if constexpr (kAngles == StepAngles::kTable) wait_for_copies<0>();
    __syncthreads();
  }
  const uint32_t read_unit = number < quarter ? number : 0;  // idle lanes compute too
  const uint32_t of_angles = !HasWindow ? read_unit : has_window_unit ? in_window : 0;
  const float *angles = cos + place.row * params.angle_floats + of_angles * Angles::kStride;
  const auto angles_of = [&](uint32_t unit) { return Angles{angles + unit * Angles::R::kLength}; };
  const uint32_t of_weights = keep(static_cast<uint32_t>(shared_weights - cos) + read_unit * Weights::kStride);
  const auto weights_of = [&](uint32_t unit) {
    if constexpr (HasWindow) {
      const auto of_unit = static_cast<int32_t>(vector) + static_cast<int32_t>(unit) * (params.to_other / V) +
                           (params.to_other < 0 ? static_cast<int32_t>(2 * quarter) : 0);
      return Weights{shared_weights + of_unit * static_cast<int32_t>(Weights::kStride),
                     params.pairs / V * Weights::kStride};
    }
    return Weights{cos + of_weights + unit * V, 2 * V};
  };
  factor = code_factor(factor, params.scale_multiplies != 0);

  const auto store_vectors = [&](bool as_codes, char *first) {
    for_vectors(first, as_codes ? 1 : kElementBytes, [&](int i, char *to) {
      if (as_codes) {
        store_code_half(to, vectors[i]);
      } else {
        store_vector(to, vectors[i]);
      }
    });
  };
  const auto store_scale = [&](const WrittenScales &scales, int64_t scales_row, uint32_t bits) {
    if constexpr (kHasScales) {
      const uint32_t group_lanes_log2 = params.scales[index].lanes_log2, group = number >> group_lanes_log2;
      if (scales.is_present() && group << group_lanes_log2 == number) {
        scales.store(scales_row, head, static_cast<int>(group), bits);
      }
    }
  };
  // The lanes of a head prefetch the head of the next token into L2, each lane one of its own vectors, so that each 64
  // bytes have one.
  const auto prefetched = static_cast<int32_t>((half < 8 * V && !HasWindow ? 2 * number : number) % kVectorsOfCodes);
  int32_t to_prefetched;
  if constexpr (HasWindow) {
    to_prefetched = (prefetched / 2 * half + prefetched % 2 * params.to_other) * kElementBytes;
  } else {
    to_prefetched = prefetched * (half * kElementBytes >> 1);
  }
  if constexpr (IsNormed) to_prefetched = static_cast<int32_t>(keep(static_cast<uint32_t>(to_prefetched)));
  uint32_t largest = 0;  // the bits of the largest magnitude that became a code
  // Stores the vectors to the destinations of words, or to those of codes with a scale of these bits. `magnitude` is
  // the largest of the thread's values.
  const auto store = [&](bool as_codes, uint32_t scale, uint32_t magnitude) {
    if (!is_active) return;
    const auto raise = [&] { largest = magnitude > largest ? magnitude : largest; };
    if (has_out && as_codes == is_code_out) {
      char *out;
      if (as_codes) {
        out = const_cast<char *>(code_out);
      } else {
        const char *const of_head = IsNormed ? in : step(in, head, tensor.head_shift);
        out = const_cast<char *>(step(of_head + tensor.in_to_out, token, tensor.token_shift));
        if constexpr (!IsNormed) out += blockIdx.y * tensor.batch_shift;
      }
      store_vectors(as_codes, out);
      if constexpr (kHasScales) {
        const WrittenScales &scales = params.scales[index].out;
        if (as_codes) {
          store_scale(scales, scales.row(blockIdx.y, token), scale);
          raise();
        }
      }
    }
    if (has_cache && as_codes == is_code_cache && token < params.slots.cached_tokens) {
      const uint32_t batch = (token & ~params.implicit_mask) + blockIdx.y, of_batch = token & params.implicit_mask;
      const StepPlace in_cache =
          kHasAll ? find_place(params.slots, params.lookups, slot, batch, of_batch) : find_slot(params.slots, slot);
      if (in_cache.is_cached) {
        store_vectors(as_codes, cache + in_cache.page * tensor.page_bytes + in_cache.entry * tensor.entry_bytes);
        if constexpr (kHasScales) {
          const WrittenScales &scales = params.scales[index].cache;
          if (as_codes) {
            store_scale(scales, scales.row(in_cache.page, in_cache.entry), scale);
            raise();
          }
        }
      } else if (in_cache.is_faulty && place.thread == 0 && (tensor.flags & kCountsPlaces) != 0) {
        count_fault(params.fault, blockIdx.y * params.num_tokens + token);
      }
    }
  };
#pragma unroll 1
  for (;;) {
    const char *const next = step(in, rows, tensor.in_token);
    if (kPrefetches && params.prefetches && is_active && token + rows < end && token + rows < params.num_tokens) {
      prefetch(next + to_prefetched);
    }
    const bool has_codes = (tensor.flags & kHasCodes) != 0;
    const bool is_turned = kIsTurned && is_changed && has_window_unit &&
                           (kAngles != StepAngles::kTable || lost[token - place.first_token] == 0);
    if constexpr (kHasScales) {
      UnitValues<T, V> values[2] = {{vectors[0], vectors[2]}, {vectors[1], vectors[3]}};
      const auto for_units = [&](const auto &change) {
#pragma unroll
        for (uint32_t unit = 0; unit < 2; ++unit) change(unit, &values[unit]);
      };
      if (IsNormed && is_changed) {
        const float of_vector[] = {sum_of_squares<V>(values[0].low), sum_of_squares<V>(values[1].low),
                                   sum_of_squares<V>(values[0].high), sum_of_squares<V>(values[1].high)};
        const float inverse =
            inverse_norm(params.norm, sum_over_quarters(quarter, lanes_log2, place.thread, of_vector));
        for_units([&](uint32_t unit, UnitValues<T, V> *of_unit) {
          of_unit->template norm<kHasAll>(params.norm, inverse, weights_of(unit));
        });
      }
      if (is_turned) {
        for_units(
            [&](uint32_t unit, UnitValues<T, V> *of_unit) { of_unit->template turn<IsInterleaved>(angles_of(unit)); });
      }
      const StepHeadFactor &of_rows = params.factors[index];
      const bool has_factor = kHasAll && of_rows.data != nullptr;
      if (has_factor) {
        const float of_row = load_factor<T>(of_rows, tensor.flags, blockIdx.y, token, head, is_active);
        for_units([&](uint32_t, UnitValues<T, V> *of_unit) { of_unit->multiply(of_row); });
      }
      if (kHasAll ? (tensor.flags & kHasWords) != 0 : !has_codes) {
        if ((IsNormed && is_changed) || is_turned || has_factor) {
          for_units([&](uint32_t unit, UnitValues<T, V> *of_unit) {
            vectors[unit] = from_floats<T, V>(of_unit->low);
            vectors[unit + 2] = from_floats<T, V>(of_unit->high);
          });
        } else if (is_active) {
          load_vectors();  // unchanged heads are copied as bits, so that a NaN keeps its payload
        }
        store(false, 0, 0);
      }
      if (has_codes) {
        if (kHasAll && params.rounds_before_codes)
          for_units([](uint32_t, UnitValues<T, V> *of_unit) { of_unit->round(); });
        const StepHeadScales &scales = params.scales[index];
        const WrittenScales &written = scales.out.is_present() ? scales.out : scales.cache;
        const bool is_e5m2 = kHasAll && (tensor.flags & kHasE5M2) != 0;
        uint32_t scale = 0, magnitude = 0;
        if ((written.is_present() || (kHasAll && of_rows.amax != nullptr)) && has_units) {
          magnitude = bits_of(max_magnitude(values[0].largest(), values[1].largest()));
        }
        if (written.is_present()) {
          const GroupScale of_group = written_scale(written, is_e5m2, max_over_lanes(magnitude, scales.lanes_log2));
          scale = of_group.bits;
          factor = of_group.factor;
        }
        for_units([&](uint32_t unit, UnitValues<T, V> *of_unit) {
          of_unit->put_codes(factor, is_e5m2, &vectors[unit], &vectors[unit + 2]);
        });
        store(true, scale, magnitude);
      }
    } else {
      float inverse = 0.0f;
      if (IsNormed && is_changed) {
        float of_vector[kVectorsOfCodes];
#pragma unroll
        for (int i = 0; i < kVectorsOfCodes; ++i) of_vector[i] = sum_of_squares_in<T, V>(vectors[i]);
        float sum;
        if constexpr (HasWindow) {
          sum = sum_over_blocks(params.window_lanes, quarter, number, of_vector);
        } else {
          sum = sum_over_quarters(quarter, lanes_log2, place.thread, of_vector);
        }
        inverse = inverse_norm(params.norm, sum);
#pragma unroll
        for (int i = 0; i < kVectorsOfCodes; ++i) forget_floats(&vectors[i]);
      }
      const auto change = [&](auto as) {
#pragma unroll
        for (uint32_t unit = 0; unit < 2; ++unit) {
          change_unit<T, V, IsInterleaved, IsNormed, false, decltype(as)::value>(
              params.norm, inverse, weights_of(unit), is_changed, is_turned && (!HasWindow || unit == 0),
              angles_of(unit), factor, &vectors[unit], &vectors[unit + 2]);
          // Without a barrier ptxas loads the angles of both units at once and spills registers.
          if (!IsNormed && decltype(as)::value == UnitAs::kWords) __syncwarp();
        }
      };
      if (has_codes) {
        change(std::integral_constant<UnitAs, UnitAs::kCodes>());
        store(true, 0, 0);
      } else {
        if (is_changed) change(std::integral_constant<UnitAs, UnitAs::kWords>());
        store(false, 0, 0);
      }
    }
    token += rows;
    if (token >= end) break;
    is_active = is_active && token < params.num_tokens;
    in = next;
    code_out = step(code_out, rows, codes.out_token);
    angles += rows * params.angle_floats;
    if (is_active) load();
  }
  if constexpr (kHasAll) {
    uint32_t *const amax = params.factors[index].amax;
    if (amax != nullptr) {
      const uint32_t of_warp = max_over_lanes(largest, 5);
      if (threadIdx.x % 32 == 0) raise_magnitude(amax, of_warp);
    }
  }
}

template <typename T>
Kernel find_step_window_kernel(const StepVariant &variant) {
  constexpr int V = kLongStepVectorBytes / static_cast<int>(sizeof(T));
#define ROPE_STEP_KERNEL(is_interleaved, angles) \
  kernel_of(step_codes_kernel<T, V, is_interleaved, true, StepCodes::kStatic, StepAngles::angles, true>)
  if (variant.angles == StepAngles::kComputed) {
    return variant.is_interleaved ? ROPE_STEP_KERNEL(true, kComputed) : ROPE_STEP_KERNEL(false, kComputed);
  }
  return variant.is_interleaved ? ROPE_STEP_KERNEL(true, kTable) : ROPE_STEP_KERNEL(false, kTable);
#undef ROPE_STEP_KERNEL
}

template <typename T, bool IsInterleaved, bool IsNormed, StepCodes kCodes>
Kernel find_step_codes_kernel(StepAngles angles) {
  constexpr int V = kLongStepVectorBytes / static_cast<int>(sizeof(T));
#define ROPE_STEP_KERNEL(is_interleaved, angles) \
  kernel_of(step_codes_kernel<T, V, is_interleaved, IsNormed, kCodes, StepAngles::angles>)
  return angles == StepAngles::kComputed ? ROPE_STEP_KERNEL(IsInterleaved, kComputed)
         : angles == StepAngles::kTable  ? ROPE_STEP_KERNEL(IsInterleaved, kTable)
                                         : ROPE_STEP_KERNEL(false, kNone);
#undef ROPE_STEP_KERNEL
}

template <typename T, bool IsInterleaved, bool IsNormed>
Kernel find_step_codes_kernel(const StepVariant &variant) {
  switch (variant.codes) {
    case StepCodes::kStatic:
      return find_step_codes_kernel<T, IsInterleaved, IsNormed, StepCodes::kStatic>(variant.angles);
    case StepCodes::kScales:
      return find_step_codes_kernel<T, IsInterleaved, IsNormed, StepCodes::kScales>(variant.angles);
    default:
      return find_step_codes_kernel<T, IsInterleaved, IsNormed, StepCodes::kAll>(variant.angles);
  }
}

template <typename T, bool IsInterleaved>
Kernel find_step_codes_kernel(const StepVariant &variant) {
  return variant.norm != StepNorm::kNone ? find_step_codes_kernel<T, IsInterleaved, true>(variant)
                                         : find_step_codes_kernel<T, IsInterleaved, false>(variant);
}

template <typename T>
Kernel find_step_codes_kernel(const StepVariant &variant) {
  if (variant.kernel == StepKernel::kLongWindow) return find_step_window_kernel<T>(variant);
  return variant.is_interleaved ? find_step_codes_kernel<T, true>(variant) : find_step_codes_kernel<T, false>(variant);
}

}  // namespace rope
