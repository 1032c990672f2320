// SPDX-License-Identifier: Apache-2.0
// sanitize_tests.cpp - every kernel of the library in few and small calls, for tools that slow each call down
//
// ROPE_TEST_EXACT_MEMORY=1 compute-sanitizer --tool memcheck rope_api_tests "[sanitize]", and likewise with racecheck,
// initcheck and synccheck. Results are compared with the oracle, and each tensor has a device allocation of its own.
// Tests in rope_long_tests.cpp with the same tag run the kernels of long launches.
#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <string>
#include <vector>

#include "support/cases.hpp"
#include "support/step_case.hpp"

namespace {

const std::vector<rope_dtype_t> narrow_dtypes = {ROPE_DTYPE_F32, ROPE_DTYPE_F16, ROPE_DTYPE_BF16};
const std::vector<rope_dtype_t> dtypes = {ROPE_DTYPE_F32, ROPE_DTYPE_F16, ROPE_DTYPE_BF16, ROPE_DTYPE_F64};

// Enough tokens for vectors of 16 bytes, with 16 + 4 heads of 128 channels or with one head, on a GPU of up to 160
// multiprocessors. Without a GPU a tenth is enough: other tests cover calls with several threads.
int64_t many_tokens() {
  return has_cuda() ? 320 : 32;
}

int64_t alone_tokens() {
  return has_cuda() ? 6100 : 610;
}

const char *name_of(rope_style_t style) {
  return style == ROPE_STYLE_HALF ? "half" : "interleaved";
}

PositionValue scattered() {
  return [](int64_t batch, int64_t token) { return 7 * token + 1000 * batch; };
}

// The kernels, by their names in rope_explain, that calls with tensors so many bytes from the alignment have used.
struct Reach {
  std::vector<std::string> explanations;

  bool has(const std::string &dtype, const std::string &pairing, const std::string &kernel) const {
    const std::string beginning = "rope " + dtype + ' ' + pairing + " on CUDA: " + kernel + " kernel, ";
    return std::any_of(explanations.begin(), explanations.end(),
                       [&](const std::string &text) { return text.compare(0, beginning.size(), beginning) == 0; });
  }

  void check(rope_dtype_t dtype, const char *pairing, std::initializer_list<const char *> kernels) const {
    if (!has_cuda()) return;
    for (const char *kernel : kernels) {
      INFO(oracle::dtype_name(dtype) << ' ' << pairing << ": " << kernel);
      CHECK(has(oracle::dtype_name(dtype), pairing, kernel));
    }
  }
};

StepCase step_of_codes(rope_dtype_t dtype, rope_style_t style, bool is_normed, bool has_table, int64_t tokens) {
  StepCase step;
  step.dtype = dtype;
  step.layout = ROPE_LAYOUT_THD;
  step.style = style;
  step.tokens = tokens;
  step.head_dim = 128;
  step.flags = ROPE_FLAG_V_UNROTATED;
  step.q.heads = 8;
  step.k.heads = step.v.heads = 2;
  step.q.out = StepOut::Own;
  step.q.out_dtype = ROPE_DTYPE_F8_E4M3;
  step.q.scale = Scale::ByHead;
  step.k.scale = step.v.scale = Scale::One;
  if (is_normed) {
    step.norm = ROPE_NORM_RMS;
    step.q.has_weight = step.k.has_weight = true;
  }
  if (has_table) step.table_rows = tokens - 1;
  step.has_fault = true;
  StepCache &cache = step.cache.emplace();
  cache.has_v = true;
  cache.k_dtype = cache.v_dtype = ROPE_DTYPE_F8_E4M3;
  cache.pages = tokens / 8 + 2;
  cache.entries = 16;
  cache.slots.emplace();
  // Some tokens have no place, and one place is outside the cache.
  for (int64_t i = 0; i < tokens; ++i) cache.slots->push_back(i % 5 == 4 ? -1 : (i * 7 + 3) % (8 * tokens));
  cache.slots->back() = cache.pages * cache.entries;
  return step;
}

// Places the batches so that they are not consecutive; such launches are never short.
void lay_in_batches(StepCase *step) {
  step->layout = ROPE_LAYOUT_BHSD;
  step->batch = 2;
  step->tokens /= 2;
}

void lay_in_pages(StepCase *step) {
  StepCache &cache = *step->cache;
  cache.slots.reset();
  cache.positions.emplace();
  cache.page_table.emplace();
  cache.page_table->emplace_back();
  for (int64_t i = 0; i < step->tokens; ++i) cache.positions->push_back(i == 1 ? -1 : 3 * i);
  for (int64_t i = 0; i < 3 * step->tokens / cache.entries; ++i) {
    cache.page_table->back().push_back(i == 2 ? -1 : cache.pages - 1 - i);
  }
}

// Runs requests of one kind in and out of place, aligned to 16 bytes and to 8.
class Requests {
 public:
  Requests(rope_dtype_t dtype, rope_style_t style, Reach *reach) : dtype_(dtype), style_(style), reach_(reach) {}

  RopeCase small(int32_t head_dim = 64) const {
    return RopeCase().dtype(dtype_).style(style_).batch(2).tokens(3).heads(3, 2).head_dim(head_dim).explained(
        &reach_->explanations);
  }

  RopeCase large() const { return small(128).batch(1).tokens(many_tokens()).heads(16, 4); }

  RopeCase alone() const { return small(128).tokens(alone_tokens() / 2).heads(1, 0); }

  void check(RopeCase request) const {
    request.check();
    request.out_of_place().placed(Placement().at(8 / oracle::element_size(dtype_))).check();
  }

 private:
  rope_dtype_t dtype_;
  rope_style_t style_;
  Reach *reach_;
};

}  // namespace

TEST_CASE("RoPE kernels of computed angles", "[rope][sanitize]") {
  Reach reach;
  for (const rope_dtype_t dtype : narrow_dtypes) {
    for (const rope_style_t style : {ROPE_STYLE_HALF, ROPE_STYLE_INTERLEAVED}) {
      const Requests requests(dtype, style, &reach);
      requests.check(requests.small().positions(PositionShape::PerBatchAndToken, ROPE_DTYPE_I32, scattered()));
      requests.check(requests.small().heads(2, 1));
      requests.check(requests.small().batch(1));
      // Threads behind the last head compute a pair too, and k has no head to which they could point.
      for (const int64_t tokens : {1, 410}) requests.small(128).batch(1).tokens(tokens).heads(3, 0).check();
      requests.check(requests.large());
      // A launch with several batches is never short.
      requests.check(requests.large().batch(2).tokens(many_tokens() / 2));
      requests.alone()
          .positions(PositionShape::PerBatchAndToken, ROPE_DTYPE_I32, scattered(), Placement().gap(0, 3))
          .check();
      requests.check(requests.small(128).rotary_dim(64).rotary_offset(64));
      // Here no vector fits.
      requests.small()
          .placed(Placement().at(1))
          .positions(PositionShape::PerToken, ROPE_DTYPE_I64, scattered())
          .check();
      std::vector<int32_t> axes;
      for (int32_t pair = 0; pair < 64; ++pair) axes.push_back(pair % 3);
      for (const bool is_large : {false, true}) {
        const RopeCase request = is_large ? requests.large() : requests.small(128);
        RopeCase(request)
            .axes(3, axes)
            .axis_positions(PositionShape::PerBatchAndToken, ROPE_DTYPE_I32,
                            [](int64_t axis, int64_t batch, int64_t token) { return 100 * axis + 10 * batch + token; })
            .check();
        const int64_t tokens = is_large ? many_tokens() : 11;
        RopeCase(request)
            .batch(1)
            .tokens(tokens)
            .sequences({0, 4, 4, tokens - 1})
            .start_positions(PositionShape::PerBatch, ROPE_DTYPE_I64, scattered())
            .out_of_place()
            .check();
      }
      reach.check(dtype, name_of(style),
                  {"thread angles", "short warp angles", "short angles", "token angles", "scalar angles"});
    }
  }
}

TEST_CASE("RoPE kernels of tables", "[rope][sanitize]") {
  Reach reach;
  for (const rope_dtype_t dtype : narrow_dtypes) {
    for (const rope_style_t style : {ROPE_STYLE_HALF, ROPE_STYLE_INTERLEAVED}) {
      const Requests requests(dtype, style, &reach);
      // Some positions are outside the table.
      const auto small = [&](rope_dtype_t table) {
        return requests.small().table_dtype(table).tables(3).positions(
            PositionShape::PerToken, ROPE_DTYPE_I32, [](int64_t, int64_t token) { return 2 * token; });
      };
      for (const rope_dtype_t table : narrow_dtypes) {
        requests.check(small(table));
        requests.check(small(table).batch(1));
        requests.large().batch(2).tokens(many_tokens() / 2).table_dtype(table).tables(many_tokens() / 2 - 5).check();
        requests.alone().table_dtype(table).tables(alone_tokens() / 2 - 5).check();
      }
      requests.check(requests.small().tables(3).fault());
      requests.check(requests.small().tables_by_token(true));
      requests.check(requests.small().batch(1).tokens(11).sequences({0, 4, 4, 10}).tables(4).fault());
      requests.small().placed(Placement().gap(3, 1)).tables(3).check();
      reach.check(dtype, name_of(style), {"thread table", "short table", "token table", "scalar table"});
    }
  }
}

TEST_CASE("the general RoPE kernel", "[rope][sanitize]") {
  Reach reach;
  for (const rope_dtype_t dtype : dtypes) {
    for (const rope_style_t style : {ROPE_STYLE_HALF, ROPE_STYLE_INTERLEAVED}) {
      const Requests requests(dtype, style, &reach);
      const rope_style_t other = oracle::other_style(style);
      requests.check(requests.small().tables(3).table_width(TableWidth::Channels).fault());
      requests.check(requests.small().table_dtype(ROPE_DTYPE_F64).tables(3).fault());
      requests.check(requests.small().tables(3).angles(100));
      requests.check(
          requests.small().batch(1).tokens(11).sequences({0, 4, 4, 10}).table_dtype(ROPE_DTYPE_F64).tables(4).fault());
      requests.check(requests.small().out_style(other));
      if (dtype != ROPE_DTYPE_F64)
        requests.large().tables(many_tokens()).table_width(TableWidth::Channels).fault().check();
      requests.small().out_style(other).placed(Placement().at(1)).check();
      requests.check(requests.small().rotary_dim(16).rotary_offset(4));
      if (style == ROPE_STYLE_HALF) requests.check(requests.small().pair_block(32));
      reach.check(dtype, name_of(style), {"general"});
      reach.check(dtype, "converted", {"general"});
    }
  }
}

TEST_CASE("kernels of whole heads whose outputs and caches have 8 bits", "[rope][step][quant][sanitize]") {
  for (const rope_dtype_t dtype : {ROPE_DTYPE_F16, ROPE_DTYPE_BF16}) {
    for (const rope_style_t style : {ROPE_STYLE_HALF, ROPE_STYLE_INTERLEAVED}) {
      for (const bool is_normed : {false, true}) {
        std::vector<std::string> explanations;
        const auto step = [&](bool has_table, int64_t tokens) {
          StepCase of = step_of_codes(dtype, style, is_normed, has_table, tokens);
          of.explanations = &explanations;
          return of;
        };
        for (const bool has_table : {false, true}) {
          StepCase few = step(has_table, 14);
          few.check();
          few.q.out = StepOut::Absent;  // codes only in caches
          few.q.scale = Scale::None;
          few.check();
          few.flags = ROPE_FLAG_UNROTATED;
          few.table_rows = -1;
          few.check();
          lay_in_batches(&few);
          few.check();
          StepCase several = step(has_table, 14);
          lay_in_batches(&several);
          several.check();
          several.quant_flags = ROPE_QUANT_FLAG_SCALE_MULTIPLIES;
          several.head_dim = 256;
          several.check();
        }
        step(false, many_tokens()).check();
        check_step_kernels(explanations, {"short angles codes", "long codes", "long angles codes", "long table codes"});
        if (is_normed) {
          check_step_kernels(explanations, {"short codes", "short table codes"});
        } else {
          check_step_kernels(explanations, {"warp angles codes", "warp codes", "warp table codes"});
        }
      }
    }
  }
}

TEST_CASE("kernels of whole heads in long launches that have more codes", "[rope][step][quant][sanitize]") {
  for (const rope_dtype_t dtype : {ROPE_DTYPE_F16, ROPE_DTYPE_BF16}) {
    for (const rope_style_t style : {ROPE_STYLE_HALF, ROPE_STYLE_INTERLEAVED}) {
      for (const bool is_normed : {false, true}) {
        for (const bool has_table : {false, true}) {
          std::vector<std::string> explanations;
          StepCase step = step_of_codes(dtype, style, is_normed, has_table, 14);
          step.explanations = &explanations;
          StepCase of = step;
          lay_in_pages(&of);
          of.check();
          if (is_normed) {
            check_step_kernels(explanations,
                               {has_table ? "short with more table codes" : "short with more angles codes"});
            explanations.clear();
          }
          of.q.out_dtype = of.cache->k_dtype = of.cache->v_dtype = ROPE_DTYPE_F8_E5M2;
          of.check();
          of = step;
          of.q.out_dtype = of.cache->k_dtype = of.cache->v_dtype = ROPE_DTYPE_F8_E5M2;
          of.check();
          of = step;
          of.k.out = of.v.out = StepOut::Own;  // in the data's type
          of.check();
          of.k.out = of.v.out = StepOut::Same;
          of.check();
          of = step;
          of.quant_rounding = ROPE_QUANT_ROUND_FIRST;
          of.check();
          of.flags = ROPE_FLAG_UNROTATED;
          of.table_rows = -1;
          of.check();
          lay_in_batches(&of);
          of.check();
          check_step_kernels(explanations, {has_table ? "long table codes" : "long angles codes", "long codes"});
          for (const std::string &text : explanations) CHECK(text.find(": long ") != std::string::npos);
        }
      }
    }
  }
}

TEST_CASE("kernels of steps with codes, amax and row factors", "[rope][step][quant][factor][sanitize]") {
  for (const rope_dtype_t dtype : dtypes) {
    for (const rope_style_t style : {ROPE_STYLE_HALF, ROPE_STYLE_INTERLEAVED}) {
      for (const bool is_normed : {false, true}) {
        for (const bool has_table : {false, true}) {
          std::vector<std::string> explanations;
          StepCase step = step_of_codes(dtype, style, is_normed, has_table, 14);
          step.explanations = &explanations;
          StepCase factors = step;
          factors.q.factor = RowFactor::ByToken;
          factors.k.factor = factors.v.factor = RowFactor::ByHead;
          factors.k.factor_dtype = ROPE_DTYPE_F32;
          if (dtype != ROPE_DTYPE_F64) {
            factors.check();
            step.has_amax = true;
            step.check();
            step.quant_rounding = ROPE_QUANT_ROUND_FIRST;
            step.q.out_dtype = step.cache->v_dtype = ROPE_DTYPE_F8_E5M2;
            step.k.out = StepOut::Own;
            step.k.out_dtype = ROPE_DTYPE_F8_E5M2;  // not the cache's type
            lay_in_batches(&step);
            step.check();
            step.has_amax = false;
            step.rotary_dim = 40;
            step.rotary_offset = 6;
            step.check();
          }
          factors.q.out_dtype = factors.cache->k_dtype = factors.cache->v_dtype = 0;
          factors.q.scale = factors.k.scale = factors.v.scale = Scale::None;
          factors.check();
          check_step_kernels(explanations, {"general"});
          if (oracle::element_size(dtype) != 2) continue;
          check_step_kernels(explanations, {has_table ? "long table codes" : "long angles codes",
                                            has_table ? "long table factors" : "long angles factors"});
        }
      }
    }
  }
}

TEST_CASE("kernels of steps with written scales", "[rope][step][quant][scales][sanitize]") {
  for (const rope_dtype_t dtype : {ROPE_DTYPE_F32, ROPE_DTYPE_F16, ROPE_DTYPE_BF16}) {
    for (const rope_style_t style : {ROPE_STYLE_HALF, ROPE_STYLE_INTERLEAVED}) {
      for (const bool is_normed : {false, true}) {
        std::vector<std::string> explanations;
        StepCase step = step_of_codes(dtype, style, is_normed, is_normed, 14);
        step.explanations = &explanations;
        step.q.scale = step.k.scale = step.v.scale = Scale::None;
        step.q.out_scales.dtype = step.k.cache_scales.dtype = step.v.cache_scales.dtype = ROPE_DTYPE_F32;
        step.check();
        const char *const of_heads = is_normed ? "long table codes" : "long angles codes";
        check_step_kernels(explanations, {dtype == ROPE_DTYPE_F32 ? "general" : of_heads});
        explanations.clear();
        step.q.out_scales.is_split = step.k.cache_scales.is_inline = true;
        step.q.out_scales.groups = 8;
        step.k.cache_scales.groups = 128;
        step.v.cache_scales = {ROPE_DTYPE_F8_E8M0, 2, false, false, {}};
        step.cache->v_dtype = step.k.out_dtype = ROPE_DTYPE_F8_E5M2;
        step.k.out = StepOut::Own;  // beside the cache, with separate scales
        step.k.out_scales.dtype = ROPE_DTYPE_F8_E8M0;
        step.quant_flags = ROPE_QUANT_FLAG_POWER_OF_TWO;
        step.has_amax = true;
        step.check();
        step.q.out_scales.is_split = false;
        step.rotary_dim = 40;
        step.rotary_offset = 6;
        step.k.factor = RowFactor::ByHead;
        lay_in_batches(&step);
        step.check();
        for (const std::string &text : explanations) CHECK(text.find(": general kernel, ") != std::string::npos);
      }
    }
  }
}

TEST_CASE("the general kernel of steps in parts", "[rope][step][pass][sanitize]") {
  for (const rope_dtype_t dtype : {ROPE_DTYPE_F32, ROPE_DTYPE_F16, ROPE_DTYPE_BF16}) {
    for (const rope_style_t style : {ROPE_STYLE_HALF, ROPE_STYLE_INTERLEAVED}) {
      for (const bool is_normed : {false, true}) {
        std::vector<std::string> explanations;
        StepCase step = step_of_codes(dtype, style, is_normed, false, 14);
        step.explanations = &explanations;
        step.rotary_dim = 40;
        step.rotary_offset = 6;
        step.q.has_pass = step.k.has_pass = step.cache->has_k_pass = true;
        step.q.out = StepOut::Own;
        step.k.scale = Scale::None;
        step.cache->k_dtype = 0;
        step.cache->k_pass_dtype = ROPE_DTYPE_F8_E4M3;
        step.cache->k_pass_scales = {ROPE_DTYPE_F8_E8M0, 2, false, false, {}};
        step.check();
        step.k.out = StepOut::Own;
        step.cache->k_pass_scales = {};
        step.cache->k_pass_scale = Scale::One;
        lay_in_batches(&step);
        step.check();
        for (const std::string &text : explanations) CHECK(text.find(": general kernel, ") != std::string::npos);
      }
    }
  }
}

// The kernel follows from the request alone: its direction, form, rows and alternating tensors.
TEST_CASE("SwiGLU kernels", "[swiglu][sanitize]") {
  for (const rope_dtype_t dtype : dtypes) {
    for (const bool is_plain : {true, false}) {
      const auto request = [&](const Shape &shape) {
        SwigluCase result = SwigluCase().dtype(dtype).shape(shape);
        return is_plain ? result : result.form(1.702, 7, 1, 0.5).row_scale(1).num_rows(shape[0] - 1, ROPE_DTYPE_I32);
      };
      for (const bool is_recomputed : {false, true}) {
        const auto check = [&](SwigluCase each) { (is_recomputed ? each.recomputed() : each).check(); };
        // Vectors of 16 bytes, only in large launches; vectors of 8 bytes; single elements, with the end of a row
        // inside a vector.
        check(request({5, 64}));
        check(request({3, 37}));
        check(request({3, 40}).placed(Placement().at(1)));
        check(request({3, 42}).placed(Placement().at(2)));
        check(request({3, 40}).packing(GatePacking::GateFirst, GatePacking::UpFirst));
        // Both orders of alternating elements, in the inputs, in the gradients, and in both.
        check(request({3, 64}).packing(GatePacking::Alternating, GatePacking::Alternating));
        check(request({3, 64}).packing(GatePacking::AlternatingUpFirst, GatePacking::AlternatingUpFirst));
        check(request({3, 64}).packing(GatePacking::Alternating));
        check(request({3, 64}).packing(GatePacking::Separate, GatePacking::AlternatingUpFirst));
      }
      // Sums of rows, in whole groups and one by one.
      SwigluCase sums = request({4, 600}).row_scale(1, ROPE_DTYPE_F32).grad_row_scale();
      sums.check();
      sums.recomputed().check();
      request({4, 3, 75}).row_scale(2).grad_row_scale().placed(Placement().at(1)).check();
    }
  }
  // Vectors of full width on up to 160 multiprocessors.
  const int64_t rows = has_cuda() ? 801 : 41;
  for (const rope_dtype_t dtype : narrow_dtypes) {
    const SwigluCase large = SwigluCase().dtype(dtype).shape({rows, dtype == ROPE_DTYPE_F32 ? 512 : 1024});
    large.check();
    SwigluCase(large).packing(GatePacking::GateFirst).form(1.702, 7, 1, 0.5).check();
    SwigluCase().dtype(dtype).shape({5, 64}).form(1.702, 7, 1, 0.5).check();
    SwigluCase(large).form(1.702, 7, 1, 0.5).row_scale(1).recomputed().check();
    SwigluCase(large).packing(GatePacking::Alternating, GatePacking::AlternatingUpFirst).check();
  }
}

TEST_CASE("SwiGLU kernels of options and experts", "[swiglu][sanitize][options]") {
  for (const rope_dtype_t dtype : dtypes) {
    SwigluCase plain;
    plain.dtype(dtype).recomputed();
    // Each formula that has its own kernels for matrices; all others run element by element.
    for (const int32_t activation : {SWIGLU_ACTIVATION_SWIGLU, SWIGLU_ACTIVATION_GEGLU_ERF,
                                     SWIGLU_ACTIVATION_GEGLU_TANH, SWIGLU_ACTIVATION_REGLU}) {
      const SwigluCase one = SwigluCase(plain).activation(activation);
      SwigluCase(one).shape({5, 64}).check();
      SwigluCase(one).shape({3, 37}).packing(GatePacking::Alternating).check();
      SwigluCase(one).shape({3, 40}).form(0, 2, 0, 0).rounds_activation().check();
      SwigluCase(one).shape({4, 3, 75}).row_scale(2).grad_row_scale().num_rows(3, ROPE_DTYPE_I32).check();
    }
    SwigluCase(plain).shape({5, 64}).soft_caps(4, 25).check();
    for (const rope_dtype_t bias : {rope_dtype_t{0}, rope_dtype_t{ROPE_DTYPE_F32}}) {
      SwigluCase(plain).shape({5, 64}).biases(bias).check();
      SwigluCase(plain).shape({3, 37}).biases(bias).activation(SWIGLU_ACTIVATION_REGLU).check();
      SwigluCase(plain).shape({4, 3, 64}).experts({2, 0, 7, -1}, ROPE_DTYPE_I32).biases(bias, true).check();
      SwigluCase(plain).shape({4, 3, 64}).experts({2, 0, 3, 1}, ROPE_DTYPE_I64).row_scale(2, ROPE_DTYPE_F32).check();
      SwigluCase(plain).shape({4, 3, 37}).experts({2, 0, 3, 1}, ROPE_DTYPE_I64).biases(bias, true).check();
      SwigluCase(plain).shape({4, 3, 64}).experts({2, 0, 3, 1}, ROPE_DTYPE_I64).row_scale(2).grad_row_scale().check();
    }
    SwigluCase(plain).shape({300, 1, 16}).experts(std::vector<int64_t>(300, 1), ROPE_DTYPE_I32).check();
  }
}

TEST_CASE("kernels of gradients of norms of 16 bits", "[rope][step][gradient][sanitize]") {
  for (const rope_norm_extent_t extent : {ROPE_NORM_EXTENT_HEAD, ROPE_NORM_EXTENT_TOKEN}) {
    for (const int32_t head_dim : {128, 96}) {
      for (const bool has_sums : {true, false}) {
        StepCase step;
        step.direction = Direction::Backward;
        step.dtype = ROPE_DTYPE_BF16;
        step.tokens = 37;
        step.head_dim = head_dim;
        step.rotary_dim = head_dim == 96 ? 64 : 0;
        step.norm = ROPE_NORM_RMS;
        step.norm_extent = extent;
        step.style = has_sums ? ROPE_STYLE_HALF : ROPE_STYLE_INTERLEAVED;
        step.q.heads = extent == ROPE_NORM_EXTENT_HEAD && !has_sums ? 70 : 8;
        step.k.heads = 2;
        for (StepTensor *tensor : {&step.q, &step.k}) {
          tensor->out = StepOut::Own;
          tensor->has_weight = true;
          tensor->has_grad_weight = has_sums;
          tensor->runs = 5;
        }
        step.k.weight_by_head = step.k.grads_by_head = head_dim == 96;
        step.table_rows = has_sums ? 30 : -1;
        step.has_fault = true;
        step.check();
      }
    }
  }
}

TEST_CASE("kernels of gradients of norms, and of gradients that are added", "[rope][step][gradient][sanitize]") {
  for (const rope_dtype_t dtype : {ROPE_DTYPE_F32, ROPE_DTYPE_BF16, ROPE_DTYPE_F64}) {
    for (const rope_norm_type_t norm : {ROPE_NORM_RMS, ROPE_NORM_LAYER}) {
      for (const bool is_of_token : {false, true}) {
        StepCase step;
        step.direction = Direction::Backward;
        step.dtype = dtype;
        step.layout = ROPE_LAYOUT_THD;
        step.tokens = 11;
        step.cu_seqlens = {0, 4, 9};
        step.head_dim = 128;
        step.norm = norm;
        step.norm_order = is_of_token ? ROPE_NORM_ORDER_AFTER : ROPE_NORM_ORDER_BEFORE;
        step.norm_extent = is_of_token ? ROPE_NORM_EXTENT_TOKEN : ROPE_NORM_EXTENT_HEAD;
        step.flags = ROPE_FLAG_V_UNROTATED | (is_of_token ? ROPE_FLAG_ACCUMULATE : 0);
        step.q.heads = 40;  // so many channels that their sums take two passes
        step.k.heads = step.v.heads = 2;
        for (StepTensor *tensor : {&step.q, &step.k, &step.v}) tensor->out = StepOut::Own;
        for (StepTensor *tensor : {&step.q, &step.k}) {
          tensor->has_weight = tensor->has_grad_weight = true;
          tensor->has_grad_bias = norm == ROPE_NORM_LAYER;
          tensor->runs = 3;
        }
        step.k.grads_by_head = true;
        step.table_rows = 4;
        step.has_fault = true;
        step.check();
      }
    }
    StepCase step;
    step.direction = Direction::Backward;
    step.dtype = dtype;
    step.head_dim = 128;
    step.flags = ROPE_FLAG_ACCUMULATE;
    step.q.heads = 8;
    step.k.heads = 2;
    step.q.out = step.k.out = StepOut::Own;
    step.table_rows = 4;
    step.has_fault = true;
    step.check();
  }
}
