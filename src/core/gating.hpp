// gating.hpp - SwiGLU of one element, forward and backward: the mathematics once, for host and device
//
// Factors are multiplied in an order in which finite inputs never meet 0 * infinity: sigmoid and its like, which are at
// most 1.1, come first.
#pragma once

#include <math.h>
#include <stdint.h>

#include "core/float16.hpp"
#include "core/host_device.hpp"

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

ROPE_HOST_DEVICE float divide_by_one_to_two(float numerator, float denominator) {
#if defined(__CUDA_ARCH__)
  return __fdividef(numerator, denominator);
#else
  return numerator / denominator;
#endif
}

// a * b + c, fused or not as the device does it best, but the same in every kernel.
ROPE_HOST_DEVICE float multiply_add(float a, float b, float c) {
#if defined(__CUDA_ARCH__)
  return fmaf(a, b, c);
#else
  return a * b + c;
#endif
}

struct Sigmoid {
  float value;       // sigmoid(gate)
  float complement;  // sigmoid(-gate), that is 1 - value, without the cancellation
};

ROPE_HOST_DEVICE Sigmoid sigmoid_of(float gate) {
  const float e = exp_of_negative(fabsf(gate));
  const float large = divide_by_one_to_two(1.0f, 1.0f + e);
  const float small = divide_by_one_to_two(e, 1.0f + e);
  return {gate < 0.0f ? small : large, gate < 0.0f ? large : small};
}

// out = out_scale * g * sigmoid(alpha * g) * (u + up_offset), g = min(gate, limit), u = up within +-limit.
struct GatingForm {
  float alpha;
  float limit;  // infinity: none
  float up_offset;
  float out_scale;
  bool is_plain;  // alpha 1, no limit, offset 0, scale 1: everything below reduces to gate * sigmoid(gate) * up
};

constexpr float kLargestFloat = 3.40282347e38f;

// NaN stays NaN.
ROPE_HOST_DEVICE float clamp(float value, float low, float high) {
  const float raised = value < low ? low : value;
  return raised > high ? high : raised;
}

// What a form makes of gate and up. Products and sums that would overflow stop at the largest number, so that a sigmoid of
// 0 still makes 0 of them.
struct GatedInputs {
  float gate;
  float up;
  Sigmoid sigmoid;
  float argument;  // alpha * gate
};

template <bool IsPlain>
ROPE_HOST_DEVICE GatedInputs apply_form(float gate, float up, const GatingForm &form) {
  if (IsPlain) return {gate, up, sigmoid_of(gate), gate};
  const float bounded_gate = gate > form.limit ? form.limit : gate;
  const float bounded_up = clamp(up, -form.limit, form.limit);
  const float argument = clamp(form.alpha * bounded_gate, -kLargestFloat, kLargestFloat);
  return {bounded_gate, clamp(bounded_up + form.up_offset, -kLargestFloat, kLargestFloat), sigmoid_of(argument),
          argument};
}

template <bool IsPlain>
ROPE_HOST_DEVICE float swiglu(float gate, float up, const GatingForm &form) {
  const GatedInputs in = apply_form<IsPlain>(gate, up, form);
  const float out = (in.sigmoid.value * in.up) * in.gate;
  return IsPlain ? out : out * form.out_scale;
}

struct SwigluGradient {
  float gate;
  float up;
};

// The gradients are 0 where the limit cut gate or up.
template <bool IsPlain>
ROPE_HOST_DEVICE SwigluGradient swiglu_gradient(float gate, float up, float grad_out, const GatingForm &form) {
  const GatedInputs in = apply_form<IsPlain>(gate, up, form);
  // d (gate * sigmoid) / d gate, halved: it reaches 1.1, which times the largest grad_out would overflow before a small
  // up.
  const float half_slope = 0.5f * (in.sigmoid.value * multiply_add(in.argument, in.sigmoid.complement, 1.0f));
  const float half_gradient = (half_slope * grad_out) * in.up;
  SwigluGradient gradient = {half_gradient + half_gradient, (in.sigmoid.value * grad_out) * in.gate};
  if (!IsPlain) {
    gradient.gate = gate > form.limit ? 0.0f : gradient.gate * form.out_scale;
    gradient.up = up > form.limit || up < -form.limit ? 0.0f : gradient.up * form.out_scale;
  }
  return gradient;
}

}  // namespace rope
