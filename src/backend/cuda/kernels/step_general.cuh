// SPDX-License-Identifier: Apache-2.0
// step_general.cuh - norms, rotation and caches of every problem: any strides, types, widths, sequences, tables and
// pages
//
// A block has a token, or some of its heads, `heads_per_block` of q's, k's and v's in this order. Each of its warps
// processes one head after another:
//
//   block b of the grid    token b / blocks_per_token, part b % blocks_per_token; then block b + gridDim.x, …
// //   warp w                 heads w, w + warps, … of the part; with a norm over a token the part is the whole token
//   lane l                 channels l, l + 32, …
//
//   shared   the token's place; cosines and sines of its pairs, as in rope_general.cuh; sums of heads; then for each
//            warp a head three times: as it was read; as numbers in the order of the input, later replaced by the
//            factors of groups; and in the order of the output
//
//   look up the token ─ barrier ─ angles ─ barrier ─ for each head: load ─ norm ─ rotate ─ norm ─ factor ─ for each
//   destination: scales ─ store
//
// Each head is read once and written once to each of its destinations. A norm over a token reads it once or twice more.
#pragma once

#include "backend/cuda/kernels/codes.cuh"
#include "backend/cuda/kernels/general_angles.cuh"
#include "backend/cuda/kernels/kernel.hpp"
#include "backend/cuda/kernels/programmatic_launch.cuh"
#include "backend/cuda/kernels/step_general_parts.cuh"
#include "plan/step_kernels.hpp"

namespace rope {

struct StepToken {
  TokenInfo info;
  CachePlace place;
};

// A warp's head in shared memory, and the operations on it.
template <typename T>
class StepHead {
 public:
  using Real = RealOf<T>;

  __device__ __forceinline__ StepHead(const StepGeneralParams &params, const StepGeneralTensor &tensor, BatchToken at,
                                      bool is_turned, const GeneralAngles<Real> &angles, char *rows)
      : params_(params), tensor_(tensor), at_(at), is_turned_(is_turned), angles_(angles) {
    const bool is_cached = tensor.cache.data != nullptr, has_window_alone = tensor.is_written && !tensor.is_whole;
    begin_ = has_window_alone && !is_cached ? tensor.window_begin : 0;
    end_ = has_window_alone && !is_cached ? tensor.window_begin + params.rotary_dim : tensor.channels;
    if (!tensor.is_written && !is_cached) end_ = begin_;
    const uint32_t warp = threadIdx.x / 32;
    const int room = params.row_channels;
    char *const mine = rows + warp * room * (2 * sizeof(Real) + sizeof(T));
    in_order_ = reinterpret_cast<Real *>(mine);
    moved_ = in_order_ + room;
    raw_ = reinterpret_cast<T *>(moved_ + room);
  }

  // The numbers that are normed.
  __device__ __forceinline__ Real *normed() const { return params_.is_after ? moved_ : in_order_; }

  __device__ __forceinline__ void load(int64_t head) {
    __syncwarp();
    head_ = head;
    const char *const data = address_in(tensor_.in, head);
    const bool has_pass = tensor_.pass.data != nullptr;
    const char *const pass = has_pass ? address_in(tensor_.pass, head) : nullptr;
#pragma unroll 1
    for (int c = begin_ + lane(); c < end_; c += 32) {
      const char *element = data + c * tensor_.in.stride[kChannel];
      if (has_pass && !is_inside(c)) {
        element = pass + (c < tensor_.window_begin ? c : c - params_.rotary_dim) * tensor_.pass.stride[kChannel];
      }
      raw_[c] = *reinterpret_cast<const T *>(element);
      in_order_[c] = to_real<Real>(raw_[c]);
    }
    __syncwarp();
    if (params_.is_after) rotate();
  }

  __device__ __forceinline__ Real sum(Real mean, bool of_squares) const {
    return sum_by_warp<Real>({normed(), tensor_.channels, of_squares, mean}, tensor_.channels);
  }

  __device__ __forceinline__ void normalise(const NormForm<Real> &form, Real mean, Real inverse) {
    Real *const x = normed();
#pragma unroll 1
    for (int c = lane(); c < tensor_.channels; c += 32) {
      Real y = form.is_layer ? add_rounded(x[c], -mean) : x[c];
      y = scale_channel<T>(form, y, inverse);
      if (tensor_.weight.data != nullptr) {
        y = weigh_channel<T>(form, y, load_number<Real>(tensor_.weight, kDtypeOf<T>, head_, c));
      } else if (form.rounds_after_weight) {
        y = to_real<Real>(round_to<T>(y));
      }
      if (tensor_.bias.data != nullptr) {
        y = add_bias<T>(form, y, load_number<Real>(tensor_.bias, kDtypeOf<T>, head_, c));
      }
      x[c] = y;
    }
    __syncwarp();
  }

  // Rotates from in_order_ to moved_.
  __device__ __forceinline__ void rotate() {
    const int begin = tensor_.window_begin, end = begin + params_.rotary_dim;
    if (!is_turned_) {
#pragma unroll 1
      for (int c = begin_ + lane(); c < end_; c += 32) moved_[c] = in_order_[source_of(c)];
    } else {
#pragma unroll 1
      for (int c = begin_ + lane(); c < end_; c += 32) {
        if (c < begin || c >= end) moved_[c] = in_order_[c];
      }
      const int y_angle = params_.table.is_by_channel ? 1 : 0;
#pragma unroll 1
      for (int pair = lane(); pair < params_.rotary_dim / 2; pair += 32) {
        const int from = begin + first_channel(pair, params_.in_distance),
                  to = begin + first_channel(pair, params_.out_distance);
        const Pair<Real> in = {in_order_[from], in_order_[from + params_.in_distance]};
        const CosSin<Real> of_x = {angles_.cos(0)[pair], angles_.sin(0)[pair]},
                           of_y = {angles_.cos(y_angle)[pair], angles_.sin(y_angle)[pair]};
        Pair<Real> out = rope::rotate<Real>(in, of_x, of_y);
        if constexpr (sizeof(T) == 2) {
          if (params_.rounded_dtype != 0) out = rounded_to<T>(rotate_in<T>(in, of_x, of_y));
        }
        moved_[to] = out.x;
        moved_[to + params_.out_distance] = out.y;
      }
    }
    __syncwarp();
  }

  __device__ __forceinline__ void scale() {
    const RowFactor &factor = tensor_.factor;
    const Real by = load_real<Real>(factor.data, factor.is_f32 ? ROPE_DTYPE_F32 : kDtypeOf<T>,
                                    factor.offset_of(at_.batch, at_.token, head_));
#pragma unroll 1
    for (int c = begin_ + lane(); c < end_; c += 32) moved_[c] = multiply_rounded(moved_[c], by);
    __syncwarp();
  }

  __device__ __forceinline__ void store(const CachePlace &place) {
    const bool is_cached = tensor_.cache.data != nullptr && place.is_cached;
#pragma unroll 1
    for (int number = 0; number < 3; ++number) {
      Destination to;
      if (number == 0) {
        if (!tensor_.is_written) continue;
        const int begin = tensor_.window_begin;
        to = {address_in(tensor_.out, head_),
              tensor_.out.stride[kChannel],
              tensor_.out_dtype,
              {true, tensor_.is_whole, begin, begin + params_.rotary_dim},
              &tensor_.scale,
              &tensor_.out_scales,
              tensor_.out_scales.row(at_.batch, at_.token)};
      } else {
        const bool is_first = number == 1;
        const CacheView &cache = is_first ? tensor_.cache : tensor_.pass_cache;
        if (!is_cached || cache.data == nullptr) continue;
        to.data =
            cache.data + place.page * cache.page_stride + place.entry * cache.entry_stride + head_ * cache.head_stride;
        to.channel_stride = cache.channel_stride;
        to.dtype = cache.dtype;
        to.part = is_first ? tensor_.cache_part : ChannelPart::others(tensor_.window_begin);
        to.scale = is_first ? &tensor_.scale : &tensor_.pass_scale;
        to.scales = is_first ? &tensor_.cache_scales : &tensor_.pass_scales;
        to.scales_row = to.scales->row(place.page, place.entry);
      }
      store_to(to);
    }
  }

 private:
  struct Destination {
    char *data;
    int64_t channel_stride;
    rope_dtype_t dtype;
    ChannelPart part;
    const StaticScale *scale;
    const WrittenScales *scales;
    int64_t scales_row;
  };

  __device__ __forceinline__ bool is_inside(int channel) const {
    return channel >= tensor_.window_begin && channel < tensor_.window_begin + params_.rotary_dim;
  }

  // Stores a head. Values that are only moved keep their bits.
  __device__ __forceinline__ void store_to(const Destination &to) {
    const int begin = tensor_.window_begin, end = begin + params_.rotary_dim;
    if (is_code(to.dtype)) prepare_codes(to);
#pragma unroll 1
    for (int c = begin_ + lane(); c < end_; c += 32) {
      if (!(is_inside(c) ? to.part.has_window : to.part.has_others)) continue;
      const int index = to.part.index_of(c, begin, end);
      char *const address = to.data + index * to.channel_stride;
      const bool is_computed = tensor_.is_normed || tensor_.factor.is_present() || (is_turned_ && is_inside(c));
      if (is_code(to.dtype)) {
        store_rounded<T>(address, to.dtype, multiply_rounded(before_code(c), code_factor_of(index)));
      } else if (params_.accumulates) {
        store_rounded<T>(address, to.dtype, add_rounded(moved_[c], load_real<Real>(address, to.dtype, 0)));
      } else if (!is_computed && to.dtype == kDtypeOf<T>) {
        *reinterpret_cast<T *>(address) = raw_[source_of(c)];
      } else {
        store_rounded<T>(address, to.dtype, moved_[c]);
      }
    }
  }

  __device__ __forceinline__ static int lane() {
    return static_cast<int>(threadIdx.x % 32);
  }

  __device__ __forceinline__ char *address_in(const RopeSide &side, int64_t head) const {
    return side.data + at_.batch * side.stride[kBatch] + at_.token * side.stride[kToken] + head * side.stride[kHead];
  }

  // The input channel of an output channel that is not turned.
  __device__ __forceinline__ int source_of(int channel) const {
    const int in_window = channel - tensor_.window_begin;
    if (!tensor_.has_styles || in_window < 0 || in_window >= params_.rotary_dim) return channel;
    return tensor_.window_begin + moved_channel(in_window, params_.out_distance, params_.in_distance);
  }

  // Finds the factors that make values into codes, and raises the largest magnitude.
  __device__ __forceinline__ void prepare_codes(const Destination &to) {
    code_factor_ = 1;
    group_channels_ = 0;
    if (to.scale->data != nullptr) {
      const float given = reinterpret_cast<const float *>(to.scale->data)[head_ * to.scale->head_stride];
      code_factor_ = code_factor(given, params_.scale_multiplies);
    }
    const int count = to.part.count(tensor_.channels, params_.rotary_dim);
    if (tensor_.amax != nullptr) {
      const uint32_t max = largest_magnitude(to.part, 0, count);
      if (lane() == 0) atomicMax(reinterpret_cast<uint32_t *>(tensor_.amax), max);
    }
    if (to.scales->is_present()) write_scales(to, count / to.scales->groups);
  }

  // Returns the bits of the largest magnitude among values of a destination's channels from `first` to `last`, in every
  // lane.
  __device__ __forceinline__ uint32_t largest_magnitude(const ChannelPart &part, int first, int last) const {
    const int begin = tensor_.window_begin, end = begin + params_.rotary_dim;
    uint32_t max = 0;
#pragma unroll 1
    for (int index = first + lane(); index < last; index += 32) {
      const Real value = before_code(part.channel_of(index, begin, end));
      const uint32_t magnitude = bits_of(static_cast<float>(value)) & 0x7fffffffu;
      max = magnitude > max ? magnitude : max;
    }
    return max_over_lanes(max, 5);
  }

  // Writes the scales of a destination. The factors of values go to in_order_, which is no longer needed.
  __device__ __forceinline__ void write_scales(const Destination &to, int channels) {
    const WrittenScales &scales = *to.scales;
    __syncwarp();
#pragma unroll 1
    for (int group = 0; group < scales.groups; ++group) {
      const uint32_t magnitude = largest_magnitude(to.part, group * channels, (group + 1) * channels);
      const GroupScale scale = written_scale(scales, to.dtype == ROPE_DTYPE_F8_E5M2, magnitude);
      if (lane() == 0) {
        scales.store(to.scales_row, head_, group, scale.bits);
        in_order_[group] = scale.factor;
      }
    }
    __syncwarp();
    group_channels_ = channels;
  }

  __device__ __forceinline__ Real code_factor_of(int index) const {
    return group_channels_ != 0 ? in_order_[index / group_channels_] : code_factor_;
  }

  __device__ __forceinline__ Real before_code(int channel) const {
    return params_.rounds_before_codes ? to_real<Real>(round_to<T>(moved_[channel])) : moved_[channel];
  }

  const StepGeneralParams &params_;
  const StepGeneralTensor &tensor_;
  const BatchToken at_;
  const bool is_turned_;
  const GeneralAngles<Real> angles_;
  int begin_;  // first of the channels that are read
  int end_;
  int64_t head_ = 0;
  Real code_factor_ = 1;
  int group_channels_ = 0;  // channels of a group with its factor in in_order_; 0: code_factor_ holds for all
  Real *in_order_;
  Real *moved_;
  T *raw_;
};

template <typename T>
__device__ __forceinline__ RealOf<T> sum_of_token(const StepGeneralParams &params, int64_t heads, StepHead<T> *head,
                                                  RealOf<T> mean, bool of_squares, RealOf<T> *head_sums) {
  const auto sum_of = [&](int64_t number) {
    head->load(number);
    return head->sum(mean, of_squares);
  };
  return sum_over_heads(params.warps, heads, head_sums, sum_of, sum_by_warp<RealOf<T>>);
}

template <typename T>
__device__ __forceinline__ void run_heads(const StepGeneralParams &params, const StepGeneralTensor &tensor,
                                          BatchToken at, const StepToken &token, const GeneralAngles<RealOf<T>> &angles,
                                          RealOf<T> *head_sums, char *rows, int64_t first, int64_t end) {
  using Real = RealOf<T>;
  const NormForm<Real> form = norm_form_in<Real>(tensor.norm);
  StepHead<T> head(params, tensor, at, tensor.is_turned && token.info.state == kRotated, angles, rows);
  const bool is_of_token = tensor.is_normed && params.is_of_token;
  Real mean = 0, inverse = 0;
  if (is_of_token) {
    if (form.is_layer) mean = mean_of(form, sum_of_token<T>(params, tensor.heads, &head, Real{0}, false, head_sums));
    inverse = inverse_norm(form, sum_of_token<T>(params, tensor.heads, &head, mean, true, head_sums));
  }
  const int64_t warp = threadIdx.x / 32;
  if (warp >= params.warps) return;
  for (int64_t number = first + warp; number < end; number += params.warps) {
    head.load(number);
    if (tensor.is_normed && !is_of_token) {
      mean = form.is_layer ? mean_of(form, head.sum(Real{0}, false)) : Real{0};
      inverse = inverse_norm(form, head.sum(mean, true));
    }
    if (tensor.is_normed) head.normalise(form, mean, inverse);
    if (!params.is_after) head.rotate();
    if (tensor.factor.is_present()) head.scale();
    head.store(token.place);
  }
}

template <typename T>
__global__ void __launch_bounds__(kMaxStepGeneralThreads)
    step_general_kernel(const __grid_constant__ StepGeneralParams params) {
  using Real = RealOf<T>;
  begin_dependent_launch();
  extern __shared__ float4 shared[];
  StepToken *const token = reinterpret_cast<StepToken *>(shared);
  const uint32_t pairs = params.pairs.divisor;
  static_assert(sizeof(StepToken) <= kStepTokenBytes, "");
  const GeneralAngles<Real> angles = {reinterpret_cast<Real *>(reinterpret_cast<char *>(shared) + kStepTokenBytes),
                                      params.is_turned ? pairs : 0};
  Real *const head_sums = angles.cos(params.table.is_by_channel ? 2 : 1);
  char *const rows = reinterpret_cast<char *>(head_sums + (params.is_of_token ? kStepHeadSums : 0));
  wait_for_previous_launch();
  check_sequences(params);
  for (int64_t block = blockIdx.x; block < params.num_tokens * params.blocks_per_token; block += gridDim.x) {
    const int64_t flat_token = block / params.blocks_per_token, part = block % params.blocks_per_token;
    const BatchToken at = {flat_token / params.tokens_per_batch, flat_token % params.tokens_per_batch};
    __syncthreads();
    if (threadIdx.x == 0) {
      token->info = look_up_token(params, at, part == 0);
      token->place = {};
      if (params.has_caches && token->info.state != kAbsent) {
        const uint64_t position = position_on(params, 0, token->info.batch, at.token, token->info.index);
        token->place =
            find_cache_place(params.places, at.batch, at.token, token->info.batch, static_cast<int64_t>(position));
        if (token->place.is_faulty && part == 0) count_fault(params.fault, flat_token);
      }
    }
    __syncthreads();
    if (token->info.state == kAbsent) continue;
    if (params.is_turned && token->info.state == kRotated) {
      for (uint32_t pair = threadIdx.x; pair < pairs; pair += blockDim.x) {
        share_general_angle(params, pair, pair, at, token->info, angles);
      }
    }
    __syncthreads();
    int64_t first = part * params.heads_per_block;  // number in the part, counted from the present tensor's first head
#pragma unroll 1
    for (int i = 0; i < params.num_tensors; ++i) {
      const StepGeneralTensor &tensor = params.tensor[i];
      const int64_t end = first + params.heads_per_block;
      if (first < tensor.heads && end > 0) {
        run_heads<T>(params, tensor, at, *token, angles, head_sums, rows, first > 0 ? first : 0,
                     end < tensor.heads ? end : tensor.heads);
      }
      first -= tensor.heads;
    }
  }
}

template <typename T>
Kernel find_step_general_kernel(const StepVariant &) {
  return kernel_of(step_general_kernel<T>);
}

}  // namespace rope
