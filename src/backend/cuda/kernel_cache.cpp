// SPDX-License-Identifier: Apache-2.0
// kernel_cache.cpp - a table of kernels with their handles and the devices that have loaded them
#include "backend/cuda/kernel_cache.hpp"

#include <stdint.h>

#include "backend/cuda/address_table.hpp"

namespace rope {

namespace {

struct KnownKernel {
  const void *address;  // NULL in a free slot
  CUfunction handle;    // NULL before the first find_kernel
  uint64_t devices;     // bit i: loaded in the primary context of device i
};

// More than twice the number of kernels, so that few slots are searched. Kernels without a slot are found in each call.
AddressTable<KnownKernel, 11> known;

}  // namespace

cudaError_t load_kernel(const void *address, int index, const DeviceScope &scope) {
  KnownKernel *const kernel = known.find(address);
  // For a context of the caller's own nothing is recorded: another context may replace it.
  const uint64_t device = scope.is_primary() ? uint64_t{1} << index : 0;
  if (kernel != nullptr && (__atomic_load_n(&kernel->devices, __ATOMIC_ACQUIRE) & device) != 0) return cudaSuccess;
  const LastErrorScope last_error;
  // Reading a kernel's attributes loads it.
  cudaFuncAttributes attributes;
  cudaError_t error = cudaFuncGetAttributes(&attributes, address);
  CUfunction handle;
  if (error == cudaSuccess) error = find_kernel(address, &handle);
  if (error == cudaSuccess && kernel != nullptr) __atomic_fetch_or(&kernel->devices, device, __ATOMIC_RELEASE);
  return error;
}

#if CUDART_VERSION >= 12080

// The handle is a CUkernel, which is valid in every context until the process ends.
cudaError_t find_kernel(const void *address, CUfunction *kernel) {
  KnownKernel *const there = known.find(address);
  if (there != nullptr) {
    *kernel = __atomic_load_n(&there->handle, __ATOMIC_ACQUIRE);
    if (*kernel != nullptr) return cudaSuccess;
  }
  const LastErrorScope last_error;
  cudaKernel_t found;
  const cudaError_t error = cudaGetKernel(&found, address);
  if (error != cudaSuccess) return error;
  *kernel = reinterpret_cast<CUfunction>(found);
  if (there != nullptr) __atomic_store_n(&there->handle, *kernel, __ATOMIC_RELEASE);
  return cudaSuccess;
}

#else

// Runtimes before 12.8 load modules, and their cudaGetKernel returns `address` itself, which the driver does not
// accept. A module's CUfunction belongs to one context and is destroyed with it (cudaDeviceReset), so it is not cached.
// This costs 55 ns per call (CUDA 12.4, the host of an H100).
cudaError_t find_kernel(const void *address, CUfunction *kernel) {
  const LastErrorScope last_error;
  return cudaGetFuncBySymbol(kernel, address);
}

#endif

}  // namespace rope
