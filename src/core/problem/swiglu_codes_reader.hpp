// swiglu_codes_reader.hpp - reads what a call of SwiGLU says of its codes: out, static and written scales, amax
#pragma once

#include "core/problem/operands.hpp"
#include "core/problem/swiglu_problem.hpp"

namespace rope {

// The first of the operands is gate. Strides of scales are by gate's axes.
class SwigluCodesReader {
 public:
  SwigluCodesReader(const char *function, Operands *operands, SwigluCodes *codes)
      : function_(function), operands_(operands), codes_(codes) {}

  // An out of codes.
  rope_status_t read_out(const rope_tensor_t &tensor, Operand **operand);

  // The scales of an out, which was read.
  rope_status_t read(const swiglu_quant_args_t *given, const View &out, int64_t experts, bool has_expert_axis);

 private:
  rope_status_t read_scale(const rope_tensor_t &tensor, int64_t experts);
  rope_status_t read_scales_out(const rope_tensor_t &tensor, const ScaleRule &rule, bool has_expert_axis,
                                bool has_tiles);
  rope_status_t read_strided_scales(const char *field, const View &view, int min_rows);
  rope_status_t read_tiles(const char *field, const View &view, int min_rows);
  rope_status_t read_amax(const rope_tensor_t &tensor);
  const Operand &gate() const { return *operands_->begin(); }

  const char *function_;
  Operands *operands_;
  SwigluCodes *codes_;
};

}  // namespace rope
