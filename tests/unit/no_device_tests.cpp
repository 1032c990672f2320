// SPDX-License-Identifier: Apache-2.0
// no_device_tests.cpp - the reasons for the absence of a CUDA device, in librope's own words
#include <catch2/catch_test_macros.hpp>
#include <string>

#include "backend/cuda/device_cache.hpp"

namespace {

bool says(const char *text) {
  return std::string(rope::last_error()).find(text) != std::string::npos;
}

}  // namespace

TEST_CASE("no driver, an old driver, no visible device and other failures are told apart", "[no_device]") {
  CHECK(rope::explain_no_device("f", cudaErrorInsufficientDriver, 0, nullptr) == ROPE_STATUS_NO_DEVICE);
  CHECK(says("f: no NVIDIA driver"));

  CHECK(rope::explain_no_device("f", cudaErrorStubLibrary, 0, nullptr) == ROPE_STATUS_NO_DEVICE);
  CHECK(says("f: no NVIDIA driver"));
  CHECK(says("stub"));

  CHECK(rope::explain_no_device("f", cudaErrorInsufficientDriver, 12040, nullptr) == ROPE_STATUS_NO_DEVICE);
  CHECK(says("too old"));
  CHECK(says("CUDA 12.4"));
  const std::string built =
      "CUDA " + std::to_string(CUDART_VERSION / 1000) + "." + std::to_string(CUDART_VERSION % 1000 / 10);
  CHECK(says(built.c_str()));
  CHECK(says(CUDART_VERSION < 13000 ? "needs 12.1 or later" : "needs 13.0 or later"));
  std::string compatibility = "package cuda-compat-" + built.substr(5);
  compatibility[compatibility.rfind('.')] = '-';
  CHECK(says(compatibility.c_str()));

  CHECK(rope::explain_no_device("f", cudaErrorNoDevice, 13000, "7") == ROPE_STATUS_NO_DEVICE);
  CHECK(says("no CUDA device is visible"));
  CHECK(says("CUDA_VISIBLE_DEVICES is 7"));
  CHECK(rope::explain_no_device("f", cudaSuccess, 13000, nullptr) == ROPE_STATUS_NO_DEVICE);
  CHECK(says("CUDA_VISIBLE_DEVICES is not set"));

  CHECK(rope::explain_no_device("f", cudaErrorSystemNotReady, 13000, nullptr) == ROPE_STATUS_CUDA_ERROR);
  CHECK(says("cudaErrorSystemNotReady"));
}

TEST_CASE("a GPU that no kernel was built for is named, with what was built", "[no_device]") {
  rope::DeviceInfo volta = {};
  volta.is_cuda = true;
  volta.compute_capability = 70;
  for (const cudaError_t error : {cudaErrorNoKernelImageForDevice, cudaErrorInvalidDeviceFunction}) {
    CHECK(rope::fail_cuda("f", "loading a kernel", error, volta) == ROPE_STATUS_NO_DEVICE);
    CHECK(says("sm_70"));
    CHECK((says("built for sm_") || says("built for compute_")));
  }
  CHECK(rope::fail_cuda("f", "cuLaunchKernelEx", cudaErrorInvalidResourceHandle, volta) == ROPE_STATUS_CUDA_ERROR);
  CHECK(says("cuLaunchKernelEx"));
  CHECK(says("cudaErrorInvalidResourceHandle"));
}

TEST_CASE("the driver's errors have the numbers of the runtime's", "[no_device]") {
  const struct {
    CUresult driver;
    cudaError_t runtime;
  } pairs[] = {
      {CUDA_SUCCESS, cudaSuccess},
      {CUDA_ERROR_INVALID_VALUE, cudaErrorInvalidValue},
      {CUDA_ERROR_OUT_OF_MEMORY, cudaErrorMemoryAllocation},
      {CUDA_ERROR_NOT_INITIALIZED, cudaErrorInitializationError},
      {CUDA_ERROR_DEINITIALIZED, cudaErrorCudartUnloading},
      {CUDA_ERROR_DEVICE_UNAVAILABLE, cudaErrorDevicesUnavailable},
      {CUDA_ERROR_INVALID_IMAGE, cudaErrorInvalidKernelImage},
      {CUDA_ERROR_INVALID_CONTEXT, cudaErrorDeviceUninitialized},
      {CUDA_ERROR_NO_BINARY_FOR_GPU, cudaErrorNoKernelImageForDevice},
      {CUDA_ERROR_ECC_UNCORRECTABLE, cudaErrorECCUncorrectable},
      {CUDA_ERROR_INVALID_PTX, cudaErrorInvalidPtx},
      {CUDA_ERROR_UNSUPPORTED_PTX_VERSION, cudaErrorUnsupportedPtxVersion},
      {CUDA_ERROR_INVALID_HANDLE, cudaErrorInvalidResourceHandle},
      {CUDA_ERROR_NOT_FOUND, cudaErrorSymbolNotFound},
      {CUDA_ERROR_ILLEGAL_ADDRESS, cudaErrorIllegalAddress},
      {CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, cudaErrorLaunchOutOfResources},
      {CUDA_ERROR_LAUNCH_TIMEOUT, cudaErrorLaunchTimeout},
      {CUDA_ERROR_CONTEXT_IS_DESTROYED, cudaErrorContextIsDestroyed},
      {CUDA_ERROR_MISALIGNED_ADDRESS, cudaErrorMisalignedAddress},
      {CUDA_ERROR_LAUNCH_FAILED, cudaErrorLaunchFailure},
      {CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cudaErrorStreamCaptureUnsupported},
      {CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cudaErrorStreamCaptureInvalidated},
      {CUDA_ERROR_STREAM_CAPTURE_ISOLATION, cudaErrorStreamCaptureIsolation},
      {CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, cudaErrorStreamCaptureImplicit},
      {CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD, cudaErrorStreamCaptureWrongThread},
      {CUDA_ERROR_UNKNOWN, cudaErrorUnknown},
  };
  for (const auto &pair : pairs) {
    INFO(cudaGetErrorName(pair.runtime));
    CHECK(static_cast<int>(pair.driver) == static_cast<int>(pair.runtime));
  }
}
