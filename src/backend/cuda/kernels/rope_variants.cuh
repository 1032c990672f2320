// SPDX-License-Identifier: Apache-2.0
// rope_variants.cuh - finds the RoPE kernel of a 16-bit or 32-bit type by its variant
#pragma once

#include "backend/cuda/kernels/kernel.hpp"
#include "backend/cuda/kernels/rope_general.cuh"
#include "backend/cuda/kernels/rope_long.cuh"
#include "backend/cuda/kernels/rope_scalar.cuh"
#include "backend/cuda/kernels/rope_short.cuh"
#include "backend/cuda/kernels/rope_thread.cuh"
#include "backend/cuda/kernels/rope_token.cuh"

namespace rope {

// The kernel for a vector width, or NULL if T has no such width.
template <typename T>
Kernel find_rope_variant(int vector_elements, const RopeVariant &variant) {
  switch (variant.kernel) {
    case RopeKernel::kMidProgrammaticTable:
    case RopeKernel::kProgrammaticTable:
    case RopeKernel::kShortTable:
    case RopeKernel::kShortWarp:
    case RopeKernel::kShort:
      return find_short_kernel<T>(vector_elements, variant);
    case RopeKernel::kFlatTable:
      return find_flat_kernel<T>(vector_elements, variant);
    case RopeKernel::kLongConverted:
    case RopeKernel::kLong:
      return find_long_kernel<T>(vector_elements, variant);
    case RopeKernel::kThread:
      return find_thread_kernel<T>(vector_elements, variant);
    case RopeKernel::kToken:
      return find_token_kernel<T>(vector_elements, variant);
    case RopeKernel::kScalar:
      return find_scalar_kernel<T>(vector_elements, variant);
    default:
      return find_general_kernel<T>(vector_elements, variant);
  }
}

}  // namespace rope
