// swiglu_codes_reader.cpp - validates what a call of SwiGLU says of its codes
#include "core/problem/swiglu_codes_reader.hpp"

#include "core/problem/import.hpp"
#include "core/problem/shape_text.hpp"

namespace rope {

namespace {

constexpr rope_status_t kInvalid = ROPE_STATUS_INVALID_ARGUMENT;
constexpr rope_status_t kUnsupported = ROPE_STATUS_NOT_SUPPORTED;

}  // namespace

rope_status_t SwigluCodesReader::read_out(const rope_tensor_t &tensor, Operand **operand) {
  const char *field = "out";
  ROPE_TRY(operands_->read_codes(field, tensor, operand));
  const View &view = (*operand)->view;
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

rope_status_t SwigluCodesReader::read(const swiglu_quant_args_t *given, const View &out, int64_t experts,
                                      bool has_expert_axis) {
  codes_->dtype = out.dtype;
  if (given == nullptr) return ROPE_STATUS_SUCCESS;
  swiglu_quant_args_t copy;
  const swiglu_quant_args_t *args;
  ROPE_TRY(import_args(function_, "quant", given, kSwigluQuantArgsFirstSize, &copy, &args));
  const ScaleRule rule = {args->flags, args->scale_floor};
  ROPE_TRY(check_scale_rule(function_, rule));
  const bool has_tiles = args->scale_layout == SWIGLU_SCALE_LAYOUT_128X4;
  if (args->scale_layout != SWIGLU_SCALE_LAYOUT_STRIDED && !has_tiles) {
    return fail(kUnsupported,
                "%s: quant.scale_layout is %d: this version knows SWIGLU_SCALE_LAYOUT_STRIDED (0) and "
                "SWIGLU_SCALE_LAYOUT_128X4 (1) only",
                function_, args->scale_layout);
  }
  if (args->reserved0 != 0) {
    return fail(kUnsupported, "%s: quant.reserved0 is %d: it must be 0", function_, args->reserved0);
  }
  const struct {
    const char *field;
    const rope_tensor_t &tensor;
  } of_codes[] = {{"scale", args->scale}, {"scales_out", args->scales_out}, {"amax_out", args->amax_out}};
  for (const auto &tensor : of_codes) {
    if (is_code(out.dtype) || is_code_pair(out.dtype) || is_zeroed(tensor.tensor)) continue;
    return fail(kInvalid, "%s: quant.%s is set: out has neither 8 nor 4 bits", function_, tensor.field);
  }
  codes_->scale_multiplies = (args->flags & ROPE_QUANT_FLAG_SCALE_MULTIPLIES) != 0;
  ROPE_TRY(read_scales_out(args->scales_out, rule, has_expert_axis, has_tiles));
  ROPE_TRY(read_scale(args->scale, experts));
  return read_amax(args->amax_out);
}

// In the place of scales that are written, or the global one of those of E4M3: [1] or, with experts, [E].
rope_status_t SwigluCodesReader::read_scale(const rope_tensor_t &tensor, int64_t experts) {
  const char *field = "quant.scale";
  Operand *operand;
  ROPE_TRY(operands_->read(Role::kIn, field, tensor, &operand));
  if (operand == nullptr) return ROPE_STATUS_SUCCESS;
  const View &view = operand->view;
  if (codes_->scales.is_present() && codes_->scales.form != ScaleForm::kE4M3) {
    return fail(kInvalid,
                "%s: %s is set beside quant.scales_out: scales are given or written, not both, "
                "unless those are of F8_E4M3",
                function_, field);
  }
  if (view.dtype != ROPE_DTYPE_F32) {
    return fail(kInvalid, "%s: %s.dtype is %s: it must be F32", function_, field, dtype_name(view.dtype));
  }
  if (view.ndim != 1 || (view.shape[0] != 1 && (experts == 0 || view.shape[0] != experts))) {
    return fail(kInvalid, "%s: %s has shape %s: it must be [1]%s", function_, field, ShapeText(view).text,
                experts > 0 ? ", or [E] with a scale for each expert" : "");
  }
  codes_->scale = view.data;
  codes_->expert_stride = view.shape[0] == 1 ? 0 : view.stride[0];
  return ROPE_STATUS_SUCCESS;
}

// The first axes of out, then [G] groups of the elements of the others, or [G / 4, 4].
rope_status_t SwigluCodesReader::read_scales_out(const rope_tensor_t &tensor, const ScaleRule &rule,
                                                 bool has_expert_axis, bool has_tiles) {
  const char *field = "quant.scales_out";
  Operand *operand;
  ROPE_TRY(operands_->read(Role::kDisjointOut, field, tensor, &operand));
  if (operand == nullptr && has_tiles) {
    return fail(kInvalid, "%s: quant.scale_layout is %d: SWIGLU_SCALE_LAYOUT_128X4 (1) needs scales that are written",
                function_, SWIGLU_SCALE_LAYOUT_128X4);
  }
  if (operand == nullptr) return check_rule_has_scales(function_, rule);
  const View &view = operand->view;
  ROPE_TRY(set_scale_form(function_, field, view.dtype, rule, &codes_->scales, true));
  if (codes_->scales.form == ScaleForm::kE4M3 && !codes_->has_pairs()) {
    return fail(kInvalid, "%s: %s.dtype is %s: it needs an out of F4_E2M1X2, whose dtype is %s", function_, field,
                dtype_name(view.dtype), dtype_name(codes_->dtype));
  }
  codes_->has_tiles = has_tiles;
  const int min_rows = has_expert_axis ? 2 : 1;
  ROPE_TRY(has_tiles ? read_tiles(field, view, min_rows) : read_strided_scales(field, view, min_rows));
  if (codes_->has_pairs() && codes_->group_elements % 2 != 0) {
    return fail(kInvalid, "%s: %s has shape %s: its groups have %lld elements of gate, which must be even", function_,
                field, ShapeText(view).text, static_cast<long long>(codes_->group_elements));
  }
  return ROPE_STATUS_SUCCESS;
}

// The first axes of gate, then [G] groups of the elements of the others, or [G / 4, 4].
rope_status_t SwigluCodesReader::read_strided_scales(const char *field, const View &view, int min_rows) {
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
    WrittenScales *const scales = &codes_->scales;
    scales->data = view.data;
    scales->groups = static_cast<int>(groups);
    scales->group_stride = view.stride[behind == 2 ? rows + 1 : rows];
    scales->four_stride = behind == 2 ? view.stride[rows] : groups > 4 ? 4 * view.stride[rows] : 0;
    codes_->group_elements = static_cast<int64_t>(elements) / groups;
    for (int axis = 0; axis < rows; ++axis) codes_->scales_stride[axis] = view.stride[axis];
    return ROPE_STATUS_SUCCESS;
  }
  return fail(kInvalid,
              "%s: %s has shape %s: it must have the first axes of gate, %s, at least %d and not all, then G, or G/4 "
              "and 4, where G divides the elements of the others",
              function_, field, ShapeText(view).text, ShapeText(gate).text, min_rows);
}

// The first axes of gate, the last of which are rows padded to whole tiles, then groups padded to them. A group has as
// many elements as cuBLAS knows for scales of its type, since the padding hides how many groups there are.
rope_status_t SwigluCodesReader::read_tiles(const char *field, const View &view, int min_rows) {
  const View &gate = this->gate().view;
  if (!codes_->scales.has_bytes()) {
    return fail(kInvalid, "%s: %s.dtype is %s: with SWIGLU_SCALE_LAYOUT_128X4 it must be F8_E8M0 or F8_E4M3", function_,
                field, dtype_name(view.dtype));
  }
  const int64_t group = codes_->scales.form == ScaleForm::kE4M3 ? 16 : 32;
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
  if (!view.is_empty() && (view.stride[rows] != 1 || view.stride[rows - 1] != view.shape[rows])) {
    return fail(kInvalid,
                "%s: %s.stride is %lld and %lld along its last axes: with SWIGLU_SCALE_LAYOUT_128X4 they must be "
                "compact, %lld and 1",
                function_, field, static_cast<long long>(view.stride[rows - 1]),
                static_cast<long long>(view.stride[rows]), static_cast<long long>(view.shape[rows]));
  }
  codes_->scales.data = view.data;
  codes_->scales.groups = static_cast<int>(groups);
  codes_->group_elements = group;
  codes_->rows = gate.shape[rows - 1];
  codes_->scale_row_stride[rows - 1] = 1;
  for (int axis = 0; axis < rows - 1; ++axis) codes_->scales_stride[axis] = view.stride[axis];
  return ROPE_STATUS_SUCCESS;
}

rope_status_t SwigluCodesReader::read_amax(const rope_tensor_t &tensor) {
  const char *field = "quant.amax_out";
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
  codes_->amax = view.data;
  return ROPE_STATUS_SUCCESS;
}

}  // namespace rope
