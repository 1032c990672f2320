// tables.cu - the table kernels for every type
#include "backend/cuda/kernels.hpp"
#include "backend/cuda/kernels/tables.cuh"

namespace rope {

const void *table_kernel_of(rope_dtype_t dtype) {
  switch (dtype) {
    case ROPE_DTYPE_F16:
      return reinterpret_cast<const void *>(table_kernel<Float16>);
    case ROPE_DTYPE_BF16:
      return reinterpret_cast<const void *>(table_kernel<BFloat16>);
    case ROPE_DTYPE_F64:
      return reinterpret_cast<const void *>(table_kernel<double>);
    default:
      return reinterpret_cast<const void *>(table_kernel<float>);
  }
}

}  // namespace rope
