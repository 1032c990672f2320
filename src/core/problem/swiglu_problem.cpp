// SPDX-License-Identifier: Apache-2.0
// swiglu_problem.cpp - makes canonical problems of a SwiGLU call
#include "core/problem/swiglu_problem.hpp"

#include "core/problem/descriptor_checks.hpp"
#include "core/problem/swiglu_operands.hpp"

namespace rope {

namespace {

// Strides that give gate's first index and its second one.
constexpr int64_t kRowIndexStride[kMaxAxes] = {1, 0, 0, 0};
constexpr int64_t kSecondIndexStride[kMaxAxes] = {0, 1, 0, 0};

// Collects the strides of all views of a problem in one table, so that axes can be sorted and merged together.
class AxisMerger {
 public:
  AxisMerger(SwigluProblem *problem, const View &gate) : problem_(problem) {
    rows_.clear();
    problem->ndim = 0;
    for (int axis = 0; axis < gate.ndim; ++axis) {
      if (gate.shape[axis] != 1) order_[problem->ndim++] = axis;
    }
  }

  // Adds the strides of a view. Along axes that the view lacks they are 0.
  void add_strides(const int64_t *source, int64_t *target) {
    if (!rows_.add({source, target})) has_room_ = false;
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

  // Returns false if there were more views than there is room for.
  bool merge(const int64_t *shape) {
    if (!has_room_) return false;
    int used = 0;
    for (int i = 0; i < problem_->ndim; ++i) {
      const int axis = order_[i];
      if (used > 0 && continues(used - 1, axis, shape[axis])) {
        problem_->shape[used - 1] *= shape[axis];
        for (const Row &row : rows_) row.target[used - 1] = row.source[axis];
      } else {
        problem_->shape[used] = shape[axis];
        for (const Row &row : rows_) row.target[used] = row.source[axis];
        ++used;
      }
    }
    if (used == 0) {
      problem_->shape[0] = 1;
      for (const Row &row : rows_) row.target[0] = 1;
      used = 1;
    }
    problem_->ndim = used;
    return true;
  }

 private:
  // Whether in every view the step of merged axis `outer` spans exactly the `length` elements of `axis`.
  bool continues(int outer, int axis, int64_t length) const {
    for (const Row &row : rows_) {
      if (row.target[outer] != row.source[axis] * length) return false;
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
  FixedList<Row, int{kMaxSwigluInputs} + int{kMaxSwigluOutputs} + 9> rows_;
  bool has_room_ = true;
};

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

// Sets a problem of all outputs of words, or of one output of codes.
rope_status_t set_problem(const char *function, const SwigluOperands &operands, const CodedOutput *coded,
                          SwigluProblem *problem) {
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
  if (!merger.merge(gate.shape)) {
    return fail(ROPE_STATUS_INTERNAL_ERROR, "%s: gate has axes that more tensors follow than a call may have",
                function);
  }
  // An output has a stride other than 0 along each of its own axes.
  while (problem->num_row_axes < problem->ndim && problem->grad_row_scale_stride[problem->num_row_axes] != 0) {
    ++problem->num_row_axes;
  }
  return ROPE_STATUS_SUCCESS;
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

rope_status_t make_swiglu_call(const char *function, rope_dtype_t dtype, const GatingForm &form,
                               const swiglu_args_t &args, bool is_backward, SwigluCall *call) {
  ROPE_TRY(
      check_call_flags(function, args.flags, ROPE_FLAG_PROGRAMMATIC_LAUNCH, "ROPE_FLAG_PROGRAMMATIC_LAUNCH (0x1)"));
  SwigluOperands operands(function);
  ROPE_TRY(read_swiglu_operands(function, dtype, form, args, is_backward, &operands));

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
  ROPE_TRY(operands.all.check_loops());
  const CodedOutputs &coded = operands.coded;
  const int words = operands.has_words() ? 1 : 0;
  static_assert(kMaxSwigluProblems == 1 + kMaxSwigluCodes, "");
  call->count = words + coded.count();
  for (int i = 1; i < call->count; ++i) call->problems[i] = *first;
  if (words > 0) ROPE_TRY(set_problem(function, operands, nullptr, first));
  for (int i = 0; i < coded.count(); ++i) {
    ROPE_TRY(set_problem(function, operands, &coded[i], &call->problems[words + i]));
  }
  return ROPE_STATUS_SUCCESS;
}

}  // namespace rope
