// swiglu_activation.cuh - gating_options.hpp for a vector of a thread
#pragma once

#include "backend/cuda/kernels/swiglu_params.hpp"
#include "backend/cuda/kernels/vector.cuh"
#include "core/math/gating_options.hpp"

namespace rope {

// Of formulas other than kOptions, which may have any.
template <SwigluFormula kFormula>
constexpr Activation kActivationOf = kFormula == SwigluFormula::kGegluErf    ? Activation::kGegluErf
                                     : kFormula == SwigluFormula::kGegluTanh ? Activation::kGegluTanh
                                     : kFormula == SwigluFormula::kReglu     ? Activation::kReglu
                                                                             : Activation::kSwiglu;

// They bound, and so does a limit of the activation.
template <SwigluFormula kFormula>
constexpr bool kMayHaveSoftcaps = kFormula == SwigluFormula::kSoftcaps || kFormula == SwigluFormula::kOptions;

template <SwigluFormula kFormula>
constexpr bool kMayHaveBiases = kFormula == SwigluFormula::kBiases || kFormula == SwigluFormula::kOptions;

// What a vector's elements make of gate and up: registers.
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

// A form's options are asked for once for all elements.
template <SwigluFormula kFormula, typename T, bool HasSlope, int V>
__device__ __forceinline__ StagedVector<RealOf<T>, V> activate_vector(const RealOf<T> (&gate)[V],
                                                                      const RealOf<T> (&up)[V],
                                                                      const FormWithOptions<RealOf<T>> &form) {
  using Real = RealOf<T>;
  StagedVector<Real, V> staged;
  Slope<Real> weight[V], linear[V];
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
  constexpr bool kIsGeneral = kFormula == SwigluFormula::kOptions;
  constexpr bool kIsSwiglu = kActivationOf<kFormula> == Activation::kSwiglu;
  if constexpr (kIsSwiglu && !kIsGeneral) {
    weigh_vector<T, Activation::kSwiglu, HasSlope, kIsBrief<T> && kMayHaveSoftcaps<kFormula>>(form, weight, linear);
  } else if constexpr (!kIsGeneral) {
    weigh_vector<T, kActivationOf<kFormula>, HasSlope>(form, weight, linear);
  } else if (form.activation == Activation::kGegluErf) {
    weigh_vector<T, Activation::kGegluErf, HasSlope>(form, weight, linear);
  } else if (form.activation == Activation::kGegluTanh) {
    weigh_vector<T, Activation::kGegluTanh, HasSlope>(form, weight, linear);
  } else if (form.activation == Activation::kReglu) {
    weigh_vector<T, Activation::kReglu, HasSlope>(form, weight, linear);
  } else if (form.is_bounded) {
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
  if (kMayHaveSoftcaps<kFormula> && form.up_softcap != Real{0}) {
#pragma unroll
    for (int i = 0; i < V; ++i) {
      staged.up[i] = soft_cap<HasSlope, kIsBrief<T>>(staged.up[i].value, form.up_softcap, form.inverse_of_up_softcap);
    }
  }
#pragma unroll
  for (int i = 0; i < V; ++i) staged.activated[i] = activate<HasSlope>(gate[i], weight[i], linear[i], form);
  if (kMayHaveSoftcaps<kFormula> && form.limits_activation) {
#pragma unroll
    for (int i = 0; i < V; ++i) staged.activated[i] = limit_activation(staged.activated[i], form);
  }
  if constexpr (kIsGeneral && sizeof(T) == 2) {
    if (form.rounds_activation) {
#pragma unroll
      for (int i = 0; i < V; ++i) {
        staged.activated[i] = round_activation<T>(gate[i], staged.activated[i], linear[i], form);
      }
    }
  }
  return staged;
}

// The outputs of a vector; the last is out.
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

// Of a form that moves_within_range, without a row_scale.
template <SwigluFormula kFormula, typename T, int V, int NumInputs, int NumOutputs>
__device__ __forceinline__ void compute_within_range(const RealOf<T> (&value)[NumInputs][V],
                                                     const FormWithOptions<RealOf<T>> &form,
                                                     RealOf<T> (&result)[NumOutputs][V]) {
  const StagedVector<RealOf<T>, V> staged =
      activate_vector<kFormula, T, NumInputs == 3, V>(value[kGate], value[kUp], form);
  finish_vector<true>(value, staged, form, RealOf<T>{1}, result);
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

// Of a kernel's params.
template <typename Real, typename Params>
__device__ __forceinline__ const FormWithOptions<Real> &options_of(const Params &params) {
  if constexpr (sizeof(Real) == sizeof(double)) {
    return params.options.wide_form;
  } else {
    return params.options.form;
  }
}

// Loads V neighbouring elements, which have type T or are floats.
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
  // Asked once for all elements.
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
