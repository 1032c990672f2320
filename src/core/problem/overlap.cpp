// overlap.cpp - solves for index vectors that lead to one element
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

// Whether k * step mod modulus lies within the range for some k from 0 to `last`; the range lies within 0 to
// modulus - 1, and step is below modulus. Euclid's algorithm: either the first multiple from range.low on lies in the
// range, or k * step passes the modulus first, and how often it does is the unknown of the same question modulo step.
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

// Whether a multiple of `modulus` lies within the range less n * step, for some n of `values`. The range is narrower
// than modulus.
bool meets_multiple(Range range, int64_t step, Range values, int64_t modulus) {
  // Then the end of the range is at most its width above the multiple.
  const int64_t width = range.high - range.low, rest = (range.high - values.high * step) % modulus;
  const int64_t wanted = rest > 0 ? modulus - rest : -rest;
  if (wanted + width >= modulus) return true;
  return has_residue(step % modulus, modulus, {wanted, wanted + width}, values.high - values.low);
}

// One unknown of a sum of step * n, with low <= n <= high and step > 0.
struct Term {
  int64_t step;
  int64_t low;
  int64_t high;
};

constexpr int kMaxTerms = 2 * kMaxAxes;

// Unknowns whose sum is to lie within a range.
struct Sum {
  Term term[kMaxTerms];  // from begin to before end, the largest step first
  int begin = 0;
  int end = 0;
  Range range;

  // n runs over low to high with any sign of step; steps of 0 add nothing. Unknowns of one step are one unknown with
  // the sum of their ranges: packed tensors share all their strides.
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

  // Unknowns leave the sum until two are left, which are decided, or more, of which one is tried value by value.
  bool is_reached(int *budget) {
    Range values;
    for (;; ++begin) {
      if (begin == end) return range.low <= 0 && range.high >= 0;
      values = values_of(begin);
      if (values.low > values.high) return false;
      if (values.low < values.high) break;
      // Where axes are nested, each unknown has one possible value, or two.
      range = range_less(term[begin].step * values.low);
    }
    widen_range();
    if (end - begin < 2) return true;
    // With each of these values the range meets what the second unknown reaches, and so a multiple of its step within
    // the range is one that it takes, or the range holds the first or last that it takes too.
    if (end - begin == 2) return meets_multiple(range, term[begin].step, values, term[begin + 1].step);
    return is_reached_by_search(budget);
  }

 private:
  Range range_less(int64_t value) const { return {range.low - value, range.high - value}; }

  // Those of an unknown with which the others can be below the range's end and above its beginning.
  Range values_of(int at) const {
    Range rest = range;
    for (int i = begin; i < end; ++i) {
      if (i == at) continue;
      rest.low -= term[i].step * term[i].high;
      rest.high -= term[i].step * term[i].low;
    }
    const Term &t = term[at];
    const Range values = {divide_up(rest.low, t.step), divide_down(rest.high, t.step)};
    return {values.low > t.low ? values.low : t.low, values.high < t.high ? values.high : t.high};
  }

  // A step that is no wider than the range leaves no gap between those that it leads to: together they are one range
  // for the others.
  void widen_range() {
    for (; end > begin && term[end - 1].step <= range.high - range.low + 1; --end) {
      const Term &t = term[end - 1];
      range = {range.low - t.step * t.high, range.high - t.step * t.low};
    }
  }

  // Divides by what all steps have in common; then tries each value of the unknown that has the fewest.
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

// Values tried in a search.
constexpr int kSearchBudget = 2000;

}  // namespace

// Whether each axis steps over all that the later ones reach, as in every compact tensor and its parts: then no two
// index vectors meet.
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
  // Two index vectors that differ first (in axis order) at `axis`, by a positive amount, and meet at one element.
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
  // In units of the smaller element, of which everything here is a multiple.
  const int64_t a_size = dtype_size(a.dtype), b_size = dtype_size(b.dtype);
  const int64_t unit = a_size < b_size ? a_size : b_size, a_units = a_size / unit, b_units = b_size / unit;
  const int64_t difference = (b.data - a.data) / unit;  // within both extents together, as their addresses meet

  // A unit of `a` meets one of `b`: sum(i * a.stride) + x = difference + sum(j * b.stride) + y, x and y inside elements.
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
