// SPDX-License-Identifier: Apache-2.0
// rope_table_tests.cpp - cos and sin from the caller's tables, and positions outside them
#include <catch2/catch_test_macros.hpp>
#include <cstring>
#include <limits>
#include <vector>

#include "support/cases.hpp"

namespace {

const std::vector<rope_dtype_t> dtypes = {ROPE_DTYPE_F32, ROPE_DTYPE_F16, ROPE_DTYPE_BF16};
const std::vector<rope_style_t> styles = {ROPE_STYLE_HALF, ROPE_STYLE_INTERLEAVED};
const std::vector<rope_layout_t> layouts = {ROPE_LAYOUT_BSHD, ROPE_LAYOUT_SBHD, ROPE_LAYOUT_BHSD, ROPE_LAYOUT_THD};

int64_t inside(int64_t batch, int64_t token) {
  return (token * 5 + batch * 3) % 11;
}

// Rows 0 and 10 of eleven, and every kind of position without a row.
int64_t inside_and_outside(int64_t batch, int64_t token) {
  constexpr int64_t huge = std::numeric_limits<int64_t>::max();
  const int64_t positions[] = {0, -1, 10, 11, huge, 5, -huge - 1, int64_t{1} << 32, (int64_t{1} << 32) + 3, -11};
  return positions[(token + batch) % 10];
}

RopeCase geometry(rope_dtype_t dtype, rope_style_t style) {
  return RopeCase().dtype(dtype).style(style).tokens(10).heads(3, 1).head_dim(32).theta(0);
}

}  // namespace

TEST_CASE("tables in every dtype, style and layout", "[rope][tables]") {
  for (rope_dtype_t dtype : dtypes) {
    for (rope_style_t style : styles) {
      for (rope_layout_t layout : layouts) {
        RopeCase tables = geometry(dtype, style).layout(layout).tables(11);
        RopeCase(tables).positions(PositionShape::PerToken, ROPE_DTYPE_I32, inside).check();
        RopeCase(tables).positions(PositionShape::PerToken, ROPE_DTYPE_I64, inside).out_of_place().check();
        RopeCase(tables).check();
      }
    }
  }
}

TEST_CASE("tables of a partly rotated head", "[rope][tables]") {
  for (rope_dtype_t dtype : dtypes) {
    for (rope_style_t style : styles) {
      for (int32_t rotary_dim : {2, 6, 16, 26}) {
        RopeCase tables = geometry(dtype, style).rotary_dim(rotary_dim).rotary_offset(6).tables(11);
        RopeCase(tables).check();
        RopeCase(tables).out_of_place().check();
      }
    }
  }
}

TEST_CASE("tables win over theta and carry the scale themselves", "[rope][tables]") {
  for (rope_style_t style : styles) {
    geometry(ROPE_DTYPE_F32, style).theta(10000).attention_scale(3).tables(11).check();
    geometry(ROPE_DTYPE_BF16, style).theta(10000).attention_scale(3).tables(11).check();
  }
}

TEST_CASE("tables side by side, alternating, and with any strides", "[rope][tables]") {
  for (rope_dtype_t dtype : dtypes) {
    for (rope_style_t style : styles) {
      const RopeCase plain = geometry(dtype, style).positions(PositionShape::PerBatchAndToken, ROPE_DTYPE_I64, inside);
      for (TableStorage storage : {TableStorage::SideBySide, TableStorage::Alternating}) {
        RopeCase(plain).tables(11, storage).check();
        RopeCase(plain).tables(11, storage, Placement().at(1).gap(0, 3)).check();
      }
      const std::vector<Placement> placements = {Placement().at(1),
                                                 Placement().at(3).gap(0, 1),
                                                 Placement().gap(1, 1),
                                                 Placement().order({1, 0}),
                                                 Placement().reversed(0),
                                                 Placement().reversed(1),
                                                 Placement().gap(0, 4).gap(1, 2)};
      for (const Placement &placement : placements) {
        RopeCase(plain).tables(11, TableStorage::Separate, placement, {}).check();
        RopeCase(plain).tables(11, TableStorage::Separate, {}, placement).check();
        RopeCase(plain).tables(11, TableStorage::Separate, placement, placement).check();
      }
      RopeCase(plain).tables(11, TableStorage::Separate, Placement().implicit(), Placement().implicit()).check();
    }
  }
}

TEST_CASE("broadcast tables", "[rope][tables]") {
  for (rope_style_t style : styles) {
    for (int axis : {0, 1}) {
      const Placement expanded = Placement().expanded(axis);
      geometry(ROPE_DTYPE_F32, style).tables(11, TableStorage::Separate, expanded, {}).check();
      geometry(ROPE_DTYPE_F16, style).tables(11, TableStorage::Separate, expanded, expanded).check();
    }
  }
}

TEST_CASE("a position outside the table passes its token through", "[rope][tables]") {
  for (rope_dtype_t dtype : dtypes) {
    for (rope_style_t style : styles) {
      for (rope_layout_t layout : layouts) {
        RopeCase tables = geometry(dtype, style).layout(layout).tables(11);
        tables.positions(PositionShape::PerToken, ROPE_DTYPE_I64, inside_and_outside);
        RopeCase(tables).check();
        RopeCase(tables).out_of_place().check();
        RopeCase(tables).rotary_dim(18).rotary_offset(5).out_of_place().check();
        RopeCase(tables).placed(Placement().gap(channel_axis(layout), 1)).out_of_place().check();
      }
      geometry(dtype, style).tables(7).check();
      geometry(dtype, style).tables(7).position_offset(-4).out_of_place().check();
      geometry(dtype, style).tables(1).check();
      geometry(dtype, style).tables(0).check();
      geometry(dtype, style).tables(0).out_of_place().check();
    }
  }
}

TEST_CASE("a sum of positions that wraps into the table has a row", "[rope][tables]") {
  constexpr int64_t huge = std::numeric_limits<int64_t>::max();
  geometry(ROPE_DTYPE_F32, ROPE_STYLE_HALF)
      .tables(11)
      .positions(PositionShape::PerToken, ROPE_DTYPE_I64, [](int64_t, int64_t token) { return -huge - 1 + token; })
      .position_offset(-huge - 1)
      .check();
}

TEST_CASE("a token that passes through keeps -0, infinities and NaN as they are", "[rope][tables]") {
  for (const Device &device : devices()) {
    for (rope_style_t style : styles) {
      INFO(device);
      Workspace workspace(5);
      const uint32_t bits[] = {0x80000000u, 0x00000000u, 0x7F800000u, 0xFF800000u,
                               0x7FC00001u, 0xFFABCDEFu, 0x7F800001u, 0x00000001u};
      rope_args_t args = rope_args();
      args.q = workspace.tensor(ROPE_DTYPE_F32, {1, 1, 1, 8});
      args.q_out = workspace.tensor(ROPE_DTYPE_F32, {1, 1, 1, 8});
      args.cos = workspace.tensor(ROPE_DTYPE_F32, {3, 4});
      args.sin = workspace.tensor(ROPE_DTYPE_F32, {3, 4});
      args.position_offset = 3;
      std::memcpy(args.q.data, bits, sizeof bits);
      workspace.fill_normal(args.cos);
      workspace.fill_normal(args.sin);
      workspace.freeze();
      rope_config_t config = rope_config_for(device, 8);
      config.style = style;
      const RopeDesc desc = create(config);
      for (Direction direction : {Direction::Forward, Direction::Backward}) {
        workspace.restore();
        REQUIRE(run(device, desc.get(), direction, args, workspace) == ROPE_STATUS_SUCCESS);
        CHECK(std::memcmp(args.q_out.data, bits, sizeof bits) == 0);
      }
    }
  }
}

TEST_CASE("large calls with tables", "[rope][tables]") {
  for (rope_style_t style : styles) {
    RopeCase tables;
    tables.dtype(ROPE_DTYPE_BF16).style(style).batch(2).tokens(61).heads(16, 4).head_dim(128).tables(64);
    RopeCase(tables).check();
    RopeCase(tables).tables(64, TableStorage::SideBySide).out_of_place().check();
    RopeCase(tables).tables(40, TableStorage::Alternating).check();
  }
}

TEST_CASE("tables of 16-bit types beside data of any type", "[rope][tables]") {
  for (rope_dtype_t dtype : {ROPE_DTYPE_F32, ROPE_DTYPE_F16, ROPE_DTYPE_BF16}) {
    for (rope_dtype_t table : {ROPE_DTYPE_F16, ROPE_DTYPE_BF16}) {
      for (rope_style_t style : {ROPE_STYLE_HALF, ROPE_STYLE_INTERLEAVED}) {
        const auto make = [&] { return RopeCase().dtype(dtype).style(style).table_dtype(table).heads(3, 1); };
        make().tables(9).check();
        make().tables(3).tokens(7).out_of_place().check();  // positions outside
        make().head_dim(20).rotary_dim(6).rotary_offset(8).tables(40, TableStorage::SideBySide).check();
        make().head_dim(18).tables(40, TableStorage::Alternating).out_of_place().check();
      }
    }
  }
}

TEST_CASE("tables by token, shared or of each batch", "[rope][tables]") {
  for (rope_layout_t layout : {ROPE_LAYOUT_BSHD, ROPE_LAYOUT_SBHD, ROPE_LAYOUT_BHSD, ROPE_LAYOUT_THD}) {
    for (bool by_batch : {false, true}) {
      if (by_batch && layout == ROPE_LAYOUT_THD) continue;
      for (rope_dtype_t table : {ROPE_DTYPE_F32, ROPE_DTYPE_BF16}) {
        const auto make = [&](int64_t tokens) {
          return RopeCase().layout(layout).batch(3).tokens(tokens).heads(2, 1).table_dtype(table);
        };
        make(7).tables_by_token(by_batch).check();
        make(1).tables_by_token(by_batch).check();
        make(33).dtype(ROPE_DTYPE_BF16).tables_by_token(by_batch, TableStorage::SideBySide).out_of_place().check();
        make(67).head_dim(4).tables_by_token(by_batch, TableStorage::Alternating).check();
        make(5)
            .style(ROPE_STYLE_INTERLEAVED)
            .tables_by_token(by_batch, TableStorage::Separate, Placement().gap(0, 3), Placement().reversed(0))
            .check();
      }
    }
  }
}

TEST_CASE("a table by token of one batch serves all", "[rope][tables]") {
  for (const Device &device : devices()) {
    INFO(device);
    Workspace workspace(41);
    rope_config_t config = rope_config_for(device, 8);
    config.theta = 0;
    rope_args_t args = rope_args();
    args.q = workspace.tensor(ROPE_DTYPE_F32, {3, 5, 2, 8});
    workspace.fill_normal(args.q);
    const rope_tensor_t cos = workspace.tensor(ROPE_DTYPE_F32, {1, 5, 4}),
                        sin = workspace.tensor(ROPE_DTYPE_F32, {1, 5, 4});
    workspace.fill_normal(cos);
    workspace.fill_normal(sin);
    workspace.freeze();
    const RopeDesc desc = create(config);
    args.table_rows = ROPE_TABLE_BY_TOKEN;
    std::vector<std::vector<std::byte>> images;
    for (bool has_batch_axis : {true, false}) {
      args.cos = has_batch_axis ? cos : select(cos, 0, 0);
      args.sin = has_batch_axis ? sin : select(sin, 0, 0);
      workspace.restore();
      REQUIRE(run(device, desc.get(), Direction::Forward, args, workspace) == ROPE_STATUS_SUCCESS);
      images.push_back(workspace.image());
    }
    const bool same = images[0] == images[1];
    CHECK(same);
  }
}
