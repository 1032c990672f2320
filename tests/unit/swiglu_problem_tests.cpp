// swiglu_problem_tests.cpp - axes of SwiGLU tensors merged where they are one, and the elements they still visit
#include <algorithm>
#include <array>
#include <catch2/catch_test_macros.hpp>
#include <cmath>
#include <vector>

#include "core/swiglu_problem.hpp"
#include "support/random.hpp"
#include "unit/fake_tensors.hpp"

namespace {

constexpr rope::GatingForm kPlain = {1, INFINITY, 0, 1, true};

constexpr int kTensors = 6;  // gate, up, grad_out, and three outputs or one
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

  int num_inputs() const { return is_backward ? 3 : 2; }
  int num_outputs() const { return is_backward ? 3 : 1; }
  bool is_wanted(int output) const {
    return !is_backward || (output == 0 ? has_grad_gate : output == 1 ? has_grad_up : has_out);
  }

  rope_tensor_t input(int i) const { return fake_tensor(region(i), ROPE_DTYPE_F16, shape, in[i]); }
  rope_tensor_t output(int i) const {
    return is_wanted(i) ? fake_tensor(region(3 + i), ROPE_DTYPE_F16, shape, out[i]) : rope_tensor_t{};
  }

  rope::SwigluProblem problem() const {
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
    rope::SwigluProblem result;
    const rope_status_t status =
        rope::make_swiglu_problem("swiglu_forward", ROPE_DTYPE_F16, kPlain, args, is_backward, &result);
    INFO(rope::last_error());
    REQUIRE(status == ROPE_STATUS_SUCCESS);
    return result;
  }
};

// Every tensor compact.
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
    }
    visits.push_back(at);
  });
  std::sort(visits.begin(), visits.end());
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
    }
    visits.push_back(at);
  });
  std::sort(visits.begin(), visits.end());
  return visits;
}

// The merged problem visits what the call says, with its closest elements last.
rope::SwigluProblem checked_problem(const Call &call) {
  const rope::SwigluProblem problem = call.problem();
  REQUIRE(problem.ndim >= 1);
  REQUIRE(problem.ndim <= 4);
  REQUIRE(problem.is_backward == call.is_backward);
  REQUIRE(problem.num_inputs() == call.num_inputs());
  REQUIRE(problem.num_outputs() == call.num_outputs());
  for (int i = 0; i < call.num_inputs(); ++i) REQUIRE(problem.in[i] == call.input(i).data);
  for (int i = 0; i < call.num_outputs(); ++i) REQUIRE(problem.out[i] == call.output(i).data);
  const Visits expected = visits_of_call(call);
  REQUIRE(problem.num_elements() == static_cast<int64_t>(expected.size()));
  for (int axis = 0; axis < problem.ndim; ++axis) REQUIRE((problem.ndim == 1 || problem.shape[axis] > 1));
  REQUIRE(visits_of_problem(call, problem) == expected);
  const int output = call.is_wanted(0) ? 0 : 1;
  for (int axis = 1; axis < problem.ndim; ++axis) {
    REQUIRE(std::abs(problem.out_stride[output][axis]) <= std::abs(problem.out_stride[output][axis - 1]));
  }
  return problem;
}

// Axes slowest first in memory, with gaps of 0 to `largest_gap` elements after each and any signs.
Strides strides_in_order(Random *random, const Shape &shape, const std::vector<size_t> &order, int64_t largest_gap) {
  Strides stride(shape.size());
  int64_t next = 1;
  for (size_t i = order.size(); i-- > 0;) {
    const size_t axis = order[i];
    stride[axis] = largest_gap > 0 && random->below(4) == 0 ? -next : next;
    if (shape[axis] == 1) stride[axis] = random->below(100);
    next = next * shape[axis] + (random->below(2) == 0 ? 0 : random->below(largest_gap + 1));
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
  // gate | up in rows of 2 * 7: the leading axes of all tensors are one, the last is its own.
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
  // Only the output is transposed: its order is the one that counts.
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

TEST_CASE("a gradient that is not wanted does not count", "[swiglu problem]") {
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
  constexpr int64_t most = INT64_MAX, least = INT64_MIN, half = int64_t{1} << 62;
  for (const Shape &shape : {Shape{0, 5, 3}, {5, 0, 3}, {5, 3, 0}, {half, 8, 0}, {half, half, 0}, {0, half, half}}) {
    for (const Strides &stride :
         {Strides{most, most, most}, {least, least, most}, {most, least, 1}, {half, half, half}}) {
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
  for (int round = 0; round < 4000; ++round) {
    Call call;
    call.is_backward = random.below(2) == 0;
    if (call.is_backward) {
      call.has_grad_gate = random.below(4) != 0;
      call.has_grad_up = !call.has_grad_gate || random.below(4) != 0;
      call.has_out = random.below(2) == 0;
    }
    const auto rank = static_cast<size_t>(1 + random.below(4));
    for (size_t axis = 0; axis < rank; ++axis) call.shape.push_back(1 + random.below(5));
    // Mostly one order for all tensors, so that there is something to merge.
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
    const rope::SwigluProblem problem = checked_problem(call);
    const auto long_axes = std::count_if(call.shape.begin(), call.shape.end(), [](int64_t n) { return n > 1; });
    if (long_axes > 1) ++(problem.ndim < long_axes ? merged : not_merged);
  }
  CHECK(merged > 300);
  CHECK(not_merged > 300);
}
