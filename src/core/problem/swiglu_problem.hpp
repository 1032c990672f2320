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

// How gate and up lie, or their gradients.
enum class GateUpLayout : uint8_t {
  kSeparate,            // each by itself
  kAlternating,         // gate, up, gate, up, ... along the last axis
  kAlternatingUpFirst,  // up, gate, up, gate, ...
};

// How the values of an output become codes of 8 or 4 bits. With scales that are written axes keep gate's order, and
// those of a scale's row come last: the groups of a row are runs of its elements, numbered with the last axis fastest.
// Where groups have rows, a group has group_elements neighbouring rows of gate, at one index of each other axis. With
// codes of 4 bits axes keep gate's order too, and out's strides are in halves of an element, so that the offset of a
// value of an even number is twice that of its pair.
struct SwigluCodes {
  rope_dtype_t dtype;                  // of out; that of the data: there are no codes
  bool rounds_first;                   // values become the data's type before anything else is done with them
  bool scale_multiplies;               // values are multiplied by a given scale; else divided
  bool has_tiles;                      // `scales` are bytes in tiles of 128 rows and 4 groups
  bool has_row_groups;                 // `scales` are those of neighbouring rows; else of neighbouring channels
  const char *scale;                   // given, F32, in the place of `scales`, or the global one of kE4M3; NULL: 1
  int64_t expert_stride;               // of `scale`, in elements; 0: there is one
  WrittenScales scales;                // without its rows
  int64_t group_elements;              // that one of `scales` is for
  int64_t scales_stride[kMaxAxes];     // in elements; 0 along the axes of a row and, with tiles, along that of rows
  int64_t scale_row_stride[kMaxAxes];  // with tiles: a row's number in its matrix is the sum of these
  int64_t rows;                        // of such a matrix
  char *amax;                          // a F32 that the largest magnitude raises; NULL: none

  ROPE_HOST_DEVICE bool has_pairs() const { return is_code_pair(dtype); }

  // What a matrix has with its padding, which are zeros.
  ROPE_HOST_DEVICE int64_t padded_rows() const { return (rows + 127) / 128 * 128; }
  ROPE_HOST_DEVICE int64_t padded_groups() const { return (int64_t{scales.groups} + 3) / 4 * 4; }

  ROPE_HOST_DEVICE bool has_padding() const {
    return has_tiles && (padded_rows() != rows || padded_groups() != scales.groups);
  }

  // The scale of a group by the bits of its largest magnitude. `global` is for kE4M3.
  ROPE_HOST_DEVICE GroupScale scale_of(uint32_t magnitude, float global) const {
    if (magnitude < scales.floor) magnitude = scales.floor;
    if (scales.form == ScaleForm::kE4M3) return e4m3_scale_of_group(magnitude, global);
    return scale_of_group(magnitude, scales.form,
                          has_pairs()                   ? Float4E2M1::kMax
                          : dtype == ROPE_DTYPE_F8_E5M2 ? Float8E5M2::kMax
                                                        : Float8E4M3::kMax);
  }

  // `offset` by scales_stride, `row` by scale_row_stride.
  ROPE_HOST_DEVICE void store_scale(int64_t offset, int64_t row, int64_t group, uint32_t bits) const {
    if (!has_tiles) return scales.store(offset, 0, static_cast<int>(group), bits);
    const int64_t tile = row / 128 * (padded_groups() / 4) + group / 4;
    scales.store(offset + tile * 512 + row % 32 * 16 + row % 128 / 32 * 4 + group % 4, 0, 0, bits);
  }

  // Clears what a group of the last row or the last one of a row has of the padding, in which the group's own scale is
  // number 0: the numbers first, first + step, and so on.
  ROPE_HOST_DEVICE void clear_padding(int64_t offset, int64_t row, int64_t group, int64_t first, int64_t step) const {
    const int64_t num_rows = row == rows - 1 ? padded_rows() - row : 1;
    const int64_t num_groups = group == scales.groups - 1 ? padded_groups() - group : 1;
    for (int64_t i = first; i < num_rows * num_groups; i += step) {
      store_scale(offset, row + i / num_groups, group + i % num_groups, 0);
    }
  }
};

// An operation over up to four axes, element by element, the last axis being the one that lies closest together in
// memory. Axes of length 1 are gone and axes that are one in every tensor are merged, so that a contiguous tensor of
// any rank is a single axis. Where rows are summed (grad_row_scale) axes keep gate's order instead, and those of a row
// come last: the order of a sum does not depend on how tensors lie. So they do with experts, whose rows follow each other
// then, and with `rows`, where gate's first axis stays an axis of its own, the first one, or has length 1 and is gone.
struct SwigluProblem {
  rope_dtype_t dtype;
  GatingForm form;
  bool is_programmatic;  // ROPE_FLAG_PROGRAMMATIC_LAUNCH
  bool is_backward;      // inputs gate, up, grad_out, outputs grad_gate, grad_up, out; otherwise gate, up and out
  int ndim;              // at least 1
  int64_t shape[kMaxAxes];
  const char *in[kMaxSwigluInputs];
  char *out[kMaxSwigluOutputs];                   // NULL: not wanted; with codes there is one
  int64_t in_stride[kMaxSwigluInputs][kMaxAxes];  // in elements
  int64_t out_stride[kMaxSwigluOutputs][kMaxAxes];

  const char *row_scale;               // NULL: 1
  char *grad_row_scale;                // NULL: not wanted
  rope_dtype_t row_scale_dtype;        // of both: F32 or dtype
  int num_row_axes;                    // with grad_row_scale: the first so many axes are its own
  int64_t row_scale_stride[kMaxAxes];  // 0 along the axes of a row
  int64_t grad_row_scale_stride[kMaxAxes];

  const char *num_rows;  // NULL: all
  rope_dtype_t num_rows_dtype;
  int64_t row_index_stride[kMaxAxes];  // gate's first index, which num_rows limits, is the sum of these by ours

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
  int64_t expert_index_stride[kMaxAxes];      // gate's first index, as above
  int64_t expert_row_index_stride[kMaxAxes];  // gate's second index, which expert_rows limits

  SwigluCodes codes;

  int num_inputs() const { return is_backward ? 3 : 2; }
  int num_outputs() const { return is_backward ? 3 : 1; }
  int coded_output() const { return out[kOut] != nullptr ? kOut : kGradUp; }
  int64_t num_elements() const;
  int64_t num_row_elements() const;         // of gate's first index, with `rows`
  int64_t num_summed_elements() const;      // of each row of grad_row_scale
  int64_t num_expert_row_elements() const;  // of one index of gate's first two axes
  bool has_codes() const { return codes.dtype != dtype; }
  int row_axis() const;  // that of gate's rows, along which a group of rows runs; -1: there is one row
  bool has_options() const { return form.has_options || bias[kGate] != nullptr || bias[kUp] != nullptr; }
  bool is_empty() const { return num_elements() == 0; }
};

// The outputs of a call: the words, if there are any, and then each tensor of codes by itself. No output of one problem
// shares memory with a tensor of another one, unless there is one problem.
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
