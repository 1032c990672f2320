// explain.cpp - a plan in words
#include "plan/explain.hpp"

#include <stdio.h>
#include <string.h>

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

// What a step does, in its order.
struct StepWords {
  explicit StepWords(const StepProblem &step) {
    if (step.has_norm) add("norm");
    if (step.is_turned) add("rotation");
    if (step.has_caches) add("cache");
    if (text[0] == '\0') add("copy");
  }
  void add(const char *word) {
    const size_t used = strlen(text);
    snprintf(text + used, sizeof text - used, "%s%s", used > 0 ? ", " : "", word);
  }
  char text[32] = "";
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
  if (!device.is_cuda && problem.step != nullptr) {
    snprintf(text, size, "step %s %s on the CPU: %s: %d of %d threads, %.6g MB read and written", dtype, pairs,
             StepWords(*problem.step).text, plan.num_tasks, device.num_threads, megabytes);
    return;
  }
  if (!device.is_cuda) {
    snprintf(text, size, "rope %s %s on the CPU: %d of %d threads, %.6g MB read and written", dtype, pairs,
             plan.num_tasks, device.num_threads, megabytes);
    return;
  }
  snprintf(text, size,
           "rope %s %s on CUDA: %s%s kernel, vectors of %d bytes, grid %u x %u of %u threads, %u bytes "
           "shared, %.6g MB read and written",
           dtype, pairs, algorithm_of(plan.variant.kernel).name, name_of_angles(plan.variant),
           plan.vector_elements * static_cast<int>(dtype_size(geometry.dtype)), plan.grid_x, plan.grid_y,
           plan.threads * plan.thread_rows, plan.shared_bytes, megabytes);
}

}  // namespace rope
