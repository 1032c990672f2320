// SPDX-License-Identifier: Apache-2.0
// grid_row_tests.cpp - launches with several grid rows, which otherwise need 2^31 tokens or blocks, on small problems
#include <catch2/catch_test_macros.hpp>
#include <cmath>
#include <cstdint>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "backend/backend.hpp"
#include "core/problem/step_problem.hpp"
#include "scenes.hpp"

namespace {

constexpr rope::GatingForm kPlain = {1, INFINITY, 0, 1, true};

struct Sizes {
  int64_t batches, tokens, q_heads, k_heads;
  int head_dim, rotary_dim;
};

struct RowCase {
  Sizes sizes;
  rope_dtype_t dtype;
  bool is_in_place, has_table;
  rope_layout_t layout;  // BSHD or SBHD
  bool is_small_launch;  // planned as on any GPU; otherwise as on a GPU with one multiprocessor
  std::string describe() const {
    std::ostringstream text;
    text << oracle::dtype_name(dtype) << ' ' << sizes.batches << " x " << sizes.tokens << " tokens, " << sizes.q_heads
         << " + " << sizes.k_heads << " heads of " << sizes.rotary_dim << " of " << sizes.head_dim << " channels"
         << (is_in_place ? "" : ", out of place") << (has_table ? ", by tables" : "")
         << (layout == ROPE_LAYOUT_SBHD ? ", SBHD" : "") << (is_small_launch ? ", a small launch" : "");
    return text.str();
  }
};

void require_served(rope_status_t status) {
  if (status != ROPE_STATUS_SUCCESS) FAIL(rope_status_name(status) << ": " << rope::last_error());
}

// Launches a plan on the frozen image and returns the bytes of all tensors and their surroundings.
template <typename Launch>
std::vector<std::byte> bytes_after(const DeviceImage &image, const Launch &launch) {
  image.reset();
  require_served(launch());
  REQUIRE_CUDA(cudaDeviceSynchronize());
  image.read();
  return image.bytes();
}

void check_rope_rows(const RowCase &row_case) {
  INFO(row_case.describe());
  const Sizes &sizes = row_case.sizes;
  Workspace workspace(17);
  rope_args_t host = rope_args();
  Shape q_shape = {sizes.batches, sizes.tokens, sizes.q_heads, sizes.head_dim};
  Shape k_shape = {sizes.batches, sizes.tokens, sizes.k_heads, sizes.head_dim};
  if (row_case.layout == ROPE_LAYOUT_SBHD) {
    std::swap(q_shape[0], q_shape[1]);
    std::swap(k_shape[0], k_shape[1]);
  }
  host.q = workspace.tensor(row_case.dtype, q_shape);
  host.k = workspace.tensor(row_case.dtype, k_shape);
  workspace.fill_normal(host.q);
  workspace.fill_normal(host.k);
  if (!row_case.is_in_place) {
    host.q_out = workspace.tensor(row_case.dtype, q_shape);
    host.k_out = workspace.tensor(row_case.dtype, k_shape);
  }
  constexpr int64_t table_rows = 1000;
  host.positions = workspace.tensor(ROPE_DTYPE_I32, {sizes.batches, sizes.tokens});
  workspace.fill_integers(host.positions, [&](const Index &) { return workspace.random().below(table_rows); });
  host.start_positions = workspace.tensor(ROPE_DTYPE_I64, {sizes.batches});
  workspace.fill_integers(host.start_positions, [&](const Index &) { return workspace.random().below(100); });
  if (row_case.has_table) {
    for (rope_tensor_t *table : {&host.cos, &host.sin}) {
      *table = workspace.tensor(ROPE_DTYPE_F32, {table_rows, sizes.rotary_dim / 2});
      workspace.fill_normal(*table);
    }
  }
  workspace.freeze();
  const DeviceImage image(workspace);
  rope_args_t args = host;
  for (rope_tensor_t *tensor :
       {&args.q, &args.k, &args.q_out, &args.k_out, &args.positions, &args.start_positions, &args.cos, &args.sin}) {
    *tensor = image.there(*tensor);
  }

  rope_config_t config = rope_config_for({ROPE_DEVICE_CUDA, 0, ""}, sizes.head_dim);
  config.dtype = row_case.dtype;
  config.layout = row_case.layout;
  config.rotary_dim = sizes.rotary_dim;
  rope::RopeGeometry geometry = {};
  require_served(rope::make_rope_geometry("test", config, &geometry));
  rope::DeviceInfo device;
  require_served(rope::kCudaBackend.open_rope("test", geometry, 0, 0, &device));
  device.multiprocessors = row_case.is_small_launch ? 1 << 20 : 1;
  rope::RopeProblem problem;
  rope::StepProblem step;
  require_served(rope::make_rope_problem("test", geometry, args, false, &problem, &step));
  rope::RopePlan plan;
  require_served(rope::plan_rope("test", problem, device, &plan));
  // Kernels with rows of threads use only one grid row, of any length.
  const bool has_grid_rows = plan.blocks.tokens_per_grid_row > 0;
  if (!has_grid_rows) return;
  REQUIRE(plan.grid_y == 1);
  const auto launch = [&] { return rope::kCudaBackend.run_rope("test", problem, plan, 0, nullptr); };
  const std::vector<std::byte> expected = bytes_after(image, launch);
  CHECK_FALSE(image.is_as_frozen());

  // With several batches, a grid row has whole batches, or the same tokens of all batches. With one batch it has whole
  // blocks.
  const int64_t all_tokens = problem.batches * problem.tokens;
  int64_t unit = plan.tokens_per_block;
  if (problem.batches > 1) unit = plan.is_batch_fastest ? problem.batches : problem.tokens;
  for (const int64_t units : {1, 2, 3, 5}) {
    const int64_t tokens_per_row = units * unit;
    if (tokens_per_row >= all_tokens) continue;
    plan.blocks.tokens_per_grid_row = tokens_per_row;
    plan.grid_x = static_cast<uint32_t>((tokens_per_row - 1) / plan.tokens_per_block + 1) * plan.blocks_per_token;
    plan.grid_y = static_cast<uint32_t>((all_tokens - 1) / tokens_per_row + 1);
    INFO(tokens_per_row << " tokens a row, " << plan.tokens_per_block << " a block, grid " << plan.grid_x << " x "
                        << plan.grid_y);
    REQUIRE(plan.grid_y > 1);
    const bool is_same = bytes_after(image, launch) == expected;
    CHECK(is_same);
  }
}

// Compares the launches of a call with those of more grid rows.
void check_swiglu_grid(const DeviceImage &image, rope_dtype_t dtype, const swiglu_args_t &args, bool is_backward) {
  rope::DeviceInfo device;
  require_served(rope::kCudaBackend.open_swiglu("test", dtype, 0, 0, &device));
  rope::SwigluCall call;
  require_served(rope::make_swiglu_call("test", dtype, kPlain, args, is_backward, &call));
  rope::SwigluCallPlan plan;
  require_served(rope::plan_swiglu_call("test", call, device, &plan));
  const auto bytes_with = [&](const rope::SwigluCallPlan &with) {
    return bytes_after(image, [&] { return rope::kCudaBackend.run_swiglu("test", call, with, 0, nullptr); });
  };
  const std::vector<std::byte> expected = bytes_with(plan);
  CHECK_FALSE(image.is_as_frozen());
  for (const uint32_t blocks_per_row : {1u, 2u, 5u}) {
    rope::SwigluCallPlan cut = plan;
    bool is_cut = false;
    for (int i = 0; i < (plan.has_blocks ? 1 : call.count); ++i) {
      rope::SwigluPlan &launch = plan.has_blocks ? cut.blocks : cut.plans[i];
      REQUIRE(launch.grid_y == 1);
      // Kernels of matrices to codes have one grid row.
      if (blocks_per_row >= launch.grid_x || (launch.is_matrix && call.problems[i].has_codes())) continue;
      launch.grid_y = (launch.grid_x - 1) / blocks_per_row + 1;
      launch.grid_x = blocks_per_row;
      is_cut = true;
      UNSCOPED_INFO("grid " << launch.grid_x << " x " << launch.grid_y);
    }
    if (!is_cut) continue;
    const bool is_same = bytes_with(cut) == expected;
    CHECK(is_same);
  }
}

void check_swiglu_rows(rope_dtype_t dtype, const Shape &shape, int64_t start, bool is_backward, bool has_row_scale) {
  INFO(oracle::dtype_name(dtype) << (is_backward ? " backward, " : " forward, ") << start
                                 << " elements past the alignment" << (has_row_scale ? ", row_scale" : ""));
  Workspace workspace(18);
  swiglu_args_t args = swiglu_args();
  const Placement placement = Placement().gap(0, 5).at(start);
  std::vector<rope_tensor_t *> inputs = is_backward ? std::vector<rope_tensor_t *>{&args.gate, &args.up, &args.grad_out}
                                                    : std::vector<rope_tensor_t *>{&args.gate, &args.up};
  std::vector<rope_tensor_t *> outputs = is_backward ? std::vector<rope_tensor_t *>{&args.grad_gate, &args.grad_up}
                                                     : std::vector<rope_tensor_t *>{&args.out};
  for (rope_tensor_t *input : inputs) {
    *input = workspace.tensor(dtype, shape, placement);
    workspace.fill_normal(*input);
  }
  for (rope_tensor_t *output : outputs) *output = workspace.tensor(dtype, shape, placement);
  if (has_row_scale) {
    args.row_scale = workspace.tensor(ROPE_DTYPE_F32, {shape[0]});
    workspace.fill_normal(args.row_scale);
    inputs.push_back(&args.row_scale);
    args.num_rows = workspace.tensor(ROPE_DTYPE_I64, {1});
    workspace.fill_integers(args.num_rows, [&](const Index &) { return shape[0] - 1; });
    inputs.push_back(&args.num_rows);
    if (is_backward) {
      args.grad_row_scale = workspace.tensor(ROPE_DTYPE_F32, {shape[0]});
      outputs.push_back(&args.grad_row_scale);
    }
  }
  workspace.freeze();
  const DeviceImage image(workspace);
  for (rope_tensor_t *tensor : inputs) *tensor = image.there(*tensor);
  for (rope_tensor_t *tensor : outputs) *tensor = image.there(*tensor);

  check_swiglu_grid(image, dtype, args, is_backward);
}

// Codes by row and by column: of matrices, from one launch, or of single elements, from one for each output.
void check_code_rows(rope_dtype_t dtype, int64_t start, bool is_backward) {
  INFO(oracle::dtype_name(dtype) << (is_backward ? " backward, " : " forward, ") << start
                                 << " elements past the alignment, codes");
  constexpr int64_t rows = 96, columns = 320;
  Workspace workspace(19);
  swiglu_args_t args = swiglu_args();
  swiglu_quant_args_t quant = SWIGLU_QUANT_ARGS_INIT;
  swiglu_column_args_t column = SWIGLU_COLUMN_ARGS_INIT;
  std::vector<rope_tensor_t *> tensors = {&args.gate, &args.up};
  if (is_backward) tensors.push_back(&args.grad_out);
  for (rope_tensor_t *input : tensors) {
    *input = workspace.tensor(dtype, {rows, columns}, Placement().at(start));
    workspace.fill_normal(*input);
  }
  const auto add = [&](rope_tensor_t *codes, rope_tensor_t *scales, const Shape &scales_shape) {
    *codes = workspace.tensor(ROPE_DTYPE_F8_E4M3, {rows, columns}, Placement().at(start));
    *scales = workspace.tensor(ROPE_DTYPE_F8_E8M0, scales_shape);
    tensors.insert(tensors.end(), {codes, scales});
  };
  const Shape by_row = {rows, columns / 32}, by_column = {rows / 32, columns};
  if (is_backward) {
    add(&args.grad_gate, &quant.grad_gate_scales_out, by_row);
    add(&args.grad_up, &quant.grad_up_scales_out, by_row);
    add(&column.grad_gate, &column.grad_gate_scales_out, by_column);
    add(&column.grad_up, &column.grad_up_scales_out, by_column);
  } else {
    add(&args.out, &quant.scales_out, by_row);
    add(&column.out, &column.scales_out, by_column);
  }
  args.quant = &quant;
  args.column = &column;
  workspace.freeze();
  const DeviceImage image(workspace);
  for (rope_tensor_t *tensor : tensors) *tensor = image.there(*tensor);
  check_swiglu_grid(image, dtype, args, is_backward);
}

}  // namespace

TEST_CASE("RoPE gives the same bits with several grid rows", "[cuda][grid]") {
  need_gpus();
  const Sizes all_sizes[] = {
      {1, 1000, 3, 1, 64, 64},   // several tokens per block; the last grid row is not full
      {1, 997, 1, 1, 2, 2},      // many tokens per block
      {1, 61, 9, 3, 128, 128},   // one token per block
      {1, 29, 40, 8, 128, 96},   // several blocks per token
      {2, 7, 3, 1, 64, 64},      // a batch that is not a whole number of blocks
      {23, 7, 2, 1, 64, 32},     // channels to copy
      {9, 1, 5, 2, 128, 128},    // one token per batch
      {5, 200, 1, 1, 8, 4},      // several blocks per batch
      {11, 5, 40, 8, 128, 128},  // several blocks per token, several batches
  };
  for (const Sizes &sizes : all_sizes) {
    // F64 runs only on the general kernel.
    for (const rope_dtype_t dtype : {ROPE_DTYPE_F32, ROPE_DTYPE_BF16, ROPE_DTYPE_F64}) {
      for (const bool is_in_place : {true, false}) {
        for (const bool has_table : {false, true}) {
          for (const bool is_small_launch : {false, true}) {
            for (const rope_layout_t layout : {ROPE_LAYOUT_BSHD, ROPE_LAYOUT_SBHD}) {
              check_rope_rows({sizes, dtype, is_in_place, has_table, layout, is_small_launch});
            }
          }
        }
      }
    }
  }
}

TEST_CASE("SwiGLU gives the same bits with several grid rows", "[cuda][grid]") {
  need_gpus();
  for (const rope_dtype_t dtype : {ROPE_DTYPE_F32, ROPE_DTYPE_F16, ROPE_DTYPE_BF16, ROPE_DTYPE_F64}) {
    for (const int64_t start : {0, 1}) {
      for (const bool is_backward : {false, true}) {
        for (const bool has_row_scale : {false, true}) {
          check_swiglu_rows(dtype, {61, 251}, start, is_backward, has_row_scale);
          check_swiglu_rows(dtype, {7, 3, 3, 123}, start, is_backward, has_row_scale);
        }
      }
    }
  }
}

TEST_CASE("SwiGLU gives the same codes with several grid rows", "[cuda][grid][codes]") {
  need_gpus();
  for (const rope_dtype_t dtype : {ROPE_DTYPE_F32, ROPE_DTYPE_BF16}) {
    for (const int64_t start : {0, 1}) {
      for (const bool is_backward : {false, true}) check_code_rows(dtype, start, is_backward);
    }
  }
}
