// SPDX-License-Identifier: Apache-2.0
// soak_tests.cpp - minutes of calls from many threads on many streams, each result compared
//
// Hidden, because it takes long: ROPE_SOAK_SECONDS=180 rope_cuda_tests "[soak]"
#include <atomic>
#include <catch2/catch_test_macros.hpp>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "scenes.hpp"

namespace {

constexpr int num_threads = 8, streams_of_thread = 4;

// Descriptors that all threads share: the scenes differ only in their tensors.
class SharedDescriptors {
 public:
  std::shared_ptr<const rope_desc_t> rope(const RopeSetup &setup) {
    auto &desc = ropes_[{setup.dtype, setup.style}];
    if (!desc) desc = share(config_for(setup));
    return desc;
  }
  std::shared_ptr<const swiglu_desc_t> swiglu(rope_dtype_t dtype) {
    auto &desc = swiglus_[dtype];
    if (!desc) {
      swiglu_config_t config = swiglu_config_for({ROPE_DEVICE_CUDA, 0, ""});
      config.dtype = dtype;
      desc = share(config);
    }
    return desc;
  }

 private:
  std::map<std::pair<rope_dtype_t, rope_style_t>, std::shared_ptr<const rope_desc_t>> ropes_;
  std::map<rope_dtype_t, std::shared_ptr<const swiglu_desc_t>> swiglus_;
};

// A scene and its correct bytes, which the oracle has checked once.
struct Known {
  std::unique_ptr<Scene> scene;
  std::vector<std::byte> after;
};

// Every function, of decode size and larger, for one stream of one thread.
std::vector<Known> make_scenes(uint64_t seed, SharedDescriptors *descriptors) {
  std::vector<Known> all;
  for (const rope_dtype_t dtype : {ROPE_DTYPE_F32, ROPE_DTYPE_F16, ROPE_DTYPE_BF16}) {
    for (const Direction direction : {Direction::Forward, Direction::Backward}) {
      for (const bool has_table : {false, true}) {
        RopeSetup rope;
        rope.dtype = dtype;
        rope.direction = direction;
        rope.has_table = has_table;
        rope.style = (seed + all.size()) % 2 == 0 ? ROPE_STYLE_HALF : ROPE_STYLE_INTERLEAVED;
        rope.is_in_place = (seed / 2 + all.size()) % 2 == 0;
        rope.tokens = has_table ? 40 : seed % 3 == 0 ? 301 : 7;
        rope.start = static_cast<int64_t>(seed % 5 == 4 ? 1 : 0);
        rope.seed = seed * 100 + all.size();
        all.push_back({std::make_unique<RopeScene>(rope, descriptors->rope(rope)), {}});
      }
      SwigluSetup swiglu;
      swiglu.dtype = dtype;
      swiglu.direction = direction;
      swiglu.rows = seed % 2 == 0 ? 5 : 700;
      swiglu.seed = seed * 100 + all.size();
      all.push_back({std::make_unique<SwigluScene>(swiglu, descriptors->swiglu(dtype)), {}});
    }
  }
  StepSetup step;
  step.dtype = ROPE_DTYPE_BF16;
  step.codes = seed % 2 == 0 ? StepCodes::Amax : StepCodes::WrittenScales;
  step.seed = seed * 100 + all.size();
  all.push_back({std::make_unique<StepScene>(step), {}});
  SwigluCodesSetup codes;
  codes.codes = all_swiglu_codes[seed % std::size(all_swiglu_codes)];
  codes.seed = seed * 100 + all.size();
  all.push_back({std::make_unique<SwigluCodesScene>(codes), {}});
  const Stream stream;
  for (Known &known : all) {
    require_call(*known.scene, stream);
    REQUIRE_CUDA(cudaStreamSynchronize(stream));
    known.scene->check();
    known.after = known.scene->image().bytes();
  }
  return all;
}

double seconds_to_run() {
  const char *text = std::getenv("ROPE_SOAK_SECONDS");
  return text && *text ? std::atof(text) : 5;
}

}  // namespace

TEST_CASE("8 threads of 4 streams each call without a wrong byte", "[.][cuda][soak]") {
  need_gpus();
  SharedDescriptors descriptors;
  std::vector<std::vector<Known>> scenes;
  std::vector<std::unique_ptr<Stream>> streams;
  for (int i = 0; i < num_threads * streams_of_thread; ++i) {
    scenes.push_back(make_scenes(static_cast<uint64_t>(i), &descriptors));
    streams.push_back(std::make_unique<Stream>());
  }
  std::atomic<int64_t> checked{0}, wrong{0}, refused{0}, failed{0};
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds_to_run());
  std::vector<std::thread> threads;
  for (int thread = 0; thread < num_threads; ++thread) {
    threads.emplace_back([&, thread] {
      failed += cudaSetDevice(0) != cudaSuccess;
      for (size_t round = 0; std::chrono::steady_clock::now() < end && failed == 0; ++round) {
        // All four streams have work before the test waits for the first one.
        const auto known_of = [&](int stream) -> const Known & {
          const auto &of_stream = scenes[thread * streams_of_thread + stream];
          return of_stream[(round + static_cast<size_t>(stream)) % of_stream.size()];
        };
        for (int i = 0; i < streams_of_thread; ++i) {
          const cudaStream_t stream = *streams[thread * streams_of_thread + i];
          Scene &scene = *known_of(i).scene;
          failed += scene.image().enqueue_reset(stream) != cudaSuccess;
          refused += scene.call(stream) != ROPE_STATUS_SUCCESS;
          failed += scene.image().enqueue_read(stream) != cudaSuccess;
        }
        for (int i = 0; i < streams_of_thread; ++i) {
          failed += cudaStreamSynchronize(*streams[thread * streams_of_thread + i]) != cudaSuccess;
          const Known &known = known_of(i);
          wrong += !known.scene->image().is_same_as(known.after);
          ++checked;
        }
        // Meanwhile other descriptors are created and destroyed.
        if (round % 64 == static_cast<size_t>(thread)) {
          const rope_config_t config = rope_config_for({ROPE_DEVICE_CUDA, 0, ""}, 64);
          rope_desc_t *desc = nullptr;
          refused += rope_desc_create(&config, &desc) != ROPE_STATUS_SUCCESS;
          rope_desc_destroy(desc);
        }
      }
    });
  }
  for (std::thread &thread : threads) thread.join();
  std::printf("soak: %lld calls of %d threads on %d streams each checked, %lld wrong, %lld refused, %lld CUDA errors\n",
              static_cast<long long>(checked), num_threads, streams_of_thread, static_cast<long long>(wrong),
              static_cast<long long>(refused), static_cast<long long>(failed));
  CHECK(checked > 0);
  CHECK(wrong == 0);
  CHECK(refused == 0);
  CHECK(failed == 0);
  REQUIRE_CUDA(cudaDeviceSynchronize());
}
