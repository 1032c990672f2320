// SPDX-License-Identifier: Apache-2.0
// measure.hpp - checks a case, then times it together with its comparisons
#pragma once

#include <string>

#include "cases.hpp"
#include "spread.hpp"

namespace bench {

enum class Outcome {
  kMeasured,
  kNotServed,  // NOT_SUPPORTED, not for this device, or too large for it
  kFailed      // a wrong result or an error
};

struct Row {
  const Case *item = nullptr;
  Outcome outcome = Outcome::kMeasured;
  std::string message;  // the reason if it was not measured
  std::string explanation;
  double bytes = 0;
  Spread time;  // between two matrix products: the time that the call adds to them
  // Comparisons; an absent one has a median of 0.
  Spread copy, scale, empty, load_store, programmatic_copy, separate;
  bool has_error = false;
  double relative_error = 0, largest_error = 0;

  // In the unit of the demand: a share, or microseconds.
  double reached() const;
  double bound() const;
  bool has_verdict() const;
  bool is_met() const;
};

struct Effort {
  bool is_tiny;
  double milliseconds;  // duration of replays for each kind of launch
};

// Never throws; the row of a case that fails has the error.
Row measure(const Case &item, rope_device_t device, const Effort &effort);

// The number of processors that this process may use.
int num_processors();

}  // namespace bench
