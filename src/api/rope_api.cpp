// SPDX-License-Identifier: Apache-2.0
// rope_api.cpp - RoPE at the C boundary: import, problem, plan, backend
#include "api/call_scope.hpp"
#include "api/descriptor.hpp"
#include "core/problem/descriptor_checks.hpp"
#include "core/problem/import.hpp"
#include "core/problem/step_problem.hpp"
#include "core/problem/table_problem.hpp"
#include "plan/explain.hpp"

namespace rope {

namespace {

rope_status_t create_rope(const rope_config_t *given, rope_desc **desc_out) {
  const char *function = "rope_desc_create";
  if (desc_out == nullptr) return fail(ROPE_STATUS_INVALID_ARGUMENT, "%s: desc_out is NULL: it is required", function);
  *desc_out = nullptr;
  rope_config_t config;
  ROPE_TRY(import_struct(function, "config", given, kRopeConfigFirstSize, &config, sizeof config));
  RopeGeometry geometry = {};
  ROPE_TRY(make_rope_geometry(function, config, &geometry));
  DeviceInfo device;
  const Backend &backend = backend_of(config.device);
  ROPE_TRY(backend.open_rope(function, geometry, config.device_index, config.num_threads, &device));
  rope_desc *desc = static_cast<rope_desc *>(allocate_descriptor(kRopeMagic));
  if (desc == nullptr) {
    return fail(ROPE_STATUS_OUT_OF_MEMORY, "%s: no memory for a descriptor of %zu bytes", function, sizeof *desc);
  }
  desc->backend = &backend;
  desc->device = device;
  desc->device_index = config.device_index;
  desc->geometry = geometry;
  make_live(&desc->header, kRopeMagic);
  *desc_out = desc;
  return ROPE_STATUS_SUCCESS;
}

// A call's problem and its plan. Both are unset if the problem is empty.
struct PlannedCall {
  RopeProblem problem;
  StepProblem step;
  RopePlan plan;
};

// `args` is an imported struct.
rope_status_t plan_call(const char *function, const rope_desc *desc, const rope_args_t &args, bool is_transposed,
                        PlannedCall *call) {
  ROPE_TRY(make_rope_problem(function, desc->geometry, args, is_transposed, &call->problem, &call->step));
  if (call->problem.is_empty()) return ROPE_STATUS_SUCCESS;
  return plan_rope(function, call->problem, desc->device, &call->plan);
}

rope_status_t apply_rope(const char *function, const rope_desc *desc, const rope_args_t *given, bool is_transposed,
                         rope_stream_t stream) {
  ROPE_TRY(check_descriptor(function, desc, kRopeMagic));
  if (!desc->device.is_cuda) ROPE_TRY(check_cpu_stream(function, stream));
  rope_args_t copy;
  const rope_args_t *args;
  ROPE_TRY(import_args(function, "args", given, kRopeArgsFirstSize, &copy, &args));
  PlannedCall call;
  ROPE_TRY(plan_call(function, desc, *args, is_transposed, &call));
  if (call.problem.is_empty()) return ROPE_STATUS_SUCCESS;
  return desc->backend->run_rope(function, call.problem, call.plan, desc->device_index, stream);
}

rope_status_t compute_tables(const rope_desc *desc, const rope_tensor_t *cos, const rope_tensor_t *sin,
                             rope_stream_t stream) {
  const char *function = "rope_fill_tables";
  ROPE_TRY(check_descriptor(function, desc, kRopeMagic));
  if (!desc->device.is_cuda) ROPE_TRY(check_cpu_stream(function, stream));
  TableProblem problem;
  ROPE_TRY(make_table_problem(function, desc->geometry, cos, sin, &problem));
  if (problem.is_empty()) return ROPE_STATUS_SUCCESS;
  return desc->backend->fill_tables(function, problem, desc->device, desc->device_index, stream);
}

// Whether `args` has operands that only rope_backward takes.
bool are_of_backward(const rope_args_t &args) {
  if ((args.flags & ROPE_FLAG_ACCUMULATE) != 0) return true;
  if (args.norm == nullptr) return false;
  rope_norm_args_t copy;
  const rope_norm_args_t *norm;
  const rope_status_t status = import_args("", "norm", args.norm, kRopeNormArgsFirstSize, &copy, &norm);
  // A group that cannot be read here is refused, with its name, when the problem is made.
  return status == ROPE_STATUS_SUCCESS && (!is_zeroed(norm->q_in) || !is_zeroed(norm->k_in) || !is_zeroed(norm->v_in));
}

rope_status_t explain(const rope_desc *desc, const rope_args_t *given, char *text, size_t size) {
  const char *function = "rope_explain";
  ROPE_TRY(check_descriptor(function, desc, kRopeMagic));
  ROPE_TRY(check_text(function, text, size));
  rope_args_t copy;
  const rope_args_t *args;
  ROPE_TRY(import_args(function, "args", given, kRopeArgsFirstSize, &copy, &args));
  PlannedCall call;
  ROPE_TRY(plan_call(function, desc, *args, are_of_backward(*args), &call));
  explain_rope(call.problem, call.plan, desc->device, text, size);
  return ROPE_STATUS_SUCCESS;
}

}  // namespace

}  // namespace rope

extern "C" {

rope_status_t rope_desc_create(const rope_config_t *config, rope_desc_t **desc_out) {
  const rope::CallScope scope;
  return rope::create_rope(config, desc_out);
}

void rope_desc_destroy(rope_desc_t *desc) {
  if (desc == nullptr || rope::check_descriptor("rope_desc_destroy", desc, rope::kRopeMagic) != ROPE_STATUS_SUCCESS) {
    return;
  }
  const rope::CallScope scope;
  rope::release_descriptor(&desc->header, rope::kRopeMagic);
}

rope_status_t rope_forward(const rope_desc_t *desc, const rope_args_t *args, rope_stream_t stream) {
  const rope::CallScope scope;
  return rope::apply_rope("rope_forward", desc, args, false, stream);
}

rope_status_t rope_backward(const rope_desc_t *desc, const rope_args_t *args, rope_stream_t stream) {
  const rope::CallScope scope;
  return rope::apply_rope("rope_backward", desc, args, true, stream);
}

rope_status_t rope_fill_tables(const rope_desc_t *desc, const rope_tensor_t *cos_out, const rope_tensor_t *sin_out,
                               rope_stream_t stream) {
  const rope::CallScope scope;
  return rope::compute_tables(desc, cos_out, sin_out, stream);
}

rope_status_t rope_explain(const rope_desc_t *desc, const rope_args_t *args, char *text, size_t size) {
  const rope::CallScope scope;
  return rope::explain(desc, args, text, size);
}

}  // extern "C"
