// SPDX-License-Identifier: Apache-2.0
// rope_fuzz.cpp - fuzzes RoPE: configs, calls in both directions, tables and explanations
//
// The bytes draw a request that is mostly valid and then corrupt it in a few places. Tensors have exactly the memory
// that the corrupted request describes, so AddressSanitizer detects a request that the library should not have
// accepted. The results of accepted requests are compared with the oracle, element by element.
#include <algorithm>
#include <cmath>
#include <memory>
#include <string>

#include "core/problem/import.hpp"
#include "core/problem/rope_problem.hpp"
#include "core/problem/step_problem.hpp"
#include "memory.hpp"
#include "plan/rope_plan.hpp"
#include "support/oracle.hpp"
#include "support/tolerance.hpp"

namespace {

using oracle::Pair;
using oracle::Real;
using oracle::Rotation;

constexpr rope_tensor_t rope_args_t::*members[] = {
    &rope_args_t::q,          &rope_args_t::q_out, &rope_args_t::k,         &rope_args_t::k_out,
    &rope_args_t::v,          &rope_args_t::v_out, &rope_args_t::positions, &rope_args_t::start_positions,
    &rope_args_t::cu_seqlens, &rope_args_t::cos,   &rope_args_t::sin,       &rope_args_t::angles,
    &rope_args_t::fault};
constexpr const char *member_names[] = {"q",         "q_out",           "k",          "k_out", "v",   "v_out",
                                        "positions", "start_positions", "cu_seqlens", "cos",   "sin", "angles",
                                        "fault"};
constexpr int num_members = 13;
constexpr int num_rotated = 6;

const rope_dtype_t floats[] = {ROPE_DTYPE_F32, ROPE_DTYPE_F16, ROPE_DTYPE_BF16, ROPE_DTYPE_F64};

// GPUs for which accepted requests are planned: large, small, a part of a large one, old.
constexpr rope::DeviceInfo gpus[] = {
    {true, 0, 132, 90, 6016}, {true, 0, 16, 90, 0}, {true, 0, 1, 75, 0}, {true, 0, 188, 120, 0}};

struct Config {
  explicit Config(Input *input) {
    config.struct_size = sizeof config;
    config.device = input->chance(2) ? ROPE_DEVICE_CUDA : ROPE_DEVICE_CPU;
    config.dtype = floats[input->below(4)];
    config.layout = static_cast<rope_layout_t>(input->between(ROPE_LAYOUT_BSHD, ROPE_LAYOUT_THD));
    config.style = static_cast<rope_style_t>(input->between(ROPE_STYLE_HALF, ROPE_STYLE_INTERLEAVED));
    config.out_style = static_cast<rope_style_t>(input->chance(30) ? input->between(1, 2) : 0);
    config.head_dim =
        static_cast<int32_t>(input->chance(10) ? input->one_of({64, 128, 256, 512, 1024}) : 2 * input->between(1, 24));
    int32_t width = config.head_dim;
    if (input->chance(50)) {
      width = config.rotary_dim = static_cast<int32_t>(2 * input->between(1, config.head_dim / 2));
      config.rotary_offset = static_cast<int32_t>(input->below(config.head_dim - width + 1));
    }
    config.theta = input->one_of({10000.0, 5e5, 1e-3, 1e6, 10000.0, 10000.0, 0.0});
    if (input->chance(10)) config.theta = input->number();
    if (input->chance(30)) config.attention_scale = static_cast<double>(input->between(-64, 64)) / 16;
    if (input->chance(5)) config.attention_scale = input->number();
    config.num_axes = static_cast<int32_t>(input->one_of({0, 0, 0, 1, 2, 3, 4, 8}));
    const bool has_half = config.style == ROPE_STYLE_HALF || config.out_style == ROPE_STYLE_HALF;
    if (input->chance(has_half ? 40 : 2)) {
      const auto block = static_cast<int32_t>(2 * input->between(1, width / 2));
      config.pair_block = width % block == 0 ? block : 2;
    }
    config.num_threads = static_cast<int32_t>(input->between(1, 4));
    input->lie(&config);
    draw_arrays(input);
  }

  // As long as the header requires, for any values of the fields that set the length.
  void draw_arrays(Input *input) {
    const int32_t width = rotated_width();
    const int pairs = width > 0 && width <= 1024 && config.head_dim <= 1024 ? width / 2 : 0;
    config.inv_freq = nullptr;
    config.pair_axis = nullptr;
    if (input->chance(25)) {
      inv_freq = std::make_unique<double[]>(pairs);
      for (int pair = 0; pair < pairs; ++pair) {
        inv_freq[pair] = input->chance(4) ? input->number()
                                          : std::ldexp(static_cast<double>(input->between(-100, 155)), -8 - pair % 24);
      }
      config.inv_freq = inv_freq.get();
    }
    if (config.num_axes > 1 ? input->chance(80) : input->chance(10)) {
      pair_axis = std::make_unique<int32_t[]>(pairs);
      const int32_t axes = std::clamp(config.num_axes, 1, 8);
      for (int pair = 0; pair < pairs; ++pair) {
        pair_axis[pair] = static_cast<int32_t>(input->chance(1) ? input->integer() : input->below(axes));
      }
      config.pair_axis = pair_axis.get();
    }
  }

  int32_t rotated_width() const { return config.rotary_dim != 0 ? config.rotary_dim : config.head_dim; }
  int pairs() const { return rotated_width() / 2; }
  int32_t num_axes() const { return config.num_axes != 0 ? config.num_axes : 1; }
  int axis_of(int pair) const { return config.pair_axis ? config.pair_axis[pair] : 0; }
  bool is_thd() const { return config.layout == ROPE_LAYOUT_THD; }
  rope_style_t written_style() const { return config.out_style != 0 ? config.out_style : config.style; }
  Real scale() const { return config.attention_scale == 0 ? 1 : static_cast<Real>(config.attention_scale); }
  Real frequency(int pair) const {
    return config.inv_freq ? static_cast<Real>(config.inv_freq[pair])
                           : oracle::frequency(config.theta, rotated_width(), pair);
  }
  // The channel of the window that is a member of a pair.
  int channel_of(rope_style_t style, int pair, int member) const {
    if (style == ROPE_STYLE_INTERLEAVED) return 2 * pair + member;
    const int half = (config.pair_block != 0 ? config.pair_block : rotated_width()) / 2;
    return pair / half * 2 * half + pair % half + member * half;
  }
  // Whether the oracle's arithmetic and tolerances apply to the config. It rounds once.
  bool is_ordinary() const {
    if (config.rotation_rounding != 0) return false;
    const Real size = std::fabs(scale());
    if (!(size >= 1e-3L && size <= 1e3L)) return false;
    for (int pair = 0; pair < pairs() && (config.inv_freq || config.theta != 0); ++pair) {
      if (!(std::fabs(frequency(pair)) < 1e6L)) return false;
    }
    return true;
  }

  rope_config_t config = {};
  std::unique_ptr<double[]> inv_freq;
  std::unique_ptr<int32_t[]> pair_axis;
};

int canonical_axis(rope_layout_t layout, int axis) {
  static constexpr int axes[4][4] = {{0, 1, 2, 3}, {1, 0, 2, 3}, {0, 2, 1, 3}, {-1, 0, 1, 2}};
  return axes[layout - ROPE_LAYOUT_BSHD][axis];
}

// A call's tensors, as drawn and corrupted.
class Request {
 public:
  Request(Input *input, const Config &config)
      : in_(*input), config_(config), memory_(1 + input->raw(1)), has_plain_data_(!input->chance(6)) {
    draw_sizes();
    draw_rotated();
    draw_integers();
    draw_rows();
    if (in_.chance(30)) set(&args_.fault, ROPE_DTYPE_I64, {2}, false);
    args_.struct_size = sizeof args_;
    args_.flags = in_.chance(10) ? ROPE_FLAG_PROGRAMMATIC_LAUNCH : 0;
    draw_stray_length();
    in_.lie(&args_);
    args_.norm = nullptr;  // step_fuzz draws groups; a corrupted pointer to a group would not be a request
    args_.cache = nullptr;
    args_.quant = nullptr;
    args_.input = nullptr;
    place();
    is_small_ = memory_.allocate();
    lie_about_data();
    if (is_small_) fill();
    memory_.freeze();
  }

  void run(const rope_desc_t *desc) {
    const StructBytes bytes(&in_, &args_, rope::kRopeArgsFirstSize, sizeof args_);
    const auto *args = bytes.as<rope_args_t>();
    const auto size = static_cast<size_t>(in_.one_of<int64_t>({256, 1, 5, 40}));
    const auto text = std::make_unique<char[]>(size);
    if (in_.chance(3)) {
      const Call no_text("rope_explain");
      expect(!no_text.returned(rope_explain(desc, args, in_.chance(50) ? nullptr : text.get(), 0)),
             "a text of no size");
    }
    const Call call("rope_explain");
    const bool is_served = call.returned(rope_explain(desc, args, text.get(), size));
    if (is_served) {
      expect(!has_bad_data_, "served without memory, or where elements cannot lie");
      expect(args_.flags < 2 * ROPE_FLAG_ACCUMULATE, "served flags");
      expect(std::find(&text[0], &text[size], '\0') != &text[size], "rope_explain ends its text");
      plan();
    }
    check_refusal();
    const std::string refusal = rope_last_error();
    const auto stream = reinterpret_cast<rope_stream_t>(in_.chance(2) ? in_.raw(8) : 0);
    for (const bool is_forward : {true, false}) {
      if (is_served && !is_small_) continue;
      const char *function = is_forward ? "rope_forward" : "rope_backward";
      memory_.restore();
      const Call run(function);
      const bool ran = run.returned(is_forward ? rope_forward(desc, args, stream) : rope_backward(desc, args, stream));
      if (is_forward ? accumulates() : is_of_forward_alone()) {
        expect(!ran, "a direction served what the other one does alone");
        continue;
      }
      expect(ran == (is_served && stream == nullptr), "explain and a call disagree");
      if (ran) {
        verify(is_forward);
      } else if (stream == nullptr) {
        const std::string again = rope_last_error();
        expect(again.substr(again.find(':')) == refusal.substr(refusal.find(':')), "one refusal, two texts");
      }
      memory_.expect_no_other_change(function);
    }
  }

 private:
  void set(rope_tensor_t *tensor, rope_dtype_t dtype, std::initializer_list<int64_t> shape, bool is_input) {
    tensor->dtype = dtype;
    tensor->ndim = static_cast<uint16_t>(shape.size());
    std::copy(shape.begin(), shape.end(), tensor->shape);
    draw_strides(&in_, tensor, is_input);
  }

  void draw_sizes() {
    batches_ = config_.is_thd() ? 1 : in_.length(in_.one_of<int64_t>({1, 2, 3, 1, 2, 3, 2, 0}));
    tokens_ = in_.length(in_.one_of<int64_t>({1, 2, 3, 4, 5, 6, 7, 0}));
    if (in_.chance(3)) tokens_ = in_.integer();
  }

  void draw_rotated() {
    const rope_config_t &config = config_.config;
    const int64_t count = in_.between(1, 3);
    bool is_packed = in_.chance(20);
    int64_t all_heads = 0;
    rope_tensor_t *const tensors[3][2] = {{&args_.q, &args_.q_out}, {&args_.k, &args_.k_out}, {&args_.v, &args_.v_out}};
    for (int i = 0; i < count; ++i) {
      const int64_t heads = in_.length(in_.one_of<int64_t>({1, 2, 3, 1, 2, 3, 4, 0}));
      rope_tensor_t *const tensor = tensors[i][0];
      switch (config.layout) {
        case ROPE_LAYOUT_SBHD:
          set(tensor, config.dtype, {tokens_, batches_, heads, config.head_dim}, true);
          break;
        case ROPE_LAYOUT_BHSD:
          set(tensor, config.dtype, {batches_, heads, tokens_, config.head_dim}, true);
          break;
        case ROPE_LAYOUT_THD:
          set(tensor, config.dtype, {tokens_, heads, config.head_dim}, true);
          break;
        default:
          set(tensor, config.dtype, {batches_, tokens_, heads, config.head_dim}, true);
          break;
      }
      first_head_[i] = all_heads;
      all_heads += heads;
      if (in_.chance(40)) {
        *tensors[i][1] = *tensor;
        if (in_.chance(50)) {
          tensors[i][1]->flags = 0;
          std::fill_n(tensors[i][1]->stride, 4, 0);
          draw_strides(&in_, tensors[i][1], false);
        }
      }
    }
    if (!is_packed || tokens_ > 64) return;
    // q, k and v are parts of one tensor along the heads.
    is_packed_ = true;
    for (int i = 0; i < count; ++i) {
      rope_tensor_t *const tensor = tensors[i][0];
      int64_t running = 1;
      for (int axis = tensor->ndim - 1; axis >= 0; --axis) {
        const bool is_heads = axis == canonical_axis(config.layout, 2);
        if (is_heads) head_stride_ = running;
        tensor->stride[axis] = running;
        running *= is_heads ? all_heads : tensor->shape[axis];
      }
      tensor->flags = ROPE_TENSOR_STRIDED;
    }
  }

  rope_dtype_t integers() { return in_.chance(40) ? ROPE_DTYPE_I64 : ROPE_DTYPE_I32; }

  void draw_each_token(rope_tensor_t *tensor) {
    const bool has_axes = config_.num_axes() > 1, has_batches = in_.chance(50);
    const int64_t axes = in_.chance(25) ? 1 : config_.num_axes();
    const int64_t batches = in_.chance(25) ? 1 : batches_;
    if (has_axes && has_batches) {
      set(tensor, integers(), {axes, batches, tokens_}, true);
    } else if (has_axes) {
      set(tensor, integers(), {axes, tokens_}, true);
    } else if (has_batches) {
      set(tensor, integers(), {batches, tokens_}, true);
    } else {
      set(tensor, integers(), {tokens_}, true);
    }
  }

  void draw_integers() {
    if (config_.is_thd() && in_.chance(60)) {
      sequences_ = in_.between(0, 4);
      set(&args_.cu_seqlens, integers(), {sequences_ + 1}, true);
    }
    if (in_.chance(50)) draw_each_token(&args_.positions);
    if (in_.chance(35)) {
      if (in_.chance(50)) {
        const int64_t batches = sequences_ >= 0 ? sequences_ : batches_;
        set(&args_.start_positions, integers(), {in_.chance(25) ? 1 : batches}, true);
      } else {
        draw_each_token(&args_.start_positions);
      }
    }
    if (in_.chance(20)) args_.position_offset = in_.chance(50) ? in_.between(-4, 20) : in_.integer();
  }

  void draw_rows() {
    if (!in_.chance(45)) return;
    const bool by_token = in_.chance(40), are_angles = in_.chance(35);
    const int64_t axes = config_.num_axes(), pairs = config_.pairs();
    const int64_t columns = in_.one_of({pairs, 2 * pairs, axes > 0 ? pairs / axes : pairs});
    const int64_t rows = by_token ? tokens_ : in_.length(in_.between(0, 9));
    const int64_t axis_rows = in_.chance(25) ? 1 : axes;
    const int64_t batch_rows = in_.chance(25) ? 1 : batches_;
    const rope_dtype_t dtype = floats[in_.below(are_angles ? 3 : 4)];
    if (by_token) {
      args_.table_rows = ROPE_TABLE_BY_TOKEN;
      if (in_.chance(90)) args_.positions = args_.start_positions = {};
      if (in_.chance(90)) args_.position_offset = 0;
    }
    for (rope_tensor_t *tensor : {are_angles ? &args_.angles : &args_.cos, are_angles ? nullptr : &args_.sin}) {
      if (tensor == nullptr) continue;
      const bool has_axes = axes > 1 && (by_token || in_.chance(50));
      const bool has_batches = by_token && !config_.is_thd() && in_.chance(50);
      if (tensor == &args_.sin) {
        *tensor = args_.cos;
        tensor->flags = 0;
        std::fill_n(tensor->stride, 4, 0);
        draw_strides(&in_, tensor, true);
      } else if (has_axes && has_batches) {
        set(tensor, dtype, {axis_rows, batch_rows, rows, columns}, true);
      } else if (has_axes) {
        set(tensor, dtype, {axis_rows, rows, columns}, true);
      } else if (has_batches) {
        set(tensor, dtype, {batch_rows, rows, columns}, true);
      } else {
        set(tensor, dtype, {rows, columns}, true);
      }
    }
  }

  // Sets a length that differs from the others.
  void draw_stray_length() {
    if (!in_.chance(8)) return;
    rope_tensor_t &tensor = args_.*members[in_.below(num_members)];
    if (tensor.ndim != 0) tensor.shape[in_.below(tensor.ndim)] += in_.one_of({-1, 1, 2, -2});
    // cos and sin get one shape; otherwise only their difference would be refused.
    if (&tensor == &args_.cos) std::copy_n(args_.cos.shape, 4, args_.sin.shape);
  }

  // Places tensors in separate memory, in place, packed, or overlapping.
  void place() {
    const rope_tensor_t *placed[num_members];
    int count = 0;
    for (int i = 0; i < num_members; ++i) {
      rope_tensor_t *const tensor = &(args_.*members[i]);
      if (tensor->ndim == 0) continue;
      const bool is_output = i < num_rotated && i % 2 == 1;
      const int64_t size = has_known_shape(*tensor) ? oracle::element_size(tensor->dtype) : 1;
      if (is_packed_ && i < num_rotated && !is_output && count > 0) {
        memory_.place_over(tensor, &args_.q, first_head_[i / 2] * head_stride_ * size);
      } else if (is_output && in_.chance(30)) {
        memory_.place_over(tensor, &(args_.*members[i - 1]), in_.chance(80) ? 0 : size * in_.between(-9, 9));
      } else if (count > 0 && in_.chance(5)) {
        const rope_tensor_t *const other = placed[in_.below(count)];
        memory_.place_over(tensor, other, size * in_.between(-40, 40));
        // The bits of one type are arbitrary numbers in another.
        has_plain_data_ = has_plain_data_ && other->dtype == tensor->dtype;
      } else {
        memory_.place(tensor, in_.chance(25) ? in_.between(1, 7) : 0);
      }
      placed[count++] = tensor;
    }
  }

  void lie_about_data() {
    if (!in_.chance(4)) return;
    rope_tensor_t *const tensor = &(args_.*members[in_.below(num_members)]);
    if (tensor->ndim == 0) return;
    // No operand has one-byte elements, so this is always invalid.
    has_bad_data_ = !is_empty(*tensor);
    tensor->data = in_.chance(50) ? nullptr : static_cast<char *>(tensor->data) + 1;
    is_small_ = false;
  }

  bool is_present(int member) const { return (args_.*members[member]).ndim != 0; }

  void store(const rope_tensor_t &tensor, const Index &index, int64_t value) {
    std::memcpy(element_at(tensor, index), &value, static_cast<size_t>(oracle::element_size(tensor.dtype)));
  }

  void fill_integers(const rope_tensor_t &tensor) {
    if (!has_known_shape(tensor)) return;
    const int64_t kind = in_.below(4);
    for_each_index(tensor, [&](const Index &index) {
      const int64_t value = kind == 0   ? memory_.random().below(9)
                            : kind == 1 ? memory_.random().below(200) - 20
                                        : static_cast<int64_t>(memory_.random().bits());
      store(tensor, index, kind == 3 ? in_.integer() : value);
    });
  }

  void fill() {
    for (int i = 0; i < num_rotated; i += 2) {
      const rope_tensor_t &tensor = args_.*members[i];
      has_plain_data_ ? memory_.fill(tensor) : memory_.fill_bits(tensor);
    }
    fill_integers(args_.positions);
    fill_integers(args_.start_positions);
    for (const rope_tensor_t *tensor : {&args_.cos, &args_.sin, &args_.angles}) {
      if (!has_known_shape(*tensor)) continue;
      if (!has_plain_data_ || tensor->dtype > ROPE_DTYPE_F64) {
        memory_.fill_bits(*tensor);
        continue;
      }
      const double max = tensor != &args_.angles           ? 1.5
                         : tensor->dtype == ROPE_DTYPE_F16 ? 6e4
                                                           : in_.one_of({100.0, 3.0, 1e9, 1e38});
      for_each_index(*tensor, [&](const Index &index) {
        oracle::encode(tensor->dtype, memory_.random().uniform(-1, 1) * max, element_at(*tensor, index));
      });
    }
    const rope_tensor_t &ends = args_.cu_seqlens;
    if (has_known_shape(ends)) {
      int64_t end = 0;
      const bool is_well_formed = !in_.chance(25);
      for_each_index(ends, [&](const Index &index) {
        store(ends, index, is_well_formed ? end : in_.integer());
        end = std::clamp<int64_t>(end + in_.below(4), end, std::max<int64_t>(end, tokens_));
      });
    }
    const rope_tensor_t &fault = args_.fault;
    if (has_known_shape(fault)) {
      for_each_index(fault, [&](const Index &index) { store(fault, index, in_.below(20)); });
    }
  }

  // The shape has one entry for each token; an axis of axes or batches may have length 1.
  bool is_for_each_token(const rope_tensor_t &tensor) const {
    const int leading = config_.num_axes() > 1 ? 1 : 0;
    if (tensor.ndim < leading + 1 || tensor.ndim > leading + 2) return false;
    const auto serves = [](int64_t length, int64_t wanted) { return length == wanted || length == 1; };
    return (leading == 0 || serves(tensor.shape[0], config_.num_axes())) &&
           (tensor.ndim == leading + 1 || serves(tensor.shape[leading], length_of(args_.q, 0))) &&
           tensor.shape[tensor.ndim - 1] == length_of(args_.q, 1);
  }

  // Checks a refusal: a refused overlap is an overlap, and refused shapes of positions do not fit.
  void check_refusal() const {
    if (!is_small_) return;
    const std::string message = rope_last_error();
    if (Call::says("rope_explain: positions has shape")) {
      expect(!is_for_each_token(args_.positions), "refused positions fit");
    }
    const std::string function = "rope_explain: ";
    const auto view = [&](const std::string &name) {
      for (int i = 0; i < num_members; ++i) {
        if (name == member_names[i]) return touched(i);
      }
      finding("a refusal names a tensor that is none");
    };
    if (Call::says("shares elements with")) {
      const size_t at = message.find(" at "), with = message.find(" with ") + 6;
      const std::string first = message.substr(function.size(), at - function.size());
      const std::string second = message.substr(with, message.find(" at ", with) - with);
      expect(share_bytes(view(first), view(second)), "a refused overlap is none");
    }
    if (Call::says("visits an element twice")) {
      const std::string name = message.substr(function.size(), message.find(" visits") - function.size());
      expect(has_element_twice(view(name)), "an element that is visited twice is not");
    }
  }

  bool is_in_place(int member) const {
    const int in = member / 2 * 2;
    return !is_present(in + 1) || is_same(args_.*members[in], args_.*members[in + 1]);
  }

  // The part of a tensor that a call may read or write.
  rope_tensor_t touched(int member) const {
    rope_tensor_t view = args_.*members[member];
    if (member >= num_rotated || !is_in_place(member) || view.shape[view.ndim - 1] != config_.config.head_dim) {
      return view;
    }
    rope_tensor_t window = {};
    expect(rope_tensor_narrow(&view, view.ndim - 1, config_.config.rotary_offset, config_.rotated_width(), &window) ==
               ROPE_STATUS_SUCCESS,
           "the window of a tensor that was read");
    return window;
  }

  void plan() const {
    rope::RopeGeometry geometry = {};
    expect(rope::make_rope_geometry("", config_.config, &geometry) == ROPE_STATUS_SUCCESS, "the geometry, again");
    rope::RopeProblem problem;
    rope::StepProblem step;
    expect(rope::make_rope_problem("", geometry, args_, accumulates(), &problem, &step) == ROPE_STATUS_SUCCESS,
           "the problem, again");
    if (problem.is_empty()) return;
    for (const rope::DeviceInfo &gpu : gpus) {
      rope::RopePlan plan = {};
      const rope_status_t status = rope::plan_rope("", problem, gpu, &plan);
      if (status == ROPE_STATUS_NOT_SUPPORTED) continue;
      expect(status == ROPE_STATUS_SUCCESS, "a plan is made or not supported");
      expect(plan.grid_x > 0 && plan.grid_x <= 0x7fffffff && plan.grid_y > 0 && plan.grid_y <= 0xffff, "the grid");
      expect(plan.threads > 0 && plan.threads <= 1024, "the threads of a block");
      expect(plan.shared_bytes <= 48 << 10, "the shared memory of a block");
    }
  }

  Index index_of(int64_t batch, int64_t token, int64_t head, int64_t channel) const {
    const int64_t canonical[] = {batch, token, head, channel};
    Index index = {};
    for (int axis = 0; axis < 4; ++axis) {
      const int at = canonical_axis(config_.config.layout, axis);
      if (at >= 0) index[at] = canonical[axis];
    }
    return index;
  }

  int64_t length_of(const rope_tensor_t &tensor, int axis) const {
    const int at = canonical_axis(config_.config.layout, axis);
    return at < 0 ? 1 : tensor.shape[at];
  }

  // ---- Results ----

  // Whether the ends of sequences follow the header's rule.
  bool has_good_sequences() const {
    const rope_tensor_t ends = memory_.before(args_.cu_seqlens);
    int64_t last = 0;
    for (int64_t i = 0; i < ends.shape[0]; ++i) {
      const int64_t end = integer_at(ends, {i});
      if (i == 0 ? end != 0 : end < last || end > length_of(args_.q, 1)) return false;
      last = end;
    }
    return true;
  }

  bool is_padding(int64_t token) const {
    if (args_.cu_seqlens.ndim == 0) return false;
    const rope_tensor_t ends = memory_.before(args_.cu_seqlens);
    return token >= integer_at(ends, {ends.shape[0] - 1});
  }

  int64_t sequence_of(int64_t batch, int64_t token, int64_t *first) const {
    *first = 0;
    if (args_.cu_seqlens.ndim == 0) return batch;
    const rope_tensor_t ends = memory_.before(args_.cu_seqlens);
    int64_t sequence = 0;
    while (token >= integer_at(ends, {sequence + 1})) ++sequence;
    *first = integer_at(ends, {sequence});
    return sequence;
  }

  int64_t integer_of(const rope_tensor_t &tensor, int64_t axis, int64_t batch, int64_t token) const {
    const rope_tensor_t view = memory_.before(tensor);
    const int leading = config_.num_axes() > 1 ? 1 : 0;
    Index index = {view.shape[0] == 1 ? 0 : axis};
    if (view.ndim == leading + 2) index[leading] = view.shape[leading] == 1 ? 0 : batch;
    index[view.ndim - 1] = token;
    return integer_at(view, index);
  }

  int64_t position_of(int64_t axis, int64_t batch, int64_t token) const {
    int64_t first;
    const int64_t sequence = sequence_of(batch, token, &first);
    auto sum = static_cast<uint64_t>(token - first);
    if (args_.positions.ndim != 0) sum = static_cast<uint64_t>(integer_of(args_.positions, axis, batch, token));
    const rope_tensor_t &start = args_.start_positions;
    if (start.ndim != 0) {
      const int64_t sequences = args_.cu_seqlens.ndim != 0 ? args_.cu_seqlens.shape[0] - 1 : length_of(args_.q, 0);
      const bool is_by_sequence = start.ndim == 1 && (start.shape[0] == sequences || start.shape[0] == 1);
      sum +=
          static_cast<uint64_t>(is_by_sequence ? integer_at(memory_.before(start), {start.shape[0] == 1 ? 0 : sequence})
                                               : integer_of(start, axis, batch, token));
    }
    return static_cast<int64_t>(sum + static_cast<uint64_t>(args_.position_offset));
  }

  const rope_tensor_t &table() const { return args_.angles.ndim != 0 ? args_.angles : args_.cos; }
  bool is_by_token() const { return args_.table_rows == ROPE_TABLE_BY_TOKEN; }

  bool passes_through(int64_t batch, int64_t token) const {
    if (table().ndim == 0 || is_by_token()) return false;
    const int64_t rows = table().shape[table().ndim - 2];
    for (int pair = 0; pair < config_.pairs(); ++pair) {
      const int64_t position = position_of(config_.axis_of(pair), batch, token);
      if (position < 0 || position >= rows) return true;
    }
    return false;
  }

  Real cell(const rope_tensor_t &tensor, int axis, int64_t batch, int64_t token, int64_t column) const {
    const rope_tensor_t view = memory_.before(tensor);
    const bool has_axes = config_.num_axes() > 1 && (is_by_token() || view.ndim == 3);
    Index index = {};
    int next = 0;
    if (has_axes) index[next++] = view.shape[0] == 1 ? 0 : axis;
    if (next < view.ndim - 2) {
      index[next] = view.shape[next] == 1 ? 0 : batch;
      ++next;
    }
    index[next++] = is_by_token() ? token : position_of(axis, batch, token);
    index[next] = column;
    return value_at(view, index);
  }

  struct Turn {
    Rotation of_x, of_y;
    Real length_x, length_y;
    Real angle_error;
    bool is_known;
  };

  Turn turn_of(bool is_forward, int pair, int64_t batch, int64_t token) const {
    const rope_dtype_t dtype = config_.config.dtype;
    const int axis = config_.axis_of(pair);
    const bool is_scaled = config_.scale() != 1;
    Turn turn = {};
    turn.is_known = true;
    Real min_length = 0;
    if (table().ndim != 0) {
      const int64_t columns = table().shape[table().ndim - 1];
      Rotation by[2];
      for (int member = 0; member < 2; ++member) {
        const int64_t column =
            columns == 2 * config_.pairs() ? config_.channel_of(config_.written_style(), pair, member) : pair % columns;
        if (args_.angles.ndim != 0) {
          const Real radians = cell(args_.angles, axis, batch, token, column);
          turn.is_known = turn.is_known && std::isfinite(radians);
          by[member] = turn.is_known ? oracle::rotation_by_angle(radians) : Rotation{};
          by[member].cos *= config_.scale();
          by[member].sin *= config_.scale();
          min_length = std::fabs(config_.scale());
        } else {
          by[member] = {cell(args_.cos, axis, batch, token, column), cell(args_.sin, axis, batch, token, column)};
        }
      }
      turn.of_x = by[0];
      turn.of_y = by[1];
      turn.angle_error = args_.angles.ndim != 0 ? tolerance::angle(dtype, 1e-18L, is_scaled)
                                                : tolerance::table(dtype, args_.cos.dtype);
    } else {
      const int64_t position = position_of(axis, batch, token);
      const Real frequency = config_.frequency(pair);
      turn.is_known = std::fabs(static_cast<Real>(position) * frequency) < 0x1p62L;
      const Rotation by = turn.is_known ? oracle::rotation(position, frequency) : Rotation{};
      turn.of_x = turn.of_y = {by.cos * config_.scale(), by.sin * config_.scale()};
      turn.angle_error = tolerance::angle(dtype, tolerance::phase(position, frequency), is_scaled);
    }
    turn.length_x = std::hypot(turn.of_x.cos, is_forward ? turn.of_x.sin : turn.of_y.sin);
    turn.length_y = std::hypot(turn.of_y.cos, is_forward ? turn.of_y.sin : turn.of_x.sin);
    turn.length_x = std::max(turn.length_x, min_length);
    turn.length_y = std::max(turn.length_y, min_length);
    return turn;
  }

  // Whether there may be an overlap that the bounded search misses; outputs are then undefined.
  bool has_overlap() const {
    for (int i = 0; i < num_members; ++i) {
      const bool is_output = i == num_members - 1 || (i < num_rotated && (i % 2 == 1 || is_in_place(i)));
      if (!is_present(i) || !is_output) continue;
      if (has_element_twice(touched(i))) {
        expect(!are_few(touched(i)), "an output has one place for two elements");
        return true;
      }
      for (int j = 0; j < num_members; ++j) {
        const bool is_own_input = i < num_rotated && j / 2 == i / 2 && is_in_place(i);
        if (j == i || !is_present(j) || is_own_input) continue;
        if (!share_bytes(touched(i), touched(j))) continue;
        expect(!are_few(touched(i), touched(j)), std::string(member_names[i]) + " lies over " + member_names[j]);
        return true;
      }
    }
    return false;
  }

  // The flag is for backward only; an explanation is then one of backward.
  bool accumulates() const { return (args_.flags & ROPE_FLAG_ACCUMULATE) != 0; }

  // A corrupted request may have a norm, or 8-bit outputs, which backward refuses with other messages.
  bool is_of_forward_alone() const {
    return config_.config.norm != 0 || oracle::is_code(args_.q_out.dtype) || oracle::is_code(args_.k_out.dtype) ||
           oracle::is_code(args_.v_out.dtype);
  }

  // A corrupted request may rotate whole heads as a step; step_fuzz and the tests of steps check the results of steps.
  bool is_step() const {
    if ((args_.flags & ~uint32_t{ROPE_FLAG_PROGRAMMATIC_LAUNCH}) != 0 || !is_present(0)) return true;
    for (int i = 0; i < num_rotated; ++i) {
      const rope_tensor_t &tensor = args_.*members[i];
      if (!is_present(i)) continue;
      if (tensor.shape[tensor.ndim - 1] != config_.config.head_dim || tensor.dtype != config_.config.dtype) return true;
    }
    return false;
  }

  void accept_step() {
    for (int i = 0; i < num_rotated; i += 2) {
      const rope_tensor_t &out = args_.*members[is_present(i + 1) ? i + 1 : i];
      for_each_index(out, [&](const Index &index) { memory_.may_have_changed(out, index); });
    }
    for_each_index(args_.fault, [&](const Index &word) { memory_.may_have_changed(args_.fault, word); });
  }

  int64_t num_elements() const {
    int64_t count = 0;
    for (int i = 0; i < num_rotated; i += 2) count += element_count(args_.*members[i]);
    return count;
  }

  void verify(bool is_forward) {
    if (is_step()) return accept_step();
    const rope_config_t &config = config_.config;
    const bool has_overlaps = has_overlap();
    const bool has_sequences = args_.cu_seqlens.ndim == 0 || has_good_sequences();
    const int64_t elements = num_elements();
    const int64_t cost = length_of(args_.q, 0) * length_of(args_.q, 1) * config_.pairs() + elements / 4;
    const bool is_judged =
        !is_unjudged() && has_plain_data_ && !has_overlaps && has_sequences && config_.is_ordinary() && cost <= 3000;
    const rope_style_t read_style = is_forward ? config.style : config_.written_style();
    const rope_style_t written_style = is_forward ? config_.written_style() : config.style;
    int64_t faults = 0, lowest = 0;
    for (int64_t batch = 0; batch < length_of(args_.q, 0) && elements > 0; ++batch) {
      for (int64_t token = 0; token < length_of(args_.q, 1); ++token) {
        if (has_sequences && is_padding(token)) continue;
        const bool passes = is_judged && passes_through(batch, token);
        if (passes) {
          ++faults;
          if (lowest == 0) lowest = batch * length_of(args_.q, 1) + token + 1;
        }
        for (int pair = 0; pair < config_.pairs() && is_judged; ++pair) {
          const Turn turn = passes ? Turn{} : turn_of(is_forward, pair, batch, token);
          if (!passes && !turn.is_known) continue;
          for (int i = 0; i < num_rotated; i += 2) {
            if (!is_present(i)) continue;
            const rope_tensor_t before = memory_.before(args_.*members[i]);
            const rope_tensor_t &out = args_.*members[is_present(i + 1) ? i + 1 : i];
            for (int64_t head = 0; head < length_of(before, 2); ++head) {
              const auto at = [&](rope_style_t style, int member) {
                return index_of(batch, token, head, config.rotary_offset + config_.channel_of(style, pair, member));
              };
              const Pair in = {value_at(before, at(read_style, 0)), value_at(before, at(read_style, 1))};
              const Pair exact = passes       ? in
                                 : is_forward ? oracle::rotate(in, turn.of_x, turn.of_y)
                                              : oracle::rotate_transposed(in, turn.of_x, turn.of_y);
              const Real length = std::hypot(in.x, in.y);
              const Real slack_x =
                  passes ? 0 : tolerance::rope_slack(config.dtype, length * turn.length_x, turn.angle_error);
              const Real slack_y =
                  passes ? 0 : tolerance::rope_slack(config.dtype, length * turn.length_y, turn.angle_error);
              judge(i, value_at(out, at(written_style, 0)), exact.x, slack_x);
              judge(i, value_at(out, at(written_style, 1)), exact.y, slack_y);
            }
          }
        }
        for (int i = 0; i < num_rotated; i += 2) {
          if (is_present(i)) accept(i, batch, token, is_judged);
        }
      }
    }
    if (args_.fault.ndim == 0) return;
    const rope_tensor_t before = memory_.before(args_.fault);
    if (is_judged) {
      const int64_t first = integer_at(before, {1});
      expect(integer_at(args_.fault, {0}) == integer_at(before, {0}) + faults, "the count of faults");
      expect(integer_at(args_.fault, {1}) == (faults == 0  ? first
                                              : first == 0 ? lowest
                                                           : std::min(first, lowest)),
             "the lowest faulty token");
    }
    for (int64_t word : {0, 1}) memory_.may_have_changed(args_.fault, {word});
  }

  void judge(int member, Real actual, Real exact, Real slack) const {
    if (tolerance::accepts(config_.config.dtype, actual, exact, slack)) return;
    finding(std::string(member_names[member]) + " is " + std::to_string(actual) + ", not " + std::to_string(exact) +
            " within " + std::to_string(slack));
  }

  // Accepts the channels that a token's heads may have received; those outside the window are only copied.
  void accept(int member, int64_t batch, int64_t token, bool is_judged) {
    const bool in_place = is_in_place(member);
    const rope_tensor_t before = memory_.before(args_.*members[member]);
    const rope_tensor_t &out = args_.*members[is_present(member + 1) ? member + 1 : member];
    const int first = config_.config.rotary_offset, end = first + config_.rotated_width();
    for (int64_t head = 0; head < length_of(out, 2); ++head) {
      for (int channel = in_place ? first : 0; channel < (in_place ? end : config_.config.head_dim); ++channel) {
        const Index at = index_of(batch, token, head, channel);
        const bool is_copied = channel < first || channel >= end;
        if (is_copied && is_judged) expect(same_bits_at(before, at, out, at), "a channel outside the window is copied");
        memory_.may_have_changed(out, at);
      }
    }
  }

  Input &in_;
  const Config &config_;
  Memory memory_;
  bool has_plain_data_;
  bool is_small_ = false, is_packed_ = false, has_bad_data_ = false;
  int64_t batches_ = 0, tokens_ = 0, sequences_ = -1;
  int64_t first_head_[3] = {}, head_stride_ = 0;
  rope_args_t args_ = {};
};

// rope_fill_tables: cosines and sines for a descriptor's frequencies.
class Tables {
 public:
  Tables(Input *input, const Config &config) : in_(*input), config_(config), memory_(7) {
    const int64_t axes = config.num_axes(), pairs = config.pairs();
    const int64_t columns = in_.one_of({pairs, 2 * pairs, pairs / axes});
    const int64_t rows = in_.between(0, 9);
    cos_.dtype = floats[in_.below(4)];
    const bool has_axes = axes > 1 && in_.chance(50);
    cos_.ndim = has_axes ? 3 : 2;
    cos_.shape[0] = has_axes ? (in_.chance(50) ? axes : 1) : rows;
    cos_.shape[1] = has_axes ? rows : columns;
    cos_.shape[2] = has_axes ? columns : 0;
    sin_ = cos_;
    draw_strides(&in_, &cos_, false);
    draw_strides(&in_, &sin_, false);
    in_.lie(&cos_);
    in_.lie(&sin_);
    if (cos_.ndim != 0) memory_.place(&cos_, in_.below(8));
    if (sin_.ndim != 0) {
      if (in_.chance(20)) {
        memory_.place_over(&sin_, &cos_, 2 * in_.between(-40, 40));
      } else {
        memory_.place(&sin_, in_.below(8));
      }
    }
    is_small_ = memory_.allocate();
    memory_.freeze();
  }

  void run(const rope_desc_t *desc) {
    const bool is_empty_call = is_empty(cos_);
    if (!is_small_ && !is_empty_call) return;
    memory_.restore();
    const Call call("rope_fill_tables");
    const bool has_cos = !in_.chance(2), has_sin = !in_.chance(2);
    const bool ran =
        call.returned(rope_fill_tables(desc, has_cos ? &cos_ : nullptr, has_sin ? &sin_ : nullptr, nullptr));
    if (!ran && is_small_) {
      if (Call::says("shares elements with")) expect(share_bytes(cos_, sin_), "a refused overlap is none");
      if (Call::says("cos_out visits")) expect(has_element_twice(cos_), "an element that is visited twice is not");
      if (Call::says("sin_out visits")) expect(has_element_twice(sin_), "an element that is visited twice is not");
    }
    if (ran) verify();
    memory_.expect_no_other_change("rope_fill_tables");
  }

 private:
  int pair_of(int64_t column) const {
    const int64_t width = cos_.shape[cos_.ndim - 1];
    if (width != 2 * config_.pairs()) return static_cast<int>(column);
    int pair = 0;
    while (config_.channel_of(config_.written_style(), pair, 0) != column &&
           config_.channel_of(config_.written_style(), pair, 1) != column) {
      ++pair;
    }
    return pair;
  }

  void verify() {
    const bool is_double = cos_.dtype == ROPE_DTYPE_F64;
    const bool is_judged = !is_unjudged() && config_.is_ordinary() && element_count(cos_) <= 512 &&
                           !share_bytes(cos_, sin_) && !has_element_twice(cos_) && !has_element_twice(sin_);
    const Real scale = config_.scale();
    for_each_index(cos_, [&](const Index &index) {
      if (is_judged) {
        const int64_t position = index[cos_.ndim - 2];
        const Real frequency = config_.frequency(pair_of(index[cos_.ndim - 1]));
        const Rotation exact = oracle::rotation(position, frequency);
        const Real slack = ((is_double ? 4e-16L : 1.1e-7L) + tolerance::phase(position, frequency)) * std::fabs(scale) +
                           oracle::ulp(is_double ? ROPE_DTYPE_F64 : ROPE_DTYPE_F32, scale);
        expect(tolerance::accepts(cos_.dtype, value_at(cos_, index), exact.cos * scale, slack), "a cosine");
        expect(tolerance::accepts(cos_.dtype, value_at(sin_, index), exact.sin * scale, slack), "a sine");
      }
      memory_.may_have_changed(cos_, index);
      memory_.may_have_changed(sin_, index);
    });
  }

  Input &in_;
  const Config &config_;
  Memory memory_;
  rope_tensor_t cos_ = {}, sin_ = {};
  bool is_small_ = false;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  draw_float_environment(data, size);
  Input input(data, size);
  Config config(&input);
  const StructBytes bytes(&input, &config.config, rope::kRopeConfigFirstSize, sizeof config.config);
  rope_desc_t *desc = nullptr;
  const Call call("rope_desc_create");
  if (!call.returned(rope_desc_create(bytes.as<rope_config_t>(), &desc))) {
    expect(desc == nullptr, "a descriptor of a refused config");
    return 0;
  }
  expect(desc != nullptr, "no descriptor");
  // An accepted config has a valid geometry.
  const bool is_swapped = input.chance(1);
  if (input.chance(20)) {
    Tables(&input, config).run(desc);
  } else {
    Request(&input, config).run(desc);
  }
  if (is_swapped) {
    rope_desc_destroy(desc);
    const Call refused("rope_backward");
    const rope_args_t args = {};
    expect(!refused.returned(rope_backward(desc, &args, nullptr)), "a destroyed descriptor is served");
    return 0;
  }
  rope_desc_destroy(desc);
  return 0;
}
