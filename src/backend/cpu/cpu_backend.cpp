// cpu_backend.cpp - walks the tokens and rows of a problem and hands each to an inner loop
#include <string.h>

#include "backend/backend.hpp"
#include "backend/cpu/cpu_kernels.hpp"
#include "backend/cpu/thread_pool.hpp"
#include "core/float16.hpp"

namespace rope {

namespace {

const CpuKernels &kernels() {
  return kBaseCpuKernels;
}

CpuType cpu_type(rope_dtype_t dtype) {
  switch (dtype) {
    case ROPE_DTYPE_F16:
      return kCpuF16;
    case ROPE_DTYPE_BF16:
      return kCpuBF16;
    case ROPE_DTYPE_F64:
      return kCpuF64;
    default:
      return kCpuF32;
  }
}

struct Range {
  int64_t begin;
  int64_t end;
};

// Part `index` of `count` nearly equal parts of 0 to total.
Range part_of(int64_t total, int count, int index) {
  const int64_t size = total / count, rest = total % count;
  const int64_t begin = index * size + (index < rest ? index : rest);
  return {begin, begin + size + (index < rest ? 1 : 0)};
}

int64_t read_integer(const TokenIntegers &source, int64_t batch, int64_t token) {
  const int64_t at = batch * source.batch_stride + token * source.token_stride;
  if (source.is_64_bit) return reinterpret_cast<const int64_t *>(source.data)[at];
  return reinterpret_cast<const int32_t *>(source.data)[at];
}

// Sums wrap, as the header says; hence unsigned.
uint64_t position_of(const RopeProblem &problem, int64_t batch, int64_t token) {
  uint64_t position = static_cast<uint64_t>(problem.position_offset);
  position +=
      static_cast<uint64_t>(problem.positions.is_present ? read_integer(problem.positions, batch, token) : token);
  if (problem.start_positions.is_present) {
    position += static_cast<uint64_t>(read_integer(problem.start_positions, batch, token));
  }
  return position;
}

template <typename T>
void read_column(const TableColumns &columns, int64_t batch, int64_t row, int pairs, float *values) {
  const T *data = reinterpret_cast<const T *>(columns.data) + batch * columns.batch_stride + row * columns.row_stride;
  for (int pair = 0; pair < pairs; ++pair) values[pair] = to_float(data[pair * columns.pair_stride]);
}

void read_column(const TableColumns &columns, rope_dtype_t dtype, int64_t batch, int64_t row, int pairs,
                 float *values) {
  switch (dtype) {
    case ROPE_DTYPE_F16:
      return read_column<Float16>(columns, batch, row, pairs, values);
    case ROPE_DTYPE_BF16:
      return read_column<BFloat16>(columns, batch, row, pairs, values);
    default:
      return read_column<float>(columns, batch, row, pairs, values);
  }
}

// The angles of one token. False: the token has none, because its position is outside the table.
bool fill_token_angles(const RopeProblem &problem, int64_t batch, int64_t token, float *cos, float *sin) {
  const RopeGeometry &geometry = *problem.geometry;
  const int pairs = geometry.rotary_dim / 2;
  const uint64_t position = position_of(problem, batch, token);
  if (problem.has_table) {
    const AngleTable &table = problem.table;
    if (position >= static_cast<uint64_t>(table.rows)) return false;
    const int64_t row = static_cast<int64_t>(position);
    read_column(table.cos, table.dtype, batch, row, pairs, cos);
    read_column(table.sin, table.dtype, batch, row, pairs, sin);
  } else {
    kernels().fill_angles(geometry.increments, pairs, position, geometry.attention_scale, cos, sin);
  }
  if (problem.is_transposed) {
    for (int pair = 0; pair < pairs; ++pair) sin[pair] = -sin[pair];
  }
  return true;
}

void copy_channels(const char *in, int64_t in_stride, char *out, int64_t out_stride, int64_t size, int begin, int end) {
  if (in_stride == 1 && out_stride == 1) {
    memcpy(out + begin * size, in + begin * size, static_cast<size_t>((end - begin) * size));
    return;
  }
  for (int channel = begin; channel < end; ++channel) {
    memcpy(out + channel * out_stride * size, in + channel * in_stride * size, static_cast<size_t>(size));
  }
}

struct RopeJob {
  const RopeProblem *problem;
  int num_tasks;
};

// One part of the rows (token, head), tokens slowest, so that the heads of a token share its angles.
void rotate_rows(void *context, int index) {
  const RopeJob &job = *static_cast<const RopeJob *>(context);
  const RopeProblem &problem = *job.problem;
  const RopeGeometry &geometry = *problem.geometry;
  const int64_t size = dtype_size(geometry.dtype);
  const int window_end = geometry.rotary_offset + geometry.rotary_dim;
  CpuKernels::Rotate *rotate =
      kernels().rotate[cpu_type(geometry.dtype)][geometry.style == ROPE_STYLE_HALF ? kCpuHalf : kCpuInterleaved];
  float cos[kMaxPairs], sin[kMaxPairs];

  const int64_t heads_per_token = problem.heads_per_token();
  const Range rows = part_of(problem.batches * problem.tokens * heads_per_token, job.num_tasks, index);
  for (int64_t row = rows.begin; row < rows.end;) {
    const int64_t batch = row / heads_per_token / problem.tokens, token = row / heads_per_token % problem.tokens;
    const bool is_rotated = fill_token_angles(problem, batch, token, cos, sin);
    int64_t head = row % heads_per_token;  // counted from the first head of the tensor at hand
    for (int i = 0; i < problem.num_tensors; ++i) {
      const RotatedTensor &tensor = problem.tensor[i];
      if (tensor.heads == 0) continue;  // it may have no memory
      const int64_t in_channel = tensor.in_stride[kChannel], out_channel = tensor.out_stride[kChannel];
      const char *in = tensor.in + (batch * tensor.in_stride[kBatch] + token * tensor.in_stride[kToken]) * size;
      char *out = tensor.out + (batch * tensor.out_stride[kBatch] + token * tensor.out_stride[kToken]) * size;
      for (; head < tensor.heads && row < rows.end; ++head, ++row) {
        const char *head_in = in + head * tensor.in_stride[kHead] * size;
        char *head_out = out + head * tensor.out_stride[kHead] * size;
        if (is_rotated) {
          rotate(head_in + geometry.rotary_offset * in_channel * size, in_channel,
                 head_out + geometry.rotary_offset * out_channel * size, out_channel, geometry.rotary_dim / 2, cos,
                 sin);
        }
        if (tensor.is_in_place) continue;
        if (is_rotated) {
          copy_channels(head_in, in_channel, head_out, out_channel, size, 0, geometry.rotary_offset);
          copy_channels(head_in, in_channel, head_out, out_channel, size, window_end, geometry.head_dim);
        } else {
          copy_channels(head_in, in_channel, head_out, out_channel, size, 0, geometry.head_dim);
        }
      }
      head -= tensor.heads;
    }
  }
}

struct SwigluJob {
  const SwigluProblem *problem;
  int num_tasks;
};

int64_t offset_of_row(const SwigluProblem &problem, const int64_t *stride, int64_t row) {
  int64_t offset = 0;
  for (int axis = problem.ndim - 2; axis >= 0; --axis) {
    offset += row % problem.shape[axis] * stride[axis];
    row /= problem.shape[axis];
  }
  return offset;
}

// Leaves of gate's first axis the entries that num_rows says there are. It is an axis of its own, or of length 1 and gone.
void limit_rows(SwigluProblem *problem) {
  int64_t rows;
  if (problem->num_rows_dtype == ROPE_DTYPE_I64) {
    memcpy(&rows, problem->num_rows, sizeof rows);
  } else {
    int32_t narrow_rows;
    memcpy(&narrow_rows, problem->num_rows, sizeof narrow_rows);
    rows = narrow_rows;
  }
  if (rows < 0) rows = 0;
  int axis = 0;
  while (axis < problem->ndim - 1 && problem->row_index_stride[axis] == 0) ++axis;
  const bool is_gone = problem->row_index_stride[axis] == 0;
  if (is_gone && rows > 0) return;
  if (rows < problem->shape[axis]) problem->shape[axis] = rows;
}

void store_row_gradient(const SwigluProblem &problem, int64_t row, int64_t column, const RowSum<double> &sum) {
  const int64_t *stride = problem.grad_row_scale_stride;
  const int64_t offset = offset_of_row(problem, stride, row) + column * stride[problem.ndim - 1];
  char *target = problem.grad_row_scale + offset * dtype_size(problem.row_scale_dtype);
  const auto store = [&](auto value) { memcpy(target, &value, sizeof value); };
  const double total = sum.total();
  switch (problem.row_scale_dtype) {
    case ROPE_DTYPE_F16:
      return store(round_to<Float16>(static_cast<float>(total)));
    case ROPE_DTYPE_BF16:
      return store(round_to<BFloat16>(static_cast<float>(total)));
    case ROPE_DTYPE_F64:
      return store(total);
    default:
      return store(static_cast<float>(total));
  }
}

// One part of the elements, numbered with the last axis fastest, cut where the last axis ends. Rows that are summed are
// not parted, so that the order of a sum does not depend on the tasks.
void gate_elements(void *context, int index) {
  const SwigluJob &job = *static_cast<const SwigluJob *>(context);
  const SwigluProblem &problem = *job.problem;
  const int64_t size = dtype_size(problem.dtype);
  const CpuType type = cpu_type(problem.dtype);
  const int last = problem.ndim - 1;
  const int64_t columns = problem.shape[last];
  const bool has_sums = problem.grad_row_scale != nullptr;
  const int64_t summed = has_sums ? problem.num_summed_elements() : 1;
  const Range parts = part_of(problem.num_elements() / summed, job.num_tasks, index);
  const Range elements = {parts.begin * summed, parts.end * summed};
  RowSum<double> sum = {};
  for (int64_t element = elements.begin; element < elements.end;) {
    const int64_t row = element / columns, column = element % columns;
    GatingRun run = {};
    run.count = columns - column;
    if (run.count > elements.end - element) run.count = elements.end - element;
    if (has_sums && run.count > summed - element % summed) run.count = summed - element % summed;
    for (int i = 0; i < problem.num_inputs(); ++i) {
      run.in_stride[i] = problem.in_stride[i][last];
      run.in[i] =
          problem.in[i] + (offset_of_row(problem, problem.in_stride[i], row) + column * run.in_stride[i]) * size;
    }
    for (int i = 0; i < problem.num_outputs(); ++i) {
      if (problem.out[i] == nullptr) continue;
      run.out_stride[i] = problem.out_stride[i][last];
      run.out[i] =
          problem.out[i] + (offset_of_row(problem, problem.out_stride[i], row) + column * run.out_stride[i]) * size;
    }
    if (problem.row_scale != nullptr) {
      run.row_scale_stride = problem.row_scale_stride[last];
      run.row_scale =
          problem.row_scale + (offset_of_row(problem, problem.row_scale_stride, row) + column * run.row_scale_stride) *
                                  dtype_size(problem.row_scale_dtype);
      run.is_row_scale_f32 = problem.row_scale_dtype == ROPE_DTYPE_F32;
    }
    if (problem.is_backward) {
      kernels().swiglu_backward[type](run, problem.form, has_sums ? &sum : nullptr);
    } else {
      kernels().swiglu_forward[type](run, problem.form);
    }
    element += run.count;
    if (has_sums && element % summed == 0) {
      store_row_gradient(problem, row, column, sum);
      sum = {};
    }
  }
}

int32_t count_devices(const char *) {
  return 1;
}

rope_status_t open_cpu(int32_t num_threads, DeviceInfo *device) {
  *device = DeviceInfo{};
  device->num_threads = num_threads != 0 ? num_threads : count_usable_processors();
  return ROPE_STATUS_SUCCESS;
}

rope_status_t open_rope(const char *, const RopeGeometry &, int32_t, int32_t num_threads, DeviceInfo *device) {
  return open_cpu(num_threads, device);
}

rope_status_t open_swiglu(const char *, rope_dtype_t, int32_t, int32_t num_threads, DeviceInfo *device) {
  return open_cpu(num_threads, device);
}

rope_status_t run_rope(const char *, const RopeProblem &problem, const RopePlan &plan, int32_t, rope_stream_t) {
  RopeJob job = {&problem, plan.num_tasks};
  run_tasks(plan.num_tasks, rotate_rows, &job);
  return ROPE_STATUS_SUCCESS;
}

rope_status_t run_swiglu(const char *, const SwigluProblem &problem, const SwigluPlan &plan, int32_t, rope_stream_t) {
  SwigluProblem limited = problem;
  if (problem.num_rows != nullptr) limit_rows(&limited);
  if (limited.is_empty()) return ROPE_STATUS_SUCCESS;
  SwigluJob job = {&limited, plan.num_tasks};
  run_tasks(plan.num_tasks, gate_elements, &job);
  return ROPE_STATUS_SUCCESS;
}

}  // namespace

const Backend kCpuBackend = {count_devices, open_rope, open_swiglu, run_rope, run_swiglu, kBaseCpuKernels.name};

}  // namespace rope
