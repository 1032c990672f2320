// SPDX-License-Identifier: Apache-2.0
// legal_launch.hpp - conditions for every plan, with any kernel
#ifndef ROPE_TESTS_PLAN_LEGAL_LAUNCH_HPP
#define ROPE_TESTS_PLAN_LEGAL_LAUNCH_HPP

#include "plan/scene.hpp"

// Returns "" or the error of a plan: its kernel does not accept the problem, vectors are not aligned, work is left over
// or belongs to no thread, or numbers exceed the limits of the kernel or the grid.
std::string fault_of(const Scene &scene, const rope::DeviceInfo &device, const rope::RopePlan &plan);

#endif
