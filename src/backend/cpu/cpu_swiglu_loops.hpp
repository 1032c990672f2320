// SPDX-License-Identifier: Apache-2.0
// cpu_swiglu_loops.hpp - the inner loops of SwiGLU: runs of elements, straight through or in chunks of numbers
//
// The file is in an unnamed namespace; cpu_loops.hpp explains this.
#pragma once

#include <string.h>

#include "backend/cpu/cpu_gating.hpp"
#include "backend/cpu/cpu_kernels.hpp"
#include "backend/cpu/cpu_loops.hpp"
#include "backend/cpu/cpu_vectors.hpp"
#include "core/math/float16.hpp"
#include "core/math/gating_options.hpp"

namespace rope {

namespace {

// Whether forward is computed by cpu_gating.hpp. If it is, every placement of the elements uses it, so that all have
// the same bits. kIsActivatedInBlocks is for an activation and a form without other numbers.
#if defined(ROPE_HAS_GATED_BLOCKS)
template <bool IsPlain, typename T>
constexpr bool kIsGatedInBlocks = IsPlain && sizeof(T) <= sizeof(float);
template <Activation kActivation, typename T>
constexpr bool kIsActivatedInBlocks = (kActivation != Activation::kReglu) && kIsBrief<T>;
#else
template <bool IsPlain, typename T>
constexpr bool kIsGatedInBlocks = false;
template <Activation kActivation, typename T>
constexpr bool kIsActivatedInBlocks = false;
template <Activation kActivation, typename T>
void gate_blocks(const T *gate, const T *up, T *out, int64_t count, bool is_streamed);  // never called
#endif

// The output for a gate and an up.
template <bool IsPlain, typename Real>
struct FormGating {
  Form<Real> form;

  ROPE_LOOP Real operator()(Real gate, Real up) const { return swiglu<IsPlain>(gate, up, form); }
};

// The output for a gate and an up with an activation, without other options, and with a form that moves_within_range.
template <Activation kActivation, typename T>
struct ActivationGating {
  using Real = RealOf<T>;
  FormWithOptions<Real> form;

  ROPE_LOOP Real operator()(Real gate, Real up) const {
    const Real bounded = bounded_gate<kActivation>(gate, form);
    const Real weight = weight_of<kActivation, false, kIsBrief<T>>(bounded, form.alpha).value;
    return gated<true>(Activated<Real>{weight, bounded, Real{0}}, clamp(up, -form.limit, form.limit), form, Real{1});
  }
};

// Computes contiguous elements of out from those of gate and up.
template <typename T, typename Gating>
ROPE_LOOP void gate_elements(const T *gate, const T *up, T *out, int64_t begin, int64_t count, const Gating gating) {
  using Real = RealOf<T>;
  ROPE_INDEPENDENT
  for (int64_t i = begin; i < count; ++i) {
    out[i] = round_to<T>(gating(to_real<Real>(gate[i]), to_real<Real>(up[i])));
  }
}

// Reads and writes two BFloat16s as the halves of a word. They become floats, and BFloat16s again, without moving
// between lanes.
template <typename Gating>
ROPE_LOOP void gate_words(const BFloat16 *gate, const BFloat16 *up, BFloat16 *out, int64_t count, const Gating gating) {
  const auto word_at = [](const BFloat16 *elements, int64_t i) __attribute__((always_inline)) {
    uint32_t word;
    memcpy(&word, elements + 2 * i, sizeof word);
    return word;
  };
  const int64_t words = count / 2;
  ROPE_INDEPENDENT
  for (int64_t i = 0; i < words; ++i) {
    const uint32_t gates = word_at(gate, i), ups = word_at(up, i);
    const float low = gating(float_of(gates << 16), float_of(ups << 16));
    const float high = gating(float_of(gates & 0xffff0000u), float_of(ups & 0xffff0000u));
    const uint32_t word = round_to_upper_half(low) >> 16 | (round_to_upper_half(high) & 0xffff0000u);
    memcpy(out + 2 * i, &word, sizeof word);
  }
  gate_elements(gate, up, out, 2 * words, count, gating);
}

template <typename T, typename Gating>
ROPE_LOOP void gate_contiguous(const GatingRun &run, const Gating gating) {
  const T *gate = static_cast<const T *>(run.in[0]), *up = static_cast<const T *>(run.in[1]);
  T *out = static_cast<T *>(run.out[0]);
  if constexpr (std::is_same_v<T, BFloat16>) {
    gate_words(gate, up, out, run.count, gating);
  } else {
    gate_elements(gate, up, out, 0, run.count, gating);
  }
}

template <Activation kActivation, typename T>
ROPE_LOOP void gate_run_in_blocks(const GatingRun &run) {
  gate_blocks<kActivation>(static_cast<const T *>(run.in[0]), static_cast<const T *>(run.in[1]),
                           static_cast<T *>(run.out[0]), run.count, run.is_streamed);
}

template <bool IsPlain, typename T>
ROPE_LOOP void gate_contiguous_form(const GatingRun &run, const Form<RealOf<T>> form) {
  if constexpr (kIsGatedInBlocks<IsPlain, T>) {
    gate_run_in_blocks<Activation::kSwiglu, T>(run);
  } else {
    gate_contiguous<T>(run, FormGating<IsPlain, RealOf<T>>{form});
  }
}

// Elements of a chunk: its arrays, on the stack, have 17 KiB in every type.
template <typename Real>
constexpr int64_t kChunk = 1024 / sizeof(Real);

// Whether a type is converted in the loop that computes. Other types go through chunks even if they are contiguous.
template <typename T>
constexpr bool kIsGatedDirectly = true;
#if defined(ROPE_HAS_VECTORS)
template <>
constexpr bool kIsGatedDirectly<Float16> = false;
#endif

template <typename Real>
struct Slopes {
  Real value[kChunk<Real>];
  Real slope[kChunk<Real>];
};

// A part of a run as numbers of the arithmetic. Each loop over it computes one function.
template <typename Real>
struct GatingChunk {
  Real in[3][kChunk<Real>];
  Real row_scale[kChunk<Real>];
  Real out[3][kChunk<Real>];
  Real half_term[kChunk<Real>];
  // The results of the stages of gating_options.hpp for gate and up.
  Slopes<Real> weight, linear, up;
  Real activated_weight[kChunk<Real>], activated_linear[kChunk<Real>], half_slope[kChunk<Real>];
};

template <typename T, typename Real>
void read_row_scale(const GatingRun &run, int64_t begin, int64_t count, Real *values) {
  if (run.row_scale == nullptr) {
    for (int64_t i = 0; i < count; ++i) values[i] = Real{1};
  } else if (run.is_row_scale_f32) {
    read_elements<float>(run.row_scale, run.row_scale_stride, begin, count, values);
  } else {
    read_elements<T>(run.row_scale, run.row_scale_stride, begin, count, values);
  }
}

template <bool IsPlain, typename Real>
void gate_chunk(GatingChunk<Real> *chunk, int64_t length, const Form<Real> form, Real *out) {
  if constexpr (kIsGatedInBlocks<IsPlain, Real>) {
    gate_blocks<Activation::kSwiglu>(chunk->in[0], chunk->in[1], out, length, false);
  } else {
    for (int64_t i = 0; i < length; ++i) {
      const Real row_scale = IsPlain ? Real{1} : chunk->row_scale[i];
      out[i] = swiglu<IsPlain>(chunk->in[0][i], chunk->in[1][i], form, row_scale);
    }
  }
}

// Adds floats in double, which loses nothing that matters; a sum of doubles also keeps what its additions round away.
template <typename Real>
void add_row_terms(const GatingChunk<Real> &chunk, int64_t length, RowSum<double> *row_sum) {
  RowSum<double> sum = *row_sum;
  for (int64_t i = 0; i < length; ++i) {
    if constexpr (sizeof(Real) == sizeof(float)) {
      sum.half += chunk.half_term[i];
    } else {
      sum.add(chunk.half_term[i]);
    }
  }
  *row_sum = sum;
}

template <typename Real>
void find_row_terms(GatingChunk<Real> *chunk, int64_t length, const Form<Real> form) {
  for (int64_t i = 0; i < length; ++i) {
    chunk->half_term[i] = half_row_term(chunk->in[0][i], chunk->in[1][i], chunk->in[2][i], form);
  }
}

template <typename Real>
using ChunkForm = FormWithOptions<Real>;

// Computes the weights and linear factors of a chunk's gates.
template <typename T, Activation kActivation, bool HasSlopes, typename Real>
void weigh_chunk(GatingChunk<Real> *chunk, int64_t length, const ChunkForm<Real> form) {
  for (int64_t i = 0; i < length; ++i) {
    const Real gate = bounded_gate<kActivation>(chunk->in[0][i], form);
    const Slope<Real> weight = weight_of<kActivation, HasSlopes, kIsBrief<T>>(gate, form.alpha);
    chunk->linear.value[i] = gate;
    chunk->weight.value[i] = weight.value;
    if (HasSlopes) chunk->weight.slope[i] = weight.slope;
  }
}

template <typename T, bool HasSlopes, typename Real>
void weigh_chunk(GatingChunk<Real> *chunk, int64_t length, const ChunkForm<Real> &form) {
  switch (form.activation) {
    case Activation::kGegluErf:
      return weigh_chunk<T, Activation::kGegluErf, HasSlopes>(chunk, length, form);
    case Activation::kGegluTanh:
      return weigh_chunk<T, Activation::kGegluTanh, HasSlopes>(chunk, length, form);
    case Activation::kReglu:
      return weigh_chunk<T, Activation::kReglu, HasSlopes>(chunk, length, form);
    default:
      return weigh_chunk<T, Activation::kSwiglu, HasSlopes>(chunk, length, form);
  }
}

template <typename Real>
void cap_chunk(Slopes<Real> *slopes, int64_t length, Real cap, Real inverse_of_cap) {
  if (cap == Real{0}) return;
  for (int64_t i = 0; i < length; ++i) {
    const Slope<Real> capped = soft_cap<true, false>(slopes->value[i], cap, inverse_of_cap);
    slopes->value[i] = capped.value;
    slopes->slope[i] = capped.slope;
  }
}

template <typename Real>
ROPE_LOOP Activated<Real> activated_at(const GatingChunk<Real> &chunk, int64_t i) {
  return {chunk.activated_weight[i], chunk.activated_linear[i], chunk.half_slope[i]};
}

template <typename Real>
ROPE_LOOP void set_activated(GatingChunk<Real> *chunk, int64_t i, const Activated<Real> &activated) {
  chunk->activated_weight[i] = activated.weight;
  chunk->activated_linear[i] = activated.linear;
  chunk->half_slope[i] = activated.half_slope;
}

template <typename Real>
void limit_chunk(GatingChunk<Real> *chunk, int64_t length, const ChunkForm<Real> form) {
  for (int64_t i = 0; i < length; ++i) set_activated(chunk, i, limit_activation(activated_at(*chunk, i), form));
}

template <typename T, bool MayExceed>
void round_activations(GatingChunk<float> *chunk, int64_t length, const ChunkForm<float> form) {
  for (int64_t i = 0; i < length; ++i) {
    const Slope<float> linear = {chunk->linear.value[i], chunk->linear.slope[i]};
    set_activated(chunk, i, round_activation<T, MayExceed>(chunk->in[0][i], activated_at(*chunk, i), linear, form));
  }
}

template <typename T>
void round_chunk(GatingChunk<RealOf<T>> *chunk, int64_t length, const ChunkForm<RealOf<T>> form) {
  if constexpr (sizeof(T) == 2) {
    int exceeds = 0;
    for (int64_t i = 0; i < length; ++i) exceeds |= magnitude_of(chunk->linear.value[i]) > kLargestOf<T>;
    exceeds != 0 ? round_activations<T, true>(chunk, length, form) : round_activations<T, false>(chunk, length, form);
  }
}

// Processes gate and up by the stages of gating_options.hpp up to the product.
template <typename T, bool HasSlopes>
void activate_chunk(GatingChunk<RealOf<T>> *chunk, int64_t length, const ChunkForm<RealOf<T>> form) {
  using Real = RealOf<T>;
  weigh_chunk<T, HasSlopes>(chunk, length, form);
  for (int64_t i = 0; i < length; ++i) {
    chunk->linear.slope[i] = Real{1};
    chunk->up.value[i] = clamp(chunk->in[1][i], -form.limit, form.limit);
    chunk->up.slope[i] = Real{1};
  }
  cap_chunk(&chunk->linear, length, form.gate_softcap, form.inverse_of_gate_softcap);
  cap_chunk(&chunk->up, length, form.up_softcap, form.inverse_of_up_softcap);
  for (int64_t i = 0; i < length; ++i) {
    const Slope<Real> weight = {chunk->weight.value[i], HasSlopes ? chunk->weight.slope[i] : Real{0}};
    const Slope<Real> linear = {chunk->linear.value[i], chunk->linear.slope[i]};
    set_activated(chunk, i, activate<HasSlopes>(chunk->in[0][i], weight, linear, form));
  }
  if (form.limits_activation) limit_chunk(chunk, length, form);
  if (form.rounds_activation) round_chunk<T>(chunk, length, form);
}

template <int kOutput, typename Real>
void gate_activated_chunk(GatingChunk<Real> *chunk, int64_t length, const ChunkForm<Real> form) {
  for (int64_t i = 0; i < length; ++i) {
    chunk->out[kOutput][i] = gated<false>(activated_at(*chunk, i), chunk->up.value[i], form, chunk->row_scale[i]);
  }
}

template <typename Real>
void differentiate_activated_chunk(GatingChunk<Real> *chunk, int64_t length, const ChunkForm<Real> form) {
  for (int64_t i = 0; i < length; ++i) {
    const Slope<Real> up = {chunk->up.value[i], chunk->up.slope[i]};
    const SwigluGradient<Real> result =
        gated_gradient<false>(chunk->in[1][i], chunk->in[2][i], activated_at(*chunk, i), up, form, chunk->row_scale[i]);
    chunk->out[0][i] = result.gate;
    chunk->out[1][i] = result.up;
  }
}

template <typename Real>
void find_activated_row_terms(GatingChunk<Real> *chunk, int64_t length, const ChunkForm<Real> form) {
  for (int64_t i = 0; i < length; ++i) {
    chunk->half_term[i] = gated_half_row_term(chunk->in[2][i], activated_at(*chunk, i), chunk->up.value[i], form);
  }
}

template <typename T>
void add_biases(const GatingRun &run, int64_t begin, int64_t length, GatingChunk<RealOf<T>> *chunk) {
  using Real = RealOf<T>;
  Real bias[kChunk<Real>];
  for (int input = 0; input < 2; ++input) {
    if (run.bias[input] == nullptr) continue;
    if (run.is_bias_f32[input]) {
      read_elements<float>(run.bias[input], run.bias_stride[input], begin, length, bias);
    } else {
      read_elements<T>(run.bias[input], run.bias_stride[input], begin, length, bias);
    }
    Real *values = chunk->in[input];
    for (int64_t i = 0; i < length; ++i) values[i] = add_bias(values[i], bias[i]);
  }
}

bool is_contiguous(const GatingRun &run) {
  return run.in_stride[0] == 1 && run.in_stride[1] == 1 && run.out_stride[0] == 1;
}

// Forward of an activation without other options and without a row_scale. Out is the type of the output: T, or the type
// that T is computed in.
template <Activation kActivation, typename T, typename Out>
void gate_by_activation(const GatingRun &run, const FormWithOptions<RealOf<T>> &form) {
  using Real = RealOf<T>;
  constexpr bool kIsRounded = std::is_same_v<T, Out>;
  const ActivationGating<kActivation, T> gating = {form};
  bool is_in_blocks = false;
  if constexpr (kIsActivatedInBlocks<kActivation, T>) {
    is_in_blocks = form.limit > kMaxFinite<Real> && form.up_offset == 0 && form.out_scale == 1;
    if (kIsRounded && is_in_blocks && is_contiguous(run)) return gate_run_in_blocks<kActivation, T>(run);
  }
  if (kIsRounded && kIsGatedDirectly<T> && !is_in_blocks && is_contiguous(run)) return gate_contiguous<T>(run, gating);
  GatingChunk<Real> chunk;
  for (int64_t begin = 0; begin < run.count; begin += kChunk<Real>) {
    const int64_t length = run.count - begin < kChunk<Real> ? run.count - begin : kChunk<Real>;
    for (int input = 0; input < 2; ++input) {
      read_elements<T>(run.in[input], run.in_stride[input], begin, length, chunk.in[input]);
    }
    if constexpr (kIsActivatedInBlocks<kActivation, T>) {
      if (is_in_blocks) gate_blocks<kActivation>(chunk.in[0], chunk.in[1], chunk.out[0], length, false);
    }
    if (!is_in_blocks) gate_elements(chunk.in[0], chunk.in[1], chunk.out[0], 0, length, gating);
    write_elements<Out>(chunk.out[0], length, run.out[0], run.out_stride[0], begin);
  }
}

// Computes forward if the form has an activation and no other option. Returns whether it did.
template <typename T, typename Out>
bool gate_by_activation_alone(const GatingRun &run, const GatingForm &given, const FormWithOptions<RealOf<T>> &form) {
  if (given.limits_activation || given.rounds_activation || given.gate_softcap != 0 || given.up_softcap != 0) {
    return false;
  }
  if (run.bias[0] != nullptr || run.bias[1] != nullptr || run.row_scale != nullptr || !moves_within_range(form)) {
    return false;
  }
  switch (given.activation) {
    case Activation::kGegluErf:
      return gate_by_activation<Activation::kGegluErf, T, Out>(run, form), true;
    case Activation::kGegluTanh:
      return gate_by_activation<Activation::kGegluTanh, T, Out>(run, form), true;
    case Activation::kReglu:
      return gate_by_activation<Activation::kReglu, T, Out>(run, form), true;
    default:
      return false;
  }
}

bool has_options(const GatingRun &run, const GatingForm &form) {
  return form.has_options || run.bias[0] != nullptr || run.bias[1] != nullptr;
}

// Forward and backward of forms with options.
template <typename T, bool IsBackward, typename Out = T>
void gate_with_options(const GatingRun &run, const GatingForm &given, RowSum<double> *row_sum) {
  using Real = RealOf<T>;
  constexpr int kInputs = IsBackward ? 3 : 2, kOutputs = IsBackward ? 3 : 1;
  const FormWithOptions<Real> form = form_with_options_in<Real>(given);
  if (!IsBackward && gate_by_activation_alone<T, Out>(run, given, form)) return;
  GatingChunk<Real> chunk;
  for (int64_t begin = 0; begin < run.count; begin += kChunk<Real>) {
    const int64_t length = run.count - begin < kChunk<Real> ? run.count - begin : kChunk<Real>;
    for (int input = 0; input < kInputs; ++input) {
      read_elements<T>(run.in[input], run.in_stride[input], begin, length, chunk.in[input]);
    }
    read_row_scale<T>(run, begin, length, chunk.row_scale);
    add_biases<T>(run, begin, length, &chunk);
    activate_chunk<T, IsBackward>(&chunk, length, form);
    if (IsBackward) differentiate_activated_chunk(&chunk, length, form);
    if (run.out[kOutputs - 1] != nullptr) gate_activated_chunk<kOutputs - 1>(&chunk, length, form);
    if (row_sum != nullptr) {
      find_activated_row_terms(&chunk, length, form);
      add_row_terms(chunk, length, row_sum);
    }
    for (int output = 0; output < kOutputs; ++output) {
      if (run.out[output] == nullptr) continue;
      write_elements<Out>(chunk.out[output], length, run.out[output], run.out_stride[output], begin);
    }
  }
}

template <typename T, typename Out>
void gate_forward(const GatingRun &run, const GatingForm &given) {
  using Real = RealOf<T>;
  if (has_options(run, given)) return gate_with_options<T, false, Out>(run, given, nullptr);
  const Form<Real> form = form_in<Real>(given);
  const bool is_plain = form.is_plain && run.row_scale == nullptr;
  if (std::is_same_v<T, Out> && is_contiguous(run) && run.row_scale == nullptr) {
    if (is_plain && (kIsGatedDirectly<T> || kIsGatedInBlocks<true, T>)) return gate_contiguous_form<true, T>(run, form);
    if (!is_plain && kIsGatedDirectly<T>) return gate_contiguous_form<false, T>(run, form);
  }
  GatingChunk<Real> chunk;
  for (int64_t begin = 0; begin < run.count; begin += kChunk<Real>) {
    const int64_t length = run.count - begin < kChunk<Real> ? run.count - begin : kChunk<Real>;
    for (int input = 0; input < 2; ++input) {
      read_elements<T>(run.in[input], run.in_stride[input], begin, length, chunk.in[input]);
    }
    // Values that become codes are written directly to the caller's buffer.
    constexpr bool kIsUnrounded = !std::is_same_v<T, Out> && std::is_same_v<Real, Out>;
    Real *const out = kIsUnrounded ? static_cast<Real *>(run.out[0]) + begin : chunk.out[0];
    if (is_plain) {
      gate_chunk<true>(&chunk, length, form, out);
    } else {
      read_row_scale<T>(run, begin, length, chunk.row_scale);
      gate_chunk<false>(&chunk, length, form, out);
    }
    if (!kIsUnrounded) write_elements<Out>(chunk.out[0], length, run.out[0], run.out_stride[0], begin);
  }
}

template <typename T>
void swiglu_forward(const GatingRun &run, const GatingForm &given) {
  gate_forward<T, T>(run, given);
}

// Forward, with results as floats. The output is contiguous.
template <typename T>
void swiglu_values(const GatingRun &run, const GatingForm &given) {
  gate_forward<T, float>(run, given);
}

template <bool IsPlain, typename Real>
void differentiate_chunk(GatingChunk<Real> *chunk, int64_t length, bool has_out, const Form<Real> form) {
  const auto scale = [&](int64_t i) { return IsPlain ? Real{1} : chunk->row_scale[i]; };
  for (int64_t i = 0; i < length; ++i) {
    const SwigluGradient<Real> result =
        swiglu_gradient<IsPlain>(chunk->in[0][i], chunk->in[1][i], chunk->in[2][i], form, scale(i));
    chunk->out[0][i] = result.gate;
    chunk->out[1][i] = result.up;
  }
  if (has_out) gate_chunk<IsPlain>(chunk, length, form, chunk->out[2]);
}

// Backward. Values go through small buffers, so that one loop serves any of the outputs, in place or not.
template <typename T, typename Out>
void differentiate(const GatingRun &run, const GatingForm &given, RowSum<double> *row_sum) {
  if (has_options(run, given)) return gate_with_options<T, true, Out>(run, given, row_sum);
  using Real = RealOf<T>;
  const Form<Real> form = form_in<Real>(given);
  const bool is_plain = form.is_plain && run.row_scale == nullptr;
  GatingChunk<Real> chunk;
  for (int64_t begin = 0; begin < run.count; begin += kChunk<Real>) {
    const int64_t length = run.count - begin < kChunk<Real> ? run.count - begin : kChunk<Real>;
    for (int input = 0; input < 3; ++input) {
      read_elements<T>(run.in[input], run.in_stride[input], begin, length, chunk.in[input]);
    }
    if (is_plain) {
      differentiate_chunk<true>(&chunk, length, run.out[2] != nullptr, form);
    } else {
      read_row_scale<T>(run, begin, length, chunk.row_scale);
      differentiate_chunk<false>(&chunk, length, run.out[2] != nullptr, form);
    }
    if (row_sum != nullptr) {
      find_row_terms(&chunk, length, form);
      add_row_terms(chunk, length, row_sum);
    }
    for (int output = 0; output < 3; ++output) {
      if (run.out[output] == nullptr) continue;
      write_elements<Out>(chunk.out[output], length, run.out[output], run.out_stride[output], begin);
    }
  }
}

template <typename T>
void swiglu_backward(const GatingRun &run, const GatingForm &given, RowSum<double> *row_sum) {
  differentiate<T, T>(run, given, row_sum);
}

template <typename T>
void swiglu_gradient_values(const GatingRun &run, const GatingForm &given) {
  differentiate<T, float>(run, given, nullptr);
}

}  // namespace

}  // namespace rope
