// SPDX-License-Identifier: Apache-2.0
// gpu_timer.hpp - times launches in replays of CUDA graphs, and the kernels to which results are compared
//
// Failing CUDA calls throw std::runtime_error.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "rope/rope.h"
#include "spread.hpp"

namespace bench {

struct Gpu {
  std::string name, driver;
  int capability, num_multiprocessors, clock_mhz, memory_clock_mhz;
  size_t l2_bytes;
  int cuda_driver, cuda_runtime;  // 13000 for 13.0
};
const Gpu &gpu();

// The only stream of this program. Once two streams have had many launches, every launch in a graph takes 0.18 us
// longer, on any stream and in any graph (H200, driver 580).
rope_stream_t gpu_stream();

// Whether the device still works: after an illegal access every call fails.
bool is_gpu_alive();

// One kind of launch, captured `launches` times in a graph: enqueue(0), enqueue(1), ...
struct GraphTask {
  int launches;
  std::function<void(int, rope_stream_t)> enqueue;
};

// Captures each task in a graph and replays the graphs alternately, each for about `milliseconds` in all. Returns
// microseconds per launch including the gap between two launches, as in a model. Host time is not included.
std::vector<Spread> time_graphs(const std::vector<GraphTask> &tasks, double milliseconds, int min_replays);

// Host time of one call of each kind, from `calls` successive calls on an idle stream. The kinds alternate, because the
// speed of a host changes.
std::vector<Spread> time_on_host(int calls, const std::vector<std::function<void(rope_stream_t)>> &kinds);

// One 16-byte load and store per thread, 256 threads per block, default cache policy.
void enqueue_copy(void *target, const void *source, size_t bytes, bool is_programmatic, rope_stream_t stream);
// Reads 16 bytes per thread and writes 8, `bytes` in all; otherwise like the copy.
void enqueue_narrowing(void *target, const void *source, size_t bytes, rope_stream_t stream);
// Flips the sign of the first `touched` bytes of every `pitch` bytes, 16 bytes per thread.
void enqueue_scale(void *data, size_t rows, size_t touched, size_t pitch, rope_stream_t stream);
// Loads 8 bytes per thread and stores them at the same address.
void enqueue_load_store(void *data, size_t bytes, bool is_programmatic, rope_stream_t stream);
// One block that does nothing, launched by cudaLaunchKernelExC.
void enqueue_empty(bool is_programmatic, rope_stream_t stream);

// The device's implementation of Memory.
void *gpu_allocate(size_t bytes);
void gpu_free(void *data);
void gpu_fill(void *data, size_t bytes, rope_dtype_t dtype, uint64_t first);
void gpu_poison(void *data, size_t bytes);
void gpu_upload(void *to, const void *from, size_t bytes);
void gpu_gather(const void *base, size_t element_bytes, const std::vector<int64_t> &indices, void *values_out);
void gpu_synchronize();

}  // namespace bench
