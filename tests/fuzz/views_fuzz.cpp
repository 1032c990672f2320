// SPDX-License-Identifier: Apache-2.0
// views_fuzz.cpp - fuzzes overlaps and repeated elements of views
//
// Compares the library's answer, whether two views share bytes, with a search through their elements. It also makes
// calls whose tensors visit little memory very often: they must end soon for any shapes, strides and contents.
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <initializer_list>
#include <string>
#include <vector>

#include "core/problem/overlap.hpp"
#include "core/problem/view.hpp"
#include "memory.hpp"

namespace {

int64_t stride_up_to(Input *input, int64_t max) {
  const int64_t stride = input->between(1, max);
  return input->chance(25) ? -stride : stride;
}

// ---- Overlaps of views ----

// A tensor of so many bytes from one fixed address.
rope_tensor_t unreal_tensor(rope_dtype_t dtype, std::initializer_list<int64_t> shape,
                            std::initializer_list<int64_t> stride) {
  rope_tensor_t tensor = {};
  tensor.data = reinterpret_cast<void *>(uintptr_t{1} << 40);
  tensor.dtype = dtype;
  tensor.ndim = static_cast<uint16_t>(shape.size());
  tensor.flags = ROPE_TENSOR_STRIDED;
  std::copy(shape.begin(), shape.end(), tensor.shape);
  std::copy(stride.begin(), stride.end(), tensor.stride);
  return tensor;
}

struct Pair {
  rope_tensor_t tensor[2];
  bool is_decided;  // the answer is exact for any lengths
};

Pair draw_pair(Input *input) {
  Pair pair = {};
  const int64_t kind = input->below(4);
  pair.is_decided = kind < 3;
  const int64_t shared[] = {stride_up_to(input, 900), stride_up_to(input, 60)};
  for (rope_tensor_t &tensor : pair.tensor) {
    const auto dtype = input->one_of({ROPE_DTYPE_F32, ROPE_DTYPE_F16, ROPE_DTYPE_F64, ROPE_DTYPE_F8_E4M3});
    const int64_t rows = input->between(1, 60), columns = input->between(1, 8);
    if (kind == 0) {
      tensor = unreal_tensor(dtype, {input->between(1, 3000)}, {stride_up_to(input, 3000)});
    } else if (kind == 1) {
      tensor = unreal_tensor(dtype, {rows, columns}, {stride_up_to(input, 900), input->one_of<int64_t>({1, -1})});
    } else if (kind == 2) {
      tensor = unreal_tensor(pair.tensor[0].dtype != 0 ? pair.tensor[0].dtype : dtype, {rows, columns},
                             {shared[0], shared[1]});
    } else {
      tensor = unreal_tensor(dtype, {0, 0, 0, 0}, {0, 0, 0, 0});
      tensor.ndim = static_cast<uint16_t>(input->between(1, 4));
      for (int axis = 0; axis < tensor.ndim; ++axis) {
        tensor.shape[axis] = input->between(1, 6);
        tensor.stride[axis] = stride_up_to(input, input->one_of<int64_t>({40, 4, 900}));
      }
    }
  }
  const int64_t size = oracle::element_size(pair.tensor[1].dtype);
  const int64_t room = (visits_of(pair.tensor[0]).bytes + visits_of(pair.tensor[1]).bytes) / size;
  pair.tensor[1].data = static_cast<char *>(pair.tensor[1].data) + size * input->between(-room, room);
  return pair;
}

std::string text_of(const rope_tensor_t &tensor) {
  std::string text = "dtype " + std::to_string(tensor.dtype) + " at " +
                     std::to_string(reinterpret_cast<intptr_t>(tensor.data) - (intptr_t{1} << 40));
  for (int axis = 0; axis < tensor.ndim; ++axis) {
    text += ", " + std::to_string(tensor.shape[axis]) + " by " + std::to_string(tensor.stride[axis]);
  }
  return text;
}

void fuzz_overlap(Input *input) {
  const Pair pair = draw_pair(input);
  rope::View view[2];
  for (int i = 0; i < 2; ++i) {
    const rope_tensor_t &tensor = pair.tensor[i];
    expect(rope::read_view("", "", tensor, &view[i]) == ROPE_STATUS_SUCCESS, "a plain tensor");
    const bool is_refused = rope::check_output_strides("", "", view[i]) != ROPE_STATUS_SUCCESS;
    const bool expected = has_element_twice(tensor);
    expect(!is_refused || expected, "an output that visits nothing twice is refused: " + text_of(tensor));
    expect(is_refused || !expected || (!pair.is_decided && !are_few(tensor)),
           "an output that visits an element twice is taken: " + text_of(tensor));
  }
  const bool expected = share_bytes(pair.tensor[0], pair.tensor[1]);
  const std::string both = text_of(pair.tensor[0]) + " and " + text_of(pair.tensor[1]);
  for (const bool is_swapped : {false, true}) {
    const bool found = rope::views_overlap(view[is_swapped], view[!is_swapped]);
    expect(!found || expected, "views share nothing: " + both);
    expect(found || !expected || (!pair.is_decided && !are_few(pair.tensor[0], pair.tensor[1])),
           "views share bytes: " + both);
  }
}

// ---- Duration of calls ----

// A call with at most so many elements ends soon in every build. Calls with more, up to the header's limit, are not
// run.
constexpr int64_t max_run_elements = 1 << 20;
constexpr std::chrono::seconds max_time(20);

class Stopwatch {
 public:
  explicit Stopwatch(const char *function) : function_(function) {}
  ~Stopwatch() {
    expect(std::chrono::steady_clock::now() - begin_ < max_time, std::string(function_) + " did not end soon");
  }

 private:
  const char *function_;
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

int64_t long_length(Input *input) {
  switch (input->below(4)) {
    case 0:
      return input->between(1, 4);
    case 1:
      return (int64_t{1} << input->below(60)) + input->between(-1, 1);
    case 2:
      return input->between(1, 2000);
    default:
      return input->integer();
  }
}

// Draws strides with which large lengths reach little memory: 0, or a few elements.
void draw_near_strides(Input *input, rope_tensor_t *tensor) {
  tensor->flags = ROPE_TENSOR_STRIDED;
  for (int axis = 0; axis < tensor->ndim; ++axis) {
    const bool is_long = tensor->shape[axis] > 4000;
    tensor->stride[axis] = is_long || input->chance(50) ? 0 : input->between(-2, 3);
  }
}

void set(Input *input, rope_tensor_t *tensor, rope_dtype_t dtype, std::initializer_list<int64_t> shape, bool is_near) {
  *tensor = {};
  tensor->dtype = dtype;
  tensor->ndim = static_cast<uint16_t>(shape.size());
  std::copy(shape.begin(), shape.end(), tensor->shape);
  if (is_near) draw_near_strides(input, tensor);
}

// The tensors of a call in memory of exactly their size.
class Tensors {
 public:
  Tensors(Input *input, std::initializer_list<rope_tensor_t *> tensors)
      : tensors_(tensors), memory_(input->raw(1) + 1) {
    for (rope_tensor_t *tensor : tensors_) {
      if (tensor->ndim != 0) memory_.place(tensor);
    }
    has_memory_ = memory_.allocate(int64_t{1} << 62);
    for (const rope_tensor_t *tensor : tensors_) {
      if (tensor->ndim == 0 || !has_memory_) continue;
      // Visits each element of memory once.
      rope_tensor_t seen = *tensor;
      for (int axis = 0; axis < seen.ndim; ++axis) {
        if ((seen.flags & ROPE_TENSOR_STRIDED) != 0 && seen.stride[axis] == 0) {
          seen.shape[axis] = std::min<int64_t>(seen.shape[axis], 1);
        }
      }
      if (visits_of(seen).elements <= max_run_elements) memory_.fill_bits(seen);
    }
    memory_.freeze();
  }

  // The header's rule for accepted calls; `is_empty`: a call without work.
  void expect_limit(bool is_empty) const {
    int64_t bytes = 0;
    for (const rope_tensor_t *tensor : tensors_) {
      if (tensor->ndim != 0) bytes = std::min(bytes + visits_of(*tensor).bytes, int64_t{1} << 55);
    }
    const int64_t max_elements = std::max(int64_t{1} << 28, 64 * bytes);
    for (const rope_tensor_t *tensor : tensors_) {
      if (tensor->ndim == 0 || is_empty) continue;
      expect(visits_of(*tensor).elements <= max_elements, "a call serves more elements than memory accounts for");
    }
  }

  void expect_refusal() const {
    if (!Call::says(" a tensor may have 2^28, or 64 for each of ")) return;
    int64_t max_elements = 0;
    for (const rope_tensor_t *tensor : tensors_) {
      if (tensor->ndim != 0) max_elements = std::max(max_elements, visits_of(*tensor).elements);
    }
    expect(max_elements > int64_t{1} << 28, "a call of few elements is refused for their number");
  }

  bool can_be_run() const {
    int64_t max_elements = 0;
    for (const rope_tensor_t *tensor : tensors_) {
      if (tensor->ndim != 0) max_elements = std::max(max_elements, visits_of(*tensor).elements);
    }
    return has_memory_ && max_elements <= max_run_elements;
  }

  Memory &memory() { return memory_; }

 private:
  std::vector<rope_tensor_t *> tensors_;
  Memory memory_;
  bool has_memory_;
};

rope_desc_t *create_rope(Input *input, rope_dtype_t dtype, rope_layout_t layout, int32_t head_dim) {
  rope_config_t config = {};
  config.struct_size = sizeof config;
  config.device = ROPE_DEVICE_CPU;
  config.dtype = dtype;
  config.layout = layout;
  config.style = ROPE_STYLE_HALF;
  config.head_dim = head_dim;
  config.theta = 10000;
  config.num_threads = static_cast<int32_t>(input->one_of<int64_t>({1, 2, 3, INT32_MAX}));
  rope_desc_t *desc = nullptr;
  expect(rope_desc_create(&config, &desc) == ROPE_STATUS_SUCCESS, "a plain config");
  return desc;
}

void fuzz_rope_call(Input *input) {
  const auto dtype = input->one_of({ROPE_DTYPE_F32, ROPE_DTYPE_F16, ROPE_DTYPE_F64});
  const bool is_thd = !input->chance(25);
  const int64_t head_dim = 2 * input->between(1, 3);
  rope_desc_t *desc =
      create_rope(input, dtype, is_thd ? ROPE_LAYOUT_THD : ROPE_LAYOUT_BSHD, static_cast<int32_t>(head_dim));
  rope_args_t args = {};
  args.struct_size = sizeof args;
  const bool is_long = input->chance(25);
  const auto length = [&] { return is_long ? long_length(input) : input->between(0, 5); };
  const int64_t batches = length(), tokens = length(), heads = length();
  const auto set_rotated = [&](rope_tensor_t *tensor, bool is_near) {
    if (is_thd) return set(input, tensor, dtype, {tokens, heads, head_dim}, is_near);
    set(input, tensor, dtype, {batches, tokens, heads, head_dim}, is_near);
  };
  const bool has_output = input->chance(50);
  set_rotated(&args.q, is_long || (has_output && input->chance(50)));
  if (has_output) set_rotated(&args.q_out, is_long && input->chance(50));
  rope_quant_args_t quant = ROPE_QUANT_ARGS_INIT;
  rope_input_args_t further = ROPE_INPUT_ARGS_INIT;
  int64_t sequences = batches;
  if (is_thd && !input->chance(20)) {
    const int64_t entries = long_length(input);
    set(input, &args.cu_seqlens, input->one_of({ROPE_DTYPE_I32, ROPE_DTYPE_I64}), {entries}, true);
    sequences = entries - 1;
  }
  if (input->chance(40)) set(input, &args.positions, ROPE_DTYPE_I64, {tokens}, input->chance(70));
  if (input->chance(30)) set(input, &args.start_positions, ROPE_DTYPE_I32, {sequences}, true);
  if (input->chance(30)) {
    const int64_t rows = long_length(input);
    for (rope_tensor_t *table : {&args.cos, &args.sin}) set(input, table, ROPE_DTYPE_F32, {rows, head_dim / 2}, true);
  }
  if (!input->chance(20)) set(input, &args.fault, ROPE_DTYPE_I64, {2}, false);
  const bool has_codes = has_output && dtype != ROPE_DTYPE_F64 && input->chance(40);
  if (has_codes) {
    args.quant = &quant;
    args.q_out.dtype = input->one_of({ROPE_DTYPE_F8_E4M3, ROPE_DTYPE_F8_E5M2});
    if (input->chance(60)) set(input, &quant.q_scale, ROPE_DTYPE_F32, {input->chance(50) ? heads : 1}, true);
    if (input->chance(30)) set(input, &quant.amax_out, ROPE_DTYPE_F32, {3}, false);
  }
  if (input->chance(30)) {
    args.input = &further;
    const bool is_by_head = input->chance(50);
    if (is_thd && is_by_head) {
      set(input, &further.q_row_factor, dtype, {tokens, heads}, true);
    } else if (is_thd) {
      set(input, &further.q_row_factor, ROPE_DTYPE_F32, {tokens}, true);
    } else if (is_by_head) {
      set(input, &further.q_row_factor, ROPE_DTYPE_F32, {batches, tokens, heads}, true);
    } else {
      set(input, &further.q_row_factor, dtype, {input->chance(50) ? batches : 1, tokens}, true);
    }
  }
  Tensors tensors(input, {&args.q, &args.q_out, &args.cu_seqlens, &args.positions, &args.start_positions, &args.cos,
                          &args.sin, &args.fault, &quant.q_scale, &quant.amax_out, &further.q_row_factor});
  char text[256];
  bool is_served;
  {
    const Stopwatch stopwatch("rope_explain");
    const Call call("rope_explain");
    is_served = call.returned(rope_explain(desc, &args, text, sizeof text));
  }
  if (is_served) {
    tensors.expect_limit(is_empty(args.q));
  } else {
    tensors.expect_refusal();
  }
  const bool ends = !is_served || is_empty(args.q) || tensors.can_be_run();
  for (const bool is_forward : {true, false}) {
    if (!ends) break;
    tensors.memory().restore();
    const char *function = is_forward ? "rope_forward" : "rope_backward";
    const Stopwatch stopwatch(function);
    const Call call(function);
    const bool ran =
        call.returned(is_forward ? rope_forward(desc, &args, nullptr) : rope_backward(desc, &args, nullptr));
    expect(ran == (is_served && (is_forward || !has_codes)), "explain and a call disagree");
    if (!ran) tensors.memory().expect_no_other_change(function);
  }
  rope_desc_destroy(desc);
}

void fuzz_table_call(Input *input) {
  const int64_t head_dim = 2 * input->between(1, 3), rows = long_length(input);
  rope_desc_t *desc = create_rope(input, ROPE_DTYPE_F32, ROPE_LAYOUT_THD, static_cast<int32_t>(head_dim));
  rope_tensor_t cos, sin;
  for (rope_tensor_t *table : {&cos, &sin}) {
    set(input, table, ROPE_DTYPE_F32, {rows, head_dim / 2}, input->chance(80));
    // Not one element for all rows, but many elements for each row.
    for (int axis = 0; axis < 2; ++axis) {
      if (table->flags != 0 && input->chance(50)) table->stride[axis] = input->between(-2, 2);
    }
  }
  Tensors tensors(input, {&cos, &sin});
  if (is_empty(cos) || tensors.can_be_run()) {
    tensors.memory().restore();
    const Stopwatch stopwatch("rope_fill_tables");
    const Call call("rope_fill_tables");
    if (call.returned(rope_fill_tables(desc, &cos, &sin, nullptr))) {
      tensors.expect_limit(is_empty(cos));
    } else {
      tensors.memory().expect_no_other_change("rope_fill_tables");
    }
  }
  rope_desc_destroy(desc);
}

void fuzz_swiglu_call(Input *input) {
  swiglu_config_t config = {};
  config.struct_size = sizeof config;
  config.device = ROPE_DEVICE_CPU;
  config.dtype = input->one_of({ROPE_DTYPE_F32, ROPE_DTYPE_F16, ROPE_DTYPE_F64});
  config.num_threads = static_cast<int32_t>(input->one_of<int64_t>({1, 2, 3, INT32_MAX}));
  swiglu_desc_t *desc = nullptr;
  expect(swiglu_desc_create(&config, &desc) == ROPE_STATUS_SUCCESS, "a plain config");

  const int ndim = static_cast<int>(input->between(2, 4));
  int64_t shape[4] = {};
  for (int axis = 0; axis < ndim; ++axis) shape[axis] = input->chance(40) ? long_length(input) : input->between(1, 5);
  const auto set_like = [&](rope_tensor_t *tensor, rope_dtype_t dtype, int axes, bool is_near) {
    set(input, tensor, dtype, {}, false);
    tensor->ndim = static_cast<uint16_t>(axes);
    std::copy_n(shape, axes, tensor->shape);
    if (is_near) draw_near_strides(input, tensor);
  };
  const bool is_backward = !input->chance(25);
  swiglu_args_t args = {};
  args.struct_size = sizeof args;
  set_like(&args.gate, config.dtype, ndim, !input->chance(10));
  set_like(&args.up, config.dtype, ndim, !input->chance(10));
  if (is_backward) set_like(&args.grad_out, config.dtype, ndim, !input->chance(10));
  for (rope_tensor_t *output : {&args.out, &args.grad_gate, &args.grad_up}) {
    const bool is_wanted = is_backward ? input->chance(20) : output == &args.out;
    if (is_wanted) set_like(output, config.dtype, ndim, input->chance(50));
  }
  const int rows = static_cast<int>(input->between(1, ndim - 1));
  if (is_backward || input->chance(30)) set_like(&args.row_scale, ROPE_DTYPE_F32, rows, true);
  if (is_backward) set_like(&args.grad_row_scale, ROPE_DTYPE_F32, rows, input->chance(20));
  if (input->chance(30)) set(input, &args.num_rows, ROPE_DTYPE_I64, {1}, false);
  swiglu_input_args_t group = SWIGLU_INPUT_ARGS_INIT;
  if (input->chance(40)) {
    args.input = &group;
    const bool has_expert_rows = ndim > 2 && args.num_rows.ndim == 0 && input->chance(60);
    const bool has_offsets = !has_expert_rows && args.num_rows.ndim == 0 && input->chance(60);
    const bool has_experts = has_expert_rows || has_offsets;
    const int64_t experts = has_offsets ? input->between(1, 1 << 20) : shape[0], columns = shape[ndim - 1];
    if (has_expert_rows) set(input, &group.expert_rows, ROPE_DTYPE_I64, {experts}, true);
    if (has_offsets) set(input, &group.expert_offsets, ROPE_DTYPE_I64, {experts + 1}, true);
    if (!has_expert_rows && args.row_scale.ndim == 1 && input->chance(40)) {
      set(input, &group.row_index, ROPE_DTYPE_I64, {shape[0]}, true);
    }
    for (rope_tensor_t *bias : {&group.gate_bias, &group.up_bias}) {
      if (!input->chance(40)) continue;
      const auto dtype = input->chance(50) ? config.dtype : ROPE_DTYPE_F32;
      if (has_experts && input->chance(50)) {
        set(input, bias, dtype, {experts, columns}, true);
      } else {
        set(input, bias, dtype, {columns}, true);
      }
    }
  }
  Tensors tensors(input, {&args.gate, &args.up, &args.grad_out, &args.out, &args.grad_gate, &args.grad_up,
                          &args.row_scale, &args.grad_row_scale, &args.num_rows, &group.gate_bias, &group.up_bias,
                          &group.expert_rows, &group.expert_offsets, &group.row_index});
  char text[256];
  bool is_served;
  {
    const Stopwatch stopwatch("swiglu_explain");
    const Call call("swiglu_explain");
    is_served = call.returned(swiglu_explain(desc, &args, text, sizeof text));
  }
  if (is_served) {
    tensors.expect_limit(is_empty(args.gate));
  } else {
    tensors.expect_refusal();
  }
  if (!is_served || is_empty(args.gate) || tensors.can_be_run()) {
    tensors.memory().restore();
    const char *function = is_backward ? "swiglu_backward" : "swiglu_forward";
    const Stopwatch stopwatch(function);
    const Call call(function);
    const bool ran =
        call.returned(is_backward ? swiglu_backward(desc, &args, nullptr) : swiglu_forward(desc, &args, nullptr));
    expect(ran == is_served, "explain and a call disagree");
    if (!ran) tensors.memory().expect_no_other_change(function);
  }
  swiglu_desc_destroy(desc);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  draw_float_environment(data, size);
  Input input(data, size);
  switch (input.below(6)) {
    case 0:
    case 1:
      fuzz_overlap(&input);
      break;
    case 2:
      fuzz_table_call(&input);
      break;
    case 3:
      fuzz_rope_call(&input);
      break;
    default:
      fuzz_swiglu_call(&input);
      break;
  }
  return 0;
}
