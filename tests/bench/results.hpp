// SPDX-License-Identifier: Apache-2.0
// results.hpp - the printed table and the JSON of results
#pragma once

#include <string>
#include <vector>

#include "measure.hpp"

namespace bench {

// Machine and date, for the head of both.
struct Setting {
  rope_device_t device;
  bool is_tiny;
  std::string command, commit, date;
};
Setting setting_of(rope_device_t device, bool is_tiny, const std::string &command, const std::string &commit);

void print_table(const Setting &setting, const std::vector<Row> &rows);

// Returns whether the file could be written.
bool write_json(const std::string &path, const Setting &setting, const std::vector<Row> &rows);

}  // namespace bench
