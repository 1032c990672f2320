// SPDX-License-Identifier: Apache-2.0
// memory_bounds_tests.cpp - CPU calls next to unreadable pages: nothing outside the views is accessed
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <cstring>

#include "support/device.hpp"

namespace {

// One readable page between two pages whose access ends the process.
class LonelyPage {
 public:
  LonelyPage() : size_(static_cast<size_t>(sysconf(_SC_PAGESIZE))) {
    void *pages = mmap(nullptr, 3 * size_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    REQUIRE(pages != MAP_FAILED);
    pages_ = static_cast<std::byte *>(pages);
    REQUIRE(mprotect(begin(), size_, PROT_READ | PROT_WRITE) == 0);
  }
  ~LonelyPage() { munmap(pages_, 3 * size_); }
  LonelyPage(const LonelyPage &) = delete;
  LonelyPage &operator=(const LonelyPage &) = delete;

  std::byte *begin() const { return pages_ + size_; }
  std::byte *end() const { return begin() + size_; }

 private:
  size_t size_;
  std::byte *pages_;
};

rope_tensor_t view_at(void *data, rope_dtype_t dtype, const Shape &shape) {
  rope_tensor_t view = {};
  view.data = data;
  view.dtype = dtype;
  for (int64_t size : shape) view.shape[view.ndim++] = size;
  return view;
}

int64_t bytes_of(rope_dtype_t dtype, const Shape &shape) {
  int64_t bytes = oracle::element_size(dtype);
  for (int64_t size : shape) bytes *= size;
  return bytes;
}

const Device &cpu() {
  return devices()[0];
}

void both_directions(const rope_config_t &config, const rope_args_t &args) {
  const RopeDesc desc = create(config);
  CHECK(rope_forward(desc.get(), &args, nullptr) == ROPE_STATUS_SUCCESS);
  CHECK(rope_backward(desc.get(), &args, nullptr) == ROPE_STATUS_SUCCESS);
}

template <class Visit>
void for_each_dtype_and_style(Visit visit) {
  for (rope_dtype_t dtype : {ROPE_DTYPE_F32, ROPE_DTYPE_F16, ROPE_DTYPE_BF16}) {
    for (rope_style_t style : {ROPE_STYLE_HALF, ROPE_STYLE_INTERLEAVED}) {
      rope_config_t config = rope_config_for(cpu(), 2);
      config.dtype = dtype;
      config.style = style;
      INFO(oracle::dtype_name(dtype) << ", style " << style);
      visit(config);
    }
  }
}

}  // namespace

TEST_CASE("tensors that fill their pages to either end", "[bounds]") {
  const LonelyPage in, out;
  for_each_dtype_and_style([&](rope_config_t config) {
    for (int32_t head_dim : {2, 6, 10, 16, 30, 64}) {
      const Shape shape = {1, 3, 2, head_dim};
      const int64_t bytes = bytes_of(config.dtype, shape);
      config.head_dim = head_dim;
      std::memset(in.begin(), 0, static_cast<size_t>(in.end() - in.begin()));
      for (bool at_end : {false, true}) {
        rope_args_t args = rope_args();
        args.q = view_at(at_end ? in.end() - bytes : in.begin(), config.dtype, shape);
        both_directions(config, args);
        args.q_out = view_at(at_end ? out.end() - bytes : out.begin(), config.dtype, shape);
        both_directions(config, args);
      }
    }
  });
}

TEST_CASE("in place, channels outside the window are not even read", "[bounds]") {
  const LonelyPage page;
  std::memset(page.begin(), 0, static_cast<size_t>(page.end() - page.begin()));
  for_each_dtype_and_style([&](rope_config_t config) {
    for (int32_t rotary_dim : {2, 14, 64, 100}) {
      config.head_dim = 256;
      config.rotary_dim = rotary_dim;
      const int64_t size = oracle::element_size(config.dtype);
      rope_args_t args = rope_args();
      // The window is the end of the head and begins the page; the rest of the head lies before the page.
      config.rotary_offset = 256 - rotary_dim;
      args.q = view_at(page.begin() - config.rotary_offset * size, config.dtype, {1, 1, 1, 256});
      both_directions(config, args);
      // The window is the beginning of the head and ends the page.
      config.rotary_offset = 0;
      args.q = view_at(page.end() - rotary_dim * size, config.dtype, {1, 1, 1, 256});
      both_directions(config, args);
    }
  });
}

TEST_CASE("no position reads outside the tables", "[bounds]") {
  const LonelyPage cos, sin;
  for_each_dtype_and_style([&](rope_config_t config) {
    config.head_dim = 12;
    config.theta = 0;
    const Shape table = {5, 6};
    const int64_t bytes = bytes_of(ROPE_DTYPE_F32, table);
    Workspace workspace(61);
    rope_args_t args = rope_args();
    args.q = workspace.tensor(config.dtype, {1, 8, 2, 12});
    args.positions = workspace.tensor(ROPE_DTYPE_I64, {8});
    workspace.fill_normal(args.q);
    const int64_t positions[] = {-1, 5, 0, 4, INT64_MAX, INT64_MIN, int64_t{1} << 32, -(int64_t{1} << 32) + 4};
    workspace.fill_integers(args.positions, [&](const Index &index) { return positions[index[0]]; });
    for (bool at_end : {false, true}) {
      args.cos = view_at(at_end ? cos.end() - bytes : cos.begin(), ROPE_DTYPE_F32, table);
      args.sin = view_at(at_end ? sin.end() - bytes : sin.begin(), ROPE_DTYPE_F32, table);
      both_directions(config, args);
    }
  });
}

TEST_CASE("SwiGLU tensors that fill their pages to either end", "[bounds]") {
  const LonelyPage gate, up, out, other;
  for (rope_dtype_t dtype : {ROPE_DTYPE_F32, ROPE_DTYPE_F16, ROPE_DTYPE_BF16}) {
    swiglu_config_t config = swiglu_config_for(cpu());
    config.dtype = dtype;
    const SwigluDesc desc = create(config);
    for (const LonelyPage *page : {&gate, &up, &out, &other}) {
      std::memset(page->begin(), 0, static_cast<size_t>(page->end() - page->begin()));
    }
    for (const Shape &shape : {Shape{1}, Shape{7}, Shape{3, 33}, Shape{5, 64}, Shape{2, 3, 31}}) {
      const int64_t bytes = bytes_of(dtype, shape);
      for (bool at_end : {false, true}) {
        const auto on = [&](const LonelyPage &page) {
          return view_at(at_end ? page.end() - bytes : page.begin(), dtype, shape);
        };
        swiglu_args_t forward = swiglu_args(), backward = swiglu_args();
        forward.gate = backward.gate = on(gate);
        forward.up = backward.up = on(up);
        forward.out = on(out);
        backward.grad_out = backward.grad_gate = on(out);
        backward.grad_up = on(other);
        CHECK(swiglu_forward(desc.get(), &forward, nullptr) == ROPE_STATUS_SUCCESS);
        CHECK(swiglu_backward(desc.get(), &backward, nullptr) == ROPE_STATUS_SUCCESS);
      }
    }
  }
}

TEST_CASE("a tensor without heads needs no memory beside one that has some", "[bounds]") {
  const LonelyPage page;
  std::memset(page.begin(), 0, static_cast<size_t>(page.end() - page.begin()));
  for_each_dtype_and_style([&](rope_config_t config) {
    config.head_dim = 16;
    config.rotary_offset = 2;
    config.rotary_dim = 8;
    rope_args_t args = rope_args();
    args.q = view_at(page.begin(), config.dtype, {2, 3, 2, 16});
    args.k = view_at(nullptr, config.dtype, {2, 3, 0, 16});
    // A stride that no element uses may have any value.
    args.k.flags = ROPE_TENSOR_STRIDED;
    for (int64_t &stride : args.k.stride) stride = INT64_MAX;
    both_directions(config, args);
  });
}

TEST_CASE("in place, heads may overlap outside the window", "[bounds]") {
  const LonelyPage page;
  std::memset(page.begin(), 0, static_cast<size_t>(page.end() - page.begin()));
  for_each_dtype_and_style([&](rope_config_t config) {
    config.head_dim = 64;
    config.rotary_dim = 32;
    rope_args_t args = rope_args();
    args.q = view_at(page.begin(), config.dtype, {1, 2, 3, 64});
    args.q.flags = ROPE_TENSOR_STRIDED;
    const int64_t strides[] = {256, 128, 32, 1};
    std::copy(strides, strides + 4, args.q.stride);
    both_directions(config, args);
  });
}
