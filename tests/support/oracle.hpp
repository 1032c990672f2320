// SPDX-License-Identifier: Apache-2.0
// oracle.hpp - exact results: number formats, RoPE and SwiGLU in long double, directly from their formulas
#ifndef ROPE_TESTS_SUPPORT_ORACLE_HPP
#define ROPE_TESTS_SUPPORT_ORACLE_HPP

#include <rope/rope.h>

#include <cmath>
#include <cstdint>

namespace oracle {

using Real = long double;

int64_t element_size(rope_dtype_t dtype);
const char *dtype_name(rope_dtype_t dtype);
// Whether a type has 8-bit codes, for which values beyond the largest number saturate and NaN is 0x7f.
bool is_code(rope_dtype_t dtype);

// The largest finite value, the smallest normal and the smallest positive value of a floating type.
Real max_finite(rope_dtype_t dtype);
Real min_normal(rope_dtype_t dtype);
Real min_positive(rope_dtype_t dtype);

// The exact value at `element`.
Real decode(rope_dtype_t dtype, const void *element);

// The nearest value of the type, with ties to even; beyond the largest value, infinity.
Real nearest(rope_dtype_t dtype, Real value);

// a + b rounded once to F32 or F64, the type of both. nearest(a + b) rounds twice.
Real sum(rope_dtype_t dtype, Real a, Real b);

// Stores nearest(value).
void encode(rope_dtype_t dtype, Real value, void *element);

// The distance between neighbouring values of the type near `value`; below the smallest normals, the distance there.
Real ulp(rope_dtype_t dtype, Real value);

inline rope_style_t other_style(rope_style_t style) {
  return style == ROPE_STYLE_HALF ? ROPE_STYLE_INTERLEAVED : ROPE_STYLE_HALF;
}

// The channel, within the rotated window, of a pair's first (member 0) or second (1) channel. HALF has blocks of
// `block` channels.
inline int32_t channel_in_window(rope_style_t style, int32_t block, int pair, int member) {
  if (style == ROPE_STYLE_INTERLEAVED) return 2 * pair + member;
  const int32_t half = block / 2;
  return pair / half * block + pair % half + member * half;
}

struct Rotation {
  Real cos, sin;
};

struct Pair {
  Real x, y;
};

// theta^(-2 pair / rotary_dim), in radians per position.
Real frequency(double theta, int rotary_dim, int pair);

// cos and sin of position * inv_freq, within 1e-18 for angles below 2^62 radians.
Rotation rotation(int64_t position, Real inv_freq);

// cos and sin of an angle of any size in radians.
Rotation rotation_by_angle(Real radians);

// x' = x cos a - y sin a, y' = x sin a + y cos a, and the transpose.
Pair rotate(Pair pair, Rotation by);
Pair rotate_transposed(Pair pair, Rotation by);

// Rotates x' by a and y' by b.
Pair rotate(Pair pair, Rotation a, Rotation b);
Pair rotate_transposed(Pair pair, Rotation a, Rotation b);

struct SwigluGradients {
  Real gate, up;
  Real row_scale;  // the element's contribution to the gradient of its row_scale
};

Real sigmoid(Real gate);
Real swiglu(Real gate, Real up);
SwigluGradients swiglu_gradients(Real gate, Real up, Real grad_out);

// The members of swiglu_config_t, with defaults filled in.
struct SwigluForm {
  Real alpha = 1, limit = HUGE_VALL, up_offset = 0, out_scale = 1;
  Real gate_softcap = HUGE_VALL, up_softcap = HUGE_VALL;
  int32_t limit_rule = SWIGLU_LIMIT_GATE, activation = SWIGLU_ACTIVATION_SWIGLU;
  rope_dtype_t activation_dtype = 0;  // the type to which the activation is rounded; these functions ignore it; 0: none
  bool is_brief =
      false;  // 16-bit data with GeGLU, soft caps or a limit of the activation, for which the tolerance is larger
};

// The value of a function and of its derivative.
struct Slope {
  Real value, slope;
};

// cap * tanh(x / cap).
Slope soft_cap(Real x, Real cap);

// The factor by which the activation multiplies its linear factor.
Slope swiglu_weight(Real gate, const SwigluForm &form);

// The activation of a gate that is already clamped to its limit, before a limit of the activation itself.
Slope swiglu_activation(Real gate, const SwigluForm &form);

Real swiglu(Real gate, Real up, const SwigluForm &form, Real row_scale = 1);
SwigluGradients swiglu_gradients(Real gate, Real up, Real grad_out, const SwigluForm &form, Real row_scale = 1);

}  // namespace oracle

#endif
