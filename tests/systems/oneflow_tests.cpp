// SPDX-License-Identifier: Apache-2.0
// oneflow_tests.cpp - OneFlow's fused_apply_rotary_emb: mode plane (halves) and interval (neighbours), thirteen
// layouts, tensor_index, rotary_size, rotary_emb_dim 1 and 2 with position_ids [B, rotary_emb_dim, M], base, cos and
// sin optional
//
// OneFlow computes theta and position * frequency in the data's type and, in plane mode, uses a row stride of K for
// shorter rows of a table; librope follows the formula. A table of two position axes has rotary_size/2 columns there,
// one for each channel of a half. librope takes one for each of its pairs: in plane mode the first half of the columns,
// in interval mode every second one. If the two columns of a pair differ, rotary_emb_dim 2 needs a table with two
// copies side by side, of rotary_size columns; rotary_emb_dim 1 needs no change.
#include <catch2/catch_test_macros.hpp>
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "support/cases.hpp"
#include "system.hpp"

using namespace systems;

namespace {

constexpr int64_t B = 2, M = 5, H = 3, K = 16;

struct Layout {
  std::string name;
  bool starts_with(const char *text) const { return name.rfind(text, 0) == 0; }
  bool contains(const char *text) const { return name.find(text) != std::string::npos; }
  int64_t parts() const { return contains("H3K") ? 3 : contains("H2K") ? 2 : 1; }
};

const std::vector<Layout> output_layouts = {{"BMHK"},   {"MBHK"},   {"BHMK"},    {"BM(HK)"},
                                            {"MB(HK)"}, {"(BM)HK"}, {"(BM)(HK)"}};
const std::vector<Layout> input_layouts = {{"BMHK"},    {"MBHK"},      {"BHMK"},     {"BM(HK)"},  {"MB(HK)"},
                                           {"(BM)HK"},  {"(BM)(HK)"},  {"BM(H2K)"},  {"BM(H3K)"}, {"MB(H2K)"},
                                           {"MB(H3K)"}, {"(BM)(H2K)"}, {"(BM)(H3K)"}};

struct Operand {
  Array array;
  Layout layout;
  int64_t tensor_index;

  int64_t at(int64_t b, int64_t m, int64_t h, int64_t k) const {
    if (layout.name == "BHMK") return array.at({b, h, m, k});
    Shape index = layout.starts_with("(BM)") ? Shape{b * M + m} : layout.starts_with("MB") ? Shape{m, b} : Shape{b, m};
    const int64_t column = (h * layout.parts() + tensor_index) * K + k;
    if (layout.contains("(H")) {
      index.push_back(column);
    } else {
      index.insert(index.end(), {h, k});
    }
    return array.at(index);
  }

  // A view [B, M, H, K] of any layout; its strides describe the layout.
  rope_tensor_t view() const {
    if (layout.name == "BHMK") return permuted(array.tensor(), {0, 2, 1, 3});
    const bool m_first = layout.starts_with("MB");
    const rope_tensor_t all = array.as({m_first ? M : B, m_first ? B : M, H, layout.parts() * K});
    const rope_tensor_t part = narrow(all, 3, tensor_index * K, K);
    return m_first ? permuted(part, {1, 0, 2, 3}) : part;
  }
};

Operand operand(RopeCall &call, const Layout &layout, int64_t tensor_index = 0) {
  if (layout.name == "BHMK") return {call.data({B, H, M, K}), layout, tensor_index};
  Shape shape = layout.starts_with("(BM)") ? Shape{B * M} : layout.starts_with("MB") ? Shape{M, B} : Shape{B, M};
  if (layout.contains("(H")) {
    shape.push_back(H * layout.parts() * K);
  } else {
    shape.insert(shape.end(), {H, K});
  }
  return {call.data(shape), layout, tensor_index};
}

struct Problem {
  rope_dtype_t dtype = ROPE_DTYPE_F32;
  bool plane = true;
  int64_t rotary_size = K, rotary_emb_dim = 1;
  rope_dtype_t ids_dtype = 0;   // 0: no position_ids
  bool has_tables = false;      // in the data's dtype
  bool columns_differ = false;  // within a pair, in the tables
  bool in_place = false;
  double base = 10000;
  Layout x_layout = {"BMHK"}, output_layout = {"BMHK"};
  int64_t tensor_index = 0;
};

void check(const Problem &problem) {
  INFO((problem.plane ? "plane " : "interval ")
       << problem.x_layout.name << " -> " << problem.output_layout.name << " rotary_size " << problem.rotary_size
       << " rotary_emb_dim " << problem.rotary_emb_dim);
  const int64_t dims = problem.rotary_emb_dim, k0 = problem.rotary_size / dims, rows = 9;
  const auto pair_of = [&](int64_t k) { return problem.plane ? k % k0 % (k0 / 2) : k % k0 / 2; };
  RopeCall call(problem.dtype, K);
  call.config.style = problem.plane ? ROPE_STYLE_HALF : ROPE_STYLE_INTERLEAVED;
  call.config.rotary_dim = static_cast<int32_t>(problem.rotary_size);
  call.config.theta = problem.base;
  std::vector<int32_t> pair_axis(problem.rotary_size / 2);
  std::vector<double> inv_freq(problem.rotary_size / 2);
  if (dims == 2) {
    rope_sections_t halves = {};
    halves.struct_size = sizeof halves;
    halves.type = ROPE_SECTIONS_RESTARTED;
    halves.num_sections = 2;
    halves.section[0] = halves.section[1] = static_cast<int32_t>(k0 / 2);
    REQUIRE(rope_section_axes(call.config.rotary_dim, problem.base, &halves, pair_axis.data(), inv_freq.data()) ==
            ROPE_STATUS_SUCCESS);
    call.config.num_axes = 2;
    call.config.pair_axis = pair_axis.data();
    call.config.inv_freq = inv_freq.data();
    if (problem.plane) call.config.pair_block = static_cast<int32_t>(k0);
  }
  const Operand x = operand(call, problem.x_layout, problem.tensor_index);
  const Operand out = problem.in_place ? x : operand(call, problem.output_layout);
  call.args.q = x.view();
  if (!problem.in_place) call.args.q_out = out.view();
  const Array ids = call.positions(problem.ids_dtype ? problem.ids_dtype : ROPE_DTYPE_I32, {B, dims, M},
                                   [](const Shape &at) { return (4 * at[0] + 3 * at[1] + 2 * at[2]) % 9; });
  if (problem.ids_dtype) {
    call.args.positions = dims == 2 ? permuted(ids.tensor(), {1, 0, 2}) : select(ids.tensor(), 1, 0);
  }
  const auto angle = [&](const Shape &at) {
    const Real exact = frequency(problem.base, pair_of(at[1]), k0);
    return at[0] * (dims == 2 ? static_cast<double>(exact) : exact);  // inv_freq holds doubles
  };
  const auto tables_of = [&](const std::function<Real(Real)> &function) {
    if (problem.columns_differ) return call.table(problem.dtype, {rows, k0});
    return call.values(problem.dtype, {rows, k0}, [&](const Shape &at) { return function(angle(at)); });
  };
  const Array cos = tables_of([](Real x) { return std::cos(x); }), sin = tables_of([](Real x) { return std::sin(x); });
  if (problem.has_tables) {
    const auto columns = [&](const Array &table) {
      if (dims == 1) return table.tensor();
      if (!problem.columns_differ) {
        return problem.plane ? narrow(table.tensor(), 1, 0, k0 / 2) : every(table.tensor(), 1, 0, 2);
      }
      const auto twice = [&](const Shape &at) { return table.value({at[0], at[1] % k0}); };
      return call.values(problem.dtype, {rows, 2 * k0}, twice).tensor();
    };
    call.args.cos = columns(cos);
    call.args.sin = columns(sin);
  }
  Formula &formula = call.formula(x.array, out.array);
  for_each({B, M, H, K}, [&](const Shape &at) {
    const int64_t b = at[0], m = at[1], h = at[2], k = at[3];
    const int64_t to = out.at(b, m, h, k), from = x.at(b, m, h, k);
    if (k >= problem.rotary_size) {
      if (!problem.in_place) formula.copy(to, from);
      return;
    }
    const int64_t position = problem.ids_dtype ? ids.integer({b, k / k0, m}) : m;
    const bool first = problem.plane ? k % k0 < k0 / 2 : k % 2 == 0;
    const int64_t step = problem.plane ? k0 / 2 : 1;
    const Real c = problem.has_tables ? cos.value({position, k % k0}) : std::cos(angle({position, k}));
    const Real s = problem.has_tables ? sin.value({position, k % k0}) : std::sin(angle({position, k}));
    formula.add(to, from, c);
    formula.add(to, x.at(b, m, h, first ? k + step : k - step), first ? -s : s);
  });
  call.check();
}

}  // namespace

TEST_CASE("OneFlow: every x_layout and output_layout, tensor_index", "[systems][oneflow]") {
  for (const Layout &x_layout : input_layouts) {
    for (int64_t tensor_index = 0; tensor_index < x_layout.parts(); ++tensor_index) {
      for (const Layout &output_layout : output_layouts) {
        Problem problem;
        problem.x_layout = x_layout;
        problem.output_layout = output_layout;
        problem.tensor_index = tensor_index;
        problem.plane = tensor_index == 0;
        check(problem);
      }
      Problem problem;
      problem.x_layout = x_layout;
      problem.tensor_index = tensor_index;
      problem.in_place = true;
      problem.rotary_size = 8;
      problem.rotary_emb_dim = 2;
      check(problem);
    }
  }
}

TEST_CASE("OneFlow: mode, rotary_size, base", "[systems][oneflow]") {
  for (rope_dtype_t dtype : floating) {
    for (bool plane : {true, false}) {
      for (int64_t rotary_size : {K, int64_t{12}}) {
        for (double base : {10000.0, 123.5}) {
          Problem problem;
          problem.dtype = dtype;
          problem.plane = plane;
          problem.rotary_size = rotary_size;
          problem.base = base;
          check(problem);
        }
      }
    }
  }
}

TEST_CASE("OneFlow: rotary_emb_dim, position_ids, cos and sin", "[systems][oneflow]") {
  for (rope_dtype_t dtype : floating) {
    for (bool plane : {true, false}) {
      for (int64_t rotary_emb_dim : {1, 2}) {
        for (rope_dtype_t ids_dtype : std::vector<rope_dtype_t>{0, ROPE_DTYPE_I32, ROPE_DTYPE_I64}) {
          for (int64_t rotary_size : {K, int64_t{8}}) {
            Problem problem;
            problem.dtype = dtype;
            problem.plane = plane;
            problem.rotary_size = rotary_size;
            problem.rotary_emb_dim = rotary_emb_dim;
            problem.ids_dtype = ids_dtype;
            check(problem);
            problem.has_tables = true;
            check(problem);
            problem.columns_differ = true;
            check(problem);
          }
        }
      }
    }
  }
}

TEST_CASE("OneFlow: windows k0 and k1", "[systems][oneflow]") {
  const int64_t k0 = 6, k1 = 12;
  for (bool plane : {true, false}) {
    for (int64_t window : {0, 1}) {
      RopeCall call(ROPE_DTYPE_BF16, K);
      call.config.style = plane ? ROPE_STYLE_HALF : ROPE_STYLE_INTERLEAVED;
      call.config.rotary_offset = static_cast<int32_t>(window * k0);
      call.config.rotary_dim = static_cast<int32_t>(k1 - k0);
      const Operand x = operand(call, {"BMHK"});
      const Array ids =
          call.positions(ROPE_DTYPE_I64, {B, 2, M}, [](const Shape &at) { return 7 * at[0] + 30 * at[1] + at[2]; });
      call.args.q = x.view();
      call.args.positions = select(ids.tensor(), 1, window);
      Formula &formula = call.formula(x.array);
      for_each({B, M, H, k0 / 2}, [&](const Shape &at) {
        const Real angle = ids.integer({at[0], window, at[1]}) * frequency(10000, at[3], k0);
        const int64_t first = window * k0 + (plane ? at[3] : 2 * at[3]), second = first + (plane ? k0 / 2 : 1);
        const int64_t first_at = x.at(at[0], at[1], at[2], first), second_at = x.at(at[0], at[1], at[2], second);
        formula.rotate(first_at, second_at, first_at, second_at, by_angle(angle));
      });
      call.check();
    }
  }
}

TEST_CASE("OneFlow: two position axes in every dtype", "[systems][oneflow]") {
  for (rope_dtype_t dtype : floating) {
    for (rope_style_t style : styles) {
      RopeCase rope = RopeCase().dtype(dtype).style(style).heads(3, 3).head_dim(32).theta(0);
      if (style == ROPE_STYLE_HALF) rope.pair_block(16);
      rope.axes(2, {0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1})
          .tables(19)
          .table_dtype(dtype)
          .table_width(TableWidth::Repeated)
          .axis_positions(
              PositionShape::PerBatchAndToken, ROPE_DTYPE_I64,
              [](int64_t axis, int64_t batch, int64_t token) { return 6 * axis + 4 * batch + token; },
              Placement().order({1, 0, 2}));
      RopeCase(rope).check();
      RopeCase(rope).out_of_place().check();
    }
  }
}
