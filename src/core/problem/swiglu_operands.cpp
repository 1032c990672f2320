// SPDX-License-Identifier: Apache-2.0
// swiglu_operands.cpp - reads and checks the tensors of a SwiGLU call
#include "core/problem/swiglu_operands.hpp"

#include "core/problem/import.hpp"
#include "core/problem/overlap.hpp"
#include "core/problem/swiglu_rows_reader.hpp"

namespace rope {

namespace {

constexpr rope_status_t kInvalid = ROPE_STATUS_INVALID_ARGUMENT;
constexpr rope_status_t kUnsupported = ROPE_STATUS_NOT_SUPPORTED;

// Reads a call's tensors one by one into `operands`. *operand becomes NULL if a tensor is absent.
class SwigluReader {
 public:
  SwigluReader(const char *function, rope_dtype_t dtype, Operands *operands)
      : function_(function), dtype_(dtype), operands_(operands) {}

  // Reads a tensor of gate's shape. The first tensor is gate.
  rope_status_t read(Role role, const char *field, const rope_tensor_t &tensor, Operand **operand) {
    ROPE_TRY(operands_->read(role, field, tensor, operand));
    if (*operand == nullptr) return ROPE_STATUS_SUCCESS;
    const View &view = (*operand)->view;
    if ((*operand)->is_output() && is_code(view.dtype)) {
      return fail(kUnsupported,
                  "%s: %s.dtype is %s: this version writes 8 bits from F32, F16 or BF16, and in swiglu_backward only "
                  "of grad_gate and grad_up",
                  function_, field, dtype_name(view.dtype));
    }
    if (view.dtype != dtype_) {
      return fail(kInvalid, "%s: %s.dtype is %s: it must be the descriptor's, %s", function_, field,
                  dtype_name(view.dtype), dtype_name(dtype_));
    }
    if (gate_ == nullptr) gate_ = *operand;
    return check_same_shape(function_, field, view, gate_->field, gate_->view);
  }

  rope_status_t read_required(Role role, const char *field, const rope_tensor_t &tensor, Operand **operand) {
    ROPE_TRY(read(role, field, tensor, operand));
    if (*operand != nullptr) return ROPE_STATUS_SUCCESS;
    return fail(kInvalid, "%s: %s is absent: it is required", function_, field);
  }

  // Reads row_scale. With row_index it may have any length.
  rope_status_t read_row_scale(const rope_tensor_t &tensor, bool is_indexed, Operand **operand) {
    const char *field = "row_scale";
    ROPE_TRY(operands_->read(is_indexed ? Role::kGatheredIn : Role::kIn, field, tensor, operand));
    if (*operand == nullptr) return ROPE_STATUS_SUCCESS;
    const View &view = (*operand)->view;
    ROPE_TRY(check_factor_dtype(field, view.dtype));
    if (is_indexed) {
      if (view.ndim == 1) return ROPE_STATUS_SUCCESS;
      return fail(kInvalid, "%s: %s.ndim is %d: with row_index it must be 1", function_, field, view.ndim);
    }
    if (view.ndim >= gate_->view.ndim) {
      return fail(kInvalid, "%s: %s.ndim is %d: it must be below that of %s, %d", function_, field, view.ndim,
                  gate_->field, gate_->view.ndim);
    }
    View rows = gate_->view;
    rows.ndim = view.ndim;
    return check_same_shape(function_, field, view, gate_->field, rows);
  }

  rope_status_t read_num_rows(const rope_tensor_t &tensor, Operand **operand) {
    const char *field = "num_rows";
    ROPE_TRY(operands_->read_integers(field, tensor, operand));
    if (*operand == nullptr) return ROPE_STATUS_SUCCESS;
    const View &view = (*operand)->view;
    if (view.ndim != 1) return fail(kInvalid, "%s: %s.ndim is %d: it must be 1", function_, field, view.ndim);
    if (view.shape[0] != 1) {
      return fail(kInvalid, "%s: %s.shape[0] is %lld: it must be 1", function_, field,
                  static_cast<long long>(view.shape[0]));
    }
    return ROPE_STATUS_SUCCESS;
  }

  // Reads a bias: [d], or [E, d] with experts of expert_offsets or of gate's first axis.
  rope_status_t read_bias(const char *field, const rope_tensor_t &tensor, bool has_experts, const SwigluRows &rows,
                          Operand **operand) {
    ROPE_TRY(operands_->read(Role::kIn, field, tensor, operand));
    if (*operand == nullptr) return ROPE_STATUS_SUCCESS;
    const View &view = (*operand)->view, &gate = gate_->view;
    ROPE_TRY(check_factor_dtype(field, view.dtype));
    if (view.ndim != 1 && !(has_experts && view.ndim == 2)) {
      return fail(kInvalid, "%s: %s.ndim is %d: it must be 1%s", function_, field, view.ndim,
                  has_experts ? " or, by expert, 2" : "");
    }
    View wanted = gate;
    wanted.ndim = view.ndim;
    const bool has_offsets = rows.expert_offsets != nullptr;
    if (has_offsets && view.ndim == 2) {
      (*operand)->role = Role::kGatheredIn;
      if (view.shape[0] != rows.experts) {
        return fail(kInvalid, "%s: %s.shape[0] is %lld: it must be that of expert_offsets less 1, %lld", function_,
                    field, static_cast<long long>(view.shape[0]), static_cast<long long>(rows.experts));
      }
      wanted.shape[0] = rows.experts;
    }
    wanted.shape[view.ndim - 1] = gate.shape[gate.ndim - 1];
    return check_same_shape(function_, field, view, gate_->field, wanted);
  }

  rope_status_t read_rows(const swiglu_input_args_t &args, const Operand *row_scale, SwigluRows *rows) {
    ROPE_TRY(read_expert_offsets(function_, args.expert_offsets, *gate_, operands_, rows));
    return read_row_index(function_, args.row_index, *gate_, row_scale, operands_, rows);
  }

  rope_status_t read_expert_rows(const rope_tensor_t &tensor, Operand **operand) {
    const char *field = "expert_rows";
    ROPE_TRY(operands_->read_integers(field, tensor, operand));
    if (*operand == nullptr) return ROPE_STATUS_SUCCESS;
    if (gate_->view.ndim < 3) {
      return fail(kInvalid, "%s: %s.ndim is %d: with expert_rows it must be at least 3, [E, N, d]", function_,
                  gate_->field, gate_->view.ndim);
    }
    if ((*operand)->view.ndim != 1) {
      return fail(kInvalid, "%s: %s.ndim is %d: it must be 1", function_, field, (*operand)->view.ndim);
    }
    View experts = gate_->view;
    experts.ndim = 1;
    return check_same_shape(function_, field, (*operand)->view, gate_->field, experts);
  }

  rope_status_t read_grad_row_scale(Role role, const rope_tensor_t &tensor, const Operand *row_scale, bool is_indexed,
                                    Operand **operand) {
    const char *field = "grad_row_scale";
    ROPE_TRY(operands_->read(role, field, tensor, operand));
    if (*operand == nullptr) return ROPE_STATUS_SUCCESS;
    const View &view = (*operand)->view;
    if (row_scale == nullptr) {
      return fail(kInvalid, "%s: %s is set and row_scale is absent: a gradient needs its factor", function_, field);
    }
    if (view.dtype != row_scale->view.dtype) {
      return fail(kInvalid, "%s: %s.dtype is %s: it must be that of %s, %s", function_, field, dtype_name(view.dtype),
                  row_scale->field, dtype_name(row_scale->view.dtype));
    }
    if (!is_indexed) return check_same_shape(function_, field, view, row_scale->field, row_scale->view);
    View rows = gate_->view;
    rows.ndim = 1;
    return check_same_shape(function_, field, view, gate_->field, rows);
  }

  rope_status_t check_outputs() const {
    for (const Operand &operand : *operands_) {
      if (!operand.is_output()) continue;
      ROPE_TRY(check_output_strides(function_, operand.field, operand.view));
      ROPE_TRY(operands_->check_overlaps(operand));
    }
    return ROPE_STATUS_SUCCESS;
  }

 private:
  rope_status_t check_factor_dtype(const char *field, rope_dtype_t dtype) const {
    if (dtype == ROPE_DTYPE_F32 || dtype == dtype_) return ROPE_STATUS_SUCCESS;
    return fail(kInvalid, "%s: %s.dtype is %s: it must be F32 or the descriptor's, %s", function_, field,
                dtype_name(dtype), dtype_name(dtype_));
  }

  const char *function_;
  rope_dtype_t dtype_;
  const Operand *gate_ = nullptr;
  Operands *operands_;
};

// Copies the caller's struct as this version has it. Without one all inputs are absent.
rope_status_t import_further_inputs(const char *function, const swiglu_input_args_t *given, swiglu_input_args_t *args) {
  *args = SWIGLU_INPUT_ARGS_INIT;
  if (given == nullptr) return ROPE_STATUS_SUCCESS;
  swiglu_input_args_t copy;
  const swiglu_input_args_t *imported;
  ROPE_TRY(import_args(function, "input", given, kSwigluInputArgsFirstSize, &copy, &imported));
  *args = *imported;
  if (args->flags == 0) return ROPE_STATUS_SUCCESS;
  return fail(kUnsupported, "%s: input.flags is 0x%x: this version knows no flag", function, args->flags);
}

rope_status_t read_further_inputs(const char *function, const swiglu_input_args_t &args, const Operand *row_scale,
                                  const Operand *num_rows, SwigluReader *reader, FurtherInputs *inputs) {
  ROPE_TRY(reader->read_expert_rows(args.expert_rows, &inputs->expert_rows));
  ROPE_TRY(reader->read_rows(args, row_scale, &inputs->rows));
  const struct {
    const char *field, *other;
    bool are_both;
  } refused[] = {
      {"num_rows", "expert_rows", num_rows != nullptr && inputs->expert_rows != nullptr},
      {"num_rows", "expert_offsets", num_rows != nullptr && inputs->rows.expert_offsets != nullptr},
      {"expert_rows", "expert_offsets", inputs->expert_rows != nullptr && inputs->rows.expert_offsets != nullptr},
      {"expert_rows", "row_index", inputs->expert_rows != nullptr && inputs->rows.row_index != nullptr}};
  for (const auto &two : refused) {
    if (!two.are_both) continue;
    return fail(kInvalid, "%s: %s and %s are set: one of them says which rows there are", function, two.field,
                two.other);
  }
  const bool has_experts = inputs->expert_rows != nullptr || inputs->rows.expert_offsets != nullptr;
  ROPE_TRY(reader->read_bias("gate_bias", args.gate_bias, has_experts, inputs->rows, &inputs->bias[kGate]));
  return reader->read_bias("up_bias", args.up_bias, has_experts, inputs->rows, &inputs->bias[kUp]);
}

// Checks that a call of forward has no gradients.
rope_status_t check_no_gradients(const char *function, const swiglu_args_t &args) {
  const struct {
    const char *field;
    const rope_tensor_t &tensor;
  } refused_here[] = {{"grad_out", args.grad_out},
                      {"grad_gate", args.grad_gate},
                      {"grad_up", args.grad_up},
                      {"grad_row_scale", args.grad_row_scale}};
  for (const auto &refused : refused_here) {
    if (refused.tensor.ndim != 0) {
      return fail(kInvalid, "%s: %s is set: it belongs to swiglu_backward", function, refused.field);
    }
    View malformed;
    if (!is_zeroed(refused.tensor)) return read_view(function, refused.field, refused.tensor, &malformed);
  }
  return ROPE_STATUS_SUCCESS;
}

// Reads the outputs that may be codes, then the recomputed one.
rope_status_t read_outputs(const char *function, rope_dtype_t dtype, const swiglu_args_t &args, bool is_backward,
                           SwigluReader *reader, SwigluCodesReader *codes_reader, SwigluOperands *operands) {
  const struct {
    const char *field;
    const rope_tensor_t &tensor;
  } fields[2] = {{is_backward ? "grad_gate" : "out", is_backward ? args.grad_gate : args.out},
                 {"grad_up", args.grad_up}};
  const int count = is_backward ? 2 : 1;
  bool is_coded[2] = {};
  for (int i = 0; i < count; ++i) {
    is_coded[i] = SwigluCodesReader::is_coded(fields[i].tensor) && dtype != ROPE_DTYPE_F64;
  }
  // Several launches read the inputs of a call that writes codes.
  const bool has_codes = is_coded[0] || is_coded[1] || args.column != nullptr;
  const Role role = has_codes ? Role::kDisjointOut : Role::kOutOrAnyInput;
  for (int i = 0; i < count; ++i) {
    ROPE_TRY(is_coded[i] ? codes_reader->read_out(fields[i].field, fields[i].tensor, i)
                         : reader->read(role, fields[i].field, fields[i].tensor, &operands->out[i]));
  }
  if (is_backward) ROPE_TRY(reader->read(role, "out", args.out, &operands->out[kRecomputedOut]));
  ROPE_TRY(codes_reader->read_columns(args.column));
  if (operands->coded.count() > 0 && dtype == ROPE_DTYPE_F64) {
    return fail(kUnsupported, "%s: %s.dtype is %s: this version writes 8 bits from F32, F16 or BF16 only", function,
                operands->coded[0].operand->field, dtype_name(operands->coded[0].operand->view.dtype));
  }
  if (is_backward || operands->out[kOut] != nullptr || operands->coded.count() > 0) return ROPE_STATUS_SUCCESS;
  return fail(kInvalid, "%s: out is absent: it is required", function);
}

rope_status_t read_operands(const char *function, rope_dtype_t dtype, const GatingForm &form, const swiglu_args_t &args,
                            bool is_backward, SwigluReader *reader, SwigluOperands *operands) {
  Operand **const in = operands->in;
  SwigluCodesReader codes_reader(function, is_backward, &operands->all, &operands->coded);
  ROPE_TRY(reader->read_required(Role::kIn, "gate", args.gate, &in[kGate]));
  ROPE_TRY(reader->read_required(Role::kIn, "up", args.up, &in[kUp]));
  if (is_backward) ROPE_TRY(reader->read_required(Role::kIn, "grad_out", args.grad_out, &in[kGradOut]));
  ROPE_TRY(read_outputs(function, dtype, args, is_backward, reader, &codes_reader, operands));
  swiglu_input_args_t input;
  ROPE_TRY(import_further_inputs(function, args.input, &input));
  operands->is_indexed = !is_zeroed(input.row_index);
  ROPE_TRY(reader->read_row_scale(args.row_scale, operands->is_indexed, &operands->row_scale));
  ROPE_TRY(reader->read_num_rows(args.num_rows, &operands->num_rows));
  FurtherInputs *const further = &operands->further;
  ROPE_TRY(read_further_inputs(function, input, operands->row_scale, operands->num_rows, reader, further));
  const bool has_expert_axis = further->expert_rows != nullptr;
  const int64_t experts = has_expert_axis ? in[kGate]->view.shape[0] : further->rows.experts;
  ROPE_TRY(codes_reader.read_scales(args.quant, form.rounds_before_codes, experts, has_expert_axis));
  if (!is_backward) {
    const CodedOutputs &coded = operands->coded;
    const bool has_pairs = coded.count() > 0 && coded[0].codes.has_pairs();
    if (!has_pairs || operands->num_rows == nullptr || in[kGate]->view.ndim > 1) return ROPE_STATUS_SUCCESS;
    return fail(kInvalid, "%s: num_rows is set: with an out of F4_E2M1X2 %s.ndim must be at least 2, and is 1",
                function, in[kGate]->field);
  }
  const Role role = operands->coded.count() > 0 ? Role::kDisjointOut : Role::kOutOrAnyInput;
  ROPE_TRY(reader->read_grad_row_scale(role, args.grad_row_scale, operands->row_scale, operands->is_indexed,
                                       &operands->grad_row_scale));
  if (operands->out[kGradGate] == nullptr && operands->out[kGradUp] == nullptr && operands->coded.count() == 0 &&
      operands->grad_row_scale == nullptr) {
    return fail(kInvalid, "%s: grad_gate, grad_up and grad_row_scale are absent: one of them is required", function);
  }
  if (operands->grad_row_scale != nullptr && has_expert_axis && operands->row_scale->view.ndim < 2) {
    return fail(kUnsupported, "%s: row_scale.ndim is 1: with expert_rows its gradient needs at least 2, [E, N]",
                function);
  }
  return ROPE_STATUS_SUCCESS;
}

}  // namespace

rope_status_t read_swiglu_operands(const char *function, rope_dtype_t dtype, const GatingForm &form,
                                   const swiglu_args_t &args, bool is_backward, SwigluOperands *operands) {
  if (!is_backward) ROPE_TRY(check_no_gradients(function, args));
  SwigluReader reader(function, dtype, &operands->all);
  ROPE_TRY(read_operands(function, dtype, form, args, is_backward, &reader, operands));
  return reader.check_outputs();
}

}  // namespace rope
