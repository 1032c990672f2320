// SPDX-License-Identifier: Apache-2.0
// last_error_tests.cpp - cudaGetLastError of a caller that shares librope's CUDA runtime is unchanged by each call
//
// With librope.so the caller has a separate CUDA runtime, and librope cannot reach its last error. With the static
// library there is one runtime for both, as in this program.
#include <catch2/catch_test_macros.hpp>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "scenes.hpp"

namespace {

struct Action {
  std::string name;
  rope_status_t expected;
  std::function<rope_status_t()> run;
};

// Every function that calls the CUDA runtime, with accepted and refused requests.
std::vector<Action> actions_on(const Scenes &scenes) {
  std::vector<Action> actions;
  for (const auto &scene : scenes) {
    actions.push_back({scene->describe(), ROPE_STATUS_SUCCESS, [&scene] { return scene->call(nullptr); }});
  }
  const auto create_rope = [](int32_t index, rope_dtype_t dtype) {
    rope_config_t config = rope_config_for({ROPE_DEVICE_CUDA, index, ""}, 64);
    config.dtype = dtype;
    rope_desc_t *desc = nullptr;
    const rope_status_t status = rope_desc_create(&config, &desc);
    rope_desc_destroy(desc);
    return status;
  };
  const auto create_swiglu = [](int32_t index) {
    const swiglu_config_t config = swiglu_config_for({ROPE_DEVICE_CUDA, index, ""});
    swiglu_desc_t *desc = nullptr;
    const rope_status_t status = swiglu_desc_create(&config, &desc);
    swiglu_desc_destroy(desc);
    return status;
  };
  actions.push_back({"rope_desc_create", ROPE_STATUS_SUCCESS, [=] { return create_rope(0, ROPE_DTYPE_F16); }});
  actions.push_back({"swiglu_desc_create", ROPE_STATUS_SUCCESS, [=] { return create_swiglu(0); }});
  actions.push_back(
      {"rope_desc_create on no device", ROPE_STATUS_NO_DEVICE, [=] { return create_rope(1000, ROPE_DTYPE_F32); }});
  actions.push_back({"swiglu_desc_create on no device", ROPE_STATUS_NO_DEVICE, [=] { return create_swiglu(1000); }});
  actions.push_back({"rope_desc_create of no type", ROPE_STATUS_INVALID_ARGUMENT, [=] { return create_rope(0, 77); }});
  actions.push_back({"rope_device_count", ROPE_STATUS_SUCCESS, [] {
                       int32_t count = 0;
                       return rope_device_count(ROPE_DEVICE_CUDA, &count);
                     }});
  return actions;
}

// A launch that CUDA refuses: the stream is being captured, and a wait has invalidated the capture. Runs `check` after
// it.
void refuse_launch(const Scene &scene, bool has_earlier_error, const std::function<void()> &check) {
  const Stream stream;
  REQUIRE_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  const cudaError_t waited = cudaStreamSynchronize(stream);
  if (!has_earlier_error) (void)cudaGetLastError();
  const rope_status_t status = scene.call(stream);
  check();
  cudaGraph_t graph = nullptr;
  const cudaError_t ended = cudaStreamEndCapture(stream, &graph);
  (void)cudaGetLastError();
  CHECK(waited != cudaSuccess);
  CHECK(ended != cudaSuccess);
  CHECK(status == ROPE_STATUS_CUDA_ERROR);
}

}  // namespace

TEST_CASE("an earlier error of the caller is still there after each function", "[cuda][errors]") {
  need_gpus();
  const Scenes scenes = scenes_of_each_function(ROPE_DTYPE_BF16);
  for (const Action &action : actions_on(scenes)) {
    INFO(action.name);
    (void)cudaGetLastError();
    void *memory = nullptr;
    REQUIRE(cudaMalloc(&memory, size_t{1} << 60) == cudaErrorMemoryAllocation);
    CHECK(action.run() == action.expected);
    CHECK(cudaPeekAtLastError() == cudaErrorMemoryAllocation);
    CHECK(cudaGetLastError() == cudaErrorMemoryAllocation);
    CHECK(cudaGetLastError() == cudaSuccess);
  }
  REQUIRE_CUDA(cudaDeviceSynchronize());
}

TEST_CASE("no function leaves an error for the caller", "[cuda][errors]") {
  need_gpus();
  const Scenes scenes = scenes_of_each_function(ROPE_DTYPE_F32);
  for (const Action &action : actions_on(scenes)) {
    INFO(action.name);
    (void)cudaGetLastError();
    CHECK(action.run() == action.expected);
    CHECK(cudaPeekAtLastError() == cudaSuccess);
  }
  REQUIRE_CUDA(cudaDeviceSynchronize());
  for (const auto &scene : scenes) {
    INFO(scene->describe());
    refuse_launch(*scene, false, [] { CHECK(cudaPeekAtLastError() == cudaSuccess); });
  }
}

TEST_CASE("a launch that CUDA refuses does not take an earlier error away", "[cuda][errors]") {
  need_gpus();
  const Scenes scenes = scenes_of_each_function(ROPE_DTYPE_F16);
  for (const auto &scene : scenes) {
    INFO(scene->describe());
    // The error of that wait is the earlier one. Which of the two CUDA keeps is unspecified.
    refuse_launch(*scene, true, [] { CHECK(cudaPeekAtLastError() != cudaSuccess); });
  }
}
