// kernel_cache.hpp - what the driver launches for a kernel's host address, and where the kernel is loaded already
#pragma once

#include <cuda_runtime_api.h>

#include "backend/cuda/device_cache.hpp"

namespace rope {

// Of the device with `index`, which the scope has made current. Loading a kernel later, at its first launch, could wait
// for the device and cannot happen inside a stream capture.
cudaError_t load_kernel(const void *address, int index, const DeviceScope &scope);

// For launches in the current context.
cudaError_t find_kernel(const void *address, CUfunction *kernel);

}  // namespace rope
