// SPDX-License-Identifier: Apache-2.0
// step_pass_tests.cpp - channels outside the window from another tensor, and caches that store them separately
#include <catch2/catch_test_macros.hpp>
#include <string>
#include <vector>

#include "support/step_case.hpp"

namespace {

const std::vector<rope_dtype_t> dtypes = {ROPE_DTYPE_F32, ROPE_DTYPE_F16, ROPE_DTYPE_BF16, ROPE_DTYPE_F64};
const std::vector<rope_layout_t> layouts = {ROPE_LAYOUT_BSHD, ROPE_LAYOUT_SBHD, ROPE_LAYOUT_BHSD, ROPE_LAYOUT_THD};

// q and k in parts: a window of 16 of 40 channels.
StepCase parted(rope_dtype_t dtype, int32_t offset) {
  StepCase step;
  step.dtype = dtype;
  step.head_dim = 40;
  step.rotary_dim = 16;
  step.rotary_offset = offset;
  step.q.heads = 3;
  step.k.heads = 2;
  step.q.has_pass = step.k.has_pass = true;
  step.q.out = step.k.out = StepOut::Own;
  return step;
}

// Multi-head latent attention: one latent head with a separate window.
StepCase latent(rope_dtype_t dtype) {
  StepCase step = parted(dtype, 24);
  step.layout = ROPE_LAYOUT_THD;
  step.tokens = 10;
  step.k.heads = 1;
  step.k.out = StepOut::Absent;
  StepCache &cache = step.cache.emplace();
  cache.slots = {5, 3, 9, -1, 0, 1, 2, 4, 6, 7};
  cache.has_k_pass = true;
  return step;
}

// A window of 64 channels before or behind as many other channels, as the kernels of whole heads require.
StepCase pieces(rope_dtype_t dtype, rope_style_t style, int32_t others, bool is_behind) {
  StepCase step;
  step.dtype = dtype;
  step.style = style;
  step.layout = ROPE_LAYOUT_THD;
  step.tokens = 11;
  step.head_dim = 64 + others;
  step.rotary_dim = 64;
  step.rotary_offset = is_behind ? others : 0;
  step.flags = ROPE_FLAG_V_UNROTATED;
  step.q.heads = 3;
  step.k.heads = 1;
  step.k.has_pass = true;
  step.has_fault = true;
  StepCache &cache = step.cache.emplace();
  cache.slots = {5, 3, 9, -1, 0, 1, 2, 4, 6, 7, 12};
  return step;
}

// The step unchanged, with a table that lacks some rows, without angles, and with batches that no stride joins.
void check_ways(StepCase step) {
  step.check();
  step.table_rows = step.tokens - 2;
  step.check();
  step.table_rows = -1;
  step.flags = ROPE_FLAG_UNROTATED;
  step.check();
  step.flags = ROPE_FLAG_V_UNROTATED;
  step.layout = ROPE_LAYOUT_BHSD;
  step.batch = 2;
  step.tokens = 5;
  step.check();
  step.table_rows = 4;
  step.check();
}

void refuse_general(const std::vector<std::string> &explanations) {
  for (const std::string &text : explanations) {
    INFO(text);
    CHECK(text.find(": general kernel, ") == std::string::npos);
  }
}

}  // namespace

TEST_CASE("heads in pieces that lie in two tensors", "[rope][step][pass][sanitize]") {
  for (const rope_dtype_t dtype : {ROPE_DTYPE_F32, ROPE_DTYPE_F16, ROPE_DTYPE_BF16}) {
    for (const rope_style_t style : {ROPE_STYLE_HALF, ROPE_STYLE_INTERLEAVED}) {
      for (const int32_t others : {64, 448, 512}) {
        std::vector<std::string> explanations;
        StepCase step = pieces(dtype, style, others, others != 64);
        step.explanations = &explanations;
        step.q.is_window = true;  // in place
        check_ways(step);
        step.q.is_window = false;
        step.q.has_pass = true;
        step.q.out = StepOut::Own;
        step.k.pass_placement.expanded(1);
        step.k.heads = 2;
        step.k.out = StepOut::Own;
        step.cache->has_k_pass = true;
        check_ways(step);
        step.cache->has_k_pass = false;
        step.cache->slots.reset();
        step.cache->positions = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, -1};
        step.cache->page_table = {{2, -1, 1}};
        step.check();
        refuse_general(explanations);
        check_step_kernels(explanations, {"warp angles", "warp", "short table", "short with more angles", "long angles",
                                          "long table"});
      }
    }
  }
}

TEST_CASE("heads in pieces whose outputs and caches have 8 bits", "[rope][step][pass][quant][sanitize]") {
  for (const rope_dtype_t dtype : {ROPE_DTYPE_F16, ROPE_DTYPE_BF16}) {
    for (const rope_style_t style : {ROPE_STYLE_HALF, ROPE_STYLE_INTERLEAVED}) {
      for (const int32_t others : {64, 448, 512}) {
        std::vector<std::string> explanations;
        StepCase step = pieces(dtype, style, others, others != 64);
        step.explanations = &explanations;
        step.q.has_pass = true;
        step.q.out = StepOut::Own;
        step.q.out_dtype = step.cache->k_dtype = ROPE_DTYPE_F8_E4M3;
        step.q.scale = Scale::ByHead;
        step.k.scale = Scale::One;
        check_ways(step);
        step.quant_flags = ROPE_QUANT_FLAG_SCALE_MULTIPLIES;
        step.cache->has_k_pass = true;
        step.cache->k_pass_dtype = ROPE_DTYPE_F8_E4M3;
        step.cache->k_pass_scale = Scale::ByHead;
        check_ways(step);
        step.cache->k_dtype = 0;  // words of the window beside codes of the others
        step.k.scale = Scale::None;
        check_ways(step);
        check_step_kernels(explanations, {"warp angles codes", "warp codes", "warp table codes", "long angles codes",
                                          "long table codes"});
        step.quant_flags = 0;
        step.cache->k_pass_scale = Scale::None;
        for (const int channels : {64, 128, 512}) {
          if (others % channels != 0) continue;
          step.cache->k_pass_scales = {};
          step.cache->k_pass_scales.dtype = channels == 64 ? ROPE_DTYPE_F8_E8M0 : ROPE_DTYPE_F32;
          step.cache->k_pass_scales.groups = others / channels;
          step.cache->k_pass_scales.is_inline = channels == 128;
          check_ways(step);
        }
        step.cache->k_dtype = step.cache->k_pass_dtype = ROPE_DTYPE_F8_E5M2;
        step.k.cache_scales.dtype = ROPE_DTYPE_F32;
        step.check();
        refuse_general(explanations);
      }
    }
  }
}

// Five pieces: two of q, two of k, and v.
TEST_CASE("heads with a turned part and a part that is not, with codes", "[rope][step][quant][sanitize]") {
  for (const rope_dtype_t dtype : {ROPE_DTYPE_F16, ROPE_DTYPE_BF16}) {
    for (const rope_style_t style : {ROPE_STYLE_HALF, ROPE_STYLE_INTERLEAVED}) {
      for (const bool is_behind : {false, true}) {
        std::vector<std::string> explanations;
        StepCase step = pieces(dtype, style, 64, is_behind);
        step.explanations = &explanations;
        step.k.has_pass = false;
        step.k.heads = 2;
        step.v.heads = 2;
        step.cache->has_v = true;
        step.cache->k_dtype = step.cache->v_dtype = ROPE_DTYPE_F8_E4M3;
        step.k.scale = step.v.scale = Scale::ByHead;
        check_ways(step);  // q in place, k cached
        step.k.out = StepOut::Own;
        step.v.width = 192;
        check_ways(step);
        step.q.out = StepOut::Own;
        step.q.out_dtype = step.k.out_dtype = ROPE_DTYPE_F8_E4M3;
        step.q.scale = Scale::One;
        check_ways(step);
        refuse_general(explanations);
        check_step_kernels(explanations, {"warp angles codes", "long angles codes", "long table codes"});
      }
    }
  }
}

TEST_CASE("channels outside the window from another tensor", "[rope][step][pass]") {
  for (const rope_dtype_t dtype : dtypes) {
    for (const rope_layout_t layout : layouts) {
      for (const int32_t offset : {0, 10, 24}) {
        for (const rope_style_t out_style : {ROPE_STYLE_HALF, ROPE_STYLE_INTERLEAVED}) {
          StepCase step = parted(dtype, offset);
          step.layout = layout;
          step.out_style = out_style;
          step.check();
          step.norm = ROPE_NORM_RMS;
          step.q.has_weight = true;
          step.check();
          step.norm_order = ROPE_NORM_ORDER_AFTER;
          step.k.factor = RowFactor::ByToken;
          step.check();
        }
      }
    }
  }
}

TEST_CASE("a pass that all heads share, of any strides, and of what is not turned", "[rope][step][pass]") {
  for (const rope_dtype_t dtype : dtypes) {
    StepCase step = parted(dtype, 10);
    step.k.pass_placement.expanded(2);
    step.k.in_placement.expanded(2);
    step.q.pass_placement.order({0, 2, 1, 3}).gap(3, 2);
    step.q.in_placement.reversed(3);
    step.q.out_placement.gap(3, 1);
    step.check();
    step.table_rows = 3;  // some tokens have no row
    step.check();
    step.flags = ROPE_FLAG_UNROTATED;
    step.table_rows = -1;
    step.check();
    step.out_style = ROPE_STYLE_INTERLEAVED;
    step.check();
  }
}

TEST_CASE("caches of a head in one, or in two that have other types", "[rope][step][pass]") {
  for (const rope_dtype_t dtype : dtypes) {
    for (const bool has_pass : {false, true}) {
      for (const int32_t offset : {0, 10, 24}) {
        for (const uint32_t flags : {uint32_t{0}, uint32_t{ROPE_FLAG_UNROTATED}}) {
          StepCase step = latent(dtype);
          step.k.has_pass = has_pass;
          step.rotary_offset = offset;
          step.flags = flags;
          step.check();
          step.k.out = has_pass ? StepOut::Own : StepOut::Same;
          step.cache->k_pass_placement.gap(3, 1);
          step.check();
          step.cache->has_k_pass = false;
          step.check();
          step.cache->has_k_pass = true;
          step.k.out = StepOut::Own;
          step.norm = ROPE_NORM_RMS;
          step.norm_extent = ROPE_NORM_EXTENT_TOKEN;
          step.k.has_weight = true;
          step.k.heads = 2;
          step.check();
        }
      }
    }
  }
}

TEST_CASE("latent rows of 8 bits", "[rope][step][pass][quant]") {
  for (const rope_dtype_t dtype : {ROPE_DTYPE_F32, ROPE_DTYPE_F16, ROPE_DTYPE_BF16}) {
    for (const bool has_pass : {false, true}) {
      for (const rope_dtype_t type : {ROPE_DTYPE_F32, ROPE_DTYPE_F8_E8M0}) {
        // The window as words beside codes with scales: vLLM's row of 656 bytes and DeepSeek-V4's of 584.
        StepCase step = latent(dtype);
        step.k.has_pass = has_pass;
        step.quant_rounding = type == ROPE_DTYPE_F8_E8M0 ? ROPE_QUANT_ROUND_FIRST : 0;
        step.cache->k_pass_dtype = ROPE_DTYPE_F8_E4M3;
        step.cache->k_pass_scales.dtype = type;
        step.cache->k_pass_scales.groups = 4;
        step.has_amax = true;
        step.check();
        step.cache->k_pass_scales.is_inline = true;
        step.quant_flags = ROPE_QUANT_FLAG_POWER_OF_TWO;
        step.scale_floor = 1e-4;
        step.check();
        // All channels as codes, with separate scales for the window.
        step.cache->k_dtype = ROPE_DTYPE_F8_E5M2;
        step.k.cache_scales.dtype = ROPE_DTYPE_F32;
        step.check();
        step.k.cache_scales = {};
        step.k.scale = Scale::One;
        step.check();
      }
      // One static scale for each.
      StepCase step = latent(dtype);
      step.k.has_pass = has_pass;
      step.q.out_dtype = step.cache->k_dtype = step.cache->k_pass_dtype = ROPE_DTYPE_F8_E4M3;
      step.q.scale = step.k.scale = Scale::ByHead;
      step.cache->k_pass_scale = Scale::ByHead;
      step.quant_flags = ROPE_QUANT_FLAG_SCALE_MULTIPLIES;
      step.check();
      step.cache->has_k_pass = false;
      step.cache->k_pass_scale = Scale::None;
      step.check();
    }
  }
}
