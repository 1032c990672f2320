// SPDX-License-Identifier: Apache-2.0
// system.hpp - a call of librope instead of another system's kernel, compared with that system's own formula
//
// A test has the system's tensors in the system's own shapes, makes the views that a user of librope would make, and
// expresses the system's formula as a sum over elements:
//
//   RopeCall call(ROPE_DTYPE_F16, head_dim);
//   const Array x = call.data({seq, heads, head_dim});
//   call.args.q = x.tensor();
//   Formula &formula = call.formula(x);
//   formula.add(x.at({s, h, c}), x.at({s, h, partner}), -sin);  // out[to] += weight * in[from]
//   call.check();
//
// check() compares forward with the formula and backward with its transpose on every device. Elements that do not occur
// in the formula, and all bytes outside the views, must not change; elements that it copies must keep their bits.
// Operations that are not linear maps, such as a norm, are given element by element, and only forward is checked:
//
//   Outcome &outcome = call.outcome(x);
//   outcome.push_back({x.at({s, h, c}), value});
//   call.check(Direction::Forward);
//
// 8-bit codes are given in this way too, by the number that becomes a code. If both ends of a range become one code,
// the call must write that byte.
#ifndef ROPE_TESTS_SYSTEMS_SYSTEM_HPP
#define ROPE_TESTS_SYSTEMS_SYSTEM_HPP

#include <functional>
#include <initializer_list>
#include <list>
#include <map>
#include <utility>
#include <vector>

#include "support/device.hpp"
#include "support/tensors.hpp"

namespace systems {

using oracle::Real;
using oracle::Rotation;

constexpr rope_dtype_t floating[] = {ROPE_DTYPE_F32, ROPE_DTYPE_F16, ROPE_DTYPE_BF16, ROPE_DTYPE_F64};
constexpr rope_dtype_t integers[] = {ROPE_DTYPE_I32, ROPE_DTYPE_I64};
constexpr rope_style_t styles[] = {ROPE_STYLE_HALF, ROPE_STYLE_INTERLEAVED};

// A compact tensor of any rank, last axis fastest.
struct Array {
  Shape shape;
  rope_tensor_t memory;  // rank 1

  int64_t at(const Shape &index) const;
  Real value(const Shape &index) const { return value_at(memory, {at(index)}); }
  int64_t integer(const Shape &index) const { return integer_at(memory, {at(index)}); }

  // A view of the elements with axes of these lengths, or with the array's own axes.
  rope_tensor_t as(const Shape &axes) const;
  rope_tensor_t tensor() const { return as(shape); }
};

// Views that a user of the header makes with a few assignments: axes in another order; an axis repeated by stride 0;
// every step-th index of an axis, from `start` on.
rope_tensor_t permuted(const rope_tensor_t &view, const std::vector<int> &axes);
rope_tensor_t expanded(const rope_tensor_t &view, int axis, int64_t length);
rope_tensor_t every(const rope_tensor_t &view, int axis, int64_t start, int64_t step);
// A view with any strides, beginning at an element of the array.
rope_tensor_t strided(const Array &array, int64_t first, const Shape &shape, const Shape &stride);
// The bytes as elements of another type, along the last axis.
Array as_type(const Array &array, rope_dtype_t dtype);

// The element of a head's channel; the cosine and sine of a pair or channel.
using Element = std::function<int64_t(int64_t channel)>;
using Turn = std::function<Rotation(int64_t number)>;

Rotation by_angle(Real angle);

struct Term {
  int64_t from;
  Real weight;
};

// A linear map from the elements of one array to those of another.
class Formula {
 public:
  using Rows = std::map<int64_t, std::vector<Term>>;

  void add(int64_t to, int64_t from, Real weight) { rows_[to].push_back({from, weight}); }
  void copy(int64_t to, int64_t from) { add(to, from, 1); }
  // x' = x cos - y sin, y' = x sin + y cos
  void rotate(int64_t x_to, int64_t y_to, int64_t x_from, int64_t y_from, Rotation by);
  // Rotates every pair of the style within `width` channels.
  void rotate_pairs(rope_style_t style, int64_t width, const Element &to, const Element &from, const Turn &turn);
  void copy_channels(int64_t first, int64_t past, const Element &to, const Element &from);

  const Rows &rows() const { return rows_; }
  Formula transposed() const;
  bool operator==(const Formula &other) const;

 private:
  Rows rows_;
};

// An interval that contains an exact value.
struct Range {
  Real low, high;
};

// The expected results of forward in elements of an array.
using Outcome = std::vector<std::pair<int64_t, Range>>;
using Outcomes = std::list<std::pair<Array, Outcome>>;

// How many elements are not what the outcomes say. Where a range leaves a code open, each between its ends is right;
// `tolerated` is the share of an outcome's codes that may be neighbours of these. Accepts the elements.
int64_t wrong_outcomes(Workspace &workspace, const Outcomes &outcomes, Real tolerated);

// Arrays of a workspace, filled.
Array array_of(Workspace &workspace, rope_dtype_t dtype, const Shape &shape,
               const std::function<Real(const Shape &)> &value);
Array integers_of(Workspace &workspace, rope_dtype_t dtype, const Shape &shape,
                  const std::function<int64_t(const Shape &)> &value);

class RopeCall {
 public:
  RopeCall(rope_dtype_t dtype, int32_t head_dim);

  rope_config_t config;  // of rope_config_for: theta 10000, HALF, BSHD
  rope_args_t args;

  // Standard normal data of the call's dtype, or of another one.
  Array data(const Shape &shape, rope_dtype_t dtype = 0);
  // Random entries that are not of unit length, so that a wrong row, column or table is detected.
  Array table(rope_dtype_t dtype, const Shape &shape);
  Array angles(rope_dtype_t dtype, const Shape &shape);
  Array values(rope_dtype_t dtype, const Shape &shape, const std::function<Real(const Shape &)> &value);
  Array positions(rope_dtype_t dtype, const Shape &shape, const std::function<int64_t(const Shape &)> &value);

  // The formula from `in` to its result, in place or in `out`.
  Formula &formula(const Array &in) { return formula(in, in); }
  Formula &formula(const Array &in, const Array &out);

  Outcome &outcome(const Array &out);

  // Permits this share of each outcome's codes to be neighbours of the expected ones: for systems that round products
  // or quotients in another way than rope.h.
  void tolerate_codes(Real share) { tolerated_codes_ = share; }

  // For systems that compute in the data's type: each product and sum of the formula, and each weight, is rounded to
  // it. This determines every bit of the outputs, except for F64.
  void round_each() { config.rotation_rounding = ROPE_ROTATION_ROUND_EACH; }

  // Gives the call a `fault`, which must remain zero.
  void expect_no_fault();

  void check();
  void check(Direction direction);

 private:
  struct Operand {
    Array in, out;
    Formula formula;
  };
  int64_t wrong_elements(Direction direction);

  Workspace workspace_;
  bool frozen_ = false;
  Real tolerated_codes_ = 0;
  std::list<Operand> operands_;
  Outcomes outcomes_;
};

// theta^(-2i/width): the frequency of pair i, in the systems' notation.
Real frequency(Real theta, int64_t i, int64_t width);

// Calls visit for every index of the shape.
void for_each(const Shape &shape, const std::function<void(const Shape &)> &visit);

}  // namespace systems

#endif
