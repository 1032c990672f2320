// SPDX-License-Identifier: Apache-2.0
// descriptor_checks.hpp - checks of descriptors, recipes and calls that RoPE and SwiGLU have in common
#pragma once

#include <stddef.h>

#include "core/problem/status.hpp"

namespace rope {

rope_status_t check_device(const char *function, rope_device_t device, int32_t device_index, int32_t num_threads);
rope_status_t check_rotary_dim_and_theta(const char *function, int32_t rotary_dim, double theta);
rope_status_t check_data_type(const char *function, rope_dtype_t dtype);
// `names` lists the `known` flags in words.
rope_status_t check_call_flags(const char *function, uint32_t flags, uint32_t known, const char *names);
rope_status_t check_cpu_stream(const char *function, rope_stream_t stream);
// Checks the buffer of an explanation.
rope_status_t check_text(const char *function, const char *text, size_t size);

}  // namespace rope
