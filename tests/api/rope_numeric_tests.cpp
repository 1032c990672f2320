// SPDX-License-Identifier: Apache-2.0
// rope_numeric_tests.cpp - the numeric contract on dense data: angles, rounding, numbers that are not finite
#include <catch2/catch_test_macros.hpp>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "support/cases.hpp"
#include "support/tolerance.hpp"

using oracle::Real;

namespace {

// The largest error of cos and sin over all positions and pairs, relative to the permitted error. cos and sin are the
// rotated pair (1, 0), for which products and sums are exact.
std::vector<Real> worst_shares(const std::vector<int64_t> &positions, int pairs, const rope_config_t &numbers) {
  Workspace workspace(1);
  const auto tokens = static_cast<int64_t>(positions.size());
  rope_args_t args = rope_args();
  args.q = workspace.tensor(ROPE_DTYPE_F32, {tokens, 1, 2 * pairs});
  args.positions = workspace.tensor(ROPE_DTYPE_I64, {tokens});
  workspace.fill(args.q, [&](const Index &index) { return index[2] < pairs ? 1 : 0; });
  workspace.fill_integers(args.positions, [&](const Index &index) { return positions[index[0]]; });
  workspace.freeze();
  std::vector<rope_tensor_t> results;
  Workspace copies(2);
  for (const Device &device : devices()) {
    rope_config_t config = numbers;
    config.device = device.kind;
    config.device_index = device.index;
    config.layout = ROPE_LAYOUT_THD;
    workspace.restore();
    const RopeDesc desc = create(config);
    REQUIRE(run(device, desc.get(), Direction::Forward, args, workspace) == ROPE_STATUS_SUCCESS);
    results.push_back(copies.tensor(ROPE_DTYPE_F32, {tokens, 1, 2 * pairs}));
    std::memcpy(results.back().data, args.q.data, static_cast<size_t>(tokens * 2 * pairs * 4));
  }
  std::vector<Real> worst(devices().size(), 0);
  for (int64_t token = 0; token < tokens; ++token) {
    for (int pair = 0; pair < pairs; ++pair) {
      const Real frequency = numbers.inv_freq ? static_cast<Real>(numbers.inv_freq[pair])
                                              : oracle::frequency(numbers.theta, 2 * pairs, pair);
      const oracle::Rotation exact = oracle::rotation(positions[token], frequency);
      const Real allowed = tolerance::rotation(positions[token], frequency);
      for (size_t i = 0; i < worst.size(); ++i) {
        const Real cos_error = std::fabs(value_at(results[i], {token, 0, pair}) - exact.cos);
        const Real sin_error = std::fabs(value_at(results[i], {token, 0, pair + pairs}) - exact.sin);
        // The condition is false for NaN, which therefore counts as infinitely wrong.
        const bool right = cos_error <= allowed && sin_error <= allowed;
        const Real share = std::fmax(cos_error, sin_error) / allowed;
        worst[i] = std::fmax(worst[i], right || share > 1 ? share : std::numeric_limits<Real>::infinity());
      }
    }
  }
  return worst;
}

void check_angles(const std::vector<int64_t> &positions, int pairs, const rope_config_t &numbers) {
  const std::vector<Real> worst = worst_shares(positions, pairs, numbers);
  for (size_t i = 0; i < worst.size(); ++i) {
    INFO(devices()[i] << ": the worst error of cos or sin is " << static_cast<double>(worst[i])
                      << " times what is allowed");
    CHECK(worst[i] <= 1);
  }
}

std::vector<int64_t> positions_within(int64_t limit, int count, Random random) {
  std::vector<int64_t> positions = {0, 1, -1, limit, -limit, limit - 1, 1 - limit, limit / 2, -limit / 3};
  while (static_cast<int>(positions.size()) < count) {
    // Uniform over magnitudes, so that there are as many small positions as large ones.
    const double size = std::pow(static_cast<double>(limit), random.uniform(0, 1));
    positions.push_back(static_cast<int64_t>(random.bits() & 1 ? size : -size));
  }
  return positions;
}

uint16_t half_bits(const rope_tensor_t &tensor, const Index &index) {
  uint16_t bits;
  std::memcpy(&bits, element_at(tensor, index), sizeof bits);
  return bits;
}

}  // namespace

TEST_CASE("angles at positions to the ends of 32 bits", "[rope][numbers]") {
  for (double theta : {1e4, 1e5, 5e5, 1e6, 1e7}) {
    INFO("theta " << theta);
    rope_config_t numbers = rope_config_for(devices()[0], 128);
    numbers.theta = theta;
    check_angles(positions_within(std::numeric_limits<int32_t>::max(), 1500, Random(3)), 64, numbers);
  }
}

TEST_CASE("angles of every thousandth of a degree", "[rope][numbers]") {
  std::vector<int64_t> positions;
  for (int64_t position = -10; position < 360000 + 10; ++position) positions.push_back(position);
  const double inv_freq = 6.283185307179586 / 360000;
  rope_config_t numbers = rope_config_for(devices()[0], 2);
  numbers.inv_freq = &inv_freq;
  check_angles(positions, 1, numbers);
}

TEST_CASE("angles of frequencies of any size and sign", "[rope][numbers]") {
  const double inv_freq[] = {0.0,
                             1.0,
                             -1.0,
                             0.7853981633974483,
                             3.141592653589793,
                             -6.283185307179586,
                             12345.678,
                             -1e6,
                             1e9,
                             1e12,
                             -1e15,
                             1e-3,
                             -1e-9,
                             1e-15,
                             1e-300,
                             4e-320};
  rope_config_t numbers = rope_config_for(devices()[0], 32);
  numbers.inv_freq = inv_freq;
  check_angles(positions_within(4000, 2000, Random(4)), 16, numbers);
}

TEST_CASE("angles of slow frequencies far beyond 32 bits", "[rope][numbers]") {
  const double inv_freq[] = {1e-3, -1e-4, 1e-6, 3e-8};
  rope_config_t numbers = rope_config_for(devices()[0], 8);
  numbers.inv_freq = inv_freq;
  check_angles(positions_within(int64_t{1} << 42, 4000, Random(5)), 4, numbers);
}

TEST_CASE("outputs of 16 bits are nearly always the nearest", "[rope][numbers]") {
  for (rope_dtype_t dtype : {ROPE_DTYPE_F16, ROPE_DTYPE_BF16}) {
    for (rope_style_t style : {ROPE_STYLE_HALF, ROPE_STYLE_INTERLEAVED}) {
      RopeCase dense;
      dense.dtype(dtype).style(style).normal_data().batch(1).tokens(97).heads(16, 4).head_dim(128).theta(5e5);
      const RopeStatistics statistics = dense.check();
      INFO(statistics.correctly_rounded << " of " << statistics.rotated);
      CHECK(statistics.rotated == 97 * 20 * 128);
      CHECK(static_cast<double>(statistics.correctly_rounded) >= 0.999 * static_cast<double>(statistics.rotated));
    }
  }
}

TEST_CASE("attention_scale that fp32 cannot hold exactly", "[rope][numbers]") {
  for (rope_dtype_t dtype : {ROPE_DTYPE_F32, ROPE_DTYPE_F16, ROPE_DTYPE_BF16}) {
    for (double scale : {1.2079441541679836, 0.1, -3.3}) {
      RopeCase().dtype(dtype).batch(1).tokens(33).heads(4).head_dim(64).attention_scale(scale).normal_data().check();
    }
  }
}

TEST_CASE("all values of 16 bits enter and leave unchanged at position 0", "[rope][numbers]") {
  for (rope_dtype_t dtype : {ROPE_DTYPE_F16, ROPE_DTYPE_BF16}) {
    for (const Device &device : devices()) {
      INFO(oracle::dtype_name(dtype) << " on " << device);
      Workspace workspace(6);
      rope_args_t args = rope_args();
      // x is any value and y is zero: x * 1 - 0 * 0.
      args.q = workspace.tensor(dtype, {1, 64, 1024, 2});
      workspace.fill(args.q, [](const Index &) { return 0; });
      for (uint32_t bits = 0; bits < 65536; ++bits) {
        const auto narrow = static_cast<uint16_t>(bits);
        std::memcpy(element_at(args.q, {0, bits / 1024, bits % 1024, 0}), &narrow, sizeof narrow);
      }
      args.positions = workspace.tensor(ROPE_DTYPE_I32, {64});
      workspace.fill_integers(args.positions, [](const Index &) { return 0; });
      workspace.freeze();
      workspace.restore();
      rope_config_t config = rope_config_for(device, 2);
      config.dtype = dtype;
      const RopeDesc desc = create(config);
      REQUIRE(run(device, desc.get(), Direction::Forward, args, workspace) == ROPE_STATUS_SUCCESS);
      int wrong = 0;
      for (uint32_t bits = 0; bits < 65536; ++bits) {
        const auto narrow = static_cast<uint16_t>(bits);
        const Index at = {0, bits / 1024, bits % 1024, 0};
        const bool number = !std::isnan(oracle::decode(dtype, &narrow));
        wrong += number ? half_bits(args.q, at) != bits : !std::isnan(value_at(args.q, at));
      }
      CHECK(wrong == 0);
    }
  }
}

TEST_CASE("fp32 results are rounded to the nearest of 16 bits, ties to even", "[rope][numbers]") {
  for (rope_dtype_t dtype : {ROPE_DTYPE_F16, ROPE_DTYPE_BF16}) {
    // Every value of the type, every midpoint to the next value, and the fp32 neighbours of these, as cos of a table
    // that rotates the pair (1, 0): x' is then the rounded entry.
    std::vector<float> cells;
    for (uint32_t bits = 0; bits < 65535; ++bits) {
      const auto low = static_cast<uint16_t>(bits), high = static_cast<uint16_t>(bits + 1);
      const Real value = oracle::decode(dtype, &low), next = oracle::decode(dtype, &high);
      if (!std::isfinite(value)) continue;
      const Real step = std::isfinite(next) ? next - value : value - oracle::nearest(dtype, value * 0.999L);
      const auto middle = static_cast<float>(value + step / 2);
      for (float cell :
           {static_cast<float>(value), middle, std::nextafter(middle, 1e38f), std::nextafter(middle, -1e38f)}) {
        cells.push_back(cell);
      }
    }
    const int64_t pairs = 512;
    const int64_t rows = (static_cast<int64_t>(cells.size()) + pairs - 1) / pairs;
    cells.resize(static_cast<size_t>(rows * pairs), 1.0f);
    for (const Device &device : devices()) {
      for (rope_style_t style : {ROPE_STYLE_HALF, ROPE_STYLE_INTERLEAVED}) {
        INFO(oracle::dtype_name(dtype) << " on " << device << ", style " << style);
        Workspace workspace(7);
        rope_args_t args = rope_args();
        args.q = workspace.tensor(dtype, {rows, 1, 2 * pairs});
        args.cos = workspace.tensor(ROPE_DTYPE_F32, {rows, pairs});
        args.sin = workspace.tensor(ROPE_DTYPE_F32, {rows, pairs});
        const auto channel = [&](int64_t pair) { return style == ROPE_STYLE_HALF ? pair : 2 * pair; };
        workspace.fill(args.q, [&](const Index &) { return 0; });
        for (int64_t row = 0; row < rows; ++row) {
          for (int64_t pair = 0; pair < pairs; ++pair) {
            oracle::encode(dtype, 1, element_at(args.q, {row, 0, channel(pair)}));
          }
        }
        std::memcpy(args.cos.data, cells.data(), cells.size() * sizeof(float));
        workspace.fill(args.sin, [](const Index &) { return 0; });
        workspace.freeze();
        workspace.restore();
        rope_config_t config = rope_config_for(device, 2 * pairs);
        config.dtype = dtype;
        config.layout = ROPE_LAYOUT_THD;
        config.style = style;
        const RopeDesc desc = create(config);
        REQUIRE(run(device, desc.get(), Direction::Forward, args, workspace) == ROPE_STATUS_SUCCESS);
        int wrong = 0;
        for (int64_t row = 0; row < rows; ++row) {
          for (int64_t pair = 0; pair < pairs; ++pair) {
            const float cell = cells[static_cast<size_t>(row * pairs + pair)];
            const Real actual = value_at(args.q, {row, 0, channel(pair)});
            if (actual == oracle::nearest(dtype, cell)) continue;
            if (++wrong <= 3) UNSCOPED_INFO("fp32 " << cell << " became " << static_cast<double>(actual));
          }
        }
        CHECK(wrong == 0);
      }
    }
  }
}

TEST_CASE("a NaN or an infinity stays in its pair", "[rope][numbers]") {
  for (rope_dtype_t dtype : {ROPE_DTYPE_F32, ROPE_DTYPE_F16, ROPE_DTYPE_BF16}) {
    for (rope_style_t style : {ROPE_STYLE_HALF, ROPE_STYLE_INTERLEAVED}) {
      for (const Device &device : devices()) {
        INFO(oracle::dtype_name(dtype) << " on " << device << ", style " << style);
        Workspace workspace(8);
        rope_args_t args = rope_args();
        args.q = workspace.tensor(dtype, {1, 16, 1, 32});
        const auto of_token = [&](int64_t pair) { return style == ROPE_STYLE_HALF ? pair : 2 * pair; };
        // In token t, pair t is (NaN, 1) or (infinity, 1).
        workspace.fill(args.q, [&](const Index &index) -> Real {
          if (index[3] != of_token(index[1])) return 1;
          return index[1] % 2 ? std::numeric_limits<Real>::quiet_NaN() : std::numeric_limits<Real>::infinity();
        });
        workspace.freeze();
        workspace.restore();
        rope_config_t config = rope_config_for(device, 32);
        config.dtype = dtype;
        config.style = style;
        const RopeDesc desc = create(config);
        REQUIRE(run(device, desc.get(), Direction::Forward, args, workspace) == ROPE_STATUS_SUCCESS);
        int wrong = 0;
        for_each_index(args.q, [&](const Index &index) {
          const int64_t x = of_token(index[1]);
          const int64_t y = style == ROPE_STYLE_HALF ? x + 16 : x + 1;
          const bool poisoned = index[3] == x || index[3] == y;
          // Infinity times sin 0 is NaN, so the pair of token 0 becomes (infinity, NaN).
          wrong += std::isfinite(value_at(args.q, index)) == poisoned;
          if (index[1] % 2 && poisoned) wrong += !std::isnan(value_at(args.q, index));
        });
        CHECK(wrong == 0);
      }
    }
  }
}

TEST_CASE("subnormal inputs and outputs are not flushed", "[rope][numbers]") {
  for (rope_dtype_t dtype : {ROPE_DTYPE_F32, ROPE_DTYPE_F16, ROPE_DTYPE_BF16}) {
    for (const Device &device : devices()) {
      INFO(oracle::dtype_name(dtype) << " on " << device);
      Workspace workspace(9);
      rope_args_t args = rope_args();
      args.q = workspace.tensor(dtype, {1, 5, 3, 64});
      workspace.fill(args.q, [&](const Index &) {
        return oracle::min_positive(dtype) * static_cast<Real>(workspace.random().below(120) - 60);
      });
      workspace.freeze();
      workspace.restore();
      rope_config_t config = rope_config_for(device, 64);
      config.dtype = dtype;
      const RopeDesc desc = create(config);
      REQUIRE(run(device, desc.get(), Direction::Forward, args, workspace) == ROPE_STATUS_SUCCESS);
      const rope_tensor_t before = workspace.before(args.q);
      int wrong = 0, subnormal = 0;
      for_each_index(before, [&](const Index &index) {
        if (index[3] >= 32) return;
        const Index second = {0, index[1], index[2], index[3] + 32};
        const oracle::Pair exact =
            oracle::rotate({value_at(before, index), value_at(before, second)},
                           oracle::rotation(index[1], oracle::frequency(10000, 64, static_cast<int>(index[3]))));
        // Half a step for each of the two products and the sum, in fp32, and half a step of the type.
        const Real slack = 1.6L * 0x1p-149L + 4e-7L * oracle::min_positive(dtype) * 60;
        const Real x = value_at(args.q, index), y = value_at(args.q, second);
        wrong += !tolerance::accepts(dtype, x, exact.x, slack) + !tolerance::accepts(dtype, y, exact.y, slack);
        subnormal += (x != 0) + (y != 0);
      });
      CHECK(wrong == 0);
      CHECK(subnormal > 500);
    }
  }
}
