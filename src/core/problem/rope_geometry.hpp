// SPDX-License-Identifier: Apache-2.0
// rope_geometry.hpp - the part of a descriptor that defines the rotation
#pragma once

#include <stdint.h>

#include "core/math/frequencies.hpp"
#include "core/math/host_device.hpp"
#include "core/problem/status.hpp"

namespace rope {

// Pair p consists of the window's channels first_channel(p, distance) and first_channel(p, distance) + distance.
// INTERLEAVED has distance 1, HALF has half its block. With distance 2 the pairs a, b, c, d lie like this:
//   a b a b c d c d
ROPE_HOST_DEVICE int first_channel(int pair, int distance) {
  return pair + pair / distance * distance;
}

// The place of a window's channel after its pair's distance changes from `from` to `to`.
ROPE_HOST_DEVICE int moved_channel(int channel, int from, int to) {
  const int block = channel / (2 * from), in_block = channel % (2 * from);
  const bool is_second = in_block >= from;
  const int pair = block * from + (is_second ? in_block - from : in_block);
  return first_channel(pair, to) + (is_second ? to : 0);
}

// The norm of heads or tokens around the rotation. Its numbers are not yet in the arithmetic's type.
struct NormGeometry {
  rope_norm_type_t type;  // 0 if there is none
  int32_t tensors;        // ROPE_NORM_TENSOR_ bits
  bool is_after;          // the norm follows the rotation
  bool is_of_token;       // over all heads of a token instead of one head
  bool rounds_before_weight;
  bool rounds_after_weight;
  double eps;
  double weight_offset;
};

struct RopeGeometry {
  rope_dtype_t dtype;
  rope_layout_t layout;
  int head_dim;
  int rotary_dim;
  int rotary_offset;
  int in_distance;  // between the channels of a pair in forward's input; out_distance in its output
  int out_distance;
  int num_axes;
  uint8_t pair_axis[kMaxPairs];
  double attention_scale;
  bool has_frequencies;
  uint64_t increments[kMaxPairs];  // one per pair, in units of 2^-64 turn per position

  uint32_t used_axes;  // bit a is set if some pair turns with axis a
  NormGeometry norm;
  bool rounds_before_codes;  // values are rounded to dtype before they become codes
  bool rounds_each;          // cos, sin, and each product and sum of the rotation are rounded to dtype

  int pairs() const { return rotary_dim / 2; }
  bool uses_axis(int axis) const { return (used_axes >> axis & 1u) != 0; }
};

// `config` is an imported struct.
rope_status_t make_rope_geometry(const char *function, const rope_config_t &config, RopeGeometry *geometry);

}  // namespace rope
