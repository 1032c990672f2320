// device_cache.cpp - devices, and the reasons for having none
#include "backend/cuda/device_cache.hpp"

#include <cuda.h>
#include <pthread.h>
#include <stdlib.h>

namespace rope {

namespace {

constexpr int kMaxDevices = 64;

struct FoundDevice {
  bool is_found;
  DeviceInfo info;
  CUcontext primary_context;  // retained for good
};

pthread_mutex_t found_mutex = PTHREAD_MUTEX_INITIALIZER;
FoundDevice found[kMaxDevices];

// The driver's functions come through the runtime: linking libcuda would keep the library from loading without it.
struct Driver {
  CUresult (*get_device)(CUdevice *device, int ordinal);
  CUresult (*retain_primary_context)(CUcontext *context, CUdevice device);
  CUresult (*push_context)(CUcontext context);
  CUresult (*pop_context)(CUcontext *context);
};

Driver driver;

template <typename Function>
cudaError_t find_driver_function(const char *name, Function *function) {
  cudaDriverEntryPointQueryResult result;
  void *address = nullptr;
  const cudaError_t error = cudaGetDriverEntryPointByVersion(name, &address, 12000, cudaEnableDefault, &result);
  if (error != cudaSuccess) return error;
  if (result != cudaDriverEntryPointSuccess) return cudaErrorSymbolNotFound;
  *function = reinterpret_cast<Function>(address);
  return cudaSuccess;
}

cudaError_t find_driver() {
  cudaError_t error = find_driver_function("cuDeviceGet", &driver.get_device);
  if (error == cudaSuccess) error = find_driver_function("cuDevicePrimaryCtxRetain", &driver.retain_primary_context);
  if (error == cudaSuccess) error = find_driver_function("cuCtxPushCurrent", &driver.push_context);
  if (error == cudaSuccess) error = find_driver_function("cuCtxPopCurrent", &driver.pop_context);
  return error;
}

cudaError_t find_device(int index, FoundDevice *device) {
  device->info = DeviceInfo{};
  device->info.is_cuda = true;
  int major = 0, minor = 0;
  cudaError_t error = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, index);
  if (error == cudaSuccess) error = cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, index);
  device->info.compute_capability = major * 10 + minor;
  if (error == cudaSuccess) {
    error = cudaDeviceGetAttribute(&device->info.multiprocessors, cudaDevAttrMultiProcessorCount, index);
  }
  if (error == cudaSuccess) error = find_driver();
  if (error != cudaSuccess) return error;
  CUdevice handle;
  CUresult result = driver.get_device(&handle, index);
  if (result == CUDA_SUCCESS) result = driver.retain_primary_context(&device->primary_context, handle);
  if (result == CUDA_ERROR_OUT_OF_MEMORY) return cudaErrorMemoryAllocation;
  return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorDevicesUnavailable;
}

constexpr int major_of(int version) {
  return version / 1000;
}
constexpr int minor_of(int version) {
  return version % 1000 / 10;
}

}  // namespace

DeviceScope::DeviceScope(int index) {
  had_error_ = cudaPeekAtLastError() != cudaSuccess;
  int current;
  const cudaError_t error = cudaGetDevice(&current);
  if (error != cudaSuccess) forget_error();
  is_current_ = error == cudaSuccess && current == index;
  if (is_current_) return;
  has_pushed_ = driver.push_context(found[index].primary_context) == CUDA_SUCCESS;
  is_current_ = has_pushed_;
}

DeviceScope::~DeviceScope() {
  CUcontext popped;
  if (has_pushed_) driver.pop_context(&popped);
}

void DeviceScope::forget_error() const {
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
  const bool had_error = cudaPeekAtLastError() != cudaSuccess;
  pthread_mutex_lock(&found_mutex);
  cudaError_t error = cudaSuccess;
  if (!found[index].is_found) {
    error = find_device(index, &found[index]);
    found[index].is_found = error == cudaSuccess;
  }
  *device = found[index].info;
  pthread_mutex_unlock(&found_mutex);
  if (!had_error) cudaGetLastError();
  return error == cudaSuccess ? ROPE_STATUS_SUCCESS : fail_cuda(function, "looking at the device", error, *device);
}

const DeviceInfo &found_cuda_device(int index) {
  return found[index].info;
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
