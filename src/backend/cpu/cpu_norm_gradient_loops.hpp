// SPDX-License-Identifier: Apache-2.0
// cpu_norm_gradient_loops.hpp - heads in the backward pass of a norm: gradients of forward's input, and sums for the
// gradients of weights and biases
//
// The file is in an unnamed namespace; cpu_loops.hpp explains this. norm.hpp has the formulas.
#pragma once

#include "backend/cpu/cpu_norm_gradient_vectors.hpp"
#include "backend/cpu/cpu_step_loops.hpp"

namespace rope {

namespace {

// Gradients of a norm's output for some heads, and the norm's input, for LAYER minus the mean.
template <typename T>
struct NormedHeads {
  using Real = RealOf<T>;

  struct Buffers {
    StepHeads<Real> gradient;
    StepHeads<Real> x;
  };

  explicit NormedHeads(const NormGradientRun<Real> &of)
      : run(of),
        form(*of.input.norm),
        gradient(of.gradient.template buffers<Buffers>()->gradient),
        x(of.gradient.template buffers<Buffers>()->x) {
    gradient.stride = x.stride = (run.input.channels + kSumRun - 1) / kSumRun * kSumRun;
    if (run.input.is_norm_of_token) of_token = norm_of_token<T>(run.input, &x);
  }

  int channels() const { return run.input.channels; }

  void read(int64_t first) {
    read_heads<T>(run.gradient, first, &gradient);
    if (run.gradient.factor.is_present()) scale_heads<T>(run.gradient, &gradient);
    if (!run.input.is_norm_after) turn_heads<T>(run.gradient, &gradient);
    read_heads<T>(run.input, first, &x);
    const bool is_of_token = run.input.is_norm_of_token;
    if (form.is_layer) subtract_means(run.input, is_of_token, of_token.mean, &x);
    for (int i = 0; i < x.count; ++i) {
      x.inverse[i] = is_of_token ? of_token.inverse : inverse_norm(form, sum_of_squares(run.input, &x, i));
    }
  }

  // Adds a head's terms to the sums of the weights' and the biases' gradients.
  void add_up(int i) {
    const Real *const g = gradient.head(i), *const values = x.head(i);
    const Real inverse = x.inverse[i];
    add_terms(run.weight_sums, x.first + i,
              [&](int c) { return multiply_rounded(g[c], multiply_rounded(values[c], inverse)); });
    add_terms(run.bias_sums, x.first + i, [&](int c) { return g[c]; });
  }

  // Makes the gradient of a head before the weight from that behind it.
  void weigh(int i) {
    const Real *const weight = weights_of(i);
    if (weight == nullptr) return;
    Real *const g = gradient.head(i);
    const int count = channels();
    for (int c = 0; c < count; ++c) g[c] = multiply_rounded(g[c], weight[c]);
  }

  // Does the work of weigh, and returns the head's sums.
  NormGradientSums<Real> weigh_and_sum(int i) {
    Real *const g = gradient.head(i), *const products = x.before;
    const Real *const values = x.head(i), *const weight = weights_of(i);
    const Real inverse = x.inverse[i];
    const int count = channels();
    for (int c = 0; c < count; ++c) {
      if (weight != nullptr) g[c] = multiply_rounded(g[c], weight[c]);
      products[c] = multiply_rounded(g[c], multiply_rounded(values[c], inverse));
    }
    pad_terms(products, count);
    NormGradientSums<Real> sums = {sum_of_terms(products, count, Value()), 0};
    if (!form.is_layer) return sums;
    pad_terms(g, count);
    sums.gradients = sum_of_terms(g, count, Value());
    return sums;
  }

  void finish(int i, const NormGradientSums<Real> &sums) {
    const NormGradientMeans<Real> means = means_of(form, sums);
    Real *const g = gradient.head(i);
    const Real *const values = x.head(i);
    const Real inverse = x.inverse[i];
    const int count = channels();
    // The mean of RMS is 0 and changes no bit.
    for (int c = 0; c < count; ++c) g[c] = norm_gradient(g[c], multiply_rounded(values[c], inverse), inverse, means);
  }

  const NormGradientRun<Real> &run;
  const NormForm<Real> &form;
  TokenNorm<Real> of_token = {};
  StepHeads<Real> &gradient;
  StepHeads<Real> &x;

 private:
  const Real *weights_of(int i) {
    return read_numbers<T>(run.input.weight, x.first + i, channels(), form.weight_offset, x.weight);
  }

  template <typename TermOf>
  static void add_terms(const HeadSums<Real> &to, int64_t head, const TermOf &term_of) {
    if (to.data == nullptr) return;
    Real *const sums = to.data + head * to.head_stride;
    if (to.channel_stride == 1) {
      for (int c = to.begin; c < to.end; ++c) sums[c - to.begin] = add_rounded(sums[c - to.begin], term_of(c));
      return;
    }
    for (int c = to.begin; c < to.end; ++c) {
      Real *const sum = sums + (c - to.begin) * to.channel_stride;
      *sum = add_rounded(*sum, term_of(c));
    }
  }
};

template <typename T>
void run_norm_gradient(const NormGradientRun<RealOf<T>> &run) {
  using Real = RealOf<T>;
#if defined(ROPE_HAS_VECTORS)
  if constexpr (std::is_same_v<Real, float>) {
    if (take_back_vectors<T>(run)) return;
  }
#endif
  NormedHeads<T> heads(run);
  const bool is_written = run.gradient.num_targets > 0, is_of_token = run.input.is_norm_of_token;
  NormGradientSums<Real> of_token = {};
  if (is_written && is_of_token) {
    TreeSum<Real> products, gradients;
    for (int64_t first = 0; first < run.input.heads; first += heads.x.count) {
      heads.read(first);
      for (int i = 0; i < heads.x.count; ++i) {
        const NormGradientSums<Real> sums = heads.weigh_and_sum(i);
        products.add(sums.products);
        gradients.add(sums.gradients);
      }
    }
    of_token = {products.total(), gradients.total()};
  }
  for (int64_t first = 0; first < run.input.heads; first += heads.x.count) {
    heads.read(first);
    for (int i = 0; i < heads.x.count; ++i) {
      heads.add_up(i);
      if (!is_written) continue;
      if (is_of_token) heads.weigh(i);
      heads.finish(i, is_of_token ? of_token : heads.weigh_and_sum(i));
    }
    if (!is_written) continue;
    if (run.input.is_norm_after) turn_heads<T>(run.gradient, &heads.gradient);
    const StepTarget &target = run.gradient.targets[0];
    if (run.gradient.accumulates) add_heads<T>(target, heads.channels(), &heads.gradient);
    write_heads<T>(target, &heads.gradient, 0, heads.channels(), 0);
  }
}

}  // namespace

}  // namespace rope
