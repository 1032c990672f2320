// SPDX-License-Identifier: Apache-2.0
// step_reader.cpp - validates the fields of a call around the rotation
#include "core/problem/step_reader.hpp"

#include "core/problem/import.hpp"
#include "core/problem/overlap.hpp"
#include "core/problem/shape_text.hpp"

namespace rope {

namespace {

constexpr rope_status_t kInvalid = ROPE_STATUS_INVALID_ARGUMENT;
constexpr rope_status_t kUnsupported = ROPE_STATUS_NOT_SUPPORTED;

constexpr int32_t kNormBits[kNumTensorNames] = {ROPE_NORM_TENSOR_Q, ROPE_NORM_TENSOR_K, ROPE_NORM_TENSOR_V};

}  // namespace

rope_status_t StepReader::begin(const rope_args_t &args, bool is_transposed) {
  is_unrotated_ = (args.flags & ROPE_FLAG_UNROTATED) != 0;
  is_v_unrotated_ = is_unrotated_ || (args.flags & ROPE_FLAG_V_UNROTATED) != 0;
  accumulates_ = (args.flags & ROPE_FLAG_ACCUMULATE) != 0;
  is_present_ = is_v_unrotated_ || accumulates_ || args.norm != nullptr || args.cache != nullptr ||
                args.quant != nullptr || args.input != nullptr || geometry_.norm.type != 0;
  return is_present_ ? check_groups(args, is_transposed) : ROPE_STATUS_SUCCESS;
}

rope_status_t StepReader::check_groups(const rope_args_t &args, bool is_transposed) {
  if ((args.norm != nullptr) != (geometry_.norm.type != 0)) {
    return args.norm != nullptr ? fail(kInvalid, "%s: norm is set: it belongs to a descriptor with a norm", function_)
                                : fail(kInvalid, "%s: norm is NULL: a descriptor with a norm needs it", function_);
  }
  if (is_transposed && args.cache != nullptr) {
    return fail(kUnsupported, "%s: cache is set: only forward writes caches", function_);
  }
  if (is_transposed && args.quant != nullptr) {
    return fail(kUnsupported, "%s: quant is set: only forward quantises", function_);
  }
  const char *group = args.norm != nullptr    ? "norm"
                      : args.cache != nullptr ? "cache"
                      : args.quant != nullptr ? "quant"
                      : args.input != nullptr ? "input"
                                              : nullptr;
  if (group != nullptr && !is_v_unrotated_ && !is_zeroed(args.v)) {
    return fail(kUnsupported,
                "%s: v is set beside %s: it needs ROPE_FLAG_UNROTATED or ROPE_FLAG_V_UNROTATED, without which it would "
                "be rotated",
                function_, group);
  }
  if (args.norm != nullptr) {
    ROPE_TRY(import_args(function_, "norm", args.norm, kRopeNormArgsFirstSize, &norm_copy_, &norm_));
    if (norm_->flags != 0) {
      return fail(kUnsupported, "%s: norm.flags is 0x%x: this version knows no flag", function_, norm_->flags);
    }
    if (!is_transposed) ROPE_TRY(refuse_gradients());
  }
  if (args.quant != nullptr) ROPE_TRY(quant_.check(args));
  if (args.input != nullptr) ROPE_TRY(check_input(args, is_transposed));
  return args.cache != nullptr ? cache_.check(args) : ROPE_STATUS_SUCCESS;
}

rope_status_t StepReader::refuse_gradients() const {
  const GivenTensor gradients[] = {{"q_in", norm_->q_in},
                                   {"k_in", norm_->k_in},
                                   {"v_in", norm_->v_in},
                                   {"grad_q_weight", norm_->grad_q_weight},
                                   {"grad_k_weight", norm_->grad_k_weight},
                                   {"grad_q_bias", norm_->grad_q_bias},
                                   {"grad_k_bias", norm_->grad_k_bias}};
  const char *const field = first_set(gradients);
  if (field != nullptr) {
    return fail(kInvalid, "%s: norm.%s is set: it belongs to backward", function_, field);
  }
  return ROPE_STATUS_SUCCESS;
}

rope_status_t StepReader::check_input(const rope_args_t &args, bool is_transposed) {
  ROPE_TRY(import_args(function_, "input", args.input, kRopeInputArgsFirstSize, &input_copy_, &input_));
  if (input_->flags != 0) {
    return fail(kUnsupported, "%s: input.flags is 0x%x: this version knows no flag", function_, input_->flags);
  }
  const GivenTensor passed[] = {{"q_pass", input_->q_pass}, {"k_pass", input_->k_pass}};
  const char *const field = first_set(passed);
  if (field == nullptr || !is_transposed) return ROPE_STATUS_SUCCESS;
  return fail(kUnsupported, "%s: input.%s is set: only forward reads it", function_, field);
}

const rope_tensor_t *StepReader::pass_of(TensorName name) const {
  if (input_ == nullptr || name == kV) return nullptr;
  const rope_tensor_t &pass = name == kQ ? input_->q_pass : input_->k_pass;
  return is_zeroed(pass) ? nullptr : &pass;
}

TensorUse StepReader::use_of(TensorName name) const {
  TensorUse use;
  use.is_turned = name == kV ? !is_v_unrotated_ : !is_unrotated_;
  use.has_styles = name != kV || use.is_turned;
  use.is_normed = (geometry_.norm.tensors & kNormBits[name]) != 0;
  use.is_cached = cache_.has(name);
  use.has_factor = input_ != nullptr && !is_zeroed(name == kQ   ? input_->q_row_factor
                                                   : name == kK ? input_->k_row_factor
                                                                : input_->v_row_factor);
  return use;
}

rope_status_t StepReader::read(const RopeProblem &problem, const ReadTensor *tensors, StepProblem *step) {
  step->is_turned = step->has_norm = step->has_caches = step->has_factor = step->has_parts = step->has_codes = false;
  step->scale_multiplies = step->is_norm_gradient = false;
  step->accumulates = accumulates_;
  const GroupTarget target = {problem, tensors, step};
  for (int i = 0; i < problem.num_tensors; ++i) {
    StepTensor *tensor = &step->tensor[i];
    describe(problem.tensor[i], tensors[i], tensor);
    step->is_turned = step->is_turned || (tensor->is_turned && problem.tensor[i].heads > 0);
    step->has_norm = step->has_norm || tensor->is_normed;
  }
  if (norm_ != nullptr) ROPE_TRY(read_norm(target));
  if (input_ != nullptr) {
    ROPE_TRY(read_factor("input.q_row_factor", input_->q_row_factor, kQ, target));
    ROPE_TRY(read_factor("input.k_row_factor", input_->k_row_factor, kK, target));
    ROPE_TRY(read_factor("input.v_row_factor", input_->v_row_factor, kV, target));
  }
  if (cache_.args() != nullptr) ROPE_TRY(cache_.read(target));
  // Tensors without heads are checked like others, but do not decide which kernel runs.
  for (int i = 0; i < problem.num_tensors; ++i) {
    if (problem.tensor[i].heads == 0) continue;
    step->has_factor = step->has_factor || step->tensor[i].factor.is_present();
    step->has_codes = step->has_codes || step->tensor[i].has_codes();
    step->has_parts = step->has_parts || step->tensor[i].has_parts;
  }
  return quant_.read(cache_.args(), target);
}

void StepReader::describe(const RotatedTensor &rotated, const ReadTensor &read, StepTensor *tensor) const {
  const TensorUse &use = read.use;
  *tensor = {};
  tensor->channels = read.channels;
  tensor->window_begin = read.channels == geometry_.head_dim ? geometry_.rotary_offset : 0;
  tensor->is_turned = use.is_turned;
  tensor->has_styles = use.has_styles;
  tensor->is_normed = use.is_normed;
  tensor->is_written = read.is_written;
  tensor->is_whole = use.changes_all_channels() || !rotated.is_in_place;
  tensor->out_dtype = read.out_dtype;
  tensor->pass = read.pass;
  tensor->has_parts = read.pass.is_present;
}

rope_status_t StepReader::read_norm(const GroupTarget &target) {
  ROPE_TRY(read_channels("norm.q_weight", norm_->q_weight, kQ, target, false));
  ROPE_TRY(read_channels("norm.k_weight", norm_->k_weight, kK, target, false));
  ROPE_TRY(read_channels("norm.q_bias", norm_->q_bias, kQ, target, true));
  ROPE_TRY(read_channels("norm.k_bias", norm_->k_bias, kK, target, true));
  return target.problem.is_transposed ? read_norm_gradients(target) : ROPE_STATUS_SUCCESS;
}

rope_status_t StepReader::read_norm_gradients(const GroupTarget &target) {
  target.step->is_norm_gradient = target.step->has_norm;
  ROPE_TRY(read_norm_input("norm.q_in", norm_->q_in, kQ, target));
  ROPE_TRY(read_norm_input("norm.k_in", norm_->k_in, kK, target));
  ROPE_TRY(read_norm_input("norm.v_in", norm_->v_in, kV, target));
  ROPE_TRY(read_sums("norm.grad_q_weight", norm_->grad_q_weight, kQ, target, false));
  ROPE_TRY(read_sums("norm.grad_k_weight", norm_->grad_k_weight, kK, target, false));
  ROPE_TRY(read_sums("norm.grad_q_bias", norm_->grad_q_bias, kQ, target, true));
  return read_sums("norm.grad_k_bias", norm_->grad_k_bias, kK, target, true);
}

// Reads forward's input q, k or v.
rope_status_t StepReader::read_norm_input(const char *field, const rope_tensor_t &given, TensorName name,
                                          const GroupTarget &target) {
  Operand *operand;
  ROPE_TRY(operands_->read(Role::kIn, field, given, &operand));
  const int present = target.index_of(name);
  if (operand == nullptr) {
    if (present < 0 || !target.step->tensor[present].is_normed) return ROPE_STATUS_SUCCESS;
    return fail(kInvalid, "%s: %s is absent: the gradient of a norm needs forward's %s", function_, field,
                kTensorNames[name]);
  }
  int index;
  ROPE_TRY(find_normed(field, name, target, false, &index));
  const View &view = operand->view;
  if (view.dtype != geometry_.dtype) {
    return fail(kInvalid, "%s: %s.dtype is %s: it must be the descriptor's, %s", function_, field,
                dtype_name(view.dtype), dtype_name(geometry_.dtype));
  }
  const RotatedTensor &tensor = target.problem.tensor[index];
  const int64_t wanted[kNumAxes] = {target.problem.batches, target.problem.tokens, tensor.heads,
                                    target.step->tensor[index].channels};
  bool fits = view.ndim == layout_.ndim;
  for (int axis = kBatch; axis < kNumAxes && fits; ++axis) {
    fits = length_of(view, layout_, static_cast<Axis>(axis)) == wanted[axis];
  }
  if (!fits) {
    return fail(kInvalid, "%s: %s has shape %s: it must be that of %s, layout %s", function_, field,
                ShapeText(view).text, kTensorNames[name], layout_.name);
  }
  NormInput *input = &target.step->tensor[index].norm_in;
  input->data = view.data;
  canonical_strides(view, layout_, input->stride);
  return ROPE_STATUS_SUCCESS;
}

// Rows of gradients of weights or biases, [N, D] or [N, H, D].
rope_status_t StepReader::read_sums(const char *field, const rope_tensor_t &given, TensorName name,
                                    const GroupTarget &target, bool is_bias) {
  Operand *operand;
  ROPE_TRY(operands_->read(Role::kOut, field, given, &operand));
  if (operand == nullptr) return ROPE_STATUS_SUCCESS;
  int index;
  ROPE_TRY(find_normed(field, name, target, is_bias, &index));
  const View &view = operand->view;
  StepTensor *tensor = &target.step->tensor[index];
  const rope_dtype_t wanted = geometry_.dtype == ROPE_DTYPE_F64 ? ROPE_DTYPE_F64 : ROPE_DTYPE_F32;
  if (view.dtype != wanted) {
    return fail(kInvalid, "%s: %s.dtype is %s: it must be %s", function_, field, dtype_name(view.dtype),
                dtype_name(wanted));
  }
  const int64_t heads = target.problem.tensor[index].heads, channels = tensor->channels;
  const bool is_by_head = view.ndim == 3;
  if ((view.ndim != 2 && !is_by_head) || view.shape[0] == 0 || view.shape[view.ndim - 1] != channels ||
      (is_by_head && view.shape[1] != heads)) {
    return fail(kInvalid,
                "%s: %s has shape %s: it must be [N, %lld], or [N, %lld, %lld] for each head, with N of at least 1",
                function_, field, ShapeText(view).text, printable(channels), printable(heads), printable(channels));
  }
  const ChannelNumbers &numbers = is_bias ? tensor->bias : tensor->weight;
  if (!is_by_head && numbers.head_stride != 0) {
    return fail(kInvalid, "%s: %s has shape %s: a %s of each head needs [N, %lld, %lld]", function_, field,
                ShapeText(view).text, is_bias ? "bias" : "weight", printable(heads), printable(channels));
  }
  if (!is_by_head && heads > kMaxSummedHeads) {
    return fail(kUnsupported, "%s: %s has shape %s: of %lld heads it must be [N, H, D]; at most %lld are added up",
                function_, field, ShapeText(view).text, printable(heads), printable(kMaxSummedHeads));
  }
  if (tensor->runs != 0 && tensor->runs != view.shape[0]) {
    return fail(kInvalid, "%s: %s.shape[0] is %lld: it must be that of the gradient of the weight, %lld", function_,
                field, printable(view.shape[0]), printable(tensor->runs));
  }
  ROPE_TRY(check_output_strides(function_, field, view));
  tensor->runs = view.shape[0];
  *(is_bias ? &tensor->bias_sums : &tensor->weight_sums) = {view.data, view.stride[0], is_by_head ? view.stride[1] : 0,
                                                            view.stride[view.ndim - 1], is_by_head};
  return ROPE_STATUS_SUCCESS;
}

// Finds the tensor of an operand of the norm. That tensor must be normed and, for a bias, the norm must be LAYER.
rope_status_t StepReader::find_normed(const char *field, TensorName name, const GroupTarget &target, bool is_bias,
                                      int *index) const {
  ROPE_TRY(find_tensor(field, name, target, index));
  if (!target.step->tensor[*index].is_normed) {
    return fail(kInvalid, "%s: %s is set: norm_tensors leaves %s out", function_, field, kTensorNames[name]);
  }
  if (is_bias && geometry_.norm.type != ROPE_NORM_LAYER) {
    return fail(kInvalid, "%s: %s is set: it belongs to ROPE_NORM_LAYER", function_, field);
  }
  return ROPE_STATUS_SUCCESS;
}

// A weight or bias of q or k.
rope_status_t StepReader::read_channels(const char *field, const rope_tensor_t &given, TensorName name,
                                        const GroupTarget &target, bool is_bias) {
  Operand *operand;
  ROPE_TRY(operands_->read(Role::kIn, field, given, &operand));
  if (operand == nullptr) return ROPE_STATUS_SUCCESS;
  int index;
  ROPE_TRY(find_normed(field, name, target, is_bias, &index));
  const View &view = operand->view;
  ROPE_TRY(check_number_type(field, view));
  const int64_t heads = target.problem.tensor[index].heads, channels = target.step->tensor[index].channels;
  const bool is_by_head = view.ndim == 2;
  if ((view.ndim != 1 && !is_by_head) || view.shape[view.ndim - 1] != channels ||
      (is_by_head && view.shape[0] != heads)) {
    return fail(kInvalid, "%s: %s has shape %s: it must be [%lld], or [%lld, %lld] for each head", function_, field,
                ShapeText(view).text, printable(channels), printable(heads), printable(channels));
  }
  ChannelNumbers *numbers = is_bias ? &target.step->tensor[index].bias : &target.step->tensor[index].weight;
  *numbers = {view.data, view.dtype == ROPE_DTYPE_F32, is_by_head ? view.stride[0] : 0, view.stride[view.ndim - 1]};
  return ROPE_STATUS_SUCCESS;
}

// Reads [S], [B, S] or [B, S, H]; an axis B of length 1 serves all batches. With THD it reads [T] or [T, H].
rope_status_t StepReader::read_factor(const char *field, const rope_tensor_t &given, TensorName name,
                                      const GroupTarget &target) {
  Operand *operand;
  ROPE_TRY(operands_->read(Role::kIn, field, given, &operand));
  if (operand == nullptr) return ROPE_STATUS_SUCCESS;
  int index;
  ROPE_TRY(find_tensor(field, name, target, &index));
  const View &view = operand->view;
  ROPE_TRY(check_number_type(field, view));
  const bool is_thd = layout_.ndim == 3;
  const int64_t heads = target.problem.tensor[index].heads, tokens = target.problem.tokens;
  const bool is_by_head = view.ndim == (is_thd ? 2 : 3), has_batches = !is_thd && view.ndim >= 2;
  const int token_axis = has_batches ? 1 : 0;
  const bool fits = view.ndim <= token_axis + 2 && view.shape[token_axis] == tokens &&
                    (!has_batches || view.shape[0] == target.problem.batches || view.shape[0] == 1) &&
                    (!is_by_head || view.shape[view.ndim - 1] == heads);
  if (!fits && is_thd) {
    return fail(kInvalid, "%s: %s has shape %s: it must be [T], [%lld], or [T, H], [%lld, %lld]", function_, field,
                ShapeText(view).text, printable(tokens), printable(tokens), printable(heads));
  }
  if (!fits) {
    return fail(
        kInvalid,
        "%s: %s has shape %s: it must be [S], [%lld], [B, S], [%lld, %lld], or [B, S, H], [%lld, %lld, %lld]; B "
        "may be 1",
        function_, field, ShapeText(view).text, printable(tokens), printable(target.problem.batches), printable(tokens),
        printable(target.problem.batches), printable(tokens), printable(heads));
  }
  target.step->tensor[index].factor = {view.data, view.dtype == ROPE_DTYPE_F32, has_batches ? view.stride[0] : 0,
                                       view.stride[token_axis], is_by_head ? view.stride[view.ndim - 1] : 0};
  return ROPE_STATUS_SUCCESS;
}

}  // namespace rope
