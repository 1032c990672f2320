// rope_problem_tests.cpp - what a RoPE call becomes behind the waist: canonical axes, positions, tables
#include <catch2/catch_test_macros.hpp>
#include <cstring>
#include <string>
#include <vector>

#include "core/rope_problem.hpp"
#include "support/random.hpp"
#include "unit/fake_tensors.hpp"

namespace {

constexpr int64_t kBatches = 3, kTokens = 5, kChannels = 16;

struct NamedLayout {
  rope_layout_t layout;
  std::string axes;  // by the letters of the header, S for the tokens of THD
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

// Axes in any order in memory, with gaps and any signs.
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
  const rope_status_t status = rope::make_rope_problem("rope_forward", geometry, args, is_transposed, &problem);
  INFO(rope::last_error());
  REQUIRE(status == ROPE_STATUS_SUCCESS);
  return problem;
}

rope_args_t some_args() {
  rope_args_t args = {};
  args.struct_size = sizeof args;
  return args;
}

// Elements of `tensor` whose byte offset differs from that of the canonical strides.
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
  // Windows of 8 channels from 6 on: heads 8 channels apart interleave without touching each other's window.
  const rope::RopeGeometry geometry = geometry_of(some_config(ROPE_LAYOUT_THD));
  rope_args_t args = some_args();
  args.q = fake_tensor(region(0), ROPE_DTYPE_BF16, {kTokens, 1, kChannels}, {64, 64, 1});
  args.k = fake_tensor(region(0) + 8 * 2, ROPE_DTYPE_BF16, {kTokens, 1, kChannels}, {64, 64, 1});
  CHECK(problem_of(geometry, args).num_tensors == 2);
  args.k.data = at_address(region(0) + 7 * 2);
  rope::RopeProblem problem;
  CHECK(rope::make_rope_problem("rope_forward", geometry, args, false, &problem) == ROPE_STATUS_INVALID_ARGUMENT);
  args.k.data = at_address(region(0) + 8 * 2);
  args.k_out = fake_tensor(region(1), ROPE_DTYPE_BF16, {kTokens, 1, kChannels}, {16, 16, 1});
  CHECK(rope::make_rope_problem("rope_forward", geometry, args, false, &problem) == ROPE_STATUS_INVALID_ARGUMENT);
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
  CHECK(rope::make_rope_problem("rope_forward", geometry, args, false, &problem) == ROPE_STATUS_INVALID_ARGUMENT);
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
  args.start_positions = {};
  CHECK(rope::make_rope_problem("rope_forward", geometry, args, false, &problem) == ROPE_STATUS_INVALID_ARGUMENT);
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
  REQUIRE(problem.has_table);
  CHECK(static_cast<const void *>(problem.table.cos.data) == args.cos.data);
  CHECK(static_cast<const void *>(problem.table.sin.data) == args.sin.data);
  CHECK(problem.table.rows == 100);
  CHECK(problem.table.cos.row_stride == 9);
  CHECK(problem.table.cos.pair_stride == 2);
  CHECK(problem.table.sin.row_stride == -8);
  CHECK(problem.table.sin.pair_stride == -1);
  args.cos = args.sin = {};
  rope::RopeProblem refused;
  CHECK(rope::make_rope_problem("rope_forward", geometry, args, false, &refused) == ROPE_STATUS_INVALID_ARGUMENT);
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
    // A single token of a single head, in and out of place.
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
  CHECK(geometry.attention_scale == 1.0f);
  CHECK(geometry.has_frequencies);
  config.rotary_dim = config.rotary_offset = 0;
  config.attention_scale = 0.1;
  const double inv_freq[8] = {1, 1, 1, 1, 1, 1, 1, 1};
  config.inv_freq = inv_freq;
  geometry = geometry_of(config);
  CHECK(geometry.rotary_dim == kChannels);
  CHECK(geometry.attention_scale == 0.1f);
  for (int pair = 1; pair < 8; ++pair) CHECK(geometry.increments[pair] == geometry.increments[0]);
}
