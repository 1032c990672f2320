// SPDX-License-Identifier: Apache-2.0
// step_norm_tests.cpp - norms of q, k and v before and after the rotation, and tensors that are not turned
#include <catch2/catch_test_macros.hpp>
#include <cmath>
#include <limits>
#include <vector>

#include "support/step_case.hpp"

namespace {

const std::vector<rope_dtype_t> dtypes = {ROPE_DTYPE_F32, ROPE_DTYPE_F16, ROPE_DTYPE_BF16, ROPE_DTYPE_F64};
const std::vector<rope_layout_t> layouts = {ROPE_LAYOUT_BSHD, ROPE_LAYOUT_SBHD, ROPE_LAYOUT_BHSD, ROPE_LAYOUT_THD};
const std::vector<rope_style_t> styles = {ROPE_STYLE_HALF, ROPE_STYLE_INTERLEAVED};
constexpr oracle::Real infinity = std::numeric_limits<oracle::Real>::infinity();
constexpr oracle::Real not_a_number = std::numeric_limits<oracle::Real>::quiet_NaN();

// q of three heads and k of two, normed and turned, with weights.
StepCase normed(rope_norm_type_t norm = ROPE_NORM_RMS) {
  StepCase step;
  step.norm = norm;
  step.q.heads = 3;
  step.k.heads = 2;
  step.q.has_weight = step.k.has_weight = true;
  step.q.has_bias = step.k.has_bias = norm == ROPE_NORM_LAYER;
  step.table_rows = 5;
  return step;
}

}  // namespace

TEST_CASE("norms before and after the rotation, of heads and of tokens", "[rope][step][norm]") {
  for (const rope_norm_type_t norm : {ROPE_NORM_RMS, ROPE_NORM_LAYER}) {
    for (const rope_dtype_t dtype : dtypes) {
      for (const rope_norm_order_t order : {ROPE_NORM_ORDER_BEFORE, ROPE_NORM_ORDER_AFTER}) {
        for (const rope_norm_extent_t extent : {ROPE_NORM_EXTENT_HEAD, ROPE_NORM_EXTENT_TOKEN}) {
          for (const bool has_table : {false, true}) {
            StepCase step = normed(norm);
            step.dtype = dtype;
            step.norm_order = order;
            step.norm_extent = extent;
            if (!has_table) step.table_rows = -1;
            step.check();
            step.q.out = step.k.out = StepOut::Own;
            step.style = ROPE_STYLE_INTERLEAVED;
            step.check();
          }
        }
      }
    }
  }
}

TEST_CASE("a norm numbers channels as they are read before the rotation, as they are written after it",
          "[rope][step][norm]") {
  for (const rope_style_t style : styles) {
    for (const rope_style_t out_style : styles) {
      for (const rope_norm_order_t order : {ROPE_NORM_ORDER_BEFORE, ROPE_NORM_ORDER_AFTER}) {
        for (const uint32_t flags : {uint32_t{0}, uint32_t{ROPE_FLAG_UNROTATED}}) {
          StepCase step = normed(ROPE_NORM_LAYER);
          step.style = style;
          step.out_style = out_style;
          step.norm_order = order;
          step.flags = flags;
          if (flags != 0) step.table_rows = -1;
          step.rotary_dim = 48;
          step.rotary_offset = 6;
          step.q.weight_by_head = true;
          step.k.out = StepOut::Own;
          step.check();
          if (style == ROPE_STYLE_HALF || out_style == ROPE_STYLE_HALF) step.pair_block = 24;
          step.check();
        }
      }
    }
  }
}

TEST_CASE("roundings, offsets and types of weights", "[rope][step][norm][sanitize]") {
  for (const rope_norm_type_t norm : {ROPE_NORM_RMS, ROPE_NORM_LAYER}) {
    for (const rope_dtype_t dtype : dtypes) {
      for (const int32_t rounding : {0, 1, 2, 3}) {
        for (const bool weights_are_f32 : {false, true}) {
          StepCase step = normed(norm);
          step.dtype = dtype;
          step.norm_rounding = rounding;
          step.norm_weight_offset = rounding == 1 ? 0 : 1.1;
          step.norm_eps = 1.1e-5;
          step.q.weight_dtype = step.k.weight_dtype = weights_are_f32 ? ROPE_DTYPE_F32 : 0;
          step.k.weight_by_head = true;
          step.k.weight_placement.gap(1, 1).reversed(0).at(1);
          step.check();
          step.q.has_weight = false;
          step.k.has_bias = false;
          step.q.out = StepOut::Own;
          step.check();
          step.norm_order = ROPE_NORM_ORDER_AFTER;
          step.check();
        }
      }
    }
  }
}

TEST_CASE("a norm of any of q, k and v, in any layout", "[rope][step][norm]") {
  for (const rope_layout_t layout : layouts) {
    for (const rope_dtype_t dtype : dtypes) {
      for (const int32_t tensors : {0, 1, 2, 4, 6, 7}) {
        StepCase step = normed();
        step.layout = layout;
        step.dtype = dtype;
        step.norm_tensors = tensors;
        step.q.has_weight = tensors == 0 || (tensors & ROPE_NORM_TENSOR_Q) != 0;
        step.k.has_weight = tensors == 0 || (tensors & ROPE_NORM_TENSOR_K) != 0;
        step.v.heads = 1;
        step.flags = ROPE_FLAG_V_UNROTATED;
        step.v.width = 17;
        step.v.out = StepOut::Own;
        step.check();
        step.v.out = StepOut::Same;
        step.q.out = step.k.out = StepOut::Own;
        step.q.out_placement.order(layout == ROPE_LAYOUT_THD ? std::vector<int>{1, 0, 2}
                                                             : std::vector<int>{1, 0, 2, 3});
        step.q.out_placement.gap(2, 3);
        step.k.in_placement.reversed(1).gap(layout == ROPE_LAYOUT_THD ? 2 : 3, 1);
        step.check();
      }
    }
  }
}

TEST_CASE("each of q, k and v alone", "[rope][step][norm]") {
  for (const int alone : {0, 1, 2}) {
    for (const bool has_norm : {false, true}) {
      StepCase step;
      StepTensor &tensor = alone == 0 ? step.q : alone == 1 ? step.k : step.v;
      tensor.heads = 2;
      step.check();
      if (has_norm) {
        step.norm = ROPE_NORM_RMS;
        step.norm_tensors = 7;
        tensor.has_weight = alone != 2;
      }
      step.flags = alone == 2 ? ROPE_FLAG_V_UNROTATED : 0;
      step.check();
      step.flags = ROPE_FLAG_UNROTATED;
      step.check();
      tensor.out = StepOut::Own;
      step.check();
    }
  }
}

TEST_CASE("a tensor that is its window alone", "[rope][step][norm]") {
  for (const rope_dtype_t dtype : dtypes) {
    for (const rope_norm_type_t norm : std::vector<rope_norm_type_t>{0, ROPE_NORM_RMS, ROPE_NORM_LAYER}) {
      for (const rope_style_t out_style : styles) {
        StepCase step = normed(norm ? norm : ROPE_NORM_RMS);
        if (norm == 0) {
          step.norm = 0;
          step.q.has_weight = step.k.has_weight = false;
        }
        step.dtype = dtype;
        step.out_style = out_style;
        step.head_dim = 40;
        step.rotary_dim = 12;
        step.rotary_offset = 28;
        step.q.is_window = true;
        step.check();
        step.k.is_window = true;
        step.q.out = StepOut::Own;
        step.check();
      }
    }
  }
}

TEST_CASE("norms of any number of channels and heads", "[rope][step][norm]") {
  for (const int32_t head_dim :
       {2, 4, 6, 10, 14, 22, 26, 34, 40, 62, 64, 66, 80, 96, 128, 130, 192, 256, 514, 576, 1022, 1024}) {
    for (const int64_t heads : {1, 3, 8}) {
      for (const rope_norm_extent_t extent : {ROPE_NORM_EXTENT_HEAD, ROPE_NORM_EXTENT_TOKEN}) {
        for (const rope_dtype_t dtype : {ROPE_DTYPE_F32, ROPE_DTYPE_BF16, ROPE_DTYPE_F64}) {
          if (heads == 8 && head_dim > 256 && dtype != ROPE_DTYPE_BF16) continue;
          StepCase step = normed(heads == 3 ? ROPE_NORM_LAYER : ROPE_NORM_RMS);
          step.head_dim = head_dim;
          step.q.heads = heads;
          step.k.heads = 1;
          step.norm_extent = extent;
          step.dtype = dtype;
          step.batch = 1;
          step.tokens = 2;
          step.check();
          step.norm_order = ROPE_NORM_ORDER_AFTER;
          step.check();
        }
      }
    }
  }
}

TEST_CASE("norms of many heads and many tokens", "[rope][step][norm]") {
  for (const rope_norm_type_t norm : {ROPE_NORM_RMS, ROPE_NORM_LAYER}) {
    for (const rope_norm_extent_t extent : {ROPE_NORM_EXTENT_HEAD, ROPE_NORM_EXTENT_TOKEN}) {
      for (const rope_norm_order_t order : {ROPE_NORM_ORDER_BEFORE, ROPE_NORM_ORDER_AFTER}) {
        StepCase step = normed(norm);
        step.norm_extent = extent;
        step.norm_order = order;
        step.dtype = ROPE_DTYPE_BF16;
        step.q.heads = 133;
        step.k.heads = 8;
        step.tokens = 3;
        step.check();
        step.q.heads = 5;
        step.tokens = 700;
        step.table_rows = -1;
        step.check();
      }
    }
  }
}

TEST_CASE("NaN, infinities, zeros and subnormal numbers in a norm", "[rope][step][norm]") {
  for (const rope_dtype_t dtype : dtypes) {
    const oracle::Real smallest = oracle::min_positive(dtype), largest = oracle::max_finite(dtype);
    const oracle::Real specials[] = {not_a_number,
                                     infinity,
                                     -infinity,
                                     0,
                                     -0.0L,
                                     smallest,
                                     -smallest,
                                     largest,
                                     -largest,
                                     oracle::min_normal(dtype),
                                     1,
                                     -1};
    for (const rope_norm_type_t norm : {ROPE_NORM_RMS, ROPE_NORM_LAYER}) {
      for (const rope_norm_order_t order : {ROPE_NORM_ORDER_BEFORE, ROPE_NORM_ORDER_AFTER}) {
        for (const double eps : {1e-6, 1e-40}) {
          if (dtype != ROPE_DTYPE_F64 && eps < 1e-38 && norm == ROPE_NORM_LAYER) continue;
          StepCase step = normed(norm);
          step.dtype = dtype;
          step.norm_order = order;
          step.norm_eps = eps;
          step.head_dim = 12;
          step.batch = 1;
          step.tokens = 26;
          step.table_rows = 26;
          // A token with only this value, then a token with the value among others.
          step.values = [&](int, int64_t token, int64_t, int64_t channel) {
            const oracle::Real special = specials[token % 12];
            if (token < 12) return special;
            if (token < 24) return channel == token % 5 ? special : 0.5L * static_cast<oracle::Real>(channel - 4);
            return specials[channel];
          };
          step.check();
        }
      }
    }
  }
}

TEST_CASE("what is not turned keeps its bits", "[rope][step]") {
  for (const rope_dtype_t dtype : dtypes) {
    for (const rope_layout_t layout : layouts) {
      for (const rope_style_t out_style : styles) {
        for (const Direction direction : {Direction::Forward, Direction::Backward}) {
          for (const StepOut out : {StepOut::Absent, StepOut::Same, StepOut::Own}) {
            StepCase step;
            step.dtype = dtype;
            step.layout = layout;
            step.out_style = out_style;
            step.direction = direction;
            step.rotary_dim = 24;
            step.rotary_offset = 7;
            step.head_dim = 34;
            step.q.heads = 3;
            step.k.heads = 1;
            step.v.heads = 2;
            step.q.out = step.k.out = step.v.out = out;
            step.flags = ROPE_FLAG_UNROTATED;
            step.check();
            step.flags = ROPE_FLAG_V_UNROTATED;
            step.table_rows = 4;  // the fifth token has no row
            step.has_fault = direction == Direction::Forward;
            step.check();
            step.v.width = 9;
            step.check();
          }
        }
      }
    }
  }
}

TEST_CASE("heads of two tensors have different channels, and one of them has no heads", "[rope][step][norm]") {
  for (const uint32_t flags : {uint32_t{0}, uint32_t{ROPE_FLAG_UNROTATED}}) {
    for (const rope_norm_type_t norm : {ROPE_NORM_RMS, ROPE_NORM_LAYER}) {
      StepCase step;
      step.dtype = ROPE_DTYPE_BF16;
      step.layout = ROPE_LAYOUT_THD;
      step.head_dim = 128;
      step.rotary_dim = 64;
      step.norm = norm;
      step.flags = flags;
      step.q.heads = 0;
      step.q.is_window = true;
      step.k.heads = 3;
      step.check();
    }
  }
}

TEST_CASE("a descriptor without frequencies copies", "[rope][step]") {
  StepCase step;
  step.theta = 0;
  step.q.heads = 2;
  step.v.heads = 1;
  step.q.out = step.v.out = StepOut::Own;
  step.flags = ROPE_FLAG_UNROTATED;
  step.check();
  step.flags |= ROPE_FLAG_V_UNROTATED;
  step.check();
}

TEST_CASE("tokens without a row of the table are normed", "[rope][step][norm][sanitize]") {
  for (const rope_layout_t layout : layouts) {
    for (const rope_norm_order_t order : {ROPE_NORM_ORDER_BEFORE, ROPE_NORM_ORDER_AFTER}) {
      StepCase step = normed();
      step.layout = layout;
      step.norm_order = order;
      step.table_rows = 3;
      step.out_style = ROPE_STYLE_INTERLEAVED;
      step.has_fault = true;
      step.positions = [](int64_t, int64_t batch, int64_t token) { return token - 1 + batch; };
      step.check();
      step.norm_tensors = ROPE_NORM_TENSOR_Q;
      step.k.has_weight = false;
      step.k.out = StepOut::Own;
      step.check();
    }
  }
}

TEST_CASE("outputs of 16 bits from F32 data", "[rope][step]") {
  for (const rope_dtype_t out_dtype : {ROPE_DTYPE_F16, ROPE_DTYPE_BF16}) {
    for (const rope_layout_t layout : layouts) {
      for (const rope_norm_type_t norm : std::vector<rope_norm_type_t>{0, ROPE_NORM_RMS}) {
        for (const uint32_t flags : {uint32_t{0}, uint32_t{ROPE_FLAG_UNROTATED}, uint32_t{ROPE_FLAG_V_UNROTATED}}) {
          StepCase step = normed();
          step.layout = layout;
          step.norm = norm;
          step.flags = flags;
          if (norm == 0) step.q.has_weight = step.k.has_weight = false;
          if (flags & ROPE_FLAG_UNROTATED) step.table_rows = -1;
          step.rotary_dim = 30;
          step.rotary_offset = 3;
          step.q.out = step.k.out = StepOut::Own;
          step.q.out_dtype = out_dtype;
          if (flags != 0) {
            step.v.heads = 2;
            step.v.out = StepOut::Own;
            step.v.out_dtype = out_dtype;
            step.v.width = 33;
          }
          step.check();
          step.table_rows = -1;
          step.out_style = ROPE_STYLE_INTERLEAVED;
          step.check();
          // Each has its own type.
          step.k.out_dtype = out_dtype == ROPE_DTYPE_F16 ? ROPE_DTYPE_BF16 : ROPE_DTYPE_F16;
          step.check();
        }
      }
    }
  }
  // Numbers at the ends of the narrow types, and halfway between two of them.
  const oracle::Real specials[] = {
      65504,       65519,           65520,        -65536,       1e38L,     -3.4e38L,
      0x1p-25L,    0x1.000002p-25L, 0x1p-24L,     0x1p-133L,    0x1p-134L, 0x1.000002p-134L,
      1 + 0x1p-8L, 1 + 0x1.8p-7L,   1 + 0x1p-11L, not_a_number, infinity,  -0.0L};
  for (const rope_dtype_t out_dtype : {ROPE_DTYPE_F16, ROPE_DTYPE_BF16}) {
    StepCase step;
    step.head_dim = 18;
    step.q.heads = 2;
    step.q.out = StepOut::Own;
    step.q.out_dtype = out_dtype;
    step.flags = ROPE_FLAG_UNROTATED;
    step.values = [&](int, int64_t, int64_t, int64_t channel) { return specials[channel]; };
    step.check();
    step.flags = 0;
    step.check();
  }
}

TEST_CASE("norms with several position axes and sequences", "[rope][step][norm]") {
  for (const rope_dtype_t dtype : dtypes) {
    StepCase step = normed();
    step.dtype = dtype;
    step.table_rows = -1;
    step.num_axes = 3;
    for (int pair = 0; pair < 32; ++pair) step.pair_axis.push_back(pair % 3);
    step.positions = [](int64_t axis, int64_t batch, int64_t token) { return 100 * axis + 7 * batch + token; };
    step.start_positions = {5, 1000};
    step.attention_scale = 1.25;
    step.check();

    step = normed();
    step.dtype = dtype;
    step.layout = ROPE_LAYOUT_THD;
    step.tokens = 9;
    step.cu_seqlens = {0, 2, 2, 7};
    step.start_positions = {3, 0, -1};
    step.has_fault = true;
    step.norm_extent = ROPE_NORM_EXTENT_TOKEN;
    step.check();
    step.q.out = step.k.out = StepOut::Own;
    step.check();
    step.cu_seqlens = {1, 4, 8};
    step.start_positions.clear();
    step.check();
  }
}

TEST_CASE("weights of F32 lie anywhere", "[rope][step][norm]") {
  for (const rope_dtype_t dtype : {ROPE_DTYPE_F32, ROPE_DTYPE_F16, ROPE_DTYPE_BF16}) {
    for (const int64_t tokens : {1, 40}) {
      for (int64_t start = 0; start < 5; ++start) {
        StepCase step;
        step.dtype = dtype;
        step.tokens = tokens;
        step.norm = ROPE_NORM_RMS;
        step.q.heads = 2;
        step.q.has_weight = true;
        step.q.weight_dtype = ROPE_DTYPE_F32;
        step.q.weight_placement.at(start);
        step.check();
        step.q.weight_by_head = true;
        step.q.weight_placement.gap(0, start);
        step.check();
      }
    }
  }
}

TEST_CASE("tokens outside of a table that turns nothing are faults", "[rope][step]") {
  StepCase step;
  step.flags = ROPE_FLAG_V_UNROTATED;
  step.v.heads = 3;
  step.v.out = StepOut::Own;
  step.table_rows = 3;
  step.has_fault = true;
  step.check();
}

TEST_CASE("a norm of nothing", "[rope][step][norm]") {
  for (const rope_layout_t layout : layouts) {
    StepCase step = normed();
    step.layout = layout;
    step.tokens = 0;
    step.check();
    step.tokens = 4;
    step.q.heads = 0;
    step.check();
    step.k.heads = 0;
    step.has_fault = true;
    step.check();
  }
}
