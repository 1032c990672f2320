// SPDX-License-Identifier: Apache-2.0
// simulated_cuda_backend.cpp - the CUDA backend of a library with a simulated GPU, for the step
//
// Plans, params and kernels are those of the library. Device memory is host memory. Calls without a step run on the
// CPU.
#include <cstdlib>
#include <initializer_list>
#include <map>
#include <type_traits>

#include "backend/backend.hpp"
#include "backend/cpu/cpu_rope.hpp"
#include "backend/cuda/kernels.hpp"
#include "backend/cuda/kernels/step_params.hpp"
#include "backend/cuda/kernels/swiglu_params.hpp"
#include "backend/cuda/operations.hpp"
#include "simulated_gpu.hpp"

namespace rope {

// load_step_kernels calls it; there is nothing to load.
void Preloader::load(const void *) {}

namespace {

template <typename Params>
void call(const void *kernel, void *params) {
  reinterpret_cast<void (*)(Params)>(const_cast<void *>(kernel))(*static_cast<Params *>(params));
}

using Call = void (*)(const void *kernel, void *params);

Call call_of(SwigluVariant variant) {
  const bool has_options = variant.formula > SwigluFormula::kForm;
  switch (variant.work) {
    case kSwigluRowSums:
      return has_options ? call<SwigluOptionsRowParams> : call<SwigluRowKernelParams>;
    case kSwigluMatrix:
    case kSwigluProgrammaticMatrix:
    case kSwigluMatrixRows:
      return has_options ? call<SwigluOptionsMatrixParams> : call<SwigluMatrixParams>;
    case kSwigluMatrixGradients:
    case kSwigluProgrammaticMatrixGradients:
    case kSwigluLateMatrixGradients:
      return has_options ? call<SwigluOptionsMatrixGradientParams> : call<SwigluMatrixGradientParams>;
    case kSwigluFlatMatrixGradients:
      return call<SwigluFlatGradientParams>;
    case kSwigluExperts:
    case kSwigluExpertGradients:
    case kSwigluLookup:
    case kSwigluLookupGradients:
      return call<SwigluExpertParams>;
    case kSwigluCodeMatrix:
    case kSwigluScaledCodeMatrix:
    case kSwigluScaledCodeSpans:
    case kSwigluCodeRows:
      return call<SwigluCodeMatrixParams>;
    case kSwigluCodeGroups:
    case kSwigluScaledCodeGroups:
    case kSwigluWideCodeGroups:
      return call<SwigluCodeGroupParams>;
    case kSwigluExpertCodes:
    case kSwigluRowCodes:
      return call<SwigluExpertCodeParams>;
    case kSwigluCodeBlocks:
    case kSwigluGradientCodeBlocks:
      return call<SwigluCodeBlockParams>;
    case kSwigluCodes:
    case kSwigluGradientCodes:
      return call<SwigluCodesParams>;
    default:
      return has_options ? call<SwigluOptionsParams> : call<SwigluKernelParams>;
  }
}

void add_swiglu(std::map<const void *, Call> *calls) {
  const auto add = [&](auto element) {
    for (int elements = 1; elements <= 8; elements *= 2) {
      for (int work = 0; work < kNumSwigluWorks; ++work) {
        for (int formula = 0; formula < kNumSwigluFormulas; ++formula) {
          for (const bool is_alternating : {false, true}) {
            const SwigluVariant variant = {static_cast<SwigluWork>(work), static_cast<SwigluFormula>(formula),
                                           is_alternating};
            // Works that no plan has with a formula may find the kernel of an earlier one.
            calls->emplace(swiglu_kernel_of(element, elements, variant), call_of(variant));
          }
        }
      }
    }
  };
  add(float{}), add(Float16{}), add(BFloat16{}), add(double{});
}

// By the params that a kernel takes.
std::map<const void *, Call> find_calls() {
  std::map<const void *, Call> calls;
  const auto add = [&](auto element) {
    calls[step_kernel_of(element, {StepKernel::kGeneral, StepNorm::kNone, StepAngles::kNone, false, StepCodes::kNone,
                                   false})] = call<StepGeneralParams>;
    if constexpr (sizeof element >= 4) {
      const StepVariant gradient = {
          StepKernel::kNormGradient, StepNorm::kNone, StepAngles::kNone, false, StepCodes::kNone, false};
      calls[step_kernel_of(element, gradient)] = call<NormGradientParams>;
    }
    if constexpr (sizeof element == 2) {
      for (const bool is_interleaved : {false, true}) {
        for (const bool has_sums : {false, true}) {
          const StepVariant gradient = {StepKernel::kNormGradientRows,
                                        StepNorm::kNone,
                                        StepAngles::kNone,
                                        is_interleaved,
                                        StepCodes::kNone,
                                        has_sums};
          calls[step_kernel_of(element, gradient)] = call<NormGradientRowParams>;
        }
      }
    }
    const auto add_norms = [&](std::initializer_list<StepNorm> norms, StepKernel kernel, StepCodes codes, bool has_more,
                               Call plain, Call angles, Call table) {
      for (const StepNorm norm : norms) {
        for (const bool is_interleaved : {false, true}) {
          const auto address = [&](StepAngles of) {
            return step_kernel_of(element, {kernel, norm, of, is_interleaved, codes, has_more});
          };
          calls[address(StepAngles::kNone)] = plain;
          calls[address(StepAngles::kComputed)] = angles;
          calls[address(StepAngles::kTable)] = table;
        }
      }
    };
    const auto add_all = [&](StepKernel kernel, StepCodes codes, bool has_more, Call plain, Call angles, Call table) {
      add_norms({StepNorm::kNone, StepNorm::kBefore, StepNorm::kAfter, StepNorm::kOfToken}, kernel, codes, has_more,
                plain, angles, table);
    };
    const auto add_short = [&](auto is_normed, std::initializer_list<StepNorm> norms) {
      using Plain = StepShortHeadParams<decltype(is_normed)::value>;
      using More = StepShortMoreParams<decltype(is_normed)::value>;
      for (const bool has_more : {false, true}) {
        add_norms(norms, StepKernel::kShortMore, StepCodes::kNone, has_more, call<More>,
                  call<WithAngles<More, kMaxShortStepPairs>>, call<WithTable<More>>);
        if constexpr (sizeof element == 2 && decltype(is_normed)::value) {
          add_norms(norms, StepKernel::kShortMore, StepCodes::kStatic, has_more, call<WithCodes<More>>,
                    call<WithCodes<WithAngles<More, kMaxShortStepPairs>>>, call<WithCodes<WithTable<More>>>);
        }
        for (const StepKernel kernel : {StepKernel::kWarp, StepKernel::kShort}) {
          add_norms(norms, kernel, StepCodes::kNone, has_more, call<Plain>, call<WithAngles<Plain, kMaxShortStepPairs>>,
                    call<WithTable<Plain>>);
          if constexpr (sizeof element == 2) {
            add_norms(norms, kernel, StepCodes::kStatic, has_more, call<WithCodes<Plain>>,
                      call<WithCodes<WithAngles<Plain, kMaxShortStepPairs>>>, call<WithCodes<WithTable<Plain>>>);
          }
        }
      }
    };
    add_short(std::false_type(), {StepNorm::kNone});
    add_short(std::true_type(), {StepNorm::kBefore, StepNorm::kAfter, StepNorm::kOfToken});
    const auto add_kind = [&](StepKernel kernel, StepCodes codes, Call plain, Call angles, Call table) {
      for (const bool has_more : {false, true}) add_all(kernel, codes, has_more, plain, angles, table);
    };
    add_kind(StepKernel::kLong, StepCodes::kNone, call<StepLongHeadParams>,
             call<WithAngles<StepLongHeadParams, kMaxLongStepPairs>>, call<StepLongTableParams>);
    add_kind(StepKernel::kShortRows, StepCodes::kNone, call<StepRowParams>,
             call<WithAngles<StepRowParams, kMaxShortStepPairs>>, call<StepRowParams>);
    add_kind(StepKernel::kLongRows, StepCodes::kNone, call<StepRowParams>,
             call<WithAngles<StepRowParams, kMaxLongStepPairs>>, call<StepRowParams>);
    if constexpr (sizeof element == 2) {
      add_kind(StepKernel::kLongRows, StepCodes::kAll, call<StepRowCodeParams>,
               call<WithAngles<StepRowCodeParams, kMaxLongStepPairs>>, call<StepRowCodeParams>);
      add_all(StepKernel::kLong, StepCodes::kStatic, false, call<WithCodes<StepLongHeadParams>>,
              call<WithCodes<WithAngles<StepLongHeadParams, kMaxLongStepPairs>>>, call<WithCodes<StepLongTableParams>>);
      add_norms(
          {StepNorm::kBefore}, StepKernel::kLongWindow, StepCodes::kStatic, false, call<WithWindow<StepLongHeadParams>>,
          call<WithWindow<WithAngles<StepLongHeadParams, kMaxLongStepPairs>>>, call<WithWindow<StepLongTableParams>>);
      for (const StepCodes codes : {StepCodes::kScales, StepCodes::kAll}) {
        add_all(StepKernel::kLong, codes, false, call<WithScales<StepLongHeadParams>>,
                call<WithScales<WithAngles<StepLongHeadParams, kMaxLongStepPairs>>>,
                call<WithScales<StepLongTableParams>>);
      }
    }
  };
  add(float{}), add(Float16{}), add(BFloat16{}), add(double{});
  add_swiglu(&calls);
  calls.erase(nullptr);  // of what there is no kernel for
  return calls;
}

}  // namespace

rope_status_t launch(const char *, const Launch &what, void *params, int32_t, rope_stream_t) {
  static const std::map<const void *, Call> calls = find_calls();
  const Call call_kernel = calls.at(what.kernel);
  simulation::run([&] { call_kernel(what.kernel, params); }, what.grid, what.block, what.shared_bytes);
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
  return run_cuda_step(function, problem, plan, device_index, stream);
}

rope_status_t fill_tables(const char *function, const TableProblem &, const DeviceInfo &, int32_t, rope_stream_t) {
  return refuse(function);
}

const char *describe() {
  return "simulated";
}

}  // namespace

const Backend kCudaBackend = {count_devices, open_rope, open_swiglu, run_rope, fill_tables, run_cuda_swiglu, describe};

}  // namespace rope
