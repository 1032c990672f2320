// system.hpp - a call of librope in the place of another system's kernel, held against that system's own formula
//
// A test takes the system's tensors in the system's own shapes, builds the views of them that a user of librope would
// build, and writes the system's formula down as a sum over their elements:
//
//   RopeCall call(ROPE_DTYPE_F16, head_dim);
//   const Array x = call.data({seq, heads, head_dim});
//   call.args.q = x.tensor();
//   Formula &formula = call.formula(x);
//   formula.add(x.at({s, h, c}), x.at({s, h, partner}), -sin);  // out[to] += weight * in[from]
//   call.check();
//
// check() runs forward against the formula and backward against its transpose on every device. Elements that the
// formula does not name, and every byte that no view reaches, must stay as they were; elements that it copies must keep
// their bits. What is no linear map, a norm, is said element by element, and checked with forward alone:
//
//   Outcome &outcome = call.outcome(x);
//   outcome.push_back({x.at({s, h, c}), value});
//   call.check(Direction::Forward);
//
// Codes of 8 bits are said so too, by the number that becomes a code. Where both ends of a range become the same one,
// the call must leave that byte.
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

  // The same elements with axes of these lengths, or with its own.
  rope_tensor_t as(const Shape &axes) const;
  rope_tensor_t tensor() const { return as(shape); }
};

// Views that a user of the header writes with a few assignments: axes in another order; an axis repeated by stride 0;
// every step-th index of an axis, from start on.
rope_tensor_t permuted(const rope_tensor_t &view, const std::vector<int> &axes);
rope_tensor_t expanded(const rope_tensor_t &view, int axis, int64_t length);
rope_tensor_t every(const rope_tensor_t &view, int axis, int64_t start, int64_t step);
// Any strides, from an element of the array on.
rope_tensor_t strided(const Array &array, int64_t first, const Shape &shape, const Shape &stride);
// The same bytes as elements of another type, along the last axis.
Array as_type(const Array &array, rope_dtype_t dtype);

// The element of a channel of a head, and the cosine and sine of a pair or channel.
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
  // Every pair of the style within `width` channels.
  void rotate_pairs(rope_style_t style, int64_t width, const Element &to, const Element &from, const Turn &turn);
  void copy_channels(int64_t first, int64_t past, const Element &to, const Element &from);

  const Rows &rows() const { return rows_; }
  Formula transposed() const;
  bool operator==(const Formula &other) const;

 private:
  Rows rows_;
};

// A number that is known to lie between two.
struct Range {
  Real low, high;
};

// What forward must leave in elements of an array.
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

  // Of the call's dtype, or of another, standard normal.
  Array data(const Shape &shape, rope_dtype_t dtype = 0);
  // Random and not of unit length, so that a wrong row, column or table shows.
  Array table(rope_dtype_t dtype, const Shape &shape);
  Array angles(rope_dtype_t dtype, const Shape &shape);
  Array values(rope_dtype_t dtype, const Shape &shape, const std::function<Real(const Shape &)> &value);
  Array positions(rope_dtype_t dtype, const Shape &shape, const std::function<int64_t(const Shape &)> &value);

  // What forward makes of `in`, in place or in `out`.
  Formula &formula(const Array &in) { return formula(in, in); }
  Formula &formula(const Array &in, const Array &out);

  Outcome &outcome(const Array &out);

  // So many of the codes of each outcome may be neighbours of what it says: for systems whose products or quotients
  // round otherwise than rope.h's.
  void tolerate_codes(Real share) { tolerated_codes_ = share; }

  // For systems that compute in the data's type: products and sums of the formula are rounded to it one by one, and so are
  // its weights. That is every bit of the outputs, unless they are F64.
  void round_each() { config.rotation_rounding = ROPE_ROTATION_ROUND_EACH; }

  // Gives the call a `fault`, in which it must count nothing.
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

// theta^(-2i/width): the frequency of pair i, written as the systems write it.
Real frequency(Real theta, int64_t i, int64_t width);

// Calls visit for every index of the shape.
void for_each(const Shape &shape, const std::function<void(const Shape &)> &visit);

}  // namespace systems

#endif
