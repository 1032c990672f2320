// SPDX-License-Identifier: Apache-2.0
// recorded_launches.cpp - a CUDA backend that plans and sets params as the library does, without kernels and without a
// device
//
// A kernel's address is a number for its variant. Addresses of RoPE kernels are compared with those that a descriptor
// loads. For kernels of the step and of SwiGLU only the simulated GPU can do that: several variants have one of these.
#include "plan/recorded_launches.hpp"

#include <cstring>
#include <set>

#include "backend/backend.hpp"
#include "backend/cuda/kernels.hpp"
#include "backend/cuda/operations.hpp"

std::vector<RecordedLaunch> *recorded_launches = nullptr;

namespace rope {

namespace {

// The members of a variant as one address that is not NULL.
template <typename... Members>
Kernel kernel_of_members(Members... members) {
  uintptr_t number = 1;
  const auto add = [&](auto member) { number = number * 64 + static_cast<uintptr_t>(member); };
  (add(members), ...);
  return {reinterpret_cast<const void *>(number), nullptr};
}

std::set<const void *> loaded;

const KernelVisitor load = {[](void *, const Kernel &kernel) { loaded.insert(kernel.address); }, nullptr};

rope_status_t run_rope(const char *function, const RopeProblem &problem, const RopePlan &plan, int32_t device_index,
                       rope_stream_t stream) {
  loaded.clear();
  if (problem.step == nullptr) visit_rope_kernels(*problem.geometry, load);
  return run_cuda_rope(function, problem, plan, device_index, stream);
}

rope_status_t run_swiglu(const char *function, const SwigluCall &call, const SwigluCallPlan &plan, int32_t device_index,
                         rope_stream_t stream) {
  loaded.clear();
  return run_cuda_swiglu(function, call, plan, device_index, stream);
}

}  // namespace

// Members that do not select a function count as 0.
Kernel find_rope_kernel(rope_dtype_t dtype, int vector_elements, const RopeVariant &variant) {
  const RopeKernel kernel = variant.kernel;
  const bool is_computed = variant.angles == kComputedAngles, is_token = kernel == RopeKernel::kToken;
  const bool has_one_table = is_token || kernel == RopeKernel::kScalar;
  const unsigned angles = kernel == RopeKernel::kGeneral  ? 0
                          : !is_computed && has_one_table ? unsigned{kTables}
                                                          : unsigned{variant.angles};
  const bool ignores_axes = is_computed && variant.lookup == kNoLookup;
  const unsigned lookup = !is_token ? 0 : ignores_axes ? unsigned{kAxesLookup} : unsigned{variant.lookup};
  const bool has_simple_grid = kernel == RopeKernel::kLong && is_computed && variant.has_simple_grid;
  return kernel_of_members(dtype, vector_elements, kernel, variant.pairing, angles, lookup, has_simple_grid);
}

Kernel find_step_kernel(rope_dtype_t dtype, const StepVariant &variant) {
  return kernel_of_members(dtype, variant.kernel, variant.norm, variant.angles, variant.is_interleaved, variant.codes,
                           variant.has_more);
}

Kernel find_swiglu_kernel(rope_dtype_t dtype, int vector_elements, SwigluVariant variant) {
  return kernel_of_members(dtype, vector_elements, variant.work, variant.formula, variant.is_alternating);
}

Kernel find_table_kernel(rope_dtype_t dtype) {
  return kernel_of_members(dtype);
}

rope_status_t launch_with_params(const char *function, const Launch &what, const ParamsType &type, void *, int32_t,
                                 rope_stream_t) {
  recorded_launches->push_back({what, type.bytes});
  if (loaded.empty() || loaded.count(what.kernel.address) != 0) return ROPE_STATUS_SUCCESS;
  return fail(ROPE_STATUS_INTERNAL_ERROR, "%s: the descriptor has not loaded the kernel", function);
}

const Backend kCudaBackend = {nullptr, nullptr, nullptr, run_rope, nullptr, run_swiglu, nullptr};

}  // namespace rope
