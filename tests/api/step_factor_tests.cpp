// SPDX-License-Identifier: Apache-2.0
// step_factor_tests.cpp - factors of tokens, and of tokens and heads, after norm and rotation
#include <catch2/catch_test_macros.hpp>
#include <cmath>
#include <limits>
#include <vector>

#include "support/step_case.hpp"

namespace {

const std::vector<rope_dtype_t> dtypes = {ROPE_DTYPE_F32, ROPE_DTYPE_F16, ROPE_DTYPE_BF16, ROPE_DTYPE_F64};
const std::vector<rope_layout_t> layouts = {ROPE_LAYOUT_BSHD, ROPE_LAYOUT_SBHD, ROPE_LAYOUT_BHSD, ROPE_LAYOUT_THD};

// Llama 4: q of three heads and k of two are turned, and q's tokens have a factor.
StepCase scaled(RowFactor factor = RowFactor::ByToken) {
  StepCase step;
  step.q.heads = 3;
  step.k.heads = 2;
  step.q.factor = factor;
  step.table_rows = 5;
  return step;
}

}  // namespace

TEST_CASE("a factor for each token, or for each token and head", "[rope][step][factor]") {
  for (const rope_dtype_t dtype : dtypes) {
    for (const rope_layout_t layout : layouts) {
      for (const RowFactor factor :
           {RowFactor::ByToken, RowFactor::OneBatch, RowFactor::ByBatch, RowFactor::ByHead, RowFactor::OneBatchHeads}) {
        StepCase step = scaled(factor);
        step.dtype = dtype;
        step.layout = layout;
        step.k.factor = factor;
        step.k.factor_dtype = ROPE_DTYPE_F32;
        step.k.out = StepOut::Own;
        step.check();
        step.direction = Direction::Backward;
        step.check();
      }
    }
  }
}

TEST_CASE("all channels take the factor: those outside the window too, in place and out of place",
          "[rope][step][factor]") {
  for (const StepOut out : {StepOut::Absent, StepOut::Same, StepOut::Own}) {
    for (const uint32_t flags : {uint32_t{0}, uint32_t{ROPE_FLAG_UNROTATED}}) {
      for (const rope_style_t out_style : {ROPE_STYLE_HALF, ROPE_STYLE_INTERLEAVED}) {
        StepCase step = scaled(RowFactor::ByHead);
        if (flags != 0) step.table_rows = -1;
        step.flags = flags;
        step.out_style = out_style;
        step.rotary_dim = 24;
        step.rotary_offset = 10;
        step.q.out = step.k.out = out;
        step.check();
        step.q.is_window = true;
        step.dtype = ROPE_DTYPE_BF16;
        step.check();
      }
    }
  }
}

TEST_CASE("the factor comes behind the norm, wherever that is", "[rope][step][factor][norm]") {
  for (const rope_norm_order_t order : {ROPE_NORM_ORDER_BEFORE, ROPE_NORM_ORDER_AFTER}) {
    for (const rope_norm_extent_t extent : {ROPE_NORM_EXTENT_HEAD, ROPE_NORM_EXTENT_TOKEN}) {
      for (const rope_dtype_t dtype : dtypes) {
        StepCase step = scaled(RowFactor::ByBatch);
        step.norm = ROPE_NORM_RMS;
        step.norm_order = order;
        step.norm_extent = extent;
        step.dtype = dtype;
        step.q.has_weight = step.k.has_weight = true;
        step.k.factor = RowFactor::ByHead;
        step.check();
      }
    }
  }
}

TEST_CASE("caches hold what was multiplied", "[rope][step][factor][cache]") {
  for (const rope_dtype_t dtype : dtypes) {
    StepCase step = scaled();
    step.dtype = dtype;
    step.k.factor = RowFactor::ByHead;
    step.v.heads = 2;
    step.v.width = 20;
    step.v.factor = RowFactor::ByBatch;
    step.flags = ROPE_FLAG_V_UNROTATED;
    step.positions = [](int64_t, int64_t batch, int64_t token) { return batch + token - 1; };  // some have no row
    step.has_fault = true;
    StepCache &cache = step.cache.emplace();
    cache.has_v = true;
    cache.slots = {5, 3, 9, -1, 0, 1, 2, 4, 6, 77};
    if (dtype == ROPE_DTYPE_F32) cache.k_dtype = ROPE_DTYPE_BF16;
    step.check();
    step.k.out = step.v.out = StepOut::Own;
    step.check();
  }
}

TEST_CASE("factors with any strides, and tokens of no sequence", "[rope][step][factor]") {
  for (const int64_t tokens : {1, 2, 7, 33}) {
    StepCase step = scaled(RowFactor::ByHead);
    step.layout = ROPE_LAYOUT_THD;
    step.tokens = tokens;
    step.table_rows = -1;
    step.cu_seqlens = {0, tokens / 2, tokens - tokens / 7};
    step.q.factor_placement.gap(0, 3).gap(1, 1).reversed(1);
    step.k.factor = RowFactor::ByToken;
    step.k.factor_placement.expanded(0);  // one number for all, like attention's temperature without a log
    step.check();
  }
}

TEST_CASE("factors of 0, infinity and NaN", "[rope][step][factor]") {
  StepCase step = scaled();
  step.flags = ROPE_FLAG_UNROTATED;
  step.table_rows = -1;
  int64_t number = 0;
  step.values = [&](int, int64_t, int64_t, int64_t) {
    const oracle::Real special[] = {
        0,     -0.0L, std::numeric_limits<oracle::Real>::infinity(), std::numeric_limits<oracle::Real>::quiet_NaN(),
        1e30L, -3};
    return special[number++ % 6];
  };
  step.check();
}
