// explain.cpp - a plan in words
#include "plan/explain.hpp"

#include <stdio.h>

#include "core/problem/step_problem.hpp"
#include "core/problem/view.hpp"
#include "plan/rope_catalogue.hpp"

namespace rope {

namespace {

const char *name_of(Pairing pairing) {
  return pairing == Pairing::kHalf ? "half" : pairing == Pairing::kInterleaved ? "interleaved" : "converted";
}

const char *name_of_angles(const RopeVariant &variant) {
  if (variant.kernel == RopeKernel::kGeneral) return "";
  return variant.angles == kComputedAngles ? " angles" : " table";
}

// What a call does besides, in its order; nothing where it rotates alone.
const char *name_of_work(const StepProblem *step) {
  static constexpr const char *kWork[] = {"copy: ",  "norm: ",        "rotation: ",        "norm, rotation: ",
                                          "cache: ", "norm, cache: ", "rotation, cache: ", "norm, rotation, cache: "};
  if (step == nullptr) return "";
  return kWork[(step->has_norm ? 1 : 0) + (step->is_turned ? 2 : 0) + (step->has_caches ? 4 : 0)];
}

struct KernelName {
  explicit KernelName(const RopeProblem &problem, const RopePlan &plan) {
    if (problem.step == nullptr) {
      snprintf(text, sizeof text, "%s%s", algorithm_of(plan.variant.kernel).name, name_of_angles(plan.variant));
      return;
    }
    static constexpr const char *kNames[] = {"warp",       "short",     "short with more", "long",
                                             "short rows", "long rows", "general"};
    static constexpr const char *kAngles[] = {"", " angles", " table"};
    const StepVariant &step = plan.step;
    const char *angles = step.kernel == StepKernel::kGeneral ? "" : kAngles[static_cast<int>(step.angles)];
    snprintf(text, sizeof text, "%s%s", kNames[static_cast<int>(step.kernel)], angles);
  }
  char text[48];
};

}  // namespace

void explain_rope(const RopeProblem &problem, const RopePlan &plan, const DeviceInfo &device, char *text, size_t size) {
  const RopeGeometry &geometry = *problem.geometry;
  const char *dtype = dtype_name(geometry.dtype),
             *pairs = name_of(pairing_of(problem.in_distance, problem.out_distance));
  if (problem.is_empty()) {
    snprintf(text, size, "rope %s %s: nothing to do, no element is rotated", dtype, pairs);
    return;
  }
  const double megabytes = static_cast<double>(moved_bytes(problem)) / 1e6;
  const char *call = problem.step != nullptr ? "step" : "rope";
  if (!device.is_cuda) {
    snprintf(text, size, "%s %s %s on the CPU: %s%d of %d threads, %.6g MB read and written", call, dtype, pairs,
             name_of_work(problem.step), plan.num_tasks, device.num_threads, megabytes);
    return;
  }
  snprintf(text, size,
           "%s %s %s on CUDA: %s%s kernel, vectors of %d bytes, grid %u x %u of %u threads, %u bytes shared, %.6g MB "
           "read and written",
           call, dtype, pairs, name_of_work(problem.step), KernelName(problem, plan).text,
           plan.vector_elements * static_cast<int>(dtype_size(geometry.dtype)), plan.grid_x, plan.grid_y,
           plan.threads * plan.thread_rows, plan.shared_bytes, megabytes);
}

}  // namespace rope
