// SPDX-License-Identifier: Apache-2.0
// cpu_step_loops.hpp - the inner loops of the step: heads go from their input through a buffer of numbers to all their
// destinations, or in vectors if cpu_step_slices.hpp or cpu_step_floats.hpp supports the step
//
// The file is in an unnamed namespace; cpu_loops.hpp explains this.
#pragma once

#include "backend/cpu/cpu_loops.hpp"
#include "backend/cpu/cpu_norm.hpp"
#include "backend/cpu/cpu_step_codes.hpp"
#include "backend/cpu/cpu_step_floats.hpp"
#include "backend/cpu/cpu_step_slices.hpp"
#include "backend/cpu/cpu_windows.hpp"
#include "core/math/norm.hpp"

namespace rope {

namespace {

// As many heads as fit go through each loop together, so that the latency of one head's sum is hidden behind the
// others.
constexpr int kStepValues = kMaxHeadDim;
constexpr int kMaxStepHeads = kStepValues / kSumRun;

template <typename Real>
struct StepHeads {
  Real values[kStepValues];
  Real before[kStepValues];  // before the rotation, if pairs move
  Real weight[kMaxHeadDim];  // with the offset added
  Real bias[kMaxHeadDim];
  Real mean[kMaxStepHeads];
  Real inverse[kMaxStepHeads];
  int64_t first;  // first head, counted in the run
  int count;
  int stride;  // stride of `values`

  ROPE_LOOP Real *head(int number) { return values + number * stride; }
};

template <typename T, typename Real>
ROPE_LOOP void weigh_values(const NormForm<Real> &form, const Real inverse, const Real *weight, const Real *bias,
                            Real *values, const int count) {
  if (weight != nullptr && !form.rounds_before_weight) {
    for (int i = 0; i < count; ++i) {
      values[i] = multiply_rounded(multiply_rounded(values[i], inverse), weight[i]);
    }
  } else {
    for (int i = 0; i < count; ++i) values[i] = multiply_rounded(values[i], inverse);
    if (form.rounds_before_weight) round_values<T>(values, count);
    if (weight != nullptr) {
      for (int i = 0; i < count; ++i) values[i] = multiply_rounded(values[i], weight[i]);
    }
  }
  if (form.rounds_after_weight) round_values<T>(values, count);
  if (bias == nullptr) return;
  for (int i = 0; i < count; ++i) values[i] = add_rounded(values[i], bias[i]);
  if (form.rounds_after_weight) round_values<T>(values, count);
}

// Turns windows of floats, and rounds products and sums to T one by one, pair after pair. The loop is not optimised:
// few calls have both these roundings and a step.
template <typename T>
void turn_rounding_each(const StepRun<float> &run, const Window &in, const Window &out, const StepHeads<float> &heads) {
  for (int64_t head = 0; head < heads.count; ++head) {
    const float *const from = reinterpret_cast<const float *>(in.data) + head * heads.stride;
    float *const to = reinterpret_cast<float *>(out.data) + head * heads.stride;
    for (int pair = 0; pair < run.pairs; ++pair) {
      const float *const x = from + first_channel(pair, in.distance);
      float *const to_x = to + first_channel(pair, out.distance);
      const Pair<float> turned =
          rounded_to<T>(rotate_in<T, float>({x[0], x[in.distance]}, {run.angles.cos_x[pair], run.angles.sin_x[pair]},
                                            {run.angles.cos_y[pair], run.angles.sin_y[pair]}));
      to_x[0] = turned.x;
      to_x[out.distance] = turned.y;
    }
  }
}

// Turns the windows of T's, or only moves their pairs.
template <typename T, typename Real>
void turn_heads(const StepRun<Real> &run, StepHeads<Real> *heads) {
  constexpr int64_t kSize = sizeof(Real);
  const bool moves = run.in_distance != run.out_distance;
  if (!run.is_turned && !moves) return;
  Real *source = heads->values;
  if (moves) {
    source = heads->before;
    memcpy(source, heads->values, static_cast<size_t>(heads->count * heads->stride * kSize));
  }
  const Window in = {reinterpret_cast<char *>(source + run.window_begin), 1, run.in_distance};
  const Window out = {reinterpret_cast<char *>(heads->values + run.window_begin), 1, run.out_distance};
  if (run.is_turned) {
    if constexpr (sizeof(T) == 2) {
      if (run.rounds_each) return turn_rounding_each<T>(run, in, out, *heads);
    }
    const int length = pairs_of_run(in, out, run.pairs);
    for (int pair = 0; pair < run.pairs; pair += length) {
      rotate_run<Real, Real>(in.run_from(pair, kSize, heads->stride), out.run_from(pair, kSize, heads->stride), length,
                             heads->count, run.angles.from(pair));
    }
    return;
  }
  for (int64_t i = 0; i < heads->count; ++i) {
    const int64_t offset = i * heads->stride * kSize;
    move_pairs({in.data + offset, 1, in.distance}, {out.data + offset, 1, out.distance}, kSize, run.pairs);
  }
}

template <typename T, typename Real>
ROPE_LOOP const T *head_of_run(const StepRun<Real> &run, int64_t head) {
  return reinterpret_cast<const T *>(run.in) + head * run.head_stride;
}

// Reads heads from `first` on as the input of a norm, or as the input of the rotation.
template <typename T, typename Real>
void read_heads(const StepRun<Real> &run, int64_t first, StepHeads<Real> *heads) {
  const int max = kStepValues / heads->stride;
  heads->first = first;
  heads->count = run.heads - first < max ? static_cast<int>(run.heads - first) : max;
  const bool is_contiguous = run.pass == nullptr && run.channel_stride == 1 && run.head_stride == run.channels &&
                             heads->stride == run.channels;
  if (is_contiguous) {
    read_elements<T>(head_of_run<T>(run, first), 1, 0, int64_t{heads->count} * run.channels, heads->values);
  } else if (run.pass == nullptr) {
    for (int i = 0; i < heads->count; ++i) {
      read_elements<T>(head_of_run<T>(run, first + i), run.channel_stride, 0, run.channels, heads->head(i));
    }
  } else {
    const int begin = run.window_begin, end = begin + 2 * run.pairs;
    for (int i = 0; i < heads->count; ++i) {
      Real *const values = heads->head(i);
      const T *const others = reinterpret_cast<const T *>(run.pass) + (first + i) * run.pass_head_stride;
      read_elements<T>(others, run.pass_channel_stride, 0, begin, values);
      read_elements<T>(head_of_run<T>(run, first + i), run.channel_stride, begin, end - begin, values + begin);
      read_elements<T>(others, run.pass_channel_stride, begin, run.channels - end, values + end);
    }
  }
  if (run.is_norm_after) turn_heads<T>(run, heads);
}

template <typename Real>
void subtract_means(const StepRun<Real> &run, bool is_of_token, Real mean_of_token, StepHeads<Real> *heads) {
  for (int head = 0; head < heads->count; ++head) {
    Real *values = heads->head(head);
    pad_terms(values, run.channels);
    const Real mean = is_of_token ? mean_of_token : mean_of(*run.norm, sum_of_terms(values, run.channels, Value()));
    for (int i = 0; i < run.channels; ++i) values[i] = add_rounded(values[i], -mean);
  }
}

template <typename Real>
ROPE_LOOP Real sum_of_squares(const StepRun<Real> &run, StepHeads<Real> *heads, int head) {
  pad_terms(heads->head(head), run.channels);
  return sum_of_terms(heads->head(head), run.channels, Square());
}

// The norm over all heads.
template <typename Real>
struct TokenNorm {
  Real mean;
  Real inverse;
};

template <typename T, typename Real>
TokenNorm<Real> norm_of_token(const StepRun<Real> &run, StepHeads<Real> *heads) {
  const NormForm<Real> &form = *run.norm;
  TreeSum<Real> sum, squares;
  for (int64_t first = 0; form.is_layer && first < run.heads; first += heads->count) {
    read_heads<T>(run, first, heads);
    for (int i = 0; i < heads->count; ++i) {
      pad_terms(heads->head(i), run.channels);
      sum.add(sum_of_terms(heads->head(i), run.channels, Value()));
    }
  }
  const Real mean = form.is_layer ? mean_of(form, sum.total()) : 0;
  for (int64_t first = 0; first < run.heads; first += heads->count) {
    read_heads<T>(run, first, heads);
    if (form.is_layer) subtract_means(run, true, mean, heads);
    for (int i = 0; i < heads->count; ++i) squares.add(sum_of_squares(run, heads, i));
  }
  return {mean, inverse_norm(form, squares.total())};
}

template <typename T, typename Real>
void norm_heads(const StepRun<Real> &run, const TokenNorm<Real> &of_token, StepHeads<Real> *heads) {
  const NormForm<Real> &form = *run.norm;
  const int count = run.channels;
  if (form.is_layer) subtract_means(run, run.is_norm_of_token, of_token.mean, heads);
  for (int i = 0; i < heads->count; ++i) {
    heads->inverse[i] = run.is_norm_of_token ? of_token.inverse : sum_of_squares(run, heads, i);
  }
  if (!run.is_norm_of_token) {
    for (int i = 0; i < heads->count; ++i) heads->inverse[i] = inverse_norm(form, heads->inverse[i]);
  }
  for (int i = 0; i < heads->count; ++i) {
    const Real *weight = read_numbers<T>(run.weight, heads->first + i, count, form.weight_offset, heads->weight);
    const Real *bias = read_numbers<T>(run.bias, heads->first + i, count, -Real{0}, heads->bias);
    weigh_values<T>(form, heads->inverse[i], weight, bias, heads->head(i), count);
  }
}

template <typename T, typename Real>
void scale_heads(const StepRun<Real> &run, StepHeads<Real> *heads) {
  for (int i = 0; i < heads->count; ++i) {
    const Real factor = factor_of<T, Real>(run.factor, heads->first + i);
    Real *const values = heads->head(i);
    for (int channel = 0; channel < run.channels; ++channel)
      values[channel] = multiply_rounded(values[channel], factor);
  }
}

// Stores channels `begin` to `end` of heads as those from `at` on of a target.
template <typename T, typename Real>
void write_channels(const StepTarget &target, StepHeads<Real> *heads, int begin, int end, int at) {
  T *out = reinterpret_cast<T *>(target.data) + heads->first * target.head_stride;
  const bool is_contiguous = target.channel_stride == 1 && target.head_stride == heads->stride && begin == 0 &&
                             at == 0 && end == heads->stride;
  if (is_contiguous) return write_elements<T>(heads->values, int64_t{heads->count} * end, out, 1, 0);
  for (int i = 0; i < heads->count; ++i, out += target.head_stride) {
    write_elements<T>(heads->head(i) + begin, end - begin, out, target.channel_stride, at);
  }
}

// Copies those channels of a head that a target has, in the target's order; returns their number.
inline int take_part(const StepRun<float> &run, const ChannelPart &part, const float *head, float *values) {
  const int window = 2 * run.pairs, begin = run.window_begin, end = begin + window;
  const int count = part.count(run.channels, window);
  const auto take = [&](int from, int to, int number) {
    memcpy(values + to, head + from, static_cast<size_t>(number) * sizeof *values);
  };
  if (part.has_window && part.has_others) {
    take(0, 0, count);
  } else if (part.has_window) {
    take(begin, 0, count);
  } else {
    take(0, 0, begin);
    take(end, begin, count - begin);
  }
  return count;
}

// Converts heads to codes through `before`.
template <typename T, typename Float8>
void write_codes_of(const StepRun<float> &run, const StepTarget &target, StepHeads<float> *heads) {
  float *const values = heads->before;
  for (int i = 0; i < heads->count; ++i) {
    const int64_t head = heads->first + i;
    const int count = take_part(run, target.part, heads->head(i), values);
    if (run.code.rounds_before) round_values<T>(values, count);
    Float8 *const out = reinterpret_cast<Float8 *>(target.data) + head * target.head_stride;
    const int groups = target.groups(), channels = count / groups;
    for (int group = 0; group < groups; ++group) {
      const int begin = group * channels, end = begin + channels;
      uint32_t magnitude = 0;
      if (run.code.needs_magnitudes(target)) raise_magnitude(values + begin, channels, &magnitude);
      const float factor = code_factor_of<Float8>(run.code, target, head, group, magnitude);
#if defined(ROPE_HAS_VECTORS)
      if (target.channel_stride == 1) {
        encode_channels(values, out, begin, end, factor);
        continue;
      }
#endif
      for (int channel = begin; channel < end; ++channel) {
        out[channel * target.channel_stride] = round_to<Float8>(multiply_rounded(values[channel], factor));
      }
    }
  }
}

template <typename T>
void write_codes(const StepRun<float> &run, const StepTarget &target, StepHeads<float> *heads) {
  if (target.type == kCpuE4M3) return write_codes_of<T, Float8E4M3>(run, target, heads);
  write_codes_of<T, Float8E5M2>(run, target, heads);
}

template <typename T, typename Real>
void write_heads(const StepTarget &target, StepHeads<Real> *heads, int begin, int end, int at) {
  if constexpr (std::is_same_v<T, float>) {
    if (target.type == kCpuF16) return write_channels<Float16>(target, heads, begin, end, at);
    if (target.type == kCpuBF16) return write_channels<BFloat16>(target, heads, begin, end, at);
  }
  write_channels<T>(target, heads, begin, end, at);
}

// Adds the contents of a target of T's, all channels of heads, to the heads' values.
template <typename T, typename Real>
void add_channels(const StepTarget &target, int channels, StepHeads<Real> *heads) {
  const T *held = reinterpret_cast<const T *>(target.data) + heads->first * target.head_stride;
  for (int i = 0; i < heads->count; ++i, held += target.head_stride) {
    Real *const values = heads->head(i);
    read_elements<T>(held, target.channel_stride, 0, channels, heads->before);
    for (int channel = 0; channel < channels; ++channel) {
      values[channel] = add_rounded(values[channel], heads->before[channel]);
    }
  }
}

template <typename T, typename Real>
void add_heads(const StepTarget &target, int channels, StepHeads<Real> *heads) {
  if constexpr (std::is_same_v<T, float>) {
    if (target.type == kCpuF16) return add_channels<Float16>(target, channels, heads);
    if (target.type == kCpuBF16) return add_channels<BFloat16>(target, channels, heads);
  }
  add_channels<T>(target, channels, heads);
}

template <typename T>
ROPE_LOOP Window window_of_target(const StepTarget &target, int64_t head, int begin, int distance) {
  const int64_t offset = head * target.head_stride + begin * target.channel_stride;
  return {target.data + offset * static_cast<int64_t>(sizeof(T)), target.channel_stride, distance};
}

template <typename T, typename Real>
ROPE_LOOP Window window_of_head(const StepRun<Real> &run, int64_t head) {
  char *data = const_cast<char *>(run.in) + head * run.head_stride * static_cast<int64_t>(sizeof(T));
  return {data, run.channel_stride, run.in_distance};
}

// Copies channels outside the window unchanged.
template <typename T, typename Real>
void copy_others(const StepRun<Real> &run, const StepTarget &target, int64_t head) {
  constexpr int64_t kSize = sizeof(T);
  const int begin = run.window_begin, end = begin + 2 * run.pairs;
  Window in = window_of_head<T>(run, head);
  int in_behind = end;
  if (run.pass != nullptr) {
    in = {const_cast<char *>(run.pass) + head * run.pass_head_stride * kSize, run.pass_channel_stride, 0};
    in_behind = begin;
  }
  const Window out = window_of_target<T>(target, head, 0, 0);
  copy_channels(in, out, kSize, 0, begin);
  const Window behind = {in.channel(in_behind, kSize), in.channel_stride, 0};
  copy_channels(behind, window_of_target<T>(target, head, target.part.behind_at, 0), kSize, 0, run.channels - end);
}

// Copies heads that are neither normed nor turned. Conversion would change their NaNs.
template <typename T, typename Real>
void move_heads(const StepRun<Real> &run) {
  constexpr int64_t kSize = sizeof(T);
  T buffer[kMaxHeadDim];
  const int width = 2 * run.pairs;
  for (int64_t head = 0; head < run.heads; ++head) {
    const Window in = window_of_head<T>(run, head);
    Window window = {in.channel(run.window_begin, kSize), in.channel_stride, run.in_distance};
    if (run.in_distance != run.out_distance) {
      const Window copy = {reinterpret_cast<char *>(buffer), 1, run.in_distance};
      copy_channels(window, copy, kSize, 0, width);
      window = copy;
    }
    for (int i = 0; i < run.num_targets; ++i) {
      const StepTarget &target = run.targets[i];
      const Window out = window_of_target<T>(target, head, target.part.window_at, run.out_distance);
      if (target.part.has_window && run.in_distance != run.out_distance) {
        move_pairs(window, out, kSize, run.pairs);
      } else if (target.part.has_window) {
        copy_channels(window, out, kSize, 0, width);
      }
      if (target.part.has_others) copy_others<T>(run, target, head);
    }
  }
}

template <typename Real>
StepRun<Real> run_to(const StepRun<Real> &run, bool has_codes) {
  StepRun<Real> part = run;
  part.num_targets = 0;
  for (int i = 0; i < run.num_targets; ++i) {
    if (run.targets[i].has_codes() == has_codes) part.targets[part.num_targets++] = run.targets[i];
  }
  return part;
}

// Does the work of run_step. Out of line, so that its buffers are not on the stack of the other loops.
template <typename T>
__attribute__((noinline)) void step_through_buffers(const StepRun<RealOf<T>> &given) {
  using Real = RealOf<T>;
  const bool is_normed = given.norm != nullptr, is_scaled = given.factor.is_present();
  // Conversion to Real and back changes NaNs, so values that must keep their bits are copied instead.
  const bool keeps_others = sizeof(T) < sizeof(Real) && !is_normed && !is_scaled && !given.accumulates;
  const bool keeps_all = keeps_others && !given.is_turned;
  if (keeps_all && !given.has_codes()) return move_heads<T>(given);
  StepRun<Real> of_codes;
  if (keeps_all) of_codes = run_to(given, true);
  const StepRun<Real> &run = keeps_all ? of_codes : given;
  StepHeads<Real> heads;
  heads.stride = (run.channels + kSumRun - 1) / kSumRun * kSumRun;
  const int begin = run.window_begin, end = begin + 2 * run.pairs;
  TokenNorm<Real> of_token = {};
  if (is_normed && run.is_norm_of_token) of_token = norm_of_token<T>(run, &heads);
  for (int64_t first = 0; first < run.heads; first += heads.count) {
    read_heads<T>(run, first, &heads);
    if (is_normed) norm_heads<T>(run, of_token, &heads);
    if (!run.is_norm_after) turn_heads<T>(run, &heads);
    if (is_scaled) scale_heads<T>(run, &heads);
    if (run.accumulates) add_heads<T>(run.targets[0], run.channels, &heads);
    for (int i = 0; i < run.num_targets; ++i) {
      const StepTarget &target = run.targets[i];
      if constexpr (std::is_same_v<Real, float>) {
        if (target.has_codes()) {
          write_codes<T>(run, target, &heads);
          continue;
        }
      }
      const ChannelPart &part = target.part;
      const bool writes_others = part.has_others && !keeps_others;
      if (part.has_window && writes_others) {
        write_heads<T>(target, &heads, 0, run.channels, 0);
      } else if (part.has_window) {
        write_heads<T>(target, &heads, begin, end, part.window_at);
      } else if (writes_others) {
        write_heads<T>(target, &heads, 0, begin, 0);
        write_heads<T>(target, &heads, end, run.channels, part.behind_at);
      }
      if (!keeps_others || !part.has_others) continue;
      for (int64_t head = first; head < first + heads.count; ++head) copy_others<T>(run, target, head);
    }
  }
  // This comes last, because the input may be one of the destinations.
  if (keeps_all) move_heads<T>(run_to(given, false));
}

template <typename T>
void run_step(const StepRun<RealOf<T>> &run) {
#if defined(ROPE_HAS_VECTORS)
  if constexpr (std::is_same_v<RealOf<T>, float>) {
    if (is_contiguous(run)) {
      if (run.norm != nullptr && run.norm->is_layer) return step_floats<T>(run);
      return step_contiguous<T>(run);
    }
  }
#endif
  step_through_buffers<T>(run);
}

}  // namespace

}  // namespace rope
