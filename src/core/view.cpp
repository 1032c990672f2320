// view.cpp - reads tensors and finds overlaps
#include "core/view.hpp"

namespace rope {

// Bound of |index * stride| sums, in bytes: leaves room to add two of them and a pointer difference in int64.
constexpr int64_t kLargestExtent = int64_t{1} << 60;

bool View::is_empty() const {
  for (int axis = 0; axis < ndim; ++axis) {
    if (shape[axis] == 0) return true;
  }
  return false;
}

int64_t dtype_size(rope_dtype_t dtype) {
  switch (dtype) {
    case ROPE_DTYPE_F16:
    case ROPE_DTYPE_BF16:
      return 2;
    case ROPE_DTYPE_F32:
    case ROPE_DTYPE_I32:
      return 4;
    case ROPE_DTYPE_F64:
    case ROPE_DTYPE_I64:
      return 8;
    default:
      return 0;
  }
}

const char *dtype_name(rope_dtype_t dtype) {
  switch (dtype) {
    case ROPE_DTYPE_F32:
      return "F32";
    case ROPE_DTYPE_F16:
      return "F16";
    case ROPE_DTYPE_BF16:
      return "BF16";
    case ROPE_DTYPE_F64:
      return "F64";
    case ROPE_DTYPE_I32:
      return "I32";
    case ROPE_DTYPE_I64:
      return "I64";
    default:
      return "unknown";
  }
}

static bool is_zeroed(const rope_tensor_t &tensor) {
  if (tensor.data != nullptr || tensor.dtype != 0 || tensor.flags != 0) return false;
  for (int axis = 0; axis < kMaxAxes; ++axis) {
    if (tensor.shape[axis] != 0 || tensor.stride[axis] != 0) return false;
  }
  return true;
}

// Fills view->stride with those of a compact tensor. False on overflow.
static bool set_compact_strides(View *view) {
  int64_t stride = 1;
  for (int axis = view->ndim - 1; axis >= 0; --axis) {
    view->stride[axis] = stride;
    const int64_t length = view->shape[axis] > 0 ? view->shape[axis] : 1;
    if (__builtin_mul_overflow(stride, length, &stride)) return false;
  }
  return true;
}

static bool measure_extent(const View &view, int64_t *low_out, int64_t *high_out) {
  int64_t low = 0, high = 0;
  for (int axis = 0; axis < view.ndim; ++axis) {
    int64_t reach, bytes;
    if (__builtin_mul_overflow(view.shape[axis] - 1, view.stride[axis], &reach)) return false;
    if (__builtin_mul_overflow(reach, dtype_size(view.dtype), &bytes)) return false;
    int64_t *side = bytes < 0 ? &low : &high;
    if (__builtin_add_overflow(*side, bytes, side)) return false;
    if (low < -kLargestExtent || high > kLargestExtent) return false;
  }
  *low_out = low;
  *high_out = high;
  return true;
}

rope_status_t read_view(const char *function, const char *field, const rope_tensor_t &tensor, View *view) {
  *view = View{};
  if (tensor.ndim == 0) {
    if (is_zeroed(tensor)) return ROPE_STATUS_SUCCESS;
    return fail(ROPE_STATUS_INVALID_ARGUMENT,
                "%s: %s.ndim is 0, which means absent, but another member is set: set ndim or zero the tensor",
                function, field);
  }
  if (tensor.ndim > kMaxAxes) {
    return fail(ROPE_STATUS_INVALID_ARGUMENT, "%s: %s.ndim is %u: it must be 0 to 4", function, field, tensor.ndim);
  }
  if ((tensor.flags & ~ROPE_TENSOR_STRIDED) != 0) {
    return fail(ROPE_STATUS_NOT_SUPPORTED, "%s: %s.flags is 0x%x: this version knows ROPE_TENSOR_STRIDED (0x1) only",
                function, field, tensor.flags);
  }
  const int64_t size = dtype_size(tensor.dtype);
  if (size == 0) {
    return fail(ROPE_STATUS_INVALID_ARGUMENT, "%s: %s.dtype is %d: it must be a ROPE_DTYPE_ value", function, field,
                tensor.dtype);
  }
  view->data = static_cast<char *>(tensor.data);
  view->dtype = tensor.dtype;
  view->ndim = tensor.ndim;
  bool has_strides = (tensor.flags & ROPE_TENSOR_STRIDED) != 0;
  for (int axis = 0; axis < view->ndim; ++axis) {
    if (tensor.shape[axis] < 0) {
      return fail(ROPE_STATUS_INVALID_ARGUMENT, "%s: %s.shape[%d] is %lld: it must be at least 0", function, field,
                  axis, static_cast<long long>(tensor.shape[axis]));
    }
    view->shape[axis] = tensor.shape[axis];
    view->stride[axis] = tensor.stride[axis];
    has_strides = has_strides || tensor.stride[axis] != 0;
  }
  if (!has_strides && !set_compact_strides(view) && !view->is_empty()) {
    return fail(ROPE_STATUS_INVALID_ARGUMENT, "%s: %s.shape is too large: 63 bits must count its elements", function,
                field);
  }
  if (view->is_empty()) return ROPE_STATUS_SUCCESS;

  int64_t low, high, count = 1;
  bool fits = measure_extent(*view, &low, &high);
  for (int axis = 0; axis < view->ndim; ++axis) {
    fits = fits && !__builtin_mul_overflow(count, view->shape[axis], &count);
  }
  if (!fits || count > kLargestExtent) {
    return fail(ROPE_STATUS_INVALID_ARGUMENT, "%s: %s spans more than 2^60 bytes: its shape or strides are too large",
                function, field);
  }
  if (view->data == nullptr) {
    return fail(ROPE_STATUS_INVALID_ARGUMENT, "%s: %s.data is NULL: a tensor with elements needs memory", function,
                field);
  }
  const uintptr_t address = reinterpret_cast<uintptr_t>(view->data);
  if (address % static_cast<uintptr_t>(size) != 0) {
    return fail(ROPE_STATUS_INVALID_ARGUMENT, "%s: %s.data is %p: it must be a multiple of the %lld-byte element",
                function, field, tensor.data, static_cast<long long>(size));
  }
  if (address < static_cast<uintptr_t>(-low) || address > UINTPTR_MAX - static_cast<uintptr_t>(high + size)) {
    return fail(ROPE_STATUS_INVALID_ARGUMENT, "%s: %s.data is %p: its strides leave the address space", function, field,
                tensor.data);
  }
  return ROPE_STATUS_SUCCESS;
}

void View::forget_unused_strides() {
  const bool has_no_elements = is_empty();
  for (int axis = 0; axis < ndim; ++axis) {
    if (has_no_elements || shape[axis] == 1) stride[axis] = 0;
  }
}

rope_status_t check_same_shape(const char *function, const char *field, const View &view, const char *other_field,
                               const View &other) {
  if (view.ndim != other.ndim) {
    return fail(ROPE_STATUS_INVALID_ARGUMENT, "%s: %s.ndim is %d: it must be that of %s, %d", function, field,
                view.ndim, other_field, other.ndim);
  }
  for (int axis = 0; axis < view.ndim; ++axis) {
    if (view.shape[axis] != other.shape[axis]) {
      return fail(ROPE_STATUS_INVALID_ARGUMENT, "%s: %s.shape[%d] is %lld: it must be that of %s, %lld", function,
                  field, axis, static_cast<long long>(view.shape[axis]), other_field,
                  static_cast<long long>(other.shape[axis]));
    }
  }
  return ROPE_STATUS_SUCCESS;
}

View narrow_view(const View &view, int axis, int64_t start, int64_t length) {
  View part = view;
  part.shape[axis] = length;
  if (!part.is_empty()) part.data += start * view.stride[axis] * dtype_size(view.dtype);
  return part;
}

bool is_same_view(const View &a, const View &b) {
  if (a.data != b.data || a.dtype != b.dtype || a.ndim != b.ndim) return false;
  for (int axis = 0; axis < a.ndim; ++axis) {
    if (a.shape[axis] != b.shape[axis]) return false;
    if (a.shape[axis] > 1 && a.stride[axis] != b.stride[axis]) return false;
  }
  return true;
}

namespace {

// One unknown of sum(step * n) = target, with low <= n <= high and step > 0.
struct Term {
  int64_t step;
  int64_t low;
  int64_t high;
};

constexpr int kMaxTerms = 2 * kMaxAxes + 2;

struct Equation {
  Term term[kMaxTerms];
  int count = 0;

  // n runs over low to high with any sign of step; steps of 0 add nothing. Unknowns of one step are one unknown with
  // the sum of their ranges: packed tensors share all their strides.
  void add(int64_t step, int64_t low, int64_t high) {
    if (step == 0) return;
    const Term added = step > 0 ? Term{step, low, high} : Term{-step, -high, -low};
    for (int i = 0; i < count; ++i) {
      if (term[i].step != added.step) continue;
      term[i].low += added.low;
      term[i].high += added.high;
      return;
    }
    int at = count++;
    for (; at > 0 && term[at - 1].step < added.step; --at) term[at] = term[at - 1];
    term[at] = added;
  }

  // Depth-first from the largest step. Nested strides leave one or two candidates a level; `budget` ends the others.
  bool has_solution(int64_t target, int from, int *budget) const {
    if (from == count) return target == 0;
    if (--*budget < 0) return false;
    int64_t rest_low = 0, rest_high = 0;
    for (int i = from + 1; i < count; ++i) {
      rest_low += term[i].step * term[i].low;
      rest_high += term[i].step * term[i].high;
    }
    const Term &t = term[from];
    int64_t low = divide_up(target - rest_high, t.step);
    int64_t high = divide_down(target - rest_low, t.step);
    if (low < t.low) low = t.low;
    if (high > t.high) high = t.high;
    for (int64_t n = low; n <= high; ++n) {
      if (has_solution(target - n * t.step, from + 1, budget)) return true;
      if (*budget < 0) return false;
    }
    return false;
  }

  static int64_t divide_down(int64_t a, int64_t b) { return a / b - (a % b < 0 ? 1 : 0); }
  static int64_t divide_up(int64_t a, int64_t b) { return a / b + (a % b > 0 ? 1 : 0); }
};

constexpr int kSearchBudget = 2000;

}  // namespace

rope_status_t check_output_strides(const char *function, const char *field, const View &view) {
  if (view.is_empty()) return ROPE_STATUS_SUCCESS;
  for (int axis = 0; axis < view.ndim; ++axis) {
    if (view.stride[axis] == 0 && view.shape[axis] > 1) {
      return fail(ROPE_STATUS_INVALID_ARGUMENT,
                  "%s: %s.stride[%d] is 0 for %lld elements: an output cannot be an expanded tensor", function, field,
                  axis, static_cast<long long>(view.shape[axis]));
    }
  }
  // Two index vectors that differ first (in axis order) at `axis`, by a positive amount, and meet at one element.
  for (int axis = 0; axis < view.ndim; ++axis) {
    if (view.shape[axis] < 2) continue;
    Equation equation;
    equation.add(view.stride[axis], 1, view.shape[axis] - 1);
    for (int later = axis + 1; later < view.ndim; ++later) {
      if (view.shape[later] < 2) continue;
      equation.add(view.stride[later], -(view.shape[later] - 1), view.shape[later] - 1);
    }
    int budget = kSearchBudget;
    if (equation.has_solution(0, 0, &budget)) {
      return fail(ROPE_STATUS_INVALID_ARGUMENT,
                  "%s: %s visits an element twice: stride[%d] is %lld, and an output has one place for each element",
                  function, field, axis, static_cast<long long>(view.stride[axis]));
    }
  }
  return ROPE_STATUS_SUCCESS;
}

bool views_overlap(const View &a, const View &b) {
  if (a.is_absent() || b.is_absent() || a.is_empty() || b.is_empty()) return false;
  int64_t a_low, a_high, b_low, b_high;
  measure_extent(a, &a_low, &a_high);
  measure_extent(b, &b_low, &b_high);
  const int64_t a_size = dtype_size(a.dtype), b_size = dtype_size(b.dtype);
  // Addresses as offsets from a.data; both fit, because user addresses have at most 57 bits and extents 60.
  const uintptr_t a_address = reinterpret_cast<uintptr_t>(a.data), b_address = reinterpret_cast<uintptr_t>(b.data);
  const bool b_is_above = b_address >= a_address;
  const uintptr_t gap = b_is_above ? b_address - a_address : a_address - b_address;
  if (gap > static_cast<uintptr_t>(3) << 60) return false;
  const int64_t difference = b_is_above ? static_cast<int64_t>(gap) : -static_cast<int64_t>(gap);
  if (difference + b_low >= a_high + a_size || difference + b_high + b_size <= a_low) return false;

  // a byte of `a` meets one of `b`: sum(i * a.stride) + x = difference + sum(j * b.stride) + y, x and y inside elements
  Equation equation;
  for (int axis = 0; axis < a.ndim; ++axis) {
    if (a.shape[axis] > 1) equation.add(a.stride[axis] * a_size, 0, a.shape[axis] - 1);
  }
  for (int axis = 0; axis < b.ndim; ++axis) {
    if (b.shape[axis] > 1) equation.add(-b.stride[axis] * b_size, 0, b.shape[axis] - 1);
  }
  equation.add(1, -(b_size - 1), a_size - 1);
  int budget = kSearchBudget;
  return equation.has_solution(difference, 0, &budget);
}

}  // namespace rope
