// SPDX-License-Identifier: Apache-2.0
// rope_bench.cpp - measures librope's speed, relative to a copy of the same bytes in the same process
//
// usage: rope-bench [--device cpu|cuda] [--case GLOB] [--json FILE] [--commit ID] [--list] [--tiny]
//
//   --device  the default is the GPU, if there is one; a run on a GPU includes the cases of the CPU
//   --case    runs only cases whose names match, as a shell matches file names ('*' matches '/' too); may be repeated
//   --json    writes every figure to FILE, anew after each case, so that a run that is stopped keeps its results
//   --commit  the commit that the results name; the default is ROPE_BENCH_COMMIT of the environment
//   --list    prints the cases with their geometry and demands, and ends
//   --tiny    runs every case once at a tiny size, to check results and this program; its times mean nothing
//
// Bytes are the least that the operation can move: every accessed element is read once and written once, not counting
// positions and tables. Each case is first checked against an oracle in double, with poisoned outputs. On a GPU it is
// timed in graph replays over buffer sets that together exceed the L2 cache (decode: four sets inside it, as after a
// projection), alternating with replays of its comparisons. The exit status is 1 if a case failed. A missed demand is
// not a failure, and neither is a case that the library does not support.
#include <fnmatch.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "cases.hpp"
#include "measure.hpp"
#include "results.hpp"
#if defined(ROPE_BENCH_CUDA)
#include "gpu_timer.hpp"
#endif

namespace {

using bench::Case;
using bench::Outcome;
using bench::Row;

struct Options {
  std::string device, json, commit, command = "rope-bench";
  std::vector<std::string> globs;
  bool is_list = false, is_tiny = false;
};

bool read_options(int count, char **arguments, Options *options) {
  const char *commit = std::getenv("ROPE_BENCH_COMMIT");
  if (commit != nullptr) options->commit = commit;
  for (int i = 1; i < count; ++i) {
    const std::string option = arguments[i];
    const bool is_switch = option == "--list" || option == "--tiny";
    const std::string value = !is_switch && i + 1 < count ? arguments[++i] : "";
    if (option == "--list") {
      options->is_list = true;
    } else if (option == "--tiny") {
      options->is_tiny = true;
    } else if (option == "--device" && (value == "cpu" || value == "cuda")) {
      options->device = value;
    } else if (option == "--case" && !value.empty()) {
      options->globs.push_back(value);
    } else if (option == "--json" && !value.empty()) {
      options->json = value;
    } else if (option == "--commit" && !value.empty()) {
      options->commit = value;
    } else {
      return false;
    }
    // The arguments that reproduce the figures; output files and names are left out.
    if (option == "--json" || option == "--commit") continue;
    options->command += " " + option + (value.empty() ? "" : option == "--case" ? " '" + value + "'" : " " + value);
  }
  return true;
}

bool is_wanted(const Case &item, const std::vector<std::string> &globs) {
  for (const std::string &glob : globs) {
    if (fnmatch(glob.c_str(), item.name.c_str(), 0) == 0) return true;
  }
  return globs.empty();
}

// A case only for the CPU, or only for the GPU unless it is tiny.
bool is_for(const Case &item, rope_device_t device, bool is_tiny) {
  const bool is_gpu_only = item.measure == bench::Measure::kStream || item.measure == bench::Measure::kResident ||
                           item.measure == bench::Measure::kBetweenGemms;
  return device == ROPE_DEVICE_CUDA || is_tiny || !is_gpu_only;
}

void list(const std::vector<Case> &cases, const std::vector<std::string> &globs) {
  constexpr const char *kBounds[] = {"",
                                     "share >= ",
                                     "scale-share >= ",
                                     "us <= ",
                                     "us above empty <= ",
                                     "us, scaled, <= ",
                                     "share of separate calls >= "};
  for (const Case &item : cases) {
    if (!is_wanted(item, globs)) continue;
    std::printf("%-64s %9.1f MB  %s", item.name.c_str(), bench::bytes_moved(item) / 1e6,
                bench::text_of(item.words).c_str());
    if (item.demand.metric != bench::Metric::kNone) {
      std::printf("  [%s%.3f]", kBounds[static_cast<int>(item.demand.metric)], item.demand.bound);
    }
    std::printf("\n");
  }
}

bool is_device_lost(rope_device_t device) {
#if defined(ROPE_BENCH_CUDA)
  if (device == ROPE_DEVICE_CUDA) return !bench::is_gpu_alive();
#endif
  (void)device;
  return false;
}

}  // namespace

int main(int count, char **arguments) {
  Options options;
  if (!read_options(count, arguments, &options)) {
    std::fprintf(stderr,
                 "usage: rope-bench [--device cpu|cuda] [--case GLOB] [--json FILE] [--commit ID] [--list] [--tiny]\n");
    return 2;
  }
  const std::vector<Case> cases = bench::all_cases(options.is_tiny);
  if (options.is_list) {
    list(cases, options.globs);
    return 0;
  }

  int32_t num_cuda_devices = 0;
#if defined(ROPE_BENCH_CUDA)
  if (options.device != "cpu" && rope_device_count(ROPE_DEVICE_CUDA, &num_cuda_devices) != ROPE_STATUS_SUCCESS) {
    std::fprintf(stderr, "%s\n", rope_last_error());
    return 1;
  }
#endif
  if (options.device == "cuda" && num_cuda_devices == 0) {
    std::fprintf(stderr, "no CUDA device: %s\n", rope_last_error());
    return 1;
  }
  const rope_device_t device = num_cuda_devices > 0 ? ROPE_DEVICE_CUDA : ROPE_DEVICE_CPU;
  std::vector<const Case *> wanted;
  for (const Case &item : cases) {
    if (is_wanted(item, options.globs) && is_for(item, device, options.is_tiny)) wanted.push_back(&item);
  }
  if (wanted.empty()) {
    std::fprintf(stderr, "no such case; see --list\n");
    return 2;
  }

  const bench::Setting setting = bench::setting_of(device, options.is_tiny, options.command, options.commit);
  const bench::Effort effort = {options.is_tiny, options.is_tiny ? 0.0 : 80.0};
  const bool has_terminal = isatty(STDERR_FILENO) != 0;
  std::vector<Row> rows;
  bool has_failed = false, is_lost = false;
  for (const Case *item : wanted) {
    if (has_terminal) std::fprintf(stderr, "\r\033[K[%zu/%zu] %s", rows.size() + 1, wanted.size(), item->name.c_str());
    if (is_lost) {
      Row row;
      row.item = item;
      row.outcome = Outcome::kFailed;
      row.message = "not run: the device no longer answers after an earlier case";
      rows.push_back(row);
      continue;
    }
    rows.push_back(bench::measure(*item, device, effort));
    if (rows.back().outcome == Outcome::kFailed) {
      has_failed = true;
      is_lost = is_device_lost(device);
    }
    if (!options.json.empty() && !bench::write_json(options.json, setting, rows)) {
      std::fprintf(stderr, "%s cannot be written\n", options.json.c_str());
      return 1;
    }
  }
  if (has_terminal) std::fprintf(stderr, "\r\033[K");
  bench::print_table(setting, rows);
  if (!options.json.empty() && !bench::write_json(options.json, setting, rows)) return 1;
  return has_failed ? 1 : 0;
}
