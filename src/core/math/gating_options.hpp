// SPDX-License-Identifier: Apache-2.0
// gating_options.hpp - SwiGLU with other activations, soft caps, a limit of the activation, its rounding, and biases
//
//   gate ── + bias ── limit ──┬── soft cap ── linear ─┐
//                             └── weight ─────────────┴── activation ── limit ── rounding ─┐
//   up ──── + bias ── limit ───── soft cap ── + up_offset ───────────── up ────────────────┴── out
//
// weight is the factor, from 0 to 1, by which the activation multiplies the gate. If the gate is NaN, weight may be any
// number, because linear is NaN then. Each stage is a function of its own, so that a caller can test once, for many
// elements, which stages a form has.
//
// IsBrief selects shorter approximations for 16-bit data, whose kernels would otherwise be limited by instructions: the
// weights of GeGLU, and of SwiGLU with soft caps or a limit of the activation, are within 2^-16 of their value; on a
// GPU so are soft caps.
#pragma once

#include "core/math/gating.hpp"

namespace rope {

template <typename T>
constexpr bool kIsBrief = sizeof(T) == 2;

// Values of SWIGLU_ACTIVATION_.
enum class Activation : uint8_t {
  kSwiglu,
  kGegluErf,
  kGegluTanh,
  kReglu
};

// The form of a descriptor. Its numbers are fp32 values, except for F64 data.
struct GatingForm : Form<double> {
  bool has_options = false;  // some of the following fields are not 0
  Activation activation = Activation::kSwiglu;
  bool limits_activation = false;    // `limit` bounds the activation in place of gate; it always bounds up
  bool rounds_activation = false;    // to the type of the data, which has 16 bits
  bool rounds_before_codes = false;  // the result, to that type, before it becomes a code
  double gate_softcap = 0;           // 0: none
  double up_softcap = 0;
};

// GatingForm with numbers in the type of the arithmetic.
template <typename Real>
struct FormWithOptions : Form<Real> {
  Activation activation;
  bool rounds_activation;
  bool limits_activation;
  bool is_bounded;        // it has soft caps, or limits the activation
  Real gate_limit;        // infinity if there is none
  Real activation_limit;  // infinity if there is none
  Real lowest_gate;       // 0 for ReGLU, so that a gate of -infinity is not multiplied by 0
  Real gate_softcap;      // 0 if there is none
  Real inverse_of_gate_softcap;
  Real up_softcap;
  Real inverse_of_up_softcap;
};

template <typename Real>
ROPE_HOST_DEVICE FormWithOptions<Real> form_with_options_in(const GatingForm &given) {
  FormWithOptions<Real> form;
  static_cast<Form<Real> &>(form) = form_in<Real>(given);
  constexpr Real kNone = static_cast<Real>(INFINITY);
  const auto inverse_of = [](double cap) { return static_cast<Real>(cap != 0.0 ? 1.0 / cap : 0.0); };
  form.activation = given.activation;
  form.rounds_activation = given.rounds_activation;
  form.limits_activation = given.limits_activation;
  form.is_bounded = given.limits_activation || given.gate_softcap != 0.0 || given.up_softcap != 0.0;
  form.gate_limit = given.limits_activation ? kNone : form.limit;
  form.activation_limit = given.limits_activation ? form.limit : kNone;
  form.lowest_gate = given.activation == Activation::kReglu ? Real{0} : -kNone;
  form.gate_softcap = static_cast<Real>(given.gate_softcap);
  form.inverse_of_gate_softcap = inverse_of(given.gate_softcap);
  form.up_softcap = static_cast<Real>(given.up_softcap);
  form.inverse_of_up_softcap = inverse_of(given.up_softcap);
  return form;
}

// a * b + c rounded once. Where floats have no such instruction, it is computed in double.
ROPE_HOST_DEVICE float multiply_add_once(float a, float b, float c) {
#if defined(__CUDA_ARCH__) || defined(__FMA__) || defined(__ARM_FEATURE_FMA)
  return multiply_add(a, b, c);
#else
  return static_cast<float>(static_cast<double>(a) * static_cast<double>(b) + static_cast<double>(c));
#endif
}

ROPE_HOST_DEVICE double multiply_add_once(double a, double b, double c) {
  return fma(a, b, c);
}

// exp(-(x + rest)) * 2^power. reduce_exp_of_negative must accept x with this power; |rest| is below 2^-10.
ROPE_HOST_DEVICE float exp_of_negative_sum(float x, float rest, int power) {
#if defined(__CUDA_ARCH__)
  const float shift = 12583039.0f + static_cast<float>(power);  // as in reduce_exp_of_negative
  const float shifted = fmaf(x, -1.44269504f, shift);
  const float reduced = fmaf(x, -1.925963033e-8f, fmaf(x, -1.44269504f, shift - shifted));
  return approximate_power_of_two(fmaf(rest, -1.44269504f, reduced)) * float_of(bits_of(shifted) << 23);
#else
  const ReducedExp reduced = reduce_exp_of_negative(x, power);
  return (expm1_of_rest(reduced.rest - rest) + 1.0f) * reduced.scale;
#endif
}

// 1 / divisor for a divisor from 2^-126 to 2^126.
ROPE_HOST_DEVICE float reciprocal_of(float divisor) {
#if defined(__CUDA_ARCH__)
  return approximate_reciprocal(divisor);
#else
  return 1.0f / divisor;
#endif
}

#if defined(__CUDACC__) || defined(ROPE_SIMULATED_GPU)
constexpr float kBriefFactor = -0.721347520f;  // the exponent of 2 that is the root of exp(-1)

// For 16-bit data: (1 + exp(-y)) * 2^-26, with x * factor = y * kBriefFactor, and the square root of its second term,
// which is a normal number without range reduction. If x is NaN, both are arbitrary numbers.
struct BriefSigmoid {
  float root;
  float divisor;

  __device__ __forceinline__ BriefSigmoid(float x, float factor)
      : root(approximate_power_of_two(fminf(fmaf(x, factor, -13.0f), 62.02f))),  // at most sqrt(exp(104) * 2^-26)
        divisor(fmaf(root, root, 0x1p-26f)) {}
};

__device__ __forceinline__ Sigmoid<float> brief_sigmoid_of(float x, float factor) {
  const BriefSigmoid sigmoid(x, factor);
  const float reciprocal = approximate_reciprocal(sigmoid.divisor);
  // In this order no product is subnormal unless the complement is.
  return {reciprocal * 0x1p-26f, (sigmoid.root * reciprocal) * sigmoid.root};
}
#endif

// The value of a function and of its derivative.
template <typename Real>
struct Slope {
  Real value;
  Real slope;
};

// tanh and its derivative 1 / cosh^2 from exp(-2 |x|) - 1, which keeps its relative accuracy for small x.
ROPE_HOST_DEVICE Slope<float> tanh_of(float x) {
  const float magnitude = at_most(magnitude_of(x), 52.0f);  // exp(-104) < 2^-150
  const ReducedExp reduced = reduce_exp_of_negative(magnitude + magnitude, 63);
  const float part = expm1_of_rest(reduced.rest), scale = reduced.scale * 0x1p-63f;
  const float less_one = multiply_add(part, scale, scale - 1.0f);
  const float e = (part + 1.0f) * reduced.scale * 0x1p-63f, reciprocal = reciprocal_of(2.0f + less_one);
  return {copysignf(less_one * reciprocal, x), 4.0f * (e * reciprocal) * reciprocal};
}

ROPE_HOST_DEVICE Slope<double> tanh_of(double x) {
  const double e = exp_of_negative(magnitude_of(x + x)), reciprocal = 1.0 / (1.0 + e);
  return {tanh(x), 4.0 * (e * reciprocal) * reciprocal};
}

#if defined(__CUDACC__) || defined(ROPE_SIMULATED_GPU)
// The soft cap of x for data of 16 bits is bounded * dividend / divisor, within 9.3e-6 of it: minimax of tanh(y) / y up
// to y = 5.9, where tanh is 1.5e-5 from 1. The dividend is at most 7, the divisor 41.
struct BriefSoftCap {
  float bounded;
  float dividend;
  float divisor;

  __device__ __forceinline__ BriefSoftCap(float x, float cap, float inverse_of_cap)
      : bounded(clamp(x, -bound_of(cap), bound_of(cap))) {
    const float ratio = bounded * inverse_of_cap, square = ratio * ratio;
    dividend = fmaf(square, fmaf(square, 1.49357982e-3f, 0.114506386f), 1.0f);
    divisor = fmaf(square, fmaf(square, fmaf(square, 5.4938937e-5f, 1.74879748e-2f), 0.447783709f), 1.00000882f);
  }

  static __device__ __forceinline__ float bound_of(float cap) { return fminf(5.9f * cap, kMaxFloat); }
};
#endif

// cap * tanh(x / cap). For small x / cap the result is x itself, because a subnormal quotient would lose bits.
template <bool HasSlope, bool IsBrief, typename Real>
ROPE_HOST_DEVICE Slope<Real> soft_cap(Real x, Real cap, Real inverse_of_cap) {
#if defined(__CUDA_ARCH__)
  if constexpr (IsBrief && !HasSlope) {
    const BriefSoftCap capped(x, cap, inverse_of_cap);
    // The product is rounded by itself, whatever is added to it later.
    return {multiply_rounded(capped.bounded, capped.dividend * approximate_reciprocal(capped.divisor)), 0.0f};
  }
  if constexpr (IsBrief) {
    // With q = exp(-2 |x| / cap), the capped value is the cap times 1 - 2 q / (1 + q), which cancels for small x, and
    // the slope is 4 q / (1 + q)^2. Here q is scaled by 2^24 so that it is normal wherever the slope is; for t above
    // 150 it becomes 0.
    const float exponent = x * (inverse_of_cap * 2.88539008f), t = at_most(fabsf(exponent), 152.0f);
    const float q = approximate_power_of_two(24.0f - t);
    const float reciprocal = approximate_reciprocal(fmaf(q, 0x1p-24f, 1.0f)), share = q * reciprocal;
    const float large = copysignf(fmaf(share * 0x1p-23f, -cap, cap), x);
    const float small = x * fmaf(exponent * exponent, -0.0400377601f, 1.0f);
    return {t < 0.1154156f ? small : large, (share * reciprocal) * 0x1p-22f};
  }
#endif
  const Real ratio = x * inverse_of_cap;
  constexpr Real kLinear = sizeof(Real) == sizeof(float) ? Real{0x1p-13} : Real{0x1p-28};
  const Slope<Real> of_ratio = tanh_of(ratio);
  return {magnitude_of(ratio) < kLinear ? x : cap * of_ratio.value, of_ratio.slope};
}

template <typename Number>
struct Quotient {
  Number dividend;
  Number divisor;
};

// scale * exp(t^2 / 2) * erfc(t / sqrt(2)) / 2 for t from 0 to 14.6: minimax, relative error 4.3e-7 if IsBrief and 6e-9
// otherwise. Number may also be a vector type of the CPU.
template <bool IsBrief, typename Number>
ROPE_HOST_DEVICE Quotient<Number> scaled_erfc(Number t, float scale) {
  Number dividend, divisor;
  if (IsBrief) {
    dividend = multiply_add(t, scale * 1.70264628e-2f, scale * 0.119516242f);
    dividend = multiply_add(t, dividend, scale * 0.36201962f);
    dividend = multiply_add(t, dividend, scale * 0.5f);
    divisor = multiply_add(t, 4.26838211e-2f, 0.299384634f);
    divisor = multiply_add(t, divisor, 0.95347078f);
    divisor = multiply_add(t, divisor, 1.52191018f);
    divisor = multiply_add(t, divisor, 1.0f);
  } else {
    dividend = multiply_add(t, scale * 4.12380135e-3f, scale * 4.06836057e-2f);
    dividend = multiply_add(t, dividend, scale * 0.18338443f);
    dividend = multiply_add(t, dividend, scale * 0.438496221f);
    dividend = multiply_add(t, dividend, scale * 0.5f);
    divisor = multiply_add(t, 1.0336719e-2f, 0.101985055f);
    divisor = multiply_add(t, divisor, 0.469864794f);
    divisor = multiply_add(t, divisor, 1.20312286f);
    divisor = multiply_add(t, divisor, 1.67487743f);
    divisor = multiply_add(t, divisor, 1.0f);
  }
  return {dividend, divisor};
}

template <bool IsBrief>
ROPE_HOST_DEVICE float scaled_erfc_value(float t, float scale) {
  const Quotient<float> erfc = scaled_erfc<IsBrief>(t, scale);
  return erfc.dividend * reciprocal_of(erfc.divisor);
}

constexpr float kLargestErfGate = 14.5f;  // the weight of -14.5 is below 2^-150

// (1 + erf(x / sqrt(2))) / 2. For negative x it is exp(-x^2 / 2) times a quotient, which avoids cancellation. Unless
// IsBrief, the square is exact, because exp multiplies the square's rounding error.
template <bool IsBrief>
ROPE_HOST_DEVICE Slope<float> weight_of_erf(float x) {
  const float t = at_most(magnitude_of(x), kLargestErfGate);
#if defined(__CUDA_ARCH__)
  if constexpr (IsBrief) {
    // The square root of exp(-t^2 / 2), a normal number.
    const float root = approximate_power_of_two((t * t) * -0.360673760f);
    const float below = root * (root * scaled_erfc_value<true>(t, 1.0f));
    return {x < 0.0f ? below : 1.0f - below, 0.39894228f * (root * root)};
  }
#endif
  constexpr float kScale = 0x1p-63f;  // undoes the scale of e
  const float square = multiply_rounded(t, t);
  const float rest_of_square = IsBrief ? 0.0f : multiply_add_once(t, t, -square);
  const float e = exp_of_negative_sum(0.5f * square, 0.5f * rest_of_square, 63);
  const float below = multiply_rounded(e, scaled_erfc_value<IsBrief>(t, kScale));
  return {x < 0.0f ? below : 1.0f - below, 0.39894228f * kScale * e};
}

template <bool>
ROPE_HOST_DEVICE Slope<double> weight_of_erf(double x) {
  constexpr double kRootHalf = 0.7071067811865476, kRestOfRootHalf = -4.833646656726457e-17;
  const double bounded = clamp(x, -40.0, 40.0), scaled = bounded * kRootHalf;
  const double rest = fma(bounded, kRestOfRootHalf, fma(bounded, kRootHalf, -scaled));
  const double square = 0.5 * (bounded * bounded), rest_of_square = 0.5 * fma(bounded, bounded, -2.0 * square);
  const double e = exp_of_negative(square) * (1.0 - rest_of_square);
  // The derivative at -scaled corrects for `rest`, because erfc takes only the argument's first part.
  return {0.5 * fma(1.1283791670955126 * e, rest, erfc(-scaled)), 0.3989422804014327 * e};
}

// y = 2 * sqrt(2 / pi) * (x + 0.044715 * x^3) = x * (a + b * x^2) as a sum of two parts (one if IsBrief), because exp
// multiplies the rounding error of y. The first part of a is short enough for an exact difference.
template <typename Real>
struct TanhArgument {
  Real y;
  Real rest;
  Real slope;  // dy / dx
};

constexpr float kBriefTanhA = 1.59576912f, kBriefTanhB = 0x1.2444f2p-4f;
constexpr float kLowestTanhGate = -10.681296f, kHighestTanhGate = 8.8726870f;  // the gates with y = -104 and y = 64

template <bool IsBrief, typename Real>
ROPE_HOST_DEVICE TanhArgument<Real> tanh_argument(Real x) {
  constexpr bool kIsFloat = sizeof(Real) == sizeof(float);
  constexpr Real kA = kIsFloat ? Real{0x1.98845p+0} : Real(0x1.9884533d43660p+0);
  constexpr Real kRestOfA = kIsFloat ? Real(1.93077898681e-7) : Real(-3.430362161966579e-15);
  constexpr Real kB = kIsFloat ? Real{0x1.2444f2p-4} : Real(0x1.2444f2a4d8b4bp-4);
  constexpr Real kRestOfB = kIsFloat ? Real(2.39883239599e-9) : Real(-6.1751499e-19);
  const Real slope = multiply_add(Real{3} * kB, multiply_rounded(x, x), kA + kRestOfA);
  if constexpr (IsBrief) {
    return {x * multiply_add(multiply_rounded(x, x), kBriefTanhB, kBriefTanhA), Real{0}, slope};
  }
  const Real square = multiply_rounded(x, x), rest_of_square = multiply_add_once(x, x, -square);
  const Real factor = multiply_add_once(kB, square, kA), difference = factor - kA;
  const Real rest_of_factor = multiply_add_once(kB, square, -difference) +
                              multiply_add(kB, rest_of_square, multiply_add(kRestOfB, square, kRestOfA));
  const Real y = multiply_rounded(factor, x);
  return {y, multiply_add(rest_of_factor, x, multiply_add_once(factor, x, -y)), slope};
}

// (1 + tanh(y / 2)) / 2 = sigmoid(y), for y from -104 to 64 by the formula of sigmoid_value_of.
template <bool IsBrief>
ROPE_HOST_DEVICE Slope<float> weight_of_tanh(float x) {
  const float bounded = clamp(x, kLowestTanhGate, kHighestTanhGate);
  const TanhArgument<float> argument = tanh_argument<IsBrief>(bounded);
#if defined(__CUDA_ARCH__)
  if constexpr (IsBrief) {
    const Sigmoid<float> sigmoid = brief_sigmoid_of(argument.y, kBriefFactor);
    return {sigmoid.value, x > bounded ? 0.0f : (sigmoid.value * sigmoid.complement) * argument.slope};
  }
#endif
  const float e = exp_of_negative_sum(argument.y, argument.rest, -25), reciprocal = reciprocal_of(e + 0x1p-25f);
  const float value = reciprocal * 0x1p-25f;
  return {value, x > bounded ? 0.0f : value * (reciprocal * e) * argument.slope};
}

template <bool>
ROPE_HOST_DEVICE Slope<double> weight_of_tanh(double x) {
  const double bounded = clamp(x, -21.6, 21.6);
  const TanhArgument<double> argument = tanh_argument<false>(bounded);
  const Sigmoid<double> sigmoid = sigmoid_of(argument.y);
  const double change = sigmoid.value * sigmoid.complement * argument.rest;
  const double value = sigmoid.value + change, complement = sigmoid.complement - change;
  return {value, x > bounded ? 0.0 : value * complement * argument.slope};
}

// gate / (1 + exp(-argument)), with every operation rounded to float.
ROPE_HOST_DEVICE float rounded_silu(float gate, float argument) {
#if defined(__CUDA_ARCH__)
  return __fdiv_rn(gate, __fadd_rn(1.0f, expf(-argument)));
#else
  const float bounded = clamp(argument, -89.0f, 64.0f);  // exp(89) is infinite, exp(-64) is negligible beside 1
  const ReducedExp reduced = reduce_exp_of_negative(bounded, -1);
  return gate / (1.0f + (expm1_of_rest(reduced.rest) + 1.0f) * reduced.scale * 2.0f);
#endif
}

ROPE_HOST_DEVICE double rounded_silu(double gate, double argument) {
  return gate / (1.0 + exp(-argument));
}

// ---- The stages of an element ----

// A sum of finite numbers saturates at the largest number.
template <typename Real>
ROPE_HOST_DEVICE Real add_bias(Real value, Real bias) {
  return within_range(value + bias, value, bias);
}

// Clamps the gate to its limit, and for ReGLU to 0 from below.
template <Activation kActivation, typename Real>
ROPE_HOST_DEVICE Real bounded_gate(Real gate, const FormWithOptions<Real> &form) {
  const Real bounded = at_most(gate, form.gate_limit);
  return kActivation == Activation::kReglu ? at_least(bounded, Real{0}) : bounded;
}

// The weight of a bounded gate. Without HasSlope the slope is arbitrary.
template <Activation kActivation, bool HasSlope, bool IsBrief, typename Real>
ROPE_HOST_DEVICE Slope<Real> weight_of(Real gate, Real alpha) {
  if constexpr (kActivation == Activation::kGegluErf) {
    return weight_of_erf<IsBrief>(gate);
  } else if constexpr (kActivation == Activation::kGegluTanh) {
#if defined(__CUDA_ARCH__)
    // weight_of_tanh without its bounds, which only the slope needs.
    if constexpr (IsBrief && !HasSlope) {
      constexpr float kA = kBriefFactor * kBriefTanhA, kB = kBriefFactor * kBriefTanhB;
      return {brief_sigmoid_of(gate, fmaf(gate * gate, kB, kA)).value, 0.0f};
    }
#endif
    return weight_of_tanh<IsBrief>(gate);
  } else if constexpr (kActivation == Activation::kReglu) {
    // A negative gate becomes 0 in the linear factor.
    return {HasSlope && !(gate > Real{0}) ? Real{0} : Real{1}, Real{0}};
  } else {
#if defined(__CUDA_ARCH__)
    if constexpr (IsBrief) {
      const Sigmoid<float> sigmoid = brief_sigmoid_of(gate, kBriefFactor * alpha);
      return {sigmoid.value, alpha * (sigmoid.value * sigmoid.complement)};
    }
#endif
    if (!HasSlope) return {sigmoid_value_of(alpha * gate), Real{0}};
    const Sigmoid<Real> sigmoid = sigmoid_of(alpha * gate);
    return {sigmoid.value, alpha * (sigmoid.value * sigmoid.complement)};
  }
}

// activation = weight * linear. half_slope is half its derivative, which reaches 1.2; it is 0 where a limit cut the
// activation, and for ReGLU at 0.
template <typename Real>
struct Activated {
  Real weight;
  Real linear;
  Real half_slope;
};

// The activation of a gate that includes its bias, from the results of the other stages. HasSlope: as in weight_of.
template <bool HasSlope, typename Real>
ROPE_HOST_DEVICE Activated<Real> activate(Real gate, const Slope<Real> &weight, const Slope<Real> &linear,
                                          const FormWithOptions<Real> &form) {
  if (!HasSlope) return {weight.value, linear.value, Real{0}};
  const bool is_flat = gate > form.gate_limit || gate < form.lowest_gate;
  // An infinite linear factor would give NaN with the weight's slope of 0.
  const Real finite_linear = clamp(linear.value, -kMaxFinite<Real>, kMaxFinite<Real>);
  const Real half_slope = Real{0.5} * multiply_add(finite_linear, weight.slope, weight.value * linear.slope);
  return {weight.value, linear.value, is_flat ? Real{0} : half_slope};
}

// For forms that limit the activation.
template <typename Real>
ROPE_HOST_DEVICE Activated<Real> limit_activation(const Activated<Real> &activated, const FormWithOptions<Real> &form) {
  const bool is_cut = activated.weight * activated.linear > form.activation_limit;
  return is_cut ? Activated<Real>{Real{1}, form.activation_limit, Real{0}} : activated;
}

// The largest number of a 16-bit type.
template <typename T>
constexpr float kLargestOf = 65504.0f;
template <>
inline constexpr float kLargestOf<BFloat16> = 0x1.fep127f;

// Rounds the activation to T, a 16-bit type. A finite one stays finite, so that an up of 0 still gives 0: a gate of T
// can exceed T by its bias. The derivative is that of the unrounded activation. Not MayExceed: the gate is not larger
// than T's numbers, and so neither is its activation.
template <typename T, bool MayExceed = true>
ROPE_HOST_DEVICE Activated<float> round_activation(float gate, const Activated<float> &activated,
                                                   const Slope<float> &linear, const FormWithOptions<float> &form) {
  float value = activated.weight * activated.linear;
  if (form.activation == Activation::kSwiglu) {
    const float argument = form.alpha * bounded_gate<Activation::kSwiglu>(gate, form);
    value = at_most(rounded_silu(linear.value, argument), form.activation_limit);
  }
  if (MayExceed && magnitude_of(value) <= kMaxFloat) value = clamp(value, -kLargestOf<T>, kLargestOf<T>);
  return {1.0f, to_float(round_to<T>(value)), activated.half_slope};
}

// The factor that multiplies the activation: up after its limit, its soft cap and the offset. IsBounded:
// moves_within_range holds.
template <bool IsBounded = false, typename Real>
ROPE_HOST_DEVICE Real moved_up(Real capped_up, const FormWithOptions<Real> &form) {
  const Real moved = form.up_offset != Real{0} ? capped_up + form.up_offset : capped_up;
  return IsBounded ? moved : within_range(moved, capped_up, capped_up);
}

// A missing row_scale is 1. IsBounded, here and below: there is no row_scale, and moves_within_range holds.
template <bool IsBounded, typename Real>
ROPE_HOST_DEVICE Real gated(const Activated<Real> &activated, Real capped_up, const FormWithOptions<Real> &form,
                            Real row_scale) {
  const Real weighted_up = scale_by_row<!IsBounded>(moved_up<IsBounded>(capped_up, form), row_scale);
  return ((activated.weight * weighted_up) * activated.linear) * form.out_scale;
}

template <bool IsBounded, typename Real>
ROPE_HOST_DEVICE SwigluGradient<Real> gated_gradient(Real up, Real grad_out, const Activated<Real> &activated,
                                                     const Slope<Real> &capped_up, const FormWithOptions<Real> &form,
                                                     Real row_scale) {
  const Real weighted_up = scale_by_row<!IsBounded>(moved_up<IsBounded>(capped_up.value, form), row_scale);
  const Real half_gradient = (activated.half_slope * grad_out) * weighted_up;
  const Real up_slope = activated.weight * capped_up.slope;
  Real up_gradient = up_slope * grad_out;
  // The slope of a soft cap may exceed 1 by its error. Other slopes are 1, and weights are at most 1. The first test is
  // one for all elements.
  if (form.up_softcap != Real{0} && capped_up.slope > Real{1}) {
    up_gradient = within_range(up_gradient, grad_out, grad_out);
  }
  up_gradient *= scale_by_row<!IsBounded>(activated.linear, row_scale);
  return {(half_gradient + half_gradient) * form.out_scale,
          up > form.limit || up < -form.limit ? Real{0} : up_gradient * form.out_scale};
}

// The counterpart of half_row_term in gating.hpp.
template <typename Real>
ROPE_HOST_DEVICE Real gated_half_row_term(Real grad_out, const Activated<Real> &activated, Real capped_up,
                                          const FormWithOptions<Real> &form) {
  const Real up = moved_up(capped_up, form), factor = activated.weight * grad_out;
  const Real product = within_range(factor * up, factor, up);
  return Real{0.5} * within_range((product * activated.linear) * form.out_scale, product, activated.linear);
}

}  // namespace rope
