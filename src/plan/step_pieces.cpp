// SPDX-License-Identifier: Apache-2.0
// step_pieces.cpp - cuts heads with a part that is turned into the window and the channels outside it
#include "plan/step_pieces.hpp"

namespace rope {

namespace {

char *channel_of(char *data, int channel, int64_t stride, rope_dtype_t dtype) {
  return data + channel * stride * dtype_size(dtype);
}

CacheView from_channel(CacheView cache, int channel) {
  cache.data = channel_of(cache.data, channel, cache.channel_stride, cache.dtype);
  return cache;
}

StepPiece window_of(const RopeProblem &problem, int index) {
  const RopeGeometry &geometry = *problem.geometry;
  const StepTensor &tensor = problem.step->tensor[index];
  StepPiece piece = whole_piece(problem, index);
  piece.channels = geometry.rotary_dim;
  // Beside a pass, the tensor has only the window.
  if (!tensor.pass.is_present) {
    piece.in += tensor.window_begin * piece.in_stride[kChannel] * dtype_size(geometry.dtype);
  }
  piece.out = channel_of(piece.out, tensor.window_begin, piece.out_stride[kChannel], piece.out_dtype);
  if (piece.is_cached()) piece.cache = from_channel(piece.cache, tensor.cache_part.window_at);
  return piece;
}

// The channels outside the window, if they are all behind it or all before it.
StepPiece others_of(const RopeProblem &problem, int index) {
  const RopeGeometry &geometry = *problem.geometry;
  const StepTensor &tensor = problem.step->tensor[index];
  StepPiece piece = whole_piece(problem, index);
  piece.channels = tensor.channels - geometry.rotary_dim;
  piece.is_turned = false;
  const int first = tensor.window_begin == 0 ? geometry.rotary_dim : 0;
  if (tensor.pass.is_present) {
    piece.in = tensor.pass.data;
    piece.in_stride = tensor.pass.stride;
  } else {
    piece.in += first * piece.in_stride[kChannel] * dtype_size(geometry.dtype);
  }
  piece.is_written = tensor.is_written && tensor.is_whole;
  piece.out = channel_of(piece.out, first, piece.out_stride[kChannel], piece.out_dtype);
  if (tensor.pass_cache.data != nullptr) {
    piece.cache = tensor.pass_cache;
    piece.scale = &tensor.pass_scale;
    piece.cache_scales = &tensor.pass_scales;
  } else if (piece.is_cached()) {
    const int begin = tensor.window_begin;
    piece.cache = from_channel(piece.cache, tensor.cache_part.index_of(first, begin, begin + geometry.rotary_dim));
  }
  return piece;
}

// Whether the window and the other channels are separate pieces.
bool is_cut(const RopeProblem &problem, const StepTensor &tensor) {
  return tensor.has_styles && tensor.channels != problem.geometry->rotary_dim && (tensor.is_turned || tensor.has_parts);
}

// Whether the window has a head's first or last channels.
bool has_window_at_end(const RopeProblem &problem, const StepTensor &tensor) {
  return tensor.window_begin == 0 || tensor.window_begin + problem.geometry->rotary_dim == tensor.channels;
}

// Whether a tensor without a norm can be cut.
bool can_be_cut(const RopeProblem &problem, const StepTensor &tensor) {
  const bool has_scales_of_all =
      tensor.out_scales.is_present() || (tensor.cache_scales.is_present() && tensor.pass_cache.data == nullptr);
  // The output has the static scale of the tensor, the cache of the pass another one. A piece's codes have one scale.
  const bool is_one_scale =
      tensor.scale.data == tensor.pass_scale.data && tensor.scale.head_stride == tensor.pass_scale.head_stride;
  const bool has_two_scales = tensor.pass_cache.data != nullptr && tensor.has_code_out() && !is_one_scale;
  return has_window_at_end(problem, tensor) && !has_scales_of_all && !has_two_scales;
}

// Adds a piece behind those with as many channels or more. Returns false if there is no room.
bool add_piece(const StepPiece &piece, StepPieces *pieces) {
  StepPiece *place = pieces->add();
  if (place == nullptr) return false;
  for (; place != pieces->begin() && place[-1].channels < piece.channels; --place) *place = place[-1];
  *place = piece;
  return true;
}

}  // namespace

StepPiece whole_piece(const RopeProblem &problem, int index) {
  const RotatedTensor &rotated = problem.tensor[index];
  const StepTensor &tensor = problem.step->tensor[index];
  return {rotated.heads, tensor.channels,   tensor.is_turned,   tensor.is_normed,     tensor.is_written,
          rotated.in,    rotated.in_stride, rotated.out,        rotated.out_stride,   tensor.out_dtype,
          tensor.cache,  &tensor.scale,     &tensor.out_scales, &tensor.cache_scales, &tensor.weight,
          &tensor.bias,  &tensor.factor,    tensor.amax};
}

bool make_step_pieces(const RopeProblem &problem, StepPieces *pieces) {
  pieces->clear();
  pieces->window_channels = 0;
  pieces->is_window_last = false;
  for (int i = 0; i < problem.num_tensors; ++i) {
    const StepTensor &tensor = problem.step->tensor[i];
    if (problem.tensor[i].heads == 0) continue;
    if (!is_cut(problem, tensor)) {
      if (!add_piece(whole_piece(problem, i), pieces)) return false;
      continue;
    }
    if (tensor.is_normed) {
      if (!has_window_at_end(problem, tensor) || tensor.has_parts) return false;
      pieces->window_channels = problem.geometry->rotary_dim;
      pieces->is_window_last = tensor.window_begin != 0;
      if (!add_piece(whole_piece(problem, i), pieces)) return false;
      continue;
    }
    if (!can_be_cut(problem, tensor) || !add_piece(window_of(problem, i), pieces)) return false;
    const StepPiece others = others_of(problem, i);
    if ((others.is_written || others.is_cached()) && !add_piece(others, pieces)) return false;
  }
  return true;
}

}  // namespace rope
