// SPDX-License-Identifier: Apache-2.0
// rope_geometry.cpp - validates RoPE configs
#include "core/problem/rope_geometry.hpp"

#include <math.h>

#include "core/problem/descriptor_checks.hpp"
#include "core/problem/view.hpp"

namespace rope {

namespace {

constexpr rope_status_t kInvalid = ROPE_STATUS_INVALID_ARGUMENT;
constexpr rope_status_t kUnsupported = ROPE_STATUS_NOT_SUPPORTED;
constexpr double kMaxFloat = 3.4028234663852886e38;

bool is_style(rope_style_t style) {
  return style == ROPE_STYLE_HALF || style == ROPE_STYLE_INTERLEAVED;
}

rope_status_t check_geometry(const char *function, const rope_config_t &config) {
  if (config.flags != 0) {
    return fail(kUnsupported, "%s: flags is 0x%x: this version knows no flag", function, config.flags);
  }
  if (config.layout < ROPE_LAYOUT_BSHD || config.layout > ROPE_LAYOUT_THD) {
    return fail(kInvalid,
                "%s: layout is %d: it must be ROPE_LAYOUT_BSHD, ROPE_LAYOUT_SBHD, ROPE_LAYOUT_BHSD or ROPE_LAYOUT_THD",
                function, config.layout);
  }
  if (!is_style(config.style)) {
    return fail(kInvalid, "%s: style is %d: it must be ROPE_STYLE_HALF or ROPE_STYLE_INTERLEAVED", function,
                config.style);
  }
  if (config.out_style != 0 && !is_style(config.out_style)) {
    return fail(kInvalid, "%s: out_style is %d: it must be ROPE_STYLE_HALF or ROPE_STYLE_INTERLEAVED, or 0 for style",
                function, config.out_style);
  }
  if (config.head_dim < 2 || config.head_dim > kMaxHeadDim || config.head_dim % 2 != 0) {
    return fail(kInvalid, "%s: head_dim is %d: it must be even, 2 to %d", function, config.head_dim, kMaxHeadDim);
  }
  if (config.rotary_dim < 0 || config.rotary_dim > config.head_dim || config.rotary_dim % 2 != 0) {
    return fail(kInvalid, "%s: rotary_dim is %d: it must be even, at most head_dim %d, or 0 for head_dim", function,
                config.rotary_dim, config.head_dim);
  }
  const int rotary_dim = config.rotary_dim != 0 ? config.rotary_dim : config.head_dim;
  if (config.rotary_offset < 0 || config.rotary_offset > config.head_dim - rotary_dim) {
    return fail(kInvalid, "%s: rotary_offset is %d: with rotary_dim %d it must be 0 to %d, inside head_dim %d",
                function, config.rotary_offset, rotary_dim, config.head_dim - rotary_dim, config.head_dim);
  }
  return ROPE_STATUS_SUCCESS;
}

rope_status_t refuse_norm_fields(const char *function, const rope_config_t &config) {
  const struct {
    const char *field;
    double value;
  } fields[] = {{"norm_tensors", static_cast<double>(config.norm_tensors)},
                {"norm_order", static_cast<double>(config.norm_order)},
                {"norm_extent", static_cast<double>(config.norm_extent)},
                {"norm_rounding", static_cast<double>(config.norm_rounding)},
                {"norm_eps", config.norm_eps},
                {"norm_weight_offset", config.norm_weight_offset}};
  for (const auto &given : fields) {
    if (given.value == 0.0) continue;
    return fail(kInvalid, "%s: %s is %.10g: it must be 0 where norm is 0", function, given.field, given.value);
  }
  return ROPE_STATUS_SUCCESS;
}

rope_status_t copy_norm(const char *function, const rope_config_t &config, NormGeometry *norm) {
  if (config.norm == 0) return refuse_norm_fields(function, config);
  if (config.norm != ROPE_NORM_RMS && config.norm != ROPE_NORM_LAYER) {
    return fail(kInvalid, "%s: norm is %d: it must be ROPE_NORM_RMS or ROPE_NORM_LAYER, or 0 for none", function,
                config.norm);
  }
  constexpr int32_t kTensors = ROPE_NORM_TENSOR_Q | ROPE_NORM_TENSOR_K | ROPE_NORM_TENSOR_V;
  if ((config.norm_tensors & ~kTensors) != 0) {
    return fail(kInvalid, "%s: norm_tensors is 0x%x: it must be ROPE_NORM_TENSOR_ bits (0x%x), or 0 for q and k",
                function, static_cast<unsigned>(config.norm_tensors), static_cast<unsigned>(kTensors));
  }
  if (config.norm_order != ROPE_NORM_ORDER_BEFORE && config.norm_order != ROPE_NORM_ORDER_AFTER) {
    return fail(kInvalid, "%s: norm_order is %d: it must be ROPE_NORM_ORDER_BEFORE or ROPE_NORM_ORDER_AFTER", function,
                config.norm_order);
  }
  if (config.norm_extent != ROPE_NORM_EXTENT_HEAD && config.norm_extent != ROPE_NORM_EXTENT_TOKEN) {
    return fail(kInvalid, "%s: norm_extent is %d: it must be ROPE_NORM_EXTENT_HEAD or ROPE_NORM_EXTENT_TOKEN", function,
                config.norm_extent);
  }
  constexpr int32_t kRoundings = ROPE_NORM_ROUND_BEFORE_WEIGHT | ROPE_NORM_ROUND_AFTER_WEIGHT;
  if ((config.norm_rounding & ~kRoundings) != 0) {
    return fail(kUnsupported, "%s: norm_rounding is 0x%x: this version knows ROPE_NORM_ROUND_ bits 0x%x only", function,
                static_cast<unsigned>(config.norm_rounding), static_cast<unsigned>(kRoundings));
  }
  const double eps = config.norm_eps;
  const bool vanishes = config.dtype != ROPE_DTYPE_F64 && static_cast<float>(eps) == 0.0f;
  if (!(eps > 0.0 && eps <= kMaxFloat) || vanishes) {
    return fail(kInvalid, "%s: norm_eps is %g: it must be a finite number above 0 in fp32", function, eps);
  }
  if (!(fabs(config.norm_weight_offset) <= kMaxFloat)) {
    return fail(kInvalid, "%s: norm_weight_offset is %g: it must be a finite number in fp32", function,
                config.norm_weight_offset);
  }
  norm->type = config.norm;
  norm->tensors = config.norm_tensors != 0 ? config.norm_tensors : ROPE_NORM_TENSOR_Q | ROPE_NORM_TENSOR_K;
  norm->is_after = config.norm_order == ROPE_NORM_ORDER_AFTER;
  norm->is_of_token = config.norm_extent == ROPE_NORM_EXTENT_TOKEN;
  norm->rounds_before_weight = (config.norm_rounding & ROPE_NORM_ROUND_BEFORE_WEIGHT) != 0;
  norm->rounds_after_weight = (config.norm_rounding & ROPE_NORM_ROUND_AFTER_WEIGHT) != 0;
  norm->eps = eps;
  norm->weight_offset = config.norm_weight_offset;
  return ROPE_STATUS_SUCCESS;
}

rope_status_t check_roundings(const char *function, const rope_config_t &config) {
  if ((config.quant_rounding & ~ROPE_QUANT_ROUND_FIRST) != 0) {
    return fail(kUnsupported, "%s: quant_rounding is 0x%x: this version knows ROPE_QUANT_ROUND_FIRST (0x1) only",
                function, static_cast<unsigned>(config.quant_rounding));
  }
  if (config.rotation_rounding != 0 && config.rotation_rounding != ROPE_ROTATION_ROUND_EACH) {
    return fail(kUnsupported, "%s: rotation_rounding is %d: this version knows ROPE_ROTATION_ROUND_EACH (1) only",
                function, config.rotation_rounding);
  }
  if (config.reserved1 != 0) {
    return fail(kUnsupported, "%s: reserved1 is %d: it must be 0", function, config.reserved1);
  }
  return ROPE_STATUS_SUCCESS;
}

// Reads the distance between the channels of a pair, in forward's input and in its output.
rope_status_t copy_distances(const char *function, const rope_config_t &config, RopeGeometry *geometry) {
  const int32_t block = config.pair_block != 0 ? config.pair_block : geometry->rotary_dim;
  if (block < 2 || block % 2 != 0 || geometry->rotary_dim % block != 0) {
    return fail(kInvalid, "%s: pair_block is %d: it must be even and divide rotary_dim, %d, or be 0 for it", function,
                block, geometry->rotary_dim);
  }
  const rope_style_t out_style = config.out_style != 0 ? config.out_style : config.style;
  if (config.pair_block != 0 && config.style != ROPE_STYLE_HALF && out_style != ROPE_STYLE_HALF) {
    return fail(kInvalid, "%s: pair_block is %d: style and out_style are INTERLEAVED, only HALF has blocks", function,
                block);
  }
  geometry->in_distance = config.style == ROPE_STYLE_HALF ? block / 2 : 1;
  geometry->out_distance = out_style == ROPE_STYLE_HALF ? block / 2 : 1;
  return ROPE_STATUS_SUCCESS;
}

rope_status_t copy_axes(const char *function, const rope_config_t &config, RopeGeometry *geometry) {
  if (config.num_axes < 0 || config.num_axes > ROPE_MAX_POSITION_AXES) {
    return fail(kInvalid, "%s: num_axes is %d: it must be 0 to %d", function, config.num_axes, ROPE_MAX_POSITION_AXES);
  }
  geometry->num_axes = config.num_axes != 0 ? config.num_axes : 1;
  geometry->used_axes = 0;
  for (int pair = 0; pair < geometry->pairs(); ++pair) {
    const int32_t axis = config.pair_axis != nullptr ? config.pair_axis[pair] : 0;
    if (axis < 0 || axis >= geometry->num_axes) {
      return fail(kInvalid, "%s: pair_axis[%d] is %d: with num_axes %d it must be 0 to %d", function, pair, axis,
                  geometry->num_axes, geometry->num_axes - 1);
    }
    geometry->pair_axis[pair] = static_cast<uint8_t>(axis);
    geometry->used_axes |= 1u << axis;
  }
  return ROPE_STATUS_SUCCESS;
}

rope_status_t copy_frequencies(const char *function, const rope_config_t &config, RopeGeometry *geometry) {
  const int pairs = geometry->pairs();
  const double theta = config.theta;
  const double scale = config.attention_scale;
  if (!(fabs(scale) <= kMaxFloat) || (scale != 0.0 && static_cast<float>(scale) == 0.0f)) {
    return fail(kInvalid, "%s: attention_scale is %g: it must be a finite number other than 0 in fp32, or 0 for 1",
                function, scale);
  }
  geometry->attention_scale = scale == 0.0 ? 1.0 : scale;
  if (theta != 0.0 && !(theta >= kMinTheta && theta <= kMaxTheta)) {
    return fail(kInvalid, "%s: theta is %g: it must be %g to %g, or 0 for none", function, theta, kMinTheta, kMaxTheta);
  }
  geometry->has_frequencies = config.inv_freq != nullptr || theta != 0.0;
  if (config.inv_freq != nullptr) {
    for (int pair = 0; pair < pairs; ++pair) {
      if (!isfinite(config.inv_freq[pair])) {
        return fail(kInvalid, "%s: inv_freq[%d] is %g: it must be finite", function, pair, config.inv_freq[pair]);
      }
    }
    increments_from_frequencies(config.inv_freq, pairs, geometry->increments);
  } else if (theta != 0.0) {
    increments_from_theta(theta, geometry->rotary_dim, geometry->increments);
  }
  return ROPE_STATUS_SUCCESS;
}

}  // namespace

rope_status_t make_rope_geometry(const char *function, const rope_config_t &config, RopeGeometry *geometry) {
  ROPE_TRY(check_device(function, config.device, config.device_index, config.num_threads));
  ROPE_TRY(check_data_type(function, config.dtype));
  ROPE_TRY(check_geometry(function, config));
  geometry->dtype = config.dtype;
  geometry->layout = config.layout;
  geometry->head_dim = config.head_dim;
  geometry->rotary_dim = config.rotary_dim != 0 ? config.rotary_dim : config.head_dim;
  geometry->rotary_offset = config.rotary_offset;
  ROPE_TRY(copy_distances(function, config, geometry));
  ROPE_TRY(copy_axes(function, config, geometry));
  ROPE_TRY(copy_frequencies(function, config, geometry));
  ROPE_TRY(copy_norm(function, config, &geometry->norm));
  geometry->rounds_before_codes = config.quant_rounding != 0;
  // F32 and F64 arithmetic rounds to the data's type anyway.
  geometry->rounds_each = config.rotation_rounding != 0 && dtype_size(config.dtype) == 2;
  return check_roundings(function, config);
}

}  // namespace rope
