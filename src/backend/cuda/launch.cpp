// SPDX-License-Identifier: Apache-2.0
// launch.cpp - loads kernels for a descriptor, and launches one
#include "backend/cuda/launch.hpp"

#include "backend/cuda/kernel_cache.hpp"
#include "backend/cuda/preloader.hpp"

namespace rope {

static rope_status_t fail_switch(const char *function, int32_t device_index) {
  return fail(ROPE_STATUS_CUDA_ERROR, "%s: the context of CUDA device %d cannot be made current", function,
              device_index);
}

Preloader::Preloader(const char *function, const DeviceInfo &device, int32_t device_index)
    : function_(function), device_(device), device_index_(device_index), scope_(device_index) {
  if (!scope_.is_current()) status_ = fail_switch(function, device_index);
}

void Preloader::load(const Kernel &kernel) {
  if (status_ != ROPE_STATUS_SUCCESS) return;
  const cudaError_t error = load_kernel(kernel.address, device_index_, scope_);
  if (error != cudaSuccess) status_ = fail_cuda(function_, "loading a kernel", error, device_);
}

rope_status_t launch_with_params(const char *function, const Launch &what, const ParamsType &type, void *params,
                                 int32_t device_index, rope_stream_t stream) {
  if (what.kernel.params != &type) {
    return fail(ROPE_STATUS_INTERNAL_ERROR, "%s: the kernel takes other params", function);
  }
  DeviceScope scope(device_index);
  if (!scope.is_current()) return fail_switch(function, device_index);
  CUfunction kernel;
  cudaError_t error = find_kernel(what.kernel.address, &kernel);
  if (error != cudaSuccess) return fail_cuda(function, "finding a kernel", error, found_cuda_device(device_index));
  CUlaunchAttribute attribute = {};
  attribute.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
  attribute.value.programmaticStreamSerializationAllowed = 1;
  CUlaunchConfig config = {};
  config.gridDimX = what.grid_x;
  config.gridDimY = what.grid_y;
  config.gridDimZ = 1;
  config.blockDimX = what.threads;
  config.blockDimY = what.thread_rows;
  config.blockDimZ = 1;
  config.sharedMemBytes = what.shared_bytes;
  config.hStream = stream;
  config.attrs = &attribute;
  config.numAttrs = what.is_programmatic ? 1 : 0;
  error = launch_kernel(config, kernel, params);
  if (error == cudaSuccess) return ROPE_STATUS_SUCCESS;
  return fail_cuda(function, "cuLaunchKernelEx", error, found_cuda_device(device_index));
}

}  // namespace rope
