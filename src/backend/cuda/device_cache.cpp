// SPDX-License-Identifier: Apache-2.0
// device_cache.cpp - finds CUDA devices, or the reason why there are none
#include "backend/cuda/device_cache.hpp"

#include <cuda.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

namespace rope {

namespace {

constexpr int kMaxDevices = 64;

struct FoundDevice {
  // the process that found the device; 0: not found yet. A forked child has no device: CUDA does not survive a fork
  pid_t finder;
  DeviceInfo info;
  CUdevice handle;
  CUcontext primary_context;  // retained until the process ends
};

pthread_mutex_t found_mutex = PTHREAD_MUTEX_INITIALIZER;
FoundDevice found[kMaxDevices];

// Driver functions are obtained from the runtime: linked against libcuda, the library would not load without a driver.
struct Driver {
  CUresult (*get_device)(CUdevice *device, int ordinal);
  CUresult (*retain_primary_context)(CUcontext *context, CUdevice device);
  CUresult (*get_context)(CUcontext *context);
  CUresult (*get_device_of_context)(CUdevice *device);
  CUresult (*push_context)(CUcontext context);
  CUresult (*pop_context)(CUcontext *context);
  CUresult (*launch)(const CUlaunchConfig *config, CUfunction kernel, void **arguments, void **extra);
};

bool has_driver;
Driver driver;

// The driver's error numbers equal the runtime's.
cudaError_t runtime_error(CUresult result) {
  return static_cast<cudaError_t>(result);
}

template <typename Function>
void find_driver_function(const char *name, Function *function, cudaError_t *error) {
  if (*error != cudaSuccess) return;
  cudaDriverEntryPointQueryResult result;
  void *address = nullptr;
#if CUDART_VERSION >= 12050
  *error = cudaGetDriverEntryPointByVersion(name, &address, 12000, cudaEnableLegacyStream, &result);
#else
  // None of the functions below changed between CUDA 12.0 and 12.4.
  *error = cudaGetDriverEntryPoint(name, &address, cudaEnableLegacyStream, &result);
#endif
  if (*error == cudaSuccess && result != cudaDriverEntryPointSuccess) *error = cudaErrorSymbolNotFound;
  *function = reinterpret_cast<Function>(address);
}

// Runs once: calls on devices found earlier read the table concurrently.
cudaError_t find_driver() {
  if (has_driver) return cudaSuccess;
  cudaError_t error = cudaSuccess;
  find_driver_function("cuDeviceGet", &driver.get_device, &error);
  find_driver_function("cuDevicePrimaryCtxRetain", &driver.retain_primary_context, &error);
  find_driver_function("cuCtxGetCurrent", &driver.get_context, &error);
  find_driver_function("cuCtxGetDevice", &driver.get_device_of_context, &error);
  find_driver_function("cuCtxPushCurrent", &driver.push_context, &error);
  find_driver_function("cuCtxPopCurrent", &driver.pop_context, &error);
  find_driver_function("cuLaunchKernelEx", &driver.launch, &error);
  has_driver = error == cudaSuccess;
  return error;
}

cudaError_t find_device(int index, FoundDevice *device) {
  device->info = DeviceInfo{};
  device->info.is_cuda = true;
  int major = 0, minor = 0;
  cudaError_t error = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, index);
  if (error == cudaSuccess) error = cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, index);
  device->info.compute_capability = capability_of_code(ROPE_CUDA_ARCHITECTURES, major * 10 + minor);
  if (error == cudaSuccess) {
    error = cudaDeviceGetAttribute(&device->info.multiprocessors, cudaDevAttrMultiProcessorCount, index);
  }
  if (error == cudaSuccess) {
    error = cudaDeviceGetAttribute(&device->info.memory_bus_bits, cudaDevAttrGlobalMemoryBusWidth, index);
  }
  if (error == cudaSuccess) error = find_driver();
  if (error != cudaSuccess) return error;
  CUresult result = driver.get_device(&device->handle, index);
  if (result == CUDA_SUCCESS) result = driver.retain_primary_context(&device->primary_context, device->handle);
  return runtime_error(result);
}

constexpr int major_of(int version) {
  return version / 1000;
}
constexpr int minor_of(int version) {
  return version % 1000 / 10;
}

// The oldest driver that runs this library: any of the runtime's major version, but before CUDA 12.1 (driver 530)
// kernels had at most 4096 bytes of parameters, and those of computed angles have more.
constexpr int kLargeParamsVersion = 12010;
constexpr int kMinDriverVersion = major_of(CUDART_VERSION) * 1000 > kLargeParamsVersion
                                      ? major_of(CUDART_VERSION) * 1000
                                      : kLargeParamsVersion;

}  // namespace

LastErrorScope::LastErrorScope() : had_error_(cudaPeekAtLastError() != cudaSuccess) {}

LastErrorScope::~LastErrorScope() {
  if (!had_error_) cudaGetLastError();
}

DeviceScope::DeviceScope(int index) {
  const FoundDevice &wanted = found[index];
  CUcontext current = nullptr;
  const bool has_context = driver.get_context(&current) == CUDA_SUCCESS && current != nullptr;
  is_primary_ = has_context && current == wanted.primary_context;
  is_current_ = is_primary_;
  if (is_primary_) return;
  CUdevice device;
  if (has_context && driver.get_device_of_context(&device) == CUDA_SUCCESS && device == wanted.handle) {
    is_current_ = true;
    return;
  }
  has_pushed_ = driver.push_context(wanted.primary_context) == CUDA_SUCCESS;
  is_primary_ = is_current_ = has_pushed_;
}

DeviceScope::~DeviceScope() {
  CUcontext popped;
  if (has_pushed_) driver.pop_context(&popped);
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
                "%s: the NVIDIA driver is too old: it supports CUDA %d.%d, this librope was built with CUDA %d.%d and "
                "needs %d.%d or later; for data-centre GPUs NVIDIA's package cuda-compat-%d-%d serves older drivers",
                function, major_of(driver_version), minor_of(driver_version), major_of(CUDART_VERSION),
                minor_of(CUDART_VERSION), major_of(kMinDriverVersion), minor_of(kMinDriverVersion),
                major_of(CUDART_VERSION), minor_of(CUDART_VERSION));
  }
  if (error == cudaErrorNoDevice || error == cudaSuccess) {
    return fail(ROPE_STATUS_NO_DEVICE, "%s: no CUDA device is visible (CUDA_VISIBLE_DEVICES is %s)", function,
                visible_devices != nullptr ? visible_devices : "not set");
  }
  return fail(ROPE_STATUS_CUDA_ERROR, "%s: cudaGetDeviceCount: %s (%s)", function, cudaGetErrorString(error),
              cudaGetErrorName(error));
}

rope_status_t count_cuda_devices(const char *function, int *count) {
  const LastErrorScope last_error;
  *count = 0;
  cudaError_t error = cudaGetDeviceCount(count);
  int driver_version = 0;
  if (cudaDriverGetVersion(&driver_version) != cudaSuccess) driver_version = 0;
  if (error == cudaSuccess && *count > 0) {
    if (driver_version >= kMinDriverVersion) return ROPE_STATUS_SUCCESS;
    error = cudaErrorInsufficientDriver;
  }
  *count = 0;
  return explain_no_device(function, error, driver_version, getenv("CUDA_VISIBLE_DEVICES"));
}

rope_status_t find_cuda_device(const char *function, int index, DeviceInfo *device) {
  const pid_t process = getpid();
  if (index < kMaxDevices && __atomic_load_n(&found[index].finder, __ATOMIC_ACQUIRE) == process) {
    *device = found[index].info;
    return ROPE_STATUS_SUCCESS;
  }
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
  const LastErrorScope last_error;
  pthread_mutex_lock(&found_mutex);
  cudaError_t error = cudaSuccess;
  if (found[index].finder != process) {
    error = find_device(index, &found[index]);
    if (error == cudaSuccess) __atomic_store_n(&found[index].finder, process, __ATOMIC_RELEASE);
  }
  *device = found[index].info;
  pthread_mutex_unlock(&found_mutex);
  return error == cudaSuccess ? ROPE_STATUS_SUCCESS : fail_cuda(function, "looking at the device", error, *device);
}

cudaError_t launch_kernel(const CUlaunchConfig &config, CUfunction kernel, void *params) {
  void *arguments[] = {params};
  return runtime_error(driver.launch(&config, kernel, arguments, nullptr));
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
