// SPDX-License-Identifier: Apache-2.0
// step_reader.hpp - validates the part of a call around the rotation: its flags and groups (norm, cache, quant, input)
#pragma once

#include "core/problem/cache_reader.hpp"
#include "core/problem/group_reader.hpp"
#include "core/problem/quant_reader.hpp"

namespace rope {

// Reads the groups of a call into a StepProblem. begin() runs first. Then the caller reads q, k and v, with the help of
// use_of() and pass_of(), the sequences and the positions; read() runs after that.
class StepReader : private GroupReader {
 public:
  StepReader(const char *function, const RopeGeometry &geometry, Operands *operands)
      : GroupReader(function, geometry, operands),
        cache_(function, geometry, operands),
        quant_(function, geometry, operands) {}

  // Reads the flags, imports the groups and refuses those that the call cannot have. is_transposed: rope_backward.
  rope_status_t begin(const rope_args_t &args, bool is_transposed);

  // Whether the call is a step.
  bool is_present() const { return is_present_; }
  // Makes the call a step: a tensor's width is not head_dim, or the type of its output is not the descriptor's.
  void require() { is_present_ = true; }
  // False: ROPE_FLAG_UNROTATED is set, no tensor is rotated.
  bool is_turned() const { return !is_unrotated_; }
  bool accumulates() const { return accumulates_; }

  TensorUse use_of(TensorName name) const;
  // q_pass or k_pass of `input`; NULL if it is absent, and for v.
  const rope_tensor_t *pass_of(TensorName name) const;

  // Fills *step. The tensors, the sequences and the positions of `problem` must have been read. `tensors` has an entry
  // for each tensor of `problem`.
  rope_status_t read(const RopeProblem &problem, const ReadTensor *tensors, StepProblem *step);

 private:
  rope_status_t check_groups(const rope_args_t &args, bool is_transposed);
  rope_status_t refuse_gradients() const;
  rope_status_t check_input(const rope_args_t &args, bool is_transposed);
  void describe(const RotatedTensor &rotated, const ReadTensor &read, StepTensor *tensor) const;
  rope_status_t read_norm(const GroupTarget &target);
  rope_status_t read_norm_gradients(const GroupTarget &target);
  rope_status_t read_norm_input(const char *field, const rope_tensor_t &given, TensorName name,
                                const GroupTarget &target);
  rope_status_t read_sums(const char *field, const rope_tensor_t &given, TensorName name, const GroupTarget &target,
                          bool is_bias);
  rope_status_t find_normed(const char *field, TensorName name, const GroupTarget &target, bool is_bias,
                            int *index) const;
  rope_status_t read_channels(const char *field, const rope_tensor_t &given, TensorName name, const GroupTarget &target,
                              bool is_bias);
  rope_status_t read_factor(const char *field, const rope_tensor_t &given, TensorName name, const GroupTarget &target);

  CacheReader cache_;
  QuantReader quant_;
  bool is_present_ = false;
  bool is_unrotated_ = false;
  bool is_v_unrotated_ = false;  // by either flag
  bool accumulates_ = false;
  const rope_norm_args_t *norm_ = nullptr;
  const rope_input_args_t *input_ = nullptr;
  // Copies of groups whose structs have another size or are not aligned; otherwise unset.
  rope_norm_args_t norm_copy_;
  rope_input_args_t input_copy_;
};

}  // namespace rope
