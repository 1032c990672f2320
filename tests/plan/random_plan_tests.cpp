// SPDX-License-Identifier: Apache-2.0
// random_plan_tests.cpp - problems, plans and params of random calls, whose launches are recorded, not executed
//
// ROPE_PLAN_CASES sets the number of draws of each test (16000), ROPE_PLAN_SEED the first seed. A failing draw prints its
// seed.
#include <catch2/catch_test_macros.hpp>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "backend/backend.hpp"
#include "plan/explain.hpp"
#include "plan/random_calls.hpp"
#include "plan/recorded_launches.hpp"

namespace {

constexpr int64_t usual_cases = 16000;

const rope::DeviceInfo devices[] = {{true, 0, 132, 90, 6016}, {true, 0, 132, 90, 6016}, {true, 0, 132, 90, 6016},
                                    {true, 0, 1, 90, 6016},   {true, 0, 14, 75, 128},   {true, 0, 108, 80, 5120},
                                    {true, 0, 148, 100, 8192}};

int64_t from_environment(const char *name, int64_t otherwise) {
  const char *text = std::getenv(name);
  return text && *text ? std::strtoll(text, nullptr, 10) : otherwise;
}

// A reason for which no CUDA device takes a launch, or nothing. The limits are those of the CUDA Programming Guide,
// without opting in to more memory.
std::string fault_of(const RecordedLaunch &recorded) {
  const rope::Launch &launch = recorded.launch;
  if (launch.kernel.address == nullptr) return "no kernel";
  if (launch.grid_x < 1 || launch.grid_x > 2147483647 || launch.grid_y < 1 || launch.grid_y > 65535) return "grid";
  if (launch.threads < 1 || launch.thread_rows < 1) return "no threads";
  if (uint64_t{launch.threads} * launch.thread_rows > 1024) return "threads";
  if (launch.shared_bytes > 48 * 1024) return "shared memory";
  if (recorded.params_bytes > 32764) return "params";
  return "";
}

// Counts what the draws of a test had.
struct Counts {
  int64_t drawn = 0, valid = 0, refused_plans = 0, launches = 0;
  Coverage coverage;

  // Whether a drawn call is valid. A list of the library that is too short for a call would be an INTERNAL_ERROR.
  bool has_made(rope_status_t status) {
    INFO(rope::last_error());
    REQUIRE((status == ROPE_STATUS_SUCCESS || status == ROPE_STATUS_INVALID_ARGUMENT ||
             status == ROPE_STATUS_NOT_SUPPORTED));
    ++drawn;
    if (status == ROPE_STATUS_SUCCESS) ++valid;
    return status == ROPE_STATUS_SUCCESS;
  }

  void add(const std::vector<std::string> &features) {
    for (const std::string &feature : features) ++coverage[feature];
  }

  void check(const std::vector<std::string> &features, int64_t least) const {
    for (const std::string &feature : features) {
      const auto found = coverage.find(feature);
      INFO(feature << " in " << valid << " valid calls of " << drawn);
      CHECK((found != coverage.end() && found->second >= least));
    }
  }
};

// The pieces of a plan of the kernels of whole heads have room where kernels and params keep them.
std::string fault_of_pieces(const rope::RopePlan &plan) {
  const bool is_short = plan.step.kernel < rope::StepKernel::kLong;
  if (plan.step.kernel > rope::StepKernel::kLongWindow) return "";
  int most = is_short ? rope::kMaxShortStepPieces : rope::kMaxStepPieces;
  if (plan.step.norm != rope::StepNorm::kNone) most = rope::kMaxNormedStepPieces;
  const int count = plan.heads.pieces.count();
  if (count < 1 || count > most) return "pieces";
  for (int i = 1; i < count; ++i) {
    if (plan.heads.pieces[i].channels > plan.heads.pieces[i - 1].channels) return "pieces out of order";
  }
  return "";
}

std::string kernel_name(const std::string &explanation) {
  const size_t end = explanation.find(" kernel, ");
  const size_t begin = explanation.rfind(": ", end);
  return end == std::string::npos || begin == std::string::npos ? "" : explanation.substr(begin + 2, end - begin - 2);
}

// Explains a call as rope_explain and swiglu_explain do, in a buffer with a guard.
template <typename Explain>
std::string explained(Explain explain) {
  char text[512];
  for (char &byte : text) byte = '#';
  explain(text, size_t{256});
  bool ends = false;
  for (int i = 0; i < 256; ++i) ends = ends || text[i] == 0;
  for (int i = 256; i < 512; ++i) ends = ends && text[i] == '#';
  REQUIRE(ends);
  return text;
}

void run(const rope_status_t status, std::vector<RecordedLaunch> *launches, Counts *counts) {
  INFO(rope::last_error());
  REQUIRE(status == ROPE_STATUS_SUCCESS);
  REQUIRE(!launches->empty());
  for (const RecordedLaunch &launch : *launches) {
    REQUIRE(fault_of(launch) == "");
    ++counts->launches;
  }
  launches->clear();
}

}  // namespace

TEST_CASE("random calls of RoPE and steps: problem, plan and params", "[plan][random]") {
  const int64_t cases = from_environment("ROPE_PLAN_CASES", usual_cases);
  const int64_t seed = from_environment("ROPE_PLAN_SEED", 20261129);
  std::vector<RecordedLaunch> launches;
  recorded_launches = &launches;
  Counts counts;
  for (int64_t i = 0; i < cases; ++i) {
    INFO("ROPE_PLAN_CASES=1 ROPE_PLAN_SEED=" << seed + i);
    RandomRopeCall call(static_cast<uint64_t>(seed + i));
    if (!counts.has_made(call.make())) continue;
    counts.add(call.features());
    if (call.problem.is_empty()) continue;
#if defined(ROPE_TEST_SIMULATION)
    if (call.problem.step == nullptr) continue;  // the simulated GPU has no kernels of RoPE
#endif
    const rope::DeviceInfo &device = devices[i % 7];
    rope::RopePlan plan = {};
    if (rope::plan_rope("rope_forward", call.problem, device, &plan) != ROPE_STATUS_SUCCESS) {
      ++counts.refused_plans;
      continue;
    }
    const std::string text =
        explained([&](char *to, size_t size) { rope::explain_rope(call.problem, plan, device, to, size); });
    counts.add({kernel_name(text)});
    if (call.problem.step != nullptr) REQUIRE(fault_of_pieces(plan) == "");
    run(rope::kCudaBackend.run_rope("rope_forward", call.problem, plan, 0, nullptr), &launches, &counts);
    REQUIRE(launches.empty());
  }
  recorded_launches = nullptr;
  if (cases < usual_cases) return;
  INFO(counts.valid << " valid calls of " << counts.drawn << ", " << counts.refused_plans << " without a plan, "
                    << counts.launches << " launches");
  CHECK(counts.valid * 2 > counts.drawn);
  CHECK(counts.refused_plans * 20 < counts.drawn);
  counts.check({"all cut, codes", "partial window", "several axes",
                "norm",           "no tokens",      "one token",
                "2^31 tokens",    "many heads",     "no heads",
                "v turned",       "window alone",   "accumulated",
                "pass",           "table",          "table by token",
                "angles",         "cu_seqlens",     "row factor",
                "cache",          "pass cache",     "written scales of a cache",
                "no pages",       "pages",          "codes",
                "written scales", "normed window",  "backward",
                "norm gradient",  "rotation alone"},
               10);
  counts.check({"warp angles codes", "short angles", "short with more table", "long angles codes", "long table codes",
                "long window angles", "short rows angles", "long rows angles", "long rows angles codes", "general",
                "norm gradient", "norm gradient rows"},
               2);
}

TEST_CASE("random calls of SwiGLU: problems, plans and params", "[plan][random]") {
  const int64_t cases = from_environment("ROPE_PLAN_CASES", usual_cases);
  const int64_t seed = from_environment("ROPE_PLAN_SEED", 20261129);
  std::vector<RecordedLaunch> launches;
  recorded_launches = &launches;
  Counts counts;
  for (int64_t i = 0; i < cases; ++i) {
    INFO("ROPE_PLAN_CASES=1 ROPE_PLAN_SEED=" << seed + i);
    RandomSwigluCall call(static_cast<uint64_t>(seed + i));
    if (!counts.has_made(call.make())) continue;
    counts.add(call.features());
    if (call.call.is_empty()) continue;
    const rope::DeviceInfo &device = devices[i % 7];
    rope::SwigluCallPlan plan = {};
    if (rope::plan_swiglu_call("swiglu_forward", call.call, device, &plan) != ROPE_STATUS_SUCCESS) {
      ++counts.refused_plans;
      continue;
    }
    const std::string text =
        explained([&](char *to, size_t size) { rope::explain_swiglu(call.call, plan, device, to, size); });
    counts.add({kernel_name(text)});
    const rope_status_t status = rope::kCudaBackend.run_swiglu("swiglu_forward", call.call, plan, 0, nullptr);
    REQUIRE(static_cast<int>(launches.size()) == plan.num_launches(call.call));
    run(status, &launches, &counts);
  }
  recorded_launches = nullptr;
  if (cases < usual_cases) return;
  INFO(counts.valid << " valid calls of " << counts.drawn << ", " << counts.refused_plans << " without a plan, "
                    << counts.launches << " launches");
  CHECK(counts.valid * 2 > counts.drawn);
  CHECK(counts.refused_plans * 20 < counts.drawn);
  counts.check({"expert_rows", "expert_offsets", "row_index", "row_scale", "grad_row_scale", "biases", "length 1",
                "length 0", "codes", "codes of 4 bits", "codes of gradients", "codes by column", "tiles"},
               10);
  counts.check({"row sums", "expert codes", "row codes", "group codes", "matrix codes", "codes", "row", "expert",
                "flat", "matrix", "matrix with options", "element", "alternating", "general", "blocks of codes"},
               2);
}
