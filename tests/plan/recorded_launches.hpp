// SPDX-License-Identifier: Apache-2.0
// recorded_launches.hpp - the launches of calls on CUDA, recorded instead of executed
#ifndef ROPE_TESTS_PLAN_RECORDED_LAUNCHES_HPP
#define ROPE_TESTS_PLAN_RECORDED_LAUNCHES_HPP

#include <cstdint>
#include <vector>

#include "backend/cuda/launch.hpp"

struct RecordedLaunch {
  rope::Launch launch;
  uint32_t params_bytes;
};

// Receives the launches of rope::kCudaBackend; NULL: the kernels run, if this program has any.
extern std::vector<RecordedLaunch> *recorded_launches;

#endif
