// simulated_kernels.cpp - the kernels of the step as functions of the host
#include "backend/cuda/inst/step_bf16.cu"
#include "backend/cuda/inst/step_f16.cu"
#include "backend/cuda/inst/step_f32.cu"
#include "backend/cuda/inst/step_f64.cu"
#include "simulated_gpu.hpp"
