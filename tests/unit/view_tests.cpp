// SPDX-License-Identifier: Apache-2.0
// view_tests.cpp - conditions for a valid view, parts of views, and overlaps of views, by brute force
#include <algorithm>
#include <bitset>
#include <catch2/catch_test_macros.hpp>
#include <cstdint>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "core/problem/overlap.hpp"
#include "support/random.hpp"
#include "unit/fake_tensors.hpp"

namespace {

constexpr uintptr_t kBase = uintptr_t{1} << 40;

rope_status_t read(const rope_tensor_t &tensor, rope::View *view) {
  return rope::read_view("some_function", "some_field", tensor, view);
}

rope::View view_of(const rope_tensor_t &tensor) {
  rope::View view;
  const rope_status_t status = read(tensor, &view);
  INFO(rope::last_error());
  REQUIRE(status == ROPE_STATUS_SUCCESS);
  return view;
}

rope::View view_of(const std::vector<int64_t> &shape, const std::vector<int64_t> &stride,
                   rope_dtype_t dtype = ROPE_DTYPE_F32, uintptr_t address = kBase) {
  return view_of(fake_tensor(address, dtype, shape, stride));
}

rope::View narrowed(rope::View view, int axis, int64_t start, int64_t length) {
  view.narrow(axis, start, length);
  return view;
}

// Whether the tensor is refused with a message that names the function and the field.
bool refuses(const rope_tensor_t &tensor, rope_status_t expected = ROPE_STATUS_INVALID_ARGUMENT) {
  rope::View view;
  rope::fail(ROPE_STATUS_SUCCESS, "%s", "");
  const rope_status_t status = read(tensor, &view);
  const std::string message = rope::last_error();
  UNSCOPED_INFO("status " << status << ": " << message);
  return status == expected && message.rfind("some_function: some_field", 0) == 0;
}

bool accepts(const rope_tensor_t &tensor) {
  rope::View view;
  const rope_status_t status = read(tensor, &view);
  if (status != ROPE_STATUS_SUCCESS) UNSCOPED_INFO(rope::last_error());
  return status == ROPE_STATUS_SUCCESS;
}

std::vector<int64_t> shape_of(const rope::View &view) {
  return {view.shape, view.shape + view.ndim};
}

// The byte offsets of the elements from the view's data, in index order.
std::vector<int64_t> element_offsets(const rope::View &view) {
  std::vector<int64_t> offsets;
  for_each_index(shape_of(view), [&](const int64_t *index) {
    int64_t offset = 0;
    for (int axis = 0; axis < view.ndim; ++axis) offset += index[axis] * view.stride[axis];
    offsets.push_back(offset * rope::dtype_size(view.dtype));
  });
  return offsets;
}

bool visits_twice(const rope::View &view) {
  std::vector<int64_t> offsets = element_offsets(view);
  std::sort(offsets.begin(), offsets.end());
  return std::adjacent_find(offsets.begin(), offsets.end()) != offsets.end();
}

bool accepts_as_output(const rope::View &view) {
  const rope_status_t status = rope::check_output_strides("some_function", "some_field", view);
  if (status == ROPE_STATUS_SUCCESS) return true;
  REQUIRE(status == ROPE_STATUS_INVALID_ARGUMENT);
  REQUIRE(std::string(rope::last_error()).rfind("some_function: some_field", 0) == 0);
  return false;
}

// All bytes of both views lie within kReach of kBase.
constexpr int64_t kReach = 2048;
using Bytes = std::bitset<2 * kReach>;

Bytes bytes_of(const rope::View &view) {
  Bytes bytes;
  const int64_t start = view.data - at_address(kBase);
  for (const int64_t offset : element_offsets(view)) {
    for (int64_t byte = 0; byte < rope::dtype_size(view.dtype); ++byte) {
      bytes.set(static_cast<size_t>(start + offset + byte + kReach));
    }
  }
  return bytes;
}

rope::View random_view(Random *random, int64_t max_stride, int64_t stride_unit, int64_t max_offset) {
  constexpr rope_dtype_t kDtypes[] = {ROPE_DTYPE_F16, ROPE_DTYPE_BF16, ROPE_DTYPE_F32,
                                      ROPE_DTYPE_I32, ROPE_DTYPE_I64,  ROPE_DTYPE_F64};
  const rope_dtype_t dtype = kDtypes[random->below(6)];
  const int64_t size = rope::dtype_size(dtype);
  const auto ndim = static_cast<size_t>(1 + random->below(4));
  std::vector<int64_t> shape(ndim), stride(ndim);
  for (size_t axis = 0; axis < ndim; ++axis) {
    shape[axis] = 1 + random->below(4);
    stride[axis] = (random->below(2 * max_stride + 1) - max_stride) * stride_unit;
  }
  const int64_t offset = (random->below(2 * max_offset + 1) - max_offset) / size * size;
  return view_of(shape, stride, dtype, kBase + static_cast<uintptr_t>(offset));
}

std::string describe(const rope::View &view) {
  std::string text = rope::dtype_name(view.dtype);
  text += " at " + std::to_string(view.data - at_address(kBase));
  for (int axis = 0; axis < view.ndim; ++axis) {
    text += ", " + std::to_string(view.shape[axis]) + " by " + std::to_string(view.stride[axis]);
  }
  return text;
}

}  // namespace

TEST_CASE("an absent tensor is all zero", "[views]") {
  const auto refuses_as_present = [](const rope_tensor_t &tensor) {
    return !rope::is_zeroed(tensor) && refuses(tensor);
  };
  CHECK(rope::is_zeroed(rope_tensor_t{}));
  rope_tensor_t forgotten = {};
  forgotten.data = at_address(kBase);
  CHECK(refuses_as_present(forgotten));
  forgotten = {};
  forgotten.dtype = ROPE_DTYPE_F32;
  CHECK(refuses_as_present(forgotten));
  forgotten = {};
  forgotten.ndim = 1;
  CHECK(refuses_as_present(forgotten));
  forgotten = {};
  forgotten.flags = ROPE_TENSOR_STRIDED;
  CHECK(refuses_as_present(forgotten));
  for (int axis = 0; axis < 4; ++axis) {
    forgotten = {};
    forgotten.shape[axis] = 1;
    CHECK(refuses_as_present(forgotten));
    forgotten = {};
    forgotten.stride[axis] = -1;
    CHECK(refuses_as_present(forgotten));
  }
}

TEST_CASE("strides left zero are compact", "[views]") {
  rope_tensor_t tensor = compact_tensor(kBase, ROPE_DTYPE_F16, {2, 3, 5, 7});
  tensor.flags = 0;
  for (int64_t &stride : tensor.stride) stride = 0;
  const rope::View view = view_of(tensor);
  const int64_t compact[] = {105, 35, 7, 1};
  for (int axis = 0; axis < 4; ++axis) CHECK(view.stride[axis] == compact[axis]);
  CHECK(view.data == tensor.data);
  CHECK(view.dtype == ROPE_DTYPE_F16);
  CHECK(view.ndim == 4);

  tensor.flags = ROPE_TENSOR_STRIDED;
  for (const int64_t stride : view_of(tensor).stride) CHECK(stride == 0);

  tensor.flags = 0;
  tensor.stride[2] = 9;
  const rope::View said = view_of(tensor);
  CHECK(said.stride[2] == 9);
  CHECK(said.stride[3] == 0);

  // Axes beyond ndim are not read.
  tensor = compact_tensor(kBase, ROPE_DTYPE_F16, {4, 6});
  tensor.flags = 0;
  tensor.stride[0] = tensor.stride[1] = 0;
  tensor.stride[3] = 99;
  tensor.shape[3] = -5;
  CHECK(view_of(tensor).stride[0] == 6);
  CHECK(view_of(tensor).stride[1] == 1);
}

TEST_CASE("a malformed tensor is refused", "[views]") {
  const rope_tensor_t good = compact_tensor(kBase, ROPE_DTYPE_F32, {3, 4});
  REQUIRE(accepts(good));
  rope_tensor_t bad = good;
  bad.ndim = 5;
  CHECK(refuses(bad));
  bad.ndim = 65535;
  CHECK(refuses(bad));
  for (const rope_dtype_t dtype : {0, -1, 11, 100}) {
    bad = good;
    bad.dtype = dtype;
    CHECK(refuses(bad));
  }
  bad = good;
  bad.dtype = ROPE_DTYPE_F4_E2M1X2;
  CHECK(refuses(bad, ROPE_STATUS_NOT_SUPPORTED));
  for (const uint16_t flags : {0x2, 0x3, 0x8000}) {
    bad = good;
    bad.flags = flags;
    CHECK(refuses(bad, ROPE_STATUS_NOT_SUPPORTED));
  }
  for (int axis = 0; axis < 2; ++axis) {
    bad = good;
    bad.shape[axis] = -1;
    CHECK(refuses(bad));
    bad.shape[axis] = INT64_MIN;
    CHECK(refuses(bad));
  }
  bad = good;
  bad.data = nullptr;
  CHECK(refuses(bad));
  for (int axis = 0; axis < 2; ++axis) {
    rope_tensor_t empty = bad;
    empty.shape[axis] = 0;
    CHECK(accepts(empty));
    CHECK(view_of(empty).is_empty());
  }
}

TEST_CASE("data is aligned to the element", "[views]") {
  const rope_dtype_t dtypes[] = {ROPE_DTYPE_F16, ROPE_DTYPE_BF16, ROPE_DTYPE_F32,
                                 ROPE_DTYPE_F64, ROPE_DTYPE_I32,  ROPE_DTYPE_I64};
  const uintptr_t sizes[] = {2, 2, 4, 8, 4, 8};
  for (int i = 0; i < 6; ++i) {
    CHECK(rope::dtype_size(dtypes[i]) == static_cast<int64_t>(sizes[i]));
    for (uintptr_t offset = 0; offset < 16; ++offset) {
      const rope_tensor_t tensor = compact_tensor(kBase + offset, dtypes[i], {3});
      INFO(rope::dtype_name(dtypes[i]) << " + " << offset);
      if (offset % sizes[i] == 0) {
        CHECK(accepts(tensor));
      } else {
        CHECK(refuses(tensor));
      }
    }
  }
}

TEST_CASE("sizes that overflow are refused", "[views]") {
  constexpr int64_t huge = INT64_MAX, half = int64_t{1} << 62;
  rope_tensor_t compact = compact_tensor(kBase, ROPE_DTYPE_F16, {1, 1, 1});
  compact.flags = 0;
  compact.stride[0] = compact.stride[1] = compact.stride[2] = 0;
  compact.shape[0] = compact.shape[1] = compact.shape[2] = int64_t{1} << 32;
  CHECK(refuses(compact));
  compact.shape[0] = 1;
  CHECK(refuses(compact));
  compact.shape[1] = 1 << 20;
  CHECK(accepts(compact));

  const uintptr_t middle = uintptr_t{1} << 63;
  for (const std::vector<int64_t> &strides : {std::vector<int64_t>{huge, 1},
                                              {1, huge},
                                              {INT64_MIN, 1},
                                              {half, half},
                                              {half, -half},
                                              {-half, -half},
                                              {int64_t{1} << 60, 1}}) {
    CHECK(refuses(fake_tensor(middle, ROPE_DTYPE_F16, {3, 3}, strides)));
  }
  // The lowest and the highest element may be at most 2^60 bytes apart. The number of elements is limited too,
  // including repeated ones.
  CHECK(accepts(fake_tensor(middle, ROPE_DTYPE_F16, {2}, {int64_t{1} << 59})));
  CHECK(accepts(fake_tensor(middle, ROPE_DTYPE_F16, {2}, {-(int64_t{1} << 59)})));
  CHECK(refuses(fake_tensor(middle, ROPE_DTYPE_F16, {2}, {(int64_t{1} << 59) + 1})));
  CHECK(refuses(fake_tensor(middle, ROPE_DTYPE_F64, {2}, {int64_t{1} << 58})));
  CHECK(accepts(fake_tensor(middle, ROPE_DTYPE_F16, {2, 2}, {int64_t{1} << 58, -(int64_t{1} << 58)})));
  CHECK(refuses(fake_tensor(middle, ROPE_DTYPE_F16, {2, 2}, {int64_t{1} << 58, -(int64_t{1} << 58) - 1})));
  // The extents of two axes may fit, but their sum overflows.
  CHECK(refuses(fake_tensor(middle, ROPE_DTYPE_F64, {2, 2}, {int64_t{1} << 56, (int64_t{1} << 60) - 1})));
  CHECK(std::string(rope::last_error()).find(" spans more than 2^60 bytes: ") != std::string::npos);
  CHECK(accepts(fake_tensor(middle, ROPE_DTYPE_F16, {int64_t{1} << 30, int64_t{1} << 30}, {0, 0})));
  CHECK(refuses(fake_tensor(middle, ROPE_DTYPE_F16, {int64_t{1} << 30, int64_t{1} << 31}, {0, 0})));
  CHECK(refuses(fake_tensor(middle, ROPE_DTYPE_F16, {int64_t{1} << 40, int64_t{1} << 40}, {0, 0})));
}

TEST_CASE("strides that leave the address space are refused", "[views]") {
  // 100 elements of 4 bytes with a negative stride need 396 bytes below data; with a positive one 400 bytes above it.
  CHECK(accepts(fake_tensor(396, ROPE_DTYPE_F32, {100}, {-1})));
  CHECK(refuses(fake_tensor(392, ROPE_DTYPE_F32, {100}, {-1})));
  CHECK(accepts(fake_tensor(UINTPTR_MAX - 403, ROPE_DTYPE_F32, {100}, {1})));
  CHECK(refuses(fake_tensor(UINTPTR_MAX - 395, ROPE_DTYPE_F32, {100}, {1})));
  CHECK(accepts(fake_tensor(4096, ROPE_DTYPE_F32, {4, 5}, {-256, 1})));
  CHECK(refuses(fake_tensor(2048, ROPE_DTYPE_F32, {4, 5}, {-256, 1})));
}

TEST_CASE("a view has the addresses of its bytes", "[views]") {
  const rope::View view = view_of({3, 4, 5}, {-100, 7, 30});
  CHECK(view.begin == kBase - 200 * 4);
  CHECK(view.end == kBase + (3 * 7 + 4 * 30 + 1) * 4);
  const rope::View empty = view_of({3, 0, 5}, {-100, 7, 30});
  CHECK(empty.is_empty());
  CHECK(empty.begin == 0);
  CHECK(empty.end == 0);
}

TEST_CASE("a part of a view begins at the element of that index", "[views]") {
  const std::vector<int64_t> stride = {-100, 7, 30};
  const rope::View view = view_of({3, 4, 5}, stride);
  for (int axis = 0; axis < 3; ++axis) {
    for (int64_t start = 0; start <= view.shape[axis]; ++start) {
      for (int64_t length = 0; length <= view.shape[axis] - start; ++length) {
        const rope::View part = narrowed(view, axis, start, length);
        // An empty part has no first element: its pointer does not move.
        const int64_t offset = length > 0 ? start * view.stride[axis] * 4 : 0;
        REQUIRE(static_cast<void *>(part.data) == static_cast<void *>(view.data + offset));
        for (int other = 0; other < 3; ++other) {
          REQUIRE(part.shape[other] == (other == axis ? length : view.shape[other]));
          REQUIRE(part.stride[other] == view.stride[other]);
        }
        const rope::View read = view_of(shape_of(part), stride, view.dtype, kBase + static_cast<uintptr_t>(offset));
        REQUIRE(part.begin == read.begin);
        REQUIRE(part.end == read.end);
      }
    }
  }
  rope_tensor_t empty = compact_tensor(0, ROPE_DTYPE_F32, {0, 8});
  CHECK(narrowed(view_of(empty), 1, 3, 2).data == nullptr);
  CHECK(narrowed(view_of(empty), 1, 3, 2).shape[1] == 2);
  CHECK(narrowed(view_of(empty), 1, 3, 2).is_empty());
}

TEST_CASE("packed views of any size are told apart", "[views]") {
  // q and k of a packed [T, 12, 64], and k one channel lower, where it overlaps the last channel of q.
  constexpr int64_t tokens = 1 << 20;
  const rope::View q = view_of({tokens, 8, 64}, {768, 64, 1});
  CHECK_FALSE(rope::views_overlap(q, view_of({tokens, 4, 64}, {768, 64, 1}, ROPE_DTYPE_F32, kBase + 512 * 4)));
  CHECK(rope::views_overlap(q, view_of({tokens, 4, 64}, {768, 64, 1}, ROPE_DTYPE_F32, kBase + 511 * 4)));
  // only their last elements overlap
  CHECK(rope::views_overlap(
      q, view_of({tokens, 4, 64}, {768, 64, 1}, ROPE_DTYPE_F32, kBase + ((tokens - 1) * 768 + 7 * 64 + 63) * 4)));
}

TEST_CASE("the same view has the same elements in the same order", "[views]") {
  const rope::View view = view_of({3, 4}, {4, 1});
  CHECK(rope::is_same_view(view, view));
  CHECK_FALSE(rope::is_same_view(view, view_of({3, 4}, {4, 1}, ROPE_DTYPE_F32, kBase + 4)));
  CHECK_FALSE(rope::is_same_view(view, view_of({3, 4}, {4, 1}, ROPE_DTYPE_I32)));
  CHECK_FALSE(rope::is_same_view(view, view_of({3, 4}, {5, 1})));
  CHECK_FALSE(rope::is_same_view(view, view_of({3, 4}, {4, -1})));
  CHECK_FALSE(rope::is_same_view(view, view_of({3, 3}, {4, 1})));
  CHECK_FALSE(rope::is_same_view(view, view_of({4, 3}, {1, 4})));
  CHECK_FALSE(rope::is_same_view(view_of({12}, {1}), view));
  // The stride of an axis of length 1 is irrelevant.
  CHECK(rope::is_same_view(view_of({1, 4}, {4, 1}), view_of({1, 4}, {99, 1})));
  CHECK_FALSE(rope::is_same_view(view_of({2, 4}, {4, 1}), view_of({2, 4}, {99, 1})));
}

TEST_CASE("strides that lead nowhere may be any number", "[views]") {
  constexpr int64_t max = INT64_MAX, min = INT64_MIN;
  for (const int64_t wild : {max, min, min + 1, max / 2}) {
    const rope::View single = view_of({1, 4}, {wild, 1}), plain = view_of({1, 4}, {4, 1});
    CHECK(rope::is_same_view(single, plain));
    CHECK(rope::views_overlap(single, plain));
    CHECK(rope::views_overlap(plain, single));
    CHECK_FALSE(rope::views_overlap(single, view_of({1, 4}, {min, 1}, ROPE_DTYPE_F32, kBase + 16)));
    CHECK(accepts_as_output(single));
    CHECK(narrowed(single, 1, 2, 2).data == single.data + 8);
    const rope::View empty = view_of({0, 4}, {1, wild});
    CHECK(accepts_as_output(empty));
    CHECK_FALSE(rope::views_overlap(empty, plain));
    CHECK(narrowed(empty, 1, 3, 1).shape[1] == 1);
  }
}

TEST_CASE("an output visits no element twice", "[views]") {
  CHECK(accepts_as_output(view_of({2, 3}, {3, 1})));
  CHECK(accepts_as_output(view_of({2, 3}, {3, 2})));
  CHECK(accepts_as_output(view_of({2, 3}, {1, 2})));
  CHECK(accepts_as_output(view_of({2, 3}, {-3, 2})));
  CHECK(accepts_as_output(view_of({6, 3}, {3, 5})));
  CHECK(accepts_as_output(view_of({5, 4}, {3, 5})));
  CHECK_FALSE(accepts_as_output(view_of({6, 4}, {3, 5})));
  CHECK_FALSE(accepts_as_output(view_of({2, 3}, {2, 1})));
  CHECK_FALSE(accepts_as_output(view_of({2, 3}, {1, 1})));
  CHECK_FALSE(accepts_as_output(view_of({2, 3}, {-2, 1})));
  CHECK_FALSE(accepts_as_output(view_of({2, 3}, {0, 1})));
  CHECK(accepts_as_output(view_of({1, 3}, {0, 1})));
  CHECK_FALSE(accepts_as_output(view_of({1, 3}, {0, 0})));
  CHECK(accepts_as_output(view_of({0, 3}, {0, 0})));
  CHECK(accepts_as_output(view_of({1, 1, 1, 1}, {0, 0, 0, 0})));
  CHECK(accepts_as_output(view_of({2, 2, 2, 2}, {8, 4, 2, 1})));
  CHECK_FALSE(accepts_as_output(view_of({2, 2, 2, 2}, {7, 4, 2, 1})));
  CHECK(accepts_as_output(view_of({1 << 20, 64, 128}, {64 * 128, 128, 1})));
  CHECK_FALSE(accepts_as_output(view_of({1 << 20, 64, 128}, {64 * 128 - 1, 128, 1})));
}

TEST_CASE("outputs against brute force", "[views]") {
  Random random(1);
  int twice = 0, once = 0, wrong = 0;
  std::string first_wrong;
  for (int i = 0; i < 40000; ++i) {
    const rope::View view = random_view(&random, i % 2 == 0 ? 8 : 40, 1, 0);
    const bool expected = !visits_twice(view);
    ++(expected ? once : twice);
    if (accepts_as_output(view) != expected && wrong++ == 0) {
      first_wrong = (expected ? "visited once: " : "visited twice: ") + describe(view);
    }
  }
  INFO(first_wrong);
  CHECK(wrong == 0);
  CHECK(once > 5000);
  CHECK(twice > 5000);
}

TEST_CASE("overlaps against brute force", "[views]") {
  // Strides of one unit nearly always overlap; strides of two and three can interleave without overlap.
  for (const int64_t unit : {1, 2, 3}) {
    Random random(static_cast<uint64_t>(unit));
    int meeting = 0, apart = 0, wrong = 0;
    std::string first_wrong;
    for (int i = 0; i < 30000; ++i) {
      const int64_t max_stride = 8 / unit, max_offset = i % 2 == 0 ? 100 : 500;
      const rope::View a = random_view(&random, max_stride, unit, max_offset);
      const rope::View b = random_view(&random, max_stride, unit, max_offset);
      const bool expected = (bytes_of(a) & bytes_of(b)).any();
      ++(expected ? meeting : apart);
      if (rope::views_overlap(a, b) != expected && wrong++ == 0) {
        first_wrong = (expected ? "meeting: " : "apart: ") + describe(a) + " and " + describe(b);
      }
    }
    INFO(first_wrong);
    CHECK(wrong == 0);
    CHECK(meeting > 3000);
    CHECK(apart > 3000);
  }
}

namespace {

struct Axes {
  std::vector<int64_t> shape, stride;
};

// Compares element by element, for views that are too large for Bytes.
bool share_a_byte(const rope::View &a, const rope::View &b) {
  const auto low = std::min(a.begin, b.begin), high = std::max(a.end, b.end);
  std::vector<char> is_of_a(high - low);
  const auto visit = [&](const rope::View &view, const auto &visit_byte) {
    const auto start = reinterpret_cast<uintptr_t>(view.data) - low;
    for (const int64_t offset : element_offsets(view)) {
      for (int64_t byte = 0; byte < rope::dtype_size(view.dtype); ++byte) {
        visit_byte(is_of_a[start + static_cast<uintptr_t>(offset + byte)]);
      }
    }
  };
  bool is_shared = false;
  visit(a, [](char &mark) { mark = 1; });
  visit(b, [&](char &mark) { is_shared = is_shared || mark != 0; });
  return is_shared;
}

struct Judged {
  int meeting = 0, apart = 0, missed = 0, refused_wrongly = 0;
  std::string first_wrong;

  void judge(bool found, bool expected, const std::string &what) {
    ++(expected ? meeting : apart);
    if (found == expected) return;
    ++(expected ? missed : refused_wrongly);
    if (first_wrong.empty()) first_wrong = what;
  }
};

int64_t any_stride(Random *random, int64_t max) {
  const int64_t stride = 1 + random->below(max);
  return random->below(4) == 0 ? -stride : stride;
}

// Two views in overlapping ranges, with one dtype or two; draw() chooses their axes.
template <class Draw>
Judged judge_pairs(uint64_t seed, int pairs, const Draw &draw) {
  constexpr rope_dtype_t kDtypes[] = {ROPE_DTYPE_F16, ROPE_DTYPE_F32, ROPE_DTYPE_F64};
  Random random(seed);
  Judged result;
  for (int i = 0; i < pairs; ++i) {
    Axes axes[2];
    draw(&random, axes);
    const rope_dtype_t dtype = kDtypes[random.below(3)];
    const rope_dtype_t other = random.below(3) == 0 ? kDtypes[random.below(3)] : dtype;
    const rope::View a = view_of(axes[0].shape, axes[0].stride, dtype);
    const rope::View probe = view_of(axes[1].shape, axes[1].stride, other);
    const int64_t size = rope::dtype_size(other);
    const auto room = static_cast<int64_t>(a.end - a.begin + (probe.end - probe.begin));
    const int64_t start = static_cast<int64_t>(a.begin - kBase) - static_cast<int64_t>(probe.end - kBase);
    const int64_t offset = (start + random.below(room)) / size * size;
    const rope::View b = view_of(axes[1].shape, axes[1].stride, other, kBase + static_cast<uintptr_t>(offset));
    const bool expected = share_a_byte(a, b);
    const std::string what = (expected ? "meeting: " : "apart: ") + describe(a) + " and " + describe(b);
    result.judge(rope::views_overlap(a, b), expected, what);
    result.judge(rope::views_overlap(b, a), expected, what + ", the other way round");
  }
  return result;
}

// For coprime a and b: the i from 0 to b - 1 with a * i = rest modulo b.
int64_t factor_that_leaves(int64_t rest, int64_t a, int64_t b) {
  __extension__ typedef __int128 Wide;
  Wide first = a % b, second = b, first_factor = 1, second_factor = 0;
  while (second != 0) {
    const Wide quotient = first / second, next = first - quotient * second;
    const Wide next_factor = first_factor - quotient * second_factor;
    first = second, second = next;
    first_factor = second_factor, second_factor = next_factor;
  }
  return static_cast<int64_t>(((first_factor % b * rest) % b + b) % b);
}

}  // namespace

TEST_CASE("an overlap of rows that follow each other by two strides is always found", "[views]") {
  const Judged rows = judge_pairs(1, 6000, [](Random *random, Axes(&axes)[2]) {
    for (Axes &view : axes) {
      const int64_t columns = 1 + random->below(6);
      view = {{2 + random->below(60), columns}, {any_stride(random, 180), random->below(2) == 0 ? 1 : -1}};
    }
  });
  INFO(rows.first_wrong);
  CHECK(rows.missed + rows.refused_wrongly == 0);
  CHECK(rows.meeting > 1000);
  CHECK(rows.apart > 1000);
  // Both views have the same two strides, which need not be those of rows.
  const Judged alike = judge_pairs(2, 6000, [](Random *random, Axes(&axes)[2]) {
    const int64_t first = any_stride(random, 180), second = any_stride(random, 40);
    for (Axes &view : axes) view = {{2 + random->below(50), 2 + random->below(10)}, {first, second}};
  });
  INFO(alike.first_wrong);
  CHECK(alike.missed + alike.refused_wrongly == 0);
  CHECK(alike.meeting > 1000);
  CHECK(alike.apart > 1000);
  // Heads of channels that are parts of rows, with equal strides in both views: these leave no gap.
  const Judged packed = judge_pairs(3, 3000, [](Random *random, Axes(&axes)[2]) {
    const int64_t channels = 2 + random->below(4);
    for (Axes &view : axes) {
      const int64_t heads = 1 + random->below(4), room = heads * channels + random->below(9);
      view = {{1 + random->below(3), 2 + random->below(7), heads, channels},
              {any_stride(random, 400), room, channels, 1}};
    }
  });
  INFO(packed.first_wrong);
  CHECK(packed.refused_wrongly == 0);
  CHECK(packed.missed == 0);
  CHECK(packed.meeting > 1000);
  CHECK(packed.apart > 500);
}

TEST_CASE("an overlap of two long axes is found at any size", "[views]") {
  Random random(4);
  Judged judged;
  for (int i = 0; i < 20000; ++i) {
    const int bits = 4 + static_cast<int>(random.below(38));
    const auto draw = [&] { return 1 + static_cast<int64_t>(random.bits() >> (64 - bits)); };
    const int64_t first = draw(), second = draw();
    if (std::gcd(first, second) != 1 || second == 1) continue;
    // Slightly more or fewer rows than one or two solutions need, and few columns.
    const int64_t first_count = 2 + draw(), second_count = 2 + draw();
    if (first_count > (int64_t{1} << 55) / first || second_count > (int64_t{1} << 55) / second) continue;
    const int64_t first_columns = 1 + random.below(3), second_columns = 1 + random.below(3);
    const int64_t room = first * first_count + second * second_count;
    const int64_t distance =
        static_cast<int64_t>(random.bits() % static_cast<uint64_t>(room)) - second * (second_count - 1);
    const uintptr_t middle = uintptr_t{1} << 62;
    const rope::View a = view_of({first_count, first_columns}, {first, 1}, ROPE_DTYPE_F32, middle);
    const rope::View b = view_of({second_count, second_columns}, {second, 1}, ROPE_DTYPE_F32,
                                 middle + static_cast<uintptr_t>(4 * distance));
    bool expected = false;
    for (int64_t between = distance - (first_columns - 1); between <= distance + second_columns - 1; ++between) {
      // The smallest n for which first * n = between + second * m has a non-negative m.
      int64_t n = factor_that_leaves((between % second + second) % second, first, second);
      if (first * n < between) n += ((between - first * n - 1) / first / second + 1) * second;
      expected = expected || (n < first_count && (first * n - between) / second < second_count);
    }
    judged.judge(rope::views_overlap(a, b), expected, describe(a) + " and " + describe(b));
  }
  INFO(judged.first_wrong);
  CHECK(judged.missed + judged.refused_wrongly == 0);
  CHECK(judged.meeting > 1000);
  CHECK(judged.apart > 1000);
}

TEST_CASE("what more strides than two do not hide", "[views]") {
  constexpr int64_t first = 1000003000, second = 998244353, third = 700000001;
  struct Planted {
    const char *why;
    Axes a;
    std::vector<int64_t> at_a;
    Axes b;
    std::vector<int64_t> at_b;
  };
  const Planted planted[] = {
      {"columns of two axes without a gap",
       {{3000, 4000, 2}, {first, 2, 1}},
       {2950, 3111, 1},
       {{3000}, {second}},
       {2800}},
      {"every other column", {{3000, 4000}, {2 * first, 2}}, {2950, 3111}, {{3000}, {2 * second}}, {2800}},
      {"a stride of few values", {{1500, 100000}, {third, first}}, {1499, 77777}, {{100000}, {second}}, {99}},
  };
  for (const Planted &pair : planted) {
    INFO(pair.why);
    int64_t distance = 0;
    for (size_t axis = 0; axis < pair.at_a.size(); ++axis) distance += pair.at_a[axis] * pair.a.stride[axis];
    for (size_t axis = 0; axis < pair.at_b.size(); ++axis) distance -= pair.at_b[axis] * pair.b.stride[axis];
    const uintptr_t middle = uintptr_t{1} << 62;
    const rope::View a = view_of(pair.a.shape, pair.a.stride, ROPE_DTYPE_F32, middle);
    const rope::View b =
        view_of(pair.b.shape, pair.b.stride, ROPE_DTYPE_F32, middle + static_cast<uintptr_t>(4 * distance));
    CHECK(rope::views_overlap(a, b));
    CHECK(rope::views_overlap(b, a));
  }
}

TEST_CASE("an output of two axes that visits an element twice is refused at any size", "[views]") {
  Random random(5);
  Judged judged;
  for (int i = 0; i < 20000; ++i) {
    const int bits = 2 + static_cast<int>(random.below(25));
    const auto draw = [&] { return 1 + static_cast<int64_t>(random.bits() >> (64 - bits)); };
    const int64_t common = 1 + random.below(3), first = draw() * common, second = draw() * common;
    const int64_t divisor = std::gcd(first, second);
    const int64_t rows = 1 + draw(), columns = 1 + draw();
    // n * first = m * second has the solutions n = t * second / divisor, m = t * first / divisor.
    const bool expected = rows - 1 >= second / divisor && columns - 1 >= first / divisor;
    const rope::View view =
        view_of({rows, columns}, {first, random.below(2) == 0 ? second : -second}, ROPE_DTYPE_F16, uintptr_t{1} << 62);
    judged.judge(!accepts_as_output(view), expected, describe(view));
  }
  INFO(judged.first_wrong);
  CHECK(judged.missed + judged.refused_wrongly == 0);
  CHECK(judged.meeting > 1000);
  CHECK(judged.apart > 1000);
}

TEST_CASE("an output has room for its elements", "[views]") {
  const rope::View view = view_of({int64_t{1} << 20, int64_t{1} << 20, int64_t{1} << 18}, {1, 1, 1}, ROPE_DTYPE_F16);
  CHECK_FALSE(accepts_as_output(view));
  CHECK(
      std::string(rope::last_error()) ==
      "some_function: some_field visits an element twice: 288230376151711744 elements lie in the room of 2359294, and "
      "an output has one place for each element");
  CHECK(accepts_as_output(view_of({3, 3}, {1, 3})));
  CHECK_FALSE(accepts_as_output(view_of({2, 2}, {1, 1})));
  CHECK(std::string(rope::last_error()).find(": 4 elements lie in the room of 3, ") != std::string::npos);
}

TEST_CASE("overlaps of any axes against brute force", "[views]") {
  const Judged judged = judge_pairs(6, 6000, [](Random *random, Axes(&axes)[2]) {
    for (Axes &view : axes) {
      const int64_t ndim = 1 + random->below(4);
      view = {};
      for (int64_t axis = 0; axis < ndim; ++axis) {
        view.shape.push_back(1 + random->below(ndim > 2 ? 6 : 50));
        view.stride.push_back(any_stride(random, 200));
      }
    }
  });
  INFO(judged.first_wrong);
  INFO(judged.missed << " of " << judged.meeting << " missed");
  CHECK(judged.refused_wrongly == 0);
  CHECK(judged.missed * 200 < judged.meeting);
  CHECK(judged.apart > 1000);
}

TEST_CASE("views of real tensors overlap or not", "[views]") {
  // q, k and v of one packed tensor, and interleaved gate and up.
  const rope::View packed = view_of({16384, 96, 128}, {96 * 128, 128, 1}, ROPE_DTYPE_BF16);
  const rope::View q = narrowed(packed, 1, 0, 64), k = narrowed(packed, 1, 64, 16);
  const rope::View v = narrowed(packed, 1, 80, 16), shifted_k = narrowed(packed, 1, 63, 16);
  CHECK_FALSE(rope::views_overlap(q, k));
  CHECK_FALSE(rope::views_overlap(k, v));
  CHECK_FALSE(rope::views_overlap(q, v));
  CHECK(rope::views_overlap(q, shifted_k));
  CHECK(rope::views_overlap(shifted_k, k));
  CHECK_FALSE(rope::views_overlap(shifted_k, v));
  CHECK(rope::views_overlap(packed, q));
  const rope::View even = view_of({8192, 14336}, {2 * 14336, 2}, ROPE_DTYPE_F16);
  const rope::View odd = view_of({8192, 14336}, {2 * 14336, 2}, ROPE_DTYPE_F16, kBase + 2);
  CHECK_FALSE(rope::views_overlap(even, odd));
  CHECK(rope::views_overlap(even, narrowed(odd, 0, 0, 1)) == false);
  CHECK(rope::views_overlap(even, even));
  // Halves of heads, one of them reversed.
  const rope::View low = narrowed(packed, 2, 0, 64), high = narrowed(packed, 2, 64, 64);
  CHECK_FALSE(rope::views_overlap(low, high));
  const rope::View reversed = view_of({16384, 96, 128}, {96 * 128, 128, -1}, ROPE_DTYPE_BF16, kBase + 127 * 2);
  CHECK(rope::views_overlap(reversed, high));
  CHECK_FALSE(rope::views_overlap(narrowed(reversed, 2, 64, 64), high));
  // Views that are far apart, absent or empty.
  const rope::View here = view_of({1 << 20}, {1}),
                   far = view_of({1 << 20}, {1}, ROPE_DTYPE_F32, UINTPTR_MAX - (64 << 20) + 1);
  CHECK_FALSE(rope::views_overlap(here, far));
  CHECK_FALSE(rope::views_overlap(far, here));
  CHECK_FALSE(rope::views_overlap(here, rope::View{}));
  CHECK_FALSE(rope::views_overlap(rope::View{}, here));
  CHECK_FALSE(rope::views_overlap(here, view_of({0, 5}, {1, 1})));
  // Views that are adjacent to the byte.
  for (int64_t gap = -8; gap <= 8; gap += 2) {
    const rope::View words = view_of({4}, {1}, ROPE_DTYPE_F32),
                     halves = view_of({4}, {1}, ROPE_DTYPE_F16, kBase + 16 + static_cast<uintptr_t>(gap));
    CHECK(rope::views_overlap(words, halves) == (gap < 0));
    CHECK(rope::views_overlap(halves, words) == (gap < 0));
  }
}
