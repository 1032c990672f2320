// SPDX-License-Identifier: Apache-2.0
// rope_f64_tests.cpp - 64-bit data: fp64 arithmetic, very large positions, and the gradient by differences
#include <catch2/catch_test_macros.hpp>
#include <cmath>
#include <limits>
#include <vector>

#include "support/cases.hpp"
#include "support/tolerance.hpp"

using oracle::Real;

namespace {

const std::vector<rope_dtype_t> table_dtypes = {ROPE_DTYPE_F32, ROPE_DTYPE_F16, ROPE_DTYPE_BF16, ROPE_DTYPE_F64};
const std::vector<rope_style_t> styles = {ROPE_STYLE_HALF, ROPE_STYLE_INTERLEAVED};
const std::vector<rope_layout_t> layouts = {ROPE_LAYOUT_BSHD, ROPE_LAYOUT_SBHD, ROPE_LAYOUT_BHSD, ROPE_LAYOUT_THD};

RopeCase geometry(rope_style_t style) {
  return RopeCase().dtype(ROPE_DTYPE_F64).style(style).heads(3, 1).head_dim(48).adjoint();
}

}  // namespace

TEST_CASE("F64 in every layout and style", "[rope][f64]") {
  for (rope_layout_t layout : layouts) {
    for (rope_style_t style : styles) {
      geometry(style).layout(layout).check();
      geometry(style).layout(layout).out_of_place().check();
      geometry(style).layout(layout).rotary_dim(18).rotary_offset(7).out_of_place().check();
      geometry(style).layout(layout).packed().check();
    }
  }
}

TEST_CASE("F64 heads of every width", "[rope][f64]") {
  for (int32_t head_dim : {2, 4, 6, 8, 10, 14, 16, 18, 30, 34, 64, 126, 250, 1024}) {
    for (rope_style_t style : styles) geometry(style).head_dim(head_dim).tokens(9).check();
  }
}

TEST_CASE("F64 tensors of any strides", "[rope][f64]") {
  for (rope_style_t style : styles) {
    for (const Placement &placement :
         {Placement().at(1), Placement().gap(3, 1), Placement().reversed(3), Placement().order({3, 0, 2, 1}),
          Placement().gap(2, 7), Placement().implicit(), Placement().reversed(1).order({2, 1, 0, 3})}) {
      geometry(style).placed(placement).check();
      geometry(style).q_placed(placement).k_placed({}, placement).out_of_place().check();
    }
    geometry(style).q_placed(Placement().expanded(2)).out_of_place().check();
  }
}

TEST_CASE("F64 at positions far out", "[rope][f64]") {
  for (rope_style_t style : styles) {
    for (int bits : {20, 31, 40, 50, 62}) {
      const auto far = [=](int64_t, int64_t token) {
        return (token % 2 ? 1 : -1) * ((int64_t{1} << bits) - token * 77);
      };
      geometry(style).positions(PositionShape::PerToken, ROPE_DTYPE_I64, far).check();
      geometry(style).positions(PositionShape::PerToken, ROPE_DTYPE_I64, far).theta(1e8).attention_scale(1.3).check();
    }
  }
}

TEST_CASE("F64 is the scale of 64 bits too", "[rope][f64]") {
  for (double scale : {1.0 / 3, 1.1386294361119891, -2.7, 1e-30, 1e30}) {
    geometry(ROPE_STYLE_HALF).attention_scale(scale).check();
    geometry(ROPE_STYLE_INTERLEAVED).attention_scale(scale).angles(100).tables_by_token().check();
  }
}

TEST_CASE("F64 with tables of every type", "[rope][f64][tables]") {
  for (rope_dtype_t table_dtype : table_dtypes) {
    for (rope_style_t style : styles) {
      for (TableWidth width : {TableWidth::Pairs, TableWidth::Channels}) {
        RopeCase request = geometry(style).table_dtype(table_dtype).table_width(width).fault();
        RopeCase(request).tables(9, TableStorage::SideBySide).check();
        RopeCase(request).tables(3, TableStorage::Alternating).out_of_place().check();
        RopeCase(request).tables_by_token(true).check();
      }
    }
  }
}

TEST_CASE("tables of F64 for data of other types", "[rope][f64][tables]") {
  for (rope_dtype_t dtype : {ROPE_DTYPE_F32, ROPE_DTYPE_F16, ROPE_DTYPE_BF16}) {
    for (rope_style_t style : styles) {
      RopeCase request = geometry(style).dtype(dtype).table_dtype(ROPE_DTYPE_F64);
      RopeCase(request).tables(9).check();
      RopeCase(request).tables(9, TableStorage::Alternating).table_width(TableWidth::Channels).check();
    }
  }
}

TEST_CASE("large F64 calls", "[rope][f64]") {
  for (rope_style_t style : styles) {
    geometry(style).batch(2).tokens(61).heads(16, 4).head_dim(128).check();
    geometry(style).layout(ROPE_LAYOUT_THD).tokens(131).heads(7, 2).head_dim(64).out_of_place().check();
  }
}

TEST_CASE("F64 values of every size", "[rope][f64]") {
  // The unit is a pair of one magnitude. Results that are subnormal or round to 0 have the error of the smallest
  // number.
  for (const Device &device : devices()) {
    for (double size : {1e-320, 1e-308, 1e-150, 1e150, 1e307}) {
      INFO(device << ", size " << size);
      Workspace workspace(95);
      rope_args_t args = rope_args();
      args.q = workspace.tensor(ROPE_DTYPE_F64, {1, 7, 2, 16});
      workspace.fill(args.q, [&](const Index &) { return workspace.random().uniform(-1, 1) * size; });
      workspace.freeze();
      workspace.restore();
      const rope_tensor_t before = workspace.before(args.q);
      rope_config_t config = rope_config_for(device, 16);
      config.dtype = ROPE_DTYPE_F64;
      const RopeDesc desc = create(config);
      REQUIRE(run(device, desc.get(), Direction::Forward, args, workspace) == ROPE_STATUS_SUCCESS);
      int64_t wrong = 0;
      for_each_index(args.q, [&](const Index &at) {
        const int64_t pair = at[3] % 8;
        const oracle::Pair in = {value_at(before, {0, at[1], at[2], pair}),
                                 value_at(before, {0, at[1], at[2], pair + 8})};
        const oracle::Pair exact =
            oracle::rotate(in, oracle::rotation(at[1], oracle::frequency(10000, 16, static_cast<int>(pair))));
        const Real slack = tolerance::rope_slack(ROPE_DTYPE_F64, std::hypot(in.x, in.y), 4e-16L);
        wrong += !tolerance::accepts(ROPE_DTYPE_F64, value_at(args.q, at), at[3] < 8 ? exact.x : exact.y, slack);
      });
      CHECK(wrong == 0);
    }
  }
}

TEST_CASE("backward is the gradient of forward", "[rope][f64][properties]") {
  struct Form {
    const char *what;
    rope_style_t out_style;
    int32_t pair_block;
    double scale;
    int64_t columns;  // of tables; 0: computed angles
    bool are_angles;
  };
  constexpr int64_t tokens = 3, heads = 2, channels = 16, elements = tokens * heads * channels;
  for (const Device &device : devices()) {
    for (rope_style_t style : styles) {
      for (const Form &form :
           {Form{"computed", 0, 0, 1.5, 0, false}, Form{"converted", ROPE_STYLE_HALF, 8, 1, 0, false},
            Form{"tables of pairs", 0, 0, 1, 8, false}, Form{"tables of channels", ROPE_STYLE_HALF, 0, 1, 16, false},
            Form{"angles of channels", ROPE_STYLE_HALF, 4, 0.8, 16, true}}) {
        INFO(form.what << ", style " << style << ", on " << device);
        Workspace workspace(96);
        rope_args_t args = rope_args();
        args.q = workspace.tensor(ROPE_DTYPE_F64, {tokens, heads, channels});
        args.q_out = workspace.tensor(ROPE_DTYPE_F64, {tokens, heads, channels});
        args.position_offset = form.columns == 0 ? 4096 : 0;
        if (form.columns != 0) {
          const rope_tensor_t first = workspace.tensor(ROPE_DTYPE_F32, {tokens, form.columns});
          const rope_tensor_t second = workspace.tensor(ROPE_DTYPE_F32, {tokens, form.columns});
          workspace.fill_normal(first);
          workspace.fill_normal(second);
          if (form.are_angles) {
            args.angles = first;
          } else {
            args.cos = first;
            args.sin = second;
          }
        }
        workspace.freeze();
        rope_config_t config = rope_config_for(device, channels);
        config.dtype = ROPE_DTYPE_F64;
        config.layout = ROPE_LAYOUT_THD;
        config.style = style;
        config.out_style = form.out_style;
        config.pair_block = style == ROPE_STYLE_HALF || form.out_style == ROPE_STYLE_HALF ? form.pair_block : 0;
        config.attention_scale = form.scale;
        const RopeDesc desc = create(config);
        const auto apply = [&](Direction direction, const std::vector<double> &in) {
          workspace.restore();
          size_t next = 0;
          workspace.fill(args.q, [&](const Index &) { return in[next++]; });
          REQUIRE(run(device, desc.get(), direction, args, workspace) == ROPE_STATUS_SUCCESS);
          std::vector<double> out;
          for_each_index(args.q_out,
                         [&](const Index &at) { out.push_back(static_cast<double>(value_at(args.q_out, at))); });
          return out;
        };
        Random random(97);
        std::vector<double> x(elements), grad_out(elements);
        for (double &value : x) value = random.uniform(-1, 1);
        for (double &value : grad_out) value = random.uniform(-1, 1);
        const std::vector<double> gradient = apply(Direction::Backward, grad_out);
        // loss = <forward(x), grad_out>
        const auto loss = [&](const std::vector<double> &at) {
          const std::vector<double> out = apply(Direction::Forward, at);
          Real sum = 0;
          for (size_t i = 0; i < out.size(); ++i) sum += static_cast<Real>(out[i]) * grad_out[i];
          return sum;
        };
        Real max_error = 0;
        for (size_t i = 0; i < x.size(); ++i) {
          constexpr double step = 0x1p-10;
          std::vector<double> above = x, below = x;
          above[i] += step;
          below[i] -= step;
          const Real difference = (loss(above) - loss(below)) / (above[i] - below[i]);
          max_error = std::fmax(max_error, std::fabs(difference - gradient[i]));
        }
        CHECK(max_error <= 1e-9L);
      }
    }
  }
}
