// cpu_rope.cpp - walks the tokens and heads of a RoPE problem: angles once a token, then each head by an inner loop
#include "backend/cpu/cpu_rope.hpp"

#include <string.h>

#include "backend/cpu/cpu_kernels.hpp"
#include "backend/cpu/task_range.hpp"
#include "backend/cpu/thread_pool.hpp"
#include "core/math/rotation.hpp"
#include "core/problem/token_lookup.hpp"
#include "core/problem/view.hpp"
#include "core/problem/visit_dtype.hpp"

namespace rope {

namespace {

// ---- Where a token stands, and what is wrong with it ----

struct TokenPlace {
  int64_t batch;   // or sequence
  uint64_t index;  // in its batch or sequence
  TokenState state;
  bool is_faulty;
};

TokenPlace find_place(const Sequences &sequences, int64_t batch, int64_t token) {
  if (!sequences.is_present) return {batch, static_cast<uint64_t>(token), kRotated, false};
  if (token < sequence_entry(sequences, 0)) return {0, 0, kAbsent, true};
  if (token >= sequence_entry(sequences, sequences.count)) return {0, 0, kAbsent, false};
  const SequencePlace place = find_sequence(sequences, token);
  return {place.sequence, place.index, kRotated, false};
}

void count_fault(const FaultWords &fault, int64_t token) {
  if (fault.data == nullptr) return;
  int64_t *count = reinterpret_cast<int64_t *>(fault.data), *lowest = count + fault.stride;
  __atomic_fetch_add(count, 1, __ATOMIC_RELAXED);
  int64_t known = __atomic_load_n(lowest, __ATOMIC_RELAXED);
  while ((known == 0 || known > token + 1) &&
         !__atomic_compare_exchange_n(lowest, &known, token + 1, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
}

void check_sequences(const RopeProblem &problem) {
  const Sequences &sequences = problem.sequences;
  if (!sequences.is_present || problem.fault.data == nullptr) return;
  int64_t before = 0;
  for (int64_t i = 0; i <= sequences.count; ++i) {
    const int64_t entry = sequence_entry(sequences, i);
    if (is_faulty_entry(i, entry, before, problem.tokens)) {
      count_fault(problem.fault, token_of_entry(entry, problem.tokens));
    }
    before = entry;
  }
}

// ---- Angles ----

// Of one token: [0] makes x', [1] makes y'; the second are in use where a table has columns for each channel.
template <typename Real>
struct TokenAngles {
  Real cos[2][kMaxPairs];
  Real sin[2][kMaxPairs];

  PairAngles<Real> from(int pair, bool is_by_channel) const {
    const int y = is_by_channel ? 1 : 0;
    return {cos[0] + pair, sin[0] + pair, cos[y] + pair, sin[y] + pair};
  }
};

// Reads the columns of all pairs, and where each channel has its own those of the second channels to `second`. Rows are
// given for each axis.
template <typename T, typename Real>
void read_table_columns_of_type(const RopeGeometry &geometry, const AngleTable &table, const TableColumns &columns,
                                int64_t batch, const int64_t *rows, Real *first, Real *second) {
  const int pairs = geometry.pairs(), distance = geometry.out_distance;
  const bool is_interleaved = table.is_by_channel && distance == 1;
  // Columns follow each other for so many pairs.
  const int period = is_interleaved ? pairs : table.is_by_channel ? distance : table.width;
  const int64_t step = (is_interleaved ? 2 : 1) * columns.column_stride;
  const T *data = reinterpret_cast<const T *>(columns.data) + batch * columns.batch_stride;
  for (int pair = 0, end; pair < pairs; pair = end) {
    const int axis = geometry.pair_axis[pair], period_end = pair - pair % period + period;
    for (end = pair + 1; end < pairs && end < period_end && geometry.pair_axis[end] == axis;) ++end;
    const int column = table.is_by_channel ? first_channel(pair, distance) : pair % table.width;
    const T *source =
        data + axis * columns.axis_stride + rows[axis] * columns.row_stride + column * columns.column_stride;
    for (int i = pair; i < end; ++i) first[i] = to_real<Real>(source[(i - pair) * step]);
    if (!table.is_by_channel) continue;
    source += distance * columns.column_stride;
    for (int i = pair; i < end; ++i) second[i] = to_real<Real>(source[(i - pair) * step]);
  }
}

template <typename Real>
void read_table_columns(const RopeGeometry &geometry, const AngleTable &table, const TableColumns &columns,
                        int64_t batch, const int64_t *rows, Real *first, Real *second) {
  visit_dtype(table.dtype, [&](auto element) {
    read_table_columns_of_type<decltype(element)>(geometry, table, columns, batch, rows, first, second);
  });
}

CpuKernels::FillAngles<float> *fill_angles_of(float) {
  return cpu_kernels().fill_angles;
}

CpuKernels::FillAngles<double> *fill_angles_of(double) {
  return cpu_kernels().fill_angles_f64;
}

template <typename Real>
void read_table(const RopeProblem &problem, int64_t batch, const int64_t *rows, TokenAngles<Real> *angles) {
  const RopeGeometry &geometry = *problem.geometry;
  const AngleTable &table = problem.table;
  if (problem.angles == AngleSource::kTable) {
    read_table_columns(geometry, table, table.cos, batch, rows, angles->cos[0], angles->cos[1]);
    read_table_columns(geometry, table, table.sin, batch, rows, angles->sin[0], angles->sin[1]);
    return;
  }
  float radians[2][kMaxPairs];
  read_table_columns(geometry, table, table.cos, batch, rows, radians[0], radians[1]);
  const Real scale = static_cast<Real>(geometry.attention_scale);
  for (int channel = 0; channel < (table.is_by_channel ? 2 : 1); ++channel) {
    for (int pair = 0; pair < geometry.pairs(); ++pair) {
      const CosSin<Real> angle = cos_sin_of_angle<Real>(radians[channel][pair]);
      angles->cos[channel][pair] = multiply_rounded(angle.cos, scale);
      angles->sin[channel][pair] = multiply_rounded(angle.sin, scale);
    }
  }
}

template <typename Real>
void transpose(const RopeProblem &problem, TokenAngles<Real> *angles) {
  const bool is_by_channel = problem.table.is_by_channel;
  for (int pair = 0; pair < problem.geometry->pairs(); ++pair) {
    const Real of_y = is_by_channel ? angles->sin[1][pair] : angles->sin[0][pair];
    if (is_by_channel) angles->sin[1][pair] = -angles->sin[0][pair];
    angles->sin[0][pair] = -of_y;
  }
}

// The angles of one token, unless it has none.
template <typename Real>
TokenPlace fill_token_angles(const RopeProblem &problem, int64_t batch, int64_t token, TokenAngles<Real> *angles) {
  const RopeGeometry &geometry = *problem.geometry;
  TokenPlace place = find_place(problem.sequences, batch, token);
  if (place.state == kAbsent) return place;
  uint64_t positions[ROPE_MAX_POSITION_AXES] = {};
  int64_t rows[ROPE_MAX_POSITION_AXES] = {};
  for (int axis = 0; axis < geometry.num_axes; ++axis) {
    if (!geometry.uses_axis(axis)) continue;
    positions[axis] = position_on(problem, axis, place.batch, token, place.index);
    rows[axis] = problem.table.is_by_token ? token : static_cast<int64_t>(positions[axis]);
    if (problem.angles != AngleSource::kIncrements &&
        static_cast<uint64_t>(rows[axis]) >= static_cast<uint64_t>(problem.table.rows)) {
      place.state = kUnrotated;
      place.is_faulty = true;
    }
  }
  if (place.state == kUnrotated) return place;
  if (problem.angles == AngleSource::kIncrements) {
    uint64_t phases[kMaxPairs];
    for (int pair = 0; pair < geometry.pairs(); ++pair) {
      phases[pair] = phase_of(positions[geometry.pair_axis[pair]], geometry.increments[pair]);
    }
    const Real scale = static_cast<Real>(geometry.attention_scale);
    fill_angles_of(Real{})(phases, geometry.pairs(), scale, angles->cos[0], angles->sin[0]);
  } else {
    read_table(problem, batch, rows, angles);
  }
  if (problem.is_transposed) transpose(problem, angles);
  return place;
}

// ---- Heads ----

// The rotated window of a head, or where it goes to.
struct Window {
  char *data;
  int64_t channel_stride;  // in elements
  int distance;

  char *channel(int64_t number, int64_t size) const { return data + number * channel_stride * size; }

  PairRun run_from(int pair, int64_t size, int64_t head_stride) const {
    char *x = channel(first_channel(pair, distance), size);
    return {x, x + distance * channel_stride * size, distance == 1 ? 2 * channel_stride : channel_stride, head_stride};
  }
};

void copy_channel(const Window &in, int64_t from, const Window &out, int64_t to, int64_t size) {
  memcpy(out.channel(to, size), in.channel(from, size), static_cast<size_t>(size));
}

void copy_channels(const Window &in, const Window &out, int64_t size, int begin, int end) {
  if (in.channel_stride == 1 && out.channel_stride == 1) {
    memcpy(out.channel(begin, size), in.channel(begin, size), static_cast<size_t>((end - begin) * size));
    return;
  }
  for (int channel = begin; channel < end; ++channel) copy_channel(in, channel, out, channel, size);
}

// Pairs from their places in the input to those in the output.
void move_pairs(const Window &in, const Window &out, int64_t size, int pairs) {
  for (int pair = 0; pair < pairs; ++pair) {
    const int from = first_channel(pair, in.distance), to = first_channel(pair, out.distance);
    copy_channel(in, from, out, to, size);
    copy_channel(in, from + in.distance, out, to + out.distance, size);
  }
}

CpuKernels::Rotate<float> *rotate_of(const CpuKernels &kernels, rope_dtype_t dtype, float) {
  return kernels.rotate[cpu_type(dtype)];
}

CpuKernels::Rotate<double> *rotate_of(const CpuKernels &kernels, rope_dtype_t, double) {
  return kernels.rotate_f64;
}

// Heads of one token and tensor, one after another.
struct Heads {
  Window in;  // of the first head, all its channels
  Window out;
  int64_t in_stride;
  int64_t out_stride;
  int64_t count;
  bool is_in_place;

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
  int run = pairs;
  if (in.distance != 1 && in.distance < run) run = in.distance;
  if (out.distance != 1 && out.distance < run) run = out.distance;
  for (int pair = 0; pair < pairs; pair += run) {
    rotate(in.run_from(pair, size, heads.in_stride), out.run_from(pair, size, heads.out_stride), run, heads.count,
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

struct RopeJob {
  const RopeProblem *problem;
  int num_tasks;
};

// One part of the rows (token, head), tokens slowest, so that the heads of a token share its angles.
template <typename Real>
void process_rows(void *context, int index) {
  const RopeJob &job = *static_cast<const RopeJob *>(context);
  const RopeProblem &problem = *job.problem;
  const int64_t size = dtype_size(problem.geometry->dtype);
  CpuKernels::Rotate<Real> *rotate = rotate_of(cpu_kernels(), problem.geometry->dtype, Real{});
  TokenAngles<Real> angles;
  if (index == 0) check_sequences(problem);

  const int64_t heads_per_token = problem.heads_per_token();
  const Range rows = part_of(problem.batches * problem.tokens * heads_per_token, job.num_tasks, index);
  for (int64_t row = rows.begin; row < rows.end;) {
    const int64_t flat_token = row / heads_per_token;
    const int64_t batch = flat_token / problem.tokens, token = flat_token % problem.tokens;
    const TokenPlace place = fill_token_angles(problem, batch, token, &angles);
    int64_t head = row % heads_per_token;  // counted from the first head of the tensor at hand
    if (place.is_faulty && head == 0) count_fault(problem.fault, flat_token);
    if (place.state == kAbsent) {
      row += heads_per_token - head;
      continue;
    }
    for (int i = 0; i < problem.num_tensors; ++i) {
      const RotatedTensor &tensor = problem.tensor[i];
      if (tensor.heads == 0) continue;  // it may have no memory
      if (head < tensor.heads && row < rows.end) {
        const int64_t in = batch * tensor.in_stride[kBatch] + token * tensor.in_stride[kToken];
        const int64_t out = batch * tensor.out_stride[kBatch] + token * tensor.out_stride[kToken];
        Heads heads = {{const_cast<char *>(tensor.in) + in * size, tensor.in_stride[kChannel], problem.in_distance},
                       {tensor.out + out * size, tensor.out_stride[kChannel], problem.out_distance},
                       tensor.in_stride[kHead],
                       tensor.out_stride[kHead],
                       tensor.heads,
                       tensor.is_in_place};
        heads = heads.from(head, size);
        if (heads.count > rows.end - row) heads.count = rows.end - row;
        process_heads(problem, heads, place.state, rotate, angles);
        head += heads.count;
        row += heads.count;
      }
      head -= tensor.heads;
    }
  }
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
