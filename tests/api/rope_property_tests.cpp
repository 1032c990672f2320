// SPDX-License-Identifier: Apache-2.0
// rope_property_tests.cpp - relations between calls that hold for any data
#include <catch2/catch_test_macros.hpp>
#include <cmath>
#include <cstring>
#include <functional>
#include <vector>

#include "support/cases.hpp"

using oracle::Real;

namespace {

const std::vector<rope_dtype_t> dtypes = {ROPE_DTYPE_F32, ROPE_DTYPE_F16, ROPE_DTYPE_BF16};
const std::vector<rope_style_t> styles = {ROPE_STYLE_HALF, ROPE_STYLE_INTERLEAVED};

constexpr int64_t batch = 2, tokens = 9, heads = 5, channels = 48;

void for_each_device_dtype_style(const std::function<void(const Device &, rope_config_t)> &visit) {
  for (const Device &device : devices()) {
    for (rope_dtype_t dtype : dtypes) {
      for (rope_style_t style : styles) {
        INFO(oracle::dtype_name(dtype) << ", style " << style << ", on " << device);
        rope_config_t config = rope_config_for(device, channels);
        config.dtype = dtype;
        config.style = style;
        visit(device, config);
      }
    }
  }
}

void rotate(const Device &device, const rope_config_t &config, Direction direction, const rope_args_t &args,
            Workspace &workspace) {
  const RopeDesc desc = create(config);
  const rope_status_t status = run(device, desc.get(), direction, args, workspace);
  INFO(rope_last_error());
  REQUIRE(status == ROPE_STATUS_SUCCESS);
}

// Counts differing elements [B, S, H, D] of two views with any order of axes; `b_axes` gives the axis of b for each
// axis of a.
int64_t different_elements(const rope_tensor_t &a, const rope_tensor_t &b,
                           const std::vector<int> &b_axes = {0, 1, 2, 3}) {
  int64_t different = 0;
  for_each_index(a, [&](const Index &index) {
    Index other = {};
    for (int axis = 0; axis < a.ndim; ++axis) other[b_axes[axis]] = index[axis];
    different += !same_bits_at(a, index, b, other);
  });
  return different;
}

void copy_elements(const rope_tensor_t &from, const rope_tensor_t &to) {
  for_each_index(from, [&](const Index &index) {
    std::memcpy(element_at(to, index), element_at(from, index), oracle::element_size(from.dtype));
  });
}

// The largest difference of two tensors, relative to the length of the rotated pair, or to 1 if that is shorter.
Real max_difference(const rope_tensor_t &actual, const rope_tensor_t &expected, Real factor) {
  Real max = 0;
  for_each_index(actual, [&](const Index &index) {
    const Real difference = std::fabs(value_at(actual, index) - factor * value_at(expected, index));
    max = std::isnan(difference) ? INFINITY : std::fmax(max, difference);
  });
  return max;
}

}  // namespace

TEST_CASE("backward after forward multiplies by the square of attention_scale", "[rope][properties]") {
  for_each_device_dtype_style([](const Device &device, rope_config_t config) {
    for (double scale : {0.0, 1.5}) {
      Workspace workspace(11);
      rope_args_t args = rope_args();
      args.q = workspace.tensor(config.dtype, {batch, tokens, heads, channels});
      workspace.fill(args.q, [&](const Index &) { return workspace.random().uniform(-1, 1); });
      workspace.freeze();
      workspace.restore();
      args.position_offset = 100000;
      config.attention_scale = scale;
      rotate(device, config, Direction::Forward, args, workspace);
      const Real moved = max_difference(args.q, workspace.before(args.q), 1);
      rotate(device, config, Direction::Backward, args, workspace);
      const Real factor = scale == 0 ? 1 : scale * scale;
      const Real left = max_difference(args.q, workspace.before(args.q), factor);
      // Members are below 1, so pairs are below sqrt(2) and results below 4; there are two roundings of the type and
      // two rotations.
      const Real allowed = 2 * oracle::ulp(config.dtype, 2) * factor + 1e-6L * factor;
      CHECK(moved > 0.5L);
      CHECK(left <= allowed);
    }
  });
}

TEST_CASE("turning by m and then by n is turning by m + n", "[rope][properties]") {
  for_each_device_dtype_style([](const Device &device, const rope_config_t &config) {
    for (int64_t second : {int64_t{17}, int64_t{-40000}, int64_t{1} << 40}) {
      Workspace workspace(12);
      rope_args_t twice = rope_args();
      twice.q = workspace.tensor(config.dtype, {batch, tokens, heads, channels});
      workspace.fill(twice.q, [&](const Index &) { return workspace.random().uniform(-1, 1); });
      rope_args_t once = twice;
      once.q = workspace.tensor(config.dtype, {batch, tokens, heads, channels});
      copy_elements(twice.q, once.q);
      workspace.freeze();
      workspace.restore();
      twice.position_offset = 1000;
      rotate(device, config, Direction::Forward, twice, workspace);
      // Every token was rotated by its index and by 1000; now all tokens are rotated by `second`.
      twice.positions = workspace.tensor(ROPE_DTYPE_I64, {tokens}, Placement().expanded(0));
      workspace.fill_integers(twice.positions, [&](const Index &) { return second; });
      twice.position_offset = 0;
      rotate(device, config, Direction::Forward, twice, workspace);
      once.position_offset = 1000 + second;
      rotate(device, config, Direction::Forward, once, workspace);
      // The phase is exact in 64 bits, so this holds at any distance.
      const Real allowed = 2 * oracle::ulp(config.dtype, 1) + 1.2e-6L;
      CHECK(max_difference(twice.q, once.q, 1) <= allowed);
    }
  });
}

TEST_CASE("in place and out of place give the same bits", "[rope][properties]") {
  for_each_device_dtype_style([](const Device &device, rope_config_t config) {
    for (int32_t offset : {0, 7, 16}) {
      config.rotary_dim = 32;
      config.rotary_offset = offset;
      for (Direction direction : {Direction::Forward, Direction::Backward}) {
        Workspace workspace(13);
        rope_args_t in_place = rope_args(), out_of_place = rope_args();
        in_place.q = workspace.tensor(config.dtype, {batch, tokens, heads, channels});
        out_of_place.q = workspace.tensor(config.dtype, {batch, tokens, heads, channels});
        out_of_place.q_out = workspace.tensor(config.dtype, {batch, tokens, heads, channels});
        workspace.fill_mixed(in_place.q);
        copy_elements(in_place.q, out_of_place.q);
        workspace.freeze();
        workspace.restore();
        rope_args_t exactly_its_input = in_place;
        exactly_its_input.q_out = exactly_its_input.q;
        rotate(device, config, direction, in_place, workspace);
        rotate(device, config, direction, out_of_place, workspace);
        CHECK(different_elements(in_place.q, out_of_place.q_out) == 0);
        copy_elements(workspace.before(in_place.q), in_place.q);
        rotate(device, config, direction, exactly_its_input, workspace);
        CHECK(different_elements(in_place.q, out_of_place.q_out) == 0);
      }
    }
  });
}

TEST_CASE("packed and separate tensors give the same bits", "[rope][properties]") {
  for_each_device_dtype_style([](const Device &device, const rope_config_t &config) {
    Workspace workspace(14);
    const rope_tensor_t packed = workspace.tensor(config.dtype, {batch, tokens, heads + 3, channels});
    workspace.fill_mixed(packed);
    rope_args_t together = rope_args(), apart = rope_args();
    together.q = narrow(packed, 2, 0, heads);
    together.k = narrow(packed, 2, heads, 3);
    apart.q = workspace.tensor(config.dtype, {batch, tokens, heads, channels});
    rope_args_t apart_too = apart;
    apart_too.q = workspace.tensor(config.dtype, {batch, tokens, 3, channels});
    copy_elements(together.q, apart.q);
    copy_elements(together.k, apart_too.q);
    workspace.freeze();
    workspace.restore();
    rotate(device, config, Direction::Forward, together, workspace);
    rotate(device, config, Direction::Forward, apart, workspace);
    rotate(device, config, Direction::Forward, apart_too, workspace);
    CHECK(different_elements(together.q, apart.q) == 0);
    CHECK(different_elements(together.k, apart_too.q) == 0);
  });
}

TEST_CASE("views that interleave but share nothing are rotated in place", "[rope][properties]") {
  for_each_device_dtype_style([](const Device &device, rope_config_t config) {
    config.layout = ROPE_LAYOUT_THD;
    config.head_dim = 16;
    Workspace workspace(22);
    // q, k and v of each head side by side; then in alternate heads; then in alternate channels.
    const rope_tensor_t of_head = workspace.tensor(config.dtype, {tokens, heads, 3 * 16});
    const rope_tensor_t of_heads = workspace.tensor(config.dtype, {tokens, 2 * heads, 16});
    const rope_tensor_t of_channels = workspace.tensor(config.dtype, {tokens, heads, 2 * 16});
    rope_args_t side_by_side = rope_args(), alternate_heads = rope_args(), alternate_channels = rope_args();
    side_by_side.q = narrow(of_head, 2, 0, 16);
    side_by_side.k = narrow(of_head, 2, 16, 16);
    side_by_side.v = narrow(of_head, 2, 32, 16);
    const auto alternate = [&](const rope_tensor_t &tensor, int axis, int64_t start) {
      rope_tensor_t view = narrow(tensor, axis, start, tensor.shape[axis] - 1);
      view.shape[axis] = tensor.shape[axis] / 2;
      view.stride[axis] *= 2;
      return view;
    };
    alternate_heads.q = alternate(of_heads, 1, 0);
    alternate_heads.k = alternate(of_heads, 1, 1);
    alternate_channels.q = alternate(of_channels, 2, 0);
    alternate_channels.k = alternate(of_channels, 2, 1);
    for (rope_args_t *args : {&side_by_side, &alternate_heads, &alternate_channels}) {
      Workspace plain(23);
      rope_args_t apart[3];
      const rope_tensor_t together[] = {args->q, args->k, args->v};
      for (int i = 0; i < 3; ++i) {
        if (!together[i].ndim) continue;
        apart[i] = rope_args();
        apart[i].q = plain.tensor(config.dtype, {tokens, heads, 16});
        plain.fill_mixed(apart[i].q);
        copy_elements(apart[i].q, together[i]);
        rotate(device, config, Direction::Forward, apart[i], plain);
      }
      rotate(device, config, Direction::Forward, *args, workspace);
      for (int i = 0; i < 3; ++i) {
        if (together[i].ndim) CHECK(different_elements(together[i], apart[i].q) == 0);
      }
    }
  });
}

TEST_CASE("q and k may be the same input", "[rope][properties]") {
  for_each_device_dtype_style([](const Device &device, const rope_config_t &config) {
    Workspace workspace(24);
    rope_args_t args = rope_args();
    args.q = args.k = workspace.tensor(config.dtype, {batch, tokens, heads, channels});
    args.q_out = workspace.tensor(config.dtype, {batch, tokens, heads, channels});
    args.k_out = workspace.tensor(config.dtype, {batch, tokens, heads, channels});
    workspace.fill_mixed(args.q);
    workspace.freeze();
    workspace.restore();
    rotate(device, config, Direction::Forward, args, workspace);
    CHECK(different_elements(args.q_out, args.k_out) == 0);
    CHECK(different_elements(args.q, workspace.before(args.q)) == 0);
    CHECK(different_elements(args.q_out, workspace.before(args.q)) > 0);
  });
}

TEST_CASE("the same elements give the same bits however they lie", "[rope][properties]") {
  const std::vector<Placement> placements = {
      Placement().at(1),
      Placement().at(2),
      Placement().gap(3, 1),
      Placement().gap(2, 5),
      Placement().gap(2, 16),
      Placement().order({3, 2, 1, 0}),
      Placement().order({1, 0, 3, 2}),
      Placement().reversed(0).reversed(2),
      Placement().reversed(3),
  };
  for_each_device_dtype_style([&](const Device &device, const rope_config_t &config) {
    Workspace workspace(15);
    rope_args_t plain = rope_args();
    plain.q = workspace.tensor(config.dtype, {batch, tokens, heads, channels});
    workspace.fill_mixed(plain.q);
    workspace.freeze();
    workspace.restore();
    rotate(device, config, Direction::Forward, plain, workspace);
    for (const Placement &placement : placements) {
      INFO(placement.describe());
      Workspace other(16);
      rope_args_t args = rope_args();
      args.q = other.tensor(config.dtype, {batch, tokens, heads, channels}, placement);
      copy_elements(workspace.before(plain.q), args.q);
      rotate(device, config, Direction::Forward, args, other);
      CHECK(different_elements(plain.q, args.q) == 0);
    }
  });
}

TEST_CASE("layouts give the same bits", "[rope][properties]") {
  struct Transposed {
    rope_layout_t layout;
    Shape shape;
    std::vector<int> axes;  // in the order batch, token, head, channel
  };
  const std::vector<Transposed> layouts = {
      {ROPE_LAYOUT_SBHD, {tokens, batch, heads, channels}, {1, 0, 2, 3}},
      {ROPE_LAYOUT_BHSD, {batch, heads, tokens, channels}, {0, 2, 1, 3}},
  };
  for_each_device_dtype_style([&](const Device &device, rope_config_t config) {
    Workspace workspace(17);
    rope_args_t plain = rope_args();
    plain.q = workspace.tensor(config.dtype, {batch, tokens, heads, channels});
    workspace.fill_mixed(plain.q);
    workspace.freeze();
    workspace.restore();
    rotate(device, config, Direction::Forward, plain, workspace);
    for (const Transposed &transposed : layouts) {
      config.layout = transposed.layout;
      Workspace other(18);
      rope_args_t args = rope_args();
      args.q = other.tensor(config.dtype, transposed.shape);
      for_each_index(plain.q, [&](const Index &index) {
        Index there = {};
        for (int axis = 0; axis < 4; ++axis) there[transposed.axes[axis]] = index[axis];
        std::memcpy(element_at(args.q, there), element_at(workspace.before(plain.q), index),
                    oracle::element_size(config.dtype));
      });
      rotate(device, config, Direction::Forward, args, other);
      CHECK(different_elements(plain.q, args.q, transposed.axes) == 0);
    }
  });
}

TEST_CASE("position 0 with scale 1 is the identity", "[rope][properties]") {
  for_each_device_dtype_style([](const Device &device, const rope_config_t &config) {
    for (Direction direction : {Direction::Forward, Direction::Backward}) {
      Workspace workspace(19);
      rope_args_t args = rope_args();
      args.q = workspace.tensor(config.dtype, {batch, 1, heads, channels});
      // No zeros, because -0 + 0 is 0.
      workspace.fill(args.q, [&](const Index &) { return workspace.random().normal() + 1e-3; });
      workspace.freeze();
      workspace.restore();
      rotate(device, config, direction, args, workspace);
      CHECK(different_elements(args.q, workspace.before(args.q)) == 0);
    }
  });
}

TEST_CASE("the negative of a position turns back", "[rope][properties]") {
  for_each_device_dtype_style([](const Device &device, const rope_config_t &config) {
    Workspace workspace(20);
    rope_args_t forward = rope_args(), backward = rope_args();
    forward.q = workspace.tensor(config.dtype, {batch, tokens, heads, channels});
    backward.q = workspace.tensor(config.dtype, {batch, tokens, heads, channels});
    forward.positions = workspace.tensor(ROPE_DTYPE_I64, {tokens});
    backward.positions = workspace.tensor(ROPE_DTYPE_I64, {tokens});
    workspace.fill(forward.q, [&](const Index &) { return workspace.random().uniform(-1, 1); });
    copy_elements(forward.q, backward.q);
    workspace.fill_integers(forward.positions, [](const Index &index) { return 12345 * index[0] + 3; });
    workspace.fill_integers(backward.positions, [](const Index &index) { return -12345 * index[0] - 3; });
    workspace.freeze();
    workspace.restore();
    rotate(device, config, Direction::Forward, forward, workspace);
    rotate(device, config, Direction::Backward, backward, workspace);
    CHECK(max_difference(forward.q, backward.q, 1) <= oracle::ulp(config.dtype, 1) + 1e-6L);
  });
}

TEST_CASE("twice the input gives twice the output, bit for bit", "[rope][properties]") {
  for_each_device_dtype_style([](const Device &device, const rope_config_t &config) {
    Workspace workspace(21);
    rope_args_t args = rope_args(), doubled = rope_args();
    args.q = workspace.tensor(config.dtype, {batch, tokens, heads, channels});
    doubled.q = workspace.tensor(config.dtype, {batch, tokens, heads, channels});
    workspace.fill(args.q, [&](const Index &) {
      const double value = workspace.random().uniform(1, 2);
      return workspace.random().bits() & 1 ? value : -value;
    });
    workspace.fill(doubled.q, [&](const Index &index) { return 2 * value_at(args.q, index); });
    workspace.freeze();
    workspace.restore();
    rotate(device, config, Direction::Forward, args, workspace);
    rotate(device, config, Direction::Forward, doubled, workspace);
    int64_t different = 0;
    for_each_index(args.q, [&](const Index &index) {
      const Real value = value_at(args.q, index);
      // Results near zero may be subnormal, where rounding may cost half of the value.
      different += std::fabs(value) >= oracle::min_normal(config.dtype) && value_at(doubled.q, index) != 2 * value;
    });
    CHECK(different == 0);
  });
}
