// SPDX-License-Identifier: Apache-2.0
// error_tests.cpp - each misuse returns its status and a message that names it, and leaves memory unchanged
#include <catch2/catch_test_macros.hpp>
#include <cctype>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "support/device.hpp"

namespace {

constexpr double nan = std::numeric_limits<double>::quiet_NaN();
constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr int64_t huge = int64_t{1} << 62;

bool contains_word(const std::string &text, const std::string &word) {
  const auto part_of_word = [](char letter) {
    return std::isalnum(static_cast<unsigned char>(letter)) != 0 || letter == '_';
  };
  for (size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) {
    const size_t end = at + word.size();
    const bool begins = at == 0 || !part_of_word(text[at - 1]) || !part_of_word(word.front());
    if (begins && (end == text.size() || !part_of_word(text[end]))) return true;
  }
  return false;
}

// Checks the message of a failed call: function, field and, unless empty, value.
void check_message(const char *function, const std::string &field, const std::string &value) {
  const std::string message = rope_last_error();
  INFO("message: " << message);
  INFO("wanted: " << function << ", " << field << ", " << value);
  CHECK(message.compare(0, std::strlen(function) + 1, std::string(function) + ":") == 0);
  if (!field.empty()) CHECK(contains_word(message, field));
  if (!value.empty()) CHECK(contains_word(message, value));
  CHECK(message.find('\n') == std::string::npos);
  // The rule follows the value.
  const size_t rule = message.find(": ", std::strlen(function) + 2);
  CHECK(rule != std::string::npos);
  CHECK(message.size() > rule + 10);
}

// A valid request for RoPE, to be broken in one place: [2, 3, H, 16] with 4 and 2 heads, out of place.
struct RopeRequest {
  explicit RopeRequest(const Device &on) : device(on), workspace(41) {
    config = rope_config_for(device, 16);
    args.q = tensor({2, 3, 4, 16});
    args.q_out = tensor({2, 3, 4, 16});
    args.k = tensor({2, 3, 2, 16});
    args.k_out = tensor({2, 3, 2, 16});
    args.positions = workspace.tensor(ROPE_DTYPE_I64, {2, 3});
    workspace.fill_integers(args.positions, [](const Index &index) { return index[1]; });
  }

  rope_tensor_t tensor(const Shape &shape) { return workspace.tensor(ROPE_DTYPE_F32, shape); }

  void use_tables() {
    args.cos = tensor({5, 8});
    args.sin = tensor({5, 8});
  }

  // Makes it six tokens of two sequences.
  void use_sequences() {
    config.layout = ROPE_LAYOUT_THD;
    args.q = tensor({6, 4, 16});
    args.q_out = tensor({6, 4, 16});
    args.k = tensor({6, 2, 16});
    args.k_out = tensor({6, 2, 16});
    args.positions = {};
    args.cu_seqlens = workspace.tensor(ROPE_DTYPE_I32, {3});
    workspace.fill_integers(args.cu_seqlens, [](const Index &index) { return 3 * index[0]; });
  }

  void use_axes(int32_t num_axes) {
    config.num_axes = num_axes;
    args.positions = workspace.tensor(ROPE_DTYPE_I64, {num_axes, 2, 3});
    workspace.fill_integers(args.positions, [](const Index &index) { return index[0] + index[2]; });
  }

  void use_token_tables(const Shape &shape) {
    args.cos = tensor(shape);
    args.sin = tensor(shape);
    args.positions = {};
    args.table_rows = ROPE_TABLE_BY_TOKEN;
  }

  void use_norm(rope_norm_type_t norm, double eps = 1e-6) {
    config.norm = norm;
    config.norm_eps = eps;
  }

  // Adds a norm with weights for q and k.
  rope_norm_args_t &use_weights(rope_norm_type_t type = ROPE_NORM_RMS) {
    use_norm(type);
    norm.q_weight = tensor({16});
    norm.k_weight = tensor({16});
    args.norm = &norm;
    return norm;
  }

  // Adds a norm to backward, with rows for the gradients of both weights.
  rope_norm_args_t &use_gradients(rope_norm_type_t type = ROPE_NORM_RMS) {
    use_weights(type);
    norm.q_in = tensor({2, 3, 4, 16});
    norm.k_in = tensor({2, 3, 2, 16});
    norm.grad_q_weight = tensor({3, 16});
    norm.grad_k_weight = tensor({3, 16});
    return norm;
  }

  // Adds a factor for each of q's tokens.
  rope_input_args_t &use_factor() {
    input.q_row_factor = tensor({3});
    args.input = &input;
    return input;
  }

  // Adds a cache: k goes to slots of three pages of four entries.
  rope_cache_args_t &use_cache() {
    cache.k_cache = tensor({3, 4, 2, 16});
    const bool has_batches = config.layout != ROPE_LAYOUT_THD;
    cache.slots = workspace.tensor(ROPE_DTYPE_I32, has_batches ? Shape{2, 3} : Shape{6});
    workspace.fill_integers(cache.slots, [](const Index &index) { return 3 * index[0] + index[1]; });
    args.cache = &cache;
    return cache;
  }

  // Adds a cache of 8-bit codes with a scale.
  rope_quant_args_t &use_codes(rope_dtype_t dtype = ROPE_DTYPE_F8_E4M3) {
    use_cache().k_cache = workspace.tensor(dtype, {3, 4, 2, 16});
    quant.k_scale = workspace.tensor(ROPE_DTYPE_F32, {1});
    args.quant = &quant;
    return quant;
  }

  // use_codes with written scales beside the codes.
  RopeRequest &use_scales() {
    use_codes().k_scale = {};
    cache.k_scales = tensor({3, 4, 2, 1});
    return *this;
  }

  // Sets a window of 8 of 16 channels, with q in two parts.
  RopeRequest &use_pass() {
    config.rotary_dim = 8;
    args.q = tensor({2, 3, 4, 8});
    input.q_pass = tensor({2, 3, 4, 8});
    args.input = &input;
    return *this;
  }

  // Sets the window of use_pass, with k in two caches.
  rope_cache_args_t &use_latent() {
    config.rotary_dim = 8;
    use_cache().k_cache = tensor({3, 4, 2, 8});
    cache.k_pass_cache = tensor({3, 4, 2, 8});
    return cache;
  }

  // Adds v beside k, each with a cache.
  rope_cache_args_t &use_v() {
    use_cache();
    args.v = tensor({2, 3, 2, 16});
    args.flags = ROPE_FLAG_V_UNROTATED;
    cache.v_cache = tensor({3, 4, 2, 16});
    return cache;
  }

  // Gives pages to each batch, or to each sequence.
  rope_cache_args_t &use_pages() {
    use_cache().slots = {};
    cache.page_table = workspace.tensor(ROPE_DTYPE_I32, {2, 3});
    workspace.fill_integers(cache.page_table, [](const Index &index) { return index[1]; });
    return cache;
  }

  void use_page_list(int64_t indptr_entries) {
    use_pages().page_table = workspace.tensor(ROPE_DTYPE_I32, {6});
    cache.page_indptr = workspace.tensor(ROPE_DTYPE_I32, {indptr_entries});
    workspace.fill_integers(cache.page_table, [](const Index &index) { return index[0] / 2; });
    workspace.fill_integers(cache.page_indptr, [](const Index &index) { return 3 * index[0]; });
  }

  // Changes the type of q, k and their outputs.
  void use_dtype(rope_dtype_t dtype) {
    config.dtype = dtype;
    for (rope_tensor_t *each : {&args.q, &args.q_out, &args.k, &args.k_out}) each->dtype = dtype;
  }

  void use_fault() {
    args.fault = workspace.tensor(ROPE_DTYPE_I64, {2});
    workspace.fill_integers(args.fault, [](const Index &) { return 0; });
  }

  Device device;
  Workspace workspace;
  rope_config_t config = {};
  rope_args_t args = rope_args();
  rope_norm_args_t norm = ROPE_NORM_ARGS_INIT;
  rope_cache_args_t cache = ROPE_CACHE_ARGS_INIT;
  rope_quant_args_t quant = ROPE_QUANT_ARGS_INIT;
  rope_input_args_t input = ROPE_INPUT_ARGS_INIT;
  rope_stream_t stream = nullptr;
  bool null_args = false;
};

struct RopeMisuse {
  const char *title;
  rope_status_t status;
  const char *field, *value;
  void (*commit)(RopeRequest &);
  bool cpu_only = false;
};

constexpr rope_status_t invalid = ROPE_STATUS_INVALID_ARGUMENT;
constexpr rope_status_t unsupported = ROPE_STATUS_NOT_SUPPORTED;

const double frequencies_with_nan[8] = {1, 1, 1, nan, 1, 1, 1, 1};
const double frequencies_with_infinity[8] = {1, 1, 1, 1, 1, 1, 1, -infinity};
const int32_t axes_up_to_3[8] = {0, 1, 2, 0, 3, 0, 1, 2};
const int32_t axes_below_0[8] = {0, 0, 0, 0, 0, 0, 0, -1};

std::vector<RopeMisuse> misused_rope_configs() {
  using R = RopeRequest;
  return {
      {"struct_size 0", invalid, "struct_size", "0", [](R &r) { r.config.struct_size = 0; }},
      {"struct_size of half the struct", invalid, "struct_size", "40", [](R &r) { r.config.struct_size = 40; }},
      {"struct_size one short of the first release's", invalid, "struct_size", "87",
       [](R &r) { r.config.struct_size = 87; }},
      {"undefined flag", unsupported, "flags", "0x10", [](R &r) { r.config.flags = 0x10; }},
      {"flag of a call", unsupported, "flags", "0x1", [](R &r) { r.config.flags = ROPE_FLAG_PROGRAMMATIC_LAUNCH; }},
      {"no device", invalid, "device", "0", [](R &r) { r.config.device = 0; }},
      {"unknown device", invalid, "device", "7", [](R &r) { r.config.device = 7; }},
      {"negative device_index", invalid, "device_index", "-1", [](R &r) { r.config.device_index = -1; }},
      {"second CPU", invalid, "device_index", "1", [](R &r) { r.config.device_index = 1; }, true},
      {"no dtype", invalid, "dtype", "0", [](R &r) { r.config.dtype = 0; }},
      {"dtype I32", invalid, "dtype", "", [](R &r) { r.config.dtype = ROPE_DTYPE_I32; }},
      {"unknown dtype", invalid, "dtype", "99", [](R &r) { r.config.dtype = 99; }},
      {"no layout", invalid, "layout", "0", [](R &r) { r.config.layout = 0; }},
      {"unknown layout", invalid, "layout", "5", [](R &r) { r.config.layout = 5; }},
      {"no style", invalid, "style", "0", [](R &r) { r.config.style = 0; }},
      {"unknown style", invalid, "style", "3", [](R &r) { r.config.style = 3; }},
      {"head_dim 0", invalid, "head_dim", "0", [](R &r) { r.config.head_dim = 0; }},
      {"negative head_dim", invalid, "head_dim", "-16", [](R &r) { r.config.head_dim = -16; }},
      {"odd head_dim", invalid, "head_dim", "15", [](R &r) { r.config.head_dim = 15; }},
      {"head_dim above 1024", invalid, "head_dim", "1026", [](R &r) { r.config.head_dim = 1026; }},
      {"negative rotary_dim", invalid, "rotary_dim", "-2", [](R &r) { r.config.rotary_dim = -2; }},
      {"odd rotary_dim", invalid, "rotary_dim is 7", "7", [](R &r) { r.config.rotary_dim = 7; }},
      {"rotary_dim above head_dim", invalid, "rotary_dim", "18", [](R &r) { r.config.rotary_dim = 18; }},
      {"negative rotary_offset", invalid, "rotary_offset", "-1", [](R &r) { r.config.rotary_offset = -1; }},
      {"window past head_dim", invalid, "rotary_offset", "9",
       [](R &r) {
         r.config.rotary_dim = 8;
         r.config.rotary_offset = 9;
       }},
      {"rotary_offset with the whole head", invalid, "rotary_offset", "2", [](R &r) { r.config.rotary_offset = 2; }},
      {"rotary_offset that overflows", invalid, "rotary_offset", "2147483647",
       [](R &r) { r.config.rotary_offset = std::numeric_limits<int32_t>::max(); }},
      {"negative theta", invalid, "theta", "-10000", [](R &r) { r.config.theta = -10000; }},
      {"theta NaN", invalid, "theta", "", [](R &r) { r.config.theta = nan; }},
      {"theta infinite", invalid, "theta", "", [](R &r) { r.config.theta = infinity; }},
      {"theta too small", invalid, "theta", "", [](R &r) { r.config.theta = 1e-301; }},
      {"theta too large", invalid, "theta", "", [](R &r) { r.config.theta = 1e301; }},
      {"inv_freq with NaN", invalid, "inv_freq", "", [](R &r) { r.config.inv_freq = frequencies_with_nan; }},
      {"inv_freq infinite", invalid, "inv_freq", "", [](R &r) { r.config.inv_freq = frequencies_with_infinity; }},
      {"attention_scale NaN", invalid, "attention_scale", "", [](R &r) { r.config.attention_scale = nan; }},
      {"attention_scale infinite", invalid, "attention_scale", "", [](R &r) { r.config.attention_scale = -infinity; }},
      {"attention_scale that is 0 in fp32", invalid, "attention_scale", "1e-60",
       [](R &r) { r.config.attention_scale = 1e-60; }},
      {"attention_scale beyond fp32", invalid, "attention_scale", "", [](R &r) { r.config.attention_scale = 1e39; }},
      {"negative num_axes", invalid, "num_axes", "-1", [](R &r) { r.config.num_axes = -1; }},
      {"nine axes", invalid, "num_axes", "9", [](R &r) { r.config.num_axes = 9; }},
      {"pair_axis beyond one axis", invalid, "pair_axis", "1", [](R &r) { r.config.pair_axis = axes_up_to_3; }},
      {"pair_axis beyond three axes", invalid, "pair_axis", "3",
       [](R &r) {
         r.config.num_axes = 3;
         r.config.pair_axis = axes_up_to_3;
       }},
      {"negative pair_axis", invalid, "pair_axis", "-1",
       [](R &r) {
         r.config.num_axes = 2;
         r.config.pair_axis = axes_below_0;
       }},
      {"negative pair_block", invalid, "pair_block", "-4", [](R &r) { r.config.pair_block = -4; }},
      {"odd pair_block", invalid, "pair_block", "1", [](R &r) { r.config.pair_block = 1; }},
      {"pair_block that does not divide", invalid, "pair_block", "6", [](R &r) { r.config.pair_block = 6; }},
      {"pair_block above rotary_dim", invalid, "pair_block", "16",
       [](R &r) {
         r.config.rotary_dim = 8;
         r.config.pair_block = 16;
       }},
      {"pair_block of INTERLEAVED", invalid, "pair_block", "8",
       [](R &r) {
         r.config.style = ROPE_STYLE_INTERLEAVED;
         r.config.pair_block = 8;
       }},
      {"pair_block of INTERLEAVED twice", invalid, "pair_block", "8",
       [](R &r) {
         r.config.style = r.config.out_style = ROPE_STYLE_INTERLEAVED;
         r.config.pair_block = 8;
       }},
      {"unknown out_style", invalid, "out_style", "7", [](R &r) { r.config.out_style = 7; }},
      {"negative out_style", invalid, "out_style", "-1", [](R &r) { r.config.out_style = -1; }},
      {"negative num_threads", invalid, "num_threads", "-3", [](R &r) { r.config.num_threads = -3; }},
      {"dtype of outputs only", invalid, "dtype", "F8_E4M3", [](R &r) { r.config.dtype = ROPE_DTYPE_F8_E4M3; }},
      {"unknown norm", invalid, "norm", "3", [](R &r) { r.use_norm(3); }},
      {"negative norm", invalid, "norm", "-1", [](R &r) { r.use_norm(-1); }},
      {"norm of a fourth tensor", invalid, "norm_tensors", "0x8",
       [](R &r) {
         r.use_norm(ROPE_NORM_RMS);
         r.config.norm_tensors = 8;
       }},
      {"unknown norm_order", invalid, "norm_order", "2",
       [](R &r) {
         r.use_norm(ROPE_NORM_RMS);
         r.config.norm_order = 2;
       }},
      {"negative norm_extent", invalid, "norm_extent", "-1",
       [](R &r) {
         r.use_norm(ROPE_NORM_LAYER);
         r.config.norm_extent = -1;
       }},
      {"unknown norm_rounding", unsupported, "norm_rounding", "0x4",
       [](R &r) {
         r.use_norm(ROPE_NORM_RMS);
         r.config.norm_rounding = 4;
       }},
      {"norm without norm_eps", invalid, "norm_eps", "0", [](R &r) { r.config.norm = ROPE_NORM_RMS; }},
      {"negative norm_eps", invalid, "norm_eps", "-1", [](R &r) { r.use_norm(ROPE_NORM_RMS, -1); }},
      {"norm_eps NaN", invalid, "norm_eps", "nan", [](R &r) { r.use_norm(ROPE_NORM_RMS, nan); }},
      {"norm_eps beyond fp32", invalid, "norm_eps", "1e+39", [](R &r) { r.use_norm(ROPE_NORM_RMS, 1e39); }},
      {"norm_eps that is 0 in fp32", invalid, "norm_eps", "1e-60", [](R &r) { r.use_norm(ROPE_NORM_RMS, 1e-60); }},
      {"norm_weight_offset NaN", invalid, "norm_weight_offset", "nan",
       [](R &r) {
         r.use_norm(ROPE_NORM_RMS);
         r.config.norm_weight_offset = nan;
       }},
      {"norm_tensors without norm", invalid, "norm_tensors", "3",
       [](R &r) { r.config.norm_tensors = ROPE_NORM_TENSOR_Q | ROPE_NORM_TENSOR_K; }},
      {"norm_order without norm", invalid, "norm_order", "1",
       [](R &r) { r.config.norm_order = ROPE_NORM_ORDER_AFTER; }},
      {"norm_extent without norm", invalid, "norm_extent", "1",
       [](R &r) { r.config.norm_extent = ROPE_NORM_EXTENT_TOKEN; }},
      {"norm_rounding without norm", invalid, "norm_rounding", "1",
       [](R &r) { r.config.norm_rounding = ROPE_NORM_ROUND_BEFORE_WEIGHT; }},
      {"norm_eps without norm", invalid, "norm_eps", "1e-06", [](R &r) { r.config.norm_eps = 1e-6; }},
      {"norm_weight_offset without norm", invalid, "norm_weight_offset", "1",
       [](R &r) { r.config.norm_weight_offset = 1; }},
      {"reserved1", unsupported, "reserved1", "1", [](R &r) { r.config.reserved1 = 1; }},
  };
}

void move(rope_tensor_t *tensor, int64_t bytes) {
  tensor->data = static_cast<std::byte *>(tensor->data) + bytes;
}

std::vector<RopeMisuse> misused_rope_args() {
  using R = RopeRequest;
  std::vector<RopeMisuse> misuses = {
      {"NULL args", invalid, "args", "NULL", [](R &r) { r.null_args = true; }},
      {"struct_size 0", invalid, "struct_size", "0", [](R &r) { r.args.struct_size = 0; }},
      {"struct_size short", invalid, "struct_size", "8", [](R &r) { r.args.struct_size = 8; }},
      {"undefined flag", unsupported, "flags", "0x10", [](R &r) { r.args.flags = 0x10; }},
      {"undefined flag beside a known one", unsupported, "flags", "0x11",
       [](R &r) { r.args.flags = ROPE_FLAG_PROGRAMMATIC_LAUNCH | 0x10; }},
      {"undefined flag of the highest bit", unsupported, "flags", "0x80000000",
       [](R &r) { r.args.flags = 0x80000000u; }},
      {"a stream on the CPU", invalid, "stream", "",
       [](R &r) { r.stream = reinterpret_cast<rope_stream_t>(static_cast<uintptr_t>(16)); }, true},

      {"q, k and v absent", invalid, "q", "",
       [](R &r) { r.args.q = r.args.q_out = r.args.k = r.args.k_out = {}; }},
      {"q_out without q", invalid, "q_out", "", [](R &r) { r.args.q = {}; }},
      {"q absent but with data", invalid, "q", "", [](R &r) { r.args.q.ndim = 0; }},
      {"v absent but with a dtype", invalid, "v", "", [](R &r) { r.args.v.dtype = ROPE_DTYPE_F32; }},
      {"positions absent but with a shape", invalid, "positions", "", [](R &r) { r.args.positions.ndim = 0; }},
      {"v absent but with a length", invalid, "v", "", [](R &r) { r.args.v.shape[3] = 64; }},
      {"v absent but with a stride", invalid, "v", "", [](R &r) { r.args.v.stride[0] = 1; }},
      {"q of rank 3", invalid, "q", "3", [](R &r) { r.args.q.ndim = 3; }},
      {"q of rank 5", invalid, "q", "5", [](R &r) { r.args.q.ndim = 5; }},
      {"q of another dtype", invalid, "q", "", [](R &r) { r.args.q.dtype = ROPE_DTYPE_BF16; }},
      {"q of no dtype", invalid, "q", "0", [](R &r) { r.args.q.dtype = 0; }},
      {"q with an undefined flag", unsupported, "q", "", [](R &r) { r.args.q.flags = 0x4001; }},
      {"q of another head_dim", invalid, "q", "18",
       [](R &r) { r.args.q = r.args.q_out = r.tensor({2, 3, 4, 18}); }},
      {"q with a negative size", invalid, "q", "-4", [](R &r) { r.args.q.shape[2] = -4; }},
      {"q without data", invalid, "q", "NULL", [](R &r) { r.args.q.data = nullptr; }},
      {"q_out without data", invalid, "q_out", "NULL", [](R &r) { r.args.q_out.data = nullptr; }},
      {"q misaligned", invalid, "q", "", [](R &r) { move(&r.args.q, 2); }},
      {"k_out misaligned", invalid, "k_out", "", [](R &r) { move(&r.args.k_out, 1); }},
      {"positions misaligned", invalid, "positions", "", [](R &r) { move(&r.args.positions, 4); }},
      {"too many heads", unsupported, "q", "1048577",
       [](R &r) {
         r.args.q.shape[2] = 1048577;
         r.args.q.stride[1] = 1048577 * 16;
         r.args.q.stride[0] = 3 * r.args.q.stride[1];
         r.args.q_out = {};
       }},
      {"sizes whose product overflows", invalid, "q", "",
       [](R &r) {
         r.args.q.shape[0] = r.args.q.shape[1] = huge;
         r.args.q.flags = 0;
         for (int64_t &stride : r.args.q.stride) stride = 0;
         r.args.q_out = r.args.k = r.args.k_out = r.args.positions = {};
       }},
      {"strides that overflow", invalid, "q", "", [](R &r) { r.args.q.stride[1] = huge; }},
      {"negative strides that overflow", invalid, "q_out", "", [](R &r) { r.args.q_out.stride[0] = -2 * huge; }},
      {"bytes that overflow", invalid, "q", "", [](R &r) { r.args.q.stride[0] = huge; }},

      {"q_out with other heads", invalid, "q_out", "5", [](R &r) { r.args.q_out = r.tensor({2, 3, 5, 16}); }},
      {"q_out of another dtype", invalid, "q_out", "", [](R &r) { r.args.q_out.dtype = ROPE_DTYPE_I32; }},
      {"q_out of another rank", invalid, "q_out", "3", [](R &r) { r.args.q_out.ndim = 3; }},
      {"k with another batch", invalid, "k", "3",
       [](R &r) { r.args.k = r.args.k_out = r.tensor({3, 3, 2, 16}); }},
      {"k with other tokens", invalid, "k", "4", [](R &r) { r.args.k = r.args.k_out = r.tensor({2, 4, 2, 16}); }},
      {"k of another head_dim", invalid, "k", "8",
       [](R &r) { r.args.k = r.args.k_out = r.tensor({2, 3, 2, 8}); }},
      {"k of another dtype", invalid, "k", "", [](R &r) { r.args.k.dtype = ROPE_DTYPE_F16; }},
      {"k_out without k", invalid, "k_out", "", [](R &r) { r.args.k = {}; }},
      {"v with another batch", invalid, "v", "1", [](R &r) { r.args.v = r.tensor({1, 3, 2, 16}); }},
      {"v_out without v", invalid, "v_out", "", [](R &r) { r.args.v_out = r.tensor({2, 3, 2, 16}); }},

      {"positions of F32", invalid, "positions", "", [](R &r) { r.args.positions = r.tensor({2, 3}); }},
      {"positions of rank 3", invalid, "positions", "3",
       [](R &r) { r.args.positions = r.workspace.tensor(ROPE_DTYPE_I32, {2, 3, 1}); }},
      {"positions too long", invalid, "positions", "4",
       [](R &r) { r.args.positions = r.workspace.tensor(ROPE_DTYPE_I32, {4}); }},
      {"positions per batch", invalid, "positions", "2",
       [](R &r) { r.args.positions = r.workspace.tensor(ROPE_DTYPE_I64, {2}); }},
      {"positions with axes swapped", invalid, "positions", "",
       [](R &r) { r.args.positions = r.workspace.tensor(ROPE_DTYPE_I64, {3, 2}); }},
      {"positions of one token for all", invalid, "positions", "1",
       [](R &r) {
         r.args.positions = r.workspace.tensor(ROPE_DTYPE_I64, {2, 1});
       }},
      {"positions of one batch with other tokens", invalid, "positions", "4",
       [](R &r) {
         r.args.positions = r.workspace.tensor(ROPE_DTYPE_I64, {1, 4});
       }},
      {"positions of other batches", invalid, "positions", "4",
       [](R &r) {
         r.args.positions = r.workspace.tensor(ROPE_DTYPE_I64, {4, 3});
       }},
      {"positions without data", invalid, "positions", "NULL", [](R &r) { r.args.positions.data = nullptr; }},
      {"start_positions of F32", invalid, "start_positions", "", [](R &r) { r.args.start_positions = r.tensor({2}); }},
      {"start_positions of another length", invalid, "start_positions", "5",
       [](R &r) { r.args.start_positions = r.workspace.tensor(ROPE_DTYPE_I32, {5}); }},
      {"start_positions of rank 3", invalid, "start_positions", "3",
       [](R &r) { r.args.start_positions = r.workspace.tensor(ROPE_DTYPE_I32, {2, 3, 1}); }},
      {"start_positions [S] where a rank-1 tensor is [B]", invalid, "start_positions", "3",
       [](R &r) { r.args.start_positions = r.workspace.tensor(ROPE_DTYPE_I32, {3}); }},
      {"start_positions with axes swapped", invalid, "start_positions", "",
       [](R &r) { r.args.start_positions = r.workspace.tensor(ROPE_DTYPE_I32, {3, 2}); }},

      {"positions without an axis of axes", invalid, "positions", "3",
       [](R &r) {
         r.config.num_axes = 3;
         r.args.positions = r.workspace.tensor(ROPE_DTYPE_I64, {2, 3});
       }},
      {"positions of rank 1 with two axes", invalid, "positions", "3",
       [](R &r) {
         r.config.num_axes = 2;
         r.args.positions = r.workspace.tensor(ROPE_DTYPE_I64, {3});
       }},
      {"positions of other axes", invalid, "positions", "4",
       [](R &r) {
         r.config.num_axes = 3;
         r.args.positions = r.workspace.tensor(ROPE_DTYPE_I64, {4, 2, 3});
       }},
      {"positions of axes and other batches", invalid, "positions", "4",
       [](R &r) {
         r.config.num_axes = 3;
         r.args.positions = r.workspace.tensor(ROPE_DTYPE_I64, {1, 4, 3});
       }},
      {"positions with the axes last", invalid, "positions", "",
       [](R &r) {
         r.config.num_axes = 4;
         r.args.positions = r.workspace.tensor(ROPE_DTYPE_I64, {2, 3, 4});
       }},
      {"positions of axes with one axis", invalid, "positions", "3",
       [](R &r) { r.args.positions = r.workspace.tensor(ROPE_DTYPE_I64, {1, 2, 3}); }},
      {"start_positions of other axes", invalid, "start_positions", "4",
       [](R &r) {
         r.use_axes(3);
         r.args.start_positions = r.workspace.tensor(ROPE_DTYPE_I32, {4, 3});
       }},
      {"start_positions of each token without axes", invalid, "start_positions", "",
       [](R &r) {
         r.use_axes(5);
         r.args.start_positions = r.workspace.tensor(ROPE_DTYPE_I32, {2, 3});
       }},

      {"cu_seqlens beside BSHD", invalid, "cu_seqlens", "BSHD",
       [](R &r) { r.args.cu_seqlens = r.workspace.tensor(ROPE_DTYPE_I32, {3}); }},
      {"cu_seqlens of F32", invalid, "cu_seqlens", "F32",
       [](R &r) {
         r.use_sequences();
         r.args.cu_seqlens = r.tensor({3});
       }},
      {"cu_seqlens of rank 2", invalid, "cu_seqlens", "",
       [](R &r) {
         r.use_sequences();
         r.args.cu_seqlens = r.workspace.tensor(ROPE_DTYPE_I32, {1, 3});
       }},
      {"cu_seqlens without an entry", invalid, "cu_seqlens", "0",
       [](R &r) {
         r.use_sequences();
         r.args.cu_seqlens = r.workspace.tensor(ROPE_DTYPE_I32, {0});
       }},
      {"cu_seqlens without data", invalid, "cu_seqlens", "NULL",
       [](R &r) {
         r.use_sequences();
         r.args.cu_seqlens.data = nullptr;
       }},
      {"cu_seqlens misaligned", invalid, "cu_seqlens", "",
       [](R &r) {
         r.use_sequences();
         move(&r.args.cu_seqlens, 2);
       }},
      {"start_positions of neither sequences nor tokens", invalid, "start_positions", "3",
       [](R &r) {
         r.use_sequences();
         r.args.start_positions = r.workspace.tensor(ROPE_DTYPE_I32, {3});
       }},
      {"start_positions of sequences without cu_seqlens", invalid, "start_positions", "2",
       [](R &r) {
         r.use_sequences();
         r.args.cu_seqlens = {};
         r.args.start_positions = r.workspace.tensor(ROPE_DTYPE_I32, {2});
       }},
      {"positions of sequences", invalid, "positions", "2",
       [](R &r) {
         r.use_sequences();
         r.args.positions = r.workspace.tensor(ROPE_DTYPE_I32, {2});
       }},
      {"positions of two batches in THD", invalid, "positions", "2",
       [](R &r) {
         r.use_sequences();
         r.args.positions = r.workspace.tensor(ROPE_DTYPE_I32, {2, 6});
       }},
      {"start_positions of each sequence in rank 2", invalid, "start_positions", "2",
       [](R &r) {
         r.use_sequences();
         r.args.start_positions = r.workspace.tensor(ROPE_DTYPE_I32, {1, 2});
       }},
      {"q_out in cu_seqlens", invalid, "q_out", "",
       [](R &r) {
         r.use_sequences();
         r.args.cu_seqlens.data = r.args.q_out.data;
       }},

      {"fault of I32", invalid, "fault", "I32", [](R &r) { r.args.fault = r.workspace.tensor(ROPE_DTYPE_I32, {2}); }},
      {"fault of one word", invalid, "fault", "1",
       [](R &r) {
         r.args.fault = r.workspace.tensor(ROPE_DTYPE_I64, {1});
       }},
      {"fault of three words", invalid, "fault", "3",
       [](R &r) { r.args.fault = r.workspace.tensor(ROPE_DTYPE_I64, {3}); }},
      {"fault of rank 2", invalid, "fault", "",
       [](R &r) {
         r.args.fault = r.workspace.tensor(ROPE_DTYPE_I64, {1, 2});
       }},
      {"fault of one word repeated", invalid, "fault", "",
       [](R &r) {
         r.use_fault();
         r.args.fault.stride[0] = 0;
       }},
      {"fault without data", invalid, "fault", "NULL",
       [](R &r) {
         r.use_fault();
         r.args.fault.data = nullptr;
       }},
      {"fault in q_out", invalid, "fault", "",
       [](R &r) {
         r.use_fault();
         r.args.fault.data = r.args.q_out.data;
       }},
      {"fault in k", invalid, "fault", "",
       [](R &r) {
         r.use_fault();
         r.args.fault.data = r.args.k.data;
       }},
      {"fault in positions", invalid, "fault", "",
       [](R &r) {
         r.use_fault();
         r.args.fault.data = r.args.positions.data;
       }},
      {"fault in cos", invalid, "fault", "",
       [](R &r) {
         r.use_tables();
         r.use_fault();
         r.args.fault.data = r.args.cos.data;
       }},

      {"angles beside cos and sin", invalid, "angles", "",
       [](R &r) {
         r.use_tables();
         r.args.angles = r.tensor({5, 8});
       }},
      {"angles of F64", invalid, "angles", "F64",
       [](R &r) { r.args.angles = r.workspace.tensor(ROPE_DTYPE_F64, {5, 8}); }},
      {"angles of I32", invalid, "angles", "I32",
       [](R &r) { r.args.angles = r.workspace.tensor(ROPE_DTYPE_I32, {5, 8}); }},
      {"angles of other columns", invalid, "angles", "4", [](R &r) { r.args.angles = r.tensor({5, 4}); }},
      {"angles of rank 3 by position", invalid, "angles", "3", [](R &r) { r.args.angles = r.tensor({1, 5, 8}); }},
      {"angles by token of other tokens", invalid, "angles", "5",
       [](R &r) {
         r.args.angles = r.tensor({5, 8});
         r.args.positions = {};
         r.args.table_rows = ROPE_TABLE_BY_TOKEN;
       }},
      {"positions beside angles by token", invalid, "positions", "",
       [](R &r) {
         r.args.angles = r.tensor({3, 8});
         r.args.table_rows = ROPE_TABLE_BY_TOKEN;
       }},
      {"q_out in angles", invalid, "q_out", "",
       [](R &r) {
         r.args.angles = r.tensor({5, 8});
         r.args.angles.data = r.args.q_out.data;
       }},

      {"tables of other axes", invalid, "cos", "2",
       [](R &r) {
         r.use_axes(3);
         r.args.cos = r.args.sin = r.tensor({2, 5, 8});
       }},
      {"tables of axes with one axis", invalid, "cos", "3",
       [](R &r) { r.args.cos = r.args.sin = r.tensor({1, 5, 8}); }},
      {"tables by position of rank 4", invalid, "cos", "4",
       [](R &r) {
         r.use_axes(3);
         r.args.cos = r.args.sin = r.tensor({3, 2, 5, 8});
       }},
      {"tables by token without an axis of axes", invalid, "cos", "2",
       [](R &r) {
         r.config.num_axes = 3;
         r.use_token_tables({3, 8});
       }},
      {"tables by token of other axes", invalid, "cos", "2",
       [](R &r) {
         r.config.num_axes = 3;
         r.use_token_tables({2, 3, 8});
       }},
      {"tables by token of axes and other batches", invalid, "cos", "5",
       [](R &r) {
         r.config.num_axes = 3;
         r.use_token_tables({3, 5, 3, 8});
       }},
      {"tables of a token repeated for each batch of THD", invalid, "cos", "3",
       [](R &r) {
         r.use_sequences();
         r.use_token_tables({1, 6, 8});
       }},
      {"sin of other axes than cos", invalid, "sin", "1",
       [](R &r) {
         r.use_axes(3);
         r.args.cos = r.tensor({3, 5, 8});
         r.args.sin = r.tensor({1, 5, 8});
       }},
      {"repeated columns that do not repeat", invalid, "cos", "2",
       [](R &r) {
         r.use_axes(3);
         r.args.cos = r.args.sin = r.tensor({5, 2});
       }},
      {"columns of other axes", invalid, "cos", "2",
       [](R &r) {
         r.use_axes(2);
         r.args.cos = r.args.sin = r.tensor({5, 2});
       }},
      {"repeated columns of one axis", invalid, "cos", "4",
       [](R &r) { r.args.cos = r.args.sin = r.tensor({5, 4}); }},
      {"positions beside a table by token", invalid, "positions", "",
       [](R &r) {
         r.args.cos = r.args.sin = r.tensor({3, 8});
         r.args.table_rows = ROPE_TABLE_BY_TOKEN;
       }},
      {"start_positions beside a table by token", invalid, "start_positions", "",
       [](R &r) {
         r.args.cos = r.args.sin = r.tensor({3, 8});
         r.args.positions = {};
         r.args.start_positions = r.workspace.tensor(ROPE_DTYPE_I32, {2});
         r.args.table_rows = ROPE_TABLE_BY_TOKEN;
       }},
      {"position_offset beside a table by token", invalid, "position_offset", "",
       [](R &r) {
         r.args.cos = r.args.sin = r.tensor({3, 8});
         r.args.positions = {};
         r.args.position_offset = 1;
         r.args.table_rows = ROPE_TABLE_BY_TOKEN;
       }},
      {"table by token of other tokens", invalid, "cos", "5",
       [](R &r) {
         r.use_tables();
         r.args.positions = {};
         r.args.table_rows = ROPE_TABLE_BY_TOKEN;
       }},
      {"table by token of other batches", invalid, "cos", "4",
       [](R &r) {
         r.args.cos = r.args.sin = r.tensor({4, 3, 8});
         r.args.positions = {};
         r.args.table_rows = ROPE_TABLE_BY_TOKEN;
       }},
      {"table_rows by token without tables", invalid, "table_rows", "",
       [](R &r) { r.args.table_rows = ROPE_TABLE_BY_TOKEN; }},
      {"sin of another dtype", invalid, "sin", "F16",
       [](R &r) {
         r.use_tables();
         r.args.sin = r.workspace.tensor(ROPE_DTYPE_F16, {5, 8});
       }},
      {"unknown table_rows", invalid, "table_rows", "2",
       [](R &r) {
         r.use_tables();
         r.args.table_rows = 2;
       }},
      {"reserved0", unsupported, "reserved0", "1", [](R &r) { r.args.reserved0 = 1; }},

      {"no theta and no tables", invalid, "theta", "", [](R &r) { r.config.theta = 0; }},
      {"cos without sin", invalid, "sin", "",
       [](R &r) {
         r.use_tables();
         r.args.sin = {};
       }},
      {"sin without cos", invalid, "cos", "",
       [](R &r) {
         r.use_tables();
         r.args.cos = {};
       }},
      {"sin of R columns beside cos of R/2", invalid, "sin", "16",
       [](R &r) {
         r.use_tables();
         r.args.sin = r.tensor({5, 16});
       }},
      {"sin of other columns", invalid, "sin", "7",
       [](R &r) {
         r.use_tables();
         r.args.sin = r.tensor({5, 7});
       }},
      {"sin of other rows", invalid, "sin", "6",
       [](R &r) {
         r.use_tables();
         r.args.sin = r.tensor({6, 8});
       }},
      {"cos of rank 1", invalid, "cos", "1", [](R &r) { r.args.cos = r.args.sin = r.tensor({8}); }},
      {"cos of I32", invalid, "cos", "",
       [](R &r) {
         r.use_tables();
         r.args.cos.dtype = ROPE_DTYPE_I32;
       }},
      {"cos without data", invalid, "cos", "NULL",
       [](R &r) {
         r.use_tables();
         r.args.cos.data = nullptr;
       }},

      {"q_out of one head repeated", invalid, "q_out", "", [](R &r) { r.args.q_out.stride[2] = 0; }},
      {"q in place of one token repeated", invalid, "q", "",
       [](R &r) {
         r.args.q.stride[1] = 0;
         r.args.q_out = {};
       }},
      {"k_out in q_out", invalid, "k_out", "",
       [](R &r) {
         r.args.k_out = r.args.q_out;
         r.args.k_out.shape[2] = 2;
       }},
      {"k_out in q_out, one element on", invalid, "k_out", "",
       [](R &r) {
         r.args.k_out = r.args.q_out;
         r.args.k_out.shape[2] = 2;
         move(&r.args.k_out, 4);
       }},
      {"q in place, and k the same", invalid, "k", "",
       [](R &r) {
         r.args.q_out = {};
         r.args.k = r.args.q;
         r.args.k_out = {};
       }},
      {"q_out in q, one element on", invalid, "q_out", "",
       [](R &r) {
         r.args.q_out = r.args.q;
         move(&r.args.q_out, 4);
       }},
      {"q_out in q, one head on", invalid, "q_out", "",
       [](R &r) {
         r.args.q_out = r.args.q;
         move(&r.args.q_out, 64);
       }},
      {"q_out in q with other strides", invalid, "q_out", "",
       [](R &r) {
         r.args.q_out = r.args.q;
         r.args.q_out.stride[1] = 16;
         r.args.q_out.stride[2] = 48;
       }},
      {"q_out in k", invalid, "q_out", "",
       [](R &r) {
         r.args.q_out = r.args.k = r.tensor({2, 3, 4, 16});
         r.args.k_out = r.tensor({2, 3, 4, 16});
       }},
      {"q_out in positions", invalid, "q_out", "",
       [](R &r) {
         r.args.positions = r.args.q_out;
         r.args.positions.dtype = ROPE_DTYPE_I32;
         r.args.positions.ndim = 2;
         r.args.positions.stride[1] = 1;
       }},
{"q_out in the upper halves of positions", invalid, "q_out", "",
       [](R &r) {
         r.args.q_out = r.workspace.tensor(ROPE_DTYPE_F32, {2, 3, 4, 16}, Placement().gap(3, 3).at(1));
         r.args.positions.data = r.args.q_out.data;
         move(&r.args.positions, -4);
         r.args.positions.stride[0] = 6;
         r.args.positions.stride[1] = 2;
       }},
      {"k_out in cos", invalid, "k_out", "",
       [](R &r) {
         r.use_tables();
         r.args.k_out = r.tensor({2, 3, 2, 16});
         r.args.cos.data = r.args.k_out.data;
       }},

      {"one entry for years of sequences", unsupported, "cu_seqlens", "288230376151711744",
       [](R &r) {
         r.use_sequences();
         r.use_fault();
         r.args.cu_seqlens.shape[0] = int64_t{1} << 58;
         r.args.cu_seqlens.stride[0] = 0;
       }},
  };
  return misuses;
}

std::vector<RopeMisuse> misused_steps() {
  using R = RopeRequest;
  static const auto integers = [](R &r, const Shape &shape) { return r.workspace.tensor(ROPE_DTYPE_I32, shape); };
  return {
      {"input.struct_size 0", invalid, "input.struct_size", "0", [](R &r) { r.use_factor().struct_size = 0; }},
      {"input.struct_size one short", invalid, "input.struct_size", "407",
       [](R &r) { r.use_factor().struct_size = 407; }},
      {"input.struct_size above 4096", invalid, "input.struct_size", "4097",
       [](R &r) { r.use_factor().struct_size = 4097; }},
      {"input with a flag", unsupported, "input.flags", "0x1", [](R &r) { r.use_factor().flags = 1; }},
      {"q_pass of a whole rotation", invalid, "input.q_pass", "rotary_dim 16",
       [](R &r) {
         r.use_factor().q_pass = r.tensor({2, 3, 4, 8});
       }},
      {"q_pass beside all of q", invalid, "q", "rotary_dim, 8",
       [](R &r) {
         r.use_pass().args.q = r.tensor({2, 3, 4, 16});
       }},
      {"q_pass without q_out", invalid, "input.q_pass", "q_out is absent", [](R &r) { r.use_pass().args.q_out = {}; }},
      {"q_pass without q", invalid, "input.q_pass", "q is absent",
       [](R &r) {
         r.use_pass();
         r.args.q = r.args.q_out = {};
       }},
      {"q_out of the window alone beside q_pass", invalid, "q_out", "head_dim, 16",
       [](R &r) {
         r.use_pass().args.q_out = r.tensor({2, 3, 4, 8});
       }},
      {"q_pass of other channels", invalid, "input.q_pass", "8",
       [](R &r) {
         r.use_pass().input.q_pass = r.tensor({2, 3, 4, 9});
       }},
      {"q_pass of other heads", invalid, "input.q_pass", "4",
       [](R &r) {
         r.use_pass().input.q_pass = r.tensor({2, 3, 1, 8});
       }},
      {"q_pass of other tokens", invalid, "input.q_pass", "3",
       [](R &r) {
         r.use_pass().input.q_pass = r.tensor({2, 4, 4, 8});
       }},
      {"q_pass of rank 3", invalid, "input.q_pass", "4",
       [](R &r) {
         r.use_pass().input.q_pass = r.tensor({6, 4, 8});
       }},
      {"q_pass of F16", invalid, "input.q_pass", "F16",
       [](R &r) {
         r.use_pass().input.q_pass = r.workspace.tensor(ROPE_DTYPE_F16, {2, 3, 4, 8});
       }},
      {"q_pass without data", invalid, "input.q_pass", "NULL", [](R &r) { r.use_pass().input.q_pass.data = nullptr; }},
      {"q_pass in q_out", invalid, "q_out", "q_pass",
       [](R &r) {
         r.use_pass();
         r.input.q_pass = narrow(r.args.q_out, 3, 0, 8);
       }},
      {"q in q_out beside q_pass", invalid, "q_out", "q",
       [](R &r) {
         r.use_pass();
         r.args.q = narrow(r.args.q_out, 3, 8, 8);
       }},
      {"k_pass with neither k_out nor k_cache", invalid, "input.k_pass", "k_out is absent",
       [](R &r) {
         r.use_pass();
         r.input.k_pass = r.tensor({2, 3, 2, 8});
         r.args.k = r.tensor({2, 3, 2, 8});
         r.args.k_out = {};
       }},
      {"k_pass_cache without k_cache", invalid, "cache.k_pass_cache", "k_cache is absent",
       [](R &r) {
         r.use_latent().v_cache = r.cache.k_cache;
         r.cache.k_cache = {};
       }},
      {"k_pass_cache of a whole rotation", invalid, "cache.k_pass_cache", "no channels outside",
       [](R &r) {
         r.use_cache().k_pass_cache = r.tensor({3, 4, 2, 8});
       }},
      {"k_pass_cache beside a k_cache of all channels", invalid, "cache.k_cache", "of the window",
       [](R &r) {
         r.use_latent().k_cache = r.tensor({3, 4, 2, 16});
       }},
      {"k_pass_cache of other channels", invalid, "cache.k_pass_cache", "outside the window",
       [](R &r) {
         r.use_latent().k_pass_cache = r.tensor({3, 4, 2, 9});
       }},
      {"k_pass_cache of other pages", invalid, "cache.k_pass_cache", "2 pages",
       [](R &r) {
         r.use_latent().k_pass_cache = r.tensor({2, 4, 2, 8});
       }},
      {"k_pass_cache of F64", invalid, "cache.k_pass_cache", "F64",
       [](R &r) {
         r.use_latent().k_pass_cache = r.workspace.tensor(ROPE_DTYPE_F64, {3, 4, 2, 8});
       }},
      {"k_pass_cache over k_cache", invalid, "k_cache", "k_pass_cache",
       [](R &r) {
         r.use_latent();
         r.cache.k_pass_cache.data = r.cache.k_cache.data;
       }},
      {"k_pass_scales of a k_pass_cache of 32 bits", invalid, "cache.k_pass_scales", "no 8 bits",
       [](R &r) {
         r.use_latent().k_pass_scales = r.tensor({3, 4, 2, 1});
       }},
      {"k_pass_scales of groups that are none", invalid, "cache.k_pass_scales", "8 channels",
       [](R &r) {
         r.use_latent().k_pass_scales = r.tensor({3, 4, 2, 3});
         r.cache.k_pass_cache = r.workspace.tensor(ROPE_DTYPE_F8_E4M3, {3, 4, 2, 8});
       }},
      {"k_pass_scale of a k_pass_cache of 32 bits", invalid, "quant.k_pass_scale", "no 8 bits",
       [](R &r) {
         r.use_latent();
         r.quant.k_pass_scale = r.tensor({1});
         r.args.quant = &r.quant;
       }},
      {"k_pass_scale beside k_pass_scales", invalid, "quant.k_pass_scale", "cache.k_pass_scales",
       [](R &r) {
         r.use_latent().k_pass_scales = r.tensor({3, 4, 2, 2});
         r.cache.k_pass_cache = r.workspace.tensor(ROPE_DTYPE_F8_E4M3, {3, 4, 2, 8});
         r.quant.k_pass_scale = r.tensor({1});
         r.args.quant = &r.quant;
       }},
      {"k_scale of codes in k_pass_cache alone", invalid, "quant.k_scale", "quant.k_pass_scale",
       [](R &r) {
         r.use_latent().k_pass_cache = r.workspace.tensor(ROPE_DTYPE_F8_E4M3, {3, 4, 2, 8});
         r.quant.k_scale = r.tensor({1});
         r.args.quant = &r.quant;
       }},
      {"q_row_factor of other tokens", invalid, "input.q_row_factor", "[4]",
       [](R &r) { r.use_factor().q_row_factor = r.tensor({4}); }},
      {"q_row_factor of other batches", invalid, "input.q_row_factor", "[3, 3]",
       [](R &r) {
         r.use_factor().q_row_factor = r.tensor({3, 3});
       }},
      {"q_row_factor of tokens and heads alone", invalid, "input.q_row_factor", "[3, 4]",
       [](R &r) {
         r.use_factor().q_row_factor = r.tensor({3, 4});
       }},
      {"q_row_factor of other heads", invalid, "input.q_row_factor", "[2, 3, 2]",
       [](R &r) {
         r.use_factor().q_row_factor = r.tensor({2, 3, 2});
       }},
      {"q_row_factor of each channel", invalid, "input.q_row_factor", "[2, 3, 4, 16]",
       [](R &r) {
         r.use_factor().q_row_factor = r.tensor({2, 3, 4, 16});
       }},
      {"k_row_factor of F16 for F32 data", invalid, "input.k_row_factor", "F16",
       [](R &r) { r.use_factor().k_row_factor = r.workspace.tensor(ROPE_DTYPE_F16, {3}); }},
      {"k_row_factor of I32", invalid, "input.k_row_factor", "I32",
       [](R &r) { r.use_factor().k_row_factor = r.workspace.tensor(ROPE_DTYPE_I32, {3}); }},
      {"q_row_factor of 8 bits", invalid, "input.q_row_factor", "F8_E4M3",
       [](R &r) { r.use_factor().q_row_factor.dtype = ROPE_DTYPE_F8_E4M3; }},
      {"q_row_factor without data", invalid, "input.q_row_factor", "NULL",
       [](R &r) { r.use_factor().q_row_factor.data = nullptr; }},
      {"q_row_factor misaligned", invalid, "input.q_row_factor", "",
       [](R &r) { move(&r.use_factor().q_row_factor, 2); }},
      {"q_row_factor absent but with data", invalid, "input.q_row_factor", "",
       [](R &r) { r.use_factor().q_row_factor.ndim = 0; }},
      {"strides of q_row_factor that overflow", invalid, "input.q_row_factor", "",
       [](R &r) { r.use_factor().q_row_factor.stride[0] = huge; }},
      {"k_row_factor without k", invalid, "input.k_row_factor", "",
       [](R &r) {
         r.use_factor().k_row_factor = r.tensor({3});
         r.args.k = r.args.k_out = {};
       }},
      {"v_row_factor without v", invalid, "input.v_row_factor", "",
       [](R &r) { r.use_factor().v_row_factor = r.tensor({3}); }},
      {"q_row_factor inside q_out", invalid, "q_row_factor", "",
       [](R &r) {
         rope_tensor_t &factor = r.use_factor().q_row_factor;
         factor.data = (r.args.q_out.ndim != 0 ? r.args.q_out : r.args.q).data;
       }},
      {"a factor beside a v that is turned", unsupported, "v", "input",
       [](R &r) {
         r.use_factor();
         r.args.v = r.tensor({2, 3, 2, 16});
       }},
      {"quant.struct_size 0", invalid, "quant.struct_size", "0", [](R &r) { r.use_codes().struct_size = 0; }},
      {"quant.struct_size one short", invalid, "quant.struct_size", "655",
       [](R &r) { r.use_codes().struct_size = 655; }},
      {"quant.struct_size above 4096", invalid, "quant.struct_size", "4097",
       [](R &r) { r.use_codes().struct_size = 4097; }},
      {"quant with an undefined flag", unsupported, "quant.flags", "0x4", [](R &r) { r.use_codes().flags = 4; }},
      {"powers of two without written scales", invalid, "quant.flags", "0x2",
       [](R &r) { r.use_codes().flags = ROPE_QUANT_FLAG_POWER_OF_TWO; }},
      {"a floor without written scales", invalid, "quant.scale_floor", "0.5",
       [](R &r) { r.use_codes().scale_floor = 0.5; }},
      {"a negative floor", invalid, "quant.scale_floor", "-1", [](R &r) { r.use_scales().quant.scale_floor = -1; }},
      {"a floor of NaN", invalid, "quant.scale_floor", "nan", [](R &r) { r.use_scales().quant.scale_floor = NAN; }},
      {"an infinite floor", invalid, "quant.scale_floor", "inf",
       [](R &r) { r.use_scales().quant.scale_floor = INFINITY; }},
      {"a floor above F32", invalid, "quant.scale_floor", "1e+39",
       [](R &r) { r.use_scales().quant.scale_floor = 1e39; }},
      {"a floor below F32", invalid, "quant.scale_floor", "1e-46",
       [](R &r) { r.use_scales().quant.scale_floor = 1e-46; }},
      {"q_scales_out of a q in place", invalid, "quant.q_scales_out", "q_out is absent",
       [](R &r) {
         r.use_codes().q_scales_out = r.tensor({2, 3, 4, 1});
       }},
      {"k_scales_out of a k_out of 32 bits", invalid, "quant.k_scales_out", "no 8 bits",
       [](R &r) {
         r.use_codes().k_scales_out = r.tensor({2, 3, 2, 1});
       }},
      {"v_scales_out without v", invalid, "quant.v_scales_out", "v is absent",
       [](R &r) {
         r.use_codes().v_scales_out = r.tensor({2, 3, 2, 1});
       }},
      {"k_scales beside k_scale", invalid, "quant.k_scale", "cache.k_scales",
       [](R &r) { r.use_scales().quant.k_scale = r.tensor({1}); }},
      {"k_scales of a cache of 32 bits", invalid, "cache.k_scales", "no 8 bits",
       [](R &r) {
         r.use_cache().k_scales = r.tensor({3, 4, 2, 1});
       }},
      {"v_scales without v", invalid, "cache.v_scales", "v is absent",
       [](R &r) {
         r.use_scales().cache.v_scales = r.tensor({3, 4, 2, 1});
       }},
      {"v_scales without v_cache", invalid, "cache.v_scales", "v_cache is absent",
       [](R &r) {
         r.use_scales().cache.v_scales = r.tensor({3, 4, 2, 1});
         r.args.v = r.tensor({2, 3, 2, 16});
         r.args.flags = ROPE_FLAG_V_UNROTATED;
       }},
      {"k_scales of F16", invalid, "cache.k_scales", "F16",
       [](R &r) {
         r.use_scales().cache.k_scales = r.workspace.tensor(ROPE_DTYPE_F16, {3, 4, 2, 1});
       }},
      {"k_scales of E4M3", unsupported, "cache.k_scales", "F8_E4M3",
       [](R &r) { r.use_scales().cache.k_scales.dtype = ROPE_DTYPE_F8_E4M3; }},
      {"k_scales of 4 bits", unsupported, "cache.k_scales", "F4_E2M1X2",
       [](R &r) { r.use_scales().cache.k_scales.dtype = ROPE_DTYPE_F4_E2M1X2; }},
      {"k_scales of rank 3", invalid, "cache.k_scales", "[3, 4, 2]",
       [](R &r) {
         r.use_scales().cache.k_scales = r.tensor({3, 4, 2});
       }},
      {"k_scales of other pages", invalid, "cache.k_scales", "[2, 4, 2, 1]",
       [](R &r) {
         r.use_scales().cache.k_scales = r.tensor({2, 4, 2, 1});
       }},
      {"k_scales of other entries", invalid, "cache.k_scales", "[3, 5, 2, 1]",
       [](R &r) {
         r.use_scales().cache.k_scales = r.tensor({3, 5, 2, 1});
       }},
      {"k_scales of other heads", invalid, "cache.k_scales", "[3, 4, 3, 1]",
       [](R &r) {
         r.use_scales().cache.k_scales = r.tensor({3, 4, 3, 1});
       }},
      {"k_scales of groups that are none", invalid, "cache.k_scales", "[3, 4, 2], then G, where G divides 16 channels",
       [](R &r) {
         r.use_scales().cache.k_scales = r.tensor({3, 4, 2, 3});
       }},
      {"k_scales_out of groups that are none in THD", invalid, "quant.k_scales_out",
       "[6, 2], then G, or G/4 and 4, where G divides 16 channels",
       [](R &r) {
         r.use_sequences();
         r.args.k_out.dtype = ROPE_DTYPE_F8_E4M3;
         r.quant.k_scales_out = r.tensor({6, 2, 5});
         r.args.quant = &r.quant;
       }},
      {"k_scales of more groups than channels", invalid, "cache.k_scales", "[3, 4, 2, 32]",
       [](R &r) {
         r.use_scales().cache.k_scales = r.tensor({3, 4, 2, 32});
       }},
      {"k_scales of no group", invalid, "cache.k_scales", "[3, 4, 2, 0]",
       [](R &r) {
         r.use_scales().cache.k_scales = r.tensor({3, 4, 2, 0});
       }},
      {"k_scales without data", invalid, "cache.k_scales", "NULL",
       [](R &r) { r.use_scales().cache.k_scales.data = nullptr; }},
      {"k_scales misaligned", invalid, "cache.k_scales", "", [](R &r) { move(&r.use_scales().cache.k_scales, 2); }},
      {"k_scales of one element", invalid, "cache.k_scales", "",
       [](R &r) {
         rope_tensor_t &scales = r.use_scales().cache.k_scales;
         scales.flags = ROPE_TENSOR_STRIDED;
         std::fill_n(scales.stride, 4, 0);
       }},
      {"k_scales over the codes", invalid, "k_cache", "k_scales",
       [](R &r) {
         r.use_scales();
         r.cache.k_scales.data = r.cache.k_cache.data;
       }},
      {"k_scales over k", invalid, "k", "k_scales", [](R &r) { r.use_scales().cache.k_scales.data = r.args.k.data; }},
      {"k_scales over amax_out", invalid, "k_scales", "amax_out",
       [](R &r) {
         r.use_scales().quant.amax_out = r.tensor({3});
         r.cache.k_scales.data = r.quant.amax_out.data;
       }},
      {"k_pass_scale without k_pass_cache", invalid, "quant.k_pass_scale", "k_pass_cache is absent",
       [](R &r) { r.use_codes().k_pass_scale = r.tensor({1}); }},
      {"quant beside a v that is turned", unsupported, "v", "quant",
       [](R &r) {
         r.use_codes();
         r.args.cache = nullptr;
         r.args.v = r.tensor({2, 3, 2, 16});
       }},
      {"k_scale of F16", invalid, "quant.k_scale", "F16",
       [](R &r) { r.use_codes().k_scale = r.workspace.tensor(ROPE_DTYPE_F16, {1}); }},
      {"k_scale of exponents", invalid, "quant.k_scale", "F8_E8M0",
       [](R &r) { r.use_codes().k_scale.dtype = ROPE_DTYPE_F8_E8M0; }},
      {"k_scale of rank 2", invalid, "quant.k_scale", "[1, 2]",
       [](R &r) {
         r.use_codes().k_scale = r.tensor({1, 2});
       }},
      {"k_scale of other heads", invalid, "quant.k_scale", "[4]", [](R &r) { r.use_codes().k_scale = r.tensor({4}); }},
      {"k_scale of no heads", invalid, "quant.k_scale", "[0]", [](R &r) { r.use_codes().k_scale = r.tensor({0}); }},
      {"k_scale without data", invalid, "quant.k_scale", "NULL", [](R &r) { r.use_codes().k_scale.data = nullptr; }},
      {"k_scale misaligned", invalid, "quant.k_scale", "", [](R &r) { move(&r.use_codes().k_scale, 2); }},
      {"k_scale absent but with data", invalid, "quant.k_scale", "", [](R &r) { r.use_codes().k_scale.ndim = 0; }},
      {"k_scale inside the cache", invalid, "k_scale", "",
       [](R &r) { r.use_codes().k_scale.data = r.cache.k_cache.data; }},
      {"q_scale of a q of 32 bits", invalid, "quant.q_scale", "8 bits",
       [](R &r) { r.use_codes().q_scale = r.tensor({1}); }},
      {"k_scale of a cache of 32 bits", invalid, "quant.k_scale", "8 bits",
       [](R &r) {
         r.use_codes();
         r.use_cache();
       }},
      {"v_scale without v", invalid, "quant.v_scale", "v is absent",
       [](R &r) { r.use_codes().v_scale = r.tensor({1}); }},
      {"k_scale without k", invalid, "quant.k_scale", "k is absent",
       [](R &r) {
         r.use_codes();
         r.args.k = r.args.k_out = {};
         r.args.cache = nullptr;
       }},
      {"amax_out of two", invalid, "quant.amax_out", "[2]", [](R &r) { r.use_codes().amax_out = r.tensor({2}); }},
      {"amax_out of rank 2", invalid, "quant.amax_out", "[3, 1]",
       [](R &r) {
         r.use_codes().amax_out = r.tensor({3, 1});
       }},
      {"amax_out of F64", invalid, "quant.amax_out", "F64",
       [](R &r) { r.use_codes().amax_out = r.workspace.tensor(ROPE_DTYPE_F64, {3}); }},
      {"amax_out of one element", invalid, "quant.amax_out", "0",
       [](R &r) {
         rope_tensor_t &amax = r.use_codes().amax_out = r.tensor({3});
         amax.flags = ROPE_TENSOR_STRIDED;
         amax.stride[0] = 0;
       }},
      {"amax_out where nothing has 8 bits", invalid, "quant.amax_out", "8 bits",
       [](R &r) {
         r.use_codes().amax_out = r.tensor({3});
         r.quant.k_scale = {};
         r.use_cache();
       }},
      {"amax_out that is a scale", invalid, "amax_out", "",
       [](R &r) {
         rope_quant_args_t &quant = r.use_codes();
         quant.k_scale = r.tensor({3});
         quant.k_scale.shape[0] = 1;
         quant.amax_out = quant.k_scale;
         quant.amax_out.shape[0] = 3;
       }},
      {"q_out of 8 bits in q's memory", invalid, "q_out", "",
       [](R &r) {
         r.use_codes();
         r.args.q_out = r.args.q;
         r.args.q_out.dtype = ROPE_DTYPE_F8_E4M3;
       }},
      {"q_out of 8 bits of F64 data", unsupported, "q_out", "F64",
       [](R &r) {
         r.use_dtype(ROPE_DTYPE_F64);
         r.args.q_out = r.workspace.tensor(ROPE_DTYPE_F8_E4M3, {2, 3, 4, 16});
       }},
      {"k_cache of 8 bits of F64 data", unsupported, "cache.k_cache", "F64",
       [](R &r) {
         r.use_dtype(ROPE_DTYPE_F64);
         r.use_codes();
       }},
      {"k of 8 bits", invalid, "k", "F8_E5M2", [](R &r) { r.args.k.dtype = ROPE_DTYPE_F8_E5M2; }},
      {"positions of 8 bits", invalid, "positions", "F8_E4M3",
       [](R &r) { r.args.positions.dtype = ROPE_DTYPE_F8_E4M3; }},
      {"cos of 8 bits", invalid, "cos", "F8_E4M3",
       [](R &r) {
         r.use_tables();
         r.args.cos.dtype = r.args.sin.dtype = ROPE_DTYPE_F8_E4M3;
       }},
      {"angles of 8 bits", invalid, "angles", "F8_E5M2",
       [](R &r) {
         r.args.angles = r.workspace.tensor(ROPE_DTYPE_F8_E5M2, {5, 8});
       }},
      {"norm without one in the descriptor", invalid, "norm", "", [](R &r) { r.args.norm = &r.norm; }},
      {"a descriptor with a norm alone", invalid, "norm", "NULL", [](R &r) { r.use_norm(ROPE_NORM_RMS); }},
      {"norm.struct_size 0", invalid, "norm.struct_size", "0", [](R &r) { r.use_weights().struct_size = 0; }},
      {"norm.struct_size one short", invalid, "norm.struct_size", "887",
       [](R &r) { r.use_weights().struct_size = 887; }},
      {"norm.struct_size above 4096", invalid, "norm.struct_size", "4097",
       [](R &r) { r.use_weights().struct_size = 4097; }},
      {"norm with a flag", unsupported, "norm.flags", "0x1", [](R &r) { r.use_weights().flags = 1; }},
      {"q_weight of rank 3", invalid, "norm.q_weight", "[1, 4, 16]",
       [](R &r) {
         r.use_weights().q_weight = r.tensor({1, 4, 16});
       }},
      {"q_weight of other channels", invalid, "norm.q_weight", "15",
       [](R &r) { r.use_weights().q_weight = r.tensor({15}); }},
      {"q_weight of the window, q of the head", invalid, "norm.q_weight", "8",
       [](R &r) {
         r.config.rotary_dim = 8;
         r.use_weights().q_weight = r.tensor({8});
       }},
      {"q_weight of the head, q of the window", invalid, "norm.q_weight", "16",
       [](R &r) {
         r.config.rotary_dim = 8;
         r.args.q = r.tensor({2, 3, 4, 8});
         r.args.q_out = {};
         r.use_weights();
       }},
      {"q_weight of other heads", invalid, "norm.q_weight", "2",
       [](R &r) {
         r.use_weights().q_weight = r.tensor({2, 16});
       }},
      {"k_weight of q's heads", invalid, "norm.k_weight", "4",
       [](R &r) {
         r.use_weights().k_weight = r.tensor({4, 16});
       }},
      {"q_weight with heads last", invalid, "norm.q_weight", "16",
       [](R &r) {
         r.use_weights().q_weight = r.tensor({16, 4});
       }},
      {"k_weight of F16 for F32 data", invalid, "norm.k_weight", "F16",
       [](R &r) { r.use_weights().k_weight = r.workspace.tensor(ROPE_DTYPE_F16, {16}); }},
      {"k_weight of F64 for F32 data", invalid, "norm.k_weight", "F64",
       [](R &r) { r.use_weights().k_weight = r.workspace.tensor(ROPE_DTYPE_F64, {16}); }},
      {"k_weight of I32", invalid, "norm.k_weight", "I32",
       [](R &r) { r.use_weights().k_weight = r.workspace.tensor(ROPE_DTYPE_I32, {16}); }},
      {"q_weight of 8 bits", invalid, "norm.q_weight", "F8_E4M3",
       [](R &r) { r.use_weights().q_weight.dtype = ROPE_DTYPE_F8_E4M3; }},
      {"q_weight without data", invalid, "norm.q_weight", "NULL",
       [](R &r) { r.use_weights().q_weight.data = nullptr; }},
      {"q_weight misaligned", invalid, "norm.q_weight", "", [](R &r) { move(&r.use_weights().q_weight, 2); }},
      {"q_weight absent but with data", invalid, "norm.q_weight", "", [](R &r) { r.use_weights().q_weight.ndim = 0; }},
      {"q_weight with an undefined flag", unsupported, "norm.q_weight", "0x2",
       [](R &r) { r.use_weights().q_weight.flags = 2; }},
      {"q_weight with a negative size", invalid, "norm.q_weight", "-16",
       [](R &r) { r.use_weights().q_weight.shape[0] = -16; }},
      {"strides of q_weight that overflow", invalid, "norm.q_weight", "",
       [](R &r) { r.use_weights().q_weight.stride[0] = huge; }},
      {"k_weight without k", invalid, "norm.k_weight", "",
       [](R &r) {
         r.use_weights();
         r.args.k = r.args.k_out = {};
       }},
      {"k_weight where k is not normed", invalid, "norm.k_weight", "",
       [](R &r) {
         r.use_weights();
         r.config.norm_tensors = ROPE_NORM_TENSOR_Q;
       }},
      {"q_weight where q is not normed", invalid, "norm.q_weight", "",
       [](R &r) {
         r.use_weights();
         r.config.norm_tensors = ROPE_NORM_TENSOR_K | ROPE_NORM_TENSOR_V;
       }},
      {"q_bias of RMS", invalid, "norm.q_bias", "", [](R &r) { r.use_weights().q_bias = r.tensor({16}); }},
      {"k_bias of RMS", invalid, "norm.k_bias", "", [](R &r) { r.use_weights().k_bias = r.tensor({16}); }},
      {"q_bias of other channels", invalid, "norm.q_bias", "8",
       [](R &r) { r.use_weights(ROPE_NORM_LAYER).q_bias = r.tensor({8}); }},
      {"k_bias of BF16 for F32 data", invalid, "norm.k_bias", "BF16",
       [](R &r) { r.use_weights(ROPE_NORM_LAYER).k_bias = r.workspace.tensor(ROPE_DTYPE_BF16, {16}); }},
      {"k_bias without k", invalid, "norm.k_bias", "",
       [](R &r) {
         rope_norm_args_t &norm = r.use_weights(ROPE_NORM_LAYER);
         norm.k_bias = norm.k_weight;
         norm.k_weight = {};
         r.args.k = r.args.k_out = {};
       }},
      {"grad_q_weight in forward", invalid, "norm.grad_q_weight", "",
       [](R &r) {
         r.use_weights().grad_q_weight = r.tensor({1, 16});
       }},
      {"grad_k_weight in forward", invalid, "norm.grad_k_weight", "",
       [](R &r) {
         r.use_weights().grad_k_weight = r.tensor({1, 16});
       }},
      {"grad_q_bias in forward", invalid, "norm.grad_q_bias", "",
       [](R &r) {
         r.use_weights(ROPE_NORM_LAYER).grad_q_bias = r.tensor({1, 16});
       }},
      {"grad_k_bias in forward", invalid, "norm.grad_k_bias", "",
       [](R &r) {
         r.use_weights(ROPE_NORM_LAYER).grad_k_bias = r.tensor({1, 16});
       }},
      {"q_out in q_weight", invalid, "q_out", "norm.q_weight",
       [](R &r) { r.use_weights().q_weight.data = r.args.q_out.data; }},
      {"k in place in k_weight", invalid, "k", "norm.k_weight",
       [](R &r) {
         r.use_weights().k_weight.data = r.args.k.data;
         r.args.k_out = {};
       }},
      {"k_out in q_bias", invalid, "k_out", "norm.q_bias",
       [](R &r) {
         rope_norm_args_t &norm = r.use_weights(ROPE_NORM_LAYER);
         norm.q_bias = norm.q_weight;
         norm.q_bias.data = r.args.k_out.data;
       }},
      {"q in place in channels that only its norm writes", invalid, "q", "norm.k_weight",
       [](R &r) {
         r.config.rotary_dim = 8;
         rope_norm_args_t &norm = r.use_weights();
         // Every third row of q is as long as two heads; k_weight lies outside the windows.
         norm.k_weight = r.args.q;
         norm.k_weight.ndim = 2;
         norm.k_weight.shape[0] = 2;
         norm.k_weight.shape[1] = 16;
         norm.k_weight.stride[0] = 8;
         norm.k_weight.stride[1] = 0;
         move(&norm.k_weight, 8 * 4);
         r.args.q_out = {};
       }},
      {"v beside a norm without a flag", unsupported, "v", "",
       [](R &r) {
         r.use_weights();
         r.args.v = r.tensor({2, 3, 2, 16});
       }},
      {"q_weight over the fault words", invalid, "fault", "norm.q_weight",
       [](R &r) {
         r.use_fault();
         r.use_weights().q_weight.data = r.args.fault.data;
         r.norm.q_weight.stride[0] = 0;
       }},

      {"cache.struct_size 0", invalid, "cache.struct_size", "0", [](R &r) { r.use_cache().struct_size = 0; }},
      {"cache.struct_size one short", invalid, "cache.struct_size", "887",
       [](R &r) { r.use_cache().struct_size = 887; }},
      {"cache.struct_size above 4096", invalid, "cache.struct_size", "5000",
       [](R &r) { r.use_cache().struct_size = 5000; }},
      {"cache with an undefined flag", unsupported, "cache.flags", "0x3", [](R &r) { r.use_cache().flags = 3; }},
      {"cache of neither k nor v", invalid, "cache.k_cache", "", [](R &r) { r.use_cache().k_cache = {}; }},
      {"k_cache without k", invalid, "cache.k_cache", "",
       [](R &r) {
         r.use_cache();
         r.args.k = r.args.k_out = {};
       }},
      {"v_cache without v", invalid, "cache.v_cache", "",
       [](R &r) {
         r.use_cache().v_cache = r.tensor({3, 4, 2, 16});
       }},
      {"v beside a cache without a flag", unsupported, "v", "",
       [](R &r) {
         r.use_cache();
         r.args.v = r.tensor({2, 3, 2, 16});
       }},
      {"k_cache of rank 3", invalid, "cache.k_cache", "3",
       [](R &r) {
         r.use_cache().k_cache = r.tensor({12, 2, 16});
       }},
      {"k_cache of rank 5", invalid, "cache.k_cache", "5", [](R &r) { r.use_cache().k_cache.ndim = 5; }},
      {"k_cache of other heads", invalid, "cache.k_cache", "4",
       [](R &r) {
         r.use_cache().k_cache = r.tensor({3, 4, 4, 16});
       }},
      {"k_cache with heads before entries in its shape", invalid, "cache.k_cache", "",
       [](R &r) {
         r.use_cache().k_cache = r.tensor({3, 2, 4, 16});
       }},
      {"k_cache of other channels", invalid, "cache.k_cache", "8",
       [](R &r) {
         r.use_cache().k_cache = r.tensor({3, 4, 2, 8});
       }},
      {"k_cache of the head, k of the window", invalid, "cache.k_cache", "16",
       [](R &r) {
         r.use_cache();
         r.config.rotary_dim = 8;
         r.args.k = r.tensor({2, 3, 2, 8});
         r.args.k_out = {};
       }},
      {"v_cache of k's channels", invalid, "cache.v_cache", "16",
       [](R &r) {
         r.use_v();
         r.args.v = r.tensor({2, 3, 2, 9});
       }},
      {"k_cache of F64 for F32 data", invalid, "cache.k_cache", "F64",
       [](R &r) {
         r.use_cache().k_cache = r.workspace.tensor(ROPE_DTYPE_F64, {3, 4, 2, 16});
       }},
      {"k_cache of I32", invalid, "cache.k_cache", "I32", [](R &r) { r.use_cache().k_cache.dtype = ROPE_DTYPE_I32; }},
      {"k_cache of F32 for BF16 data", invalid, "cache.k_cache", "F32",
       [](R &r) {
         r.use_cache();
         r.use_dtype(ROPE_DTYPE_BF16);
       }},
      {"k_cache of F16 for BF16 data", invalid, "cache.k_cache", "F16",
       [](R &r) {
         r.use_cache().k_cache.dtype = ROPE_DTYPE_F16;
         r.use_dtype(ROPE_DTYPE_BF16);
       }},
      {"k_cache of exponents", invalid, "cache.k_cache", "F8_E8M0",
       [](R &r) { r.use_cache().k_cache.dtype = ROPE_DTYPE_F8_E8M0; }},
      {"k_cache of 4 bits", unsupported, "cache.k_cache", "F4_E2M1X2",
       [](R &r) { r.use_cache().k_cache.dtype = ROPE_DTYPE_F4_E2M1X2; }},
      {"k_cache of no dtype", invalid, "cache.k_cache", "0", [](R &r) { r.use_cache().k_cache.dtype = 0; }},
      {"k_cache without data", invalid, "cache.k_cache", "NULL", [](R &r) { r.use_cache().k_cache.data = nullptr; }},
      {"k_cache misaligned", invalid, "cache.k_cache", "", [](R &r) { move(&r.use_cache().k_cache, 2); }},
      {"k_cache absent but with data", invalid, "cache.k_cache", "", [](R &r) { r.use_cache().k_cache.ndim = 0; }},
      {"k_cache with a negative size", invalid, "cache.k_cache", "-3",
       [](R &r) { r.use_cache().k_cache.shape[0] = -3; }},
      {"strides of k_cache that overflow", invalid, "cache.k_cache", "",
       [](R &r) { r.use_cache().k_cache.stride[0] = huge; }},
      {"v_cache of other pages", invalid, "cache.v_cache", "5",
       [](R &r) {
         r.use_v().v_cache = r.tensor({5, 4, 2, 16});
       }},
      {"v_cache of other entries", invalid, "cache.v_cache", "6",
       [](R &r) {
         r.use_v().v_cache = r.tensor({3, 6, 2, 16});
       }},
      {"k_cache of one page repeated", invalid, "cache.k_cache", "", [](R &r) { r.use_cache().k_cache.stride[0] = 0; }},
      {"k_cache of one entry repeated", invalid, "cache.k_cache", "",
       [](R &r) { r.use_cache().k_cache.stride[1] = 0; }},
      {"k_cache of one head repeated", invalid, "cache.k_cache", "", [](R &r) { r.use_cache().k_cache.stride[2] = 0; }},
      {"v_cache of one channel repeated", invalid, "cache.v_cache", "", [](R &r) { r.use_v().v_cache.stride[3] = 0; }},
      {"k_cache whose pages overlap", invalid, "cache.k_cache", "", [](R &r) { r.use_cache().k_cache.stride[0] = 32; }},
      {"k_cache in k", invalid, "cache.k_cache", "k", [](R &r) { r.use_cache().k_cache.data = r.args.k.data; }},
      {"k_cache that is k", invalid, "cache.k_cache", "k",
       [](R &r) {
         r.use_cache().k_cache = r.args.k;
         r.args.k_out = {};
       }},
      {"k_cache that is k and k_out", invalid, "cache.k_cache", "",
       [](R &r) { r.use_cache().k_cache = r.args.k_out = r.args.k; }},
      {"k_cache that is k_out", invalid, "cache.k_cache", "k_out", [](R &r) { r.use_cache().k_cache = r.args.k_out; }},
      {"k_cache in q", invalid, "cache.k_cache", "q", [](R &r) { r.use_cache().k_cache.data = r.args.q.data; }},
      {"k_cache in q_out", invalid, "cache.k_cache", "q_out",
       [](R &r) { r.use_cache().k_cache.data = r.args.q_out.data; }},
      {"v_cache that is k_cache", invalid, "cache.v_cache", "cache.k_cache",
       [](R &r) {
         r.use_v();
         r.cache.v_cache = r.cache.k_cache;
       }},
      {"v_cache in k_cache, one element on", invalid, "cache.v_cache", "cache.k_cache",
       [](R &r) {
         r.use_v();
         r.cache.v_cache = r.cache.k_cache;
         move(&r.cache.v_cache, 4);
       }},
      {"v_cache in v", invalid, "cache.v_cache", "v",
       [](R &r) {
         r.use_v();
         r.cache.v_cache.data = r.args.v.data;
       }},
      {"v_cache in k", invalid, "cache.v_cache", "k", [](R &r) { r.use_v().v_cache.data = r.args.k.data; }},
      {"k_cache in slots", invalid, "cache.k_cache", "cache.slots",
       [](R &r) {
         r.use_cache();
         r.cache.slots.data = r.cache.k_cache.data;
       }},
      {"k_cache in positions", invalid, "cache.k_cache", "positions",
       [](R &r) { r.args.positions.data = r.use_cache().k_cache.data; }},
      {"k_cache in page_table", invalid, "cache.k_cache", "cache.page_table",
       [](R &r) {
         r.use_pages();
         r.cache.page_table.data = r.cache.k_cache.data;
       }},
      {"cos in k_cache", invalid, "cache.k_cache", "cos",
       [](R &r) {
         r.use_tables();
         r.args.cos.data = r.use_cache().k_cache.data;
       }},
      {"k_cache over the fault words", invalid, "fault", "cache.k_cache",
       [](R &r) {
         r.use_fault();
         r.args.fault.data = r.use_cache().k_cache.data;
       }},
      {"k_cache in k_weight", invalid, "cache.k_cache", "norm.k_weight",
       [](R &r) {
         r.use_weights();
         r.use_cache();
         r.norm.k_weight.data = r.cache.k_cache.data;
       }},
      {"k_pass_scales without k_pass_cache", invalid, "cache.k_pass_scales", "k_pass_cache is absent",
       [](R &r) {
         r.use_cache().k_pass_scales = r.tensor({3, 4, 2, 1});
       }},

      {"neither slots nor page_table", invalid, "cache.slots", "cache.page_table",
       [](R &r) { r.use_cache().slots = {}; }},
      {"slots beside page_table", invalid, "cache.slots", "cache.page_table",
       [](R &r) {
         r.use_cache().page_table = integers(r, {2, 3});
       }},
      {"slots of F32", invalid, "cache.slots", "F32",
       [](R &r) {
         r.use_cache().slots = r.tensor({2, 3});
       }},
      {"slots of rank 1 beside batches", invalid, "cache.slots", "6",
       [](R &r) { r.use_cache().slots = integers(r, {6}); }},
      {"slots with axes swapped", invalid, "cache.slots", "",
       [](R &r) {
         r.use_cache().slots = integers(r, {3, 2});
       }},
      {"slots of one batch for all", invalid, "cache.slots", "1",
       [](R &r) {
         r.use_cache().slots = integers(r, {1, 3});
       }},
      {"slots of fewer tokens beside batches", invalid, "cache.slots", "2",
       [](R &r) {
         r.use_cache().slots = integers(r, {2, 2});
       }},
      {"slots of more tokens", invalid, "cache.slots", "7",
       [](R &r) {
         r.use_sequences();
         r.use_cache().slots = integers(r, {7});
       }},
      {"slots of rank 2 in THD", invalid, "cache.slots", "",
       [](R &r) {
         r.use_sequences();
         r.use_cache().slots = integers(r, {1, 6});
       }},
      {"slots without data", invalid, "cache.slots", "NULL", [](R &r) { r.use_cache().slots.data = nullptr; }},
      {"slots misaligned", invalid, "cache.slots", "", [](R &r) { move(&r.use_cache().slots, 2); }},
      {"slots absent but with data", invalid, "cache.slots", "", [](R &r) { r.use_cache().slots.ndim = 0; }},
      {"page_indptr beside slots", invalid, "cache.page_indptr", "",
       [](R &r) { r.use_cache().page_indptr = integers(r, {3}); }},
      {"sequence beside slots", invalid, "cache.sequence", "",
       [](R &r) {
         r.use_cache().sequence = integers(r, {2, 3});
       }},
      {"cache.positions beside slots", invalid, "cache.positions", "",
       [](R &r) {
         r.use_cache().positions = integers(r, {2, 3});
       }},
      {"page_indptr alone", invalid, "cache.page_table", "",
       [](R &r) {
         r.use_cache().slots = {};
         r.cache.page_indptr = integers(r, {3});
       }},
      {"page_table of F32", invalid, "cache.page_table", "F32",
       [](R &r) {
         r.use_pages().page_table = r.tensor({2, 3});
       }},
      {"page_table of rank 1", invalid, "cache.page_table", "6",
       [](R &r) { r.use_pages().page_table = integers(r, {6}); }},
      {"page_table of rank 3", invalid, "cache.page_table", "1",
       [](R &r) {
         r.use_pages().page_table = integers(r, {1, 2, 3});
       }},
      {"page_table of rank 2 beside page_indptr", invalid, "cache.page_table", "",
       [](R &r) { r.use_pages().page_indptr = integers(r, {3}); }},
      {"page_table of other batches", invalid, "cache.page_table", "3",
       [](R &r) {
         r.use_pages().page_table = integers(r, {3, 3});
       }},
      {"page_table of other sequences", invalid, "cache.page_table", "6",
       [](R &r) {
         r.use_sequences();
         r.use_pages().page_table = integers(r, {6, 3});
       }},
      {"page_table without data", invalid, "cache.page_table", "NULL",
       [](R &r) { r.use_pages().page_table.data = nullptr; }},
      {"page_indptr of F32", invalid, "cache.page_indptr", "F32",
       [](R &r) {
         r.use_page_list(3);
         r.cache.page_indptr = r.tensor({3});
       }},
      {"page_indptr of other batches", invalid, "cache.page_indptr", "3", [](R &r) { r.use_page_list(4); }},
      {"page_indptr without an entry", invalid, "cache.page_indptr", "0", [](R &r) { r.use_page_list(0); }},
      {"page_indptr of rank 2", invalid, "cache.page_indptr", "",
       [](R &r) {
         r.use_page_list(3);
         r.cache.page_indptr = integers(r, {1, 3});
       }},
      {"sequence of F32", invalid, "cache.sequence", "F32",
       [](R &r) {
         r.use_pages().sequence = r.tensor({2, 3});
       }},
      {"sequence of other tokens", invalid, "cache.sequence", "4",
       [](R &r) {
         r.use_pages().sequence = integers(r, {2, 4});
       }},
      {"sequence of batches", invalid, "cache.sequence", "2", [](R &r) { r.use_pages().sequence = integers(r, {2}); }},
      {"cache.positions of F32", invalid, "cache.positions", "F32",
       [](R &r) {
         r.use_pages().positions = r.tensor({2, 3});
       }},
      {"cache.positions of other tokens", invalid, "cache.positions", "2",
       [](R &r) {
         r.use_pages().positions = integers(r, {2, 2});
       }},
      {"cache.positions of rank 1 beside batches", invalid, "cache.positions", "3",
       [](R &r) { r.use_pages().positions = integers(r, {3}); }},
      {"pages with several axes and no positions in the cache", invalid, "cache.positions", "",
       [](R &r) {
         r.use_axes(3);
         r.use_pages();
       }},
      {"pages with a table by token and no positions in the cache", invalid, "cache.positions", "",
       [](R &r) {
         r.use_token_tables({3, 8});
         r.use_pages();
       }},

      {"cos beside ROPE_FLAG_UNROTATED", invalid, "cos", "",
       [](R &r) {
         r.use_tables();
         r.args.flags = ROPE_FLAG_UNROTATED;
       }},
      {"angles beside ROPE_FLAG_UNROTATED", invalid, "angles", "",
       [](R &r) {
         r.args.angles = r.tensor({5, 8});
         r.args.flags = ROPE_FLAG_UNROTATED;
       }},
      {"table_rows by token beside ROPE_FLAG_UNROTATED", invalid, "table_rows", "",
       [](R &r) {
         r.args.positions = {};
         r.args.table_rows = ROPE_TABLE_BY_TOKEN;
         r.args.flags = ROPE_FLAG_UNROTATED;
       }},
      {"v of its own width without a flag", invalid, "v", "12",
       [](R &r) {
         r.args.v = r.tensor({2, 3, 1, 12});
       }},
      {"v of more than 1024 channels", invalid, "v", "1025",
       [](R &r) {
         r.args.v = r.tensor({2, 3, 1, 1025});
         r.args.flags = ROPE_FLAG_V_UNROTATED;
       }},
      {"v of no channels", invalid, "v", "0",
       [](R &r) {
         r.args.v = r.tensor({2, 3, 1, 0});
         r.args.flags = ROPE_FLAG_V_UNROTATED;
       }},
      {"q of neither the head nor the window", invalid, "q", "12",
       [](R &r) {
         r.config.rotary_dim = 8;
         r.args.q = r.tensor({2, 3, 4, 12});
         r.args.q_out = {};
       }},
      {"k of neither the head nor the window beside ROPE_FLAG_UNROTATED", invalid, "k", "10",
       [](R &r) {
         r.config.rotary_dim = 8;
         r.args.k = r.tensor({2, 3, 2, 10});
         r.args.k_out = {};
         r.args.flags = ROPE_FLAG_UNROTATED;
       }},
      {"q_out of the head, q of the window", invalid, "q_out", "16",
       [](R &r) {
         r.config.rotary_dim = 8;
         r.args.q = r.tensor({2, 3, 4, 8});
       }},
      {"v_out of another width than v", invalid, "v_out", "16",
       [](R &r) {
         r.args.v = r.tensor({2, 3, 2, 9});
         r.args.v_out = r.tensor({2, 3, 2, 16});
         r.args.flags = ROPE_FLAG_V_UNROTATED;
       }},
      {"q_out of F64 for F32 data", invalid, "q_out", "F64",
       [](R &r) {
         r.args.q_out = r.workspace.tensor(ROPE_DTYPE_F64, {2, 3, 4, 16});
       }},
      {"k_out of F32 for F16 data", invalid, "k_out", "F32",
       [](R &r) {
         r.use_dtype(ROPE_DTYPE_F16);
         r.args.k_out = r.tensor({2, 3, 2, 16});
       }},
      {"q_out of BF16 for F16 data", invalid, "q_out", "BF16",
       [](R &r) {
         r.use_dtype(ROPE_DTYPE_F16);
         r.args.q_out.dtype = ROPE_DTYPE_BF16;
       }},
      {"q_out of BF16 in q", invalid, "q_out", "q",
       [](R &r) {
         r.args.q_out.data = r.args.q.data;
         r.args.q_out.dtype = ROPE_DTYPE_BF16;
       }},
      {"q_out of BF16 over q, element by element", invalid, "q_out", "q",
       [](R &r) {
         r.args.q_out = r.args.q;
         r.args.q_out.dtype = ROPE_DTYPE_BF16;
         for (int64_t &stride : r.args.q_out.stride) stride *= 2;
       }},
  };
}

void check_untouched(const Workspace &workspace) {
  std::string where;
  const bool untouched = workspace.untouched_elsewhere(&where);
  INFO(where);
  CHECK(untouched);
}

template <class Desc>
Desc *not_null() {
  return reinterpret_cast<Desc *>(static_cast<uintptr_t>(64));
}

// Memory for a struct that is longer in a newer header.
template <class Struct>
struct Longer {
  Struct known;
  unsigned char tail[24];
};

}  // namespace

TEST_CASE("the request that the misuses break is served", "[errors]") {
  for (const Device &device : devices()) {
    INFO(device);
    using R = RopeRequest;
    const std::vector<void (*)(R &)> uses = {[](R &) {},
                                             [](R &r) { r.use_tables(); },
                                             [](R &r) { r.use_sequences(); },
                                             [](R &r) { r.use_axes(3); },
                                             [](R &r) {
                                               r.use_token_tables({2, 3, 8});
                                             },
                                             [](R &r) { r.use_fault(); }};
    for (size_t i = 0; i < uses.size(); ++i) {
      INFO("use " << i);
      RopeRequest request(device);
      uses[i](request);
      for (const rope_tensor_t &table : {request.args.cos, request.args.sin}) {
        if (table.ndim != 0) request.workspace.fill_normal(table);
      }
      request.workspace.freeze();
      request.workspace.restore();
      const RopeDesc desc = create(request.config);
      for (Direction direction : {Direction::Forward, Direction::Backward}) {
        const rope_status_t status = run(device, desc.get(), direction, request.args, request.workspace);
        INFO(rope_last_error());
        CHECK(status == ROPE_STATUS_SUCCESS);
      }
    }
  }
}

TEST_CASE("misused RoPE configs", "[errors]") {
  for (const Device &device : devices()) {
    for (const RopeMisuse &misuse : misused_rope_configs()) {
      if (misuse.cpu_only && device.kind != ROPE_DEVICE_CPU) continue;
      INFO(misuse.title << ", on " << device);
      RopeRequest request(device);
      misuse.commit(request);
      rope_desc_t *desc = not_null<rope_desc_t>();
      CHECK(rope_desc_create(&request.config, &desc) == misuse.status);
      CHECK(desc == nullptr);
      check_message("rope_desc_create", misuse.field, misuse.value);
    }
  }
}

TEST_CASE("misused RoPE args", "[errors]") {
  for (const Device &device : devices()) {
    for (const RopeMisuse &misuse : misused_rope_args()) {
      if (misuse.cpu_only && device.kind != ROPE_DEVICE_CPU) continue;
      RopeRequest request(device);
      misuse.commit(request);
      request.workspace.freeze();
      request.workspace.restore();
      INFO(misuse.title << ", on " << device);
      const RopeDesc desc = create(request.config);
      const rope_args_t *args = request.null_args ? nullptr : &request.args;
      CHECK(rope_forward(desc.get(), args, request.stream) == misuse.status);
      check_message("rope_forward", misuse.field, misuse.value);
      CHECK(rope_backward(desc.get(), args, request.stream) == misuse.status);
      check_message("rope_backward", misuse.field, misuse.value);
      check_untouched(request.workspace);
    }
  }
}

TEST_CASE("misused norms, caches and flags of a step", "[errors][step]") {
  for (const Device &device : devices()) {
    for (const RopeMisuse &misuse : misused_steps()) {
      RopeRequest request(device);
      misuse.commit(request);
      request.workspace.freeze();
      request.workspace.restore();
      INFO(misuse.title << ", on " << device);
      const RopeDesc desc = create(request.config);
      CHECK(rope_forward(desc.get(), &request.args, nullptr) == misuse.status);
      check_message("rope_forward", misuse.field, misuse.value);
      char text[8] = "#######";
      CHECK(rope_explain(desc.get(), &request.args, text, sizeof text) == misuse.status);
      check_message("rope_explain", misuse.field, misuse.value);
      CHECK(std::string(text) == "#######");
      check_untouched(request.workspace);
    }
  }
}

namespace {

// Checks backward with the request's misuse, and the descriptor of the call.
RopeDesc check_backward_misuse(const RopeMisuse &misuse, RopeRequest *request) {
  INFO(misuse.title << ", on " << request->device);
  misuse.commit(*request);
  request->workspace.freeze();
  request->workspace.restore();
  RopeDesc desc = create(request->config);
  CHECK(rope_backward(desc.get(), &request->args, nullptr) == misuse.status);
  check_message("rope_backward", misuse.field, misuse.value);
  check_untouched(request->workspace);
  return desc;
}

}  // namespace

TEST_CASE("ROPE_FLAG_ACCUMULATE adds to outputs of their own, in backward alone", "[errors][step]") {
  using R = RopeRequest;
  const RopeMisuse misuses[] = {
      {"q_out absent", invalid, "q_out", "absent", [](R &r) { r.args.q_out = {}; }},
      {"k_out absent", invalid, "k_out", "absent", [](R &r) { r.args.k_out = {}; }},
      {"v_out absent", invalid, "v_out", "absent",
       [](R &r) {
         r.args.v = r.tensor({2, 3, 2, 16});
       }},
      {"v_out absent, v not turned", invalid, "v_out", "absent",
       [](R &r) {
         r.args.v = r.tensor({2, 3, 2, 16});
         r.args.flags |= ROPE_FLAG_V_UNROTATED;
       }},
      {"nothing turned, q_out absent", invalid, "q_out", "absent",
       [](R &r) {
         r.args.flags |= ROPE_FLAG_UNROTATED;
         r.args.q_out = {};
       }},
      {"q_out is q", invalid, "q_out", "is q", [](R &r) { r.args.q_out = r.args.q; }},
      {"k_out is k", invalid, "k_out", "is k", [](R &r) { r.args.k_out = r.args.k; }},
      {"k_out is q", invalid, "k_out", "",
       [](R &r) {
         r.args.k = r.tensor({2, 3, 4, 16});
         r.args.k_out = r.args.q;
       }},
      {"q_out partly q", invalid, "q_out", "q", [](R &r) { r.args.q_out = r.args.q, move(&r.args.q_out, 4); }},
      {"q_out of 16 bits for BF16 data", invalid, "q_out", "F16",
       [](R &r) {
         r.use_dtype(ROPE_DTYPE_BF16);
         r.args.q_out = r.workspace.tensor(ROPE_DTYPE_F16, {2, 3, 4, 16});
       }},
      {"q_out of 8 bits", unsupported, "q_out", "F8_E4M3",
       [](R &r) {
         r.args.q_out = r.workspace.tensor(ROPE_DTYPE_F8_E4M3, {2, 3, 4, 16});
       }},
      {"cache", unsupported, "cache", "", [](R &r) { r.use_cache(); }},
      {"another flag beside it", unsupported, "flags", "0x18", [](R &r) { r.args.flags |= 0x10; }},
  };
  for (const Device &device : devices()) {
    for (const RopeMisuse &misuse : misuses) {
      RopeRequest request(device);
      request.args.flags = ROPE_FLAG_ACCUMULATE;
      const RopeDesc desc = check_backward_misuse(misuse, &request);
      char text[256];
      INFO(misuse.title << ", on " << device);
      CHECK(rope_explain(desc.get(), &request.args, text, sizeof text) == misuse.status);
      check_message("rope_explain", misuse.field, misuse.value);
    }
    RopeRequest request(device);
    request.args.flags = ROPE_FLAG_ACCUMULATE;
    request.workspace.freeze();
    request.workspace.restore();
    const RopeDesc desc = create(request.config);
    CHECK(rope_forward(desc.get(), &request.args, nullptr) == invalid);
    CHECK(std::string(rope_last_error()) ==
          "rope_forward: flags is 0x8: ROPE_FLAG_ACCUMULATE (0x8) belongs to rope_backward");
    check_untouched(request.workspace);
  }
}

TEST_CASE("errors name the tensor that gradients of norms need, or that does not fit them", "[errors][step]") {
  using R = RopeRequest;
  const RopeMisuse misuses[] = {
      {"q_in absent", invalid, "norm.q_in", "absent", [](R &r) { r.use_gradients().q_in = {}; }},
      {"k_in absent", invalid, "norm.k_in", "absent", [](R &r) { r.use_gradients().k_in = {}; }},
      {"v_in absent", invalid, "norm.v_in", "absent",
       [](R &r) {
         r.use_gradients();
         r.config.norm_tensors = 7;
         r.args.v = r.tensor({2, 3, 2, 16});
         r.args.flags = ROPE_FLAG_V_UNROTATED;
       }},
      {"v_in without v", invalid, "norm.v_in", "absent",
       [](R &r) {
         r.use_gradients().v_in = r.tensor({2, 3, 2, 16});
         r.config.norm_tensors = 7;
       }},
      {"k_in without k", invalid, "norm.k_in", "absent",
       [](R &r) {
         r.use_gradients();
         r.norm.grad_k_weight = r.norm.k_weight = {};
         r.args.k = r.args.k_out = {};
       }},
      {"k_in of a tensor that is not normed", invalid, "norm.k_in", "leaves k out",
       [](R &r) {
         r.use_gradients();
         r.norm.grad_k_weight = r.norm.k_weight = {};
         r.config.norm_tensors = ROPE_NORM_TENSOR_Q;
       }},
      {"q_in of other tokens", invalid, "norm.q_in", "[2, 4, 4, 16]",
       [](R &r) {
         r.use_gradients().q_in = r.tensor({2, 4, 4, 16});
       }},
      {"q_in of other heads", invalid, "norm.q_in", "[2, 3, 2, 16]",
       [](R &r) {
         r.use_gradients().q_in = r.tensor({2, 3, 2, 16});
       }},
      {"q_in of other channels", invalid, "norm.q_in", "[2, 3, 4, 8]",
       [](R &r) {
         r.use_gradients().q_in = r.tensor({2, 3, 4, 8});
       }},
      {"q_in of another rank", invalid, "norm.q_in", "[6, 4, 16]",
       [](R &r) {
         r.use_gradients().q_in = r.tensor({6, 4, 16});
       }},
      {"q_in of another type", invalid, "norm.q_in", "BF16",
       [](R &r) {
         r.use_gradients().q_in = r.workspace.tensor(ROPE_DTYPE_BF16, {2, 3, 4, 16});
       }},
      {"q_in of 8 bits", invalid, "norm.q_in", "F8_E4M3",
       [](R &r) {
         r.use_gradients().q_in = r.workspace.tensor(ROPE_DTYPE_F8_E4M3, {2, 3, 4, 16});
       }},
      {"q_in is q_out", invalid, "q_out", "norm.q_in", [](R &r) { r.use_gradients().q_in = r.args.q_out; }},
      {"q_in is q, in place", invalid, "q", "norm.q_in",
       [](R &r) {
         r.use_gradients().q_in = r.args.q;
         r.args.q_out = {};
       }},
      {"k_in inside q_out", invalid, "q_out", "norm.k_in",
       [](R &r) { r.use_gradients().k_in.data = r.args.q_out.data; }},
      {"q_in without data", invalid, "norm.q_in", "NULL", [](R &r) { r.use_gradients().q_in.data = nullptr; }},
      {"grad_q_weight of BF16", invalid, "norm.grad_q_weight", "BF16",
       [](R &r) {
         r.use_gradients().grad_q_weight = r.workspace.tensor(ROPE_DTYPE_BF16, {3, 16});
       }},
      {"grad_q_weight of the data's 16 bits", invalid, "norm.grad_q_weight", "F16",
       [](R &r) {
         r.use_dtype(ROPE_DTYPE_F16);
         r.use_gradients().grad_q_weight = r.workspace.tensor(ROPE_DTYPE_F16, {3, 16});
         for (rope_tensor_t *in : {&r.norm.q_in, &r.norm.k_in}) in->dtype = ROPE_DTYPE_F16;
       }},
      {"grad_k_weight of F64 for F32 data", invalid, "norm.grad_k_weight", "F64",
       [](R &r) {
         r.use_gradients().grad_k_weight = r.workspace.tensor(ROPE_DTYPE_F64, {3, 16});
       }},
      {"grad_q_weight of one row without an axis", invalid, "norm.grad_q_weight", "[16]",
       [](R &r) { r.use_gradients().grad_q_weight = r.tensor({16}); }},
      {"grad_q_weight of no row", invalid, "norm.grad_q_weight", "[0, 16]",
       [](R &r) {
         r.use_gradients().grad_q_weight = r.tensor({0, 16});
       }},
      {"grad_q_weight of other channels", invalid, "norm.grad_q_weight", "[3, 8]",
       [](R &r) {
         r.use_gradients().grad_q_weight = r.tensor({3, 8});
       }},
      {"grad_q_weight of other heads", invalid, "norm.grad_q_weight", "[3, 2, 16]",
       [](R &r) {
         r.use_gradients().grad_q_weight = r.tensor({3, 2, 16});
       }},
      {"grad_q_weight of four axes", invalid, "norm.grad_q_weight", "[1, 3, 4, 16]",
       [](R &r) {
         r.use_gradients().grad_q_weight = r.tensor({1, 3, 4, 16});
       }},
      {"grad_q_weight of all heads for weights of each", invalid, "norm.grad_q_weight", "weight of each head",
       [](R &r) {
         r.use_gradients().q_weight = r.tensor({4, 16});
       }},
      {"grad_q_bias of all heads for biases of each", invalid, "norm.grad_q_bias", "bias of each head",
       [](R &r) {
         r.use_gradients(ROPE_NORM_LAYER).q_bias = r.tensor({4, 16});
         r.norm.grad_q_bias = r.tensor({3, 16});
       }},
      {"grad_k_bias of an RMS norm", invalid, "norm.grad_k_bias", "ROPE_NORM_LAYER",
       [](R &r) {
         r.use_gradients().grad_k_bias = r.tensor({3, 16});
       }},
      {"grad_q_bias of other runs", invalid, "norm.grad_q_bias", "2",
       [](R &r) {
         r.use_gradients(ROPE_NORM_LAYER).grad_q_bias = r.tensor({2, 16});
       }},
      {"grad_k_weight without k", invalid, "norm.grad_k_weight", "absent",
       [](R &r) {
         r.use_gradients();
         r.norm.k_in = r.norm.k_weight = {};
         r.args.k = r.args.k_out = {};
       }},
      {"grad_k_weight of a tensor that is not normed", invalid, "norm.grad_k_weight", "leaves k out",
       [](R &r) {
         r.use_gradients();
         r.norm.k_in = r.norm.k_weight = {};
         r.config.norm_tensors = ROPE_NORM_TENSOR_Q;
       }},
      {"grad_q_weight with one row for all", invalid, "norm.grad_q_weight", "stride",
       [](R &r) { r.use_gradients().grad_q_weight.stride[0] = 0; }},
      {"grad_q_weight is grad_k_weight", invalid, "norm.grad_q_weight", "norm.grad_k_weight",
       [](R &r) {
         r.use_gradients();
         r.norm.grad_k_weight = r.norm.grad_q_weight;
       }},
      {"grad_q_weight inside q_weight", invalid, "norm.grad_q_weight", "norm.q_weight",
       [](R &r) {
         r.use_gradients();
         r.norm.q_weight.data = r.norm.grad_q_weight.data;
       }},
      {"grad_q_weight inside q", invalid, "norm.grad_q_weight", "q",
       [](R &r) { r.use_gradients().grad_q_weight.data = r.args.q.data; }},
      {"grad_q_weight without data", invalid, "norm.grad_q_weight", "NULL",
       [](R &r) { r.use_gradients().grad_q_weight.data = nullptr; }},
      {"grad_q_weight misaligned", invalid, "norm.grad_q_weight", "",
       [](R &r) { move(&r.use_gradients().grad_q_weight, 2); }},
      {"no norm args", invalid, "norm", "NULL",
       [](R &r) {
         r.use_gradients();
         r.args.norm = nullptr;
       }},
      {"codes behind a norm", unsupported, "quant", "",
       [](R &r) {
         r.use_gradients();
         r.use_codes();
         r.args.cache = nullptr;
       }},
      {"a pass", unsupported, "input.q_pass", "",
       [](R &r) {
         r.use_pass();
         r.use_gradients();
       }},
  };
  for (const Device &device : devices()) {
    for (const RopeMisuse &misuse : misuses) {
      RopeRequest request(device);
      check_backward_misuse(misuse, &request);
    }
    // Each of these makes rope_explain explain backward.
    const std::pair<const char *, rope_tensor_t rope_norm_args_t::*> inputs[] = {
        {"norm.q_in", &rope_norm_args_t::q_in},
        {"norm.k_in", &rope_norm_args_t::k_in},
        {"norm.v_in", &rope_norm_args_t::v_in}};
    for (const auto &[field, member] : inputs) {
      RopeRequest request(device);
      request.use_weights().*member = request.args.q;
      request.workspace.freeze();
      request.workspace.restore();
      const RopeDesc desc = create(request.config);
      CHECK(rope_forward(desc.get(), &request.args, nullptr) == invalid);
      check_message("rope_forward", field, "backward");
      check_untouched(request.workspace);
    }
    RopeRequest request(device);
    request.use_gradients();
    request.args.q = request.args.q_out = request.tensor({2, 3, 513, 16});
    request.norm.q_in = request.tensor({2, 3, 513, 16});
    request.workspace.freeze();
    request.workspace.restore();
    const RopeDesc desc = create(request.config);
    CHECK(rope_backward(desc.get(), &request.args, nullptr) == unsupported);
    check_message("rope_backward", "norm.grad_q_weight", "513");
    check_untouched(request.workspace);
  }
}

TEST_CASE("backward has no caches and no codes", "[errors][step]") {
  using R = RopeRequest;
  const struct {
    const char *field;
    void (*commit)(R &);
  } refused[] = {
      {"cache", [](R &r) { r.use_cache(); }},
      {"quant",
       [](R &r) {
         r.use_codes();
         r.args.cache = nullptr;
       }},
      {"q_out",
       [](R &r) {
         r.args.q_out = r.workspace.tensor(ROPE_DTYPE_F8_E4M3, {2, 3, 4, 16});
       }},
  };
  for (const Device &device : devices()) {
    for (const auto &each : refused) {
      INFO(each.field << ", on " << device);
      RopeRequest request(device);
      each.commit(request);
      request.workspace.freeze();
      request.workspace.restore();
      const RopeDesc desc = create(request.config);
      CHECK(rope_backward(desc.get(), &request.args, nullptr) == unsupported);
      check_message("rope_backward", each.field, "");
      check_untouched(request.workspace);
    }
  }
}

TEST_CASE("THD tensors have rank 3", "[errors]") {
  RopeRequest request(devices()[0]);
  request.config.layout = ROPE_LAYOUT_THD;
  const RopeDesc desc = create(request.config);
  CHECK(rope_forward(desc.get(), &request.args, nullptr) == invalid);
  check_message("rope_forward", "q", "4");
  request.args.q = request.args.q_out = request.tensor({3, 4, 16});
  request.args.k = request.args.k_out = {};
  CHECK(rope_forward(desc.get(), &request.args, nullptr) == invalid);
  check_message("rope_forward", "positions", "2");
}

TEST_CASE("NULL for a config, a descriptor or the place of one", "[errors]") {
  RopeRequest request(devices()[0]);
  rope_desc_t *rope = not_null<rope_desc_t>();
  CHECK(rope_desc_create(nullptr, &rope) == invalid);
  CHECK(rope == nullptr);
  check_message("rope_desc_create", "config", "NULL");
  CHECK(rope_desc_create(&request.config, nullptr) == invalid);
  check_message("rope_desc_create", "desc_out", "NULL");
  CHECK(rope_forward(nullptr, &request.args, nullptr) == invalid);
  check_message("rope_forward", "desc", "NULL");
  CHECK(rope_backward(nullptr, &request.args, nullptr) == invalid);
  check_message("rope_backward", "desc", "NULL");

  const swiglu_config_t config = swiglu_config_for(devices()[0]);
  const swiglu_args_t args = swiglu_args();
  swiglu_desc_t *swiglu = not_null<swiglu_desc_t>();
  CHECK(swiglu_desc_create(nullptr, &swiglu) == invalid);
  CHECK(swiglu == nullptr);
  check_message("swiglu_desc_create", "config", "NULL");
  CHECK(swiglu_desc_create(&config, nullptr) == invalid);
  check_message("swiglu_desc_create", "desc_out", "NULL");
  CHECK(swiglu_forward(nullptr, &args, nullptr) == invalid);
  check_message("swiglu_forward", "desc", "NULL");
  CHECK(swiglu_backward(nullptr, &args, nullptr) == invalid);
  check_message("swiglu_backward", "desc", "NULL");
}

TEST_CASE("descriptors that are destroyed, or of the other kind", "[errors]") {
  for (const Device &device : devices()) {
    INFO(device);
    RopeRequest request(device);
    request.workspace.freeze();
    request.workspace.restore();
    const RopeDesc rope = create(request.config);
    const SwigluDesc swiglu = create(swiglu_config_for(device));
    swiglu_args_t args = swiglu_args();
    args.gate = request.args.q;
    args.up = request.args.q;
    args.out = request.args.q_out;

    CHECK(rope_forward(reinterpret_cast<const rope_desc_t *>(swiglu.get()), &request.args, nullptr) == invalid);
    check_message("rope_forward", "desc", "");
    CHECK(swiglu_forward(reinterpret_cast<const swiglu_desc_t *>(rope.get()), &args, nullptr) == invalid);
    check_message("swiglu_forward", "desc", "");

    RopeDesc rope_ended = create(request.config);
    SwigluDesc swiglu_ended = create(swiglu_config_for(device));
    const rope_desc_t *stale_rope = rope_ended.get();
    const swiglu_desc_t *stale_swiglu = swiglu_ended.get();
    rope_ended.reset();
    swiglu_ended.reset();
    CHECK(rope_forward(stale_rope, &request.args, nullptr) == invalid);
    check_message("rope_forward", "desc", "");
    CHECK(rope_backward(stale_rope, &request.args, nullptr) == invalid);
    check_message("rope_backward", "desc", "");
    CHECK(swiglu_forward(stale_swiglu, &args, nullptr) == invalid);
    check_message("swiglu_forward", "desc", "");
    CHECK(swiglu_backward(stale_swiglu, &args, nullptr) == invalid);
    check_message("swiglu_backward", "desc", "");
    check_untouched(request.workspace);
  }
}

TEST_CASE("structs of a newer header", "[errors]") {
  for (const Device &device : devices()) {
    INFO(device);
    RopeRequest request(device);
    Longer<rope_config_t> config = {request.config, {}};
    config.known.struct_size = sizeof config;
    rope_desc_t *desc = nullptr;
    REQUIRE(rope_desc_create(&config.known, &desc) == ROPE_STATUS_SUCCESS);
    const RopeDesc owner(desc);
    for (size_t byte : {size_t{0}, size_t{7}, sizeof config.tail - 1}) {
      config.tail[byte] = 1;
      rope_desc_t *refused = not_null<rope_desc_t>();
      CHECK(rope_desc_create(&config.known, &refused) == unsupported);
      CHECK(refused == nullptr);
      check_message("rope_desc_create", "", "");
      config.tail[byte] = 0;
    }
    request.workspace.freeze();
    request.workspace.restore();
    Longer<rope_args_t> args = {request.args, {}};
    args.known.struct_size = sizeof args;
    args.tail[3] = 9;
    CHECK(rope_forward(desc, &args.known, nullptr) == unsupported);
    check_message("rope_forward", "", "");
    CHECK(rope_backward(desc, &args.known, nullptr) == unsupported);
    check_message("rope_backward", "", "");
    check_untouched(request.workspace);
    args.tail[3] = 0;
    if (device.kind == ROPE_DEVICE_CPU) CHECK(rope_forward(desc, &args.known, nullptr) == ROPE_STATUS_SUCCESS);

    Longer<swiglu_config_t> gate_config = {swiglu_config_for(device), {}};
    gate_config.known.struct_size = sizeof gate_config;
    swiglu_desc_t *gate = nullptr;
    REQUIRE(swiglu_desc_create(&gate_config.known, &gate) == ROPE_STATUS_SUCCESS);
    const SwigluDesc gate_owner(gate);
    gate_config.tail[0] = 1;
    swiglu_desc_t *refused = not_null<swiglu_desc_t>();
    CHECK(swiglu_desc_create(&gate_config.known, &refused) == unsupported);
    CHECK(refused == nullptr);
    Longer<swiglu_args_t> gate_args = {swiglu_args(), {}};
    gate_args.known.struct_size = sizeof gate_args;
    gate_args.known.gate = gate_args.known.up = request.args.q;
    gate_args.known.out = request.args.q_out;
    gate_args.tail[23] = 1;
    CHECK(swiglu_forward(gate, &gate_args.known, nullptr) == unsupported);
    check_message("swiglu_forward", "", "");
    gate_args.tail[23] = 0;
    if (device.kind == ROPE_DEVICE_CPU) CHECK(swiglu_forward(gate, &gate_args.known, nullptr) == ROPE_STATUS_SUCCESS);
  }
}

TEST_CASE("devices that are not there", "[errors]") {
  int32_t count = 0;
  REQUIRE(rope_device_count(ROPE_DEVICE_CUDA, &count) == ROPE_STATUS_SUCCESS);
  // A build without the backend cannot run the request anywhere.
  const bool without_cuda = count == 0 && std::string(rope_last_error()).find("without CUDA") != std::string::npos;
  const rope_status_t expected = without_cuda ? ROPE_STATUS_NOT_SUPPORTED : ROPE_STATUS_NO_DEVICE;
  rope_config_t config = rope_config_for({ROPE_DEVICE_CUDA, count, "CUDA"}, 16);
  rope_desc_t *rope = not_null<rope_desc_t>();
  CHECK(rope_desc_create(&config, &rope) == expected);
  CHECK(rope == nullptr);
  check_message("rope_desc_create", "", "");
  swiglu_config_t gate = swiglu_config_for({ROPE_DEVICE_CUDA, count, "CUDA"});
  swiglu_desc_t *swiglu = not_null<swiglu_desc_t>();
  CHECK(swiglu_desc_create(&gate, &swiglu) == expected);
  CHECK(swiglu == nullptr);
  check_message("swiglu_desc_create", "", "");
}

TEST_CASE("a wrong config is wrong on a machine without its device too", "[errors]") {
  rope_config_t config = rope_config_for({ROPE_DEVICE_CUDA, 0, "CUDA"}, 15);
  rope_desc_t *desc = not_null<rope_desc_t>();
  CHECK(rope_desc_create(&config, &desc) == invalid);
  CHECK(desc == nullptr);
  check_message("rope_desc_create", "head_dim", "15");
}

TEST_CASE("views of nothing need no data", "[errors]") {
  for (const Device &device : devices()) {
    INFO(device);
    for (int axis : {0, 1, 2}) {
      RopeRequest request(device);
      rope_args_t args = rope_args();
      args.q = args.q_out = request.args.q;
      args.q.shape[axis] = args.q_out.shape[axis] = 0;
      args.q.data = args.q_out.data = nullptr;
      const RopeDesc desc = create(request.config);
      CHECK(rope_forward(desc.get(), &args, nullptr) == ROPE_STATUS_SUCCESS);
      CHECK(rope_backward(desc.get(), &args, nullptr) == ROPE_STATUS_SUCCESS);
    }
  }
}

namespace {

// A valid request for SwiGLU, [3, 5], to be broken in one place. Both directions use it: forward reads no gradients.
struct SwigluRequest {
  SwigluRequest(const Device &on, Direction to) : device(on), direction(to), workspace(42) {
    config = swiglu_config_for(device);
    args.gate = tensor({3, 5});
    args.up = tensor({3, 5});
    if (direction == Direction::Forward) {
      args.out = tensor({3, 5});
    } else {
      args.grad_out = tensor({3, 5});
      args.grad_gate = tensor({3, 5});
      args.grad_up = tensor({3, 5});
    }
  }

  rope_tensor_t tensor(const Shape &shape) { return workspace.tensor(ROPE_DTYPE_F32, shape); }

  // Requests only the gradient of one row's factor; the inputs cover `memory` with three axes of one stride.
  void sum_row_of(rope_tensor_t memory, const int64_t (&shape)[3], int64_t stride) {
    memory.ndim = 3;
    memory.flags = ROPE_TENSOR_STRIDED;
    for (int axis = 0; axis < 3; ++axis) memory.shape[axis] = shape[axis], memory.stride[axis] = stride;
    args.gate = args.up = args.grad_out = memory;
    args.grad_gate = args.grad_up = {};
    args.row_scale = tensor({1});
    args.grad_row_scale = tensor({1});
  }

  Device device;
  Direction direction;
  Workspace workspace;
  swiglu_config_t config = {};
  swiglu_args_t args = swiglu_args();
  rope_stream_t stream = nullptr;
  bool null_args = false;

  // For args.input, with a field that this version does not have.
  struct LongInput {
    swiglu_input_args_t now = SWIGLU_INPUT_ARGS_INIT;
    uint64_t later = 0;
  };
  LongInput input;

  // The group of further inputs, to which the args point.
  swiglu_input_args_t &inputs() {
    args.input = &input.now;
    return input.now;
  }

  // For args.quant, likewise.
  struct LongQuant {
    swiglu_quant_args_t now = SWIGLU_QUANT_ARGS_INIT;
    uint64_t later = 0;
  };
  LongQuant quant;

  swiglu_quant_args_t &quants() {
    args.quant = &quant.now;
    return quant.now;
  }

  // For args.column, likewise.
  struct LongColumn {
    swiglu_column_args_t now = SWIGLU_COLUMN_ARGS_INIT;
    uint64_t later = 0;
  };
  LongColumn column;

  // Codes of out, or of the gradient of gate, by column: a group of three rows.
  swiglu_column_args_t &columns() {
    args.column = &column.now;
    column_out() = workspace.tensor(ROPE_DTYPE_F8_E4M3, {3, 5});
    column_scales() = tensor({1, 5});
    return column.now;
  }
  rope_tensor_t &column_out() { return direction == Direction::Forward ? column.now.out : column.now.grad_gate; }
  rope_tensor_t &column_scales() {
    return direction == Direction::Forward ? column.now.scales_out : column.now.grad_gate_scales_out;
  }

  // Backward: the gradient of gate as codes of 8 bits.
  swiglu_quant_args_t &coded_gradient() {
    args.grad_gate = workspace.tensor(ROPE_DTYPE_F8_E5M2, {3, 5});
    return quants();
  }

  // Codes of three rows of five.
  swiglu_quant_args_t &codes() {
    args.out = workspace.tensor(ROPE_DTYPE_F8_E4M3, {3, 5});
    return quants();
  }

  // Three rows of 32 channels to codes of 4 bits, or of `type` with scales in tiles.
  swiglu_quant_args_t &pairs() {
    args.gate = tensor({3, 32});
    args.up = tensor({3, 32});
    args.out = workspace.tensor(ROPE_DTYPE_F4_E2M1X2, {3, 16});
    return quants();
  }
  rope_tensor_t &nvfp4(const Shape &scales = {3, 2}, const Placement &placement = {}) {
    pairs().scales_out = workspace.tensor(ROPE_DTYPE_F8_E4M3, scales, placement);
    return quant.now.scales_out;
  }
  rope_tensor_t &tiles(rope_dtype_t type, const Shape &scales = {128, 4}, const Placement &placement = {}) {
    pairs().scales_out = workspace.tensor(type, scales, placement);
    quant.now.scale_layout = SWIGLU_SCALE_LAYOUT_128X4;
    return quant.now.scales_out;
  }

  // Three experts with room for two rows of five each.
  swiglu_input_args_t &experts() {
    reshape({3, 2, 5});
    inputs().expert_rows = workspace.tensor(ROPE_DTYPE_I32, {3});
    workspace.fill_integers(inputs().expert_rows, [](const Index &) { return 1; });
    return inputs();
  }

  // Two experts with the first row of five and the other two.
  swiglu_input_args_t &offsets() {
    inputs().expert_offsets = workspace.tensor(ROPE_DTYPE_I32, {3});
    workspace.fill_integers(inputs().expert_offsets, [](const Index &at) { return at[0] * 2 - at[0] / 2; });
    return inputs();
  }

  // Three rows that choose among seven factors.
  swiglu_input_args_t &indexed() {
    args.row_scale = tensor({7});
    inputs().row_index = workspace.tensor(ROPE_DTYPE_I64, {3});
    workspace.fill_integers(inputs().row_index, [](const Index &at) { return 6 - at[0]; });
    return inputs();
  }

  void reshape(const Shape &shape) {
    for (rope_tensor_t *each : {&args.gate, &args.up, &args.out, &args.grad_out, &args.grad_gate, &args.grad_up}) {
      if (each->ndim != 0) *each = tensor(shape);
    }
  }

  rope_tensor_t &output() { return direction == Direction::Forward ? args.out : args.grad_gate; }
};

enum class Where {
  Both,
  Forward,
  Backward
};

struct SwigluMisuse {
  const char *title;
  rope_status_t status;
  const char *field, *value;
  void (*commit)(SwigluRequest &);
  Where where = Where::Both;
  bool cpu_only = false;
};

std::vector<SwigluMisuse> misused_swiglu_configs() {
  using R = SwigluRequest;
  std::vector<SwigluMisuse> misuses = {
      {"struct_size 0", invalid, "struct_size", "0", [](R &r) { r.config.struct_size = 0; }},
      {"struct_size short", invalid, "struct_size", "12", [](R &r) { r.config.struct_size = 12; }},
      {"undefined flag", unsupported, "flags", "0x2", [](R &r) { r.config.flags = 2; }},
      {"flag of a call", unsupported, "flags", "0x1", [](R &r) { r.config.flags = ROPE_FLAG_PROGRAMMATIC_LAUNCH; }},
      {"no device", invalid, "device", "0", [](R &r) { r.config.device = 0; }},
      {"unknown device", invalid, "device", "3", [](R &r) { r.config.device = 3; }},
      {"negative device_index", invalid, "device_index", "-7", [](R &r) { r.config.device_index = -7; }},
      {"no dtype", invalid, "dtype", "0", [](R &r) { r.config.dtype = 0; }},
      {"dtype I64", invalid, "dtype", "", [](R &r) { r.config.dtype = ROPE_DTYPE_I64; }},
      {"unknown dtype", invalid, "dtype", "-1", [](R &r) { r.config.dtype = -1; }},
      {"negative num_threads", invalid, "num_threads", "-1", [](R &r) { r.config.num_threads = -1; }},
      {"alpha NaN", invalid, "alpha", "nan", [](R &r) { r.config.alpha = nan; }},
      {"alpha beyond fp32", invalid, "alpha", "1e+39", [](R &r) { r.config.alpha = 1e39; }},
      {"alpha that is 0 in fp32", invalid, "alpha", "1e-60", [](R &r) { r.config.alpha = 1e-60; }},
      {"negative limit", invalid, "limit", "-7", [](R &r) { r.config.limit = -7; }},
      {"limit infinite", invalid, "limit", "inf", [](R &r) { r.config.limit = infinity; }},
      {"up_offset NaN", invalid, "up_offset", "nan", [](R &r) { r.config.up_offset = nan; }},
      {"out_scale infinite", invalid, "out_scale", "-inf", [](R &r) { r.config.out_scale = -infinity; }},
      {"dtype of outputs only", invalid, "dtype", "F4_E2M1X2", [](R &r) { r.config.dtype = ROPE_DTYPE_F4_E2M1X2; }},
      {"gate_softcap NaN", invalid, "gate_softcap", "nan", [](R &r) { r.config.gate_softcap = nan; }},
      {"negative gate_softcap", invalid, "gate_softcap", "-30", [](R &r) { r.config.gate_softcap = -30; }},
      {"up_softcap beyond fp32", invalid, "up_softcap", "1e+39", [](R &r) { r.config.up_softcap = 1e39; }},
      {"negative up_softcap", invalid, "up_softcap", "-1", [](R &r) { r.config.up_softcap = -1; }},
      {"unknown limit_rule", invalid, "limit_rule", "2", [](R &r) { r.config.limit_rule = 2; }},
      {"unknown activation", invalid, "activation", "4", [](R &r) { r.config.activation = 4; }},
      {"negative activation", invalid, "activation", "-1", [](R &r) { r.config.activation = -1; }},
      {"gate_softcap infinite", invalid, "gate_softcap", "inf", [](R &r) { r.config.gate_softcap = infinity; }},
      {"gate_softcap too small", invalid, "gate_softcap", "1e-38", [](R &r) { r.config.gate_softcap = 1e-38; }},
      {"gate_softcap too large", invalid, "gate_softcap", "1e+38", [](R &r) { r.config.gate_softcap = 1e38; }},
      {"up_softcap NaN", invalid, "up_softcap", "nan", [](R &r) { r.config.up_softcap = nan; }},
      {"up_softcap too small", invalid, "up_softcap", "1e-38", [](R &r) { r.config.up_softcap = 1e-38; }},
      {"up_softcap too large in F64", invalid, "up_softcap", "1e+38",
       [](R &r) {
         r.config.dtype = ROPE_DTYPE_F64;
         r.config.up_softcap = 1e38;
       }},
      {"negative limit_rule", invalid, "limit_rule", "-1", [](R &r) { r.config.limit_rule = -1; }},
      {"unknown product_rounding", invalid, "product_rounding", "2", [](R &r) { r.config.product_rounding = 2; }},
      {"negative product_rounding", invalid, "product_rounding", "-1", [](R &r) { r.config.product_rounding = -1; }},
      {"alpha with GeGLU by erf", invalid, "alpha", "1.702",
       [](R &r) {
         r.config.activation = SWIGLU_ACTIVATION_GEGLU_ERF;
         r.config.alpha = 1.702;
       }},
      {"alpha with GeGLU by tanh", invalid, "alpha", "-1",
       [](R &r) {
         r.config.activation = SWIGLU_ACTIVATION_GEGLU_TANH;
         r.config.alpha = -1;
       }},
      {"alpha with ReGLU", invalid, "alpha", "2",
       [](R &r) {
         r.config.activation = SWIGLU_ACTIVATION_REGLU;
         r.config.alpha = 2;
       }},
  };
  misuses.push_back({"second CPU", invalid, "device_index", "1", [](R &r) { r.config.device_index = 1; }});
  misuses.back().cpu_only = true;
  return misuses;
}

std::vector<SwigluMisuse> misused_swiglu_args() {
  using R = SwigluRequest;
  std::vector<SwigluMisuse> misuses = {
      {"NULL args", invalid, "args", "NULL", [](R &r) { r.null_args = true; }},
      {"struct_size 0", invalid, "struct_size", "0", [](R &r) { r.args.struct_size = 0; }},
      {"struct_size short", invalid, "struct_size", "88", [](R &r) { r.args.struct_size = 88; }},
      {"undefined flag", unsupported, "flags", "0x2", [](R &r) { r.args.flags = 2; }},
      {"undefined flag beside a known one", unsupported, "flags", "0x5",
       [](R &r) { r.args.flags = ROPE_FLAG_PROGRAMMATIC_LAUNCH | 4; }},
      {"gate absent", invalid, "gate", "", [](R &r) { r.args.gate = {}; }},
      {"up absent", invalid, "up", "", [](R &r) { r.args.up = {}; }},
      {"up absent but with data", invalid, "up", "", [](R &r) { r.args.up.ndim = 0; }},
      {"gate of another dtype", invalid, "gate", "", [](R &r) { r.args.gate.dtype = ROPE_DTYPE_F16; }},
      {"up of another shape", invalid, "up", "6",
       [](R &r) {
         r.args.up = r.tensor({3, 6});
       }},
      {"up of another rank", invalid, "up", "1", [](R &r) { r.args.up = r.tensor({15}); }},
      {"up that would broadcast", invalid, "up", "1",
       [](R &r) {
         r.args.up = r.tensor({1, 5});
       }},
      {"gate of rank 5", invalid, "gate", "5", [](R &r) { r.args.gate.ndim = 5; }},
      {"gate with a negative size", invalid, "gate", "-5", [](R &r) { r.args.gate.shape[1] = -5; }},
      {"gate without data", invalid, "gate", "NULL", [](R &r) { r.args.gate.data = nullptr; }},
      {"up misaligned", invalid, "up", "", [](R &r) { move(&r.args.up, 3); }},
      {"gate with an undefined flag", unsupported, "gate", "", [](R &r) { r.args.gate.flags = 2; }},
      {"strides that overflow", invalid, "gate", "", [](R &r) { r.args.gate.stride[0] = huge; }},
      {"row_scale of another shape", invalid, "row_scale", "4", [](R &r) { r.args.row_scale = r.tensor({4}); }},
      {"row_scale of gate's rank", invalid, "row_scale", "2",
       [](R &r) {
         r.args.row_scale = r.tensor({3, 5});
       }},
      {"row_scale of another dtype", invalid, "row_scale", "F16",
       [](R &r) { r.args.row_scale = r.workspace.tensor(ROPE_DTYPE_F16, {3}); }},
      {"row_scale of F64", invalid, "row_scale", "F64",
       [](R &r) { r.args.row_scale = r.workspace.tensor(ROPE_DTYPE_F64, {3}); }},
      {"row_scale absent but with data", invalid, "row_scale", "",
       [](R &r) {
         r.args.row_scale = r.tensor({3});
         r.args.row_scale.ndim = 0;
       }},
      {"row_scale misaligned", invalid, "row_scale", "",
       [](R &r) {
         r.args.row_scale = r.tensor({3});
         move(&r.args.row_scale, 2);
       }},
      {"num_rows of F32", invalid, "num_rows", "F32", [](R &r) { r.args.num_rows = r.tensor({1}); }},
      {"num_rows of two", invalid, "num_rows", "2",
       [](R &r) { r.args.num_rows = r.workspace.tensor(ROPE_DTYPE_I64, {2}); }},
      {"num_rows of rank 2", invalid, "num_rows", "2",
       [](R &r) {
         r.args.num_rows = r.workspace.tensor(ROPE_DTYPE_I32, {1, 1});
       }},
      {"num_rows without data", invalid, "num_rows", "NULL",
       [](R &r) {
         r.args.num_rows = r.workspace.tensor(ROPE_DTYPE_I32, {1});
         r.args.num_rows.data = nullptr;
       }},

      {"input of struct_size 0", invalid, "input.struct_size", "0", [](R &r) { r.inputs().struct_size = 0; }},
      {"input of struct_size short", invalid, "input.struct_size", "88", [](R &r) { r.inputs().struct_size = 88; }},
      {"input with a later field", unsupported, "input", "408",
       [](R &r) {
         r.inputs().struct_size = sizeof r.input;
         r.input.later = 1;
       }},
      {"input with a flag", unsupported, "input.flags", "0x1", [](R &r) { r.inputs().flags = 1; }},
      {"gate_bias of another dtype", invalid, "gate_bias", "F16",
       [](R &r) { r.inputs().gate_bias = r.workspace.tensor(ROPE_DTYPE_F16, {5}); }},
      {"up_bias of integers", invalid, "up_bias", "I32",
       [](R &r) { r.inputs().up_bias = r.workspace.tensor(ROPE_DTYPE_I32, {5}); }},
      {"gate_bias of another length", invalid, "gate_bias", "6",
       [](R &r) { r.inputs().gate_bias = r.tensor({6}); }},
      {"up_bias of one number", invalid, "up_bias", "1", [](R &r) { r.inputs().up_bias = r.tensor({1}); }},
      {"gate_bias of rank 2 without experts", invalid, "gate_bias", "2",
       [](R &r) { r.inputs().gate_bias = r.tensor({3, 5}); }},
      {"up_bias of rank 5", invalid, "up_bias", "5",
       [](R &r) {
         r.inputs().up_bias = r.tensor({5});
         r.inputs().up_bias.ndim = 5;
       }},
      {"gate_bias without data", invalid, "gate_bias", "NULL",
       [](R &r) {
         r.inputs().gate_bias = r.tensor({5});
         r.inputs().gate_bias.data = nullptr;
       }},
      {"up_bias misaligned", invalid, "up_bias", "",
       [](R &r) {
         r.inputs().up_bias = r.tensor({5});
         move(&r.inputs().up_bias, 2);
       }},
      {"gate_bias absent but with data", invalid, "gate_bias", "",
       [](R &r) {
         r.inputs().gate_bias = r.tensor({5});
         r.inputs().gate_bias.ndim = 0;
       }},
      {"up_bias with an undefined flag", unsupported, "up_bias", "",
       [](R &r) {
         r.inputs().up_bias = r.tensor({5});
         r.inputs().up_bias.flags = 2;
       }},
      {"strides of gate_bias that overflow", invalid, "gate_bias", "",
       [](R &r) {
         r.inputs().gate_bias = r.tensor({5});
         r.inputs().gate_bias.flags = ROPE_TENSOR_STRIDED;
         r.inputs().gate_bias.stride[0] = huge;
       }},
      {"an output over gate_bias", invalid, "gate_bias", "",
       [](R &r) {
         r.inputs().gate_bias = r.output();
         r.inputs().gate_bias.ndim = 1;
         r.inputs().gate_bias.shape[0] = 5;
         r.inputs().gate_bias.stride[0] = 1;
       }},
      {"an output in up_bias, one element on", invalid, "up_bias", "",
       [](R &r) {
         r.inputs().up_bias = r.output();
         r.inputs().up_bias.ndim = 1;
         r.inputs().up_bias.shape[0] = 5;
         r.inputs().up_bias.stride[0] = 1;
         move(&r.inputs().up_bias, 4);
       }},
      {"expert_rows of F32", invalid, "expert_rows", "F32", [](R &r) { r.experts().expert_rows = r.tensor({3}); }},
      {"expert_rows of another length", invalid, "expert_rows", "4",
       [](R &r) { r.experts().expert_rows = r.workspace.tensor(ROPE_DTYPE_I64, {4}); }},
      {"expert_rows of one count", invalid, "expert_rows", "1",
       [](R &r) { r.experts().expert_rows = r.workspace.tensor(ROPE_DTYPE_I32, {1}); }},
      {"expert_rows of rank 2", invalid, "expert_rows", "2",
       [](R &r) {
         r.experts().expert_rows = r.workspace.tensor(ROPE_DTYPE_I32, {3, 2});
       }},
      {"expert_rows without data", invalid, "expert_rows", "NULL",
       [](R &r) { r.experts().expert_rows.data = nullptr; }},
      {"expert_rows misaligned", invalid, "expert_rows", "", [](R &r) { move(&r.experts().expert_rows, 1); }},
      {"expert_rows with gate of rank 2", invalid, "gate", "2",
       [](R &r) { r.inputs().expert_rows = r.workspace.tensor(ROPE_DTYPE_I32, {3}); }},
      {"expert_rows and num_rows", invalid, "num_rows and expert_rows", "",
       [](R &r) {
         r.experts();
         r.args.num_rows = r.workspace.tensor(ROPE_DTYPE_I32, {1});
       }},
      {"gate_bias of experts of another number", invalid, "gate_bias", "2",
       [](R &r) {
         r.experts().gate_bias = r.tensor({2, 5});
       }},
      {"up_bias of experts of another width", invalid, "up_bias", "4",
       [](R &r) {
         r.experts().up_bias = r.tensor({3, 4});
       }},
      {"up_bias of rank 3", invalid, "up_bias", "3",
       [](R &r) {
         r.experts().up_bias = r.tensor({3, 1, 5});
       }},
      {"expert_offsets of F32", invalid, "expert_offsets", "F32",
       [](R &r) { r.inputs().expert_offsets = r.tensor({3}); }},
      {"expert_offsets of codes", invalid, "expert_offsets", "F8_E4M3",
       [](R &r) { r.inputs().expert_offsets = r.workspace.tensor(ROPE_DTYPE_F8_E4M3, {3}); }},
      {"expert_offsets of one entry", invalid, "expert_offsets", "1",
       [](R &r) { r.inputs().expert_offsets = r.workspace.tensor(ROPE_DTYPE_I32, {1}); }},
      {"expert_offsets without entries", invalid, "expert_offsets", "0",
       [](R &r) { r.inputs().expert_offsets = r.workspace.tensor(ROPE_DTYPE_I64, {0}); }},
      {"expert_offsets of rank 2", invalid, "expert_offsets", "2",
       [](R &r) {
         r.inputs().expert_offsets = r.workspace.tensor(ROPE_DTYPE_I32, {3, 1});
       }},
      {"expert_offsets without data", invalid, "expert_offsets", "NULL",
       [](R &r) { r.offsets().expert_offsets.data = nullptr; }},
      {"expert_offsets misaligned", invalid, "expert_offsets", "", [](R &r) { move(&r.offsets().expert_offsets, 1); }},
      {"expert_offsets with unknown flags", unsupported, "expert_offsets", "0x2",
       [](R &r) { r.offsets().expert_offsets.flags = 2; }},
      {"expert_offsets with gate of rank 1", invalid, "gate", "1",
       [](R &r) {
         r.offsets();
         r.reshape({5});
       }},
      {"expert_offsets and num_rows", invalid, "num_rows and expert_offsets", "",
       [](R &r) {
         r.offsets();
         r.args.num_rows = r.workspace.tensor(ROPE_DTYPE_I32, {1});
       }},
      {"expert_offsets and expert_rows", invalid, "expert_rows and expert_offsets", "",
       [](R &r) {
         r.experts();
         r.offsets();
       }},
      {"an output in expert_offsets", invalid, "expert_offsets", "disjoint",
       [](R &r) { r.offsets().expert_offsets.data = r.output().data; }},
      {"gate_bias of another number than expert_offsets has", invalid, "gate_bias", "3",
       [](R &r) {
         r.offsets().gate_bias = r.tensor({3, 5});
       }},
      {"up_bias of experts of expert_offsets, of another width", invalid, "up_bias", "4",
       [](R &r) {
         r.offsets().up_bias = r.tensor({2, 4});
       }},
      {"up_bias of rank 3 with expert_offsets", invalid, "up_bias", "3",
       [](R &r) {
         r.offsets().up_bias = r.tensor({2, 1, 5});
       }},
      {"gate_bias by expert without experts", invalid, "gate_bias", "2",
       [](R &r) {
         r.inputs().gate_bias = r.tensor({3, 5});
       }},
      {"an output as gate_bias of as many experts as rows", invalid, "gate_bias", "disjoint",
       [](R &r) {
         r.inputs().expert_offsets = r.workspace.tensor(ROPE_DTYPE_I32, {4});
         r.inputs().gate_bias = r.output();
       }},
      {"row_index of F64", invalid, "row_index", "F64",
       [](R &r) { r.indexed().row_index = r.workspace.tensor(ROPE_DTYPE_F64, {3}); }},
      {"row_index of another length", invalid, "row_index", "7",
       [](R &r) { r.indexed().row_index = r.workspace.tensor(ROPE_DTYPE_I64, {7}); }},
      {"row_index of one entry", invalid, "row_index", "1",
       [](R &r) { r.indexed().row_index = r.workspace.tensor(ROPE_DTYPE_I32, {1}); }},
      {"row_index of rank 2", invalid, "row_index", "2",
       [](R &r) {
         r.indexed().row_index = r.workspace.tensor(ROPE_DTYPE_I32, {3, 1});
       }},
      {"row_index without data", invalid, "row_index", "NULL", [](R &r) { r.indexed().row_index.data = nullptr; }},
      {"row_index misaligned", invalid, "row_index", "", [](R &r) { move(&r.indexed().row_index, 2); }},
      {"row_index without row_scale", invalid, "row_index", "row_scale",
       [](R &r) {
         r.indexed();
         r.args.row_scale = {};
       }},
      {"row_index and a row_scale of rank 2", invalid, "row_scale", "2",
       [](R &r) {
         r.indexed();
         r.args.row_scale = r.tensor({3, 7});
       }},
      {"row_index and a row_scale of F64", invalid, "row_scale", "F64",
       [](R &r) {
         r.indexed();
         r.args.row_scale = r.workspace.tensor(ROPE_DTYPE_F64, {7});
       }},
      {"row_index with gate of rank 1", invalid, "gate", "1",
       [](R &r) {
         r.indexed();
         r.reshape({3});
       }},
      {"row_index and expert_rows", invalid, "expert_rows and row_index", "",
       [](R &r) {
         r.experts();
         r.indexed();
       }},
      {"an output in row_index", invalid, "row_index", "disjoint",
       [](R &r) { r.indexed().row_index.data = r.output().data; }},
      {"the gradient of row_scale by index", invalid, "grad_row_scale", "7",
       [](R &r) {
         r.indexed();
         r.args.grad_row_scale = r.tensor({7});
       },
       Where::Backward},
      {"the gradient of rows over what their index chooses from", invalid, "grad_row_scale", "disjoint",
       [](R &r) {
         r.indexed();
         r.args.row_scale = r.tensor({3});
         r.args.grad_row_scale = r.args.row_scale;
       },
       Where::Backward},
      {"quant.scale of another number than expert_offsets has", invalid, "quant.scale", "[3]",
       [](R &r) {
         r.codes().scale = r.tensor({3});
         r.offsets();
       },
       Where::Forward},
      {"the gradient of one factor for each expert", unsupported, "row_scale", "1",
       [](R &r) {
         r.experts();
         r.args.row_scale = r.tensor({3});
         r.args.grad_row_scale = r.tensor({3});
       },
       Where::Backward},
      {"quant of an earlier size", invalid, "quant.struct_size", "8", [](R &r) { r.codes().struct_size = 8; },
       Where::Forward},
      {"quant with a later field", unsupported, "quant", "",
       [](R &r) {
         r.codes().struct_size = sizeof r.quant;
         r.quant.later = 1;
       },
       Where::Forward},
      {"quant.scales_out backward", invalid, "quant.scales_out", "out",
       [](R &r) {
         r.quants().scales_out = r.tensor({3, 1});
       },
       Where::Backward},
      {"quant.grad_gate_scales_out forward", invalid, "quant.grad_gate_scales_out", "grad_gate",
       [](R &r) {
         r.codes().grad_gate_scales_out = r.tensor({3, 1});
       },
       Where::Forward},
      {"quant.grad_up_scales_out of a gradient of words", invalid, "quant.grad_up_scales_out", "grad_up",
       [](R &r) {
         r.quants().grad_up_scales_out = r.tensor({3, 1});
       },
       Where::Backward},
      {"quant.grad_gate_scales_out of groups that do not divide", invalid, "quant.grad_gate_scales_out", "[3, 2]",
       [](R &r) {
         r.coded_gradient().grad_gate_scales_out = r.tensor({3, 2});
       },
       Where::Backward},
      {"quant.scale of gradients of words", invalid, "quant.scale", "no gradient",
       [](R &r) { r.quants().scale = r.tensor({1}); }, Where::Backward},
      {"quant.amax_out of gradients of words", invalid, "quant.amax_out", "no gradient",
       [](R &r) { r.quants().amax_out = r.tensor({1}); }, Where::Backward},
      {"quant.scale beside quant.grad_gate_scales_out", invalid, "quant.scale", "scales_out",
       [](R &r) {
         r.coded_gradient().grad_gate_scales_out = r.tensor({3, 1});
         r.quant.now.scale = r.tensor({1});
       },
       Where::Backward},
      {"grad_gate of 4 bits", unsupported, "grad_gate", "F4_E2M1X2",
       [](R &r) {
         r.args.grad_gate = r.workspace.tensor(ROPE_DTYPE_F4_E2M1X2, {3, 5});
       },
       Where::Backward},
      {"grad_gate of 8 bits of another shape", invalid, "grad_gate", "4",
       [](R &r) {
         r.args.grad_gate = r.workspace.tensor(ROPE_DTYPE_F8_E5M2, {3, 4});
       },
       Where::Backward},
      {"grad_up of 8 bits over grad_out", invalid, "grad_up", "disjoint",
       [](R &r) {
         r.args.grad_up = r.workspace.tensor(ROPE_DTYPE_F8_E5M2, {3, 5});
         r.args.grad_up.data = r.args.grad_out.data;
       },
       Where::Backward},
      {"grad_up in place beside a gradient of 8 bits", invalid, "grad_up", "disjoint",
       [](R &r) {
         r.coded_gradient();
         r.args.grad_up = r.args.up;
       },
       Where::Backward},
      {"a recomputed out of 8 bits", unsupported, "out", "F8_E4M3",
       [](R &r) {
         r.args.out = r.workspace.tensor(ROPE_DTYPE_F8_E4M3, {3, 5});
       },
       Where::Backward},
      {"grad_row_scale over row_scale beside a gradient of 8 bits", invalid, "grad_row_scale", "disjoint",
       [](R &r) {
         r.coded_gradient();
         r.args.row_scale = r.args.grad_row_scale = r.tensor({3});
       },
       Where::Backward},
      {"column of an earlier size", invalid, "column.struct_size", "8", [](R &r) { r.columns().struct_size = 8; }},
      {"column with a later field", unsupported, "column", "",
       [](R &r) {
         r.columns().struct_size = sizeof r.column;
         r.column.later = 1;
       }},
      {"column.flags unknown", unsupported, "column.flags", "0x4", [](R &r) { r.columns().flags = 4; }},
      {"column.flags of a static scale", invalid, "column.flags", "quant.flags",
       [](R &r) { r.columns().flags = ROPE_QUANT_FLAG_SCALE_MULTIPLIES; }},
      {"column.scale_floor negative", invalid, "column.scale_floor", "-1", [](R &r) { r.columns().scale_floor = -1; }},
      {"powers of two by column without scales", invalid, "column.flags", "0x2",
       [](R &r) {
         r.columns().flags = ROPE_QUANT_FLAG_POWER_OF_TWO;
         r.column_scales() = {};
       }},
      {"column.scale_floor without scales", invalid, "column.scale_floor", "1",
       [](R &r) {
         r.columns().scale_floor = 1;
         r.column_scales() = {};
       }},
      {"tiles by column without scales", invalid, "column.scale_layout", "1",
       [](R &r) {
         r.columns().scale_layout = SWIGLU_SCALE_LAYOUT_128X4;
         r.column_scales() = {};
       }},
      {"column.scale_layout above the last", unsupported, "column.scale_layout", "2",
       [](R &r) { r.columns().scale_layout = 2; }},
      {"column.reserved0", unsupported, "column.reserved0", "7", [](R &r) { r.columns().reserved0 = 7; }},
      {"words by column", unsupported, "column.out", "F32", [](R &r) { r.columns(), r.column_out() = r.tensor({3, 5}); },
       Where::Forward},
      {"4 bits by column", unsupported, "column.out", "F4_E2M1X2",
       [](R &r) {
         r.columns();
         r.column_out() = r.workspace.tensor(ROPE_DTYPE_F4_E2M1X2, {3, 5});
       },
       Where::Forward},
      {"an output by column of another shape", invalid, "column.out", "4",
       [](R &r) {
         r.columns();
         r.column_out() = r.workspace.tensor(ROPE_DTYPE_F8_E4M3, {3, 4});
       },
       Where::Forward},
      {"an output by column without data", invalid, "column.out", "NULL",
       [](R &r) { r.columns(), r.column_out().data = nullptr; },
       Where::Forward},
      {"an output by column with unknown flags", unsupported, "column.out", "0x2",
       [](R &r) { r.columns(), r.column_out().flags = 2; },
       Where::Forward},
      {"column.grad_gate forward", invalid, "column.grad_gate", "swiglu_backward",
       [](R &r) { r.columns().grad_gate = r.column.now.out; }, Where::Forward},
      {"column.out backward", invalid, "column.out", "swiglu_forward",
       [](R &r) { r.columns().out = r.column.now.grad_gate; }, Where::Backward},
      {"scales by column without an output", invalid, "column.scales_out", "neither",
       [](R &r) { r.columns(), r.column_out() = {}; },
       Where::Forward},
      {"scales by column of BF16", invalid, "column.scales_out", "BF16",
       [](R &r) {
         r.columns();
         r.column_scales() = r.workspace.tensor(ROPE_DTYPE_BF16, {1, 5});
       },
       Where::Forward},
      {"scales by column of F8_E4M3", unsupported, "column.scales_out", "F8_E4M3",
       [](R &r) {
         r.columns();
         r.column_scales() = r.workspace.tensor(ROPE_DTYPE_F8_E4M3, {1, 5});
       },
       Where::Forward},
      {"scales by column of groups that do not divide", invalid, "column.scales_out", "[2, 5]",
       [](R &r) { r.columns(), r.column_scales() = r.tensor({2, 5}); },
       Where::Forward},
      {"scales by column of groups without a row", invalid, "column.scales_out", "[6, 5]",
       [](R &r) { r.columns(), r.column_scales() = r.tensor({6, 5}); },
       Where::Forward},
      {"scales by column of other channels", invalid, "column.scales_out", "[1, 4]",
       [](R &r) { r.columns(), r.column_scales() = r.tensor({1, 4}); },
       Where::Forward},
      {"scales by column of rank 1", invalid, "column.scales_out", "[5]",
       [](R &r) { r.columns(), r.column_scales() = r.tensor({5}); },
       Where::Forward},
      {"scales by column without data", invalid, "column.scales_out", "NULL",
       [](R &r) { r.columns(), r.column_scales().data = nullptr; },
       Where::Forward},
      {"scales by column that repeat", invalid, "column.scales_out", "",
       [](R &r) {
         r.columns();
         rope_tensor_t &scales = r.column_scales();
         scales.flags = ROPE_TENSOR_STRIDED;
         scales.stride[1] = 0;
       },
       Where::Forward},
      {"scales by column in tiles of F32", invalid, "column.scales_out", "F32",
       [](R &r) { r.columns().scale_layout = SWIGLU_SCALE_LAYOUT_128X4; },
       Where::Forward},
      {"scales by column in tiles of three rows", invalid, "column.scales_out", "[128, 4]",
       [](R &r) {
         r.columns().scale_layout = SWIGLU_SCALE_LAYOUT_128X4;
         r.column_scales() = r.workspace.tensor(ROPE_DTYPE_F8_E8M0, {128, 4});
       },
       Where::Forward},
      {"scales by column in tiles of rows without padding", invalid, "column.scales_out", "[5, 4]",
       [](R &r) {
         for (rope_tensor_t *each : {&r.args.gate, &r.args.up, &r.args.out, &r.args.grad_out, &r.args.grad_gate,
                                     &r.args.grad_up}) {
           if (each->ndim != 0) *each = r.tensor({32, 5});
         }
         r.columns().scale_layout = SWIGLU_SCALE_LAYOUT_128X4;
         r.column_out() = r.workspace.tensor(ROPE_DTYPE_F8_E4M3, {32, 5});
         r.column_scales() = r.workspace.tensor(ROPE_DTYPE_F8_E8M0, {5, 4});
       },
       Where::Forward},
      {"column.amax_out of F64", invalid, "column.amax_out", "F64",
       [](R &r) { r.columns().amax_out = r.workspace.tensor(ROPE_DTYPE_F64, {1}); }},
      {"column.amax_out of two", invalid, "column.amax_out", "[2]",
       [](R &r) { r.columns().amax_out = r.tensor({2}); }},
      {"column.amax_out without outputs", invalid, "column.amax_out", "",
       [](R &r) {
         r.columns().amax_out = r.tensor({1});
         r.column_out() = r.column_scales() = {};
       }},
      {"an output by column over gate", invalid, "column.out", "gate",
       [](R &r) { r.columns(), r.column_out().data = r.args.gate.data; },
       Where::Forward},
      {"an output by column over that by row", invalid, "column.out", "disjoint",
       [](R &r) {
         r.columns();
         r.output() = r.column_out();
       },
       Where::Forward},
      {"scales by column over their output", invalid, "column.scales_out", "disjoint",
       [](R &r) {
         r.columns();
         r.column_scales() = r.workspace.tensor(ROPE_DTYPE_F8_E8M0, {1, 5});
         r.column_scales().data = r.column_out().data;
       },
       Where::Forward},
      {"words in place beside codes by column", invalid, "gate", "disjoint",
       [](R &r) {
         r.columns();
         r.output() = r.args.gate;
       }},
      {"quant.scale beside scales by column alone", invalid, "quant.scale", "scales_out",
       [](R &r) {
         r.columns();
         r.quants().scale = r.tensor({1});
       }},
      {"quant.flags unknown", unsupported, "quant.flags", "0x4", [](R &r) { r.codes().flags = 4; }, Where::Forward},
      {"powers of two without scales", invalid, "quant.flags", "0x2",
       [](R &r) { r.codes().flags = ROPE_QUANT_FLAG_POWER_OF_TWO; }, Where::Forward},
      {"quant.scale_floor without scales", invalid, "quant.scale_floor", "1", [](R &r) { r.codes().scale_floor = 1; },
       Where::Forward},
      {"quant.scale_floor negative", invalid, "quant.scale_floor", "-1", [](R &r) { r.codes().scale_floor = -1; },
       Where::Forward},
      {"quant.scale_floor NaN", invalid, "quant.scale_floor", "nan", [](R &r) { r.codes().scale_floor = NAN; },
       Where::Forward},
      {"quant.scale_floor above F32", invalid, "quant.scale_floor", "1e+39",
       [](R &r) { r.codes().scale_floor = 1e39; }, Where::Forward},
      {"tiles without scales", invalid, "quant.scale_layout", "1",
       [](R &r) { r.codes().scale_layout = SWIGLU_SCALE_LAYOUT_128X4; }, Where::Forward},
      {"quant.scale_layout above the last", unsupported, "quant.scale_layout", "2",
       [](R &r) { r.codes().scale_layout = 2; }, Where::Forward},
      {"quant.scale_layout unknown", unsupported, "quant.scale_layout", "-1", [](R &r) { r.codes().scale_layout = -1; },
       Where::Forward},
      {"quant.reserved0", unsupported, "quant.reserved0", "7", [](R &r) { r.codes().reserved0 = 7; }, Where::Forward},
      {"quant.scale without codes", invalid, "quant.scale", "", [](R &r) { r.quants().scale = r.tensor({1}); },
       Where::Forward},
      {"quant.scales_out without codes", invalid, "quant.scales_out", "",
       [](R &r) {
         r.quants().scales_out = r.tensor({3, 1});
       },
       Where::Forward},
      {"quant.amax_out without codes", invalid, "quant.amax_out", "", [](R &r) { r.quants().amax_out = r.tensor({1}); },
       Where::Forward},
      {"quant.scale of F64", invalid, "quant.scale", "F64",
       [](R &r) { r.codes().scale = r.workspace.tensor(ROPE_DTYPE_F64, {1}); }, Where::Forward},
      {"quant.scale of rows", invalid, "quant.scale", "[3]", [](R &r) { r.codes().scale = r.tensor({3}); },
       Where::Forward},
      {"quant.scale of rank 2", invalid, "quant.scale", "[1, 1]",
       [](R &r) {
         r.codes().scale = r.tensor({1, 1});
       },
       Where::Forward},
      {"quant.scale without data", invalid, "quant.scale", "NULL",
       [](R &r) {
         r.codes().scale = r.tensor({1});
         r.codes().scale.data = nullptr;
       },
       Where::Forward},
      {"quant.scale beside quant.scales_out", invalid, "quant.scale", "quant.scales_out",
       [](R &r) {
         r.codes().scale = r.tensor({1});
         r.codes().scales_out = r.tensor({3, 1});
       },
       Where::Forward},
      {"quant.scale in out", invalid, "out", "quant.scale",
       [](R &r) {
         r.codes().scale = r.tensor({1});
         r.args.out.data = r.codes().scale.data;
       },
       Where::Forward},
      {"quant.scales_out of BF16", invalid, "quant.scales_out", "BF16",
       [](R &r) {
         r.codes().scales_out = r.workspace.tensor(ROPE_DTYPE_BF16, {3, 1});
       },
       Where::Forward},
      {"quant.scales_out of F8_E4M3 beside 8 bits", invalid, "quant.scales_out", "F8_E4M3",
       [](R &r) {
         r.codes().scales_out = r.workspace.tensor(ROPE_DTYPE_F8_E4M3, {3, 1});
       },
       Where::Forward},
      {"quant.scales_out of other rows", invalid, "quant.scales_out", "[2, 1]",
       [](R &r) {
         r.codes().scales_out = r.tensor({2, 1});
       },
       Where::Forward},
      {"quant.scales_out of groups that do not divide", invalid, "quant.scales_out", "[3, 2]",
       [](R &r) {
         r.codes().scales_out = r.tensor({3, 2});
       },
       Where::Forward},
      {"quant.scales_out of groups without an element", invalid, "quant.scales_out", "[3, 10]",
       [](R &r) {
         r.codes().scales_out = r.tensor({3, 10});
       },
       Where::Forward},
      {"quant.scales_out of no groups", invalid, "quant.scales_out", "[3, 0]",
       [](R &r) {
         r.codes().scales_out = r.tensor({3, 0});
       },
       Where::Forward},
      {"quant.scales_out of one axis", invalid, "quant.scales_out", "[1]",
       [](R &r) { r.codes().scales_out = r.tensor({1}); }, Where::Forward},
      {"quant.scales_out of all axes", invalid, "quant.scales_out", "[3, 5, 1]",
       [](R &r) {
         r.codes().scales_out = r.tensor({3, 5, 1});
       },
       Where::Forward},
      {"quant.scales_out split by 5", invalid, "quant.scales_out", "[3, 1, 5]",
       [](R &r) {
         r.codes().scales_out = r.tensor({3, 1, 5});
       },
       Where::Forward},
      {"quant.scales_out of repeated scales", invalid, "quant.scales_out", "",
       [](R &r) {
         rope_tensor_t &scales = r.codes().scales_out = r.tensor({3, 1});
         scales.flags = ROPE_TENSOR_STRIDED;
         scales.stride[0] = 0;
       },
       Where::Forward},
      {"quant.scales_out in gate", invalid, "quant.scales_out", "gate",
       [](R &r) {
         rope_tensor_t &scales = r.codes().scales_out = r.tensor({3, 1});
         scales.data = r.args.gate.data;
       },
       Where::Forward},
      {"quant.scales_out of experts without their rows", invalid, "quant.scales_out", "[3, 1]",
       [](R &r) {
         r.experts();
         r.args.out = r.workspace.tensor(ROPE_DTYPE_F8_E4M3, {3, 2, 5});
         r.quants().scales_out = r.tensor({3, 1});
       },
       Where::Forward},
      {"quant.scale of two experts of three", invalid, "quant.scale", "[2]: it must be [1], or [E] with a scale",
       [](R &r) {
         r.experts();
         r.args.out = r.workspace.tensor(ROPE_DTYPE_F8_E4M3, {3, 2, 5});
         r.quants().scale = r.tensor({2});
       },
       Where::Forward},
      {"quant.amax_out of two", invalid, "quant.amax_out", "[2]", [](R &r) { r.codes().amax_out = r.tensor({2}); },
       Where::Forward},
      {"quant.amax_out of F16", invalid, "quant.amax_out", "F16",
       [](R &r) { r.codes().amax_out = r.workspace.tensor(ROPE_DTYPE_F16, {1}); }, Where::Forward},
      {"quant.amax_out in up", invalid, "quant.amax_out", "up",
       [](R &r) {
         r.codes().amax_out = r.tensor({1});
         r.codes().amax_out.data = r.args.up.data;
       },
       Where::Forward},
      {"pairs of odd channels", invalid, "gate.shape[1]", "5",
       [](R &r) {
         r.args.out = r.workspace.tensor(ROPE_DTYPE_F4_E2M1X2, {3, 5});
       },
       Where::Forward},
      {"pairs as many as channels", invalid, "out.shape[1]", "32",
       [](R &r) {
         r.pairs();
         r.args.out = r.workspace.tensor(ROPE_DTYPE_F4_E2M1X2, {3, 32});
       },
       Where::Forward},
      {"pairs of other rows", invalid, "out.shape[0]", "4",
       [](R &r) {
         r.pairs();
         r.args.out = r.workspace.tensor(ROPE_DTYPE_F4_E2M1X2, {4, 16});
       },
       Where::Forward},
      {"pairs of another rank", invalid, "out.ndim", "3",
       [](R &r) {
         r.pairs();
         r.args.out = r.workspace.tensor(ROPE_DTYPE_F4_E2M1X2, {3, 4, 4});
       },
       Where::Forward},
      {"pairs without data", invalid, "out", "NULL",
       [](R &r) {
         r.pairs();
         r.args.out.data = nullptr;
       },
       Where::Forward},
      {"pairs in gate", invalid, "out", "gate",
       [](R &r) {
         r.pairs();
         r.args.out.data = r.args.gate.data;
       },
       Where::Forward},
      {"pairs over each other", invalid, "out", "",
       [](R &r) {
         r.pairs();
         r.args.out.flags = ROPE_TENSOR_STRIDED;
         r.args.out.stride[0] = 8;
       },
       Where::Forward},
      {"num_rows of channels in pairs", invalid, "num_rows", "1",
       [](R &r) {
         r.args.gate = r.tensor({32});
         r.args.up = r.tensor({32});
         r.args.out = r.workspace.tensor(ROPE_DTYPE_F4_E2M1X2, {16});
         r.args.num_rows = r.workspace.tensor(ROPE_DTYPE_I32, {1});
       },
       Where::Forward},
      {"up in pairs", unsupported, "up.dtype", "F4_E2M1X2", [](R &r) { r.args.up.dtype = ROPE_DTYPE_F4_E2M1X2; }},
      {"a gradient in pairs", unsupported, "grad_up.dtype", "F4_E2M1X2",
       [](R &r) { r.args.grad_up.dtype = ROPE_DTYPE_F4_E2M1X2; }, Where::Backward},
      {"backward's out in pairs", unsupported, "out.dtype", "F4_E2M1X2",
       [](R &r) {
         r.args.out = r.workspace.tensor(ROPE_DTYPE_F4_E2M1X2, {3, 5});
       },
       Where::Backward},
      {"scales in pairs", unsupported, "quant.scales_out.dtype", "F4_E2M1X2",
       [](R &r) {
         r.pairs().scales_out = r.workspace.tensor(ROPE_DTYPE_F4_E2M1X2, {3, 2});
       },
       Where::Forward},
      {"groups of odd channels in pairs", invalid, "quant.scales_out", "[3, 32]",
       [](R &r) { r.nvfp4({3, 32}); }, Where::Forward},
      {"groups that do not divide channels in pairs", invalid, "quant.scales_out", "[3, 3]",
       [](R &r) { r.nvfp4({3, 3}); }, Where::Forward},
      {"groups of pairs rather than channels", invalid, "quant.scales_out", "[3, 64]",
       [](R &r) { r.nvfp4({3, 64}); }, Where::Forward},
      {"powers of two of F8_E4M3", invalid, "quant.flags", "F8_E4M3",
       [](R &r) {
         r.nvfp4();
         r.quants().flags = ROPE_QUANT_FLAG_POWER_OF_TWO;
       },
       Where::Forward},
      {"a global scale beside F8_E8M0", invalid, "quant.scale", "quant.scales_out",
       [](R &r) {
         r.pairs().scales_out = r.workspace.tensor(ROPE_DTYPE_F8_E8M0, {3, 1});
         r.quants().scale = r.tensor({1});
       },
       Where::Forward},
      {"a global scale of rows", invalid, "quant.scale", "[3]",
       [](R &r) {
         r.nvfp4();
         r.quants().scale = r.tensor({3});
       },
       Where::Forward},
      {"a global scale of BF16", invalid, "quant.scale", "BF16",
       [](R &r) {
         r.nvfp4();
         r.quants().scale = r.workspace.tensor(ROPE_DTYPE_BF16, {1});
       },
       Where::Forward},
      {"a global scale in the written ones", invalid, "quant.scales_out", "quant.scale",
       [](R &r) {
         r.nvfp4({3, 2}, Placement().gap(0, 2));
         r.quants().scale = r.tensor({1});
         r.quants().scale.data = r.quants().scales_out.data;
       },
       Where::Forward},
      {"amax in pairs", invalid, "quant.amax_out", "out",
       [](R &r) {
         r.pairs().amax_out = r.tensor({1});
         r.quants().amax_out.data = r.args.out.data;
       },
       Where::Forward},
      {"tiles of F32", invalid, "quant.scales_out", "F32", [](R &r) { r.tiles(ROPE_DTYPE_F32); }, Where::Forward},
      {"tiles of rows without padding", invalid, "quant.scales_out", "[3, 4]",
       [](R &r) { r.tiles(ROPE_DTYPE_F8_E8M0, {3, 4}); }, Where::Forward},
      {"tiles of groups without padding", invalid, "quant.scales_out", "[128, 2]",
       [](R &r) { r.tiles(ROPE_DTYPE_F8_E4M3, {128, 2}); }, Where::Forward},
      {"tiles of more groups", invalid, "quant.scales_out", "[128, 8]",
       [](R &r) { r.tiles(ROPE_DTYPE_F8_E4M3, {128, 8}); }, Where::Forward},
      {"tiles of more rows", invalid, "quant.scales_out", "[256, 4]",
       [](R &r) { r.tiles(ROPE_DTYPE_F8_E8M0, {256, 4}); }, Where::Forward},
      {"tiles of rows that groups do not fill", invalid, "quant.scales_out", "32",
       [](R &r) {
         r.tiles(ROPE_DTYPE_F8_E8M0);
         r.args.gate = r.tensor({3, 48});
         r.args.up = r.tensor({3, 48});
         r.args.out = r.workspace.tensor(ROPE_DTYPE_F4_E2M1X2, {3, 24});
       },
       Where::Forward},
      {"tiles of split groups", invalid, "quant.scales_out", "[128, 1, 4]",
       [](R &r) {
         r.tiles(ROPE_DTYPE_F8_E8M0, {128, 1, 4});
       },
       Where::Forward},
      {"tiles of one axis", invalid, "quant.scales_out", "[512]", [](R &r) { r.tiles(ROPE_DTYPE_F8_E8M0, {512}); },
       Where::Forward},
      {"tiles with gaps between rows", invalid, "quant.scales_out.stride", "8",
       [](R &r) {
         r.tiles(ROPE_DTYPE_F8_E8M0, {128, 4}, Placement().gap(0, 4));
       },
       Where::Forward},
      {"tiles with gaps between groups", invalid, "quant.scales_out.stride", "512",
       [](R &r) {
         r.tiles(ROPE_DTYPE_F8_E8M0, {128, 512}).shape[1] = 4;
         r.quants().scales_out.stride[0] = 4;
         r.quants().scales_out.stride[1] = 512;
         r.quants().scales_out.shape[0] = 128;
       },
       Where::Forward},
      {"tiles in columns", invalid, "quant.scales_out.stride", "128",
       [](R &r) {
         r.tiles(ROPE_DTYPE_F8_E8M0, {128, 4}, Placement().order({1, 0}));
       },
       Where::Forward},
      {"tiles of another batch", invalid, "quant.scales_out", "[2, 128, 4]",
       [](R &r) {
         r.tiles(ROPE_DTYPE_F8_E8M0, {2, 128, 4});
         r.args.gate = r.tensor({3, 5, 32});
         r.args.up = r.tensor({3, 5, 32});
         r.args.out = r.workspace.tensor(ROPE_DTYPE_F4_E2M1X2, {3, 5, 16});
       },
       Where::Forward},
      {"tiles of experts without their rows", invalid, "quant.scales_out", "[128, 4]",
       [](R &r) {
         r.experts();
         r.tiles(ROPE_DTYPE_F8_E8M0);
         r.args.gate = r.tensor({3, 2, 16});
         r.args.up = r.tensor({3, 2, 16});
         r.args.out = r.workspace.tensor(ROPE_DTYPE_F4_E2M1X2, {3, 2, 8});
       },
       Where::Forward},
      {"codes in gate", invalid, "out", "gate",
       [](R &r) {
         r.codes();
         r.args.out.data = r.args.gate.data;
       },
       Where::Forward},
      {"codes of another shape", invalid, "out", "4",
       [](R &r) {
         r.args.out = r.workspace.tensor(ROPE_DTYPE_F8_E5M2, {4, 5});
       },
       Where::Forward},
      {"gate of 8 bits", invalid, "gate", "F8_E4M3",
       [](R &r) {
         r.args.gate = r.workspace.tensor(ROPE_DTYPE_F8_E4M3, {3, 5});
       }},

      {"out absent", invalid, "out", "", [](R &r) { r.args.out = {}; }, Where::Forward},
      {"out of another shape", invalid, "out", "4",
       [](R &r) {
         r.args.out = r.tensor({4, 5});
       },
       Where::Forward},
      {"out of another dtype", invalid, "out", "", [](R &r) { r.args.out.dtype = ROPE_DTYPE_I32; }, Where::Forward},
      {"out of one row repeated", invalid, "out", "", [](R &r) { r.args.out.stride[0] = 0; }, Where::Forward},
      {"out in gate, one element on", invalid, "out", "",
       [](R &r) {
         r.args.out = r.args.gate;
         move(&r.args.out, 4);
       },
       Where::Forward},
      {"out in up with other strides", invalid, "out", "",
       [](R &r) {
         r.args.out = r.args.up;
         r.args.out.stride[0] = 1;
         r.args.out.stride[1] = 3;
       },
       Where::Forward},
      {"grad_out in forward", invalid, "grad_out", "",
       [](R &r) {
         r.args.grad_out = r.tensor({3, 5});
       },
       Where::Forward},
      {"grad_gate in forward", invalid, "grad_gate", "",
       [](R &r) {
         r.args.grad_gate = r.tensor({3, 5});
       },
       Where::Forward},
      {"grad_up in forward", invalid, "grad_up", "",
       [](R &r) {
         r.args.grad_up = r.tensor({3, 5});
       },
       Where::Forward},
      {"grad_row_scale in forward", invalid, "grad_row_scale", "",
       [](R &r) { r.args.row_scale = r.args.grad_row_scale = r.tensor({3}); }, Where::Forward},
      {"out over row_scale", invalid, "out", "row_scale",
       [](R &r) {
         r.args.row_scale = r.tensor({3});
         r.args.out.data = r.args.row_scale.data;
       },
       Where::Forward},
      {"out over num_rows", invalid, "out", "num_rows",
       [](R &r) {
         r.args.num_rows = r.args.out;
         r.args.num_rows.dtype = ROPE_DTYPE_I32;
         r.args.num_rows.ndim = 1;
         r.args.num_rows.shape[0] = 1;
         move(&r.args.num_rows, 16);
       },
       Where::Forward},

      {"out of another shape in backward", invalid, "out", "4",
       [](R &r) {
         r.args.out = r.tensor({3, 4});
       },
       Where::Backward},
      {"grad_out absent", invalid, "grad_out", "", [](R &r) { r.args.grad_out = {}; }, Where::Backward},
      {"grad_row_scale without row_scale", invalid, "grad_row_scale", "row_scale",
       [](R &r) { r.args.grad_row_scale = r.tensor({3}); }, Where::Backward},
      {"grad_row_scale of another shape", invalid, "grad_row_scale", "4",
       [](R &r) {
         r.args.row_scale = r.tensor({3});
         r.args.grad_row_scale = r.tensor({4});
       },
       Where::Backward},
      {"grad_row_scale of another dtype", invalid, "grad_row_scale", "BF16",
       [](R &r) {
         r.args.row_scale = r.tensor({3});
         r.args.grad_row_scale = r.workspace.tensor(ROPE_DTYPE_BF16, {3});
       },
       Where::Backward},
      {"grad_row_scale of one element repeated", invalid, "grad_row_scale", "0",
       [](R &r) {
         r.args.row_scale = r.tensor({3});
         r.args.grad_row_scale = r.tensor({3});
         r.args.grad_row_scale.stride[0] = 0;
       },
       Where::Backward},
      {"grad_row_scale in row_scale, one element on", invalid, "grad_row_scale", "row_scale",
       [](R &r) {
         r.args.row_scale = r.tensor({4});
         r.args.row_scale.shape[0] = 3;
         r.args.grad_row_scale = r.args.row_scale;
         move(&r.args.grad_row_scale, 4);
       },
       Where::Backward},
      {"grad_row_scale in grad_up", invalid, "grad_up", "grad_row_scale",
       [](R &r) {
         r.args.row_scale = r.tensor({3});
         r.args.grad_row_scale = r.args.row_scale;
         r.args.grad_row_scale.data = r.args.grad_up.data;
       },
       Where::Backward},
      {"grad_row_scale in gate", invalid, "grad_row_scale", "gate",
       [](R &r) {
         r.args.row_scale = r.tensor({3});
         r.args.grad_row_scale = r.args.row_scale;
         r.args.grad_row_scale.data = r.args.gate.data;
       },
       Where::Backward},
      {"no gradient wanted", invalid, "grad_gate", "", [](R &r) { r.args.grad_gate = r.args.grad_up = {}; },
       Where::Backward},
      {"grad_up of another shape", invalid, "grad_up", "",
       [](R &r) {
         r.args.grad_up = r.tensor({5, 3});
       },
       Where::Backward},
      {"grad_out of another dtype", invalid, "grad_out", "", [](R &r) { r.args.grad_out.dtype = ROPE_DTYPE_BF16; },
       Where::Backward},
      {"grad_up in grad_gate", invalid, "grad_up", "", [](R &r) { r.args.grad_up = r.args.grad_gate; },
       Where::Backward},
      {"both gradients over gate", invalid, "grad_up", "",
       [](R &r) { r.args.grad_up = r.args.grad_gate = r.args.gate; }, Where::Backward},
      {"grad_gate in grad_out, one row on", invalid, "grad_gate", "",
       [](R &r) {
         r.args.grad_gate = r.args.grad_out;
         move(&r.args.grad_gate, 20);
       },
       Where::Backward},
      {"grad_gate of one column repeated", invalid, "grad_gate", "", [](R &r) { r.args.grad_gate.stride[1] = 0; },
       Where::Backward},
      {"one element for years of a row", unsupported, "gate", "288230376151711744",
       [](R &r) {
         r.sum_row_of(r.tensor({1}), {1, int64_t{1} << 58, 1}, 0);
       },
       Where::Backward},
      {"few elements that overlapping rows visit again and again", unsupported, "gate", "17179869184",
       [](R &r) {
         r.sum_row_of(r.tensor({1 << 18}), {1, 1 << 17, 1 << 17}, 1);
       },
       Where::Backward},
  };
  // Backward, the gradient of gate is the output by column.
  const size_t count = misuses.size();
  for (size_t i = 0; i < count; ++i) {
    SwigluMisuse backward = misuses[i];
    const bool is_scales = std::string(backward.field) == "column.scales_out";
    if (backward.where != Where::Forward || (!is_scales && std::string(backward.field) != "column.out")) continue;
    backward.field = is_scales ? "column.grad_gate_scales_out" : "column.grad_gate";
    backward.where = Where::Backward;
    misuses.push_back(backward);
  }
  misuses.push_back({"a stream on the CPU", invalid, "stream", "",
                     [](R &r) { r.stream = reinterpret_cast<rope_stream_t>(static_cast<uintptr_t>(16)); }});
  misuses.back().cpu_only = true;
  return misuses;
}

}  // namespace

TEST_CASE("ROPE_FLAG_PROGRAMMATIC_LAUNCH changes no bit of a call", "[errors]") {
  for (const Device &device : devices()) {
    for (const Direction direction : {Direction::Forward, Direction::Backward}) {
      INFO(name_of(direction) << " on " << device);
      RopeRequest rope(device);
      rope.workspace.fill_normal(rope.args.q);
      rope.workspace.fill_normal(rope.args.k);
      rope.workspace.freeze();
      const RopeDesc rope_desc = create(rope.config);
      SwigluRequest swiglu(device, direction);
      for (const rope_tensor_t &input : {swiglu.args.gate, swiglu.args.up, swiglu.args.grad_out}) {
        if (input.ndim != 0) swiglu.workspace.fill_normal(input);
      }
      swiglu.workspace.freeze();
      const SwigluDesc swiglu_desc = create(swiglu.config);
      std::vector<std::byte> rope_bytes[2], swiglu_bytes[2];
      for (const uint32_t flags : {uint32_t{0}, uint32_t{ROPE_FLAG_PROGRAMMATIC_LAUNCH}}) {
        rope.args.flags = swiglu.args.flags = flags;
        rope.workspace.restore();
        CHECK(run(device, rope_desc.get(), direction, rope.args, rope.workspace) == ROPE_STATUS_SUCCESS);
        rope_bytes[flags] = rope.workspace.image();
        swiglu.workspace.restore();
        CHECK(run(device, swiglu_desc.get(), direction, swiglu.args, swiglu.workspace) == ROPE_STATUS_SUCCESS);
        swiglu_bytes[flags] = swiglu.workspace.image();
      }
      const bool is_same = rope_bytes[0] == rope_bytes[1] && swiglu_bytes[0] == swiglu_bytes[1];
      CHECK(is_same);
    }
  }
}

TEST_CASE("the misuses have names of their own, and are many", "[errors]") {
  size_t count = 0;
  const auto add = [&](const char *table, const auto &misuses) {
    std::set<std::string> titles;
    for (const auto &misuse : misuses) {
      INFO(table << ": " << misuse.title);
      CHECK(titles.insert(std::string(misuse.title) + ": " + misuse.field).second);
      CHECK(misuse.field[0] != '\0');
    }
    count += titles.size();
  };
  add("rope_desc_create", misused_rope_configs());
  add("rope_forward and rope_backward", misused_rope_args());
  add("rope_forward of a step", misused_steps());
  add("swiglu_desc_create", misused_swiglu_configs());
  add("swiglu_forward and swiglu_backward", misused_swiglu_args());
  INFO(count << " misuses by name");
  CHECK(count >= 757);
}

TEST_CASE("misused SwiGLU configs", "[errors]") {
  for (const Device &device : devices()) {
    for (const SwigluMisuse &misuse : misused_swiglu_configs()) {
      if (misuse.cpu_only && device.kind != ROPE_DEVICE_CPU) continue;
      INFO(misuse.title << ", on " << device);
      SwigluRequest request(device, Direction::Forward);
      misuse.commit(request);
      swiglu_desc_t *desc = not_null<swiglu_desc_t>();
      CHECK(swiglu_desc_create(&request.config, &desc) == misuse.status);
      CHECK(desc == nullptr);
      check_message("swiglu_desc_create", misuse.field, misuse.value);
    }
  }
}

TEST_CASE("misused SwiGLU args", "[errors]") {
  for (const Device &device : devices()) {
    for (const Direction direction : {Direction::Forward, Direction::Backward}) {
      const bool forward = direction == Direction::Forward;
      const SwigluDesc desc = create(swiglu_config_for(device));
      const auto call = [&](const SwigluRequest &request) {
        const swiglu_args_t *args = request.null_args ? nullptr : &request.args;
        return forward ? swiglu_forward(desc.get(), args, request.stream)
                       : swiglu_backward(desc.get(), args, request.stream);
      };
      SwigluRequest unbroken(device, direction);
      unbroken.workspace.freeze();
      unbroken.workspace.restore();
      CHECK(run(device, desc.get(), direction, unbroken.args, unbroken.workspace) == ROPE_STATUS_SUCCESS);
      for (const SwigluMisuse &misuse : misused_swiglu_args()) {
        if (misuse.cpu_only && device.kind != ROPE_DEVICE_CPU) continue;
        if (misuse.where == (forward ? Where::Backward : Where::Forward)) continue;
        INFO(misuse.title << ", " << name_of(direction) << " on " << device);
        SwigluRequest request(device, direction);
        misuse.commit(request);
        request.workspace.freeze();
        request.workspace.restore();
        CHECK(call(request) == misuse.status);
        check_message(forward ? "swiglu_forward" : "swiglu_backward", misuse.field, misuse.value);
        // An explanation takes the direction from grad_out.
        if (request.stream == nullptr && (request.args.grad_out.ndim == 0) == forward) {
          char text[8] = "#######";
          const swiglu_args_t *args = request.null_args ? nullptr : &request.args;
          CHECK(swiglu_explain(desc.get(), args, text, sizeof text) == misuse.status);
          check_message("swiglu_explain", misuse.field, misuse.value);
          CHECK(std::string(text) == "#######");
        }
        check_untouched(request.workspace);
      }
    }
  }
}

TEST_CASE("as many heads as the header says are served", "[errors]") {
  for (const Device &device : devices()) {
    const RopeDesc desc = create(rope_config_for(device, 2));
    char text[256];
    rope_args_t args = rope_args();
    void *const somewhere = reinterpret_cast<void *>(uintptr_t{1} << 20);  // an explanation does not read it
    args.q = {somewhere, ROPE_DTYPE_F32, 4, ROPE_TENSOR_STRIDED, {1, 1, 1 << 20, 2}, {0, 0, 2, 1}};
    INFO("on " << device);
    CHECK(rope_explain(desc.get(), &args, text, sizeof text) == ROPE_STATUS_SUCCESS);
    ++args.q.shape[2];
    CHECK(rope_explain(desc.get(), &args, text, sizeof text) == ROPE_STATUS_NOT_SUPPORTED);
  }
}

TEST_CASE("refused enumerations list what is permitted", "[errors]") {
  const auto last_error_of = [](rope_status_t status) {
    CHECK(status != ROPE_STATUS_SUCCESS);
    return std::string(rope_last_error());
  };
  const Device device = devices()[0];
  const auto config_error = [&](const std::function<void(rope_config_t &)> &commit) {
    rope_config_t config = rope_config_for(device, 16);
    commit(config);
    rope_desc_t *desc = nullptr;
    return last_error_of(rope_desc_create(&config, &desc));
  };
  const auto args_error = [&](const std::function<void(RopeRequest &)> &commit) {
    RopeRequest request(device);
    commit(request);
    return last_error_of(rope_forward(create(request.config).get(), &request.args, nullptr));
  };
  const auto swiglu_error = [&](const std::function<void(swiglu_config_t &)> &commit) {
    swiglu_config_t config = swiglu_config_for(device);
    commit(config);
    swiglu_desc_t *desc = nullptr;
    return last_error_of(swiglu_desc_create(&config, &desc));
  };
  const auto scaling_error = [&](rope_scaling_type_t type) {
    rope_scaling_t scaling = ROPE_SCALING_INIT;
    scaling.type = type;
    double inv_freq[8], scale;
    return last_error_of(rope_scaled_frequencies(16, 10000, &scaling, inv_freq, &scale));
  };
  const auto sections_error = [&](rope_sections_type_t type) {
    rope_sections_t sections = ROPE_SECTIONS_INIT;
    sections.type = type;
    int32_t pair_axis[8];
    return last_error_of(rope_section_axes(16, 10000, &sections, pair_axis, nullptr));
  };
  using R = RopeRequest;

  CHECK(config_error([](rope_config_t &config) { config.device = 3; }) ==
        "rope_desc_create: device is 3: it must be ROPE_DEVICE_CPU or ROPE_DEVICE_CUDA");
  CHECK(config_error([](rope_config_t &config) { config.dtype = 11; }) ==
        "rope_desc_create: dtype is 11 (unknown): it must be F32, F16, BF16 or F64");
  CHECK(config_error([](rope_config_t &config) { config.layout = 9; }) ==
        "rope_desc_create: layout is 9: it must be ROPE_LAYOUT_BSHD, ROPE_LAYOUT_SBHD, ROPE_LAYOUT_BHSD or "
        "ROPE_LAYOUT_THD");
  CHECK(config_error([](rope_config_t &config) { config.style = 9; }) ==
        "rope_desc_create: style is 9: it must be ROPE_STYLE_HALF or ROPE_STYLE_INTERLEAVED");
  CHECK(config_error([](rope_config_t &config) { config.out_style = 9; }) ==
        "rope_desc_create: out_style is 9: it must be ROPE_STYLE_HALF or ROPE_STYLE_INTERLEAVED, or 0 for style");
  CHECK(swiglu_error([](swiglu_config_t &config) { config.dtype = 0; }) ==
        "swiglu_desc_create: dtype is 0 (unknown): it must be F32, F16, BF16 or F64");
  CHECK(
      args_error([](R &r) { r.args.flags = 0x60; }) ==
      "rope_forward: flags is 0x60: this version knows ROPE_FLAG_PROGRAMMATIC_LAUNCH (0x1), ROPE_FLAG_UNROTATED (0x2), "
      "ROPE_FLAG_V_UNROTATED (0x4) and ROPE_FLAG_ACCUMULATE (0x8) only");
  CHECK(args_error([](R &r) { r.args.q.flags = 6; }) ==
        "rope_forward: q.flags is 0x6: this version knows ROPE_TENSOR_STRIDED (0x1) only");
  CHECK(args_error([](R &r) { r.args.q.dtype = 11; }) ==
        "rope_forward: q.dtype is 11: it must be F32, F16, BF16, F64, I32, I64, F8_E4M3, F8_E5M2 or F8_E8M0");
  CHECK(args_error([](R &r) { r.args.positions.dtype = ROPE_DTYPE_F64; }) ==
        "rope_forward: positions.dtype is F64: it must be I32 or I64");
  CHECK(args_error([](R &r) {
          r.use_cache().k_cache = r.workspace.tensor(ROPE_DTYPE_F64, {3, 4, 2, 16});
        }) ==
        "rope_forward: cache.k_cache.dtype is F64: it must be the descriptor's, F32, or F16, BF16, F8_E4M3 or F8_E5M2");
  CHECK(args_error([](R &r) {
          r.use_cache();
          r.args.v = r.tensor({2, 3, 2, 16});
        }) ==
        "rope_forward: v is set beside cache: it needs ROPE_FLAG_UNROTATED or ROPE_FLAG_V_UNROTATED, without which "
        "it would be rotated");
  CHECK(args_error([](R &r) {
          r.use_tables();
          r.args.cos.dtype = ROPE_DTYPE_I32;
        }) == "rope_forward: cos.dtype is I32: it must be F32, F16, BF16 or F64");
  for (rope_dtype_t dtype : {ROPE_DTYPE_F64, ROPE_DTYPE_I64}) {
    CHECK(args_error([&](R &r) {
            r.args.angles = r.workspace.tensor(dtype, {5, 8});
          }) == std::string("rope_forward: angles.dtype is ") + (dtype == ROPE_DTYPE_F64 ? "F64" : "I64") +
                    ": it must be F32, F16 or BF16");
  }
  CHECK(args_error([](R &r) { r.args.table_rows = 9; }) ==
        "rope_forward: table_rows is 9: it must be ROPE_TABLE_BY_POSITION or ROPE_TABLE_BY_TOKEN");
  const std::string recipes =
      "ROPE_SCALING_NONE, LINEAR, DYNAMIC_NTK, DYNAMIC_NTK_FIXED, NTK_ALPHA, NTK_FIXED, NTK_MIXED, YARN, YARN_LOG, "
      "LLAMA3, LONGROPE, PROPORTIONAL, FACTORS";
  CHECK(scaling_error(0) == "rope_scaled_frequencies: type is 0: it must be one of " + recipes);
  CHECK(scaling_error(99) == "rope_scaled_frequencies: type is 99: this version knows " + recipes);
  const std::string rules = "ROPE_SECTIONS_CHUNKED, INTERLEAVED, IMROPE, ERNIE, RESTARTED, VISION";
  CHECK(sections_error(0) == "rope_section_axes: type is 0: it must be one of " + rules);
  CHECK(sections_error(99) == "rope_section_axes: type is 99: this version knows " + rules);
}

namespace {

// A group that must not be read.
template <class Group>
const Group *unreadable() {
  return reinterpret_cast<const Group *>(uintptr_t{64});
}

template <class Struct>
struct Refused {
  const char *text;  // the text behind the function's name
  void (*commit)(Struct &);
};

}  // namespace

TEST_CASE("a config that this version does not serve yet is refused by name", "[errors]") {
  using Rope = rope_config_t;
  using Swiglu = swiglu_config_t;
  const Refused<Rope> rope[] = {
      {"quant_rounding is 0x2: this version knows ROPE_QUANT_ROUND_FIRST (0x1) only",
       [](Rope &c) { c.quant_rounding = 2; }},
      {"rotation_rounding is 2: this version knows ROPE_ROTATION_ROUND_EACH (1) only",
       [](Rope &c) { c.rotation_rounding = 2; }},
      {"rotation_rounding is -1: this version knows ROPE_ROTATION_ROUND_EACH (1) only",
       [](Rope &c) { c.rotation_rounding = -1; }},
  };
  const Refused<Swiglu> swiglu[] = {
      {"quant_rounding is 0x2: this version knows ROPE_QUANT_ROUND_FIRST (0x1) only",
       [](Swiglu &c) { c.quant_rounding = 2; }},
  };
  for (const Device &device : devices()) {
    INFO("on " << device);
    for (const Refused<Rope> &refused : rope) {
      rope_config_t config = rope_config_for(device, 16);
      refused.commit(config);
      rope_desc_t *desc = not_null<rope_desc_t>();
      CHECK(rope_desc_create(&config, &desc) == unsupported);
      CHECK(desc == nullptr);
      CHECK(std::string(rope_last_error()) == std::string("rope_desc_create: ") + refused.text);
    }
    for (const Refused<Swiglu> &refused : swiglu) {
      swiglu_config_t config = swiglu_config_for(device);
      refused.commit(config);
      swiglu_desc_t *desc = not_null<swiglu_desc_t>();
      CHECK(swiglu_desc_create(&config, &desc) == unsupported);
      CHECK(desc == nullptr);
      CHECK(std::string(rope_last_error()) == std::string("swiglu_desc_create: ") + refused.text);
    }
  }
}

TEST_CASE("a call that this version does not serve yet is refused by name, its groups unread", "[errors]") {
  using Rope = rope_args_t;
  using Swiglu = swiglu_args_t;
  const Refused<Rope> rope[] = {
      {"k_out.dtype is F4_E2M1X2: this version does not serve it yet",
       [](Rope &a) { a.k_out.dtype = ROPE_DTYPE_F4_E2M1X2; }},
      {"q.dtype is F4_E2M1X2: this version does not serve it yet", [](Rope &a) { a.q.dtype = ROPE_DTYPE_F4_E2M1X2; }},
      {"positions.dtype is F4_E2M1X2: this version does not serve it yet",
       [](Rope &a) { a.positions.dtype = ROPE_DTYPE_F4_E2M1X2; }},
  };
  const std::string flags_of_swiglu = ": this version knows ROPE_FLAG_PROGRAMMATIC_LAUNCH (0x1) only";
  const std::string swiglu_flags[] = {"flags is 0x2" + flags_of_swiglu, "flags is 0x4" + flags_of_swiglu,
                                      "flags is 0x8" + flags_of_swiglu};
  const Refused<Swiglu> swiglu[] = {
      {swiglu_flags[0].c_str(), [](Swiglu &a) { a.flags = ROPE_FLAG_UNROTATED; }},
      {swiglu_flags[1].c_str(), [](Swiglu &a) { a.flags = ROPE_FLAG_V_UNROTATED; }},
      {swiglu_flags[2].c_str(), [](Swiglu &a) { a.flags = ROPE_FLAG_ACCUMULATE; }},
      {"gate.dtype is F4_E2M1X2: this version does not serve it yet",
       [](Swiglu &a) { a.gate.dtype = ROPE_DTYPE_F4_E2M1X2; }},
  };
  const auto is_refused_as = [](rope_status_t status, const std::string &text) {
    CHECK(status == unsupported);
    CHECK(std::string(rope_last_error()) == text);
  };
  for (const Device &device : devices()) {
    INFO("on " << device);
    const RopeDesc rope_desc = create(rope_config_for(device, 16));
    for (const Refused<Rope> &refused : rope) {
      RopeRequest request(device);
      refused.commit(request.args);
      request.workspace.freeze();
      request.workspace.restore();
      char text[8] = "#######";
      const std::string rule = refused.text;
      is_refused_as(rope_forward(rope_desc.get(), &request.args, nullptr), "rope_forward: " + rule);
      is_refused_as(rope_backward(rope_desc.get(), &request.args, nullptr), "rope_backward: " + rule);
      is_refused_as(rope_explain(rope_desc.get(), &request.args, text, sizeof text), "rope_explain: " + rule);
      CHECK(std::string(text) == "#######");
      check_untouched(request.workspace);
    }
    const SwigluDesc swiglu_desc = create(swiglu_config_for(device));
    for (const Refused<Swiglu> &refused : swiglu) {
      for (const Direction direction : {Direction::Forward, Direction::Backward}) {
        SwigluRequest request(device, direction);
        refused.commit(request.args);
        request.workspace.freeze();
        request.workspace.restore();
        const rope_status_t status = direction == Direction::Forward
                                         ? swiglu_forward(swiglu_desc.get(), &request.args, nullptr)
                                         : swiglu_backward(swiglu_desc.get(), &request.args, nullptr);
        is_refused_as(status, (direction == Direction::Forward ? "swiglu_forward: " : "swiglu_backward: ") +
                                  std::string(refused.text));
        char text[8] = "#######";
        is_refused_as(swiglu_explain(swiglu_desc.get(), &request.args, text, sizeof text),
                      "swiglu_explain: " + std::string(refused.text));
        CHECK(std::string(text) == "#######");
        check_untouched(request.workspace);
      }
    }
  }
}

TEST_CASE("structs of the first release are served, what lies behind them unread", "[errors]") {
  for (const Device &device : devices()) {
    INFO("on " << device);
    RopeRequest rope(device);
    rope.config.struct_size = 88;
    std::memset(reinterpret_cast<char *>(&rope.config) + 88, 0xa5, sizeof rope.config - 88);
    rope.args.struct_size = 1064;
    std::memset(reinterpret_cast<char *>(&rope.args) + 1064, 0xa5, sizeof rope.args - 1064);
    rope.workspace.freeze();
    CHECK(run(device, create(rope.config).get(), Direction::Forward, rope.args, rope.workspace) == ROPE_STATUS_SUCCESS);
    SwigluRequest swiglu(device, Direction::Forward);
    swiglu.config.struct_size = 56;
    std::memset(reinterpret_cast<char *>(&swiglu.config) + 56, 0xa5, sizeof swiglu.config - 56);
    swiglu.args.struct_size = 728;
    std::memset(reinterpret_cast<char *>(&swiglu.args) + 728, 0xa5, sizeof swiglu.args - 728);
    swiglu.workspace.freeze();
    CHECK(run(device, create(swiglu.config).get(), Direction::Forward, swiglu.args, swiglu.workspace) ==
          ROPE_STATUS_SUCCESS);
  }
}

TEST_CASE("a tensor of another rank is refused with the axes of the layout", "[errors]") {
  const struct {
    rope_layout_t layout;
    const char *text;
  } layouts[] = {{ROPE_LAYOUT_BSHD, "layout BSHD has 4 axes, [B, S, H, D]: "},
                 {ROPE_LAYOUT_SBHD, "layout SBHD has 4 axes, [S, B, H, D]: "},
                 {ROPE_LAYOUT_BHSD, "layout BHSD has 4 axes, [B, H, S, D]: "},
                 {ROPE_LAYOUT_THD, "layout THD has 3 axes, [T, H, D]: "}};
  for (const auto &layout : layouts) {
    RopeRequest request(devices()[0]);
    request.config.layout = layout.layout;
    request.args.q = request.tensor({6, 4 * 16});  // [T, H * D]
    CHECK(rope_forward(create(request.config).get(), &request.args, nullptr) == ROPE_STATUS_INVALID_ARGUMENT);
    CHECK(std::string(rope_last_error()) == std::string("rope_forward: q.ndim is 2: ") + layout.text +
                                                "pass that view of the same memory, by shape and stride");
  }
}

TEST_CASE("shapes in messages have all their digits", "[errors]") {
  RopeRequest request(devices()[0]);
  request.args.positions = request.workspace.tensor(ROPE_DTYPE_I64, {12, 90, 1, 387});
  const RopeDesc desc = create(request.config);
  CHECK(rope_forward(desc.get(), &request.args, nullptr) == ROPE_STATUS_INVALID_ARGUMENT);
  const std::string message = rope_last_error();
  INFO(message);
  CHECK(message.find("rope_forward: positions has shape [12, 90, 1, 387]: ") == 0);
}
