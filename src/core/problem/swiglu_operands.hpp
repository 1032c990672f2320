// SPDX-License-Identifier: Apache-2.0
// swiglu_operands.hpp - reads and checks the tensors of a SwiGLU call
#pragma once

#include "core/problem/operands.hpp"
#include "core/problem/swiglu_codes_reader.hpp"
#include "core/problem/swiglu_problem.hpp"

namespace rope {

// The further inputs of a call; absent ones are NULL.
struct FurtherInputs {
  Operand *bias[2] = {};
  Operand *expert_rows = nullptr;
  SwigluRows rows = {};
};

// The operands of a call. Absent ones and outputs of codes are NULL.
struct SwigluOperands {
  explicit SwigluOperands(const char *function) : all(function) {}

  Operands all;
  Operand *in[kMaxSwigluInputs] = {};
  Operand *out[kMaxSwigluOutputs] = {};
  Operand *row_scale = nullptr, *num_rows = nullptr, *grad_row_scale = nullptr;
  bool is_indexed = false;  // with row_index
  FurtherInputs further;
  CodedOutputs coded;

  bool has_words() const {
    return out[kOut] != nullptr || out[kGradUp] != nullptr || out[kRecomputedOut] != nullptr ||
           grad_row_scale != nullptr;
  }
};

// Reads the operands of a call, and checks that no output shares an element with another tensor or visits one twice.
rope_status_t read_swiglu_operands(const char *function, rope_dtype_t dtype, const GatingForm &form,
                                   const swiglu_args_t &args, bool is_backward, SwigluOperands *operands);

}  // namespace rope
