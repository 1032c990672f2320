// SPDX-License-Identifier: Apache-2.0
// tolerance.hpp - the permitted difference between an output and the exact value: the numeric contract as code
#ifndef ROPE_TESTS_SUPPORT_TOLERANCE_HPP
#define ROPE_TESTS_SUPPORT_TOLERANCE_HPP

#include <algorithm>
#include <cmath>

#include "oracle.hpp"

namespace tolerance {

using oracle::Real;

// The error permitted for the phase of a position, in radians.
inline Real phase(int64_t position, Real inv_freq) {
  return 2.3e-19L * std::fabs(static_cast<Real>(position)) * std::max(1.0L, std::fabs(inv_freq));
}

// The error permitted for cos and sin of computed angles.
inline Real rotation(int64_t position, Real inv_freq) {
  return 1.1e-7L + phase(position, inv_freq);
}

// The error permitted for cos and sin with data of this type, beyond the roundings included in rope_slack: the phase's
// error, the error of the F64 polynomials, the roundings of a scale and of its product, and the rounding of F64 tables
// for other data.
inline Real angle(rope_dtype_t dtype, Real phase_error, bool is_scaled) {
  const bool is_double = dtype == ROPE_DTYPE_F64;
  return phase_error + (is_double ? 4e-16L : 0) + (is_scaled ? (is_double ? 0x1p-52L : 0x1p-23L) : 0);
}

inline Real table(rope_dtype_t dtype, rope_dtype_t table_dtype) {
  return dtype != ROPE_DTYPE_F64 && table_dtype == ROPE_DTYPE_F64 ? 0x1p-24L : 0;
}

// Whether `actual` is acceptable: it must be a value within `slack` of `exact`, rounded to the type if that is narrower
// than the arithmetic. An infinity represents all values that round to it.
inline bool accepts(rope_dtype_t dtype, Real actual, Real exact, Real slack) {
  if (std::isnan(actual)) return false;
  Real low = exact - slack, high = exact + slack;
  const bool is_narrow = dtype == ROPE_DTYPE_F16 || dtype == ROPE_DTYPE_BF16;
  if (is_narrow || std::isinf(actual)) {
    low = oracle::nearest(dtype, low);
    high = oracle::nearest(dtype, high);
  }
  return low <= actual && actual <= high;
}

// The tolerance for one member of a rotated pair. `magnitude` is the length of the rotated pair, including
// attention_scale or the length of (cos, sin). The absolute term is the rounding of subnormal products.
inline Real rope_slack(rope_dtype_t dtype, Real magnitude, Real phase_error) {
  const bool is_narrow = dtype == ROPE_DTYPE_F16 || dtype == ROPE_DTYPE_BF16;
  const Real arithmetic = is_narrow ? 2e-7L * magnitude + 0x1p-148L : 3 * oracle::ulp(dtype, magnitude);
  return arithmetic + phase_error * magnitude;
}

// The error, in ulp of the arithmetic, caused by rounding SwiGLU's argument alpha * gate; 0 if alpha is 1.
inline Real swiglu_argument_ulps(Real argument, rope_dtype_t arithmetic = ROPE_DTYPE_F32) {
  return std::min(arithmetic == ROPE_DTYPE_F64 ? 746.0L : 104.0L, std::fabs(argument));
}

// The error, in ulp, that a soft cap causes in the value that uses it and, for the gradient, in its derivative: x * (1
// / cap) is rounded twice, and 1 / cosh^2 multiplies the relative error by up to 2 |x / cap|. An ulp may be half of the
// largest relative error of a rounding.
constexpr Real swiglu_cap_ulps = 4;

inline Real swiglu_cap_slope_ulps(Real x, Real cap) {
  return std::isinf(cap) ? 0 : swiglu_cap_ulps + 4 * std::fabs(x / cap);
}

// Additional error of the gradient of a gate with GeGLU.
constexpr Real geglu_slope_ulps = 4;

// For gates from 8.87 on: the part of the weight's slope that GeGLU by tanh may omit in fp32.
constexpr Real geglu_tanh_lost_slope = 0x1p-88L;

// Additional relative error of 16-bit data with GeGLU, soft caps or a limit of the activation.
constexpr Real swiglu_brief = 0x1p-15L;

// The tolerance for an output of SwiGLU. `size` is the exact value, or the larger of the two terms of grad_gate. The
// second part is the loss in a product of factors that is subnormal; `up`, `grad_out` and `row_scale` are 1 if they are
// no factors of the output. `argument` is alpha * gate if alpha is not 1: the exponential multiplies its rounding
// error. `more_ulps` are those of soft caps.
inline Real swiglu_slack(Real size, Real gate, Real up, Real grad_out, Real out_scale = 1, Real argument = 0,
                         Real row_scale = 1, rope_dtype_t arithmetic = ROPE_DTYPE_F32, Real more_ulps = 0) {
  Real subnormal = 4 * oracle::min_positive(arithmetic);
  for (Real factor : {gate, up, grad_out, out_scale, row_scale}) subnormal *= std::max(1.0L, std::fabs(factor));
  return (8 + more_ulps + swiglu_argument_ulps(argument, arithmetic)) * oracle::ulp(arithmetic, size) + subnormal;
}

}  // namespace tolerance

#endif
