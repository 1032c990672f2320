// SPDX-License-Identifier: Apache-2.0
// swiglu_explain_tests.cpp - how a call of SwiGLU would run, in words; nothing runs
#include <catch2/catch_test_macros.hpp>
#include <cstring>
#include <string>

#include "support/device.hpp"

namespace {

bool has(const std::string &text, const std::string &words) {
  return text.find(words) != std::string::npos;
}

// A call with gate and up of [6, 64], in memory that it would change if it ran.
struct Request {
  Request(const Device &device, Direction direction, rope_dtype_t dtype = ROPE_DTYPE_BF16) : dtype(dtype) {
    config = swiglu_config_for(device);
    config.dtype = dtype;
    config.num_threads = device.kind == ROPE_DEVICE_CPU ? 3 : 0;
    args.gate = tensor();
    args.up = tensor();
    if (direction == Direction::Forward) {
      args.out = tensor();
    } else {
      args.grad_out = tensor();
      args.grad_gate = tensor();
      args.grad_up = tensor();
    }
    workspace.freeze();
    workspace.restore();
  }

  rope_tensor_t tensor() {
    const rope_tensor_t result = workspace.tensor(dtype, {6, 64});
    workspace.fill_normal(result);
    return result;
  }

  std::string explain() const {
    const SwigluDesc desc = create(config);
    char text[256];
    std::memset(text, '#', sizeof text);
    const rope_status_t status = swiglu_explain(desc.get(), &args, text, sizeof text);
    INFO(rope_last_error());
    REQUIRE(status == ROPE_STATUS_SUCCESS);
    REQUIRE(std::memchr(text, 0, sizeof text) != nullptr);
    return text;
  }

  bool is_untouched() const {
    std::string where;
    return workspace.untouched_elsewhere(&where);
  }

  rope_dtype_t dtype;
  Workspace workspace{83};
  swiglu_config_t config = {};
  swiglu_args_t args = swiglu_args();
};

}  // namespace

TEST_CASE("an explanation of SwiGLU names dtype, direction and device", "[swiglu][explain]") {
  for (const Device &device : devices()) {
    for (const rope_dtype_t dtype : {ROPE_DTYPE_F32, ROPE_DTYPE_F16, ROPE_DTYPE_BF16, ROPE_DTYPE_F64}) {
      for (const Direction direction : {Direction::Forward, Direction::Backward}) {
        const bool is_forward = direction == Direction::Forward;
        Request request(device, direction, dtype);
        const std::string text = request.explain();
        INFO(device << ": " << text);
        const std::string begin =
            "swiglu " + std::string(oracle::dtype_name(dtype)) + (is_forward ? " forward on " : " backward on ");
        CHECK(text.rfind(begin, 0) == 0);
        CHECK_FALSE(has(text, "\n"));
        const int64_t bytes = (is_forward ? 3 : 5) * 6 * 64 * oracle::element_size(dtype);
        std::string megabytes = std::to_string(static_cast<double>(bytes) / 1e6);  // six digits behind the point
        while (megabytes.back() == '0') megabytes.pop_back();
        CHECK(has(text, " " + megabytes + " MB read and written"));
        if (device.kind == ROPE_DEVICE_CPU) {
          CHECK(has(text, " on the CPU: 1 of 3 threads, "));
        } else {
          CHECK(has(text, " on CUDA: "));
          CHECK(has(text, " kernel, vectors of "));
          CHECK(has(text, ", grid "));
        }
        CHECK(request.is_untouched());
      }
    }
  }
}

TEST_CASE("an explanation of SwiGLU counts the bytes of codes and scales", "[swiglu][explain]") {
  for (const Device &device : devices()) {
    Request request(device, Direction::Forward);
    swiglu_quant_args_t quant = SWIGLU_QUANT_ARGS_INIT;
    request.args.quant = &quant;
    request.args.out = request.workspace.tensor(ROPE_DTYPE_F8_E4M3, {6, 64});
    const auto check = [&](const char *megabytes) {
      const std::string text = request.explain();
      INFO(text);
      CHECK(has(text, std::string(", ") + megabytes + " MB read and written"));
      CHECK((device.kind == ROPE_DEVICE_CPU || has(text, " codes kernel, ")));
    };
    check("0.00192");  // 384 elements: twice 2 bytes are read, 1 is written
    quant.scales_out = request.workspace.tensor(ROPE_DTYPE_F32, {6, 1});
    check("0.001944");
    quant.scales_out = request.workspace.tensor(ROPE_DTYPE_F8_E8M0, {6, 2});
    check("0.001932");
    request.args.out = request.workspace.tensor(ROPE_DTYPE_F4_E2M1X2, {6, 32});
    quant.scales_out = {};
    check("0.001728");
    quant.scales_out = request.workspace.tensor(ROPE_DTYPE_F8_E4M3, {6, 4});
    check("0.001752");
    quant.scales_out = request.workspace.tensor(ROPE_DTYPE_F8_E4M3, {128, 4});
    quant.scale_layout = SWIGLU_SCALE_LAYOUT_128X4;
    check("0.001752");
  }
}

TEST_CASE("an explanation of SwiGLU names the kernel", "[swiglu][explain]") {
  if (!has_cuda()) SKIP(why_no_cuda());
  const Device &device = devices()[1];
  Request forward(device, Direction::Forward);
  CHECK(has(forward.explain(), " forward on CUDA: matrix kernel, vectors of 8 bytes, grid 1 x 1 of 128 threads, "));
  CHECK_FALSE(has(forward.explain(), "programmatic"));
  forward.args.num_rows = forward.workspace.tensor(ROPE_DTYPE_I32, {1});
  CHECK(has(forward.explain(), ": general kernel, "));
  forward.args.num_rows = {};
  // gate and up alternate in rows of 128 elements.
  const rope_tensor_t rows = forward.workspace.tensor(ROPE_DTYPE_BF16, {6, 128});
  for (rope_tensor_t *half : {&forward.args.gate, &forward.args.up}) {
    *half = rows;
    half->shape[1] = 64;
    half->stride[0] = 128;
    half->stride[1] = 2;
    half->flags = ROPE_TENSOR_STRIDED;
  }
  forward.args.up.data = static_cast<char *>(rows.data) + 2;
  CHECK(has(forward.explain(), ": alternating kernel, "));

  Request backward(device, Direction::Backward);
  CHECK(has(backward.explain(), " backward on CUDA: flat kernel, vectors of 4 bytes, grid 1 x 1 of 256 threads, "));
  backward.args.row_scale = backward.workspace.tensor(ROPE_DTYPE_F32, {6});
  CHECK(has(backward.explain(), ": general kernel, "));
  backward.args.grad_row_scale = backward.workspace.tensor(ROPE_DTYPE_F32, {6});
  CHECK(has(backward.explain(), ": row sums kernel, vectors of 16 bytes, grid 6 x 1 of 32 threads, "));

  Request wide(device, Direction::Backward, ROPE_DTYPE_F64);
  wide.args.row_scale = wide.workspace.tensor(ROPE_DTYPE_F64, {6});
  wide.args.grad_row_scale = wide.workspace.tensor(ROPE_DTYPE_F64, {6});
  CHECK(has(wide.explain(), ": row sums kernel, vectors of 8 bytes, "));
}

TEST_CASE("an explanation of SwiGLU counts threads, and the tensors that are there", "[swiglu][explain]") {
  Request request(devices()[0], Direction::Backward, ROPE_DTYPE_F32);
  swiglu_args_t &args = request.args;
  const rope_tensor_t large = request.workspace.tensor(ROPE_DTYPE_F32, {1024, 1024});
  args.gate = args.up = args.grad_out = args.grad_gate = large;
  args.grad_up = {};
  CHECK(request.explain() == "swiglu F32 backward on the CPU: 3 of 3 threads, 16.7772 MB read and written");
  args.out = request.workspace.tensor(ROPE_DTYPE_F32, {1024, 1024});
  CHECK(request.explain() == "swiglu F32 backward on the CPU: 3 of 3 threads, 20.9715 MB read and written");
  args.grad_out = args.grad_gate = {};
  request.config.num_threads = 100;
  CHECK(request.explain() == "swiglu F32 forward on the CPU: 12 of 100 threads, 12.5829 MB read and written");
}

TEST_CASE("an explanation of SwiGLU of nothing", "[swiglu][explain]") {
  for (const Device &device : devices()) {
    for (const Direction direction : {Direction::Forward, Direction::Backward}) {
      Request request(device, direction);
      for (rope_tensor_t *tensor : {&request.args.gate, &request.args.up, &request.args.out, &request.args.grad_out,
                                    &request.args.grad_gate, &request.args.grad_up}) {
        tensor->shape[0] = 0;
      }
      CHECK(request.explain() == "swiglu BF16 " +
                                     std::string(direction == Direction::Forward ? "forward" : "backward") +
                                     ": nothing to do, no element is gated");
    }
  }
}

TEST_CASE("an explanation of SwiGLU is cut to size", "[swiglu][explain]") {
  for (const Device &device : devices()) {
    Request request(device, Direction::Forward);
    const std::string whole = request.explain();
    const SwigluDesc desc = create(request.config);
    for (size_t size = 1; size <= whole.size() + 2; ++size) {
      char text[256];
      std::memset(text, '#', sizeof text);
      REQUIRE(swiglu_explain(desc.get(), &request.args, text, size) == ROPE_STATUS_SUCCESS);
      REQUIRE(std::string(text) == whole.substr(0, size - 1));
      REQUIRE(text[size] == '#');
    }
    CHECK(request.is_untouched());
  }
}

TEST_CASE("misused explanations of SwiGLU", "[swiglu][explain][errors]") {
  const struct {
    const char *text;
    rope_status_t status;
    void (*commit)(swiglu_args_t &);
  } misuses[] = {
      {"swiglu_explain: args.struct_size is 8: ", ROPE_STATUS_INVALID_ARGUMENT,
       [](swiglu_args_t &args) { args.struct_size = 8; }},
      {"swiglu_explain: flags is 0x10: ", ROPE_STATUS_NOT_SUPPORTED, [](swiglu_args_t &args) { args.flags = 0x10; }},
      {"swiglu_explain: gate is absent: ", ROPE_STATUS_INVALID_ARGUMENT, [](swiglu_args_t &args) { args.gate = {}; }},
      {"swiglu_explain: up.dtype is F16: ", ROPE_STATUS_INVALID_ARGUMENT,
       [](swiglu_args_t &args) { args.up.dtype = ROPE_DTYPE_F16; }},
      // Only grad_out determines the direction.
      {"swiglu_explain: grad_gate is set: it belongs to swiglu_backward", ROPE_STATUS_INVALID_ARGUMENT,
       [](swiglu_args_t &args) { args.grad_gate = args.out; }},
      {"swiglu_explain: grad_gate, grad_up and grad_row_scale are absent: ", ROPE_STATUS_INVALID_ARGUMENT,
       [](swiglu_args_t &args) { args.grad_out = args.gate; }},
      {"swiglu_explain: grad_out.ndim is 0, which means absent, ", ROPE_STATUS_INVALID_ARGUMENT,
       [](swiglu_args_t &args) { args.grad_out.data = args.gate.data; }},
  };
  for (const Device &device : devices()) {
    for (const auto &misuse : misuses) {
      Request request(device, Direction::Forward);
      const SwigluDesc desc = create(request.config);
      misuse.commit(request.args);
      char text[8] = "#######";
      INFO(misuse.text << " on " << device);
      CHECK(swiglu_explain(desc.get(), &request.args, text, sizeof text) == misuse.status);
      const std::string message = rope_last_error();
      INFO(message);
      CHECK(message.rfind(misuse.text, 0) == 0);
      CHECK(std::string(text) == "#######");
    }
    Request request(device, Direction::Forward);
    const SwigluDesc desc = create(request.config);
    char text[8] = "#######";
    const auto refuses = [&](const swiglu_desc_t *of, const swiglu_args_t *args, char *to, size_t size,
                             const char *words) {
      CHECK(swiglu_explain(of, args, to, size) == ROPE_STATUS_INVALID_ARGUMENT);
      const std::string message = rope_last_error();
      INFO(message);
      CHECK(message.rfind(words, 0) == 0);
      CHECK(std::string(text) == "#######");
    };
    refuses(nullptr, &request.args, text, sizeof text, "swiglu_explain: desc is NULL: it is required");
    refuses(desc.get(), nullptr, text, sizeof text, "swiglu_explain: args is NULL: it is required");
    refuses(desc.get(), &request.args, nullptr, 256, "swiglu_explain: text is NULL: it is required");
    refuses(desc.get(), &request.args, text, 0, "swiglu_explain: size is 0: it must hold a text");
    swiglu_desc_t *destroyed = create(request.config).release();
    swiglu_desc_destroy(destroyed);
    refuses(destroyed, &request.args, text, sizeof text, "swiglu_explain: desc ");
    const RopeDesc rotation = create(rope_config_for(device, 64));
    refuses(reinterpret_cast<const swiglu_desc_t *>(rotation.get()), &request.args, text, sizeof text,
            "swiglu_explain: desc ");
    CHECK(request.is_untouched());
  }
}
