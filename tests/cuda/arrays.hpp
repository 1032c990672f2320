// arrays.hpp - device arrays too large to be looked at from the host: filled and compared on the GPU
#ifndef ROPE_TESTS_CUDA_ARRAYS_HPP
#define ROPE_TESTS_CUDA_ARRAYS_HPP

#include <cuda_runtime_api.h>

#include <cstdint>

// Writes `words` 16-bit words at `data`, which is aligned to 2: as BF16, numbers of either sign from 1/8 to 2. Equal
// seeds give equal words.
cudaError_t fill_random(void *data, int64_t words, uint64_t seed);

struct Differences {
  unsigned long long count;  // of words
  unsigned long long first;  // index of the first that differs
};

// Waits for the device.
cudaError_t find_differences(const void *a, const void *b, int64_t words, Differences *found);

#endif
