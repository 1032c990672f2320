// step_reader.hpp - validates what a call asks for around the rotation
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

// Reads a call's groups one by one into a problem.
class StepReader {
 public:
  StepReader(const char *function, const RopeGeometry &geometry, Operands *operands)
      : function_(function), geometry_(geometry), layout_(axes_of(geometry.layout)), operands_(operands) {}

  // Reads what comes before the tensors: flags, and which groups there are.
  rope_status_t begin(const rope_args_t &args, bool is_transposed);

  bool is_present() const { return is_present_; }
  // Where a tensor alone makes a step of the call: by its width or by the type of its output.
  void require() { is_present_ = true; }
  bool is_turned() const { return !is_unrotated_; }

  TensorUse use_of(TensorName name) const;
  // NULL: absent.
  const rope_tensor_t *pass_of(TensorName name) const;

  // Fills *step once the tensors, the sequences and the positions of `problem` are read.
  rope_status_t read(const RopeProblem &problem, const ReadTensor *tensors, StepProblem *step);

 private:
  rope_status_t check_groups(const rope_args_t &args, bool is_transposed);
  rope_status_t refuse_gradients() const;
  rope_status_t check_cache(const rope_args_t &args);
  rope_status_t check_input(const rope_args_t &args, bool is_transposed);
  rope_status_t check_quant(const rope_args_t &args);
  void describe(const RotatedTensor &rotated, const ReadTensor &read, StepTensor *tensor) const;
  rope_status_t read_norm(const RopeProblem &problem, const ReadTensor *tensors, StepProblem *step);
  rope_status_t read_channels(const char *field, const rope_tensor_t &given, TensorName name,
                              const RopeProblem &problem, const ReadTensor *tensors, StepProblem *step, bool is_bias);
  rope_status_t read_factor(const char *field, const rope_tensor_t &given, TensorName name, const RopeProblem &problem,
                            const ReadTensor *tensors, StepProblem *step);
  // What all operands of a tensor need: that it is there, whose index it gets, and their type F32 or the descriptor's.
  rope_status_t find_tensor(const char *field, TensorName name, const RopeProblem &problem, const ReadTensor *tensors,
                            int *index) const;
  rope_status_t check_number_type(const char *field, const View &view) const;
  rope_status_t read_quant(const RopeProblem &problem, const ReadTensor *tensors, StepProblem *step);
  rope_status_t read_scale(const char *field, const rope_tensor_t &given, TensorName name, const RopeProblem &problem,
                           const ReadTensor *tensors, StepProblem *step);
  rope_status_t read_pass_scale(const RopeProblem &problem, const ReadTensor *tensors, StepProblem *step);
  rope_status_t read_static_scale(const char *field, const rope_tensor_t &given, int64_t heads, const char *written,
                                  StaticScale *scale);
  struct ScaleRows;
  rope_status_t read_written_scales(const RopeProblem &problem, const ReadTensor *tensors, StepProblem *step);
  rope_status_t read_scales_out(const char *field, const rope_tensor_t &given, TensorName name,
                                const RopeProblem &problem, const ReadTensor *tensors, StepProblem *step);
  rope_status_t read_cache_scales(const char *field, const rope_tensor_t &given, const char *beside, TensorName name,
                                  const RopeProblem &problem, const ReadTensor *tensors, StepProblem *step,
                                  bool is_of_pass);
  rope_status_t read_scales(const char *field, const rope_tensor_t &given, const ScaleRows &rows, int64_t channels,
                            WrittenScales *scales);
  rope_status_t read_amax(const RopeProblem &problem, const ReadTensor *tensors, StepProblem *step);
  rope_status_t read_caches(const RopeProblem &problem, const ReadTensor *tensors, StepProblem *step);
  rope_status_t read_cache(const char *field, const rope_tensor_t &given, TensorName name, const RopeProblem &problem,
                           const ReadTensor *tensors, StepProblem *step, const ChannelPart &part, CacheView *cache);
  rope_status_t read_caches_of(TensorName name, const char *field, const rope_tensor_t &given,
                               const rope_tensor_t &pass, const RopeProblem &problem, const ReadTensor *tensors,
                               StepProblem *step);
  rope_status_t read_places(const RopeProblem &problem, CachePlaces *places);
  rope_status_t read_slots(const RopeProblem &problem, CachePlaces *places);
  rope_status_t read_pages(const RopeProblem &problem, CachePlaces *places);
  rope_status_t read_for_each_token(const char *field, const rope_tensor_t &given, const RopeProblem &problem,
                                    TokenIntegers *integers, int64_t *tokens);

  const char *function_;
  const RopeGeometry &geometry_;
  const LayoutAxes &layout_;
  Operands *operands_;
  bool is_present_ = false;
  bool is_unrotated_ = false;
  bool is_v_unrotated_ = false;
  const rope_norm_args_t *norm_ = nullptr;
  const rope_cache_args_t *cache_ = nullptr;
  const rope_quant_args_t *quant_ = nullptr;
  const rope_input_args_t *input_ = nullptr;
  const char *written_[kNumTensorNames] = {};  // a field of scales that are written of each tensor
  const char *pass_written_ = nullptr;         // the field of those of k_pass_cache
  const char *first_cache_ = nullptr;          // the field of the cache that says how many pages and entries there are
  rope_norm_args_t norm_copy_;                 // unset unless a caller's struct has another size
  rope_cache_args_t cache_copy_;
  rope_quant_args_t quant_copy_;
  rope_input_args_t input_copy_;
};

}  // namespace rope
