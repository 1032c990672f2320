// SPDX-License-Identifier: Apache-2.0
// device_info.cpp - finds the code that a GPU runs
#include "plan/device_info.hpp"

#include <string.h>

namespace rope {

// The number at the beginning of a text, of an architecture: at most four digits.
static int read_digits(const char *text) {
  int number = 0;
  for (int i = 0; i < 4 && text[i] >= '0' && text[i] <= '9'; ++i) number = number * 10 + (text[i] - '0');
  return number;
}

int capability_of_code(const char *architectures, int capability) {
  constexpr char kMachine[] = "sm_", kPtx[] = "compute_";
  int of_machine = 0, of_ptx = 0;
  for (const char *at = architectures; *at != '\0';) {
    const bool is_machine = strncmp(at, kMachine, sizeof kMachine - 1) == 0;
    if (!is_machine && strncmp(at, kPtx, sizeof kPtx - 1) != 0) return capability;
    const int number = read_digits(at + (is_machine ? sizeof kMachine : sizeof kPtx) - 1);
    int *const largest = is_machine ? &of_machine : &of_ptx;
    const bool runs = number <= capability && (!is_machine || number / 10 == capability / 10);
    if (runs && number > *largest) *largest = number;
    at += strcspn(at, " ");
    at += strspn(at, " ");
  }
  return of_machine != 0 ? of_machine : of_ptx != 0 ? of_ptx : capability;
}

}  // namespace rope
