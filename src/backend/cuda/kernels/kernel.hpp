// SPDX-License-Identifier: Apache-2.0
// kernel.hpp - a kernel together with the type of its params, so that a launch passes no others
#pragma once

#include <stddef.h>
#include <stdint.h>

#include <type_traits>

namespace rope {

// Params of more than 4096 bytes need CUDA 12.1 and driver 530, which accept 32 764.
constexpr size_t kMaxParamsBytes = 8192;

struct ParamsType {
  uint32_t bytes;
};

// There is one object for each type: their addresses are compared.
template <typename Params>
inline constexpr ParamsType kParamsType = {sizeof(Params)};

struct Kernel {
  const void *address;  // NULL: there is none
  const ParamsType *params;
};

// `function` is run on a device. Params are its only argument.
template <typename Params>
Kernel kernel_of(void (*function)(Params)) {
  static_assert(sizeof(Params) <= kMaxParamsBytes, "");
  static_assert(std::is_trivially_copyable<Params>::value, "");
  return {reinterpret_cast<const void *>(function), &kParamsType<Params>};
}

// A function that is called with one kernel after another.
struct KernelVisitor {
  void (*visit)(void *owner, const Kernel &kernel);
  void *owner;

  void operator()(const Kernel &kernel) const {
    if (kernel.address != nullptr) visit(owner, kernel);
  }
};

}  // namespace rope
