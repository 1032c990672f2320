// SPDX-License-Identifier: Apache-2.0
// process.cpp - starts this program again
#include "process.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch_test_macros.hpp>
#include <cstdio>

void require_in_new_process(const std::string &environment, const std::string &test_case) {
  char program[4096];
  const ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
  REQUIRE(length > 0);
  const std::string command =
      environment + " '" + std::string(program, static_cast<size_t>(length)) + "' '" + test_case + "' 2>&1";
  std::FILE *output = popen(command.c_str(), "r");
  REQUIRE(output != nullptr);
  std::string text;
  char part[4096];
  for (size_t bytes; (bytes = std::fread(part, 1, sizeof part, output)) > 0;) text.append(part, bytes);
  const int status = pclose(output);
  INFO(text);
  REQUIRE(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
  // Neither "no test cases ran" nor all of them skipped.
  CHECK(text.find("All tests passed") != std::string::npos);
}
