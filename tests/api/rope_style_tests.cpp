// SPDX-License-Identifier: Apache-2.0
// rope_style_tests.cpp - pairs that are read in one style and written in another, and pairs inside blocks
#include <catch2/catch_test_macros.hpp>
#include <cmath>
#include <cstring>
#include <vector>

#include "support/cases.hpp"

namespace {

const std::vector<rope_dtype_t> dtypes = {ROPE_DTYPE_F32, ROPE_DTYPE_F16, ROPE_DTYPE_BF16, ROPE_DTYPE_F64};
const std::vector<rope_style_t> styles = {ROPE_STYLE_HALF, ROPE_STYLE_INTERLEAVED};
const std::vector<rope_layout_t> layouts = {ROPE_LAYOUT_BSHD, ROPE_LAYOUT_SBHD, ROPE_LAYOUT_BHSD, ROPE_LAYOUT_THD};

RopeCase geometry(rope_style_t style, rope_style_t out_style) {
  return RopeCase().style(style).out_style(out_style).heads(3, 1).head_dim(48).position_offset(1000).adjoint();
}

std::vector<int32_t> blocks_of(int32_t width) {
  std::vector<int32_t> blocks;
  for (int32_t block = 2; block <= width; block += 2) {
    if (width % block == 0) blocks.push_back(block);
  }
  return blocks;
}

// Counts differing elements of two [S, H, D] views with different orders of channels; `channel_of` maps to b's channel.
template <class ChannelOf>
int64_t different_elements(const rope_tensor_t &a, const rope_tensor_t &b, ChannelOf channel_of) {
  int64_t different = 0;
  for_each_index(a, [&](const Index &at) { different += !same_bits_at(a, at, b, {at[0], at[1], channel_of(at[2])}); });
  return different;
}

}  // namespace

TEST_CASE("every style to every style, in every dtype and layout", "[rope][out_style]") {
  for (rope_style_t style : styles) {
    for (rope_style_t out_style : styles) {
      for (rope_dtype_t dtype : dtypes) {
        for (rope_layout_t layout : layouts) {
          RopeCase request = geometry(style, out_style).dtype(dtype).layout(layout);
          RopeCase(request).check();
          RopeCase(request).out_of_place().check();
          RopeCase(request).in_place(true, false).rotary_dim(22).rotary_offset(9).check();
          RopeCase(request).in_place(false, true).rotary_dim(2).rotary_offset(46).check();
        }
      }
    }
  }
}

TEST_CASE("converted pairs of strided tensors", "[rope][out_style]") {
  for (rope_style_t style : styles) {
    const rope_style_t other = oracle::other_style(style);
    for (rope_dtype_t dtype : dtypes) {
      for (const Placement &placement :
           {Placement().gap(3, 1), Placement().reversed(3), Placement().order({3, 2, 1, 0}),
            Placement().gap(2, 5).at(3), Placement().order({0, 1, 3, 2})}) {
        geometry(style, other).dtype(dtype).placed(placement).check();
        geometry(style, other).dtype(dtype).q_placed({}, placement).k_placed(placement).out_of_place().check();
      }
      geometry(style, other).dtype(dtype).packed().check();
    }
  }
}

TEST_CASE("converted heads of every width", "[rope][out_style]") {
  for (int32_t head_dim : {2, 4, 6, 10, 34, 62, 64, 66, 128, 250, 1024}) {
    for (rope_dtype_t dtype : dtypes) {
      geometry(ROPE_STYLE_INTERLEAVED, ROPE_STYLE_HALF).dtype(dtype).head_dim(head_dim).check();
      geometry(ROPE_STYLE_HALF, ROPE_STYLE_INTERLEAVED).dtype(dtype).head_dim(head_dim).out_of_place().check();
    }
  }
}

TEST_CASE("converted pairs with tables, inside and outside", "[rope][out_style][tables][fault]") {
  for (rope_style_t style : styles) {
    for (rope_style_t out_style : styles) {
      for (rope_dtype_t dtype : dtypes) {
        for (TableWidth width : {TableWidth::Pairs, TableWidth::Channels}) {
          RopeCase request = geometry(style, out_style).dtype(dtype).table_width(width).position_offset(0).fault();
          RopeCase(request).tables(5).check();
          // A token that is not rotated still changes its pairing style.
          RopeCase(request).tables(3).check();
          RopeCase(request).tables(3).out_of_place().check();
          RopeCase(request).tables(3).rotary_dim(20).rotary_offset(11).out_of_place().check();
          RopeCase(request).tables_by_token(true).check();
        }
      }
    }
  }
}

TEST_CASE("backward after forward brings the pairs home", "[rope][out_style][properties]") {
  for (const Device &device : devices()) {
    for (rope_style_t style : styles) {
      for (int32_t block : {0, 8}) {
        INFO(device << ", style " << style << ", pair_block " << block);
        Workspace workspace(51);
        rope_args_t args = rope_args();
        args.q = workspace.tensor(ROPE_DTYPE_F32, {2, 9, 5, 48});
        workspace.fill(args.q, [&](const Index &) { return workspace.random().uniform(-1, 1); });
        workspace.freeze();
        workspace.restore();
        rope_config_t config = rope_config_for(device, 48);
        config.style = style;
        config.out_style = oracle::other_style(style);
        config.pair_block = block;
        const RopeDesc desc = create(config);
        REQUIRE(run(device, desc.get(), Direction::Forward, args, workspace) == ROPE_STATUS_SUCCESS);
        REQUIRE(run(device, desc.get(), Direction::Backward, args, workspace) == ROPE_STATUS_SUCCESS);
        oracle::Real max_error = 0;
        for_each_index(args.q, [&](const Index &at) {
          max_error = std::fmax(max_error, std::fabs(value_at(args.q, at) - value_at(workspace.before(args.q), at)));
        });
        CHECK(max_error <= 1e-6L);
      }
    }
  }
}

TEST_CASE("every block of a window", "[rope][pair_block]") {
  for (int32_t width : {2, 12, 24, 30, 48}) {
    for (int32_t block : blocks_of(width)) {
      for (rope_dtype_t dtype : dtypes) {
        RopeCase request = geometry(ROPE_STYLE_HALF, 0).dtype(dtype).rotary_dim(width).pair_block(block);
        RopeCase(request).check();
        RopeCase(request).out_style(ROPE_STYLE_HALF).rotary_offset(48 - width).out_of_place().check();
        RopeCase(request).out_style(ROPE_STYLE_INTERLEAVED).check();
        RopeCase(request).style(ROPE_STYLE_INTERLEAVED).out_style(ROPE_STYLE_HALF).check();
      }
    }
  }
}

TEST_CASE("blocks with tables of every width", "[rope][pair_block][tables]") {
  for (int32_t block : blocks_of(24)) {
    for (TableWidth width : {TableWidth::Pairs, TableWidth::Channels, TableWidth::Repeated}) {
      for (rope_style_t out_style : styles) {
        RopeCase request = geometry(ROPE_STYLE_HALF, out_style).rotary_dim(24).rotary_offset(3).pair_block(block);
        request.axes(2, {0, 1, 0, 1, 0, 0, 1, 1, 1, 0, 1, 0}).table_width(width).position_offset(0);
        RopeCase(request).tables(5).check();
        RopeCase(request).tables(4).tables_by_axis().out_of_place().check();
        RopeCase(request).tables_by_token().tables_by_axis().check();
      }
    }
  }
}

TEST_CASE("blocks of wide heads and many tokens", "[rope][pair_block][out_style]") {
  for (rope_dtype_t dtype : {ROPE_DTYPE_F32, ROPE_DTYPE_BF16}) {
    for (int32_t block : {0, 16, 64, 128}) {
      RopeCase request = geometry(ROPE_STYLE_HALF, ROPE_STYLE_INTERLEAVED).dtype(dtype).head_dim(128).tokens(61);
      request.heads(16, 4).pair_block(block);
      RopeCase(request).check();
      RopeCase(request).out_style(0).out_of_place().check();
    }
  }
}

TEST_CASE("blocks of two channels are INTERLEAVED, the block of the window is none", "[rope][pair_block][properties]") {
  for (const Device &device : devices()) {
    for (rope_dtype_t dtype : dtypes) {
      INFO(device << ", " << oracle::dtype_name(dtype));
      Workspace workspace(52);
      rope_args_t args = rope_args();
      args.q = workspace.tensor(dtype, {2, 9, 5, 48});
      workspace.fill_mixed(args.q);
      workspace.freeze();
      const auto image = [&](rope_style_t style, int32_t block) {
        rope_config_t config = rope_config_for(device, 48);
        config.dtype = dtype;
        config.style = style;
        config.pair_block = block;
        config.rotary_dim = 36;
        workspace.restore();
        const RopeDesc desc = create(config);
        REQUIRE(run(device, desc.get(), Direction::Forward, args, workspace) == ROPE_STATUS_SUCCESS);
        return workspace.image();
      };
      const bool two_is_interleaved = image(ROPE_STYLE_HALF, 2) == image(ROPE_STYLE_INTERLEAVED, 0);
      const bool whole_is_none = image(ROPE_STYLE_HALF, 36) == image(ROPE_STYLE_HALF, 0);
      const bool others_are_others = image(ROPE_STYLE_HALF, 12) != image(ROPE_STYLE_HALF, 0);
      CHECK(two_is_interleaved);
      CHECK(whole_is_none);
      CHECK(others_are_others);
    }
  }
}

TEST_CASE("converting is rotating and moving, to the bit", "[rope][out_style][properties]") {
  for (const Device &device : devices()) {
    for (rope_dtype_t dtype : dtypes) {
      INFO(device << ", " << oracle::dtype_name(dtype));
      Workspace workspace(53);
      rope_args_t plain = rope_args(), converted = rope_args();
      plain.q = converted.q = workspace.tensor(dtype, {11, 3, 32});
      plain.q_out = workspace.tensor(dtype, {11, 3, 32});
      converted.q_out = workspace.tensor(dtype, {11, 3, 32});
      workspace.fill_mixed(plain.q);
      workspace.freeze();
      workspace.restore();
      rope_config_t config = rope_config_for(device, 32);
      config.dtype = dtype;
      config.layout = ROPE_LAYOUT_THD;
      config.style = ROPE_STYLE_INTERLEAVED;
      const RopeDesc in_style = create(config);
      config.out_style = ROPE_STYLE_HALF;
      const RopeDesc into_halves = create(config);
      REQUIRE(run(device, in_style.get(), Direction::Forward, plain, workspace) == ROPE_STATUS_SUCCESS);
      REQUIRE(run(device, into_halves.get(), Direction::Forward, converted, workspace) == ROPE_STATUS_SUCCESS);
      CHECK(different_elements(plain.q_out, converted.q_out,
                               [](int64_t channel) { return channel / 2 + channel % 2 * 16; }) == 0);
    }
  }
}
