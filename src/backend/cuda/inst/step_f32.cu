// step_f32.cu - the kernels of the step for F32
#include "backend/cuda/kernels.hpp"
#include "backend/cuda/kernels/step_general.cuh"
#include "backend/cuda/kernels/step_rows.cuh"

namespace rope {

const void *step_kernel_of(float, const StepVariant &variant) {
  if (variant.kernel != StepKernel::kGeneral) return find_step_rows_kernel<float>(variant);
  return reinterpret_cast<const void *>(step_general_kernel<float>);
}

}  // namespace rope
