// SPDX-License-Identifier: Apache-2.0
// preloader.hpp - loads the kernels of a descriptor
#pragma once

#include "backend/cuda/device_cache.hpp"
#include "backend/cuda/kernels/kernel.hpp"

namespace rope {

// Loads kernels on a device, one after another, until one fails.
class Preloader {
 public:
  Preloader(const char *function, const DeviceInfo &device, int32_t device_index);

  void load(const Kernel &kernel);

  rope_status_t status() const { return status_; }

 private:
  const char *function_;
  const DeviceInfo &device_;
  int32_t device_index_;
  DeviceScope scope_;
  rope_status_t status_ = ROPE_STATUS_SUCCESS;
};

}  // namespace rope
