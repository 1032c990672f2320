// swiglu_codes_tests.cpp - SwiGLU whose out has 8 bits: codes and scales, byte for byte where the values are known
//
// The values are those of a call whose out is of F32, or of 16 bits where they are rounded first. Codes and scales are
// made of them here as rope.h says, by search among powers of two and in long double.
#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "support/device.hpp"
#include "support/swiglu_rows.hpp"
#include "support/tensors.hpp"

namespace {

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
  int64_t groups = 2;  // of a row
  bool is_split = false;
  bool has_amax = false;
  Placement out_placement;
  Placement scale_placement;
  int64_t num_rows = -1;
  std::vector<int64_t> expert_rows = {};
  std::vector<int64_t> expert_offsets = {};
  std::vector<int64_t> row_index = {};  // among factors of [shape[0]]
  bool has_scale_by_expert = false;
  bool has_row_scale = false;
  double up_offset = 0;
  int32_t activation = SWIGLU_ACTIVATION_SWIGLU;
  double special = 0;  // of one gate
  bool is_zero = false;

  void check() const;

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
  int64_t row_elements() const {
    int64_t count = 1;
    for (size_t axis = static_cast<size_t>(rows); axis < shape.size(); ++axis) count *= shape[axis];
    return count;
  }
  // The scale of an element, and where it is written.
  Index scale_index(const Index &at) const {
    int64_t element = 0;
    for (size_t axis = static_cast<size_t>(rows); axis < shape.size(); ++axis)
      element = element * shape[axis] + at[axis];
    const int64_t group = element / (row_elements() / groups);
    Index index = {};
    std::copy(at.begin(), at.begin() + rows, index.begin());
    index[static_cast<size_t>(rows)] = is_split ? group / 4 : group;
    if (is_split) index[static_cast<size_t>(rows) + 1] = group % 4;
    return index;
  }
  void verify(Scene *scene, bool is_exact) const;
};

struct CodesCase::Scene {
  explicit Scene(uint64_t seed) : workspace(seed) {}
  Workspace workspace;
  rope_tensor_t gate = {}, up = {}, plain = {}, out = {}, scale = {}, scales = {}, amax = {}, num_rows = {},
                expert_rows = {}, expert_offsets = {}, row_index = {}, row_scale = {};
};

float magnitude_of(Real value) {
  return std::fabs(static_cast<float>(value));
}

float top_of(rope_dtype_t code) {
  return code == ROPE_DTYPE_F8_E4M3 ? 448.0f : 57344.0f;
}

// A written scale as a number.
float scale_of(const CodesCase &codes, float amax) {
  const bool is_e8m0 = codes.scale_dtype == ROPE_DTYPE_F8_E8M0;
  if (std::isnan(amax) || std::isinf(amax)) return amax;
  const float floor = codes.floor != 0 ? static_cast<float>(codes.floor) : is_e8m0 ? 0.0f : 1e-10f;
  const float held = std::max(amax, floor), top = top_of(codes.code);
  if (!is_e8m0 && (codes.flags & ROPE_QUANT_FLAG_POWER_OF_TWO) == 0) return held / top;
  int exponent = is_e8m0 ? -127 : -149;
  while (std::ldexp(static_cast<Real>(top), exponent) < static_cast<Real>(held)) ++exponent;
  return static_cast<float>(std::ldexp(Real{1}, exponent));
}

float inverse_of(float scale) {
  if (scale == 0) return 0;
  return std::min(1.0f / scale, std::numeric_limits<float>::max());
}

// As the scale is stored.
uint32_t bits_of_scale(const CodesCase &codes, float scale) {
  if (codes.scale_dtype != ROPE_DTYPE_F8_E8M0) {
    if (std::isnan(scale)) return 0x7fc00000u;
    uint32_t bits;
    std::memcpy(&bits, &scale, sizeof bits);
    return bits;
  }
  if (std::isnan(scale)) return 255;
  return std::isinf(scale) ? 254 : static_cast<uint32_t>(std::ilogb(scale) + 127);
}

uint32_t bits_at(const rope_tensor_t &tensor, const Index &at) {
  uint32_t bits = 0;
  std::memcpy(&bits, element_at(tensor, at), static_cast<size_t>(oracle::element_size(tensor.dtype)));
  return bits;
}

// How many codes lie between two.
int steps_between(uint8_t a, uint8_t b) {
  const auto place = [](uint8_t code) { return (code & 0x80) != 0 ? -(code & 0x7f) : code & 0x7f; };
  return std::abs(place(a) - place(b));
}

void CodesCase::verify(Scene *scene, bool is_exact) const {
  Workspace &workspace = scene->workspace;
  const rope_tensor_t &plain = scene->plain, &out = scene->out;
  // The values of this device, group by group.
  std::vector<std::pair<Index, float>> maxima;
  const auto max_of = [&](const Index &group) -> float & {
    for (auto &[index, max] : maxima) {
      if (index == group) return max;
    }
    maxima.emplace_back(group, 0.0f);
    return maxima.back().second;
  };
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
  for_each_index(out, [&](const Index &at) {
    if (!is_row(at)) return;
    float factor = 1;
    if (scales == Scales::Written) {
      const Index group = scale_index(at);
      const uint32_t bits = bits_at(scene->scales, group);
      const uint32_t expected = bits_of_scale(*this, scale_of(*this, max_of(group)));
      const int64_t step = std::abs(static_cast<int64_t>(bits) - static_cast<int64_t>(expected));
      if (step > (is_exact ? 0 : scale_dtype == ROPE_DTYPE_F32 && flags == 0 ? 1 << 14 : 0)) ++wrong;
      workspace.accept(scene->scales, group);
      float scale = std::numeric_limits<float>::quiet_NaN();
      if (scale_dtype == ROPE_DTYPE_F32) {
        std::memcpy(&scale, &bits, sizeof scale);
      } else if (bits != 255) {
        scale = bits == 254 ? std::numeric_limits<float>::infinity() : std::ldexp(1.0f, static_cast<int>(bits) - 127);
      }
      factor = std::isinf(scale) ? 0 : inverse_of(scale);
      if (std::isnan(scale)) factor = scale;
    } else if (scales == Scales::Given) {
      const Index expert = {has_scale_by_expert ? expert_of(at) : 0};
      const float scale = static_cast<float>(value_at(workspace.before(scene->scale), expert));
      factor = (flags & ROPE_QUANT_FLAG_SCALE_MULTIPLIES) != 0 ? scale : 1.0f / scale;
    }
    const float product = static_cast<float>(value_at(plain, at)) * factor;
    uint8_t expected;
    oracle::encode(code, product, &expected);
    const uint8_t actual = static_cast<uint8_t>(bits_at(out, at));
    const int steps = steps_between(expected, actual);
    ++elements;
    differing += steps != 0;
    if (steps > (is_exact ? 0 : 1) && ++wrong <= 3) {
      UNSCOPED_INFO("out[" << at[0] << ',' << at[1] << ',' << at[2] << ',' << at[3] << "] of "
                           << static_cast<double>(value_at(plain, at)) << " times " << factor << ": expected "
                           << int{expected} << ", got " << int{actual});
    }
    workspace.accept(out, at);
  });
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
  // Where values are not rounded first they are those of F32 data of the same numbers.
  const bool is_known = dtype == ROPE_DTYPE_F32 || rounds_first;
  scene.gate = workspace.tensor(dtype, shape);
  scene.up = workspace.tensor(dtype, shape);
  scene.plain = workspace.tensor(is_known ? dtype : ROPE_DTYPE_F32, shape);
  scene.out = workspace.tensor(code, shape, out_placement);
  workspace.fill_normal(scene.gate);
  workspace.fill_normal(scene.up);
  if (is_zero) workspace.fill(scene.up, [](const Index &) { return Real{0}; });
  if (special != 0) oracle::encode(dtype, static_cast<Real>(special), element_at(scene.gate, {1, 3}));
  if (has_row_scale) {
    scene.row_scale = workspace.tensor(ROPE_DTYPE_F32, {shape[0]});
    workspace.fill_normal(scene.row_scale);
  }
  const Shape row_axes(shape.begin(), shape.begin() + rows);
  if (scales == Scales::Written) {
    Shape scales_shape = row_axes;
    scales_shape.push_back(is_split ? groups / 4 : groups);
    if (is_split) scales_shape.push_back(4);
    scene.scales = workspace.tensor(scale_dtype, scales_shape, scale_placement);
  } else if (scales == Scales::Given) {
    scene.scale = workspace.tensor(ROPE_DTYPE_F32, {has_scale_by_expert ? experts() : 1});
    workspace.fill(scene.scale, [](const Index &at) { return Real{0.011L} * (1 + at[0]); });
  }
  if (has_amax) {
    scene.amax = workspace.tensor(ROPE_DTYPE_F32, {1});
    workspace.fill(scene.amax, [](const Index &) { return Real{0.25L}; });
  }
  if (num_rows >= 0) {
    scene.num_rows = workspace.tensor(ROPE_DTYPE_I32, {1});
    workspace.fill_integers(scene.num_rows, [&](const Index &) { return num_rows; });
  }
  const auto make_list = [&](const std::vector<int64_t> &list) {
    if (list.empty()) return rope_tensor_t{};
    const rope_tensor_t tensor = workspace.tensor(ROPE_DTYPE_I64, {static_cast<int64_t>(list.size())});
    workspace.fill_integers(tensor, [&](const Index &at) { return list[static_cast<size_t>(at[0])]; });
    return tensor;
  };
  scene.expert_rows = make_list(expert_rows);
  scene.expert_offsets = make_list(expert_offsets);
  scene.row_index = make_list(row_index);
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
  swiglu_input_args_t input = SWIGLU_INPUT_ARGS_INIT;
  input.expert_rows = scene.expert_rows;
  input.expert_offsets = scene.expert_offsets;
  input.row_index = scene.row_index;
  for (const Device &device : devices()) {
    std::vector<std::byte> first;
    for (const int32_t threads : {1, 3, 0}) {
      INFO("on " << device << ", num_threads " << threads);
      swiglu_config_t config = swiglu_config_for(device);
      config.dtype = dtype;
      config.num_threads = threads;
      config.up_offset = up_offset;
      config.activation = activation;
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
      verify(&scene, is_known && device.kind == ROPE_DEVICE_CPU);
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

}  // namespace

TEST_CASE("SwiGLU to codes with a given scale or none", "[swiglu][codes]") {
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

TEST_CASE("SwiGLU to codes writes scales by row and by group", "[swiglu][codes]") {
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

TEST_CASE("SwiGLU to codes of rows and experts that are there", "[swiglu][codes]") {
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

TEST_CASE("SwiGLU to codes of zeros, infinities and NaN, floors of scales", "[swiglu][codes]") {
  for (const rope_dtype_t scale : {ROPE_DTYPE_F32, ROPE_DTYPE_F8_E8M0}) {
    CodesCase codes;
    codes.scale_dtype = scale;
    codes.has_amax = true;
    codes.is_zero = true;
    codes.check();
    codes.is_zero = false;
    codes.floor = 1000;
    codes.check();
    codes.floor = 0;
    codes.special = std::numeric_limits<double>::quiet_NaN();
    codes.check();
    codes.special = std::numeric_limits<double>::infinity();
    codes.check();
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

#endif

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
          "swiglu_forward: out.dtype is F8_E4M3: this version writes 8 bits in swiglu_forward only, from F32, F16 or "
          "BF16");
    std::string where;
    CHECK(workspace.untouched_elsewhere(&where));
  }
}
