// SPDX-License-Identifier: Apache-2.0
// device_cache.hpp - lists the CUDA devices and caches their properties
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include "core/problem/status.hpp"
#include "plan/device_info.hpp"

namespace rope {

// Restores the runtime's last error at the end of a scope, so that the caller's cudaGetLastError does not report errors
// of calls made in the scope; a program that links the static library shares our runtime. (If a call in the scope
// fails, an earlier error of the caller is lost.)
class LastErrorScope {
 public:
  LastErrorScope();
  ~LastErrorScope();
  LastErrorScope(const LastErrorScope &) = delete;
  LastErrorScope &operator=(const LastErrorScope &) = delete;

 private:
  bool had_error_;
};

// Makes `index`, a device found before, the current device for a scope. If it is current already, as in most programs,
// nothing is set and a context of the caller's own stays current: the caller's streams belong to it. Otherwise the
// device's primary context is pushed, and popped at the end. cudaSetDevice there and back would instead leave a
// context, with its memory, on a device that the program may never use.
//
// The current device is read from the driver. The runtime takes longer and may leave an error.
class DeviceScope {
 public:
  explicit DeviceScope(int index);
  ~DeviceScope();
  DeviceScope(const DeviceScope &) = delete;
  DeviceScope &operator=(const DeviceScope &) = delete;

  bool is_current() const { return is_current_; }
  bool is_primary() const { return is_primary_; }

 private:
  bool has_pushed_ = false;
  bool is_current_ = false;
  bool is_primary_ = false;
};

// Counts the usable devices. If there are none, the error gives the reason.
rope_status_t count_cuda_devices(const char *function, int *count);

// Explains in librope's words why cudaGetDeviceCount found no device: the runtime's text for a missing driver, "driver
// version is insufficient", is misleading. driver_version comes from cudaDriverGetVersion and is 0 without a driver.
rope_status_t explain_no_device(const char *function, cudaError_t error, int driver_version,
                                const char *visible_devices);

// Describes a device, or fails if it does not exist.
rope_status_t find_cuda_device(const char *function, int index, DeviceInfo *device);

// The result of an earlier find_cuda_device.
const DeviceInfo &found_cuda_device(int index);

// Launches a kernel with one argument, `params`, in the current context. It calls the driver: the runtime would first
// find the device and look the kernel up. Errors do not reach the caller's cudaGetLastError.
cudaError_t launch_kernel(const CUlaunchConfig &config, CUfunction kernel, void *params);

// Reports a failed CUDA call in librope's words: NO_DEVICE if the device cannot run this build, otherwise CUDA_ERROR.
rope_status_t fail_cuda(const char *function, const char *action, cudaError_t error, const DeviceInfo &device);

}  // namespace rope
