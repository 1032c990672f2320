// SPDX-License-Identifier: Apache-2.0
// swiglu_api.cpp - SwiGLU at the C boundary: import, problem, plan, backend
#include "api/call_scope.hpp"
#include "api/descriptor.hpp"
#include "core/problem/descriptor_checks.hpp"
#include "core/problem/import.hpp"
#include "plan/explain.hpp"

namespace rope {

namespace {

rope_status_t create_swiglu(const swiglu_config_t *given, swiglu_desc **desc_out) {
  const char *function = "swiglu_desc_create";
  if (desc_out == nullptr) return fail(ROPE_STATUS_INVALID_ARGUMENT, "%s: desc_out is NULL: it is required", function);
  *desc_out = nullptr;
  swiglu_config_t config;
  ROPE_TRY(import_struct(function, "config", given, kSwigluConfigFirstSize, &config, sizeof config));
  GatingForm form;
  ROPE_TRY(check_swiglu_config(function, config, &form));
  DeviceInfo device;
  const Backend &backend = backend_of(config.device);
  ROPE_TRY(backend.open_swiglu(function, config.dtype, config.device_index, config.num_threads, &device));
  swiglu_desc *desc = static_cast<swiglu_desc *>(allocate_descriptor(kSwigluMagic));
  if (desc == nullptr) {
    return fail(ROPE_STATUS_OUT_OF_MEMORY, "%s: no memory for a descriptor of %zu bytes", function, sizeof *desc);
  }
  desc->backend = &backend;
  desc->device = device;
  desc->device_index = config.device_index;
  desc->dtype = config.dtype;
  desc->form = form;
  make_live(&desc->header, kSwigluMagic);
  *desc_out = desc;
  return ROPE_STATUS_SUCCESS;
}

// The problems of a call and their plan. An empty call has no plan.
struct PlannedCall {
  SwigluCall call;
  SwigluCallPlan plan;
};

rope_status_t plan_call(const char *function, const swiglu_desc *desc, const swiglu_args_t &args, bool is_backward,
                        PlannedCall *planned) {
  ROPE_TRY(make_swiglu_call(function, desc->dtype, desc->form, args, is_backward, &planned->call));
  if (planned->call.is_empty()) return ROPE_STATUS_SUCCESS;
  return plan_swiglu_call(function, planned->call, desc->device, &planned->plan);
}

rope_status_t apply_swiglu(const char *function, const swiglu_desc *desc, const swiglu_args_t *given, bool is_backward,
                           rope_stream_t stream) {
  ROPE_TRY(check_descriptor(function, desc, kSwigluMagic));
  swiglu_args_t copy;
  const swiglu_args_t *args;
  ROPE_TRY(import_args(function, "args", given, kSwigluArgsFirstSize, &copy, &args));
  if (!desc->device.is_cuda) ROPE_TRY(check_cpu_stream(function, stream));
  PlannedCall planned;
  ROPE_TRY(plan_call(function, desc, *args, is_backward, &planned));
  if (planned.call.is_empty()) return ROPE_STATUS_SUCCESS;
  return desc->backend->run_swiglu(function, planned.call, planned.plan, desc->device_index, stream);
}

rope_status_t explain(const swiglu_desc *desc, const swiglu_args_t *given, char *text, size_t size) {
  const char *function = "swiglu_explain";
  ROPE_TRY(check_descriptor(function, desc, kSwigluMagic));
  ROPE_TRY(check_text(function, text, size));
  swiglu_args_t copy;
  const swiglu_args_t *args;
  ROPE_TRY(import_args(function, "args", given, kSwigluArgsFirstSize, &copy, &args));
  PlannedCall planned;
  ROPE_TRY(plan_call(function, desc, *args, args->grad_out.ndim != 0, &planned));
  explain_swiglu(planned.call, planned.plan, desc->device, text, size);
  return ROPE_STATUS_SUCCESS;
}

}  // namespace

}  // namespace rope

extern "C" {

rope_status_t swiglu_desc_create(const swiglu_config_t *config, swiglu_desc_t **desc_out) {
  const rope::CallScope scope;
  return rope::create_swiglu(config, desc_out);
}

void swiglu_desc_destroy(swiglu_desc_t *desc) {
  if (desc == nullptr ||
      rope::check_descriptor("swiglu_desc_destroy", desc, rope::kSwigluMagic) != ROPE_STATUS_SUCCESS) {
    return;
  }
  const rope::CallScope scope;
  rope::release_descriptor(&desc->header, rope::kSwigluMagic);
}

rope_status_t swiglu_forward(const swiglu_desc_t *desc, const swiglu_args_t *args, rope_stream_t stream) {
  const rope::CallScope scope;
  return rope::apply_swiglu("swiglu_forward", desc, args, false, stream);
}

rope_status_t swiglu_backward(const swiglu_desc_t *desc, const swiglu_args_t *args, rope_stream_t stream) {
  const rope::CallScope scope;
  return rope::apply_swiglu("swiglu_backward", desc, args, true, stream);
}

rope_status_t swiglu_explain(const swiglu_desc_t *desc, const swiglu_args_t *args, char *text, size_t size) {
  const rope::CallScope scope;
  return rope::explain(desc, args, text, size);
}

}  // extern "C"
