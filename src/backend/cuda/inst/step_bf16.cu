// step_bf16.cu - the kernels of the step for BF16
#include "backend/cuda/kernels.hpp"
#include "backend/cuda/kernels/step_general.cuh"
#include "backend/cuda/kernels/step_rows.cuh"

namespace rope {

const void *step_kernel_of(BFloat16, const StepVariant &variant) {
  if (variant.kernel != StepKernel::kGeneral) return find_step_rows_kernel<BFloat16>(variant);
  return reinterpret_cast<const void *>(step_general_kernel<BFloat16>);
}

}  // namespace rope
