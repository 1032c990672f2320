// SPDX-License-Identifier: Apache-2.0
// swiglu_element.hpp - the exact outputs of one element of SwiGLU, and the permitted error of the library's
#ifndef ROPE_TESTS_SUPPORT_SWIGLU_ELEMENT_HPP
#define ROPE_TESTS_SUPPORT_SWIGLU_ELEMENT_HPP

#include "oracle.hpp"
#include "tolerance.hpp"

namespace swiglu_element {

using oracle::Real;

struct Exact {
  Real value, slack;
};

inline bool is_geglu(const oracle::SwigluForm &form) {
  return form.activation == SWIGLU_ACTIVATION_GEGLU_ERF || form.activation == SWIGLU_ACTIVATION_GEGLU_TANH;
}

// Returns the form as the library reads it, with numbers in the type of the arithmetic.
inline oracle::SwigluForm form_of(rope_dtype_t arithmetic, const swiglu_config_t &config) {
  const auto read = [&](double number) { return oracle::nearest(arithmetic, number); };
  oracle::SwigluForm form;
  if (config.alpha != 0) form.alpha = read(config.alpha);
  if (config.limit != 0) form.limit = read(config.limit);
  form.up_offset = read(config.up_offset);
  if (config.out_scale != 0) form.out_scale = read(config.out_scale);
  if (config.gate_softcap != 0) form.gate_softcap = read(config.gate_softcap);
  if (config.up_softcap != 0) form.up_softcap = read(config.up_softcap);
  form.limit_rule = config.limit_rule;
  form.activation = config.activation;
  const bool is_narrow = config.dtype == ROPE_DTYPE_F16 || config.dtype == ROPE_DTYPE_BF16;
  if (config.product_rounding && is_narrow) form.activation_dtype = config.dtype;
  form.is_brief =
      is_narrow && (is_geglu(form) || config.gate_softcap != 0 || config.up_softcap != 0 || config.limit_rule != 0);
  return form;
}

// The inputs of one element.
struct Inputs {
  Real gate, up, grad_out, row_scale;
};

// An element, with the quantities that its tolerance depends on.
struct Element {
  Element(const Inputs &inputs, const oracle::SwigluForm &form, rope_dtype_t arithmetic)
      : form(form), arithmetic(arithmetic), in(inputs) {
    limits_gate = form.limit_rule == SWIGLU_LIMIT_GATE;
    g = limits_gate ? std::fmin(in.gate, form.limit) : in.gate;
    bounded_up = std::fmax(-form.limit, std::fmin(in.up, form.limit));
    u = oracle::soft_cap(bounded_up, form.up_softcap).value + form.up_offset;
    argument = form.alpha * g;
    rounded_argument = form.alpha != 1 ? argument : 0;
    gate_ulps = std::isinf(form.gate_softcap) ? 0 : tolerance::swiglu_cap_ulps;
    up_ulps = std::isinf(form.up_softcap) ? 0 : tolerance::swiglu_cap_ulps;
    gradients = oracle::swiglu_gradients(in.gate, in.up, in.grad_out, form, in.row_scale);
    if (form.activation_dtype) round_activation();
  }

  // Rounds the activation: `rounded` becomes the middle of the results that its error permits.
  void round_activation() {
    const Real exact = activation_of();
    // The formula gives 0 if its exponential is infinite.
    const bool is_lost = form.activation == SWIGLU_ACTIVATION_SWIGLU && argument < -88.7L;
    const Real error = slack(exact, g, 1, 1, 1, gate_ulps) + (is_lost ? std::fabs(exact) : 0);
    // Finite activations stay finite.
    const Real most = oracle::max_finite(form.activation_dtype);
    const auto rounded_to = [&](Real value) {
      const Real held = std::isfinite(exact) ? std::fmax(-most, std::fmin(value, most)) : value;
      return oracle::nearest(form.activation_dtype, held);
    };
    const Real low = rounded_to(exact - error), high = rounded_to(exact + error);
    rounded = (low + high) / 2;
    doubt = (high - low) / 2;
    const Real others = in.grad_out * form.out_scale;
    const Real up_slope = std::fabs(in.up) > form.limit ? 0 : oracle::soft_cap(bounded_up, form.up_softcap).slope;
    gradients.up = others * in.row_scale * rounded * up_slope;
    gradients.row_scale = others * rounded * u;
  }

  Real activation_of() const {
    const Real activation = oracle::swiglu_activation(g, form).value;
    return limits_gate ? activation : std::fmin(activation, form.limit);
  }

  Real slack(Real size, Real gate, Real up, Real grad_out, Real row_scale, Real more_ulps) const {
    const Real brief = form.is_brief ? tolerance::swiglu_brief * std::fabs(size) : 0;
    return brief + tolerance::swiglu_slack(size, gate, up, grad_out, form.out_scale, rounded_argument, row_scale,
                                           arithmetic, more_ulps);
  }

  Exact out() const {
    const Real others = form.out_scale * u * in.row_scale;
    const Real value = form.activation_dtype ? rounded * others : oracle::swiglu(in.gate, in.up, form, in.row_scale);
    return {value,
            slack(value, g, u, 1, in.row_scale, gate_ulps + up_ulps) + up_rounding(value) + std::fabs(doubt * others)};
  }

  // The error of the capped up. It counts most if up_offset cancels most of up.
  Real up_rounding(Real value) const {
    if (up_ulps == 0 || u == 0) return up_ulps == 0 ? 0 : up_ulps * oracle::ulp(arithmetic, form.up_offset);
    const Real capped = std::fabs(u - form.up_offset);
    return std::fabs(value / u) *
           (up_ulps * oracle::ulp(arithmetic, capped) + (form.is_brief ? tolerance::swiglu_brief * capped : 0));
  }

  Exact grad_up() const {
    if (std::fabs(in.up) > form.limit) return {0, 0};
    const Real ulps = gate_ulps + tolerance::swiglu_cap_slope_ulps(bounded_up, form.up_softcap);
    const Real of_rounding = std::fabs(doubt * in.grad_out * form.out_scale * in.row_scale);
    return {gradients.up, slack(gradients.up, g, 1, in.grad_out, in.row_scale, ulps) + of_rounding};
  }

  Exact grad_gate() const {
    if (limits_gate && in.gate > form.limit) return {0, 0};
    const oracle::Slope weight = oracle::swiglu_weight(g, form), linear = oracle::soft_cap(g, form.gate_softcap);
    const Real others = form.out_scale * in.grad_out * u * in.row_scale;
    const Real larger_term =
        others * std::fmax(std::fabs(linear.slope * weight.value), std::fabs(linear.value * weight.slope));
    const Real value = others * (linear.slope * weight.value + linear.value * weight.slope);
    const Real size = std::fmax(std::fabs(value), std::fabs(larger_term));
    const bool is_geglu =
        form.activation == SWIGLU_ACTIVATION_GEGLU_ERF || form.activation == SWIGLU_ACTIVATION_GEGLU_TANH;
    const Real ulps =
        up_ulps + tolerance::swiglu_cap_slope_ulps(g, form.gate_softcap) + (is_geglu ? tolerance::geglu_slope_ulps : 0);
    const Real most = slack(size, factor_of_slope(), u, in.grad_out, in.row_scale, ulps) + up_rounding(size) +
                      (has_short_slope() ? std::fabs(others * linear.value) * tolerance::geglu_tanh_lost_slope : 0);
    // An activation that is as near to the limit as its error may be cut or not.
    const Real activation = linear.value * weight.value;
    const Real error = limits_gate ? 0 : slack(form.limit, g, 1, 1, 1, gate_ulps);
    if (!limits_gate && std::isfinite(form.limit) && std::fabs(activation - form.limit) <= error) {
      return {value / 2, std::fabs(value) / 2 + most};
    }
    if (!limits_gate && activation > form.limit) return {0, 0};
    return {value, most};
  }

  // Returns the factor of the weight's derivative, including the derivative of the weight's argument.
  Real factor_of_slope() const {
    if (form.activation != SWIGLU_ACTIVATION_GEGLU_TANH) return argument;
    return g * (1.6L + 0.22L * std::fmin(g * g, 120.0L));
  }

  bool has_short_slope() const {
    return form.activation == SWIGLU_ACTIVATION_GEGLU_TANH && arithmetic == ROPE_DTYPE_F32 && g > 8.87L;
  }

  oracle::SwigluForm form;
  rope_dtype_t arithmetic;
  Inputs in;
  bool limits_gate;
  Real g, bounded_up, u, argument, rounded_argument, gate_ulps, up_ulps;
  Real rounded = 0, doubt = 0;  // the rounded activation, and its permitted error
  oracle::SwigluGradients gradients;
};

// The gradient of one row's scale: its permitted error is 12 ulp of the sum of its terms' magnitudes plus the errors of
// the terms.
struct RowTotal {
  Real value = 0, magnitude = 0, slack = 0;
  Inputs first = {};

  void add(const Element &element) {
    const Real term = element.gradients.row_scale;
    if (magnitude == 0) first = element.in;
    value += term;
    magnitude += std::fabs(term);
    slack += element.slack(0, element.g, element.u, element.in.grad_out, 1, 0) +
             (tolerance::swiglu_argument_ulps(element.rounded_argument, element.arithmetic) + element.gate_ulps +
              element.up_ulps) *
                 oracle::ulp(element.arithmetic, term) +
             (element.form.is_brief ? tolerance::swiglu_brief * std::fabs(term) : 0) + element.up_rounding(term) +
             std::fabs(element.doubt * element.u * element.in.grad_out * element.form.out_scale);
  }

  // F64 sums are rounded once more if row_scale is F32.
  Exact grad_row_scale(rope_dtype_t arithmetic, rope_dtype_t dtype) const {
    const bool is_rounded = arithmetic == ROPE_DTYPE_F64 && dtype == ROPE_DTYPE_F32;
    const Real rounding = is_rounded ? oracle::ulp(ROPE_DTYPE_F32, value) / 2 : 0;
    return {value, 12 * oracle::ulp(arithmetic, magnitude) + slack + rounding};
  }
};

}  // namespace swiglu_element

#endif
