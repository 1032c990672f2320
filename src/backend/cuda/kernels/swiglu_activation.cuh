// SPDX-License-Identifier: Apache-2.0
// swiglu_activation.cuh - gating_options.hpp for a vector of a thread
#pragma once

#include "backend/cuda/kernels/swiglu_params.hpp"
#include "backend/cuda/kernels/vector.cuh"
#include "core/math/gating_options.hpp"

namespace rope {

// The activation of a formula other than kOptions, which may have any.
template <SwigluFormula kFormula>
constexpr Activation kActivationOf = kFormula == SwigluFormula::kGegluErf    ? Activation::kGegluErf
                                     : kFormula == SwigluFormula::kGegluTanh ? Activation::kGegluTanh
                                     : kFormula == SwigluFormula::kReglu     ? Activation::kReglu
                                                                             : Activation::kSwiglu;

// Whether a formula may have soft caps or a limit of the activation. Both bound the product.
template <SwigluFormula kFormula>
constexpr bool kMayHaveSoftcaps = kFormula == SwigluFormula::kSoftcaps || kFormula == SwigluFormula::kOptions;

template <SwigluFormula kFormula>
constexpr bool kMayHaveBiases = kFormula == SwigluFormula::kBiases || kFormula == SwigluFormula::kOptions;

// The activated gates and the ups of a vector's elements, in registers.
template <typename Real, int V>
struct StagedVector {
  Activated<Real> activated[V];
  Slope<Real> up[V];
};

template <typename T, Activation kActivation, bool HasSlope, bool IsBrief = kIsBrief<T>, typename Real, int V>
__device__ __forceinline__ void weigh_vector(const FormWithOptions<Real> &form, Slope<Real> (&weight)[V],
                                             Slope<Real> (&linear)[V]) {
#pragma unroll
  for (int i = 0; i < V; ++i) {
    if (kActivation == Activation::kReglu) linear[i].value = at_least(linear[i].value, Real{0});
    weight[i] = weight_of<kActivation, HasSlope, IsBrief>(linear[i].value, form.alpha);
  }
}

// Returns gate * weight_of_erf(gate) for data of 16 bits, in fewer instructions. NaN stays NaN; -infinity gives 0.
__device__ __forceinline__ float brief_gelu_of(float gate) {
  const float t = fminf(fabsf(gate), kLargestErfGate);
  // exp(-t^2 / 2) * 2^26, which is normal.
  const float e = approximate_power_of_two(fmaf(t * t, -0.721347520f, 26.0f));
  return fmaf(-t, e * scaled_erfc_value<true>(t, 0x1p-26f), at_least(gate, 0.0f));
}

// Returns sigmoid(alpha * gate) * soft_cap(gate) for data of 16 bits, with one reciprocal for both. The reciprocal of a
// product above 2^126 becomes 0, which loses less than 2^-148 of the gate. NaN stays NaN.
__device__ __forceinline__ float brief_capped_silu_of(float gate, const FormWithOptions<float> &form) {
  const BriefSigmoid sigmoid(gate, kBriefFactor * form.alpha);
  const BriefSoftCap capped(gate, form.gate_softcap, form.inverse_of_gate_softcap);
  const float reciprocal = approximate_reciprocal(sigmoid.divisor * capped.divisor);
  return ((capped.dividend * reciprocal) * 0x1p-26f) * capped.bounded;
}

// Activates gates within their limit, forward, for data of 16 bits: GeGLU by erf, and SwiGLU with soft caps or a limit
// of the activation. The result is the linear factor, with a weight of 1.
template <SwigluFormula kFormula, int V>
__device__ __forceinline__ void activate_briefly(const FormWithOptions<float> &form, const Slope<float> (&linear)[V],
                                                 Activated<float> (&activated)[V]) {
  if (kFormula == SwigluFormula::kSoftcaps && form.gate_softcap == 0.0f) {
    const float factor = kBriefFactor * form.alpha;
#pragma unroll
    for (int i = 0; i < V; ++i) {
      activated[i] = {1.0f, brief_sigmoid_of(linear[i].value, factor).value * linear[i].value, 0.0f};
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < V; ++i) {
    const float gate = linear[i].value;
    activated[i] = {1.0f, kFormula == SwigluFormula::kSoftcaps ? brief_capped_silu_of(gate, form) : brief_gelu_of(gate),
                    0.0f};
  }
}

// Activates gates within their limit, for any data and formula, with slopes if HasSlope. `linear` becomes the factor of
// the product. A kernel of all options gives each form the bits of the form's own kernel.
template <SwigluFormula kFormula, typename T, bool HasSlope, int V>
__device__ __forceinline__ void activate_gates(const RealOf<T> (&gate)[V], const FormWithOptions<RealOf<T>> &form,
                                               Slope<RealOf<T>> (&linear)[V], Activated<RealOf<T>> (&activated)[V]) {
  using Real = RealOf<T>;
  constexpr bool kIsBriefValue = kIsBrief<T> && !HasSlope;
  if constexpr (kIsBriefValue && (kFormula == SwigluFormula::kGegluErf || kFormula == SwigluFormula::kSoftcaps)) {
    return activate_briefly<kFormula, V>(form, linear, activated);
  } else if constexpr (kIsBriefValue && kFormula == SwigluFormula::kOptions) {
    if (form.activation == Activation::kGegluErf && form.gate_softcap == 0.0f) {
      return activate_briefly<SwigluFormula::kGegluErf, V>(form, linear, activated);
    }
    if (form.activation == Activation::kSwiglu && form.is_bounded && !form.rounds_activation) {
      return activate_briefly<SwigluFormula::kSoftcaps, V>(form, linear, activated);
    }
  }
  Slope<Real> weight[V];
  if constexpr (kFormula != SwigluFormula::kOptions) {
    constexpr Activation kActivation = kActivationOf<kFormula>;
    constexpr bool kIsExact = kActivation == Activation::kSwiglu && !kMayHaveSoftcaps<kFormula>;
    weigh_vector<T, kActivation, HasSlope, kIsBrief<T> && !kIsExact>(form, weight, linear);
  } else if (form.activation == Activation::kGegluErf) {
    weigh_vector<T, Activation::kGegluErf, HasSlope>(form, weight, linear);
  } else if (form.activation == Activation::kGegluTanh) {
    weigh_vector<T, Activation::kGegluTanh, HasSlope>(form, weight, linear);
  } else if (form.activation == Activation::kReglu) {
    weigh_vector<T, Activation::kReglu, HasSlope>(form, weight, linear);
  } else if (!kIsBriefValue && form.is_bounded) {
    weigh_vector<T, Activation::kSwiglu, HasSlope>(form, weight, linear);
  } else {
    weigh_vector<T, Activation::kSwiglu, HasSlope, false>(form, weight, linear);
  }
  if (kMayHaveSoftcaps<kFormula> && form.gate_softcap != Real{0}) {
#pragma unroll
    for (int i = 0; i < V; ++i) {
      linear[i] = soft_cap<HasSlope, kIsBrief<T>>(linear[i].value, form.gate_softcap, form.inverse_of_gate_softcap);
    }
  }
#pragma unroll
  for (int i = 0; i < V; ++i) activated[i] = activate<HasSlope>(gate[i], weight[i], linear[i], form);
}

// Computes the activated gates and the ups of a vector. The form's options are tested once for all elements.
template <SwigluFormula kFormula, typename T, bool HasSlope, int V>
__device__ __forceinline__ StagedVector<RealOf<T>, V> activate_vector(const RealOf<T> (&gate)[V],
                                                                      const RealOf<T> (&up)[V],
                                                                      const FormWithOptions<RealOf<T>> &form) {
  using Real = RealOf<T>;
  StagedVector<Real, V> staged;
  Slope<Real> linear[V];
#pragma unroll
  for (int i = 0; i < V; ++i) {
    linear[i] = {gate[i], Real{1}};
    staged.up[i] = {up[i], Real{1}};
  }
  if (form.limit <= kMaxFinite<Real>) {
#pragma unroll
    for (int i = 0; i < V; ++i) {
      linear[i].value = at_most(gate[i], form.gate_limit);
      staged.up[i].value = clamp(up[i], -form.limit, form.limit);
    }
  }
  activate_gates<kFormula, T, HasSlope, V>(gate, form, linear, staged.activated);
  if (kMayHaveSoftcaps<kFormula> && form.up_softcap != Real{0}) {
#pragma unroll
    for (int i = 0; i < V; ++i) {
      staged.up[i] = soft_cap<HasSlope, kIsBrief<T>>(staged.up[i].value, form.up_softcap, form.inverse_of_up_softcap);
    }
  }
  if (kMayHaveSoftcaps<kFormula> && form.limits_activation) {
#pragma unroll
    for (int i = 0; i < V; ++i) staged.activated[i] = limit_activation(staged.activated[i], form);
  }
  if constexpr (kFormula == SwigluFormula::kOptions && sizeof(T) == 2) {
    if (form.rounds_activation) {
#pragma unroll
      for (int i = 0; i < V; ++i) {
        staged.activated[i] = round_activation<T>(gate[i], staged.activated[i], linear[i], form);
      }
    }
  }
  return staged;
}

// Computes the outputs of a vector; the last one is out.
template <bool IsBounded, typename Real, int V, int NumInputs, int NumOutputs>
__device__ __forceinline__ void finish_vector(const Real (&value)[NumInputs][V], const StagedVector<Real, V> &staged,
                                              const FormWithOptions<Real> &form, Real row_scale,
                                              Real (&result)[NumOutputs][V]) {
#pragma unroll
  for (int i = 0; i < V; ++i) {
    const Activated<Real> &activated = staged.activated[i];
    if constexpr (NumInputs == 3) {
      const SwigluGradient<Real> gradient =
          gated_gradient<IsBounded>(value[kUp][i], value[kGradOut][i], activated, staged.up[i], form, row_scale);
      result[kGradGate][i] = gradient.gate;
      result[kGradUp][i] = gradient.up;
    }
    result[NumOutputs - 1][i] = gated<IsBounded>(activated, staged.up[i].value, form, row_scale);
  }
}

// Computes out as `gated` does, for a form that moves_within_range. The form's numbers are tested once for all
// elements.
template <typename Real, int V>
__device__ __forceinline__ void gate_within_range(const StagedVector<Real, V> &staged,
                                                  const FormWithOptions<Real> &form, Real (&result)[V]) {
  Real up[V];
#pragma unroll
  for (int i = 0; i < V; ++i) up[i] = staged.up[i].value;
  if (form.up_offset != Real{0}) {
#pragma unroll
    for (int i = 0; i < V; ++i) up[i] += form.up_offset;
  }
#pragma unroll
  for (int i = 0; i < V; ++i) result[i] = (staged.activated[i].weight * up[i]) * staged.activated[i].linear;
  if (form.out_scale != Real{1}) {
#pragma unroll
    for (int i = 0; i < V; ++i) result[i] *= form.out_scale;
  }
}

// Computes the outputs of a vector for a form that moves_within_range, without a row_scale.
template <SwigluFormula kFormula, typename T, int V, int NumInputs, int NumOutputs>
__device__ __forceinline__ void compute_within_range(const RealOf<T> (&value)[NumInputs][V],
                                                     const FormWithOptions<RealOf<T>> &form,
                                                     RealOf<T> (&result)[NumOutputs][V]) {
  const StagedVector<RealOf<T>, V> staged =
      activate_vector<kFormula, T, NumInputs == 3, V>(value[kGate], value[kUp], form);
  if constexpr (NumInputs == 2 && kFormula != SwigluFormula::kBiases) {
    gate_within_range(staged, form, result[kOut]);
  } else {
    finish_vector<true>(value, staged, form, RealOf<T>{1}, result);
  }
}

template <SwigluFormula kFormula, typename T, int V, int NumInputs, int NumOutputs>
__device__ __forceinline__ void compute_with_options(const RealOf<T> (&value)[NumInputs][V],
                                                     const FormWithOptions<RealOf<T>> &form, RealOf<T> row_scale,
                                                     bool has_row_scale, RealOf<T> (&result)[NumOutputs][V]) {
  const StagedVector<RealOf<T>, V> staged =
      activate_vector<kFormula, T, NumInputs == 3, V>(value[kGate], value[kUp], form);
  if (!has_row_scale && moves_within_range(form)) {
    finish_vector<true>(value, staged, form, row_scale, result);
  } else {
    finish_vector<false>(value, staged, form, row_scale, result);
  }
}

// Returns the form of a kernel's params.
template <typename Real, typename Params>
__device__ __forceinline__ const FormWithOptions<Real> &options_of(const Params &params) {
  if constexpr (sizeof(Real) == sizeof(double)) {
    return params.options.wide_form;
  } else {
    return params.options.form;
  }
}

// Loads V neighbouring elements, of type T or float.
template <typename T, int V>
__device__ __forceinline__ void load_bias_vector(const char *address, bool is_f32, RealOf<T> (&bias)[V]) {
  using Real = RealOf<T>;
  if (is_f32) {
    constexpr int kAtOnce = V < 4 ? V : 4;
#pragma unroll
    for (int i = 0; i < V; i += kAtOnce) {
      float part[kAtOnce];
      to_floats<float, kAtOnce>(load_vector<Vector<float, kAtOnce>>(address + i * sizeof(float)), part);
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) bias[i + j] = static_cast<Real>(part[j]);
    }
  } else {
    to_floats<T, V>(load_vector<Vector<T, V>>(address), bias);
  }
}

template <typename Real, int V>
__device__ __forceinline__ void add_bias_vector(const Real (&bias)[V], Real (&values)[V]) {
  Real sum[V], largest = 0;
#pragma unroll
  for (int i = 0; i < V; ++i) {
    sum[i] = values[i] + bias[i];
    largest = larger_magnitude(largest, sum[i]);
  }
  // Sums beyond the largest number are rare: one test for all elements, then add_bias bounds each.
  if (largest > kMaxFinite<Real>) {
#pragma unroll
    for (int i = 0; i < V; ++i) sum[i] = add_bias(values[i], bias[i]);
  }
#pragma unroll
  for (int i = 0; i < V; ++i) values[i] = sum[i];
}

template <typename T, int V>
__device__ __forceinline__ void add_bias_vector(const char *address, bool is_f32, RealOf<T> (&values)[V]) {
  RealOf<T> bias[V];
  load_bias_vector<T, V>(address, is_f32, bias);
  add_bias_vector(bias, values);
}

}  // namespace rope
