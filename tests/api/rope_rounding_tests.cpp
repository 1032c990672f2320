// SPDX-License-Identifier: Apache-2.0
// rope_rounding_tests.cpp - rotations in which cos, sin, each product and each sum are rounded
#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <cstring>
#include <string>
#include <vector>

#include "support/cases.hpp"

namespace {

const std::vector<rope_dtype_t> dtypes = {ROPE_DTYPE_F16, ROPE_DTYPE_BF16};
const std::vector<rope_style_t> styles = {ROPE_STYLE_HALF, ROPE_STYLE_INTERLEAVED};

int64_t scattered(int64_t batch, int64_t token) {
  return (token * 5 + batch * 3) % 11;
}

RopeCase rounding(rope_dtype_t dtype, rope_style_t style) {
  return RopeCase().dtype(dtype).style(style).tokens(10).heads(3, 1).head_dim(64).theta(0).rounding_each();
}

}  // namespace

TEST_CASE("rounding each operation gives the bits of frameworks", "[rope][rounding]") {
  for (const rope_dtype_t dtype : dtypes) {
    for (const rope_style_t style : styles) {
      for (const rope_dtype_t table : {rope_dtype_t{ROPE_DTYPE_F32}, dtype}) {
        for (const rope_layout_t layout : {ROPE_LAYOUT_BSHD, ROPE_LAYOUT_SBHD, ROPE_LAYOUT_BHSD, ROPE_LAYOUT_THD}) {
          const RopeCase tables = rounding(dtype, style).layout(layout).tables(11).table_dtype(table);
          RopeCase(tables).positions(PositionShape::PerToken, ROPE_DTYPE_I64, scattered).check();
          RopeCase(tables).out_of_place().normal_data().check();
        }
        const RopeCase tables = rounding(dtype, style).tables(11).table_dtype(table);
        for (const int32_t head_dim : {2, 30, 128, 256}) RopeCase(tables).head_dim(head_dim).check();
        RopeCase(tables).rotary_dim(24).rotary_offset(6).check();
        RopeCase(tables).rotary_dim(32).rotary_offset(32).out_of_place().check();
        RopeCase(tables).placed(Placement().at(1).gap(3, 1)).check();
        RopeCase(tables).packed().heads(3, 1, 1).check();
        RopeCase(tables).out_style(ROPE_STYLE_HALF).check();
        RopeCase(tables).table_width(TableWidth::Channels).check();
        RopeCase(tables).table_width(TableWidth::Channels).rotary_dim(32).out_of_place().check();
        rounding(dtype, style).table_dtype(table).tables_by_token(true).check();
        rounding(dtype, style).table_dtype(table).tables(8).fault().check();  // two positions have no row
        if (style == ROPE_STYLE_HALF) RopeCase(tables).pair_block(16).check();
      }
    }
  }
}

TEST_CASE("rounding each operation of long launches", "[rope][rounding][sanitize]") {
  std::vector<std::string> of_tables, of_others;
  for (const rope_dtype_t dtype : dtypes) {
    for (const rope_style_t style : styles) {
      for (const rope_dtype_t table : {rope_dtype_t{ROPE_DTYPE_F32}, dtype}) {
        const RopeCase tables = rounding(dtype, style).head_dim(128).heads(32, 8).batch(1).tokens(70).tables(69);
        RopeCase(tables).table_dtype(table).normal_data().explained(&of_tables).check();
        RopeCase(tables).table_dtype(table).fault().normal_data().explained(&of_others).check();
      }
      rounding(dtype, style).theta(10000).attention_scale(1.5).normal_data().explained(&of_others).check();
    }
  }
  for (const std::string &text : of_tables) CHECK(text.find(": long table kernel, ") != std::string::npos);
  for (const std::string &text : of_others) CHECK(text.find(": general ") != std::string::npos);
}

TEST_CASE("rounding each operation changes no bit of F32 and F64", "[rope][rounding]") {
  for (const rope_dtype_t dtype : {ROPE_DTYPE_F32, ROPE_DTYPE_F64}) {
    for (const rope_style_t style : styles) {
      rounding(dtype, style).theta(10000).adjoint().check();
      rounding(dtype, style).tables(11).adjoint().check();
    }
  }
}

TEST_CASE("computed angles are rounded behind attention_scale", "[rope][rounding]") {
  for (const rope_dtype_t dtype : dtypes) {
    for (const rope_style_t style : styles) {
      const RopeCase computed = rounding(dtype, style).theta(10000).attention_scale(1.3);
      RopeCase(computed).normal_data().check();
      RopeCase(computed).layout(ROPE_LAYOUT_THD).sequences({0, 3, 3, 8}).normal_data().check();
      RopeCase(computed)
          .axes(2, {})
          .axis_positions(PositionShape::PerToken, ROPE_DTYPE_I32,
                          [](int64_t a, int64_t b, int64_t t) { return a * 3 + b + t; })
          .normal_data()
          .check();
      rounding(dtype, style).theta(0).attention_scale(1.3).tables(11).angles(30).normal_data().check();
    }
  }
}
