// SPDX-License-Identifier: Apache-2.0
// programmatic_tests.cpp - calls with ROPE_FLAG_PROGRAMMATIC_LAUNCH start early and wait before they access memory
//
// A chain of calls uses every kernel; each call reads what the previous one wrote and overwrites what that one read. A
// chain of its own makes codes and reads them.
// The chain must give the bits of the same calls without the flag, run one at a time. Before each chain, a copy writes
// all operands, including positions: CUDA's own copy, or a kernel that lets the next one start long before it writes.
#include <catch2/catch_test_macros.hpp>
#include <functional>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "arrays.hpp"
#include "scenes.hpp"

namespace {

constexpr int64_t batches = 2, q_heads = 8, k_heads = 4, table_rows = 200;
constexpr int32_t head_dim = 128, pairs = head_dim / 2;
// For 12 heads of 128 16-bit channels: no short launch from a table on up to 160 multiprocessors.
constexpr int64_t many_tokens = 2300;
constexpr uint32_t programmatic = ROPE_FLAG_PROGRAMMATIC_LAUNCH;

struct Setup {
  rope_dtype_t dtype;
  rope_style_t style;
  int64_t tokens;  // per batch; positions treat the batches as one
  bool has_codes = false;

  std::string describe() const {
    std::ostringstream text;
    text << oracle::dtype_name(dtype) << " style " << style << ", 2 x " << tokens << " tokens"
         << (has_codes ? ", codes" : "");
    return text.str();
  }
};

// The tensors of a chain; several calls use each.
struct Operands {
  rope_tensor_t q, k, other_q, hidden;  // hidden: rows with the channels of all heads
  rope_tensor_t positions, axis_positions, start_positions, cu_seqlens;
  rope_tensor_t cos32, sin32, cos16, sin16, channel_cos, channel_sin, angles;
  rope_tensor_t fault, row_scale, num_rows;

  // Codes, in rows of all heads, of a quarter of them, and as caches; their scales.
  rope_tensor_t codes, column_codes, pair_codes, k_cache, v_cache;
  rope_tensor_t group_scales, row_scales, column_scales, pair_scales, k_scales;
  rope_tensor_t weight, slots, amax, hidden_amax;

  std::vector<rope_tensor_t *> all() {
    return {&q,          &k,       &other_q,      &hidden,     &positions,     &axis_positions, &start_positions,
            &cu_seqlens, &cos32,   &sin32,        &cos16,      &sin16,         &channel_cos,    &channel_sin,
            &angles,     &fault,   &row_scale,    &num_rows,   &codes,         &column_codes,   &pair_codes,
            &k_cache,    &v_cache, &group_scales, &row_scales, &column_scales, &pair_scales,    &k_scales,
            &weight,     &slots,   &amax,         &hidden_amax};
  }
};

// Each entry of the caches has a token.
void add_code_operands(int64_t tokens, rope_dtype_t dtype, Workspace *workspace, Operands *operands) {
  const rope_dtype_t code = ROPE_DTYPE_F8_E4M3;
  operands->codes = workspace->tensor(code, {tokens, q_heads * head_dim});
  operands->column_codes = workspace->tensor(code, {4 * tokens, q_heads * head_dim / 4});
  operands->pair_codes = workspace->tensor(ROPE_DTYPE_F4_E2M1X2, {tokens, q_heads * head_dim / 2});
  for (rope_tensor_t *cache : {&operands->k_cache, &operands->v_cache}) {
    *cache = workspace->tensor(code, {tokens / 4, 4, k_heads, head_dim});
  }
  operands->group_scales = workspace->tensor(ROPE_DTYPE_F32, {tokens, q_heads});
  operands->row_scales = workspace->tensor(ROPE_DTYPE_F8_E8M0, {4 * tokens, q_heads * head_dim / 4 / 32});
  operands->column_scales = workspace->tensor(ROPE_DTYPE_F8_E8M0, {4 * tokens / 32, q_heads * head_dim / 4});
  operands->pair_scales = workspace->tensor(code, {tokens, q_heads * head_dim / 16});
  operands->k_scales = workspace->tensor(ROPE_DTYPE_F32, {tokens / 4, 4, k_heads, 1});
  operands->weight = workspace->tensor(dtype, {head_dim});
  workspace->fill_normal(operands->weight);
  operands->slots = workspace->tensor(ROPE_DTYPE_I64, {tokens});
  workspace->fill_integers(operands->slots, [&](const Index &at) { return tokens - 1 - at[0]; });
  operands->amax = workspace->tensor(ROPE_DTYPE_F32, {3});
  operands->hidden_amax = workspace->tensor(ROPE_DTYPE_F32, {1});
  for (const rope_tensor_t *amax : {&operands->amax, &operands->hidden_amax}) {
    workspace->fill(*amax, [](const Index &) { return oracle::Real{0}; });
  }
}

Operands make_operands(const Setup &setup, Workspace *workspace) {
  const int64_t tokens = batches * setup.tokens;
  Operands operands = {};
  const Shape q_shape = {batches, setup.tokens, q_heads, head_dim};
  operands.q = workspace->tensor(setup.dtype, q_shape);
  operands.other_q = workspace->tensor(setup.dtype, q_shape);
  operands.k = workspace->tensor(setup.dtype, {batches, setup.tokens, k_heads, head_dim});
  operands.hidden = workspace->tensor(setup.dtype, {tokens, q_heads * head_dim});
  operands.positions = workspace->tensor(ROPE_DTYPE_I32, {batches, setup.tokens});
  operands.axis_positions = workspace->tensor(ROPE_DTYPE_I64, {2, batches, setup.tokens});
  operands.start_positions = workspace->tensor(ROPE_DTYPE_I64, {batches});
  operands.cu_seqlens = workspace->tensor(ROPE_DTYPE_I32, {4});
  for (rope_tensor_t *table : {&operands.cos32, &operands.sin32, &operands.angles}) {
    *table = workspace->tensor(ROPE_DTYPE_F32, {table_rows, pairs});
  }
  for (rope_tensor_t *table : {&operands.cos16, &operands.sin16}) {
    *table = workspace->tensor(ROPE_DTYPE_BF16, {table_rows, pairs});
  }
  for (rope_tensor_t *table : {&operands.channel_cos, &operands.channel_sin}) {
    *table = workspace->tensor(ROPE_DTYPE_F32, {table_rows, head_dim});
  }
  operands.fault = workspace->tensor(ROPE_DTYPE_I64, {2});
  operands.row_scale = workspace->tensor(ROPE_DTYPE_F32, {tokens});
  operands.num_rows = workspace->tensor(ROPE_DTYPE_I32, {1});
  for (const rope_tensor_t *tensor : {&operands.q, &operands.k, &operands.angles, &operands.row_scale}) {
    workspace->fill_normal(*tensor);
  }
  // Some positions are outside the tables.
  for (const rope_tensor_t *tensor : {&operands.positions, &operands.axis_positions}) {
    workspace->fill_integers(*tensor, [&](const Index &) { return workspace->random().below(table_rows + 20); });
  }
  workspace->fill_integers(operands.start_positions, [](const Index &index) { return 1000 * index[0] + 7; });
  // The last token is padding.
  const int64_t ends[] = {0, 1, tokens / 2, tokens - 1};
  workspace->fill_integers(operands.cu_seqlens, [&](const Index &index) { return ends[index[0]]; });
  workspace->fill_integers(operands.fault, [](const Index &) { return 0; });
  workspace->fill_integers(operands.num_rows, [&](const Index &) { return tokens - 1; });
  if (setup.has_codes) add_code_operands(tokens, setup.dtype, workspace, &operands);
  return operands;
}

// The elements with another shape.
rope_tensor_t reshaped(const rope_tensor_t &tensor, const Shape &shape) {
  rope_tensor_t view = {};
  view.data = tensor.data;
  view.dtype = tensor.dtype;
  view.ndim = static_cast<uint16_t>(shape.size());
  for (size_t axis = 0; axis < shape.size(); ++axis) view.shape[axis] = shape[axis];
  return view;
}

struct Step {
  std::string title;
  std::function<rope_status_t(uint32_t flags, rope_stream_t stream)> call;
  bool has_flag;
  std::string explanation;  // with the flag
};

// Structs that args point to. A step keeps them.
struct Further {
  rope_norm_args_t norm = ROPE_NORM_ARGS_INIT;
  rope_cache_args_t cache = ROPE_CACHE_ARGS_INIT;
  rope_quant_args_t quant = ROPE_QUANT_ARGS_INIT;
  rope_input_args_t input = ROPE_INPUT_ARGS_INIT;
  swiglu_quant_args_t gating = SWIGLU_QUANT_ARGS_INIT;
  swiglu_column_args_t column = SWIGLU_COLUMN_ARGS_INIT;
};

class Steps {
 public:
  Steps(const Device &device, const Setup &setup) : device_(device), setup_(setup) {}

  rope_config_t rope_config() const {
    rope_config_t config = rope_config_for(device_, head_dim);
    config.dtype = setup_.dtype;
    config.style = setup_.style;
    return config;
  }

  void add_rope(const char *title, Direction direction, const rope_config_t &config, const rope_args_t &args,
                const std::shared_ptr<const Further> &further = nullptr) {
    const auto desc = share(config);
    const auto call = [desc, direction, args, further](uint32_t flags, rope_stream_t stream) {
      rope_args_t flagged = args;
      flagged.flags |= flags;
      return direction == Direction::Forward ? rope_forward(desc.get(), &flagged, stream)
                                             : rope_backward(desc.get(), &flagged, stream);
    };
    rope_args_t flagged = args;
    flagged.flags |= programmatic;
    char text[256] = "";
    if (rope_explain(desc.get(), &flagged, text, sizeof text) != ROPE_STATUS_SUCCESS) FAIL(rope_last_error());
    steps_.push_back({title, call, true, text});
  }

  void add_tables(const char *title, const rope_tensor_t &cos, const rope_tensor_t &sin) {
    const auto desc = share(rope_config());
    const auto call = [desc, cos, sin](uint32_t, rope_stream_t stream) {
      return rope_fill_tables(desc.get(), &cos, &sin, stream);
    };
    steps_.push_back({title, call, false, ""});
  }

  void add_swiglu(const char *title, Direction direction, const swiglu_args_t &args,
                  const std::shared_ptr<const Further> &further = nullptr) {
    swiglu_config_t config = swiglu_config_for(device_);
    config.dtype = setup_.dtype;
    const auto desc = share(config);
    const auto call = [desc, direction, args, further](uint32_t flags, rope_stream_t stream) {
      swiglu_args_t flagged = args;
      flagged.flags = flags;
      return direction == Direction::Forward ? swiglu_forward(desc.get(), &flagged, stream)
                                             : swiglu_backward(desc.get(), &flagged, stream);
    };
    swiglu_args_t flagged = args;
    flagged.flags = programmatic;
    char text[256] = "";
    if (swiglu_explain(desc.get(), &flagged, text, sizeof text) != ROPE_STATUS_SUCCESS) FAIL(rope_last_error());
    steps_.push_back({title, call, true, text});
  }

  const std::vector<Step> &all() const { return steps_; }

 private:
  Device device_;
  Setup setup_;
  std::vector<Step> steps_;
};

// Calls that use every kernel. Each reads what the previous one wrote.
std::vector<Step> make_steps(const Device &device, const Setup &setup, const Operands &on) {
  const Direction forward = Direction::Forward, backward = Direction::Backward;
  const int64_t tokens = batches * setup.tokens;
  Steps steps(device, setup);
  const rope_config_t config = steps.rope_config();

  rope_args_t args = rope_args();
  args.q = on.q;
  args.k = on.k;
  args.positions = on.positions;
  const rope_args_t in_place = args;
  steps.add_rope("in place", forward, config, in_place);
  args.q_out = on.other_q;
  args.start_positions = on.start_positions;
  steps.add_rope("q to another", forward, config, args);
  args = in_place;
  args.q = on.other_q;
  args.q_out = on.q;
  args.k = {};
  steps.add_rope("and back", backward, config, args);
  // Batches with equal positions.
  args = rope_args();
  args.q = on.q;
  steps.add_rope("at the same positions", forward, config, args);
  // Each head as a token.
  args = rope_args();
  args.q = reshaped(on.q, {batches, setup.tokens * q_heads, 1, head_dim});
  steps.add_rope("single heads", forward, config, args);

  const auto with_table = [&](const rope_tensor_t &cos, const rope_tensor_t &sin) {
    rope_args_t by_table = in_place;
    by_table.cos = cos;
    by_table.sin = sin;
    return by_table;
  };
  steps.add_tables("F32 tables", on.cos32, on.sin32);
  steps.add_rope("by F32 tables", forward, config, with_table(on.cos32, on.sin32));
  args = with_table(on.cos32, on.sin32);
  args.start_positions = on.start_positions;
  args.position_offset = -7;
  steps.add_rope("by F32 tables, from start_positions on", forward, config, args);
  steps.add_tables("BF16 tables", on.cos16, on.sin16);
  steps.add_rope("by BF16 tables", backward, config, with_table(on.cos16, on.sin16));
  args = rope_args();
  args.q = reshaped(on.q, {batches, setup.tokens * q_heads, 1, head_dim});
  args.cos = on.cos32;
  args.sin = on.sin32;
  steps.add_rope("single heads by F32 tables", forward, config, args);
  args = with_table(on.cos32, on.sin32);
  args.fault = on.fault;
  steps.add_rope("by tables, counting faults", forward, config, args);
  steps.add_tables("tables of a column a channel", on.channel_cos, on.channel_sin);
  steps.add_rope("by those", forward, config, with_table(on.channel_cos, on.channel_sin));
  args = in_place;
  args.angles = on.angles;
  steps.add_rope("by angles", forward, config, args);

  rope_config_t other_config = config;
  other_config.layout = ROPE_LAYOUT_THD;
  args = rope_args();
  args.q = reshaped(on.q, {tokens, q_heads, head_dim});
  args.k = reshaped(on.k, {tokens, k_heads, head_dim});
  args.cu_seqlens = on.cu_seqlens;
  steps.add_rope("sequences", forward, other_config, args);
  args.cos = on.cos32;
  args.sin = on.sin32;
  steps.add_rope("sequences by tables", backward, other_config, args);
  other_config = config;
  other_config.num_axes = 2;
  int32_t axes[pairs];
  for (int32_t pair = 0; pair < pairs; ++pair) axes[pair] = pair % 2;
  other_config.pair_axis = axes;
  args = in_place;
  args.positions = on.axis_positions;
  steps.add_rope("two axes", forward, other_config, args);
  other_config = config;
  other_config.out_style = oracle::other_style(setup.style);
  steps.add_rope("converted", forward, other_config, in_place);
  other_config = config;
  other_config.rotary_dim = head_dim / 2;
  args = in_place;
  args.q_out = on.other_q;
  steps.add_rope("half of each head, q to another", forward, other_config, args);
  other_config = config;
  other_config.style = ROPE_STYLE_HALF;
  other_config.pair_block = 4;
  steps.add_rope("small blocks", forward, other_config, in_place);
  steps.add_rope("small blocks by tables", backward, other_config, with_table(on.cos32, on.sin32));

  const Shape rows = {tokens, q_heads * head_dim};
  swiglu_args_t gating = swiglu_args();
  gating.gate = reshaped(on.q, rows);
  gating.up = reshaped(on.other_q, rows);
  gating.out = on.hidden;
  steps.add_swiglu("SwiGLU", forward, gating);
  gating.out = gating.gate;
  gating.up = on.hidden;
  gating.row_scale = on.row_scale;
  gating.num_rows = on.num_rows;
  steps.add_swiglu("SwiGLU of scaled rows, in place", forward, gating);
  swiglu_args_t gradients = swiglu_args();
  gradients.gate = reshaped(on.q, rows);
  gradients.up = reshaped(on.other_q, rows);
  gradients.grad_out = on.hidden;
  gradients.grad_gate = on.hidden;
  gradients.grad_up = gradients.up;
  steps.add_swiglu("SwiGLU gradients in place", backward, gradients);
  gradients.out = gradients.gate;
  steps.add_swiglu("SwiGLU gradients and output in place", backward, gradients);
  gradients.out = {};
  gradients.row_scale = on.row_scale;
  gradients.grad_row_scale = on.row_scale;
  gradients.num_rows = on.num_rows;
  steps.add_swiglu("SwiGLU row sums in place", backward, gradients);
  gradients.grad_row_scale = {};
  gradients.grad_gate = gradients.gate;
  gradients.grad_up = {};
  steps.add_swiglu("SwiGLU gradients of the rows that it scaled", backward, gradients);
  steps.add_rope("in place again", backward, config, in_place);
  return steps.all();
}

// Calls that make codes and scales. Further calls read these as integers or factors: codes as positions.
std::vector<Step> make_code_steps(const Device &device, const Setup &setup, const Operands &on) {
  const Direction forward = Direction::Forward, backward = Direction::Backward;
  const int64_t tokens = batches * setup.tokens;
  Steps steps(device, setup);
  const rope_config_t config = steps.rope_config();
  rope_config_t step_config = config;
  step_config.layout = ROPE_LAYOUT_THD;
  rope_config_t norm_config = step_config;
  norm_config.norm = ROPE_NORM_RMS;
  norm_config.norm_eps = 1e-6;

  const Shape q_shape = {tokens, q_heads, head_dim}, rows = {tokens, q_heads * head_dim},
              quarters = {4 * tokens, q_heads * head_dim / 4};
  // Integers of eight codes, at equal distances.
  const auto integers = [](const rope_tensor_t &codes, const Shape &shape) {
    rope_tensor_t view = reshaped(codes, shape);
    view.dtype = ROPE_DTYPE_I64;
    view.flags = ROPE_TENSOR_STRIDED;
    int64_t stride = element_count(codes) / 8 / element_count(view);
    for (size_t axis = shape.size(); axis-- > 0; stride *= shape[axis]) view.stride[axis] = stride;
    return view;
  };
  const auto turn_by = [&](const char *title, const rope_tensor_t &codes, const rope_tensor_t &scales) {
    rope_args_t args = rope_args();
    args.q = on.q;
    args.k = on.k;
    args.positions = integers(codes, {batches, setup.tokens});
    if (scales.ndim != 0) args.start_positions = integers(scales, {batches});
    steps.add_rope(title, forward, config, args);
  };

  // Outputs of q as codes, k and v as codes of a cache.
  const auto add_step = [&](const char *title, const auto &change) {
    const auto further = std::make_shared<Further>();
    rope_args_t args = rope_args();
    args.q = reshaped(on.q, q_shape);
    args.k = reshaped(on.k, {tokens, k_heads, head_dim});
    args.v = narrow(reshaped(on.other_q, q_shape), 1, 0, k_heads);
    args.q_out = reshaped(on.codes, q_shape);
    args.flags = ROPE_FLAG_V_UNROTATED;
    further->norm.q_weight = on.weight;
    further->cache.k_cache = on.k_cache;
    further->cache.v_cache = on.v_cache;
    further->cache.slots = on.slots;
    args.cache = &further->cache;
    args.quant = &further->quant;
    const bool has_norm = change(further.get());
    if (has_norm) args.norm = &further->norm;
    steps.add_rope(title, forward, has_norm ? norm_config : step_config, args, further);
  };
  const auto use_scales = [&](Further *further) {
    further->quant.q_scale = narrow(on.amax, 0, 0, 1);
    further->quant.k_scale = narrow(on.amax, 0, 1, 1);
    further->quant.v_scale = narrow(on.amax, 0, 2, 1);
  };
  // The first call of the chain cannot rely on other_q.
  rope_args_t args = rope_args();
  args.q = on.q;
  args.q_out = on.other_q;
  steps.add_rope("q to another", forward, config, args);
  add_step("codes, and their largest magnitudes", [&](Further *further) {
    further->quant.amax_out = on.amax;
    return true;
  });
  add_step("codes with those magnitudes for scales", [&](Further *further) {
    use_scales(further);
    return true;
  });
  turn_by("turned by codes", on.codes, {});
  add_step("codes without a norm", [&](Further *further) {
    use_scales(further);
    return false;
  });
  turn_by("turned by codes of a cache", on.k_cache, {});
  add_step("codes and scales", [&](Further *further) {
    further->quant.q_scales_out = reshaped(on.group_scales, {tokens, q_heads, 1});
    further->cache.k_scales = on.k_scales;
    further->quant.v_scale = narrow(on.amax, 0, 2, 1);
    return true;
  });
  const auto factors = std::make_shared<Further>();
  factors->input.q_row_factor = on.group_scales;
  args.q = reshaped(on.q, q_shape);
  args.q_out = reshaped(on.other_q, q_shape);
  args.input = &factors->input;
  steps.add_rope("multiplied by those scales", forward, step_config, args, factors);

  const auto add_swiglu = [&](const char *title, const Shape &shape, Direction direction, const auto &change) {
    const auto further = std::make_shared<Further>();
    swiglu_args_t gating = swiglu_args();
    gating.gate = reshaped(on.q, shape);
    gating.up = reshaped(on.other_q, shape);
    gating.quant = &further->gating;
    change(&gating, further.get());
    steps.add_swiglu(title, direction, gating, further);
  };
  add_swiglu("SwiGLU to codes, and their largest magnitude", rows, forward,
             [&](swiglu_args_t *gating, Further *further) {
               gating->out = on.codes;
               further->gating.scale = narrow(on.amax, 0, 0, 1);
               further->gating.amax_out = on.hidden_amax;
             });
  add_swiglu("SwiGLU to codes and scales", rows, forward, [&](swiglu_args_t *gating, Further *further) {
    gating->out = on.codes;
    further->gating.scales_out = on.group_scales;
  });
  add_swiglu("SwiGLU of rows with those scales", rows, forward, [&](swiglu_args_t *gating, Further *) {
    gating->out = on.hidden;
    gating->row_scale = select(on.group_scales, 1, 3);
    gating->quant = nullptr;
  });
  add_swiglu("SwiGLU to pairs of codes", rows, forward, [&](swiglu_args_t *gating, Further *further) {
    gating->out = on.pair_codes;
    further->gating.scales_out = on.pair_scales;
    further->gating.scale = on.hidden_amax;
  });
  turn_by("turned by pairs of codes and their scales", on.pair_codes, on.pair_scales);
  add_swiglu("SwiGLU to codes by row and by column", quarters, forward, [&](swiglu_args_t *gating, Further *further) {
    gating->out = reshaped(on.codes, quarters);
    further->gating.scales_out = on.row_scales;
    further->column.out = on.column_codes;
    further->column.scales_out = on.column_scales;
    gating->column = &further->column;
  });
  turn_by("turned by codes by column and their scales", on.column_codes, on.column_scales);
  add_swiglu("gradients to codes by row and by column", quarters, backward,
             [&](swiglu_args_t *gating, Further *further) {
               gating->grad_out = reshaped(on.hidden, quarters);
               gating->grad_gate = reshaped(on.codes, quarters);
               further->gating.grad_gate_scales_out = on.row_scales;
               further->column.grad_up = on.column_codes;
               further->column.grad_up_scales_out = on.column_scales;
               gating->column = &further->column;
             });
  turn_by("turned by codes of gradients and their scales", on.codes, on.row_scales);
  return steps.all();
}

// The calls of a chain on a GPU, and the bytes of all operands before the first call and after each call.
class Chain {
 public:
  explicit Chain(const Setup &setup) : workspace_(61), operands_(make_operands(setup, &workspace_)) {
    workspace_.freeze();
    image_ = std::make_unique<DeviceImage>(workspace_);
    for (rope_tensor_t *tensor : operands_.all()) *tensor = image_->there(*tensor);
    steps_ = (setup.has_codes ? make_code_steps : make_steps)({ROPE_DEVICE_CUDA, 0, ""}, setup, operands_);
    image_->reset();
    add_state();
    const Stream stream;
    for (const Step &step : steps_) {
      INFO(step.title);
      enqueue(step, 0, stream);
      REQUIRE_CUDA(cudaStreamSynchronize(stream));
      add_state();
      // A call without effect could be omitted unnoticed.
      const bool is_changed = states_[states_.size() - 1] != states_[states_.size() - 2];
      REQUIRE(is_changed);
    }
  }

  const std::vector<Step> &steps() const { return steps_; }
  const std::vector<std::byte> &state(size_t after) const { return states_[after]; }
  const DeviceImage &image() const { return *image_; }

  static void enqueue(const Step &step, uint32_t flags, cudaStream_t stream) {
    const rope_status_t status = step.call(flags, stream);
    if (status != ROPE_STATUS_SUCCESS)
      FAIL(step.title << ": " << rope_status_name(status) << ": " << rope_last_error());
  }

  // Sets the operands to those after so many calls; until then they have other contents.
  void enqueue_state(size_t after, bool is_late_kernel, cudaStream_t stream) const {
    const auto bytes = static_cast<size_t>(image_->size());
    const std::byte *source = device_states_[after]->data();
    REQUIRE_CUDA(cudaMemsetAsync(image_->device_data(), 0x15, bytes, stream));
    if (is_late_kernel) {
      REQUIRE_CUDA(enqueue_late_copy(image_->device_data(), source, image_->size(), stream));
    } else {
      REQUIRE_CUDA(cudaMemcpyAsync(image_->device_data(), source, bytes, cudaMemcpyDeviceToDevice, stream));
    }
  }

  void check_state(size_t after, cudaStream_t stream) const {
    REQUIRE_CUDA(image_->enqueue_read(stream));
    REQUIRE_CUDA(cudaStreamSynchronize(stream));
    const bool is_same = image_->is_same_as(states_[after]);
    REQUIRE(is_same);
  }

 private:
  void add_state() {
    image_->read();
    states_.push_back(image_->bytes());
    device_states_.push_back(std::make_unique<DeviceMemory>(image_->size()));
    REQUIRE_CUDA(cudaMemcpy(device_states_.back()->data(), states_.back().data(), states_.back().size(),
                            cudaMemcpyHostToDevice));
  }

  Workspace workspace_;
  Operands operands_;
  std::unique_ptr<DeviceImage> image_;
  std::vector<Step> steps_;
  std::vector<std::vector<std::byte>> states_;
  std::vector<std::unique_ptr<DeviceMemory>> device_states_;
};

// Setups of decode size, and some large enough for any GPU to share angles and to use whole vectors.
std::vector<Setup> all_setups() {
  std::vector<Setup> setups;
  for (const rope_style_t style : {ROPE_STYLE_HALF, ROPE_STYLE_INTERLEAVED}) {
    for (const rope_dtype_t dtype : {ROPE_DTYPE_F32, ROPE_DTYPE_F16, ROPE_DTYPE_BF16, ROPE_DTYPE_F64}) {
      setups.push_back({dtype, style, 4});
    }
    // Short table launches that are not small, and for 16-bit data also long ones.
    setups.push_back({ROPE_DTYPE_BF16, style, 500});
    setups.push_back({ROPE_DTYPE_F32, style, 700});
    setups.push_back({ROPE_DTYPE_BF16, style, many_tokens});
  }
  setups.push_back({ROPE_DTYPE_BF16, ROPE_STYLE_HALF, 4, true});
  setups.push_back({ROPE_DTYPE_F16, ROPE_STYLE_INTERLEAVED, 120, true});
  setups.push_back({ROPE_DTYPE_F32, ROPE_STYLE_HALF, 4, true});  // codes of general kernels
  return setups;
}

int repetitions_of(const Setup &setup, int of_small_ones) {
  return setup.tokens < 100 ? of_small_ones : of_small_ones / 20 + 1;
}

}  // namespace

TEST_CASE("programmatic calls of every kernel wait for operands that come late", "[cuda][programmatic]") {
  need_device_memory(int64_t{2} << 30);
  for (const Setup &setup : all_setups()) {
    const Chain chain(setup);
    const int repetitions = repetitions_of(setup, 40);
    const Stream stream;
    for (size_t i = 0; i < chain.steps().size(); ++i) {
      const Step &step = chain.steps()[i];
      INFO(setup.describe() << ": " << step.title << "; " << step.explanation);
      for (const bool is_late_kernel : {false, true}) {
        INFO((is_late_kernel ? "after a kernel" : "after a copy"));
        for (int round = 0; round < repetitions; ++round) {
          chain.enqueue_state(i, is_late_kernel, stream);
          Chain::enqueue(step, programmatic, stream);
          chain.check_state(i + 1, stream);
        }
        const Graph graph([&](cudaStream_t captured) {
          chain.enqueue_state(i, is_late_kernel, captured);
          Chain::enqueue(step, programmatic, captured);
        });
        for (int round = 0; round < repetitions; ++round) {
          graph.launch(stream);
          chain.check_state(i + 1, stream);
        }
      }
    }
  }
}

TEST_CASE("a chain of programmatic calls gives the bits of calls one at a time", "[cuda][programmatic]") {
  need_device_memory(int64_t{2} << 30);
  for (const Setup &setup : all_setups()) {
    INFO(setup.describe());
    const Chain chain(setup);
    const size_t last = chain.steps().size();
    const Stream stream;
    const auto enqueue_all = [&](uint32_t flags, bool is_late_kernel, cudaStream_t on) {
      chain.enqueue_state(0, is_late_kernel, on);
      for (const Step &step : chain.steps()) Chain::enqueue(step, flags, on);
    };
    for (const bool is_late_kernel : {false, true}) {
      for (const uint32_t flags : {uint32_t{0}, programmatic}) {
        INFO((is_late_kernel ? "after a kernel" : "after a copy") << ", flags " << flags);
        for (int round = 0; round < repetitions_of(setup, 200); ++round) {
          enqueue_all(flags, is_late_kernel, stream);
          chain.check_state(last, stream);
        }
        // Several chains in one graph, and several replays without a pause.
        const Graph graph([&](cudaStream_t captured) {
          for (int i = 0; i < 3; ++i) enqueue_all(flags, is_late_kernel, captured);
        });
        for (int round = 0; round < repetitions_of(setup, 100); ++round) {
          for (int i = 0; i < 5; ++i) graph.launch(stream);
          chain.check_state(last, stream);
        }
      }
    }
  }
}

TEST_CASE("calls with and without the flag may alternate", "[cuda][programmatic]") {
  need_device_memory(int64_t{2} << 30);
  for (const Setup &setup : all_setups()) {
    INFO(setup.describe());
    const Chain chain(setup);
    const Stream stream;
    for (const size_t first : {0, 1}) {
      for (int round = 0; round < repetitions_of(setup, 100); ++round) {
        chain.enqueue_state(0, true, stream);
        for (size_t i = 0; i < chain.steps().size(); ++i) {
          Chain::enqueue(chain.steps()[i], i % 2 == first ? programmatic : 0, stream);
        }
        chain.check_state(chain.steps().size(), stream);
      }
    }
  }
}

TEST_CASE("a captured call starts early where it has the flag and the GPU can", "[cuda][programmatic]") {
  need_gpus();
  for (const bool has_codes : {false, true}) {
    const Chain chain({ROPE_DTYPE_BF16, ROPE_STYLE_HALF, 4, has_codes});
    for (const Step &step : chain.steps()) {
      INFO(step.title);
      for (const uint32_t flags : {uint32_t{0}, programmatic}) {
        const Graph graph([&](cudaStream_t stream) {
          chain.enqueue_state(0, true, stream);
          Chain::enqueue(step, flags, stream);
        });
        const bool starts_early = flags != 0 && step.has_flag && compute_capability() >= 90;
        CHECK(graph.num_programmatic_edges() == (starts_early ? 1 : 0));
      }
    }
  }
}

TEST_CASE("the chains have calls of every kernel", "[cuda][programmatic]") {
  need_device_memory(int64_t{2} << 30);
  const char *kernels[] = {": thread angles kernel, ",
                           ": thread table kernel, ",
                           ": short warp angles kernel, ",
                           ": short angles kernel, ",
                           ": short programmatic table kernel, ",
                           ": mid programmatic table kernel, ",
                           ": long angles kernel, ",
                           ": long converted angles kernel, ",
                           ": long table kernel, ",
                           ": token angles kernel, ",
                           ": token table kernel, ",
                           ": scalar angles kernel, ",
                           ": scalar table kernel, ",
                           ": general kernel, ",
                           ": warp angles codes kernel, ",
                           ": short angles codes kernel, ",
                           ": long angles codes kernel, ",
                           ": long angles factors kernel, ",
                           ": matrix codes kernel, ",
                           ": group codes kernel, ",
                           ": blocks of codes kernel, "};
  std::string explanations;
  for (const Setup &setup : all_setups()) {
    if (setup.dtype != ROPE_DTYPE_BF16 || setup.style != ROPE_STYLE_HALF) continue;
    const Chain chain(setup);
    for (const Step &step : chain.steps()) explanations += step.explanation + '\n';
  }
  INFO(explanations);
  for (const std::string kernel : kernels) {
    INFO(kernel);
    CHECK(explanations.find(kernel) != std::string::npos);
  }
}
