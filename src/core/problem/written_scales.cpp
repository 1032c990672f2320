// SPDX-License-Identifier: Apache-2.0
// written_scales.cpp - validates how scales of codes are made
#include "core/problem/written_scales.hpp"

namespace rope {

namespace {

constexpr rope_status_t kInvalid = ROPE_STATUS_INVALID_ARGUMENT;
constexpr rope_status_t kUnsupported = ROPE_STATUS_NOT_SUPPORTED;

constexpr double kMinFloat = 0x1p-149, kMaxFloat = 0x1.fffffep127;  // the numbers of F32 above 0
constexpr float kDefaultFloor = 1e-10f;                             // of F32 scales

}  // namespace

rope_status_t check_scale_rule(const char *function, const ScaleRule &rule) {
  constexpr uint32_t kFlags = ROPE_QUANT_FLAG_SCALE_MULTIPLIES | ROPE_QUANT_FLAG_POWER_OF_TWO;
  if ((rule.flags & ~kFlags) != 0) {
    return fail(kUnsupported,
                "%s: %s.flags is 0x%x: this version knows ROPE_QUANT_FLAG_SCALE_MULTIPLIES (0x1) and "
                "ROPE_QUANT_FLAG_POWER_OF_TWO (0x2) only",
                function, rule.group, rule.flags);
  }
  if (rule.floor != 0 && !(rule.floor >= kMinFloat && rule.floor <= kMaxFloat)) {
    return fail(kInvalid, "%s: %s.scale_floor is %g: it must be 0 or a number of F32 above it", function, rule.group,
                rule.floor);
  }
  return ROPE_STATUS_SUCCESS;
}

rope_status_t check_rule_has_scales(const char *function, const ScaleRule &rule) {
  if ((rule.flags & ROPE_QUANT_FLAG_POWER_OF_TWO) != 0) {
    return fail(kInvalid, "%s: %s.flags is 0x%x: ROPE_QUANT_FLAG_POWER_OF_TWO (0x2) needs scales that are written",
                function, rule.group, rule.flags);
  }
  if (rule.floor == 0) return ROPE_STATUS_SUCCESS;
  return fail(kInvalid, "%s: %s.scale_floor is %g: it needs scales that are written", function, rule.group, rule.floor);
}

rope_status_t set_scale_form(const char *function, const char *field, rope_dtype_t dtype, const ScaleRule &rule,
                             WrittenScales *scales, bool may_be_e4m3) {
  const bool is_e4m3 = dtype == ROPE_DTYPE_F8_E4M3, is_e8m0 = dtype == ROPE_DTYPE_F8_E8M0;
  if (is_e4m3 && !may_be_e4m3) {
    return fail(kUnsupported, "%s: %s.dtype is F8_E4M3: this version does not write such scales yet", function, field);
  }
  if (dtype != ROPE_DTYPE_F32 && !is_e8m0 && !is_e4m3) {
    return fail(kInvalid, "%s: %s.dtype is %s: it must be F32%s or F8_E8M0", function, field, dtype_name(dtype),
                may_be_e4m3 ? ", F8_E4M3" : "");
  }
  const bool is_power_of_two = (rule.flags & ROPE_QUANT_FLAG_POWER_OF_TWO) != 0;
  if (is_e4m3 && is_power_of_two) {
    return fail(kInvalid,
                "%s: %s.flags is 0x%x: ROPE_QUANT_FLAG_POWER_OF_TWO (0x2) and scales of F8_E4M3 exclude "
                "each other",
                function, rule.group, rule.flags);
  }
  const float floor = static_cast<float>(rule.floor);
  scales->form = is_e8m0           ? ScaleForm::kE8M0
                 : is_e4m3         ? ScaleForm::kE4M3
                 : is_power_of_two ? ScaleForm::kPowerOfTwo
                                   : ScaleForm::kF32;
  scales->floor = bits_of(floor != 0 || scales->has_bytes() ? floor : kDefaultFloor);
  return ROPE_STATUS_SUCCESS;
}

}  // namespace rope
