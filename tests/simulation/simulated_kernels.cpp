// simulated_kernels.cpp - the kernels of the step, and of SwiGLU those to codes, as functions of the host
// clang-format off: what stands for CUDA's language comes first
#include "simulated_gpu.hpp"
// clang-format on

#include <cmath>

namespace rope {

// Which the GPU approximates.
inline float approximate_reciprocal(float value) {
  return 1.0f / value;
}

inline float approximate_power_of_two(float exponent) {
  return std::exp2(exponent);
}

}  // namespace rope

#include "backend/cuda/inst/step_bf16.cu"
#include "backend/cuda/inst/step_f16.cu"
#include "backend/cuda/inst/step_f32.cu"
#include "backend/cuda/inst/step_f64.cu"

// Arrays of a known size, which all threads of a block share; those above are of the launch's size.
#undef __shared__
#define __shared__ static
#include "backend/cuda/kernels/swiglu_codes.cuh"

namespace rope {

namespace {

template <typename T>
const void *codes_kernel_of(SwigluVariant variant) {
  return variant.work == kSwigluCodes ? reinterpret_cast<const void *>(swiglu_codes_kernel<T>) : nullptr;
}

}  // namespace

const void *swiglu_kernel_of(float, int, SwigluVariant variant) {
  return codes_kernel_of<float>(variant);
}

const void *swiglu_kernel_of(Float16, int, SwigluVariant variant) {
  return codes_kernel_of<Float16>(variant);
}

const void *swiglu_kernel_of(BFloat16, int, SwigluVariant variant) {
  return codes_kernel_of<BFloat16>(variant);
}

const void *swiglu_kernel_of(double, int, SwigluVariant) {
  return nullptr;
}

}  // namespace rope
