// SPDX-License-Identifier: Apache-2.0
// overlap.cpp - decides whether two index vectors lead to one element
#include "core/problem/overlap.hpp"

namespace rope {

namespace {

struct Range {
  int64_t low;
  int64_t high;
};

int64_t divide_down(int64_t a, int64_t b) {
  return a / b - (a % b < 0 ? 1 : 0);
}
int64_t divide_up(int64_t a, int64_t b) {
  return a / b + (a % b > 0 ? 1 : 0);
}

// Whether k * step mod modulus lies within the range for some k from 0 to `last`. The range lies within 0 to modulus -
// 1, and step < modulus. Euclid's algorithm: either the first multiple of step at or above range.low lies in the range,
// or k * step must pass the modulus first; how often it passes it is the unknown of the same question modulo step.
bool has_residue(int64_t step, int64_t modulus, Range range, int64_t last) {
  if (range.low == 0) return true;
  while (step != 0) {
    const int64_t first = divide_up(range.low, step);
    if (first > last) return false;
    if (first * step <= range.high) return true;
    last = (last * step - range.low) / modulus;
    range = {step - range.high % step, step - range.low % step};
    const int64_t rest = modulus % step;
    modulus = step;
    step = rest;
  }
  return false;
}

// Whether, for some n of `values`, a multiple of `modulus` lies within the range minus n * step. The range is narrower
// than modulus.
bool meets_multiple(Range range, int64_t step, Range values, int64_t modulus) {
  // This holds if the end of the range is at most its width above the multiple.
  const int64_t width = range.high - range.low, rest = (range.high - values.high * step) % modulus;
  const int64_t wanted = rest > 0 ? modulus - rest : -rest;
  if (wanted + width >= modulus) return true;
  return has_residue(step % modulus, modulus, {wanted, wanted + width}, values.high - values.low);
}

// A term step * n of a sum, with low <= n <= high and step > 0.
struct Term {
  int64_t step;
  int64_t low;
  int64_t high;
};

constexpr int kMaxTerms = 2 * kMaxAxes;

// A sum of terms, and the range that it may reach.
struct Sum {
  Term term[kMaxTerms];  // those from begin to before end are in use, the largest step first
  int begin = 0;
  int end = 0;
  Range range;

  // n runs from low to high; step may have either sign. A step of 0 adds nothing. Terms with equal steps become one
  // term with the sum of their ranges, as packed tensors have equal strides.
  void add(int64_t step, int64_t low, int64_t high) {
    if (step == 0) return;
    const Term added = step > 0 ? Term{step, low, high} : Term{-step, -high, -low};
    for (int i = 0; i < end; ++i) {
      if (term[i].step != added.step) continue;
      term[i].low += added.low;
      term[i].high += added.high;
      return;
    }
    int at = end++;
    for (; at > 0 && term[at - 1].step < added.step; --at) term[at] = term[at - 1];
    term[at] = added;
  }

  // Whether the sum can reach the range. Terms are eliminated until two are left, which are decided directly; if more
  // remain, the values of one are tried one by one.
  bool is_reached(int *budget) {
    Range values;
    for (;; ++begin) {
      if (begin == end) return range.low <= 0 && range.high >= 0;
      values = values_of(begin);
      if (values.low > values.high) return false;
      if (values.low < values.high) break;
      // With nested axes, each unknown has one or two possible values.
      range = range_less(term[begin].step * values.low);
    }
    widen_range();
    if (end - begin < 2) return true;
    // For each of these values, the range meets the interval that the second term covers. So either a multiple of its
    // step within the range is one of its values, or the range contains its first or last value.
    if (end - begin == 2) return meets_multiple(range, term[begin].step, values, term[begin + 1].step);
    return is_reached_by_search(budget);
  }

 private:
  Range range_less(int64_t value) const { return {range.low - value, range.high - value}; }

  // The values of an unknown for which the other terms can bring the sum into the range.
  Range values_of(int at) const {
    Range rest = range;
    for (int i = begin; i < end; ++i) {
      // A step of 0 leaves a term out. GCC 11 and 12 compile `continue` in its place to wrong vectors with AVX2.
      const int64_t step = i == at ? 0 : term[i].step;
      rest.low -= step * term[i].high;
      rest.high -= step * term[i].low;
    }
    const Term &t = term[at];
    const Range values = {divide_up(rest.low, t.step), divide_down(rest.high, t.step)};
    return {values.low > t.low ? values.low : t.low, values.high < t.high ? values.high : t.high};
  }

  // A term whose step is at most the range's width leaves no gaps: it widens the range for the remaining terms, and is
  // eliminated.
  void widen_range() {
    for (; end > begin && term[end - 1].step <= range.high - range.low + 1; --end) {
      const Term &t = term[end - 1];
      range = {range.low - t.step * t.high, range.high - t.step * t.low};
    }
  }

  // Divides everything by the common divisor of the steps, then tries each value of the unknown with the fewest values.
  bool is_reached_by_search(int *budget) {
    int64_t common = term[begin].step;
    for (int i = begin + 1; i < end; ++i) common = greatest_common_divisor(term[i].step, common);
    if (common > 1) {
      range = {divide_up(range.low, common), divide_down(range.high, common)};
      for (int i = begin; i < end; ++i) term[i].step /= common;
      return range.low <= range.high && is_reached(budget);
    }
    int min_index = begin;
    Range values = values_of(begin);
    for (int i = begin + 1; i < end; ++i) {
      const Range other = values_of(i);
      if (other.high - other.low >= values.high - values.low) continue;
      values = other;
      min_index = i;
    }
    Sum others;
    for (int i = begin; i < end; ++i) {
      if (i != min_index) others.term[others.end++] = term[i];
    }
    for (int64_t n = values.low; n <= values.high && *budget > 0; ++n) {
      --*budget;
      Sum rest = others;
      rest.range = range_less(n * term[min_index].step);
      if (rest.is_reached(budget)) return true;
    }
    return false;
  }
};

// The number of values tried in a search.
constexpr int kSearchBudget = 2000;

}  // namespace

// Whether each axis steps over everything that the later axes reach, as in a compact tensor and its parts. Then no two
// index vectors lead to one element.
static bool has_nested_axes(const View &view) {
  int64_t reach = 0;
  for (int axis = view.ndim - 1; axis >= 0; --axis) {
    if (view.shape[axis] == 1) continue;
    const int64_t step = magnitude(view.stride[axis]);
    if (step <= reach) return false;
    reach += step * (view.shape[axis] - 1);
  }
  return true;
}

rope_status_t check_output_strides(const char *function, const char *field, const View &view) {
  if (view.is_empty() || has_nested_axes(view)) return ROPE_STATUS_SUCCESS;
  for (int axis = 0; axis < view.ndim; ++axis) {
    if (view.stride[axis] == 0 && view.shape[axis] > 1) {
      return fail(ROPE_STATUS_INVALID_ARGUMENT,
                  "%s: %s.stride[%d] is 0 for %lld elements: an output cannot be an expanded tensor", function, field,
                  axis, static_cast<long long>(view.shape[axis]));
    }
  }
  const int64_t places = static_cast<int64_t>(view.end - view.begin) / dtype_size(view.dtype);
  if (view.elements > places) {
    return fail(ROPE_STATUS_INVALID_ARGUMENT,
                "%s: %s visits an element twice: %lld elements lie in the room of %lld, and an output has one place "
                "for each element",
                function, field, static_cast<long long>(view.elements), static_cast<long long>(places));
  }
  // Look for two index vectors that first differ (in axis order) at `axis`, by a positive amount, and meet at one
  // element.
  for (int axis = 0; axis < view.ndim; ++axis) {
    if (view.shape[axis] < 2) continue;
    Sum sum;
    sum.range = {0, 0};
    sum.add(view.stride[axis], 1, view.shape[axis] - 1);
    for (int later = axis + 1; later < view.ndim; ++later) {
      if (view.shape[later] < 2) continue;
      sum.add(view.stride[later], -(view.shape[later] - 1), view.shape[later] - 1);
    }
    int budget = kSearchBudget;
    if (sum.is_reached(&budget)) {
      return fail(ROPE_STATUS_INVALID_ARGUMENT,
                  "%s: %s visits an element twice: stride[%d] is %lld, and an output has one place for each element",
                  function, field, axis, static_cast<long long>(view.stride[axis]));
    }
  }
  return ROPE_STATUS_SUCCESS;
}

bool elements_overlap(const View &a, const View &b) {
  // Units of the smaller element, which divides all strides and addresses.
  const int64_t a_size = dtype_size(a.dtype), b_size = dtype_size(b.dtype);
  const int64_t unit = a_size < b_size ? a_size : b_size, a_units = a_size / unit, b_units = b_size / unit;
  const int64_t difference = (b.data - a.data) / unit;  // fits, because the address ranges intersect

  // A unit of `a` coincides with one of `b`: sum(i * a.stride) + x = difference + sum(j * b.stride) + y, where x and y
  // count units inside an element.
  Sum sum;
  sum.range = {difference - (a_units - 1), difference + (b_units - 1)};
  for (int axis = 0; axis < a.ndim; ++axis) {
    if (a.shape[axis] > 1) sum.add(a.stride[axis] * a_units, 0, a.shape[axis] - 1);
  }
  for (int axis = 0; axis < b.ndim; ++axis) {
    if (b.shape[axis] > 1) sum.add(-b.stride[axis] * b_units, 0, b.shape[axis] - 1);
  }
  int budget = kSearchBudget;
  return sum.is_reached(&budget);
}

}  // namespace rope
