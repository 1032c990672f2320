// SPDX-License-Identifier: Apache-2.0
// cpu_tokens.cpp - finds a token's position in a RoPE problem, its faults and its angles
#include "backend/cpu/cpu_tokens.hpp"

#include "core/math/rotation.hpp"
#include "core/problem/visit_dtype.hpp"

namespace rope {

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

namespace {

// Reads the columns of all pairs into `first`. If each channel has its own column, those of the pairs' second channels
// go to `second`. `rows` has the row for each axis.
template <typename T, typename Real>
void read_table_columns_of_type(const RopeGeometry &geometry, const AngleTable &table, const TableColumns &columns,
                                int64_t batch, const int64_t *rows, Real *first, Real *second) {
  const int pairs = geometry.pairs(), distance = geometry.out_distance;
  const bool is_interleaved = table.is_by_channel && distance == 1;
  // The number of pairs whose columns are consecutive.
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

// Only 16-bit data is rounded, never F64.
void round_angles(const RopeProblem &, TokenAngles<double> *) {}

void round_angles(const RopeProblem &problem, TokenAngles<float> *angles) {
  visit_dtype(problem.geometry->dtype, [&](auto element) {
    if constexpr (sizeof element == 2) {
      for (int channel = 0; channel < (problem.table.is_by_channel ? 2 : 1); ++channel) {
        float *const cos = angles->cos[channel], *const sin = angles->sin[channel];
        for (int pair = 0; pair < problem.geometry->pairs(); ++pair) {
          const CosSin<float> rounded = rounded_to<decltype(element)>(CosSin<float>{cos[pair], sin[pair]});
          cos[pair] = rounded.cos, sin[pair] = rounded.sin;
        }
      }
    }
  });
}

}  // namespace

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
  if (geometry.rounds_each) round_angles(problem, angles);
  if (problem.is_transposed) transpose(problem, angles);
  return place;
}

template TokenPlace fill_token_angles(const RopeProblem &, int64_t, int64_t, TokenAngles<float> *);
template TokenPlace fill_token_angles(const RopeProblem &, int64_t, int64_t, TokenAngles<double> *);

}  // namespace rope
