// SPDX-License-Identifier: Apache-2.0
// device.cpp - finds devices, and copies a workspace to device memory for the duration of a call
#include "device.hpp"

#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <cstdlib>
#include <functional>
#include <initializer_list>
#include <ostream>

#include "small_stack.hpp"

#if ROPE_TEST_CUDA
#include <cuda_runtime_api.h>
#endif

namespace {

#if ROPE_TEST_CUDA

void check_cuda(cudaError_t status) {
  if (status != cudaSuccess) FAIL("CUDA: " << cudaGetErrorString(status));
}

// One allocation for all runs; a cudaMalloc for each block would take most of the tests' time.
std::byte *device_arena(int64_t bytes) {
  static std::byte *arena = nullptr;
  static int64_t capacity = 0;
  if (bytes > capacity) {
    check_cuda(cudaFree(arena));
    capacity = bytes < (64 << 20) ? 64 << 20 : bytes;
    void *memory = nullptr;
    check_cuda(cudaMalloc(&memory, static_cast<size_t>(capacity)));
    arena = static_cast<std::byte *>(memory);
  }
  return arena;
}

// If the environment has ROPE_TEST_EXACT_MEMORY, each block gets its own allocation of exactly its payload, so that
// tools which check allocations detect accesses outside it.
bool has_exact_memory() {
  static const bool is_set = std::getenv("ROPE_TEST_EXACT_MEMORY") != nullptr;
  return is_set;
}

class Mirror {
 public:
  Mirror(const Device &device, Workspace &workspace) : workspace_(workspace), active_(device.kind == ROPE_DEVICE_CUDA) {
    if (!active_) return;
    check_cuda(cudaSetDevice(device.index));
    int64_t bytes = 0;
    for (const auto &block : workspace.blocks()) bytes += block->size();
    std::byte *next = has_exact_memory() ? nullptr : device_arena(bytes);
    for (const auto &block : workspace.blocks()) {
      block->open_guards();
      if (has_exact_memory()) {
        void *memory = nullptr;
        check_cuda(cudaMalloc(&memory, static_cast<size_t>(std::max<int64_t>(block->payload_size(), 1))));
        homes_.push_back(static_cast<std::byte *>(memory));
      } else {
        homes_.push_back(next);
        next += block->size();
      }
      const Part part = part_of(*block);
      check_cuda(cudaMemcpy(homes_.back(), part.data, part.bytes, cudaMemcpyHostToDevice));
    }
  }

  ~Mirror() {
    if (!has_exact_memory()) return;
    for (std::byte *home : homes_) cudaFree(home);
  }
  Mirror(const Mirror &) = delete;
  Mirror &operator=(const Mirror &) = delete;

  void translate(std::initializer_list<rope_tensor_t *> tensors) const {
    if (!active_) return;
    for (rope_tensor_t *tensor : tensors) {
      for (size_t i = 0; i < homes_.size(); ++i) {
        const Block &block = *workspace_.blocks()[i];
        if (!block.contains(tensor->data)) continue;
        tensor->data = homes_[i] + (static_cast<std::byte *>(tensor->data) - part_of(block).data);
        break;
      }
    }
  }

  // Translates all tensors of a group of operands. From `first` to its end a group has only tensors, so none is
  // forgotten.
  void translate_from(rope_tensor_t *first, const void *end) const {
    const auto bytes = static_cast<const std::byte *>(end) - reinterpret_cast<std::byte *>(first);
    for (std::ptrdiff_t at = 0; at < bytes; at += sizeof(rope_tensor_t)) {
      translate({reinterpret_cast<rope_tensor_t *>(reinterpret_cast<std::byte *>(first) + at)});
    }
  }

  void read_back() const {
    if (!active_) return;
    check_cuda(cudaDeviceSynchronize());
    for (size_t i = 0; i < homes_.size(); ++i) {
      const Part part = part_of(*workspace_.blocks()[i]);
      check_cuda(cudaMemcpy(part.data, homes_[i], part.bytes, cudaMemcpyDeviceToHost));
    }
  }

 private:
  // The part of a block that is copied to the device.
  struct Part {
    std::byte *data;
    size_t bytes;
  };
  static Part part_of(const Block &block) {
    if (has_exact_memory()) return {block.payload(), static_cast<size_t>(block.payload_size())};
    return {block.begin(), static_cast<size_t>(block.size())};
  }

  Workspace &workspace_;
  bool active_;
  std::vector<std::byte *> homes_;
};

#else

class Mirror {
 public:
  Mirror(const Device &, Workspace &) {}
  void translate(std::initializer_list<rope_tensor_t *>) const {}
  void translate_from(rope_tensor_t *, const void *) const {}
  void read_back() const {}
};

#endif

std::string absence() {
  int32_t count = -1;
  if (rope_device_count(ROPE_DEVICE_CUDA, &count) != ROPE_STATUS_SUCCESS || count <= 0) return rope_last_error();
#if ROPE_TEST_CUDA || ROPE_TEST_SIMULATION
  return "";
#else
  return "the tests were built without CUDA";
#endif
}

}  // namespace

std::ostream &operator<<(std::ostream &out, const Device &device) {
  return out << device.name;
}

const std::string &why_no_cuda() {
  static const std::string reason = absence();
  return reason;
}

bool has_cuda() {
  return why_no_cuda().empty();
}

const std::vector<Device> &devices() {
  static const std::vector<Device> all = [] {
    std::vector<Device> found = {{ROPE_DEVICE_CPU, 0, "CPU"}};
    if (has_cuda()) found.push_back({ROPE_DEVICE_CUDA, 0, "CUDA 0"});
    return found;
  }();
  return all;
}

const char *name_of(Direction direction) {
  return direction == Direction::Forward ? "forward" : "backward";
}

rope_config_t rope_config_for(const Device &device, int32_t head_dim) {
  rope_config_t config = {};
  config.struct_size = sizeof config;
  config.device = device.kind;
  config.device_index = device.index;
  config.dtype = ROPE_DTYPE_F32;
  config.layout = ROPE_LAYOUT_BSHD;
  config.style = ROPE_STYLE_HALF;
  config.head_dim = head_dim;
  config.theta = 10000;
  return config;
}

swiglu_config_t swiglu_config_for(const Device &device) {
  swiglu_config_t config = {};
  config.struct_size = sizeof config;
  config.device = device.kind;
  config.device_index = device.index;
  config.dtype = ROPE_DTYPE_F32;
  return config;
}

rope_args_t rope_args() {
  rope_args_t args = {};
  args.struct_size = sizeof args;
  return args;
}

swiglu_args_t swiglu_args() {
  swiglu_args_t args = {};
  args.struct_size = sizeof args;
  return args;
}

RopeDesc create(const rope_config_t &config) {
  rope_desc_t *desc = nullptr;
  const rope_status_t status = rope_desc_create(&config, &desc);
  if (status != ROPE_STATUS_SUCCESS) FAIL(rope_status_name(status) << ": " << rope_last_error());
  return RopeDesc(desc);
}

SwigluDesc create(const swiglu_config_t &config) {
  swiglu_desc_t *desc = nullptr;
  const rope_status_t status = swiglu_desc_create(&config, &desc);
  if (status != ROPE_STATUS_SUCCESS) FAIL(rope_status_name(status) << ": " << rope_last_error());
  return SwigluDesc(desc);
}

namespace {

// Makes a call. Those on the CPU are made on a stack that is measured. A refused call is repeated, for its message.
rope_status_t call_on(const Device &device, const std::function<rope_status_t()> &call) {
  if (device.kind != ROPE_DEVICE_CPU || !has_frames_of_release()) return call();
  rope_status_t status = ROPE_STATUS_SUCCESS;
  const size_t bytes = stack_of([&] { status = call(); });
  INFO("the call needs " << bytes << " bytes of stack");
  CHECK(bytes <= max_call_stack);
  return status == ROPE_STATUS_SUCCESS ? status : call();
}

}  // namespace

rope_status_t run(const Device &device, const rope_desc_t *desc, Direction direction, const rope_args_t &args,
                  Workspace &workspace) {
  const Mirror mirror(device, workspace);
  rope_args_t there = args;
  mirror.translate({&there.q, &there.q_out, &there.k, &there.k_out, &there.v, &there.v_out, &there.positions,
                    &there.start_positions, &there.cu_seqlens, &there.cos, &there.sin, &there.angles, &there.fault});
  // Structs of older headers end before their groups.
  const bool has_groups = args.struct_size >= sizeof args;
  rope_norm_args_t norm = ROPE_NORM_ARGS_INIT;
  rope_cache_args_t cache = ROPE_CACHE_ARGS_INIT;
  rope_quant_args_t quant = ROPE_QUANT_ARGS_INIT;
  rope_input_args_t input = ROPE_INPUT_ARGS_INIT;
  if (has_groups && args.norm != nullptr) {
    norm = *args.norm;
    there.norm = &norm;
    mirror.translate_from(&norm.q_weight, &norm + 1);
  }
  if (has_groups && args.cache != nullptr) {
    cache = *args.cache;
    there.cache = &cache;
    mirror.translate_from(&cache.k_cache, &cache + 1);
  }
  if (has_groups && args.quant != nullptr) {
    quant = *args.quant;
    there.quant = &quant;
    mirror.translate_from(&quant.q_scale, &quant + 1);
  }
  if (has_groups && args.input != nullptr) {
    input = *args.input;
    there.input = &input;
    mirror.translate_from(&input.q_pass, &input + 1);
  }
  const rope_status_t status = call_on(device, [&] {
    return direction == Direction::Forward ? rope_forward(desc, &there, nullptr) : rope_backward(desc, &there, nullptr);
  });
  mirror.read_back();
  return status;
}

rope_status_t run(const Device &device, const swiglu_desc_t *desc, Direction direction, const swiglu_args_t &args,
                  Workspace &workspace) {
  const Mirror mirror(device, workspace);
  swiglu_args_t there = args;
  mirror.translate({&there.gate, &there.up, &there.out, &there.row_scale, &there.num_rows, &there.grad_out,
                    &there.grad_gate, &there.grad_up, &there.grad_row_scale});
  // Structs of older headers end before their groups.
  swiglu_quant_args_t quant = SWIGLU_QUANT_ARGS_INIT;
  swiglu_input_args_t input = SWIGLU_INPUT_ARGS_INIT;
  if (args.struct_size >= sizeof args && args.quant != nullptr) {
    quant = *args.quant;
    there.quant = &quant;
    mirror.translate(
        {&quant.scale, &quant.scales_out, &quant.amax_out, &quant.grad_gate_scales_out, &quant.grad_up_scales_out});
  }
  if (args.struct_size >= sizeof args && args.input != nullptr) {
    input = *args.input;
    there.input = &input;
    mirror.translate_from(&input.gate_bias, &input + 1);
  }
  swiglu_column_args_t column = SWIGLU_COLUMN_ARGS_INIT;
  if (args.struct_size >= sizeof args && args.column != nullptr) {
    column = *args.column;
    there.column = &column;
    mirror.translate_from(&column.amax_out, &column + 1);
  }
  const rope_status_t status = call_on(device, [&] {
    return direction == Direction::Forward ? swiglu_forward(desc, &there, nullptr)
                                           : swiglu_backward(desc, &there, nullptr);
  });
  mirror.read_back();
  return status;
}

rope_status_t run(const Device &device, const rope_desc_t *desc, const rope_tensor_t &cos_out,
                  const rope_tensor_t &sin_out, Workspace &workspace) {
  const Mirror mirror(device, workspace);
  rope_tensor_t cos = cos_out, sin = sin_out;
  mirror.translate({&cos, &sin});
  const rope_status_t status = call_on(device, [&] { return rope_fill_tables(desc, &cos, &sin, nullptr); });
  mirror.read_back();
  return status;
}
