// operands.hpp - what a call reads and writes: each tensor by its field, held against all others
#pragma once

#include "core/problem/view.hpp"

namespace rope {

// What a call does with an operand. An output may equal what its role says, and shares no element with any other.
enum class Role : uint8_t {
  kIn,
  kGatheredIn,     // not read element by element with the outputs: none of these may equal it
  kOut,            // its own input: the two are one operand then (Operands::join)
  kOutOrAnyInput,  // any of the inputs
  kDisjointOut     // none
};

// In cache lines of its own, without which a call out of place takes 4 % longer.
struct alignas(64) Operand {
  const char *field;
  Role role;
  View view;

  bool is_output() const { return role > Role::kGatheredIn; }
};

// The operands of a call that are present, in the order in which they are read.
class Operands {
 public:
  explicit Operands(const char *function) : function_(function) {}

  // Reads a tensor into the list, with strides of 0 where no element uses them; *operand is NULL where it is absent.
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

  // Makes of an input and the output that equals it, read just before, one output; NULL: of the input alone.
  void join(Operand *input, const Operand *output) {
    input->role = Role::kOut;
    if (output == nullptr) return;
    input->field = output->field;
    --count_;
  }

  const Operand *begin() const { return list_; }
  const Operand *end() const { return list_ + count_; }

  rope_status_t check_overlaps() const;

  // Of one output: held against the inputs and the outputs that were read after it.
  rope_status_t check_overlaps(const Operand &output) const;

  // Holds the operands against the memory that they span. No loop of a call is longer than its largest tensor has
  // elements, and so a tensor that visits the same memory again and again, with strides of 0 or too short for its
  // shape, is what could keep a call busy for years. An output never is: it spans as many elements as it has.
  rope_status_t check_loops() const;

 private:
  // Of RoPE: q, k, v and their outputs, two that pass, three of integers, three tables, fault; four of the norm; three
  // factors; three caches, and at most five that say the places in them; four static scales, those written beside three
  // outputs and three caches, and amax_out. Backward has seven more of the norm, and none from the caches on.
  static constexpr int kMaxOperands = 41;

  rope_status_t read_present(Role role, const char *field, const rope_tensor_t &tensor, bool may_be_pairs,
                             Operand **operand);

  const char *function_;
  int count_ = 0;
  Operand list_[kMaxOperands];  // unset until it is read: clearing all of them would take longer
};

}  // namespace rope
