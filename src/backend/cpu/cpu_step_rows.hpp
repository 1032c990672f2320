// SPDX-License-Identifier: Apache-2.0
// cpu_step_rows.hpp - rows: heads with channels side by side that go to one destination, and the loops that read, norm,
// turn and write them in registers
//
// Weights and angles stay in registers while a loop goes through the heads:
//
//   channels   0 .. 31        32 .. 63      64 .. 95       96 .. 127
//   head 0    |   x   | then |        |    |   y   | then |         |
//   head 1    |   x   |  2nd |        |    |   y   |  2nd |         |
//   ..            one iteration of the outer loop for each pair of vectors, or for two pairs
//
// The file is in an unnamed namespace; cpu_loops.hpp explains this.
#pragma once

#include "backend/cpu/cpu_loops.hpp"

#if defined(ROPE_HAS_VECTORS)

namespace rope {

namespace {

template <int kLanes>
ROPE_VECTOR Vector<kLanes> same_in_all(float value) {
  return {value - typename Vector<kLanes>::Floats{}};
}

// An output for sums of squares: half of a float, because the two channels of a word have one sum. Only loops over
// words write it, so heads must consist of blocks of 16 channels.
struct SharedSquare {
  uint16_t half;
};

template <int kLanes>
ROPE_VECTOR void write_interleaved(Vector<kLanes> first, Vector<kLanes> second, SharedSquare *to) {
  const auto sums = add_rounded(multiply_rounded(first, first), multiply_rounded(second, second)).values;
  memcpy(to, &sums, sizeof sums);
}

// An element of heads that are needed as floats, which the output has, and rounded to Word, the type of the data.
template <typename Word>
struct FloatBesideWord {
  float value;
};

// The words of an output of FloatBesideWord.
template <typename U>
struct WordRows {
  static constexpr bool kHasWords = false;
};
template <typename Word>
struct WordRows<FloatBesideWord<Word>> {
  static constexpr bool kHasWords = true;
  Word *words;
  int64_t words_stride;
};

// Heads that go to one destination. Rounded is void if they are not normed, float if the norm does not round, and
// otherwise the type to which it rounds.
template <typename T, typename U, typename Rounded>
struct HeadRows : WordRows<U> {
  const T *in;
  U *out;
  int64_t in_stride;
  int64_t out_stride;
  int count;
  const float *inverse;
  bool rounds_before_weight;
  bool rounds_after_weight;
  bool is_norm_after;  // the norm follows the rotation

  static constexpr bool kRounds = sizeof(std::conditional_t<std::is_void_v<Rounded>, float, Rounded>) == 2;

  template <int kLanes>
  ROPE_VECTOR Vector<kLanes> weigh(int head, Vector<kLanes> x, Vector<kLanes> weight) const {
    if constexpr (std::is_void_v<Rounded>) {
      return x;
    } else {
      x = multiply_rounded(x, same_in_all<kLanes>(inverse[head]));
      if constexpr (kRounds) x = rounds_before_weight ? rounded_to<Rounded>(x) : x;
      x = multiply_rounded(x, weight);
      if constexpr (kRounds) x = rounds_after_weight ? rounded_to<Rounded>(x) : x;
      return x;
    }
  }

  ROPE_VECTOR float weigh(int head, float x, float weight) const {
    if constexpr (std::is_void_v<Rounded>) {
      return x;
    } else {
      x = multiply_rounded(x, inverse[head]);
      if (kRounds && rounds_before_weight) x = to_float(round_to<Rounded>(x));
      x = multiply_rounded(x, weight);
      return kRounds && rounds_after_weight ? to_float(round_to<Rounded>(x)) : x;
    }
  }

  ROPE_VECTOR const T *read(int head, int64_t channel) const { return in + head * in_stride + channel; }

  // Calls write(element) with the address of an element of each output.
  template <typename Write>
  ROPE_VECTOR void put_each(int head, int64_t channel, const Write &write) const {
    U *const element = out + head * out_stride + channel;
    if constexpr (WordRows<U>::kHasWords) {
      write(&element->value);
      write(this->words + head * this->words_stride + channel);
    } else {
      write(element);
    }
  }

  template <int kLanes>
  ROPE_VECTOR void put(int head, int64_t channel, Vector<kLanes> vector) const {
    const auto write = [&](auto *to) __attribute__((always_inline)) {
      write_vector(vector, to);
    };
    put_each(head, channel, write);
  }

  ROPE_VECTOR void put(int head, int64_t channel, float value) const {
    put_each(head, channel, [&](auto *to) { *to = round_to<std::remove_pointer_t<decltype(to)>>(value); });
  }

  template <int kLanes>
  ROPE_VECTOR void put_interleaved(int head, int64_t channel, Vector<kLanes> even, Vector<kLanes> odd) const {
    const auto write = [&](auto *to) __attribute__((always_inline)) {
      write_interleaved(even, odd, to);
    };
    put_each(head, channel, write);
  }
};

// ---- Loops: each processes all full vectors from `begin` on and returns its end ----

// Channels that are not turned.
template <int kLanes, typename T, typename U, typename Rounded>
ROPE_LOOP int weigh_vectors(const HeadRows<T, U, Rounded> rows, int begin, int end, const float *weights) {
  for (; begin + kLanes <= end; begin += kLanes) {
    const auto weight = Vector<kLanes>::load(weights + begin);
    for (int head = 0; head < rows.count; ++head) {
      Vector<kLanes> vector;
      read_vector(rows.read(head, begin), &vector);
      rows.put(head, begin, rows.weigh(head, vector, weight));
    }
  }
  return begin;
}

// Channels that are not turned, as words. Their weights have the order of arrange_angles.
template <int kLanes, typename U, typename Rounded>
ROPE_LOOP int weigh_words(const HeadRows<BFloat16, U, Rounded> rows, int begin, int end, const float *weights) {
  for (; begin + 2 * kLanes <= end; begin += 2 * kLanes) {
    const auto of_even = Vector<kLanes>::load(weights + begin), of_odd = Vector<kLanes>::load(weights + begin + kLanes);
    for (int head = 0; head < rows.count; ++head) {
      Vector<kLanes> even, odd;
      read_interleaved(rows.read(head, begin), &even, &odd);
      rows.put_interleaved(head, begin, rows.weigh(head, even, of_even), rows.weigh(head, odd, of_odd));
    }
  }
  return begin;
}

// The numbers of one vector of pairs.
template <int kLanes>
struct PairNumbers {
  Vector<kLanes> weight_x, weight_y;
  CosSin<Vector<kLanes>> of_x, of_y;

  ROPE_VECTOR PairNumbers(const float *weights_x, const float *weights_y, const PairAngles<float> &angles, int at)
      : weight_x(Vector<kLanes>::load(weights_x + at)),
        weight_y(Vector<kLanes>::load(weights_y + at)),
        of_x{Vector<kLanes>::load(angles.cos_x + at), Vector<kLanes>::load(angles.sin_x + at)},
        of_y{Vector<kLanes>::load(angles.cos_y + at), Vector<kLanes>::load(angles.sin_y + at)} {}

  template <typename Rows>
  ROPE_VECTOR Pair<Vector<kLanes>> turn(const Rows &rows, int head, Pair<Vector<kLanes>> pair) const {
    const auto weighed = [&](Pair<Vector<kLanes>> given) __attribute__((always_inline)) {
      return Pair<Vector<kLanes>>{rows.weigh(head, given.x, weight_x), rows.weigh(head, given.y, weight_y)};
    };
    return rows.is_norm_after ? weighed(rotate(pair, of_x, of_y)) : rotate(weighed(pair), of_x, of_y);
  }
};

// A run of pairs: the places of x and y of the first pair in their head, and the weights of both.
struct TurnedRun {
  int x;
  int y;
  const float *weights_x;
  const float *weights_y;
};

// Pairs in halves.
template <int kLanes, typename T, typename U, typename Rounded>
ROPE_LOOP int turn_halves(const HeadRows<T, U, Rounded> rows, int begin, int end, const TurnedRun run,
                          const PairAngles<float> angles) {
  for (; begin + kLanes <= end; begin += kLanes) {
    const PairNumbers<kLanes> numbers(run.weights_x, run.weights_y, angles, begin);
    for (int head = 0; head < rows.count; ++head) {
      Pair<Vector<kLanes>> pair;
      read_vector(rows.read(head, run.x + begin), &pair.x);
      read_vector(rows.read(head, run.y + begin), &pair.y);
      pair = numbers.turn(rows, head, pair);
      rows.put(head, run.x + begin, pair.x);
      rows.put(head, run.y + begin, pair.y);
    }
  }
  return begin;
}

// Pairs in halves, as words. Their numbers have the order of arrange_angles.
template <int kLanes, typename U, typename Rounded>
ROPE_LOOP int turn_words_of_halves(const HeadRows<BFloat16, U, Rounded> rows, int begin, int end, const TurnedRun run,
                                   const PairAngles<float> angles) {
  for (; begin + 2 * kLanes <= end; begin += 2 * kLanes) {
    const PairNumbers<kLanes> of_even(run.weights_x, run.weights_y, angles, begin);
    const PairNumbers<kLanes> of_odd(run.weights_x, run.weights_y, angles, begin + kLanes);
    for (int head = 0; head < rows.count; ++head) {
      Pair<Vector<kLanes>> even, odd;
      read_interleaved(rows.read(head, run.x + begin), &even.x, &odd.x);
      read_interleaved(rows.read(head, run.y + begin), &even.y, &odd.y);
      even = of_even.turn(rows, head, even);
      odd = of_odd.turn(rows, head, odd);
      rows.put_interleaved(head, run.x + begin, even.x, odd.x);
      rows.put_interleaved(head, run.y + begin, even.y, odd.y);
    }
  }
  return begin;
}

// Interleaved pairs as words.
template <int kLanes, typename U, typename Rounded>
ROPE_LOOP int turn_words(const HeadRows<BFloat16, U, Rounded> rows, int begin, int end, const TurnedRun run,
                         const PairAngles<float> angles) {
  for (; begin + kLanes <= end; begin += kLanes) {
    const PairNumbers<kLanes> numbers(run.weights_x, run.weights_y, angles, begin);
    for (int head = 0; head < rows.count; ++head) {
      Pair<Vector<kLanes>> pair;
      read_interleaved(rows.read(head, run.x + 2 * begin), &pair.x, &pair.y);
      pair = numbers.turn(rows, head, pair);
      rows.put_interleaved(head, run.x + 2 * begin, pair.x, pair.y);
    }
  }
  return begin;
}

ROPE_VECTOR Vector<8> swap_neighbours(Vector<8> vector) {
  return {_mm256_permute_ps(vector.values, 0xb1)};
}

#if defined(__AVX512BW__)
ROPE_VECTOR Vector<16> swap_neighbours(Vector<16> vector) {
  return {_mm512_permute_ps(vector.values, 0xb1)};
}
#endif

// Interleaved pairs as x cos_x + y (-sin_x) and y cos_y + x sin_y. Both factors are given for each channel, beginning
// with the window's first channel.
template <int kLanes, typename T, typename U, typename Rounded>
ROPE_LOOP int turn_neighbours(const HeadRows<T, U, Rounded> rows, int window, int begin, int end, const float *weights,
                              const float *of_itself, const float *of_other) {
  for (; begin + kLanes <= end; begin += kLanes) {
    const auto weight = Vector<kLanes>::load(weights + begin), itself = Vector<kLanes>::load(of_itself + begin),
               other = Vector<kLanes>::load(of_other + begin);
    for (int head = 0; head < rows.count; ++head) {
      Vector<kLanes> vector;
      read_vector(rows.read(head, window + begin), &vector);
      if (!rows.is_norm_after) vector = rows.weigh(head, vector, weight);
      vector = add_rounded(multiply_rounded(vector, itself), multiply_rounded(swap_neighbours(vector), other));
      if (rows.is_norm_after) vector = rows.weigh(head, vector, weight);
      rows.put(head, window + begin, vector);
    }
  }
  return begin;
}

template <int kLanes, typename U>
ROPE_LOOP int scale_vectors(const float *in, U *out, int begin, int end, float factor) {
  for (; begin + kLanes <= end; begin += kLanes) {
    write_vector(multiply_rounded(Vector<kLanes>::load(in + begin), same_in_all<kLanes>(factor)), out + begin);
  }
  return begin;
}

// Multiplies a head's channels by its row factor.
template <typename U>
void scale_channels(const float *in, U *out, int count, float factor) {
  int done = 0;
#if defined(__AVX512BW__)
  done = scale_vectors<16>(in, out, done, count, factor);
#endif
  done = scale_vectors<8>(in, out, done, count, factor);
  for (; done < count; ++done) out[done] = round_to<U>(multiply_rounded(in[done], factor));
}

// ---- The rest, which fills no vector, one by one ----

template <typename T, typename U, typename Rounded>
__attribute__((noinline)) void weigh_last(const HeadRows<T, U, Rounded> &rows, int begin, int end,
                                          const float *weights) {
  for (int head = 0; head < rows.count; ++head) {
    const T *in = rows.read(head, 0);
    for (int i = begin; i < end; ++i) rows.put(head, i, rows.weigh(head, to_float(in[i]), weights[i]));
  }
}

// Pairs from `begin` on, `step` channels apart.
template <typename T, typename U, typename Rounded>
__attribute__((noinline)) void turn_last(const HeadRows<T, U, Rounded> &rows, int begin, int end, int step,
                                         const TurnedRun &run, const PairAngles<float> &angles) {
  for (int head = 0; head < rows.count; ++head) {
    const T *in = rows.read(head, 0);
    for (int i = begin; i < end; ++i) {
      const int64_t at = int64_t{i} * step, x = run.x + at, y = run.y + at;
      const auto weighed = [&](Pair<float> pair) {
        return Pair<float>{rows.weigh(head, pair.x, run.weights_x[at]), rows.weigh(head, pair.y, run.weights_y[at])};
      };
      const auto turned = [&](Pair<float> pair) {
        return rotate<float>(pair, {angles.cos_x[i], angles.sin_x[i]}, {angles.cos_y[i], angles.sin_y[i]});
      };
      const Pair<float> given = {to_float(in[x]), to_float(in[y])};
      const Pair<float> result = rows.is_norm_after ? weighed(turned(given)) : turned(weighed(given));
      rows.put(head, x, result.x);
      rows.put(head, y, result.y);
    }
  }
}

}  // namespace

}  // namespace rope

#endif
