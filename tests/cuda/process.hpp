// SPDX-License-Identifier: Apache-2.0
// process.hpp - runs test cases in a new process
#ifndef ROPE_TESTS_CUDA_PROCESS_HPP
#define ROPE_TESTS_CUDA_PROCESS_HPP

#include <string>

// Starts this program again for a hidden test case, with assignments like "NAME=value OTHER=value" in its environment,
// and requires success.
void require_in_new_process(const std::string &environment, const std::string &test_case);

#endif
