// SPDX-License-Identifier: Apache-2.0
// gating_options_tests.cpp - activations, soft caps and the later stages, one function at a time, against long double
#include <catch2/catch_template_test_macros.hpp>
#include <catch2/catch_test_macros.hpp>
#include <cfloat>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <vector>

#include "core/math/float16.hpp"
#include "core/math/gating_options.hpp"
#include "support/oracle.hpp"
#include "support/random.hpp"
#include "support/tolerance.hpp"

using oracle::Real;
using rope::Activation;

namespace {

constexpr Real kRootHalf = 0.70710678118654752440084436210484904L;
constexpr Real kTwoByPi = 0.63661977236758134307553505349005745L;

template <typename T>
constexpr T kInfinity = std::numeric_limits<T>::infinity();

template <typename T>
Real ulps(T actual, Real exact) {
  const rope_dtype_t dtype = std::is_same_v<T, float> ? ROPE_DTYPE_F32 : ROPE_DTYPE_F64;
  const Real error = std::fabs(actual - exact) / oracle::ulp(dtype, exact);
  return error >= 0 ? error : kInfinity<Real>;
}

// The largest result of visit(x), for numbers of either sign with magnitudes from `low` to `high`.
template <typename T, typename Visit>
Real largest(Real low, Real high, Visit visit) {
  constexpr int kNumbers = 20000;
  const Real ratio = std::log(high / low);
  Real worst = 0;
  for (int i = 0; i <= kNumbers; ++i) {
    const T x = static_cast<T>(low * std::exp(ratio * i / kNumbers));
    worst = std::fmax(worst, std::fmax(visit(x), visit(-x)));
  }
  return worst;
}

Real exact_erf_weight(Real x) {
  return std::erfc(-x * kRootHalf) / 2;
}

Real exact_normal_density(Real x) {
  return std::exp(-x * x / 2) * std::sqrt(kTwoByPi) / 2;
}

struct TanhWeight {
  Real value, slope;
};

// (1 + tanh(y / 2)) / 2 = 1 / (1 + exp(-y)), which has no cancellation.
TanhWeight exact_tanh_weight(Real x) {
  const Real scale = 2 * std::sqrt(kTwoByPi), y = scale * (x + 0.044715L * x * x * x);
  const Real value = 1 / (1 + std::exp(-y)), complement = 1 / (1 + std::exp(y));
  return {value, value * complement * scale * (1 + 3 * 0.044715L * x * x)};
}

template <typename Real>
rope::FormWithOptions<Real> form_of(const rope::GatingForm &given) {
  return rope::form_with_options_in<Real>(given);
}

rope::GatingForm plain_form() {
  rope::GatingForm form;
  form.alpha = 1;
  form.limit = kInfinity<double>;
  form.up_offset = 0;
  form.out_scale = 1;
  return form;
}

}  // namespace

TEMPLATE_TEST_CASE("tanh and its slope", "[gating][gates]", float, double) {
  constexpr bool kIsFloat = std::is_same_v<TestType, float>;
  const Real end = kIsFloat ? 40 : 340;  // the slope is normal up to this number
  CHECK(largest<TestType>(1e-10L, end, [](TestType x) { return ulps(rope::tanh_of(x).value, std::tanh(Real{x})); }) <=
        4);
  CHECK(largest<TestType>(1e-10L, end, [](TestType x) {
          const Real e = std::exp(-2 * std::fabs(Real{x}));
          return ulps(rope::tanh_of(x).slope, 4 * e / ((1 + e) * (1 + e)));
        }) <= 8);
  for (const TestType x : {kInfinity<TestType>, std::numeric_limits<TestType>::max()}) {
    CHECK(rope::tanh_of(x).value == 1);
    CHECK(rope::tanh_of(-x).value == -1);
    CHECK(rope::tanh_of(x).slope == 0);
  }
  CHECK(rope::tanh_of(TestType{0}).value == 0);
  CHECK(rope::tanh_of(TestType{0}).slope == 1);
  CHECK(std::isnan(rope::tanh_of(std::numeric_limits<TestType>::quiet_NaN()).value));
}

TEMPLATE_TEST_CASE("soft caps", "[gating][gates]", float, double) {
  for (const TestType cap : {TestType(0x1p-126), TestType(0.37), TestType(30), TestType(0x1p126)}) {
    INFO("cap " << cap);
    const TestType inverse = 1 / cap;
    const auto capped = [&](TestType x) { return rope::soft_cap<true, false>(x, cap, inverse); };
    // Rounding x * (1 / cap) twice changes the argument of tanh by up to 2 ulp.
    CHECK(largest<TestType>(1e-3L * cap, 12.0L * cap, [&](TestType x) {
            if (!std::isnormal(x)) return Real{0};
            return ulps(capped(x).value, Real{cap} * std::tanh(Real{x} / cap));
          }) <= 6);
    for (const TestType x : {std::numeric_limits<TestType>::denorm_min(), static_cast<TestType>(1e-20 * cap)}) {
      CHECK(capped(x).value == x);
      CHECK(capped(-x).value == -x);
      CHECK(capped(x).slope == 1);
    }
    CHECK(capped(kInfinity<TestType>).value == cap);
    CHECK(capped(-kInfinity<TestType>).value == -cap);
    CHECK(capped(kInfinity<TestType>).slope == 0);
  }
}

TEMPLATE_TEST_CASE("slopes of soft caps, whose exponential multiplies what their argument lost", "[gating][gates]",
                   float, double) {
  for (const TestType cap : {TestType(0.999), TestType(3.90027), TestType(7.69148)}) {
    INFO("cap " << cap);
    CHECK(largest<TestType>(1e-3L * cap, 40.0L * cap, [&](TestType x) {
            const Real cosh = std::cosh(Real{x} / cap);
            const TestType slope = rope::soft_cap<true, false>(x, cap, TestType(1 / double{cap})).slope;
            return ulps(slope, 1 / (cosh * cosh)) / (8 + tolerance::swiglu_cap_slope_ulps(x, cap));
          }) <= 1);
  }
}

TEMPLATE_TEST_CASE("weights of GeGLU by erf", "[gating][gates]", float, double) {
  // Below this number exp(-x^2 / 2) is subnormal.
  const Real end = std::is_same_v<TestType, float> ? 12.5L : 36.5L;
  const auto weight = [](TestType x) { return rope::weight_of_erf<false>(x); };
  CHECK(largest<TestType>(1e-10L, end, [&](TestType x) { return ulps(weight(x).value, exact_erf_weight(x)); }) <= 7.5L);
  CHECK(largest<TestType>(1e-10L, end, [&](TestType x) { return ulps(weight(x).slope, exact_normal_density(x)); }) <=
        8);
  CHECK(weight(kInfinity<TestType>).value == 1);
  CHECK(weight(-kInfinity<TestType>).value == 0);
  CHECK(weight(0).value == TestType(0.5));
}

TEMPLATE_TEST_CASE("weights of GeGLU by tanh", "[gating][gates]", float, double) {
  const Real end = std::is_same_v<TestType, float> ? 8.87L : 20;
  const auto weight = [](TestType x) { return rope::weight_of_tanh<false>(x); };
  CHECK(largest<TestType>(1e-10L, end, [&](TestType x) { return ulps(weight(x).value, exact_tanh_weight(x).value); }) <=
        4);
  CHECK(largest<TestType>(1e-10L, end, [&](TestType x) { return ulps(weight(x).slope, exact_tanh_weight(x).slope); }) <=
        12);
  CHECK(weight(kInfinity<TestType>).value == 1);
  CHECK(weight(kInfinity<TestType>).slope == 0);
  CHECK(weight(-kInfinity<TestType>).value < std::numeric_limits<TestType>::min());
  CHECK(weight(0).value == TestType(0.5));
}

TEST_CASE("the scaled erfc has the errors of its minimax quotients", "[gating][gates]") {
  Real brief = 0, fine = 0;
  constexpr int kNumbers = 20000;
  for (int i = 0; i <= kNumbers; ++i) {
    const float t = rope::kLargestErfGate * static_cast<float>(i) / kNumbers;
    const Real exact = std::exp(Real{t} * t / 2) * std::erfc(t * kRootHalf) / 2;
    const auto error = [&](const rope::Quotient<float> &erfc) {
      return std::fabs(Real{erfc.dividend} / erfc.divisor / exact - 1);
    };
    brief = std::fmax(brief, error(rope::scaled_erfc<true>(t, 1.0f)));
    fine = std::fmax(fine, error(rope::scaled_erfc<false>(t, 1.0f)));
  }
  constexpr Real kRounding = 8 * 0x1p-24L;  // roundings of both sums
  CHECK(brief <= 4.3e-7L + kRounding);
  CHECK(fine <= 6e-9L + kRounding);
}

TEST_CASE("brief weights of GeGLU are within 2^-16 of their value", "[gating][gates]") {
  const auto share = [](float actual, Real exact) { return std::fabs(actual / exact - 1); };
  CHECK(largest<float>(1e-10L, 12.5L, [&](float x) {
          return share(rope::weight_of_erf<true>(x).value, exact_erf_weight(x));
        }) <= 0x1p-16L);
  CHECK(largest<float>(1e-10L, 8.87L, [&](float x) {
          return share(rope::weight_of_tanh<true>(x).value, exact_tanh_weight(x).value);
        }) <= 0x1p-16L);
}

TEST_CASE("a rounded silu is that of rounded operations, or its neighbour", "[gating][gates]") {
  int aside = 0, all = 0;
  const Real worst = largest<float>(1e-6L, 120, [&](float x) {
    const float exponential = static_cast<float>(std::exp(-Real{x}));
    const float expected = x / (1.0f + exponential), actual = rope::rounded_silu(x, x);
    ++all;
    aside += actual != expected;
    return ulps(actual, expected);
  });
  CHECK(worst <= 4);
  CHECK(aside * 3 <= all);
  CHECK(rope::rounded_silu(-FLT_MAX, -FLT_MAX) == 0);
  CHECK(rope::rounded_silu(FLT_MAX, FLT_MAX) == FLT_MAX);
}

TEST_CASE("sums with a bias stop at the largest number only where both are finite", "[gating][gates]") {
  CHECK(rope::add_bias(1.5f, 2.25f) == 3.75f);
  CHECK(rope::add_bias(FLT_MAX, FLT_MAX) == FLT_MAX);
  CHECK(rope::add_bias(-FLT_MAX, -FLT_MAX) == -FLT_MAX);
  CHECK(rope::add_bias(kInfinity<float>, -FLT_MAX) == kInfinity<float>);
  CHECK(rope::add_bias(FLT_MAX, kInfinity<float>) == kInfinity<float>);
  CHECK(std::isnan(rope::add_bias(kInfinity<float>, -kInfinity<float>)));
}

TEST_CASE("the form of options says which limit is whose", "[gating][gates]") {
  rope::GatingForm given = plain_form();
  given.limit = 7;
  given.gate_softcap = 4;
  CHECK(form_of<float>(given).gate_limit == 7);
  CHECK(form_of<float>(given).activation_limit == kInfinity<float>);
  CHECK(form_of<float>(given).lowest_gate == -kInfinity<float>);
  CHECK(form_of<float>(given).inverse_of_gate_softcap == 0.25f);
  CHECK(form_of<float>(given).inverse_of_up_softcap == 0);
  given.limits_activation = true;
  given.activation = Activation::kReglu;
  given.up_softcap = 8;
  CHECK(form_of<double>(given).gate_limit == kInfinity<double>);
  CHECK(form_of<double>(given).activation_limit == 7);
  CHECK(form_of<double>(given).limit == 7);  // limit of up
  CHECK(form_of<double>(given).lowest_gate == 0);
  CHECK(form_of<double>(given).inverse_of_up_softcap == 0.125);
}

TEST_CASE("bounded gates and the weights of ReGLU", "[gating][gates]") {
  rope::GatingForm given = plain_form();
  given.limit = 7;
  const auto form = form_of<float>(given);
  CHECK(rope::bounded_gate<Activation::kSwiglu>(9.0f, form) == 7);
  CHECK(rope::bounded_gate<Activation::kSwiglu>(-9.0f, form) == -9);
  CHECK(rope::bounded_gate<Activation::kReglu>(-9.0f, form) == 0);
  CHECK(rope::bounded_gate<Activation::kReglu>(9.0f, form) == 7);
  CHECK(std::isnan(rope::bounded_gate<Activation::kReglu>(std::nanf(""), form)));
  const auto weight = [](float gate) { return rope::weight_of<Activation::kReglu, true, false>(gate, 1.0f).value; };
  CHECK(weight(FLT_TRUE_MIN) == 1);
  CHECK(weight(0.0f) == 0);
  CHECK(rope::weight_of<Activation::kReglu, false, false>(0.0f, 1.0f).value == 1);
}

TEST_CASE("an activation is cut where it exceeds its limit, and is flat there", "[gating][gates]") {
  rope::GatingForm given = plain_form();
  given.limit = 2;
  given.limits_activation = true;
  const auto form = form_of<float>(given);
  const rope::Activated<float> above = {0.5f, 5.0f, 0.25f}, at = {0.5f, 4.0f, 0.25f};
  CHECK(rope::limit_activation(above, form).weight * rope::limit_activation(above, form).linear == 2);
  CHECK(rope::limit_activation(above, form).half_slope == 0);
  CHECK(rope::limit_activation(at, form).linear == 4);
  CHECK(rope::limit_activation(at, form).half_slope == 0.25f);
}

TEST_CASE("half the slope of an activation", "[gating][gates]") {
  rope::GatingForm given = plain_form();
  given.limit = 3;
  const auto form = form_of<float>(given);
  const rope::Slope<float> weight = {0.75f, 0.5f}, linear = {2.0f, 0.25f};
  CHECK(rope::activate<true>(2.0f, weight, linear, form).half_slope == 0.5f * (2.0f * 0.5f + 0.75f * 0.25f));
  CHECK(rope::activate<true>(3.0f, weight, linear, form).half_slope > 0);
  CHECK(rope::activate<true>(3.5f, weight, linear, form).half_slope == 0);
  const rope::Slope<float> flat = {1.0f, 0.0f}, infinite = {kInfinity<float>, 1.0f};
  CHECK(rope::activate<true>(1.0f, flat, infinite, form).half_slope == 0.5f);
  CHECK(rope::activate<false>(2.0f, weight, linear, form).weight == 0.75f);
  CHECK(rope::activate<false>(2.0f, weight, linear, form).linear == 2);
}

TEST_CASE("a rounded activation has the type's bits and the slope of before", "[gating][gates]") {
  const auto form = form_of<float>(plain_form());
  const rope::Activated<float> activated = {0.3f, 1.7f, 0.4f};
  rope::GatingForm given = plain_form();
  given.activation = Activation::kGegluErf;
  const auto rounded = rope::round_activation<rope::BFloat16>(1.7f, activated, {1.7f, 1.0f}, form_of<float>(given));
  CHECK(rounded.weight * rounded.linear == rope::to_float(rope::round_to<rope::BFloat16>(0.3f * 1.7f)));
  CHECK(rounded.half_slope == 0.4f);
  const auto silu = rope::round_activation<rope::BFloat16>(1.7f, activated, {1.7f, 1.0f}, form);
  CHECK(silu.linear == rope::to_float(rope::round_to<rope::BFloat16>(1.7f / (1.0f + std::exp(-1.7f)))));
}

TEMPLATE_TEST_CASE("what is gated, its gradients, and the term of a row's sum", "[gating][gates]", float, double) {
  rope::GatingForm given = plain_form();
  given.limit = 50;
  given.up_offset = 1;
  given.out_scale = 2;
  const auto form = form_of<TestType>(given);
  const rope::Activated<TestType> activated = {TestType(0.5), TestType(3), TestType(0.25)};
  const rope::Slope<TestType> up = {TestType(4), TestType(0.75)};
  CHECK(rope::gated<false>(activated, up.value, form, TestType(3)) == 0.5 * 3 * (4 + 1) * 2 * 3);
  CHECK(rope::gated<true>(activated, up.value, form, TestType(1)) == 0.5 * 3 * (4 + 1) * 2);
  const auto gradient = rope::gated_gradient<false>(TestType(4), TestType(-2), activated, up, form, TestType(3));
  CHECK(gradient.gate == 2 * 0.25 * -2 * (4 + 1) * 2 * 3);
  CHECK(gradient.up == 0.5 * 3 * 0.75 * -2 * 2 * 3);
  CHECK(rope::gated_half_row_term(TestType(-2), activated, up.value, form) == 0.5 * (-2 * 0.5 * 3 * (4 + 1) * 2));
  for (const TestType cut : {TestType(50.5), TestType(-50.5)}) {
    CHECK(rope::gated_gradient<false>(cut, TestType(-2), activated, up, form, TestType(3)).up == 0);
  }
  for (const TestType whole : {TestType(50), TestType(-50)}) {
    CHECK(rope::gated_gradient<false>(whole, TestType(-2), activated, up, form, TestType(3)).up != 0);
  }
  const TestType most = std::numeric_limits<TestType>::max();
  CHECK(rope::moved_up(most, form) == most);
  CHECK(rope::moved_up(kInfinity<TestType>, form) == kInfinity<TestType>);
}
