// SPDX-License-Identifier: Apache-2.0
// survival_tests.cpp - failures of a machine or of its GPU, and librope's behaviour
//
// No driver, an old one, no visible device, no memory left, a sticky error, captures by other threads, tensors at the
// edge of mapped memory. Failures that would affect this process are caused in a separate process.
#include <cuda.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "arrays.hpp"
#include "process.hpp"
#include "scenes.hpp"

namespace {

// On a machine without a usable GPU librope reports the reason, and the CPU works.
void check_without_device(const std::vector<std::string> &reasons) {
  int32_t count = -1;
  CHECK(rope_device_count(ROPE_DEVICE_CUDA, &count) == ROPE_STATUS_SUCCESS);
  CHECK(count == 0);
  const auto check_reason = [&](const std::string &function) {
    const std::string message = rope_last_error();
    INFO(message);
    CHECK(message.find(function + ": ") == 0);
    const bool is_told = std::any_of(reasons.begin(), reasons.end(), [&](const std::string &reason) {
      return message.find(reason) != std::string::npos;
    });
    CHECK(is_told);
  };
  check_reason("rope_device_count");
  for (int time = 0; time < 2; ++time) {
    const rope_config_t rope_config = rope_config_for({ROPE_DEVICE_CUDA, 0, ""}, 64);
    rope_desc_t *rope = nullptr;
    CHECK(rope_desc_create(&rope_config, &rope) == ROPE_STATUS_NO_DEVICE);
    CHECK(rope == nullptr);
    check_reason("rope_desc_create");
    const swiglu_config_t swiglu_config = swiglu_config_for({ROPE_DEVICE_CUDA, 0, ""});
    swiglu_desc_t *swiglu = nullptr;
    CHECK(swiglu_desc_create(&swiglu_config, &swiglu) == ROPE_STATUS_NO_DEVICE);
    CHECK(swiglu == nullptr);
    check_reason("swiglu_desc_create");
  }
}

void check_cpu_serves() {
  const RopeDesc desc = create(rope_config_for({ROPE_DEVICE_CPU, 0, ""}, 4));
  float q[2][4] = {{1, 2, 3, 4}, {1, 0, 0, 0}};
  rope_args_t args = rope_args();
  args.q = {q, ROPE_DTYPE_F32, 4, 0, {1, 2, 1, 4}, {}};
  CHECK(rope_forward(desc.get(), &args, nullptr) == ROPE_STATUS_SUCCESS);
  CHECK(q[0][3] == 4);
  CHECK(std::abs(q[1][0] - 0.5403023f) < 1e-6f);
}

// Allocates all free memory of the device, down to pieces of a page.
class AllMemory {
 public:
  AllMemory() {
    for (size_t bytes = size_t{1} << 36; bytes >= (size_t{1} << 12); bytes /= 2) {
      void *part = nullptr;
      while (cudaMalloc(&part, bytes) == cudaSuccess) parts_.push_back(part);
      (void)cudaGetLastError();
    }
  }
  ~AllMemory() {
    for (void *part : parts_) (void)cudaFree(part);
  }
  AllMemory(const AllMemory &) = delete;
  AllMemory &operator=(const AllMemory &) = delete;

 private:
  std::vector<void *> parts_;
};

template <class Function>
Function driver_function(const char *name) {
  void *address = nullptr;
  cudaDriverEntryPointQueryResult result;
  REQUIRE_CUDA(cudaGetDriverEntryPointByVersion(name, &address, 12000, cudaEnableDefault, &result));
  REQUIRE(result == cudaDriverEntryPointSuccess);
  return reinterpret_cast<Function>(address);
}

// Memory of device 0 with nothing mapped before and behind it, so that a kernel which leaves it fails with
// cudaErrorIllegalAddress.
class LonelyMemory {
 public:
  explicit LonelyMemory(int64_t min_bytes) {
    void *context = nullptr;
    REQUIRE_CUDA(cudaMalloc(&context, 1));  // creates the primary context
    REQUIRE_CUDA(cudaFree(context));
    CUmemAllocationProp properties = {};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    properties.location.id = 0;
    size_t page = 0;
    const auto find_page =
        driver_function<CUresult (*)(size_t *, const CUmemAllocationProp *, CUmemAllocationGranularity_flags)>(
            "cuMemGetAllocationGranularity");
    REQUIRE(find_page(&page, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM) == CUDA_SUCCESS);
    bytes_ = (static_cast<size_t>(min_bytes) + page - 1) / page * page;
    reserved_ = bytes_ + 2 * page;
    const auto reserve = driver_function<CUresult (*)(CUdeviceptr *, size_t, size_t, CUdeviceptr, unsigned long long)>(
        "cuMemAddressReserve");
    REQUIRE(reserve(&range_, reserved_, 0, 0, 0) == CUDA_SUCCESS);
    const auto make = driver_function<CUresult (*)(CUmemGenericAllocationHandle *, size_t, const CUmemAllocationProp *,
                                                   unsigned long long)>("cuMemCreate");
    REQUIRE(make(&handle_, bytes_, &properties, 0) == CUDA_SUCCESS);
    first_ = range_ + page;
    const auto map =
        driver_function<CUresult (*)(CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle, unsigned long long)>(
            "cuMemMap");
    REQUIRE(map(first_, bytes_, 0, handle_, 0) == CUDA_SUCCESS);
    CUmemAccessDesc access = {};
    access.location = properties.location;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    const auto allow =
        driver_function<CUresult (*)(CUdeviceptr, size_t, const CUmemAccessDesc *, size_t)>("cuMemSetAccess");
    REQUIRE(allow(first_, bytes_, &access, 1) == CUDA_SUCCESS);
  }
  ~LonelyMemory() {
    (void)cudaDeviceSynchronize();
    (void)driver_function<CUresult (*)(CUdeviceptr, size_t)>("cuMemUnmap")(first_, bytes_);
    (void)driver_function<CUresult (*)(CUmemGenericAllocationHandle)>("cuMemRelease")(handle_);
    (void)driver_function<CUresult (*)(CUdeviceptr, size_t)>("cuMemAddressFree")(range_, reserved_);
  }
  LonelyMemory(const LonelyMemory &) = delete;
  LonelyMemory &operator=(const LonelyMemory &) = delete;

  std::byte *begin() const { return reinterpret_cast<std::byte *>(first_); }
  std::byte *end() const { return begin() + bytes_; }

 private:
  size_t bytes_ = 0, reserved_ = 0;
  CUdeviceptr range_ = 0, first_ = 0;
  CUmemGenericAllocationHandle handle_ = 0;
};

// A workspace in which each tensor lies at one edge of lonely memory.
class EdgeImage {
 public:
  explicit EdgeImage(const Workspace &workspace, bool is_at_end) {
    for (const auto &block : workspace.blocks()) {
      blocks_.push_back(block.get());
      memory_.push_back(std::make_unique<LonelyMemory>(std::max<int64_t>(block->payload_size(), 1)));
      const LonelyMemory &lonely = *memory_.back();
      homes_.push_back(is_at_end ? lonely.end() - block->payload_size() : lonely.begin());
      block->open_guards();
      REQUIRE_CUDA(cudaMemcpy(homes_.back(), block->payload(), static_cast<size_t>(block->payload_size()),
                              cudaMemcpyHostToDevice));
    }
  }

  void translate(rope_tensor_t *tensor) const {
    for (size_t i = 0; i < blocks_.size(); ++i) {
      if (!blocks_[i]->contains(tensor->data)) continue;
      tensor->data = homes_[i] + (static_cast<std::byte *>(tensor->data) - blocks_[i]->payload());
      return;
    }
  }

  std::vector<std::byte> bytes() const {
    std::vector<std::byte> all;
    for (size_t i = 0; i < blocks_.size(); ++i) {
      std::vector<std::byte> part(static_cast<size_t>(blocks_[i]->payload_size()));
      REQUIRE_CUDA(cudaMemcpy(part.data(), homes_[i], part.size(), cudaMemcpyDeviceToHost));
      all.insert(all.end(), part.begin(), part.end());
    }
    return all;
  }

 private:
  std::vector<const Block *> blocks_;
  std::vector<std::unique_ptr<LonelyMemory>> memory_;
  std::vector<std::byte *> homes_;
};

// Runs a call on the CPU and at both edges of lonely memory on the GPU, and compares the bits.
void check_at_edges(const rope_config_t &config, rope_args_t args, Workspace *workspace) {
  workspace->freeze();
  for (const Direction direction : {Direction::Forward, Direction::Backward}) {
    workspace->restore();
    rope_config_t on_cpu = config;
    on_cpu.device = ROPE_DEVICE_CPU;
    REQUIRE(run(devices()[0], create(on_cpu).get(), direction, args, *workspace) == ROPE_STATUS_SUCCESS);
    const std::vector<std::byte> expected = workspace->image();
    for (const bool is_at_end : {false, true}) {
      INFO(name_of(direction) << (is_at_end ? " at the end" : " at the beginning"));
      workspace->restore();
      const EdgeImage image(*workspace, is_at_end);
      rope_args_t there = args;
      for (rope_tensor_t *tensor : {&there.q, &there.q_out, &there.k, &there.positions, &there.start_positions,
                                    &there.cu_seqlens, &there.cos, &there.sin, &there.fault}) {
        if (tensor->ndim != 0) image.translate(tensor);
      }
      const RopeDesc desc = create(config);
      const rope_status_t status = direction == Direction::Forward ? rope_forward(desc.get(), &there, nullptr)
                                                                   : rope_backward(desc.get(), &there, nullptr);
      REQUIRE(status == ROPE_STATUS_SUCCESS);
      REQUIRE_CUDA(cudaDeviceSynchronize());
      const bool is_same = image.bytes() == expected;
      CHECK(is_same);
    }
  }
}

}  // namespace

TEST_CASE("process: no visible device", "[.process]") {
  check_without_device({"no CUDA device is visible (CUDA_VISIBLE_DEVICES is -1)", "no NVIDIA driver"});
  check_cpu_serves();
}

TEST_CASE("process: the stub of the toolkit for a driver", "[.process]") {
  check_without_device({"no NVIDIA driver: the libcuda.so.1 that was found is the CUDA Toolkit's link-time stub"});
  check_cpu_serves();
}

TEST_CASE("process: an old driver", "[.process]") {
  check_without_device({"the NVIDIA driver is too old: it supports CUDA 11.4"});
  check_cpu_serves();
}

// This folder is searched before those in the environment, which may include librope's own.
static std::string with_library_folder(const std::string &folder) {
  const char *others = std::getenv("LD_LIBRARY_PATH");
  return "LD_LIBRARY_PATH=" + folder + (others != nullptr ? std::string(":") + others : std::string());
}

static void need_driver_in(const std::string &folder) {
  if (access((folder + "/libcuda.so.1").c_str(), R_OK) != 0) SKIP("no " + folder + "/libcuda.so.1 on this machine");
}

TEST_CASE("where no device is visible librope says so and serves the CPU", "[cuda][survival]") {
  require_in_new_process("CUDA_VISIBLE_DEVICES=-1", "process: no visible device");
}

TEST_CASE("with the toolkit's stub for a driver librope says so and serves the CPU", "[cuda][survival]") {
#ifdef ROPE_TEST_STUB_DRIVER
  need_driver_in(ROPE_TEST_STUB_DRIVER);
  require_in_new_process(with_library_folder(ROPE_TEST_STUB_DRIVER), "process: the stub of the toolkit for a driver");
#else
  SKIP("this CUDA Toolkit has no stub of libcuda");
#endif
}

TEST_CASE("with an old driver librope says so and serves the CPU", "[cuda][survival]") {
  need_driver_in(ROPE_TEST_OLD_DRIVER);
  require_in_new_process(with_library_folder(ROPE_TEST_OLD_DRIVER), "process: an old driver");
}

TEST_CASE("calls work while others have all of the device's memory", "[cuda][survival]") {
  need_gpus();
  Scenes scenes = scenes_of_each_function(ROPE_DTYPE_BF16);
  for (auto &scene : scenes_of_each_function(ROPE_DTYPE_F32)) scenes.push_back(std::move(scene));
  const Stream stream;
  for (const auto &scene : scenes) require_call(*scene, stream);
  REQUIRE_CUDA(cudaStreamSynchronize(stream));
  for (const auto &scene : scenes) scene->image().reset();
  const AllMemory rest;
  for (int round = 0; round < 3; ++round) {
    for (const auto &scene : scenes) {
      scene->image().reset();
      require_call(*scene, stream);
      REQUIRE_CUDA(cudaStreamSynchronize(stream));
      scene->check();
    }
  }
  // A descriptor may need memory for kernels that are not loaded yet: it is created, or refused with CUDA's error.
  for (const rope_dtype_t dtype : {ROPE_DTYPE_F16, ROPE_DTYPE_F64, ROPE_DTYPE_BF16}) {
    rope_config_t config = rope_config_for({ROPE_DEVICE_CUDA, 0, ""}, 64);
    config.dtype = dtype;
    rope_desc_t *desc = nullptr;
    const rope_status_t status = rope_desc_create(&config, &desc);
    INFO(rope_status_name(status) << ": " << rope_last_error());
    CHECK((status == ROPE_STATUS_SUCCESS || status == ROPE_STATUS_CUDA_ERROR));
    CHECK((status == ROPE_STATUS_SUCCESS) == (desc != nullptr));
    if (status != ROPE_STATUS_SUCCESS) {
      CHECK(std::string(rope_last_error()).find("out of memory") != std::string::npos);
    }
    rope_desc_destroy(desc);
  }
  CHECK(cudaPeekAtLastError() == cudaSuccess);
}

TEST_CASE("process: the first descriptor finds no memory", "[.process]") {
  need_gpus();
  {
    const AllMemory all;
    const rope_config_t config = rope_config_for({ROPE_DEVICE_CUDA, 0, ""}, 64);
    rope_desc_t *desc = nullptr;
    const rope_status_t status = rope_desc_create(&config, &desc);
    INFO(rope_status_name(status) << ": " << rope_last_error());
    CHECK((status == ROPE_STATUS_SUCCESS || status == ROPE_STATUS_CUDA_ERROR));
    CHECK((status == ROPE_STATUS_SUCCESS) == (desc != nullptr));
    rope_desc_destroy(desc);
  }
  // Now there is memory. CUDA runtimes before 12.8 keep the failure of a kernel that they could not load.
  int major = 0, minor = 0;
  const char *cuda = std::strstr(rope_build_info(), "CUDA: ");
  REQUIRE((cuda != nullptr && std::sscanf(cuda, "CUDA: %d.%d", &major, &minor) == 2));
  if (major * 100 + minor < 1208) return;
  for (const auto &scene : scenes_of_each_function(ROPE_DTYPE_F32)) {
    require_call(*scene, nullptr);
    REQUIRE_CUDA(cudaDeviceSynchronize());
    scene->check();
  }
}

TEST_CASE("a descriptor that finds no device memory is refused in words, and later made", "[cuda][survival]") {
  need_gpus();
  require_in_new_process("CUDA_MODULE_LOADING=LAZY", "process: the first descriptor finds no memory");
}

TEST_CASE("process: a sticky error of the caller", "[.process]") {
  need_gpus();
  Scenes scenes = scenes_of_each_function(ROPE_DTYPE_BF16);
  REQUIRE_CUDA(enqueue_illegal_access(nullptr));
  REQUIRE(cudaDeviceSynchronize() == cudaErrorIllegalAddress);
  for (int time = 0; time < 2; ++time) {
    for (const auto &scene : scenes) {
      INFO(scene->describe());
      CHECK(scene->call(nullptr) == ROPE_STATUS_CUDA_ERROR);
      const std::string message = rope_last_error();
      INFO(message);
      CHECK(message.find("cudaErrorIllegalAddress") != std::string::npos);
      // The caller can still see the error.
      CHECK(cudaDeviceSynchronize() == cudaErrorIllegalAddress);
      CHECK(cudaPeekAtLastError() == cudaErrorIllegalAddress);
    }
    rope_desc_t *desc = nullptr;
    const rope_config_t config = rope_config_for({ROPE_DEVICE_CUDA, 0, ""}, 64);
    // Kernels that are already loaded need no more memory.
    const rope_status_t status = rope_desc_create(&config, &desc);
    INFO(rope_status_name(status) << ": " << rope_last_error());
    CHECK((status == ROPE_STATUS_SUCCESS || status == ROPE_STATUS_CUDA_ERROR));
    CHECK((status == ROPE_STATUS_SUCCESS) == (desc != nullptr));
    rope_desc_destroy(desc);
    int32_t count = -1;
    CHECK(rope_device_count(ROPE_DEVICE_CUDA, &count) == ROPE_STATUS_SUCCESS);
    CHECK(cudaDeviceSynchronize() == cudaErrorIllegalAddress);
  }
  for (const auto &scene : scenes) scene->destroy_descriptor();
  check_cpu_serves();
}

TEST_CASE("a sticky error of the caller is reported, neither hidden nor taken", "[cuda][survival]") {
  need_gpus();
  require_in_new_process("CUDA_LAUNCH_BLOCKING=0", "process: a sticky error of the caller");
}

TEST_CASE("process: a fork after CUDA was used", "[.process]") {
  need_gpus();
  const Scenes scenes = scenes_of_each_function(ROPE_DTYPE_BF16);
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    const rope_config_t config = rope_config_for({ROPE_DEVICE_CUDA, 0, ""}, 64);
    rope_desc_t *desc = nullptr;
    const bool is_refused = rope_desc_create(&config, &desc) == ROPE_STATUS_CUDA_ERROR && desc == nullptr &&
                            std::strstr(rope_last_error(), "cudaErrorInitializationError") != nullptr;
    _exit(is_refused ? 0 : 1);
  }
  int status = -1;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
  for (const auto &scene : scenes) {
    require_call(*scene, nullptr);
    REQUIRE_CUDA(cudaDeviceSynchronize());
    scene->check();
  }
}

TEST_CASE("a forked child is told that it has no CUDA, and the parent goes on", "[cuda][survival]") {
  need_gpus();
  require_in_new_process("CUDA_MODULE_LOADING=LAZY", "process: a fork after CUDA was used");
}

TEST_CASE("a context of the caller's own stays current, and its streams are served", "[cuda][survival]") {
  need_gpus();
  const auto get_current = driver_function<CUresult (*)(CUcontext *)>("cuCtxGetCurrent");
  const auto push = driver_function<CUresult (*)(CUcontext)>("cuCtxPushCurrent");
  const auto allocate = driver_function<CUresult (*)(CUdeviceptr *, size_t)>("cuMemAlloc");
  const auto to_device = driver_function<CUresult (*)(CUdeviceptr, const void *, size_t)>("cuMemcpyHtoD");
  const auto to_host = driver_function<CUresult (*)(void *, CUdeviceptr, size_t)>("cuMemcpyDtoH");
  const auto make_stream = driver_function<CUresult (*)(CUstream *, unsigned)>("cuStreamCreate");
  const auto wait = driver_function<CUresult (*)()>("cuCtxSynchronize");
  const rope_config_t config = rope_config_for({ROPE_DEVICE_CUDA, 0, ""}, 4);
  std::vector<RopeDesc> descs;
  descs.push_back(create(config));
  CUcontext primary = nullptr, own = nullptr;
  REQUIRE_CUDA(cudaSetDevice(0));  // makes the primary context current
  REQUIRE(get_current(&primary) == CUDA_SUCCESS);
  const auto make_context =
      driver_function<CUresult (*)(CUcontext *, CUexecAffinityParam *, int, unsigned, CUdevice)>("cuCtxCreate");
  REQUIRE(make_context(&own, nullptr, 0, 0, 0) == CUDA_SUCCESS);
  const std::shared_ptr<CUctx_st> owner(own, driver_function<CUresult (*)(CUcontext)>("cuCtxDestroy"));
  descs.push_back(create(config));
  CUdeviceptr memory = 0;
  REQUIRE(allocate(&memory, 8 * sizeof(float)) == CUDA_SUCCESS);
  CUstream stream = nullptr;
  REQUIRE(make_stream(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  rope_args_t args = rope_args();
  args.q = {reinterpret_cast<void *>(memory), ROPE_DTYPE_F32, 4, 0, {1, 2, 1, 4}, {}};
  const auto check_call = [&](const rope_desc_t *desc, CUstream used) {
    float q[2][4] = {{1, 2, 3, 4}, {1, 0, 0, 0}};
    REQUIRE(to_device(memory, q, sizeof q) == CUDA_SUCCESS);
    const rope_status_t status = rope_forward(desc, &args, used);
    INFO(rope_last_error());
    CHECK(status == ROPE_STATUS_SUCCESS);
    CUcontext current = nullptr;
    CHECK(get_current(&current) == CUDA_SUCCESS);
    CHECK(current == own);
    REQUIRE(wait() == CUDA_SUCCESS);
    REQUIRE(to_host(q, memory, sizeof q) == CUDA_SUCCESS);
    CHECK(q[0][3] == 4);
    CHECK(std::abs(q[1][0] - 0.5403023f) < 1e-6f);
  };
  for (const RopeDesc &desc : descs) {
    for (const CUstream used : {stream, CUstream{nullptr}}) check_call(desc.get(), used);
  }
  // The first codes of this context.
  const SwigluDesc gating = create(swiglu_config_for({ROPE_DEVICE_CUDA, 0, ""}));
  const float gate_and_up[2][4] = {{64, 64, 64, 64}, {0.5f, -1, 0, 100}};
  REQUIRE(to_device(memory, gate_and_up, sizeof gate_and_up) == CUDA_SUCCESS);
  CUdeviceptr codes = 0;
  REQUIRE(allocate(&codes, 4) == CUDA_SUCCESS);
  swiglu_args_t coded = swiglu_args();
  coded.gate = {reinterpret_cast<void *>(memory), ROPE_DTYPE_F32, 1, 0, {4}, {}};
  coded.up = {reinterpret_cast<void *>(memory + sizeof gate_and_up[0]), ROPE_DTYPE_F32, 1, 0, {4}, {}};
  coded.out = {reinterpret_cast<void *>(codes), ROPE_DTYPE_F8_E4M3, 1, 0, {4}, {}};
  CHECK(swiglu_forward(gating.get(), &coded, stream) == ROPE_STATUS_SUCCESS);
  REQUIRE(wait() == CUDA_SUCCESS);
  std::vector<uint8_t> found(4);
  REQUIRE(to_host(found.data(), codes, 4) == CUDA_SUCCESS);
  CHECK(found == std::vector<uint8_t>{0x60, 0xe8, 0, 0x7e});  // 32, -64, 0, and 6400 becomes 448
  // The primary context lies below another one, too.
  REQUIRE(push(primary) == CUDA_SUCCESS);
  const Scenes scenes = scenes_of_each_function(ROPE_DTYPE_F16);
  for (const auto &scene : scenes) require_call(*scene, nullptr);
  REQUIRE_CUDA(cudaDeviceSynchronize());
  for (const auto &scene : scenes) scene->check();
  CUcontext popped = nullptr;
  REQUIRE(driver_function<CUresult (*)(CUcontext *)>("cuCtxPopCurrent")(&popped) == CUDA_SUCCESS);
  CHECK(popped == primary);
  for (const RopeDesc &desc : descs) check_call(desc.get(), stream);
}

TEST_CASE("calls of one thread leave the capture of another alone, in every mode", "[cuda][survival][graphs]") {
  need_gpus();
  for (const cudaStreamCaptureMode mode :
       {cudaStreamCaptureModeGlobal, cudaStreamCaptureModeThreadLocal, cudaStreamCaptureModeRelaxed}) {
    INFO("mode " << static_cast<int>(mode));
    const Scenes captured = scenes_of_each_function(ROPE_DTYPE_F16), others = scenes_of_each_function(ROPE_DTYPE_BF16);
    const Stream stream;
    std::string failures;
    const Graph graph(
        [&](cudaStream_t capturing) {
          for (size_t i = 0; i < captured.size(); ++i) {
            std::thread other([&] {
              if (others[i]->call(stream) != ROPE_STATUS_SUCCESS) failures += rope_last_error();
            });
            require_call(*captured[i], capturing);
            other.join();
          }
        },
        mode);
    CHECK(failures.empty());
    REQUIRE_CUDA(cudaStreamSynchronize(stream));
    for (const auto &scene : others) scene->check();
    CHECK(graph.node_types() == std::vector<cudaGraphNodeType>(captured.size(), cudaGraphNodeTypeKernel));
    graph.launch(stream);
    REQUIRE_CUDA(cudaStreamSynchronize(stream));
    for (const auto &scene : captured) scene->check();
  }
}

TEST_CASE("another thread's calls may be captured", "[cuda][survival][graphs]") {
  need_gpus();
  for (const cudaStreamCaptureMode mode :
       {cudaStreamCaptureModeGlobal, cudaStreamCaptureModeThreadLocal, cudaStreamCaptureModeRelaxed}) {
    INFO("mode " << static_cast<int>(mode));
    const Scenes scenes = scenes_of_each_function(ROPE_DTYPE_F32);
    std::string failures;
    const Graph graph(
        [&](cudaStream_t capturing) {
          std::thread other([&] {
            for (const auto &scene : scenes) {
              if (scene->call(capturing) != ROPE_STATUS_SUCCESS) failures += rope_last_error();
            }
          });
          other.join();
        },
        mode);
    INFO(failures);
    CHECK(failures.empty());
    CHECK(graph.node_types() == std::vector<cudaGraphNodeType>(scenes.size(), cudaGraphNodeTypeKernel));
    const Stream stream;
    graph.launch(stream);
    REQUIRE_CUDA(cudaStreamSynchronize(stream));
    for (const auto &scene : scenes) scene->check();
  }
}

TEST_CASE("RoPE of tensors at the edges of mapped memory", "[cuda][survival]") {
  need_gpus();
  for (const rope_dtype_t dtype : {ROPE_DTYPE_F32, ROPE_DTYPE_F16, ROPE_DTYPE_BF16, ROPE_DTYPE_F64}) {
    for (const rope_style_t style : {ROPE_STYLE_HALF, ROPE_STYLE_INTERLEAVED}) {
      for (const int64_t tokens : {3, 301}) {
        for (const int64_t heads : {1, 16}) {
          INFO(oracle::dtype_name(dtype) << " style " << style << ", " << tokens << " tokens of " << heads << " heads");
          rope_config_t config = rope_config_for({ROPE_DEVICE_CUDA, 0, ""}, 128);
          config.dtype = dtype;
          config.style = style;
          config.layout = ROPE_LAYOUT_THD;
          const auto each = [&](const auto &add) {
            Workspace workspace(91);
            rope_args_t args = rope_args();
            args.q = workspace.tensor(dtype, {tokens, heads, 128});
            args.q_out = workspace.tensor(dtype, {tokens, heads, 128});
            args.k = workspace.tensor(dtype, {tokens, 1, 128});
            workspace.fill_normal(args.q);
            workspace.fill_normal(args.k);
            add(&workspace, &args);
            check_at_edges(config, args, &workspace);
          };
          const auto add_positions = [&](Workspace *workspace, rope_args_t *args) {
            args->positions = workspace->tensor(ROPE_DTYPE_I32, {tokens});
            workspace->fill_integers(args->positions, [](const Index &index) { return 3 * index[0]; });
          };
          const auto add_table = [&](Workspace *workspace, rope_args_t *args) {
            args->cos = workspace->tensor(ROPE_DTYPE_F32, {3 * tokens - 2, 64});
            args->sin = workspace->tensor(ROPE_DTYPE_F32, {3 * tokens - 2, 64});
            workspace->fill_normal(args->cos);
            workspace->fill_normal(args->sin);
          };
          each(add_positions);
          each([&](Workspace *workspace, rope_args_t *args) {
            add_positions(workspace, args);
            add_table(workspace, args);
          });
          each([&](Workspace *workspace, rope_args_t *args) {
            args->cu_seqlens = workspace->tensor(ROPE_DTYPE_I32, {3});
            workspace->fill_integers(args->cu_seqlens, [&](const Index &index) { return index[0] * tokens / 2; });
            args->start_positions = workspace->tensor(ROPE_DTYPE_I64, {2});
            workspace->fill_integers(args->start_positions, [](const Index &index) { return 5 * index[0]; });
          });
          each([&](Workspace *workspace, rope_args_t *args) {
            add_positions(workspace, args);
            add_table(workspace, args);
            args->fault = workspace->tensor(ROPE_DTYPE_I64, {2});
            workspace->fill_integers(args->fault, [](const Index &) { return 0; });
          });
        }
      }
    }
  }
}

TEST_CASE("SwiGLU of tensors at the edges of mapped memory", "[cuda][survival]") {
  need_gpus();
  for (const rope_dtype_t dtype : {ROPE_DTYPE_F32, ROPE_DTYPE_F16, ROPE_DTYPE_BF16}) {
    for (const int64_t columns : {8, 37, 1024, 1025}) {
      for (const int64_t rows : {1, 7, 301}) {
        INFO(oracle::dtype_name(dtype) << ", " << rows << " x " << columns);
        swiglu_config_t config = swiglu_config_for({ROPE_DEVICE_CUDA, 0, ""});
        config.dtype = dtype;
        const SwigluDesc desc = create(config);
        for (const Direction direction : {Direction::Forward, Direction::Backward}) {
          const bool is_forward = direction == Direction::Forward;
          Workspace workspace(92);
          swiglu_args_t args = swiglu_args();
          std::vector<rope_tensor_t *> tensors = {&args.gate, &args.up};
          if (is_forward) {
            tensors.push_back(&args.out);
          } else {
            tensors.insert(tensors.end(), {&args.grad_out, &args.grad_gate, &args.grad_up});
          }
          for (rope_tensor_t *tensor : tensors) {
            *tensor = workspace.tensor(dtype, {rows, columns});
            workspace.fill_normal(*tensor);
          }
          args.row_scale = workspace.tensor(ROPE_DTYPE_F32, {rows});
          workspace.fill_normal(args.row_scale);
          tensors.push_back(&args.row_scale);
          if (!is_forward) {
            args.grad_row_scale = workspace.tensor(ROPE_DTYPE_F32, {rows});
            tensors.push_back(&args.grad_row_scale);
          }
          workspace.freeze();
          // The result of this call elsewhere.
          workspace.restore();
          const Device gpu = {ROPE_DEVICE_CUDA, 0, ""};
          REQUIRE(run(gpu, desc.get(), direction, args, workspace) == ROPE_STATUS_SUCCESS);
          const std::vector<std::byte> expected = workspace.image();
          for (const bool is_at_end : {false, true}) {
            INFO(name_of(direction) << (is_at_end ? " at the end" : " at the beginning"));
            workspace.restore();
            const EdgeImage image(workspace, is_at_end);
            std::vector<rope_tensor_t> before;
            for (rope_tensor_t *tensor : tensors) {
              before.push_back(*tensor);
              image.translate(tensor);
            }
            const rope_status_t status =
                is_forward ? swiglu_forward(desc.get(), &args, nullptr) : swiglu_backward(desc.get(), &args, nullptr);
            for (size_t i = 0; i < tensors.size(); ++i) *tensors[i] = before[i];
            REQUIRE(status == ROPE_STATUS_SUCCESS);
            REQUIRE_CUDA(cudaDeviceSynchronize());
            const bool is_same = image.bytes() == expected;
            CHECK(is_same);
          }
        }
      }
    }
  }
}

TEST_CASE("codes, their scales and caches at the edges of mapped memory", "[cuda][survival][codes]") {
  need_gpus();
  std::vector<std::unique_ptr<BitScene>> scenes;
  for (const rope_dtype_t dtype : {ROPE_DTYPE_F32, ROPE_DTYPE_BF16}) {
    for (const int64_t tokens : {1, 301}) {
      for (const StepCodes codes : {StepCodes::StaticScales, StepCodes::WrittenScales, StepCodes::Amax}) {
        StepSetup step;
        step.dtype = dtype;
        step.codes = codes;
        step.tokens = tokens;
        scenes.push_back(std::make_unique<StepScene>(step));
      }
    }
  }
  for (const int64_t start : {0, 1}) {
    for (const SwigluCodes codes : all_swiglu_codes) {
      SwigluCodesSetup swiglu;
      swiglu.codes = codes;
      swiglu.rows = 96;
      swiglu.start = start;
      scenes.push_back(std::make_unique<SwigluCodesScene>(swiglu));
    }
  }
  for (const auto &scene : scenes) {
    INFO(scene->describe());
    for (const bool is_at_end : {false, true}) {
      INFO((is_at_end ? "at the end" : "at the beginning"));
      scene->workspace().restore();
      const EdgeImage image(scene->workspace(), is_at_end);
      scene->use([&](rope_tensor_t tensor) {
        if (tensor.ndim != 0) image.translate(&tensor);
        return tensor;
      });
      require_call(*scene, nullptr);
      REQUIRE_CUDA(cudaDeviceSynchronize());
      const bool is_same = image.bytes() == scene->expected();
      CHECK(is_same);
    }
  }
}
