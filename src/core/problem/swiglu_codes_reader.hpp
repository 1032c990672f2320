// SPDX-License-Identifier: Apache-2.0
// swiglu_codes_reader.hpp - reads the outputs of a SwiGLU call that are codes: tensors, static and written scales, amax
#pragma once

#include "core/problem/fixed_list.hpp"
#include "core/problem/operands.hpp"
#include "core/problem/swiglu_problem.hpp"

namespace rope {

constexpr int kMaxSwigluCodes = 4;  // backward: two gradients by row and by column

// An output of codes.
struct CodedOutput {
  const Operand *operand;
  int output;         // SwigluOutput
  SwigluCodes codes;  // strides of scales are by gate's axes
};

struct CodedOutputs : FixedList<CodedOutput, kMaxSwigluCodes> {
  CodedOutputs() { clear(); }

  bool has_row_groups() const {
    bool has = false;
    for (const CodedOutput &coded : *this) has = has || coded.codes.has_row_groups;
    return has;
  }
};

// Reads the outputs of codes and their scales. The first operand is gate.
class SwigluCodesReader {
 public:
  SwigluCodesReader(const char *function, bool is_backward, Operands *operands, CodedOutputs *outputs)
      : function_(function), is_backward_(is_backward), operands_(operands), outputs_(outputs) {}

  // Whether the elements of a tensor have 8 or 4 bits.
  static bool is_coded(const rope_tensor_t &tensor) { return is_code(tensor.dtype) || is_code_pair(tensor.dtype); }

  // Reads an output by row. It is_coded.
  rope_status_t read_out(const char *field, const rope_tensor_t &tensor, int output);

  // Reads the outputs by column.
  rope_status_t read_columns(const swiglu_column_args_t *given);

  // Reads the scales of all outputs that were read.
  rope_status_t read_scales(const swiglu_quant_args_t *given, bool rounds_first, int64_t experts, bool has_expert_axis);

 private:
  struct Group;

  rope_status_t read_coded(const char *field, const rope_tensor_t &tensor, int output, bool has_row_groups);
  rope_status_t read_column_scales(bool has_expert_axis);
  rope_status_t read_layout(const char *group, int32_t layout, int32_t reserved, Group *result) const;
  rope_status_t read_group(const Group &group, const rope_tensor_t (&scales)[3], const rope_tensor_t &amax,
                           bool has_expert_axis);
  rope_status_t read_scale(const rope_tensor_t &tensor, bool scale_multiplies, int64_t experts);
  rope_status_t read_scales_out(const char *field, const rope_tensor_t &tensor, const Group &group,
                                bool has_expert_axis, SwigluCodes *codes);
  rope_status_t read_strided_scales(const char *field, const View &view, int min_rows, SwigluCodes *codes) const;
  rope_status_t read_strided_row_scales(const char *field, const View &view, int row_axis, SwigluCodes *codes) const;
  rope_status_t read_tiles(const char *field, const View &view, int min_rows, SwigluCodes *codes) const;
  rope_status_t read_row_tiles(const char *field, const View &view, int row_axis, SwigluCodes *codes) const;
  rope_status_t check_tile_type(const char *field, const View &view, const SwigluCodes &codes) const;
  rope_status_t check_compact_tiles(const char *field, const View &view) const;
  rope_status_t read_amax(const char *field, const rope_tensor_t &tensor, bool has_row_groups);
  CodedOutput *find(int output, bool has_row_groups) const;
  const rope_tensor_t &column_scales(int output) const {
    return !is_backward_         ? columns_->scales_out
           : output == kGradGate ? columns_->grad_gate_scales_out
                                 : columns_->grad_up_scales_out;
  }
  const Operand &gate() const { return *operands_->begin(); }

  const char *function_;
  bool is_backward_;
  Operands *operands_;
  CodedOutputs *outputs_;
  swiglu_column_args_t columns_copy_;
  const swiglu_column_args_t *columns_ = nullptr;
};

}  // namespace rope
