// SPDX-License-Identifier: Apache-2.0
// step_accumulate_tests.cpp - gradients that are added to the contents of their outputs
#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <cstddef>
#include <string>
#include <vector>

#include "support/step_case.hpp"

namespace {

const std::vector<rope_dtype_t> dtypes = {ROPE_DTYPE_F32, ROPE_DTYPE_F16, ROPE_DTYPE_BF16, ROPE_DTYPE_F64};
const std::vector<rope_layout_t> layouts = {ROPE_LAYOUT_BSHD, ROPE_LAYOUT_SBHD, ROPE_LAYOUT_BHSD, ROPE_LAYOUT_THD};

StepCase accumulated(rope_dtype_t dtype = ROPE_DTYPE_BF16) {
  StepCase step;
  step.direction = Direction::Backward;
  step.flags = ROPE_FLAG_ACCUMULATE;
  step.dtype = dtype;
  step.q.heads = 3;
  step.k.heads = 2;
  step.q.out = step.k.out = step.v.out = StepOut::Own;
  return step;
}

}  // namespace

TEST_CASE("gradients are added to what every output holds, and rounded once", "[rope][step][accumulate]") {
  for (const rope_dtype_t dtype : dtypes) {
    for (const rope_layout_t layout : layouts) {
      for (const rope_style_t style : {ROPE_STYLE_HALF, ROPE_STYLE_INTERLEAVED}) {
        StepCase step = accumulated(dtype);
        step.layout = layout;
        step.style = style;
        step.check();
        step.v.heads = 2;  // turned, too
        step.table_rows = 4;
        step.has_fault = true;  // the last token has a fault
        step.check();
        step.out_style = style == ROPE_STYLE_HALF ? ROPE_STYLE_INTERLEAVED : ROPE_STYLE_HALF;
        step.check();
      }
    }
  }
}

TEST_CASE("channels outside the window are added, and those of heads that are not turned", "[rope][step][accumulate]") {
  for (const rope_dtype_t dtype : dtypes) {
    for (const uint32_t flag : {uint32_t{0}, uint32_t{ROPE_FLAG_UNROTATED}, uint32_t{ROPE_FLAG_V_UNROTATED}}) {
      StepCase step = accumulated(dtype);
      step.flags |= flag;
      step.head_dim = 96;
      step.rotary_dim = 32;
      step.rotary_offset = 16;
      step.v.heads = 2;
      if (flag != 0) step.v.width = 40;
      step.check();
      step.q.is_window = true;
      step.check();
    }
  }
}

TEST_CASE("16-bit outputs of F32 gradients, row factors, any strides and tokens of no sequence are added to",
          "[rope][step][accumulate]") {
  StepCase step = accumulated(ROPE_DTYPE_F32);
  step.layout = ROPE_LAYOUT_THD;
  step.tokens = 9;
  step.cu_seqlens = {0, 4, 7};
  step.q.out_dtype = ROPE_DTYPE_BF16;
  step.k.out_dtype = ROPE_DTYPE_F16;
  step.k.factor = RowFactor::ByHead;
  step.q.out_placement.gap(2, 1).reversed(1);
  step.k.in_placement.gap(1, 3).expanded(0);
  step.check();
  step.dtype = ROPE_DTYPE_BF16;
  step.q.out_dtype = step.k.out_dtype = 0;
  step.rounds_each = true;
  step.check();
}

TEST_CASE("gradients of 16 bits are added by the kernels of rows", "[rope][step][accumulate]") {
  std::vector<std::string> explanations;
  for (const rope_dtype_t dtype : {ROPE_DTYPE_F16, ROPE_DTYPE_BF16}) {
    for (const int32_t head_dim : {64, 128, 80}) {
      for (const int64_t tokens : {1, 3, 65}) {
        StepCase step = accumulated(dtype);
        step.explanations = &explanations;
        step.head_dim = head_dim;
        step.rotary_dim = head_dim == 80 ? 32 : 0;
        step.tokens = tokens;
        step.check();
        step.style = ROPE_STYLE_INTERLEAVED;
        step.table_rows = 40;
        step.positions = [](int64_t, int64_t batch, int64_t token) { return 3 * token - batch; };
        step.has_fault = true;
        step.check();
        step.q.factor = RowFactor::ByToken;
        step.check();
      }
    }
  }
  check_step_kernels(explanations, {"long rows angles sums", "long rows table sums", "long rows table factors"});
}

// Empty tensors of many frameworks have the address 0, so that an input and its output look like one view.
TEST_CASE("gradients of no tokens, heads or batches are added to outputs without memory", "[rope][step][accumulate]") {
  for (const Device &device : devices()) {
    for (const bool has_memory : {false, true}) {
      for (const Shape &shape : {Shape{2, 0, 3, 64}, Shape{0, 5, 3, 64}, Shape{2, 5, 0, 64}}) {
        INFO("on " << device << ", memory " << has_memory << ", shape " << shape[0] << ' ' << shape[1] << ' '
                   << shape[2]);
        rope_config_t config = rope_config_for(device, 64);
        config.dtype = ROPE_DTYPE_BF16;
        const RopeDesc desc = create(config);
        uint16_t memory = 0;
        rope_args_t args = ROPE_ARGS_INIT;
        args.flags = ROPE_FLAG_ACCUMULATE;
        args.q.dtype = ROPE_DTYPE_BF16;
        args.q.ndim = 4;
        args.q.data = has_memory ? &memory : nullptr;
        std::copy(shape.begin(), shape.end(), args.q.shape);
        args.q_out = args.k = args.k_out = args.q;
        CHECK(rope_backward(desc.get(), &args, nullptr) == ROPE_STATUS_SUCCESS);
        INFO(rope_last_error());
        char text[256];
        CHECK(rope_explain(desc.get(), &args, text, sizeof text) == ROPE_STATUS_SUCCESS);
        // An absent output is no tensor of its own, whatever its length.
        args.k_out = rope_tensor_t ROPE_TENSOR_INIT;
        CHECK(rope_backward(desc.get(), &args, nullptr) == ROPE_STATUS_INVALID_ARGUMENT);
      }
    }
  }
}

TEST_CASE("gradients of no heads beside others", "[rope][step][accumulate]") {
  for (const Device &device : devices()) {
    INFO("on " << device);
    rope_config_t config = rope_config_for(device, 64);
    const RopeDesc desc = create(config);
    Workspace workspace(4);
    rope_args_t args = rope_args();
    args.flags = ROPE_FLAG_ACCUMULATE;
    for (rope_tensor_t *const tensor : {&args.q, &args.q_out}) {
      *tensor = workspace.tensor(ROPE_DTYPE_F32, {2, 5, 3, 64});
      workspace.fill_normal(*tensor);
    }
    workspace.freeze();
    std::vector<std::byte> alone;
    for (const bool has_k : {false, true}) {
      args.k = has_k ? args.q : rope_tensor_t ROPE_TENSOR_INIT;
      if (has_k) args.k.shape[2] = 0, args.k.data = nullptr;
      args.k_out = args.k;
      workspace.restore();
      const rope_status_t status = run(device, desc.get(), Direction::Backward, args, workspace);
      INFO(rope_last_error());
      REQUIRE(status == ROPE_STATUS_SUCCESS);
      if (!has_k) alone = workspace.image();
    }
    const bool is_same = workspace.image() == alone;
    CHECK(is_same);
  }
}
