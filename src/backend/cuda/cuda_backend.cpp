// cuda_backend.cpp - turns plans into launches; it chooses nothing
#include <cuda_runtime_api.h>
#include <string.h>

#include "backend/backend.hpp"
#include "backend/cuda/device_cache.hpp"
#include "backend/cuda/kernels.hpp"
#include "backend/cuda/kernels/rope_params.hpp"
#include "backend/cuda/kernels/swiglu_params.hpp"
#include "plan/tuning.hpp"

namespace rope {

namespace {

const void *find_rope_kernel(rope_dtype_t dtype, int vector_elements, bool is_interleaved, bool has_table) {
  switch (dtype) {
    case ROPE_DTYPE_F16:
      return rope_kernel_f16(vector_elements, is_interleaved, has_table);
    case ROPE_DTYPE_BF16:
      return rope_kernel_bf16(vector_elements, is_interleaved, has_table);
    default:
      return rope_kernel_f32(vector_elements, is_interleaved, has_table);
  }
}

const void *find_swiglu_kernel(rope_dtype_t dtype, int vector_elements, SwigluVariant variant) {
  switch (dtype) {
    case ROPE_DTYPE_F16:
      return swiglu_kernel_f16(vector_elements, variant);
    case ROPE_DTYPE_BF16:
      return swiglu_kernel_bf16(vector_elements, variant);
    case ROPE_DTYPE_F64:
      return swiglu_kernel_f64(vector_elements, variant);
    default:
      return swiglu_kernel_f32(vector_elements, variant);
  }
}

// Asking for a kernel's attributes loads it. Loading later, at its first launch, could wait for the device and cannot
// happen inside a stream capture.
rope_status_t preload(const char *function, const void *kernel, const DeviceInfo &device) {
  cudaFuncAttributes attributes;
  const cudaError_t error = cudaFuncGetAttributes(&attributes, kernel);
  return error == cudaSuccess ? ROPE_STATUS_SUCCESS : fail_cuda(function, "cudaFuncGetAttributes", error, device);
}

rope_status_t fail_switch(const char *function, int32_t device_index) {
  return fail(ROPE_STATUS_CUDA_ERROR, "%s: the context of CUDA device %d cannot be made current", function,
              device_index);
}

// find_kernel(elements, variant) is asked for every width and for variants 0 to 7; NULL is none.
template <typename FindKernel>
rope_status_t open_device(const char *function, int32_t device_index, DeviceInfo *device, FindKernel find_kernel) {
  ROPE_TRY(find_cuda_device(function, device_index, device));
  DeviceScope scope(device_index);
  if (!scope.is_current()) return fail_switch(function, device_index);
  for (int elements = 8; elements > 0; elements /= 2) {
    for (int variant = 0; variant < 8; ++variant) {
      const void *kernel = find_kernel(elements, variant);
      if (kernel != nullptr) ROPE_TRY(preload(function, kernel, *device));
    }
  }
  return ROPE_STATUS_SUCCESS;
}

int32_t count_devices(const char *function) {
  int count;
  count_cuda_devices(function, &count);
  return count;
}

rope_status_t open_rope(const char *function, const RopeGeometry &geometry, int32_t device_index, int32_t,
                        DeviceInfo *device) {
  const bool is_interleaved = geometry.style == ROPE_STYLE_INTERLEAVED;
  return open_device(function, device_index, device, [&](int elements, int variant) {
    return variant > 1 ? nullptr : find_rope_kernel(geometry.dtype, elements, is_interleaved, variant == 1);
  });
}

rope_status_t open_swiglu(const char *function, rope_dtype_t dtype, int32_t device_index, int32_t, DeviceInfo *device) {
  return open_device(function, device_index, device, [&](int elements, int variant) {
    return find_swiglu_kernel(dtype, elements, {static_cast<SwigluWork>(variant / 2), variant % 2 != 0});
  });
}

rope_status_t launch(const char *function, const void *kernel, int32_t device_index, dim3 grid, unsigned threads,
                     void *params, size_t shared_bytes, rope_stream_t stream) {
  DeviceScope scope(device_index);
  if (!scope.is_current()) return fail_switch(function, device_index);
  void *arguments[] = {params};
  // The launch's own return value: cudaGetLastError would take an earlier error away from the caller.
  const cudaError_t error = cudaLaunchKernel(kernel, grid, dim3(threads), arguments, shared_bytes, stream);
  if (error == cudaSuccess) return ROPE_STATUS_SUCCESS;
  return fail_cuda(function, "cudaLaunchKernel", error, found_cuda_device(device_index));
}

RopeKernelTensor kernel_tensor(const RotatedTensor &tensor, int64_t size, uint32_t units_per_head) {
  RopeKernelTensor result;
  result.in = tensor.in;
  result.out = tensor.out;
  for (int axis = 0; axis < kNumAxes; ++axis) {
    result.in_stride[axis] = tensor.in_stride[axis] * size;
    result.out_stride[axis] = tensor.out_stride[axis] * size;
  }
  result.units_per_head = Divider::by(units_per_head);
  return result;
}

rope_status_t run_rope(const char *function, const RopeProblem &problem, const RopePlan &plan, int32_t device_index,
                       rope_stream_t stream) {
  const RopeGeometry &geometry = *problem.geometry;
  RopeKernelParams params;  // what no unit of this launch reads stays unset
  uint32_t next_unit = 0;
  for (int i = 0; i < 3; ++i) {
    params.tensor_begins[i] = i < problem.num_tensors ? next_unit : ~uint32_t{0};
    if (i >= problem.num_tensors || problem.tensor[i].heads == 0) continue;
    const RotatedTensor &tensor = problem.tensor[i];
    params.tensor[i] = kernel_tensor(tensor, dtype_size(geometry.dtype), plan.units_per_head[i]);
    params.is_in_place[i] = tensor.is_in_place;
    next_unit += plan.units_per_head[i] * static_cast<uint32_t>(tensor.heads);
  }
  params.has_one_batch = problem.batches == 1;
  params.units_per_token = Divider::by(plan.units_per_token);
  params.blocks_per_token = Divider::by(plan.blocks_per_token);
  params.pairs = Divider::by(static_cast<uint32_t>(geometry.rotary_dim / 2));
  params.tokens = Divider::by(params.has_one_batch ? 1 : static_cast<uint32_t>(problem.tokens));
  params.num_tokens = problem.batches * problem.tokens;
  params.tokens_per_grid_row = plan.tokens_per_grid_row;
  params.batches_per_grid_row = plan.tokens_per_grid_row / problem.tokens;
  params.positions = problem.positions;
  params.start_positions = problem.start_positions;
  params.has_positions = problem.positions.is_present;
  params.has_start_positions = problem.start_positions.is_present;
  params.has_narrow_positions =
      problem.positions.is_present && !problem.positions.is_64_bit && !problem.start_positions.is_present;
  params.position_offset = static_cast<uint64_t>(problem.position_offset);
  params.table = problem.table;
  params.has_batch_tables = problem.table.cos.batch_stride != 0 || problem.table.sin.batch_stride != 0;
  params.rotary_units_per_head = plan.rotary_units_per_head;
  params.tokens_per_block = plan.tokens_per_block;
  params.rotary_offset = geometry.rotary_offset;
  params.rotary_dim = geometry.rotary_dim;
  params.cos_scale = problem.has_table ? 1.0f : geometry.attention_scale;
  params.sin_scale = problem.is_transposed ? -params.cos_scale : params.cos_scale;
  for (int pair = 0; pair < geometry.rotary_dim / 2; ++pair) params.increments[pair] = geometry.increments[pair];
  const void *kernel = find_rope_kernel(geometry.dtype, plan.vector_elements, geometry.style == ROPE_STYLE_INTERLEAVED,
                                        problem.has_table);
  return launch(function, kernel, device_index, dim3(plan.grid_x, plan.grid_y), plan.threads, &params,
                plan.shared_bytes, stream);
}

// Right-aligned, in bytes: the kernel's last axis is the problem's.
void kernel_strides(const int64_t *stride, int ndim, int64_t size, int64_t *target) {
  for (int axis = 0; axis < kMaxAxes; ++axis) {
    const int source = axis - (kMaxAxes - ndim);
    target[axis] = source >= 0 ? stride[source] * size : 0;
  }
}

// The row axes and the column axes apart, each right-aligned.
SwigluRowStrides row_kernel_strides(const SwigluProblem &problem, const int64_t *stride, int64_t size) {
  SwigluRowStrides result = {};
  const int rows = problem.num_row_axes, columns = problem.ndim - rows;
  for (int axis = 0; axis < rows; ++axis) result.row[kMaxRowAxes - rows + axis] = stride[axis] * size;
  for (int axis = 0; axis < columns; ++axis) {
    result.column[kMaxRowAxes - columns + axis] = stride[rows + axis] * size;
  }
  return result;
}

rope_status_t run_swiglu_row_sums(const char *function, const SwigluProblem &problem, const SwigluPlan &plan,
                                  int32_t device_index, rope_stream_t stream) {
  const int64_t size = dtype_size(problem.dtype), scale_size = dtype_size(problem.row_scale_dtype);
  SwigluRowKernelParams params = {};
  for (int i = 0; i < problem.num_inputs(); ++i) {
    params.in[i] = problem.in[i];
    params.in_stride[i] = row_kernel_strides(problem, problem.in_stride[i], size);
  }
  for (int i = 0; i < problem.num_outputs(); ++i) {
    params.out[i] = problem.out[i];
    params.out_stride[i] = row_kernel_strides(problem, problem.out_stride[i], size);
  }
  const auto copy_row_strides = [&](const int64_t *stride, int64_t element, int64_t *target) {
    memcpy(target, row_kernel_strides(problem, stride, element).row, kMaxRowAxes * sizeof *target);
  };
  params.row_scale = problem.row_scale;
  params.grad_row_scale = problem.grad_row_scale;
  params.num_rows = problem.num_rows;
  copy_row_strides(problem.row_scale_stride, scale_size, params.row_scale_stride);
  copy_row_strides(problem.grad_row_scale_stride, scale_size, params.grad_row_scale_stride);
  copy_row_strides(problem.row_index_stride, 1, params.row_index_stride);
  const SwigluRowStrides shape = row_kernel_strides(problem, problem.shape, 1);
  params.columns = problem.num_summed_elements();
  params.rows = problem.num_elements() / params.columns;
  params.has_narrow_columns = params.columns <= UINT32_MAX;
  for (int axis = 0; axis < kMaxRowAxes; ++axis) {
    params.row_shape[axis] = shape.row[axis] != 0 ? shape.row[axis] : 1;
    params.column_shape[axis] = shape.column[axis] != 0 ? shape.column[axis] : 1;
    const int64_t divisor = params.has_narrow_columns ? params.column_shape[axis] : 1;
    params.narrow_column_shape[axis] = Divider::by(static_cast<uint32_t>(divisor));
  }
  params.has_outer_rows = problem.num_row_axes > 1;
  params.has_outer_columns = problem.ndim - problem.num_row_axes > 1;
  params.is_row_scale_f32 = problem.row_scale_dtype == ROPE_DTYPE_F32;
  params.is_num_rows_64_bit = problem.num_rows_dtype == ROPE_DTYPE_I64;
  params.form = problem.form;
  const void *kernel = find_swiglu_kernel(problem.dtype, plan.vector_elements, {kSwigluRowSums, false});
  return launch(function, kernel, device_index, dim3(plan.grid_x, plan.grid_y), plan.threads, &params, 0, stream);
}

rope_status_t run_swiglu(const char *function, const SwigluProblem &problem, const SwigluPlan &plan,
                         int32_t device_index, rope_stream_t stream) {
  if (problem.grad_row_scale != nullptr) return run_swiglu_row_sums(function, problem, plan, device_index, stream);
  const int64_t size = dtype_size(problem.dtype);
  SwigluKernelParams params = {};
  for (int i = 0; i < problem.num_inputs(); ++i) {
    params.in[i] = problem.in[i];
    kernel_strides(problem.in_stride[i], problem.ndim, size, params.in_stride[i]);
  }
  for (int i = 0; i < problem.num_outputs(); ++i) {
    params.out[i] = problem.out[i];
    kernel_strides(problem.out_stride[i], problem.ndim, size, params.out_stride[i]);
  }
  for (int axis = 0; axis < kMaxAxes; ++axis) {
    const int source = axis - (kMaxAxes - problem.ndim);
    params.shape[axis] = source >= 0 ? problem.shape[source] : 1;
  }
  params.form = form_in<float>(problem.form);
  params.wide_form = problem.form;
  params.row_scale = problem.row_scale;
  params.is_row_scale_f32 = problem.row_scale_dtype == ROPE_DTYPE_F32;
  kernel_strides(problem.row_scale_stride, problem.ndim, dtype_size(problem.row_scale_dtype), params.row_scale_stride);
  params.num_rows = problem.num_rows;
  params.is_num_rows_64_bit = problem.num_rows_dtype == ROPE_DTYPE_I64;
  kernel_strides(problem.row_index_stride, problem.ndim, 1, params.row_index_stride);
  params.vectors_per_row = plan.vectors_per_row;
  params.num_vectors = plan.num_vectors;
  params.is_single_row = problem.ndim == 1;
  params.is_narrow = plan.num_vectors <= UINT32_MAX;
  params.narrow_vectors_per_row = Divider::by(params.is_narrow ? static_cast<uint32_t>(plan.vectors_per_row) : 1);
  params.has_outer_axes = problem.ndim > 2;
  const SwigluWork work = !problem.is_backward                     ? kSwigluForward
                          : problem.out[kRecomputedOut] != nullptr ? kSwigluGradientsAndOut
                                                                   : kSwigluGradients;
  const bool is_plain = problem.form.is_plain && problem.row_scale == nullptr && problem.num_rows == nullptr;
  const void *kernel = find_swiglu_kernel(problem.dtype, plan.vector_elements, {work, is_plain});
  return launch(function, kernel, device_index, dim3(plan.grid_x, plan.grid_y), plan.threads, &params, 0, stream);
}

}  // namespace

const Backend kCudaBackend = {count_devices, open_rope,  open_swiglu,
                              run_rope,      run_swiglu, ROPE_CUDA_VERSION " for " ROPE_CUDA_ARCHITECTURES};

}  // namespace rope
