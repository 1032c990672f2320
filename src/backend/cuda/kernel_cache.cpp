// SPDX-License-Identifier: Apache-2.0
// kernel_cache.cpp - a lock-free hash table, to which kernels are added and from which none is removed
#include "backend/cuda/kernel_cache.hpp"

#include <stddef.h>
#include <stdint.h>

namespace rope {

namespace {

struct KnownKernel {
  const void *address;  // NULL in a free slot
  CUfunction handle;    // NULL before the first find_kernel
  uint64_t devices;     // bit i: loaded in the primary context of device i
};

// More than twice the number of kernels, so that few slots are searched.
constexpr int kSlotBits = 11;
constexpr size_t kSlots = size_t{1} << kSlotBits;
KnownKernel known[kSlots];

KnownKernel *slot_of(const void *address) {
  const uint64_t hash = static_cast<uint64_t>(reinterpret_cast<uintptr_t>(address)) * 0x9e3779b97f4a7c15u;
  for (size_t slot = static_cast<size_t>(hash >> (64 - kSlotBits));; slot = (slot + 1) % kSlots) {
    const void **place = &known[slot].address;
    const void *there = __atomic_load_n(place, __ATOMIC_RELAXED);
    if (there == nullptr) {
      // If another thread was faster, `there` receives the address that it stored.
      if (__atomic_compare_exchange_n(place, &there, address, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
        return &known[slot];
      }
    }
    if (there == address) return &known[slot];
  }
}

}  // namespace

cudaError_t load_kernel(const void *address, int index, const DeviceScope &scope) {
  KnownKernel *kernel = slot_of(address);
  // For a context of the caller's own nothing is recorded: another context may replace it.
  const uint64_t device = scope.is_primary() ? uint64_t{1} << index : 0;
  if ((__atomic_load_n(&kernel->devices, __ATOMIC_ACQUIRE) & device) != 0) return cudaSuccess;
  const LastErrorScope last_error;
  // Reading a kernel's attributes loads it.
  cudaFuncAttributes attributes;
  cudaError_t error = cudaFuncGetAttributes(&attributes, address);
  CUfunction handle;
  if (error == cudaSuccess) error = find_kernel(address, &handle);
  if (error == cudaSuccess) __atomic_fetch_or(&kernel->devices, device, __ATOMIC_RELEASE);
  return error;
}

#if CUDART_VERSION >= 12080

// The handle is a CUkernel, which is valid in every context until the process ends.
cudaError_t find_kernel(const void *address, CUfunction *kernel) {
  CUfunction *handle = &slot_of(address)->handle;
  *kernel = __atomic_load_n(handle, __ATOMIC_ACQUIRE);
  if (*kernel != nullptr) return cudaSuccess;
  const LastErrorScope last_error;
  cudaKernel_t found;
  const cudaError_t error = cudaGetKernel(&found, address);
  if (error != cudaSuccess) return error;
  *kernel = reinterpret_cast<CUfunction>(found);
  __atomic_store_n(handle, *kernel, __ATOMIC_RELEASE);
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
