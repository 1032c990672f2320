// SPDX-License-Identifier: Apache-2.0
// scaling.cpp - validates and computes the recipes of context scaling
//
// rope.h has the formulas and their sources, beside each ROPE_SCALING_ value.
#include "core/recipes/scaling.hpp"

#include <math.h>

#include "core/problem/descriptor_checks.hpp"
#include "core/recipes/name_list.hpp"

namespace rope {

namespace {

constexpr rope_status_t kInvalid = ROPE_STATUS_INVALID_ARGUMENT;
constexpr rope_status_t kUnsupported = ROPE_STATUS_NOT_SUPPORTED;

constexpr double kTwoPi = 6.283185307179586;
constexpr double kMaxDouble = 1.7976931348623157e308;

// An attention factor must fit an fp32 number: it lies between the smallest normal and the largest.
constexpr double kMinScale = 1.1754943508222875e-38;
constexpr double kMaxScale = 3.4028234663852886e38;

// Fields that only some recipes use.
enum Field : uint32_t {
  kNoTruncate = 1u << 0,
  kNumFactors = 1u << 1,
  kFactor = 1u << 2,
  kOriginalMaxPosition = 1u << 3,
  kSequenceLength = 1u << 4,
  kAlpha = 1u << 5,
  kMixedB = 1u << 6,
  kBetaFast = 1u << 7,
  kBetaSlow = 1u << 8,
  kAttentionFactor = 1u << 9,
  kMscale = 1u << 10,
  kMscaleAllDim = 1u << 11,
  kLowFreqFactor = 1u << 12,
  kHighFreqFactor = 1u << 13,
  kPartialRotaryFactor = 1u << 14,
  kShortFactor = 1u << 15,
  kLongFactor = 1u << 16,
  kPairFactors = 1u << 17
};

// A request after the check that its recipe uses every field that is set, with helpers for the recipes.
struct Request {
  const char *function;
  int rotary_dim;
  int pairs;
  double theta;
  const rope_scaling_t &scaling;

  rope_status_t check_min(const char *field, double value, double min) const {
    if (value >= min && value <= kMaxDouble) return ROPE_STATUS_SUCCESS;
    return fail(kInvalid, "%s: %s is %g: it must be finite and at least %g", function, field, value, min);
  }

  rope_status_t check_above_0(const char *field, double value) const {
    if (value > 0.0 && value <= kMaxDouble) return ROPE_STATUS_SUCCESS;
    return fail(kInvalid, "%s: %s is %g: it must be finite and above 0", function, field, value);
  }

  rope_status_t check_factor() const { return check_min("factor", scaling.factor, 1.0); }

  rope_status_t check_original_max_position() const {
    if (scaling.original_max_position >= 1) return ROPE_STATUS_SUCCESS;
    return fail(kInvalid, "%s: original_max_position is %lld: it must be at least 1", function,
                printable(scaling.original_max_position));
  }

  rope_status_t check_sequence_length() const {
    if (scaling.sequence_length >= 0) return ROPE_STATUS_SUCCESS;
    return fail(kInvalid, "%s: sequence_length is %lld: it must be at least 1, or 0 for original_max_position",
                function, printable(scaling.sequence_length));
  }

  rope_status_t check_factors(const char *field, const double *factors) const {
    if (factors == nullptr) return fail(kInvalid, "%s: %s is NULL: it must be an array", function, field);
    for (int pair = 0; pair < pairs; ++pair) {
      if (!(factors[pair] > 0.0 && factors[pair] <= kMaxDouble)) {
        return fail(kInvalid, "%s: %s[%d] is %g: it must be finite and above 0", function, field, pair, factors[pair]);
      }
    }
    return ROPE_STATUS_SUCCESS;
  }

  rope_status_t check_num_factors() const {
    if (scaling.num_factors == pairs) return ROPE_STATUS_SUCCESS;
    return fail(kInvalid, "%s: num_factors is %d: it must be %d, half of rotary_dim", function, scaling.num_factors,
                pairs);
  }

  // The value of an optional number; `standard` if it is 0.
  double value_or(double value, double standard) const { return value != 0.0 ? value : standard; }

  rope_status_t fill(double scaled_theta, double *inv_freq) const {
    if (!(scaled_theta <= kMaxTheta)) {
      return fail(kInvalid, "%s: theta is %g: the recipe makes it %g, and it must stay at most %g", function, theta,
                  scaled_theta, kMaxTheta);
    }
    frequencies_from_theta(scaled_theta, rotary_dim, inv_freq);
    return ROPE_STATUS_SUCCESS;
  }

  // theta * growth^(R/(R-2)). This leaves the first frequency unchanged and divides the last one by `growth`.
  rope_status_t fill_ntk(double growth, double *inv_freq) const {
    if (rotary_dim == 2) {
      return fail(kInvalid, "%s: rotary_dim is 2: the exponent rotary_dim / (rotary_dim - 2) divides by 0", function);
    }
    return fill(theta * pow(growth, static_cast<double>(rotary_dim) / (rotary_dim - 2)), inv_freq);
  }

  rope_status_t divide_by(const char *field, const double *factors, double *inv_freq) const {
    for (int pair = 0; pair < pairs; ++pair) {
      const double frequency = inv_freq[pair];
      inv_freq[pair] = frequency / factors[pair];
      if (!isfinite(inv_freq[pair])) {
        return fail(kInvalid, "%s: %s[%d] is %g: the frequency %g divided by it must be finite", function, field, pair,
                    factors[pair], frequency);
      }
    }
    return ROPE_STATUS_SUCCESS;
  }
};

rope_status_t scale_none(const Request &request, ScaledFrequencies *result) {
  return request.fill(request.theta, result->inv_freq);
}

rope_status_t scale_linear(const Request &request, ScaledFrequencies *result) {
  ROPE_TRY(request.check_factor());
  ROPE_TRY(request.fill(request.theta, result->inv_freq));
  for (int pair = 0; pair < request.pairs; ++pair) result->inv_freq[pair] /= request.scaling.factor;
  return ROPE_STATUS_SUCCESS;
}

// s * L/M - (s - 1), without cancellation.
rope_status_t scale_dynamic_ntk(const Request &request, ScaledFrequencies *result) {
  const rope_scaling_t &scaling = request.scaling;
  ROPE_TRY(request.check_factor());
  ROPE_TRY(request.check_original_max_position());
  ROPE_TRY(request.check_sequence_length());
  const int64_t original = scaling.original_max_position;
  const int64_t beyond = scaling.sequence_length > original ? scaling.sequence_length - original : 0;
  const double share = static_cast<double>(beyond) / static_cast<double>(original);
  return request.fill_ntk(1.0 + scaling.factor * share, result->inv_freq);
}

rope_status_t scale_dynamic_ntk_fixed(const Request &request, ScaledFrequencies *result) {
  const double factor = request.scaling.factor;
  ROPE_TRY(request.check_factor());
  return request.fill_ntk(1.0 + factor * (factor - 1.0), result->inv_freq);
}

rope_status_t scale_ntk_alpha(const Request &request, ScaledFrequencies *result) {
  ROPE_TRY(request.check_min("alpha", request.scaling.alpha, 1.0));
  return request.fill_ntk(request.scaling.alpha, result->inv_freq);
}

rope_status_t scale_ntk_fixed(const Request &request, ScaledFrequencies *result) {
  const double factor = request.scaling.factor;
  ROPE_TRY(request.check_factor());
  ROPE_TRY(request.fill(request.theta * factor, result->inv_freq));
  const double divisor = pow(factor, 2.0 / request.rotary_dim);
  for (int pair = 0; pair < request.pairs; ++pair) result->inv_freq[pair] /= divisor;
  return ROPE_STATUS_SUCCESS;
}

rope_status_t scale_ntk_mixed(const Request &request, ScaledFrequencies *result) {
  const rope_scaling_t &scaling = request.scaling;
  ROPE_TRY(request.check_factor());
  ROPE_TRY(request.check_above_0("mixed_b", scaling.mixed_b));
  ROPE_TRY(request.fill(request.theta, result->inv_freq));
  for (int pair = 0; pair < request.pairs; ++pair) {
    result->inv_freq[pair] /= pow(scaling.factor, pow((pair + 1.0) / request.pairs, scaling.mixed_b));
  }
  return ROPE_STATUS_SUCCESS;
}

struct Ramp {
  double low, high;

  double at(int pair) const {
    const double share = (pair - low) / (high - low);
    return share < 0.0 ? 0.0 : share > 1.0 ? 1.0 : share;
  }
};

rope_status_t make_ramp(const Request &request, Ramp *ramp) {
  const rope_scaling_t &scaling = request.scaling;
  ROPE_TRY(request.check_factor());
  ROPE_TRY(request.check_original_max_position());
  const double fast = request.value_or(scaling.beta_fast, 32.0);
  const double slow = request.value_or(scaling.beta_slow, 1.0);
  ROPE_TRY(request.check_above_0("beta_slow", slow));
  if (!(fast >= slow && fast <= kMaxDouble)) {
    return fail(kInvalid, "%s: beta_fast is %g: it must be finite and at least beta_slow, %g", request.function, fast,
                slow);
  }
  if (!(request.theta > 1.0)) {
    return fail(kInvalid, "%s: theta is %g: for this type it must be above 1", request.function, request.theta);
  }
  const double pairs_per_e_fold = request.rotary_dim / (2.0 * log(request.theta));
  const double log_turns = log(static_cast<double>(scaling.original_max_position) / kTwoPi);
  double low = pairs_per_e_fold * (log_turns - log(fast));
  double high = pairs_per_e_fold * (log_turns - log(slow));
  if ((scaling.flags & ROPE_SCALING_FLAG_NO_TRUNCATE) == 0) {
    low = floor(low);
    high = ceil(high);
  }
  low = fmax(low, 0.0);
  high = fmin(high, request.rotary_dim - 1.0);
  if (low > high) {
    return fail(kInvalid,
                "%s: original_max_position is %lld: with theta %g, beta_fast %g and beta_slow %g the ramp would begin "
                "at pair %g and end at %g, and its end must not come first",
                request.function, printable(scaling.original_max_position), request.theta, fast, slow, low, high);
  }
  *ramp = {low, low == high ? high + 0.001 : high};
  return ROPE_STATUS_SUCCESS;
}

rope_status_t yarn_attention_scale(const Request &request, double *attention_scale) {
  const rope_scaling_t &scaling = request.scaling;
  const struct {
    const char *field;
    double value;
  } slopes[] = {{"mscale", scaling.mscale}, {"mscale_all_dim", scaling.mscale_all_dim}};
  for (const auto &slope : slopes) {
    if (slope.value != 0.0) ROPE_TRY(request.check_above_0(slope.field, slope.value));
    if (slope.value != 0.0 && scaling.attention_factor != 0.0) {
      return fail(kInvalid, "%s: %s is %g: attention_factor, %g, replaces it, so it must be 0", request.function,
                  slope.field, slope.value, scaling.attention_factor);
    }
  }
  if (scaling.attention_factor != 0.0) {
    *attention_scale = scaling.attention_factor;
    return request.check_above_0("attention_factor", scaling.attention_factor);
  }
  const double log_factor = 0.1 * log(scaling.factor);
  const double mscale = request.value_or(scaling.mscale, 1.0);
  *attention_scale = (log_factor * mscale + 1.0) / (log_factor * scaling.mscale_all_dim + 1.0);
  return ROPE_STATUS_SUCCESS;
}

rope_status_t scale_yarn(const Request &request, ScaledFrequencies *result) {
  Ramp ramp;
  ROPE_TRY(make_ramp(request, &ramp));
  ROPE_TRY(yarn_attention_scale(request, &result->attention_scale));
  ROPE_TRY(request.fill(request.theta, result->inv_freq));
  for (int pair = 0; pair < request.pairs; ++pair) {
    const double share = ramp.at(pair);
    result->inv_freq[pair] *= share / request.scaling.factor + (1.0 - share);
  }
  return ROPE_STATUS_SUCCESS;
}

rope_status_t scale_yarn_log(const Request &request, ScaledFrequencies *result) {
  Ramp ramp;
  ROPE_TRY(make_ramp(request, &ramp));
  ROPE_TRY(request.fill(request.theta, result->inv_freq));
  for (int pair = 0; pair < request.pairs; ++pair) {
    result->inv_freq[pair] /= pow(request.scaling.factor, ramp.at(pair));
  }
  return ROPE_STATUS_SUCCESS;
}

rope_status_t scale_llama3(const Request &request, ScaledFrequencies *result) {
  const rope_scaling_t &scaling = request.scaling;
  ROPE_TRY(request.check_factor());
  ROPE_TRY(request.check_original_max_position());
  const double low = request.value_or(scaling.low_freq_factor, 1.0);
  const double high = request.value_or(scaling.high_freq_factor, 4.0);
  ROPE_TRY(request.check_above_0("low_freq_factor", low));
  if (!(high >= low && high <= kMaxDouble)) {
    return fail(kInvalid, "%s: high_freq_factor is %g: it must be finite and at least low_freq_factor, %g",
                request.function, high, low);
  }
  ROPE_TRY(request.fill(request.theta, result->inv_freq));
  for (int pair = 0; pair < request.pairs; ++pair) {
    const double turns = static_cast<double>(scaling.original_max_position) * (result->inv_freq[pair] / kTwoPi);
    const double share = turns > high ? 1.0 : turns <= low ? 0.0 : (turns - low) / (high - low);
    result->inv_freq[pair] *= (1.0 - share) / scaling.factor + share;
  }
  return ROPE_STATUS_SUCCESS;
}

rope_status_t longrope_attention_scale(const Request &request, double *attention_scale) {
  const rope_scaling_t &scaling = request.scaling;
  if (scaling.attention_factor != 0.0) {
    if (scaling.factor != 0.0) {
      return fail(kInvalid, "%s: factor is %g: attention_factor, %g, replaces it, so it must be 0", request.function,
                  scaling.factor, scaling.attention_factor);
    }
    *attention_scale = scaling.attention_factor;
    return request.check_above_0("attention_factor", scaling.attention_factor);
  }
  ROPE_TRY(request.check_factor());
  if (scaling.factor == 1.0) return ROPE_STATUS_SUCCESS;
  if (scaling.original_max_position == 1) {
    return fail(kInvalid, "%s: original_max_position is 1: the attention factor would divide by its logarithm, 0",
                request.function);
  }
  *attention_scale = sqrt(1.0 + log(scaling.factor) / log(static_cast<double>(scaling.original_max_position)));
  return ROPE_STATUS_SUCCESS;
}

rope_status_t scale_longrope(const Request &request, ScaledFrequencies *result) {
  const rope_scaling_t &scaling = request.scaling;
  ROPE_TRY(request.check_original_max_position());
  ROPE_TRY(request.check_sequence_length());
  ROPE_TRY(request.check_num_factors());
  ROPE_TRY(request.check_factors("short_factor", scaling.short_factor));
  ROPE_TRY(request.check_factors("long_factor", scaling.long_factor));
  ROPE_TRY(longrope_attention_scale(request, &result->attention_scale));
  ROPE_TRY(request.fill(request.theta, result->inv_freq));
  return scaling.sequence_length > scaling.original_max_position
             ? request.divide_by("long_factor", scaling.long_factor, result->inv_freq)
             : request.divide_by("short_factor", scaling.short_factor, result->inv_freq);
}

rope_status_t scale_proportional(const Request &request, ScaledFrequencies *result) {
  const rope_scaling_t &scaling = request.scaling;
  const double factor = request.value_or(scaling.factor, 1.0);
  ROPE_TRY(request.check_min("factor", factor, 1.0));
  const double share = request.value_or(scaling.partial_rotary_factor, 1.0);
  if (!(share > 0.0 && share <= 1.0)) {
    return fail(kInvalid, "%s: partial_rotary_factor is %g: it must be above 0 and at most 1, or 0 for 1",
                request.function, share);
  }
  const int rotated = static_cast<int>(share * request.pairs);
  if (rotated == 0) {
    return fail(kInvalid, "%s: partial_rotary_factor is %g: of %d pairs it must leave at least one", request.function,
                share, request.pairs);
  }
  ROPE_TRY(request.fill(request.theta, result->inv_freq));
  for (int pair = 0; pair < request.pairs; ++pair) {
    result->inv_freq[pair] = pair < rotated ? result->inv_freq[pair] / factor : 0.0;
  }
  return ROPE_STATUS_SUCCESS;
}

rope_status_t scale_factors(const Request &request, ScaledFrequencies *result) {
  ROPE_TRY(request.check_num_factors());
  ROPE_TRY(request.check_factors("pair_factors", request.scaling.pair_factors));
  ROPE_TRY(request.fill(request.theta, result->inv_freq));
  return request.divide_by("pair_factors", request.scaling.pair_factors, result->inv_freq);
}

constexpr uint32_t kRampFields = kNoTruncate | kFactor | kOriginalMaxPosition | kBetaFast | kBetaSlow;

struct Recipe {
  const char *name;
  uint32_t fields;
  rope_status_t (*scale)(const Request &request, ScaledFrequencies *result);
};

// In the order of the enumeration's values, from 1.
constexpr Recipe kRecipes[] = {
    {"NONE", 0, scale_none},
    {"LINEAR", kFactor, scale_linear},
    {"DYNAMIC_NTK", kFactor | kOriginalMaxPosition | kSequenceLength, scale_dynamic_ntk},
    {"DYNAMIC_NTK_FIXED", kFactor, scale_dynamic_ntk_fixed},
    {"NTK_ALPHA", kAlpha, scale_ntk_alpha},
    {"NTK_FIXED", kFactor, scale_ntk_fixed},
    {"NTK_MIXED", kFactor | kMixedB, scale_ntk_mixed},
    {"YARN", kRampFields | kAttentionFactor | kMscale | kMscaleAllDim, scale_yarn},
    {"YARN_LOG", kRampFields, scale_yarn_log},
    {"LLAMA3", kFactor | kOriginalMaxPosition | kLowFreqFactor | kHighFreqFactor, scale_llama3},
    {"LONGROPE",
     kFactor | kOriginalMaxPosition | kSequenceLength | kAttentionFactor | kNumFactors | kShortFactor | kLongFactor,
     scale_longrope},
    {"PROPORTIONAL", kFactor | kPartialRotaryFactor, scale_proportional},
    {"FACTORS", kNumFactors | kPairFactors, scale_factors}};
constexpr int32_t kNumRecipes = sizeof kRecipes / sizeof kRecipes[0];
static_assert(kNumRecipes == ROPE_SCALING_FACTORS, "a recipe for each ROPE_SCALING_ value");

rope_status_t refuse_unused(const char *function, const Recipe &recipe, const rope_scaling_t &scaling) {
  const struct {
    const char *name;
    Field field;
    double value;
  } numbers[] = {{"num_factors", kNumFactors, static_cast<double>(scaling.num_factors)},
                 {"factor", kFactor, scaling.factor},
                 {"original_max_position", kOriginalMaxPosition, static_cast<double>(scaling.original_max_position)},
                 {"sequence_length", kSequenceLength, static_cast<double>(scaling.sequence_length)},
                 {"alpha", kAlpha, scaling.alpha},
                 {"mixed_b", kMixedB, scaling.mixed_b},
                 {"beta_fast", kBetaFast, scaling.beta_fast},
                 {"beta_slow", kBetaSlow, scaling.beta_slow},
                 {"attention_factor", kAttentionFactor, scaling.attention_factor},
                 {"mscale", kMscale, scaling.mscale},
                 {"mscale_all_dim", kMscaleAllDim, scaling.mscale_all_dim},
                 {"low_freq_factor", kLowFreqFactor, scaling.low_freq_factor},
                 {"high_freq_factor", kHighFreqFactor, scaling.high_freq_factor},
                 {"partial_rotary_factor", kPartialRotaryFactor, scaling.partial_rotary_factor}};
  for (const auto &number : numbers) {
    if (number.value != 0.0 && (recipe.fields & number.field) == 0) {
      return fail(kInvalid, "%s: %s is %.15g: ROPE_SCALING_%s does not use it, so it must be 0", function, number.name,
                  number.value, recipe.name);
    }
  }
  const struct {
    const char *name;
    Field field;
    const double *array;
  } arrays[] = {{"short_factor", kShortFactor, scaling.short_factor},
                {"long_factor", kLongFactor, scaling.long_factor},
                {"pair_factors", kPairFactors, scaling.pair_factors}};
  for (const auto &entry : arrays) {
    if (entry.array != nullptr && (recipe.fields & entry.field) == 0) {
      return fail(kInvalid, "%s: %s is set: ROPE_SCALING_%s does not use it, so it must be NULL", function, entry.name,
                  recipe.name);
    }
  }
  if ((scaling.flags & ROPE_SCALING_FLAG_NO_TRUNCATE) != 0 && (recipe.fields & kNoTruncate) == 0) {
    return fail(kInvalid, "%s: flags is 0x%x: ROPE_SCALING_%s does not use ROPE_SCALING_FLAG_NO_TRUNCATE", function,
                scaling.flags, recipe.name);
  }
  return ROPE_STATUS_SUCCESS;
}

}  // namespace

rope_status_t scale_frequencies(const char *function, int32_t rotary_dim, double theta, const rope_scaling_t &scaling,
                                ScaledFrequencies *result) {
  ROPE_TRY(check_rotary_dim_and_theta(function, rotary_dim, theta));
  if (scaling.type == 0) {
    return fail(kInvalid, "%s: type is 0: it must be one of ROPE_SCALING_%s", function, NameList(kRecipes).text);
  }
  if (scaling.type < 0 || scaling.type > kNumRecipes) {
    return fail(kUnsupported, "%s: type is %d: this version knows ROPE_SCALING_%s", function, scaling.type,
                NameList(kRecipes).text);
  }
  if ((scaling.flags & ~static_cast<uint32_t>(ROPE_SCALING_FLAG_NO_TRUNCATE)) != 0) {
    return fail(kUnsupported, "%s: flags is 0x%x: this version knows ROPE_SCALING_FLAG_NO_TRUNCATE, 0x1, only",
                function, scaling.flags);
  }
  const Recipe &recipe = kRecipes[scaling.type - 1];
  ROPE_TRY(refuse_unused(function, recipe, scaling));
  result->attention_scale = 1.0;
  ROPE_TRY(recipe.scale(Request{function, rotary_dim, rotary_dim / 2, theta, scaling}, result));
  if (!(result->attention_scale >= kMinScale && result->attention_scale <= kMaxScale)) {
    return fail(kInvalid,
                "%s: attention_factor %g, mscale %g and mscale_all_dim %g make attention_scale %g: it must be "
                "a normal number in fp32",
                function, scaling.attention_factor, scaling.mscale, scaling.mscale_all_dim, result->attention_scale);
  }
  return ROPE_STATUS_SUCCESS;
}

}  // namespace rope
