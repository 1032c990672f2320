// SPDX-License-Identifier: Apache-2.0
// step_plan.cpp - selects a kernel for a call with a step, and the grid and shared memory of its launch
#include "plan/step_plan.hpp"

#include "plan/launch_shape.hpp"
#include "plan/step_plan_checks.hpp"

namespace rope {

namespace {

bool fit_integers(const TokenIntegers &integers) {
  return fits(integers.token_stride, 8) && fits(integers.batch_stride, 8);
}

}  // namespace

bool takes_tokens(const RopeProblem &problem) {
  const StepProblem &step = *problem.step;
  if (!may_have_rows(*problem.geometry) || (step.is_turned && problem.geometry->rounds_each)) return false;
  if (problem.sequences.is_present || problem.start_positions.is_present) return false;
  const TokenIntegers &positions = problem.positions;
  if (!fit_integers(positions) || !fits(positions.axis_stride, 8)) return false;
  if (problem.angles != AngleSource::kIncrements) {
    const AngleTable &table = problem.table;
    // Faults are counted even if nothing is turned.
    if (!step.is_turned || problem.angles != AngleSource::kTable || table.dtype == ROPE_DTYPE_F64 ||
        table.is_by_channel || table.is_by_token || table.width != problem.geometry->pairs()) {
      return false;
    }
  }
  if (!step.has_caches) return true;
  const CachePlaces &places = step.places;
  if (places.entries == 0 || places.pages > kMaxInt32 / places.entries || !fit_integers(places_source(problem))) {
    return false;
  }
  if (places.slots.is_present) return true;
  const PageTable &table = places.table;
  return fit_integers(places.sequence) && table.rows < kMaxInt32 && table.columns <= kMaxInt32 / places.entries &&
         fits(table.row_stride, 8) && fits(table.column_stride, 8) && fits(table.indptr_stride, 8);
}

namespace {

// Whether weights or a bias can be read along with vectors of `vector_bytes` of the data, with elements of `size`.
bool fits_numbers(const ChannelNumbers &numbers, int64_t size, int64_t vector_bytes) {
  if (numbers.data == nullptr) return true;
  const int64_t number_size = numbers.is_f32 ? 4 : size;
  if (numbers.channel_stride != 1 || !fits(numbers.head_stride, number_size)) return false;
  VectorBytes bytes;
  bytes.add(numbers.data);
  bytes.add(numbers.head_stride * number_size);
  const int64_t at_a_time = vector_bytes / size < 4 ? vector_bytes / size : 4;
  return bytes.value() >= at_a_time * number_size;
}

}  // namespace

bool fits_vectors(const RopeProblem &problem, const StepPiece &piece, int64_t vector_bytes) {
  const rope_dtype_t data = problem.geometry->dtype;
  const int64_t size = dtype_size(data);
  const auto fits_side = [&](const char *first, rope_dtype_t dtype, const int64_t *stride) {
    const int64_t element = dtype_size(dtype);
    VectorBytes bytes;
    bytes.add(first);
    if (problem.batches > 1) bytes.add(stride[kBatch] * element);
    if (problem.tokens > 1) bytes.add(stride[kToken] * element);
    if (piece.heads > 1) bytes.add(stride[kHead] * element);
    return (dtype == data || is_code(dtype)) && stride[kChannel] == 1 && fits(stride[kToken], element) &&
           fits(stride[kHead], element) && bytes.value() >= vector_bytes / size * element;
  };
  if (!fits_side(piece.in, data, piece.in_stride)) return false;
  if (piece.is_written && !fits_side(piece.out, piece.out_dtype, piece.out_stride)) return false;
  if (piece.is_cached()) {
    // Pages and entries replace batches and tokens.
    const CacheView &cache = piece.cache;
    const int64_t element = dtype_size(cache.dtype);
    VectorBytes bytes;
    bytes.add(cache.data);
    bytes.add(cache.page_stride * element);
    bytes.add(cache.entry_stride * element);
    if (piece.heads > 1) bytes.add(cache.head_stride * element);
    if ((cache.dtype != data && !is_code(cache.dtype)) || cache.channel_stride != 1 ||
        !fits(cache.head_stride, element) || bytes.value() < vector_bytes / size * element) {
      return false;
    }
  }
  return piece.channels * size % (2 * vector_bytes) == 0 && fits_numbers(*piece.weight, size, vector_bytes) &&
         fits_numbers(*piece.bias, size, vector_bytes);
}

namespace {

// Whether a piece's codes in the output and in the cache, if it has both, have equal types and scales.
bool are_same_codes(const StepPiece &piece) {
  if (!piece.has_code_out() || !piece.has_code_cache()) return true;
  const WrittenScales &of_out = *piece.out_scales, &of_cache = *piece.cache_scales;
  return piece.out_dtype == piece.cache.dtype && of_out.is_present() == of_cache.is_present() &&
         (!of_out.is_present() ||
          (of_out.form == of_cache.form && of_out.floor == of_cache.floor && of_out.groups == of_cache.groups));
}

}  // namespace

bool can_be_codes(const RopeProblem &problem, const StepPiece &piece) {
  return dtype_size(problem.geometry->dtype) == 2 && are_same_codes(piece) &&
         fits(piece.scale->head_stride, dtype_size(ROPE_DTYPE_F32));
}

bool takes_factor(const RopeProblem &problem, const RowFactor &factor) {
  return !factor.is_present() || (dtype_size(problem.geometry->dtype) == 2 && fits(factor.token_stride, 4) &&
                                  fits(factor.batch_stride, 4) && fits(factor.head_stride, 4));
}

bool has_token_norm(const RopeProblem &problem) {
  return problem.step->has_norm && problem.geometry->norm.is_of_token;
}

bool has_lookups(const RopeProblem &problem) {
  const StepProblem &step = *problem.step;
  const bool has_axes = step.is_turned && problem.geometry->num_axes > 1;
  return has_axes || (step.has_caches && !step.places.slots.is_present);
}

StepVariant variant_of(const RopeProblem &problem, StepKernel kernel) {
  const StepProblem &step = *problem.step;
  const StepNorm norm = step.has_norm ? step_norm_of(*problem.geometry) : StepNorm::kNone;
  const StepAngles angles = !step.is_turned                              ? StepAngles::kNone
                            : problem.angles == AngleSource::kIncrements ? StepAngles::kComputed
                                                                         : StepAngles::kTable;
  const NormGeometry &form = problem.geometry->norm;
  const bool rounds = step.has_norm && (form.rounds_before_weight || form.rounds_after_weight);
  const StepCodes codes = step.has_codes ? StepCodes::kStatic : StepCodes::kNone;
  return {kernel, norm, angles, problem.in_distance == 1, codes, rounds || has_lookups(problem)};
}

namespace {

// ---- Rows ----

// Whether the heads of a tensor and their windows consist of whole units, and a head's units fit in one warp.
bool fits_units(const RopeProblem &problem, int index, int64_t vector_bytes) {
  const RopeGeometry &geometry = *problem.geometry;
  const StepTensor &step = problem.step->tensor[index];
  const int64_t size = dtype_size(geometry.dtype), unit = 2 * vector_bytes;
  if ((int64_t{1} << step_lanes_log2(step.channels, static_cast<int>(vector_bytes / size))) > kWarpThreads) {
    return false;
  }
  return !step.has_styles || (geometry.rotary_dim * size % unit == 0 && step.window_begin * size % unit == 0);
}

}  // namespace

bool fit_rows(const RopeProblem &problem, int64_t vector_bytes) {
  for (int i = 0; i < problem.num_tensors; ++i) {
    if (problem.tensor[i].heads == 0) continue;
    if (!fits_vectors(problem, whole_piece(problem, i), vector_bytes) || !fits_units(problem, i, vector_bytes)) {
      return false;
    }
  }
  return true;
}

namespace {

int64_t threads_of_token(const RopeProblem &problem, const RopePlan &plan) {
  int64_t threads = 0;
  for (int i = 0; i < problem.num_tensors; ++i) {
    if (problem.tensor[i].heads == 0) continue;
    threads = step_tensor_begin(problem, plan, i, threads);
    threads += problem.tensor[i].heads << step_lanes_log2(problem.step->tensor[i].channels, plan.vector_elements);
  }
  return threads;
}

// Chooses the threads of a block, a multiple of a warp, that leave the fewest idle, and the number of blocks of a
// token.
void shape_rows(const StepTuning &tuning, int64_t threads_per_token, RopePlan *plan) {
  const uint32_t wanted = tuning.rows_threads;
  const uint32_t threads = static_cast<uint32_t>(threads_per_token), parts = (threads - 1) / wanted + 1;
  plan->threads = round_up_to_warps((threads - 1) / parts + 1);
  plan->blocks_per_token = (threads - 1) / plan->threads + 1;
  plan->tokens_per_block = plan->blocks_per_token == 1 && plan->threads < wanted ? wanted / plan->threads : 1;
  plan->thread_rows = plan->tokens_per_block;
}

// Plans norms over all heads of a token: one block for all tensors of a token, or one for each tensor. Returns false if
// even one tensor has too many heads.
bool shape_token_rows(const RopeProblem &problem, RopePlan *plan) {
  int64_t most = 0;
  uint32_t tensors = 0;
  plan->blocks_per_token = 1;
  for (int i = 0; i < problem.num_tensors; ++i) {
    const int64_t heads = problem.tensor[i].heads;
    if (heads == 0) continue;
    const int64_t threads = heads << step_lanes_log2(problem.step->tensor[i].channels, plan->vector_elements);
    if (threads > most) most = threads;
    ++tensors;
  }
  const int64_t all = threads_of_token(problem, *plan),
                max = plan->step.has_codes() ? kMaxStepCodeThreads : kMaxStepTokenThreads;
  const bool has_one_block = all <= max;
  if (!has_one_block && most > max) return false;
  plan->threads = round_up_to_warps(static_cast<uint32_t>(has_one_block ? all : most));
  if (!has_one_block) plan->blocks_per_token = tensors;
  plan->tokens_per_block = plan->thread_rows = 1;
  plan->units.per_token = plan->threads * plan->blocks_per_token;
  return true;
}

// Threads that share angles have room for these and for the token's place; each warp has room to put a head's sums in
// order.
uint32_t count_shared_bytes(const RopeProblem &problem, bool is_short, const RopePlan &plan) {
  const uint32_t warps = plan.threads * plan.thread_rows / kWarpThreads;
  const uint32_t groups = is_short ? warps : plan.thread_rows;
  const uint32_t pairs = static_cast<uint32_t>(problem.geometry->pairs());
  const uint32_t token_sums = plan.step.norm == StepNorm::kOfToken ? kStepTokenSumBytes : 0;
  return groups * (kStepSharedBytes + 2 * pairs * static_cast<uint32_t>(sizeof(float))) + warps * kStepExchangeBytes +
         token_sums;
}

// Whether threads that hold all values of a unit can make a tensor's codes: their scales must be for whole heads.
bool takes_codes(const RopeProblem &problem, int index) {
  const StepPiece piece = whole_piece(problem, index);
  return takes_factor(problem, *piece.factor) && (!piece.has_codes() || can_be_codes(problem, piece)) &&
         piece.out_scales->groups <= 1 && piece.cache_scales->groups <= 1;
}

bool plan_rows(const RopeProblem &problem, const DeviceInfo &device, RopePlan *plan) {
  const StepProblem &step = *problem.step;
  if (!takes_tokens(problem) || step.has_parts) return false;
  if (step.accumulates && dtype_size(problem.geometry->dtype) != 2) return false;
  const bool holds_values = step.has_codes || step.has_factor || step.accumulates;
  for (int i = 0; i < problem.num_tensors && holds_values; ++i) {
    if (problem.tensor[i].heads != 0 && !takes_codes(problem, i)) return false;
  }
  const int64_t size = dtype_size(problem.geometry->dtype), tokens = problem.batches * problem.tokens;
  if (tokens > kMaxInt32) return false;
  const int64_t limit = kStepTuning.max_short_rows_vectors[plan->is_programmatic];
  const bool is_of_token = has_token_norm(problem);
  bool is_short =
      !is_of_token && !holds_values && moved_bytes(problem) / (2 * kMaxVectorBytes) <= limit * device.multiprocessors;
  const auto pairs = static_cast<uint32_t>(problem.geometry->pairs());
  if (is_short && (pairs > kMaxShortStepPairs || !fit_rows(problem, kShortStepVectorBytes))) is_short = false;
  const int64_t bytes = is_short ? kShortStepVectorBytes : kLongStepVectorBytes;
  if (!is_short && !fit_rows(problem, bytes)) return false;
  plan->vector_elements = static_cast<int>(bytes / size);
  plan->step = variant_of(problem, is_short ? StepKernel::kShortRows : StepKernel::kLongRows);
  plan->step.codes = holds_values ? StepCodes::kAll : StepCodes::kNone;
  if (is_of_token) {
    if (!shape_token_rows(problem, plan)) return false;
  } else {
    const int64_t threads = threads_of_token(problem, *plan);
    if (threads > kMaxInt32) return false;
    shape_rows(kStepTuning, threads, plan);
    plan->units.per_token = static_cast<uint32_t>(threads);
  }
  const int64_t groups = (tokens - 1) / plan->tokens_per_block + 1;
  if (groups > kMaxGridX / plan->blocks_per_token) return false;
  plan->grid_x = static_cast<uint32_t>(groups) * plan->blocks_per_token;
  plan->grid_y = 1;
  plan->shared_bytes = count_shared_bytes(problem, is_short, *plan);
  return true;
}

// ---- General ----

// Threads that a multiprocessor holds if each has 64 registers.
constexpr int64_t kGeneralHeldThreads = 1024;

// Room for a head of any tensor in shared memory, in channels.
int count_row_channels(const RopeProblem &problem) {
  int channels = 0;
  for (int i = 0; i < problem.num_tensors; ++i) {
    if (problem.step->tensor[i].channels > channels) channels = problem.step->tensor[i].channels;
  }
  return (channels + 3) / 4 * 4;
}

// Room for a token's angles and the sums of its heads, with numbers of `number` bytes.
uint32_t count_token_bytes(const RopeProblem &problem, uint32_t number) {
  const uint32_t arrays = problem.step->is_turned ? (problem.table.is_by_channel ? 4 : 2) : 0;
  const uint32_t sums = has_token_norm(problem) ? kStepHeadSums : 0;
  return kStepTokenBytes + (arrays * static_cast<uint32_t>(problem.geometry->pairs()) + sums) * number;
}

void plan_general(const RopeProblem &problem, const DeviceInfo &device, RopePlan *plan) {
  const bool is_of_token = has_token_norm(problem);
  const int64_t heads = problem.heads_per_token(), heads_per_block = is_of_token ? heads : kStepTuning.general_heads;
  // If there are few blocks, a block with a whole token gets more threads.
  const int64_t tokens = problem.batches * problem.tokens, held_threads = device.multiprocessors * kGeneralHeldThreads;
  uint32_t threads = is_of_token ? kMaxStepGeneralThreads : kStepTuning.general_threads;
  while (threads > kStepTuning.general_threads && tokens > held_threads / threads) threads /= 2;
  const uint32_t size = static_cast<uint32_t>(dtype_size(problem.geometry->dtype)), number = size == 8 ? 8 : 4;
  plan->general.row_channels = count_row_channels(problem);
  const uint32_t row = static_cast<uint32_t>(plan->general.row_channels) * (2 * number + size);
  const uint32_t fixed = count_token_bytes(problem, number), fitting = (kMaxSharedBytes - fixed) / row;
  plan->general.warps = fitting < threads / kWarpThreads ? fitting : threads / kWarpThreads;
  plan->shared_bytes = fixed + plan->general.warps * row;
  plan->step.kernel = StepKernel::kGeneral;
  plan->vector_elements = 1;
  plan->threads = threads;
  plan->thread_rows = 1;
  plan->general.heads_per_block = heads_per_block;
  plan->general.blocks_per_token = (heads - 1) / heads_per_block + 1;
  const int64_t blocks = saturated_product(problem.batches * problem.tokens, plan->general.blocks_per_token);
  plan->grid_x = static_cast<uint32_t>(blocks < kMaxGridX ? blocks : kMaxGridX);
  plan->grid_y = 1;
}

// ---- The gradient of a norm ----

// The largest room for sums of all heads in a block.
constexpr uint32_t kMaxKeptBytes = 16 * 1024;

void plan_norm_gradient(const RopeProblem &problem, RopePlan *plan) {
  const uint32_t number = problem.geometry->dtype == ROPE_DTYPE_F64 ? 8 : 4;
  const uint32_t fixed = count_token_bytes(problem, number);
  plan->general.row_channels = count_row_channels(problem);
  const uint32_t row = 3 * static_cast<uint32_t>(plan->general.row_channels) * number, left = kMaxSharedBytes - fixed;
  const uint32_t room = left - row < kMaxKeptBytes ? left - row : kMaxKeptBytes;
  uint32_t kept_bytes = 0;
  int64_t items = 0;
  for (int i = 0; i < problem.num_tensors; ++i) {
    const StepTensor &tensor = problem.step->tensor[i];
    const int64_t heads = problem.tensor[i].heads, tokens = problem.batches * problem.tokens;
    plan->general.kept_channels[i] = tensor.channels;
    if (heads == 0) continue;
    items += tensor.runs > 0 ? (tokens - 1) / tokens_of_run(tokens, tensor.runs) + 1 : tokens;
    if (!tensor.weight_sums.is_added_up() && !tensor.bias_sums.is_added_up()) continue;
    const int64_t fitting = room / number / heads;
    if (fitting < tensor.channels) plan->general.kept_channels[i] = static_cast<int>(fitting);
    const auto bytes = static_cast<uint32_t>(heads * plan->general.kept_channels[i]) * number;
    if (bytes > kept_bytes) kept_bytes = bytes;
  }
  const uint32_t wanted = kStepTuning.general_threads / kWarpThreads, fitting = (left - kept_bytes) / row;
  plan->general.warps = fitting < wanted ? fitting : wanted;
  plan->shared_bytes = fixed + plan->general.warps * row + kept_bytes;
  plan->step.kernel = StepKernel::kNormGradient;
  plan->vector_elements = 1;
  plan->threads = kStepTuning.general_threads;
  plan->thread_rows = 1;
  plan->grid_x = static_cast<uint32_t>(items < kMaxGridX ? items : kMaxGridX);
  plan->grid_y = 1;
}

}  // namespace

bool may_have_rows(const RopeGeometry &geometry) {
  const bool has_one_block = geometry.in_distance == 1 || geometry.in_distance == geometry.pairs();
  return geometry.dtype != ROPE_DTYPE_F64 && geometry.in_distance == geometry.out_distance && has_one_block &&
         geometry.num_axes <= kMaxStepAxes && static_cast<uint32_t>(geometry.pairs()) <= kMaxLongStepPairs;
}

StepNorm step_norm_of(const RopeGeometry &geometry) {
  if (geometry.norm.type == 0) return StepNorm::kNone;
  if (geometry.norm.is_of_token) return StepNorm::kOfToken;
  return geometry.norm.is_after ? StepNorm::kAfter : StepNorm::kBefore;
}

int step_lanes_log2(int channels, int vector_elements) {
  int log2 = 0;
  while ((vector_elements * 2) << log2 < channels) ++log2;
  return log2;
}

int64_t step_tensor_begin(const RopeProblem &problem, const RopePlan &plan, int index, int64_t threads) {
  const int64_t lanes = int64_t{1} << step_lanes_log2(problem.step->tensor[index].channels, plan.vector_elements);
  const bool has_block = plan.step.norm == StepNorm::kOfToken && plan.blocks_per_token > 1;
  const int64_t multiple = has_block ? plan.threads : lanes;
  return (threads + multiple - 1) / multiple * multiple;
}

void plan_step(const RopeProblem &problem, const DeviceInfo &device, RopePlan *plan) {
  plan->is_programmatic = problem.is_programmatic && device.compute_capability >= 90;
  if (problem.step->is_norm_gradient) {
    if (!plan_gradient_rows(problem, device, plan)) plan_norm_gradient(problem, plan);
    return;
  }
  if (!problem.step->accumulates && plan_heads(problem, device, plan)) return;
  if (!plan_rows(problem, device, plan)) plan_general(problem, device, plan);
}

}  // namespace rope
