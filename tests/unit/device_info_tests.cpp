// SPDX-License-Identifier: Apache-2.0
// device_info_tests.cpp - the code that a GPU runs, from the architectures of a build
#include <catch2/catch_test_macros.hpp>

#include "plan/device_info.hpp"

TEST_CASE("a GPU runs machine code of its major version, or else PTX", "[device info]") {
  constexpr char kDefault[] = "sm_75 sm_80 sm_90 sm_100 sm_120 compute_90";
  const struct {
    const char *architectures;
    int capability, of_code;
  } cases[] = {
      {kDefault, 75, 75},
      {kDefault, 80, 80},
      {kDefault, 86, 80},
      {kDefault, 89, 80},
      {kDefault, 90, 90},
      {kDefault, 103, 100},
      {kDefault, 110, 90},
      {kDefault, 121, 120},
      {"sm_80 compute_80", 90, 80},
      {"sm_80 compute_80", 80, 80},
      {"sm_80 sm_89", 89, 89},
      {"sm_80 sm_89", 86, 80},
      {"sm_90", 90, 90},
      {"sm_90a", 90, 90},
      {"sm_", 90, 90},
      {"sm_ compute_80", 90, 80},
      {"compute_99999999999999999999", 90, 90},
      {"compute_75 compute_80", 89, 80},
      {"sm_80", 90, 90},  // no code: calls fail, and name the GPU
      {"native", 89, 89},
      {"sm_80 all", 89, 89},
      {"", 90, 90},
  };
  for (const auto &each : cases) {
    INFO("'" << each.architectures << "' on " << each.capability);
    CHECK(rope::capability_of_code(each.architectures, each.capability) == each.of_code);
  }
}
