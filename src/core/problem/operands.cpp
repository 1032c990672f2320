// SPDX-License-Identifier: Apache-2.0
// operands.cpp - checks the operands of a call against each other
#include "core/problem/operands.hpp"

#include "core/problem/overlap.hpp"

namespace rope {

rope_status_t Operands::read_present(Role role, const char *field, const rope_tensor_t &tensor, bool may_be_pairs,
                                     Operand **operand) {
  Operand *next = list_.add();
  if (next == nullptr) {
    return fail(ROPE_STATUS_INTERNAL_ERROR, "%s: %s is one tensor too many: a call has at most %d", function_, field,
                kMaxOperands);
  }
  ROPE_TRY(read_view(function_, field, tensor, &next->view, may_be_pairs));
  next->view.forget_unused_strides();
  next->field = field;
  next->role = role;
  *operand = next;
  return ROPE_STATUS_SUCCESS;
}

rope_status_t Operands::read_integers(const char *field, const rope_tensor_t &tensor, Operand **operand) {
  ROPE_TRY(read(Role::kIn, field, tensor, operand));
  if (*operand == nullptr) return ROPE_STATUS_SUCCESS;
  const rope_dtype_t dtype = (*operand)->view.dtype;
  if (dtype == ROPE_DTYPE_I32 || dtype == ROPE_DTYPE_I64) return ROPE_STATUS_SUCCESS;
  return fail(ROPE_STATUS_INVALID_ARGUMENT, "%s: %s.dtype is %s: it must be I32 or I64", function_, field,
              dtype_name(dtype));
}

rope_status_t Operands::check_overlaps(const Operand &output) const {
  const bool may_be_any_input = output.role == Role::kOutOrAnyInput;
  const Operand *shared = nullptr;
  for (const Operand &other : *this) {
    if (!addresses_meet(output.view, other.view)) continue;
    const bool may_equal = may_be_any_input && other.role != Role::kGatheredIn;
    const bool may_share = other.is_output() ? &other <= &output : may_equal && is_same_view(output.view, other.view);
    if (may_share || !elements_overlap(output.view, other.view)) continue;
    // The error names an output rather than an input. Among several outputs it names the first; if any input may
    // overlap, the last.
    const bool comes_first = shared == nullptr || (other.is_output() && !shared->is_output());
    if (comes_first || (may_be_any_input && other.is_output() == shared->is_output())) shared = &other;
  }
  if (shared == nullptr) return ROPE_STATUS_SUCCESS;
  return fail(ROPE_STATUS_INVALID_ARGUMENT, "%s: %s at %p shares elements with %s at %p: an output must be %s",
              function_, output.field, static_cast<void *>(output.view.data), shared->field,
              static_cast<void *>(shared->view.data),
              output.role == Role::kDisjointOut || shared->role == Role::kGatheredIn ? "disjoint"
              : may_be_any_input                                                     ? "one of the inputs or disjoint"
                                                                                     : "its own input or disjoint");
}

rope_status_t Operands::check_overlaps() const {
  for (const Operand &operand : *this) {
    if (operand.is_output()) ROPE_TRY(check_overlaps(operand));
  }
  return ROPE_STATUS_SUCCESS;
}

rope_status_t Operands::check_loops() const {
  constexpr int64_t kAlwaysServed = int64_t{1} << 28;
  constexpr int64_t kServedPerByte = 64;
  uintptr_t bytes = 0;
  const Operand *longest = list_.begin();
  for (const Operand &operand : *this) {
    if (__builtin_add_overflow(bytes, operand.view.end - operand.view.begin, &bytes)) bytes = UINTPTR_MAX;
    if (operand.view.elements > longest->view.elements) longest = &operand;
  }
  const int64_t elements = longest->view.elements;
  if (elements <= kAlwaysServed || static_cast<uintptr_t>((elements - 1) / kServedPerByte) < bytes) {
    return ROPE_STATUS_SUCCESS;
  }
  return fail(
      ROPE_STATUS_NOT_SUPPORTED,
      "%s: %s has %lld elements: a tensor may have 2^28, or %lld for each of the %llu bytes that the tensors of "
      "the call span",
      function_, longest->field, static_cast<long long>(elements), static_cast<long long>(kServedPerByte),
      static_cast<unsigned long long>(bytes));
}

}  // namespace rope
