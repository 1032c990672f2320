// SPDX-License-Identifier: Apache-2.0
// absent_cuda_backend.cpp - replaces the CUDA backend in a build without CUDA
#include "backend/backend.hpp"

namespace rope {

namespace {

rope_status_t refuse(const char *function) {
  return fail(ROPE_STATUS_NOT_SUPPORTED, "%s: device is CUDA: this librope was built without CUDA", function);
}

int32_t count_devices(const char *function) {
  refuse(function);
  return 0;
}

rope_status_t open_rope(const char *function, const RopeGeometry &, int32_t, int32_t, DeviceInfo *) {
  return refuse(function);
}

rope_status_t open_swiglu(const char *function, rope_dtype_t, int32_t, int32_t, DeviceInfo *) {
  return refuse(function);
}

rope_status_t run_rope(const char *function, const RopeProblem &, const RopePlan &, int32_t, rope_stream_t) {
  return refuse(function);
}

rope_status_t fill_tables(const char *function, const TableProblem &, const DeviceInfo &, int32_t, rope_stream_t) {
  return refuse(function);
}

rope_status_t run_swiglu(const char *function, const SwigluCall &, const SwigluCallPlan &, int32_t, rope_stream_t) {
  return refuse(function);
}

const char *describe() {
  return "not built (" ROPE_NO_CUDA_REASON ")";
}

}  // namespace

const Backend kCudaBackend = {count_devices, open_rope, open_swiglu, run_rope, fill_tables, run_swiglu, describe};

}  // namespace rope
