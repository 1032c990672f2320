// rope_plan.cpp - vector width, grid and shared memory of a RoPE call
#include "plan/rope_plan.hpp"

#include "core/view.hpp"
#include "plan/launch_shape.hpp"
#include "plan/tuning.hpp"

namespace rope {

namespace {

void add_strides(const RopeProblem &problem, const RotatedTensor &tensor, const int64_t *stride, int64_t size,
                 VectorBytes *bytes) {
  if (problem.batches > 1) bytes->add(stride[kBatch] * size);
  if (problem.tokens > 1) bytes->add(stride[kToken] * size);
  if (tensor.heads > 1) bytes->add(stride[kHead] * size);
}

// The widest vector that every pointer, every stride and every edge between channels allows.
int choose_vector_elements(const RopeProblem &problem) {
  const RopeGeometry &geometry = *problem.geometry;
  const int64_t size = dtype_size(geometry.dtype);
  VectorBytes bytes;
  bytes.add(geometry.rotary_offset * size);
  bytes.add(geometry.rotary_dim / 2 * size);
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
  return static_cast<int>(bytes.value() / size);
}

// Threads and their share of tokens: the block size that leaves the fewest threads idle, the first in the list of
// those that are alike.
void shape_block(RopePlan *plan) {
  const uint32_t units = plan->units_per_token;
  uint64_t least_threads = ~uint64_t{0};
  for (const uint32_t threads : kRopeBlockSizes) {
    const uint32_t tokens = units < threads ? threads / units : 1;
    const uint32_t blocks = (units - 1) / threads + 1;
    // Threads spent on as many tokens as every candidate divides well enough to be compared.
    const uint64_t spent = uint64_t{threads} * blocks * 1024 / tokens;
    if (spent >= least_threads) continue;
    least_threads = spent;
    plan->threads = threads;
    plan->tokens_per_block = tokens;
    plan->blocks_per_token = blocks;
  }
}

// Rows of the grid, each of fewer than 2^31 tokens and blocks. Where there are several batches a row has whole ones.
rope_status_t shape_grid(const char *function, const RopeProblem &problem, RopePlan *plan) {
  const int64_t tokens = problem.batches * problem.tokens;
  int64_t most = kMaxGridX / plan->blocks_per_token * plan->tokens_per_block;
  if (most > kMaxGridX) most = kMaxGridX;
  if (problem.batches > 1) {
    most -= most % problem.tokens;
  } else {
    most -= most % plan->tokens_per_block;
  }
  if (most == 0) {
    return fail(ROPE_STATUS_NOT_SUPPORTED,
                "%s: q has %lld batches of %lld tokens: one launch holds several batches only of fewer tokens",
                function, static_cast<long long>(problem.batches), static_cast<long long>(problem.tokens));
  }
  const int64_t grid_rows = (tokens - 1) / most + 1;
  if (grid_rows > kMaxGridY) {
    return fail(ROPE_STATUS_NOT_SUPPORTED,
                "%s: q has %lld batches of %lld tokens: with these heads one launch holds %lld tokens", function,
                static_cast<long long>(problem.batches), static_cast<long long>(problem.tokens),
                static_cast<long long>(most * kMaxGridY));
  }
  plan->tokens_per_grid_row = tokens < most ? tokens : most;
  plan->grid_x =
      static_cast<uint32_t>((plan->tokens_per_grid_row - 1) / plan->tokens_per_block + 1) * plan->blocks_per_token;
  plan->grid_y = static_cast<uint32_t>(grid_rows);
  return ROPE_STATUS_SUCCESS;
}

void count_units(const RopeProblem &problem, RopePlan *plan) {
  const RopeGeometry &geometry = *problem.geometry;
  const int elements = plan->vector_elements;
  plan->rotary_units_per_head = static_cast<uint32_t>(geometry.rotary_dim / 2 / elements);
  plan->units_per_token = 0;
  const uint32_t copy_units = static_cast<uint32_t>((geometry.head_dim - geometry.rotary_dim) / elements);
  for (int i = 0; i < problem.num_tensors; ++i) {
    const RotatedTensor &tensor = problem.tensor[i];
    plan->units_per_head[i] = plan->rotary_units_per_head + (tensor.is_in_place ? 0 : copy_units);
    plan->units_per_token += plan->units_per_head[i] * static_cast<uint32_t>(tensor.heads);
  }
}

rope_status_t plan_cuda(const char *function, const RopeProblem &problem, const DeviceInfo &device, RopePlan *plan) {
  plan->vector_elements = choose_vector_elements(problem);
  count_units(problem, plan);
  const int64_t tokens = problem.batches * problem.tokens;
  const int64_t small_tokens = small_launch_threads(device) / plan->units_per_token;
  if (plan->vector_elements * dtype_size(problem.geometry->dtype) == kMaxVectorBytes && tokens <= small_tokens) {
    plan->vector_elements /= 2;
    count_units(problem, plan);
  }
  shape_block(plan);
  const uint32_t pairs = static_cast<uint32_t>(problem.geometry->rotary_dim / 2);
  plan->shared_bytes = plan->tokens_per_block * (2 * pairs + 1) * static_cast<uint32_t>(sizeof(float));
  return shape_grid(function, problem, plan);
}

void plan_cpu(const RopeProblem &problem, int num_threads, RopePlan *plan) {
  const RopeGeometry &geometry = *problem.geometry;
  const int64_t tokens = problem.batches * problem.tokens;
  int64_t token_bytes = 0;
  for (int i = 0; i < problem.num_tensors; ++i) {
    const RotatedTensor &tensor = problem.tensor[i];
    const int channels = tensor.is_in_place ? geometry.rotary_dim : geometry.head_dim;
    token_bytes += 2 * tensor.heads * channels * dtype_size(geometry.dtype);
  }
  int64_t bytes;
  if (__builtin_mul_overflow(tokens, token_bytes, &bytes)) bytes = INT64_MAX;
  plan->num_tasks = count_cpu_tasks(bytes, num_threads);
}

}  // namespace

rope_status_t plan_rope(const char *function, const RopeProblem &problem, const DeviceInfo &device, RopePlan *plan) {
  *plan = RopePlan{};
  if (device.is_cuda) return plan_cuda(function, problem, device, plan);
  plan_cpu(problem, device.num_threads, plan);
  return ROPE_STATUS_SUCCESS;
}

}  // namespace rope
