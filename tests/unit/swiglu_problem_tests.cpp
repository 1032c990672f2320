// SPDX-License-Identifier: Apache-2.0
// swiglu_problem_tests.cpp - axes of SwiGLU tensors are merged if they act as one, and visit the same elements
#include <algorithm>
#include <array>
#include <catch2/catch_test_macros.hpp>
#include <cmath>
#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "core/problem/swiglu_problem.hpp"
#include "support/random.hpp"
#include "support/swiglu_call.hpp"
#include "unit/fake_tensors.hpp"

namespace {

constexpr rope::GatingForm kPlain = {{1, INFINITY, 0, 1, true}};

// gate, up, grad_out, three outputs or one, row_scale, grad_row_scale, and gate's first index
constexpr int kTensors = 9;
constexpr int kRowScale = 6, kGradRowScale = 7, kRowIndex = 8;
using Strides = std::vector<int64_t>;
using Shape = std::vector<int64_t>;

uintptr_t region(int number) {
  return static_cast<uintptr_t>(number + 1) << 40;
}

struct Call {
  Shape shape;
  bool is_backward = false;
  bool has_grad_gate = true, has_grad_up = true, has_out = true;
  std::vector<Strides> in, out;
  size_t row_axes = 0;  // axes of row_scale; 0: absent
  Strides row_scale, grad_row_scale;
  bool has_grad_row_scale = false, has_num_rows = false;

  int num_inputs() const { return is_backward ? 3 : 2; }
  int num_outputs() const { return is_backward ? 3 : 1; }
  bool is_wanted(int output) const {
    return !is_backward || (output == 0 ? has_grad_gate : output == 1 ? has_grad_up : has_out);
  }

  rope_tensor_t input(int i) const { return fake_tensor(region(i), ROPE_DTYPE_F16, shape, in[i]); }
  rope_tensor_t output(int i) const {
    return is_wanted(i) ? fake_tensor(region(3 + i), ROPE_DTYPE_F16, shape, out[i]) : rope_tensor_t{};
  }

  rope_tensor_t of_rows(int number, const Strides &stride) const {
    if (row_axes == 0 || stride.empty()) return {};
    const auto rows = static_cast<std::ptrdiff_t>(row_axes);
    return fake_tensor(region(number), ROPE_DTYPE_F32, Shape(shape.begin(), shape.begin() + rows), stride);
  }

  swiglu_args_t args() const {
    swiglu_args_t args = {};
    args.struct_size = sizeof args;
    args.gate = input(0);
    args.up = input(1);
    if (is_backward) {
      args.grad_out = input(2);
      args.grad_gate = output(0);
      args.grad_up = output(1);
      args.out = output(2);
    } else {
      args.out = output(0);
    }
    args.row_scale = of_rows(kRowScale, row_scale);
    if (has_grad_row_scale) args.grad_row_scale = of_rows(kGradRowScale, grad_row_scale);
    if (has_num_rows) args.num_rows = compact_tensor(region(kRowIndex), ROPE_DTYPE_I64, {1});
    return args;
  }

  rope::SwigluProblem problem() const {
    rope::SwigluProblem result;
    const rope_status_t status =
        swiglu_call::make_problem("swiglu_forward", ROPE_DTYPE_F16, kPlain, args(), is_backward, &result);
    INFO(rope::last_error());
    REQUIRE(status == ROPE_STATUS_SUCCESS);
    return result;
  }
};

// Returns a call with compact tensors.
Call compact_call(const Shape &shape) {
  Call call;
  call.shape = shape;
  call.in = {3, compact_strides(shape)};
  call.out = {3, compact_strides(shape)};
  return call;
}

// One entry for each element: its offset in every tensor.
using Visits = std::vector<std::array<int64_t, kTensors>>;

Visits visits_of_call(const Call &call) {
  Visits visits;
  for_each_index(call.shape, [&](const int64_t *index) {
    std::array<int64_t, kTensors> at = {};
    for (size_t axis = 0; axis < call.shape.size(); ++axis) {
      for (int i = 0; i < call.num_inputs(); ++i) at[i] += index[axis] * call.in[i][axis];
      for (int i = 0; i < call.num_outputs(); ++i) {
        if (call.is_wanted(i)) at[3 + i] += index[axis] * call.out[i][axis];
      }
      if (axis < call.row_axes) {
        at[kRowScale] += index[axis] * call.row_scale[axis];
        if (call.has_grad_row_scale) at[kGradRowScale] += index[axis] * call.grad_row_scale[axis];
      }
    }
    if (call.has_num_rows) at[kRowIndex] = index[0];
    visits.push_back(at);
  });
  return visits;
}

Visits visits_of_problem(const Call &call, const rope::SwigluProblem &problem) {
  Visits visits;
  for_each_index(Shape(problem.shape, problem.shape + problem.ndim), [&](const int64_t *index) {
    std::array<int64_t, kTensors> at = {};
    for (int axis = 0; axis < problem.ndim; ++axis) {
      for (int i = 0; i < problem.num_inputs(); ++i) at[i] += index[axis] * problem.in_stride[i][axis];
      for (int i = 0; i < problem.num_outputs(); ++i) {
        if (call.is_wanted(i)) at[3 + i] += index[axis] * problem.out_stride[i][axis];
      }
      at[kRowScale] += index[axis] * problem.row_scale_stride[axis];
      at[kGradRowScale] += index[axis] * problem.grad_row_scale_stride[axis];
      at[kRowIndex] += index[axis] * problem.row_index_stride[axis];
    }
    visits.push_back(at);
  });
  return visits;
}

// Returns the merged problem after checks: it visits the elements of the call, with the smallest strides last, or in
// gate's order if rows are summed.
rope::SwigluProblem checked_problem(const Call &call) {
  const rope::SwigluProblem problem = call.problem();
  REQUIRE(problem.ndim >= 1);
  REQUIRE(problem.ndim <= 4);
  REQUIRE(problem.is_backward == call.is_backward);
  REQUIRE(problem.num_inputs() == call.num_inputs());
  REQUIRE(problem.num_outputs() == call.num_outputs());
  for (int i = 0; i < call.num_inputs(); ++i) REQUIRE(problem.in[i] == call.input(i).data);
  for (int i = 0; i < call.num_outputs(); ++i) REQUIRE(problem.out[i] == call.output(i).data);
  REQUIRE(problem.row_scale == call.args().row_scale.data);
  REQUIRE(problem.grad_row_scale == call.args().grad_row_scale.data);
  REQUIRE(problem.num_rows == call.args().num_rows.data);
  Visits expected = visits_of_call(call), actual = visits_of_problem(call, problem);
  REQUIRE(problem.num_elements() == static_cast<int64_t>(expected.size()));
  for (int axis = 0; axis < problem.ndim; ++axis) REQUIRE((problem.ndim == 1 || problem.shape[axis] > 1));
  if (call.has_grad_row_scale) {
    REQUIRE(actual == expected);
    int64_t rows = 1;
    for (size_t axis = 0; axis < call.row_axes; ++axis) rows *= call.shape[axis];
    REQUIRE(problem.num_summed_elements() * rows == problem.num_elements());
    REQUIRE(problem.num_row_axes <= problem.ndim);
    for (int axis = 0; axis < problem.ndim; ++axis) {
      const bool is_single = problem.num_elements() == 1;
      REQUIRE((is_single || (problem.grad_row_scale_stride[axis] != 0) == (axis < problem.num_row_axes)));
      REQUIRE((is_single || axis < problem.num_row_axes || problem.row_scale_stride[axis] == 0));
    }
    return problem;
  }
  std::sort(expected.begin(), expected.end());
  std::sort(actual.begin(), actual.end());
  REQUIRE(actual == expected);
  const int output = call.is_wanted(0) ? 0 : call.is_wanted(1) ? 1 : 2;
  for (int axis = 1; axis < problem.ndim; ++axis) {
    REQUIRE(std::abs(problem.out_stride[output][axis]) <= std::abs(problem.out_stride[output][axis - 1]));
  }
  return problem;
}

// Returns strides with axes slowest first in memory, with gaps of 0 to `max_gap` elements after each and any signs.
Strides strides_in_order(Random *random, const Shape &shape, const std::vector<size_t> &order, int64_t max_gap) {
  Strides stride(shape.size());
  int64_t next = 1;
  for (size_t i = order.size(); i-- > 0;) {
    const size_t axis = order[i];
    stride[axis] = max_gap > 0 && random->below(4) == 0 ? -next : next;
    if (shape[axis] == 1) stride[axis] = random->below(100);
    next = next * shape[axis] + (random->below(2) == 0 ? 0 : random->below(max_gap + 1));
  }
  return stride;
}

std::vector<size_t> random_order(Random *random, size_t count) {
  std::vector<size_t> order(count);
  for (size_t i = 0; i < count; ++i) order[i] = i;
  for (size_t i = count; i > 1; --i) {
    std::swap(order[i - 1], order[static_cast<size_t>(random->below(static_cast<int64_t>(i)))]);
  }
  return order;
}

}  // namespace

TEST_CASE("compact tensors of any rank are one axis", "[swiglu problem]") {
  for (const Shape &shape :
       {Shape{7}, {3, 7}, {2, 3, 7}, {2, 3, 5, 7}, {1, 3, 1, 7}, {3, 1}, {1, 1, 1, 5}, {4, 1, 1, 1}}) {
    for (const bool is_backward : {false, true}) {
      Call call = compact_call(shape);
      call.is_backward = is_backward;
      const rope::SwigluProblem problem = checked_problem(call);
      CHECK(problem.ndim == 1);
      CHECK(problem.out_stride[0][0] == 1);
    }
  }
}

TEST_CASE("a single element is one axis", "[swiglu problem]") {
  for (const Shape &shape : {Shape{1}, {1, 1}, {1, 1, 1, 1}}) {
    Call call = compact_call(shape);
    for (int64_t &stride : call.in[0]) stride = 99;
    const rope::SwigluProblem problem = checked_problem(call);
    CHECK(problem.ndim == 1);
    CHECK(problem.shape[0] == 1);
  }
}

TEST_CASE("a packed tensor keeps its rows", "[swiglu problem]") {
  // gate | up are rows of 2 * 7 elements: the leading axes of all tensors merge, the last one stays separate.
  Call call = compact_call({2, 3, 5, 7});
  for (int i = 0; i < 2; ++i) call.in[i] = {3 * 5 * 14, 5 * 14, 14, 1};
  const rope::SwigluProblem problem = checked_problem(call);
  CHECK(problem.ndim == 2);
  CHECK(problem.shape[0] == 30);
  CHECK(problem.shape[1] == 7);
  CHECK(problem.in_stride[0][0] == 14);
  CHECK(problem.in_stride[0][1] == 1);
  CHECK(problem.out_stride[0][0] == 7);
}

TEST_CASE("interleaved tensors are one axis of step 2", "[swiglu problem]") {
  Call call = compact_call({6, 8});
  for (int i = 0; i < 2; ++i) call.in[i] = {16, 2};
  const rope::SwigluProblem problem = checked_problem(call);
  CHECK(problem.ndim == 1);
  CHECK(problem.in_stride[0][0] == 2);
  CHECK(problem.out_stride[0][0] == 1);
}

TEST_CASE("transposed tensors are walked as they lie", "[swiglu problem]") {
  Call call = compact_call({6, 8});
  call.in = {3, {1, 6}};
  call.out = {2, {1, 6}};
  CHECK(checked_problem(call).ndim == 1);
  CHECK(checked_problem(call).out_stride[0][0] == 1);
  // Only the output is transposed; its order determines that of the axes.
  call.in = {3, {8, 1}};
  const rope::SwigluProblem problem = checked_problem(call);
  CHECK(problem.ndim == 2);
  CHECK(problem.shape[0] == 8);
  CHECK(problem.shape[1] == 6);
  CHECK(problem.out_stride[0][1] == 1);
  CHECK(problem.in_stride[0][1] == 8);
}

TEST_CASE("reversed tensors merge where all are reversed", "[swiglu problem]") {
  Call call = compact_call({6, 8});
  call.in = {3, {-8, -1}};
  call.out = {2, {-8, -1}};
  CHECK(checked_problem(call).ndim == 1);
  CHECK(checked_problem(call).out_stride[0][0] == -1);
  call.in[1] = {8, 1};
  CHECK(checked_problem(call).ndim == 1);
  CHECK(checked_problem(call).in_stride[1][0] == 1);
  call.in[1] = {-8, 1};
  CHECK(checked_problem(call).ndim == 2);
}

TEST_CASE("an expanded input stays apart", "[swiglu problem]") {
  Call call = compact_call({6, 8});
  call.in[1] = {0, 1};
  CHECK(checked_problem(call).ndim == 2);
  call.in[1] = {0, 0};
  CHECK(checked_problem(call).ndim == 1);
}

TEST_CASE("an absent gradient does not count", "[swiglu problem]") {
  Call call = compact_call({6, 8});
  call.is_backward = true;
  call.out[1] = {1, 6};
  CHECK(checked_problem(call).ndim == 2);
  call.has_grad_up = false;
  const rope::SwigluProblem only_gate = checked_problem(call);
  CHECK(only_gate.ndim == 1);
  CHECK(only_gate.out[rope::kGradUp] == nullptr);
  call.has_grad_up = true;
  call.has_grad_gate = false;
  const rope::SwigluProblem only_up = checked_problem(call);
  CHECK(only_up.ndim == 2);
  CHECK(only_up.out[rope::kGradGate] == nullptr);
  CHECK(only_up.out_stride[rope::kGradUp][1] == 1);
}

TEST_CASE("an empty axis makes an empty problem of SwiGLU", "[swiglu problem]") {
  for (const Shape &shape : {Shape{0}, {0, 5}, {5, 0}, {2, 0, 3, 4}, {1, 0}}) {
    const rope::SwigluProblem problem = compact_call(shape).problem();
    CHECK(problem.is_empty());
    CHECK(problem.num_elements() == 0);
  }
}

TEST_CASE("strides of empty tensors may be any number", "[swiglu problem]") {
  constexpr int64_t max = INT64_MAX, min = INT64_MIN, half = int64_t{1} << 62;
  for (const Shape &shape : {Shape{0, 5, 3}, {5, 0, 3}, {5, 3, 0}, {half, 8, 0}, {half, half, 0}, {0, half, half}}) {
    for (const Strides &stride : {Strides{max, max, max}, {min, min, max}, {max, min, 1}, {half, half, half}}) {
      Call call;
      call.shape = shape;
      call.in = {3, stride};
      call.out = {3, Strides{stride[2], stride[1], stride[0]}};
      CHECK(call.problem().is_empty());
    }
  }
}

TEST_CASE("merged axes visit what the call says", "[swiglu problem]") {
  Random random(1);
  int merged = 0, not_merged = 0;
  for (int round = 0; round < 8000; ++round) {
    Call call;
    call.is_backward = random.below(2) == 0;
    if (call.is_backward) {
      call.has_grad_gate = random.below(4) != 0;
      call.has_grad_up = !call.has_grad_gate || random.below(4) != 0;
      call.has_out = random.below(2) == 0;
    }
    const auto rank = static_cast<size_t>(1 + random.below(4));
    for (size_t axis = 0; axis < rank; ++axis) call.shape.push_back(1 + random.below(5));
    // Most tensors have one common order, so that axes can merge.
    const std::vector<size_t> common = random_order(&random, rank);
    const auto strides = [&] {
      const bool has_own_order = random.below(4) == 0;
      const bool has_gaps = random.below(3) == 0;
      return strides_in_order(&random, call.shape, has_own_order ? random_order(&random, rank) : common,
                              has_gaps ? 3 : 0);
    };
    for (int i = 0; i < 3; ++i) {
      call.in.push_back(strides());
      if (random.below(6) == 0) call.in.back()[static_cast<size_t>(random.below(static_cast<int64_t>(rank)))] = 0;
    }
    for (int i = 0; i < 3; ++i) call.out.push_back(strides());
    call.has_num_rows = random.below(3) == 0;
    if (rank > 1 && random.below(2) == 0) {
      call.row_axes = static_cast<size_t>(1 + random.below(static_cast<int64_t>(rank) - 1));
      const Shape rows(call.shape.begin(), call.shape.begin() + static_cast<std::ptrdiff_t>(call.row_axes));
      const auto row_strides = [&] {
        return strides_in_order(&random, rows, random_order(&random, call.row_axes), random.below(2) == 0 ? 3 : 0);
      };
      call.row_scale = row_strides();
      if (random.below(6) == 0) call.row_scale[0] = 0;
      call.grad_row_scale = row_strides();
      call.has_grad_row_scale = call.is_backward && random.below(2) == 0;
      if (call.has_grad_row_scale && random.below(4) == 0) call.has_grad_gate = call.has_grad_up = false;
    }
    const rope::SwigluProblem problem = checked_problem(call);
    const auto long_axes = std::count_if(call.shape.begin(), call.shape.end(), [](int64_t n) { return n > 1; });
    if (long_axes > 1) ++(problem.ndim < long_axes ? merged : not_merged);
  }
  CHECK(merged > 300);
  CHECK(not_merged > 300);
}

TEST_CASE("row_scale and num_rows keep rows apart", "[swiglu problem]") {
  Call call = compact_call({2, 3, 5, 7});
  CHECK(checked_problem(call).ndim == 1);
  call.row_axes = 2;
  call.row_scale = {3, 1};
  const rope::SwigluProblem scaled = checked_problem(call);
  CHECK(scaled.ndim == 2);
  CHECK(scaled.shape[0] == 6);
  CHECK(scaled.shape[1] == 35);
  CHECK(scaled.row_scale_stride[0] == 1);
  CHECK(scaled.row_scale_stride[1] == 0);
  CHECK(scaled.row_scale_dtype == ROPE_DTYPE_F32);
  call.has_num_rows = true;
  const rope::SwigluProblem limited = checked_problem(call);
  CHECK(limited.ndim == 3);
  CHECK(limited.shape[0] == 2);
  CHECK(limited.row_index_stride[0] == 1);
  CHECK(limited.row_index_stride[1] == 0);
  CHECK(limited.row_index_stride[2] == 0);
  call.row_axes = 0;
  call.row_scale.clear();
  const rope::SwigluProblem only_limited = checked_problem(call);
  CHECK(only_limited.ndim == 2);
  CHECK(only_limited.shape[1] == 105);
}

TEST_CASE("summed rows keep gate's order, however outputs lie", "[swiglu problem]") {
  Call call = compact_call({4, 6, 8});
  call.is_backward = call.has_grad_row_scale = true;
  call.row_axes = 1;
  call.row_scale = {1};
  call.grad_row_scale = {2};
  CHECK(checked_problem(call).ndim == 2);
  CHECK(checked_problem(call).num_row_axes == 1);
  CHECK(checked_problem(call).num_summed_elements() == 48);
  call.out[0] = {48, 1, 6};
  CHECK(checked_problem(call).ndim == 3);
  CHECK(checked_problem(call).num_row_axes == 1);
  // Either a row or the rows have no axis left.
  for (const Shape &shape : {Shape{4, 1, 1}, Shape{1, 6, 8}, Shape{1, 1, 1}}) {
    Call small = compact_call(shape);
    small.is_backward = small.has_grad_row_scale = true;
    small.row_axes = 1;
    small.row_scale = small.grad_row_scale = {1};
    CHECK(checked_problem(small).ndim == 1);
  }
}

namespace {

// Returns the library's error for a call that `spoil` has made wrong.
std::string refusal(bool is_backward, const std::function<void(swiglu_args_t *)> &spoil) {
  Call call = compact_call({3, 4, 5});
  call.is_backward = is_backward;
  call.row_axes = 2;
  call.row_scale = call.grad_row_scale = {4, 1};
  call.has_grad_row_scale = is_backward;
  call.has_num_rows = true;
  swiglu_args_t args = call.args();
  rope::SwigluProblem problem;
  REQUIRE(swiglu_call::make_problem("call", ROPE_DTYPE_F16, kPlain, args, is_backward, &problem) ==
          ROPE_STATUS_SUCCESS);
  spoil(&args);
  CHECK(swiglu_call::make_problem("call", ROPE_DTYPE_F16, kPlain, args, is_backward, &problem) ==
        ROPE_STATUS_INVALID_ARGUMENT);
  return rope::last_error();
}

}  // namespace

TEST_CASE("misused row_scale, grad_row_scale and num_rows are refused by name", "[swiglu problem]") {
  using Args = swiglu_args_t;
  const auto rows = [](int number, const Shape &shape, rope_dtype_t dtype = ROPE_DTYPE_F32) {
    return compact_tensor(region(number), dtype, shape);
  };
  for (const bool is_backward : {false, true}) {
    CHECK(refusal(is_backward, [&](Args *args) {
            args->row_scale = rows(6, {3, 4}, ROPE_DTYPE_BF16);
          }) == "call: row_scale.dtype is BF16: it must be F32 or the descriptor's, F16");
    CHECK(refusal(is_backward, [&](Args *args) {
            args->row_scale = rows(6, {3, 4, 5});
          }) == "call: row_scale.ndim is 3: it must be below that of gate, 3");
    CHECK(refusal(is_backward, [&](Args *args) {
            args->row_scale = rows(6, {3, 5});
          }) == "call: row_scale.shape[1] is 5: it must be that of gate, 4");
    CHECK(refusal(is_backward, [&](Args *args) { args->row_scale = rows(6, {1}); }) ==
          "call: row_scale.shape[0] is 1: it must be that of gate, 3");
    CHECK(refusal(is_backward, [&](Args *args) { args->num_rows = rows(8, {1}); }) ==
          "call: num_rows.dtype is F32: it must be I32 or I64");
    CHECK(refusal(is_backward, [&](Args *args) {
            args->num_rows = rows(8, {1, 1}, ROPE_DTYPE_I32);
          }) == "call: num_rows.ndim is 2: it must be 1");
    CHECK(refusal(is_backward, [&](Args *args) { args->num_rows = rows(8, {3}, ROPE_DTYPE_I64); }) ==
          "call: num_rows.shape[0] is 3: it must be 1");
    CHECK(refusal(is_backward, [&](Args *args) { args->num_rows = rows(8, {0}, ROPE_DTYPE_I64); }) ==
          "call: num_rows.shape[0] is 0: it must be 1");
    CHECK(refusal(is_backward, [&](Args *args) { args->out.data = args->row_scale.data; }).find("call: out at ") == 0);
    CHECK(refusal(is_backward, [&](Args *args) { args->out.data = args->num_rows.data; }).find(" num_rows at ") !=
          std::string::npos);
  }
  CHECK(refusal(false, [&](Args *args) {
          args->grad_row_scale = rows(7, {3, 4});
        }) == "call: grad_row_scale is set: it belongs to swiglu_backward");
  CHECK(refusal(true, [&](Args *args) { args->row_scale = {}; }) ==
        "call: grad_row_scale is set and row_scale is absent: a gradient needs its factor");
  CHECK(refusal(true, [&](Args *args) {
          args->grad_row_scale = rows(7, {3, 4}, ROPE_DTYPE_F16);
        }) == "call: grad_row_scale.dtype is F16: it must be that of row_scale, F32");
  CHECK(refusal(true, [&](Args *args) { args->grad_row_scale = rows(7, {3}); }) ==
        "call: grad_row_scale.ndim is 1: it must be that of row_scale, 2");
  CHECK(refusal(true, [&](Args *args) {
          args->grad_row_scale.stride[1] = 0;
        }).find("call: grad_row_scale.stride[1] is 0 for 4 elements") == 0);
  CHECK(refusal(true, [&](Args *args) {
          args->grad_row_scale.data = args->grad_gate.data;
        }).find(" grad_row_scale at ") != std::string::npos);
  CHECK(refusal(true, [&](Args *args) { args->grad_row_scale.data = args->num_rows.data; }).find(" num_rows at ") !=
        std::string::npos);
  CHECK(refusal(true, [&](Args *args) { args->grad_gate = args->grad_up = args->grad_row_scale = {}; }) ==
        "call: grad_gate, grad_up and grad_row_scale are absent: one of them is required");
}

TEST_CASE("of several overlaps an error names the last output, or the last input", "[swiglu problem]") {
  const auto move = [](rope_tensor_t *tensor, const rope_tensor_t &to, int bytes) {
    tensor->data = static_cast<char *>(to.data) + bytes;
  };
  const auto names = [&](bool is_backward, const std::string &output, const std::string &other,
                         const std::function<void(swiglu_args_t *)> &change) {
    const std::string text = refusal(is_backward, change);
    INFO(text);
    CHECK(text.rfind("call: " + output + " at 0x", 0) == 0);
    CHECK(text.find(" shares elements with " + other + " at 0x") != std::string::npos);
    CHECK(text.find(": an output must be one of the inputs or disjoint") != std::string::npos);
  };
  for (const bool is_backward : {false, true}) {
    const std::string first = is_backward ? "grad_gate" : "out";
    const auto written = is_backward ? &swiglu_args_t::grad_gate : &swiglu_args_t::out;
    names(is_backward, first, "up", [&](swiglu_args_t *args) {
      args->up = args->gate;
      move(&(args->*written), args->gate, 2);
    });
    names(is_backward, first, "gate", [&](swiglu_args_t *args) {
      args->*written = args->up;
      move(&args->gate, args->up, 2);
    });
  }
  names(true, "grad_gate", "out", [&](swiglu_args_t *args) {
    args->grad_up = args->out = args->grad_gate;
    move(&args->gate, args->out, 2);
  });
  names(true, "grad_gate", "grad_up", [&](swiglu_args_t *args) { args->grad_up = args->grad_gate = args->gate; });
  // An error of a single output comes before the overlaps of later outputs, and behind those of earlier ones.
  CHECK(refusal(true, [&](swiglu_args_t *args) {
          args->grad_gate.stride[0] = 0;
          args->grad_up.data = args->out.data;
        }).find("call: grad_gate.stride[0] is 0") == 0);
  names(true, "grad_gate", "gate", [&](swiglu_args_t *args) {
    move(&args->grad_gate, args->gate, 2);
    args->grad_up.stride[0] = 0;
  });
}

TEST_CASE("a gate of one axis has no row_scale, and num_rows is its length", "[swiglu problem]") {
  Call call = compact_call({9});
  call.has_num_rows = true;
  CHECK(checked_problem(call).row_index_stride[0] == 1);
  swiglu_args_t args = call.args();
  args.row_scale = compact_tensor(region(kRowScale), ROPE_DTYPE_F32, {9});
  rope::SwigluProblem problem;
  CHECK(swiglu_call::make_problem("call", ROPE_DTYPE_F16, kPlain, args, false, &problem) ==
        ROPE_STATUS_INVALID_ARGUMENT);
  CHECK(std::string(rope::last_error()) == "call: row_scale.ndim is 1: it must be below that of gate, 1");
}

TEST_CASE("a row that is summed has no more elements than memory accounts for", "[swiglu problem]") {
  constexpr int64_t always = int64_t{1} << 28;
  Call call = compact_call({1, 1, 1});
  call.is_backward = call.has_grad_row_scale = true;
  call.has_grad_gate = call.has_grad_up = call.has_out = false;
  call.row_axes = 1;
  call.row_scale = call.grad_row_scale = {1};
  const auto served = [&](int64_t rows, int64_t columns, const Strides &inputs) {
    call.shape = {1, rows, columns};
    call.in = {3, inputs};
    rope::SwigluProblem problem;
    const rope_status_t status = swiglu_call::make_problem("call", ROPE_DTYPE_F16, kPlain, call.args(), true, &problem);
    if (status == ROPE_STATUS_SUCCESS) return std::string();
    CHECK(status == ROPE_STATUS_NOT_SUPPORTED);
    return std::string(rope::last_error());
  };
  CHECK(served(1, always, {0, 0, 0}).empty());
  CHECK(served(1, always + 1, {0, 0, 0}) ==
        "call: gate has 268435457 elements: a tensor may have 2^28, or 64 for each of the 14 bytes that the tensors of "
        "the call span");
  CHECK(served(1 << 20, 1 << 20, {0, 1, 1}).find("call: gate has 1099511627776 elements: ") == 0);
  // Each input has 2^30 elements in memory, which repeat in each of 64 rows: 32 elements for every byte.
  CHECK(served(64, int64_t{1} << 30, {0, 0, 1}).empty());
  // An output has a place in memory for each of its elements.
  call.has_grad_gate = true;
  call.out[0] = {0, int64_t{1} << 20, 1};
  CHECK(served(1 << 20, 1 << 20, {0, 0, 0}).empty());
  // An empty call does nothing.
  CHECK(served(0, int64_t{1} << 60, {0, 0, 0}).empty());
}

TEST_CASE("the gradient of row_scale may be written over it", "[swiglu problem]") {
  Call call = compact_call({3, 4, 5});
  call.is_backward = call.has_grad_row_scale = true;
  call.row_axes = 2;
  call.row_scale = call.grad_row_scale = {5, 1};
  swiglu_args_t args = call.args();
  args.grad_row_scale = args.row_scale;
  rope::SwigluProblem problem;
  CHECK(swiglu_call::make_problem("call", ROPE_DTYPE_F16, kPlain, args, true, &problem) == ROPE_STATUS_SUCCESS);
  args.grad_row_scale.stride[0] = 4;
  CHECK(swiglu_call::make_problem("call", ROPE_DTYPE_F16, kPlain, args, true, &problem) ==
        ROPE_STATUS_INVALID_ARGUMENT);
}

TEST_CASE("the numbers of a form are rounded to fp32 except for F64", "[swiglu problem]") {
  swiglu_config_t config = {};
  config.struct_size = sizeof config;
  config.device = ROPE_DEVICE_CPU;
  config.alpha = 1.702;
  config.limit = 7.1;
  config.up_offset = 0.3;
  config.out_scale = 1.1;
  for (const rope_dtype_t dtype : {ROPE_DTYPE_F32, ROPE_DTYPE_F16, ROPE_DTYPE_BF16, ROPE_DTYPE_F64}) {
    config.dtype = dtype;
    rope::GatingForm form;
    REQUIRE(rope::check_swiglu_config("call", config, &form) == ROPE_STATUS_SUCCESS);
    const bool is_wide = dtype == ROPE_DTYPE_F64;
    CHECK(form.alpha == (is_wide ? 1.702 : static_cast<double>(1.702f)));
    CHECK(form.limit == (is_wide ? 7.1 : static_cast<double>(7.1f)));
    CHECK(form.up_offset == (is_wide ? 0.3 : static_cast<double>(0.3f)));
    CHECK(form.out_scale == (is_wide ? 1.1 : static_cast<double>(1.1f)));
    CHECK_FALSE(form.is_plain);
  }
}

TEST_CASE("a form is plain that multiplies by nothing but the sigmoid", "[swiglu problem]") {
  const auto is_plain = [](double alpha, double limit, double up_offset, double out_scale) {
    swiglu_config_t config = {};
    config.struct_size = sizeof config;
    config.device = ROPE_DEVICE_CPU;
    config.dtype = ROPE_DTYPE_F32;
    config.alpha = alpha;
    config.limit = limit;
    config.up_offset = up_offset;
    config.out_scale = out_scale;
    rope::GatingForm form = {{0, 0, 0, 0, alpha != 0}};
    REQUIRE(rope::check_swiglu_config("call", config, &form) == ROPE_STATUS_SUCCESS);
    return form.is_plain;
  };
  CHECK(is_plain(0, 0, 0, 0));
  CHECK(is_plain(1, 0, 0, 1));
  CHECK_FALSE(is_plain(1.5, 0, 0, 1));
  CHECK_FALSE(is_plain(1, 1e30, 0, 1));
  CHECK_FALSE(is_plain(1, 0, -1, 1));
  CHECK_FALSE(is_plain(1, 0, 0, 0.5));
}
