// cpu_step_vectors.hpp - the step of heads whose channels lie side by side: one pass over a head takes the sum of its
// squares, and one for each destination reads it, norms it, turns it and writes it in registers
//
// Weights and angles stay in registers while a loop goes through the heads:
//
//   channels   0 .. 31        32 .. 63      64 .. 95       96 .. 127
//   head 0    |   x   | then |        |    |   y   | then |         |
//   head 1    |   x   |  2nd |        |    |   y   |  2nd |         |
//   ..            one turn of the outer loop for each pair of vectors, or of two
//
// In an unnamed namespace, as cpu_loops.hpp says.
#pragma once

#include "backend/cpu/cpu_loops.hpp"
#include "backend/cpu/cpu_norm.hpp"
#include "core/math/norm.hpp"

#if defined(ROPE_HAS_VECTORS)

namespace rope {

namespace {

template <int kLanes>
ROPE_VECTOR Vector<kLanes> same_in_all(float value) {
  return {value - typename Vector<kLanes>::Floats{}};
}

template <typename T, int kLanes>
ROPE_VECTOR Vector<kLanes> rounded_to(Vector<kLanes> vector) {
  if constexpr (std::is_same_v<T, BFloat16>) {
    return from_upper_halves<kLanes>(to_upper_halves(vector) & 0xffff0000u);
  } else {
    return from_float16(to_float16(vector));
  }
}

// Heads on their way to one destination. Rounded is void where they are not normed, float where the norm does not round,
// else the type that it rounds to.
template <typename T, typename U, typename Rounded>
struct HeadRows {
  const T *in;
  U *out;
  int64_t in_stride;
  int64_t out_stride;
  int count;
  const float *inverse;
  bool rounds_before_weight;
  bool rounds_after_weight;

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

  template <typename Bits>
  ROPE_VECTOR void put(int head, int64_t channel, Bits bits) const {
    memcpy(out + head * out_stride + channel, &bits, sizeof bits);
  }

  template <int kLanes>
  ROPE_VECTOR void put_interleaved(int head, int64_t channel, Vector<kLanes> even, Vector<kLanes> odd) const {
    write_interleaved(even, odd, out + head * out_stride + channel);
  }
};

// ---- Loops: each takes what fills its vectors from `begin` on and returns where it ended ----

// Channels that are not turned.
template <int kLanes, typename T, typename U, typename Rounded>
ROPE_LOOP int weigh_vectors(const HeadRows<T, U, Rounded> rows, int begin, int end, const float *weights) {
  for (; begin + kLanes <= end; begin += kLanes) {
    const auto weight = Vector<kLanes>::load(weights + begin);
    for (int head = 0; head < rows.count; ++head) {
      Vector<kLanes> vector;
      read_vector(rows.read(head, begin), &vector);
      rows.put(head, begin, elements_of<U>(rows.weigh(head, vector, weight)));
    }
  }
  return begin;
}

// The same as words, whose weights are as arrange_angles leaves them.
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
    pair = {rows.weigh(head, pair.x, weight_x), rows.weigh(head, pair.y, weight_y)};
    return rotate(pair, of_x, of_y);
  }
};

// A run of pairs: where x and y of the first one lie in their head, and the weights of theirs.
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
      rows.put(head, run.x + begin, elements_of<U>(pair.x));
      rows.put(head, run.y + begin, elements_of<U>(pair.y));
    }
  }
  return begin;
}

// The same as words, whose numbers are as arrange_angles leaves them.
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

// Interleaved pairs as x cos_x + y (-sin_x) and y cos_y + x sin_y: both factors are given for each channel from that
// of the window on.
template <int kLanes, typename T, typename U, typename Rounded>
ROPE_LOOP int turn_neighbours(const HeadRows<T, U, Rounded> rows, int window, int begin, int end, const float *weights,
                              const float *of_itself, const float *of_other) {
  for (; begin + kLanes <= end; begin += kLanes) {
    const auto weight = Vector<kLanes>::load(weights + begin), itself = Vector<kLanes>::load(of_itself + begin),
               other = Vector<kLanes>::load(of_other + begin);
    for (int head = 0; head < rows.count; ++head) {
      Vector<kLanes> vector;
      read_vector(rows.read(head, window + begin), &vector);
      vector = rows.weigh(head, vector, weight);
      vector = add_rounded(multiply_rounded(vector, itself), multiply_rounded(swap_neighbours(vector), other));
      rows.put(head, window + begin, elements_of<U>(vector));
    }
  }
  return begin;
}

template <int kLanes, typename T, typename U>
ROPE_LOOP int encode_vectors(const T *in, U *out, int begin, int end, float factor) {
  for (; begin + 4 * kLanes <= end; begin += 4 * kLanes) {
    Vector<kLanes> four[4];
    for (int i = 0; i < 4; ++i) {
      read_vector(in + begin + i * kLanes, &four[i]);
      four[i] = multiply_rounded(four[i], same_in_all<kLanes>(factor));
    }
    encode_four(four, out + begin);
  }
  for (; begin + kLanes <= end; begin += kLanes) {
    Vector<kLanes> vector;
    read_vector(in + begin, &vector);
    encode_vector(multiply_rounded(vector, same_in_all<kLanes>(factor)), out + begin);
  }
  return begin;
}

// Channels `begin` to `end` as codes.
template <typename T, typename U>
ROPE_LOOP void encode_channels(const T *in, U *out, int begin, int end, float factor) {
#if defined(__AVX512BW__)
  begin = encode_vectors<16>(in, out, begin, end, factor);
#endif
  begin = encode_vectors<8>(in, out, begin, end, factor);
  for (; begin < end; ++begin) out[begin] = round_to<U>(multiply_rounded(to_float(in[begin]), factor));
}

// ---- What fills no vector, one by one ----

template <typename T, typename U, typename Rounded>
__attribute__((noinline)) void weigh_last(const HeadRows<T, U, Rounded> &rows, int begin, int end,
                                          const float *weights) {
  for (int head = 0; head < rows.count; ++head) {
    const T *in = rows.read(head, 0);
    U *out = rows.out + head * rows.out_stride;
    for (int i = begin; i < end; ++i) out[i] = round_to<U>(rows.weigh(head, to_float(in[i]), weights[i]));
  }
}

// Pairs from `begin` on, `step` channels apart.
template <typename T, typename U, typename Rounded>
__attribute__((noinline)) void turn_last(const HeadRows<T, U, Rounded> &rows, int begin, int end, int step,
                                         const TurnedRun &run, const PairAngles<float> &angles) {
  for (int head = 0; head < rows.count; ++head) {
    const T *in = rows.read(head, 0);
    U *out = rows.out + head * rows.out_stride;
    for (int i = begin; i < end; ++i) {
      const int64_t at = int64_t{i} * step, x = run.x + at, y = run.y + at;
      const Pair<float> pair = {rows.weigh(head, to_float(in[x]), run.weights_x[at]),
                                rows.weigh(head, to_float(in[y]), run.weights_y[at])};
      const Pair<float> turned =
          rotate<float>(pair, {angles.cos_x[i], angles.sin_x[i]}, {angles.cos_y[i], angles.sin_y[i]});
      out[x] = round_to<U>(turned.x);
      out[y] = round_to<U>(turned.y);
    }
  }
}

// ---- The numbers of a run's heads, in the order in which the loops take them ----

template <typename T>
struct StepNumbers {
  float weights[kMaxHeadDim];            // plus the offset; 1 where none are given
  float ordered_weights[kMaxHeadDim];    // of x, and kMaxPairs further on of y; or of a head that is not turned
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
void order_weights(const StepRun<float> &run, int64_t head, StepNumbers<T> *numbers) {
  if (run.norm == nullptr) return;
  if (read_numbers<T>(run.weight, head, run.channels, run.norm->weight_offset, numbers->weights) == nullptr) {
    for (int i = 0; i < run.channels; ++i) numbers->weights[i] = 1;
  }
  if (!StepNumbers<T>::kIsWords) return;
  if (!run.is_turned) {
    arrange_angles<true>(numbers->weights, run.channels, numbers->ordered_weights);
    return;
  }
  const float *weights = numbers->weights + run.window_begin;
  float *__restrict x = numbers->ordered_weights, *__restrict y = numbers->ordered_weights + kMaxPairs;
  if (run.in_distance == 1) {
    for (int64_t pair = 0; pair < run.pairs; ++pair) {
      x[pair] = arranged(weights[2 * pair]);
      y[pair] = arranged(weights[2 * pair + 1]);
    }
    return;
  }
  const int length = length_of_runs(run);
  for (int pair = 0; pair < run.pairs; pair += length) {
    const float *first = weights + first_channel(pair, run.in_distance);
    arrange_angles<true>(first, length, x + pair);
    arrange_angles<true>(first + run.in_distance, length, y + pair);
  }
}

// ---- Heads ----

// Channels from `begin` to `end`, which are not turned.
template <typename T, typename U, typename Rounded>
ROPE_LOOP void pass_channels(const HeadRows<T, U, Rounded> rows, int begin, int end, const float *weights) {
  if constexpr (std::is_same_v<T, U> && std::is_void_v<Rounded>) {
    const size_t bytes = static_cast<size_t>(end - begin) * sizeof(T);
    for (int head = 0; bytes > 0 && head < rows.count; ++head) {
      memcpy(rows.out + head * rows.out_stride + begin, rows.read(head, begin), bytes);
    }
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
  const float *weights = numbers->weights + window;
  if (distance == 1) {
    int done = 0;
    if constexpr (kIsWords) {
      const TurnedRun all = {window, window + 1, numbers->ordered_weights, numbers->ordered_weights + kMaxPairs};
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
    if (done < run.pairs) {
      turn_last(rows, done, run.pairs, 2, {window, window + 1, weights, weights + 1}, run.angles);
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
      part.weights_x = numbers->ordered_weights + pair;
      part.weights_y = numbers->ordered_weights + kMaxPairs + pair;
#if defined(__AVX512BW__)
      done = turn_words_of_halves<16>(rows, done, length, part, angles);
#endif
      done = turn_words_of_halves<8>(rows, done, length, part, angles);
    } else {
#if defined(__AVX512BW__)
      done = turn_halves<16>(rows, done, length, part, angles);
#endif
    }
    done = turn_halves<8>(rows, done, length, part, angles);
    if (done < length) turn_last(rows, done, length, 1, part, angles);
  }
}

// Heads of a run as they are, or as a pass has left them.
struct HeadBlock {
  char *data;
  int64_t stride;  // in elements
};

template <typename T, typename U, typename Rounded>
void step_heads(const StepRun<float> &run, const HeadBlock &to, bool is_window_alone, int64_t first, int count,
                const float *inverse, StepNumbers<T> *numbers) {
  const int begin = run.window_begin, end = begin + 2 * run.pairs;
  HeadRows<T, U, Rounded> rows;
  rows.in = reinterpret_cast<const T *>(run.in) + first * run.head_stride;
  rows.out = reinterpret_cast<U *>(to.data);
  rows.in_stride = run.head_stride;
  rows.out_stride = to.stride;
  rows.count = count;
  rows.inverse = inverse;
  rows.rounds_before_weight = run.norm != nullptr && run.norm->rounds_before_weight;
  rows.rounds_after_weight = run.norm != nullptr && run.norm->rounds_after_weight;
  if (!run.is_turned) {
    int done = 0;
    if constexpr (StepNumbers<T>::kIsWords && !std::is_void_v<Rounded>) {
#if defined(__AVX512BW__)
      done = weigh_words<16>(rows, done, run.channels, numbers->ordered_weights);
#endif
      done = weigh_words<8>(rows, done, run.channels, numbers->ordered_weights);
    }
    return pass_channels(rows, done, run.channels, numbers->weights);
  }
  if (!is_window_alone) pass_channels(rows, 0, begin, numbers->weights);
  turn_windows(run, rows, numbers);
  if (!is_window_alone) pass_channels(rows, end, run.channels, numbers->weights);
}

// Past the caches; `to` and `bytes` are multiples of a line's 64 bytes.
ROPE_LOOP void stream_bytes(const char *from, char *to, int64_t bytes) {
  for (int64_t i = 0; i < bytes; i += 64) {
#if defined(__AVX512BW__)
    _mm512_stream_si512(reinterpret_cast<__m512i *>(to + i), load_lanes<__m512i>(from + i));
#else
    _mm256_stream_si256(reinterpret_cast<__m256i *>(to + i), load_lanes<__m256i>(from + i));
    _mm256_stream_si256(reinterpret_cast<__m256i *>(to + i + 32), load_lanes<__m256i>(from + i + 32));
#endif
  }
}

template <typename U>
void copy_heads(const HeadBlock &from, const HeadBlock &to, int channels, int count, bool is_streamed) {
  constexpr int64_t kSize = sizeof(U);
  int64_t bytes = channels * kSize;
  if (from.stride == channels && to.stride == channels) {
    bytes *= count;
    count = 1;
  }
  const uint64_t ends = reinterpret_cast<uintptr_t>(to.data) | static_cast<uint64_t>(to.stride * kSize | bytes);
  for (int head = 0; head < count; ++head) {
    const char *source = from.data + head * from.stride * kSize;
    char *target = to.data + head * to.stride * kSize;
    if (is_streamed && ends % 64 == 0) {
      stream_bytes(source, target, bytes);
    } else {
      memcpy(target, source, static_cast<size_t>(bytes));
    }
  }
}

template <typename T>
float sum_of_squares(const T *head, int count) {
  if (count % kSumRun == 0) return sum_of_terms(head, count, Square());
  float values[kMaxHeadDim + kSumRun];
  read_elements<T>(head, 1, 0, count, values);
  pad_terms(values, count);
  return sum_of_terms(values, count, Square());
}

template <typename T>
ROPE_LOOP const T *head_of(const StepRun<float> &run, int64_t head) {
  return reinterpret_cast<const T *>(run.in) + head * run.head_stride;
}

// Of `count` heads from `first` on.
template <typename T>
void sums_of_squares(const StepRun<float> &run, int64_t first, int count, float *sums) {
  int head = 0;
#if defined(__AVX512BW__)
  constexpr int kLot = kElementsOfLots<T>;
  if (run.channels == kLot || run.channels == 2 * kLot) {
    const int lots = run.channels / kLot, heads = 4 / lots;
    for (; head + heads <= count; head += heads) {
      __m512 lot[4];
      for (int i = 0; i < 4; ++i)
        lot[i] = lots_of(head_of<T>(run, first + head + i / lots) + i % lots * kLot, Square());
      const __m128 sum = add_all_lots(lot);
      if (lots == 1) {
        _mm_storeu_ps(sums + head, sum);
      } else {
        _mm_storel_pi(reinterpret_cast<__m64 *>(sums + head), add_neighbours(sum, sum));
      }
    }
  }
#endif
  for (; head < count; ++head) sums[head] = sum_of_squares(head_of<T>(run, first + head), run.channels);
}

// In the place of eight sums of squares.
void inverse_norms(const NormForm<float> &form, float *sums) {
  const Vector<8> mean = multiply_rounded(Vector<8>::load(sums), same_in_all<8>(form.inverse_count));
  const __m256 v = add_rounded(mean, same_in_all<8>(form.eps)).values;
#if defined(__AVX512BW__)
  const __m256 inverse = _mm512_cvtpd_ps(_mm512_div_pd(_mm512_set1_pd(1), _mm512_sqrt_pd(_mm512_cvtps_pd(v))));
#else
  const auto invert = [](__m128 values) __attribute__((always_inline)) {
    return _mm256_cvtpd_ps(_mm256_div_pd(_mm256_set1_pd(1), _mm256_sqrt_pd(_mm256_cvtps_pd(values))));
  };
  const __m256 inverse = _mm256_set_m128(invert(upper_half(v)), invert(lower_half(v)));
#endif
  Vector<8>{inverse}.store(sums);
}

// Of heads that go through both passes before the next ones, so that they stay in the first cache.
constexpr int kMaxBlockHeads = 8;
constexpr int kMaxBlockBytes = 4096;

template <typename T>
HeadBlock block_of_input(const StepRun<float> &run, int64_t first) {
  return {const_cast<char *>(run.in) + first * run.head_stride * static_cast<int64_t>(sizeof(T)), run.head_stride};
}

// Whether step_contiguous does the run.
bool is_contiguous(const StepRun<float> &run) {
  bool is =
      run.channel_stride == 1 && run.in_distance == run.out_distance && !run.factor.is_present() && !run.has_parts;
  for (int i = 0; i < run.num_targets; ++i) is = is && run.targets[i].channel_stride == 1;
  return is && (run.norm == nullptr || (!run.norm->is_layer && !(run.is_norm_after && run.is_turned)));
}

// Asks for a head's lines while others are at work. Behind the last head may lie anything.
template <typename T>
ROPE_LOOP void prefetch_head(const StepRun<float> &run, int64_t head) {
  constexpr int kSize = sizeof(T), kLine = 64;
  const uintptr_t begin = reinterpret_cast<uintptr_t>(run.in) + static_cast<uintptr_t>(head * run.head_stride * kSize);
  for (int i = 0; i < run.channels * kSize; i += kLine) {
    __builtin_prefetch(reinterpret_cast<const void *>(begin + static_cast<uintptr_t>(i)));
  }
}

// Heads of T as codes of U. Heads of the next block, which are In, are asked for one by one in the meantime.
template <typename In, typename T, typename U>
void encode_heads(const StepRun<float> &run, const StepTarget &target, const HeadBlock &from, const HeadBlock &to,
                  int64_t first, int count) {
  const int groups = target.groups(), channels = run.channels / groups;
  for (int head = 0; head < count; ++head) {
    const T *const in = reinterpret_cast<const T *>(from.data) + head * from.stride;
    U *const out = reinterpret_cast<U *>(to.data) + head * to.stride;
    prefetch_head<In>(run, first + count + head);
    if (run.code.amax != nullptr) raise_magnitude(in, run.channels, run.code.amax);
    for (int group = 0; group < groups; ++group) {
      const int begin = group * channels;
      const float factor = code_factor_of<U>(run.code, target, first + head, group, in + begin, channels);
      encode_channels(in, out, begin, begin + channels, factor);
    }
  }
}

template <typename T, typename U>
void step_to_block(const StepRun<float> &run, const HeadBlock &to, bool is_window_alone, int64_t first, int count,
                   const float *inverse, StepNumbers<T> *numbers) {
  if (run.norm == nullptr) {
    step_heads<T, U, void>(run, to, is_window_alone, first, count, inverse, numbers);
  } else if (sizeof(T) == 2 && (run.norm->rounds_before_weight || run.norm->rounds_after_weight)) {
    step_heads<T, U, T>(run, to, is_window_alone, first, count, inverse, numbers);
  } else {
    step_heads<T, U, float>(run, to, is_window_alone, first, count, inverse, numbers);
  }
}

// The same for U of 8 bits, all channels, from numbers before they are codes: the input's own, or those of another block.
template <typename T, typename U>
void step_to_codes(const StepRun<float> &run, const StepTarget &target, const HeadBlock &to, int64_t first, int count,
                   const float *inverse, StepNumbers<T> *numbers) {
  alignas(64) char buffer[kMaxBlockBytes];
  const HeadBlock block = {buffer, run.channels};
  if (run.norm == nullptr && !run.is_turned) {
    encode_heads<T, T, U>(run, target, block_of_input<T>(run, first), to, first, count);
  } else if (std::is_same_v<T, float> || !run.code.rounds_before) {
    step_to_block<T, float>(run, block, false, first, count, inverse, numbers);
    encode_heads<T, float, U>(run, target, block, to, first, count);
  } else {
    step_to_block<T, T>(run, block, false, first, count, inverse, numbers);
    encode_heads<T, T, U>(run, target, block, to, first, count);
  }
}

// Heads to targets from the one numbered `begin` on that get the same elements. What goes past the caches is put together
// first: lines that follow each other take less time there.
template <typename T, typename U>
void step_to_targets(const StepRun<float> &run, int begin, int end, int64_t first, int count, const float *inverse,
                     StepNumbers<T> *numbers) {
  alignas(64) char buffer[kMaxBlockBytes];
  const auto block_of = [&](const StepTarget &target) {
    return HeadBlock{target.data + first * target.head_stride * static_cast<int64_t>(sizeof(U)), target.head_stride};
  };
  HeadBlock done;
  const StepTarget &target = run.targets[begin];
  if (std::is_same_v<T, U> && run.norm == nullptr && !run.is_turned) {
    done = block_of_input<T>(run, first);
  } else {
    const bool is_buffered = target.is_streamed;
    done = is_buffered ? HeadBlock{buffer, run.channels} : block_of(target);
    if constexpr (sizeof(U) == 1) {
      step_to_codes<T, U>(run, target, done, first, count, inverse, numbers);
    } else {
      step_to_block<T, U>(run, done, !is_buffered && !target.part.has_others, first, count, inverse, numbers);
    }
    begin += is_buffered ? 0 : 1;
  }
  for (int i = begin; i < end; ++i) {
    copy_heads<U>(done, block_of(run.targets[i]), run.channels, count, run.targets[i].is_streamed);
  }
}

template <typename T>
void step_to_all(const StepRun<float> &run, int64_t first, int count, const float *inverse, StepNumbers<T> *numbers) {
  if (!std::is_same_v<T, float> && !run.has_codes()) {
    return step_to_targets<T, T>(run, 0, run.num_targets, first, count, inverse, numbers);
  }
  // The first target, which may be the input, comes last.
  for (int end = run.num_targets; end > 0;) {
    const CpuType type = run.targets[end - 1].type;
    const bool has_scales = run.targets[0].scales->is_present() || run.targets[end - 1].scales->is_present();
    const int begin = end == 2 && run.targets[0].type == type && !has_scales ? 0 : end - 1;
    const auto write = [&](auto element) {
      step_to_targets<T, decltype(element)>(run, begin, end, first, count, inverse, numbers);
    };
    if (type == kCpuE4M3) {
      write(Float8E4M3{});
    } else if (type == kCpuE5M2) {
      write(Float8E5M2{});
    } else if (!std::is_same_v<T, float> || type == kCpuF32) {
      write(T{});
    } else if constexpr (std::is_same_v<T, float>) {
      type == kCpuF16 ? write(Float16{}) : write(BFloat16{});
    }
    end = begin;
  }
}

template <typename T>
void step_contiguous(const StepRun<float> &run) {
  float inverse[kMaxBlockHeads] = {};
  StepNumbers<T> numbers;
  order_angles(run, &numbers);
  const bool is_of_token = run.norm != nullptr && run.is_norm_of_token,
             is_of_head = run.norm != nullptr && !is_of_token;
  if (is_of_token) {
    TreeSum<float> sum;
    for (int64_t first = 0; first < run.heads; first += kMaxBlockHeads) {
      const int count = run.heads - first < kMaxBlockHeads ? static_cast<int>(run.heads - first) : kMaxBlockHeads;
      sums_of_squares<T>(run, first, count, inverse);
      for (int i = 0; i < count; ++i) sum.add(inverse[i]);
    }
    const float of_token = inverse_norm(*run.norm, sum.total());
    for (float &of_head : inverse) of_head = of_token;
  }
  const bool has_weights_of_heads = run.weight.head_stride != 0;
  int max_heads = kMaxBlockBytes / static_cast<int>(sizeof(float)) / run.channels;
  if (max_heads > kMaxBlockHeads) max_heads = kMaxBlockHeads;
  if (has_weights_of_heads) max_heads = 1;
  for (int64_t first = 0; first < run.heads; first += max_heads) {
    const int count = run.heads - first < max_heads ? static_cast<int>(run.heads - first) : max_heads;
    if (first == 0 || has_weights_of_heads) order_weights(run, first, &numbers);
    if (is_of_head) {
      sums_of_squares<T>(run, first, count, inverse);
      inverse_norms(*run.norm, inverse);
    }
    step_to_all(run, first, count, inverse, &numbers);
  }
}

}  // namespace

}  // namespace rope

#endif
