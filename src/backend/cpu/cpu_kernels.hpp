// SPDX-License-Identifier: Apache-2.0
// cpu_kernels.hpp - the inner loops of the CPU backend as a table of functions; one table per instruction set
#pragma once

#include <stddef.h>
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
  kCpuE4M3 = kNumCpuTypes,  // output types only
  kCpuE5M2
};

// The cosines and sines for x' and those for y', for a run of pairs. They are the same arrays unless a table has a
// column for each channel.
template <typename Real>
struct PairAngles {
  const Real *cos_x;
  const Real *sin_x;
  const Real *cos_y;
  const Real *sin_y;

  ROPE_HOST PairAngles from(int pair) const { return {cos_x + pair, sin_x + pair, cos_y + pair, sin_y + pair}; }
};

// The location of a run of pairs, in one or several heads: the channels of pair i of head h are x[h * head_stride + i *
// step] and y[h * head_stride + i * step].
struct PairRun {
  void *x;
  void *y;
  int64_t step;
  int64_t head_stride;
  bool is_followed = false;  // by other tokens of the task, whose heads are worth prefetching
};

// A destination of a step's heads. Strides count elements.
struct StepTarget {
  char *data;  // channel 0 of the first head
  CpuType type;
  int64_t head_stride;
  int64_t channel_stride;
  ChannelPart part;
  bool is_streamed;             // non-temporal stores are permitted; the caller issues a store fence before others read
  const char *scale;            // static scale for codes of the first head; NULL: 1
  int64_t scale_head_stride;    // in elements
  const WrittenScales *scales;  // written scales, if present, instead of the static scale
  int64_t scales_row;           // index of the first head's scales, in elements

  ROPE_HOST bool has_codes() const { return type >= kCpuE4M3; }
  // The number of groups of a head's channels. Each group has its own scale.
  ROPE_HOST int groups() const { return scales->is_present() ? scales->groups : 1; }
};

// How values are converted to codes.
struct CodeRule {
  bool scale_multiplies;
  bool rounds_before;  // values are first rounded to the data's type
  uint32_t *amax;      // bits of the largest magnitude so far, to be raised; NULL: not needed

  ROPE_HOST float factor_of(const StepTarget &target, int64_t head) const {
    if (target.scale == nullptr) return 1.0f;
    const float scale = reinterpret_cast<const float *>(target.scale)[head * target.scale_head_stride];
    return code_factor(scale, scale_multiplies);
  }
  ROPE_HOST bool needs_magnitudes(const StepTarget &target) const {
    return amax != nullptr || target.scales->is_present();
  }
};

// The weights of a tensor's norm in the order in which loops need them, for weights that all heads have in common. The
// first run of a call fills them for the runs that follow. They are filled again when tokens that are rotated follow
// tokens that are not, or the reverse.
struct OrderedWeights {
  bool is_filled;
  bool is_turned;
  float plain[kMaxHeadDim];  // weight plus offset; 1 without weights
  // for x, and from kMaxPairs on for y; for heads that are not rotated, in the order of channels
  float ordered[kMaxHeadDim];
};

// Large buffers of loops are not on the stack, which may be that of a small thread, but in room that the caller lends.
constexpr size_t kStepRoomBytes = size_t{120} << 10;

// Heads of one token and tensor during a step.
template <typename Real>
struct StepRun {
  const char *in;  // channel 0 of the first head, or its address if that channel were present
  int64_t head_stride;
  int64_t channel_stride;
  const char *pass;  // channels outside the window of the first head; NULL: they are in `in`
  int64_t pass_head_stride;
  int64_t pass_channel_stride;
  int64_t heads;
  bool is_followed;  // as in PairRun
  int channels;
  int window_begin;
  int pairs;
  int in_distance;  // differs from out_distance if pairs change their places
  int out_distance;
  bool is_turned;
  bool rounds_each;  // products and sums of the rotation are rounded to the data's type
  PairAngles<Real> angles;
  const NormForm<Real> *norm;  // NULL: none
  bool is_norm_after;          // the norm follows the rotation
  bool is_norm_of_token;       // the norm is over all heads of the run
  ChannelNumbers weight;       // from the first head on
  OrderedWeights *weights;     // the stored copy in order, if there is one
  ChannelNumbers bias;
  RowFactor factor;       // from the first head on
  StepTarget targets[3];  // the first may be the input
  int num_targets;
  bool accumulates;  // results are added to the only target
  CodeRule code;
  char *room;  // kStepRoomBytes, aligned to 64, for the loop's buffers

  ROPE_HOST bool has_codes() const {
    bool has = false;
    for (int i = 0; i < num_targets; ++i) has = has || targets[i].has_codes();
    return has;
  }

  template <typename Buffers>
  ROPE_HOST Buffers *buffers() const {
    static_assert(sizeof(Buffers) <= kStepRoomBytes && alignof(Buffers) <= 64, "the buffers of a loop exceed its room");
    return reinterpret_cast<Buffers *>(room);
  }
};

// Heads of one token and tensor during the backward pass of a norm.
template <typename Real>
struct NormGradientRun {
  StepRun<Real> gradient;  // gradient of forward's output; its target, if any, receives the gradient of forward's input
  StepRun<Real> input;     // forward's input, including its norm
  HeadSums<Real> weight_sums;
  HeadSums<Real> bias_sums;
};

// Elements of SwiGLU along one axis. Inputs and outputs of forward: gate, up; out. Inputs and outputs of
// backward: gate, up, grad_out; grad_gate, grad_up, out.
struct GatingRun {
  const void *in[3];
  int64_t in_stride[3];
  void *out[3];  // backward: NULL for an output that is not requested
  int64_t out_stride[3];
  const void *row_scale;  // NULL: 1
  int64_t row_scale_stride;
  bool is_row_scale_f32;  // otherwise the type of the data
  const void *bias[2];    // for gate and up; NULL: none
  int64_t bias_stride[2];
  bool is_bias_f32[2];  // otherwise the type of the data
  bool is_streamed;  // forward: non-temporal stores are permitted; the caller issues a store fence before others read
  int64_t count;
};

// Strides and steps count elements. An output may be identical to its input.
struct CpuKernels {
  const char *name;

  // cos and sin of phases, multiplied by `scale`.
  template <typename Real>
  using FillAngles = void(const uint64_t *phases, int count, Real scale, Real *cos, Real *sin);
  FillAngles<float> *fill_angles;
  FillAngles<double> *fill_angles_f64;

  // Rotates a run of at most kMaxPairs pairs in each head and writes the result to `out`.
  template <typename Real>
  using Rotate = void(const PairRun &in, const PairRun &out, int pairs, int64_t heads, const PairAngles<Real> &angles);
  Rotate<float> *rotate[kCpuF64];          // for the types before kCpuF64
  Rotate<float> *rotate_rounded[kCpuF64];  // for 16-bit types: each product and sum is rounded to the type
  Rotate<double> *rotate_f64;

  // Values that are neither normalised nor rotated keep their bits in targets of the data's type.
  template <typename Real>
  using Step = void(const StepRun<Real> &run);
  Step<float> *step[kCpuF64];  // for the types before kCpuF64
  Step<double> *step_f64;

  template <typename Real>
  using NormGradient = void(const NormGradientRun<Real> &run);
  NormGradient<float> *norm_gradient[kCpuF64];
  NormGradient<double> *norm_gradient_f64;

  using SwigluForward = void(const GatingRun &run, const GatingForm &form);
  SwigluForward *swiglu_forward[kNumCpuTypes];
  SwigluForward *swiglu_values[kCpuF64];           // for the types before it: out is floats, not rounded
  SwigluForward *swiglu_gradient_values[kCpuF64];  // backward, so

  // Numbers that are to be codes.
  using RoundValues = void(float *values, int count);
  RoundValues *round_values[kCpuF64];  // to the type and back
  using RaiseMagnitude = void(const float *values, int count, uint32_t *magnitude);
  RaiseMagnitude *raise_magnitude;
  using Encode = void(const float *values, int count, float factor, void *codes, int64_t stride);
  Encode *encode[3];  // E4M3, E5M2, and pairs of E2M1: of pairs is the stride, the count one of values

  // Adds to *row_sum unless it is NULL.
  using SwigluBackward = void(const GatingRun &run, const GatingForm &form, RowSum<double> *row_sum);
  SwigluBackward *swiglu_backward[kNumCpuTypes];
};

// All sets give identical bits for RoPE. For SwiGLU, sets with a fused multiply-add (all but SSE2) use it, which takes
// a quarter less time and changes the last bits. The result of an element does not depend on its place in a run.
//
// The base set runs on every processor of the target: SSE2 on x86-64, Advanced SIMD on aarch64.
extern const CpuKernels kBaseCpuKernels;
#if defined(ROPE_X86_KERNELS)
extern const CpuKernels kX86V3CpuKernels;  // AVX2
extern const CpuKernels kX86V4CpuKernels;  // AVX-512
#endif

constexpr int kMaxCpuKernels = 3;

// Lists the kernels that this processor can run, slowest first, and returns their number, at least 1.
int list_cpu_kernels(const CpuKernels *kernels[kMaxCpuKernels]);

// The fastest kernels, or those named by the environment variable ROPE_CPU_ISA. Chosen at the first use.
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
