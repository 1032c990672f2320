// SPDX-License-Identifier: Apache-2.0
// simulated_swiglu_kernels.cpp - the kernels of SwiGLU as functions of the host
// clang-format off: the replacement of CUDA's language comes first
#include "simulated_gpu.hpp"
// clang-format on

// Blocks run one after another, and these kernels declare shared arrays with a size, so static arrays replace them.
#undef __shared__
#define __shared__ static

#include "backend/cuda/inst/swiglu_bf16.cu"
#include "backend/cuda/inst/swiglu_f16.cu"
#include "backend/cuda/inst/swiglu_f32.cu"
#include "backend/cuda/inst/swiglu_f64.cu"
