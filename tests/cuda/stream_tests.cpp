// SPDX-License-Identifier: Apache-2.0
// stream_tests.cpp - calls are ordered by their stream, run beside other streams, and do not block
#include <atomic>
#include <catch2/catch_test_macros.hpp>
#include <functional>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "scenes.hpp"

namespace {

const std::vector<rope_dtype_t> dtypes = {ROPE_DTYPE_F32, ROPE_DTYPE_F16, ROPE_DTYPE_BF16};

// The result of a call on a frozen image, checked by the oracle.
std::vector<std::byte> correct_bytes(Scene &scene) {
  scene.image().reset();
  const Stream stream;
  require_call(scene, stream);
  REQUIRE_CUDA(cudaStreamSynchronize(stream));
  scene.check();
  scene.image().reset();
  return scene.image().bytes();
}

// Repeats a call on one stream, each time from the frozen image; returns the errors.
std::string run_rounds(const Scene &scene, const DeviceImage &image, const std::vector<std::byte> &expected,
                       cudaStream_t stream, int rounds) {
  for (int round = 0; round < rounds; ++round) {
    cudaError_t error = image.enqueue_reset(stream);
    if (error == cudaSuccess && scene.call(stream) != ROPE_STATUS_SUCCESS) return rope_last_error();
    if (error == cudaSuccess) error = image.enqueue_read(stream);
    if (error == cudaSuccess) error = cudaStreamSynchronize(stream);
    if (error != cudaSuccess) return cudaGetErrorString(error);
    if (!image.is_same_as(expected)) return "round " + std::to_string(round) + " gave other bits";
  }
  return "";
}

}  // namespace

TEST_CASE("a call runs after what its stream was given before and before what it is given later", "[cuda][streams]") {
  need_gpus();
  for (const rope_dtype_t dtype : dtypes) {
    const Scenes scenes = scenes_of_each_function(dtype);
    for (const auto &scene : scenes) {
      INFO(scene->describe());
      const Stream stream;
      scene->image().spoil();
      StreamBlocker blocker(stream);
      REQUIRE_CUDA(scene->image().enqueue_reset(stream));
      require_call(*scene, stream);
      REQUIRE_CUDA(scene->image().enqueue_read(stream));
      // A call that runs too late would leave its output in the device's memory.
      REQUIRE_CUDA(scene->image().enqueue_reset(stream));
      blocker.release();
      REQUIRE_CUDA(cudaStreamSynchronize(stream));
      CHECK_FALSE(blocker.has_expired());
      scene->check_fetched();
      scene->image().read();
      CHECK(scene->image().is_as_frozen());
    }
  }
}

TEST_CASE("a call returns while its stream is held back by a host function", "[cuda][streams]") {
  need_gpus();
  for (const rope_dtype_t dtype : dtypes) {
    const Scenes scenes = scenes_of_each_function(dtype);
    const Stream stream;
    StreamBlocker blocker(stream);
    for (const auto &scene : scenes) require_call(*scene, stream);
    for (const auto &scene : scenes) {
      INFO(scene->describe());
      scene->image().read();
      CHECK(scene->image().is_as_frozen());
    }
    CHECK(cudaStreamQuery(stream) == cudaErrorNotReady);
    CHECK_FALSE(blocker.has_expired());
    blocker.release();
    REQUIRE_CUDA(cudaStreamSynchronize(stream));
    for (const auto &scene : scenes) scene->check();
  }
}

TEST_CASE("a call returns while its stream waits for an event of another", "[cuda][streams]") {
  need_gpus();
  const Scenes scenes = scenes_of_each_function(ROPE_DTYPE_BF16);
  const Stream held, waiting;
  cudaEvent_t event = nullptr;
  REQUIRE_CUDA(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  const std::unique_ptr<CUevent_st, cudaError_t (*)(cudaEvent_t)> owner(event, cudaEventDestroy);
  StreamBlocker blocker(held);
  REQUIRE_CUDA(cudaEventRecord(event, held));
  REQUIRE_CUDA(cudaStreamWaitEvent(waiting, event, 0));
  for (const auto &scene : scenes) require_call(*scene, waiting);
  for (const auto &scene : scenes) {
    INFO(scene->describe());
    scene->image().read();
    CHECK(scene->image().is_as_frozen());
  }
  CHECK_FALSE(blocker.has_expired());
  blocker.release();
  REQUIRE_CUDA(cudaStreamSynchronize(waiting));
  for (const auto &scene : scenes) scene->check();
}

TEST_CASE("one descriptor serves a stream while another is held back", "[cuda][streams][concurrent]") {
  need_gpus();
  RopeSetup setup;
  const auto desc = share(config_for(setup));
  RopeScene held(setup, desc);
  setup.seed = 2;
  setup.tokens = 31;
  setup.first_position = -40;
  setup.direction = Direction::Backward;
  RopeScene free(setup, desc);
  const Stream held_stream, free_stream;
  StreamBlocker blocker(held_stream);
  require_call(held, held_stream);
  require_call(free, free_stream);
  REQUIRE_CUDA(cudaStreamSynchronize(free_stream));
  free.check();
  held.image().read();
  CHECK(held.image().is_as_frozen());
  CHECK_FALSE(blocker.has_expired());
  blocker.release();
  REQUIRE_CUDA(cudaStreamSynchronize(held_stream));
  held.check();
}

TEST_CASE("one descriptor serves two streams turn by turn", "[cuda][streams]") {
  need_gpus();
  constexpr int rounds = 300;
  RopeSetup setup;
  setup.tokens = 301;
  const auto desc = share(config_for(setup));
  RopeScene first(setup, desc);
  setup.seed = 2;
  setup.first_position = -1000;
  RopeScene second(setup, desc);
  const Stream first_stream, second_stream;
  for (int round = 0; round < rounds; ++round) {
    require_call(first, first_stream);
    require_call(second, second_stream);
  }
  REQUIRE_CUDA(cudaStreamSynchronize(first_stream));
  REQUIRE_CUDA(cudaStreamSynchronize(second_stream));
  for (RopeScene *scene : {&first, &second}) {
    scene->image().read();
    scene->check_turned(rounds);
  }
}

TEST_CASE("calls on several streams raise one largest magnitude", "[cuda][streams][concurrent][codes]") {
  need_gpus();
  constexpr int parts = 8;
  constexpr int64_t length = 32;
  std::vector<std::unique_ptr<BitScene>> scenes;
  StepSetup step;
  step.dtype = ROPE_DTYPE_BF16;
  step.codes = StepCodes::Amax;
  step.tokens = parts * length;
  scenes.push_back(std::make_unique<StepScene>(step));
  SwigluCodesSetup swiglu;
  swiglu.rows = parts * length;
  for (const SwigluCodes codes : all_swiglu_codes) {
    swiglu.codes = codes;
    scenes.push_back(std::make_unique<SwigluCodesScene>(swiglu));
  }
  const Stream streams[parts];
  for (const auto &scene : scenes) {
    INFO(scene->describe());
    for (int round = 0; round < 10; ++round) {
      scene->image().reset();
      for (int i = 0; i < parts; ++i) {
        REQUIRE(scene->call_rows(i * length, length, streams[i]) == ROPE_STATUS_SUCCESS);
      }
      for (const Stream &stream : streams) REQUIRE_CUDA(cudaStreamSynchronize(stream));
      scene->check();
    }
  }
}

TEST_CASE("many host threads use one descriptor at once", "[cuda][streams][threads]") {
  need_gpus();
  for (const bool is_per_thread_stream : {false, true}) {
    INFO((is_per_thread_stream ? "each on its per-thread stream" : "each on a stream of its own"));
    RopeSetup rope;
    rope.dtype = ROPE_DTYPE_BF16;
    const auto rope_desc = share(config_for(rope));
    swiglu_config_t swiglu_config = swiglu_config_for({ROPE_DEVICE_CUDA, 0, ""});
    swiglu_config.dtype = ROPE_DTYPE_BF16;
    const auto swiglu_desc = share(swiglu_config);
    SwigluSetup swiglu;
    swiglu.dtype = ROPE_DTYPE_BF16;

    Scenes scenes;
    std::vector<std::unique_ptr<Stream>> streams;
    std::vector<std::vector<std::byte>> expected;
    for (int i = 0; i < 9; ++i) {
      rope.seed = swiglu.seed = static_cast<uint64_t>(i);
      rope.direction = swiglu.direction = i % 2 == 0 ? Direction::Forward : Direction::Backward;
      rope.tokens = 3 + 20 * i;
      rope.first_position = 1000 * i;
      if (i % 3 == 2) {
        scenes.push_back(std::make_unique<SwigluScene>(swiglu, swiglu_desc));
      } else {
        scenes.push_back(std::make_unique<RopeScene>(rope, rope_desc));
      }
      streams.push_back(std::make_unique<Stream>());
      expected.push_back(correct_bytes(*scenes.back()));
    }
    std::vector<std::string> failures(scenes.size());
    std::vector<std::thread> threads;
    std::atomic<size_t> num_ready{0};
    for (size_t i = 0; i < scenes.size(); ++i) {
      threads.emplace_back([&, i] {
        ++num_ready;
        while (num_ready < scenes.size()) std::this_thread::yield();
        const cudaStream_t stream = is_per_thread_stream ? cudaStreamPerThread : static_cast<cudaStream_t>(*streams[i]);
        failures[i] = run_rounds(*scenes[i], scenes[i]->image(), expected[i], stream, 200);
      });
    }
    for (std::thread &thread : threads) thread.join();
    CHECK(failures == std::vector<std::string>(scenes.size()));
  }
}

TEST_CASE("a thread that has not used CUDA makes descriptors and calls", "[cuda][streams][threads]") {
  need_gpus();
  const Scenes scenes = scenes_of_each_function(ROPE_DTYPE_BF16);
  const Stream own;
  for (const cudaStream_t stream : {cudaStream_t{nullptr}, static_cast<cudaStream_t>(own)}) {
    std::string failures;
    const auto in_new_thread = [&](const std::function<rope_status_t()> &action) {
      std::thread([&] {
        if (action() != ROPE_STATUS_SUCCESS) failures += rope_last_error();
      }).join();
    };
    in_new_thread([] {
      const rope_config_t config = rope_config_for({ROPE_DEVICE_CUDA, 0, ""}, 64);
      rope_desc_t *desc = nullptr;
      const rope_status_t status = rope_desc_create(&config, &desc);
      rope_desc_destroy(desc);
      return status;
    });
    for (const auto &scene : scenes) {
      scene->image().reset();
      in_new_thread([&] { return scene->call(stream); });
    }
    REQUIRE_CUDA(cudaStreamSynchronize(stream));
    CHECK(failures == "");
    for (const auto &scene : scenes) scene->check();
  }
}

TEST_CASE("NULL, the legacy handle and the per-thread handle are streams", "[cuda][streams]") {
  need_gpus();
  const Scenes scenes = scenes_of_each_function(ROPE_DTYPE_F16);
  for (const cudaStream_t stream : {cudaStream_t{nullptr}, cudaStreamLegacy, cudaStreamPerThread}) {
    INFO("stream " << static_cast<void *>(stream));
    for (const auto &scene : scenes) {
      scene->image().reset();
      require_call(*scene, stream);
      REQUIRE_CUDA(cudaStreamSynchronize(stream));
      scene->check();
    }
  }
}

TEST_CASE("NULL is the stream that waits for blocking streams and for no other", "[cuda][streams][concurrent]") {
  need_gpus();
  for (const unsigned flags : {unsigned{cudaStreamDefault}, unsigned{cudaStreamNonBlocking}}) {
    const bool is_waited_for = flags == cudaStreamDefault;
    INFO((is_waited_for ? "blocking" : "non-blocking"));
    const Scenes scenes = scenes_of_each_function(ROPE_DTYPE_BF16);
    const Stream held(flags);
    StreamBlocker blocker(held);
    for (const auto &scene : scenes) require_call(*scene, nullptr);
    if (is_waited_for) {
      for (const auto &scene : scenes) {
        INFO(scene->describe());
        scene->image().read();
        CHECK(scene->image().is_as_frozen());
      }
    } else {
      REQUIRE_CUDA(cudaStreamSynchronize(nullptr));
      for (const auto &scene : scenes) scene->check();
    }
    CHECK_FALSE(blocker.has_expired());
    blocker.release();
    REQUIRE_CUDA(cudaStreamSynchronize(held));
    REQUIRE_CUDA(cudaStreamSynchronize(nullptr));
    for (const auto &scene : scenes) scene->check();
  }
}

TEST_CASE("the per-thread handle is the stream of the calling thread", "[cuda][streams][concurrent][threads]") {
  need_gpus();
  RopeSetup setup;
  const auto desc = share(config_for(setup));
  RopeScene here(setup, desc);
  setup.seed = 2;
  RopeScene there(setup, desc);
  std::atomic<bool> is_ready{false}, may_call{false};
  std::future<std::string> failure = std::async(std::launch::async, [&]() -> std::string {
    // The per-thread stream is created at its first use, which may wait.
    cudaError_t error = there.image().enqueue_reset(cudaStreamPerThread);
    if (error == cudaSuccess) error = cudaStreamSynchronize(cudaStreamPerThread);
    is_ready = true;
    while (!may_call) std::this_thread::yield();
    if (error == cudaSuccess && there.call(cudaStreamPerThread) != ROPE_STATUS_SUCCESS) return rope_last_error();
    if (error == cudaSuccess) error = cudaStreamSynchronize(cudaStreamPerThread);
    return error == cudaSuccess ? "" : cudaGetErrorString(error);
  });
  // However this test case ends, the thread ends too.
  const std::shared_ptr<void> permission(nullptr, [&](void *) { may_call = true; });
  while (!is_ready) std::this_thread::yield();
  StreamBlocker blocker(cudaStreamPerThread);
  require_call(here, cudaStreamPerThread);
  may_call = true;
  CHECK(failure.get() == "");
  there.check();
  here.image().read();
  CHECK(here.image().is_as_frozen());
  CHECK_FALSE(blocker.has_expired());
  blocker.release();
  REQUIRE_CUDA(cudaStreamSynchronize(cudaStreamPerThread));
  here.check();
}
