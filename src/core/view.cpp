// view.cpp - reads tensors and finds overlaps
#include "core/view.hpp"

namespace rope {

// Bound of |index * stride| sums, in bytes: leaves room to add two of them and a pointer difference in int64.
constexpr int64_t kLargestExtent = int64_t{1} << 60;

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

// Byte offsets from data of a view's lowest and highest element. False where those, or the number of elements, are
// beyond kLargestExtent.
static bool measure_extent(const View &view, int64_t *low, int64_t *high) {
  const int64_t size = dtype_size(view.dtype);
  int64_t count = 1;
  *low = *high = 0;
  for (int axis = 0; axis < view.ndim; ++axis) {
    int64_t reach;
    if (__builtin_mul_overflow(count, view.shape[axis], &count)) return false;
    if (__builtin_mul_overflow(view.shape[axis] - 1, view.stride[axis], &reach)) return false;
    if (__builtin_mul_overflow(reach, size, &reach)) return false;
    int64_t *side = reach < 0 ? low : high;
    if (__builtin_add_overflow(*side, reach, side)) return false;
  }
  return *low >= -kLargestExtent && *high <= kLargestExtent && count <= kLargestExtent;
}

rope_status_t read_present_view(const char *function, const char *field, const rope_tensor_t &tensor, View *view) {
  if (tensor.ndim == 0) {
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
  *view = View{};
  view->data = static_cast<char *>(tensor.data);
  view->dtype = tensor.dtype;
  view->ndim = tensor.ndim;
  bool has_strides = (tensor.flags & ROPE_TENSOR_STRIDED) != 0, has_elements = true;
  for (int axis = 0; axis < view->ndim; ++axis) {
    if (tensor.shape[axis] < 0) {
      return fail(ROPE_STATUS_INVALID_ARGUMENT, "%s: %s.shape[%d] is %lld: it must be at least 0", function, field,
                  axis, static_cast<long long>(tensor.shape[axis]));
    }
    view->shape[axis] = tensor.shape[axis];
    view->stride[axis] = tensor.stride[axis];
    has_strides = has_strides || tensor.stride[axis] != 0;
    has_elements = has_elements && tensor.shape[axis] != 0;
  }
  if (!has_strides && !set_compact_strides(view) && has_elements) {
    return fail(ROPE_STATUS_INVALID_ARGUMENT, "%s: %s.shape is too large: 63 bits must count its elements", function,
                field);
  }
  if (!has_elements) return ROPE_STATUS_SUCCESS;

  int64_t low, high;
  if (!measure_extent(*view, &low, &high)) {
    return fail(ROPE_STATUS_INVALID_ARGUMENT, "%s: %s spans more than 2^60 bytes: its shape or strides are too large",
                function, field);
  }
  if (view->data == nullptr) {
    return fail(ROPE_STATUS_INVALID_ARGUMENT, "%s: %s.data is NULL: a tensor with elements needs memory", function,
                field);
  }
  const uintptr_t address = reinterpret_cast<uintptr_t>(view->data);
  if ((address & static_cast<uintptr_t>(size - 1)) != 0) {
    return fail(ROPE_STATUS_INVALID_ARGUMENT, "%s: %s.data is %p: it must be a multiple of the %lld-byte element",
                function, field, tensor.data, static_cast<long long>(size));
  }
  if (address < static_cast<uintptr_t>(-low) || address > UINTPTR_MAX - static_cast<uintptr_t>(high + size)) {
    return fail(ROPE_STATUS_INVALID_ARGUMENT, "%s: %s.data is %p: its strides leave the address space", function, field,
                tensor.data);
  }
  view->begin = address + static_cast<uintptr_t>(low);
  view->end = address + static_cast<uintptr_t>(high + size);
  return ROPE_STATUS_SUCCESS;
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
  if (view.is_empty() || length == 0) {
    part.begin = part.end = 0;
    return part;
  }
  const int64_t size = dtype_size(view.dtype), stride = view.stride[axis];
  const int64_t before = start * stride * size, after = (view.shape[axis] - start - length) * stride * size;
  part.data += before;
  part.begin += static_cast<uintptr_t>(stride < 0 ? -after : before);
  part.end -= static_cast<uintptr_t>(stride < 0 ? -before : after);
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

// Whether each axis steps over all that the later ones reach, as in every compact tensor and its parts: then no two
// index vectors meet.
static bool has_nested_axes(const View &view) {
  int64_t reach = 0;
  for (int axis = view.ndim - 1; axis >= 0; --axis) {
    if (view.shape[axis] == 1) continue;
    const int64_t step = view.stride[axis] < 0 ? -view.stride[axis] : view.stride[axis];
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

bool elements_overlap(const View &a, const View &b) {
  const int64_t a_size = dtype_size(a.dtype), b_size = dtype_size(b.dtype);
  const int64_t difference = b.data - a.data;  // within both extents together, as their addresses meet

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
