// SPDX-License-Identifier: Apache-2.0
// cpu_kernel_table.hpp - the table of the inner loops of one instruction set
#pragma once

#include "backend/cpu/cpu_loops.hpp"
#include "backend/cpu/cpu_norm_gradient_loops.hpp"
#include "backend/cpu/cpu_step_loops.hpp"
#include "backend/cpu/cpu_swiglu_loops.hpp"

namespace rope {

namespace {

constexpr CpuKernels kernels_of_these_loops(const char *name) {
  return {
      name,
      fill_angles<float>,
      fill_angles<double>,
      {rotate_run<float, float>, rotate_run<Float16, float>, rotate_run<BFloat16, float>},
      {nullptr, rotate_run<Float16, float, Float16>, rotate_run<BFloat16, float, BFloat16>},
      rotate_run<double, double>,
      {run_step<float>, run_step<Float16>, run_step<BFloat16>},
      run_step<double>,
      {run_norm_gradient<float>, run_norm_gradient<Float16>, run_norm_gradient<BFloat16>},
      run_norm_gradient<double>,
      {swiglu_forward<float>, swiglu_forward<Float16>, swiglu_forward<BFloat16>, swiglu_forward<double>},
      {swiglu_values<float>, swiglu_values<Float16>, swiglu_values<BFloat16>},
      {swiglu_gradient_values<float>, swiglu_gradient_values<Float16>, swiglu_gradient_values<BFloat16>},
      {round_values<float, float>, round_values<Float16, float>, round_values<BFloat16, float>},
      raise_magnitude<float>,
      {encode_values<Float8E4M3>, encode_values<Float8E5M2>, encode_pairs},
      {swiglu_backward<float>, swiglu_backward<Float16>, swiglu_backward<BFloat16>, swiglu_backward<double>},
  };
}

}  // namespace

}  // namespace rope
