// SPDX-License-Identifier: Apache-2.0
// cpu_norm_gradient_vectors.hpp - the backward pass of a norm for heads with channels side by side
//
// For RMS norms of heads before the rotation, a slice of heads goes through each of four passes before the next slice:
//
//   input of forward           sums of its squares, which give the inverse norms
//   gradients, and the input   gradients, turned and weighed; sums for the weight; products with the normed input
//   those products             their sums
//   weighed gradients          the results, from these, the sums and the input
//
// Weighed gradients and products are floats in the first cache, in the order of the loops' vectors: heads of BFloat16
// in words have even channels before odd ones. For other norms both the gradients and the input of forward become
// floats first. The gradients are turned if the norm is before the rotation, the input if it is behind (FloatHeads).
//
// The file is in an unnamed namespace; cpu_loops.hpp explains this. norm.hpp has the formulas.
#pragma once

#include "backend/cpu/cpu_step_loops.hpp"

#if defined(ROPE_HAS_VECTORS)

namespace rope {

namespace {

// Neighbours in words: channels of even numbers and those of odd numbers.
template <int kLanes>
struct WordVectors {
  Vector<kLanes> even;
  Vector<kLanes> odd;

  static ROPE_VECTOR WordVectors load(const float *from) {
    return {Vector<kLanes>::load(from), Vector<kLanes>::load(from + kLanes)};
  }
  ROPE_VECTOR void store(float *to) const {
    even.store(to);
    odd.store(to + kLanes);
  }

  friend ROPE_VECTOR WordVectors operator-(WordVectors a) { return {-a.even, -a.odd}; }
  friend ROPE_VECTOR WordVectors add_rounded(WordVectors a, WordVectors b) {
    return {add_rounded(a.even, b.even), add_rounded(a.odd, b.odd)};
  }
  friend ROPE_VECTOR WordVectors multiply_rounded(WordVectors a, WordVectors b) {
    return {multiply_rounded(a.even, b.even), multiply_rounded(a.odd, b.odd)};
  }
  friend ROPE_VECTOR WordVectors multiply_rounded(WordVectors a, Vector<kLanes> b) {
    return {multiply_rounded(a.even, b), multiply_rounded(a.odd, b)};
  }
};

template <int kLanes>
ROPE_VECTOR void read_vector(const BFloat16 *from, WordVectors<kLanes> *vectors) {
  read_interleaved(from, &vectors->even, &vectors->odd);
}

template <int kLanes>
ROPE_VECTOR void write_vector(WordVectors<kLanes> vectors, BFloat16 *to) {
  write_interleaved(vectors.even, vectors.odd, to);
}

template <int kLanes>
ROPE_VECTOR void add_terms(WordVectors<kLanes> terms, float *sums) {
  alignas(64) float in_order[size_t{2} * kLanes];
  write_interleaved(terms.even, terms.odd, in_order);
  add_terms(Vector<kLanes>::load(in_order), sums);
  add_terms(Vector<kLanes>::load(in_order + kLanes), sums + kLanes);
}

// Stores the terms of a tree's sum, or the results of its first level.
template <int kLanes>
ROPE_VECTOR void store_terms(Vector<kLanes> terms, float *all, int channel) {
  terms.store(all + channel);
}

template <int kLanes>
ROPE_VECTOR void store_terms(WordVectors<kLanes> terms, float *all, int channel) {
  add_rounded(terms.even, terms.odd).store(all + static_cast<uint32_t>(channel) / 2);
}

// A head in backward.
template <typename T>
struct GradientHead {
  const T *gradient;    // of forward's output
  const T *x;           // input of forward
  float inverse;        // its inverse norm
  const float *weight;  // in the order of `weighed`
  float *sums;          // for the gradient of the weight, from channel `sums_begin` to `sums_end`
  int sums_begin;
  int sums_end;
  bool is_written;
  float *weighed;   // gradient of the normed input
  float *products;  // terms of the sum of `weighed` times the normed input
};

// ---- Loops: each processes all full vectors from `begin` on and returns its end ----
//
// Floats stands for Vector or WordVectors.

template <template <int> class Floats, int kLanes>
constexpr int kChannelsOf = static_cast<int>(sizeof(Floats<kLanes>) / sizeof(float));

template <template <int> class Floats, int kLanes, typename T>
ROPE_VECTOR Floats<kLanes> read_floats(const T *from) {
  Floats<kLanes> floats;
  read_vector(from, &floats);
  return floats;
}

template <template <int> class Floats, int kLanes, typename T>
ROPE_VECTOR Floats<kLanes> read_normed(const GradientHead<T> head, int channel) {
  return multiply_rounded(read_floats<Floats, kLanes>(head.x + channel), same_in_all<kLanes>(head.inverse));
}

// Continues with the gradient behind the weight.
template <template <int> class Floats, int kLanes, typename T>
ROPE_VECTOR void take_back(const GradientHead<T> head, int channel, Floats<kLanes> gradient) {
  const Floats<kLanes> normed = read_normed<Floats, kLanes>(head, channel);
  if (channel >= head.sums_begin && channel < head.sums_end) {
    add_terms(multiply_rounded(gradient, normed), head.sums + (channel - head.sums_begin));
  }
  if (!head.is_written) return;
  const Floats<kLanes> weighed = multiply_rounded(gradient, Floats<kLanes>::load(head.weight + channel));
  weighed.store(head.weighed + channel);
  store_terms(multiply_rounded(weighed, normed), head.products, channel);
}

// Channels that are not turned.
template <template <int> class Floats, int kLanes, typename T>
ROPE_LOOP int take_back_others(const GradientHead<T> head, int begin, int end) {
  constexpr int kStep = kChannelsOf<Floats, kLanes>;
  for (; begin + kStep <= end; begin += kStep) {
    take_back<Floats, kLanes>(head, begin, read_floats<Floats, kLanes>(head.gradient + begin));
  }
  return begin;
}

// Pairs in halves. The first pair has the channels x and y.
template <template <int> class Floats, int kLanes, typename T>
ROPE_LOOP int take_back_halves(const GradientHead<T> head, int x, int y, int begin, int end,
                               const PairAngles<float> angles) {
  using Numbers = Floats<kLanes>;
  constexpr int kStep = kChannelsOf<Floats, kLanes>;
  for (; begin + kStep <= end; begin += kStep) {
    const Pair<Numbers> pair = {read_floats<Floats, kLanes>(head.gradient + x + begin),
                                read_floats<Floats, kLanes>(head.gradient + y + begin)};
    const Pair<Numbers> turned =
        rotate(pair, CosSin<Numbers>{Numbers::load(angles.cos_x + begin), Numbers::load(angles.sin_x + begin)},
               CosSin<Numbers>{Numbers::load(angles.cos_y + begin), Numbers::load(angles.sin_y + begin)});
    take_back<Floats, kLanes>(head, x + begin, turned.x);
    take_back<Floats, kLanes>(head, y + begin, turned.y);
  }
  return begin;
}

// Interleaved pairs as words, pair after pair.
template <int kLanes>
ROPE_LOOP int take_back_words(const GradientHead<BFloat16> head, int window, int begin, int end,
                              const PairAngles<float> angles) {
  for (; begin + kLanes <= end; begin += kLanes) {
    const int channel = window + 2 * begin;
    const auto words = read_floats<WordVectors, kLanes>(head.gradient + channel);
    const auto turned = rotate_vector<void, kLanes>({words.even, words.odd}, angles, begin);
    take_back<WordVectors, kLanes>(head, channel, {turned.x, turned.y});
  }
  return begin;
}

// Interleaved pairs, turned by turn_neighbours.
template <int kLanes, typename T>
ROPE_LOOP int take_back_neighbours(const GradientHead<T> head, int window, int begin, int end, const float *of_itself,
                                   const float *of_other) {
  for (; begin + kLanes <= end; begin += kLanes) {
    const auto vector = read_floats<Vector, kLanes>(head.gradient + window + begin);
    take_back<Vector, kLanes>(
        head, window + begin,
        add_rounded(multiply_rounded(vector, Vector<kLanes>::load(of_itself + begin)),
                    multiply_rounded(swap_neighbours(vector), Vector<kLanes>::load(of_other + begin))));
  }
  return begin;
}

template <bool HasMean, template <int> class Floats, int kLanes, typename T, typename U>
ROPE_LOOP int finish_vectors(const GradientHead<T> head, const NormGradientMeans<float> means, int begin, int end,
                             U *out) {
  constexpr int kStep = kChannelsOf<Floats, kLanes>;
  for (; begin + kStep <= end; begin += kStep) {
    auto centred = Floats<kLanes>::load(head.weighed + begin);
    if constexpr (HasMean) centred = add_rounded(centred, same_in_all<kLanes>(-means.gradients));
    const auto product =
        multiply_rounded(read_normed<Floats, kLanes>(head, begin), same_in_all<kLanes>(means.products));
    write_vector(multiply_rounded(add_rounded(centred, -product), same_in_all<kLanes>(head.inverse)), out + begin);
  }
  return begin;
}

// ---- Heads ----

template <template <int> class Floats, typename T>
ROPE_LOOP void take_back_channels(const GradientHead<T> head, int begin, int end) {
#if defined(__AVX512BW__)
  begin = take_back_others<Floats, 16>(head, begin, end);
#endif
  take_back_others<Floats, 8>(head, begin, end);
}

// The gradients of a head's channels, by norm_gradient.
template <bool HasMean, template <int> class Floats, typename T, typename U>
ROPE_LOOP void finish_gradient(const GradientHead<T> head, const NormGradientMeans<float> means, int channels, U *out) {
  int done = 0;
#if defined(__AVX512BW__)
  done = finish_vectors<HasMean, Floats, 16>(head, means, done, channels, out);
#endif
  finish_vectors<HasMean, Floats, 8>(head, means, done, channels, out);
}

template <template <int> class Floats, typename T>
void take_back_head(const StepRun<float> &run, const GradientHead<T> head, const StepNumbers<T> &numbers) {
  constexpr bool kIsWords = kChannelsOf < Floats, 8 >> 8;
  const int begin = run.window_begin, end = begin + 2 * run.pairs;
  if (!run.is_turned) return take_back_channels<Floats>(head, 0, run.channels);
  take_back_channels<Floats>(head, 0, begin);
  take_back_channels<Floats>(head, end, run.channels);
  int done = 0;
  if (run.in_distance == 1) {
    if constexpr (kIsWords) {
#if defined(__AVX512BW__)
      done = take_back_words<16>(head, begin, done, run.pairs, numbers.angles);
#endif
      take_back_words<8>(head, begin, done, run.pairs, numbers.angles);
    } else {
      const float *of_itself = numbers.ordered_angles[0], *of_other = numbers.ordered_angles[1];
#if defined(__AVX512BW__)
      done = take_back_neighbours<16>(head, begin, done, 2 * run.pairs, of_itself, of_other);
#endif
      take_back_neighbours<8>(head, begin, done, 2 * run.pairs, of_itself, of_other);
    }
    return;
  }
  const PairAngles<float> &angles = kIsWords ? numbers.angles : run.angles;
  const int length = length_of_runs(run);
  for (int pair = 0; pair < run.pairs; pair += length) {
    const int x = begin + first_channel(pair, run.in_distance), y = x + run.in_distance;
    done = 0;
#if defined(__AVX512BW__)
    done = take_back_halves<Floats, 16>(head, x, y, done, length, angles.from(pair));
#endif
    take_back_halves<Floats, 8>(head, x, y, done, length, angles.from(pair));
  }
}

template <typename T>
struct GradientBuffers {
  alignas(64) float weighed[kMaxSliceChannels];
  alignas(64) float products[kMaxSliceChannels];
  StepNumbers<T> numbers;
};

template <template <int> class Floats, typename T>
void take_back_heads(const NormGradientRun<float> &run) {
  constexpr int kTermsOfChannels = kChannelsOf<Floats, 8> / 8;
  const StepRun<float> &gradient = run.gradient, &input = run.input;
  const NormForm<float> &form = *input.norm;
  const HeadSums<float> &sums = run.weight_sums;
  const int channels = input.channels, terms = channels / kTermsOfChannels;
  const int64_t stride = stride_of_floats(channels);
  const int max_heads = heads_of_slice(stride);
  const bool is_written = gradient.num_targets > 0, has_weights_of_heads = input.weight.head_stride != 0;
  const float *const weight = kTermsOfChannels > 1 ? input.weights->ordered : input.weights->plain;
  GradientBuffers<T> *const buffers = gradient.buffers<GradientBuffers<T>>();
  float *const weighed = buffers->weighed, *const products = buffers->products;
  StepNumbers<T> &numbers = buffers->numbers;
  float totals[kMaxSliceHeads];
  order_angles<T>(gradient, &numbers);
  HeadSlice<T> given = {}, read = {};
  GradientHead<T> heads[kMaxSliceHeads];
  for (int64_t first = 0; first < input.heads; first += read.count) {
    take_heads<T>(gradient, first, max_heads, nullptr, &given);
    take_heads<T>(input, first, max_heads, nullptr, &read);
    sum_squares(input, &read);
    inverse_norms(form, read.inverse);
    for (int i = 0; i < read.count; ++i) {
      if (has_weights_of_heads || first + i == 0) order_weights<T>(input, first + i);
      float *const of_head = sums.data == nullptr ? nullptr : sums.data + (first + i) * sums.head_stride;
      heads[i] = {given.head(i), read.head(i),         read.inverse[i],      weight, of_head, sums.begin, sums.end,
                  is_written,    weighed + i * stride, products + i * stride};
      take_back_head<Floats>(gradient, heads[i], numbers);
      prefetch_after(gradient, given, i);
      prefetch_after(input, read, i);
    }
    if (!is_written) continue;
    sum_heads(products, stride, terms, read.count, Value(), totals);
    const StepTarget &target = gradient.targets[0];
    T *out = reinterpret_cast<T *>(target.data) + first * target.head_stride;
    for (int i = 0; i < read.count; ++i, out += target.head_stride) {
      finish_gradient<false, Floats>(heads[i], means_of(form, {totals[i], 0}), channels, out);
    }
  }
}

// ---- Any norm ----

// Goes back through a norm slice after slice, in floats. If all heads of a token stay in FloatInput, their gradients do
// too.
template <typename T>
class FloatHeads {
 public:
  struct Buffers {
    typename FloatInput<T>::Buffers input;
    StepNumbers<T> given_numbers;
    StepNumbers<float> numbers;
    alignas(64) float gradients[FloatInput<T>::kMaxKept];
    alignas(64) float products[kMaxSliceChannels];
  };

  explicit FloatHeads(const NormGradientRun<float> &run) : FloatHeads(run, run.gradient.buffers<Buffers>()) {}

  FloatHeads(const NormGradientRun<float> &run, Buffers *buffers)
      : run_(run),
        form_(*run.input.norm),
        channels_(run.input.channels),
        is_written_(run.gradient.num_targets > 0),
        given_(run.gradient),
        given_numbers_(buffers->given_numbers),
        numbers_(buffers->numbers),
        gradients_(buffers->gradients),
        products_(buffers->products),
        input_(run.input, &buffers->input),
        stride_(input_.stride()) {
    given_.is_turned = given_.is_turned && !run.input.is_norm_after;
    order_angles<T>(given_, &given_numbers_);
    if (run.input.is_norm_after) order_angles<float>(run.gradient, &numbers_);
  }

  void take_back() {
    const bool needs_totals = run_.input.is_norm_of_token && is_written_;
    TreeSum<float> products, gradients;
    if (needs_totals) {
      input_.for_slices([&] {
        go_back(input_.is_kept());
        for (int i = 0; i < input_.slice().count; ++i) {
          products.add(products_of_head_[i]);
          gradients.add(gradients_of_head_[i]);
        }
      });
      means_ = means_of(form_, {products.total(), gradients.total()});
    }
    input_.for_slices([&] {
      if (!needs_totals || !input_.is_kept()) go_back(true);
      if (is_written_) finish();
    });
  }

 private:
  GradientHead<float> head(const float *x, float *gradients, int i) {
    float *const weighed = gradients + i * stride_;
    return {weighed,     x + i * stride_, input_.slice().inverse[i], run_.input.weights->plain, nullptr, 0, 0,
            is_written_, weighed,         products_ + i * stride_};
  }

  // Computes the weighed gradients of a slice and their sums.
  void go_back(bool adds_sums) {
    const float *const x = input_.read();
    const int64_t first = input_.slice().first;
    HeadSlice<T> given = {};
    take_heads<T>(given_, first, input_.max_heads(), nullptr, &given);
    given.is_prefetching = false;
    float *const gradients = input_.place_of_slice(gradients_);
    step_heads<T, float, void>(given_, given, {reinterpret_cast<char *>(gradients), stride_}, false, &given_numbers_);
    const HeadSums<float> &weights = run_.weight_sums, &biases = run_.bias_sums;
    for (int i = 0; i < given.count; ++i) {
      input_.prefetch(i);
      prefetch_after(given_, given, i);
      if (run_.input.weight.head_stride != 0 || first + i == 0) order_weights<T>(run_.input, first + i);
      GradientHead<float> back = head(x, gradients, i);
      if (adds_sums && biases.data != nullptr) {
        add_vectors<8>(back.gradient + biases.begin, 0, biases.end - biases.begin,
                       biases.data + (first + i) * biases.head_stride);
      }
      if (adds_sums && weights.data != nullptr) {
        back.sums = weights.data + (first + i) * weights.head_stride;
        back.sums_begin = weights.begin;
        back.sums_end = weights.end;
      }
      take_back_channels<Vector>(back, 0, channels_);
    }
    if (!is_written_) return;
    input_.sum(products_, Value(), products_of_head_);
    if (form_.is_layer) input_.sum(gradients, Value(), gradients_of_head_);
  }

  void finish() {
    const StepTarget &target = run_.gradient.targets[0];
    const int64_t first = input_.slice().first;
    T *const out = reinterpret_cast<T *>(target.data) + first * target.head_stride;
    const float *const x = input_.values();
    float *const gradients = input_.place_of_slice(gradients_);
    const int count = input_.slice().count;
    for (int i = 0; i < count; ++i) {
      const GradientHead<float> back = head(x, gradients, i);
      if (!run_.input.is_norm_of_token) means_ = means_of(form_, {products_of_head_[i], gradients_of_head_[i]});
      if (run_.input.is_norm_after) {
        finish_gradient<true, Vector>(back, means_, channels_, gradients + i * stride_);
      } else {
        finish_gradient<true, Vector>(back, means_, channels_, out + i * target.head_stride);
      }
    }
    if (!run_.input.is_norm_after) return;
    step_heads<float, T, void>(run_.gradient, slice_of_block(first, count, gradients, stride_),
                               {reinterpret_cast<char *>(out), target.head_stride}, false, &numbers_);
  }

  const NormGradientRun<float> &run_;
  const NormForm<float> &form_;
  const int channels_;
  const bool is_written_;
  StepRun<float> given_;  // the gradients, turned if the norm is before the rotation
  StepNumbers<T> &given_numbers_;
  StepNumbers<float> &numbers_;  // numbers behind the norm, if the rotation is before it
  float *const gradients_;
  float *const products_;
  FloatInput<T> input_;
  const int64_t stride_;  // stride of the floats of heads
  NormGradientMeans<float> means_ = {};
  float products_of_head_[kMaxSliceHeads];
  float gradients_of_head_[kMaxSliceHeads] = {};  // 0 for RMS
};

template <typename T>
constexpr CpuType kCpuTypeOf = std::is_same_v<T, float>     ? kCpuF32
                               : std::is_same_v<T, Float16> ? kCpuF16
                                                            : kCpuBF16;

// Processes the run if these loops support it.
template <typename T>
bool take_back_vectors(const NormGradientRun<float> &run) {
#if defined(__AVX512BW__)
  constexpr int kMaxLanes = 16;
#else
  constexpr int kMaxLanes = 8;
#endif
  const StepRun<float> &gradient = run.gradient, &input = run.input;
  const auto are_vectors = [&](const HeadSums<float> &sums, int lanes) {
    return sums.data == nullptr || (sums.channel_stride == 1 && sums.begin % lanes == 0 && sums.end % lanes == 0);
  };
  // Either all channels of a vector have sums or none.
  const HeadSums<float> &sums = run.weight_sums;
  const bool has_all_sums = sums.begin == 0 && (sums.end == 0 || sums.end == input.channels);
  const bool fits = is_contiguous(gradient) && !gradient.factor.is_present() && input.channel_stride == 1 &&
                    input.channels % 8 == 0 && are_vectors(sums, has_all_sums ? 8 : kMaxLanes) &&
                    are_vectors(run.bias_sums, 8) &&
                    (gradient.num_targets == 0 || gradient.targets[0].type == kCpuTypeOf<T>);
  if (!fits) return false;
  constexpr bool kIsWords = StepNumbers<T>::kIsWords;
  // All words of a head are processed in vectors of one width, because its weights have their order.
  const int block = kIsWords ? 2 * kMaxLanes : has_all_sums ? 8 : kMaxLanes;
  const bool is_rms_before = !input.is_norm_after && !input.is_norm_of_token && !input.norm->is_layer;
  const bool is_in_blocks = is_made_of(gradient, block) && sums.begin % block == 0 && sums.end % block == 0;
  if (!is_rms_before || !is_in_blocks) {
    FloatHeads<T>(run).take_back();
  } else if constexpr (kIsWords) {
    take_back_heads<WordVectors, T>(run);
  } else {
    take_back_heads<Vector, T>(run);
  }
  return true;
}

}  // namespace

}  // namespace rope

#endif
