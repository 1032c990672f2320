// cpu_kernels.hpp - the inner loops of the CPU backend as a table, one table an instruction set
#pragma once

#include <stdint.h>

#include "core/math/float8.hpp"
#include "core/math/gating_options.hpp"
#include "core/math/norm.hpp"
#include "core/problem/status.hpp"
#include "core/problem/step_problem.hpp"

namespace rope {

enum CpuType {
  kCpuF32,
  kCpuF16,
  kCpuBF16,
  kCpuF64,
  kNumCpuTypes,
  kCpuE4M3 = kNumCpuTypes,  // these are written to alone
  kCpuE5M2
};

// The cosines and sines that make x' and those that make y' of a run of pairs; the same arrays where tables do not say
// otherwise.
template <typename Real>
struct PairAngles {
  const Real *cos_x;
  const Real *sin_x;
  const Real *cos_y;
  const Real *sin_y;

  ROPE_HOST PairAngles from(int pair) const { return {cos_x + pair, sin_x + pair, cos_y + pair, sin_y + pair}; }
};

// Where a run of pairs lies, and the same run of further heads: pair i of head h has its channels at
// x[h * head_stride + i * step] and y[h * head_stride + i * step].
struct PairRun {
  void *x;
  void *y;
  int64_t step;
  int64_t head_stride;
};

// Where the step writes heads to. Strides count elements.
struct StepTarget {
  char *data;  // channel 0 of the first head
  CpuType type;
  int64_t head_stride;
  int64_t channel_stride;
  ChannelPart part;
  bool is_streamed;             // it may go past the caches, and not be seen by others until a store fence
  const char *scale;            // static, of codes, that of the first head; NULL: 1
  int64_t scale_head_stride;    // in elements
  const WrittenScales *scales;  // instead, where they are present
  int64_t scales_row;           // of the first head, in elements

  ROPE_HOST bool has_codes() const { return type >= kCpuE4M3; }
  // Of a head's channels, that have a factor each.
  ROPE_HOST int groups() const { return scales->is_present() ? scales->groups : 1; }
};

// How heads become codes.
struct CodeRule {
  bool scale_multiplies;
  bool rounds_before;  // to the data's type
  uint32_t *amax;      // the bits of a magnitude that those of values raise; NULL: not wanted

  ROPE_HOST float factor_of(const StepTarget &target, int64_t head) const {
    if (target.scale == nullptr) return 1.0f;
    const float scale = reinterpret_cast<const float *>(target.scale)[head * target.scale_head_stride];
    return code_factor(scale, scale_multiplies);
  }
  ROPE_HOST bool needs_magnitudes(const StepTarget &target) const {
    return amax != nullptr || target.scales->is_present();
  }
};

// The weights of a tensor's norm, unless each head has its own, as loops take them. A call's first run makes them for
// those behind it; one of tokens that are not turned, or are again, makes them anew.
struct OrderedWeights {
  bool is_filled;
  bool is_turned;
  float plain[kMaxHeadDim];    // plus the offset; 1 where none are given
  float ordered[kMaxHeadDim];  // of x, and kMaxPairs further on of y; or of a head that is not turned
};

// Heads of one token and tensor on their way through the step.
template <typename Real>
struct StepRun {
  const char *in;  // channel 0 of the first head, or where it would lie
  int64_t head_stride;
  int64_t channel_stride;
  const char *pass;  // channels outside the window, of the first head; NULL: `in` has them
  int64_t pass_head_stride;
  int64_t pass_channel_stride;
  int64_t heads;
  int channels;
  int window_begin;
  int pairs;
  int in_distance;  // unlike out_distance where pairs move
  int out_distance;
  bool is_turned;
  bool rounds_each;  // products and sums of the rotation, to the data's type
  PairAngles<Real> angles;
  const NormForm<Real> *norm;  // NULL: none
  bool is_norm_after;          // the rotation
  bool is_norm_of_token;       // over all heads of the run
  ChannelNumbers weight;       // of the first head on
  OrderedWeights *weights;     // where they are kept in order
  ChannelNumbers bias;
  RowFactor factor;       // of the first head on
  StepTarget targets[3];  // the first may be the input
  int num_targets;
  bool accumulates;  // the only target is added to
  CodeRule code;

  ROPE_HOST bool has_codes() const {
    bool has = false;
    for (int i = 0; i < num_targets; ++i) has = has || targets[i].has_codes();
    return has;
  }
};

// Heads of one token and tensor on their way back through a norm.
template <typename Real>
struct NormGradientRun {
  StepRun<Real> gradient;  // of what forward wrote; its only target takes that of what it read, unless there is none
  StepRun<Real> input;     // what forward read, up to its norm
  HeadSums<Real> weight_sums;
  HeadSums<Real> bias_sums;
};

// Elements of SwiGLU along one axis. Forward has gate, up and out; backward gate, up, grad_out and grad_gate, grad_up,
// out.
struct GatingRun {
  const void *in[3];
  int64_t in_stride[3];
  void *out[3];  // backward: NULL is not wanted
  int64_t out_stride[3];
  const void *row_scale;  // NULL: 1
  int64_t row_scale_stride;
  bool is_row_scale_f32;  // otherwise it has the type of the data
  const void *bias[2];    // of gate and up; NULL: none
  int64_t bias_stride[2];
  bool is_bias_f32[2];  // otherwise it has the type of the data
  bool is_streamed;     // forward: out may go past the caches, and not be seen by others until a store fence
  int64_t count;
};

// Strides and steps count elements. Outputs may be their inputs.
struct CpuKernels {
  const char *name;

  // cos and sin, times `scale`, of phases.
  template <typename Real>
  using FillAngles = void(const uint64_t *phases, int count, Real scale, Real *cos, Real *sin);
  FillAngles<float> *fill_angles;
  FillAngles<double> *fill_angles_f64;

  // Rotates a run of at most kMaxPairs pairs of each head; `out` is written.
  template <typename Real>
  using Rotate = void(const PairRun &in, const PairRun &out, int pairs, int64_t heads, const PairAngles<Real> &angles);
  Rotate<float> *rotate[kCpuF64];          // of the types before it
  Rotate<float> *rotate_rounded[kCpuF64];  // of 16 bits: products and sums become the type's one by one
  Rotate<double> *rotate_f64;

  // Numbers that are neither normed nor turned keep their bits in targets of their type.
  template <typename Real>
  using Step = void(const StepRun<Real> &run);
  Step<float> *step[kCpuF64];  // of the types before it
  Step<double> *step_f64;

  template <typename Real>
  using NormGradient = void(const NormGradientRun<Real> &run);
  NormGradient<float> *norm_gradient[kCpuF64];
  NormGradient<double> *norm_gradient_f64;

  using SwigluForward = void(const GatingRun &run, const GatingForm &form);
  SwigluForward *swiglu_forward[kNumCpuTypes];
  SwigluForward *swiglu_values[kCpuF64];  // of the types before it: out is floats, which nothing has rounded

  // Numbers that are to be codes.
  using RoundValues = void(float *values, int count);
  RoundValues *round_values[kCpuF64];  // to the type and back
  using RaiseMagnitude = void(const float *values, int count, uint32_t *magnitude);
  RaiseMagnitude *raise_magnitude;
  using Encode = void(const float *values, int count, float factor, void *codes, int64_t stride);
  Encode *encode[3];  // E4M3, E5M2, and pairs of E2M1: of pairs is the stride, the count one of values

  // Adds to *row_sum, unless it is NULL.
  using SwigluBackward = void(const GatingRun &run, const GatingForm &form, RowSum<double> *row_sum);
  SwigluBackward *swiglu_backward[kNumCpuTypes];
};

// Every set gives the same bits for RoPE. Where there is a fused multiply-add (in all but SSE2) SwiGLU uses it, for a
// quarter less time and with other last bits. Where in a run an element stands makes no difference.
//
// The base set runs on every processor of the target: SSE2 on x86-64, Advanced SIMD on aarch64.
extern const CpuKernels kBaseCpuKernels;
#if defined(ROPE_X86_KERNELS)
extern const CpuKernels kX86V3CpuKernels;  // AVX2
extern const CpuKernels kX86V4CpuKernels;  // AVX-512
#endif

constexpr int kMaxCpuKernels = 3;

// The kernels that this processor can run, slowest first; returns how many there are, at least 1.
int list_cpu_kernels(const CpuKernels *kernels[kMaxCpuKernels]);

// The fastest of them, or those that the environment variable ROPE_CPU_ISA holds the process to. Chosen at first use.
const CpuKernels &cpu_kernels();

inline CpuType cpu_type(rope_dtype_t dtype) {
  switch (dtype) {
    case ROPE_DTYPE_F16:
      return kCpuF16;
    case ROPE_DTYPE_BF16:
      return kCpuBF16;
    case ROPE_DTYPE_F64:
      return kCpuF64;
    case ROPE_DTYPE_F8_E4M3:
      return kCpuE4M3;
    case ROPE_DTYPE_F8_E5M2:
      return kCpuE5M2;
    default:
      return kCpuF32;
  }
}

}  // namespace rope
