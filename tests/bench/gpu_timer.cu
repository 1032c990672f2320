// gpu_timer.cu - graph timing and the copy kernel
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "gpu_timer.hpp"

namespace bench {

namespace {

void check(cudaError_t error, const char *what) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
  std::exit(1);
}

__global__ void __launch_bounds__(256) copy_kernel(uint4 *target, const uint4 *source, size_t vectors) {
  const size_t i = static_cast<size_t>(blockIdx.x) * 256 + threadIdx.x;
  if (i < vectors) target[i] = source[i];
}

// Values of 0.5 to 2 in every 16-bit or 32-bit float type alike, so that any type may read them.
__global__ void fill_kernel(unsigned short *words, size_t count) {
  const size_t i = static_cast<size_t>(blockIdx.x) * 256 + threadIdx.x;
  const unsigned hash = static_cast<unsigned>(i) * 2654435761u;
  if (i < count) words[i] = static_cast<unsigned short>(0x3f00u + (hash >> 24));
}

const cudaDeviceProp &properties() {
  static const cudaDeviceProp found = [] {
    cudaDeviceProp result;
    check(cudaGetDeviceProperties(&result, 0), "cudaGetDeviceProperties");
    return result;
  }();
  return found;
}

}  // namespace

void *device_memory(size_t bytes) {
  void *memory = nullptr;
  check(cudaMalloc(&memory, bytes), "cudaMalloc");
  const size_t words = bytes / 2;
  fill_kernel<<<static_cast<unsigned>((words + 255) / 256), 256>>>(static_cast<unsigned short *>(memory), words);
  check(cudaDeviceSynchronize(), "fill_kernel");
  return memory;
}

void *upload(const void *host, size_t bytes) {
  void *memory = nullptr;
  check(cudaMalloc(&memory, bytes), "cudaMalloc");
  check(cudaMemcpy(memory, host, bytes, cudaMemcpyHostToDevice), "cudaMemcpy");
  return memory;
}

Spread time_in_graph(int launches, const std::function<void(int, rope_stream_t)> &enqueue) {
  constexpr int kReplays = 15;
  cudaStream_t stream;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
  cudaGraph_t graph;
  cudaGraphExec_t executable;
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
  for (int i = 0; i < launches; ++i) enqueue(i, stream);
  check(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture");
  check(cudaGraphInstantiate(&executable, graph, 0), "cudaGraphInstantiate");
  cudaEvent_t begin, end;
  check(cudaEventCreate(&begin), "cudaEventCreate");
  check(cudaEventCreate(&end), "cudaEventCreate");
  for (int i = 0; i < 3; ++i) check(cudaGraphLaunch(executable, stream), "cudaGraphLaunch");
  std::vector<double> times;
  for (int i = 0; i < kReplays; ++i) {
    check(cudaEventRecord(begin, stream), "cudaEventRecord");
    check(cudaGraphLaunch(executable, stream), "cudaGraphLaunch");
    check(cudaEventRecord(end, stream), "cudaEventRecord");
    check(cudaEventSynchronize(end), "cudaEventSynchronize");
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, begin, end), "cudaEventElapsedTime");
    times.push_back(milliseconds * 1e3 / launches);
  }
  std::sort(times.begin(), times.end());
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  cudaGraphExecDestroy(executable);
  cudaGraphDestroy(graph);
  cudaStreamDestroy(stream);
  return {times[kReplays / 2], times.front(), times.back()};
}

void enqueue_copy(void *target, const void *source, size_t bytes, rope_stream_t stream) {
  const size_t vectors = bytes / 16;
  copy_kernel<<<static_cast<unsigned>((vectors + 255) / 256), 256, 0, stream>>>(
      static_cast<uint4 *>(target), static_cast<const uint4 *>(source), vectors);
  check(cudaGetLastError(), "copy_kernel");
}

const char *device_name() {
  return properties().name;
}

size_t l2_bytes() {
  return static_cast<size_t>(properties().l2CacheSize);
}

}  // namespace bench
