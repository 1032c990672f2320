// SPDX-License-Identifier: Apache-2.0
// written_scales.hpp - scales that a call writes beside codes, and the common part of rope_quant_args_t and
// swiglu_quant_args_t
#pragma once

#include <stdint.h>

#include "core/math/float8.hpp"
#include "core/problem/status.hpp"
#include "core/problem/view.hpp"

namespace rope {

// Scales that a call writes beside codes, one for each group of neighbouring channels. Strides in elements.
struct WrittenScales {
  char *data;  // NULL: none
  ScaleForm form;
  uint32_t floor;         // the bits of scale_floor: smaller magnitudes count as this one
  int groups;             // of a head
  int64_t row_stride[2];  // of batches and tokens; in a cache, of pages and entries
  int64_t head_stride;
  int64_t group_stride;
  int64_t four_stride;  // of every fourth group

  ROPE_HOST_DEVICE bool is_present() const { return data != nullptr; }
  ROPE_HOST_DEVICE bool has_bytes() const { return form >= ScaleForm::kE8M0; }
  ROPE_HOST_DEVICE int64_t row(int64_t first, int64_t second) const {
    return first * row_stride[0] + second * row_stride[1];
  }
  ROPE_HOST_DEVICE void store(int64_t row, int64_t head, int group, uint32_t bits) const {
    store_at(row + head * head_stride + group / 4 * four_stride + group % 4 * group_stride, bits);
  }
  ROPE_HOST_DEVICE void store_at(int64_t at, uint32_t bits) const {
    if (has_bytes()) {
      reinterpret_cast<uint8_t *>(data)[at] = static_cast<uint8_t>(bits);
    } else {
      reinterpret_cast<uint32_t *>(data)[at] = bits;
    }
  }
};

// The members of a group that determine how scales are made.
struct ScaleRule {
  uint32_t flags;  // ROPE_QUANT_FLAG_ values
  double floor;
  const char *group = "quant";
};

rope_status_t check_scale_rule(const char *function, const ScaleRule &rule);

// Checks that a rule for written scales is not set without such scales.
rope_status_t check_rule_has_scales(const char *function, const ScaleRule &rule);

// Sets the form and the floor of written scales, and checks the dtype of their tensor. F8_E4M3 is NOT_SUPPORTED unless
// may_be_e4m3.
rope_status_t set_scale_form(const char *function, const char *field, rope_dtype_t dtype, const ScaleRule &rule,
                             WrittenScales *scales, bool may_be_e4m3 = false);

}  // namespace rope
