// step_plan.cpp - which kernel a call with a step gets, and the grid and shared memory of its launch
#include "plan/step_plan.hpp"

#include "core/problem/step_problem.hpp"
#include "core/problem/view.hpp"
#include "plan/launch_shape.hpp"

namespace rope {

namespace {

constexpr int64_t kMaxInt32 = INT32_MAX;  // of strides in bytes, and of what is counted in 32 bits

bool fits(int64_t stride, int64_t size) {
  return magnitude(stride) <= kMaxInt32 / size;
}

bool fit_integers(const TokenIntegers &integers) {
  return fits(integers.token_stride, 8) && fits(integers.batch_stride, 8);
}

// Whether the kernels of rows serve what is asked for, whatever the sizes of vectors.
bool takes_rows(const RopeProblem &problem) {
  const StepProblem &step = *problem.step;
  if (step.has_factor || step.has_parts || !may_have_rows(*problem.geometry)) return false;
  if (problem.sequences.is_present || problem.start_positions.is_present) return false;
  const TokenIntegers &positions = problem.positions;
  if (!fit_integers(positions) || !fits(positions.axis_stride, 8)) return false;
  if (problem.angles != AngleSource::kIncrements) {
    const AngleTable &table = problem.table;
    // Where nothing is turned faults are counted all the same.
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

// Whether weights or a bias can be read along with vectors of so many bytes of the data, whose elements have `size`.
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

// Whether vectors of so many bytes fit a tensor and everything that it is written to.
bool fits_vectors(const RopeProblem &problem, int index, int64_t vector_bytes) {
  const RopeGeometry &geometry = *problem.geometry;
  const RotatedTensor &tensor = problem.tensor[index];
  const StepTensor &step = problem.step->tensor[index];
  const int64_t size = dtype_size(geometry.dtype);
  const auto fits_side = [&](const char *data, rope_dtype_t dtype, const int64_t *stride) {
    const int64_t element = dtype_size(dtype);
    VectorBytes bytes;
    bytes.add(data);
    if (problem.batches > 1) bytes.add(stride[kBatch] * element);
    if (problem.tokens > 1) bytes.add(stride[kToken] * element);
    if (tensor.heads > 1) bytes.add(stride[kHead] * element);
    return (dtype == geometry.dtype || is_code(dtype)) && stride[kChannel] == 1 && fits(stride[kToken], element) &&
           fits(stride[kHead], element) && bytes.value() >= vector_bytes / size * element;
  };
  if (!fits_side(tensor.in, geometry.dtype, tensor.in_stride)) return false;
  if (step.is_written && !fits_side(tensor.out, step.out_dtype, tensor.out_stride)) return false;
  if (step.is_cached()) {
    // Pages and entries in the place of batches and tokens.
    const CacheView &cache = step.cache;
    const int64_t element = dtype_size(cache.dtype);
    VectorBytes bytes;
    bytes.add(cache.data);
    bytes.add(cache.page_stride * element);
    bytes.add(cache.entry_stride * element);
    if (tensor.heads > 1) bytes.add(cache.head_stride * element);
    if ((cache.dtype != geometry.dtype && !is_code(cache.dtype)) || cache.channel_stride != 1 ||
        !fits(cache.head_stride, element) || bytes.value() < vector_bytes / size * element) {
      return false;
    }
  }
  if (!fits_numbers(step.weight, size, vector_bytes) || !fits_numbers(step.bias, size, vector_bytes)) return false;
  const int64_t unit = 2 * vector_bytes;
  if (step.channels * size % unit != 0 ||
      (int64_t{1} << step_lanes_log2(step.channels, static_cast<int>(vector_bytes / size))) > kWarpThreads) {
    return false;
  }
  const bool has_window = step.has_styles;
  return !has_window || (geometry.rotary_dim * size % unit == 0 && step.window_begin * size % unit == 0);
}

bool fit_vectors(const RopeProblem &problem, int64_t vector_bytes) {
  for (int i = 0; i < problem.num_tensors; ++i) {
    if (problem.tensor[i].heads > 0 && !fits_vectors(problem, i, vector_bytes)) return false;
  }
  return true;
}

int64_t threads_of_token(const RopeProblem &problem, const RopePlan &plan) {
  int64_t threads = 0;
  for (int i = 0; i < problem.num_tensors; ++i) {
    if (problem.tensor[i].heads == 0) continue;
    threads = step_tensor_begin(problem, plan, i, threads);
    threads += problem.tensor[i].heads << step_lanes_log2(problem.step->tensor[i].channels, plan.vector_elements);
  }
  return threads;
}

// Threads of a block that leave the fewest idle, of a multiple of a warp, and how many blocks a token has.
void shape_rows(const StepTuning &tuning, int64_t threads_per_token, RopePlan *plan) {
  const uint32_t wanted = tuning.rows_threads;
  const uint32_t threads = static_cast<uint32_t>(threads_per_token), parts = (threads - 1) / wanted + 1;
  plan->threads = round_up_to_warps((threads - 1) / parts + 1);
  plan->blocks_per_token = (threads - 1) / plan->threads + 1;
  plan->tokens_per_block = plan->blocks_per_token == 1 && plan->threads < wanted ? wanted / plan->threads : 1;
  plan->thread_rows = plan->tokens_per_block;
}

// A block for all tensors of a token, whose norm is over all of its heads, or for each of them; false where even one has
// too many.
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
  const int64_t all = threads_of_token(problem, *plan);
  const bool has_one_block = all <= kMaxStepTokenThreads;
  if (!has_one_block && most > kMaxStepTokenThreads) return false;
  plan->threads = round_up_to_warps(static_cast<uint32_t>(has_one_block ? all : most));
  if (!has_one_block) plan->blocks_per_token = tensors;
  plan->tokens_per_block = plan->thread_rows = 1;
  plan->units.per_token = plan->threads * plan->blocks_per_token;
  return true;
}

// Sharers of angles have those of a token, and its place; warps a room to put a head's sums in order.
uint32_t count_shared_bytes(const RopeProblem &problem, bool is_short, const RopePlan &plan) {
  const uint32_t warps = plan.threads * plan.thread_rows / kWarpThreads;
  const uint32_t groups = is_short ? warps : plan.thread_rows;
  const uint32_t pairs = static_cast<uint32_t>(problem.geometry->pairs());
  const uint32_t token_sums = plan.step.norm == StepNorm::kOfToken ? kStepTokenSumBytes : 0;
  return groups * (kStepSharedBytes + 2 * pairs * static_cast<uint32_t>(sizeof(float))) + warps * kStepExchangeBytes +
         token_sums;
}

bool has_token_norm(const RopeProblem &problem) {
  return problem.step->has_norm && problem.geometry->norm.is_of_token;
}

bool has_lookups(const RopeProblem &problem) {
  const StepProblem &step = *problem.step;
  const bool has_axes = step.is_turned && problem.geometry->num_axes > 1;
  return has_axes || (step.has_caches && !step.places.slots.is_present);
}

// Whether a tensor is written as codes and as words of the data's type, becomes words before it becomes codes, or codes
// of E5M2, or has its scales written.
bool has_more_codes(const RopeProblem &problem) {
  const StepProblem &step = *problem.step;
  bool has_more = step.has_codes && problem.geometry->rounds_before_codes;
  for (int i = 0; i < problem.num_tensors; ++i) {
    const StepTensor &tensor = step.tensor[i];
    const bool is_plain =
        !tensor.has_words() && !tensor.has_written_scales() && tensor.code_dtype() == ROPE_DTYPE_F8_E4M3;
    if (tensor.has_codes() && !is_plain) has_more = true;
  }
  return has_more;
}

StepVariant variant_of(const RopeProblem &problem, StepKernel kernel) {
  const StepProblem &step = *problem.step;
  const StepNorm norm = step.has_norm ? step_norm_of(*problem.geometry) : StepNorm::kNone;
  const StepAngles angles = !step.is_turned                              ? StepAngles::kNone
                            : problem.angles == AngleSource::kIncrements ? StepAngles::kComputed
                                                                         : StepAngles::kTable;
  const NormGeometry &form = problem.geometry->norm;
  const bool rounds = step.has_norm && (form.rounds_before_weight || form.rounds_after_weight);
  return {kernel,         norm,
          angles,         problem.in_distance == 1,
          step.has_codes, rounds || has_lookups(problem) || has_more_codes(problem)};
}

bool plan_rows(const RopeProblem &problem, const DeviceInfo &device, RopePlan *plan) {
  if (!takes_rows(problem) || problem.step->has_codes) return false;
  const int64_t size = dtype_size(problem.geometry->dtype), tokens = problem.batches * problem.tokens;
  if (tokens > kMaxInt32) return false;
  const int64_t limit = kStepTuning.max_short_rows_vectors[plan->is_programmatic];
  const bool is_of_token = has_token_norm(problem);
  bool is_short = !is_of_token && moved_bytes(problem) / (2 * kMaxVectorBytes) <= limit * device.multiprocessors;
  const auto pairs = static_cast<uint32_t>(problem.geometry->pairs());
  if (is_short && (pairs > kMaxShortStepPairs || !fit_vectors(problem, kShortStepVectorBytes))) is_short = false;
  const int64_t bytes = is_short ? kShortStepVectorBytes : kLongStepVectorBytes;
  if (!is_short && !fit_vectors(problem, bytes)) return false;
  plan->vector_elements = static_cast<int>(bytes / size);
  plan->step = variant_of(problem, is_short ? StepKernel::kShortRows : StepKernel::kLongRows);
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

// ---- Whole heads ----

// Whether the strides of tokens and batches are those of one batch of all tokens.
bool is_one_batch(const RopeProblem &problem, int64_t token_stride, int64_t batch_stride) {
  int64_t of_batch;
  return problem.batches == 1 || problem.tokens == 1 ||
         (!__builtin_mul_overflow(problem.tokens, token_stride, &of_batch) && of_batch == batch_stride);
}

bool is_one_batch(const RopeProblem &problem, const TokenIntegers &integers) {
  return is_one_batch(problem, integers.token_stride, integers.batch_stride) &&
         fits(token_stride_of(problem, true, integers), 8);
}

bool is_one_batch(const RopeProblem &problem, const int64_t *stride, int64_t size) {
  return is_one_batch(problem, stride[kToken], stride[kBatch]) && fits(token_stride_of(problem, true, stride), size);
}

// Whether tokens of all batches can be counted as those of one.
bool is_flat(const RopeProblem &problem) {
  const StepProblem &step = *problem.step;
  const int64_t size = dtype_size(problem.geometry->dtype);
  for (int i = 0; i < problem.num_tensors; ++i) {
    const RotatedTensor &tensor = problem.tensor[i];
    if (tensor.heads == 0) continue;
    if (!is_one_batch(problem, tensor.in_stride, size)) return false;
    if (step.tensor[i].is_written && !is_one_batch(problem, tensor.out_stride, size)) return false;
    const int64_t *const scales = step.tensor[i].out_scales.row_stride;
    if (!is_one_batch(problem, scales[1], scales[0])) return false;
  }
  const bool has_implicit_positions = step.is_turned && !problem.positions.is_present;
  if (has_implicit_positions && problem.batches > 1 && problem.tokens > 1) return false;
  if (step.is_turned && problem.positions.is_present && !is_one_batch(problem, problem.positions)) return false;
  const CachePlaces &places = step.places;
  return !step.has_caches || (is_one_batch(problem, places_source(problem)) &&
                              (problem.batches == 1 || places.cached_tokens >= problem.tokens) &&
                              (problem.batches == 1 || problem.tokens == 1 || places.slots.is_present));
}

// Whether a tensor's heads are whole and either get all that the call does to some tensor, or are copied.
bool has_whole_heads(const RopeProblem &problem, bool is_flat, int index, int channels) {
  const RotatedTensor &tensor = problem.tensor[index];
  const StepProblem &step = *problem.step;
  const StepTensor &mine = step.tensor[index];
  const bool is_changed = mine.is_normed || mine.is_turned;
  const bool has_window = mine.has_styles && problem.geometry->rotary_dim != channels;
  if (mine.channels != channels || has_window) return false;
  if (is_changed && (mine.is_normed != step.has_norm || mine.is_turned != step.is_turned)) return false;
  if (!mine.is_written || mine.has_code_out()) return true;
  const int64_t shift =
      token_stride_of(problem, is_flat, tensor.out_stride) - token_stride_of(problem, is_flat, tensor.in_stride);
  return (mine.has_styles || mine.is_whole) && fits(shift, dtype_size(problem.geometry->dtype)) &&
         (tensor.heads == 1 || tensor.out_stride[kHead] == tensor.in_stride[kHead]) &&
         (is_flat || tensor.out_stride[kBatch] == tensor.in_stride[kBatch]);
}

// Whether codes of an output and of a cache, where a tensor has both, have the same type and scales.
bool are_same_codes(const StepTensor &tensor) {
  if (!tensor.has_code_out() || !tensor.has_code_cache()) return true;
  const WrittenScales &of_out = tensor.out_scales, &of_cache = tensor.cache_scales;
  return tensor.out_dtype == tensor.cache.dtype && of_out.is_present() == of_cache.is_present() &&
         (!of_out.is_present() || (of_out.form == of_cache.form && of_out.floor == of_cache.floor));
}

// Whether the kernels of whole heads make the codes of a tensor.
bool takes_codes(const RopeProblem &problem, int index) {
  const StepTensor &tensor = problem.step->tensor[index];
  const auto takes_scales = [](const WrittenScales &scales) { return !scales.is_present() || scales.groups == 1; };
  return !tensor.has_codes() ||
         (dtype_size(problem.geometry->dtype) == 2 && are_same_codes(tensor) && tensor.amax == nullptr &&
          takes_scales(tensor.out_scales) && takes_scales(tensor.cache_scales) &&
          fits(tensor.scale.head_stride, dtype_size(ROPE_DTYPE_F32)));
}

// The channels of each head where the kernels of whole heads serve what is asked for, whatever the sizes of vectors;
// else 0.
int count_whole_channels(const RopeProblem &problem, bool is_flat) {
  const StepProblem &step = *problem.step;
  if (!takes_rows(problem) || has_token_norm(problem)) return 0;
  int channels = 0;
  for (int i = 0; i < problem.num_tensors; ++i) {
    if (problem.tensor[i].heads == 0) continue;
    if (channels == 0) channels = step.tensor[i].channels;
    if (!has_whole_heads(problem, is_flat, i, channels) || !takes_codes(problem, i)) return 0;
  }
  const AngleTable &table = problem.table;
  const bool takes_angles = !step.is_turned || problem.angles != AngleSource::kTable ||
                            (table.cos.column_stride == 1 && table.sin.column_stride == 1 &&
                             table.cos.row_stride == table.sin.row_stride && table.cos.axis_stride == 0 &&
                             table.sin.axis_stride == 0 && fits(table.cos.row_stride, 4) && table.rows <= kMaxInt32);
  return takes_angles ? channels : 0;
}

// Whether the norm is one that kWarp, kShort and kLong have not.
bool has_more_norm(const RopeProblem &problem) {
  const StepProblem &step = *problem.step;
  const NormGeometry &norm = problem.geometry->norm;
  bool has_head_weights = false;
  for (int i = 0; i < problem.num_tensors; ++i) {
    if (step.tensor[i].is_normed && step.tensor[i].weight.head_stride != 0) has_head_weights = true;
  }
  return step.has_norm && (norm.type != ROPE_NORM_RMS || (step.is_turned && norm.is_after) || has_head_weights);
}

// A head's units, or 0 where the kernels of whole heads do not take as many.
uint32_t count_units(int channels, int vector_elements) {
  const int units = channels / (2 * vector_elements);
  const bool fits_lanes = units >= 4 && units <= static_cast<int>(kWarpThreads) && units % 2 == 0;
  return fits_lanes && channels == units * 2 * vector_elements ? static_cast<uint32_t>(units) : 0;
}

// Cuts a group of tokens into blocks, each of one tensor.
void shape_long(const RopeProblem &problem, uint32_t wanted, RopePlan *plan) {
  StepHeads *const heads = &plan->heads;
  uint32_t most_rows = 1;
  for (int i = 0; i < problem.num_tensors; ++i) {
    const uint32_t threads = static_cast<uint32_t>(problem.tensor[i].heads) << heads->lanes_log2;
    StepTensorBlocks *const mine = &heads->tensor[i];
    *mine = {1, 1, 0, 0};
    if (threads == 0) continue;
    while (threads * mine->rows * 2 <= wanted) mine->rows *= 2;
    mine->parts = (threads - 1) / wanted + 1;
    if (mine->rows > most_rows) most_rows = mine->rows;
  }
  uint32_t blocks = 0;
  for (int i = 0; i < problem.num_tensors; ++i) {
    StepTensorBlocks *const mine = &heads->tensor[i];
    mine->first_block = blocks;
    if (problem.tensor[i].heads == 0) continue;
    mine->runs = most_rows / mine->rows;
    blocks += mine->runs * mine->parts;
  }
  heads->blocks_per_group = blocks;
  plan->threads = wanted;
  plan->thread_rows = 1;
  plan->tokens_per_block = most_rows * heads->turns;  // of a group
  plan->blocks_per_token = blocks;                    // of a group
}

// Short launches, whose tokens are those of one batch.
bool plan_short_heads(const RopeProblem &problem, int channels, int64_t vectors, RopePlan *plan) {
  const StepProblem &step = *problem.step;
  const StepTuning &tuning = kStepTuning;
  const int64_t size = dtype_size(problem.geometry->dtype);
  bool has_more = has_lookups(problem) || has_more_norm(problem);
  for (int i = 0; i < problem.num_tensors; ++i) {
    if (step.tensor[i].weight.data != nullptr && step.tensor[i].weight.is_f32 && size == 2) has_more = true;
  }
  const uint32_t pairs = static_cast<uint32_t>(channels / 2);
  plan->vector_elements = static_cast<int>(kShortStepVectorBytes / size);
  plan->heads.units = count_units(channels, plan->vector_elements);
  if (step.has_codes && (has_more || has_more_codes(problem))) return false;
  if (vectors > tuning.max_short_vectors || pairs > kMaxShortStepPairs || plan->heads.units == 0 ||
      !fit_vectors(problem, kShortStepVectorBytes)) {
    return false;
  }
  const bool is_warp =
      !has_more && !(step.has_codes && step.has_norm) &&
      (!step.is_turned || (problem.angles == AngleSource::kIncrements && vectors <= tuning.max_warp_vectors));
  plan->heads.lanes_log2 = static_cast<uint32_t>(step_lanes_log2(channels, plan->vector_elements));
  plan->units.per_token = static_cast<uint32_t>(problem.heads_per_token()) << plan->heads.lanes_log2;
  const uint32_t units = round_up_to_warps(plan->units.per_token);
  const int64_t max_few = step.is_turned ? tuning.max_few_vectors : tuning.max_warp_vectors;
  const uint32_t wanted = vectors <= max_few ? tuning.few_threads : tuning.short_threads;
  plan->threads = units < wanted ? units : wanted;
  if (step.is_turned && !is_warp && plan->threads < pairs) plan->threads = round_up_to_warps(pairs);
  plan->thread_rows = 1;
  plan->blocks_per_token = (plan->units.per_token - 1) / plan->threads + 1;
  if (plan->blocks_per_token > kMaxGridY) return false;
  plan->grid_x = static_cast<uint32_t>(problem.batches * problem.tokens);
  plan->grid_y = plan->blocks_per_token;
  const uint32_t angles = 2 * kMaxShortStepPairs * static_cast<uint32_t>(sizeof(float));
  plan->shared_bytes = !step.is_turned ? 0 : is_warp ? plan->threads / kWarpThreads * angles : angles;
  plan->step = variant_of(problem, has_more  ? StepKernel::kShortMore
                                   : is_warp ? StepKernel::kWarp
                                             : StepKernel::kShort);
  return true;
}

bool plan_long_heads(const RopeProblem &problem, const DeviceInfo &device, int channels, RopePlan *plan) {
  const StepProblem &step = *problem.step;
  StepHeads *const heads = &plan->heads;
  plan->vector_elements = static_cast<int>(kLongStepVectorBytes / dtype_size(problem.geometry->dtype));
  heads->units = count_units(channels, plan->vector_elements);
  if (heads->units == 0 || static_cast<uint32_t>(channels / 2) > kMaxLongStepPairs ||
      !fit_vectors(problem, kLongStepVectorBytes)) {
    return false;
  }
  heads->lanes_log2 = static_cast<uint32_t>(step_lanes_log2(channels, plan->vector_elements));
  heads->turns = kStepTuning.turns[step.has_norm] + (step.has_codes ? 1 : 0);
  plan->units.per_token = static_cast<uint32_t>(problem.heads_per_token()) << heads->lanes_log2;
  shape_long(problem, kStepTuning.long_threads, plan);
  const int64_t batches = heads->is_flat ? 1 : problem.batches, tokens = problem.batches / batches * problem.tokens;
  const int64_t groups = (tokens - 1) / plan->tokens_per_block + 1;
  if (groups > kMaxGridX / heads->blocks_per_group || batches > kMaxGridY) return false;
  plan->grid_x = static_cast<uint32_t>(groups) * heads->blocks_per_group;
  plan->grid_y = static_cast<uint32_t>(batches);
  plan->step = variant_of(problem, StepKernel::kLong);
  const uint32_t held_threads = static_cast<uint32_t>(device.multiprocessors) * kStepLongResidentThreads;
  heads->tokens_ahead = held_threads / plan->units.per_token * heads->turns + 1;
  uint32_t most_tokens = 0;  // of a block that has angles
  for (int i = 0; i < problem.num_tensors; ++i) {
    const uint32_t of_block = heads->tensor[i].rows * heads->turns;
    if (problem.tensor[i].heads > 0 && step.tensor[i].is_turned && of_block > most_tokens) most_tokens = of_block;
  }
  const uint32_t numbers = static_cast<uint32_t>(channels) * static_cast<uint32_t>(sizeof(float));
  const uint32_t lost = plan->step.angles == StepAngles::kTable ? (most_tokens + 3) / 4 * 16 : 0;
  plan->shared_bytes = most_tokens * numbers + lost + (step.has_norm ? numbers : 0);
  return true;
}

bool plan_heads(const RopeProblem &problem, const DeviceInfo &device, RopePlan *plan) {
  plan->heads.is_flat = is_flat(problem);
  const int channels = count_whole_channels(problem, plan->heads.is_flat);
  const int64_t tokens = problem.batches * problem.tokens, heads = problem.heads_per_token();
  if (channels == 0 || tokens > kMaxInt32 || heads > kMaxInt32 / kWarpThreads) return false;
  const int64_t vectors = moved_bytes(problem) / (2 * kMaxVectorBytes) / device.multiprocessors;
  if (plan->heads.is_flat && plan_short_heads(problem, channels, vectors, plan)) return true;
  return !has_more_norm(problem) && plan_long_heads(problem, device, channels, plan);
}

// A block has so much shared memory everywhere.
constexpr uint32_t kMaxSharedBytes = 48 * 1024;

// Threads that a multiprocessor holds: those of 64 registers.
constexpr int64_t kGeneralHeldThreads = 1024;

void plan_general(const RopeProblem &problem, const DeviceInfo &device, RopePlan *plan) {
  const RopeGeometry &geometry = *problem.geometry;
  const StepProblem &step = *problem.step;
  const bool is_of_token = has_token_norm(problem);
  const int64_t heads = problem.heads_per_token(), heads_per_block = is_of_token ? heads : kStepTuning.general_heads;
  // A block that has a whole token gets more threads where blocks are few.
  const int64_t tokens = problem.batches * problem.tokens, held_threads = device.multiprocessors * kGeneralHeldThreads;
  uint32_t threads = is_of_token ? kMaxStepGeneralThreads : kStepTuning.general_threads;
  while (threads > kStepTuning.general_threads && tokens > held_threads / threads) threads /= 2;
  int channels = 0;
  for (int i = 0; i < problem.num_tensors; ++i) {
    if (step.tensor[i].channels > channels) channels = step.tensor[i].channels;
  }
  const uint32_t size = static_cast<uint32_t>(dtype_size(geometry.dtype)), number = size == 8 ? 8 : 4;
  const uint32_t arrays = step.is_turned ? (problem.table.is_by_channel ? 4 : 2) : 0;
  const uint32_t angles = arrays * static_cast<uint32_t>(geometry.pairs()) * number;
  const uint32_t sums = is_of_token ? kStepHeadSums * number : 0;
  plan->general.row_channels = (channels + 3) / 4 * 4;
  const uint32_t row = static_cast<uint32_t>(plan->general.row_channels) * (2 * number + size);
  const uint32_t fixed = kStepTokenBytes + angles + sums, fitting = (kMaxSharedBytes - fixed) / row;
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
  if (!plan_heads(problem, device, plan) && !plan_rows(problem, device, plan)) plan_general(problem, device, plan);
}

}  // namespace rope
