// cpu_kernels.hpp - the inner loops of the CPU backend as a table, one table an instruction set
#pragma once

#include <stdint.h>

#include "core/gating.hpp"

namespace rope {

enum CpuType {
  kCpuF32,
  kCpuF16,
  kCpuBF16,
  kCpuF64,
  kNumCpuTypes
};
enum CpuStyle {
  kCpuHalf,
  kCpuInterleaved,
  kNumCpuStyles
};

// Elements of SwiGLU along one axis. Forward has gate, up and out; backward gate, up, grad_out and grad_gate, grad_up, out.
struct GatingRun {
  const void *in[3];
  int64_t in_stride[3];
  void *out[3];  // backward: NULL is not wanted
  int64_t out_stride[3];
  const void *row_scale;  // NULL: 1
  int64_t row_scale_stride;
  bool is_row_scale_f32;  // otherwise it has the type of the data
  int64_t count;
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

  using SwigluForward = void(const GatingRun &run, const GatingForm &form);
  SwigluForward *swiglu_forward[kNumCpuTypes];

  // Adds to *row_sum, unless it is NULL.
  using SwigluBackward = void(const GatingRun &run, const GatingForm &form, RowSum<double> *row_sum);
  SwigluBackward *swiglu_backward[kNumCpuTypes];
};

// Compiled for the target's base instruction set: SSE2 on x86-64, Advanced SIMD on aarch64.
extern const CpuKernels kBaseCpuKernels;

}  // namespace rope
