// SPDX-License-Identifier: Apache-2.0
// structs_fuzz.cpp - fuzzes the six structs byte by byte, struct_size included
//
// The input is the struct. It is passed in a buffer of exactly struct_size bytes. Only its pointers are replaced, by
// pointers to as much memory as the other members describe. Pointers to groups lead to groups of the struct's own
// tensors, except for SwiGLU's quant, which is refused unread.
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "core/problem/swiglu_problem.hpp"
#include "memory.hpp"

namespace {

// The caller's bytes, cut or filled up to struct_size.
template <class Struct>
class Raw {
 public:
  explicit Raw(Input *input) {
    std::vector<uint8_t> bytes;
    while (!input->is_used_up() && bytes.size() < StructBytes::max_size) {
      bytes.push_back(static_cast<uint8_t>(input->raw(1)));
    }
    uint32_t told = 0;
    bytes.resize(std::max(bytes.size(), sizeof told));
    std::memcpy(&told, bytes.data(), sizeof told);
    const size_t length = told < sizeof told || told > StructBytes::max_size ? sizeof told : told;
    bytes_ = std::make_unique<uint8_t[]>(length);
    std::copy_n(bytes.begin(), std::min(bytes.size(), length), bytes_.get());
    std::memcpy(bytes_.get(), &told, sizeof told);
    known_ = std::min(length, sizeof(Struct));
    std::memcpy(&now, bytes_.get(), known_);
  }

  // The struct with the pointers of `now`.
  const Struct *handed_over() {
    std::memcpy(bytes_.get(), &now, known_);
    return reinterpret_cast<const Struct *>(bytes_.get());
  }

  Struct now = {};

 private:
  std::unique_ptr<uint8_t[]> bytes_;
  size_t known_;
};

size_t pairs_of(int32_t rotary_dim) {
  return rotary_dim >= 2 && rotary_dim <= 1024 ? static_cast<size_t>(rotary_dim / 2) : 0;
}

void fuzz_rope_config(Input *input) {
  Raw<rope_config_t> raw(input);
  rope_config_t &config = raw.now;
  const size_t pairs = pairs_of(config.rotary_dim != 0 ? config.rotary_dim : config.head_dim);
  const auto inv_freq = std::make_unique<double[]>(pairs);
  const auto pair_axis = std::make_unique<int32_t[]>(pairs);
  if (config.inv_freq != nullptr) config.inv_freq = inv_freq.get();
  if (config.pair_axis != nullptr) config.pair_axis = pair_axis.get();
  rope_desc_t *desc = nullptr;
  const Call call("rope_desc_create");
  const bool is_served = call.returned(rope_desc_create(raw.handed_over(), &desc));
  expect(is_served == (desc != nullptr), "a descriptor where one is made and nowhere else");
  rope_desc_destroy(desc);
}

void fuzz_swiglu_config(Input *input) {
  Raw<swiglu_config_t> raw(input);
  swiglu_desc_t *desc = nullptr;
  const Call call("swiglu_desc_create");
  const bool is_served = call.returned(swiglu_desc_create(raw.handed_over(), &desc));
  expect(is_served == (desc != nullptr), "a descriptor where one is made and nowhere else");
  swiglu_desc_destroy(desc);
}

// Allocates the memory of every tensor of a struct.
template <size_t count>
bool place(rope_tensor_t *const (&tensors)[count], Memory *memory) {
  for (rope_tensor_t *tensor : tensors) {
    if (tensor->ndim != 0 && tensor->data != nullptr) memory->place(tensor);
  }
  const bool is_small = memory->allocate();
  for (rope_tensor_t *tensor : tensors) {
    if (is_small && tensor->ndim != 0 && tensor->data != nullptr) memory->fill_bits(*tensor);
  }
  memory->freeze();
  return is_small;
}

// A group in which the bits select tensors of the call for some members.
template <class Group, size_t count, size_t num_members>
Group group_of(rope_tensor_t *const (&tensors)[count], rope_tensor_t Group::*const (&members)[num_members],
               uint64_t bits) {
  Group group = {};
  group.struct_size = sizeof group;
  Random random(bits);
  for (rope_tensor_t Group::*const member : members) {
    if (random.below(4) == 0) group.*member = *tensors[random.below(count)];
  }
  return group;
}

constexpr rope_tensor_t rope_norm_args_t::*norm_members[11] = {
    &rope_norm_args_t::q_weight,    &rope_norm_args_t::k_weight,      &rope_norm_args_t::q_bias,
    &rope_norm_args_t::k_bias,      &rope_norm_args_t::q_in,          &rope_norm_args_t::k_in,
    &rope_norm_args_t::v_in,        &rope_norm_args_t::grad_q_weight, &rope_norm_args_t::grad_k_weight,
    &rope_norm_args_t::grad_q_bias, &rope_norm_args_t::grad_k_bias};
constexpr rope_tensor_t rope_cache_args_t::*cache_members[11] = {
    &rope_cache_args_t::k_cache,  &rope_cache_args_t::v_cache,    &rope_cache_args_t::k_pass_cache,
    &rope_cache_args_t::k_scales, &rope_cache_args_t::v_scales,   &rope_cache_args_t::k_pass_scales,
    &rope_cache_args_t::slots,    &rope_cache_args_t::page_table, &rope_cache_args_t::page_indptr,
    &rope_cache_args_t::sequence, &rope_cache_args_t::positions};

constexpr rope_tensor_t rope_quant_args_t::*quant_members[8] = {
    &rope_quant_args_t::q_scale,      &rope_quant_args_t::k_scale,      &rope_quant_args_t::v_scale,
    &rope_quant_args_t::k_pass_scale, &rope_quant_args_t::q_scales_out, &rope_quant_args_t::k_scales_out,
    &rope_quant_args_t::v_scales_out, &rope_quant_args_t::amax_out};
constexpr rope_tensor_t swiglu_quant_args_t::*swiglu_quant_members[5] = {
    &swiglu_quant_args_t::scale, &swiglu_quant_args_t::scales_out, &swiglu_quant_args_t::amax_out,
    &swiglu_quant_args_t::grad_gate_scales_out, &swiglu_quant_args_t::grad_up_scales_out};
constexpr rope_tensor_t swiglu_column_args_t::*column_members[7] = {
    &swiglu_column_args_t::amax_out,          &swiglu_column_args_t::out,
    &swiglu_column_args_t::grad_gate,         &swiglu_column_args_t::grad_up,
    &swiglu_column_args_t::scales_out,        &swiglu_column_args_t::grad_gate_scales_out,
    &swiglu_column_args_t::grad_up_scales_out};
constexpr rope_tensor_t rope_input_args_t::*rope_input_members[5] = {
    &rope_input_args_t::q_pass, &rope_input_args_t::k_pass, &rope_input_args_t::q_row_factor,
    &rope_input_args_t::k_row_factor, &rope_input_args_t::v_row_factor};

constexpr rope_tensor_t swiglu_input_args_t::*input_members[5] = {
    &swiglu_input_args_t::gate_bias, &swiglu_input_args_t::up_bias, &swiglu_input_args_t::expert_rows,
    &swiglu_input_args_t::expert_offsets, &swiglu_input_args_t::row_index};

void fuzz_rope_args(Input *input) {
  rope_config_t config = {};
  config.struct_size = sizeof config;
  config.device = ROPE_DEVICE_CPU;
  config.dtype = static_cast<rope_dtype_t>(input->between(1, 4));
  config.layout = static_cast<rope_layout_t>(input->between(1, 4));
  config.style = ROPE_STYLE_HALF;
  config.head_dim = 8;
  config.theta = 10000;
  config.num_axes = static_cast<int32_t>(input->between(1, 2));
  rope_desc_t *desc = nullptr;
  expect(rope_desc_create(&config, &desc) == ROPE_STATUS_SUCCESS, "a plain config");
  Raw<rope_args_t> raw(input);
  rope_args_t &args = raw.now;
  Memory memory(3);
  rope_tensor_t *const tensors[] = {&args.q,          &args.q_out, &args.k,         &args.k_out,
                                    &args.v,          &args.v_out, &args.positions, &args.start_positions,
                                    &args.cu_seqlens, &args.cos,   &args.sin,       &args.angles,
                                    &args.fault};
  const bool is_small = place(tensors, &memory);
  rope_norm_args_t norm;
  rope_cache_args_t cache;
  if (args.norm != nullptr) {
    norm = group_of(tensors, norm_members, reinterpret_cast<uintptr_t>(args.norm));
    args.norm = &norm;
  }
  if (args.cache != nullptr) {
    cache = group_of(tensors, cache_members, reinterpret_cast<uintptr_t>(args.cache));
    args.cache = &cache;
  }
  rope_quant_args_t quant;
  rope_input_args_t group;
  if (args.quant != nullptr) {
    quant = group_of(tensors, quant_members, reinterpret_cast<uintptr_t>(args.quant));
    args.quant = &quant;
  }
  if (args.input != nullptr) {
    group = group_of(tensors, rope_input_members, reinterpret_cast<uintptr_t>(args.input));
    args.input = &group;
  }
  char text[256];
  const bool has_codes =
      oracle::is_code(args.q_out.dtype) || oracle::is_code(args.k_out.dtype) || oracle::is_code(args.v_out.dtype);
  // Arguments that one of the two calls refuses. A norm is refused by both, because the descriptor has none.
  const bool is_for_forward = (args.flags & ROPE_FLAG_ACCUMULATE) == 0;
  const bool is_for_backward = args.cache == nullptr && args.quant == nullptr && !has_codes;
  const Call call("rope_explain");
  const bool is_served = call.returned(rope_explain(desc, raw.handed_over(), text, sizeof text));
  if (!is_served || is_small) {
    for (const bool is_forward : {true, false}) {
      memory.restore();
      const char *function = is_forward ? "rope_forward" : "rope_backward";
      const Call run(function);
      const bool ran = run.returned(is_forward ? rope_forward(desc, raw.handed_over(), nullptr)
                                               : rope_backward(desc, raw.handed_over(), nullptr));
      expect(ran == (is_served && (is_forward ? is_for_forward : is_for_backward)), "explain and a call disagree");
      if (!ran) memory.expect_no_other_change(function);
    }
  }
  rope_desc_destroy(desc);
}

void fuzz_swiglu_args(Input *input) {
  swiglu_config_t config = {};
  config.struct_size = sizeof config;
  config.device = ROPE_DEVICE_CPU;
  config.dtype = static_cast<rope_dtype_t>(input->between(1, 4));
  swiglu_desc_t *desc = nullptr;
  expect(swiglu_desc_create(&config, &desc) == ROPE_STATUS_SUCCESS, "a plain config");
  Raw<swiglu_args_t> raw(input);
  swiglu_args_t &args = raw.now;
  Memory memory(5);
  rope_tensor_t *const tensors[] = {&args.gate,     &args.up,        &args.out,     &args.row_scale,     &args.num_rows,
                                    &args.grad_out, &args.grad_gate, &args.grad_up, &args.grad_row_scale};
  const bool is_small = place(tensors, &memory);
  swiglu_input_args_t group;
  if (args.input != nullptr) {
    group = group_of(tensors, input_members, reinterpret_cast<uintptr_t>(args.input));
    args.input = &group;
  }
  swiglu_quant_args_t quant;
  if (args.quant != nullptr) {
    quant = group_of(tensors, swiglu_quant_members, reinterpret_cast<uintptr_t>(args.quant));
    args.quant = &quant;
  }
  swiglu_column_args_t column;
  if (args.column != nullptr) {
    column = group_of(tensors, column_members, reinterpret_cast<uintptr_t>(args.column));
    args.column = &column;
  }
  rope::GatingForm form = {};
  expect(rope::check_swiglu_config("", config, &form) == ROPE_STATUS_SUCCESS, "the config, again");
  char text[256];
  const Call call("swiglu_explain");
  const bool is_explained = call.returned(swiglu_explain(desc, raw.handed_over(), text, sizeof text));
  for (const bool is_backward : {false, true}) {
    rope::SwigluCall made;
    const bool is_good =
        rope::make_swiglu_call("", config.dtype, form, args, is_backward, &made) == ROPE_STATUS_SUCCESS;
    if (is_good && !is_small) continue;
    memory.restore();
    const char *function = is_backward ? "swiglu_backward" : "swiglu_forward";
    const Call run(function);
    const bool ran = run.returned(is_backward ? swiglu_backward(desc, raw.handed_over(), nullptr)
                                              : swiglu_forward(desc, raw.handed_over(), nullptr));
    expect(!ran || is_good, "served what has no problem");
    const bool is_of_direction = (args.grad_out.ndim != 0) == is_backward;
    expect(!is_of_direction || ran == is_explained, "explain and a call disagree");
    if (!ran) memory.expect_no_other_change(function);
  }
  swiglu_desc_destroy(desc);
}

void fuzz_scaling(Input *input) {
  const int32_t width = static_cast<int32_t>(2 * input->between(1, 64));
  const double theta = input->number();
  Raw<rope_scaling_t> raw(input);
  const size_t count = static_cast<size_t>(std::clamp(raw.now.num_factors, 0, 512));
  std::vector<double> arrays[3];
  const double **pointers[] = {&raw.now.short_factor, &raw.now.long_factor, &raw.now.pair_factors};
  for (int i = 0; i < 3; ++i) {
    arrays[i].assign(count, 2.0);
    if (*pointers[i] != nullptr) *pointers[i] = arrays[i].data();
  }
  std::vector<double> inv_freq(pairs_of(width));
  double attention_scale;
  const Call call("rope_scaled_frequencies");
  call.returned(rope_scaled_frequencies(width, theta, raw.handed_over(), inv_freq.data(), &attention_scale));
}

void fuzz_sections(Input *input) {
  const int32_t width = static_cast<int32_t>(2 * input->between(1, 64));
  const double theta = input->number();
  Raw<rope_sections_t> raw(input);
  std::vector<double> inv_freq(pairs_of(width));
  std::vector<int32_t> pair_axis(pairs_of(width));
  const Call call("rope_section_axes");
  call.returned(rope_section_axes(width, theta, raw.handed_over(), pair_axis.data(), inv_freq.data()));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  draw_float_environment(data, size);
  Input input(data, size);
  switch (input.below(6)) {
    case 0:
      fuzz_rope_args(&input);
      break;
    case 1:
      fuzz_swiglu_args(&input);
      break;
    case 2:
      fuzz_rope_config(&input);
      break;
    case 3:
      fuzz_swiglu_config(&input);
      break;
    case 4:
      fuzz_scaling(&input);
      break;
    default:
      fuzz_sections(&input);
      break;
  }
  return 0;
}
