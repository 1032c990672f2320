// SPDX-License-Identifier: Apache-2.0
// rope_problem_tests.cpp - validates calls of RoPE: their canonical axes, positions and tables, or the refusal
#include <catch2/catch_test_macros.hpp>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "core/problem/rope_problem.hpp"
#include "core/problem/step_problem.hpp"
#include "core/problem/table_problem.hpp"
#include "support/random.hpp"
#include "unit/fake_tensors.hpp"

namespace {

constexpr int64_t kBatches = 3, kTokens = 5, kChannels = 16;

struct NamedLayout {
  rope_layout_t layout;
  std::string axes;  // in the notation of the header; S for the tokens of THD
};

const NamedLayout kLayouts[] = {
    {ROPE_LAYOUT_BSHD, "BSHD"}, {ROPE_LAYOUT_SBHD, "SBHD"}, {ROPE_LAYOUT_BHSD, "BHSD"}, {ROPE_LAYOUT_THD, "SHD"}};

uintptr_t region(int number) {
  return static_cast<uintptr_t>(number + 1) << 40;
}

rope_config_t some_config(rope_layout_t layout) {
  rope_config_t config = {};
  config.struct_size = sizeof config;
  config.device = ROPE_DEVICE_CPU;
  config.dtype = ROPE_DTYPE_BF16;
  config.layout = layout;
  config.style = ROPE_STYLE_HALF;
  config.head_dim = kChannels;
  config.rotary_dim = 8;
  config.rotary_offset = 6;
  config.theta = 1e4;
  return config;
}

rope::RopeGeometry geometry_of(const rope_config_t &config) {
  rope::RopeGeometry geometry = {};
  const rope_status_t status = rope::make_rope_geometry("rope_desc_create", config, &geometry);
  INFO(rope::last_error());
  REQUIRE(status == ROPE_STATUS_SUCCESS);
  return geometry;
}

std::vector<int64_t> shape_of(const NamedLayout &layout, int64_t heads, int64_t batches = kBatches,
                              int64_t tokens = kTokens) {
  std::vector<int64_t> shape;
  for (const char axis : layout.axes) {
    shape.push_back(axis == 'B' ? batches : axis == 'S' ? tokens : axis == 'H' ? heads : kChannels);
  }
  return shape;
}

// A tensor with axes in any order in memory, with gaps and strides of either sign.
rope_tensor_t scattered_tensor(Random *random, uintptr_t address, rope_dtype_t dtype,
                               const std::vector<int64_t> &shape) {
  std::vector<size_t> order(shape.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  for (size_t i = order.size(); i > 1; --i)
    std::swap(order[i - 1], order[static_cast<size_t>(random->below(static_cast<int64_t>(i)))]);
  std::vector<int64_t> stride(shape.size());
  int64_t next = 1 + random->below(3);
  for (const size_t axis : order) {
    stride[axis] = random->below(3) == 0 ? -next : next;
    next = next * (shape[axis] > 0 ? shape[axis] : 1) + random->below(5);
  }
  return fake_tensor(address, dtype, shape, stride);
}

rope::RopeProblem problem_of(const rope::RopeGeometry &geometry, const rope_args_t &args, bool is_transposed = false) {
  rope::RopeProblem problem;
  rope::StepProblem step;
  const rope_status_t status = rope::make_rope_problem("rope_forward", geometry, args, is_transposed, &problem, &step);
  INFO(rope::last_error());
  REQUIRE(status == ROPE_STATUS_SUCCESS);
  return problem;
}

rope_args_t some_args() {
  rope_args_t args = {};
  args.struct_size = sizeof args;
  return args;
}

// q with two heads, in place.
rope_args_t some_args(const NamedLayout &layout) {
  rope_args_t args = some_args();
  args.q = compact_tensor(region(0), ROPE_DTYPE_BF16, shape_of(layout, 2));
  return args;
}

// Pairs use axes 0, 1, ... in turn.
struct AxisConfig {
  AxisConfig(rope_layout_t layout, int32_t num_axes) : config(some_config(layout)) {
    for (int32_t pair = 0; pair < 4; ++pair) pair_axis.push_back(pair % num_axes);
    config.num_axes = num_axes;
    config.pair_axis = pair_axis.data();
  }
  std::vector<int32_t> pair_axis;
  rope_config_t config;
};

bool same_strides(const rope::TokenIntegers &integers, int64_t axis, int64_t batch, int64_t token) {
  return integers.is_present && integers.axis_stride == axis && integers.batch_stride == batch &&
         integers.token_stride == token;
}

bool same_columns(const rope::TableColumns &columns, const rope_tensor_t &tensor, int64_t axis, int64_t batch,
                  int64_t row, int64_t column) {
  return columns.data == tensor.data && columns.axis_stride == axis && columns.batch_stride == batch &&
         columns.row_stride == row && columns.column_stride == column;
}

// The error text of a refused call, preceded by its status.
std::string refusal(rope_status_t status) {
  const char *words = status == ROPE_STATUS_INVALID_ARGUMENT ? "invalid; "
                      : status == ROPE_STATUS_NOT_SUPPORTED  ? "unsupported; "
                                                             : "served";
  return words + std::string(status == ROPE_STATUS_SUCCESS ? "" : rope::last_error());
}

std::string refusal_of(const rope_config_t &config) {
  rope::RopeGeometry geometry = {};
  return refusal(rope::make_rope_geometry("rope_desc_create", config, &geometry));
}

std::string refusal_of(const rope::RopeGeometry &geometry, const rope_args_t &args) {
  rope::RopeProblem problem;
  rope::StepProblem step;
  return refusal(rope::make_rope_problem("rope_forward", geometry, args, false, &problem, &step));
}

rope::TableProblem table_problem_of(const rope::RopeGeometry &geometry, const rope_tensor_t &cos,
                                    const rope_tensor_t &sin) {
  rope::TableProblem problem;
  const rope_status_t status = rope::make_table_problem("rope_fill_tables", geometry, &cos, &sin, &problem);
  INFO(rope::last_error());
  REQUIRE(status == ROPE_STATUS_SUCCESS);
  return problem;
}

std::string refusal_of(const rope::RopeGeometry &geometry, const rope_tensor_t *cos, const rope_tensor_t *sin) {
  rope::TableProblem problem;
  return refusal(rope::make_table_problem("rope_fill_tables", geometry, cos, sin, &problem));
}

// Counts elements of `tensor` at other byte offsets than those of the canonical strides.
int wrong_elements(const NamedLayout &layout, const rope_tensor_t &tensor, const int64_t *canonical) {
  int wrong = 0;
  const std::vector<int64_t> shape(tensor.shape, tensor.shape + tensor.ndim);
  for_each_index(shape, [&](const int64_t *index) {
    int64_t expected = 0, found = 0;
    for (size_t axis = 0; axis < shape.size(); ++axis) {
      expected += index[axis] * tensor.stride[axis];
      const char name = layout.axes[axis];
      const rope::Axis role = name == 'B'   ? rope::kBatch
                              : name == 'S' ? rope::kToken
                              : name == 'H' ? rope::kHead
                                            : rope::kChannel;
      found += index[axis] * canonical[role];
    }
    wrong += found != expected;
  });
  return wrong;
}

}  // namespace

TEST_CASE("tensors of every layout have canonical strides", "[rope problem]") {
  Random random(1);
  for (const NamedLayout &layout : kLayouts) {
    const rope::RopeGeometry geometry = geometry_of(some_config(layout.layout));
    for (int round = 0; round < 100; ++round) {
      rope_args_t args = some_args();
      args.q = scattered_tensor(&random, region(0), ROPE_DTYPE_BF16, shape_of(layout, 7));
      args.q_out = scattered_tensor(&random, region(1), ROPE_DTYPE_BF16, shape_of(layout, 7));
      args.k = scattered_tensor(&random, region(2), ROPE_DTYPE_BF16, shape_of(layout, 2));
      args.v = scattered_tensor(&random, region(3), ROPE_DTYPE_BF16, shape_of(layout, 1));
      args.v_out = scattered_tensor(&random, region(4), ROPE_DTYPE_BF16, shape_of(layout, 1));
      const rope::RopeProblem problem = problem_of(geometry, args);
      const bool has_batches = layout.layout != ROPE_LAYOUT_THD;
      REQUIRE(problem.batches == (has_batches ? kBatches : 1));
      REQUIRE(problem.tokens == kTokens);
      REQUIRE(problem.num_tensors == 3);
      REQUIRE(problem.heads_per_token() == 10);
      REQUIRE_FALSE(problem.is_empty());
      const rope_tensor_t *inputs[] = {&args.q, &args.k, &args.v}, *outputs[] = {&args.q_out, &args.k, &args.v_out};
      const int64_t heads[] = {7, 2, 1};
      for (int i = 0; i < 3; ++i) {
        const rope::RotatedTensor &tensor = problem.tensor[i];
        REQUIRE(tensor.in == inputs[i]->data);
        REQUIRE(tensor.out == outputs[i]->data);
        REQUIRE(tensor.heads == heads[i]);
        REQUIRE(tensor.is_in_place == (i == 1));
        REQUIRE(wrong_elements(layout, *inputs[i], tensor.in_stride) == 0);
        REQUIRE(wrong_elements(layout, *outputs[i], tensor.out_stride) == 0);
        if (!has_batches) REQUIRE(tensor.in_stride[rope::kBatch] == 0);
      }
    }
  }
}

TEST_CASE("tensors that are absent leave no gap", "[rope problem]") {
  const rope::RopeGeometry geometry = geometry_of(some_config(ROPE_LAYOUT_BSHD));
  rope_args_t args = some_args();
  args.q = compact_tensor(region(0), ROPE_DTYPE_BF16, shape_of(kLayouts[0], 4));
  CHECK(problem_of(geometry, args).num_tensors == 1);
  args.v = compact_tensor(region(1), ROPE_DTYPE_BF16, shape_of(kLayouts[0], 2));
  const rope::RopeProblem problem = problem_of(geometry, args);
  CHECK(problem.num_tensors == 2);
  CHECK(problem.tensor[1].in == args.v.data);
  CHECK(problem.heads_per_token() == 6);
}

TEST_CASE("an output that is its input is in place", "[rope problem]") {
  const rope::RopeGeometry geometry = geometry_of(some_config(ROPE_LAYOUT_BSHD));
  rope_args_t args = some_args();
  args.q = args.q_out = compact_tensor(region(0), ROPE_DTYPE_BF16, shape_of(kLayouts[0], 4));
  CHECK(problem_of(geometry, args).tensor[0].is_in_place);
  args.q_out.flags = 0;
  for (int64_t &stride : args.q_out.stride) stride = 0;
  CHECK(problem_of(geometry, args).tensor[0].is_in_place);
  args.q_out.data = at_address(region(1));
  CHECK_FALSE(problem_of(geometry, args).tensor[0].is_in_place);
}

TEST_CASE("only what is touched in place counts as overlap", "[rope problem]") {
  // Windows of 8 channels from channel 6 on: heads that are 8 channels apart interleave, but their windows do not
  // overlap.
  const rope::RopeGeometry geometry = geometry_of(some_config(ROPE_LAYOUT_THD));
  rope_args_t args = some_args();
  args.q = fake_tensor(region(0), ROPE_DTYPE_BF16, {kTokens, 1, kChannels}, {64, 64, 1});
  args.k = fake_tensor(region(0) + 8 * 2, ROPE_DTYPE_BF16, {kTokens, 1, kChannels}, {64, 64, 1});
  CHECK(problem_of(geometry, args).num_tensors == 2);
  args.k.data = at_address(region(0) + 7 * 2);
  rope::RopeProblem problem;
  rope::StepProblem step;
  CHECK(rope::make_rope_problem("rope_forward", geometry, args, false, &problem, &step) ==
        ROPE_STATUS_INVALID_ARGUMENT);
  args.k.data = at_address(region(0) + 8 * 2);
  args.k_out = fake_tensor(region(1), ROPE_DTYPE_BF16, {kTokens, 1, kChannels}, {16, 16, 1});
  CHECK(rope::make_rope_problem("rope_forward", geometry, args, false, &problem, &step) ==
        ROPE_STATUS_INVALID_ARGUMENT);
}

TEST_CASE("positions by token, and by batch and token", "[rope problem]") {
  const rope::RopeGeometry geometry = geometry_of(some_config(ROPE_LAYOUT_SBHD));
  rope_args_t args = some_args();
  args.q = compact_tensor(region(0), ROPE_DTYPE_BF16, shape_of(kLayouts[1], 2));
  rope::RopeProblem problem = problem_of(geometry, args, true);
  CHECK_FALSE(problem.positions.is_present);
  CHECK_FALSE(problem.start_positions.is_present);
  CHECK(problem.position_offset == 0);
  CHECK(problem.is_transposed);

  args.positions = fake_tensor(region(1), ROPE_DTYPE_I32, {kTokens}, {-3});
  args.start_positions = fake_tensor(region(2), ROPE_DTYPE_I64, {kBatches}, {2});
  args.position_offset = -7;
  problem = problem_of(geometry, args);
  CHECK_FALSE(problem.is_transposed);
  CHECK(problem.position_offset == -7);
  CHECK(problem.positions.is_present);
  CHECK(problem.positions.data == args.positions.data);
  CHECK_FALSE(problem.positions.is_64_bit);
  CHECK(problem.positions.batch_stride == 0);
  CHECK(problem.positions.token_stride == -3);
  CHECK(problem.start_positions.is_present);
  CHECK(problem.start_positions.data == args.start_positions.data);
  CHECK(problem.start_positions.is_64_bit);
  CHECK(problem.start_positions.batch_stride == 2);
  CHECK(problem.start_positions.token_stride == 0);

  args.positions = fake_tensor(region(1), ROPE_DTYPE_I64, {kBatches, kTokens}, {1, 11});
  args.start_positions = fake_tensor(region(2), ROPE_DTYPE_I32, {kBatches, kTokens}, {9, 0});
  problem = problem_of(geometry, args);
  CHECK(problem.positions.is_64_bit);
  CHECK(problem.positions.batch_stride == 1);
  CHECK(problem.positions.token_stride == 11);
  CHECK_FALSE(problem.start_positions.is_64_bit);
  CHECK(problem.start_positions.batch_stride == 9);
  CHECK(problem.start_positions.token_stride == 0);
}

TEST_CASE("start positions of rank 1 belong to batches and never to tokens", "[rope problem]") {
  const rope::RopeGeometry geometry = geometry_of(some_config(ROPE_LAYOUT_BSHD));
  rope_args_t args = some_args();
  args.q = compact_tensor(region(0), ROPE_DTYPE_BF16, shape_of(kLayouts[0], 2, 4, 4));
  args.positions = fake_tensor(region(1), ROPE_DTYPE_I32, {4}, {5});
  args.start_positions = fake_tensor(region(2), ROPE_DTYPE_I32, {4}, {6});
  rope::RopeProblem problem = problem_of(geometry, args);
  CHECK(problem.positions.batch_stride == 0);
  CHECK(problem.positions.token_stride == 5);
  CHECK(problem.start_positions.batch_stride == 6);
  CHECK(problem.start_positions.token_stride == 0);

  args.q = compact_tensor(region(0), ROPE_DTYPE_BF16, shape_of(kLayouts[0], 2, 3, 4));
  rope::StepProblem step;
  CHECK(rope::make_rope_problem("rope_forward", geometry, args, false, &problem, &step) ==
        ROPE_STATUS_INVALID_ARGUMENT);
  args.start_positions = fake_tensor(region(2), ROPE_DTYPE_I32, {3, 4}, {0, 6});
  problem = problem_of(geometry, args);
  CHECK(problem.start_positions.batch_stride == 0);
  CHECK(problem.start_positions.token_stride == 6);
}

TEST_CASE("positions of THD", "[rope problem]") {
  const rope::RopeGeometry geometry = geometry_of(some_config(ROPE_LAYOUT_THD));
  rope_args_t args = some_args();
  args.q = compact_tensor(region(0), ROPE_DTYPE_BF16, shape_of(kLayouts[3], 2));
  args.positions = fake_tensor(region(1), ROPE_DTYPE_I64, {kTokens}, {2});
  args.start_positions = fake_tensor(region(2), ROPE_DTYPE_I64, {1}, {1});
  rope::RopeProblem problem = problem_of(geometry, args);
  CHECK(problem.positions.token_stride == 2);
  CHECK(problem.start_positions.token_stride == 0);
  args.start_positions = fake_tensor(region(2), ROPE_DTYPE_I64, {kTokens}, {3});
  problem = problem_of(geometry, args);
  CHECK(problem.start_positions.token_stride == 3);
  args.positions = fake_tensor(region(1), ROPE_DTYPE_I64, {1, kTokens}, {2, 2});
  args.start_positions = fake_tensor(region(2), ROPE_DTYPE_I64, {1, kTokens}, {5, -1});
  problem = problem_of(geometry, args);
  CHECK(problem.positions.batch_stride == 0);
  CHECK(problem.positions.token_stride == 2);
  CHECK(problem.start_positions.batch_stride == 0);
  CHECK(problem.start_positions.token_stride == -1);
}

TEST_CASE("an axis of length 1 of positions has stride 0", "[rope problem]") {
  const rope::RopeGeometry geometry = geometry_of(AxisConfig(ROPE_LAYOUT_BHSD, 2).config);
  rope_args_t args = some_args();
  args.q = compact_tensor(region(0), ROPE_DTYPE_BF16, shape_of(kLayouts[2], 2));
  args.start_positions = fake_tensor(region(2), ROPE_DTYPE_I64, {1}, {7});
  const struct {
    std::vector<int64_t> shape, stride;
    int64_t axis, batch;
  } shared[] = {{{1, kTokens}, {7, 2}, 0, 0},
                {{2, 1, kTokens}, {40, 7, 2}, 40, 0},
                {{1, kBatches, kTokens}, {40, 10, 2}, 0, 10},
                {{1, 1, kTokens}, {40, 7, 2}, 0, 0}};
  for (const auto &positions : shared) {
    args.positions = fake_tensor(region(1), ROPE_DTYPE_I32, positions.shape, positions.stride);
    const rope::RopeProblem problem = problem_of(geometry, args);
    CHECK(same_strides(problem.positions, positions.axis, positions.batch, 2));
    CHECK(same_strides(problem.start_positions, 0, 0, 0));
  }
}

TEST_CASE("tables keep their strides", "[rope problem]") {
  rope_config_t config = some_config(ROPE_LAYOUT_BSHD);
  config.theta = 0;
  const rope::RopeGeometry geometry = geometry_of(config);
  CHECK_FALSE(geometry.has_frequencies);
  rope_args_t args = some_args();
  args.q = compact_tensor(region(0), ROPE_DTYPE_BF16, shape_of(kLayouts[0], 2));
  args.cos = fake_tensor(region(1), ROPE_DTYPE_F32, {100, 4}, {9, 2});
  args.sin = fake_tensor(region(2), ROPE_DTYPE_F32, {100, 4}, {-8, -1});
  const rope::RopeProblem problem = problem_of(geometry, args);
  REQUIRE(problem.angles == rope::AngleSource::kTable);
  CHECK(problem.table.dtype == ROPE_DTYPE_F32);
  CHECK(problem.table.width == 4);
  CHECK_FALSE(problem.table.is_by_channel);
  CHECK_FALSE(problem.table.is_by_token);
  CHECK(static_cast<const void *>(problem.table.cos.data) == args.cos.data);
  CHECK(static_cast<const void *>(problem.table.sin.data) == args.sin.data);
  CHECK(problem.table.rows == 100);
  CHECK(problem.table.cos.row_stride == 9);
  CHECK(problem.table.cos.column_stride == 2);
  CHECK(problem.table.sin.row_stride == -8);
  CHECK(problem.table.sin.column_stride == -1);
  args.cos = args.sin = {};
  rope::RopeProblem refused;
  rope::StepProblem step;
  CHECK(rope::make_rope_problem("rope_forward", geometry, args, false, &refused, &step) ==
        ROPE_STATUS_INVALID_ARGUMENT);
}

TEST_CASE("an empty axis makes an empty problem", "[rope problem]") {
  const rope::RopeGeometry geometry = geometry_of(some_config(ROPE_LAYOUT_BHSD));
  rope_args_t args = some_args();
  args.q = compact_tensor(0, ROPE_DTYPE_BF16, shape_of(kLayouts[2], 0));
  CHECK(problem_of(geometry, args).is_empty());
  args.k = compact_tensor(region(1), ROPE_DTYPE_BF16, shape_of(kLayouts[2], 1));
  CHECK_FALSE(problem_of(geometry, args).is_empty());
  args = some_args();
  args.q = compact_tensor(0, ROPE_DTYPE_BF16, shape_of(kLayouts[2], 2, 0));
  CHECK(problem_of(geometry, args).is_empty());
  args.q = compact_tensor(0, ROPE_DTYPE_BF16, shape_of(kLayouts[2], 2, 3, 0));
  CHECK(problem_of(geometry, args).is_empty());
}

TEST_CASE("strides of an empty problem may be any number", "[rope problem]") {
  const rope::RopeGeometry geometry = geometry_of(some_config(ROPE_LAYOUT_BSHD));
  for (const int64_t wild : {INT64_MAX, INT64_MIN}) {
    rope_args_t args = some_args();
    args.q = fake_tensor(region(0), ROPE_DTYPE_BF16, {2, 0, 3, kChannels}, {wild, wild, wild, wild});
    CHECK(problem_of(geometry, args).is_empty());
    args.q = fake_tensor(region(0), ROPE_DTYPE_BF16, {int64_t{1} << 40, int64_t{1} << 40, 0, kChannels}, {1, 1, 1, 1});
    CHECK(problem_of(geometry, args).is_empty());
    // One token with one head, in and out of place.
    args.q = fake_tensor(region(0), ROPE_DTYPE_BF16, {1, 1, 1, kChannels}, {wild, wild, wild, 1});
    CHECK(problem_of(geometry, args).tensor[0].is_in_place);
    args.q_out = fake_tensor(region(1), ROPE_DTYPE_BF16, {1, 1, 1, kChannels}, {wild, wild, wild, 1});
    args.k = fake_tensor(region(2), ROPE_DTYPE_BF16, {1, 1, 1, kChannels}, {wild, wild, wild, 1});
    CHECK(problem_of(geometry, args).num_tensors == 2);
  }
}

TEST_CASE("what a config leaves zero has its default", "[rope problem]") {
  rope_config_t config = some_config(ROPE_LAYOUT_BSHD);
  rope::RopeGeometry geometry = geometry_of(config);
  CHECK(geometry.rotary_dim == 8);
  CHECK(geometry.rotary_offset == 6);
  CHECK(geometry.attention_scale == 1.0);
  CHECK(geometry.num_axes == 1);
  CHECK(geometry.in_distance == 4);
  CHECK(geometry.out_distance == 4);
  CHECK(geometry.has_frequencies);
  config.rotary_dim = config.rotary_offset = 0;
  config.attention_scale = 0.1;
  const double inv_freq[8] = {1, 1, 1, 1, 1, 1, 1, 1};
  config.inv_freq = inv_freq;
  geometry = geometry_of(config);
  CHECK(geometry.rotary_dim == kChannels);
  CHECK(geometry.attention_scale == 0.1);
  for (int pair = 1; pair < 8; ++pair) CHECK(geometry.increments[pair] == geometry.increments[0]);
}

TEST_CASE("distances between the channels of a pair", "[rope problem]") {
  const rope_style_t half = ROPE_STYLE_HALF, interleaved = ROPE_STYLE_INTERLEAVED;
  const struct {
    rope_style_t style, out_style;
    int32_t pair_block;
    int in, out;
  } rules[] = {{half, 0, 0, 4, 4},           {half, half, 0, 4, 4},        {half, 0, 8, 4, 4},
               {half, 0, 4, 2, 2},           {half, 0, 2, 1, 1},           {interleaved, 0, 0, 1, 1},
               {half, interleaved, 0, 4, 1}, {half, interleaved, 4, 2, 1}, {interleaved, half, 0, 1, 4},
               {interleaved, half, 4, 1, 2}, {interleaved, half, 2, 1, 1}, {interleaved, interleaved, 0, 1, 1}};
  for (const auto &rule : rules) {
    rope_config_t config = some_config(ROPE_LAYOUT_THD);
    config.style = rule.style;
    config.out_style = rule.out_style;
    config.pair_block = rule.pair_block;
    INFO("style " << rule.style << ", out_style " << rule.out_style << ", pair_block " << rule.pair_block);
    const rope::RopeGeometry geometry = geometry_of(config);
    CHECK(geometry.in_distance == rule.in);
    CHECK(geometry.out_distance == rule.out);
    const rope_args_t args = some_args(kLayouts[3]);
    const rope::RopeProblem forward = problem_of(geometry, args), backward = problem_of(geometry, args, true);
    CHECK(forward.in_distance == rule.in);
    CHECK(forward.out_distance == rule.out);
    CHECK(backward.in_distance == rule.out);
    CHECK(backward.out_distance == rule.in);
  }
}

TEST_CASE("pairs are numbered along the window, block after block", "[rope problem]") {
  for (int pairs : {4, 12, 512}) {
    for (int distance = 1; distance <= pairs; ++distance) {
      if (pairs % distance != 0) continue;
      std::vector<int> owner(2 * pairs, -1);
      for (int pair = 0; pair < pairs; ++pair) {
        const int first = rope::first_channel(pair, distance);
        for (int channel : {first, first + distance}) {
          REQUIRE(channel < 2 * pairs);
          REQUIRE(owner[channel] == -1);
          owner[channel] = pair;
        }
        // Pairs are consecutive within a block, and blocks are consecutive.
        CHECK(first == 2 * distance * (pair / distance) + pair % distance);
      }
    }
  }
}

TEST_CASE("axes of pairs", "[rope problem]") {
  rope_config_t config = some_config(ROPE_LAYOUT_THD);
  rope::RopeGeometry geometry = geometry_of(config);
  CHECK(geometry.num_axes == 1);
  CHECK(geometry.used_axes == 1);
  config.num_axes = 3;
  geometry = geometry_of(config);
  CHECK(geometry.num_axes == 3);
  CHECK(geometry.used_axes == 1);
  int32_t pair_axis[4] = {7, 2, 2, 0};
  config.num_axes = 8;
  config.pair_axis = pair_axis;
  geometry = geometry_of(config);
  CHECK(geometry.used_axes == 0x85);
  for (int axis = 0; axis < 8; ++axis) CHECK(geometry.uses_axis(axis) == (axis == 0 || axis == 2 || axis == 7));
  for (int pair = 0; pair < 4; ++pair) {
    CHECK(geometry.pair_axis[pair] == pair_axis[pair]);
    pair_axis[pair] = 1;  // the geometry's copy does not change
  }
  CHECK(geometry.pair_axis[0] == 7);
}

TEST_CASE("positions of several axes", "[rope problem]") {
  const AxisConfig axes(ROPE_LAYOUT_BSHD, 2), axes_thd(ROPE_LAYOUT_THD, 2);
  rope_args_t args = some_args(kLayouts[0]);
  args.positions = fake_tensor(region(1), ROPE_DTYPE_I32, {2, kTokens}, {100, 3});
  args.start_positions = fake_tensor(region(2), ROPE_DTYPE_I64, {2, kBatches, kTokens}, {70, -9, 2});
  rope::RopeProblem problem = problem_of(geometry_of(axes.config), args);
  CHECK(same_strides(problem.positions, 100, 0, 3));
  CHECK_FALSE(problem.positions.is_64_bit);
  CHECK(same_strides(problem.start_positions, 70, -9, 2));
  CHECK(problem.start_positions.is_64_bit);

  // Token-major positions, and one row of positions for all axes and batches.
  args.positions = fake_tensor(region(1), ROPE_DTYPE_I64, {2, kBatches, kTokens}, {1, 10, 2});
  args.start_positions = fake_tensor(region(2), ROPE_DTYPE_I64, {2, kTokens}, {0, 1});
  problem = problem_of(geometry_of(axes.config), args);
  CHECK(same_strides(problem.positions, 1, 10, 2));
  CHECK(same_strides(problem.start_positions, 0, 0, 1));

  // [B] is valid for every axis, even if B equals the number of axes.
  args.q = compact_tensor(region(0), ROPE_DTYPE_BF16, shape_of(kLayouts[0], 2, 2));
  args.positions = {};
  args.start_positions = fake_tensor(region(2), ROPE_DTYPE_I64, {2}, {5});
  problem = problem_of(geometry_of(axes.config), args);
  CHECK_FALSE(problem.positions.is_present);
  CHECK(same_strides(problem.start_positions, 0, 5, 0));

  args = some_args(kLayouts[3]);
  args.positions = fake_tensor(region(1), ROPE_DTYPE_I32, {2, kTokens}, {1, 2});
  args.start_positions = fake_tensor(region(2), ROPE_DTYPE_I32, {2, kTokens}, {-40, 4});
  problem = problem_of(geometry_of(axes_thd.config), args);
  CHECK(same_strides(problem.positions, 1, 0, 2));
  CHECK(same_strides(problem.start_positions, -40, 0, 4));
}

TEST_CASE("an axis of one entry has no stride", "[rope problem]") {
  const AxisConfig axes(ROPE_LAYOUT_BSHD, 3);
  rope_args_t args = some_args();
  args.q = compact_tensor(region(0), ROPE_DTYPE_BF16, shape_of(kLayouts[0], 2, 1, 1));
  args.positions = fake_tensor(region(1), ROPE_DTYPE_I64, {3, 1, 1}, {4, INT64_MAX, INT64_MIN});
  const rope::RopeProblem problem = problem_of(geometry_of(axes.config), args);
  CHECK(same_strides(problem.positions, 4, 0, 0));
}

TEST_CASE("sequences", "[rope problem]") {
  const rope::RopeGeometry geometry = geometry_of(some_config(ROPE_LAYOUT_THD));
  rope_args_t args = some_args(kLayouts[3]);
  CHECK_FALSE(problem_of(geometry, args).sequences.is_present);
  for (const rope_dtype_t dtype : {ROPE_DTYPE_I32, ROPE_DTYPE_I64}) {
    args.cu_seqlens = fake_tensor(region(1), dtype, {4}, {-2});
    args.start_positions = fake_tensor(region(2), dtype, {3}, {7});
    const rope::RopeProblem problem = problem_of(geometry, args);
    CHECK(problem.sequences.is_present);
    CHECK(problem.sequences.data == args.cu_seqlens.data);
    CHECK(problem.sequences.is_64_bit == (dtype == ROPE_DTYPE_I64));
    CHECK(problem.sequences.stride == -2);
    CHECK(problem.sequences.count == 3);
    CHECK(problem.batches == 1);
    CHECK(same_strides(problem.start_positions, 0, 7, 0));
  }
  // With as many sequences as tokens, [B] and [T] are the same shape, which is read as [B].
  args.cu_seqlens = fake_tensor(region(1), ROPE_DTYPE_I32, {kTokens + 1}, {1});
  args.start_positions = fake_tensor(region(2), ROPE_DTYPE_I32, {kTokens}, {1});
  CHECK(same_strides(problem_of(geometry, args).start_positions, 0, 1, 0));
  args.cu_seqlens = fake_tensor(region(1), ROPE_DTYPE_I32, {1}, {1});
  args.start_positions = {};
  CHECK(problem_of(geometry, args).sequences.count == 0);
}

TEST_CASE("columns of tables by position", "[rope problem]") {
  const rope::RopeGeometry one = geometry_of(some_config(ROPE_LAYOUT_BSHD));
  const AxisConfig axes(ROPE_LAYOUT_BSHD, 2);
  const rope::RopeGeometry two = geometry_of(axes.config);
  for (const rope_dtype_t dtype : {ROPE_DTYPE_F32, ROPE_DTYPE_F16, ROPE_DTYPE_BF16, ROPE_DTYPE_F64}) {
    for (const int64_t width : {4, 8, 2}) {
      if (width != 2) {
        rope_args_t args = some_args(kLayouts[0]);
        args.cos = fake_tensor(region(1), dtype, {100, width}, {-30, 3});
        args.sin = fake_tensor(region(2), dtype, {100, width}, {1, 1000});
        const rope::RopeProblem problem = problem_of(one, args);
        CHECK(problem.angles == rope::AngleSource::kTable);
        CHECK(problem.table.dtype == dtype);
        CHECK(problem.table.rows == 100);
        CHECK(problem.table.width == width);
        CHECK(problem.table.is_by_channel == (width == 8));
        CHECK_FALSE(problem.table.is_by_token);
        CHECK(same_columns(problem.table.cos, args.cos, 0, 0, -30, 3));
        CHECK(same_columns(problem.table.sin, args.sin, 0, 0, 1, 1000));
      }
      for (const int64_t tables : {2, 1}) {
        rope_args_t args = some_args(kLayouts[0]);
        args.cos = fake_tensor(region(1), dtype, {tables, 100, width}, {7000, 60, 5});
        args.sin = fake_tensor(region(2), dtype, {tables, 100, width}, {-7000, 9, 900});
        const rope::RopeProblem problem = problem_of(two, args);
        CHECK(problem.table.rows == 100);
        CHECK(problem.table.width == width);
        CHECK(problem.table.is_by_channel == (width == 8));
        CHECK(same_columns(problem.table.cos, args.cos, tables == 2 ? 7000 : 0, 0, 60, 5));
        CHECK(same_columns(problem.table.sin, args.sin, tables == 2 ? -7000 : 0, 0, 9, 900));
        args.cos = fake_tensor(region(1), dtype, {100, width}, {60, 5});
        args.sin = fake_tensor(region(2), dtype, {100, width}, {61, 6});
        const rope::RopeProblem shared = problem_of(two, args);
        CHECK(same_columns(shared.table.cos, args.cos, 0, 0, 60, 5));
        CHECK(same_columns(shared.table.sin, args.sin, 0, 0, 61, 6));
      }
    }
  }
}

TEST_CASE("rows of tables by token", "[rope problem]") {
  const AxisConfig axes(ROPE_LAYOUT_SBHD, 2), axes_thd(ROPE_LAYOUT_THD, 2);
  const struct {
    rope_config_t config;
    int layout;
    std::vector<int64_t> shape, stride;
    int64_t axis, batch, row;
  } cases[] = {{some_config(ROPE_LAYOUT_SBHD), 1, {kTokens, 4}, {9, 2}, 0, 0, 9},
               {some_config(ROPE_LAYOUT_SBHD), 1, {kBatches, kTokens, 4}, {70, 9, 2}, 0, 70, 9},
               {some_config(ROPE_LAYOUT_SBHD), 1, {1, kTokens, 4}, {70, 9, 2}, 0, 0, 9},
               {some_config(ROPE_LAYOUT_THD), 3, {kTokens, 8}, {-9, 2}, 0, 0, -9},
               {axes.config, 1, {2, kTokens, 4}, {500, 9, 2}, 500, 0, 9},
               {axes.config, 1, {1, kTokens, 4}, {500, 9, 2}, 0, 0, 9},
               {axes.config, 1, {2, kBatches, kTokens, 2}, {500, 70, 9, 2}, 500, 70, 9},
               {axes.config, 1, {2, 1, kTokens, 8}, {500, 70, 9, 2}, 500, 0, 9},
               {axes.config, 1, {1, kBatches, kTokens, 4}, {500, 70, 9, 2}, 0, 70, 9},
               {axes_thd.config, 3, {2, kTokens, 4}, {500, 9, 2}, 500, 0, 9},
               {axes_thd.config, 3, {1, kTokens, 4}, {500, 9, 2}, 0, 0, 9}};
  for (const auto &one : cases) {
    rope_args_t args = some_args(kLayouts[one.layout]);
    args.table_rows = ROPE_TABLE_BY_TOKEN;
    args.cos = fake_tensor(region(1), ROPE_DTYPE_F32, one.shape, one.stride);
    args.sin = fake_tensor(region(2), ROPE_DTYPE_F32, one.shape, one.stride);
    const rope::RopeProblem problem = problem_of(geometry_of(one.config), args);
    CHECK(problem.table.is_by_token);
    CHECK(problem.table.rows == kTokens);
    CHECK(problem.table.width == one.shape.back());
    CHECK(same_columns(problem.table.cos, args.cos, one.axis, one.batch, one.row, 2));
    CHECK(same_columns(problem.table.sin, args.sin, one.axis, one.batch, one.row, 2));
  }
}

TEST_CASE("angles are a table of one tensor", "[rope problem]") {
  rope_config_t config = some_config(ROPE_LAYOUT_BSHD);
  config.theta = 0;
  for (const rope_dtype_t dtype : {ROPE_DTYPE_F32, ROPE_DTYPE_F16, ROPE_DTYPE_BF16}) {
    for (const int64_t width : {4, 8}) {
      for (const int32_t rows : {ROPE_TABLE_BY_POSITION, ROPE_TABLE_BY_TOKEN}) {
        rope_args_t args = some_args(kLayouts[0]);
        args.table_rows = rows;
        args.angles = fake_tensor(region(1), dtype, {kTokens, width}, {40, 2});
        const rope::RopeProblem problem = problem_of(geometry_of(config), args);
        CHECK(problem.angles == rope::AngleSource::kAngles);
        CHECK(problem.table.dtype == dtype);
        CHECK(problem.table.is_by_channel == (width == 8));
        CHECK(problem.table.is_by_token == (rows == ROPE_TABLE_BY_TOKEN));
        CHECK(same_columns(problem.table.cos, args.angles, 0, 0, 40, 2));
      }
    }
  }
}

TEST_CASE("fault words", "[rope problem]") {
  const rope::RopeGeometry geometry = geometry_of(some_config(ROPE_LAYOUT_BSHD));
  rope_args_t args = some_args(kLayouts[0]);
  CHECK(problem_of(geometry, args).fault.data == nullptr);
  args.fault = fake_tensor(region(1), ROPE_DTYPE_I64, {2}, {-3});
  const rope::RopeProblem problem = problem_of(geometry, args);
  CHECK(problem.fault.data == args.fault.data);
  CHECK(problem.fault.stride == -3);
}

TEST_CASE("tables to be filled", "[rope problem]") {
  const AxisConfig axes(ROPE_LAYOUT_BSHD, 2);
  rope_config_t config = axes.config;
  const double inv_freq[4] = {1, 0.5, 1, 0.5};
  config.inv_freq = inv_freq;
  const rope::RopeGeometry one = geometry_of(some_config(ROPE_LAYOUT_BSHD)), two = geometry_of(config);
  const struct {
    const rope::RopeGeometry &geometry;
    std::vector<int64_t> shape, stride;
    int64_t axes, axis_stride;
  } cases[] = {{one, {10, 4}, {9, 2}, 1, 0},           {one, {10, 8}, {-9, 1}, 1, 0},
               {two, {10, 4}, {9, 2}, 1, 0},           {two, {10, 2}, {1, 20}, 1, 0},
               {two, {2, 10, 4}, {800, 9, 2}, 2, 800}, {two, {2, 10, 2}, {100, 9, 2}, 2, 100},
               {two, {1, 10, 8}, {800, 9, 1}, 1, 0}};
  for (const auto &fill : cases) {
    for (const rope_dtype_t dtype : {ROPE_DTYPE_F32, ROPE_DTYPE_F16, ROPE_DTYPE_BF16, ROPE_DTYPE_F64}) {
      const rope_tensor_t cos = fake_tensor(region(1), dtype, fill.shape, fill.stride);
      const rope_tensor_t sin = compact_tensor(region(2), dtype, fill.shape);
      const rope::TableProblem problem = table_problem_of(fill.geometry, cos, sin);
      CHECK(problem.geometry == &fill.geometry);
      CHECK(problem.dtype == dtype);
      CHECK(problem.axes == fill.axes);
      CHECK(problem.rows == 10);
      CHECK(problem.width == fill.shape.back());
      CHECK(problem.is_by_channel == (fill.shape.back() == 8));
      CHECK_FALSE(problem.is_empty());
      const size_t row = fill.shape.size() - 2;
      CHECK(same_columns(problem.cos, cos, fill.axis_stride, 0, fill.stride[row], fill.stride[row + 1]));
      CHECK(same_columns(problem.sin, sin, fill.axes == 2 ? 10 * fill.shape.back() : 0, 0, fill.shape.back(), 1));
    }
  }
  CHECK(table_problem_of(one, compact_tensor(0, ROPE_DTYPE_F32, {0, 4}), compact_tensor(0, ROPE_DTYPE_F32, {0, 4}))
            .is_empty());
}

TEST_CASE("refused configs say field, value and rule", "[rope problem]") {
  static const int32_t third_is_2[4] = {0, 1, 2, 0}, negative[4] = {0, -1, 0, 0}, first_is_1[4] = {1, 0, 0, 0};
  using Config = rope_config_t;
  const struct {
    const char *text;
    void (*commit)(Config &);
  } cases[] = {
      {"invalid; rope_desc_create: device is 3: it must be ROPE_DEVICE_CPU or ROPE_DEVICE_CUDA",
       [](Config &config) { config.device = 3; }},
      {"invalid; rope_desc_create: device_index is 1: it must be 0 for the CPU",
       [](Config &config) { config.device_index = 1; }},
      {"invalid; rope_desc_create: device_index is -1: it must be at least 0",
       [](Config &config) { config.device = ROPE_DEVICE_CUDA, config.device_index = -1; }},
      {"invalid; rope_desc_create: num_threads is -2: it must be at least 0",
       [](Config &config) { config.num_threads = -2; }},
      {"invalid; rope_desc_create: dtype is 5 (I32): it must be F32, F16, BF16 or F64",
       [](Config &config) { config.dtype = ROPE_DTYPE_I32; }},
      {"unsupported; rope_desc_create: flags is 0x2: this version knows no flag",
       [](Config &config) { config.flags = 2; }},
      {"invalid; rope_desc_create: style is 0: it must be ROPE_STYLE_HALF or ROPE_STYLE_INTERLEAVED",
       [](Config &config) { config.style = 0; }},
      {"invalid; rope_desc_create: out_style is 3: it must be ROPE_STYLE_HALF or ROPE_STYLE_INTERLEAVED, or 0 for "
       "style",
       [](Config &config) { config.out_style = 3; }},
      {"invalid; rope_desc_create: pair_block is -4: it must be even and divide rotary_dim, 8, or be 0 for it",
       [](Config &config) { config.pair_block = -4; }},
      {"invalid; rope_desc_create: pair_block is 1: it must be even and divide rotary_dim, 8, or be 0 for it",
       [](Config &config) { config.pair_block = 1; }},
      {"invalid; rope_desc_create: pair_block is 6: it must be even and divide rotary_dim, 8, or be 0 for it",
       [](Config &config) { config.pair_block = 6; }},
      {"invalid; rope_desc_create: pair_block is 16: it must be even and divide rotary_dim, 8, or be 0 for it",
       [](Config &config) { config.pair_block = 16; }},
      {"invalid; rope_desc_create: pair_block is 4: style and out_style are INTERLEAVED, only HALF has blocks",
       [](Config &config) { config.style = ROPE_STYLE_INTERLEAVED, config.pair_block = 4; }},
      {"invalid; rope_desc_create: num_axes is -1: it must be 0 to 8", [](Config &config) { config.num_axes = -1; }},
      {"invalid; rope_desc_create: num_axes is 9: it must be 0 to 8", [](Config &config) { config.num_axes = 9; }},
      {"invalid; rope_desc_create: pair_axis[2] is 2: with num_axes 2 it must be 0 to 1",
       [](Config &config) { config.num_axes = 2, config.pair_axis = third_is_2; }},
      {"invalid; rope_desc_create: pair_axis[1] is -1: with num_axes 2 it must be 0 to 1",
       [](Config &config) { config.num_axes = 2, config.pair_axis = negative; }},
      {"invalid; rope_desc_create: pair_axis[0] is 1: with num_axes 1 it must be 0 to 0",
       [](Config &config) { config.pair_axis = first_is_1; }},
      {"invalid; rope_desc_create: attention_scale is nan: it must be a finite number other than 0 in fp32, or 0 for 1",
       [](Config &config) { config.attention_scale = NAN; }},
      {"invalid; rope_desc_create: theta is -1: it must be 1e-300 to 1e+300, or 0 for none",
       [](Config &config) { config.theta = -1; }},
  };
  for (const auto &refused : cases) {
    rope_config_t config = some_config(ROPE_LAYOUT_BSHD);
    refused.commit(config);
    CHECK(refusal_of(config) == refused.text);
  }
  CHECK(refusal_of(some_config(ROPE_LAYOUT_BSHD)) == "served");
}

namespace {

struct RefusedCall {
  const char *text;
  void (*commit)(rope_args_t &);
};

void check_refusals(const rope_config_t &config, const NamedLayout &layout, const std::vector<RefusedCall> &cases) {
  const rope::RopeGeometry geometry = geometry_of(config);
  for (const RefusedCall &refused : cases) {
    rope_args_t args = some_args(layout);
    refused.commit(args);
    CHECK(refusal_of(geometry, args) == refused.text);
  }
}

rope_tensor_t integers(const std::vector<int64_t> &shape) {
  return compact_tensor(region(1), ROPE_DTYPE_I32, shape);
}

void set_tables(rope_args_t &args, const std::vector<int64_t> &shape, int32_t rows = ROPE_TABLE_BY_POSITION) {
  args.cos = compact_tensor(region(1), ROPE_DTYPE_F32, shape);
  args.sin = compact_tensor(region(2), ROPE_DTYPE_F32, shape);
  args.table_rows = rows;
}

void set_angles(rope_args_t &args, rope_dtype_t dtype, const std::vector<int64_t> &shape) {
  args.angles = compact_tensor(region(3), dtype, shape);
}

}  // namespace

TEST_CASE("refused positions and sequences say field, value and rule", "[rope problem]") {
  using Args = rope_args_t;
  check_refusals(
      some_config(ROPE_LAYOUT_BSHD), kLayouts[0],
      {{"unsupported; rope_forward: flags is 0x10: this version knows ROPE_FLAG_PROGRAMMATIC_LAUNCH (0x1), "
        "ROPE_FLAG_UNROTATED (0x2), ROPE_FLAG_V_UNROTATED (0x4) and ROPE_FLAG_ACCUMULATE (0x8) only",
        [](Args &args) { args.flags = 0x10; }},
       {"unsupported; rope_forward: flags is 0x80000001: this version knows ROPE_FLAG_PROGRAMMATIC_LAUNCH (0x1), "
        "ROPE_FLAG_UNROTATED (0x2), ROPE_FLAG_V_UNROTATED (0x4) and ROPE_FLAG_ACCUMULATE (0x8) only",
        [](Args &args) { args.flags = 0x80000000u | ROPE_FLAG_PROGRAMMATIC_LAUNCH; }},
       {"unsupported; rope_forward: reserved0 is -1: it must be 0", [](Args &args) { args.reserved0 = -1; }},
       {"invalid; rope_forward: positions.dtype is F32: it must be I32 or I64",
        [](Args &args) { args.positions = compact_tensor(region(1), ROPE_DTYPE_F32, {kTokens}); }},
       {"invalid; rope_forward: positions has shape [4]: it must be [S], [5], or [B, S], [3, 5]; B may be 1",
        [](Args &args) { args.positions = integers({4}); }},
       {"invalid; rope_forward: positions has shape [3, 1]: it must be [S], [5], or [B, S], [3, 5]; B may be 1",
        [](Args &args) {
          args.positions = integers({3, 1});
        }},
       {"invalid; rope_forward: positions has shape [2, 3, 5]: it must be [S], [5], or [B, S], [3, 5]; B may be 1",
        [](Args &args) {
          args.positions = integers({2, 3, 5});
        }},
       {"invalid; rope_forward: start_positions has shape [5]: it must be [B], [3], or [B, S], [3, 5]; B may be 1",
        [](Args &args) { args.start_positions = integers({5}); }},
       {"invalid; rope_forward: start_positions has shape [5, 3]: it must be [B], [3], or [B, S], [3, 5]; B may be 1",
        [](Args &args) {
          args.start_positions = integers({5, 3});
        }},
       {"invalid; rope_forward: cu_seqlens is set: it belongs to layout THD, not BSHD",
        [](Args &args) { args.cu_seqlens = integers({4}); }}});
  check_refusals(some_config(ROPE_LAYOUT_THD), kLayouts[3],
                 {{"invalid; rope_forward: positions has shape [3, 5]: it must be [T], [5], or [1, T], [1, 5]",
                   [](Args &args) {
                     args.positions = integers({3, 5});
                   }},
                  {"invalid; rope_forward: start_positions has shape [3]: it must be [B], [1], or [T], [5], or [1, T], "
                   "[1, 5]; B may be 1",
                   [](Args &args) { args.start_positions = integers({3}); }},
                  {"invalid; rope_forward: start_positions has shape [4]: it must be [B], [3], or [T], [5], or [1, T], "
                   "[1, 5]; B may be 1",
                   [](Args &args) {
                     args.cu_seqlens = compact_tensor(region(2), ROPE_DTYPE_I64, {4});
                     args.start_positions = integers({4});
                   }},
                  {"invalid; rope_forward: cu_seqlens.dtype is F32: it must be I32 or I64",
                   [](Args &args) { args.cu_seqlens = compact_tensor(region(1), ROPE_DTYPE_F32, {4}); }},
                  {"invalid; rope_forward: cu_seqlens has shape [2, 4]: it must be [B + 1]",
                   [](Args &args) {
                     args.cu_seqlens = integers({2, 4});
                   }},
                  {"invalid; rope_forward: cu_seqlens has shape [0]: it must be [B + 1]",
                   [](Args &args) { args.cu_seqlens = integers({0}); }}});
  check_refusals(
      AxisConfig(ROPE_LAYOUT_SBHD, 2).config, kLayouts[1],
      {{"invalid; rope_forward: positions has shape [5]: it must be [A, S], [2, 5], or [A, B, S], [2, 3, 5]; A and B "
        "may be 1",
        [](Args &args) { args.positions = integers({5}); }},
       {"invalid; rope_forward: positions has shape [1, 2, 5]: it must be [A, S], [2, 5], or [A, B, S], [2, 3, 5]; A "
        "and B may be 1",
        [](Args &args) {
          args.positions = integers({1, 2, 5});
        }},
       {"invalid; rope_forward: positions has shape [3, 5]: it must be [A, S], [2, 5], or [A, B, S], [2, 3, 5]; A and "
        "B may be 1",
        [](Args &args) {
          args.positions = integers({3, 5});
        }},
       {"invalid; rope_forward: start_positions has shape [5]: it must be [B], [3], or [A, S], [2, 5], or [A, B, S], "
        "[2, 3, 5]; A and B may be 1",
        [](Args &args) { args.start_positions = integers({5}); }},
       {"invalid; rope_forward: start_positions has shape [3, 5]: it must be [B], [3], or [A, S], [2, 5], or "
        "[A, B, S], [2, 3, 5]; A and B may be 1",
        [](Args &args) {
          args.start_positions = integers({3, 5});
        }}});
  check_refusals(AxisConfig(ROPE_LAYOUT_THD, 2).config, kLayouts[3],
                 {{"invalid; rope_forward: positions has shape [5]: it must be [A, T], [2, 5], or [A, 1, T], [2, 1, "
                   "5]; A may be 1",
                   [](Args &args) { args.positions = integers({5}); }},
                  {"invalid; rope_forward: positions has shape [2, 3, 5]: it must be [A, T], [2, 5], or [A, 1, T], [2, "
                   "1, 5]; A may be 1",
                   [](Args &args) {
                     args.positions = integers({2, 3, 5});
                   }},
                  {"invalid; rope_forward: start_positions has shape [5]: it must be [B], [1], or [A, T], [2, 5], or "
                   "[A, 1, T], [2, 1, 5]; A and B may be 1",
                   [](Args &args) { args.start_positions = integers({5}); }}});
}

TEST_CASE("refused tables and angles say field, value and rule", "[rope problem]") {
  using Args = rope_args_t;
  constexpr int32_t by_token = ROPE_TABLE_BY_TOKEN;
  check_refusals(
      some_config(ROPE_LAYOUT_BSHD), kLayouts[0],
      {{"invalid; rope_forward: sin is absent: cos and sin come together",
        [](Args &args) {
          set_tables(args, {9, 4}), args.sin = {};
        }},
       {"invalid; rope_forward: cos is absent: cos and sin come together",
        [](Args &args) {
          set_tables(args, {9, 4}), args.cos = {};
        }},
       {"invalid; rope_forward: angles is set beside cos and sin: one of them must be absent",
        [](Args &args) {
          set_tables(args, {9, 4}), set_angles(args, ROPE_DTYPE_F32, {9, 4});
        }},
       {"invalid; rope_forward: table_rows is 2: it must be ROPE_TABLE_BY_POSITION or ROPE_TABLE_BY_TOKEN",
        [](Args &args) {
          set_tables(args, {9, 4}, 2);
        }},
       {"invalid; rope_forward: table_rows is ROPE_TABLE_BY_TOKEN: it needs cos and sin, or angles",
        [](Args &args) { args.table_rows = by_token; }},
       {"invalid; rope_forward: positions is set: with ROPE_TABLE_BY_TOKEN the row is the token, whatever its position",
        [](Args &args) {
          set_tables(args, {5, 4}, by_token);
          args.positions = compact_tensor(region(3), ROPE_DTYPE_I32, {5});
        }},
       {"invalid; rope_forward: start_positions is set: with ROPE_TABLE_BY_TOKEN the row is the token, whatever its "
        "position",
        [](Args &args) {
          set_tables(args, {5, 4}, by_token);
          args.start_positions = compact_tensor(region(3), ROPE_DTYPE_I32, {3});
        }},
       {"invalid; rope_forward: position_offset is set: with ROPE_TABLE_BY_TOKEN the row is the token, whatever its "
        "position",
        [](Args &args) {
          set_tables(args, {5, 4}, by_token), args.position_offset = -1;
        }},
       {"invalid; rope_forward: angles.dtype is F64: it must be F32, F16 or BF16",
        [](Args &args) {
          set_angles(args, ROPE_DTYPE_F64, {9, 4});
        }},
       {"invalid; rope_forward: angles.dtype is I32: it must be F32, F16 or BF16",
        [](Args &args) {
          set_angles(args, ROPE_DTYPE_I32, {9, 4});
        }},
       {"invalid; rope_forward: cos.dtype is I64: it must be F32, F16, BF16 or F64",
        [](Args &args) {
          set_tables(args, {9, 4}), args.cos.dtype = ROPE_DTYPE_I64;
        }},
       {"invalid; rope_forward: sin.dtype is F16: it must be that of cos, F32",
        [](Args &args) {
          set_tables(args, {9, 4}), args.sin.dtype = ROPE_DTYPE_F16;
        }},
       {"invalid; rope_forward: sin.shape[0] is 8: it must be that of cos, 9",
        [](Args &args) {
          set_tables(args, {9, 4}), args.sin.shape[0] = 8;
        }},
       {"invalid; rope_forward: cos.ndim is 1: it must be 2, [M, W]", [](Args &args) { set_tables(args, {4}); }},
       {"invalid; rope_forward: cos.ndim is 3: it must be 2, [M, W]",
        [](Args &args) {
          set_tables(args, {1, 9, 4});
        }},
       {"invalid; rope_forward: angles.ndim is 4: it must be 2, [S, W], or 3, [B, S, W]",
        [](Args &args) {
          set_angles(args, ROPE_DTYPE_F32, {1, 3, 5, 4});
          args.table_rows = by_token;
        }},
       {"invalid; rope_forward: cos.shape[1] is 2: it must be R/2, 4, or R, 8",
        [](Args &args) {
          set_tables(args, {9, 2});
        }},
       {"invalid; rope_forward: cos.shape[1] is 0: it must be R/2, 4, or R, 8",
        [](Args &args) {
          set_tables(args, {9, 0});
        }},
       {"invalid; rope_forward: cos.shape[0] is 9: by token it must be that of q, 5 tokens",
        [](Args &args) {
          set_tables(args, {9, 4}, by_token);
        }},
       {"invalid; rope_forward: cos.shape[0] is 2: it must be that of q, 3 batches, or 1",
        [](Args &args) {
          set_tables(args, {2, 5, 4}, by_token);
        }},
       {"invalid; rope_forward: cos.shape[1] is 6: by token it must be that of q, 5 tokens", [](Args &args) {
          set_tables(args, {3, 6, 4}, by_token);
        }}});
  rope_config_t no_frequencies = some_config(ROPE_LAYOUT_BSHD);
  no_frequencies.theta = 0;
  check_refusals(no_frequencies, kLayouts[0],
                 {{"invalid; rope_forward: cos is absent: a descriptor with theta 0 and without inv_freq needs cos and "
                   "sin, or angles",
                   [](Args &) {}}});
  check_refusals(some_config(ROPE_LAYOUT_THD), kLayouts[3],
                 {{"invalid; rope_forward: cos.ndim is 3: it must be 2, [T, W]", [](Args &args) {
                     set_tables(args, {1, 5, 4}, by_token);
                   }}});
  check_refusals(
      AxisConfig(ROPE_LAYOUT_BSHD, 2).config, kLayouts[0],
      {{"invalid; rope_forward: cos.ndim is 4: it must be 2, [M, W], or 3, [A, M, W]",
        [](Args &args) {
          set_tables(args, {2, 3, 9, 4});
        }},
       {"invalid; rope_forward: cos.ndim is 2: it must be 3, [A, S, W], or 4, [A, B, S, W]",
        [](Args &args) {
          set_tables(args, {5, 4}, by_token);
        }},
       {"invalid; rope_forward: cos.shape[0] is 3: it must be num_axes, 2, or 1",
        [](Args &args) {
          set_tables(args, {3, 5, 4}, by_token);
        }},
       {"invalid; rope_forward: cos.shape[0] is 0: it must be num_axes, 2, or 1",
        [](Args &args) {
          set_tables(args, {0, 9, 4});
        }},
       {"invalid; rope_forward: cos.shape[1] is 2: it must be that of q, 3 batches, or 1",
        [](Args &args) {
          set_tables(args, {2, 2, 5, 4}, by_token);
        }},
       {"invalid; rope_forward: cos.shape[2] is 4: by token it must be that of q, 5 tokens",
        [](Args &args) {
          set_tables(args, {2, 3, 4, 4}, by_token);
        }},
       {"invalid; rope_forward: cos.shape[1] is 3: it must be R/2, 4, or R, 8, or R/2 by num_axes, 2", [](Args &args) {
          set_tables(args, {9, 3});
        }}});
  check_refusals(AxisConfig(ROPE_LAYOUT_THD, 2).config, kLayouts[3],
                 {{"invalid; rope_forward: cos.ndim is 2: it must be 3, [A, T, W]", [](Args &args) {
                     set_tables(args, {5, 4}, by_token);
                   }}});
  // Four pairs cannot be divided evenly among three axes.
  check_refusals(
      AxisConfig(ROPE_LAYOUT_BSHD, 3).config, kLayouts[0],
      {{"invalid; rope_forward: cos.shape[1] is 1: it must be R/2, 4, or R, 8, or R/2 by num_axes, 3", [](Args &args) {
          set_tables(args, {9, 1});
        }}});
}

TEST_CASE("refused fault words and overlaps say field, value and rule", "[rope problem]") {
  using Args = rope_args_t;
  check_refusals(
      some_config(ROPE_LAYOUT_THD), kLayouts[3],
      {{"invalid; rope_forward: fault.dtype is I32: it must be I64", [](Args &args) { args.fault = integers({2}); }},
       {"invalid; rope_forward: fault has shape [3]: it must be [2]",
        [](Args &args) { args.fault = compact_tensor(region(1), ROPE_DTYPE_I64, {3}); }},
       {"invalid; rope_forward: fault has shape [1, 2]: it must be [2]",
        [](Args &args) {
          args.fault = compact_tensor(region(1), ROPE_DTYPE_I64, {1, 2});
        }},
       {"invalid; rope_forward: fault.stride[0] is 0 for 2 elements: an output cannot be an expanded tensor",
        [](Args &args) { args.fault = fake_tensor(region(1), ROPE_DTYPE_I64, {2}, {0}); }}});
  // For each operand that a call reads, `fault` overlaps it.
  const rope::RopeGeometry geometry = geometry_of(some_config(ROPE_LAYOUT_THD));
  rope_args_t args = some_args(kLayouts[3]);
  args.fault = compact_tensor(region(9), ROPE_DTYPE_I64, {2});
  const struct {
    const char *field;
    rope_tensor_t rope_args_t::*member;
    rope_tensor_t tensor;
  } readers[] = {{"positions", &rope_args_t::positions, compact_tensor(region(9), ROPE_DTYPE_I32, {kTokens})},
                 {"start_positions", &rope_args_t::start_positions, compact_tensor(region(9), ROPE_DTYPE_I64, {1})},
                 {"cu_seqlens", &rope_args_t::cu_seqlens, compact_tensor(region(9) + 8, ROPE_DTYPE_I32, {2})},
                 {"angles", &rope_args_t::angles, compact_tensor(region(9), ROPE_DTYPE_F32, {7, 4})}};
  for (const auto &reader : readers) {
    rope_args_t overlapping = args;
    overlapping.*reader.member = reader.tensor;
    const std::string text = refusal_of(geometry, overlapping);
    INFO(text);
    CHECK(text.rfind("invalid; rope_forward: fault at 0x", 0) == 0);
    CHECK(text.find(" shares elements with " + std::string(reader.field) + " at 0x") != std::string::npos);
    overlapping.fault.data = at_address(region(10));
    CHECK(refusal_of(geometry, overlapping) == "served");
  }
  // The rotated window of q's second head begins at byte 44; in place, its channels before that are not accessed.
  args.fault.data = at_address(region(0) + 32);
  const std::string text = refusal_of(geometry, args);
  INFO(text);
  CHECK(text.rfind("invalid; rope_forward: q at 0x", 0) == 0);
  CHECK(text.find(" shares elements with fault at 0x") != std::string::npos);
  args.fault.data = at_address(region(0) + 64);
  args.q.stride[0] = 64;
  CHECK(refusal_of(geometry, args) == "served");
}

TEST_CASE("of several overlaps an error names the first output, or the first input", "[rope problem]") {
  const rope::RopeGeometry geometry = geometry_of(some_config(ROPE_LAYOUT_THD));
  rope_args_t args = some_args(kLayouts[3]);
  args.k = args.v = args.q;
  args.positions = compact_tensor(region(0) + 16, ROPE_DTYPE_I32, {kTokens});
  args.start_positions = compact_tensor(region(0) + 16, ROPE_DTYPE_I32, {kTokens});
  const auto names = [&](const std::string &output, const std::string &other) {
    const std::string text = refusal_of(geometry, args);
    INFO(text);
    CHECK(text.rfind("invalid; rope_forward: " + output + " at 0x", 0) == 0);
    CHECK(text.find(" shares elements with " + other + " at 0x") != std::string::npos);
    CHECK(text.find(": an output must be its own input or disjoint") != std::string::npos);
  };
  names("q", "k");
  args.k.data = at_address(region(1));
  names("q", "v");
  args.v.data = at_address(region(2));
  names("q", "positions");
  args.q_out = args.k_out = args.q;
  args.q_out.data = args.k_out.data = at_address(region(3));
  names("q_out", "k_out");
  args.q_out.data = at_address(region(2));
  names("q_out", "v");
  args.k.data = at_address(region(0));
  args.q_out = {};
  names("q", "k");
  args.q_out = args.q;
  names("q_out", "k");
}

TEST_CASE("no tensor has far more elements than a call spans bytes", "[rope problem]") {
  const rope::RopeGeometry geometry = geometry_of(some_config(ROPE_LAYOUT_THD));
  constexpr int64_t always = int64_t{1} << 28;
  rope_args_t args = some_args(kLayouts[3]);
  // q: 5 tokens of two heads of 16 channels, from the first to the last of each window's 8 channels.
  constexpr int64_t q_bytes = 2 * (4 * 32 + 16 + 8);
  const auto sequences = [&](int64_t entries, int64_t stride) {
    args.cu_seqlens = fake_tensor(region(1), ROPE_DTYPE_I32, {entries}, {stride});
    return refusal_of(geometry, args);
  };
  CHECK(sequences(always, 0) == "served");
  CHECK(sequences(always + 1, 0) ==
        "unsupported; rope_forward: cu_seqlens has 268435457 elements: a tensor may have 2^28, or 64 for each of the " +
            std::to_string(q_bytes + 4) + " bytes that the tensors of the call span");
  CHECK(sequences(int64_t{1} << 60, 0).rfind("unsupported; rope_forward: cu_seqlens has 1152921504606846976 ", 0) == 0);
  // Tensors without repeated elements are accepted at any length.
  CHECK(sequences(int64_t{1} << 37, 1) == "served");
  // The limit is 64 elements per byte: if a table spans the rest of 2^23 bytes, twice as many are accepted.
  const int64_t table_bytes = (int64_t{1} << 23) - q_bytes - 4;
  args.cos = fake_tensor(region(2), ROPE_DTYPE_BF16, {table_bytes / 16, 4}, {4, 1});
  args.sin = fake_tensor(region(3), ROPE_DTYPE_BF16, {table_bytes / 16, 4}, {4, 1});
  const int64_t bytes = q_bytes + 4 + 2 * (table_bytes / 16 * 8);
  CHECK(sequences(64 * bytes, 0) == "served");
  CHECK(sequences(64 * bytes + 1, 0).rfind("unsupported; rope_forward: cu_seqlens has ", 0) == 0);
  // The limit applies to rows of a table too, although a call reads only some of them.
  args.cos = args.sin = fake_tensor(region(2), ROPE_DTYPE_F32, {always / 4 + 1, 4}, {0, 0});
  args.cu_seqlens = {};
  CHECK(refusal_of(geometry, args).rfind("unsupported; rope_forward: cos has 268435460 elements: ", 0) == 0);
  // An empty call has no loops, whatever the lengths of its tensors.
  args = some_args();
  args.q = compact_tensor(region(0), ROPE_DTYPE_BF16, {0, 2, kChannels});
  CHECK(sequences(int64_t{1} << 60, 0) == "served");
}

TEST_CASE("refused tables to be filled say field, value and rule", "[rope problem]") {
  const rope::RopeGeometry one = geometry_of(some_config(ROPE_LAYOUT_BSHD));
  const rope::RopeGeometry two = geometry_of(AxisConfig(ROPE_LAYOUT_BSHD, 2).config);
  rope_config_t config = some_config(ROPE_LAYOUT_BSHD);
  config.theta = 0;
  const rope::RopeGeometry none = geometry_of(config);
  const auto table = [](int number, const std::vector<int64_t> &shape, rope_dtype_t dtype = ROPE_DTYPE_F32) {
    return compact_tensor(region(number), dtype, shape);
  };
  const rope_tensor_t cos = table(1, {9, 4}), sin = table(2, {9, 4}), absent = {};
  const auto check = [&](const rope::RopeGeometry &geometry, const rope_tensor_t &first, const rope_tensor_t &second,
                         const char *text) { CHECK(refusal_of(geometry, &first, &second) == text); };
  CHECK(refusal_of(one, &cos, &sin) == "served");
  CHECK(refusal_of(one, nullptr, &sin) == "invalid; rope_fill_tables: cos_out is NULL: it is required");
  CHECK(refusal_of(one, &cos, nullptr) == "invalid; rope_fill_tables: sin_out is NULL: it is required");
  check(none, cos, sin,
        "invalid; rope_fill_tables: desc has no frequencies: it was made with theta 0 and without inv_freq");
  check(one, absent, sin, "invalid; rope_fill_tables: cos_out is absent: it is required");
  check(one, cos, absent, "invalid; rope_fill_tables: sin_out is absent: it is required");
  check(one, table(1, {4}), sin, "invalid; rope_fill_tables: cos_out.ndim is 1: it must be 2, [M, W]");
  check(one, table(1, {1, 9, 4}), sin, "invalid; rope_fill_tables: cos_out.ndim is 3: it must be 2, [M, W]");
  check(two, table(1, {1, 1, 9, 4}), sin,
        "invalid; rope_fill_tables: cos_out.ndim is 4: it must be 2, [M, W], or 3, [A, M, W]");
  check(two, table(1, {3, 9, 4}), sin,
        "invalid; rope_fill_tables: cos_out.shape[0] is 3: it must be num_axes, 2, or 1");
  check(one, table(1, {9, 5}), sin, "invalid; rope_fill_tables: cos_out.shape[1] is 5: it must be R/2, 4, or R, 8");
  check(one, table(1, {9, 4}, ROPE_DTYPE_I32), sin,
        "invalid; rope_fill_tables: cos_out.dtype is I32: it must be F32, F16, BF16 or F64");
  check(one, cos, table(2, {9, 4}, ROPE_DTYPE_F16),
        "invalid; rope_fill_tables: sin_out.dtype is F16: it must be that of cos_out, F32");
  check(one, cos, table(2, {8, 4}), "invalid; rope_fill_tables: sin_out.shape[0] is 8: it must be that of cos_out, 9");
  check(two, cos, table(2, {1, 9, 4}), "invalid; rope_fill_tables: sin_out.ndim is 3: it must be that of cos_out, 2");
  check(one, cos, fake_tensor(region(2), ROPE_DTYPE_F32, {9, 4}, {0, 1}),
        "invalid; rope_fill_tables: sin_out.stride[0] is 0 for 9 elements: an output cannot be an expanded tensor");
  check(one, fake_tensor(region(1), ROPE_DTYPE_F32, {9, 4}, {3, 1}), sin,
        "invalid; rope_fill_tables: cos_out visits an element twice: 36 elements lie in the room of 28, and an output "
        "has one place for each element");
  check(one, fake_tensor(region(1), ROPE_DTYPE_F32, {9, 4}, {4, 8}), sin,
        "invalid; rope_fill_tables: cos_out visits an element twice: stride[0] is 4, and an output has one place for "
        "each element");
  check(two, table(1, {9, 2}), table(2, {9, 2}),
        "invalid; rope_fill_tables: cos_out has 2 columns: pair 2 turns otherwise than pair 0");
  rope_tensor_t near_cos = cos;
  near_cos.data = at_address(region(1) + 4);
  const std::string overlap = refusal_of(one, &cos, &near_cos);
  CHECK(overlap.rfind("invalid; rope_fill_tables: cos_out at 0x", 0) == 0);
  CHECK(overlap.find(" shares elements with sin_out at 0x") != std::string::npos);
}
