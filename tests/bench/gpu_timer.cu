// SPDX-License-Identifier: Apache-2.0
// gpu_timer.cu - graph timing, the kernels for comparison, and device memory
#include <cuda_runtime.h>

#include <chrono>
#include <cstdio>
#include <cstring>
#include <new>
#include <stdexcept>

#include "fill_bits.hpp"
#include "gpu_timer.hpp"

namespace bench {

namespace {

void check(cudaError_t error, const char *what) {
  if (error == cudaSuccess) return;
  throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(error));
}

// The number of vectors in a row is a power of two or a small multiple of one; the division costs nothing beside the
// memory accesses.
__global__ void __launch_bounds__(256) scale_kernel(char *data, unsigned vectors_in_row, size_t pitch, size_t vectors) {
  const size_t i = static_cast<size_t>(blockIdx.x) * 256 + threadIdx.x;
  if (i >= vectors) return;
  const unsigned row = static_cast<unsigned>(i) / vectors_in_row, column = static_cast<unsigned>(i) % vectors_in_row;
  uint4 *place = reinterpret_cast<uint4 *>(data + row * pitch + column * 16);
  uint4 value = *place;
  value.x ^= 0x80008000u;
  value.y ^= 0x80008000u;
  value.z ^= 0x80008000u;
  value.w ^= 0x80008000u;
  *place = value;
}

template <bool is_programmatic>
__device__ void begin_early() {
#if __CUDA_ARCH__ >= 900
  if constexpr (is_programmatic) {
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
    asm volatile("griddepcontrol.wait;" ::: "memory");
  }
#endif
}

template <bool is_programmatic>
__global__ void __launch_bounds__(256) copy_kernel(uint4 *target, const uint4 *source, size_t vectors) {
  begin_early<is_programmatic>();
  const size_t i = static_cast<size_t>(blockIdx.x) * 256 + threadIdx.x;
  if (i < vectors) target[i] = source[i];
}

__global__ void __launch_bounds__(256) narrowing_kernel(uint2 *target, const uint4 *source, size_t vectors) {
  const size_t i = static_cast<size_t>(blockIdx.x) * 256 + threadIdx.x;
  if (i >= vectors) return;
  const uint4 value = source[i];
  target[i] = make_uint2(value.x ^ value.z, value.y ^ value.w);
}

template <bool is_programmatic>
__global__ void __launch_bounds__(128) load_store_kernel(uint2 *data, unsigned vectors) {
  begin_early<is_programmatic>();
  const unsigned i = blockIdx.x * 128 + threadIdx.x;
  if (i >= vectors) return;
  uint2 value = data[i];
  value.x ^= 0x80008000u;
  value.y ^= 0x80008000u;
  data[i] = value;
}

template <bool is_programmatic>
__global__ void empty_kernel() {
  begin_early<is_programmatic>();
}

// Keeps the stream busy while the host enqueues the launches to be timed.
__global__ void delay_kernel(unsigned long long nanoseconds) {
  unsigned long long begin, now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
  do {
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  } while (now - begin < nanoseconds);
}

template <typename Word>
__global__ void __launch_bounds__(256)
    fill_kernel(Word *words, size_t count, uint64_t first, int exponent_bits, int mantissa_bits) {
  const size_t i = static_cast<size_t>(blockIdx.x) * 256 + threadIdx.x;
  if (i < count) words[i] = static_cast<Word>(random_float_bits(first + i, exponent_bits, mantissa_bits));
}

template <typename Word>
__global__ void __launch_bounds__(256)
    gather_kernel(Word *values, const Word *base, const int64_t *indices, size_t count) {
  const size_t i = static_cast<size_t>(blockIdx.x) * 256 + threadIdx.x;
  if (i < count) values[i] = base[indices[i]];
}

unsigned blocks_for(size_t count, unsigned threads) {
  return static_cast<unsigned>((count + threads - 1) / threads);
}

bool has_programmatic_launch() {
  return gpu().capability >= 90;
}

// Launches through the runtime, as most programs do. librope uses the driver, which takes less time; the difference is
// part of librope's host time above an empty launch.
void launch(const void *kernel, unsigned blocks, unsigned threads, void **arguments, bool is_programmatic,
            cudaStream_t stream, const char *what) {
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(blocks);
  config.blockDim = dim3(threads);
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = is_programmatic && has_programmatic_launch() ? 1 : 0;
  check(cudaLaunchKernelExC(&config, kernel, arguments), what);
}

class Stream {
 public:
  Stream() { check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreateWithFlags"); }
  ~Stream() { cudaStreamDestroy(stream_); }
  Stream(const Stream &) = delete;
  Stream &operator=(const Stream &) = delete;
  operator cudaStream_t() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

class Event {
 public:
  Event() { check(cudaEventCreate(&event_), "cudaEventCreate"); }
  ~Event() { cudaEventDestroy(event_); }
  Event(const Event &) = delete;
  Event &operator=(const Event &) = delete;
  operator cudaEvent_t() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

class Graph {
 public:
  Graph(const GraphTask &task, cudaStream_t stream) : launches_(task.launches) {
    check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
    cudaGraph_t graph = nullptr;
    try {
      for (int i = 0; i < task.launches; ++i) task.enqueue(i, stream);
    } catch (...) {
      cudaStreamEndCapture(stream, &graph);
      if (graph != nullptr) cudaGraphDestroy(graph);
      throw;
    }
    check(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture");
    const cudaError_t error = cudaGraphInstantiate(&executable_, graph, 0);
    cudaGraphDestroy(graph);
    check(error, "cudaGraphInstantiate");
  }
  ~Graph() {
    if (executable_ != nullptr) cudaGraphExecDestroy(executable_);
  }
  Graph(Graph &&other) noexcept : launches_(other.launches_), executable_(other.executable_) {
    other.executable_ = nullptr;
  }
  Graph(const Graph &) = delete;
  Graph &operator=(const Graph &) = delete;

  // Microseconds of one replay. The stream is held back for 1.5 times as long as the host took to enqueue the previous
  // one, and a little more; otherwise the device would wait for the host during the measurement.
  double replay(cudaStream_t stream, const Event &begin, const Event &end) {
    delay_kernel<<<1, 1, 0, stream>>>(30000 + static_cast<unsigned long long>(1500 * std::min(host_us_, 5000.0)));
    check(cudaGetLastError(), "delay_kernel");
    const auto host_begin = std::chrono::steady_clock::now();
    check(cudaEventRecord(begin, stream), "cudaEventRecord");
    check(cudaGraphLaunch(executable_, stream), "cudaGraphLaunch");
    check(cudaEventRecord(end, stream), "cudaEventRecord");
    host_us_ = std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - host_begin).count();
    check(cudaEventSynchronize(end), "replay of the graph");
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, begin, end), "cudaEventElapsedTime");
    return static_cast<double>(milliseconds) * 1e3;
  }
  int launches() const { return launches_; }

 private:
  int launches_;
  double host_us_ = 0;
  cudaGraphExec_t executable_ = nullptr;
};

void copy_and_wait(void *to, const void *from, size_t bytes, cudaMemcpyKind kind) {
  check(cudaMemcpyAsync(to, from, bytes, kind, gpu_stream()), "cudaMemcpyAsync");
  check(cudaStreamSynchronize(gpu_stream()), "cudaStreamSynchronize");
}

std::vector<Spread> spreads_of(const std::vector<std::vector<double>> &times) {
  std::vector<Spread> spreads;
  for (const std::vector<double> &each : times) spreads.push_back(spread_of(each));
  return spreads;
}

int attribute_of(cudaDeviceAttr attribute) {
  int value = 0;
  check(cudaDeviceGetAttribute(&value, attribute, 0), "cudaDeviceGetAttribute");
  return value;
}

// For example "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05  ..."; "" if there is no such file.
std::string driver_version() {
  std::FILE *file = std::fopen("/proc/driver/nvidia/version", "r");
  if (file == nullptr) return "";
  char line[512] = "";
  const bool has_line = std::fgets(line, sizeof line, file) != nullptr;
  std::fclose(file);
  if (!has_line) return "";
  for (const char *word = std::strtok(line, " \t\n"); word != nullptr; word = std::strtok(nullptr, " \t\n")) {
    if (word[0] >= '0' && word[0] <= '9' && std::strchr(word, '.') != nullptr) return word;
  }
  return "";
}

}  // namespace

const Gpu &gpu() {
  static const Gpu found = [] {
    cudaDeviceProp properties;
    check(cudaGetDeviceProperties(&properties, 0), "cudaGetDeviceProperties");
    Gpu result = {};
    result.name = properties.name;
    result.driver = driver_version();
    result.capability = properties.major * 10 + properties.minor;
    result.num_multiprocessors = properties.multiProcessorCount;
    result.clock_mhz = attribute_of(cudaDevAttrClockRate) / 1000;
    result.memory_clock_mhz = attribute_of(cudaDevAttrMemoryClockRate) / 1000;
    result.l2_bytes = static_cast<size_t>(properties.l2CacheSize);
    check(cudaDriverGetVersion(&result.cuda_driver), "cudaDriverGetVersion");
    check(cudaRuntimeGetVersion(&result.cuda_runtime), "cudaRuntimeGetVersion");
    return result;
  }();
  return found;
}

rope_stream_t gpu_stream() {
  static const Stream stream;
  return stream;
}

bool is_gpu_alive() {
  cudaGetLastError();
  return cudaDeviceSynchronize() == cudaSuccess;
}

std::vector<Spread> time_graphs(const std::vector<GraphTask> &tasks, double milliseconds, int min_replays) {
  constexpr int kMaxReplays = 61;
  const rope_stream_t stream = gpu_stream();
  const Event begin, end;
  std::vector<Graph> graphs;
  std::vector<int> replays;
  for (const GraphTask &task : tasks) graphs.emplace_back(task, stream);
  for (Graph &graph : graphs) {
    graph.replay(stream, begin, end);
    const double us = graph.replay(stream, begin, end);
    const int wanted = static_cast<int>(milliseconds * 1e3 / std::max(us, 1.0));
    replays.push_back(std::max(min_replays, std::min(kMaxReplays, wanted)));
  }
  std::vector<std::vector<double>> times(graphs.size());
  for (int turn = 0; turn < kMaxReplays; ++turn) {
    for (size_t i = 0; i < graphs.size(); ++i) {
      if (turn >= replays[i]) continue;
      times[i].push_back(graphs[i].replay(stream, begin, end) / graphs[i].launches());
    }
  }
  return spreads_of(times);
}

std::vector<Spread> time_on_host(int calls, const std::vector<std::function<void(rope_stream_t)>> &kinds) {
  constexpr int kSamples = 201;
  const rope_stream_t stream = gpu_stream();
  std::vector<std::vector<double>> times(kinds.size());
  for (int sample = 0; sample < kSamples; ++sample) {
    for (size_t kind = 0; kind < kinds.size(); ++kind) {
      check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
      const auto begin = std::chrono::steady_clock::now();
      for (int i = 0; i < calls; ++i) kinds[kind](stream);
      const std::chrono::duration<double, std::micro> elapsed = std::chrono::steady_clock::now() - begin;
      if (sample > 0) times[kind].push_back(elapsed.count() / calls);
    }
  }
  check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
  return spreads_of(times);
}

void enqueue_copy(void *target, const void *source, size_t bytes, bool is_programmatic, rope_stream_t stream) {
  size_t vectors = bytes / 16;
  void *arguments[] = {&target, &source, &vectors};
  const void *kernel = is_programmatic ? reinterpret_cast<const void *>(&copy_kernel<true>)
                                       : reinterpret_cast<const void *>(&copy_kernel<false>);
  launch(kernel, blocks_for(vectors, 256), 256, arguments, is_programmatic, stream, "copy_kernel");
}

void enqueue_narrowing(void *target, const void *source, size_t bytes, rope_stream_t stream) {
  size_t vectors = bytes / 24;
  void *arguments[] = {&target, &source, &vectors};
  launch(reinterpret_cast<const void *>(&narrowing_kernel), blocks_for(vectors, 256), 256, arguments, false, stream,
         "narrowing_kernel");
}

void enqueue_scale(void *data, size_t rows, size_t touched, size_t pitch, rope_stream_t stream) {
  const size_t vectors = rows * (touched / 16);
  if (vectors >> 32 != 0) throw std::runtime_error("scale_kernel: too many rows");
  scale_kernel<<<blocks_for(vectors, 256), 256, 0, stream>>>(static_cast<char *>(data),
                                                             static_cast<unsigned>(touched / 16), pitch, vectors);
  check(cudaGetLastError(), "scale_kernel");
}

void enqueue_load_store(void *data, size_t bytes, bool is_programmatic, rope_stream_t stream) {
  uint2 *vectors = static_cast<uint2 *>(data);
  unsigned count = static_cast<unsigned>(bytes / 8);
  void *arguments[] = {&vectors, &count};
  const void *kernel = is_programmatic ? reinterpret_cast<const void *>(&load_store_kernel<true>)
                                       : reinterpret_cast<const void *>(&load_store_kernel<false>);
  launch(kernel, std::max(1u, blocks_for(count, 128)), 128, arguments, is_programmatic, stream, "load_store_kernel");
}

void enqueue_empty(bool is_programmatic, rope_stream_t stream) {
  const void *kernel = is_programmatic ? reinterpret_cast<const void *>(&empty_kernel<true>)
                                       : reinterpret_cast<const void *>(&empty_kernel<false>);
  launch(kernel, 1, 32, nullptr, is_programmatic, stream, "empty_kernel");
}

void *gpu_allocate(size_t bytes) {
  void *memory = nullptr;
  const cudaError_t error = cudaMalloc(&memory, bytes);
  // The error is not one of the device: the next cudaGetLastError must not return it.
  if (error == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    throw std::bad_alloc();
  }
  check(error, "cudaMalloc");
  return memory;
}

void gpu_free(void *data) {
  check(cudaFree(data), "cudaFree");
}

void gpu_fill(void *data, size_t bytes, rope_dtype_t dtype, uint64_t first) {
  if (bytes < 4) return;
  if (dtype == ROPE_DTYPE_F32) {
    fill_kernel<<<blocks_for(bytes / 4, 256), 256, 0, gpu_stream()>>>(static_cast<uint32_t *>(data), bytes / 4, first,
                                                                      8, 23);
  } else {
    const int exponent_bits = dtype == ROPE_DTYPE_F16 ? 5 : 8;
    fill_kernel<<<blocks_for(bytes / 2, 256), 256, 0, gpu_stream()>>>(static_cast<uint16_t *>(data), bytes / 2, first,
                                                                      exponent_bits, 15 - exponent_bits);
  }
  check(cudaGetLastError(), "fill_kernel");
}

void gpu_poison(void *data, size_t bytes) {
  check(cudaMemsetAsync(data, 0xff, bytes, gpu_stream()), "cudaMemsetAsync");
}

void gpu_upload(void *to, const void *from, size_t bytes) {
  copy_and_wait(to, from, bytes, cudaMemcpyHostToDevice);
}

void gpu_gather(const void *base, size_t element_bytes, const std::vector<int64_t> &indices, void *values_out) {
  const size_t count = indices.size(), bytes = count * element_bytes;
  if (count == 0) return;
  // One block for both, so that an exception leaks little.
  char *block = static_cast<char *>(gpu_allocate(count * 8 + bytes));
  int64_t *places = reinterpret_cast<int64_t *>(block);
  gpu_upload(places, indices.data(), count * 8);
  char *values = block + count * 8;
  const unsigned blocks = blocks_for(count, 256);
  if (element_bytes == 1) {
    gather_kernel<<<blocks, 256, 0, gpu_stream()>>>(reinterpret_cast<uint8_t *>(values),
                                                    static_cast<const uint8_t *>(base), places, count);
  } else if (element_bytes == 2) {
    gather_kernel<<<blocks, 256, 0, gpu_stream()>>>(reinterpret_cast<uint16_t *>(values),
                                                    static_cast<const uint16_t *>(base), places, count);
  } else if (element_bytes == 4) {
    gather_kernel<<<blocks, 256, 0, gpu_stream()>>>(reinterpret_cast<uint32_t *>(values),
                                                    static_cast<const uint32_t *>(base), places, count);
  } else {
    gather_kernel<<<blocks, 256, 0, gpu_stream()>>>(reinterpret_cast<uint64_t *>(values),
                                                    static_cast<const uint64_t *>(base), places, count);
  }
  check(cudaGetLastError(), "gather_kernel");
  copy_and_wait(values_out, values, bytes, cudaMemcpyDeviceToHost);
  gpu_free(block);
}

void gpu_synchronize() {
  check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
}

}  // namespace bench
