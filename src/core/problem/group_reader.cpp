// SPDX-License-Identifier: Apache-2.0
// group_reader.cpp - the parts that the readers of a call's groups have in common
#include "core/problem/group_reader.hpp"

namespace rope {

namespace {

constexpr rope_status_t kInvalid = ROPE_STATUS_INVALID_ARGUMENT;

}  // namespace

int GroupTarget::index_of(TensorName name) const {
  for (int i = 0; i < problem.num_tensors; ++i) {
    if (tensors[i].name == name) return i;
  }
  return -1;
}

rope_status_t GroupReader::find_tensor(const char *field, TensorName name, const GroupTarget &target,
                                       int *index) const {
  *index = target.index_of(name);
  if (*index >= 0) return ROPE_STATUS_SUCCESS;
  return fail(kInvalid, "%s: %s is set but %s is absent: it needs its tensor", function_, field, kTensorNames[name]);
}

rope_status_t GroupReader::check_number_type(const char *field, const View &view) const {
  if (view.dtype == ROPE_DTYPE_F32 || view.dtype == geometry_.dtype) return ROPE_STATUS_SUCCESS;
  return fail(kInvalid, "%s: %s.dtype is %s: it must be F32 or the descriptor's, %s", function_, field,
              dtype_name(view.dtype), dtype_name(geometry_.dtype));
}

}  // namespace rope
