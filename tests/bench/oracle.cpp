// SPDX-License-Identifier: Apache-2.0
// oracle.cpp - RoPE, norms and SwiGLU in double
#include "oracle.hpp"

#include <algorithm>
#include <cmath>

namespace bench {

namespace {

struct Pair {
  size_t x, y;
};

Pair channels_of(const RopeWindow &window, rope_style_t style, int pair) {
  const int first = window.rotary_offset;
  if (style == ROPE_STYLE_INTERLEAVED)
    return {static_cast<size_t>(first + 2 * pair), static_cast<size_t>(first + 2 * pair + 1)};
  const int half = window.pair_block / 2;
  const int x = first + pair / half * window.pair_block + pair % half;
  return {static_cast<size_t>(x), static_cast<size_t>(x + half)};
}

}  // namespace

std::vector<double> rotated(const RopeWindow &window, const std::vector<double> &cosine,
                            const std::vector<double> &sine, const std::vector<double> &head) {
  std::vector<double> result = head;
  const double direction = window.is_backward ? -1 : 1;
  for (int i = 0; i < window.rotary_dim / 2; ++i) {
    const Pair from = channels_of(window, window.is_backward ? window.out_style : window.style, i);
    const Pair to = channels_of(window, window.is_backward ? window.style : window.out_style, i);
    const double c = cosine[static_cast<size_t>(i)], s = direction * sine[static_cast<size_t>(i)];
    result[to.x] = head[from.x] * c - head[from.y] * s;
    result[to.y] = head[from.x] * s + head[from.y] * c;
  }
  return result;
}

void norm(const NormForm &form, const std::vector<double> &weights, std::vector<std::vector<double>> *heads) {
  const size_t count = form.extent == ROPE_NORM_EXTENT_TOKEN ? heads->size() : 1;
  for (size_t first = 0; first < heads->size(); first += count) {
    const double channels = static_cast<double>(count * heads->front().size());
    double mean = 0, squares = 0;
    for (size_t h = first; form.type == ROPE_NORM_LAYER && h < first + count; ++h) {
      for (const double x : (*heads)[h]) mean += x / channels;
    }
    for (size_t h = first; h < first + count; ++h) {
      for (const double x : (*heads)[h]) squares += (x - mean) * (x - mean);
    }
    const double factor = 1 / std::sqrt(squares / channels + form.eps);
    for (size_t h = first; h < first + count; ++h) {
      for (size_t c = 0; c < (*heads)[h].size(); ++c) {
        double &x = (*heads)[h][c];
        x = (x - mean) * factor * (weights.empty() ? 1 : weights[c]);
      }
    }
  }
}

void norm_gradient(const NormForm &form, const std::vector<double> &weights,
                   const std::vector<std::vector<double>> &inputs, std::vector<std::vector<double>> *gradients,
                   std::vector<double> *of_weights) {
  const size_t count = form.extent == ROPE_NORM_EXTENT_TOKEN ? inputs.size() : 1;
  for (size_t first = 0; first < inputs.size(); first += count) {
    const double channels = static_cast<double>(count * inputs.front().size());
    double mean = 0, squares = 0, of_gradients = 0, of_products = 0;
    const auto for_each = [&](const auto &visit) {
      for (size_t h = first; h < first + count; ++h) {
        for (size_t c = 0; c < inputs[h].size(); ++c) visit(inputs[h][c], &(*gradients)[h][c], c);
      }
    };
    const bool is_layer = form.type == ROPE_NORM_LAYER;
    for_each([&](double x, double *, size_t) { mean += is_layer ? x / channels : 0; });
    for_each([&](double x, double *, size_t) { squares += (x - mean) * (x - mean); });
    const double factor = 1 / std::sqrt(squares / channels + form.eps);
    for_each([&](double x, double *gradient, size_t c) {
      const double normed = (x - mean) * factor;
      if (!of_weights->empty()) (*of_weights)[c] += *gradient * normed;
      if (!weights.empty()) *gradient *= weights[c];
      of_gradients += is_layer ? *gradient / channels : 0;
      of_products += *gradient * normed / channels;
    });
    for_each([&](double x, double *gradient, size_t) {
      *gradient = factor * (*gradient - of_gradients - (x - mean) * factor * of_products);
    });
  }
}

namespace {

// The value of a function and of its derivative.
struct Slope {
  double value, slope;
};

Slope soft_cap(double x, double cap) {
  if (cap == 0) return {x, 1};
  const double t = std::tanh(x / cap);
  return {cap * t, 1 - t * t};
}

Slope limited(const Slope &given, bool is_cut, double limit) {
  return is_cut ? Slope{limit, 0} : given;
}

Slope weight_of(const GateNumbers &numbers, double g) {
  const double root = std::sqrt(2 / std::acos(-1.0));
  switch (numbers.activation) {
    case SWIGLU_ACTIVATION_GEGLU_ERF:
      return {std::erfc(-g / std::sqrt(2.0)) / 2, root / 2 * std::exp(-g * g / 2)};
    case SWIGLU_ACTIVATION_GEGLU_TANH: {
      const double t = std::tanh(root * (g + 0.044715 * g * g * g));
      return {(1 + t) / 2, (1 - t * t) / 2 * root * (1 + 3 * 0.044715 * g * g)};
    }
    case SWIGLU_ACTIVATION_REGLU:
      return {g > 0 ? 1.0 : 0.0, 0};
    default: {
      const double s = 1 / (1 + std::exp(-numbers.alpha * g));
      return {s, numbers.alpha * s * (1 - s)};
    }
  }
}

Slope activation_of(const GateNumbers &numbers, double gate) {
  const bool has_limit = numbers.limit > 0, is_late = numbers.limit_rule == SWIGLU_LIMIT_ACTIVATION;
  const Slope g = limited({gate, 1}, has_limit && !is_late && gate > numbers.limit, numbers.limit);
  const Slope linear = soft_cap(g.value, numbers.gate_softcap), weight = weight_of(numbers, g.value);
  const Slope product = {linear.value * weight.value,
                         g.slope * (linear.slope * weight.value + linear.value * weight.slope)};
  return limited(product, has_limit && is_late && product.value > numbers.limit, numbers.limit);
}

Slope moved_up(const GateNumbers &numbers, double up) {
  const bool is_cut = numbers.limit > 0 && std::fabs(up) > numbers.limit;
  const Slope bounded = limited({up, 1}, is_cut, std::copysign(numbers.limit, up));
  const Slope capped = soft_cap(bounded.value, numbers.up_softcap);
  return {capped.value + numbers.up_offset, capped.slope * bounded.slope};
}

}  // namespace

double gated(const GateNumbers &numbers, double gate, double up) {
  return activation_of(numbers, gate).value * moved_up(numbers, up).value;
}

GateGradient gate_gradient(const GateNumbers &numbers, double gate, double up, double grad_out) {
  const Slope activation = activation_of(numbers, gate), moved = moved_up(numbers, up);
  return {grad_out * moved.value * activation.slope, grad_out * activation.value * moved.slope};
}

void Accuracy::add(double got, double exact) {
  const double error = std::isnan(got) ? INFINITY : std::fabs(got - exact);
  errors_ += error * error;
  values_ += exact * exact;
  largest_ = std::max(largest_, error);
}

double Accuracy::relative() const {
  return errors_ == 0 ? 0 : std::sqrt(errors_ / values_);
}

}  // namespace bench
