// simulated_kernels.cpp - the kernels of the step as functions of the host
// clang-format off: what stands for CUDA's language comes first
#include "simulated_gpu.hpp"
// clang-format on

#include "backend/cuda/inst/step_bf16.cu"
#include "backend/cuda/inst/step_f16.cu"
#include "backend/cuda/inst/step_f32.cu"
#include "backend/cuda/inst/step_f64.cu"
