// SPDX-License-Identifier: Apache-2.0
// swiglu_operation.cpp - SwiGLU on CUDA: params from problem and plan
#include <string.h>

#include "backend/cuda/kernels.hpp"
#include "backend/cuda/kernels/swiglu_params.hpp"
#include "backend/cuda/operations.hpp"

namespace rope {

namespace {

// Launches the kernel of a variant for a vector width with the plan's grid.
template <typename Params>
rope_status_t launch_kernel(const char *function, rope_dtype_t dtype, int vector_elements, SwigluVariant variant,
                            const SwigluPlan &plan, Params *params, int32_t device_index, rope_stream_t stream) {
  const Kernel kernel = find_swiglu_kernel(dtype, vector_elements, variant);
  const Launch what = {kernel, plan.grid_x, plan.grid_y, plan.threads, 1, 0, plan.is_programmatic};
  return launch(function, what, params, device_index, stream);
}

// As launch_kernel. Params has what Plain lacks for kernels of options.
template <typename Plain, typename Params>
rope_status_t launch_form(const char *function, rope_dtype_t dtype, int vector_elements, SwigluVariant variant,
                          const SwigluPlan &plan, Params *params, int32_t device_index, rope_stream_t stream) {
  if (variant.formula > SwigluFormula::kForm) {
    return launch_kernel(function, dtype, vector_elements, variant, plan, params, device_index, stream);
  }
  Plain *const plain = params;
  return launch_kernel(function, dtype, vector_elements, variant, plan, plain, device_index, stream);
}

// Writes strides right-aligned, in bytes: the kernel's last axis is the problem's.
void kernel_strides(const int64_t *stride, int ndim, int64_t size, int64_t *target) {
  for (int axis = 0; axis < kMaxAxes; ++axis) {
    const int source = axis - (kMaxAxes - ndim);
    target[axis] = source >= 0 ? stride[source] * size : 0;
  }
}

// Returns the strides of the row axes and of the column axes, each right-aligned.
SwigluRowStrides row_kernel_strides(const SwigluProblem &problem, const int64_t *stride, int64_t size) {
  SwigluRowStrides result = {};
  const int rows = problem.num_row_axes, columns = problem.ndim - rows;
  for (int axis = 0; axis < rows; ++axis) result.row[kMaxRowAxes - rows + axis] = stride[axis] * size;
  for (int axis = 0; axis < columns; ++axis) {
    result.column[kMaxRowAxes - columns + axis] = stride[rows + axis] * size;
  }
  return result;
}

// Sets the biases, which all params of options have.
template <typename Params>
void set_biases(const SwigluProblem &problem, Params *params) {
  for (int i = kGate; i <= kUp; ++i) {
    params->bias[i] = problem.bias[i];
    params->is_bias_f32[i] = problem.bias_dtype[i] == ROPE_DTYPE_F32;
  }
}

template <typename Params>
void set_expert_rows(const SwigluProblem &problem, Params *params) {
  params->expert_rows = problem.expert_rows;
  params->is_expert_rows_64_bit = problem.expert_rows_dtype == ROPE_DTYPE_I64;
  params->expert_rows_stride = problem.expert_rows_stride;
}

// Sets the members of kernels with every option.
template <typename Params>
void set_options(const SwigluProblem &problem, Params *params) {
  params->options = {form_with_options_in<float>(problem.form), form_with_options_in<double>(problem.form)};
  set_biases(problem, params);
  set_expert_rows(problem, params);
  params->lookup.rows = problem.rows;
  params->lookup.factor_stride = problem.factor_stride * dtype_size(problem.row_scale_dtype);
  for (int i = kGate; i <= kUp; ++i) {
    params->lookup.bias_expert_stride[i] = problem.bias_expert_stride[i] * dtype_size(problem.bias_dtype[i]);
  }
}

rope_status_t run_swiglu_row_sums(const char *function, const SwigluProblem &problem, const SwigluPlan &plan,
                                  int32_t device_index, rope_stream_t stream) {
  const int64_t size = dtype_size(problem.dtype), scale_size = dtype_size(problem.row_scale_dtype);
  SwigluOptionsRowParams params = {};
  for (int i = 0; i < problem.num_inputs(); ++i) {
    params.in[i] = problem.in[i];
    params.in_stride[i] = row_kernel_strides(problem, problem.in_stride[i], size);
  }
  for (int i = 0; i < problem.num_outputs(); ++i) {
    params.out[i] = problem.out[i];
    params.out_stride[i] = row_kernel_strides(problem, problem.out_stride[i], size);
  }
  const auto copy_row_strides = [&](const int64_t *stride, int64_t element, int64_t *target) {
    memcpy(target, row_kernel_strides(problem, stride, element).row, kMaxRowAxes * sizeof *target);
  };
  params.row_scale = problem.row_scale;
  params.grad_row_scale = problem.grad_row_scale;
  params.num_rows = problem.num_rows;
  copy_row_strides(problem.row_scale_stride, scale_size, params.row_scale_stride);
  copy_row_strides(problem.grad_row_scale_stride, scale_size, params.grad_row_scale_stride);
  copy_row_strides(problem.row_index_stride, 1, params.row_index_stride);
  const SwigluRowStrides shape = row_kernel_strides(problem, problem.shape, 1);
  params.columns = problem.num_summed_elements();
  params.rows = problem.num_elements() / params.columns;
  params.has_narrow_columns = params.columns <= UINT32_MAX;
  for (int axis = 0; axis < kMaxRowAxes; ++axis) {
    params.row_shape[axis] = shape.row[axis] != 0 ? shape.row[axis] : 1;
    params.column_shape[axis] = shape.column[axis] != 0 ? shape.column[axis] : 1;
    const int64_t divisor = params.has_narrow_columns ? params.column_shape[axis] : 1;
    params.narrow_column_shape[axis] = FastDivmod::by(static_cast<uint32_t>(divisor));
  }
  params.has_outer_rows = problem.num_row_axes > 1;
  params.has_outer_columns = problem.ndim - problem.num_row_axes > 1;
  params.has_vectors = plan.vector_elements > 1;
  params.is_row_scale_f32 = problem.row_scale_dtype == ROPE_DTYPE_F32;
  params.is_num_rows_64_bit = problem.num_rows_dtype == ROPE_DTYPE_I64;
  params.form = problem.form;
  if (plan.formula > SwigluFormula::kForm) {
    set_options(problem, &params);
    for (int i = kGate; i <= kUp; ++i) {
      params.bias_stride[i] = row_kernel_strides(problem, problem.bias_stride[i], dtype_size(problem.bias_dtype[i]));
    }
    copy_row_strides(problem.expert_index_stride, 1, params.expert_index_stride);
    copy_row_strides(problem.expert_row_index_stride, 1, params.expert_row_index_stride);
  }
  // One kernel processes groups and single elements, so the width of its variant is 1.
  return launch_form<SwigluRowKernelParams>(function, problem.dtype, 1, {kSwigluRowSums, plan.formula, false}, plan,
                                            &params, device_index, stream);
}

// Returns the step from one row to the next, in bytes.
uint32_t row_bytes(const SwigluProblem &problem, const int64_t *stride) {
  return static_cast<uint32_t>(problem.ndim > 1 ? stride[0] * dtype_size(problem.dtype) : 0);
}

rope_status_t run_swiglu_matrix(const char *function, const SwigluProblem &problem, const SwigluPlan &plan,
                                int32_t device_index, rope_stream_t stream) {
  SwigluOptionsMatrixParams params = {};
  params.gate = problem.in[kGate];
  params.up = problem.in[kUp];
  params.out = problem.out[kOut];
  params.gate_row = row_bytes(problem, problem.in_stride[kGate]);
  params.up_row = row_bytes(problem, problem.in_stride[kUp]);
  params.out_row = row_bytes(problem, problem.out_stride[kOut]);
  params.num_vectors = static_cast<uint32_t>(plan.num_vectors);
  params.vectors_per_row = FastDivmod::by(static_cast<uint32_t>(plan.vectors_per_row));
  params.begins_last = plan.begins_last;
  params.form = form_in<float>(problem.form);
  const SwigluWork work = plan.rows_per_thread > 1 ? kSwigluMatrixRows
                          : plan.is_programmatic   ? kSwigluProgrammaticMatrix
                                                   : kSwigluMatrix;
  if (plan.formula > SwigluFormula::kForm) {
    params.options = form_with_options_in<float>(problem.form);
    params.rows = static_cast<uint32_t>(problem.ndim == 1 ? 1 : problem.shape[0]);
    params.rows_per_thread = plan.rows_per_thread;
    set_biases(problem, &params);
  }
  return launch_form<SwigluMatrixParams>(function, problem.dtype, plan.vector_elements, {work, plan.formula, false},
                                         plan, &params, device_index, stream);
}

rope_status_t run_swiglu_flat_gradients(const char *function, const SwigluProblem &problem, const SwigluPlan &plan,
                                        int32_t device_index, rope_stream_t stream) {
  SwigluFlatGradientParams params = {};
  for (int i = 0; i < kMaxSwigluInputs; ++i) params.in[i] = problem.in[i];
  for (int i = kGradGate; i <= kGradUp; ++i) params.out[i] = problem.out[i];
  params.num_vectors = static_cast<uint32_t>(plan.num_vectors);
  const SwigluVariant variant = {kSwigluFlatMatrixGradients, plan.formula, false};
  return launch_kernel(function, problem.dtype, plan.vector_elements, variant, plan, &params, device_index, stream);
}

rope_status_t run_swiglu_matrix_gradients(const char *function, const SwigluProblem &problem, const SwigluPlan &plan,
                                          int32_t device_index, rope_stream_t stream) {
  SwigluOptionsMatrixGradientParams params = {};
  for (int i = 0; i < kMaxSwigluInputs; ++i) {
    params.in[i] = problem.in[i];
    params.in_row[i] = row_bytes(problem, problem.in_stride[i]);
  }
  for (int i = 0; i < kMaxSwigluOutputs; ++i) {
    params.out[i] = problem.out[i];
    params.out_row[i] = row_bytes(problem, problem.out_stride[i]);
  }
  params.num_vectors = static_cast<uint32_t>(plan.num_vectors);
  params.vectors_per_row = FastDivmod::by(static_cast<uint32_t>(plan.vectors_per_row));
  SwigluWork work = kSwigluMatrixGradients;
  if (plan.formula != SwigluFormula::kPlain) {
    params.options = form_with_options_in<float>(problem.form);
    set_biases(problem, &params);
  } else if (plan.is_programmatic) {
    work = plan.begins_last ? kSwigluLateMatrixGradients : kSwigluProgrammaticMatrixGradients;
  }
  return launch_form<SwigluMatrixGradientParams>(function, problem.dtype, plan.vector_elements,
                                                 {work, plan.formula, false}, plan, &params, device_index, stream);
}

// Returns a tensor's strides by expert and by row of a plan that is_expert_matrix. `size` is that of an element.
SwigluExpertStrides part_strides(const SwigluProblem &problem, const int64_t *stride, int64_t size) {
  if (problem.expert_rows == nullptr) return {0, stride[0] * size};
  return {stride[0] * size, stride[1] * size};
}

// Sets the params of a plan that is_expert_matrix.
void set_parts(const SwigluProblem &problem, const SwigluPlan &plan, SwigluExpertParams *params) {
  const bool has_experts = problem.expert_rows != nullptr;
  const int64_t size = dtype_size(problem.dtype), scale_size = dtype_size(problem.row_scale_dtype);
  for (int i = 0; i < problem.num_inputs(); ++i) {
    params->in[i] = problem.in[i];
    params->in_stride[i] = part_strides(problem, problem.in_stride[i], size);
  }
  for (int i = 0; i < problem.num_outputs(); ++i) {
    params->out[i] = problem.out[i];
    params->out_stride[i] = part_strides(problem, problem.out_stride[i], size);
  }
  params->experts = static_cast<uint32_t>(has_experts ? problem.experts : problem.rows.experts);
  params->rows_per_expert = static_cast<uint32_t>(has_experts ? problem.rows_per_expert : problem.shape[0]);
  params->vectors_per_row = static_cast<uint32_t>(plan.vectors_per_row);
  params->parts_per_row = FastDivmod::by(static_cast<uint32_t>(plan.parts_per_row));
  params->row_scale = problem.row_scale;
  params->is_row_scale_f32 = problem.row_scale_dtype == ROPE_DTYPE_F32;
  params->row_scale_stride = part_strides(problem, problem.row_scale_stride, scale_size);
  params->options = form_with_options_in<float>(problem.form);
  set_biases(problem, params);
  set_expert_rows(problem, params);
  for (int i = kGate; i <= kUp; ++i) {
    const int64_t stride = has_experts ? problem.bias_stride[i][0] : problem.bias_expert_stride[i];
    params->bias_expert_stride[i] = stride * dtype_size(problem.bias_dtype[i]);
  }
  params->rows = problem.rows;
  params->factor_stride = problem.factor_stride * scale_size;
  params->num_rows = problem.num_rows;
  params->is_num_rows_64_bit = problem.num_rows_dtype == ROPE_DTYPE_I64;
}

rope_status_t run_swiglu_experts(const char *function, const SwigluProblem &problem, const SwigluPlan &plan,
                                 int32_t device_index, rope_stream_t stream) {
  SwigluExpertParams params = {};
  set_parts(problem, plan, &params);
  const SwigluWork work = problem.rows.is_present() ? problem.is_backward ? kSwigluLookupGradients : kSwigluLookup
                          : problem.is_backward     ? kSwigluExpertGradients
                                                    : kSwigluExperts;
  return launch_kernel(function, problem.dtype, plan.vector_elements, {work, plan.formula, false}, plan, &params,
                       device_index, stream);
}

rope_status_t run_swiglu_expert_codes(const char *function, const SwigluProblem &problem, const SwigluPlan &plan,
                                      int32_t device_index, rope_stream_t stream) {
  SwigluExpertCodeParams params = {};
  set_parts(problem, plan, &params);
  const SwigluCodes &codes = problem.codes;
  const SwigluExpertStrides stride = part_strides(problem, problem.out_stride[kOut], 1);
  const int64_t per_byte = codes.has_pairs() ? 2 : 1;
  params.out_stride[kOut] = {stride.expert / per_byte, stride.row / per_byte};
  params.scales_stride = part_strides(problem, codes.scales_stride, 1);
  params.matrices = problem.expert_rows != nullptr ? problem.experts : 1;
  params.lanes_log2 = plan.group_lanes_log2;
  params.has_padding = codes.has_padding();
  params.formula = code_formula_of(problem);
  params.codes = codes;
  const SwigluWork work = problem.expert_rows != nullptr ? kSwigluExpertCodes : kSwigluRowCodes;
  return launch_kernel(function, problem.dtype, plan.vector_elements, {work, plan.formula, false}, plan, &params,
                       device_index, stream);
}

// Sets the params of kernels that receive the strides of each axis.
void set_elements(const SwigluProblem &problem, const SwigluPlan &plan, SwigluOptionsParams *params) {
  const int64_t size = dtype_size(problem.dtype);
  for (int i = 0; i < problem.num_inputs(); ++i) {
    params->in[i] = problem.in[i];
    kernel_strides(problem.in_stride[i], problem.ndim, size, params->in_stride[i]);
  }
  for (int i = 0; i < problem.num_outputs(); ++i) {
    params->out[i] = problem.out[i];
    kernel_strides(problem.out_stride[i], problem.ndim, size, params->out_stride[i]);
  }
  for (int i = 0; i < kMaxSwigluInputs; ++i) params->in_row_stride[i] = params->in_stride[i][kMaxAxes - 2];
  for (int i = 0; i < kMaxSwigluOutputs; ++i) params->out_row_stride[i] = params->out_stride[i][kMaxAxes - 2];
  params->inputs = plan.inputs;
  params->gradients = plan.gradients;
  if (plan.inputs == GateUpLayout::kAlternatingUpFirst) params->in[kGate] = problem.in[kUp];
  if (plan.gradients == GateUpLayout::kAlternatingUpFirst) params->out[kGradGate] = problem.out[kGradUp];
  for (int axis = 0; axis < kMaxAxes; ++axis) {
    const int source = axis - (kMaxAxes - problem.ndim);
    params->shape[axis] = source >= 0 ? problem.shape[source] : 1;
  }
  params->columns = problem.shape[problem.ndim - 1];
  params->form = form_in<float>(problem.form);
  params->wide_form = problem.form;
  params->row_scale = problem.row_scale;
  params->is_row_scale_f32 = problem.row_scale_dtype == ROPE_DTYPE_F32;
  kernel_strides(problem.row_scale_stride, problem.ndim, dtype_size(problem.row_scale_dtype), params->row_scale_stride);
  params->num_rows = problem.num_rows;
  params->is_num_rows_64_bit = problem.num_rows_dtype == ROPE_DTYPE_I64;
  kernel_strides(problem.row_index_stride, problem.ndim, 1, params->row_index_stride);
  params->vectors_per_row = plan.vectors_per_row;
  params->num_vectors = plan.num_vectors;
  params->is_single_row = problem.ndim == 1;
  params->is_narrow = plan.num_vectors <= UINT32_MAX;
  params->narrow_vectors_per_row = FastDivmod::by(params->is_narrow ? static_cast<uint32_t>(plan.vectors_per_row) : 1);
  params->has_outer_axes = problem.ndim > 2;
  if (plan.formula > SwigluFormula::kForm) {
    set_options(problem, params);
    for (int i = kGate; i <= kUp; ++i) {
      const int64_t bias_size = dtype_size(problem.bias_dtype[i]);
      kernel_strides(problem.bias_stride[i], problem.ndim, bias_size, params->bias_stride[i]);
    }
    for (int axis = 0; axis < kMaxAxes && params->is_narrow; ++axis) {
      params->narrow_shape[axis] = FastDivmod::by(static_cast<uint32_t>(params->shape[axis]));
    }
    kernel_strides(problem.expert_index_stride, problem.ndim, 1, params->expert_index_stride);
    kernel_strides(problem.expert_row_index_stride, problem.ndim, 1, params->expert_row_index_stride);
  }
}

rope_status_t run_swiglu_code_groups(const char *function, const SwigluProblem &problem, const SwigluPlan &plan,
                                     int32_t device_index, rope_stream_t stream) {
  const SwigluCodes &codes = problem.codes;
  const auto of_rows = [&](const int64_t *stride, int64_t size) { return problem.ndim > 1 ? stride[0] * size : 0; };
  const int64_t of_scale = codes.scales.has_bytes() ? 1 : 4, size = dtype_size(problem.dtype);
  SwigluCodeGroupParams params = {};
  for (int i = kGate; i <= kUp; ++i) {
    params.in[i] = problem.in[i];
    params.in_row[i] = of_rows(problem.in_stride[i], size);
  }
  params.out = problem.out[kOut];
  params.out_row = of_rows(problem.out_stride[kOut], 1);
  const bool has_scales = codes.scales.is_present();
  params.scales = has_scales ? codes.scales.data : const_cast<char *>(codes.scale);
  params.scales_row = of_rows(codes.scales_stride, of_scale);
  params.scales_group = codes.scales.group_stride * of_scale;
  params.scales_four = codes.scales.four_stride * of_scale;
  params.scale_multiplies = codes.scale_multiplies;
  params.groups_per_row =
      FastDivmod::by(static_cast<uint32_t>(plan.vectors_per_row * plan.vector_elements / kSwigluCodeGroup));
  params.num_threads = static_cast<uint32_t>(num_code_matrix_threads(problem, plan));
  params.floor = codes.scales.floor;
  params.form = codes.scales.form;
  params.rounds_first = codes.rounds_first;
  const SwigluWork work = !has_scales               ? kSwigluCodeGroups
                          : plan.group_vectors == 1 ? kSwigluScaledCodeGroups
                                                    : kSwigluWideCodeGroups;
  const SwigluVariant variant = {work, plan.formula, false};
  return launch_kernel(function, problem.dtype, plan.vector_elements, variant, plan, &params, device_index, stream);
}

rope_status_t run_swiglu_code_matrix(const char *function, const SwigluProblem &problem, const SwigluPlan &plan,
                                     int32_t device_index, rope_stream_t stream) {
  // The strides of absent axes are 0.
  const int rows = problem.ndim - 2, experts = problem.ndim - 3;
  const auto strides = [&](const int64_t *stride, int64_t size) {
    return SwigluExpertStrides{experts >= 0 ? stride[experts] * size : 0, rows >= 0 ? stride[rows] * size : 0};
  };
  const SwigluCodes &codes = problem.codes;
  SwigluCodeMatrixParams params = {};
  for (int i = kGate; i <= kUp; ++i) {
    params.in[i] = problem.in[i];
    params.in_stride[i] = strides(problem.in_stride[i], dtype_size(problem.dtype));
  }
  params.out = problem.out[kOut];
  params.out_stride = strides(problem.out_stride[kOut], 1);
  if (codes.has_pairs()) params.out_stride = {params.out_stride.expert / 2, params.out_stride.row / 2};
  params.scales_stride = strides(codes.scales_stride, 1);
  const bool has_groups = codes.scales.is_present() && !plan.has_code_rows;
  params.num_threads = static_cast<uint32_t>(num_code_matrix_threads(problem, plan));
  params.vectors_per_row = static_cast<uint32_t>(plan.vectors_per_row);
  params.units_per_row =
      FastDivmod::by(has_groups ? static_cast<uint32_t>(codes.scales.groups) : params.vectors_per_row);
  params.has_experts = experts >= 0;
  params.rows = static_cast<uint32_t>(rows >= 0 ? problem.shape[rows] : 1);
  params.rows_per_thread = plan.rows_per_thread;
  params.spans_per_matrix = FastDivmod::by(static_cast<uint32_t>(num_code_spans(problem, plan)));
  params.rows_there = problem.expert_rows != nullptr ? problem.expert_rows : problem.num_rows;
  const rope_dtype_t dtype = problem.expert_rows != nullptr ? problem.expert_rows_dtype : problem.num_rows_dtype;
  params.is_rows_there_64_bit = dtype == ROPE_DTYPE_I64;
  params.rows_there_stride = problem.expert_rows_stride;
  params.form = form_in<float>(problem.form);
  params.codes = codes;
  params.has_padding = codes.has_padding();
  params.lanes_log2 = plan.group_lanes_log2;
  const SwigluWork work = plan.has_code_rows        ? kSwigluCodeRows
                          : !has_groups             ? kSwigluCodeMatrix
                          : plan.group_vectors == 1 ? kSwigluScaledCodeMatrix
                                                    : kSwigluScaledCodeSpans;
  const SwigluVariant variant = {work, plan.formula, false};
  return launch_kernel(function, problem.dtype, plan.vector_elements, variant, plan, &params, device_index, stream);
}

// Moves the axis of rows to the end, so that a group of rows is a run of elements.
SwigluProblem with_rows_last(const SwigluProblem &problem) {
  SwigluProblem turned = problem;
  const int last = problem.ndim - 1, row_axis = problem.row_axis() < 0 ? last : problem.row_axis();
  const auto turn = [&](int64_t *of_axes) {
    const int64_t of_rows = of_axes[row_axis];
    for (int axis = row_axis; axis < last; ++axis) of_axes[axis] = of_axes[axis + 1];
    of_axes[last] = of_rows;
  };
  for (auto &stride : turned.in_stride) turn(stride);
  for (auto &stride : turned.out_stride) turn(stride);
  for (auto &stride : turned.bias_stride) turn(stride);
  int64_t *const others[] = {turned.shape,
                             turned.row_scale_stride,
                             turned.row_index_stride,
                             turned.expert_index_stride,
                             turned.expert_row_index_stride,
                             turned.codes.scales_stride,
                             turned.codes.scale_row_stride};
  for (int64_t *stride : others) turn(stride);
  return turned;
}

rope_status_t run_swiglu_codes(const char *function, const SwigluProblem &given, const SwigluPlan &plan,
                               int32_t device_index, rope_stream_t stream) {
  const SwigluProblem problem = given.codes.has_row_groups ? with_rows_last(given) : given;
  const int output = problem.coded_output();
  SwigluCodesParams params = {};
  set_elements(problem, plan, &params);
  params.output = output;
  params.formula = code_formula_of(problem);
  kernel_strides(problem.out_stride[output], problem.ndim, 1, params.out_stride[output]);
  params.codes = problem.codes;
  params.num_elements = problem.num_elements();
  params.unit_elements = plan.unit_elements;
  kernel_strides(problem.codes.scales_stride, problem.ndim, 1, params.scales_stride);
  kernel_strides(problem.codes.scale_row_stride, problem.ndim, 1, params.scale_row_stride);
  const SwigluWork work = problem.is_backward ? kSwigluGradientCodes : kSwigluCodes;
  return launch_kernel(function, problem.dtype, 1, {work, SwigluFormula::kOptions, false}, plan, &params, device_index,
                       stream);
}

rope_status_t run_swiglu_code_blocks(const char *function, const SwigluCall &call, const SwigluPlan &plan,
                                     int32_t device_index, rope_stream_t stream) {
  SwigluCodeBlockParams params = {};
  for (int i = 0; i < call.count; ++i) {
    const SwigluProblem &problem = call.problems[i];
    if (!problem.has_codes()) continue;
    const int output = problem.coded_output();
    SwigluCodeBlockOutput *const to = &params.to[output][problem.codes.has_row_groups];
    to->out = problem.out[output];
    to->row_stride = problem.out_stride[output][0];
    to->codes = problem.codes;
  }
  const SwigluProblem &problem = call.problems[call.count - 1];
  for (int i = 0; i < problem.num_inputs(); ++i) {
    params.in[i] = problem.in[i];
    params.in_row_stride[i] = problem.in_stride[i][0] * dtype_size(problem.dtype);
  }
  params.rows = static_cast<uint32_t>(problem.shape[0]);
  params.columns = static_cast<uint32_t>(problem.shape[1]);
  params.num_warps = static_cast<uint32_t>(plan.num_vectors);
  params.warps_per_row = FastDivmod::by(static_cast<uint32_t>(plan.vectors_per_row));
  params.rounds_first = problem.codes.rounds_first;
  params.form = form_in<float>(problem.form);
  const SwigluWork work = problem.is_backward ? kSwigluGradientCodeBlocks : kSwigluCodeBlocks;
  return launch_kernel(function, problem.dtype, plan.vector_elements, {work, plan.formula, false}, plan, &params,
                       device_index, stream);
}

rope_status_t run_problem(const char *function, const SwigluProblem &problem, const SwigluPlan &plan,
                          int32_t device_index, rope_stream_t stream) {
  if (problem.grad_row_scale != nullptr) return run_swiglu_row_sums(function, problem, plan, device_index, stream);
  if (problem.has_codes()) {
    if (plan.is_expert_matrix) return run_swiglu_expert_codes(function, problem, plan, device_index, stream);
    if (plan.has_plain_groups) return run_swiglu_code_groups(function, problem, plan, device_index, stream);
    return plan.is_matrix ? run_swiglu_code_matrix(function, problem, plan, device_index, stream)
                          : run_swiglu_codes(function, problem, plan, device_index, stream);
  }
  if (plan.is_expert_matrix) return run_swiglu_experts(function, problem, plan, device_index, stream);
  if (plan.is_flat) return run_swiglu_flat_gradients(function, problem, plan, device_index, stream);
  if (plan.is_matrix) {
    return problem.is_backward ? run_swiglu_matrix_gradients(function, problem, plan, device_index, stream)
                               : run_swiglu_matrix(function, problem, plan, device_index, stream);
  }
  SwigluOptionsParams params = {};
  set_elements(problem, plan, &params);
  const SwigluWork work = !problem.is_backward                     ? kSwigluForward
                          : problem.out[kRecomputedOut] != nullptr ? kSwigluGradientsAndOut
                                                                   : kSwigluGradients;
  const SwigluVariant variant = {work, plan.formula, plan.is_alternating()};
  return launch_form<SwigluKernelParams>(function, problem.dtype, plan.vector_elements, variant, plan, &params,
                                         device_index, stream);
}

}  // namespace

void visit_swiglu_kernels(rope_dtype_t dtype, KernelVisitor visit) {
  for (const int elements : kVectorElements) {
    for (int work = kSwigluForward; work < kNumSwigluWorks; ++work) {
      for (int formula = 0; formula < kNumSwigluFormulas; ++formula) {
        SwigluVariant variant = {static_cast<SwigluWork>(work), static_cast<SwigluFormula>(formula), false};
        visit(find_swiglu_kernel(dtype, elements, variant));
        variant.is_alternating = true;
        visit(find_swiglu_kernel(dtype, elements, variant));
      }
    }
  }
}

rope_status_t run_cuda_swiglu(const char *function, const SwigluCall &call, const SwigluCallPlan &plan,
                              int32_t device_index, rope_stream_t stream) {
  for (int i = 0; i < call.count; ++i) {
    if (plan.has_blocks && call.problems[i].has_codes()) {
      return run_swiglu_code_blocks(function, call, plan.blocks, device_index, stream);
    }
    ROPE_TRY(run_problem(function, call.problems[i], plan.plans[i], device_index, stream));
  }
  return ROPE_STATUS_SUCCESS;
}

}  // namespace rope
