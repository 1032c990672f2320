// swiglu_kernels.hpp - which formulas the SwiGLU kernels have
#pragma once

#include <stdint.h>

namespace rope {

// What a kernel computes. The three activations, the soft caps and the biases have kernels of their own where no other
// option comes with them.
enum class SwigluFormula : uint8_t {
  kPlain,  // GatingForm::is_plain, and neither row_scale nor num_rows
  kForm,   // the numbers of a Form
  kGegluErf,
  kGegluTanh,
  kReglu,
  kSoftcaps,  // and a limit of the activation
  kBiases,
  kOptions  // all of gating_options.hpp
};
constexpr int kNumSwigluFormulas = 8;

}  // namespace rope
