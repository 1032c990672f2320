// SPDX-License-Identifier: Apache-2.0
// graph_tests.cpp - calls captured in CUDA graphs: the captured nodes, and the results of a thousand replays
#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "scenes.hpp"

namespace {

const std::vector<std::pair<cudaStreamCaptureMode, const char *>> capture_modes = {
    {cudaStreamCaptureModeGlobal, "global"},
    {cudaStreamCaptureModeThreadLocal, "thread local"},
    {cudaStreamCaptureModeRelaxed, "relaxed"}};

void launch_and_wait(const Graph &graph, int times = 1) {
  const Stream stream;
  for (int i = 0; i < times; ++i) graph.launch(stream);
  REQUIRE_CUDA(cudaStreamSynchronize(stream));
}

// Ends an unfinished capture at the end of the scope.
struct OpenCapture {
  ~OpenCapture() {
    cudaGraph_t graph = nullptr;
    if (cudaStreamEndCapture(stream, &graph) == cudaSuccess) (void)cudaGraphDestroy(graph);
    (void)cudaGetLastError();
  }
  cudaStream_t stream;
};

}  // namespace

TEST_CASE("in every capture mode a call is one kernel and runs at the replay", "[cuda][graphs]") {
  need_gpus();
  for (const auto &[mode, mode_name] : capture_modes) {
    for (const rope_dtype_t dtype : {ROPE_DTYPE_F32, ROPE_DTYPE_F16, ROPE_DTYPE_BF16}) {
      INFO(mode_name);
      const Scenes scenes = scenes_of_each_function(dtype);
      const Graph graph(
          [&](cudaStream_t stream) {
            for (const auto &scene : scenes) require_call(*scene, stream);
          },
          mode);
      CHECK(graph.node_types() == std::vector<cudaGraphNodeType>(scenes.size(), cudaGraphNodeTypeKernel));
      for (const auto &scene : scenes) {
        INFO(scene->describe());
        scene->image().read();
        CHECK(scene->image().is_as_frozen());
      }
      launch_and_wait(graph);
      for (const auto &scene : scenes) scene->check();
    }
  }
}

TEST_CASE("slots may change between the replays of a graph", "[cuda][graphs][step]") {
  need_gpus();
  for (const rope_norm_type_t norm : {int{ROPE_NORM_RMS}, int{ROPE_NORM_LAYER}}) {
    for (const uint32_t flags : {0u, static_cast<uint32_t>(ROPE_FLAG_PROGRAMMATIC_LAUNCH)}) {
      for (const StepCodes codes : {StepCodes::None, StepCodes::StaticScales, StepCodes::WrittenScales}) {
        StepSetup setup;
        setup.dtype = ROPE_DTYPE_BF16;
        setup.norm = norm;
        setup.flags = flags;
        setup.codes = codes;
        StepScene scene(setup);
        const Graph graph([&](cudaStream_t stream) { require_call(scene, stream); });
        CHECK(graph.node_types() == std::vector<cudaGraphNodeType>{cudaGraphNodeTypeKernel});
        for (const int64_t by : {0, 3, 1, 9}) {
          scene.image().reset();
          if (by != 0) scene.move_slots(by);
          launch_and_wait(graph);
          scene.check();
        }
      }
    }
  }
}

TEST_CASE("scales follow the values of each replay, and the largest magnitude only grows", "[cuda][graphs][codes]") {
  need_gpus();
  for (const uint32_t flags : {0u, static_cast<uint32_t>(ROPE_FLAG_PROGRAMMATIC_LAUNCH)}) {
    std::vector<std::unique_ptr<BitScene>> scenes;
    StepSetup step;
    step.dtype = ROPE_DTYPE_BF16;
    step.norm = 0;  // a norm would undo the factors
    step.flags = flags;
    for (const StepCodes codes : {StepCodes::WrittenScales, StepCodes::Amax}) {
      step.codes = codes;
      scenes.push_back(std::make_unique<StepScene>(step));
    }
    SwigluCodesSetup swiglu;
    swiglu.flags = flags;
    for (const SwigluCodes codes : all_swiglu_codes) {
      swiglu.codes = codes;
      scenes.push_back(std::make_unique<SwigluCodesScene>(swiglu));
    }
    const Graph graph([&](cudaStream_t stream) {
      for (const auto &scene : scenes) require_call(*scene, stream);
    });
    launch_and_wait(graph);
    for (const auto &scene : scenes) scene->check();
    for (const double factor : {4.0, 0.125, 16.0}) {
      for (const auto &scene : scenes) scene->multiply_values(factor);
      launch_and_wait(graph);
      for (const auto &scene : scenes) scene->check();
    }
  }
}

TEST_CASE("empty and refused calls leave nothing in a capture and do not end it", "[cuda][graphs]") {
  need_gpus();
  RopeScene scene{RopeSetup()};
  const RopeDesc desc = create(rope_config_for({ROPE_DEVICE_CUDA, 0, ""}, 64));
  const DeviceMemory memory(1024);
  rope_args_t empty = rope_args();
  empty.q.dtype = ROPE_DTYPE_F32;
  empty.q.ndim = 4;
  empty.q.shape[0] = 1;
  empty.q.shape[2] = 2;
  empty.q.shape[3] = 64;
  rope_args_t refused = empty;
  refused.q.data = memory.data();
  refused.q.shape[1] = 1;
  refused.q.shape[3] = 32;
  const Graph graph([&](cudaStream_t stream) {
    CHECK(rope_forward(desc.get(), &empty, stream) == ROPE_STATUS_SUCCESS);
    CHECK(rope_forward(desc.get(), &refused, stream) == ROPE_STATUS_INVALID_ARGUMENT);
    require_call(scene, stream);
    CHECK(rope_backward(desc.get(), &refused, stream) == ROPE_STATUS_INVALID_ARGUMENT);
  });
  CHECK(graph.node_types() == std::vector<cudaGraphNodeType>{cudaGraphNodeTypeKernel});
  launch_and_wait(graph);
  scene.check();
}

TEST_CASE("a thousand replays out of place give what one gives", "[cuda][graphs]") {
  need_gpus();
  for (const rope_dtype_t dtype : {ROPE_DTYPE_F32, ROPE_DTYPE_F16, ROPE_DTYPE_BF16}) {
    Scenes scenes = scenes_with_codes(dtype);
    for (const Direction direction : {Direction::Forward, Direction::Backward}) {
      RopeSetup rope;
      rope.dtype = dtype;
      rope.direction = direction;
      rope.is_in_place = false;
      SwigluSetup swiglu;
      swiglu.dtype = dtype;
      swiglu.direction = direction;
      scenes.push_back(std::make_unique<RopeScene>(rope));
      rope.has_table = true;
      scenes.push_back(std::make_unique<RopeScene>(rope));
      scenes.push_back(std::make_unique<SwigluScene>(swiglu));
    }
    const Graph graph([&](cudaStream_t stream) {
      for (const auto &scene : scenes) require_call(*scene, stream);
    });
    launch_and_wait(graph, 1000);
    for (const auto &scene : scenes) scene->check();
  }
}

TEST_CASE("a thousand replays in place turn by a thousand positions", "[cuda][graphs]") {
  need_gpus();
  for (const rope_style_t style : {ROPE_STYLE_HALF, ROPE_STYLE_INTERLEAVED}) {
    for (const Direction direction : {Direction::Forward, Direction::Backward}) {
      RopeSetup setup;
      setup.style = style;
      setup.direction = direction;
      setup.tokens = 23;
      RopeScene scene(setup);
      const Graph graph([&](cudaStream_t stream) { require_call(scene, stream); });
      launch_and_wait(graph, 1000);
      scene.image().read();
      scene.check_turned(1000);
    }
  }
}

TEST_CASE("a thousand replays in place give the bits of a thousand calls", "[cuda][graphs]") {
  need_gpus();
  for (const rope_dtype_t dtype : {ROPE_DTYPE_F32, ROPE_DTYPE_F16, ROPE_DTYPE_BF16}) {
    for (const bool has_table : {false, true}) {
      RopeSetup setup;
      setup.dtype = dtype;
      setup.has_table = has_table;
      RopeScene scene(setup);
      INFO(scene.describe());
      const Stream stream;
      std::vector<std::vector<std::byte>> after;
      for (int i = 0; i < 1000; ++i) {
        require_call(scene, stream);
        if (i < 998) continue;
        REQUIRE_CUDA(cudaStreamSynchronize(stream));
        scene.image().read();
        after.push_back(scene.image().bytes());
      }
      // One call more or less would be detected.
      const bool is_distinct = after[0] != after[1];
      REQUIRE(is_distinct);
      scene.image().reset();
      const Graph graph([&](cudaStream_t captured) { require_call(scene, captured); });
      launch_and_wait(graph, 1000);
      scene.image().read();
      CHECK(scene.image().is_same_as(after[1]));
    }
  }
}

TEST_CASE("a replay reads tensors and positions as they are then", "[cuda][graphs]") {
  need_gpus();
  for (const bool has_table : {false, true}) {
    RopeSetup setup;
    setup.has_table = has_table;
    RopeScene captured(setup);
    const Graph graph([&](cudaStream_t stream) { require_call(captured, stream); });
    // Other numbers in the same tensors at the same addresses; tables have as many rows.
    setup.seed = 2;
    if (!has_table) setup.first_position = 777;
    RopeScene later(setup);
    REQUIRE(later.image().size() == captured.image().size());
    const auto bytes = static_cast<size_t>(later.image().size());
    const Stream stream;
    const auto copy = [&](void *to, const void *from, cudaMemcpyKind kind) {
      REQUIRE_CUDA(cudaMemcpyAsync(to, from, bytes, kind, stream));
    };
    copy(captured.image().device_data(), later.image().frozen_data(), cudaMemcpyHostToDevice);
    graph.launch(stream);
    copy(later.image().device_data(), captured.image().device_data(), cudaMemcpyDeviceToDevice);
    REQUIRE_CUDA(cudaStreamSynchronize(stream));
    later.check();
  }
}

TEST_CASE("captured and enqueued work outlives its descriptor", "[cuda][graphs]") {
  need_gpus();
  Scenes captured = scenes_of_each_function(ROPE_DTYPE_F16);
  Scenes enqueued = scenes_of_each_function(ROPE_DTYPE_BF16);
  const Graph graph([&](cudaStream_t stream) {
    for (const auto &scene : captured) require_call(*scene, stream);
  });
  const Stream stream;
  StreamBlocker blocker(stream);
  for (const auto &scene : enqueued) require_call(*scene, stream);
  for (const Scenes *scenes : {&captured, &enqueued}) {
    for (const auto &scene : *scenes) scene->destroy_descriptor();
  }
  // Other descriptors reuse the memory.
  rope_config_t rope_config = rope_config_for(devices()[0], 64);
  rope_config.theta = 3;
  std::vector<RopeDesc> ropes;
  std::vector<SwigluDesc> swiglus;
  for (size_t i = 0; i < captured.size() + enqueued.size(); ++i) {
    ropes.push_back(create(rope_config));
    swiglus.push_back(create(swiglu_config_for(devices()[0])));
  }
  CHECK_FALSE(blocker.has_expired());
  blocker.release();
  graph.launch(stream);
  REQUIRE_CUDA(cudaStreamSynchronize(stream));
  for (const Scenes *scenes : {&captured, &enqueued}) {
    for (const auto &scene : *scenes) scene->check();
  }
}

TEST_CASE("a launch that CUDA refuses is CUDA_ERROR in its words, and the next call works", "[cuda][graphs]") {
  need_gpus();
  Scenes scenes = scenes_of_each_function(ROPE_DTYPE_BF16);
  for (const auto &scene : scenes) {
    INFO(scene->describe());
    {
      // The legacy default stream would wait for a stream that is only being captured.
      const Stream captured(cudaStreamDefault);
      REQUIRE_CUDA(cudaStreamBeginCapture(captured, cudaStreamCaptureModeGlobal));
      const OpenCapture end{captured};
      CHECK(scene->call(nullptr) == ROPE_STATUS_CUDA_ERROR);
      const std::string message = rope_last_error();
      CHECK(message.find("cudaErrorStreamCaptureImplicit") != std::string::npos);
      CHECK(message.find(cudaGetErrorString(cudaErrorStreamCaptureImplicit)) != std::string::npos);
      const bool names_function = message.find("rope_forward: ") == 0 || message.find("rope_backward: ") == 0 ||
                                  message.find("swiglu_forward: ") == 0 || message.find("swiglu_backward: ") == 0;
      CHECK(names_function);
    }
    {
      const Stream captured;
      REQUIRE_CUDA(cudaStreamBeginCapture(captured, cudaStreamCaptureModeGlobal));
      const OpenCapture end{captured};
      // Waiting for a stream that is being captured invalidates the capture.
      REQUIRE(cudaStreamSynchronize(captured) != cudaSuccess);
      cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
      (void)cudaStreamIsCapturing(captured, &status);
      REQUIRE(status == cudaStreamCaptureStatusInvalidated);
      CHECK(scene->call(captured) == ROPE_STATUS_CUDA_ERROR);
      const std::string message = rope_last_error();
      CHECK(message.find("cudaErrorStreamCaptureInvalidated") != std::string::npos);
    }
    REQUIRE_CUDA(cudaDeviceSynchronize());
    scene->image().read();
    CHECK(scene->image().is_as_frozen());
    require_call(*scene, nullptr);
    REQUIRE_CUDA(cudaStreamSynchronize(nullptr));
    scene->check();
  }
}
