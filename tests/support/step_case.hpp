// SPDX-License-Identifier: Apache-2.0
// step_case.hpp - one struct describes a step: norm, rotation, caches; check() solves it everywhere and compares every
// bit
//
//   StepCase step;
//   step.norm = ROPE_NORM_RMS;
//   step.k.heads = 2;
//   step.cache.emplace().slots = {5, 3, 9, -1, 0, 1, 2, 4, 6, 7};
//   step.check();
//
// rope.h determines all results of a step bit for bit, except for cos and sin of computed angles. check() takes these
// from a plain rotation of (1, 0) and compares them with the exact ones. It runs on the CPU with one thread, five and
// all, and on CUDA if there is a device. It compares every element of every destination with the model, every other
// byte with its former value, and the fault words with its own count. It also compares the model of the norm with the
// exact norm.
#ifndef ROPE_TESTS_SUPPORT_STEP_CASE_HPP
#define ROPE_TESTS_SUPPORT_STEP_CASE_HPP

#include <functional>
#include <initializer_list>
#include <optional>
#include <string>
#include <vector>

#include "device.hpp"
#include "tensors.hpp"

enum class StepOut {
  Absent,  // in place, or cached only
  Same,    // the view of the input itself
  Own
};

enum class RowFactor {
  None,
  ByToken,       // [S], THD [T]
  OneBatch,      // [1, S]
  ByBatch,       // [B, S]
  ByHead,        // [B, S, H], THD [T, H]
  OneBatchHeads  // [1, S, H]
};

enum class Scale {
  None,
  One,    // [1]
  ByHead  // [H]
};

// Scales that are written for codes.
struct WrittenScales {
  rope_dtype_t dtype = 0;  // F32 or F8_E8M0; 0: none
  int groups = 1;
  bool is_split = false;   // THD: of an output [.., G/4, 4]
  bool is_inline = false;  // for a cache: behind the codes of each head
  Placement placement;
};

// q, k or v.
struct StepTensor {
  int64_t heads = -1;      // -1: absent
  bool is_window = false;  // the tensor has only the window's R channels
  int32_t width = 0;       // width of v, if v is not turned; 0: head_dim
  StepOut out = StepOut::Absent;
  rope_dtype_t out_dtype = 0;  // 0: the data's type
  Placement in_placement, out_placement;
  bool has_weight = false, has_bias = false;
  bool weight_by_head = false;
  rope_dtype_t weight_dtype = 0;  // for weight and bias; 0: the data's type
  Placement weight_placement;
  RowFactor factor = RowFactor::None;  // THD supports ByToken and ByHead
  rope_dtype_t factor_dtype = 0;       // 0: the data's type
  Placement factor_placement;
  Scale scale = Scale::None;  // static scale for results of 8 bits
  Placement scale_placement;
  WrittenScales out_scales, cache_scales;
  bool has_grad_weight = false, has_grad_bias = false;  // backward with a norm
  bool grads_by_head = false;                           // [N, H, D]; else [N, D]
  int64_t runs = 1;                                     // N
  Placement norm_in_placement, grad_placement;
  bool has_pass = false;  // for q and k: the tensor has the window, and another tensor the channels outside
  Placement pass_placement;
};

enum class CacheStorage {
  Separate,    // placed by k_placement and v_placement
  HeadsFirst,  // [P, H, E, D]
  Stacked,     // k and v in the second axis of [P, 2, E, H, D]
  SideBySide   // k and v in the last axis of [P, H, E, 2 D]
};

// Lists of integers have an entry for each token, b * S + s or t. Those of THD may be shorter.
struct StepCache {
  bool has_k = true, has_v = false;
  rope_dtype_t k_dtype = 0, v_dtype = 0;  // 0: the data's type
  int64_t pages = 3, entries = 4;
  CacheStorage storage = CacheStorage::Separate;  // Stacked and SideBySide need equal heads, channels and types
  Placement k_placement, v_placement;
  bool has_k_pass = false;        // k_cache has the window, another cache the other channels; Separate or HeadsFirst
  rope_dtype_t k_pass_dtype = 0;  // 0: the data's type
  Placement k_pass_placement;
  Scale k_pass_scale = Scale::None;
  bool is_k_scale_in_pass_scale = false;  // k's scale, [1], is the first of k_pass_scale
  WrittenScales k_pass_scales;
  uint32_t flags = 0;
  rope_dtype_t integer_dtype = ROPE_DTYPE_I32;
  Placement integer_placement;
  std::optional<std::vector<int64_t>> slots, sequence, positions;
  std::optional<std::vector<std::vector<int64_t>>> page_table;  // rows of one length
  std::optional<std::vector<int64_t>> page_list, page_indptr;   // replaces page_table
  int64_t table_columns = -1;                                   // columns of a page_table without rows
};

struct StepCase {
  Direction direction = Direction::Forward;  // backward: only with norms and row factors
  rope_dtype_t dtype = ROPE_DTYPE_F32;
  rope_layout_t layout = ROPE_LAYOUT_BSHD;
  rope_style_t style = ROPE_STYLE_HALF, out_style = 0;
  int32_t pair_block = 0;
  int64_t batch = 2, tokens = 5;
  int32_t head_dim = 64, rotary_dim = 0, rotary_offset = 0;
  double theta = 10000, attention_scale = 0;
  int32_t num_axes = 0;
  std::vector<int32_t> pair_axis;
  uint32_t flags = 0;
  bool rounds_each = false;  // ROPE_ROTATION_ROUND_EACH
  StepTensor q, k, v;

  rope_norm_type_t norm = 0;
  int32_t norm_tensors = 0, norm_rounding = 0;
  rope_norm_order_t norm_order = 0;
  rope_norm_extent_t norm_extent = 0;
  double norm_eps = 1e-6, norm_weight_offset = 0;

  // Tables of cos and sin with rows of positions or of tokens. -1: computed angles.
  int64_t table_rows = -1;
  bool table_by_token = false, wide_table = false;
  rope_dtype_t table_dtype = ROPE_DTYPE_F32;
  Placement table_placement;

  // For each axis, batch and token; I64 and [B, S], or THD [T], with a first axis of num_axes if that is above 1.
  std::function<int64_t(int64_t axis, int64_t batch, int64_t token)> positions;
  std::vector<int64_t> start_positions;  // [B]
  int64_t position_offset = 0;
  std::vector<int64_t> cu_seqlens;  // THD

  std::optional<StepCache> cache;
  bool has_fault = false;

  uint32_t quant_flags = 0;
  double scale_floor = 0;
  int32_t quant_rounding = 0;
  bool has_amax = false;
  bool has_odd_scales = false;  // static scales are 0, negative, subnormal, the largest number or NaN

  // The value of each element of q, k and v (tensors 0 to 2) instead of random values.
  std::function<oracle::Real(int tensor, int64_t token_number, int64_t head, int64_t channel)> values;

  std::vector<std::string> *explanations = nullptr;  // receives the texts of rope_explain for check()'s calls on CUDA

  void check() const;
  std::string describe() const;

 private:
  struct Scene;
  struct Expectation;
  template <typename T>
  struct Model;

  int64_t batches() const { return layout == ROPE_LAYOUT_THD ? 1 : batch; }
  int64_t token_count() const { return batches() * tokens; }
  int32_t axes() const { return num_axes ? num_axes : 1; }
  int32_t window() const { return rotary_dim ? rotary_dim : head_dim; }
  rope_style_t written_style() const { return out_style ? out_style : style; }
  const StepTensor &operand(int i) const { return i == 0 ? q : i == 1 ? k : v; }
  bool accumulates() const { return (flags & ROPE_FLAG_ACCUMULATE) != 0; }
  bool is_turned(int i) const;
  bool is_normed(int i) const;
  bool is_norm_gradient(int i) const { return direction == Direction::Backward && is_normed(i); }
  bool is_cached(int i) const { return cache && (i == 1 ? cache->has_k : i == 2 && cache->has_v); }
  int32_t width_of(int i) const;
  int32_t offset_of(int i) const { return operand(i).is_window ? 0 : rotary_offset; }
  Shape shape_of(int i, int32_t channels) const;
  Shape factor_shape(int i) const;
  rope_dtype_t cache_dtype(int i) const;
  bool has_codes(int i) const;
  int32_t cache_width(int i) const { return i == 1 && cache->has_k_pass ? window() : width_of(i); }
  Index index(int64_t batch, int64_t token, int64_t head, int64_t channel) const;
  bool is_absent(int64_t token) const;
  int64_t sequence_of(int64_t batch, int64_t token) const;
  int64_t position_of(int64_t axis, int64_t batch, int64_t token) const;
  bool has_row(int64_t batch, int64_t token) const;
  // The token's place in the cache, page * entries + entry, or none.
  static constexpr int64_t nowhere = -1;
  int64_t slot_of(int64_t batch, int64_t token, bool *is_faulty) const;

  void build(Scene *scene) const;
  void build_norm_gradient(int i, Scene *scene) const;
  void build_cache(Scene *scene) const;
  rope_tensor_t build_cache_tensor(Scene *scene, rope_dtype_t code, int64_t heads, int64_t width, Placement placement,
                                   const WrittenScales &scales, rope_tensor_t *inside) const;
  rope_tensor_t build_scale(Scene *scene, Scale scale, int64_t heads, const Placement &placement) const;
  void build_quant(Scene *scene) const;
  void build_scales(Scene *scene) const;
  void fill_operand(int i, Scene *scene) const;
  rope_config_t config(const Device &device, int32_t threads) const;
  void verify(Scene *scene) const;
};

// Checks that explanations name each of these kernels, if there is a device that has them.
void check_step_kernels(const std::vector<std::string> &explanations, std::initializer_list<const char *> kernels);

#endif
