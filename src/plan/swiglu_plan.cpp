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
    plan->num_tasks = count_cpu_tasks(bytes, problem.num_elements(), device.num_threads);
    return ROPE_STATUS_SUCCESS;
  }
  plan->vector_elements = choose_vector_elements(problem);
  const uint64_t elements = static_cast<uint64_t>(plan->vector_elements);
  plan->vectors_per_row = (static_cast<uint64_t>(columns) + elements - 1) / elements;
  plan->num_vectors = static_cast<uint64_t>(problem.num_elements() / columns) * plan->vectors_per_row;
  return shape_grid(function, (plan->num_vectors - 1) / kSwigluThreads + 1, &plan->grid_x, &plan->grid_y);
}

}  // namespace rope
