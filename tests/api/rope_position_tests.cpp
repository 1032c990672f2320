// SPDX-License-Identifier: Apache-2.0
// rope_position_tests.cpp - the sources of positions, and their range
#include <catch2/catch_test_macros.hpp>
#include <limits>
#include <vector>

#include "support/cases.hpp"

namespace {

constexpr int64_t far = std::numeric_limits<int32_t>::max();
constexpr int64_t last = std::numeric_limits<int64_t>::max();

const std::vector<rope_dtype_t> position_dtypes = {ROPE_DTYPE_I32, ROPE_DTYPE_I64};
const std::vector<rope_layout_t> layouts = {ROPE_LAYOUT_BSHD, ROPE_LAYOUT_SBHD, ROPE_LAYOUT_BHSD, ROPE_LAYOUT_THD};

int64_t scattered(int64_t batch, int64_t token) {
  return (token * 7919 + batch * 104729) % 4099 - 1000;
}

// Six tokens around each end of the 32-bit range.
int64_t at_the_ends(int64_t batch, int64_t token) {
  const int64_t distance = (token / 2) * 1000003 + batch;
  return token % 2 ? far - distance : -far + distance;
}

RopeCase geometry(rope_layout_t layout) {
  return RopeCase().layout(layout).batch(3).tokens(6).heads(2, 1).head_dim(32);
}

}  // namespace

TEST_CASE("positions per token", "[rope][positions]") {
  for (rope_layout_t layout : layouts) {
    for (rope_dtype_t dtype : position_dtypes) {
      geometry(layout).positions(PositionShape::PerToken, dtype, scattered).check();
      geometry(layout).positions(PositionShape::PerToken, dtype, at_the_ends).check();
    }
  }
}

TEST_CASE("positions per batch and token", "[rope][positions]") {
  for (rope_layout_t layout : {ROPE_LAYOUT_BSHD, ROPE_LAYOUT_SBHD, ROPE_LAYOUT_BHSD}) {
    for (rope_dtype_t dtype : position_dtypes) {
      geometry(layout).positions(PositionShape::PerBatchAndToken, dtype, scattered).check();
      geometry(layout).positions(PositionShape::PerBatchAndToken, dtype, at_the_ends).out_of_place().check();
    }
  }
}

TEST_CASE("start_positions per batch, with and without positions", "[rope][positions]") {
  const auto start = [](int64_t batch, int64_t) { return batch * 1000 - 777; };
  for (rope_layout_t layout : {ROPE_LAYOUT_BSHD, ROPE_LAYOUT_SBHD, ROPE_LAYOUT_BHSD}) {
    for (rope_dtype_t dtype : position_dtypes) {
      geometry(layout).start_positions(PositionShape::PerBatch, dtype, start).check();
      for (rope_dtype_t other : position_dtypes) {
        for (PositionShape shape : {PositionShape::PerToken, PositionShape::PerBatchAndToken}) {
          geometry(layout)
              .positions(shape, other, scattered)
              .start_positions(PositionShape::PerBatch, dtype, start)
              .check();
        }
      }
    }
  }
}

TEST_CASE("start_positions of each token", "[rope][positions]") {
  const auto start = [](int64_t batch, int64_t token) { return batch * 1000 - token * token - 5; };
  for (rope_layout_t layout : layouts) {
    const bool is_thd = layout == ROPE_LAYOUT_THD;
    const PositionShape each = is_thd ? PositionShape::PerToken : PositionShape::PerBatchAndToken;
    for (rope_dtype_t dtype : position_dtypes) {
      geometry(layout).start_positions(each, dtype, start).check();
      geometry(layout)
          .positions(PositionShape::PerToken, dtype, scattered)
          .start_positions(each, ROPE_DTYPE_I64, start)
          .check();
      if (is_thd) continue;
      geometry(layout)
          .positions(PositionShape::PerBatchAndToken, dtype, scattered)
          .start_positions(each, ROPE_DTYPE_I32, start)
          .check();
    }
  }
}

TEST_CASE("start_positions of rank 1 are per batch where batches and tokens are as many", "[rope][positions]") {
  geometry(ROPE_LAYOUT_BSHD)
      .batch(6)
      .positions(PositionShape::PerToken, ROPE_DTYPE_I64, scattered)
      .start_positions(PositionShape::PerBatch, ROPE_DTYPE_I64, [](int64_t batch, int64_t) { return batch * 100; })
      .check();
}

TEST_CASE("position_offset is added to every position", "[rope][positions]") {
  for (rope_layout_t layout : layouts) {
    for (int64_t offset : {int64_t{1}, int64_t{-1}, int64_t{4096}, far - 5, -far}) {
      geometry(layout).position_offset(offset).check();
    }
    geometry(layout)
        .positions(PositionShape::PerToken, ROPE_DTYPE_I32, scattered)
        .position_offset(-100000)
        .out_of_place()
        .check();
  }
}

TEST_CASE("sums of positions wrap in 64 bits", "[rope][positions]") {
  // Each sum overflows 64 bits before it arrives at a small number.
  geometry(ROPE_LAYOUT_BSHD)
      .positions(PositionShape::PerToken, ROPE_DTYPE_I64, [](int64_t, int64_t token) { return last - token; })
      .start_positions(PositionShape::PerBatch, ROPE_DTYPE_I64, [](int64_t batch, int64_t) { return last - batch; })
      .position_offset(14)
      .check();
  geometry(ROPE_LAYOUT_BHSD)
      .positions(PositionShape::PerBatchAndToken, ROPE_DTYPE_I64,
                 [](int64_t batch, int64_t token) { return -last - 1 + batch + token * 3; })
      .position_offset(-last - 1)
      .check();
  geometry(ROPE_LAYOUT_THD)
      .start_positions(PositionShape::PerToken, ROPE_DTYPE_I64, [](int64_t, int64_t token) { return last - 3 * token; })
      .positions(PositionShape::PerToken, ROPE_DTYPE_I32, [](int64_t, int64_t) { return far; })
      .position_offset(-last - 1)
      .check();
}

TEST_CASE("the sum of 32-bit positions does not stop at 32 bits", "[rope][positions]") {
  // Frequencies for which an error of 2^32 would show, yet small enough for the contract's bound at such positions.
  const std::vector<double> slow = {1e-3, 2e-4, 1e-5, 3e-6};
  RopeCase()
      .head_dim(8)
      .inv_freq(slow)
      .positions(PositionShape::PerToken, ROPE_DTYPE_I32, [](int64_t, int64_t token) { return far - token; })
      .start_positions(PositionShape::PerBatch, ROPE_DTYPE_I32, [](int64_t batch, int64_t) { return far - 7 * batch; })
      .position_offset(far)
      .check();
}

TEST_CASE("positions with strides of their own", "[rope][positions]") {
  for (rope_dtype_t dtype : position_dtypes) {
    for (const Placement &placement : {Placement().gap(0, 1), Placement().gap(0, 5), Placement().reversed(0),
                                       Placement().at(1).gap(0, 2), Placement().implicit()}) {
      for (rope_layout_t layout : layouts) {
        geometry(layout).positions(PositionShape::PerToken, dtype, scattered, placement).check();
      }
      geometry(ROPE_LAYOUT_BSHD)
          .start_positions(
              PositionShape::PerBatch, dtype, [](int64_t batch, int64_t) { return batch * 31; }, placement)
          .check();
    }
    for (const Placement &placement : {Placement().order({1, 0}), Placement().gap(0, 3).gap(1, 1),
                                       Placement().reversed(1), Placement().reversed(0).order({1, 0})}) {
      geometry(ROPE_LAYOUT_SBHD).positions(PositionShape::PerBatchAndToken, dtype, scattered, placement).check();
    }
  }
}

TEST_CASE("broadcast positions", "[rope][positions]") {
  for (rope_dtype_t dtype : position_dtypes) {
    geometry(ROPE_LAYOUT_THD)
        .positions(
            PositionShape::PerToken, dtype, [](int64_t, int64_t) { return 4242; }, Placement().expanded(0))
        .check();
    geometry(ROPE_LAYOUT_BSHD)
        .positions(
            PositionShape::PerBatchAndToken, dtype, [](int64_t, int64_t token) { return 10 - token; },
            Placement().expanded(0))
        .check();
    geometry(ROPE_LAYOUT_BSHD)
        .positions(
            PositionShape::PerBatchAndToken, dtype, [](int64_t batch, int64_t) { return 99 * batch; },
            Placement().expanded(1))
        .check();
  }
}

TEST_CASE("positions of one batch serve all", "[rope][positions]") {
  // [1, S], or [1, T] for THD. The stride of an axis of length 1 is never used.
  const auto start = [](int64_t batch, int64_t token) { return batch * 1000 - token * token - 777; };
  for (rope_layout_t layout : layouts) {
    for (rope_dtype_t dtype : position_dtypes) {
      for (const Placement &placement : {Placement(), Placement().gap(0, 7), Placement().reversed(0).reversed(1)}) {
        RopeCase request = geometry(layout).shared_positions(true);
        request.positions(PositionShape::PerBatchAndToken, dtype, scattered, placement);
        RopeCase(request).check();
        RopeCase(request).out_of_place().dtype(ROPE_DTYPE_BF16).check();
        RopeCase(request).start_positions(PositionShape::PerBatchAndToken, ROPE_DTYPE_I32, start, placement).check();
        RopeCase(request).start_positions(PositionShape::PerBatch, ROPE_DTYPE_I64, start).position_offset(3).check();
      }
      geometry(layout).start_positions(PositionShape::PerBatch, dtype, start).shared_positions(true).check();
      geometry(layout).start_positions(PositionShape::PerBatchAndToken, dtype, start).shared_positions(true).check();
    }
  }
}

TEST_CASE("positions of one batch serve all, into tables", "[rope][positions][fault]") {
  for (rope_layout_t layout : layouts) {
    RopeCase request = geometry(layout).tables(5).fault().shared_positions(true);
    request.positions(PositionShape::PerBatchAndToken, ROPE_DTYPE_I64,
                      [](int64_t, int64_t token) { return 3 * token - 2; });
    RopeCase(request).check();
    RopeCase(request).angles(100).out_of_place().check();
  }
}

TEST_CASE("positions of one batch serve as many batches as tokens", "[rope][positions]") {
  for (rope_layout_t layout : layouts) {
    geometry(layout)
        .batch(6)
        .positions(PositionShape::PerBatchAndToken, ROPE_DTYPE_I64, scattered)
        .shared_positions(true)
        .check();
    geometry(layout)
        .batch(5)
        .tokens(1)
        .positions(PositionShape::PerBatchAndToken, ROPE_DTYPE_I32, scattered)
        .shared_positions(true)
        .check();
  }
}

TEST_CASE("positions of many tokens in every dtype and style", "[rope][positions]") {
  for (rope_dtype_t dtype : {ROPE_DTYPE_F32, ROPE_DTYPE_F16, ROPE_DTYPE_BF16}) {
    for (rope_style_t style : {ROPE_STYLE_HALF, ROPE_STYLE_INTERLEAVED}) {
      RopeCase()
          .dtype(dtype)
          .style(style)
          .layout(ROPE_LAYOUT_THD)
          .tokens(131)
          .heads(4, 1)
          .head_dim(64)
          .theta(1e6)
          .positions(PositionShape::PerToken, ROPE_DTYPE_I64, scattered)
          .check();
    }
  }
}
