// SPDX-License-Identifier: Apache-2.0
// gpu.hpp - device memory, streams and graphs, for tests that need a GPU
#ifndef ROPE_TESTS_CUDA_GPU_HPP
#define ROPE_TESTS_CUDA_GPU_HPP

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

// Requires success of the test's own CUDA call. Like all checks of Catch2, only for the thread of the test case.
#define REQUIRE_CUDA(call) require_success((call), #call)
void require_success(cudaError_t status, const char *call);

// These skip the test case and give the reason.
void need_gpus(int count = 1);
void need_device_memory(int64_t bytes);

// The major number times ten plus the minor one.
int compute_capability(int device_index = 0);

// Makes a device current for a scope.
class CurrentDevice {
 public:
  explicit CurrentDevice(int index);
  ~CurrentDevice();
  CurrentDevice(const CurrentDevice &) = delete;
  CurrentDevice &operator=(const CurrentDevice &) = delete;

 private:
  int previous_ = 0;
};

// Memory of the current device.
class DeviceMemory {
 public:
  explicit DeviceMemory(int64_t bytes);
  ~DeviceMemory();
  DeviceMemory(const DeviceMemory &) = delete;
  DeviceMemory &operator=(const DeviceMemory &) = delete;
  std::byte *data() const { return data_; }

 private:
  std::byte *data_ = nullptr;
};

// Host memory for asynchronous copies.
class PinnedMemory {
 public:
  explicit PinnedMemory(int64_t bytes);
  ~PinnedMemory();
  PinnedMemory(const PinnedMemory &) = delete;
  PinnedMemory &operator=(const PinnedMemory &) = delete;
  std::byte *data() const { return data_; }

 private:
  std::byte *data_ = nullptr;
};

// A stream of the current device. With cudaStreamDefault, the legacy default stream waits for it.
class Stream {
 public:
  explicit Stream(unsigned flags = cudaStreamNonBlocking);
  ~Stream();
  Stream(const Stream &) = delete;
  Stream &operator=(const Stream &) = delete;
  operator cudaStream_t() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

// Holds back all work enqueued on a stream after it, until it is released. If some operation waits for that stream
// before the release, it would wait forever; therefore the blocker releases itself after half a minute, and
// has_expired().
//
// During this time a test must not allocate, free or load anything on the device: CUDA may then wait for the stream.
class StreamBlocker {
 public:
  explicit StreamBlocker(cudaStream_t stream);
  ~StreamBlocker();
  StreamBlocker(const StreamBlocker &) = delete;
  StreamBlocker &operator=(const StreamBlocker &) = delete;
  void release();
  bool has_expired() const;

 private:
  struct State;
  static void hold(void *state);
  std::shared_ptr<State> state_;
};

// The capture of all work that `enqueue` enqueues on a stream.
class Graph {
 public:
  explicit Graph(const std::function<void(cudaStream_t)> &enqueue,
                 cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal);
  ~Graph();
  Graph(const Graph &) = delete;
  Graph &operator=(const Graph &) = delete;
  std::vector<cudaGraphNodeType> node_types() const;
  // Edges over which a kernel may start before its predecessor has ended.
  int64_t num_programmatic_edges() const;
  void launch(cudaStream_t stream) const;

 private:
  cudaGraph_t graph_ = nullptr;
  cudaGraphExec_t executable_ = nullptr;
};

#endif
