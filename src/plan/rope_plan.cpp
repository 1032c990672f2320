// rope_plan.cpp - vector width, grid and shared memory of a RoPE call
#include "plan/rope_plan.hpp"

#include "core/problem/view.hpp"
#include "plan/launch_shape.hpp"
#include "plan/tuning.hpp"

namespace rope {

namespace {

constexpr uint32_t kLanes = 32;

void add_strides(const RopeProblem &problem, const RotatedTensor &tensor, const int64_t *stride, int64_t size,
                 VectorBytes *bytes) {
  if (problem.batches > 1) bytes->add(stride[kBatch] * size);
  if (problem.tokens > 1) bytes->add(stride[kToken] * size);
  if (tensor.heads > 1) bytes->add(stride[kHead] * size);
}

// Whether runs of so many neighbouring entries can be loaded as vectors wherever a thread's begin.
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

// The kernel for a problem of any size whose channels fit vectors, or, `is_single`, fit none.
RopeKernel choose_kernel(const RopeProblem &problem, bool is_single) {
  const RopeGeometry &geometry = *problem.geometry;
  const AngleTable &table = problem.table;
  if (problem.in_distance != problem.out_distance || geometry.dtype == ROPE_DTYPE_F64) return RopeKernel::kGeneral;
  const bool has_sequences = problem.sequences.is_present, has_axes = geometry.num_axes > 1;
  if (problem.angles == AngleSource::kIncrements) {
    if (is_single) return RopeKernel::kScattered;
    return has_sequences ? RopeKernel::kTokenSequences : has_axes ? RopeKernel::kTokenAxes : RopeKernel::kToken;
  }
  if (problem.angles != AngleSource::kTable || table.is_by_channel || table.dtype == ROPE_DTYPE_F64) {
    return RopeKernel::kGeneral;
  }
  if (is_single) return RopeKernel::kScatteredTable;
  if (has_sequences) return RopeKernel::kTokenTableSequences;
  const bool is_plain = !has_axes && problem.fault.data == nullptr && table.width == geometry.pairs();
  return is_plain ? RopeKernel::kTokenTable : RopeKernel::kTokenTableAxes;
}

// The widest vector that every pointer, every stride and every edge between channels allows.
int choose_vector_elements(const RopeProblem &problem, Pairing pairing) {
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
  // No kernel has vectors of 4 bytes, but for those that are one element.
  if (bytes.value() < kMaxVectorBytes / 2) return 1;
  return static_cast<int>(bytes.value() / size);
}

bool shares_angles(RopeKernel kernel) {
  return kernel == RopeKernel::kShared || kernel == RopeKernel::kGeneral;
}

bool is_scattered(RopeKernel kernel) {
  return kernel == RopeKernel::kScattered || kernel == RopeKernel::kScatteredTable;
}

bool is_short_table(RopeKernel kernel) {
  return kernel == RopeKernel::kShortTable32 || kernel == RopeKernel::kShortTable16 ||
         kernel == RopeKernel::kLateTable32 || kernel == RopeKernel::kLateTable16;
}

bool is_short(RopeKernel kernel) {
  return kernel == RopeKernel::kShortWarp || kernel == RopeKernel::kShort || is_short_table(kernel);
}

bool is_long(RopeKernel kernel) {
  return kernel == RopeKernel::kLong || kernel == RopeKernel::kLongBatches || kernel == RopeKernel::kLongConverted ||
         kernel == RopeKernel::kLongTable32 || kernel == RopeKernel::kLongTable16;
}

// Whose grid has an axis for the parts of a token.
bool has_axis_of_parts(RopeKernel kernel) {
  return is_short(kernel) || kernel == RopeKernel::kFlat || kernel == RopeKernel::kTable32 ||
         kernel == RopeKernel::kTable16;
}

bool has_token_rows(RopeKernel kernel) {
  return kernel == RopeKernel::kToken || kernel == RopeKernel::kTokenAxes || kernel == RopeKernel::kTokenSequences ||
         kernel == RopeKernel::kTokenTable || kernel == RopeKernel::kTokenTableAxes ||
         kernel == RopeKernel::kTokenTableSequences || is_scattered(kernel) || is_long(kernel);
}

void take_threads(uint32_t threads, uint32_t units_per_block, RopePlan *plan) {
  const uint32_t units = plan->units_per_token;
  plan->threads = threads;
  plan->units_per_block = units_per_block;
  plan->tokens_per_block = units < units_per_block ? units_per_block / units : 1;
  plan->blocks_per_token = (units - 1) / units_per_block + 1;
}

// Threads and their share of tokens: the block size that leaves the fewest threads idle, the first in the list of
// those that are alike. A block's units are a multiple of `uncut`.
void shape_block(uint32_t uncut, RopePlan *plan) {
  RopePlan best = *plan;
  uint64_t least_threads = ~uint64_t{0};
  for (const uint32_t threads : kRopeBlockSizes) {
    if (threads < uncut) continue;
    take_threads(threads, threads - threads % uncut, plan);
    // Threads spent on as many tokens as every candidate divides well enough to be compared.
    const uint64_t spent = uint64_t{threads} * plan->blocks_per_token * 1024 / plan->tokens_per_block;
    if (spent >= least_threads) continue;
    least_threads = spent;
    best = *plan;
  }
  if (least_threads == ~uint64_t{0}) {
    take_threads((uncut + 31) / 32 * 32, uncut, plan);
  } else {
    *plan = best;
  }
}

// Rows of the grid, each of fewer tokens, units and blocks than 32 bits count. Where there are several batches a row
// has whole ones.
rope_status_t shape_grid(const char *function, const RopeProblem &problem, RopePlan *plan) {
  const int64_t tokens = problem.batches * problem.tokens;
  int64_t most = kMaxGridX / plan->blocks_per_token * plan->tokens_per_block;
  if (most > kMaxGridX) most = kMaxGridX;
  // Too many batches for a row to have one token of each: then it has whole batches.
  if (problem.batches > most) plan->is_batch_fastest = false;
  int64_t whole = plan->tokens_per_block;
  if (problem.batches > 1) whole = plan->is_batch_fastest ? problem.batches : problem.tokens;
  most -= most % whole;
  if (most == 0) {
    return fail(ROPE_STATUS_NOT_SUPPORTED,
                "%s: q has %lld batches of %lld tokens: one launch holds several batches only of fewer tokens",
                function, static_cast<long long>(problem.batches), static_cast<long long>(problem.tokens));
  }
  const int64_t grid_rows = (tokens - 1) / most + 1;
  if (grid_rows > kMaxGridY) {
    return fail(ROPE_STATUS_NOT_SUPPORTED, "%s: q has %lld tokens: with these heads one launch holds %lld tokens",
                function, static_cast<long long>(tokens), static_cast<long long>(most * kMaxGridY));
  }
  plan->tokens_per_grid_row = tokens < most ? tokens : most;
  plan->grid_y = static_cast<uint32_t>(grid_rows);
  const int64_t groups = (plan->tokens_per_grid_row - 1) / plan->tokens_per_block + 1;
  plan->grid_x = static_cast<uint32_t>(groups) * plan->blocks_per_token;
  return ROPE_STATUS_SUCCESS;
}

// Whether a thread may overwrite what another of the same head has yet to read.
bool converts_in_place(const RopeProblem &problem, Pairing pairing) {
  for (int i = 0; i < problem.num_tensors; ++i) {
    if (pairing == Pairing::kConverted && problem.tensor[i].is_in_place) return true;
  }
  return false;
}

void count_units(const RopeProblem &problem, RopePlan *plan) {
  const RopeGeometry &geometry = *problem.geometry;
  const int elements = plan->vector_elements;
  uint32_t copy_units = static_cast<uint32_t>((geometry.head_dim - geometry.rotary_dim) / elements);
  // There a copy unit is two vectors too.
  if (has_token_rows(plan->kernel) && !is_scattered(plan->kernel)) copy_units = (copy_units + 1) / 2;
  plan->rotary_units_per_head = static_cast<uint32_t>(geometry.pairs() / elements);
  plan->units_per_token = 0;
  bool has_copies = false;
  for (int i = 0; i < problem.num_tensors; ++i) has_copies = has_copies || !problem.tensor[i].is_in_place;
  for (int i = 0; i < problem.num_tensors; ++i) {
    const RotatedTensor &tensor = problem.tensor[i];
    // Where blocks have whole heads, all heads have the same number of units; some of those then have nothing to do.
    const bool counts_copies = converts_in_place(problem, plan->pairing) ? has_copies : !tensor.is_in_place;
    plan->units_per_head[i] = plan->rotary_units_per_head + (counts_copies ? copy_units : 0);
    const int64_t heads =
        is_scattered(plan->kernel) ? (tensor.heads + kScatteredHeads - 1) / kScatteredHeads : tensor.heads;
    plan->units_per_token += plan->units_per_head[i] * static_cast<uint32_t>(heads);
  }
}

uint32_t count_shared_bytes(const RopeProblem &problem, const RopePlan &plan) {
  const uint32_t pairs = static_cast<uint32_t>(problem.geometry->pairs());
  constexpr uint32_t kFloat = sizeof(float);
  if (plan.kernel == RopeKernel::kShortWarp) return plan.units_per_block / kLanes * (2 * kMaxShortPairs * kFloat);
  const bool has_room_for_most = plan.kernel == RopeKernel::kShort || is_long(plan.kernel);
  if (has_room_for_most) return plan.thread_rows * (2 * kMaxShortPairs * kFloat);
  if (has_axis_of_parts(plan.kernel)) return 0;
  if (plan.kernel != RopeKernel::kGeneral) return plan.tokens_per_block * 2 * pairs * kFloat;
  const uint32_t size = problem.geometry->dtype == ROPE_DTYPE_F64 ? sizeof(double) : kFloat;
  const uint32_t arrays = problem.table.is_by_channel ? 4 : 2;
  return plan.tokens_per_block * (arrays * pairs * size + static_cast<uint32_t>(sizeof(TokenInfo)));
}

// Vectors of 16 bytes for each multiprocessor, counting one of the two of a unit, at most so many.
bool has_few_vectors(const RopeProblem &problem, const DeviceInfo &device, const RopePlan &plan, int most) {
  const int64_t token_bytes = plan.units_per_token * (plan.vector_elements * dtype_size(problem.geometry->dtype));
  return saturated_product(problem.batches * problem.tokens, token_bytes) <=
         int64_t{most} * device.multiprocessors * kMaxVectorBytes;
}

// Most vectors, as above, of a short launch, by the kernel that it would have.
int most_short_vectors(RopeKernel kernel) {
  if (!is_short(kernel)) return kMostNarrowVectors;
  return is_short_table(kernel) ? kMostShortTableVectors : kMostShortVectors;
}

// Whether strides, in bytes, and the numbers of tokens and batches fit the kernels with rows of threads for a token.
bool fits_token_rows(const RopeProblem &problem, const RopePlan &plan) {
  const int64_t size = dtype_size(problem.geometry->dtype), tokens = problem.batches * problem.tokens;
  const uint32_t units_per_run = static_cast<uint32_t>(problem.in_distance / plan.vector_elements);
  if (plan.pairing == Pairing::kHalf && units_per_run < 2) return false;
  if (problem.sequences.is_present && problem.sequences.count > INT32_MAX) return false;
  uint32_t units_per_head = 0;
  for (int i = 0; i < problem.num_tensors; ++i) {
    const RotatedTensor &tensor = problem.tensor[i];
    if (tensor.heads == 0) continue;
    if (units_per_head != 0 && plan.units_per_head[i] != units_per_head) return false;
    units_per_head = plan.units_per_head[i];
    const int64_t strides[] = {tensor.in_stride[kToken], tensor.in_stride[kHead], tensor.out_stride[kToken],
                               tensor.out_stride[kHead]};
    for (const int64_t stride : strides) {
      if (stride * size > INT32_MAX || stride * size < -INT32_MAX) return false;
    }
  }
  const int64_t blocks = plan.units_per_token / 32 + 1;
  if (tokens > kMaxGridX / blocks) return false;
  // Then a unit's number is divided by one multiplication, and so is that of a unit in its head.
  return units_per_head > 1 && uint64_t{plan.units_per_token} * units_per_head <= UINT32_MAX;
}

// Tokens of a head follow each other closer than heads of a token (BHSD).
bool has_closer_tokens(const RopeProblem &problem) {
  const RotatedTensor &q = problem.tensor[0];
  return problem.tokens > 1 && q.heads > 1 && magnitude(q.in_stride[kToken]) < magnitude(q.in_stride[kHead]);
}

void shape_grid_of_rows(const RopeProblem &problem, RopePlan *plan) {
  plan->thread_rows = plan->tokens_per_block;
  plan->units_per_block = plan->threads * plan->thread_rows;
  const auto groups_of = [&](int64_t tokens) {
    return static_cast<uint32_t>((tokens - 1) / plan->tokens_per_block + 1);
  };
  if (!is_long(plan->kernel)) {
    plan->grid_x = groups_of(problem.batches * problem.tokens) * plan->blocks_per_token;
    plan->grid_y = 1;
  } else if (plan->is_part_slowest) {
    plan->grid_x = groups_of(problem.tokens);
    plan->grid_y = plan->blocks_per_token;
  } else {
    plan->grid_x = groups_of(problem.tokens) * plan->blocks_per_token;
    plan->grid_y = static_cast<uint32_t>(problem.batches);
  }
}

uint32_t choose_short_threads(const RopeProblem &problem, const DeviceInfo &device, const RopePlan &plan) {
  const auto choose = [&](const auto &rows) {
    uint32_t threads = 0;
    for (const ShortThreads &row : rows) {
      threads = row.threads;
      if (has_few_vectors(problem, device, plan, row.most_vectors)) break;
    }
    return threads;
  };
  return plan.is_programmatic ? choose(kShortThreadsProgrammatic) : choose(kShortThreads);
}

// A grid with an axis for the parts of a token. A row of threads may end within a warp, but where angles are shared.
void shape_flat(const RopeProblem &problem, const DeviceInfo &device, RopePlan *plan) {
  const uint32_t wanted = is_short(plan->kernel) ? choose_short_threads(problem, device, *plan) : kFlatThreads;
  const uint32_t parts = (plan->units_per_token - 1) / wanted + 1;
  uint32_t threads = (plan->units_per_token - 1) / parts + 1;
  const uint32_t pairs = static_cast<uint32_t>(problem.geometry->pairs());
  if (plan->kernel == RopeKernel::kShort && threads < pairs) threads = pairs;
  const bool has_whole_warps =
      plan->kernel == RopeKernel::kShortWarp || plan->kernel == RopeKernel::kShort || parts > 1;
  plan->threads = has_whole_warps ? (threads + kLanes - 1) / kLanes * kLanes : threads;
  plan->tokens_per_block = plan->threads < wanted ? wanted / plan->threads : 1;
  plan->blocks_per_token = 1;
  shape_grid_of_rows(problem, plan);
  plan->grid_y = plan->blocks_per_token = parts;
}

// Rows with a thread for each pair: no shorter than a warp, and two or more in a block.
bool fits_rows_of_pairs(uint32_t pairs) {
  return pairs >= kLanes && 2 * pairs <= kRopeBlockSizes[0];
}

// Whether windows of neighbouring heads have other channels between them.
bool has_gaps(const RopeProblem &problem) {
  const RotatedTensor &q = problem.tensor[0];
  return q.heads > 1 && magnitude(q.in_stride[kHead]) > problem.geometry->rotary_dim;
}

// Whether warps may have threads of several tokens: in sequences they look for theirs together.
bool can_cut_warps(RopeKernel kernel) {
  return kernel == RopeKernel::kToken || kernel == RopeKernel::kTokenAxes || kernel == RopeKernel::kTokenTable ||
         kernel == RopeKernel::kTokenTableAxes || is_long(kernel);
}

// Rows of so many threads, as many as fit a block.
void cut_rows(uint32_t threads, RopePlan *plan) {
  plan->threads = threads;
  plan->tokens_per_block = kRopeBlockSizes[0] / threads;
  plan->blocks_per_token = (plan->units_per_token - 1) / threads + 1;
}

// In the kernels of long launches a thread has a pair at most, and parts of a token are a number of the grid's second
// axis.
static_assert(kThreadsOfCloserTokens >= kMaxShortPairs && kLeastUnitsOfTokenRows >= kMaxShortPairs, "");
static_assert(kThreadsOfCloserTokens >= kFewestShortThreads, "");

// A row of threads for each token: several rows in a block where tokens are small, or where whole warps would leave
// many threads idle.
void shape_token_rows(const RopeProblem &problem, const DeviceInfo &device, RopePlan *plan) {
  const uint32_t units = plan->units_per_token, padded = (units + kLanes - 1) / kLanes * kLanes;
  plan->is_part_slowest = has_closer_tokens(problem);
  if (plan->is_part_slowest) {
    cut_rows(padded < kThreadsOfCloserTokens ? padded : kThreadsOfCloserTokens, plan);
  } else if (padded < kRopeBlockSizes[0]) {
    plan->threads = padded;
    plan->tokens_per_block = kRopeBlockSizes[0] / padded;
    plan->blocks_per_token = 1;
  } else {
    shape_block(1, plan);
    plan->blocks_per_token = (units - 1) / plan->threads + 1;
    plan->tokens_per_block = 1;
    const uint32_t pairs = static_cast<uint32_t>(problem.geometry->pairs());
    const bool has_idle_threads =
        uint64_t{plan->threads} * plan->blocks_per_token > uint64_t{units} * kMostPercentOfThreads / 100;
    if (is_long(plan->kernel) && has_gaps(problem) && pairs <= kThreadsOfGappedRows && units > kRopeBlockSizes[0]) {
      cut_rows(kThreadsOfGappedRows, plan);
    } else if (has_idle_threads && fits_rows_of_pairs(pairs) && units % pairs == 0 && can_cut_warps(plan->kernel)) {
      cut_rows(pairs, plan);
    }
  }
  shape_grid_of_rows(problem, plan);
  const uint32_t threads_of_token = plan->is_part_slowest ? plan->threads : plan->units_per_token;
  plan->tokens_ahead = static_cast<uint32_t>(device.multiprocessors) * kRopeResidentThreads / threads_of_token + 1;
}

// Tokens are taken in the order in which they lie in memory (SBHD: batch by batch).
bool has_closer_batches(const RopeProblem &problem) {
  const RotatedTensor &q = problem.tensor[0];
  return problem.batches > 1 && magnitude(q.in_stride[kBatch]) < magnitude(q.in_stride[kToken]);
}

// Channels of the style of blocks jump those of a pair's second channels.
bool has_blocks(const RopeProblem &problem) {
  return problem.in_distance != 1 && problem.in_distance != problem.geometry->pairs();
}

// Whether the flat kernels can have the problem; the short ones ask for more.
bool can_be_flat(const RopeProblem &problem, const RopePlan &plan) {
  if (has_blocks(problem) || problem.start_positions.is_present || !fits_token_rows(problem, plan)) return false;
  if ((plan.units_per_token - 1) / kFewestShortThreads >= kMaxGridY) return false;
  for (int i = 0; i < problem.num_tensors; ++i) {
    if (plan.units_per_head[i] != plan.rotary_units_per_head) return false;
  }
  return true;
}

// Whether a thread can have its entries of a row as vectors, of rows that 32 bits count and whose strides they hold.
bool has_vector_rows(const RopeProblem &problem, const RopePlan &plan) {
  const AngleTable &table = problem.table;
  const int64_t most = INT32_MAX / dtype_size(table.dtype);
  const int64_t numbers[] = {table.rows, table.cos.row_stride, table.sin.row_stride};
  for (const int64_t number : numbers) {
    if (number > most || number < -most) return false;
  }
  const int run = plan.pairing == Pairing::kInterleaved ? plan.vector_elements / 2 : plan.vector_elements;
  return table.cos.column_stride == 1 && table.sin.column_stride == 1 && has_table_vectors(table, run);
}

// Whether the kernels with few parameters can have the problem, but for its number of batches.
bool can_be_lean(const RopeProblem &problem, const RopePlan &plan) {
  if (!can_be_flat(problem, plan)) return false;
  constexpr int64_t kMostPositionStride = INT32_MAX / 8;
  const int64_t position_stride = problem.positions.token_stride;
  if (position_stride > kMostPositionStride || position_stride < -kMostPositionStride) return false;
  for (int i = 0; i < problem.num_tensors; ++i) {
    const RotatedTensor &tensor = problem.tensor[i];
    if (tensor.in_stride[kToken] != tensor.out_stride[kToken]) return false;
    if (tensor.in_stride[kHead] != tensor.out_stride[kHead] || tensor.in_stride[kHead] < 0) return false;
  }
  if (problem.angles == AngleSource::kIncrements) return problem.geometry->pairs() <= kMaxShortPairs;
  return problem.table.cos.row_stride == problem.table.sin.row_stride && has_vector_rows(problem, plan);
}

// The kernel of a short launch, where kToken and kTokenTable have a quicker one.
RopeKernel choose_short_kernel(const RopeProblem &problem, const DeviceInfo &device, const RopePlan &plan) {
  const bool is_plain = plan.kernel == RopeKernel::kToken || plan.kernel == RopeKernel::kTokenTable;
  if (!is_plain || problem.batches != 1 || !can_be_lean(problem, plan)) return plan.kernel;
  if (plan.kernel == RopeKernel::kTokenTable) {
    const bool has_floats = problem.table.dtype == ROPE_DTYPE_F32;
    if (plan.is_programmatic && has_few_vectors(problem, device, plan, kMostVectorsOfLateTables)) {
      return has_floats ? RopeKernel::kLateTable32 : RopeKernel::kLateTable16;
    }
    return has_floats ? RopeKernel::kShortTable32 : RopeKernel::kShortTable16;
  }
  const int most = plan.is_programmatic ? kMostVectorsOfWarpsProgrammatic : kMostVectorsOfWarps;
  return has_few_vectors(problem, device, plan, most) ? RopeKernel::kShortWarp : RopeKernel::kShort;
}

// Gives a launch of few vectors those of half the width and, where there is one, a kernel for short launches: true if
// it has such a kernel. The vectors may be halved either way.
bool take_short_kernel(const RopeProblem &problem, const DeviceInfo &device, RopePlan *plan) {
  static_assert(kMostShortTableVectors >= kMostShortVectors && kMostShortTableVectors >= kMostNarrowVectors, "");
  if (!has_few_vectors(problem, device, *plan, kMostShortTableVectors)) return false;
  const RopePlan wide = *plan;
  if (wide.vector_elements > 1 && wide.vector_elements * dtype_size(problem.geometry->dtype) == kMaxVectorBytes) {
    plan->vector_elements /= 2;
    count_units(problem, plan);
  }
  const RopeKernel kernel = choose_short_kernel(problem, device, *plan);
  if (!has_few_vectors(problem, device, wide, most_short_vectors(kernel))) {
    *plan = wide;
    return false;
  }
  plan->kernel = kernel;
  return is_short(kernel);
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

// Whether the kernels of long launches can have the problem. Its second axis has either batches or parts of a token.
bool can_be_long(const RopeProblem &problem, const RopePlan &plan) {
  const int64_t size = dtype_size(problem.geometry->dtype);
  if (size != 2 || plan.vector_elements * size != kLongVectorBytes) return false;
  if (has_closer_tokens(problem) && problem.batches > 1) return false;
  if (problem.geometry->pairs() > kMaxShortPairs) return false;
  // Then a block's number is divided by one multiplication.
  const uint64_t blocks = plan.units_per_token / kLanes + 1;
  return can_be_lean(problem, plan) && has_following_batches(problem) &&
         static_cast<uint64_t>(problem.tokens) <= UINT32_MAX / (blocks * blocks);
}

// Whether those between the styles can: with computed angles of one axis, from or to one block of pairs, and with whole
// heads in a block whatever rows of threads it has.
bool can_be_long_converted(const RopeProblem &problem, const RopePlan &plan) {
  if (plan.pairing != Pairing::kConverted || problem.in_distance * problem.out_distance != problem.geometry->pairs()) {
    return false;
  }
  if (problem.angles != AngleSource::kIncrements || problem.geometry->num_axes > 1) return false;
  constexpr uint32_t kUnitsThatDivideRows = 8;
  static_assert(kThreadsOfCloserTokens % kUnitsThatDivideRows == 0 &&
                    kThreadsOfGappedRows % kUnitsThatDivideRows == 0 &&
                    kRopeBlockSizes[0] % kUnitsThatDivideRows == 0 && kRopeBlockSizes[1] % kUnitsThatDivideRows == 0 &&
                    kRopeBlockSizes[2] % kUnitsThatDivideRows == 0,
                "");
  return !problem.sequences.is_present && plan.units_per_token >= kLeastUnitsOfTokenRows &&
         kUnitsThatDivideRows % plan.rotary_units_per_head == 0 && can_be_long(problem, plan);
}

// The same for any other: for tokens with few units, of which a row of threads leaves many idle, and for what they do
// not fit.
RopeKernel choose_long_kernel(const RopeProblem &problem, const RopePlan &plan) {
  if (can_be_long_converted(problem, plan)) return RopeKernel::kLongConverted;
  if (has_blocks(problem)) return plan.kernel;
  const bool has_rows = plan.units_per_token >= kLeastUnitsOfTokenRows;
  const bool is_wide = plan.vector_elements * dtype_size(problem.geometry->dtype) == kFlatVectorBytes;
  const int64_t heads = problem.heads_per_token();
  if (plan.kernel == RopeKernel::kToken) {
    if (is_wide && heads <= kMostHeadsOfFlat && can_be_flat(problem, plan)) return RopeKernel::kFlat;
    if (has_rows && can_be_long(problem, plan)) {
      const bool is_simple = problem.batches == 1 && !has_closer_tokens(problem);
      return is_simple ? RopeKernel::kLong : RopeKernel::kLongBatches;
    }
    return has_rows && fits_token_rows(problem, plan) ? RopeKernel::kToken : RopeKernel::kShared;
  }
  if (plan.kernel != RopeKernel::kTokenTable || !is_wide) return plan.kernel;
  if (has_rows && heads > 1) {
    if (!can_be_long(problem, plan)) return plan.kernel;
    return problem.table.dtype == ROPE_DTYPE_F32 ? RopeKernel::kLongTable32 : RopeKernel::kLongTable16;
  }
  if (!can_be_flat(problem, plan) || !has_vector_rows(problem, plan)) return plan.kernel;
  return problem.table.dtype == ROPE_DTYPE_F32 ? RopeKernel::kTable32 : RopeKernel::kTable16;
}

rope_status_t plan_cuda(const char *function, const RopeProblem &problem, const DeviceInfo &device, RopePlan *plan) {
  plan->is_programmatic = problem.is_programmatic && device.compute_capability >= 90;
  plan->pairing = pairing_of(problem.in_distance, problem.out_distance);
  plan->vector_elements = choose_vector_elements(problem, plan->pairing);
  plan->kernel = choose_kernel(problem, plan->vector_elements == 1);
  count_units(problem, plan);
  if (!take_short_kernel(problem, device, plan)) plan->kernel = choose_long_kernel(problem, *plan);
  if (has_token_rows(plan->kernel) && !fits_token_rows(problem, *plan)) plan->kernel = RopeKernel::kGeneral;
  // So far units are those of rows of threads, or of the scattered kernels. The others, but these, copy nothing.
  if (shares_angles(plan->kernel)) count_units(problem, plan);
  plan->is_batch_fastest = has_closer_batches(problem);
  plan->thread_rows = 1;
  if (shares_angles(plan->kernel)) {
    shape_block(converts_in_place(problem, plan->pairing) ? plan->units_per_head[0] : 1, plan);
    ROPE_TRY(shape_grid(function, problem, plan));
  } else if (has_axis_of_parts(plan->kernel)) {
    shape_flat(problem, device, plan);
  } else {
    shape_token_rows(problem, device, plan);
  }
  plan->shared_bytes = count_shared_bytes(problem, *plan);
  return ROPE_STATUS_SUCCESS;
}

void plan_cpu(const RopeProblem &problem, int num_threads, RopePlan *plan) {
  plan->num_tasks = count_cpu_tasks(moved_bytes(problem), num_threads);
}

}  // namespace

Pairing pairing_of(int in_distance, int out_distance) {
  if (in_distance != out_distance) return Pairing::kConverted;
  return in_distance == 1 ? Pairing::kInterleaved : Pairing::kHalf;
}

bool may_have(Pairing pairing, RopeKernel kernel) {
  // Between the styles there are the general kernel and one of long launches.
  const bool converts = kernel == RopeKernel::kLongConverted;
  return kernel == RopeKernel::kGeneral || converts == (pairing == Pairing::kConverted);
}

int64_t moved_bytes(const RopeProblem &problem) {
  const RopeGeometry &geometry = *problem.geometry;
  int64_t token_bytes = 0;
  for (int i = 0; i < problem.num_tensors; ++i) {
    const RotatedTensor &tensor = problem.tensor[i];
    const int channels = tensor.is_in_place ? geometry.rotary_dim : geometry.head_dim;
    token_bytes += 2 * tensor.heads * channels * dtype_size(geometry.dtype);
  }
  return saturated_product(problem.batches * problem.tokens, token_bytes);
}

rope_status_t plan_rope(const char *function, const RopeProblem &problem, const DeviceInfo &device, RopePlan *plan) {
  *plan = RopePlan{};
  if (device.is_cuda) return plan_cuda(function, problem, device, plan);
  plan_cpu(problem, device.num_threads, plan);
  return ROPE_STATUS_SUCCESS;
}

}  // namespace rope
