// SPDX-License-Identifier: Apache-2.0
// cpu_step_floats.hpp - heads with channels side by side as floats on their way through a norm: layer norms, and in
// backward all norms but RMS of heads before the rotation with channels that fill vectors
//
// The file is in an unnamed namespace; cpu_loops.hpp explains this.
#pragma once

#include "backend/cpu/cpu_step_slices.hpp"

#if defined(ROPE_HAS_VECTORS)

namespace rope {

namespace {

// The distance from the floats of one head to those of the next.
ROPE_LOOP int64_t stride_of_floats(int channels) {
  return int64_t{(channels + kSumRun - 1) / kSumRun} * kSumRun;
}

// Adds terms to floats in the order of channels.
template <int kLanes>
ROPE_VECTOR void add_terms(Vector<kLanes> terms, float *sums) {
  add_rounded(Vector<kLanes>::load(sums), terms).store(sums);
}

// Adds all full vectors of `terms` from `begin` on to `sums`; returns their end.
template <int kLanes>
ROPE_LOOP int add_vectors(const float *terms, int begin, int end, float *sums) {
  for (; begin + kLanes <= end; begin += kLanes) add_terms(Vector<kLanes>::load(terms + begin), sums + begin);
  return begin;
}

template <int kLanes>
ROPE_LOOP int subtract_vectors(float mean, int begin, int end, float *values) {
  const auto subtracted = same_in_all<kLanes>(-mean);
  for (; begin + kLanes <= end; begin += kLanes) {
    add_rounded(Vector<kLanes>::load(values + begin), subtracted).store(values + begin);
  }
  return begin;
}

// The input of a norm as floats, turned if the norm is behind the rotation, and less its mean for LAYER. Slices of
// heads are read one after another; all heads of a norm over a token stay if there is room.
template <typename T>
class FloatInput {
 public:
  static constexpr int kMaxKept = 8192;  // channels of a token

  struct Buffers {
    StepNumbers<T> numbers;
    alignas(64) float values[kMaxKept];
  };

  FloatInput(const StepRun<float> &run, Buffers *buffers)
      : form_(*run.norm),
        run_(run),
        is_of_token_(run.is_norm_of_token),
        stride_(stride_of_floats(run.channels)),
        max_heads_(heads_of_slice(stride_)),
        is_kept_(is_of_token_ && run.heads <= kMaxKept / stride_),
        numbers_(buffers->numbers),
        values_(buffers->values) {
    run_.norm = nullptr;
    run_.is_turned = run.is_turned && run.is_norm_after;
    order_angles<T>(run_, &numbers_);
    if (is_of_token_) find_norm_of_token();
  }

  int64_t stride() const { return stride_; }
  int max_heads() const { return max_heads_; }
  bool is_kept() const { return is_kept_; }
  // The slice that for_slices has reached; once it is read, with its inverse norms.
  const HeadSlice<T> &slice() const { return slice_; }

  // Calls `function` for each slice.
  template <typename Function>
  void for_slices(const Function &function) {
    for (int64_t first = 0; first < run_.heads; first += slice_.count) {
      take_heads<T>(run_, first, max_heads_, nullptr, &slice_);
      function();
    }
  }

  // The place of the slice's floats in an array for one slice, or for all heads if they stay.
  float *place_of_slice(float *floats) const { return is_kept_ ? floats + slice_.first * stride_ : floats; }

  // Reads the slice; returns its floats.
  float *read() {
    if (!is_kept_) read_and_centre();
    return values();
  }

  // The floats of the slice, which has been read.
  float *values() { return place_of_slice(values_); }

  template <typename Term>
  void sum(const float *floats, const Term &term, float *sums) const {
    sum_heads(floats, stride_, run_.channels, slice_.count, term, sums);
  }

  // prefetch_after, unless that has been done while heads were turned.
  ROPE_LOOP void prefetch(int i) const {
    if (!run_.is_turned) prefetch_after(run_, slice_, i);
  }

 private:
  void turn_to_floats(float *values) {
    step_heads<T, float, void>(run_, slice_, {reinterpret_cast<char *>(values), stride_}, false, &numbers_);
  }

  ROPE_LOOP void prefetch_all() const {
    for (int i = 0; i < slice_.count; ++i) prefetch(i);
  }

  void subtract(float mean, float *values) const {
    int done = 0;
#if defined(__AVX512BW__)
    done = subtract_vectors<16>(mean, done, run_.channels, values);
#endif
    done = subtract_vectors<8>(mean, done, run_.channels, values);
    for (; done < run_.channels; ++done) values[done] = add_rounded(values[done], -mean);
  }

  void find_norm_of_token() {
    float sums[kMaxSliceHeads];
    TreeSum<float> values, squares;
    if (form_.is_layer) {
      for_slices([&] {
        float *const x = place_of_slice(values_);
        turn_to_floats(x);
        prefetch_all();
        sum(x, Value(), sums);
        for (int i = 0; i < slice_.count; ++i) values.add(sums[i]);
      });
      mean_ = mean_of(form_, values.total());
    }
    for_slices([&] {
      float *const x = place_of_slice(values_);
      if (!form_.is_layer || !is_kept_) {
        turn_to_floats(x);
        prefetch_all();
      }
      for (int i = 0; form_.is_layer && i < slice_.count; ++i) subtract(mean_, x + i * stride_);
      sum(x, Square(), sums);
      for (int i = 0; i < slice_.count; ++i) squares.add(sums[i]);
    });
    const float inverse = inverse_norm(form_, squares.total());
    for (float &of_head : slice_.inverse) of_head = inverse;
  }

  // Reads the slice less its mean, and finds inverse norms of heads.
  void read_and_centre() {
    float *const x = place_of_slice(values_);
    turn_to_floats(x);
    if (form_.is_layer) {
      float sums[kMaxSliceHeads];
      if (!is_of_token_) sum(x, Value(), sums);
      for (int i = 0; i < slice_.count; ++i) {
        subtract(is_of_token_ ? mean_ : mean_of(form_, sums[i]), x + i * stride_);
      }
    }
    if (is_of_token_) return;
    sum(x, Square(), slice_.inverse);
    inverse_norms(form_, slice_.inverse);
  }

  const NormForm<float> &form_;
  StepRun<float> run_;  // up to the norm
  const bool is_of_token_;
  const int64_t stride_;
  const int max_heads_;
  const bool is_kept_;
  StepNumbers<T> &numbers_;
  float *const values_;
  float mean_ = 0;  // of the token
  HeadSlice<T> slice_ = {};
};

// Forward with LAYER. The floats of a slice, less their mean, are multiplied, turned and written like heads of floats with
// RMS. With a bias, roundings or weights of each head, they become the results, head by head, and then go to the targets.
template <typename T>
class FloatStep {
 public:
  struct Buffers {
    typename FloatInput<T>::Buffers input;
    StepNumbers<float> numbers;
    float bias[kMaxHeadDim];
  };

  explicit FloatStep(const StepRun<float> &run)
      : run_(run),
        buffers_(*run.buffers<Buffers>()),
        input_(run, &buffers_.input),
        behind_mean_(run),
        results_(run_of_results(run)),
        numbers_(buffers_.numbers) {
    behind_mean_.pass = nullptr;
    behind_mean_.is_turned = run.is_turned && !run.is_norm_after;
    behind_mean_.is_norm_after = false;
    if (behind_mean_.is_turned) order_angles<float>(run, &numbers_);
    const bool is_rounded = run.norm->rounds_before_weight || run.norm->rounds_after_weight || run.code.rounds_before;
    is_direct_ = run.bias.data == nullptr && run.weight.head_stride == 0 && (sizeof(T) == sizeof(float) || !is_rounded);
  }

  void run() {
    input_.for_slices([&] {
      float *const values = input_.read();
      const int64_t first = input_.slice().first, stride = input_.stride();
      const int count = input_.slice().count;
      if (is_direct_) return step_directly(slice_of_block(first, count, values, stride));
      for (int i = 0; i < count; ++i) {
        input_.prefetch(i);
        norm_and_turn_head(i, first + i, values + i * stride);
      }
      step_to_all<float>(results_, slice_of_block(first, count, values, stride), &numbers_);
    });
  }

 private:
  void step_directly(HeadSlice<float> heads) {
    for (int i = 0; i < heads.count; ++i) {
      input_.prefetch(i);
      heads.inverse[i] = input_.slice().inverse[i];
    }
    if (heads.first == 0) order_weights<T>(run_, 0);
    read_factors<T>(run_, &heads);
    step_slice(behind_mean_, goes_through_block(behind_mean_) ? &results_ : nullptr, heads, &numbers_);
  }

  // Replaces the floats of one head, number `i` of its slice and `head` of the run, by their result.
  void norm_and_turn_head(int i, int64_t head, float *values) {
    if (head == 0 || run_.weight.head_stride != 0) order_weights<T>(run_, head);
    weigh(input_.slice().inverse + i, values);
    if (run_.bias.data != nullptr) add_bias(head, values);
    if (behind_mean_.is_turned) {
      const HeadBlock block = {reinterpret_cast<char *>(values), input_.stride()};
      step_heads<float, float, void>(run_, slice_of_block(head, 1, values, block.stride), block, true, &numbers_);
    }
    if (run_.factor.is_present()) {
      scale_channels(values, values, run_.channels, factor_of<T, float>(run_.factor, head));
    }
    if (run_.code.rounds_before) round_values<T>(values, run_.channels);
  }

  // Multiplies a head by its inverse norm and the weights.
  void weigh(const float *inverse, float *values) {
    if constexpr (sizeof(T) == 2) {
      if (run_.norm->rounds_before_weight || run_.norm->rounds_after_weight) return weigh_as<T>(inverse, values);
    }
    weigh_as<float>(inverse, values);
  }

  template <typename Rounded>
  void weigh_as(const float *inverse, float *values) {
    HeadRows<float, float, Rounded> rows = {};
    rows.in = rows.out = values;
    rows.count = 1;
    rows.inverse = inverse;
    rows.rounds_before_weight = run_.norm->rounds_before_weight;
    rows.rounds_after_weight = run_.norm->rounds_after_weight;
    pass_channels(rows, 0, run_.channels, run_.weights->plain);
  }

  void add_bias(int64_t head, float *values) {
    const float *const bias = read_numbers<T>(run_.bias, head, run_.channels, -0.0f, buffers_.bias);
    int done = add_vectors<8>(bias, 0, run_.channels, values);
    for (; done < run_.channels; ++done) values[done] = add_rounded(values[done], bias[done]);
    if (run_.norm->rounds_after_weight) round_values<T>(values, run_.channels);
  }

  const StepRun<float> &run_;
  Buffers &buffers_;
  FloatInput<T> input_;
  StepRun<float> behind_mean_;  // norms, turns and multiplies the values less their mean
  StepRun<float> results_;      // the values as they are, to the targets
  bool is_direct_;
  StepNumbers<float> &numbers_;  // of the rotation behind the norm
};

template <typename T>
__attribute__((noinline)) void step_floats(const StepRun<float> &run) {
  FloatStep<T>(run).run();
}

}  // namespace

}  // namespace rope

#endif
