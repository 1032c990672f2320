// SPDX-License-Identifier: Apache-2.0
// rope_kernels.cpp - which file of kernels has a variant of RoPE (kernel_files.cmake lists them)
#include "backend/cuda/built_types.hpp"
#include "backend/cuda/kernels.hpp"

namespace rope {

template <typename T>
Kernel find_rope_short_kernel(int vector_elements, const RopeVariant &variant);
template <typename T>
Kernel find_rope_long_kernel(int vector_elements, const RopeVariant &variant);
template <typename T>
Kernel find_rope_thread_kernel(int vector_elements, const RopeVariant &variant);
template <typename T>
Kernel find_rope_token_kernel(int vector_elements, const RopeVariant &variant);
template <typename T>
Kernel find_rope_scalar_kernel(int vector_elements, const RopeVariant &variant);
template <typename T>
Kernel find_rope_general_kernel(int vector_elements, const RopeVariant &variant);

template <typename T>
Kernel find_tables_kernel();

namespace {

template <typename T>
Kernel find_kernel(int vector_elements, const RopeVariant &variant) {
  if constexpr (!kHas64Bits<T>) {
    switch (variant.kernel) {
      case RopeKernel::kMidProgrammaticTable:
      case RopeKernel::kProgrammaticTable:
      case RopeKernel::kShortTable:
      case RopeKernel::kShortWarp:
      case RopeKernel::kShort:
      case RopeKernel::kFlatTable:
        return find_rope_short_kernel<T>(vector_elements, variant);
      case RopeKernel::kLongConverted:
      case RopeKernel::kLong:
        if constexpr (kHas16Bits<T>) return find_rope_long_kernel<T>(vector_elements, variant);
        return {};
      case RopeKernel::kThread:
        return find_rope_thread_kernel<T>(vector_elements, variant);
      case RopeKernel::kToken:
        return find_rope_token_kernel<T>(vector_elements, variant);
      case RopeKernel::kScalar:
        return find_rope_scalar_kernel<T>(vector_elements, variant);
      default:
        break;
    }
  }
  if (variant.kernel != RopeKernel::kGeneral) return {};
  return find_rope_general_kernel<T>(vector_elements, variant);
}

}  // namespace

Kernel find_rope_kernel(rope_dtype_t dtype, int vector_elements, const RopeVariant &variant) {
  return find_of_type(dtype, [&](auto element) { return find_kernel<decltype(element)>(vector_elements, variant); });
}

Kernel find_table_kernel(rope_dtype_t dtype) {
  return find_of_type(dtype, [](auto element) { return find_tables_kernel<decltype(element)>(); });
}

bool has_kernels_of(rope_dtype_t dtype) {
  return visit_dtype(dtype, [](auto element) { return kIsBuilt<decltype(element)>; });
}

}  // namespace rope
