// SPDX-License-Identifier: Apache-2.0
// cpu_step_codes.hpp - heads with channels side by side become codes of 8 bits; floats of any call become codes
//
// The file is in an unnamed namespace; cpu_loops.hpp explains this.
#pragma once

#include "backend/cpu/cpu_loops.hpp"
#include "backend/cpu/cpu_step_vectors.hpp"

#if defined(ROPE_HAS_VECTORS)

namespace rope {

namespace {

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

// Writes channels `begin` to `end` as codes.
template <typename T, typename U>
ROPE_LOOP void encode_channels(const T *in, U *out, int begin, int end, float factor) {
#if defined(__AVX512BW__)
  begin = encode_vectors<16>(in, out, begin, end, factor);
#endif
  begin = encode_vectors<8>(in, out, begin, end, factor);
  for (; begin < end; ++begin) out[begin] = round_to<U>(multiply_rounded(to_float(in[begin]), factor));
}

// Writes channels `begin` to `end` of several heads as codes. The function is out of line so that its loop has no calls
// and all its numbers stay in registers.
template <typename T, typename U>
__attribute__((noinline)) void encode_rows(const T *in, int64_t in_stride, U *out, int64_t out_stride, int begin,
                                           int end, const float *factors, int count) {
  for (int head = 0; head < count; ++head, in += in_stride, out += out_stride) {
    encode_channels(in, out, begin, end, factors[head]);
  }
}

// The channels of a head in the order of a destination, in three parts that end at `ends`: channels before the window,
// the window, and channels behind it. Pointers count from the destination's channel 0.
template <typename T, typename Window>
struct HeadParts {
  const T *before;
  const Window *window;
  const T *behind;
  int64_t others_stride;
  int64_t window_stride;
  int ends[3];

  // Calls take_part for each part of channels `begin` to `end`.
  template <typename Take>
  ROPE_LOOP void take(int begin, int end, const Take &take_part) const {
    const auto take_to = [&](int part_end, const auto *part, int64_t stride) {
      if (part_end > end) part_end = end;
      if (begin >= part_end) return;
      take_part(part, stride, begin, part_end);
      begin = part_end;
    };
    take_to(ends[0], before, others_stride);
    take_to(ends[1], window, window_stride);
    take_to(ends[2], behind, others_stride);
  }
};

// Returns the parts of a slice's heads for a target. The window comes from `windows`, other channels from the input.
template <typename T, typename Window>
HeadParts<T, Window> parts_of(const StepRun<float> &run, const HeadSlice<T> &slice, const ChannelPart &part,
                              const Window *windows, int64_t stride) {
  const int begin = run.window_begin, end = begin + 2 * run.pairs;
  const int window = part.has_window ? 2 * run.pairs : 0, window_at = part.has_others ? begin : 0;
  const int window_end = window_at + window, behind = part.has_others ? run.channels - end : 0;
  return {slice.before,
          windows + begin - window_at,
          slice.behind + end - window_end,
          slice.others_stride,
          stride,
          {window_at, window_end, window_end + behind}};
}

// Returns the parts of heads that have all channels in one block. A target of all channels has a single part.
template <typename T>
HeadParts<T, T> parts_of_block(const StepRun<float> &run, const ChannelPart &part, const T *heads, int64_t stride) {
  const int channels = run.channels;
  if (part.has_window && part.has_others) return {heads, heads, heads, stride, stride, {channels, channels, channels}};
  HeadSlice<T> slice;
  slice.before = slice.behind = heads;
  slice.others_stride = stride;
  return parts_of(run, slice, part, heads, stride);
}

// Writes heads as codes of U.
template <typename U, typename T, typename Window>
void encode_heads(const StepRun<float> &run, const StepTarget &target, const HeadParts<T, Window> &parts,
                  const HeadBlock &to, int64_t first, int count) {
  const int groups = target.groups(), channels = parts.ends[2] / groups;
  const bool needs_magnitudes = run.code.needs_magnitudes(target);
  const bool has_one_factor = !needs_magnitudes && target.scale_head_stride == 0;
  for (int group = 0; group < groups; ++group) {
    const int group_begin = group * channels, group_end = group_begin + channels;
    uint32_t magnitudes[kMaxSliceHeads] = {};
    if (needs_magnitudes) {
      parts.take(group_begin, group_end, [&](const auto *in, int64_t stride, int begin, int end) {
        for (int head = 0; head < count; ++head) {
          raise_magnitude(in + head * stride + begin, end - begin, &magnitudes[head]);
        }
      });
    }
    float factors[kMaxSliceHeads];
    if (has_one_factor) {
      const float factor = run.code.factor_of(target, first);
      for (float &of_head : factors) of_head = factor;
    } else {
      for (int head = 0; head < count; ++head) {
        factors[head] = code_factor_of<U>(run.code, target, first + head, group, magnitudes[head]);
      }
    }
    parts.take(group_begin, group_end, [&](const auto *in, int64_t stride, int begin, int end) {
      U *const out = reinterpret_cast<U *>(to.data);
      // Heads that follow each other are encoded as one.
      const bool is_one = has_one_factor && begin == 0 && end == stride && to.stride == stride;
      encode_rows(in, stride, out, to.stride, begin, is_one ? count * end : end, factors, is_one ? 1 : count);
    });
  }
}

}  // namespace

}  // namespace rope

#endif

namespace rope {

namespace {

template <typename Float8>
void encode_values(const float *values, int count, float factor, void *codes, int64_t stride) {
  Float8 *const out = static_cast<Float8 *>(codes);
#if defined(ROPE_HAS_VECTORS)
  if (stride == 1) return encode_channels(values, out, 0, count, factor);
#endif
  for (int i = 0; i < count; ++i) out[i * stride] = round_to<Float8>(multiply_rounded(values[i], factor));
}

// Writes two values to each byte, the first one to its lower half.
inline void encode_pairs(const float *values, int count, float factor, void *codes, int64_t stride) {
  uint8_t *const out = static_cast<uint8_t *>(codes);
  for (int64_t i = 0; i < count / 2; ++i) {
    const Float4E2M1 low = round_to<Float4E2M1>(multiply_rounded(values[2 * i], factor));
    const Float4E2M1 high = round_to<Float4E2M1>(multiply_rounded(values[2 * i + 1], factor));
    out[i * stride] = static_cast<uint8_t>(low.bits | high.bits << 4);
  }
}

}  // namespace

}  // namespace rope
