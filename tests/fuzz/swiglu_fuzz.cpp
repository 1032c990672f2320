// SPDX-License-Identifier: Apache-2.0
// swiglu_fuzz.cpp - fuzzes SwiGLU: configs and calls in both directions
//
// Like rope_fuzz.cpp, it makes mostly correct requests with some false members, in memory of exactly the requested
// size. It judges the values of words; codes and scales only by where they are written.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/problem/import.hpp"
#include "core/problem/swiglu_problem.hpp"
#include "memory.hpp"
#include "plan/swiglu_plan.hpp"
#include "support/swiglu_element.hpp"
#include "support/swiglu_rows.hpp"

namespace {

using oracle::Real;
using swiglu_element::Element;
using swiglu_element::Exact;
using swiglu_element::RowTotal;

enum Member {
  gate,
  up,
  out,
  row_scale,
  num_rows,
  gate_bias,
  up_bias,
  expert_rows,
  expert_offsets,
  row_index,
  grad_out,
  grad_gate,
  grad_up,
  grad_row_scale,
  given_scale,
  // From here on all are outputs.
  scales_out,
  grad_gate_scales,
  grad_up_scales,
  amax_out,
  column_out,
  column_grad_gate,
  column_grad_up,
  column_scales,
  column_grad_gate_scales,
  column_grad_up_scales,
  column_amax,
  num_members
};
constexpr const char *member_names[] = {"gate",
                                        "up",
                                        "out",
                                        "row_scale",
                                        "num_rows",
                                        "gate_bias",
                                        "up_bias",
                                        "expert_rows",
                                        "expert_offsets",
                                        "row_index",
                                        "grad_out",
                                        "grad_gate",
                                        "grad_up",
                                        "grad_row_scale",
                                        "quant.scale",
                                        "quant.scales_out",
                                        "quant.grad_gate_scales_out",
                                        "quant.grad_up_scales_out",
                                        "quant.amax_out",
                                        "column.out",
                                        "column.grad_gate",
                                        "column.grad_up",
                                        "column.scales_out",
                                        "column.grad_gate_scales_out",
                                        "column.grad_up_scales_out",
                                        "column.amax_out"};

// Tensors that can have codes, by row and by column, and their scales.
constexpr Member by_row[] = {out, grad_gate, grad_up}, by_column[] = {column_out, column_grad_gate, column_grad_up};
constexpr Member row_scales[] = {scales_out, grad_gate_scales, grad_up_scales};
constexpr Member column_scales_of[] = {column_scales, column_grad_gate_scales, column_grad_up_scales};

const rope_dtype_t floats[] = {ROPE_DTYPE_F32, ROPE_DTYPE_F16, ROPE_DTYPE_BF16, ROPE_DTYPE_F64};
constexpr rope::DeviceInfo gpus[] = {{true, 0, 132, 90, 0}, {true, 0, 1, 75, 0}};

swiglu_config_t draw_config(Input *input) {
  swiglu_config_t config = {};
  config.struct_size = sizeof config;
  config.device = input->chance(2) ? ROPE_DEVICE_CUDA : ROPE_DEVICE_CPU;
  config.dtype = floats[input->below(4)];
  config.num_threads = static_cast<int32_t>(input->between(1, 4));
  if (input->chance(30)) {
    config.alpha = input->one_of({1.702, 0.0, 1.0, -1.0});
    config.limit = input->one_of({7.0, 0.0, 0.25, 0.03, 1.0});
    config.up_offset = input->one_of({1.0, 0.0, -0.5});
    config.out_scale = input->one_of({0.5, 0.0, -2.0});
  }
  if (input->chance(30)) {
    config.activation = static_cast<int32_t>(input->between(0, 3));
    if (config.activation != SWIGLU_ACTIVATION_SWIGLU) config.alpha = 0;
    config.limit_rule = input->chance(30) ? SWIGLU_LIMIT_ACTIVATION : SWIGLU_LIMIT_GATE;
    config.gate_softcap = input->one_of({0.0, 0.0, 4.0, 0.5});
    config.up_softcap = input->one_of({0.0, 0.0, 25.0, 0.25});
    config.product_rounding = input->chance(30) ? SWIGLU_PRODUCT_ROUND_ACTIVATION : 0;
  }
  config.quant_rounding = input->chance(20) ? ROPE_QUANT_ROUND_FIRST : 0;
  for (double *number :
       {&config.alpha, &config.limit, &config.up_offset, &config.out_scale, &config.gate_softcap, &config.up_softcap}) {
    if (input->chance(3)) *number = input->number();
  }
  input->lie(&config);
  return config;
}

class Request {
 public:
  Request(Input *input, const swiglu_config_t &config, bool is_backward)
      : in_(*input),
        config_(config),
        is_backward_(is_backward),
        memory_(1 + input->raw(1)),
        has_plain_data_(!input->chance(15)) {
    draw_tensors();
    args_.struct_size = sizeof args_;
    args_.flags = in_.chance(10) ? ROPE_FLAG_PROGRAMMATIC_LAUNCH : 0;
    in_.lie(&args_);
    if (has_input_) in_.lie(&input_);
    if (has_quant_) in_.lie(&quant_);
    if (has_columns_) in_.lie(&column_);
    input_.struct_size = sizeof input_;  // unlike args, these are passed as whole structs
    quant_.struct_size = sizeof quant_;
    column_.struct_size = sizeof column_;
    args_.input = has_input_ ? &input_ : nullptr;
    args_.quant = has_quant_ ? &quant_ : nullptr;
    args_.column = has_columns_ ? &column_ : nullptr;
    place();
    is_small_ = memory_.allocate();
    if (is_small_) fill();
    if (in_.chance(4)) {
      rope_tensor_t &tensor = tensor_of(in_.below(num_members));
      spoiled_ = &tensor;
      const bool has_bytes = has_known_shape(tensor) && oracle::element_size(tensor.dtype) == 1;  // always aligned
      // Tensors that lie over codes may already have an odd address.
      const bool is_even = reinterpret_cast<uintptr_t>(tensor.data) % 2 == 0;
      tensor.data = in_.chance(50) || has_bytes ? nullptr : static_cast<char *>(tensor.data) + (is_even ? 1 : 0);
      is_small_ = false;
    }
    memory_.freeze();
  }

  void run(const swiglu_desc_t *desc) {
    const StructBytes bytes(&in_, &args_, rope::kSwigluArgsFirstSize, sizeof args_);
    // Args of an older header end before the pointers to some of the further structs.
    if (args_.input == nullptr) input_ = {};
    if (args_.quant == nullptr) quant_ = {};
    if (args_.column == nullptr) column_ = {};
    const char *function = is_backward_ ? "swiglu_backward" : "swiglu_forward";
    const auto stream = reinterpret_cast<rope_stream_t>(in_.chance(2) ? in_.raw(8) : 0);
    // The library plans the call first, so that calls that are too large do not run.
    const bool is_planned = plan();
    const bool has_bad_data = spoiled_ != nullptr && !is_empty(*spoiled_);
    expect(!is_planned || !has_bad_data, "served without memory, or where elements cannot lie");
    const auto *args = bytes.as<swiglu_args_t>();
    memory_.restore();
    const bool is_explained = explain(desc, args);
    memory_.expect_no_other_change("swiglu_explain");
    // grad_out determines the direction of an explanation.
    const bool is_of_direction = is_present(grad_out) == is_backward_;
    expect(!is_of_direction || !is_explained || is_planned, "explained what has no plan");
    if (is_planned && !is_small_) return;
    memory_.restore();
    const Call call(function);
    const bool ran =
        call.returned(is_backward_ ? swiglu_backward(desc, args, stream) : swiglu_forward(desc, args, stream));
    expect(!is_of_direction || ran == (is_explained && stream == nullptr), "explain and a call disagree");
    if (ran) {
      expect(is_planned && stream == nullptr, "served what has no plan");
      verify();
    } else if (is_small_) {
      check_refusal(function);
    }
    memory_.expect_no_other_change(function);
  }

 private:
  rope_tensor_t &tensor_of(int member) {
    rope_tensor_t *const tensors[] = {&args_.gate,
                                      &args_.up,
                                      &args_.out,
                                      &args_.row_scale,
                                      &args_.num_rows,
                                      &input_.gate_bias,
                                      &input_.up_bias,
                                      &input_.expert_rows,
                                      &input_.expert_offsets,
                                      &input_.row_index,
                                      &args_.grad_out,
                                      &args_.grad_gate,
                                      &args_.grad_up,
                                      &args_.grad_row_scale,
                                      &quant_.scale,
                                      &quant_.scales_out,
                                      &quant_.grad_gate_scales_out,
                                      &quant_.grad_up_scales_out,
                                      &quant_.amax_out,
                                      &column_.out,
                                      &column_.grad_gate,
                                      &column_.grad_up,
                                      &column_.scales_out,
                                      &column_.grad_gate_scales_out,
                                      &column_.grad_up_scales_out,
                                      &column_.amax_out};
    return *tensors[member];
  }
  const rope_tensor_t &tensor_of(int member) const { return const_cast<Request *>(this)->tensor_of(member); }

  void set(Member member, rope_dtype_t dtype, int ndim, const int64_t *shape) {
    rope_tensor_t &tensor = tensor_of(member);
    tensor.dtype = dtype;
    tensor.ndim = static_cast<uint16_t>(ndim);
    std::copy_n(shape, ndim, tensor.shape);
    const bool is_input = member == gate || member == up || member == grad_out || member == row_scale ||
                          member == gate_bias || member == up_bias || member == given_scale;
    draw_strides(&in_, &tensor, is_input);
  }

  void draw_tensors() {
    const int ndim = static_cast<int>(in_.between(1, 4));
    int64_t shape[4] = {};
    for (int axis = 0; axis < ndim; ++axis) {
      shape[axis] = axis < ndim - 1  ? in_.one_of<int64_t>({1, 2, 3, 4, 1, 2, 3, 4, 0})
                    : in_.chance(15) ? 16 * in_.between(1, 6)
                                     : in_.between(1, 40);
      shape[axis] = in_.length(shape[axis]);
    }
    if (ndim > 1 && in_.chance(6)) shape[in_.below(ndim - 1)] = 32;
    if (in_.chance(3)) shape[in_.below(ndim)] = in_.integer();
    const rope_dtype_t dtype = config_.dtype;
    const bool strays = in_.chance(3);
    set(gate, dtype, ndim, shape);
    set(up, dtype, ndim, shape);
    if (!is_backward_ || in_.chance(25)) set(out, dtype, ndim, shape);
    if (is_backward_ != strays) set(grad_out, dtype, ndim, shape);
    if (is_backward_ && !in_.chance(15)) set(grad_gate, dtype, ndim, shape);
    if (is_backward_ && !in_.chance(15)) set(grad_up, dtype, ndim, shape);
    if (ndim > 1 && in_.chance(40)) {
      const int axes = static_cast<int>(in_.between(1, ndim - 1));
      const rope_dtype_t rows = in_.chance(50) ? dtype : ROPE_DTYPE_F32;
      set(row_scale, rows, axes, shape);
      if (is_backward_ && in_.chance(60)) set(grad_row_scale, rows, axes, shape);
    }
    const bool has_expert_rows = ndim > 2 && in_.chance(25);
    const bool has_offsets = ndim > 1 && in_.chance(has_expert_rows ? 3 : 25);
    const bool has_experts = has_expert_rows || has_offsets;
    has_input_ = has_experts || in_.chance(20);
    if (has_expert_rows) set(expert_rows, in_.chance(50) ? ROPE_DTYPE_I64 : ROPE_DTYPE_I32, 1, shape);
    int64_t experts = shape[0];
    if (has_offsets) {
      experts = in_.length(in_.between(1, 5));
      const int64_t entries = experts + 1;
      set(expert_offsets, in_.chance(50) ? ROPE_DTYPE_I64 : ROPE_DTYPE_I32, 1, &entries);
    }
    if (has_input_ && args_.row_scale.ndim == 1 && in_.chance(has_expert_rows ? 3 : 40)) {
      const int64_t factors = in_.between(0, 6);
      set(row_scale, args_.row_scale.dtype, 1, &factors);
      set(row_index, in_.chance(50) ? ROPE_DTYPE_I64 : ROPE_DTYPE_I32, 1, shape);
    }
    for (const Member member : {gate_bias, up_bias}) {
      if (!has_input_ || !in_.chance(60)) continue;
      const bool is_by_expert = has_experts && in_.chance(50);
      const int64_t sizes[] = {is_by_expert ? experts : shape[ndim - 1], shape[ndim - 1]};
      set(member, in_.chance(50) ? dtype : ROPE_DTYPE_F32, is_by_expert ? 2 : 1, sizes);
    }
    if (!has_experts && in_.chance(25)) {
      const int64_t one = 1;
      set(num_rows, in_.chance(50) ? ROPE_DTYPE_I64 : ROPE_DTYPE_I32, 1, &one);
    }
    if (in_.chance(30)) draw_codes(ndim, shape, has_experts ? experts : 1, has_expert_rows ? 1 : 0);
    // gate and up, or their gradients, may be interleaved along the last axis.
    alternates_[0] = in_.chance(15);
    alternates_[1] = is_backward_ && in_.chance(15);
    for (int pair = 0; pair < 2; ++pair) {
      if (!alternates_[pair] || tensor_of(pair ? grad_gate : gate).ndim == 0) continue;
      for (const Member member : {pair ? grad_gate : gate, pair ? grad_up : up}) {
        rope_tensor_t &tensor = tensor_of(member);
        int64_t running = 2;
        for (int axis = tensor.ndim - 1; axis >= 0; --axis) {
          tensor.stride[axis] = running;
          if (__builtin_mul_overflow(running, std::max<int64_t>(1, tensor.shape[axis]), &running)) running = 2;
        }
        tensor.flags = ROPE_TENSOR_STRIDED;
      }
    }
  }

  rope_dtype_t draw_code() { return in_.chance(50) ? ROPE_DTYPE_F8_E4M3 : ROPE_DTYPE_F8_E5M2; }

  void draw_codes(int ndim, const int64_t (&shape)[4], int64_t experts, int row_axis) {
    const bool has_pairs = is_present(out) && !is_backward_ && in_.chance(30);
    if (has_pairs) {
      int64_t pairs[4] = {};
      std::copy_n(shape, ndim, pairs);
      pairs[ndim - 1] /= 2;
      set(out, ROPE_DTYPE_F4_E2M1X2, ndim, pairs);
    }
    for (const Member member : by_row) {
      const bool is_of_call = (member != out) == is_backward_;
      if (has_pairs || !is_present(member) || in_.chance(is_of_call ? 15 : 97)) continue;
      tensor_of(member).dtype = draw_code();
    }
    has_columns_ = in_.chance(40);
    for (int i = 0; i < 3 && has_columns_; ++i) {
      const bool is_of_call = (i > 0) == is_backward_;
      if (in_.chance(is_of_call ? 25 : 97)) continue;
      set(by_column[i], draw_code(), ndim, shape);
      if (in_.chance(30)) tensor_of(by_row[i]) = {};
    }
    has_quant_ = in_.chance(80);
    const int64_t one = 1;
    bool has_e4m3 = false;
    if (has_quant_) {
      quant_.flags = in_.chance(30) ? static_cast<uint32_t>(in_.between(1, 3)) : 0;
      if (in_.chance(30)) set(amax_out, ROPE_DTYPE_F32, 1, &one);
      if (in_.chance(40)) set(given_scale, ROPE_DTYPE_F32, 1, in_.chance(50) ? &experts : &one);
      has_e4m3 = has_pairs && in_.chance(60);
      if (ndim > 1 && (!is_present(given_scale) || has_e4m3 || in_.chance(5))) draw_row_scales(ndim, shape, has_e4m3);
    }
    if (!has_columns_) return;
    column_.flags = in_.chance(30) ? static_cast<uint32_t>(in_.between(1, 3)) : 0;
    if (in_.chance(30)) set(column_amax, ROPE_DTYPE_F32, 1, &one);
    if (in_.chance(is_present(given_scale) ? 50 : 90)) draw_column_scales(ndim, shape, row_axis);
  }

  void draw_row_scales(int ndim, const int64_t (&shape)[4], bool has_e4m3) {
    const int rows = static_cast<int>(in_.between(1, ndim - 1));
    int64_t elements = 1, sizes[4] = {};
    for (int axis = 0; axis < ndim; ++axis) {
      if (axis < rows) {
        sizes[axis] = shape[axis];
      } else if (__builtin_mul_overflow(elements, shape[axis], &elements)) {
        elements = 1;
      }
    }
    sizes[rows] = in_.one_of<int64_t>({1, elements, 2, 4});
    if (elements % 2 == 0 && in_.chance(30)) sizes[rows] = elements / 2;
    const rope_dtype_t dtype = has_e4m3 ? ROPE_DTYPE_F8_E4M3 : in_.chance(50) ? ROPE_DTYPE_F8_E8M0 : ROPE_DTYPE_F32;
    const int64_t group = has_e4m3 ? 16 : 32;
    const bool has_tiles = elements % group == 0 && sizes[rows - 1] <= INT64_MAX - 127 && in_.chance(40);
    if (has_tiles) {
      sizes[rows - 1] = (sizes[rows - 1] + 127) / 128 * 128;
      sizes[rows] = (elements / group + 3) / 4 * 4;
    }
    const bool is_split = !has_tiles && rows < 3 && sizes[rows] % 4 == 0 && in_.chance(30);
    if (is_split) sizes[rows] /= 4, sizes[rows + 1] = 4;
    draw_scales(by_row, row_scales, dtype, rows + (is_split ? 2 : 1), sizes, has_tiles);
    quant_.scale_layout = draw_layout(has_tiles);
    quant_.scale_floor = draw_floor();
  }

  void draw_column_scales(int ndim, const int64_t (&shape)[4], int row_axis) {
    const int64_t rows = shape[row_axis];
    int64_t channels = 1, sizes[4] = {};
    std::copy_n(shape, ndim, sizes);
    sizes[row_axis] = in_.one_of<int64_t>({1, rows, 2, rows / 32});
    for (int axis = row_axis + 1; axis < ndim; ++axis) {
      if (__builtin_mul_overflow(channels, shape[axis], &channels)) channels = 1;
    }
    const bool has_tiles = ndim > row_axis + 1 && rows % 32 == 0 && channels <= INT64_MAX - 127 && in_.chance(40);
    if (has_tiles) {
      sizes[row_axis] = (channels + 127) / 128 * 128;
      sizes[row_axis + 1] = (rows / 32 + 3) / 4 * 4;
    }
    const rope_dtype_t dtype = in_.chance(50) ? ROPE_DTYPE_F8_E8M0 : ROPE_DTYPE_F32;
    draw_scales(by_column, column_scales_of, dtype, has_tiles ? row_axis + 2 : ndim, sizes, has_tiles);
    column_.scale_layout = draw_layout(has_tiles);
    column_.scale_floor = draw_floor();
  }

  void draw_scales(const Member (&codes)[3], const Member (&scales)[3], rope_dtype_t dtype, int ndim,
                   const int64_t *sizes, bool has_tiles) {
    for (int i = 0; i < 3; ++i) {
      if (in_.chance(oracle::is_code(tensor_of(codes[i]).dtype) ? 10 : 97)) continue;
      set(scales[i], dtype, ndim, sizes);
      rope_tensor_t &tensor = tensor_of(scales[i]);
      if (has_tiles && in_.chance(90)) tensor.flags = 0, std::fill_n(tensor.stride, 4, 0);  // tiles must be compact
    }
  }

  int32_t draw_layout(bool has_tiles) {
    return has_tiles ? SWIGLU_SCALE_LAYOUT_128X4 : in_.chance(1) ? static_cast<int32_t>(in_.integer()) : 0;
  }

  double draw_floor() { return in_.chance(20) ? in_.one_of({1e-4, 1.0, 1e-30}) : 0; }

  void place() {
    const rope_tensor_t *placed[num_members];
    int count = 0;
    for (int i = 0; i < num_members; ++i) {
      rope_tensor_t *const tensor = &tensor_of(i);
      if (tensor->ndim == 0) continue;
      const int64_t size = has_known_shape(*tensor) ? oracle::element_size(tensor->dtype) : 1;
      const bool may_lie_over_input = i == out || (i >= grad_gate && i <= grad_row_scale);
      if (i == up && alternates_[0]) {
        memory_.place_over(tensor, &args_.gate, size * in_.one_of<int64_t>({1, -1, 3}));
      } else if (i == grad_up && alternates_[1]) {
        memory_.place_over(tensor, &args_.grad_gate, size * in_.one_of<int64_t>({1, -1, 3}));
      } else if (may_lie_over_input && in_.chance(25)) {
        const Member over = i == grad_row_scale ? row_scale : in_.one_of({gate, up, grad_out});
        if (tensor_of(over).ndim != 0 && in_.chance(80)) {
          std::copy_n(tensor_of(over).stride, 4, tensor->stride);
          tensor->flags = tensor_of(over).flags;
        }
        memory_.place_over(tensor, &tensor_of(over), in_.chance(85) ? 0 : size * in_.between(-9, 9));
      } else if (count > 0 && in_.chance(5)) {
        const rope_tensor_t *const other = placed[in_.below(count)];
        memory_.place_over(tensor, other, size * in_.between(-40, 40));
        // The bits of one type may be any number of another type.
        has_plain_data_ = has_plain_data_ && other->dtype == tensor->dtype;
      } else {
        memory_.place(tensor, in_.chance(25) ? in_.between(1, 7) : 0);
      }
      placed[count++] = tensor;
    }
  }

  void fill() {
    for (const Member member : {gate, up, grad_out, row_scale, gate_bias, up_bias}) {
      const rope_tensor_t &tensor = tensor_of(member);
      if (!has_known_shape(tensor)) continue;
      if (!has_plain_data_ || tensor.dtype > ROPE_DTYPE_F64) {
        memory_.fill_bits(tensor);
        continue;
      }
      for_each_index(tensor, [&](const Index &index) {
        oracle::encode(tensor.dtype, memory_.random().mixed() / 16, element_at(tensor, index));
      });
    }
    for (const Member member : {num_rows, expert_rows}) {
      const rope_tensor_t &counts = tensor_of(member);
      if (!has_known_shape(counts)) continue;
      for_each_index(counts, [&](const Index &index) {
        const int64_t rows = in_.chance(50) ? in_.between(0, 4) : in_.integer();
        std::memcpy(element_at(counts, index), &rows, static_cast<size_t>(oracle::element_size(counts.dtype)));
      });
    }
    int64_t before = 0;
    for (const Member member : {expert_offsets, row_index}) {
      const rope_tensor_t &numbers = tensor_of(member);
      if (!has_known_shape(numbers)) continue;
      const bool rises = member == expert_offsets && in_.chance(60);
      for_each_index(numbers, [&](const Index &index) {
        const int64_t number = rises            ? std::min<int64_t>(before + in_.between(0, 2), args_.gate.shape[0])
                               : in_.chance(90) ? in_.between(-1, 6)
                                                : in_.integer();
        before = number;
        std::memcpy(element_at(numbers, index), &number, static_cast<size_t>(oracle::element_size(numbers.dtype)));
      });
    }
  }

  bool explain(const swiglu_desc_t *desc, const swiglu_args_t *args) {
    const auto size = static_cast<size_t>(in_.one_of<int64_t>({256, 1, 5, 40}));
    const auto text = std::make_unique<char[]>(size);
    const Call call("swiglu_explain");
    const bool is_explained = call.returned(swiglu_explain(desc, args, text.get(), size));
    expect(!is_explained || std::find(&text[0], &text[size], '\0') != &text[size], "swiglu_explain ends its text");
    return is_explained;
  }

  bool plan() const {
    const char *function = is_backward_ ? "swiglu_backward" : "swiglu_forward";
    rope::GatingForm form = {};
    expect(rope::check_swiglu_config("", config_, &form) == ROPE_STATUS_SUCCESS, "the config, again");
    rope::SwigluCall call;
    if (rope::make_swiglu_call(function, config_.dtype, form, args_, is_backward_, &call) != ROPE_STATUS_SUCCESS) {
      return false;
    }
    if (call.is_empty()) return true;
    for (const rope::DeviceInfo &gpu : gpus) {
      rope::SwigluCallPlan plans = {};
      const rope_status_t status = rope::plan_swiglu_call(function, call, gpu, &plans);
      if (status == ROPE_STATUS_NOT_SUPPORTED) continue;
      expect(status == ROPE_STATUS_SUCCESS, "a plan is made or not supported");
      std::vector<rope::SwigluPlan> launches;
      if (plans.has_blocks) launches.push_back(plans.blocks);
      for (int i = 0; static_cast<int>(launches.size()) < plans.num_launches(call); ++i) {
        launches.push_back(plans.plans[i]);
      }
      for (const rope::SwigluPlan &plan : launches) {
        expect(plan.grid_x > 0 && plan.grid_x <= 0x7fffffff && plan.grid_y > 0 && plan.grid_y <= 0xffff, "the grid");
        expect(plan.threads > 0 && plan.threads <= 1024, "the threads of a block");
      }
    }
    return true;
  }

  void check_refusal(const std::string &function) const {
    const std::string message = rope_last_error();
    const auto view = [&](const std::string &name) -> const rope_tensor_t & {
      for (int i = 0; i < num_members; ++i) {
        if (name == member_names[i]) return tensor_of(i);
      }
      finding("a refusal names a tensor that is none");
    };
    const size_t name = function.size() + 2;
    if (Call::says("shares elements with")) {
      const size_t at = message.find(" at "), with = message.find(" with ") + 6;
      expect(share_bytes(view(message.substr(name, at - name)),
                         view(message.substr(with, message.find(" at ", with) - with))),
             "a refused overlap is none");
    }
    if (Call::says("visits an element twice")) {
      expect(has_element_twice(view(message.substr(name, message.find(" visits") - name))),
             "an element that is visited twice is not");
    }
  }

  bool is_output(int member) const {
    if (member == out || member >= scales_out) return true;
    return is_backward_ && member >= grad_gate && member <= grad_row_scale;
  }
  bool is_present(int member) const { return tensor_of(member).ndim != 0; }

  // Whether rows read elements of a tensor at places other than their own.
  bool is_gathered(int member) const {
    const bool is_bias = member == gate_bias || member == up_bias;
    return (member == row_scale && is_present(row_index)) ||
           (is_bias && is_present(expert_offsets) && tensor_of(member).ndim == 2);
  }

  bool has_overlap() const {
    for (int i = 0; i < num_members; ++i) {
      if (!is_present(i) || !is_output(i)) continue;
      const rope_tensor_t &output = tensor_of(i);
      if (has_element_twice(output)) {
        expect(!are_few(output), "an output has one place for two elements");
        return true;
      }
      for (int j = 0; j < num_members; ++j) {
        if (i == j || !is_present(j)) continue;
        const bool is_in_place = !is_output(j) && !is_gathered(j) && is_same(output, tensor_of(j));
        if (is_in_place || !share_bytes(output, tensor_of(j))) continue;
        expect(!are_few(output, tensor_of(j)), std::string(member_names[i]) + " lies over " + member_names[j]);
        return true;
      }
    }
    return false;
  }

  bool is_ordinary() const {
    const auto is_moderate = [](double number) {
      return number == 0 || (std::fabs(number) > 1e-3 && std::fabs(number) < 100);
    };
    return is_moderate(config_.alpha) && is_moderate(config_.limit) && is_moderate(config_.up_offset) &&
           is_moderate(config_.out_scale) && is_moderate(config_.gate_softcap) && is_moderate(config_.up_softcap);
  }

  std::string text_of(const swiglu_element::Inputs &in) const {
    char text[400];
    std::snprintf(text, sizeof text,
                  "gate %Lg, up %Lg, grad_out %Lg, row_scale %Lg; dtype %d, form %g %g %g %g, activation %d, "
                  "limit_rule %d, caps %g %g, product_rounding %d",
                  in.gate, in.up, in.grad_out, in.row_scale, config_.dtype, config_.alpha, config_.limit,
                  config_.up_offset, config_.out_scale, config_.activation, config_.limit_rule, config_.gate_softcap,
                  config_.up_softcap, config_.product_rounding);
    return text;
  }

  void judge(Member member, Real actual, const Exact &exact, const swiglu_element::Inputs &in) const {
    if (tolerance::accepts(tensor_of(member).dtype, actual, exact.value, exact.slack)) return;
    finding(std::string(member_names[member]) + " of " + text_of(in) + " is " + std::to_string(actual) + ", not " +
            std::to_string(exact.value) + ", off by " + std::to_string((actual - exact.value) / exact.slack) +
            " of what it may be");
  }

  void verify() {
    const bool is_sound = !is_unjudged() && !has_overlap() && is_ordinary();
    const bool is_judged = is_sound && has_plain_data_ && element_count(args_.gate) <= 1500;
    const rope_dtype_t arithmetic = config_.dtype == ROPE_DTYPE_F64 ? ROPE_DTYPE_F64 : ROPE_DTYPE_F32;
    const oracle::SwigluForm form = swiglu_element::form_of(arithmetic, config_);
    rope_tensor_t before[num_members];
    for (int i = 0; i < num_members; ++i) before[i] = memory_.before(tensor_of(i));
    int64_t rows = args_.gate.shape[0];
    if (is_present(num_rows)) rows = std::clamp<int64_t>(integer_at(before[num_rows], {}), 0, rows);
    struct Row {
      RowTotal total;
      bool is_finite = true;
    };
    std::map<Index, Row> totals;
    std::vector<int64_t> offsets;
    if (is_present(expert_offsets)) {
      for_each_index(before[expert_offsets],
                     [&](const Index &at) { offsets.push_back(integer_at(before[expert_offsets], at)); });
    }
    const auto expert_of = [&](int64_t row) { return swiglu_rows::expert_of(offsets, args_.gate.shape[0], row); };
    const auto with_bias = [&](Real value, Member bias, const Index &at) {
      if (!is_present(bias)) return value;
      const bool is_by_expert = before[bias].ndim == 2;
      const int64_t column = at[args_.gate.ndim - 1], expert = is_present(expert_offsets) ? expert_of(at[0]) : at[0];
      const Index place = {is_by_expert ? expert : column, is_by_expert ? column : 0};
      return oracle::sum(arithmetic, value, value_at(before[bias], place));
    };
    for_each_index(args_.gate, [&](const Index &at) {
      if (at[0] >= rows) return;
      if (is_present(expert_rows) && at[1] >= integer_at(before[expert_rows], {at[0]})) return;
      if (is_present(expert_offsets) && expert_of(at[0]) < 0) return;
      Index row = {};
      std::copy_n(at.begin(), args_.row_scale.ndim, row.begin());
      Index factor = row;
      if (is_present(row_index)) {
        factor[0] = integer_at(before[row_index], {at[0]});
        if (factor[0] < 0 || factor[0] >= args_.row_scale.shape[0]) return;
      }
      const swiglu_element::Inputs in = {with_bias(value_at(before[gate], at), gate_bias, at),
                                         with_bias(value_at(before[up], at), up_bias, at),
                                         is_backward_ ? value_at(before[grad_out], at) : 0,
                                         is_present(row_scale) ? value_at(before[row_scale], factor) : 1};
      // A large gate with a bias may have a rounded activation that is infinite; its product with 0 is a NaN.
      const bool may_overflow = config_.product_rounding != 0 && std::abs(in.gate) > oracle::max_finite(config_.dtype);
      const bool is_finite = std::isfinite(in.gate) && std::isfinite(in.up) && std::isfinite(in.grad_out) &&
                             std::isfinite(in.row_scale) && !may_overflow;
      for (const Member member : {out, grad_gate, grad_up, column_out, column_grad_gate, column_grad_up}) {
        if (!is_present(member)) continue;
        const rope_tensor_t &tensor = tensor_of(member);
        if (tensor.dtype == ROPE_DTYPE_F4_E2M1X2) {
          Index pair = at;
          pair[tensor.ndim - 1] /= 2;
          memory_.may_have_changed(tensor, pair);
          continue;
        }
        const Real actual = value_at(tensor, at);
        const bool is_code = oracle::is_code(tensor.dtype);
        if (is_finite && is_sound && !is_code && std::isnan(actual)) {
          finding(std::string(member_names[member]) + " of finite " + text_of(in) + " is a NaN");
        }
        if (is_judged && !is_code) {
          const Element element(in, form, arithmetic);
          judge(member, actual,
                member == out       ? element.out()
                : member == grad_up ? element.grad_up()
                                    : element.grad_gate(),
                in);
        }
        memory_.may_have_changed(tensor, at);
      }
      if (!is_present(grad_row_scale)) return;
      Row &sum = totals[row];
      sum.is_finite = sum.is_finite && is_finite;
      if (is_judged) sum.total.add(Element(in, form, arithmetic));
    });
    const rope_tensor_t &gradient = args_.grad_row_scale;
    for (const auto &[row, sum] : totals) {
      const Real actual = value_at(gradient, row);
      if (is_judged)
        judge(grad_row_scale, actual, sum.total.grad_row_scale(arithmetic, gradient.dtype), sum.total.first);
      if (sum.is_finite && is_sound) expect(!std::isnan(actual), "finite inputs gave a NaN");
      memory_.may_have_changed(gradient, row);
    }
    for (const Member member : {scales_out, grad_gate_scales, grad_up_scales, amax_out, column_scales,
                                column_grad_gate_scales, column_grad_up_scales, column_amax}) {
      if (!is_present(member)) continue;
      for_each_index(tensor_of(member), [&](const Index &at) { memory_.may_have_changed(tensor_of(member), at); });
    }
    // The sum of a row without elements may be written or not.
    if (totals.empty() && is_present(grad_row_scale)) {
      for_each_index(gradient, [&](const Index &at) {
        if (at[0] < rows) memory_.may_have_changed(gradient, at);
      });
    }
  }

  Input &in_;
  const swiglu_config_t &config_;
  bool is_backward_;
  Memory memory_;
  bool has_plain_data_;
  bool has_input_ = false;
  bool has_quant_ = false;
  bool has_columns_ = false;
  bool is_small_ = false;
  const rope_tensor_t *spoiled_ = nullptr;  // its data does not point to its memory
  bool alternates_[2] = {};
  swiglu_args_t args_ = {};
  swiglu_input_args_t input_ = {};
  swiglu_quant_args_t quant_ = {};
  swiglu_column_args_t column_ = {};
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  draw_float_environment(data, size);
  Input input(data, size);
  swiglu_config_t config = draw_config(&input);
  const StructBytes bytes(&input, &config, rope::kSwigluConfigFirstSize, sizeof config);
  swiglu_desc_t *desc = nullptr;
  const Call call("swiglu_desc_create");
  if (!call.returned(swiglu_desc_create(bytes.as<swiglu_config_t>(), &desc))) {
    expect(desc == nullptr, "a descriptor of a refused config");
    return 0;
  }
  Request(&input, config, input.chance(60)).run(desc);
  swiglu_desc_destroy(desc);
  return 0;
}
