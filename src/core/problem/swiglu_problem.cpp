// swiglu_problem.cpp - validates SwiGLU configs and calls
#include "core/problem/swiglu_problem.hpp"

#include <math.h>

#include "core/problem/descriptor_checks.hpp"
#include "core/problem/overlap.hpp"

namespace rope {

namespace {

constexpr rope_status_t kInvalid = ROPE_STATUS_INVALID_ARGUMENT;
constexpr rope_status_t kUnsupported = ROPE_STATUS_NOT_SUPPORTED;

struct Operand {
  Operand(const char *name, const rope_tensor_t &given, bool is_needed = false)
      : field(name), tensor(given), is_required(is_needed) {}

  const char *field;
  const rope_tensor_t &tensor;
  bool is_required;
  View view;  // unset until it is read: clearing all of them would take longer
};

rope_status_t read_operand(const char *function, rope_dtype_t dtype, Operand *operand, const Operand &gate) {
  ROPE_TRY(read_view(function, operand->field, operand->tensor, &operand->view));
  operand->view.forget_unused_strides();
  const View &view = operand->view;
  if (view.is_absent()) {
    if (!operand->is_required) return ROPE_STATUS_SUCCESS;
    return fail(kInvalid, "%s: %s is absent: it is required", function, operand->field);
  }
  if (view.dtype != dtype) {
    return fail(kInvalid, "%s: %s.dtype is %s: it must be the descriptor's, %s", function, operand->field,
                dtype_name(view.dtype), dtype_name(dtype));
  }
  return check_same_shape(function, operand->field, view, gate.field, gate.view);
}

rope_status_t read_row_scale(const char *function, rope_dtype_t dtype, Operand *operand, const Operand &gate) {
  ROPE_TRY(read_view(function, operand->field, operand->tensor, &operand->view));
  operand->view.forget_unused_strides();
  const View &view = operand->view;
  if (view.is_absent()) return ROPE_STATUS_SUCCESS;
  if (view.dtype != ROPE_DTYPE_F32 && view.dtype != dtype) {
    return fail(kInvalid, "%s: %s.dtype is %s: it must be F32 or the descriptor's, %s", function, operand->field,
                dtype_name(view.dtype), dtype_name(dtype));
  }
  if (view.ndim >= gate.view.ndim) {
    return fail(kInvalid, "%s: %s.ndim is %d: it must be below that of %s, %d", function, operand->field, view.ndim,
                gate.field, gate.view.ndim);
  }
  View rows = gate.view;
  rows.ndim = view.ndim;
  return check_same_shape(function, operand->field, view, gate.field, rows);
}

rope_status_t read_grad_row_scale(const char *function, Operand *operand, const Operand &row_scale) {
  ROPE_TRY(read_view(function, operand->field, operand->tensor, &operand->view));
  operand->view.forget_unused_strides();
  const View &view = operand->view;
  if (view.is_absent()) return ROPE_STATUS_SUCCESS;
  if (row_scale.view.is_absent()) {
    return fail(kInvalid, "%s: %s is set and row_scale is absent: a gradient needs its factor", function,
                operand->field);
  }
  if (view.dtype != row_scale.view.dtype) {
    return fail(kInvalid, "%s: %s.dtype is %s: it must be that of %s, %s", function, operand->field,
                dtype_name(view.dtype), row_scale.field, dtype_name(row_scale.view.dtype));
  }
  return check_same_shape(function, operand->field, view, row_scale.field, row_scale.view);
}

rope_status_t read_num_rows(const char *function, Operand *operand) {
  ROPE_TRY(read_view(function, operand->field, operand->tensor, &operand->view));
  operand->view.forget_unused_strides();
  const View &view = operand->view;
  if (view.is_absent()) return ROPE_STATUS_SUCCESS;
  if (view.dtype != ROPE_DTYPE_I32 && view.dtype != ROPE_DTYPE_I64) {
    return fail(kInvalid, "%s: %s.dtype is %s: it must be I32 or I64", function, operand->field,
                dtype_name(view.dtype));
  }
  if (view.ndim != 1) {
    return fail(kInvalid, "%s: %s.ndim is %d: it must be 1", function, operand->field, view.ndim);
  }
  if (view.shape[0] != 1) {
    return fail(kInvalid, "%s: %s.shape[0] is %lld: it must be 1", function, operand->field,
                static_cast<long long>(view.shape[0]));
  }
  return ROPE_STATUS_SUCCESS;
}

// Every output is exactly one of the inputs or shares nothing with anything.
rope_status_t check_overlaps(const char *function, const Operand *inputs, int num_inputs, const Operand *outputs,
                             int num_outputs) {
  for (int i = 0; i < num_outputs; ++i) {
    const Operand &output = outputs[i];
    if (output.view.is_absent()) continue;
    ROPE_TRY(check_output_strides(function, output.field, output.view));
    const Operand *shared = nullptr;
    for (int j = 0; j < num_inputs; ++j) {
      const bool is_in_place = is_same_view(output.view, inputs[j].view);
      if (!is_in_place && views_overlap(output.view, inputs[j].view)) shared = &inputs[j];
    }
    for (int j = i + 1; j < num_outputs; ++j) {
      if (views_overlap(output.view, outputs[j].view)) shared = &outputs[j];
    }
    if (shared != nullptr) {
      return fail(kInvalid,
                  "%s: %s at %p shares elements with %s at %p: an output must be one of the inputs or disjoint",
                  function, output.field, static_cast<void *>(output.view.data), shared->field,
                  static_cast<void *>(shared->view.data));
    }
  }
  return ROPE_STATUS_SUCCESS;
}

rope_status_t check_loops(const char *function, const Operand *inputs, int num_inputs, const Operand *outputs,
                          int num_outputs) {
  LoopLimit loops;
  for (int i = 0; i < num_inputs; ++i) loops.add(inputs[i].field, inputs[i].view);
  for (int i = 0; i < num_outputs; ++i) loops.add(outputs[i].field, outputs[i].view);
  return loops.check(function);
}

// The view of gate's first index.
constexpr int64_t kRowIndexStride[kMaxAxes] = {1, 0, 0, 0};

// The distinct views of a problem, with strides in one table so that axes can be sorted and merged together.
class AxisMerger {
 public:
  AxisMerger(SwigluProblem *problem, const View &gate) : problem_(problem) {
    problem->ndim = 0;
    for (int axis = 0; axis < gate.ndim; ++axis) {
      if (gate.shape[axis] != 1) order_[problem->ndim++] = axis;
    }
  }

  // Along the axes that a view lacks its strides are 0.
  void add_strides(const int64_t *source, int64_t *target) {
    rows_[count_].source = source;
    rows_[count_++].target = target;
  }

  // Slowest first, by the strides of an output, which are never 0.
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
  // True if, in every view, the step of merged axis `outer` spans exactly the `length` elements of `axis`.
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
  Row rows_[int{kMaxSwigluInputs} + int{kMaxSwigluOutputs} + 3];  // and row_scale, grad_row_scale, the row index
  int count_ = 0;
};

}  // namespace

int64_t SwigluProblem::num_elements() const {
  int64_t count = 1;
  for (int axis = 0; axis < ndim; ++axis) count *= shape[axis];
  return count;
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
    if (!(fabs(factor.value) <= static_cast<double>(kLargestFloat)) || vanishes) {
      return fail(kInvalid, "%s: %s is %g: it must be a finite number in fp32, and 0 only where it is given as 0",
                  function, factor.field, factor.value);
    }
  }
  if (config.limit < 0.0) {
    return fail(kInvalid, "%s: limit is %g: it must be above 0, or 0 for none", function, config.limit);
  }
  const auto rounded = [&](double value) {
    return config.dtype == ROPE_DTYPE_F64 ? value : static_cast<double>(static_cast<float>(value));
  };
  form->alpha = config.alpha != 0.0 ? rounded(config.alpha) : 1.0;
  form->limit = config.limit != 0.0 ? rounded(config.limit) : static_cast<double>(INFINITY);
  form->up_offset = rounded(config.up_offset);
  form->out_scale = config.out_scale != 0.0 ? rounded(config.out_scale) : 1.0;
  form->is_plain = form->alpha == 1.0 && config.limit == 0.0 && config.up_offset == 0.0 && form->out_scale == 1.0;
  return ROPE_STATUS_SUCCESS;
}

rope_status_t make_swiglu_problem(const char *function, rope_dtype_t dtype, const GatingForm &form,
                                  const swiglu_args_t &args, bool is_backward, SwigluProblem *problem) {
  *problem = SwigluProblem{};
  problem->dtype = dtype;
  problem->form = form;
  problem->is_backward = is_backward;
  ROPE_TRY(check_call_flags(function, args.flags));
  problem->is_programmatic = (args.flags & ROPE_FLAG_PROGRAMMATIC_LAUNCH) != 0;

  Operand inputs[] = {{"gate", args.gate, true},
                      {"up", args.up, true},
                      {"grad_out", args.grad_out, true},
                      {"row_scale", args.row_scale},
                      {"num_rows", args.num_rows}};
  Operand &row_scale = inputs[kMaxSwigluInputs], &num_rows = inputs[kMaxSwigluInputs + 1];
  Operand forward_outputs[] = {{"out", args.out, true}};
  Operand backward_outputs[] = {{"grad_gate", args.grad_gate},
                                {"grad_up", args.grad_up},
                                {"out", args.out},
                                {"grad_row_scale", args.grad_row_scale}};
  Operand *outputs = is_backward ? backward_outputs : forward_outputs;
  Operand &grad_row_scale = backward_outputs[kMaxSwigluOutputs];

  if (!is_backward) {
    Operand *const refused_here[] = {&inputs[kGradOut], &backward_outputs[kGradGate], &backward_outputs[kGradUp],
                                     &grad_row_scale};
    for (Operand *refused : refused_here) {
      if (refused->tensor.ndim != 0) {
        return fail(kInvalid, "%s: %s is set: it belongs to swiglu_backward", function, refused->field);
      }
      ROPE_TRY(read_view(function, refused->field, refused->tensor, &refused->view));
    }
  }

  const Operand &gate = inputs[kGate];
  const int num_inputs = problem->num_inputs(), num_outputs = problem->num_outputs();
  for (int i = 0; i < num_inputs; ++i) ROPE_TRY(read_operand(function, dtype, &inputs[i], gate));
  for (int i = 0; i < num_outputs; ++i) ROPE_TRY(read_operand(function, dtype, &outputs[i], gate));
  ROPE_TRY(read_row_scale(function, dtype, &row_scale, gate));
  ROPE_TRY(read_num_rows(function, &num_rows));
  if (is_backward) {
    ROPE_TRY(read_grad_row_scale(function, &grad_row_scale, row_scale));
    if (outputs[kGradGate].view.is_absent() && outputs[kGradUp].view.is_absent() && grad_row_scale.view.is_absent()) {
      return fail(kInvalid, "%s: grad_gate, grad_up and grad_row_scale are absent: one of them is required", function);
    }
  }
  const int num_given_inputs = kMaxSwigluInputs + 2, num_given_outputs = is_backward ? kMaxSwigluOutputs + 1 : 1;
  ROPE_TRY(check_overlaps(function, inputs, num_given_inputs, outputs, num_given_outputs));

  if (gate.view.is_empty()) {
    problem->ndim = 1;  // of length 0; products of the other lengths may not even fit 64 bits
    return ROPE_STATUS_SUCCESS;
  }
  ROPE_TRY(check_loops(function, inputs, num_given_inputs, outputs, num_given_outputs));
  AxisMerger merger(problem, gate.view);
  for (int i = 0; i < num_inputs; ++i) {
    problem->in[i] = inputs[i].view.data;
    merger.add_strides(inputs[i].view.stride, problem->in_stride[i]);
  }
  const int64_t *output_stride = nullptr;
  for (int i = 0; i < num_outputs; ++i) {
    problem->out[i] = outputs[i].view.data;
    if (outputs[i].view.is_absent()) continue;
    merger.add_strides(outputs[i].view.stride, problem->out_stride[i]);
    if (output_stride == nullptr) output_stride = outputs[i].view.stride;
  }
  if (!row_scale.view.is_absent()) {
    problem->row_scale = row_scale.view.data;
    problem->row_scale_dtype = row_scale.view.dtype;
    merger.add_strides(row_scale.view.stride, problem->row_scale_stride);
  }
  if (!num_rows.view.is_absent()) {
    problem->num_rows = num_rows.view.data;
    problem->num_rows_dtype = num_rows.view.dtype;
    merger.add_strides(kRowIndexStride, problem->row_index_stride);
  }
  if (grad_row_scale.view.is_absent()) {
    merger.sort_by_stride(output_stride);
  } else {
    problem->grad_row_scale = grad_row_scale.view.data;
    merger.add_strides(grad_row_scale.view.stride, problem->grad_row_scale_stride);
  }
  merger.merge(gate.view.shape);
  // An output has a stride other than 0 along each of its own axes.
  while (problem->num_row_axes < problem->ndim && problem->grad_row_scale_stride[problem->num_row_axes] != 0) {
    ++problem->num_row_axes;
  }
  return ROPE_STATUS_SUCCESS;
}

}  // namespace rope
