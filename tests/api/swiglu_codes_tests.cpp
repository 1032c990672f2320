// SPDX-License-Identifier: Apache-2.0
// swiglu_codes_tests.cpp - SwiGLU whose out has 8 or 4 bits: codes and scales, byte for byte where the values are known
//
// Another call gives the values: its out is F32, or of 16 bits if values are rounded first. The tests make codes and
// scales of these values by rope.h's definitions, by search among numbers and powers of two and in long double. If gate
// is 1 and the activation is ReGLU, values are equal to up on every device.
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
using oracle::Real;

enum class Scales {
  None,
  Given,
  Written
};

struct CodesCase {
  rope_dtype_t dtype = ROPE_DTYPE_BF16;
  rope_dtype_t code = ROPE_DTYPE_F8_E4M3;
  Shape shape = {5, 256};
  Scales scales = Scales::Written;
  bool rounds_first = true;
  rope_dtype_t scale_dtype = ROPE_DTYPE_F32;
  uint32_t flags = 0;
  double floor = 0;
  int rows = 1;        // written: axes of gate that scales have
  int64_t groups = 2;  // groups of a row
  bool is_split = false;
  bool has_amax = false;
  double amax_before = 0.25;  // the call
  Placement out_placement;
  Placement scale_placement;
  int64_t num_rows = -1;
  std::vector<int64_t> expert_rows = {};
  std::vector<int64_t> expert_offsets = {};
  std::vector<int64_t> row_index = {};  // among factors of [shape[0]]
  bool has_scale_by_expert = false;
  bool has_odd_scales = false;  // given scales, and global ones, are 0, negative, subnormal, the largest number or NaN
  int64_t first_odd_scale = 0;
  bool has_row_scale = false;
  rope_dtype_t bias_dtype = 0;  // of gate and up, with experts a row for each; 0: no biases
  double up_offset = 0;
  int32_t activation = SWIGLU_ACTIVATION_SWIGLU;
  double special = 0;  // the value of one gate, or of one up that is copied
  bool is_zero = false;
  bool is_copied = false;  // out is up
  bool has_edges = false;  // up: each group's largest magnitude is at an edge of scales
  bool has_tiles = false;  // SWIGLU_SCALE_LAYOUT_128X4
  double global = 0;       // the factor of scales of E4M3; 0: absent

  void check() const;

  bool has_pairs() const { return code == ROPE_DTYPE_F4_E2M1X2; }
  int64_t row_elements() const {
    int64_t count = 1;
    for (size_t axis = static_cast<size_t>(rows); axis < shape.size(); ++axis) count *= shape[axis];
    return count;
  }

 private:
  struct Scene;
  bool is_row(const Index &at) const {
    if (num_rows >= 0 && at[0] >= num_rows) return false;
    if (!row_index.empty()) {
      const int64_t factor = row_index[static_cast<size_t>(at[0])];
      if (factor < 0 || factor >= shape[0]) return false;
    }
    if (!expert_offsets.empty() && expert_of(at) < 0) return false;
    return expert_rows.empty() || at[1] < expert_rows[static_cast<size_t>(at[0])];
  }
  int64_t expert_of(const Index &at) const {
    return expert_offsets.empty() ? at[0] : swiglu_rows::expert_of(expert_offsets, shape[0], at[0]);
  }
  int64_t experts() const {
    return expert_offsets.empty() ? shape[0] : static_cast<int64_t>(expert_offsets.size()) - 1;
  }
  // The index of an element's scale, and the place where it is written.
  Index scale_index(const Index &at) const {
    int64_t element = 0;
    for (size_t axis = static_cast<size_t>(rows); axis < shape.size(); ++axis)
      element = element * shape[axis] + at[axis];
    const int64_t group = element / (row_elements() / groups);
    Index index = {};
    std::copy(at.begin(), at.begin() + rows, index.begin());
    if (has_tiles) return tile_index(index, at[static_cast<size_t>(rows) - 1], group);
    index[static_cast<size_t>(rows)] = is_split ? group / 4 : group;
    if (is_split) index[static_cast<size_t>(rows) + 1] = group % 4;
    return index;
  }
  int64_t padded_groups() const { return (groups + 3) / 4 * 4; }
  int64_t padded_rows() const { return (shape[static_cast<size_t>(rows) - 1] + 127) / 128 * 128; }
  // cuBLAS, "1D block scaling factors layout": tiles of 512 bytes, row by row; in a tile 32 pieces of 16 bytes, each
  // with 4 groups of the rows r, r + 32, r + 64 and r + 96.
  Index tile_index(Index index, int64_t row, int64_t group) const {
    const int64_t tiles_of_row = padded_groups() / 4;
    const int64_t tile = row / 128 * tiles_of_row + group / 4, piece = row % 32, quarter = row % 128 / 32;
    const int64_t byte = 512 * tile + 16 * piece + 4 * quarter + group % 4;
    index[static_cast<size_t>(rows) - 1] = byte / padded_groups();
    index[static_cast<size_t>(rows)] = byte % padded_groups();
    return index;
  }
  void fill_edges(Workspace *workspace, const rope_tensor_t &up) const;
  int check_padding(Workspace *workspace, const rope_tensor_t &scales_out) const;
  float odd_scale(const Index &at) const {
    constexpr float odd[] = {0.0f,       -0.0f, 0x1p-149f, 0x3p-128f, -0x1p-149f,
                             -0x3p-130f, -0.5f, 0x1p-126f, 3.4e38f,   std::numeric_limits<float>::quiet_NaN()};
    return odd[static_cast<size_t>(first_odd_scale + at[0]) % (sizeof odd / sizeof *odd)];
  }
  // The global scale of an expert.
  float global_of(const Index &at) const {
    if (has_odd_scales) return odd_scale(at);
    return static_cast<float>(global) * static_cast<float>(has_scale_by_expert ? 1 + at[0] : 1);
  }
  void verify(Scene *scene, bool is_exact) const;
};

struct CodesCase::Scene {
  explicit Scene(uint64_t seed) : workspace(seed) {}
  Workspace workspace;
  rope_tensor_t gate = {}, up = {}, plain = {}, out = {}, scale = {}, scales = {}, amax = {}, num_rows = {},
                expert_rows = {}, expert_offsets = {}, row_index = {}, row_scale = {}, biases[2] = {};
};

// The padding of scales in tiles is 0. Returns the number of other bytes.
int CodesCase::check_padding(Workspace *workspace, const rope_tensor_t &scales_out) const {
  int wrong = 0;
  rope_tensor_t matrices = scales_out;
  matrices.shape[rows - 1] = matrices.shape[rows] = 1;
  for_each_index(matrices, [&](const Index &matrix) {
    for (int64_t row = 0; row < padded_rows(); ++row) {
      for (int64_t group = 0; group < padded_groups(); ++group) {
        if (row < shape[static_cast<size_t>(rows) - 1] && group < groups) continue;
        const Index at = tile_index(matrix, row, group);
        wrong += bits_at(scales_out, at) != 0;
        workspace->accept(scales_out, at);
      }
    }
  });
  return wrong;
}

// Makes the first value of each group its largest: top times a power of two, a number beside that, another one or 0.
void CodesCase::fill_edges(Workspace *workspace, const rope_tensor_t &up) const {
  const int64_t length = row_elements() / groups;
  int64_t number = 0;
  float largest = 0;
  workspace->fill(up, [&](const Index &) {
    const int64_t group = number / length;
    const bool is_first = number++ % length == 0;
    if (!is_first) return static_cast<Real>(largest) * workspace->random().uniform(-1, 1);
    // The exponents stay within every type of data.
    largest = std::ldexp(top_of(code), static_cast<int>(group * 7 % 20) - (code == ROPE_DTYPE_F8_E5M2 ? 20 : 12));
    if (dtype == ROPE_DTYPE_F32) largest = std::ldexp(largest, static_cast<int>(group * 13 % 160) - 90);
    const float beside[] = {largest, std::nextafter(largest, 0.0f), std::nextafter(largest, INFINITY), largest * 0.8f};
    largest = group % 11 == 5 ? 0.0f : beside[group % 4];
    return static_cast<Real>(group % 3 == 0 ? -largest : largest);
  });
}

void CodesCase::verify(Scene *scene, bool is_exact) const {
  const ScaleRule rule = {code, scale_dtype, flags, floor};
  Workspace &workspace = scene->workspace;
  const rope_tensor_t &plain = scene->plain, &out = scene->out;
  // The largest magnitudes of this device's values, group by group.
  std::map<Index, float> maxima;
  const auto max_of = [&](const Index &group) -> float & { return maxima[group]; };
  float amax = 0;
  for_each_index(plain, [&](const Index &at) {
    workspace.accept(plain, at);
    if (!is_row(at)) return;
    const float magnitude = magnitude_of(value_at(plain, at));
    const auto raise = [&](float *max) {
      if (std::isnan(magnitude) || magnitude > *max) *max = magnitude;
    };
    raise(&amax);
    if (scales == Scales::Written) raise(&max_of(scale_index(at)));
  });
  int wrong = 0, differing = 0, elements = 0;
  for_each_index(plain, [&](const Index &at) {
    if (!is_row(at)) return;
    float factor = 1;
    if (scales == Scales::Written) {
      const Index group = scale_index(at);
      const bool is_e4m3 = scale_dtype == ROPE_DTYPE_F8_E4M3;
      const float global = is_e4m3 && this->global != 0 ? global_of({expert_of(at)}) : 1, amax_of_group = max_of(group);
      const uint32_t bits = bits_at(scene->scales, group);
      const uint32_t expected = bits_of_scale(rule, scale_of(rule, amax_of_group, global));
      const int64_t step = std::abs(static_cast<int64_t>(bits) - static_cast<int64_t>(expected));
      const int64_t allowed = scale_dtype == ROPE_DTYPE_F32 && flags == 0 ? 1 << 14 : is_e4m3 ? 1 : 0;
      if (step > (is_exact ? 0 : allowed)) ++wrong;
      // Below 2^-116 the product of amax and 1/448 is not a normal number.
      const bool is_mxfp8 = code == ROPE_DTYPE_F8_E4M3 && scale_dtype == ROPE_DTYPE_F8_E8M0 && floor == 0;
      if (is_mxfp8 && (amax_of_group == 0 || !(amax_of_group < 0x1p-116f))) {
        if (static_cast<int>(bits) != rounded_up_exponent(amax_of_group)) ++wrong;
      }
      workspace.accept(scene->scales, group);
      const float scale = scale_from(scale_dtype, bits);
      factor = std::isinf(scale) ? 0 : inverse_of(scale, global);
      if (std::isnan(scale)) factor = scale;
    } else if (scales == Scales::Given) {
      const Index expert = {has_scale_by_expert ? expert_of(at) : 0};
      const float scale = static_cast<float>(value_at(workspace.before(scene->scale), expert));
      factor = (flags & ROPE_QUANT_FLAG_SCALE_MULTIPLIES) != 0 ? scale : inverse_of(scale, 1);
    }
    const float product = static_cast<float>(value_at(plain, at)) * factor;
    const uint8_t expected = code_of(code, product), actual = code_at(out, at);
    const int steps = steps_between(code, expected, actual);
    ++elements;
    differing += steps != 0;
    if (steps > (is_exact ? 0 : 1) && ++wrong <= 3) {
      UNSCOPED_INFO("out[" << at[0] << ',' << at[1] << ',' << at[2] << ',' << at[3] << "] of "
                           << static_cast<double>(value_at(plain, at)) << " times " << factor << ": expected "
                           << int{expected} << ", got " << int{actual});
    }
    Index place = at;
    if (has_pairs()) place[shape.size() - 1] /= 2;
    workspace.accept(out, place);
  });
  if (has_tiles) wrong += check_padding(&workspace, scene->scales);
  if (has_amax) {
    const float held = static_cast<float>(value_at(workspace.before(scene->amax), {}));
    const float found = static_cast<float>(value_at(scene->amax, {}));
    const float expected = std::isnan(amax) ? amax : std::max(amax, held);
    const bool is_close = found == expected || std::fabs(found - expected) <= (is_exact ? 0 : expected * 0x1p-8f);
    if (!(std::isnan(expected) ? std::isnan(found) : is_close)) ++wrong;
    workspace.accept(scene->amax, {});
  }
  INFO(wrong << " elements or scales are wrong, " << differing << " codes of " << elements << " differ");
  CHECK(wrong == 0);
  CHECK(differing <= (is_exact ? 0 : 2 + elements / 20));
}

void CodesCase::check() const {
  Scene scene(17);
  Workspace &workspace = scene.workspace;
  // Values that are not rounded first are those of a call with the same numbers as F32 data.
  const bool is_known = dtype == ROPE_DTYPE_F32 || rounds_first;
  scene.gate = workspace.tensor(dtype, shape);
  scene.up = workspace.tensor(dtype, shape);
  scene.plain = workspace.tensor(is_known ? dtype : ROPE_DTYPE_F32, shape);
  Shape out_shape = shape;
  if (has_pairs()) out_shape.back() /= 2;
  scene.out = workspace.tensor(code, out_shape, out_placement);
  workspace.fill_normal(scene.gate);
  workspace.fill_normal(scene.up);
  if (is_copied) workspace.fill(scene.gate, [](const Index &) { return Real{1}; });
  if (has_edges) fill_edges(&workspace, scene.up);
  if (is_zero) workspace.fill(scene.up, [](const Index &) { return Real{0}; });
  const rope_tensor_t &with_special = is_copied ? scene.up : scene.gate;
  if (special != 0) oracle::encode(dtype, static_cast<Real>(special), element_at(with_special, {1, 3}));
  if (has_row_scale) {
    scene.row_scale = workspace.tensor(ROPE_DTYPE_F32, {shape[0]});
    workspace.fill_normal(scene.row_scale);
  }
  for (rope_tensor_t &bias : scene.biases) {
    if (bias_dtype == 0) continue;
    const bool is_by_expert = !expert_rows.empty() || !expert_offsets.empty();
    bias = workspace.tensor(bias_dtype, is_by_expert ? Shape{experts(), shape.back()} : Shape{shape.back()});
    workspace.fill_normal(bias);
  }
  const Shape row_axes(shape.begin(), shape.begin() + rows);
  if (scales == Scales::Written) {
    Shape scales_shape = row_axes;
    scales_shape.push_back(is_split ? groups / 4 : groups);
    if (is_split) scales_shape.push_back(4);
    if (has_tiles) {
      scales_shape[static_cast<size_t>(rows) - 1] = padded_rows();
      scales_shape[static_cast<size_t>(rows)] = padded_groups();
    }
    scene.scales = workspace.tensor(scale_dtype, scales_shape, scale_placement);
    if (global != 0) {
      scene.scale = workspace.tensor(ROPE_DTYPE_F32, {has_scale_by_expert ? experts() : 1});
      workspace.fill(scene.scale, [&](const Index &at) { return static_cast<Real>(global_of(at)); });
    }
  } else if (scales == Scales::Given) {
    scene.scale = workspace.tensor(ROPE_DTYPE_F32, {has_scale_by_expert ? experts() : 1});
    workspace.fill(scene.scale, [&](const Index &at) {
      return has_odd_scales ? static_cast<Real>(odd_scale(at)) : Real{0.011L} * (1 + at[0]);
    });
  }
  if (has_amax) {
    scene.amax = workspace.tensor(ROPE_DTYPE_F32, {1});
    workspace.fill(scene.amax, [&](const Index &) { return static_cast<Real>(amax_before); });
  }
  if (num_rows >= 0) {
    scene.num_rows = workspace.tensor(ROPE_DTYPE_I32, {1});
    workspace.fill_integers(scene.num_rows, [&](const Index &) { return num_rows; });
  }
  if (!expert_rows.empty()) scene.expert_rows = workspace.list(ROPE_DTYPE_I64, expert_rows);
  if (!expert_offsets.empty()) scene.expert_offsets = workspace.list(ROPE_DTYPE_I64, expert_offsets);
  if (!row_index.empty()) scene.row_index = workspace.list(ROPE_DTYPE_I64, row_index);
  rope_tensor_t wide[2] = {};
  for (int i = 0; i < 2 && !is_known; ++i) {
    wide[i] = workspace.tensor(ROPE_DTYPE_F32, shape);
    const rope_tensor_t &from = i == 0 ? scene.gate : scene.up;
    workspace.fill(wide[i], [&](const Index &at) { return value_at(from, at); });
  }
  workspace.freeze();

  swiglu_quant_args_t quant = SWIGLU_QUANT_ARGS_INIT;
  quant.flags = flags;
  quant.scale_floor = floor;
  quant.scale = scene.scale;
  quant.scales_out = scene.scales;
  quant.amax_out = scene.amax;
  quant.scale_layout = has_tiles ? SWIGLU_SCALE_LAYOUT_128X4 : SWIGLU_SCALE_LAYOUT_STRIDED;
  swiglu_input_args_t input = SWIGLU_INPUT_ARGS_INIT;
  input.expert_rows = scene.expert_rows;
  input.expert_offsets = scene.expert_offsets;
  input.row_index = scene.row_index;
  input.gate_bias = scene.biases[0];
  input.up_bias = scene.biases[1];
  for (const Device &device : devices()) {
    std::vector<std::byte> first;
    for (const int32_t threads : {1, 3, 0}) {
      INFO("on " << device << ", num_threads " << threads);
      swiglu_config_t config = swiglu_config_for(device);
      config.dtype = dtype;
      config.num_threads = threads;
      config.up_offset = up_offset;
      config.activation = is_copied ? SWIGLU_ACTIVATION_REGLU : activation;
      config.quant_rounding = rounds_first ? ROPE_QUANT_ROUND_FIRST : 0;
      const SwigluDesc desc = create(config);
      config.dtype = scene.plain.dtype;
      config.quant_rounding = 0;
      const SwigluDesc of_values = create(config);
      swiglu_args_t args = swiglu_args();
      args.gate = is_known ? scene.gate : wide[0];
      args.up = is_known ? scene.up : wide[1];
      args.out = scene.plain;
      args.row_scale = scene.row_scale;
      args.num_rows = scene.num_rows;
      args.input = &input;
      workspace.restore();
      REQUIRE(run(device, of_values.get(), Direction::Forward, args, workspace) == ROPE_STATUS_SUCCESS);
      args.gate = scene.gate;
      args.up = scene.up;
      args.out = scene.out;
      if (scales != Scales::None || has_amax || flags != 0) args.quant = &quant;
      const rope_status_t status = run(device, desc.get(), Direction::Forward, args, workspace);
      INFO(rope_last_error());
      REQUIRE(status == ROPE_STATUS_SUCCESS);
      if (!first.empty()) {
        const bool is_same = workspace.image() == first;
        CHECK(is_same);
        continue;
      }
      verify(&scene, is_copied || (is_known && device.kind == ROPE_DEVICE_CPU));
      std::string where;
      const bool untouched = workspace.untouched_elsewhere(&where);
      INFO(where);
      CHECK(untouched);
      CHECK(workspace.guards_hold());
      first = workspace.image();
    }
  }
}

const std::vector<rope_dtype_t> dtypes = {ROPE_DTYPE_F32, ROPE_DTYPE_F16, ROPE_DTYPE_BF16};
const std::vector<rope_dtype_t> codes_of_8_bits = {ROPE_DTYPE_F8_E4M3, ROPE_DTYPE_F8_E5M2};

// Cases for formats of codes, with the groups of each: 32 channels for MXFP8, 16 for NVFP4.
CodesCase mxfp8(rope_dtype_t code = ROPE_DTYPE_F8_E4M3) {
  CodesCase codes;
  codes.code = code;
  codes.scale_dtype = ROPE_DTYPE_F8_E8M0;
  codes.shape = {37, 224};
  codes.groups = 7;
  return codes;
}

CodesCase nvfp4() {
  CodesCase codes;
  codes.code = ROPE_DTYPE_F4_E2M1X2;
  codes.scale_dtype = ROPE_DTYPE_F8_E4M3;
  codes.shape = {37, 208};
  codes.groups = 13;
  codes.global = 37.5;
  return codes;
}

// Half of the requests have each axis of length 1 with odds of a half.
CodesCase random_case(uint64_t seed) {
  Random random(seed);
  const auto chance = [&](int percent) { return random.below(100) < percent; };
  const auto between = [&](int64_t low, int64_t high) { return low + random.below(high - low + 1); };
  const bool has_ones = chance(50);
  const auto length = [&](int64_t most) { return has_ones && chance(50) ? 1 : between(1, most); };
  CodesCase codes;
  codes.dtype = chance(50) ? ROPE_DTYPE_BF16 : chance(50) ? ROPE_DTYPE_F16 : ROPE_DTYPE_F32;
  codes.code = chance(30) ? ROPE_DTYPE_F4_E2M1X2 : chance(50) ? ROPE_DTYPE_F8_E4M3 : ROPE_DTYPE_F8_E5M2;
  codes.shape.clear();
  for (int64_t axes = between(1, 3); axes > 0; --axes) codes.shape.push_back(length(5));
  codes.shape.push_back(chance(20) ? 32 * between(1, 3) : codes.has_pairs() ? 2 * length(12) : length(24));
  const size_t ndim = codes.shape.size();
  const int64_t first = codes.shape[0];
  if (ndim > 2 && chance(40)) {
    for (int64_t i = 0; i < first; ++i) codes.expert_rows.push_back(between(-1, codes.shape[1] + 1));
  } else if (chance(30)) {
    codes.expert_offsets = {0, between(0, first), between(0, first + 1)};
  } else if (chance(30)) {
    codes.num_rows = between(0, first + 1);
  }
  const bool has_experts = !codes.expert_rows.empty() || !codes.expert_offsets.empty();
  codes.has_row_scale = chance(30);
  if (codes.has_row_scale && codes.expert_rows.empty() && chance(50)) {
    for (int64_t i = 0; i < first; ++i) codes.row_index.push_back(between(-1, first));
  }
  codes.scales = chance(20) ? Scales::None : chance(30) ? Scales::Given : Scales::Written;
  codes.rows = static_cast<int>(between(codes.expert_rows.empty() ? 1 : 2, static_cast<int64_t>(ndim) - 1));
  codes.groups = 1;
  if (codes.scales == Scales::Written) {
    const bool has_e4m3 = codes.has_pairs() && chance(50);
    codes.scale_dtype = has_e4m3 ? ROPE_DTYPE_F8_E4M3 : chance(50) ? ROPE_DTYPE_F8_E8M0 : ROPE_DTYPE_F32;
    if (has_e4m3) codes.global = 37.5;
    std::vector<int64_t> divisors;
    const int64_t elements = codes.row_elements();
    for (int64_t groups = 1; groups <= elements; ++groups) {
      const bool is_whole = elements % groups == 0 && (!codes.has_pairs() || elements / groups % 2 == 0);
      if (is_whole) divisors.push_back(groups);
    }
    codes.groups = divisors[static_cast<size_t>(random.below(static_cast<int64_t>(divisors.size())))];
    codes.is_split = codes.groups % 4 == 0 && codes.rows < 3 && chance(50);
    const int64_t of_tiles = has_e4m3 ? 16 : 32;
    if (codes.scale_dtype != ROPE_DTYPE_F32 && elements % of_tiles == 0 && chance(60)) {
      codes.has_tiles = true;
      codes.is_split = false;
      codes.groups = elements / of_tiles;
    }
  }
  codes.has_scale_by_expert = has_experts && (codes.scales == Scales::Given || codes.global != 0) && chance(50);
  codes.has_amax = chance(50);
  if (chance(30)) codes.bias_dtype = chance(50) ? codes.dtype : ROPE_DTYPE_F32;
  if (chance(40)) codes.out_placement.gap(static_cast<int>(random.below(static_cast<int64_t>(ndim))), between(1, 8));
  if (!codes.has_tiles && chance(30)) codes.scale_placement.gap(0, between(1, 3));
  return codes;
}

// Whether long launches on the device take millions of elements. Those of a simulated GPU of one multiprocessor do not.
bool needs_large_matrices(const Device &device) {
#if defined(ROPE_TEST_SIMULATION)
  (void)device;
  return false;
#else
  return device.kind == ROPE_DEVICE_CUDA;
#endif
}

// Args with random gate and up in BF16.
swiglu_args_t inputs_of(const Shape &shape, Workspace *workspace) {
  swiglu_args_t args = swiglu_args();
  for (rope_tensor_t *const input : {&args.gate, &args.up}) {
    *input = workspace->tensor(ROPE_DTYPE_BF16, shape);
    workspace->fill_normal(*input);
  }
  return args;
}

// Whether the first rows of two matrices without gaps are equal.
bool have_equal_rows(const rope_tensor_t &a, const rope_tensor_t &b, int64_t rows) {
  const auto bytes = static_cast<size_t>(rows * a.stride[0] * oracle::element_size(a.dtype));
  return std::memcmp(a.data, b.data, bytes) == 0;
}

// A floor above all magnitudes, and a NaN and an infinity among the values.
void check_extremes(CodesCase codes) {
  codes.floor = 1000;
  codes.check();
  codes.floor = 0;
  codes.special = std::numeric_limits<double>::quiet_NaN();
  codes.check();
  codes.special = std::numeric_limits<double>::infinity();
  codes.check();
}

}  // namespace

TEST_CASE("SwiGLU to codes with a given scale or none", "[swiglu][codes][sanitize]") {
  for (const rope_dtype_t dtype : dtypes) {
    for (const rope_dtype_t code : codes_of_8_bits) {
      for (const bool rounds_first : {false, true}) {
        CodesCase codes;
        codes.dtype = dtype;
        codes.code = code;
        codes.rounds_first = rounds_first;
        codes.scales = Scales::None;
        codes.check();
        codes.scales = Scales::Given;
        codes.has_amax = true;
        codes.check();
        codes.flags = ROPE_QUANT_FLAG_SCALE_MULTIPLIES;
        codes.shape = {3, 7, 33};
        codes.out_placement = Placement().order({1, 0, 2}).gap(1, 5).reversed(0);
        codes.check();
      }
    }
  }
}

// rope.h: codes are x * i, and i is 0 for a scale of 0 and the largest number at most.
TEST_CASE("SwiGLU to codes with given scales that are no positive normal numbers", "[swiglu][codes][fp4][sanitize]") {
  for (const bool has_pairs : {false, true}) {
    for (const uint32_t flags : {uint32_t{0}, uint32_t{ROPE_QUANT_FLAG_SCALE_MULTIPLIES}}) {
      CodesCase codes = has_pairs ? nvfp4() : CodesCase();
      const int64_t columns = 256;
      codes.groups = 16;
      codes.has_odd_scales = codes.has_scale_by_expert = true;
      codes.flags = has_pairs ? 0 : flags;
      if (!has_pairs) codes.scales = Scales::Given;
      // One scale for each of ten experts, in kernels of experts and of any shape.
      codes.shape = {10, 3, columns};
      codes.rows = 2;
      codes.expert_rows = {3, 2, 1, 3, 3, 3, 3, 3, 3, 3};
      codes.check();
      codes.dtype = ROPE_DTYPE_F32;
      codes.check();
      codes.dtype = ROPE_DTYPE_F16;
      codes.shape = {20, columns};
      codes.rows = 1;
      codes.expert_rows = {};
      codes.expert_offsets = {0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20};
      codes.check();
      codes.is_zero = true;
      codes.check();
    }
  }
  // One scale for all, in the kernels of matrices, and of whole groups of 128 channels.
  for (int64_t odd = 0; odd < 10; ++odd) {
    INFO("odd scale " << odd);
    CodesCase codes;
    codes.scales = Scales::Given;
    codes.has_odd_scales = true;
    codes.first_odd_scale = odd;
    for (const int64_t columns : {256, 200, 37}) {
      codes.shape = {5, columns};
      codes.has_amax = false;
      codes.check();
      codes.has_amax = true;
      codes.check();
    }
  }
}

TEST_CASE("SwiGLU to codes writes scales by row and by group", "[swiglu][codes][sanitize]") {
  for (const rope_dtype_t dtype : dtypes) {
    for (const rope_dtype_t code : codes_of_8_bits) {
      for (const bool rounds_first : {false, true}) {
        for (const int64_t groups : {1, 2, 8}) {
          CodesCase codes;
          codes.dtype = dtype;
          codes.code = code;
          codes.rounds_first = rounds_first;
          codes.groups = groups;
          codes.check();
          codes.flags = ROPE_QUANT_FLAG_POWER_OF_TWO;
          codes.has_amax = true;
          codes.check();
          codes.flags = 0;
          codes.scale_dtype = ROPE_DTYPE_F8_E8M0;
          codes.check();
          codes.is_split = groups == 8;
          codes.scale_placement = Placement().order({1, 2, 0}).gap(0, 3);  // column-major
          if (!codes.is_split) codes.scale_placement = Placement().order({1, 0});
          codes.check();
        }
      }
    }
  }
}

// On CUDA these take kernels of their own.
TEST_CASE("SwiGLU to codes of whole groups of 128 channels, with nothing but a scale", "[swiglu][codes][sanitize]") {
  for (const rope_dtype_t dtype : {ROPE_DTYPE_F16, ROPE_DTYPE_BF16}) {
    for (const bool rounds_first : {false, true}) {
      CodesCase given;
      given.dtype = dtype;
      given.rounds_first = rounds_first;
      given.shape = {9, 384};
      given.out_placement = Placement().gap(0, 8);
      given.scales = Scales::Given;
      given.check();
      given.flags = ROPE_QUANT_FLAG_SCALE_MULTIPLIES;
      given.check();
      for (const rope_dtype_t scale : {ROPE_DTYPE_F32, ROPE_DTYPE_F8_E8M0}) {
        CodesCase codes;
        codes.dtype = dtype;
        codes.rounds_first = rounds_first;
        codes.shape = {9, 384};
        codes.groups = 3;
        codes.scale_dtype = scale;
        codes.check();
        codes.scale_placement = Placement().order({1, 0}).gap(0, 1);
        check_extremes(codes);
        codes.is_zero = true;
        codes.check();
        codes.is_zero = false;
        codes.shape = {2, 1024};
        codes.groups = 8;
        codes.is_split = true;
        codes.scale_placement = Placement().order({2, 1, 0}).gap(0, 3);
        if (scale == ROPE_DTYPE_F32) codes.flags = ROPE_QUANT_FLAG_POWER_OF_TWO;
        codes.check();
        codes.shape = {31, 16384};  // more than 300 vectors for each of 132 multiprocessors
        codes.groups = 128;
        codes.check();
        codes.shape = {61, 1152};  // more than 7000 for one, as in rope_simulation_tests.long; no whole warps
        codes.groups = 9;
        codes.is_split = false;
        codes.scale_placement = Placement().gap(0, 1);
        codes.check();
        codes.out_placement = Placement().gap(0, 8);  // no vectors of 16 codes
        codes.check();
      }
    }
  }
}

// By the rows of a launch, a thread has 4, 8 or 16 channels of a group. A matrix and its parts have the same codes.
TEST_CASE("codes in groups of 128 channels do not depend on the number of rows",
          "[swiglu][codes][determinism][sanitize]") {
  for (const Device &device : devices()) {
    const bool is_large = needs_large_matrices(device);
    // More than 7000 vectors for each multiprocessor, of up to 171 or of one that is simulated; and no whole warps.
    const Shape shape = is_large ? Shape{641, 14976} : Shape{61, 1152};
    const int64_t parts[] = {shape[0], is_large ? 128 : 16, is_large ? 16 : 2};
    for (const rope_dtype_t scale : {ROPE_DTYPE_F32, ROPE_DTYPE_F8_E8M0}) {
      for (const bool is_written : {false, true}) {
        INFO("on " << device << ", scales of type " << scale << ", written " << is_written);
        Workspace workspace(29);
        const swiglu_args_t args = inputs_of(shape, &workspace);
        const rope_tensor_t given = workspace.tensor(ROPE_DTYPE_F32, {1});
        workspace.fill(given, [](const Index &) { return Real{0.01}; });
        rope_tensor_t out[3], scales[3];
        for (int i = 0; i < 3; ++i) {
          out[i] = workspace.tensor(ROPE_DTYPE_F8_E4M3, shape);
          scales[i] = workspace.tensor(scale, {shape[0], shape[1] / 128});
        }
        workspace.freeze();
        swiglu_config_t config = swiglu_config_for(device);
        config.dtype = ROPE_DTYPE_BF16;
        const SwigluDesc desc = create(config);
        for (int i = 0; i < 3; ++i) {
          for (int64_t first = 0; first < shape[0]; first += parts[i]) {
            const int64_t rows = std::min(parts[i], shape[0] - first);
            swiglu_args_t part = args;
            swiglu_quant_args_t quant = SWIGLU_QUANT_ARGS_INIT;
            part.gate = narrow(args.gate, 0, first, rows);
            part.up = narrow(args.up, 0, first, rows);
            part.out = narrow(out[i], 0, first, rows);
            (is_written ? quant.scales_out : quant.scale) = is_written ? narrow(scales[i], 0, first, rows) : given;
            part.quant = &quant;
            REQUIRE(run(device, desc.get(), Direction::Forward, part, workspace) == ROPE_STATUS_SUCCESS);
          }
        }
        for (int i = 1; i < 3; ++i) {
          CHECK(have_equal_rows(out[0], out[i], shape[0]));
          if (is_written) CHECK(have_equal_rows(scales[0], scales[i], shape[0]));
        }
        CHECK(workspace.guards_hold());
      }
    }
  }
}

TEST_CASE("SwiGLU to codes of any shape, groups longer than a buffer", "[swiglu][codes]") {
  struct Form {
    Shape shape;
    int rows;
    int64_t groups;
  };
  for (const Form &form :
       {Form{{2, 5003}, 1, 1}, Form{{2, 3, 4099}, 2, 1}, Form{{3, 4, 96}, 1, 3}, Form{{2, 3, 4, 32}, 3, 2},
        Form{{2, 3, 4, 32}, 1, 12}, Form{{1, 64}, 1, 4}, Form{{37, 1}, 1, 1}, Form{{6, 4, 2, 8}, 2, 16}}) {
    for (const bool has_gaps : {false, true}) {
      CodesCase codes;
      codes.shape = form.shape;
      codes.rows = form.rows;
      codes.groups = form.groups;
      codes.has_amax = true;
      if (has_gaps) codes.out_placement = Placement().gap(static_cast<int>(form.shape.size()) - 1, 1);
      codes.check();
    }
  }
}

TEST_CASE("SwiGLU to codes, random requests", "[swiglu][codes][fp4][random]") {
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    INFO("seed " << seed);
    random_case(seed).check();
  }
}

TEST_CASE("SwiGLU to codes of rows and experts that are there", "[swiglu][codes][sanitize]") {
  for (const Scales scales : {Scales::Given, Scales::Written}) {
    CodesCase codes;
    codes.scales = scales;
    codes.has_amax = true;
    codes.num_rows = 3;
    codes.has_row_scale = true;
    codes.up_offset = 1;
    codes.check();
    codes = CodesCase();
    codes.scales = scales;
    codes.shape = {3, 5, 128};
    codes.rows = 2;
    codes.expert_rows = {2, 0, 5};
    codes.has_scale_by_expert = scales == Scales::Given;
    codes.has_amax = true;
    codes.activation = SWIGLU_ACTIVATION_GEGLU_TANH;
    codes.check();
    // num_rows limits the first axis, however long it is.
    codes = CodesCase();
    codes.scales = scales;
    codes.shape = {1, 4, 128};
    codes.rows = 2;
    codes.groups = 1;
    codes.num_rows = 1;
    codes.check();
    codes.num_rows = 0;
    codes.check();
  }
}

TEST_CASE("SwiGLU to codes of experts back to back and of factors by index", "[swiglu][codes][rows]") {
  for (const Scales scales : {Scales::None, Scales::Given, Scales::Written}) {
    for (const std::vector<int64_t> &offsets :
         {std::vector<int64_t>{0, 11}, {1, 4, 4, 9}, {0, 7, 3, 11}, {-2, 5, 9}, {0, 5, 13}, {6, 6}}) {
      CodesCase codes;
      codes.scales = scales;
      codes.shape = {11, 160};
      codes.expert_offsets = offsets;
      codes.has_scale_by_expert = scales == Scales::Given;
      codes.has_amax = true;
      codes.check();
      codes.has_row_scale = true;
      codes.row_index = {3, 3, 0, -1, 10, 11, 7, 1, 900, 4, 2};
      codes.check();
      codes.shape = {11, 5, 32};
      codes.rows = 2;
      codes.out_placement = Placement().gap(1, 3);
      codes.check();
    }
    CodesCase codes;
    codes.scales = scales;
    codes.shape = {9, 1};
    codes.groups = 1;
    codes.has_row_scale = true;
    codes.row_index = {8, 0, -5, 3, 3, 9, 1, 2, 4};
    codes.num_rows = 8;
    codes.check();
    codes.num_rows = -1;
    codes.expert_offsets = {0, 2, 7};
    codes.activation = SWIGLU_ACTIVATION_GEGLU_TANH;
    codes.has_amax = true;
    codes.check();
  }
}

// Rows of several parts of 1024 channels, the last of them short.
TEST_CASE("SwiGLU to codes of long rows with experts, factors and biases", "[swiglu][codes][rows][sanitize]") {
  CodesCase by_128;
  by_128.shape = {11, 1280};
  by_128.groups = 10;
  CodesCase powers_of_two = by_128;
  powers_of_two.groups = 5;
  powers_of_two.flags = ROPE_QUANT_FLAG_POWER_OF_TWO;
  powers_of_two.code = ROPE_DTYPE_F8_E5M2;
  CodesCase by_row = by_128;
  by_row.groups = 1;
  CodesCase given = by_128;
  given.scales = Scales::Given;
  CodesCase mx = mxfp8(), nv = nvfp4();
  mx.shape = nv.shape = {11, 1120};
  mx.groups = 35;
  nv.groups = 70;
  for (CodesCase codes : {by_128, powers_of_two, by_row, given, mx, nv}) {
    codes.has_amax = true;
    const bool may_have_tiles = codes.scale_dtype != ROPE_DTYPE_F32 && codes.scales == Scales::Written;
    for (const bool has_tiles : {false, true}) {
      if (has_tiles && !may_have_tiles) continue;
      codes.has_tiles = has_tiles;
      const bool has_scale = codes.scales == Scales::Given || codes.global != 0;
      INFO("code " << codes.code << ", " << codes.groups << " groups, tiles " << has_tiles);
      CodesCase item = codes;
      item.bias_dtype = ROPE_DTYPE_F32;
      item.check();
      item.bias_dtype = codes.dtype;
      item.num_rows = 7;
      item.has_row_scale = true;
      item.check();
      item = codes;
      item.has_row_scale = true;
      item.up_offset = 1;
      item.check();
      item.row_index = {3, 3, 0, -1, 10, 11, 7, 1, 900, 4, 2};
      item.check();
      item.expert_offsets = {1, 4, 4, 9};
      item.has_scale_by_expert = has_scale;
      item.bias_dtype = ROPE_DTYPE_F32;
      item.check();
      item = codes;
      item.shape = {3, 5, codes.shape[1]};
      item.rows = 2;
      item.expert_rows = {2, 0, 5};
      item.has_scale_by_expert = has_scale;
      item.out_placement = Placement().gap(1, 8);
      item.check();
      item.bias_dtype = codes.dtype;
      item.rounds_first = true;
      item.check();
    }
  }
}

TEST_CASE("SwiGLU to codes with one scale for a row of any length", "[swiglu][codes][sanitize]") {
  for (const int64_t columns : {8, 264, 16384, 16392, 28672, 33024}) {
    for (const bool has_experts : {false, true}) {
      INFO(columns << " columns, experts " << has_experts);
      CodesCase codes;
      codes.shape = has_experts ? Shape{2, 2, columns} : Shape{3, columns};
      codes.rows = has_experts ? 2 : 1;
      if (has_experts) codes.expert_rows = {2, 1};
      codes.groups = 1;
      codes.has_amax = true;
      codes.check();
      codes.flags = ROPE_QUANT_FLAG_POWER_OF_TWO;
      codes.up_offset = 0.5;
      codes.check();
    }
  }
}

TEST_CASE("SwiGLU to codes of zeros, infinities and NaN, floors of scales", "[swiglu][codes]") {
  for (const rope_dtype_t scale : {ROPE_DTYPE_F32, ROPE_DTYPE_F8_E8M0}) {
    CodesCase codes;
    codes.scale_dtype = scale;
    codes.has_amax = true;
    codes.is_zero = true;
    codes.check();
    codes.amax_before = 0;  // and stays 0
    codes.check();
    codes.amax_before = 0.25;
    codes.is_zero = false;
    check_extremes(codes);
  }
}

#if !defined(ROPE_TEST_SIMULATION)
TEST_CASE("SwiGLU to codes in calls large enough for several threads", "[swiglu][codes][threads]") {
  CodesCase codes;
  codes.shape = {257, 1536};
  codes.groups = 12;
  codes.check();
  codes.scales = Scales::Given;
  codes.has_amax = true;
  codes.check();
}

TEST_CASE("SwiGLU to codes of 4 bits in calls large enough for several threads", "[swiglu][codes][fp4][threads]") {
  CodesCase codes = nvfp4();
  codes.dtype = ROPE_DTYPE_F32;
  codes.shape = {257, 1040};
  codes.groups = 65;
  codes.has_tiles = true;
  codes.check();
  codes.has_tiles = false;
  codes.scales = Scales::None;
  codes.shape = {257, 1034};
  codes.check();
}
#endif

// Threads of a large launch take several rows; each part of 128 rows is a small launch of its own. A tile of scales has
// 128 rows too.
TEST_CASE("codes of large matrices are those of their parts", "[swiglu][codes][fp4][tiles][determinism]") {
  constexpr int64_t kPart = 128, kMax = std::numeric_limits<int64_t>::max(), kMin = std::numeric_limits<int64_t>::min();
  const struct {
    rope_dtype_t code, scale;
    int64_t group;
    bool has_tiles;
    int64_t more;  // num_rows less the matrix's rows
  } cases[] = {{ROPE_DTYPE_F8_E4M3, 0, 0, false, -3},
               {ROPE_DTYPE_F8_E4M3, 0, 0, false, 3},
               {ROPE_DTYPE_F8_E5M2, ROPE_DTYPE_F32, 128, false, -4},
               {ROPE_DTYPE_F8_E4M3, ROPE_DTYPE_F32, 512, false, kMax},
               {ROPE_DTYPE_F8_E4M3, ROPE_DTYPE_F8_E8M0, 32, true, 2},
               {ROPE_DTYPE_F4_E2M1X2, ROPE_DTYPE_F8_E4M3, 16, false, -1},
               {ROPE_DTYPE_F4_E2M1X2, ROPE_DTYPE_F8_E4M3, 16, true, kMax},
               {ROPE_DTYPE_F4_E2M1X2, ROPE_DTYPE_F32, 8, false, kMin}};
  for (const Device &device : devices()) {
    const bool is_large = needs_large_matrices(device);
    // More than 14 000 vectors for each multiprocessor: of up to 158, or of one that is simulated.
    const Shape shape = is_large ? Shape{1201, 14848} : Shape{229, 512};
    Workspace workspace(23);
    const swiglu_args_t args = inputs_of(shape, &workspace);
    // The number of rows of the whole matrix, then that of each part. A number above the rows stands for all of them.
    const rope_tensor_t counts = workspace.tensor(ROPE_DTYPE_I64, {shape[0] / kPart + 2});
    for (const auto &each : cases) {
      INFO("on " << device << ", codes " << each.code << ", groups of " << each.group << ", tiles " << each.has_tiles
                 << ", more rows " << each.more);
      const bool is_extreme = each.more == kMax || each.more == kMin;
      const int64_t written = std::clamp<int64_t>(shape[0] + (is_extreme ? each.more / 2 : each.more), 0, shape[0]);
      workspace.fill_integers(counts, [&](const Index &at) {
        if (is_extreme) return each.more;
        return shape[0] + each.more - std::max<int64_t>(at[0] - 1, 0) * kPart;
      });
      const int64_t padded_rows = each.has_tiles ? (shape[0] + kPart - 1) / kPart * kPart : shape[0];
      const bool has_pairs = each.code == ROPE_DTYPE_F4_E2M1X2;
      rope_tensor_t out[2], scales[2] = {}, amax[2];
      for (int i = 0; i < 2; ++i) {
        out[i] = workspace.tensor(each.code, {shape[0], has_pairs ? shape[1] / 2 : shape[1]});
        if (each.group != 0) scales[i] = workspace.tensor(each.scale, {padded_rows, shape[1] / each.group});
        amax[i] = workspace.tensor(ROPE_DTYPE_F32, {1});
        workspace.fill(amax[i], [](const Index &) { return Real{0}; });
      }
      workspace.freeze();
      swiglu_config_t config = swiglu_config_for(device);
      config.dtype = ROPE_DTYPE_BF16;
      const SwigluDesc desc = create(config);
      const auto run_rows = [&](int which, int64_t first, int64_t rows, int64_t count) {
        swiglu_args_t part = args;
        swiglu_quant_args_t quant = SWIGLU_QUANT_ARGS_INIT;
        part.gate = narrow(args.gate, 0, first, rows);
        part.up = narrow(args.up, 0, first, rows);
        part.out = narrow(out[which], 0, first, rows);
        part.num_rows = narrow(counts, 0, count, 1);
        if (each.group != 0) {
          const int64_t held = each.has_tiles ? (rows + kPart - 1) / kPart * kPart : rows;
          quant.scales_out = narrow(scales[which], 0, first, held);
        }
        if (each.has_tiles) quant.scale_layout = SWIGLU_SCALE_LAYOUT_128X4;
        quant.amax_out = amax[which];
        part.quant = &quant;
        REQUIRE(run(device, desc.get(), Direction::Forward, part, workspace) == ROPE_STATUS_SUCCESS);
      };
      run_rows(0, 0, shape[0], 0);
      for (int64_t first = 0; first < shape[0]; first += kPart) {
        run_rows(1, first, std::min(kPart, shape[0] - first), first / kPart + 1);
      }
      CHECK(have_equal_rows(out[0], out[1], written));
      if (each.group != 0) CHECK(have_equal_rows(scales[0], scales[1], each.has_tiles ? padded_rows : written));
      CHECK(bits_at(amax[0], {}) == bits_at(amax[1], {}));
      CHECK((bits_at(amax[0], {}) != 0) == (written > 0));
      CHECK(workspace.guards_hold());
    }
  }
}

TEST_CASE("codes of large matrices of experts, with groups of 512 channels", "[swiglu][codes]") {
  CodesCase codes;
  codes.shape = {3, 45, 1024};
  codes.rows = 2;
  codes.expert_rows = {45, 70, 13};  // 70 stands for all rows
  codes.check();
}

TEST_CASE("SwiGLU to MXFP8 has the scales of TransformerEngine", "[swiglu][codes]") {
  for (const rope_dtype_t dtype : dtypes) {
    for (const rope_dtype_t code : codes_of_8_bits) {
      for (const bool rounds_first : {false, true}) {
        CodesCase codes = mxfp8(code);
        codes.dtype = dtype;
        codes.rounds_first = rounds_first;
        codes.check();
        codes.is_copied = codes.has_edges = codes.has_amax = true;
        codes.check();
      }
    }
  }
  CodesCase codes = mxfp8();
  codes.is_copied = true;
  codes.is_zero = true;
  codes.check();
  codes.is_zero = false;
  for (const double special : {std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
    codes.special = special;
    codes.check();
  }
}

TEST_CASE("SwiGLU to NVFP4 and MXFP4", "[swiglu][codes][fp4][sanitize]") {
  for (const rope_dtype_t dtype : dtypes) {
    for (const bool rounds_first : {false, true}) {
      CodesCase codes = nvfp4();
      codes.dtype = dtype;
      codes.rounds_first = rounds_first;
      codes.check();
      codes.is_copied = codes.has_edges = codes.has_amax = true;
      codes.check();
      codes.global = 0;
      codes.check();
      codes = mxfp8(ROPE_DTYPE_F4_E2M1X2);
      codes.dtype = dtype;
      codes.rounds_first = rounds_first;
      codes.check();
      codes.is_copied = codes.has_edges = true;
      codes.check();
    }
  }
}

TEST_CASE("SwiGLU to codes of 4 bits with any scales, none, and any strides", "[swiglu][codes][fp4]") {
  for (const bool is_copied : {false, true}) {
    CodesCase codes;
    codes.code = ROPE_DTYPE_F4_E2M1X2;
    codes.is_copied = is_copied;
    codes.has_amax = true;
    codes.check();
    codes.flags = ROPE_QUANT_FLAG_POWER_OF_TWO;
    codes.check();
    codes.flags = 0;
    codes.scales = Scales::None;
    for (const Shape &shape : {Shape{7, 34}, Shape{3, 5, 2}, Shape{2, 3, 5, 6}, Shape{9, 2}, Shape{1, 1, 2}}) {
      codes.shape = shape;
      codes.out_placement = {};
      codes.check();
      codes.out_placement = Placement().gap(static_cast<int>(shape.size()) - 1, 2).gap(0, 1);
      codes.check();
      const int last = static_cast<int>(shape.size()) - 1;
      std::vector<int> order = {last};
      for (int axis = 0; axis < last; ++axis) order.push_back(axis);
      codes.out_placement = Placement().order(order).reversed(last);
      codes.check();
    }
    codes.shape = {96};
    codes.out_placement = {};
    codes.scales = Scales::Given;
    codes.has_amax = false;
    if (!is_copied) codes.check();
    codes.flags = ROPE_QUANT_FLAG_SCALE_MULTIPLIES;
    codes.check();
  }
  for (const int rows : {1, 2}) {
    CodesCase codes = nvfp4();
    codes.is_copied = codes.has_edges = true;
    codes.shape = {3, 5, 32};
    codes.rows = rows;
    codes.groups = rows == 1 ? 10 : 2;
    codes.scale_placement = Placement().gap(0, 3);
    codes.out_placement = Placement().order({1, 0, 2}).gap(1, 4);
    codes.check();
    codes.shape = {3, 5, 8, 16};
    codes.groups = rows == 1 ? 40 : 8;
    codes.is_split = true;
    codes.out_placement = {};
    codes.check();
  }
}

TEST_CASE("SwiGLU to codes of 4 bits of zeros, infinities and NaN, floors of scales", "[swiglu][codes][fp4]") {
  for (CodesCase codes : {nvfp4(), mxfp8(ROPE_DTYPE_F4_E2M1X2)}) {
    codes.is_copied = true;
    codes.has_amax = true;
    codes.is_zero = true;
    codes.check();
    codes.is_zero = false;
    codes.floor = 300;
    codes.check();
    codes.floor = 0;
    for (const double special : {std::numeric_limits<double>::infinity(), -std::numeric_limits<double>::infinity(),
                                 std::numeric_limits<double>::quiet_NaN(), 1e30, -1e-30}) {
      codes.special = special;
      codes.check();
    }
  }
  for (const double global : {1e-30, 1e30, 3e38}) {
    CodesCase codes = nvfp4();
    codes.is_copied = true;
    codes.global = global;
    codes.check();
    codes.is_zero = true;  // scales of E4M3 have no floor of their own
    codes.check();
  }
}

TEST_CASE("SwiGLU writes scales in tiles of 128 rows and 4 groups", "[swiglu][codes][tiles]") {
  for (CodesCase codes : {mxfp8(), mxfp8(ROPE_DTYPE_F4_E2M1X2), nvfp4()}) {
    const int64_t group = codes.scale_dtype == ROPE_DTYPE_F8_E4M3 ? 16 : 32;
    codes.has_tiles = true;
    for (const bool is_copied : {false, true}) {
      codes.is_copied = codes.has_edges = is_copied;
      for (const int64_t rows : {1, 128, is_copied ? 261 : 129}) {
        for (const int64_t groups : {4, is_copied ? 7 : 1}) {
          codes.rows = 1;
          codes.shape = {rows, groups * group};
          codes.groups = groups;
          codes.check();
        }
      }
      codes.rows = 2;
      codes.groups = 5;
      codes.shape = {2, 130, 5 * group};
      codes.scale_placement = {};
      if (is_copied) codes.check();
      codes.scale_placement = Placement().gap(0, 7);
      codes.shape = {3, 1, 5, group};
      codes.check();
      codes.rows = 3;
      codes.shape = {2, 3, 33, 5 * group};
      codes.scale_placement = Placement().order({1, 0, 2, 3});
      codes.check();
      codes.scale_placement = {};
    }
  }
}

TEST_CASE("SwiGLU to codes of 4 bits and tiles of rows and experts that are there", "[swiglu][codes][fp4][tiles]") {
  for (const bool has_tiles : {false, true}) {
    CodesCase codes = nvfp4();
    codes.has_tiles = has_tiles;
    codes.has_amax = true;
    for (const int64_t rows : {0, 3, 37, 50}) {
      codes.num_rows = rows;
      codes.check();
    }
    codes.num_rows = -1;
    codes.shape = {3, 5, 96};
    codes.rows = 2;
    codes.groups = 6;
    codes.expert_rows = {2, 0, 5};
    codes.check();
    codes.has_scale_by_expert = true;
    codes.check();
  }
}

TEST_CASE("SwiGLU makes no codes of F64", "[swiglu][codes][errors]") {
  for (const Device &device : devices()) {
    Workspace workspace(3);
    swiglu_args_t args = swiglu_args();
    args.gate = workspace.tensor(ROPE_DTYPE_F64, {3, 5});
    args.up = workspace.tensor(ROPE_DTYPE_F64, {3, 5});
    args.out = workspace.tensor(ROPE_DTYPE_F8_E4M3, {3, 5});
    workspace.freeze();
    swiglu_config_t config = swiglu_config_for(device);
    config.dtype = ROPE_DTYPE_F64;
    const SwigluDesc desc = create(config);
    CHECK(swiglu_forward(desc.get(), &args, nullptr) == ROPE_STATUS_NOT_SUPPORTED);
    CHECK(std::string(rope_last_error()) ==
          "swiglu_forward: out.dtype is F8_E4M3: this version writes 8 bits from F32, F16 or BF16, and in "
          "swiglu_backward only of grad_gate and grad_up");
    swiglu_column_args_t column = SWIGLU_COLUMN_ARGS_INIT;
    column.out = args.out;
    args.out = {};
    args.column = &column;
    CHECK(swiglu_forward(desc.get(), &args, nullptr) == ROPE_STATUS_NOT_SUPPORTED);
    CHECK(std::string(rope_last_error()) ==
          "swiglu_forward: column.out.dtype is F8_E4M3: this version writes 8 bits from F32, F16 or BF16 only");
    std::string where;
    CHECK(workspace.untouched_elsewhere(&where));
  }
}
