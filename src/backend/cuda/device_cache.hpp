// device_cache.hpp - which CUDA devices there are, and what is known of each, asked once
#pragma once

#include <cuda_runtime_api.h>

#include "core/status.hpp"
#include "plan/device_info.hpp"

namespace rope {

// Makes `index` the current device for a scope and restores the caller's. Where it is current already, as in most
// programs, nothing is set. Errors of the scope's own calls are not left behind for the caller's cudaGetLastError,
// which shares our runtime where the program links the static library.
class DeviceScope {
 public:
  explicit DeviceScope(int index);
  ~DeviceScope();
  DeviceScope(const DeviceScope &) = delete;
  DeviceScope &operator=(const DeviceScope &) = delete;

  cudaError_t status() const { return status_; }

 private:
  int previous_ = -1;
  bool has_switched_ = false;
  bool had_error_;
  cudaError_t status_;
};

// Number of usable devices. Where it is 0, the error says why.
rope_status_t count_cuda_devices(const char *function, int *count);

// Why cudaGetDeviceCount gave none, in librope's words: its own text for a missing driver, "driver version is
// insufficient", misleads. driver_version is cudaDriverGetVersion's, 0 without a driver.
rope_status_t explain_no_device(const char *function, cudaError_t error, int driver_version,
                                const char *visible_devices);

// Describes a device, which has to exist.
rope_status_t find_cuda_device(const char *function, int index, DeviceInfo *device);

// A failed runtime call in librope's words: NO_DEVICE where the device cannot run this build, else CUDA_ERROR.
rope_status_t fail_cuda(const char *function, const char *action, cudaError_t error, const DeviceInfo &device);

}  // namespace rope
