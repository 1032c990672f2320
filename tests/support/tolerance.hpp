// tolerance.hpp - how far an output may be from the exact value: the numeric contract as code
#ifndef ROPE_TESTS_SUPPORT_TOLERANCE_HPP
#define ROPE_TESTS_SUPPORT_TOLERANCE_HPP

#include <algorithm>
#include <cmath>

#include "oracle.hpp"

namespace tolerance {

using oracle::Real;

// What the phase of a position may be wrong by, in radians.
inline Real phase(int64_t position, Real inv_freq) {
  return 2.3e-19L * std::fabs(static_cast<Real>(position)) * std::max(1.0L, std::fabs(inv_freq));
}

// cos and sin of computed angles.
inline Real rotation(int64_t position, Real inv_freq) {
  return 1.1e-7L + phase(position, inv_freq);
}

// Whether `actual` may stand for a value that fp32 arithmetic got to within `slack` of `exact`, and that was rounded to
// the type where this is narrower than fp32. An infinity stands for everything that rounds to it.
inline bool accepts(rope_dtype_t dtype, Real actual, Real exact, Real slack) {
  if (std::isnan(actual)) return false;
  Real low = exact - slack, high = exact + slack;
  if (dtype != ROPE_DTYPE_F32 || std::isinf(actual)) {
    low = oracle::nearest(dtype, low);
    high = oracle::nearest(dtype, high);
  }
  return low <= actual && actual <= high;
}

// One member of a rotated pair. `magnitude` is the length of the rotated pair, that is, with attention_scale or the
// length of (cos, sin) in it. The absolute term is the rounding of subnormal products.
inline Real rope_slack(rope_dtype_t dtype, Real magnitude, Real phase_error) {
  const Real arithmetic =
      dtype == ROPE_DTYPE_F32 ? 3 * oracle::ulp(ROPE_DTYPE_F32, magnitude) : 2e-7L * magnitude + 0x1p-148L;
  return arithmetic + phase_error * magnitude;
}

// An output of SwiGLU, with `size` the exact value, or the larger of the two terms of grad_gate. The second part is what
// a product of some factors may lose by being subnormal; `up` and `grad_out` are 1 where they are no factors. `argument`
// is alpha * gate where alpha is not 1: its rounding, which the exponential multiplies.
inline Real swiglu_slack(Real size, Real gate, Real up, Real grad_out, Real out_scale = 1, Real argument = 0) {
  const Real ulps = 8 + std::min(104.0L, std::fabs(argument));
  return ulps * oracle::ulp(ROPE_DTYPE_F32, size) +
         0x1p-147L * std::max(1.0L, std::fabs(gate)) * std::max(1.0L, std::fabs(up)) *
             std::max(1.0L, std::fabs(grad_out)) * std::max(1.0L, std::fabs(out_scale));
}

}  // namespace tolerance

#endif
