// swiglu_params.hpp - what a SwiGLU launch passes to its kernel, by value
#pragma once

#include "backend/cuda/kernels/divider.hpp"
#include "core/swiglu_problem.hpp"

namespace rope {

struct SwigluKernelParams {
  const char *in[kMaxSwigluInputs];
  char *out[kMaxSwigluOutputs];
  int64_t in_stride[kMaxSwigluInputs][kMaxAxes];  // in bytes; slowest axis first, unused leading axes have length 1
  int64_t out_stride[kMaxSwigluOutputs][kMaxAxes];
  int64_t shape[kMaxAxes];
  int64_t vectors_per_row;
  int64_t num_vectors;
  Divider narrow_vectors_per_row;  // where is_narrow
  bool is_single_row;
  bool is_narrow;  // num_vectors fits 32 bits
  GatingForm form;
  bool has_outer_axes;  // rows run over more than one axis
};

}  // namespace rope
