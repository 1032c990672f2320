// SPDX-License-Identifier: Apache-2.0
// explain.cpp - describes a plan in words
#include "plan/explain.hpp"

#include "core/problem/status.hpp"
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

// The operations of a call beside the rotation, in their order; empty if there are none.
const char *name_of_work(const StepProblem *step) {
  static constexpr const char *kWork[] = {"copy: ",  "norm: ",        "rotation: ",        "norm, rotation: ",
                                          "cache: ", "norm, cache: ", "rotation, cache: ", "norm, rotation, cache: "};
  if (step == nullptr) return "";
  return kWork[(step->has_norm ? 1 : 0) + (step->is_turned ? 2 : 0) + (step->has_caches ? 4 : 0)];
}

// The kernel's name with its kind of angles and, for a step, the feature of its instance.
struct KernelName {
  explicit KernelName(const RopeProblem &problem, const RopePlan &plan) {
    if (problem.step == nullptr) {
      print(text, sizeof text, "%s%s", algorithm_of(plan.variant.kernel).name, name_of_angles(plan.variant));
      return;
    }
    static constexpr const char *kNames[] = {
        "warp",       "short",     "short with more", "long",          "long window",
        "short rows", "long rows", "general",         "norm gradient", "norm gradient rows"};
    static constexpr const char *kAngles[] = {"", " angles", " table"};
    const StepVariant &step = plan.step;
    const char *angles = step.kernel >= StepKernel::kGeneral ? "" : kAngles[static_cast<int>(step.angles)];
    const char *codes = !step.has_codes()          ? ""
                        : problem.step->has_codes  ? " codes"
                        : problem.step->has_factor ? " factors"
                                                   : " sums";
    print(text, sizeof text, "%s%s%s", kNames[static_cast<int>(step.kernel)], angles, codes);
  }
  char text[48];
};

// The name of a SwiGLU kernel.
const char *name_of_kernel(const SwigluProblem &problem, const SwigluPlan &plan) {
  if (problem.grad_row_scale != nullptr) return "row sums";
  if (problem.has_codes()) {
    if (plan.is_expert_matrix) return problem.expert_rows != nullptr ? "expert codes" : "row codes";
    return plan.has_plain_groups ? "group codes" : plan.is_matrix ? "matrix codes" : "codes";
  }
  const bool has_options = plan.formula > SwigluFormula::kForm;
  if (plan.is_expert_matrix) return problem.rows.is_present() ? "row" : "expert";
  if (plan.is_flat) return "flat";
  if (plan.is_matrix) return has_options ? "matrix with options" : "matrix";
  if (has_options) return "element";
  return plan.is_alternating() ? "alternating" : "general";
}

// The numbers of a launch; `more` is appended to its threads.
struct LaunchWords {
  const char *kernel;
  int vector_elements;
  uint32_t grid_x, grid_y, threads;
  const char *more;
};

// Sentences for all kinds of call. `what` follows the type, for example the pairing style of a rotation.
struct CallWords {
  const char *call;
  rope_dtype_t dtype;
  const char *what;
  char *text;
  size_t size;

  void say_nothing_is(const char *done) const {
    print(text, size, "%s %s %s: nothing to do, no element is %s", call, dtype_name(dtype), what, done);
  }

  void say_tasks(const char *work, int num_tasks, int num_threads, int64_t bytes) const {
    print(text, size, "%s %s %s on the CPU: %s%d of %d threads, %.6g MB read and written", call, dtype_name(dtype),
          what, work, num_tasks, num_threads, static_cast<double>(bytes) / 1e6);
  }

  void say_launch(const char *work, const LaunchWords &launch, int64_t bytes) const {
    print(text, size,
          "%s %s %s on CUDA: %s%s kernel, vectors of %d bytes, grid %u x %u of %u threads%s, %.6g MB read and "
          "written",
          call, dtype_name(dtype), what, work, launch.kernel,
          launch.vector_elements * static_cast<int>(dtype_size(dtype)), launch.grid_x, launch.grid_y, launch.threads,
          launch.more, static_cast<double>(bytes) / 1e6);
  }
};

}  // namespace

void explain_rope(const RopeProblem &problem, const RopePlan &plan, const DeviceInfo &device, char *text, size_t size) {
  const char *pairs = name_of(pairing_of(problem.in_distance, problem.out_distance));
  const char *call = problem.step != nullptr && !problem.is_empty() ? "step" : "rope";
  const CallWords words = {call, problem.geometry->dtype, pairs, text, size};
  if (problem.is_empty()) return words.say_nothing_is("rotated");
  const char *work = name_of_work(problem.step);
  if (!device.is_cuda) return words.say_tasks(work, plan.num_tasks, device.num_threads, moved_bytes(problem));
  char shared[32];
  print(shared, sizeof shared, ", %u bytes shared", plan.shared_bytes);
  const KernelName kernel(problem, plan);
  const LaunchWords launch = {
      kernel.text, plan.vector_elements, plan.grid_x, plan.grid_y, plan.threads * plan.thread_rows, shared};
  words.say_launch(work, launch, moved_bytes(problem));
}

// The first launch, and how many follow it.
void explain_swiglu(const SwigluCall &call, const SwigluCallPlan &call_plan, const DeviceInfo &device, char *text,
                    size_t size) {
  const SwigluProblem &problem = call.problems[0];
  const CallWords words = {"swiglu", problem.dtype, problem.is_backward ? "backward" : "forward", text, size};
  if (problem.is_empty()) return words.say_nothing_is("gated");
  const bool is_blocks = call_plan.has_blocks && problem.has_codes();
  const SwigluPlan &plan = is_blocks ? call_plan.blocks : call_plan.plans[0];
  if (!device.is_cuda) return words.say_tasks("", plan.num_tasks, device.num_threads, moved_bytes(call));
  const int others = call_plan.num_launches(call) - 1;
  char more[48] = "";
  if (others > 0) print(more, sizeof more, ", and %d more launch%s", others, others > 1 ? "es" : "");
  char end[64];
  print(end, sizeof end, "%s%s", plan.is_programmatic ? ", programmatic" : "", more);
  const LaunchWords launch = {is_blocks ? "blocks of codes" : name_of_kernel(problem, plan),
                              plan.vector_elements,
                              plan.grid_x,
                              plan.grid_y,
                              plan.threads,
                              end};
  words.say_launch("", launch, moved_bytes(call));
}

}  // namespace rope
