// SPDX-License-Identifier: Apache-2.0
// swiglu_call.hpp - calls of SwiGLU that are a single problem, for tests of problems and plans
#ifndef ROPE_TESTS_SUPPORT_SWIGLU_CALL_HPP
#define ROPE_TESTS_SUPPORT_SWIGLU_CALL_HPP

#include "core/problem/swiglu_problem.hpp"
#include "plan/swiglu_plan.hpp"

namespace swiglu_call {

// Makes the problem of a call without codes, or with one output.
inline rope_status_t make_problem(const char *function, rope_dtype_t dtype, const rope::GatingForm &form,
                                  const swiglu_args_t &args, bool is_backward, rope::SwigluProblem *problem) {
  rope::SwigluCall call;
  const rope_status_t status = rope::make_swiglu_call(function, dtype, form, args, is_backward, &call);
  if (status == ROPE_STATUS_SUCCESS) *problem = call.problems[0];
  return status;
}

inline rope::SwigluCall call_of(const rope::SwigluProblem &problem) {
  rope::SwigluCall call;
  call.count = 1;
  call.problems[0] = problem;
  return call;
}

inline rope::SwigluCallPlan plan_of(const rope::SwigluPlan &plan) {
  rope::SwigluCallPlan result = {};
  result.plans[0] = plan;
  return result;
}

}  // namespace swiglu_call

#endif
