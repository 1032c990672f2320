// SPDX-License-Identifier: Apache-2.0
// launch.hpp - launches a kernel with its params
#pragma once

#include "backend/cuda/kernels/kernel.hpp"
#include "core/problem/status.hpp"

namespace rope {

struct Launch {
  Kernel kernel;
  uint32_t grid_x, grid_y;        // blocks
  uint32_t threads, thread_rows;  // of a block
  uint32_t shared_bytes;
  bool is_programmatic;
};

// Launches with params of a type, which must be the kernel's.
rope_status_t launch_with_params(const char *function, const Launch &what, const ParamsType &type, void *params,
                                 int32_t device_index, rope_stream_t stream);

// The function through which all launches pass. `params` is the kernel's only argument.
template <typename Params>
rope_status_t launch(const char *function, const Launch &what, Params *params, int32_t device_index,
                     rope_stream_t stream) {
  static_assert(sizeof(Params) <= kMaxParamsBytes, "");
  return launch_with_params(function, what, kParamsType<Params>, params, device_index, stream);
}

}  // namespace rope
