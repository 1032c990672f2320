// SPDX-License-Identifier: Apache-2.0
// oracle.hpp - RoPE, norms and SwiGLU in double, from the formulas at the top of rope.h
#pragma once

#include <vector>

#include "rope/rope.h"

namespace bench {

struct RopeWindow {
  rope_style_t style, out_style;  // out_style is set even if the case has 0
  int rotary_dim, rotary_offset, pair_block;
  bool is_backward;
};

// One head; channels outside the window are copied. cosine and sine have one entry per pair.
std::vector<double> rotated(const RopeWindow &window, const std::vector<double> &cosine,
                            const std::vector<double> &sine, const std::vector<double> &head);

struct NormForm {
  rope_norm_type_t type;
  rope_norm_extent_t extent;
  double eps;
};

// Normalises the heads of one token, with one weight per channel or without weights.
void norm(const NormForm &form, const std::vector<double> &weights, std::vector<std::vector<double>> *heads);

// The backward pass: replaces gradients of the norm's results by those of its inputs. The gradients of weights are
// added to `of_weights` unless it is empty. The norm is over all channels of `inputs`, the heads of one token.
void norm_gradient(const NormForm &form, const std::vector<double> &weights,
                   const std::vector<std::vector<double>> &inputs, std::vector<std::vector<double>> *gradients,
                   std::vector<double> *of_weights);

// SWIGLU_ values; numbers that are absent are 0.
struct GateNumbers {
  int32_t activation = 0, limit_rule = 0;
  double alpha = 1, limit = 0, up_offset = 0, gate_softcap = 0, up_softcap = 0;
};

struct GateGradient {
  double gate, up;
};

double gated(const GateNumbers &numbers, double gate, double up);
GateGradient gate_gradient(const GateNumbers &numbers, double gate, double up, double grad_out);

// The distance of results from the oracle.
class Accuracy {
 public:
  void add(double got, double exact);
  double relative() const;  // 2-norm of the errors divided by that of the values; NaN counts as infinite
  double largest() const { return largest_; }

 private:
  double errors_ = 0, values_ = 0, largest_ = 0;
};

}  // namespace bench
