// SPDX-License-Identifier: Apache-2.0
// operands.hpp - the tensors that a call reads and writes, with their field names, and checks between them
#pragma once

#include "core/problem/fixed_list.hpp"
#include "core/problem/view.hpp"

namespace rope {

// How a call uses an operand. An output may be identical to the operand that its role permits; it must not share an
// element with any other.
enum class Role : uint8_t {
  kIn,
  kGatheredIn,     // not read element by element with the outputs: none of these may equal it
  kOut,            // its own input: the two are one operand then (Operands::join)
  kOutOrAnyInput,  // any of the inputs
  kDisjointOut     // none
};

// Aligned to cache lines: without it, an out-of-place call takes 4 % longer.
struct alignas(64) Operand {
  const char *field;
  Role role;
  View view;

  bool is_output() const { return role > Role::kGatheredIn; }
};

// The operands of a call that are present, in the order of reading.
class Operands {
 public:
  explicit Operands(const char *function) : function_(function) { list_.clear(); }

  // Reads a tensor into the list and sets strides that no element uses to 0. *operand is NULL if the tensor is absent.
  rope_status_t read(Role role, const char *field, const rope_tensor_t &tensor, Operand **operand) {
    if (!is_zeroed(tensor)) return read_present(role, field, tensor, false, operand);
    *operand = nullptr;
    return ROPE_STATUS_SUCCESS;
  }

  // An output that is present and may be pairs of codes.
  rope_status_t read_codes(const char *field, const rope_tensor_t &tensor, Operand **operand) {
    return read_present(Role::kDisjointOut, field, tensor, true, operand);
  }

  // As read, an input of I32 or I64.
  rope_status_t read_integers(const char *field, const rope_tensor_t &tensor, Operand **operand);

  // Combines an input and the identical output, which was read just before, into one output. If `output` is NULL, the
  // input alone becomes the output.
  void join(Operand *input, const Operand *output) {
    input->role = Role::kOut;
    if (output == nullptr) return;
    input->field = output->field;
    list_.remove_last();
  }

  const Operand *begin() const { return list_.begin(); }
  const Operand *end() const { return list_.end(); }

  rope_status_t check_overlaps() const;

  // Checks one output against the inputs and against the outputs read after it.
  rope_status_t check_overlaps(const Operand &output) const;

  // Limits each operand's number of elements by the memory that it spans. A call's loops are no longer than its largest
  // tensor, so only a tensor that repeats memory, by strides of 0 or strides shorter than its shape, could keep a call
  // busy for years. An output has no repeated elements.
  rope_status_t check_loops() const;

 private:
  // RoPE: q, k, v and their outputs (6), pass (2), integers (3), tables (3), fault (1), norm (4), factors (3), caches
  // (3) and the operands that give places in them (at most 5), static scales (4), written scales of three outputs and
  // three caches (6), amax_out (1). Backward has 7 more for the norm, and none from the caches on.
  static constexpr int kMaxOperands = 41;

  rope_status_t read_present(Role role, const char *field, const rope_tensor_t &tensor, bool may_be_pairs,
                             Operand **operand);

  const char *function_;
  FixedList<Operand, kMaxOperands> list_;
};

}  // namespace rope
