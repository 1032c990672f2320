// cpu_loops.hpp - the inner loops of the CPU backend, compiled once for every instruction set
//
// Plain loops that the compiler vectorises, but for cpu_vectors.hpp and cpu_gating.hpp. Loops over contiguous elements
// have their steps as literals; ROPE_INDEPENDENT tells the compiler what the ABI promises and aliasing analysis cannot
// see: an output is its input or disjoint from it.
//
// What is compiled for a newer instruction set must never be what the linker takes for an older one. Hence everything
// here is in an unnamed namespace, and what it calls of src/core is always inlined and bears the name of the set
// (host_device.hpp); a test looks at the objects.
#pragma once

#include <string.h>

#include <type_traits>

#include "backend/cpu/cpu_gating.hpp"
#include "backend/cpu/cpu_kernels.hpp"
#include "backend/cpu/cpu_vectors.hpp"
#include "core/math/float16.hpp"
#include "core/math/frequencies.hpp"
#include "core/math/gating_options.hpp"
#include "core/math/rotation.hpp"

namespace rope {

namespace {

#if defined(__clang__)
#define ROPE_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define ROPE_INDEPENDENT _Pragma("GCC ivdep")
#endif

#define ROPE_LOOP inline __attribute__((always_inline))

template <typename Real>
void fill_angles(const uint64_t *phases, int count, Real scale, Real *__restrict cos, Real *__restrict sin) {
  for (int i = 0; i < count; ++i) {
    const CosSin<Real> angle = cos_sin_of_phase<Real>(phases[i]);
    cos[i] = multiply_rounded(angle.cos, scale);
    sin[i] = multiply_rounded(angle.sin, scale);
  }
}

// How the pairs of a run lie: x[i] and y[i], or x[2 i] and x[2 i + 1], or x[i * step] and y[i * step].
enum class Placement {
  kHalf,
  kInterleaved,
  kStrided
};

template <typename T, Placement kPlacement>
struct Pairs {
  T *x;
  T *y;
  int64_t step;

  ROPE_LOOP T &first(int64_t i) const {
    return x[kPlacement == Placement::kHalf ? i : kPlacement == Placement::kInterleaved ? 2 * i : step * i];
  }
  ROPE_LOOP T &second(int64_t i) const {
    return kPlacement == Placement::kHalf ? y[i] : kPlacement == Placement::kInterleaved ? x[2 * i + 1] : y[step * i];
  }
};

template <typename T, Placement kPlacement>
ROPE_LOOP Pairs<T, kPlacement> pairs_of_head(const PairRun &run, int64_t head) {
  const int64_t offset = head * run.head_stride;
  return {static_cast<T *>(run.x) + offset, static_cast<T *>(run.y) + offset, run.step};
}

// Rotates pairs from `begin` on, one by one.
template <typename Real, typename T, Placement kIn, Placement kOut>
ROPE_LOOP void rotate_pairs(Pairs<T, kIn> in, Pairs<T, kOut> out, int64_t begin, int64_t end,
                            const PairAngles<Real> &angles) {
  const Real *cos_x = angles.cos_x, *sin_x = angles.sin_x, *cos_y = angles.cos_y, *sin_y = angles.sin_y;
  ROPE_INDEPENDENT
  for (int64_t i = begin; i < end; ++i) {
    const Pair<Real> pair = rotate<Real>({to_real<Real>(in.first(i)), to_real<Real>(in.second(i))},
                                         {cos_x[i], sin_x[i]}, {cos_y[i], sin_y[i]});
    out.first(i) = round_to<T>(pair.x);
    out.second(i) = round_to<T>(pair.y);
  }
}

#if defined(ROPE_HAS_VECTORS)

// The few pairs that fill no vector, however they lie.
template <typename T>
__attribute__((noinline)) void rotate_last_pairs(Pairs<T, Placement::kStrided> in, Pairs<T, Placement::kStrided> out,
                                                 int64_t begin, int64_t end, const PairAngles<float> &angles) {
  rotate_pairs(in, out, begin, end, angles);
}

template <int kLanes>
ROPE_LOOP Pair<Vector<kLanes>> rotate_vector(Pair<Vector<kLanes>> pair, const PairAngles<float> &angles, int64_t at) {
  using Floats = Vector<kLanes>;
  return rotate(pair, CosSin<Floats>{Floats::load(angles.cos_x + at), Floats::load(angles.sin_x + at)},
                CosSin<Floats>{Floats::load(angles.cos_y + at), Floats::load(angles.sin_y + at)});
}

// Rotates as many pairs from `begin` on as fill vectors; returns where it ended.
template <int kLanes, typename T, Placement kIn, Placement kOut>
ROPE_LOOP int64_t rotate_vectors(Pairs<T, kIn> in, Pairs<T, kOut> out, int64_t begin, int64_t end,
                                 const PairAngles<float> angles) {
  int64_t i = begin;
  for (; i + kLanes <= end; i += kLanes) {
    Pair<Vector<kLanes>> pair;
    if constexpr (kIn == Placement::kInterleaved) {
      read_interleaved(&in.first(i), &pair.x, &pair.y);
    } else {
      read_vector(&in.first(i), &pair.x);
      read_vector(&in.second(i), &pair.y);
    }
    pair = rotate_vector(pair, angles, i);
    if constexpr (kOut == Placement::kInterleaved) {
      write_interleaved(pair.x, pair.y, &out.first(i));
    } else {
      write_vector(pair.x, &out.first(i));
      write_vector(pair.y, &out.second(i));
    }
  }
  return i;
}

// The same for BFloat16 in halves, two vectors of pairs at a time: two neighbours are the halves of a word, where they
// become floats, and come back, without being moved between lanes. The angles are as arrange_angles leaves them.
template <int kLanes>
ROPE_LOOP int64_t rotate_words(Pairs<BFloat16, Placement::kHalf> in, Pairs<BFloat16, Placement::kHalf> out,
                               int64_t begin, int64_t end, const PairAngles<float> angles) {
  int64_t i = begin;
  for (; i + int64_t{2} * kLanes <= end; i += int64_t{2} * kLanes) {
    Pair<Vector<kLanes>> even, odd;
    read_interleaved(&in.first(i), &even.x, &odd.x);
    read_interleaved(&in.second(i), &even.y, &odd.y);
    even = rotate_vector(even, angles, i);
    odd = rotate_vector(odd, angles, i + kLanes);
    write_interleaved(even.x, odd.x, &out.first(i));
    write_interleaved(even.y, odd.y, &out.second(i));
  }
  return i;
}

template <typename T, Placement kIn, Placement kOut>
constexpr bool kHasWords = false;
template <>
constexpr bool kHasWords<BFloat16, Placement::kHalf, Placement::kHalf> = true;

// A NaN of an angle becomes one that write_interleaved takes.
ROPE_LOOP float arranged(float angle) {
  return angle == angle ? angle : float_of(0x7fc00000u);
}

template <int kLanes>
ROPE_LOOP int64_t arrange_words(const float *from, int64_t begin, int64_t end, float *__restrict to) {
  int64_t i = begin;
  for (; i + int64_t{2} * kLanes <= end; i += int64_t{2} * kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      to[i + lane] = arranged(from[i + 2 * lane]);
      to[i + kLanes + lane] = arranged(from[i + 2 * lane + 1]);
    }
  }
  return i;
}

// For rotate_words the angles of even pairs come before those of odd ones in each of its steps.
template <bool HasWords>
const float *arrange_angles(const float *from, int64_t pairs, float *__restrict to) {
  int64_t i = 0;
  if (HasWords) {
#if defined(__AVX512BW__)
    i = arrange_words<16>(from, i, pairs, to);
#endif
    i = arrange_words<8>(from, i, pairs, to);
  }
  for (; i < pairs; ++i) to[i] = arranged(from[i]);
  return to;
}

template <typename T, Placement kIn, Placement kOut>
ROPE_LOOP void rotate_head(Pairs<T, kIn> in, Pairs<T, kOut> out, int64_t pairs, const PairAngles<float> angles) {
  int64_t begin = 0;
  if constexpr (kHasWords<T, kIn, kOut>) {
#if defined(__AVX512BW__)
    begin = rotate_words<16>(in, out, begin, pairs, angles);
#endif
    begin = rotate_words<8>(in, out, begin, pairs, angles);
  } else {
#if defined(__AVX512BW__)
    begin = rotate_vectors<16>(in, out, begin, pairs, angles);
#endif
  }
  begin = rotate_vectors<8>(in, out, begin, pairs, angles);
  if (begin == pairs) return;
  rotate_last_pairs<T>({in.x, in.y, in.step}, {out.x, out.y, out.step}, begin, pairs, angles);
}

#endif

template <typename T, Placement kIn, Placement kOut, typename Real>
ROPE_LOOP void rotate_heads(const PairRun &in, const PairRun &out, int pairs, int64_t heads,
                            const PairAngles<Real> angles) {
#if defined(ROPE_HAS_VECTORS)
  if constexpr (sizeof(T) == 2 && kIn != Placement::kStrided && kOut != Placement::kStrided) {
    PairAngles<float> ordered = angles;
    float buffer[4][kMaxPairs];
    if constexpr (std::is_same_v<T, BFloat16>) {
      constexpr bool kInWords = kHasWords<T, kIn, kOut>;
      const bool is_shared = angles.cos_x == angles.cos_y && angles.sin_x == angles.sin_y;
      ordered.cos_x = arrange_angles<kInWords>(angles.cos_x, pairs, buffer[0]);
      ordered.sin_x = arrange_angles<kInWords>(angles.sin_x, pairs, buffer[1]);
      ordered.cos_y = is_shared ? ordered.cos_x : arrange_angles<kInWords>(angles.cos_y, pairs, buffer[2]);
      ordered.sin_y = is_shared ? ordered.sin_x : arrange_angles<kInWords>(angles.sin_y, pairs, buffer[3]);
    }
    for (int64_t head = 0; head < heads; ++head) {
      rotate_head(pairs_of_head<T, kIn>(in, head), pairs_of_head<T, kOut>(out, head), pairs, ordered);
    }
    return;
  }
#endif
  for (int64_t head = 0; head < heads; ++head) {
    rotate_pairs(pairs_of_head<T, kIn>(in, head), pairs_of_head<T, kOut>(out, head), 0, pairs, angles);
  }
}

template <typename T>
Placement placement_of(const PairRun &run) {
  if (run.step == 1) return Placement::kHalf;
  return run.step == 2 && static_cast<T *>(run.y) == static_cast<T *>(run.x) + 1 ? Placement::kInterleaved
                                                                                 : Placement::kStrided;
}

template <typename T, typename Real>
ROPE_LOOP void rotate_as_placed(const PairRun &in, const PairRun &out, int pairs, int64_t heads,
                                const PairAngles<Real> &angles) {
  const Placement from = placement_of<T>(in), to = placement_of<T>(out);
  if (from == Placement::kHalf && to == Placement::kHalf) {
    rotate_heads<T, Placement::kHalf, Placement::kHalf>(in, out, pairs, heads, angles);
  } else if (from == Placement::kInterleaved && to == Placement::kInterleaved) {
    rotate_heads<T, Placement::kInterleaved, Placement::kInterleaved>(in, out, pairs, heads, angles);
  } else if (from == Placement::kInterleaved && to == Placement::kHalf) {
    rotate_heads<T, Placement::kInterleaved, Placement::kHalf>(in, out, pairs, heads, angles);
  } else if (from == Placement::kHalf && to == Placement::kInterleaved) {
    rotate_heads<T, Placement::kHalf, Placement::kInterleaved>(in, out, pairs, heads, angles);
  } else {
    rotate_heads<T, Placement::kStrided, Placement::kStrided>(in, out, pairs, heads, angles);
  }
}

template <typename T, typename Real>
void rotate_run(const PairRun &in, const PairRun &out, int pairs, int64_t heads, const PairAngles<Real> &angles) {
  if (angles.cos_x == angles.cos_y && angles.sin_x == angles.sin_y) {
    const Real *cos = angles.cos_x, *sin = angles.sin_x;
    rotate_as_placed<T, Real>(in, out, pairs, heads, {cos, sin, cos, sin});
  } else {
    rotate_as_placed<T>(in, out, pairs, heads, angles);
  }
}

// ---- SwiGLU ----

// Whether cpu_gating.hpp is how forward is computed, for these bits must come of every placement of the elements.
#if defined(ROPE_HAS_GATED_BLOCKS)
template <bool IsPlain, typename T>
constexpr bool kIsGatedInBlocks = IsPlain && sizeof(T) <= sizeof(float);
#else
template <bool IsPlain, typename T>
constexpr bool kIsGatedInBlocks = false;
#endif

// What is made of a gate and an up.
template <bool IsPlain, typename Real>
struct FormGating {
  Form<Real> form;

  ROPE_LOOP Real operator()(Real gate, Real up) const { return swiglu<IsPlain>(gate, up, form); }
};

// The same of an activation without other options, whose form moves_within_range.
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

// Contiguous elements of gate, up and out.
template <typename T, typename Gating>
ROPE_LOOP void gate_elements(const T *gate, const T *up, T *out, int64_t begin, int64_t count, const Gating gating) {
  using Real = RealOf<T>;
  ROPE_INDEPENDENT
  for (int64_t i = begin; i < count; ++i) {
    out[i] = round_to<T>(gating(to_real<Real>(gate[i]), to_real<Real>(up[i])));
  }
}

// Two BFloat16s as the halves of a word: there they become floats, and come back, without being moved between lanes.
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

template <bool IsPlain, typename T>
ROPE_LOOP void gate_contiguous_form(const GatingRun &run, const Form<RealOf<T>> form) {
  if constexpr (kIsGatedInBlocks<IsPlain, T>) {
    gate_blocks(static_cast<const T *>(run.in[0]), static_cast<const T *>(run.in[1]), static_cast<T *>(run.out[0]),
                run.count, run.is_streamed);
  } else {
    gate_contiguous<T>(run, FormGating<IsPlain, RealOf<T>>{form});
  }
}

constexpr int64_t kChunk = 256;

// Types whose conversions are best done in the loop that computes; others go through chunks even where they lie side by
// side.
template <typename T>
constexpr bool kIsGatedDirectly = true;
#if defined(ROPE_HAS_VECTORS)
template <>
constexpr bool kIsGatedDirectly<Float16> = false;
#endif

template <typename Real>
struct Slopes {
  Real value[kChunk];
  Real slope[kChunk];
};

// A part of a run as numbers to compute with. Loops over it are of one function each.
template <typename Real>
struct GatingChunk {
  Real in[3][kChunk];
  Real row_scale[kChunk];
  Real out[3][kChunk];
  Real half_term[kChunk];
  // What the stages of gating_options.hpp make of gate and up.
  Slopes<Real> weight, linear, up;
  Real activated_weight[kChunk], activated_linear[kChunk], half_slope[kChunk];
};

template <typename T, typename Real>
void read_elements(const void *source, int64_t stride, int64_t begin, int64_t count, Real *values) {
  const T *element = static_cast<const T *>(source) + begin * stride;
  int64_t i = 0;
  if (stride != 1) {
    for (; i < count; ++i) values[i] = to_real<Real>(element[i * stride]);
    return;
  }
#if defined(ROPE_HAS_VECTORS)
  if constexpr (sizeof(T) == 2) {
    for (Vector<8> vector; i + 8 <= count; i += 8) {
      read_vector(element + i, &vector);
      vector.store(values + i);
    }
  }
#endif
  for (; i < count; ++i) values[i] = to_real<Real>(element[i]);
}

template <typename T, typename Real>
void write_elements(const Real *values, int64_t count, void *target, int64_t stride, int64_t begin) {
  T *element = static_cast<T *>(target) + begin * stride;
  int64_t i = 0;
  if (stride != 1) {
    for (; i < count; ++i) element[i * stride] = round_to<T>(values[i]);
    return;
  }
#if defined(ROPE_HAS_VECTORS)
  if constexpr (sizeof(T) == 2) {
    for (; i + 8 <= count; i += 8) write_vector(Vector<8>::load(values + i), element + i);
  }
#endif
  for (; i < count; ++i) element[i] = round_to<T>(values[i]);
}

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
    gate_blocks(chunk->in[0], chunk->in[1], out, length, false);
  } else {
    for (int64_t i = 0; i < length; ++i) {
      const Real row_scale = IsPlain ? Real{1} : chunk->row_scale[i];
      out[i] = swiglu<IsPlain>(chunk->in[0][i], chunk->in[1][i], form, row_scale);
    }
  }
}

// In double there is nothing to lose of a sum of floats; a sum of doubles keeps its rests.
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

// The weights and linear factors of a chunk's gates.
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

template <typename T>
void round_chunk(GatingChunk<RealOf<T>> *chunk, int64_t length, const ChunkForm<RealOf<T>> form) {
  if constexpr (sizeof(T) == 2) {
    for (int64_t i = 0; i < length; ++i) {
      const Slope<float> linear = {chunk->linear.value[i], chunk->linear.slope[i]};
      set_activated(chunk, i, round_activation<T>(chunk->in[0][i], activated_at(*chunk, i), linear, form));
    }
  }
}

// Gate and up go through the stages of gating_options.hpp as far as the product.
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
  Real bias[kChunk];
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

// Forward, of an activation without other options and without a row_scale.
template <Activation kActivation, typename T>
void gate_by_activation(const GatingRun &run, const FormWithOptions<RealOf<T>> &form) {
  using Real = RealOf<T>;
  const ActivationGating<kActivation, T> gating = {form};
  if (kIsGatedDirectly<T> && is_contiguous(run)) return gate_contiguous<T>(run, gating);
  GatingChunk<Real> chunk;
  for (int64_t begin = 0; begin < run.count; begin += kChunk) {
    const int64_t length = run.count - begin < kChunk ? run.count - begin : kChunk;
    for (int input = 0; input < 2; ++input) {
      read_elements<T>(run.in[input], run.in_stride[input], begin, length, chunk.in[input]);
    }
    gate_elements(chunk.in[0], chunk.in[1], chunk.out[0], 0, length, gating);
    write_elements<T>(chunk.out[0], length, run.out[0], run.out_stride[0], begin);
  }
}

// False: the form has more than that.
template <typename T>
bool gate_by_activation_alone(const GatingRun &run, const GatingForm &given, const FormWithOptions<RealOf<T>> &form) {
  if (given.limits_activation || given.rounds_activation || given.gate_softcap != 0 || given.up_softcap != 0) {
    return false;
  }
  if (run.bias[0] != nullptr || run.bias[1] != nullptr || run.row_scale != nullptr || !moves_within_range(form)) {
    return false;
  }
  switch (given.activation) {
    case Activation::kGegluErf:
      return gate_by_activation<Activation::kGegluErf, T>(run, form), true;
    case Activation::kGegluTanh:
      return gate_by_activation<Activation::kGegluTanh, T>(run, form), true;
    case Activation::kReglu:
      return gate_by_activation<Activation::kReglu, T>(run, form), true;
    default:
      return false;
  }
}

bool has_options(const GatingRun &run, const GatingForm &form) {
  return form.has_options || run.bias[0] != nullptr || run.bias[1] != nullptr;
}

// Forward and backward of forms with options.
template <typename T, bool IsBackward>
void gate_with_options(const GatingRun &run, const GatingForm &given, RowSum<double> *row_sum) {
  using Real = RealOf<T>;
  constexpr int kInputs = IsBackward ? 3 : 2, kOutputs = IsBackward ? 3 : 1;
  const FormWithOptions<Real> form = form_with_options_in<Real>(given);
  if (!IsBackward && gate_by_activation_alone<T>(run, given, form)) return;
  GatingChunk<Real> chunk;
  for (int64_t begin = 0; begin < run.count; begin += kChunk) {
    const int64_t length = run.count - begin < kChunk ? run.count - begin : kChunk;
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
      write_elements<T>(chunk.out[output], length, run.out[output], run.out_stride[output], begin);
    }
  }
}

template <typename T>
void swiglu_forward(const GatingRun &run, const GatingForm &given) {
  using Real = RealOf<T>;
  if (has_options(run, given)) return gate_with_options<T, false>(run, given, nullptr);
  const Form<Real> form = form_in<Real>(given);
  const bool is_plain = form.is_plain && run.row_scale == nullptr;
  if (is_contiguous(run) && run.row_scale == nullptr) {
    if (is_plain && (kIsGatedDirectly<T> || kIsGatedInBlocks<true, T>)) return gate_contiguous_form<true, T>(run, form);
    if (!is_plain && kIsGatedDirectly<T>) return gate_contiguous_form<false, T>(run, form);
  }
  GatingChunk<Real> chunk;
  for (int64_t begin = 0; begin < run.count; begin += kChunk) {
    const int64_t length = run.count - begin < kChunk ? run.count - begin : kChunk;
    for (int input = 0; input < 2; ++input) {
      read_elements<T>(run.in[input], run.in_stride[input], begin, length, chunk.in[input]);
    }
    if (is_plain) {
      gate_chunk<true>(&chunk, length, form, chunk.out[0]);
    } else {
      read_row_scale<T>(run, begin, length, chunk.row_scale);
      gate_chunk<false>(&chunk, length, form, chunk.out[0]);
    }
    write_elements<T>(chunk.out[0], length, run.out[0], run.out_stride[0], begin);
  }
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

// Values go through small buffers, so that one loop serves any of the outputs, in place or not.
template <typename T>
void swiglu_backward(const GatingRun &run, const GatingForm &given, RowSum<double> *row_sum) {
  if (has_options(run, given)) return gate_with_options<T, true>(run, given, row_sum);
  const Form<RealOf<T>> form = form_in<RealOf<T>>(given);
  const bool is_plain = form.is_plain && run.row_scale == nullptr;
  GatingChunk<RealOf<T>> chunk;
  for (int64_t begin = 0; begin < run.count; begin += kChunk) {
    const int64_t length = run.count - begin < kChunk ? run.count - begin : kChunk;
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
      write_elements<T>(chunk.out[output], length, run.out[output], run.out_stride[output], begin);
    }
  }
}

}  // namespace

}  // namespace rope
