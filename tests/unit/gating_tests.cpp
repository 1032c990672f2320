// SPDX-License-Identifier: Apache-2.0
// gating_tests.cpp - exponential, sigmoid, SwiGLU and its gradients for one element, against long double
#include <catch2/catch_test_macros.hpp>
#include <cfloat>
#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <vector>

#include "core/math/gating.hpp"
#include "support/oracle.hpp"
#include "support/random.hpp"

using oracle::Real;

namespace {

constexpr rope::Form<float> kPlain = {1, std::numeric_limits<float>::infinity(), 0, 1, true};
constexpr rope::Form<double> kPlainF64 = {1, std::numeric_limits<double>::infinity(), 0, 1, true};
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Calls visit(value) for floats from `low` to `high`, both positive, `stride` representations apart.
template <typename Visit>
void for_floats(float low, float high, uint32_t stride, Visit visit) {
  for (uint32_t bits = rope::bits_of(low); bits <= rope::bits_of(high); bits += stride) visit(rope::float_of(bits));
}

Real ulps(float actual, Real exact, Real size) {
  const Real error = std::fabs(actual - exact) / oracle::ulp(ROPE_DTYPE_F32, size);
  return error >= 0 ? error : std::numeric_limits<Real>::infinity();
}

Real ulps(float actual, Real exact) {
  return ulps(actual, exact, exact);
}

// Gates from the whole range in which neither branch of the sigmoid is subnormal.
template <typename Visit>
void for_gates(Visit visit) {
  for_floats(0x1p-30f, 87.0f, 4099, [&](float gate) {
    visit(gate);
    visit(-gate);
  });
}

std::vector<float> extremes() {
  std::vector<float> values = {0.0f};
  for (const float magnitude :
       {FLT_TRUE_MIN, FLT_MIN, 1e-30f, 1e-7f,  0.5f, 1.0f,  1.25f, 17.0f, 87.0f,       88.0f,
        88.8f,        103.9f,  104.0f, 104.1f, 1e3f, 1e10f, 1e19f, 1e30f, FLT_MAX / 2, FLT_MAX}) {
    values.push_back(magnitude);
    values.push_back(-magnitude);
  }
  values.push_back(-0.0f);
  return values;
}

// A finite exact value must give a finite result, and a value beyond the range an infinity of the correct sign. Close
// to the largest float both are accepted.
bool is_right_limit(float actual, Real exact) {
  if (std::isnan(actual)) return false;
  if (std::fabs(exact) < 0.99999L * FLT_MAX) return std::isfinite(actual);
  if (std::fabs(exact) > 1.00001L * FLT_MAX) return actual == (exact > 0 ? kInfinity : -kInfinity);
  return std::signbit(actual) == std::signbit(exact);
}

}  // namespace

TEST_CASE("exp of negative numbers", "[gating]") {
  Real worst = 0, worst_subnormal = 0;
  const auto compare = [&](float t) {
    const Real exact = std::exp(-static_cast<Real>(t));
    const Real error = ulps(rope::exp_of_negative(t), exact);
    Real &side = exact < FLT_MIN ? worst_subnormal : worst;
    side = std::fmax(side, error);
  };
  for_floats(FLT_TRUE_MIN, 0x1p-30f, 99991, compare);
  for_floats(0x1p-30f, 110.0f, 997, compare);
  CHECK(worst <= 1.5L);
  CHECK(worst_subnormal <= 1.5L);
  CHECK(rope::exp_of_negative(0.0f) == 1.0f);
  for (const float t : {104.0f, 105.0f, 1e10f, FLT_MAX, kInfinity}) CHECK(rope::exp_of_negative(t) == 0.0f);
}

TEST_CASE("sigmoid and its complement", "[gating]") {
  Real worst = 0;
  for_gates([&](float gate) {
    const rope::Sigmoid<float> s = rope::sigmoid_of(gate);
    worst = std::fmax(worst, ulps(s.value, oracle::sigmoid(gate)));
    worst = std::fmax(worst, ulps(s.complement, oracle::sigmoid(-static_cast<Real>(gate))));
  });
  CHECK(worst <= 3);
  CHECK(rope::sigmoid_of(0.0f).value == 0.5f);
  CHECK(rope::sigmoid_of(-0.0f).complement == 0.5f);
  CHECK(rope::sigmoid_of(FLT_MAX).value == 1.0f);
  CHECK(rope::sigmoid_of(FLT_MAX).complement == 0.0f);
  CHECK(rope::sigmoid_of(-FLT_MAX).value == 0.0f);
  CHECK(rope::sigmoid_of(-FLT_MAX).complement == 1.0f);
}

TEST_CASE("sigmoid where it is subnormal", "[gating]") {
  Real worst = 0;
  for_floats(87.0f, 110.0f, 7, [&](float magnitude) {
    const Real exact = oracle::sigmoid(-static_cast<Real>(magnitude));
    worst = std::fmax(worst, ulps(rope::sigmoid_of(-magnitude).value, exact));
    worst = std::fmax(worst, ulps(rope::sigmoid_of(magnitude).complement, exact));
  });
  CHECK(worst <= 3);
}

TEST_CASE("SwiGLU and its gradients", "[gating]") {
  Random random(1);
  Real worst_out = 0, worst_up = 0, worst_gate = 0;
  for_gates([&](float gate) {
    // No product of these numbers leaves the normal range before the exact result does.
    const float up = static_cast<float>(std::ldexp(random.normal(), static_cast<int>(random.below(20)) - 5));
    const float grad_out = static_cast<float>(std::ldexp(random.normal(), static_cast<int>(random.below(20)) - 5));
    const Real slack = 0x1p-126L * (std::fabs(gate) + 1) * (std::fabs(up) + 1) * (std::fabs(grad_out) + 1);
    const Real out = oracle::swiglu(gate, up);
    const oracle::SwigluGradients exact = oracle::swiglu_gradients(gate, up, grad_out);
    const Real s = oracle::sigmoid(gate), complement = oracle::sigmoid(-static_cast<Real>(gate));
    const Real factor = static_cast<Real>(grad_out) * up * s;
    const Real larger_term = std::fmax(std::fabs(factor), std::fabs(factor * gate * complement));
    const rope::SwigluGradient<float> gradient = rope::swiglu_gradient<true>(gate, up, grad_out, kPlain);
    if (std::fabs(out) > slack) worst_out = std::fmax(worst_out, ulps(rope::swiglu<true>(gate, up, kPlain), out));
    if (std::fabs(exact.up) > slack) worst_up = std::fmax(worst_up, ulps(gradient.up, exact.up));
    if (larger_term > slack) worst_gate = std::fmax(worst_gate, ulps(gradient.gate, exact.gate, larger_term));
  });
  CHECK(worst_out > 0);
  CHECK(worst_out <= 8);
  CHECK(worst_up > 0);
  CHECK(worst_up <= 8);
  CHECK(worst_gate > 0);
  CHECK(worst_gate <= 8);
}

TEST_CASE("SwiGLU where sigmoid underflows", "[gating]") {
  Random random(2);
  int64_t outside = 0, compared = 0;
  // 8 ulp, and 2^-147 times the factors that exceed 1.
  const auto compare = [&](float actual, Real exact, std::initializer_list<float> factors) {
    Real subnormal = 0x1p-147L;
    for (const float factor : factors) subnormal *= std::fmax(1.0L, std::fabs(factor));
    ++compared;
    outside += !(std::fabs(actual - exact) <= 8 * oracle::ulp(ROPE_DTYPE_F32, exact) + subnormal);
  };
  for_floats(87.0f, 120.0f, 97, [&](float magnitude) {
    const float gate = -magnitude;
    const auto up = static_cast<float>(std::ldexp(random.normal(), static_cast<int>(random.below(100))));
    const auto grad_out = static_cast<float>(std::ldexp(random.normal(), static_cast<int>(random.below(20))));
    const oracle::SwigluGradients exact = oracle::swiglu_gradients(gate, up, grad_out);
    const rope::SwigluGradient<float> gradient = rope::swiglu_gradient<true>(gate, up, grad_out, kPlain);
    compare(rope::swiglu<true>(gate, up, kPlain), oracle::swiglu(gate, up), {gate, up});
    compare(gradient.up, exact.up, {gate, grad_out});
    compare(gradient.gate, exact.gate, {gate, up, grad_out});
  });
  CHECK(outside == 0);
  CHECK(compared > 50000);
}

TEST_CASE("finite numbers of any size have the right limit", "[gating]") {
  const std::vector<float> values = extremes();
  int64_t wrong_out = 0, wrong_gate = 0, wrong_up = 0, infinite = 0;
  for (const float gate : values) {
    for (const float up : values) {
      const Real out = oracle::swiglu(gate, up);
      wrong_out += !is_right_limit(rope::swiglu<true>(gate, up, kPlain), out);
      infinite += std::fabs(out) > FLT_MAX;
      for (const float grad_out : values) {
        const oracle::SwigluGradients exact = oracle::swiglu_gradients(gate, up, grad_out);
        const rope::SwigluGradient<float> gradient = rope::swiglu_gradient<true>(gate, up, grad_out, kPlain);
        wrong_gate += !is_right_limit(gradient.gate, exact.gate);
        wrong_up += !is_right_limit(gradient.up, exact.up);
      }
    }
  }
  CHECK(wrong_out == 0);
  CHECK(wrong_gate == 0);
  CHECK(wrong_up == 0);
  CHECK(infinite > 0);
}

TEST_CASE("a NaN anywhere gives NaN", "[gating]") {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  CHECK(std::isnan(rope::swiglu<true>(nan, 1.0f, kPlain)));
  CHECK(std::isnan(rope::swiglu<true>(1.0f, nan, kPlain)));
  CHECK(std::isnan(rope::swiglu_gradient<true>(nan, 1.0f, 1.0f, kPlain).gate));
  CHECK(std::isnan(rope::swiglu_gradient<true>(nan, 1.0f, 1.0f, kPlain).up));
  CHECK(std::isnan(rope::swiglu_gradient<true>(1.0f, nan, 1.0f, kPlain).gate));
  CHECK(std::isnan(rope::swiglu_gradient<true>(1.0f, 1.0f, nan, kPlain).gate));
  CHECK(std::isnan(rope::swiglu_gradient<true>(1.0f, 1.0f, nan, kPlain).up));
  CHECK(rope::swiglu_gradient<true>(1.0f, nan, 1.0f, kPlain).up ==
        rope::swiglu_gradient<true>(1.0f, 0.0f, 1.0f, kPlain).up);
}

TEST_CASE("SwiGLU and its gradients in double", "[gating]") {
  Random random(3);
  Real worst = 0;
  const auto note = [&](double actual, Real exact, Real size) {
    worst = std::fmax(worst, std::fabs(actual - exact) / oracle::ulp(ROPE_DTYPE_F64, size));
  };
  for (int round = 0; round < 200000; ++round) {
    const double gate = random.uniform(-600, 600), up = random.normal(), grad_out = random.normal();
    const rope::SwigluGradient<double> gradient = rope::swiglu_gradient<true>(gate, up, grad_out, kPlainF64);
    const oracle::SwigluGradients exact = oracle::swiglu_gradients(gate, up, grad_out);
    const Real factor = static_cast<Real>(grad_out) * up * oracle::sigmoid(gate);
    const Real larger_term =
        std::fmax(std::fabs(factor), std::fabs(factor * gate * oracle::sigmoid(-static_cast<Real>(gate))));
    note(rope::swiglu<true>(gate, up, kPlainF64), oracle::swiglu(gate, up), oracle::swiglu(gate, up));
    note(gradient.up, exact.up, exact.up);
    note(gradient.gate, exact.gate, std::fmax(larger_term, std::fabs(exact.gate)));
  }
  CHECK(worst > 0);
  CHECK(worst <= 8);
  CHECK(rope::sigmoid_of(0.0).value == 0.5);
  CHECK(rope::sigmoid_of(-DBL_MAX).value == 0.0);
  CHECK(rope::sigmoid_of(DBL_MAX).complement == 0.0);
  CHECK(std::isnan(rope::swiglu<true>(std::nan(""), 1.0, kPlainF64)));
}

TEST_CASE("row_scale multiplies the output and both gradients, and never makes NaN of finite numbers", "[gating]") {
  const std::vector<float> values = extremes();
  Random random(4);
  int64_t nans = 0, not_as_scaled = 0;
  for (const float gate : values) {
    for (const float up : values) {
      for (const float row_scale : values) {
        const float grad_out = values[static_cast<size_t>(random.below(static_cast<int64_t>(values.size())))];
        const rope::SwigluGradient<float> gradient =
            rope::swiglu_gradient<false>(gate, up, grad_out, kPlain, row_scale);
        nans += std::isnan(rope::swiglu<false>(gate, up, kPlain, row_scale));
        nans += std::isnan(gradient.gate) + std::isnan(gradient.up);
        nans += std::isnan(rope::half_row_term(gate, up, grad_out, kPlain));
      }
    }
  }
  for (int round = 0; round < 10000; ++round) {
    const auto gate = static_cast<float>(3 * random.normal()), up = static_cast<float>(random.normal());
    // A power of two scales exactly.
    const float row_scale = std::ldexp(1.0f, static_cast<int>(random.below(20)) - 10);
    const rope::SwigluGradient<float> plain = rope::swiglu_gradient<true>(gate, up, 1.25f, kPlain);
    const rope::SwigluGradient<float> scaled = rope::swiglu_gradient<false>(gate, up, 1.25f, kPlain, row_scale);
    not_as_scaled +=
        rope::swiglu<false>(gate, up, kPlain, row_scale) != row_scale * rope::swiglu<true>(gate, up, kPlain);
    not_as_scaled += scaled.gate != row_scale * plain.gate || scaled.up != row_scale * plain.up;
  }
  CHECK(nans == 0);
  CHECK(not_as_scaled == 0);
}

TEST_CASE("a row's sum keeps what its additions round away", "[gating]") {
  Random random(5);
  for (int round = 0; round < 200; ++round) {
    rope::RowSum<float> one = {}, parts[4] = {};
    Real exact = 0, magnitude = 0;
    for (int i = 0; i < 5000; ++i) {
      const auto term = static_cast<float>(std::ldexp(random.normal(), static_cast<int>(random.below(30))));
      exact += 2 * static_cast<Real>(term);
      magnitude += 2 * std::fabs(static_cast<Real>(term));
      one.add(term);
      parts[i % 4].add(term);
    }
    for (int i = 1; i < 4; ++i) parts[0].add(parts[i]);
    const Real rounding =
        oracle::ulp(ROPE_DTYPE_F32, exact) / 2 + 1e-9L * oracle::ulp(ROPE_DTYPE_F32, magnitude) * 5000;
    CHECK(std::fabs(one.total() - exact) <= rounding);
    CHECK(std::fabs(parts[0].total() - exact) <= rounding);
  }
}

TEST_CASE("a row's sum of the largest terms is never NaN", "[gating]") {
  Random random(6);
  constexpr float half = FLT_MAX / 2;
  for (int round = 0; round < 20000; ++round) {
    const float terms[] = {half, -half, half - 0x1p102f, 0x1p102f, -0x1p102f, 1.5f * 0x1p103f, -1.5f * 0x1p103f, 1.0f};
    rope::RowSum<float> sum = {}, other = {};
    const int64_t length = 1 + random.below(12);
    for (int64_t i = 0; i < length; ++i) {
      (random.below(3) == 0 ? other : sum).add(terms[random.below(8)]);
    }
    sum.add(other);
    if (std::isnan(sum.total())) FAIL("NaN");
  }
  rope::RowSum<float> sum = {};
  for (int i = 0; i < 10; ++i) sum.add(half);
  CHECK(sum.total() == kInfinity);
  rope::RowSum<float> back = {};
  for (const float term : {half, half, -half}) back.add(term);
  CHECK(back.total() == FLT_MAX);
  rope::RowSum<float> spoilt = {};
  for (const float term : {1.0f, std::numeric_limits<float>::quiet_NaN(), 1.0f}) spoilt.add(term);
  CHECK(std::isnan(spoilt.total()));
  rope::RowSum<float> infinite = {}, joined = {};
  for (const float term : {1.0f, -kInfinity, 1.0f, half, half, half}) infinite.add(term);
  CHECK(infinite.total() == -kInfinity);
  joined.add(infinite);
  joined.add(1.0f);
  CHECK(joined.total() == -kInfinity);
}
