// SPDX-License-Identifier: Apache-2.0
// swiglu_plan.cpp - vector width and grid of a SwiGLU call; swiglu_codes_plan.cpp has those of outputs of codes
#include "plan/swiglu_plan.hpp"

#include "core/problem/view.hpp"
#include "plan/launch_shape.hpp"
#include "plan/swiglu_plan_parts.hpp"
#include "plan/tuning.hpp"

namespace rope {

namespace {

// The addresses and strides of gate and up, or of their gradients.
struct GateAndUp {
  const char *gate, *up;
  const int64_t *gate_stride, *up_stride;
};

GateAndUp inputs_of(const SwigluProblem &problem) {
  return {problem.in[kGate], problem.in[kUp], problem.in_stride[kGate], problem.in_stride[kUp]};
}

GateAndUp gradients_of(const SwigluProblem &problem) {
  if (!problem.is_backward) return {};
  return {problem.out[kGradGate], problem.out[kGradUp], problem.out_stride[kGradGate], problem.out_stride[kGradUp]};
}

GateUpLayout layout_of(const SwigluProblem &problem, const GateAndUp &tensors) {
  if (tensors.gate == nullptr || tensors.up == nullptr) return GateUpLayout::kSeparate;
  for (int axis = 0; axis < problem.ndim; ++axis) {
    if (tensors.gate_stride[axis] != tensors.up_stride[axis]) return GateUpLayout::kSeparate;
  }
  if (tensors.gate_stride[problem.ndim - 1] != 2) return GateUpLayout::kSeparate;
  const int64_t size = dtype_size(problem.dtype);
  if (tensors.up == tensors.gate + size) return GateUpLayout::kAlternating;
  if (tensors.gate == tensors.up + size) return GateUpLayout::kAlternatingUpFirst;
  return GateUpLayout::kSeparate;
}

// Bytes that the width of a vector must divide: for separate tensors, and for two that alternate.
struct VectorLimits {
  VectorBytes bytes, alternating_bytes;

  void add(const SwigluProblem &problem, const void *data, const int64_t *stride) {
    if (data == nullptr) return;
    add_outer_axes(problem, data, stride, &bytes);
    // Any last stride but 1 permits single elements only.
    if (stride[problem.ndim - 1] != 1) bytes.add(dtype_size(problem.dtype));
  }

  void add(const SwigluProblem &problem, GateUpLayout layout, const GateAndUp &tensors) {
    if (layout == GateUpLayout::kSeparate) {
      add(problem, tensors.gate, tensors.gate_stride);
      add(problem, tensors.up, tensors.up_stride);
    } else {
      const char *first = layout == GateUpLayout::kAlternating ? tensors.gate : tensors.up;
      add_outer_axes(problem, first, tensors.gate_stride, &alternating_bytes);
    }
  }

 private:
  static void add_outer_axes(const SwigluProblem &problem, const void *data, const int64_t *stride,
                             VectorBytes *bytes) {
    bytes->add(data);
    for (int axis = 0; axis < problem.ndim - 1; ++axis) bytes->add(stride[axis] * dtype_size(problem.dtype));
  }
};

// Adds the limits of a bias. A thread reads it by vectors of its own type, of at most 16 bytes each.
void add_bias(const SwigluProblem &problem, int which, VectorLimits *limits) {
  if (problem.bias[which] == nullptr) return;
  const int last = problem.ndim - 1;
  const int64_t size = dtype_size(problem.bias_dtype[which]);
  limits->bytes.add(problem.bias[which]);
  for (int axis = 0; axis < last; ++axis) limits->bytes.add(problem.bias_stride[which][axis] * size);
  limits->bytes.add(problem.bias_expert_stride[which] * size);
  if (problem.bias_stride[which][last] != 1) limits->bytes.add(dtype_size(problem.dtype));
}

VectorLimits limits_of(const SwigluProblem &problem, GateUpLayout inputs, GateUpLayout gradients) {
  VectorLimits limits;
  limits.add(problem, inputs, inputs_of(problem));
  limits.add(problem, gradients, gradients_of(problem));
  for (int i = kGate; i <= kUp; ++i) add_bias(problem, i, &limits);
  const int lone_output = problem.is_backward ? kRecomputedOut : kOut;
  limits.add(problem, problem.out[lone_output], problem.out_stride[lone_output]);
  if (problem.is_backward) limits.add(problem, problem.in[kGradOut], problem.in_stride[kGradOut]);
  return limits;
}

// Returns the formula of a kernel of vectors.
SwigluFormula formula_of(const SwigluProblem &problem) {
  const GatingForm &form = problem.form;
  const bool has_biases = problem.bias[kGate] != nullptr || problem.bias[kUp] != nullptr;
  const bool has_caps = form.gate_softcap != 0 || form.up_softcap != 0;
  const bool has_bounds = has_caps || form.limits_activation;
  const bool has_rows = problem.expert_rows != nullptr || problem.rows.is_present();
  if (form.rounds_activation) return SwigluFormula::kOptions;
  if (form.activation != Activation::kSwiglu) {
    if (has_biases || has_bounds || has_rows) return SwigluFormula::kOptions;
    constexpr SwigluFormula kFormulas[] = {SwigluFormula::kForm, SwigluFormula::kGegluErf, SwigluFormula::kGegluTanh,
                                           SwigluFormula::kReglu};
    return kFormulas[static_cast<int>(form.activation)];
  }
  if (has_bounds) return has_biases || has_rows ? SwigluFormula::kOptions : SwigluFormula::kSoftcaps;
  if (has_biases || has_rows) return SwigluFormula::kBiases;
  const bool is_plain = form.is_plain && problem.row_scale == nullptr && problem.num_rows == nullptr;
  return is_plain ? SwigluFormula::kPlain : SwigluFormula::kForm;
}

bool has_row_per_vector(const SwigluProblem &problem) {
  const int last = problem.ndim - 1;
  return problem.row_scale_stride[last] == 0 && problem.row_index_stride[last] == 0 &&
         problem.expert_index_stride[last] == 0 && problem.expert_row_index_stride[last] == 0;
}

}  // namespace

int choose_swiglu_vector(const SwigluProblem &problem) {
  // A vector has one row and one factor.
  if (problem.grad_row_scale == nullptr && !has_row_per_vector(problem)) return 1;
  const VectorLimits limits = limits_of(problem, GateUpLayout::kSeparate, GateUpLayout::kSeparate);
  // No kernel has vectors of 4 bytes, except that of flat matrices, which requires tensors aligned to 8 bytes.
  if (limits.bytes.value() < kMaxVectorBytes / 2) return 1;
  return static_cast<int>(limits.bytes.value() / dtype_size(problem.dtype));
}

rope_status_t set_swiglu_grid(const char *function, int64_t num_blocks, SwigluPlan *plan) {
  const int64_t grid_y = (num_blocks - 1) / kMaxGridX + 1;
  if (grid_y > kMaxGridY) {
    return fail(ROPE_STATUS_NOT_SUPPORTED, "%s: gate needs %lld blocks: one launch holds at most %lld", function,
                static_cast<long long>(num_blocks), static_cast<long long>(kMaxGridX * kMaxGridY));
  }
  plan->grid_y = static_cast<uint32_t>(grid_y);
  plan->grid_x = static_cast<uint32_t>((num_blocks - 1) / grid_y + 1);
  return ROPE_STATUS_SUCCESS;
}

bool choose_swiglu_parts(const SwigluProblem &problem, const DeviceInfo &device, int blocks, SwigluPlan *plan) {
  const int last = problem.ndim - 1;
  const bool has_number = problem.rows.is_present() || problem.num_rows != nullptr;
  const bool has_axes = problem.expert_rows != nullptr ? last == 2 && problem.expert_index_stride[0] != 0 &&
                                                             problem.expert_row_index_stride[1] != 0
                                                       : last == 1 && (!has_number || problem.row_index_stride[0] != 0);
  const int64_t columns = problem.shape[last], rows = problem.num_elements() / columns;
  if (!has_axes || columns % plan->vector_elements != 0) return false;
  const int64_t vectors = columns / plan->vector_elements, parts = (vectors - 1) / kSwigluPartVectors + 1;
  if (rows > (INT32_MAX - 1) / parts || vectors > INT32_MAX) return false;
  if (problem.rows.experts > kMaxSwigluLookupExperts) return false;
  plan->is_expert_matrix = true;
  plan->vectors_per_row = vectors;
  plan->parts_per_row = parts;
  plan->num_vectors = problem.num_elements() / plan->vector_elements;
  constexpr int64_t kWarps = kSwigluThreads / 32;
  const int64_t needed = (rows * parts - 1) / kWarps + 1, most = int64_t{device.multiprocessors} * blocks;
  plan->grid_x = static_cast<uint32_t>(needed < most ? needed : most);
  plan->grid_y = 1;
  return true;
}

namespace {

// Chooses vectors of alternating tensors. Returns false if no tensors alternate, or if vectors are less than half of
// the full width: those of two tensors are one or two accesses of full width.
bool choose_alternating(const SwigluProblem &problem, SwigluPlan *plan) {
  if (problem.dtype == ROPE_DTYPE_F64) return false;  // F64 has no such kernels
  const GateUpLayout inputs = layout_of(problem, inputs_of(problem));
  const GateUpLayout gradients = layout_of(problem, gradients_of(problem));
  if (inputs == GateUpLayout::kSeparate && gradients == GateUpLayout::kSeparate) return false;
  if (!has_row_per_vector(problem)) return false;
  VectorLimits limits = limits_of(problem, inputs, gradients);
  limits.bytes.add(kSwigluAlternatingVectorBytes);
  if (limits.alternating_bytes.value() < kMaxVectorBytes || limits.bytes.value() < kMaxVectorBytes / 2) return false;
  plan->inputs = inputs;
  plan->gradients = gradients;
  plan->vector_elements = static_cast<int>(limits.bytes.value() / dtype_size(problem.dtype));
  return true;
}

// Whether a row's stride is an unsigned number of 32 bits, in bytes.
bool fits_narrow_row(const SwigluProblem &problem, const int64_t *stride) {
  return problem.ndim == 1 || (stride[0] >= 0 && stride[0] <= UINT32_MAX / dtype_size(problem.dtype));
}

// Whether the problem has matrices with whole vectors in each row. The plan has the widest vectors that are possible.
bool is_of_matrices(const SwigluProblem &problem, const SwigluPlan &plan) {
  if (problem.dtype == ROPE_DTYPE_F64 || problem.row_scale != nullptr || problem.num_rows != nullptr) return false;
  if (problem.expert_rows != nullptr || problem.rows.is_present() || plan.is_alternating() || problem.ndim > 2) {
    return false;
  }
  const int64_t columns = problem.shape[problem.ndim - 1];
  if (columns % plan.vector_elements != 0 || problem.num_elements() > UINT32_MAX) return false;
  for (int i = 0; i < problem.num_inputs(); ++i) {
    if (!fits_narrow_row(problem, problem.in_stride[i])) return false;
  }
  for (int i = 0; i < problem.num_outputs(); ++i) {
    if (!fits_narrow_row(problem, problem.out_stride[i])) return false;
  }
  return true;
}

const SwigluMatrixShape *choose_matrix_shapes(bool is_backward, bool is_programmatic) {
  if (is_backward) return is_programmatic ? kSwigluGradientShapesProgrammatic : kSwigluGradientShapes;
  return is_programmatic ? kSwigluMatrixShapesProgrammatic : kSwigluMatrixShapes;
}

// Chooses the launch of matrices. Forward, and plain backward, have a table of shapes by size.
bool choose_matrix(const SwigluProblem &problem, const DeviceInfo &device, SwigluPlan *plan) {
  const int64_t size = dtype_size(problem.dtype), bytes = plan->vector_elements * size;
  const bool has_options = plan->formula > SwigluFormula::kForm;
  // Code for an up beyond the largest number would make the kernels of matrices with options too large.
  if (has_options && !moves_within_range(form_in<float>(problem.form))) return false;
  if (bytes < (has_options ? kMaxVectorBytes : kMaxVectorBytes / 2) || !is_of_matrices(problem, *plan)) return false;
  const bool is_plain_backward = problem.is_backward && plan->formula == SwigluFormula::kPlain && size == 2 &&
                                 problem.out[kRecomputedOut] == nullptr;
  if (problem.is_backward && !is_plain_backward) return has_options && plan->formula != SwigluFormula::kOptions;
  const SwigluMatrixShape *shape = choose_matrix_shapes(problem.is_backward, plan->is_programmatic);
  const int64_t vectors = problem.num_elements() * size / kMaxVectorBytes / device.multiprocessors;
  plan->is_flat = is_plain_backward && !plan->is_programmatic && problem.ndim == 1 &&
                  vectors <= kMaxSwigluFlatVectors && problem.out[kGradGate] != nullptr &&
                  problem.out[kGradUp] != nullptr;
  if (plan->is_flat) {
    plan->vector_elements = static_cast<int>(kSwigluFlatVectorBytes / size);
    plan->threads = kSwigluFlatThreads;
    return true;
  }
  while (vectors > shape->max_vectors) ++shape;
  if (!has_options && bytes > shape->vector_bytes) plan->vector_elements = static_cast<int>(shape->vector_bytes / size);
  plan->threads = shape->threads;
  if (has_half_vectors(plan->formula, size) && !plan->is_programmatic && vectors <= kMaxSwigluHalfOptions) {
    plan->vector_elements /= 2;
  }
  const int64_t min_vectors = plan->formula == SwigluFormula::kBiases ? kMinSwigluBiasVectors : kMinSwigluCapVectors;
  // Rows that follow each other in memory are one row.
  const bool has_rows = problem.ndim > 1 && problem.shape[0] >= kSwigluRowsPerThread;
  if (takes_rows(plan->formula, size) && has_rows && vectors > min_vectors) {
    plan->rows_per_thread = kSwigluRowsPerThread;
  }
  plan->begins_last = (shape->begins_last ||
                       (has_options && plan->formula != SwigluFormula::kReglu && vectors > kMinSwigluLastVectors)) &&
                      (bytes == kMaxVectorBytes || is_plain_backward);
  return true;
}

// Plans words of experts, or of rows that are looked up. The plan has the widest vectors that are possible.
bool choose_expert_matrix(const SwigluProblem &problem, const DeviceInfo &device, SwigluPlan *plan) {
  if (problem.expert_rows == nullptr && !problem.rows.is_present()) return false;
  if (plan->formula != SwigluFormula::kBiases || problem.dtype == ROPE_DTYPE_F64) return false;
  return plan->vector_elements * dtype_size(problem.dtype) == kMaxVectorBytes &&
         choose_swiglu_parts(problem, device, kSwigluExpertBlocks, plan);
}

// Plans rows that are summed. Vectors are groups, or single elements if groups are not aligned or would cross the end
// of an axis within a row.
rope_status_t plan_row_sums(const char *function, const SwigluProblem &problem, bool has_options, SwigluPlan *plan) {
  const int64_t group = kSwigluRowGroupBytes / dtype_size(problem.dtype), columns = problem.num_summed_elements();
  const int last = problem.ndim - 1;
  const bool has_one_column_axis = problem.num_row_axes == last;
  const bool is_whole = has_one_column_axis || (problem.num_row_axes < last && problem.shape[last] % group == 0);
  // F64 has no vectors: their kernel would add 57 kB to the library.
  const bool has_vectors =
      is_whole && !has_options && problem.dtype != ROPE_DTYPE_F64 && choose_swiglu_vector(problem) == group;
  plan->vector_elements = has_vectors ? static_cast<int>(group) : 1;
  plan->vectors_per_row = (columns - 1) / group + 1;
  plan->num_vectors = problem.num_elements() / columns * plan->vectors_per_row;
  constexpr int64_t kWarp = 32;
  const int64_t threads = (((has_options ? columns : plan->vectors_per_row) - 1) / kWarp + 1) * kWarp;
  plan->threads = static_cast<uint32_t>(threads < kMaxSwigluRowThreads ? threads : kMaxSwigluRowThreads);
  return set_swiglu_grid(function, problem.num_elements() / columns, plan);
}

}  // namespace

int64_t moved_bytes(const SwigluCall &call) {
  const SwigluProblem &first = call.problems[0];
  const int64_t elements = first.num_elements();
  int64_t words = first.num_inputs(), codes = 0;
  for (int i = 0; i < call.count; ++i) {
    const SwigluProblem &problem = call.problems[i];
    if (problem.has_codes()) {
      const WrittenScales &scales = problem.codes.scales;
      const int64_t groups = scales.is_present() ? elements / problem.codes.group_elements : 0;
      codes += (problem.codes.has_pairs() ? elements / 2 : elements) + groups * (scales.has_bytes() ? 1 : 4);
    } else {
      for (int output = 0; output < problem.num_outputs(); ++output) words += problem.out[output] != nullptr;
    }
  }
  const int64_t bytes = saturated_product(elements, words * dtype_size(first.dtype));
  return bytes > INT64_MAX - codes ? INT64_MAX : bytes + codes;
}

rope_status_t plan_swiglu(const char *function, const SwigluProblem &problem, const DeviceInfo &device,
                          SwigluPlan *plan) {
  *plan = SwigluPlan{};
  const int64_t columns = problem.shape[problem.ndim - 1];
  if (!device.is_cuda) {
    // Absent outputs count too.
    const int64_t tensors = problem.num_inputs() + problem.num_outputs();
    const int64_t bytes = saturated_product(problem.num_elements(), tensors * dtype_size(problem.dtype));
    plan->num_tasks = count_cpu_tasks(bytes, device.num_threads);
    return ROPE_STATUS_SUCCESS;
  }
  plan->is_programmatic = problem.is_programmatic && device.compute_capability >= 90;
  plan->formula = formula_of(problem);
  const bool has_options = plan->formula > SwigluFormula::kForm;
  if (problem.has_codes()) return plan_swiglu_codes(function, problem, device, plan);
  if (problem.grad_row_scale != nullptr) return plan_row_sums(function, problem, has_options, plan);
  if (has_options || !choose_alternating(problem, plan)) plan->vector_elements = choose_swiglu_vector(problem);
  plan->threads = kSwigluThreads;
  if (choose_expert_matrix(problem, device, plan)) return ROPE_STATUS_SUCCESS;
  plan->is_matrix = choose_matrix(problem, device, plan);
  const int64_t multiprocessors = device.multiprocessors;
  if (!plan->is_matrix && has_options) {
    plan->vector_elements = 1;
    plan->formula = SwigluFormula::kOptions;
  } else if (!plan->is_matrix && plan->vector_elements * dtype_size(problem.dtype) == kMaxVectorBytes &&
             problem.num_elements() <= kSwigluMaxHalfVectorThreads * multiprocessors * plan->vector_elements) {
    plan->vector_elements /= 2;
  }
  plan->vectors_per_row = (columns - 1) / plan->vector_elements + 1;
  const int64_t rows = problem.num_elements() / columns;
  plan->num_vectors = ((rows - 1) / plan->rows_per_thread + 1) * plan->vectors_per_row;
  return set_swiglu_grid(function, (plan->num_vectors - 1) / plan->threads + 1, plan);
}

rope_status_t plan_swiglu_call(const char *function, const SwigluCall &call, const DeviceInfo &device,
                               SwigluCallPlan *plan) {
  plan->has_blocks =
      device.is_cuda && device.compute_capability >= kMinSwigluBlockCapability && are_swiglu_code_blocks(call);
  if (plan->has_blocks) ROPE_TRY(plan_swiglu_code_blocks(function, call, device, &plan->blocks));
  for (int i = 0; i < call.count; ++i) {
    if (plan->has_blocks && call.problems[i].has_codes()) break;
    ROPE_TRY(plan_swiglu(function, call.problems[i], device, &plan->plans[i]));
  }
  return ROPE_STATUS_SUCCESS;
}

}  // namespace rope
