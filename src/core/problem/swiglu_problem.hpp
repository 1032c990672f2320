// SPDX-License-Identifier: Apache-2.0
// swiglu_problem.hpp - a call of SwiGLU as validated, canonical, plain data
#pragma once

#include <stdint.h>

#include "core/math/gating_options.hpp"
#include "core/problem/status.hpp"
#include "core/problem/swiglu_rows.hpp"
#include "core/problem/view.hpp"
#include "core/problem/written_scales.hpp"

namespace rope {

enum SwigluInput {
  kGate,
  kUp,
  kGradOut,
  kMaxSwigluInputs
};
enum SwigluOutput {
  kOut = 0,
  kGradGate = 0,
  kGradUp = 1,
  kRecomputedOut = 2,
  kMaxSwigluOutputs
};

// How gate and up lie in memory, or their gradients.
enum class GateUpLayout : uint8_t {
  kSeparate,            // each by itself
  kAlternating,         // gate, up, gate, up, ... along the last axis
  kAlternatingUpFirst,  // up, gate, up, gate, ...
};

// How the values of an output become codes of 8 or 4 bits. With written scales, axes keep gate's order and the axes of
// a scale's row come last: groups are runs of a row's elements, numbered with the last axis fastest. With groups of
// rows, a group has group_elements neighbouring rows of gate, at one index of each other axis. With codes of 4 bits
// axes also keep gate's order, and out's strides are in halves of an element, so that the offset of a value with an
// even number is twice that of its pair.
struct SwigluCodes {
  rope_dtype_t dtype;                  // of the output; the type of the data means no codes
  bool rounds_first;                   // values are rounded to the data's type before scales and codes
  bool scale_multiplies;               // values are multiplied by a given scale; else divided
  bool has_tiles;                      // `scales` are bytes in tiles of 128 rows and 4 groups
  bool has_row_groups;                 // `scales` are for groups of neighbouring rows; else of neighbouring channels
  const char *scale;                   // given, F32: replaces `scales`, or is the global scale of kE4M3; NULL: 1
  int64_t expert_stride;               // of `scale`, in elements; 0: one scale for all experts
  WrittenScales scales;                // its row strides are not used
  int64_t group_elements;              // elements of a group, which has one of `scales`
  int64_t scales_stride[kMaxAxes];     // in elements; 0 along the axes of a row and, with tiles, along that of rows
  int64_t scale_row_stride[kMaxAxes];  // with tiles: the sum of index times these is a row's number in its matrix
  int64_t rows;                        // with tiles: rows of a matrix
  char *amax;                          // a F32 that the largest magnitude raises; NULL: none

  ROPE_HOST_DEVICE bool has_pairs() const { return is_code_pair(dtype); }

  // Returns the static or global scale of an expert; 1 if there is none.
  ROPE_HOST_DEVICE float given_scale(int64_t expert) const {
    return scale == nullptr ? 1 : reinterpret_cast<const float *>(scale)[expert * expert_stride];
  }

  // The size of a matrix of scales in tiles, with its padding of zeros.
  ROPE_HOST_DEVICE int64_t padded_rows() const { return (rows + 127) / 128 * 128; }
  ROPE_HOST_DEVICE int64_t padded_groups() const { return (int64_t{scales.groups} + 3) / 4 * 4; }

  ROPE_HOST_DEVICE bool has_padding() const {
    return has_tiles && (padded_rows() != rows || padded_groups() != scales.groups);
  }

  // Returns the scale of a group from the bits of its largest magnitude. Only kE4M3 uses `global`.
  ROPE_HOST_DEVICE GroupScale scale_of(uint32_t magnitude, float global) const {
    if (magnitude < scales.floor) magnitude = scales.floor;
    if (scales.form == ScaleForm::kE4M3) return e4m3_scale_of_group(magnitude, global);
    return scale_of_group(magnitude, scales.form,
                          has_pairs()                   ? Float4E2M1::kMax
                          : dtype == ROPE_DTYPE_F8_E5M2 ? Float8E5M2::kMax
                                                        : Float8E4M3::kMax);
  }

  // Where the scale of a group of a row lies: the sum of these two and of scales_stride. With tiles `row` is a sum of
  // scale_row_stride; without, place_of_row is 0.
  ROPE_HOST_DEVICE int64_t place_of_group(int64_t group) const {
    const int64_t four = has_tiles ? 512 : scales.four_stride, one = has_tiles ? 1 : scales.group_stride;
    return group / 4 * four + group % 4 * one;
  }
  ROPE_HOST_DEVICE int64_t place_of_row(int64_t row) const {
    return has_tiles ? row / 128 * (padded_groups() / 4) * 512 + row % 32 * 16 + row % 128 / 32 * 4 : 0;
  }

  // Stores a scale. `offset` is a sum of scales_stride.
  ROPE_HOST_DEVICE void store_scale(int64_t offset, int64_t row, int64_t group, uint32_t bits) const {
    scales.store_at(offset + place_of_row(row) + place_of_group(group), bits);
  }

  // Clears the padding below a group of the last row, and beside the last group of a row. Both lie in the tile of the
  // group's own scale. Numbers in this rectangle run down its rows first and count the own scale as 0; the call clears
  // numbers first, first + step, and so on. first is at least 1.
  ROPE_HOST_DEVICE void clear_padding(int64_t offset, int64_t row, int64_t group, int64_t first, int64_t step) const {
    const int64_t num_rows = row == rows - 1 ? padded_rows() - row : 1;
    const int64_t num_groups = group == scales.groups - 1 ? padded_groups() - group : 1;
    if (num_rows * num_groups == 1) return;
    const int64_t tile = row / 128 * (padded_groups() / 4) + group / 4;
    char *const bytes = scales.data + offset + tile * 512 + group % 4;
    int64_t beside = 0;
    for (int64_t below = first;; below += step) {
      for (; below >= num_rows && beside < num_groups; ++beside) below -= num_rows;
      if (beside == num_groups) return;
      const uint32_t at = static_cast<uint32_t>(row % 128 + below);
      bytes[at % 32 * 16 + at / 32 * 4 + beside] = 0;
    }
  }
};

// An operation on each element, over up to four axes. The last axis has the smallest strides. Axes of length 1 are left
// out, and axes that act as one in every tensor are merged, so that a contiguous tensor of any rank is a single
// axis.
//
// Axes keep gate's order with written scales, with codes of 4 bits, and in three more cases. If rows are summed
// (grad_row_scale), the axes of a row come last, so that the order of a sum does not depend on strides. With experts,
// the rows of an expert follow each other. With `rows`, gate's first axis stays the first one and is not merged, or has
// length 1 and is left out.
struct SwigluProblem {
  rope_dtype_t dtype;
  GatingForm form;
  bool is_programmatic;  // ROPE_FLAG_PROGRAMMATIC_LAUNCH
  bool is_backward;      // inputs gate, up, grad_out, outputs grad_gate, grad_up, out; otherwise gate, up and out
  int ndim;              // at least 1
  int64_t shape[kMaxAxes];
  const char *in[kMaxSwigluInputs];
  char *out[kMaxSwigluOutputs];                   // NULL: absent; a problem with codes has one
  int64_t in_stride[kMaxSwigluInputs][kMaxAxes];  // in elements
  int64_t out_stride[kMaxSwigluOutputs][kMaxAxes];

  const char *row_scale;               // NULL: 1
  char *grad_row_scale;                // NULL: absent
  rope_dtype_t row_scale_dtype;        // of both: F32 or dtype
  int num_row_axes;                    // with grad_row_scale: the number of its axes, which come first
  int64_t row_scale_stride[kMaxAxes];  // 0 along the axes of a row
  int64_t grad_row_scale_stride[kMaxAxes];

  const char *num_rows;  // NULL: all
  rope_dtype_t num_rows_dtype;
  int64_t row_index_stride[kMaxAxes];  // the sum of index times these is gate's first index, which num_rows limits;
                                       // 0 unless num_rows, `rows` or an output with groups of rows needs it

  SwigluRows rows;                // by gate's first index
  int64_t factor_stride;          // of row_scale, with row_index
  int64_t bias_expert_stride[2];  // with expert_offsets; 0: all experts have one

  const char *bias[2];  // of gate and up; NULL: none
  rope_dtype_t bias_dtype[2];
  int64_t bias_stride[2][kMaxAxes];

  const char *expert_rows;  // NULL: no experts
  rope_dtype_t expert_rows_dtype;
  int64_t expert_rows_stride;
  int64_t experts;
  int64_t rows_per_expert;                    // that there is room for
  int64_t expert_index_stride[kMaxAxes];      // like row_index_stride: gate's first index, an expert
  int64_t expert_row_index_stride[kMaxAxes];  // like row_index_stride: gate's second index, which expert_rows limits

  SwigluCodes codes;

  int num_inputs() const { return is_backward ? 3 : 2; }
  int num_outputs() const { return is_backward ? 3 : 1; }
  int coded_output() const { return out[kOut] != nullptr ? kOut : kGradUp; }
  int64_t num_elements() const;
  int64_t num_row_elements() const;         // for each index of gate's first axis, with `rows`
  int64_t num_summed_elements() const;      // for each entry of grad_row_scale
  int64_t num_expert_row_elements() const;  // for each index of gate's first two axes
  bool has_codes() const { return codes.dtype != dtype; }
  int row_axis() const;  // the axis of gate's rows, along which a group of rows runs; -1: there is one row
  bool has_options() const { return form.has_options || bias[kGate] != nullptr || bias[kUp] != nullptr; }
  bool is_empty() const { return num_elements() == 0; }
};

// The outputs of a call. All outputs of words, if there are any, make the first problem; each tensor of codes makes one
// more. If there are several problems, no output shares memory with another tensor of the call.
constexpr int kMaxSwigluProblems = 5;
struct SwigluCall {
  int count;
  SwigluProblem problems[kMaxSwigluProblems];

  bool is_empty() const { return problems[0].is_empty(); }
};

rope_status_t check_swiglu_config(const char *function, const swiglu_config_t &config, GatingForm *form);
rope_status_t make_swiglu_call(const char *function, rope_dtype_t dtype, const GatingForm &form,
                               const swiglu_args_t &args, bool is_backward, SwigluCall *call);

}  // namespace rope
