// step_f16.cu - the kernels of the step for F16
#include "backend/cuda/kernels.hpp"
#include "backend/cuda/kernels/step_general.cuh"
#include "backend/cuda/kernels/step_rows.cuh"

namespace rope {

const void *step_kernel_of(Float16, const StepVariant &variant) {
  if (variant.kernel != StepKernel::kGeneral) return find_step_rows_kernel<Float16>(variant);
  return reinterpret_cast<const void *>(step_general_kernel<Float16>);
}

}  // namespace rope
