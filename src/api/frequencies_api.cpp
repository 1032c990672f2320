// SPDX-License-Identifier: Apache-2.0
// frequencies_api.cpp - frequencies at the C boundary: import and compute
#include <string.h>

#include "api/call_scope.hpp"
#include "core/problem/import.hpp"
#include "core/recipes/scaling.hpp"

extern "C" {

rope_status_t rope_scaled_frequencies(int32_t rotary_dim, double theta, const rope_scaling_t *scaling,
                                      double *inv_freq_out, double *attention_scale_out) {
  const rope::CallScope scope;
  __asm__ volatile("" : "+m"(theta));  // the compiler must not move arithmetic on theta before the scope's beginning
  const char *function = "rope_scaled_frequencies";
  if (inv_freq_out == nullptr)
    return rope::fail(ROPE_STATUS_INVALID_ARGUMENT, "%s: inv_freq_out is NULL: it is required", function);
  if (attention_scale_out == nullptr) {
    return rope::fail(ROPE_STATUS_INVALID_ARGUMENT, "%s: attention_scale_out is NULL: it is required", function);
  }
  rope_scaling_t known;
  ROPE_TRY(rope::import_struct(function, "scaling", scaling, rope::kRopeScalingFirstSize, &known, sizeof known));
  rope::ScaledFrequencies scaled;
  ROPE_TRY(rope::scale_frequencies(function, rotary_dim, theta, known, &scaled));
  memcpy(inv_freq_out, scaled.inv_freq, sizeof(double) * static_cast<size_t>(rotary_dim / 2));
  *attention_scale_out = scaled.attention_scale;
  return ROPE_STATUS_SUCCESS;
}

}  // extern "C"
