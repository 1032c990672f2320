// SPDX-License-Identifier: Apache-2.0
// status.hpp - reports a failure: a status for the program and a sentence for its user
#pragma once

#include <rope/rope.h>
#include <stddef.h>

namespace rope {

// Stores the message (function, field, value, rule) as this thread's last error and returns `status`. The attribute
// `cold` moves the code that leads to it out of the way: 5 % of a call.
rope_status_t fail(rope_status_t status, const char *format, ...) __attribute__((cold, format(printf, 2, 3)));

const char *last_error();

// snprintf with the numbers of C, whatever the caller's locale is: a decimal point, and no thousands' separators.
void print(char *text, size_t size, const char *format, ...) __attribute__((format(printf, 3, 4)));

// The type that %lld takes in a message.
inline long long printable(int64_t value) {
  return static_cast<long long>(value);
}

}  // namespace rope

#define ROPE_TRY(expression)                                  \
  do {                                                        \
    const rope_status_t try_status = (expression);            \
    if (try_status != ROPE_STATUS_SUCCESS) return try_status; \
  } while (0)
