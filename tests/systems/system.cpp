// SPDX-License-Identifier: Apache-2.0
// system.cpp - runs a call on all devices and compares it with a formula
#include "system.hpp"

#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <cmath>
#include <cstring>

#include "support/tolerance.hpp"

namespace systems {
namespace {

int64_t count_of(const Shape &shape) {
  int64_t count = 1;
  for (int64_t size : shape) count *= size;
  return count;
}

// The permitted error of a rotated element. cos and sin have an error of up to 1.1e-7, in F64 4e-16, in addition to the
// rounding of the arithmetic; `size` is the sum of the magnitudes that they multiply.
Real slack_of(rope_dtype_t dtype, Real size) {
  return dtype == ROPE_DTYPE_F64 ? 1e-15L * size : 4e-7L * size + 0x1p-148L;
}

// A code's rank among those of its type, from the smallest number to the largest; both zeros have one rank.
int64_t place_of(uint8_t code) {
  const int64_t magnitude = code & 0x7f;
  return code & 0x80 ? -magnitude : magnitude;
}

uint8_t code_of(rope_dtype_t dtype, Real value) {
  uint8_t code;
  oracle::encode(dtype, value, &code);
  return code;
}

// A range says little where its ends become two codes, so that few may.
int64_t wrong_codes(Workspace &workspace, const Array &array, const Outcome &outcome, Real tolerated) {
  int64_t wrong = 0, neighbours = 0, open = 0;
  for (const auto &[element, range] : outcome) {
    const uint8_t low = code_of(array.memory.dtype, range.low), high = code_of(array.memory.dtype, range.high);
    uint8_t actual;
    std::memcpy(&actual, element_at(array.memory, {element}), 1);
    if (low != high) ++open;
    const bool is_right =
        low == high ? actual == low : place_of(low) <= place_of(actual) && place_of(actual) <= place_of(high);
    const bool is_near = place_of(low) - 1 <= place_of(actual) && place_of(actual) <= place_of(high) + 1;
    if (!is_right && is_near) ++neighbours;
    if (!is_right && !is_near && ++wrong <= 3) {
      UNSCOPED_INFO("code " << element << ": expected " << +low << " to " << +high << ", got " << +actual);
    }
    workspace.accept(array.memory, {element});
  }
  const auto count = static_cast<Real>(outcome.size());
  const bool is_tolerated = static_cast<Real>(neighbours) <= tolerated * count;
  UNSCOPED_INFO(outcome.size() << " codes: " << neighbours << " are neighbours, " << open << " open");
  CHECK(static_cast<Real>(open) <= 1 + count / 500);
  return wrong + (is_tolerated ? 0 : neighbours);
}

}  // namespace

int64_t Array::at(const Shape &index) const {
  if (index.size() != shape.size()) FAIL("an index of another rank");
  int64_t number = 0;
  for (size_t axis = 0; axis < shape.size(); ++axis) {
    if (index[axis] < 0 || index[axis] >= shape[axis]) FAIL("index " << index[axis] << " of axis " << axis);
    number = number * shape[axis] + index[axis];
  }
  return number;
}

rope_tensor_t Array::as(const Shape &axes) const {
  REQUIRE((axes.size() <= 4 && count_of(axes) == count_of(shape)));
  rope_tensor_t view = memory;
  view.ndim = static_cast<uint16_t>(axes.size());
  view.flags = ROPE_TENSOR_STRIDED;
  int64_t stride = 1;
  for (size_t axis = axes.size(); axis-- > 0;) {
    view.shape[axis] = axes[axis];
    view.stride[axis] = stride;
    stride *= axes[axis];
  }
  return view;
}

rope_tensor_t permuted(const rope_tensor_t &view, const std::vector<int> &axes) {
  rope_tensor_t result = view;
  for (size_t axis = 0; axis < axes.size(); ++axis) {
    result.shape[axis] = view.shape[axes[axis]];
    result.stride[axis] = view.stride[axes[axis]];
  }
  return result;
}

rope_tensor_t expanded(const rope_tensor_t &view, int axis, int64_t length) {
  rope_tensor_t result = view;
  result.shape[axis] = length;
  result.stride[axis] = 0;
  return result;
}

rope_tensor_t every(const rope_tensor_t &view, int axis, int64_t start, int64_t step) {
  rope_tensor_t result = narrow(view, axis, start, view.shape[axis] - start);
  result.shape[axis] = (result.shape[axis] + step - 1) / step;
  result.stride[axis] *= step;
  return result;
}

rope_tensor_t strided(const Array &array, int64_t first, const Shape &shape, const Shape &stride) {
  rope_tensor_t view = array.memory;
  view.data = element_at(array.memory, {first});
  view.ndim = static_cast<uint16_t>(shape.size());
  view.flags = ROPE_TENSOR_STRIDED;
  std::copy(shape.begin(), shape.end(), view.shape);
  std::copy(stride.begin(), stride.end(), view.stride);
  return view;
}

Array as_type(const Array &array, rope_dtype_t dtype) {
  Array result = array;
  const int64_t size = oracle::element_size(dtype), bytes = oracle::element_size(array.memory.dtype);
  REQUIRE(array.shape.back() * bytes % size == 0);
  result.shape.back() = array.shape.back() * bytes / size;
  result.memory.dtype = dtype;
  result.memory.shape[0] = count_of(result.shape);
  return result;
}

Rotation by_angle(Real angle) {
  return {std::cos(angle), std::sin(angle)};
}

void Formula::rotate(int64_t x_to, int64_t y_to, int64_t x_from, int64_t y_from, Rotation by) {
  add(x_to, x_from, by.cos);
  add(x_to, y_from, -by.sin);
  add(y_to, x_from, by.sin);
  add(y_to, y_from, by.cos);
}

void Formula::rotate_pairs(rope_style_t style, int64_t width, const Element &to, const Element &from,
                           const Turn &turn) {
  for (int64_t i = 0; i < width / 2; ++i) {
    const int64_t x = style == ROPE_STYLE_HALF ? i : 2 * i;
    const int64_t y = style == ROPE_STYLE_HALF ? i + width / 2 : 2 * i + 1;
    rotate(to(x), to(y), from(x), from(y), turn(i));
  }
}

void Formula::copy_channels(int64_t first, int64_t past, const Element &to, const Element &from) {
  for (int64_t c = first; c < past; ++c) copy(to(c), from(c));
}

Formula Formula::transposed() const {
  Formula result;
  for (const auto &[to, terms] : rows_) {
    for (const Term &term : terms) result.add(term.from, to, term.weight);
  }
  return result;
}

bool Formula::operator==(const Formula &other) const {
  const auto sorted = [](const Rows &rows) {
    std::vector<std::pair<std::pair<int64_t, int64_t>, Real>> all;
    for (const auto &[to, terms] : rows) {
      for (const Term &term : terms) all.push_back({{to, term.from}, term.weight});
    }
    std::sort(all.begin(), all.end());
    return all;
  };
  return sorted(rows_) == sorted(other.rows_);
}

RopeCall::RopeCall(rope_dtype_t dtype, int32_t head_dim)
    : config(rope_config_for(devices()[0], head_dim)), args(rope_args()), workspace_(static_cast<uint64_t>(head_dim)) {
  config.dtype = dtype;
}

Array array_of(Workspace &workspace, rope_dtype_t dtype, const Shape &shape,
               const std::function<Real(const Shape &)> &value) {
  Array array = {shape, workspace.tensor(dtype, {count_of(shape)})};
  for_each(shape, [&](const Shape &index) {
    oracle::encode(dtype, value(index), element_at(array.memory, {array.at(index)}));
  });
  return array;
}

Array integers_of(Workspace &workspace, rope_dtype_t dtype, const Shape &shape,
                  const std::function<int64_t(const Shape &)> &value) {
  Array array = {shape, workspace.tensor(dtype, {count_of(shape)})};
  std::vector<int64_t> values;
  for_each(shape, [&](const Shape &index) { values.push_back(value(index)); });
  workspace.fill_integers(array.memory, [&](const Index &index) { return values[static_cast<size_t>(index[0])]; });
  return array;
}

int64_t wrong_outcomes(Workspace &workspace, const Outcomes &outcomes, Real tolerated) {
  int64_t wrong = 0;
  for (const auto &[array, outcome] : outcomes) {
    if (oracle::is_code(array.memory.dtype)) {
      wrong += wrong_codes(workspace, array, outcome, tolerated);
      continue;
    }
    for (const auto &[element, range] : outcome) {
      const Real actual = value_at(array.memory, {element});
      const Real middle = (range.low + range.high) / 2, slack = (range.high - range.low) / 2;
      if (!tolerance::accepts(array.memory.dtype, actual, middle, slack) && ++wrong <= 3) {
        UNSCOPED_INFO("element " << element << ": expected " << static_cast<double>(middle) << " +- "
                                 << static_cast<double>(slack) << ", got " << static_cast<double>(actual));
      }
      workspace.accept(array.memory, {element});
    }
  }
  return wrong;
}

Array RopeCall::values(rope_dtype_t dtype, const Shape &shape, const std::function<Real(const Shape &)> &value) {
  return array_of(workspace_, dtype, shape, value);
}

Array RopeCall::data(const Shape &shape, rope_dtype_t dtype) {
  return values(dtype ? dtype : config.dtype, shape, [this](const Shape &) { return workspace_.random().normal(); });
}

Array RopeCall::table(rope_dtype_t dtype, const Shape &shape) {
  return values(dtype, shape, [this](const Shape &) { return workspace_.random().uniform(-1.5, 1.5); });
}

Array RopeCall::angles(rope_dtype_t dtype, const Shape &shape) {
  return values(dtype, shape, [this](const Shape &) { return workspace_.random().uniform(-1000, 1000); });
}

Array RopeCall::positions(rope_dtype_t dtype, const Shape &shape, const std::function<int64_t(const Shape &)> &value) {
  return integers_of(workspace_, dtype, shape, value);
}

Formula &RopeCall::formula(const Array &in, const Array &out) {
  operands_.push_back({in, out, {}});
  return operands_.back().formula;
}

Outcome &RopeCall::outcome(const Array &out) {
  outcomes_.push_back({out, {}});
  return outcomes_.back().second;
}

void RopeCall::expect_no_fault() {
  args.fault = positions(ROPE_DTYPE_I64, {2}, [](const Shape &) { return 0; }).tensor();
}

int64_t RopeCall::wrong_elements(Direction direction) {
  const bool rounds_each = config.rotation_rounding != 0;
  const auto rounded = [&](Real number) { return oracle::nearest(config.dtype, number); };
  int64_t wrong = 0;
  for (const Operand &operand : operands_) {
    const bool forward = direction == Direction::Forward;
    const Array &from = forward ? operand.in : operand.out;
    const Array &to = forward ? operand.out : operand.in;
    const Formula formula = forward ? operand.formula : operand.formula.transposed();
    const rope_tensor_t before = workspace_.before(from.memory);
    for (const auto &[element, terms] : formula.rows()) {
      Real exact = 0, size = 0, weight = 1;
      for (const Term &term : terms) {
        const Real value = value_at(before, {term.from});
        exact += rounds_each ? rounded(rounded(term.weight) * value) : term.weight * value;
        size += std::fabs(value);
        weight = std::max(weight, std::fabs(term.weight));
      }
      if (rounds_each) exact = rounded(exact);
      const bool copied = terms.size() == 1 && terms[0].weight == 1;
      const Real slack = copied || rounds_each ? 0 : slack_of(config.dtype, size * weight);
      const Real actual = value_at(to.memory, {element});
      const bool right = copied ? same_bits_at(before, {terms[0].from}, to.memory, {element})
                                : tolerance::accepts(config.dtype, actual, exact, slack);
      if (!right && ++wrong <= 3) {
        UNSCOPED_INFO("element " << element << ": expected " << static_cast<double>(exact) << " +- "
                                 << static_cast<double>(slack) << ", got " << static_cast<double>(actual));
      }
      workspace_.accept(to.memory, {element});
    }
  }
  return wrong;
}

void RopeCall::check(Direction direction) {
  if (!frozen_) workspace_.freeze();
  frozen_ = true;
  rope_args_t directed = args;
  if (direction == Direction::Backward) {
    const auto swap_if_both = [](rope_tensor_t &in, rope_tensor_t &out) {
      if (out.ndim) std::swap(in, out);
    };
    swap_if_both(directed.q, directed.q_out);
    swap_if_both(directed.k, directed.k_out);
    swap_if_both(directed.v, directed.v_out);
  }
  std::vector<std::pair<Device, int32_t>> ways;  // with num_threads
  for (const Device &device : devices()) {
    ways.push_back({device, 0});
    if (device.kind == ROPE_DEVICE_CPU) ways.push_back({device, 5});
  }
  std::vector<std::byte> first;
  for (const auto &[device, num_threads] : ways) {
    INFO(oracle::dtype_name(config.dtype)
         << " " << name_of(direction) << " on " << device << ", num_threads " << num_threads);
    config.device = device.kind;
    config.device_index = device.index;
    config.num_threads = num_threads;
    const RopeDesc desc = create(config);
    workspace_.restore();
    const rope_status_t status = run(device, desc.get(), direction, directed, workspace_);
    if (status != ROPE_STATUS_SUCCESS) {
      FAIL_CHECK(rope_status_name(status) << ": " << rope_last_error());
      continue;
    }
    const int64_t wrong = wrong_elements(direction) + wrong_outcomes(workspace_, outcomes_, tolerated_codes_);
    INFO(wrong << " elements are wrong");
    CHECK(wrong == 0);
    std::string where;
    const bool untouched = workspace_.untouched_elsewhere(&where);
    INFO(where);
    CHECK(untouched);
    if (first.empty()) first = workspace_.image();
    const bool same_bits = workspace_.image() == first;
    CHECK(same_bits);
  }
}

void RopeCall::check() {
  check(Direction::Forward);
  check(Direction::Backward);
}

Real frequency(Real theta, int64_t i, int64_t width) {
  return std::pow(theta, -2 * static_cast<Real>(i) / static_cast<Real>(width));
}

void for_each(const Shape &shape, const std::function<void(const Shape &)> &visit) {
  if (count_of(shape) == 0) return;
  Shape index(shape.size(), 0);
  for (;;) {
    visit(index);
    size_t axis = shape.size();
    while (axis > 0 && ++index[axis - 1] == shape[axis - 1]) index[--axis] = 0;
    if (axis == 0) return;
  }
}

}  // namespace systems
