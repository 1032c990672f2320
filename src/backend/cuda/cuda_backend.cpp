// SPDX-License-Identifier: Apache-2.0
// cuda_backend.cpp - the functions of the CUDA backend
#include "backend/backend.hpp"
#include "backend/cuda/kernels.hpp"
#include "backend/cuda/operations.hpp"
#include "backend/cuda/preloader.hpp"

namespace rope {

namespace {

int32_t count_devices(const char *function) {
  int count;
  count_cuda_devices(function, &count);
  return count;
}

// visit_kernels(visitor) visits the kernels for the descriptor's calls.
template <typename VisitKernels>
rope_status_t open_device(const char *function, rope_dtype_t dtype, int32_t device_index, DeviceInfo *device,
                          VisitKernels visit_kernels) {
  if (!has_kernels_of(dtype)) {
    return fail(ROPE_STATUS_NOT_SUPPORTED, "%s: dtype: this build, for development, has no kernels of %s", function,
                dtype_name(dtype));
  }
  ROPE_TRY(find_cuda_device(function, device_index, device));
  Preloader preloader(function, *device, device_index);
  visit_kernels(KernelVisitor{[](void *owner, const Kernel &kernel) { static_cast<Preloader *>(owner)->load(kernel); },
                              &preloader});
  return preloader.status();
}

rope_status_t open_rope(const char *function, const RopeGeometry &geometry, int32_t device_index, int32_t,
                        DeviceInfo *device) {
  return open_device(function, geometry.dtype, device_index, device, [&](KernelVisitor visit) {
    visit_rope_kernels(geometry, visit);
    visit_step_kernels(geometry, visit);
  });
}

rope_status_t open_swiglu(const char *function, rope_dtype_t dtype, int32_t device_index, int32_t, DeviceInfo *device) {
  return open_device(function, dtype, device_index, device,
                     [&](KernelVisitor visit) { visit_swiglu_kernels(dtype, visit); });
}

const char *describe() {
  return ROPE_CUDA_VERSION " for " ROPE_CUDA_ARCHITECTURES;
}

}  // namespace

const Backend kCudaBackend = {count_devices,    open_rope,       open_swiglu, run_cuda_rope,
                              fill_cuda_tables, run_cuda_swiglu, describe};

}  // namespace rope
