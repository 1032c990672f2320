// kernel_cache.cpp - a hash table without a lock: kernels are added and never removed
#include "backend/cuda/kernel_cache.hpp"

#include <stddef.h>
#include <stdint.h>

namespace rope {

namespace {

struct KnownKernel {
  const void *address;  // NULL in a free slot
  CUfunction handle;    // NULL before the first find_kernel
  uint64_t devices;     // bit i: it is loaded in the primary context of device i
};

// More than twice the kernels that there are, so that a free slot is near.
constexpr int kSlotBits = 11;
constexpr size_t kSlots = size_t{1} << kSlotBits;
KnownKernel known[kSlots];

KnownKernel *slot_of(const void *address) {
  const uint64_t hash = static_cast<uint64_t>(reinterpret_cast<uintptr_t>(address)) * 0x9e3779b97f4a7c15u;
  for (size_t slot = static_cast<size_t>(hash >> (64 - kSlotBits));; slot = (slot + 1) % kSlots) {
    const void **place = &known[slot].address;
    const void *there = __atomic_load_n(place, __ATOMIC_RELAXED);
    if (there == nullptr) {
      // Where another thread is quicker, `there` becomes what it wrote.
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
  // Of a context of the caller's own nothing is remembered: another may follow it.
  const uint64_t device = scope.is_primary() ? uint64_t{1} << index : 0;
  if ((__atomic_load_n(&kernel->devices, __ATOMIC_ACQUIRE) & device) != 0) return cudaSuccess;
  const LastErrorScope last_error;
  // Asking for a kernel's attributes loads it.
  cudaFuncAttributes attributes;
  cudaError_t error = cudaFuncGetAttributes(&attributes, address);
  CUfunction handle;
  if (error == cudaSuccess) error = find_kernel(address, &handle);
  if (error == cudaSuccess) __atomic_fetch_or(&kernel->devices, device, __ATOMIC_RELEASE);
  return error;
}

#if CUDART_VERSION >= 12080

// The handle is a CUkernel, which is the same in every context and for the life of the process.
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

// The runtimes before 12.8 load modules, and their cudaGetKernel returns `address` itself, which the driver does not
// know. A module's CUfunction belongs to one context and dies with it (cudaDeviceReset), so it is not kept: 55 ns a call
// (CUDA 12.4, the host of an H100).
cudaError_t find_kernel(const void *address, CUfunction *kernel) {
  const LastErrorScope last_error;
  return cudaGetFuncBySymbol(kernel, address);
}

#endif

}  // namespace rope
