// SPDX-License-Identifier: Apache-2.0
// tensor_view_tests.cpp - rope_tensor_narrow and rope_tensor_select
#include <catch2/catch_test_macros.hpp>
#include <cstring>

#include "support/tensors.hpp"

namespace {

bool untouched(const rope_tensor_t &view) {
  rope_tensor_t expected;
  std::memset(&expected, 0x5A, sizeof expected);
  return std::memcmp(&view, &expected, sizeof view) == 0;
}

rope_tensor_t garbage() {
  rope_tensor_t view;
  std::memset(&view, 0x5A, sizeof view);
  return view;
}

}  // namespace

TEST_CASE("narrow keeps strides and marks them", "[views]") {
  Workspace workspace(1);
  const rope_tensor_t src = workspace.tensor(ROPE_DTYPE_F16, {3, 5, 7}, Placement().gap(1, 2).reversed(0));
  for (int32_t axis = 0; axis < 3; ++axis) {
    for (int64_t start = 0; start <= src.shape[axis]; ++start) {
      for (int64_t length = 0; start + length <= src.shape[axis]; ++length) {
        const rope_tensor_t view = narrow(src, axis, start, length);
        REQUIRE(view.ndim == 3);
        REQUIRE(view.dtype == ROPE_DTYPE_F16);
        REQUIRE((view.flags & ROPE_TENSOR_STRIDED) != 0);
        for (int32_t other = 0; other < 3; ++other) {
          REQUIRE(view.shape[other] == (other == axis ? length : src.shape[other]));
          REQUIRE(view.stride[other] == src.stride[other]);
        }
        Index first = {};
        first[axis] = start;
        if (length > 0) REQUIRE(element_at(view, {}) == element_at(src, first));
      }
    }
  }
}

TEST_CASE("select drops the axis", "[views]") {
  Workspace workspace(2);
  const rope_tensor_t src = workspace.tensor(ROPE_DTYPE_F32, {3, 5, 7, 2}, Placement().gap(3, 1));
  for (int32_t axis = 0; axis < 4; ++axis) {
    for (int64_t at = 0; at < src.shape[axis]; ++at) {
      const rope_tensor_t view = select(src, axis, at);
      REQUIRE(view.ndim == 3);
      REQUIRE((view.flags & ROPE_TENSOR_STRIDED) != 0);
      for (int32_t other = 0; other < 3; ++other) {
        REQUIRE(view.shape[other] == src.shape[other + (other >= axis)]);
        REQUIRE(view.stride[other] == src.stride[other + (other >= axis)]);
      }
      CHECK(view.shape[3] == 0);
      CHECK(view.stride[3] == 0);
      Index first = {};
      first[axis] = at;
      REQUIRE(element_at(view, {}) == element_at(src, first));
    }
  }
}

TEST_CASE("narrow and select serve every dtype", "[views]") {
  for (rope_dtype_t dtype = ROPE_DTYPE_F32; dtype <= ROPE_DTYPE_F4_E2M1X2; ++dtype) {
    INFO("dtype " << dtype);
    Workspace workspace(4);
    const rope_tensor_t src = workspace.tensor(dtype, {3, 5});
    CHECK(element_at(narrow(src, 0, 1, 2), {1, 3}) == element_at(src, {2, 3}));
    CHECK(element_at(select(src, 1, 4), {2}) == element_at(src, {2, 4}));
  }
}

TEST_CASE("strides that a compact tensor left zero are written out in its views", "[views]") {
  Workspace workspace(3);
  const rope_tensor_t src = workspace.tensor(ROPE_DTYPE_I64, {3, 5, 7}, Placement().implicit());
  const rope_tensor_t narrowed = narrow(src, 1, 2, 2);
  CHECK(narrowed.stride[0] == 35);
  CHECK(narrowed.stride[1] == 7);
  CHECK(narrowed.stride[2] == 1);
  CHECK(element_at(narrowed, {}) == element_at(src, {0, 2, 0}));
  const rope_tensor_t selected = select(src, 0, 2);
  CHECK(selected.stride[0] == 7);
  CHECK(selected.stride[1] == 1);
  CHECK(element_at(selected, {}) == element_at(src, {2, 0, 0}));
}

TEST_CASE("views of expanded and of empty tensors", "[views]") {
  Workspace workspace(4);
  const rope_tensor_t expanded = workspace.tensor(ROPE_DTYPE_F32, {4, 3}, Placement().expanded(0).expanded(1));
  CHECK(narrow(expanded, 0, 2, 2).data == expanded.data);
  CHECK(narrow(expanded, 0, 2, 2).stride[0] == 0);
  CHECK(select(expanded, 1, 2).data == expanded.data);
  rope_tensor_t empty = {};
  empty.dtype = ROPE_DTYPE_F32;
  empty.ndim = 2;
  empty.shape[1] = 8;
  const rope_tensor_t part = narrow(empty, 1, 3, 4);
  CHECK(part.shape[0] == 0);
  CHECK(part.shape[1] == 4);
}

TEST_CASE("a view may replace its source", "[views]") {
  Workspace workspace(5);
  const rope_tensor_t src = workspace.tensor(ROPE_DTYPE_F32, {4, 6});
  rope_tensor_t view = src;
  REQUIRE(rope_tensor_narrow(&view, 1, 2, 3, &view) == ROPE_STATUS_SUCCESS);
  CHECK(view.shape[1] == 3);
  CHECK(element_at(view, {}) == element_at(src, {0, 2}));
  REQUIRE(rope_tensor_select(&view, 0, 3, &view) == ROPE_STATUS_SUCCESS);
  CHECK(view.ndim == 1);
  CHECK(view.shape[0] == 3);
  CHECK(element_at(view, {}) == element_at(src, {3, 2}));
}

TEST_CASE("views that do not exist are refused", "[views]") {
  Workspace workspace(6);
  const rope_tensor_t src = workspace.tensor(ROPE_DTYPE_F32, {4, 6});
  const rope_tensor_t vector = workspace.tensor(ROPE_DTYPE_F32, {4});
  const rope_tensor_t absent = {};
  rope_tensor_t negative = src, wide = src, unknown = src, flagged = src;
  negative.shape[0] = -1;
  wide.ndim = 5;
  unknown.dtype = 77;
  flagged.flags = 0x8000;
  constexpr int64_t huge = INT64_MAX;

  struct Range {
    const rope_tensor_t *src;
    int32_t dim;
    int64_t start, length;
  };
  const Range narrows[] = {{nullptr, 0, 0, 1},  {&absent, 0, 0, 0}, {&negative, 1, 0, 1},  {&wide, 0, 0, 1},
                           {&unknown, 0, 0, 1}, {&src, 2, 0, 1},    {&src, -1, 0, 1},      {&src, 0, -1, 1},
                           {&src, 0, 0, -1},    {&src, 0, 0, 5},    {&src, 0, 4, 1},       {&src, 0, 5, 0},
                           {&src, 1, 3, huge},  {&src, 1, huge, 3}, {&src, 1, huge, huge}, {&src, 1, -huge, huge}};
  for (const Range &range : narrows) {
    rope_tensor_t view = garbage();
    INFO("dim " << range.dim << ", start " << range.start << ", length " << range.length);
    CHECK(rope_tensor_narrow(range.src, range.dim, range.start, range.length, &view) == ROPE_STATUS_INVALID_ARGUMENT);
    CHECK(std::string(rope_last_error()).find("rope_tensor_narrow") != std::string::npos);
    CHECK(untouched(view));
  }
  const Range selects[] = {{nullptr, 0, 0, 0}, {&absent, 0, 0, 0}, {&vector, 0, 0, 0},
                           {&src, 2, 0, 0},    {&src, -1, 0, 0},   {&src, 0, 4, 0},
                           {&src, 0, -1, 0},   {&src, 0, huge, 0}, {&negative, 1, 0, 0}};
  for (const Range &range : selects) {
    rope_tensor_t view = garbage();
    INFO("dim " << range.dim << ", index " << range.start);
    CHECK(rope_tensor_select(range.src, range.dim, range.start, &view) == ROPE_STATUS_INVALID_ARGUMENT);
    CHECK(std::string(rope_last_error()).find("rope_tensor_select") != std::string::npos);
    CHECK(untouched(view));
  }
  CHECK(rope_tensor_narrow(&src, 0, 0, 1, nullptr) == ROPE_STATUS_INVALID_ARGUMENT);
  CHECK(std::string(rope_last_error()).find("view_out") != std::string::npos);
  CHECK(rope_tensor_select(&src, 0, 0, nullptr) == ROPE_STATUS_INVALID_ARGUMENT);
  CHECK(std::string(rope_last_error()).find("view_out") != std::string::npos);
  rope_tensor_t view = garbage();
  (void)rope_tensor_narrow(&src, 2, 0, 1, &view);
  CHECK(std::string(rope_last_error()) == "rope_tensor_narrow: dim is 2: it must be 0 to 1");
  (void)rope_tensor_narrow(&src, 1, 7, 0, &view);
  CHECK(std::string(rope_last_error()) == "rope_tensor_narrow: start is 7: it must be 0 to 6");
  (void)rope_tensor_narrow(&src, 1, 2, 5, &view);
  CHECK(std::string(rope_last_error()) == "rope_tensor_narrow: length is 5: from start 2 it must be 0 to 4");
  (void)rope_tensor_select(&src, 1, 6, &view);
  CHECK(std::string(rope_last_error()) ==
        "rope_tensor_select: index is 6: it must be at least 0 and below src.shape[1], 6");
  (void)rope_tensor_select(&vector, 0, 0, &view);
  CHECK(std::string(rope_last_error()) == "rope_tensor_select: src.ndim is 1: no axis would be left");
  CHECK(untouched(view));
  CHECK(rope_tensor_narrow(&flagged, 0, 0, 1, &view) != ROPE_STATUS_SUCCESS);
  CHECK(untouched(view));
}
