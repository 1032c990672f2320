// launch_model.hpp - what each thread of a planned launch touches, as the kernels find their work
#ifndef ROPE_TESTS_PLAN_LAUNCH_MODEL_HPP
#define ROPE_TESTS_PLAN_LAUNCH_MODEL_HPP

#include "plan/scene.hpp"

// How kernels divide by a number that is known at launch: by ceil(2^32 / divisor).
uint32_t multiply_by_reciprocal(uint32_t n, uint32_t divisor);

// "" or which channel the launch writes otherwise than once, which pair it does not rotate once, and what else it
// touches that it should not.
std::string run_launch(const Scene &scene, const rope::RopePlan &plan);

// A launch in rows of at most `tokens`, by the rule for rows: whole batches, or whole blocks of the one batch.
rope::RopePlan in_short_rows(const Scene &scene, rope::RopePlan plan, int64_t tokens);

#endif
