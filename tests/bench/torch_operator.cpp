// SPDX-License-Identifier: Apache-2.0
// torch_operator.cpp - the comparison for bindings/python/bench.py: librope called by unboxed operators of torch, in
// C++
//
// An operator fills the args of rope_forward or swiglu_forward from its tensors and calls on the current stream,
// without autograd and with no checks but the library's. It shows the minimum cost of a C++ binding of librope and has
// no other use. bench.py compiles it for the torch of its Python; ROPE_BENCH_TORCH is that torch's version. Headers of
// a torch without CUDA suffice: the current stream comes from a function of libtorch_cuda that is looked up at run
// time.

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_like.h>
#include <dlfcn.h>
#include <rope/rope.h>
#include <torch/library.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <tuple>

// bench.py checks this text before it loads the file, because torch's C++ ABI differs between versions.
extern const char rope_bench_torch[];
const char rope_bench_torch[] = "rope_bench for torch " ROPE_BENCH_TORCH ";";

namespace {

struct Library {
  decltype(&rope_forward) forward;
  decltype(&swiglu_forward) gate;
  decltype(&rope_last_error) last_error;
};

Library library;

template <typename Function>
void find(void *handle, const char *name, Function *function_out) {
  *function_out = reinterpret_cast<Function>(dlsym(handle, name));
  TORCH_CHECK(*function_out != nullptr, dlerror());
}

// A descriptor works only with the library that created it, so `file` must be that library.
void open_library(std::string file) {
  void *handle = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  TORCH_CHECK(handle != nullptr, dlerror());
  find(handle, "rope_forward", &library.forward);
  find(handle, "swiglu_forward", &library.gate);
  find(handle, "rope_last_error", &library.last_error);
}

void check(rope_status_t status) {
  TORCH_CHECK(status == ROPE_STATUS_SUCCESS, library.last_error());
}

rope_stream_t current_stream(const at::Tensor &x) {
  using Function = int32_t (*)(int32_t device_index, void **stream_out);
  static const Function function = [] {
    Function found;
    find(dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_NOLOAD), "aoti_torch_get_current_cuda_stream", &found);
    return found;
  }();
  if (!x.is_cuda()) return nullptr;
  void *stream = nullptr;
  TORCH_CHECK(function(x.get_device(), &stream) == 0, "there is no current stream");
  return static_cast<rope_stream_t>(stream);
}

rope_dtype_t dtype_of(const at::Tensor &x) {
  switch (x.scalar_type()) {
    case at::kFloat:
      return ROPE_DTYPE_F32;
    case at::kHalf:
      return ROPE_DTYPE_F16;
    case at::kBFloat16:
      return ROPE_DTYPE_BF16;
    case at::kInt:
      return ROPE_DTYPE_I32;
    case at::kLong:
      return ROPE_DTYPE_I64;
    default:
      TORCH_CHECK(false, "a tensor has dtype ", x.scalar_type());
  }
}

rope_tensor_t view_of(const at::Tensor &x) {
  rope_tensor_t view = ROPE_TENSOR_INIT;
  TORCH_CHECK(x.dim() <= 4, "a tensor has ", x.dim(), " axes");
  view.data = x.data_ptr();
  view.dtype = dtype_of(x);
  view.ndim = static_cast<uint16_t>(x.dim());
  view.flags = ROPE_TENSOR_STRIDED;
  std::copy(x.sizes().begin(), x.sizes().end(), view.shape);
  std::copy(x.strides().begin(), x.strides().end(), view.stride);
  return view;
}

template <typename Descriptor>
const Descriptor *descriptor_at(int64_t address) {
  return reinterpret_cast<const Descriptor *>(address);
}

rope_args_t args_of(const at::Tensor &q, const at::Tensor &k, const at::Tensor &positions) {
  rope_args_t args = ROPE_ARGS_INIT;
  args.q = view_of(q);
  args.k = view_of(k);
  args.positions = view_of(positions);
  return args;
}

void rotate_in_place(int64_t desc, at::Tensor q, at::Tensor k, const at::Tensor &positions) {
  const rope_args_t args = args_of(q, k, positions);
  check(library.forward(descriptor_at<rope_desc_t>(desc), &args, current_stream(q)));
}

std::tuple<at::Tensor, at::Tensor> rotate(int64_t desc, const at::Tensor &q, const at::Tensor &k,
                                          const at::Tensor &positions) {
  at::Tensor q_out = at::empty_like(q), k_out = at::empty_like(k);
  rope_args_t args = args_of(q, k, positions);
  args.q_out = view_of(q_out);
  args.k_out = view_of(k_out);
  check(library.forward(descriptor_at<rope_desc_t>(desc), &args, current_stream(q)));
  return {q_out, k_out};
}

void swiglu_out(int64_t desc, const at::Tensor &gate, const at::Tensor &up, at::Tensor out) {
  swiglu_args_t args = SWIGLU_ARGS_INIT;
  args.gate = view_of(gate);
  args.up = view_of(up);
  args.out = view_of(out);
  check(library.gate(descriptor_at<swiglu_desc_t>(desc), &args, current_stream(gate)));
}

at::Tensor swiglu(int64_t desc, const at::Tensor &gate, const at::Tensor &up) {
  at::Tensor out = at::empty_like(gate);
  swiglu_out(desc, gate, up, out);
  return out;
}

// Makes the C call `count` times: `args` is the address of a rope_args_t of CPU tensors.
void repeat_forward(int64_t desc, int64_t args, int64_t count) {
  for (int64_t i = 0; i < count; ++i)
    check(library.forward(descriptor_at<rope_desc_t>(desc), reinterpret_cast<const rope_args_t *>(args), nullptr));
}

}  // namespace

TORCH_LIBRARY(rope_bench, m) {
  m.def("open_library(str file) -> ()", open_library);
  m.def("repeat_forward(int desc, int args, int count) -> ()", repeat_forward);
  m.def("rotate_(int desc, Tensor(a!) q, Tensor(b!) k, Tensor positions) -> ()");
  m.def("rotate(int desc, Tensor q, Tensor k, Tensor positions) -> (Tensor, Tensor)");
  m.def("swiglu_out(int desc, Tensor gate, Tensor up, Tensor(a!) out) -> ()");
  m.def("swiglu(int desc, Tensor gate, Tensor up) -> Tensor");
}

TORCH_LIBRARY_IMPL(rope_bench, CPU, m) {
  m.impl("rotate_", rotate_in_place);
  m.impl("rotate", rotate);
  m.impl("swiglu_out", swiglu_out);
  m.impl("swiglu", swiglu);
}

TORCH_LIBRARY_IMPL(rope_bench, CUDA, m) {
  m.impl("rotate_", rotate_in_place);
  m.impl("rotate", rotate);
  m.impl("swiglu_out", swiglu_out);
  m.impl("swiglu", swiglu);
}
