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
                                                         const Form<RealOf<T>> form) {
  using Real = RealOf<T>;
#pragma GCC ivdep
  for (int64_t i = 0; i < count; ++i) {
    out[i * out_step] =
        round_to<T>(swiglu<IsPlain>(to_real<Real>(gate[i * gate_step]), to_real<Real>(up[i * up_step]), form));
  }
}

constexpr int64_t kChunk = 256;

// A part of a run as numbers to compute with.
template <typename Real>
struct GatingChunk {
  Real in[3][kChunk];
  Real row_scale[kChunk];
  Real out[3][kChunk];
  Real half_term[kChunk];
};

template <typename T, typename Real>
void read_elements(const void *source, int64_t stride, int64_t begin, int64_t count, Real *values) {
  const T *element = static_cast<const T *>(source) + begin * stride;
  if (stride == 1) {
    for (int64_t i = 0; i < count; ++i) values[i] = to_real<Real>(element[i]);
  } else {
    for (int64_t i = 0; i < count; ++i) values[i] = to_real<Real>(element[i * stride]);
  }
}

template <typename T, typename Real>
void write_elements(const Real *values, int64_t count, void *target, int64_t stride, int64_t begin) {
  T *element = static_cast<T *>(target) + begin * stride;
  if (stride == 1) {
    for (int64_t i = 0; i < count; ++i) element[i] = round_to<T>(values[i]);
  } else {
    for (int64_t i = 0; i < count; ++i) element[i * stride] = round_to<T>(values[i]);
  }
}

template <typename T, typename Real>
void read_row_scale(const GatingRun &run, int64_t begin, int64_t count, Real *values) {
  if (run.row_scale == nullptr) {
    for (int64_t i = 0; i < count; ++i) values[i] = Real{1};
  } else if (run.is_row_scale_f32) {
    read_elements<float>(run.row_scale, run.row_scale_stride, begin, count, values);
  } else {
    read_elements<T>(run.row_scale, run.row_scale_stride, begin, count, values);
  }
}

template <typename T>
void gate_scaled_elements(const GatingRun &run, const Form<RealOf<T>> form) {
  GatingChunk<RealOf<T>> chunk;
  for (int64_t begin = 0; begin < run.count; begin += kChunk) {
    const int64_t length = run.count - begin < kChunk ? run.count - begin : kChunk;
    for (int input = 0; input < 2; ++input) {
      read_elements<T>(run.in[input], run.in_stride[input], begin, length, chunk.in[input]);
    }
    read_row_scale<T>(run, begin, length, chunk.row_scale);
    for (int64_t i = 0; i < length; ++i) {
      chunk.out[0][i] = swiglu<false>(chunk.in[0][i], chunk.in[1][i], form, chunk.row_scale[i]);
    }
    write_elements<T>(chunk.out[0], length, run.out[0], run.out_stride[0], begin);
  }
}

template <typename T>
void swiglu_forward(const GatingRun &run, const GatingForm &given) {
  const Form<RealOf<T>> form = form_in<RealOf<T>>(given);
  if (run.row_scale != nullptr) return gate_scaled_elements<T>(run, form);
  const T *g = static_cast<const T *>(run.in[0]);
  const T *u = static_cast<const T *>(run.in[1]);
  T *o = static_cast<T *>(run.out[0]);
  const int64_t gate_stride = run.in_stride[0], up_stride = run.in_stride[1], out_stride = run.out_stride[0];
  const bool is_contiguous = gate_stride == 1 && up_stride == 1 && out_stride == 1;
  if (is_contiguous && form.is_plain) {
    gate_elements<true>(g, 1, u, 1, o, 1, run.count, form);
  } else if (is_contiguous) {
    gate_elements<false>(g, 1, u, 1, o, 1, run.count, form);
  } else if (form.is_plain) {
    gate_elements<true>(g, gate_stride, u, up_stride, o, out_stride, run.count, form);
  } else {
    gate_elements<false>(g, gate_stride, u, up_stride, o, out_stride, run.count, form);
  }
}

template <bool IsPlain, typename Real>
void differentiate_chunk(GatingChunk<Real> *chunk, int64_t length, bool has_out, const Form<Real> form) {
  const auto scale = [&](int64_t i) { return IsPlain ? Real{1} : chunk->row_scale[i]; };
  for (int64_t i = 0; i < length; ++i) {
    const SwigluGradient<Real> result =
        swiglu_gradient<IsPlain>(chunk->in[0][i], chunk->in[1][i], chunk->in[2][i], form, scale(i));
    chunk->out[0][i] = result.gate;
    chunk->out[1][i] = result.up;
  }
  if (!has_out) return;
  for (int64_t i = 0; i < length; ++i) {
    chunk->out[2][i] = swiglu<IsPlain>(chunk->in[0][i], chunk->in[1][i], form, scale(i));
  }
}

// In double there is nothing to lose of a sum of floats; a sum of doubles keeps its rests.
template <typename Real>
void add_row_terms(GatingChunk<Real> *chunk, int64_t length, const Form<Real> form, RowSum<double> *row_sum) {
  for (int64_t i = 0; i < length; ++i) {
    chunk->half_term[i] = half_row_term(chunk->in[0][i], chunk->in[1][i], chunk->in[2][i], form);
  }
  RowSum<double> sum = *row_sum;
  for (int64_t i = 0; i < length; ++i) {
    if constexpr (sizeof(Real) == sizeof(float)) {
      sum.half += chunk->half_term[i];
    } else {
      sum.add(chunk->half_term[i]);
    }
  }
  *row_sum = sum;
}

// Values go through small buffers, so that one loop serves any of the outputs, in place or not.
template <typename T>
void swiglu_backward(const GatingRun &run, const GatingForm &given, RowSum<double> *row_sum) {
  const Form<RealOf<T>> form = form_in<RealOf<T>>(given);
  const bool is_plain = form.is_plain && run.row_scale == nullptr;
  GatingChunk<RealOf<T>> chunk;
  for (int64_t begin = 0; begin < run.count; begin += kChunk) {
    const int64_t length = run.count - begin < kChunk ? run.count - begin : kChunk;
    for (int input = 0; input < 3; ++input) {
      read_elements<T>(run.in[input], run.in_stride[input], begin, length, chunk.in[input]);
    }
    if (is_plain) {
      differentiate_chunk<true>(&chunk, length, run.out[2] != nullptr, form);
    } else {
      read_row_scale<T>(run, begin, length, chunk.row_scale);
      differentiate_chunk<false>(&chunk, length, run.out[2] != nullptr, form);
    }
    if (row_sum != nullptr) add_row_terms(&chunk, length, form, row_sum);
    for (int output = 0; output < 3; ++output) {
      if (run.out[output] == nullptr) continue;
      write_elements<T>(chunk.out[output], length, run.out[output], run.out_stride[output], begin);
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
    {swiglu_forward<float>, swiglu_forward<Float16>, swiglu_forward<BFloat16>, swiglu_forward<double>},
    {swiglu_backward<float>, swiglu_backward<Float16>, swiglu_backward<BFloat16>, swiglu_backward<double>},
};

}  // namespace rope
