// measure.hpp - checks a case, then times it beside what it is compared with
#pragma once

#include <string>

#include "cases.hpp"
#include "spread.hpp"

namespace bench {

enum class Outcome {
  kMeasured,
  kNotServed,  // NOT_SUPPORTED, or not of this device, or too large for it
  kFailed      // a wrong result or an error
};

struct Row {
  const Case *item = nullptr;
  Outcome outcome = Outcome::kMeasured;
  std::string message;  // why it was not measured
  std::string explanation;
  double bytes = 0;
  Spread time;  // between two matrix products: what the call adds to them
  // What it is compared with; a median of 0 is absent.
  Spread copy, scale, empty, load_store, programmatic_copy, separate;
  bool has_error = false;
  double relative_error = 0, largest_error = 0;

  // In the metric of the demand: a share, or microseconds.
  double reached() const;
  double bound() const;
  bool has_verdict() const;
  bool is_met() const;
};

struct Effort {
  bool is_tiny;
  double milliseconds;  // of replays for each kind of launch
};

// Never throws; a case that fails says so in its row.
Row measure(const Case &item, rope_device_t device, const Effort &effort);

// How many processors this process may use.
int num_processors();

}  // namespace bench
