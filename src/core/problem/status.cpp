// SPDX-License-Identifier: Apache-2.0
// status.cpp - the thread-local text behind rope_last_error
#include "core/problem/status.hpp"

#include <stdarg.h>
#include <stdio.h>

namespace rope {

static thread_local char message[512];

rope_status_t fail(rope_status_t status, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(message, sizeof message, format, arguments);
  va_end(arguments);
  return status;
}

const char *last_error() {
  return message;
}

}  // namespace rope
