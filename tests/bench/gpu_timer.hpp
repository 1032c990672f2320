// gpu_timer.hpp - times launches in replays of a CUDA graph, and the copy that everything is measured against
#pragma once

#include <cstddef>
#include <functional>

#include "rope/rope.h"

namespace bench {

struct Spread {
  double median_us;
  double min_us;
  double max_us;
};

// Device memory with random 16-bit floats or floats near 1; lives until the program ends.
void *device_memory(size_t bytes);
void *upload(const void *host, size_t bytes);

// Captures `launches` calls of enqueue(i, stream) in a graph and replays it; microseconds a launch, the gap between two
// launches included, as a model would see it.
Spread time_in_graph(int launches, const std::function<void(int, rope_stream_t)> &enqueue);

// One 16-byte load and store a thread, 256 threads a block, default cache policy.
void enqueue_copy(void *target, const void *source, size_t bytes, rope_stream_t stream);

// Name and clocks of the GPU, for the head of the table.
const char *device_name();
size_t l2_bytes();

}  // namespace bench
