// SPDX-License-Identifier: Apache-2.0
// norm_tests.cpp - the tree of a norm's sums, the inverse root and the roundings of a channel
#include <catch2/catch_test_macros.hpp>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "core/math/norm.hpp"
#include "support/random.hpp"

namespace {

template <typename T>
bool same_bits(T a, T b) {
  return std::memcmp(&a, &b, sizeof a) == 0;
}

// The definition of rope.h: an array, padded with +0, halved until one number is left.
template <typename Real>
Real sum_of_array(std::vector<Real> terms) {
  size_t count = 1;
  while (count < terms.size()) count *= 2;
  terms.resize(count, Real{0});
  for (; count > 1; count /= 2) {
    for (size_t i = 0; i < count / 2; ++i) {
      volatile Real sum = terms[2 * i] + terms[2 * i + 1];
      terms[i] = sum;
    }
  }
  return terms[0];
}

template <typename Real>
Real sum_of_counter(const std::vector<Real> &terms) {
  rope::TreeSum<Real> sum;
  for (const Real term : terms) sum.add(term);
  return sum.total();
}

template <typename Real>
void check_sums(uint64_t seed) {
  Random random(seed);
  int differ_in_order = 0;
  for (size_t n = 1; n <= 1024; n += n < 300 ? 1 : 37) {
    std::vector<Real> terms(n);
    for (Real &term : terms) {
      term = static_cast<Real>(random.below(1 << 24) - (1 << 23)) * static_cast<Real>(1e-6);
      if (random.below(50) == 0) term = -Real{0};
    }
    INFO(n << " terms");
    CHECK(same_bits(sum_of_counter(terms), sum_of_array(terms)));
    // Runs of 8 terms that one thread adds up are subtrees.
    rope::TreeSum<Real> of_runs;
    for (size_t begin = 0; begin < n; begin += 8) {
      Real run[8] = {};
      for (size_t i = begin; i < n && i < begin + 8; ++i) run[i - begin] = terms[i];
      of_runs.add(rope::tree_sum<8>(run));
    }
    CHECK((n <= 4 || same_bits(of_runs.total(), sum_of_array(terms))));
    Real in_a_row = 0;
    for (const Real term : terms) in_a_row += term;
    differ_in_order += !same_bits(in_a_row, sum_of_array(terms));
  }
  CHECK(differ_in_order > 100);
}

}  // namespace

TEST_CASE("the sum of a norm is that of a tree of neighbours", "[norm]") {
  check_sums<float>(1);
  check_sums<double>(2);
  // Zeros of the padding are positive.
  CHECK(same_bits(sum_of_counter<float>({-0.0f}), -0.0f));
  CHECK(same_bits(sum_of_counter<float>({-0.0f, -0.0f}), -0.0f));
  CHECK(same_bits(sum_of_counter<float>({-0.0f, -0.0f, -0.0f}), 0.0f));
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  CHECK(std::isnan(sum_of_counter<float>({kInfinity, 1, -kInfinity})));
}

TEST_CASE("the inverse root is the nearest number", "[norm]") {
  // 1 / sqrt(v) lies between the neighbours' midpoints: r is right if (r +- half a step)^2 * v encloses 1.
  const auto is_nearest = [](float v) {
    const float r = rope::inverse_root(v);
    const long double below = (static_cast<long double>(std::nextafter(r, 0.0f)) + r) / 2;
    const long double above = (static_cast<long double>(std::nextafter(r, INFINITY)) + r) / 2;
    return below * below * v < 1 && above * above * v > 1;
  };
  int wrong = 0;
  for (uint32_t fraction = 0; fraction < 1u << 23; fraction += 7) {
    for (const uint32_t exponent : {127u, 128u}) {
      const uint32_t bits = exponent << 23 | fraction;
      float v;
      std::memcpy(&v, &bits, sizeof v);
      wrong += !is_nearest(v);
    }
  }
  CHECK(wrong == 0);
  CHECK(rope::inverse_root(0.25f) == 2.0f);
  CHECK(rope::inverse_root(std::numeric_limits<float>::infinity()) == 0.0f);
  CHECK(rope::inverse_root(0.0f) == std::numeric_limits<float>::infinity());
  CHECK(std::isnan(rope::inverse_root(-1.0f)));
  CHECK(rope::inverse_root(1.0 / 9) == 1.0 / std::sqrt(1.0 / 9));
}

TEST_CASE("roundings of a normed channel", "[norm]") {
  rope::NormForm<float> form = {1e-6f, 1.0f / 128, 0, false, false, false};
  CHECK(rope::mean_of(form, 128.0f) == 1.0f);
  CHECK(rope::inverse_norm(form, 128.0f) == rope::inverse_root(1.0f + 1e-6f));
  using rope::BFloat16;
  const float x = 1.00390625f;  // 1 + 2^-8: halfway between two numbers of BF16
  CHECK(rope::scale_channel<BFloat16>(form, x, 1.0f) == x);
  CHECK(rope::weigh_channel<BFloat16>(form, x, 1.0f) == x);
  CHECK(rope::add_bias<BFloat16>(form, x, 0.0f) == x);
  form.rounds_before_weight = true;
  CHECK(rope::scale_channel<BFloat16>(form, x, 1.0f) == 1.0f);
  CHECK(rope::weigh_channel<BFloat16>(form, x, 1.0f) == x);
  form.rounds_before_weight = false;
  form.rounds_after_weight = true;
  CHECK(rope::scale_channel<BFloat16>(form, x, 1.0f) == x);
  CHECK(rope::weigh_channel<BFloat16>(form, x, 1.0f) == 1.0f);
  CHECK(rope::add_bias<BFloat16>(form, x, 0.0f) == 1.0f);
  // The offset is added in fp32, not in the type of the weight.
  form.rounds_after_weight = false;
  form.weight_offset = 1;
  CHECK(rope::weigh_channel<BFloat16>(form, 1.0f, 0x1p-10f) == 1.0f + 0x1p-10f);
}
