// SPDX-License-Identifier: Apache-2.0
// arrays.hpp - device arrays that are too large for the host: filled and compared on the GPU
#ifndef ROPE_TESTS_CUDA_ARRAYS_HPP
#define ROPE_TESTS_CUDA_ARRAYS_HPP

#include <cuda_runtime_api.h>

#include <cstdint>

// Writes `words` 16-bit words at `data`, which is aligned to 2: as BF16, numbers of either sign from 1/8 to 2. Equal
// seeds give equal words.
cudaError_t fill_random(void *data, int64_t words, uint64_t seed);

// Copies `bytes`, a multiple of 16, on the stream. From compute capability 9.0 on, the kernel lets the next
// programmatic launches start at once, and then waits before it writes.
cudaError_t enqueue_late_copy(void *to, const void *from, int64_t bytes, cudaStream_t stream);

// Writes through an invalid pointer. The error is sticky: no later call of the process on that device succeeds.
cudaError_t enqueue_illegal_access(cudaStream_t stream);

struct Differences {
  unsigned long long count;  // number of differing words
  unsigned long long first;  // index of the first one
};

// Waits for the device.
cudaError_t find_differences(const void *a, const void *b, int64_t words, Differences *found);

#endif
