// SPDX-License-Identifier: Apache-2.0
// cpu_step_vectors.hpp - the norm and the rotation of heads with channels side by side: the numbers of a run in the
// order of the loops of cpu_step_rows.hpp, slices of heads, and which loop each part of a head takes
//
// The file is in an unnamed namespace; cpu_loops.hpp explains this.
#pragma once

#include "backend/cpu/cpu_loops.hpp"
#include "backend/cpu/cpu_norm.hpp"
#include "backend/cpu/cpu_step_rows.hpp"
#include "core/math/norm.hpp"

#if defined(ROPE_HAS_VECTORS)

namespace rope {

namespace {

// ---- The numbers of a run's heads, in the order of the loops ----

template <typename T>
struct StepNumbers {
  float ordered_angles[2][kMaxHeadDim];  // cosines and sines, or the two factors of turn_neighbours
  PairAngles<float> angles;

  static constexpr bool kIsWords = std::is_same_v<T, BFloat16>;
};

ROPE_LOOP int length_of_runs(const StepRun<float> &run) {
  return run.in_distance == 1 || run.in_distance > run.pairs ? run.pairs : run.in_distance;
}

template <typename T>
void order_angles(const StepRun<float> &run, StepNumbers<T> *numbers) {
  const PairAngles<float> &given = run.angles;
  numbers->angles = given;
  if (!run.is_turned) return;
  const bool is_half = run.in_distance != 1;
  if constexpr (StepNumbers<T>::kIsWords) {
    const int length = length_of_runs(run);
    const auto order = [&](const float *from, float *to) -> const float * {
      if (!is_half) return arrange_angles<false>(from, run.pairs, to);
      for (int pair = 0; pair < run.pairs; pair += length) arrange_angles<true>(from + pair, length, to + pair);
      return to;
    };
    const bool is_shared = given.cos_x == given.cos_y && given.sin_x == given.sin_y;
    PairAngles<float> &angles = numbers->angles;
    angles.cos_x = order(given.cos_x, numbers->ordered_angles[0]);
    angles.sin_x = order(given.sin_x, numbers->ordered_angles[1]);
    angles.cos_y = is_shared ? angles.cos_x : order(given.cos_y, numbers->ordered_angles[0] + kMaxPairs);
    angles.sin_y = is_shared ? angles.sin_x : order(given.sin_y, numbers->ordered_angles[1] + kMaxPairs);
  } else if (!is_half) {
    float *__restrict of_itself = numbers->ordered_angles[0], *__restrict of_other = numbers->ordered_angles[1];
    for (int64_t pair = 0; pair < run.pairs; ++pair) {
      of_itself[2 * pair] = given.cos_x[pair];
      of_itself[2 * pair + 1] = given.cos_y[pair];
      of_other[2 * pair] = -given.sin_x[pair];
      of_other[2 * pair + 1] = given.sin_y[pair];
    }
  }
}

template <typename T>
void order_weights(const StepRun<float> &run, int64_t head) {
  if (run.norm == nullptr) return;
  OrderedWeights &weights = *run.weights;
  const bool is_kept = weights.is_filled && weights.is_turned == run.is_turned && run.weight.head_stride == 0;
  if (is_kept) return;
  weights.is_filled = run.weight.head_stride == 0;
  weights.is_turned = run.is_turned;
  if (read_numbers<T>(run.weight, head, run.channels, run.norm->weight_offset, weights.plain) == nullptr) {
    for (int i = 0; i < run.channels; ++i) weights.plain[i] = 1;
  }
  if (!StepNumbers<T>::kIsWords) return;
  if (!run.is_turned) {
    arrange_angles<true>(weights.plain, run.channels, weights.ordered);
    return;
  }
  const float *window = weights.plain + run.window_begin;
  float *__restrict x = weights.ordered, *__restrict y = weights.ordered + kMaxPairs;
  if (run.in_distance == 1) {
    for (int64_t pair = 0; pair < run.pairs; ++pair) {
      x[pair] = arranged(window[2 * pair]);
      y[pair] = arranged(window[2 * pair + 1]);
    }
    return;
  }
  const int length = length_of_runs(run);
  for (int pair = 0; pair < run.pairs; pair += length) {
    const float *first = window + first_channel(pair, run.in_distance);
    arrange_angles<true>(first, length, x + pair);
    arrange_angles<true>(first + run.in_distance, length, y + pair);
  }
}

// ---- Heads ----

// Channels from `begin` to `end`, which are not turned. FloatBesideWord has no words of them.
template <typename T, typename U, typename Rounded>
ROPE_LOOP void pass_channels(const HeadRows<T, U, Rounded> rows, int begin, int end, const float *weights) {
  if constexpr (std::is_same_v<T, U> && std::is_void_v<Rounded>) {
    const size_t bytes = static_cast<size_t>(end - begin) * sizeof(T);
    for (int head = 0; bytes > 0 && head < rows.count; ++head) {
      memcpy(rows.out + head * rows.out_stride + begin, rows.read(head, begin), bytes);
    }
  } else if constexpr (WordRows<U>::kHasWords) {
    HeadRows<T, float, void> floats = {};
    floats.in = rows.in;
    floats.out = &rows.out->value;
    floats.in_stride = rows.in_stride;
    floats.out_stride = rows.out_stride;
    floats.count = rows.count;
    pass_channels(floats, begin, end, weights);
  } else if constexpr (std::is_same_v<U, SharedSquare>) {
    static_assert(std::is_void_v<Rounded>, "weights are not in the order of words");
    weigh_words<8>(rows, begin, end, weights);
  } else {
#if defined(__AVX512BW__)
    begin = weigh_vectors<16>(rows, begin, end, weights);
#endif
    begin = weigh_vectors<8>(rows, begin, end, weights);
    if (begin < end) weigh_last(rows, begin, end, weights);
  }
}

template <typename T, typename U, typename Rounded>
ROPE_LOOP void turn_windows(const StepRun<float> &run, const HeadRows<T, U, Rounded> rows, StepNumbers<T> *numbers) {
  constexpr bool kIsWords = StepNumbers<T>::kIsWords;
  const int window = run.window_begin, distance = run.in_distance;
  const float *weights = run.weights->plain + window, *ordered = run.weights->ordered;
  if (distance == 1) {
    int done = 0;
    if constexpr (kIsWords) {
      const TurnedRun all = {window, window + 1, ordered, ordered + kMaxPairs};
#if defined(__AVX512BW__)
      done = turn_words<16>(rows, done, run.pairs, all, numbers->angles);
#endif
      done = turn_words<8>(rows, done, run.pairs, all, numbers->angles);
    } else {
      const float *of_itself = numbers->ordered_angles[0], *of_other = numbers->ordered_angles[1];
#if defined(__AVX512BW__)
      done = turn_neighbours<16>(rows, window, done, 2 * run.pairs, weights, of_itself, of_other);
#endif
      done = turn_neighbours<8>(rows, window, done, 2 * run.pairs, weights, of_itself, of_other) / 2;
    }
    if constexpr (!std::is_same_v<U, SharedSquare>) {
      if (done < run.pairs) {
        turn_last(rows, done, run.pairs, 2, {window, window + 1, weights, weights + 1}, run.angles);
      }
    }
    return;
  }
  const int length = length_of_runs(run);
  for (int pair = 0; pair < run.pairs; pair += length) {
    const int first = first_channel(pair, distance);
    TurnedRun part = {window + first, window + first + distance, weights + first, weights + first + distance};
    const PairAngles<float> angles = numbers->angles.from(pair);
    int done = 0;
    if constexpr (kIsWords) {
      part.weights_x = ordered + pair;
      part.weights_y = ordered + kMaxPairs + pair;
#if defined(__AVX512BW__)
      done = turn_words_of_halves<16>(rows, done, length, part, angles);
#endif
      done = turn_words_of_halves<8>(rows, done, length, part, angles);
    } else {
#if defined(__AVX512BW__)
      done = turn_halves<16>(rows, done, length, part, angles);
#endif
    }
    if constexpr (!std::is_same_v<U, SharedSquare>) {
      done = turn_halves<8>(rows, done, length, part, angles);
      if (done < length) turn_last(rows, done, length, 1, part, angles);
    }
  }
}

// Whether heads, and the windows that are turned, consist of blocks of `block` channels.
bool is_made_of(const StepRun<float> &run, int block) {
  const int pairs = run.in_distance == 1 ? 2 * run.pairs : length_of_runs(run);
  return run.channels % block == 0 && (!run.is_turned || (run.window_begin % block == 0 && pairs % block == 0));
}

// Heads one after another.
struct HeadBlock {
  char *data;
  int64_t stride;  // in elements
};

// Heads of a run that go through all loops before the next heads, so that they stay in the first cache. Normed heads
// are contiguous: a pass and its windows have been combined.
constexpr int kMaxSliceHeads = 8;

template <typename T>
struct HeadSlice {
  int64_t first;  // first head, counted in the run
  int count;
  int64_t ahead;        // heads_ahead
  bool is_prefetching;  // the loop that turns heads without a norm prefetches others
  const T *in;          // channel 0 of the first head, or the address that it would have
  int64_t in_stride;
  const T *before;  // channels before the window, indexed as in a head
  const T *behind;  // channels behind the window
  int64_t others_stride;
  float inverse[kMaxSliceHeads];  // inverse norms
  float factor[kMaxSliceHeads];   // row factors

  ROPE_LOOP const T *head(int number) const { return in + number * in_stride; }
  // Whether heads are contiguous.
  ROPE_LOOP bool is_whole() const { return before == in; }
};

// Prefetches a head. Numbers behind the run's heads are those of the next token's if its heads follow in memory. A head
// that does not exist is harmless.
template <typename T>
ROPE_LOOP void prefetch_head(const StepRun<float> &run, int64_t head) {
  if (run.pass == nullptr) return prefetch_channels<T>(run.in, head, run.head_stride, 0, run.channels);
  const int64_t window = int64_t{2} * run.pairs;
  prefetch_channels<T>(run.in, head, run.head_stride, run.window_begin, window);
  prefetch_channels<T>(run.pass, head, run.pass_head_stride, 0, run.channels - window);
}

// Prefetches the head that is read a while after head `i` of the slice.
template <typename T>
ROPE_LOOP void prefetch_after(const StepRun<float> &run, const HeadSlice<T> &slice, int i) {
  prefetch_head<T>(run, slice.first + i + slice.ahead);
}

template <typename T>
ROPE_LOOP void prefetch_after_all(const StepRun<float> &run, const HeadSlice<T> &slice) {
  for (int i = 0; i < slice.count; ++i) prefetch_after(run, slice, i);
}

template <typename T, typename U, typename Rounded>
void step_heads(const StepRun<float> &run, const HeadSlice<T> &slice, const HeadBlock &to, bool is_window_alone,
                StepNumbers<T> *numbers, const WordRows<U> &words = {}) {
  const int begin = run.window_begin, end = begin + 2 * run.pairs;
  HeadRows<T, U, Rounded> rows;
  static_cast<WordRows<U> &>(rows) = words;
  rows.in = slice.in;
  rows.out = reinterpret_cast<U *>(to.data);
  rows.in_stride = slice.in_stride;
  rows.out_stride = to.stride;
  rows.count = slice.count;
  rows.inverse = slice.inverse;
  rows.rounds_before_weight = run.norm != nullptr && run.norm->rounds_before_weight;
  rows.rounds_after_weight = run.norm != nullptr && run.norm->rounds_after_weight;
  rows.is_norm_after = run.is_norm_after;
  if (!run.is_turned && slice.is_whole()) {
    int done = 0;
    if constexpr (StepNumbers<T>::kIsWords && !std::is_void_v<Rounded>) {
#if defined(__AVX512BW__)
      done = weigh_words<16>(rows, done, run.channels, run.weights->ordered);
#endif
      done = weigh_words<8>(rows, done, run.channels, run.weights->ordered);
    }
    return pass_channels(rows, done, run.channels, run.weights->plain);
  }
  rows.in = slice.before;
  rows.in_stride = slice.others_stride;
  if (!is_window_alone) pass_channels(rows, 0, begin, run.weights->plain);
  rows.in = slice.in;
  rows.in_stride = slice.in_stride;
  if (run.is_turned && std::is_void_v<Rounded>) {
    // No sum has brought the slice to the first cache, so heads are read in the order of memory.
    HeadRows<T, U, Rounded> one = rows;
    one.count = 1;
    for (int head = 0; head < slice.count; ++head) {
      if (slice.is_prefetching) prefetch_after(run, slice, head);
      turn_windows(run, one, numbers);
      one.in += one.in_stride;
      one.out += one.out_stride;
      if constexpr (WordRows<U>::kHasWords) one.words += one.words_stride;
    }
  } else if (run.is_turned) {
    turn_windows(run, rows, numbers);
  } else {
    pass_channels(rows, begin, end, run.weights->plain);
  }
  rows.in = slice.behind;
  rows.in_stride = slice.others_stride;
  if (!is_window_alone) pass_channels(rows, end, run.channels, run.weights->plain);
}

}  // namespace

}  // namespace rope

#endif
