// SPDX-License-Identifier: Apache-2.0
// info_api.cpp - version, status, devices
#include <pthread.h>

#include "api/call_scope.hpp"
#include "api/descriptor.hpp"
#include "core/problem/descriptor_checks.hpp"

namespace {

char build_info[256];
pthread_once_t build_info_once = PTHREAD_ONCE_INIT;

void write_build_info() {
  rope::print(build_info, sizeof build_info, "librope %s; CPU: %s; CUDA: %s", ROPE_VERSION_TEXT,
              rope::kCpuBackend.describe(), rope::kCudaBackend.describe());
}

}  // namespace

extern "C" {

uint32_t rope_version(void) {
  return ROPE_VERSION;
}

const char *rope_build_info(void) {
  const rope::CallScope scope;
  pthread_once(&build_info_once, write_build_info);
  return build_info;
}

const char *rope_status_name(rope_status_t status) {
  switch (status) {
    case ROPE_STATUS_SUCCESS:
      return "SUCCESS";
    case ROPE_STATUS_INVALID_ARGUMENT:
      return "INVALID_ARGUMENT";
    case ROPE_STATUS_NOT_SUPPORTED:
      return "NOT_SUPPORTED";
    case ROPE_STATUS_OUT_OF_MEMORY:
      return "OUT_OF_MEMORY";
    case ROPE_STATUS_NO_DEVICE:
      return "NO_DEVICE";
    case ROPE_STATUS_CUDA_ERROR:
      return "CUDA_ERROR";
    case ROPE_STATUS_INTERNAL_ERROR:
      return "INTERNAL_ERROR";
    default:
      return "UNKNOWN";
  }
}

const char *rope_last_error(void) {
  return rope::last_error();
}

rope_status_t rope_device_count(rope_device_t device, int32_t *count_out) {
  if (count_out == nullptr) {
    return rope::fail(ROPE_STATUS_INVALID_ARGUMENT, "rope_device_count: count_out is NULL: it is required");
  }
  const rope::CallScope scope;
  *count_out = 0;
  ROPE_TRY(rope::check_device("rope_device_count", device, 0, 0));
  *count_out = rope::backend_of(device).count_devices("rope_device_count");
  return ROPE_STATUS_SUCCESS;
}

}  // extern "C"
