// SPDX-License-Identifier: Apache-2.0
// rope_axes_tests.cpp - several positions per token, and the choice of the position axis for each pair
#include <catch2/catch_test_macros.hpp>
#include <limits>
#include <vector>

#include "support/cases.hpp"

namespace {

constexpr int64_t last = std::numeric_limits<int64_t>::max();

const std::vector<rope_dtype_t> dtypes = {ROPE_DTYPE_F32, ROPE_DTYPE_F16, ROPE_DTYPE_BF16, ROPE_DTYPE_F64};
const std::vector<rope_style_t> styles = {ROPE_STYLE_HALF, ROPE_STYLE_INTERLEAVED};
const std::vector<rope_layout_t> layouts = {ROPE_LAYOUT_BSHD, ROPE_LAYOUT_SBHD, ROPE_LAYOUT_BHSD, ROPE_LAYOUT_THD};

int64_t scattered(int64_t axis, int64_t batch, int64_t token) {
  return (token * 7919 + batch * 104729 + axis * 611953) % 4099 - 1000;
}

int64_t inside(int64_t axis, int64_t batch, int64_t token) {
  return (token * 5 + batch * 3 + axis * 7) % 11;
}

std::vector<int32_t> in_turn(int32_t axes, int32_t pairs) {
  std::vector<int32_t> pair_axis;
  for (int32_t pair = 0; pair < pairs; ++pair) pair_axis.push_back(pair % axes);
  return pair_axis;
}

std::vector<int32_t> in_chunks(int32_t axes, int32_t pairs) {
  std::vector<int32_t> pair_axis;
  for (int32_t pair = 0; pair < pairs; ++pair) pair_axis.push_back(pair * axes / pairs);
  return pair_axis;
}

RopeCase geometry(rope_layout_t layout) {
  return RopeCase().layout(layout).batch(3).tokens(6).heads(2, 1).head_dim(48).adjoint();
}

}  // namespace

TEST_CASE("one to eight axes in every layout", "[rope][axes]") {
  for (rope_layout_t layout : layouts) {
    for (int32_t axes = 1; axes <= 8; ++axes) {
      for (rope_dtype_t dtype : {ROPE_DTYPE_I32, ROPE_DTYPE_I64}) {
        geometry(layout)
            .axes(axes, in_turn(axes, 24))
            .axis_positions(PositionShape::PerToken, dtype, scattered)
            .check();
        if (layout == ROPE_LAYOUT_THD) continue;
        geometry(layout)
            .axes(axes, in_chunks(axes, 24))
            .axis_positions(PositionShape::PerBatchAndToken, dtype, scattered)
            .out_of_place()
            .check();
      }
    }
  }
}

TEST_CASE("axes in every dtype and style, of a part of the head", "[rope][axes]") {
  for (rope_dtype_t dtype : dtypes) {
    for (rope_style_t style : styles) {
      RopeCase request = geometry(ROPE_LAYOUT_BSHD).dtype(dtype).style(style).axes(3, in_chunks(3, 15));
      request.rotary_dim(30).rotary_offset(7).axis_positions(PositionShape::PerToken, ROPE_DTYPE_I64, scattered);
      RopeCase(request).check();
      RopeCase(request).out_of_place().check();
    }
  }
}

TEST_CASE("an axis that turns no pair changes nothing", "[rope][axes]") {
  // Axis 1 does not occur in pair_axis, and its positions have no row.
  const auto second_axis_far = [](int64_t axis, int64_t batch, int64_t token) {
    return axis == 1 ? last - token : inside(axis, batch, token);
  };
  for (rope_layout_t layout : layouts) {
    RopeCase request = geometry(layout).axes(2, std::vector<int32_t>(24, 0)).fault();
    request.axis_positions(PositionShape::PerToken, ROPE_DTYPE_I64, second_axis_far);
    RopeCase(request).check();
    RopeCase(request).tables(11).check();
    RopeCase(request).tables(11).tables_by_axis().check();
    RopeCase(request).axes(2, {}).check();
    RopeCase(request).axes(2, {}).tables(11).check();
  }
}

TEST_CASE("a token is outside where any axis that turns a pair is", "[rope][axes][fault]") {
  for (int32_t faulty_axis : {0, 1, 2}) {
    const auto positions = [=](int64_t axis, int64_t batch, int64_t token) {
      return axis == faulty_axis && token % 3 == 1 ? 11 + token : inside(axis, batch, token);
    };
    for (rope_layout_t layout : layouts) {
      RopeCase request = geometry(layout).axes(3, in_chunks(3, 24)).tables(11).fault();
      request.axis_positions(PositionShape::PerToken, ROPE_DTYPE_I32, positions);
      RopeCase(request).check();
      RopeCase(request).tables_by_axis().out_of_place().check();
      // The last axis has only one pair.
      std::vector<int32_t> mostly_first(24, 0);
      mostly_first.back() = 2;
      RopeCase(request).axes(3, mostly_first).tables_by_axis().check();
    }
  }
}

TEST_CASE("absent positions are the index of the token on every axis", "[rope][axes]") {
  for (rope_layout_t layout : layouts) {
    geometry(layout).axes(4, in_turn(4, 24)).check();
    geometry(layout).axes(4, in_turn(4, 24)).position_offset(-100000).check();
    geometry(layout).axes(4, in_turn(4, 24)).tables(6).tables_by_axis().check();
  }
}

TEST_CASE("start_positions of axes", "[rope][axes]") {
  for (rope_layout_t layout : layouts) {
    const bool is_thd = layout == ROPE_LAYOUT_THD;
    std::vector<PositionShape> shapes = {PositionShape::PerBatch, PositionShape::PerToken};
    if (!is_thd) shapes.push_back(PositionShape::PerBatchAndToken);
    for (PositionShape shape : shapes) {
      for (rope_dtype_t dtype : {ROPE_DTYPE_I32, ROPE_DTYPE_I64}) {
        RopeCase request = geometry(layout).axes(3, in_turn(3, 24)).axis_start_positions(shape, dtype, scattered);
        RopeCase(request).check();
        RopeCase(request).axis_positions(PositionShape::PerToken, ROPE_DTYPE_I64, scattered).position_offset(5).check();
      }
    }
  }
}

TEST_CASE("positions of one axis or batch serve all", "[rope][axes]") {
  struct Shared {
    bool by_batches, by_axes;
  };
  for (rope_layout_t layout : layouts) {
    for (const Shared &shared : {Shared{true, false}, Shared{false, true}, Shared{true, true}}) {
      for (rope_dtype_t dtype : {ROPE_DTYPE_I32, ROPE_DTYPE_I64}) {
        for (PositionShape shape : {PositionShape::PerToken, PositionShape::PerBatchAndToken}) {
          RopeCase request = geometry(layout).axes(3, in_turn(3, 24));
          request.shared_positions(shared.by_batches, shared.by_axes);
          RopeCase(request).axis_positions(shape, dtype, scattered).check();
          RopeCase(request).axis_positions(shape, dtype, scattered, Placement().gap(0, 5).gap(1, 3)).check();
          RopeCase(request).axis_start_positions(shape, dtype, scattered).check();
          RopeCase(request).axis_positions(shape, dtype, inside).tables(11).tables_by_axis().fault().check();
        }
      }
    }
  }
}

TEST_CASE("positions of axes wrap in 64 bits", "[rope][axes]") {
  geometry(ROPE_LAYOUT_BSHD)
      .axes(2, in_turn(2, 24))
      .axis_positions(PositionShape::PerBatchAndToken, ROPE_DTYPE_I64,
                      [](int64_t axis, int64_t batch, int64_t token) {
                        return axis == 0 ? last - batch - token : -last - 1 + token;
                      })
      .axis_start_positions(PositionShape::PerToken, ROPE_DTYPE_I64,
                            [](int64_t axis, int64_t, int64_t token) { return axis == 0 ? last - token : -last + 7; })
      .position_offset(2)
      .check();
}

TEST_CASE("positions of axes with strides of their own", "[rope][axes]") {
  for (const Placement &placement :
       {Placement().order({1, 0}), Placement().gap(0, 3).gap(1, 2), Placement().reversed(0), Placement().reversed(1),
        Placement().at(1), Placement().implicit(), Placement().expanded(0), Placement().expanded(1)}) {
    for (rope_layout_t layout : layouts) {
      geometry(layout)
          .axes(3, in_turn(3, 24))
          .axis_positions(PositionShape::PerToken, ROPE_DTYPE_I32, scattered, placement)
          .check();
    }
  }
  for (const Placement &placement : {Placement().order({2, 1, 0}), Placement().order({1, 2, 0}),
                                     Placement().expanded(0), Placement().expanded(1), Placement().expanded(2)}) {
    geometry(ROPE_LAYOUT_SBHD)
        .axes(3, in_turn(3, 24))
        .axis_positions(PositionShape::PerBatchAndToken, ROPE_DTYPE_I64, scattered, placement)
        .check();
  }
}

TEST_CASE("tables of axes in every storage and width", "[rope][axes][tables]") {
  for (TableStorage storage : {TableStorage::Separate, TableStorage::SideBySide, TableStorage::Alternating}) {
    for (TableWidth width : {TableWidth::Pairs, TableWidth::Channels, TableWidth::Repeated}) {
      for (rope_dtype_t dtype : dtypes) {
        RopeCase request = geometry(ROPE_LAYOUT_BHSD).axes(3, in_chunks(3, 24)).table_width(width).table_dtype(dtype);
        RopeCase by_position = request;
        by_position.tables(11, storage).axis_positions(PositionShape::PerBatchAndToken, ROPE_DTYPE_I64, inside);
        RopeCase(by_position).check();
        RopeCase(by_position).tables_by_axis().check();
        RopeCase(by_position).tables_by_axis(true).check();
        for (bool by_batch : {false, true}) {
          RopeCase by_token = request;
          by_token.tables_by_token(by_batch, storage);
          RopeCase(by_token).check();
          RopeCase(by_token).tables_by_axis().check();
        }
      }
    }
  }
}

TEST_CASE("eight axes with tables of two columns", "[rope][axes][tables]") {
  for (rope_layout_t layout : layouts) {
    for (rope_style_t style : styles) {
      RopeCase request = geometry(layout).style(style).head_dim(32).axes(8, in_chunks(8, 16));
      request.table_width(TableWidth::Repeated).axis_positions(PositionShape::PerToken, ROPE_DTYPE_I32, inside);
      RopeCase(request).tables(11).tables_by_axis().check();
      RopeCase(request).tables(11).out_of_place().check();
    }
  }
}

TEST_CASE("2-D rope: each half of the window by itself", "[rope][axes]") {
  for (rope_dtype_t dtype : dtypes) {
    for (rope_layout_t layout : layouts) {
      std::vector<double> inv_freq;
      for (int half = 0; half < 2; ++half) {
        for (int pair = 0; pair < 12; ++pair) inv_freq.push_back(static_cast<double>(oracle::frequency(1e4, 24, pair)));
      }
      geometry(layout)
          .dtype(dtype)
          .axes(2, in_chunks(2, 24))
          .pair_block(24)
          .inv_freq(inv_freq)
          .axis_positions(PositionShape::PerToken, ROPE_DTYPE_I32,
                          [](int64_t axis, int64_t, int64_t token) { return axis == 0 ? token : token * token + 3; })
          .check();
    }
  }
}

TEST_CASE("equal positions on every axis are one axis", "[rope][axes][properties]") {
  for (const Device &device : devices()) {
    for (rope_dtype_t dtype : dtypes) {
      INFO(device << ", " << oracle::dtype_name(dtype));
      Workspace workspace(61);
      rope_args_t args = rope_args();
      args.q = workspace.tensor(dtype, {2, 9, 3, 48});
      workspace.fill_mixed(args.q);
      const rope_tensor_t positions = workspace.tensor(ROPE_DTYPE_I64, {5, 9}, Placement().expanded(0));
      workspace.fill_integers(positions, [](const Index &index) { return index[1] * 1001 - 77; });
      workspace.freeze();
      rope_config_t config = rope_config_for(device, 48);
      config.dtype = dtype;
      const std::vector<int32_t> pair_axis = in_turn(5, 24);
      std::vector<std::vector<std::byte>> images;
      for (int32_t axes : {1, 5}) {
        config.num_axes = axes;
        config.pair_axis = axes == 1 ? nullptr : pair_axis.data();
        args.positions = axes == 1 ? select(positions, 0, 0) : positions;
        workspace.restore();
        const RopeDesc desc = create(config);
        REQUIRE(run(device, desc.get(), Direction::Forward, args, workspace) == ROPE_STATUS_SUCCESS);
        images.push_back(workspace.image());
      }
      const bool same = images[0] == images[1];
      CHECK(same);
    }
  }
}

TEST_CASE("large calls with axes", "[rope][axes]") {
  for (rope_style_t style : styles) {
    RopeCase request;
    request.dtype(ROPE_DTYPE_BF16).style(style).layout(ROPE_LAYOUT_THD).tokens(131).heads(16, 4).head_dim(128);
    request.axes(3, in_chunks(3, 64)).axis_positions(PositionShape::PerToken, ROPE_DTYPE_I64, scattered);
    RopeCase(request).check();
    RopeCase(request).axes(3, in_turn(3, 64)).out_of_place().check();
  }
}
