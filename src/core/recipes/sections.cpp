// SPDX-License-Identifier: Apache-2.0
// sections.cpp - validates section lists and computes their maps
//
// rope.h has the rules, beside each ROPE_SECTIONS_ value.
#include "core/recipes/sections.hpp"

#include <math.h>

#include "core/problem/descriptor_checks.hpp"
#include "core/recipes/name_list.hpp"

namespace rope {

namespace {

constexpr rope_status_t kInvalid = ROPE_STATUS_INVALID_ARGUMENT;
constexpr rope_status_t kUnsupported = ROPE_STATUS_NOT_SUPPORTED;

// A checked request. 64 bits hold the sums and multiples of sections.
struct Request {
  const char *function;
  int rotary_dim;
  int pairs;
  double theta;
  const int32_t *section;
  int num_sections;
  int64_t sum;
};

int32_t chunked_axis(const Request &request, int pair) {
  int32_t axis = 0;
  for (; pair >= request.section[axis]; ++axis) pair -= request.section[axis];
  return axis;
}

int32_t interleaved_axis(const Request &request, int pair) {
  const int32_t axis = pair % 3;
  return pair < int64_t{3} * request.section[axis] ? axis : 0;
}

int32_t imrope_axis(const Request &request, int pair) {
  const int64_t place = pair % request.sum;
  const int32_t axis = static_cast<int32_t>(place % 3);
  return place < int64_t{3} * request.section[axis] ? axis : 3;
}

int32_t ernie_axis(const Request &request, int pair) {
  return pair < request.section[0] + request.section[1] ? 1 + pair % 2 : 0;
}

int32_t vision_axis(const Request &request, int pair) {
  return pair % request.sum < request.section[0] ? 0 : 1;
}

rope_status_t continuing_frequencies(const Request &request, double *inv_freq) {
  frequencies_from_theta(request.theta, request.rotary_dim, inv_freq);
  return ROPE_STATUS_SUCCESS;
}

rope_status_t restarted_frequencies(const Request &request, double *inv_freq) {
  for (int i = 0; i < request.num_sections; ++i) {
    const int32_t pairs = request.section[i];
    if (pairs != 0) frequencies_from_theta(request.theta, 2 * pairs, inv_freq);
    inv_freq += pairs;
  }
  return ROPE_STATUS_SUCCESS;
}

// In a section of more than half of the pairs the exponent is below -1, so a valid theta may still give an invalid
// frequency.
rope_status_t vision_frequencies(const Request &request, double *inv_freq) {
  double restarted[kMaxPairs];
  frequencies_in_steps(request.theta, request.pairs, 2, request.pairs, restarted);
  for (int pair = 0; pair < request.pairs; ++pair) {
    const int64_t place = pair % request.sum;
    const int64_t rank = place < request.section[0] ? place : place - request.section[0];
    inv_freq[pair] = restarted[rank];
    if (!isfinite(inv_freq[pair])) {
      return fail(kInvalid, "%s: theta is %g: theta^(-%lld/%d), the frequency of pair %d, must be finite",
                  request.function, request.theta, static_cast<long long>(2 * rank), request.pairs, pair);
    }
  }
  return ROPE_STATUS_SUCCESS;
}

struct Rule {
  const char *name;
  int32_t num_sections;  // 0: any number from 1 to ROPE_MAX_POSITION_AXES
  bool covers_pairs;     // the sections must add up to the number of pairs
  int32_t (*axis)(const Request &request, int pair);
  rope_status_t (*fill)(const Request &request, double *inv_freq);
};

// In the order of the enumeration's values, from 1.
constexpr Rule kRules[] = {{"CHUNKED", 0, true, chunked_axis, continuing_frequencies},
                           {"INTERLEAVED", 3, true, interleaved_axis, continuing_frequencies},
                           {"IMROPE", 4, false, imrope_axis, continuing_frequencies},
                           {"ERNIE", 3, true, ernie_axis, continuing_frequencies},
                           {"RESTARTED", 0, true, chunked_axis, restarted_frequencies},
                           {"VISION", 2, false, vision_axis, vision_frequencies}};
constexpr int32_t kNumRules = sizeof kRules / sizeof kRules[0];
static_assert(kNumRules == ROPE_SECTIONS_VISION, "a rule for each ROPE_SECTIONS_ value");

rope_status_t check_sections(const char *function, const Rule &rule, int pairs, const rope_sections_t &sections,
                             int64_t sum) {
  const int32_t num_sections = sections.num_sections;
  if (rule.num_sections != 0 && num_sections != rule.num_sections) {
    return fail(kInvalid, "%s: num_sections is %d: ROPE_SECTIONS_%s has %d", function, num_sections, rule.name,
                rule.num_sections);
  }
  if (num_sections < 1 || num_sections > ROPE_MAX_POSITION_AXES) {
    return fail(kInvalid, "%s: num_sections is %d: it must be 1 to %d", function, num_sections, ROPE_MAX_POSITION_AXES);
  }
  for (int i = 0; i < ROPE_MAX_POSITION_AXES; ++i) {
    const int32_t section = sections.section[i];
    if (i >= num_sections && section != 0) {
      return fail(kInvalid, "%s: section[%d] is %d: it must be 0, because num_sections is %d", function, i, section,
                  num_sections);
    }
    if (section < 0) return fail(kInvalid, "%s: section[%d] is %d: it must be at least 0", function, i, section);
  }
  if (sum == 0) return fail(kInvalid, "%s: the sum of section is 0: it must be above 0", function);
  if (rule.covers_pairs && sum != pairs) {
    return fail(kInvalid, "%s: the sum of section is %lld: it must be %d, half of rotary_dim", function,
                static_cast<long long>(sum), pairs);
  }
  return ROPE_STATUS_SUCCESS;
}

}  // namespace

rope_status_t map_sections(const char *function, int32_t rotary_dim, double theta, const rope_sections_t &sections,
                           SectionAxes *result) {
  ROPE_TRY(check_rotary_dim_and_theta(function, rotary_dim, theta));
  if (sections.type == 0) {
    return fail(kInvalid, "%s: type is 0: it must be one of ROPE_SECTIONS_%s", function, NameList(kRules).text);
  }
  if (sections.type < 0 || sections.type > kNumRules) {
    return fail(kUnsupported, "%s: type is %d: this version knows ROPE_SECTIONS_%s", function, sections.type,
                NameList(kRules).text);
  }
  if (sections.flags != 0) {
    return fail(kUnsupported, "%s: flags is 0x%x: this version knows no flag", function, sections.flags);
  }
  const Rule &rule = kRules[sections.type - 1];
  const int pairs = rotary_dim / 2;
  int64_t sum = 0;
  for (const int32_t section : sections.section) sum += section;
  ROPE_TRY(check_sections(function, rule, pairs, sections, sum));
  if (sections.type == ROPE_SECTIONS_ERNIE && sections.section[1] != sections.section[0]) {
    return fail(kInvalid, "%s: section[1] is %d: ROPE_SECTIONS_ERNIE needs it equal to section[0], %d", function,
                sections.section[1], sections.section[0]);
  }
  const Request request = {function, rotary_dim, pairs, theta, sections.section, sections.num_sections, sum};
  for (int pair = 0; pair < pairs; ++pair) result->pair_axis[pair] = rule.axis(request, pair);
  return rule.fill(request, result->inv_freq);
}

}  // namespace rope
