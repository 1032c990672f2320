// SPDX-License-Identifier: Apache-2.0
// launch_model.hpp - models the accesses of each thread of a planned launch
#ifndef ROPE_TESTS_PLAN_LAUNCH_MODEL_HPP
#define ROPE_TESTS_PLAN_LAUNCH_MODEL_HPP

#include "plan/scene.hpp"

// Division by a number known at launch, as in kernels: multiplication by ceil(2^32 / divisor).
uint32_t multiply_by_reciprocal(uint32_t n, uint32_t divisor);

// Returns "" or an error: a channel that the launch does not write exactly once, a pair that it does not rotate exactly
// once, or an access that is not permitted.
std::string run_launch(const Scene &scene, const rope::RopePlan &plan);

// A launch with grid rows of at most `tokens`, by the rule for rows: whole batches, or whole blocks of the only batch.
rope::RopePlan in_short_rows(const Scene &scene, rope::RopePlan plan, int64_t tokens);

#endif
