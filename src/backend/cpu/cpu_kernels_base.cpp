// cpu_kernels_base.cpp - the inner loops for the target's base instruction set
//
// Plain loops that the compiler vectorises. Loops over contiguous elements have their steps as literals; `ivdep` tells
// the compiler what the ABI promises and aliasing analysis cannot see: an output is its input or disjoint from it.
#include "backend/cpu/cpu_kernels.hpp"
#include "core/float16.hpp"
#include "core/gating.hpp"
#include "core/rotation.hpp"

namespace rope {

namespace {

template <typename Real>
void fill_angles(const uint64_t *phases, int count, Real scale, Real *__restrict cos, Real *__restrict sin) {
  for (int i = 0; i < count; ++i) {
    const CosSin<Real> angle = cos_sin_of_phase<Real>(phases[i]);
    cos[i] = multiply_rounded(angle.cos, scale);
    sin[i] = multiply_rounded(angle.sin, scale);
  }
}

template <typename T, typename Real>
inline __attribute__((always_inline)) void rotate_pairs(const PairRun &in, int64_t in_step, const PairRun &out,
                                                        int64_t out_step, int pairs, const PairAngles<Real> &angles) {
  const T *x_in = static_cast<const T *>(in.x), *y_in = static_cast<const T *>(in.y);
  T *x_out = static_cast<T *>(const_cast<void *>(out.x)), *y_out = static_cast<T *>(const_cast<void *>(out.y));
  const Real *cos_x = angles.cos_x, *sin_x = angles.sin_x, *cos_y = angles.cos_y, *sin_y = angles.sin_y;
#pragma GCC ivdep
  for (int64_t i = 0; i < pairs; ++i) {
    const Pair<Real> pair = rotate<Real>({to_real<Real>(x_in[i * in_step]), to_real<Real>(y_in[i * in_step])},
                                         {cos_x[i], sin_x[i]}, {cos_y[i], sin_y[i]});
    x_out[i * out_step] = round_to<T>(pair.x);
    y_out[i * out_step] = round_to<T>(pair.y);
  }
}

// Steps of 1 and 2 as literals: those of HALF and INTERLEAVED over contiguous channels.
template <typename T, typename Real>
inline __attribute__((always_inline)) void rotate_steps(const PairRun &in, const PairRun &out, int pairs,
                                                        const PairAngles<Real> &angles) {
  if (in.step == 1 && out.step == 1) {
    rotate_pairs<T>(in, 1, out, 1, pairs, angles);
  } else if (in.step == 2 && out.step == 2) {
    rotate_pairs<T>(in, 2, out, 2, pairs, angles);
  } else if (in.step == 2 && out.step == 1) {
    rotate_pairs<T>(in, 2, out, 1, pairs, angles);
  } else if (in.step == 1 && out.step == 2) {
    rotate_pairs<T>(in, 1, out, 2, pairs, angles);
  } else {
    rotate_pairs<T>(in, in.step, out, out.step, pairs, angles);
  }
}

template <typename T, typename Real>
void rotate_run(const PairRun &in, const PairRun &out, int pairs, const PairAngles<Real> &angles) {
  if (angles.cos_x == angles.cos_y && angles.sin_x == angles.sin_y) {
    const Real *cos = angles.cos_x, *sin = angles.sin_x;
    rotate_steps<T, Real>(in, out, pairs, {cos, sin, cos, sin});
  } else {
    rotate_steps<T>(in, out, pairs, angles);
  }
}

template <bool IsPlain, typename T>
inline __attribute__((always_inline)) void gate_elements(const T *gate, int64_t gate_step, const T *up, int64_t up_step,
                                                         T *out, int64_t out_step, int64_t count,
                                                         const GatingForm form) {
#pragma GCC ivdep
  for (int64_t i = 0; i < count; ++i) {
    out[i * out_step] = round_to<T>(swiglu<IsPlain>(to_float(gate[i * gate_step]), to_float(up[i * up_step]), form));
  }
}

template <typename T>
void swiglu_forward(const void *gate, int64_t gate_stride, const void *up, int64_t up_stride, void *out,
                    int64_t out_stride, int64_t count, const GatingForm &form) {
  const T *g = static_cast<const T *>(gate);
  const T *u = static_cast<const T *>(up);
  T *o = static_cast<T *>(out);
  const bool is_contiguous = gate_stride == 1 && up_stride == 1 && out_stride == 1;
  if (is_contiguous && form.is_plain) {
    gate_elements<true>(g, 1, u, 1, o, 1, count, form);
  } else if (is_contiguous) {
    gate_elements<false>(g, 1, u, 1, o, 1, count, form);
  } else if (form.is_plain) {
    gate_elements<true>(g, gate_stride, u, up_stride, o, out_stride, count, form);
  } else {
    gate_elements<false>(g, gate_stride, u, up_stride, o, out_stride, count, form);
  }
}

constexpr int64_t kChunk = 256;

struct GatingChunk {
  float in[3][kChunk];
  float out[3][kChunk];
};

template <bool IsPlain>
void differentiate_chunk(GatingChunk *chunk, int64_t length, bool has_out, const GatingForm form) {
  for (int64_t i = 0; i < length; ++i) {
    const SwigluGradient result = swiglu_gradient<IsPlain>(chunk->in[0][i], chunk->in[1][i], chunk->in[2][i], form);
    chunk->out[0][i] = result.gate;
    chunk->out[1][i] = result.up;
  }
  if (!has_out) return;
  for (int64_t i = 0; i < length; ++i) chunk->out[2][i] = swiglu<IsPlain>(chunk->in[0][i], chunk->in[1][i], form);
}

// Values go through small buffers, so that one loop serves any of the outputs, in place or not.
template <typename T>
void swiglu_backward(const void *const in[3], const int64_t in_stride[3], void *const out[3],
                     const int64_t out_stride[3], int64_t count, const GatingForm &form) {
  GatingChunk chunk;
  for (int64_t begin = 0; begin < count; begin += kChunk) {
    const int64_t length = count - begin < kChunk ? count - begin : kChunk;
    for (int input = 0; input < 3; ++input) {
      const T *source = static_cast<const T *>(in[input]) + begin * in_stride[input];
      if (in_stride[input] == 1) {
        for (int64_t i = 0; i < length; ++i) chunk.in[input][i] = to_float(source[i]);
      } else {
        for (int64_t i = 0; i < length; ++i) chunk.in[input][i] = to_float(source[i * in_stride[input]]);
      }
    }
    if (form.is_plain) {
      differentiate_chunk<true>(&chunk, length, out[2] != nullptr, form);
    } else {
      differentiate_chunk<false>(&chunk, length, out[2] != nullptr, form);
    }
    for (int output = 0; output < 3; ++output) {
      if (out[output] == nullptr) continue;
      T *target = static_cast<T *>(out[output]) + begin * out_stride[output];
      if (out_stride[output] == 1) {
        for (int64_t i = 0; i < length; ++i) target[i] = round_to<T>(chunk.out[output][i]);
      } else {
        for (int64_t i = 0; i < length; ++i) target[i * out_stride[output]] = round_to<T>(chunk.out[output][i]);
      }
    }
  }
}

}  // namespace

#if defined(__x86_64__)
#define ROPE_BASE_NAME "SSE2"
#elif defined(__aarch64__)
#define ROPE_BASE_NAME "Advanced SIMD"
#else
#define ROPE_BASE_NAME "base"
#endif

const CpuKernels kBaseCpuKernels = {
    ROPE_BASE_NAME,
    fill_angles<float>,
    fill_angles<double>,
    {rotate_run<float, float>, rotate_run<Float16, float>, rotate_run<BFloat16, float>},
    rotate_run<double, double>,
    {swiglu_forward<float>, swiglu_forward<Float16>, swiglu_forward<BFloat16>},
    {swiglu_backward<float>, swiglu_backward<Float16>, swiglu_backward<BFloat16>},
};

}  // namespace rope
