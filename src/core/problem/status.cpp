// SPDX-License-Identifier: Apache-2.0
// status.cpp - the thread-local text behind rope_last_error
#include "core/problem/status.hpp"

#include <locale.h>
#include <stdarg.h>
#include <stdio.h>

namespace rope {

static thread_local char message[512];

// The C libraries keep one object of the locale "C": newlocale allocates none, and it is never freed.
static void print_in_c(char *text, size_t size, const char *format, va_list arguments) {
  const locale_t callers = uselocale(newlocale(LC_ALL_MASK, "C", nullptr));
  vsnprintf(text, size, format, arguments);
  uselocale(callers);
}

rope_status_t fail(rope_status_t status, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  print_in_c(message, sizeof message, format, arguments);
  va_end(arguments);
  return status;
}

void print(char *text, size_t size, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  print_in_c(text, size, format, arguments);
  va_end(arguments);
}

const char *last_error() {
  return message;
}

}  // namespace rope
