// SPDX-License-Identifier: Apache-2.0
// step_quant_tests.cpp - outputs and caches of 8 bits: codes, static scales, the largest magnitude
#include <catch2/catch_test_macros.hpp>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "support/step_case.hpp"

namespace {

const std::vector<rope_dtype_t> dtypes = {ROPE_DTYPE_F32, ROPE_DTYPE_F16, ROPE_DTYPE_BF16};
const std::vector<rope_dtype_t> codes = {ROPE_DTYPE_F8_E4M3, ROPE_DTYPE_F8_E5M2};
const std::vector<rope_layout_t> layouts = {ROPE_LAYOUT_BSHD, ROPE_LAYOUT_SBHD, ROPE_LAYOUT_BHSD, ROPE_LAYOUT_THD};

// The step of servers: q turned in place, k turned and cached, v cached.
StepCase cached(rope_dtype_t code) {
  StepCase step;
  step.dtype = ROPE_DTYPE_BF16;
  step.flags = ROPE_FLAG_V_UNROTATED;
  step.q.heads = 4;
  step.k.heads = step.v.heads = 2;
  step.k.scale = step.v.scale = Scale::One;
  step.table_rows = 6;
  StepCache &cache = step.cache.emplace();
  cache.has_v = true;
  cache.k_dtype = cache.v_dtype = code;
  cache.slots = {5, 3, 9, -1, 0, 1, 2, 4, 6, 7};
  return step;
}

// Tokens of a long launch.
#if defined(ROPE_TEST_SIMULATION)
constexpr int64_t many_tokens = 40;
#else
constexpr int64_t many_tokens = 700;
#endif

void quantise_q(rope_dtype_t code, StepCase *step) {
  step->q.out = StepOut::Own;
  step->q.out_dtype = code;
  step->q.scale = Scale::One;
}

}  // namespace

TEST_CASE("caches of 8 bits", "[rope][step][quant]") {
  for (const rope_dtype_t code : codes) {
    for (const rope_dtype_t dtype : dtypes) {
      for (const rope_layout_t layout : layouts) {
        for (const rope_style_t style : {ROPE_STYLE_HALF, ROPE_STYLE_INTERLEAVED}) {
          StepCase step = cached(code);
          step.dtype = dtype;
          step.layout = layout;
          if (layout == ROPE_LAYOUT_THD) step.tokens = 10;
          step.style = style;
          step.check();
          quantise_q(code, &step);
          step.check();
        }
      }
    }
  }
}

// A window that is turned and other channels that are copied, in each of q, k and v: six parts of heads.
void check_all_cut(rope_style_t style, int32_t head_dim, int64_t tokens, int64_t heads, bool is_window_last) {
  StepCase step;
  step.dtype = ROPE_DTYPE_BF16;
  step.layout = ROPE_LAYOUT_THD;
  step.style = style;
  step.tokens = tokens;
  step.head_dim = head_dim;
  step.rotary_dim = 64;
  step.rotary_offset = is_window_last ? head_dim - 64 : 0;
  for (StepTensor *tensor : {&step.q, &step.k, &step.v}) {
    tensor->heads = heads;
    tensor->out = StepOut::Own;
    tensor->out_dtype = ROPE_DTYPE_F8_E4M3;
  }
  std::vector<std::string> explanations;
  step.explanations = &explanations;
  step.check();
  check_step_kernels(explanations, {"long rows angles codes"});
}

TEST_CASE("q, k and v that are all turned in a part of their heads, with outputs of 8 bits",
          "[rope][step][quant][sanitize]") {
  for (const rope_style_t style : {ROPE_STYLE_HALF, ROPE_STYLE_INTERLEAVED}) {
    for (const int32_t head_dim : {128, 192}) {
      check_all_cut(style, head_dim, 1, 8, false);
      check_all_cut(style, head_dim, 64, 8, true);
      check_all_cut(style, head_dim, 256, 2, false);
    }
  }
}

#if !defined(ROPE_TEST_SIMULATION)
// The request of the test above, with more tokens than the model can compute.
TEST_CASE("q, k and v that are all turned in a part of their heads have the CPU's bytes on CUDA",
          "[rope][step][quant]") {
  if (!has_cuda()) SKIP("no CUDA device: " << why_no_cuda());
  for (const rope_style_t style : {ROPE_STYLE_HALF, ROPE_STYLE_INTERLEAVED}) {
    for (const int32_t head_dim : {128, 192}) {
      for (const int64_t tokens : {1, 64, 256, 16384}) {
        INFO(tokens << " tokens, head_dim " << head_dim << ", style " << style);
        Workspace workspace(7);
        rope_args_t args = rope_args();
        for (rope_tensor_t *in : {&args.q, &args.k, &args.v}) {
          *in = workspace.tensor(ROPE_DTYPE_BF16, {tokens, 8, head_dim});
          auto *const words = static_cast<uint16_t *>(in->data);
          // From 0.5 to 2, of either sign.
          for (int64_t i = 0; i < element_count(*in); ++i) {
            words[i] = static_cast<uint16_t>(0x3f00 | (workspace.random().bits() & 0x80ff));
          }
        }
        for (rope_tensor_t *out : {&args.q_out, &args.k_out, &args.v_out}) {
          *out = workspace.tensor(ROPE_DTYPE_F8_E4M3, {tokens, 8, head_dim});
        }
        workspace.freeze();
        std::vector<std::vector<std::byte>> images;
        for (const Device &device : devices()) {
          rope_config_t config = rope_config_for(device, head_dim);
          config.dtype = ROPE_DTYPE_BF16;
          config.layout = ROPE_LAYOUT_THD;
          config.style = style;
          config.rotary_dim = 64;
          const RopeDesc desc = create(config);
          workspace.restore();
          REQUIRE(run(device, desc.get(), Direction::Forward, args, workspace) == ROPE_STATUS_SUCCESS);
          images.push_back(workspace.image());
        }
        REQUIRE(images.size() == 2);
        CHECK((images[0] == images[1]));
      }
    }
  }
}
#endif

TEST_CASE("codes and factors of a tensor without heads, beside words", "[rope][step][quant]") {
  for (const rope_dtype_t dtype : dtypes) {
    for (const int64_t tokens : {1, 700}) {
      StepCase step;
      step.dtype = dtype;
      step.layout = ROPE_LAYOUT_THD;
      step.tokens = tokens;
      step.head_dim = 128;
      step.flags = ROPE_FLAG_V_UNROTATED;
      step.q.heads = 2;
      step.q.out = step.k.out = StepOut::Own;
      step.k.heads = 0;
      step.k.out_dtype = ROPE_DTYPE_F8_E4M3;
      step.k.factor = RowFactor::ByToken;
      step.check();
    }
  }
}

TEST_CASE("scales of heads, scales that multiply, and none", "[rope][step][quant]") {
  for (const rope_dtype_t code : codes) {
    for (const Scale scale : {Scale::None, Scale::One, Scale::ByHead}) {
      for (const uint32_t flags : {uint32_t{0}, uint32_t{ROPE_QUANT_FLAG_SCALE_MULTIPLIES}}) {
        StepCase step = cached(code);
        quantise_q(code, &step);
        step.quant_flags = flags;
        step.q.scale = step.k.scale = step.v.scale = scale;
        step.q.scale_placement.gap(0, 2).reversed(0);
        step.check();
        step.norm = ROPE_NORM_RMS;
        step.q.has_weight = step.k.has_weight = true;
        step.check();
      }
    }
  }
}

// rope.h: codes are x * i, and i is 0 for a scale of 0 and the largest number at most.
TEST_CASE("static scales that are no positive normal numbers", "[rope][step][quant][sanitize]") {
  for (const uint32_t flags : {uint32_t{0}, uint32_t{ROPE_QUANT_FLAG_SCALE_MULTIPLIES}}) {
    for (const rope_dtype_t dtype : dtypes) {
      for (const int64_t tokens : {int64_t{1}, int64_t{5}, many_tokens}) {
        if (tokens == many_tokens && (flags != 0 || dtype != ROPE_DTYPE_BF16)) continue;
        StepCase step = cached(ROPE_DTYPE_F8_E4M3);
        quantise_q(ROPE_DTYPE_F8_E5M2, &step);
        step.layout = ROPE_LAYOUT_THD;
        step.dtype = dtype;
        step.quant_flags = flags;
        step.has_odd_scales = true;
        step.q.heads = tokens == many_tokens ? 3 : 8;
        step.k.heads = step.v.heads = tokens == many_tokens ? 1 : 5;
        step.q.scale = step.k.scale = step.v.scale = Scale::ByHead;
        step.head_dim = 128;
        step.tokens = tokens;
        step.cache->pages = 180;
        step.cache->slots.emplace();
        for (int64_t i = 0; i < tokens; ++i) step.cache->slots->push_back(i);
        step.check();
        step.has_amax = true;
        step.check();
        step.norm = ROPE_NORM_RMS;
        step.q.has_weight = step.k.has_weight = true;
        step.check();
        step.norm = ROPE_NORM_LAYER;
        step.norm_extent = ROPE_NORM_EXTENT_TOKEN;
        step.check();
        // A cache of the window, and one of the other channels with a scale of its own.
        step.norm = 0;
        step.q.has_weight = step.k.has_weight = false;
        step.rotary_dim = 64;
        step.cache->has_k_pass = true;
        step.cache->k_pass_dtype = ROPE_DTYPE_F8_E4M3;
        step.cache->k_pass_scale = Scale::ByHead;
        step.check();
      }
    }
  }
}

// Both tensors of scales have one address, but not one scale for each head.
TEST_CASE("one scale of k that is the first of those of the cache of its pass", "[rope][step][quant]") {
  for (const int64_t tokens : {int64_t{5}, many_tokens}) {
    StepCase step = cached(ROPE_DTYPE_F8_E4M3);
    step.layout = ROPE_LAYOUT_THD;
    step.head_dim = 128;
    step.rotary_dim = 64;
    step.tokens = tokens;
    step.k.heads = step.v.heads = 3;
    step.k.out = StepOut::Own;
    step.k.out_dtype = ROPE_DTYPE_F8_E4M3;
    step.cache->pages = 180;
    step.cache->slots.emplace();
    for (int64_t i = 0; i < tokens; ++i) step.cache->slots->push_back(i);
    step.cache->has_k_pass = true;
    step.cache->k_pass_dtype = ROPE_DTYPE_F8_E4M3;
    step.cache->k_pass_scale = Scale::ByHead;
    step.cache->is_k_scale_in_pass_scale = true;
    step.check();
  }
}

TEST_CASE("caches of 8 bits without pages or entries", "[rope][step][quant]") {
  for (const int64_t pages : {0, 3}) {
    StepCase step = cached(ROPE_DTYPE_F8_E4M3);
    step.has_amax = true;
    step.cache->pages = pages;
    step.cache->entries = pages == 0 ? 4 : 0;
    step.check();
  }
}

TEST_CASE("16-bit outputs beside caches of 8 bits, and the other way round", "[rope][step][quant]") {
  for (const rope_dtype_t dtype : dtypes) {
    for (const bool is_normed : {false, true}) {
      StepCase step = cached(ROPE_DTYPE_F8_E4M3);
      step.dtype = dtype;
      if (is_normed) step.norm = ROPE_NORM_RMS;
      step.k.out = StepOut::Own;
      step.v.out = StepOut::Own;
      step.check();
      step.k.out = step.v.out = StepOut::Same;
      step.check();
      step.k.out = StepOut::Own;
      step.k.out_dtype = ROPE_DTYPE_F8_E5M2;  // differs from the cache's type
      step.check();
      step.cache->k_dtype = dtype;
      step.check();
    }
  }
}

// Vectors of 16 bytes fit the rows, or smaller ones, or none. 256 channels and 700 tokens need long launches.
TEST_CASE("tables whose rows vectors fit or do not, with codes and without", "[rope][step][quant][sanitize]") {
  const Placement placements[] = {Placement(), Placement().gap(0, 4), Placement().gap(0, 2), Placement().gap(0, 1),
                                  Placement().at(1)};
  std::vector<std::string> explanations;
  for (const Placement &placement : placements) {
    for (const rope_dtype_t table_dtype : {ROPE_DTYPE_F32, ROPE_DTYPE_F16, ROPE_DTYPE_BF16}) {
      for (const rope_style_t style : {ROPE_STYLE_HALF, ROPE_STYLE_INTERLEAVED}) {
        for (const int32_t head_dim : {64, 256}) {
          for (const bool is_normed : {false, true}) {
            StepCase step = cached(ROPE_DTYPE_F8_E4M3);
            step.explanations = &explanations;
            step.layout = ROPE_LAYOUT_THD;
            step.style = style;
            step.head_dim = head_dim;
            step.tokens = 10;
            step.table_rows = 8;  // two tokens have no row
            step.table_dtype = table_dtype;
            step.table_placement = placement;
            step.has_fault = true;
            if (is_normed) step.norm = ROPE_NORM_RMS;
            step.check();
            step.cache.reset();
            step.k.scale = step.v.scale = Scale::None;
            step.k.out = StepOut::Own;
            step.check();
            if (is_normed) continue;
            step.direction = Direction::Backward;
            step.has_fault = false;
            step.check();
            step.dtype = ROPE_DTYPE_F32;
            step.check();
          }
        }
      }
    }
  }
  for (const int64_t tokens : {100, 700}) {  // with codes, too many for threads that read the angles of their own pairs
    StepCase step = cached(ROPE_DTYPE_F8_E4M3);
    step.explanations = &explanations;
    step.layout = ROPE_LAYOUT_THD;
    step.tokens = tokens;
    step.q.heads = 32;
    step.k.heads = step.v.heads = 8;
    step.head_dim = 128;
    step.table_rows = tokens - 1;
    step.cache->pages = 90;
    step.cache->entries = 16;
    step.cache->slots.emplace();
    for (int64_t i = 0; i < tokens; ++i) step.cache->slots->push_back((i * 7 + 3) % 1440);
    step.check();
  }
  check_step_kernels(explanations,
                     {"short table", "long table", "warp table codes", "short table codes", "long table codes"});
}

TEST_CASE("every launch that codes can come out of", "[rope][step][quant]") {
  for (const int32_t head_dim : {64, 96, 128, 256}) {
    for (const int64_t tokens : {1, 33, 700}) {
      for (const bool is_normed : {false, true}) {
        StepCase step = cached(ROPE_DTYPE_F8_E4M3);
        step.layout = ROPE_LAYOUT_THD;
        step.head_dim = head_dim;
        step.tokens = tokens;
        if (is_normed) {
          step.norm = ROPE_NORM_RMS;
          step.q.has_weight = step.k.has_weight = true;
        }
        step.table_rows = tokens == 33 ? -1 : 1000;
        step.cache->pages = 90;
        step.cache->entries = 16;
        step.cache->slots.emplace();
        for (int64_t i = 0; i < tokens; ++i) step.cache->slots->push_back((i * 7 + 3) % 1440);
        step.check();
        quantise_q(ROPE_DTYPE_F8_E5M2, &step);
        step.q.scale = Scale::ByHead;
        step.check();
      }
    }
  }
}

TEST_CASE("codes with every norm and of windows amid a head", "[rope][step][quant][scales][factor][sanitize]") {
  std::vector<std::string> explanations;
  for (const rope_dtype_t dtype : {ROPE_DTYPE_F16, ROPE_DTYPE_BF16}) {
    for (const rope_style_t style : {ROPE_STYLE_HALF, ROPE_STYLE_INTERLEAVED}) {
      for (const bool has_table : {false, true}) {
        StepCase step = cached(ROPE_DTYPE_F8_E4M3);
        quantise_q(ROPE_DTYPE_F8_E4M3, &step);
        step.explanations = &explanations;
        step.dtype = dtype;
        step.style = style;
        step.head_dim = 128;
        step.norm = ROPE_NORM_LAYER;
        step.q.has_weight = step.k.has_weight = step.q.has_bias = true;
        step.k.weight_by_head = true;
        step.table_rows = has_table ? 4 : -1;
        step.has_fault = true;
        step.check();
        step.norm_order = ROPE_NORM_ORDER_AFTER;
        step.has_amax = true;
        step.q.factor = RowFactor::ByToken;
        step.k.factor = RowFactor::ByHead;
        step.k.factor_dtype = ROPE_DTYPE_F32;
        step.check();
        step.norm_extent = ROPE_NORM_EXTENT_TOKEN;
        step.k.out = StepOut::Same;
        step.cache->k_dtype = ROPE_DTYPE_F8_E5M2;
        step.check();
        step.norm_order = ROPE_NORM_ORDER_BEFORE;
        step.quant_rounding = ROPE_QUANT_ROUND_FIRST;
        step.check();
        step.rotary_dim = 64;
        step.rotary_offset = 32;
        step.check();
        step.norm_extent = ROPE_NORM_EXTENT_HEAD;
        step.k.out = StepOut::Own;
        step.k.out_dtype = ROPE_DTYPE_F8_E5M2;
        step.q.scale = step.k.scale = Scale::None;
        step.q.out_scales.dtype = step.k.out_scales.dtype = step.k.cache_scales.dtype = ROPE_DTYPE_F32;
        step.check();
        step.norm = 0;
        step.q.has_weight = step.k.has_weight = step.q.has_bias = step.k.weight_by_head = false;
        step.check();
        step.flags = ROPE_FLAG_UNROTATED;
        step.table_rows = -1;
        step.norm = ROPE_NORM_RMS;
        step.norm_extent = ROPE_NORM_EXTENT_TOKEN;
        step.check();
      }
    }
  }
  check_step_kernels(explanations, {"long rows codes", "long rows angles codes", "long rows table codes"});
  for (const std::string &text : explanations) CHECK(text.find(": general kernel, ") == std::string::npos);
}

TEST_CASE("words and codes of normed heads with a window at either end", "[rope][step][norm][quant][sanitize]") {
  struct Heads {
    int32_t head_dim, window;
  };
  std::vector<std::string> explanations;
  for (const Heads &heads : {Heads{64, 32}, Heads{128, 64}, Heads{128, 16}, Heads{128, 96}, Heads{192, 64},
                             Heads{256, 64}, Heads{256, 32}, Heads{512, 64}}) {
    for (const bool is_last : {false, true}) {
      for (const rope_style_t style : {ROPE_STYLE_HALF, ROPE_STYLE_INTERLEAVED}) {
        // Batches of heads' rows are not one batch, and take the kernels of long launches.
        for (const rope_layout_t layout : {ROPE_LAYOUT_BSHD, ROPE_LAYOUT_BHSD}) {
          StepCase step = cached(0);
          step.explanations = &explanations;
          step.dtype = is_last ? ROPE_DTYPE_F16 : ROPE_DTYPE_BF16;
          step.layout = layout;
          step.style = style;
          step.head_dim = heads.head_dim;
          step.rotary_dim = heads.window;
          step.rotary_offset = is_last ? heads.head_dim - heads.window : 0;
          step.positions = [](int64_t, int64_t batch, int64_t token) { return (token + batch) % 5; };
          step.q.heads = 5;
          step.k.scale = step.v.scale = Scale::None;
          step.norm = ROPE_NORM_RMS;
          step.norm_weight_offset = is_last ? 1 : 0;
          step.q.has_weight = step.k.has_weight = true;
          step.k.weight_dtype = ROPE_DTYPE_F32;
          step.table_rows = style == ROPE_STYLE_HALF ? 4 : -1;  // positions of 4 have no row
          step.has_fault = true;
          step.check();
          step.cache->k_dtype = step.cache->v_dtype = ROPE_DTYPE_F8_E4M3;
          quantise_q(ROPE_DTYPE_F8_E4M3, &step);
          step.k.scale = Scale::ByHead;
          step.v.scale = Scale::One;
          step.check();
          step.k.out = StepOut::Own;
          step.k.out_dtype = ROPE_DTYPE_F8_E4M3;
          step.norm_order = ROPE_NORM_ORDER_AFTER;
          step.check();
          step.norm = ROPE_NORM_LAYER;
          step.q.has_bias = true;
          step.k.weight_by_head = true;
          step.check();
        }
      }
    }
  }
  check_step_kernels(explanations, {"short with more angles", "short with more table", "short with more angles codes",
                                    "short with more table codes", "long window angles", "long window table",
                                    "long window angles codes", "long window table codes"});
}

TEST_CASE("codes of a window, of one that is part of a head, and of what is not turned", "[rope][step][quant]") {
  for (const rope_dtype_t dtype : dtypes) {
    for (const rope_style_t out_style : {ROPE_STYLE_HALF, ROPE_STYLE_INTERLEAVED}) {
      StepCase step = cached(ROPE_DTYPE_F8_E4M3);
      step.dtype = dtype;
      step.out_style = out_style;
      step.rotary_dim = 24;
      step.rotary_offset = 10;
      quantise_q(ROPE_DTYPE_F8_E4M3, &step);
      step.check();
      step.k.is_window = true;
      step.check();
      step.v.width = 20;
      step.flags = ROPE_FLAG_UNROTATED;
      step.table_rows = -1;
      step.check();
    }
  }
}

TEST_CASE("values that become dtype's before they become codes", "[rope][step][quant]") {
  for (const rope_dtype_t code : codes) {
    for (const rope_dtype_t dtype : dtypes) {
      for (const bool is_normed : {false, true}) {
        StepCase step = cached(code);
        step.dtype = dtype;
        step.quant_rounding = ROPE_QUANT_ROUND_FIRST;
        step.has_amax = true;
        if (is_normed) step.norm = ROPE_NORM_RMS;
        quantise_q(code, &step);
        step.k.factor = RowFactor::ByHead;
        step.check();
        step.k.factor = RowFactor::None;
        step.has_amax = false;
        step.check();
      }
    }
  }
}

TEST_CASE("amax is raised by what becomes a code alone", "[rope][step][quant]") {
  for (const rope_dtype_t dtype : dtypes) {
    StepCase step = cached(ROPE_DTYPE_F8_E4M3);
    step.dtype = dtype;
    step.has_amax = true;
    step.values = [](int tensor, int64_t token, int64_t head, int64_t channel) {
      return static_cast<oracle::Real>(tensor * 100 + token * 7 + head) - static_cast<oracle::Real>(channel % 5);
    };
    step.check();  // q has 16 bits
    quantise_q(ROPE_DTYPE_F8_E5M2, &step);
    step.check();
    step.cache->slots = std::vector<int64_t>(10, -1);  // no code of k and v
    step.check();
    step.v.out = StepOut::Own;
    step.v.out_dtype = ROPE_DTYPE_F8_E4M3;
    step.check();
  }
}

TEST_CASE("infinities, NaN, zeros, and what lies between two codes", "[rope][step][quant]") {
  for (const rope_dtype_t code : codes) {
    for (const rope_dtype_t dtype : dtypes) {
      for (const bool has_amax : {false, true}) {
        StepCase step = cached(code);
        step.dtype = dtype;
        step.flags = ROPE_FLAG_UNROTATED;
        step.table_rows = -1;
        quantise_q(code, &step);
        step.q.scale = step.k.scale = step.v.scale = Scale::None;
        step.has_amax = has_amax;
        int64_t number = 0;
        step.values = [&](int, int64_t, int64_t, int64_t) {
          constexpr oracle::Real inf = std::numeric_limits<oracle::Real>::infinity();
          const oracle::Real special[] = {
              0,       -0.0L,    inf,       -inf,     std::numeric_limits<oracle::Real>::quiet_NaN(),
              448,     -448,     456,       464,      -465,
              480,     57344,    61440,     65504,    -61441,
              1e-9,    1e-3L,    -0x1p-10L, 0x3p-11L, 0x1p-9L,
              0x1p-6L, 0xfp-10L, -0x1p-17L, 0x3p-18L, 0x1p-14L,
              0x7p-17L};
          const int64_t i = number++;
          if (i % 2 == 0) return special[i / 2 % (sizeof special / sizeof *special)];
          return std::ldexp(static_cast<oracle::Real>(i % 64), static_cast<int>(i / 64 % 20) - 12);  // also midpoints
        };
        step.check();
      }
    }
  }
}

TEST_CASE("words beside codes of heads that are not turned keep their bits", "[rope][step][quant]") {
  for (const rope_dtype_t dtype : dtypes) {
    for (const int64_t gap : {0, 3}) {
      for (const bool is_unrotated : {true, false}) {
        StepCase step = cached(ROPE_DTYPE_F8_E4M3);
        step.dtype = dtype;
        if (is_unrotated) {
          step.flags = ROPE_FLAG_UNROTATED;
          step.table_rows = -1;
        } else {
          step.table_rows = 1;  // most tokens have no row
        }
        step.k.out = step.v.out = StepOut::Own;
        step.k.in_placement.gap(3, gap);
        step.check();
        step.k.out = step.v.out = StepOut::Absent;
        step.cache->k_dtype = dtype;
        quantise_q(ROPE_DTYPE_F8_E4M3, &step);
        step.k.out = StepOut::Own;
        step.k.out_dtype = ROPE_DTYPE_F8_E4M3;
        step.check();
      }
    }
  }
}

// ---- Written scales ----

namespace {

const std::vector<rope_dtype_t> scale_types = {ROPE_DTYPE_F32, ROPE_DTYPE_F8_E8M0};

// The call writes the scales of q and of the caches.
StepCase scaled(rope_dtype_t code, rope_dtype_t type, int groups) {
  StepCase step = cached(code);
  quantise_q(code, &step);
  step.q.scale = step.k.scale = step.v.scale = Scale::None;
  step.q.out_scales.dtype = step.k.cache_scales.dtype = step.v.cache_scales.dtype = type;
  step.q.out_scales.groups = step.k.cache_scales.groups = step.v.cache_scales.groups = groups;
  return step;
}

}  // namespace

TEST_CASE("scales that are written by head and by group", "[rope][step][quant][scales]") {
  for (const rope_dtype_t code : codes) {
    for (const rope_dtype_t type : scale_types) {
      for (const int groups : {1, 4, 64}) {
        for (const rope_layout_t layout : layouts) {
          StepCase step = scaled(code, type, groups);
          step.layout = layout;
          if (layout == ROPE_LAYOUT_THD) step.tokens = 10;
          step.check();
        }
        for (const rope_dtype_t dtype : dtypes) {
          StepCase step = scaled(code, type, groups);
          step.dtype = dtype;
          step.norm = ROPE_NORM_RMS;
          step.q.has_weight = step.k.has_weight = true;
          step.has_amax = true;
          step.check();
          step.quant_flags = ROPE_QUANT_FLAG_POWER_OF_TWO;
          step.has_amax = false;
          step.quant_rounding = ROPE_QUANT_ROUND_FIRST;
          step.check();
        }
      }
    }
  }
}

TEST_CASE("written scales of any strides, split, and inside of a cache's rows", "[rope][step][quant][scales]") {
  for (const rope_dtype_t type : scale_types) {
    StepCase step = scaled(ROPE_DTYPE_F8_E4M3, type, 8);
    step.layout = ROPE_LAYOUT_THD;
    step.tokens = 10;
    step.q.out_scales.is_split = true;
    step.q.out_scales.placement.order({1, 2, 0, 3}).gap(0, 3);
    step.k.cache_scales.is_inline = true;
    step.v.cache_scales.placement.reversed(3).gap(1, 1);
    step.check();
    for (const bool has_other_groups : {false, true}) {
      // An output in addition to the cache, each with its own scales.
      step.k.out = StepOut::Own;
      step.k.out_dtype = ROPE_DTYPE_F8_E4M3;
      step.k.out_scales.dtype = has_other_groups ? ROPE_DTYPE_F32 : type;
      step.k.out_scales.groups = has_other_groups ? 1 : 8;
      step.v.out = StepOut::Own;  // words
      step.check();
      step.head_dim = 80;
      step.rotary_dim = 24;
      step.rotary_offset = 10;
      step.out_style = ROPE_STYLE_INTERLEAVED;
      step.check();
      step.k.out_dtype = ROPE_DTYPE_F8_E5M2;
      step.k.factor = RowFactor::ByHead;
      step.check();
    }
  }
}

TEST_CASE("scales of groups of zeros, of subnormal numbers, of the largest, infinite and NaN",
          "[rope][step][quant][scales]") {
  for (const rope_dtype_t code : codes) {
    for (const rope_dtype_t type : scale_types) {
      for (const double floor : {0.0, 1e-12, 1e-44, 0x1p-149, 448.0, 3e38}) {
        for (const uint32_t flags : {uint32_t{0}, uint32_t{ROPE_QUANT_FLAG_POWER_OF_TWO}}) {
          StepCase step = scaled(code, type, 16);
          step.dtype = ROPE_DTYPE_F32;
          step.flags = ROPE_FLAG_UNROTATED;
          step.table_rows = -1;
          step.scale_floor = floor;
          step.quant_flags = flags;
          int64_t number = 0;
          step.values = [&](int, int64_t, int64_t, int64_t channel) -> oracle::Real {
            constexpr oracle::Real inf = std::numeric_limits<oracle::Real>::infinity();
            // Groups of 4 channels: their largest magnitude, and smaller numbers.
            const oracle::Real special[] = {0,          inf,           std::numeric_limits<oracle::Real>::quiet_NaN(),
                                            0x1p-149L,  0x1p-140L,     0x3p-149L,
                                            0x1p-126L,  0x1.cp-126L,   0x1.c00002p-126L,
                                            0x1p-118L,  448,           448.00003L,
                                            447.99997L, 57344,         57344.004L,
                                            1.75L,      1.7500001L,    0x1.fffffep127L,
                                            0x1p127L,   0x1.cp127L,    0x1.c00002p127L,
                                            1e-10L,     0x1.c00002p3L, 3e-45L};
            const int64_t i = number++ / 4;
            const oracle::Real largest = special[i % static_cast<int64_t>(sizeof special / sizeof *special)];
            if (channel % 4 == i % 4) return channel % 2 == 0 ? largest : -largest;
            if (!std::isfinite(largest)) return static_cast<oracle::Real>(channel) - 30;
            return largest * static_cast<oracle::Real>(channel % 4) / 7;
          };
          step.check();
        }
      }
    }
  }
}

TEST_CASE("written scales of every vector size and what fills none", "[rope][step][quant][scales]") {
  for (const int32_t head_dim : {8, 12, 34, 96, 128, 130, 576}) {
    for (const rope_dtype_t dtype : dtypes) {
      for (const int groups : {1, 2}) {
        StepCase step = scaled(ROPE_DTYPE_F8_E4M3, ROPE_DTYPE_F32, groups);
        step.dtype = dtype;
        step.head_dim = head_dim;
        step.check();
      }
    }
  }
}

TEST_CASE("written scales of whole heads, of an output and a cache at once", "[rope][step][quant][scales]") {
  for (const rope_dtype_t code : codes) {
    for (const rope_dtype_t type : scale_types) {
      for (const int32_t head_dim : {64, 96, 128, 256}) {
        for (const rope_style_t style : {ROPE_STYLE_HALF, ROPE_STYLE_INTERLEAVED}) {
          StepCase step = scaled(code, type, 1);
          step.style = style;
          step.head_dim = head_dim;
          step.dtype = style == ROPE_STYLE_HALF ? ROPE_DTYPE_BF16 : ROPE_DTYPE_F16;
          step.layout = head_dim == 96 ? ROPE_LAYOUT_BHSD : ROPE_LAYOUT_BSHD;
          step.k.out = step.v.out = StepOut::Own;
          step.k.out_dtype = code;
          step.k.out_scales = step.k.cache_scales;
          step.check();
          step.norm = ROPE_NORM_RMS;
          step.norm_rounding = ROPE_NORM_ROUND_BEFORE_WEIGHT;
          step.q.has_weight = step.k.has_weight = true;
          step.q.out_scales.placement.gap(0, 1);
          step.k.cache_scales.is_inline = true;
          step.check();
          step.tokens = 1;
          step.cache->slots = {7, 2};
          step.quant_flags = ROPE_QUANT_FLAG_POWER_OF_TWO;
          step.table_rows = -1;
          step.check();
        }
      }
    }
  }
}

TEST_CASE("written scales of heads of extremes, with a page table", "[rope][step][quant][scales]") {
  for (const rope_dtype_t type : scale_types) {
    for (const double floor : {0.0, 0x1p-100, 448.0}) {
      for (const bool is_normed : {false, true}) {
        StepCase step = scaled(ROPE_DTYPE_F8_E5M2, type, 1);
        step.scale_floor = floor;
        if (is_normed) step.norm = ROPE_NORM_RMS;
        step.quant_rounding = ROPE_QUANT_ROUND_FIRST;
        step.cache->slots.reset();
        step.cache->entries = 2;
        step.cache->pages = 7;
        step.cache->page_table = {{6, 0, 3}, {1, 4, 2}};
        step.values = [](int tensor, int64_t token_number, int64_t head, int64_t channel) -> oracle::Real {
          constexpr oracle::Real inf = std::numeric_limits<oracle::Real>::infinity();
          const oracle::Real largest[] = {0,
                                          0x1p-133L,
                                          0x3p-130L,
                                          1e-30L,
                                          1.75L,
                                          448,
                                          57344,
                                          inf,
                                          0x1.8p127L,
                                          -inf,
                                          std::numeric_limits<oracle::Real>::quiet_NaN()};
          const int64_t i = (token_number * 4 + head + tensor) % 11;
          if (channel == (token_number * 5 + head) % 64) return largest[i];
          return i < 7 ? largest[i] * static_cast<oracle::Real>(channel % 5 - 2) / 4
                       : static_cast<oracle::Real>(channel);
        };
        step.check();
      }
    }
  }
}

TEST_CASE("written scales of heads that several threads write", "[rope][step][quant][scales]") {
  for (const rope_dtype_t type : scale_types) {
    StepCase step = scaled(ROPE_DTYPE_F8_E4M3, type, 2);
    step.dtype = ROPE_DTYPE_F32;
    step.layout = ROPE_LAYOUT_THD;
    step.tokens = 43;
    step.head_dim = 128;
    step.q.heads = 49;
    step.k.heads = step.v.heads = 17;
    step.cache->pages = 15;
    step.cache->slots.emplace();
    for (int64_t i = 0; i < step.tokens; ++i) step.cache->slots->push_back(i * 7 % 60);
    step.check();
  }
}

TEST_CASE("no scale is written for tokens of no sequence, of no place, and at fault", "[rope][step][quant][scales]") {
  for (const rope_dtype_t type : scale_types) {
    for (const rope_dtype_t dtype : dtypes) {
      StepCase step = scaled(ROPE_DTYPE_F8_E5M2, type, 4);
      step.dtype = dtype;
      step.layout = ROPE_LAYOUT_THD;
      step.tokens = 10;
      step.cu_seqlens = {1, 4, 4, 8};
      step.has_fault = true;
      step.cache->slots = {3, 12, -1, 0, 5, 7, 1, 2};  // one outside, and no slots for the last two tokens
      step.cache->flags = ROPE_CACHE_FLAG_SKIP_SLOT_0;
      step.check();
      step.cu_seqlens.clear();
      step.table_rows = 3;  // most tokens have no row
      step.check();
      step.q.out_scales.groups = step.k.cache_scales.groups = step.v.cache_scales.groups = 1;
      step.check();
    }
  }
}

TEST_CASE("written scales of one destination beside codes of the other, which have none",
          "[rope][step][quant][scales]") {
  for (const rope_dtype_t type : scale_types) {
    for (const rope_dtype_t dtype : dtypes) {
      for (const bool is_of_out : {true, false}) {
        StepCase step = scaled(ROPE_DTYPE_F8_E4M3, type, 2);
        step.dtype = dtype;
        step.k.out = step.v.out = StepOut::Own;
        step.k.out_dtype = step.v.out_dtype = ROPE_DTYPE_F8_E4M3;
        if (is_of_out) std::swap(step.k.out_scales, step.k.cache_scales);
        step.v.cache_scales.dtype = 0;
        step.v.scale = Scale::ByHead;
        step.check();
      }
    }
  }
}
