// cpu_kernels.hpp - the inner loops of the CPU backend as a table, one table an instruction set
#pragma once

#include <rope/rope.h>
#include <stdint.h>

#include "core/gating.hpp"

namespace rope {

enum CpuType {
  kCpuF32,
  kCpuF16,
  kCpuBF16,
  kNumCpuTypes
};

// The cosines and sines that make x' and those that make y' of a run of pairs; the same arrays where tables do not say
// otherwise.
template <typename Real>
struct PairAngles {
  const Real *cos_x;
  const Real *sin_x;
  const Real *cos_y;
  const Real *sin_y;
};

// Where a run of pairs lies: pair i has its channels at x[i * step] and y[i * step].
struct PairRun {
  const void *x;
  const void *y;
  int64_t step;
};

// Strides and steps count elements. Outputs may be their inputs.
struct CpuKernels {
  const char *name;

  // cos and sin, times `scale`, of phases.
  template <typename Real>
  using FillAngles = void(const uint64_t *phases, int count, Real scale, Real *cos, Real *sin);
  FillAngles<float> *fill_angles;
  FillAngles<double> *fill_angles_f64;

  // Rotates a run of pairs; x and y of `out` are written.
  template <typename Real>
  using Rotate = void(const PairRun &in, const PairRun &out, int pairs, const PairAngles<Real> &angles);
  Rotate<float> *rotate[kNumCpuTypes];
  Rotate<double> *rotate_f64;

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

inline const CpuKernels &cpu_kernels() {
  return kBaseCpuKernels;
}

inline CpuType cpu_type(rope_dtype_t dtype) {
  return dtype == ROPE_DTYPE_F32 ? kCpuF32 : dtype == ROPE_DTYPE_F16 ? kCpuF16 : kCpuBF16;
}

}  // namespace rope
