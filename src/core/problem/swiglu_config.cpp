// SPDX-License-Identifier: Apache-2.0
// swiglu_config.cpp - checks a SwiGLU config and makes its form
#include <math.h>

#include "core/problem/descriptor_checks.hpp"
#include "core/problem/swiglu_problem.hpp"

namespace rope {

namespace {

static_assert(static_cast<int32_t>(Activation::kSwiglu) == SWIGLU_ACTIVATION_SWIGLU);
static_assert(static_cast<int32_t>(Activation::kGegluErf) == SWIGLU_ACTIVATION_GEGLU_ERF);
static_assert(static_cast<int32_t>(Activation::kGegluTanh) == SWIGLU_ACTIVATION_GEGLU_TANH);
static_assert(static_cast<int32_t>(Activation::kReglu) == SWIGLU_ACTIVATION_REGLU);

constexpr rope_status_t kInvalid = ROPE_STATUS_INVALID_ARGUMENT;
constexpr rope_status_t kUnsupported = ROPE_STATUS_NOT_SUPPORTED;
constexpr double kMinSoftcap = 0x1p-126;  // this number and its inverse are normal in fp32

}  // namespace

rope_status_t check_swiglu_config(const char *function, const swiglu_config_t &config, GatingForm *form) {
  ROPE_TRY(check_device(function, config.device, config.device_index, config.num_threads));
  ROPE_TRY(check_data_type(function, config.dtype));
  if (config.flags != 0) {
    return fail(kUnsupported, "%s: flags is 0x%x: this version knows no flag", function, config.flags);
  }
  const struct {
    const char *field;
    double value;
  } factors[] = {{"alpha", config.alpha},
                 {"limit", config.limit},
                 {"up_offset", config.up_offset},
                 {"out_scale", config.out_scale}};
  for (const auto &factor : factors) {
    const bool vanishes = factor.value != 0.0 && static_cast<float>(factor.value) == 0.0f;
    if (!(fabs(factor.value) <= static_cast<double>(kMaxFloat)) || vanishes) {
      return fail(kInvalid, "%s: %s is %g: it must be a finite number in fp32, and 0 only where it is given as 0",
                  function, factor.field, factor.value);
    }
  }
  if (!(config.limit >= 0.0)) {
    return fail(kInvalid, "%s: limit is %g: it must be above 0, or 0 for none", function, config.limit);
  }
  const struct {
    const char *field;
    double value;
  } caps[] = {{"gate_softcap", config.gate_softcap}, {"up_softcap", config.up_softcap}};
  for (const auto &cap : caps) {
    if (cap.value == 0.0 || (cap.value >= kMinSoftcap && cap.value <= 1.0 / kMinSoftcap)) continue;
    return fail(kInvalid, "%s: %s is %g: it must be from 2^-126 to 2^126, or 0 for none", function, cap.field,
                cap.value);
  }
  if (config.limit_rule != SWIGLU_LIMIT_GATE && config.limit_rule != SWIGLU_LIMIT_ACTIVATION) {
    return fail(kInvalid, "%s: limit_rule is %d: it must be SWIGLU_LIMIT_GATE or SWIGLU_LIMIT_ACTIVATION", function,
                config.limit_rule);
  }
  if (config.activation < SWIGLU_ACTIVATION_SWIGLU || config.activation > SWIGLU_ACTIVATION_REGLU) {
    return fail(kInvalid,
                "%s: activation is %d: it must be SWIGLU_ACTIVATION_SWIGLU, SWIGLU_ACTIVATION_GEGLU_ERF, "
                "SWIGLU_ACTIVATION_GEGLU_TANH or SWIGLU_ACTIVATION_REGLU",
                function, config.activation);
  }
  if (config.product_rounding != 0 && config.product_rounding != SWIGLU_PRODUCT_ROUND_ACTIVATION) {
    return fail(kInvalid, "%s: product_rounding is %d: it must be SWIGLU_PRODUCT_ROUND_ACTIVATION or 0", function,
                config.product_rounding);
  }
  if (config.activation != SWIGLU_ACTIVATION_SWIGLU && config.alpha != 0.0 && config.alpha != 1.0) {
    return fail(kInvalid, "%s: alpha is %g and activation is %d: alpha must be 0 or 1 but for SWIGLU_ACTIVATION_SWIGLU",
                function, config.alpha, config.activation);
  }
  if ((config.quant_rounding & ~ROPE_QUANT_ROUND_FIRST) != 0) {
    return fail(kUnsupported, "%s: quant_rounding is 0x%x: this version knows ROPE_QUANT_ROUND_FIRST (0x1) only",
                function, static_cast<unsigned>(config.quant_rounding));
  }
  const auto rounded = [&](double value) {
    return config.dtype == ROPE_DTYPE_F64 ? value : static_cast<double>(static_cast<float>(value));
  };
  form->alpha = config.alpha != 0.0 ? rounded(config.alpha) : 1.0;
  form->limit = config.limit != 0.0 ? rounded(config.limit) : static_cast<double>(INFINITY);
  form->up_offset = rounded(config.up_offset);
  form->out_scale = config.out_scale != 0.0 ? rounded(config.out_scale) : 1.0;
  form->limits_activation = config.limit_rule == SWIGLU_LIMIT_ACTIVATION && config.limit != 0.0;
  form->activation = static_cast<Activation>(config.activation);
  form->gate_softcap = rounded(config.gate_softcap);
  form->up_softcap = rounded(config.up_softcap);
  form->rounds_before_codes = config.quant_rounding != 0 && dtype_size(config.dtype) == 2;
  form->rounds_activation = config.product_rounding != 0 && dtype_size(config.dtype) == 2;
  form->has_options = form->limits_activation || form->rounds_activation || form->activation != Activation::kSwiglu ||
                      config.gate_softcap != 0.0 || config.up_softcap != 0.0;
  form->is_plain = form->alpha == 1.0 && config.limit == 0.0 && config.up_offset == 0.0 && form->out_scale == 1.0 &&
                   !form->has_options;
  return ROPE_STATUS_SUCCESS;
}

}  // namespace rope
