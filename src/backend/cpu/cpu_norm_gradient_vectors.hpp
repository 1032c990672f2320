// cpu_norm_gradient_vectors.hpp - heads whose channels lie side by side, on their way back through an RMS norm before the
// rotation
//
// A slice of heads goes through each loop before the next slice, its gradients as floats; what forward read is read again
// wherever it is a factor.
//
// In an unnamed namespace, as cpu_loops.hpp says. norm.hpp has the formulas.
#pragma once

#include "backend/cpu/cpu_step_loops.hpp"

#if defined(ROPE_HAS_VECTORS)

namespace rope {

namespace {

// ---- Loops: each takes what fills its vectors from `begin` on and returns where it ended ----

template <int kLanes, typename T>
ROPE_VECTOR Vector<kLanes> read_normed(const T *x, int channel, float inverse) {
  Vector<kLanes> values;
  read_vector(x + channel, &values);
  return multiply_rounded(values, same_in_all<kLanes>(inverse));
}

// Adds a head's terms to sums for the gradient of its weight.
template <int kLanes, typename T>
ROPE_LOOP int add_normed(const T *x, float inverse, const float *gradient, int begin, int end, float *sums) {
  for (; begin + kLanes <= end; begin += kLanes) {
    const auto term = multiply_rounded(Vector<kLanes>::load(gradient + begin), read_normed<kLanes>(x, begin, inverse));
    add_rounded(Vector<kLanes>::load(sums + begin), term).store(sums + begin);
  }
  return begin;
}

// The gradient of what was weighed becomes that of what was normed.
template <int kLanes, typename T>
ROPE_LOOP int weigh_gradient(const T *x, float inverse, const float *weight, int begin, int end, float *gradient,
                             float *products) {
  for (; begin + kLanes <= end; begin += kLanes) {
    const auto weighed = multiply_rounded(Vector<kLanes>::load(gradient + begin), Vector<kLanes>::load(weight + begin));
    weighed.store(gradient + begin);
    multiply_rounded(weighed, read_normed<kLanes>(x, begin, inverse)).store(products + begin);
  }
  return begin;
}

template <int kLanes, typename T>
ROPE_LOOP int finish_gradient(const T *x, float inverse, float mean, const float *gradient, int begin, int end,
                              T *out) {
  for (; begin + kLanes <= end; begin += kLanes) {
    const auto product = multiply_rounded(read_normed<kLanes>(x, begin, inverse), same_in_all<kLanes>(mean));
    const auto centred = add_rounded(Vector<kLanes>::load(gradient + begin), -product);
    write_vector(multiply_rounded(centred, same_in_all<kLanes>(inverse)), out + begin);
  }
  return begin;
}

// ---- Heads ----

template <typename T>
constexpr CpuType kCpuTypeOf = std::is_same_v<T, float>     ? kCpuF32
                               : std::is_same_v<T, Float16> ? kCpuF16
                                                            : kCpuBF16;

// Whether take_back_vectors does the run.
template <typename T>
bool takes_vectors(const NormGradientRun<float> &run) {
  const StepRun<float> &gradient = run.gradient, &input = run.input;
  const HeadSums<float> &sums = run.weight_sums;
  const bool is_before = !input.is_norm_after && !input.is_norm_of_token && !input.norm->is_layer;
  return is_before && is_contiguous(gradient) && !gradient.factor.is_present() && input.channel_stride == 1 &&
         input.channels % 8 == 0 && run.bias_sums.data == nullptr &&
         (sums.data == nullptr || (sums.channel_stride == 1 && sums.begin % 8 == 0 && sums.end % 8 == 0)) &&
         (gradient.num_targets == 0 || gradient.targets[0].type == kCpuTypeOf<T>);
}

template <typename T>
void take_back_vectors(const NormGradientRun<float> &run) {
  const StepRun<float> &gradient = run.gradient, &input = run.input;
  const NormForm<float> &form = *input.norm;
  const HeadSums<float> &sums = run.weight_sums;
  const int channels = input.channels, fitting = kMaxSliceChannels / channels;
  const int max_heads = fitting < kMaxSliceHeads ? fitting : kMaxSliceHeads;
  alignas(64) float values[kMaxSliceChannels], products[kMaxHeadDim + kSumRun];
  StepNumbers<T> numbers;
  order_angles<T>(gradient, &numbers);
  HeadSlice<T> given, read;
  for (int64_t first = 0; first < input.heads; first += read.count) {
    take_heads<T>(gradient, first, max_heads, nullptr, &given);
    take_heads<T>(input, first, max_heads, nullptr, &read);
    step_heads<T, float, void>(gradient, given, {reinterpret_cast<char *>(values), channels}, false, &numbers);
    for (float &inverse : read.inverse) inverse = 0;
    sum_squares(input, &read);
    inverse_norms(form, read.inverse);
    for (int i = 0; i < read.count; ++i) {
      prefetch_head<T>(gradient, first + read.count + i);
      prefetch_head<T>(input, first + read.count + i);
      const T *const x = read.head(i);
      float *const g = values + int64_t{i} * channels;
      const float inverse = read.inverse[i];
      if (sums.data != nullptr) {
        float *const of_head = sums.data + (first + i) * sums.head_stride - sums.begin;
        int done = sums.begin;
#if defined(__AVX512BW__)
        done = add_normed<16>(x, inverse, g, done, sums.end, of_head);
#endif
        add_normed<8>(x, inverse, g, done, sums.end, of_head);
      }
      if (gradient.num_targets == 0) continue;
      order_weights<T>(input, first + i);
      const float *const weight = input.weights->plain;
      int done = 0;
#if defined(__AVX512BW__)
      done = weigh_gradient<16>(x, inverse, weight, done, channels, g, products);
#endif
      weigh_gradient<8>(x, inverse, weight, done, channels, g, products);
      pad_terms(products, channels);
      const float mean = mean_of(form, sum_of_terms(products, channels, Value()));
      const StepTarget &target = gradient.targets[0];
      T *const out = reinterpret_cast<T *>(target.data) + (first + i) * target.head_stride;
      done = 0;
#if defined(__AVX512BW__)
      done = finish_gradient<16>(x, inverse, mean, g, done, channels, out);
#endif
      finish_gradient<8>(x, inverse, mean, g, done, channels, out);
    }
  }
}

}  // namespace

}  // namespace rope

#endif
