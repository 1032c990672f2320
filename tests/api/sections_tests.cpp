// SPDX-License-Identifier: Apache-2.0
// sections_tests.cpp - every map of rope_section_axes, compared with its published rule; its frequencies in long double
#include <algorithm>
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

using Axes = std::vector<int32_t>;

struct Request {
  Request(rope_sections_type_t type, int32_t dim, double base, const std::vector<int32_t> &list)
      : rotary_dim(dim), theta(base) {
    sections.struct_size = sizeof sections;
    sections.type = type;
    sections.num_sections = static_cast<int32_t>(list.size());
    for (size_t i = 0; i < list.size(); ++i) sections.section[i] = list[i];
  }

  size_t pairs() const { return static_cast<size_t>(rotary_dim / 2); }

  int32_t rotary_dim;
  double theta;
  rope_sections_t sections = {};
};

struct Mapped {
  rope_status_t status;
  Axes pair_axis;
  std::vector<double> inv_freq;
};

constexpr int32_t untouched_axis = -77;
constexpr double untouched = -12345.678;

Mapped map(const Request &request) {
  Mapped mapped = {0, Axes(600, untouched_axis), std::vector<double>(600, untouched)};
  mapped.status = rope_section_axes(request.rotary_dim, request.theta, &request.sections, mapped.pair_axis.data(),
                                    mapped.inv_freq.data());
  return mapped;
}

std::string describe(const Request &request) {
  std::string text = "type " + std::to_string(request.sections.type) + ", rotary_dim " +
                     std::to_string(request.rotary_dim) + ", theta " + std::to_string(request.theta) + ", sections";
  // An invalid request may give more sections than there are.
  const int32_t count = std::min<int32_t>(request.sections.num_sections, ROPE_MAX_POSITION_AXES);
  for (int i = 0; i < count; ++i) text += " " + std::to_string(request.sections.section[i]);
  return text;
}

Mapped must_map(const Request &request) {
  Mapped mapped = map(request);
  INFO(describe(request) << ": " << rope_last_error());
  REQUIRE(mapped.status == ROPE_STATUS_SUCCESS);
  const size_t pairs = request.pairs();
  for (size_t i = pairs; i < mapped.inv_freq.size(); ++i) {
    REQUIRE(mapped.inv_freq[i] == untouched);
    REQUIRE(mapped.pair_axis[i] == untouched_axis);
  }
  mapped.inv_freq.resize(pairs);
  mapped.pair_axis.resize(pairs);
  return mapped;
}

// ---- The published rules, each implemented as at its origin: by writing to ranges, not by computing each pair ----

// The rotation of a pair: axis a with the frequency theta^(-numerator / denominator).
struct Turn {
  int32_t axis;
  int numerator, denominator;
};
using Turns = std::vector<Turn>;

// Hugging Face's Qwen2-VL splits cos by the section list and takes piece a from axis a's angles.
Turns split(const std::vector<int32_t> &list) {
  Turns turns;
  for (size_t axis = 0; axis < list.size(); ++axis) {
    for (int i = 0; i < list[axis]; ++i) turns.push_back({static_cast<int32_t>(axis), 0, 1});
  }
  for (size_t i = 0; i < turns.size(); ++i) {
    turns[i].numerator = static_cast<int>(i);
    turns[i].denominator = static_cast<int>(turns.size());
  }
  return turns;
}

// Hugging Face's Qwen3-VL gives all pairs the first axis, then overwrites every third pair, from 1 and from 2 up to
// three times the section.
Turns overwrite_every_third(const std::vector<int32_t> &list, int pairs) {
  Turns turns;
  for (int i = 0; i < pairs; ++i) turns.push_back({0, i, pairs});
  for (int32_t axis = 1; axis < 3; ++axis) {
    for (int i = axis; i < std::min(3 * list[static_cast<size_t>(axis)], pairs); i += 3) {
      turns[static_cast<size_t>(i)].axis = axis;
    }
  }
  return turns;
}

// Hugging Face's and vLLM's Ernie 4.5 VL alternate height and width, followed by time.
Turns alternate(const std::vector<int32_t> &height_width_time) {
  Turns turns;
  for (int i = 0; i < height_width_time[0]; ++i) {
    turns.push_back({1, 0, 1});
    turns.push_back({2, 0, 1});
  }
  for (int i = 0; i < height_width_time[2]; ++i) turns.push_back({0, 0, 1});
  for (size_t i = 0; i < turns.size(); ++i) {
    turns[i].numerator = static_cast<int>(i);
    turns[i].denominator = static_cast<int>(turns.size());
  }
  return turns;
}

// llama.cpp walks over the pairs with axes (t, h, w, e) and multiplies all angles by one step from pair to pair; VISION
// resets an angle to the position where its section begins. `steps` is the number of steps from 1 to 1 / theta.
Turns walk(rope_sections_type_t type, const std::vector<int32_t> &list, int pairs, int steps) {
  int s[4] = {0, 0, 0, 0};
  for (size_t i = 0; i < list.size(); ++i) s[i] = list[i];
  const int cycle = s[0] + s[1] + s[2] + s[3];
  int taken[4] = {0, 0, 0, 0};
  Turns turns;
  for (int i = 0; i < pairs; ++i) {
    const int sector = i % cycle;
    if (type == ROPE_SECTIONS_VISION) {
      if (sector == 0) taken[0] = 0;
      if (sector == s[0]) taken[1] = 0;
    }
    int32_t axis = 3;
    if (type == ROPE_SECTIONS_IMROPE) {
      if (sector % 3 == 1 && sector < 3 * s[1]) {
        axis = 1;
      } else if (sector % 3 == 2 && sector < 3 * s[2]) {
        axis = 2;
      } else if (sector % 3 == 0 && sector < 3 * s[0]) {
        axis = 0;
      }
    } else {
      axis = sector < s[0] ? 0 : 1;
    }
    turns.push_back({axis, taken[axis], steps});
    for (int &count : taken) ++count;
  }
  return turns;
}

// OneFlow's 2-D rope, ChatGLM, apex and video models use consecutive channel ranges, each with a rope of its own.
Turns ropes_of_their_own(const std::vector<int32_t> &channels) {
  Turns turns;
  for (size_t axis = 0; axis < channels.size(); ++axis) {
    for (int channel = 0; channel < channels[axis]; channel += 2) {
      turns.push_back({static_cast<int32_t>(axis), channel, channels[axis]});
    }
  }
  return turns;
}

Real frequency_of(const Turn &turn, double theta) {
  return std::pow(static_cast<Real>(theta), -static_cast<Real>(turn.numerator) / turn.denominator);
}

void check(const Request &request, const Turns &expected) {
  const Mapped mapped = must_map(request);
  INFO(describe(request));
  REQUIRE(expected.size() == request.pairs());
  for (size_t pair = 0; pair < expected.size(); ++pair) {
    INFO("pair " << pair);
    REQUIRE(mapped.pair_axis[pair] == expected[pair].axis);
    const Real exact = frequency_of(expected[pair], request.theta);
    const double found = mapped.inv_freq[pair];
    const double nearest = static_cast<double>(exact);
    // One ulp is permitted: pow of long double is slightly inaccurate, and its value may lie between two doubles.
    REQUIRE((found == nearest || found == std::nextafter(nearest, infinity) || found == std::nextafter(nearest, 0.0)));
    REQUIRE(std::fabs(found / exact - 1) < 1.2e-16L + 1e-18L);
  }
}

// "0 0 1 2" with one character per pair.
std::string picture(const Axes &axes) {
  std::string text;
  for (const int32_t axis : axes) text += static_cast<char>('0' + axis);
  return text;
}

std::string repeat(const std::string &text, int times) {
  std::string repeated;
  for (int i = 0; i < times; ++i) repeated += text;
  return repeated;
}

// A section list with so many parts and this sum, including zeros.
std::vector<int32_t> random_list(Random &random, int parts, int sum) {
  std::vector<int32_t> list(static_cast<size_t>(parts), 0);
  for (int rest = sum; rest > 0;) {
    const int32_t amount = static_cast<int32_t>(1 + random.below(rest));
    list[static_cast<size_t>(random.below(parts))] += amount;
    rest -= amount;
  }
  return list;
}

// ---- Misuse ----

void check_refused(const Request &request, rope_status_t status, const std::string &said) {
  const Mapped mapped = map(request);
  const std::string message = rope_last_error();
  INFO("message: " << message);
  INFO("wanted: " << said << ", " << describe(request));
  CHECK(mapped.status == status);
  CHECK(message.rfind("rope_section_axes: " + said, 0) == 0);
  CHECK(message.find('\n') == std::string::npos);
  for (const int32_t axis : mapped.pair_axis) REQUIRE(axis == untouched_axis);
  for (const double frequency : mapped.inv_freq) REQUIRE(frequency == untouched);
}

Request good(rope_sections_type_t type) {
  switch (type) {
    case ROPE_SECTIONS_IMROPE:
      return Request(type, 16, 10000, {4, 2, 2, 0});
    case ROPE_SECTIONS_ERNIE:
      return Request(type, 16, 10000, {3, 3, 2});
    case ROPE_SECTIONS_VISION:
      return Request(type, 16, 10000, {4, 4});
    default:
      return Request(type, 16, 10000, {4, 2, 2});
  }
}

struct Misuse {
  rope_sections_type_t type;
  rope_status_t status;
  const char *said;
  std::function<void(Request &)> commit;
};

}  // namespace

TEST_CASE("section lists of published models", "[sections]") {
  SECTION("Qwen2-VL") {
    const Request request(ROPE_SECTIONS_CHUNKED, 128, 1e6, {16, 24, 24});
    CHECK(picture(must_map(request).pair_axis) == repeat("0", 16) + repeat("1", 24) + repeat("2", 24));
    check(request, split({16, 24, 24}));
    // llama.cpp writes this list with a fourth section of 0.
    check(Request(ROPE_SECTIONS_CHUNKED, 128, 1e6, {16, 24, 24, 0}), split({16, 24, 24}));
  }
  SECTION("Qwen3-VL") {
    const Request request(ROPE_SECTIONS_INTERLEAVED, 128, 5e6, {24, 20, 20});
    CHECK(picture(must_map(request).pair_axis) == repeat("012", 20) + "0000");
    check(request, overwrite_every_third({24, 20, 20}, 64));
  }
  SECTION("Qwen3.5") {
    const Request request(ROPE_SECTIONS_INTERLEAVED, 64, 1e7, {11, 11, 10});
    CHECK(picture(must_map(request).pair_axis) == repeat("012", 10) + "01");
    check(request, overwrite_every_third({11, 11, 10}, 32));
  }
  SECTION("Ernie 4.5 VL") {
    const Request request(ROPE_SECTIONS_ERNIE, 128, 5e5, {22, 22, 20});
    CHECK(picture(must_map(request).pair_axis) == repeat("12", 22) + repeat("0", 20));
    check(request, alternate({22, 22, 20}));
  }
  SECTION("Hunyuan's xdrope") {
    const Request request(ROPE_SECTIONS_CHUNKED, 128, 10000, {16, 16, 16, 16});
    CHECK(picture(must_map(request).pair_axis) ==
          repeat("0", 16) + repeat("1", 16) + repeat("2", 16) + repeat("3", 16));
    check(request, split({16, 16, 16, 16}));
  }
  SECTION("Qwen3-VL in llama.cpp, whose last pairs differ from the original's") {
    const Request request(ROPE_SECTIONS_IMROPE, 128, 5e6, {24, 20, 20, 0});
    CHECK(picture(must_map(request).pair_axis) == repeat("012", 20) + "0330");
    check(request, walk(ROPE_SECTIONS_IMROPE, {24, 20, 20, 0}, 64, 64));
  }
  SECTION("Qwen2-VL's vision tower in llama.cpp") {
    const Request request(ROPE_SECTIONS_VISION, 80, 10000, {20, 20});
    CHECK(picture(must_map(request).pair_axis) == repeat("0", 20) + repeat("1", 20));
    // Steps of -2 / n_dims, with n_dims half of the head: 20 steps from 1 to 1 / theta.
    check(request, walk(ROPE_SECTIONS_VISION, {20, 20}, 40, 20));
    // The original has a rope of 40 channels for each axis.
    check(request, ropes_of_their_own({40, 40}));
  }
  SECTION("halves of OneFlow and ChatGLM") {
    const Request request(ROPE_SECTIONS_RESTARTED, 128, 10000, {32, 32});
    CHECK(picture(must_map(request).pair_axis) == repeat("0", 32) + repeat("1", 32));
    check(request, ropes_of_their_own({64, 64}));
  }
  SECTION("video models with 44, 42 and 42 channels") {
    const Request request(ROPE_SECTIONS_RESTARTED, 128, 10000, {22, 21, 21});
    CHECK(picture(must_map(request).pair_axis) == repeat("0", 22) + repeat("1", 21) + repeat("2", 21));
    check(request, ropes_of_their_own({44, 42, 42}));
  }
  SECTION("FLUX") {
    check(Request(ROPE_SECTIONS_RESTARTED, 128, 10000, {8, 28, 28}), ropes_of_their_own({16, 56, 56}));
  }
}

TEST_CASE("random section lists follow the published rules", "[sections]") {
  Random random(83);
  const auto theta = [&] { return std::exp(random.uniform(std::log(0.01), std::log(1e8))); };
  for (int i = 0; i < 400; ++i) {
    const int pairs = static_cast<int>(1 + random.below(random.below(8) == 0 ? 512 : 128));
    const int32_t dim = 2 * pairs;
    const int parts = static_cast<int>(1 + random.below(8));
    const std::vector<int32_t> list = random_list(random, parts, pairs);
    check(Request(ROPE_SECTIONS_CHUNKED, dim, theta(), list), split(list));
    std::vector<int32_t> channels;
    for (const int32_t section : list) channels.push_back(2 * section);
    check(Request(ROPE_SECTIONS_RESTARTED, dim, theta(), list), ropes_of_their_own(channels));

    const std::vector<int32_t> three = random_list(random, 3, pairs);
    check(Request(ROPE_SECTIONS_INTERLEAVED, dim, theta(), three), overwrite_every_third(three, pairs));

    const int32_t half = static_cast<int32_t>(random.below(pairs / 2 + 1));
    const std::vector<int32_t> ernie = {half, half, pairs - 2 * half};
    check(Request(ROPE_SECTIONS_ERNIE, dim, theta(), ernie), alternate(ernie));

    // Cycles that are shorter and longer than the number of pairs.
    const int cycle = static_cast<int>(1 + random.below(2 * pairs));
    const std::vector<int32_t> four = random_list(random, 4, cycle);
    check(Request(ROPE_SECTIONS_IMROPE, dim, theta(), four), walk(ROPE_SECTIONS_IMROPE, four, pairs, pairs));
    const std::vector<int32_t> two = random_list(random, 2, cycle);
    Turns vision = walk(ROPE_SECTIONS_VISION, two, pairs, pairs);
    for (Turn &turn : vision) turn.numerator *= 2;
    check(Request(ROPE_SECTIONS_VISION, dim, theta(), two), vision);
  }
}

TEST_CASE("section lists that shift or repeat", "[sections]") {
  const auto axes = [](rope_sections_type_t type, int32_t dim, const std::vector<int32_t> &list) {
    return picture(must_map(Request(type, dim, 10000, list)).pair_axis);
  };
  CHECK(axes(ROPE_SECTIONS_CHUNKED, 2, {1}) == "0");
  CHECK(axes(ROPE_SECTIONS_CHUNKED, 8, {0, 2, 0, 0, 1, 0, 0, 1}) == "1147");
  // the original's axis 0 takes the remaining pairs
  CHECK(axes(ROPE_SECTIONS_INTERLEAVED, 16, {2, 1, 5}) == "01200200");
  CHECK(axes(ROPE_SECTIONS_INTERLEAVED, 8, {4, 0, 0}) == "0000");
  CHECK(axes(ROPE_SECTIONS_ERNIE, 8, {0, 0, 4}) == "0000");
  CHECK(axes(ROPE_SECTIONS_ERNIE, 8, {2, 2, 0}) == "1212");
  CHECK(axes(ROPE_SECTIONS_IMROPE, 24, {1, 1, 1, 2}) == "012330123301");
  CHECK(axes(ROPE_SECTIONS_IMROPE, 8, {0, 0, 0, 1}) == "3333");
  CHECK(axes(ROPE_SECTIONS_IMROPE, 8, {INT32_MAX, INT32_MAX, INT32_MAX, INT32_MAX}) == "0120");
  CHECK(axes(ROPE_SECTIONS_VISION, 16, {2, 1}) == "00100100");
  CHECK(axes(ROPE_SECTIONS_VISION, 8, {INT32_MAX, INT32_MAX}) == "0000");
  CHECK(axes(ROPE_SECTIONS_VISION, 8, {0, 3}) == "1111");
  const std::vector<double> repeated = must_map(Request(ROPE_SECTIONS_VISION, 16, 10000, {2, 1})).inv_freq;
  CHECK(repeated == std::vector<double>{1, 0.1, 1, 1, 0.1, 1, 1, 0.1});
}

TEST_CASE("frequencies at the ends of theta's range", "[sections]") {
  for (const double theta : {1e-300, 1.0, 1e300}) {
    check(Request(ROPE_SECTIONS_CHUNKED, 1024, theta, {256, 256}), split({256, 256}));
    check(Request(ROPE_SECTIONS_RESTARTED, 1024, theta, {1, 511}), ropes_of_their_own({2, 1022}));
    check(Request(ROPE_SECTIONS_VISION, 1024, theta, {256, 256}), ropes_of_their_own({512, 512}));
  }
  // The exponent in a section of more than half of the pairs is below -1.
  const Mapped fading = must_map(Request(ROPE_SECTIONS_VISION, 1024, 1e300, {512, 1}));
  for (size_t pair = 1; pair < 512; ++pair) {
    REQUIRE(fading.inv_freq[pair] <= fading.inv_freq[pair - 1]);
    REQUIRE(fading.inv_freq[pair] >= 0);
  }
  CHECK(fading.inv_freq[511] == 0);
  check_refused(Request(ROPE_SECTIONS_VISION, 1024, 1e-300, {512, 1}), invalid, "theta is 1e-300: ");
  CHECK(std::string(rope_last_error()) ==
        "rope_section_axes: theta is 1e-300: theta^(-528/512), the frequency of pair 264, must be finite");
  check(Request(ROPE_SECTIONS_VISION, 1024, 1e-300, {264, 1}), walk(ROPE_SECTIONS_VISION, {264, 1}, 512, 256));
  CHECK(must_map(Request(ROPE_SECTIONS_VISION, 1024, 1e-300, {264, 1})).inv_freq[263] > 1e308);
}

TEST_CASE("axes without frequencies", "[sections]") {
  for (rope_sections_type_t type = ROPE_SECTIONS_CHUNKED; type <= ROPE_SECTIONS_VISION; ++type) {
    const Request request = good(type);
    Axes found(8, untouched_axis);
    REQUIRE(rope_section_axes(16, 10000, &request.sections, found.data(), nullptr) == ROPE_STATUS_SUCCESS);
    CHECK(found == must_map(request).pair_axis);
  }
}

TEST_CASE("frequencies that do not restart are those of theta alone", "[sections]") {
  rope_scaling_t none = {};
  none.struct_size = sizeof none;
  none.type = ROPE_SCALING_NONE;
  std::vector<double> plain(8);
  double scale = 0;
  REQUIRE(rope_scaled_frequencies(16, 10000, &none, plain.data(), &scale) == ROPE_STATUS_SUCCESS);
  for (const rope_sections_type_t type :
       {ROPE_SECTIONS_CHUNKED, ROPE_SECTIONS_INTERLEAVED, ROPE_SECTIONS_IMROPE, ROPE_SECTIONS_ERNIE}) {
    CHECK(must_map(good(type)).inv_freq == plain);
  }
}

TEST_CASE("wrong section lists are refused by name", "[sections][errors]") {
  using R = Request;
  const auto set_theta = [](double theta) { return [theta](R &r) { r.theta = theta; }; };
  const auto set_dim = [](int32_t dim) { return [dim](R &r) { r.rotary_dim = dim; }; };
  const auto set_count = [](int32_t count) { return [count](R &r) { r.sections.num_sections = count; }; };
  const auto set = [](int i, int32_t section) { return [i, section](R &r) { r.sections.section[i] = section; }; };
  const auto clear = [](R &r) { std::memset(r.sections.section, 0, sizeof r.sections.section); };
  const rope_sections_type_t chunked = ROPE_SECTIONS_CHUNKED, interleaved = ROPE_SECTIONS_INTERLEAVED,
                             imrope = ROPE_SECTIONS_IMROPE, ernie = ROPE_SECTIONS_ERNIE,
                             restarted = ROPE_SECTIONS_RESTARTED, vision = ROPE_SECTIONS_VISION;
  const std::vector<Misuse> misuses = {
      {chunked, invalid, "sections.struct_size is 0: ", [](R &r) { r.sections.struct_size = 0; }},
      {chunked, invalid, "sections.struct_size is 47: ", [](R &r) { r.sections.struct_size = 47; }},
      {chunked, invalid, "sections.struct_size is 4097: ", [](R &r) { r.sections.struct_size = 4097; }},
      {chunked, invalid, "rotary_dim is 0: ", set_dim(0)},
      {chunked, invalid, "rotary_dim is -16: ", set_dim(-16)},
      {chunked, invalid, "rotary_dim is 15: ", set_dim(15)},
      {chunked, invalid, "rotary_dim is 1026: ", set_dim(1026)},
      {vision, invalid, "theta is 0: ", set_theta(0)},
      {vision, invalid, "theta is -10000: ", set_theta(-10000)},
      {vision, invalid, "theta is 9e-301: ", set_theta(9e-301)},
      {chunked, invalid, "theta is 1.1e+300: ", set_theta(1.1e300)},
      {chunked, invalid, "theta is nan: ", set_theta(not_a_number)},
      {chunked, invalid, "theta is inf: ", set_theta(infinity)},
      {chunked, invalid, "type is 0: ", [](R &r) { r.sections.type = 0; }},
      {chunked, unsupported, "type is 7: ", [](R &r) { r.sections.type = 7; }},
      {chunked, unsupported, "type is -1: ", [](R &r) { r.sections.type = -1; }},
      {chunked, unsupported, "flags is 0x80000000: ", [](R &r) { r.sections.flags = 0x80000000; }},
      {chunked, invalid, "num_sections is 0: it must be 1 to 8", set_count(0)},
      {restarted, invalid, "num_sections is 9: it must be 1 to 8", set_count(9)},
      {restarted, invalid, "num_sections is -1: it must be 1 to 8", set_count(-1)},
      {interleaved, invalid, "num_sections is 4: ROPE_SECTIONS_INTERLEAVED has 3", set_count(4)},
      {interleaved, invalid, "num_sections is 2: ROPE_SECTIONS_INTERLEAVED has 3", set_count(2)},
      {imrope, invalid, "num_sections is 3: ROPE_SECTIONS_IMROPE has 4", set_count(3)},
      {imrope, invalid, "num_sections is 5: ROPE_SECTIONS_IMROPE has 4", set_count(5)},
      {ernie, invalid, "num_sections is 0: ROPE_SECTIONS_ERNIE has 3", set_count(0)},
      {vision, invalid, "num_sections is 4: ROPE_SECTIONS_VISION has 2", set_count(4)},
      {vision, invalid, "num_sections is 1: ROPE_SECTIONS_VISION has 2", set_count(1)},
      {chunked, invalid, "section[0] is -1: it must be at least 0", set(0, -1)},
      {restarted, invalid, "section[2] is -2147483648: it must be at least 0", set(2, INT32_MIN)},
      {imrope, invalid, "section[3] is -4: it must be at least 0", set(3, -4)},
      {vision, invalid, "section[1] is -4: it must be at least 0", set(1, -4)},
      {chunked, invalid, "section[3] is 1: it must be 0, because num_sections is 3", set(3, 1)},
      {vision, invalid, "section[7] is -1: it must be 0, because num_sections is 2", set(7, -1)},
      {chunked, invalid, "section[2] is 2: it must be 0, because num_sections is 2", set_count(2)},
      {chunked, invalid, "the sum of section is 0: ", clear},
      {imrope, invalid, "the sum of section is 0: ", clear},
      {vision, invalid, "the sum of section is 0: ", clear},
      {chunked, invalid, "the sum of section is 9: it must be 8, half of rotary_dim", set(1, 3)},
      {interleaved, invalid, "the sum of section is 7: it must be 8, half of rotary_dim", set(2, 1)},
      {interleaved, invalid, "the sum of section is 8: it must be 9, half of rotary_dim", set_dim(18)},
      {ernie, invalid, "the sum of section is 9: it must be 8, half of rotary_dim", set(2, 3)},
      {restarted, invalid, "the sum of section is 6: it must be 8, half of rotary_dim", set(0, 2)},
      {chunked, invalid, "the sum of section is 4294967298: ",
       [](R &r) {
         r.sections.section[0] = r.sections.section[1] = INT32_MAX;
         r.sections.section[2] = 4;
       }},
      {ernie, invalid, "section[1] is 2: ROPE_SECTIONS_ERNIE needs it equal to section[0], 4",
       [](R &r) {
         r.sections.section[0] = 4;
         r.sections.section[1] = 2;
       }},
  };
  for (const Misuse &misuse : misuses) {
    Request request = good(misuse.type);
    must_map(request);
    misuse.commit(request);
    check_refused(request, misuse.status, misuse.said);
  }
}

TEST_CASE("sections of a later header", "[sections][errors]") {
  struct {
    rope_sections_t known;
    uint8_t tail[16];
  } later = {};
  later.known = good(ROPE_SECTIONS_CHUNKED).sections;
  later.known.struct_size = sizeof later;
  Axes found(8, untouched_axis);
  later.tail[15] = 1;
  CHECK(rope_section_axes(16, 10000, &later.known, found.data(), nullptr) == unsupported);
  CHECK(found == Axes(8, untouched_axis));
  later.tail[15] = 0;
  CHECK(rope_section_axes(16, 10000, &later.known, found.data(), nullptr) == ROPE_STATUS_SUCCESS);
  CHECK(picture(found) == "00001122");
}

TEST_CASE("pointers that sections need", "[sections][errors]") {
  const Request request = good(ROPE_SECTIONS_CHUNKED);
  Axes axes(8, untouched_axis);
  std::vector<double> inv_freq(8, untouched);
  CHECK(rope_section_axes(16, 1e4, nullptr, axes.data(), inv_freq.data()) == invalid);
  CHECK(std::string(rope_last_error()) == "rope_section_axes: sections is NULL: it is required");
  CHECK(rope_section_axes(16, 1e4, &request.sections, nullptr, inv_freq.data()) == invalid);
  CHECK(std::string(rope_last_error()) == "rope_section_axes: pair_axis_out is NULL: it is required");
  CHECK(axes == Axes(8, untouched_axis));
  CHECK(inv_freq == std::vector<double>(8, untouched));
}
