// SPDX-License-Identifier: Apache-2.0
// swiglu_random_tests.cpp - seeded random requests of SwiGLU in words: shapes, placements, rows, experts and options
//
// ROPE_SWIGLU_CASES is the number of cases (600), ROPE_SWIGLU_SEED the first seed. A failing case prints its seed, and
//   ROPE_SWIGLU_CASES=1 ROPE_SWIGLU_SEED=<that> rope_api_tests "[swiglu][words][random]"
// runs it alone.
#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <cstdlib>
#include <numeric>
#include <utility>
#include <vector>

#include "support/cases.hpp"

namespace {

class Draw {
 public:
  explicit Draw(uint64_t seed) : random_(seed * 0x9E3779B97F4A7C15u + 5) {}

  SwigluCase request() {
    dtype_ = one_of<rope_dtype_t>({ROPE_DTYPE_F32, ROPE_DTYPE_F16, ROPE_DTYPE_BF16, ROPE_DTYPE_F64});
    // Half of the requests have each axis of length 1 with odds of a half.
    has_ones_ = chance(50);
    shape_.resize(static_cast<size_t>(between(1, 4)));
    for (int64_t &axis : shape_) axis = length(5);
    if (!has_ones_ || chance(50)) shape_.back() = chance(30) ? 8 * between(1, 12) : length(40);
    drawn_.dtype(dtype_).shape(shape_);
    draw_places();
    draw_rows();
    draw_options();
    if (chance(30)) drawn_.recomputed();
    return drawn_;
  }

 private:
  bool chance(int percent) { return random_.below(100) < percent; }
  int64_t between(int64_t low, int64_t high) { return low + random_.below(high - low + 1); }
  int64_t length(int64_t most) { return has_ones_ && chance(50) ? 1 : between(1, most); }
  template <class Value>
  Value one_of(std::initializer_list<Value> values) {
    return values.begin()[random_.below(static_cast<int64_t>(values.size()))];
  }
  int rank() const { return static_cast<int>(shape_.size()); }
  rope_dtype_t integers() { return chance(50) ? ROPE_DTYPE_I32 : ROPE_DTYPE_I64; }

  Placement placement(int axes) {
    Placement placement;
    if (chance(50)) return placement;
    if (chance(30)) {
      std::vector<int> order(static_cast<size_t>(axes));
      std::iota(order.begin(), order.end(), 0);
      for (int i = axes - 1; i > 0; --i) std::swap(order[i], order[random_.below(i + 1)]);
      placement.order(order);
    }
    for (int axis = 0; axis < axes; ++axis) {
      if (chance(20)) placement.gap(axis, one_of<int64_t>({1, 2, 8}));
      if (chance(10)) placement.reversed(axis);
    }
    if (chance(20)) placement.at(between(1, 7));
    return placement;
  }

  void draw_places() {
    const auto packing = [&] {
      const GatePacking drawn =
          one_of({GatePacking::Separate, GatePacking::GateFirst, GatePacking::UpFirst, GatePacking::Alternating,
                  GatePacking::AlternatingUpFirst, GatePacking::Blocks});
      return chance(50) || (drawn == GatePacking::Blocks && rank() > 3) ? GatePacking::Separate : drawn;
    };
    drawn_.packing(packing(), packing());
    for (const SwigluTensor tensor : {SwigluTensor::Gate, SwigluTensor::Up, SwigluTensor::Out, SwigluTensor::GradOut,
                                      SwigluTensor::GradGate, SwigluTensor::GradUp}) {
      drawn_.placed(tensor, placement(rank()));
    }
    if (chance(20)) drawn_.in_place(SwigluTensor::Out, chance(50) ? SwigluTensor::Gate : SwigluTensor::Up);
    if (chance(20)) {
      drawn_.in_place(SwigluTensor::GradGate, SwigluTensor::Gate).in_place(SwigluTensor::GradUp, SwigluTensor::Up);
      drawn_.in_place(SwigluTensor::Out, SwigluTensor::GradOut);
    } else if (chance(20)) {
      drawn_.without(chance(50) ? SwigluTensor::GradGate : SwigluTensor::GradUp);
    }
  }

  void draw_rows() {
    const int64_t first = shape_[0];
    const bool has_expert_rows = rank() > 2 && chance(40), has_offsets = !has_expert_rows && rank() > 1 && chance(40);
    if (has_expert_rows) {
      std::vector<int64_t> rows(static_cast<size_t>(first));
      for (int64_t &count : rows) count = between(-1, shape_[1] + 1);
      drawn_.experts(rows, integers(), placement(1));
    } else if (has_offsets) {
      std::vector<int64_t> offsets(static_cast<size_t>(between(2, 5)));
      for (int64_t &offset : offsets) offset = between(chance(10) ? -1 : 0, first + (chance(10) ? 1 : 0));
      if (chance(80)) std::sort(offsets.begin(), offsets.end());
      drawn_.expert_offsets(offsets, integers(), placement(1));
    } else if (chance(30)) {
      drawn_.num_rows(between(0, first + 1), integers());
    }
    if (chance(40)) {
      const rope_dtype_t bias = chance(50) ? dtype_ : ROPE_DTYPE_F32;
      const bool is_by_expert = (has_expert_rows || has_offsets) && chance(50);
      drawn_.biases(bias, is_by_expert, placement(is_by_expert ? 2 : 1));
    }
    if (rank() < 2 || chance(40)) return;
    const rope_dtype_t factor = chance(50) ? dtype_ : ROPE_DTYPE_F32;
    const bool is_indexed = !has_expert_rows && chance(30);
    const int axes = is_indexed ? 1 : static_cast<int>(between(1, rank() - 1));
    drawn_.row_scale(axes, factor, placement(axes));
    if (is_indexed) {
      const int64_t factors = between(1, 4);
      std::vector<int64_t> index(static_cast<size_t>(first));
      for (int64_t &entry : index) entry = between(-1, factors);
      drawn_.row_index(index, factors, integers(), placement(1));
    }
    if ((has_expert_rows && axes < 2) || chance(40)) return;
    if (!is_indexed && chance(20)) {
      drawn_.grad_row_scale_in_place();
    } else {
      drawn_.grad_row_scale(placement(axes));
    }
  }

  void draw_options() {
    const int32_t activation = chance(50) ? SWIGLU_ACTIVATION_SWIGLU : static_cast<int32_t>(between(1, 3));
    if (chance(50)) {
      const double alpha = activation == SWIGLU_ACTIVATION_SWIGLU ? one_of({0.0, 1.702}) : 0.0;
      drawn_.form(alpha, one_of({0.0, 7.0}), one_of({0.0, 1.0}), one_of({0.0, -2.5}));
    }
    drawn_.activation(activation);
    if (chance(20)) drawn_.soft_caps(one_of({0.0, 4.0}), one_of({0.0, 25.0}));
  }

  Random random_;
  SwigluCase drawn_;
  rope_dtype_t dtype_ = ROPE_DTYPE_F32;
  bool has_ones_ = false;
  Shape shape_;
};

int64_t from_environment(const char *name, int64_t otherwise) {
  const char *text = std::getenv(name);
  return text && *text ? std::strtoll(text, nullptr, 10) : otherwise;
}

}  // namespace

TEST_CASE("SwiGLU in words, random requests", "[swiglu][words][random]") {
  const int64_t cases = from_environment("ROPE_SWIGLU_CASES", 600);
  const int64_t seed = from_environment("ROPE_SWIGLU_SEED", 20261201);
  for (int64_t i = 0; i < cases; ++i) {
    INFO("ROPE_SWIGLU_CASES=1 ROPE_SWIGLU_SEED=" << seed + i);
    Draw(static_cast<uint64_t>(seed + i)).request().check();
  }
}
