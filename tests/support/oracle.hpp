// oracle.hpp - the exact answers: number formats, RoPE and SwiGLU in long double, straight from their formulas
#ifndef ROPE_TESTS_SUPPORT_ORACLE_HPP
#define ROPE_TESTS_SUPPORT_ORACLE_HPP

#include <rope/rope.h>

#include <cmath>
#include <cstdint>

namespace oracle {

using Real = long double;

int64_t element_size(rope_dtype_t dtype);
const char *dtype_name(rope_dtype_t dtype);
// Whether a type has codes of 8 bits: what is larger than the largest number becomes that one, and NaN is 0x7f.
bool is_code(rope_dtype_t dtype);

// The largest finite value, the smallest normal and the smallest positive value of a floating type.
Real max_finite(rope_dtype_t dtype);
Real min_normal(rope_dtype_t dtype);
Real min_positive(rope_dtype_t dtype);

// The value of the element at `element`, exactly.
Real decode(rope_dtype_t dtype, const void *element);

// The nearest value of the type, ties to even, infinity beyond the largest.
Real nearest(rope_dtype_t dtype, Real value);

// Stores nearest(value).
void encode(rope_dtype_t dtype, Real value, void *element);

// The distance between neighbours of the type around `value`; that of the smallest normals below them.
Real ulp(rope_dtype_t dtype, Real value);

inline rope_style_t other_style(rope_style_t style) {
  return style == ROPE_STYLE_HALF ? ROPE_STYLE_INTERLEAVED : ROPE_STYLE_HALF;
}

// Where the first (member 0) or the second channel (1) of a pair lies in the rotated window; those of HALF lie in blocks
// of so many channels.
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

// theta^(-2 pair / rotary_dim), radians per position.
Real frequency(double theta, int rotary_dim, int pair);

// cos and sin of position * inv_freq; right to 1e-18 while the angle stays below 2^62 radians.
Rotation rotation(int64_t position, Real inv_freq);

// cos and sin of radians of any size.
Rotation rotation_by_angle(Real radians);

// x' = x cos a - y sin a, y' = x sin a + y cos a, and the transpose of that.
Pair rotate(Pair pair, Rotation by);
Pair rotate_transposed(Pair pair, Rotation by);

// The same with x' by a and y' by b.
Pair rotate(Pair pair, Rotation a, Rotation b);
Pair rotate_transposed(Pair pair, Rotation a, Rotation b);

struct SwigluGradients {
  Real gate, up;
  Real row_scale;  // what the element adds to its row's
};

Real sigmoid(Real gate);
Real swiglu(Real gate, Real up);
SwigluGradients swiglu_gradients(Real gate, Real up, Real grad_out);

// The members of swiglu_config_t, with their defaults said out.
struct SwigluForm {
  Real alpha = 1, limit = HUGE_VALL, up_offset = 0, out_scale = 1;
  Real gate_softcap = HUGE_VALL, up_softcap = HUGE_VALL;
  int32_t limit_rule = SWIGLU_LIMIT_GATE, activation = SWIGLU_ACTIVATION_SWIGLU;
  rope_dtype_t activation_dtype = 0;  // that the activation is rounded to, which the functions here leave out; 0: none
  bool is_brief =
      false;  // data of 16 bits with GeGLU, soft caps or a limit of the activation, whose results may be further off
};

// A function, and its derivative.
struct Slope {
  Real value, slope;
};

// cap * tanh(x / cap).
Slope soft_cap(Real x, Real cap);

// What the activation multiplies its linear factor by.
Slope swiglu_weight(Real gate, const SwigluForm &form);

// The activation of a gate that its limit has cut already, before a limit of the activation itself.
Slope swiglu_activation(Real gate, const SwigluForm &form);

Real swiglu(Real gate, Real up, const SwigluForm &form, Real row_scale = 1);
SwigluGradients swiglu_gradients(Real gate, Real up, Real grad_out, const SwigluForm &form, Real row_scale = 1);

}  // namespace oracle

#endif
