// SPDX-License-Identifier: Apache-2.0
// swiglu_codes_plan.cpp - vector width and grid of SwiGLU's outputs of codes
#include "core/problem/view.hpp"
#include "plan/launch_shape.hpp"
#include "plan/swiglu_plan.hpp"
#include "plan/swiglu_plan_parts.hpp"
#include "plan/tuning.hpp"

namespace rope {

namespace {

// Finds log2 of the number of lanes of a group with a written scale. Returns false if a warp has too few lanes.
bool find_group_lanes(int64_t group_elements, int64_t lane_elements, uint32_t *log2) {
  for (*log2 = 0; *log2 <= kWarpLanesLog2; ++*log2) {
    if (group_elements == lane_elements << *log2) return true;
  }
  *log2 = 0;
  return false;
}

// Whether rows that num_rows or expert_rows may exclude are those of the kernel of matrices.
bool has_matrix_rows(const SwigluProblem &problem) {
  const int last = problem.ndim - 1;
  if (problem.expert_rows != nullptr) {
    return problem.ndim == 3 && problem.expert_index_stride[0] == 1 && problem.expert_row_index_stride[1] == 1;
  }
  if (problem.num_rows == nullptr) return true;
  return last == 0 ? problem.row_index_stride[0] == 0
                   : last == 1 && problem.row_index_stride[0] == 1 && problem.row_index_stride[1] == 0;
}

// Whether rows of tiles of scales, if there are any, are those of the kernel of matrices.
bool has_matrix_tiles(const SwigluProblem &problem) {
  if (!problem.codes.has_tiles) return true;
  const int64_t *const stride = problem.codes.scale_row_stride;
  if (problem.ndim == 1) return true;
  return problem.ndim == 2 ? stride[0] == 1 : stride[0] == 0 && stride[1] == 1;
}

// Whether the data have 16 bits and come with nothing that the kernels of matrices to codes lack.
bool is_bare(const SwigluProblem &problem) {
  return dtype_size(problem.dtype) == 2 && !problem.has_options() && problem.row_scale == nullptr &&
         !problem.rows.is_present();
}

// Whether out has vectors of so many codes, along all axes.
bool has_code_vectors(const SwigluProblem &problem, int64_t codes = 8) {
  // Strides of pairs of codes count halves of a byte.
  const int64_t per_byte = problem.codes.has_pairs() ? 2 : 1;
  const int last = problem.ndim - 1;
  VectorBytes limit;
  limit.add(problem.out[kOut]);
  for (int axis = 0; axis < last; ++axis) limit.add(problem.out_stride[kOut][axis] / per_byte);
  return problem.out_stride[kOut][last] == 1 && limit.value() >= codes / per_byte;
}

// Plans codes of experts, of rows that are looked up, or of rows with a factor or biases, in vectors of 16 bytes.
bool choose_expert_codes(const SwigluProblem &problem, const DeviceInfo &device, SwigluPlan *plan) {
  const SwigluCodes &codes = problem.codes;
  const bool is_bare_matrix = is_bare(problem) && problem.expert_rows == nullptr;
  const bool is_formula = plan->formula <= SwigluFormula::kForm || plan->formula == SwigluFormula::kBiases;
  if (is_bare_matrix || !is_formula || dtype_size(problem.dtype) != 2) return false;
  SwigluProblem inputs = problem;
  inputs.out[kOut] = nullptr;
  const int64_t elements = choose_swiglu_vector(inputs);
  if (elements * 2 != kMaxVectorBytes || !has_code_vectors(problem) || !has_matrix_tiles(problem)) return false;
  if (codes.scales.is_present() && (codes.scales.groups * codes.group_elements != problem.shape[problem.ndim - 1] ||
                                    !find_group_lanes(codes.group_elements, elements, &plan->group_lanes_log2))) {
    return false;
  }
  plan->vector_elements = static_cast<int>(elements);
  if (!choose_swiglu_parts(problem, device, kSwigluExpertCodeBlocks, plan)) return false;
  const bool is_plain = code_formula_of(problem) == SwigluFormula::kPlain && problem.rows.row_index == nullptr &&
                        device.compute_capability >= kMinSwigluSpanCapability;
  plan->formula = is_plain ? SwigluFormula::kPlain : SwigluFormula::kBiases;
  plan->threads = kSwigluThreads;
  return true;
}

// Whether a matrix of rows of whole groups needs nothing but codes of E4M3, with a static scale or one for each group.
bool has_plain_groups(const SwigluProblem &problem) {
  const SwigluCodes &codes = problem.codes;
  const bool takes_scales =
      !codes.scales.is_present() || (codes.group_elements == kSwigluCodeGroup && !codes.has_tiles);
  return takes_scales && codes.dtype == ROPE_DTYPE_F8_E4M3 && codes.amax == nullptr && problem.ndim <= 2 &&
         problem.shape[problem.ndim - 1] % kSwigluCodeGroup == 0 && problem.num_rows == nullptr &&
         problem.expert_rows == nullptr && code_formula_of(problem) == SwigluFormula::kPlain;
}

// Plans a matrix with has_plain_groups().
void choose_plain_groups(const SwigluProblem &problem, const DeviceInfo &device, SwigluPlan *plan) {
  const int64_t vectors_per_multiprocessor = problem.num_elements() / plan->vector_elements / device.multiprocessors;
  const bool has_scales = problem.codes.scales.is_present();
  const bool may_be_wide =
      has_scales && device.compute_capability >= kMinSwigluSpanCapability && has_code_vectors(problem, 16);
  const SwigluGroupShape shape = has_scales ? swiglu_scaled_group_shape(vectors_per_multiprocessor, may_be_wide)
                                            : swiglu_static_group_shape(vectors_per_multiprocessor);
  plan->has_plain_groups = true;
  plan->threads = shape.threads;
  plan->vector_elements = shape.vector_elements;
  plan->group_vectors = shape.vectors;
}

// Plans the lanes of a group with a written scale, if there are any, and the rows of a thread. Returns false if there
// is no such kernel.
bool choose_code_lanes(const SwigluProblem &problem, const DeviceInfo &device, SwigluPlan *plan) {
  const SwigluCodes &codes = problem.codes;
  const int64_t vectors_per_multiprocessor = problem.num_elements() / plan->vector_elements / device.multiprocessors;
  const bool may_span = device.compute_capability >= kMinSwigluSpanCapability;
  const bool has_scales = codes.scales.is_present();
  if (has_scales) {
    const bool is_large = vectors_per_multiprocessor > kMaxSwigluSmallCodeVectors;
    const int64_t vectors = codes.group_elements / plan->vector_elements;
    plan->group_vectors = may_span && ((is_large && vectors > 1) || vectors > 32) ? 2 : 1;
    const int64_t lane_elements = int64_t{plan->group_vectors} * plan->vector_elements;
    plan->has_code_rows = !find_group_lanes(codes.group_elements, lane_elements, &plan->group_lanes_log2);
    if (plan->has_code_rows) return codes.scales.groups == 1;
  }
  const uint32_t span = codes.has_pairs() ? kSwigluCodePairSpan : kSwigluCodeSpan;
  const int64_t rows = problem.ndim > 1 ? problem.shape[problem.ndim - 2] : 1;
  const bool has_kernel = may_span && (plan->group_vectors == 2 || !has_scales);
  if (has_kernel && vectors_per_multiprocessor > kMinSwigluCodeSpanVectors && rows >= span) {
    plan->rows_per_thread = span;
  }
  return true;
}

// Plans matrices of 16 bits, with at most one further axis, that become codes in vectors of 16 bytes, or of 8 in
// short launches with has_plain_groups. Returns whether the problem is one.
bool choose_code_matrix(const SwigluProblem &problem, const DeviceInfo &device, SwigluPlan *plan) {
  const SwigluCodes &codes = problem.codes;
  constexpr int64_t kElements = kMaxVectorBytes / 2;
  if (!is_bare(problem)) return false;
  if (problem.ndim > 3 || !has_matrix_rows(problem) || !has_matrix_tiles(problem)) return false;
  const int last = problem.ndim - 1;
  const int64_t columns = problem.shape[last];
  if (columns % kElements != 0 || problem.num_elements() / kElements > INT32_MAX) return false;
  VectorBytes in;
  for (int i = kGate; i <= kUp; ++i) {
    in.add(problem.in[i]);
    for (int axis = 0; axis < last; ++axis) in.add(problem.in_stride[i][axis] * 2);
    if (problem.in_stride[i][last] != 1) return false;
  }
  if (in.value() < kMaxVectorBytes || !has_code_vectors(problem)) return false;
  if (codes.scales.is_present() && codes.scales.groups * codes.group_elements != columns) return false;
  plan->vector_elements = static_cast<int>(kElements);
  plan->threads = kSwigluCodeThreads;
  if (has_plain_groups(problem)) {
    choose_plain_groups(problem, device, plan);
  } else if (!choose_code_lanes(problem, device, plan)) {
    return false;
  }
  plan->is_matrix = true;
  plan->formula = code_formula_of(problem);
  plan->vectors_per_row = columns / plan->vector_elements;
  plan->num_vectors = problem.num_elements() / plan->vector_elements;
  if (plan->has_code_rows) {
    const auto vectors = static_cast<uint32_t>((plan->vectors_per_row - 1) / kVectorsOfCodeRow + 1);
    const uint32_t threads = round_up_to_warps(vectors);
    plan->threads = threads < kMaxSwigluCodeRowThreads ? threads : kMaxSwigluCodeRowThreads;
  }
  return true;
}

// Whether a tensor of matrices has vectors of `bytes` bytes, eight elements each.
bool has_row_vectors(const char *data, const int64_t *stride, int64_t bytes) {
  VectorBytes limit;
  limit.add(data);
  limit.add(stride[0] * (bytes / 8));
  return stride[1] == 1 && limit.value() >= bytes;
}

int64_t code_block_warps_per_row(const SwigluProblem &problem) {
  return (problem.shape[1] - 1) / int64_t{swiglu_block_columns(problem.is_backward)} + 1;
}

int64_t num_code_block_warps(const SwigluProblem &problem) {
  return ((problem.shape[0] - 1) / int64_t{kSwigluBlockRows} + 1) * code_block_warps_per_row(problem);
}

// Whether an output of matrices of 16 bits becomes codes of 8 bits in groups of 32 channels, with a static scale, or in
// groups of 32 rows.
bool has_code_blocks(const SwigluProblem &problem) {
  const SwigluCodes &codes = problem.codes;
  if (!is_bare(problem)) return false;
  if (problem.num_rows != nullptr || problem.expert_rows != nullptr || codes.has_pairs() || problem.ndim != 2) {
    return false;
  }
  const int64_t rows = problem.shape[0], columns = problem.shape[1];
  if (columns % 32 != 0 || rows > INT32_MAX || columns > INT32_MAX) return false;
  if (num_code_block_warps(problem) > INT32_MAX) return false;
  for (int i = 0; i < problem.num_inputs(); ++i) {
    if (!has_row_vectors(problem.in[i], problem.in_stride[i], kMaxVectorBytes)) return false;
  }
  const int output = problem.coded_output();
  if (!has_row_vectors(problem.out[output], problem.out_stride[output], 8)) return false;
  if (!codes.scales.is_present()) return true;
  if (codes.group_elements != kSwigluBlockRows) return false;
  if (codes.has_row_groups) return problem.row_axis() == 0 && codes.scales.groups * codes.group_elements == rows;
  return codes.scales.groups * codes.group_elements == columns && has_matrix_tiles(problem);
}

}  // namespace

int64_t num_code_spans(const SwigluProblem &problem, const SwigluPlan &plan) {
  const int64_t rows = problem.ndim > 1 ? problem.shape[problem.ndim - 2] : 1;
  return (rows - 1) / plan.rows_per_thread + 1;
}

int64_t num_code_matrix_threads(const SwigluProblem &problem, const SwigluPlan &plan) {
  const int64_t matrices = problem.ndim > 2 ? problem.shape[0] : 1;
  return matrices * num_code_spans(problem, plan) * (plan.vectors_per_row / plan.group_vectors);
}

SwigluFormula code_formula_of(const SwigluProblem &problem) {
  if (problem.has_options()) return SwigluFormula::kOptions;
  return problem.form.is_plain && problem.row_scale == nullptr ? SwigluFormula::kPlain : SwigluFormula::kForm;
}

bool are_swiglu_code_blocks(const SwigluCall &call) {
  int codes = 0;
  bool has_row_groups = false, is_written[2][2] = {};
  const int64_t *shape = nullptr;
  for (int i = 0; i < call.count; ++i) {
    const SwigluProblem &problem = call.problems[i];
    if (!problem.has_codes()) continue;
    if (!has_code_blocks(problem)) return false;
    if (shape != nullptr && (shape[0] != problem.shape[0] || shape[1] != problem.shape[1])) return false;
    shape = problem.shape;
    bool *const is_there = &is_written[problem.coded_output()][problem.codes.has_row_groups];
    if (*is_there) return false;
    *is_there = true;
    has_row_groups = has_row_groups || problem.codes.has_row_groups;
    ++codes;
  }
  return codes > 1 || (codes == 1 && (has_row_groups || call.problems[0].is_backward));
}

rope_status_t plan_swiglu_code_blocks(const char *function, const SwigluCall &call, const DeviceInfo &device,
                                      SwigluPlan *plan) {
  const SwigluProblem &problem = call.problems[call.count - 1];
  *plan = SwigluPlan{};
  plan->is_programmatic = problem.is_programmatic && device.compute_capability >= 90;
  plan->formula = code_formula_of(problem);
  plan->vector_elements = static_cast<int>(kMaxVectorBytes / 2);
  plan->threads = kSwigluBlockThreads;
  plan->vectors_per_row = code_block_warps_per_row(problem);
  plan->num_vectors = num_code_block_warps(problem);
  return set_swiglu_grid(function, (plan->num_vectors - 1) / int64_t{kSwigluBlockThreads / 32} + 1, plan);
}

rope_status_t plan_swiglu_codes(const char *function, const SwigluProblem &problem, const DeviceInfo &device,
                                SwigluPlan *plan) {
  const bool is_forward_by_row = !problem.is_backward && !problem.codes.has_row_groups;
  if (is_forward_by_row && choose_expert_codes(problem, device, plan)) return ROPE_STATUS_SUCCESS;
  if (is_forward_by_row && choose_code_matrix(problem, device, plan)) {
    if (plan->has_code_rows) return set_swiglu_grid(function, plan->num_vectors / plan->vectors_per_row, plan);
    return set_swiglu_grid(function, (num_code_matrix_threads(problem, *plan) - 1) / plan->threads + 1, plan);
  }
  plan->has_code_rows = false;
  plan->formula = SwigluFormula::kOptions;
  plan->vector_elements = 1;
  plan->threads = kSwigluThreads;
  plan->vectors_per_row = problem.shape[problem.ndim - 1];
  plan->num_vectors = problem.num_elements();
  plan->unit_elements = problem.codes.scales.is_present() ? problem.codes.group_elements : kSwigluCodeElements;
  return set_swiglu_grid(function, (plan->num_vectors - 1) / plan->unit_elements + 1, plan);
}

}  // namespace rope
