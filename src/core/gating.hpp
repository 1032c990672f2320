// gating.hpp - SwiGLU of one element, forward and backward: the mathematics once, for host and device
//
// Factors are multiplied in an order in which finite inputs never meet 0 * infinity: sigmoid and its like, which are at
// most 1.1, come first.
//
// Real is float, and double for F64 data.
#pragma once

#include <math.h>
#include <stdint.h>

#include "core/float16.hpp"
#include "core/host_device.hpp"
#include "core/rotation.hpp"

namespace rope {

// exp(-t) for t >= 0, rounding to subnormals and to 0.
ROPE_HOST_DEVICE float exp_of_negative(float t) {
  const float bounded = t < 104.0f ? t : 104.0f;  // exp(-104) < 2^-150
#if defined(__CUDA_ARCH__)
  // 2^(-bounded * log2 e) with the product's rounding error put back: |product| reaches 150, where it would cost 75 ulp.
  const float product = bounded * -1.44269504f;
  const float rest = fmaf(bounded, -1.925963033e-8f, fmaf(bounded, -1.44269504f, -product));
  const float power = exp2f(product);
  return fmaf(power, rest * 0.693147182f, power);
#else
  // exp(-t) = 2^n * exp(r), |r| <= ln(2)/2. Adding 1.5 * 2^23 rounds to an integer, also where there is no instruction
  // for it, and leaves that integer in the low bits. The first part of ln 2 has 10 bits, so its product is exact.
  const float shifted = bounded * -1.44269504f + 12582912.0f;
  const float n = shifted - 12582912.0f;
  const float r = (-bounded - n * 0.693359375f) - n * -2.12194440e-4f;
  float p = 1.38145037e-3f;  // minimax of (exp(r) - 1 - r)/r^2, relative error of exp 3.1e-9
  p = p * r + 8.36877333e-3f;
  p = p * r + 4.16683928e-2f;
  p = p * r + 0.166665202f;
  p = p * r + 0.499999934f;
  p = (p * r) * r + r + 1.0f;
  // 2^n in two factors, because n reaches -150.
  const uint32_t power = bits_of(shifted) - 0x4b400000u;
  const uint32_t first = static_cast<uint32_t>(static_cast<int32_t>(power) >> 1);
  const uint32_t second = power - first;
  return p * float_of((first + 127u) << 23) * float_of((second + 127u) << 23);
#endif
}

ROPE_HOST_DEVICE double exp_of_negative(double t) {
  return exp(-t);
}

ROPE_HOST_DEVICE float divide_by_one_to_two(float numerator, float denominator) {
#if defined(__CUDA_ARCH__)
  return __fdividef(numerator, denominator);
#else
  return numerator / denominator;
#endif
}

ROPE_HOST_DEVICE double divide_by_one_to_two(double numerator, double denominator) {
  return numerator / denominator;
}

// a * b + c, fused or not as the device does it best, but the same in every kernel.
ROPE_HOST_DEVICE float multiply_add(float a, float b, float c) {
#if defined(__CUDA_ARCH__)
  return fmaf(a, b, c);
#else
  return a * b + c;
#endif
}

ROPE_HOST_DEVICE double multiply_add(double a, double b, double c) {
#if defined(__CUDA_ARCH__)
  return fma(a, b, c);
#else
  return a * b + c;
#endif
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
  Real complement;  // sigmoid(-gate), that is 1 - value, without the cancellation
};

template <typename Real>
ROPE_HOST_DEVICE Sigmoid<Real> sigmoid_of(Real gate) {
  const Real e = exp_of_negative(magnitude_of(gate));
  const Real large = divide_by_one_to_two(Real{1}, Real{1} + e);
  const Real small = divide_by_one_to_two(e, Real{1} + e);
  return {gate < Real{0} ? small : large, gate < Real{0} ? large : small};
}

// out = out_scale * g * sigmoid(alpha * g) * (u + up_offset) * row_scale, g = min(gate, limit), u = up within +-limit.
template <typename Real>
struct Form {
  Real alpha;
  Real limit;  // infinity: none
  Real up_offset;
  Real out_scale;
  bool is_plain;  // alpha 1, no limit, offset 0, scale 1: without a row_scale out reduces to gate * sigmoid(gate) * up
};

// As descriptors hold it: numbers of fp32, except for F64.
using GatingForm = Form<double>;

template <typename Real>
ROPE_HOST_DEVICE Form<Real> form_in(const GatingForm &form) {
  return {static_cast<Real>(form.alpha), static_cast<Real>(form.limit), static_cast<Real>(form.up_offset),
          static_cast<Real>(form.out_scale), form.is_plain};
}

constexpr float kLargestFloat = 3.40282347e38f;

template <typename Real>
constexpr Real kLargest = kLargestFloat;
template <>
constexpr double kLargest<double> = 1.7976931348623157e308;

// NaN stays NaN.
template <typename Real>
ROPE_HOST_DEVICE Real clamp(Real value, Real low, Real high) {
  const Real raised = value < low ? low : value;
  return raised > high ? high : raised;
}

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
template <>
ROPE_HOST_DEVICE float clamp(float value, float low, float high) {
  float raised, result;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(raised) : "f"(value), "f"(low));
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(raised), "f"(high));
  return result;
}
#endif

template <typename Real>
ROPE_HOST_DEVICE Real larger_magnitude(Real bound, Real value) {
  return magnitude_of(value) > bound ? magnitude_of(value) : bound;
}

// A product or sum of a and b that would overflow stops at the largest number, so that a factor of 0 still makes 0 of
// it. Where a or b is infinite it does not: the caller is to see that.
template <typename Real>
ROPE_HOST_DEVICE Real within_range(Real value, Real a, Real b) {
  const Real bound = larger_magnitude(larger_magnitude(kLargest<Real>, a), b);
  return clamp(value, -bound, bound);
}

// What a form makes of gate and up.
template <typename Real>
struct GatedInputs {
  Real gate;
  Real up;
  Sigmoid<Real> sigmoid;
  Real argument;  // alpha * gate
};

template <bool IsPlain, typename Real>
ROPE_HOST_DEVICE GatedInputs<Real> apply_form(Real gate, Real up, const Form<Real> &form) {
  if (IsPlain) return {gate, up, sigmoid_of(gate), gate};
  const Real bounded_gate = gate > form.limit ? form.limit : gate;
  const Real bounded_up = clamp(up, -form.limit, form.limit);
  // An infinite argument would meet the 0 that sigmoid makes of it.
  const Real argument = clamp(form.alpha * bounded_gate, -kLargest<Real>, kLargest<Real>);
  const Real moved_up = bounded_up + form.up_offset;
  return {bounded_gate, within_range(moved_up, bounded_up, bounded_up), sigmoid_of(argument), argument};
}

// A plain form is one without a row_scale.
template <bool IsPlain, typename Real>
ROPE_HOST_DEVICE Real scale_by_row(Real value, Real row_scale) {
  return IsPlain ? value : within_range(value * row_scale, value, row_scale);
}

template <bool IsPlain, typename Real>
ROPE_HOST_DEVICE Real swiglu(Real gate, Real up, const Form<Real> &form, Real row_scale = 1) {
  const GatedInputs<Real> in = apply_form<IsPlain>(gate, up, form);
  const Real out = (in.sigmoid.value * scale_by_row<IsPlain>(in.up, row_scale)) * in.gate;
  return IsPlain ? out : out * form.out_scale;
}

template <typename Real>
struct SwigluGradient {
  Real gate;
  Real up;
};

// The gradients are 0 where the limit cut gate or up.
template <bool IsPlain, typename Real>
ROPE_HOST_DEVICE SwigluGradient<Real> swiglu_gradient(Real gate, Real up, Real grad_out, const Form<Real> &form,
                                                      Real row_scale = 1) {
  const GatedInputs<Real> in = apply_form<IsPlain>(gate, up, form);
  // d (gate * sigmoid) / d gate, halved: it reaches 1.1, which times the largest grad_out would overflow before a small
  // up.
  const Real half_slope = Real{0.5} * (in.sigmoid.value * multiply_add(in.argument, in.sigmoid.complement, Real{1}));
  const Real half_gradient = (half_slope * grad_out) * scale_by_row<IsPlain>(in.up, row_scale);
  SwigluGradient<Real> gradient = {half_gradient + half_gradient,
                                   (in.sigmoid.value * grad_out) * scale_by_row<IsPlain>(in.gate, row_scale)};
  if (!IsPlain) {
    gradient.gate = gate > form.limit ? Real{0} : gradient.gate * form.out_scale;
    gradient.up = up > form.limit || up < -form.limit ? Real{0} : gradient.up * form.out_scale;
  }
  return gradient;
}

// Half of what an element adds to the gradient of its row_scale, at most half the largest number.
template <typename Real>
ROPE_HOST_DEVICE Real half_row_term(Real gate, Real up, Real grad_out, const Form<Real> &form) {
  const GatedInputs<Real> in = apply_form<false>(gate, up, form);
  const Real factor = in.sigmoid.value * grad_out;
  const Real product = within_range(factor * in.up, factor, in.up);
  return Real{0.5} * within_range((product * in.gate) * form.out_scale, product, in.gate);
}

// A sum of half terms, and the sum of what its additions rounded away (Knuth, "The Art of Computer Programming",
// volume 2, 4.2.2, theorem B). Both stop at half the largest number: finite terms never meet infinity - infinity, and
// what the first cannot hold the second takes. An infinite term stays.
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
    const Real bound = larger_magnitude(larger_magnitude(Real{0.5} * kLargest<Real>, a), b);
    return clamp(value, -bound, bound);
  }
};

}  // namespace rope
