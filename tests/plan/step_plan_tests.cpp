// SPDX-License-Identifier: Apache-2.0
// step_plan_tests.cpp - the kernel for each step, and checks that its launch is legal
#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <cstdint>
#include <initializer_list>
#include <sstream>
#include <string>
#include <vector>

#include "plan/scene.hpp"
#include "plan/step_plan.hpp"
#include "plan/tuning.hpp"

namespace {

struct Work {
  const char *name;
  rope_norm_type_t norm;
  rope_norm_order_t order;
  rope_norm_extent_t extent;
  bool is_turned;
  bool has_cache;
  bool has_pages = false;  // instead of slots
  int32_t axes = 0;
  bool has_head_weights = false;
  rope_dtype_t cache_code = 0, out_code = 0;  // types of 8 bits: for both caches, and for outputs of q and k
  bool has_words = false;                     // k is also written in place
  bool rounds_first = false, has_amax = false, has_factor = false;
  bool has_written_scales = false;  // for q_out, or for k_cache, or for k_pass_cache
  // q and k, without v, have windows of at most 64 channels, and passes have the channels behind them, or before.
  bool has_pass = false, is_pass_first = false;
  bool has_pass_cache = false;
  int part = 1;  // without a pass, one part of so many is turned

  bool has_codes() const { return cache_code != 0 || out_code != 0; }
};

const Work kWorks[] = {
    {"norm, rotation", ROPE_NORM_RMS, 0, 0, true, false, false},
    {"rotation, norm", ROPE_NORM_RMS, ROPE_NORM_ORDER_AFTER, 0, true, false, false},
    {"norm, rotation, cache", ROPE_NORM_RMS, 0, 0, true, true, false},
    {"rotation, cache", 0, 0, 0, true, true, false},
    {"cache", 0, 0, 0, false, true, false},
    {"norm, cache", ROPE_NORM_RMS, 0, 0, false, true, false},
    {"layer norm, rotation", ROPE_NORM_LAYER, 0, 0, true, false, false},
    {"token norm, rotation", ROPE_NORM_RMS, 0, ROPE_NORM_EXTENT_TOKEN, true, false, false},
    {"rotation, pages", 0, 0, 0, true, true, true},
    {"norm, rotation of axes, pages", ROPE_NORM_RMS, 0, 0, true, true, true, 3},
    {"norm, rotation of 5 axes", ROPE_NORM_RMS, 0, 0, true, false, false, 5},
    {"norm by head, rotation", ROPE_NORM_RMS, 0, 0, true, false, false, 0, true},
};

constexpr rope_dtype_t kE4M3 = ROPE_DTYPE_F8_E4M3, kE5M2 = ROPE_DTYPE_F8_E5M2;

// Types of 4 bytes or less.
const Work kCodeWorks[] = {
    {"rotation, E4M3", 0, 0, 0, true, true, false, 0, false, kE4M3},
    {"norm, rotation, E4M3", ROPE_NORM_RMS, 0, 0, true, true, false, 0, false, kE4M3},
    {"norm, E4M3", ROPE_NORM_RMS, 0, 0, false, true, false, 0, false, kE4M3},
    {"E4M3", 0, 0, 0, false, true, false, 0, false, kE4M3},
    {"norm, rotation, all of E4M3", ROPE_NORM_RMS, 0, 0, true, true, false, 0, false, kE4M3, kE4M3},
    {"rotation, outputs of E4M3", 0, 0, 0, true, false, false, 0, false, 0, kE4M3},
    {"norm, rotation, E5M2", ROPE_NORM_RMS, 0, 0, true, true, false, 0, false, kE5M2},
    {"rotation, outputs of E5M2", 0, 0, 0, true, false, false, 0, false, 0, kE5M2},
    {"norm, rotation, E4M3 beside words", ROPE_NORM_RMS, 0, 0, true, true, false, 0, false, kE4M3, 0, true},
    {"norm, rotation, roundings, E4M3", ROPE_NORM_RMS, 0, 0, true, true, false, 0, false, kE4M3, 0, false, true},
    {"rotation, pages, E4M3", 0, 0, 0, true, true, true, 0, false, kE4M3},
    {"norm, rotation of axes, E4M3", ROPE_NORM_RMS, 0, 0, true, true, true, 3, false, kE4M3},
    {"norm by head, rotation, E4M3", ROPE_NORM_RMS, 0, 0, true, true, false, 0, true, kE4M3},
    {"rotation, norm, E4M3", ROPE_NORM_RMS, ROPE_NORM_ORDER_AFTER, 0, true, true, false, 0, false, kE4M3},
    {"token norm, rotation, E4M3", ROPE_NORM_RMS, 0, ROPE_NORM_EXTENT_TOKEN, true, true, false, 0, false, kE4M3},
    {"rotation, E5M2, outputs of E4M3", 0, 0, 0, true, true, false, 0, false, kE5M2, kE4M3},
    {"rotation, E4M3, amax", 0, 0, 0, true, true, false, 0, false, kE4M3, 0, false, false, true},
    {"rotation, factors, E4M3", 0, 0, 0, true, true, false, 0, false, kE4M3, 0, false, false, false, true},
    {"rotation, factors", 0, 0, 0, true, false, false, 0, false, 0, 0, false, false, false, true},
    {"rotation, E4M3, written scales", 0, 0, 0, true, true, false, 0, false, kE4M3, 0, false, false, false, false,
     true},
    {"rotation, outputs of E4M3, written scales", 0, 0, 0, true, false, false, 0, false, 0, kE4M3, false, false, false,
     false, true},
};

constexpr Work with_pass(Work work, bool is_first = false, bool has_cache = false) {
  work.has_pass = true;
  work.is_pass_first = is_first;
  work.has_pass_cache = has_cache;
  return work;
}

const Work kPassWorks[] = {
    with_pass({"rotation, channels behind it from a pass", 0, 0, 0, true, false}),
    with_pass({"rotation, channels before it from a pass", 0, 0, 0, true, false}, true),
    with_pass({"channels from a pass, nothing turned", 0, 0, 0, false, false}),
    with_pass({"rotation, cache with the pass", 0, 0, 0, true, true}, true),
    with_pass({"rotation, pages with the pass", 0, 0, 0, true, true, true}, true),
    with_pass({"rotation, cache of its own for the pass", 0, 0, 0, true, true}, true, true),
    with_pass({"cache of its own for the pass, nothing turned", 0, 0, 0, false, true}, true, true),
    with_pass({"norm over window and pass, rotation", ROPE_NORM_RMS, 0, 0, true, false}),
    with_pass({"rotation, pass, factors", 0, 0, 0, true, false, false, 0, false, 0, 0, false, false, false, true}),
    with_pass({"rotation, E4M3 with the pass", 0, 0, 0, true, true, false, 0, false, kE4M3, kE4M3}, true),
    with_pass({"rotation, E4M3 of its own for the pass", 0, 0, 0, true, true, false, 0, false, kE4M3}, true, true),
    with_pass({"rotation, pass, E4M3, amax", 0, 0, 0, true, true, false, 0, false, kE4M3, 0, false, false, true}, true),
    with_pass({"rotation, E4M3 of its own for the pass, written scales", 0, 0, 0, true, true, false, 0, false, kE4M3, 0,
               false, false, false, false, true},
              true, true),
};

constexpr Work with_part(Work work, int part) {
  work.part = part;
  return work;
}

const Work kWindowWorks[] = {
    with_part({"norm, rotation of a half, cache", ROPE_NORM_RMS, 0, 0, true, true}, 2),
    with_part({"norm, rotation of a quarter, cache", ROPE_NORM_RMS, 0, 0, true, true}, 4),
    with_part({"rotation of a half, norm", ROPE_NORM_RMS, ROPE_NORM_ORDER_AFTER, 0, true, false}, 2),
    with_part({"norm, rotation of a half, pages", ROPE_NORM_RMS, 0, 0, true, true, true}, 2),
    with_part({"norm, rotation of a half, E4M3", ROPE_NORM_RMS, 0, 0, true, true, false, 0, false, kE4M3, kE4M3}, 2),
    with_part({"norm, rotation of a half, E4M3, amax", ROPE_NORM_RMS, 0, 0, true, true, false, 0, false, kE4M3, 0,
               false, false, true},
              2),
};

constexpr int32_t kHeadDims[] = {2, 40, 64, 80, 96, 128, 192, 256, 512, 576, 1024};

struct StepSizes {
  int64_t tokens;
  int64_t heads[3];
  int32_t head_dim;
};

uintptr_t address_of(int number) {
  return (uintptr_t{1} << 45) + (static_cast<uintptr_t>(number) << 43);
}

// q in place, k and v in place or only cached, all compact. With a pass, q and k have outputs, unless k is only cached.
void make_step(const Work &work, rope_dtype_t dtype, rope_layout_t layout, const StepSizes &sizes, Scene *scene) {
  rope_config_t config = ROPE_CONFIG_INIT;
  config.device = ROPE_DEVICE_CUDA;
  config.dtype = dtype;
  config.layout = layout;
  config.style = ROPE_STYLE_HALF;
  config.head_dim = sizes.head_dim;
  const int32_t passed = work.has_pass ? sizes.head_dim - std::min(64, sizes.head_dim / 4 * 2) : 0;
  config.rotary_dim = sizes.head_dim / work.part - passed;
  config.rotary_offset = work.is_pass_first ? passed : 0;
  config.theta = 10000;
  config.norm = work.norm;
  config.norm_order = work.order;
  config.norm_extent = work.extent;
  config.norm_eps = work.norm != 0 ? 1e-6 : 0;
  config.quant_rounding = work.rounds_first ? ROPE_QUANT_ROUND_FIRST : 0;
  std::vector<int32_t> pair_axis;
  config.num_axes = work.axes;
  for (int pair = 0; pair < sizes.head_dim / 2 && work.axes > 0; ++pair) pair_axis.push_back(pair % work.axes);
  if (work.axes > 0) config.pair_axis = pair_axis.data();
  scene->geometry = {};
  REQUIRE(rope::make_rope_geometry("test", config, &scene->geometry) == ROPE_STATUS_SUCCESS);
  const bool is_thd = layout == ROPE_LAYOUT_THD;
  const auto tensor_of = [&](rope_dtype_t of, int number, int64_t heads, int64_t channels) {
    const int64_t tokens = sizes.tokens;
    const std::vector<int64_t> shape = is_thd                       ? std::vector<int64_t>{tokens, heads, channels}
                                       : layout == ROPE_LAYOUT_BSHD ? std::vector<int64_t>{2, tokens, heads, channels}
                                       : layout == ROPE_LAYOUT_SBHD ? std::vector<int64_t>{tokens, 2, heads, channels}
                                                                    : std::vector<int64_t>{2, heads, tokens, channels};
    return compact_tensor(address_of(number), of, shape);
  };
  const auto tensor = [&](int number, int64_t heads) {
    return tensor_of(dtype, number, heads, sizes.head_dim - passed);
  };
  rope_norm_args_t norm = ROPE_NORM_ARGS_INIT;
  rope_cache_args_t cache = ROPE_CACHE_ARGS_INIT;
  scene->args = ROPE_ARGS_INIT;
  scene->args.q = tensor(0, sizes.heads[0]);
  scene->args.k = tensor(1, sizes.heads[1]);
  if (!work.has_pass) scene->args.v = tensor(2, sizes.heads[2]);
  if (work.has_words) scene->args.k_out = scene->args.k;
  if (work.out_code != 0 || work.has_pass) {
    const rope_dtype_t out = work.out_code != 0 ? work.out_code : dtype;
    scene->args.q_out = tensor_of(out, 8, sizes.heads[0], sizes.head_dim);
    if (work.out_code != 0 || !work.has_cache) scene->args.k_out = tensor_of(out, 9, sizes.heads[1], sizes.head_dim);
  }
  scene->args.flags = work.is_turned ? ROPE_FLAG_V_UNROTATED : ROPE_FLAG_UNROTATED;
  if (work.norm != 0) scene->args.norm = &norm;
  if (work.has_head_weights) norm.q_weight = compact_tensor(address_of(6), dtype, {sizes.heads[0], sizes.head_dim});
  if (work.has_cache) {
    const int64_t pages = 7 + sizes.tokens / 8;
    const rope_dtype_t cached = work.cache_code != 0 ? work.cache_code : dtype;
    const auto cache_of = [&](int number, rope_dtype_t of, int64_t heads, int64_t channels) {
      return compact_tensor(address_of(number), of, {pages, 16, heads, channels});
    };
    const int32_t apart = work.has_pass_cache ? passed : 0;
    cache.k_cache = cache_of(3, cached, sizes.heads[1], sizes.head_dim - apart);
    if (!work.has_pass) cache.v_cache = cache_of(4, cached, sizes.heads[2], sizes.head_dim);
    if (work.has_pass_cache) cache.k_pass_cache = cache_of(4, cached, sizes.heads[1], passed);
    if (work.has_written_scales) {
      (work.has_pass_cache ? cache.k_pass_scales : cache.k_scales) = cache_of(13, ROPE_DTYPE_F32, sizes.heads[1], 1);
    }
    const std::vector<int64_t> of_tokens =
        is_thd ? std::vector<int64_t>{sizes.tokens} : std::vector<int64_t>{2, sizes.tokens};
    if (work.has_pages) {
      cache.page_table = compact_tensor(address_of(5), ROPE_DTYPE_I32, {is_thd ? 1 : 2, pages});
      cache.positions = compact_tensor(address_of(7), ROPE_DTYPE_I32, of_tokens);
    } else {
      cache.slots = compact_tensor(address_of(5), ROPE_DTYPE_I64, of_tokens);
    }
    scene->args.cache = &cache;
  }
  rope_quant_args_t quant = ROPE_QUANT_ARGS_INIT;
  if (work.has_codes()) {
    const auto scale = [&](int number) { return compact_tensor(address_of(number), ROPE_DTYPE_F32, {sizes.heads[1]}); };
    const bool has_k_scales = work.has_written_scales && work.has_cache;
    if (!has_k_scales || work.has_pass_cache) quant.k_scale = scale(10);
    if (!has_k_scales && work.has_pass_cache) quant.k_pass_scale = scale(15);
    if (work.has_written_scales && work.out_code != 0) {
      quant.q_scales_out = scene->args.q_out;
      quant.q_scales_out.data = reinterpret_cast<void *>(address_of(14));
      quant.q_scales_out.shape[quant.q_scales_out.ndim - 1] = 1;
      quant.q_scales_out.dtype = ROPE_DTYPE_F8_E8M0;
    }
    if (work.has_amax) quant.amax_out = compact_tensor(address_of(11), ROPE_DTYPE_F32, {3});
    scene->args.quant = &quant;
  }
  rope_input_args_t input = ROPE_INPUT_ARGS_INIT;
  if (work.has_factor) input.q_row_factor = compact_tensor(address_of(12), ROPE_DTYPE_F32, {sizes.tokens});
  if (work.has_pass) {
    input.q_pass = tensor_of(dtype, 16, sizes.heads[0], passed);
    input.k_pass = tensor_of(dtype, 17, sizes.heads[1], passed);
  }
  if (work.has_factor || work.has_pass) scene->args.input = &input;
  const rope_status_t status =
      rope::make_rope_problem("test", scene->geometry, scene->args, false, &scene->problem, &scene->step);
  INFO(rope::last_error());
  REQUIRE(status == ROPE_STATUS_SUCCESS);
  scene->args.norm = nullptr;
  scene->args.cache = nullptr;
  scene->args.quant = nullptr;
  scene->args.input = nullptr;
}

char letter_of(rope::StepKernel kernel) {
  switch (kernel) {
    case rope::StepKernel::kWarp:
    case rope::StepKernel::kShort:
      return 's';
    case rope::StepKernel::kShortMore:
      return 'm';
    case rope::StepKernel::kLong:
      return 'l';
    case rope::StepKernel::kLongWindow:
      return 'w';
    case rope::StepKernel::kShortRows:
    case rope::StepKernel::kLongRows:
      return 'r';
    default:
      return '-';
  }
}

const char *name_of(rope_dtype_t dtype) {
  return dtype == ROPE_DTYPE_F32 ? "F32" : dtype == ROPE_DTYPE_F16 ? "F16" : dtype == ROPE_DTYPE_BF16 ? "BF16" : "F64";
}

// The letter of each head_dim, first with one token, then with 16384. Layouts make no difference.
std::string letters_of(const Work &work, rope_dtype_t dtype, bool has_letter_for_more) {
  Scene scene;
  std::string letters;
  for (const int64_t tokens : {1, 16384}) {
    for (const int32_t head_dim : kHeadDims) {
      if ((work.has_pass || work.part > 1) && head_dim == 2) continue;
      std::string of_layouts;
      for (const rope_layout_t layout : {ROPE_LAYOUT_BSHD, ROPE_LAYOUT_SBHD, ROPE_LAYOUT_BHSD, ROPE_LAYOUT_THD}) {
        make_step(work, dtype, layout, {tokens, {8, 2, 2}, head_dim}, &scene);
        rope::RopePlan plan = {};
        REQUIRE(rope::plan_rope("test", scene.problem, kH200, &plan) == ROPE_STATUS_SUCCESS);
        const bool is_general = plan.step.kernel == rope::StepKernel::kGeneral;
        CHECK((is_general || plan.step.has_codes() == (work.has_codes() || work.has_factor)));
        const bool has_more = plan.step.has_more || plan.step.codes == rope::StepCodes::kAll;
        const bool is_long = plan.step.kernel == rope::StepKernel::kLong;
        of_layouts += has_letter_for_more && is_long && has_more ? 'L' : letter_of(plan.step.kernel);
      }
      INFO(work.name << ", head_dim " << head_dim << ", " << tokens << " tokens: " << of_layouts);
      CHECK(of_layouts == std::string(4, of_layouts[0]));
      letters += of_layouts[0];
    }
    if (tokens == 1) letters += ' ';
  }
  return letters;
}

// A line for each kind of step and type of data. F64 has no codes.
template <size_t N>
std::string table_of(const Work (&works)[N], std::initializer_list<rope_dtype_t> dtypes, bool has_letter_for_more) {
  std::ostringstream table;
  for (const Work &work : works) {
    for (const rope_dtype_t dtype : dtypes) {
      if (work.has_codes() && dtype == ROPE_DTYPE_F64) continue;
      table << work.name << " " << name_of(dtype) << ": " << letters_of(work, dtype, has_letter_for_more) << "\n";
    }
  }
  return table.str();
}

constexpr std::initializer_list<rope_dtype_t> kTypes = {ROPE_DTYPE_F32, ROPE_DTYPE_F16, ROPE_DTYPE_BF16,
                                                        ROPE_DTYPE_F64};

}  // namespace

// Each letter stands for a head_dim of kHeadDims, first with one token, then with 16384. s and l are the kernels of
// whole heads for short and for long launches, m is the kernel for short launches with more features, r are the kernels
// of rows, and - is the general kernel. Layouts make no difference, and nothing is refused.
TEST_CASE("a table says which kernel serves which step", "[step plan]") {
  CHECK(table_of(kWorks, kTypes, false) == R"(norm, rotation F32: -sssssll--- -rllllll---
norm, rotation F16: -rsssslll-- --lrlllll--
norm, rotation BF16: -rsssslll-- --lrlllll--
norm, rotation F64: ----------- -----------
rotation, norm F32: -mmmmmrr--- -rrrrrrr---
rotation, norm F16: -rmmmmrrr-- --rrrrrrr--
rotation, norm BF16: -rmmmmrrr-- --rrrrrrr--
rotation, norm F64: ----------- -----------
norm, rotation, cache F32: -sssssll--- -rllllll---
norm, rotation, cache F16: -rsssslll-- --lrlllll--
norm, rotation, cache BF16: -rsssslll-- --lrlllll--
norm, rotation, cache F64: ----------- -----------
rotation, cache F32: -sssssll--- -rllllll---
rotation, cache F16: -rsssslll-- --lrlllll--
rotation, cache BF16: -rsssslll-- --lrlllll--
rotation, cache F64: ----------- -----------
cache F32: -sssssll--- -rllllll---
cache F16: -rsssslll-- --lrlllll--
cache BF16: -rsssslll-- --lrlllll--
cache F64: ----------- -----------
norm, cache F32: -sssssll--- -rllllll---
norm, cache F16: -rsssslll-- --lrlllll--
norm, cache BF16: -rsssslll-- --lrlllll--
norm, cache F64: ----------- -----------
layer norm, rotation F32: -mmmmmrr--- -rrrrrrr---
layer norm, rotation F16: -rmmmmrrr-- --rrrrrrr--
layer norm, rotation BF16: -rmmmmrrr-- --rrrrrrr--
layer norm, rotation F64: ----------- -----------
token norm, rotation F32: -rrrrrrr--- -rrrrrrr---
token norm, rotation F16: --rrrrrrr-- --rrrrrrr--
token norm, rotation BF16: --rrrrrrr-- --rrrrrrr--
token norm, rotation F64: ----------- -----------
rotation, pages F32: -mmmmmll--- -rllllll---
rotation, pages F16: -rmmmmlll-- --lrlllll--
rotation, pages BF16: -rmmmmlll-- --lrlllll--
rotation, pages F64: ----------- -----------
norm, rotation of axes, pages F32: -mmmmmll--- -rllllll---
norm, rotation of axes, pages F16: -rmmmmlll-- --lrlllll--
norm, rotation of axes, pages BF16: -rmmmmlll-- --lrlllll--
norm, rotation of axes, pages F64: ----------- -----------
norm, rotation of 5 axes F32: ----------- -----------
norm, rotation of 5 axes F16: ----------- -----------
norm, rotation of 5 axes BF16: ----------- -----------
norm, rotation of 5 axes F64: ----------- -----------
norm by head, rotation F32: -mmmmmrr--- -rrrrrrr---
norm by head, rotation F16: -rmmmmrrr-- --rrrrrrr--
norm by head, rotation BF16: -rmmmmrrr-- --rrrrrrr--
norm by head, rotation F64: ----------- -----------
)");
}

// Letters for head_dim and tokens as in the table of steps without codes. L is the kernel of long launches with more
// features.
TEST_CASE("a table says which kernel serves which step with codes or factors", "[step plan]") {
  CHECK(table_of(kCodeWorks, kTypes, true) == R"(rotation, E4M3 F32: ----------- -----------
rotation, E4M3 F16: --sssslll-- --lrlllll--
rotation, E4M3 BF16: --sssslll-- --lrlllll--
norm, rotation, E4M3 F32: ----------- -----------
norm, rotation, E4M3 F16: --sssslll-- --lrlllll--
norm, rotation, E4M3 BF16: --sssslll-- --lrlllll--
norm, E4M3 F32: ----------- -----------
norm, E4M3 F16: --sssslll-- --lrlllll--
norm, E4M3 BF16: --sssslll-- --lrlllll--
E4M3 F32: ----------- -----------
E4M3 F16: --sssslll-- --lrlllll--
E4M3 BF16: --sssslll-- --lrlllll--
norm, rotation, all of E4M3 F32: ----------- -----------
norm, rotation, all of E4M3 F16: --sssslll-- --lrlllll--
norm, rotation, all of E4M3 BF16: --sssslll-- --lrlllll--
rotation, outputs of E4M3 F32: ----------- -----------
rotation, outputs of E4M3 F16: --sssslll-- --lrlllll--
rotation, outputs of E4M3 BF16: --sssslll-- --lrlllll--
norm, rotation, E5M2 F32: ----------- -----------
norm, rotation, E5M2 F16: --LrLLLLL-- --LrLLLLL--
norm, rotation, E5M2 BF16: --LrLLLLL-- --LrLLLLL--
rotation, outputs of E5M2 F32: ----------- -----------
rotation, outputs of E5M2 F16: --LrLLLLL-- --LrLLLLL--
rotation, outputs of E5M2 BF16: --LrLLLLL-- --LrLLLLL--
norm, rotation, E4M3 beside words F32: ----------- -----------
norm, rotation, E4M3 beside words F16: --LrLLLLL-- --LrLLLLL--
norm, rotation, E4M3 beside words BF16: --LrLLLLL-- --LrLLLLL--
norm, rotation, roundings, E4M3 F32: ----------- -----------
norm, rotation, roundings, E4M3 F16: --LrLLLLL-- --LrLLLLL--
norm, rotation, roundings, E4M3 BF16: --LrLLLLL-- --LrLLLLL--
rotation, pages, E4M3 F32: ----------- -----------
rotation, pages, E4M3 F16: --LrLLLLL-- --LrLLLLL--
rotation, pages, E4M3 BF16: --LrLLLLL-- --LrLLLLL--
norm, rotation of axes, E4M3 F32: ----------- -----------
norm, rotation of axes, E4M3 F16: --mmmmLLL-- --LrLLLLL--
norm, rotation of axes, E4M3 BF16: --mmmmLLL-- --LrLLLLL--
norm by head, rotation, E4M3 F32: ----------- -----------
norm by head, rotation, E4M3 F16: --mmmmrrr-- --rrrrrrr--
norm by head, rotation, E4M3 BF16: --mmmmrrr-- --rrrrrrr--
rotation, norm, E4M3 F32: ----------- -----------
rotation, norm, E4M3 F16: --mmmmrrr-- --rrrrrrr--
rotation, norm, E4M3 BF16: --mmmmrrr-- --rrrrrrr--
token norm, rotation, E4M3 F32: ----------- -----------
token norm, rotation, E4M3 F16: --rrrrrrr-- --rrrrrrr--
token norm, rotation, E4M3 BF16: --rrrrrrr-- --rrrrrrr--
rotation, E5M2, outputs of E4M3 F32: ----------- -----------
rotation, E5M2, outputs of E4M3 F16: ----------- -----------
rotation, E5M2, outputs of E4M3 BF16: ----------- -----------
rotation, E4M3, amax F32: ----------- -----------
rotation, E4M3, amax F16: --LrLLLLL-- --LrLLLLL--
rotation, E4M3, amax BF16: --LrLLLLL-- --LrLLLLL--
rotation, factors, E4M3 F32: ----------- -----------
rotation, factors, E4M3 F16: --LrLLLLL-- --LrLLLLL--
rotation, factors, E4M3 BF16: --LrLLLLL-- --LrLLLLL--
rotation, factors F32: ----------- -----------
rotation, factors F16: --LrLLLLL-- --LrLLLLL--
rotation, factors BF16: --LrLLLLL-- --LrLLLLL--
rotation, factors F64: ----------- -----------
rotation, E4M3, written scales F32: ----------- -----------
rotation, E4M3, written scales F16: --lrlllll-- --lrlllll--
rotation, E4M3, written scales BF16: --lrlllll-- --lrlllll--
rotation, outputs of E4M3, written scales F32: ----------- -----------
rotation, outputs of E4M3, written scales F16: --lrlllll-- --lrlllll--
rotation, outputs of E4M3, written scales BF16: --lrlllll-- --lrlllll--
)");
}

// Letters as in the table of steps with codes, from a head_dim of 40 on. Windows have 20, 32, 40 and 48 channels, and
// from a head_dim of 128 on 64. The kernels of whole heads need passes that are a multiple of the window, and for
// written scales a power of two of it.
TEST_CASE("a table says which kernel serves which step with channels from another tensor", "[step plan]") {
  CHECK(table_of(kPassWorks, kTypes, true) == R"(rotation, channels behind it from a pass F32: -sssssssss -l-lllllll
rotation, channels behind it from a pass F16: -s-sssssss ----llllll
rotation, channels behind it from a pass BF16: -s-sssssss ----llllll
rotation, channels behind it from a pass F64: ---------- ----------
rotation, channels before it from a pass F32: -sssssssss -l-lllllll
rotation, channels before it from a pass F16: -s-sssssss ----llllll
rotation, channels before it from a pass BF16: -s-sssssss ----llllll
rotation, channels before it from a pass F64: ---------- ----------
channels from a pass, nothing turned F32: -sssssssss -l-lllllll
channels from a pass, nothing turned F16: -s-sssssss ----llllll
channels from a pass, nothing turned BF16: -s-sssssss ----llllll
channels from a pass, nothing turned F64: ---------- ----------
rotation, cache with the pass F32: -sssssssss -l-lllllll
rotation, cache with the pass F16: -s-sssssss ----llllll
rotation, cache with the pass BF16: -s-sssssss ----llllll
rotation, cache with the pass F64: ---------- ----------
rotation, pages with the pass F32: -mmmmmmmmm -L-LLLLLLL
rotation, pages with the pass F16: -m-mmmmmmm ----LLLLLL
rotation, pages with the pass BF16: -m-mmmmmmm ----LLLLLL
rotation, pages with the pass F64: ---------- ----------
rotation, cache of its own for the pass F32: -sssssssss -l-lllllll
rotation, cache of its own for the pass F16: -s-sssssss ----llllll
rotation, cache of its own for the pass BF16: -s-sssssss ----llllll
rotation, cache of its own for the pass F64: ---------- ----------
cache of its own for the pass, nothing turned F32: -sssssssss -l-lllllll
cache of its own for the pass, nothing turned F16: -s-sssssss ----llllll
cache of its own for the pass, nothing turned BF16: -s-sssssss ----llllll
cache of its own for the pass, nothing turned F64: ---------- ----------
norm over window and pass, rotation F32: ---------- ----------
norm over window and pass, rotation F16: ---------- ----------
norm over window and pass, rotation BF16: ---------- ----------
norm over window and pass, rotation F64: ---------- ----------
rotation, pass, factors F32: ---------- ----------
rotation, pass, factors F16: ----LLLLLL ----LLLLLL
rotation, pass, factors BF16: ----LLLLLL ----LLLLLL
rotation, pass, factors F64: ---------- ----------
rotation, E4M3 with the pass F32: ---------- ----------
rotation, E4M3 with the pass F16: -s-sssssss ----llllll
rotation, E4M3 with the pass BF16: -s-sssssss ----llllll
rotation, E4M3 of its own for the pass F32: ---------- ----------
rotation, E4M3 of its own for the pass F16: -s-sssssss ----llllll
rotation, E4M3 of its own for the pass BF16: -s-sssssss ----llllll
rotation, pass, E4M3, amax F32: ---------- ----------
rotation, pass, E4M3, amax F16: ----LLLLLL ----LLLLLL
rotation, pass, E4M3, amax BF16: ----LLLLLL ----LLLLLL
rotation, E4M3 of its own for the pass, written scales F32: ---------- ----------
rotation, E4M3 of its own for the pass, written scales F16: ----ll--l- ----ll--l-
rotation, E4M3 of its own for the pass, written scales BF16: ----ll--l- ----ll--l-
)");
}

// Letters from a head_dim of 40 on; w is kLongWindow.
TEST_CASE("a table says which kernel serves normed heads with a window", "[step plan]") {
  CHECK(table_of(kWindowWorks, {ROPE_DTYPE_F32, ROPE_DTYPE_BF16}, true) ==
        R"(norm, rotation of a half, cache F32: rmrrmrr--- -rrrrrr---
norm, rotation of a half, cache BF16: -mrrmrmr-- -w-rwrww--
norm, rotation of a quarter, cache F32: -mrrmrr--- -r-rrrr---
norm, rotation of a quarter, cache BF16: -m-rmrmr-- -r--wrww--
rotation of a half, norm F32: rmrrmrr--- -rrrrrr---
rotation of a half, norm BF16: -mrrmrmr-- -r-rrrrr--
norm, rotation of a half, pages F32: rmrrmrr--- -rrrrrr---
norm, rotation of a half, pages BF16: -mrrmrmr-- -r-rrrrr--
norm, rotation of a half, E4M3 F32: ---------- ----------
norm, rotation of a half, E4M3 BF16: -m-rmrmr-- -w-rwrww--
norm, rotation of a half, E4M3, amax F32: ---------- ----------
norm, rotation of a half, E4M3, amax BF16: -r-rrrrr-- -r-rrrrr--
)");
}

TEST_CASE("steps with codes of heads with a turned part and a part that is not", "[step plan]") {
  Scene scene;
  const auto letter_with = [&](int64_t tokens, auto change) {
    make_step(kCodeWorks[0], ROPE_DTYPE_BF16, ROPE_LAYOUT_THD, {tokens, {8, 2, 2}, 128}, &scene);
    change();
    rope::RopePlan plan = {};
    REQUIRE(rope::plan_rope("test", scene.problem, kH200, &plan) == ROPE_STATUS_SUCCESS);
    return letter_of(plan.step.kernel);
  };
  // If the channels beside the window lie on both sides of it, or are no multiple of it, there are no pieces. Kernels
  // of rows take such heads if their windows begin with a vector.
  for (const int64_t tokens : {1, 16384}) {
    const auto letter_of_window = [&](int channels, int begin) {
      return letter_with(tokens, [&] {
        scene.geometry.rotary_dim = channels;
        scene.geometry.in_distance = scene.geometry.out_distance = channels / 2;
        for (rope::StepTensor &tensor : scene.step.tensor) tensor.window_begin = begin;
      });
    };
    CHECK(letter_of_window(64, 0) == (tokens == 1 ? 's' : 'l'));
    CHECK(letter_of_window(64, 64) == (tokens == 1 ? 's' : 'l'));
    CHECK(letter_of_window(64, 32) == 'r');
    CHECK(letter_of_window(96, 0) == 'r');
    CHECK(letter_of_window(96, 4) == '-');
  }
  // Vectors of codes have half the bytes of vectors of words.
  rope::CacheView &cache = scene.step.tensor[1].cache;
  CHECK(letter_with(1, [&] { cache.data += 4; }) == 's');
  CHECK(letter_with(1, [&] { cache.data += 2; }) == '-');
  CHECK(letter_with(16384, [&] { cache.data += 8; }) == 'l');
  CHECK(letter_with(16384, [&] { cache.data += 4; }) == '-');
  CHECK(letter_with(1, [&] { cache.entry_stride += 4; }) == 's');
  CHECK(letter_with(1, [&] { cache.entry_stride += 2; }) == '-');
  CHECK(letter_with(1, [&] { scene.step.tensor[1].scale.head_stride = int64_t{1} << 40; }) == '-');
}

TEST_CASE("q, k and v that are all cut into window and others have more pieces than the kernels of whole heads take",
          "[step plan]") {
  for (const rope_style_t style : {ROPE_STYLE_HALF, ROPE_STYLE_INTERLEAVED}) {
    for (const int32_t head_dim : {128, 192}) {
      for (const int64_t tokens : {1, 64, 256, 16384}) {
        for (const int tensors : {2, 3}) {
          Scene scene;
          rope_config_t config = some_config(ROPE_DTYPE_BF16, head_dim);
          config.layout = ROPE_LAYOUT_THD;
          config.style = style;
          config.rotary_dim = 64;
          REQUIRE(rope::make_rope_geometry("test", config, &scene.geometry) == ROPE_STATUS_SUCCESS);
          scene.args = ROPE_ARGS_INIT;
          rope_tensor_t *const in[] = {&scene.args.q, &scene.args.k, &scene.args.v};
          rope_tensor_t *const out[] = {&scene.args.q_out, &scene.args.k_out, &scene.args.v_out};
          for (int i = 0; i < tensors; ++i) {
            *in[i] = compact_tensor(address_of(i), ROPE_DTYPE_BF16, {tokens, 8, head_dim});
            *out[i] = compact_tensor(address_of(8 + i), kE4M3, {tokens, 8, head_dim});
          }
          REQUIRE(rope::make_rope_problem("test", scene.geometry, scene.args, false, &scene.problem, &scene.step) ==
                  ROPE_STATUS_SUCCESS);
          rope::RopePlan plan = {};
          REQUIRE(rope::plan_rope("test", scene.problem, kH200, &plan) == ROPE_STATUS_SUCCESS);
          INFO(tensors << " tensors, head_dim " << head_dim << ", " << tokens << " tokens");
          CHECK(plan.heads.pieces.count() == (tensors == 2 ? 4 : rope::kMaxStepPieces));
          CHECK(letter_of(plan.step.kernel) == (tensors == 3 ? 'r' : tokens <= 256 ? 's' : 'l'));
          CHECK((explain(scene, kH200).find(": long rows angles codes kernel") != std::string::npos) == (tensors == 3));
        }
      }
    }
  }
}

TEST_CASE("codes, factors and passes of a tensor without heads select no kernel", "[step plan]") {
  for (const rope_dtype_t dtype : {ROPE_DTYPE_F32, ROPE_DTYPE_BF16}) {
    for (const int64_t tokens : {1, 16384}) {
      Scene scene;
      Work work = {"rotation, factors, outputs of E4M3", 0, 0, 0, true, false, false, 0, false, 0, kE4M3};
      work.has_factor = true;
      make_step(work, dtype, ROPE_LAYOUT_THD, {tokens, {0, 0, 8}, 128}, &scene);
      rope::RopePlan plan = {};
      REQUIRE(rope::plan_rope("test", scene.problem, kH200, &plan) == ROPE_STATUS_SUCCESS);
      INFO(name_of(dtype) << ", " << tokens << " tokens");
      CHECK(!scene.step.has_codes);
      CHECK(!scene.step.has_factor);
      CHECK(!plan.step.has_codes());
      CHECK(explain(scene, kH200).find("codes") == std::string::npos);
    }
  }
}

TEST_CASE("long launches of heads in one part prefetch before each turn but the last if they make codes",
          "[step plan]") {
  Scene scene;
  const auto plan_of = [&](const Work &work, int64_t tokens, bool has_parts) {
    make_step(work, ROPE_DTYPE_BF16, ROPE_LAYOUT_THD, {tokens, {32, 8, 8}, 128}, &scene);
    scene.step.has_parts = has_parts;
    rope::RopePlan plan = {};
    REQUIRE(rope::plan_rope("test", scene.problem, kH200, &plan) == ROPE_STATUS_SUCCESS);
    REQUIRE(plan.step.kernel == rope::StepKernel::kLong);
    return plan;
  };
  const rope::RopePlan plan = plan_of(kCodeWorks[0], 16384, false);
  CHECK(plan.heads.turns > 1);
  CHECK(plan.heads.prefetches);
  CHECK(!plan_of(kCodeWorks[0], 512, false).heads.prefetches);
  CHECK(!plan_of(kCodeWorks[0], 16384, true).heads.prefetches);
  CHECK(!plan_of(kWorks[0], 16384, false).heads.prefetches);
}

// Backward of q and k through norms with a separate input, with `runs` runs for the sums of q's weights and of k's.
void make_gradient(const Work &work, rope_dtype_t dtype, const StepSizes &sizes, int64_t q_runs, int64_t k_runs,
                   Scene *scene) {
  make_step(work, dtype, ROPE_LAYOUT_BSHD, sizes, scene);
  scene->step.is_norm_gradient = true;
  for (int i = 0; i < 2; ++i) {
    rope::StepTensor &tensor = scene->step.tensor[i];
    tensor.norm_in.data = reinterpret_cast<char *>(address_of(16 + i));
    std::copy_n(scene->problem.tensor[i].in_stride, rope::kNumAxes, tensor.norm_in.stride);
    tensor.runs = i == 0 ? q_runs : k_runs;
    if (tensor.runs > 0) {
      tensor.weight_sums = {reinterpret_cast<char *>(address_of(14 + i)), sizes.head_dim, 0, 1, false};
    }
  }
}

TEST_CASE("the general kernel has a block for each run of tokens, with room for sums and heads", "[step plan]") {
  Scene scene;
  for (const rope_dtype_t dtype : {ROPE_DTYPE_F32, ROPE_DTYPE_F64}) {
    for (const int32_t head_dim : {64, 128, 1024}) {
      for (const int64_t heads : {1, 8, 512}) {
        make_gradient({"norm, rotation", ROPE_NORM_RMS, 0, 0, true, false}, dtype, {100, {heads, 2, 2}, head_dim}, 7, 0,
                      &scene);
        rope::RopePlan plan = {};
        REQUIRE(rope::plan_rope("test", scene.problem, kH200, &plan) == ROPE_STATUS_SUCCESS);
        INFO(name_of(dtype) << ", head_dim " << head_dim << ", " << heads << " heads");
        CHECK(plan.step.kernel == rope::StepKernel::kNormGradient);
        CHECK(plan.grid_x == 7 + 200 + 200);  // k and v have no sums: each token is a run
        const int64_t number = dtype == ROPE_DTYPE_F64 ? 8 : 4, row = 3 * head_dim * number;
        const int64_t kept = plan.general.kept_channels[0] * heads * number;
        CHECK(plan.general.kept_channels[0] >= 1);
        CHECK(plan.general.kept_channels[0] <= head_dim);
        CHECK(plan.general.warps >= 1);
        CHECK(plan.shared_bytes >= plan.general.warps * row + kept);
        CHECK(plan.shared_bytes <= 48 * 1024);
      }
    }
  }
}

// The shared memory of norm_gradient_rows.cuh, for heads of 128 channels.
void check_gradient_memory(const rope::RopePlan &plan, bool is_of_token, bool has_table, uint32_t part_sums) {
  const rope::StepGradients &gradients = plan.gradients;
  uint32_t rows = 0, tokens = 0;
  for (int i = 0; i < gradients.group.count(); ++i) {
    rows = std::max(rows, gradients.group[i].rows);
    tokens = std::max(tokens, gradients.group[i].tokens_of_run);
  }
  const uint32_t log2 = gradients.shared_tokens_log2, units = 128 / 2 / 8, unit_bytes = 80;
  CHECK(gradients.shared_angles == rows * units << log2);
  CHECK(gradients.shared_lost == (has_table ? ((rows << log2) + 3) / 4 * 4 : 0));
  const uint32_t angles = gradients.shared_angles * unit_bytes, limit = rope::kStepTuning.gradient_angle_bytes;
  const uint32_t others = 320 * 64 + gradients.weight_units * unit_bytes + plan.threads / 32 * 256 + part_sums * 4 +
                          (is_of_token ? 2 * plan.threads * 4 : 0);
  CHECK(plan.shared_bytes == others + angles + gradients.shared_lost * 4);
  CHECK(plan.shared_bytes <= 48 * 1024);
  CHECK((log2 == 0 || angles <= limit));
  // As many tokens as exist and fit.
  CHECK((1u << log2 >= tokens || 2 * angles > limit || plan.shared_bytes + angles > 48 * 1024));
  CHECK((log2 == 0 || 1u << (log2 - 1) < tokens));
}

TEST_CASE("gradients of norms of 16 bits: blocks have runs of all heads, in parts where these are many",
          "[step plan]") {
  Scene scene;
  struct Expected {
    int64_t heads[2];
    int64_t runs[2];
    int groups;
    uint32_t threads, row_threads, rows, parts;  // threads and rows of a block, and of q's group
    uint32_t k_first;                            // first thread of k in a row
  };
  const Expected all[] = {
      {{32, 8}, {7, 7}, 1, 320, 320, 1, 1, 256}, {{32, 8}, {7, 0}, 1, 320, 320, 1, 1, 256},
      {{32, 8}, {0, 0}, 1, 320, 320, 1, 1, 256}, {{32, 8}, {7, 9}, 2, 256, 256, 1, 1, 0},
      {{4, 2}, {7, 7}, 1, 256, 48, 5, 1, 32},    {{64, 8}, {7, 7}, 2, 256, 256, 1, 2, 0},
      {{512, 8}, {7, 7}, 2, 256, 256, 1, 16, 0}, {{1, 1}, {200, 200}, 1, 256, 16, 16, 1, 8},
      {{40, 1}, {7, 7}, 2, 320, 320, 1, 1, 0},   {{65, 1}, {1, 1}, 2, 256, 256, 1, 3, 0},
  };
  for (const Expected &expected : all) {
    for (const bool has_table : {false, true}) {
      for (const bool has_head_weights : {false, true}) {
        Work work = {"norm, rotation", ROPE_NORM_RMS, 0, 0, true, false};
        work.has_head_weights = has_head_weights;
        make_gradient(work, ROPE_DTYPE_BF16, {100, {expected.heads[0], expected.heads[1], 2}, 128}, expected.runs[0],
                      expected.runs[1], &scene);
        if (has_table) {
          scene.problem.angles = rope::AngleSource::kTable;
          scene.problem.table.dtype = ROPE_DTYPE_F32;
          scene.problem.table.width = 64;
        }
        rope::RopePlan plan = {};
        REQUIRE(rope::plan_rope("test", scene.problem, kH200, &plan) == ROPE_STATUS_SUCCESS);
        INFO(expected.heads[0] << " and " << expected.heads[1] << " heads, " << expected.runs[0] << " and "
                               << expected.runs[1] << " runs, table " << has_table << ", weights of heads "
                               << has_head_weights);
        // Weights of this many heads, together with sums of this many parts, leave no room for angles.
        const bool has_room = !has_head_weights || (expected.heads[0] != 40 && expected.heads[0] != 512);
        CHECK((plan.step.kernel == rope::StepKernel::kNormGradientRows) == has_room);
        if (!has_room) continue;
        CHECK(plan.step.has_more == (expected.runs[0] > 0 || expected.runs[1] > 0));
        CHECK(plan.shared_bytes <= 48 * 1024);
        if (has_head_weights && expected.row_threads == 320) {
          CHECK(plan.gradients.group.count() == 2);
          CHECK(plan.threads == 256);
          continue;
        }
        CHECK(plan.vector_elements == 8);
        CHECK(plan.threads == expected.threads);
        CHECK(plan.thread_rows == 1);
        CHECK(plan.blocks_per_token == 1);
        CHECK(plan.grid_y == 1);
        const rope::StepGradients &gradients = plan.gradients;
        CHECK(gradients.is_flat);
        const bool has_own = has_head_weights && expected.heads[0] > 1;  // a single head cannot differ from others
        CHECK(gradients.weight_units == (has_own ? plan.threads : expected.groups == 1 ? 64u : 32u));
        REQUIRE(gradients.group.count() == expected.groups);  // v is not written
        CHECK(gradients.first_thread[0] == 0);
        CHECK(gradients.first_thread[1] == expected.k_first);
        CHECK(gradients.first_thread[2] == ~uint32_t{0});
        const rope::GradientGroup &of_q = gradients.group[0];
        CHECK(of_q.row_threads == expected.row_threads);
        CHECK(of_q.rows == expected.rows);
        CHECK(of_q.parts == expected.parts);
        uint32_t blocks = 0;
        for (int i = 0; i < gradients.group.count(); ++i) {
          const rope::GradientGroup &group = gradients.group[i];
          CHECK(group.first_tensor == i);
          CHECK(group.end_tensor == (expected.groups == 1 ? 2 : i + 1));
          CHECK(group.first_block == blocks);
          CHECK(group.rows * group.row_threads <= plan.threads);
          // There is no room for the angles of 32 or 40 rows of one head.
          const bool has_few_rows = expected.heads[1] == 1 && i == 1;
          CHECK(((group.rows + 1) * group.row_threads > plan.threads || (has_few_rows && group.rows == 4)));
          CHECK(int64_t{group.runs} * group.tokens_of_run >= 200);
          CHECK(int64_t{group.runs - 1} * group.tokens_of_run < 200);
          const int64_t runs = scene.step.tensor[group.first_tensor].runs;
          if (runs > 0) CHECK(group.tokens_of_run == (200 - 1) / runs + 1);
          blocks += (group.runs - 1) / group.rows + 1;
        }
        CHECK(plan.grid_x == blocks);
        const bool adds_parts = expected.parts > 1 && expected.runs[0] > 0;
        check_gradient_memory(plan, false, has_table, adds_parts ? expected.parts * 128 : 0);
      }
    }
  }
}

TEST_CASE("gradients of norms over a token: rows of whole warps", "[step plan]") {
  Scene scene;
  const Work token = {"token norm, rotation", ROPE_NORM_RMS, 0, ROPE_NORM_EXTENT_TOKEN, true, false};
  struct Expected {
    int64_t heads[2];
    int groups;
    uint32_t threads, rows;  // of a block, and of q's group
  };
  for (const Expected &expected :
       {Expected{{8, 4}, 1, 192, 2}, Expected{{4, 4}, 1, 256, 4}, Expected{{3, 4}, 2, 256, 1},
        Expected{{32, 8}, 1, 320, 1}, Expected{{40, 8}, 2, 320, 1}}) {
    make_gradient(token, ROPE_DTYPE_BF16, {100, {expected.heads[0], expected.heads[1], 2}, 128}, 7, 7, &scene);
    rope::RopePlan plan = {};
    REQUIRE(rope::plan_rope("test", scene.problem, kH200, &plan) == ROPE_STATUS_SUCCESS);
    INFO(expected.heads[0] << " and " << expected.heads[1] << " heads");
    REQUIRE(plan.step.kernel == rope::StepKernel::kNormGradientRows);
    CHECK(plan.gradients.group.count() == expected.groups);
    CHECK(plan.threads == expected.threads);
    CHECK(plan.gradients.group[0].rows == expected.rows);
    CHECK(plan.gradients.group[0].parts == 1);
    check_gradient_memory(plan, true, false, 0);
  }
}

TEST_CASE("runs of gradients without sums are as long as they keep all multiprocessors busy", "[step plan]") {
  Scene scene;
  uint32_t last = 0;
  for (const int64_t tokens : {8, 1000, 8192, 100000}) {
    make_gradient({"norm, rotation", ROPE_NORM_RMS, 0, 0, true, false}, ROPE_DTYPE_BF16, {tokens, {32, 8, 2}, 128}, 0,
                  0, &scene);
    rope::RopePlan plan = {};
    REQUIRE(rope::plan_rope("test", scene.problem, kH200, &plan) == ROPE_STATUS_SUCCESS);
    const uint32_t of_run = plan.gradients.group[0].tokens_of_run;
    INFO(tokens << " tokens");
    CHECK(of_run >= std::max(last, 1u));
    CHECK(of_run <= rope::kStepTuning.max_gradient_tokens);
    if (tokens == 8) CHECK(of_run == 1);
    if (tokens == 100000) CHECK(of_run == rope::kStepTuning.max_gradient_tokens);
    const int64_t held = int64_t{kH200.multiprocessors} * rope::kNormGradientResidentThreads[false];
    if (of_run > 1) CHECK(2 * tokens * 320 >= of_run * held * rope::kStepTuning.gradient_waves);
    last = of_run;
  }
  // In a layout that keeps heads apart, batches are not consecutive.
  make_step({"norm, rotation", ROPE_NORM_RMS, 0, 0, true, false}, ROPE_DTYPE_BF16, ROPE_LAYOUT_BHSD,
            {100, {32, 8, 2}, 128}, &scene);
  scene.step.is_norm_gradient = true;
  for (int i = 0; i < 2; ++i) {
    scene.step.tensor[i].norm_in.data = reinterpret_cast<char *>(address_of(16 + i));
    std::copy_n(scene.problem.tensor[i].in_stride, rope::kNumAxes, scene.step.tensor[i].norm_in.stride);
  }
  rope::RopePlan plan = {};
  REQUIRE(rope::plan_rope("test", scene.problem, kH200, &plan) == ROPE_STATUS_SUCCESS);
  CHECK(plan.step.kernel == rope::StepKernel::kNormGradientRows);
  CHECK(!plan.gradients.is_flat);
}

TEST_CASE("gradients of norms that rows do not take are for the general kernel", "[step plan]") {
  Scene scene;
  const auto has_rows = [&](const Work &work, const StepSizes &sizes, auto change) {
    make_gradient(work, ROPE_DTYPE_F16, sizes, 7, 7, &scene);
    change();
    rope::RopePlan plan = {};
    REQUIRE(rope::plan_rope("test", scene.problem, kH200, &plan) == ROPE_STATUS_SUCCESS);
    return plan.step.kernel == rope::StepKernel::kNormGradientRows;
  };
  const Work head = {"norm, rotation", ROPE_NORM_RMS, 0, 0, true, false},
             token = {"token norm, rotation", ROPE_NORM_RMS, 0, ROPE_NORM_EXTENT_TOKEN, true, false};
  const auto as_it_is = [] {};
  rope::StepTensor &q = scene.step.tensor[0];
  CHECK(has_rows(head, {100, {8, 2, 2}, 128}, as_it_is));
  CHECK(!has_rows(head, {100, {8, 2, 2}, 40}, as_it_is));
  CHECK(!has_rows(head, {100, {8, 2, 2}, 128}, [&] { q.norm_in.data += 8; }));
  CHECK(!has_rows(head, {100, {8, 2, 2}, 128}, [&] { q.norm_in.stride[rope::kChannel] = 2; }));
  CHECK(!has_rows(head, {100, {8, 2, 2}, 128}, [&] { q.bias_sums = q.weight_sums; }));
  CHECK(has_rows(token, {100, {40, 2, 2}, 128}, as_it_is));
  CHECK(!has_rows(token, {100, {41, 2, 2}, 128}, as_it_is));
}

TEST_CASE("rows add gradients of 16 bits to what their outputs hold, the general kernel all others", "[step plan]") {
  Scene scene;
  for (const rope_dtype_t dtype : {ROPE_DTYPE_BF16, ROPE_DTYPE_F16, ROPE_DTYPE_F32, ROPE_DTYPE_F64}) {
    for (const int64_t tokens : {1, 16384}) {
      for (const int32_t head_dim : {64, 128, 40}) {
        make_step({"rotation", 0, 0, 0, true, false}, dtype, ROPE_LAYOUT_BSHD, {tokens, {8, 2, 2}, head_dim}, &scene);
        scene.step.accumulates = true;
        rope::RopePlan plan = {};
        REQUIRE(rope::plan_rope("test", scene.problem, kH200, &plan) == ROPE_STATUS_SUCCESS);
        const bool has_rows = rope::dtype_size(dtype) == 2 && head_dim != 40;
        INFO(name_of(dtype) << ", " << tokens << " tokens, head_dim " << head_dim);
        CHECK(letter_of(plan.step.kernel) == (has_rows ? 'r' : '-'));
        CHECK(plan.step.has_codes() == has_rows);
      }
    }
  }
}

TEST_CASE("written scales of groups, and of two destinations that differ, are for the general kernel", "[step plan]") {
  Scene scene;
  rope::StepTensor &k = scene.step.tensor[1];
  const auto letter_with = [&](rope_layout_t layout, auto change) {
    Work work = {"E4M3", 0, 0, 0, false, true, false, 0, false, kE4M3};
    work.has_written_scales = true;
    make_step(work, ROPE_DTYPE_BF16, layout, {40, {8, 2, 2}, 128}, &scene);
    k.is_written = k.is_whole = true;
    k.out_dtype = k.cache.dtype;
    k.out_scales = k.cache_scales;
    k.out_scales.row_stride[0] = 80, k.out_scales.row_stride[1] = 2;
    change();
    rope::RopePlan plan = {};
    REQUIRE(rope::plan_rope("test", scene.problem, kH200, &plan) == ROPE_STATUS_SUCCESS);
    return std::string(1, letter_of(plan.step.kernel)) + (plan.heads.is_flat ? "f" : "");
  };
  CHECK(letter_with(ROPE_LAYOUT_THD, [] {}) == "lf");
  CHECK(letter_with(ROPE_LAYOUT_THD, [&] { k.cache_scales.groups = 2; }) == "-f");
  CHECK(letter_with(ROPE_LAYOUT_THD, [&] { k.out_scales.groups = 2; }) == "-f");
  CHECK(letter_with(ROPE_LAYOUT_THD, [&] { k.out_scales.form = rope::ScaleForm::kE8M0; }) == "-f");
  CHECK(letter_with(ROPE_LAYOUT_THD, [&] { ++k.out_scales.floor; }) == "-f");
  CHECK(letter_with(ROPE_LAYOUT_THD, [&] { k.out_scales.data = nullptr; }) == "-f");
  CHECK(letter_with(ROPE_LAYOUT_THD, [&] { k.cache_scales.data = nullptr; }) == "-f");
  CHECK(letter_with(ROPE_LAYOUT_THD, [&] { k.out_dtype = ROPE_DTYPE_BF16, k.out_scales.data = nullptr; }) == "lf");
  CHECK(letter_with(ROPE_LAYOUT_BSHD, [] {}) == "lf");
  CHECK(letter_with(ROPE_LAYOUT_BSHD, [&] { k.out_scales.row_stride[0] = 81; }) == "l");
}

// Each change either breaks the alignment of vectors of the previous width, or leaves it.
TEST_CASE("vectors of a step need aligned addresses and strides", "[step plan]") {
  Scene scene;
  const Work work = {"norm, rotation, cache", ROPE_NORM_RMS, 0, 0, true, true};
  const auto letter_with = [&](int64_t tokens, auto change) {
    make_step(work, ROPE_DTYPE_BF16, ROPE_LAYOUT_THD, {tokens, {8, 2, 2}, 128}, &scene);
    scene.step.tensor[0].weight = {reinterpret_cast<const char *>(address_of(6)), false, 0, 1};
    change();
    rope::RopePlan plan = {};
    REQUIRE(rope::plan_rope("test", scene.problem, kH200, &plan) == ROPE_STATUS_SUCCESS);
    return letter_of(plan.step.kernel);
  };
  rope::RotatedTensor &q = scene.problem.tensor[0];
  rope::StepTensor &k = scene.step.tensor[1];
  rope::ChannelNumbers &weight = scene.step.tensor[0].weight;
  const auto add_to_token_stride = [&](int64_t elements) {
    q.in_stride[rope::kToken] += elements;
    q.out_stride[rope::kToken] += elements;
  };
  CHECK(letter_with(1, [] {}) == 's');
  CHECK(letter_with(16384, [] {}) == 'l');
  CHECK(letter_with(1, [&] { add_to_token_stride(1); }) == 's');  // the stride of a single token does not matter
  CHECK(letter_with(2, [&] { add_to_token_stride(1); }) == '-');
  CHECK(letter_with(2, [&] { add_to_token_stride(4); }) == 's');
  CHECK(letter_with(16384, [&] { add_to_token_stride(4); }) == '-');
  CHECK(letter_with(16384, [&] { add_to_token_stride(8); }) == 'l');
  CHECK(letter_with(1, [&] { q.in += 4; }) == '-');
  CHECK(letter_with(1, [&] { k.cache.data += 4; }) == '-');
  CHECK(letter_with(1, [&] { k.cache.entry_stride += 2; }) == '-');
  CHECK(letter_with(1, [&] { weight.data += 4; }) == '-');
  CHECK(letter_with(1, [&] { weight.data += 8; }) == 's');
  CHECK(letter_with(1, [&] { weight.channel_stride = 2; }) == '-');
  CHECK(letter_with(1, [&] { weight = {weight.data + 8, true, 0, 1}; }) == '-');
  CHECK(letter_with(1, [&] { weight = {weight.data + 16, true, 0, 1}; }) == 'm');
  CHECK(letter_with(1, [&] { scene.step.places.pages = INT32_MAX / 16; }) == 's');
  CHECK(letter_with(1, [&] { scene.step.places.pages = INT32_MAX / 16 + 1; }) == '-');
  CHECK(letter_with(1, [&] { scene.step.places.entries = 0; }) == '-');
  CHECK(letter_with(1, [&] { scene.step.places.slots.token_stride = int64_t{1} << 40; }) == '-');
  CHECK(letter_with(1, [&] { scene.step.places.slots.batch_stride = int64_t{1} << 40; }) == '-');
  const auto letter_of_batches = [&](int64_t elements) {
    make_step(work, ROPE_DTYPE_BF16, ROPE_LAYOUT_BSHD, {2, {8, 2, 2}, 128}, &scene);
    q.in_stride[rope::kBatch] += elements;
    q.out_stride[rope::kBatch] += elements;
    rope::RopePlan plan = {};
    REQUIRE(rope::plan_rope("test", scene.problem, kH200, &plan) == ROPE_STATUS_SUCCESS);
    return letter_of(plan.step.kernel);
  };
  CHECK(letter_of_batches(0) == 'l');
  CHECK(letter_of_batches(8) == 'l');
  CHECK(letter_of_batches(4) == 'r');
  CHECK(letter_of_batches(1) == '-');
}

TEST_CASE("the plan of a step is a legal launch whose heads lie in one warp each", "[step plan]") {
  Random random(3);
  Scene scene;
  int heads_alone = 0, windows = 0, rows = 0, general = 0;
  for (int round = 0; round < 20000; ++round) {
    const rope_dtype_t dtype = static_cast<rope_dtype_t>(ROPE_DTYPE_F32 + random.below(4));
    const bool has_codes = dtype != ROPE_DTYPE_F64 && random.below(3) == 0;
    const bool has_window = dtype != ROPE_DTYPE_F64 && random.below(5) == 0;
    const Work &work = has_window  ? kWindowWorks[random.below(sizeof kWindowWorks / sizeof *kWindowWorks)]
                       : has_codes ? kCodeWorks[random.below(sizeof kCodeWorks / sizeof *kCodeWorks)]
                                   : kWorks[random.below(sizeof kWorks / sizeof *kWorks)];
    const rope_layout_t layout = static_cast<rope_layout_t>(ROPE_LAYOUT_BSHD + random.below(4));
    const int64_t tokens = random.below(3) == 0 ? 1 + random.below(1 << 22) : 1 + random.below(300);
    const int64_t max_heads = tokens < 300 && random.below(10) == 0 ? 70000 : 70;
    const auto heads = [&] { return random.below(max_heads); };
    const int64_t head_dim = !has_window            ? 2 + 2 * random.below(300)
                             : random.below(2) == 0 ? int64_t{64} << random.below(4)
                                                    : 8 + 8 * random.below(75);
    const StepSizes sizes = {tokens, {1 + heads(), 1 + heads(), 1 + heads()}, static_cast<int32_t>(head_dim)};
    const auto turned = static_cast<uint32_t>(sizes.head_dim / work.part);  // channels of a head
    make_step(work, dtype, layout, sizes, &scene);
    for (const rope::DeviceInfo &device : kDevices) {
      rope::RopePlan plan = {};
      REQUIRE(rope::plan_rope("test", scene.problem, device, &plan) == ROPE_STATUS_SUCCESS);
      INFO(work.name << " " << name_of(dtype) << ", head_dim " << sizes.head_dim << ", " << tokens << " tokens of "
                     << sizes.heads[0] << ", " << sizes.heads[1] << ", " << sizes.heads[2] << " heads");
      const uint32_t threads = plan.threads * plan.thread_rows;
      REQUIRE(plan.grid_x >= 1);
      REQUIRE(plan.grid_x <= kMaxGridX);
      REQUIRE(plan.grid_y >= 1);
      REQUIRE(plan.grid_y <= kMaxGridY);
      REQUIRE(plan.shared_bytes <= 48 * 1024);
      REQUIRE(plan.threads % 32 == 0);
      if (plan.step.kernel == rope::StepKernel::kGeneral) {
        ++general;
        REQUIRE(threads <= rope::kMaxStepGeneralThreads);
        REQUIRE(plan.general.warps >= 1);
        REQUIRE(plan.general.warps <= threads / 32);
        REQUIRE(plan.general.heads_per_block * plan.general.blocks_per_token >= scene.problem.heads_per_token());
        const uint32_t size = dtype == ROPE_DTYPE_F64 ? 8 : dtype == ROPE_DTYPE_F32 ? 4 : 2;
        const uint32_t number = std::max(size, 4u), channels = static_cast<uint32_t>(plan.general.row_channels);
        const uint32_t angles = work.is_turned ? turned * number : 0;
        const uint32_t sums = work.extent == ROPE_NORM_EXTENT_TOKEN ? 256 * number : 0;
        REQUIRE(channels >= static_cast<uint32_t>(sizes.head_dim));
        REQUIRE(plan.shared_bytes == 64 + angles + sums + plan.general.warps * channels * (2 * number + size));
        continue;
      }
      const bool is_of_token = plan.step.norm == rope::StepNorm::kOfToken;
      REQUIRE(is_of_token == (work.extent == ROPE_NORM_EXTENT_TOKEN));
      const uint32_t most_of_token = plan.step.has_codes() ? rope::kMaxStepCodeThreads : rope::kMaxStepTokenThreads;
      REQUIRE(threads <= (is_of_token ? most_of_token : static_cast<uint32_t>(rope::kMaxStepThreads)));
      const auto lanes = uint64_t{1} << rope::step_lanes_log2(sizes.head_dim, plan.vector_elements);
      REQUIRE(lanes <= 32);
      REQUIRE(lanes * 2 * static_cast<uint64_t>(plan.vector_elements) >= static_cast<uint64_t>(sizes.head_dim));
      const auto num_tokens = static_cast<uint64_t>(scene.num_tokens());
      if (std::string("sm").find(letter_of(plan.step.kernel)) != std::string::npos) {
        ++heads_alone;
        REQUIRE(plan.grid_x == num_tokens);
        const uint64_t units = static_cast<uint64_t>(scene.problem.heads_per_token()) * lanes;
        REQUIRE(plan.grid_y == (units + threads - 1) / threads);
        const bool is_warp = plan.step.kernel == rope::StepKernel::kWarp;
        const bool has_own_angles = plan.step.angles == rope::StepAngles::kTable &&
                                    plan.step.kernel != rope::StepKernel::kShortMore &&
                                    plan.step.norm == rope::StepNorm::kNone && (is_warp || !plan.step.has_codes());
        const bool shares_angles = work.is_turned && !has_own_angles;
        REQUIRE(plan.shared_bytes == (shares_angles ? (is_warp ? threads / 32 : 1) * 2 * 64 * 4 : 0));
        const bool is_row = shares_angles && !is_warp;
        REQUIRE((!is_row || threads * 2 >= turned));
        continue;
      }
      const bool is_long_window = plan.step.kernel == rope::StepKernel::kLongWindow;
      if (plan.step.kernel == rope::StepKernel::kLong || is_long_window) {
        ++(is_long_window ? windows : heads_alone);
        const rope::StepHeads &of_plan = plan.heads;
        const int of_thread = of_plan.units_of_thread * plan.vector_elements;
        REQUIRE(of_plan.units_of_thread == (plan.step.has_codes() || is_long_window ? 2 : 1));
        REQUIRE(of_plan.window_units * static_cast<uint32_t>(work.part) == of_plan.units);
        REQUIRE(plan.grid_x % of_plan.blocks_per_group == 0);
        const uint64_t groups = plan.grid_x / of_plan.blocks_per_group * uint64_t{plan.grid_y};
        REQUIRE(groups * plan.tokens_per_block >= num_tokens);
        REQUIRE(plan.grid_y <= 2);
        REQUIRE((groups / plan.grid_y - 1) * plan.tokens_per_block < num_tokens / plan.grid_y);
        uint32_t blocks = 0, most_tokens = 0;
        for (int i = 0; i < scene.problem.num_tensors; ++i) {
          if (scene.problem.tensor[i].heads == 0) continue;
          const rope::StepPieceBlocks &mine = of_plan.blocks[i];
          REQUIRE(mine.first_block == blocks);
          REQUIRE(mine.runs * mine.rows * of_plan.turns == plan.tokens_per_block);
          const uint64_t units = static_cast<uint64_t>(scene.problem.tensor[i].heads)
                                 << rope::step_lanes_log2(sizes.head_dim, of_thread);
          REQUIRE((mine.rows == 1 || mine.parts == 1));
          REQUIRE(mine.rows * units <= uint64_t{mine.parts} * threads);
          REQUIRE((mine.parts == 1 || uint64_t{mine.parts - 1} * threads < units));
          blocks += mine.runs * mine.parts;
          if (scene.step.tensor[i].is_turned) most_tokens = std::max(most_tokens, mine.rows * of_plan.turns);
        }
        // 4 numbers are free behind those of each lane.
        const auto V = static_cast<uint32_t>(plan.vector_elements), dim = static_cast<uint32_t>(sizes.head_dim);
        const uint32_t of_lane = is_long_window || of_plan.units_of_thread == 1 ? 2 * V : 4 * V;
        const uint32_t weights = work.norm != 0 ? dim + dim / (is_long_window ? V : of_lane) * 4 : 0;
        REQUIRE(plan.shared_bytes == (most_tokens * (turned + turned / of_lane * 4) + weights) * 4);
        REQUIRE(blocks == of_plan.blocks_per_group);
        continue;
      }
      ++rows;
      REQUIRE(plan.grid_y == 1);
      const uint64_t tokens_of_grid = uint64_t{plan.grid_x} / plan.blocks_per_token * plan.tokens_per_block;
      REQUIRE(tokens_of_grid >= num_tokens);
      REQUIRE(tokens_of_grid < num_tokens + plan.tokens_per_block);
      const uint32_t sharers = plan.step.kernel == rope::StepKernel::kShortRows ? threads / 32 : plan.thread_rows;
      const uint32_t head_sums = is_of_token ? 3088 : 0;
      REQUIRE(plan.shared_bytes == sharers * (32 + 4 * turned) + threads / 32 * 256 + head_sums);
      int64_t begin = 0;
      for (int i = 0; i < scene.problem.num_tensors; ++i) {
        begin = rope::step_tensor_begin(scene.problem, plan, i, begin);
        const bool has_block = is_of_token && plan.blocks_per_token > 1;
        REQUIRE(begin % static_cast<int64_t>(has_block ? plan.threads : lanes) == 0);
        const int64_t of_tensor = scene.problem.tensor[i].heads * static_cast<int64_t>(lanes);
        REQUIRE((!is_of_token || of_tensor <= plan.threads));
        begin += of_tensor;
      }
      REQUIRE(static_cast<uint64_t>(plan.threads) * plan.blocks_per_token >= static_cast<uint64_t>(begin));
      REQUIRE(static_cast<uint64_t>(plan.threads) * (plan.blocks_per_token - 1) < static_cast<uint64_t>(begin));
    }
  }
  CHECK(heads_alone > 1000);
  CHECK(windows > 100);
  CHECK(rows > 1000);
  CHECK(general > 1000);
}
