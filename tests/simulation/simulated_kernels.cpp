// SPDX-License-Identifier: Apache-2.0
// simulated_kernels.cpp - the kernels of the step as host functions clang-format off: the replacement of CUDA's
// language must be included first
#include "simulated_gpu.hpp"
// clang-format on

#include "backend/cuda/inst/step_bf16.cu"
#include "backend/cuda/inst/step_f16.cu"
#include "backend/cuda/inst/step_f32.cu"
#include "backend/cuda/inst/step_f64.cu"
