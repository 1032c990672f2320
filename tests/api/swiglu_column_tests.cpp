// SPDX-License-Identifier: Apache-2.0
// swiglu_column_tests.cpp - outputs of SwiGLU that become codes by row and by column, forward and backward
//
// Another call gives the values: its outputs are words, F32 or of 16 bits if values are rounded first. The tests make
// codes and scales of these values (code_oracle.hpp). If gate and up are 1 and the activation is ReGLU, both gradients
// are equal to grad_out on every device.
#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "support/code_oracle.hpp"
#include "support/device.hpp"
#include "support/random.hpp"
#include "support/swiglu_rows.hpp"
#include "support/tensors.hpp"

namespace {

using namespace code_oracle;

struct ColumnCase {
  rope_dtype_t dtype = ROPE_DTYPE_BF16;
  Shape shape = {64, 96};
  bool is_backward = false;
  bool has_rows = true, has_columns = true;  // codes by row, and by column
  bool has_words = false;                    // backward: grad_up is of the descriptor's dtype, and out is recomputed
  rope_dtype_t code = ROPE_DTYPE_F8_E4M3;
  rope_dtype_t scale_dtype = ROPE_DTYPE_F8_E8M0;
  int64_t group = 32;  // the number of channels, and of rows, of a group
  uint32_t flags = 0;
  double floor = 0;
  bool has_tiles = false;
  bool has_static_columns = false;  // columns without written scales
  bool rounds_first = true;
  bool is_exact = false;
  bool has_amax = true;
  double limit = 0;
  int32_t activation = SWIGLU_ACTIVATION_SWIGLU;
  bool has_biases = false;
  int64_t num_rows = -1;
  std::vector<int64_t> expert_rows = {};
  std::vector<int64_t> expert_offsets = {};
  std::vector<int64_t> row_index = {};
  Placement row_placement, column_placement, scale_placement;

  void check() const;

  bool has_experts() const { return !expert_rows.empty(); }
  size_t row_axis() const { return has_experts() ? 1 : 0; }
  int64_t rows() const { return shape[row_axis()]; }
  int64_t channels() const {
    int64_t count = 1;
    for (size_t axis = row_axis() + 1; axis < shape.size(); ++axis) count *= shape[axis];
    return count;
  }

 private:
  struct Scene;
  struct Output;
  int64_t channel_of(const Index &at) const {
    int64_t channel = 0;
    for (size_t axis = row_axis() + 1; axis < shape.size(); ++axis) channel = channel * shape[axis] + at[axis];
    return channel;
  }
  bool is_row(const Index &at) const {
    if (num_rows >= 0 && at[0] >= num_rows) return false;
    if (!row_index.empty() && row_index[static_cast<size_t>(at[0])] < 0) return false;
    if (!expert_offsets.empty() && swiglu_rows::expert_of(expert_offsets, shape[0], at[0]) < 0) return false;
    return expert_rows.empty() || at[1] < expert_rows[static_cast<size_t>(at[0])];
  }
  Shape scales_shape(bool by_column) const;
  Index scale_index(bool by_column, const Index &at) const;
  void verify(Scene *scene, const Output &output, bool is_same_value) const;
  int check_padding(Workspace *workspace, bool by_column, const rope_tensor_t &scales) const;
};

// An output, its scales and the tensor of its values.
struct ColumnCase::Output {
  const char *name;
  bool by_column;
  rope_tensor_t codes, scales, amax, values;
};

struct ColumnCase::Scene {
  explicit Scene(uint64_t seed) : workspace(seed) {}
  Workspace workspace;
  rope_tensor_t gate = {}, up = {}, grad_out = {}, values[2] = {}, words[2] = {}, amax[2] = {}, scale = {};
  rope_tensor_t num_rows = {}, expert_rows = {}, expert_offsets = {}, row_index = {}, row_scale = {}, bias = {};
  rope_tensor_t codes[2][2] = {}, scales[2][2] = {};  // first index: output; second: by row, by column
};

int64_t padded(int64_t length, int64_t tile) {
  return (length + tile - 1) / tile * tile;
}

Shape ColumnCase::scales_shape(bool by_column) const {
  const int64_t groups = (by_column ? rows() : channels()) / group;
  Shape result(shape.begin(), shape.begin() + static_cast<std::ptrdiff_t>(row_axis()));
  if (has_tiles) {
    result.push_back(padded(by_column ? channels() : rows(), 128));
    result.push_back(padded(groups, 4));
    return result;
  }
  if (!by_column) {
    result.push_back(rows());
    result.push_back(groups);
    return result;
  }
  result = shape;
  result[row_axis()] = groups;
  return result;
}

Index ColumnCase::scale_index(bool by_column, const Index &at) const {
  const size_t axis = row_axis();
  const int64_t row = by_column ? channel_of(at) : at[axis], number = (by_column ? at[axis] : channel_of(at)) / group;
  Index index = {};
  if (has_experts()) index[0] = at[0];
  if (has_tiles) {
    const int64_t width = scales_shape(by_column).back();
    const int64_t byte = (row / 128 * (width / 4) + number / 4) * 512 + row % 32 * 16 + row % 128 / 32 * 4 + number % 4;
    index[axis] = byte / width;
    index[axis + 1] = byte % width;
  } else if (by_column) {
    index = at;
    index[axis] = number;
  } else {
    index[axis] = row;
    index[axis + 1] = number;
  }
  return index;
}

int ColumnCase::check_padding(Workspace *workspace, bool by_column, const rope_tensor_t &scales) const {
  std::map<Index, bool> used;
  rope_tensor_t elements = {};
  elements.ndim = static_cast<int32_t>(shape.size());
  for (size_t axis = 0; axis < shape.size(); ++axis) elements.shape[axis] = shape[axis];
  for_each_index(elements, [&](const Index &at) { used[scale_index(by_column, at)] = true; });
  int wrong = 0;
  for_each_index(scales, [&](const Index &at) {
    if (used.count(at) != 0) return;
    wrong += bits_at(scales, at) != 0;
    workspace->accept(scales, at);
  });
  return wrong;
}

void ColumnCase::verify(Scene *scene, const Output &output, bool is_same_value) const {
  INFO(output.name << (output.by_column ? " by column" : " by row"));
  Workspace &workspace = scene->workspace;
  const ScaleRule rule = {code, scale_dtype, flags, floor};
  const bool has_scales = output.scales.ndim != 0;
  std::map<Index, float> maxima;
  float amax = 0;
  const auto raise = [](float magnitude, float *max) {
    if (std::isnan(magnitude) || magnitude > *max) *max = magnitude;
  };
  for_each_index(output.values, [&](const Index &at) {
    if (!is_row(at)) return;
    const float magnitude = magnitude_of(value_at(output.values, at));
    raise(magnitude, &amax);
    raise(magnitude, &maxima[scale_index(output.by_column, at)]);
  });
  int wrong = 0, differing = 0, elements = 0;
  if (has_scales) {
    for (const auto &entry : maxima) {
      const uint32_t bits = bits_at(output.scales, entry.first);
      const int64_t expected = bits_of_scale(rule, scale_of(rule, entry.second, 1));
      const int64_t allowed = is_same_value ? 0 : scale_dtype == ROPE_DTYPE_F32 && flags == 0 ? 1 << 14 : 1;
      if (std::abs(static_cast<int64_t>(bits) - expected) > allowed) ++wrong;
      workspace.accept(output.scales, entry.first);
    }
    if (has_tiles) wrong += check_padding(&workspace, output.by_column, output.scales);
  }
  for_each_index(output.values, [&](const Index &at) {
    if (!is_row(at)) return;
    float factor = 1 / 0.25f;
    if (has_scales) {
      const float scale = scale_from(scale_dtype, bits_at(output.scales, scale_index(output.by_column, at)));
      factor = std::isnan(scale) ? scale : std::isinf(scale) ? 0 : inverse_of(scale, 1);
    }
    const auto value = static_cast<float>(value_at(output.values, at));
    const uint8_t expected = code_of(code, value * factor), actual = code_at(output.codes, at);
    const int steps = steps_between(code, expected, actual);
    ++elements;
    differing += steps != 0;
    if (steps > (is_same_value ? 0 : 1) && ++wrong <= 3) {
      UNSCOPED_INFO("[" << at[0] << ',' << at[1] << ',' << at[2] << "] of " << value << " times " << factor
                        << ": expected " << int{expected} << ", got " << int{actual});
    }
    workspace.accept(output.codes, at);
  });
  if (has_amax) {
    const auto found = static_cast<float>(value_at(output.amax, {}));
    if (is_same_value ? found < amax : found < amax * 0.99f) ++wrong;
  }
  INFO(wrong << " elements or scales are wrong, " << differing << " codes of " << elements << " differ");
  CHECK(elements > 0);
  CHECK(wrong == 0);
  CHECK(differing <= (is_same_value ? 0 : 2 + elements / 20));
}

void ColumnCase::check() const {
  Scene scene(29);
  Workspace &workspace = scene.workspace;
  const bool is_known = dtype == ROPE_DTYPE_F32 || rounds_first;
  const rope_dtype_t values_dtype = is_known ? dtype : ROPE_DTYPE_F32;
  const int outputs = is_backward ? 2 : 1;
  rope_tensor_t wide[3] = {};
  rope_tensor_t *const inputs[3] = {&scene.gate, &scene.up, &scene.grad_out};
  for (int i = 0; i < 2 + is_backward; ++i) {
    *inputs[i] = workspace.tensor(dtype, shape);
    workspace.fill_normal(*inputs[i]);
    if (is_exact && i < 2) workspace.fill(*inputs[i], [](const Index &) { return Real{1}; });
    if (is_exact && !is_backward && i == 1) workspace.fill_normal(*inputs[i]);
    if (is_known) continue;
    wide[i] = workspace.tensor(ROPE_DTYPE_F32, shape);
    const rope_tensor_t &from = *inputs[i];
    workspace.fill(wide[i], [&](const Index &at) { return value_at(from, at); });
  }
  for (int output = 0; output < outputs; ++output) {
    scene.values[output] = workspace.tensor(values_dtype, shape);
    scene.words[output] = workspace.tensor(dtype, shape);
    for (const bool by_column : {false, true}) {
      if (by_column ? !has_columns : !has_rows) continue;
      if (has_words && output == 1) continue;
      scene.codes[output][by_column] = workspace.tensor(code, shape, by_column ? column_placement : row_placement);
      if (by_column && has_static_columns) continue;
      scene.scales[output][by_column] = workspace.tensor(scale_dtype, scales_shape(by_column), scale_placement);
    }
  }
  if (has_static_columns) {
    scene.scale = workspace.tensor(ROPE_DTYPE_F32, {1});
    workspace.fill(scene.scale, [](const Index &) { return Real{0.25L}; });
  }
  for (rope_tensor_t &amax : scene.amax) {
    if (!has_amax) continue;
    amax = workspace.tensor(ROPE_DTYPE_F32, {1});
    workspace.fill(amax, [](const Index &) { return Real{0}; });
  }
  if (num_rows >= 0) {
    scene.num_rows = workspace.tensor(ROPE_DTYPE_I64, {1});
    workspace.fill_integers(scene.num_rows, [&](const Index &) { return num_rows; });
  }
  if (!expert_rows.empty()) scene.expert_rows = workspace.list(ROPE_DTYPE_I32, expert_rows);
  if (!expert_offsets.empty()) scene.expert_offsets = workspace.list(ROPE_DTYPE_I32, expert_offsets);
  if (!row_index.empty()) scene.row_index = workspace.list(ROPE_DTYPE_I32, row_index);
  if (!row_index.empty()) {
    scene.row_scale = workspace.tensor(ROPE_DTYPE_F32, {shape[0]});
    workspace.fill_normal(scene.row_scale);
  }
  if (has_biases) {
    scene.bias = workspace.tensor(ROPE_DTYPE_F32, {shape.back()});
    workspace.fill_normal(scene.bias);
  }
  workspace.freeze();

  swiglu_input_args_t input = SWIGLU_INPUT_ARGS_INIT;
  input.expert_rows = scene.expert_rows;
  input.expert_offsets = scene.expert_offsets;
  input.row_index = scene.row_index;
  input.gate_bias = scene.bias;
  swiglu_quant_args_t quant = SWIGLU_QUANT_ARGS_INIT;
  quant.flags = has_rows ? flags : 0;
  quant.scale_floor = has_rows ? floor : 0;
  quant.scale = scene.scale;
  quant.scale_layout = has_tiles && has_rows ? SWIGLU_SCALE_LAYOUT_128X4 : SWIGLU_SCALE_LAYOUT_STRIDED;
  swiglu_column_args_t column = SWIGLU_COLUMN_ARGS_INIT;
  column.flags = flags;
  column.scale_floor = floor;
  column.scale_layout = has_tiles ? SWIGLU_SCALE_LAYOUT_128X4 : SWIGLU_SCALE_LAYOUT_STRIDED;
  if (has_rows) quant.amax_out = scene.amax[0];
  if (has_columns) column.amax_out = scene.amax[1];
  (is_backward ? quant.grad_gate_scales_out : quant.scales_out) = scene.scales[0][0];
  quant.grad_up_scales_out = scene.scales[1][0];
  (is_backward ? column.grad_gate : column.out) = scene.codes[0][1];
  (is_backward ? column.grad_gate_scales_out : column.scales_out) = scene.scales[0][1];
  column.grad_up = scene.codes[1][1];
  column.grad_up_scales_out = scene.scales[1][1];
  const Direction direction = is_backward ? Direction::Backward : Direction::Forward;
  for (const Device &device : devices()) {
    std::vector<std::byte> first;
    for (const int32_t threads : {1, 3}) {
      INFO("on " << device << ", num_threads " << threads);
      swiglu_config_t config = swiglu_config_for(device);
      config.dtype = dtype;
      config.num_threads = threads;
      config.limit = limit;
      config.activation = is_exact ? SWIGLU_ACTIVATION_REGLU : activation;
      config.quant_rounding = rounds_first ? ROPE_QUANT_ROUND_FIRST : 0;
      const SwigluDesc desc = create(config);
      config.dtype = values_dtype;
      config.quant_rounding = 0;
      const SwigluDesc of_values = create(config);
      swiglu_args_t args = swiglu_args();
      args.gate = is_known ? scene.gate : wide[0];
      args.up = is_known ? scene.up : wide[1];
      args.grad_out = is_known ? scene.grad_out : wide[2];
      (is_backward ? args.grad_gate : args.out) = scene.values[0];
      if (is_backward) args.grad_up = scene.values[1];
      args.row_scale = scene.row_scale;
      args.num_rows = scene.num_rows;
      args.input = &input;
      workspace.restore();
      REQUIRE(run(device, of_values.get(), direction, args, workspace) == ROPE_STATUS_SUCCESS);
      args.gate = scene.gate;
      args.up = scene.up;
      args.grad_out = scene.grad_out;
      (is_backward ? args.grad_gate : args.out) = scene.codes[0][0];
      if (is_backward) args.grad_up = has_words ? scene.words[1] : scene.codes[1][0];
      if (is_backward && has_words) args.out = scene.words[0];
      args.quant = &quant;
      args.column = has_columns ? &column : nullptr;
      const rope_status_t status = run(device, desc.get(), direction, args, workspace);
      INFO(rope_last_error());
      REQUIRE(status == ROPE_STATUS_SUCCESS);
      if (!first.empty()) {
        const bool is_same = workspace.image() == first;
        CHECK(is_same);
        continue;
      }
      const bool is_same_value = is_exact || (is_known && device.kind == ROPE_DEVICE_CPU);
      const char *const names[2] = {is_backward ? "grad_gate" : "out", "grad_up"};
      for (int output = 0; output < outputs; ++output) {
        for (const bool by_column : {false, true}) {
          if (scene.codes[output][by_column].ndim == 0) continue;
          verify(&scene,
                 {names[output], by_column, scene.codes[output][by_column], scene.scales[output][by_column],
                  scene.amax[by_column], scene.values[output]},
                 is_same_value);
        }
        for_each_index(scene.values[output], [&](const Index &at) {
          if (!is_row(at)) return;
          workspace.accept(scene.values[output], at);
          if (has_words) workspace.accept(scene.words[output], at);
        });
      }
      for (const rope_tensor_t &amax : scene.amax) {
        if (has_amax) workspace.accept(amax, {});
      }
      std::string where;
      const bool untouched = workspace.untouched_elsewhere(&where);
      INFO(where);
      CHECK(untouched);
      CHECK(workspace.guards_hold());
      first = workspace.image();
    }
  }
}

// Half of the requests have each axis of length 1 with odds of a half.
ColumnCase random_case(uint64_t seed) {
  Random random(seed);
  const auto chance = [&](int percent) { return random.below(100) < percent; };
  const auto between = [&](int64_t low, int64_t high) { return low + random.below(high - low + 1); };
  const bool has_ones = chance(50);
  ColumnCase codes;
  codes.is_backward = chance(50);
  codes.dtype = chance(50) ? ROPE_DTYPE_BF16 : chance(50) ? ROPE_DTYPE_F16 : ROPE_DTYPE_F32;
  codes.code = chance(50) ? ROPE_DTYPE_F8_E4M3 : ROPE_DTYPE_F8_E5M2;
  codes.scale_dtype = chance(50) ? ROPE_DTYPE_F8_E8M0 : ROPE_DTYPE_F32;
  codes.shape.resize(static_cast<size_t>(between(1, 4)));
  for (int64_t &length : codes.shape)
    length = has_ones && chance(50) ? 1 : chance(20) ? 8 * between(1, 4) : between(1, 6);
  const size_t ndim = codes.shape.size();
  if (chance(15)) codes.shape[static_cast<size_t>(random.below(static_cast<int64_t>(ndim)))] = 32;
  const int64_t first = codes.shape[0];
  if (ndim > 2 && chance(50)) {
    for (int64_t i = 0; i < first; ++i) codes.expert_rows.push_back(between(-1, codes.shape[1] + 1));
    codes.expert_rows[static_cast<size_t>(random.below(first))] = codes.shape[1];
  } else if (ndim > 1 && chance(30)) {
    codes.expert_offsets = {0, between(0, first), first};
  } else if (chance(30)) {
    codes.num_rows = between(1, first + 1);
  }
  if (ndim > 1 && codes.expert_rows.empty() && codes.num_rows < 0 && chance(30)) {
    for (int64_t i = 0; i < first; ++i) codes.row_index.push_back(between(-1, first - 1));
    codes.row_index[static_cast<size_t>(random.below(first))] = 0;
  }
  codes.has_columns = chance(80);
  // Scales by row need an axis behind that of rows.
  codes.has_rows = ndim > codes.row_axis() + 1 && (!codes.has_columns || chance(60));
  codes.has_columns = codes.has_columns || !codes.has_rows;
  std::vector<int64_t> groups;
  for (int64_t group = 1; group <= std::max(codes.rows(), codes.channels()); ++group) {
    const bool divides_rows = !codes.has_columns || codes.rows() % group == 0;
    if (divides_rows && (!codes.has_rows || codes.channels() % group == 0)) groups.push_back(group);
  }
  codes.group = groups[static_cast<size_t>(random.below(static_cast<int64_t>(groups.size())))];
  const bool may_have_tiles =
      std::find(groups.begin(), groups.end(), 32) != groups.end() && ndim > codes.row_axis() + 1;
  if (may_have_tiles && codes.scale_dtype == ROPE_DTYPE_F8_E8M0 && chance(70)) {
    codes.has_tiles = true;
    codes.group = 32;
  }
  codes.has_static_columns = codes.has_columns && chance(15);
  codes.has_words = codes.is_backward && chance(20);
  codes.has_biases = chance(20);
  codes.is_exact = codes.row_index.empty() && !codes.has_biases && chance(50);
  codes.has_amax = chance(50);
  const auto placement = [&] {
    Placement drawn;
    for (size_t axis = 0; axis < ndim; ++axis) {
      if (chance(15)) drawn.gap(static_cast<int>(axis), between(1, 8));
      if (chance(10)) drawn.reversed(static_cast<int>(axis));
    }
    return drawn;
  };
  if (chance(40)) codes.row_placement = placement();
  if (chance(40)) codes.column_placement = placement();
  return codes;
}

}  // namespace

TEST_CASE("SwiGLU to MXFP8 by row and by column", "[swiglu][codes][columns][sanitize]") {
  for (const bool is_backward : {false, true}) {
    for (const rope_dtype_t dtype : {ROPE_DTYPE_BF16, ROPE_DTYPE_F16, ROPE_DTYPE_F32}) {
      for (const double limit : {0.0, 1.5}) {
        INFO("backward " << is_backward << ", dtype " << dtype << ", limit " << limit);
        ColumnCase codes;
        codes.is_backward = is_backward;
        codes.dtype = dtype;
        codes.limit = limit;
        codes.code = is_backward ? ROPE_DTYPE_F8_E5M2 : ROPE_DTYPE_F8_E4M3;
        codes.check();
        codes.rounds_first = false;
        codes.has_rows = limit == 0;
        codes.check();
      }
    }
  }
}

TEST_CASE("SwiGLU to codes by column of any shape", "[swiglu][codes][columns][sanitize]") {
  struct {
    Shape shape;
    int64_t group;
  } const cases[] = {{{32, 32}, 32}, {{160, 224}, 32},  {{96, 8}, 8},     {{6, 10}, 2},
                     {{1, 64}, 1},   {{7, 1}, 1},       {{40, 3, 5}, 1},  {{300, 1}, 1},
                     {{33, 66}, 33}, {{4, 4, 4, 4}, 4}, {{400, 200}, 200}};
  for (const auto &of_case : cases) {
    for (const bool is_backward : {false, true}) {
      INFO(of_case.shape[0] << " rows, groups of " << of_case.group << ", backward " << is_backward);
      ColumnCase codes;
      codes.shape = of_case.shape;
      codes.group = of_case.group;
      codes.is_backward = is_backward;
      codes.scale_dtype = ROPE_DTYPE_F32;
      codes.check();
    }
  }
}

TEST_CASE("SwiGLU to codes by column: scales of every form, their floors and tiles", "[swiglu][codes][columns]") {
  for (const bool is_exact : {false, true}) {
    for (const bool is_backward : {false, true}) {
      INFO("exact " << is_exact << ", backward " << is_backward);
      ColumnCase codes;
      codes.is_exact = is_exact;
      codes.is_backward = is_backward;
      codes.scale_dtype = ROPE_DTYPE_F32;
      codes.check();
      codes.flags = ROPE_QUANT_FLAG_POWER_OF_TWO;
      codes.floor = 4;
      codes.check();
      codes.scale_dtype = ROPE_DTYPE_F8_E8M0;
      codes.flags = 0;
      codes.has_tiles = true;
      codes.check();
      codes.shape = {160, 288};
      codes.floor = 0;
      codes.check();
      codes.has_rows = false;
      codes.check();
    }
  }
}

TEST_CASE("SwiGLU to codes by column with any strides", "[swiglu][codes][columns]") {
  for (const bool is_backward : {false, true}) {
    INFO("backward " << is_backward);
    ColumnCase codes;
    codes.is_backward = is_backward;
    codes.column_placement.order({1, 0});
    codes.scale_placement.gap(0, 3).gap(1, 1);
    codes.check();
    codes.row_placement.gap(0, 8);
    codes.column_placement = Placement().gap(0, 16);
    codes.check();
    codes.column_placement = Placement().gap(0, 4).at(3);
    codes.row_placement = Placement().reversed(1);
    codes.check();
    codes.scale_placement = {};
    codes.column_placement = Placement().order({1, 0});
    codes.has_static_columns = true;
    codes.check();
  }
}

TEST_CASE("SwiGLU to codes by column of rows and experts that are there", "[swiglu][codes][columns][sanitize]") {
  for (const bool is_backward : {false, true}) {
    INFO("backward " << is_backward);
    ColumnCase codes;
    codes.is_backward = is_backward;
    for (const int64_t rows : {1, 31, 32, 33, 64, 100}) {
      codes.num_rows = rows;
      codes.check();
    }
    codes.num_rows = -1;
    codes.expert_offsets = {3, 20, 20, 61};
    codes.check();
    codes.row_index.assign(64, 1);
    codes.row_index[0] = codes.row_index[40] = -1;
    for (size_t row = 0; row < 32; ++row) codes.row_index[row] = -2;
    codes.check();
    codes.expert_offsets = {};
    codes.check();
    codes.row_index = {};
    codes.shape = {3, 64, 96};
    codes.expert_rows = {0, 40, 64};
    codes.check();
    codes.has_tiles = true;
    codes.check();
    // Experts of one row of one channel are the only axis.
    codes = ColumnCase();
    codes.is_backward = is_backward;
    codes.shape = {5, 1, 1};
    codes.group = 1;
    codes.expert_rows = {1, 0, 2, -1, 1};
    codes.check();
    codes.has_rows = false;
    codes.shape = {5, 1, 1, 1};
    codes.check();
  }
}

TEST_CASE("SwiGLU to codes by row and by column, random requests", "[swiglu][codes][columns][random]") {
#if defined(ROPE_TEST_SIMULATION)
  constexpr uint64_t cases = 40;
#else
  constexpr uint64_t cases = 200;
#endif
  for (uint64_t seed = 1; seed <= cases; ++seed) {
    INFO("seed " << seed);
    random_case(seed).check();
  }
}

TEST_CASE("SwiGLU to codes of one gradient beside words, biases and other activations", "[swiglu][codes][columns]") {
  ColumnCase codes;
  codes.is_backward = true;
  codes.has_words = true;
  codes.check();
  codes.has_columns = false;
  codes.check();
  codes.has_words = false;
  codes.check();
  codes.has_columns = true;
  codes.has_biases = true;
  codes.check();
  codes.has_biases = false;
  for (const int32_t activation :
       {SWIGLU_ACTIVATION_GEGLU_ERF, SWIGLU_ACTIVATION_GEGLU_TANH, SWIGLU_ACTIVATION_REGLU}) {
    INFO("activation " << activation);
    codes.activation = activation;
    codes.check();
  }
}

TEST_CASE("SwiGLU to codes by column in calls large enough for several threads", "[swiglu][codes][columns][threads]") {
  for (const bool is_backward : {false, true}) {
    ColumnCase codes;
    codes.is_backward = is_backward;
    codes.shape = {256, 1056};
    codes.check();
  }
}

TEST_CASE("codes of SwiGLU do not depend on the alignment of tensors", "[swiglu][codes][columns][determinism]") {
  const Shape shape = {64, 256};
  const Real infinity = std::numeric_limits<Real>::infinity();
  const Real special[] = {0, -0.0L, 8, -8, 1, -1, 0.5L, -200, 7, -7, 1e-30L};
  struct {
    double limit, alpha;
    bool has_row_scale = false, has_biases = false, has_offsets = false;
  } const cases[] = {{0, 0},
                     {7, 0},
                     {7, 1.702},
                     {0, 0, true},
                     {7, 0, true},
                     {7, 1.702, false, true},
                     {7, 0, false, false, true},
                     {0, 0, true, true, true}};
  for (const Device &device : devices()) {
    for (const bool is_backward : {false, true}) {
      for (const auto &of_case : cases) {
        INFO("on " << device << ", backward " << is_backward << ", limit " << of_case.limit << ", alpha "
                   << of_case.alpha << ", row_scale " << of_case.has_row_scale << ", biases " << of_case.has_biases
                   << ", offsets " << of_case.has_offsets);
        std::vector<uint8_t> bytes[2];
        for (const bool is_aligned : {true, false}) {
          Workspace workspace(5);
          const Placement placement = is_aligned ? Placement() : Placement().gap(0, 1);
          swiglu_args_t args = swiglu_args();
          int step = 1;
          for (rope_tensor_t *const input : {&args.gate, &args.up, &args.grad_out}) {
            if (input == &args.grad_out && !is_backward) continue;
            *input = workspace.tensor(ROPE_DTYPE_BF16, shape, placement);
            // Each pair of special values meets; the last rows have infinities too.
            workspace.fill(*input, [&](const Index &at) {
              const int64_t number = (at[0] * 256 + at[1]) / step;
              if (at[0] > 60 && number % 97 == 0) return infinity;
              return number % 13 < 11 ? special[number % 11] : static_cast<Real>(number % 31) - 15;
            });
            step *= 11;
          }
          if (of_case.has_row_scale) {
            args.row_scale = workspace.tensor(ROPE_DTYPE_F32, {64});
            workspace.fill(args.row_scale, [](const Index &at) { return static_cast<Real>(at[0] % 5) - 2; });
          }
          swiglu_input_args_t further = SWIGLU_INPUT_ARGS_INIT;
          for (rope_tensor_t *const bias : {&further.gate_bias, &further.up_bias}) {
            if (!of_case.has_biases) continue;
            *bias = workspace.tensor(ROPE_DTYPE_F32, {256});
            workspace.fill(*bias, [](const Index &at) { return static_cast<Real>(at[0] % 3) - 1; });
          }
          if (of_case.has_offsets) further.expert_offsets = workspace.list(ROPE_DTYPE_I32, {0, 10, 64});
          args.input = &further;
          swiglu_quant_args_t quant = SWIGLU_QUANT_ARGS_INIT;
          std::vector<rope_tensor_t> outputs;
          const auto add = [&](rope_tensor_t *codes, rope_tensor_t *scales) {
            *codes = workspace.tensor(ROPE_DTYPE_F8_E4M3, shape);
            *scales = workspace.tensor(ROPE_DTYPE_F32, {64, 8});
            outputs.insert(outputs.end(), {*codes, *scales});
          };
          if (is_backward) {
            add(&args.grad_gate, &quant.grad_gate_scales_out);
            add(&args.grad_up, &quant.grad_up_scales_out);
          } else {
            add(&args.out, &quant.scales_out);
          }
          args.quant = &quant;
          workspace.freeze();
          workspace.restore();
          swiglu_config_t config = swiglu_config_for(device);
          config.dtype = ROPE_DTYPE_BF16;
          config.limit = of_case.limit;
          config.alpha = of_case.alpha;
          const SwigluDesc desc = create(config);
          const Direction direction = is_backward ? Direction::Backward : Direction::Forward;
          REQUIRE(run(device, desc.get(), direction, args, workspace) == ROPE_STATUS_SUCCESS);
          for (const rope_tensor_t &output : outputs) {
            for_each_index(output, [&](const Index &at) {
              const uint32_t bits = bits_at(output, at);
              for (int64_t i = 0; i < oracle::element_size(output.dtype); ++i) {
                bytes[is_aligned].push_back(static_cast<uint8_t>(bits >> (8 * i)));
              }
            });
          }
        }
        REQUIRE(bytes[0].size() == bytes[1].size());
        size_t differing = 0;
        for (size_t i = 0; i < bytes[0].size(); ++i) differing += bytes[0][i] != bytes[1][i];
        CHECK(differing == 0);
      }
    }
  }
}

// Rows of scales lie along the second axis of gate, which has one entry, so each scale has a tile of its own.
TEST_CASE("gradients of SwiGLU as codes with a tile of scales for each row", "[swiglu][codes][columns][sanitize]") {
  const Shape shape = {160, 1, 64};
  for (const Device &device : devices()) {
    INFO("on " << device);
    Workspace workspace(6);
    swiglu_args_t args = swiglu_args();
    for (rope_tensor_t *const input : {&args.gate, &args.up, &args.grad_out}) {
      *input = workspace.tensor(ROPE_DTYPE_BF16, shape);
      workspace.fill_normal(*input);
    }
    args.grad_gate = workspace.tensor(ROPE_DTYPE_F8_E4M3, shape);
    const rope_tensor_t strided = workspace.tensor(ROPE_DTYPE_F8_E8M0, {160, 1, 2});
    const rope_tensor_t tiles = workspace.tensor(ROPE_DTYPE_F8_E8M0, {160, 128, 4});
    workspace.freeze();
    workspace.restore();
    swiglu_config_t config = swiglu_config_for(device);
    config.dtype = ROPE_DTYPE_BF16;
    const SwigluDesc desc = create(config);
    swiglu_quant_args_t quant = SWIGLU_QUANT_ARGS_INIT;
    args.quant = &quant;
    for (const bool has_tiles : {false, true}) {
      quant.grad_gate_scales_out = has_tiles ? tiles : strided;
      quant.scale_layout = has_tiles ? SWIGLU_SCALE_LAYOUT_128X4 : SWIGLU_SCALE_LAYOUT_STRIDED;
      const rope_status_t status = run(device, desc.get(), Direction::Backward, args, workspace);
      INFO(rope_last_error());
      REQUIRE(status == ROPE_STATUS_SUCCESS);
    }
    int wrong = 0;
    for_each_index(tiles, [&](const Index &at) {
      const bool is_scale = at[1] == 0 && at[2] < 2;
      wrong += bits_at(tiles, at) != (is_scale ? bits_at(strided, {at[0], 0, at[2]}) : 0);
    });
    CHECK(wrong == 0);
    CHECK(workspace.guards_hold());
  }
}
