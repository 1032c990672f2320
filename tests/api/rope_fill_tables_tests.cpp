// SPDX-License-Identifier: Apache-2.0
// rope_fill_tables_tests.cpp - tables filled by the library: their values, and rotations with them
#include <catch2/catch_test_macros.hpp>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "support/device.hpp"
#include "support/tolerance.hpp"

namespace {

using oracle::Real;

const std::vector<rope_dtype_t> dtypes = {ROPE_DTYPE_F32, ROPE_DTYPE_F16, ROPE_DTYPE_BF16, ROPE_DTYPE_F64};

// A config and the contents expected of its tables.
struct Tables {
  explicit Tables(int32_t rotary_dim) {
    config = rope_config_for(devices()[0], rotary_dim);
    for (int pair = 0; pair < rotary_dim / 2; ++pair) {
      frequencies.push_back(oracle::frequency(config.theta, rotary_dim, pair));
    }
  }

  int pairs() const { return config.head_dim / 2; }

  Tables &scale(double factor) { return config.attention_scale = factor, *this; }

  Tables &style(rope_style_t style, rope_style_t out_style = 0, int32_t pair_block = 0) {
    config.style = style;
    config.out_style = out_style;
    config.pair_block = pair_block;
    return *this;
  }

  // Gives each axis the same frequencies, each for a part of the pairs.
  Tables &restarted(int32_t num_axes) {
    const int part = pairs() / num_axes;
    for (int pair = 0; pair < pairs(); ++pair) {
      inv_freq.push_back(std::pow(100.0, -static_cast<double>(pair % part) / part));
      pair_axis.push_back(pair / part);
      frequencies[pair] = inv_freq.back();
    }
    config.num_axes = num_axes;
    return *this;
  }

  Tables &axes(int32_t num_axes) {
    for (int pair = 0; pair < pairs(); ++pair) pair_axis.push_back(pair % num_axes);
    config.num_axes = num_axes;
    return *this;
  }

  rope_config_t config_on(const Device &device, rope_dtype_t dtype) const {
    rope_config_t result = config;
    result.device = device.kind;
    result.device_index = device.index;
    result.dtype = dtype;
    result.inv_freq = inv_freq.empty() ? nullptr : inv_freq.data();
    result.pair_axis = pair_axis.empty() ? nullptr : pair_axis.data();
    return result;
  }

  // The pair of a column of W.
  int pair_of(int64_t column, int64_t width) const {
    if (width != 2 * pairs()) return static_cast<int>(column);
    const rope_style_t style = config.out_style ? config.out_style : config.style;
    const int block = config.pair_block ? config.pair_block : 2 * pairs();
    const int number = static_cast<int>(column);
    return style == ROPE_STYLE_INTERLEAVED ? number / 2 : number / block * (block / 2) + number % (block / 2);
  }

  // The permitted error of a column of W in row `position`, before rounding to the tables' dtype.
  Real slack(rope_dtype_t dtype, int64_t position, Real frequency) const {
    const bool is_double = dtype == ROPE_DTYPE_F64;
    const Real scale = config.attention_scale == 0 ? 1 : std::fabs(static_cast<Real>(config.attention_scale));
    const Real arithmetic = oracle::ulp(is_double ? ROPE_DTYPE_F64 : ROPE_DTYPE_F32, scale);
    return ((is_double ? 4e-16L : 1.1e-7L) + tolerance::phase(position, frequency)) * scale + arithmetic;
  }

  // Fills tables of a shape on every device and compares them with the oracle and with each other.
  void check(rope_dtype_t dtype, const Shape &shape, const Placement &cos_placement = {},
             const Placement &sin_placement = {}) const {
    Workspace workspace(71);
    const rope_tensor_t cos = workspace.tensor(dtype, shape, cos_placement);
    const rope_tensor_t sin = workspace.tensor(dtype, shape, sin_placement);
    workspace.freeze();
    std::vector<std::byte> first;
    for (const Device &device : devices()) {
      for (const rope_dtype_t data : {ROPE_DTYPE_F32, ROPE_DTYPE_BF16, ROPE_DTYPE_F64}) {
        INFO(oracle::dtype_name(dtype) << " tables of rank " << shape.size() << ", W " << shape.back()
                                       << cos_placement.describe() << "; " << oracle::dtype_name(data) << " data on "
                                       << device);
        const RopeDesc desc = create(config_on(device, data));
        workspace.restore();
        REQUIRE(run(device, desc.get(), cos, sin, workspace) == ROPE_STATUS_SUCCESS);
        if (!first.empty()) {
          const bool same_bits = workspace.image() == first;
          CHECK(same_bits);
          continue;
        }
        verify(cos, sin, &workspace);
        first = workspace.image();
      }
    }
  }

  void verify(const rope_tensor_t &cos, const rope_tensor_t &sin, Workspace *workspace) const {
    const Real scale = config.attention_scale == 0 ? 1 : static_cast<Real>(config.attention_scale);
    int64_t wrong = 0;
    for_each_index(cos, [&](const Index &index) {
      const int64_t position = index[cos.ndim - 2], column = index[cos.ndim - 1];
      const Real frequency = frequencies[pair_of(column, cos.shape[cos.ndim - 1])];
      const oracle::Rotation exact = oracle::rotation(position, frequency);
      const Real may_differ = slack(cos.dtype, position, frequency);
      wrong += !tolerance::accepts(cos.dtype, value_at(cos, index), exact.cos * scale, may_differ);
      wrong += !tolerance::accepts(cos.dtype, value_at(sin, index), exact.sin * scale, may_differ);
      workspace->accept(cos, index);
      workspace->accept(sin, index);
    });
    CHECK(wrong == 0);
    std::string where;
    const bool untouched = workspace->untouched_elsewhere(&where);
    INFO(where);
    CHECK(untouched);
  }

  rope_config_t config;
  std::vector<double> inv_freq;
  std::vector<int32_t> pair_axis;
  std::vector<Real> frequencies;
};

// Rotates data with tables filled by the library and with computed angles, and compares the bits.
void check_rotations(const Tables &tables, rope_dtype_t dtype, const Shape &table_shape) {
  constexpr int64_t batches = 2, tokens = 9, heads = 3;
  const int64_t axes = tables.config.num_axes ? tables.config.num_axes : 1;
  const int64_t rows = table_shape[table_shape.size() - 2];
  const rope_dtype_t table_dtype = dtype == ROPE_DTYPE_F64 ? ROPE_DTYPE_F64 : ROPE_DTYPE_F32;
  for (const Device &device : devices()) {
    for (const Direction direction : {Direction::Forward, Direction::Backward}) {
      Workspace workspace(72);
      rope_args_t args = rope_args();
      const Shape shape = {batches, tokens, heads, tables.config.head_dim};
      args.q = workspace.tensor(dtype, shape);
      args.q_out = workspace.tensor(dtype, shape);
      const rope_tensor_t computed = workspace.tensor(dtype, shape);
      args.positions =
          workspace.tensor(ROPE_DTYPE_I32, axes > 1 ? Shape{axes, batches, tokens} : Shape{batches, tokens});
      const rope_tensor_t cos = workspace.tensor(table_dtype, table_shape);
      const rope_tensor_t sin = workspace.tensor(table_dtype, table_shape);
      workspace.fill_mixed(args.q);
      workspace.fill_integers(args.positions, [&](const Index &) { return workspace.random().below(rows); });
      workspace.freeze();
      workspace.restore();
      INFO(oracle::dtype_name(dtype) << ", " << table_shape.size() << " axes of tables, W " << table_shape.back()
                                     << ", " << name_of(direction) << " on " << device);
      const RopeDesc desc = create(tables.config_on(device, dtype));
      REQUIRE(run(device, desc.get(), cos, sin, workspace) == ROPE_STATUS_SUCCESS);
      rope_args_t with_angles = args;
      with_angles.q_out = computed;
      REQUIRE(run(device, desc.get(), direction, with_angles, workspace) == ROPE_STATUS_SUCCESS);
      args.cos = cos;
      args.sin = sin;
      REQUIRE(run(device, desc.get(), direction, args, workspace) == ROPE_STATUS_SUCCESS);
      int64_t wrong = 0;
      for_each_index(computed, [&](const Index &at) { wrong += !same_bits_at(computed, at, args.q_out, at); });
      CHECK(wrong == 0);
    }
  }
}

// A call that must be refused: [7, 8] tables with R = 16.
struct Misuse {
  const char *title;
  std::string text;  // message behind the function's name
  void (*commit)(Tables &, rope_tensor_t &, rope_tensor_t &);
};

}  // namespace

TEST_CASE("tables of every dtype and width", "[rope][fill tables][sanitize]") {
  for (const rope_dtype_t dtype : dtypes) {
    for (const int32_t rotary_dim : {2, 4, 6, 34, 128}) {
      for (const int64_t rows : {1, 2, 37}) {
        Tables(rotary_dim).check(dtype, {rows, rotary_dim / 2});
        Tables(rotary_dim).check(dtype, {rows, rotary_dim});
        Tables(rotary_dim).style(ROPE_STYLE_INTERLEAVED).check(dtype, {rows, rotary_dim});
      }
    }
  }
}

TEST_CASE("columns of wide tables are the channels of the output", "[rope][fill tables]") {
  const rope_style_t half = ROPE_STYLE_HALF, interleaved = ROPE_STYLE_INTERLEAVED;
  for (const rope_dtype_t dtype : dtypes) {
    for (const int32_t block : {0, 2, 4, 12, 24}) {
      Tables(24).style(half, 0, block).check(dtype, {11, 24});
      Tables(24).style(half, interleaved, block).check(dtype, {11, 24});
      Tables(24).style(interleaved, half, block).check(dtype, {11, 24});
    }
  }
}

TEST_CASE("tables of several axes", "[rope][fill tables][sanitize]") {
  for (const rope_dtype_t dtype : dtypes) {
    for (const int64_t axes : {2, 3, 4}) {
      const auto num_axes = static_cast<int32_t>(axes);
      for (const int64_t width : {12, 24}) {
        Tables(24).axes(num_axes).check(dtype, {13, width});
        Tables(24).axes(num_axes).check(dtype, {axes, 13, width});
        Tables(24).axes(num_axes).check(dtype, {1, 13, width});
      }
      Tables(24).restarted(num_axes).check(dtype, {13, 12 / axes});
      Tables(24).restarted(num_axes).check(dtype, {axes, 13, 12 / axes});
      Tables(24).restarted(num_axes).check(dtype, {1, 13, 12 / axes});
      Tables(24).restarted(num_axes).check(dtype, {axes, 13, 24});
    }
  }
}

TEST_CASE("filled tables carry attention_scale", "[rope][fill tables]") {
  for (const rope_dtype_t dtype : dtypes) {
    for (const double scale : {0.1, 1.3465735902799727, -2.5, 1e-3}) {
      Tables(20).scale(scale).check(dtype, {17, 10});
      Tables(20).scale(scale).check(dtype, {17, 20});
    }
  }
}

TEST_CASE("tables with any strides", "[rope][fill tables]") {
  const std::vector<Placement> flat = {Placement().at(1),       Placement().at(3).gap(0, 1),
                                       Placement().gap(1, 1),   Placement().order({1, 0}),
                                       Placement().reversed(0), Placement().reversed(1).gap(1, 2),
                                       Placement().implicit(),  Placement().order({1, 0}).reversed(0).gap(1, 4)};
  const std::vector<Placement> deep = {Placement().order({1, 2, 0}), Placement().order({2, 0, 1}).gap(0, 1),
                                       Placement().reversed(0).gap(1, 3), Placement().gap(2, 2).reversed(2)};
  for (const rope_dtype_t dtype : dtypes) {
    for (const int64_t width : {6, 12}) {
      for (const Placement &placement : flat) {
        Tables(12).check(dtype, {7, width}, placement, {});
        Tables(12).check(dtype, {7, width}, {}, placement);
        Tables(12).check(dtype, {7, width}, placement, placement);
      }
      for (const Placement &placement : deep) {
        Tables(12).axes(3).check(dtype, {3, 7, width}, placement, {});
        Tables(12).axes(3).check(dtype, {3, 7, width}, placement, placement);
      }
    }
  }
}

TEST_CASE("cos and sin side by side and alternating", "[rope][fill tables]") {
  for (const rope_dtype_t dtype : dtypes) {
    for (const bool is_alternating : {false, true}) {
      for (const Device &device : devices()) {
        INFO(oracle::dtype_name(dtype) << " on " << device);
        const Tables tables(16);
        Workspace workspace(73);
        const rope_tensor_t both = workspace.tensor(dtype, is_alternating ? Shape{9, 8, 2} : Shape{9, 16});
        const rope_tensor_t cos = is_alternating ? select(both, 2, 0) : narrow(both, 1, 0, 8);
        const rope_tensor_t sin = is_alternating ? select(both, 2, 1) : narrow(both, 1, 8, 8);
        workspace.freeze();
        workspace.restore();
        const RopeDesc desc = create(tables.config_on(device, ROPE_DTYPE_F32));
        REQUIRE(run(device, desc.get(), cos, sin, workspace) == ROPE_STATUS_SUCCESS);
        tables.verify(cos, sin, &workspace);
      }
    }
  }
}

TEST_CASE("large tables", "[rope][fill tables]") {
  Tables(4).check(ROPE_DTYPE_F32, {70000, 2});
  Tables(1024).check(ROPE_DTYPE_BF16, {67, 1024});
  Tables(128).check(ROPE_DTYPE_F64, {1031, 64});
}

TEST_CASE("tables without rows", "[rope][fill tables]") {
  for (const Device &device : devices()) {
    const RopeDesc desc = create(Tables(16).axes(2).config_on(device, ROPE_DTYPE_F32));
    for (const std::vector<int64_t> &shape : {std::vector<int64_t>{0, 8}, {2, 0, 8}, {1, 0, 16}}) {
      rope_tensor_t nothing = {};
      nothing.dtype = ROPE_DTYPE_F16;
      nothing.ndim = static_cast<uint16_t>(shape.size());
      for (size_t axis = 0; axis < shape.size(); ++axis) nothing.shape[axis] = shape[axis];
      CHECK(rope_fill_tables(desc.get(), &nothing, &nothing, nullptr) == ROPE_STATUS_SUCCESS);
    }
  }
}

TEST_CASE("filled tables rotate as computed angles do, to the bit", "[rope][fill tables]") {
  const rope_style_t half = ROPE_STYLE_HALF, interleaved = ROPE_STYLE_INTERLEAVED;
  for (const rope_dtype_t dtype : dtypes) {
    for (const double scale : {0.0, 1.3}) {
      for (const rope_style_t style : {half, interleaved}) {
        check_rotations(Tables(64).style(style).scale(scale), dtype, {50, 32});
        check_rotations(Tables(64).style(style).scale(scale), dtype, {50, 64});
        check_rotations(Tables(64).style(style).scale(scale).axes(3), dtype, {50, 32});
        check_rotations(Tables(64).style(style).scale(scale).axes(3), dtype, {3, 50, 64});
        check_rotations(Tables(64).style(style).scale(scale).restarted(2), dtype, {50, 16});
        check_rotations(Tables(64).style(style).scale(scale).restarted(2), dtype, {2, 50, 16});
        check_rotations(Tables(64).style(style).scale(scale).restarted(4), dtype, {1, 50, 8});
      }
      check_rotations(Tables(64).style(half, 0, 16).scale(scale), dtype, {50, 64});
      check_rotations(Tables(64).style(half, interleaved).scale(scale), dtype, {50, 64});
      check_rotations(Tables(64).style(interleaved, half, 32).scale(scale).restarted(2), dtype, {50, 64});
      check_rotations(Tables(64).style(interleaved, half).scale(scale), dtype, {50, 32});
    }
  }
}

TEST_CASE("misused tables to fill", "[rope][fill tables][errors]") {
  const std::vector<Misuse> misuses = {
      {"no frequencies", "desc has no frequencies: it was made with theta 0 and without inv_freq",
       [](Tables &tables, rope_tensor_t &, rope_tensor_t &) { tables.config.theta = 0; }},
      {"cos absent", "cos_out is absent: it is required",
       [](Tables &, rope_tensor_t &cos, rope_tensor_t &) { cos = {}; }},
      {"sin absent", "sin_out is absent: it is required",
       [](Tables &, rope_tensor_t &, rope_tensor_t &sin) { sin = {}; }},
      {"absent but with data", "cos_out.ndim is 0, which means absent, but another member is set",
       [](Tables &, rope_tensor_t &cos, rope_tensor_t &) { cos.ndim = 0; }},
      {"rank 1", "cos_out.ndim is 1: it must be 2, [M, W]",
       [](Tables &, rope_tensor_t &cos, rope_tensor_t &) { cos = select(cos, 0, 0); }},
      {"another width", "cos_out.shape[1] is 7: it must be R/2, 8, or R, 16",
       [](Tables &, rope_tensor_t &cos, rope_tensor_t &) { cos = narrow(cos, 1, 0, 7); }},
      {"other rows", "sin_out.shape[0] is 5: it must be that of cos_out, 7",
       [](Tables &, rope_tensor_t &, rope_tensor_t &sin) { sin = narrow(sin, 0, 0, 5); }},
      {"other dtypes", "sin_out.dtype is I32: it must be F32, F16, BF16 or F64",
       [](Tables &, rope_tensor_t &, rope_tensor_t &sin) { sin.dtype = ROPE_DTYPE_I32; }},
      {"integers", "cos_out.dtype is I32: it must be F32, F16, BF16 or F64",
       [](Tables &, rope_tensor_t &cos, rope_tensor_t &) { cos.dtype = ROPE_DTYPE_I32; }},
      {"frequencies that do not repeat", "cos_out has 4 columns: pair 4 turns otherwise than pair 0",
       [](Tables &tables, rope_tensor_t &cos, rope_tensor_t &sin) {
         tables.axes(2);
         cos = narrow(cos, 1, 0, 4);
         sin = narrow(sin, 1, 0, 4);
       }},
      {"the same tensor twice", "cos_out at", [](Tables &, rope_tensor_t &cos, rope_tensor_t &sin) { sin = cos; }},
      {"an overlap", "cos_out at",
       [](Tables &, rope_tensor_t &cos, rope_tensor_t &sin) {
         sin = cos;
         sin.data = element_at(cos, {0, 1});
       }},
      {"an expanded tensor", "sin_out.stride[0] is 0 for 7 elements: an output cannot be an expanded tensor",
       [](Tables &, rope_tensor_t &, rope_tensor_t &sin) { sin.stride[0] = 0; }},
      {"no data", "cos_out.data is NULL: a tensor with elements needs memory",
       [](Tables &, rope_tensor_t &cos, rope_tensor_t &) { cos.data = nullptr; }},
  };
  for (const Device &device : devices()) {
    for (const Misuse &misuse : misuses) {
      INFO(misuse.title << ", on " << device);
      Tables tables(16);
      Workspace workspace(74);
      rope_tensor_t cos = workspace.tensor(ROPE_DTYPE_F32, {7, 8}), sin = workspace.tensor(ROPE_DTYPE_F32, {7, 8});
      misuse.commit(tables, cos, sin);
      workspace.freeze();
      workspace.restore();
      const RopeDesc desc = create(tables.config_on(device, ROPE_DTYPE_F32));
      CHECK(rope_fill_tables(desc.get(), &cos, &sin, nullptr) == ROPE_STATUS_INVALID_ARGUMENT);
      const std::string message = rope_last_error(), text = "rope_fill_tables: " + misuse.text;
      INFO(message);
      CHECK(message.compare(0, text.size(), text) == 0);
      std::string where;
      CHECK(workspace.untouched_elsewhere(&where));
    }
  }
}

TEST_CASE("NULL, destroyed descriptors and streams for tables to fill", "[rope][fill tables][errors]") {
  for (const Device &device : devices()) {
    INFO(device);
    Workspace workspace(75);
    const rope_tensor_t cos = workspace.tensor(ROPE_DTYPE_F32, {7, 8}), sin = workspace.tensor(ROPE_DTYPE_F32, {7, 8});
    workspace.freeze();
    workspace.restore();
    const RopeDesc desc = create(Tables(16).config_on(device, ROPE_DTYPE_F32));
    const auto refuses = [&](const rope_desc_t *of, const rope_tensor_t *first, const rope_tensor_t *second,
                             rope_stream_t stream, const std::string &text) {
      CHECK(rope_fill_tables(of, first, second, stream) == ROPE_STATUS_INVALID_ARGUMENT);
      const std::string message = rope_last_error();
      INFO(message);
      CHECK(message.compare(0, text.size(), text) == 0);
    };
    refuses(nullptr, &cos, &sin, nullptr, "rope_fill_tables: desc is NULL: it is required");
    refuses(desc.get(), nullptr, &sin, nullptr, "rope_fill_tables: cos_out is NULL: it is required");
    refuses(desc.get(), &cos, nullptr, nullptr, "rope_fill_tables: sin_out is NULL: it is required");
    if (device.kind == ROPE_DEVICE_CPU) {
      refuses(desc.get(), &cos, &sin, reinterpret_cast<rope_stream_t>(uintptr_t{16}),
              "rope_fill_tables: stream is 0x10");
    }
    rope_desc_t *destroyed = create(Tables(16).config_on(device, ROPE_DTYPE_F32)).release();
    rope_desc_destroy(destroyed);
    refuses(destroyed, &cos, &sin, nullptr, "rope_fill_tables: desc ");
    std::string where;
    CHECK(workspace.untouched_elsewhere(&where));
  }
}
