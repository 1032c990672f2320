// swiglu_plan.cpp - vector width and grid of a SwiGLU call
#include "plan/swiglu_plan.hpp"

#include "core/view.hpp"
#include "plan/launch_shape.hpp"
#include "plan/tuning.hpp"

namespace rope {

namespace {

void add_tensor(const SwigluProblem &problem, const void *data, const int64_t *stride, VectorBytes *bytes) {
  const int64_t size = dtype_size(problem.dtype);
  bytes->add(data);
  for (int axis = 0; axis < problem.ndim - 1; ++axis) bytes->add(stride[axis] * size);
  // Any step but 1 leaves single elements only.
  if (stride[problem.ndim - 1] != 1) bytes->add(size);
}

int choose_vector_elements(const SwigluProblem &problem) {
  VectorBytes bytes;
  for (int i = 0; i < problem.num_inputs(); ++i) add_tensor(problem, problem.in[i], problem.in_stride[i], &bytes);
  for (int i = 0; i < problem.num_outputs(); ++i) {
    if (problem.out[i] != nullptr) add_tensor(problem, problem.out[i], problem.out_stride[i], &bytes);
  }
  return static_cast<int>(bytes.value() / dtype_size(problem.dtype));
}

}  // namespace

rope_status_t plan_swiglu(const char *function, const SwigluProblem &problem, const DeviceInfo &device,
                          SwigluPlan *plan) {
  *plan = SwigluPlan{};
  const int64_t columns = problem.shape[problem.ndim - 1];
  if (!device.is_cuda) {
    const int64_t tensors = problem.num_inputs() + problem.num_outputs();
    const int64_t bytes = problem.num_elements() * tensors * dtype_size(problem.dtype);
    plan->num_tasks = count_cpu_tasks(bytes, device.num_threads);
    return ROPE_STATUS_SUCCESS;
  }
  plan->is_programmatic = problem.is_programmatic && device.compute_capability >= 90;
  plan->vector_elements = choose_vector_elements(problem);
  if (plan->vector_elements * dtype_size(problem.dtype) == kMaxVectorBytes &&
      problem.num_elements() <= small_launch_threads(device) * plan->vector_elements) {
    plan->vector_elements /= 2;
  }
  plan->vectors_per_row = (columns - 1) / plan->vector_elements + 1;
  plan->num_vectors = problem.num_elements() / columns * plan->vectors_per_row;
  const int64_t num_blocks = (plan->num_vectors - 1) / kSwigluThreads + 1;
  const int64_t grid_y = (num_blocks - 1) / kMaxGridX + 1;
  if (grid_y > kMaxGridY) {
    return fail(ROPE_STATUS_NOT_SUPPORTED, "%s: gate needs %lld blocks: one launch holds at most %lld", function,
                static_cast<long long>(num_blocks), static_cast<long long>(kMaxGridX * kMaxGridY));
  }
  plan->grid_y = static_cast<uint32_t>(grid_y);
  plan->grid_x = static_cast<uint32_t>((num_blocks - 1) / grid_y + 1);
  return ROPE_STATUS_SUCCESS;
}

}  // namespace rope
