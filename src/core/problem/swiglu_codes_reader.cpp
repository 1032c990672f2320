// SPDX-License-Identifier: Apache-2.0
// swiglu_codes_reader.cpp - validates the codes of a call of SwiGLU
#include "core/problem/swiglu_codes_reader.hpp"

#include "core/problem/import.hpp"
#include "core/problem/shape_text.hpp"

namespace rope {

namespace {

constexpr rope_status_t kInvalid = ROPE_STATUS_INVALID_ARGUMENT;
constexpr rope_status_t kUnsupported = ROPE_STATUS_NOT_SUPPORTED;

}  // namespace

struct SwigluCodesReader::Group {
  const char *field[3];  // scales of out, grad_gate and grad_up
  ScaleRule rule;
  bool has_tiles;
  bool has_row_groups;
};

rope_status_t SwigluCodesReader::read_coded(const char *field, const rope_tensor_t &tensor, int output,
                                            bool has_row_groups) {
  Operand *operand;
  if (is_code_pair(tensor.dtype) && !is_backward_ && !has_row_groups) {
    ROPE_TRY(operands_->read_codes(field, tensor, &operand));
  } else {
    ROPE_TRY(operands_->read(Role::kDisjointOut, field, tensor, &operand));
  }
  CodedOutput *const coded = outputs_->add();
  if (coded == nullptr) {
    return fail(ROPE_STATUS_INTERNAL_ERROR, "%s: %s is one output of codes too many: a call has at most %d", function_,
                field, kMaxSwigluCodes);
  }
  *coded = {operand, output, {}};
  coded->codes.dtype = operand->view.dtype;
  coded->codes.has_row_groups = has_row_groups;
  const View &view = operand->view;
  if (!is_code_pair(view.dtype)) return check_same_shape(function_, field, view, gate().field, gate().view);
  View pairs = gate().view;
  const int last = pairs.ndim - 1;
  if (pairs.shape[last] % 2 != 0) {
    return fail(kInvalid, "%s: %s.shape[%d] is %lld: it must be even, as an element of %s of F4_E2M1X2 is two channels",
                function_, gate().field, last, static_cast<long long>(pairs.shape[last]), field);
  }
  pairs.shape[last] /= 2;
  return check_same_shape(function_, field, view, "the pairs of gate", pairs);
}

rope_status_t SwigluCodesReader::read_out(const char *field, const rope_tensor_t &tensor, int output) {
  return read_coded(field, tensor, output, false);
}

rope_status_t SwigluCodesReader::read_columns(const swiglu_column_args_t *given) {
  if (given == nullptr) return ROPE_STATUS_SUCCESS;
  ROPE_TRY(import_args(function_, "column", given, kSwigluColumnArgsFirstSize, &columns_copy_, &columns_));
  const struct {
    const char *field;
    const rope_tensor_t &tensor;
    int output;
    bool is_of_backward;
  } outputs[] = {{"column.out", columns_->out, kOut, false},
                 {"column.grad_gate", columns_->grad_gate, kGradGate, true},
                 {"column.grad_up", columns_->grad_up, kGradUp, true}};
  for (const auto &output : outputs) {
    if (is_zeroed(output.tensor)) continue;
    if (output.is_of_backward != is_backward_) {
      return fail(kInvalid, "%s: %s is set: it belongs to %s", function_, output.field,
                  is_backward_ ? "swiglu_forward" : "swiglu_backward");
    }
    if (!is_code(output.tensor.dtype)) {
      return fail(kUnsupported, "%s: %s.dtype is %s: this version writes F8_E4M3 and F8_E5M2 by column only", function_,
                  output.field, dtype_name(output.tensor.dtype));
    }
    ROPE_TRY(read_coded(output.field, output.tensor, output.output, true));
  }
  return ROPE_STATUS_SUCCESS;
}

rope_status_t SwigluCodesReader::read_layout(const char *group, int32_t layout, int32_t reserved, Group *result) const {
  result->has_tiles = layout == SWIGLU_SCALE_LAYOUT_128X4;
  if (layout != SWIGLU_SCALE_LAYOUT_STRIDED && !result->has_tiles) {
    return fail(kUnsupported,
                "%s: %s.scale_layout is %d: this version knows SWIGLU_SCALE_LAYOUT_STRIDED (0) and "
                "SWIGLU_SCALE_LAYOUT_128X4 (1) only",
                function_, group, layout);
  }
  if (reserved == 0) return ROPE_STATUS_SUCCESS;
  return fail(kUnsupported, "%s: %s.reserved0 is %d: it must be 0", function_, group, reserved);
}

rope_status_t SwigluCodesReader::read_scales(const swiglu_quant_args_t *given, bool rounds_first, int64_t experts,
                                             bool has_expert_axis) {
  for (int i = 0; i < outputs_->count(); ++i) (*outputs_)[i].codes.rounds_first = rounds_first;
  if (given != nullptr) {
    swiglu_quant_args_t copy;
    const swiglu_quant_args_t *args;
    ROPE_TRY(import_args(function_, "quant", given, kSwigluQuantArgsFirstSize, &copy, &args));
    Group group = {{"quant.scales_out", "quant.grad_gate_scales_out", "quant.grad_up_scales_out"},
                   {args->flags, args->scale_floor},
                   false,
                   false};
    ROPE_TRY(check_scale_rule(function_, group.rule));
    ROPE_TRY(read_layout("quant", args->scale_layout, args->reserved0, &group));
    ROPE_TRY(read_group(group, {args->scales_out, args->grad_gate_scales_out, args->grad_up_scales_out}, args->amax_out,
                        has_expert_axis));
    ROPE_TRY(read_scale(args->scale, (args->flags & ROPE_QUANT_FLAG_SCALE_MULTIPLIES) != 0, experts));
  }
  return columns_ == nullptr ? ROPE_STATUS_SUCCESS : read_column_scales(has_expert_axis);
}

rope_status_t SwigluCodesReader::read_column_scales(bool has_expert_axis) {
  Group group = {{"column.scales_out", "column.grad_gate_scales_out", "column.grad_up_scales_out"},
                 {columns_->flags, columns_->scale_floor, "column"},
                 false,
                 true};
  if ((columns_->flags & ROPE_QUANT_FLAG_SCALE_MULTIPLIES) != 0) {
    return fail(kInvalid, "%s: column.flags is 0x%x: ROPE_QUANT_FLAG_SCALE_MULTIPLIES (0x1) belongs to quant.flags",
                function_, columns_->flags);
  }
  ROPE_TRY(check_scale_rule(function_, group.rule));
  ROPE_TRY(read_layout("column", columns_->scale_layout, columns_->reserved0, &group));
  ROPE_TRY(read_group(group, {columns_->scales_out, columns_->grad_gate_scales_out, columns_->grad_up_scales_out},
                      columns_->amax_out, has_expert_axis));
  for (int i = 0; i < outputs_->count(); ++i) {
    SwigluCodes *const codes = &(*outputs_)[i].codes;
    codes->has_row_groups = codes->has_row_groups && codes->scales.is_present();
  }
  return ROPE_STATUS_SUCCESS;
}

CodedOutput *SwigluCodesReader::find(int output, bool has_row_groups) const {
  for (int i = 0; i < outputs_->count(); ++i) {
    CodedOutput *const coded = &(*outputs_)[i];
    if (coded->output == output && coded->codes.has_row_groups == has_row_groups) return coded;
  }
  return nullptr;
}

// Reads the written scales of a group and its amax_out.
rope_status_t SwigluCodesReader::read_group(const Group &group, const rope_tensor_t (&scales)[3],
                                            const rope_tensor_t &amax, bool has_expert_axis) {
  constexpr const char *kFields[2][3] = {{"out", "grad_gate", "grad_up"},
                                         {"column.out", "column.grad_gate", "column.grad_up"}};
  constexpr int kOutputs[3] = {kOut, kGradGate, kGradUp};
  bool has_scales = false, has_codes = false;
  for (int i = 0; i < 3; ++i) {
    const bool is_of_call = (i > 0) == is_backward_;
    CodedOutput *const coded = is_of_call ? find(kOutputs[i], group.has_row_groups) : nullptr;
    has_codes = has_codes || coded != nullptr;
    if (is_zeroed(scales[i])) continue;
    if (coded == nullptr) {
      return fail(kInvalid, "%s: %s is set: %s has neither 8 nor 4 bits", function_, group.field[i],
                  kFields[group.has_row_groups][i]);
    }
    has_scales = true;
    ROPE_TRY(read_scales_out(group.field[i], scales[i], group, has_expert_axis, &coded->codes));
  }
  if (!has_scales && group.has_tiles) {
    return fail(kInvalid, "%s: %s.scale_layout is %d: SWIGLU_SCALE_LAYOUT_128X4 (1) needs scales that are written",
                function_, group.rule.group, SWIGLU_SCALE_LAYOUT_128X4);
  }
  if (!has_scales) ROPE_TRY(check_rule_has_scales(function_, group.rule));
  const char *const field = group.has_row_groups ? "column.amax_out" : "quant.amax_out";
  if (!has_codes && !is_zeroed(amax)) {
    return fail(kInvalid, "%s: %s is set: %s has neither 8 nor 4 bits", function_, field,
                is_backward_ ? "no gradient" : kFields[group.has_row_groups][0]);
  }
  return read_amax(field, amax, group.has_row_groups);
}

// Reads the scale of outputs without written scales, or the global scale of written scales of E4M3: [1] or, with
// experts, [E].
rope_status_t SwigluCodesReader::read_scale(const rope_tensor_t &tensor, bool scale_multiplies, int64_t experts) {
  const char *field = "quant.scale";
  bool has_use = false;
  for (int i = 0; i < outputs_->count(); ++i) {
    const WrittenScales &scales = (*outputs_)[i].codes.scales;
    const bool is_by_column = (*outputs_)[i].codes.has_row_groups;
    has_use = has_use || (is_by_column ? is_zeroed(column_scales((*outputs_)[i].output))
                                       : !scales.is_present() || scales.form == ScaleForm::kE4M3);
    (*outputs_)[i].codes.scale_multiplies = scale_multiplies;
  }
  if (is_zeroed(tensor)) return ROPE_STATUS_SUCCESS;
  if (outputs_->count() == 0) {
    return fail(kInvalid, "%s: %s is set: %s has neither 8 nor 4 bits", function_, field,
                is_backward_ ? "no gradient" : "out");
  }
  if (!has_use) {
    return fail(kInvalid,
                "%s: %s is set beside quant.scales_out: scales are given or written, not both, "
                "unless those are of F8_E4M3",
                function_, field);
  }
  Operand *operand;
  ROPE_TRY(operands_->read(Role::kIn, field, tensor, &operand));
  const View &view = operand->view;
  if (view.dtype != ROPE_DTYPE_F32) {
    return fail(kInvalid, "%s: %s.dtype is %s: it must be F32", function_, field, dtype_name(view.dtype));
  }
  if (view.ndim != 1 || (view.shape[0] != 1 && (experts == 0 || view.shape[0] != experts))) {
    return fail(kInvalid, "%s: %s has shape %s: it must be [1]%s", function_, field, ShapeText(view).text,
                experts > 0 ? ", or [E] with a scale for each expert" : "");
  }
  for (int i = 0; i < outputs_->count(); ++i) {
    SwigluCodes *const codes = &(*outputs_)[i].codes;
    if (codes->scales.is_present() && codes->scales.form != ScaleForm::kE4M3) continue;
    codes->scale = view.data;
    codes->expert_stride = view.shape[0] == 1 ? 0 : view.stride[0];
  }
  return ROPE_STATUS_SUCCESS;
}

rope_status_t SwigluCodesReader::read_scales_out(const char *field, const rope_tensor_t &tensor, const Group &group,
                                                 bool has_expert_axis, SwigluCodes *codes) {
  Operand *operand;
  ROPE_TRY(operands_->read(Role::kDisjointOut, field, tensor, &operand));
  const View &view = operand->view;
  ROPE_TRY(set_scale_form(function_, field, view.dtype, group.rule, &codes->scales, !group.has_row_groups));
  if (codes->scales.form == ScaleForm::kE4M3 && !codes->has_pairs()) {
    return fail(kInvalid, "%s: %s.dtype is %s: it needs an out of F4_E2M1X2, whose dtype is %s", function_, field,
                dtype_name(view.dtype), dtype_name(codes->dtype));
  }
  codes->has_tiles = group.has_tiles;
  if (group.has_row_groups) {
    const int row_axis = has_expert_axis ? 1 : 0;
    return group.has_tiles ? read_row_tiles(field, view, row_axis, codes)
                           : read_strided_row_scales(field, view, row_axis, codes);
  }
  const int min_rows = has_expert_axis ? 2 : 1;
  ROPE_TRY(group.has_tiles ? read_tiles(field, view, min_rows, codes)
                           : read_strided_scales(field, view, min_rows, codes));
  if (codes->has_pairs() && codes->group_elements % 2 != 0) {
    return fail(kInvalid, "%s: %s has shape %s: its groups have %lld elements of gate, which must be even", function_,
                field, ShapeText(view).text, static_cast<long long>(codes->group_elements));
  }
  return ROPE_STATUS_SUCCESS;
}

// Reads scales with the first axes of gate, then [G] groups of the elements of the other axes, or [G / 4, 4].
rope_status_t SwigluCodesReader::read_strided_scales(const char *field, const View &view, int min_rows,
                                                     SwigluCodes *codes) const {
  const View &gate = this->gate().view;
  for (int behind = 1; behind <= 2; ++behind) {
    const int rows = view.ndim - behind;
    if (rows < min_rows || rows >= gate.ndim || (behind == 2 && view.shape[rows + 1] != 4)) continue;
    bool fits = true;
    uint64_t elements = 1;
    for (int axis = 0; axis < gate.ndim; ++axis) {
      if (axis >= rows) {
        elements *= static_cast<uint64_t>(gate.shape[axis]);
      } else {
        fits = fits && view.shape[axis] == gate.shape[axis];
      }
    }
    const int64_t groups = behind == 1 || view.shape[rows] > INT32_MAX / 4 ? view.shape[rows] : 4 * view.shape[rows];
    if (!fits || groups < 1 || groups > INT32_MAX || elements % static_cast<uint64_t>(groups) != 0) continue;
    WrittenScales *const scales = &codes->scales;
    scales->data = view.data;
    scales->groups = static_cast<int>(groups);
    scales->group_stride = view.stride[behind == 2 ? rows + 1 : rows];
    scales->four_stride = behind == 2 ? view.stride[rows] : groups > 4 ? 4 * view.stride[rows] : 0;
    codes->group_elements = static_cast<int64_t>(elements) / groups;
    for (int axis = 0; axis < rows; ++axis) codes->scales_stride[axis] = view.stride[axis];
    return ROPE_STATUS_SUCCESS;
  }
  return fail(kInvalid,
              "%s: %s has shape %s: it must have the first axes of gate, %s, at least %d and not all, then G, or G/4 "
              "and 4, where G divides the elements of the others",
              function_, field, ShapeText(view).text, ShapeText(gate).text, min_rows);
}

// Reads scales with the first axes of gate, then groups. The last of these axes, rows, and the groups are padded to
// whole tiles. The padding hides the number of groups, so a group has the number of elements that cuBLAS has for its
// type of scale.
rope_status_t SwigluCodesReader::read_tiles(const char *field, const View &view, int min_rows,
                                            SwigluCodes *codes) const {
  const View &gate = this->gate().view;
  ROPE_TRY(check_tile_type(field, view, *codes));
  const int64_t group = codes->scales.form == ScaleForm::kE4M3 ? 16 : 32;
  const int rows = view.ndim - 1;
  bool fits = rows >= min_rows && rows < gate.ndim;
  uint64_t elements = 1;
  for (int axis = 0; axis < gate.ndim && fits; ++axis) {
    const int64_t length = gate.shape[axis];
    if (axis >= rows) {
      elements *= static_cast<uint64_t>(length);
    } else if (axis == rows - 1) {
      fits = length <= INT64_MAX - 127 && view.shape[axis] == (length + 127) / 128 * 128;
    } else {
      fits = view.shape[axis] == length;
    }
  }
  const uint64_t groups = elements / static_cast<uint64_t>(group);
  if (!fits || elements % static_cast<uint64_t>(group) != 0 || groups > INT32_MAX - 3 ||
      view.shape[rows] != static_cast<int64_t>((groups + 3) / 4 * 4)) {
    return fail(kInvalid,
                "%s: %s has shape %s: with SWIGLU_SCALE_LAYOUT_128X4 it must have the first axes of gate, %s, at least "
                "%d and not all, the last of them padded to a multiple of 128, then the groups of %lld elements of the "
                "others, padded to a multiple of 4",
                function_, field, ShapeText(view).text, ShapeText(gate).text, min_rows, static_cast<long long>(group));
  }
  ROPE_TRY(check_compact_tiles(field, view));
  codes->scales.data = view.data;
  codes->scales.groups = static_cast<int>(groups);
  codes->group_elements = group;
  codes->rows = gate.shape[rows - 1];
  codes->scale_row_stride[rows - 1] = 1;
  for (int axis = 0; axis < rows - 1; ++axis) codes->scales_stride[axis] = view.stride[axis];
  return ROPE_STATUS_SUCCESS;
}

// Reads scales of gate's shape, with G groups instead of rows.
rope_status_t SwigluCodesReader::read_strided_row_scales(const char *field, const View &view, int row_axis,
                                                         SwigluCodes *codes) const {
  const View &gate = this->gate().view;
  bool fits = view.ndim == gate.ndim;
  for (int axis = 0; axis < gate.ndim && fits; ++axis) {
    if (axis != row_axis) fits = view.shape[axis] == gate.shape[axis];
  }
  const int64_t rows = gate.shape[row_axis], groups = fits ? view.shape[row_axis] : 0;
  const bool is_whole = groups < 1 ? rows == 0 : groups <= INT32_MAX && rows % groups == 0;
  if (!fits || !is_whole) {
    return fail(kInvalid,
                "%s: %s has shape %s: it must have that of gate, %s, with G in the place of axis %d, where G divides "
                "the %lld rows of gate",
                function_, field, ShapeText(view).text, ShapeText(gate).text, row_axis, static_cast<long long>(rows));
  }
  codes->scales.data = view.data;
  codes->scales.groups = static_cast<int>(groups);
  codes->scales.group_stride = view.stride[row_axis];
  codes->scales.four_stride = groups > 4 ? 4 * view.stride[row_axis] : 0;
  codes->group_elements = groups < 1 ? 1 : rows / groups;
  for (int axis = 0; axis < gate.ndim; ++axis) codes->scales_stride[axis] = axis != row_axis ? view.stride[axis] : 0;
  return ROPE_STATUS_SUCCESS;
}

// Reads a matrix of scales for each expert, or one for all rows. It has a row for each channel and a column for each
// group of 32 rows.
rope_status_t SwigluCodesReader::read_row_tiles(const char *field, const View &view, int row_axis,
                                                SwigluCodes *codes) const {
  constexpr int64_t kGroup = 32;
  const View &gate = this->gate().view;
  ROPE_TRY(check_tile_type(field, view, *codes));
  // The product of 64 bits overflows only if gate repeats elements. An output may not repeat any, so such calls fail
  // elsewhere.
  uint64_t channels = 1;
  for (int axis = row_axis + 1; axis < gate.ndim; ++axis) channels *= static_cast<uint64_t>(gate.shape[axis]);
  const int64_t rows = gate.shape[row_axis], groups = rows / kGroup;
  const bool fits = view.ndim == row_axis + 2 && rows % kGroup == 0 && groups <= INT32_MAX - 3 &&
                    channels <= INT64_MAX - 127 && (row_axis == 0 || view.shape[0] == gate.shape[0]) &&
                    view.shape[row_axis] == static_cast<int64_t>((channels + 127) / 128 * 128) &&
                    view.shape[row_axis + 1] == (groups + 3) / 4 * 4;
  if (!fits) {
    return fail(kInvalid,
                "%s: %s has shape %s: with SWIGLU_SCALE_LAYOUT_128X4 it must have%s the channels of a row of gate, %s, "
                "padded to a multiple of 128, then the groups of 32 of the %lld rows, padded to a multiple of 4",
                function_, field, ShapeText(view).text, row_axis > 0 ? " the experts," : "", ShapeText(gate).text,
                static_cast<long long>(rows));
  }
  ROPE_TRY(check_compact_tiles(field, view));
  codes->scales.data = view.data;
  codes->scales.groups = static_cast<int>(groups);
  codes->group_elements = kGroup;
  codes->rows = static_cast<int64_t>(channels);
  uint64_t stride = 1;
  for (int axis = gate.ndim - 1; axis > row_axis; --axis) {
    codes->scale_row_stride[axis] = static_cast<int64_t>(stride);
    stride *= static_cast<uint64_t>(gate.shape[axis]);
  }
  if (row_axis > 0) codes->scales_stride[0] = view.stride[0];
  return ROPE_STATUS_SUCCESS;
}

rope_status_t SwigluCodesReader::check_tile_type(const char *field, const View &view, const SwigluCodes &codes) const {
  if (codes.scales.has_bytes()) return ROPE_STATUS_SUCCESS;
  return fail(kInvalid, "%s: %s.dtype is %s: with SWIGLU_SCALE_LAYOUT_128X4 it must be F8_E8M0%s", function_, field,
              dtype_name(view.dtype), codes.has_row_groups ? "" : " or F8_E4M3");
}

rope_status_t SwigluCodesReader::check_compact_tiles(const char *field, const View &view) const {
  const int last = view.ndim - 1;
  if (view.is_empty() || (view.stride[last] == 1 && view.stride[last - 1] == view.shape[last])) {
    return ROPE_STATUS_SUCCESS;
  }
  return fail(kInvalid,
              "%s: %s.stride is %lld and %lld along its last axes: with SWIGLU_SCALE_LAYOUT_128X4 they must be "
              "compact, %lld and 1",
              function_, field, static_cast<long long>(view.stride[last - 1]),
              static_cast<long long>(view.stride[last]), static_cast<long long>(view.shape[last]));
}

rope_status_t SwigluCodesReader::read_amax(const char *field, const rope_tensor_t &tensor, bool has_row_groups) {
  Operand *operand;
  ROPE_TRY(operands_->read(Role::kDisjointOut, field, tensor, &operand));
  if (operand == nullptr) return ROPE_STATUS_SUCCESS;
  const View &view = operand->view;
  if (view.dtype != ROPE_DTYPE_F32) {
    return fail(kInvalid, "%s: %s.dtype is %s: it must be F32", function_, field, dtype_name(view.dtype));
  }
  if (view.ndim != 1 || view.shape[0] != 1) {
    return fail(kInvalid, "%s: %s has shape %s: it must be [1]", function_, field, ShapeText(view).text);
  }
  for (int i = 0; i < outputs_->count(); ++i) {
    SwigluCodes *const codes = &(*outputs_)[i].codes;
    if (codes->has_row_groups == has_row_groups) codes->amax = view.data;
  }
  return ROPE_STATUS_SUCCESS;
}

}  // namespace rope
