// SPDX-License-Identifier: Apache-2.0
// device_tests.cpp - the device of a call, and the caller's current device and memory afterwards
#include <catch2/catch_test_macros.hpp>
#include <string>
#include <thread>
#include <vector>

#include "scenes.hpp"

namespace {

int current_device() {
  int device = -1;
  REQUIRE_CUDA(cudaGetDevice(&device));
  return device;
}

// The device on which memory is allocated now: CUDA's current device of the caller.
int device_of_new_memory() {
  const DeviceMemory memory(256);
  cudaPointerAttributes attributes;
  REQUIRE_CUDA(cudaPointerGetAttributes(&attributes, memory.data()));
  return attributes.device;
}

}  // namespace

// [alone]: other processes on the GPU would change its free memory.
TEST_CASE("calls allocate no device memory", "[alone][cuda][devices]") {
  need_gpus();
  std::vector<Scenes> scenes;
  for (const rope_dtype_t dtype : {ROPE_DTYPE_F32, ROPE_DTYPE_F16, ROPE_DTYPE_BF16}) {
    scenes.push_back(scenes_of_each_function(dtype));
  }
  const Stream stream;
  const auto call_each = [&] {
    for (const Scenes &each : scenes) {
      for (const auto &scene : each) require_call(*scene, stream);
    }
  };
  // CUDA's own allocations, made once for launches on a new stream, come first.
  call_each();
  REQUIRE_CUDA(cudaDeviceSynchronize());
  size_t free_before = 0, free_after = 0, all = 0;
  REQUIRE_CUDA(cudaMemGetInfo(&free_before, &all));
  for (int i = 0; i < 200; ++i) call_each();
  REQUIRE_CUDA(cudaDeviceSynchronize());
  REQUIRE_CUDA(cudaMemGetInfo(&free_after, &all));
  CHECK(free_after == free_before);
}

TEST_CASE("a device_index past the last device is NO_DEVICE, with the count", "[cuda][devices]") {
  need_gpus();
  int32_t count = 0;
  REQUIRE(rope_device_count(ROPE_DEVICE_CUDA, &count) == ROPE_STATUS_SUCCESS);
  int32_t runtime_count = 0;
  REQUIRE_CUDA(cudaGetDeviceCount(&runtime_count));
  CHECK(count == runtime_count);
  for (const int32_t index : {count, count + 1, 63, 64, 1000, INT32_MAX}) {
    if (index < count) continue;
    const std::string value = "device_index is " + std::to_string(index);
    const std::string rule = std::to_string(count) + " CUDA device";
    rope_desc_t *rope = reinterpret_cast<rope_desc_t *>(&count);
    const rope_config_t rope_config = rope_config_for({ROPE_DEVICE_CUDA, index, ""}, 64);
    CHECK(rope_desc_create(&rope_config, &rope) == ROPE_STATUS_NO_DEVICE);
    CHECK(rope == nullptr);
    std::string message = rope_last_error();
    INFO(message);
    CHECK(message.find("rope_desc_create: " + value) == 0);
    CHECK(message.find(rule) != std::string::npos);
    swiglu_desc_t *swiglu = reinterpret_cast<swiglu_desc_t *>(&count);
    const swiglu_config_t swiglu_config = swiglu_config_for({ROPE_DEVICE_CUDA, index, ""});
    CHECK(swiglu_desc_create(&swiglu_config, &swiglu) == ROPE_STATUS_NO_DEVICE);
    CHECK(swiglu == nullptr);
    message = rope_last_error();
    CHECK(message.find("swiglu_desc_create: " + value) == 0);
    CHECK(message.find(rule) != std::string::npos);
  }
}

TEST_CASE("descriptors of each device work whichever device is current, and leave it so", "[cuda][devices]") {
  need_gpus(2);
  for (const int current : {0, 1}) {
    for (const int device : {0, 1}) {
      INFO("device " << device << ", current " << current);
      const CurrentDevice scope(current);
      Scenes scenes = scenes_of_each_function(ROPE_DTYPE_BF16, device);
      CHECK(current_device() == current);
      CHECK(device_of_new_memory() == current);
      const auto stream_of_device = [&] {
        const CurrentDevice there(device);
        return std::make_unique<Stream>();
      }();
      // NULL is the default stream of the descriptor's device.
      for (const cudaStream_t stream : {cudaStream_t{nullptr}, static_cast<cudaStream_t>(*stream_of_device)}) {
        for (const auto &scene : scenes) {
          scene->image().reset();
          require_call(*scene, stream);
          CHECK(current_device() == current);
          CHECK(device_of_new_memory() == current);
          {
            const CurrentDevice there(device);
            REQUIRE_CUDA(cudaDeviceSynchronize());
          }
          scene->check();
        }
      }
      // A refused call keeps the current device, too.
      rope_args_t refused = rope_args();
      const RopeDesc desc = create(rope_config_for({ROPE_DEVICE_CUDA, device, ""}, 64));
      CHECK(rope_forward(desc.get(), &refused, nullptr) == ROPE_STATUS_INVALID_ARGUMENT);
      CHECK(current_device() == current);
      for (const auto &scene : scenes) scene->destroy_descriptor();
      CHECK(current_device() == current);
      CHECK(device_of_new_memory() == current);
    }
  }
}

TEST_CASE("the default stream of one device does not wait for that of another", "[cuda][devices]") {
  need_gpus(2);
  const CurrentDevice scope(0);
  Scenes scenes = scenes_of_each_function(ROPE_DTYPE_F32, 1);
  StreamBlocker blocker(nullptr);
  for (const auto &scene : scenes) require_call(*scene, nullptr);
  {
    const CurrentDevice there(1);
    REQUIRE_CUDA(cudaStreamSynchronize(nullptr));
  }
  for (const auto &scene : scenes) scene->check();
  CHECK_FALSE(blocker.has_expired());
  blocker.release();
  REQUIRE_CUDA(cudaStreamSynchronize(nullptr));
}

TEST_CASE("calls of another device than the current one can be captured", "[cuda][devices][graphs]") {
  need_gpus(2);
  for (const int current : {0, 1}) {
    const int device = 1 - current;
    INFO("device " << device << ", current " << current);
    Scenes scenes = scenes_of_each_function(ROPE_DTYPE_F16, device);
    const CurrentDevice there(device);
    const Graph graph([&](cudaStream_t stream) {
      const CurrentDevice scope(current);
      for (const auto &scene : scenes) require_call(*scene, stream);
      CHECK(current_device() == current);
    });
    CHECK(graph.node_types() == std::vector<cudaGraphNodeType>(scenes.size(), cudaGraphNodeTypeKernel));
    const Stream stream;
    graph.launch(stream);
    REQUIRE_CUDA(cudaStreamSynchronize(stream));
    for (const auto &scene : scenes) scene->check();
  }
}

TEST_CASE("threads with different current devices share descriptors of each device", "[cuda][devices][threads]") {
  need_gpus(2);
  std::vector<Scenes> scenes;
  std::vector<std::vector<std::unique_ptr<Stream>>> streams(4);
  for (int thread = 0; thread < 4; ++thread) {
    const int device = thread / 2;
    scenes.push_back(scenes_of_each_function(ROPE_DTYPE_BF16, device));
    const CurrentDevice there(device);
    for (size_t i = 0; i < scenes.back().size(); ++i) streams[thread].push_back(std::make_unique<Stream>());
  }
  std::vector<std::string> failures(scenes.size());
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&, thread] {
      const int current = thread % 2;
      cudaError_t error = cudaSetDevice(current);
      for (size_t i = 0; i < scenes[thread].size(); ++i) {
        const Scene &scene = *scenes[thread][i];
        const cudaStream_t stream = *streams[thread][i];
        if (scene.call(stream) != ROPE_STATUS_SUCCESS) failures[thread] += rope_last_error();
        int now = -1;
        if (error == cudaSuccess) error = cudaGetDevice(&now);
        if (now != current) failures[thread] += " the current device became " + std::to_string(now);
        if (error == cudaSuccess) error = cudaStreamSynchronize(stream);
      }
      if (error != cudaSuccess) failures[thread] += cudaGetErrorString(error);
    });
  }
  for (std::thread &thread : threads) thread.join();
  CHECK(failures == std::vector<std::string>(scenes.size()));
  for (const Scenes &each : scenes) {
    for (const auto &scene : each) scene->check();
  }
}
