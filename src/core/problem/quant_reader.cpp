// SPDX-License-Identifier: Apache-2.0
// quant_reader.cpp - validates the scales of values that are written in 8 bits, and the memory of their maxima
#include "core/problem/quant_reader.hpp"

#include "core/problem/import.hpp"
#include "core/problem/overlap.hpp"
#include "core/problem/shape_text.hpp"

namespace rope {

namespace {

constexpr rope_status_t kInvalid = ROPE_STATUS_INVALID_ARGUMENT;

constexpr const char *kOutNames[kNumTensorNames] = {"q_out", "k_out", "v_out"};

}  // namespace

rope_status_t QuantReader::check(const rope_args_t &args) {
  ROPE_TRY(import_args(function_, "quant", args.quant, kRopeQuantArgsFirstSize, &copy_, &quant_));
  return check_scale_rule(function_, rule());
}

rope_status_t QuantReader::read(const rope_cache_args_t *cache, const GroupTarget &target) {
  ROPE_TRY(read_written_scales(cache, target));
  if (quant_ == nullptr) return ROPE_STATUS_SUCCESS;
  ROPE_TRY(read_given_scales(target));
  return read_amax(target);
}

// The axes that scales share with the tensor that they belong to: their lengths, the two axes of rows, and the axis of
// heads. -1 stands for no such axis.
struct QuantReader::ScaleRows {
  const char *beside;  // that tensor's field
  rope_dtype_t dtype;
  int count;
  int64_t length[3];
  int axis[3];
};

rope_status_t QuantReader::read_written_scales(const rope_cache_args_t *cache, const GroupTarget &target) {
  if (quant_ != nullptr) {
    ROPE_TRY(read_scales_out("quant.q_scales_out", quant_->q_scales_out, kQ, target));
    ROPE_TRY(read_scales_out("quant.k_scales_out", quant_->k_scales_out, kK, target));
    ROPE_TRY(read_scales_out("quant.v_scales_out", quant_->v_scales_out, kV, target));
  }
  if (cache != nullptr) {
    ROPE_TRY(read_cache_scales("cache.k_scales", cache->k_scales, "cache.k_cache", kK, target, false));
    ROPE_TRY(read_cache_scales("cache.v_scales", cache->v_scales, "cache.v_cache", kV, target, false));
    ROPE_TRY(read_cache_scales("cache.k_pass_scales", cache->k_pass_scales, "cache.k_pass_cache", kK, target, true));
  }
  const bool has_any =
      written_[kQ] != nullptr || written_[kK] != nullptr || written_[kV] != nullptr || pass_written_ != nullptr;
  return has_any ? ROPE_STATUS_SUCCESS : check_rule_has_scales(function_, rule());
}

rope_status_t QuantReader::read_scales_out(const char *field, const rope_tensor_t &given, TensorName name,
                                           const GroupTarget &target) {
  if (is_zeroed(given)) return ROPE_STATUS_SUCCESS;
  int index;
  ROPE_TRY(find_tensor(field, name, target, &index));
  StepTensor *const tensor = &target.step->tensor[index];
  const int *const axis = layout_.axis;
  ScaleRows rows = {kOutNames[name], tensor->out_dtype, axis[kChannel], {}, {axis[kBatch], axis[kToken], axis[kHead]}};
  const int64_t lengths[] = {target.problem.batches, target.problem.tokens, target.problem.tensor[index].heads};
  for (int i = 0; i < 3; ++i) {
    if (rows.axis[i] >= 0) rows.length[rows.axis[i]] = lengths[i];
  }
  written_[name] = field;
  return read_scales(field, given, rows, tensor->channels, &tensor->out_scales);
}

rope_status_t QuantReader::read_cache_scales(const char *field, const rope_tensor_t &given, const char *beside,
                                             TensorName name, const GroupTarget &target, bool is_of_pass) {
  if (is_zeroed(given)) return ROPE_STATUS_SUCCESS;
  int index;
  ROPE_TRY(find_tensor(field, name, target, &index));
  StepTensor *const tensor = &target.step->tensor[index];
  const CachePlaces &places = target.step->places;
  const rope_dtype_t dtype = is_of_pass ? tensor->pass_cache.dtype : tensor->cache.dtype;
  const ScaleRows rows = {
      beside, dtype, 3, {places.pages, places.entries, target.problem.tensor[index].heads}, {0, 1, 2}};
  (is_of_pass ? pass_written_ : written_[name]) = field;
  const ChannelPart part = is_of_pass ? ChannelPart::others(tensor->window_begin) : tensor->cache_part;
  return read_scales(field, given, rows, part.count(tensor->channels, geometry_.rotary_dim),
                     is_of_pass ? &tensor->pass_scales : &tensor->cache_scales);
}

// Behind the axes of rows there are [G] groups of the channels, or, if one more axis is left, [G / 4, 4].
rope_status_t QuantReader::read_scales(const char *field, const rope_tensor_t &given, const ScaleRows &rows,
                                       int64_t channels, WrittenScales *scales) {
  Operand *operand;
  ROPE_TRY(operands_->read(Role::kDisjointOut, field, given, &operand));
  const View &view = operand->view;
  if (!is_code(rows.dtype)) {
    return fail(kInvalid, "%s: %s is set: %s is absent or has no 8 bits", function_, field, rows.beside);
  }
  ROPE_TRY(set_scale_form(function_, field, view.dtype, rule(), scales));
  const int count = rows.count;
  const bool is_split = view.ndim == count + 2 && view.shape[count + 1] == 4;
  bool fits = is_split || view.ndim == count + 1;
  for (int i = 0; fits && i < count; ++i) fits = view.shape[i] == rows.length[i];
  const int64_t groups = fits && view.shape[count] <= channels ? view.shape[count] * (is_split ? 4 : 1) : 0;
  if (groups == 0 || channels % groups != 0) {
    View expected = {};
    expected.ndim = count;
    for (int i = 0; i < count; ++i) expected.shape[i] = rows.length[i];
    return fail(kInvalid,
                "%s: %s has shape %s: it must have the axes of %s before its channels, %s, then G%s, where G divides "
                "%lld channels",
                function_, field, ShapeText(view).text, rows.beside, ShapeText(expected).text,
                count + 2 <= kMaxAxes ? ", or G/4 and 4" : "", printable(channels));
  }
  ROPE_TRY(check_output_strides(function_, field, view));
  const auto stride_of = [&](int axis) { return axis < 0 ? 0 : view.stride[axis]; };
  scales->data = view.data;
  scales->groups = static_cast<int>(groups);
  scales->row_stride[0] = stride_of(rows.axis[0]);
  scales->row_stride[1] = stride_of(rows.axis[1]);
  scales->head_stride = stride_of(rows.axis[2]);
  scales->group_stride = view.stride[is_split ? count + 1 : count];
  scales->four_stride = is_split ? view.stride[count] : groups > 4 ? 4 * view.stride[count] : 0;
  return ROPE_STATUS_SUCCESS;
}

rope_status_t QuantReader::read_given_scales(const GroupTarget &target) {
  target.step->scale_multiplies = (quant_->flags & ROPE_QUANT_FLAG_SCALE_MULTIPLIES) != 0;
  ROPE_TRY(read_scale("quant.q_scale", quant_->q_scale, kQ, target));
  ROPE_TRY(read_scale("quant.k_scale", quant_->k_scale, kK, target));
  ROPE_TRY(read_scale("quant.v_scale", quant_->v_scale, kV, target));
  return read_pass_scale(target);
}

rope_status_t QuantReader::read_scale(const char *field, const rope_tensor_t &given, TensorName name,
                                      const GroupTarget &target) {
  if (is_zeroed(given)) return ROPE_STATUS_SUCCESS;
  int index;
  ROPE_TRY(find_tensor(field, name, target, &index));
  StepTensor *const tensor = &target.step->tensor[index];
  if (!tensor->may_take_scale()) {
    return fail(kInvalid, "%s: %s is set: neither %s nor a cache of %s has 8 bits%s", function_, field, kOutNames[name],
                kTensorNames[name],
                is_code(tensor->pass_cache.dtype) ? "; that of cache.k_pass_cache is quant.k_pass_scale" : "");
  }
  return read_static_scale(field, given, target.problem.tensor[index].heads, written_[name], &tensor->scale);
}

rope_status_t QuantReader::read_pass_scale(const GroupTarget &target) {
  constexpr const char *kField = "quant.k_pass_scale";
  if (is_zeroed(quant_->k_pass_scale)) return ROPE_STATUS_SUCCESS;
  int index;
  ROPE_TRY(find_tensor(kField, kK, target, &index));
  StepTensor *const tensor = &target.step->tensor[index];
  if (!is_code(tensor->pass_cache.dtype)) {
    return fail(kInvalid, "%s: %s is set: cache.k_pass_cache is absent or has no 8 bits", function_, kField);
  }
  return read_static_scale(kField, quant_->k_pass_scale, target.problem.tensor[index].heads, pass_written_,
                           &tensor->pass_scale);
}

// Reads a scale that excludes `written`, the field of scales that the call writes. NULL: it writes none.
rope_status_t QuantReader::read_static_scale(const char *field, const rope_tensor_t &given, int64_t heads,
                                             const char *written, StaticScale *scale) {
  Operand *operand;
  ROPE_TRY(operands_->read(Role::kIn, field, given, &operand));
  if (written != nullptr) {
    return fail(kInvalid, "%s: %s is set beside %s: scales are given or written, not both", function_, field, written);
  }
  const View &view = operand->view;
  if (view.dtype != ROPE_DTYPE_F32) {
    return fail(kInvalid, "%s: %s.dtype is %s: it must be F32", function_, field, dtype_name(view.dtype));
  }
  if (view.ndim != 1 || (view.shape[0] != 1 && view.shape[0] != heads)) {
    return fail(kInvalid, "%s: %s has shape %s: it must be [1], or [%lld] with a scale for each head", function_, field,
                ShapeText(view).text, printable(heads));
  }
  *scale = {view.data, view.shape[0] == 1 ? 0 : view.stride[0]};
  return ROPE_STATUS_SUCCESS;
}

// Reads [3]: maxima of q, k and v, whether or not all of them are given.
rope_status_t QuantReader::read_amax(const GroupTarget &target) {
  Operand *operand;
  ROPE_TRY(operands_->read(Role::kDisjointOut, "quant.amax_out", quant_->amax_out, &operand));
  if (operand == nullptr) return ROPE_STATUS_SUCCESS;
  const View &view = operand->view;
  bool is_needed = false;
  for (int i = 0; i < target.problem.num_tensors; ++i) is_needed = is_needed || target.step->tensor[i].may_have_codes();
  if (!is_needed) {
    return fail(kInvalid, "%s: quant.amax_out is set: nothing that is written has 8 bits", function_);
  }
  if (view.dtype != ROPE_DTYPE_F32) {
    return fail(kInvalid, "%s: quant.amax_out.dtype is %s: it must be F32", function_, dtype_name(view.dtype));
  }
  if (view.ndim != 1 || view.shape[0] != kNumTensorNames) {
    return fail(kInvalid, "%s: quant.amax_out has shape %s: it must be [3]", function_, ShapeText(view).text);
  }
  ROPE_TRY(check_output_strides(function_, "quant.amax_out", view));
  for (int i = 0; i < target.problem.num_tensors; ++i) {
    if (!target.step->tensor[i].has_codes()) continue;
    target.step->tensor[i].amax = view.data + target.tensors[i].name * view.stride[0] * dtype_size(ROPE_DTYPE_F32);
  }
  return ROPE_STATUS_SUCCESS;
}

}  // namespace rope
