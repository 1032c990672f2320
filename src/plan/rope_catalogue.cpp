// SPDX-License-Identifier: Apache-2.0
// rope_catalogue.cpp - every RoPE kernel: the problems it accepts, those it is preferred for, and its launches' shapes
#include "plan/rope_catalogue.hpp"

#include <stddef.h>

#include "core/problem/view.hpp"
#include "plan/launch_shape.hpp"

namespace rope {

namespace {

template <typename Rows>
constexpr bool are_short(const Rows &rows) {
  bool result = true;
  for (const ShortThreads &row : rows) {
    result = result && row.threads >= kMinShortThreads && row.threads <= kMaxShortThreads;
  }
  return result;
}

// Checks what plans and kernels rely on:
// - blocks stay within the kernels' bounds and hold at least one row of any kind;
// - rows of kPairRows have a thread for each pair;
// - a part of a token is at least a warp, and kMinShortThreads on the grid's second axis;
// - rows for tokens that lie closer together than heads are whole warps;
// - no other limit of short launches exceeds max_short_table_vectors.
constexpr bool is_sound(const RopeTuning &tuning) {
  constexpr uint32_t kPairs = kMaxShortPairs;
  bool result = tuning.inner_token_row_threads >= kPairs && tuning.inner_token_row_threads % kWarpThreads == 0 &&
                tuning.gapped_row_threads >= kWarpThreads;
  const int vectors[] = {tuning.max_short_vectors, tuning.max_narrow_vectors, tuning.max_warp_vectors,
                         tuning.max_warp_vectors_programmatic, tuning.mid_programmatic_vectors.above};
  for (const int limit : vectors) result = result && limit <= tuning.max_short_table_vectors;
  const uint32_t rows[] = {tuning.gapped_row_threads, tuning.inner_token_row_threads};
  for (const uint32_t threads : rows) {
    result = result && threads <= tuning.block_threads[0] && threads % kRowDivisor == 0;
  }
  for (const uint32_t threads : tuning.block_threads) {
    result = result && threads >= kPairs && threads <= kMaxRopeThreads && threads % kWarpThreads == 0;
  }
  return result && are_short(tuning.short_threads) && are_short(tuning.short_threads_programmatic) &&
         are_short(tuning.table_threads) && are_short(tuning.table_threads_programmatic);
}

constexpr bool comes_before(const RopeTuning &a, const RopeTuning &b) {
  return is_from(a, b.compute_capability, b.memory_bus_bits) && !is_from(b, a.compute_capability, a.memory_bus_bits);
}

// Each row is sound, and the rows are in the order that rope_tuning_of relies on.
constexpr bool are_sound() {
  constexpr size_t kCount = sizeof kRopeTunings / sizeof kRopeTunings[0];
  for (size_t i = 0; i < kCount; ++i) {
    if (!is_sound(kRopeTunings[i]) || (i > 0 && !comes_before(kRopeTunings[i - 1], kRopeTunings[i]))) return false;
  }
  return true;
}
static_assert(are_sound(), "");
static_assert(kWarpThreads % kRowDivisor == 0 && kThreadKernelThreads >= kMinShortThreads, "");

// ---- Conditions for accepting a problem ----

// Conditions of kToken and kScalar.
bool takes_rows(const RopeFacts &facts) {
  return facts.fits_rows;
}

// Conditions of kThread.
bool takes_parts(const RopeFacts &facts) {
  const bool has_angles = facts.angles == kComputedAngles || facts.has_vector_rows;
  return facts.fits_parts && has_angles && facts.vector_bytes == kThreadVectorBytes;
}

// Common conditions of the kernels for short launches.
bool takes_short(const RopeFacts &facts) {
  return facts.problem->batches == 1 && facts.fits_few_params;
}

// This kernel and kFlatTable have no code that waits for the previous launch.
bool takes_short_at_once(const RopeFacts &facts) {
  return !facts.is_programmatic && takes_short(facts);
}

// Conditions of kFlatTable.
bool takes_flat(const RopeFacts &facts) {
  const RopeProblem &problem = *facts.problem;
  // The kernel adds the grid's size to a unit's number, and the sum must fit 32 bits.
  return dtype_size(problem.geometry->dtype) == 2 && facts.vector_bytes == kFlatVectorBytes &&
         facts.device->compute_capability >= 90 && takes_short_at_once(facts) &&
         problem.tokens <= INT32_MAX / facts.units.per_token;
}

// Conditions of kMidProgrammaticTable, which exists only for 16-bit data.
bool takes_short_halves(const RopeFacts &facts) {
  return dtype_size(facts.problem->geometry->dtype) == 2 && takes_short(facts);
}

// Whether the tokens of a batch follow those of the previous batch in memory, with equal positions and table rows.
bool has_following_batches(const RopeProblem &problem) {
  if (problem.batches == 1) return true;
  if (problem.positions.batch_stride != 0) return false;
  if (problem.table.cos.batch_stride != 0 || problem.table.sin.batch_stride != 0) return false;
  for (int i = 0; i < problem.num_tensors; ++i) {
    const RotatedTensor &tensor = problem.tensor[i];
    // The product fits, because a token's stride and the number of tokens have 32 bits each.
    if (tensor.heads > 0 && tensor.in_stride[kBatch] != problem.tokens * tensor.in_stride[kToken]) return false;
    if (tensor.heads > 0 && tensor.out_stride[kBatch] != tensor.in_stride[kBatch]) return false;
  }
  return true;
}

// Conditions of kLong: 16-bit data in vectors of 16 bytes, and as many threads in a row as a head has pairs.
bool takes_long(const RopeFacts &facts) {
  const RopeProblem &problem = *facts.problem;
  if (dtype_size(problem.geometry->dtype) != 2 || facts.vector_bytes != kLongVectorBytes) return false;
  const auto pairs = static_cast<uint32_t>(problem.geometry->pairs());
  if (pairs > kMaxShortPairs || pairs > round_up_to_warps(facts.units.per_token)) return false;
  // A simple grid divides a block's number by the parts of a token with one multiplication, which is exact only below
  // this limit. Other grids do not need the limit, but only huge numbers of tokens exceed it.
  const uint64_t parts = facts.units.per_token / kWarpThreads + 1;
  return facts.fits_few_params && has_following_batches(problem) &&
         static_cast<uint64_t>(problem.batches * problem.tokens) <= UINT32_MAX / (parts * parts);
}

// Either the input or the output has one block of pairs, and a block of any row size holds whole heads.
bool takes_long_converted(const RopeFacts &facts) {
  const RopeProblem &problem = *facts.problem;
  return problem.in_distance * problem.out_distance == problem.geometry->pairs() &&
         kRowDivisor % facts.units.rotary_per_head == 0 && takes_long(facts);
}

// ---- Conditions for preferring a kernel ----

// With fewer units, many threads of a row would be idle.
bool fills_rows(const RopeFacts &facts) {
  return facts.units.per_token >= facts.tuning->min_row_units;
}

// Heads that read one row of a table find it in a cache, but with computed angles each head computes its own.
bool has_few_heads(const RopeFacts &facts) {
  const int64_t heads = facts.problem->heads_per_token();
  if (facts.angles == kComputedAngles) return heads <= facts.tuning->max_thread_heads;
  return heads == 1 || facts.units.per_token < facts.tuning->min_table_row_units;
}

bool is_mid_programmatic(const RopeFacts &facts) {
  return facts.is_mid_programmatic();
}

// Whether the launch has a size for kFlatTable. Tokens of few heads use it only up to the size of looping grids; beyond
// it kThread is faster.
bool is_flat(const RopeFacts &facts) {
  if (!facts.is_within(facts.tuning->flat_vectors)) return false;
  return !has_few_heads(facts) || facts.has_at_most(facts.tuning->max_looping_vectors);
}

// The next functions compare the launch size with the measured limits of tuning.hpp.
bool is_short_table(const RopeFacts &facts) {
  return facts.has_at_most(facts.tuning->max_short_table_vectors);
}

bool is_programmatic_table(const RopeFacts &facts) {
  return facts.is_programmatic && is_short_table(facts);
}

bool is_short_of_warps(const RopeFacts &facts) {
  return facts.has_at_most(facts.is_programmatic ? facts.tuning->max_warp_vectors_programmatic
                                                 : facts.tuning->max_warp_vectors);
}

bool is_short(const RopeFacts &facts) {
  return facts.has_at_most(facts.tuning->max_short_vectors);
}

// Short names for the table below.
constexpr unsigned kComputed = kComputedAngles, kBoth = kComputedAngles | kTables;
constexpr unsigned kPlain = kNoLookup, kAnyLookup = kAllLookups;
constexpr Styles kOne = Styles::kOne, kTwo = Styles::kTwo, kAny = Styles::kAny;
constexpr Channels kVectors = Channels::kVectors, kElements = Channels::kElements;
constexpr RopeShape kBlocks = RopeShape::kBlocks, kWarpRows = RopeShape::kWarpRows, kTokenRows = RopeShape::kTokenRows,
                    kPairRows = RopeShape::kPairRows, kParts = RopeShape::kParts, kShortParts = RopeShape::kShortParts,
                    kFlat = RopeShape::kFlat;
constexpr SharedAngles kUnshared = SharedAngles::kNone, kOfWarps = SharedAngles::kOfWarps,
                       kOfRows = SharedAngles::kOfRows, kOfTokens = SharedAngles::kOfTokens,
                       kOfGeneral = SharedAngles::kOfGeneral;

}  // namespace

// clang-format off
const RopeAlgorithm kRopeAlgorithms[kNumRopeAlgorithms] = {
    // kernel, name, angles, lookups, styles, channels, shape, shared angles, accepts, prefers, rounded angles
    {RopeKernel::kMidProgrammaticTable, "mid programmatic", kTables, kPlain, kOne, kVectors, kShortParts, kUnshared,
     takes_short_halves, is_mid_programmatic},
    {RopeKernel::kProgrammaticTable, "short programmatic", kTables, kPlain, kOne, kVectors, kShortParts, kUnshared,
     takes_short, is_programmatic_table},
    {RopeKernel::kFlatTable, "flat", kTables, kPlain, kOne, kVectors, kFlat, kUnshared,
     takes_flat, is_flat},
    {RopeKernel::kShortTable, "short", kTables, kPlain, kOne, kVectors, kShortParts, kUnshared,
     takes_short_at_once, is_short_table},
    {RopeKernel::kShortWarp, "short warp", kComputed, kPlain, kOne, kVectors, kShortParts, kOfWarps,
     takes_short, is_short_of_warps},
    {RopeKernel::kShort, "short", kComputed, kPlain, kOne, kVectors, kShortParts, kOfRows,
     takes_short, is_short},
    {RopeKernel::kLongConverted, "long converted", kComputed, kPlain, kTwo, kVectors, kPairRows, kOfRows,
     takes_long_converted, nullptr},
    {RopeKernel::kThread, "thread", kBoth, kPlain, kOne, kVectors, kParts, kUnshared,
     takes_parts, has_few_heads},
    {RopeKernel::kLong, "long", kBoth, kPlain, kOne, kVectors, kPairRows, kOfRows,
     takes_long, fills_rows, kTables},
    {RopeKernel::kToken, "token", kBoth, kAnyLookup, kOne, kVectors, kTokenRows, kOfTokens,
     takes_rows, nullptr},
    {RopeKernel::kScalar, "scalar", kBoth, kAnyLookup, kOne, kElements, kWarpRows, kOfTokens,
     takes_rows, nullptr},
    {RopeKernel::kGeneral, "general", kAllAngles, kAnyLookup, kAny, Channels::kAny, kBlocks, kOfGeneral,
     nullptr, nullptr, kAllAngles},
};
// clang-format on

// Compares the kernel's angles, lookups, channels and styles with the problem's, then calls its own condition.
bool accepts(const RopeAlgorithm &algorithm, const RopeFacts &facts) {
  const unsigned angles = facts.problem->geometry->rounds_each ? algorithm.rounded_angles : algorithm.angles;
  if ((angles & facts.angles) == 0 || (algorithm.lookups & facts.lookup) == 0) return false;
  if (algorithm.channels != Channels::kAny && (algorithm.channels == Channels::kVectors) != facts.has_vectors)
    return false;
  const Styles styles = facts.pairing == Pairing::kConverted ? Styles::kTwo : Styles::kOne;
  if (algorithm.styles != Styles::kAny && algorithm.styles != styles) return false;
  return algorithm.accepts == nullptr || algorithm.accepts(facts);
}

const RopeAlgorithm &algorithm_of(RopeKernel kernel) {
  return kRopeAlgorithms[static_cast<int>(kernel)];
}

bool may_have(Pairing pairing, RopeKernel kernel) {
  const Styles styles = algorithm_of(kernel).styles;
  return styles == Styles::kAny || (styles == Styles::kTwo) == (pairing == Pairing::kConverted);
}

}  // namespace rope
