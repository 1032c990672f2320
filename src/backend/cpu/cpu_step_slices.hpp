// SPDX-License-Identifier: Apache-2.0
// cpu_step_slices.hpp - the step of heads with channels side by side, slice after slice: one pass over a slice adds up
// its squares, turned if the norm is behind the rotation; then one pass for each destination reads, norms, turns and
// writes it in registers
//
// The file is in an unnamed namespace; cpu_loops.hpp explains this.
#pragma once

#include "backend/cpu/cpu_norm.hpp"
#include "backend/cpu/cpu_step_codes.hpp"
#include "backend/cpu/cpu_step_vectors.hpp"
#include "core/math/norm.hpp"

#if defined(ROPE_HAS_VECTORS)

namespace rope {

namespace {

template <typename T, typename Term>
float sum_of_head(const T *head, int count, const Term &term) {
  if (count % kSumRun == 0) return sum_of_terms(head, count, term);
  float values[kMaxHeadDim + kSumRun];
  read_elements<T>(head, 1, 0, count, values);
  pad_terms(values, count);
  return sum_of_terms(values, count, term);
}

// The sum of the terms of `count` elements for each head.
template <typename T, typename Term>
void sum_heads(const T *heads, int64_t stride, int elements, int count, const Term &term, float *sums) {
  int head = 0;
#if defined(__AVX512BW__)
  constexpr int kLot = kElementsOfLots<T>;
  if (elements == kLot || elements == 2 * kLot) {
    const int lots = elements / kLot, at_once = 4 / lots;
    for (; head + at_once <= count; head += at_once) {
      __m512 quarters[4];
      for (int i = 0; i < 4; ++i) quarters[i] = lots_of(heads + (head + i / lots) * stride + i % lots * kLot, term);
      const __m128 sum = add_all_lots(quarters);
      if (lots == 1) {
        _mm_storeu_ps(sums + head, sum);
      } else {
        _mm_storel_pi(reinterpret_cast<__m64 *>(sums + head), add_neighbours(sum, sum));
      }
    }
  }
#endif
  for (; head < count; ++head) sums[head] = sum_of_head(heads + head * stride, elements, term);
}

template <typename T>
void sum_squares(const StepRun<float> &run, HeadSlice<T> *slice) {
  sum_heads(slice->in, slice->in_stride, run.channels, slice->count, Square(), slice->inverse);
}

// Replaces eight sums of squares by inverse norms.
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

// Copies without using the caches; `to` and `bytes` are multiples of a line's 64 bytes.
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

// Room for a slice's floats, or its results, before they are copied on.
constexpr int kMaxSliceBytes = 8192;
constexpr int kMaxSliceChannels = kMaxSliceBytes / static_cast<int>(sizeof(float));

// The number of heads, of `channels` each, in a slice.
ROPE_LOOP int heads_of_slice(int64_t channels) {
  const int64_t fitting = kMaxSliceChannels / channels;
  return fitting < kMaxSliceHeads ? static_cast<int>(fitting) : kMaxSliceHeads;
}

// Whether step_contiguous, or step_floats for LAYER, supports the run.
bool is_contiguous(const StepRun<float> &run) {
  bool is = !run.accumulates && run.channel_stride == 1 && run.in_distance == run.out_distance &&
            !(run.rounds_each && run.is_turned) && (run.pass == nullptr || run.pass_channel_stride == 1);
  for (int i = 0; i < run.num_targets; ++i) is = is && run.targets[i].channel_stride == 1;
  return is;
}

// Copies a slice's windows and its pass to `whole`.
template <typename T>
void put_together(const StepRun<float> &run, T *whole, HeadSlice<T> *slice) {
  const int begin = run.window_begin, end = begin + 2 * run.pairs;
  const auto put = [&](const T *from, int64_t stride, int part_begin, int part_end) {
    const size_t bytes = static_cast<size_t>(part_end - part_begin) * sizeof(T);
    for (int head = 0; bytes > 0 && head < slice->count; ++head) {
      memcpy(whole + head * run.channels + part_begin, from + head * stride + part_begin, bytes);
    }
  };
  put(slice->before, slice->others_stride, 0, begin);
  put(slice->in, slice->in_stride, begin, end);
  put(slice->behind, slice->others_stride, end, run.channels);
  slice->in = slice->before = slice->behind = whole;
  slice->in_stride = slice->others_stride = run.channels;
}

// Moves to the heads of the run from `first` on, at most `count`.
template <typename T>
ROPE_LOOP void take_heads(const StepRun<float> &run, int64_t first, int max_heads, T *whole, HeadSlice<T> *slice) {
  slice->first = first;
  slice->count = run.heads - first < max_heads ? static_cast<int>(run.heads - first) : max_heads;
  slice->ahead = heads_ahead<T>(run);
  slice->is_prefetching = true;
  slice->in = slice->before = slice->behind = reinterpret_cast<const T *>(run.in) + first * run.head_stride;
  slice->in_stride = slice->others_stride = run.head_stride;
  if (run.pass == nullptr) return;
  slice->before = reinterpret_cast<const T *>(run.pass) + first * run.pass_head_stride;
  slice->behind = slice->before - 2 * run.pairs;
  slice->others_stride = run.pass_head_stride;
  if (run.norm != nullptr) put_together(run, whole, slice);
}

// step_heads for heads that have weights of their own.
template <typename T, typename U, typename Rounded>
__attribute__((noinline)) void step_one_by_one(const StepRun<float> &run, const HeadSlice<T> &slice,
                                               const HeadBlock &to, bool is_window_alone, StepNumbers<T> *numbers) {
  HeadSlice<T> one = slice;
  HeadBlock target = to;
  one.count = 1;
  for (int head = 0; head < slice.count; ++head) {
    order_weights<T>(run, slice.first + head);
    one.inverse[0] = slice.inverse[head];
    step_heads<T, U, Rounded>(run, one, target, is_window_alone, numbers);
    one.in += slice.in_stride;
    one.before += slice.others_stride;
    one.behind += slice.others_stride;
    target.data += target.stride * static_cast<int64_t>(sizeof(U));
  }
}

template <typename T, typename U, typename Rounded>
ROPE_LOOP void step_normed(const StepRun<float> &run, const HeadSlice<T> &slice, const HeadBlock &to,
                           bool is_window_alone, StepNumbers<T> *numbers) {
  if (run.weight.head_stride != 0) {
    step_one_by_one<T, U, Rounded>(run, slice, to, is_window_alone, numbers);
  } else {
    step_heads<T, U, Rounded>(run, slice, to, is_window_alone, numbers);
  }
}

template <typename T, typename U>
void norm_and_turn(const StepRun<float> &run, const HeadSlice<T> &slice, const HeadBlock &to, bool is_window_alone,
                   StepNumbers<T> *numbers) {
  if (run.norm == nullptr) {
    step_heads<T, U, void>(run, slice, to, is_window_alone, numbers);
  } else if (sizeof(T) == 2 && (run.norm->rounds_before_weight || run.norm->rounds_after_weight)) {
    step_normed<T, U, T>(run, slice, to, is_window_alone, numbers);
  } else {
    step_normed<T, U, float>(run, slice, to, is_window_alone, numbers);
  }
}

// Norms, turns and multiplies by row factors, through floats. It is not inlined, so that the code without factors stays
// short.
template <typename T, typename U>
__attribute__((noinline)) void step_and_scale(const StepRun<float> &run, const HeadSlice<T> &slice, const HeadBlock &to,
                                              StepNumbers<T> *numbers) {
  alignas(64) float values[kMaxSliceChannels];
  norm_and_turn<T, float>(run, slice, {reinterpret_cast<char *>(values), run.channels}, false, numbers);
  for (int64_t head = 0; head < slice.count; ++head) {
    scale_channels(values + head * run.channels, reinterpret_cast<U *>(to.data) + head * to.stride, run.channels,
                   slice.factor[head]);
  }
}

template <typename T, typename U>
void step_to_block(const StepRun<float> &run, const HeadSlice<T> &slice, const HeadBlock &to, bool is_window_alone,
                   StepNumbers<T> *numbers) {
  if (run.factor.is_present()) return step_and_scale<T, U>(run, slice, to, numbers);
  norm_and_turn<T, U>(run, slice, to, is_window_alone, numbers);
}

// Writes a slice, whose windows are turned at most, as codes of U. Other channels become codes directly from the input.
template <typename T, typename U>
void step_to_codes(const StepRun<float> &run, const StepTarget &target, const HeadSlice<T> &slice, const HeadBlock &to,
                   StepNumbers<T> *numbers) {
  alignas(64) char buffer[kMaxSliceBytes];
  const ChannelPart &part = target.part;
  const auto encode = [&](const auto &parts) { encode_heads<U>(run, target, parts, to, slice.first, slice.count); };
  const auto turn_through = [&](auto number) {
    using Number = decltype(number);
    norm_and_turn<T, Number>(run, slice, {buffer, run.channels}, true, numbers);
    encode(parts_of(run, slice, part, reinterpret_cast<const Number *>(buffer), run.channels));
  };
  if (run.is_turned && part.has_window) {
    std::is_same_v<T, float> || !run.code.rounds_before ? turn_through(float{}) : turn_through(T{});
  } else if (slice.is_whole()) {
    encode(parts_of_block(run, part, slice.in, slice.in_stride));
  } else {
    encode(parts_of(run, slice, part, slice.in, slice.in_stride));
  }
}

// Stores U from a block of whole heads, or with `has_part_alone` from a block of those parts that the target has.
template <typename U>
void copy_to_target(const StepRun<float> &run, const HeadBlock &from, bool has_part_alone, const StepTarget &target,
                    const HeadBlock &to, int count) {
  constexpr int64_t kSize = sizeof(U);
  const ChannelPart &part = target.part;
  const int begin = run.window_begin, end = begin + 2 * run.pairs;
  const auto copy = [&](int first, int at, int channels) {
    if (channels == 0) return;
    copy_heads<U>({from.data + first * kSize, from.stride}, {to.data + at * kSize, to.stride}, channels, count,
                  target.is_streamed);
  };
  if (has_part_alone || (part.has_window && part.has_others)) {
    copy(0, 0, part.count(run.channels, 2 * run.pairs));
  } else if (part.has_window) {
    copy(begin, part.window_at, 2 * run.pairs);
  } else {
    copy(0, 0, begin);
    copy(end, part.behind_at, run.channels - end);
  }
}

// Writes a slice to the targets from number `begin` on, which have one type of elements. Streamed results are assembled
// first: writing consecutive lines takes less time.
template <typename T, typename U>
void step_to_targets(const StepRun<float> &run, int begin, int end, const HeadSlice<T> &slice,
                     StepNumbers<T> *numbers) {
  constexpr bool kIsCode = sizeof(U) == 1;
  alignas(64) char buffer[kMaxSliceBytes];
  const auto block_of = [&](const StepTarget &target) {
    return HeadBlock{target.data + slice.first * target.head_stride * static_cast<int64_t>(sizeof(U)),
                     target.head_stride};
  };
  HeadBlock done;
  const StepTarget &target = run.targets[begin];
  const ChannelPart &part = target.part;
  const bool changes = run.norm != nullptr || run.is_turned || run.factor.is_present();
  if (std::is_same_v<T, U> && !changes && slice.is_whole()) {
    done = {reinterpret_cast<char *>(const_cast<T *>(slice.in)), slice.in_stride};
  } else {
    const bool is_input = block_of(target).data == reinterpret_cast<const char *>(slice.in);
    const bool is_buffered = target.is_streamed || (!kIsCode && !is_input && !(part.has_window && part.has_others));
    // The input already has its other channels, and a single target with the window alone takes no others.
    const bool is_window_alone = !part.has_others && (is_input || end - begin == 1);
    const int channels = kIsCode ? part.count(run.channels, 2 * run.pairs) : run.channels;
    done = is_buffered ? HeadBlock{buffer, channels} : block_of(target);
    if constexpr (kIsCode) {
      step_to_codes<T, U>(run, target, slice, done, numbers);
    } else {
      step_to_block<T, U>(run, slice, done, is_window_alone, numbers);
    }
    begin += is_buffered ? 0 : 1;
  }
  for (int i = begin; i < end; ++i) {
    copy_to_target<U>(run, done, kIsCode, run.targets[i], block_of(run.targets[i]), slice.count);
  }
}

template <typename T>
void step_to_all(const StepRun<float> &run, const HeadSlice<T> &slice, StepNumbers<T> *numbers) {
  if (!std::is_same_v<T, float> && !run.has_codes()) {
    return step_to_targets<T, T>(run, 0, run.num_targets, slice, numbers);
  }
  // The first target comes last, because it may be the input.
  for (int end = run.num_targets; end > 0;) {
    const StepTarget &first = run.targets[0], &last = run.targets[end - 1];
    const bool are_alike = first.type == last.type && !first.scales->is_present() && !last.scales->is_present();
    const int begin = end == 2 && are_alike && last.part.has_window && last.part.has_others ? 0 : end - 1;
    const auto write = [&](auto element) { step_to_targets<T, decltype(element)>(run, begin, end, slice, numbers); };
    if (last.type == kCpuE4M3) {
      write(Float8E4M3{});
    } else if (last.type == kCpuE5M2) {
      write(Float8E5M2{});
    } else if (!std::is_same_v<T, float> || last.type == kCpuF32) {
      write(T{});
    } else if constexpr (std::is_same_v<T, float>) {
      last.type == kCpuF16 ? write(Float16{}) : write(BFloat16{});
    }
    end = begin;
  }
}

// A slice of heads in a block.
template <typename T>
ROPE_LOOP HeadSlice<T> slice_of_block(int64_t first, int count, const T *heads, int64_t stride) {
  HeadSlice<T> slice = {};
  slice.first = first;
  slice.count = count;
  slice.in = slice.before = slice.behind = heads;
  slice.in_stride = slice.others_stride = stride;
  return slice;
}

// Whether the first target of a run that goes through a block takes its words while heads are turned. With a norm they
// are read from the block, which takes as long.
template <typename T>
bool takes_words_beside(const StepRun<float> &run) {
  const StepTarget &target = run.targets[0];
  return sizeof(T) == 2 && run.norm == nullptr && !run.factor.is_present() && !run.code.rounds_before &&
         !target.has_codes() && !target.is_streamed && target.part.has_window &&
         target.part.window_at == run.window_begin;
}

// The run that writes the results of `run`, which are in a block, to its targets, the first of them maybe not.
StepRun<float> run_of_results(const StepRun<float> &run, bool is_first_done = false) {
  StepRun<float> results = run;
  results.norm = nullptr;
  results.is_turned = false;
  results.factor = {};
  results.pass = nullptr;
  if (!is_first_done) return results;
  results.num_targets -= 1;
  for (int i = 0; i < results.num_targets; ++i) results.targets[i] = run.targets[i + 1];
  return results;
}

// Whether the results of a run with codes are put into a block before they go to the targets. A block of floats does
// not keep the bits of NaNs, so channels that do not change go to words directly.
bool goes_through_block(const StepRun<float> &run) {
  if (!run.has_codes()) return false;
  if (run.norm != nullptr || run.factor.is_present()) return true;
  if (!run.is_turned) return false;
  if (2 * run.pairs == run.channels) return true;
  int num_turned = 0;
  for (int i = 0; i < run.num_targets; ++i) {
    const StepTarget &target = run.targets[i];
    if (!target.has_codes() && target.part.has_others) return false;
    num_turned += target.part.has_window ? 1 : 0;
  }
  return num_turned > 1;
}

// Puts the results of a slice into a block of T, floats, or floats beside the words of the first target, and writes them
// to the targets of `results`. Out of line because of its array on the stack.
template <typename T, typename Result>
__attribute__((noinline)) void step_through_block(const StepRun<float> &run, const StepRun<float> &results,
                                                  const HeadSlice<T> &slice, StepNumbers<T> *numbers) {
  using Number = std::conditional_t<std::is_same_v<T, Result>, T, float>;
  alignas(64) Number heads[kMaxSliceChannels];
  const HeadBlock block = {reinterpret_cast<char *>(heads), run.channels};
  if constexpr (std::is_same_v<Result, FloatBesideWord<T>>) {
    const StepTarget &target = run.targets[0];
    T *const words = reinterpret_cast<T *>(target.data) + slice.first * target.head_stride;
    step_heads<T, Result, void>(run, slice, block, false, numbers, {words, target.head_stride});
  } else {
    step_to_block<T, Result>(run, slice, block, false, numbers);
  }
  step_to_all<Number>(results, slice_of_block(slice.first, slice.count, heads, run.channels), nullptr);
}

// Norms and turns the heads of a slice and multiplies them by their factors, and writes the results to all targets.
// `results` is the run_of_results if the run goes through a block, and otherwise NULL.
template <typename T>
ROPE_LOOP void step_slice(const StepRun<float> &run, const StepRun<float> *results, const HeadSlice<T> &slice,
                          StepNumbers<T> *numbers) {
  if (results == nullptr) return step_to_all(run, slice, numbers);
  if constexpr (sizeof(T) == 2) {
    if (run.code.rounds_before) return step_through_block<T, T>(run, *results, slice, numbers);
    const bool is_first_done = results->num_targets < run.num_targets;
    if (is_first_done) return step_through_block<T, FloatBesideWord<T>>(run, *results, slice, numbers);
  }
  step_through_block<T, float>(run, *results, slice, numbers);
}

// Reads the row factors of a slice of a run of T.
template <typename T, typename U>
void read_factors(const StepRun<float> &run, HeadSlice<U> *slice) {
  for (int i = 0; run.factor.is_present() && i < slice->count; ++i) {
    slice->factor[i] = factor_of<T, float>(run.factor, slice->first + i);
  }
}

// Sums the squares of heads in their turned form, which is written only to a buffer of the first cache.
template <typename T>
void sum_turned_squares(const StepRun<float> &run, StepNumbers<T> *numbers, HeadSlice<T> *slice) {
  alignas(64) float values[kMaxSliceChannels];
  const HeadBlock block = {reinterpret_cast<char *>(values), run.channels};
  if constexpr (StepNumbers<T>::kIsWords) {
    if (is_made_of(run, 16)) {
      step_heads<T, SharedSquare, void>(run, *slice, block, false, numbers);
      const int words = run.channels / 2;
      return sum_heads(values, words, words, slice->count, Value(), slice->inverse);
    }
  }
  step_heads<T, float, void>(run, *slice, block, false, numbers);
  sum_heads(values, run.channels, run.channels, slice->count, Square(), slice->inverse);
}

// Sums the squares of the norm's input for each head of a slice, into the slice's inverse norms. Prefetches later
// heads.
template <typename T>
void sum_input_squares(const StepRun<float> &run, StepNumbers<T> *numbers, HeadSlice<T> *slice) {
  if (run.is_norm_after && run.is_turned) return sum_turned_squares(run, numbers, slice);
  sum_squares(run, slice);
  prefetch_after_all(run, *slice);
}

template <typename T>
struct SliceBuffers {
  alignas(64) T whole[kMaxSliceChannels];
  StepNumbers<T> numbers;
};

template <typename T>
void step_contiguous(const StepRun<float> &run) {
  SliceBuffers<T> *const buffers = run.buffers<SliceBuffers<T>>();
  T *const whole = buffers->whole;
  StepNumbers<T> &numbers = buffers->numbers;
  HeadSlice<T> slice = {};
  order_angles(run, &numbers);
  const bool is_of_token = run.norm != nullptr && run.is_norm_of_token,
             is_of_head = run.norm != nullptr && !is_of_token;
  const int max_heads = heads_of_slice(run.channels);
  if (is_of_token) {
    TreeSum<float> sum;
    for (int64_t first = 0; first < run.heads; first += max_heads) {
      take_heads(run, first, max_heads, whole, &slice);
      sum_input_squares(run, &numbers, &slice);
      for (int i = 0; i < slice.count; ++i) sum.add(slice.inverse[i]);
    }
    const float of_token = inverse_norm(*run.norm, sum.total());
    for (float &of_head : slice.inverse) of_head = of_token;
  }
  StepRun<float> results;
  const bool is_through_block = goes_through_block(run);
  if (is_through_block) results = run_of_results(run, takes_words_beside<T>(run));
  for (int64_t first = 0; first < run.heads; first += max_heads) {
    take_heads(run, first, max_heads, whole, &slice);
    if (first == 0 && run.weight.head_stride == 0) order_weights<T>(run, first);
    if (is_of_head) {
      sum_input_squares(run, &numbers, &slice);
      inverse_norms(*run.norm, slice.inverse);
    } else if (is_of_token || !run.is_turned) {
      prefetch_after_all(run, slice);
    }
    read_factors<T>(run, &slice);
    step_slice(run, is_through_block ? &results : nullptr, slice, &numbers);
  }
}

}  // namespace

}  // namespace rope

#endif
