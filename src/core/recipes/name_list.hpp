// SPDX-License-Identifier: Apache-2.0
// name_list.hpp - the names of a table's rows as a text, for error messages
#pragma once

#include <stddef.h>

namespace rope {

// For example "NONE, LINEAR, YARN". 255 bytes are enough for the names of every table here.
struct NameList {
  template <typename Row, size_t count>
  explicit NameList(const Row (&rows)[count]) {
    size_t used = 0;
    for (const Row &row : rows) {
      const char *const parts[] = {&row == rows ? "" : ", ", row.name};
      for (const char *part : parts) {
        for (; *part != '\0' && used < sizeof text - 1; ++part) text[used++] = *part;
      }
    }
    text[used] = '\0';
  }
  char text[256];
};

}  // namespace rope
