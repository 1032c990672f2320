// SPDX-License-Identifier: Apache-2.0
// group_reader.hpp - the parts that the readers of a call's groups (norm, cache, quant, input) have in common
#pragma once

#include "core/problem/operands.hpp"
#include "core/problem/rope_layout.hpp"
#include "core/problem/step_problem.hpp"

namespace rope {

enum TensorName {
  kQ,
  kK,
  kV,
  kNumTensorNames
};

constexpr const char *kTensorNames[kNumTensorNames] = {"q", "k", "v"};

// The operations of a call on q, k or v.
struct TensorUse {
  bool is_turned;
  bool has_styles;  // its pairs move to out_style, if that is another one than style
  bool is_normed;
  bool is_cached;
  bool has_factor;

  bool changes_all_channels() const { return is_normed || has_factor; }
};

// A tensor after reading, in the order of RopeProblem::tensor.
struct ReadTensor {
  TensorName name;
  TensorUse use;
  int channels;
  rope_dtype_t out_dtype;
  bool is_written;
  PassSide pass;
};

// A call after its tensors, sequences and positions have been read, and the step that receives its groups.
struct GroupTarget {
  const RopeProblem &problem;
  const ReadTensor *tensors;
  StepProblem *step;

  // The index of a tensor in the problem, or -1 if it is absent.
  int index_of(TensorName name) const;
};

struct GivenTensor {
  const char *field;
  const rope_tensor_t &tensor;
};

// The field name of the first tensor that is set, or NULL if none is.
template <size_t kCount>
const char *first_set(const GivenTensor (&list)[kCount]) {
  for (const GivenTensor &given : list) {
    if (!is_zeroed(given.tensor)) return given.field;
  }
  return nullptr;
}

// Reads the tensors of a group into the step.
class GroupReader {
 protected:
  GroupReader(const char *function, const RopeGeometry &geometry, Operands *operands)
      : function_(function), geometry_(geometry), layout_(axes_of(geometry.layout)), operands_(operands) {}

  // Checks that the tensor of an operand is present and that the operand's type is F32 or the descriptor's; returns the
  // tensor's index.
  rope_status_t find_tensor(const char *field, TensorName name, const GroupTarget &target, int *index) const;
  rope_status_t check_number_type(const char *field, const View &view) const;

  const char *function_;
  const RopeGeometry &geometry_;
  const LayoutAxes &layout_;
  Operands *operands_;
};

}  // namespace rope
