// SPDX-License-Identifier: Apache-2.0
// random_calls.hpp - random calls with every group of operands, at invented addresses; the rare ones have odds of their
// own
#ifndef ROPE_TESTS_PLAN_RANDOM_CALLS_HPP
#define ROPE_TESTS_PLAN_RANDOM_CALLS_HPP

#include <map>
#include <string>
#include <vector>

#include "core/problem/step_problem.hpp"
#include "core/problem/swiglu_problem.hpp"
#include "support/random.hpp"

// Counts of what calls have that the library accepted.
using Coverage = std::map<std::string, int64_t>;

struct RandomRopeCall {
  explicit RandomRopeCall(uint64_t seed);
  RandomRopeCall(const RandomRopeCall &) = delete;
  RandomRopeCall &operator=(const RandomRopeCall &) = delete;

  // Makes the geometry and the problem, or returns why the library refuses the call.
  rope_status_t make();

  // The features of the call that `make` has accepted.
  std::vector<std::string> features() const;

  rope_config_t config;
  std::vector<int32_t> pair_axis;
  rope_args_t args;
  rope_norm_args_t norm;
  rope_cache_args_t cache;
  rope_quant_args_t quant;
  rope_input_args_t input;
  bool is_backward = false;

  rope::RopeGeometry geometry = {};
  rope::RopeProblem problem = {};
  rope::StepProblem step = {};

 private:
  class Draw;

  std::vector<std::string> features_;
};

struct RandomSwigluCall {
  explicit RandomSwigluCall(uint64_t seed);
  RandomSwigluCall(const RandomSwigluCall &) = delete;
  RandomSwigluCall &operator=(const RandomSwigluCall &) = delete;

  rope_status_t make();
  std::vector<std::string> features() const { return features_; }

  swiglu_config_t config;
  swiglu_args_t args;
  swiglu_quant_args_t quant;
  swiglu_input_args_t input;
  swiglu_column_args_t column;
  bool is_backward = false;

  rope::GatingForm form = {};
  rope::SwigluCall call;

 private:
  class Draw;

  std::vector<std::string> features_;
};

#endif
