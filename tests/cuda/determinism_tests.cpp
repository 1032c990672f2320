// SPDX-License-Identifier: Apache-2.0
// determinism_tests.cpp - a call gives identical bits in every run, on every stream, in replays and beside other work
#include <catch2/catch_test_macros.hpp>
#include <memory>
#include <vector>

#include "scenes.hpp"

namespace {

// Scenes of few tokens and rows, and of so many that not all blocks of a kernel run at once.
Scenes small_and_large_scenes(rope_dtype_t dtype) {
  Scenes scenes = scenes_of_each_function(dtype);
  for (const Direction direction : {Direction::Forward, Direction::Backward}) {
    RopeSetup rope;
    rope.dtype = dtype;
    rope.direction = direction;
    rope.tokens = 5003;
    for (const bool has_table : {false, true}) {
      rope.has_table = has_table;
      scenes.push_back(std::make_unique<RopeScene>(rope));
    }
    SwigluSetup swiglu;
    swiglu.dtype = dtype;
    swiglu.direction = direction;
    swiglu.rows = 20011;
    scenes.push_back(std::make_unique<SwigluScene>(swiglu));
  }
  if (dtype == ROPE_DTYPE_BF16) {
    StepSetup step;
    step.dtype = dtype;
    step.codes = StepCodes::Amax;
    step.tokens = 1201;
    scenes.push_back(std::make_unique<StepScene>(step));
    SwigluCodesSetup codes;
    codes.codes = SwigluCodes::Columns;
    codes.rows = 2016;
    scenes.push_back(std::make_unique<SwigluCodesScene>(codes));
  }
  return scenes;
}

void wait_for(cudaStream_t stream) {
  REQUIRE_CUDA(cudaStreamSynchronize(stream));
}

}  // namespace

TEST_CASE("every run, stream and replay gives the same bits", "[cuda][determinism]") {
  need_gpus();
  for (const rope_dtype_t dtype : {ROPE_DTYPE_F32, ROPE_DTYPE_F16, ROPE_DTYPE_BF16, ROPE_DTYPE_F64}) {
    const Scenes scenes = small_and_large_scenes(dtype);
    const Stream first, second, blocking(cudaStreamDefault);
    const std::vector<cudaStream_t> streams = {first, first, second, nullptr, blocking, cudaStreamPerThread};
    for (const auto &scene : scenes) {
      INFO(scene->describe());
      std::vector<std::byte> expected;
      const auto compare = [&] {
        scene->image().read();
        if (expected.empty()) expected = scene->image().bytes();
        CHECK(scene->image().is_same_as(expected));
      };
      for (const cudaStream_t stream : streams) {
        scene->image().reset();
        require_call(*scene, stream);
        wait_for(stream);
        compare();
      }
      const Graph graph([&](cudaStream_t captured) { require_call(*scene, captured); });
      for (int replay = 0; replay < 5; ++replay) {
        scene->image().reset();
        graph.launch(second);
        wait_for(second);
        compare();
      }
    }
  }
}

TEST_CASE("calls side by side on many streams give the bits of one call", "[cuda][determinism][concurrent]") {
  need_gpus();
  for (const rope_dtype_t dtype : {ROPE_DTYPE_F32, ROPE_DTYPE_F16, ROPE_DTYPE_BF16, ROPE_DTYPE_F64}) {
    const Scenes scenes = small_and_large_scenes(dtype);
    std::vector<std::vector<std::byte>> expected;
    for (const auto &scene : scenes) {
      scene->image().reset();
      require_call(*scene, nullptr);
      wait_for(nullptr);
      scene->image().read();
      expected.push_back(scene->image().bytes());
    }
    std::vector<std::unique_ptr<Stream>> streams;
    for (size_t i = 0; i < scenes.size(); ++i) streams.push_back(std::make_unique<Stream>());
    for (int round = 0; round < 20; ++round) {
      for (const auto &scene : scenes) scene->image().reset();
      for (size_t i = 0; i < scenes.size(); ++i) require_call(*scenes[i], *streams[i]);
      for (size_t i = 0; i < scenes.size(); ++i) {
        INFO(scenes[i]->describe());
        wait_for(*streams[i]);
        scenes[i]->image().read();
        CHECK(scenes[i]->image().is_same_as(expected[i]));
      }
    }
  }
}
