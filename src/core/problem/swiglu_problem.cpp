// SPDX-License-Identifier: Apache-2.0
// swiglu_problem.cpp - validates SwiGLU configs and calls
#include "core/problem/swiglu_problem.hpp"

#include <math.h>

#include "core/problem/descriptor_checks.hpp"
#include "core/problem/import.hpp"
#include "core/problem/operands.hpp"
#include "core/problem/overlap.hpp"
#include "core/problem/swiglu_codes_reader.hpp"
#include "core/problem/swiglu_rows_reader.hpp"

namespace rope {

namespace {

static_assert(static_cast<int32_t>(Activation::kSwiglu) == SWIGLU_ACTIVATION_SWIGLU);
static_assert(static_cast<int32_t>(Activation::kGegluErf) == SWIGLU_ACTIVATION_GEGLU_ERF);
static_assert(static_cast<int32_t>(Activation::kGegluTanh) == SWIGLU_ACTIVATION_GEGLU_TANH);
static_assert(static_cast<int32_t>(Activation::kReglu) == SWIGLU_ACTIVATION_REGLU);

constexpr rope_status_t kInvalid = ROPE_STATUS_INVALID_ARGUMENT;
constexpr double kMinSoftcap = 0x1p-126;  // this number and its inverse are normal in fp32
constexpr rope_status_t kUnsupported = ROPE_STATUS_NOT_SUPPORTED;

// Reads a call's tensors one by one. *operand becomes NULL if a tensor is absent.
class SwigluReader {
 public:
  SwigluReader(const char *function, rope_dtype_t dtype) : function_(function), dtype_(dtype), operands_(function) {}

  // Reads a tensor of gate's shape. The first tensor is gate.
  rope_status_t read(Role role, const char *field, const rope_tensor_t &tensor, Operand **operand) {
    ROPE_TRY(operands_.read(role, field, tensor, operand));
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
    ROPE_TRY(operands_.read(is_indexed ? Role::kGatheredIn : Role::kIn, field, tensor, operand));
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
    ROPE_TRY(operands_.read_integers(field, tensor, operand));
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
    ROPE_TRY(operands_.read(Role::kIn, field, tensor, operand));
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
    ROPE_TRY(read_expert_offsets(function_, args.expert_offsets, *gate_, &operands_, rows));
    return read_row_index(function_, args.row_index, *gate_, row_scale, &operands_, rows);
  }

  rope_status_t read_expert_rows(const rope_tensor_t &tensor, Operand **operand) {
    const char *field = "expert_rows";
    ROPE_TRY(operands_.read_integers(field, tensor, operand));
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
    ROPE_TRY(operands_.read(role, field, tensor, operand));
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
    for (const Operand &operand : operands_) {
      if (!operand.is_output()) continue;
      ROPE_TRY(check_output_strides(function_, operand.field, operand.view));
      ROPE_TRY(operands_.check_overlaps(operand));
    }
    return ROPE_STATUS_SUCCESS;
  }

  rope_status_t check_loops() const { return operands_.check_loops(); }

  // The operands, for the readers of other structs.
  Operands *operands() { return &operands_; }

 private:
  rope_status_t check_factor_dtype(const char *field, rope_dtype_t dtype) const {
    if (dtype == ROPE_DTYPE_F32 || dtype == dtype_) return ROPE_STATUS_SUCCESS;
    return fail(kInvalid, "%s: %s.dtype is %s: it must be F32 or the descriptor's, %s", function_, field,
                dtype_name(dtype), dtype_name(dtype_));
  }

  const char *function_;
  rope_dtype_t dtype_;
  const Operand *gate_ = nullptr;
  Operands operands_;
};

// Strides that give gate's first index and its second one.
constexpr int64_t kRowIndexStride[kMaxAxes] = {1, 0, 0, 0};
constexpr int64_t kSecondIndexStride[kMaxAxes] = {0, 1, 0, 0};

// Collects the strides of all views of a problem in one table, so that axes can be sorted and merged together.
class AxisMerger {
 public:
  AxisMerger(SwigluProblem *problem, const View &gate) : problem_(problem) {
    problem->ndim = 0;
    for (int axis = 0; axis < gate.ndim; ++axis) {
      if (gate.shape[axis] != 1) order_[problem->ndim++] = axis;
    }
  }

  // Adds the strides of a view. Along axes that the view lacks they are 0.
  void add_strides(const int64_t *source, int64_t *target) {
    rows_[count_].source = source;
    rows_[count_++].target = target;
  }

  // Sorts axes, slowest first, by the strides of an output, which are never 0.
  void sort_by_stride(const int64_t *stride) {
    for (int i = 1; i < problem_->ndim; ++i) {
      for (int j = i; j > 0 && magnitude(stride[order_[j]]) > magnitude(stride[order_[j - 1]]); --j) {
        const int axis = order_[j];
        order_[j] = order_[j - 1];
        order_[j - 1] = axis;
      }
    }
  }

  void merge(const int64_t *shape) {
    int used = 0;
    for (int i = 0; i < problem_->ndim; ++i) {
      const int axis = order_[i];
      if (used > 0 && continues(used - 1, axis, shape[axis])) {
        problem_->shape[used - 1] *= shape[axis];
        for (int row = 0; row < count_; ++row) rows_[row].target[used - 1] = rows_[row].source[axis];
      } else {
        problem_->shape[used] = shape[axis];
        for (int row = 0; row < count_; ++row) rows_[row].target[used] = rows_[row].source[axis];
        ++used;
      }
    }
    if (used == 0) {
      problem_->shape[0] = 1;
      for (int row = 0; row < count_; ++row) rows_[row].target[0] = 1;
      used = 1;
    }
    problem_->ndim = used;
  }

 private:
  // Whether in every view the step of merged axis `outer` spans exactly the `length` elements of `axis`.
  bool continues(int outer, int axis, int64_t length) const {
    for (int row = 0; row < count_; ++row) {
      if (rows_[row].target[outer] != rows_[row].source[axis] * length) return false;
    }
    return true;
  }

  struct Row {
    const int64_t *source;
    int64_t *target;
  };

  SwigluProblem *problem_;
  int order_[kMaxAxes];
  // The views are inputs, outputs, and up to 9 others: row_scale, grad_row_scale, the row index, two biases, the
  // indices of experts and of their rows, written scales and the rows of their matrices.
  Row rows_[int{kMaxSwigluInputs} + int{kMaxSwigluOutputs} + 9];
  int count_ = 0;
};

// The further inputs of a call; absent ones are NULL.
struct FurtherInputs {
  Operand *bias[2] = {};
  Operand *expert_rows = nullptr;
  SwigluRows rows = {};
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

// Makes the strides of pairs of codes count halves of an element: along the last axis a value is half a pair.
void double_outer_strides(View *out) {
  for (int axis = 0; axis < out->ndim - 1; ++axis) out->stride[axis] *= 2;
}

// Sets the bias of gate or up, with strides by gate's axes.
void set_bias(const View &bias, int which, int num_axes, int64_t (&strides)[kMaxAxes], SwigluProblem *problem) {
  problem->bias[which] = bias.data;
  problem->bias_dtype[which] = bias.dtype;
  strides[num_axes - 1] = bias.stride[bias.ndim - 1];
  if (bias.ndim == 1) return;
  if (problem->rows.expert_offsets != nullptr) {
    problem->bias_expert_stride[which] = bias.stride[0];
  } else {
    strides[0] = bias.stride[0];
  }
}

// The operands of a call. Absent ones and outputs of codes are NULL.
struct SwigluOperands {
  Operand *in[kMaxSwigluInputs] = {};
  Operand *out[kMaxSwigluOutputs] = {};
  Operand *row_scale = nullptr, *num_rows = nullptr, *grad_row_scale = nullptr;
  bool is_indexed = false;  // with row_index
  FurtherInputs further;
  CodedOutputs coded;

  bool has_words() const {
    return out[kOut] != nullptr || out[kGradUp] != nullptr || out[kRecomputedOut] != nullptr ||
           grad_row_scale != nullptr;
  }
};

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
  if (operands->coded.count > 0 && dtype == ROPE_DTYPE_F64) {
    return fail(kUnsupported, "%s: %s.dtype is %s: this version writes 8 bits from F32, F16 or BF16 only", function,
                operands->coded.list[0].operand->field, dtype_name(operands->coded.list[0].operand->view.dtype));
  }
  if (is_backward || operands->out[kOut] != nullptr || operands->coded.count > 0) return ROPE_STATUS_SUCCESS;
  return fail(kInvalid, "%s: out is absent: it is required", function);
}

rope_status_t read_operands(const char *function, rope_dtype_t dtype, const GatingForm &form, const swiglu_args_t &args,
                            bool is_backward, SwigluReader *reader, SwigluOperands *operands) {
  Operand **const in = operands->in;
  SwigluCodesReader codes_reader(function, is_backward, reader->operands(), &operands->coded);
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
    const bool has_pairs = coded.count > 0 && coded.list[0].codes.has_pairs();
    if (!has_pairs || operands->num_rows == nullptr || in[kGate]->view.ndim > 1) return ROPE_STATUS_SUCCESS;
    return fail(kInvalid, "%s: num_rows is set: with an out of F4_E2M1X2 %s.ndim must be at least 2, and is 1",
                function, in[kGate]->field);
  }
  const Role role = operands->coded.count > 0 ? Role::kDisjointOut : Role::kOutOrAnyInput;
  ROPE_TRY(reader->read_grad_row_scale(role, args.grad_row_scale, operands->row_scale, operands->is_indexed,
                                       &operands->grad_row_scale));
  if (operands->out[kGradGate] == nullptr && operands->out[kGradUp] == nullptr && operands->coded.count == 0 &&
      operands->grad_row_scale == nullptr) {
    return fail(kInvalid, "%s: grad_gate, grad_up and grad_row_scale are absent: one of them is required", function);
  }
  if (operands->grad_row_scale != nullptr && has_expert_axis && operands->row_scale->view.ndim < 2) {
    return fail(kUnsupported, "%s: row_scale.ndim is 1: with expert_rows its gradient needs at least 2, [E, N]",
                function);
  }
  return ROPE_STATUS_SUCCESS;
}

// Sets a problem of all outputs of words, or of one output of codes.
void set_problem(const SwigluOperands &operands, const CodedOutput *coded, SwigluProblem *problem) {
  const View &gate = operands.in[kGate]->view;
  AxisMerger merger(problem, gate);
  for (int i = 0; i < problem->num_inputs(); ++i) {
    problem->in[i] = operands.in[i]->view.data;
    merger.add_strides(operands.in[i]->view.stride, problem->in_stride[i]);
  }
  const int64_t *output_stride = nullptr;
  View out[kMaxSwigluOutputs];
  for (int i = 0; i < problem->num_outputs(); ++i) {
    const Operand *const operand = coded == nullptr ? operands.out[i] : coded->output == i ? coded->operand : nullptr;
    if (operand == nullptr) continue;
    out[i] = operand->view;
    if (is_code_pair(out[i].dtype)) double_outer_strides(&out[i]);
    problem->out[i] = out[i].data;
    merger.add_strides(out[i].stride, problem->out_stride[i]);
    if (output_stride == nullptr) output_stride = out[i].stride;
  }
  const SwigluCodes codes = coded != nullptr ? coded->codes : problem->codes;
  problem->codes = codes;
  if (operands.row_scale != nullptr) {
    const View &row_scale = operands.row_scale->view;
    problem->row_scale = row_scale.data;
    problem->row_scale_dtype = row_scale.dtype;
    if (operands.is_indexed) {
      problem->factor_stride = row_scale.stride[0];
    } else {
      merger.add_strides(row_scale.stride, problem->row_scale_stride);
    }
  }
  const FurtherInputs &further = operands.further;
  problem->rows = further.rows;
  if (operands.num_rows != nullptr) {
    problem->num_rows = operands.num_rows->view.data;
    problem->num_rows_dtype = operands.num_rows->view.dtype;
  }
  const bool has_expert_axis = further.expert_rows != nullptr;
  // One launch may write several outputs of codes, so all of them keep the same axis: that of rows if an output has
  // groups of rows, otherwise in backward the last one.
  const bool keeps_rows = coded != nullptr && operands.coded.has_row_groups();
  if (operands.num_rows != nullptr || problem->rows.is_present() || (keeps_rows && !has_expert_axis)) {
    merger.add_strides(kRowIndexStride, problem->row_index_stride);
  }
  int64_t column_index_stride[kMaxAxes] = {}, merged_stride[kMaxAxes] = {};
  column_index_stride[gate.ndim - 1] = 1;
  if (coded != nullptr && problem->is_backward && !keeps_rows) merger.add_strides(column_index_stride, merged_stride);
  int64_t bias_strides[2][kMaxAxes] = {};
  for (int i = kGate; i <= kUp; ++i) {
    if (further.bias[i] == nullptr) continue;
    set_bias(further.bias[i]->view, i, gate.ndim, bias_strides[i], problem);
    merger.add_strides(bias_strides[i], problem->bias_stride[i]);
  }
  if (has_expert_axis) {
    const View &rows = further.expert_rows->view;
    problem->expert_rows = rows.data;
    problem->expert_rows_dtype = rows.dtype;
    problem->expert_rows_stride = rows.stride[0];
    problem->experts = gate.shape[0];
    problem->rows_per_expert = gate.shape[1];
    merger.add_strides(kRowIndexStride, problem->expert_index_stride);
    merger.add_strides(kSecondIndexStride, problem->expert_row_index_stride);
  }
  if (codes.scales.is_present()) merger.add_strides(codes.scales_stride, problem->codes.scales_stride);
  if (codes.has_tiles) merger.add_strides(codes.scale_row_stride, problem->codes.scale_row_stride);
  if (coded == nullptr && operands.grad_row_scale != nullptr) {
    problem->grad_row_scale = operands.grad_row_scale->view.data;
    merger.add_strides(operands.grad_row_scale->view.stride, problem->grad_row_scale_stride);
  } else {
    const bool keeps_order =
        has_expert_axis || problem->rows.is_present() || codes.scales.is_present() || codes.has_pairs();
    if (!keeps_order) merger.sort_by_stride(output_stride);
  }
  merger.merge(gate.shape);
  // An output has a stride other than 0 along each of its own axes.
  while (problem->num_row_axes < problem->ndim && problem->grad_row_scale_stride[problem->num_row_axes] != 0) {
    ++problem->num_row_axes;
  }
}

}  // namespace

int64_t SwigluProblem::num_elements() const {
  int64_t count = 1;
  for (int axis = 0; axis < ndim; ++axis) count *= shape[axis];
  return count;
}

int64_t SwigluProblem::num_expert_row_elements() const {
  return num_elements() / (experts * rows_per_expert);
}

int64_t SwigluProblem::num_row_elements() const {
  return num_elements() / (row_index_stride[0] != 0 ? shape[0] : 1);
}

int SwigluProblem::row_axis() const {
  const int64_t *const index = expert_rows != nullptr ? expert_row_index_stride : row_index_stride;
  for (int axis = 0; axis < ndim; ++axis) {
    if (index[axis] != 0) return axis;
  }
  return -1;
}

int64_t SwigluProblem::num_summed_elements() const {
  int64_t count = 1;
  for (int axis = num_row_axes; axis < ndim; ++axis) count *= shape[axis];
  return count;
}

rope_status_t check_swiglu_config(const char *function, const swiglu_config_t &config, GatingForm *form) {
  ROPE_TRY(check_device(function, config.device, config.device_index, config.num_threads));
  ROPE_TRY(check_data_type(function, config.dtype));
  if (config.flags != 0) {
    return fail(kUnsupported, "%s: flags is 0x%x: this version knows no flag", function, config.flags);
  }
  const struct {
    const char *field;
    double value;
  } factors[] = {{"alpha", config.alpha},
                 {"limit", config.limit},
                 {"up_offset", config.up_offset},
                 {"out_scale", config.out_scale}};
  for (const auto &factor : factors) {
    const bool vanishes = factor.value != 0.0 && static_cast<float>(factor.value) == 0.0f;
    if (!(fabs(factor.value) <= static_cast<double>(kMaxFloat)) || vanishes) {
      return fail(kInvalid, "%s: %s is %g: it must be a finite number in fp32, and 0 only where it is given as 0",
                  function, factor.field, factor.value);
    }
  }
  if (!(config.limit >= 0.0)) {
    return fail(kInvalid, "%s: limit is %g: it must be above 0, or 0 for none", function, config.limit);
  }
  const struct {
    const char *field;
    double value;
  } caps[] = {{"gate_softcap", config.gate_softcap}, {"up_softcap", config.up_softcap}};
  for (const auto &cap : caps) {
    if (cap.value == 0.0 || (cap.value >= kMinSoftcap && cap.value <= 1.0 / kMinSoftcap)) continue;
    return fail(kInvalid, "%s: %s is %g: it must be from 2^-126 to 2^126, or 0 for none", function, cap.field,
                cap.value);
  }
  if (config.limit_rule != SWIGLU_LIMIT_GATE && config.limit_rule != SWIGLU_LIMIT_ACTIVATION) {
    return fail(kInvalid, "%s: limit_rule is %d: it must be SWIGLU_LIMIT_GATE or SWIGLU_LIMIT_ACTIVATION", function,
                config.limit_rule);
  }
  if (config.activation < SWIGLU_ACTIVATION_SWIGLU || config.activation > SWIGLU_ACTIVATION_REGLU) {
    return fail(kInvalid,
                "%s: activation is %d: it must be SWIGLU_ACTIVATION_SWIGLU, SWIGLU_ACTIVATION_GEGLU_ERF, "
                "SWIGLU_ACTIVATION_GEGLU_TANH or SWIGLU_ACTIVATION_REGLU",
                function, config.activation);
  }
  if (config.product_rounding != 0 && config.product_rounding != SWIGLU_PRODUCT_ROUND_ACTIVATION) {
    return fail(kInvalid, "%s: product_rounding is %d: it must be SWIGLU_PRODUCT_ROUND_ACTIVATION or 0", function,
                config.product_rounding);
  }
  if (config.activation != SWIGLU_ACTIVATION_SWIGLU && config.alpha != 0.0 && config.alpha != 1.0) {
    return fail(kInvalid, "%s: alpha is %g and activation is %d: alpha must be 0 or 1 but for SWIGLU_ACTIVATION_SWIGLU",
                function, config.alpha, config.activation);
  }
  if ((config.quant_rounding & ~ROPE_QUANT_ROUND_FIRST) != 0) {
    return fail(kUnsupported, "%s: quant_rounding is 0x%x: this version knows ROPE_QUANT_ROUND_FIRST (0x1) only",
                function, static_cast<unsigned>(config.quant_rounding));
  }
  const auto rounded = [&](double value) {
    return config.dtype == ROPE_DTYPE_F64 ? value : static_cast<double>(static_cast<float>(value));
  };
  form->alpha = config.alpha != 0.0 ? rounded(config.alpha) : 1.0;
  form->limit = config.limit != 0.0 ? rounded(config.limit) : static_cast<double>(INFINITY);
  form->up_offset = rounded(config.up_offset);
  form->out_scale = config.out_scale != 0.0 ? rounded(config.out_scale) : 1.0;
  form->limits_activation = config.limit_rule == SWIGLU_LIMIT_ACTIVATION && config.limit != 0.0;
  form->activation = static_cast<Activation>(config.activation);
  form->gate_softcap = rounded(config.gate_softcap);
  form->up_softcap = rounded(config.up_softcap);
  form->rounds_before_codes = config.quant_rounding != 0 && dtype_size(config.dtype) == 2;
  form->rounds_activation = config.product_rounding != 0 && dtype_size(config.dtype) == 2;
  form->has_options = form->limits_activation || form->rounds_activation || form->activation != Activation::kSwiglu ||
                      config.gate_softcap != 0.0 || config.up_softcap != 0.0;
  form->is_plain = form->alpha == 1.0 && config.limit == 0.0 && config.up_offset == 0.0 && form->out_scale == 1.0 &&
                   !form->has_options;
  return ROPE_STATUS_SUCCESS;
}

rope_status_t make_swiglu_call(const char *function, rope_dtype_t dtype, const GatingForm &form,
                               const swiglu_args_t &args, bool is_backward, SwigluCall *call) {
  ROPE_TRY(
      check_call_flags(function, args.flags, ROPE_FLAG_PROGRAMMATIC_LAUNCH, "ROPE_FLAG_PROGRAMMATIC_LAUNCH (0x1)"));
  if (!is_backward) ROPE_TRY(check_no_gradients(function, args));
  SwigluReader reader(function, dtype);
  SwigluOperands operands;
  ROPE_TRY(read_operands(function, dtype, form, args, is_backward, &reader, &operands));
  ROPE_TRY(reader.check_outputs());

  SwigluProblem *const first = &call->problems[0];
  *first = SwigluProblem{};
  first->dtype = dtype;
  first->form = form;
  first->is_programmatic = (args.flags & ROPE_FLAG_PROGRAMMATIC_LAUNCH) != 0;
  first->is_backward = is_backward;
  first->codes.dtype = dtype;
  call->count = 1;
  if (operands.in[kGate]->view.is_empty()) {
    first->ndim = 1;  // one axis of length 0: the product of the other lengths may not fit 64 bits
    return ROPE_STATUS_SUCCESS;
  }
  ROPE_TRY(reader.check_loops());
  const CodedOutputs &coded = operands.coded;
  const int words = operands.has_words() ? 1 : 0;
  call->count = words + coded.count;
  for (int i = 1; i < call->count; ++i) call->problems[i] = *first;
  if (words > 0) set_problem(operands, nullptr, first);
  for (int i = 0; i < coded.count; ++i) set_problem(operands, &coded.list[i], &call->problems[words + i]);
  return ROPE_STATUS_SUCCESS;
}

}  // namespace rope
