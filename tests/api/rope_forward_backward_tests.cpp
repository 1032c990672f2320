// SPDX-License-Identifier: Apache-2.0
// rope_forward_backward_tests.cpp - rotation over dtypes, styles, layouts, sizes, strides and alignments
#include <catch2/catch_test_macros.hpp>
#include <vector>

#include "support/cases.hpp"

namespace {

const std::vector<rope_dtype_t> dtypes = {ROPE_DTYPE_F32, ROPE_DTYPE_F16, ROPE_DTYPE_BF16};
const std::vector<rope_style_t> styles = {ROPE_STYLE_HALF, ROPE_STYLE_INTERLEAVED};
const std::vector<rope_layout_t> layouts = {ROPE_LAYOUT_BSHD, ROPE_LAYOUT_SBHD, ROPE_LAYOUT_BHSD, ROPE_LAYOUT_THD};

template <class Visit>
void for_each_dtype_and_style(Visit visit) {
  for (rope_dtype_t dtype : dtypes) {
    for (rope_style_t style : styles) visit(dtype, style);
  }
}

// Every order of the axes in memory for a tensor of this layout.
std::vector<std::vector<int>> orders(rope_layout_t layout) {
  if (layout == ROPE_LAYOUT_THD) return {{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
  return {{0, 1, 2, 3}, {1, 0, 2, 3}, {0, 2, 1, 3}, {2, 1, 0, 3}, {0, 1, 3, 2}, {3, 0, 1, 2}, {1, 3, 2, 0}};
}

}  // namespace

TEST_CASE("every dtype, style and layout, each tensor in place or out of place", "[rope]") {
  for_each_dtype_and_style([](rope_dtype_t dtype, rope_style_t style) {
    for (rope_layout_t layout : layouts) {
      for (int which = 0; which < 8; ++which) {
        RopeCase()
            .dtype(dtype)
            .style(style)
            .layout(layout)
            .batch(2)
            .tokens(7)
            .heads(4, 2, 1)
            .head_dim(32)
            .in_place(which & 1, which & 2, which & 4)
            .check();
      }
    }
  });
}

TEST_CASE("a partly rotated head in every layout", "[rope]") {
  for_each_dtype_and_style([](rope_dtype_t dtype, rope_style_t style) {
    for (rope_layout_t layout : layouts) {
      RopeCase geometry;
      geometry.dtype(dtype).style(style).layout(layout).tokens(3).heads(3, 2).head_dim(48).rotary_dim(20);
      RopeCase(geometry).check();
      RopeCase(geometry).out_of_place().check();
      RopeCase(geometry).rotary_offset(28).check();
      RopeCase(geometry).rotary_offset(28).out_of_place().check();
      RopeCase(geometry).rotary_offset(13).check();
      RopeCase(geometry).rotary_offset(13).out_of_place().check();
    }
  });
}

TEST_CASE("token counts around edges", "[rope]") {
  for_each_dtype_and_style([](rope_dtype_t dtype, rope_style_t style) {
    for (int64_t tokens : {0, 1, 2, 31, 33, 257}) {
      RopeCase().dtype(dtype).style(style).batch(1).tokens(tokens).heads(2, 1).head_dim(64).check();
      RopeCase()
          .dtype(dtype)
          .style(style)
          .layout(ROPE_LAYOUT_THD)
          .tokens(tokens)
          .heads(1, 2)
          .head_dim(16)
          .out_of_place()
          .check();
    }
    for (int64_t batch : {0, 1, 5}) RopeCase().dtype(dtype).style(style).batch(batch).tokens(3).heads(2, 1).check();
  });
}

TEST_CASE("head counts of each tensor", "[rope]") {
  for_each_dtype_and_style([](rope_dtype_t dtype, rope_style_t style) {
    for (rope_layout_t layout : layouts) {
      RopeCase geometry;
      geometry.dtype(dtype).style(style).layout(layout).batch(2).tokens(3).head_dim(16);
      RopeCase(geometry).heads(0).check();
      RopeCase(geometry).heads(1).check();
      RopeCase(geometry).heads(3).out_of_place().check();
      RopeCase(geometry).heads(0, 2).check();
      RopeCase(geometry).heads(2, 0).out_of_place().check();
      RopeCase(geometry).heads(32, 8).check();
      RopeCase(geometry).heads(1, 1, 1).check();
      RopeCase(geometry).heads(7, 1, 3).out_of_place().check();
    }
  });
}

TEST_CASE("head_dim from 2 to 1024", "[rope]") {
  for_each_dtype_and_style([](rope_dtype_t dtype, rope_style_t style) {
    for (int32_t head_dim : {2, 4, 6, 8, 10, 14, 16, 56, 64, 72, 80, 96, 112, 128, 192, 250, 256, 576, 1022, 1024}) {
      RopeCase geometry;
      geometry.dtype(dtype).style(style).batch(1).tokens(3).heads(3, 1).head_dim(head_dim);
      RopeCase(geometry).check();
      RopeCase(geometry).out_of_place().check();
    }
  });
}

TEST_CASE("rotary_dim and rotary_offset over one head", "[rope]") {
  for_each_dtype_and_style([](rope_dtype_t dtype, rope_style_t style) {
    for (int32_t rotary_dim : {2, 6, 8, 10, 16, 22, 32, 34, 46, 48}) {
      for (int32_t rotary_offset : {0, 1, 2, 3, 4, 8, 16, 48 - rotary_dim}) {
        if (rotary_offset + rotary_dim > 48) continue;
        RopeCase geometry;
        geometry.dtype(dtype).style(style).batch(1).tokens(2).heads(2, 1).head_dim(48);
        geometry.rotary_dim(rotary_dim).rotary_offset(rotary_offset);
        RopeCase(geometry).check();
        RopeCase(geometry).out_of_place().check();
      }
    }
  });
}

TEST_CASE("rotated windows of real models", "[rope]") {
  for (rope_dtype_t dtype : dtypes) {
    // GPT-J rotates 64 of 256 channels, DeepSeek the last 64 of 192 and of 576, Phi-2 32 of 80, Gemma and Llama all.
    RopeCase gptj, deepseek, absorbed, phi, llama;
    gptj.dtype(dtype).style(ROPE_STYLE_INTERLEAVED).heads(16, 16).head_dim(256).rotary_dim(64).batch(1).tokens(5);
    deepseek.dtype(dtype).style(ROPE_STYLE_INTERLEAVED).heads(16).head_dim(192).rotary_dim(64).rotary_offset(128);
    absorbed.dtype(dtype).style(ROPE_STYLE_INTERLEAVED).heads(16, 1).head_dim(576).rotary_dim(64).rotary_offset(512);
    phi.dtype(dtype).heads(32, 32).head_dim(80).rotary_dim(32).batch(1);
    llama.dtype(dtype).heads(32, 8).head_dim(128).theta(500000).layout(ROPE_LAYOUT_THD).tokens(33);
    for (RopeCase *model : {&gptj, &deepseek, &absorbed, &phi, &llama}) {
      model->check();
      model->out_of_place().check();
    }
  }
}

TEST_CASE("q, k and v packed in one tensor", "[rope]") {
  for_each_dtype_and_style([](rope_dtype_t dtype, rope_style_t style) {
    for (rope_layout_t layout : layouts) {
      RopeCase geometry;
      geometry.dtype(dtype).style(style).layout(layout).tokens(5).head_dim(64).packed();
      RopeCase(geometry).heads(8, 2).check();
      RopeCase(geometry).heads(8, 2).out_of_place().check();
      RopeCase(geometry).heads(3, 3, 3).check();
      RopeCase(geometry).heads(5, 1, 2).out_of_place().check();
    }
  });
}

TEST_CASE("axes in any order in memory", "[rope]") {
  for_each_dtype_and_style([](rope_dtype_t dtype, rope_style_t style) {
    for (rope_layout_t layout : layouts) {
      for (const std::vector<int> &order : orders(layout)) {
        const Placement placement = Placement().order(order);
        RopeCase geometry;
        geometry.dtype(dtype).style(style).layout(layout).tokens(3).heads(3, 2).head_dim(16);
        RopeCase(geometry).placed(placement).check();
        RopeCase(geometry).out_of_place().q_placed(placement).k_placed({}, placement).check();
      }
    }
  });
}

TEST_CASE("gaps after each axis", "[rope]") {
  for_each_dtype_and_style([](rope_dtype_t dtype, rope_style_t style) {
    for (rope_layout_t layout : layouts) {
      for (int axis = 0; axis <= channel_axis(layout); ++axis) {
        for (int64_t gap : {1, 2, 8, 13}) {
          RopeCase geometry;
          geometry.dtype(dtype).style(style).layout(layout).tokens(3).heads(2, 1).head_dim(32);
          RopeCase(geometry).placed(Placement().gap(axis, gap)).check();
          RopeCase(geometry).out_of_place().q_placed({}, Placement().gap(axis, gap)).check();
        }
      }
    }
  });
}

TEST_CASE("negative strides of each axis", "[rope]") {
  for_each_dtype_and_style([](rope_dtype_t dtype, rope_style_t style) {
    for (rope_layout_t layout : layouts) {
      for (int axis = 0; axis <= channel_axis(layout); ++axis) {
        const Placement placement = Placement().reversed(axis);
        RopeCase geometry;
        geometry.dtype(dtype).style(style).layout(layout).tokens(3).heads(2, 1).head_dim(32).rotary_dim(16);
        RopeCase(geometry).placed(placement).check();
        RopeCase(geometry).out_of_place().q_placed(placement).k_placed({}, placement).check();
      }
    }
    RopeCase()
        .dtype(dtype)
        .style(style)
        .placed(Placement().reversed(0).reversed(1).reversed(2).reversed(3).gap(3, 1).gap(1, 3))
        .check();
  });
}

TEST_CASE("pointers at every misalignment", "[rope]") {
  for_each_dtype_and_style([](rope_dtype_t dtype, rope_style_t style) {
    for (int64_t start = 0; start <= 8; ++start) {
      RopeCase geometry;
      geometry.dtype(dtype).style(style).layout(ROPE_LAYOUT_THD).tokens(3).heads(2, 1).head_dim(64);
      RopeCase(geometry).placed(Placement().at(start)).check();
      RopeCase(geometry).out_of_place().q_placed(Placement().at(start)).check();
      RopeCase(geometry).out_of_place().q_placed({}, Placement().at(start)).check();
      RopeCase(geometry).k_placed(Placement().at(start)).check();
    }
  });
}

TEST_CASE("strides at every misalignment", "[rope]") {
  for_each_dtype_and_style([](rope_dtype_t dtype, rope_style_t style) {
    for (int64_t start : {0, 1, 4}) {
      for (int64_t gap = 1; gap <= 8; ++gap) {
        for (int axis : {0, 1}) {
          RopeCase geometry;
          geometry.dtype(dtype).style(style).layout(ROPE_LAYOUT_THD).tokens(3).heads(3).head_dim(32);
          RopeCase(geometry).placed(Placement().gap(axis, gap).at(start)).check();
          RopeCase(geometry).out_of_place().q_placed({}, Placement().gap(axis, gap).at(start)).check();
        }
      }
    }
  });
}

TEST_CASE("expanded inputs", "[rope]") {
  for_each_dtype_and_style([](rope_dtype_t dtype, rope_style_t style) {
    for (rope_layout_t layout : layouts) {
      RopeCase geometry;
      geometry.dtype(dtype).style(style).layout(layout).tokens(3).heads(4, 2).head_dim(32).out_of_place();
      for (int axis = 0; axis <= channel_axis(layout); ++axis) {
        RopeCase(geometry).q_placed(Placement().expanded(axis)).check();
        RopeCase(geometry).k_placed(Placement().expanded(axis)).check();
      }
      Placement one_number;
      for (int axis = 0; axis <= channel_axis(layout); ++axis) one_number.expanded(axis);
      RopeCase(geometry).q_placed(one_number).check();
    }
  });
}

TEST_CASE("an axis of size 1 may have any stride, 0 included, in an output too", "[rope]") {
  for (int axis : {0, 1, 2}) {
    RopeCase geometry;
    geometry.batch(1).tokens(1).heads(1).head_dim(16);
    RopeCase(geometry).placed(Placement().expanded(axis)).check();
    RopeCase(geometry).placed(Placement().reversed(axis).gap(axis, 1000)).check();
  }
}

TEST_CASE("strides left zero without the flag mean compact", "[rope]") {
  for (rope_layout_t layout : layouts) {
    RopeCase geometry;
    geometry.layout(layout).tokens(3).heads(3, 2).head_dim(16).placed(Placement().implicit());
    RopeCase(geometry).check();
    RopeCase(geometry).out_of_place().check();
  }
}

TEST_CASE("theta, inv_freq and attention_scale", "[rope]") {
  const std::vector<double> frequencies = {1.0, -0.5, 0.0, 3.0, 1e-5, 2.5e3, -7e-9, 6.283185307179586};
  for_each_dtype_and_style([&](rope_dtype_t dtype, rope_style_t style) {
    RopeCase geometry;
    geometry.dtype(dtype).style(style).batch(1).tokens(40).heads(2, 1).head_dim(16);
    for (double theta : {0.25, 1.0, 500.0, 1e4, 5e5, 1e7, 1e12, 1e300, 1e-300}) RopeCase(geometry).theta(theta).check();
    for (double scale : {0.0, 1.0, 0.5, -2.0, 1.25, 0.0625}) {
      RopeCase(geometry).attention_scale(scale).check();
      RopeCase(geometry).inv_freq(frequencies).attention_scale(scale).out_of_place().check();
    }
    RopeCase(geometry).inv_freq(frequencies).theta(0).check();
    RopeCase(geometry).inv_freq(frequencies).theta(123).check();
  });
}

TEST_CASE("calls large enough for several threads", "[rope]") {
  for_each_dtype_and_style([](rope_dtype_t dtype, rope_style_t style) {
    RopeCase geometry;
    geometry.dtype(dtype).style(style).head_dim(128);
    RopeCase(geometry).batch(1).tokens(67).heads(32, 8).layout(ROPE_LAYOUT_BSHD).check();
    RopeCase(geometry).batch(3).tokens(29).heads(11, 2, 3).layout(ROPE_LAYOUT_SBHD).out_of_place().check();
  });
  RopeCase().dtype(ROPE_DTYPE_F32).batch(1).tokens(1021).heads(3).head_dim(128).layout(ROPE_LAYOUT_BHSD).check();
  RopeCase().dtype(ROPE_DTYPE_BF16).batch(1).tokens(1).heads(3001).head_dim(64).check();
}
