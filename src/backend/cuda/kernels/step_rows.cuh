// SPDX-License-Identifier: Apache-2.0
// step_rows.cuh - the step's kernels for heads with a part that is turned, for norms over all heads of a token, and in
// long launches for layer norms, norms behind the rotation and weights of each head
//
// The picture has 32 + 8 + 8 heads of 128 channels, 16 bits, vectors of 16 bytes (V = 8): 8 units a head, 384 threads a
// token, three parts of 128 threads.
//
//   part                                   0                                  │      1      │      2
//   threadIdx.x    0        1      …       7     │    8     …    │ …  127     │   0   … 127 │   0   … 127
//   head           0                             │    1          │     15     │  16   …  31 │  k 0 … 7, v 0 … 7
//   low         0 …  7   8 … 15    …   56 …  63  │  0 …  7  …    │ 56 …  63   │             │
//   high       64 … 71  72 … 79    …  120 … 127  │ 64 … 71  …    │120 … 127   │             │
//
//   grid x   blocks; the parts of a group of blockDim.y tokens are consecutive
//   y        number of the thread's token in the group
//
// A head has 2^lanes_log2 threads, so that none lies in two warps. If its units are no power of two, the last threads
// have none. Units are those of rope_facts.hpp, with both vectors of a copy unit side by side. In kShortRows a warp has
// units of one token, finds all its angles and its slot by itself, and needs no barrier. In kLongRows a row of threads
// does this together.
//
//   shared   for each row (kLongRows) or warp (kShortRows): StepShared, a cosine for each pair, then the sines; a room
//            for each warp; with a norm over a token TokenSums
//
// The sum of a norm follows the tree of norm.hpp. A thread's vectors are subtrees of V channels. If the window is the
// whole head, `low` of neighbouring threads are neighbours in the first half of the tree, and `high` in the second, and
// two threads exchange one for the other. Otherwise the subtrees are put in order through shared memory. With a norm
// over all heads of a token, a block has whole tensors of one token, and shared memory combines the sums of their
// heads.
//
// One instance of kLongRows with codes serves every norm. Its threads hold all values of their units, which become
// words and codes with static or written scales.
//
// Each head is read once and written once to each of its destinations. A token's slot, position and row of a table are
// read once for each row of threads, or each warp.
#pragma once

#include <type_traits>

#include "backend/cuda/kernels/angles.cuh"
#include "backend/cuda/kernels/kernel.hpp"
#include "backend/cuda/kernels/occupancy.cuh"
#include "backend/cuda/kernels/programmatic_launch.cuh"
#include "backend/cuda/kernels/step_row_codes.cuh"
#include "backend/cuda/kernels/step_row_norms.cuh"
#include "backend/cuda/kernels/step_sums.cuh"
#include "plan/tuning.hpp"

namespace rope {

// threadIdx.x. The compiler cannot see that it was read before, and so does not keep it in a register.
__device__ __forceinline__ uint32_t reread_thread() {
#if defined(__CUDA_ARCH__)
  uint32_t thread;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
  return thread;
#else
  return threadIdx.x;
#endif
}

// Sums of a token. Its tensors lie in the block.
struct TokenSums {
  float of_head[kMaxStepTokenThreads];  // each tensor's begin at its first thread
  float of_tensor[3];
};
static_assert(sizeof(TokenSums) <= kStepTokenSumBytes, "");

// The sum over all heads of a thread's tensor, from the sum over the thread's head. All threads of the block take part.
template <int VectorBytes>
__device__ __forceinline__ float sum_of_token(const StepRowParams &params, const StepUnit<VectorBytes> &mine, float sum,
                                              TokenSums *sums) {
  const uint32_t first_thread = blockIdx.x % params.parts.divisor * blockDim.x;
  const auto first_of = [&](int tensor) { return params.tensor[tensor].begin - first_thread; };
  if (mine.number == 0 && mine.head < params.tensor[mine.tensor].heads) {
    sums->of_head[first_of(mine.tensor) + mine.head] = sum;
  }
  __syncthreads();
  for (uint32_t tensor = threadIdx.x / 32; tensor < 3; tensor += blockDim.x / 32) {
    const uint32_t first = first_of(tensor);
    const int heads = static_cast<int>(params.tensor[tensor].heads);
    if (first >= blockDim.x || heads == 0) continue;
    const float total = sum_by_warp<float>({sums->of_head + first, heads, false, 0.0f}, heads);
    if (threadIdx.x % 32 == 0) sums->of_tensor[tensor] = total;
  }
  __syncthreads();
  return sums->of_tensor[mine.tensor];
}

// A vector of a head times r and the weight, plus the bias: scale_channel, weigh_channel and add_bias, with the
// roundings of all channels behind one branch.
template <typename T, int V>
__device__ __forceinline__ void normalise(const NormForm<float> &form, float inverse, const VectorNumbers &weight,
                                          const VectorNumbers &bias, float *x) {
#pragma unroll
  for (int i = 0; i < V; ++i) x[i] = multiply_rounded(x[i], inverse);
  if (form.rounds_before_weight) {
#pragma unroll
    for (int i = 0; i < V; ++i) x[i] = to_real<float>(round_to<T>(x[i]));
  }
  for_each_number<T, V>(
      weight, [&](int i, float number) { x[i] = multiply_rounded(x[i], add_rounded(number, form.weight_offset)); });
  if (form.rounds_after_weight) {
#pragma unroll
    for (int i = 0; i < V; ++i) x[i] = to_real<float>(round_to<T>(x[i]));
  }
  if (bias.data == nullptr) return;
  for_each_number<T, V>(bias, [&](int i, float number) { x[i] = add_rounded(x[i], number); });
  if (form.rounds_after_weight) {
#pragma unroll
    for (int i = 0; i < V; ++i) x[i] = to_real<float>(round_to<T>(x[i]));
  }
}

template <bool IsShort, StepAngles kAngles, bool HasCodes>
struct StepRowKernelParams {
  using Plain = std::conditional_t<HasCodes, StepRowCodeParams, StepRowParams>;
  using Type = std::conditional_t<kAngles != StepAngles::kComputed, Plain,
                                  WithAngles<Plain, IsShort ? kMaxShortStepPairs : kMaxLongStepPairs>>;
};

constexpr int max_step_row_threads(StepNorm norm, bool has_codes) {
  return has_codes ? kMaxStepCodeThreads : norm == StepNorm::kOfToken ? kMaxStepTokenThreads : kMaxStepThreads;
}

// Instances with codes have kNorm = kOfToken for every norm.
template <typename T, int V, bool IsShort, bool IsInterleaved, StepNorm kNorm, StepAngles kAngles, bool HasCodes>
__global__ void __launch_bounds__(max_step_row_threads(kNorm, HasCodes),
                                  min_blocks_per_multiprocessor(HasCodes ? kStepRowCodesResidentThreads
                                                                         : kStepRowsResidentThreads,
                                                                max_step_row_threads(kNorm, HasCodes)))
    step_rows_kernel(const __grid_constant__ typename StepRowKernelParams<IsShort, kAngles, HasCodes>::Type params) {
  constexpr int kVectorBytes = V * static_cast<int>(sizeof(T));
  using Shares = Sharers<IsShort>;
  constexpr bool kBeginsAtOnce = IsShort;  // tests/bench/TUNING.md
  if (kBeginsAtOnce) begin_dependent_launch();
  extern __shared__ float4 shared[];
  const uint32_t warp = (threadIdx.y * blockDim.x + threadIdx.x) / 32;
  const uint32_t groups = IsShort ? blockDim.y * blockDim.x / 32 : blockDim.y;
  StepShared *const of_group = reinterpret_cast<StepShared *>(shared) + Shares::group();
  float *const angles = reinterpret_cast<float *>(reinterpret_cast<StepShared *>(shared) + groups);
  float *const cos = angles + Shares::group() * (2 * params.pairs);
  float *const rooms = angles + groups * (2 * params.pairs), *const exchange = rooms + warp * 64;

  const StepUnit<kVectorBytes> mine(params, threadIdx.x);
  const StepAt &at = mine.at;
  const StepRowTensor &tensor = params.tensor[mine.tensor];
  const char *const in = mine.address_in(tensor.in);
  const char *const slot_address =
      step(step(params.slots.data, at.token, params.slots.token_bytes), at.batch, params.slots.batch_bytes);
  const char *const position_address =
      step(step(params.positions, at.token, params.position_bytes), at.batch, params.position_batch_bytes);
  const bool finds_slot = Shares::number() == 0 && mine.has_token && params.slots.has_caches;
  const bool has_slot = finds_slot && at.token < params.slots.cached_tokens;

  constexpr uint32_t kAtATime = IsShort ? kMaxShortStepPairs / 32 : 1;  // angles of a thread
  const StepLookups &lookups = params.lookups;
  uint64_t increment[kAtATime] = {};
  const auto pair_of = [&](uint32_t i) { return Shares::number() + i * Shares::count(); };
  const bool has_angles = kAngles != StepAngles::kNone && mine.has_token;
  const auto read_increment = [&](uint32_t i, uint32_t pair) {
    if constexpr (kAngles == StepAngles::kComputed) increment[i] = through_memory(params.increments)[pair];
  };
#pragma unroll
  for (uint32_t i = 0; i < kAtATime; ++i) {
    if (has_angles && pair_of(i) < params.pairs) read_increment(i, pair_of(i));
  }

  wait_for_previous_launch();
  LoadedInteger position[kAtATime];
  const auto load_position = [&](uint32_t i, uint32_t pair) {
    const char *address = position_address;
    if (lookups.used_axes != 0) address = step(address, axis_of(lookups, pair), lookups.position_axis_bytes);
    position[i] = load_step_integer(address, params.has_wide_positions);
  };
#pragma unroll
  for (uint32_t i = 0; i < kAtATime; ++i) {
    position[i] = {at.token, 0};
    if (has_angles && params.has_positions && pair_of(i) < params.pairs) load_position(i, pair_of(i));
  }
  LoadedInteger slot = {};
  if (has_slot) slot = load_slot(params.slots, slot_address, at.token);
  Vector<T, V> low = {}, high = {};
  if (mine.is_active) {
    low = load_vector<Vector<T, V>>(in);
    high = load_vector<Vector<T, V>>(in + mine.place.to_high);
  }
  if (!kBeginsAtOnce) begin_dependent_launch();
  const bool counts_faults = mine.is_first_part && (!IsShort || threadIdx.x < 32);
  if constexpr (kAngles != StepAngles::kNone) {
    const auto share_angle = [&](uint32_t i, uint32_t pair) {
      const uint64_t index = finish_step_position(params, position[i]);
      CosSin<float> angle = {};
      if constexpr (kAngles == StepAngles::kComputed) {
        angle = compute_angle(params, index, increment[i]);
      } else {
        const uint64_t rows = static_cast<uint64_t>(params.table.rows);
        const bool is_lost = index >= rows;
        if (pair == 0) {
          of_group->is_lost = is_lost || has_lost_axis(params, position_address, {at.token, 0}, rows);
          if (of_group->is_lost && counts_faults) count_fault(params.fault, at.flat);
        }
        if (is_lost) return;
        angle = load_row_angle(params, index, pair);
      }
      cos[pair] = angle.cos;
      cos[params.pairs + pair] = angle.sin;
    };
#pragma unroll
    for (uint32_t i = 0; i < kAtATime; ++i) {
      if (has_angles && pair_of(i) < params.pairs) share_angle(i, pair_of(i));
    }
#pragma unroll 1
    for (uint32_t pair = pair_of(kAtATime); !IsShort && has_angles && pair < params.pairs; pair += Shares::count()) {
      read_increment(0, pair);
      if (lookups.used_axes != 0 && params.has_positions) load_position(0, pair);
      share_angle(0, pair);
    }
  }
  if (finds_slot) {
    const StepPlace place = has_slot ? find_place(params.slots, lookups, slot, at.batch, at.token) : kNowhere;
    share_place(params, at, place, counts_faults, of_group);
    if (HasCodes) of_group->page = place.page, of_group->entry = place.entry;
  }
  Shares::meet();

  const bool is_normed = kNorm != StepNorm::kNone && (tensor.flags & kIsNormed) != 0;
  bool is_turned = kAngles != StepAngles::kNone && mine.place.is_rotary && (tensor.flags & kIsTurned) != 0;
  if constexpr (kAngles == StepAngles::kTable) is_turned = is_turned && mine.has_token && !of_group->is_lost;
  const bool is_computed = is_normed || is_turned;
  const bool computes = kNorm == StepNorm::kNone      ? is_computed
                        : kNorm == StepNorm::kOfToken ? true
                                                      : __any_sync(kAllLanes, is_computed) != 0;
  if (computes) {
    UnitValues<T, V> values(low, high);
    float(&x)[V] = values.low, (&y)[V] = values.high;
    const auto norm = [&] {
      NormForm<float> form = params.norm;
      form.inverse_count = tensor.inverse_count;
      const auto sum_up = [&](float of_low, float of_high) {
        const float sum = sum_of_head<kVectorBytes>(params, tensor, mine.place, mine.number, of_low, of_high, exchange);
        if constexpr (kNorm != StepNorm::kOfToken) return sum;
        if constexpr (HasCodes) {
          if (!params.is_of_token) return sum;
        }
        return sum_of_token(params, mine, sum, reinterpret_cast<TokenSums *>(rooms + blockDim.x / 32 * 64));
      };
      float sum = 0.0f;
#pragma unroll 1
      for (bool is_of_squares = !form.is_layer;; is_of_squares = true) {
        sum = sum_up(sum_of<V>(x, is_of_squares), sum_of<V>(y, is_of_squares));
        if (is_of_squares) break;
        const float shift = is_normed ? -mean_of(form, sum) : -0.0f;
#pragma unroll
        for (int i = 0; i < V; ++i) x[i] = add_rounded(x[i], shift), y[i] = add_rounded(y[i], shift);
      }
      if (!is_normed) return;
      const float inverse = inverse_norm(form, sum);
      const auto numbers_of = [&](const char *data, int32_t head_bytes, StepFlags wide_flag, int32_t to_vector) {
        if (data == nullptr || !mine.is_active) return VectorNumbers{nullptr, false};
        const bool is_wide = (tensor.flags & wide_flag) != 0;
        const int scale = is_wide ? 4 / static_cast<int>(sizeof(T)) : 1;
        return VectorNumbers{step(data, mine.head, head_bytes) + static_cast<int64_t>(to_vector) * scale, is_wide};
      };
      const auto normalise_at = [&](int32_t to_vector, float *vector) {
        normalise<T, V>(params.norm, inverse, numbers_of(tensor.weight, tensor.weight_head, kHasWideWeight, to_vector),
                        numbers_of(tensor.bias, tensor.bias_head, kHasWideBias, to_vector), vector);
      };
      normalise_at(mine.place.low, x);
      normalise_at(mine.place.low + mine.place.to_high, y);
    };
    if constexpr (HasCodes) {
      // The loop makes the norm appear once in the code, before or after the rotation. In instances without codes it
      // would take 8 to 15 % longer.
#pragma unroll 1
      for (bool is_behind = false;; is_behind = true) {
        if (params.has_norm && is_behind == params.is_after) norm();
        if (is_behind) break;
        if (is_turned) rotate_unit<V, IsInterleaved>(x, y, mine.number, params.pairs, cos, cos + params.pairs);
      }
    } else {
      if (kNorm == StepNorm::kBefore || (kNorm == StepNorm::kOfToken && !params.is_after)) norm();
      if (is_turned) rotate_unit<V, IsInterleaved>(x, y, mine.number, params.pairs, cos, cos + params.pairs);
      if (kNorm == StepNorm::kAfter || (kNorm == StepNorm::kOfToken && params.is_after)) norm();
    }
    if constexpr (HasCodes) {
      const StepRowCodes &codes = params.codes[mine.tensor];
      const UnitStores<T, V> stores = {params, mine, tensor, codes, *of_group};
      if (codes.factor.data != nullptr) stores.multiply(&values);
      if (mine.is_active && (tensor.flags & kHasWords) != 0) {
        const bool is_changed = is_computed || codes.factor.data != nullptr || params.accumulates;
        if (params.accumulates) stores.accumulate(&values);
        stores.store_words(is_changed ? from_floats<T, V>(x) : low, is_changed ? from_floats<T, V>(y) : high);
      }
      stores.store_codes(&values);
      return;
    }
    low = from_floats<T, V>(x);
    high = from_floats<T, V>(y);
  }
  const StepUnit<kVectorBytes> again(params, kNorm == StepNorm::kNone ? threadIdx.x : reread_thread());
  if (!again.is_active) return;
  const StepRowTensor &target = params.tensor[again.tensor];
  // A warp that normed may have a thread of a tensor without a norm: the values that keep their bits are read again.
  if (kNorm != StepNorm::kNone && computes && !is_computed) {
    const char *const in_again = again.address_in(target.in);
    low = load_vector<Vector<T, V>>(in_again);
    high = load_vector<Vector<T, V>>(in_again + again.place.to_high);
  }
  if (target.out.data != nullptr && (again.place.is_rotary || (target.flags & kWritesOutside) != 0)) {
    char *const out = again.address_in(target.out);
    store_vector(out, low);
    store_vector(out + again.place.to_high, high);
  }
  if (target.cache == nullptr || !of_group->is_cached) return;
  char *const row = target.cache + of_group->cache_row[target.cache_index];
  char *const out = const_cast<char *>(step(row, again.head, target.cache_head)) + again.place.low;
  store_vector(out, low);
  store_vector(out + again.place.to_high, high);
}

template <typename T, bool IsShort, bool IsInterleaved, StepNorm kNorm, bool HasCodes>
Kernel find_step_rows_kernel(StepAngles angles) {
  constexpr int V = (IsShort ? kShortStepVectorBytes : kLongStepVectorBytes) / static_cast<int>(sizeof(T));
#define ROPE_STEP_KERNEL(is_interleaved, norm, angles) \
  kernel_of(step_rows_kernel<T, V, IsShort, is_interleaved, norm, StepAngles::angles, HasCodes>)
  // Without angles a norm behind the rotation equals one before it.
  constexpr StepNorm kAlone = kNorm == StepNorm::kAfter ? StepNorm::kBefore : kNorm;
  return angles == StepAngles::kComputed ? ROPE_STEP_KERNEL(IsInterleaved, kNorm, kComputed)
         : angles == StepAngles::kTable  ? ROPE_STEP_KERNEL(IsInterleaved, kNorm, kTable)
                                         : ROPE_STEP_KERNEL(false, kAlone, kNone);
#undef ROPE_STEP_KERNEL
}

template <typename T, bool IsShort, bool IsInterleaved>
Kernel find_step_rows_kernel(const StepVariant &variant) {
  const auto find = [&](auto norm) {
    return find_step_rows_kernel<T, IsShort, IsInterleaved, decltype(norm)::value, false>(variant.angles);
  };
  switch (variant.norm) {
    case StepNorm::kNone:
      return find(std::integral_constant<StepNorm, StepNorm::kNone>());
    case StepNorm::kBefore:
      return find(std::integral_constant<StepNorm, StepNorm::kBefore>());
    case StepNorm::kAfter:
      return find(std::integral_constant<StepNorm, StepNorm::kAfter>());
    default:
      if constexpr (!IsShort) return find(std::integral_constant<StepNorm, StepNorm::kOfToken>());
      return {};
  }
}

template <typename T, bool IsInterleaved>
Kernel find_step_rows_kernel(const StepVariant &variant) {
  if (variant.kernel == StepKernel::kShortRows) return find_step_rows_kernel<T, true, IsInterleaved>(variant);
  if constexpr (kMayHaveCodes<T>) {
    if (variant.has_codes()) {
      return find_step_rows_kernel<T, false, IsInterleaved, StepNorm::kOfToken, true>(variant.angles);
    }
  }
  return find_step_rows_kernel<T, false, IsInterleaved>(variant);
}

template <typename T>
Kernel find_step_rows_kernel(const StepVariant &variant) {
  return variant.is_interleaved ? find_step_rows_kernel<T, true>(variant) : find_step_rows_kernel<T, false>(variant);
}

}  // namespace rope
