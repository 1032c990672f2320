// oracle.cpp - see oracle.hpp
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

double gated(const GateNumbers &numbers, double gate, double up) {
  if (numbers.limit > 0) gate = std::min(gate, numbers.limit);
  if (numbers.limit > 0) up = std::max(-numbers.limit, std::min(up, numbers.limit));
  return gate / (1 + std::exp(-numbers.alpha * gate)) * (up + numbers.up_offset);
}

GateGradient gate_gradient(const GateNumbers &numbers, double gate, double up, double grad_out) {
  const double g = numbers.limit > 0 ? std::min(gate, numbers.limit) : gate;
  const double u = numbers.limit > 0 ? std::max(-numbers.limit, std::min(up, numbers.limit)) : up;
  const double s = 1 / (1 + std::exp(-numbers.alpha * g));
  const double grad_gate = grad_out * (u + numbers.up_offset) * s * (1 + numbers.alpha * g * (1 - s));
  return {g < gate ? 0 : grad_gate, u != up ? 0 : grad_out * g * s};
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
