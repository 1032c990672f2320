// explain.cpp - a plan in words
#include "plan/explain.hpp"

#include <stdio.h>

#include "core/problem/view.hpp"

namespace rope {

namespace {

const char *name_of(RopeKernel kernel) {
  switch (kernel) {
    case RopeKernel::kShared:
      return "shared angles";
    case RopeKernel::kToken:
      return "token angles";
    case RopeKernel::kTokenAxes:
      return "token axis angles";
    case RopeKernel::kTokenSequences:
      return "token sequence angles";
    case RopeKernel::kTokenTable:
      return "token table";
    case RopeKernel::kTokenTableAxes:
      return "token axis table";
    case RopeKernel::kTokenTableSequences:
      return "token sequence table";
    case RopeKernel::kScattered:
      return "scattered angles";
    case RopeKernel::kScatteredTable:
      return "scattered table";
    case RopeKernel::kFlat:
      return "own angles";
    case RopeKernel::kTable32:
    case RopeKernel::kTable16:
      return "own table";
    case RopeKernel::kShortWarp:
      return "short warp angles";
    case RopeKernel::kShort:
      return "short angles";
    case RopeKernel::kShortTable32:
    case RopeKernel::kShortTable16:
    case RopeKernel::kLateTable32:
    case RopeKernel::kLateTable16:
      return "short table";
    case RopeKernel::kLong:
      return "long angles";
    case RopeKernel::kLongBatches:
      return "long angles of batches";
    case RopeKernel::kLongConverted:
      return "long converted angles";
    case RopeKernel::kLongTable32:
    case RopeKernel::kLongTable16:
      return "long table";
    default:
      return "general";
  }
}

const char *name_of(Pairing pairing) {
  return pairing == Pairing::kHalf ? "half" : pairing == Pairing::kInterleaved ? "interleaved" : "converted";
}

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
  if (!device.is_cuda) {
    snprintf(text, size, "rope %s %s on the CPU: %d of %d threads, %.6g MB read and written", dtype, pairs,
             plan.num_tasks, device.num_threads, megabytes);
    return;
  }
  snprintf(text, size,
           "rope %s %s on CUDA: %s kernel, vectors of %d bytes, grid %u x %u of %u threads, %u bytes "
           "shared, %.6g MB read and written",
           dtype, pairs, name_of(plan.kernel), plan.vector_elements * static_cast<int>(dtype_size(geometry.dtype)),
           plan.grid_x, plan.grid_y, plan.threads * plan.thread_rows, plan.shared_bytes, megabytes);
}

}  // namespace rope
