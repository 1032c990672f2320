// SPDX-License-Identifier: Apache-2.0
// kernel_cache.hpp - loads kernels, and maps a kernel's host address to the driver's handle
#pragma once

#include <cuda_runtime_api.h>

#include "backend/cuda/device_cache.hpp"

namespace rope {

// Loads a kernel on the device `index`, which the scope has made current. Otherwise the first launch would load it,
// which may wait for the device and is not possible during stream capture.
cudaError_t load_kernel(const void *address, int index, const DeviceScope &scope);

// Finds the handle for launches in the current context.
cudaError_t find_kernel(const void *address, CUfunction *kernel);

}  // namespace rope
