// rope_catalogue.cpp - every RoPE kernel: what it takes, when it is worth it, and what its launches look like
#include "plan/rope_catalogue.hpp"

#include "core/problem/view.hpp"
#include "plan/launch_shape.hpp"

namespace rope {

namespace {

// Of units of a head that rows of threads hold whole, however they are cut.
constexpr uint32_t kRowDivisor = 8;

// What plans and kernels rely on: blocks stay within the kernels' bounds, and a block holds a row of any kind; a thread
// of a row has a pair at most; rows that are not cut within warps are whole ones; parts of a token are a number of the
// grid's second axis.
constexpr bool is_sound(const RopeTuning &tuning) {
  constexpr uint32_t kMaxPairs = kMaxShortPairs;
  const uint32_t rows[] = {tuning.gapped_row_threads, tuning.inner_token_row_threads};
  bool result = tuning.inner_token_row_threads >= kMaxPairs && tuning.min_row_units >= kMaxPairs &&
                tuning.inner_token_row_threads >= kMinShortThreads &&
                tuning.inner_token_row_threads % kWarpThreads == 0 &&
                tuning.max_short_table_vectors >= tuning.max_short_vectors &&
                tuning.max_short_table_vectors >= tuning.max_narrow_vectors &&
                tuning.max_short_table_vectors >= tuning.max_late_table_vectors;
  for (const uint32_t threads : rows) {
    result = result && threads > 0 && threads <= tuning.block_threads[0] && threads % kRowDivisor == 0;
  }
  for (const uint32_t threads : tuning.block_threads) {
    result = result && threads > 0 && threads <= kMaxRopeThreads && threads % kWarpThreads == 0;
  }
  for (const ShortThreads &row : tuning.short_threads) {
    result = result && row.threads >= kMinShortThreads && row.threads <= kMaxShortThreads;
  }
  for (const ShortThreads &row : tuning.short_threads_programmatic) {
    result = result && row.threads >= kMinShortThreads && row.threads <= kMaxShortThreads;
  }
  return result;
}

// In the order that rope_tuning_of relies on.
constexpr bool are_sound() {
  int before = 0;
  for (const RopeTuning &tuning : kRopeTunings) {
    if (!is_sound(tuning) || tuning.compute_capability <= before) return false;
    before = tuning.compute_capability;
  }
  return true;
}
static_assert(are_sound(), "");
static_assert(kWarpThreads % kRowDivisor == 0, "");

// ---- What kernels accept ----

bool takes_rows(const RopeFacts &facts) {
  return facts.fits_rows;
}

bool has_no_split_pairs(const RopeFacts &facts) {
  return !facts.has_split_pairs;
}

bool takes_parts(const RopeFacts &facts) {
  return facts.fits_parts && facts.vector_bytes == kFlatVectorBytes;
}

bool takes_table_parts(const RopeFacts &facts) {
  return takes_parts(facts) && facts.has_vector_rows;
}

bool takes_short(const RopeFacts &facts) {
  return facts.problem->batches == 1 && facts.fits_few_params;
}

// Whether the tokens of a batch follow those of the one before, at the same positions and by the same rows of a table.
bool has_following_batches(const RopeProblem &problem) {
  if (problem.batches == 1) return true;
  if (problem.batches > kMaxGridY || problem.positions.batch_stride != 0) return false;
  if (problem.table.cos.batch_stride != 0 || problem.table.sin.batch_stride != 0) return false;
  for (int i = 0; i < problem.num_tensors; ++i) {
    const RotatedTensor &tensor = problem.tensor[i];
    // The product fits: a token's stride has 32 bits, and so has the number of tokens.
    if (tensor.heads > 0 && tensor.in_stride[kBatch] != problem.tokens * tensor.in_stride[kToken]) return false;
    if (tensor.heads > 0 && tensor.out_stride[kBatch] != tensor.in_stride[kBatch]) return false;
  }
  return true;
}

// The grid's second axis has either batches or parts of a token.
bool takes_long(const RopeFacts &facts) {
  const RopeProblem &problem = *facts.problem;
  if (dtype_size(problem.geometry->dtype) != 2 || facts.vector_bytes != kLongVectorBytes) return false;
  if (facts.has_inner_tokens && problem.batches > 1) return false;
  if (problem.geometry->pairs() > kMaxShortPairs) return false;
  // Then a block's number is divided by one multiplication.
  const uint64_t blocks = facts.units.per_token / kWarpThreads + 1;
  return facts.fits_few_params && has_following_batches(problem) &&
         static_cast<uint64_t>(problem.tokens) <= UINT32_MAX / (blocks * blocks);
}

bool takes_long_of_one_batch(const RopeFacts &facts) {
  return facts.problem->batches == 1 && !facts.has_inner_tokens && takes_long(facts);
}

// From or to one block of pairs, and with whole heads in a block whatever rows of threads it has.
bool takes_long_converted(const RopeFacts &facts) {
  const RopeProblem &problem = *facts.problem;
  return problem.in_distance * problem.out_distance == problem.geometry->pairs() &&
         facts.units.per_token >= facts.tuning->min_row_units && kRowDivisor % facts.units.rotary_per_head == 0 &&
         takes_long(facts);
}

// ---- What makes them worth it ----

// Fewer units leave many threads of a row idle.
bool fills_rows(const RopeFacts &facts) {
  return facts.units.per_token >= facts.tuning->min_row_units;
}

bool fills_rows_or_splits_pairs(const RopeFacts &facts) {
  return fills_rows(facts) || facts.has_split_pairs;
}

bool has_rows_of_heads(const RopeFacts &facts) {
  return fills_rows(facts) && facts.problem->heads_per_token() > 1;
}

bool has_no_rows_of_heads(const RopeFacts &facts) {
  return !has_rows_of_heads(facts);
}

bool has_few_heads(const RopeFacts &facts) {
  return facts.problem->heads_per_token() <= facts.tuning->max_flat_heads;
}

bool is_late_table(const RopeFacts &facts) {
  return facts.is_programmatic && facts.has_at_most(facts.tuning->max_late_table_vectors);
}

bool is_short_table(const RopeFacts &facts) {
  return facts.has_at_most(facts.tuning->max_short_table_vectors);
}

bool is_short_of_warps(const RopeFacts &facts) {
  return facts.has_at_most(facts.is_programmatic ? facts.tuning->max_warp_vectors_programmatic
                                                 : facts.tuning->max_warp_vectors);
}

bool is_short(const RopeFacts &facts) {
  return facts.has_at_most(facts.tuning->max_short_vectors);
}

constexpr unsigned kComputed = kComputedAngles;
constexpr Lookup kNone = Lookup::kNone, kAxes = Lookup::kAxes, kSequences = Lookup::kSequences,
                 kAnyLookup = Lookup::kAny;
constexpr Styles kOne = Styles::kOne, kTwo = Styles::kTwo, kAny = Styles::kAny;
constexpr Channels kVectors = Channels::kVectors, kElements = Channels::kElements;
constexpr RopeShape kBlocks = RopeShape::kBlocks, kWarpRows = RopeShape::kWarpRows, kRows = RopeShape::kTokenRows,
                    kBatchRows = RopeShape::kBatchRows, kParts = RopeShape::kParts,
                    kShortParts = RopeShape::kShortParts;
constexpr SharedAngles kOwn = SharedAngles::kNone, kOfWarps = SharedAngles::kOfWarps, kOfRows = SharedAngles::kOfRows,
                       kOfTokens = SharedAngles::kOfTokens, kOfGeneral = SharedAngles::kOfGeneral;

}  // namespace

// clang-format off
const RopeAlgorithm kRopeAlgorithms[kNumRopeAlgorithms] = {
    // kernel, name, angles, lookup, styles, channels, shape, shared angles, accepts, prefers
    {RopeKernel::kLateTable32, "short table", kTable32, kNone, kOne, kVectors, kShortParts, kOwn,
     takes_short, is_late_table},
    {RopeKernel::kLateTable16, "short table", kTable16, kNone, kOne, kVectors, kShortParts, kOwn,
     takes_short, is_late_table},
    {RopeKernel::kShortTable32, "short table", kTable32, kNone, kOne, kVectors, kShortParts, kOwn,
     takes_short, is_short_table},
    {RopeKernel::kShortTable16, "short table", kTable16, kNone, kOne, kVectors, kShortParts, kOwn,
     takes_short, is_short_table},
    {RopeKernel::kShortWarp, "short warp angles", kComputed, kNone, kOne, kVectors, kShortParts, kOfWarps,
     takes_short, is_short_of_warps},
    {RopeKernel::kShort, "short angles", kComputed, kNone, kOne, kVectors, kShortParts, kOfRows,
     takes_short, is_short},
    {RopeKernel::kLongConverted, "long converted angles", kComputed, kNone, kTwo, kVectors, kBatchRows, kOfRows,
     takes_long_converted, nullptr},
    {RopeKernel::kFlat, "own angles", kComputed, kNone, kOne, kVectors, kParts, kOwn,
     takes_parts, has_few_heads},
    {RopeKernel::kLong, "long angles", kComputed, kNone, kOne, kVectors, kBatchRows, kOfRows,
     takes_long_of_one_batch, fills_rows},
    {RopeKernel::kLongBatches, "long angles of batches", kComputed, kNone, kOne, kVectors, kBatchRows, kOfRows,
     takes_long, fills_rows},
    {RopeKernel::kToken, "token angles", kComputed, kNone, kOne, kVectors, kRows, kOfTokens,
     takes_rows, fills_rows_or_splits_pairs},
    {RopeKernel::kShared, "shared angles", kComputed, kNone, kOne, kVectors, kBlocks, kOfTokens,
     has_no_split_pairs, nullptr},
    {RopeKernel::kTokenAxes, "token axis angles", kComputed, kAxes, kOne, kVectors, kRows, kOfTokens,
     takes_rows, nullptr},
    {RopeKernel::kTokenSequences, "token sequence angles", kComputed, kSequences, kOne, kVectors, kWarpRows,
     kOfTokens, takes_rows, nullptr},
    {RopeKernel::kLongTable32, "long table", kTable32, kNone, kOne, kVectors, kBatchRows, kOfRows,
     takes_long, has_rows_of_heads},
    {RopeKernel::kLongTable16, "long table", kTable16, kNone, kOne, kVectors, kBatchRows, kOfRows,
     takes_long, has_rows_of_heads},
    {RopeKernel::kTable32, "own table", kTable32, kNone, kOne, kVectors, kParts, kOwn,
     takes_table_parts, has_no_rows_of_heads},
    {RopeKernel::kTable16, "own table", kTable16, kNone, kOne, kVectors, kParts, kOwn,
     takes_table_parts, has_no_rows_of_heads},
    {RopeKernel::kTokenTable, "token table", kTables, kNone, kOne, kVectors, kRows, kOfTokens,
     takes_rows, nullptr},
    {RopeKernel::kTokenTableAxes, "token axis table", kTables, kAxes, kOne, kVectors, kRows, kOfTokens,
     takes_rows, nullptr},
    {RopeKernel::kTokenTableSequences, "token sequence table", kTables, kSequences, kOne, kVectors, kWarpRows,
     kOfTokens, takes_rows, nullptr},
    {RopeKernel::kScattered, "scattered angles", kComputed, kAnyLookup, kOne, kElements, kWarpRows, kOfTokens,
     takes_rows, nullptr},
    {RopeKernel::kScatteredTable, "scattered table", kTables, kAnyLookup, kOne, kElements, kWarpRows, kOfTokens,
     takes_rows, nullptr},
    {RopeKernel::kGeneral, "general", kAllAngles, kAnyLookup, kAny, Channels::kAny, kBlocks, kOfGeneral,
     nullptr, nullptr},
};
// clang-format on

static bool looks_up(Lookup lookup, Lookup wanted) {
  return lookup == wanted || lookup == Lookup::kAny || (lookup == Lookup::kAxes && wanted == Lookup::kNone);
}

bool accepts(const RopeAlgorithm &algorithm, const RopeFacts &facts) {
  if ((algorithm.angles & facts.angles) == 0 || !looks_up(algorithm.lookup, facts.lookup)) return false;
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
