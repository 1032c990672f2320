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

// Whether the kernels of rows serve what is asked for, whatever the sizes of vectors.
bool takes_rows(const RopeProblem &problem) {
  const StepProblem &step = *problem.step;
  if (!may_have_rows(*problem.geometry) || (step.has_norm && !may_norm_rows(*problem.geometry))) return false;
  if (problem.sequences.is_present || problem.start_positions.is_present) return false;
  const TokenIntegers &positions = problem.positions;
  if (!fits(positions.token_stride, 8) || !fits(positions.batch_stride, 8)) return false;
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
  if (!places.slots.is_present || !fits(places.slots.token_stride, 8) || !fits(places.slots.batch_stride, 8)) {
    return false;
  }
  return places.entries > 0 && places.pages <= kMaxInt32 / places.entries;
}

// Whether vectors of so many bytes fit a tensor and everything that it is written to.
bool fits_vectors(const RopeProblem &problem, int index, int64_t vector_bytes) {
  const RopeGeometry &geometry = *problem.geometry;
  const RotatedTensor &tensor = problem.tensor[index];
  const StepTensor &step = problem.step->tensor[index];
  const int64_t size = dtype_size(geometry.dtype);
  VectorBytes bytes;
  const auto add_stride = [&](int64_t stride) { bytes.add(stride * size); };
  const auto add_side = [&](const char *data, const int64_t *stride) {
    bytes.add(data);
    if (problem.batches > 1) add_stride(stride[kBatch]);
    if (problem.tokens > 1) add_stride(stride[kToken]);
    if (tensor.heads > 1) add_stride(stride[kHead]);
    return stride[kChannel] == 1 && fits(stride[kToken], size) && fits(stride[kHead], size);
  };
  if (!add_side(tensor.in, tensor.in_stride)) return false;
  if (step.is_written && (step.out_dtype != geometry.dtype || !add_side(tensor.out, tensor.out_stride))) return false;
  if (step.is_cached()) {
    const CacheView &cache = step.cache;
    if (cache.dtype != geometry.dtype || cache.channel_stride != 1 || !fits(cache.head_stride, size)) return false;
    bytes.add(cache.data);
    add_stride(cache.page_stride);
    add_stride(cache.entry_stride);
    if (tensor.heads > 1) add_stride(cache.head_stride);
  }
  if (step.weight.data != nullptr) {
    const int64_t weight_size = step.weight.is_f32 ? 4 : size;
    if (step.weight.channel_stride != 1 || !fits(step.weight.head_stride, weight_size)) return false;
    VectorBytes of_weight;
    of_weight.add(step.weight.data);
    of_weight.add(step.weight.head_stride * weight_size);
    const int64_t at_a_time = vector_bytes / size < 4 ? vector_bytes / size : 4;
    if (of_weight.value() < at_a_time * weight_size) return false;
  }
  const int64_t unit = 2 * vector_bytes;
  if (step.channels * size % unit != 0 ||
      (int64_t{1} << step_lanes_log2(step.channels, static_cast<int>(vector_bytes / size))) > kWarpThreads) {
    return false;
  }
  const bool has_window = step.has_styles;
  if (has_window && (geometry.rotary_dim * size % unit != 0 || step.window_begin * size % unit != 0)) return false;
  return bytes.value() >= vector_bytes;
}

bool fit_vectors(const RopeProblem &problem, int64_t vector_bytes) {
  for (int i = 0; i < problem.num_tensors; ++i) {
    if (problem.tensor[i].heads > 0 && !fits_vectors(problem, i, vector_bytes)) return false;
  }
  return true;
}

int64_t threads_of_token(const RopeProblem &problem, int vector_elements) {
  int64_t threads = 0;
  for (int i = 0; i < problem.num_tensors; ++i) {
    if (problem.tensor[i].heads == 0) continue;
    threads = step_tensor_begin(problem, i, vector_elements, threads);
    threads += problem.tensor[i].heads << step_lanes_log2(problem.step->tensor[i].channels, vector_elements);
  }
  return threads;
}

// Threads of a block that leave the fewest idle, of a multiple of a warp, and how many blocks a token has.
void shape_rows(const StepTuning &tuning, bool is_short, int64_t threads_per_token, RopePlan *plan) {
  const uint32_t wanted = is_short ? tuning.short_threads : tuning.long_threads;
  const uint32_t threads = static_cast<uint32_t>(threads_per_token), parts = (threads - 1) / wanted + 1;
  plan->threads = round_up_to_warps((threads - 1) / parts + 1);
  plan->blocks_per_token = (threads - 1) / plan->threads + 1;
  plan->tokens_per_block = plan->blocks_per_token == 1 && plan->threads < wanted ? wanted / plan->threads : 1;
  plan->thread_rows = plan->tokens_per_block;
}

// Sharers of angles have those of a token, and its place; warps a room to put a head's sums in order.
uint32_t count_shared_bytes(const RopeProblem &problem, bool is_short, const RopePlan &plan) {
  const uint32_t warps = plan.threads * plan.thread_rows / kWarpThreads;
  const uint32_t groups = is_short ? warps : plan.thread_rows;
  const uint32_t pairs = static_cast<uint32_t>(problem.geometry->pairs());
  return groups * (kStepSharedBytes + 2 * pairs * static_cast<uint32_t>(sizeof(float))) + warps * kStepExchangeBytes;
}

bool plan_rows(const RopeProblem &problem, const DeviceInfo &device, RopePlan *plan) {
  if (!takes_rows(problem)) return false;
  const int64_t size = dtype_size(problem.geometry->dtype), tokens = problem.batches * problem.tokens;
  if (tokens > kMaxInt32) return false;
  const StepTuning &tuning = kStepTuning;
  const int64_t limit = plan->is_programmatic ? tuning.max_short_vectors_programmatic : tuning.max_short_vectors;
  bool is_short = moved_bytes(problem) / (2 * kMaxVectorBytes) <= limit * device.multiprocessors;
  const auto pairs = static_cast<uint32_t>(problem.geometry->pairs());
  if (is_short && (pairs > kMaxShortStepPairs || !fit_vectors(problem, kShortStepVectorBytes))) is_short = false;
  const int64_t bytes = is_short ? kShortStepVectorBytes : kLongStepVectorBytes;
  if (!is_short && !fit_vectors(problem, bytes)) return false;
  plan->vector_elements = static_cast<int>(bytes / size);
  const int64_t threads = threads_of_token(problem, plan->vector_elements);
  if (threads > kMaxInt32) return false;
  shape_rows(tuning, is_short, threads, plan);
  plan->units.per_token = static_cast<uint32_t>(threads);
  const int64_t groups = (tokens - 1) / plan->tokens_per_block + 1;
  if (groups > kMaxGridX / plan->blocks_per_token) return false;
  plan->grid_x = static_cast<uint32_t>(groups) * plan->blocks_per_token;
  plan->grid_y = 1;
  plan->shared_bytes = count_shared_bytes(problem, is_short, *plan);
  const StepProblem &step = *problem.step;
  plan->step.kernel = is_short ? StepKernel::kShort : StepKernel::kLong;
  plan->step.norm = !step.has_norm                    ? StepNorm::kNone
                    : problem.geometry->norm.is_after ? StepNorm::kAfter
                                                      : StepNorm::kBefore;
  plan->step.angles = !step.is_turned                              ? StepAngles::kNone
                      : problem.angles == AngleSource::kIncrements ? StepAngles::kComputed
                                                                   : StepAngles::kTable;
  plan->step.is_interleaved = problem.in_distance == 1;
  return true;
}

// Heads of a block where they need not all be in one.
constexpr int64_t kGeneralHeads = 8;

// A block has so much shared memory everywhere.
constexpr uint32_t kMaxSharedBytes = 48 * 1024;

void plan_general(const RopeProblem &problem, RopePlan *plan) {
  const RopeGeometry &geometry = *problem.geometry;
  const StepProblem &step = *problem.step;
  const bool has_token_norm = step.has_norm && geometry.norm.is_of_token;
  const int64_t heads = problem.heads_per_token(), heads_per_block = has_token_norm ? heads : kGeneralHeads;
  int channels = 0;
  for (int i = 0; i < problem.num_tensors; ++i) {
    if (step.tensor[i].channels > channels) channels = step.tensor[i].channels;
  }
  const uint32_t size = static_cast<uint32_t>(dtype_size(geometry.dtype)), number = size == 8 ? 8 : 4;
  const uint32_t arrays = step.is_turned ? (problem.table.is_by_channel ? 4 : 2) : 0;
  const uint32_t angles = arrays * static_cast<uint32_t>(geometry.pairs()) * number;
  const uint32_t sums = has_token_norm ? kStepHeadSums * number : 0;
  plan->general.row_channels = (channels + 3) / 4 * 4;
  const uint32_t row = static_cast<uint32_t>(plan->general.row_channels) * (2 * number + size);
  const uint32_t fixed = kStepTokenBytes + angles + sums, fitting = (kMaxSharedBytes - fixed) / row;
  plan->general.warps = fitting < kStepGeneralThreads / kWarpThreads ? fitting : kStepGeneralThreads / kWarpThreads;
  plan->shared_bytes = fixed + plan->general.warps * row;
  plan->step.kernel = StepKernel::kGeneral;
  plan->vector_elements = 1;
  plan->threads = kStepGeneralThreads;
  plan->thread_rows = 1;
  plan->tokens_per_block = 1;
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
         geometry.num_axes == 1 && static_cast<uint32_t>(geometry.pairs()) <= kMaxLongStepPairs;
}

bool may_norm_rows(const RopeGeometry &geometry) {
  return geometry.norm.type == ROPE_NORM_RMS && !geometry.norm.is_of_token;
}

int step_lanes_log2(int channels, int vector_elements) {
  int log2 = 0;
  while ((vector_elements * 2) << log2 < channels) ++log2;
  return log2;
}

int64_t step_tensor_begin(const RopeProblem &problem, int index, int vector_elements, int64_t threads) {
  const int64_t lanes = int64_t{1} << step_lanes_log2(problem.step->tensor[index].channels, vector_elements);
  return (threads + lanes - 1) / lanes * lanes;
}

void plan_step(const RopeProblem &problem, const DeviceInfo &device, RopePlan *plan) {
  plan->is_programmatic = problem.is_programmatic && device.compute_capability >= 90;
  if (!plan_rows(problem, device, plan)) plan_general(problem, plan);
}

}  // namespace rope
