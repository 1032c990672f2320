// SPDX-License-Identifier: Apache-2.0
// descriptor_checks.cpp - checks of descriptors, recipes and calls that RoPE and SwiGLU have in common
#include "core/problem/descriptor_checks.hpp"

#include "core/math/frequencies.hpp"
#include "core/problem/view.hpp"

namespace rope {

rope_status_t check_device(const char *function, rope_device_t device, int32_t device_index, int32_t num_threads) {
  if (device != ROPE_DEVICE_CPU && device != ROPE_DEVICE_CUDA) {
    return fail(ROPE_STATUS_INVALID_ARGUMENT, "%s: device is %d: it must be ROPE_DEVICE_CPU or ROPE_DEVICE_CUDA",
                function, device);
  }
  if (device_index < 0 || (device == ROPE_DEVICE_CPU && device_index != 0)) {
    return fail(ROPE_STATUS_INVALID_ARGUMENT, "%s: device_index is %d: it must be %s", function, device_index,
                device == ROPE_DEVICE_CPU ? "0 for the CPU" : "at least 0");
  }
  if (num_threads < 0) {
    return fail(ROPE_STATUS_INVALID_ARGUMENT, "%s: num_threads is %d: it must be at least 0", function, num_threads);
  }
  return ROPE_STATUS_SUCCESS;
}

rope_status_t check_rotary_dim_and_theta(const char *function, int32_t rotary_dim, double theta) {
  if (rotary_dim < 2 || rotary_dim > kMaxHeadDim || rotary_dim % 2 != 0) {
    return fail(ROPE_STATUS_INVALID_ARGUMENT, "%s: rotary_dim is %d: it must be even, 2 to %d", function, rotary_dim,
                kMaxHeadDim);
  }
  if (!(theta >= kMinTheta && theta <= kMaxTheta)) {
    return fail(ROPE_STATUS_INVALID_ARGUMENT, "%s: theta is %g: it must be %g to %g", function, theta, kMinTheta,
                kMaxTheta);
  }
  return ROPE_STATUS_SUCCESS;
}

rope_status_t check_data_type(const char *function, rope_dtype_t dtype) {
  if (dtype >= ROPE_DTYPE_F32 && dtype <= ROPE_DTYPE_F64) return ROPE_STATUS_SUCCESS;
  return fail(ROPE_STATUS_INVALID_ARGUMENT, "%s: dtype is %d (%s): it must be F32, F16, BF16 or F64", function, dtype,
              dtype_name(dtype));
}

rope_status_t check_call_flags(const char *function, uint32_t flags, uint32_t known, const char *names) {
  if ((flags & ~known) == 0) return ROPE_STATUS_SUCCESS;
  return fail(ROPE_STATUS_NOT_SUPPORTED, "%s: flags is 0x%x: this version knows %s only", function, flags, names);
}

rope_status_t check_cpu_stream(const char *function, rope_stream_t stream) {
  if (stream == nullptr) return ROPE_STATUS_SUCCESS;
  return fail(ROPE_STATUS_INVALID_ARGUMENT, "%s: stream is %p: a CPU descriptor takes NULL", function,
              static_cast<void *>(stream));
}

rope_status_t check_text(const char *function, const char *text, size_t size) {
  if (text == nullptr) return fail(ROPE_STATUS_INVALID_ARGUMENT, "%s: text is NULL: it is required", function);
  if (size == 0) return fail(ROPE_STATUS_INVALID_ARGUMENT, "%s: size is 0: it must hold a text", function);
  return ROPE_STATUS_SUCCESS;
}

}  // namespace rope
