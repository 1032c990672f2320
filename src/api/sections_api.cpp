// SPDX-License-Identifier: Apache-2.0
// sections_api.cpp - position axes at the C boundary: import and map
#include <string.h>

#include "api/call_scope.hpp"
#include "core/problem/import.hpp"
#include "core/recipes/sections.hpp"

extern "C" {

rope_status_t rope_section_axes(int32_t rotary_dim, double theta, const rope_sections_t *sections,
                                int32_t *pair_axis_out, double *inv_freq_out) {
  const rope::CallScope scope;
  __asm__ volatile("" : "+m"(theta));  // the compiler must not move arithmetic on theta before the scope's beginning
  const char *function = "rope_section_axes";
  if (pair_axis_out == nullptr)
    return rope::fail(ROPE_STATUS_INVALID_ARGUMENT, "%s: pair_axis_out is NULL: it is required", function);
  rope_sections_t known;
  ROPE_TRY(rope::import_struct(function, "sections", sections, rope::kRopeSectionsFirstSize, &known, sizeof known));
  rope::SectionAxes axes;
  ROPE_TRY(rope::map_sections(function, rotary_dim, theta, known, &axes));
  const size_t pairs = static_cast<size_t>(rotary_dim / 2);
  memcpy(pair_axis_out, axes.pair_axis, sizeof(int32_t) * pairs);
  if (inv_freq_out != nullptr) memcpy(inv_freq_out, axes.inv_freq, sizeof(double) * pairs);
  return ROPE_STATUS_SUCCESS;
}

}  // extern "C"
