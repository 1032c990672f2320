// SPDX-License-Identifier: Apache-2.0
// swiglu_rows_tests.cpp - SwiGLU of experts whose rows follow each other, and of factors that an index chooses
#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "support/cases.hpp"
#include "support/device.hpp"
#include "support/random.hpp"
#include "support/swiglu_rows.hpp"
#include "support/tensors.hpp"

namespace {

using oracle::Real;
using List = std::vector<int64_t>;

constexpr rope_dtype_t kF32 = ROPE_DTYPE_F32, kF16 = ROPE_DTYPE_F16, kBF16 = ROPE_DTYPE_BF16, kF64 = ROPE_DTYPE_F64;
constexpr rope_dtype_t kI32 = ROPE_DTYPE_I32, kI64 = ROPE_DTYPE_I64;
const std::vector<rope_dtype_t> dtypes = {kF32, kF16, kBF16, kF64};

// expert_offsets for 13 rows: correct lists first, then lists with every kind of error.
const std::vector<List> offsets_of_13 = {
    {0, 13},     {0, 4, 4, 9, 13}, {0, 0, 0, 13, 13}, {3, 5, 11},     {5, 5, 5},
    {13, 13},    {0, 9, 4, 13},    {0, 13, 0, 13},    {6, 2, 9, 13},  {9, 2, 5, 1},
    {-3, 4, 13}, {0, 4, 19},       {0, 4, 14, 13},    {-9, -5, 2, 8}, {0, -1, 7, 12},
    {-2, 13},    {0, 14},          {13, 0},           {40, 50},       {0, 5, 9, 8, 7, 11, 10, 13},
};

List extremes(rope_dtype_t dtype) {
  const bool is_wide = dtype == kI64;
  const int64_t least = is_wide ? std::numeric_limits<int64_t>::min() : std::numeric_limits<int32_t>::min();
  const int64_t most = is_wide ? std::numeric_limits<int64_t>::max() : std::numeric_limits<int32_t>::max();
  return {least, most};
}

// A row_index for `rows` rows, mostly within `factors`, sometimes outside.
List random_index(int64_t rows, int64_t factors, uint64_t seed) {
  Random random(seed);
  List index(static_cast<size_t>(rows));
  for (int64_t &factor : index) factor = random.below(factors + 4) - 2;
  return index;
}

// expert_offsets that leave some experts without rows, and the first and last rows without an expert.
List random_offsets(int64_t experts, int64_t rows, uint64_t seed) {
  Random random(seed);
  List offsets(static_cast<size_t>(experts) + 1);
  for (int64_t &offset : offsets) offset = random.below(rows + 1);
  std::sort(offsets.begin(), offsets.end());
  return offsets;
}

}  // namespace

TEST_CASE("experts back to back: offsets that rise, fall and lie outside", "[swiglu][rows]") {
  for (const rope_dtype_t dtype : dtypes) {
    for (const rope_dtype_t integers : {kI32, kI64}) {
      for (const List &offsets : offsets_of_13) {
        SwigluCase one;
        one.dtype(dtype).shape({13, 24}).expert_offsets(offsets, integers);
        SwigluCase(one).biases(kF32, true).recomputed().check();
        SwigluCase(one).biases(0, true).row_scale(1).check();
      }
      const List far = extremes(integers);
      for (const List &offsets : {List{far[0], 5, 13}, List{0, 5, far[1]}, List{0, far[1], 13}, List{0, far[0], 13},
                                  List{far[0], far[1]}, List{far[1], far[0]}, List{far[0], far[0]}}) {
        SwigluCase().dtype(dtype).shape({13, 16}).expert_offsets(offsets, integers).biases(kF32, true).check();
      }
    }
  }
}

TEST_CASE("experts back to back with every shape, layout and gradient", "[swiglu][rows]") {
  struct Form {
    Shape shape;
    int row_axes;
  };
  uint64_t seed = 1;
  for (const rope_dtype_t dtype : dtypes) {
    for (const Form &form :
         {Form{{17, 40}, 1}, Form{{17, 7}, 1}, Form{{5, 3, 16}, 2}, Form{{5, 3, 16}, 1}, Form{{4, 3, 2, 8}, 2},
          Form{{1, 32}, 1}, Form{{19, 1}, 1}, Form{{1, 1}, 1}, Form{{1, 1, 24}, 2}, Form{{300, 8}, 1}}) {
      const int last = static_cast<int>(form.shape.size()) - 1;
      for (const int64_t experts : {int64_t{1}, int64_t{4}, int64_t{40}}) {
        const rope_dtype_t integers = seed % 2 ? kI32 : kI64;
        SwigluCase one;
        one.dtype(dtype).shape(form.shape).biases(seed % 3 ? kF32 : 0, seed % 4 != 0);
        one.expert_offsets(random_offsets(experts, form.shape[0], seed), integers,
                           seed % 5 ? Placement() : Placement().gap(0, 2).reversed(0));
        ++seed;
        SwigluCase(one).recomputed().check();
        SwigluCase(one).row_scale(form.row_axes, seed % 2 ? kF32 : 0).grad_row_scale().recomputed().check();
        SwigluCase(one)
            .row_scale(form.row_axes)
            .grad_row_scale_in_place()
            .placed(Placement().gap(0, 5).reversed(last))
            .check();
        SwigluCase(one).packing(GatePacking::GateFirst, GatePacking::UpFirst).row_scale(1, kF32).check();
        SwigluCase(one).in_place(SwigluTensor::Out, SwigluTensor::Gate).check();
        if (form.shape.size() < 4) {
          SwigluCase(one).packing(GatePacking::Alternating, GatePacking::Blocks).recomputed().check();
        }
        SwigluCase(one)
            .form(1.702, 7, 1, 0.5)
            .activation(SWIGLU_ACTIVATION_SWIGLU, SWIGLU_LIMIT_ACTIVATION)
            .soft_caps(4, 25)
            .row_scale(1)
            .check();
        SwigluCase(one).activation(SWIGLU_ACTIVATION_GEGLU_TANH).rounds_activation().check();
        SwigluCase(one).placed(Placement().order(last == 1 ? std::vector<int>{1, 0} : std::vector<int>{})).check();
      }
    }
  }
}

TEST_CASE("an index chooses the factor of a row", "[swiglu][rows]") {
  uint64_t seed = 100;
  for (const rope_dtype_t dtype : dtypes) {
    for (const Shape &shape : {Shape{23, 40}, Shape{23, 5}, Shape{5, 2, 16}, Shape{1, 24}, Shape{31, 1}}) {
      for (const int64_t factors : {1, 5, 100}) {
        const rope_dtype_t integers = ++seed % 2 ? kI32 : kI64;
        SwigluCase one;
        one.dtype(dtype).shape(shape).row_scale(1, seed % 3 ? kF32 : 0, seed % 5 ? Placement() : Placement().gap(0, 3));
        one.row_index(random_index(shape[0], factors, seed), factors, integers,
                      seed % 5 ? Placement() : Placement().reversed(0));
        SwigluCase(one).recomputed().check();
        SwigluCase(one).grad_row_scale().check();
        SwigluCase(one).grad_row_scale().biases(kF32).form(1.702, 7, 1, 0.5).recomputed().check();
        SwigluCase(one).num_rows(shape[0] / 2, kI64).check();
        SwigluCase(one).num_rows(shape[0] - 1, kI32).grad_row_scale().check();
        SwigluCase(one).activation(SWIGLU_ACTIVATION_REGLU).check();
        SwigluCase(one)
            .expert_offsets(random_offsets(6, shape[0], seed), integers)
            .biases(kF32, true)
            .grad_row_scale()
            .check();
        SwigluCase(one).expert_offsets(random_offsets(6, shape[0], seed), integers).recomputed().check();
      }
    }
  }
  for (const rope_dtype_t integers : {kI32, kI64}) {
    const List far = extremes(integers);
    SwigluCase one;
    one.dtype(kBF16).shape({7, 32}).row_scale(1).row_index({0, far[0], 3, far[1], 2, -1, 4}, 4, integers);
    SwigluCase(one).recomputed().check();
    SwigluCase(one).grad_row_scale().check();
    // First all rows have one factor, then there is no factor at all.
    SwigluCase().dtype(kBF16).shape({6, 16}).row_scale(1).row_index(List(6, 2), 3, integers).grad_row_scale().check();
    SwigluCase().dtype(kBF16).shape({3, 16}).row_scale(1).row_index({0, -1, 1}, 0, integers).grad_row_scale().check();
  }
}

TEST_CASE("more experts than fit a block's memory, and rows of many parts", "[swiglu][rows]") {
  for (const int64_t experts : {200, 256, 1023, 1024, 1025, 2500}) {
    SwigluCase one;
    one.dtype(kBF16).shape({700, 24}).expert_offsets(random_offsets(experts, 700, 5), experts % 2 ? kI64 : kI32);
    SwigluCase(one).biases(kBF16, true).check();
  }
  SwigluCase().dtype(kF32).shape({3, 5000}).expert_offsets({0, 1, 1, 3}, kI64).biases(kF32, true).recomputed().check();
  SwigluCase().dtype(kBF16).shape({5, 2056}).expert_offsets({1, 2, 5}, kI32).biases(kF32, true).check();
}

#if !defined(ROPE_TEST_SIMULATION)
TEST_CASE("experts back to back in calls large enough for several threads", "[swiglu][rows][threads]") {
  for (const rope_dtype_t dtype : {kF32, kBF16}) {
    SwigluCase one;
    one.dtype(dtype).shape({1000, 1024}).expert_offsets({7, 200, 200, 391, 900}, kI32).biases(kF32, true);
    SwigluCase(one).recomputed().check();
    one.row_scale(1).row_index(random_index(1000, 600, 9), 600, kI64);
    SwigluCase(one).check();
    SwigluCase(one).grad_row_scale().check();
  }
}
#endif
