// SPDX-License-Identifier: Apache-2.0
// gpu_gemm.cpp - see gpu_gemm.hpp
#include "gpu_gemm.hpp"

#include <dlfcn.h>

#include <stdexcept>
#include <string>

#include "gpu_timer.hpp"
#include "memory.hpp"
#include "prepared_case.hpp"

#if __has_include(<cublas_v2.h>)
#include <cublas_v2.h>
#endif

namespace bench {

#if __has_include(<cublas_v2.h>)

namespace {

constexpr int kInputs = 4096, kOutputs = 6144;
// NVIDIA's advice for Hopper; cuBLAS's own workspace could not be captured
constexpr size_t kWorkspaceBytes = size_t{32} << 20;

void check(cublasStatus_t status, const char *what) {
  if (status != CUBLAS_STATUS_SUCCESS) {
    throw std::runtime_error(std::string(what) + " failed with status " + std::to_string(static_cast<int>(status)));
  }
}

}  // namespace

// Loaded at run time: if it were linked, the program would not start without cuBLAS.
struct Gemm::Library {
  Library() {
    const std::string versioned = "libcublas.so." + std::to_string(CUBLAS_VER_MAJOR);
    file = dlopen(versioned.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (file == nullptr) throw NotServed(std::string("no cuBLAS: ") + dlerror());
    find("cublasCreate_v2", &create);
    find("cublasDestroy_v2", &destroy);
    find("cublasSetStream_v2", &set_stream);
    find("cublasSetWorkspace_v2", &set_workspace);
    find("cublasGemmEx", &gemm);
    check(create(&handle), "cublasCreate");
  }
  ~Library() { destroy(handle); }  // the file is not closed: CUDA libraries must stay loaded

  template <typename Function>
  void find(const char *name, Function **function) {
    *function = reinterpret_cast<Function *>(dlsym(file, name));
    if (*function == nullptr) throw NotServed(std::string("this cuBLAS has no ") + name);
  }

  void *file;
  decltype(cublasCreate_v2) *create;
  decltype(cublasDestroy_v2) *destroy;
  decltype(cublasSetStream_v2) *set_stream;
  decltype(cublasSetWorkspace_v2) *set_workspace;
  // Its declaration is overloaded in C++.
  cublasStatus_t (*gemm)(cublasHandle_t, cublasOperation_t, cublasOperation_t, int, int, int, const void *,
                         const void *, cudaDataType, int, const void *, cudaDataType, int, const void *, void *,
                         cudaDataType, int, cublasComputeType_t, cublasGemmAlgo_t);
  cublasHandle_t handle;
};

Gemm::Gemm(int tokens, Memory &memory) : library_(new Library), tokens_(tokens) {
  const auto allocate = [&](int rows, int columns) {
    const size_t bytes = sizeof(uint16_t) * static_cast<size_t>(rows) * static_cast<size_t>(columns);
    char *const data = memory.allocate(bytes);
    memory.fill(data, bytes, ROPE_DTYPE_BF16);
    return data;
  };
  weights_ = allocate(kInputs, kOutputs);
  in_ = allocate(tokens, kInputs);
  out_ = allocate(tokens, kOutputs);
  workspace_ = memory.allocate(kWorkspaceBytes);
}

Gemm::~Gemm() = default;

void Gemm::enqueue(rope_stream_t stream) const {
  const float one = 1, zero = 0;
  check(library_->set_stream(library_->handle, stream), "cublasSetStream");
  check(library_->set_workspace(library_->handle, workspace_, kWorkspaceBytes), "cublasSetWorkspace");
  check(library_->gemm(library_->handle, CUBLAS_OP_T, CUBLAS_OP_N, kOutputs, tokens_, kInputs, &one, weights_,
                       CUDA_R_16BF, kInputs, in_, CUDA_R_16BF, kInputs, &zero, out_, CUDA_R_16BF, kOutputs,
                       CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
        "cublasGemmEx");
}

#else

struct Gemm::Library {};

Gemm::Gemm(int, Memory &) {
  throw NotServed("built without cuBLAS");
}

Gemm::~Gemm() = default;

void Gemm::enqueue(rope_stream_t) const {}

#endif

}  // namespace bench
