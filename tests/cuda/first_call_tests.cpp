// SPDX-License-Identifier: Apache-2.0
// first_call_tests.cpp - the first calls of a process: during a capture, and on a stream that is held back
//
// The memory and the kernels that a first call allocates or loads can be observed only in a new process, so these tests
// start this program again with one of the hidden test cases below.
#include <catch2/catch_test_macros.hpp>
#include <string>

#include "process.hpp"
#include "scenes.hpp"

namespace {

// With this setting, CUDA loads kernels as late as possible.
const std::string late_loading = "CUDA_MODULE_LOADING=LAZY";

// A scene for each function, type, style and vector width except the widest.
Scenes scenes_of_each_kernel() {
  Scenes scenes;
  uint64_t seed = 0;
  for (const rope_dtype_t dtype : {ROPE_DTYPE_F32, ROPE_DTYPE_F16, ROPE_DTYPE_BF16}) {
    for (const int64_t start : {0, 1, 2, 4}) {
      for (const Direction direction : {Direction::Forward, Direction::Backward}) {
        for (const rope_style_t style : {ROPE_STYLE_HALF, ROPE_STYLE_INTERLEAVED}) {
          RopeSetup setup;
          setup.dtype = dtype;
          setup.style = style;
          setup.direction = direction;
          setup.start = start;
          setup.has_table = direction == Direction::Backward;
          setup.seed = ++seed;
          scenes.push_back(std::make_unique<RopeScene>(setup));
          setup.is_converted = true;
          setup.seed = ++seed;
          scenes.push_back(std::make_unique<RopeScene>(setup));
        }
        SwigluSetup setup;
        setup.dtype = dtype;
        setup.direction = direction;
        setup.start = start;
        setup.seed = ++seed;
        scenes.push_back(std::make_unique<SwigluScene>(setup));
      }
    }
  }
  return scenes;
}

// Each kernel of the step: few tokens and many, norms before and after the rotation, with computed angles and tables.
void add_steps(Scenes *scenes) {
  uint64_t seed = 100;
  for (const rope_dtype_t dtype : {ROPE_DTYPE_F32, ROPE_DTYPE_F16, ROPE_DTYPE_BF16, ROPE_DTYPE_F64}) {
    for (const rope_style_t style : {ROPE_STYLE_HALF, ROPE_STYLE_INTERLEAVED}) {
      for (const int64_t tokens : {5, 2501}) {
        for (const rope_norm_type_t norm : {0, int{ROPE_NORM_RMS}, int{ROPE_NORM_LAYER}}) {
          for (const rope_norm_order_t order : {int{ROPE_NORM_ORDER_BEFORE}, int{ROPE_NORM_ORDER_AFTER}}) {
            for (const int angles : {0, 1, 2}) {
              StepSetup setup;
              setup.dtype = dtype;
              setup.style = style;
              setup.tokens = tokens;
              setup.norm = norm;
              setup.norm_order = order;
              setup.is_turned = angles > 0;
              setup.has_table = angles > 1;
              setup.seed = ++seed;
              scenes->push_back(std::make_unique<StepScene>(setup));
            }
          }
        }
      }
    }
  }
}

// The kernels of codes: with the angles and norms that have instances of their own, and for single elements. Only short
// launches have static scales here.
void add_codes(Scenes *scenes) {
  for (const rope_dtype_t dtype : {ROPE_DTYPE_F16, ROPE_DTYPE_BF16, ROPE_DTYPE_F32}) {
    for (auto &scene : scenes_with_codes(dtype)) scenes->push_back(std::move(scene));
    if (dtype == ROPE_DTYPE_F32) break;
    uint64_t seed = 1000;
    for (const rope_style_t style : {ROPE_STYLE_HALF, ROPE_STYLE_INTERLEAVED}) {
      for (const rope_norm_type_t norm : {0, int{ROPE_NORM_RMS}, int{ROPE_NORM_LAYER}}) {
        for (const int angles : {0, 1, 2}) {
          StepSetup setup;
          setup.dtype = dtype;
          setup.style = style;
          setup.norm = norm;
          setup.is_turned = angles > 0;
          setup.has_table = angles > 1;
          for (const StepCodes codes : {StepCodes::StaticScales, StepCodes::WrittenScales, StepCodes::Amax}) {
            setup.codes = codes;
            setup.seed = ++seed;
            scenes->push_back(std::make_unique<StepScene>(setup));
          }
        }
      }
    }
    StepSetup large;
    large.dtype = dtype;
    large.codes = StepCodes::StaticScales;
    large.tokens = 2501;
    scenes->push_back(std::make_unique<StepScene>(large));
    SwigluCodesSetup setup;
    setup.dtype = dtype;
    setup.start = 1;
    for (const SwigluCodes codes : {SwigluCodes::StaticScale, SwigluCodes::Gradients}) {
      setup.codes = codes;
      scenes->push_back(std::make_unique<SwigluCodesScene>(setup));
    }
  }
}

// Small launches use vectors of half the width, so the widest vectors need many tokens: these launches are not small on
// up to 160 multiprocessors.
void add_wide_scenes(Scenes *scenes) {
  for (const rope_dtype_t dtype : {ROPE_DTYPE_F32, ROPE_DTYPE_F16, ROPE_DTYPE_BF16}) {
    RopeSetup rope;
    rope.dtype = dtype;
    rope.tokens = dtype == ROPE_DTYPE_F32 ? 801 : 1601;
    scenes->push_back(std::make_unique<RopeScene>(rope));
    rope.is_converted = true;
    scenes->push_back(std::make_unique<RopeScene>(rope));
    SwigluSetup swiglu;
    swiglu.dtype = dtype;
    swiglu.rows = dtype == ROPE_DTYPE_F32 ? 5201 : 10401;
    scenes->push_back(std::make_unique<SwigluScene>(swiglu));
  }
}

void capture_first_calls(cudaStreamCaptureMode mode) {
  need_gpus();
  Scenes scenes = scenes_of_each_kernel();
  if (mode == cudaStreamCaptureModeGlobal) add_wide_scenes(&scenes);
  if (mode == cudaStreamCaptureModeThreadLocal) add_codes(&scenes);
  if (mode == cudaStreamCaptureModeRelaxed) add_steps(&scenes);
  const Graph graph(
      [&](cudaStream_t stream) {
        for (const auto &scene : scenes) require_call(*scene, stream);
      },
      mode);
  const Stream stream;
  graph.launch(stream);
  REQUIRE_CUDA(cudaStreamSynchronize(stream));
  for (const auto &scene : scenes) scene->check();
}

}  // namespace

TEST_CASE("process: first calls in a global capture", "[.process]") {
  capture_first_calls(cudaStreamCaptureModeGlobal);
}

TEST_CASE("process: first calls in a thread-local capture", "[.process]") {
  capture_first_calls(cudaStreamCaptureModeThreadLocal);
}

TEST_CASE("process: first calls in a relaxed capture", "[.process]") {
  capture_first_calls(cudaStreamCaptureModeRelaxed);
}

TEST_CASE("process: first calls on a stream that is held back", "[.process]") {
  need_gpus();
  Scenes scenes = scenes_of_each_kernel();
  add_wide_scenes(&scenes);
  add_codes(&scenes);
  const Stream stream;
  StreamBlocker blocker(stream);
  for (const auto &scene : scenes) require_call(*scene, stream);
  for (const auto &scene : scenes) {
    INFO(scene->describe());
    scene->image().read();
    CHECK(scene->image().is_as_frozen());
  }
  CHECK_FALSE(blocker.has_expired());
  blocker.release();
  REQUIRE_CUDA(cudaStreamSynchronize(stream));
  for (const auto &scene : scenes) scene->check();
}

TEST_CASE("the first calls of a process may be captured in every mode", "[cuda][graphs]") {
  need_gpus();
  require_in_new_process(late_loading, "process: first calls in a global capture");
  require_in_new_process(late_loading, "process: first calls in a thread-local capture");
  require_in_new_process(late_loading, "process: first calls in a relaxed capture");
}

TEST_CASE("the first calls of a process do not wait for the device", "[cuda][streams]") {
  need_gpus();
  require_in_new_process(late_loading, "process: first calls on a stream that is held back");
}
