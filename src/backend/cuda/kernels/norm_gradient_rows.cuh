// SPDX-License-Identifier: Apache-2.0
// norm_gradient_rows.cuh - backward of norms with the rotation, in 16 bits: heads in vectors, sums over tokens in
// registers
//
// The picture has 32 + 8 heads of 128 channels, vectors of 16 bytes (V = 8), and 512 runs of tokens: 8 units a head,
// blocks of 320 threads.
//
//   block             run
//   threadIdx.x       0        1      …       7     │    8     …    │ …  255    │  256  …  319
//   head              0                             │    1          │     31    │  k 0  …  7
//   low               0 …  7   8 … 15    …  56 … 63 │  0 …  7  …    │ 56 … 63   │
//   high             64 … 71  72 … 79    … 120 …127 │ 64 … 71  …    │120 … 127  │
//
//   group    tensors with heads in shared blocks: all tensors that are normed, if a block has threads for all heads of
//            a token and their runs have one length; otherwise a single tensor
//   rows     runs that a block has at a time, as many as its threads hold heads for
//   parts    how many times a block processes its run, if a token of a tensor has more heads than the block holds
//   thread   a unit of a head, the same unit for each token of the run
//   shared   data of the thread's next token, and at the end of the run the sums of its heads; weights of its channels;
//            angles of some tokens of each row; which of these are lost; a room for each warp; room to combine the
//            heads' sums of a norm over a token; sums of parts
//
//   for each part, for some tokens of the run at a time:
//   barrier ─ angles ─ barrier ─ for each token: the next one on its way ─ norm again ─ sums ─ gradient ─ store
//
// norm.hpp has the formulas. Groups without sums have runs of as many tokens as the plan gives them.
//
// The gradient of each head is read once and written once, the input of forward is read once, and the sums of a run are
// read once and written once.
#pragma once

#include <type_traits>

#include "backend/cuda/kernels/kernel.hpp"
#include "backend/cuda/kernels/norm_gradient_row_parts.cuh"
#include "backend/cuda/kernels/occupancy.cuh"
#include "backend/cuda/kernels/programmatic_launch.cuh"
#include "plan/tuning.hpp"

namespace rope {

// The largest params that CUDA accepts before 12.1.
static_assert(sizeof(NormGradientRowParams) <= 4096, "");

// A thread's unit, or one unit of each part, for all tokens of its run.
template <typename T, bool IsInterleaved, bool HasSums>
class GradientRun {
 public:
  static constexpr int V = kLongStepVectorBytes / static_cast<int>(sizeof(T));
  using Values = UnitValues<T, V>;
  using Shared = GradientShared;

  __device__ __forceinline__ GradientRun(const NormGradientRowParams &params, float4 *shared)
      : params_(params),
        block_(params),
        thread_(params, block_.group),
        tensor_(params.tensor[thread_.tensor]),
        of_norm_(params.gradient[thread_.tensor]),
        shared_(params, shared),
        place_(find_unit_place<kLongStepVectorBytes>(tensor_, thread_.number)) {
    is_normed_ = (tensor_.flags & kIsNormed) != 0;
    turns_ = place_.is_rotary && (tensor_.flags & kIsTurned) != 0;
    writes_ = tensor_.out.data != nullptr && (place_.is_rotary || (tensor_.flags & kWritesOutside) != 0);
    has_sums_ = HasSums && of_norm_.weight_sums.is_present();
  }

  __device__ __forceinline__ void process() {
    const NormGradientGroup &group = block_.group;
    const uint32_t log2 = params_.shared_tokens_log2, slot = thread_.row << log2;
#pragma unroll 1
    for (uint32_t part = 0; part < group.parts; ++part) {
      begin_part(part);
#pragma unroll 1
      for (uint32_t begin = 0; begin < group.tokens_of_run; begin += 1u << log2) {
        if (group.is_turned) {
          __syncthreads();
          const bool counts_faults = part == 0 && group.counts_faults;
          share_run_angles<V, IsInterleaved>(params_, block_, begin, counts_faults, shared_);
          __syncthreads();
        }
        const uint32_t left = group.tokens_of_run - begin, end = begin + (left >> log2 == 0 ? left : 1u << log2);
        // Threads without a unit read the angles of another unit.
        const uint32_t units = params_.pairs / V;
        angles_ = shared_.angles + (tokens_ > 0 ? slot : 0) * units + (place_.is_rotary ? thread_.number : 0);
#pragma unroll 1
        for (uint32_t token = begin; token < end; ++token) {
          take_back(token, slot + token - begin);
          angles_ += units;
        }
      }
      if (HasSums) end_part(part);
    }
  }

 private:
  __device__ __forceinline__ uint32_t channels() const {
    return tensor_.units_per_head * (2 * V);
  }

  // The channel of the head that is number `own` of the thread's channels.
  __device__ __forceinline__ uint32_t channel_of(int own) const {
    const int32_t vector = own < V ? place_.low : place_.low + place_.to_high;
    return static_cast<uint32_t>(vector) / static_cast<uint32_t>(sizeof(T)) + static_cast<uint32_t>(own % V);
  }

  __device__ __forceinline__ char *address_in(const RopeRowSide &side, uint32_t flat) const {
    const StepAt at = params_.is_flat ? StepAt{flat, 0, flat} : find_token(params_, flat);
    return const_cast<char *>(step(step(side.data, at.token, side.token), head_, side.head)) +
           static_cast<int64_t>(at.batch) * side.batch + place_.low;
  }

  __device__ __forceinline__ float *sum_at(uint32_t row, uint32_t head, uint32_t channel) const {
    const RunSums &sums = of_norm_.weight_sums;
    return reinterpret_cast<float *>(sums.data) + (block_.first_run + row) * sums.run_stride + head * sums.head_stride +
           channel * sums.channel_stride;
  }

  // Finds the head, its weights, the former values of its sums, and the first token.
  __device__ __forceinline__ void begin_part(uint32_t part) {
    const NormGradientGroup &group = block_.group;
    head_ = part * (group.row_threads >> tensor_.lanes_log2) + thread_.head;
    const bool is_unit = thread_.number < tensor_.units_per_head && head_ < tensor_.heads &&
                         (place_.is_rotary || (tensor_.flags & kReadsOutside) != 0);
    first_ = block_.first_token(thread_.row);
    tokens_ = is_unit ? block_.num_tokens(params_, thread_.row) : 0;
#pragma unroll
    for (int i = 0; i < 2 * V; ++i) sum_[i] = 0.0f;
    if (has_sums_ && of_norm_.weight_sums.is_by_head && tokens_ > 0) {
#pragma unroll
      for (int i = 0; i < 2 * V; ++i) sum_[i] = *sum_at(thread_.row, head_, channel_of(i));
    }
    if (group.is_normed) share_weights(part);
#pragma unroll
    for (int i = 0; i < Shared::kOwnVectors; ++i) *shared_.vector(i) = {};
    given_ = address_in(tensor_.in, first_);
    out_ = address_in(tensor_.out, first_);
    read_ = address_in(of_norm_.in, first_);
    load(0);
  }

  // Heads with equal weights share them. All threads of the block take part.
  __device__ __forceinline__ void share_weights(uint32_t part) {
    const NormGradientGroup &group = block_.group;
    const bool are_own = params_.weight_units == blockDim.x;
    const uint32_t of_tensor = (thread_.tensor - group.first_tensor) * 32;
    weights_ = shared_.weights + (are_own ? threadIdx.x : of_tensor + thread_.number);
    const bool writes = are_own || (part == 0 && thread_.row == 0 && thread_.head == 0);
#pragma unroll 1
    for (int i = 0; i < 2 * V && writes; i += 4) {
      float w[4] = {1.0f, 1.0f, 1.0f, 1.0f};
      if (tensor_.weight != nullptr && thread_.number < tensor_.units_per_head && head_ < tensor_.heads) {
        const bool is_wide = (tensor_.flags & kHasWideWeight) != 0;
        const uint32_t at = channel_of(i) * (is_wide ? 4 : static_cast<uint32_t>(sizeof(T)));
        load_numbers<T, 4>(step(tensor_.weight, head_, tensor_.weight_head) + at, is_wide, w);
#pragma unroll
        for (int j = 0; j < 4; ++j) w[j] = add_rounded(w[j], params_.norm.weight_offset);
      }
      weights_->four[i / 4] = from_floats<float, 4>(w);
    }
    if (!are_own) __syncthreads();
  }

  // The address of the unit in a token of the run. `first` is the address in the run's first token.
  __device__ __forceinline__ const char *find_in(const char *first, const RopeRowSide &side, uint32_t token) const {
    return params_.is_flat ? step(first, token, side.token) : address_in(side, first_ + token);
  }

  // Starts loading the data of a token.
  __device__ __forceinline__ void load(uint32_t token) const {
    if (token < tokens_) {
      const char *const given = find_in(given_, tensor_.in, token);
      copy_async(shared_.vector(Shared::kGiven), given);
      copy_async(shared_.vector(Shared::kGiven + 1), given + place_.to_high);
      if (is_normed_) {
        const char *const read = find_in(read_, of_norm_.in, token);
        copy_async(shared_.vector(Shared::kRead), read);
        copy_async(shared_.vector(Shared::kRead + 1), read + place_.to_high);
      }
    }
    end_copy_group();
  }

  // The sum over all channels of a norm. `which` alternates.
  __device__ __forceinline__ float sum_over_norm(int which, float low, float high) const {
    float sum;
    if (params_.usual_units == 0) {
      sum = sum_of_head<kLongStepVectorBytes>(params_, tensor_, place_, thread_.number, low, high, shared_.exchange);
    } else {
      const bool is_odd = (thread_.number & 1u) != 0;
      const float other = __shfl_xor_sync(kAllLanes, is_odd ? low : high, 1);
      sum = add_lane(add_rounded(is_odd ? high : low, other), 2);
      if (params_.usual_units > 4) sum = add_lane(sum, 4);
      if (params_.usual_units > 8) sum = add_lane(sum, 8);
      if (params_.usual_units > 16) sum = add_lane(sum, 16);
      sum = add_lane(sum, 1);
    }
    if (!params_.is_of_token) return sum;
    float *const room = shared_.token_sums + static_cast<uint32_t>(which) * blockDim.x +
                        thread_.row * block_.group.row_threads + tensor_.begin;
    return sum_over_heads_of_token(sum, thread_.number == 0 && head_ < tensor_.heads, head_, tensor_.heads, room);
  }

  __device__ __forceinline__ NormForm<float> form() const {
    NormForm<float> form = params_.norm;
    form.inverse_count = tensor_.inverse_count;
    return form;
  }

  // Replaces x by its normed values, before the weight. Returns their factor.
  __device__ __forceinline__ float norm(Values *x) const {
    if (params_.norm.is_layer) {
      const float mean = mean_of(form(), sum_over_norm(0, tree_sum<V>(x->low), tree_sum<V>(x->high)));
#pragma unroll
      for (int i = 0; i < V; ++i) {
        x->low[i] = add_rounded(x->low[i], -mean);
        x->high[i] = add_rounded(x->high[i], -mean);
      }
    }
    const float inverse = inverse_norm(form(), sum_over_norm(1, sum_of_squares<V>(x->low), sum_of_squares<V>(x->high)));
    x->multiply(inverse);
    keep_values(x);
    return inverse;
  }

  __device__ __forceinline__ void add_up(const Values &gradient, const Values &normed) {
#pragma unroll
    for (int i = 0; i < V; ++i) {
      sum_[i] = add_rounded(sum_[i], multiply_rounded(gradient.low[i], normed.low[i]));
      sum_[V + i] = add_rounded(sum_[V + i], multiply_rounded(gradient.high[i], normed.high[i]));
    }
  }

  // Makes the gradient of the norm's input from that of its output.
  __device__ __forceinline__ void pass_norm(const Values &normed, float inverse, Values *gradient) const {
    const auto weigh = [&](int first, float *values) {
#pragma unroll
      for (int i = 0; i < V; i += 4) {
        float w[4];
        to_floats<float, 4>(weights_->four[(first + i) / 4], w);
#pragma unroll
        for (int j = 0; j < 4; ++j) values[i + j] = multiply_rounded(values[i + j], w[j]);
      }
    };
    weigh(0, gradient->low);
    weigh(V, gradient->high);
    const float products = sum_over_norm(0, sum_of_products<V>(gradient->low, normed.low),
                                         sum_of_products<V>(gradient->high, normed.high));
    const auto finish = [&](const NormGradientMeans<float> &means, auto has_mean) {
      const auto of_channel = [&](float weighed, float x) {
        return norm_gradient<decltype(has_mean)::value>(weighed, x, inverse, means);
      };
#pragma unroll
      for (int i = 0; i < V; ++i) {
        gradient->low[i] = of_channel(gradient->low[i], normed.low[i]);
        gradient->high[i] = of_channel(gradient->high[i], normed.high[i]);
      }
    };
    if (params_.norm.is_layer) {
      const float gradients = sum_over_norm(1, tree_sum<V>(gradient->low), tree_sum<V>(gradient->high));
      finish(means_of(form(), NormGradientSums<float>{products, gradients}), std::true_type());
    } else {
      finish({mean_of(form(), products), 0.0f}, std::false_type());
    }
  }

  // Processes token `token` of the run. Its angles are those in `slot`.
  __device__ __forceinline__ void take_back(uint32_t token, uint32_t slot) {
    const bool is_active = token < tokens_;
    bool turns = turns_ && is_active;
    if (params_.has_table && turns) turns = shared_.lost[slot] == 0;
    wait_for_copies<0>();
    Values gradient(*shared_.vector(Shared::kGiven), *shared_.vector(Shared::kGiven + 1));
    Values x(*shared_.vector(Shared::kRead), *shared_.vector(Shared::kRead + 1));
    keep_values(&gradient);
    keep_values(&x);
    // This token's vectors are in registers, so the next one's arrive while it is computed.
    load(token + 1);
    const bool has_factor = params_.has_factors && of_norm_.factor.data != nullptr;
    if (has_factor) {
      const StepAt at = find_token(params_, first_ + token);
      gradient.multiply(load_factor<T>(of_norm_.factor, tensor_.flags, at.batch, at.token, head_, is_active));
    }
    if (block_.group.is_normed) {
      if (turns && params_.is_after) turn_unit<true, V, IsInterleaved>(angles_, x.low, x.high);
      if (turns && !params_.is_after) turn_unit<false, V, IsInterleaved>(angles_, gradient.low, gradient.high);
      const float inverse = norm(&x);
      if (has_sums_ && is_active) add_up(gradient, x);
      pass_norm(x, inverse, &gradient);
      if (turns && params_.is_after) turn_unit<false, V, IsInterleaved>(angles_, gradient.low, gradient.high);
    } else if (turns) {
      turn_unit<false, V, IsInterleaved>(angles_, gradient.low, gradient.high);
    }
    if (writes_ && is_active) store(token, is_normed_ || turns || has_factor, &gradient);
  }

  __device__ __forceinline__ void store(uint32_t token, bool is_changed, Values *gradient) const {
    char *const out = const_cast<char *>(find_in(out_, tensor_.out, token));
    if (params_.accumulates) {
      gradient->add({load_vector<Vector<T, V>>(out), load_vector<Vector<T, V>>(out + place_.to_high)});
    } else if (!is_changed) {
      const char *const in = address_in(tensor_.in, first_ + token);
      const auto low = load_vector<Vector<T, V>>(in), high = load_vector<Vector<T, V>>(in + place_.to_high);
      store_vector(out, low);
      return store_vector(out + place_.to_high, high);
    }
    store_vector(out, from_floats<T, V>(gradient->low));
    store_vector(out + place_.to_high, from_floats<T, V>(gradient->high));
  }

  // Stores sums of heads, and adds up those over all heads. All threads of the block take part.
  __device__ __forceinline__ void end_part(uint32_t part) {
    const NormGradientGroup &group = block_.group;
    const bool is_by_head = of_norm_.weight_sums.is_by_head;
    if (has_sums_ && is_by_head && tokens_ > 0) {
#pragma unroll
      for (int i = 0; i < 2 * V; ++i) *sum_at(thread_.row, head_, channel_of(i)) = sum_[i];
    }
    wait_for_copies<0>();
    __syncthreads();  // the following code overwrites other threads' vectors
    const auto sums_of = [&](uint32_t row, uint32_t index) {
      return reinterpret_cast<float *>(shared_.own) + (row * group.row_threads + params_.tensor[index].begin) * (2 * V);
    };
    if (has_sums_ && !is_by_head && tokens_ > 0) {
      float *const of_head = sums_of(thread_.row, thread_.tensor) + thread_.head * channels();
#pragma unroll
      for (int i = 0; i < 2 * V; i += 4) {
        *reinterpret_cast<Words<16> *>(of_head + channel_of(i)) = from_floats<float, 4>(sum_ + i);
      }
    }
#pragma unroll 1
    for (uint32_t index = group.first_tensor; index < group.end_tensor; ++index) {
      if (!params_.gradient[index].weight_sums.is_added_up()) continue;
#pragma unroll 1
      for (uint32_t row = 0; row < group.rows; ++row) add_up_heads(part, row, index, sums_of(row, index));
    }
    __syncthreads();
  }

  __device__ __forceinline__ void add_up_heads(uint32_t part, uint32_t row, uint32_t index, float *sums) const {
    const NormGradientGroup &group = block_.group;
    const StepRowTensor &tensor = params_.tensor[index];
    const uint32_t channels = tensor.units_per_head * (2 * V), heads_of_part = group.row_threads >> tensor.lanes_log2;
    const uint32_t left = tensor.heads - part * heads_of_part;
    fold_sums(left < heads_of_part ? left : heads_of_part, channels, sums);
    if (group.parts > 1) {
      for (uint32_t channel = threadIdx.x; channel < channels; channel += blockDim.x) {
        shared_.part_sums[part * channels + channel] = sums[channel];
      }
      if (part + 1 < group.parts) return;
      sums = shared_.part_sums;
      fold_sums(group.parts, channels, sums);
    }
    if (block_.num_tokens(params_, row) == 0) return;
    const RunSums &of_runs = params_.gradient[index].weight_sums;
    for (uint32_t channel = threadIdx.x; channel < channels; channel += blockDim.x) {
      float *const to = reinterpret_cast<float *>(of_runs.data) + (block_.first_run + row) * of_runs.run_stride +
                        channel * of_runs.channel_stride;
      *to = add_rounded(*to, sums[channel]);
    }
  }

  const NormGradientRowParams &params_;
  const GradientBlock block_;
  const GradientThread thread_;
  const StepRowTensor &tensor_;
  const NormGradientRowTensor &of_norm_;
  const Shared shared_;
  const UnitPlace place_;
  bool is_normed_;
  bool turns_;
  bool writes_;
  bool has_sums_;
  UnitFloats *weights_ = nullptr;
  uint32_t head_ = 0;
  uint32_t first_ = 0;           // first token of the run
  uint32_t tokens_ = 0;          // tokens of the run; 0 if the thread has no unit
  float sum_[2 * V];             // sums over tokens, for the thread's channels
  const char *given_ = nullptr;  // address of its vectors in the run's first token
  const char *read_ = nullptr;
  char *out_ = nullptr;
  UnitFloats *angles_ = nullptr;  // the unit's angles in the next token
};

template <typename T, bool IsInterleaved, bool HasSums>
__global__ void __launch_bounds__(kMaxNormGradientThreads,
                                  min_blocks_per_multiprocessor(kNormGradientResidentThreads[HasSums],
                                                                kMaxNormGradientThreads))
    norm_gradient_rows_kernel(const __grid_constant__ NormGradientRowParams params) {
  begin_dependent_launch();
  extern __shared__ float4 shared[];
  GradientRun<T, IsInterleaved, HasSums> run(params, shared);
  wait_for_previous_launch();
  run.process();
}

template <typename T>
Kernel find_norm_gradient_rows_kernel(const StepVariant &variant) {
  const auto find = [&](auto is_interleaved) {
    constexpr bool kIsInterleaved = decltype(is_interleaved)::value;
    return variant.has_more ? kernel_of(norm_gradient_rows_kernel<T, kIsInterleaved, true>)
                            : kernel_of(norm_gradient_rows_kernel<T, kIsInterleaved, false>);
  };
  return variant.is_interleaved ? find(std::true_type()) : find(std::false_type());
}

}  // namespace rope
