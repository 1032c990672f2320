// SPDX-License-Identifier: Apache-2.0
// gating.hpp - SwiGLU of one element, forward and backward: one implementation for host and device
//
// Factors are multiplied in an order that avoids 0 * infinity for finite inputs: bounded factors, such as the sigmoid
// (at most 1.1), come first.
//
// Real is float, or double for F64 data.
#pragma once

#include <math.h>
#include <stdint.h>

#include "core/math/float16.hpp"
#include "core/math/host_device.hpp"
#include "core/math/rotation.hpp"

namespace rope {

// a * b + c, fused where the device has an instruction for it. All kernels of a device and instruction set agree.
ROPE_HOST_DEVICE float multiply_add(float a, float b, float c) {
#if defined(__CUDA_ARCH__)
  return fmaf(a, b, c);
#elif defined(__FMA__) || defined(__ARM_FEATURE_FMA)
  return __builtin_fmaf(a, b, c);
#else
  return a * b + c;
#endif
}

ROPE_HOST_DEVICE double multiply_add(double a, double b, double c) {
#if defined(__CUDA_ARCH__)
  return fma(a, b, c);
#elif defined(__FMA__) || defined(__ARM_FEATURE_FMA)
  return __builtin_fma(a, b, c);
#else
  return a * b + c;
#endif
}

// exp(-x) * 2^power = exp(rest) * scale with |rest| <= ln(2)/2 and scale a power of two. -x / ln 2 + power must lie
// between -126 and 127. Adding 1.5 * 2^23 + 127 + power rounds to an integer without a rounding instruction and leaves
// n + 127 + power in the low bits, from where a shift moves it into the exponent. The first part of ln 2 has 10 bits,
// so its product is exact.
struct ReducedExp {
  float rest;
  float scale;
};

ROPE_HOST_DEVICE ReducedExp reduce_exp_of_negative(float x, int power) {
  const float shift = 12583039.0f + static_cast<float>(power);
  const float shifted = multiply_add(x, -1.44269504f, shift);
  const float n = shifted - shift;
  const float rest = multiply_add(n, 2.12194440e-4f, -multiply_add(n, 0.693359375f, x));
  return {rest, float_of(bits_of(shifted) << 23)};
}

// exp(rest) - 1; its relative error is at most that of exp.
ROPE_HOST_DEVICE float expm1_of_rest(float rest) {
  // Minimax polynomial of (exp(r) - 1 - r)/r^2; relative error of exp 3.1e-9. It is evaluated in two halves, which do
  // not depend on each other, to shorten the chain of dependent products.
  const float r = rest, square = r * r;
  const float low = multiply_add(r, 0.166665202f, 0.499999934f);
  const float high = multiply_add(square, 1.38145037e-3f, multiply_add(r, 8.36877333e-3f, 4.16683928e-2f));
  return multiply_add(square, multiply_add(square, high, low), r);
}

#if defined(ROPE_SIMULATED_GPU)

// The next two on a GPU that tests simulate.
ROPE_HOST float approximate_reciprocal(float value) {
  const float result = 1.0f / value;
  return fabsf(result) < 0x1p-126f ? 0.0f : result;
}

ROPE_HOST float approximate_power_of_two(float exponent) {
  const float result = exp2f(exponent);
  return result < 0x1p-126f ? 0.0f : result;
}

#elif defined(__CUDACC__)

// The approximations take one instruction each and are within 2 ulp if the result is normal.
__device__ __forceinline__ float approximate_reciprocal(float value) {
  float result;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(value));
  return result;
}

__device__ __forceinline__ float approximate_power_of_two(float exponent) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(exponent));
  return result;
}

#endif

#if defined(__CUDA_ARCH__)

// exp(-x) * 2^-25 for x from -104 to 64, where the result is finite and normal: 2^rest, |rest| <= 1/2, times a power of
// two.
__device__ __forceinline__ float small_exp_of_negative(float x) {
  constexpr float kShift = 12583039.0f - 25.0f;  // as in reduce_exp_of_negative
  const float shifted = fmaf(x, -1.44269504f, kShift);
  const float rest = fmaf(x, -1.925963033e-8f, fmaf(x, -1.44269504f, kShift - shifted));
  return approximate_power_of_two(rest) * float_of(bits_of(shifted) << 23);
}

#else

// exp(-t) for t >= 0. The result may be subnormal or 0.
ROPE_HOST float exp_of_negative(float t) {
  const float bounded = t < 104.0f ? t : 104.0f;                   // exp(-104) < 2^-150
  const ReducedExp reduced = reduce_exp_of_negative(bounded, 63);  // 2^-150 does not fit the exponent
  return (expm1_of_rest(reduced.rest) + 1.0f) * reduced.scale * 0x1p-63f;
}

#endif

ROPE_HOST_DEVICE double exp_of_negative(double t) {
  return exp(-t);
}

ROPE_HOST_DEVICE float magnitude_of(float value) {
  return fabsf(value);
}

ROPE_HOST_DEVICE double magnitude_of(double value) {
  return fabs(value);
}

template <typename Real>
struct Sigmoid {
  Real value;       // sigmoid(gate)
  Real complement;  // sigmoid(-gate) = 1 - value, without cancellation
};

template <typename Real>
ROPE_HOST_DEVICE Sigmoid<Real> sigmoid_of(Real gate) {
  const Real e = exp_of_negative(magnitude_of(gate)), numerator = gate < Real{0} ? e : Real{1};
  return {numerator / (Real{1} + e), (gate < Real{0} ? Real{1} : e) / (Real{1} + e)};
}

#if defined(__CUDA_ARCH__)
// Computed as 2^-25 / (exp(-x) * 2^-25 + 2^-25). The largest error over all x is 3.9 ulp (sm_90). It needs half the
// instructions of the formula with magnitudes: 66.9 instead of 73.4 us for gpt-oss' form, and 0.97 instead of 1.24 us
// for 8 x 14336 with programmatic launch.
template <>
ROPE_HOST_DEVICE Sigmoid<float> sigmoid_of(float gate) {
  // NaN becomes the lower bound.
  const float bounded = fminf(fmaxf(gate, -104.0f), 64.0f), e = small_exp_of_negative(bounded);
  const float reciprocal = approximate_reciprocal(e + 0x1p-25f);
  return {reciprocal * 0x1p-25f, gate > bounded ? 0.0f : reciprocal * e};
}
#endif

// sigmoid(x) alone, by a formula that holds for both signs. For NaN the result is some number of at most 1.
ROPE_HOST_DEVICE float sigmoid_value_of(float x) {
#if defined(__CUDA_ARCH__)
  return sigmoid_of(x).value;
#else
  // The bounds are applied to the bits as integers, for which NaN is no special case and compilers emit no branch. As
  // unsigned numbers, negative floats follow all others and grow with their magnitude; as signed numbers they precede
  // them. exp(104) is finite only with the factor 2^-25, and exp(-64) is negligible beside 1.
  const uint32_t from_below = bits_of(x) < 0xc2d00000u ? bits_of(x) : 0xc2d00000u;  // -104
  const int32_t from_above = static_cast<int32_t>(from_below);
  const uint32_t bounded = static_cast<uint32_t>(from_above < 0x42800000 ? from_above : 0x42800000);  // 64
  const ReducedExp reduced = reduce_exp_of_negative(float_of(bounded), -25);
  // A minimax polynomial one degree lower: relative error of exp 1.1e-7. The error of swiglu rises from 3.2 to below 5
  // ulp (8 are allowed), and its time falls by a tenth.
  const float r = reduced.rest;
  float exp_of_r = multiply_add(r, 8.31252e-3f, 4.18901568e-2f);
  exp_of_r = multiply_add(r, exp_of_r, 0.166671146f);
  exp_of_r = multiply_add(r, exp_of_r, 0.499992315f);
  exp_of_r = multiply_add(r, multiply_add(r, exp_of_r, 1.0f), 1.0f);
  return 0x1p-25f / multiply_add(exp_of_r, reduced.scale, 0x1p-25f);
#endif
}

ROPE_HOST_DEVICE double sigmoid_value_of(double x) {
  return sigmoid_of(x).value;
}

// out = out_scale * g * sigmoid(alpha * g) * (u + up_offset) * row_scale, where g = min(gate, limit) and u is up
// clamped to +-limit.
template <typename Real>
struct Form {
  Real alpha;
  Real limit;  // infinity if there is none
  Real up_offset;
  Real out_scale;
  bool is_plain;  // alpha 1, no limit, offset 0, scale 1: without a row_scale, out = gate * sigmoid(gate) * up
};

template <typename Real>
ROPE_HOST_DEVICE Form<Real> form_in(const Form<double> &form) {
  return {static_cast<Real>(form.alpha), static_cast<Real>(form.limit), static_cast<Real>(form.up_offset),
          static_cast<Real>(form.out_scale), form.is_plain};
}

constexpr float kMaxFloat = 3.40282347e38f;

template <typename Real>
constexpr Real kMaxFinite = kMaxFloat;
template <>
inline constexpr double kMaxFinite<double> = 1.7976931348623157e308;

// NaN stays NaN.
template <typename Real>
ROPE_HOST_DEVICE Real clamp(Real value, Real low, Real high) {
  const Real raised = value < low ? low : value;
  return raised > high ? high : raised;
}

template <typename Real>
ROPE_HOST_DEVICE Real at_most(Real value, Real high) {
  return value > high ? high : value;
}

template <typename Real>
ROPE_HOST_DEVICE Real at_least(Real value, Real low) {
  return value < low ? low : value;
}

// NaN becomes the bound.
template <typename Real>
ROPE_HOST_DEVICE Real larger_magnitude(Real bound, Real value) {
  return magnitude_of(value) > bound ? magnitude_of(value) : bound;
}

// fminf and fmaxf take one instruction each, a comparison and a selection two. Non-plain forms are limited almost as
// much by instructions as by memory.
#if defined(__CUDA_ARCH__)
template <>
ROPE_HOST_DEVICE float larger_magnitude(float bound, float value) {
  return fmaxf(bound, fabsf(value));
}
#endif

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
template <>
ROPE_HOST_DEVICE float at_most(float value, float high) {
  float result;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(value), "f"(high));
  return result;
}

template <>
ROPE_HOST_DEVICE float at_least(float value, float low) {
  float result;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(value), "f"(low));
  return result;
}

template <>
ROPE_HOST_DEVICE float clamp(float value, float low, float high) {
  return at_most(at_least(value, low), high);
}
#endif

// The product or sum of a and b saturates at the largest number instead of overflowing, so that a later factor of 0
// still gives 0. The caller handles infinite a and b, which do not saturate.
template <typename Real>
ROPE_HOST_DEVICE Real within_range(Real value, Real a, Real b) {
  const Real bound = larger_magnitude(larger_magnitude(kMaxFinite<Real>, b), a);
  return clamp(value, -bound, bound);
}

// The parts into which a form splits gate and up.
template <typename Real>
struct GatedInputs {
  Real gate;
  Real up;
  Real argument;  // alpha * gate, possibly infinite
};

// Whether up + up_offset is finite for every finite up.
template <typename Real>
ROPE_HOST_DEVICE bool moves_within_range(const Form<Real> &form) {
  return form.up_offset == Real{0} || form.limit + magnitude_of(form.up_offset) <= kMaxFinite<Real>;
}

template <bool IsPlain, bool MovesWithinRange = false, typename Real>
ROPE_HOST_DEVICE GatedInputs<Real> apply_form(Real gate, Real up, const Form<Real> &form) {
  if (IsPlain) return {gate, up, gate};
  const Real bounded_gate = at_most(gate, form.limit);
  const Real bounded_up = clamp(up, -form.limit, form.limit);
  const Real moved_up = bounded_up + form.up_offset;
  return {bounded_gate, MovesWithinRange ? moved_up : within_range(moved_up, bounded_up, bounded_up),
          form.alpha * bounded_gate};
}

template <bool HasRowScale, typename Real>
ROPE_HOST_DEVICE Real scale_by_row(Real value, Real row_scale) {
  return HasRowScale ? within_range(value * row_scale, value, row_scale) : value;
}

// IsPlain: the form is plain and there is no row_scale. For other forms a missing row_scale is 1. IsBounded: there is
// no row_scale, and moves_within_range holds.
template <bool IsPlain, bool IsBounded = false, typename Real>
ROPE_HOST_DEVICE Real swiglu(Real gate, Real up, const Form<Real> &form, Real row_scale = 1) {
  const GatedInputs<Real> in = apply_form<IsPlain, IsBounded>(gate, up, form);
  const Real weighted_up = scale_by_row<(!IsPlain && !IsBounded)>(in.up, row_scale);
  const Real out = (sigmoid_value_of(in.argument) * weighted_up) * in.gate;
  return IsPlain ? out : out * form.out_scale;
}

template <typename Real>
struct SwigluGradient {
  Real gate;
  Real up;
};

// A gradient is 0 where the limit cut off its input.
template <bool IsPlain, typename Real>
ROPE_HOST_DEVICE SwigluGradient<Real> swiglu_gradient(Real gate, Real up, Real grad_out, const Form<Real> &form,
                                                      Real row_scale = 1) {
  const GatedInputs<Real> in = apply_form<IsPlain>(gate, up, form);
  // Otherwise an infinite argument would be multiplied by a sigmoid of 0.
  const Real argument = IsPlain ? in.argument : clamp(in.argument, -kMaxFinite<Real>, kMaxFinite<Real>);
  const Sigmoid<Real> sigmoid = sigmoid_of(argument);
  // Half of d (gate * sigmoid) / d gate. The whole reaches 1.1, and its product with the largest grad_out would
  // overflow before it meets a small up.
  const Real half_slope = Real{0.5} * (sigmoid.value * multiply_add(argument, sigmoid.complement, Real{1}));
  const Real half_gradient = (half_slope * grad_out) * scale_by_row<!IsPlain>(in.up, row_scale);
  SwigluGradient<Real> gradient = {half_gradient + half_gradient,
                                   (sigmoid.value * grad_out) * scale_by_row<!IsPlain>(in.gate, row_scale)};
  if (!IsPlain) {
    gradient.gate = gate > form.limit ? Real{0} : gradient.gate * form.out_scale;
    gradient.up = up > form.limit || up < -form.limit ? Real{0} : gradient.up * form.out_scale;
  }
  return gradient;
}

// Half of an element's contribution to the gradient of its row_scale; at most half the largest number.
template <typename Real>
ROPE_HOST_DEVICE Real half_row_term(Real gate, Real up, Real grad_out, const Form<Real> &form) {
  const GatedInputs<Real> in = apply_form<false>(gate, up, form);
  const Real factor = sigmoid_value_of(in.argument) * grad_out;
  const Real product = within_range(factor * in.up, factor, in.up);
  return Real{0.5} * within_range((product * in.gate) * form.out_scale, product, in.gate);
}

// A sum of halved terms, and the sum of the rounding errors of its additions (Knuth, "The Art of Computer Programming",
// volume 2, 4.2.2, theorem B). Both saturate at half the largest number, so that finite terms never lead to infinity -
// infinity, and the second sum takes up what exceeds the first. An infinite term remains infinite.
template <typename Real>
struct RowSum {
  Real half;
  Real rest;

  ROPE_HOST_DEVICE void add(Real half_term) {
    const Real sum = within_half(add_rounded(half, half_term), Real{0}, Real{0});
    const Real added = add_rounded(sum, -half);
    const Real lost = add_rounded(add_rounded(half, -add_rounded(sum, -added)), add_rounded(half_term, -added));
    half = sum;
    rest = within_half(add_rounded(rest, lost), rest, lost);
  }

  ROPE_HOST_DEVICE void add(const RowSum &other) {
    add(other.half);
    rest = within_half(add_rounded(rest, other.rest), rest, other.rest);
  }

  ROPE_HOST_DEVICE Real total() const { return Real{2} * add_rounded(half, rest); }

  static ROPE_HOST_DEVICE Real within_half(Real value, Real a, Real b) {
    const Real bound = larger_magnitude(larger_magnitude(Real{0.5} * kMaxFinite<Real>, a), b);
    return clamp(value, -bound, bound);
  }
};

}  // namespace rope
