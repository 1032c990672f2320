// SPDX-License-Identifier: Apache-2.0
// scaling_tests.cpp - every recipe of rope_scaled_frequencies, compared with its published formula in long double
#include <catch2/catch_test_macros.hpp>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "support/cases.hpp"
#include "support/random.hpp"

using oracle::Real;

namespace {

constexpr double not_a_number = std::numeric_limits<double>::quiet_NaN();
constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr rope_status_t invalid = ROPE_STATUS_INVALID_ARGUMENT;
constexpr rope_status_t unsupported = ROPE_STATUS_NOT_SUPPORTED;
constexpr Real two_pi = 6.283185307179586476925286766559L;

struct Frequencies {
  std::vector<Real> inv_freq;
  Real attention_scale = 1;
};

// A request for a recipe: the arrays of `scaling` point into the vectors.
struct Request {
  Request(rope_scaling_type_t type, int32_t dim, double base) : rotary_dim(dim), theta(base) {
    scaling.struct_size = sizeof scaling;
    scaling.type = type;
  }

  int pairs() const { return rotary_dim / 2; }

  void set_longrope(std::vector<double> short_values, std::vector<double> long_values) {
    short_factor = std::move(short_values);
    long_factor = std::move(long_values);
    scaling.num_factors = pairs();
    scaling.short_factor = short_factor.data();
    scaling.long_factor = long_factor.data();
  }

  void set_pair_factors(std::vector<double> values) {
    pair_factors = std::move(values);
    scaling.num_factors = pairs();
    scaling.pair_factors = pair_factors.data();
  }

  int32_t rotary_dim;
  double theta;
  rope_scaling_t scaling = {};
  std::vector<double> short_factor, long_factor, pair_factors;
};

// ---- The published formulas ----

Real unscaled(const Request &request, Real theta, int pair) {
  return std::pow(theta, -2.0L * pair / request.rotary_dim);
}

Real ntk_exponent(const Request &request) {
  return static_cast<Real>(request.rotary_dim) / (request.rotary_dim - 2);
}

Real or_default(double value, Real standard) {
  return value == 0 ? standard : static_cast<Real>(value);
}

// The pair that makes n turns within the original context.
Real turning(const Request &request, Real turns) {
  const Real original = static_cast<Real>(request.scaling.original_max_position);
  return request.rotary_dim * std::log(original / (turns * two_pi)) / (2 * std::log(static_cast<Real>(request.theta)));
}

struct Range {
  Real low, high;
};

Range correction_range(const Request &request) {
  Real low = turning(request, or_default(request.scaling.beta_fast, 32));
  Real high = turning(request, or_default(request.scaling.beta_slow, 1));
  if (!(request.scaling.flags & ROPE_SCALING_FLAG_NO_TRUNCATE)) low = std::floor(low), high = std::ceil(high);
  low = std::fmax(low, 0.0L);
  high = std::fmin(high, request.rotary_dim - 1.0L);
  if (low == high) high += 0.001L;
  return {low, high};
}

Real ramp(const Range &range, int pair) {
  return std::fmin(1.0L, std::fmax(0.0L, (pair - range.low) / (range.high - range.low)));
}

Real mscale(Real factor, Real slope) {
  return factor <= 1 ? 1 : 0.1L * slope * std::log(factor) + 1;
}

Real llama3(const Request &request, Real frequency) {
  const Real original = static_cast<Real>(request.scaling.original_max_position);
  const Real factor = request.scaling.factor;
  const Real low = or_default(request.scaling.low_freq_factor, 1);
  const Real high = or_default(request.scaling.high_freq_factor, 4);
  const Real wavelength = two_pi / frequency;
  if (wavelength < original / high) return frequency;
  if (wavelength > original / low) return frequency / factor;
  const Real t = low == high ? 0 : (original / wavelength - low) / (high - low);
  return (1 - t) * frequency / factor + t * frequency;
}

Real attention_scale(const Request &request) {
  const rope_scaling_t &scaling = request.scaling;
  const bool has_formula = scaling.type == ROPE_SCALING_YARN || scaling.type == ROPE_SCALING_LONGROPE;
  if (!has_formula) return 1;
  if (scaling.attention_factor != 0) return scaling.attention_factor;
  const Real factor = scaling.factor;
  if (scaling.type == ROPE_SCALING_YARN) {
    return mscale(factor, or_default(scaling.mscale, 1)) / mscale(factor, scaling.mscale_all_dim);
  }
  return factor <= 1 ? 1 : std::sqrt(1 + std::log(factor) / std::log(static_cast<Real>(scaling.original_max_position)));
}

Real frequency_of(const Request &request, int pair) {
  const rope_scaling_t &scaling = request.scaling;
  const Real theta = request.theta, factor = scaling.factor;
  const Real original = static_cast<Real>(scaling.original_max_position);
  const Real length = static_cast<Real>(scaling.sequence_length);
  const Real plain = unscaled(request, theta, pair);
  const size_t at = static_cast<size_t>(pair);
  switch (scaling.type) {
    case ROPE_SCALING_LINEAR:
      return plain / factor;
    case ROPE_SCALING_DYNAMIC_NTK: {
      const Real growth = factor * std::fmax(length, original) / original - (factor - 1);
      return unscaled(request, theta * std::pow(growth, ntk_exponent(request)), pair);
    }
    case ROPE_SCALING_DYNAMIC_NTK_FIXED: {
      const Real growth = factor * (1000 * factor) / 1000 - (factor - 1);
      return unscaled(request, theta * std::pow(growth, ntk_exponent(request)), pair);
    }
    case ROPE_SCALING_NTK_ALPHA:
      return unscaled(request, theta * std::pow(static_cast<Real>(scaling.alpha), ntk_exponent(request)), pair);
    case ROPE_SCALING_NTK_FIXED:
      return unscaled(request, theta * factor, pair) / std::pow(factor, 2.0L / request.rotary_dim);
    case ROPE_SCALING_NTK_MIXED: {
      const Real b = scaling.mixed_b;
      const Real a = std::log(factor) / std::pow(static_cast<Real>(request.pairs()), b);
      return plain / std::exp(a * std::pow(pair + 1.0L, b));
    }
    case ROPE_SCALING_YARN: {
      const Real r = ramp(correction_range(request), pair);
      return plain / factor * r + plain * (1 - r);
    }
    case ROPE_SCALING_YARN_LOG: {
      const Real mask = 1 - ramp(correction_range(request), pair);
      return std::exp(std::log(plain) * mask + std::log(plain / factor) * (1 - mask));
    }
    case ROPE_SCALING_LLAMA3:
      return llama3(request, plain);
    case ROPE_SCALING_LONGROPE:
      return plain / (length > original ? request.long_factor[at] : request.short_factor[at]);
    case ROPE_SCALING_PROPORTIONAL: {
      const Real share = or_default(scaling.partial_rotary_factor, 1);
      return pair < std::floor(share * request.rotary_dim / 2) ? plain / or_default(scaling.factor, 1) : 0;
    }
    case ROPE_SCALING_FACTORS:
      return plain / request.pair_factors[at];
    default:
      return plain;
  }
}

// ---- Running ----

std::string describe(const Request &request) {
  const rope_scaling_t &scaling = request.scaling;
  return "type " + std::to_string(scaling.type) + ", rotary_dim " + std::to_string(request.rotary_dim) + ", theta " +
         std::to_string(request.theta) + ", factor " + std::to_string(scaling.factor) + ", original " +
         std::to_string(scaling.original_max_position) + ", length " + std::to_string(scaling.sequence_length);
}

struct Scaled {
  rope_status_t status;
  std::vector<double> inv_freq;
  double attention_scale;
};

constexpr double untouched = -12345.678;

Scaled scale(const Request &request) {
  Scaled scaled = {0, std::vector<double>(600, untouched), untouched};
  scaled.status = rope_scaled_frequencies(request.rotary_dim, request.theta, &request.scaling, scaled.inv_freq.data(),
                                          &scaled.attention_scale);
  return scaled;
}

Scaled must_scale(const Request &request) {
  Scaled scaled = scale(request);
  INFO(describe(request) << ": " << rope_last_error());
  REQUIRE(scaled.status == ROPE_STATUS_SUCCESS);
  const size_t pairs = static_cast<size_t>(request.pairs());
  for (size_t i = pairs; i < scaled.inv_freq.size(); ++i) REQUIRE(scaled.inv_freq[i] == untouched);
  scaled.inv_freq.resize(pairs);
  return scaled;
}

// Checks the attention factor and returns the largest relative error of a frequency.
Real check(const Request &request) {
  const Scaled scaled = must_scale(request);
  Real worst = 0;
  for (int pair = 0; pair < request.pairs(); ++pair) {
    const Real exact = frequency_of(request, pair);
    const Real found = scaled.inv_freq[static_cast<size_t>(pair)];
    if (exact == 0) {
      CHECK(found == 0);
    } else {
      worst = std::fmax(worst, std::fabs(found / exact - 1));
    }
  }
  INFO(describe(request) << ", relative error " << worst);
  // Near the end of a ramp, the share of f(i) / s is nearly 1, and the rounding of the other term counts s times.
  CHECK(worst < 1e-15L * (8 + std::fmax(request.scaling.factor, 0.0)));
  CHECK(std::fabs(scaled.attention_scale / attention_scale(request) - 1) < 1e-15L);
  return worst;
}

void check_unscaled(const Request &request) {
  const Scaled scaled = must_scale(request);
  INFO(describe(request));
  CHECK(scaled.inv_freq == must_scale(Request(ROPE_SCALING_NONE, request.rotary_dim, request.theta)).inv_freq);
  CHECK(scaled.attention_scale == 1);
}

// ---- Random requests ----

double logarithmic(Random &random, double low, double high) {
  return std::exp(random.uniform(std::log(low), std::log(high)));
}

std::vector<double> random_factors(Random &random, int pairs) {
  std::vector<double> factors;
  for (int pair = 0; pair < pairs; ++pair) factors.push_back(logarithmic(random, 0.5, 100));
  return factors;
}

bool chance(Random &random) {
  return random.below(2) != 0;
}

// Whether the result depends on the last bits: on the rounding of the ramp's ends, or on a jump of LLAMA3.
bool is_on_an_edge(const Request &request) {
  const auto near_integer = [](Real value) { return std::fabs(value - std::round(value)) < 1e-9L; };
  const rope_scaling_t &scaling = request.scaling;
  if (scaling.type == ROPE_SCALING_LLAMA3) {
    for (int pair = 0; pair < request.pairs(); ++pair) {
      const Real turns = scaling.original_max_position / two_pi * unscaled(request, request.theta, pair);
      if (std::fabs(turns / or_default(scaling.low_freq_factor, 1) - 1) < 1e-9L) return true;
    }
    return false;
  }
  return near_integer(turning(request, or_default(scaling.beta_fast, 32))) ||
         near_integer(turning(request, or_default(scaling.beta_slow, 1)));
}

Request random_request(rope_scaling_type_t type, Random &random) {
  Request request(type, static_cast<int32_t>(2 * (2 + random.below(random.below(8) == 0 ? 511 : 127))),
                  logarithmic(random, 5e3, 1e7));
  rope_scaling_t &scaling = request.scaling;
  const double factor = random.below(8) == 0 ? 1.0 : logarithmic(random, 1, 128);
  const int64_t original = 1024 + random.below(100000);
  switch (type) {
    case ROPE_SCALING_LINEAR:
    case ROPE_SCALING_DYNAMIC_NTK_FIXED:
    case ROPE_SCALING_NTK_FIXED:
      scaling.factor = factor;
      break;
    case ROPE_SCALING_DYNAMIC_NTK:
      scaling.factor = factor;
      scaling.original_max_position = original;
      scaling.sequence_length = random.below(4 * original);
      break;
    case ROPE_SCALING_NTK_ALPHA:
      scaling.alpha = logarithmic(random, 1, 2000);
      break;
    case ROPE_SCALING_NTK_MIXED:
      scaling.factor = factor;
      scaling.mixed_b = random.uniform(0.1, 2);
      break;
    case ROPE_SCALING_YARN:
      if (chance(random)) {
        scaling.attention_factor = random.uniform(0.5, 2);
      } else {
        if (chance(random)) scaling.mscale = random.uniform(0.1, 2);
        if (chance(random)) scaling.mscale_all_dim = random.uniform(0.1, 2);
      }
      [[fallthrough]];
    case ROPE_SCALING_YARN_LOG:
      scaling.factor = factor;
      scaling.original_max_position = original;
      if (chance(random)) scaling.beta_fast = random.uniform(8, 40);
      if (chance(random)) scaling.beta_slow = random.uniform(0.5, 4);
      if (chance(random)) scaling.flags = ROPE_SCALING_FLAG_NO_TRUNCATE;
      break;
    case ROPE_SCALING_LLAMA3:
      scaling.factor = factor;
      scaling.original_max_position = original;
      if (chance(random)) scaling.low_freq_factor = random.uniform(0.5, 3);
      if (chance(random))
        scaling.high_freq_factor =
            random.below(4) == 0 && scaling.low_freq_factor != 0 ? scaling.low_freq_factor : random.uniform(3, 32);
      break;
    case ROPE_SCALING_LONGROPE:
      if (chance(random)) {
        scaling.attention_factor = random.uniform(0.5, 2);
      } else {
        scaling.factor = factor;
      }
      scaling.original_max_position = original;
      scaling.sequence_length = random.below(3 * original);
      request.set_longrope(random_factors(random, request.pairs()), random_factors(random, request.pairs()));
      break;
    case ROPE_SCALING_PROPORTIONAL:
      if (chance(random)) scaling.factor = factor;
      if (chance(random)) scaling.partial_rotary_factor = random.uniform(1.0 / request.pairs(), 1);
      break;
    case ROPE_SCALING_FACTORS:
      request.set_pair_factors(random_factors(random, request.pairs()));
      break;
    default:
      break;
  }
  return request;
}

// ---- Misuse ----

Request good(rope_scaling_type_t type) {
  Request request(type, 16, 10000);
  rope_scaling_t &scaling = request.scaling;
  switch (type) {
    case ROPE_SCALING_NTK_ALPHA:
      scaling.alpha = 2;
      break;
    case ROPE_SCALING_PROPORTIONAL:
    case ROPE_SCALING_NONE:
      break;
    case ROPE_SCALING_FACTORS:
      request.set_pair_factors(std::vector<double>(8, 2.0));
      break;
    case ROPE_SCALING_LONGROPE:
      request.set_longrope(std::vector<double>(8, 2.0), std::vector<double>(8, 3.0));
      [[fallthrough]];
    case ROPE_SCALING_DYNAMIC_NTK:
    case ROPE_SCALING_YARN:
    case ROPE_SCALING_YARN_LOG:
    case ROPE_SCALING_LLAMA3:
      scaling.original_max_position = 4096;
      [[fallthrough]];
    default:
      scaling.factor = 4;
  }
  if (type == ROPE_SCALING_NTK_MIXED) scaling.mixed_b = 0.5;
  return request;
}

void check_refused(const Request &request, rope_status_t status, const std::string &said) {
  const Scaled scaled = scale(request);
  const std::string message = rope_last_error();
  INFO("message: " << message);
  INFO("wanted: " << said << ", type " << request.scaling.type);
  CHECK(scaled.status == status);
  CHECK(message.rfind("rope_scaled_frequencies: " + said, 0) == 0);
  CHECK(message.find('\n') == std::string::npos);
  CHECK(message.size() < 500);
  CHECK(scaled.attention_scale == untouched);
  for (const double frequency : scaled.inv_freq) REQUIRE(frequency == untouched);
}

struct Misuse {
  rope_scaling_type_t type;
  rope_status_t status;
  const char *said;
  std::function<void(Request &)> commit;
};

}  // namespace

TEST_CASE("recipes follow their published formulas", "[scaling]") {
  Random random(71);
  for (rope_scaling_type_t type = ROPE_SCALING_NONE; type <= ROPE_SCALING_FACTORS; ++type) {
    Real worst = 0;
    for (int i = 0; i < 300; ++i) {
      Request request = random_request(type, random);
      const bool has_edges = type == ROPE_SCALING_YARN || type == ROPE_SCALING_YARN_LOG || type == ROPE_SCALING_LLAMA3;
      if (has_edges && is_on_an_edge(request)) continue;
      worst = std::fmax(worst, check(request));
    }
    UNSCOPED_INFO("type " << type << ": relative error at most " << worst);
    CHECK(worst > 0);
  }
}

TEST_CASE("frequencies of theta alone are the nearest doubles", "[scaling]") {
  for (const double theta : {1e-300, 0.5, 1.0, 2.0, 1e4, 5e5, 1e6, 1e300}) {
    for (const int32_t rotary_dim : {2, 4, 64, 96, 128, 1024}) {
      const Request request(ROPE_SCALING_NONE, rotary_dim, theta);
      const Scaled scaled = must_scale(request);
      INFO(describe(request));
      CHECK(scaled.attention_scale == 1);
      CHECK(scaled.inv_freq[0] == 1);
      for (int pair = 0; pair < request.pairs(); ++pair) {
        const Real exact = oracle::frequency(theta, rotary_dim, pair);
        // pow of long double is slightly inaccurate for large exponents.
        REQUIRE(std::fabs(scaled.inv_freq[static_cast<size_t>(pair)] / exact - 1) < 1.2e-16L + 1e-18L);
      }
    }
  }
}

TEST_CASE("a factor of 1 changes nothing", "[scaling]") {
  for (const int32_t rotary_dim : {4, 64, 96, 128, 1024}) {
    for (const rope_scaling_type_t type :
         {ROPE_SCALING_LINEAR, ROPE_SCALING_DYNAMIC_NTK_FIXED, ROPE_SCALING_NTK_FIXED, ROPE_SCALING_NTK_MIXED,
          ROPE_SCALING_YARN, ROPE_SCALING_YARN_LOG, ROPE_SCALING_LLAMA3, ROPE_SCALING_PROPORTIONAL}) {
      Request request = good(type);
      request.rotary_dim = rotary_dim;
      request.theta = 500000;
      request.scaling.factor = 1;
      if (type == ROPE_SCALING_YARN) request.scaling.mscale = 0.707;
      check_unscaled(request);
    }
    Request alpha(ROPE_SCALING_NTK_ALPHA, rotary_dim, 10000);
    alpha.scaling.alpha = 1;
    check_unscaled(alpha);
    Request longrope(ROPE_SCALING_LONGROPE, rotary_dim, 10000);
    longrope.scaling.factor = 1;
    longrope.scaling.original_max_position = 1;
    longrope.set_longrope(std::vector<double>(static_cast<size_t>(rotary_dim / 2), 1.0),
                          std::vector<double>(static_cast<size_t>(rotary_dim / 2), 2.0));
    check_unscaled(longrope);
    Request dynamic = good(ROPE_SCALING_DYNAMIC_NTK);
    dynamic.rotary_dim = rotary_dim;
    for (const int64_t length : {0, 1, 4095, 4096}) {
      dynamic.scaling.sequence_length = length;
      check_unscaled(dynamic);
    }
  }
}

TEST_CASE("llama3 without a ramp jumps", "[scaling]") {
  // Llama 4: both factors are 1. With theta 1 every pair has a wavelength of 2 pi, so an original length of 6 is
  // shorter and one of 7 is longer.
  Request request(ROPE_SCALING_LLAMA3, 128, 500000);
  request.scaling.factor = 16;
  request.scaling.original_max_position = 8192;
  request.scaling.low_freq_factor = request.scaling.high_freq_factor = 1;
  check(request);
  request.theta = 1;
  request.scaling.original_max_position = 6;
  for (const double frequency : must_scale(request).inv_freq) CHECK(frequency == 1.0 / 16);
  request.scaling.original_max_position = 7;
  for (const double frequency : must_scale(request).inv_freq) CHECK(frequency == 1);
}

TEST_CASE("yarn's ramp has a width where its ends meet", "[scaling]") {
  // Equal betas without rounding: a step at a fraction of a pair.
  Request request = good(ROPE_SCALING_YARN);
  request.rotary_dim = 128;
  request.scaling.beta_fast = request.scaling.beta_slow = 4;
  request.scaling.flags = ROPE_SCALING_FLAG_NO_TRUNCATE;
  check(request);
  const Real step = turning(request, 4);
  const std::vector<double> found = must_scale(request).inv_freq;
  const std::vector<double> plain = must_scale(Request(ROPE_SCALING_NONE, 128, 10000)).inv_freq;
  for (size_t pair = 0; pair < 64; ++pair) CHECK(found[pair] == (pair < step ? plain[pair] : plain[pair] / 4));
  // A context so short that only pair 0 keeps its frequency: low and high are both 0.
  request.scaling.flags = 0;
  request.scaling.beta_fast = request.scaling.beta_slow = 0;
  request.scaling.original_max_position = 6;
  check(request);
  CHECK(must_scale(request).inv_freq[0] == 1);
  CHECK(must_scale(request).inv_freq[1] == plain[1] / 4);
  // The ends of the ramp are limited to 0 to R - 1.
  request.scaling.original_max_position = 100;
  check(request);
  request.theta = 20;
  request.scaling.original_max_position = 10000;
  check(request);
}

TEST_CASE("longrope chooses by the length", "[scaling]") {
  Request request = good(ROPE_SCALING_LONGROPE);
  const std::vector<double> plain = must_scale(Request(ROPE_SCALING_NONE, 16, 10000)).inv_freq;
  for (const int64_t length : {0, 1, 4096, 4097, 131072}) {
    request.scaling.sequence_length = length;
    const Scaled scaled = must_scale(request);
    for (size_t pair = 0; pair < 8; ++pair) CHECK(scaled.inv_freq[pair] == plain[pair] / (length > 4096 ? 3 : 2));
    CHECK(std::fabs(scaled.attention_scale - 1.0801234497346435) < 1e-15);  // sqrt(1 + ln 4 / ln 4096)
  }
}

TEST_CASE("attention factors of published models", "[scaling]") {
  Request request = good(ROPE_SCALING_YARN);
  const auto found = [&] { return must_scale(request).attention_scale; };
  CHECK(std::fabs(found() - 1.1386294361119891) < 1e-15);  // Qwen2.5: 0.1 ln 4 + 1
  request.scaling.factor = 40;
  request.scaling.mscale = request.scaling.mscale_all_dim = 1;
  CHECK(found() == 1);  // DeepSeek-V3
  request.scaling.mscale_all_dim = 0;
  request.scaling.mscale = 0.7;
  CHECK(std::fabs(found() - (1 + 0.07 * std::log(40.0))) < 1e-15);  // TeleChat3
  request.scaling.mscale = 0;
  request.scaling.mscale_all_dim = 1;
  CHECK(std::fabs(found() - 1) < 1e-15);
  request.scaling.mscale_all_dim = 0;
  request.scaling.attention_factor = 1.25;
  CHECK(found() == 1.25);
}

TEST_CASE("a width of 2 has one pair", "[scaling]") {
  for (rope_scaling_type_t type = ROPE_SCALING_NONE; type <= ROPE_SCALING_FACTORS; ++type) {
    Request request = good(type);
    request.rotary_dim = 2;
    if (request.scaling.num_factors != 0) request.scaling.num_factors = 1;
    if (type == ROPE_SCALING_DYNAMIC_NTK || type == ROPE_SCALING_DYNAMIC_NTK_FIXED || type == ROPE_SCALING_NTK_ALPHA) {
      check_refused(request, invalid, "rotary_dim is 2: ");
    } else {
      check(request);
    }
  }
}

TEST_CASE("outputs may be the arrays that were read", "[scaling]") {
  Request request = good(ROPE_SCALING_FACTORS);
  const std::vector<double> wanted = must_scale(request).inv_freq;
  double scale = 0;
  REQUIRE(rope_scaled_frequencies(16, 10000, &request.scaling, request.pair_factors.data(), &scale) ==
          ROPE_STATUS_SUCCESS);
  CHECK(request.pair_factors == wanted);
}

TEST_CASE("wrong recipes are refused by name", "[scaling][errors]") {
  using R = Request;
  const auto set_theta = [](double theta) { return [theta](R &r) { r.theta = theta; }; };
  const auto set_dim = [](int32_t dim) { return [dim](R &r) { r.rotary_dim = dim; }; };
  const auto set_factor = [](double factor) { return [factor](R &r) { r.scaling.factor = factor; }; };
  const rope_scaling_type_t none = ROPE_SCALING_NONE, linear = ROPE_SCALING_LINEAR, yarn = ROPE_SCALING_YARN,
                            llama = ROPE_SCALING_LLAMA3, longrope = ROPE_SCALING_LONGROPE,
                            dynamic = ROPE_SCALING_DYNAMIC_NTK, proportional = ROPE_SCALING_PROPORTIONAL,
                            factors = ROPE_SCALING_FACTORS;
  const std::vector<Misuse> misuses = {
      {none, invalid, "scaling.struct_size is 0: ", [](R &r) { r.scaling.struct_size = 0; }},
      {none, invalid, "scaling.struct_size is 143: ", [](R &r) { r.scaling.struct_size = 143; }},
      {none, invalid, "rotary_dim is 0: ", set_dim(0)},
      {none, invalid, "rotary_dim is -2: ", set_dim(-2)},
      {none, invalid, "rotary_dim is 15: ", set_dim(15)},
      {none, invalid, "rotary_dim is 1026: ", set_dim(1026)},
      {none, invalid, "theta is 0: ", set_theta(0)},
      {none, invalid, "theta is -10000: ", set_theta(-10000)},
      {none, invalid, "theta is nan: ", set_theta(not_a_number)},
      {none, invalid, "theta is inf: ", set_theta(infinity)},
      {none, invalid, "type is 0: ", [](R &r) { r.scaling.type = 0; }},
      {none, unsupported, "type is 14: ", [](R &r) { r.scaling.type = 14; }},
      {none, unsupported, "type is -1: ", [](R &r) { r.scaling.type = -1; }},
      {none, unsupported, "flags is 0x2: ", [](R &r) { r.scaling.flags = 2; }},
      {yarn, unsupported, "flags is 0x80000001: ", [](R &r) { r.scaling.flags = 0x80000001; }},
      {linear, invalid, "factor is 0: ", set_factor(0)},
      {linear, invalid, "factor is 0.99: ", set_factor(0.99)},
      {linear, invalid, "factor is -4: ", set_factor(-4)},
      {linear, invalid, "factor is nan: ", set_factor(not_a_number)},
      {linear, invalid, "factor is inf: ", set_factor(infinity)},
      {dynamic, invalid, "original_max_position is 0: ", [](R &r) { r.scaling.original_max_position = 0; }},
      {dynamic, invalid, "original_max_position is -5: ", [](R &r) { r.scaling.original_max_position = -5; }},
      {dynamic, invalid, "sequence_length is -1: ", [](R &r) { r.scaling.sequence_length = -1; }},
      {dynamic, invalid, "theta is 1e+300: ", [](R &r) { r.theta = 1e300, r.scaling.sequence_length = 8192; }},
      {ROPE_SCALING_DYNAMIC_NTK_FIXED, invalid, "theta is 10000: ", set_factor(1e200)},
      {ROPE_SCALING_NTK_ALPHA, invalid, "alpha is 0: ", [](R &r) { r.scaling.alpha = 0; }},
      {ROPE_SCALING_NTK_ALPHA, invalid, "alpha is 0.5: ", [](R &r) { r.scaling.alpha = 0.5; }},
      {ROPE_SCALING_NTK_FIXED, invalid, "theta is 10000: ", set_factor(1e300)},
      {ROPE_SCALING_NTK_MIXED, invalid, "mixed_b is 0: ", [](R &r) { r.scaling.mixed_b = 0; }},
      {ROPE_SCALING_NTK_MIXED, invalid, "mixed_b is -1: ", [](R &r) { r.scaling.mixed_b = -1; }},
      {yarn, invalid, "original_max_position is 0: ", [](R &r) { r.scaling.original_max_position = 0; }},
      {yarn, invalid, "beta_slow is -1: ", [](R &r) { r.scaling.beta_slow = -1; }},
      {yarn, invalid, "beta_slow is nan: ", [](R &r) { r.scaling.beta_slow = not_a_number; }},
      {yarn, invalid, "beta_fast is 0.5: ", [](R &r) { r.scaling.beta_fast = 0.5; }},
      {yarn, invalid, "beta_fast is 32: ", [](R &r) { r.scaling.beta_slow = 33; }},
      {yarn, invalid, "beta_fast is nan: ", [](R &r) { r.scaling.beta_fast = not_a_number; }},
      {yarn, invalid, "theta is 1: ", set_theta(1)},
      {yarn, invalid, "original_max_position is 1: ", [](R &r) { r.scaling.original_max_position = 1; }},
      {yarn, invalid, "original_max_position is 1152921504606846976: ",
       [](R &r) { r.scaling.original_max_position = int64_t{1} << 60, r.theta = 2; }},
      {yarn, invalid, "attention_factor is -1: ", [](R &r) { r.scaling.attention_factor = -1; }},
      {yarn, invalid, "attention_factor is inf: ", [](R &r) { r.scaling.attention_factor = infinity; }},
      {yarn, invalid, "attention_factor 1e+39, ", [](R &r) { r.scaling.attention_factor = 1e39; }},
      {yarn, invalid, "attention_factor 1e-39, ", [](R &r) { r.scaling.attention_factor = 1e-39; }},
      {yarn, invalid, "attention_factor 0, mscale 1e+300 ", [](R &r) { r.scaling.mscale = 1e300; }},
      {yarn, invalid, "mscale is -1: ", [](R &r) { r.scaling.mscale = -1; }},
      {yarn, invalid, "mscale is 1: ", [](R &r) { r.scaling.mscale = 1, r.scaling.attention_factor = 1; }},
      {yarn, invalid, "mscale_all_dim is nan: ", [](R &r) { r.scaling.mscale_all_dim = not_a_number; }},
      {yarn, invalid,
       "mscale_all_dim is 1: ", [](R &r) { r.scaling.mscale_all_dim = 1, r.scaling.attention_factor = 1; }},
      {ROPE_SCALING_YARN_LOG, invalid, "theta is 0.5: ", set_theta(0.5)},
      {llama, invalid, "original_max_position is 0: ", [](R &r) { r.scaling.original_max_position = 0; }},
      {llama, invalid, "low_freq_factor is -1: ", [](R &r) { r.scaling.low_freq_factor = -1; }},
      {llama, invalid, "high_freq_factor is 4: ", [](R &r) { r.scaling.low_freq_factor = 5; }},
      {llama, invalid, "high_freq_factor is inf: ", [](R &r) { r.scaling.high_freq_factor = infinity; }},
      {longrope, invalid, "original_max_position is 0: ", [](R &r) { r.scaling.original_max_position = 0; }},
      {longrope, invalid, "original_max_position is 1: ", [](R &r) { r.scaling.original_max_position = 1; }},
      {longrope, invalid, "sequence_length is -7: ", [](R &r) { r.scaling.sequence_length = -7; }},
      {longrope, invalid, "num_factors is 7: ", [](R &r) { r.scaling.num_factors = 7; }},
      {longrope, invalid, "short_factor is NULL: ", [](R &r) { r.scaling.short_factor = nullptr; }},
      {longrope, invalid, "long_factor is NULL: ", [](R &r) { r.scaling.long_factor = nullptr; }},
      {longrope, invalid, "short_factor[7] is 0: ", [](R &r) { r.short_factor[7] = 0; }},
      {longrope, invalid, "long_factor[2] is nan: ", [](R &r) { r.long_factor[2] = not_a_number; }},
      {longrope, invalid, "factor is 0: ", set_factor(0)},
      {longrope, invalid, "factor is 4: ", [](R &r) { r.scaling.attention_factor = 1; }},
      {longrope, invalid,
       "attention_factor is -2: ", [](R &r) { r.scaling.factor = 0, r.scaling.attention_factor = -2; }},
      {proportional, invalid, "factor is 0.5: ", set_factor(0.5)},
      {proportional, invalid, "partial_rotary_factor is 1.5: ", [](R &r) { r.scaling.partial_rotary_factor = 1.5; }},
      {proportional, invalid, "partial_rotary_factor is -1: ", [](R &r) { r.scaling.partial_rotary_factor = -1; }},
      {proportional, invalid, "partial_rotary_factor is 0.1: ", [](R &r) { r.scaling.partial_rotary_factor = 0.1; }},
      {factors, invalid, "num_factors is 0: ", [](R &r) { r.scaling.num_factors = 0; }},
      {factors, invalid, "pair_factors is NULL: ", [](R &r) { r.scaling.pair_factors = nullptr; }},
      {factors, invalid, "pair_factors[3] is -1: ", [](R &r) { r.pair_factors[3] = -1; }},
      {factors, invalid, "pair_factors[0] is 4.94066e-324: ", [](R &r) { r.pair_factors[0] = 5e-324; }},
  };
  for (const Misuse &misuse : misuses) {
    Request request = good(misuse.type);
    check(request);
    misuse.commit(request);
    check_refused(request, misuse.status, misuse.said);
  }
}

TEST_CASE("a field that a recipe does not use is refused by name", "[scaling][errors]") {
  static const double ones[8] = {1, 1, 1, 1, 1, 1, 1, 1};
  struct Field {
    const char *said;
    std::vector<rope_scaling_type_t> users;
    std::function<void(rope_scaling_t &)> set;
  };
  const rope_scaling_type_t yarn = ROPE_SCALING_YARN, yarn_log = ROPE_SCALING_YARN_LOG, llama = ROPE_SCALING_LLAMA3,
                            longrope = ROPE_SCALING_LONGROPE, dynamic = ROPE_SCALING_DYNAMIC_NTK;
  const std::vector<Field> fields = {
      {"flags is 0x1: ", {yarn, yarn_log}, [](auto &s) { s.flags = ROPE_SCALING_FLAG_NO_TRUNCATE; }},
      {"num_factors is 8: ", {longrope, ROPE_SCALING_FACTORS}, [](auto &s) { s.num_factors = 8; }},
      {"factor is 4: ",
       {ROPE_SCALING_LINEAR, dynamic, ROPE_SCALING_DYNAMIC_NTK_FIXED, ROPE_SCALING_NTK_FIXED, ROPE_SCALING_NTK_MIXED,
        yarn, yarn_log, llama, longrope, ROPE_SCALING_PROPORTIONAL},
       [](auto &s) { s.factor = 4; }},
      {"original_max_position is 4096: ",
       {dynamic, yarn, yarn_log, llama, longrope},
       [](auto &s) { s.original_max_position = 4096; }},
      {"sequence_length is 8192: ", {dynamic, longrope}, [](auto &s) { s.sequence_length = 8192; }},
      {"alpha is 2: ", {ROPE_SCALING_NTK_ALPHA}, [](auto &s) { s.alpha = 2; }},
      {"mixed_b is 0.5: ", {ROPE_SCALING_NTK_MIXED}, [](auto &s) { s.mixed_b = 0.5; }},
      {"beta_fast is 32: ", {yarn, yarn_log}, [](auto &s) { s.beta_fast = 32; }},
      {"beta_slow is nan: ", {}, [](auto &s) { s.beta_slow = not_a_number; }},
      {"beta_slow is 1: ", {yarn, yarn_log}, [](auto &s) { s.beta_slow = 1; }},
      {"attention_factor is 1: ", {yarn}, [](auto &s) { s.attention_factor = 1; }},
      {"mscale is 1: ", {yarn}, [](auto &s) { s.mscale = 1; }},
      {"mscale_all_dim is 1: ", {yarn}, [](auto &s) { s.mscale_all_dim = 1; }},
      {"low_freq_factor is 1: ", {llama}, [](auto &s) { s.low_freq_factor = 1; }},
      {"high_freq_factor is 4: ", {llama}, [](auto &s) { s.high_freq_factor = 4; }},
      {"partial_rotary_factor is 0.5: ", {ROPE_SCALING_PROPORTIONAL}, [](auto &s) { s.partial_rotary_factor = 0.5; }},
      {"short_factor is set: ", {longrope}, [](auto &s) { s.short_factor = ones; }},
      {"long_factor is set: ", {longrope}, [](auto &s) { s.long_factor = ones; }},
      {"pair_factors is set: ", {ROPE_SCALING_FACTORS}, [](auto &s) { s.pair_factors = ones; }},
  };
  for (const Field &field : fields) {
    for (rope_scaling_type_t type = ROPE_SCALING_NONE; type <= ROPE_SCALING_FACTORS; ++type) {
      Request request = good(type);
      field.set(request.scaling);
      bool is_used = false;
      for (const rope_scaling_type_t user : field.users) is_used |= user == type;
      // With attention_factor, longrope needs no `factor`.
      const bool is_replaced = type == longrope && std::strncmp(field.said, "attention_factor", 16) == 0;
      if (is_replaced) {
        check_refused(request, invalid, "factor is 4: attention_factor");
      } else if (is_used) {
        INFO(field.said << rope_last_error());
        CHECK(scale(request).status == ROPE_STATUS_SUCCESS);
      } else {
        check_refused(request, invalid, field.said);
      }
    }
  }
}

TEST_CASE("pointers that scaling needs", "[scaling][errors]") {
  const Request request = good(ROPE_SCALING_LINEAR);
  double inv_freq[8], scale;
  CHECK(rope_scaled_frequencies(16, 1e4, nullptr, inv_freq, &scale) == invalid);
  CHECK(std::string(rope_last_error()) == "rope_scaled_frequencies: scaling is NULL: it is required");
  CHECK(rope_scaled_frequencies(16, 1e4, &request.scaling, nullptr, &scale) == invalid);
  CHECK(std::string(rope_last_error()) == "rope_scaled_frequencies: inv_freq_out is NULL: it is required");
  CHECK(rope_scaled_frequencies(16, 1e4, &request.scaling, inv_freq, nullptr) == invalid);
  CHECK(std::string(rope_last_error()) == "rope_scaled_frequencies: attention_scale_out is NULL: it is required");
}

TEST_CASE("scaled frequencies rotate as their recipe says", "[scaling]") {
  Request request(ROPE_SCALING_YARN, 64, 150000);
  request.scaling.factor = 32;
  request.scaling.original_max_position = 4096;
  request.scaling.flags = ROPE_SCALING_FLAG_NO_TRUNCATE;
  const Scaled scaled = must_scale(request);
  RopeCase()
      .head_dim(64)
      .inv_freq(scaled.inv_freq)
      .attention_scale(scaled.attention_scale)
      .position_offset(100000)
      .heads(3, 2)
      .check();

  // The formula alone, evaluated independently, at a position where a wrong factor would show.
  constexpr int64_t position = 98765;
  rope_config_t config = rope_config_for(devices().front(), 64);
  config.theta = 0;
  config.inv_freq = scaled.inv_freq.data();
  config.attention_scale = scaled.attention_scale;
  const RopeDesc desc = create(config);
  float data[64];
  for (int channel = 0; channel < 64; ++channel) data[channel] = channel < 32 ? 1.0f : 0.0f;
  rope_args_t args = rope_args();
  args.q.data = data;
  args.q.dtype = ROPE_DTYPE_F32;
  args.q.ndim = 4;
  for (int axis = 0; axis < 4; ++axis) args.q.shape[axis] = axis == 3 ? 64 : 1;
  args.position_offset = position;
  REQUIRE(rope_forward(desc.get(), &args, nullptr) == ROPE_STATUS_SUCCESS);
  for (int pair = 0; pair < 32; ++pair) {
    const Real angle = position * frequency_of(request, pair);
    const Real scale = attention_scale(request);
    CHECK(std::fabs(data[pair] - scale * std::cos(angle)) < 4e-7L);
    CHECK(std::fabs(data[pair + 32] - scale * std::sin(angle)) < 4e-7L);
  }
}
