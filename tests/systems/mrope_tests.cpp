// SPDX-License-Identifier: Apache-2.0
// mrope_tests.cpp - positions of several axes: M-RoPE of Qwen2-VL and Qwen3-VL, Ernie 4.5 VL, xdrope of Hunyuan, IMROPE
// and VISION of llama.cpp, image and video grids
//
// Each map from pair to axis is written here as in its system; rope_section_axes fills pair_axis from the section list
// of the model's config.
#include <catch2/catch_test_macros.hpp>
#include <cmath>
#include <vector>

#include "support/cases.hpp"
#include "system.hpp"

using namespace systems;

namespace {

constexpr Real theta = 10000;

struct Model {
  const char *name;
  rope_sections_type_t type;
  std::vector<int32_t> sections;
  // The system's own rule and frequencies.
  std::function<int32_t(int64_t pair)> axis;
  std::function<Real(int64_t pair)> frequency = [](int64_t pair) { return systems::frequency(theta, pair, 32); };
  int32_t num_axes = 3;
  rope_style_t style = ROPE_STYLE_HALF;
  int64_t head_dim = 32, rotary_dim = 32;
};

Model qwen2_vl(rope_style_t style = ROPE_STYLE_HALF) {
  Model model = {"Qwen2-VL", ROPE_SECTIONS_CHUNKED, {4, 6, 6}, {}};  // mrope_section: t, h, w
  model.axis = [](int64_t i) {
    if (i < 4) return 0;
    return i < 4 + 6 ? 1 : 2;
  };
  model.style = style;
  return model;
}

Model qwen3_vl() {
  Model model = {"Qwen3-VL", ROPE_SECTIONS_INTERLEAVED, {6, 5, 5}, {}};  // mrope_section with mrope_interleaved
  model.axis = [](int64_t i) {
    if (i % 3 == 1 && i < 3 * 5) return 1;
    if (i % 3 == 2 && i < 3 * 5) return 2;
    return 0;
  };
  model.head_dim = 40;  // partially rotated
  return model;
}

Model ernie() {
  Model model = {"Ernie 4.5 VL", ROPE_SECTIONS_ERNIE, {6, 6, 4}, {}};  // h, w, t
  model.axis = [](int64_t i) {
    if (i >= 6 + 6) return 0;
    return i % 2 == 0 ? 1 : 2;
  };
  model.style = ROPE_STYLE_INTERLEAVED;
  return model;
}

Model xdrope() {
  Model model = {"xdrope", ROPE_SECTIONS_CHUNKED, {4, 4, 4, 4}, {}};  // xdrope_section: p, w, h, t
  model.axis = [](int64_t i) { return static_cast<int32_t>(i / 4); };
  model.num_axes = 4;
  return model;
}

Model imrope() {
  Model model = {"IMROPE", ROPE_SECTIONS_IMROPE, {5, 4, 3, 0}, {}};  // t, h, w, e
  model.axis = [](int64_t i) {
    const int64_t sector = i % (5 + 4 + 3 + 0);
    if (sector % 3 == 1 && sector < 3 * 4) return 1;
    if (sector % 3 == 2 && sector < 3 * 3) return 2;
    if (sector % 3 == 0 && sector < 3 * 5) return 0;
    return 3;
  };
  model.num_axes = 4;
  return model;
}

Model vision() {
  Model model = {"VISION", ROPE_SECTIONS_VISION, {8, 8}, {}};  // of n_dims = head_dim/2 pairs (c, c + n_dims)
  model.axis = [](int64_t i) { return i % (8 + 8) < 8 ? 0 : 1; };
  model.frequency = [](int64_t i) {
    const int64_t sector = i % (8 + 8), step = sector < 8 ? sector : sector - 8;
    return std::pow(theta, -2 * static_cast<Real>(step) / 16);  // theta^(-2/n_dims), repeatedly
  };
  model.num_axes = 2;
  return model;
}

// Frame, row and column of a video model; each has separate channels and frequencies.
Model video() {
  Model model = {"video grid", ROPE_SECTIONS_RESTARTED, {6, 5, 5}, {}};
  model.axis = [](int64_t i) {
    if (i < 6) return 0;
    return i < 6 + 5 ? 1 : 2;
  };
  model.frequency = [](int64_t i) {
    if (i < 6) return systems::frequency(theta, i, 12);
    return systems::frequency(theta, i < 11 ? i - 6 : i - 11, 10);
  };
  model.style = ROPE_STYLE_INTERLEAVED;
  return model;
}

std::vector<Model> all_models() {
  return {qwen2_vl(), qwen2_vl(ROPE_STYLE_INTERLEAVED), qwen3_vl(), ernie(), xdrope(), imrope(), vision(), video()};
}

// pair_axis and inv_freq of the model, and a config that uses them.
struct Sections {
  explicit Sections(const Model &model) : pair_axis(model.rotary_dim / 2), inv_freq(model.rotary_dim / 2) {
    rope_sections_t sections = {};
    sections.struct_size = sizeof sections;
    sections.type = model.type;
    sections.num_sections = static_cast<int32_t>(model.sections.size());
    for (size_t i = 0; i < model.sections.size(); ++i) sections.section[i] = model.sections[i];
    REQUIRE(rope_section_axes(static_cast<int32_t>(model.rotary_dim), static_cast<double>(theta), &sections,
                              pair_axis.data(), inv_freq.data()) == ROPE_STATUS_SUCCESS);
  }
  std::vector<int32_t> pair_axis;
  std::vector<double> inv_freq;
};

RopeCall call_of(const Model &model, const Sections &sections, rope_dtype_t dtype) {
  RopeCall call(dtype, static_cast<int32_t>(model.head_dim));
  call.config.style = model.style;
  call.config.rotary_dim = static_cast<int32_t>(model.rotary_dim);
  call.config.num_axes = model.num_axes;
  call.config.pair_axis = sections.pair_axis.data();
  call.config.inv_freq = sections.inv_freq.data();
  return call;
}

int64_t grid_position(int64_t axis, int64_t batch, int64_t token) {
  return axis == 0 ? 3 * batch + token : axis == 1 ? 2 * batch + token / 2 : axis == 2 ? 11 - token : 5 * token % 7;
}

}  // namespace

TEST_CASE("M-RoPE: every map, positions by any strides", "[systems][mrope]") {
  const int64_t B = 2, S = 5, H = 3;
  // As [A, B, S], as [B, A, S] (OneFlow) and as [B, S, A] (lmdeploy, token-major).
  const std::vector<std::vector<int>> orders = {{0, 1, 2}, {1, 0, 2}, {2, 0, 1}};
  for (const Model &model : all_models()) {
    INFO(model.name);
    const Sections sections(model);
    for (rope_dtype_t dtype : floating) {
      for (size_t order = 0; order < orders.size(); ++order) {
        RopeCall call = call_of(model, sections, dtype);
        const int64_t A = model.num_axes;
        const Array q = call.data({B, S, H, model.head_dim});
        const Shape shapes[] = {{A, B, S}, {B, A, S}, {B, S, A}};
        const Array positions = call.positions(ROPE_DTYPE_I64, shapes[order], [&](const Shape &at) {
          const std::vector<int> &axes = orders[order];
          return grid_position(at[axes[0]], at[axes[1]], at[axes[2]]);
        });
        // lmdeploy's position_delta of each sequence, on every axis
        const Array delta = call.positions(ROPE_DTYPE_I32, {B}, [](const Shape &at) { return 100 * at[0]; });
        call.args.q = q.tensor();
        call.args.positions = permuted(positions.tensor(), orders[order]);
        if (order == 2) call.args.start_positions = delta.tensor();
        Formula &formula = call.formula(q);
        for_each({B, S, H}, [&](const Shape &at) {
          const auto element = [&](int64_t c) { return q.at({at[0], at[1], at[2], c}); };
          const auto turn = [&](int64_t i) {
            const int64_t position = grid_position(model.axis(i), at[0], at[1]) + (order == 2 ? 100 * at[0] : 0);
            const Real inv_freq = static_cast<double>(model.frequency(i));  // as the config stores it
            return by_angle(position * inv_freq);
          };
          formula.rotate_pairs(model.style, model.rotary_dim, element, element, turn);
        });
        call.check();
      }
    }
  }
}

// vLLM: cos | sin [max_position, rotary_dim], positions [A, T] or token-major [T, A].
TEST_CASE("M-RoPE: every map, rows of one cache", "[systems][mrope]") {
  const int64_t T = 7, H = 4, H_k = 2, rows = 13;
  for (const Model &model : all_models()) {
    INFO(model.name);
    const Sections sections(model);
    for (bool token_major : {false, true}) {
      RopeCall call = call_of(model, sections, ROPE_DTYPE_BF16);
      call.config.layout = ROPE_LAYOUT_THD;
      call.config.theta = 0;
      call.config.inv_freq = nullptr;
      const int64_t A = model.num_axes, pairs = model.rotary_dim / 2;
      const Array q = call.data({T, H * model.head_dim}), k = call.data({T, H_k * model.head_dim});
      const Array cache = call.table(ROPE_DTYPE_F32, {rows, model.rotary_dim});
      const auto position = [](int64_t axis, int64_t token) { return grid_position(axis, 0, token) % 13; };
      const Array positions = call.positions(
          ROPE_DTYPE_I64, token_major ? Shape{T, A} : Shape{A, T},
          [&](const Shape &at) { return token_major ? position(at[1], at[0]) : position(at[0], at[1]); });
      call.args.q = q.as({T, H, model.head_dim});
      call.args.k = k.as({T, H_k, model.head_dim});
      call.args.cos = narrow(cache.tensor(), 1, 0, pairs);
      call.args.sin = narrow(cache.tensor(), 1, pairs, pairs);
      call.args.positions = token_major ? permuted(positions.tensor(), {1, 0}) : positions.tensor();
      for (const Array &array : {q, k}) {
        Formula &formula = call.formula(array);
        for_each({T, array.shape[1] / model.head_dim}, [&](const Shape &at) {
          const auto element = [&](int64_t c) { return array.at({at[0], at[1] * model.head_dim + c}); };
          const auto turn = [&](int64_t i) {
            const int64_t row = position(model.axis(i), at[0]);
            return Rotation{cache.value({row, i}), cache.value({row, pairs + i})};
          };
          formula.rotate_pairs(model.style, model.rotary_dim, element, element, turn);
        });
      }
      call.check();
    }
  }
}

// (3, B, S, D), as transformers passes them to Liger, or (3, T, P), as vLLM gathers them.
TEST_CASE("M-RoPE: tables of each axis and token", "[systems][mrope]") {
  const int64_t B = 2, S = 4, H = 2;
  for (const Model &model : {qwen2_vl(), qwen3_vl()}) {
    INFO(model.name);
    const Sections sections(model);
    for (rope_dtype_t dtype : floating) {
      for (bool full_width : {true, false}) {
        RopeCall call = call_of(model, sections, dtype);
        call.config.layout = ROPE_LAYOUT_BHSD;
        call.config.theta = 0;
        call.config.inv_freq = nullptr;
        const int64_t pairs = model.rotary_dim / 2;
        const Array q = call.data({B, H, S, model.head_dim});
        // Columns c and c + P are equal, because transformers concatenates them.
        const auto angle = [&](const Shape &at) {
          return static_cast<Real>(at[0] * 7 + at[1] * 3 + at[2]) / (1 + at[3] % pairs);
        };
        const Shape shape = {3, B, S, full_width ? model.rotary_dim : pairs};
        const Array cos = call.values(dtype, shape, [&](const Shape &at) { return std::cos(angle(at)); });
        const Array sin = call.values(dtype, shape, [&](const Shape &at) { return std::sin(angle(at)); });
        call.args.q = q.tensor();
        call.args.cos = cos.tensor();
        call.args.sin = sin.tensor();
        call.args.table_rows = ROPE_TABLE_BY_TOKEN;
        Formula &formula = call.formula(q);
        for_each({B, H, S}, [&](const Shape &at) {
          const auto element = [&](int64_t c) { return q.at({at[0], at[1], at[2], c}); };
          const auto turn = [&](int64_t i) {
            const Shape cell = {model.axis(i), at[0], at[2], i};
            return Rotation{cos.value(cell), sin.value(cell)};
          };
          formula.rotate_pairs(model.style, model.rotary_dim, element, element, turn);
        });
        call.check();
      }
    }
  }
}

TEST_CASE("M-RoPE: xdrope over NTK alpha", "[systems][mrope]") {
  const int64_t B = 2, S = 4, H = 2;
  const Model model = xdrope();
  const double alpha = 1000;
  Sections sections(model);
  rope_scaling_t scaling = {};
  scaling.struct_size = sizeof scaling;
  scaling.type = ROPE_SCALING_NTK_ALPHA;
  scaling.alpha = alpha;
  double attention_scale = 0;
  REQUIRE(rope_scaled_frequencies(static_cast<int32_t>(model.rotary_dim), static_cast<double>(theta), &scaling,
                                  sections.inv_freq.data(), &attention_scale) == ROPE_STATUS_SUCCESS);
  const Real width = model.rotary_dim, scaled_theta = theta * std::pow(static_cast<Real>(alpha), width / (width - 2));
  RopeCall call = call_of(model, sections, ROPE_DTYPE_F32);
  const Array q = call.data({B, S, H, model.head_dim});
  const Array positions =
      call.positions(ROPE_DTYPE_I64, {4, B, S}, [](const Shape &at) { return grid_position(at[0], at[1], at[2]); });
  call.args.q = q.tensor();
  call.args.positions = positions.tensor();
  Formula &formula = call.formula(q);
  for_each({B, S, H}, [&](const Shape &at) {
    const auto element = [&](int64_t c) { return q.at({at[0], at[1], at[2], c}); };
    const auto turn = [&](int64_t i) {
      const int64_t position = grid_position(model.axis(i), at[0], at[1]);
      return by_angle(position * frequency(scaled_theta, i, model.rotary_dim));
    };
    formula.rotate_pairs(model.style, model.rotary_dim, element, element, turn);
  });
  call.check();
}

// transformers 5.17 splits the columns of channels, cat(freqs, freqs), by twice each section: the two channels of a
// pair follow different axes, which pair_axis cannot express. Tables with a column for each channel can.
TEST_CASE("M-RoPE: HunYuan-VL as transformers applies it, an axis for each channel", "[systems][mrope]") {
  const int64_t B = 2, S = 5, H = 3, R = 32, P = R / 2;
  const std::vector<int64_t> sections = {4, 3, 5, 4};  // mrope_section, in pairs
  const auto axis_of_channel = [&](int64_t c) {
    int64_t axis = 0;
    for (int64_t end = 2 * sections[0]; c >= end; end += 2 * sections[++axis]) {
    }
    return axis;
  };
  for (rope_dtype_t dtype : floating) {
    RopeCall call(dtype, R);
    call.config.theta = 0;
    const auto angle = [&](const Shape &at) {
      return static_cast<Real>(grid_position(axis_of_channel(at[2]), at[0], at[1])) * frequency(theta, at[2] % P, R);
    };
    const Array q = call.data({B, S, H, R});
    const Array cos = call.values(dtype, {B, S, R}, [&](const Shape &at) { return std::cos(angle(at)); });
    const Array sin = call.values(dtype, {B, S, R}, [&](const Shape &at) { return std::sin(angle(at)); });
    call.args.q = q.tensor();
    call.args.cos = cos.tensor();
    call.args.sin = sin.tensor();
    call.args.table_rows = ROPE_TABLE_BY_TOKEN;
    Formula &formula = call.formula(q);
    // q * cos + rotate_half(q) * sin
    for_each({B, S, H, R}, [&](const Shape &at) {
      const int64_t c = at[3];
      const Shape cell = {at[0], at[1], c};
      formula.add(q.at(at), q.at(at), cos.value(cell));
      const Shape partner = {at[0], at[1], at[2], c < P ? c + P : c - P};
      formula.add(q.at(at), q.at(partner), c < P ? -sin.value(cell) : sin.value(cell));
    });
    call.check();
  }
}

TEST_CASE("M-RoPE: image grids, tables of each axis", "[systems][mrope]") {
  const std::vector<int32_t> halves = {0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1};
  const AxisPositionValue grid = [](int64_t axis, int64_t, int64_t token) { return axis == 0 ? token / 4 : token % 4; };
  for (rope_dtype_t dtype : floating) {
    for (rope_style_t style : styles) {
      RopeCase rope = RopeCase().dtype(dtype).style(style).tokens(12).heads(2, 2).head_dim(32);
      rope.axes(2, halves).axis_positions(PositionShape::PerToken, ROPE_DTYPE_I32, grid);
      RopeCase(rope).check();
      RopeCase(rope).theta(0).tables(5).tables_by_axis().table_width(TableWidth::Repeated).out_of_place().check();
      RopeCase(rope).theta(0).tables(5).tables_by_axis(true).table_width(TableWidth::Channels).check();
    }
  }
}

TEST_CASE("M-RoPE: an axis without pairs may have any position", "[systems][mrope]") {
  RopeCase()
      .heads(3, 1)
      .head_dim(32)
      .theta(0)
      .axes(4, {0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2})
      .tables(40)
      .axis_positions(PositionShape::PerBatchAndToken, ROPE_DTYPE_I32,
                      [](int64_t axis, int64_t batch, int64_t token) {
                        return axis == 3 ? -1 - token : axis + 3 * batch + 2 * token;
                      })
      .fault()
      .check();
}
