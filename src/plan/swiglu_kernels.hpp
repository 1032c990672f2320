// SPDX-License-Identifier: Apache-2.0
// swiglu_kernels.hpp - which formulas the SwiGLU kernels have
#pragma once

#include <stdint.h>

namespace rope {

// The formula of a kernel. The three activations, the soft caps and the biases each have their own kernels for calls
// without another option.
enum class SwigluFormula : uint8_t {
  kPlain,  // GatingForm::is_plain without row_scale, and for words also without num_rows
  kForm,   // the numbers of a Form
  kGegluErf,
  kGegluTanh,
  kReglu,
  kSoftcaps,  // also a limit of the activation
  kBiases,
  kOptions  // all of gating_options.hpp
};
constexpr int kNumSwigluFormulas = 8;

// Which kernels of matrices exist in forward, by the size of an element: takes_rows with several rows in each thread,
// has_plain_launches only for launches that are not programmatic, has_half_vectors also with vectors of 8 bytes for
// these.
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
