// SPDX-License-Identifier: Apache-2.0
// arrays.cu - kernels that fill and compare arrays of any size
#include <cuda_runtime.h>

#include "arrays.hpp"

namespace {

constexpr int threads = 256, blocks = 4096;

__device__ int64_t first_word() {
  return static_cast<int64_t>(blockIdx.x) * threads + threadIdx.x;
}

// SplitMix64 (Steele, Lea, Flood 2014) of the word's index.
__global__ void fill_kernel(uint16_t *data, int64_t words, uint64_t seed) {
  for (int64_t i = first_word(); i < words; i += int64_t{threads} * blocks) {
    uint64_t z = seed + static_cast<uint64_t>(i) * 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    z ^= z >> 31;
    data[i] = static_cast<uint16_t>(0x3E00 + (z & 0x1FF) + (z & 0x8000));
  }
}

// Few enough blocks to leave room for those of the next kernel.
constexpr int late_blocks = 32;
constexpr long long late_clocks = 30000;

__global__ void late_copy_kernel(uint4 *to, const uint4 *from, int64_t count) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
  const long long begin = clock64();
  while (clock64() - begin < late_clocks) {
  }
  for (int64_t i = first_word(); i < count; i += int64_t{threads} * late_blocks) to[i] = from[i];
}

__global__ void compare_kernel(const uint16_t *a, const uint16_t *b, int64_t words, Differences *found) {
  for (int64_t i = first_word(); i < words; i += int64_t{threads} * blocks) {
    if (a[i] == b[i]) continue;
    atomicAdd(&found->count, 1ull);
    atomicMin(&found->first, static_cast<unsigned long long>(i));
  }
}

__global__ void illegal_kernel(uint16_t *nowhere) {
  *nowhere = 1;
}

}  // namespace

cudaError_t fill_random(void *data, int64_t words, uint64_t seed) {
  fill_kernel<<<blocks, threads>>>(static_cast<uint16_t *>(data), words, seed);
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? cudaDeviceSynchronize() : error;
}

cudaError_t enqueue_late_copy(void *to, const void *from, int64_t bytes, cudaStream_t stream) {
  const int64_t count = bytes / static_cast<int64_t>(sizeof(uint4));
  late_copy_kernel<<<late_blocks, threads, 0, stream>>>(static_cast<uint4 *>(to), static_cast<const uint4 *>(from),
                                                        count);
  return cudaGetLastError();
}

cudaError_t find_differences(const void *a, const void *b, int64_t words, Differences *found) {
  *found = {0, ~0ull};
  Differences *there = nullptr;
  cudaError_t error = cudaMalloc(reinterpret_cast<void **>(&there), sizeof *there);
  if (error != cudaSuccess) return error;
  error = cudaMemcpy(there, found, sizeof *found, cudaMemcpyHostToDevice);
  if (error == cudaSuccess) {
    compare_kernel<<<blocks, threads>>>(static_cast<const uint16_t *>(a), static_cast<const uint16_t *>(b), words,
                                        there);
    error = cudaGetLastError();
  }
  if (error == cudaSuccess) error = cudaMemcpy(found, there, sizeof *found, cudaMemcpyDeviceToHost);
  const cudaError_t freed = cudaFree(there);
  return error == cudaSuccess ? freed : error;
}

cudaError_t enqueue_illegal_access(cudaStream_t stream) {
  illegal_kernel<<<1, 1, 0, stream>>>(reinterpret_cast<uint16_t *>(uintptr_t{64}));
  return cudaPeekAtLastError();
}
