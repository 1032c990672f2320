// SPDX-License-Identifier: Apache-2.0
// cpu_rope.cpp - walks the tokens and heads of a RoPE problem: angles once per token, then each head by an inner loop
#include "backend/cpu/cpu_rope.hpp"

#include "backend/cpu/cpu_kernels.hpp"
#include "backend/cpu/cpu_tokens.hpp"
#include "backend/cpu/cpu_windows.hpp"
#include "backend/cpu/thread_pool.hpp"
#include "core/problem/view.hpp"
#include "core/problem/visit_dtype.hpp"

namespace rope {

namespace {

// ---- Heads ----

CpuKernels::Rotate<float> *rotate_of(const CpuKernels &kernels, const RopeGeometry &geometry, float) {
  const CpuType type = cpu_type(geometry.dtype);
  return geometry.rounds_each ? kernels.rotate_rounded[type] : kernels.rotate[type];
}

CpuKernels::Rotate<double> *rotate_of(const CpuKernels &kernels, const RopeGeometry &, double) {
  return kernels.rotate_f64;
}

// Consecutive heads of one token and tensor.
struct Heads {
  Window in;  // the first head's, with all its channels
  Window out;
  int64_t in_stride;
  int64_t out_stride;
  int64_t count;
  bool is_in_place;
  bool is_followed;  // as in HeadRun

  Heads from(int64_t head, int64_t size) const {
    Heads rest = *this;
    rest.in.data += head * in_stride * size;
    rest.out.data += head * out_stride * size;
    rest.count -= head;
    return rest;
  }
};

template <typename Real>
void rotate_windows(const RopeProblem &problem, const Heads &heads, CpuKernels::Rotate<Real> *rotate,
                    const TokenAngles<Real> &angles) {
  const RopeGeometry &geometry = *problem.geometry;
  const int64_t size = dtype_size(geometry.dtype);
  const int pairs = geometry.pairs();
  const Window &in = heads.in, &out = heads.out;
  const int run = pairs_of_run(in, out, pairs);
  for (int pair = 0; pair < pairs; pair += run) {
    PairRun from = in.run_from(pair, size, heads.in_stride);
    from.is_followed = heads.is_followed;
    rotate(from, out.run_from(pair, size, heads.out_stride), run, heads.count,
           angles.from(pair, problem.table.is_by_channel));
  }
}

template <typename Real>
void process_heads(const RopeProblem &problem, const Heads &heads, TokenState state, CpuKernels::Rotate<Real> *rotate,
                   const TokenAngles<Real> &angles) {
  const RopeGeometry &geometry = *problem.geometry;
  const int64_t size = dtype_size(geometry.dtype);
  const int begin = geometry.rotary_offset, end = begin + geometry.rotary_dim;
  Heads windows = heads;
  windows.in.data = heads.in.channel(begin, size);
  windows.out.data = heads.out.channel(begin, size);
  const bool is_converted = heads.in.distance != heads.out.distance;
  if (is_converted && heads.is_in_place) {
    char buffer[kMaxHeadDim * sizeof(double)];
    for (int64_t head = 0; head < heads.count; ++head) {
      Heads window = windows.from(head, size);
      const Window copy = {buffer, 1, heads.in.distance};
      copy_channels(window.in, copy, size, 0, geometry.rotary_dim);
      window.in = copy;
      window.count = 1;
      if (state == kRotated) {
        rotate_windows(problem, window, rotate, angles);
      } else {
        move_pairs(window.in, window.out, size, geometry.pairs());
      }
    }
    return;
  }
  if (state == kRotated) rotate_windows(problem, windows, rotate, angles);
  if (heads.is_in_place || (state == kRotated && geometry.rotary_dim == geometry.head_dim)) return;
  for (int64_t head = 0; head < heads.count; ++head) {
    const Heads whole = heads.from(head, size), window = windows.from(head, size);
    if (state != kRotated && is_converted) {
      move_pairs(window.in, window.out, size, geometry.pairs());
    } else if (state != kRotated) {
      copy_channels(window.in, window.out, size, 0, geometry.rotary_dim);
    }
    copy_channels(whole.in, whole.out, size, 0, begin);
    copy_channels(whole.in, whole.out, size, end, geometry.head_dim);
  }
}

}  // namespace

template <typename Real>
void rotate_head_run(const RopeProblem &problem, const HeadRun &run, TokenState state,
                     const TokenAngles<Real> &angles) {
  const int64_t size = dtype_size(problem.geometry->dtype);
  const RotatedTensor &tensor = problem.tensor[run.tensor];
  const int64_t in = run.batch * tensor.in_stride[kBatch] + run.token * tensor.in_stride[kToken];
  const int64_t out = run.batch * tensor.out_stride[kBatch] + run.token * tensor.out_stride[kToken];
  const Heads heads = {{const_cast<char *>(tensor.in) + in * size, tensor.in_stride[kChannel], problem.in_distance},
                       {tensor.out + out * size, tensor.out_stride[kChannel], problem.out_distance},
                       tensor.in_stride[kHead],
                       tensor.out_stride[kHead],
                       run.head + run.count,
                       tensor.is_in_place,
                       run.is_followed};
  process_heads(problem, heads.from(run.head, size), state, rotate_of(cpu_kernels(), *problem.geometry, Real{}),
                angles);
}

template void rotate_head_run(const RopeProblem &, const HeadRun &, TokenState, const TokenAngles<float> &);
template void rotate_head_run(const RopeProblem &, const HeadRun &, TokenState, const TokenAngles<double> &);

namespace {

struct RopeJob {
  const RopeProblem *problem;
  int num_tasks;
};

// Runs one part of the rows (token, head). Tokens are slowest, so that the heads of a token share its angles.
template <typename Real>
void process_rows(void *context, int index) {
  const RopeJob &job = *static_cast<const RopeJob *>(context);
  const RopeProblem &problem = *job.problem;
  TokenAngles<Real> angles;
  if (index == 0) check_sequences(problem);

  const Range rows = part_of(problem.batches * problem.tokens * problem.heads_per_token(), job.num_tasks, index);
  TokenState state = kAbsent;
  const auto begin = [&](int64_t batch, int64_t token, bool is_first) {
    const TokenPlace place = fill_token_angles(problem, batch, token, &angles);
    if (place.is_faulty && is_first) count_fault(problem.fault, batch * problem.tokens + token);
    return state = place.state;
  };
  walk_rows(problem, rows, begin, [&](const HeadRun &run) { rotate_head_run(problem, run, state, angles); });
}

// ---- Tables ----

template <typename T>
void fill_rows(const TableProblem &problem) {
  using Real = RealOf<T>;
  const RopeGeometry &geometry = *problem.geometry;
  const int columns = problem.is_by_channel ? geometry.pairs() : problem.width;
  const Real scale = static_cast<Real>(geometry.attention_scale);
  uint64_t phases[kMaxPairs];
  Real cos[kMaxPairs], sin[kMaxPairs];
  const auto store = [&](const TableColumns &target, int64_t axis, int64_t row, int column, Real value) {
    T *data = reinterpret_cast<T *>(const_cast<char *>(target.data));
    data[axis * target.axis_stride + row * target.row_stride + column * target.column_stride] = round_to<T>(value);
  };
  for (int64_t row = 0; row < problem.rows; ++row) {
    for (int i = 0; i < columns; ++i) phases[i] = phase_of(static_cast<uint64_t>(row), geometry.increments[i]);
    fill_angles_of(Real{})(phases, columns, scale, cos, sin);
    for (int64_t axis = 0; axis < problem.axes; ++axis) {
      for (int i = 0; i < columns; ++i) {
        const int column = problem.is_by_channel ? first_channel(i, geometry.out_distance) : i;
        store(problem.cos, axis, row, column, cos[i]);
        store(problem.sin, axis, row, column, sin[i]);
        if (!problem.is_by_channel) continue;
        store(problem.cos, axis, row, column + geometry.out_distance, cos[i]);
        store(problem.sin, axis, row, column + geometry.out_distance, sin[i]);
      }
    }
  }
}

}  // namespace

void run_cpu_rope(const RopeProblem &problem, int num_tasks) {
  RopeJob job = {&problem, num_tasks};
  run_tasks(num_tasks, problem.geometry->dtype == ROPE_DTYPE_F64 ? process_rows<double> : process_rows<float>, &job);
}

void fill_cpu_tables(const TableProblem &problem) {
  visit_dtype(problem.dtype, [&](auto element) { fill_rows<decltype(element)>(problem); });
}

}  // namespace rope
