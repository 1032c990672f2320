// SPDX-License-Identifier: Apache-2.0
// step_fuzz.cpp - fuzzes steps: norms, caches, tensors that are not turned, row factors, outputs and caches of 16 and 8
// bits
//
// Like rope_fuzz.cpp it builds mostly valid requests with some false statements, in memory of exactly the stated size.
// The tests check values (tests/support/step_case.hpp). This program checks refusals, and that a call writes only
// outputs, caches, scales, amax and the fault words, whatever slots and page tables hold.
#include <algorithm>
#include <string>
#include <vector>

#include "core/problem/import.hpp"
#include "core/problem/rope_problem.hpp"
#include "core/problem/step_problem.hpp"
#include "memory.hpp"
#include "plan/rope_plan.hpp"

namespace {

const rope_dtype_t floats[] = {ROPE_DTYPE_F32, ROPE_DTYPE_F16, ROPE_DTYPE_BF16, ROPE_DTYPE_F64};
constexpr rope::DeviceInfo gpus[] = {{true, 0, 132, 90, 6016}, {true, 0, 1, 75, 0}};

rope_config_t draw_config(Input *input) {
  rope_config_t config = {};
  config.struct_size = sizeof config;
  config.device = ROPE_DEVICE_CPU;
  config.dtype = floats[input->below(4)];
  config.layout = static_cast<rope_layout_t>(input->between(ROPE_LAYOUT_BSHD, ROPE_LAYOUT_THD));
  config.style = static_cast<rope_style_t>(input->between(ROPE_STYLE_HALF, ROPE_STYLE_INTERLEAVED));
  config.out_style = static_cast<rope_style_t>(input->chance(30) ? input->between(1, 2) : 0);
  config.head_dim =
      static_cast<int32_t>(input->chance(10) ? input->one_of({64, 128, 256, 576, 1024}) : 2 * input->between(1, 12));
  if (input->chance(40)) {
    config.rotary_dim = static_cast<int32_t>(2 * input->between(1, config.head_dim / 2));
    config.rotary_offset = static_cast<int32_t>(input->below(config.head_dim - config.rotary_dim + 1));
  }
  config.theta = input->one_of({10000.0, 5e5, 0.0});
  config.num_axes = static_cast<int32_t>(input->one_of({0, 0, 0, 0, 2}));
  config.num_threads = static_cast<int32_t>(input->between(1, 4));
  if (input->chance(60)) {
    config.norm = static_cast<rope_norm_type_t>(input->between(1, 2));
    config.norm_tensors = static_cast<int32_t>(input->below(8));
    config.norm_order = static_cast<rope_norm_order_t>(input->below(2));
    config.norm_extent = static_cast<rope_norm_extent_t>(input->below(2));
    config.norm_rounding = static_cast<int32_t>(input->below(4));
    config.norm_eps = input->one_of({1e-6, 1e-5, 1e-30});
    config.norm_weight_offset = input->one_of({0.0, 1.0, -0.5});
  }
  if (input->chance(10)) config.rotation_rounding = static_cast<int32_t>(input->one_of({1, 1, 1, 2, -1}));
  if (input->chance(20)) config.quant_rounding = static_cast<int32_t>(input->one_of({1, 1, 1, 2, 3}));
  input->lie(&config);
  config.inv_freq = nullptr;
  config.pair_axis = nullptr;
  return config;
}

struct Member {
  const char *name;
  rope_tensor_t *tensor;
};

class Request {
 public:
  Request(Input *input, const rope_config_t &config) : in_(*input), config_(config), memory_(1 + input->raw(1)) {
    args_.struct_size = sizeof args_;
    norm_.struct_size = sizeof norm_;
    cache_.struct_size = sizeof cache_;
    quant_.struct_size = sizeof quant_;
    input_.struct_size = sizeof input_;
    batches_ = is_thd() ? 1 : in_.length(in_.one_of<int64_t>({1, 2, 3, 0}));
    tokens_ = in_.length(in_.one_of<int64_t>({1, 2, 3, 4, 5, 6, 7, 0}));
    draw_tensors();
    draw_angles();
    if (config.norm != 0 ? !in_.chance(3) : in_.chance(3)) draw_norm();
    const bool has_gradients = has_norm_ && in_.chance(25);
    if (has_gradients) draw_norm_gradients();
    if (in_.chance(has_gradients ? 3 : 70)) draw_cache();
    if (in_.chance(40)) set(&args_.fault, ROPE_DTYPE_I64, {2}, false);
    draw_codes();
    if (in_.chance(30)) draw_input();
    if (in_.chance(8)) {
      rope_tensor_t &tensor = *members_[in_.below(static_cast<int64_t>(members_.size()))].tensor;
      if (tensor.ndim != 0) tensor.shape[in_.below(tensor.ndim)] += in_.one_of({-1, 1, 2, -2});
    }
    in_.lie(&args_);
    in_.lie(&norm_);
    in_.lie(&cache_);
    in_.lie(&quant_);
    in_.lie(&input_);
    place();
    is_small_ = memory_.allocate();
    if (is_small_) fill();
    memory_.freeze();
  }

  void run(const rope_desc_t *desc) {
    const StructBytes norm_bytes(&in_, &norm_, rope::kRopeNormArgsFirstSize, sizeof norm_);
    const StructBytes cache_bytes(&in_, &cache_, rope::kRopeCacheArgsFirstSize, sizeof cache_);
    args_.norm = has_norm_ ? norm_bytes.as<rope_norm_args_t>() : nullptr;
    const StructBytes quant_bytes(&in_, &quant_, rope::kRopeQuantArgsFirstSize, sizeof quant_);
    const StructBytes input_bytes(&in_, &input_, rope::kRopeInputArgsFirstSize, sizeof input_);
    args_.cache = has_cache_ ? cache_bytes.as<rope_cache_args_t>() : nullptr;
    args_.quant = has_quant_ ? quant_bytes.as<rope_quant_args_t>() : nullptr;
    args_.input = has_input_ ? input_bytes.as<rope_input_args_t>() : nullptr;
    const StructBytes bytes(&in_, &args_, rope::kRopeArgsFirstSize, sizeof args_);
    const auto *args = bytes.as<rope_args_t>();
    // Bytes in the form of an older header have no groups.
    if (args_.norm == nullptr) norm_ = {};
    if (args_.cache == nullptr) cache_ = {};
    if (args_.quant == nullptr) quant_ = {};
    if (args_.input == nullptr) input_ = {};
    char text[256];
    const Call call("rope_explain");
    const bool is_served = call.returned(rope_explain(desc, args, text, sizeof text));
    if (is_served) {
      expect(quant_.flags <= 3 && quant_.scale_floor >= 0, "served a flag or a floor that is none");
      expect((quant_.flags <= 1 && quant_.scale_floor == 0) || has_written_scales(),
             "served scales that are not written");
      expect(args_.flags < 2 * ROPE_FLAG_ACCUMULATE, "served flags");
      expect((args_.norm != nullptr) == (config_.norm != 0), "served a norm by halves");
      plan();
    } else if (is_small_) {
      check_refusal();
    }
    if (is_served && !is_small_) return;
    for (const bool is_forward : {true, false}) {
      const char *function = is_forward ? "rope_forward" : "rope_backward";
      memory_.restore();
      const Call run(function);
      const bool ran =
          run.returned(is_forward ? rope_forward(desc, args, nullptr) : rope_backward(desc, args, nullptr));
      const bool is_of_forward = args_.cache != nullptr || args_.quant != nullptr || has_code_outputs() ||
                                 (args_.input != nullptr && (input_.q_pass.ndim != 0 || input_.k_pass.ndim != 0));
      // Without inputs of a norm backward runs if it norms no tensor of the call.
      const bool may_need_inputs = !is_forward && args_.norm != nullptr && !is_of_backward();
      if (is_forward ? is_of_backward() : is_of_forward) {
        expect(!ran, "a direction served what the other one does alone");
      } else if (!may_need_inputs) {
        expect(ran == is_served, "explain and a call disagree");
      }
      if (ran) verify();
      memory_.expect_no_other_change(function);
    }
  }

 private:
  bool is_thd() const { return config_.layout == ROPE_LAYOUT_THD; }
  bool accumulates() const { return (args_.flags & ROPE_FLAG_ACCUMULATE) != 0; }
  // Checks rope_explain for this call.
  bool is_of_backward() const {
    return accumulates() ||
           (args_.norm != nullptr && (norm_.q_in.ndim != 0 || norm_.k_in.ndim != 0 || norm_.v_in.ndim != 0));
  }
  int32_t window() const { return config_.rotary_dim != 0 ? config_.rotary_dim : config_.head_dim; }
  rope_dtype_t integers() { return in_.chance(40) ? ROPE_DTYPE_I64 : ROPE_DTYPE_I32; }

  void set(rope_tensor_t *tensor, rope_dtype_t dtype, std::initializer_list<int64_t> shape, bool is_input) {
    tensor->dtype = dtype;
    tensor->ndim = static_cast<uint16_t>(shape.size());
    std::copy(shape.begin(), shape.end(), tensor->shape);
    draw_strides(&in_, tensor, is_input);
  }

  void draw_tensors() {
    args_.flags = static_cast<uint32_t>(in_.one_of({4, 4, 2, 0, 6, 5, 1, 8, 12}));
    rope_tensor_t *const tensors[3][2] = {{&args_.q, &args_.q_out}, {&args_.k, &args_.k_out}, {&args_.v, &args_.v_out}};
    for (int i = 0; i < 3; ++i) {
      if (in_.chance(25)) continue;
      heads_[i] = in_.length(in_.one_of<int64_t>({1, 2, 3, 0}));
      widths_[i] = in_.chance(20) ? window() : i == 2 && in_.chance(30) ? in_.between(1, 40) : config_.head_dim;
      rope_tensor_t *const tensor = tensors[i][0];
      const bool has_others = window() < config_.head_dim && widths_[i] == config_.head_dim;
      if (i < 2 && has_others && in_.chance(30)) {
        draw_parts(i, tensor, tensors[i][1]);
        continue;
      }
      set_rows(tensor, config_.dtype, i, true);
      if (!in_.chance(accumulates() ? 97 : 50)) continue;
      if (in_.chance(accumulates() ? 3 : 50)) {
        *tensors[i][1] = *tensor;
      } else {
        const bool is_narrow = config_.dtype == ROPE_DTYPE_F32 && in_.chance(40);
        set_rows(tensors[i][1], is_narrow ? floats[in_.between(1, 2)] : config_.dtype, i, false);
      }
    }
  }

  // One tensor has the window, another the other channels.
  void draw_parts(int i, rope_tensor_t *tensor, rope_tensor_t *out) {
    has_input_ = true;
    if (in_.chance(i == 0 ? 95 : 50)) set_rows(out, config_.dtype, i, false);
    widths_[i] = window();
    set_rows(tensor, config_.dtype, i, true);
    widths_[i] = config_.head_dim - window();
    set_rows(i == 0 ? &input_.q_pass : &input_.k_pass, config_.dtype, i, true);
    widths_[i] = config_.head_dim;
  }

  void set_rows(rope_tensor_t *tensor, rope_dtype_t dtype, int i, bool is_input) {
    switch (config_.layout) {
      case ROPE_LAYOUT_SBHD:
        return set(tensor, dtype, {tokens_, batches_, heads_[i], widths_[i]}, is_input);
      case ROPE_LAYOUT_BHSD:
        return set(tensor, dtype, {batches_, heads_[i], tokens_, widths_[i]}, is_input);
      case ROPE_LAYOUT_THD:
        return set(tensor, dtype, {tokens_, heads_[i], widths_[i]}, is_input);
      default:
        return set(tensor, dtype, {batches_, tokens_, heads_[i], widths_[i]}, is_input);
    }
  }

  void draw_angles() {
    if (is_thd() && in_.chance(50)) {
      sequences_ = in_.between(0, 4);
      set(&args_.cu_seqlens, integers(), {sequences_ + 1}, true);
    }
    const bool has_axes = config_.num_axes > 1;
    if (in_.chance(50)) {
      const int64_t batches = in_.chance(25) ? 1 : batches_;
      if (has_axes) {
        set(&args_.positions, integers(), {config_.num_axes, batches, tokens_}, true);
      } else {
        set(&args_.positions, integers(), {batches, tokens_}, true);
      }
    }
    if (in_.chance(20)) args_.position_offset = in_.chance(50) ? in_.between(-4, 20) : in_.integer();
    if (!in_.chance((args_.flags & ROPE_FLAG_UNROTATED) != 0 ? 5 : 40)) return;
    const bool by_token = in_.chance(30);
    if (by_token) {
      args_.table_rows = ROPE_TABLE_BY_TOKEN;
      args_.positions = {};
      args_.position_offset = 0;
    }
    const int64_t rows = by_token ? tokens_ : in_.length(in_.between(0, 9)), columns = window() / 2;
    for (rope_tensor_t *table : {&args_.cos, &args_.sin}) {
      if (by_token && has_axes) {
        set(table, ROPE_DTYPE_F32, {config_.num_axes, rows, columns}, true);
      } else {
        set(table, ROPE_DTYPE_F32, {rows, columns}, true);
      }
    }
  }

  void draw_norm() {
    has_norm_ = true;
    const bool has_bias = config_.norm == ROPE_NORM_LAYER || in_.chance(3);
    const int32_t bits = config_.norm_tensors != 0 ? config_.norm_tensors : 3;
    rope_tensor_t *const tensors[2][2] = {{&norm_.q_weight, &norm_.q_bias}, {&norm_.k_weight, &norm_.k_bias}};
    for (int i = 0; i < 2; ++i) {
      if ((heads_[i] < 0 || (bits >> i & 1) == 0) && !in_.chance(3)) continue;
      for (int bias = 0; bias < (has_bias ? 2 : 1); ++bias) {
        if (in_.chance(30)) continue;
        const rope_dtype_t dtype = in_.chance(50) ? ROPE_DTYPE_F32 : config_.dtype;
        if (in_.chance(40)) {
          set(tensors[i][bias], dtype, {heads_[i], widths_[i]}, true);
        } else {
          set(tensors[i][bias], dtype, {widths_[i]}, true);
        }
      }
    }
  }

  // Backward gets forward's inputs, and sums of the gradients of weights and biases.
  void draw_norm_gradients() {
    const int32_t bits = config_.norm_tensors != 0 ? config_.norm_tensors : 3;
    rope_tensor_t *const inputs[] = {&norm_.q_in, &norm_.k_in, &norm_.v_in};
    rope_tensor_t *const sums[2][2] = {{&norm_.grad_q_weight, &norm_.grad_q_bias},
                                       {&norm_.grad_k_weight, &norm_.grad_k_bias}};
    const rope_dtype_t number = config_.dtype == ROPE_DTYPE_F64 ? ROPE_DTYPE_F64 : ROPE_DTYPE_F32;
    for (int i = 0; i < 3; ++i) {
      if ((heads_[i] < 0 || (bits >> i & 1) == 0) && !in_.chance(3)) continue;
      if (!in_.chance(3)) set_rows(inputs[i], config_.dtype, i, true);
      const int64_t runs = in_.length(in_.between(1, 5));
      for (int bias = 0; i < 2 && bias < 2; ++bias) {
        if (bias == 1 && config_.norm != ROPE_NORM_LAYER && !in_.chance(3)) continue;
        if (in_.chance(40)) continue;
        if (in_.chance(40)) {
          set(sums[i][bias], number, {runs, heads_[i], widths_[i]}, false);
        } else {
          set(sums[i][bias], number, {runs, widths_[i]}, false);
        }
      }
    }
  }

  void draw_for_each_token(rope_tensor_t *tensor) {
    if (is_thd()) {
      set(tensor, integers(), {in_.chance(30) ? in_.below(tokens_ + 1) : tokens_}, true);
    } else {
      set(tensor, integers(), {batches_, tokens_}, true);
    }
  }

  void draw_cache() {
    has_cache_ = true;
    if (in_.chance(20)) cache_.flags = ROPE_CACHE_FLAG_SKIP_SLOT_0;
    pages_ = in_.length(in_.one_of<int64_t>({2, 1, 3, 4, 5, 0}));
    entries_ = in_.length(in_.one_of<int64_t>({3, 1, 2, 4, 5, 0}));
    for (int i = 1; i < 3; ++i) {
      if (heads_[i] < 0 ? !in_.chance(2) : in_.chance(20)) continue;
      const bool is_narrow = config_.dtype == ROPE_DTYPE_F32 && in_.chance(40);
      const rope_dtype_t dtype = is_narrow ? floats[in_.between(1, 2)] : config_.dtype;
      const bool has_parts = i == 1 && (widths_[1] > window() ? in_.chance(30) : in_.chance(2));
      set(i == 1 ? &cache_.k_cache : &cache_.v_cache, dtype,
          {pages_, entries_, heads_[i], has_parts ? window() : widths_[i]}, false);
      if (has_parts) set(&cache_.k_pass_cache, dtype, {pages_, entries_, heads_[1], widths_[1] - window()}, false);
    }
    if (in_.chance(50)) {
      draw_for_each_token(&cache_.slots);
      if (!in_.chance(3)) return;
    }
    const bool has_sequence = in_.chance(40), is_list = in_.chance(50);
    const int64_t rows = has_sequence ? in_.between(0, 4) : sequences_ >= 0 ? sequences_ : batches_;
    if (is_list) {
      set(&cache_.page_table, integers(), {in_.between(0, 9)}, true);
      set(&cache_.page_indptr, integers(), {rows + 1}, true);
    } else {
      set(&cache_.page_table, integers(), {rows, in_.between(0, 5)}, true);
    }
    if (has_sequence) draw_for_each_token(&cache_.sequence);
    const bool needs_positions = config_.num_axes > 1 || args_.table_rows == ROPE_TABLE_BY_TOKEN;
    if (needs_positions || in_.chance(40)) draw_for_each_token(&cache_.positions);
  }

  bool has_code_outputs() const {
    return oracle::is_code(args_.q_out.dtype) || oracle::is_code(args_.k_out.dtype) ||
           oracle::is_code(args_.v_out.dtype);
  }

  // Some outputs and caches have 8 bits.
  void draw_codes() {
    const bool has_codes = in_.chance(40);
    rope_tensor_t *const written[6] = {&args_.q_out,    &args_.k_out,    &args_.v_out,
                                       &cache_.k_cache, &cache_.v_cache, &cache_.k_pass_cache};
    for (rope_tensor_t *tensor : written) {
      if (!has_codes || tensor->ndim == 0 || !in_.chance(70)) continue;
      tensor->dtype = in_.one_of<rope_dtype_t>({ROPE_DTYPE_F8_E4M3, ROPE_DTYPE_F8_E5M2});
    }
    if (!in_.chance(has_codes ? 80 : 3)) return;
    has_quant_ = true;
    if (in_.chance(30)) quant_.flags = ROPE_QUANT_FLAG_SCALE_MULTIPLIES;
    rope_tensor_t *const scales[3] = {&quant_.q_scale, &quant_.k_scale, &quant_.v_scale};
    for (int i = 0; i < 3; ++i) {
      const bool is_needed = oracle::is_code(written[i]->dtype) || (i > 0 && oracle::is_code(written[i + 2]->dtype));
      if (!in_.chance(is_needed ? 70 : 3)) continue;
      set(scales[i], ROPE_DTYPE_F32, {in_.chance(50) ? heads_[i] : 1}, true);
    }
    if (in_.chance(oracle::is_code(written[5]->dtype) ? 50 : 2)) {
      set(&quant_.k_pass_scale, ROPE_DTYPE_F32, {in_.chance(50) ? heads_[1] : 1}, true);
    }
    if (in_.chance(40)) set(&quant_.amax_out, ROPE_DTYPE_F32, {3}, false);
    if (in_.chance(40)) draw_written_scales(written, scales);
  }

  bool has_written_scales() const {
    return quant_.q_scales_out.ndim != 0 || quant_.k_scales_out.ndim != 0 || quant_.v_scales_out.ndim != 0 ||
           cache_.k_scales.ndim != 0 || cache_.v_scales.ndim != 0 || cache_.k_pass_scales.ndim != 0;
  }

  // These replace static scales.
  void draw_written_scales(rope_tensor_t *const *written, rope_tensor_t *const *scales) {
    if (in_.chance(30)) quant_.flags |= ROPE_QUANT_FLAG_POWER_OF_TWO;
    if (in_.chance(30)) quant_.scale_floor = in_.chance(80) ? in_.one_of({1e-12, 1e-45, 448.0}) : in_.number();
    rope_tensor_t *const beside[6] = {&quant_.q_scales_out, &quant_.k_scales_out, &quant_.v_scales_out,
                                      &cache_.k_scales,     &cache_.v_scales,     &cache_.k_pass_scales};
    for (int i = 0; i < 6; ++i) {
      const bool is_of_codes = written[i]->ndim != 0 && oracle::is_code(written[i]->dtype);
      if (!in_.chance(is_of_codes ? 80 : 2)) continue;
      const int tensor = i < 3 ? i : i == 5 ? 1 : i - 2;
      if (!in_.chance(3)) *(i == 5 ? &quant_.k_pass_scale : scales[tensor]) = {};
      const int64_t width =
          i == 5 && widths_[1] > window() ? widths_[1] - window() : std::max(widths_[tensor], int64_t{1});
      const int64_t groups = in_.one_of<int64_t>({1, 1, 2, 4, 8, width, 3}), heads = heads_[tensor];
      const rope_dtype_t dtype = in_.chance(50) ? ROPE_DTYPE_F32 : ROPE_DTYPE_F8_E8M0;
      if (i >= 3) {
        set(beside[i], dtype, {pages_, entries_, heads, groups}, false);
      } else if (is_thd() && groups % 4 == 0 && in_.chance(50)) {
        set(beside[i], dtype, {tokens_, heads, groups / 4, 4}, false);
      } else {
        const int64_t channels = widths_[tensor];
        widths_[tensor] = groups;
        set_rows(beside[i], dtype, tensor, false);
        widths_[tensor] = channels;
      }
    }
  }

  void draw_input() {
    has_input_ = true;
    rope_tensor_t *const factors[3] = {&input_.q_row_factor, &input_.k_row_factor, &input_.v_row_factor};
    for (int i = 0; i < 3; ++i) {
      if (!in_.chance(heads_[i] < 0 ? 3 : 70)) continue;
      const rope_dtype_t dtype = in_.chance(50) ? ROPE_DTYPE_F32 : config_.dtype;
      const bool is_by_head = in_.chance(40);
      const int64_t batches = in_.chance(25) ? 1 : batches_;
      if (is_thd() && is_by_head) {
        set(factors[i], dtype, {tokens_, heads_[i]}, true);
      } else if (is_thd() || (!is_by_head && in_.chance(40))) {
        set(factors[i], dtype, {tokens_}, true);
      } else if (is_by_head) {
        set(factors[i], dtype, {batches, tokens_, heads_[i]}, true);
      } else {
        set(factors[i], dtype, {batches, tokens_}, true);
      }
    }
  }

  // Outputs are in separate memory, in place, beside each other in one buffer, or over each other.
  void place() {
    std::vector<const rope_tensor_t *> placed;
    for (const Member &member : members_) {
      rope_tensor_t *const tensor = member.tensor;
      if (tensor->ndim == 0) continue;
      const int64_t size = has_known_shape(*tensor) ? oracle::element_size(tensor->dtype) : 1;
      const rope_tensor_t *over = tensor == &args_.q_out   ? &args_.q
                                  : tensor == &args_.k_out ? &args_.k
                                  : tensor == &args_.v_out ? &args_.v
                                                           : nullptr;
      if (over != nullptr && over->ndim != 0 && in_.chance(30)) {
        memory_.place_over(tensor, over, in_.chance(80) ? 0 : size * in_.between(-9, 9));
      } else if (!placed.empty() && in_.chance(4)) {
        over = placed[static_cast<size_t>(in_.below(static_cast<int64_t>(placed.size())))];
        memory_.place_over(tensor, over, size * in_.between(-40, 40));
      } else {
        memory_.place(tensor, in_.chance(25) ? in_.between(1, 7) : 0);
      }
      placed.push_back(tensor);
    }
  }

  void fill() {
    const int64_t slots = pages_ * entries_;
    for (const Member &member : members_) {
      const rope_tensor_t &tensor = *member.tensor;
      if (!has_known_shape(tensor)) continue;
      if (tensor.dtype <= ROPE_DTYPE_F64) {
        in_.chance(10) ? memory_.fill_bits(tensor) : memory_.fill(tensor);
        continue;
      }
      const int64_t kind = in_.below(4);
      const bool rises = &tensor == &args_.cu_seqlens || &tensor == &cache_.page_indptr;
      int64_t running = 0;
      for_each_index(tensor, [&](const Index &index) {
        int64_t value = kind == 0   ? memory_.random().below(slots + 2) - 1
                        : kind == 1 ? memory_.random().below(6)
                        : kind == 2 ? in_.integer()
                                    : static_cast<int64_t>(memory_.random().bits());
        if (rises && kind < 2) value = running, running += memory_.random().below(3);
        std::memcpy(element_at(tensor, index), &value, static_cast<size_t>(oracle::element_size(tensor.dtype)));
      });
    }
  }

  void plan() const {
    rope::RopeGeometry geometry = {};
    expect(rope::make_rope_geometry("", config_, &geometry) == ROPE_STATUS_SUCCESS, "the geometry, again");
    rope::RopeProblem problem;
    rope::StepProblem step;
    rope_args_t args = args_;
    rope_norm_args_t norm = norm_;
    rope_cache_args_t cache = cache_;
    norm.struct_size = sizeof norm;
    cache.struct_size = sizeof cache;
    rope_quant_args_t quant = quant_;
    rope_input_args_t input = input_;
    quant.struct_size = sizeof quant;
    input.struct_size = sizeof input;
    if (args.norm != nullptr) args.norm = &norm;
    if (args.cache != nullptr) args.cache = &cache;
    if (args.quant != nullptr) args.quant = &quant;
    if (args.input != nullptr) args.input = &input;
    expect(rope::make_rope_problem("", geometry, args, is_of_backward(), &problem, &step) == ROPE_STATUS_SUCCESS,
           "the problem, again");
    if (problem.is_empty()) return;
    for (const rope::DeviceInfo &gpu : gpus) {
      rope::RopePlan plan = {};
      const rope_status_t status = rope::plan_rope("", problem, gpu, &plan);
      if (status == ROPE_STATUS_NOT_SUPPORTED) continue;
      expect(status == ROPE_STATUS_SUCCESS, "a plan is made or not supported");
      expect(plan.grid_x > 0 && plan.grid_x <= 0x7fffffff && plan.grid_y > 0 && plan.grid_y <= 0xffff, "the grid");
      expect(plan.threads > 0 && plan.threads <= 1024, "the threads of a block");
    }
  }

  const rope_tensor_t &named(const std::string &name) const {
    for (const Member &member : members_) {
      if (name == member.name) return *member.tensor;
    }
    finding("a refusal names a tensor that is none: " + name);
  }

  // A refusal for overlap must be correct. Memory that a call in place skips counts as part of the tensor here.
  void check_refusal() const {
    const std::string message = rope_last_error(), function = "rope_explain: ";
    if (Call::says("shares elements with")) {
      const size_t at = message.find(" at "), with = message.find(" with ") + 6;
      const std::string first = message.substr(function.size(), at - function.size());
      const std::string second = message.substr(with, message.find(" at ", with) - with);
      expect(share_bytes(named(first), named(second)), "a refused overlap is none");
    }
    if (Call::says("visits an element twice")) {
      const std::string name = message.substr(function.size(), message.find(" visits") - function.size());
      expect(has_element_twice(named(name)), "an element that is visited twice is not");
    }
  }

  // Only outputs, caches, scales, amax and the fault words may have changed. Except for outputs in place, these share
  // no element with other tensors.
  void verify() {
    const auto may_change = [&](const rope_tensor_t &tensor) {
      for_each_index(tensor, [&](const Index &index) { memory_.may_have_changed(tensor, index); });
    };
    may_change(args_.q_out.ndim != 0 ? args_.q_out : args_.q);
    if (args_.k_out.ndim != 0 || cache_.k_cache.ndim == 0) may_change(args_.k_out.ndim != 0 ? args_.k_out : args_.k);
    if (args_.v_out.ndim != 0 || cache_.v_cache.ndim == 0) may_change(args_.v_out.ndim != 0 ? args_.v_out : args_.v);
    may_change(args_.fault);
    // With a pass an output cannot be its input, because the shapes differ.
    rope_tensor_t *const joined_q = input_.q_pass.ndim != 0 ? &args_.q_out : &quant_.amax_out;
    rope_tensor_t *const joined_k = input_.k_pass.ndim != 0 ? &args_.k_out : &quant_.amax_out;
    for (const rope_tensor_t *alone :
         {&cache_.k_cache, &cache_.v_cache, &cache_.k_pass_cache, &cache_.k_scales, &cache_.v_scales,
          &cache_.k_pass_scales, &norm_.grad_q_weight, &norm_.grad_k_weight, &norm_.grad_q_bias, &norm_.grad_k_bias,
          &quant_.q_scales_out, &quant_.k_scales_out, &quant_.v_scales_out, &quant_.amax_out, joined_q, joined_k}) {
      if (alone->ndim == 0) continue;
      may_change(*alone);
      if (has_element_twice(*alone)) expect(!are_few(*alone), "an output has one place for two elements");
      for (const Member &member : members_) {
        if (member.tensor == alone || member.tensor->ndim == 0 || !share_bytes(*alone, *member.tensor)) continue;
        expect(!are_few(*alone, *member.tensor), std::string("an output lies over ") + member.name);
      }
    }
  }

  Input &in_;
  const rope_config_t &config_;
  Memory memory_;
  bool is_small_ = false, has_norm_ = false, has_cache_ = false, has_quant_ = false, has_input_ = false;
  int64_t batches_ = 0, tokens_ = 0, sequences_ = -1, pages_ = 0, entries_ = 0;
  int64_t heads_[3] = {-1, -1, -1}, widths_[3] = {};
  rope_args_t args_ = {};
  rope_norm_args_t norm_ = {};
  rope_cache_args_t cache_ = {};
  rope_quant_args_t quant_ = {};
  rope_input_args_t input_ = {};
  const std::vector<Member> members_ = {{"q", &args_.q},
                                        {"q_out", &args_.q_out},
                                        {"k", &args_.k},
                                        {"k_out", &args_.k_out},
                                        {"v", &args_.v},
                                        {"v_out", &args_.v_out},
                                        {"positions", &args_.positions},
                                        {"start_positions", &args_.start_positions},
                                        {"cu_seqlens", &args_.cu_seqlens},
                                        {"cos", &args_.cos},
                                        {"sin", &args_.sin},
                                        {"angles", &args_.angles},
                                        {"fault", &args_.fault},
                                        {"norm.q_weight", &norm_.q_weight},
                                        {"norm.k_weight", &norm_.k_weight},
                                        {"norm.q_bias", &norm_.q_bias},
                                        {"norm.k_bias", &norm_.k_bias},
                                        {"norm.q_in", &norm_.q_in},
                                        {"norm.k_in", &norm_.k_in},
                                        {"norm.v_in", &norm_.v_in},
                                        {"norm.grad_q_weight", &norm_.grad_q_weight},
                                        {"norm.grad_k_weight", &norm_.grad_k_weight},
                                        {"norm.grad_q_bias", &norm_.grad_q_bias},
                                        {"norm.grad_k_bias", &norm_.grad_k_bias},
                                        {"cache.k_cache", &cache_.k_cache},
                                        {"cache.v_cache", &cache_.v_cache},
                                        {"cache.slots", &cache_.slots},
                                        {"cache.page_table", &cache_.page_table},
                                        {"cache.page_indptr", &cache_.page_indptr},
                                        {"cache.sequence", &cache_.sequence},
                                        {"cache.positions", &cache_.positions},
                                        {"quant.q_scale", &quant_.q_scale},
                                        {"quant.k_scale", &quant_.k_scale},
                                        {"quant.v_scale", &quant_.v_scale},
                                        {"quant.amax_out", &quant_.amax_out},
                                        {"quant.q_scales_out", &quant_.q_scales_out},
                                        {"quant.k_scales_out", &quant_.k_scales_out},
                                        {"quant.v_scales_out", &quant_.v_scales_out},
                                        {"cache.k_scales", &cache_.k_scales},
                                        {"cache.v_scales", &cache_.v_scales},
                                        {"cache.k_pass_cache", &cache_.k_pass_cache},
                                        {"cache.k_pass_scales", &cache_.k_pass_scales},
                                        {"quant.k_pass_scale", &quant_.k_pass_scale},
                                        {"input.q_pass", &input_.q_pass},
                                        {"input.k_pass", &input_.k_pass},
                                        {"input.q_row_factor", &input_.q_row_factor},
                                        {"input.k_row_factor", &input_.k_row_factor},
                                        {"input.v_row_factor", &input_.v_row_factor}};
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  draw_float_environment(data, size);
  Input input(data, size);
  rope_config_t config = draw_config(&input);
  const StructBytes bytes(&input, &config, rope::kRopeConfigFirstSize, sizeof config);
  rope_desc_t *desc = nullptr;
  const Call call("rope_desc_create");
  if (!call.returned(rope_desc_create(bytes.as<rope_config_t>(), &desc))) return 0;
  Request(&input, config).run(desc);
  rope_desc_destroy(desc);
  return 0;
}
