// rope_f16.cu - the RoPE kernels for F16
#include "backend/cuda/kernels.hpp"
#include "backend/cuda/kernels/rope_flat.cuh"
#include "backend/cuda/kernels/rope_general.cuh"
#include "backend/cuda/kernels/rope_shared.cuh"
#include "backend/cuda/kernels/rope_token.cuh"

namespace rope {

const void *rope_kernel_f16(int vector_elements, RopeVariant variant) {
  const bool is_interleaved = variant.pairing == Pairing::kInterleaved;
  switch (variant.kernel) {
    case RopeKernel::kShared:
      return find_shared_kernel<Float16>(vector_elements, is_interleaved);
    case RopeKernel::kToken:
    case RopeKernel::kTokenAxes:
    case RopeKernel::kTokenSequences:
    case RopeKernel::kTokenTable:
    case RopeKernel::kTokenTableAxes:
    case RopeKernel::kTokenTableSequences:
    case RopeKernel::kScattered:
    case RopeKernel::kScatteredTable:
      return find_token_kernel<Float16>(variant.kernel, vector_elements, is_interleaved);
    case RopeKernel::kGeneral:
      return find_general_kernel<Float16>(vector_elements, variant.pairing);
    default:
      return find_flat_kernel<Float16>(variant.kernel, vector_elements, is_interleaved);
  }
}

}  // namespace rope
