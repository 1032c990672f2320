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

// Of matrices forward, by the size of an element: whether there are kernels of which a thread takes several rows, and,
// for launches that are not programmatic, kernels of their own and some of vectors of 8 bytes.
constexpr bool takes_rows(SwigluFormula formula, int64_t size) {
  return formula == SwigluFormula::kBiases || (formula == SwigluFormula::kSoftcaps && size == 2);
}
constexpr bool has_plain_launches(SwigluFormula formula, int64_t size) {
  return size == 2 && (formula == SwigluFormula::kGegluTanh || formula == SwigluFormula::kReglu ||
                       formula == SwigluFormula::kSoftcaps);
}
constexpr bool has_half_vectors(SwigluFormula formula, int64_t size) {
  return size == 2 && (formula == SwigluFormula::kGegluErf || formula == SwigluFormula::kGegluTanh ||
                       formula == SwigluFormula::kSoftcaps);
}

}  // namespace rope
