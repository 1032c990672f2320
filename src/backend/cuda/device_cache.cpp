// device_cache.cpp - devices, and the reasons for having none
#include "backend/cuda/device_cache.hpp"

#include <pthread.h>
#include <stdlib.h>

namespace rope {

namespace {

constexpr int kMaxDevices = 64;

pthread_mutex_t cache_mutex = PTHREAD_MUTEX_INITIALIZER;
bool is_cached[kMaxDevices];
DeviceInfo cached_device[kMaxDevices];

constexpr int major_of(int version) {
  return version / 1000;
}
constexpr int minor_of(int version) {
  return version % 1000 / 10;
}

}  // namespace

DeviceScope::DeviceScope(int index) {
  had_error_ = cudaPeekAtLastError() != cudaSuccess;
  status_ = cudaGetDevice(&previous_);
  if (status_ == cudaSuccess && previous_ != index) {
    status_ = cudaSetDevice(index);
    has_switched_ = true;
  }
}

DeviceScope::~DeviceScope() {
  if (has_switched_) cudaSetDevice(previous_);
  if (!had_error_) cudaGetLastError();
}

rope_status_t explain_no_device(const char *function, cudaError_t error, int driver_version,
                                const char *visible_devices) {
  if (error == cudaErrorStubLibrary) {
    return fail(ROPE_STATUS_NO_DEVICE,
                "%s: no NVIDIA driver: the libcuda.so.1 that was found is the CUDA Toolkit's link-time stub", function);
  }
  if (error == cudaErrorInsufficientDriver && driver_version == 0) {
    return fail(ROPE_STATUS_NO_DEVICE, "%s: no NVIDIA driver: libcuda.so.1 cannot be loaded", function);
  }
  if (error == cudaErrorInsufficientDriver) {
    return fail(ROPE_STATUS_NO_DEVICE,
                "%s: the NVIDIA driver is too old: it supports CUDA %d.%d, this librope was built with CUDA %d.%d",
                function, major_of(driver_version), minor_of(driver_version), major_of(CUDART_VERSION),
                minor_of(CUDART_VERSION));
  }
  if (error == cudaErrorNoDevice || error == cudaSuccess) {
    return fail(ROPE_STATUS_NO_DEVICE, "%s: no CUDA device is visible (CUDA_VISIBLE_DEVICES is %s)", function,
                visible_devices != nullptr ? visible_devices : "not set");
  }
  return fail(ROPE_STATUS_CUDA_ERROR, "%s: cudaGetDeviceCount: %s (%s)", function, cudaGetErrorString(error),
              cudaGetErrorName(error));
}

rope_status_t count_cuda_devices(const char *function, int *count) {
  const bool had_error = cudaPeekAtLastError() != cudaSuccess;
  *count = 0;
  const cudaError_t error = cudaGetDeviceCount(count);
  rope_status_t status = ROPE_STATUS_SUCCESS;
  if (error != cudaSuccess || *count == 0) {
    *count = 0;
    int driver_version = 0;
    if (cudaDriverGetVersion(&driver_version) != cudaSuccess) driver_version = 0;
    status = explain_no_device(function, error, driver_version, getenv("CUDA_VISIBLE_DEVICES"));
  }
  if (!had_error) cudaGetLastError();
  return status;
}

rope_status_t find_cuda_device(const char *function, int index, DeviceInfo *device) {
  int count;
  ROPE_TRY(count_cuda_devices(function, &count));
  if (index >= count) {
    return fail(ROPE_STATUS_NO_DEVICE, "%s: device_index is %d: %d CUDA device%s visible", function, index, count,
                count == 1 ? " is" : "s are");
  }
  if (index >= kMaxDevices) {
    return fail(ROPE_STATUS_NOT_SUPPORTED, "%s: device_index is %d: at most %d devices are served", function, index,
                kMaxDevices);
  }
  pthread_mutex_lock(&cache_mutex);
  cudaError_t error = cudaSuccess;
  if (!is_cached[index]) {
    int major = 0, minor = 0, multiprocessors = 0;
    error = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, index);
    if (error == cudaSuccess) error = cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, index);
    if (error == cudaSuccess) error = cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, index);
    if (error == cudaSuccess) {
      cached_device[index] = DeviceInfo{};
      cached_device[index].is_cuda = true;
      cached_device[index].compute_capability = major * 10 + minor;
      cached_device[index].multiprocessors = multiprocessors;
      is_cached[index] = true;
    }
  }
  *device = cached_device[index];
  pthread_mutex_unlock(&cache_mutex);
  if (error == cudaSuccess) return ROPE_STATUS_SUCCESS;
  return fail_cuda(function, "cudaDeviceGetAttribute", error, *device);
}

rope_status_t fail_cuda(const char *function, const char *action, cudaError_t error, const DeviceInfo &device) {
  if (error == cudaErrorNoKernelImageForDevice || error == cudaErrorInvalidDeviceFunction ||
      error == cudaErrorUnsupportedPtxVersion) {
    return fail(ROPE_STATUS_NO_DEVICE, "%s: no kernel for this GPU, sm_%d: this librope was built for %s", function,
                device.compute_capability, ROPE_CUDA_ARCHITECTURES);
  }
  return fail(ROPE_STATUS_CUDA_ERROR, "%s: %s: %s (%s)", function, action, cudaGetErrorString(error),
              cudaGetErrorName(error));
}

}  // namespace rope
