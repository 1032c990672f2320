// SPDX-License-Identifier: Apache-2.0
// random_calls.cpp - draws calls
#include "plan/random_calls.hpp"

#include <algorithm>
#include <cstdlib>
#include <initializer_list>
#include <utility>

#include "support/oracle.hpp"
#include "unit/fake_tensors.hpp"

namespace {

constexpr rope_dtype_t kE4M3 = ROPE_DTYPE_F8_E4M3, kE5M2 = ROPE_DTYPE_F8_E5M2;

// The common part of draws of RoPE and of SwiGLU.
class Odds {
 public:
  explicit Odds(uint64_t seed) : random_(seed * 0x9E3779B97F4A7C15u + 7) {}

 protected:
  bool chance(int percent) { return random_.below(100) < percent; }
  int64_t between(int64_t low, int64_t high) { return low + random_.below(high - low + 1); }
  template <class Value>
  Value one_of(std::initializer_list<Value> values) {
    return values.begin()[random_.below(static_cast<int64_t>(values.size()))];
  }
  // 1 to 2^exponent, each length of number with the same odds.
  int64_t up_to_power(int exponent) {
    const int64_t power = int64_t{1} << random_.below(exponent + 1);
    return chance(50) ? power : between((power + 1) / 2, power);
  }

  // A tensor in memory of its own, which no other reaches.
  rope_tensor_t compact(rope_dtype_t dtype, const std::vector<int64_t> &shape) {
    return compact_tensor(next_address(), dtype, shape);
  }

  // Axes in any order with or without gaps, at any address; the last one is mostly contiguous.
  rope_tensor_t strided(rope_dtype_t dtype, const std::vector<int64_t> &shape) {
    if (is_compact_) return compact(dtype, shape);
    const size_t last = shape.size() - 1;
    std::vector<size_t> order;
    for (size_t axis = 0; axis < last; ++axis) order.push_back(axis);
    if (chance(30)) {
      for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[static_cast<size_t>(random_.below(i))]);
    }
    const int64_t alignment = chance(70) ? 16 : int64_t{1} << random_.below(5);
    std::vector<int64_t> stride(shape.size());
    stride[last] = chance(92) ? 1 : one_of<int64_t>({2, -1, 3});
    int64_t next = std::max<int64_t>(shape[last], 1) * std::abs(stride[last]);
    for (size_t i = order.size(); i-- > 0;) {
      if (chance(30)) next += random_.below(4) * alignment;
      stride[order[i]] = chance(6) ? -next : next;
      next *= std::max<int64_t>(shape[order[i]], 1);
    }
    const int64_t start = chance(30) ? random_.below(8) * alignment : 0;
    const auto offset = static_cast<uintptr_t>(start * std::max<int64_t>(oracle::element_size(dtype), 1));
    return fake_tensor(next_address() + offset, dtype, shape, stride);
  }

  // An input that may repeat memory.
  rope_tensor_t expandable(rope_dtype_t dtype, const std::vector<int64_t> &shape) {
    rope_tensor_t tensor = strided(dtype, shape);
    if (!is_compact_ && chance(8)) tensor.stride[random_.below(static_cast<int64_t>(shape.size()))] = 0;
    return tensor;
  }

  rope_dtype_t integer() { return one_of<rope_dtype_t>({ROPE_DTYPE_I32, ROPE_DTYPE_I64}); }

  Random random_;
  bool is_compact_ = false;

 private:
  // The middle of regions of 2^57 bytes.
  uintptr_t next_address() { return (static_cast<uintptr_t>(++regions_) << 57) + (uintptr_t{1} << 56); }

  int regions_ = 0;
};

}  // namespace

// ---- RoPE and steps ----

class RandomRopeCall::Draw : Odds {
 public:
  Draw(uint64_t seed, RandomRopeCall *call) : Odds(seed), call_(*call), config_(call->config), args_(call->args) {}

  void draw() {
    is_plain_ = chance(65);
    is_compact_ = chance(is_plain_ ? 70 : 30);
    is_all_cut_ = saw_if(chance(8), "all cut, codes");
    draw_config();
    draw_sizes();
    draw_tensors();
    if (config_.norm != 0) draw_norm();
    draw_angles();
    if (is_turned_v_) return;  // no group of operands goes with it
    draw_input();
    if (!call_.is_backward && chance(40)) draw_cache();
    if (!call_.is_backward) draw_codes();
  }

 private:
  bool saw_if(bool condition, const char *feature) {
    if (condition) call_.features_.push_back(feature);
    return condition;
  }
  bool is_thd() const { return config_.layout == ROPE_LAYOUT_THD; }
  int32_t window() const { return config_.rotary_dim != 0 ? config_.rotary_dim : config_.head_dim; }
  rope_dtype_t any_code() { return is_plain_ || chance(60) ? usual_code_ : usual_code_ == kE4M3 ? kE5M2 : kE4M3; }
  rope_dtype_t wide() { return chance(50) ? ROPE_DTYPE_F32 : config_.dtype; }

  void draw_config() {
    config_.device = ROPE_DEVICE_CUDA;
    config_.dtype = one_of<rope_dtype_t>({ROPE_DTYPE_BF16, ROPE_DTYPE_BF16, ROPE_DTYPE_BF16, ROPE_DTYPE_F16,
                                          ROPE_DTYPE_F32, ROPE_DTYPE_F32, ROPE_DTYPE_F64});
    config_.layout = one_of<rope_layout_t>({ROPE_LAYOUT_BSHD, ROPE_LAYOUT_SBHD, ROPE_LAYOUT_BHSD, ROPE_LAYOUT_THD});
    config_.style = one_of<rope_style_t>({ROPE_STYLE_HALF, ROPE_STYLE_INTERLEAVED});
    config_.theta = 1e4;
    if (is_plain_ && config_.dtype == ROPE_DTYPE_F64) config_.dtype = ROPE_DTYPE_BF16;
    config_.head_dim = static_cast<int32_t>(
        is_plain_ || chance(60) ? one_of<int64_t>({32, 64, 64, 80, 96, 128, 128, 128, 192, 256, 512, 576})
                                : 2 * between(1, 512));
    if (chance(50)) {
      config_.rotary_dim = config_.head_dim / 4 * one_of<int32_t>({1, 2, 2, 3}) / 2 * 2;
      if (chance(40) && config_.head_dim > 64) config_.rotary_dim = 64;
      if (!is_plain_ && chance(40)) config_.rotary_dim = 2 * static_cast<int32_t>(between(1, config_.head_dim / 2));
      const int32_t room = config_.head_dim - config_.rotary_dim;
      config_.rotary_offset = chance(40) ? 0 : is_plain_ || chance(50) ? room : static_cast<int32_t>(between(0, room));
      saw_if(config_.rotary_dim != 0 && room > 0, "partial window");
    }
    if (is_all_cut_) {
      if (chance(80)) config_.dtype = chance(70) ? ROPE_DTYPE_BF16 : ROPE_DTYPE_F16;
      config_.head_dim = static_cast<int32_t>(64 * between(2, 5));
      config_.rotary_dim = 64;
      config_.rotary_offset = chance(50) ? 0 : config_.head_dim - 64;
      is_compact_ = is_compact_ || chance(70);
      return;
    }
    if (!is_plain_ && chance(40)) config_.out_style = one_of<rope_style_t>({ROPE_STYLE_HALF, ROPE_STYLE_INTERLEAVED});
    if (!is_plain_ && chance(25) && window() % 4 == 0) config_.pair_block = window() / 2;
    if (saw_if(chance(12), "several axes")) {
      config_.num_axes = static_cast<int32_t>(is_plain_ || chance(50) ? between(2, 4) : between(5, 8));
      for (int32_t pair = 0; pair < window() / 2; ++pair) {
        call_.pair_axis.push_back(static_cast<int32_t>(random_.below(config_.num_axes)));
      }
      config_.pair_axis = call_.pair_axis.data();
    }
    if (!is_plain_ && chance(15)) config_.rotation_rounding = ROPE_ROTATION_ROUND_EACH;
    if (chance(15)) config_.quant_rounding = ROPE_QUANT_ROUND_FIRST;
    if (!saw_if(chance(40), "norm")) return;
    config_.norm = chance(is_plain_ ? 85 : 60) ? ROPE_NORM_RMS : ROPE_NORM_LAYER;
    config_.norm_eps = 1e-6;
    if (is_plain_ && saw_if(chance(15), "normed window")) {
      config_.head_dim = one_of<int32_t>({128, 128, 256});
      config_.rotary_dim = config_.head_dim / 2;
      config_.rotary_offset = chance(50) ? 0 : config_.rotary_dim;
      config_.norm = ROPE_NORM_RMS;
      config_.num_axes = 0;
      config_.pair_axis = nullptr;
      return;
    }
    if (chance(25)) config_.norm_tensors = static_cast<int32_t>(between(1, 7));
    if (chance(25)) config_.norm_order = ROPE_NORM_ORDER_AFTER;
    if (chance(25)) config_.norm_extent = ROPE_NORM_EXTENT_TOKEN;
    if (chance(25)) config_.norm_rounding = static_cast<int32_t>(between(1, 3));
    if (chance(25)) config_.norm_weight_offset = 1;
  }

  void draw_sizes() {
    batches_ = is_thd() || chance(50) ? 1 : up_to_power(is_plain_ || chance(80) ? 6 : 18);
    tokens_ = chance(25) ? 1 : up_to_power(is_plain_ || chance(50) ? (chance(60) ? 8 : 15) : chance(50) ? 16 : 33);
    if (saw_if(chance(3), "no tokens")) tokens_ = 0;
    saw_if(tokens_ == 1, "one token");
    saw_if(batches_ * tokens_ >= int64_t{1} << 31, "2^31 tokens");
    for (int64_t &heads : heads_) {
      heads = chance(30) ? 1 : chance(40) ? up_to_power(6) : between(1, 40);
      if (saw_if(chance(3), "many heads")) heads = up_to_power(20);
      if (saw_if(chance(2), "no heads")) heads = 0;
    }
    if (chance(50)) heads_[2] = heads_[1];
  }

  std::vector<int64_t> shape_of(int64_t heads, int64_t channels) const {
    switch (config_.layout) {
      case ROPE_LAYOUT_BSHD:
        return {batches_, tokens_, heads, channels};
      case ROPE_LAYOUT_SBHD:
        return {tokens_, batches_, heads, channels};
      case ROPE_LAYOUT_BHSD:
        return {batches_, heads, tokens_, channels};
      default:
        return {tokens_, heads, channels};
    }
  }

  std::vector<int64_t> shape_of_tokens() const {
    return is_thd() ? std::vector<int64_t>{tokens_} : std::vector<int64_t>{batches_, tokens_};
  }

  void draw_tensors() {
    rope_tensor_t *const in[] = {&args_.q, &args_.k, &args_.v};
    rope_tensor_t *const out[] = {&args_.q_out, &args_.k_out, &args_.v_out};
    rope_tensor_t *const pass[] = {&call_.input.q_pass, &call_.input.k_pass, nullptr};
    const int64_t present = is_all_cut_ || chance(60) ? 7 : between(1, 7);
    if (!is_all_cut_)
      args_.flags = chance(15) ? uint32_t{ROPE_FLAG_UNROTATED} : chance(70) ? uint32_t{ROPE_FLAG_V_UNROTATED} : 0;
    is_turned_v_ = saw_if(args_.flags == 0 && (present & 4) != 0, "v turned");
    if (config_.norm != 0 && is_turned_v_) args_.flags = ROPE_FLAG_V_UNROTATED, is_turned_v_ = false;
    if (!is_all_cut_) call_.is_backward = chance(25);
    has_code_outs_ = is_all_cut_ || (config_.dtype != ROPE_DTYPE_F64 && !call_.is_backward && chance(35));
    const bool accumulates = call_.is_backward && saw_if(chance(15), "accumulated");
    for (int i = 0; i < 3; ++i) {
      if ((present >> i & 1) == 0) continue;
      channels_[i] = config_.head_dim;
      if (!is_all_cut_ && saw_if(chance(8), "window alone")) channels_[i] = window();
      if (i == 2 && !is_turned_v_ && chance(is_plain_ ? 4 : 25)) channels_[i] = static_cast<int32_t>(between(1, 600));
      const bool is_cut = window() < config_.head_dim && channels_[i] == config_.head_dim;
      const bool has_pass = !is_all_cut_ && i < 2 && is_cut && !call_.is_backward && saw_if(chance(25), "pass");
      *in[i] = expandable(config_.dtype, shape_of(heads_[i], has_pass ? window() : channels_[i]));
      if (has_pass) {
        *pass[i] = expandable(config_.dtype, shape_of(heads_[i], channels_[i] - window()));
        if (chance(20)) pass[i]->stride[is_thd() ? 1 : config_.layout == ROPE_LAYOUT_BHSD ? 1 : 2] = 0;
      }
      if (!has_code_outs_ && !has_pass && !accumulates && chance(35)) continue;
      rope_dtype_t dtype = config_.dtype;
      if (has_code_outs_ && (is_all_cut_ ? chance(95) : chance(80))) dtype = any_code();
      if (dtype == ROPE_DTYPE_F32 && chance(20)) dtype = one_of<rope_dtype_t>({ROPE_DTYPE_F16, ROPE_DTYPE_BF16});
      *out[i] = dtype == config_.dtype && !has_pass && !accumulates && chance(10)
                    ? *in[i]
                    : strided(dtype, shape_of(heads_[i], channels_[i]));
      has_codes_[i] = dtype == kE4M3 || dtype == kE5M2;
    }
    if (accumulates) args_.flags |= ROPE_FLAG_ACCUMULATE;
    if (chance(30)) args_.flags |= ROPE_FLAG_PROGRAMMATIC_LAUNCH;
  }

  bool is_normed(int i) const {
    return channels_[i] != 0 && ((config_.norm_tensors != 0 ? config_.norm_tensors : 3) >> i & 1) != 0;
  }

  void draw_norm() {
    args_.norm = &call_.norm;
    rope_tensor_t *const weight[] = {&call_.norm.q_weight, &call_.norm.k_weight};
    rope_tensor_t *const bias[] = {&call_.norm.q_bias, &call_.norm.k_bias};
    rope_tensor_t *const in[] = {&call_.norm.q_in, &call_.norm.k_in, &call_.norm.v_in};
    rope_tensor_t *const grad_weight[] = {&call_.norm.grad_q_weight, &call_.norm.grad_k_weight};
    rope_tensor_t *const grad_bias[] = {&call_.norm.grad_q_bias, &call_.norm.grad_k_bias};
    const rope_dtype_t sums = config_.dtype == ROPE_DTYPE_F64 ? ROPE_DTYPE_F64 : ROPE_DTYPE_F32;
    for (int i = 0; i < 3; ++i) {
      if (!is_normed(i)) continue;
      if (call_.is_backward) *in[i] = expandable(config_.dtype, shape_of(heads_[i], channels_[i]));
      if (i == 2) continue;
      const rope_dtype_t dtype = config_.dtype != ROPE_DTYPE_F64 && chance(30) ? ROPE_DTYPE_F32 : config_.dtype;
      const bool by_head = chance(25), sums_by_head = by_head || chance(25);
      const auto shape = [&](bool has_heads, int64_t runs) {
        std::vector<int64_t> lengths = {channels_[i]};
        if (has_heads) lengths.insert(lengths.begin(), heads_[i]);
        if (runs > 0) lengths.insert(lengths.begin(), runs);
        return lengths;
      };
      const int64_t runs = chance(30) ? 1 : up_to_power(10);
      const bool has_weight = chance(75), has_bias = config_.norm == ROPE_NORM_LAYER && chance(60);
      if (has_weight) *weight[i] = strided(dtype, shape(by_head, 0));
      if (has_bias) *bias[i] = strided(dtype, shape(by_head, 0));
      if (!call_.is_backward) continue;
      if (has_weight && chance(60)) *grad_weight[i] = strided(sums, shape(sums_by_head, runs));
      if (has_bias && chance(60)) *grad_bias[i] = strided(sums, shape(sums_by_head, runs));
    }
  }

  void draw_angles() {
    const int32_t axes = config_.num_axes > 1 ? config_.num_axes : 1;
    const auto with_axes = [&](std::vector<int64_t> shape) {
      if (axes > 1) shape.insert(shape.begin(), chance(80) ? axes : 1);
      return shape;
    };
    const int64_t source = is_plain_ ? 1 + random_.below(7) : random_.below(8);
    bool is_by_token = false;
    if (source < 4 && ((args_.flags & ROPE_FLAG_UNROTATED) == 0 || chance(5))) {
      std::vector<int64_t> shape = {up_to_power(is_plain_ || chance(70) ? 16 : 33),
                                    is_plain_ || chance(60) ? window() / 2 : window()};
      is_by_token = saw_if(chance(is_plain_ ? 5 : 30), "table by token");
      if (is_by_token) {
        args_.table_rows = ROPE_TABLE_BY_TOKEN;
        shape[0] = tokens_;
        if (!is_thd() && chance(50)) shape.insert(shape.begin(), batches_);
      }
      if (axes > 1) shape.insert(shape.begin(), axes);
      const rope_dtype_t dtype =
          is_plain_ ? one_of<rope_dtype_t>({ROPE_DTYPE_F32, ROPE_DTYPE_F32, config_.dtype})
                    : one_of<rope_dtype_t>({ROPE_DTYPE_F32, ROPE_DTYPE_BF16, ROPE_DTYPE_F16, ROPE_DTYPE_F64});
      if (source == 0) {
        args_.angles = strided(dtype == ROPE_DTYPE_F64 ? ROPE_DTYPE_F32 : dtype, shape);
      } else {
        args_.cos = strided(dtype, shape);
        args_.sin = strided(dtype, shape);
      }
      saw_if(true, source == 0 ? "angles" : "table");
    }
    if (chance(40)) args_.fault = compact(ROPE_DTYPE_I64, {2});
    if (is_thd() && saw_if(chance(is_plain_ ? 4 : 30), "cu_seqlens"))
      args_.cu_seqlens = compact(integer(), {between(1, 9)});
    if (is_by_token) return;
    if (chance(60))
      args_.positions =
          expandable(integer(), with_axes(chance(40) && !is_thd() ? std::vector<int64_t>{tokens_} : shape_of_tokens()));
    if (!is_plain_ && chance(20)) args_.start_positions = compact(integer(), {is_thd() ? 1 : batches_});
    if (chance(10)) args_.position_offset = between(0, 1 << 20);
  }

  void draw_input() {
    rope_tensor_t *const factor[] = {&call_.input.q_row_factor, &call_.input.k_row_factor, &call_.input.v_row_factor};
    const bool has_factors = chance(15);
    for (int i = 0; i < 3 && has_factors; ++i) {
      if (channels_[i] == 0 || chance(40)) continue;
      saw_if(true, "row factor");
      std::vector<int64_t> shape = shape_of_tokens();
      const bool by_head = chance(30);
      if (by_head) shape.push_back(heads_[i]);
      if (!is_thd() && chance(30)) shape[0] = 1;
      *factor[i] = strided(wide(), shape);
    }
    args_.input = &call_.input;
  }

  // Scales of the groups of a tensor whose last axis has channels.
  rope_tensor_t scales_of(std::vector<int64_t> shape, bool may_split) {
    int64_t groups = chance(60) ? 1 : one_of<int64_t>({2, 3, 4, 8, 16});
    if (shape.back() % groups != 0) groups = 1;
    shape.back() = groups;
    if (may_split && groups % 4 == 0 && chance(30)) shape.back() = groups / 4, shape.push_back(4);
    return strided(chance(70) ? ROPE_DTYPE_F32 : ROPE_DTYPE_F8_E8M0, shape);
  }

  void draw_cache() {
    rope_cache_args_t &cache = call_.cache;
    if (channels_[1] == 0) return;
    saw_if(true, "cache");
    args_.cache = &cache;
    const int64_t entries = chance(10) ? 1 : one_of<int64_t>({16, 16, 64, 7});
    const int64_t pages = saw_if(chance(3), "no pages") ? 0 : up_to_power(chance(90) ? 12 : 28);
    has_code_cache_ = config_.dtype != ROPE_DTYPE_F64 && chance(40);
    const auto dtype = [&] { return has_code_cache_ && chance(85) ? any_code() : config_.dtype; };
    const auto tensor = [&](rope_dtype_t of, int64_t heads, int64_t channels) {
      return strided(of, {pages, entries, heads, channels});
    };
    const auto draw_scales = [&](const rope_tensor_t &of, rope_tensor_t *scales) {
      if (of.dtype != kE4M3 && of.dtype != kE5M2) return false;
      if (!saw_if(chance(35), "written scales of a cache")) return false;
      *scales = scales_of({pages, entries, of.shape[2], of.shape[3]}, false);
      return true;
    };
    const bool is_apart =
        window() < channels_[1] && channels_[1] == config_.head_dim && saw_if(chance(30), "pass cache");
    cache.k_cache = tensor(dtype(), heads_[1], is_apart ? window() : channels_[1]);
    has_cache_codes_[1] = draw_scales(cache.k_cache, &cache.k_scales) ? 2 : cache.k_cache.dtype >= kE4M3;
    if (is_apart) {
      cache.k_pass_cache = tensor(dtype(), heads_[1], channels_[1] - window());
      has_cache_codes_[0] =
          draw_scales(cache.k_pass_cache, &cache.k_pass_scales) ? 2 : cache.k_pass_cache.dtype >= kE4M3;
    }
    if (channels_[2] != 0 && chance(70)) {
      cache.v_cache = tensor(dtype(), heads_[2], channels_[2]);
      has_cache_codes_[2] = draw_scales(cache.v_cache, &cache.v_scales) ? 2 : cache.v_cache.dtype >= kE4M3;
    }
    if (chance(15)) cache.flags = ROPE_CACHE_FLAG_SKIP_SLOT_0;
    if (chance(50)) {
      cache.slots = strided(integer(), is_thd() && chance(20) ? std::vector<int64_t>{tokens_ / 2} : shape_of_tokens());
      return;
    }
    saw_if(true, "pages");
    const bool has_sequence = chance(30);
    const int64_t rows = has_sequence                    ? up_to_power(8)
                         : args_.cu_seqlens.shape[0] > 0 ? args_.cu_seqlens.shape[0] - 1
                                                         : batches_;
    if (chance(30)) {
      cache.page_table = compact(integer(), {up_to_power(12)});
      cache.page_indptr = compact(integer(), {rows + 1});
    } else {
      cache.page_table = strided(integer(), {rows, up_to_power(10)});
    }
    if (has_sequence) cache.sequence = strided(integer(), shape_of_tokens());
    if (config_.num_axes > 1 || args_.table_rows == ROPE_TABLE_BY_TOKEN || chance(40)) {
      cache.positions = strided(integer(), shape_of_tokens());
    }
  }

  void draw_codes() {
    if (!has_code_outs_ && !has_code_cache_) return;
    rope_quant_args_t &quant = call_.quant;
    rope_tensor_t *const scale[] = {&quant.q_scale, &quant.k_scale, &quant.v_scale};
    rope_tensor_t *const scales[] = {&quant.q_scales_out, &quant.k_scales_out, &quant.v_scales_out};
    const auto given = [&](int64_t heads) { return strided(ROPE_DTYPE_F32, {chance(50) ? 1 : heads}); };
    const bool has_static = chance(60), has_written = chance(25);
    bool has_any = false, writes_any = has_cache_codes_[0] == 2;
    for (int i = 0; i < 3; ++i) {
      const int of_cache = i > 0 ? has_cache_codes_[i] : 0;
      if (!has_codes_[i] && of_cache == 0) continue;
      has_any = true;
      saw_if(has_codes_[i], "codes");
      writes_any = writes_any || of_cache == 2;
      const bool is_written = has_codes_[i] && (of_cache == 2 || (of_cache == 0 && has_written && chance(80)));
      if (is_written) {
        saw_if(true, "written scales");
        *scales[i] = scales_of(shape_of(heads_[i], channels_[i]), is_thd());
        writes_any = true;
      } else if (of_cache != 2 && has_static) {
        *scale[i] = given(heads_[i]);
      }
    }
    if (has_cache_codes_[0] == 1 && chance(50)) quant.k_pass_scale = given(heads_[1]);
    if (!has_any && has_cache_codes_[0] == 0) return;
    if (chance(20)) quant.amax_out = compact(ROPE_DTYPE_F32, {3});
    if (has_static && chance(30)) quant.flags = ROPE_QUANT_FLAG_SCALE_MULTIPLIES;
    if (writes_any && chance(20)) quant.scale_floor = 1e-5;
    args_.quant = &call_.quant;
  }

  RandomRopeCall &call_;
  rope_config_t &config_;
  rope_args_t &args_;
  int64_t batches_ = 1, tokens_ = 1, heads_[3] = {};
  int32_t channels_[3] = {};  // 0: absent
  rope_dtype_t usual_code_ = chance(80) ? kE4M3 : kE5M2;
  bool is_plain_ = false;  // a call that most kernels take
  bool is_all_cut_ = false, is_turned_v_ = false, has_code_outs_ = false, has_code_cache_ = false;
  bool has_codes_[3] = {};       // of the output
  int has_cache_codes_[3] = {};  // of the cache of k's pass, of k and of v; 2: with written scales
};

RandomRopeCall::RandomRopeCall(uint64_t seed)
    : config(ROPE_CONFIG_INIT),
      args(ROPE_ARGS_INIT),
      norm(ROPE_NORM_ARGS_INIT),
      cache(ROPE_CACHE_ARGS_INIT),
      quant(ROPE_QUANT_ARGS_INIT),
      input(ROPE_INPUT_ARGS_INIT) {
  Draw(seed, this).draw();
}

rope_status_t RandomRopeCall::make() {
  const char *const function = is_backward ? "rope_backward" : "rope_forward";
  ROPE_TRY(rope::make_rope_geometry("rope_desc_create", config, &geometry));
  return rope::make_rope_problem(function, geometry, args, is_backward, &problem, &step);
}

std::vector<std::string> RandomRopeCall::features() const {
  std::vector<std::string> features = features_;
  if (is_backward) features.push_back("backward");
  if (problem.step == nullptr) features.push_back("rotation alone");
  if (problem.step != nullptr && step.is_norm_gradient) features.push_back("norm gradient");
  return features;
}

// ---- SwiGLU ----

class RandomSwigluCall::Draw : Odds {
 public:
  Draw(uint64_t seed, RandomSwigluCall *call) : Odds(seed), call_(*call), args_(call->args) {}

  void draw() {
    is_compact_ = chance(60);
    draw_config();
    draw_shape();
    has_codes_ = dtype_ != ROPE_DTYPE_F64 && chance(55);
    args_.gate = expandable(dtype_, shape_);
    args_.up = expandable(dtype_, shape_);
    if (chance(20)) pack(&args_.gate, &args_.up);
    if (call_.is_backward) {
      args_.grad_out = expandable(dtype_, shape_);
      draw_gradients();
    } else {
      args_.out = draw_output("codes");
    }
    if (has_codes_) draw_columns();
    if (has_codes_) draw_scales();
    draw_rows();
    if (chance(25)) args_.flags = ROPE_FLAG_PROGRAMMATIC_LAUNCH;
  }

 private:
  bool saw_if(bool condition, const char *feature) {
    if (condition) call_.features_.push_back(feature);
    return condition;
  }

  void draw_config() {
    swiglu_config_t &config = call_.config;
    config.device = ROPE_DEVICE_CUDA;
    config.dtype = dtype_ = one_of<rope_dtype_t>(
        {ROPE_DTYPE_BF16, ROPE_DTYPE_BF16, ROPE_DTYPE_BF16, ROPE_DTYPE_F16, ROPE_DTYPE_F32, ROPE_DTYPE_F64});
    if (chance(50)) return;
    if (chance(40)) config.alpha = 1.702;
    if (chance(40)) config.limit = 7;
    if (chance(30)) config.up_offset = 1;
    if (chance(30)) config.out_scale = 0.5;
    if (chance(20)) config.gate_softcap = 30;
    if (chance(20)) config.up_softcap = 20;
    if (config.limit != 0 && chance(20)) config.limit_rule = SWIGLU_LIMIT_ACTIVATION;
    if (config.alpha == 0 && chance(40)) config.activation = static_cast<int32_t>(between(1, 3));
    if (chance(15)) config.product_rounding = SWIGLU_PRODUCT_ROUND_ACTIVATION;
    if (chance(15)) config.quant_rounding = ROPE_QUANT_ROUND_FIRST;
  }

  void draw_shape() {
    call_.is_backward = chance(35);
    has_experts_ = saw_if(chance(20), "expert_rows");
    const int64_t rank = has_experts_ ? between(3, 4) : between(1, 4);
    int room = chance(90) ? 24 : 36;
    for (int64_t axis = 0; axis < rank; ++axis) {
      int64_t length = up_to_power(std::min(room, axis + 1 == rank ? 14 : 24));
      if (axis + 1 == rank && chance(70)) length = (length + 127) / 128 * 128;
      if (axis + 2 == rank && chance(40)) length = (length + 31) / 32 * 32;
      if (axis + 1 < rank && saw_if(chance(30), "length 1")) length = 1;
      if (saw_if(chance(1), "length 0")) length = 0;
      if (axis + 1 == rank && chance(4)) length = 1;
      shape_.push_back(length);
      for (int64_t left = length; left > 1 && room > 0; left /= 2) --room;
    }
  }

  // gate and up alternate, or are halves of one tensor.
  void pack(rope_tensor_t *gate, rope_tensor_t *up) {
    std::vector<int64_t> shape = shape_;
    const size_t last = shape.size() - 1;
    shape[last] *= 2;
    *gate = compact(gate->dtype, shape);
    gate->shape[last] = shape_[last];
    *up = *gate;
    const bool alternates = chance(50);
    if (alternates) gate->stride[last] = up->stride[last] = 2;
    const int64_t distance = alternates ? 1 : shape_[last];
    up->data = static_cast<char *>(up->data) + distance * oracle::element_size(gate->dtype);
    if (chance(50)) std::swap(*gate, *up);
  }

  rope_tensor_t draw_output(const char *feature) {
    if (!has_codes_ || chance(10)) return strided(dtype_, shape_);
    saw_if(true, feature);
    if (!call_.is_backward && shape_.back() % 2 == 0 && chance(25)) {
      saw_if(true, "codes of 4 bits");
      std::vector<int64_t> shape = shape_;
      shape.back() /= 2;
      return compact(ROPE_DTYPE_F4_E2M1X2, shape);
    }
    return strided(chance(80) ? kE4M3 : kE5M2, shape_);
  }

  void draw_gradients() {
    const int64_t wanted = random_.below(8);
    if (wanted != 0) args_.grad_gate = draw_output("codes of gradients");
    if (wanted != 1) args_.grad_up = draw_output("codes of gradients");
    if (!has_codes_ && chance(10)) args_.grad_gate = args_.gate, args_.grad_up = args_.up;
    if (!has_codes_ && chance(15)) pack(&args_.grad_gate, &args_.grad_up);
    if (chance(15)) args_.out = strided(dtype_, shape_);
  }

  void draw_columns() {
    if (!chance(45)) return;
    saw_if(true, "codes by column");
    swiglu_column_args_t &column = call_.column;
    args_.column = &column;
    const auto output = [&] { return strided(chance(80) ? kE4M3 : kE5M2, shape_); };
    if (call_.is_backward) {
      if (chance(85)) column.grad_gate = output();
      if (chance(85)) column.grad_up = output();
    } else {
      column.out = output();
      if (chance(20)) args_.out = {};
    }
    if (chance(10)) column.amax_out = compact(ROPE_DTYPE_F32, {1});
  }

  bool is_coded(const rope_tensor_t &tensor) const { return tensor.dtype != 0 && tensor.dtype != dtype_; }

  void draw_scales() {
    swiglu_quant_args_t &quant = call_.quant;
    const bool has_pairs = args_.out.dtype == ROPE_DTYPE_F4_E2M1X2;
    const bool has_tiles = saw_if(chance(20), "tiles");
    const auto written = [&](const rope_tensor_t &of, rope_tensor_t *scales) {
      if (!is_coded(of)) return;
      const int64_t channels = shape_.back();
      int64_t group = one_of<int64_t>({channels, 128, 128, 32, 16, 64, 1});
      if (group == 0 || channels % group != 0) group = channels;
      if (group == 0) return;
      const rope_dtype_t dtype = has_pairs ? one_of<rope_dtype_t>({kE4M3, ROPE_DTYPE_F8_E8M0, ROPE_DTYPE_F32})
                                           : one_of<rope_dtype_t>({ROPE_DTYPE_F32, ROPE_DTYPE_F32, ROPE_DTYPE_F8_E8M0});
      if (has_tiles) {
        const size_t rank = shape_.size();
        int64_t rows = 1;
        for (size_t axis = has_experts_ ? 1 : 0; axis + 1 < rank; ++axis) rows *= shape_[axis];
        const int64_t groups = channels / group;
        std::vector<int64_t> shape = {(rows + 127) / 128 * 128, (groups + 3) / 4 * 4};
        if (has_experts_) shape.insert(shape.begin(), shape_[0]);
        *scales = compact(has_pairs && chance(50) ? kE4M3 : ROPE_DTYPE_F8_E8M0, shape);
        return;
      }
      std::vector<int64_t> shape = shape_;
      shape.back() = channels / group;
      if (shape.back() % 4 == 0 && shape.size() < 4 && chance(15)) shape.back() /= 4, shape.push_back(4);
      *scales = strided(dtype, shape);
    };
    const bool has_written = chance(70);
    if (has_written) {
      written(args_.out, &quant.scales_out);
      written(args_.grad_gate, &quant.grad_gate_scales_out);
      written(args_.grad_up, &quant.grad_up_scales_out);
      if (has_tiles) quant.scale_layout = SWIGLU_SCALE_LAYOUT_128X4;
    }
    if (!has_written ? chance(60) : quant.scales_out.dtype == kE4M3 && chance(50)) {
      quant.scale = compact(ROPE_DTYPE_F32, {has_experts_ && chance(50) ? shape_[0] : 1});
    }
    if (chance(10)) quant.amax_out = compact(ROPE_DTYPE_F32, {1});
    if (chance(10)) quant.flags = ROPE_QUANT_FLAG_POWER_OF_TWO;
    if (has_written || quant.scale.dtype != 0 || quant.amax_out.dtype != 0) args_.quant = &quant;
    draw_column_scales(has_tiles);
  }

  void draw_column_scales(bool has_tiles) {
    swiglu_column_args_t &column = call_.column;
    const size_t row_axis = has_experts_ ? 1 : 0;
    if (args_.column == nullptr || shape_.size() < row_axis + 2 || chance(15)) return;
    const int64_t rows = shape_[row_axis];
    int64_t group = one_of<int64_t>({32, 32, 128, rows, 1});
    if (group == 0 || rows % group != 0) group = rows;
    if (group == 0) return;
    const auto scales = [&](const rope_tensor_t &of) {
      if (of.dtype == 0) return rope_tensor_t{};
      std::vector<int64_t> shape = shape_;
      shape[row_axis] = rows / group;
      if (has_tiles && group == 32) {
        int64_t channels = 1;
        for (size_t axis = row_axis + 1; axis < shape_.size(); ++axis) channels *= shape_[axis];
        shape = {(channels + 127) / 128 * 128, (rows / 32 + 3) / 4 * 4};
        if (has_experts_) shape.insert(shape.begin(), shape_[0]);
        return compact(ROPE_DTYPE_F8_E8M0, shape);
      }
      return strided(chance(60) ? ROPE_DTYPE_F32 : ROPE_DTYPE_F8_E8M0, shape);
    };
    column.scales_out = scales(column.out);
    column.grad_gate_scales_out = scales(column.grad_gate);
    column.grad_up_scales_out = scales(column.grad_up);
    if (has_tiles && group == 32) column.scale_layout = SWIGLU_SCALE_LAYOUT_128X4;
  }

  void draw_rows() {
    swiglu_input_args_t &input = call_.input;
    const size_t rank = shape_.size();
    const auto factor_type = [&] { return chance(50) ? ROPE_DTYPE_F32 : dtype_; };
    const bool has_offsets = !has_experts_ && rank > 1 && saw_if(chance(15), "expert_offsets");
    const bool has_index = !has_experts_ && rank > 1 && saw_if(chance(10), "row_index");
    const int64_t experts = has_experts_ ? shape_[0] : has_offsets ? between(1, 300) : 0;
    if (has_experts_) input.expert_rows = strided(integer(), {shape_[0]});
    if (has_offsets) input.expert_offsets = compact(integer(), {experts + 1});
    if (has_index) input.row_index = compact(integer(), {shape_[0]});
    const auto bias = [&] {
      std::vector<int64_t> shape = {shape_.back()};
      if (experts > 0) shape.insert(shape.begin(), experts);
      return strided(factor_type(), shape);
    };
    if (chance(20)) {
      saw_if(true, "biases");
      if (chance(85)) input.gate_bias = bias();
      if (chance(85)) input.up_bias = bias();
    }
    args_.input = &input;
    if (!has_experts_ && !has_offsets && chance(15)) args_.num_rows = compact(integer(), {1});
    if (rank < 2 || (!has_index && !chance(30))) return;
    saw_if(true, "row_scale");
    const auto axes = static_cast<std::ptrdiff_t>(has_experts_ ? 2 : 1 + random_.below(static_cast<int64_t>(rank) - 1));
    std::vector<int64_t> shape(shape_.begin(), shape_.begin() + axes);
    if (has_index) shape = {up_to_power(16)};
    args_.row_scale = expandable(factor_type(), shape);
    if (!call_.is_backward || !chance(40)) return;
    saw_if(true, "grad_row_scale");
    args_.grad_row_scale = strided(args_.row_scale.dtype, has_index ? std::vector<int64_t>{shape_[0]} : shape);
  }

  RandomSwigluCall &call_;
  swiglu_args_t &args_;
  rope_dtype_t dtype_ = 0;
  std::vector<int64_t> shape_;
  bool has_experts_ = false, has_codes_ = false;
};

RandomSwigluCall::RandomSwigluCall(uint64_t seed)
    : config(SWIGLU_CONFIG_INIT),
      args(SWIGLU_ARGS_INIT),
      quant(SWIGLU_QUANT_ARGS_INIT),
      input(SWIGLU_INPUT_ARGS_INIT),
      column(SWIGLU_COLUMN_ARGS_INIT) {
  Draw(seed, this).draw();
}

rope_status_t RandomSwigluCall::make() {
  const char *const function = is_backward ? "swiglu_backward" : "swiglu_forward";
  ROPE_TRY(rope::check_swiglu_config("swiglu_desc_create", config, &form));
  return rope::make_swiglu_call(function, config.dtype, form, args, is_backward, &call);
}
