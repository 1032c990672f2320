// SPDX-License-Identifier: Apache-2.0
// tables.cu - the table kernels for every type
#include "backend/cuda/kernels.hpp"
#include "backend/cuda/kernels/tables.cuh"
#include "core/problem/visit_dtype.hpp"

namespace rope {

Kernel table_kernel_of(rope_dtype_t dtype) {
  return visit_dtype(dtype, [](auto element) { return kernel_of(table_kernel<decltype(element)>); });
}

}  // namespace rope
