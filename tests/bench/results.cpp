// SPDX-License-Identifier: Apache-2.0
// results.cpp - prints results and writes them to JSON
#include "results.hpp"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <ctime>

#if defined(ROPE_BENCH_CUDA)
#include "gpu_timer.hpp"
#endif

namespace bench {

namespace {

template <typename... Values>
std::string format(const char *pattern, Values... values) {
  char text[512];
  std::snprintf(text, sizeof text, pattern, values...);
  return text;
}

std::string processor_name() {
  std::FILE *file = std::fopen("/proc/cpuinfo", "r");
  if (file == nullptr) return "";
  std::string name;
  char line[512];
  while (name.empty() && std::fgets(line, sizeof line, file) != nullptr) {
    const char *colon = std::strchr(line, ':');
    if (std::strncmp(line, "model name", 10) == 0 && colon != nullptr) name = colon + 2;
  }
  std::fclose(file);
  while (!name.empty() && name.back() == '\n') name.pop_back();
  return name;
}

const char *metric_name(Metric metric) {
  switch (metric) {
    case Metric::kShare:
      return "share";
    case Metric::kScaleShare:
      return "scale-share";
    case Metric::kMicroseconds:
      return "us";
    case Metric::kMicrosecondsAbove:
      return "us-above";
    case Metric::kMicrosecondsScaled:
      return "us-scaled";
    case Metric::kSeparateShare:
      return "separate-share";
    case Metric::kNone:
      break;
  }
  return "";
}

const char *outcome_name(Outcome outcome) {
  switch (outcome) {
    case Outcome::kMeasured:
      return "measured";
    case Outcome::kNotServed:
      return "not served";
    case Outcome::kFailed:
      break;
  }
  return "failed";
}

std::string demand_text(const Row &row) {
  const double bound = row.bound();
  switch (row.item->demand.metric) {
    case Metric::kShare:
      return format(">= %.3f", bound);
    case Metric::kScaleShare:
      return format(">= %.3f of scale", bound);
    case Metric::kSeparateShare:
      return format(">= %.3f of separate calls", bound);
    case Metric::kMicroseconds:
    case Metric::kMicrosecondsScaled:
      return format("<= %.2f us", bound);
    case Metric::kMicrosecondsAbove:
      return format("<= %.2f us above", bound);
    case Metric::kNone:
      break;
  }
  return "";
}

// Shares that are not relative to the copy.
std::string beside_text(const Row &row) {
  std::string text;
  if (row.scale.median_us > 0) text = format("%.3f of scale", row.scale.median_us / row.time.median_us);
  if (row.separate.median_us > 0) {
    text = format("%.3f of separate", row.separate.median_us / row.time.median_us);
  } else if (row.load_store.median_us > 0) {
    text = format("%.2fx empty, %.2fx ld+st", row.time.median_us / row.empty.median_us,
                  row.time.median_us / row.load_store.median_us);
  } else if (row.empty.median_us > 0) {
    text = format("%.2f us above empty", row.time.median_us - row.empty.median_us);
  }
  return text;
}

std::string verdict_text(const Row &row) {
  if (!row.has_verdict()) return "";
  return demand_text(row) + (row.is_met() ? "  met" : "  MISSED");
}

void print_row(const Row &row, int width) {
  std::printf("%-*s ", width, row.item->name.c_str());
  if (row.outcome != Outcome::kMeasured) {
    std::printf("%s: %s\n", outcome_name(row.outcome), row.message.c_str());
    return;
  }
  const bool is_rate = row.copy.median_us > 0;
  std::printf("%8s %10.2f %21s %6s %8s %6s %8s  %-24s %s\n", is_rate ? format("%.1f", row.bytes / 1e6).c_str() : "",
              row.time.median_us, format("%.2f-%.2f", row.time.min_us, row.time.max_us).c_str(),
              is_rate ? format("%.0f", row.bytes / row.time.median_us / 1e3).c_str() : "",
              is_rate ? format("%.2f", row.copy.median_us).c_str() : "",
              is_rate ? format("%.3f", row.copy.median_us / row.time.median_us).c_str() : "",
              row.has_error ? format("%.1e", row.relative_error).c_str() : "", beside_text(row).c_str(),
              verdict_text(row).c_str());
}

std::string quoted(const std::string &text) {
  std::string result = "\"";
  for (const char letter : text) {
    if (letter == '"' || letter == '\\') {
      result += '\\';
      result += letter;
    } else if (static_cast<unsigned char>(letter) < 0x20) {
      result += format("\\u%04x", letter);
    } else {
      result += letter;
    }
  }
  return result + '"';
}

// A finite number, or null.
std::string number(double value) {
  if (!(value - value == 0)) return "null";
  return format("%.9g", value);
}

std::string spread_json(const char *key, const Spread &spread) {
  if (spread.median_us == 0) return "";
  return format(", \"%s\": {\"median\": %.9g, \"min\": %.9g, \"max\": %.9g}", key, spread.median_us, spread.min_us,
                spread.max_us);
}

std::string row_json(const Row &row) {
  const Case &item = *row.item;
  std::string text = "{\"name\": " + quoted(item.name) + ", \"class\": " + quoted(item.group) +
                     ", \"geometry\": " + quoted(text_of(item.words)) +
                     ", \"outcome\": " + quoted(outcome_name(row.outcome));
  if (!row.message.empty()) text += ", \"message\": " + quoted(row.message);
  if (!row.explanation.empty()) text += ", \"explanation\": " + quoted(row.explanation);
  text += ", \"bytes\": " + number(row.bytes);
  if (row.outcome == Outcome::kMeasured) {
    text += spread_json("us", row.time) + spread_json("copy_us", row.copy) + spread_json("scale_us", row.scale) +
            spread_json("empty_us", row.empty) + spread_json("load_store_us", row.load_store) +
            spread_json("programmatic_copy_us", row.programmatic_copy) + spread_json("separate_us", row.separate);
    if (row.copy.median_us > 0) {
      text += ", \"gb_per_s\": " + number(row.bytes / row.time.median_us / 1e3) +
              ", \"share\": " + number(row.copy.median_us / row.time.median_us);
    }
    if (row.has_error) {
      text +=
          ", \"relative_error\": " + number(row.relative_error) + ", \"largest_error\": " + number(row.largest_error);
    }
  }
  if (item.demand.metric != Metric::kNone) {
    text += ", \"demand\": {\"metric\": " + quoted(metric_name(item.demand.metric)) +
            ", \"bound\": " + number(row.bound()) + "}";
  }
  if (row.has_verdict()) {
    text += ", \"reached\": " + number(row.reached()) + ", \"met\": " + (row.is_met() ? "true" : "false");
  }
  return text + "}";
}

#if defined(ROPE_BENCH_CUDA)

std::string gpu_json() {
  const Gpu &card = gpu();
  return "{\"name\": " + quoted(card.name) + ", \"driver\": " + quoted(card.driver) +
         format(
             ", \"capability\": \"%d.%d\", \"multiprocessors\": %d, \"l2_bytes\": %zu, \"clock_mhz\": %d, "
             "\"memory_clock_mhz\": %d, \"cuda_driver\": %d, \"cuda_runtime\": %d}",
             card.capability / 10, card.capability % 10, card.num_multiprocessors, card.l2_bytes, card.clock_mhz,
             card.memory_clock_mhz, card.cuda_driver, card.cuda_runtime);
}

#endif

}  // namespace

Setting setting_of(rope_device_t device, bool is_tiny, const std::string &command, const std::string &commit) {
  char date[32];
  const std::time_t now = std::time(nullptr);
  std::tm parts;
  std::strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &parts));
  return {device, is_tiny, command, commit, date};
}

void print_table(const Setting &setting, const std::vector<Row> &rows) {
  std::printf("%s\n%s, %s%s\n", rope_build_info(), setting.command.c_str(), setting.date.c_str(),
              setting.commit.empty() ? "" : (", commit " + setting.commit).c_str());
  std::printf("%s, %d threads\n", processor_name().c_str(), num_processors());
#if defined(ROPE_BENCH_CUDA)
  if (setting.device == ROPE_DEVICE_CUDA) {
    const Gpu &card = gpu();
    std::printf("%s, driver %s, %d MHz, memory %d MHz, L2 %.1f MB\n", card.name.c_str(), card.driver.c_str(),
                card.clock_mhz, card.memory_clock_mhz, static_cast<double>(card.l2_bytes) / 1e6);
  }
#endif
  size_t longest = 4;
  for (const Row &row : rows) longest = std::max(longest, row.item->name.size());
  const int width = static_cast<int>(longest);
  std::printf("\n%-*s %8s %10s %21s %6s %8s %6s %8s  %-24s %s\n", width, "case", "MB", "us", "min-max", "GB/s",
              "copy us", "share", "error", "beside", "demand");
  size_t judged = 0, not_served = 0, failed = 0;
  std::vector<const Row *> misses;
  for (const Row &row : rows) {
    print_row(row, width);
    if (row.has_verdict()) ++judged;
    if (row.has_verdict() && !row.is_met()) misses.push_back(&row);
    if (row.outcome == Outcome::kNotServed) ++not_served;
    if (row.outcome == Outcome::kFailed) ++failed;
  }
  std::printf("\n%zu cases, %zu not served, %zu failed", rows.size(), not_served, failed);
  std::printf("; %zu demands, %zu missed%s\n", judged, misses.size(), misses.empty() ? "" : ":");
  for (const Row *row : misses) {
    std::printf("  %-*s %10.3f  %s\n", width, row->item->name.c_str(), row->reached(), demand_text(*row).c_str());
  }
  for (const Row &row : rows) {
    if (row.outcome == Outcome::kFailed) std::printf("failed: %s: %s\n", row.item->name.c_str(), row.message.c_str());
  }
  std::fflush(stdout);
}

bool write_json(const std::string &path, const Setting &setting, const std::vector<Row> &rows) {
  std::string text = "{\"program\": \"rope-bench\", \"format\": 1,\n";
  text += " \"date\": " + quoted(setting.date) + ", \"commit\": " + quoted(setting.commit) +
          ", \"command\": " + quoted(setting.command) + ",\n";
  text += " \"library\": " + quoted(rope_build_info()) + ",\n";
  text += format(" \"tiny\": %s, \"processors\": %d, \"processor\": ", setting.is_tiny ? "true" : "false",
                 num_processors());
  text += quoted(processor_name()) + ",\n \"gpu\": ";
  std::string card = "null";
#if defined(ROPE_BENCH_CUDA)
  if (setting.device == ROPE_DEVICE_CUDA) card = gpu_json();
#endif
  text += card + ",\n \"cases\": [";
  for (size_t i = 0; i < rows.size(); ++i) text += (i == 0 ? "\n  " : ",\n  ") + row_json(rows[i]);
  text += "\n ]}\n";
  std::FILE *file = std::fopen(path.c_str(), "w");
  if (file == nullptr) return false;
  const bool is_written = std::fwrite(text.data(), 1, text.size(), file) == text.size();
  return std::fclose(file) == 0 && is_written;
}

}  // namespace bench
