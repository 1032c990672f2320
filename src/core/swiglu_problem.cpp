// swiglu_problem.cpp - validates SwiGLU configs and calls
#include "core/swiglu_problem.hpp"

#include <math.h>

#include "core/descriptor_checks.hpp"

namespace rope {

namespace {

constexpr rope_status_t kInvalid = ROPE_STATUS_INVALID_ARGUMENT;
constexpr rope_status_t kUnsupported = ROPE_STATUS_NOT_SUPPORTED;

struct Operand {
  const char *field;
  const rope_tensor_t *tensor;
  bool is_required;
  View view;
};

rope_status_t read_operand(const char *function, rope_dtype_t dtype, Operand *operand, const Operand &gate) {
  ROPE_TRY(read_view(function, operand->field, *operand->tensor, &operand->view));
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

// The distinct views of a problem, with strides in one table so that axes can be sorted and merged together.
class AxisMerger {
 public:
  AxisMerger(SwigluProblem *problem, const View &gate) : problem_(problem) {
    problem->ndim = 0;
    for (int axis = 0; axis < gate.ndim; ++axis) {
      if (gate.shape[axis] != 1) order_[problem->ndim++] = axis;
    }
  }

  void add_strides(const View &view, int64_t *target) {
    rows_[count_].source = view.stride;
    rows_[count_++].target = target;
  }

  void merge(const int64_t *shape, int first_output) {
    sort_by_stride(rows_[first_output].source);
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

  // True if, in every view, the step of merged axis `outer` spans exactly the `length` elements of `axis`.
  bool continues(int outer, int axis, int64_t length) const {
    for (int row = 0; row < count_; ++row) {
      if (rows_[row].target[outer] != rows_[row].source[axis] * length) return false;
    }
    return true;
  }

  static int64_t magnitude(int64_t value) { return value < 0 ? -value : value; }

  struct Row {
    const int64_t *source;
    int64_t *target;
  };

  SwigluProblem *problem_;
  int order_[kMaxAxes] = {};
  Row rows_[kMaxSwigluInputs + kMaxSwigluOutputs] = {};
  int count_ = 0;
};

}  // namespace

int64_t SwigluProblem::num_elements() const {
  int64_t count = 1;
  for (int axis = 0; axis < ndim; ++axis) count *= shape[axis];
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
  form->alpha = config.alpha != 0.0 ? static_cast<float>(config.alpha) : 1.0f;
  form->limit = config.limit != 0.0 ? static_cast<float>(config.limit) : INFINITY;
  form->up_offset = static_cast<float>(config.up_offset);
  form->out_scale = config.out_scale != 0.0 ? static_cast<float>(config.out_scale) : 1.0f;
  form->is_plain = form->alpha == 1.0f && config.limit == 0.0 && config.up_offset == 0.0 && form->out_scale == 1.0f;
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

  Operand inputs[] = {
      {"gate", &args.gate, true, {}}, {"up", &args.up, true, {}}, {"grad_out", &args.grad_out, true, {}}};
  Operand forward_outputs[] = {{"out", &args.out, true, {}}};
  Operand backward_outputs[] = {
      {"grad_gate", &args.grad_gate, false, {}}, {"grad_up", &args.grad_up, false, {}}, {"out", &args.out, false, {}}};
  Operand *outputs = is_backward ? backward_outputs : forward_outputs;

  // Fields that this direction or this version does not take.
  struct Refused {
    const char *field;
    const rope_tensor_t *tensor;
    bool is_later;
  };
  const Refused always[] = {{"row_scale", &args.row_scale, true},
                            {"num_rows", &args.num_rows, true},
                            {"grad_row_scale", &args.grad_row_scale, true}};
  const Refused in_forward[] = {
      {"grad_out", &args.grad_out, false}, {"grad_gate", &args.grad_gate, false}, {"grad_up", &args.grad_up, false}};
  const auto refuse = [&](const Refused &refused) -> rope_status_t {
    if (refused.tensor->ndim != 0) {
      return refused.is_later ? fail(kUnsupported, "%s: %s is set: not served yet", function, refused.field)
                              : fail(kInvalid, "%s: %s is set: it belongs to swiglu_backward", function, refused.field);
    }
    View absent;
    return read_view(function, refused.field, *refused.tensor, &absent);
  };
  for (const Refused &refused : always) ROPE_TRY(refuse(refused));
  if (!is_backward) {
    for (const Refused &refused : in_forward) ROPE_TRY(refuse(refused));
  }

  const int num_inputs = problem->num_inputs(), num_outputs = problem->num_outputs();
  for (int i = 0; i < num_inputs; ++i) ROPE_TRY(read_operand(function, dtype, &inputs[i], inputs[kGate]));
  for (int i = 0; i < num_outputs; ++i) ROPE_TRY(read_operand(function, dtype, &outputs[i], inputs[kGate]));
  if (is_backward && outputs[kGradGate].view.is_absent() && outputs[kGradUp].view.is_absent()) {
    return fail(kInvalid, "%s: grad_gate and grad_up are absent: one of them is required", function);
  }
  ROPE_TRY(check_overlaps(function, inputs, num_inputs, outputs, num_outputs));

  if (inputs[kGate].view.is_empty()) {
    problem->ndim = 1;  // of length 0; products of the other lengths may not even fit 64 bits
    return ROPE_STATUS_SUCCESS;
  }
  AxisMerger merger(problem, inputs[kGate].view);
  for (int i = 0; i < num_inputs; ++i) {
    problem->in[i] = inputs[i].view.data;
    merger.add_strides(inputs[i].view, problem->in_stride[i]);
  }
  for (int i = 0; i < num_outputs; ++i) {
    problem->out[i] = outputs[i].view.data;
    if (!outputs[i].view.is_absent()) merger.add_strides(outputs[i].view, problem->out_stride[i]);
  }
  merger.merge(inputs[kGate].view.shape, num_inputs);
  return ROPE_STATUS_SUCCESS;
}

}  // namespace rope
