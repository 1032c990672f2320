// SPDX-License-Identifier: Apache-2.0
// launch.hpp - loads kernels for a descriptor, and launches one
#pragma once

#include <cuda_runtime_api.h>

#include "backend/cuda/device_cache.hpp"

namespace rope {

// Loads kernels on a device, one after another, until one fails.
class Preloader {
 public:
  Preloader(const char *function, const DeviceInfo &device, int32_t device_index);

  // Does nothing if `kernel` is NULL.
  void load(const void *kernel);

  rope_status_t status() const { return status_; }

 private:
  const char *function_;
  const DeviceInfo &device_;
  int32_t device_index_;
  DeviceScope scope_;
  rope_status_t status_ = ROPE_STATUS_SUCCESS;
};

struct Launch {
  const void *kernel;
  dim3 grid;
  dim3 block;
  uint32_t shared_bytes;
  bool is_programmatic;
};

// `params` is the kernel's only argument.
rope_status_t launch(const char *function, const Launch &what, void *params, int32_t device_index,
                     rope_stream_t stream);

}  // namespace rope
