// SPDX-License-Identifier: Apache-2.0
// rope_facts.cpp - finds the facts on which the choice of a RoPE kernel depends, once per vector width
#include "plan/rope_facts.hpp"

#include "core/problem/view.hpp"
#include "plan/launch_shape.hpp"

namespace rope {

namespace {

// Adds the strides between the vectors of a tensor. The stride of an axis of length 1 is never used, so it sets no
// limit.
void add_strides(const RopeProblem &problem, const RotatedTensor &tensor, const int64_t *stride, int64_t size,
                 VectorBytes *bytes) {
  if (problem.batches > 1) bytes->add(stride[kBatch] * size);
  if (problem.tokens > 1) bytes->add(stride[kToken] * size);
  if (tensor.heads > 1) bytes->add(stride[kHead] * size);
}

// The widest vectors, in elements, for which all pointers and strides are aligned and which do not cross the boundary
// of a window, of a head, or of a block of pairs. 1 if channels are not contiguous.
int max_vector_elements(const RopeProblem &problem, Pairing pairing) {
  const RopeGeometry &geometry = *problem.geometry;
  const int64_t size = dtype_size(geometry.dtype);
  const int distance = problem.in_distance > problem.out_distance ? problem.in_distance : problem.out_distance;
  VectorBytes bytes;
  bytes.add(geometry.rotary_offset * size);
  bytes.add((pairing == Pairing::kInterleaved ? geometry.pairs() : distance) * size);
  for (int i = 0; i < problem.num_tensors; ++i) {
    const RotatedTensor &tensor = problem.tensor[i];
    if (tensor.heads == 0) continue;
    if (tensor.in_stride[kChannel] != 1 || tensor.out_stride[kChannel] != 1) return 1;
    bytes.add(tensor.in);
    bytes.add(tensor.out);
    add_strides(problem, tensor, tensor.in_stride, size, &bytes);
    add_strides(problem, tensor, tensor.out_stride, size, &bytes);
    if (!tensor.is_in_place) bytes.add(geometry.head_dim * size);
  }
  // No kernel uses vectors of 4 bytes, except as single elements.
  if (bytes.value() < kMaxVectorBytes / 2) return 1;
  return static_cast<int>(bytes.value() / size);
}

// The kind of angles. Every source without a specialised kernel counts as kOtherAngles.
AngleKinds angles_of(const RopeProblem &problem) {
  if (problem.geometry->dtype == ROPE_DTYPE_F64) return kOtherAngles;
  if (problem.angles == AngleSource::kIncrements) return kComputedAngles;
  const AngleTable &table = problem.table;
  if (problem.angles != AngleSource::kTable || table.is_by_channel || table.dtype == ROPE_DTYPE_F64) {
    return kOtherAngles;
  }
  return table.dtype == ROPE_DTYPE_F32 ? kTable32 : kTable16;
}

// The lookup that a token needs. A plain table, one without faults to count and with one column per pair, needs only
// the position.
Lookups lookup_of(const RopeProblem &problem) {
  if (problem.sequences.is_present) return kSequencesLookup;
  if (problem.geometry->num_axes > 1) return kAxesLookup;
  if (problem.angles == AngleSource::kIncrements) return kNoLookup;
  const bool is_plain = problem.fault.data == nullptr && problem.table.width == problem.geometry->pairs();
  return is_plain ? kNoLookup : kAxesLookup;
}

// See RopeFacts::fits_rows.
bool fits_rows(const RopeFacts &facts) {
  const RopeProblem &problem = *facts.problem;
  const int64_t size = dtype_size(problem.geometry->dtype), tokens = problem.batches * problem.tokens;
  const uint32_t units_per_run = static_cast<uint32_t>(problem.in_distance / facts.vector_elements);
  if (facts.pairing == Pairing::kHalf && units_per_run < 2) return false;
  if (problem.sequences.is_present && problem.sequences.count > INT32_MAX) return false;
  uint32_t units_per_head = 0;
  for (int i = 0; i < problem.num_tensors; ++i) {
    const RotatedTensor &tensor = problem.tensor[i];
    if (tensor.heads == 0) continue;
    if (units_per_head != 0 && facts.units.per_head[i] != units_per_head) return false;
    units_per_head = facts.units.per_head[i];
    const int64_t strides[] = {tensor.in_stride[kToken], tensor.in_stride[kHead], tensor.out_stride[kToken],
                               tensor.out_stride[kHead]};
    for (const int64_t stride : strides) {
      if (magnitude(stride) * size > INT32_MAX) return false;
    }
  }
  const int64_t blocks = facts.units.per_token / kWarpThreads + 1;
  if (tokens > kMaxGridX / blocks) return false;
  // Below the limit, one multiplication divides a unit's number, and also its number within a head.
  return units_per_head > 1 && uint64_t{facts.units.per_token} * units_per_head <= UINT32_MAX;
}

// See RopeFacts::fits_parts.
bool fits_parts(const RopeFacts &facts) {
  const RopeProblem &problem = *facts.problem;
  if (!facts.fits_rows || facts.has_split_pairs || problem.start_positions.is_present) return false;
  if ((facts.units.per_token - 1) / kMinShortThreads >= kMaxGridY) return false;
  for (int i = 0; i < problem.num_tensors; ++i) {
    if (facts.units.per_head[i] != facts.units.rotary_per_head) return false;
  }
  return true;
}

// Whether every thread can load so many consecutive entries as a vector.
bool has_table_vectors(const AngleTable &table, int entries) {
  const int64_t size = dtype_size(table.dtype);
  VectorBytes bytes;
  bytes.add(entries * size);
  const TableColumns *const both[] = {&table.cos, &table.sin};
  for (const TableColumns *columns : both) {
    bytes.add(columns->data);
    bytes.add(columns->row_stride * size);
    bytes.add(columns->batch_stride * size);
  }
  return bytes.value() == (entries * size < kMaxVectorBytes ? entries * size : kMaxVectorBytes);
}

// See RopeFacts::has_vector_rows. An interleaved vector holds half as many pairs as elements, so a thread reads runs of
// half a vector's elements.
bool has_vector_rows(const RopeFacts &facts) {
  const AngleTable &table = facts.problem->table;
  if ((facts.angles & kTables) == 0) return false;
  const int64_t max = INT32_MAX / dtype_size(table.dtype);
  const int64_t numbers[] = {table.rows, table.cos.row_stride, table.sin.row_stride};
  for (const int64_t number : numbers) {
    if (number > max || number < -max) return false;
  }
  const int run = facts.pairing == Pairing::kInterleaved ? facts.vector_elements / 2 : facts.vector_elements;
  return table.cos.column_stride == 1 && table.sin.column_stride == 1 && has_table_vectors(table, run);
}

// See RopeFacts::fits_few_params.
bool fits_few_params(const RopeFacts &facts) {
  const RopeProblem &problem = *facts.problem;
  constexpr int64_t kMaxPositionStride = INT32_MAX / 8;
  const int64_t position_stride = problem.positions.token_stride;
  if (!facts.fits_parts || position_stride > kMaxPositionStride || position_stride < -kMaxPositionStride) return false;
  for (int i = 0; i < problem.num_tensors; ++i) {
    const RotatedTensor &tensor = problem.tensor[i];
    if (tensor.in_stride[kToken] != tensor.out_stride[kToken]) return false;
    if (tensor.in_stride[kHead] != tensor.out_stride[kHead] || tensor.in_stride[kHead] < 0) return false;
  }
  if (facts.angles == kComputedAngles) return problem.geometry->pairs() <= kMaxShortPairs;
  return facts.has_vector_rows && problem.table.cos.row_stride == problem.table.sin.row_stride;
}

// Sets the vector width, and counts the units for it. The general kernel copies single vectors, all others pairs of
// vectors.
void set_width(int vector_elements, RopeFacts *facts) {
  const bool is_general = facts->angles == kOtherAngles || facts->pairing == Pairing::kConverted;
  const UnitRule rule = is_general           ? UnitRule::kVectors
                        : facts->has_vectors ? UnitRule::kVectorPairs
                                             : UnitRule::kElements;
  facts->vector_elements = vector_elements;
  facts->vector_bytes = vector_elements * dtype_size(facts->problem->geometry->dtype);
  facts->units = count_units(*facts->problem, facts->pairing, vector_elements, rule);
}

// Sets the limits that depend on the vector width.
void set_limits(RopeFacts *facts) {
  facts->fits_rows = fits_rows(*facts);
  facts->fits_parts = fits_parts(*facts);
  facts->has_vector_rows = has_vector_rows(*facts);
  facts->fits_few_params = fits_few_params(*facts);
}

}  // namespace

Pairing pairing_of(int in_distance, int out_distance) {
  if (in_distance != out_distance) return Pairing::kConverted;
  return in_distance == 1 ? Pairing::kInterleaved : Pairing::kHalf;
}

bool converts_in_place(const RopeProblem &problem, Pairing pairing) {
  for (int i = 0; i < problem.num_tensors; ++i) {
    if (pairing == Pairing::kConverted && problem.tensor[i].is_in_place) return true;
  }
  return false;
}

// A head has pairs() / vector_elements rotary units. Out of place, copy units follow them for the channels outside the
// window.
RopeUnits count_units(const RopeProblem &problem, Pairing pairing, int vector_elements, UnitRule rule) {
  const RopeGeometry &geometry = *problem.geometry;
  uint32_t copy_units = static_cast<uint32_t>((geometry.head_dim - geometry.rotary_dim) / vector_elements);
  if (rule == UnitRule::kVectorPairs) copy_units = (copy_units + 1) / 2;
  RopeUnits units = {};
  units.rotary_per_head = static_cast<uint32_t>(geometry.pairs() / vector_elements);
  bool has_copies = false;
  for (int i = 0; i < problem.num_tensors; ++i) has_copies = has_copies || !problem.tensor[i].is_in_place;
  for (int i = 0; i < problem.num_tensors; ++i) {
    const RotatedTensor &tensor = problem.tensor[i];
    // If blocks hold whole heads, every head counts as many units as the largest; some of them have no work.
    const bool counts_copies = converts_in_place(problem, pairing) ? has_copies : !tensor.is_in_place;
    units.per_head[i] = units.rotary_per_head + (counts_copies ? copy_units : 0);
    const int64_t heads = rule == UnitRule::kElements ? count_scalar_groups(tensor.heads) : tensor.heads;
    units.per_token += units.per_head[i] * static_cast<uint32_t>(heads);
  }
  return units;
}

bool RopeFacts::has_at_most(int64_t vectors) const {
  return half_bytes <= vectors * device->multiprocessors * kMaxVectorBytes;
}

bool RopeFacts::is_within(const VectorRange &range) const {
  return has_at_most(range.at_most) && !has_at_most(range.above);
}

bool RopeFacts::is_mid_programmatic() const {
  return is_programmatic && is_within(tuning->mid_programmatic_vectors);
}

void find_facts(const RopeProblem &problem, const DeviceInfo &device, RopeLaunchFacts *launch) {
  RopeFacts *facts = &launch->usual;
  facts->problem = &problem;
  facts->device = &device;
  facts->tuning = &rope_tuning_of(device);
  facts->is_programmatic = problem.is_programmatic && device.compute_capability >= 90;
  facts->pairing = pairing_of(problem.in_distance, problem.out_distance);
  facts->angles = angles_of(problem);
  facts->lookup = lookup_of(problem);
  facts->has_split_pairs = problem.in_distance != 1 && problem.in_distance != problem.geometry->pairs();
  const RotatedTensor &q = problem.tensor[0];
  facts->has_inner_tokens =
      problem.tokens > 1 && q.heads > 1 && magnitude(q.in_stride[kToken]) < magnitude(q.in_stride[kHead]);
  const int widest = max_vector_elements(problem, facts->pairing);
  facts->has_vectors = widest > 1;
  set_width(widest, facts);
  facts->half_bytes = saturated_product(problem.batches * problem.tokens, facts->units.per_token * facts->vector_bytes);

  const RopeTuning &tuning = *facts->tuning;
  // The kernels for short launches cannot round each product and sum.
  // A launch is short up to the limit for tables, which is the largest one, or if kMidProgrammaticTable may run it.
  // Short kernels use vectors of half the width. Other kernels do so only in launches of very few vectors.
  const bool is_short = !problem.geometry->rounds_each &&
                        (facts->has_at_most(tuning.max_short_table_vectors) || facts->is_mid_programmatic()),
             can_halve = facts->vector_bytes == kMaxVectorBytes;
  launch->in_short = is_short ? facts : nullptr;
  if (is_short && can_halve) {
    if (!facts->has_at_most(tuning.max_narrow_vectors)) {
      launch->half = *facts;
      set_width(widest / 2, &launch->half);
      set_limits(&launch->half);
      launch->in_short = &launch->half;
    } else {
      set_width(widest / 2, facts);
    }
  }
  set_limits(facts);
}

}  // namespace rope
