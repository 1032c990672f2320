// rope_geometry.hpp - the part of a descriptor that says what is rotated and how
#pragma once

#include <stdint.h>

#include "core/math/frequencies.hpp"
#include "core/math/host_device.hpp"
#include "core/problem/status.hpp"

namespace rope {

// Which channels of the rotated window are pair p: first_channel(p, distance), and the one `distance` further on.
// INTERLEAVED has distance 1, HALF half its block. With distance 2:
//   a b a b c d c d
ROPE_HOST_DEVICE int first_channel(int pair, int distance) {
  return pair + pair / distance * distance;
}

// Where a channel of the window lies if the channels of pairs are `to` apart and not `from`.
ROPE_HOST_DEVICE int moved_channel(int channel, int from, int to) {
  const int block = channel / (2 * from), in_block = channel % (2 * from);
  const bool is_second = in_block >= from;
  const int pair = block * from + (is_second ? in_block - from : in_block);
  return first_channel(pair, to) + (is_second ? to : 0);
}

// The norm of heads or tokens around the rotation, numbers not yet in the arithmetic's type.
struct NormGeometry {
  rope_norm_type_t type;  // 0: none
  int32_t tensors;        // ROPE_NORM_TENSOR_ bits
  bool is_after;          // the rotation
  bool is_of_token;       // over all heads of a tensor
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
  int in_distance;  // between the channels of a pair, where forward reads it and where it writes it
  int out_distance;
  int num_axes;
  uint8_t pair_axis[kMaxPairs];
  double attention_scale;
  bool has_frequencies;
  uint64_t increments[kMaxPairs];  // per pair, turns per position * 2^64

  uint32_t used_axes;  // bit a: some pair turns with axis a
  NormGeometry norm;
  bool rounds_before_codes;  // values become dtype's before they become codes
  bool rounds_each;          // cos, sin, products and sums of the rotation become dtype's one by one

  int pairs() const { return rotary_dim / 2; }
  bool uses_axis(int axis) const { return (used_axes >> axis & 1u) != 0; }
};

// `config` is an imported struct.
rope_status_t make_rope_geometry(const char *function, const rope_config_t &config, RopeGeometry *geometry);

}  // namespace rope
