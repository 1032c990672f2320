// SPDX-License-Identifier: Apache-2.0
// explain.hpp - describes a plan in words
#pragma once

#include <stddef.h>

#include "plan/rope_plan.hpp"
#include "plan/swiglu_plan.hpp"

namespace rope {

// Writes one line, cut to `size` bytes with its terminating 0; `size` is at least 1. An empty problem has no plan.
void explain_rope(const RopeProblem &problem, const RopePlan &plan, const DeviceInfo &device, char *text, size_t size);
void explain_swiglu(const SwigluCall &call, const SwigluCallPlan &plan, const DeviceInfo &device, char *text,
                    size_t size);

}  // namespace rope
