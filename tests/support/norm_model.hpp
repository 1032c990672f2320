// SPDX-License-Identifier: Apache-2.0
// norm_model.hpp - the norm by the formula of rope.h: once with each operation rounded, bit for bit, and once exactly
//
// It shares no code with the library. Compile it without contraction of products and sums (-ffp-contract=off).
#ifndef ROPE_TESTS_SUPPORT_NORM_MODEL_HPP
#define ROPE_TESTS_SUPPORT_NORM_MODEL_HPP

#include <algorithm>
#include <cmath>
#include <type_traits>
#include <vector>

#include "oracle.hpp"

namespace norm_model {

using oracle::Real;

struct Form {
  rope_norm_type_t type;
  rope_dtype_t dtype;  // type of the data; norm_rounding rounds to it
  int32_t rounding;
  double eps, weight_offset;
};

// Channels of the heads of one norm, or their weights or biases. A row is a head.
template <typename T>
using Heads = std::vector<std::vector<T>>;

// The terms, then +0 up to a power of two. Neighbours 2i and 2i + 1 are added until one is left.
template <typename T>
T sum_of_tree(std::vector<T> terms) {
  size_t count = 1;
  while (count < terms.size()) count *= 2;
  terms.resize(count, T{0});
  for (; count > 1; count /= 2) {
    for (size_t i = 0; i < count / 2; ++i) terms[i] = terms[2 * i] + terms[2 * i + 1];
  }
  return terms[0];
}

template <typename T, typename Term>
T sum_of_heads(const Heads<T> &heads, Term term) {
  std::vector<T> sums;
  for (const std::vector<T> &head : heads) {
    std::vector<T> terms;
    for (const T x : head) terms.push_back(term(x));
    sums.push_back(sum_of_tree(terms));
  }
  return sum_of_tree(sums);
}

inline float inverse_root(float v) {
  return static_cast<float>(1 / std::sqrt(static_cast<Real>(v)));
}
inline double inverse_root(double v) {
  return 1 / std::sqrt(v);
}

template <typename T>
T round_to(rope_dtype_t dtype, T value) {
  return static_cast<T>(oracle::nearest(dtype, value));
}

// Absent weights and biases are empty.
template <typename T>
Heads<T> rounded(const Form &form, Heads<T> heads, const Heads<T> &weights, const Heads<T> &biases) {
  const auto inverse_count = static_cast<T>(Real{1} / static_cast<Real>(heads.size() * heads[0].size()));
  if (form.type == ROPE_NORM_LAYER) {
    const T mean = sum_of_heads(heads, [](T x) { return x; }) * inverse_count;
    for (std::vector<T> &head : heads) {
      for (T &x : head) x = x - mean;
    }
  }
  const T mean_square = sum_of_heads(heads, [](T x) { return x * x; }) * inverse_count;
  const T r = inverse_root(static_cast<T>(mean_square + static_cast<T>(form.eps)));
  for (size_t h = 0; h < heads.size(); ++h) {
    for (size_t c = 0; c < heads[h].size(); ++c) {
      T &y = heads[h][c];
      y = y * r;
      if (form.rounding & ROPE_NORM_ROUND_BEFORE_WEIGHT) y = round_to(form.dtype, y);
      if (!weights.empty()) y = y * static_cast<T>(weights[h][c] + static_cast<T>(form.weight_offset));
      if (form.rounding & ROPE_NORM_ROUND_AFTER_WEIGHT) y = round_to(form.dtype, y);
      if (biases.empty()) continue;
      y = y + biases[h][c];
      if (form.rounding & ROPE_NORM_ROUND_AFTER_WEIGHT) y = round_to(form.dtype, y);
    }
  }
  return heads;
}

// The distance of `rounded`'s result from the exact norm, in units of the largest sum of all roundings: at most 1. It
// is 0 if numbers come near the ends of the type, where roundings are no relative errors.
template <typename T>
Real distance_from_exact(const Form &form, const Heads<T> &heads, const Heads<T> &weights, const Heads<T> &biases,
                         const Heads<T> &actual) {
  const bool is_double = std::is_same_v<T, double>;
  const Real u = is_double ? 0x1p-53L : 0x1p-24L;
  const Real count = static_cast<Real>(heads.size() * heads[0].size());
  Real sum = 0, sum_of_sizes = 0, largest = 0;
  for (const std::vector<T> &head : heads) {
    for (const T x : head) {
      if (!std::isfinite(x)) return 0;
      sum += x;
      sum_of_sizes += std::fabs(static_cast<Real>(x));
      largest = std::max(largest, std::fabs(static_cast<Real>(x)));
    }
  }
  if (largest > 1e15L || largest < 1e-12L || form.eps < 1e-20) return 0;
  const bool is_layer = form.type == ROPE_NORM_LAYER;
  const Real mean = is_layer ? sum / count : 0;
  Real sum_of_squares = 0;
  for (const std::vector<T> &head : heads) {
    for (const T x : head) sum_of_squares += (x - mean) * (x - mean);
  }
  const Real v = sum_of_squares / count + (is_double ? form.eps : static_cast<float>(form.eps));
  const Real r = 1 / std::sqrt(v);
  // Sums of a tree have one rounding on each level.
  const Real levels = std::ceil(std::log2(count)) + 2;
  const Real mean_slack = is_layer ? (levels + 2) * u * sum_of_sizes / count : 0;
  const Real centred_slack = mean_slack + (is_layer ? 2 * u * (largest + std::fabs(mean)) : 0);
  const Real r_slack = (levels + 8) * u + centred_slack * r + centred_slack * centred_slack / v;
  Real worst = 0;
  for (size_t h = 0; h < heads.size(); ++h) {
    for (size_t c = 0; c < heads[h].size(); ++c) {
      const Real x = heads[h][c] - mean;
      const Real w = weights.empty() ? 1
                                     : weights[h][c] + (is_double ? static_cast<Real>(form.weight_offset)
                                                                  : static_cast<float>(form.weight_offset));
      const Real bias = biases.empty() ? 0 : biases[h][c];
      const Real product = x * r * w, exact = product + bias;
      Real slack = (r_slack + 6 * u) * std::fabs(product) + centred_slack * r * std::fabs(w) +
                   2 * u * (std::fabs(exact) + std::fabs(x * r * static_cast<Real>(form.weight_offset)));
      if (form.rounding & ROPE_NORM_ROUND_BEFORE_WEIGHT) slack += oracle::ulp(form.dtype, x * r) * std::fabs(w);
      if (form.rounding & ROPE_NORM_ROUND_AFTER_WEIGHT) {
        slack += oracle::ulp(form.dtype, product) + oracle::ulp(form.dtype, exact);
      }
      slack += 4 * oracle::min_positive(is_double ? ROPE_DTYPE_F64 : ROPE_DTYPE_F32);
      if (std::isfinite(actual[h][c])) worst = std::max(worst, std::fabs(actual[h][c] - exact) / slack);
    }
  }
  return worst;
}

// Makes gradients of a norm's inputs from those of its outputs, and returns the inputs normed, without weights and
// biases. Roundings of forward are ignored.
template <typename T>
struct Gradients {
  Heads<T> of_inputs, normed;
};

template <typename T>
Gradients<T> gradients(const Form &form, Heads<T> heads, const Heads<T> &weights, Heads<T> given) {
  const auto inverse_count = static_cast<T>(Real{1} / static_cast<Real>(heads.size() * heads[0].size()));
  const bool is_layer = form.type == ROPE_NORM_LAYER;
  const T mean = is_layer ? sum_of_heads(heads, [](T x) { return x; }) * inverse_count : T{0};
  for (std::vector<T> &head : heads) {
    for (T &x : head) x = is_layer ? x - mean : x;
  }
  const T mean_square = sum_of_heads(heads, [](T x) { return x * x; }) * inverse_count;
  const T r = inverse_root(static_cast<T>(mean_square + static_cast<T>(form.eps)));
  Heads<T> products = given;
  for (size_t h = 0; h < heads.size(); ++h) {
    for (size_t c = 0; c < heads[h].size(); ++c) {
      heads[h][c] = heads[h][c] * r;
      if (!weights.empty()) {
        given[h][c] = given[h][c] * static_cast<T>(weights[h][c] + static_cast<T>(form.weight_offset));
      }
      products[h][c] = given[h][c] * heads[h][c];
    }
  }
  const auto itself = [](T x) { return x; };
  const T mean_product = sum_of_heads(products, itself) * inverse_count;
  const T mean_gradient = is_layer ? sum_of_heads(given, itself) * inverse_count : T{0};
  for (size_t h = 0; h < heads.size(); ++h) {
    for (size_t c = 0; c < heads[h].size(); ++c) {
      const T centred = is_layer ? given[h][c] - mean_gradient : given[h][c];
      const T along = heads[h][c] * mean_product;
      given[h][c] = (centred - along) * r;
    }
  }
  return {given, heads};
}

// Like distance_from_exact, for the gradients of the inputs.
template <typename T>
Real gradient_distance(const Form &form, const Heads<T> &heads, const Heads<T> &weights, const Heads<T> &given,
                       const Heads<T> &actual) {
  const bool is_double = std::is_same_v<T, double>, is_layer = form.type == ROPE_NORM_LAYER;
  const Real u = is_double ? 0x1p-53L : 0x1p-24L;
  const Real count = static_cast<Real>(heads.size() * heads[0].size()), levels = std::ceil(std::log2(count)) + 2;
  const Real offset = is_double ? static_cast<Real>(form.weight_offset) : static_cast<float>(form.weight_offset);
  const auto for_each = [&](auto visit) {
    for (size_t h = 0; h < heads.size(); ++h) {
      for (size_t c = 0; c < heads[h].size(); ++c) {
        const Real w = weights.empty() ? 1 : weights[h][c] + offset;
        visit(static_cast<Real>(heads[h][c]), given[h][c] * w, static_cast<Real>(actual[h][c]));
      }
    }
  };
  Real sum = 0, sizes = 0, largest = 0, smallest = 1e30L, squares = 0;
  bool is_finite = true;
  for_each([&](Real x, Real weighed, Real) {
    is_finite = is_finite && std::isfinite(x) && std::isfinite(weighed);
    sum += x;
    sizes += std::fabs(x);
    largest = std::max({largest, std::fabs(x), std::fabs(weighed)});
    if (weighed != 0) smallest = std::min(smallest, std::fabs(weighed));
  });
  if (!is_finite || largest > 1e9L || largest < 1e-9L || smallest < 1e-20L || form.eps < 1e-20) return 0;
  const Real mean = is_layer ? sum / count : 0;
  for_each([&](Real x, Real, Real) { squares += (x - mean) * (x - mean); });
  const Real v = squares / count + (is_double ? form.eps : static_cast<float>(form.eps)), r = 1 / std::sqrt(v);
  Real products = 0, product_sizes = 0, gradients = 0, gradient_sizes = 0;
  for_each([&](Real x, Real weighed, Real) {
    const Real normed = (x - mean) * r;
    products += weighed * normed;
    product_sizes += std::fabs(weighed * normed);
    gradients += weighed;
    gradient_sizes += std::fabs(weighed);
  });
  const Real centred_slack = is_layer ? (levels + 4) * u * sizes / count + 2 * u * (largest + std::fabs(mean)) : 0;
  const Real r_slack = (levels + 8) * u + centred_slack * r + centred_slack * centred_slack / v;
  const Real normed_slack = centred_slack * r;  // of any channel, in addition to its relative error
  const Real mean_slack =
      (levels + 8 + r_slack / u) * u * product_sizes / count + normed_slack * gradient_sizes / count;
  Real worst = 0;
  for_each([&](Real x, Real weighed, Real found) {
    const Real normed = (x - mean) * r, along = normed * products / count;
    const Real from = is_layer ? gradients / count : 0;
    const Real exact = (weighed - from - along) * r;
    const Real parts = std::fabs(weighed) + std::fabs(along) +
                       (is_layer ? std::fabs(from) + (levels + 4) * gradient_sizes / count : 0);
    const Real slack = r * (8 * u * parts + std::fabs(normed) * mean_slack + r_slack * std::fabs(along) +
                            normed_slack * std::fabs(products) / count) +
                       r_slack * std::fabs(exact) + 4 * oracle::min_normal(is_double ? ROPE_DTYPE_F64 : ROPE_DTYPE_F32);
    if (std::isfinite(found)) worst = std::max(worst, std::fabs(found - exact) / slack);
  });
  return worst;
}

}  // namespace norm_model

#endif
