// SPDX-License-Identifier: Apache-2.0
// step_accumulate_tests.cpp - gradients that are added to the contents of their outputs
#include <catch2/catch_test_macros.hpp>
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
