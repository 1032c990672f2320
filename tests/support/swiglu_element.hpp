// swiglu_element.hpp - the exact outputs of one element of SwiGLU and how far from them the library's may be
#ifndef ROPE_TESTS_SUPPORT_SWIGLU_ELEMENT_HPP
#define ROPE_TESTS_SUPPORT_SWIGLU_ELEMENT_HPP

#include "oracle.hpp"
#include "tolerance.hpp"

namespace swiglu_element {

using oracle::Real;

struct Exact {
  Real value, slack;
};

// The form as the library reads it: its numbers in the type of the arithmetic.
inline oracle::SwigluForm form_of(rope_dtype_t arithmetic, double alpha, double limit, double up_offset,
                                  double out_scale) {
  const auto read = [&](double number) { return oracle::nearest(arithmetic, number); };
  oracle::SwigluForm form;
  if (alpha != 0) form.alpha = read(alpha);
  if (limit != 0) form.limit = read(limit);
  form.up_offset = read(up_offset);
  if (out_scale != 0) form.out_scale = read(out_scale);
  return form;
}

// What goes into one element.
struct Inputs {
  Real gate, up, grad_out, row_scale;
};

// An element, with what its tolerance depends on.
struct Element {
  Element(const Inputs &inputs, const oracle::SwigluForm &form, rope_dtype_t arithmetic)
      : form(form), arithmetic(arithmetic), in(inputs) {
    g = std::fmin(in.gate, form.limit);
    u = std::fmax(-form.limit, std::fmin(in.up, form.limit)) + form.up_offset;
    argument = form.alpha * g;
    rounded_argument = form.alpha != 1 ? argument : 0;
    gradients = oracle::swiglu_gradients(in.gate, in.up, in.grad_out, form, in.row_scale);
  }

  Real slack(Real size, Real gate, Real up, Real grad_out, Real row_scale) const {
    return tolerance::swiglu_slack(size, gate, up, grad_out, form.out_scale, rounded_argument, row_scale, arithmetic);
  }

  Exact out() const {
    const Real value = oracle::swiglu(in.gate, in.up, form, in.row_scale);
    return {value, slack(value, g, u, 1, in.row_scale)};
  }

  Exact grad_up() const {
    if (std::fabs(in.up) > form.limit) return {0, 0};
    return {gradients.up, slack(gradients.up, g, 1, in.grad_out, in.row_scale)};
  }

  Exact grad_gate() const {
    if (in.gate > form.limit) return {0, 0};
    const Real larger_term = form.out_scale * in.grad_out * u * in.row_scale * oracle::sigmoid(argument) *
                             std::fmax(1.0L, std::fabs(argument * oracle::sigmoid(-argument)));
    const Real size = std::fmax(std::fabs(gradients.gate), std::fabs(larger_term));
    return {gradients.gate, slack(size, argument, u, in.grad_out, in.row_scale)};
  }

  oracle::SwigluForm form;
  rope_dtype_t arithmetic;
  Inputs in;
  Real g, u, argument, rounded_argument;
  oracle::SwigluGradients gradients;
};

// The gradient of one row's scale: a sum within 12 ulp of its terms' magnitudes, and what the terms may be off on top.
struct RowTotal {
  Real value = 0, magnitude = 0, slack = 0;
  Inputs first = {};

  void add(const Element &element) {
    const Real term = element.gradients.row_scale;
    if (magnitude == 0) first = element.in;
    value += term;
    magnitude += std::fabs(term);
    slack += element.slack(0, element.g, element.u, element.in.grad_out, 1) +
             tolerance::swiglu_argument_ulps(element.rounded_argument, element.arithmetic) *
                 oracle::ulp(element.arithmetic, term);
  }

  // F64 sums are rounded once more where row_scale is F32.
  Exact grad_row_scale(rope_dtype_t arithmetic, rope_dtype_t dtype) const {
    const bool is_rounded = arithmetic == ROPE_DTYPE_F64 && dtype == ROPE_DTYPE_F32;
    const Real rounding = is_rounded ? oracle::ulp(ROPE_DTYPE_F32, value) / 2 : 0;
    return {value, 12 * oracle::ulp(arithmetic, magnitude) + slack + rounding};
  }
};

}  // namespace swiglu_element

#endif
