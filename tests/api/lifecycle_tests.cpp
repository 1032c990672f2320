// SPDX-License-Identifier: Apache-2.0
// lifecycle_tests.cpp - version, status, devices, and descriptors used by several threads and processes
#include <rope/rope.h>

#include <atomic>
#include <catch2/catch_test_macros.hpp>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "support/child_process.hpp"
#include "support/device.hpp"

namespace {

// A call that is long enough for several threads, divided between and inside tensors: q and k in place.
struct LargeRope {
  LargeRope() : workspace(51) {
    args.q = workspace.tensor(ROPE_DTYPE_F32, {1, 97, 19, 128});
    args.k = workspace.tensor(ROPE_DTYPE_F32, {1, 97, 13, 128});
    workspace.fill_normal(args.q);
    workspace.fill_normal(args.k);
    workspace.freeze();
    workspace.restore();
  }

  RopeDesc desc(int32_t threads) const {
    rope_config_t config = rope_config_for(devices()[0], 128);
    config.num_threads = threads;
    return create(config);
  }

  Workspace workspace;
  rope_args_t args = rope_args();
};

std::string fail_once() {
  rope_desc_t *desc = nullptr;
  (void)rope_desc_create(nullptr, &desc);
  return rope_last_error();
}

}  // namespace

TEST_CASE("the version is that of the header", "[lifecycle]") {
  CHECK(rope_version() == ROPE_VERSION);
}

TEST_CASE("each status has a name", "[lifecycle]") {
  std::set<std::string> names;
  for (rope_status_t status = ROPE_STATUS_SUCCESS; status <= ROPE_STATUS_INTERNAL_ERROR; ++status) {
    names.insert(rope_status_name(status));
  }
  CHECK(names == std::set<std::string>{"SUCCESS", "INVALID_ARGUMENT", "NOT_SUPPORTED", "OUT_OF_MEMORY", "NO_DEVICE",
                                       "CUDA_ERROR", "INTERNAL_ERROR"});
  CHECK(std::string(rope_status_name(ROPE_STATUS_INVALID_ARGUMENT)) == "INVALID_ARGUMENT");
  for (rope_status_t status : {-1, 7, 1000, INT32_MIN, INT32_MAX}) {
    CHECK(std::string(rope_status_name(status)) == "UNKNOWN");
  }
}

TEST_CASE("build info is one line with the version", "[lifecycle]") {
  const std::string info = rope_build_info();
  const std::string version = std::to_string(ROPE_VERSION_MAJOR) + "." + std::to_string(ROPE_VERSION_MINOR) + "." +
                              std::to_string(ROPE_VERSION_PATCH);
  CHECK(info.find(version) != std::string::npos);
  CHECK(info.find('\n') == std::string::npos);
  CHECK(rope_build_info() == rope_build_info());
}

TEST_CASE("device counts", "[lifecycle]") {
  int32_t count = -1;
  CHECK(rope_device_count(ROPE_DEVICE_CPU, &count) == ROPE_STATUS_SUCCESS);
  CHECK(count == 1);
  count = -1;
  CHECK(rope_device_count(ROPE_DEVICE_CUDA, &count) == ROPE_STATUS_SUCCESS);
  CHECK(count >= 0);
  if (count == 0) CHECK(std::string(rope_last_error()).find("rope_device_count") != std::string::npos);
  for (rope_device_t device : {0, 3, -1, 100}) {
    CHECK(rope_device_count(device, &count) == ROPE_STATUS_INVALID_ARGUMENT);
    CHECK(std::string(rope_last_error()).find(std::to_string(device)) != std::string::npos);
  }
  CHECK(rope_device_count(ROPE_DEVICE_CPU, nullptr) == ROPE_STATUS_INVALID_ARGUMENT);
  CHECK(std::string(rope_last_error()).find("count_out") != std::string::npos);
}

TEST_CASE("all the other tests ran on a CUDA device too", "[lifecycle][cuda]") {
  if (!has_cuda()) SKIP("no CUDA device: " << why_no_cuda());
  CHECK(devices().size() == 2);
}

TEST_CASE("descriptors come and go", "[lifecycle]") {
  rope_desc_destroy(nullptr);
  swiglu_desc_destroy(nullptr);
  for (const Device &device : devices()) {
    INFO(device);
    std::vector<RopeDesc> ropes;
    std::vector<SwigluDesc> swiglus;
    for (int i = 0; i < 200; ++i) {
      ropes.push_back(create(rope_config_for(device, 2 + 2 * i)));
      swiglus.push_back(create(swiglu_config_for(device)));
      if (i % 3 == 0) ropes.erase(ropes.begin() + i / 7);
    }
    const std::set<RopeDesc> distinct(std::make_move_iterator(ropes.begin()), std::make_move_iterator(ropes.end()));
    CHECK(distinct.size() == ropes.size());
  }
}

TEST_CASE("memory of destroyed descriptors is used again", "[lifecycle]") {
  std::set<const void *> used;
  const auto come_and_go = [&] {
    for (int round = 0; round < 1000; ++round) {
      const RopeDesc rope = create(rope_config_for(devices()[0], 4)), other = create(rope_config_for(devices()[0], 4));
      const SwigluDesc swiglu = create(swiglu_config_for(devices()[0]));
      used.insert({rope.get(), other.get(), swiglu.get()});
    }
  };
  come_and_go();
  const size_t before = used.size();
  come_and_go();
  CHECK(used.size() == before);
}

TEST_CASE("what is no live descriptor of the kind is not destroyed", "[lifecycle]") {
  const rope_config_t config = rope_config_for(devices()[0], 4);
  rope_desc_t *gone = create(config).release();
  rope_desc_destroy(gone);
  rope_desc_destroy(gone);
  CHECK(std::string(rope_last_error()).find("rope_desc_destroy: desc is 0x") == 0);
  CHECK(std::string(rope_last_error()).find("it is a destroyed descriptor") != std::string::npos);
  swiglu_desc_t *gone_too = create(swiglu_config_for(devices()[0])).release();
  swiglu_desc_destroy(gone_too);
  swiglu_desc_destroy(gone_too);
  CHECK(std::string(rope_last_error()).find("swiglu_desc_destroy: desc is 0x") == 0);

  // Memory freed twice would be given to two descriptors.
  std::set<RopeDesc> ropes;
  std::set<SwigluDesc> swiglus;
  for (int i = 0; i < 2000; ++i) {
    rope_desc_t *rope = create(config).release();
    swiglu_desc_t *swiglu = create(swiglu_config_for(devices()[0])).release();
    REQUIRE(ropes.insert(RopeDesc(rope)).second);
    REQUIRE(swiglus.insert(SwigluDesc(swiglu)).second);
  }

  rope_desc_t *rope = ropes.begin()->get();
  swiglu_desc_destroy(reinterpret_cast<swiglu_desc_t *>(rope));
  CHECK(std::string(rope_last_error()).find("it is a descriptor of the other operation") != std::string::npos);
  float q[4] = {1, 2, 3, 4};
  rope_args_t args = rope_args();
  args.q = {q, ROPE_DTYPE_F32, 4, 0, {1, 1, 1, 4}, {}};
  CHECK(rope_forward(rope, &args, nullptr) == ROPE_STATUS_SUCCESS);
  swiglu_desc_t *swiglu = swiglus.begin()->get();
  rope_desc_destroy(reinterpret_cast<rope_desc_t *>(swiglu));
  CHECK(std::string(rope_last_error()).find("it is a descriptor of the other operation") != std::string::npos);
  CHECK(rope_forward(reinterpret_cast<rope_desc_t *>(swiglu), &args, nullptr) == ROPE_STATUS_INVALID_ARGUMENT);
  alignas(8) unsigned char other[4096];
  std::memset(other, 0x5a, sizeof other);
  rope_desc_destroy(reinterpret_cast<rope_desc_t *>(other));
  CHECK(std::string(rope_last_error()).find("it is not a descriptor") != std::string::npos);
  CHECK(other[0] == 0x5a);
}

TEST_CASE("a descriptor keeps nothing of the caller's memory", "[lifecycle]") {
  for (const Device &device : devices()) {
    INFO(device);
    Workspace workspace(52);
    rope_args_t args = rope_args();
    args.q = workspace.tensor(ROPE_DTYPE_F32, {1, 7, 2, 8});
    workspace.fill_normal(args.q);
    workspace.freeze();
    std::vector<std::vector<std::byte>> images;
    for (double later : {0.5, 1e9}) {
      std::vector<double> frequencies = {0.5, 0.25, 0.125, 0.0625};
      rope_config_t config = rope_config_for(device, 8);
      config.inv_freq = frequencies.data();
      const RopeDesc desc = create(config);
      frequencies.assign(4, later);
      std::memset(&config, 0xA5, sizeof config);
      workspace.restore();
      REQUIRE(run(device, desc.get(), Direction::Forward, args, workspace) == ROPE_STATUS_SUCCESS);
      images.push_back(workspace.image());
    }
    const bool same = images[0] == images[1];
    CHECK(same);
  }
}

TEST_CASE("the last error belongs to its thread and to its failure", "[lifecycle]") {
  // The first search for devices may leave a message.
  const Device &cpu = devices()[0];
  const std::string here = fail_once();
  CHECK(here.find("rope_desc_create") != std::string::npos);
  std::string before, there;
  std::thread([&] {
    before = rope_last_error();
    int32_t count = 0;
    (void)rope_device_count(77, &count);
    there = rope_last_error();
  }).join();
  CHECK(before.empty());
  CHECK(there.find("77") != std::string::npos);
  CHECK(std::string(rope_last_error()) == here);

  // A successful call does not change the message.
  int32_t count = 0;
  CHECK(rope_device_count(ROPE_DEVICE_CPU, &count) == ROPE_STATUS_SUCCESS);
  Workspace workspace(53);
  rope_args_t args = rope_args();
  args.q = workspace.tensor(ROPE_DTYPE_F32, {1, 2, 1, 8});
  workspace.fill_normal(args.q);
  const RopeDesc desc = create(rope_config_for(cpu, 8));
  CHECK(rope_forward(desc.get(), &args, nullptr) == ROPE_STATUS_SUCCESS);
  CHECK(std::string(rope_last_error()) == here);
}

TEST_CASE("a message for endless values ends", "[lifecycle]") {
  rope_config_t config = rope_config_for(devices()[0], 8);
  config.theta = -1e300;
  rope_desc_t *desc = nullptr;
  CHECK(rope_desc_create(&config, &desc) == ROPE_STATUS_INVALID_ARGUMENT);
  const std::string message = rope_last_error();
  CHECK(message.size() < 500);
  CHECK(message.find("theta") != std::string::npos);
}

TEST_CASE("every number of threads gives the same bits", "[lifecycle][threads]") {
  LargeRope large;
  std::vector<std::byte> first;
  for (int32_t threads : {1, 2, 3, 4, 7, 16, 64, 1000, 0}) {
    INFO("num_threads " << threads);
    const RopeDesc desc = large.desc(threads);
    large.workspace.restore();
    REQUIRE(rope_forward(desc.get(), &large.args, nullptr) == ROPE_STATUS_SUCCESS);
    REQUIRE(large.workspace.guards_hold());
    if (first.empty()) {
      first = large.workspace.image();
    } else {
      const bool same = large.workspace.image() == first;
      CHECK(same);
    }
  }
}

TEST_CASE("many threads use one descriptor at once", "[lifecycle][threads]") {
  LargeRope expected;
  const RopeDesc desc = expected.desc(0);
  REQUIRE(rope_forward(desc.get(), &expected.args, nullptr) == ROPE_STATUS_SUCCESS);
  const std::vector<std::byte> image = expected.workspace.image();

  std::vector<LargeRope> larges(6);
  std::vector<int> wrong(larges.size(), 0);
  std::vector<std::thread> threads;
  for (size_t i = 0; i < larges.size(); ++i) {
    threads.emplace_back([&, i] {
      for (int round = 0; round < 8; ++round) {
        larges[i].workspace.restore();
        const rope_status_t status = rope_forward(desc.get(), &larges[i].args, nullptr);
        wrong[i] += status != ROPE_STATUS_SUCCESS || larges[i].workspace.image() != image;
      }
    });
  }
  for (std::thread &thread : threads) thread.join();
  CHECK(wrong == std::vector<int>(larges.size(), 0));
}

TEST_CASE("threads create, use and destroy descriptors of their own", "[lifecycle][threads]") {
  std::vector<int> failures(8, 0);
  std::vector<std::thread> threads;
  for (size_t i = 0; i < failures.size(); ++i) {
    threads.emplace_back([&failures, i] {
      Workspace workspace(54 + i);
      rope_args_t args = rope_args();
      args.q = workspace.tensor(ROPE_DTYPE_F32, {1, 3, 2, 8});
      workspace.fill_normal(args.q);
      for (int round = 0; round < 100; ++round) {
        const rope_config_t config = rope_config_for(devices()[0], 8);
        rope_desc_t *desc = nullptr;
        failures[i] += rope_desc_create(&config, &desc) != ROPE_STATUS_SUCCESS;
        failures[i] += rope_forward(desc, &args, nullptr) != ROPE_STATUS_SUCCESS;
        rope_desc_destroy(desc);
      }
    });
  }
  for (std::thread &thread : threads) thread.join();
  CHECK(failures == std::vector<int>(failures.size(), 0));
}

TEST_CASE("a call runs on as many threads as its descriptor says", "[lifecycle][threads]") {
  skip_forks_under_sanitizers();
  LargeRope large;
  const RopeDesc rope = large.desc(3);
  swiglu_config_t config = swiglu_config_for(devices()[0]);
  config.num_threads = 3;
  const SwigluDesc swiglu = create(config);
  Workspace workspace(52);
  swiglu_args_t args = swiglu_args();
  args.gate = args.up = args.out = workspace.tensor(ROPE_DTYPE_F32, {1024, 1024});
  workspace.freeze();
  workspace.restore();
  for (const bool is_rope : {true, false}) {
    INFO((is_rope ? "RoPE" : "SwiGLU"));
    CHECK(holds_in_child([&] {  // the child has only this thread
      const rope_status_t status =
          is_rope ? rope_forward(rope.get(), &large.args, nullptr) : swiglu_forward(swiglu.get(), &args, nullptr);
      const auto tasks = std::filesystem::directory_iterator("/proc/self/task");
      return status == ROPE_STATUS_SUCCESS && std::distance(begin(tasks), end(tasks)) == 3;
    }));
  }
}

TEST_CASE("a child process makes descriptors, whatever other threads did at the fork", "[lifecycle][threads]") {
  skip_forks_under_sanitizers();
  const rope_config_t config = rope_config_for(devices()[0], 4);
  std::atomic<bool> is_over{false};
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      while (!is_over) {
        rope_desc_t *desc = nullptr;
        (void)rope_desc_create(&config, &desc);
        rope_desc_destroy(desc);
      }
    });
  }
  int failures = 0;
  for (int round = 0; round < 300 && failures == 0; ++round) {
    // A lock held by a thread that the child lacks would never be released.
    failures += !holds_in_child([&] {
      rope_desc_t *desc = nullptr;
      return rope_desc_create(&config, &desc) == ROPE_STATUS_SUCCESS;
    });
  }
  is_over = true;
  for (std::thread &thread : threads) thread.join();
  CHECK(failures == 0);
}

TEST_CASE("a child process may call after its parent did", "[lifecycle][threads]") {
  skip_forks_under_sanitizers();
  LargeRope large;
  const RopeDesc desc = large.desc(4);
  REQUIRE(rope_forward(desc.get(), &large.args, nullptr) == ROPE_STATUS_SUCCESS);
  const std::vector<std::byte> expected = large.workspace.image();

  // A child that tried to use its parent's pool would wait forever.
  CHECK(holds_in_child([&] {
    large.workspace.restore();
    const bool served = rope_forward(desc.get(), &large.args, nullptr) == ROPE_STATUS_SUCCESS;
    const bool same = served && large.workspace.image() == expected;
    const RopeDesc own = large.desc(0);
    large.workspace.restore();
    const bool again = rope_forward(own.get(), &large.args, nullptr) == ROPE_STATUS_SUCCESS;
    return served && same && again && large.workspace.image() == expected;
  }));

  large.workspace.restore();
  REQUIRE(rope_forward(desc.get(), &large.args, nullptr) == ROPE_STATUS_SUCCESS);
  const bool same = large.workspace.image() == expected;
  CHECK(same);
}
