// SPDX-License-Identifier: Apache-2.0
// cuda_backend.cpp - the functions of the CUDA backend
#include "backend/backend.hpp"
#include "backend/cuda/operations.hpp"

namespace rope {

namespace {

int32_t count_devices(const char *function) {
  int count;
  count_cuda_devices(function, &count);
  return count;
}

// load_kernels(&preloader) loads the kernels for the descriptor's calls.
template <typename LoadKernels>
rope_status_t open_device(const char *function, int32_t device_index, DeviceInfo *device, LoadKernels load_kernels) {
  ROPE_TRY(find_cuda_device(function, device_index, device));
  Preloader preloader(function, *device, device_index);
  load_kernels(&preloader);
  return preloader.status();
}

rope_status_t open_rope(const char *function, const RopeGeometry &geometry, int32_t device_index, int32_t,
                        DeviceInfo *device) {
  return open_device(function, device_index, device, [&](Preloader *preloader) {
    load_rope_kernels(geometry, preloader);
    load_step_kernels(geometry, preloader);
  });
}

rope_status_t open_swiglu(const char *function, rope_dtype_t dtype, int32_t device_index, int32_t, DeviceInfo *device) {
  return open_device(function, device_index, device,
                     [&](Preloader *preloader) { load_swiglu_kernels(dtype, preloader); });
}

const char *describe() {
  return ROPE_CUDA_VERSION " for " ROPE_CUDA_ARCHITECTURES;
}

}  // namespace

const Backend kCudaBackend = {count_devices,    open_rope,       open_swiglu, run_cuda_rope,
                              fill_cuda_tables, run_cuda_swiglu, describe};

}  // namespace rope
