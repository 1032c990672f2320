// cpu_kernels.hpp - the inner loops of the CPU backend as a table, one table an instruction set
#pragma once

#include <stdint.h>

#include "core/gating.hpp"

namespace rope {

enum CpuType {
  kCpuF32,
  kCpuF16,
  kCpuBF16,
  kNumCpuTypes
};
enum CpuStyle {
  kCpuHalf,
  kCpuInterleaved,
  kNumCpuStyles
};

// Strides count elements. Outputs may be their inputs.
struct CpuKernels {
  const char *name;

  // cos and sin, times `scale`, of every pair at one position.
  void (*fill_angles)(const uint64_t *increments, int pairs, uint64_t position, float scale, float *cos, float *sin);

  // Rotates one window of 2 * pairs channels.
  using Rotate = void(const void *in, int64_t in_stride, void *out, int64_t out_stride, int pairs, const float *cos,
                      const float *sin);
  Rotate *rotate[kNumCpuTypes][kNumCpuStyles];

  using SwigluForward = void(const void *gate, int64_t gate_stride, const void *up, int64_t up_stride, void *out,
                             int64_t out_stride, int64_t count, const GatingForm &form);
  SwigluForward *swiglu_forward[kNumCpuTypes];

  // From gate, up and grad_out to grad_gate, grad_up and out, of which any may be NULL.
  using SwigluBackward = void(const void *const in[3], const int64_t in_stride[3], void *const out[3],
                              const int64_t out_stride[3], int64_t count, const GatingForm &form);
  SwigluBackward *swiglu_backward[kNumCpuTypes];
};

// Compiled for the target's base instruction set: SSE2 on x86-64, Advanced SIMD on aarch64.
extern const CpuKernels kBaseCpuKernels;

}  // namespace rope
