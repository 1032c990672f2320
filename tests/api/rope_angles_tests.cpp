// SPDX-License-Identifier: Apache-2.0
// rope_angles_tests.cpp - raw angles instead of cos and sin, and tables with a column for each channel
#include <catch2/catch_test_macros.hpp>
#include <cmath>
#include <vector>

#include "support/cases.hpp"
#include "support/tolerance.hpp"

namespace {

const std::vector<rope_dtype_t> dtypes = {ROPE_DTYPE_F32, ROPE_DTYPE_F16, ROPE_DTYPE_BF16, ROPE_DTYPE_F64};
const std::vector<rope_dtype_t> angle_dtypes = {ROPE_DTYPE_F32, ROPE_DTYPE_F16, ROPE_DTYPE_BF16};
const std::vector<rope_style_t> styles = {ROPE_STYLE_HALF, ROPE_STYLE_INTERLEAVED};
const std::vector<rope_layout_t> layouts = {ROPE_LAYOUT_BSHD, ROPE_LAYOUT_SBHD, ROPE_LAYOUT_BHSD, ROPE_LAYOUT_THD};

int64_t inside_and_outside(int64_t batch, int64_t token) {
  return (token * 5 + batch * 3) % 14 - 1;
}

RopeCase geometry(rope_dtype_t dtype, rope_style_t style) {
  return RopeCase().dtype(dtype).style(style).tokens(10).heads(3, 1).head_dim(32).theta(0).adjoint();
}

}  // namespace

TEST_CASE("angles of every type for data of every type", "[rope][angles]") {
  for (rope_dtype_t dtype : dtypes) {
    for (rope_dtype_t angle_dtype : angle_dtypes) {
      for (rope_style_t style : styles) {
        for (double max_angle : {3.2, 1000.0, 6e4}) {
          RopeCase request = geometry(dtype, style).table_dtype(angle_dtype).angles(max_angle);
          RopeCase(request).tables_by_token().check();
          RopeCase(request).tables_by_token(true).out_of_place().check();
          RopeCase(request).tables(10).attention_scale(0.7).check();
        }
      }
    }
  }
}

TEST_CASE("angles up to the largest float", "[rope][angles]") {
  for (rope_dtype_t dtype : dtypes) {
    for (rope_dtype_t angle_dtype : {ROPE_DTYPE_F32, ROPE_DTYPE_BF16}) {
      for (double max_angle : {1e6, 1e9, 1e18, 1e25, 3e38}) {
        geometry(dtype, ROPE_STYLE_HALF).table_dtype(angle_dtype).angles(max_angle).tables_by_token().check();
      }
    }
  }
}

TEST_CASE("angles whose cosines others have computed", "[rope][angles]") {
  struct Known {
    float angle;
    double cos, sin;
  };
  // Computed with 120 digits.
  const std::vector<Known> known = {{0x1.fffffep127f, 0.853021039830304158, -5.2187652333365854055e-1},
                                    {0x1p127f, 0.781914638714960072, 6.2338551295587024037e-1},
                                    {0x1.fp100f, 0.463793857539708195, 8.8594314586684221357e-1},
                                    {0x1.921fb6p1f, -0.999999999999996179, -8.7422780003724745258e-8},
                                    {0x1.921fb6p61f, 0.976550139464086433, -2.1529009524981249613e-1},
                                    {0x1.6ac5b2p41f, 0.983547775078843501, -1.8064820546425775305e-1},
                                    {0x1.47d0fep34f, -0.000000002012646032, 9.9999999999999999797e-1},
                                    {0x1p63f, 0.011800076512800237, 9.9993037667344222962e-1},
                                    {0x1p64f, -0.999721516388584120, 2.3598509904439558634e-2},
                                    {0x1.8p65f, -0.997494578048329917, 7.0742962647773356289e-2},
                                    {0x1.fe0p15f, -0.662795008304082628, -7.4880089273931227100e-1},
                                    {0x1p23f, -0.901754673758759322, 4.3224820225679775666e-1},
                                    {0x1.45f306p-2f, 0.949765719400467582, 3.1296178401158227676e-1},
                                    {0x1p-126f, 1, 1.1754943508222875080e-38},
                                    {0x1p-149f, 1, 1.4012984643248170709e-45},
                                    {0.0f, 1, 0}};
  const auto count = static_cast<int64_t>(known.size());
  for (const Device &device : devices()) {
    for (rope_dtype_t dtype : {ROPE_DTYPE_F32, ROPE_DTYPE_F64}) {
      for (int sign : {1, -1}) {
        // The pair (1, 0) becomes (cos, sin).
        Workspace workspace(91);
        rope_args_t args = rope_args();
        args.q = workspace.tensor(dtype, {1, count, 1, 2});
        workspace.fill(args.q, [](const Index &at) { return at[3] == 0 ? 1 : 0; });
        args.angles = workspace.tensor(ROPE_DTYPE_F32, {count, 1});
        workspace.fill(args.angles, [&](const Index &at) { return sign * known[at[0]].angle; });
        args.table_rows = ROPE_TABLE_BY_TOKEN;
        workspace.freeze();
        workspace.restore();
        rope_config_t config = rope_config_for(device, 2);
        config.dtype = dtype;
        config.theta = 0;
        const RopeDesc desc = create(config);
        REQUIRE(run(device, desc.get(), Direction::Forward, args, workspace) == ROPE_STATUS_SUCCESS);
        const oracle::Real allowed = dtype == ROPE_DTYPE_F64 ? 4.1e-16L : 1.1e-7L;
        for (int64_t token = 0; token < count; ++token) {
          INFO(device << ", " << oracle::dtype_name(dtype) << ", angle " << sign * known[token].angle);
          const oracle::Real cos = value_at(args.q, {0, token, 0, 0}), sin = value_at(args.q, {0, token, 0, 1});
          CHECK(std::fabs(cos - known[token].cos) <= allowed);
          CHECK(std::fabs(sin - sign * known[token].sin) <= allowed);
        }
      }
    }
  }
}

TEST_CASE("angles by position, with tokens outside", "[rope][angles][fault]") {
  for (rope_layout_t layout : layouts) {
    for (rope_style_t style : styles) {
      for (TableWidth width : {TableWidth::Pairs, TableWidth::Channels}) {
        RopeCase request = geometry(ROPE_DTYPE_BF16, style).layout(layout).angles(50).tables(11).table_width(width);
        request.positions(PositionShape::PerToken, ROPE_DTYPE_I32, inside_and_outside).fault();
        RopeCase(request).check();
        RopeCase(request).rotary_dim(18).rotary_offset(5).out_of_place().check();
      }
    }
  }
}

TEST_CASE("angles with strides of their own", "[rope][angles]") {
  for (const Placement &placement :
       {Placement().at(3).gap(0, 1), Placement().gap(1, 1), Placement().order({1, 0}), Placement().reversed(0),
        Placement().reversed(1), Placement().expanded(0), Placement().expanded(1), Placement().implicit()}) {
    for (TableWidth width : {TableWidth::Pairs, TableWidth::Channels}) {
      RopeCase request = geometry(ROPE_DTYPE_F32, ROPE_STYLE_HALF).angles(300).table_width(width);
      RopeCase(request).tables(10, TableStorage::Separate, placement).check();
      RopeCase(request).tables_by_token(false, TableStorage::Separate, placement).check();
    }
  }
}

TEST_CASE("angles of axes", "[rope][angles][axes]") {
  std::vector<int32_t> pair_axis;
  for (int32_t pair = 0; pair < 16; ++pair) pair_axis.push_back(pair * 7 % 4);
  const auto value = [](int64_t axis, int64_t batch, int64_t token) { return (axis * 3 + batch + token) % 11; };
  for (rope_layout_t layout : layouts) {
    for (TableWidth width : {TableWidth::Pairs, TableWidth::Channels, TableWidth::Repeated}) {
      RopeCase request = geometry(ROPE_DTYPE_F16, ROPE_STYLE_INTERLEAVED).layout(layout).angles(20).table_width(width);
      request.axes(4, pair_axis);
      RopeCase(request).axis_positions(PositionShape::PerToken, ROPE_DTYPE_I64, value).tables(11).check();
      RopeCase(request)
          .axis_positions(PositionShape::PerToken, ROPE_DTYPE_I64, value)
          .tables(10)
          .tables_by_axis()
          .check();
      RopeCase(request).tables_by_token().tables_by_axis().check();
      if (layout != ROPE_LAYOUT_THD) RopeCase(request).tables_by_token(true).tables_by_axis().check();
    }
  }
}

TEST_CASE("a column for each channel, in every dtype, style and layout", "[rope][tables]") {
  for (rope_dtype_t dtype : dtypes) {
    for (rope_dtype_t table_dtype : dtypes) {
      for (rope_style_t style : styles) {
        RopeCase request = geometry(dtype, style).table_dtype(table_dtype).table_width(TableWidth::Channels);
        RopeCase(request).tables(10).check();
        RopeCase(request).tables(10, TableStorage::Alternating).out_of_place().check();
        RopeCase(request).rotary_dim(14).rotary_offset(11).tables(10, TableStorage::SideBySide).check();
        RopeCase(request).tables_by_token(true).attention_scale(3).check();
      }
    }
  }
  for (rope_layout_t layout : layouts) {
    for (rope_style_t style : styles) {
      RopeCase request = geometry(ROPE_DTYPE_F32, style).layout(layout).table_width(TableWidth::Channels).fault();
      request.positions(PositionShape::PerToken, ROPE_DTYPE_I64, inside_and_outside);
      RopeCase(request).tables(11).check();
      RopeCase(request).tables(11, TableStorage::Separate, Placement().gap(1, 1), Placement().reversed(1)).check();
    }
  }
}

TEST_CASE("columns that are twice the same are one for each pair", "[rope][tables][properties]") {
  constexpr int64_t tokens = 7, pairs = 12;
  for (const Device &device : devices()) {
    for (rope_style_t style : styles) {
      for (bool are_angles : {false, true}) {
        INFO(device << ", style " << style << (are_angles ? ", angles" : ""));
        Workspace workspace(92);
        rope_args_t args = rope_args();
        args.q = workspace.tensor(ROPE_DTYPE_F32, {1, tokens, 3, 2 * pairs});
        workspace.fill_mixed(args.q);
        args.table_rows = ROPE_TABLE_BY_TOKEN;
        rope_tensor_t narrow_tables[2], wide_tables[2];
        for (int i = 0; i < 2; ++i) {
          narrow_tables[i] = workspace.tensor(ROPE_DTYPE_F32, {tokens, pairs});
          wide_tables[i] = workspace.tensor(ROPE_DTYPE_F32, {tokens, 2 * pairs});
          workspace.fill(narrow_tables[i], [&](const Index &) { return workspace.random().uniform(-1, 1); });
          workspace.fill(wide_tables[i], [&](const Index &at) {
            const int64_t pair = style == ROPE_STYLE_HALF ? at[1] % pairs : at[1] / 2;
            return value_at(narrow_tables[i], {at[0], pair});
          });
        }
        workspace.freeze();
        rope_config_t config = rope_config_for(device, 2 * pairs);
        config.style = style;
        config.theta = 0;
        const RopeDesc desc = create(config);
        for (const Direction direction : {Direction::Forward, Direction::Backward}) {
          std::vector<std::vector<std::byte>> images;
          for (const auto &tables : {narrow_tables, wide_tables}) {
            if (are_angles) {
              args.angles = tables[0];
            } else {
              args.cos = tables[0];
              args.sin = tables[1];
            }
            workspace.restore();
            REQUIRE(run(device, desc.get(), direction, args, workspace) == ROPE_STATUS_SUCCESS);
            images.push_back(workspace.image());
          }
          const bool same = images[0] == images[1];
          CHECK(same);
        }
      }
    }
  }
}
