// SPDX-License-Identifier: Apache-2.0
// norm_gradient.cuh - backward of norms with the rotation, for every problem: any strides, types, widths, sequences and
// tables
//
// A block has a run of a tensor's tokens, and processes one token after another. A tensor without sums has runs of one
// token. Each warp of the block processes one head after another, the same heads of every token:
//
//   block b of the grid    item b, b + gridDim.x, …: the runs of q, then those of k, then those of v
//   warp w                 heads w, w + warps, …
//   lane l                 channels l, l + 32, …
//
//   shared   where the token stands; cosines and sines of its pairs; sums of heads; then for each warp a head three
//            times: its gradient, its input of forward, and another order of either; then sums over tokens, for some
//            channels of all heads
//
//   for each part of the channels that the sums have room for, and each token of the run:
//   look up the token ─ barrier ─ angles ─ barrier ─ for each head: load ─ norm again ─ sums ─ gradient ─ store
//
// norm.hpp has the formulas. The template's parameter is the type of the arithmetic. Types of data are numbers in
// params, so that there are only two kernels.
//
// The gradient of each head is read once and written once, and the input of forward is read once. A norm over a token
// reads both once or twice more, and each further part of the sums does so, too.
#pragma once

#include "backend/cuda/kernels/kernel.hpp"
#include "backend/cuda/kernels/programmatic_launch.cuh"
#include "backend/cuda/kernels/step_general_parts.cuh"
#include "plan/step_kernels.hpp"

namespace rope {

// __noinline__ functions appear in the kernel once: inlined everywhere, they would make it four times as large.
template <typename Real>
__device__ __noinline__ Real sum_once(const SummedNumbers<Real> &numbers, int n) {
  return sum_by_warp<Real>(numbers, n);
}

template <typename Real>
__device__ __forceinline__ void store_real(char *address, rope_dtype_t dtype, Real value) {
  if constexpr (sizeof(Real) == 8) {
    *reinterpret_cast<double *>(address) = value;
  } else {
    store_rounded<float>(address, dtype, value);
  }
}

// A warp's head in shared memory, in backward.
template <typename Real>
class GradientHead {
 public:
  __device__ __forceinline__ GradientHead(const NormGradientParams &params, int index, BatchToken at, bool is_turned,
                                          const GeneralAngles<Real> &angles, Real *rows)
      : params_(params),
        tensor_(params.tensor[index]),
        of_norm_(params.gradient[index]),
        at_(at),
        is_turned_(is_turned),
        angles_(angles),
        gradient_(rows + threadIdx.x / 32 * (3 * params.row_channels)),
        x_(gradient_ + params.row_channels),
        other_(x_ + params.row_channels) {}

  // Loads the gradient of the norm's output, and the norm's input.
  __device__ __noinline__ void load(int64_t head) {
    __syncwarp();
    head_ = head;
    const bool is_after = params_.is_after;
    read(tensor_.in, is_after ? gradient_ : other_);
    if (tensor_.factor.is_present()) scale(is_after ? gradient_ : other_);
    __syncwarp();
    if (!is_after) turn(other_, gradient_, params_.in_distance, params_.out_distance, false);
    __syncwarp();
    read(of_norm_.in, is_after ? other_ : x_);
    __syncwarp();
    if (is_after) turn(other_, x_, params_.out_distance, params_.in_distance, true);
    __syncwarp();
  }

  __device__ __forceinline__ Real sum(Real mean, bool of_squares) const {
    return sum_once<Real>({x_, tensor_.channels, of_squares, mean}, tensor_.channels);
  }

  // Replaces the norm's input by its normed values, before the weight.
  __device__ __forceinline__ void normalise(Real mean, Real inverse) {
    for_each_channel([&](int c) { x_[c] = multiply_rounded(add_rounded(x_[c], -mean), inverse); });
  }

  __device__ __forceinline__ void add_up(const HeadSums<Real> &weights, const HeadSums<Real> &biases) const {
    add_terms(weights, [&](int c) { return multiply_rounded(gradient_[c], x_[c]); });
    add_terms(biases, [&](int c) { return gradient_[c]; });
    __syncwarp();  // sums that begin inside the channels give these to other lanes than the following loop
  }

  __device__ __noinline__ NormGradientSums<Real> weigh_and_sum(const NormForm<Real> &form) {
    for_each_channel([&](int c) {
      if (tensor_.weight.data != nullptr) {
        const Real weight = load_number<Real>(tensor_.weight, params_.dtype, head_, c);
        gradient_[c] = multiply_rounded(gradient_[c], add_rounded(weight, form.weight_offset));
      }
      other_[c] = multiply_rounded(gradient_[c], x_[c]);
    });
    const int n = tensor_.channels;
    return {sum_once<Real>({other_, n, false, 0}, n),
            form.is_layer ? sum_once<Real>({gradient_, n, false, 0}, n) : Real{0}};
  }

  __device__ __forceinline__ void finish(Real inverse, const NormGradientMeans<Real> &means) {
    for_each_channel([&](int c) { gradient_[c] = norm_gradient(gradient_[c], x_[c], inverse, means); });
    const Real *result = gradient_;
    if (params_.is_after) {
      turn(gradient_, other_, params_.in_distance, params_.out_distance, false);
      __syncwarp();
      result = other_;
    }
    char *const out = address_in(tensor_.out);
    for_each_channel([&](int c) { store(out + c * tensor_.out.stride[kChannel], result[c]); });
  }

  // A head of a tensor without a norm: only the rotation. Values that are only moved keep their bits.
  __device__ __noinline__ void pass(int64_t head) {
    __syncwarp();
    head_ = head;
    const bool has_window_alone = !tensor_.is_whole;
    const int first = has_window_alone ? tensor_.window_begin : 0;
    const int end = has_window_alone ? first + params_.rotary_dim : tensor_.channels;
    const char *const in = address_in(tensor_.in);
    // Types of 16 or 32 bits are copied as bits. F64 needs none of this: no conversion changes it.
    const bool is_short = params_.dtype == ROPE_DTYPE_F16 || params_.dtype == ROPE_DTYPE_BF16;
    uint32_t *const bits = reinterpret_cast<uint32_t *>(x_);
    for_each_channel(first, end, [&](int c) {
      const char *const element = in + c * tensor_.in.stride[kChannel];
      other_[c] = load_real<Real>(element, params_.dtype, 0);
      if constexpr (sizeof(Real) == 4) {
        bits[c] =
            is_short ? *reinterpret_cast<const uint16_t *>(element) : *reinterpret_cast<const uint32_t *>(element);
      }
    });
    turn(other_, gradient_, params_.in_distance, params_.out_distance, false);
    __syncwarp();
    if (tensor_.factor.is_present()) scale(gradient_);
    char *const out = address_in(tensor_.out);
    const int window_end = tensor_.has_styles ? tensor_.window_begin + params_.rotary_dim : tensor_.window_begin;
    for_each_channel(first, end, [&](int c) {
      char *const address = out + c * tensor_.out.stride[kChannel];
      const bool is_inside = c >= tensor_.window_begin && c < window_end;
      if (tensor_.factor.is_present() || params_.accumulates || tensor_.out_dtype != params_.dtype ||
          (is_turned_ && is_inside)) {
        store(address, gradient_[c]);
        return;
      }
      const int in_window = c - tensor_.window_begin;
      const int source =
          is_inside ? tensor_.window_begin + moved_channel(in_window, params_.out_distance, params_.in_distance) : c;
      if constexpr (sizeof(Real) == 8) {
        *reinterpret_cast<double *>(address) = other_[source];
      } else if (is_short) {
        *reinterpret_cast<uint16_t *>(address) = static_cast<uint16_t>(bits[source]);
      } else {
        *reinterpret_cast<uint32_t *>(address) = bits[source];
      }
    });
  }

 private:
  template <typename Visit>
  __device__ __forceinline__ void for_each_channel(int first, int end, const Visit &visit) const {
#pragma unroll 1
    for (int c = first + static_cast<int>(threadIdx.x % 32); c < end; c += 32) visit(c);
    __syncwarp();
  }

  template <typename Visit>
  __device__ __forceinline__ void for_each_channel(const Visit &visit) const {
    for_each_channel(0, tensor_.channels, visit);
  }

  __device__ __forceinline__ void store(char *address, Real value) const {
    if (params_.accumulates) value = add_rounded(value, load_real<Real>(address, tensor_.out_dtype, 0));
    store_real(address, tensor_.out_dtype, value);
  }

  __device__ __forceinline__ char *address_in(const RopeSide &side) const {
    return side.data + at_.batch * side.stride[kBatch] + at_.token * side.stride[kToken] + head_ * side.stride[kHead];
  }

  __device__ __forceinline__ void read(const RopeSide &side, Real *row) const {
    const char *const data = address_in(side);
    for_each_channel([&](int c) { row[c] = load_real<Real>(data + c * side.stride[kChannel], params_.dtype, 0); });
  }

  __device__ __forceinline__ void scale(Real *row) const {
    const RowFactor &factor = tensor_.factor;
    const Real by = load_real<Real>(factor.data, factor.is_f32 ? ROPE_DTYPE_F32 : params_.dtype,
                                    factor.offset_of(at_.batch, at_.token, head_));
    for_each_channel([&](int c) { row[c] = multiply_rounded(row[c], by); });
  }

  // Changes the order of the channels by the angles of backward or by those of forward. Forward's have exchanged and
  // negated sines.
  __device__ __forceinline__ void turn(const Real *from, Real *to, int in_distance, int out_distance,
                                       bool is_forward) const {
    const int begin = tensor_.window_begin, end = tensor_.has_styles ? begin + params_.rotary_dim : begin;
    for_each_channel([&](int c) {
      if (c < begin || c >= end) to[c] = from[c];
    });
    const int y_angle = params_.table.is_by_channel ? 1 : 0;
#pragma unroll 1
    for (int pair = static_cast<int>(threadIdx.x % 32); pair < (end - begin) / 2; pair += 32) {
      const int at = begin + first_channel(pair, in_distance), to_at = begin + first_channel(pair, out_distance);
      const Pair<Real> in = {from[at], from[at + in_distance]};
      Pair<Real> out = in;
      if (is_turned_) {
        const Real sin_x = angles_.sin(0)[pair], sin_y = angles_.sin(y_angle)[pair];
        const CosSin<Real> of_x = {angles_.cos(0)[pair], is_forward ? -sin_y : sin_x},
                           of_y = {angles_.cos(y_angle)[pair], is_forward ? -sin_x : sin_y};
        out = rope::rotate<Real>(in, of_x, of_y);
        if constexpr (sizeof(Real) == 4) {
          if (params_.rounded_dtype == ROPE_DTYPE_F16) out = rounded_to<Float16>(rotate_in<Float16>(in, of_x, of_y));
          if (params_.rounded_dtype == ROPE_DTYPE_BF16) out = rounded_to<BFloat16>(rotate_in<BFloat16>(in, of_x, of_y));
        }
      }
      to[to_at] = out.x;
      to[to_at + out_distance] = out.y;
    }
  }

  template <typename TermOf>
  __device__ __forceinline__ void add_terms(const HeadSums<Real> &to, const TermOf &term_of) const {
    if (to.data == nullptr) return;
    Real *const sums = to.data + head_ * to.head_stride;
#pragma unroll 1
    for (int c = to.begin + static_cast<int>(threadIdx.x % 32); c < to.end; c += 32) {
      Real *const sum = sums + (c - to.begin) * to.channel_stride;
      *sum = add_rounded(*sum, term_of(c));
    }
  }

  const NormGradientParams &params_;
  const StepGeneralTensor &tensor_;
  const NormGradientTensor &of_norm_;
  const BatchToken at_;
  const bool is_turned_;
  const GeneralAngles<Real> angles_;
  int64_t head_ = 0;
  Real *gradient_;
  Real *x_;
  Real *other_;
};

// Processes all heads of a tensor's token. With `is_last` it writes gradients; otherwise it only computes sums.
template <typename Real>
__device__ __forceinline__ void run_gradient_heads(const NormGradientParams &params, int index, BatchToken at,
                                                   bool is_turned, const GeneralAngles<Real> &angles, Real *head_sums,
                                                   Real *rows, const HeadSums<Real> &weights,
                                                   const HeadSums<Real> &biases, bool is_last) {
  const StepGeneralTensor &tensor = params.tensor[index];
  const NormForm<Real> form = norm_form_in<Real>(tensor.norm);
  GradientHead<Real> head(params, index, at, is_turned, angles, rows);
  Real mean = 0, inverse = 0;
  NormGradientMeans<Real> means = {};
  if (params.is_of_token) {
    const auto sum_over = [&](const auto &sum_of) {
      const auto sum_of_head = [&](int64_t number) {
        head.load(number);
        return sum_of();
      };
      return sum_over_heads(params.warps, tensor.heads, head_sums, sum_of_head, sum_once<Real>);
    };
#pragma unroll 1
    for (int which = form.is_layer ? 0 : 1; which < 2; ++which) {
      const Real sum = sum_over([&] { return head.sum(mean, which == 1); });
      if (which == 0) mean = mean_of(form, sum);
      if (which == 1) inverse = inverse_norm(form, sum);
    }
    if (is_last) {
#pragma unroll 1
      for (int which = 0; which < (form.is_layer ? 2 : 1); ++which) {
        const Real sum = sum_over([&] {
          head.normalise(mean, inverse);
          const NormGradientSums<Real> sums = head.weigh_and_sum(form);
          return which == 0 ? sums.products : sums.gradients;
        });
        (which == 0 ? means.products : means.gradients) = mean_of(form, sum);
      }
    }
  }
  const int64_t warp = threadIdx.x / 32;
  if (warp >= params.warps) return;
  for (int64_t number = warp; number < tensor.heads; number += params.warps) {
    head.load(number);
    if (!params.is_of_token) {
      mean = form.is_layer ? mean_of(form, head.sum(Real{0}, false)) : Real{0};
      inverse = inverse_norm(form, head.sum(mean, true));
    }
    head.normalise(mean, inverse);
    head.add_up(weights, biases);
    if (!is_last) continue;
    const NormGradientSums<Real> sums = head.weigh_and_sum(form);
    if (!params.is_of_token) means = means_of(form, sums);
    head.finish(inverse, means);
  }
}

template <typename Real>
__global__ void __launch_bounds__(kMaxStepGeneralThreads)
    norm_gradient_kernel(const __grid_constant__ NormGradientParams params) {
  begin_dependent_launch();
  extern __shared__ float4 shared[];
  TokenInfo *const info = reinterpret_cast<TokenInfo *>(shared);
  const uint32_t pairs = params.pairs.divisor;
  const GeneralAngles<Real> angles = {reinterpret_cast<Real *>(reinterpret_cast<char *>(shared) + kStepTokenBytes),
                                      params.is_turned ? pairs : 0};
  Real *const head_sums = angles.cos(params.table.is_by_channel ? 2 : 1);
  Real *const rows = head_sums + (params.is_of_token ? kStepHeadSums : 0);
  Real *const kept = rows + static_cast<int64_t>(3 * params.row_channels) * params.warps;
  wait_for_previous_launch();
  check_sequences(params);

  // Processes a run's tokens once. Returns whether any of them exists.
  const auto do_tokens = [&](int index, int64_t first, int64_t end, const HeadSums<Real> &weights,
                             const HeadSums<Real> &biases, bool is_last, bool counts_faults) {
    const StepGeneralTensor &tensor = params.tensor[index];
    bool has_tokens = false;
    for (int64_t flat = first; flat < end; ++flat) {
      const BatchToken at = {flat / params.tokens_per_batch, flat % params.tokens_per_batch};
      __syncthreads();
      if (threadIdx.x == 0) *info = look_up_token(params, at, counts_faults);
      __syncthreads();
      if (info->state == kAbsent) continue;
      has_tokens = true;
      if (params.is_turned && info->state == kRotated) {
        for (uint32_t pair = threadIdx.x; pair < pairs; pair += blockDim.x) {
          share_general_angle(params, pair, pair, at, *info, angles);
        }
      }
      __syncthreads();
      const bool is_turned = tensor.is_turned && info->state == kRotated;
      if (tensor.is_normed) {
        run_gradient_heads<Real>(params, index, at, is_turned, angles, head_sums, rows, weights, biases, is_last);
      } else if (tensor.is_written && threadIdx.x / 32 < params.warps) {
        GradientHead<Real> head(params, index, at, is_turned, angles, rows);
        for (int64_t number = threadIdx.x / 32; number < tensor.heads; number += params.warps) head.pass(number);
      }
    }
    return has_tokens;
  };

  for (int64_t item = blockIdx.x; item < params.num_items; item += gridDim.x) {
    int index = 0;
    while (index < 2 && item >= params.gradient[index].end_item) ++index;
    const StepGeneralTensor &tensor = params.tensor[index];
    const NormGradientTensor &mine = params.gradient[index];
    const int64_t run = item - (index > 0 ? params.gradient[index - 1].end_item : 0);
    const int64_t first = run * mine.tokens_of_run, behind = first + mine.tokens_of_run;
    const int64_t end = behind < params.num_tokens ? behind : params.num_tokens;
    const RunSums *const kinds[] = {&mine.weight_sums, &mine.bias_sums};
    HeadSums<Real> by_head[2] = {};
    int passes[2] = {};  // over the channels of sums of all heads
    for (int kind = 0; kind < 2; ++kind) {
      const RunSums &sums = *kinds[kind];
      if (sums.is_added_up()) {
        passes[kind] = (tensor.channels - 1) / mine.kept_channels + 1;
      } else if (sums.is_present()) {
        Real *const row = reinterpret_cast<Real *>(sums.data) + run * sums.run_stride;
        by_head[kind] = {row, sums.head_stride, sums.channel_stride, 0, tensor.channels};
      }
    }
    const int last_pass = passes[0] + passes[1] > 0 ? passes[0] + passes[1] - 1 : 0, width = mine.kept_channels;
#pragma unroll 1
    for (int pass = 0; pass <= last_pass; ++pass) {
      const int kind = pass < passes[0] ? 0 : 1;
      const int begin = (pass - (kind == 0 ? 0 : passes[0])) * width, left = tensor.channels - begin;
      const int end_channel = left < width ? tensor.channels : begin + width;
      const bool is_last = pass == last_pass, has_kept = passes[kind] > 0;
      HeadSums<Real> sums[2] = {};
      if (is_last) sums[0] = by_head[0], sums[1] = by_head[1];
      if (has_kept) {
        sums[kind] = {kept, width, 1, begin, end_channel};
        __syncthreads();
        for (int64_t i = threadIdx.x; i < tensor.heads * width; i += blockDim.x) kept[i] = 0;
      }
      const bool counts_faults = pass == 0 && index == params.counting_tensor;
      const bool has_terms = do_tokens(index, first, end, sums[0], sums[1], is_last, counts_faults);
      if (!has_kept || !has_terms) continue;
      __syncthreads();
      const RunSums &rows = *kinds[kind];
      Real *const row = reinterpret_cast<Real *>(rows.data) + run * rows.run_stride;
      for (int c = begin + static_cast<int>(threadIdx.x); c < end_channel; c += static_cast<int>(blockDim.x)) {
        TreeSum<Real> sum;
        for (int64_t head = 0; head < tensor.heads; ++head) sum.add(kept[head * width + c - begin]);
        Real *const target = row + c * rows.channel_stride;
        *target = add_rounded(*target, sum.total());
      }
    }
  }
}

template <typename Real>
Kernel find_norm_gradient_kernel(const StepVariant &) {
  return kernel_of(norm_gradient_kernel<Real>);
}

}  // namespace rope
