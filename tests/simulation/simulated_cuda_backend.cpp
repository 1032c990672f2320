// SPDX-License-Identifier: Apache-2.0
// simulated_cuda_backend.cpp - the CUDA backend of a library with a simulated GPU, for the step
//
// Plans, params and kernels are those of the library. Device memory is host memory. Calls without a step run on the
// CPU.
#include <cstdlib>
#include <map>
#include <set>

#include "backend/backend.hpp"
#include "backend/cpu/cpu_rope.hpp"
#include "backend/cuda/kernels/step_params.hpp"
#include "backend/cuda/kernels/swiglu_params.hpp"
#include "backend/cuda/operations.hpp"
#include "plan/recorded_launches.hpp"
#include "simulated_gpu.hpp"

std::vector<RecordedLaunch> *recorded_launches = nullptr;

namespace rope {

namespace {

template <typename Params>
void call(const void *kernel, void *params) {
  reinterpret_cast<void (*)(Params)>(const_cast<void *>(kernel))(*static_cast<Params *>(params));
}

using Calls = std::map<const ParamsType *, void (*)(const void *kernel, void *params)>;

template <typename... Params>
void add(Calls *calls) {
  (calls->emplace(&kParamsType<Params>, call<Params>), ...);
}

template <typename Plain>
void add_short(Calls *calls) {
  add<StepShortParams<Plain, false, StepAngles::kNone>, StepShortParams<Plain, false, StepAngles::kComputed>,
      StepShortParams<Plain, false, StepAngles::kTable>, StepShortParams<Plain, true, StepAngles::kNone>,
      StepShortParams<Plain, true, StepAngles::kComputed>, StepShortParams<Plain, true, StepAngles::kTable>>(calls);
}

template <typename Long>
void add_long(Calls *calls) {
  add<Long, WithCodes<Long>, WithScales<Long>, WithWindow<Long>>(calls);
}

// By the params that a kernel takes.
Calls find_calls() {
  Calls calls;
  add_short<StepShortHeadParams<false>>(&calls);
  add_short<StepShortHeadParams<true>>(&calls);
  add_short<StepShortMoreParams<false>>(&calls);
  add_short<StepShortMoreParams<true>>(&calls);
  add_long<StepLongHeadParams>(&calls);
  add_long<WithAngles<StepLongHeadParams, kMaxLongStepPairs>>(&calls);
  add_long<StepLongTableParams>(&calls);
  add<StepRowParams, WithAngles<StepRowParams, kMaxShortStepPairs>, WithAngles<StepRowParams, kMaxLongStepPairs>,
      StepRowCodeParams, WithAngles<StepRowCodeParams, kMaxLongStepPairs>, StepGeneralParams, NormGradientParams,
      NormGradientRowParams>(&calls);
  add<SwigluKernelParams, SwigluOptionsParams, SwigluRowKernelParams, SwigluOptionsRowParams, SwigluMatrixParams,
      SwigluOptionsMatrixParams, SwigluMatrixGradientParams, SwigluOptionsMatrixGradientParams,
      SwigluFlatGradientParams, SwigluExpertParams, SwigluExpertCodeParams, SwigluCodesParams, SwigluCodeBlockParams,
      SwigluCodeGroupParams, SwigluCodeMatrixParams>(&calls);
  return calls;
}

// The kernels that the descriptor of the present call has loaded.
std::set<const void *> loaded;

const KernelVisitor load = {[](void *, const Kernel &kernel) { loaded.insert(kernel.address); }, nullptr};

}  // namespace

rope_status_t launch_with_params(const char *function, const Launch &what, const ParamsType &type, void *params,
                                 int32_t, rope_stream_t) {
  static const Calls calls = find_calls();
  const char *const fault = what.kernel.address == nullptr           ? "there is no such kernel"
                            : what.kernel.params != &type            ? "the kernel takes other params"
                            : loaded.count(what.kernel.address) == 0 ? "the descriptor has not loaded the kernel"
                            : calls.count(&type) == 0                ? "the simulated GPU does not know the params"
                                                                     : nullptr;
  if (fault != nullptr) return fail(ROPE_STATUS_INTERNAL_ERROR, "%s: %s", function, fault);
  if (recorded_launches != nullptr) {
    recorded_launches->push_back({what, type.bytes});
    return ROPE_STATUS_SUCCESS;
  }
  const auto call_kernel = calls.at(&type);
  simulation::run([&] { call_kernel(what.kernel.address, params); }, dim3(what.grid_x, what.grid_y),
                  dim3(what.threads, what.thread_rows), what.shared_bytes);
  return ROPE_STATUS_SUCCESS;
}

namespace {

int32_t count_devices(const char *) {
  return 1;
}

// Few multiprocessors make launches long that tests can afford.
DeviceInfo find_device() {
  const char *const multiprocessors = std::getenv("ROPE_SIMULATED_MULTIPROCESSORS");
  return {true, 1, multiprocessors != nullptr ? std::atoi(multiprocessors) : 132, 90, 6016};
}

rope_status_t open_rope(const char *, const RopeGeometry &, int32_t, int32_t, DeviceInfo *device) {
  *device = find_device();
  return ROPE_STATUS_SUCCESS;
}

rope_status_t refuse(const char *function) {
  return fail(ROPE_STATUS_NOT_SUPPORTED, "%s: device is CUDA: the simulated GPU fills no tables", function);
}

rope_status_t open_swiglu(const char *, rope_dtype_t, int32_t, int32_t, DeviceInfo *device) {
  *device = find_device();
  return ROPE_STATUS_SUCCESS;
}

rope_status_t run_rope(const char *function, const RopeProblem &problem, const RopePlan &plan, int32_t device_index,
                       rope_stream_t stream) {
  if (problem.step == nullptr) {
    run_cpu_rope(problem, 1);
    return ROPE_STATUS_SUCCESS;
  }
  loaded.clear();
  visit_step_kernels(*problem.geometry, load);
  return run_cuda_step(function, problem, plan, device_index, stream);
}

rope_status_t run_swiglu(const char *function, const SwigluCall &call, const SwigluCallPlan &plan, int32_t device_index,
                         rope_stream_t stream) {
  loaded.clear();
  visit_swiglu_kernels(call.problems[0].dtype, load);
  return run_cuda_swiglu(function, call, plan, device_index, stream);
}

rope_status_t fill_tables(const char *function, const TableProblem &, const DeviceInfo &, int32_t, rope_stream_t) {
  return refuse(function);
}

const char *describe() {
  return "simulated";
}

}  // namespace

const Backend kCudaBackend = {count_devices, open_rope, open_swiglu, run_rope, fill_tables, run_swiglu, describe};

}  // namespace rope
