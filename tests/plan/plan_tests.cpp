// SPDX-License-Identifier: Apache-2.0
// plan_tests.cpp - the plan of every valid RoPE problem is a valid launch whose threads do all work exactly once, and
// its description in words is correct
#include <catch2/catch_test_macros.hpp>
#include <cstring>
#include <map>
#include <sstream>
#include <utility>

#include "plan/explain.hpp"
#include "plan/launch_model.hpp"
#include "plan/legal_launch.hpp"

TEST_CASE("the plan of every legal RoPE problem is a legal launch", "[rope plan]") {
  Random random(1);
  Scene scene;
  int planned = 0, wide = 0, scalar = 0, rows = 0, of_2_to_40_tokens = 0, of_2_to_19_heads = 0, whole_heads = 0;
  int of_pairing[3] = {}, parts_of_tokens = 0, programmatic = 0, batch_fastest = 0;
  std::map<std::string, int> of_function;
  for (int round = 0; round < 80000; ++round) {
    if (!draw(&random, kAnySizes, &scene)) continue;
    for (const rope::DeviceInfo &device : kDevices) {
      rope::RopePlan plan;
      rope::fail(ROPE_STATUS_SUCCESS, "%s", "");
      const rope_status_t status = rope::plan_rope("rope_forward", scene.problem, device, &plan);
      if (status != ROPE_STATUS_SUCCESS) {
        const std::string message = rope::last_error();
        INFO(describe(scene) << ": " << message);
        REQUIRE(status == ROPE_STATUS_NOT_SUPPORTED);
        REQUIRE(message.rfind("rope_forward: q ", 0) == 0);
        // Even with the widest vectors and blocks, the tokens do not fit the grid, or a batch does not fit a row of it.
        const int64_t widest = widest_vectors(scene), units = units_of_token(scene, widest, rope::RopeKernel::kGeneral);
        const int64_t row = kMaxGridX / 8 / divide_up(units, rope::kMaxRopeThreads);
        const bool fills_grid = scene.num_tokens() / kMaxGridY >= row / 2;
        const bool fills_row = scene.problem.batches > 1 && scene.problem.tokens >= row;
        REQUIRE((fills_grid || fills_row));
        continue;
      }
      ++planned;
      const std::string fault = fault_of(scene, device, plan);
      if (!fault.empty()) {
        INFO(describe(scene) << "; sm_" << device.compute_capability << ": " << describe(plan));
        FAIL(fault);
      }
      ++(plan.vector_elements > 1 ? wide : scalar);
      rows += plan.grid_y > 1 && shares_angles(plan.variant.kernel);
      parts_of_tokens += plan.grid_y > 1 && has_parts_axis(plan.variant.kernel);
      programmatic += plan.is_programmatic;
      batch_fastest += plan.is_batch_fastest;
      whole_heads += scene.converts_in_place();
      ++of_function[function_of(plan.variant)];
      ++of_pairing[static_cast<int>(plan.variant.pairing)];
      of_2_to_40_tokens += scene.num_tokens() >= int64_t{1} << 39;
      of_2_to_19_heads += scene.problem.heads_per_token() >= int64_t{1} << 19;
    }
  }
  // Every kind of problem occurred.
  CHECK(planned > 100000);
  CHECK(wide > 10000);
  CHECK(scalar > 10000);
  CHECK(rows > 100);
  CHECK(parts_of_tokens > 100);
  CHECK(programmatic > 10000);
  CHECK(batch_fastest > 10000);
  CHECK(of_2_to_40_tokens > 10);
  CHECK(of_2_to_19_heads > 100);
  CHECK(whole_heads > 1000);
  for (const auto &[function, kernel] : all_functions()) {
    INFO(function);
    // Conversion of heads in whole vectors is rare in the draws, and few problems have the sizes of flat launches or of
    // launches between short programmatic ones and long ones.
    const bool is_seldom = kernel == rope::RopeKernel::kLongConverted || is_flat(kernel) ||
                           kernel == rope::RopeKernel::kMidProgrammaticTable;
    CHECK(of_function[function] > (is_seldom ? 10 : 300));
  }
  for (const int count : of_pairing) CHECK(count > 10000);
}

TEST_CASE("rotations that round each operation have kernels that do", "[rope plan]") {
  Random random(5);
  Scene scene;
  int of_long = 0, of_general = 0;
  for (int round = 0; round < 20000; ++round) {
    if (!draw(&random, kAnySizes, &scene) || scene.element_size() != 2) continue;
    scene.geometry.rounds_each = true;
    for (const rope::DeviceInfo &device : kDevices) {
      rope::RopePlan plan;
      if (rope::plan_rope("rope_forward", scene.problem, device, &plan) != ROPE_STATUS_SUCCESS) continue;
      INFO(describe(scene));
      const bool is_long = plan.variant.kernel == rope::RopeKernel::kLong;
      REQUIRE((is_long || plan.variant.kernel == rope::RopeKernel::kGeneral));
      REQUIRE((!is_long || plan.variant.angles != rope::kComputedAngles));
      (is_long ? of_long : of_general) += 1;
    }
    scene.geometry.rounds_each = false;
  }
  CHECK(of_long > 100);
  CHECK(of_general > 100);
}

TEST_CASE("tables of few tokens are rounded by the kernel of long launches", "[rope plan]") {
  Scene scene;
  rope_config_t config = some_config(ROPE_DTYPE_BF16, 128);
  config.rotation_rounding = ROPE_ROTATION_ROUND_EACH;
  for (const int64_t tokens : {1, 70, 4096}) {
    rope_args_t args = {};
    args.cos = compact_tensor(far_address(0), ROPE_DTYPE_F32, {1 << 16, 64});
    args.sin = compact_tensor(far_address(1), ROPE_DTYPE_F32, {1 << 16, 64});
    set_problem(&scene, config, {1, tokens, 32, 128}, args);
    CHECK(explain(scene, kH200).find(": long table kernel, ") != std::string::npos);
  }
}

TEST_CASE("problems beyond one launch are refused with a reason", "[rope plan]") {
  Scene scene;
  for (const rope::DeviceInfo &device : kDevices) {
    rope::RopePlan plan;
    // Each token takes at least 1600 blocks, and a grid holds 2^47 blocks: too few for 2^37 tokens.
    set_problem(&scene, ROPE_DTYPE_F16, 1, int64_t{1} << 37, 1 << 18, 2);
    CHECK(rope::plan_rope("rope_backward", scene.problem, device, &plan) == ROPE_STATUS_NOT_SUPPORTED);
    CHECK(std::string(rope::last_error()).rfind("rope_backward: q ", 0) == 0);
    // There are two batches, and neither fits a row.
    set_problem(&scene, ROPE_DTYPE_F16, 2, int64_t{1} << 32, 2, 128);
    CHECK(rope::plan_rope("rope_backward", scene.problem, device, &plan) == ROPE_STATUS_NOT_SUPPORTED);
    // A row is too short for one token of each of so many batches, so it has whole batches.
    rope_config_t config = some_config(ROPE_DTYPE_F16, 2);
    config.layout = ROPE_LAYOUT_SBHD;
    set_problem(&scene, config, {2, int64_t{1} << 24, 1 << 18, 2});
    CHECK(rope::plan_rope("rope_backward", scene.problem, device, &plan) == ROPE_STATUS_SUCCESS);
    CHECK_FALSE(plan.is_batch_fastest);
    CHECK(fault_of(scene, device, plan).empty());
    // As one batch they fit.
    set_problem(&scene, ROPE_DTYPE_F16, 1, int64_t{1} << 33, 1, 128);
    CHECK(rope::plan_rope("rope_backward", scene.problem, device, &plan) == ROPE_STATUS_SUCCESS);
    CHECK(fault_of(scene, device, plan).empty());
  }
}

TEST_CASE("a launch does each piece of work once", "[rope plan]") {
  Random random(2);
  Scene scene;
  int launches = 0, of_several_tokens = 0, of_several_blocks = 0, short_rows = 0, wide_copies = 0;
  int whole_heads = 0, large_heads = 0, idle_units = 0, wide_blocks = 0, wide_converted = 0;
  std::map<std::string, int> of_function, short_rows_of_function;
  int short_tables = 0, rows_of_batches = 0, batch_fastest = 0;
  int part_slowest = 0, rows_of_threads = 0, double_copies = 0, parts_of_heads = 0, several_tensors = 0;
  for (int round = 0; round < 20000; ++round) {
    if (!draw(&random, kSmallSizes, &scene)) continue;
    // On a device with one multiprocessor, small launches count as long.
    const rope::DeviceInfo &device = round % 3 == 0 ? kDevices[6] : kDevices[round % 11];
    rope::RopePlan plan;
    REQUIRE(rope::plan_rope("rope_forward", scene.problem, device, &plan) == ROPE_STATUS_SUCCESS);
    rope::RopePlan rows = in_short_rows(scene, plan, 1 + random.below(scene.num_tokens()));
    for (const rope::RopePlan *variant : {&plan, &rows}) {
      INFO(describe(scene) << "; sm_" << device.compute_capability << ": " << describe(*variant));
      const std::string not_legal = fault_of(scene, device, *variant);
      if (!not_legal.empty()) FAIL(not_legal);
      const std::string fault = run_launch(scene, *variant);
      if (!fault.empty()) FAIL(fault);
    }
    ++launches;
    of_several_tokens += plan.tokens_per_block > 1 && scene.num_tokens() > plan.tokens_per_block;
    of_several_blocks += plan.blocks_per_token > 1;
    short_rows += rows.grid_y > plan.grid_y;
    ++of_function[function_of(plan.variant)];
    short_rows_of_function[function_of(plan.variant)] += rows.grid_y > plan.grid_y;
    batch_fastest += plan.is_batch_fastest && rows.grid_y > plan.grid_y;
    rows_of_batches += rows.grid_y > plan.grid_y && scene.problem.batches > 1 &&
                       rows.blocks.tokens_per_grid_row > scene.problem.tokens;
    short_tables += plan.variant.kernel == rope::RopeKernel::kShortTable;
    part_slowest += plan.rows.is_part_slowest && plan.blocks_per_token > 1;
    rows_of_threads += plan.thread_rows > 1 && scene.num_tokens() > plan.thread_rows;
    double_copies += has_token_rows(plan.variant.kernel) && plan.vector_elements > 1 &&
                     plan.units.per_head[0] > plan.units.rotary_per_head;
    parts_of_heads += is_scalar(plan.variant.kernel) && scene.problem.tensor[0].heads % rope::kScalarHeads != 0;
    several_tensors += has_token_rows(plan.variant.kernel) && scene.problem.num_tensors > 1;
    wide_copies += plan.vector_elements > 1 && plan.units.per_head[0] > plan.units.rotary_per_head;
    whole_heads += scene.converts_in_place();
    large_heads += plan.threads > static_cast<uint32_t>(rope::kMaxRopeThreads);
    idle_units += scene.converts_in_place() && scene.has_copies();
    wide_blocks += plan.vector_elements > 1 && scene.is_half() && scene.block() < scene.geometry.rotary_dim;
    wide_converted += plan.vector_elements > 1 && scene.is_converted();
  }
  // Tables for tokens of few units are drawn too rarely.
  for (const rope_dtype_t table : {ROPE_DTYPE_F32, ROPE_DTYPE_F16}) {
    for (const int64_t heads : {1, 3, 7}) {
      rope_args_t tables = {};
      tables.cos = compact_tensor(far_address(0), table, {64, 64});
      tables.sin = compact_tensor(far_address(1), table, {64, 64});
      set_problem(&scene, some_config(ROPE_DTYPE_BF16, 128), {1, 307, heads, 128}, tables);
      const rope::RopePlan plan = plan_of(scene, kDevices[6]);
      INFO(describe(scene) << ": " << describe(plan));
      CHECK(fault_of(scene, kDevices[6], plan) == "");
      CHECK(run_launch(scene, plan) == "");
      ++of_function[function_of(plan.variant)];
    }
  }
  CHECK(launches > 4000);
  CHECK(of_several_tokens > 100);
  CHECK(of_several_blocks > 100);
  CHECK(short_rows > 1000);
  // Long launches have their own test cases; and tokens of few units are rarely so many that their launch is long.
  for (const auto &[function, kernel] : all_functions()) {
    INFO(function);
    const bool is_seldom = (has_parts_axis(kernel) && !is_of_short_launch(kernel)) || is_flat(kernel) ||
                           kernel == rope::RopeKernel::kMidProgrammaticTable;
    if (!is_of_long_launch(kernel)) CHECK(of_function[function] > (is_seldom ? 0 : 5));
    if (shares_angles(kernel)) CHECK(short_rows_of_function[function] > 4);
  }
  CHECK(rows_of_batches > 100);
  CHECK(batch_fastest > 300);
  CHECK(short_tables > 30);
  CHECK(part_slowest > 50);
  CHECK(rows_of_threads > 50);
  CHECK(double_copies > 10);
  CHECK(parts_of_heads > 50);
  CHECK(several_tensors > 50);
  CHECK(wide_copies > 50);
  CHECK(whole_heads > 200);
  CHECK(large_heads > 50);
  CHECK(idle_units > 50);
  CHECK(wide_blocks > 50);
  CHECK(wide_converted > 50);
}

TEST_CASE("heads that are converted in place are never cut", "[rope plan]") {
  Scene scene;
  uint32_t max_threads = 0;
  for (const rope_dtype_t dtype : {ROPE_DTYPE_F32, ROPE_DTYPE_BF16, ROPE_DTYPE_F64}) {
    for (const int32_t head_dim : {2, 6, 64, 192, 322, 514, 576, 1022, 1024}) {
      for (const int32_t rotary_dim : {4, 64, 0}) {
        for (const rope_style_t style : {ROPE_STYLE_HALF, ROPE_STYLE_INTERLEAVED}) {
          for (const int64_t stride : {int64_t{head_dim}, int64_t{head_dim} + 1}) {
            for (const bool is_beside_copies : {false, true}) {
              rope_config_t config = some_config(dtype, head_dim);
              config.layout = ROPE_LAYOUT_THD;
              config.rotary_dim = rotary_dim;
              config.style = style;
              config.out_style = oracle::other_style(style);
              if (rotary_dim > head_dim) continue;
              REQUIRE(rope::make_rope_geometry("rope_desc_create", config, &scene.geometry) == ROPE_STATUS_SUCCESS);
              const std::vector<int64_t> shape = {3, 5, head_dim}, strides = {7 * stride, stride, 1};
              scene.args = {};
              scene.args.struct_size = sizeof scene.args;
              scene.args.q = fake_tensor(uintptr_t{1} << 61, dtype, shape, strides);
              scene.args.k = fake_tensor(uintptr_t{2} << 61, dtype, shape, strides);
              if (is_beside_copies) scene.args.k_out = fake_tensor(uintptr_t{3} << 61, dtype, shape, strides);
              REQUIRE(rope::make_rope_problem("rope_forward", scene.geometry, scene.args, false, &scene.problem,
                                              &scene.step) == ROPE_STATUS_SUCCESS);
              for (const rope::DeviceInfo &device : {kDevices[0], kDevices[4]}) {
                const rope::RopePlan plan = plan_of(scene, device);
                INFO(describe(scene) << ": " << describe(plan));
                const std::string fault = fault_of(scene, device, plan) + run_launch(scene, plan);
                if (!fault.empty()) FAIL(fault);
                max_threads = std::max(max_threads, plan.threads);
              }
            }
          }
        }
      }
    }
  }
  CHECK(max_threads == 1024);
}

TEST_CASE("a launch of odd sizes does each piece of work once", "[rope plan]") {
  Scene scene;
  for (const rope_dtype_t dtype : {ROPE_DTYPE_F32, ROPE_DTYPE_BF16}) {
    for (const int64_t tokens : {1, 2, 7, 31}) {
      for (const int64_t heads : {1, 3, 8, 31}) {
        for (const int32_t head_dim : {2, 6, 34, 64, 80, 128}) {
          for (const int64_t batches : {1, 3}) {
            set_problem(&scene, dtype, batches, tokens, heads, head_dim);
            for (const rope::DeviceInfo &device : {kDevices[0], kDevices[4], kDevices[6], kDevices[9]}) {
              rope::RopePlan plan;
              REQUIRE(rope::plan_rope("rope_forward", scene.problem, device, &plan) == ROPE_STATUS_SUCCESS);
              rope::RopePlan rows = in_short_rows(scene, plan, tokens / 2);
              for (const rope::RopePlan *variant : {&plan, &rows}) {
                const std::string fault = fault_of(scene, device, *variant) + run_launch(scene, *variant);
                INFO(describe(scene) << ": " << describe(*variant));
                if (!fault.empty()) FAIL(fault);
              }
            }
          }
        }
      }
    }
  }
}

TEST_CASE("CPU plans of RoPE use threads where there is enough to do", "[rope plan]") {
  Random random(3);
  Scene scene;
  int planned = 0, parallel = 0;
  for (int round = 0; round < 20000; ++round) {
    if (!draw(&random, round % 2 == 0 ? kAnySizes : kSmallSizes, &scene)) continue;
    for (const int num_threads : {1, 2, 7, 64, 1000}) {
      rope::RopePlan plan;
      const rope::DeviceInfo device = {false, num_threads, 0, 0, 0};
      REQUIRE(rope::plan_rope("rope_forward", scene.problem, device, &plan) == ROPE_STATUS_SUCCESS);
      INFO(describe(scene) << ", " << num_threads << " threads: " << plan.num_tasks << " tasks");
      const bool is_legal =
          plan.num_tasks >= 1 && plan.num_tasks <= num_threads &&
          plan.num_tasks <= std::max<int64_t>(1, scene.num_tokens() * scene.problem.heads_per_token());
      if (!is_legal) FAIL("num_tasks");
      ++planned;
      parallel += plan.num_tasks > 1;
    }
  }
  CHECK(planned > 10000);
  CHECK(parallel > 1000);

  rope::RopePlan plan;
  const rope::DeviceInfo device = {false, 16, 0, 0, 0};
  set_problem(&scene, ROPE_DTYPE_F32, 1, 1, 32, 128);
  REQUIRE(rope::plan_rope("rope_forward", scene.problem, device, &plan) == ROPE_STATUS_SUCCESS);
  CHECK(plan.num_tasks == 1);
  set_problem(&scene, ROPE_DTYPE_F32, 1, 1 << 20, 32, 128);
  REQUIRE(rope::plan_rope("rope_forward", scene.problem, device, &plan) == ROPE_STATUS_SUCCESS);
  CHECK(plan.num_tasks == 16);
}

TEST_CASE("rows of threads do each piece of work once", "[rope plan]") {
  Scene scene;
  const rope::DeviceInfo device = kDevices[6];
  enum Angles {
    kComputed,
    kAxes,
    kSequences,
    kTable,
    kTableAxes,
    kTableSequences,
    kNumAngles
  };
  const struct {
    rope_style_t style;
    int32_t head_dim, rotary_dim, rotary_offset, pair_block;
    bool has_vectors;
  } heads_of[] = {{ROPE_STYLE_HALF, 128, 0, 0, 0, true},         {ROPE_STYLE_INTERLEAVED, 128, 0, 0, 0, true},
                  {ROPE_STYLE_HALF, 192, 64, 64, 0, true},       {ROPE_STYLE_INTERLEAVED, 88, 32, 40, 0, true},
                  {ROPE_STYLE_HALF, 136, 64, 0, 32, true},       {ROPE_STYLE_INTERLEAVED, 24, 16, 8, 0, true},
                  {ROPE_STYLE_HALF, 1024, 0, 0, 0, true},        {ROPE_STYLE_HALF, 128, 0, 0, 4, false},
                  {ROPE_STYLE_INTERLEAVED, 34, 20, 1, 0, false}, {ROPE_STYLE_HALF, 10, 6, 4, 0, false}};
  const int64_t head_counts[][3] = {{8, 2, 0}, {20, 0, 3}, {0, 9, 0}, {0, 1, 17}, {1, 1, 1}, {24, 8, 8}};
  std::map<std::string, int> of_function;
  int part_slowest = 0, several_batches = 0, odd_copies = 0;
  for (const rope_dtype_t dtype : {ROPE_DTYPE_F32, ROPE_DTYPE_BF16}) {
    for (const auto &head : heads_of) {
      for (const auto &heads : head_counts) {
        for (int angles = 0; angles < kNumAngles; ++angles) {
          for (const rope_layout_t layout :
               {ROPE_LAYOUT_BSHD, ROPE_LAYOUT_SBHD, ROPE_LAYOUT_BHSD, ROPE_LAYOUT_THD, ROPE_LAYOUT_THD}) {
            for (const bool is_in_place : {true, false}) {
              const bool has_sequences = angles == kSequences || angles == kTableSequences;
              if (has_sequences != (layout == ROPE_LAYOUT_THD)) continue;
              rope_config_t config = some_config(dtype, head.head_dim);
              config.layout = layout;
              config.style = head.style;
              config.rotary_dim = head.rotary_dim;
              config.rotary_offset = head.rotary_offset;
              config.pair_block = head.pair_block;
              if (angles == kAxes || angles == kTableAxes) config.num_axes = 3;
              REQUIRE(rope::make_rope_geometry("rope_desc_create", config, &scene.geometry) == ROPE_STATUS_SUCCESS);
              const bool is_thd = layout == ROPE_LAYOUT_THD;
              set_operands(&scene, layout, dtype, is_thd ? 1 : 2, is_thd ? 5 : 3, heads, head.head_dim, is_in_place);
              if (angles >= kTable) {
                const std::vector<int64_t> shape = {64, scene.geometry.pairs()};
                scene.args.cos = compact_tensor(far_address(0), ROPE_DTYPE_F16, shape);
                scene.args.sin = compact_tensor(far_address(1), ROPE_DTYPE_F16, shape);
              }
              if (has_sequences) scene.args.cu_seqlens = compact_tensor(far_address(2), ROPE_DTYPE_I32, {4});
              const rope_status_t status = rope::make_rope_problem("rope_forward", scene.geometry, scene.args, false,
                                                                   &scene.problem, &scene.step);
              INFO(rope::last_error());
              REQUIRE(status == ROPE_STATUS_SUCCESS);
              const rope::RopePlan plan = plan_of(scene, device);
              INFO(describe(scene) << ": " << describe(plan));
              const std::string fault = fault_of(scene, device, plan) + run_launch(scene, plan);
              if (!fault.empty()) FAIL(fault);
              ++of_function[function_of(plan.variant)];
              if (!has_token_rows(plan.variant.kernel)) continue;
              REQUIRE(is_scalar(plan.variant.kernel) == !head.has_vectors);
              part_slowest += plan.rows.is_part_slowest;
              several_batches += scene.problem.batches > 1;
              odd_copies += copied_vectors(scene, 0, plan.vector_elements) % 2;
            }
          }
        }
      }
    }
  }
  for (const auto &[function, kernel] : all_functions()) {
    INFO(function);
    if (has_token_rows(kernel) && !is_of_long_launch(kernel)) CHECK(of_function[function] > 50);
  }
  CHECK(part_slowest > 50);
  CHECK(several_batches > 50);
  CHECK(odd_copies > 50);
}

TEST_CASE("one multiplication divides units by those of a head", "[rope plan]") {
  Random random(6);
  int64_t wrong = 0;
  // Valid as long as, for every unit of a token, unit * divisor fits 32 bits.
  for (uint32_t divisor = 2; divisor <= 1024; ++divisor) {
    const uint32_t last = UINT32_MAX / divisor - 1;
    const auto check = [&](uint32_t n) { wrong += multiply_by_reciprocal(n, divisor) != n / divisor; };
    for (uint32_t below = 0; below <= 2 * divisor; ++below) check(last - below);
    for (uint32_t n = 0; n <= 2 * divisor; ++n) check(n);
    for (int i = 0; i < 200; ++i) {
      const auto multiple = static_cast<uint32_t>(random.below(last / divisor)) * divisor;
      for (const uint32_t n : {multiple, multiple + 1, multiple + divisor - 1}) check(n);
    }
  }
  CHECK(wrong == 0);
  // For a divisor of 1, and for much larger numbers, it is not.
  CHECK(multiply_by_reciprocal(7, 1) != 7);
  CHECK(multiply_by_reciprocal(UINT32_MAX / 641 * 641 - 1, 641) == UINT32_MAX / 641 - 1);
  CHECK(multiply_by_reciprocal(UINT32_MAX / 643 * 643 - 1, 643) != UINT32_MAX / 643 - 1);
}

TEST_CASE("long launches do each piece of work once", "[rope plan]") {
  Scene scene;
  const struct {
    rope_style_t style;
    int32_t head_dim, rotary_dim, rotary_offset;
  } heads_of[] = {{ROPE_STYLE_HALF, 128, 0, 0},   {ROPE_STYLE_INTERLEAVED, 128, 0, 0},
                  {ROPE_STYLE_HALF, 192, 64, 64}, {ROPE_STYLE_INTERLEAVED, 88, 32, 40},
                  {ROPE_STYLE_HALF, 80, 0, 0},    {ROPE_STYLE_INTERLEAVED, 96, 80, 16}};
  const int64_t head_counts[][3] = {{8, 2, 0},  {20, 0, 3}, {0, 29, 0}, {0, 1, 17},
                                    {32, 4, 4}, {41, 8, 8}, {8, 0, 0},  {9, 0, 7}};
  const rope_dtype_t of_table[] = {{}, ROPE_DTYPE_F32, ROPE_DTYPE_F16, ROPE_DTYPE_BF16};
  std::map<std::string, int> of_function, several_parts, several_rows;
  int cut_warps = 0;
  int several_tensors = 0, idle_rows = 0, threads_behind_heads = 0, gapped_rows = 0, several_batches = 0;
  for (const rope_dtype_t dtype : {ROPE_DTYPE_F16, ROPE_DTYPE_BF16}) {
    for (const auto &head : heads_of) {
      for (const auto &heads : head_counts) {
        for (const rope_dtype_t table : of_table) {
          const struct {
            rope_layout_t layout;
            int64_t batches;
            bool has_other_out_style;
          } layouts[] = {{ROPE_LAYOUT_BSHD, 1, false}, {ROPE_LAYOUT_SBHD, 3, false}, {ROPE_LAYOUT_THD, 1, false},
                         {ROPE_LAYOUT_BSHD, 3, false}, {ROPE_LAYOUT_BHSD, 1, false}, {ROPE_LAYOUT_BHSD, 2, false},
                         {ROPE_LAYOUT_BSHD, 3, true},  {ROPE_LAYOUT_BHSD, 1, true},  {ROPE_LAYOUT_SBHD, 2, true},
                         {ROPE_LAYOUT_THD, 1, true}};
          for (const auto &[layout, batches, has_other_out_style] : layouts) {
            for (const bool is_in_place : {true, false}) {
              rope_config_t config = some_config(dtype, head.head_dim);
              config.layout = layout;
              config.style = head.style;
              config.rotary_dim = head.rotary_dim;
              config.rotary_offset = head.rotary_offset;
              if (has_other_out_style) config.out_style = oracle::other_style(head.style);
              REQUIRE(rope::make_rope_geometry("rope_desc_create", config, &scene.geometry) == ROPE_STATUS_SUCCESS);
              const int64_t units = (heads[0] + heads[1] + heads[2]) * scene.geometry.pairs() / 8;
              const int64_t tokens = kTuning.max_short_table_vectors / (units * batches) + 2;
              set_operands(&scene, layout, dtype, batches, tokens, heads, head.head_dim, is_in_place);
              const bool has_table = table != rope_dtype_t{};
              if (has_table) {
                const std::vector<int64_t> shape = {64, scene.geometry.pairs()};
                scene.args.cos = compact_tensor(far_address(0), table, shape);
                scene.args.sin = compact_tensor(far_address(1), table, shape);
              }
              const rope_status_t status = rope::make_rope_problem("rope_forward", scene.geometry, scene.args, false,
                                                                   &scene.problem, &scene.step);
              INFO(rope::last_error());
              REQUIRE(status == ROPE_STATUS_SUCCESS);
              const rope::RopePlan plan = plan_of(scene, kDevices[6]);
              INFO(describe(scene) << ": " << describe(plan));
              const std::string fault = fault_of(scene, kDevices[6], plan) + run_launch(scene, plan);
              if (!fault.empty()) FAIL(fault);
              const std::string function = function_of(plan.variant);
              ++of_function[function];
              several_parts[function] += plan.blocks_per_token > 1;
              several_rows[function] += plan.thread_rows > 1;
              cut_warps += plan.variant.kernel == rope::RopeKernel::kLong && plan.variant.has_simple_grid &&
                           plan.variant.angles == rope::kComputedAngles && plan.threads % 32 != 0;
              if (!is_of_long_launch(plan.variant.kernel)) continue;
              several_tensors += heads[0] > 0 && heads[1] > 0 && heads[2] > 0;
              idle_rows += tokens % plan.thread_rows != 0;
              threads_behind_heads += plan.blocks_per_token * plan.threads > plan.units.per_token;
              gapped_rows += plan.threads == kTuning.gapped_row_threads;
              several_batches += scene.problem.batches > 1;
            }
          }
        }
      }
    }
  }
  for (const auto &[function, kernel] : all_functions()) {
    INFO(function);
    if (!is_of_long_launch(kernel)) continue;
    CHECK(of_function[function] > 100);
    CHECK(several_parts[function] > 40);
    CHECK(several_rows[function] > 20);
  }
  CHECK(cut_warps > 5);
  CHECK(several_tensors > 100);
  CHECK(idle_rows > 20);
  CHECK(threads_behind_heads > 100);
  CHECK(gapped_rows > 100);
  CHECK(several_batches > 100);
}

TEST_CASE("one multiplication divides blocks of the largest long launches by the parts of a token", "[rope plan]") {
  Scene scene;
  Random random(8);
  int several_rows = 0, divided = 0;
  int64_t wrong = 0;
  for (const int32_t head_dim : {32, 64, 80, 128}) {
    for (int64_t heads = 4; heads < 9000; heads += 1 + heads / 64) {
      const int64_t units = heads * head_dim / 16, warps = units / 32 + 1;
      if (units < kTuning.min_row_units || head_dim / 2 > divide_up(units, 32) * 32) continue;
      set_problem(&scene, ROPE_DTYPE_BF16, 1, UINT32_MAX / (warps * warps), heads, head_dim);
      const rope::RopePlan plan = plan_of(scene, kH200);
      INFO(describe(scene) << ": " << describe(plan));
      const std::string fault = fault_of(scene, kH200, plan);
      if (!fault.empty()) FAIL(fault);
      REQUIRE(is_of_long_launch(plan.variant.kernel));
      several_rows += plan.blocks_per_token > 1 && plan.thread_rows > 1;
      const uint32_t parts = plan.blocks_per_token, last = plan.grid_x - 1;
      if (parts == 1) continue;
      ++divided;
      const auto check = [&](uint32_t n) { wrong += n <= last && multiply_by_reciprocal(n, parts) != n / parts; };
      for (uint32_t n = 0; n <= 2 * parts; ++n) check(n);
      for (uint32_t below = 0; below <= std::min(2 * parts, last); ++below) check(last - below);
      for (int i = 0; i < 1000; ++i) {
        const auto multiple = static_cast<uint32_t>(random.below(last / parts + 1)) * parts;
        for (const uint32_t n : {multiple, multiple + 1, multiple + parts - 1}) check(n);
      }
    }
  }
  CHECK(wrong == 0);
  CHECK(several_rows > 0);
  CHECK(divided > 200);
}

TEST_CASE("launches without a barrier do each piece of work once", "[rope plan]") {
  Scene scene;
  const struct {
    rope_style_t style;
    int32_t head_dim, rotary_dim, rotary_offset;
  } heads_of[] = {{ROPE_STYLE_HALF, 128, 0, 0},        {ROPE_STYLE_INTERLEAVED, 128, 0, 0},
                  {ROPE_STYLE_HALF, 192, 64, 64},      {ROPE_STYLE_INTERLEAVED, 88, 32, 40},
                  {ROPE_STYLE_HALF, 80, 0, 0},         {ROPE_STYLE_INTERLEAVED, 24, 16, 8},
                  {ROPE_STYLE_INTERLEAVED, 144, 0, 0}, {ROPE_STYLE_HALF, 512, 0, 0}};
  const int64_t head_counts[][3] = {{8, 2, 0}, {20, 0, 3}, {0, 9, 0}, {0, 1, 17},
                                    {1, 0, 0}, {0, 0, 1},  {0, 2, 1}, {41, 8, 8}};
  const rope_dtype_t of_table[] = {{}, ROPE_DTYPE_F32, ROPE_DTYPE_F16, ROPE_DTYPE_BF16};
  std::map<std::string, int> of_function, several_parts, several_rows;
  int several_batches = 0, batch_fastest = 0, several_tensors = 0, rows_within_warps = 0, idle_lanes = 0;
  int rows_as_long_as_pairs = 0;
  for (const rope_dtype_t dtype : {ROPE_DTYPE_F32, ROPE_DTYPE_BF16}) {
    for (const auto &head : heads_of) {
      for (const auto &heads : head_counts) {
        for (const rope_dtype_t table : of_table) {
          for (const rope_layout_t layout : {ROPE_LAYOUT_BSHD, ROPE_LAYOUT_SBHD, ROPE_LAYOUT_BHSD, ROPE_LAYOUT_THD}) {
            for (const int variant : {0, 1, 2, 3, 4, 5, 6, 7}) {
              // Short launches of one batch, launches of two batches, which are long on a device with one
              // multiprocessor, and flat launches.
              const bool has_one_batch = variant < 2 || variant > 5;
              const int64_t batches = has_one_batch ? 1 : 2;
              const int64_t tokens = variant > 5 ? 160 : variant < 4 ? 5 : 40;
              if (batches > 1 && layout == ROPE_LAYOUT_THD) continue;
              if (tokens > 5 && heads[0] + heads[1] + heads[2] > 3) continue;
              rope_config_t config = some_config(dtype, head.head_dim);
              config.layout = layout;
              config.style = head.style;
              config.rotary_dim = head.rotary_dim;
              config.rotary_offset = head.rotary_offset;
              REQUIRE(rope::make_rope_geometry("rope_desc_create", config, &scene.geometry) == ROPE_STATUS_SUCCESS);
              set_operands(&scene, layout, dtype, batches, tokens, heads, head.head_dim, variant % 2 == 0);
              // Batches that become neither tokens nor heads.
              if (batches > 1) {
                scene.args.positions = fake_tensor(far_address(2), ROPE_DTYPE_I32, {batches, tokens}, {tokens + 1, 1});
              }
              const bool has_table = table != rope_dtype_t{};
              if (has_table) {
                const std::vector<int64_t> shape = {64, scene.geometry.pairs()};
                scene.args.cos = compact_tensor(far_address(0), table, shape);
                scene.args.sin = compact_tensor(far_address(1), table, shape);
              }
              for (const bool has_flag : {false, true}) {
                scene.args.flags = has_flag ? ROPE_FLAG_PROGRAMMATIC_LAUNCH : 0;
                const rope_status_t status = rope::make_rope_problem("rope_forward", scene.geometry, scene.args, false,
                                                                     &scene.problem, &scene.step);
                INFO(rope::last_error());
                REQUIRE(status == ROPE_STATUS_SUCCESS);
                // Blocks of few threads, of more and of most.
                for (const rope::DeviceInfo &device : {kDevices[4], kDevices[6], {true, 0, 2, 90, 0}}) {
                  const rope::RopePlan plan = plan_of(scene, device);
                  INFO(describe(scene) << ": " << describe(plan));
                  const std::string not_legal = fault_of(scene, device, plan);
                  if (!not_legal.empty()) FAIL(not_legal);
                  if (!has_parts_axis(plan.variant.kernel) && !is_flat(plan.variant.kernel)) continue;
                  const std::string fault = run_launch(scene, plan);
                  if (!fault.empty()) FAIL(fault);
                  ++of_function[function_of(plan.variant)];
                  several_parts[function_of(plan.variant)] += plan.grid_y > 1;
                  several_rows[function_of(plan.variant)] += plan.thread_rows > 1;
                  several_batches += scene.problem.batches > 1;
                  batch_fastest += plan.is_batch_fastest;
                  const int64_t shared_threads = divide_up(plan.units.per_token, 32) * 32;
                  rows_as_long_as_pairs +=
                      plan.variant.kernel == rope::RopeKernel::kShort && plan.threads > shared_threads;
                  several_tensors += heads[0] > 0 && heads[1] > 0 && heads[2] > 0;
                  rows_within_warps += plan.threads % 32 != 0;
                  idle_lanes += plan.grid_y * plan.threads > plan.units.per_token;
                }
              }
            }
          }
        }
      }
    }
  }
  for (const auto &[function, kernel] : all_functions()) {
    INFO(function);
    if (!has_parts_axis(kernel) && !is_flat(kernel)) continue;
    CHECK(of_function[function] > 100);
    if (is_flat(kernel)) continue;
    // In launches for tokens of several heads or of few units, tokens have no parts, except for one launch with the
    // grid's maximum.
    if (is_of_short_launch(kernel)) CHECK(several_parts[function] > 10);
    CHECK(several_rows[function] > 50);
  }
  CHECK(several_batches > 500);
  CHECK(rows_as_long_as_pairs > 10);
  CHECK(batch_fastest > 100);
  CHECK(several_tensors > 100);
  CHECK(rows_within_warps > 100);
  CHECK(idle_lanes > 100);
}

TEST_CASE("tokens are counted in the order in which q lies in memory", "[rope plan]") {
  Scene scene;
  for (const rope_layout_t layout : {ROPE_LAYOUT_BSHD, ROPE_LAYOUT_SBHD, ROPE_LAYOUT_BHSD}) {
    for (const int64_t batches : {1, 3}) {
      rope_config_t config = some_config(ROPE_DTYPE_BF16, 128);
      config.layout = layout;
      const std::vector<int64_t> shape = layout == ROPE_LAYOUT_BSHD   ? std::vector<int64_t>{batches, 7, 4, 128}
                                         : layout == ROPE_LAYOUT_SBHD ? std::vector<int64_t>{7, batches, 4, 128}
                                                                      : std::vector<int64_t>{batches, 4, 7, 128};
      // Batches with their own positions do not become heads.
      rope_args_t args = {};
      args.positions = compact_tensor(far_address(0), ROPE_DTYPE_I32, {batches, 7});
      set_problem(&scene, config, shape, args);
      for (const rope::DeviceInfo &device : kDevices) {
        const rope::RopePlan plan = plan_of(scene, device);
        CHECK(plan.is_batch_fastest == (layout == ROPE_LAYOUT_SBHD && batches > 1));
        if (has_token_rows(plan.variant.kernel)) CHECK(plan.rows.is_part_slowest == (layout == ROPE_LAYOUT_BHSD));
        const std::string fault = fault_of(scene, device, plan) + run_launch(scene, plan);
        CHECK(fault.empty());
      }
    }
  }
  // A broadcast axis is the fastest; the direction of an axis does not matter.
  for (const bool is_reversed : {false, true}) {
    rope_config_t config = some_config(ROPE_DTYPE_BF16, 128);
    set_problem(&scene, config, {3, 7, 4, 128});
    int64_t *stride = scene.problem.tensor[0].in_stride;
    std::swap(stride[rope::kBatch], stride[rope::kToken]);
    if (is_reversed) stride[rope::kToken] = -stride[rope::kToken];
    CHECK(plan_of(scene, kDevices[4]).is_batch_fastest);
    stride[rope::kToken] = 0;
    CHECK_FALSE(plan_of(scene, kDevices[4]).is_batch_fastest);
    stride[rope::kBatch] = 0;
    CHECK_FALSE(plan_of(scene, kDevices[4]).is_batch_fastest);
  }
}

TEST_CASE("blocks of the size that leaves the fewest threads idle", "[rope plan]") {
  Scene scene;
  const rope::DeviceInfo device = kDevices[6];
  Random random(5);
  int planned = 0, long_rows = 0;
  for (int round = 0; round < 10000; ++round) {
    if (!draw(&random, kAnySizes, &scene) || scene.converts_in_place()) continue;
    rope::RopePlan plan;
    if (rope::plan_rope("rope_forward", scene.problem, device, &plan) != ROPE_STATUS_SUCCESS) continue;
    const bool has_long_rows =
        has_token_rows(plan.variant.kernel) && !plan.rows.is_part_slowest && plan.units.per_token > 96;
    if ((!shares_angles(plan.variant.kernel) && !has_long_rows) || plan.threads == kTuning.gapped_row_threads) continue;
    long_rows += has_long_rows;
    const auto threads_of = [](int64_t threads, int64_t blocks, int64_t tokens) {
      return static_cast<double>(threads * blocks) / static_cast<double>(tokens);
    };
    const int64_t rows = has_long_rows ? plan.thread_rows : 1;
    const double spent = threads_of(plan.threads * rows, plan.blocks_per_token, plan.tokens_per_block);
    for (const uint32_t threads : kTuning.block_threads) {
      const uint32_t units = plan.units.per_token;
      const double other = threads_of(threads, divide_up(units, threads), std::max(threads / units, 1u));
      INFO(describe(scene) << ": " << describe(plan) << "; blocks of " << threads);
      // Numbers of threads are compared after rounding to 1/1024.
      if (spent > other + 1.0 / 512) FAIL("a block size that leaves fewer threads idle");
    }
    ++planned;
  }
  CHECK(planned > 1000);
  CHECK(long_rows > 200);
}

TEST_CASE("GPUs of one compute capability have rows of their own", "[rope plan]") {
  rope::DeviceInfo device = kH200;
  const rope::RopeTuning &of_h200 = rope::rope_tuning_of(device);
  CHECK(of_h200.is_measured);
  CHECK(of_h200.memory_bus_bits > 5120);
  device.memory_bus_bits = 5120;
  const rope::RopeTuning &of_h100 = rope::rope_tuning_of(device);
  CHECK(&of_h100 != &of_h200);
  CHECK(of_h100.is_measured);
  CHECK(of_h100.compute_capability == 90);
  device.compute_capability = 89;
  CHECK(rope::rope_tuning_of(device).compute_capability == 89);
  CHECK_FALSE(rope::rope_tuning_of(device).is_measured);
  device.compute_capability = 103;
  CHECK(rope::rope_tuning_of(device).compute_capability == 100);
  // Older than any row.
  device.compute_capability = 61;
  CHECK(rope::rope_tuning_of(device).compute_capability == 70);
}

TEST_CASE("bytes that a call moves", "[rope plan]") {
  Scene scene;
  set_problem(&scene, ROPE_DTYPE_BF16, 2, 3, 5, 128);
  CHECK(rope::moved_bytes(scene.problem) == 2 * 2 * 2 * 3 * 5 * 128);
  rope_config_t config = some_config(ROPE_DTYPE_F64, 128);
  config.rotary_dim = 32;
  set_problem(&scene, config, {2, 3, 5, 128});
  CHECK(rope::moved_bytes(scene.problem) == 2 * 8 * 2 * 3 * 5 * 32);  // in place, only the window moves
  rope_args_t args = {};
  args.q_out = compact_tensor(uintptr_t{3} << 61, ROPE_DTYPE_F64, {2, 3, 5, 128});
  args.k = compact_tensor(uintptr_t{4} << 61, ROPE_DTYPE_F64, {2, 3, 1, 128});
  set_problem(&scene, config, {2, 3, 5, 128}, args);
  CHECK(rope::moved_bytes(scene.problem) == 2 * 8 * 2 * 3 * (5 * 128 + 32));
  // All tokens share their elements.
  args = {};
  args.q_out = fake_tensor(uintptr_t{3} << 61, ROPE_DTYPE_F64, {1, int64_t{1} << 45, 1, 128}, {0, 128, 0, 1});
  set_problem(&scene, config, {1, int64_t{1} << 45, 1, 128}, args);
  CHECK(rope::moved_bytes(scene.problem) == int64_t{1} << 56);
}

TEST_CASE("a plan in words", "[rope plan]") {
  Scene scene;
  set_problem(&scene, ROPE_DTYPE_BF16, 4, 4096, 32, 128);
  CHECK(explain(scene, kH200) ==
        "rope BF16 half on CUDA: long angles kernel, vectors of 16 bytes, grid 32768 x 1 of 128 threads, 512 bytes "
        "shared, 268.435 MB read and written");
  CHECK(explain(scene, {false, 12, 0, 0, 0}) ==
        "rope BF16 half on the CPU: 12 of 12 threads, 268.435 MB read and written");
  CHECK(explain(scene, {false, 1000, 0, 0, 0}) ==
        "rope BF16 half on the CPU: 256 of 1000 threads, 268.435 MB read and written");

  // One token of a decoder: 1024 wide units are few for 132 multiprocessors, more for 3, and many for 1.
  set_problem(&scene, ROPE_DTYPE_F32, 1, 1, 64, 128);
  CHECK(explain(scene, kH200) ==
        "rope F32 half on CUDA: short warp angles kernel, vectors of 8 bytes, grid 1 x 16 of 128 threads, 2048 bytes "
        "shared, 0.065536 MB read and written");
  CHECK(explain(scene, {true, 0, 3, 75, 0}) ==
        "rope F32 half on CUDA: short angles kernel, vectors of 8 bytes, grid 1 x 8 of 256 threads, 512 bytes shared, "
        "0.065536 MB read and written");
  CHECK(explain(scene, {true, 0, 1, 75, 0}) ==
        "rope F32 half on CUDA: token angles kernel, vectors of 16 bytes, grid 8 x 1 of 128 threads, 512 bytes shared, "
        "0.065536 MB read and written");
  CHECK(explain(scene, {false, 12, 0, 0, 0}) ==
        "rope F32 half on the CPU: 1 of 12 threads, 0.065536 MB read and written");

  rope_config_t config = some_config(ROPE_DTYPE_F16, 128);
  config.style = ROPE_STYLE_INTERLEAVED;
  for (const rope_dtype_t dtype : {ROPE_DTYPE_F16, ROPE_DTYPE_F32}) {
    rope_args_t args = {};
    args.cos = compact_tensor(far_address(0), dtype, {1 << 16, 64});
    args.sin = compact_tensor(far_address(1), dtype, {1 << 16, 64});
    set_problem(&scene, config, {1, 4096, 1, 128}, args);
    CHECK(explain(scene, kH200) ==
          "rope F16 interleaved on CUDA: short table kernel, vectors of 8 bytes, grid 256 x 1 of 256 threads, 0 bytes "
          "shared, 2.09715 MB read and written");
    set_problem(&scene, config, {1, 1 << 16, 1, 128}, args);
    CHECK(
        explain(scene, kH200) ==
        "rope F16 interleaved on CUDA: thread table kernel, vectors of 16 bytes, grid 4096 x 1 of 128 threads, 0 bytes "
        "shared, 33.5544 MB read and written");
  }

  set_problem(&scene, some_config(ROPE_DTYPE_F32, 128), {1, 1, 64, 128}, with_flag({}));
  CHECK(explain(scene, kH200) ==
        "rope F32 half on CUDA: short warp angles kernel, vectors of 8 bytes, grid 1 x 32 of 64 threads, 1024 bytes "
        "shared, 0.065536 MB read and written");
  set_problem(&scene, ROPE_DTYPE_F32, 1, 1 << 16, 1, 128);
  CHECK(
      explain(scene, kH200) ==
      "rope F32 half on CUDA: thread angles kernel, vectors of 16 bytes, grid 8192 x 1 of 128 threads, 0 bytes shared, "
      "67.1089 MB read and written");

  rope_args_t wide_rows = {};
  wide_rows.cos = compact_tensor(far_address(0), ROPE_DTYPE_F32, {4096, 64});
  wide_rows.sin = compact_tensor(far_address(1), ROPE_DTYPE_F32, {4096, 64});
  rope_args_t narrow_rows = {};
  narrow_rows.cos = compact_tensor(far_address(0), ROPE_DTYPE_BF16, {4096, 64});
  narrow_rows.sin = compact_tensor(far_address(1), ROPE_DTYPE_BF16, {4096, 64});
  const std::string shape_of_many =
      " kernel, vectors of 16 bytes, grid 8192 x 1 of 128 threads, 512 bytes shared, 67.1089 MB read and written";
  set_problem(&scene, config, {1, 4096, 32, 128});
  CHECK(explain(scene, kH200) == "rope F16 interleaved on CUDA: long angles" + shape_of_many);
  for (const rope_args_t &rows : {wide_rows, narrow_rows}) {
    set_problem(&scene, config, {1, 4096, 32, 128}, rows);
    CHECK(explain(scene, kH200) ==
          "rope F16 interleaved on CUDA: flat table kernel, vectors of 16 bytes, grid 8192 x 1 of 128 threads, 0 bytes "
          "shared, 67.1089 MB read and written");
    set_problem(&scene, config, {1, 8192, 32, 128}, rows);
    CHECK(explain(scene, kH200) ==
          "rope F16 interleaved on CUDA: long table kernel, vectors of 16 bytes, grid 16384 x 1 of 128 threads, 512 "
          "bytes shared, 134.218 MB read and written");
  }
  wide_rows.start_positions = compact_tensor(far_address(2), ROPE_DTYPE_I64, {1});
  set_problem(&scene, config, {1, 4096, 32, 128}, wide_rows);
  CHECK(explain(scene, kH200) == "rope F16 interleaved on CUDA: token table" + shape_of_many);

  rope_args_t by_sequence = {};
  by_sequence.cu_seqlens = compact_tensor(far_address(2), ROPE_DTYPE_I32, {9});
  config.layout = ROPE_LAYOUT_THD;
  set_problem(&scene, config, {64, 8, 128}, by_sequence);
  CHECK(explain(scene, {true, 0, 1, 90, 0}) ==
        "rope F16 interleaved on CUDA: token angles kernel, vectors of 16 bytes, grid 32 x 1 of 128 threads, "
        "1024 bytes shared, 0.262144 MB read and written");
  by_sequence.cos = wide_rows.cos;
  by_sequence.sin = wide_rows.sin;
  set_problem(&scene, config, {64, 8, 128}, by_sequence);
  CHECK(explain(scene, {true, 0, 1, 90, 0}) ==
        "rope F16 interleaved on CUDA: token table kernel, vectors of 16 bytes, grid 32 x 1 of 128 threads, "
        "1024 bytes shared, 0.262144 MB read and written");

  config.layout = ROPE_LAYOUT_BSHD;
  config.out_style = ROPE_STYLE_HALF;
  set_problem(&scene, config, {1, 4096, 32, 128});
  CHECK(explain(scene, kH200) == "rope F16 converted on CUDA: long converted angles" + shape_of_many);
  config.dtype = ROPE_DTYPE_F64;
  set_problem(&scene, config, {1, 1 << 16, 3, 128});
  for (const rope::DeviceInfo &device : kDevices) {
    const rope::RopePlan plan = plan_of(scene, device);
    std::ostringstream expected;
    expected << "rope F64 converted on CUDA: general kernel, vectors of 16 bytes, grid " << plan.grid_x << " x "
             << plan.grid_y << " of " << plan.threads << " threads, " << plan.shared_bytes
             << " bytes shared, 402.653 MB read and written";
    CHECK(explain(scene, device) == expected.str());
  }

  set_problem(&scene, ROPE_DTYPE_BF16, 1, 0, 8, 128);
  for (const rope::DeviceInfo &device : {kH200, rope::DeviceInfo{false, 4, 0, 0, 0}}) {
    CHECK(explain(scene, device) == "rope BF16 half: nothing to do, no element is rotated");
  }
}

TEST_CASE("a plan in words is cut to size", "[rope plan]") {
  Random random(4);
  Scene scene;
  size_t longest = 0;
  int explained = 0;
  for (int round = 0; round < 3000; ++round) {
    if (!draw(&random, kAnySizes, &scene)) continue;
    for (const rope::DeviceInfo &device : {kDevices[round % 11], rope::DeviceInfo{false, 64, 0, 0, 0}}) {
      rope::RopePlan plan;
      if (rope::plan_rope("rope_forward", scene.problem, device, &plan) != ROPE_STATUS_SUCCESS) continue;
      const std::string whole = explain(scene, device);
      CHECK(whole.find('\n') == std::string::npos);
      longest = std::max(longest, whole.size());
      for (const size_t size : {size_t{1}, size_t{2}, size_t{10}, whole.size() - 1, whole.size(), whole.size() + 1}) {
        char text[256];
        std::memset(text, '#', sizeof text);
        rope::explain_rope(scene.problem, plan, device, text, size);
        REQUIRE(std::string(text) == whole.substr(0, size - 1));
        REQUIRE(text[size] == '#');
      }
      ++explained;
    }
  }
  CHECK(explained > 1000);
  CHECK(longest > 150);
}
