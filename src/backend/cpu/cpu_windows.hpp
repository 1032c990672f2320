// SPDX-License-Identifier: Apache-2.0
// cpu_windows.hpp - the channels of a head as pairs: their places, their runs, and copying without rotation
#pragma once

#include <string.h>

#include "backend/cpu/cpu_kernels.hpp"
#include "core/math/host_device.hpp"
#include "core/problem/rope_geometry.hpp"

namespace rope {

// The rotated window of a head, in the input or in the output.
struct Window {
  char *data;
  int64_t channel_stride;  // in elements
  int distance;

  ROPE_HOST char *channel(int64_t number, int64_t size) const { return data + number * channel_stride * size; }

  ROPE_HOST PairRun run_from(int pair, int64_t size, int64_t head_stride) const {
    char *x = channel(first_channel(pair, distance), size);
    return {x, x + distance * channel_stride * size, distance == 1 ? 2 * channel_stride : channel_stride, head_stride};
  }
};

// The length of a run of pairs: from any multiple of this number on, so many pairs are evenly spaced in input and
// output.
ROPE_HOST int pairs_of_run(const Window &in, const Window &out, int pairs) {
  int run = pairs;
  if (in.distance != 1 && in.distance < run) run = in.distance;
  if (out.distance != 1 && out.distance < run) run = out.distance;
  return run;
}

ROPE_HOST void copy_channel(const Window &in, int64_t from, const Window &out, int64_t to, int64_t size) {
  memcpy(out.channel(to, size), in.channel(from, size), static_cast<size_t>(size));
}

ROPE_HOST void copy_channels(const Window &in, const Window &out, int64_t size, int begin, int end) {
  if (in.channel_stride == 1 && out.channel_stride == 1) {
    memcpy(out.channel(begin, size), in.channel(begin, size), static_cast<size_t>((end - begin) * size));
    return;
  }
  for (int channel = begin; channel < end; ++channel) copy_channel(in, channel, out, channel, size);
}

// Copies pairs from their places in the input to those in the output.
ROPE_HOST void move_pairs(const Window &in, const Window &out, int64_t size, int pairs) {
  for (int pair = 0; pair < pairs; ++pair) {
    const int from = first_channel(pair, in.distance), to = first_channel(pair, out.distance);
    copy_channel(in, from, out, to, size);
    copy_channel(in, from + in.distance, out, to + out.distance, size);
  }
}

}  // namespace rope
