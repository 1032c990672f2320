// step_reader.hpp - validates the fields of a call around the rotation
#pragma once

#include "core/problem/cache_reader.hpp"
#include "core/problem/group_reader.hpp"
#include "core/problem/quant_reader.hpp"

namespace rope {

// Reads the groups of a call one by one into a problem.
class StepReader : private GroupReader {
 public:
  StepReader(const char *function, const RopeGeometry &geometry, Operands *operands)
      : GroupReader(function, geometry, operands),
        cache_(function, geometry, operands),
        quant_(function, geometry, operands) {}

  // Reads the fields before the tensors: flags, and which groups there are.
  rope_status_t begin(const rope_args_t &args, bool is_transposed);

  bool is_present() const { return is_present_; }
  // Called if a tensor alone makes a step of the call, by its width or the type of its output.
  void require() { is_present_ = true; }
  bool is_turned() const { return !is_unrotated_; }
  bool accumulates() const { return accumulates_; }

  TensorUse use_of(TensorName name) const;
  // NULL if there is none.
  const rope_tensor_t *pass_of(TensorName name) const;

  // Fills *step. The tensors, the sequences and the positions of `problem` must have been read.
  rope_status_t read(const RopeProblem &problem, const ReadTensor *tensors, StepProblem *step);

 private:
  rope_status_t check_groups(const rope_args_t &args, bool is_transposed);
  rope_status_t refuse_gradients() const;
  rope_status_t check_input(const rope_args_t &args, bool is_transposed);
  void describe(const RotatedTensor &rotated, const ReadTensor &read, StepTensor *tensor) const;
  rope_status_t read_norm(const StepTarget &target);
  rope_status_t read_channels(const char *field, const rope_tensor_t &given, TensorName name, const StepTarget &target,
                              bool is_bias);
  rope_status_t find_normed(const char *field, TensorName name, const StepTarget &target, bool is_bias,
                            int *index) const;
  rope_status_t read_norm_gradients(const StepTarget &target);
  rope_status_t read_norm_input(const char *field, const rope_tensor_t &given, TensorName name,
                                const StepTarget &target);
  rope_status_t read_sums(const char *field, const rope_tensor_t &given, TensorName name, const StepTarget &target,
                          bool is_bias);
  rope_status_t read_factor(const char *field, const rope_tensor_t &given, TensorName name, const StepTarget &target);

  CacheReader cache_;
  QuantReader quant_;
  bool is_present_ = false;
  bool is_unrotated_ = false;
  bool is_v_unrotated_ = false;
  bool accumulates_ = false;
  const rope_norm_args_t *norm_ = nullptr;
  const rope_input_args_t *input_ = nullptr;
  rope_norm_args_t norm_copy_;  // unset unless a caller's struct has another size
  rope_input_args_t input_copy_;
};

}  // namespace rope
