// rope_variants.cuh - the RoPE kernels of a type of 16 or 32 bits, by variant
#pragma once

#include "backend/cuda/kernels/rope_flat.cuh"
#include "backend/cuda/kernels/rope_general.cuh"
#include "backend/cuda/kernels/rope_long.cuh"
#include "backend/cuda/kernels/rope_scattered.cuh"
#include "backend/cuda/kernels/rope_shared.cuh"
#include "backend/cuda/kernels/rope_short.cuh"
#include "backend/cuda/kernels/rope_token.cuh"

namespace rope {

// The kernel for a vector width, or NULL for a width that T has none of.
template <typename T>
const void *find_rope_variant(int vector_elements, RopeKernel kernel, Pairing pairing) {
  const bool is_interleaved = pairing == Pairing::kInterleaved;
  switch (kernel) {
    case RopeKernel::kShared:
      return find_shared_kernel<T>(vector_elements, is_interleaved);
    case RopeKernel::kToken:
    case RopeKernel::kTokenAxes:
    case RopeKernel::kTokenSequences:
    case RopeKernel::kTokenTable:
    case RopeKernel::kTokenTableAxes:
    case RopeKernel::kTokenTableSequences:
      return find_token_kernel<T>(kernel, vector_elements, is_interleaved);
    case RopeKernel::kScattered:
    case RopeKernel::kScatteredTable:
      return find_scattered_kernel<T>(kernel, vector_elements);
    case RopeKernel::kGeneral:
      return find_general_kernel<T>(vector_elements, pairing);
    case RopeKernel::kShortWarp:
    case RopeKernel::kShort:
    case RopeKernel::kShortTable32:
    case RopeKernel::kShortTable16:
    case RopeKernel::kLateTable32:
    case RopeKernel::kLateTable16:
      return find_short_kernel<T>(kernel, vector_elements, is_interleaved);
    case RopeKernel::kLong:
    case RopeKernel::kLongBatches:
    case RopeKernel::kLongConverted:
    case RopeKernel::kLongTable32:
    case RopeKernel::kLongTable16:
      return find_long_kernel<T>(kernel, vector_elements, is_interleaved);
    default:
      return find_flat_kernel<T>(kernel, vector_elements, is_interleaved);
  }
}

}  // namespace rope
