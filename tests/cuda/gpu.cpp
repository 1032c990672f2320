// SPDX-License-Identifier: Apache-2.0
// gpu.cpp - CUDA objects that a test holds for a scope
#include "gpu.hpp"

#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <chrono>
#include <condition_variable>
#include <mutex>

#include "support/device.hpp"

void require_success(cudaError_t status, const char *call) {
  if (status != cudaSuccess) {
    FAIL(call << ": " << cudaGetErrorString(status) << " (" << cudaGetErrorName(status) << ")");
  }
}

void need_gpus(int count) {
  if (!has_cuda()) SKIP("no CUDA device: " << why_no_cuda());
  int present = 0;
  REQUIRE_CUDA(cudaGetDeviceCount(&present));
  if (present < count) SKIP(count << " CUDA devices are needed, " << present << " present");
}

void need_device_memory(int64_t bytes) {
  need_gpus();
  size_t free_bytes = 0, all_bytes = 0;
  REQUIRE_CUDA(cudaMemGetInfo(&free_bytes, &all_bytes));
  const int64_t spare = int64_t{256} << 20;
  if (static_cast<int64_t>(free_bytes) < bytes + spare) {
    SKIP((bytes >> 20) << " MiB of device memory are needed, " << (free_bytes >> 20) << " MiB are free");
  }
}

int compute_capability(int device_index) {
  int major = 0, minor = 0;
  REQUIRE_CUDA(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device_index));
  REQUIRE_CUDA(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device_index));
  return 10 * major + minor;
}

CurrentDevice::CurrentDevice(int index) {
  REQUIRE_CUDA(cudaGetDevice(&previous_));
  REQUIRE_CUDA(cudaSetDevice(index));
}

CurrentDevice::~CurrentDevice() {
  (void)cudaSetDevice(previous_);
}

DeviceMemory::DeviceMemory(int64_t bytes) {
  REQUIRE_CUDA(cudaMalloc(reinterpret_cast<void **>(&data_), static_cast<size_t>(bytes)));
}

DeviceMemory::~DeviceMemory() {
  (void)cudaFree(data_);
}

PinnedMemory::PinnedMemory(int64_t bytes) {
  REQUIRE_CUDA(cudaMallocHost(reinterpret_cast<void **>(&data_), static_cast<size_t>(bytes)));
}

PinnedMemory::~PinnedMemory() {
  (void)cudaFreeHost(data_);
}

Stream::Stream(unsigned flags) {
  REQUIRE_CUDA(cudaStreamCreateWithFlags(&stream_, flags));
}

Stream::~Stream() {
  (void)cudaStreamDestroy(stream_);
}

struct StreamBlocker::State {
  std::mutex mutex;
  std::condition_variable changed;
  bool is_released = false, has_expired = false;
};

void StreamBlocker::hold(void *state) {
  const std::unique_ptr<std::shared_ptr<State>> own(static_cast<std::shared_ptr<State> *>(state));
  State &shared = **own;
  std::unique_lock<std::mutex> lock(shared.mutex);
  shared.has_expired = !shared.changed.wait_for(lock, std::chrono::seconds(30), [&] { return shared.is_released; });
}

StreamBlocker::StreamBlocker(cudaStream_t stream) : state_(std::make_shared<State>()) {
  auto own = std::make_unique<std::shared_ptr<State>>(state_);
  REQUIRE_CUDA(cudaLaunchHostFunc(stream, &StreamBlocker::hold, own.get()));
  (void)own.release();
}

StreamBlocker::~StreamBlocker() {
  release();
}

void StreamBlocker::release() {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  state_->is_released = true;
  state_->changed.notify_all();
}

bool StreamBlocker::has_expired() const {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  return state_->has_expired;
}

Graph::Graph(const std::function<void(cudaStream_t)> &enqueue, cudaStreamCaptureMode mode) {
  const Stream stream;
  REQUIRE_CUDA(cudaStreamBeginCapture(stream, mode));
  try {
    enqueue(stream);
  } catch (...) {
    // The caller reports the failure. An open capture would also fail the test cases that follow.
    if (cudaStreamEndCapture(stream, &graph_) == cudaSuccess) (void)cudaGraphDestroy(graph_);
    throw;
  }
  REQUIRE_CUDA(cudaStreamEndCapture(stream, &graph_));
  REQUIRE_CUDA(cudaGraphInstantiate(&executable_, graph_, 0));
}

Graph::~Graph() {
  (void)cudaGraphExecDestroy(executable_);
  (void)cudaGraphDestroy(graph_);
}

std::vector<cudaGraphNodeType> Graph::node_types() const {
  size_t count = 0;
  REQUIRE_CUDA(cudaGraphGetNodes(graph_, nullptr, &count));
  std::vector<cudaGraphNode_t> nodes(count);
  REQUIRE_CUDA(cudaGraphGetNodes(graph_, nodes.data(), &count));
  std::vector<cudaGraphNodeType> types(count);
  for (size_t i = 0; i < count; ++i) REQUIRE_CUDA(cudaGraphNodeGetType(nodes[i], &types[i]));
  return types;
}

int64_t Graph::num_programmatic_edges() const {
  size_t count = 0;
#if CUDART_VERSION >= 13000
  const auto get_edges = cudaGraphGetEdges;
#else
  const auto get_edges = cudaGraphGetEdges_v2;
#endif
  REQUIRE_CUDA(get_edges(graph_, nullptr, nullptr, nullptr, &count));
  std::vector<cudaGraphNode_t> from(count), to(count);
  std::vector<cudaGraphEdgeData> edges(count);
  REQUIRE_CUDA(get_edges(graph_, from.data(), to.data(), edges.data(), &count));
  return std::count_if(edges.begin(), edges.end(),
                       [](const cudaGraphEdgeData &edge) { return edge.type == cudaGraphDependencyTypeProgrammatic; });
}

void Graph::launch(cudaStream_t stream) const {
  REQUIRE_CUDA(cudaGraphLaunch(executable_, stream));
}
