// SPDX-License-Identifier: Apache-2.0
// kernel_params_tests.cpp - each kernel takes one argument, whose size is that of the params that launches pass to it
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <catch2/catch_test_macros.hpp>
#include <cstddef>
#include <map>

#include "backend/cuda/kernels.hpp"
#include "backend/cuda/kernels/kernel.hpp"
#include "gpu.hpp"

namespace {

using Kernels = std::map<const void *, const rope::ParamsType *>;

void add(const rope::Kernel &kernel, Kernels *kernels) {
  if (kernel.address != nullptr) kernels->emplace(kernel.address, kernel.params);
}

void add_rope(rope_dtype_t dtype, Kernels *kernels) {
  using namespace rope;
  for (const int elements : {1, 2, 4, 8}) {
    for (int kernel = 0; kernel <= static_cast<int>(RopeKernel::kGeneral); ++kernel) {
      for (const Pairing pairing : {Pairing::kHalf, Pairing::kInterleaved, Pairing::kConverted}) {
        for (const AngleKinds angles : {kComputedAngles, kTable32, kTable16, kOtherAngles}) {
          for (const Lookups lookup : {kNoLookup, kAxesLookup, kSequencesLookup}) {
            for (const bool has_simple_grid : {false, true}) {
              add(find_rope_kernel(dtype, elements,
                                   {static_cast<RopeKernel>(kernel), pairing, angles, lookup, has_simple_grid}),
                  kernels);
            }
          }
        }
      }
    }
  }
}

void add_steps(rope_dtype_t dtype, Kernels *kernels) {
  using namespace rope;
  for (int kernel = 0; kernel <= static_cast<int>(StepKernel::kNormGradientRows); ++kernel) {
    for (const StepNorm norm : {StepNorm::kNone, StepNorm::kBefore, StepNorm::kAfter, StepNorm::kOfToken}) {
      for (const StepAngles angles : {StepAngles::kNone, StepAngles::kComputed, StepAngles::kTable}) {
        for (const StepCodes codes : {StepCodes::kNone, StepCodes::kStatic, StepCodes::kScales, StepCodes::kAll}) {
          for (const bool is_interleaved : {false, true}) {
            for (const bool has_more : {false, true}) {
              add(find_step_kernel(dtype,
                                   {static_cast<StepKernel>(kernel), norm, angles, is_interleaved, codes, has_more}),
                  kernels);
            }
          }
        }
      }
    }
  }
}

void add_swiglu(rope_dtype_t dtype, Kernels *kernels) {
  using namespace rope;
  for (const int elements : {1, 2, 4, 8}) {
    for (int work = 0; work < kNumSwigluWorks; ++work) {
      for (int formula = 0; formula < kNumSwigluFormulas; ++formula) {
        for (const bool is_alternating : {false, true}) {
          const SwigluVariant variant = {static_cast<SwigluWork>(work), static_cast<SwigluFormula>(formula),
                                         is_alternating};
          add(find_swiglu_kernel(dtype, elements, variant), kernels);
        }
      }
    }
  }
}

Kernels find_kernels() {
  Kernels kernels;
  for (const rope_dtype_t dtype : {ROPE_DTYPE_F32, ROPE_DTYPE_F16, ROPE_DTYPE_BF16, ROPE_DTYPE_F64}) {
    add_rope(dtype, &kernels);
    add_steps(dtype, &kernels);
    add_swiglu(dtype, &kernels);
    add(rope::find_table_kernel(dtype), &kernels);
  }
  return kernels;
}

}  // namespace

TEST_CASE("each kernel's argument has the size of the params of its launches", "[kernel params]") {
  need_gpus();
#if CUDART_VERSION < 12050
  SKIP("the CUDA Toolkit is older than 12.5");
#else
  cudaDriverEntryPointQueryResult result;
  void *found = nullptr;
  const cudaError_t error =
      cudaGetDriverEntryPointByVersion("cuFuncGetParamInfo", &found, 12040, cudaEnableDefault, &result);
  if (error != cudaSuccess || result != cudaDriverEntryPointSuccess) SKIP("the driver is older than CUDA 12.4");
  const auto param_info = reinterpret_cast<CUresult(CUDAAPI *)(CUfunction, size_t, size_t *, size_t *)>(found);
  REQUIRE_CUDA(cudaSetDevice(0));
  REQUIRE_CUDA(cudaFree(nullptr));  // makes the context current
  const Kernels kernels = find_kernels();
  CHECK(kernels.size() > 700);
  size_t largest = 0;
  for (const auto &[address, params] : kernels) {
    cudaFunction_t function;
    REQUIRE_CUDA(cudaGetFuncBySymbol(&function, address));
    size_t offset = 1, size = 0;
    REQUIRE(param_info(function, 0, &offset, &size) == CUDA_SUCCESS);
    CHECK(offset == 0);
    CHECK(size == params->bytes);
    CHECK(param_info(function, 1, &offset, &size) == CUDA_ERROR_INVALID_VALUE);
    largest = size > largest ? size : largest;
  }
  CHECK(largest <= rope::kMaxParamsBytes);
#endif
}
