// device_cache.hpp - which CUDA devices there are, and what is known of each, asked once
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include "core/problem/status.hpp"
#include "plan/device_info.hpp"

namespace rope {

// Leaves no error of the scope's runtime calls for the caller's cudaGetLastError, which shares our runtime where the
// program links the static library. (An error that was there before is replaced if a call of the scope fails.)
class LastErrorScope {
 public:
  LastErrorScope();
  ~LastErrorScope();
  LastErrorScope(const LastErrorScope &) = delete;
  LastErrorScope &operator=(const LastErrorScope &) = delete;

 private:
  bool had_error_;
};

// Makes `index`, a device that was found, the current one for a scope. Where it is current already, as in most
// programs, nothing is set, and a context of the caller's own stays: the streams it made belong to it. Otherwise the
// device's primary context is pushed and popped: setting the device and setting it back would leave a context, and its
// memory, on a device that the program may never use.
//
// The driver is asked, not the runtime, which takes longer and may leave an error.
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

// Number of usable devices. Where it is 0, the error says why.
rope_status_t count_cuda_devices(const char *function, int *count);

// Why cudaGetDeviceCount gave none, in librope's words: its own text for a missing driver, "driver version is
// insufficient", misleads. driver_version is cudaDriverGetVersion's, 0 without a driver.
rope_status_t explain_no_device(const char *function, cudaError_t error, int driver_version,
                                const char *visible_devices);

// Describes a device, which has to exist.
rope_status_t find_cuda_device(const char *function, int index, DeviceInfo *device);

// What find_cuda_device found.
const DeviceInfo &found_cuda_device(int index);

// Of a kernel with one argument, `params`, in the current context. By the driver: the runtime would first ask for the
// device and look the kernel up. The caller's cudaGetLastError does not see it.
cudaError_t launch_kernel(const CUlaunchConfig &config, CUfunction kernel, void *params);

// A failed CUDA call in librope's words: NO_DEVICE where the device cannot run this build, else CUDA_ERROR.
rope_status_t fail_cuda(const char *function, const char *action, cudaError_t error, const DeviceInfo &device);

}  // namespace rope
