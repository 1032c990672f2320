// legal_launch.hpp - what every plan must be, whatever kernel it has
#ifndef ROPE_TESTS_PLAN_LEGAL_LAUNCH_HPP
#define ROPE_TESTS_PLAN_LEGAL_LAUNCH_HPP

#include "plan/scene.hpp"

// "" or what is wrong with a plan as a launch: its kernel does not accept the problem, vectors are not aligned, work is
// left over or done by no thread, numbers go beyond what the kernel or the grid holds.
std::string fault_of(const Scene &scene, const rope::DeviceInfo &device, const rope::RopePlan &plan);

#endif
