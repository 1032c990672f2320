// group_reader.hpp - what the readers of a call's groups (norm, cache, quant, input) share
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

// What a call does with q, k or v.
struct TensorUse {
  bool is_turned;
  bool has_styles;  // pairs move from the style that is read to the one that is written
  bool is_normed;
  bool is_cached;
  bool has_factor;

  bool changes_all_channels() const { return is_normed || has_factor; }
};

// A tensor that was read, in the order of RopeProblem's.
struct ReadTensor {
  TensorName name;
  TensorUse use;
  int channels;
  rope_dtype_t out_dtype;
  bool is_written;
  PassSide pass;
};

// A call whose tensors, sequences and positions are read, and the step that its groups are read into.
struct StepTarget {
  const RopeProblem &problem;
  const ReadTensor *tensors;
  StepProblem *step;

  // The index of a tensor in the problem; -1: it is absent.
  int index_of(TensorName name) const;
};

struct GivenTensor {
  const char *field;
  const rope_tensor_t &tensor;
};

// The field of the first that is set; NULL: none is.
template <size_t kCount>
const char *first_set(const GivenTensor (&list)[kCount]) {
  for (const GivenTensor &given : list) {
    if (!is_zeroed(given.tensor)) return given.field;
  }
  return nullptr;
}

// Reads the tensors of a group, each into its place of the step.
class GroupReader {
 protected:
  GroupReader(const char *function, const RopeGeometry &geometry, Operands *operands)
      : function_(function), geometry_(geometry), layout_(axes_of(geometry.layout)), operands_(operands) {}

  // What all operands of a tensor need: that it is there, whose index it gets, and their type F32 or the descriptor's.
  rope_status_t find_tensor(const char *field, TensorName name, const StepTarget &target, int *index) const;
  rope_status_t check_number_type(const char *field, const View &view) const;

  const char *function_;
  const RopeGeometry &geometry_;
  const LayoutAxes &layout_;
  Operands *operands_;
};

}  // namespace rope
